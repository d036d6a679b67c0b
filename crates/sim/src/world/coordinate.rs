//! Coordination in a run: messages between robots, and their robots' actions.

use super::{word_bytes, Content, Delayed, World};
use crate::agent::ControlFlow;
use crate::results::SpanKind;
use crate::setup::{self, station};
use crate::timers::Timer;
use coorp_core::robot::{Action, Message};
use coorp_core::{Duration, RobotId};

/// Overhead of a message between robots on the wire besides IP and UDP: the frame's header, and QUIC's header and
/// authentication tag.
const ENVELOPE_BYTES: u64 = 36;

impl World {
    /// Carries out a robot's actions and arms its next timer. Effects on other robots are queued, so this never recurses.
    #[inline]
    pub(super) fn run_agent(&mut self, robot: RobotId) {
        if self.agents[usize::from(robot.0)].take_touched() {
            self.take_actions(robot);
        }
    }

    fn take_actions(&mut self, robot: RobotId) {
        let place = usize::from(robot.0);
        let now = self.now;
        while let Some(action) = self.agents[place].poll(now) {
            match action {
                Action::Send(to, _, message) => self.say(robot, to, message),
                Action::Broadcast(message) => {
                    for to in (0..self.agents.len() as u16).map(RobotId).filter(|to| *to != robot) {
                        self.say(robot, to, message.clone());
                    }
                }
                Action::Permitted(permitted) => self.set_permitted(robot, permitted),
                Action::Turn { .. } => {
                    let permitted = self.agents[place].is_permitted();
                    self.permit_streams(robot, permitted);
                }
                Action::Resume => self.kicks.push(station(robot)),
                Action::Shift(flow, later) => {
                    if let (Some(ControlFlow::Perception), Some(mpc)) = (self.agents[place].flow(flow), &mut self.mpc) {
                        mpc.worker(robot).shift_phase(later);
                    }
                }
                // Each robot has one path, no robot gathers states, and grants show which robot leads.
                Action::Led(_) | Action::PathAlive(..) | Action::Report(_) | Action::StaleGrant(_) => {}
            }
        }
        if let Some(recorder) = &mut self.recorder {
            for (start, end) in self.agents[place].take_windows() {
                recorder.span(robot, SpanKind::Window, start, end, 0);
            }
        }
        self.arm_agent(robot);
    }

    /// Arms the timer for a robot's next deadline.
    pub(super) fn arm_agent(&mut self, robot: RobotId) {
        let place = usize::from(robot.0);
        if let Some(deadline) = self.agents[place].next_deadline() {
            self.agents_armed[place].arm(deadline.max(self.now), Timer::Agent(robot), &mut self.timers);
        }
    }

    /// Sends a message from robot to robot over the air.
    fn say(&mut self, from: RobotId, to: RobotId, message: Message) {
        if self.gets_through(from, to, &message) {
            self.send_word(from, to, message, Duration::ZERO);
        }
    }

    /// Returns whether faults let a message pass now. Faults may also lose, delay or duplicate it here.
    pub(super) fn gets_through(&mut self, from: RobotId, to: RobotId, message: &Message) -> bool {
        let Some(faults) = &mut self.faults else { return true };
        let mut now = 0;
        for delay in faults.message(self.now) {
            now += u32::from(delay == Duration::ZERO);
            if delay > Duration::ZERO || now > 1 {
                self.send_word(from, to, message.clone(), delay);
            }
        }
        now > 0
    }

    fn send_word(&mut self, from: RobotId, to: RobotId, message: Message, delay: Duration) {
        let Some(channel) = self.words.get(&(from, to)).copied() else {
            return;
        };
        let word = Delayed {
            channel,
            bytes: ENVELOPE_BYTES + word_bytes(&message),
            made_at: self.now,
            content: Some(Content::Word(message)),
        };
        if delay == Duration::ZERO {
            self.send_message(word);
        } else {
            self.delay(word, self.now + delay);
        }
    }

    pub(super) fn set_permitted(&mut self, robot: RobotId, permitted: bool) {
        self.permit_streams(robot, permitted);
        if let Some(recorder) = &mut self.recorder {
            recorder.state(robot, SpanKind::Permit, permitted, self.now);
        }
    }

    /// Lets a robot's streams run if it is permitted to send and it is their receivers' turn.
    pub(super) fn permit_streams(&mut self, robot: RobotId, permitted: bool) {
        let place = usize::from(robot.0);
        for index in 0..self.streams_from[place].len() {
            let place = self.streams_from[place][index];
            let stream = &mut self.streams[place as usize];
            let has_turn = self.agents[usize::from(robot.0)].has_turn(setup::robot(stream.to));
            stream.set_permitted(permitted && has_turn, self.now);
            self.mark(place);
        }
        for index in 0..self.saturated_from[place].len() {
            let plain = &mut self.plains[self.saturated_from[place][index] as usize];
            plain.permitted = permitted && self.agents[place].has_turn(plain.flow.to);
            plain.fill(self.now, &mut self.outbox);
        }
    }
}
