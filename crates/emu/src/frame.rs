//! Reads what a WiFi card needs to know about an Ethernet frame: its destination, access category and flow.
//!
//! The category follows from the DSCP as Linux stations map it (RFC 8325, section 4, and IEEE 802.11-2020, table 10-1
//! from user priority to category), or from a VLAN tag's priority. Left out: a socket's own priority (`SO_PRIORITY` 256
//! to 263), which does not cross a TAP, and QoS maps announced by an access point.

use std::hash::{DefaultHasher, Hash, Hasher};

use coorp_air::{AccessCategory, StationId};

/// Size of an Ethernet header.
pub const HEADER_BYTES: usize = 14;
/// The largest frame that an interface accepts: 1500 bytes after a header with a VLAN tag.
pub const FRAME_BYTES_MAX: usize = 1_500 + HEADER_BYTES + 4;

const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const VLAN: u16 = 0x8100;
const TCP: u8 = 6;
const UDP: u8 = 17;

/// A hardware address.
pub type Mac = [u8; 6];

/// Returns the address of a station's card: locally administered and readable.
pub fn mac(interface: usize, station: StationId) -> Mac {
    let [high, low] = station.0.to_be_bytes();
    [0x02, b'c', b'o', interface as u8, high, low]
}

/// The destination of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// To one station.
    Station(StationId),
    /// All stations: broadcast or multicast.
    Group,
    /// An address that no station has.
    Nobody,
}

/// The facts about a frame that a card needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The destination.
    pub to: Destination,
    /// The access category in which it is queued.
    pub category: AccessCategory,
    /// Equal for packets of one flow: a hash of addresses, protocol and ports.
    pub flow: u32,
}

/// Parses a frame that `from` sends on an interface with `stations` stations. Returns `None` if it is not a frame, too
/// long, or has a foreign sender address: an access point drops frames from stations that it does not know.
pub fn read(frame: &[u8], interface: usize, from: StationId, stations: u16) -> Option<Header> {
    if frame.len() > FRAME_BYTES_MAX || frame.get(6..12)? != mac(interface, from) {
        return None;
    }
    let to: Mac = frame.get(0..6)?.try_into().ok()?;
    let station = StationId(u16::from_be_bytes([to[4], to[5]]));
    let destination = if to[0] & 1 == 1 {
        Destination::Group
    } else if mac(interface, station) == to && station.0 < stations && station != from {
        Destination::Station(station)
    } else {
        Destination::Nobody
    };
    let mut ethertype = be16(frame, 12)?;
    let (mut payload, mut tag) = (frame.get(HEADER_BYTES..)?, None);
    if ethertype == VLAN {
        tag = Some(be16(payload, 0)? >> 13);
        ethertype = be16(payload, 2)?;
        payload = payload.get(4..)?;
    }
    let priority = match (tag, ethertype) {
        (Some(tag), _) => tag as u8,
        (None, IPV4) => user_priority(payload.get(1)? >> 2),
        (None, IPV6) => user_priority((be16(payload, 0)? >> 6 & 0x3f) as u8),
        _ => 0,
    };
    Some(Header {
        to: destination,
        category: category(priority),
        flow: flow(ethertype, payload),
    })
}

/// Returns the source port and payload length of the UDP datagram in a frame. `None` if there is no datagram, or only a
/// fragment after the first.
pub fn datagram(frame: &[u8]) -> Option<(u16, u16)> {
    let packet = frame.get(HEADER_BYTES..)?;
    let (protocol, header) = match be16(frame, 12)? {
        IPV4 if be16(packet, 6)? & 0x1fff == 0 => (*packet.get(9)?, 4 * usize::from(packet[0] & 0xf)),
        IPV6 => (*packet.get(6)?, 40),
        _ => return None,
    };
    let datagram = packet.get(header..).filter(|_| protocol == UDP)?;
    Some((be16(datagram, 0)?, be16(datagram, 4)?.checked_sub(8)?))
}

