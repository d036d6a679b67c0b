//! One robot's share of global preemption: the election, the controller while it leads, the requester always.

use super::member::Member;
use super::{Action, Epoch, FailoverConfig, Message};
use crate::permits::{self, Controller, ControllerAction, PermitConfig, Requester, RequesterAction};
use crate::{Instant, RobotId};
use std::collections::VecDeque;

/// So many messages between a controller and the requester beside it, one after the other, would be a fault.
const EXCHANGES_MAX: usize = 1_024;

/// Asks for permits wherever the leader is, keeps to them, and gives them where this robot leads.
///
/// Drive it like every state machine here. `now` is the robot's own monotonic clock, read *after* the message was
/// received and directly before the call: a promise or a grant is only as good as that instant. Read a clock that runs
/// on while the machine sleeps (`CLOCK_BOOTTIME`) and that nothing slews faster than `drift_ppm`. After every call, take
/// all of [`Coordinator::poll`]. Ask [`Coordinator::may_send`] before every packet of bulk, with the time just then: a
/// robot that was stopped has missed its [`Action::Stopped`].
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
///         assert!(!matches!(action, Action::Send { .. }), "there is nobody else");
///     }
/// }
/// assert!(alone.is_leading(now));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Coordinator {
    robot: RobotId,
    permits: PermitConfig,
    member: Member,
    /// Present while this robot leads, with its leadership.
    controller: Option<(Epoch, Controller)>,
    requester: Requester,
    /// The leadership under which the requester asks and holds.
    asking_under: Option<Epoch>,
    clock: Instant,
    outbox: VecDeque<Action>,
}

impl Coordinator {
    /// The coordinator of `robot`, which starts now. `incarnation` must be greater than at any earlier start of this
    /// robot, also after a crash (a boot counter on disk, say). `permits` should come from [`FailoverConfig::permits`].
    ///
    /// # Errors
    /// If the configuration contradicts itself.
    pub fn new(
        config: FailoverConfig,
        permits: PermitConfig,
        robot: RobotId,
        incarnation: u32,
        now: Instant,
    ) -> Result<Self, super::ConfigError> {
        config.check()?;
        // The holder counts shorter than the controller, so that it stops first though its clock be slow. Of a slice it
        // counts the grace shorter, as what is left of the slice is told it anew with each renewal.
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

    /// Bulk waits to be sent. Repeating it changes nothing.
    pub fn want(&mut self, now: Instant) {
        self.enter(now);
        self.requester.want(now);
        self.settle(now);
    }

    /// No bulk is left.
    pub fn done(&mut self, now: Instant) {
        self.enter(now);
        self.requester.done(now);
        self.settle(now);
    }

    /// A message of robot `from` came in; whoever calls has made sure that it is from that robot.
    pub fn on_message(&mut self, from: RobotId, message: Message, now: Instant) {
        self.enter(now);
        match message {
            Message::Permit { epoch, message } => self.on_permit(from, epoch, message, now),
            _ => self.member.on_message(from, message, now),
        }
        self.settle(now);
    }

    /// The time asked for by [`Coordinator::next_deadline`] has come. Harmless at any other time.
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

    /// The robot is about to stop in good order: gives back its permit, and leads no longer if it did, so that the next
    /// one need not wait for the lease. Poll and send what follows, then stop.
    pub fn resign(&mut self, now: Instant) {
        self.done(now);
        self.member.resign(now);
        self.settle(now);
    }

    /// The process of `robot` had surely ended at some time after `since`, so it transmits nothing: what it held or waited
    /// for then is free. A link that broke is no such proof, and then the lease must end it.
    pub fn on_gone(&mut self, robot: RobotId, since: Instant, now: Instant) {
        self.enter(now);
        if let Some((_, controller)) = &mut self.controller {
            controller.on_gone(robot, since, now);
        }
        self.settle(now);
    }

    /// When to call [`Coordinator::on_deadline`] next.
    pub fn next_deadline(&self) -> Option<Instant> {
        let controller = self.controller.as_ref().and_then(|(_, c)| c.next_deadline());
        let others = [self.member.next_deadline(), self.requester.next_deadline(), controller];
        others.into_iter().flatten().min()
    }

    /// The next thing to do, until `None`.
    pub fn poll(&mut self) -> Option<Action> {
        self.outbox.pop_front()
    }

    /// Whether bulk may be transmitted at `now`. Right also where a frozen robot has missed its deadline.
    pub fn may_send(&self, now: Instant) -> bool {
        self.requester.may_send(now)
    }

    /// Whether this robot leads at `now`. Right also where a frozen robot has missed its deadline.
    pub fn is_leading(&self, now: Instant) -> bool {
        self.member.leads(now).is_some()
    }

    /// The leader, if it was heard within the lease; this robot itself where it leads. `None` means that nobody is known
    /// to grant: bulk waits, control goes on.
    pub fn leader(&self, now: Instant) -> Option<RobotId> {
        self.member
            .epoch()
            .filter(|_| self.member.hears(now))
            .map(|epoch| epoch.robot)
    }

    /// The newest leadership that this robot has heard of.
    pub fn epoch(&self) -> Option<Epoch> {
        self.member.epoch()
    }

    /// Where this robot leads: the robots that hold a permit, in the order of their grants.
    pub fn holders(&self) -> impl Iterator<Item = RobotId> + '_ {
        self.controller.iter().flat_map(|(_, controller)| controller.holders())
    }

