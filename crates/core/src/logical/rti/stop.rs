//! Agreeing on the last tag.

use super::super::program::FederateId;
use super::super::protocol::Down;
use super::super::Tag;
use super::{Rti, Status};
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
    /// A federate asks for the end, or replies. Either way it holds at `tag`.
    pub(super) fn on_stop_proposal(&mut self, from: FederateId, tag: Tag, now: Instant) {
        match &mut self.stop {
            Stop::None => {
                let proposals = BTreeMap::from([(from, tag)]);
                let until = now + self.config.stop_reply_max;
                self.stop = Stop::Asking { proposals, until };
                self.send_to_present(from, &Down::StopRequest);
            }
            Stop::Asking { proposals, .. } => {
                proposals.insert(from, tag);
            }
            Stop::Decided(_) => {}
        }
        self.check_stop(now);
    }

    /// Decides once all have replied. Those that are too late to reply count as dead.
    pub(super) fn check_stop(&mut self, now: Instant) {
        let Stop::Asking { proposals, until } = &self.stop else {
            return;
        };
        let silent = self.present().find(|federate| !proposals.contains_key(federate));
        match silent {
            None => {
                let latest = proposals.values().max().copied();
                self.decide_stop(latest.unwrap_or(Tag::START));
            }
            // Comes back here for the next one.
            Some(federate) if *until <= now => self.bury(federate, now),
            Some(_) => {}
        }
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
