//! A station's path from the host queue to the air: FQ-CoDel -> driver -> hardware queue -> commit stage.
//!
//! The hardware queue keeps a lane for each destination, as drivers do (a TXQ per station in mac80211). Without a
//! commit stage, every access category contends from its lanes. With one, frames move from the lanes into a single
//! FIFO, highest category first, and only the head of that FIFO contends. This is local congestion (Deng 2022, figure
//! 3). Left out: the bus between host and WNIC, and power save.

use std::collections::VecDeque;

use coorp_core::Instant;

use crate::config::Wnic;
use crate::fq_codel::{self, FqCodel, Frame, Node, Taken};
use crate::packet::{AccessCategory, Packet, StationId};

/// MAC header of a QoS data frame, LLC/SNAP and frame check sequence, in bytes.
const MPDU_OVERHEAD_BYTES: u32 = 26 + 8 + 4;
/// Delimiter before each MPDU of an A-MPDU, in bytes.
const DELIMITER_BYTES: u32 = 4;
/// A station to which nothing was ever sent.
const NO_LANE: u16 = u16::MAX;

/// A packet inside the WNIC: the category, and the place in the slab of that category's host queue.
#[derive(Clone, Copy, Debug)]
struct Handle {
    category: AccessCategory,
    node: u32,
}

/// The numbers of packets of one category in a WNIC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Packets handed over, and not completed according to the driver.
    pub incomplete: u16,
    /// Packets handed over, and without a transmit status so far.
    pub unsent: u16,
}

/// A packet that the driver has dequeued: now in the WNIC, or dropped by the host queue.
pub(crate) enum Dequeued<'a> {
    Enqueued(&'a Packet),
    Dropped(Packet),
}

/// The end of an exchange, as its sender sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    /// Whether the receiver has reported which frames it has.
    pub answered: bool,
    /// How often each frame may be sent again; `None` if the exchange only requested a block ack.
    pub retries_max: Option<u8>,
}

/// The limits of one PPDU.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AggregateLimit {
    pub frames: u16,
    pub bytes: u32,
    /// Maximum distance between first and last sequence number: the block-ack window.
    pub window: u16,
    /// Minimum size of an A-MPDU subframe in bytes, from the minimum MPDU start spacing.
    pub subframe_bytes_min: u32,
    /// Whether a lone MPDU has a delimiter. HT sends it without; VHT and HE always use one.
    pub lone_delimiter: bool,
}

/// The contents of the next PPDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Aggregate {
    pub to: StationId,
    pub frames: u16,
    pub bytes: u32,
}

/// The receiver's reordering for one lane: MPDUs are passed up in sequence.
#[derive(Debug, Default)]
struct Reorder {
    expected: u32,
    held: VecDeque<Option<Packet>>,
}

impl Reorder {
    #[inline]
    fn accept(&mut self, sequence: u32, packet: &Packet, up: &mut impl FnMut(&Packet)) {
        if sequence == self.expected && self.held.is_empty() {
            self.expected += 1;
            up(packet);
            return;
        }
        let place = sequence.wrapping_sub(self.expected) as usize;
        debug_assert!(place < 256, "an MPDU outside the block-ack window");
        if self.held.len() <= place {
            self.held.resize(place + 1, None);
        }
        self.held[place] = Some(*packet);
        self.release(up);
    }

    /// Skips everything before `sequence`, which the sender gave up (signalled by a BlockAckReq, whose airtime is
    /// ignored).
    fn skip_to(&mut self, sequence: u32, up: &mut impl FnMut(&Packet)) {
        while self.expected < sequence {
            if let Some(Some(packet)) = self.held.pop_front() {
                up(&packet);
            }
            self.expected += 1;
        }
        self.release(up);
    }

    fn release(&mut self, up: &mut impl FnMut(&Packet)) {
        while let Some(Some(packet)) = self.held.front() {
            up(packet);
            self.held.pop_front();
            self.expected += 1;
        }
    }
}

/// The frames waiting for one destination, and the state of its receiver.
#[derive(Debug, Default)]
struct Lane {
    frames: VecDeque<Handle>,
    sequence_next: u32,
    reorder: Reorder,
}

impl Lane {
    /// Adds a packet to the lane, and to the WNIC.
    #[inline]
    fn enter(&mut self, node: &mut Node, lane: u16, load: &mut Load, order: &mut VecDeque<u16>, handle: Handle) {
        node.frame = Frame {
            sequence: self.sequence_next,
            lane,
            ahead: load.incomplete,
            ..Frame::default()
        };
        self.sequence_next += 1;
        if self.frames.is_empty() {
            order.push_back(lane);
        }
        self.frames.push_back(handle);
        (load.incomplete, load.unsent) = (load.incomplete + 1, load.unsent + 1);
    }
}

