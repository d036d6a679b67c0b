//! What runs on a robot: its part of the permits, its arrival models and windows, its gate; on the robot's own clock.

use coorp_core::permits::{Message, Requester, RequesterAction};
use coorp_core::policy::Policy;
use coorp_core::{Instant, RobotId};
use coorp_team::Team;
use std::collections::VecDeque;

/// A control flow that a robot sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ControlFlow {
    /// Its perceptions.
    Perception,
    /// The leader's commands, all of a loop as one burst.
    Command,
    /// A plain control flow: its place in the run.
    Plain(u32),
}

/// What an agent wants done.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum AgentAction {
    /// Send this to the controller.
    Send(Message),
    /// Bulk may, or may no longer, be transmitted.
    Permitted(bool),
    /// The gate may have opened: the driver asks again.
    Resume,
    /// A window began or ended.
    Window(bool),
}

pub(crate) struct Agent {
    requester: Option<Requester>,
    skew_ns: i64,
    actions: VecDeque<AgentAction>,
    up: bool,
}

/// Local clocks start this long before the run, so that no skew reaches below zero.
const CLOCK_ORIGIN_NS: u64 = 1_000_000_000_000;

impl Agent {
    pub fn new(team: &Team, policy: &Policy, robot: RobotId) -> Self {
        let requester = policy.global.clone().filter(|_| policy.bulk).map(|config| Requester::new(robot, config, 0));
        Agent { requester, skew_ns: team.robots[usize::from(robot.0)].clock_skew_ns, actions: VecDeque::new(), up: true }
    }
    pub fn needs_permit(&self) -> bool { self.requester.is_some() }
    pub fn is_up(&self) -> bool { self.up }
    pub fn local(&self, now: Instant) -> Instant {
        Instant::from_nanos((now.as_nanos() + CLOCK_ORIGIN_NS).saturating_add_signed(self.skew_ns))
    }
    pub fn global(&self, local: Instant) -> Instant {
        Instant::from_nanos(local.as_nanos().saturating_add_signed(-self.skew_ns).saturating_sub(CLOCK_ORIGIN_NS))
    }
    pub fn on_deadline(&mut self, now: Instant) {
        let local = self.local(now);
        if let Some(r) = &mut self.requester { r.on_deadline(local); }
    }
    pub fn next_deadline(&self) -> Option<Instant> {
        self.requester.as_ref().and_then(|r| r.next_deadline()).map(|at| self.global(at))
    }
    pub fn poll(&mut self) -> Option<AgentAction> {
        if let Some(r) = &mut self.requester {
            while let Some(a) = r.poll() {
                self.actions.push_back(match a {
                    RequesterAction::Send(m) => AgentAction::Send(m),
                    RequesterAction::Started => AgentAction::Permitted(true),
                    RequesterAction::Stopped => AgentAction::Permitted(false),
                });
            }
        }
        self.actions.pop_front()
    }
    pub fn on_inference(&mut self, _now: Instant) {}
    pub fn on_control_made(&mut self, _flow: ControlFlow, _now: Instant) {}
    pub fn on_control_left(&mut self, _flow: ControlFlow, _now: Instant) {}
    pub fn on_perception_arrived(&mut self, _robot: RobotId, _now: Instant) {}
    pub fn perception_model(&self) -> Option<()> { None }
    pub fn on_shared_model(&mut self, _robot: RobotId, _model: (), _now: Instant) {}
    pub fn on_permit_message(&mut self, message: Message, now: Instant) {
        let local = self.local(now);
        if let Some(r) = &mut self.requester { r.on_message(message, local); }
    }
    pub fn set_bulk(&mut self, wants: bool, now: Instant) {
        let local = self.local(now);
        if let Some(r) = &mut self.requester { if wants { r.want(local) } else { r.done(local) } }
    }
    pub fn may_dequeue(&mut self, _in_wnic: u16, _now: Instant) -> (bool, bool) { (true, false) }
    pub fn on_released(&mut self, _ahead: u16, _queued_at: Instant, _now: Instant) {}
    pub fn on_status(&mut self, _queued_at: Instant, _now: Instant) {}
    pub fn set_up(&mut self, up: bool, _now: Instant) { self.up = up; }
    pub fn restart(&mut self, _team: &Team, _policy: &Policy, _incarnation: u32, _now: Instant) { self.up = true; }
    pub fn step_clock(&mut self, by_ns: i64) { self.skew_ns += by_ns; }
    pub fn window_time(&mut self, _now: Instant) -> (f64, f64) { (0.0, 0.0) }
}
