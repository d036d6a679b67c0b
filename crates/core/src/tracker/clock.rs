//! What another clock shows, from exchanges of messages (as in NTP, RFC 5905, sections 8 and 10).

use super::Answer;
use crate::{Duration, Instant};
use std::collections::VecDeque;

/// Exchanges that are remembered.
const KEPT: usize = 8;
/// How fast an estimate grows old: the most that two clocks drift apart, one part in so many.
const DRIFT_PART: u64 = 5_000;

/// The other clock minus this one. Added to a time here it gives the time there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClockOffset {
    nanos: i64,
}

impl ClockOffset {
    fn between(there: Instant, here: Instant) -> i64 {
        let difference = i128::from(there.as_nanos()) - i128::from(here.as_nanos());
        difference.clamp(i64::MIN.into(), i64::MAX.into()) as i64
    }

    /// Nanoseconds that the other clock is ahead, negative where it is behind.
    pub fn as_nanos(self) -> i64 {
        self.nanos
    }

    /// The time there when it is `here` on this clock.
    pub fn there(self, here: Instant) -> Instant {
        Instant::from_nanos(here.as_nanos().saturating_add_signed(self.nanos))
    }
}

#[derive(Clone, Copy, Debug)]
struct Exchange {
    offset: ClockOffset,
    way: Duration,
    at: Instant,
}

impl Exchange {
    fn error(&self, now: Instant) -> Duration {
        // The two ways may differ by all of their sum.
        self.way / 2 + now.since(self.at) / DRIFT_PART
    }
}

/// Estimates another clock.
#[derive(Clone, Debug, Default)]
pub struct OffsetEstimate {
    exchanges: VecDeque<Exchange>,
}

impl OffsetEstimate {
    /// An answer came in at `now`. One that answers what has not been sent yet, or took less than no time, is dropped.
    pub fn on_answer(&mut self, answer: Answer, now: Instant) {
        let Answer {
            echo,
            received_at,
            sent_at,
        } = answer;
        if echo > now || received_at > sent_at || sent_at.since(received_at) > now.since(echo) {
            return;
        }
        let there = ClockOffset::between(received_at, echo);
        let back = ClockOffset::between(sent_at, now);
        let nanos = ((i128::from(there) + i128::from(back)) / 2) as i64;
        self.exchanges.truncate(KEPT - 1);
        self.exchanges.push_front(Exchange {
            offset: ClockOffset { nanos },
            way: now.since(echo).saturating_sub(sent_at.since(received_at)),
            at: now,
        });
    }

    /// The offset, and by how much it may be off: from the exchange that tells it best. `None` before the first.
    pub fn offset(&self, now: Instant) -> Option<(ClockOffset, Duration)> {
        let best = self.exchanges.iter().min_by_key(|exchange| exchange.error(now))?;
        Some((best.offset, best.error(now)))
    }
}
