//! Coordination in a run: messages about permits, the agents' actions, shared windows.

use super::{Content, Delayed, World, MODEL_BYTES, PERMIT_MESSAGE_BYTES};
use crate::agent::AgentAction;
use crate::results::SpanKind;
use crate::setup::station;
use crate::timers::Timer;
use coorp_core::permits::{Controller, ControllerAction, Message};
use coorp_core::{Duration, Instant, RobotId};

impl World {
    pub(super) fn send_permit(&mut self, channel: Option<u32>, to_robot: bool, message: Message) {
        let Some(channel) = channel else { return };
        let models = if to_robot && self.shares_windows() {
            MODEL_BYTES * self.agents.len() as u64
        } else {
            0
        };
        let copies = match &mut self.faults {
            Some(faults) => faults.permit_message(self.now),
            None => vec![Duration::ZERO],
        };
        for delay in copies {
            let bytes = PERMIT_MESSAGE_BYTES + models;
            let message = Delayed {
                channel,
                bytes,
                made_at: self.now,
                content: Some(Content::Permit(message)),
            };
            if delay == Duration::ZERO {
                self.send_message(message);
            } else {
                self.delayed.push(Some(message));
                self.timers
                    .set(self.now + delay, Timer::Stack(self.delayed.len() as u32 - 1));
            }
        }
    }

    pub(super) fn on_controller_message(&mut self, from: RobotId, message: Message) {
        let leader = &self.agents[usize::from(self.team.leader.0)];
        if !leader.is_up() {
            return;
        }
        let local = leader.local(self.now);
        if let Some(controller) = &mut self.controller {
            controller.on_message(from, message, local);
        }
        self.run_controller();
    }

    pub(super) fn run_controller(&mut self) {
        while let Some(action) = self.controller.as_mut().and_then(Controller::poll) {
            let ControllerAction::Send { to, message } = action;
            if to == self.team.leader {
                self.on_requester_message(to, message);
                self.tell_models(to);
            } else {
                self.send_permit(self.from_controller[usize::from(to.0)], true, message);
            }
        }
        let leader = &self.agents[usize::from(self.team.leader.0)];
        if let Some(deadline) = self.controller.as_ref().and_then(Controller::next_deadline) {
            let at = leader.global(deadline).max(self.now);
            self.controller_armed.arm(at, Timer::Controller, &mut self.timers);
        }
    }

    pub(super) fn on_requester_message(&mut self, robot: RobotId, message: Message) {
        self.agents[usize::from(robot.0)].on_permit_message(message, self.now);
        self.run_agent(robot);
    }

    /// Does what a robot's agent wants and arms its next alarm.
    pub(super) fn run_agent(&mut self, robot: RobotId) {
        let place = usize::from(robot.0);
        let now = self.now;
        while let Some(action) = self.agents[place].poll(now) {
            match action {
                AgentAction::Send(message) if robot == self.team.leader => self.on_controller_message(robot, message),
                AgentAction::Send(message) => self.send_permit(self.to_controller[place], false, message),
                AgentAction::Permitted(permitted) => self.set_permitted(robot, permitted),
                AgentAction::Resume => self.kicks.push(station(robot)),
                AgentAction::WindowOver(start, end) => {
                    if let Some(recorder) = &mut self.recorder {
                        recorder.span(robot, SpanKind::Window, start, end, 0);
                    }
                }
            }
        }
        if let Some(deadline) = self.agents[place].next_deadline() {
            self.agents_armed[place].arm(deadline.max(now), Timer::Agent(robot), &mut self.timers);
        }
    }

    pub(super) fn set_permitted(&mut self, robot: RobotId, permitted: bool) {
        let place = usize::from(robot.0);
        for index in 0..self.streams_from[place].len() {
            let stream = self.streams_from[place][index];
            self.streams[stream as usize].set_permitted(permitted, self.now);
            self.mark(stream);
        }
        for index in 0..self.saturated_from[place].len() {
            let plain = self.saturated_from[place][index];
            self.plains[plain as usize].permitted = permitted;
            self.plains[plain as usize].fill(self.now, &mut self.outbox);
        }
        if !permitted {
            self.agents[place].forget_shared(self.team.robots.len() as u16);
        }
        if let Some(recorder) = &mut self.recorder {
            recorder.state(robot, SpanKind::Permit, permitted, self.now);
        }
    }

    pub(super) fn shares_windows(&self) -> bool {
        self.controller.is_some() && self.policy.local.as_ref().is_some_and(|local| local.shared_windows)
    }

    /// `listener`, which may send bulk now, learns the others' arrival models: they travel with perceptions to the
    /// leader and from there with messages about permits.
    pub(super) fn tell_models(&mut self, listener: RobotId) {
        let place = usize::from(listener.0);
        if !self.shares_windows() || !self.agents[place].is_sending() {
            return;
        }
        for other in (0..self.agents.len() as u16)
            .map(RobotId)
            .filter(|other| *other != listener)
        {
            if let Some(model) = self.known[usize::from(other.0)].model {
                self.agents[place].on_shared_model(other, model, self.now);
            }
        }
        self.run_agent(listener);
    }

    /// `listener` learns that perceptions have arrived, and the arrival models that came with them.
    pub(super) fn on_perceptions_in(&mut self, listener: RobotId, arrived: &[RobotId]) {
        let place = usize::from(listener.0);
        if !self.shares_windows() || !self.agents[place].is_sending() {
            return;
        }
        let others = arrived.iter().filter(|other| **other != listener);
        let heard: Vec<_> = others
            .map(|other| {
                let known = self.known[usize::from(other.0)];
                (*other, known.model, known.made_at)
            })
            .collect();
        self.agents[place].on_shared_arrived(heard, self.now);
        self.run_agent(listener);
    }

    /// Who holds a permit, where that matters for windows.
    pub(super) fn window_sharers(&self) -> Vec<RobotId> {
        let controller = self.controller.as_ref().filter(|_| self.shares_windows());
        controller.into_iter().flat_map(Controller::holders).collect()
    }

    /// The leader tells the robots that hold permits that it infers for the loop that began at `start`, and whether it
    /// has all perceptions of it.
    pub(super) fn send_clear(&mut self, start: Instant, complete: bool) {
        for holder in self.window_sharers() {
            if let Some(channel) = self.from_controller[usize::from(holder.0)] {
                let bytes = PERMIT_MESSAGE_BYTES + MODEL_BYTES * self.agents.len() as u64;
                let content = Some(Content::Clear(start, complete));
                self.send_message(Delayed {
                    channel,
                    bytes,
                    made_at: self.now,
                    content,
                });
            }
        }
    }
}
