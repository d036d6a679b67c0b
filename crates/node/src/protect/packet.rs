//! IPv4 packets, as far as the agent reads and changes them.
//!
//! The TUN has the largest possible MTU, so that datagrams arrive whole and can be classified, taken apart and dropped
//! as a whole. Packets longer than the interface's MTU are cut into fragments here ([`Packet::cut`]). TCP's segments
//! may come together ([`Segments`]).

use std::collections::VecDeque;
use std::net::Ipv4Addr;

use coorp_core::protect::{Flow, Head};
use coorp_core::rtps::{self, Content, Message};

use super::segments::Segments;

const ICMP: u8 = 1;
const TCP: u8 = 6;
const UDP: u8 = 17;
const HEADER_BYTES: usize = 20;
const UDP_HEADER_BYTES: usize = 8;
/// ICMP's type of a request for an echo (RFC 792), and TCP's flag that resets a connection.
const ECHO_REQUEST: u8 = 8;
const RESET: u8 = 0x04;
/// The offsets in a header of the type of service, the length, the identification, the fragment's place, and the
/// checksum.
const TOS: usize = 1;
const LENGTH: usize = 2;
const IDENTIFICATION: usize = 4;
const FRAGMENT: usize = 6;
const CHECKSUM: usize = 10;
const ADDRESSES: std::ops::Range<usize> = 12..20;
/// In the word at `FRAGMENT`: whether the packet must not be cut, whether more fragments follow, and the place in units
/// of 8 bytes.
const DONT_FRAGMENT: u16 = 0x4000;
const MORE_FRAGMENTS: u16 = 0x2000;
const PLACE: u16 = 0x1fff;

/// Maximum number of datagrams whose fragments are expected at a time.
const CUT_MAX: usize = 64;

/// The flows of datagrams whose first fragments have passed: only these have ports. The kernel cuts datagrams longer
/// than 65,520 bytes, whatever the MTU, and sends the pieces in order.
#[derive(Debug, Default)]
pub(super) struct Cut {
    recent: VecDeque<([u8; 11], Flow)>,
}

impl Cut {
    /// Remembers the flow of a packet, if the packet is a first fragment.
    pub fn remember(&mut self, packet: &[u8], flow: Flow) {
        if word(packet, FRAGMENT) & (MORE_FRAGMENTS | PLACE) == MORE_FRAGMENTS {
            self.recent.push_front((datagram(packet), flow));
            self.recent.truncate(CUT_MAX);
        }
    }

    /// Returns the flow of a later fragment, if its first one was seen.
    pub fn flow(&self, packet: &[u8]) -> Option<Flow> {
        let name = Some(datagram(packet)).filter(|_| word(packet, FRAGMENT) & PLACE != 0)?;
        let found = self.recent.iter().find(|(known, _)| *known == name);
        found.map(|(_, flow)| *flow)
    }
}

/// Returns the bytes that identify a datagram's fragments: addresses, identification and protocol.
fn datagram(packet: &[u8]) -> [u8; 11] {
    let mut name = [0; 11];
    name[..8].copy_from_slice(&packet[ADDRESSES]);
    name[8..10].copy_from_slice(&packet[IDENTIFICATION..IDENTIFICATION + 2]);
    name[10] = packet[9];
    name
}

/// Reads a packet's head; `None` if it is not an IPv4 packet of exactly this length.
pub(super) fn head(packet: &[u8]) -> Option<Head> {
    let header = packet.get(..HEADER_BYTES)?;
    let length = usize::from(header[0] & 0x0f) * 4;
    if header[0] >> 4 != 4 || length < HEADER_BYTES || usize::from(word(header, LENGTH)) != packet.len() {
        return None;
    }
    let protocol = header[9];
    let inside = packet.get(length..)?;
    let ported = word(header, FRAGMENT) & PLACE == 0 && [TCP, UDP].contains(&protocol) && inside.len() >= 4;
    let (from, to) = if ported {
        (word(inside, 0), word(inside, 2))
    } else {
        (0, 0)
    };
    // The length of TCP's header is in units of 4 bytes.
    let tcp = inside.get(12).filter(|_| ported && protocol == TCP);
    let carries_nothing = tcp.is_some_and(|begin| inside.len() <= usize::from(begin >> 4) * 4);
    Some(Head {
        flow: Flow {
            protocol,
            from: (
                Ipv4Addr::new(header[12], header[13], header[14], header[15]).into(),
                from,
            ),
            to: (self::to(packet).into(), to),
            writer: None,
        },
        bytes: packet.len() as u32,
        dscp: dscp(packet),
        message_bytes: carries_nothing.then_some(0),
        opens: protocol == UDP
            && word(header, FRAGMENT) & (PLACE | MORE_FRAGMENTS) == 0
            && inside.get(UDP_HEADER_BYTES..).is_some_and(opens_quic),
    })
}

