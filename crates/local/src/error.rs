//! Errors: programs match the variant, and people read the text, which says what to do if that is known.

use std::time::Duration;
use std::{fmt, io};

use crate::layout::{HEADER_BYTES_MAX, PARTS_MAX};

/// The reason why a payload, a channel or a domain was not available.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// A domain or a channel cannot have this name.
    Name {
        /// The name.
        name: String,
        /// The problem with it.
        problem: &'static str,
    },
    /// An option is out of its limits.
    Setting {
        /// The option's name.
        setting: &'static str,
        /// The value.
        value: u64,
        /// The smallest and the largest value allowed.
        allowed: (u64, u64),
    },
    /// A payload has too many parts.
    TooManyParts(usize),
    /// A payload's header is too long.
    HeaderTooLong(usize),
    /// A payload would not fit into its sender's store even if the store were empty.
    TooLarge {
        /// The bytes of the payload, with its header and table.
        bytes: usize,
        /// The bytes of the store.
        store_bytes: usize,
    },
    /// The policy is to fail, or to drop the oldest, but readers hold everything.
    Full {
        /// The channel.
        channel: String,
        /// The shortage.
        shortage: Shortage,
    },
    /// The policy is to block, but the deadline passed first.
    Deadline {
        /// The channel.
        channel: String,
        /// The time waited.
        waited: Duration,
        /// The shortage at the end.
        shortage: Shortage,
    },
    /// The kernel has no memory for the payload.
    Memory {
        /// The number of bytes requested.
        bytes: usize,
        /// The kernel's error.
        source: io::Error,
    },
    /// The domain is in use by another version of this library.
    OtherVersion {
        /// The version of the process that was reached.
        theirs: u16,
        /// The version of this process.
        ours: u16,
    },
    /// The domain's name is in use by another user.
    Foreign {
        /// The user.
        uid: u32,
        /// The process.
        pid: i32,
    },
    /// The other processes of the domain could not be reached in time.
    Unreachable {
        /// The time spent trying.
        waited: Duration,
        /// The obstacle.
        problem: String,
    },
    /// The domain has no room for another of these.
    TooMany {
        /// The kind of thing.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
    /// A peer wrote something that this version never writes. The connection to it was closed; others are not affected.
    Corrupt {
        /// The channel.
        channel: String,
        /// The peer's process.
        pid: u32,
        /// The problem.
        problem: &'static str,
    },
    /// The process was forked after joining: the connections belong to its parent.
    Forked,
    /// The system refused.
    System {
        /// The attempted operation.
        what: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
}

/// The resource that is short.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Shortage {
    /// Memory in the sender's store: readers hold, or have not yet received, earlier payloads.
    Store {
        /// Bytes needed.
        bytes: usize,
        /// Bytes in use.
        used: usize,
    },
    /// Room in the queue of a reader that does not receive.
    Queue {
        /// The reader's process.
        pid: u32,
    },
    /// A reader holds as many payloads as it may.
    Held {
        /// The reader's process.
        pid: u32,
    },
}

impl Error {
    pub(crate) fn unless_within(setting: &'static str, value: u64, allowed: (u64, u64)) -> Result<(), Self> {
        let (least, most) = allowed;
        if (least..=most).contains(&value) {
            Ok(())
        } else {
            Err(Self::Setting {
                setting,
                value,
                allowed,
            })
        }
    }

    /// Returns the same error, with a name for the channel that users know.
    #[must_use]
    pub fn on_channel(mut self, name: &str) -> Self {
        if let Self::Full { channel, .. } | Self::Deadline { channel, .. } | Self::Corrupt { channel, .. } = &mut self {
            name.clone_into(channel);
        }
        self
    }

    pub(crate) fn memory(bytes: usize, source: io::Error) -> Self {
        Self::Memory { bytes, source }
    }

    pub(crate) fn system(what: &'static str) -> impl FnOnce(rustix::io::Errno) -> Self {
        move |error| Self::System {
            what,
            source: error.into(),
        }
    }
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Store { bytes, used } => {
                write!(
                    f,
                    "the store has no room for {bytes} bytes ({used} in use); drop payloads sooner or enlarge the store"
                )
            }
            Self::Queue { pid } => write!(f, "the queue of process {pid} is full; receive faster or lengthen it"),
            Self::Held { pid } => write!(f, "process {pid} holds as many payloads as it may; drop some there"),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name { name, problem } => write!(f, "the name {name:?} {problem}"),
            Self::Setting {
                setting,
                value,
                allowed: (least, most),
            } => {
                write!(f, "{setting} is {value}; choose a value from {least} to {most}")
            }
            Self::TooManyParts(parts) => write!(f, "a payload of {parts} parts; join some ({PARTS_MAX} are allowed)"),
            Self::HeaderTooLong(bytes) => {
                write!(
                    f,
                    "a header of {bytes} bytes; put the bytes beyond {HEADER_BYTES_MAX} into a part"
                )
            }
            Self::TooLarge { bytes, store_bytes } => {
                write!(
                    f,
                    "a payload of {bytes} bytes never fits into a store of {store_bytes}; enlarge `store_bytes`"
                )
            }
            Self::Full { channel, shortage } => write!(f, "channel {channel}: {shortage}"),
            Self::Deadline {
                channel,
                waited,
                shortage,
            } => {
                write!(f, "channel {channel}: waited {waited:?}, and still {shortage}")
            }
            Self::Memory { bytes, source } => {
                write!(
                    f,
                    "no memory for {bytes} bytes of payload: {source}; free some or lower `store_bytes`"
                )
            }
            Self::OtherVersion { theirs, ours } => {
                write!(
                    f,
                    "the domain runs version {theirs} of coorp-local's protocol, but this process runs {ours}; install one"
                )
            }
            Self::Foreign { uid, pid } => {
                write!(
                    f,
                    "process {pid} of user {uid} uses the domain's name; choose another name"
                )
            }
            Self::Unreachable { waited, problem } => {
                write!(f, "the domain was not reached within {waited:?}: {problem}")
            }
            Self::TooMany { what, limit } => write!(f, "the domain is full: {limit} {what} are allowed"),
            Self::Corrupt { channel, pid, problem } => {
                write!(
                    f,
                    "channel {channel}: process {pid} broke the protocol ({problem}); restart it"
                )
            }
            Self::Forked => write!(
                f,
                "this process was forked after it joined the domain; join after the fork"
            ),
            Self::System { what, source } => write!(f, "cannot {what}: {source}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Memory { source, .. } | Self::System { source, .. } => Some(source),
            _ => None,
        }
    }
}
