//! The robot's side: connects, stays connected, and stamps its states.

use super::{Message, OffsetEstimate, TopicId, TrackerConfig};
use crate::paths::Sequence;
use crate::{Duration, Instant};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// The shortest interval between retransmissions, whatever the configuration says.
const INTERVAL_MIN: Duration = Duration::from_millis(1);
/// Number of intervals after which a refused robot asks again.
const REFUSED_INTERVALS: u64 = 8;

/// The header of a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct StateHeader {
    /// The sequence number of the state, including the robot's start.
    pub sequence: Sequence,
    /// T1 on the tracker's clock, as estimated by the robot; `None` before it has compared clocks.
    pub created_at: Option<Instant>,
    /// The error bound of `created_at`.
    pub error: Duration,
}

/// An action for the reporter's owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReporterAction {
    /// Send this to the tracker.
    Send(Message),
    /// From now on states are accepted, to be published on this topic.
    Connected(TopicId),
    /// From now on no state is accepted.
    Disconnected,
}

/// The state machine that reports a robot's states to the tracker.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Reporter {
    config: TrackerConfig,
    next: Sequence,
    topic: Option<TopicId>,
    clocks: OffsetEstimate,
    heard_at: Instant,
    send_at: Instant,
    /// The latest time passed in, to detect a clock that steps back.
    clock: Instant,
    outbox: VecDeque<ReporterAction>,
}

impl Reporter {
    const OUTBOX_MAX: usize = 16;

    /// Creates a reporter that connects at once. `next` is the number of the first state. Its start must differ from
    /// all others of this robot, and within a start the tracker must not have seen this number or a greater one.
    pub fn new(config: TrackerConfig, next: Sequence, now: Instant) -> Self {
        Reporter {
            config,
            next,
            topic: None,
            clocks: OffsetEstimate::default(),
            heard_at: now,
            send_at: now,
            clock: now,
            outbox: VecDeque::new(),
        }
    }

    /// Records that a state was created now (T1). Returns its topic and header. Returns `None` while not connected. The
    /// state is then dropped, because a newer one will follow.
    pub fn on_state(&mut self, now: Instant) -> Option<(TopicId, StateHeader)> {
        self.follow_clock(now);
        let topic = self.topic?;
        let sequence = self.next;
        self.next = sequence.next();
        let estimate = self.clocks.offset(now);
        let header = StateHeader {
            sequence,
            created_at: estimate.map(|(offset, _)| offset.there(now)),
            error: estimate.map_or(Duration::ZERO, |(_, error)| error),
        };
        Some((topic, header))
    }

    /// Handles a message from the tracker. Ignores messages for an earlier start, and messages that only robots send.
    pub fn on_message(&mut self, message: Message, now: Instant) {
        self.follow_clock(now);
        match message {
            Message::Accept {
                incarnation,
                topic,
                answer,
            } if incarnation == self.next.incarnation => {
                self.heard_at = now;
                self.clocks.on_answer(answer, now);
                if self.topic != Some(topic) {
                    self.topic = Some(topic);
                    self.send_at = now + self.interval();
                    self.push(ReporterAction::Connected(topic));
                }
            }
            Message::Synced { incarnation, answer } if incarnation == self.next.incarnation => {
                self.heard_at = now;
                self.clocks.on_answer(answer, now);
            }
            Message::Refuse { incarnation } if incarnation == self.next.incarnation && self.topic.is_none() => {
                self.send_at = now + self.interval() * REFUSED_INTERVALS;
            }
            Message::Unknown { incarnation } if incarnation == self.next.incarnation && self.topic.is_some() => {
                self.connect_again(now);
            }
            _ => {}
        }
    }

    /// Restarts the connection, because another tracker with another clock has replaced the old one.
    pub fn on_new_tracker(&mut self, now: Instant) {
        self.follow_clock(now);
        self.clocks = OffsetEstimate::default();
        self.connect_again(now);
    }

    /// Lets the robot leave. Send what [`Reporter::poll`] returns. A reporter that is driven further connects again.
    pub fn leave(&mut self, now: Instant) {
        self.follow_clock(now);
        let incarnation = self.next.incarnation;
        self.connect_again(now);
        self.send_at = now + self.config.silence;
        self.push(ReporterAction::Send(Message::Leave { incarnation }));
    }

    /// Handles the deadline returned by [`Reporter::next_deadline`]. Harmless at any other time.
    pub fn on_deadline(&mut self, now: Instant) {
        self.follow_clock(now);
        if self.topic.is_some() && now >= self.heard_at + self.config.silence {
            self.connect_again(now);
        }
        if now >= self.send_at {
            self.send_at = now + self.interval();
            let (incarnation, sent_at) = (self.next.incarnation, now);
            let message = match self.topic {
                Some(_) => Message::Sync { incarnation, sent_at },
                None => Message::Connect { incarnation, sent_at },
            };
            self.push(ReporterAction::Send(message));
        }
    }

    /// Returns when to call [`Reporter::on_deadline`] next.
    pub fn next_deadline(&self) -> Option<Instant> {
        let silence = self.topic.map(|_| self.heard_at + self.config.silence);
        silence.into_iter().chain([self.send_at]).min()
    }

    /// Returns the next action, until `None`.
    pub fn poll(&mut self) -> Option<ReporterAction> {
        self.outbox.pop_front()
    }

    /// Returns the number of the next state.
    pub fn next_state(&self) -> Sequence {
        self.next
    }

    /// Returns the estimate of the tracker's clock.
    pub fn clocks(&self) -> &OffsetEstimate {
        &self.clocks
    }

    fn interval(&self) -> Duration {
        self.config.sync.max(INTERVAL_MIN)
    }

    fn connect_again(&mut self, now: Instant) {
        self.send_at = now;
        if self.topic.take().is_some() {
            self.push(ReporterAction::Disconnected);
        }
    }

    /// Resets deadlines and exchanges after the clock has stepped back, because the deadlines would be too late and the
    /// exchanges misleading.
    fn follow_clock(&mut self, now: Instant) {
        let back = self.clock.since(now);
        self.clock = now;
        if back > Duration::ZERO {
            self.clocks = OffsetEstimate::default();
            self.heard_at = self.heard_at - back;
            self.send_at = self.send_at - back;
        }
    }

    fn push(&mut self, action: ReporterAction) {
        if self.outbox.len() >= Self::OUTBOX_MAX {
            self.outbox.pop_front();
        }
        self.outbox.push_back(action);
    }
}
