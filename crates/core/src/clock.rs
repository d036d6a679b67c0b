//! How far another robot's clock is ahead of ours, from messages there and back.
//!
//! An exchange has four times: sent here, received there, answered there, back here. Had both ways taken equally long,
//! the clocks would differ by the mean of what they show to differ on either way; the truth is off that by half of the
//! round trip at most (as in NTP, RFC 5905; the stamps T1 to T4 are those of 002). Of the newest exchanges the one with
//! the shortest round trip is believed, and the less, the older it is, as clocks drift.
//!
//! Left out: estimating the drift itself.

use crate::{Duration, Instant};

/// Exchanges that are remembered.
const KEPT: usize = 8;
/// How much the bound grows with the age of an exchange: 50 ppm, twice what crystals are off by.
const DRIFT_PARTS: u64 = 20_000;

/// Where another clock is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offset {
    /// The other clock minus ours, nanoseconds.
    pub ahead_ns: i64,
    /// The truth is within this of it.
    pub within: Duration,
}

impl Offset {
    /// What the other clock shows when ours shows `ours`.
    pub fn theirs(&self, ours: Instant) -> Instant {
        Instant::from_nanos(ours.as_nanos().saturating_add_signed(self.ahead_ns))
    }

    /// What our clock shows when the other shows `theirs`.
    pub fn ours(&self, theirs: Instant) -> Instant {
        Instant::from_nanos(theirs.as_nanos().saturating_add_signed(self.ahead_ns.saturating_neg()))
    }
}

#[derive(Clone, Copy, Debug)]
struct Exchange {
    ahead_ns: i64,
    round_trip: Duration,
    at: Instant,
}

/// Estimates one other clock.
#[derive(Clone, Debug, Default)]
pub struct ClockEstimate {
    /// Which clock it is, as the other names it.
    clock: Option<u64>,
    exchanges: [Option<Exchange>; KEPT],
    next: usize,
}

impl ClockEstimate {
    /// An exchange ended at `back_at`: sent and back on our clock, received and answered on theirs. What does not fit
    /// together is ignored. Another `clock` than before starts anew.
    pub fn on_exchange(
        &mut self,
        clock: u64,
        sent_at: Instant,
        received_at: Instant,
        answered_at: Instant,
        back_at: Instant,
    ) {
        if back_at < sent_at || answered_at < received_at {
            return;
        }
        let round_trip = back_at.since(sent_at).saturating_sub(answered_at.since(received_at));
        let there = i128::from(received_at.as_nanos()) - i128::from(sent_at.as_nanos());
        let back = i128::from(answered_at.as_nanos()) - i128::from(back_at.as_nanos());
        let Ok(ahead_ns) = i64::try_from((there + back) / 2) else {
            return;
        };
        if self.clock != Some(clock) {
            *self = ClockEstimate {
                clock: Some(clock),
                ..ClockEstimate::default()
            };
        }
        self.exchanges[self.next] = Some(Exchange {
            ahead_ns,
            round_trip,
            at: back_at,
        });
        self.next = (self.next + 1) % KEPT;
    }

    /// The other clock's name and where it is, once there was an exchange with it.
    pub fn offset(&self, now: Instant) -> Option<(u64, Offset)> {
        let within = |exchange: &Exchange| exchange.round_trip / 2 + now.since(exchange.at) / DRIFT_PARTS;
        let best = self
            .exchanges
            .iter()
            .flatten()
            .min_by_key(|exchange| within(exchange))?;
        let offset = Offset {
            ahead_ns: best.ahead_ns,
            within: within(best),
        };
        Some((self.clock?, offset))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const AHEAD_NS: i64 = -7_000_000;

    fn theirs(ours: u64) -> Instant {
        Instant::from_nanos(ours.saturating_add_signed(AHEAD_NS))
    }

    fn exchange(estimate: &mut ClockEstimate, sent: u64, there: u64, stay: u64, back: u64) -> Instant {
        let back_at = Instant::from_nanos(sent + there + stay + back);
        let (received, answered) = (theirs(sent + there), theirs(sent + there + stay));
        estimate.on_exchange(1, Instant::from_nanos(sent), received, answered, back_at);
        back_at
    }

    #[test]
    fn the_quickest_exchange_is_believed() {
        let mut estimate = ClockEstimate::default();
        assert_eq!(estimate.offset(Instant::ZERO), None);
        exchange(&mut estimate, 100_000_000, 5_000_000, 0, 100_000);
        let now = exchange(&mut estimate, 110_000_000, 100_000, 3_000, 100_000);
        let (_, offset) = estimate.offset(now).unwrap();
        assert_eq!((offset.ahead_ns, offset.within), (AHEAD_NS, Duration::from_micros(100)));
        assert_eq!(offset.ours(offset.theirs(now)), now);
    }

    #[test]
    fn a_clock_that_started_anew_is_another_one() {
        let mut estimate = ClockEstimate::default();
        exchange(&mut estimate, 100_000_000, 1_000, 0, 1_000);
        let at = Instant::from_nanos(200_000_000);
        estimate.on_exchange(2, at, Instant::ZERO, Instant::ZERO, at + Duration::from_millis(1));
        let (clock, offset) = estimate.offset(at).unwrap();
        assert_eq!(clock, 2);
        assert!(offset.ahead_ns < -100_000_000);
    }

    proptest! {
        /// The truth is within the bound, however the ways differ.
        #[test]
        fn the_bound_holds(ways in prop::collection::vec((0..50_000_000u64, 0..9_000_000u64, 0..50_000_000u64), 1..30)) {
            let (mut estimate, mut sent) = (ClockEstimate::default(), 1_000_000_000);
            for (there, stay, back) in ways {
                let now = exchange(&mut estimate, sent, there, stay, back);
                sent = now.as_nanos() + 1;
                let (_, offset) = estimate.offset(now).unwrap();
                // Half a nanosecond is lost to whole ones.
                prop_assert!(offset.ahead_ns.abs_diff(AHEAD_NS) <= offset.within.as_nanos() + 1);
            }
        }

        #[test]
        fn no_times_panic(times in any::<[u64; 5]>()) {
            let mut estimate = ClockEstimate::default();
            let [a, b, c, d, now] = times.map(Instant::from_nanos);
            estimate.on_exchange(0, a, b, c, d);
            if let Some((_, offset)) = estimate.offset(now) {
                offset.ours(offset.theirs(now));
            }
        }
    }
}
