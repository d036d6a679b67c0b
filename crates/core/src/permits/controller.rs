//! `schedule()` of algorithm 1: the queue Q, the set S, and the choice of the next grant. Runs on the leader.

use super::{Message, PermitConfig, RequestId, Token};
use crate::{Duration, Instant, RobotId};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// An action for the controller's driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ControllerAction {
    /// Send `message` to robot `to`.
    Send {
        /// The receiver.
        to: RobotId,
        /// The message.
        message: Message,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Holder {
    robot: RobotId,
    request: RequestId,
    token: Token,
    granted_at: Instant,
    heard_at: Instant,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Waiting {
    robot: RobotId,
    request: RequestId,
    echo: Instant,
    heard_at: Instant,
}

/// The state machine that grants permits; runs on the leader.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Controller {
    config: PermitConfig,
    token_next: u64,
    /// The time before which nothing is granted, because holders known to an earlier incarnation may still transmit.
    quiet_until: Instant,
    /// The latest time passed in, to detect a clock that steps back.
    clock: Instant,
    holders: Vec<Holder>,
    queue: VecDeque<Waiting>,
    outbox: VecDeque<ControllerAction>,
}

impl Controller {
    /// Creates a controller for a team that starts together with it, so that no robot can hold a permit yet.
    ///
    /// `incarnation` must differ from that of every earlier controller of this team. A boot counter will do.
    pub fn new(config: PermitConfig, incarnation: u32) -> Self {
        Controller {
            config,
            token_next: u64::from(incarnation) << 32,
            quiet_until: Instant::ZERO,
            clock: Instant::ZERO,
            holders: Vec::new(),
            queue: VecDeque::new(),
            outbox: VecDeque::new(),
        }
    }

    /// Creates a controller that replaces one that may have granted permits. It grants none for one lease.
    pub fn recovering(config: PermitConfig, incarnation: u32, now: Instant) -> Self {
        let quiet_until = now + config.lease;
        Controller {
            quiet_until,
            clock: now,
            ..Controller::new(config, incarnation)
        }
    }

    /// Handles a message from robot `from`. Ignores messages that only a controller sends.
    pub fn on_message(&mut self, from: RobotId, message: Message, now: Instant) {
        self.follow_clock(now);
        self.expire(now);
        match message {
            // A robot may ask only for itself: anything else is forged or garbled.
            Message::Request {
                robot,
                request,
                sent_at,
            } if robot == from => {
                self.on_request(robot, request, sent_at, now);
            }
            Message::Release { token } => self.holders.retain(|h| h.token != token || h.robot != from),
            Message::Renew { token, sent_at } => self.on_renew(from, token, sent_at, now),
            Message::Request { .. } | Message::Grant { .. } | Message::Refuse { .. } => {}
        }
        self.grant(now);
        self.assert_invariants();
    }

    /// Records that `robot` had certainly stopped at some time after `since`. Any permit or place that it had then is
    /// free at once. Anything heard from it later belongs to a new start.
    pub fn on_gone(&mut self, robot: RobotId, since: Instant, now: Instant) {
        self.follow_clock(now);
        self.holders.retain(|h| h.robot != robot || h.heard_at > since);
        self.queue.retain(|w| w.robot != robot || w.heard_at > since);
        self.on_deadline(now);
    }

    /// Handles the deadline returned by [`Controller::next_deadline`]. Harmless at any other time.
    pub fn on_deadline(&mut self, now: Instant) {
        self.follow_clock(now);
        self.expire(now);
        self.grant(now);
        self.assert_invariants();
    }

    /// Returns when to call [`Controller::on_deadline`] next.
    pub fn next_deadline(&self) -> Option<Instant> {
        let expiry = self.holders.iter().map(|h| self.expires_at(h)).min();
        let quiet = (!self.queue.is_empty() && self.clock < self.quiet_until).then_some(self.quiet_until);
        expiry.into_iter().chain(quiet).min()
    }

    /// Returns the next message to send, until `None`.
    pub fn poll(&mut self) -> Option<ControllerAction> {
        self.outbox.pop_front()
    }

    /// Returns the robots that hold a permit, in order of their grants.
    pub fn holders(&self) -> impl Iterator<Item = RobotId> + '_ {
        self.holders.iter().map(|h| h.robot)
    }

    /// Returns the waiting robots, in order of the queue.
    pub fn queue(&self) -> impl Iterator<Item = RobotId> + '_ {
        self.queue.iter().map(|w| w.robot)
    }

    fn on_request(&mut self, robot: RobotId, request: RequestId, sent_at: Instant, now: Instant) {
        if let Some(at) = self.holders.iter().position(|h| h.robot == robot) {
            let held = self.holders[at].request;
            // If the request is of another start, it is unknown which start is the later one. If the holder's start is
            // over, its lease ends soon, or `on_gone` ends it.
            if request < held || !request.is_of_start(held) {
                return;
            }
            if request == held {
                self.holders[at].heard_at = now;
                return self.answer(at, sent_at, now);
            }
            // A robot has one request at a time, so a newer one means that the release was lost.
            self.holders.remove(at);
        }
        if let Some(waiting) = self.queue.iter_mut().find(|w| w.robot == robot) {
            // It does no harm if a request of another start waits: its grant would be returned.
            if request >= waiting.request || !request.is_of_start(waiting.request) {
                // The echo may go back: after a step of the robot's clock, only the newest copy is meaningful.
                *waiting = Waiting {
                    robot,
                    request,
                    echo: sent_at,
                    heard_at: now,
                };
            }
            return;
        }
        if self.queue.len() >= usize::from(self.config.queue_max) {
            let lease = self.config.lease;
            self.queue.retain(|w| now < w.heard_at + lease);
        }
        // Even with a full queue, do not refuse while a place in S is free and no robot waits for it.
        let direct = self.queue.is_empty() && self.may_grant(now);
        if direct || self.queue.len() < usize::from(self.config.queue_max) {
            self.queue.push_back(Waiting {
                robot,
                request,
                echo: sent_at,
                heard_at: now,
            });
        } else {
            let retry_after = self.config.retry_interval();
            self.send(robot, Message::Refuse { request, retry_after });
        }
    }

    fn on_renew(&mut self, from: RobotId, token: Token, sent_at: Instant, now: Instant) {
        if let Some(at) = self.holders.iter().position(|h| h.token == token && h.robot == from) {
            self.holders[at].heard_at = now;
            self.answer(at, sent_at, now);
        }
    }

    /// Repeats a holder's grant, with the rest of the slice.
    fn answer(&mut self, at: usize, echo: Instant, now: Instant) {
        let holder = &self.holders[at];
        let slice = (holder.granted_at + self.config.slice).since(now);
        let (to, message) = (
            holder.robot,
            Message::Grant {
                request: holder.request,
                token: holder.token,
                slice,
                echo,
            },
        );
        self.send(to, message);
    }

    fn may_grant(&self, now: Instant) -> bool {
        self.holders.len() < usize::from(self.config.limit) && now >= self.quiet_until
    }

    fn grant(&mut self, now: Instant) {
        while self.may_grant(now) {
            let Some(next) = self.queue.pop_front() else { return };
            if now >= next.heard_at + self.config.lease {
                continue; // Waiting robots repeat their requests, so this one has died or no longer wants a permit.
            }
            let token = Token(self.token_next);
            self.token_next = self.token_next.wrapping_add(1);
            self.holders.push(Holder {
                robot: next.robot,
                request: next.request,
                token,
                granted_at: now,
                heard_at: now,
            });
            let slice = self.config.slice;
            self.send(
                next.robot,
                Message::Grant {
                    request: next.request,
                    token,
                    slice,
                    echo: next.echo,
                },
            );
        }
    }

    fn expires_at(&self, holder: &Holder) -> Instant {
        (holder.granted_at + self.config.slice + self.config.grace).min(holder.heard_at + self.config.lease)
    }

    fn expire(&mut self, now: Instant) {
        let mut at = 0;
        while at < self.holders.len() {
            if now >= self.expires_at(&self.holders[at]) {
                self.holders.remove(at);
            } else {
                at += 1;
            }
        }
    }

    /// Moves deadlines along with a clock that steps back, which would otherwise prolong them.
    fn follow_clock(&mut self, now: Instant) {
        let back = self.clock.since(now);
        self.clock = now;
        if back == Duration::ZERO {
            return;
        }
        self.quiet_until = self.quiet_until - back;
        for holder in &mut self.holders {
            holder.granted_at = holder.granted_at - back;
            holder.heard_at = holder.heard_at - back;
        }
        for waiting in &mut self.queue {
            waiting.heard_at = waiting.heard_at - back;
        }
    }

    fn send(&mut self, to: RobotId, message: Message) {
        // If the caller does not poll, the oldest message is dropped, as the air might have dropped it.
        let outbox_max = 16 + 2 * (usize::from(self.config.limit) + usize::from(self.config.queue_max));
        if self.outbox.len() >= outbox_max {
            self.outbox.pop_front();
        }
        self.outbox.push_back(ControllerAction::Send { to, message });
    }

    fn assert_invariants(&self) {
        assert!(
            self.holders.len() <= usize::from(self.config.limit),
            "more holders than the limit"
        );
        assert!(
            self.queue.len() <= usize::from(self.config.queue_max).max(1),
            "more waiting than the queue holds"
        );
    }
}
