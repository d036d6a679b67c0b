//! Estimates the offset of another robot's clock from round trips of messages.
//!
//! An exchange has four times: sent here, received there, answered there, returned here. If both directions took
//! equally long, the offset would be the mean of the two differences. The error is at most half of the round trip (as
//! in NTP, RFC 5905; Dust calls the stamps T1 to T4). So each exchange gives a lower and an upper bound on the offset.
//! Quick exchanges that are far apart also bound the rate at which one clock gains on the other. With that rate, the
//! bounds of the newest exchange are narrowed to what all exchanges allow. Bounds widen with age by the uncertainty of
//! the rate.
//!
//! Left out: rates that change while exchanges are remembered, unless the exchanges then contradict each other.

use crate::{Duration, Instant};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Number of exchanges to remember: about a minute's worth at one per second.
const KEPT: usize = 64;
/// Bound on the error of a clock's rate against true time, in parts per million, if a violation must never happen: two
/// robots must not grant the same permit. A crystal is off by at most 100, including ageing and heat, and the kernel
/// slews a clock by up to 500 for NTP. The rest is margin.
pub const DRIFT_PPM: u32 = 1_000;
/// The same bound if a rare violation costs little, as for the start of a window or the age of a state. Covers only
/// crystals.
pub const DRIFT_USUAL_PPM: u32 = 100;

/// Returns how far two clocks usually drift apart during `span`.
pub fn drift_between(span: Duration) -> Duration {
    span / (1_000_000 / (2 * u64::from(DRIFT_USUAL_PPM)))
}

/// The offset of another clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offset {
    /// The other clock minus ours, in nanoseconds.
    pub ahead_ns: i64,
    /// The maximum error.
    pub within: Duration,
}

impl Offset {
    /// The offset of a clock from itself.
    pub const NONE: Offset = Offset {
        ahead_ns: 0,
        within: Duration::ZERO,
    };

    /// Returns what the other clock shows when ours shows `ours`.
    pub fn theirs(&self, ours: Instant) -> Instant {
        Instant::from_nanos(ours.as_nanos().saturating_add_signed(self.ahead_ns))
    }

    /// Returns what our clock shows when the other shows `theirs`.
    pub fn ours(&self, theirs: Instant) -> Instant {
        Instant::from_nanos(theirs.as_nanos().saturating_add_signed(self.ahead_ns.saturating_neg()))
    }
}

/// The result of one exchange: the other clock was ahead of ours by between `low_ns` and `high_ns`.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Exchange {
    low_ns: i64,
    high_ns: i64,
    at: Instant,
}

impl Exchange {
    fn width_ns(&self) -> i64 {
        self.high_ns.saturating_sub(self.low_ns)
    }
}

/// Bounds on the offset at `at`, and on the rate at which the other clock gains on ours, as a fraction.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Bounds {
    low_ns: i64,
    high_ns: i64,
    slowest: f64,
    fastest: f64,
    at: Instant,
}

impl Bounds {
    /// Creates the bounds from one exchange. Each clock may be off by as much as a crystal, in opposite directions.
    fn of(exchange: Exchange) -> Self {
        let drift = 2.0 * f64::from(DRIFT_USUAL_PPM) / 1e6;
        Bounds {
            low_ns: exchange.low_ns,
            high_ns: exchange.high_ns,
            slowest: -drift,
            fastest: drift,
            at: exchange.at,
        }
    }

    /// Narrows the rate by two exchanges, one before the other. Returns `None` if they contradict each other.
    fn narrowed(mut self, before: &Exchange, after: &Exchange) -> Option<Self> {
        let apart_ns = after.at.since(before.at).as_nanos() as f64;
        if apart_ns > 0.0 {
            let rate = |from: i64, to: i64| to.saturating_sub(from) as f64 / apart_ns;
            self.slowest = self.slowest.max(rate(before.high_ns, after.low_ns));
            self.fastest = self.fastest.min(rate(before.low_ns, after.high_ns));
        }
        (self.slowest <= self.fastest).then_some(self)
    }

    /// Narrows the bounds by an earlier exchange. Returns `None` if it contradicts them.
    fn and(mut self, earlier: &Exchange) -> Option<Self> {
        let ago_ns = self.at.since(earlier.at).as_nanos() as f64;
        let gained = |rate: f64| (rate * ago_ns) as i64;
        self.low_ns = self.low_ns.max(earlier.low_ns.saturating_add(gained(self.slowest)));
        self.high_ns = self.high_ns.min(earlier.high_ns.saturating_add(gained(self.fastest)));
        (self.low_ns <= self.high_ns).then_some(self)
    }

