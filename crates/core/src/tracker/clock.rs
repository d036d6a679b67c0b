//! Estimates the offset of another clock from message exchanges (as in NTP, RFC 5905, sections 8 and 10).

use super::Answer;
use crate::clock::drift_between;
use crate::{Duration, Instant};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Number of exchanges to remember.
const KEPT: usize = 8;

/// The other clock minus this one. Added to a time here, it gives the time there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ClockOffset {
    nanos: i64,
}

impl ClockOffset {
    fn between(there: Instant, here: Instant) -> i64 {
        let difference = i128::from(there.as_nanos()) - i128::from(here.as_nanos());
        difference.clamp(i64::MIN.into(), i64::MAX.into()) as i64
    }

    /// Returns the nanoseconds by which the other clock is ahead; negative if it is behind.
    pub fn as_nanos(self) -> i64 {
        self.nanos
    }

    /// Returns the time on the other clock when this clock shows `here`.
    pub fn there(self, here: Instant) -> Instant {
        Instant::from_nanos(here.as_nanos().saturating_add_signed(self.nanos))
    }
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Exchange {
    offset: ClockOffset,
    way: Duration,
    at: Instant,
}

impl Exchange {
    fn error(&self, now: Instant) -> Duration {
        // The delays of the two directions may differ by as much as their sum.
        self.way / 2 + drift_between(now.since(self.at))
    }
}

/// The estimate of another clock.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct OffsetEstimate {
    exchanges: VecDeque<Exchange>,
}

impl OffsetEstimate {
    /// Handles an answer that arrived at `now`. Drops an answer to a message not yet sent, or with a negative round
    /// trip.
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

    /// Returns the offset and its error bound, from the exchange with the smallest bound. `None` before the first
    /// exchange.
    pub fn offset(&self, now: Instant) -> Option<(ClockOffset, Duration)> {
        let best = self.exchanges.iter().min_by_key(|exchange| exchange.error(now))?;
        Some((best.offset, best.error(now)))
    }
}
