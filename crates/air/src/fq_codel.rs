//! The host queue: decides which packet the driver gets next, as in mac80211's FQ-CoDel (RFC 8290).
//!
//! One queue serves one station and access category. Each destination in it corresponds to a TXQ of mac80211, and
//! destinations take turns. Within a destination, flows share by deficit round robin with a small quantum. A new flow
//! goes first, so sparse flows pass fat ones. CoDel ([`coorp_core::codel`]) drops at the head of a flow whose packets wait
//! too long. If the queue is full, the flow with the most bytes loses its oldest packet, as in mac80211 up to Linux 5.10.
//!
//! Left out: airtime fairness (a turn is one packet, or as long as the caller of [`FqCodel::next_destination`] makes
//! it) and airtime queue limits. Also left out: the memory limit in addition to the packet limit, and sharing the
//! packet limit between all categories of a radio. Flows have no hash collisions: up to [`MAX_FLOWS`] have separate
//! queues.
//!
//! Packets live in one slab, and queues are linked lists through it, so nothing is allocated per packet. The WNIC leaves
//! them there until it is done with them, so they are not copied either.

use crate::packet::{Packet, StationId};
use coorp_core::codel::{self, Codel};
use coorp_core::Instant;

/// Number of flows with their own queue, as in mac80211. Beyond it, a destination's additional flows share one.
pub const MAX_FLOWS: usize = 4096;

/// No node, flow or destination.
const NONE: u32 = u32::MAX;

/// Upper bound of [`Config::packet_limit`], so that backlogs in bytes fit in 32 bits.
const PACKET_LIMIT_MAX: usize = 65_536;

/// The configuration of the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Maximum number of packets in the queue, over all flows; 1 to 65,536.
    pub packet_limit: usize,
    /// The bytes that a flow may send per round; at least 1.
    pub quantum_bytes: u16,
    /// CoDel's configuration; `None` disables it.
    pub codel: Option<codel::Config>,
}

impl Default for Config {
    /// Returns the values of mac80211.
    fn default() -> Self {
        Config {
            packet_limit: 8192,
            quantum_bytes: 300,
            codel: Some(codel::Config::default()),
        }
    }
}

/// The WNIC's data about a packet inside it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Frame {
    pub sequence: u32,
    pub lane: u16,
    /// The number of packets of the same category that the driver had not completed when this one entered.
    pub ahead: u16,
    pub tries: u8,
    /// Whether the receiver has the packet.
    pub received: bool,
    /// Whether the sender knows that.
    pub acknowledged: bool,
}

/// A packet in the queue or in the WNIC. `next` also links the free nodes of the slab.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Node {
    pub packet: Packet,
    /// When the packet entered the queue; later, when it entered the WNIC.
    pub queued_at: Instant,
    next: u32,
    /// The WNIC's data about the packet.
    pub frame: Frame,
}

/// A packet that leaves the queue: with its place in the slab for the WNIC, or dropped by CoDel.
pub(crate) enum Taken<'a> {
    Next(u32, &'a mut Node),
    Dropped(Packet),
}

/// A linked list: nodes of a flow, flows of a round, or destinations in turn.
#[derive(Clone, Copy, Debug)]
struct List {
    head: u32,
    tail: u32,
}

impl List {
    const EMPTY: List = List { head: NONE, tail: NONE };
}

/// The packets of all flows.
#[derive(Clone, Debug)]
struct Slab {
    nodes: Vec<Node>,
    free: u32,
    /// The number of packets on lists.
    len: usize,
}

impl Slab {
    #[inline]
    fn append(&mut self, list: &mut List, packet: Packet, queued_at: Instant) {
        let node = Node {
            packet,
            queued_at,
            next: NONE,
            frame: Frame::default(),
        };
        let mut at = self.free;
        if at == NONE {
            at = self.nodes.len() as u32;
            self.nodes.push(node);
        } else {
            self.free = std::mem::replace(&mut self.nodes[at as usize], node).next;
        }
        if list.head == NONE {
            list.head = at;
        } else {
            self.nodes[list.tail as usize].next = at;
        }
        list.tail = at;
        self.len += 1;
    }

    /// Removes the first packet from the list. It stays in the slab.
    #[inline]
    fn take_first(&mut self, list: &mut List) -> Option<(u32, &Node)> {
        let at = list.head;
        if at == NONE {
            return None;
        }
        let node = &self.nodes[at as usize];
        list.head = node.next;
        self.len -= 1;
        Some((at, node))
    }

    /// Frees a packet that is on no list.
    #[inline]
    fn release(&mut self, at: u32) -> Packet {
        let node = &mut self.nodes[at as usize];
        node.next = self.free;
        self.free = at;
        node.packet
    }
}

/// The list of its destination that contains a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    Out,
    New,
    Old,
}

