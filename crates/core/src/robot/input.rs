//! Everything that drivers tell a [`Robot`], as values that a flight recorder writes and a replay reads.
//!
//! Each public method that changes a robot is an [`Input`], and [`Robot::handle`] calls it. Decisions have no other source,
//! so the same inputs at the same times take the same state to the same answers and actions, bit for bit.
//!
//! Left out: the journal, which only notes decisions.

use serde::{Deserialize, Serialize};

use super::{Action, Message, Report, Robot, Session, Stamp, StateCopy};
use crate::paths::{PathCopy, PathId};
use crate::{tracker, Duration, FlowId, Instant, RobotId};

/// Something that a driver tells a robot. The fields are those of the method that the text names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Input {
    /// [`Robot::on_deadline`]; then the driver takes all actions.
    Deadline,
    /// [`Robot::may_pass`], answered by [`Answer::Yes`] or [`Answer::No`].
    MayPass {
        /// Over which path.
        path: usize,
        /// Packets on their way over it.
        n: usize,
    },
    /// [`Robot::on_left`].
    Left {
        /// Over which path.
        path: usize,
        /// Packets that had left when it entered, and by now, itself included.
        left: (u64, u64),
        /// When it entered.
        entered_at: Instant,
        /// When it left.
        left_at: Instant,
    },
    /// [`Robot::on_completed`].
    Completed {
        /// Over which path.
        path: usize,
        /// The number of packets ahead of it when it entered.
        ahead: usize,
        /// When it entered.
        entered_at: Instant,
        /// When it left.
        left_at: Instant,
    },
    /// [`Robot::on_control`], answered by [`Answer::Stamp`].
    Control(FlowId),
    /// [`Robot::on_control_left`].
    ControlLeft(FlowId),
    /// [`Robot::on_arrived`].
    Arrived {
        /// Its sender.
        from: RobotId,
        /// The stamp that came with it.
        stamp: Stamp,
    },
    /// [`Robot::assign`], answered by [`Answer::Copies`].
    Assign(RobotId),
    /// [`Robot::riders`], answered by [`Answer::Riders`].
    Riders(RobotId),
    /// [`Robot::on_copy`].
    Copy {
        /// Its sender.
        from: RobotId,
        /// Over which path it came.
        path: PathId,
        /// Its sender's start.
        incarnation: u32,
        /// Its number on the path.
        number: u32,
    },
    /// [`Robot::state_copies`], answered by [`Answer::States`].
    State(String),
    /// [`Robot::on_message`].
    Message {
        /// Its sender.
        from: RobotId,
        /// Over which path it came, if the transport tells.
        path: Option<PathId>,
        /// The message.
        message: Message,
    },
    /// [`Robot::want_bulk`].
    WantBulk(bool),
    /// [`Robot::bulk_path`], answered by [`Answer::Path`].
    BulkPath(RobotId),
    /// [`Robot::bulk_moves`], answered by [`Answer::Yes`] or [`Answer::No`].
    BulkMoves {
        /// To which robot.
        to: RobotId,
        /// The path that bulk goes over.
        from: usize,
    },
    /// [`Robot::on_bulk`].
    Bulk {
        /// To which robot.
        to: RobotId,
        /// Over which path, if it goes.
        path: Option<usize>,
    },
    /// [`Robot::on_bulk_sent`].
    BulkSent {
        /// To which robot.
        to: RobotId,
        /// Over which path.
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
        /// Which session of that robot.
        session: Session,
        /// Whether it begins to, or ends.
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
        /// Over which path.
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
    /// The index of a path.
    Path(usize),
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
    /// A new flow, if there was room.
    pub fn flow(self) -> Option<FlowId> {
        match self {
            Answer::Flow(flow) => flow,
            _ => None,
        }
    }

    /// The stamp of a control message.
    pub fn stamp(self) -> Stamp {
        match self {
            Answer::Stamp(stamp) => stamp,
            _ => Stamp::default(),
        }
    }

    /// The copies of a control message; none for any other answer.
    pub fn copies(self) -> Vec<PathCopy> {
        match self {
            Answer::Copies(copies) => copies,
            _ => Vec::new(),
        }
    }

    /// The messages that go with a control message; none for any other answer.
    pub fn riders(self) -> Vec<Message> {
        match self {
            Answer::Riders(riders) => riders,
            _ => Vec::new(),
        }
    }

    /// The copies of a state; none for any other answer.
    pub fn states(self) -> Vec<StateCopy> {
        match self {
            Answer::States(states) => states,
            _ => Vec::new(),
        }
    }

    /// The index of a path; the first for any other answer.
    pub fn path(self) -> usize {
        match self {
            Answer::Path(path) => path,
            _ => 0,
        }
    }

    /// The actions that a deadline caused.
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
            Input::BulkPath(to) => return Answer::Path(self.bulk_path(to, now)),
            Input::BulkMoves { to, from } => return Answer::of(self.bulk_moves(to, from, now)),
            Input::Bulk { to, path } => self.on_bulk(to, path, now),
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
