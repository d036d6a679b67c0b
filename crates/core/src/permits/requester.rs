//! `send()` of algorithm 1: requests, transmits for a slice, releases, requests again. Runs on every robot.

use super::{Message, PermitConfig, RequestId, Token, INTERVAL_MIN};
use crate::{Duration, Instant, RobotId};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// The longest wait after a refusal that a robot accepts.
const REFUSAL_WAIT_MAX: Duration = Duration::from_secs(10);
/// The number of times that a refused robot doubles its wait.
const REFUSAL_DOUBLINGS_MAX: u32 = 3;

/// An action for the requester's owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum RequesterAction {
    /// Send this to the controller.
    Send(Message),
    /// From now on bulk may be transmitted.
    Started,
    /// From now on bulk must not be transmitted.
    Stopped,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
enum State {
    Idle,
    Waiting {
        request: RequestId,
        send_at: Instant,
        refusals: u32,
    },
    Holding(Permit),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Permit {
    request: RequestId,
    token: Token,
    /// The end of the slice.
    stop_at: Instant,
    /// The time until which the controller certainly counts this robot as a holder.
    lease_until: Instant,
    renew_at: Instant,
    /// The time until which the requester waits for a fresher grant. A grant that travelled too long starts nothing.
    patience_until: Instant,
    started: bool,
}

/// The state machine that requests permits and observes them; runs on every robot.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Requester {
    robot: RobotId,
    config: PermitConfig,
    request_next: u64,
    clock: Instant,
    state: State,
    outbox: VecDeque<RequesterAction>,
}

impl Requester {
    /// The maximum number of actions in the outbox; older ones are dropped, as the air might drop them.
    const OUTBOX_MAX: usize = 32;

    /// Creates the requester of `robot`. `incarnation` must differ from that of every other start of this robot.
    pub fn new(robot: RobotId, config: PermitConfig, incarnation: u32) -> Self {
        Requester {
            robot,
            config,
            request_next: RequestId::first(incarnation).0,
            clock: Instant::ZERO,
            state: State::Idle,
            outbox: VecDeque::new(),
        }
    }

    /// Records that bulk is waiting. Repeated calls have no effect.
    pub fn want(&mut self, now: Instant) {
        self.follow_clock(now);
        if matches!(self.state, State::Idle) {
            self.ask(now);
        }
    }

    /// Records that no bulk is left: gives back the rest of the slice, and abandons a pending request.
    pub fn done(&mut self, now: Instant) {
        self.follow_clock(now);
        self.give_back();
        // A robot that waits stays silent, which removes it from the queue; a grant that still arrives is
        // returned.
        self.state = State::Idle;
    }

    /// Handles a message from the controller. Ignores messages that only a robot sends.
    pub fn on_message(&mut self, message: Message, now: Instant) {
        self.follow_clock(now);
        match message {
            Message::Grant {
                request,
                token,
                slice,
                echo,
            } => self.on_grant(request, token, slice, echo, now),
            Message::Refuse {
                request: refused,
                retry_after,
            } => {
                if let State::Waiting {
                    request,
                    send_at,
                    refusals,
                } = &mut self.state
                {
                    if *request == refused {
                        let wait = retry_after.clamp(INTERVAL_MIN, REFUSAL_WAIT_MAX);
                        *send_at = now + wait * (1 << (*refusals).min(REFUSAL_DOUBLINGS_MAX));
                        *refusals = refusals.saturating_add(1);
                    }
                }
            }
            Message::Request { .. } | Message::Release { .. } | Message::Renew { .. } => {}
        }
    }

    /// Handles the deadline returned by [`Requester::next_deadline`]. Harmless at any other time.
    pub fn on_deadline(&mut self, now: Instant) {
        self.follow_clock(now);
        match &mut self.state {
            State::Idle => {}
            State::Waiting { request, send_at, .. } => {
                if now >= *send_at {
                    *send_at = now + self.config.retry_interval();
                    let message = Message::Request {
                        robot: self.robot,
                        request: *request,
                        sent_at: now,
                    };
                    self.push(RequesterAction::Send(message));
                }
            }
            State::Holding(permit) => {
                let over = now >= permit.stop_at || now >= permit.lease_until;
                if over && (permit.started || now >= permit.patience_until) {
                    self.give_back();
                    self.ask(now);
                } else if now >= permit.renew_at {
                    permit.renew_at = now + self.config.renew_interval();
                    let message = Message::Renew {
                        token: permit.token,
                        sent_at: now,
                    };
                    self.push(RequesterAction::Send(message));
                }
            }
        }
    }