/// Returns the identification and the total length of the IPv4 packet in a frame, a fragment or not.
pub fn packet(frame: &[u8]) -> Option<(u16, u16)> {
    let packet = frame.get(HEADER_BYTES..)?;
    let whole = be16(frame, 12)? == IPV4 && packet.len() >= 20;
    let total = be16(packet, 2).filter(|total| whole && usize::from(*total) <= packet.len())?;
    Some((be16(packet, 4)?, total))
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

/// Returns the 802.1D user priority of a DSCP: its upper three bits, unless RFC 8325 says otherwise.
fn user_priority(dscp: u8) -> u8 {
    match dscp {
        // VOICE-ADMIT and EF: telephony. CS6: network control.
        44 | 46 => 6,
        48 => 7,
        // AF31 to AF33 and CS3: streams and broadcast video.
        24 | 26 | 28 | 30 => 4,
        // AF21 to AF23: low latency data.
        18 | 20 | 22 => 3,
        // CS2 and AF11 to AF13: administration, high throughput data.
        16 | 10 | 12 | 14 => 0,
        _ => dscp >> 3,
    }
}

fn category(user_priority: u8) -> AccessCategory {
    match user_priority {
        1 | 2 => AccessCategory::Background,
        4 | 5 => AccessCategory::Video,
        6 | 7 => AccessCategory::Voice,
        _ => AccessCategory::BestEffort,
    }
}

/// Returns a hash of the fields that distinguish flows. Fragments after the first have no ports, so a fragmented
/// datagram is hashed only by its addresses and protocol.
fn flow(ethertype: u16, payload: &[u8]) -> u32 {
    let mut hasher = DefaultHasher::new();
    ethertype.hash(&mut hasher);
    let (addresses, protocol, ports) = match ethertype {
        IPV4 => {
            let header = payload.first().map_or(0, |first| usize::from(first & 0xf) * 4);
            let fragment = be16(payload, 6).is_some_and(|field| field & 0x3fff != 0);
            let ports = (!fragment).then(|| payload.get(header..header + 4)).flatten();
            (payload.get(12..20), payload.get(9), ports)
        }
        IPV6 => (payload.get(8..40), payload.get(6), payload.get(40..44)),
        _ => (None, None, None),
    };
    (addresses, protocol).hash(&mut hasher);
    if protocol.is_some_and(|protocol| matches!(*protocol, TCP | UDP)) {
        ports.hash(&mut hasher);
    }
    hasher.finish() as u32
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns an IPv4 UDP frame with this DSCP and source port.
    pub(crate) fn udp(from: u16, to: Mac, dscp: u8, port: u16, bytes: usize) -> Vec<u8> {
        let mut frame = [to, mac(0, StationId(from))].concat();
        frame.extend(IPV4.to_be_bytes());
        frame.extend([0x45, dscp << 2, 0, 0, 0, 0, 0, 0, 64, UDP, 0, 0]);
        frame.extend([10, 77, 0, 1, 10, 77, 0, 2]);
        frame.extend(port.to_be_bytes());
        frame.extend([0, 0]);
        frame.extend((bytes.saturating_sub(HEADER_BYTES + 20) as u16).to_be_bytes());
        frame.resize(bytes, 0);
        frame
    }

    /// Returns the frame as an IPv4 packet of this protocol, with its identification and its flags and fragment offset.
    pub(crate) fn ipv4(mut frame: Vec<u8>, protocol: u8, identification: u16, fragment: u16) -> Vec<u8> {
        let total = (frame.len() - HEADER_BYTES) as u16;
        frame[16..18].copy_from_slice(&total.to_be_bytes());
        frame[18..20].copy_from_slice(&identification.to_be_bytes());
        frame[20..22].copy_from_slice(&fragment.to_be_bytes());
        frame[23] = protocol;
        frame
    }

    fn header(frame: &[u8]) -> Option<Header> {
        read(frame, 0, StationId(1), 3)
    }

    #[test]
    fn dscp_becomes_a_category_as_on_linux() {
        use AccessCategory::{Background, BestEffort, Video, Voice};
        let cases = [
            (0, BestEffort),
            (46, Voice),
            (44, Voice),
            (48, Voice),
            (56, Voice),
            (40, Video),
            (34, Video),
            (26, Video),
            (18, BestEffort),
            (10, BestEffort),
            (16, BestEffort),
            (8, Background),
            (1, BestEffort),
        ];
        for (dscp, wanted) in cases {
            let found = header(&udp(1, mac(0, StationId(2)), dscp, 1, 100)).map(|header| header.category);
            assert_eq!(found, Some(wanted), "DSCP {dscp}");
        }
    }

    #[test]
    fn ipv6_and_vlan_priorities_count_too() {
        let mut frame = udp(1, mac(0, StationId(2)), 0, 1, 100);
        frame[12..14].copy_from_slice(&IPV6.to_be_bytes());
        frame[14..16].copy_from_slice(&[0x6b, 0x80]);
        assert_eq!(
            header(&frame).map(|header| header.category),
            Some(AccessCategory::Voice)
        );
        frame[12..14].copy_from_slice(&VLAN.to_be_bytes());
        frame[14..18].copy_from_slice(&[0x20, 0x05, 0x08, 0x06]);
        assert_eq!(
            header(&frame).map(|header| header.category),
            Some(AccessCategory::Background)
        );
    }

    #[test]
    fn destinations_are_told_apart() {
        let to = |address| header(&udp(1, address, 0, 1, 100)).map(|header| header.to);
        assert_eq!(to(mac(0, StationId(2))), Some(Destination::Station(StationId(2))));
        assert_eq!(to([0xff; 6]), Some(Destination::Group));
        assert_eq!(to([0x33, 0x33, 0, 0, 0, 1]), Some(Destination::Group));
        assert_eq!(
            to(mac(0, StationId(3))),
            Some(Destination::Nobody),
            "there are three stations"
        );
        assert_eq!(
            to(mac(1, StationId(2))),
            Some(Destination::Nobody),
            "of another interface"
        );
        assert_eq!(to(mac(0, StationId(1))), Some(Destination::Nobody), "itself");
    }

    #[test]
    fn flows_differ_by_port_and_fragments_do_not() {
        let flow = |frame: &[u8]| header(frame).map(|header| header.flow);
        let frame = |port| udp(1, mac(0, StationId(2)), 0, port, 100);
        assert_ne!(flow(&frame(1)), flow(&frame(2)));
        assert_eq!(flow(&frame(1)), flow(&frame(1)));
        let fragment = |port, field| {
            let mut frame = frame(port);
            frame[20] = field;
            flow(&frame)
        };
        assert_eq!(fragment(1, 0x20), fragment(7, 0x01));
    }

    #[test]
    fn packets_are_known_by_identification_and_length() {
        let frame = udp(1, mac(0, StationId(2)), 0, 1, 100);
        assert_eq!(packet(&ipv4(frame.clone(), 6, 0xabcd, 0x00b9)), Some((0xabcd, 86)));
        // Short frames are padded, and a packet longer than its frame is invalid.
        let padded = [ipv4(frame.clone(), 6, 7, 0), vec![0; 9]].concat();
        assert_eq!(packet(&padded), Some((7, 86)));
        assert_eq!(packet(&ipv4(frame.clone(), 6, 7, 0)[..99]), None);
        let mut arp = ipv4(frame, 6, 7, 0);
        arp[12..14].copy_from_slice(&0x0806u16.to_be_bytes());
        assert_eq!(packet(&arp), None);
    }

    #[test]
    fn what_is_no_frame_of_the_station_is_refused() {
        assert_eq!(
            header(&udp(2, mac(0, StationId(0)), 0, 1, 100)),
            None,
            "another's address"
        );
        assert_eq!(header(&udp(1, mac(0, StationId(2)), 0, 1, FRAME_BYTES_MAX + 1)), None);
        let frame = udp(1, mac(0, StationId(2)), 0, 1, 100);
        for end in 0..16 {
            assert_eq!(header(&frame[..end]), None, "{end} bytes");
        }
        assert!(header(&frame[..16]).is_some(), "short, but it has a DSCP");
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(head in prop::sample::select(vec![IPV4, IPV6, VLAN, 0x0806]),
                                         body in prop::collection::vec(any::<u8>(), 0..80), to: [u8; 6]) {
            let frame = [&to, &mac(0, StationId(1)), head.to_be_bytes().as_slice(), &body].concat();
            for end in 0..=frame.len() {
                prop_assert!(datagram(&frame[..end]).is_none() || end >= HEADER_BYTES + 28);
                let packet = packet(&frame[..end]).map(|(_, total)| HEADER_BYTES + usize::from(total));
                prop_assert!(packet.is_none_or(|whole| head == IPV4 && end >= whole.max(HEADER_BYTES + 20)));
                if let Some(header) = header(&frame[..end]) {
                    let known = !matches!(header.to, Destination::Station(StationId(station)) if station > 2 || station == 1);
                    prop_assert!(known && end >= HEADER_BYTES);
                }
            }
        }
    }
}
