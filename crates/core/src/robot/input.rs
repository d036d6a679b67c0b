//! All inputs of a [`Robot`], as values that a flight recorder writes and a replay reads.
//!
//! Each public method that changes a robot is an [`Input`], and [`Robot::handle`] calls it. Decisions have no other
//! source. So with the same state, the same inputs at the same times give the same answers and actions, bit for bit.
//!
//! Left out: the journal, which only records decisions.

use serde::{Deserialize, Serialize};

use super::{Action, Message, Report, Robot, Session, Stamp, StateCopy};
use crate::paths::{PathCopy, PathId};
use crate::{tracker, Duration, FlowId, Instant, RobotId};

/// An input from a driver. The fields are the parameters of the method that the comment names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Input {
    /// [`Robot::on_deadline`]. Then the driver takes all actions.
    Deadline,
    /// [`Robot::may_pass`], answered by [`Answer::Yes`] or [`Answer::No`].
    MayPass {
        /// The path.
        path: usize,
        /// Packets on their way over it.
        n: usize,
    },
    /// [`Robot::passes_gate`], answered as [`Input::MayPass`].
    PassesGate {
        /// The path.
        path: usize,
        /// Packets on their way over it.
        n: usize,
    },
    /// [`Robot::on_left`].
    Left {
        /// The path.
        path: usize,
        /// The number of packets that had left when this one entered, and that have left now, including this one.
        left: (u64, u64),
        /// When the packet entered.
        entered_at: Instant,
        /// When the packet left.
        left_at: Instant,
    },
    /// [`Robot::on_completed`].
    Completed {
        /// The path.
        path: usize,
        /// The number of packets ahead when this one entered.
        ahead: usize,
        /// When the packet entered.
        entered_at: Instant,
        /// When the packet left.
        left_at: Instant,
    },
    /// [`Robot::on_control`], answered by [`Answer::Stamp`].
    Control(FlowId),
    /// [`Robot::on_control_left`].
    ControlLeft(FlowId),
    /// [`Robot::on_arrived`].
    Arrived {
        /// The sender.
        from: RobotId,
        /// The stamp that arrived with the message.
        stamp: Stamp,
    },
    /// [`Robot::assign`], answered by [`Answer::Copies`].
    Assign(RobotId),
    /// [`Robot::riders`], answered by [`Answer::Riders`].
    Riders(RobotId),
    /// [`Robot::on_copy`].
    Copy {
        /// The sender.
        from: RobotId,
        /// The path that the copy arrived over.
        path: PathId,
        /// The sender's start.
        incarnation: u32,
        /// The copy's number on the path.
        number: u32,
    },
    /// [`Robot::state_copies`], answered by [`Answer::States`].
    State(String),
    /// [`Robot::on_message`].
    Message {
        /// The sender.
        from: RobotId,
        /// The path that the message arrived over, if the transport knows it.
        path: Option<PathId>,
        /// The message.
        message: Message,
    },
    /// [`Robot::want_bulk`].
    WantBulk(bool),
    /// [`Robot::bulk_paths`], answered by [`Answer::Paths`].
    BulkPaths(RobotId),
    /// [`Robot::on_bulk`].
    Bulk {
        /// The receiving robot.
        to: RobotId,
        /// The path.
        path: usize,
        /// Whether bulk is sent over it.
        waits: bool,
    },
    /// [`Robot::on_bulk_sent`].
    BulkSent {
        /// The receiving robot.
        to: RobotId,
        /// The path.
        path: usize,
    },
    /// [`Robot::add_flow`], answered by [`Answer::Flow`].
    AddFlow(Option<Duration>),
    /// [`Robot::remove_flow`].
    RemoveFlow(FlowId),
    /// [`Robot::set_bound`].
    SetBound(FlowId, Option<Duration>),
    /// [`Robot::tell_models_again`].
    TellModelsAgain,
    /// [`Robot::on_gone`].
    Gone(RobotId),
    /// [`Robot::on_dead`].
    Dead {
        /// The robot.
        robot: RobotId,
        /// The process had ended at some time after this.
        since: Instant,
    },
    /// [`Robot::resign`].
    Resign,
    /// [`super::Reporters::publish`].
    Publish(String),
    /// [`super::Reporters::unpublish`].
    Unpublish(String),
    /// [`super::Reporters::on_gatherer`].
    Gatherer {
        /// The topic, and the robot that gathers it.
        report: Report,
        /// The session of that robot.
        session: Session,
        /// Whether the session begins to gather, or ends.
        here: bool,
    },
    /// [`super::Reporters::on_message`].
    Gathering {
        /// The topic, and the robot that gathers it.
        report: Report,
        /// That robot's message.
        message: tracker::Message,
    },
    /// [`Robot::set_protects`].
    Protects(bool),
    /// [`Robot::may_forward`], answered by [`Answer::Yes`] or [`Answer::No`].
    MayForward {
        /// The path.
        path: usize,
        /// Packets on their way over it.
        n: usize,
    },
    /// [`Robot::add_foreign_flow`], answered by [`Answer::Flow`].
    AddForeignFlow,
    /// [`Robot::may_acknowledge`], answered by [`Answer::Yes`] or [`Answer::No`].
    MayAcknowledge,
}

