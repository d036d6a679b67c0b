//! One robot's part in global preemption: the election, the controller while it leads, and always the requester.

use super::member::Member;
use super::{Action, Epoch, FailoverConfig, Message};
use crate::permits::{self, Controller, ControllerAction, PermitConfig, Requester, RequesterAction};
use crate::{Instant, RobotId};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// The maximum number of consecutive messages between a controller and the local requester; more would be a bug.
const EXCHANGES_MAX: usize = 1_024;

/// The state machine that requests permits from the current leader, observes them, and grants them if this robot leads.
///
/// Drive it like every state machine in this crate. `now` is the robot's own monotonic clock, read *after* the message
/// was received and directly before the call. A promise or a grant is only as good as that instant. Read a clock that
/// keeps running while the machine sleeps (`CLOCK_BOOTTIME`) and that nothing slews faster than `drift_ppm`. After
/// every call, poll [`Coordinator::poll`] until it is empty. Call [`Coordinator::may_send`] with the current time
/// before every packet of bulk, because a robot that was stopped has missed its [`Action::Stopped`].
///
/// ```
/// use coorp_core::failover::{Action, Coordinator, FailoverConfig};
/// use coorp_core::permits::PermitConfig;
/// use coorp_core::{Instant, RobotId};
///
/// let config = FailoverConfig::for_team(RobotId(0), 1);
/// let mut alone = Coordinator::new(config, PermitConfig::default(), RobotId(0), 1, Instant::ZERO).unwrap();
/// alone.want(Instant::ZERO);
/// let mut now = Instant::ZERO;
/// while !alone.may_send(now) {
///     now = alone.next_deadline().unwrap();
///     alone.on_deadline(now);
///     while let Some(action) = alone.poll() {
///         assert!(!matches!(action, Action::Send { .. }), "there is no other robot");
///     }
/// }
/// assert!(alone.is_leading(now));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Coordinator {
    robot: RobotId,
    permits: PermitConfig,
    member: Member,
    /// The controller and its leadership, while this robot leads.
    controller: Option<(Epoch, Controller)>,
    requester: Requester,
    /// The leadership from which the requester requests and holds permits.
    asking_under: Option<Epoch>,
    clock: Instant,
    outbox: VecDeque<Action>,
}

impl Coordinator {
    /// Creates the coordinator of `robot`, starting now. `incarnation` must differ from those of all other starts of
    /// this robot, also after a crash (use a boot counter on disk, for example). `permits` should come from
    /// [`FailoverConfig::permits`].
    ///
    /// # Errors
    /// If the configuration is inconsistent.
    pub fn new(
        config: FailoverConfig,
        permits: PermitConfig,
        robot: RobotId,
        incarnation: u32,
        now: Instant,
    ) -> Result<Self, super::ConfigError> {
        config.check()?;
        // The holder counts shorter times than the controller, so that it stops first even if its clock is slow. For a
        // slice it shortens the grace, because each renewal tells it again how much of the slice is left.
        let drift = permits.slice.saturating_sub(config.shortened(permits.slice));
        let permits = PermitConfig {
            grace: permits.grace.max(drift),
            ..permits
        };
        let held = PermitConfig {
            lease: config.shortened(permits.lease),
            grace: permits.grace.saturating_sub(drift),
            ..permits.clone()
        };
        Ok(Coordinator {
            robot,
            member: Member::new(config, robot, incarnation, now),
            controller: None,
            requester: Requester::new(robot, held, incarnation),
            permits,
            asking_under: None,
            clock: now,
            outbox: VecDeque::new(),
        })
    }

    /// Records that bulk is waiting. Repeated calls have no effect.
    pub fn want(&mut self, now: Instant) {
        self.enter(now);
        self.requester.want(now);
        self.settle(now);
    }

    /// Records that no bulk is left.
    pub fn done(&mut self, now: Instant) {
        self.enter(now);
        self.requester.done(now);
        self.settle(now);
    }

