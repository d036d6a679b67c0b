//! Decides which federate may advance, and how far: the run-time infrastructure of centralised coordination (Kwok,
//! section IV-A).
//!
//! For each federate, [`Rti`] knows the next event tag (NET) and the completed tag (LTC). It forwards all messages, so
//! it also knows what is in transit. From these follows the earliest tag at which a federate can still receive a
//! message. It is the minimum, over all federates upstream, of their next event plus the least delay from there. It
//! decides:
//!
//! - **Grants.** A federate is granted all tags before that one, if its own next event is among them.
//! - **Provisional grants**, in zero-delay cycles only. The next event in a cycle may not be grantable although no
//!   message from outside the cycle can arrive up to its tag. Then all members may open this tag. They then wait for
//!   each other's inputs level by level. The RTI tells waiting members which senders will send nothing more.
//! - **Messages.** A forwarded message lowers the receiver's next event. The message is in transit until the receiver
//!   has acknowledged it, and a next event tag sent before that cannot raise the receiver's next event again.
//! - **Start.** The program starts once all federates have reported. If one does not report in time, none starts.
//! - **Death.** A dead federate sends nothing more: it has no next event. Its messages were forwarded before. The RTI
//!   informs the others. The federate may return at a tag beyond which no other has advanced in the belief that it is
//!   dead. While a federate is dead, grants stay as short as possible.
//! - **Stop.** The last tag is the latest that any federate proposes; dead federates count as having replied. A
//!   federate that does not reply in time counts as dead. All hold before the last tag, so it is granted again, with
//!   every federate's shutdown as an event there. A federate that has completed the last tag stays until all have,
//!   because no other may know what it sent there.
//! - **Starvation.** When no federate has an event, no message is in transit, and no federate has physical actions or
//!   physical connections, the RTI requests the end itself. So the last tag is the one after the latest that any
//!   federate has reached. With a time limit, every federate has an event there, so none starves.
//! - **Takeover.** A new RTI asks all federates what they know, and decides nothing before it has heard them. No
//!   earlier grant is revoked: grants only grow, and follow from the same facts. Federates that do not report in time
//!   count as dead. If an earlier RTI reported a federate as dead, it stays dead. Its messages since then reach no one,
//!   and if it lives, it has to restart.
//!
//! **Decentralised coordination** ([`decentralised`](super::decentralised)) uses only the start, death, the stop and
//! takeovers. Federates then report only the end of all events, and nothing is granted.
//!
//! A message's value passes through untouched, and may be a reference. The number of messages in transit is bounded by
//! the number that senders may have outstanding.
//!
//! **Sparing.** Next events and completed tags for which no federate downstream waits need not be reported. The RTI
//! says so (module `awaited`).
//!
//! Left out: the liveness of links, which the driver knows, and whether this RTI is the only one, which the epochs of
//! [`failover`](crate::failover) ensure.

mod awaited;
mod gather;
mod horizon;
mod node;
mod stop;

use super::graph::Graph;
use super::program::FederateId;
use super::protocol::{Down, Envelope, Message, Up};
use super::Tag;
use crate::failover::Epoch;
use crate::{Duration, Instant};
use horizon::Horizon;
use node::{Node, Status};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use stop::Stop;

/// Number of arrived messages after which their sender is informed at the latest.
const DELIVERED_EVERY: u64 = 32;

/// The settings of an RTI.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RtiConfig {
    /// How long to wait for all federates to report.
    pub report_max: Duration,
    /// The time from the last report to the start of the program.
    pub start_delay: Duration,
    /// How long to wait for replies to a stop request.
    pub stop_reply_max: Duration,
    /// Whether the federates advance by themselves. Then nothing is granted, and no federate can return.
    pub is_decentralised: bool,
}

impl Default for RtiConfig {
    fn default() -> Self {
        RtiConfig {
            report_max: Duration::from_secs(30),
            start_delay: Duration::from_millis(100),
            stop_reply_max: Duration::from_secs(30),
            is_decentralised: false,
        }
    }
}

