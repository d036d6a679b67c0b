//! The queues in which packets wait: one for each flow, in one of three lanes. The flows of a lane share it by deficit
//! round robin, and CoDel drops at the head of a flow whose packets wait too long.
//!
//! The bulk lane is held at times. There, CoDel counts only the time in which the lane is open. Packets that waited at
//! the end of a hold longer than CoDel's interval do not count at all. They may be a second's worth, and their sender
//! would be punished for the hold.
//!
//! If there is no room for another packet in total, one of the longest flows loses its oldest packet, as in mac80211 up
//! to Linux 5.10. A flow with too much loses the newest, because its receiver cannot learn of a loss during a hold
//! anyway.
//!
//! Packets live in one slab, and queues are linked lists through it, so nothing is allocated per packet.

use super::order::Order;
use super::Head;
use crate::codel::{self, Codel};
use crate::{Duration, Instant};

/// No packet.
const NONE: u32 = u32::MAX;
/// The number of bytes that a flow may send per round: one full packet with its Ethernet header.
const QUANTUM: i64 = 1_514;
/// The length of the longest IP packet. A packet that claims to be longer counts as this long.
const PACKET_BYTES_MAX: u32 = 65_535;
/// The minimum that a waiting packet counts for, because it takes memory in addition to its bytes.
const MEMORY_MIN: u32 = 256;
/// The number of lists of flows, by the logarithm of their memory.
const SIZES: usize = 32;

/// A lane, by what its packets wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    /// Room below the agent.
    Ordinary = 0,
    /// Room, the permit and the gate.
    Bulk = 1,
    /// Room and the end of a window. For packets without payload, and those of bulk behind them.
    Empty = 2,
}

#[derive(Clone, Debug)]
struct Waiting<P> {
    /// The packet; `None` in a free place of the slab.
    packet: Option<P>,
    head: Head,
    queued_at: Instant,
    /// The same on the clock that stops during holds.
    open_at: Instant,
    /// Whether a piece of the packet has left. Then CoDel does not drop the rest.
    begun: bool,
    next: u32,
}

/// One flow's queue.
#[derive(Clone, Copy, Debug)]
struct Queue {
    lane: Lane,
    first: u32,
    last: u32,
    packets: u32,
    bytes: u64,
    memory: u32,
    deficit: i64,
    codel: Codel,
    /// The time since which the queue has not been empty, on both clocks.
    since: Option<(Instant, Instant)>,
    dropped: u64,
}

impl Queue {
    fn new() -> Self {
        Queue {
            lane: Lane::Ordinary,
            first: NONE,
            last: NONE,
            packets: 0,
            bytes: 0,
            memory: 0,
            deficit: 0,
            codel: Codel::default(),
            since: None,
            dropped: 0,
        }
    }
}

/// The packets that wait in one flow's queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Load {
    pub packets: u32,
    pub bytes: u64,
    /// How long the queue has not been empty.
    pub standing: Duration,
    /// How much of that time bulk was held.
    pub held: Duration,
}

/// A packet that leaves its queue.
#[derive(Debug)]
pub(super) struct Taken<P> {
    /// The packet; `None` if CoDel dropped it.
    pub packet: Option<P>,
    pub head: Head,
    /// How long the packet waited.
    pub waited: Duration,
    /// How long bulk was held while the queue was not empty, if the queue is empty now.
    pub emptied: Option<Duration>,
}

/// The queues of all flows, which have zero-based numbers.
#[derive(Clone, Debug)]
pub(super) struct Queues<P> {
    flow_memory_max: u32,
    memory_max: u64,
    codel: codel::Config,
    slab: Vec<Waiting<P>>,
    free: u32,
    queues: Vec<Queue>,
    /// The flows of each lane that have packets, in turn.
    rounds: Order,
    sizes: Order,
    memory: u64,
    dropped: u64,
    open: bool,
    /// When bulk was last opened or held.
    turned_at: Instant,
    /// The time of the open clock then.
    open_at: Instant,
    /// Packets queued up to this time of the open clock were affected by a long hold.
    forgiven: Option<Instant>,
}

impl<P> Queues<P> {
    /// Creates empty queues with bulk held, of at most `flow_memory_max` bytes per flow and `memory_max` in all.
    pub fn new(flow_memory_max: u32, memory_max: u32, codel: codel::Config) -> Self {
        Queues {
            flow_memory_max,
            memory_max: u64::from(memory_max),
            codel,
            slab: Vec::new(),
            free: NONE,
            queues: Vec::new(),
            rounds: Order::new(3),
            sizes: Order::new(SIZES),
            memory: 0,
            dropped: 0,
            open: false,
            turned_at: Instant::ZERO,
            open_at: Instant::ZERO,
            forgiven: None,
        }
    }

