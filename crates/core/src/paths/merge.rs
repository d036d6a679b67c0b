//! Keeps packets in order although their copies go over several paths.
//!
//! Each flow has its own numbers. A packet after a missing one waits until the missing one can no longer arrive. A path
//! keeps packets in order. So a missing packet is lost once each path that may carry it has delivered a later one. It
//! is also lost after [`WAIT_MAX`], because a path may be dead. A packet that arrives even later was overtaken and is
//! dropped.
//!
//! Each packet says which paths may still carry packets of its flow ([`Outflow`]). If there is only one such path,
//! nothing ever waits.

use std::collections::{BTreeMap, VecDeque};

use super::{ahead, Deduplicator, Delivery, PathId, Sequence, Verdict, PATHS_MAX};
use crate::{Duration, Instant};

/// Maximum time that a packet waits for those before it. A copy that arrives later is of little use to control.
pub const WAIT_MAX: Duration = Duration::from_millis(20);
/// How long a path may carry a packet.
const CARRIED_FOR: Duration = Duration::from_millis(100);
/// Maximum number of flows of a sender that are known at a time. The one that was silent for longest makes room. Twice
/// as many as a sender has at a time, so that late copies still find their flow.
pub const FLOWS_MAX: usize = 2 * crate::robot::FLOWS_MAX;
/// Maximum numbers of waiting packets, of one flow and of all.
const WAITING_MAX: usize = 32;
const WAITING_ALL_MAX: usize = 512;

/// A set of paths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Paths(pub u8);

impl Paths {
    /// Returns the set with this path added.
    pub fn with(self, path: PathId) -> Paths {
        Paths(self.0 | 1u8.checked_shl(path.0.into()).unwrap_or(0))
    }

    fn all(self) -> impl Iterator<Item = usize> {
        (0..PATHS_MAX).filter(move |path| self.0 >> path & 1 == 1)
    }
}

/// The sender's half for one flow: numbers its packets.
#[derive(Clone, Debug, Default)]
pub struct Outflow {
    number_next: u32,
    /// When each path last carried a packet.
    used_at: [Option<Instant>; PATHS_MAX],
}

impl Outflow {
    /// Returns the number of a packet that goes over these paths, which are alive, and the paths that may still carry
    /// packets.
    pub fn number(&mut self, over: impl IntoIterator<Item = PathId>, now: Instant) -> (u32, Paths) {
        for path in over {
            if let Some(used_at) = self.used_at.get_mut(usize::from(path.0)) {
                *used_at = Some(now);
            }
        }
        let number = self.number_next;
        self.number_next = number.wrapping_add(1);
        let recent = |at: &Option<Instant>| at.is_some_and(|at| now.since(at) < CARRIED_FOR);
        let carrying = (0u8..).map(PathId).zip(&self.used_at).filter(|(_, at)| recent(at));
        (
            number,
            carrying.fold(Paths::default(), |paths, (path, _)| paths.with(path)),
        )
    }
}

/// One copy of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketCopy {
    /// The sender's number for the flow.
    pub flow: u32,
    /// The packet's number within the flow.
    pub sequence: Sequence,
    /// The path that has carried it.
    pub path: PathId,
    /// The paths that may carry this packet, or packets before it.
    pub over: Paths,
}

/// Merges the flows of one sender.
#[derive(Clone, Debug)]
pub struct Merge<P> {
    flows: BTreeMap<u32, Flow<P>>,
    ready: VecDeque<P>,
}

#[derive(Clone, Debug)]
struct Flow<P> {
    deduplicator: Deduplicator,
    /// The number of the next packet.
    next: u32,
    /// The newest number that each path has delivered.
    newest: [Option<u32>; PATHS_MAX],
    /// Packets after a missing one, in order.
    waiting: VecDeque<Waiting<P>>,
    heard_at: Instant,
}

#[derive(Clone, Debug)]
struct Waiting<P> {
    number: u32,
    over: Paths,
    since: Instant,
    packet: P,
}

