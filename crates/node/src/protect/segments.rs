//! TCP's segments that come together: the kernel hands them to the agent as one packet, and takes them back as one, as if the
//! agent were a network card that cuts them (TSO). That saves most of the agent's cost.
//!
//! A virtio-net header ([`Offer`]), in the machine's byte order, precedes such a packet. TCP's checksum is then only
//! the sum over its pseudo-header; the code or card that cuts the packet completes it.
//!
//! A socket that takes these packets unchanged ([`open`]) is below IP. So they pass the firewall once, on their way
//! into the TUN, and their receiver's hardware address has to be known.

use std::io::{self, IoSlice};
use std::mem::{size_of, size_of_val, zeroed};
use std::os::fd::AsRawFd;

use socket2::{Domain, Protocol, Socket, Type};

use super::packet::{self, Packet};

const TCP: u8 = 6;
/// The offsets in TCP's header of the sequence number, the header's length (in the upper half of a byte), the flags and
/// the checksum.
const SEQUENCE: usize = 4;
const OFFSET: usize = 12;
const FLAGS: usize = 13;
const CHECKSUM: usize = 16;
const TCP_HEADER_BYTES: usize = 20;
/// The flags that only the last segment has, and those that only the first has.
const FIN_AND_PUSH: u8 = 0x09;
const WINDOW_REDUCED: u8 = 0x80;
/// `VIRTIO_NET_HDR_F_NEEDS_CSUM` and `VIRTIO_NET_HDR_GSO_TCPV4`.
const NEEDS_CHECKSUM: u8 = 1;
const OF_TCP4: u8 = 1;
/// The length of an Ethernet header: receiver, sender, and type.
const ETHERNET_BYTES: usize = 14;
const IPV4: u16 = 0x0800;
/// `PACKET_VNET_HDR`.
const PACKET_VNET_HDR: libc::c_int = 15;

/// A hardware address.
pub(super) type Hardware = [u8; 6];

/// The work that the kernel leaves to the reader of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Offer {
    /// The offset at which the sum begins, and the checksum's offset from there.
    checksum: Option<(usize, usize)>,
    /// The length of a segment, if the packet has to be cut.
    segment: Option<usize>,
}

impl Offer {
    /// The length of the header.
    pub const BYTES: usize = 10;

    pub fn read(header: &[u8; Offer::BYTES]) -> Offer {
        let word = |at: usize| usize::from(u16::from_ne_bytes([header[at], header[at + 1]]));
        Offer {
            checksum: (header[0] & NEEDS_CHECKSUM != 0).then(|| (word(6), word(8))),
            segment: (header[1] != 0).then(|| word(4)),
        }
    }

    /// Returns the header of a packet with an Ethernet header, which is to be cut into segments of this length. TCP and
    /// its data begin at these offsets.
    fn write(segment: usize, tcp_at: usize, data_at: usize) -> [u8; Offer::BYTES] {
        let mut header = [0; Offer::BYTES];
        (header[0], header[1]) = (NEEDS_CHECKSUM, OF_TCP4);
        let words = [data_at, segment, tcp_at, CHECKSUM];
        for (place, word) in header[2..].chunks_exact_mut(2).zip(words) {
            place.copy_from_slice(&(word as u16).to_ne_bytes());
        }
        header
    }

    /// Returns the length of a segment, if the packet consists of several.
    pub fn segment(&self) -> Option<usize> {
        self.segment
    }

    /// Completes the checksum of a packet, if the kernel left that.
    pub fn finish(&self, packet: &mut [u8]) {
        let Some((from, at)) = self.checksum else { return };
        if from + at + 2 <= packet.len() {
            // For UDP, 0 would mean that there is no checksum; for others, both values are equivalent.
            let sum = match !packet::ones_sum(&packet[from..], 0) {
                0 => u16::MAX,
                sum => sum,
            };
            packet[from + at..from + at + 2].copy_from_slice(&sum.to_be_bytes());
        }
    }
}

/// A packet of several TCP segments, from which some may have been cut.
#[derive(Clone, Debug)]
pub(super) struct Segments {
    bytes: Box<[u8]>,
    tcp_at: usize,
    data_at: usize,
    /// The number of data bytes of each segment but the last.
    each: usize,
    /// The number of data bytes that have been cut off.
    cut: usize,
}

