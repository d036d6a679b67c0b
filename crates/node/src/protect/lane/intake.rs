//! Takes programs' packets from the TUN, cuts what has to be cut, and sorts them by class.

use std::io;

use coorp_core::protect::{Class, Head, Verdict};

use super::{Lane, TOGETHER};
use crate::protect::packet::{self, Packet};
use crate::protect::segments::{Offer, Segments};

/// The maximum number of bytes taken, give or take a packet.
const TOGETHER_BYTES: usize = 256 << 10;
/// The length of the longest IP packet with the kernel's header.
pub(super) const READ_BYTES_MAX: usize = 65_535 + Offer::BYTES;

/// What a round took from the TUN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Took {
    Nothing,
    /// Only packets that wait for a permit, or as acknowledgements.
    Bulk,
    Other,
}

impl Lane {
    /// Takes packets from the TUN. Returns whether there may be more.
    pub(super) fn take(&mut self) -> io::Result<bool> {
        let mut buffer = std::mem::take(&mut self.buffer);
        let more = self.take_by(&mut buffer);
        self.buffer = buffer;
        more
    }

    fn take_by(&mut self, buffer: &mut [u8]) -> io::Result<bool> {
        let mut bytes = 0;
        self.took = Took::Nothing;
        for _ in 0..TOGETHER {
            if bytes >= TOGETHER_BYTES {
                return Ok(true);
            }
            match self.tun.read(buffer) {
                Ok(Some((offer, packet))) => {
                    bytes += packet.len();
                    self.admit(&offer, packet);
                }
                Ok(None) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Handles a packet from the kernel, which may hold several segments.
    fn admit(&mut self, offer: &Offer, packet: &mut [u8]) {
        // Other packets can only be IPv6 that a program forced into the TUN.
        let Some(mut head) = packet::head(packet) else { return };
        if packet::is_answer(packet) && !self.addresses.has(head.flow.to.0) {
            // Otherwise a stranger could make this machine's replies control, by pinging it regularly.
            (head.dscp, head.message_bytes) = (0, Some(0));
        }
        if let Some(segment) = offer.segment() {
            if let Some(segments) = Segments::of((&*packet).into(), segment) {
                return self.admit_segments(head, segments, packet);
            }
            if packet.len() > self.outlet.mtu {
                tracing::debug!("a packet of {} bytes is lost: it is not a TCP packet", packet.len());
                return;
            }
            // It was already cut.
        }
        offer.finish(packet);
        let read = packet.len();
        if read > self.outlet.mtu {
            if packet::is_uncuttable(packet) {
                return self.refuse(packet);
            }
            // One name for all fragments.
            self.card.name(packet);
            // It is cut when its turn comes.
            head.opens = false;
        }
        if let Some(message) = packet::rtps(packet, &head) {
            for (writer, topic) in message.topics() {
                self.protect.on_topic(writer, topic);
            }
            let is_fragment = packet::is_fragment(packet);
            let Some(content) = message.content().or(is_fragment.then(Default::default)) else {
                for (head, mut part) in packet::parts(packet, head, &message) {
                    self.card.name(&mut part);
                    self.sort(head, Packet::of(part));
                }
                return;
            };
            head = packet::of(head, read, content);
        }
        head.flow = self.cut.flow(packet).unwrap_or(head.flow);
        self.cut.remember(packet, head.flow);
        self.sort(head, Packet::of((&*packet).into()));
    }

    /// Takes TCP's segments that the kernel has handed over together, as `packet`.
    fn admit_segments(&mut self, head: Head, segments: Segments, packet: &[u8]) {
        if segments.longest() <= self.outlet.mtu {
            self.sort(head, Packet::Segments(segments));
        } else if packet::is_uncuttable(packet) {
            self.refuse(packet);
        } else {
            // The kernel does not learn that the segments are too long: they leave as fragments.
            for mut one in Packet::Segments(segments).one_by_one() {
                self.card.name(&mut one);
                if let Some(head) = packet::head(&one) {
                    self.sort(head, Packet::of(one));
                }
            }
        }
    }

    /// Tells the kernel that a packet is too long. If this fails, the packet is lost, as behind a router that reports
    /// nothing.
    fn refuse(&self, packet: &[u8]) {
        let _ = self.tun.write(&packet::too_long(packet, self.outlet.mtu));
    }

    /// Sends a packet, or keeps it.
    fn sort(&mut self, head: Head, packet: Packet) {
        let now = self.robot.now();
        let verdict = self.protect.on_packet(head, packet, now);
        let waits_as_bulk =
            matches!(verdict, Verdict::Queued | Verdict::Dropped(_)) && !self.protect.has(Class::Ordinary);
        self.took = match self.took {
            Took::Nothing | Took::Bulk if waits_as_bulk => Took::Bulk,
            _ => Took::Other,
        };
        match verdict {
            Verdict::Send { packet, number, begins } => {
                for (place, one) in packet.one_by_one().into_iter().enumerate() {
                    self.send_control(one, number, begins && place == 0);
                }
            }
            Verdict::Pass(packet) => self.card.pass(packet, now),
            Verdict::Queued | Verdict::Dropped(_) => {}
        }
    }
}