    /// Handles a message from robot `from`; the caller has verified the sender.
    pub fn on_message(&mut self, from: RobotId, message: Message, now: Instant) {
        self.enter(now);
        match message {
            Message::Permit { epoch, message } => self.on_permit(from, epoch, message, now),
            _ => self.member.on_message(from, message, now),
        }
        self.settle(now);
    }

    /// Handles the deadline returned by [`Coordinator::next_deadline`]. Harmless at any other time.
    pub fn on_deadline(&mut self, now: Instant) {
        self.enter(now);
        self.member.on_deadline(now);
        self.settle(now);
        if let Some((_, controller)) = &mut self.controller {
            controller.on_deadline(now);
        }
        self.requester.on_deadline(now);
        self.settle(now);
    }

    /// Prepares an orderly stop of the robot. It returns its permit and gives up leading, so that the next leader need
    /// not wait for the lease. Poll and send the resulting actions, then stop.
    pub fn resign(&mut self, now: Instant) {
        self.done(now);
        self.member.resign(now);
        self.settle(now);
    }

    /// Records that the process of `robot` has certainly ended at some time after `since`. It transmits nothing, and
    /// any permit or place that it had then is free. A broken link does not prove this; then the lease must end the
    /// permit.
    pub fn on_gone(&mut self, robot: RobotId, since: Instant, now: Instant) {
        self.enter(now);
        if let Some((_, controller)) = &mut self.controller {
            controller.on_gone(robot, since, now);
        }
        self.settle(now);
    }

    /// Returns when to call [`Coordinator::on_deadline`] next.
    pub fn next_deadline(&self) -> Option<Instant> {
        let controller = self.controller.as_ref().and_then(|(_, c)| c.next_deadline());
        let others = [self.member.next_deadline(), self.requester.next_deadline(), controller];
        others.into_iter().flatten().min()
    }

    /// Returns the next action, until `None`.
    pub fn poll(&mut self) -> Option<Action> {
        self.outbox.pop_front()
    }

    /// Returns whether bulk may be transmitted at `now`. Correct even if a frozen robot has missed its deadline.
    pub fn may_send(&self, now: Instant) -> bool {
        self.requester.may_send(now)
    }

    /// Returns whether this robot leads at `now`. Correct even if a frozen robot has missed its deadline.
    pub fn is_leading(&self, now: Instant) -> bool {
        self.member.leads(now).is_some()
    }

    /// Returns the leader, if it was heard within the lease, or this robot itself if it leads. `None` means that no
    /// leader is known: bulk waits, control continues.
    pub fn leader(&self, now: Instant) -> Option<RobotId> {
        self.member
            .epoch()
            .filter(|_| self.member.hears(now))
            .map(|epoch| epoch.robot)
    }

    /// Returns the newest leadership that this robot has heard of.
    pub fn epoch(&self) -> Option<Epoch> {
        self.member.epoch()
    }

