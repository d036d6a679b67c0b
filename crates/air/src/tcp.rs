//! TCP as Linux implements it, sender and receiver: what to send, when to retransmit, and what to acknowledge.
//!
//! It counts segments of one MSS, numbered from 0; a segment may be short, and keeps its length when retransmitted. The
//! [`Sender`] has slow start with HyStart's delay check, CUBIC (RFC 9438), and SACK with RACK loss detection (RFC
//! 8985). It has proportional rate reduction (RFC 6937), and the retransmission timeout (RFC 6298 with Linux's floor of
//! 200 ms). It also has a fixed receive window, TCP small queues with mac80211's allowance (8 ms of the pacing rate),
//! and TCP_PAUSE from the draft of Deng 2022 (section V). A paused sender sends nothing and keeps its congestion state.
//! The [`Receiver`] delays acknowledgements and reports segments received out of order.
//!
//! Left out: the handshake and the close (a connection exists from the start and never ends), urgent data, ECN, and
//! Nagle (robots' middleware disables it). Also left out: pacing (CUBIC on Linux has none without the fq qdisc), the
//! tail loss probe, DSACK, and undoing a spurious reduction. Also left out: window scaling and growing receive buffers,
//! a reader that is slower than the network, and quick acknowledgements at a connection's start.

mod cubic;
mod receiver;
mod rtt;
mod scoreboard;
mod sender;

pub use receiver::Receiver;
pub use sender::Sender;

/// Size of a segment's IP and TCP headers, including the timestamp option, in bytes.
pub const HEADER_BYTES: u16 = 52;

/// Maximum number of segments in flight, however short they are and however large the window; bounds both ends' memory.
const SEGMENTS_MAX: u64 = 65_536;

/// The configuration of both ends of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Payload of a full segment in bytes; at least 1.
    pub mss: u16,
    /// Maximum number of bytes in flight to the receiver; at least one full segment.
    pub receive_window: u32,
    /// The receiver acknowledges every `ack_every` segments in order; at least 1. GRO makes it more than 2.
    pub ack_every: u32,
}

impl Default for Config {
    /// Returns an MTU of 1,500 bytes, a window of 3 MiB, and every second segment acknowledged.
    fn default() -> Self {
        Config {
            mss: 1448,
            receive_window: 3 << 20,
            ack_every: 2,
        }
    }
}

impl Config {
    /// Returns the configuration with all values clamped to their ranges.
    fn bounded(self) -> Self {
        let mss = self.mss.clamp(1, u16::MAX - HEADER_BYTES);
        Config {
            mss,
            receive_window: self.receive_window.max(u32::from(mss)),
            ack_every: self.ack_every.max(1),
        }
    }

    /// Returns the maximum number of segments in flight. Twice the number that fills the window, to leave room for
    /// short ones.
    fn segments_max(&self) -> u64 {
        (2 * u64::from(self.receive_window) / u64::from(self.mss)).clamp(64, SEGMENTS_MAX)
    }
}

/// One segment to hand to the host queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The zero-based number in the stream; a retransmission keeps it.
    pub number: u64,
    /// Payload in bytes; 1 to the MSS.
    pub bytes: u16,
    /// Whether this is a retransmission.
    pub retransmit: bool,
}

impl Segment {
    /// Returns the size in bytes of the IP packet that carries the segment.
    pub fn packet_bytes(&self) -> u16 {
        self.bytes + HEADER_BYTES
    }
}

/// Segments received out of order, from `start` up to but excluding `end`. An empty range is unused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SackRange {
    /// The first segment of the range.
    pub start: u64,
    /// The one after the last.
    pub end: u64,
}

/// The content of an acknowledgement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ack {
    /// Every segment below this one has arrived.
    pub next: u64,
    /// Segments received above `next`, the range with the newest segment first.
    pub sack: [SackRange; 3],
}

impl Ack {
    /// Returns the size in bytes of the IP packet that carries the acknowledgement.
    pub fn packet_bytes(&self) -> u16 {
        let ranges = self.sack.iter().filter(|range| range.start < range.end).count() as u16;
        HEADER_BYTES + if ranges == 0 { 0 } else { 4 + 8 * ranges }
    }
}

#[cfg(test)]
mod tests;
