//! The events of a run one at a time, for a co-simulation that fills the messages with content.
//!
//! The times of a run do not depend on what is seen, inferred or learnt, so whoever does that can follow behind:
//! take the events up to some instant from a [`Session`](crate::Session), and do at each event's time what it stands
//! for. All numbers count from 0, but for samples, which count from 1.

use coorp_core::{Instant, RobotId};

/// Kinds of events. Other languages see these values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum EventKind {
    /// A robot made its perception; number: its sample. The leader makes its own at [`EventKind::Infer`].
    Perception = 0,
    /// That perception is at the leader; number: its sample.
    PerceptionIn = 1,
    /// The leader has all that it waits for, and infers; number: the round.
    Infer = 2,
    /// The inference has ended, and commands are sent; number: the round.
    Inferred = 3,
    /// A robot has its command; number: the round. The leader has its own once the inference has ended.
    CommandIn = 4,
    /// A robot will never get its command; number: the round.
    CommandLost = 5,
    /// Every command of a loop has arrived or is lost; number: the round.
    LoopEnded = 6,
    /// A new batch is collected; number: the epoch.
    Collect = 7,
    /// The batch is full, and its partitions go out; number: the epoch.
    BatchFull = 8,
    /// A robot, be it the leader, has its partition; number: the epoch.
    PartitionIn = 9,
    /// A robot begins to train; number: its round of training in the epoch, as for the next four.
    Train = 10,
    /// It has trained, and its update is sent.
    Trained = 11,
    /// The leader has that update.
    UpdateIn = 12,
    /// The leader answers it with the model as it is now.
    ModelOut = 13,
    /// The robot has that model.
    ModelIn = 14,
    /// Every robot has the model of the last round; number: the epoch that ended.
    Epoch = 15,
}

/// Something that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// When.
    pub at: Instant,
    /// What.
    pub kind: EventKind,
    /// To whom; the leader, where it is about the whole team.
    pub robot: RobotId,
    /// Which one, see [`EventKind`].
    pub number: u64,
}
