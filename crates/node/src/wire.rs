//! Frames: the bytes of messages between robots. They are versioned and bounded, and no frame causes a panic.
//!
//! A frame is two letters, the version, the kind, and a postcard body of that kind, with nothing after it. Its reader
//! names the expected kind, and gets the value or a [`Refusal`]. A team runs one version only.
//!
//! The messages are `coorp-core`'s ([`robot::Message`], [`tracker::Message`]), in the form that their serde derives
//! define. A frame cannot make its reader allocate more than its own size: postcard reads no list longer than the
//! remaining bytes.
//!
//! On a stream, the length precedes each frame ([`prefixed`]). Left out: the sender, because links are authenticated:
//! the sender's certificate names it.

pub mod guest;

use coorp_core::paths::{Paths, Sequence};
use coorp_core::robot::{self, Stamp};
use coorp_core::tracker::{self, StateHeader, TopicId};
use coorp_core::Instant;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::status::Status;

/// The version of all frames.
pub const VERSION: u8 = 8;

const MAGIC: [u8; 2] = *b"Co";
const HEADER_BYTES: usize = 4;

/// Why a frame was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It is longer than its kind allows.
    Oversized,
    /// It has another version.
    Version(u8),
    /// It is not of the expected kind.
    Malformed,
}

/// A value with its own frame on the wire.
pub trait Frame: Serialize + DeserializeOwned {
    /// The unique number of the kind.
    const KIND: u8;
    /// The longest frame of this kind, bytes.
    const BYTES_MAX: usize;
}

/// Encodes a value. Returns no bytes if the value is longer than its kind allows, which none of our values is.
pub fn encode<F: Frame>(value: &F) -> Vec<u8> {
    let mut bytes = vec![MAGIC[0], MAGIC[1], VERSION, F::KIND];
    match postcard::to_extend(value, std::mem::take(&mut bytes)) {
        Ok(frame) if frame.len() <= F::BYTES_MAX => frame,
        _ => Vec::new(),
    }
}

/// Decodes a frame.
///
/// # Errors
/// If `encode` does not produce this frame from any `F`.
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
    /// The longest message has the models of [`robot::FLOWS_MAX`] flows.
    const BYTES_MAX: usize = 4_096;
}

/// A robot's announcement of itself: the first frame on each link, and again whenever it changes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The number of the sender's start.
    pub incarnation: u32,
    /// Increases with each change: the newest is valid, whichever path it takes.
    pub number: u64,
    /// The topics that it subscribes to, at most [`Hello::TOPICS_MAX`].
    pub subscribes: Vec<String>,
    /// The topics that it gathers, also at most [`Hello::TOPICS_MAX`], each with a number that is new for each
    /// gathering.
    pub gathers: Vec<(String, u32)>,
    /// Whether its agent unwraps control of unchanged programs.
    pub unwraps: bool,
}

impl Hello {
    /// The maximum number of topics in each of its lists.
    pub const TOPICS_MAX: usize = 1_024;
}

impl Frame for Hello {
    const KIND: u8 = 21;
    /// Names have up to 64 characters of up to four bytes.
    const BYTES_MAX: usize = 600_000;
}

/// A message between a robot that gathers a topic and one that publishes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gathering {
    /// The topic.
    pub topic: String,
    /// The message.
    pub message: tracker::Message,
}

impl Frame for Gathering {
    const KIND: u8 = 20;
    const BYTES_MAX: usize = 384;
}

/// The operator's query for a robot's status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusQuery;

impl Frame for StatusQuery {
    const KIND: u8 = 23;
    const BYTES_MAX: usize = HEADER_BYTES;
}

/// The operator asks what a robot has done and noticed since the last look, and perhaps for its status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LookQuery {
    /// [`robot::Look::cursor`] of the last look.
    pub since: Option<robot::Cursor>,
    /// Whether to answer with the status too.
    pub status: bool,
}

impl Frame for LookQuery {
    const KIND: u8 = 27;
    const BYTES_MAX: usize = HEADER_BYTES + 22;
}