/// Returns whether the kernel sends this packet because of one that has arrived: ICMP that is no request for an echo, or
/// a reset of TCP. A later fragment of ICMP counts too, as nothing shows which one it is.
pub(super) fn is_answer(packet: &[u8]) -> bool {
    let begins = word(packet, FRAGMENT) & PLACE == 0;
    let inside = packet.get(header_bytes(packet)..).unwrap_or_default();
    match protocol(packet) {
        ICMP => !begins || inside.first() != Some(&ECHO_REQUEST),
        TCP => begins && inside.get(13).is_some_and(|flags| flags & RESET != 0),
        _ => false,
    }
}

/// Returns whether a datagram begins with a packet of QUIC's handshake: Initial, Handshake or Retry of version 1 (RFC 9000,
/// section 17.2) or 2 (RFC 9369, section 3.2). 0-RTT and 1-RTT are none, as they carry data; some of that may follow in the
/// same datagram.
fn opens_quic(datagram: &[u8]) -> bool {
    let Some((&[first, ref version @ ..], _)) = datagram.split_first_chunk::<5>() else {
        return false;
    };
    let is_long = first & 0xc0 == 0xc0;
    let early = match u32::from_be_bytes(*version) {
        1 => 1,
        0x6b33_43cf => 2,
        _ => return false,
    };
    is_long && (first >> 4) & 3 != early
}

/// Returns the sender's address and the receiver's; `None` if it is not an IPv4 packet of exactly this length.
pub(super) fn ends(packet: &[u8]) -> Option<(Ipv4Addr, Ipv4Addr)> {
    head(packet)?;
    Some((
        Ipv4Addr::new(packet[12], packet[13], packet[14], packet[15]),
        to(packet),
    ))
}

/// Reads the RTPS message in a packet with this head, if it has one, or the beginning of one.
pub(super) fn rtps<'p>(packet: &'p [u8], head: &Head) -> Option<Message<'p>> {
    let begins = head.flow.protocol == UDP && word(packet, FRAGMENT) & PLACE == 0;
    rtps::read(
        packet
            .get(header_bytes(packet) + UDP_HEADER_BYTES..)
            .filter(|_| begins)?,
    )
}

/// Takes a packet apart into one for each DDS writer, and the rest.
pub(super) fn parts<'m>(
    packet: &'m [u8],
    head: Head,
    message: &'m Message<'m>,
) -> impl Iterator<Item = (Head, Box<[u8]>)> + 'm {
    message.parts().map(move |(content, payload)| {
        let at = header_bytes(packet);
        let mut part = [&packet[..at + UDP_HEADER_BYTES], &payload].concat();
        let bytes = part.len() as u16;
        set_length(&mut part);
        // Otherwise all parts would have the same identification.
        part[IDENTIFICATION..IDENTIFICATION + 2].fill(0);
        part[at + 4..at + 6].copy_from_slice(&(bytes - at as u16).to_be_bytes());
        set_udp_checksum(&mut part, at);
        (of(head, part.len(), content), part.into())
    })
}

/// Returns the head of a packet, or a part of one, with this content.
pub(super) fn of(head: Head, bytes: usize, content: Content) -> Head {
    Head {
        flow: Flow {
            writer: content.writer,
            ..head.flow
        },
        bytes: bytes as u32,
        message_bytes: content.sample_bytes,
        ..head
    }
}

/// A packet that waits or is handed over.
#[derive(Clone, Debug)]
pub(super) enum Packet {
    One(One),
    Segments(Segments),
}

impl Packet {
    /// Wraps one complete packet.
    pub fn of(bytes: Box<[u8]>) -> Self {
        Packet::One(One { bytes, cut: 0 })
    }

    /// Returns the number of packets on the air.
    pub fn count(&self) -> usize {
        match self {
            Packet::One(_) => 1,
            Packet::Segments(segments) => segments.count(),
        }
    }

