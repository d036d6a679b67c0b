//! Keeps the earliest possible next message to each federate up to date as single federates advance.
//!
//! A federate's event matters to all federates downstream, so a table of all pairs would be read at each message.
//! Instead, each federate remembers which other determines its horizon. Only when that one advances is the horizon
//! searched again, among all federates in the order of their events. The first few decide, because no delay is
//! negative.

use super::super::graph::Graph;
use super::super::program::FederateId;
use super::super::Tag;
use std::collections::BTreeSet;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// Number of federates upstream up to which looking at each is faster than searching in the order of events.
const FEW: usize = 32;

/// The tag of the earliest message that can arrive, and its sender.
type Rest = (Tag, Option<FederateId>);

#[derive(Clone, Debug)]
pub(super) struct Horizon {
    graph: Arc<Graph>,
    /// Per federate, the tag of its next event, and whether that is only a bound.
    events: Vec<(Tag, bool)>,
    order: BTreeSet<(Tag, FederateId)>,
    all: Vec<Rest>,
    /// For members of a zero-delay cycle, the same for messages from outside the cycle.
    outside: Vec<Rest>,
    /// Per zero-delay cycle, the events of its members.
    cycles: Vec<BTreeSet<(Tag, bool, FederateId)>>,
    members: Vec<Vec<FederateId>>,
    /// Per federate, the others of its cycle that it may wait for within a tag, and those that may wait for it.
    senders: Vec<Vec<FederateId>>,
    receivers: Vec<Vec<FederateId>>,
}

impl Hash for Horizon {
    /// Adds nothing, because the horizon follows from the graph and the nodes.
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

impl Horizon {
    pub fn new(graph: Arc<Graph>) -> Self {
        let count = graph.federates().len();
        let cycles = graph.federates().iter().filter_map(|info| info.cycle).max();
        let cycles = cycles.map_or(0, |last| usize::from(last) + 1);
        let mut horizon = Horizon {
            events: vec![(Tag::FOREVER, true); count],
            order: BTreeSet::new(),
            all: vec![(Tag::FOREVER, None); count],
            outside: vec![(Tag::FOREVER, None); count],
            cycles: vec![BTreeSet::new(); cycles],
            members: vec![Vec::new(); cycles],
            senders: vec![Vec::new(); count],
            receivers: vec![Vec::new(); count],
            graph: Arc::clone(&graph),
        };
        for (id, info) in graph.federate_ids().zip(graph.federates()) {
            if let Some(cycle) = info.cycle {
                horizon.members[usize::from(cycle)].push(id);
            }
            let link = |input: &_| graph.element(*input).and_then(|element| element.from);
            let links = info.cycle_inputs.iter().filter_map(link);
            let senders: BTreeSet<_> = links.map(|link| link.federate).collect();
            for sender in &senders {
                horizon.receivers[usize::from(sender.0)].push(id);
            }
            horizon.senders[usize::from(id.0)] = senders.into_iter().collect();
        }
        horizon
    }

    /// Sets the events of all federates, in order.
    pub fn set_all(&mut self, events: impl Iterator<Item = (Tag, bool)>) {
        let graph = Arc::clone(&self.graph);
        self.events = events.collect();
        self.order.clear();
        self.cycles.iter_mut().for_each(BTreeSet::clear);
        for ((id, info), event) in graph.federate_ids().zip(graph.federates()).zip(&self.events) {
            self.order.insert((event.0, id));
            if let Some(cycle) = info.cycle {
                self.cycles[usize::from(cycle)].insert((event.0, event.1, id));
            }
        }
        for id in graph.federate_ids() {
            self.all[usize::from(id.0)] = self.look(id, false, Tag::NEVER);
            self.outside[usize::from(id.0)] = self.look(id, true, Tag::NEVER);
        }
    }

    /// Sets the next event of a federate. Returns the federates for which this changes anything, in order, some perhaps
    /// more than once.
    pub fn set(&mut self, changed: FederateId, event: (Tag, bool)) -> Vec<FederateId> {
        let (graph, at) = (Arc::clone(&self.graph), usize::from(changed.0));
        let before = std::mem::replace(&mut self.events[at], event);
        let mut touched = Vec::new();
        let Some(info) = graph.federate(changed).filter(|_| before != event) else {
            return touched;
        };
        self.order.remove(&(before.0, changed));
        self.order.insert((event.0, changed));
        if let Some(cycle) = info.cycle.map(usize::from) {
            let events = &mut self.cycles[cycle];
            let first = events.first().map(|(tag, is_bound, _)| (*tag, *is_bound));
            events.remove(&(before.0, before.1, changed));
            events.insert((event.0, event.1, changed));
            if events.first().map(|(tag, is_bound, _)| (*tag, *is_bound)) != first {
                touched.extend(&self.members[cycle]);
            }
        }
        for (to, delay) in &info.downstream {
            let is_outside = graph
                .federate(*to)
                .is_some_and(|to| to.cycle.is_some() && to.cycle != info.cycle);
            let arrival = event.0 + *delay;
            let all = self.moved(*to, false, changed, arrival);
            let outside = is_outside && self.moved(*to, true, changed, arrival);
            if all || outside {
                touched.push(*to);
            }
        }
        touched
    }

