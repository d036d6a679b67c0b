//! Agrees on the last tag.

use super::super::graph::FederateInfo;
use super::super::program::FederateId;
use super::super::protocol::Down;
use super::super::Tag;
use super::{Node, Phase, Rti, Status};
use crate::Instant;
use std::collections::BTreeMap;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Stop {
    None,
    Asking {
        proposals: BTreeMap<FederateId, Tag>,
        until: Instant,
    },
    Decided(Tag),
}

impl Stop {
    pub fn deadline(&self) -> Option<Instant> {
        match self {
            Stop::Asking { until, .. } => Some(*until),
            Stop::None | Stop::Decided(_) => None,
        }
    }
}

impl<V: Clone> Rti<V> {
    /// Handles a federate's request for the end, or its reply. Either way it holds at `tag`.
    pub(super) fn on_stop_proposal(&mut self, from: FederateId, tag: Tag, now: Instant) {
        match &mut self.stop {
            Stop::None => {
                self.ask_for_stop(BTreeMap::from([(from, tag)]), Some(from), now);
            }
            Stop::Asking { proposals, .. } => {
                proposals.insert(from, tag);
            }
            Stop::Decided(_) => {}
        }
        self.check_stop(now);
    }

    /// Decides the last tag once all have replied. Federates that do not reply in time count as dead.
    pub(super) fn check_stop(&mut self, now: Instant) {
        let Stop::Asking { proposals, until } = &self.stop else {
            return;
        };
        let silent = self.present().find(|federate| !proposals.contains_key(federate));
        match silent {
            None => {
                // A federate that has left completed the tag of the time limit, which no proposal exceeds.
                let left = self.nodes.iter().filter(|node| node.status == Status::Resigned);
                let latest = proposals.values().copied().chain(left.map(|node| node.completed)).max();
                self.decide_stop(latest.unwrap_or(Tag::START));
            }
            // `bury` calls this function again for the next one.
            Some(federate) if *until <= now => self.bury(federate, now),
            Some(_) => {}
        }
    }

    /// Asks all federates for the end once none has an event, nothing is in transit, and no clock can cause an event.
    pub(super) fn check_starved(&mut self, now: Instant) {
        let runs = matches!(self.phase, Phase::Running { .. }) && self.stop == Stop::None;
        let has_clock =
            |(info, node): (&FederateInfo, &Node<V>)| node.status == Status::Present && info.physical_delay.is_some();
        let is_starved = runs && self.horizon.next() == Tag::FOREVER;
        if is_starved && !self.graph.federates().iter().zip(&self.nodes).any(has_clock) {
            self.ask_for_stop(BTreeMap::new(), None, now);
        }
    }

    /// Asks all federates except `asking` to hold and reply.
    fn ask_for_stop(&mut self, proposals: BTreeMap<FederateId, Tag>, asking: Option<FederateId>, now: Instant) {
        let until = now + self.config.stop_reply_max;
        self.stop = Stop::Asking { proposals, until };
        self.send_to_present(asking, &Down::StopRequest);
    }

    pub(super) fn decide_stop(&mut self, tag: Tag) {
        self.stop = Stop::Decided(tag);
        for federate in self.graph.federate_ids() {
            if self.node(federate).status == Status::Present {
                self.node_mut(federate).stop_at(tag);
                self.send(federate, Down::Stop(tag));
            }
        }
        self.settle_all();
    }
}
