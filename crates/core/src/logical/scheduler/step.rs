//! The inputs and outputs of a scheduler.

use super::super::graph::{ElementId, ReactionId};
use super::super::program::FederateId;
use super::super::Tag;
use crate::Duration;
use std::fmt;

/// A value that reactions pass to each other.
pub trait Value: Clone {
    /// Returns the value to send to another federate and to keep until it has arrived. It may be a reference to a
    /// payload, while readers in this federate get the object itself.
    #[must_use]
    fn to_send(&self) -> Self {
        self.clone()
    }
}

impl Value for u8 {}
impl Value for u32 {}
impl Value for u64 {}
impl Value for i64 {}
impl Value for String {}

/// The settings of a scheduler.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SchedulerConfig {
    /// Whether not to wait for the clock. Then no reaction is late.
    pub fast: bool,
    /// Whether physical actions and physical connections are taken only from a recording, through
    /// [`Scheduler::on_recorded`].
    ///
    /// [`Scheduler::on_recorded`]: super::Scheduler::on_recorded
    pub replay: bool,
    /// The time of the last tag, unless an earlier one is decided. The same on all federates.
    pub timeout: Option<Duration>,
    /// The maximum number of events in the queue.
    pub events_max: usize,
    /// The greatest microstep. Beyond it, time would stand still, for example because two actions schedule each other
    /// without a delay.
    pub microstep_max: u32,
}

impl Default for SchedulerConfig {
    fn default() -> Self {
        SchedulerConfig {
            fast: false,
            replay: false,
            timeout: None,
            events_max: 65_536,
            microstep_max: 65_536,
        }
    }
}

/// The inputs on which a federate may have to wait within a tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Waits {
    /// The inputs from its zero-delay cycle. A grant covers all others.
    InCycles,
    /// The inputs of all connections without a delay.
    OnAll,
}

/// A reaction to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ready {
    /// The reaction.
    pub reaction: ReactionId,
    /// Whether the deadline has passed, so that the late handler runs instead.
    pub late: bool,
}

/// A step for the driver. Steps must be carried out in order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Step<V> {
    /// Run these reactions, in any order or in parallel, and pass the effects of each to
    /// [`finish`](super::Scheduler::finish).
    Run {
        /// The tag of the reactions.
        tag: Tag,
        /// How far the clock is ahead of the tag; zero with `fast`.
        lag: Duration,
        /// The reactions, in order of their ids.
        reactions: Vec<Ready>,
    },
    /// Send a value to another federate.
    Send {
        /// The receiver.
        to: FederateId,
        /// The receiver's input.
        input: ElementId,
        /// The tag at the receiver. On a physical connection, the tag at the sender.
        tag: Tag,
        /// The value; `None` says that the input stays absent at this tag.
        value: Option<V>,
    },
    /// A reaction wants the program to end, at this tag at the earliest.
    StopRequested(Tag),
    /// Everything at this tag, and before it, is done and sent.
    Completed(Tag),
    /// The last tag is complete.
    Ended,
    /// The result no longer follows from the program.
    Fault(Refused),
}

/// The effects of a reaction.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Effects<V> {
    /// Outputs with their values.
    pub sets: Vec<(ElementId, V)>,
    /// Actions, each with a delay in addition to its least one, and a value.
    pub schedules: Vec<(ElementId, Duration, Option<V>)>,
    /// Whether the program has to end.
    pub stop: bool,
}

impl<V> Default for Effects<V> {
    fn default() -> Self {
        Effects {
            sets: Vec::new(),
            schedules: Vec::new(),
            stop: false,
        }
    }
}

/// The reason why something was not accepted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Refused {
    /// The program has not started.
    NotStarted,
    /// The program has ended, or will before this tag.
    Stopped,
    /// This federate has no such input or action.
    Unknown(ElementId),
    /// The reaction was not to be run.
    NotRunning(ReactionId),
    /// The reaction does not declare this effect.
    Undeclared {
        /// The reaction.
        reaction: ReactionId,
        /// The element that it would affect.
        element: ElementId,
    },
    /// A message arrived after its tag.
    Tardy {
        /// The input.
        input: ElementId,
        /// The intended tag of the message.
        meant: Tag,
        /// The tag that had been reached.
        reached: Tag,
    },
    /// A second message for one input and tag, or an infinite tag.
    BadTag {
        /// The input.
        input: ElementId,
        /// The tag.
        tag: Tag,
    },
    /// The queue is full.
    QueueFull(ElementId),
    /// An action would be present at too many microsteps of one time.
    TooManyMicrosteps(ElementId),
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::NotStarted => f.write_str("the program has not started"),
            Refused::Stopped => f.write_str("the program ends before this tag"),
            Refused::Unknown(element) => write!(f, "element {} is not an input or action of this federate", element.0),
            Refused::NotRunning(reaction) => write!(f, "reaction {} was not to be run", reaction.0),
            Refused::Undeclared { reaction, element } => {
                write!(
                    f,
                    "reaction {} does not declare its effect on element {}",
                    reaction.0, element.0
                )
            }
            Refused::Tardy { input, meant, reached } => {
                write!(f, "a message for input {} at {meant} arrived at {reached}", input.0)
            }
            Refused::BadTag { input, tag } => write!(f, "input {} cannot receive another message at {tag}", input.0),
            Refused::QueueFull(element) => write!(f, "the event queue is full, at an event of element {}", element.0),
            Refused::TooManyMicrosteps(element) => {
                write!(
                    f,
                    "element {} recurs without a delay; give an action in that loop a delay",
                    element.0
                )
            }
        }
    }
}

impl std::error::Error for Refused {}