#[derive(Clone, Copy, Debug)]
struct Flow {
    key: u64,
    /// The next flow in the same bucket of the index.
    chain: u32,
    packets: List,
    destination: u32,
    standing: Standing,
    /// The next flow in its list.
    next: u32,
    deficit: i32,
    codel: Codel,
}

#[derive(Clone, Copy, Debug)]
struct Destination {
    station: StationId,
    new_flows: List,
    old_flows: List,
    packets: u32,
    /// Whether the destination is in the turn list; `next` is then its successor.
    in_turn: bool,
    next: u32,
    /// The queue of the flows that did not fit in the table.
    shared_flow: u32,
}

impl Destination {
    #[inline]
    fn first_flow(&self) -> Option<(u32, Standing)> {
        if self.new_flows.head != NONE {
            return Some((self.new_flows.head, Standing::New));
        }
        (self.old_flows.head != NONE).then_some((self.old_flows.head, Standing::Old))
    }
}

/// The queue of one station and access category.
#[derive(Clone, Debug)]
pub struct FqCodel {
    config: Config,
    slab: Slab,
    flows: Vec<Flow>,
    /// Queued bytes of each flow; separate from `flows`, so that finding the fattest reads little memory.
    backlogs: Vec<u32>,
    /// First flow of each bucket; their number is a power of two.
    buckets: Vec<u32>,
    /// The flow found last and its key, because packets arrive in bursts of one flow.
    recent: (u64, u32),
    destinations: Vec<Destination>,
    /// The index of each station in `destinations`, by station number.
    by_station: Vec<u32>,
    turns: List,
}

impl FqCodel {
    /// Creates an empty queue. A limit or quantum out of range is clamped.
    pub fn new(config: Config) -> Self {
        let config = Config {
            packet_limit: config.packet_limit.clamp(1, PACKET_LIMIT_MAX),
            quantum_bytes: config.quantum_bytes.max(1),
            ..config
        };
        FqCodel {
            config,
            slab: Slab {
                nodes: Vec::new(),
                free: NONE,
                len: 0,
            },
            flows: Vec::new(),
            backlogs: Vec::new(),
            buckets: vec![NONE; 16],
            recent: (u64::MAX, NONE),
            destinations: Vec::new(),
            by_station: Vec::new(),
            turns: List::EMPTY,
        }
    }

    /// Enqueues a packet. Returns the packet that was dropped to make room: the oldest of the fattest flow, which may
    /// be this one.
    pub fn push(&mut self, packet: Packet, now: Instant) -> Option<Packet> {
        self.push_via(packet.to, packet, now)
    }

    /// Enqueues a packet that goes to `hop` first, which is the destination that it waits for. All packets of one flow
    /// must have the same hop.
    pub fn push_via(&mut self, hop: StationId, packet: Packet, now: Instant) -> Option<Packet> {
        let destination = self.destination_of(hop);
        let flow = self.flow_of(&packet, destination);
        let entry = &mut self.flows[flow as usize];
        self.slab.append(&mut entry.packets, packet, now);
        self.backlogs[flow as usize] += cost_bytes(&packet);
        if entry.standing == Standing::Out {
            entry.deficit = i32::from(self.config.quantum_bytes);
            self.append_flow(destination, flow, Standing::New);
        }
        self.destinations[destination as usize].packets += 1;
        self.take_turn(destination);

        if self.slab.len <= self.config.packet_limit {
            return None;
        }
        self.fattest().and_then(|fat| self.remove_oldest(fat))
    }

    /// Dequeues the next packet, from the destination whose turn it is, and passes the turn on. Calls `dropped` for
    /// each packet that CoDel drops on the way.
    pub fn pop(&mut self, now: Instant, dropped: &mut impl FnMut(Packet)) -> Option<Packet> {
        while let Some(to) = self.next_destination() {
            if let Some(packet) = self.pop_for(to, now, dropped) {
                return Some(packet);
            }
        }
        None
    }

    /// Dequeues the next packet to this destination, even out of turn, to fill an aggregate. `dropped` is as in
    /// [`FqCodel::pop`].
    pub fn pop_for(&mut self, to: StationId, now: Instant, dropped: &mut impl FnMut(Packet)) -> Option<Packet> {
        let mut next = None;
        self.take_burst(to, 1, now, &mut |taken| match taken {
            Taken::Next(place, _) => next = Some(place),
            Taken::Dropped(packet) => dropped(packet),
        });
        next.map(|place| self.release(place))
    }