    /// Returns the robots that hold a permit, in order of their grants, if this robot leads.
    pub fn holders(&self) -> impl Iterator<Item = RobotId> + '_ {
        self.controller.iter().flat_map(|(_, controller)| controller.holders())
    }

    /// Returns the waiting robots in order of the queue, if this robot leads.
    pub fn queue(&self) -> impl Iterator<Item = RobotId> + '_ {
        self.controller.iter().flat_map(|(_, controller)| controller.queue())
    }

    /// Equalises differences that have no effect, so that a search treats states that behave alike as one.
    #[cfg(test)]
    pub(super) fn forget_the_past(&mut self, now: Instant) {
        self.member.forget_the_past(now);
        self.clock = now;
    }

    fn on_permit(&mut self, from: RobotId, epoch: Epoch, message: permits::Message, now: Instant) {
        match message {
            permits::Message::Grant { .. } | permits::Message::Refuse { .. } => {
                match self.asking_under {
                    Some(under) if epoch == under && epoch.robot == from => self.requester.on_message(message, now),
                    // The sender still grants but has been replaced.
                    Some(newer) if epoch < newer && epoch.robot == from => self.member.deny(from, newer),
                    // A leader not heard before. No robot has asked it for anything.
                    _ => {}
                }
            }
            permits::Message::Request { .. } | permits::Message::Renew { .. } | permits::Message::Release { .. } => {
                match &mut self.controller {
                    Some((own, controller)) if *own == epoch => controller.on_message(from, message, now),
                    Some((own, _)) if *own < epoch => self.member.on_newer(epoch, true, now),
                    // Meant for an earlier leadership; the robot asks again once it has heard of this one.
                    _ => {}
                }
            }
        }
    }

    /// Ends everything that has expired, before anything else is done at `now`.
    fn enter(&mut self, now: Instant) {
        self.member.advance(now);
        self.settle(now);
        if now < self.clock {
            // An answer to a message sent before the step would look younger than it is. After asking again, it matches
            // nothing.
            self.ask_anew(now);
            self.drain(now);
        }
        self.clock = now;
    }

    /// Propagates what happened in one part to the others.
    fn settle(&mut self, now: Instant) {
        let leads = self.member.leads(now);
        if self.controller.as_ref().map(|(epoch, _)| *epoch) != leads {
            // The permits of the previous leader, possibly this robot, end within the lease for which this one grants
            // nothing.
            self.controller = leads.map(|epoch| {
                let controller = Controller::recovering(self.permits.clone(), epoch.round as u32, now);
                (epoch, controller)
            });
        }
        while let Some(action) = self.member.poll() {
            self.push(action);
        }
        self.drain(now);
        if self.asking_under != self.member.epoch() {
            self.ask_anew(now);
            self.drain(now);
        }
    }

    /// Stops and requests again under a new leadership, because a permit belongs to the leadership that granted it.
    fn ask_anew(&mut self, now: Instant) {
        let wants = self.requester.is_active();
        self.requester.done(now);
        while let Some(action) = self.requester.poll() {
            match action {
                RequesterAction::Stopped => self.push(Action::Stopped),
                // The new leader does not know its request or release.
                RequesterAction::Started | RequesterAction::Send(_) => {}
            }
        }
        self.asking_under = self.member.epoch();
        if wants {
            self.requester.want(now);
        }
    }

    /// Carries messages between this robot's requester and controller, and emits those for other robots.
    fn drain(&mut self, now: Instant) {
        for _ in 0..EXCHANGES_MAX {
            if let Some(action) = self.requester.poll() {
                match action {
                    RequesterAction::Started => self.push(Action::Started),
                    RequesterAction::Stopped => self.push(Action::Stopped),
                    RequesterAction::Send(message) => self.send_to_leader(message, now),
                }
                continue;
            }
            let granted = self
                .controller
                .as_mut()
                .and_then(|(epoch, c)| Some((*epoch, c.poll()?)));
            let Some((epoch, ControllerAction::Send { to, message })) = granted else {
                return;
            };
            if to != self.robot {
                let message = Message::Permit { epoch, message };
                self.push(Action::Send { to, message });
            } else if self.asking_under == Some(epoch) {
                self.requester.on_message(message, now);
            }
        }
    }

    fn send_to_leader(&mut self, message: permits::Message, now: Instant) {
        // This robot knows of no leader: the requester asks again later.
        let Some(epoch) = self.asking_under else { return };
        match &mut self.controller {
            Some((own, controller)) if *own == epoch => controller.on_message(self.robot, message, now),
            _ if epoch.robot == self.robot => {}
            _ => {
                let to = epoch.robot;
                let message = Message::Permit { epoch, message };
                self.push(Action::Send { to, message });
            }
        }
    }

    fn push(&mut self, action: Action) {
        // If the caller does not poll, the oldest message is dropped, as the air might have dropped it.
        let outbox_max = 64 + 4 * (usize::from(self.permits.limit) + usize::from(self.permits.queue_max));
        if self.outbox.len() >= outbox_max {
            self.outbox.pop_front();
        }
        self.outbox.push_back(action);
    }
}
