//! Decides which arrival models robots send each other, and what a robot does with others' models (Deng 2022, section
//! IV-B).
//!
//! If the policy shares windows, each robot tells all others when its control is due, on the leader's clock. Each plans
//! windows for the models that it received (decision 5). Sending models costs a frame per receiver. So they are sent
//! again only when they have moved or when a robot may not know them. They are also sent every [`TELL_EVERY`], because
//! a frame may have been lost. On the leader, models also show which sensors sample at a different phase from the rest.
//!
//! Left out: flows of programs that know nothing about Coorp, whose messages no robot hears, and flows beyond the
//! limit. Also left out: models that are of no use because their period is out of bounds or shorter than their
//! interval. Also left out: models from a robot whose clock is not known yet. It soon will be, and models are sent
//! again to newcomers.

use serde::{Deserialize, Serialize};

use crate::arrival::TimeModel;
use crate::clock::Offset;
use crate::{Duration, FlowId, Instant, RobotId};

use super::{Action, FlowKey, Message, Robot, Route, FLOWS_MAX};

/// Interval between two checks whether the others still know when this robot's control is due.
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// Tolerated error of the times that others expect.
const OFF_MAX: Duration = Duration::from_micros(200);
/// Time after which models are sent again in any case.
const TELL_EVERY: Duration = Duration::from_secs(10);
/// Number of checks that send models to newcomers in any case.
const TELL_ANYWAY: u8 = 3;

/// The state of this robot's models that the others know.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Told {
    /// The models as last sent, by flow.
    models: Vec<(u8, TimeModel)>,
    at: Instant,
    /// Number of checks that still send models in any case.
    anyway: u8,
    check_at: Instant,
}

impl Told {
    pub fn new(now: Instant) -> Self {
        Told {
            models: Vec::new(),
            at: now,
            anyway: 0,
            check_at: now + CHECK_EVERY,
        }
    }

    /// Returns when to call [`Robot::tell_models`].
    pub fn next_deadline(&self) -> Instant {
        self.check_at
    }

    /// Returns whether to send these models.
    fn is_due(&mut self, models: &[(u8, TimeModel)], now: Instant) -> bool {
        let anyway = self.anyway > 0 || now.since(self.at) >= TELL_EVERY;
        self.anyway = self.anyway.saturating_sub(1);
        let mut pairs = models.iter().zip(&self.models);
        let known = models.len() == self.models.len()
            && pairs.all(|((flow, model), (told, before))| flow == told && model.agrees_with(before, OFF_MAX));
        !known || (anyway && !models.is_empty())
    }
}

impl Robot {
    /// Sends this robot's models again a few times, because a robot is new or did not know the clock.
    pub fn tell_models_again(&mut self) {
        self.told.anyway = TELL_ANYWAY;
    }

    /// Records that a robot's links are gone. That does not prove that its process has ended. A link breaks for many
    /// reasons, and a permit's holder may continue without it until its lease ends.
    pub fn on_gone(&mut self, robot: RobotId) {
        for flow in 0..FLOWS_MAX as u8 {
            self.forget_shared(robot, flow);
        }
        self.gather();
    }

    fn forget_shared(&mut self, robot: RobotId, flow: u8) {
        if let Some(lead) = &mut self.lead {
            lead.set_flow((robot, flow), None);
        }
        self.local.remove(FlowKey::Of(robot, flow));
        self.set_start((robot, flow), false);
    }

    /// Handles the models of all of another robot's flows, on a clock that is `offset` from this robot's.
    pub(super) fn on_models(&mut self, from: RobotId, models: &[(u8, TimeModel)], offset: Offset, now: Instant) {
        if !self.local.shares() {
            return;
        }
        let commands = self.leader(now) == Some(from);
        for flow in 0..FLOWS_MAX as u8 {
            let told = models.iter().find(|(told, _)| *told == flow);
            // An unusable model would hold bulk all the time, or wake this robot every nanosecond.
            let Some((_, model)) = told.filter(|(_, model)| model.is_usable()) else {
                self.forget_shared(from, flow);
                continue;
            };
            let phase = offset.ours(model.phase);
            let model = TimeModel { phase, ..*model };
            // Commands end loops.
            let starts = !commands && self.local.ends().is_some_and(|ends| ends.is_start(&model));
            self.set_start((from, flow), starts);
            if let Some(lead) = &mut self.lead {
                lead.set_flow((from, flow), starts.then_some(model));
            }
            self.local
                .set_shared(FlowKey::Of(from, flow), model, offset.within, now);
        }
    }

