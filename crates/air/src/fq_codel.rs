//! The host queue: FQ-CoDel (RFC 8290) as mac80211 has it.

use crate::packet::{Packet, StationId};
use coorp_core::{Duration, Instant};
use std::collections::VecDeque;

/// How the queue is set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Most packets in the queue, all flows together.
    pub packet_limit: usize,
    /// What a flow may send in a round, in bytes.
    pub quantum_bytes: u16,
    /// Whether CoDel drops at all.
    pub codel: bool,
    /// The standing delay that CoDel accepts.
    pub target: Duration,
    /// How long the delay must stand above the target before the first drop.
    pub interval: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            packet_limit: 8192,
            quantum_bytes: 300,
            codel: true,
            target: Duration::from_millis(20),
            interval: Duration::from_millis(100),
        }
    }
}

/// The queue of one station and access category.
#[derive(Clone, Debug)]
pub struct FqCodel {
    config: Config,
    packets: VecDeque<Packet>,
}

impl FqCodel {
    /// An empty queue.
    pub fn new(config: Config) -> Self {
        FqCodel {
            config,
            packets: VecDeque::new(),
        }
    }
    /// Takes a packet in. What comes back was dropped for it: the oldest packet of the fattest flow.
    pub fn push(&mut self, packet: Packet, _now: Instant) -> Option<Packet> {
        self.packets.push_back(packet);
        (self.packets.len() > self.config.packet_limit)
            .then(|| self.packets.pop_front())
            .flatten()
    }
    /// The next packet, of the destination whose turn it is. `dropped` is told of each packet that CoDel drops.
    pub fn pop(&mut self, _now: Instant, _dropped: &mut impl FnMut(Packet)) -> Option<Packet> {
        self.packets.pop_front()
    }
    /// The next packet to this destination, out of turn: for filling an aggregate.
    pub fn pop_for(&mut self, to: StationId, _now: Instant, _dropped: &mut impl FnMut(Packet)) -> Option<Packet> {
        let at = self.packets.iter().position(|packet| packet.to == to)?;
        self.packets.remove(at)
    }
    /// The destination whose turn it is; the turn passes on to the next one.
    pub fn next_destination(&mut self) -> Option<StationId> {
        self.packets.front().map(|packet| packet.to)
    }
    /// Packets in the queue.
    pub fn len(&self) -> usize {
        self.packets.len()
    }
    /// Packets in the queue to this destination.
    pub fn len_for(&self, to: StationId) -> usize {
        self.packets.iter().filter(|packet| packet.to == to).count()
    }
    /// Whether nothing is queued.
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }
}
