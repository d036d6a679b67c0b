//! Who may transmit bulk, and for how long: global preemption (001, section IV-A, Algorithm 1).
//!
//! [`Controller`] is `schedule()` on the leader: a queue Q of robots that asked, a set S of robots that
//! transmit, at most `limit` of them, each for at most `slice`. [`Requester`] is `send()` on every robot, the
//! leader among them. Neither does I/O: both are told what happened and when, and answer with messages.
//!
//! The algorithm assumes that every message arrives and that nobody dies. Here nothing of that is assumed:
//!
//! - Each grant carries a fresh [`Token`], so a late, repeated or forged release frees nothing else.
//! - A request carries an id that grows; a grant names the request it answers. A grant that comes late, for a
//!   request that is over, is given back at once. A request with a newer id implies that the older is over.
//! - A permit is leased. The holder renews; the controller answers each renewal with the grant again. After
//!   `lease` of silence the controller takes the place back, and a holder that is not answered stops by itself.
//! - Clocks are not shared. A message of a robot carries the robot's own time of sending, and the grant echoes
//!   the newest. The grant was sent after that instant, so a holder that stops at `echo + slice + grace`, or at
//!   `echo + lease`, has stopped before the controller's own limits run out, however long the grant travelled.
//!   So never more than `limit` robots transmit at once as long as clocks run at one rate.
//! - A controller that restarts knows no holders. It stays quiet for one `lease`, after which all have stopped.
//!
//! Left out: handing the controller's part to another robot when the leader dies, and several teams on one
//! channel. A queue shorter than the team may starve the robots that it refuses: make `queue_max` the team's size.

use crate::{Duration, Instant, RobotId};
use std::collections::VecDeque;

/// The shortest interval at which anything is sent again, whatever the configuration says.
const INTERVAL_MIN: Duration = Duration::from_millis(1);
/// The longest wait after a refusal that a robot accepts from the controller.
const REFUSAL_WAIT_MAX: Duration = Duration::from_secs(10);
/// A refused robot doubles its wait at most this many times.
const REFUSAL_DOUBLINGS_MAX: u32 = 3;

/// What the controller and the requesters of one team agree on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PermitConfig {
    /// How many robots may transmit bulk at once (LIMIT). Zero lets nobody.
    pub limit: u16,
    /// How long one permit lasts (TIMESLICE).
    pub slice: Duration,
    /// After how long a silence a permit ends. Keep it at several times the worst round trip.
    pub lease: Duration,
    /// How much longer than the slice the controller waits for a release; covers a grant's way to the robot.
    pub grace: Duration,
    /// After how long an unanswered request is sent again.
    pub retry: Duration,
    /// How many robots may wait. The next one is refused and asks again later.
    pub queue_max: u16,
}

impl Default for PermitConfig {
    /// The paper's limit of one and slice of five seconds.
    fn default() -> Self {
        PermitConfig {
            limit: 1,
            slice: Duration::from_secs(5),
            lease: Duration::from_secs(1),
            grace: Duration::from_millis(50),
            retry: Duration::from_millis(250),
            queue_max: 1024,
        }
    }
}

impl PermitConfig {
    fn retry_interval(&self) -> Duration {
        self.retry.max(INTERVAL_MIN)
    }

    /// Four renewals fit a lease, so three may be lost.
    fn renew_interval(&self) -> Duration {
        (self.lease / 4).max(INTERVAL_MIN)
    }
}

/// Names one grant. No two grants of a controller share one, nor do those of two incarnations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

