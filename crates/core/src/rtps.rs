//! Reads the content of RTPS messages for [`crate::protect`]. All topics of two DDS participants share one pair of UDP
//! ports, so only the content distinguishes their packets (OMG DDSI-RTPS 2.5, section 9.4).
//!
//! [`read`] finds the writer of a message, and the length of the sample that it belongs to. DDS packs messages of
//! several writers into one datagram. [`Message::parts`] splits it again: each part has the header, the submessages
//! that set the receiver's state (INFO_TS, INFO_DST, …), and the submessages of one writer. It keeps the order of one
//! writer's submessages. [`Message::topics`] reads the names of topics from the endpoint discovery protocol.
//!
//! Discovery and readers' answers (ACKNACK) belong to no writer. They form a separate part without a writer.
//!
//! Left out: content that DDS-Security hides, vendors' submessages, and header extensions, which may cover the whole
//! message. A message with any of these stays whole, and has a writer only if there is just one. So does a message of
//! more than eight writers. It may overtake other messages of its writers. Also left out: RTPS over TCP.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Maximum number of writers in one message. With more, it stays whole.
const WRITERS_MAX: usize = 8;
/// Maximum number of submessages that are read.
const SUBMESSAGES_MAX: usize = 1_024;
/// The longest topic name that is read, with its terminating zero. DDS names have at most 255 characters.
const TOPIC_BYTES_MAX: usize = 256;
/// Maximum number of parameters that are read from one announcement.
const PARAMETERS_MAX: usize = 128;
const HEADER_BYTES: usize = 20;
const MAGIC: &[u8] = b"RTPS";

const PAD: u8 = 0x01;
const ACKNACK: u8 = 0x06;
const HEARTBEAT: u8 = 0x07;
const GAP: u8 = 0x08;
const INFO_TS: u8 = 0x09;
const INFO_SRC: u8 = 0x0c;
const INFO_REPLY_IP4: u8 = 0x0d;
const INFO_DST: u8 = 0x0e;
const INFO_REPLY: u8 = 0x0f;
const NACK_FRAG: u8 = 0x12;
const HEARTBEAT_FRAG: u8 = 0x13;
const DATA: u8 = 0x15;
const DATA_FRAG: u8 = 0x16;

/// The entity id of the writer that announces writers. The announcements of its secure counterpart are hidden.
const ANNOUNCES_WRITERS: [u8; 4] = [0x00, 0x00, 0x03, 0xc2];
const PID_TOPIC_NAME: u16 = 0x05;
const PID_ENDPOINT_GUID: u16 = 0x5a;
const PID_SENTINEL: u16 = 0x01;

/// A writer: the participant's prefix and the writer's entity id.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Guid(pub [u8; 16]);

impl Guid {
    fn new(prefix: &[u8], entity: &[u8]) -> Guid {
        let mut guid = [0; 16];
        guid[..12].copy_from_slice(prefix);
        guid[12..].copy_from_slice(entity);
        Guid(guid)
    }

    /// Returns whether a program created the writer, rather than the protocol itself.
    fn is_users(&self) -> bool {
        self.0[15] & 0xc0 != 0xc0
    }
}

/// Displays all of it as 32 hexadecimal digits; in the alternate form (`{:#}`), only the writer's entity id.
impl fmt::Display for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let from = if f.alternate() { 12 } else { 0 };
        self.0[from..].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Guid({self})")
    }
}

/// The content of a message or of a part of one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Content {
    /// The writer; `None` for discovery, readers' answers, or several writers.
    pub writer: Option<Guid>,
    /// The length in bytes of the sample that the message is part of; 0 for heartbeats and the like. `None` if the
    /// length is hidden.
    pub sample_bytes: Option<u32>,
}

/// The content of, for example, readers' answers.
const NOTHING: Content = Content {
    writer: None,
    sample_bytes: Some(0),
};

/// A parsed message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message<'m> {
    payload: &'m [u8],
    contents: Vec<Content>,
    /// Each submessage with the index of its content; without one, it sets the receiver's state.
    submessages: Vec<(Option<usize>, &'m [u8])>,
    /// Whether the message must stay whole, because part of it may cover all of it.
    whole: bool,
}

