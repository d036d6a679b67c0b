//! Starts a program, takes over a running one, and admits single federates.

use super::super::program::FederateId;
use super::super::protocol::{Down, Message, Report};
use super::super::Tag;
use super::stop::Stop;
use super::{Phase, Rti, RtiAction, Status};
use crate::Instant;
use std::collections::BTreeSet;
use std::sync::Arc;

impl<V: Clone> Rti<V> {
    pub(super) fn on_report(&mut self, from: FederateId, report: Report<V>, now: Instant) {
        match self.phase {
            Phase::Gathering { .. } => {
                self.take_in(from, report);
                self.gather(now);
            }
            Phase::Running { .. } if self.node(from).status != Status::Absent => {}
            // The others have continued without what it knows.
            Phase::Running { .. } if report.start.is_some() => self.send(from, Down::Expelled),
            Phase::Running { start } => {
                let first = self.first_open_to(from, true).max(Tag::at(now.since(start), 0));
                if self.let_in(from, first, start) {
                    let dead: Vec<_> = self.absent().collect();
                    for other in dead {
                        self.send(from, Down::Gone(other));
                    }
                }
            }
            Phase::Over => {}
        }
    }

    /// Adopts a report as the state of its federate.
    fn take_in(&mut self, from: FederateId, mut report: Report<V>) {
        let retained = std::mem::take(&mut report.retained);
        let node = self.node_mut(from);
        for (sender, number) in &report.received {
            let last = node.last_from.entry(*sender).or_insert(0);
            *last = number.max(last).to_owned();
        }
        if report.start.is_some() {
            node.resume(&report);
        }
        node.report = Some(Box::new(report));
        for message in retained {
            self.on_value(from, message);
        }
    }

    /// Continues if no report is awaited any more. Before a start, federates whose link ended may come back.
    pub(super) fn gather(&mut self, now: Instant) {
        let mut reports = self.nodes.iter().filter_map(|node| node.report.as_deref());
        let runs = reports.any(|report| report.start.is_some());
        if self
            .nodes
            .iter()
            .all(|node| node.report.is_some() || (runs && node.is_gone))
        {
            self.finish_gathering(now);
        }
    }

    /// Evaluates the reports, after all have arrived or the time is over.
    pub(super) fn finish_gathering(&mut self, now: Instant) {
        let reports: Vec<_> = self.nodes.iter_mut().map(|node| node.report.take()).collect();
        let ids = || self.graph.federate_ids().zip(&reports);
        let mut missing: Vec<_> = ids().filter(|(_, report)| report.is_none()).map(|(id, _)| id).collect();
        let all = || reports.iter().flatten();
        let Some(start) = all().filter_map(|report| report.start).max() else {
            let latest = all().map(|report| report.now).max().unwrap_or(now);
            return self.start_or_fail(latest, missing);
        };
        let fresh: Vec<_> = ids()
            .filter(|(_, report)| report.as_ref().is_some_and(|report| report.start.is_none()))
            .map(|(id, _)| id)
            .collect();
        let stop = all().filter_map(|report| report.stop).max();
        let proposal =
            |(id, report): (FederateId, &Option<Box<Report<V>>>)| Some((id, report.as_ref()?.stop_proposal?));
        let proposals: Vec<_> = ids().filter_map(proposal).collect();

        self.outbox.push_back(RtiAction::Runs(start));
        let gone: BTreeSet<_> = reports
            .iter()
            .flatten()
            .flat_map(|report| report.gone.iter().copied())
            .collect();
        // An earlier RTI lost these federates. Others have continued without what these may have told this RTI since.
        self.drop_held(|message| gone.contains(&message.from));
        for federate in fresh {
            // If it only missed the start, others still wait for it, and the clock does not matter.
            let first = self.first_open_to(federate, gone.contains(&federate));
            self.let_in(federate, first, start);
        }
        let runs = |report: &Report<V>| report.start.is_some() && !report.has_ended;
        for federate in gone {
            let report = reports.get(usize::from(federate.0)).and_then(Option::as_deref);
            if report.is_some_and(runs) {
                self.send(federate, Down::Expelled);
                self.give_up(federate);
                missing.push(federate);
            }
        }
        for federate in self.graph.federate_ids() {
            if self.node(federate).status != Status::Absent {
                self.release_held(federate);
            }
            let node = self.node_mut(federate);
            let latest = node.held.iter().map(|message| message.tag).max();
            node.dropped = latest.unwrap_or(Tag::NEVER).max(node.dropped);
        }
        self.drop_held(|_| true);
        // Nothing is granted before all have been admitted.
        self.phase = Phase::Running { start };
        self.count_all();
        for federate in missing {
            self.outbox.push_back(RtiAction::Gone(federate));
            self.send_to_present(Some(federate), &Down::Gone(federate));
        }
        if let Some(tag) = stop {
            self.decide_stop(tag);
        } else {
            for (federate, tag) in proposals {
                self.on_stop_proposal(federate, tag, now);
            }
        }
        self.settle_all();
        self.look_for_the_end();
        self.check_starved(now);
    }

