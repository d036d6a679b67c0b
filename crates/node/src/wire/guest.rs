//! The messages between a robot's agent and the programs that are its guests, over a Unix socket of one machine.
//!
//! The lengths of a frame and of its payload come first ([`HEAD_BYTES`]), then the frame, then the payload. A
//! descriptor comes with the first byte of its frame. All frames share one version, so an agent and its guests must
//! have the same build.

use coorp_core::tracker::Topics;
use coorp_core::{Duration, Instant, RobotId};
use serde::{Deserialize, Serialize};

use super::{decode, encode, Frame, Refusal};
use crate::links::MESSAGE_BYTES_MAX;
use crate::Error;

/// The bytes before each frame: its length and its payload's, each four bytes in little-endian order.
pub const HEAD_BYTES: usize = 8;

/// Lengths of a frame and of its payload, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lengths {
    /// The frame's length.
    pub frame: usize,
    /// The payload's length.
    pub payload: usize,
}

impl Lengths {
    /// Reads the lengths of an `F` and its payload.
    ///
    /// # Errors
    /// If either is longer than allowed.
    pub fn of<F: Frame>(head: [u8; HEAD_BYTES]) -> Result<Lengths, Refusal> {
        let [a, b, c, d, payload @ ..] = head;
        let [frame, payload] = [[a, b, c, d], payload].map(|bytes| u32::from_le_bytes(bytes) as usize);
        if frame > F::BYTES_MAX || payload > MESSAGE_BYTES_MAX {
            return Err(Refusal::Oversized);
        }
        Ok(Lengths { frame, payload })
    }

    /// Returns the total length, bytes.
    pub fn whole(self) -> usize {
        HEAD_BYTES + self.frame + self.payload
    }
}

/// Encodes a frame with its payload.
pub fn packed<F: Frame>(frame: &F, payload: &[u8]) -> Vec<u8> {
    let frame = encode(frame);
    let [head, behind] = [frame.len(), payload.len()].map(|bytes| u32::try_from(bytes).unwrap_or(0).to_le_bytes());
    [head.as_slice(), &behind, &frame, payload].concat()
}

/// Decodes a frame, and returns where its payload begins and ends; `None` if it is incomplete.
///
/// # Errors
/// If [`packed`] does not produce this.
pub fn unpacked<F: Frame>(bytes: &[u8]) -> Result<Option<(F, Lengths)>, Refusal> {
    let Some(head) = bytes.first_chunk::<HEAD_BYTES>() else {
        return Ok(None);
    };
    let lengths = Lengths::of::<F>(*head)?;
    if bytes.len() < lengths.whole() {
        return Ok(None);
    }
    let frame = decode(&bytes[HEAD_BYTES..HEAD_BYTES + lengths.frame])?;
    Ok(Some((frame, lengths)))
}

/// A guest's message. The guest numbers its declarations and questions, and uses each number once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum FromGuest {
    /// The first frame.
    Hello {
        /// The hash of its team file's names.
        team: [u8; 32],
        /// The robot that it belongs to.
        robot: RobotId,
        /// Whether it may join an agent without keys.
        insecure: bool,
    },
    /// Publishes a topic.
    Publish {
        /// The publisher.
        id: u64,
        /// The topic.
        topic: String,
        /// The declared period.
        period: Option<Duration>,
    },
    /// Sets the age at which the messages of a publisher are late. No answer.
    Bound {
        /// The publisher.
        id: u64,
        /// The age.
        bound: Option<Duration>,
    },
    /// A message, as payload. No answer.
    Put {
        /// The publisher.
        id: u64,
    },
    /// Subscribes to a topic.
    Subscribe {
        /// The subscriber.
        id: u64,
        /// The topic.
        topic: String,
    },
    /// Gathers a topic.
    Gather {
        /// The gathering.
        id: u64,
        /// The topic.
        topic: String,
        /// The time between two lists.
        period: Duration,
        /// Whether all robots share a topic number.
        topics: Topics,
    },
    /// Asks for each robot's updates; they are the answer's payload.
    Updates {
        /// The question.
        id: u64,
        /// The gathering.
        of: u64,
    },
    /// Receives bulk.
    Receive {
        /// The receiver.
        id: u64,
        /// If given, only messages whose names begin with this, and nobody else receives those.
        prefix: Option<String>,
    },
    /// Requests a receiver's next message, which is the only answer.
    Next {
        /// The receiver.
        id: u64,
    },
    /// Asks for a receiver's next message, if there is one. It comes before the answer.
    Look {
        /// The question.
        id: u64,
        /// The receiver.
        of: u64,
    },
    /// Asks for a message's content, which is returned as a descriptor.
    Open {
        /// The question.
        id: u64,
        /// The message.
        message: u64,
    },
    /// Reports that a message was taken, and must not be delivered again.
    Taken {
        /// The question.
        id: u64,
        /// The message.
        message: u64,
    },
    /// Returns a message that was no longer wanted when it came. No answer.
    PutBack {
        /// The message.
        message: u64,
    },
    /// Asks which robot a bulk message would go to.
    Address {
        /// The question.
        id: u64,
        /// A robot's name, or `leader`.
        to: String,
        /// The message's name.
        name: String,
    },
    /// Sends a bulk message, whose content comes as a memfd. Its outcome follows after the answer.
    Send {
        /// The question.
        id: u64,
        /// The receiver.
        to: RobotId,
        /// The name.
        name: String,
        /// The length, bytes.
        length: u64,
        /// BLAKE3 of all bytes.
        hash: [u8; 32],
    },
    /// Asks for the robot's status, which is the answer's payload.
    Status {
        /// The question.
        id: u64,
    },
    /// Declares a wish for a permit.
    Wish {
        /// The wish.
        id: u64,
    },
    /// Ends a declaration. No answer.
    End {
        /// The declaration.
        id: u64,
    },
}