impl<P> Default for Merge<P> {
    fn default() -> Self {
        Merge {
            flows: BTreeMap::new(),
            ready: VecDeque::new(),
        }
    }
}

impl<P> Merge<P> {
    /// Handles a copy. Packets that need not wait are then ready ([`poll`](Self::poll)).
    pub fn on_copy(&mut self, copy: PacketCopy, packet: P, now: Instant) -> Verdict {
        if !self.flows.contains_key(&copy.flow) {
            if self.flows.len() >= FLOWS_MAX {
                self.forget();
            }
            self.flows.insert(copy.flow, Flow::new(copy.sequence, now));
        }
        let all: usize = self.flows.values().map(|flow| flow.waiting.len()).sum();
        let Some(flow) = self.flows.get_mut(&copy.flow) else {
            return Verdict::Stale;
        };
        let verdict = flow.on_copy(copy, packet, now, &mut self.ready);
        let most = if all >= WAITING_ALL_MAX { 0 } else { WAITING_MAX };
        flow.release(most, now, &mut self.ready);
        verdict
    }

    /// Handles the deadline of [`next_deadline`](Self::next_deadline). Harmless at any other time.
    pub fn on_deadline(&mut self, now: Instant) {
        for flow in self.flows.values_mut() {
            flow.release(WAITING_MAX, now, &mut self.ready);
        }
    }

    /// Returns when to call [`on_deadline`](Self::on_deadline) next.
    pub fn next_deadline(&self) -> Option<Instant> {
        let first = self.flows.values().filter_map(|flow| flow.waiting.front());
        first.map(|first| first.since + WAIT_MAX).min()
    }

    /// Returns the next packet to deliver, until `None`.
    pub fn poll(&mut self) -> Option<P> {
        self.ready.pop_front()
    }

    /// Forgets the most silent flow, to make room for another.
    fn forget(&mut self) {
        let silent = self.flows.iter().min_by_key(|(_, flow)| flow.heard_at);
        let gone = silent
            .map(|(number, _)| *number)
            .and_then(|number| self.flows.remove(&number));
        self.ready.extend(gone.into_iter().flat_map(Flow::packets));
    }
}

impl<P> Flow<P> {
    fn new(first: Sequence, now: Instant) -> Self {
        Flow {
            deduplicator: Deduplicator::new(Delivery::Every),
            next: begin(first),
            newest: [None; PATHS_MAX],
            waiting: VecDeque::new(),
            heard_at: now,
        }
    }

    fn packets(self) -> impl Iterator<Item = P> {
        self.waiting.into_iter().map(|waiting| waiting.packet)
    }

    fn on_copy(&mut self, copy: PacketCopy, packet: P, now: Instant, ready: &mut VecDeque<P>) -> Verdict {
        let PacketCopy {
            sequence, path, over, ..
        } = copy;
        let before = self.deduplicator.newest();
        let verdict = self.deduplicator.on_copy(sequence);
        if verdict == Verdict::Over {
            return verdict;
        }
        if before.is_some_and(|before| before.incarnation != sequence.incarnation) {
            ready.extend(self.waiting.drain(..).map(|waiting| waiting.packet));
            (self.next, self.newest) = (begin(sequence), [None; PATHS_MAX]);
        }
        self.heard_at = now;
        let number = sequence.number;
        if let Some(newest) = self.newest.get_mut(usize::from(path.0)) {
            *newest = newest.filter(|newest| ahead(*newest, number) > 0).or(Some(number));
        }
        if verdict != Verdict::Deliver {
            return verdict;
        }
        if ahead(number, self.next) < 0 {
            return Verdict::Stale;
        }
        let place = self.waiting.partition_point(|other| ahead(other.number, number) < 0);
        let since = now;
        self.waiting.insert(
            place,
            Waiting {
                number,
                over,
                since,
                packet,
            },
        );
        verdict
    }