/// An action for the RTI's driver.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RtiAction<V> {
    /// Send to a federate. Drop this if there is no link to it.
    Send {
        /// The receiver.
        to: FederateId,
        /// The message.
        envelope: Envelope<Down<V>>,
    },
    /// The program starts at this time, or continues under this RTI.
    Runs(Instant),
    /// Nothing was started: these federates did not report in time.
    StartFailed(Vec<FederateId>),
    /// A federate counts as dead.
    Gone(FederateId),
    /// A federate sent something that no federate of this program sends. It was dropped.
    Nonsense(FederateId),
    /// A federate had already been granted the tag of this message. Its result no longer follows from the program.
    Tardy(FederateId, Tag),
    /// A later RTI exists. This one does nothing more.
    Deposed(Epoch),
    /// All federates have left or died.
    Over,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Gathering { until: Instant },
    Running { start: Instant },
    Over,
}

/// The coordinator of one program, for as long as it lives.
#[derive(Clone, Debug, Hash)]
pub struct Rti<V> {
    graph: Arc<Graph>,
    config: RtiConfig,
    epoch: Epoch,
    phase: Phase,
    nodes: Vec<Node<V>>,
    /// Derived from the nodes, while the program runs.
    horizon: Horizon,
    /// The federates that are neither present nor resigned.
    absent: BTreeSet<FederateId>,
    stop: Stop,
    /// Number of unneeded messages after which their sender is informed.
    patience: u32,
    outbox: VecDeque<RtiAction<V>>,
}

impl<V: Clone> Rti<V> {
    /// Creates an RTI for a program, which may already be running. `epoch` must be greater than the epochs of all
    /// earlier RTIs.
    pub fn new(graph: Arc<Graph>, epoch: Epoch, config: RtiConfig, now: Instant) -> Self {
        let nodes = graph.federates().iter().map(|_| Node::new()).collect();
        let until = now + config.report_max;
        Rti {
            horizon: Horizon::new(Arc::clone(&graph)),
            absent: BTreeSet::new(),
            graph,
            config,
            epoch,
            phase: Phase::Gathering { until },
            nodes,
            stop: Stop::None,
            patience: awaited::PATIENCE,
            outbox: VecDeque::new(),
        }
    }

    /// Records that a link to a federate exists, for the first time or again.
    pub fn on_connected(&mut self, federate: FederateId, now: Instant) {
        if self.phase == Phase::Over || usize::from(federate.0) >= self.nodes.len() {
            return;
        }
        // Messages in flight over an earlier link are lost.
        self.on_gone(federate, now);
        self.node_mut(federate).connect();
        self.send(federate, Down::Hello);
    }

    /// Records that the link to a federate ended and everything that arrived over it was handled. This is a fault
    /// unless the federate resigned.
    pub fn on_gone(&mut self, federate: FederateId, now: Instant) {
        if usize::from(federate.0) >= self.nodes.len() {
            return;
        }
        match self.phase {
            Phase::Gathering { .. } => {
                self.node_mut(federate).die();
                self.gather(now);
            }
            Phase::Running { .. } => {
                let has_resigned = self.node(federate).status == Status::Resigned;
                if has_resigned && self.config.is_decentralised {
                    // The last messages to it may not arrive.
                    self.send_to_present(Some(federate), &Down::Gone(federate));
                }
                self.bury(federate, now);
            }
            Phase::Over => {}
        }
    }

