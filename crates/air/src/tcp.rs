//! TCP as a Linux sender and receiver run it, without I/O and without a clock.

mod receiver;
mod sender;

pub use receiver::Receiver;
pub use sender::Sender;

/// IP and TCP headers of a segment, the timestamp option included, in bytes: what a packet is longer than its payload.
pub const HEADER_BYTES: u16 = 52;

/// How both ends of a connection are set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Payload of a full segment, in bytes.
    pub mss: u16,
    /// What the receiver holds for its application at most, in bytes.
    pub receive_window: u32,
    /// The receiver acknowledges every so many segments that arrive in order (GRO makes them more than 2).
    pub ack_every: u32,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            mss: 1448,
            receive_window: 3 << 20,
            ack_every: 2,
        }
    }
}

/// One segment to hand to the host queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Its place in the stream, from 0; a retransmission keeps its number.
    pub number: u64,
    /// Payload, in bytes; 1 to the MSS.
    pub bytes: u16,
    /// Sent before.
    pub retransmit: bool,
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
    /// What arrived above it, newest range first.
    pub sack: [SackRange; 3],
}

impl Ack {
    /// Size of the IP packet that carries it, in bytes.
    pub fn packet_bytes(&self) -> u16 {
        let ranges = self.sack.iter().filter(|range| range.end > range.start).count() as u16;
        HEADER_BYTES + if ranges == 0 { 0 } else { 4 + 8 * ranges }
    }
}
