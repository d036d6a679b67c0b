//! Below the gate: raw sockets, one of them for control, and the packets that they have handed to the card. TCP's
//! segments that come together leave together, by a third socket (`segments.rs`).
//!
//! The sockets' send queues show which packets have left ([`crate::outqueue`]). These also count packets that wait for
//! their receiver's hardware address, which takes seconds if that receiver is absent. So packets to a receiver without
//! a known address (`neighbours.rs`) go through a separate socket, which counts nothing.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::ops::Range;

use coorp_core::protect::Class;
use coorp_core::{Duration, FlowId, Instant};
use nix::sys::socket::{setsockopt, sockopt};
use rustix::net::addr::SocketAddrArg;
use rustix::net::{sendmmsg, MMsgHdr, SendAncillaryBuffer, SendFlags};
use socket2::{Domain, Protocol, Socket, Type};

use super::fragments;
use super::neighbours::Neighbours;
use super::packet::{self, Packet};
use super::routes::Outlet;
use super::segments::{self, Hardware, Segments};
use crate::links::TOS_VOICE;
use crate::outqueue::{EmulatedPackets, OutQueue};

/// Maximum number of packets that are handed over together.
pub(super) const TOGETHER_MAX: usize = 16;
/// Maximum number of sends that are followed.
const FOLLOWED_MAX: usize = 4_096;
/// Packets that the card holds for this long are missing from its count.
const HELD_MAX: Duration = Duration::from_secs(10);
const CONTROL_HELD_MAX: Duration = Duration::from_millis(100);
/// The size of a socket's send buffer. The gate keeps it nearly empty.
const SEND_BUFFER_BYTES: usize = 4 << 20;
/// The `skb->priority` for user priority 6 (AC_VO), whatever the DSCP: 256 plus the priority.
const PRIORITY_VOICE: u32 = 256 + 6;
/// The lowest DSCP that WiFi does not map to AC_BE or AC_BK.
const DSCP_VIDEO: u8 = 32;
/// The sockets' numbers for the emulator.
const VOICE: usize = 0;
const REST: usize = 1;
const TOGETHER: usize = 2;

/// The sockets over one interface.
pub(super) struct Card {
    voice: RawSocket,
    rest: RawSocket,
    /// The socket for segments that leave together, with the sender's hardware address; `None` if the interface or the
    /// kernel takes none.
    together: Option<(RawSocket, Hardware)>,
    /// The interface's number.
    index: u32,
    /// The number of packets that have left, except control.
    left: u64,
    /// The socket for receivers whose hardware address is unknown.
    unknown: Socket,
    neighbours: Neighbours,
    emulated: Option<EmulatedPackets>,
    /// The identification of the next packet that has none.
    fresh: u16,
}

/// A raw socket, and the packets that it has handed over.
struct RawSocket {
    /// The number for the emulator.
    number: usize,
    socket: Socket,
    queue: OutQueue,
    /// The sends handed over that have not left, in order.
    sends: VecDeque<Sent>,
    /// The number of these packets.
    below: usize,
    /// The end of the newest packet in the send queue.
    mark: u64,
    /// A packet that the card holds for longer is missing from its count.
    held_max: Duration,
}

/// A packet that was handed over, or several segments.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    /// The time of the handover.
    pub at: Instant,
    /// The number of packets that had left then, and the number once this one had left.
    pub left_before: u64,
    pub left_by: u64,
    /// The flow, if the packet is control and the robot knows the flow.
    pub flow: Option<FlowId>,
    pub class: Class,
    packets: usize,
    /// The end in the send queue.
    mark: u64,
    bytes: usize,
}

