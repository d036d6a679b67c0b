//! Carries control of unchanged programs over several paths: wrapped into the links' datagrams, and unwrapped by the
//! receiver's agent.
//!
//! The robot chooses the paths, as for its own control (`coorp_core::paths`). The links' certificates say who has
//! wrapped a packet, so strangers cannot reach anything here. An unwrapped packet must be from an address of its sender
//! to an address of this machine. It goes to the kernel unchanged through the TUN of that address's path: once, and in
//! its flow's order (`paths::Merge`). A packet that does not fit into a datagram is cut into fragments that do, and the
//! receiver's kernel joins them.
//!
//! Nothing is wrapped for a robot with only one path, a robot whose agent does not unwrap, or a robot that answers over
//! no path. Its agent may have been killed, and its kernel still receives unwrapped packets.
//!
//! Left out: programs' broadcast and multicast, and other classes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use coorp_core::paths::{Merge, Outflow, PacketCopy, PathId, Sequence, PATHS_MAX};
use coorp_core::robot::Input;
use coorp_core::{Instant, RobotId};

use super::tun::Tun;
use super::{packet, Outside};
use crate::addresses::Addresses;
use crate::links::Links;
use crate::member::Member;
use crate::outqueue::Target;
use crate::shared_robot::SharedRobot;
use crate::sync::lock;
use crate::wire::{Parcel, Refusal, WrapHeader};

/// The maximum length of an unwrapped packet; longer than any datagram.
const PACKET_BYTES_MAX: usize = 8_192;
/// The path whose lane checks for packets that have waited long enough.
pub(super) const LOOKS: usize = 0;
/// The shortest datagram that is worth cutting packets for.
const ROOM_MIN: usize = 256;

/// Wraps packets to other robots, and unwraps theirs.
#[derive(Debug)]
pub(crate) struct Wrapper {
    member: Arc<Member>,
    robot: Arc<SharedRobot>,
    addresses: Arc<Addresses>,
    links: Arc<Links>,
    /// Whether this robot's agent unwraps.
    unwraps: AtomicBool,
    /// The robots to which several paths lead and whose agents unwrap.
    others: Mutex<BTreeSet<RobotId>>,
    /// The outgoing flows, by path and number. They outlast the lanes, because receivers remember their numbers.
    outflows: Mutex<BTreeMap<u32, Outflow>>,
    /// The identification for the next packet that is cut and has none.
    fresh: AtomicU16,
    inside: Mutex<Inside>,
}

/// The receiving side.
#[derive(Debug, Default)]
struct Inside {
    /// The inlets, by path.
    inlets: BTreeMap<usize, Inlet>,
    merges: BTreeMap<RobotId, Merge<Bytes>>,
}

/// The way to the kernel of packets to an address of this machine.
#[derive(Debug)]
pub(super) struct Inlet {
    pub address: Ipv4Addr,
    pub tun: Tun,
    pub outside: Arc<Outside>,
}

impl Wrapper {
    pub fn new(
        member: &Arc<Member>,
        robot: &Arc<SharedRobot>,
        addresses: &Arc<Addresses>,
        links: &Arc<Links>,
    ) -> Arc<Wrapper> {
        Arc::new(Wrapper {
            member: member.clone(),
            robot: robot.clone(),
            addresses: addresses.clone(),
            links: links.clone(),
            unwraps: AtomicBool::new(false),
            others: Mutex::default(),
            outflows: Mutex::default(),
            fresh: AtomicU16::new(1),
            inside: Mutex::default(),
        })
    }

    /// Returns the other robots' addresses.
    pub fn addresses(&self) -> &Arc<Addresses> {
        &self.addresses
    }

    /// Returns whether this robot has several paths, so that others may wrap packets for it.
    pub fn is_of_use(&self) -> bool {
        self.member.paths > 1
    }

    /// Returns whether this robot's agent unwraps.
    pub fn unwraps(&self) -> bool {
        self.unwraps.load(Ordering::Acquire)
    }

    /// Sets whether this robot's agent unwraps from now on. Returns whether this is a change.
    pub fn set_unwraps(&self, unwraps: bool) -> bool {
        let unwraps = unwraps && self.is_of_use();
        let is_new = self.unwraps.swap(unwraps, Ordering::AcqRel) != unwraps;
        if is_new {
            self.links.announce();
        }
        is_new
    }

