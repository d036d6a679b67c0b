//! Frames: what robots say to each other, in bytes. Versioned, bounded, and never a reason to panic.
//!
//! A frame is two letters, the version, the kind, and a postcard body of that kind and nothing behind it. Whoever reads
//! a frame names the kind that it expects, and gets the value or a [`Refusal`]. Versions are not mixed: a team runs one.
//!
//! What is said is `coorp-core`'s ([`robot::Message`], [`tracker::Message`]) and goes in the form that serde gives it there.
//! Bytes cannot make a reader allocate more than they are: postcard reads no list that is longer than what is left.
//!
//! Left out: who sent it. Links are authenticated: over the fabric its keys name the sender, over others its certificate.

use coorp_core::robot::{self, Stamp};
use coorp_core::tracker::{self, StateHeader, TopicId};
use coorp_core::Instant;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The version of all frames.
pub const VERSION: u8 = 3;

const MAGIC: [u8; 2] = *b"Co";
const HEADER_BYTES: usize = 4;

/// Why a frame was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It is longer than anything of its kind.
    Oversized,
    /// It is of another version.
    Version(u8),
    /// It is no frame of the expected kind.
    Malformed,
}

/// A value that goes over the wire as a frame of its own.
pub trait Frame: Serialize + DeserializeOwned {
    /// Tells the kinds apart; unique.
    const KIND: u8;
    /// The longest frame of this kind, bytes.
    const BYTES_MAX: usize;
}

/// The frame of a value. Empty where the value is longer than its kind allows, which no value of ours is.
pub fn encode<F: Frame>(value: &F) -> Vec<u8> {
    let mut bytes = vec![MAGIC[0], MAGIC[1], VERSION, F::KIND];
    match postcard::to_extend(value, std::mem::take(&mut bytes)) {
        Ok(frame) if frame.len() <= F::BYTES_MAX => frame,
        _ => Vec::new(),
    }
}

/// The value of a frame.
///
/// # Errors
/// For every frame that `encode` does not make of an `F`.
pub fn decode<F: Frame>(frame: &[u8]) -> Result<F, Refusal> {
    if frame.len() > F::BYTES_MAX {
        return Err(Refusal::Oversized);
    }
    let (header, body) = frame.split_at_checked(HEADER_BYTES).ok_or(Refusal::Malformed)?;
    match header {
        [m0, m1, VERSION, kind] if [*m0, *m1] == MAGIC && *kind == F::KIND => {}
        [m0, m1, version, _] if [*m0, *m1] == MAGIC && *version != VERSION => return Err(Refusal::Version(*version)),
        _ => return Err(Refusal::Malformed),
    }
    match postcard::take_from_bytes(body) {
        Ok((value, [])) => Ok(value),
        _ => Err(Refusal::Malformed),
    }
}

impl Frame for robot::Message {
    const KIND: u8 = 1;
    /// The models of [`robot::FLOWS_MAX`] flows are the longest.
    const BYTES_MAX: usize = 4_096;
}

impl Frame for tracker::Message {
    const KIND: u8 = 20;
    const BYTES_MAX: usize = 64;
}

/// What a control message carries beside its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControlHeader {
    /// When its sender started; a later one starts its count anew.
    pub incarnation: u32,
    /// Zero-based sequence number within the topic.
    pub sequence: u64,
    /// What its sender's robot tells with it.
    pub stamp: Stamp,
    /// When it was made, on the sender's clock.
    pub made_at: Instant,
    /// Where there is a choice of paths: the number of this copy on its path to this receiver.
    pub copy: Option<u32>,
}

/// What a state carries beside its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// What its receiver calls the topic for this sender.
    pub topic: TopicId,
    /// Which state it is, and when it was made.
    pub header: StateHeader,
    /// The number of this copy on its path, where there is a choice of paths.
    pub copy: Option<u32>,
}

/// What goes over a link ahead of a message's content: see `links`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Parcel {
    /// A control message.
    Control {
        /// Its topic.
        topic: String,
        /// All else about it.
        header: ControlHeader,
        /// What its sender's robot says besides ([`robot::RIDERS_MAX`] at most).
        riders: Vec<robot::Message>,
    },
    /// A state for the robot that gathers it.
    State {
        /// Its topic.
        topic: String,
        /// All else about it.
        header: State,
    },
    /// What the sender subscribes to: the content is topics, one a line. Said when a link is new, by both ends.
    Subscriptions,
    /// Something that robots say to each other over links. No content.
    Robot(robot::Message),
}

/// The longest content of a [`Parcel::Subscriptions`], bytes: it fits into a datagram.
pub const SUBSCRIPTIONS_BYTES_MAX: usize = 1_000;

impl Frame for Parcel {
    const KIND: u8 = 12;
    const BYTES_MAX: usize = 512;
}

/// The longest head of a message on a link, bytes.
pub const PARCEL_BYTES_MAX: usize = Parcel::BYTES_MAX + LENGTH_BYTES;
const LENGTH_BYTES: usize = 2;

/// What stands ahead of a message's content on a link: a frame, and its length before it, little end first.
pub fn pack(parcel: &Parcel) -> Vec<u8> {
    let frame = encode(parcel);
    let length = u16::try_from(frame.len()).unwrap_or(0);
    [length.to_le_bytes().as_slice(), &frame].concat()
}

/// What a message on a link is, and where its content begins.
///
/// # Errors
/// For all that [`pack`] does not make.
pub fn unpack(message: &[u8]) -> Result<(Parcel, usize), Refusal> {
    let (length, rest) = message.split_first_chunk::<LENGTH_BYTES>().ok_or(Refusal::Malformed)?;
    let length = usize::from(u16::from_le_bytes(*length));
    let frame = rest.get(..length).ok_or(Refusal::Malformed)?;
    Ok((decode(frame)?, LENGTH_BYTES + length))
}

/// A sender offers a bulk message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Begin {
    /// Tells the starts of senders apart.
    pub lineage: u64,
    /// The how manieth message of this sender to this receiver.
    pub sequence: u64,
    /// What the sender calls it.
    pub name: String,
    /// Bytes.
    pub length: u64,
    /// BLAKE3 of all bytes.
    pub hash: [u8; 32],
}

impl Frame for Begin {
    const KIND: u8 = 7;
    const BYTES_MAX: usize = 384;
}

/// A receiver's word on a bulk message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// So much of it is here already.
    Here {
        /// Bytes.
        length: u64,
        /// BLAKE3 of these.
        hash: [u8; 32],
    },
    /// It is whole, on disk, and will be handed out once.
    Whole,
    /// What came does not have the hash that was announced.
    Garbled,
    /// Too many messages wait to be taken; later, perhaps.
    Full,
    /// It cannot be written down.
    Disk,
}

impl Frame for Answer {
    const KIND: u8 = 8;
    const BYTES_MAX: usize = 64;
}

/// From where on a sender sends: what is here, or nothing of it where it is not the message's beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Start {
    /// Bytes that the receiver keeps.
    pub offset: u64,
}

impl Frame for Start {
    const KIND: u8 = 9;
    const BYTES_MAX: usize = 16;
}

#[cfg(test)]
mod tests;
