//! TCP as a Linux sender and receiver run it: what to send, when to send it again, and what to acknowledge.
//!
//! It counts in segments of one MSS, numbered from 0; one may be short, and keeps its length when it is sent again.
//! The [`Sender`] has slow start with HyStart's look at the delay, CUBIC (RFC 9438), SACK with RACK loss detection (RFC 8985), proportional rate
//! reduction (RFC 6937), the retransmission timeout (RFC 6298 with Linux's floor of 200 ms), a fixed receive window,
//! TCP small queues with the allowance that mac80211 sets (8 ms of the pacing rate), and TCP_PAUSE of paper 000,
//! section V: a paused sender sends nothing and keeps its congestion state. The [`Receiver`] delays acknowledgements and
//! reports what came out of order.
//!
//! Left out: the handshake and the close (a connection is up from the start and never ends), urgent data, ECN, Nagle
//! (robots' middleware turns it off), pacing (CUBIC on Linux has none without the fq qdisc), the tail loss
//! probe, DSACK, taking a reduction back that proves spurious, window scaling and receive buffers that grow, a reader
//! that is slower than the network, quick acknowledgements at a connection's start.

mod cubic;
mod receiver;
mod rtt;
mod scoreboard;
mod sender;

pub use receiver::Receiver;
pub use sender::Sender;

/// IP and TCP headers of a segment, the timestamp option included, in bytes: what a packet is longer than its payload.
pub const HEADER_BYTES: u16 = 52;

/// Most segments on their way, however short they are and however large the window: what both ends' memory is.
const SEGMENTS_MAX: u64 = 65_536;

/// How both ends of a connection are set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Payload of a full segment, in bytes; at least 1.
    pub mss: u16,
    /// What may be on its way to the receiver, in bytes; at least one full segment.
    pub receive_window: u32,
    /// The receiver acknowledges every so many segments that arrive in order; at least 1. GRO makes them more than 2.
    pub ack_every: u32,
}

impl Default for Config {
    /// An MTU of 1,500 bytes, 3 MiB of window, every second segment acknowledged.
    fn default() -> Self {
        Config {
            mss: 1448,
            receive_window: 3 << 20,
            ack_every: 2,
        }
    }
}

impl Config {
    /// The nearest one whose values are within their ranges.
    fn bounded(self) -> Self {
        let mss = self.mss.clamp(1, u16::MAX - HEADER_BYTES);
        Config {
            mss,
            receive_window: self.receive_window.max(u32::from(mss)),
            ack_every: self.ack_every.max(1),
        }
    }

    /// Most segments on their way. Twice what fills the window, to leave room for short ones.
    fn segments_max(&self) -> u64 {
        (2 * u64::from(self.receive_window) / u64::from(self.mss)).clamp(64, SEGMENTS_MAX)
    }
}

/// One segment to hand to the host queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Its place in the stream, from 0; a retransmission keeps its number.
    pub number: u64,
    /// Payload, in bytes; 1 to the MSS.
    pub bytes: u16,
    /// Whether it was sent before.
    pub retransmit: bool,
}

impl Segment {
    /// Size of the IP packet that carries it, in bytes.
    pub fn packet_bytes(&self) -> u16 {
        self.bytes + HEADER_BYTES
    }
}

/// Segments received out of order: `start` up to, without, `end`. An empty range says nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SackRange {
    /// The first segment of the range.
    pub start: u64,
    /// The one after the last.
    pub end: u64,
}

/// What an acknowledgement says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ack {
    /// Every segment below this one has arrived.
    pub next: u64,
    /// What arrived above it, the range with the newest segment first.
    pub sack: [SackRange; 3],
}

impl Ack {
    /// Size of the IP packet that carries it, in bytes.
    pub fn packet_bytes(&self) -> u16 {
        let ranges = self.sack.iter().filter(|range| range.start < range.end).count() as u16;
        HEADER_BYTES + if ranges == 0 { 0 } else { 4 + 8 * ranges }
    }
}

#[cfg(test)]
mod tests;