    /// Records that a message from `changed` to `to` can now arrive at `arrival`. Returns whether that moves the
    /// horizon of `to`.
    fn moved(&mut self, to: FederateId, from_outside: bool, changed: FederateId, arrival: Tag) -> bool {
        let (tag, from) = *self.rest(to, from_outside);
        let new = if arrival < tag {
            (arrival, Some(changed))
        } else if from == Some(changed) && arrival > tag {
            self.look(to, from_outside, tag)
        } else {
            return false;
        };
        *self.rest(to, from_outside) = new;
        new.0 != tag
    }

    fn rest(&mut self, to: FederateId, from_outside: bool) -> &mut Rest {
        let of = if from_outside { &mut self.outside } else { &mut self.all };
        &mut of[usize::from(to.0)]
    }

    /// Searches for the horizon of `to`, which is not before `floor`.
    fn look(&self, to: FederateId, from_outside: bool, floor: Tag) -> Rest {
        let (graph, mut earliest) = (&self.graph, (Tag::FOREVER, None));
        let Some(info) = graph.federate(to) else {
            return earliest;
        };
        let counts = |from: FederateId| {
            let cycle = graph.federate(from).and_then(|info| info.cycle);
            !from_outside || info.cycle.is_none() || cycle != info.cycle
        };
        if info.upstream.len() <= FEW {
            for (from, delay) in info.upstream.iter().filter(|(from, _)| counts(*from)) {
                let arrival = self.events[usize::from(from.0)].0 + *delay;
                if arrival < earliest.0 {
                    earliest = (arrival, Some(*from));
                }
            }
            return earliest;
        }
        for (next, from) in &self.order {
            if earliest.0 <= floor.max(*next) {
                break;
            }
            if let Some(delay) = graph.delay(*from, to).filter(|_| counts(*from)) {
                if *next + delay < earliest.0 {
                    earliest = (*next + delay, Some(*from));
                }
            }
        }
        earliest
    }

    /// Returns the earliest tag at which a message can still arrive at `to`, from all federates upstream, or only from
    /// outside its zero-delay cycle.
    pub fn earliest(&self, to: FederateId, from_outside: bool) -> Tag {
        let of = if from_outside { &self.outside } else { &self.all };
        of[usize::from(to.0)].0
    }

    /// Returns the tag of the next event of a zero-delay cycle, if that is certain to be an event.
    pub fn next_in_cycle(&self, cycle: u16) -> Option<Tag> {
        let (tag, is_bound, _) = *self.cycles.get(usize::from(cycle))?.first()?;
        tag.time().filter(|_| !is_bound)?;
        Some(tag)
    }

    /// Returns the tag of the first event of all federates.
    pub fn next(&self) -> Tag {
        self.order.first().map_or(Tag::FOREVER, |(tag, _)| *tag)
    }

    pub fn senders(&self, to: FederateId) -> &[FederateId] {
        &self.senders[usize::from(to.0)]
    }

    pub fn receivers(&self, from: FederateId) -> &[FederateId] {
        &self.receivers[usize::from(from.0)]
    }

    /// Compares the horizons with their definition.
    #[cfg(test)]
    pub fn check(&self, events: impl Iterator<Item = (Tag, bool)>) {
        let events: Vec<_> = events.collect();
        assert_eq!(self.events, events);
        let cycle = |id: FederateId| self.graph.federate(id).and_then(|info| info.cycle);
        for (to, info) in self.graph.federate_ids().zip(self.graph.federates()) {
            for from_outside in [false, true] {
                let counts = |from| !from_outside || info.cycle.is_none() || cycle(from) != info.cycle;
                let upstream = info.upstream.iter().filter(|(from, _)| counts(*from));
                let arrivals = upstream.map(|(from, delay)| events[usize::from(from.0)].0 + *delay);
                let earliest = arrivals.min().unwrap_or(Tag::FOREVER);
                if !from_outside || info.cycle.is_some() {
                    assert_eq!(self.earliest(to, from_outside), earliest, "{to:?} {from_outside}");
                }
            }
        }
    }
}