    /// Dequeues up to `most` packets to this destination, which stay in the slab until [`FqCodel::release`]. Returns how
    /// many.
    #[inline]
    pub(crate) fn take_burst(
        &mut self,
        to: StationId,
        most: u16,
        now: Instant,
        taken: &mut impl FnMut(Taken<'_>),
    ) -> u16 {
        let Some(destination) = self.find_destination(to) else {
            return 0;
        };
        let mut count = 0;
        while count < most && !self.is_empty() {
            let Some((at, standing)) = self.destinations[destination as usize].first_flow() else {
                break;
            };
            if self.flows[at as usize].deficit <= 0 {
                self.end_round(destination, at, standing);
                continue;
            }
            match self.take(destination, at, now) {
                Some((place, false)) => {
                    taken(Taken::Next(place, &mut self.slab.nodes[place as usize]));
                    count += 1;
                }
                Some((place, true)) => taken(Taken::Dropped(self.release(place))),
                None => self.run_empty(destination, at, standing),
            }
        }
        count
    }

    /// Returns a packet that was taken and not released.
    #[inline]
    pub(crate) fn node(&self, node: u32) -> &Node {
        &self.slab.nodes[node as usize]
    }

    #[inline]
    pub(crate) fn node_mut(&mut self, node: u32) -> &mut Node {
        &mut self.slab.nodes[node as usize]
    }

    /// Forgets a packet that was taken.
    #[inline]
    pub(crate) fn release(&mut self, node: u32) -> Packet {
        self.slab.release(node)
    }

    /// Handles the empty queue of the destination's first flow. A new flow then waits one round behind the old ones.
    /// Otherwise it could count as new again at once and starve them.
    fn run_empty(&mut self, destination: u32, flow: u32, standing: Standing) {
        self.remove_first_flow(destination, standing);
        let old_wait = self.destinations[destination as usize].old_flows.head != NONE;
        if standing == Standing::New && old_wait {
            self.append_flow(destination, flow, Standing::Old);
        }
    }

    /// Ends the round of the destination's first flow, which moves behind the others. A flow without others gets all
    /// the rounds that it needs at once.
    fn end_round(&mut self, destination: u32, flow: u32, standing: Standing) {
        let quantum = i32::from(self.config.quantum_bytes);
        let Destination { old_flows, .. } = &self.destinations[destination as usize];
        let entry = &mut self.flows[flow as usize];
        entry.deficit += quantum;
        if standing == Standing::Old && old_flows.head == old_flows.tail {
            while entry.deficit <= 0 {
                entry.deficit += quantum;
            }
        } else {
            self.remove_first_flow(destination, standing);
            self.append_flow(destination, flow, Standing::Old);
        }
    }

    /// Returns the destination whose turn it is, and passes the turn on to the next one with packets.
    pub fn next_destination(&mut self) -> Option<StationId> {
        while self.turns.head != NONE {
            let first = self.turns.head;
            let destination = &mut self.destinations[first as usize];
            destination.in_turn = false;
            self.turns.head = destination.next;
            if destination.packets > 0 {
                let station = destination.station;
                self.take_turn(first);
                return Some(station);
            }
        }
        None
    }

    /// Returns the number of packets in the queue.
    pub fn len(&self) -> usize {
        self.slab.len
    }

    /// Returns the number of packets in the queue to this destination.
    pub fn len_for(&self, to: StationId) -> usize {
        self.find_destination(to)
            .map_or(0, |at| self.destinations[at as usize].packets as usize)
    }

    /// Returns whether the queue is empty.
    pub fn is_empty(&self) -> bool {
        self.slab.len == 0
    }

    /// Drops everything. Calls `dropped` for each packet.
    pub fn purge(&mut self, dropped: &mut impl FnMut(Packet)) {
        for flow in 0..self.flows.len() as u32 {
            while let Some(packet) = self.remove_oldest(flow) {
                dropped(packet);
            }
        }
    }

    /// Takes the flow's next packet. Returns it with whether CoDel drops it.
    #[inline]
    fn take(&mut self, destination: u32, at: u32, now: Instant) -> Option<(u32, bool)> {
        let flow = &mut self.flows[at as usize];
        let (place, node) = self.slab.take_first(&mut flow.packets)?;
        self.destinations[destination as usize].packets -= 1;
        let backlog = &mut self.backlogs[at as usize];
        *backlog -= cost_bytes(&node.packet);
        let wait = now.since(node.queued_at);
        let codel = self.config.codel.as_ref();
        let drops = codel.is_some_and(|config| flow.codel.drops(wait, *backlog, now, config));
        if !drops {
            flow.deficit -= i32::from(node.packet.bytes);
        }
        Some((place, drops))
    }

    /// Removes the flow's oldest packet.
    fn remove_oldest(&mut self, flow: u32) -> Option<Packet> {
        let Flow {
            packets, destination, ..
        } = &mut self.flows[flow as usize];
        let (node, _) = self.slab.take_first(packets)?;
        let packet = self.slab.release(node);
        self.backlogs[flow as usize] -= cost_bytes(&packet);
        self.destinations[*destination as usize].packets -= 1;
        Some(packet)
    }

    /// Returns the flow with the most bytes; the first one among equals.
    fn fattest(&self) -> Option<u32> {
        let most = *self.backlogs.iter().max()?;
        self.backlogs
            .iter()
            .position(|backlog| *backlog == most)
            .map(|at| at as u32)
    }

    fn find_destination(&self, station: StationId) -> Option<u32> {
        self.by_station
            .get(usize::from(station.0))
            .copied()
            .filter(|at| *at != NONE)
    }

    fn destination_of(&mut self, station: StationId) -> u32 {
        if let Some(at) = self.find_destination(station) {
            return at;
        }
        let place = usize::from(station.0);
        if self.by_station.len() <= place {
            self.by_station.resize(place + 1, NONE);
        }
        let at = self.destinations.len() as u32;
        self.by_station[place] = at;
        self.destinations.push(Destination {
            station,
            new_flows: List::EMPTY,
            old_flows: List::EMPTY,
            packets: 0,
            in_turn: false,
            next: NONE,
            shared_flow: NONE,
        });
        at
    }

    /// Returns the index of the packet's flow, which is created if new.
    fn flow_of(&mut self, packet: &Packet, destination: u32) -> u32 {
        let key = u64::from(packet.to.0) << 32 | u64::from(packet.flow.0);
        if self.recent.0 == key {
            return self.recent.1;
        }
        let mut at = self.buckets[self.bucket(key)];
        while at != NONE {
            let flow = &self.flows[at as usize];
            if flow.key == key {
                self.recent = (key, at);
                return at;
            }
            at = flow.chain;
        }
        if self.flows.len() >= MAX_FLOWS {
            return self.shared_flow_of(destination);
        }
        if self.flows.len() >= self.buckets.len() {
            self.widen_index();
        }
        let at = self.add_flow(key, destination);
        let bucket = self.bucket(key);
        self.flows[at as usize].chain = self.buckets[bucket];
        self.buckets[bucket] = at;
        at
    }

    fn shared_flow_of(&mut self, destination: u32) -> u32 {
        let shared = self.destinations[destination as usize].shared_flow;
        if shared != NONE {
            return shared;
        }
        let at = self.add_flow(u64::MAX, destination);
        self.destinations[destination as usize].shared_flow = at;
        at
    }

    fn add_flow(&mut self, key: u64, destination: u32) -> u32 {
        self.flows.push(Flow {
            key,
            chain: NONE,
            packets: List::EMPTY,
            destination,
            standing: Standing::Out,
            next: NONE,
            deficit: 0,
            codel: Codel::default(),
        });
        self.backlogs.push(0);
        (self.flows.len() - 1) as u32
    }

    fn bucket(&self, key: u64) -> usize {
        // Fibonacci hashing: the product's upper half is well mixed, and identical on every machine.
        (key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as usize & (self.buckets.len() - 1)
    }

    fn widen_index(&mut self) {
        self.buckets = vec![NONE; self.buckets.len() * 2];
        for at in 0..self.flows.len() {
            let bucket = self.bucket(self.flows[at].key);
            self.flows[at].chain = self.buckets[bucket];
            self.buckets[bucket] = at as u32;
        }
    }

    /// Appends the destination to the turn list, unless it is already there.
    fn take_turn(&mut self, at: u32) {
        let destination = &mut self.destinations[at as usize];
        if destination.in_turn {
            return;
        }
        destination.in_turn = true;
        destination.next = NONE;
        if self.turns.head == NONE {
            self.turns.head = at;
        } else {
            self.destinations[self.turns.tail as usize].next = at;
        }
        self.turns.tail = at;
    }

    fn remove_first_flow(&mut self, destination: u32, standing: Standing) {
        let destination = &mut self.destinations[destination as usize];
        let list = if standing == Standing::New {
            &mut destination.new_flows
        } else {
            &mut destination.old_flows
        };
        let flow = &mut self.flows[list.head as usize];
        list.head = flow.next;
        flow.standing = Standing::Out;
    }

    fn append_flow(&mut self, destination: u32, at: u32, standing: Standing) {
        let destination = &mut self.destinations[destination as usize];
        let list = if standing == Standing::New {
            &mut destination.new_flows
        } else {
            &mut destination.old_flows
        };
        if list.head == NONE {
            list.head = at;
        } else {
            self.flows[list.tail as usize].next = at;
        }
        list.tail = at;
        let flow = &mut self.flows[at as usize];
        flow.next = NONE;
        flow.standing = standing;
    }
}

/// Returns a packet's contribution to its flow's backlog. Never zero, so that a flow with packets never looks empty.
fn cost_bytes(packet: &Packet) -> u32 {
    u32::from(packet.bytes.max(1))
}

#[cfg(test)]
mod tests;