/// One access category's hardware queue.
#[derive(Debug)]
struct HardwareQueue {
    lanes: Vec<Lane>,
    /// The index of each station in `lanes`, or `NO_LANE`.
    lane_of: Vec<u16>,
    /// Lanes with frames, in the order of service.
    order: VecDeque<u16>,
    /// The destination that the driver takes packets for, its lane, and how many more it takes before it moves to the
    /// next.
    burst: (StationId, u16, u16),
    /// How many more frames may move from the head lane into the commit stage before the next lane's turn.
    commit_burst: u16,
}

impl HardwareQueue {
    const EMPTY: HardwareQueue = HardwareQueue {
        lanes: Vec::new(),
        lane_of: Vec::new(),
        order: VecDeque::new(),
        burst: (StationId::GROUP, NO_LANE, 0),
        commit_burst: 0,
    };

    fn lane(&mut self, to: StationId) -> u16 {
        let station = usize::from(to.0);
        if self.lane_of.len() <= station {
            self.lane_of.resize(station + 1, NO_LANE);
        }
        if self.lane_of[station] == NO_LANE {
            self.lane_of[station] = self.lanes.len() as u16;
            self.lanes.push(Lane::default());
        }
        self.lane_of[station]
    }
}

/// A station's queues.
#[derive(Debug)]
pub(crate) struct Queues {
    wnic: Wnic,
    /// The station through which all unicast packets of this station go.
    hop: Option<StationId>,
    host: [FqCodel; 4],
    hardware: [HardwareQueue; 4],
    commit: VecDeque<Handle>,
    /// The packets in the WNIC, by category.
    pub in_wnic: [Load; 4],
}

impl Queues {
    pub fn new(wnic: Wnic, hop: Option<StationId>) -> Self {
        let host = std::array::from_fn(|_| {
            FqCodel::new(fq_codel::Config {
                packet_limit: wnic.host_queue_packets,
                codel: wnic.codel.then(Default::default),
                ..Default::default()
            })
        });
        Queues {
            wnic,
            hop,
            host,
            hardware: [HardwareQueue::EMPTY; 4],
            commit: VecDeque::new(),
            in_wnic: [Load::default(); 4],
        }
    }

    /// Queues a packet from the stack. Returns the packet that no longer fits, if any.
    #[inline]
    pub fn push(&mut self, packet: Packet, now: Instant) -> Option<Packet> {
        self.host[packet.category.index()].push_via(self.hop(packet.to), packet, now)
    }

    /// Returns where a packet to this station goes next.
    fn hop(&self, to: StationId) -> StationId {
        self.hop.filter(|_| to != StationId::GROUP).unwrap_or(to)
    }

    /// Empties the host queue. Calls `dropped` for each packet.
    pub fn purge(&mut self, dropped: &mut impl FnMut(Packet)) {
        for queue in &mut self.host {
            queue.purge(dropped);
        }
    }

    /// Returns how many packets of this category the driver would take: those that wait and for which the WNIC has
    /// room.
    #[inline]
    pub fn wanted(&self, category: AccessCategory) -> u16 {
        let room = self
            .wnic
            .queue_frames
            .saturating_sub(self.in_wnic[category.index()].incomplete);
        usize::from(room).min(self.host[category.index()].len()) as u16
    }