    /// Returns the receiver's address.
    pub fn to(&self) -> Ipv4Addr {
        match self {
            Packet::One(one) => to(&one.bytes),
            Packet::Segments(segments) => to(segments.header()),
        }
    }

    /// Returns the packet's bytes, or those of all segments after their common headers, to be changed before they are
    /// sent.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Packet::One(one) => &mut one.bytes,
            Packet::Segments(segments) => segments.bytes_mut(),
        }
    }

    /// Cuts off a fragment that fits an MTU, or at most `most` segments, if there is more. Also returns by how much the
    /// rest is shorter.
    pub fn cut(&mut self, mtu: usize, most: usize) -> Option<(Packet, u32)> {
        match self {
            Packet::One(one) => one.cut(mtu),
            // These came while the MTU was larger: sent singly, they show the kernel that they are too long.
            Packet::Segments(segments) if segments.longest() > mtu => segments.cut(1),
            Packet::Segments(segments) => segments.cut(most),
        }
    }

    /// Cuts off the smallest part that can be lost by itself.
    pub fn cut_lost(&mut self) -> Option<(Packet, u32)> {
        match self {
            Packet::One(_) => None,
            Packet::Segments(segments) => segments.cut(1),
        }
    }

    /// Returns everything that is left, packet by packet.
    pub fn one_by_one(self) -> Vec<Box<[u8]>> {
        let mut ones = Vec::with_capacity(self.count());
        let mut add = |packet| {
            if let Packet::One(one) = packet {
                ones.push(one.into_bytes());
            }
        };
        match self {
            Packet::One(_) => add(self),
            Packet::Segments(mut segments) => {
                while let Some((one, _)) = segments.cut(1) {
                    add(one);
                }
                add(segments.rest());
            }
        }
        ones
    }

    /// Returns the rest, ready to be sent.
    pub fn rest(self) -> Packet {
        match self {
            Packet::One(one) => Packet::of(one.into_bytes()),
            Packet::Segments(segments) => segments.rest(),
        }
    }
}

/// A packet from which fragments may have been cut.
#[derive(Clone, Debug)]
pub(super) struct One {
    bytes: Box<[u8]>,
    /// The number of payload bytes that have been cut off.
    cut: usize,
}

impl One {
    /// Cuts off a fragment of at most this many bytes (RFC 791, section 3.2), if the rest is longer. Also returns by
    /// how much the rest is shorter. The packet must have an identification. All fragments keep all options.
    fn cut(&mut self, mtu: usize) -> Option<(Packet, u32)> {
        let at = header_bytes(&self.bytes);
        let left = self.bytes.len() - at - self.cut;
        let space = (mtu.saturating_sub(at) / 8 * 8).max(8);
        if at + left <= mtu || left <= space {
            return None;
        }
        let piece = self.fragment(space);
        self.cut += space;
        Some((Packet::of(piece), space as u32))
    }

    /// Returns the whole packet, or its last fragment if others have been cut off.
    pub fn into_bytes(self) -> Box<[u8]> {
        match self.cut {
            0 => self.bytes,
            cut => self.fragment(self.bytes.len() - header_bytes(&self.bytes) - cut),
        }
    }

    /// Returns the next fragment, with this many payload bytes.
    fn fragment(&self, inside: usize) -> Box<[u8]> {
        let (header, all) = self.bytes.split_at(header_bytes(&self.bytes));
        let mut fragment = [header, &all[self.cut..self.cut + inside]].concat();
        let more = if self.cut + inside < all.len() {
            MORE_FRAGMENTS
        } else {
            0
        };
        let place = word(header, FRAGMENT) & (MORE_FRAGMENTS | PLACE) | more;
        let place = place.wrapping_add((self.cut / 8) as u16);
        set_length(&mut fragment);
        fragment[FRAGMENT..FRAGMENT + 2].copy_from_slice(&place.to_be_bytes());
        fragment.into()
    }
}

/// Returns all fragments of a packet.
pub(super) fn fragments(packet: Box<[u8]>, mtu: usize) -> Vec<Box<[u8]>> {
    let mut packet = Packet::of(packet);
    let mut pieces: Vec<_> = std::iter::from_fn(|| packet.cut(mtu, 1))
        .map(|(piece, _)| piece)
        .collect();
    pieces.push(packet.rest());
    pieces.into_iter().flat_map(Packet::one_by_one).collect()
}