impl<'m> Message<'m> {
    /// Returns the content of the message, if it has one writer or none, or cannot be split.
    pub fn content(&self) -> Option<Content> {
        match self.contents.as_slice() {
            [] if self.whole => Some(Content::default()),
            [] => Some(NOTHING),
            [only] => Some(*only),
            several if self.whole => Some(Content {
                writer: None,
                sample_bytes: several.iter().filter_map(|content| content.sample_bytes).max(),
            }),
            _ => None,
        }
    }

    /// Returns the writers that the message announces by the endpoint discovery protocol (SEDP), with the names of
    /// their topics.
    pub fn topics(&self) -> impl Iterator<Item = (Guid, &'m str)> + '_ {
        self.submessages.iter().filter_map(|(place, bytes)| {
            // Announcements belong to no writer.
            let nobodys = place.is_some_and(|place| self.contents[place].writer.is_none());
            nobodys.then(|| announced(Submessage::of(bytes)))?
        })
    }

    /// Splits the message into one message for each writer, in the order in which they first appear.
    pub fn parts(&self) -> impl Iterator<Item = (Content, Vec<u8>)> + '_ {
        self.contents.iter().enumerate().map(|(at, content)| {
            let mut part = self.payload[..HEADER_BYTES].to_vec();
            let own = |place: &Option<usize>| place.is_none_or(|place| place == at);
            let last = self.submessages.iter().rposition(|(place, _)| *place == Some(at));
            let until = last.map_or(0, |last| last + 1);
            for (_, bytes) in self.submessages[..until].iter().filter(|(place, _)| own(place)) {
                part.extend_from_slice(bytes);
            }
            (*content, part)
        })
    }
}

/// Reads the payload of a UDP packet. Returns `None` if it is not RTPS, or ends before the id of its writer. A
/// truncated message, such as the first fragment of a datagram, is read as far as possible, and stays whole.
pub fn read(payload: &[u8]) -> Option<Message<'_>> {
    let mut message = Message {
        payload,
        contents: Vec::new(),
        submessages: Vec::new(),
        whole: false,
    };
    let mut prefix = payload.get(8..HEADER_BYTES).filter(|_| payload.starts_with(MAGIC))?;
    for submessage in Submessages::of(payload) {
        message.whole |= submessage.is_cut;
        let body = submessage.body();
        let content = match submessage.kind {
            INFO_TS | INFO_REPLY | INFO_REPLY_IP4 | INFO_DST => {
                message.submessages.push((None, submessage.bytes));
                continue;
            }
            INFO_SRC => {
                prefix = body.get(8..20)?;
                message.submessages.push((None, submessage.bytes));
                continue;
            }
            PAD => continue,
            ACKNACK | NACK_FRAG => NOTHING,
            HEARTBEAT | GAP | HEARTBEAT_FRAG => of_writer(prefix, body.get(4..8)?, 0),
            DATA => of_writer(prefix, body.get(8..12)?, body.len() as u32),
            DATA_FRAG => of_writer(prefix, body.get(8..12)?, submessage.long(28)?),
            _ => {
                message.whole = true;
                continue;
            }
        };
        let known = message.contents.iter().position(|known| known.writer == content.writer);
        let place = known.unwrap_or(message.contents.len());
        match message.contents.get_mut(place) {
            Some(known) => known.sample_bytes = known.sample_bytes.max(content.sample_bytes),
            None => message.contents.push(content),
        }
        message.submessages.push((Some(place), submessage.bytes));
        if message.contents.len() > WRITERS_MAX || message.submessages.len() > SUBMESSAGES_MAX {
            message.whole = true;
            break;
        }
    }
    Some(message)
}

fn of_writer(prefix: &[u8], entity: &[u8], sample_bytes: u32) -> Content {
    Content {
        writer: Some(Guid::new(prefix, entity)).filter(Guid::is_users),
        sample_bytes: Some(sample_bytes),
    }
}

