//! Messages over UDP: split into packets, reassembled, and tracked until no packet is left.

use std::collections::VecDeque;

use coorp_air::{AccessCategory, Packet, StationId};
use coorp_core::{Duration, FlowId, Instant};

/// UDP payload of a full packet: 1500 bytes less IPv4 and UDP headers.
pub(crate) const PAYLOAD_BYTES_MAX: u64 = 1472;
const HEADER_BYTES: u64 = 28;
/// Tag bits that number a message's packets; the rest number the messages of the flow.
const FRAGMENT_BITS: u32 = 20;

/// A message on its way.
#[derive(Clone, Copy, Debug)]
struct Journey {
    fragments: u32,
    arrived: u32,
    lost: u32,
    /// The number of packets that the WNIC has finished, or that the host queue dropped.
    left: u32,
    /// The number of packets that the sender's kernel has freed.
    freed: u32,
    sent_at: Instant,
}

/// The outcome of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// All of it arrived, this long after it was sent.
    Arrived(Duration),
    /// Part of it never will.
    Lost,
}

/// One sender's messages to one receiver.
#[derive(Debug)]
pub(crate) struct MessageFlow {
    pub id: FlowId,
    pub from: StationId,
    pub to: StationId,
    pub category: AccessCategory,
    /// Number of the oldest message that is still tracked.
    oldest: u64,
    journeys: VecDeque<Journey>,
}

impl MessageFlow {
    pub fn new(id: FlowId, from: StationId, to: StationId, category: AccessCategory) -> Self {
        MessageFlow {
            id,
            from,
            to,
            category,
            oldest: 0,
            journeys: VecDeque::new(),
        }
    }

    /// Sends a message of `bytes` that was made at `made_at`. Returns its number.
    pub fn send(&mut self, bytes: u64, made_at: Instant, now: Instant, out: &mut Vec<Packet>) -> u64 {
        let number = self.oldest + self.journeys.len() as u64;
        let fragments = bytes.div_ceil(PAYLOAD_BYTES_MAX).clamp(1, 1 << FRAGMENT_BITS) as u32;
        self.journeys.push_back(Journey {
            fragments,
            arrived: 0,
            lost: 0,
            left: 0,
            freed: 0,
            sent_at: made_at,
        });
        let mut rest = bytes;
        for fragment in 0..fragments {
            let payload = rest.min(PAYLOAD_BYTES_MAX);
            rest -= payload;
            out.push(Packet {
                flow: self.id,
                tag: number << FRAGMENT_BITS | u64::from(fragment),
                bytes: (payload + HEADER_BYTES) as u16,
                from: self.from,
                to: self.to,
                category: self.category,
                sent_at: now,
            });
        }
        number
    }

    /// Returns whether this packet is the first of its message.
    pub fn is_first(packet: &Packet) -> bool {
        packet.tag & ((1 << FRAGMENT_BITS) - 1) == 0
    }

    fn journey(&mut self, packet: &Packet) -> Option<(u64, &mut Journey)> {
        let number = packet.tag >> FRAGMENT_BITS;
        let place = usize::try_from(number.checked_sub(self.oldest)?).ok()?;
        Some((number, self.journeys.get_mut(place)?))
    }

    /// Records an arrived packet. Returns the message's number and fate once that is decided.
    pub fn on_delivered(&mut self, packet: &Packet, now: Instant) -> Option<(u64, Fate)> {
        let (number, journey) = self.journey(packet)?;
        journey.arrived += 1;
        let fate = journey.fate(now);
        self.forget();
        fate.map(|fate| (number, fate))
    }

    /// Records that the sender's kernel has freed a packet. Returns whether that was the message's last.
    pub fn on_freed(&mut self, packet: &Packet) -> bool {
        let Some((_, journey)) = self.journey(packet) else {
            return false;
        };
        journey.freed += 1;
        journey.freed == journey.fragments
    }

    /// Records that the WNIC has finished a packet (`acknowledged`, or given up), or that the host queue dropped it
    /// (not acknowledged). Returns the message's number and fate if this decided it.
    pub fn on_left(&mut self, packet: &Packet, acknowledged: bool, now: Instant) -> Option<(u64, Fate)> {
        let (number, journey) = self.journey(packet)?;
        journey.left += 1;
        let fate = if acknowledged {
            None
        } else {
            journey.lost += 1;
            journey.fate(now)
        };
        self.forget();
        fate.map(|fate| (number, fate))
    }

    /// Records that a packet that had left its sender will not arrive. Returns the message's number and fate if this
    /// decided it.
    pub fn on_lost_underway(&mut self, packet: &Packet, now: Instant) -> Option<(u64, Fate)> {
        let (number, journey) = self.journey(packet)?;
        journey.lost += 1;
        let fate = journey.fate(now);
        self.forget();
        fate.map(|fate| (number, fate))
    }

    fn forget(&mut self) {
        while self.journeys.front().is_some_and(Journey::is_over) {
            self.journeys.pop_front();
            self.oldest += 1;
        }
    }
}

impl Journey {
    fn fate(&self, now: Instant) -> Option<Fate> {
        match (self.arrived + self.lost == self.fragments, self.lost) {
            (false, _) => None,
            (true, 0) => Some(Fate::Arrived(now.since(self.sent_at))),
            (true, _) => Some(Fate::Lost),
        }
    }

    fn is_over(&self) -> bool {
        self.left == self.fragments && self.arrived + self.lost == self.fragments
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_arrives_when_its_last_packet_does_and_is_lost_with_any() {
        let mut flow = MessageFlow::new(FlowId(0), StationId(1), StationId(0), AccessCategory::Voice);
        let (mut out, start) = (Vec::new(), Instant::from_nanos(7));
        assert_eq!(flow.send(12_288, start, start, &mut out), 0);
        assert_eq!(flow.send(0, start, start, &mut out), 1);
        assert_eq!(out.len(), 9 + 1);
        assert_eq!(
            out.iter().map(|packet| u64::from(packet.bytes)).sum::<u64>(),
            12_288 + 10 * 28
        );
        let now = start + Duration::from_millis(2);
        for packet in &out[..8] {
            assert_eq!(flow.on_delivered(packet, now), None);
            assert!(!flow.on_freed(packet));
            assert_eq!(flow.on_left(packet, true, now), None);
        }
        assert_eq!(
            flow.on_delivered(&out[8], now),
            Some((0, Fate::Arrived(Duration::from_millis(2))))
        );
        assert!(flow.on_freed(&out[8]), "all of it");
        assert_eq!(flow.on_left(&out[8], true, now), None);
        assert_eq!(flow.on_left(&out[9], false, now), Some((1, Fate::Lost)));
        assert!(flow.journeys.is_empty());
        assert_eq!(
            flow.on_delivered(&out[0], now),
            None,
            "a packet of a forgotten message says nothing"
        );
    }
}