    /// Opens or holds the bulk lane.
    pub fn set_open(&mut self, open: bool, now: Instant) {
        if open == self.open {
            return;
        }
        self.open_at = self.open_clock(now);
        if open && now.since(self.turned_at) > self.codel.interval {
            self.forgiven = Some(self.open_at);
        }
        (self.open, self.turned_at) = (open, now);
    }

    fn open_clock(&self, now: Instant) -> Instant {
        match self.open {
            true => self.open_at + now.since(self.turned_at),
            false => self.open_at,
        }
    }

    /// Makes room for a flow of this number, whose queue is empty.
    pub fn add(&mut self, flow: u32) {
        if self.queues.len() <= flow as usize {
            self.queues.resize_with(flow as usize + 1, Queue::new);
        }
        self.queues[flow as usize] = Queue::new();
    }

    pub fn is_empty(&self, flow: u32) -> bool {
        self.queues[flow as usize].packets == 0
    }

    /// Returns the flow's oldest packet.
    pub fn first(&self, flow: u32) -> Option<&Head> {
        let first = self.queues[flow as usize].first;
        self.slab.get(first as usize).map(|waiting| &waiting.head)
    }

    /// Returns what the flow's queue holds.
    pub fn load(&self, flow: u32, now: Instant) -> Load {
        let queue = &self.queues[flow as usize];
        let (standing, open) = queue.since.map_or_else(Default::default, |(since, open_since)| {
            (now.since(since), self.open_clock(now).since(open_since))
        });
        Load {
            packets: queue.packets,
            bytes: queue.bytes,
            standing,
            held: standing.saturating_sub(open),
        }
    }

    /// Returns the number of dropped packets of this flow.
    pub fn dropped_of(&self, flow: u32) -> u64 {
        self.queues[flow as usize].dropped
    }

    /// Returns the number of dropped packets of all flows.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Returns the lane in which the flow's packets wait.
    pub fn lane(&self, flow: u32) -> Lane {
        self.queues[flow as usize].lane
    }

    /// Moves the flow to a lane, with all its waiting packets.
    pub fn set_lane(&mut self, flow: u32, lane: Lane) {
        let queue = &mut self.queues[flow as usize];
        if queue.lane == lane {
            return;
        }
        (queue.lane, queue.codel) = (lane, Codel::default());
        if queue.packets > 0 {
            self.rounds.append(lane as usize, flow);
        }
    }

    /// Queues a packet. Returns it if too much of the flow waits.
    pub fn push(&mut self, flow: u32, packet: P, head: Head, now: Instant) -> Result<(), P> {
        let bytes = head.bytes;
        let queue = &mut self.queues[flow as usize];
        if queue.packets > 0 && queue.memory.saturating_add(memory(bytes)) > self.flow_memory_max {
            queue.dropped += 1;
            self.dropped += 1;
            return Err(packet);
        }
        let open_at = self.open_clock(now);
        let at = self.put(Waiting {
            packet: Some(packet),
            head,
            queued_at: now,
            open_at,
            begun: false,
            next: NONE,
        });
        let queue = &mut self.queues[flow as usize];
        match queue.last {
            NONE => {
                queue.first = at;
                queue.since = Some((now, open_at));
                // Debts of a packet above the quantum outlast an empty queue. Otherwise the flow would have an
                // advantage.
                queue.deficit = queue.deficit.min(0) + QUANTUM;
                self.rounds.append(queue.lane as usize, flow);
            }
            last => self.slab[last as usize].next = at,
        }
        queue.last = at;
        queue.packets += 1;
        queue.bytes += u64::from(length(bytes));
        queue.memory += memory(bytes);
        self.memory += u64::from(memory(bytes));
        self.sort(flow);
        while self.memory > self.memory_max {
            let Some(longest) = (0..SIZES).rev().find_map(|size| self.sizes.first(size)) else {
                break;
            };
            self.drop_oldest(longest);
        }
        Ok(())
    }

    /// Returns the flow of the lane whose turn it is.
    pub fn turn(&mut self, lane: Lane) -> Option<u32> {
        loop {
            let flow = self.rounds.first(lane as usize)?;
            let queue = &mut self.queues[flow as usize];
            if queue.deficit > 0 {
                return Some(flow);
            }
            queue.deficit += QUANTUM;
            self.rounds.append(lane as usize, flow);
        }
    }

    /// Returns whether packets wait in the lane.
    pub fn waits(&self, lane: Lane) -> bool {
        self.rounds.first(lane as usize).is_some()
    }