/// The answer to a [`LookQuery`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Looked {
    /// What the robot has seen.
    pub look: robot::Look,
    /// Its status, if that was asked for.
    pub status: Option<Box<Status>>,
}

impl Frame for Looked {
    const KIND: u8 = 28;
    /// An event takes up to 24 bytes.
    const BYTES_MAX: usize = Status::BYTES_MAX + 64 + 24 * robot::LOOK_MAX;
}

/// The newest list of revoked certificates that its sender has: an X.509 CRL, which the team's authority has signed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revocations {
    /// The list, as DER.
    pub list: Vec<u8>,
}

impl Revocations {
    /// The longest list, bytes: some 1,600 certificates.
    pub const LIST_BYTES_MAX: usize = 64 << 10;
}

impl Frame for Revocations {
    const KIND: u8 = 24;
    const BYTES_MAX: usize = HEADER_BYTES + 3 + Revocations::LIST_BYTES_MAX;
}

/// The longest frame between robots on a stream, bytes.
pub const STREAM_FRAME_BYTES_MAX: usize = Hello::BYTES_MAX;
/// The bytes before each frame on a stream: its length in little-endian order.
pub const PREFIX_BYTES: usize = 4;

/// Encodes a value for a stream: its frame, after the frame's length.
pub fn prefixed<F: Frame>(value: &F) -> Vec<u8> {
    let frame = encode(value);
    let length = u32::try_from(frame.len()).unwrap_or(0);
    [length.to_le_bytes().as_slice(), &frame].concat()
}

/// Returns the kind of a frame; `None` if it is too short to have one.
pub fn kind(frame: &[u8]) -> Option<u8> {
    frame.get(HEADER_BYTES - 1).copied()
}

/// The header of a control message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControlHeader {
    /// The number of the sender's start; a later start restarts the count.
    pub incarnation: u32,
    /// Zero-based sequence number within the topic.
    pub sequence: u64,
    /// The stamp of the sender's robot for the receiver's.
    pub stamp: Stamp,
    /// The time at which it was made, on the sender's clock.
    pub made_at: Instant,
    /// With a choice of paths: the number of this copy on its path to this receiver.
    pub copy: Option<u32>,
}

/// The header of a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// The receiver's number of the topic for this sender.
    pub topic: TopicId,
    /// The state's number, and the time at which it was made.
    pub header: StateHeader,
    /// With a choice of paths: the number of this copy on its path.
    pub copy: Option<u32>,
}

/// The header of a packet of an unchanged program (`protect`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WrapHeader {
    /// The flow's number with its sender.
    pub flow: u32,
    /// The number within the flow.
    pub sequence: Sequence,
    /// The paths that may carry this packet, or earlier ones.
    pub over: Paths,
    /// The number of this copy on its path to this receiver.
    pub copy: Option<u32>,
}

impl WrapHeader {
    /// The maximum length of what [`pack`] produces from one, bytes.
    pub const PACKED_BYTES_MAX: usize = 32;
}

/// The head of a message on a link, which precedes its content: see `links`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Parcel {
    /// A control message.
    Control {
        /// The topic.
        topic: String,
        /// The header.
        header: ControlHeader,
        /// Other messages of its sender's robot ([`robot::RIDERS_MAX`] at most).
        riders: Vec<robot::Message>,
    },
    /// A state for a robot that gathers it.
    State {
        /// The topic.
        topic: String,
        /// The header.
        header: State,
    },
    /// A message between robots. No content.
    Robot(robot::Message),
    /// A packet of an unchanged program.
    Wrapped(WrapHeader),
}

impl Frame for Parcel {
    const KIND: u8 = 12;
    const BYTES_MAX: usize = 512;
}

/// The longest head of a message on a link, bytes.
pub const PARCEL_BYTES_MAX: usize = Parcel::BYTES_MAX + LENGTH_BYTES;
const LENGTH_BYTES: usize = 2;