    /// Releases the packets that need not wait any longer, and the oldest ones beyond `most`.
    fn release(&mut self, most: usize, now: Instant, ready: &mut VecDeque<P>) {
        while let Some(first) = self.waiting.front() {
            let waits = first.number != self.next
                && self.waiting.len() <= most
                && now.since(first.since) < WAIT_MAX
                && !first.over.all().all(|path| self.has_passed(path, first.number));
            if waits {
                return;
            }
            self.next = first.number.wrapping_add(1);
            ready.extend(self.waiting.pop_front().map(|first| first.packet));
        }
    }

    /// Returns whether a path has delivered this number or a later one.
    fn has_passed(&self, path: usize, number: u32) -> bool {
        self.newest[path].is_some_and(|newest| ahead(newest, number) >= 0)
    }
}

/// Returns the first number that may still arrive, if `first` is the first that has arrived.
fn begin(first: Sequence) -> u32 {
    match first.number {
        number if number < WAITING_MAX as u32 => 0,
        number => number,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const A: PathId = PathId(0);
    const B: PathId = PathId(1);

    fn at(ms: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(ms)
    }

    fn both() -> Paths {
        Paths::default().with(A).with(B)
    }

    /// Flows of packets that are their numbers.
    #[derive(Default)]
    struct Receiver(Merge<u32>);

    impl Receiver {
        fn hear(&mut self, number: u32, path: PathId, over: Paths, ms: u64) -> Vec<u32> {
            let sequence = Sequence { incarnation: 1, number };
            let copy = PacketCopy {
                flow: 7,
                sequence,
                path,
                over,
            };
            self.0.on_copy(copy, number, at(ms));
            std::iter::from_fn(|| self.0.poll()).collect()
        }

        fn wait(&mut self, ms: u64) -> Vec<u32> {
            self.0.on_deadline(at(ms));
            std::iter::from_fn(|| self.0.poll()).collect()
        }
    }

    #[test]
    fn a_packet_waits_for_the_one_before_until_that_is_lost_on_each_path() {
        let mut it = Receiver::default();
        assert_eq!(it.hear(55, A, both(), 0), [55]);
        assert_eq!(it.hear(57, A, both(), 1), [0; 0]);
        assert_eq!(it.hear(55, B, both(), 2), [0; 0], "a copy");
        assert_eq!(it.hear(56, B, both(), 3), [56, 57]);
        assert_eq!(it.hear(59, A, both(), 4), [0; 0]);
        assert_eq!(it.hear(60, B, both(), 5), [59, 60], "58 is lost on both");
        assert_eq!(it.hear(58, B, both(), 6), [0; 0], "overtaken");
        assert_eq!(it.0.next_deadline(), None);
    }

    #[test]
    fn it_does_not_wait_long_for_a_dead_path_nor_at_all_without_another_one() {
        let mut it = Receiver::default();
        assert_eq!(it.hear(51, A, both(), 0), [51]);
        assert_eq!(it.hear(53, A, both(), 1), [0; 0]);
        assert_eq!(it.hear(54, A, both(), 9), [0; 0]);
        assert_eq!(it.0.next_deadline(), Some(at(21)));
        assert_eq!(it.wait(20), [0; 0]);
        assert_eq!(it.wait(21), [53, 54]);
        let alone = Paths::default().with(A);
        assert_eq!(it.hear(59, A, alone, 30), [59]);
    }

    #[test]
    fn a_flow_may_begin_with_a_loss() {
        let mut it = Receiver::default();
        assert_eq!(it.hear(1, A, both(), 0), [0; 0]);
        assert_eq!(it.hear(0, B, both(), 2), [0, 1]);
    }

    #[test]
    fn a_sender_that_starts_anew_is_heard_at_once() {
        let mut it = Receiver::default();
        it.hear(100, A, both(), 0);
        assert_eq!(it.hear(102, A, both(), 0), [0; 0]);
        let sequence = Sequence::first(2);
        let copy = PacketCopy {
            flow: 7,
            sequence,
            path: A,
            over: both(),
        };
        assert_eq!(it.0.on_copy(copy, 0, at(1)), Verdict::Deliver);
        assert_eq!(std::iter::from_fn(|| it.0.poll()).collect::<Vec<_>>(), [102, 0]);
        let late = Sequence {
            incarnation: 1,
            number: 103,
        };
        assert_eq!(
            it.0.on_copy(PacketCopy { sequence: late, ..copy }, 0, at(1)),
            Verdict::Over
        );
    }

    #[test]
    fn what_waits_and_what_is_known_is_bounded() {
        let mut it = Receiver::default();
        it.hear(0, A, both(), 0);
        for number in 2..2 + WAITING_MAX as u32 {
            assert_eq!(it.hear(number, A, both(), 1), [0; 0]);
        }
        assert_eq!(it.hear(99, A, both(), 1).len(), WAITING_MAX, "99 waits alone");
        for flow in 0..2 * FLOWS_MAX as u32 {
            for number in [0, 2, 3, 4, 5, 6, 7] {
                let sequence = Sequence { incarnation: 1, number };
                let copy = PacketCopy {
                    flow,
                    sequence,
                    path: A,
                    over: both(),
                };
                it.0.on_copy(copy, number, at(1));
            }
        }
        let waiting: usize = it.0.flows.values().map(|flow| flow.waiting.len()).sum();
        assert_eq!((it.0.flows.len(), waiting <= WAITING_ALL_MAX), (FLOWS_MAX, true));
    }

    proptest! {
        /// Two paths keep their order, lose some packets and have different delays. Every packet that arrives in time
        /// is delivered once and in order, and none waits longer than allowed.
        #[test]
        fn each_packet_is_delivered_once_and_in_order(
            start in prop_oneof![Just(0), Just(u32::MAX - 20), any::<u32>()],
            fates in prop::collection::vec((0u64..8, 0u8..4, any::<bool>()), 1..120),
            lags in (0u64..15, 0u64..15),
        ) {
            let (mut now, mut copies, mut flow) = (0, Vec::new(), Outflow::default());
            let mut arrived = std::collections::BTreeSet::new();
            for (index, (gap, lost, one)) in (0u32..).zip(&fates) {
                now += gap;
                let over: &[PathId] = if *one { &[A] } else { &[A, B] };
                let (number, told) = flow.number(over.iter().copied(), at(now));
                prop_assert_eq!(number, index);
                for (path, lag) in [(A, lags.0), (B, lags.1)] {
                    if over.contains(&path) && lost >> path.0 & 1 == 0 {
                        copies.push((now + lag, path.0, index, told.0));
                        arrived.insert(index);
                    }
                }
            }
            // Sorted by time; each path keeps its order.
            copies.sort();
            let mut it = Receiver::default();
            let mut delivered = Vec::new();
            let first = copies.first().map(|copy| copy.2);
            for (ms, path, index, told) in copies {
                while let Some(due) = it.0.next_deadline().filter(|due| *due <= at(ms)) {
                    it.0.on_deadline(due);
                    delivered.extend(std::iter::from_fn(|| it.0.poll()));
                }
                delivered.extend(it.hear(start.wrapping_add(index), PathId(path), Paths(told), ms));
            }
            delivered.extend(it.wait(now + 100));
            prop_assert_eq!(it.0.next_deadline(), None);
            let indices: Vec<u32> = delivered.iter().map(|number| number.wrapping_sub(start)).collect();
            prop_assert!(indices.windows(2).all(|pair| pair[0] < pair[1]), "{:?}", indices);
            // Numbers before the first that arrived are not known to be missing, unless they are the flow's first
            // numbers.
            let begins = first.map(|first| first - begin(Sequence { incarnation: 1, number: start.wrapping_add(first) })
                .abs_diff(start.wrapping_add(first)));
            let expected: Vec<u32> = arrived.into_iter().filter(|index| Some(*index) >= begins).collect();
            prop_assert_eq!(indices, expected);
        }
    }
}
