//! The round-trip time and the retransmission timeout (RFC 6298, with Linux's bounds).
//!
//! As in Linux, the floor of 200 ms applies to the variation's share, so the timeout is never less than the smoothed
//! time plus 200 ms. Left out: Linux's faster rise and slower fall of the variation, and the window of five minutes for
//! the minimum.

use coorp_core::Duration;

/// The timeout before the first sample (RFC 6298, 2.1).
const INITIAL: Duration = Duration::from_secs(1);
/// TCP_RTO_MIN.
const VARIATION_MIN: Duration = Duration::from_millis(200);
/// TCP_RTO_MAX.
const TIMEOUT_MAX: Duration = Duration::from_secs(120);
/// Doubled this many times, the minimum timeout exceeds the maximum, so there is no need to count further.
const BACKOFF_MAX: u32 = 16;

#[derive(Clone, Copy, Debug)]
struct Estimate {
    smoothed: Duration,
    variation: Duration,
    least: Duration,
}

/// Statistics of the round trips so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rtt {
    estimate: Option<Estimate>,
    backoff: u32,
}

impl Rtt {
    /// Records one round trip, of a segment that was sent once.
    pub(super) fn sample(&mut self, rtt: Duration) {
        self.estimate = Some(match self.estimate {
            None => Estimate {
                smoothed: rtt,
                variation: rtt / 2,
                least: rtt,
            },
            Some(old) => {
                let off = rtt.saturating_sub(old.smoothed) + old.smoothed.saturating_sub(rtt);
                Estimate {
                    smoothed: (old.smoothed * 7 + rtt) / 8,
                    variation: (old.variation * 3 + off) / 4,
                    least: old.least.min(rtt),
                }
            }
        });
    }

    /// Ends the backoff of the timeout, because new data was acknowledged, so the path works.
    pub(super) fn on_progress(&mut self) {
        self.backoff = 0;
    }

    /// Doubles the timeout, because it expired.
    pub(super) fn back_off(&mut self) {
        self.backoff = (self.backoff + 1).min(BACKOFF_MAX);
    }

    /// Returns the retransmission timeout, doubled once per consecutive expiry.
    pub(super) fn timeout(&self) -> Duration {
        let base = self
            .estimate
            .map_or(INITIAL, |e| e.smoothed + (e.variation * 4).max(VARIATION_MIN));
        (base * (1 << self.backoff)).min(TIMEOUT_MAX)
    }

    pub(super) fn smoothed(&self) -> Option<Duration> {
        self.estimate.map(|e| e.smoothed)
    }

    /// Returns the shortest round trip so far, or zero.
    pub(super) fn least(&self) -> Duration {
        self.estimate.map_or(Duration::ZERO, |e| e.least)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeout_starts_at_a_second_and_follows_the_samples() {
        let mut rtt = Rtt::default();
        assert_eq!(rtt.timeout(), Duration::from_secs(1));
        for _ in 0..100 {
            rtt.sample(Duration::from_millis(10));
        }
        assert_eq!(rtt.timeout().as_millis_f64().round(), 210.0);
        rtt.sample(Duration::from_secs(4));
        assert!(rtt.timeout() > Duration::from_secs(4));
    }

    #[test]
    fn timeout_doubles_up_to_its_limit_and_falls_back_on_progress() {
        let mut rtt = Rtt::default();
        rtt.back_off();
        rtt.back_off();
        assert_eq!(rtt.timeout(), Duration::from_secs(4));
        for _ in 0..100 {
            rtt.back_off();
        }
        assert_eq!(rtt.timeout(), TIMEOUT_MAX);
        rtt.on_progress();
        assert_eq!(rtt.timeout(), INITIAL);
    }
}