    /// Returns when to call [`Requester::on_deadline`] next.
    pub fn next_deadline(&self) -> Option<Instant> {
        match &self.state {
            State::Idle => None,
            State::Waiting { send_at, .. } => Some(*send_at),
            State::Holding(permit) => {
                let end = permit.stop_at.min(permit.lease_until);
                let end = if permit.started {
                    end
                } else {
                    end.max(permit.patience_until)
                };
                Some(end.min(permit.renew_at))
            }
        }
    }

    /// Returns the next action, until `None`.
    pub fn poll(&mut self) -> Option<RequesterAction> {
        self.outbox.pop_front()
    }

    /// Returns whether bulk may be transmitted at `now`. Correct even if a frozen robot has missed its deadline.
    pub fn may_send(&self, now: Instant) -> bool {
        match &self.state {
            State::Holding(permit) => now < permit.stop_at && now < permit.lease_until,
            State::Idle | State::Waiting { .. } => false,
        }
    }

    /// Returns whether a request is pending or a permit held.
    pub fn is_active(&self) -> bool {
        !matches!(self.state, State::Idle)
    }

    fn ask(&mut self, now: Instant) {
        let request = RequestId(self.request_next);
        self.request_next = self.request_next.saturating_add(1);
        self.state = State::Waiting {
            request,
            send_at: now + self.config.retry_interval(),
            refusals: 0,
        };
        self.push(RequesterAction::Send(Message::Request {
            robot: self.robot,
            request,
            sent_at: now,
        }));
    }

    fn give_back(&mut self) {
        if let State::Holding(permit) = &self.state {
            let (token, started) = (permit.token, permit.started);
            if started {
                self.push(RequesterAction::Stopped);
            }
            self.push(RequesterAction::Send(Message::Release { token }));
        }
    }

    fn on_grant(&mut self, request: RequestId, token: Token, slice: Duration, echo: Instant, now: Instant) {
        if echo > now {
            return; // Our clock has stepped back since; the next retransmission gets a fresh answer.
        }
        let slice = slice.min(self.config.slice);
        let stop_at = (now + slice).min(echo + slice + self.config.grace);
        let lease_until = echo + self.config.lease;
        match &mut self.state {
            State::Holding(permit) if permit.request == request && permit.token == token => {
                permit.stop_at = permit.stop_at.max(stop_at);
                permit.lease_until = permit.lease_until.max(lease_until);
            }
            State::Holding(permit) if permit.request == request && permit.token < token => {
                // The controller had dropped this robot and then received a late copy of its request.
                *permit = Permit {
                    token,
                    stop_at,
                    lease_until,
                    started: permit.started,
                    ..permit.clone()
                };
            }
            State::Waiting { request: waiting, .. } if *waiting == request => {
                let patience_until = now + self.config.retry_interval();
                let renew_at = now + self.config.renew_interval();
                let started = false;
                self.state = State::Holding(Permit {
                    request,
                    token,
                    stop_at,
                    lease_until,
                    renew_at,
                    patience_until,
                    started,
                });
                // Confirms that the grant arrived, and prompts an answer with a fresh echo.
                self.push(RequesterAction::Send(Message::Renew { token, sent_at: now }));
            }
            _ => return self.push(RequesterAction::Send(Message::Release { token })),
        }
        self.note_start(now);
    }

    fn note_start(&mut self, now: Instant) {
        let may_send = self.may_send(now);
        if let State::Holding(permit) = &mut self.state {
            if may_send && !permit.started {
                permit.started = true;
                self.push(RequesterAction::Started);
            }
        }
    }

    fn follow_clock(&mut self, now: Instant) {
        let back = self.clock.since(now);
        self.clock = now;
        if back == Duration::ZERO {
            return;
        }
        match &mut self.state {
            State::Idle => {}
            State::Waiting { send_at, .. } => *send_at = *send_at - back,
            State::Holding(permit) => {
                permit.stop_at = permit.stop_at - back;
                permit.lease_until = permit.lease_until - back;
                permit.renew_at = permit.renew_at - back;
                permit.patience_until = permit.patience_until - back;
            }
        }
    }

    fn push(&mut self, action: RequesterAction) {
        if self.outbox.len() >= Self::OUTBOX_MAX {
            self.outbox.pop_front();
        }
        self.outbox.push_back(action);
    }
}
