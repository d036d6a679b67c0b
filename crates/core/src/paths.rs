//! Decides which paths carry a control message, and which of its copies is delivered: DupCon (Lee, sections III and
//! IV).
//!
//! [`Sender`] is the duplicator and the assignor towards one peer, [`Listener`] the peer's answer to probes, and
//! [`Deduplicator`] the receiver's choice for one flow. [`Merge`] is the same for packets that have to keep their
//! order. The classifier is left to the caller, as Lee III-C allows: the sender says whether a message is control.
//!
//! **Assignor.** The original goes over the best path, the duplicate over the best one on another interface. Lee takes
//! the shortest smoothed round trip. Here the expected delay including losses counts, eq. 10: d / (1 - q). A path that
//! is only a little better than the one in use does not displace it. What is not control goes over the best path, once;
//! [`crate::spread`] decides about bulk.
//!
//! **Duplicator.** [`Duplicate::Always`] sends two copies, [`Duplicate::Never`] one. [`Duplicate::Adaptive`] adds copies
//! until the product of their failure rates (eq. 11 and 12, as if paths failed independently) is small enough. Eq. 16
//! bounds the product by 1 - d / target, so that the mean delay stays below the target. Eq. 17 is the same, solved for
//! a number of equal paths. With a long target, this bound alone would let nearly every second message fail. Lee
//! retransmits within a round trip, but here a control message is only followed by the next. So the share of failures
//! is bounded as well. A copy that arrives later than the target has failed, so a slow path requires a duplicate as a
//! lossy one does.
//!
//! **Health of a path.** All copies on a path, including probes, carry consecutive numbers. The peer echoes each probe
//! with the newest number, and with which of the 64 before it arrived. If there are more copies between two probes, the
//! rest are not judged: 64 are a fair sample, and more probes would cost air. After some silence a path counts as dead,
//! and after some consecutive answers as alive again. Paths to a peer are not probed while nothing is sent to it. Their
//! figures are old when they are used again, so at first they count as unknown.
//!
//! **De-duplication.** The first copy is delivered. A sequence number carries its sender's incarnation; numbers wrap. A
//! window remembers which numbers arrived. A copy from before the window is dropped, because its message may already
//! have been delivered.
//!
//! Left out: forward error correction, splitting a flow over paths by share, and one-way delays (they need common
//! clocks; half a round trip is used instead). Also left out: queues within the sender (eq. 2 to 6 model TCP's queues,
//! which control does not have).

mod merge;
pub mod plan;
mod receiver;
mod sender;

pub use merge::{Merge, Outflow, PacketCopy, Paths, WAIT_MAX};
pub use receiver::{Deduplicator, Delivery, Listener, Verdict};
pub use sender::{Class, Health, PathAction, PathCopy, Sender};

use crate::{Duration, Instant};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Maximum number of paths to one peer.
pub const PATHS_MAX: usize = 8;

/// One path to a peer: its index in the list that the sender was created with. Both ends use the same list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PathId(pub u8);

/// An interface of the sender. A duplicate does not share one with its original.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct InterfaceId(pub u8);

/// When control goes out more than once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Duplicate {
    /// Each message twice, as in Lee.
    Always,
    /// Each message once.
    Never,
    /// As often as losses and delays require.
    Adaptive,
}

/// The settings of a sender.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PathConfig {
    /// When to duplicate.
    pub duplicate: Duplicate,
    /// The time after which a control message is late (d^target of eq. 15).
    pub target: Duration,
    /// The share of control messages that may be lost or late before another copy is sent.
    pub failures_max: f64,
    /// How often each path is probed.
    pub probe: Duration,
    /// A path is dead after this many unanswered probes in a row.
    pub misses_max: u32,
    /// A dead path is alive again after this many answered probes in a row.
    pub answers_min: u32,
    /// If nothing has been sent to the peer for this long, its paths are not probed until something is sent.
    pub rest_after: Duration,
}

impl Default for PathConfig {
    /// Returns the values for loops of 33 ms.
    fn default() -> Self {
        PathConfig {
            duplicate: Duplicate::Adaptive,
            target: Duration::from_millis(33),
            failures_max: 0.01,
            probe: Duration::from_millis(100),
            misses_max: 3,
            answers_min: 2,
            rest_after: Duration::from_secs(3),
        }
    }
}

/// Invalid values for paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PathError {
    /// There is no path to a peer, or more than [`PATHS_MAX`].
    Count,
    /// `failures_max` is not between 0 and 1.
    FailuresMax,
}

impl fmt::Display for PathError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PathError::Count => "paths: a peer has between one and eight paths",
            PathError::FailuresMax => "paths: failures_max is a share, above 0 and below 1",
        })
    }
}

impl std::error::Error for PathError {}

/// The number of a message within its flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Sequence {
    /// The sender's start ([`starts`](crate::starts)).
    pub incarnation: u32,
    /// The number of the message; wraps.
    pub number: u32,
}

impl Sequence {
    /// Returns the first number of a flow whose sender starts with `incarnation`.
    pub fn first(incarnation: u32) -> Self {
        Sequence { incarnation, number: 0 }
    }

    /// Returns the number after this one.
    pub fn next(self) -> Self {
        let number = self.number.wrapping_add(1);
        Sequence { number, ..self }
    }
}

/// Asks the peer over `path` whether it is reachable. Answer with [`Listener::on_probe`] over the same path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Probe {
    /// The path that is probed.
    pub path: PathId,
    /// The sender's start.
    pub incarnation: u32,
    /// The probe's number on its path.
    pub number: u32,
    /// When it was sent, on the sender's clock; only the sender reads it again.
    pub sent_at: Instant,
}

/// The peer's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Echo {
    /// The probe being answered.
    pub probe: Probe,
    /// The newest number that arrived over the path.
    pub newest: u32,
    /// Bit i says whether the number `newest - 1 - i` arrived too.
    pub seen: u64,
}

/// Returns how far `number` is ahead of `other`, modulo wrapping; negative if it is behind.
fn ahead(number: u32, other: u32) -> i32 {
    number.wrapping_sub(other) as i32
}

#[cfg(test)]
mod tests;
