//! Where the leaders' clocks are, and when to ask the leader for its time.
//!
//! The whole team keeps to one clock, the leader's. Each robot asks for it often at first and then every
//! [`ASK_EVERY`]; [`crate::clock`] estimates the offset from the four times of each exchange (Dust, T1 to T4).
//!
//! Left out: the clocks of robots that do not lead. Nothing is stamped by them, and their answers are dropped.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::{ClockId, Message, Robot};
use crate::clock::{ClockEstimate, Offset};
use crate::{Duration, Instant, RobotId};

/// Interval between two queries for the leader's clock, and between the first ones.
const ASK_EVERY: Duration = Duration::from_secs(1);
const ASK_FIRST: Duration = Duration::from_millis(50);
/// Queries are quick until this many were answered, or this many were asked.
const ANSWERED_QUICKLY: u32 = 8;
const ASKED_QUICKLY_MAX: u32 = 200;
/// Leaders whose clocks are remembered.
const CLOCKS_KEPT: usize = 4;

/// The clocks of the last leaders, other than this robot.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Clocks {
    /// The one that answered last comes first: messages stamped by an older one may still be on their way.
    known: VecDeque<(ClockId, ClockEstimate)>,
    ask_at: Instant,
    asked: u32,
    answered: u32,
}

impl Clocks {
    /// The first query is due at `ask_at`.
    pub fn new(ask_at: Instant) -> Self {
        Clocks {
            known: VecDeque::new(),
            ask_at,
            asked: 0,
            answered: 0,
        }
    }

    /// The leader told its time: sent, received there, answered there, back here.
    pub fn on_time(&mut self, clock: ClockId, times: [Instant; 4]) {
        let [sent_at, received_at, answered_at, back_at] = times;
        self.answered = self.answered.saturating_add(1);
        // A robot that leads again is known already.
        let place = self.known.iter().position(|(known, _)| *known == clock);
        let before = place.and_then(|place| self.known.remove(place));
        let mut estimate = before.map(|(_, estimate)| estimate).unwrap_or_default();
        estimate.on_exchange(clock.0, sent_at, received_at, answered_at, back_at);
        self.known.truncate(CLOCKS_KEPT - 1);
        self.known.push_front((clock, estimate));
    }

    /// Another robot leads, so another clock counts: asks for it at once.
    pub fn ask_anew(&mut self) {
        (self.ask_at, self.asked, self.answered) = (Instant::ZERO, 0, 0);
    }

    /// Returns whether the leader is to be asked now.
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

    /// When to call [`Clocks::on_deadline`] next.
    pub fn next_deadline(&self) -> Instant {
        self.ask_at
    }
}

impl Robot {
    /// The name of this robot's clock.
    pub fn clock_id(&self) -> ClockId {
        self.clock
    }

    /// The answer to a [`Message::TimeQuery`] that was sent at `echo` and received just now.
    pub(super) fn time_reply(&self, echo: Instant, now: Instant) -> Message {
        Message::TimeReply {
            clock: self.clock,
            echo,
            received_at: now,
            sent_at: now,
        }
    }

    /// A robot answers a query with the times of the exchange. Only the leader's own clock counts: an answer that has
    /// overtaken a change of leader comes too late, and no robot speaks for another one's clock.
    pub(super) fn on_time_reply(&mut self, from: RobotId, clock: ClockId, times: [Instant; 4]) {
        let [.., now] = times;
        if clock.is_of(from) && self.leader(now) == Some(from) {
            self.clocks.on_time(clock, times);
        }
    }

    /// The clock that the whole team knows: the leader's, or the last leader's while there is none. `None` while this robot
    /// does not know its offset.
    pub fn team_clock(&self, now: Instant) -> Option<(ClockId, Offset)> {
        if self.leader(now) == Some(self.me) {
            return Some((self.clock, Offset::NONE));
        }
        self.leaders_clock(now)
    }

    /// The clock of the last leader that was another robot, and its offset.
    pub fn leaders_clock(&self, now: Instant) -> Option<(ClockId, Offset)> {
        let (clock, estimate) = self.clocks.known.front()?;
        Some((*clock, estimate.offset(now)?.1))
    }

    /// The offset of a clock, if it is this robot's or was a leader's recently.
    pub fn clock(&self, clock: ClockId, now: Instant) -> Option<Offset> {
        if clock == self.clock {
            return Some(Offset::NONE);
        }
        let (_, estimate) = self.clocks.known.iter().find(|(known, _)| *known == clock)?;
        Some(estimate.offset(now)?.1)
    }
}
