//! Decides whether bulk made an MPC loop late (Deng 2022, section III-A), from what one robot knows about the loops.
//!
//! A loop's time consists of perceptions on the air, inference, and commands on the air. Bulk can lengthen only the
//! first and the last. So a late loop counts against bulk if it would have been in time with messages as fast as in the
//! quieter loops. It does not count if most loops are late, because then caution is of no use. If it is unknown when
//! the last perception arrived, the parts cannot be separated, and bulk is not blamed. While bulk has no regard for
//! loops, there are no quieter ones. Then each late loop counts unless its inference alone exceeded the bound.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::{Duration, Instant};

/// Number of loops that are remembered.
const KEPT: usize = 64;
/// One in this many of the remembered loops is faster than the time that counts as quiet.
const QUIET_RANK: usize = 8;

/// How a loop ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Whether the loop ended after its bound.
    pub late: bool,
    /// Whether bulk made it late.
    pub by_bulk: bool,
}

/// The loops seen by one robot, on its own clock.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Loops {
    current: Option<Current>,
    /// The duration of the newest loops, and below, the time that their messages took.
    times: VecDeque<Duration>,
    on_the_air: Quiet,
}

/// The newest samples of a time that bulk can only lengthen, and an estimate of the time without bulk.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Quiet(VecDeque<Duration>);

impl Quiet {
    /// Adds a sample.
    pub fn add(&mut self, time: Duration) {
        keep(&mut self.0, time);
    }

    /// Returns the time below which one in eight of the newest 64 samples lies; zero without samples.
    pub fn get(&self) -> Duration {
        let mut sorted: Vec<Duration> = self.0.iter().copied().collect();
        sorted.sort_unstable();
        sorted.get(sorted.len() / QUIET_RANK).copied().unwrap_or(Duration::ZERO)
    }
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Current {
    began: Instant,
    /// When the last perception arrived and when the commands were made, if known.
    all_in: Option<Instant>,
    commanded: Option<Instant>,
    /// When the newest command had left.
    through: Option<Instant>,
}

impl Loops {
    /// Begins a loop at `start`. `all_in` is when the last of its perceptions arrived, if that is known.
    pub fn begin(&mut self, start: Instant, all_in: Option<Instant>) {
        self.current = Some(Current {
            began: start,
            all_in,
            commanded: None,
            through: None,
        });
    }

    /// Records when a command of the loop was made.
    pub fn on_commanded(&mut self, at: Instant) {
        if let Some(current) = &mut self.current {
            current.commanded.get_or_insert(at);
        }
    }

    /// Records when a command of the loop had left.
    pub fn on_through(&mut self, at: Instant) {
        if let Some(current) = &mut self.current {
            current.through = Some(at);
        }
    }

    /// Ends the loop with the newest command that had left. Returns how it ended, or `None` if that is not known.
    /// `calm` says that bulk has no regard for loops, so no loop shows how long messages take without bulk.
    pub fn end(&mut self, bound: Duration, calm: bool) -> Option<Ended> {
        let current = self.current.take()?;
        let time = current.through?.since(current.began);
        keep(&mut self.times, time);
        let late = time > bound;
        let (Some(commanded), Some(all_in)) = (current.commanded, current.all_in) else {
            return Some(Ended {
                late,
                by_bulk: late && calm,
            });
        };
        let inference = commanded.since(all_in);
        let on_the_air = time.saturating_sub(inference);
        self.on_the_air.add(on_the_air);
        if calm {
            let by_bulk = late && inference <= bound;
            return Some(Ended { late, by_bulk });
        }
        let by_messages = on_the_air.saturating_sub(self.on_the_air.get()) > time.saturating_sub(bound);
        let others = self.times.iter().filter(|time| **time > bound).count();
        let by_bulk = late && by_messages && others * 2 <= self.times.len();
        Some(Ended { late, by_bulk })
    }
}

fn keep(newest: &mut VecDeque<Duration>, value: Duration) {
    newest.truncate(KEPT - 1);
    newest.push_front(value);
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUND: Duration = Duration::from_millis(33);

    fn run(loops: &mut Loops, perceptions_ms: u64, inference_ms: u64, commands_ms: u64) -> Option<bool> {
        let start = Instant::from_nanos(1_000_000_000);
        let all_in = start + Duration::from_millis(perceptions_ms);
        let commanded = all_in + Duration::from_millis(inference_ms);
        loops.begin(start, Some(all_in));
        loops.on_commanded(commanded);
        loops.on_through(commanded + Duration::from_millis(commands_ms));
        loops.end(BOUND, false).map(|ended| ended.by_bulk)
    }

    #[test]
    fn a_late_loop_counts_against_bulk_where_its_messages_made_it_late() {
        let mut loops = Loops::default();
        for _ in 0..20 {
            assert_eq!(run(&mut loops, 5, 20, 3), Some(false));
        }
        assert_eq!(run(&mut loops, 5, 27, 3), Some(false), "the inference did it");
        assert_eq!(run(&mut loops, 11, 20, 3), Some(true));
        assert_eq!(run(&mut loops, 5, 20, 9), Some(true));
        assert_eq!(run(&mut loops, 7, 27, 3), Some(false), "late without those 2 ms too");
        (0..64).for_each(|_| _ = run(&mut loops, 5, 27, 3));
        assert_eq!(run(&mut loops, 11, 20, 3), Some(false), "most loops are late");
        let start = Instant::from_nanos(1_000_000_000);
        for (inference_ms, late) in [(20, true), (34, false)] {
            loops.begin(start, Some(start + Duration::from_millis(11)));
            loops.on_commanded(start + Duration::from_millis(11 + inference_ms));
            loops.on_through(start + Duration::from_millis(14 + inference_ms));
            let ended = loops.end(BOUND, true).unwrap();
            assert_eq!(ended.by_bulk, late, "nothing was done for loops yet");
            assert!(ended.late);
        }
    }

    #[test]
    fn where_it_is_unknown_whether_all_is_in_bulk_is_blamed_in_calm_only() {
        let mut loops = Loops::default();
        let start = Instant::from_nanos(1_000_000_000);
        for (took_ms, calm, expected) in [
            (45, false, (true, false)),
            (45, true, (true, true)),
            (30, true, (false, false)),
        ] {
            loops.begin(start, None);
            loops.on_through(start + Duration::from_millis(took_ms));
            let ended = loops.end(BOUND, calm).map(|ended| (ended.late, ended.by_bulk));
            assert_eq!(ended, Some(expected));
            assert_eq!(loops.end(BOUND, false), None, "it is over");
        }
        loops.begin(start, Some(start));
        assert_eq!(loops.end(BOUND, false), None, "no command came through");
    }
}
