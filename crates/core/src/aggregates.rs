//! What the completion time table (Deng 2022, section IV-C) may learn from packets that leave the WNIC together.
//!
//! All packets of an A-MPDU end at once: the first of 64 took as long as the last. Recording 'alone in the WNIC, took 5
//! ms' for the first would close the gate far too early. A packet is therefore recorded together with those that left
//! with it: n + 1 is the number that left between its arrival and its departure. Each aggregate gives one sample, that
//! of its newest packet.
//!
//! With transmit status, all packets of an aggregate have the same time. A transport's acknowledgements arrive one by
//! one, so acknowledgements in close succession count as one aggregate. Mistaking two aggregates for one costs only a
//! sample.
//!
//! Left out: counting departures. The caller does that, because it knows the packets.

use crate::{Duration, Instant};
use serde::{Deserialize, Serialize};

/// A packet that found `ahead` packets before it at `entered_at`. These include the packets that left together with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    /// The number of packets ahead.
    pub ahead: usize,
    /// When the packet entered the WNIC.
    pub entered_at: Instant,
    /// When the packet left the WNIC.
    pub left_at: Instant,
}

/// Groups packets of one queue that leave together.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Aggregates {
    within: Duration,
    open: Option<Open>,
}

/// The aggregate that is being reported.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Open {
    first_left_at: Instant,
    newest: Sample,
}

impl Aggregates {
    /// Creates a state in which packets that leave within `within` of the first count as one aggregate.
    pub fn new(within: Duration) -> Self {
        Aggregates { within, open: None }
    }

    /// Records that a packet that had entered at `entered_at` left at `left_at`. `left_before` is the number of packets
    /// that had left when it entered, `left_by_now` the number that have left now, including this one. Returns the
    /// sample of the previous aggregate once that is complete.
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
        // A clock that stepped back ends the aggregate too.
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
        // 64 enter at once and leave at once; then one enters that is alone.
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
                // The number of packets that had left when those of the aggregate entered, all at once.
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