/// A robot's immediate answer to an [`Input`]. Everything else is an [`Action`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Answer {
    /// Nothing.
    Done,
    /// The answer to a question: yes.
    Yes,
    /// The answer to a question: no.
    No,
    /// A new flow, if there was room.
    Flow(Option<FlowId>),
    /// The indices of paths, the best one first.
    Paths(Vec<usize>),
    /// The stamp of a control message.
    Stamp(Stamp),
    /// The copies of a control message.
    Copies(Vec<PathCopy>),
    /// The messages that go with a control message.
    Riders(Vec<Message>),
    /// The copies of a state.
    States(Vec<StateCopy>),
    /// The actions that a deadline caused.
    Actions(Vec<Action>),
}

impl Answer {
    /// Returns a new flow, if there was room.
    pub fn flow(self) -> Option<FlowId> {
        match self {
            Answer::Flow(flow) => flow,
            _ => None,
        }
    }

    /// Returns the stamp of a control message.
    pub fn stamp(self) -> Stamp {
        match self {
            Answer::Stamp(stamp) => stamp,
            _ => Stamp::default(),
        }
    }

    /// Returns the copies of a control message; none for any other answer.
    pub fn copies(self) -> Vec<PathCopy> {
        match self {
            Answer::Copies(copies) => copies,
            _ => Vec::new(),
        }
    }

    /// Returns the messages that go with a control message; none for any other answer.
    pub fn riders(self) -> Vec<Message> {
        match self {
            Answer::Riders(riders) => riders,
            _ => Vec::new(),
        }
    }

    /// Returns the copies of a state; none for any other answer.
    pub fn states(self) -> Vec<StateCopy> {
        match self {
            Answer::States(states) => states,
            _ => Vec::new(),
        }
    }

    /// Returns the indices of paths, the best one first; none for any other answer.
    pub fn paths(self) -> Vec<usize> {
        match self {
            Answer::Paths(paths) => paths,
            _ => Vec::new(),
        }
    }

    /// Returns the actions that a deadline caused.
    pub fn actions(self) -> Option<Vec<Action>> {
        match self {
            Answer::Actions(actions) => Some(actions),
            _ => None,
        }
    }

    fn of(yes: bool) -> Self {
        if yes {
            Answer::Yes
        } else {
            Answer::No
        }
    }
}

impl Robot {
    /// Handles an input, as if the driver had called its method.
    pub fn handle(&mut self, input: Input, now: Instant) -> Answer {
        self.journal.at(now);
        match input {
            Input::Deadline => {
                self.on_deadline(now);
                return Answer::Actions(std::iter::from_fn(|| self.poll()).collect());
            }
            Input::MayPass { path, n } => return Answer::of(self.may_pass(path, n, now)),
            Input::PassesGate { path, n } => return Answer::of(self.passes_gate(path, n, now)),
            Input::Protects(protects) => self.set_protects(protects),
            Input::MayForward { path, n } => return Answer::of(self.may_forward(path, n, now)),
            Input::Left {
                path,
                left,
                entered_at,
                left_at,
            } => self.on_left(path, left, entered_at, left_at),
            Input::Completed {
                path,
                ahead,
                entered_at,
                left_at,
            } => self.on_completed(path, ahead, entered_at, left_at),
            Input::Control(flow) => return Answer::Stamp(self.on_control(flow, now)),
            Input::ControlLeft(flow) => self.on_control_left(flow, now),
            Input::Arrived { from, stamp } => self.on_arrived(from, stamp, now),
            Input::Assign(to) => return Answer::Copies(self.assign(to, now)),
            Input::Riders(to) => return Answer::Riders(self.riders(to, now)),
            Input::Copy {
                from,
                path,
                incarnation,
                number,
            } => self.on_copy(from, path, incarnation, number),
            Input::State(topic) => return Answer::States(self.state_copies(&topic, now)),
            Input::Message { from, path, message } => self.on_message(from, path, message, now),
            Input::WantBulk(wants) => self.want_bulk(wants, now),
            Input::BulkPaths(to) => return Answer::Paths(self.bulk_paths(to, now)),
            Input::Bulk { to, path, waits } => self.on_bulk(to, path, waits, now),
            Input::BulkSent { to, path } => self.on_bulk_sent(to, path, now),
            Input::AddFlow(period) => return Answer::Flow(self.add_flow(period)),
            Input::AddForeignFlow => return Answer::Flow(self.add_foreign_flow()),
            Input::MayAcknowledge => return Answer::of(self.may_acknowledge(now)),
            Input::RemoveFlow(flow) => self.remove_flow(flow),
            Input::SetBound(flow, bound) => self.set_bound(flow, bound),
            Input::TellModelsAgain => self.tell_models_again(),
            Input::Gone(robot) => self.on_gone(robot),
            Input::Dead { robot, since } => self.on_dead(robot, since, now),
            Input::Resign => self.resign(now),
            Input::Publish(topic) => self.reporters.publish(&topic, now),
            Input::Unpublish(topic) => self.reporters.unpublish(&topic, now),
            Input::Gatherer { report, session, here } => self.reporters.on_gatherer(report, session, here, now),
            Input::Gathering { report, message } => self.reporters.on_message(&report, message, now),
        }
        Answer::Done
    }
}

#[cfg(test)]
mod tests;
