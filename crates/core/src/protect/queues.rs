//! Where packets wait: a queue for each flow, in one of two lanes. The flows of a lane share it by deficit round robin, and
//! CoDel drops at the head of a flow whose packets wait too long.
//!
//! The bulk lane is held at times. CoDel there counts open time alone. What waited at the end of a hold longer than CoDel's
//! interval is not counted at all: it may be a second's worth of packets, whose sender would be punished for the hold.
//!
//! If there is no room for another packet in total, a flow of the longest ones loses its oldest packet, as in mac80211 up
//! to Linux 5.10. A flow with too much loses the newest: its receiver cannot be told of a loss during a hold anyway.
//!
//! Packets live in one slab, and queues are linked lists through it, so nothing is allocated per packet.

use super::order::Order;
use super::Head;
use crate::codel::{self, Codel};
use crate::{Duration, Instant};

/// No packet.
const NONE: u32 = u32::MAX;
/// What a flow may send a round: one full packet with its Ethernet header.
const QUANTUM: i64 = 1_514;
/// The longest IP packet: what claims to be longer counts as that.
const PACKET_BYTES_MAX: u32 = 65_535;
/// A waiting packet counts as this much at least, since it takes memory beside its bytes.
const MEMORY_MIN: u32 = 256;
/// Lists of flows by the logarithm of what they hold.
const SIZES: usize = 32;

/// What waits for what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    /// For room below.
    Ordinary = 0,
    /// For the permit and the gate, too.
    Bulk = 1,
    /// For room below and for the end of a window: packets that carry nothing.
    Empty = 2,
}

#[derive(Clone, Debug)]
struct Waiting<P> {
    /// `None` in a free place of the slab.
    packet: Option<P>,
    head: Head,
    queued_at: Instant,
    /// The same by the clock that stands still during holds.
    open_at: Instant,
    /// Whether a piece of it has left: then CoDel does not drop the rest.
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
    /// Since when it has not been empty, by both clocks.
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

/// What waits in one flow's queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Load {
    pub packets: u32,
    pub bytes: u64,
    /// For how long it has not been empty.
    pub standing: Duration,
    /// The share of that in which bulk was held.
    pub held: Duration,
}

/// A packet that leaves its queue.
#[derive(Debug)]
pub(super) struct Taken<P> {
    /// `None` if CoDel dropped it.
    pub packet: Option<P>,
    pub head: Head,
    /// How long bulk was held while the queue was not empty, if it is now.
    pub emptied: Option<Duration>,
}

/// The queues of all flows, which are numbered from 0.
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
    /// When bulk was opened or held last.
    turned_at: Instant,
    /// What the open clock showed then.
    open_at: Instant,
    /// What waits since this time of the open clock, or longer, met a long hold.
    forgiven: Option<Instant>,
}

impl<P> Queues<P> {
    /// Empty queues with bulk held; at most `flow_memory_max` bytes a flow, and `memory_max` in all.
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

    /// What the flow's queue holds.
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

    /// Packets of this flow that were dropped.
    pub fn dropped_of(&self, flow: u32) -> u64 {
        self.queues[flow as usize].dropped
    }

    /// Packets of all flows that were dropped.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Where the flow's packets wait.
    pub fn lane(&self, flow: u32) -> Lane {
        self.queues[flow as usize].lane
    }

    /// Moves the flow to a lane, with all that waits of it.
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

    /// Queues a packet; gives it back if too much of the flow waits.
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
                // Debts of a packet above the quantum outlast an empty queue: otherwise it would have an advantage.
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

    /// Whether packets wait in the lane.
    pub fn waits(&self, lane: Lane) -> bool {
        self.rounds.first(lane as usize).is_some()
    }

    /// Takes the flow's oldest packet, or drops it if CoDel says so. If `cut` takes a piece off the packet, of so many bytes, that
    /// piece alone is taken or dropped, and the rest stays. `cut` is told whether it is to be dropped.
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
        let queue = &mut self.queues[flow as usize];
        let (wait, clock) = match queue.lane {
            Lane::Ordinary | Lane::Empty => (now.since(waiting.queued_at), now),
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
                emptied: None,
            });
        }
        if !drops {
            queue.deficit -= i64::from(length(waiting.head.bytes));
        }
        Some(Taken {
            packet: waiting.packet.filter(|_| !drops),
            head: waiting.head,
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

    /// Puts the rest of a packet back; its flow's queue has been so since then.
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

    /// Keeps the flow in the list of its size.
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
