//! The events of a run, one at a time, for a co-simulation that fills the messages with content.
//!
//! The times of a run do not depend on the content of perception, inference or learning, so a program that computes
//! these can follow behind. It takes the events up to some instant from a [`Session`](crate::Session), and carries out
//! each event at its time. All numbers count from 0, except samples, which count from 1.

use coorp_core::{Instant, RobotId};

/// Kinds of events. Other languages see these values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum EventKind {
    /// A robot made its perception; number: its sample. The leader makes its own at [`EventKind::Infer`].
    Perception = 0,
    /// The perception has arrived at the leader; number: its sample.
    PerceptionIn = 1,
    /// The leader has everything that it waits for, and infers; number: the round.
    Infer = 2,
    /// The inference has ended, and commands are sent; number: the round.
    Inferred = 3,
    /// A robot has its command; number: the round. The leader's own command counts once the inference has ended.
    CommandIn = 4,
    /// A robot will never get its command; number: the round.
    CommandLost = 5,
    /// Every command of a loop has arrived or is lost; number: the round.
    LoopEnded = 6,
    /// A new batch is collected; number: the epoch.
    Collect = 7,
    /// The batch is full, and its partitions go out; number: the epoch.
    BatchFull = 8,
    /// A robot, possibly the leader, has its partition; number: the epoch.
    PartitionIn = 9,
    /// A robot begins to train; number: its round of training in the epoch, as for the next four.
    Train = 10,
    /// A robot has trained, and its update is sent.
    Trained = 11,
    /// The leader has that update.
    UpdateIn = 12,
    /// The leader answers the update with the current model.
    ModelOut = 13,
    /// The robot has that model.
    ModelIn = 14,
    /// Every robot has the model of the last round; number: the epoch that ended.
    Epoch = 15,
}

/// An event of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The time.
    pub at: Instant,
    /// The kind.
    pub kind: EventKind,
    /// The robot concerned; the leader for events of the whole team.
    pub robot: RobotId,
    /// The number; see [`EventKind`].
    pub number: u64,
}