impl Segments {
    /// Reads a packet of segments; `None` if it is something else.
    pub fn of(bytes: Box<[u8]>, each: usize) -> Option<Segments> {
        packet::head(&bytes)?;
        let tcp_at = packet::header_bytes(&bytes);
        let tcp = bytes.get(tcp_at..)?;
        let header = usize::from(*tcp.get(OFFSET)? >> 4) * 4;
        let data = tcp.len().checked_sub(header)?;
        let is_one = packet::protocol(&bytes) == TCP && header >= TCP_HEADER_BYTES && !packet::is_fragment(&bytes);
        (is_one && (1..data).contains(&each)).then_some(Segments {
            tcp_at,
            data_at: tcp_at + header,
            each,
            cut: 0,
            bytes,
        })
    }

    /// Returns the number of segments left.
    pub fn count(&self) -> usize {
        (self.bytes.len() - self.data_at - self.cut).div_ceil(self.each)
    }

    /// Returns the length of the longest segment as it leaves.
    pub fn longest(&self) -> usize {
        self.data_at + self.each
    }

    /// Returns the length of each segment that is left.
    pub fn lengths(&self) -> impl Iterator<Item = usize> + '_ {
        let left = self.bytes.len() - self.data_at - self.cut;
        (0..self.count()).map(move |place| self.data_at + self.each.min(left - place * self.each))
    }

    /// Returns the headers of the first segment.
    pub fn header(&self) -> &[u8] {
        &self.bytes[..self.data_at]
    }

    /// Cuts off at most this many segments, if there are more. Also returns by how much the rest is shorter.
    pub fn cut(&mut self, most: usize) -> Option<(Packet, u32)> {
        let most = most.max(1);
        if self.count() <= most {
            return None;
        }
        let data = most * self.each;
        let piece = self.piece(data);
        self.cut += data;
        Some((piece, data as u32))
    }

    /// Returns the rest.
    pub fn rest(self) -> Packet {
        match self.cut {
            0 => Packet::Segments(self),
            cut => self.piece(self.bytes.len() - self.data_at - cut),
        }
    }

    /// Returns the next segments, with this many bytes of data: as a complete packet if it is only one.
    fn piece(&self, data: usize) -> Packet {
        let from = self.data_at + self.cut;
        let (headers, tcp_at) = (&self.bytes[..self.data_at], self.tcp_at);
        let mut piece = [headers, &self.bytes[from..from + data]].concat();
        packet::set_length(&mut piece);
        packet::add_to_identification(&mut piece, (self.cut / self.each) as u16);
        let tcp = &mut piece[tcp_at..];
        let sequence = [tcp[SEQUENCE], tcp[SEQUENCE + 1], tcp[SEQUENCE + 2], tcp[SEQUENCE + 3]];
        let sequence = u32::from_be_bytes(sequence).wrapping_add(self.cut as u32);
        tcp[SEQUENCE..SEQUENCE + 4].copy_from_slice(&sequence.to_be_bytes());
        if from + data < self.bytes.len() {
            tcp[FLAGS] &= !FIN_AND_PUSH;
        }
        if self.cut > 0 {
            tcp[FLAGS] &= !WINDOW_REDUCED;
        }
        let pseudo = packet::pseudo_sum(&piece, tcp_at);
        piece[tcp_at + CHECKSUM..tcp_at + CHECKSUM + 2].copy_from_slice(&pseudo.to_be_bytes());
        if data <= self.each {
            let offer = Offer {
                checksum: Some((tcp_at, CHECKSUM)),
                segment: None,
            };
            offer.finish(&mut piece);
            return Packet::of(piece.into());
        }
        Packet::Segments(Segments {
            bytes: piece.into(),
            cut: 0,
            ..*self
        })
    }

    /// Returns the bytes, to be changed before they are sent.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// Hands the segments over together.
    pub fn send(&mut self, socket: &Socket, index: u32, from: Hardware, to: Hardware) -> io::Result<()> {
        packet::finish(&mut self.bytes);
        let mut ethernet = [0; ETHERNET_BYTES];
        ethernet[..6].copy_from_slice(&to);
        ethernet[6..12].copy_from_slice(&from);
        ethernet[12..].copy_from_slice(&IPV4.to_be_bytes());
        let offer = Offer::write(self.each, ETHERNET_BYTES + self.tcp_at, ETHERNET_BYTES + self.data_at);
        let parts = [IoSlice::new(&offer), IoSlice::new(&ethernet), IoSlice::new(&self.bytes)];
        hand_over(socket, index, &parts)
    }
}