/// Names one request of a robot; a later request of the same robot has a greater one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// What controller and requesters say to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// Robot to controller: `robot` has bulk to send. Repeated until it is answered.
    Request {
        /// Who asks.
        robot: RobotId,
        /// Which of its requests this is.
        request: RequestId,
        /// When this copy was sent, on the robot's clock; only the robot reads it again.
        sent_at: Instant,
    },
    /// Controller to robot: transmit for `slice` from now. Also answers a renewal, with what is left.
    Grant {
        /// The request that is granted.
        request: RequestId,
        /// The name of this grant.
        token: Token,
        /// How much of the slice is left.
        slice: Duration,
        /// The newest `sent_at` that the controller had from this robot.
        echo: Instant,
    },
    /// Robot to controller: the grant is over.
    Release {
        /// The grant that is given back.
        token: Token,
    },
    /// Robot to controller: still here and transmitting.
    Renew {
        /// The grant that is held.
        token: Token,
        /// When this was sent, on the robot's clock.
        sent_at: Instant,
    },
    /// Controller to robot: the queue is full.
    Refuse {
        /// The request that is refused.
        request: RequestId,
        /// How long to wait before the next one.
        retry_after: Duration,
    },
}

/// A message that the controller wants sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControllerAction {
    /// Send `message` to robot `to`.
    Send {
        /// The receiver.
        to: RobotId,
        /// What to send.
        message: Message,
    },
}

#[derive(Clone, Debug)]
struct Holder {
    robot: RobotId,
    request: RequestId,
    token: Token,
    granted_at: Instant,
    heard_at: Instant,
}

#[derive(Clone, Debug)]
struct Waiting {
    robot: RobotId,
    request: RequestId,
    echo: Instant,
    heard_at: Instant,
}

/// Hands out permits; runs on the leader.
#[derive(Clone, Debug)]
pub struct Controller {
    config: PermitConfig,
    token_next: u64,
    /// No grant before this instant: holders that an earlier incarnation knew may still transmit.
    quiet_until: Instant,
    /// The newest time we were told, to notice a clock that steps back.
    clock: Instant,
    holders: Vec<Holder>,
    queue: VecDeque<Waiting>,
    outbox: VecDeque<ControllerAction>,
}

impl Controller {
    /// A controller for a team that starts with it: nobody can hold a permit yet.
    ///
    /// `incarnation` must differ from that of every earlier controller of this team (a boot counter, say).
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

    /// A controller that takes over from one that may have granted permits: it grants none for one lease.
    pub fn recovering(config: PermitConfig, incarnation: u32, now: Instant) -> Self {
        let quiet_until = now + config.lease;
        Controller {
            quiet_until,
            clock: now,
            ..Controller::new(config, incarnation)
        }
    }

    /// A message came in from robot `from`. Messages that only a controller sends are ignored.
    pub fn on_message(&mut self, from: RobotId, message: Message, now: Instant) {
        self.follow_clock(now);
        self.expire(now);
        match message {
            // A robot asks for itself alone: anything else is forged or garbled.
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

    /// The time asked for by [`Controller::next_deadline`] has come. Harmless at any other time.
    pub fn on_deadline(&mut self, now: Instant) {
        self.follow_clock(now);
        self.expire(now);
        self.grant(now);
        self.assert_invariants();
    }

    /// When to call [`Controller::on_deadline`] next.
    pub fn next_deadline(&self) -> Option<Instant> {
        let expiry = self.holders.iter().map(|h| self.expires_at(h)).min();
        let quiet = (!self.queue.is_empty() && self.clock < self.quiet_until).then_some(self.quiet_until);
        expiry.into_iter().chain(quiet).min()
    }

    /// The next message to send, until `None`.
    pub fn poll(&mut self) -> Option<ControllerAction> {
        self.outbox.pop_front()
    }

    /// The robots that hold a permit, in the order of their grants.
    pub fn holders(&self) -> impl Iterator<Item = RobotId> + '_ {
        self.holders.iter().map(|h| h.robot)
    }

    /// The robots that wait, the next one first.
    pub fn queue(&self) -> impl Iterator<Item = RobotId> + '_ {
        self.queue.iter().map(|w| w.robot)
    }