    /// Handles a message of a federate.
    pub fn on_message(&mut self, from: FederateId, envelope: Envelope<Up<V>>, now: Instant) {
        if usize::from(from.0) >= self.nodes.len() || self.phase == Phase::Over {
            return;
        }
        if envelope.epoch != self.epoch {
            if envelope.epoch > self.epoch {
                self.phase = Phase::Over;
                self.outbox.push_back(RtiAction::Deposed(envelope.epoch));
            }
            return;
        }
        if let Up::Report(report) = envelope.body {
            return self.on_report(from, *report, now);
        }
        if self.node(from).status != Status::Present {
            return;
        }
        self.on_received(from, envelope.received);
        match envelope.body {
            Up::Report(_) | Up::Received => {}
            Up::NextEvent { tag, is_bound } => {
                self.node_mut(from).on_next(tag, is_bound);
                self.settle(from);
                self.spare(from);
                self.check_starved(now);
            }
            Up::Completed(tag) => {
                self.node_mut(from).on_completed(tag);
                self.settle(from);
                self.spare(from);
            }
            Up::Message(message) => self.on_value(from, message),
            // While others may still report, the proposal only counts as part of the report.
            Up::StopRequest(tag) | Up::StopReply(tag) => match &mut self.node_mut(from).report {
                Some(report) => report.stop_proposal = Some(tag),
                None => self.on_stop_proposal(from, tag, now),
            },
            Up::Resign => {
                self.node_mut(from).status = Status::Resigned;
                self.settle(from);
                self.check_stop(now);
                self.look_for_the_end();
            }
        }
    }

    /// Handles the deadline returned by [`Rti::next_deadline`]. Harmless at any other time.
    pub fn on_deadline(&mut self, now: Instant) {
        match self.phase {
            Phase::Gathering { until } if until <= now => self.finish_gathering(now),
            Phase::Running { .. } => self.check_stop(now),
            Phase::Gathering { .. } | Phase::Over => {}
        }
    }

    /// Returns when to call [`Rti::on_deadline`] next.
    pub fn next_deadline(&self) -> Option<Instant> {
        match self.phase {
            Phase::Gathering { until } => Some(until),
            Phase::Running { .. } => self.stop.deadline(),
            Phase::Over => None,
        }
    }

    /// Returns the next action, until `None`.
    pub fn poll(&mut self) -> Option<RtiAction<V>> {
        self.outbox.pop_front()
    }

    /// Returns the tag up to which a federate may advance, and the one that it may open provisionally.
    pub fn grants(&self, federate: FederateId) -> Option<(Tag, Tag)> {
        let node = self.nodes.get(usize::from(federate.0))?;
        Some((node.granted, node.provisional))
    }

    fn node(&self, federate: FederateId) -> &Node<V> {
        &self.nodes[usize::from(federate.0)]
    }

    fn node_mut(&mut self, federate: FederateId) -> &mut Node<V> {
        &mut self.nodes[usize::from(federate.0)]
    }

    fn send(&mut self, to: FederateId, body: Down<V>) {
        let (epoch, received) = (self.epoch, 0);
        let envelope = Envelope { epoch, received, body };
        self.outbox.push_back(RtiAction::Send { to, envelope });
    }

    fn send_to_present(&mut self, except: Option<FederateId>, body: &Down<V>) {
        for to in self.graph.federate_ids() {
            if Some(to) != except && self.node(to).status == Status::Present {
                self.send(to, body.clone());
            }
        }
    }

    /// Records that `from` has received this many messages of its link. Informs their senders once there are enough.
    fn on_received(&mut self, from: FederateId, count: u64) {
        for (sender, number) in self.node_mut(from).acknowledge(count) {
            self.send(sender, Down::Delivered { to: from, number });
        }
    }

    fn on_value(&mut self, from: FederateId, message: Message<V>) {
        let to = message.to;
        let element = self
            .graph
            .element(message.input)
            .filter(|element| element.federate == to);
        let link = element.and_then(|element| element.from);
        if !link.is_some_and(|link| link.federate == from && message.from == from && to != from) {
            self.outbox.push_back(RtiAction::Nonsense(from));
            return;
        }
        if matches!(self.phase, Phase::Gathering { .. }) {
            // Until all have reported, it is unknown which federates consider the sender dead.
            return self.node_mut(to).held.push(message);
        }
        self.forward(message);
    }

