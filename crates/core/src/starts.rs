//! Distinguishes the starts of one robot, without any clock.
//!
//! A start has a number that no other start of that robot has: a counter on its disk, and a random part. The counter
//! alone would repeat after a wiped disk or a restored copy. With the random part, two starts with the same counter
//! differ except once in 65,536. No clock is involved, so a clock that once was in 2101, or is in 1970, changes
//! nothing.
//!
//! Listeners do not compare which number is greater. A new number begins a new start, and is accepted at once. The
//! start before it is over, and frames that still arrive from it are late. If frames still arrive after [`LATE_MAX`],
//! the earlier start has not ended. Then two robots run under one name, with one set of keys, for example after a
//! machine's disk was copied.
//!
//! Left out: which of the two robots is the right one. Both have the keys, so the operator has to say.

use crate::{Duration, Instant};
use serde::{Deserialize, Serialize};

/// The number of ended starts that are remembered.
const OVER_MAX: usize = 8;
/// How long frames of a start may be on their way after it is over.
pub const LATE_MAX: Duration = Duration::from_secs(5);
const RANDOM_BITS: u32 = 16;

/// Returns the number of a start. `counter` counts the starts on this disk; `None` if it cannot be kept there.
pub fn number(counter: Option<u16>, random: u32) -> u32 {
    counter.map_or(random, |counter| {
        u32::from(counter) << RANDOM_BITS | (random & ((1 << RANDOM_BITS) - 1))
    })
}

/// How a frame's start relates to the newest one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// The newest start.
    Same,
    /// A new start, which is the newest from now on.
    New,
    /// A start that is over.
    Over,
}

/// The starts of one robot, as one listener has heard them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Starts {
    newest: Option<u32>,
    /// The ended starts, in the first `count` places. The oldest is replaced at `next`.
    over: [u32; OVER_MAX],
    count: u8,
    next: u8,
}

impl Starts {
    /// Returns the newest start.
    pub fn newest(&self) -> Option<u32> {
        self.newest
    }

    /// Records a frame of a start. Returns how that start relates to the newest.
    pub fn on_heard(&mut self, start: u32) -> Start {
        if self.newest == Some(start) {
            return Start::Same;
        }
        if self.over[..usize::from(self.count)].contains(&start) {
            return Start::Over;
        }
        if let Some(over) = self.newest.replace(start) {
            self.over[usize::from(self.next)] = over;
            self.next = (self.next + 1) % OVER_MAX as u8;
            self.count = (self.count + 1).min(OVER_MAX as u8);
        }
        Start::New
    }
}

/// The state that detects two robots under one name.
#[derive(Clone, Copy, Debug, Default)]
pub struct Twins {
    /// When the newest start was first heard.
    since: Option<Instant>,
}

impl Twins {
    /// Records a frame. Returns whether it shows that an earlier start still runs.
    pub fn on_heard(&mut self, start: Start, now: Instant) -> bool {
        if start == Start::New {
            self.since = Some(now);
        }
        let since = self.since.get_or_insert(now);
        start == Start::Over && now.since(*since) > LATE_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_copied_disk_gives_another_number() {
        assert_ne!(number(Some(7), 0xaaaa_1234), number(Some(7), 0xaaaa_1235));
        assert_ne!(number(Some(7), 5), number(Some(8), 5));
        assert_eq!(number(None, 0xdead_beef), 0xdead_beef);
    }

    proptest! {
        /// Whatever the counter does (wiped, restored, wrapped, lost), each start is heard from its first frame.
        #[test]
        fn every_start_is_heard_at_once(starts in prop::collection::vec(any::<(Option<u16>, u32)>(), 1..40)) {
            let (mut listener, mut told) = (Starts::default(), Vec::new());
            for (counter, random) in starts {
                let start = number(counter, random);
                prop_assume!(!told.contains(&start));
                prop_assert_eq!(listener.on_heard(start), Start::New);
                prop_assert_eq!(listener.on_heard(start), Start::Same);
                for late in told.iter().rev().take(OVER_MAX) {
                    prop_assert_eq!(listener.on_heard(*late), Start::Over);
                }
                prop_assert_eq!(listener.newest(), Some(start));
                told.push(start);
            }
        }

        /// Two robots that send in turns are detected each time. A robot that restarts is not, however late its last
        /// frames arrive.
        #[test]
        fn a_twin_is_noticed(gap_ms in 1u64..4_000, rounds in 3u64..50) {
            let at = |ms: u64| Instant::ZERO + Duration::from_millis(ms);
            let (mut starts, mut twins, mut noticed) = (Starts::default(), Twins::default(), 0);
            let mut hear = |start, now| twins.on_heard(starts.on_heard(start), now);
            prop_assert!(!hear(1, at(0)));
            prop_assert!(!hear(2, at(1)));
            prop_assert!(!hear(1, at(1 + LATE_MAX.as_nanos() / 1_000_000)));
            for round in 2..rounds {
                let now = at(LATE_MAX.as_nanos() / 1_000_000 + round * gap_ms);
                noticed += usize::from(hear(1, now)) + usize::from(hear(2, now));
            }
            prop_assert_eq!(noticed as u64, rounds - 2);
        }
    }
}