    fn start_or_fail(&mut self, latest: Instant, missing: Vec<FederateId>) {
        let graph = Arc::clone(&self.graph);
        if !missing.is_empty() {
            self.phase = Phase::Over;
            for federate in graph.federate_ids().filter(|id| !missing.contains(id)) {
                let missing = missing.clone();
                self.send(federate, Down::StartFailed { missing });
            }
            self.outbox.push_back(RtiAction::StartFailed(missing));
            return;
        }
        let at = latest + self.config.start_delay;
        self.phase = Phase::Running { start: at };
        self.outbox.push_back(RtiAction::Runs(at));
        for node in &mut self.nodes {
            node.join(Tag::START);
        }
        self.count_all();
        for federate in graph.federate_ids() {
            let (first, sent) = (Tag::START, Vec::new());
            self.send(federate, Down::Start { at, first, sent });
        }
    }

    /// Admits a federate while the program runs. Returns whether that is possible.
    fn let_in(&mut self, federate: FederateId, first: Tag, start: Instant) -> bool {
        if first == Tag::FOREVER || matches!(self.stop, Stop::Decided(stop) if stop < first) {
            self.send(federate, Down::Expelled);
            return false;
        }
        self.node_mut(federate).join(first);
        let receivers = self.graph.federate_ids().zip(&self.nodes);
        let sent = receivers.filter_map(|(to, node)| Some((to, *node.last_from.get(&federate)?)));
        let sent = sent.collect();
        self.send(federate, Down::Start { at: start, first, sent });
        self.send_to_present(Some(federate), &Down::Back { federate, first });
        for node in &mut self.nodes {
            node.settled.remove(&federate);
        }
        match self.stop {
            Stop::None => {}
            Stop::Asking { .. } => self.send(federate, Down::StopRequest),
            Stop::Decided(tag) => {
                self.node_mut(federate).stop_at(tag);
                self.send(federate, Down::Stop(tag));
            }
        }
        self.settle(federate);
        true
    }

    /// Returns the first tag that is still open to a federate. It is after everything that the federate did in an
    /// earlier life, and after all messages to it that were dropped or in flight. It is also after the tags that others
    /// were granted. If the federate counted as dead, it is also after their provisional tags, at which they took its
    /// messages for absent.
    fn first_open_to(&self, federate: FederateId, was_dead: bool) -> Tag {
        if self.config.is_decentralised {
            // It is not known here how far others have advanced. They still wait for a federate that only missed the
            // start.
            return if was_dead { Tag::FOREVER } else { Tag::START };
        }
        let node = self.node(federate);
        let reached = node.completed.max(node.granted).max(node.provisional).max(node.dropped);
        let mut first = reached.next().max(Tag::START);
        let downstream = self.graph.federate(federate).map_or(&[][..], |info| &info.downstream);
        for (other, delay) in downstream.iter().filter(|(other, _)| *other != federate) {
            let node = self.node(*other);
            let provisional = if was_dead {
                node.provisional
            } else {
                node.provisional.before()
            };
            let relied_on = node.granted.max(provisional).max(node.completed);
            if node.status == Status::Present {
                first = first.max(delay.first_past(relied_on));
            }
        }
        first
    }

    /// Forwards the messages that were held until the federate takes part.
    fn release_held(&mut self, federate: FederateId) {
        for message in std::mem::take(&mut self.node_mut(federate).held) {
            self.forward(message);
        }
    }

    /// Drops held messages, and reports them as delivered.
    fn drop_held(&mut self, is_dropped: impl Fn(&Message<V>) -> bool) {
        for at in 0..self.nodes.len() {
            let held = std::mem::take(&mut self.nodes[at].held);
            let (dropped, kept) = held.into_iter().partition::<Vec<_>, _>(&is_dropped);
            self.nodes[at].held = kept;
            for message in dropped {
                let (from, to, number) = (message.from, message.to, message.number);
                self.send(from, Down::Delivered { to, number });
            }
        }
    }

    fn absent(&self) -> impl Iterator<Item = FederateId> + '_ {
        let ids = self.graph.federate_ids();
        ids.filter(|id| self.node(*id).status == Status::Absent)
    }
}