    fn forward(&mut self, message: Message<V>) {
        let (from, to, number, tag) = (message.from, message.to, message.number, message.tag);
        let link = self.graph.element(message.input).and_then(|element| element.from);
        let is_physical = link.is_some_and(|link| link.physical);
        let last = self.node_mut(to).last_from.entry(from).or_insert(0);
        let is_new = number > *last;
        *last = number.max(*last);
        // An absent input, or a message without a tag of its own, is not an event that could be too early.
        let lowers = message.value.is_some() && !is_physical;
        let node = self.node(to);
        // A message before the tag at which the receiver returned counts as sent while it was dead.
        let takes_part = node.status == Status::Present && (is_physical || tag >= node.first);
        if !takes_part {
            self.node_mut(to).drop_message(tag);
        }
        if !is_new || !takes_part {
            return self.send(from, Down::Delivered { to, number });
        }
        // Before all have reported, the last tag may already be decided without being known here. It makes grants void.
        let runs = matches!(self.phase, Phase::Running { .. });
        if runs && lowers && tag <= self.node(to).granted {
            self.outbox.push_back(RtiAction::Tardy(to, tag));
        }
        self.node_mut(to).on_forwarded(from, number, lowers.then_some(tag));
        self.send(to, Down::Message(message));
        if lowers {
            self.settle(to);
        }
    }

    /// Returns the earliest tag at which a message can still arrive at `to`, from all federates upstream, or only from
    /// outside its zero-delay cycle.
    fn earliest_message(&self, to: FederateId, from_outside: bool) -> Tag {
        self.horizon.earliest(to, from_outside)
    }

    /// Records the events of all federates, before anything is granted.
    fn count_all(&mut self) {
        self.horizon.set_all(self.nodes.iter().map(Node::event));
        self.absent = self
            .graph
            .federate_ids()
            .filter(|id| self.node(*id).status == Status::Absent)
            .collect();
    }

    /// Grants the tags that become possible after a change of `changed`.
    fn settle(&mut self, changed: FederateId) {
        if !matches!(self.phase, Phase::Running { .. }) {
            return;
        }
        let mut touched = self.horizon.set(changed, self.node(changed).event());
        touched.push(changed);
        let is_absent = self.node(changed).status == Status::Absent;
        let was_absent = if is_absent {
            !self.absent.insert(changed)
        } else {
            self.absent.remove(&changed)
        };
        if is_absent != was_absent {
            let info = self.graph.federate(changed);
            let downstream = info.map_or(&[][..], |info| &info.downstream).iter();
            touched.extend(downstream.map(|(to, _)| *to));
        }
        touched.sort_unstable();
        touched.dedup();
        self.grant_each(&touched);
        self.recall(changed);
    }

    fn settle_all(&mut self) {
        self.count_all();
        let all: Vec<_> = self.graph.federate_ids().collect();
        self.grant_each(&all);
        for federate in all {
            self.recall_one(federate);
        }
    }

    fn grant_each(&mut self, touched: &[FederateId]) {
        #[cfg(test)]
        self.horizon.check(self.nodes.iter().map(Node::event));
        if self.config.is_decentralised {
            return;
        }
        for federate in touched {
            if self.node(*federate).status == Status::Present {
                self.grant(*federate);
            }
        }
        for sender in touched {
            for at in 0..self.horizon.receivers(*sender).len() {
                let to = self.horizon.receivers(*sender)[at];
                self.tell_settled(to, *sender);
            }
        }
    }

    fn grant(&mut self, federate: FederateId) {
        let graph = Arc::clone(&self.graph);
        let Some(info) = graph.federate(federate) else { return };
        // Without federates upstream, it never asks.
        if info.upstream.is_empty() {
            return;
        }
        let (next, earliest) = (self.node(federate).next(), self.earliest_message(federate, false));
        let mut tag = earliest.before();
        if self.absent.iter().any(|from| graph.delay(*from, federate).is_some()) {
            tag = tag.min(next);
        }
        if next < earliest {
            if tag > self.node(federate).granted {
                self.node_mut(federate).granted = tag;
                self.send(federate, Down::Grant(tag));
            }
        } else if let Some(tag) = info.cycle.and_then(|cycle| self.horizon.next_in_cycle(cycle)) {
            let node = self.node(federate);
            // One tag at a time: until it is complete, the federate may wait there.
            let is_waiting = node.provisional > node.granted.max(node.completed);
            let is_new = tag > node.granted.max(node.completed) && !is_waiting;
            if is_new && earliest == tag && self.earliest_message(federate, true) > tag {
                self.node_mut(federate).provisional = tag;
                self.send(federate, Down::Provisional(tag));
                for at in 0..self.horizon.senders(federate).len() {
                    let sender = self.horizon.senders(federate)[at];
                    self.tell_settled(federate, sender);
                }
            }
        }
    }