    fn on_request(&mut self, robot: RobotId, request: RequestId, sent_at: Instant, now: Instant) {
        if let Some(at) = self.holders.iter().position(|h| h.robot == robot) {
            let held = self.holders[at].request;
            if request < held {
                return;
            }
            if request == held {
                self.holders[at].heard_at = now;
                return self.answer(at, sent_at, now);
            }
            // A robot has one request at a time, so a newer one says that the release was lost.
            self.holders.remove(at);
        }
        if let Some(waiting) = self.queue.iter_mut().find(|w| w.robot == robot) {
            if request >= waiting.request {
                // The echo may go back: after a step of the robot's clock only the newest copy means anything.
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
        // A full queue is no reason to refuse while a place in S is free and nobody waits for it.
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

    /// Sends a holder its grant again, with what is left of the slice.
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
                continue; // Waiting robots repeat their request: this one has died or lost interest.
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

    /// A clock that steps back would make old deadlines last; they move along with it.
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
        // A caller that does not poll loses the oldest message, as the air might have.
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

/// What a requester wants done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequesterAction {
    /// Send this to the controller.
    Send(Message),
    /// From now on bulk may be transmitted.
    Started,
    /// From now on bulk must not be transmitted.
    Stopped,
}

#[derive(Clone, Debug)]
enum State {
    Idle,
    Waiting {
        request: RequestId,
        send_at: Instant,
        refusals: u32,
    },
    Holding(Permit),
}

#[derive(Clone, Debug)]
struct Permit {
    request: RequestId,
    token: Token,
    /// The end of the slice.
    stop_at: Instant,
    /// Until when the controller surely counts us as a holder.
    lease_until: Instant,
    renew_at: Instant,
    /// A grant that travelled for too long starts nothing; we wait until here for a fresher one.
    patience_until: Instant,
    started: bool,
}

/// Asks for permits and keeps to them; runs on every robot.
#[derive(Clone, Debug)]
pub struct Requester {
    robot: RobotId,
    config: PermitConfig,
    request_next: u64,
    clock: Instant,
    state: State,
    outbox: VecDeque<RequesterAction>,
}

impl Requester {
    /// The outbox holds at most this many actions; older ones are lost as the air might lose them.
    const OUTBOX_MAX: usize = 32;

    /// A requester of `robot`. `incarnation` must be greater than at any earlier start of this robot.
    pub fn new(robot: RobotId, config: PermitConfig, incarnation: u32) -> Self {
        Requester {
            robot,
            config,
            request_next: u64::from(incarnation) << 32,
            clock: Instant::ZERO,
            state: State::Idle,
            outbox: VecDeque::new(),
        }
    }

    /// Bulk waits to be sent. Repeating it changes nothing.
    pub fn want(&mut self, now: Instant) {
        self.follow_clock(now);
        if matches!(self.state, State::Idle) {
            self.ask(now);
        }
    }

    /// No bulk is left: what remains of the slice goes back, a waiting request is forgotten.
    pub fn done(&mut self, now: Instant) {
        self.follow_clock(now);
        self.give_back();
        // A robot that waits stays silent, which takes it off the queue; a grant that still comes is returned.
        self.state = State::Idle;
    }

    /// A message of the controller came in. Messages that only a robot sends are ignored.
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

    /// The time asked for by [`Requester::next_deadline`] has come. Harmless at any other time.
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

    /// When to call [`Requester::on_deadline`] next.
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

    /// The next thing to do, until `None`.
    pub fn poll(&mut self) -> Option<RequesterAction> {
        self.outbox.pop_front()
    }

    /// Whether bulk may be transmitted at `now`. Right also where a frozen robot has missed its deadline.
    pub fn may_send(&self, now: Instant) -> bool {
        match &self.state {
            State::Holding(permit) => now < permit.stop_at && now < permit.lease_until,
            State::Idle | State::Waiting { .. } => false,
        }
    }

    /// Whether a request is out or a permit held.
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
            return; // Our clock has stepped back since; the next copy of what we send is answered afresh.
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
                // The controller had given us up and then met a late copy of our request.
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
                // Tells the controller that its grant arrived, and brings an answer with a fresh echo.
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

#[cfg(test)]
mod tests;