impl Card {
    pub fn open(outlet: &Outlet) -> io::Result<Card> {
        let emulated = EmulatedPackets::connect(&outlet.interface, 3)?;
        let voice = RawSocket::open(outlet, VOICE, emulated.as_ref(), CONTROL_HELD_MAX)?;
        voice.socket.set_priority(PRIORITY_VOICE)?;
        let together = outlet.hardware.filter(|_| outlet.has_neighbours).and_then(|own| {
            let socket = segments::open().and_then(|socket| {
                let plain = segments::has_plain_frames(&socket, outlet.index, outlet.mtu);
                let unlike = || io::Error::other(format!("frames of {} are not plain Ethernet", outlet.interface));
                plain.then_some(socket).ok_or_else(unlike)
            });
            let opened = socket.and_then(|socket| RawSocket::by(socket, TOGETHER, emulated.as_ref(), HELD_MAX));
            let kept = opened.inspect_err(|error| tracing::info!("TCP segments are sent one by one: {error}"));
            kept.ok().map(|socket| (socket, own))
        });
        Ok(Card {
            voice,
            rest: RawSocket::open(outlet, REST, emulated.as_ref(), HELD_MAX)?,
            together,
            index: outlet.index,
            left: 0,
            unknown: open_raw(outlet)?,
            neighbours: Neighbours::of(outlet),
            emulated,
            fresh: 1,
        })
    }

    /// Returns the number of packets below, except control.
    pub fn below(&self) -> usize {
        self.rest.below + self.together.as_ref().map_or(0, |(socket, _)| socket.below)
    }

    /// Returns whether nothing is below.
    pub fn is_empty(&self) -> bool {
        self.voice.below + self.below() == 0
    }

    /// Returns whether segments can be sent together.
    pub fn takes_segments(&self) -> bool {
        self.together.is_some()
    }

    /// Returns how many segments may leave together now to a receiver, at most `most`.
    pub fn together(&mut self, receiver: Ipv4Addr, most: usize, now: Instant) -> usize {
        if self.together.is_some() && self.neighbours.hardware(receiver, now).is_some() {
            most
        } else {
            1
        }
    }

    /// Uses a time at which no packet is urgent to refresh the neighbours.
    pub fn rest(&mut self, now: Instant) {
        self.neighbours.refresh(now);
    }

    /// Returns whether everything handed over until then has left.
    pub fn has_sent_until(&self, then: Instant) -> bool {
        let together = self.together.as_ref().map(|(socket, _)| socket);
        let sockets = [&self.voice, &self.rest].into_iter().chain(together);
        let mut oldest = sockets.filter_map(|socket| socket.sends.front());
        oldest.all(|sent| sent.at > then)
    }

    /// Sends packets of one class, at most [`TOGETHER_MAX`]. With `flow`, they are a message of that flow, which has
    /// left once the last packet has. Packets that the kernel does not take are lost: their link is down, or they are
    /// too long.
    pub fn send(&mut self, packets: Vec<Packet>, class: Class, flow: Option<FlowId>, now: Instant) {
        let mut ones = Vec::with_capacity(packets.len());
        for packet in packets {
            match packet {
                Packet::One(one) => ones.push(one.into_bytes()),
                Packet::Segments(segments) => {
                    // Keep the order.
                    self.send_ones(std::mem::take(&mut ones), class, flow, now);
                    self.send_segments(segments, class, now);
                }
            }
        }
        self.send_ones(ones, class, flow, now);
    }

    /// Sends a packet of bulk that needs no permit. It keeps bulk's marks, so that it cannot overtake its flow's others.
    pub fn pass(&mut self, mut packet: Packet, now: Instant) {
        mark(packet.bytes_mut(), Class::Bulk);
        self.send_ones(packet.one_by_one(), Class::Ordinary, None, now);
    }

    fn send_ones(&mut self, mut packets: Vec<Box<[u8]>>, class: Class, flow: Option<FlowId>, now: Instant) {
        if packets.is_empty() {
            return;
        }
        let mut ready = Vec::with_capacity(packets.len());
        for packet in &mut packets {
            mark(packet, class);
            let name = self.name(packet);
            let receiver = packet::to(packet);
            let to = SocketAddrV4::new(receiver, 0);
            if self.neighbours.knows(receiver, now) {
                ready.push((&**packet, to, name));
            } else if let Err(error) = self.unknown.send_to(packet, &to.into()) {
                tracing::debug!("a packet to {receiver} is lost: {error}");
            }
        }
        let by = if class == Class::Control {
            &mut self.voice
        } else {
            &mut self.rest
        };
        for (at, mark) in by.hand_over(&ready) {
            let (packet, _, name) = &ready[at];
            if let Some(emulated) = &mut self.emulated {
                emulated.expect(*name, by.number);
            }
            self.left += by.push(Sent {
                at: now,
                left_before: self.left,
                left_by: self.left,
                flow: flow.filter(|_| at + 1 == ready.len()),
                class,
                packets: 1,
                mark,
                bytes: packet.len(),
            });
        }
    }