    /// Handles a robot's announcement of whether its agent unwraps.
    pub fn on_announced(&self, robot: RobotId, unwraps: bool) {
        let mut others = lock(&self.others);
        if unwraps && self.paths_to(robot) > 1 {
            others.insert(robot);
        } else {
            others.remove(&robot);
        }
    }

    /// Handles a robot that is out of reach.
    pub fn on_gone(&self, robot: RobotId) {
        lock(&self.others).remove(&robot);
    }

    fn paths_to(&self, robot: RobotId) -> usize {
        let member = &self.member;
        member.team.paths_between(member.me, robot).min(member.paths)
    }

    /// Returns whether the address is this robot's, on a path that leads to it.
    fn is_of(&self, robot: RobotId, address: Ipv4Addr) -> bool {
        (0..self.paths_to(robot)).any(|path| self.addresses.known(robot, path) == Some(address.into()))
    }

    // --- what goes out ----------------------------------------------------------------------------------------

    /// Returns the robot with this address, if its agent unwraps and several paths lead to it.
    pub fn robot_at(&self, address: Ipv4Addr) -> Option<RobotId> {
        let others = lock(&self.others);
        others.iter().copied().find(|robot| self.is_of(*robot, address))
    }

    /// Sends a packet of a flow to a robot, wrapped. Returns the targets that show when it has left; `None` if no path
    /// is alive, and then the packet must go unwrapped. The lane of its path numbers the flow.
    pub fn send(&self, to: RobotId, (path, number): (usize, u32), packet: &[u8]) -> Option<Vec<Target>> {
        let rooms = (0..self.paths_to(to)).filter_map(|path| self.links.room(to, path));
        let room = rooms
            .min()?
            .checked_sub(WrapHeader::PACKED_BYTES_MAX)
            .filter(|room| *room >= ROOM_MIN)?;
        let flow = number * PATHS_MAX as u32 + path as u32;
        let mut packet: Box<[u8]> = packet.into();
        if packet.len() <= room {
            packet::finish(&mut packet);
            return self.send_one(to, flow, &packet.into());
        }
        packet::name(&mut packet, self.fresh.fetch_add(1, Ordering::Relaxed).max(1));
        let mut targets = Vec::new();
        for mut fragment in packet::fragments(packet, room) {
            packet::finish(&mut fragment);
            targets.extend(self.send_one(to, flow, &fragment.into())?);
        }
        Some(targets)
    }

    fn send_one(&self, to: RobotId, flow: u32, packet: &Bytes) -> Option<Vec<Target>> {
        let (copies, alive, now) = self.robot.tell(|robot, now| {
            let copies = robot.handle(Input::Assign(to), now).copies();
            let paths = copies.iter().map(|copy| copy.path);
            let alive: Vec<_> = paths.filter(|path| robot.is_alive(to, *path)).collect();
            (copies, alive, now)
        });
        if alive.is_empty() {
            return None;
        }
        let (number, over) = lock(&self.outflows).entry(flow).or_default().number(alive, now);
        let incarnation = self.member.incarnation;
        let sent = copies.into_iter().filter_map(|copy| {
            let header = WrapHeader {
                flow,
                sequence: Sequence { incarnation, number },
                over,
                copy: copy.number,
            };
            self.links.send(to, copy.path, &Parcel::Wrapped(header), packet)
        });
        let sent: Vec<Target> = sent.collect();
        self.links.hurry();
        Some(sent).filter(|sent| !sent.is_empty())
    }

    // --- what comes in ----------------------------------------------------------------------------------------

    /// Opens the inlet for unwrapped packets of a path.
    pub(super) fn open(&self, path: usize, inlet: Inlet) {
        lock(&self.inside).inlets.insert(path, inlet);
    }

    /// Closes the inlet of a path, because its TUN is about to disappear.
    pub(super) fn close(&self, path: usize) {
        lock(&self.inside).inlets.remove(&path);
    }

