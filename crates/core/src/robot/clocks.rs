//! Decides the offsets of the leaders' clocks, and when to ask the leader for its time.
//!
//! The whole team uses one clock, the leader's. Each robot queries it often at first and then every [`ASK_EVERY`].
//! [`crate::clock`] estimates the offset from the four times of each exchange (Dust, T1 to T4).
//!
//! Left out: the clocks of robots that do not lead. No stamp uses them, and their answers are dropped.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::{ClockId, Message, Robot};
use crate::clock::{ClockEstimate, Offset};
use crate::{Duration, Instant, RobotId};

/// Interval between two queries for the leader's clock, and between the first ones.
const ASK_EVERY: Duration = Duration::from_secs(1);
const ASK_FIRST: Duration = Duration::from_millis(50);
/// Queries use the short interval until this many are answered, or the second number of queries has been sent.
const ANSWERED_QUICKLY: u32 = 8;
const ASKED_QUICKLY_MAX: u32 = 200;
/// Maximum number of leaders whose clocks are remembered.
const CLOCKS_KEPT: usize = 4;

/// The clocks of the last leaders, other than this robot.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Clocks {
    /// The known clocks. The one that answered last comes first. Messages stamped by an older one may still be on their
    /// way.
    known: VecDeque<(ClockId, ClockEstimate)>,
    ask_at: Instant,
    asked: u32,
    answered: u32,
}

impl Clocks {
    /// Creates the state; the first query is due at `ask_at`.
    pub fn new(ask_at: Instant) -> Self {
        Clocks {
            known: VecDeque::new(),
            ask_at,
            asked: 0,
            answered: 0,
        }
    }

    /// Records an answer with the leader's time: sent, received there, answered there, back here.
    pub fn on_time(&mut self, clock: ClockId, times: [Instant; 4]) {
        let [sent_at, received_at, answered_at, back_at] = times;
        self.answered = self.answered.saturating_add(1);
        // A robot that leads again is already known.
        let place = self.known.iter().position(|(known, _)| *known == clock);
        let before = place.and_then(|place| self.known.remove(place));
        let mut estimate = before.map(|(_, estimate)| estimate).unwrap_or_default();
        estimate.on_exchange(clock.0, sent_at, received_at, answered_at, back_at);
        self.known.truncate(CLOCKS_KEPT - 1);
        self.known.push_front((clock, estimate));
    }

    /// Queries the time at once, because another robot leads, so another clock counts.
    pub fn ask_anew(&mut self) {
        (self.ask_at, self.asked, self.answered) = (Instant::ZERO, 0, 0);
    }

    /// Returns whether to query the leader now.
    pub fn on_deadline(&mut self, now: Instant) -> bool {
        let due = now >= self.ask_at;
        if due {
            let known = self.answered >= ANSWERED_QUICKLY || self.asked >= ASKED_QUICKLY_MAX;
            let every = if known { ASK_EVERY } else { ASK_FIRST };
            self.ask_at = now + every;
            self.asked = self.asked.saturating_add(1);
        }
        due
    }

    /// Returns when to call [`Clocks::on_deadline`] next.
    pub fn next_deadline(&self) -> Instant {
        self.ask_at
    }
}

impl Robot {
    /// Returns the name of this robot's clock.
    pub fn clock_id(&self) -> ClockId {
        self.clock
    }

    /// Returns the answer to a [`Message::TimeQuery`] that was sent at `echo` and received just now.
    pub(super) fn time_reply(&self, echo: Instant, now: Instant) -> Message {
        Message::TimeReply {
            clock: self.clock,
            echo,
            received_at: now,
            sent_at: now,
        }
    }

    /// Handles a robot's answer to a query, with the times of the exchange. Only the leader's own clock counts. An
    /// answer that arrives after a change of leader is too late, and no robot speaks for another robot's clock.
    pub(super) fn on_time_reply(&mut self, from: RobotId, clock: ClockId, times: [Instant; 4]) {
        let [.., now] = times;
        if clock.is_of(from) && self.leader(now) == Some(from) {
            self.clocks.on_time(clock, times);
        }
    }

    /// Returns the clock that the whole team knows: the leader's, or the last leader's while there is none. `None`
    /// while this robot does not know its offset.
    pub fn team_clock(&self, now: Instant) -> Option<(ClockId, Offset)> {
        if self.leader(now) == Some(self.me) {
            return Some((self.clock, Offset::NONE));
        }
        self.leaders_clock(now)
    }

    /// Returns the clock of the last leader other than this robot, and its offset.
    pub fn leaders_clock(&self, now: Instant) -> Option<(ClockId, Offset)> {
        let (clock, estimate) = self.clocks.known.front()?;
        Some((*clock, estimate.offset(now)?.1))
    }

    /// Returns the offset of a clock, if it is this robot's or was recently a leader's.
    pub fn clock(&self, clock: ClockId, now: Instant) -> Option<Offset> {
        if clock == self.clock {
            return Some(Offset::NONE);
        }
        let (_, estimate) = self.clocks.known.iter().find(|(known, _)| *known == clock)?;
        Some(estimate.offset(now)?.1)
    }
}