    /// Sends segments that are not control together, to a receiver whose hardware address is known.
    fn send_segments(&mut self, mut segments: Segments, class: Class, now: Instant) {
        mark(segments.bytes_mut(), class);
        let (first, _) = self.name(segments.bytes_mut());
        let receiver = packet::to(segments.header());
        let to = self.neighbours.hardware(receiver, now);
        let (Some((by, own)), Some(to)) = (&mut self.together, to) else {
            // The address was known a moment ago.
            return self.send_ones(Packet::Segments(segments).one_by_one(), class, None, now);
        };
        let lengths: Vec<usize> = segments.lengths().collect();
        let (bytes, packets) = (lengths.iter().sum(), lengths.len());
        // Both the kernel and the emulator count one packet per segment.
        let (own, index, socket) = (*own, self.index, &by.socket);
        let sent = by.queue.send(bytes, packets, || segments.send(socket, index, own, to));
        let mark = match sent {
            Ok(mark) => mark,
            Err(error) => return tracing::debug!("{packets} segments to {receiver} are lost: {error}"),
        };
        by.mark = mark;
        if let Some(emulated) = &mut self.emulated {
            for (place, length) in lengths.iter().enumerate() {
                emulated.expect((first.wrapping_add(place as u16), *length as u16), by.number);
            }
        }
        self.left += by.push(Sent {
            at: now,
            left_before: self.left,
            left_by: self.left,
            flow: None,
            class,
            packets,
            mark,
            bytes,
        });
    }

    /// Gives a packet an identification if it has none. Returns the packet's name for the emulator.
    pub fn name(&mut self, packet: &mut [u8]) -> (u16, u16) {
        let name = packet::name(packet, self.fresh);
        if name.0 == self.fresh {
            self.fresh = self.fresh.wrapping_add(1).max(1);
        }
        name
    }

    /// Returns the packets that have left since the last call.
    pub fn left(&mut self, now: Instant) -> Vec<Sent> {
        if let Some(emulated) = &mut self.emulated {
            emulated.read();
        }
        let mut left = Vec::new();
        let together = self.together.as_mut().map(|(socket, _)| socket);
        for socket in [&mut self.voice, &mut self.rest].into_iter().chain(together) {
            // The emulator may still report what was given up.
            if !socket.sends.is_empty() || self.emulated.is_some() {
                socket.take_left(now, &mut left);
            }
        }
        for sent in left.iter_mut().filter(|sent| sent.class != Class::Control) {
            self.left += sent.packets as u64;
            sent.left_by = self.left;
        }
        left
    }
}

/// Sets the marks that bulk and control need.
pub(super) fn mark(packet: &mut [u8], class: Class) {
    match class {
        Class::Control => packet::set_dscp(packet, TOS_VOICE >> 2),
        Class::Bulk if packet::dscp(packet) >= DSCP_VIDEO => packet::set_dscp(packet, 0),
        Class::Bulk | Class::Ordinary => {}
    }
}

/// Returns a socket whose packets leave by one interface.
fn open_raw(outlet: &Outlet) -> io::Result<Socket> {
    // With this protocol, packets are sent with their headers, and nothing is ever received.
    let raw = Protocol::from(libc::IPPROTO_RAW);
    let socket = Socket::new(Domain::IPV4, Type::RAW, Some(raw))?;
    socket.bind_device(Some(outlet.interface.as_bytes()))?;
    socket.set_nonblocking(true)?;
    fragments::keep(&socket)?;
    Ok(socket)
}

