//! IPv4 packets, as far as the agent reads and changes them.

use std::net::Ipv4Addr;

use coorp_core::protect::{Flow, Head};

const TCP: u8 = 6;
const UDP: u8 = 17;
const HEADER_BYTES: usize = 20;
/// Where a header has its type of service, its identification and its checksum.
const TOS: usize = 1;
const IDENTIFICATION: usize = 4;
const CHECKSUM: usize = 10;

/// Reads a packet's head; `None` if it is not an IPv4 packet of exactly this length.
pub(super) fn head(packet: &[u8]) -> Option<Head> {
    let header = packet.get(..HEADER_BYTES)?;
    let length = usize::from(header[0] & 0x0f) * 4;
    if header[0] >> 4 != 4 || length < HEADER_BYTES || usize::from(word(header, 2)) != packet.len() {
        return None;
    }
    let protocol = header[9];
    let ports = packet.get(length..length + 4);
    let ports = ports.filter(|_| !is_fragment(header) && [TCP, UDP].contains(&protocol));
    let (from, to) = ports.map_or((0, 0), |ports| (word(ports, 0), word(ports, 2)));
    Some(Head {
        flow: Flow {
            protocol,
            from: (
                Ipv4Addr::new(header[12], header[13], header[14], header[15]).into(),
                from,
            ),
            to: (self::to(packet).into(), to),
        },
        bytes: packet.len() as u32,
        dscp: dscp(packet),
    })
}

/// Whether it is a part of a longer packet. Only the first has ports, so all go by addresses alone.
fn is_fragment(header: &[u8]) -> bool {
    word(header, 6) & 0x3fff != 0
}

/// A packet's DSCP.
pub(super) fn dscp(packet: &[u8]) -> u8 {
    packet[TOS] >> 2
}

/// The receiver's address.
pub(super) fn to(packet: &[u8]) -> Ipv4Addr {
    Ipv4Addr::new(packet[16], packet[17], packet[18], packet[19])
}

/// Sets the DSCP and leaves ECN as it is. The kernel computes the header's checksum when the packet is sent.
pub(super) fn set_dscp(packet: &mut [u8], dscp: u8) {
    packet[TOS] = dscp << 2 | packet[TOS] & 0b11;
}

/// The identification and the total length, by which the emulator names a packet. The kernel sets an identification of 0 to
/// something else, so `fresh` does it; all fragments of a packet get the same one.
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

    /// A UDP packet with a payload.
    fn udp(payload: &[u8]) -> Vec<u8> {
        let length = (28 + payload.len()) as u16;
        let mut packet = vec![0x45, 0xb9, 0, 0, 0, 0, 0x40, 0, 64, UDP, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        packet[2..4].copy_from_slice(&length.to_be_bytes());
        packet.extend([0x13, 0x88, 0x13, 0x89, 0, 0, 0, 0]);
        packet.extend(payload);
        packet
    }

    #[test]
    fn heads_are_read_and_fragments_have_no_ports() {
        let mut packet = udp(b"pose");
        let flow = Flow {
            protocol: UDP,
            from: (IpAddr::from([10, 0, 0, 1]), 5_000),
            to: (IpAddr::from([10, 0, 0, 2]), 5_001),
        };
        assert_eq!(
            head(&packet),
            Some(Head {
                flow,
                bytes: 32,
                dscp: 46
            })
        );
        for fragment in [[0x20, 0], [0x20, 1], [0, 1]] {
            packet[6..8].copy_from_slice(&fragment);
            let head = head(&packet).unwrap();
            assert_eq!((head.flow.from.1, head.flow.to.1), (0, 0));
        }
        packet[9] = 1;
        assert_eq!(head(&packet).unwrap().flow.protocol, 1);
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
        assert_eq!(head(&options).unwrap().flow.from.1, 0, "the ports are beyond its end");
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
