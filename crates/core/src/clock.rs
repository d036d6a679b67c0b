//! The offset of another robot's clock, from messages there and back.
//!
//! An exchange has four times: sent here, received there, answered there, returned here. If both directions took
//! equally long, the offset would be the mean of the two differences. The error is at most half of the round trip (as
//! in NTP, RFC 5905; Dust calls the stamps T1 to T4). Of the newest exchanges, the one with the shortest round trip is
//! used, and its error bound grows with age, because clocks drift.
//!
//! Left out: estimating the drift itself.

use crate::{Duration, Instant};
use serde::{Deserialize, Serialize};

/// Number of exchanges to remember.
const KEPT: usize = 8;
/// Bound on the error of a clock's rate against true time, in millionths, for what must never happen: two robots that grant
/// the same permit. A crystal is off by at most 100, with its age and heat; the kernel slews a clock by up to 500 for NTP; the
/// rest is room.
pub const DRIFT_PPM: u32 = 1_000;
/// The same where a rare error costs little: when a window begins, how old a state is. Crystals alone.
pub const DRIFT_USUAL_PPM: u32 = 100;

/// How far two clocks usually have run apart after `span`.
pub fn drift_between(span: Duration) -> Duration {
    span / (1_000_000 / (2 * u64::from(DRIFT_USUAL_PPM)))
}

/// The offset of another clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offset {
    /// The other clock minus ours, in nanoseconds.
    pub ahead_ns: i64,
    /// The bound on the error.
    pub within: Duration,
}

impl Offset {
    /// That of a clock to itself.
    pub const NONE: Offset = Offset {
        ahead_ns: 0,
        within: Duration::ZERO,
    };

    /// What the other clock shows when ours shows `ours`.
    pub fn theirs(&self, ours: Instant) -> Instant {
        Instant::from_nanos(ours.as_nanos().saturating_add_signed(self.ahead_ns))
    }

    /// What our clock shows when the other shows `theirs`.
    pub fn ours(&self, theirs: Instant) -> Instant {
        Instant::from_nanos(theirs.as_nanos().saturating_add_signed(self.ahead_ns.saturating_neg()))
    }
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Exchange {
    ahead_ns: i64,
    round_trip: Duration,
    at: Instant,
}

/// Estimates one other clock.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ClockEstimate {
    /// Identifies the other clock, as that robot names it.
    clock: Option<u64>,
    exchanges: [Option<Exchange>; KEPT],
    next: usize,
}

impl ClockEstimate {
    /// Records an exchange that ended at `back_at`: sent and returned on our clock, received and answered on theirs.
    /// Inconsistent times are ignored. A different `clock` discards all earlier exchanges.
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

    /// The other clock's name and offset, once there has been an exchange with it.
    pub fn offset(&self, now: Instant) -> Option<(u64, Offset)> {
        let within = |exchange: &Exchange| exchange.round_trip / 2 + drift_between(now.since(exchange.at));
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

        /// Nor where both clocks are as wrong as they usually may be, each to its side, and the exchange is old.
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
            // A slow clock counts less of the time that both have run apart.
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