impl RawSocket {
    fn open(
        outlet: &Outlet,
        number: usize,
        emulated: Option<&EmulatedPackets>,
        held_max: Duration,
    ) -> io::Result<RawSocket> {
        RawSocket::by(open_raw(outlet)?, number, emulated, held_max)
    }

    fn by(
        socket: Socket,
        number: usize,
        emulated: Option<&EmulatedPackets>,
        held_max: Duration,
    ) -> io::Result<RawSocket> {
        // This is more than the system usually allows, but root may have it.
        setsockopt(&socket, sockopt::SndBufForce, &SEND_BUFFER_BYTES)
            .or_else(|_| setsockopt(&socket, sockopt::SndBuf, &SEND_BUFFER_BYTES))?;
        let queue = OutQueue::of(&socket, emulated.map(|emulated| emulated.freed(number)))?;
        Ok(RawSocket {
            number,
            socket,
            queue,
            sends: VecDeque::new(),
            below: 0,
            mark: 0,
            held_max,
        })
    }

    /// Hands packets over to the kernel. Returns the indices of those that it took, each with its end in the send
    /// queue.
    fn hand_over<T>(&mut self, packets: &[(&[u8], SocketAddrV4, T)]) -> Vec<(usize, u64)> {
        let slices: Vec<_> = packets.iter().map(|(packet, ..)| [IoSlice::new(packet)]).collect();
        let addresses: Vec<_> = packets.iter().map(|(_, to, _)| to.as_any()).collect();
        let mut none: Vec<_> = packets.iter().map(|_| SendAncillaryBuffer::default()).collect();
        let each = addresses.iter().zip(&slices).zip(&mut none);
        let mut messages: Vec<_> = each
            .map(|((to, slice), none)| MMsgHdr::new_with_addr(to, slice, none))
            .collect();
        let bytes = |of: Range<usize>| packets[of].iter().map(|(packet, ..)| packet.len() as u64).sum::<u64>();
        let (mut taken, mut at) = (Vec::with_capacity(packets.len()), 0);
        while at < packets.len() {
            let (all, mut count) = (bytes(at..packets.len()), 0);
            let sent = self.queue.send(all as usize, packets.len() - at, || {
                count = sendmmsg(&self.socket, &mut messages[at..], SendFlags::empty())?;
                Ok(())
            });
            if let Err(error) = sent {
                tracing::debug!("a packet of {} bytes is lost: {error}", packets[at].0.len());
                // A full socket is also full for the packets behind; a firewall or a route may refuse only this one.
                let full = error.kind() == io::ErrorKind::WouldBlock;
                at = if full { packets.len() } else { at + 1 };
                continue;
            }
            let (from, until, through) = (self.mark, self.queue.entered(), at + count);
            let whole = bytes(at..through).max(1);
            self.queue.give_up(all.saturating_sub(whole));
            taken.extend((at..through).map(|one| (one, from + (until - from) * bytes(at..one + 1) / whole)));
            // A call that takes no packet and returns no error would repeat forever.
            (self.mark, at) = (until, through.max(at + 1));
        }
        taken
    }

    /// Follows a send. Returns the number of packets that are no longer followed because of it.
    fn push(&mut self, sent: Sent) -> u64 {
        let oldest = (self.sends.len() >= FOLLOWED_MAX).then(|| self.sends.pop_front());
        let forgotten = oldest.flatten().map_or(0, |oldest| oldest.packets);
        self.below = self.below + sent.packets - forgotten;
        self.sends.push_back(sent);
        forgotten as u64
    }

    fn take_left(&mut self, now: Instant, into: &mut Vec<Sent>) {
        let left = self.queue.left();
        while let Some(sent) = self.sends.front().copied() {
            let overdue = now.since(sent.at) > self.held_max;
            if sent.mark > left && !overdue {
                break;
            }
            if sent.mark > left {
                self.queue.give_up(sent.bytes as u64);
            }
            self.sends.pop_front();
            self.below -= sent.packets;
            into.push(sent);
        }
    }
}
