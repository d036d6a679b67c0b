//! What the completion time table (001, section IV-C) may learn from packets that leave the WNIC together.
//!
//! An A-MPDU ends for all its packets at once: the first of 64 took as long as the last, so to say 'alone in the WNIC, it
//! took 5 ms' would close the gate far too early. So a packet counts with those that left together with it: n + 1 is how
//! many left from its coming to its leaving, and an aggregate gives one sample, its newest packet's.
//!
//! Where leaving is learnt of by transmit status, all packets of an aggregate have one time. Acknowledgements of a
//! transport come one by one, so those that follow each other closely are taken for one aggregate's. To take two for one
//! costs a sample and does no other harm.
//!
//! Left out: counting what has left, which the caller does, as it knows which packet is which.

use crate::{Duration, Instant};

/// A packet that found `ahead` before it when it came at `entered_at`, those that left together with it among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Packets before it.
    pub ahead: usize,
    /// When it entered the WNIC.
    pub entered_at: Instant,
    /// When it left.
    pub left_at: Instant,
}

/// Gathers packets that leave together, those of one queue.
#[derive(Clone, Debug, Default)]
pub struct Aggregates {
    within: Duration,
    open: Option<Open>,
}

/// The aggregate that is being reported.
#[derive(Clone, Copy, Debug)]
struct Open {
    first_left_at: Instant,
    newest: Sample,
}

impl Aggregates {
    /// Packets that leave `within` so long of the first one leave together with it.
    pub fn new(within: Duration) -> Self {
        Aggregates { within, open: None }
    }

    /// A packet left at `left_at` that came at `entered_at`. So many packets had left before it came, and so many have
    /// now, itself included. Gives the sample of the aggregate before, once that is whole.
    pub fn on_left(
        &mut self,
        left_before: u64,
        left_by_now: u64,
        entered_at: Instant,
        left_at: Instant,
    ) -> Option<Sample> {
        let together = left_by_now.saturating_sub(left_before).saturating_sub(1);
        let newest = Sample {
            ahead: usize::try_from(together).unwrap_or(usize::MAX),
            entered_at,
            left_at,
        };
        // A clock that stepped back ends it too.
        let of_this = |open: &Open| left_at >= open.first_left_at && left_at.since(open.first_left_at) <= self.within;
        let whole = self.open.filter(|open| !of_this(open));
        let first_left_at = match self.open {
            Some(open) if whole.is_none() => open.first_left_at,
            _ => left_at,
        };
        self.open = Some(Open { first_left_at, newest });
        whole.map(|open| open.newest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(us: u64) -> Instant {
        Instant::from_nanos(us * 1_000)
    }

    #[test]
    fn an_aggregate_gives_one_sample_of_all_its_packets() {
        let mut aggregates = Aggregates::default();
        // 64 enter at once and leave at once; then one that was alone.
        for n in 1..=64 {
            assert_eq!(aggregates.on_left(0, n, at(100), at(5_100)), None);
        }
        let whole = Sample {
            ahead: 63,
            entered_at: at(100),
            left_at: at(5_100),
        };
        assert_eq!(aggregates.on_left(64, 65, at(6_000), at(6_200)), Some(whole));
        let alone = Sample {
            ahead: 0,
            entered_at: at(6_000),
            left_at: at(6_200),
        };
        assert_eq!(aggregates.on_left(65, 66, at(7_000), at(7_300)), Some(alone));
    }

    #[test]
    fn acknowledgements_that_follow_closely_are_of_one_aggregate() {
        let mut aggregates = Aggregates::new(Duration::from_micros(500));
        for n in 1..=32 {
            assert_eq!(aggregates.on_left(0, n, at(100), at(5_000 + 15 * n)), None);
        }
        let sample = aggregates.on_left(20, 33, at(3_000), at(6_000)).unwrap();
        assert_eq!((sample.ahead, sample.left_at), (31, at(5_480)));
    }

    #[test]
    fn a_clock_that_steps_back_ends_an_aggregate() {
        let mut aggregates = Aggregates::new(Duration::from_micros(500));
        assert_eq!(aggregates.on_left(0, 1, at(100), at(5_000)), None);
        assert!(aggregates.on_left(1, 2, at(50), at(90)).is_some());
        assert_eq!(aggregates.on_left(2, 3, at(90), at(95)), None);
    }

    proptest! {
        #[test]
        fn no_sample_counts_more_than_were_there(
            steps in prop::collection::vec((0u64..40, 1u64..50, 0u64..2_000), 1..200),
            within in 0u64..1_000,
        ) {
            let mut aggregates = Aggregates::new(Duration::from_micros(within));
            let (mut left, mut now) = (0, 10_000);
            for (below, together, gap) in steps {
                now += gap;
                // So many were below when the aggregate's packets came, all at once.
                let before = left.max(below) - below;
                for _ in 0..together {
                    left += 1;
                    if let Some(sample) = aggregates.on_left(before, left, at(now - 10_000), at(now)) {
                        prop_assert!(sample.ahead <= 40 + 50);
                        prop_assert!(sample.left_at <= at(now) && sample.entered_at <= sample.left_at);
                    }
                }
            }
        }
    }
}
