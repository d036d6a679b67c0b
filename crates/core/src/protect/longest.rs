//! The longest wait among a flow's newest packets.

use crate::{Duration, Instant};

const SPAN: Duration = Duration::from_secs(1);

/// The longest wait over the current second and the one before.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Longest {
    since: Instant,
    current: Duration,
    before: Duration,
}

impl Longest {
    /// Records a wait that ends now.
    pub fn note(&mut self, wait: Duration, now: Instant) {
        let old = now.since(self.since);
        if old >= SPAN {
            let before = if old < SPAN * 2 { self.current } else { Duration::ZERO };
            *self = Longest {
                since: now,
                current: wait,
                before,
            };
        }
        self.current = self.current.max(wait);
    }

    /// Returns the longest recorded wait over the last one to two seconds; zero if there was none.
    pub fn get(&self, now: Instant) -> Duration {
        match now.since(self.since) {
            old if old < SPAN => self.current.max(self.before),
            old if old < SPAN * 2 => self.current,
            _ => Duration::ZERO,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_wait_is_forgotten_after_two_seconds() {
        let (ms, at) = (Duration::from_millis, |ms: u64| Instant::from_nanos(ms * 1_000_000));
        let mut longest = Longest::default();
        assert_eq!(longest.get(at(5_000)), ms(0));
        longest.note(ms(7), at(5_000));
        longest.note(ms(3), at(5_900));
        assert_eq!(longest.get(at(5_900)), ms(7));
        longest.note(ms(2), at(6_100));
        assert_eq!(longest.get(at(6_100)), ms(7));
        longest.note(ms(1), at(7_200));
        assert_eq!(longest.get(at(7_200)), ms(2));
        assert_eq!(longest.get(at(8_300)), ms(1));
        assert_eq!(longest.get(at(9_200)), ms(0));
    }
}
