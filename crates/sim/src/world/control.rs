//! Control in a run: the MPC loop's actions, messages on their way and what becomes of them.

use super::{Channel, Content, Delayed, Known, Role, World, MODEL_BYTES, PHASE_BYTES, PHASE_TOLERANCE, STEER_EVERY};
use crate::agent::ControlFlow;
use crate::drlc::Drlc;
use crate::events::EventKind;
use crate::messages::Fate;
use crate::mpc::{Mpc, MpcAction};
use crate::results::SpanKind;
use crate::setup::robot;
use crate::timers::Timer;
use coorp_core::{Duration, Instant, RobotId};

impl World {
    pub(super) fn on_sense(&mut self, robot: RobotId) {
        if let Some(mpc) = &mut self.mpc {
            let next = mpc.on_tick(robot, self.now);
            self.timers.set(next.max(self.now), Timer::Sense(robot));
        }
        self.run_mpc();
    }

    pub(super) fn run_mpc(&mut self) {
        while let Some(action) = self.mpc.as_mut().and_then(|mpc| mpc.actions.pop_front()) {
            match action {
                MpcAction::SendPerception(robot, tick) => {
                    self.log(EventKind::Perception, robot, tick);
                    let (known, added) = self.tell_of(robot);
                    let bytes = self.team.control.map_or(0, |control| control.perception_bytes) + added;
                    let content = Some(Content::Perception(tick, known));
                    self.send_control(self.perception[usize::from(robot.0)], bytes, content);
                    self.agents[usize::from(robot.0)].on_command_awaited(self.now, false, self.now);
                    self.run_agent(robot);
                }
                MpcAction::SendCommand(robot, round) => {
                    let shift = self.steer(robot);
                    let added = if shift == Duration::ZERO { 0 } else { PHASE_BYTES };
                    let bytes = self.team.control.map_or(0, |control| control.command_bytes) + added;
                    let content = Some(Content::Command(round, shift));
                    self.send_control(self.command[usize::from(robot.0)], bytes, content);
                }
                MpcAction::Infer {
                    round,
                    start,
                    time,
                    complete,
                } => {
                    self.log(EventKind::Infer, self.team.leader, round);
                    self.timers.set(self.now + time, Timer::Inference);
                    self.agents[usize::from(self.team.leader.0)].on_command_awaited(start, complete, self.now);
                    self.run_agent(self.team.leader);
                    self.send_clear(start, complete);
                }
                MpcAction::Inferred(round) => {
                    self.log(EventKind::Inferred, self.team.leader, round);
                    self.log(EventKind::CommandIn, self.team.leader, round);
                }
                MpcAction::Timeout(round, after) => self.timers.set(self.now + after, Timer::RoundTimeout(round)),
                MpcAction::LoopEnded {
                    round,
                    start,
                    reaction,
                    lost,
                } => {
                    self.log(EventKind::LoopEnded, self.team.leader, round);
                    self.on_loop_ended(start, reaction, lost);
                }
            }
        }
    }

    fn steers(&self) -> bool {
        self.policy.local.as_ref().is_some_and(|local| local.steered_phases)
    }

    /// What a robot tells of itself with its perception, and the bytes that this adds.
    fn tell_of(&mut self, robot: RobotId) -> (Known, u64) {
        let mut known = Known {
            made_at: self.now,
            ..Known::default()
        };
        let mut bytes = 0;
        let (shares, steers) = (self.shares_windows(), self.steers());
        let agent = &mut self.agents[usize::from(robot.0)];
        if shares {
            known.model = agent.model_to_tell(self.now);
            bytes += known.model.map_or(0, |_| MODEL_BYTES);
        }
        if let (true, Some(mpc)) = (steers, &self.mpc) {
            known.phase = agent.phase_to_tell(mpc.phase(robot), self.now);
            bytes += known.phase.map_or(0, |_| PHASE_BYTES);
        }
        (known, bytes)
    }

    /// By how much `robot` is to sample later, so that all sample together: windows then coincide, and no loop waits
    /// for the last. Each robot tells the phase of its sensor's timer with its perceptions; the leader compares.
    pub(super) fn steer(&mut self, robot: RobotId) -> Duration {
        let reference = self
            .perception
            .iter()
            .position(Option::is_some)
            .filter(|_| self.steers());
        let phase = |place: usize| self.known[place].phase;
        let (Some(target), Some(own), Some(control)) = (
            reference.and_then(phase),
            phase(usize::from(robot.0)),
            &self.team.control,
        ) else {
            return Duration::ZERO;
        };
        let period = control.period.as_nanos();
        let ahead = (target.as_nanos() + period - own.as_nanos()) % period;
        let off = Duration::from_nanos(ahead.min(period - ahead));
        if off < PHASE_TOLERANCE || self.now < self.steered_until[usize::from(robot.0)] {
            return Duration::ZERO;
        }
        self.steered_until[usize::from(robot.0)] = self.now + control.period * STEER_EVERY;
        Duration::from_nanos(ahead)
    }

    pub(super) fn on_loop_ended(&mut self, start: Instant, reaction: Duration, lost: bool) {
        let bound = self.team.control.map_or(Duration::MAX, |control| control.bound);
        self.counts.loops += 1;
        self.counts.violations += u64::from(lost || reaction > bound);
        self.counts.reaction.record(reaction);
        if let Some(recorder) = &mut self.recorder {
            recorder.span(self.team.leader, SpanKind::Loop, start, self.now, 0);
        }
        self.with_drlc(Drlc::on_loop);
    }