/// Returns a socket that takes segments together, and receives nothing.
///
/// # Errors
/// If the kernel has no such socket.
#[allow(unsafe_code)]
pub(super) fn open() -> io::Result<Socket> {
    // With protocol 0, it receives nothing.
    let socket = Socket::new(Domain::PACKET, Type::RAW, Some(Protocol::from(0)))?;
    socket.set_nonblocking(true)?;
    let on: libc::c_int = 1;
    let length = size_of_val(&on) as libc::socklen_t;
    // SAFETY: the descriptor is open while it is borrowed, and the kernel reads `length` bytes of a live `c_int`.
    let set = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            PACKET_VNET_HDR,
            (&raw const on).cast(),
            length,
        )
    };
    match set {
        0 => Ok(socket),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns whether frames of an interface begin with an Ethernet header and nothing else. The kernel learns from the
/// interface where IP begins, and silently drops what it cannot cut: some cards and some VLANs put another header
/// before IP. The kernel checks the length of a frame before it reads it. So two unreadable frames of different lengths
/// reveal the header's length, and are never sent.
pub(super) fn has_plain_frames(socket: &Socket, index: u32, mtu: usize) -> bool {
    const VLAN_BYTES: usize = 4;
    let longest = mtu + ETHERNET_BYTES + VLAN_BYTES;
    let refused = |bytes| unreadable(socket, index, bytes).raw_os_error();
    refused(longest) == Some(libc::EFAULT) && refused(longest + 1) == Some(libc::EMSGSIZE)
}

/// Offers the kernel a frame of this many bytes at an unmapped address, and returns the error.
#[allow(unsafe_code)]
fn unreadable(socket: &Socket, index: u32, bytes: usize) -> io::Error {
    let offer = [0u8; Offer::BYTES];
    let parts = [
        libc::iovec {
            iov_base: offer.as_ptr().cast_mut().cast(),
            iov_len: offer.len(),
        },
        libc::iovec {
            iov_base: std::ptr::null_mut(),
            iov_len: bytes,
        },
    ];
    // SAFETY: the kernel only reads the parts, and checks each address as it does.
    match unsafe { send(socket, index, parts.as_ptr(), parts.len()) } {
        Ok(()) => io::ErrorKind::Other.into(),
        Err(error) => error,
    }
}

/// Sends one frame by the interface with this number.
#[allow(unsafe_code)]
fn hand_over(socket: &Socket, index: u32, parts: &[IoSlice<'_>]) -> io::Result<()> {
    // SAFETY: an `IoSlice` is an `iovec`, and all of them outlive the call.
    unsafe { send(socket, index, parts.as_ptr().cast(), parts.len()) }
}

/// # Safety
/// There must be this many parts, which the kernel only reads.
#[allow(unsafe_code)]
unsafe fn send(socket: &Socket, index: u32, parts: *const libc::iovec, count: usize) -> io::Result<()> {
    // SAFETY: all zeroes is a valid address, and a valid message.
    let (mut to, mut message): (libc::sockaddr_ll, libc::msghdr) = unsafe { (zeroed(), zeroed()) };
    to.sll_family = libc::AF_PACKET as u16;
    to.sll_protocol = IPV4.to_be();
    to.sll_ifindex = index as libc::c_int;
    message.msg_name = (&raw mut to).cast();
    message.msg_namelen = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    message.msg_iov = parts.cast_mut();
    message.msg_iovlen = count as _;
    // SAFETY: the address outlives the call, and so do the parts, as the caller guarantees.
    match unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, 0) } {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use coorp_core::protect::Class;
    use proptest::prelude::*;

    use super::*;
    use crate::protect::card;

    /// Returns segments of `each` bytes, with options in both headers, and these flags.
    fn together(data: usize, each: usize, flags: u8) -> Segments {
        let mut packet = vec![
            0x46, 0, 0, 0, 0xff, 0xfe, 0x40, 0, 64, TCP, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 1, 1, 1, 0,
        ];
        packet.extend([
            0x13,
            0x88,
            0x14,
            0x51,
            0xff,
            0xff,
            0xff,
            0x00,
            0,
            0,
            0,
            1,
            8 << 4,
            flags,
            1,
            0,
            0,
            0,
            0,
            0,
        ]);
        packet.extend([1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2]);
        packet.extend((0..data).map(|byte| byte as u8));
        packet::set_length(&mut packet);
        Segments::of(packet.into(), each).unwrap()
    }

    /// Checks a complete segment; returns its sequence number, its identification, its flags and its data.
    fn read(one: &[u8]) -> (u32, u16, u8, Vec<u8>) {
        assert!(packet::head(one).is_some());
        let pseudo = packet::pseudo_sum(one, 24);
        assert_eq!(
            packet::ones_sum(&one[24..], u32::from(pseudo)),
            u16::MAX,
            "the checksum"
        );
        let sequence = u32::from_be_bytes([one[28], one[29], one[30], one[31]]);
        (
            sequence,
            u16::from_be_bytes([one[4], one[5]]),
            one[24 + FLAGS],
            one[56..].to_vec(),
        )
    }

    #[test]
    fn a_mark_is_that_of_all_segments() {
        let mut packet = Packet::Segments(together(250, 100, 0));
        packet::set_dscp(packet.bytes_mut(), 34);
        card::mark(packet.bytes_mut(), Class::Ordinary);
        let marks = |packet: &Packet| {
            packet
                .clone()
                .one_by_one()
                .iter()
                .map(|one| packet::dscp(one))
                .collect::<Vec<_>>()
        };
        assert_eq!(marks(&packet), [34, 34, 34]);
        card::mark(packet.bytes_mut(), Class::Bulk);
        assert_eq!(marks(&packet), [0, 0, 0]);
    }

    #[test]
    fn segments_are_what_the_kernel_would_have_cut() {
        // FIN, PSH, ACK and CWR.
        let ones = Packet::Segments(together(250, 100, 0x99)).one_by_one();
        let ones: Vec<_> = ones.iter().map(|one| read(one)).collect();
        let data: Vec<u8> = (0..250).map(|byte| byte as u8).collect();
        assert_eq!(
            ones,
            [
                (0xffff_ff00, 0xfffe, 0x90, data[..100].to_vec()),
                (0xffff_ff64, 0xffff, 0x10, data[100..200].to_vec()),
                (0xffff_ffc8, 0, 0x19, data[200..].to_vec()),
            ]
        );
    }

    proptest! {
        #[test]
        fn however_they_are_cut_the_same_segments_come_out(
            data in 2usize..20_000,
            each in 1usize..2_000,
            flags: u8,
            cuts in prop::collection::vec(0usize..40, 0..20),
        ) {
            prop_assume!(each < data);
            let whole = together(data, each, flags);
            let mut wanted = Packet::Segments(whole.clone()).one_by_one();
            prop_assert_eq!(wanted.len(), whole.count());
            prop_assert!(whole.lengths().eq(wanted.iter().map(|one| one.len())));
            wanted.iter_mut().for_each(|one| packet::finish(one));
            let (mut rest, mut pieces) = (whole, Vec::new());
            for most in cuts {
                let before = rest.count();
                if let Some((piece, bytes)) = rest.cut(most) {
                    prop_assert!(piece.count() == most.max(1) && bytes as usize == most.max(1) * each);
                    prop_assert_eq!(rest.count(), before - piece.count());
                    pieces.push(piece);
                }
            }
            pieces.push(rest.rest());
            let mut cut: Vec<_> = pieces.into_iter().flat_map(Packet::one_by_one).collect();
            cut.iter_mut().for_each(|one| packet::finish(one));
            for one in &cut {
                read(one);
            }
            prop_assert_eq!(cut, wanted);
        }

        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..120), header: [u8; Offer::BYTES], each in 0usize..200) {
            let offer = Offer::read(&header);
            let mut packet = bytes.clone();
            offer.finish(&mut packet);
            for mut bytes in [bytes.clone(), { let mut tcp = bytes; if tcp.len() > 44 { (tcp[0], tcp[6], tcp[7], tcp[9]) = (0x45, 0, 0, TCP); } tcp }] {
                if bytes.len() >= 20 {
                    packet::set_length(&mut bytes);
                }
                if let Some(segments) = Segments::of(bytes.into(), each) {
                    prop_assert!(segments.count() > 1);
                    Packet::Segments(segments).one_by_one();
                }
            }
        }
    }

    #[test]
    fn what_is_left_to_do_is_read_and_written() {
        let written = Offer::write(1_448, 34, 66);
        let offer = Offer::read(&written);
        assert_eq!((offer.segment(), offer.checksum), (Some(1_448), Some((34, 16))));
        assert_eq!(Offer::read(&[0; Offer::BYTES]), Offer::default());
    }
}