    /// Tells a member of a zero-delay cycle that waits within a tag whether nothing more comes from `sender`.
    fn tell_settled(&mut self, federate: FederateId, sender: FederateId) {
        let node = self.node(federate);
        let waits_at = node.provisional;
        let told = node.settled.get(&sender).copied().unwrap_or(Tag::NEVER);
        let is_waiting = node.status == Status::Present && waits_at > node.completed.max(node.granted);
        if !is_waiting || told >= waits_at {
            return;
        }
        let node = self.node(sender);
        // At granted tags it cannot receive any more, whatever others may do at earlier tags meanwhile.
        let granted = node.granted >= waits_at || node.provisional > waits_at;
        let nothing_comes = || granted || self.earliest_message(sender, false) > waits_at;
        if node.completed >= waits_at || (node.next() > waits_at && nothing_comes()) {
            self.node_mut(federate).settled.insert(sender, waits_at);
            let (federate, through, to) = (sender, waits_at, federate);
            self.send(to, Down::Settled { federate, through });
        }
    }

    fn bury(&mut self, federate: FederateId, now: Instant) {
        if self.node(federate).status != Status::Present {
            return;
        }
        self.give_up(federate);
        self.outbox.push_back(RtiAction::Gone(federate));
        self.send_to_present(Some(federate), &Down::Gone(federate));
        self.settle(federate);
        self.check_stop(now);
        self.look_for_the_end();
        self.check_starved(now);
    }

    fn give_up(&mut self, federate: FederateId) {
        // The federate will not need the messages that it had not received.
        for (sender, number) in self.node_mut(federate).die() {
            self.send(sender, Down::Delivered { to: federate, number });
        }
    }

    fn look_for_the_end(&mut self) {
        let runs = matches!(self.phase, Phase::Running { .. });
        if runs && self.nodes.iter().all(|node| node.status != Status::Present) {
            self.phase = Phase::Over;
            for to in self.graph.federate_ids() {
                if self.node(to).status == Status::Resigned {
                    self.send(to, Down::Over);
                }
            }
            self.outbox.push_back(RtiAction::Over);
        }
    }

    /// Returns the federates that take part, in order.
    fn present(&self) -> impl Iterator<Item = FederateId> + '_ {
        self.graph
            .federate_ids()
            .filter(|id| self.node(*id).status == Status::Present)
    }
}

#[cfg(test)]
impl<V: Clone> Rti<V> {
    /// Replaces [`awaited::PATIENCE`].
    pub(super) fn with_patience(self, patience: u32) -> Self {
        Rti { patience, ..self }
    }

    /// Returns the next event of a federate, as the RTI knows it.
    pub(super) fn next_of(&self, federate: FederateId) -> Tag {
        self.node(federate).next()
    }

    /// Describes what the RTI knows about each federate, for failed tests.
    pub(super) fn describe(&self) -> Vec<String> {
        let describe = |id: FederateId| {
            let (node, info) = (self.node(id), &self.graph.federates()[usize::from(id.0)]);
            let (event, earliest) = (node.event(), self.horizon.earliest(id, false));
            let (upstream, cycle) = (&info.upstream, info.cycle);
            let grants = (node.completed, node.granted, node.provisional);
            format!(
                "{:?} {event:?} {earliest} {grants:?} {cycle:?} {upstream:?}\n",
                node.status
            )
        };
        self.graph.federate_ids().map(describe).collect()
    }
}

/// The highest message number of each sender.
type Numbers = BTreeMap<FederateId, u64>;

#[cfg(test)]
mod tests;