    /// Moves up to `most` packets from the host queue into their lanes (the driver's dequeue and enqueue). Calls `tell`
    /// for each, and for those that the host queue drops meanwhile. Returns how many were moved.
    pub fn take(
        &mut self,
        category: AccessCategory,
        most: u16,
        now: Instant,
        tell: &mut impl FnMut(Dequeued<'_>),
    ) -> u16 {
        let host = &mut self.host[category.index()];
        let queue = &mut self.hardware[category.index()];
        let load = &mut self.in_wnic[category.index()];
        let mut total = 0;
        while total < most && !host.is_empty() {
            let (to, lane, left) = queue.burst;
            let (lanes, order) = (&mut queue.lanes, &mut queue.order);
            let count = host.take_burst(to, left.min(most - total), now, &mut |taken| match taken {
                Taken::Next(node, entry) => {
                    entry.queued_at = now;
                    lanes[usize::from(lane)].enter(entry, lane, load, order, Handle { category, node });
                    tell(Dequeued::Enqueued(&entry.packet));
                }
                Taken::Dropped(packet) => tell(Dequeued::Dropped(packet)),
            });
            queue.burst.2 -= count;
            total += count;
            if count == 0 {
                let Some(to) = host.next_destination() else { break };
                queue.burst = (to, queue.lane(to), self.wnic.burst_frames.max(1));
            }
        }
        total
    }

    /// Moves frames from the lanes into the commit stage while it has room, highest category first. Calls `released`
    /// for each if the driver completes it at that point. Returns whether it did so for any.
    pub fn commit(&mut self, mut released: impl FnMut(&Node)) -> bool {
        let Some(commit_max) = self.wnic.commit_frames else {
            return false;
        };
        let on_transfer = self.wnic.completes_on_transfer;
        let mut any = false;
        let mut room = usize::from(commit_max).saturating_sub(self.commit.len());
        let burst_frames = self.wnic.burst_frames.max(1);
        let queues = self.hardware.iter_mut().zip(&self.host);
        for ((queue, host), in_wnic) in queues.zip(&mut self.in_wnic) {
            while let Some(&head) = queue.order.front().filter(|_| room > 0) {
                let lane = &mut queue.lanes[usize::from(head)];
                if queue.commit_burst == 0 {
                    queue.commit_burst = burst_frames;
                }
                let count = lane.frames.len().min(room).min(usize::from(queue.commit_burst));
                for handle in lane.frames.drain(..count) {
                    if on_transfer {
                        released(host.node(handle.node));
                    }
                    self.commit.push_back(handle);
                }
                if on_transfer {
                    in_wnic.incomplete -= count as u16;
                    any = true;
                }
                room -= count;
                queue.commit_burst -= count as u16;
                if lane.frames.is_empty() {
                    queue.order.pop_front();
                    queue.commit_burst = 0;
                } else if queue.commit_burst == 0 {
                    queue.order.rotate_left(1);
                }
            }
        }
        any
    }

    /// Returns whether the driver completes a packet only when its exchange on the air has ended.
    pub fn completes_on_air(&self) -> bool {
        self.wnic.commit_frames.is_none() || !self.wnic.completes_on_transfer
    }

    /// Returns whether this category has a frame to contend for.
    pub fn ready(&self, category: AccessCategory) -> bool {
        if self.wnic.commit_frames.is_some() {
            return self.commit.front().is_some_and(|head| head.category == category);
        }
        !self.hardware[category.index()].order.is_empty()
    }

    fn buffer(&self, category: AccessCategory) -> Option<&VecDeque<Handle>> {
        if self.wnic.commit_frames.is_some() {
            return Some(&self.commit);
        }
        let queue = &self.hardware[category.index()];
        Some(&queue.lanes[usize::from(*queue.order.front()?)].frames)
    }

    #[inline]
    fn node(&self, handle: Handle) -> &Node {
        self.host[handle.category.index()].node(handle.node)
    }

    /// Returns the destination of this category's next PPDU.
    pub fn destination(&self, category: AccessCategory) -> Option<StationId> {
        Some(self.hop(self.node(*self.buffer(category)?.front()?).packet.to))
    }

    /// Returns the next PPDU of this category within `limit`, with at least one frame if any is ready.
    pub fn aggregate(&self, category: AccessCategory, limit: &AggregateLimit) -> Option<Aggregate> {
        let frames = self.buffer(category)?;
        let head = frames.front().filter(|head| head.category == category)?;
        let host = &self.host[category.index()];
        let head = host.node(head.node);
        let (lane, window) = (head.frame.lane, u32::from(limit.window.max(1)));
        let mut bytes = 0;
        let mut count = 0;
        for handle in frames.iter().take(usize::from(limit.frames.max(1))) {
            if handle.category != category {
                break;
            }
            let Node { packet, frame, .. } = host.node(handle.node);
            if frame.lane != lane || frame.sequence - head.frame.sequence >= window {
                break;
            }
            let mpdu = u32::from(packet.bytes) + MPDU_OVERHEAD_BYTES;
            let subframe = (DELIMITER_BYTES + mpdu)
                .next_multiple_of(4)
                .max(limit.subframe_bytes_min);
            if count > 0 && bytes + subframe > limit.bytes {
                break;
            }
            bytes += subframe;
            count += 1;
        }
        if count == 1 {
            let mpdu = u32::from(head.packet.bytes) + MPDU_OVERHEAD_BYTES;
            bytes = if limit.lone_delimiter {
                mpdu + DELIMITER_BYTES
            } else {
                mpdu
            };
        }
        Some(Aggregate {
            to: self.hop(head.packet.to),
            frames: count,
            bytes,
        })
    }

    /// Delivers a PPDU of `frames` frames to its receiver. Frames for which `survives` returns true, and that the
    /// receiver did not have, are passed up in sequence. Returns how many survived.
    pub fn deliver(
        &mut self,
        category: AccessCategory,
        frames: u16,
        mut survives: impl FnMut() -> bool,
        mut up: impl FnMut(&Packet),
    ) -> u16 {
        let queue = &mut self.hardware[category.index()];
        let host = &mut self.host[category.index()];
        let mut survivors = 0;
        let head = match self.wnic.commit_frames {
            Some(_) => self.commit.front().map(|head| host.node(head.node).frame.lane),
            None => queue.order.front().copied(),
        };
        let Some(lane) = head.and_then(|place| queue.lanes.get_mut(usize::from(place))) else {
            return 0;
        };
        let buffer = if self.wnic.commit_frames.is_some() {
            &self.commit
        } else {
            &lane.frames
        };
        for handle in buffer.iter().take(usize::from(frames)) {
            if survives() {
                survivors += 1;
                let Node { packet, frame, .. } = host.node_mut(handle.node);
                if !std::mem::replace(&mut frame.received, true) {
                    lane.reorder.accept(frame.sequence, packet, &mut up);
                }
            }
        }
        survivors
    }

    /// Returns how many frames at the head of the next PPDU's lane were sent before, including those between them.
    pub fn sent_before(&self, category: AccessCategory) -> u16 {
        let Some(frames) = self.buffer(category) else { return 0 };
        let lane = frames.front().map(|head| self.node(*head).frame.lane);
        let of_category = frames.iter().take_while(|handle| handle.category == category);
        let frames = of_category.map(|handle| self.node(*handle).frame);
        let tried = frames
            .take_while(|frame| Some(frame.lane) == lane)
            .map(|frame| frame.tries > 0);
        tried
            .enumerate()
            .filter(|(_, tried)| *tried)
            .last()
            .map_or(0, |(place, _)| place as u16 + 1)
    }

    /// Settles `frames` frames after the exchange of their PPDU, or after a request for their block ack. Acknowledged
    /// frames and those tried too often leave; the others stay at the head, in sequence. Returns how many will be sent
    /// again.
    pub fn settle(
        &mut self,
        category: AccessCategory,
        frames: u16,
        ended: Ended,
        mut completed: impl FnMut(&Node),
        mut up: impl FnMut(&Packet),
    ) -> u16 {
        let on_air = self.completes_on_air();
        let queue = &mut self.hardware[category.index()];
        let host = &mut self.host[category.index()];
        let committed = self.wnic.commit_frames.is_some();
        let head = if committed {
            self.commit.front().map(|head| host.node(head.node).frame.lane)
        } else {
            queue.order.front().copied()
        };
        let Some(place) = head else { return 0 };
        let lane = &mut queue.lanes[usize::from(place)];
        let buffer = if committed { &mut self.commit } else { &mut lane.frames };
        let in_wnic = &mut self.in_wnic[category.index()];
        let mut kept = 0;
        let mut dropped_any = false;
        // Frames that stay are moved behind the examined ones and then rotated back to the front, in order.
        for _ in 0..frames {
            let Some(handle) = buffer.pop_front() else { break };
            let node = host.node_mut(handle.node);
            let frame = &mut node.frame;
            frame.acknowledged |= ended.answered && frame.received;
            if !frame.acknowledged && ended.retries_max.is_none_or(|most| frame.tries < most) {
                frame.tries += u8::from(ended.retries_max.is_some());
                buffer.push_back(handle);
                kept += 1;
                continue;
            }
            frame.acknowledged = frame.received;
            dropped_any |= !frame.received;
            in_wnic.incomplete -= u16::from(on_air);
            in_wnic.unsent -= 1;
            completed(node);
            host.release(handle.node);
        }
        buffer.rotate_right(usize::from(kept));
        if dropped_any {
            let sequence = |handle: &Handle| host.node(handle.node).frame.sequence;
            let of_lane = |handle: &&Handle| handle.category == category && host.node(handle.node).frame.lane == place;
            let oldest = buffer.iter().find(of_lane).map(sequence);
            let in_lane = lane.frames.front().map(sequence);
            lane.reorder
                .skip_to(oldest.or(in_lane).unwrap_or(lane.sequence_next), &mut up);
        }
        if !committed {
            // Lanes take turns for each PPDU. A lane with retries left continues first, because its window is open.
            if lane.frames.is_empty() {
                queue.order.pop_front();
            } else if kept == 0 {
                queue.order.rotate_left(1);
            }
        }
        kept
    }
}