/// Returns the writer that a submessage announces, with its topic.
fn announced(submessage: Submessage<'_>) -> Option<(Guid, &str)> {
    const INLINE_QOS: u8 = 0x02;
    const HAS_DATA: u8 = 0x04;
    let body = submessage.body();
    let announces = submessage.kind == DATA && body.get(8..12)? == ANNOUNCES_WRITERS;
    // Inline QoS is a list of parameters too, but no implementation sends announcements with it.
    if !announces || submessage.flags & (INLINE_QOS | HAS_DATA) != HAS_DATA {
        return None;
    }
    let data = body.get(4 + usize::from(submessage.short(2)?)..)?;
    let little = match data.get(..2)? {
        [0, 2] => false,
        [0, 3] => true,
        _ => return None,
    };
    let (mut at, mut guid, mut topic) = (4, None, None);
    for _ in 0..PARAMETERS_MAX {
        let number = short(data, at, little)?;
        let value = data.get(at + 4..)?.get(..usize::from(short(data, at + 2, little)?))?;
        at += 4 + value.len();
        match number {
            PID_SENTINEL => break,
            PID_ENDPOINT_GUID => guid = Some(Guid::new(value.get(..12)?, value.get(12..16)?)),
            PID_TOPIC_NAME => {
                let bytes = usize::try_from(long(value, 0, little)?).ok()?;
                let name = value.get(4..)?.get(..bytes)?.strip_suffix(&[0])?;
                topic = std::str::from_utf8(name)
                    .ok()
                    .filter(|name| name.len() < TOPIC_BYTES_MAX);
            }
            _ => {}
        }
    }
    Some((guid?, topic?))
}

/// A submessage: its kind, its flags, and all its bytes.
#[derive(Clone, Copy, Debug)]
struct Submessage<'m> {
    kind: u8,
    flags: u8,
    bytes: &'m [u8],
    /// Whether the submessage claims to be longer than it is.
    is_cut: bool,
}

impl<'m> Submessage<'m> {
    /// Parses bytes that are known to be a submessage.
    fn of(bytes: &'m [u8]) -> Self {
        Submessage {
            kind: bytes[0],
            flags: bytes[1],
            bytes,
            is_cut: false,
        }
    }

    fn body(&self) -> &'m [u8] {
        &self.bytes[4..]
    }

    fn is_little(&self) -> bool {
        self.flags & 1 != 0
    }

    fn short(&self, at: usize) -> Option<u16> {
        short(self.body(), at, self.is_little())
    }

    fn long(&self, at: usize) -> Option<u32> {
        long(self.body(), at, self.is_little())
    }
}

/// The submessages of a message. A rest that is too short for one is ignored.
struct Submessages<'m> {
    left: &'m [u8],
}

impl<'m> Submessages<'m> {
    /// Creates the iterator. The message must be at least as long as a header.
    fn of(payload: &'m [u8]) -> Self {
        Submessages {
            left: &payload[HEADER_BYTES..],
        }
    }
}

impl<'m> Iterator for Submessages<'m> {
    type Item = Submessage<'m>;

    fn next(&mut self) -> Option<Self::Item> {
        let (kind, flags) = (*self.left.first()?, *self.left.get(1)?);
        let length = usize::from(short(self.left, 2, flags & 1 != 0)?);
        // The last submessage may have length 0 for 'to the end', unless 0 is a valid length of its kind.
        let to_end = length == 0 && kind != PAD && kind != INFO_TS;
        let (is_cut, bytes) = match self.left.get(..4 + length) {
            Some(bytes) if !to_end => (false, bytes),
            cut => (cut.is_none(), self.left),
        };
        self.left = &self.left[bytes.len()..];
        Some(Submessage {
            is_cut,
            ..Submessage::of(bytes)
        })
    }
}

fn short(bytes: &[u8], at: usize, little: bool) -> Option<u16> {
    let word = bytes.get(at..at + 2)?.try_into().ok()?;
    Some(if little {
        u16::from_le_bytes(word)
    } else {
        u16::from_be_bytes(word)
    })
}

fn long(bytes: &[u8], at: usize, little: bool) -> Option<u32> {
    let word = bytes.get(at..at + 4)?.try_into().ok()?;
    Some(if little {
        u32::from_le_bytes(word)
    } else {
        u32::from_be_bytes(word)
    })
}

#[cfg(test)]
mod tests;