/// Encodes the head of a message on a link: a frame, after its length in little-endian order.
pub fn pack(parcel: &Parcel) -> Vec<u8> {
    let frame = encode(parcel);
    let length = u16::try_from(frame.len()).unwrap_or(0);
    [length.to_le_bytes().as_slice(), &frame].concat()
}

/// Decodes the head of a message on a link, and returns where its content begins.
///
/// # Errors
/// If [`pack`] does not produce this.
pub fn unpack(message: &[u8]) -> Result<(Parcel, usize), Refusal> {
    let (length, rest) = message.split_first_chunk::<LENGTH_BYTES>().ok_or(Refusal::Malformed)?;
    let length = usize::from(u16::from_le_bytes(*length));
    let frame = rest.get(..length).ok_or(Refusal::Malformed)?;
    Ok((decode(frame)?, LENGTH_BYTES + length))
}

/// The offer of a bulk message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Begin {
    /// Distinguishes the starts of senders.
    pub lineage: u64,
    /// Zero-based sequence number of this message from this sender to this receiver.
    pub sequence: u64,
    /// The sender's name for it.
    pub name: String,
    /// The message's length, bytes.
    pub length: u64,
    /// BLAKE3 of all bytes.
    pub hash: [u8; 32],
}

impl Frame for Begin {
    const KIND: u8 = 7;
    const BYTES_MAX: usize = 384;
}

/// A receiver's answer about a bulk message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// The receiver takes it. A list of the segments that it may already have follows ([`listed`]).
    Here {
        /// The number of the receiver's record ([`coorp_core::spread`]).
        record: u64,
        /// The number of segments in the list.
        listed: u32,
    },
    /// These segments have arrived.
    There {
        /// The first segment.
        first: u32,
        /// The number of segments.
        count: u32,
    },
    /// It is complete, on disk, and will be delivered once.
    Whole,
    /// The bytes do not have the announced hash.
    Garbled,
    /// Too many messages wait to be taken; the sender may retry later.
    Full,
    /// It cannot be written to disk.
    Disk,
    /// It does not fit on the disk, of which a reserve stays free; the sender may retry later.
    NoRoom {
        /// The number of bytes that are still missing.
        missing: u64,
        /// The number of bytes that the disk would take now.
        usable: u64,
        /// The number of bytes that the disk would take if it were empty.
        most: u64,
    },
}

impl Frame for Answer {
    const KIND: u8 = 8;
    const BYTES_MAX: usize = 64;
}

/// A sender's answer to the list of segments: a bit for each follows, the first in the lowest bit of the first byte.
/// The bit is set if the segment is the message's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Start {
    /// The number of segments in the list.
    pub listed: u32,
}

impl Frame for Start {
    const KIND: u8 = 9;
    const BYTES_MAX: usize = 16;
}

/// Consecutive segments of a bulk message, at most [`RUN_MAX`](coorp_core::spread::RUN_MAX). Their bytes follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Segments {
    /// The first segment.
    pub first: u32,
    /// The number of segments.
    pub count: u32,
}

impl Frame for Segments {
    const KIND: u8 = 29;
    const BYTES_MAX: usize = 16;
}

/// The length of an entry in the list of segments that a receiver may have.
pub const LISTED_BYTES: usize = 36;

/// Encodes the entry of a segment, with its hash in BLAKE3's tree of the message.
pub fn listed(segment: u32, hash: [u8; 32]) -> [u8; LISTED_BYTES] {
    let mut entry = [0; LISTED_BYTES];
    entry[..4].copy_from_slice(&segment.to_le_bytes());
    entry[4..].copy_from_slice(&hash);
    entry
}

/// Decodes the entry of a segment.
pub fn unlisted(entry: [u8; LISTED_BYTES]) -> (u32, [u8; 32]) {
    let [a, b, c, d, hash @ ..] = entry;
    (u32::from_le_bytes([a, b, c, d]), hash)
}

#[cfg(test)]
mod tests;
