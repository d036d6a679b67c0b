//! Control in a run: the MPC loop's actions, messages on their way and what becomes of them.

use super::{Channel, Content, Delayed, Role, World};
use crate::agent::ControlFlow;
use crate::drlc::Drlc;
use crate::events::EventKind;
use crate::messages::Fate;
use crate::mpc::{Ended, Leader, LeaderAction, Mpc, Perception, Worker};
use crate::results::SpanKind;
use crate::setup::robot;
use crate::timers::Timer;
use coorp_core::robot::Stamp;
use coorp_core::{Duration, Instant, RobotId};

impl World {
    pub(super) fn on_sense(&mut self, robot: RobotId) {
        let now = self.now;
        if let Some(worker) = self.worker(robot) {
            worker.on_deadline(now);
            let next = worker.next_deadline();
            self.timers.set(next.max(now), Timer::Sense(robot));
        }
        self.run_worker(robot);
    }

    fn worker(&mut self, robot: RobotId) -> Option<&mut Worker> {
        self.mpc.as_mut().map(|mpc| mpc.worker(robot))
    }

    fn run_worker(&mut self, robot: RobotId) {
        while let Some(sample) = self.worker(robot).and_then(Worker::poll) {
            self.log(EventKind::Perception, robot, sample);
            let bytes = self.team.control.map_or(0, |control| control.perception_bytes);
            let content = |stamp| Content::Perception(sample, stamp);
            self.send_control(self.perception[usize::from(robot.0)], bytes, content);
        }
    }

    pub(super) fn with_leader(&mut self, happens: impl FnOnce(&mut Leader, Instant)) {
        if let Some(mpc) = &mut self.mpc {
            happens(&mut mpc.leader, self.now);
        }
        self.run_leader();
    }

    pub(super) fn run_leader(&mut self) {
        let leader = self.team.leader;
        while let Some(action) = self.mpc.as_mut().and_then(|mpc| mpc.leader.poll()) {
            match action {
                LeaderAction::Wait(until) => self.timers.set(until, Timer::Leader),
                LeaderAction::Infer { round, start, time } => {
                    self.log(EventKind::Infer, leader, round);
                    if let Some(mpc) = &mut self.mpc {
                        mpc.rounds.begin(round, start, mpc.leader.living());
                    }
                    self.timers.set(self.now + time, Timer::Inference);
                }
                LeaderAction::Inferred(round) => {
                    self.log(EventKind::Inferred, leader, round);
                    self.log(EventKind::CommandIn, leader, round);
                }
                LeaderAction::SendCommand(robot, command) => {
                    let bytes = self.team.control.map_or(0, |control| control.command_bytes);
                    let content = |stamp| Content::Command(command, stamp);
                    self.send_control(self.command[usize::from(robot.0)], bytes, content);
                }
            }
        }
    }

    /// A command of a loop has arrived or is lost; with the last one, the loop ends.
    fn on_command_decided(&mut self, round: u64, lost: bool) {
        let now = self.now;
        let ended = self
            .mpc
            .as_mut()
            .and_then(|mpc| mpc.rounds.on_command(round, lost, now));
        let Some(Ended { start, reaction, lost }) = ended else {
            return;
        };
        self.log(EventKind::LoopEnded, self.team.leader, round);
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
    pub(super) fn send_control(
        &mut self,
        channel: Option<u32>,
        bytes: u64,
        content: impl FnOnce(Option<Stamp>) -> Content,
    ) {
        let Some(channel) = channel else { return };
        let stamp = self.note_control_made(channel);
        let message = Delayed {
            channel,
            bytes,
            made_at: self.now,
            content: Some(content(stamp)),
        };
        let sender = usize::from(self.channels[channel as usize].flow.from.0);
        let delay = self.mpc.as_mut().map_or(Duration::ZERO, Mpc::stack_delay);
        let at = self.stack_until[sender].max(self.now + delay);
        self.stack_until[sender] = at;
        if at == self.now {
            self.send_message(message);
        } else {
            self.delay(message, at);
        }
    }

    /// Sends a message later.
    pub(super) fn delay(&mut self, message: Delayed, until: Instant) {
        let place = self.delayed_free.pop().unwrap_or_else(|| {
            self.delayed.push(None);
            self.delayed.len() as u32 - 1
        });
        self.delayed[place as usize] = Some(message);
        self.timers.set(until, Timer::Stack(place));
    }

    /// A control message is made, which its sender's robot stamps.
    pub(super) fn note_control_made(&mut self, channel: u32) -> Option<Stamp> {
        let Channel { flow, role, .. } = &self.channels[channel as usize];
        let sender = robot(flow.from);
        let control = control_flow(*role)?;
        let stamp = self.agents[usize::from(sender.0)].on_control_made(control, self.now);
        self.run_agent(sender);
        stamp
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
        let to = robot(channel.flow.to);
        match (role, fate, content) {
            (Role::Perception(robot), Fate::Arrived(latency), Some(Content::Perception(sample, stamp))) => {
                self.counts.control_latency.record(latency);
                self.counts.perception_latency.record(latency);
                self.log(EventKind::PerceptionIn, robot, sample);
                self.on_control_arrived(robot, to, stamp);
                let made_at = self.now - latency;
                let perception = Perception { sample, made_at };
                self.with_leader(|leader, now| leader.on_perception(robot, perception, now));
            }
            (Role::Command(robot), Fate::Arrived(latency), Some(Content::Command(command, stamp))) => {
                self.log(EventKind::CommandIn, robot, command.round);
                self.counts.control_latency.record(latency);
                self.counts.command_latency.record(latency);
                self.on_control_arrived(self.team.leader, to, stamp);
                self.on_command_decided(command.round, false);
                let now = self.now;
                if let Some(worker) = self.worker(robot) {
                    worker.on_command(command.newest, now);
                }
                self.run_worker(robot);
            }
            (Role::Command(robot), Fate::Lost, Some(Content::Command(command, _))) => {
                self.log(EventKind::CommandLost, robot, command.round);
                self.on_command_decided(command.round, true);
            }
            (Role::Word(from, to), Fate::Arrived(_), Some(Content::Word(message))) => {
                self.agents[usize::from(to.0)].on_message(from, message, self.now);
                self.run_agent(to);
            }
            (Role::Plain(plain), Fate::Arrived(latency), content) => {
                let flow = &mut self.plains[plain as usize];
                flow.on_message(number, latency, self.now);
                let from = flow.flow.from;
                self.counts.control_latency.record(latency);
                if let Some(Content::Plain(stamp)) = content {
                    self.on_control_arrived(from, to, Some(stamp));
                }
            }
            _ => {}
        }
    }

    fn on_control_arrived(&mut self, from: RobotId, to: RobotId, stamp: Option<Stamp>) {
        let Some(stamp) = stamp else { return };
        self.agents[usize::from(to.0)].on_control_arrived(from, stamp, self.now);
        self.run_agent(to);
    }
}

/// The flow that a message belongs to in its sender's arrival models, if they follow it.
pub(super) fn control_flow(role: Role) -> Option<ControlFlow> {
    match role {
        Role::Perception(_) => Some(ControlFlow::Perception),
        Role::Command(robot) => Some(ControlFlow::Command(robot)),
        Role::Plain(place) => Some(ControlFlow::Plain(place)),
        Role::Word(..) => None,
    }
}