/// Computes the header's checksum, as the kernel does for raw sockets.
pub(super) fn finish(packet: &mut [u8]) {
    let header = header_bytes(packet);
    packet[CHECKSUM..CHECKSUM + 2].fill(0);
    let sum = !ones_sum(&packet[..header], 0);
    packet[CHECKSUM..CHECKSUM + 2].copy_from_slice(&sum.to_be_bytes());
}

/// Returns whether the sender forbids cutting the packet.
pub(super) fn is_uncuttable(packet: &[u8]) -> bool {
    word(packet, FRAGMENT) & DONT_FRAGMENT != 0
}

/// Returns the answer to the sender of a packet that is too long and must not be cut: 'fragmentation needed' (RFC
/// 1191), as if from its receiver.
pub(super) fn too_long(packet: &[u8], mtu: usize) -> Vec<u8> {
    const ICMP_HEADER_BYTES: usize = 8;
    const UNREACHABLE: u8 = 3;
    const FRAGMENTATION_NEEDED: u8 = 4;
    let quoted = &packet[..packet.len().min(header_bytes(packet) + 8)];
    let bytes = (HEADER_BYTES + ICMP_HEADER_BYTES + quoted.len()) as u16;
    let mut reply = vec![0; HEADER_BYTES + ICMP_HEADER_BYTES];
    (reply[0], reply[8], reply[9]) = (0x45, 64, ICMP);
    reply[LENGTH..LENGTH + 2].copy_from_slice(&bytes.to_be_bytes());
    reply[ADDRESSES.start..ADDRESSES.start + 4].copy_from_slice(&packet[16..20]);
    reply[ADDRESSES.start + 4..ADDRESSES.end].copy_from_slice(&packet[12..16]);
    finish(&mut reply[..HEADER_BYTES]);
    (reply[HEADER_BYTES], reply[HEADER_BYTES + 1]) = (UNREACHABLE, FRAGMENTATION_NEEDED);
    let next_mtu = u16::try_from(mtu).unwrap_or(u16::MAX);
    reply[HEADER_BYTES + 6..HEADER_BYTES + 8].copy_from_slice(&next_mtu.to_be_bytes());
    reply.extend_from_slice(quoted);
    let sum = !ones_sum(&reply[HEADER_BYTES..], 0);
    reply[HEADER_BYTES + 2..HEADER_BYTES + 4].copy_from_slice(&sum.to_be_bytes());
    reply
}

/// Returns the length of an IPv4 packet's header.
pub(super) fn header_bytes(packet: &[u8]) -> usize {
    usize::from(packet[0] & 0x0f) * 4
}

/// Recomputes the checksum of UDP at this offset, if there is one.
fn set_udp_checksum(packet: &mut [u8], at: usize) {
    let checksum = at + 6..at + 8;
    if packet[checksum.clone()] == [0, 0] {
        return;
    }
    packet[checksum.clone()].fill(0);
    let pseudo = pseudo_sum(packet, at);
    // 0 would mean that there is no checksum.
    let sum = match !ones_sum(&packet[at..], u32::from(pseudo)) {
        0 => u16::MAX,
        sum => sum,
    };
    packet[checksum].copy_from_slice(&sum.to_be_bytes());
}

/// Returns the sum of the pseudo-header for the payload at this offset (RFC 9293, section 3.1).
pub(super) fn pseudo_sum(packet: &[u8], at: usize) -> u16 {
    ones_sum(
        &packet[ADDRESSES],
        u32::from(protocol(packet)) + (packet.len() - at) as u32,
    )
}