    /// A control message is made: it is a sample of its flow's arrival model now and reaches the host queue after its
    /// stack's delay, but not before one that its sender made earlier.
    pub(super) fn send_control(&mut self, channel: Option<u32>, bytes: u64, content: Option<Content>) {
        let Some(channel) = channel else { return };
        let message = Delayed {
            channel,
            bytes,
            made_at: self.now,
            content,
        };
        self.note_control_made(channel);
        let sender = usize::from(self.channels[channel as usize].flow.from.0);
        let delay = self.mpc.as_mut().map_or(Duration::ZERO, Mpc::stack_delay);
        let at = self.stack_until[sender].max(self.now + delay);
        self.stack_until[sender] = at;
        if at == self.now {
            self.send_message(message);
            return;
        }
        let place = self.delayed_free.pop().unwrap_or_else(|| {
            self.delayed.push(None);
            self.delayed.len() as u32 - 1
        });
        self.delayed[place as usize] = Some(message);
        self.timers.set(at, Timer::Stack(place));
    }

    pub(super) fn note_control_made(&mut self, channel: u32) {
        let Channel { flow, role, .. } = &self.channels[channel as usize];
        let sender = robot(flow.from);
        if let Some(control) = control_flow(*role) {
            self.agents[usize::from(sender.0)].on_control_made(control, self.now);
            self.run_agent(sender);
        }
    }

    pub(super) fn on_stack(&mut self, place: u32) {
        if let Some(message) = self.delayed.get_mut(place as usize).and_then(Option::take) {
            self.delayed_free.push(place);
            self.send_message(message);
        }
    }

    pub(super) fn send_message(&mut self, message: Delayed) {
        let channel = &mut self.channels[message.channel as usize];
        let number = channel
            .flow
            .send(message.bytes, message.made_at, self.now, &mut self.outbox);
        if let Some(content) = message.content {
            channel.contents.push_back((number, content));
        }
    }

    pub(super) fn on_message_fate(&mut self, place: u32, number: u64, fate: Fate) {
        let channel = &mut self.channels[place as usize];
        let role = channel.role;
        let at = channel.contents.iter().position(|(other, _)| *other == number);
        let content = at
            .and_then(|at| channel.contents.remove(at))
            .map(|(_, content)| content);
        match (role, fate, content) {
            (Role::Perception(robot), Fate::Arrived(latency), Some(Content::Perception(tick, known))) => {
                self.known[usize::from(robot.0)].learn(known);
                self.counts.control_latency.record(latency);
                self.log(EventKind::PerceptionIn, robot, tick);
                let made_at = self.now - latency;
                self.on_perceptions_in(self.team.leader, &[robot]);
                if let Some(mpc) = &mut self.mpc {
                    mpc.on_perception(robot, made_at);
                }
            }
            (Role::Command(robot), Fate::Arrived(latency), Some(Content::Command(round, shift))) => {
                self.log(EventKind::CommandIn, robot, round);
                self.counts.control_latency.record(latency);
                let made_at = self.now - latency;
                self.agents[usize::from(robot.0)].on_command_arrived(made_at, self.now);
                self.run_agent(robot);
                if let Some(mpc) = &mut self.mpc {
                    mpc.on_command(robot, round, self.now);
                    mpc.shift_phase(robot, shift);
                }
            }
            (Role::Perception(robot), Fate::Lost, _) => self.agents[usize::from(robot.0)].forget_told(),
            (Role::Command(robot), Fate::Lost, Some(Content::Command(round, _))) => {
                self.log(EventKind::CommandLost, robot, round);
                if let Some(mpc) = &mut self.mpc {
                    mpc.on_command_lost(round, self.now);
                }
            }
            (Role::ToController(robot), Fate::Arrived(_), Some(Content::Permit(message))) => {
                self.on_controller_message(robot, message);
            }
            (Role::FromController(robot), Fate::Arrived(_), Some(Content::Permit(message))) => {
                self.on_requester_message(robot, message);
                self.tell_models(robot);
            }
            (Role::FromController(robot), Fate::Arrived(_), Some(Content::Clear(start, complete))) => {
                let others: Vec<RobotId> = (0..self.agents.len() as u16).map(RobotId).collect();
                self.on_perceptions_in(robot, &others);
                self.agents[usize::from(robot.0)].on_command_awaited(start, complete, self.now);
                self.run_agent(robot);
            }
            (Role::Plain(plain), Fate::Arrived(latency), _) => {
                let plain = &mut self.plains[plain as usize];
                plain.on_message(number, latency, self.now);
                self.counts.control_latency.record(latency);
            }
            _ => {}
        }
        self.run_mpc();
    }
}

/// The flow that a message belongs to in its sender's arrival models, if they follow it.
pub(super) fn control_flow(role: Role) -> Option<ControlFlow> {
    match role {
        Role::Perception(_) => Some(ControlFlow::Perception),
        Role::Command(_) => Some(ControlFlow::Command),
        Role::Plain(place) => Some(ControlFlow::Plain(place)),
        Role::ToController(_) | Role::FromController(_) => None,
    }
}