    /// Where this robot leads: the robots that wait, the next one first.
    pub fn queue(&self) -> impl Iterator<Item = RobotId> + '_ {
        self.controller.iter().flat_map(|(_, controller)| controller.queue())
    }

    /// Levels what differs without effect, so that a search takes states that behave alike for one.
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
                    // Somebody grants who has been replaced.
                    Some(newer) if epoch < newer && epoch.robot == from => self.member.deny(from, newer),
                    // A leader that was not heard yet. Nobody asked it for anything.
                    _ => {}
                }
            }
            permits::Message::Request { .. } | permits::Message::Renew { .. } | permits::Message::Release { .. } => {
                match &mut self.controller {
                    Some((own, controller)) if *own == epoch => controller.on_message(from, message, now),
                    Some((own, _)) if *own < epoch => self.member.on_newer(epoch, true, now),
                    // Meant for an earlier leadership; the robot asks again when it has heard of this one.
                    _ => {}
                }
            }
        }
    }

    /// Ends what has run out, before anything else is done at `now`.
    fn enter(&mut self, now: Instant) {
        self.member.advance(now);
        self.settle(now);
        if now < self.clock {
            // An answer to what was sent before the step would seem younger than it is. Asked anew, it answers nothing.
            self.ask_anew(now);
            self.drain(now);
        }
        self.clock = now;
    }

    /// Lets what has happened in one part take effect in the others.
    fn settle(&mut self, now: Instant) {
        let leads = self.member.leads(now);
        if self.controller.as_ref().map(|(epoch, _)| *epoch) != leads {
            // The permits of whoever led before, this robot among them, end within the lease in which this one is quiet.
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

    /// A permit belongs to the leadership that gave it. Under a new one the robot stops and asks again.
    fn ask_anew(&mut self, now: Instant) {
        let wants = self.requester.is_active();
        self.requester.done(now);
        while let Some(action) = self.requester.poll() {
            match action {
                RequesterAction::Stopped => self.push(Action::Stopped),
                // Its request or release means nothing to the new leader.
                RequesterAction::Started | RequesterAction::Send(_) => {}
            }
        }
        self.asking_under = self.member.epoch();
        if wants {
            self.requester.want(now);
        }
    }

    /// Carries messages between this robot's requester and controller and puts out what is for others.
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
        // Nobody leads that this robot has heard of: the requester asks again in a while.
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
        // A caller that does not poll loses the oldest message, as the air might have.
        let outbox_max = 64 + 4 * (usize::from(self.permits.limit) + usize::from(self.permits.queue_max));
        if self.outbox.len() >= outbox_max {
            self.outbox.pop_front();
        }
        self.outbox.push_back(action);
    }
}