impl Frame for FromGuest {
    const KIND: u8 = 25;
    /// Names have up to 64 characters, and a prefix is the beginning of a name.
    const BYTES_MAX: usize = 1_024;
}

/// The agent's message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ToGuest {
    /// The guest has joined.
    Welcome {
        /// The time at which the robot's clock began, since the machine's start.
        began: Duration,
    },
    /// The guest may not join, for this reason.
    Refused(String),
    /// The answer to a declaration or a question.
    Answer {
        /// The number.
        id: u64,
        /// The outcome.
        outcome: Result<Answer, Failure>,
    },
    /// A control message, as payload.
    Control {
        /// The subscriber.
        id: u64,
        /// The robot that sent it.
        from: RobotId,
        /// The number in the topic.
        sequence: u64,
        /// The path that delivered it first.
        path: u16,
        /// The time at which it arrived, on the robot's clock.
        arrived_at: Instant,
        /// The time at which it was passed on, on the robot's clock.
        at: Instant,
        /// The age then, and the error bound.
        age: Option<(Duration, Duration)>,
    },
    /// One robot's state for the list that follows, as payload.
    State {
        /// The gathering.
        id: u64,
        /// The robot.
        from: RobotId,
        /// T1 on the robot's clock.
        created_at: Option<Instant>,
        /// The error bound.
        error: Duration,
        /// T2.
        received_at: Instant,
        /// Whether it is newer than the last list.
        fresh: bool,
    },
    /// Completes the list of the states sent before.
    Listed {
        /// The gathering.
        id: u64,
        /// T3.
        at: Instant,
    },
    /// A bulk message for a receiver.
    Bulk {
        /// The receiver.
        id: u64,
        /// The number.
        message: u64,
        /// The robot that sent it.
        from: RobotId,
        /// The name.
        name: String,
        /// The length, bytes.
        length: u64,
        /// The path of the agent's file, as bytes.
        path: Vec<u8>,
        /// Whether it answers [`FromGuest::Next`].
        wanted: bool,
    },
    /// The outcome of a bulk message that was sent.
    Delivered {
        /// The number of its question.
        id: u64,
        /// The outcome.
        outcome: Result<(), Failure>,
    },
}

impl Frame for ToGuest {
    const KIND: u8 = 26;
    /// Room for Linux's longest path, and a name.
    const BYTES_MAX: usize = 8_192;
}

/// The content of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// It was done.
    Done,
    /// The payload contains the answer.
    Payload,
    /// The descriptor is the answer.
    Descriptor,
    /// The robot that a bulk message goes to.
    To(RobotId),
}

/// The reason why an agent refused a guest's request: a variant of [`Error`], with its text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Failure {
    /// [`Error::UnknownRobot`].
    UnknownRobot(String),
    /// [`Error::BulkToItself`].
    BulkToItself(String),
    /// [`Error::Name`].
    Name(String),
    /// [`Error::Period`].
    Period(String),
    /// [`Error::TooManyTopics`].
    TooManyTopics(String),
    /// [`Error::Gathered`].
    Gathered(String),
    /// [`Error::NoKeys`].
    NoKeys,
    /// [`Error::QueueFull`].
    QueueFull(String),
    /// [`Error::Undelivered`].
    Undelivered(String),
    /// Any other.
    Other(String),
}

/// The longest text of a failure, bytes.
const TEXT_BYTES_MAX: usize = 2_048;

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let mut text = error.to_string();
        if text.len() > TEXT_BYTES_MAX {
            let end = (0..=TEXT_BYTES_MAX).rev().find(|at| text.is_char_boundary(*at));
            text.truncate(end.unwrap_or(0));
        }
        match error {
            Error::UnknownRobot(_) => Failure::UnknownRobot(text),
            Error::BulkToItself(_) => Failure::BulkToItself(text),
            Error::Name(_) => Failure::Name(text),
            Error::Period(_) => Failure::Period(text),
            Error::TooManyTopics(_) => Failure::TooManyTopics(text),
            Error::Gathered(_) => Failure::Gathered(text),
            Error::NoKeys => Failure::NoKeys,
            Error::QueueFull(_) => Failure::QueueFull(text),
            Error::Undelivered(_) => Failure::Undelivered(text),
            _ => Failure::Other(text),
        }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Error {
        match failure {
            Failure::UnknownRobot(text) => Error::UnknownRobot(text),
            Failure::BulkToItself(text) => Error::BulkToItself(text),
            Failure::Name(text) => Error::Name(text),
            Failure::Period(text) => Error::Period(text),
            Failure::TooManyTopics(text) => Error::TooManyTopics(text),
            Failure::Gathered(text) => Error::Gathered(text),
            Failure::NoKeys => Error::NoKeys,
            Failure::QueueFull(text) => Error::QueueFull(text),
            Failure::Undelivered(text) => Error::Undelivered(text),
            Failure::Other(text) => Error::Agent(text),
        }
    }
}