    /// Runs the periodic checks of this robot's models and loops, and sends the models if that is due.
    pub(super) fn tell_models(&mut self, now: Instant) {
        if !self.local.shares() {
            self.told.check_at = Instant::FAR_FUTURE;
            return;
        }
        self.told.check_at = now + CHECK_EVERY;
        let models = self.own_models();
        self.see_own_starts(&models, now);
        self.look_whether_calm(now);
        self.steer(now);
        if !self.told.is_due(&models, now) {
            return;
        }
        let Some((clock, offset)) = self.team_clock(now) else {
            return self.tell_models_again();
        };
        let theirs = |(flow, model): &(u8, TimeModel)| (*flow, to_theirs(*model, offset));
        let message = Message::Models {
            clock,
            models: models.iter().map(theirs).collect(),
        };
        (self.told.models, self.told.at) = (models, now);
        self.actions.push_back(Action::Broadcast(message));
    }

    fn own_models(&self) -> Vec<(u8, TimeModel)> {
        let taken = (0u8..).zip(&self.flows).filter(|(_, flow)| flow.taken && !flow.foreign);
        let models = taken.filter_map(|(flow, _)| Some((flow, self.local.model(flow)?)));
        models.collect()
    }

    fn set_start(&mut self, flow: (RobotId, u8), starts: bool) {
        if let Some(ends) = self.local.ends_mut() {
            ends.set_start(flow, starts);
        }
    }

    /// Determines which of this robot's flows begin loops.
    fn see_own_starts(&mut self, models: &[(u8, TimeModel)], now: Instant) {
        let leads = self.leader(now) == Some(self.me);
        for flow in 0..FLOWS_MAX as u8 {
            // A flow that is not in use begins no loop.
            if !self.flows[usize::from(flow)].taken {
                continue;
            }
            let model = models.iter().find(|(told, _)| *told == flow).filter(|_| !leads);
            let ends = self.local.ends();
            let starts = model.is_some_and(|(_, model)| ends.is_some_and(|ends| ends.is_start(model)));
            self.set_start((self.me, flow), starts);
        }
    }

    /// Tells flows, on the leader, to sample later if their phase is off.
    fn steer(&mut self, now: Instant) {
        let steers = self.local.policy().is_some_and(|policy| policy.steered_phases);
        if !steers || self.leader(now) != Some(self.me) {
            return;
        }
        let shifts = self.lead.as_mut().map(|lead| lead.shifts(now)).unwrap_or_default();
        for ((robot, flow), later) in shifts {
            let route = Route::Path(self.peers.best(robot, now));
            let message = Message::Shift { flow, later };
            self.actions.push_back(Action::Send(robot, route, message));
        }
    }

    /// Handles the leader's request that a flow sample later. Its messages will soon have a different phase, so its
    /// model restarts. A flow that has ended in the meantime stays ended.
    pub(super) fn on_shift(&mut self, flow: u8, later: Duration) {
        let Some(own) = self.flows.get(usize::from(flow)).filter(|own| own.taken) else {
            return;
        };
        self.local.add_flow(flow, own.period);
        self.actions.push_back(Action::Shift(FlowId(u32::from(flow)), later));
    }
}

/// Converts a model to another clock. Its interval is widened by the uncertainty of that clock.
fn to_theirs(model: TimeModel, offset: Offset) -> TimeModel {
    TimeModel {
        phase: offset.theirs(model.phase),
        early: model.early + offset.within,
        late: model.late + offset.within,
        ..model
    }
}