    /// Handles a packet that a robot has wrapped for this machine.
    pub fn on_wrapped(&self, from: RobotId, path: PathId, header: WrapHeader, packet: Bytes) {
        let now = self.robot.now();
        let mut inside = lock(&self.inside);
        // The protection has just ended.
        if inside.inlets.is_empty() {
            return;
        }
        let is_ours = |address| inside.inlets.values().any(|inlet| inlet.address == address);
        if let Err(refusal) = accepted(&packet, |address| self.is_of(from, address), is_ours) {
            return self.member.refused.count("a wrapped packet", refusal);
        }
        let copy = PacketCopy {
            flow: header.flow,
            sequence: header.sequence,
            path,
            over: header.over,
        };
        let merge = inside.merges.entry(from).or_default();
        merge.on_copy(copy, packet, now);
        let waits = merge.next_deadline().is_some();
        inside.deliver(from);
        if waits {
            // The lane's thread checks when it is due.
            if let Some(inlet) = inside.inlets.get(&LOOKS) {
                inlet.outside.wake();
            }
        }
    }

    /// Releases packets that have waited long enough. Returns when to check again.
    pub(super) fn look(&self, now: Instant) -> Option<Instant> {
        let mut inside = lock(&self.inside);
        let due = inside.next_deadline().filter(|due| now >= *due);
        if due.is_some() {
            inside.merges.values_mut().for_each(|merge| merge.on_deadline(now));
            let from: Vec<RobotId> = inside.merges.keys().copied().collect();
            from.into_iter().for_each(|from| inside.deliver(from));
        }
        inside.next_deadline()
    }
}

/// Refuses anything but one IPv4 packet from an address of its sender to one of ours.
pub(crate) fn accepted(
    packet: &[u8],
    is_theirs: impl Fn(Ipv4Addr) -> bool,
    is_ours: impl Fn(Ipv4Addr) -> bool,
) -> Result<(), Refusal> {
    if packet.len() > PACKET_BYTES_MAX {
        return Err(Refusal::Oversized);
    }
    match packet::ends(packet) {
        Some((from, to)) if is_theirs(from) && is_ours(to) => Ok(()),
        _ => Err(Refusal::Malformed),
    }
}

impl Inside {
    fn next_deadline(&self) -> Option<Instant> {
        self.merges.values().filter_map(Merge::next_deadline).min()
    }

    /// Gives the kernel the packets that are ready.
    fn deliver(&mut self, from: RobotId) {
        let Some(merge) = self.merges.get_mut(&from) else {
            return;
        };
        while let Some(packet) = merge.poll() {
            let to = packet::to(&packet);
            let Some(inlet) = self.inlets.values().find(|inlet| inlet.address == to) else {
                continue;
            };
            if let Err(error) = inlet.tun.write(&packet) {
                tracing::debug!("an unwrapped packet is lost: {error}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_packets_from_their_sender_to_this_machine_are_accepted() {
        const THEIRS: [[u8; 4]; 2] = [[10, 77, 0, 2], [10, 78, 0, 2]];
        const OURS: [[u8; 4]; 2] = [[10, 77, 0, 1], [10, 78, 0, 1]];
        let accept = |packet: &[u8]| {
            let among = |all: [[u8; 4]; 2]| move |address: Ipv4Addr| all.contains(&address.octets());
            accepted(packet, among(THEIRS), among(OURS))
        };
        let packet = |from: [u8; 4], to: [u8; 4], length: u16| {
            let mut packet = vec![0; usize::from(length)];
            (packet[0], packet[9]) = (0x45, 1);
            packet[2..4].copy_from_slice(&length.to_be_bytes());
            packet[12..16].copy_from_slice(&from);
            packet[16..20].copy_from_slice(&to);
            packet
        };
        for (from, to) in THEIRS.into_iter().flat_map(|from| OURS.map(|to| (from, to))) {
            assert_eq!(accept(&packet(from, to, 28)), Ok(()));
            assert_eq!(accept(&packet(to, from, 28)), Err(Refusal::Malformed));
        }
        for (from, to) in [
            ([10, 77, 0, 3], OURS[0]),
            ([127, 0, 0, 1], OURS[0]),
            (THEIRS[0], [10, 77, 0, 9]),
        ] {
            assert_eq!(
                accept(&packet(from, to, 28)),
                Err(Refusal::Malformed),
                "{from:?} {to:?}"
            );
        }
        let whole = packet(THEIRS[0], OURS[0], 28);
        assert_eq!(accept(&whole[..27]), Err(Refusal::Malformed));
        assert_eq!(accept(&[whole.as_slice(), &[0]].concat()), Err(Refusal::Malformed));
        assert_eq!(accept(&packet(THEIRS[0], OURS[0], 8_193)), Err(Refusal::Oversized));
    }
}