    /// Takes the flow's oldest packet, or drops it if CoDel says so. If `cut` takes a piece off the packet, which it
    /// returns with its bytes, only that piece is taken or dropped, and the rest stays. Its second argument says
    /// whether the packet is to be dropped.
    pub fn take(
        &mut self,
        flow: u32,
        now: Instant,
        cut: impl FnOnce(&mut P, bool) -> Option<(P, u32)>,
    ) -> Option<Taken<P>> {
        let held = self.load(flow, now).held;
        let open_now = self.open_clock(now);
        let since = self.queues[flow as usize].since;
        let mut waiting = self.unlink(flow)?;
        let waited = now.since(waiting.queued_at);
        let queue = &mut self.queues[flow as usize];
        let (wait, clock) = match queue.lane {
            Lane::Ordinary | Lane::Empty => (waited, now),
            Lane::Bulk if self.forgiven.is_some_and(|until| waiting.open_at <= until) => (Duration::ZERO, open_now),
            Lane::Bulk => (open_now.since(waiting.open_at), open_now),
        };
        let left = u32::try_from(queue.bytes).unwrap_or(u32::MAX);
        let drops = !waiting.begun && queue.codel.drops(wait, left, clock, &self.codel);
        let piece = waiting.packet.as_mut().and_then(|packet| cut(packet, drops));
        if drops {
            queue.dropped += 1;
            self.dropped += 1;
        }
        if let Some((piece, bytes)) = piece {
            if !drops {
                queue.deficit -= i64::from(length(bytes));
            }
            let head = Head { bytes, ..waiting.head };
            waiting.head.bytes = waiting.head.bytes.saturating_sub(bytes);
            waiting.begun = true;
            self.put_first(flow, waiting, since);
            return Some(Taken {
                packet: Some(piece).filter(|_| !drops),
                head,
                waited,
                emptied: None,
            });
        }
        if !drops {
            queue.deficit -= i64::from(length(waiting.head.bytes));
        }
        Some(Taken {
            packet: waiting.packet.filter(|_| !drops),
            head: waiting.head,
            waited,
            emptied: (queue.packets == 0).then_some(held),
        })
    }

    fn drop_oldest(&mut self, flow: u32) {
        if self.unlink(flow).is_some() {
            self.queues[flow as usize].dropped += 1;
            self.dropped += 1;
        }
    }

    /// Takes the flow's oldest packet out of its queue and out of the slab.
    fn unlink(&mut self, flow: u32) -> Option<Waiting<P>> {
        let queue = &mut self.queues[flow as usize];
        let at = queue.first;
        let place = self.slab.get_mut(at as usize)?;
        let waiting = Waiting {
            packet: place.packet.take(),
            ..*place
        };
        place.next = std::mem::replace(&mut self.free, at);
        queue.first = waiting.next;
        queue.packets -= 1;
        queue.bytes -= u64::from(length(waiting.head.bytes));
        queue.memory -= memory(waiting.head.bytes);
        self.memory -= u64::from(memory(waiting.head.bytes));
        if queue.packets == 0 {
            (queue.last, queue.since) = (NONE, None);
            self.rounds.remove(flow);
        }
        self.sort(flow);
        Some(waiting)
    }

    /// Puts the rest of a packet back. The queue has not been empty since `since`.
    fn put_first(&mut self, flow: u32, waiting: Waiting<P>, since: Option<(Instant, Instant)>) {
        let bytes = waiting.head.bytes;
        let first = self.queues[flow as usize].first;
        let at = self.put(Waiting { next: first, ..waiting });
        let queue = &mut self.queues[flow as usize];
        queue.first = at;
        if queue.packets == 0 {
            (queue.last, queue.since) = (at, since);
            self.rounds.append(queue.lane as usize, flow);
        }
        queue.packets += 1;
        queue.bytes += u64::from(length(bytes));
        queue.memory += memory(bytes);
        self.memory += u64::from(memory(bytes));
        self.sort(flow);
    }

    fn put(&mut self, waiting: Waiting<P>) -> u32 {
        let at = self.free;
        if at == NONE {
            self.slab.push(waiting);
            return (self.slab.len() - 1) as u32;
        }
        self.free = std::mem::replace(&mut self.slab[at as usize], waiting).next;
        at
    }

    /// Moves the flow to the list of its size.
    fn sort(&mut self, flow: u32) {
        let size = self.queues[flow as usize]
            .memory
            .checked_ilog2()
            .map(|log| log as usize);
        if size == self.sizes.list_of(flow) {
            return;
        }
        match size {
            Some(size) => self.sizes.append(size, flow),
            None => self.sizes.remove(flow),
        }
    }
}

fn length(bytes: u32) -> u32 {
    bytes.clamp(1, PACKET_BYTES_MAX)
}

fn memory(bytes: u32) -> u32 {
    length(bytes).max(MEMORY_MIN)
}
