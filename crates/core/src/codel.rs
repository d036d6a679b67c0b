//! Decides which packets to drop at the head of a flow's queue: CoDel (RFC 8289), as Linux runs it for mac80211.
//!
//! It measures how long each packet waited. Once the delay has stayed above the target for a whole interval, it drops
//! one packet. It then drops more and more often (after the interval divided by the square root of the drops so far)
//! until the delay is short again. A queue's last packet is never dropped: mac80211 leaves CoDel's MTU at 0. Left out:
//! ECN marks (Linux TCP does not request them by default), and the looser 50 ms / 300 ms that mac80211 uses for links
//! below 6 Mbit/s.
//!
//! It runs in the simulated host queue and, on a robot, in the queues of [`crate::protect`].

use crate::{Duration, Instant};

/// Number of intervals after the last drop during which a new dropping phase resumes at the old rate.
const MEMORY_INTERVALS: u64 = 16;

/// The delays at which CoDel begins to drop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The standing delay that CoDel accepts.
    pub target: Duration,
    /// How long the delay must stay above the target before the first drop.
    pub interval: Duration,
}

impl Default for Config {
    /// Returns the values of mac80211.
    fn default() -> Self {
        Config {
            target: Duration::from_millis(20),
            interval: Duration::from_millis(100),
        }
    }
}

/// CoDel's state for one flow.
#[derive(Clone, Copy, Debug, Default)]
pub struct Codel {
    /// The time from which to drop: when the delay will have been above the target for an interval; `None` while it is
    /// below.
    drop_from: Option<Instant>,
    dropping: bool,
    drop_next: Instant,
    /// Number of drops in this phase.
    count: u32,
    /// `count` at the start of this phase.
    count_at_start: u32,
}

impl Codel {
    /// Returns whether to drop the packet at the head, which waited `wait` and leaves `backlog_bytes` behind it.
    #[inline]
    pub fn drops(&mut self, wait: Duration, backlog_bytes: u32, now: Instant, config: &Config) -> bool {
        if wait < config.target || backlog_bytes == 0 {
            (self.drop_from, self.dropping) = (None, false);
            return false;
        }
        self.drops_of_standing(now, config)
    }

    #[cold]
    fn drops_of_standing(&mut self, now: Instant, config: &Config) -> bool {
        let from = *self.drop_from.get_or_insert(now + config.interval);
        if now <= from {
            self.dropping = false;
            return false;
        }
        if !self.dropping {
            self.begin(now, config);
            return true;
        }
        if now < self.drop_next {
            return false;
        }
        self.count = self.count.saturating_add(1);
        self.drop_next += self.spacing(config);
        true
    }

    fn begin(&mut self, now: Instant, config: &Config) {
        // A phase soon after the last one has the same cause. Resume near the rate that controlled the queue then.
        let added = self.count - self.count_at_start;
        let recent = now.since(self.drop_next) < config.interval * MEMORY_INTERVALS;
        self.count = if added > 1 && recent { added } else { 1 };
        self.count_at_start = self.count;
        self.dropping = true;
        self.drop_next = now + self.spacing(config);
    }

    fn spacing(&self, config: &Config) -> Duration {
        Duration::from_nanos((config.interval.as_nanos() as f64 / f64::from(self.count).sqrt()) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Offers one long-delayed packet per millisecond and returns the number of drops.
    fn spell(codel: &mut Codel, from_ms: u64, to_ms: u64) -> usize {
        let config = Config::default();
        (from_ms..to_ms)
            .filter(|ms| {
                let now = Instant::ZERO + Duration::from_millis(*ms);
                codel.drops(Duration::from_millis(50), 3000, now, &config)
            })
            .count()
    }

    fn short_wait(codel: &mut Codel, ms: u64) {
        let now = Instant::ZERO + Duration::from_millis(ms);
        assert!(!codel.drops(Duration::from_millis(1), 3000, now, &Config::default()));
    }

    #[test]
    fn a_spell_soon_after_another_goes_on_at_its_rate_and_a_late_one_starts_slowly() {
        let mut codel = Codel::default();
        let first = spell(&mut codel, 0, 1_000);
        short_wait(&mut codel, 1_000);
        let soon = spell(&mut codel, 1_001, 2_001);
        short_wait(&mut codel, 2_001);
        let late = spell(&mut codel, 10_000, 11_000);
        assert!(soon > first + 5, "{first}, then {soon}");
        assert_eq!(late, first);
    }

    #[test]
    fn drops_come_at_the_interval_over_the_root_of_their_count() {
        let mut codel = Codel::default();
        // The delay is high from 0; the first drop comes after 100 ms, the next ones 100, 70.7 and 57.7 ms apart.
        assert_eq!(spell(&mut codel, 0, 101), 0);
        assert_eq!(spell(&mut codel, 101, 102), 1);
        assert_eq!(spell(&mut codel, 102, 201), 0);
        assert_eq!(spell(&mut codel, 201, 202), 1);
        assert_eq!(spell(&mut codel, 202, 271), 0);
        assert_eq!(spell(&mut codel, 271, 273), 1);
    }
}