    fn offset(&self, now: Instant) -> Offset {
        let ago_ns = now.since(self.at).as_nanos() as f64;
        let gained = |rate: f64| (rate * ago_ns) as i64;
        let low_ns = self.low_ns.saturating_add(gained(self.slowest));
        let high_ns = self.high_ns.saturating_add(gained(self.fastest));
        let width_ns = low_ns.abs_diff(high_ns);
        Offset {
            ahead_ns: low_ns.saturating_add_unsigned(width_ns / 2),
            within: Duration::from_nanos(width_ns.div_ceil(2)),
        }
    }
}

/// The estimate of one other clock.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ClockEstimate {
    /// Identifier of the other clock, chosen by its robot.
    clock: Option<u64>,
    /// The remembered exchanges, oldest first.
    exchanges: VecDeque<Exchange>,
    bounds: Option<Bounds>,
}

impl ClockEstimate {
    /// Records an exchange that ended at `back_at`: sent and returned on our clock, received and answered on theirs.
    /// Inconsistent times are ignored. A different `clock` discards all earlier exchanges, as does a clock that has
    /// been set or runs at a different rate than before.
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
        let ahead = |theirs: Instant, ours: Instant| i128::from(theirs.as_nanos()) - i128::from(ours.as_nanos());
        let (high, low) = (ahead(received_at, sent_at), ahead(answered_at, back_at));
        let (Ok(high_ns), Ok(low_ns)) = (i64::try_from(high), i64::try_from(low)) else {
            return;
        };
        if high_ns < low_ns {
            return;
        }
        if self.clock != Some(clock) {
            (self.clock, self.bounds) = (Some(clock), None);
            self.exchanges.clear();
        }
        let exchange = Exchange {
            low_ns,
            high_ns,
            at: back_at,
        };
        if self.exchanges.len() == KEPT {
            self.exchanges.pop_front();
        }
        self.exchanges.push_back(exchange);
        self.bounds = self.together();
        if self.bounds.is_none() {
            self.exchanges.clear();
            self.exchanges.push_back(exchange);
            self.bounds = Some(Bounds::of(exchange));
        }
    }

    /// Combines all exchanges. Returns `None` if they contradict each other.
    fn together(&self) -> Option<Bounds> {
        let newest = self.exchanges.back()?;
        let quickest = |range| self.exchanges.range(range).min_by_key(|exchange| exchange.width_ns());
        let middle = self.exchanges.len() / 2;
        let mut bounds = Bounds::of(*newest);
        if let (Some(before), Some(after)) = (quickest(0..middle), quickest(middle..self.exchanges.len())) {
            bounds = bounds.narrowed(before, after)?;
        }
        self.exchanges
            .iter()
            .try_fold(bounds, |bounds, earlier| bounds.and(earlier))
    }

    /// Returns the other clock's identifier and offset, once there has been an exchange with it.
    pub fn offset(&self, now: Instant) -> Option<(u64, Offset)> {
        Some((self.clock?, self.bounds?.offset(now)))
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
        /// The error is within the bound, however much the two directions differ.
        #[test]
        fn the_bound_holds(ways in prop::collection::vec((0..50_000_000u64, 0..9_000_000u64, 0..50_000_000u64), 1..30)) {
            let (mut estimate, mut sent) = (ClockEstimate::default(), 1_000_000_000);
            for (there, stay, back) in ways {
                let now = exchange(&mut estimate, sent, there, stay, back);
                sent = now.as_nanos() + 1;
                let (_, offset) = estimate.offset(now).unwrap();
                // Rounding to whole nanoseconds loses up to half of one.
                prop_assert!(offset.ahead_ns.abs_diff(AHEAD_NS) <= offset.within.as_nanos() + 1);
            }
        }

        /// The bound holds even if both clocks drift apart at the usual maximum and the exchange is old.
        #[test]
        fn the_bound_holds_while_clocks_run_apart(age in 0..3_600_000_000_000u64, ours_fast: bool) {
            let at = |true_ns: u64, fast: bool| {
                let off = i128::from(true_ns) * i128::from(DRIFT_USUAL_PPM) / 1_000_000;
                let off = if fast { off } else { -off };
                Instant::from_nanos((i128::from(true_ns) + off) as u64)
            };
            let (ours, theirs) = (|ns| at(ns, ours_fast), |ns| at(ns, !ours_fast));
            let mut estimate = ClockEstimate::default();
            estimate.on_exchange(1, ours(1_000), theirs(2_000), theirs(2_000), ours(3_000));
            let now = 3_000 + age;
            let (_, offset) = estimate.offset(ours(now)).unwrap();
            let off = offset.theirs(ours(now)).as_nanos().abs_diff(theirs(now).as_nanos());
            // A slow clock undercounts the time for which both have drifted apart.
            prop_assert!(off <= offset.within.as_nanos() + age / 500_000 + 10, "{off} of {}", offset.within);
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
