//! Values: an object for readers in this process, bytes or a reference for readers elsewhere.

use crate::Payload;
use coorp_core::logical::{ElementId, Value};
use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::sync::Arc;

/// The largest value that travels in a message. Larger ones go into the object store (Kwok, section IV-C1).
pub const INLINE_BYTES_MAX: usize = 64 * 1024;

/// Bytes that serde copies at once: it would treat a `Vec<u8>` as a list with an item per byte.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Whole(pub Vec<u8>);

impl Serialize for Whole {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for Whole {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Bytes;

        impl Visitor<'_> for Bytes {
            type Value = Whole;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("bytes")
            }

            fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Whole, E> {
                Ok(Whole(bytes.to_vec()))
            }
        }

        deserializer.deserialize_bytes(Bytes)
    }
}

/// The form in which a value travels.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Wire {
    Inline {
        header: Whole,
        parts: Vec<Whole>,
    },
    /// A payload with this number, in the channel of this output.
    Payload {
        output: ElementId,
        number: u64,
    },
}

/// A value of the scheduler.
#[derive(Clone, Debug)]
pub(super) enum Carried<T> {
    /// For readers in this federate only.
    Here(T),
    /// For readers in this federate and in others.
    Both(T, Arc<Wire>),
    /// On its way to another federate.
    Away(Arc<Wire>),
    /// From another federate.
    From(Received),
}

impl<T: Clone> Value for Carried<T> {
    fn to_send(&self) -> Self {
        match self {
            Carried::Both(_, wire) => Carried::Away(Arc::clone(wire)),
            other => other.clone(),
        }
    }
}

impl<T> Serialize for Carried<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Carried::Away(wire) | Carried::Both(_, wire) => wire.serialize(serializer),
            Carried::Here(_) | Carried::From(_) => {
                Err(serde::ser::Error::custom("an object of this process cannot leave it"))
            }
        }
    }
}

impl<'de, T> Deserialize<'de> for Carried<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Carried::Away(Arc::new(Wire::deserialize(deserializer)?)))
    }
}

/// A value from another federate: a header and parts.
#[derive(Clone, Debug)]
pub struct Received(pub(super) Kept);

#[derive(Clone, Debug)]
pub(super) enum Kept {
    Inline(Arc<Wire>),
    Payload(Arc<Payload>),
}

impl Received {
    /// Returns the header, without the runtime's bytes.
    pub fn header(&self) -> &[u8] {
        match &self.0 {
            Kept::Inline(wire) => match &**wire {
                Wire::Inline { header, .. } => &header.0,
                Wire::Payload { .. } => &[],
            },
            Kept::Payload(payload) => payload.header().get(super::HEADER_RESERVED..).unwrap_or_default(),
        }
    }

    /// Returns the number of parts.
    pub fn parts(&self) -> usize {
        match &self.0 {
            Kept::Inline(wire) => match &**wire {
                Wire::Inline { parts, .. } => parts.len(),
                Wire::Payload { .. } => 0,
            },
            Kept::Payload(payload) => payload.len(),
        }
    }

    /// Returns a part; `None` beyond the last one.
    pub fn part(&self, index: usize) -> Option<&[u8]> {
        match &self.0 {
            Kept::Inline(wire) => match &**wire {
                Wire::Inline { parts, .. } => parts.get(index).map(|part| part.0.as_slice()),
                Wire::Payload { .. } => None,
            },
            Kept::Payload(payload) => payload.part(index),
        }
    }

    /// Returns the shared memory of the value, if it came that way.
    pub fn payload(&self) -> Option<&Arc<Payload>> {
        match &self.0 {
            Kept::Inline(_) => None,
            Kept::Payload(payload) => Some(payload),
        }
    }
}
