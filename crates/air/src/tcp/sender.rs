//! The sending end.

use super::{Ack, Config, Segment};
use coorp_core::{Duration, Instant};

/// The sending end of a connection.
#[derive(Clone, Debug)]
pub struct Sender {
    config: Config,
    unsent: u64,
    next: u64,
    acked: u64,
    paused: bool,
}

impl Sender {
    /// A connection that has been set up and has sent nothing yet.
    pub fn new(config: Config) -> Self {
        Sender {
            config,
            unsent: 0,
            next: 0,
            acked: 0,
            paused: false,
        }
    }
    /// The application writes so many bytes.
    pub fn write(&mut self, bytes: u64) {
        self.unsent = self.unsent.saturating_add(bytes);
    }
    /// The application always has more to send, from now on.
    pub fn saturate(&mut self) {
        self.unsent = u64::MAX;
    }
    /// TCP_PAUSE.
    pub fn set_paused(&mut self, paused: bool, _now: Instant) {
        self.paused = paused;
    }
    /// The next segment to hand to the host queue; call until `None`.
    pub fn poll_transmit(&mut self, _now: Instant) -> Option<Segment> {
        if self.paused || self.unsent == 0 || self.next - self.acked >= 64 {
            return None;
        }
        let bytes = self.unsent.min(u64::from(self.config.mss)) as u16;
        self.unsent -= u64::from(bytes);
        self.next += 1;
        Some(Segment {
            number: self.next - 1,
            bytes,
            retransmit: false,
        })
    }
    /// A packet with so many bytes of payload left the local stack: sent, given up or dropped there.
    pub fn on_departed(&mut self, _payload_bytes: u16) {}
    /// An acknowledgement came in.
    pub fn on_ack(&mut self, ack: &Ack, _now: Instant) {
        self.acked = self.acked.max(ack.next.min(self.next));
    }
    /// When to call [`Sender::on_deadline`].
    pub fn next_deadline(&self) -> Option<Instant> {
        None
    }
    /// The time asked for has come. Too early a call does nothing.
    pub fn on_deadline(&mut self, _now: Instant) {}
    /// Bytes sent and not yet acknowledged.
    pub fn unacknowledged(&self) -> u64 {
        (self.next - self.acked) * u64::from(self.config.mss)
    }
    /// Bytes written and not yet sent; `u64::MAX` for a saturated sender.
    pub fn unsent(&self) -> u64 {
        self.unsent
    }
    /// Whether all that was written has been acknowledged.
    pub fn is_idle(&self) -> bool {
        self.unsent == 0 && self.acked == self.next
    }
    /// The congestion window, in segments.
    pub fn cwnd(&self) -> u32 {
        64
    }
    /// The smoothed round-trip time, once there is a sample.
    pub fn srtt(&self) -> Option<Duration> {
        None
    }
}
