//! Control in a run: the MPC loop's actions, messages on their way, and their outcomes.

use super::{Channel, Content, Delayed, Role, Told, World};
use crate::agent::ControlFlow;
use crate::drlc::Drlc;
use crate::events::EventKind;
use crate::messages::Fate;
use crate::mpc::{Ended, Leader, LeaderAction, Perception, Worker};
use crate::results::SpanKind;
use crate::setup::robot;
use crate::timers::Timer;
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
            let content = |told| Content::Perception(sample, told);
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
                    let content = |told| Content::Command(command, told);
                    self.send_control(self.command[usize::from(robot.0)], bytes, content);
                }
            }
        }
    }

    /// Records that a command of a loop has arrived or is lost. With the last one, the loop ends.
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

    /// Makes a control message. It is a sample of its flow's arrival model now. It reaches the host queue after its
    /// stack's delay, but not before one that its sender made earlier.
    pub(super) fn send_control(
        &mut self,
        channel: Option<u32>,
        bytes: u64,
        content: impl FnOnce(Option<Told>) -> Content,
    ) {
        let Some(channel) = channel else { return };
        let told = self.note_control_made(channel);
        let message = Delayed {
            channel,
            bytes: bytes + told.as_ref().map_or(0, Told::bytes),
            made_at: self.now,
            content: Some(content(told)),
        };
        let delay = self.mpc.as_mut().map_or(Duration::ZERO, |mpc| mpc.stack_delay.draw());
        self.hand_over(message, delay);
    }

    /// Hands a control message to the host queue once its sender has a core for it and after `delay`. It is never
    /// before one that its sender handed over earlier.
    pub(super) fn hand_over(&mut self, message: Delayed, delay: Duration) {
        let delay = delay + self.scheduling.draw();
        if delay == Duration::ZERO {
            self.send_message(message);
            return;
        }
        let until = &mut self.stack_until[usize::from(self.channels[message.channel as usize].flow.from.0)];
        *until = (self.now + delay).max(*until);
        let at = *until;
        self.delay(message, at);
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

    /// Notes that a control message is made. Returns the data that its sender's robot adds to it.
    pub(super) fn note_control_made(&mut self, channel: u32) -> Option<Told> {
        let Channel { flow, role, .. } = &self.channels[channel as usize];
        let (sender, to) = (robot(flow.from), robot(flow.to));
        let control = control_flow(*role)?;
        let agent = &mut self.agents[usize::from(sender.0)];
        // Without a stamp, the message carries nothing, so riders wait for another one.
        let stamp = agent.on_control_made(control, self.now)?;
        let riders = agent.riders(to, self.now);
        let riders = riders.into_iter().filter(|word| self.gets_through(sender, to, word));
        let riders = riders.collect();
        self.run_agent(sender);
        Some(Told { stamp, riders })
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
            (Role::Perception(robot), Fate::Arrived(latency), Some(Content::Perception(sample, told))) => {
                self.counts.control_latency.record(latency);
                self.counts.perception_latency.record(latency);
                self.log(EventKind::PerceptionIn, robot, sample);
                self.on_control_arrived(robot, to, told);
                let made_at = self.now - latency;
                let perception = Perception { sample, made_at };
                self.with_leader(|leader, now| leader.on_perception(robot, perception, now));
            }
            (Role::Command(robot), Fate::Arrived(latency), Some(Content::Command(command, told))) => {
                self.log(EventKind::CommandIn, robot, command.round);
                self.counts.control_latency.record(latency);
                self.counts.command_latency.record(latency);
                self.on_control_arrived(self.team.leader, to, told);
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
            (Role::Word(..), Fate::Lost, _) => self.watch.on_word(None, self.now),
            (Role::Word(from, to), Fate::Arrived(latency), Some(Content::Word(message))) => {
                self.watch.on_word(Some(latency), self.now);
                self.agents[usize::from(to.0)].on_message(from, message, false, self.now);
                self.run_agent(to);
            }
            (Role::Plain(plain), Fate::Arrived(latency), content) => {
                let flow = &mut self.plains[plain as usize];
                flow.on_message(number, latency, self.now);
                let from = flow.flow.from;
                self.counts.control_latency.record(latency);
                if let Some(Content::Plain(told)) = content {
                    self.on_control_arrived(from, to, Some(told));
                }
            }
            _ => {}
        }
    }

    fn on_control_arrived(&mut self, from: RobotId, to: RobotId, told: Option<Told>) {
        let Some(Told { stamp, riders }) = told else { return };
        let agent = &mut self.agents[usize::from(to.0)];
        agent.on_control_arrived(from, stamp, self.now);
        for word in riders {
            agent.on_message(from, word, true, self.now);
        }
        self.run_agent(to);
    }
}

/// Returns the flow that a message belongs to in its sender's arrival models, if they follow it.
pub(super) fn control_flow(role: Role) -> Option<ControlFlow> {
    match role {
        Role::Perception(_) => Some(ControlFlow::Perception),
        Role::Command(robot) => Some(ControlFlow::Command(robot)),
        Role::Plain(place) => Some(ControlFlow::Plain(place)),
        Role::Word(..) => None,
    }
}