/// Returns the ones' complement sum of words (RFC 1071), added to an earlier sum.
pub(super) fn ones_sum(bytes: &[u8], before: u32) -> u16 {
    let words = bytes.chunks_exact(2);
    let last = words.remainder().first().map_or(0, |byte| u32::from(*byte) << 8);
    let words = words.map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
    let mut sum = before + last + words.sum::<u32>();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// Returns whether it is a part of a longer packet.
pub(super) fn is_fragment(header: &[u8]) -> bool {
    word(header, FRAGMENT) & (MORE_FRAGMENTS | PLACE) != 0
}

/// Returns the number of the payload's protocol.
pub(super) fn protocol(packet: &[u8]) -> u8 {
    packet[9]
}

/// Writes a packet's length into its header.
pub(super) fn set_length(packet: &mut [u8]) {
    let bytes = packet.len() as u16;
    packet[LENGTH..LENGTH + 2].copy_from_slice(&bytes.to_be_bytes());
}

/// Increases a packet's identification, as for later segments.
pub(super) fn add_to_identification(packet: &mut [u8], more: u16) {
    let own = word(packet, IDENTIFICATION).wrapping_add(more);
    packet[IDENTIFICATION..IDENTIFICATION + 2].copy_from_slice(&own.to_be_bytes());
}

/// Returns a packet's DSCP.
pub(super) fn dscp(packet: &[u8]) -> u8 {
    packet[TOS] >> 2
}

/// Returns the receiver's address.
pub(super) fn to(packet: &[u8]) -> Ipv4Addr {
    Ipv4Addr::new(packet[16], packet[17], packet[18], packet[19])
}

/// Sets the DSCP and leaves ECN unchanged. The kernel computes the header's checksum when the packet is sent.
pub(super) fn set_dscp(packet: &mut [u8], dscp: u8) {
    packet[TOS] = dscp << 2 | packet[TOS] & 0b11;
}

/// Returns the identification and the total length, by which the emulator names a packet. The kernel would replace an
/// identification of 0, so this sets it to `fresh`; all fragments of a packet get the same one.
pub(super) fn name(packet: &mut [u8], fresh: u16) -> (u16, u16) {
    if word(packet, IDENTIFICATION) == 0 {
        let fresh = if is_fragment(packet) { u16::MAX } else { fresh };
        packet[IDENTIFICATION..IDENTIFICATION + 2].copy_from_slice(&fresh.to_be_bytes());
        packet[CHECKSUM..CHECKSUM + 2].fill(0);
    }
    (word(packet, IDENTIFICATION), word(packet, 2))
}

fn word(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    /// Returns a UDP packet with a payload.
    fn udp(payload: &[u8]) -> Vec<u8> {
        let length = (28 + payload.len()) as u16;
        let mut packet = vec![0x45, 0xb9, 0, 0, 0, 0, 0x40, 0, 64, UDP, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        packet[2..4].copy_from_slice(&length.to_be_bytes());
        packet.extend([0x13, 0x88, 0x13, 0x89, 0, 0, 0, 0]);
        packet.extend(payload);
        packet
    }

    #[test]
    fn what_the_kernel_answers_is_known() {
        let with = |protocol: u8, inside: &[u8]| {
            let mut packet = udp(&[0; 32]);
            packet[9] = protocol;
            packet[20..20 + inside.len()].copy_from_slice(inside);
            packet
        };
        let flags = |flags: u8| [0, 80, 0, 81, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, flags];
        assert!(!is_answer(&udp(b"pose")));
        assert!(!is_answer(&with(ICMP, &[8])), "a request");
        assert!(is_answer(&with(ICMP, &[0])), "a reply");
        assert!(is_answer(&with(ICMP, &[3])), "unreachable");
        assert!(is_answer(&with(TCP, &flags(0x14))), "a reset");
        assert!(!is_answer(&with(TCP, &flags(0x12))), "an open port is a program's");
        let mut later = with(ICMP, &[8]);
        later[7] = 4;
        assert!(is_answer(&later), "of which packet is unknown");
        let mut later = with(TCP, &flags(0x04));
        later[7] = 4;
        assert!(!is_answer(&later), "that is no header");
    }

    #[test]
    fn heads_are_read_and_later_fragments_have_no_ports() {
        let mut packet = udp(b"pose");
        let flow = Flow {
            protocol: UDP,
            from: (IpAddr::from([10, 0, 0, 1]), 5_000),
            to: (IpAddr::from([10, 0, 0, 2]), 5_001),
            writer: None,
        };
        assert_eq!(
            head(&packet),
            Some(Head {
                flow,
                bytes: 32,
                dscp: 46,
                message_bytes: None,
                opens: false,
            })
        );
        for (fragment, ports) in [([0x20, 0], (5_000, 5_001)), ([0x20, 1], (0, 0)), ([0, 1], (0, 0))] {
            packet[6..8].copy_from_slice(&fragment);
            let head = head(&packet).unwrap();
            assert_eq!((head.flow.from.1, head.flow.to.1), ports);
        }
        packet[9] = 1;
        assert_eq!(head(&packet).unwrap().flow.protocol, 1);
    }

    #[test]
    fn quics_handshake_is_told_from_its_data_and_from_other_protocols() {
        let opens = |first: u8, version: u32| {
            let datagram = [&[first], &version.to_be_bytes()[..], &[8; 1_195]].concat();
            head(&udp(&datagram)).unwrap().opens
        };
        let (one, two, next) = (1, 0x6b33_43cf, 2);
        let kinds = [0xc0, 0xd0, 0xe0, 0xf0];
        assert_eq!(kinds.map(|first| opens(first, one)), [true, false, true, true]);
        assert_eq!(kinds.map(|first| opens(first, two)), [true, true, false, true]);
        assert_eq!(kinds.map(|first| opens(first, next)), [false; 4]);
        // 1-RTT, and without the fixed bit.
        assert_eq!([0x40, 0x80].map(|first| opens(first, one)), [false; 2]);
        assert!(!head(&udp(&[0xc0, 0, 0, 0])).unwrap().opens);
        let mut tcp = udp(&[&[0xc0, 0, 0, 0, 1][..], &[0; 100]].concat());
        tcp[9] = TCP;
        assert!(!head(&tcp).unwrap().opens);
    }

    #[test]
    fn a_finished_header_has_its_checksum() {
        let mut packet = udp(b"pose");
        finish(&mut packet);
        assert_eq!(ones_sum(&packet[..HEADER_BYTES], 0), u16::MAX);
        assert_eq!(word(&packet, CHECKSUM), 0x2612);
        assert_eq!(ends(&packet), Some(([10, 0, 0, 1].into(), [10, 0, 0, 2].into())));
    }

    #[test]
    fn later_fragments_are_of_the_flow_of_their_first() {
        let whole = udp(&[0; 3_000]);
        let mut named = whole.clone();
        named[IDENTIFICATION + 1] = 7;
        let (mut cut, flow) = (Cut::default(), head(&whole).unwrap().flow);
        cut.remember(&whole, flow);
        assert_eq!(cut.recent.len(), 0);
        let pieces = fragments(named.clone().into(), 1_500);
        cut.remember(&pieces[0], head(&pieces[0]).unwrap().flow);
        let flows: Vec<_> = pieces.iter().map(|piece| cut.flow(piece)).collect();
        assert_eq!(flows, [None, Some(flow), Some(flow)]);
        assert!(fragments(whole.into(), 1_500)
            .iter()
            .all(|other| cut.flow(other).is_none()));
        for name in 8..=7 + CUT_MAX as u8 {
            named[IDENTIFICATION + 1] = name;
            cut.remember(&fragments(named.clone().into(), 1_500)[0], flow);
        }
        assert_eq!((cut.flow(&pieces[1]), cut.recent.len()), (None, CUT_MAX));
    }

    #[test]
    fn anything_else_has_no_head() {
        let packet = udp(b"pose");
        for length in 0..packet.len() {
            assert_eq!(head(&packet[..length]), None);
        }
        for first in [0x00, 0x44, 0x65] {
            let mut other = packet.clone();
            other[0] = first;
            assert_eq!(head(&other), None);
        }
        let mut options = packet;
        options[0] = 0x4f;
        assert_eq!(head(&options), None, "its header reaches beyond its end");
    }

    #[test]
    fn tcp_without_data_carries_nothing() {
        let tcp = |words: u8, data: usize| {
            let mut packet = udp(&vec![0; usize::from(words) * 4 + data - 8]);
            (packet[9], packet[20 + 12]) = (TCP, words << 4);
            head(&packet).unwrap().message_bytes
        };
        assert_eq!((tcp(5, 0), tcp(8, 0), tcp(15, 0)), (Some(0), Some(0), Some(0)));
        assert_eq!((tcp(5, 1), tcp(8, 1), tcp(5, 12)), (None, None, None));
        assert_eq!(head(&udp(b"")).unwrap().message_bytes, None);
    }

    /// Returns a DDS message with a sample of one writer and a heartbeat of another.
    fn of_two_writers() -> Vec<u8> {
        let mut payload = b"RTPS\x02\x03\x01\x10participant1".to_vec();
        payload.extend(b"\x15\x05\x1d\0\0\0\x10\0\0\0\0\0\0\0\x12\x03\0\0\0\0\0\0\0\x01odd sampl");
        payload.extend(b"\x07\x01\x1c\0\0\0\0\0\0\0\x13\x02\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
        udp(&payload)
    }

    #[test]
    fn writers_get_packets_of_their_own_with_right_checksums() {
        for checksum in [0, 1] {
            let mut packet = of_two_writers();
            packet[20 + 7] = checksum;
            let head = head(&packet).unwrap();
            let message = rtps(&packet, &head).unwrap();
            assert_eq!(message.content(), None);
            let parts: Vec<_> = parts(&packet, head, &message).collect();
            let lengths: Vec<_> = parts.iter().map(|(_, part)| part.len()).collect();
            assert_eq!(lengths, [20 + 8 + 20 + 33, 20 + 8 + 20 + 32]);
            let entities: Vec<_> = parts.iter().map(|(head, _)| head.flow.writer.unwrap().0[14]).collect();
            assert_eq!(entities, [0x12, 0x13]);
            for (head, part) in &parts {
                let again = super::head(part).unwrap();
                let content = rtps(part, &again).unwrap().content().unwrap();
                assert_eq!(of(again, part.len(), content), *head);
                assert_eq!(usize::from(word(part, 24)), part.len() - 20);
                // Over a correct packet, the sum is all ones.
                let pseudo = ones_sum(&part[ADDRESSES], u32::from(UDP) + (part.len() - 20) as u32);
                let sum = ones_sum(&part[20..], u32::from(pseudo));
                assert!(if checksum == 0 {
                    part[26..28] == [0, 0]
                } else {
                    sum == u16::MAX
                });
            }
            assert_eq!(
                (parts[0].0.message_bytes, parts[1].0.message_bytes),
                (Some(29), Some(0))
            );
        }
    }

    #[test]
    fn fragments_put_together_are_the_packet() {
        let mut packet = udp(&(0..5_000u32).map(|byte| byte as u8).collect::<Vec<_>>());
        packet[FRAGMENT] = 0;
        let pieces = fragments(packet.clone().into(), 1_500);
        assert_eq!(pieces.len(), 4);
        let mut together = Vec::new();
        for (at, piece) in pieces.iter().enumerate() {
            assert!(head(piece).is_some() && piece.len() <= 1_500);
            assert_eq!(usize::from(word(piece, FRAGMENT) & PLACE) * 8, together.len());
            assert_eq!(word(piece, FRAGMENT) & MORE_FRAGMENTS != 0, at < 3);
            together.extend_from_slice(&piece[20..]);
        }
        assert_eq!(together, packet[20..]);
        // A fragment is cut further.
        let middle = fragments(pieces[1].clone(), 700);
        let places: Vec<_> = middle.iter().map(|piece| word(piece, FRAGMENT)).collect();
        let first = 1_480 / 8;
        assert_eq!(
            places,
            [first, first + 85, first + 170].map(|place| place | MORE_FRAGMENTS)
        );
        assert_eq!(fragments(packet[..20].into(), 1_500), [packet[..20].into()]);
        assert_eq!(fragments(packet.clone().into(), 0).len(), 5_008 / 8);
    }

    #[test]
    fn a_sender_is_told_that_its_packet_is_too_long() {
        let packet = udp(&[0; 2_000]);
        assert!(is_uncuttable(&packet));
        let told = too_long(&packet, 1_500);
        let head = head(&told).unwrap();
        assert_eq!((head.flow.protocol, head.flow.from.0), (1, IpAddr::from([10, 0, 0, 2])));
        assert_eq!(head.flow.to.0, IpAddr::from([10, 0, 0, 1]));
        assert_eq!(
            (ones_sum(&told[..20], 0), ones_sum(&told[20..], 0)),
            (u16::MAX, u16::MAX)
        );
        assert_eq!(told[20..22], [3, 4]);
        assert_eq!(word(&told, 26), 1_500);
        assert_eq!(told[28..], packet[..28]);
    }

    #[test]
    fn a_dscp_leaves_the_rest_and_a_packet_without_a_name_gets_one() {
        let mut packet = udp(b"pose");
        set_dscp(&mut packet, 48);
        assert_eq!(packet[TOS], 48 << 2 | 1);
        assert_eq!(name(&mut packet, 77), (77, 32));
        assert_eq!(name(&mut packet, 78), (77, 32));
        packet[4..8].copy_from_slice(&[0, 0, 0x20, 0]);
        assert_eq!(name(&mut packet, 79), (u16::MAX, 32));
    }
}
