//! The messages between robots.
//!
//! The types belong to the decisions. Their serde form goes over the wire (in postcard; golden bytes below), so a
//! change here changes the protocol. Times are on the clock that the field's comment names; a `clock` identifies it.
//!
//! Left out: the sender, which the transport proves, and the frame around the message.

use serde::{Deserialize, Serialize};

use super::Judged;
use crate::arrival::TimeModel;
use crate::paths::{Echo, Probe};
use crate::{failover, Duration, Instant, RobotId};

/// The maximum number of control messages in one [`Message::Arrived`].
pub const ARRIVED_MAX: usize = 24;

/// Identifies a robot's clock, unique to one start of one robot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ClockId(pub u64);

impl ClockId {
    /// Returns the clock of a robot's start.
    pub fn of(robot: RobotId, incarnation: u32) -> Self {
        ClockId(u64::from(robot.0) << 32 | u64::from(incarnation))
    }

    /// Returns whether it identifies a clock of this robot.
    pub fn is_of(self, robot: RobotId) -> bool {
        self.0 >> 32 == u64::from(robot.0)
    }
}

/// A control message that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Arrived {
    /// The sender.
    pub robot: RobotId,
    /// The sender's number for the flow.
    pub flow: u8,
    /// When the message was made.
    pub made_at: Instant,
}

/// Data that a sender adds to each control message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamp {
    /// The sender's number for the flow.
    pub flow: u8,
    /// When the message was made: the leader's clock, and the time on it. `None` while the sender does not know that
    /// clock.
    pub made_at: Option<(ClockId, Instant)>,
    /// How long the sender's last loop took, from perception to command.
    pub last_loop: Option<Duration>,
    /// The age at which the message is late, if the publisher states one.
    pub bound: Option<Duration>,
}

/// A message from one robot to another, or to all.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Message {
    /// Elections, and permits under a leadership.
    Coordination(failover::Message),
    /// To the leader: asks for its time.
    TimeQuery {
        /// When this was sent, on the sender's clock.
        sent_at: Instant,
    },
    /// The leader's answer.
    TimeReply {
        /// The leader's clock.
        clock: ClockId,
        /// The query's `sent_at`.
        echo: Instant,
        /// When the query arrived, on the leader's clock.
        received_at: Instant,
        /// When this was sent, on the leader's clock.
        sent_at: Instant,
    },
    /// To all: when this robot's control messages are due.
    Models {
        /// The leader's clock, which the models are on.
        clock: ClockId,
        /// Models by flow. It is unknown when missing flows are due.
        models: Vec<(u8, TimeModel)>,
    },
    /// From the leader to a robot that may send bulk: this control has arrived, so bulk need no longer wait for it.
    Arrived {
        /// The leader's clock, which the times are on.
        clock: ClockId,
        /// The messages, at most [`ARRIVED_MAX`].
        messages: Vec<Arrived>,
        /// The level of caution in fiftieths, from 0 for a level of -1 (`gate::Caution`).
        caution: u8,
    },
    /// From the leader to a robot: make the messages of this flow later from now on, so that all robots sample
    /// together.
    Shift {
        /// The receiver's number for the flow.
        flow: u8,
        /// The delay, less than a period.
        later: Duration,
    },
    /// Over one path: asks whether the path is alive.
    Probe(Probe),
    /// Over the same path: the path is alive.
    Echo(Echo),
    /// To the leader: the number of control messages that arrived here within their bound, and late, since the last
    /// report.
    Judged(Judged),
}

impl Message {
    /// Returns whether the message may go with a control message.
    pub fn may_ride(&self) -> bool {
        matches!(self, Message::Coordination(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failover::Epoch;
    use crate::paths::PathId;
    use crate::permits::{self, RequestId};

    /// The bytes of each kind. If one changes, robots of different versions misunderstand each other, so raise the
    /// frames' version with it.
    #[test]
    fn the_wire_form_is_fixed() {
        let at = Instant::from_nanos;
        let epoch = Epoch {
            round: 3,
            robot: RobotId(1),
            incarnation: 7,
        };
        let model = TimeModel {
            period: Duration::from_nanos(300),
            phase: at(5),
            sigma: Duration::from_nanos(1),
            early: Duration::from_nanos(2),
            late: Duration::from_nanos(3),
        };
        let probe = Probe {
            path: PathId(1),
            incarnation: 7,
            number: 2,
            sent_at: at(9),
        };
        let request = permits::Message::Request {
            robot: RobotId(1),
            request: RequestId(4),
            sent_at: at(6),
        };
        let clock = ClockId(8);
        let echo = Echo {
            probe,
            newest: 3,
            seen: 5,
        };
        let golden: [(Message, &[u8]); 10] = [
            (
                Message::Coordination(failover::Message::Beat {
                    epoch,
                    sent_at: at(200),
                }),
                &[0, 0, 3, 1, 7, 200, 1],
            ),
            (
                Message::Coordination(failover::Message::Permit {
                    epoch,
                    message: request,
                }),
                &[0, 5, 3, 1, 7, 0, 1, 4, 6],
            ),
            (Message::TimeQuery { sent_at: at(5) }, &[1, 5]),
            (
                Message::TimeReply {
                    clock,
                    echo: at(5),
                    received_at: at(6),
                    sent_at: at(7),
                },
                &[2, 8, 5, 6, 7],
            ),
            (
                Message::Models {
                    clock,
                    models: vec![(4, model)],
                },
                &[3, 8, 1, 4, 172, 2, 5, 1, 2, 3],
            ),
            (
                Message::Arrived {
                    clock,
                    messages: vec![Arrived {
                        robot: RobotId(2),
                        flow: 3,
                        made_at: at(1),
                    }],
                    caution: 50,
                },
                &[4, 8, 1, 2, 3, 1, 50],
            ),
            (
                Message::Shift {
                    flow: 1,
                    later: Duration::from_nanos(3),
                },
                &[5, 1, 3],
            ),
            (Message::Probe(probe), &[6, 1, 7, 2, 9]),
            (Message::Echo(echo), &[7, 1, 7, 2, 9, 3, 5]),
            (Message::Judged(Judged { in_time: 3, late: 1 }), &[8, 3, 1]),
        ];
        let kinds: Vec<u8> = golden.iter().map(|(_, bytes)| bytes[0]).collect();
        assert!((0..=8).all(|kind| kinds.contains(&kind)), "one is missing: {kinds:?}");
        for (message, bytes) in golden {
            assert_eq!(postcard::to_allocvec(&message).unwrap(), bytes, "{message:?}");
            assert_eq!(postcard::from_bytes::<Message>(bytes).unwrap(), message);
        }
    }
}
