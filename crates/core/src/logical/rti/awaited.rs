//! Decides which next events no federate waits for: downstream next event tags (Lingua Franca's reactor-c, pull request
//! 349).
//!
//! A federate's next event matters downstream only if it is the first past a tag that some federate wants to be
//! granted. Until then, the federate need not report next events, null messages or completed tags. Grants based on a
//! smaller next event than the real one are always safe. So this module only has to ensure that no federate waits for
//! something that is not reported:
//!
//! - If some federate now waits for an earlier next event than the sender was told, the sender is told the earlier one,
//!   and answers. That happens when a message, the last tag or a return gives a federate downstream an earlier event.
//! - A federate that sends a message reports the following events without being asked.
//! - If the federate itself needs a grant, it reports its next event as usual. The end of all events is always
//!   reported.
//! - Members of zero-delay cycles are never exempted, because their waiting within a tag also depends on completed
//!   tags.
//!
//! Each later tag that a federate is told costs a message, and perhaps another to revoke it. So it is told one only
//! after several consecutive messages that changed nothing for any federate, while the awaited tag stayed the same.
//!
//! The RTI does not know which tags a dead federate had completed without reporting them. It sent nothing there, so
//! completing them again makes no difference.

use super::super::program::FederateId;
use super::super::protocol::Down;
use super::super::Tag;
use super::{Rti, Status, Stop};
use std::sync::Arc;

/// Number of consecutive unneeded messages after which their sender is informed.
pub(super) const PATIENCE: u32 = 4;

impl<V: Clone> Rti<V> {
    /// Returns the first next event of `federate` that changes anything downstream.
    fn awaited(&self, federate: FederateId) -> Tag {
        let next = self.node(federate).next();
        let info = self.graph.federate(federate);
        let downstream = info.map_or(&[][..], |info| &info.downstream).iter();
        let others = downstream.filter(|(to, _)| *to != federate);
        let awaited = others.map(|(to, delay)| delay.first_past(self.node(*to).wants()));
        // No federate waits for a tag that this one has already reported.
        awaited.filter(|tag| *tag > next).min().unwrap_or(Tag::FOREVER)
    }

    /// Exempts `federate` from further reports if its last ones were not needed.
    pub(super) fn spare(&mut self, federate: FederateId) {
        let is_in_cycle = self.graph.federate(federate).is_some_and(|info| info.cycle.is_some());
        if self.config.is_decentralised || is_in_cycle {
            return;
        }
        let (awaited, patience, runs) = (self.awaited(federate), self.patience, self.stop == Stop::None);
        let node = self.node_mut(federate);
        let (before, count) = std::mem::replace(&mut node.unneeded, (Tag::NEVER, 0));
        if !runs || awaited <= node.awaited || node.next() == Tag::FOREVER {
            return;
        }
        let count = if awaited == before { count + 1 } else { 0 };
        if count < patience {
            node.unneeded = (awaited, count);
        } else {
            node.awaited = awaited;
            self.send(federate, Down::Awaited(awaited));
        }
    }

    /// Informs `changed` and the federates upstream of it if an earlier next event of theirs is now awaited.
    pub(super) fn recall(&mut self, changed: FederateId) {
        self.recall_one(changed);
        let (graph, wants) = (Arc::clone(&self.graph), self.node(changed).wants());
        let info = graph.federate(changed);
        for (from, delay) in info.map_or(&[][..], |info| &info.upstream) {
            if delay.first_past(wants) < self.node(*from).awaited {
                self.recall_one(*from);
            }
        }
    }

    pub(super) fn recall_one(&mut self, federate: FederateId) {
        let node = self.node(federate);
        if node.status != Status::Present || node.awaited == Tag::NEVER {
            return;
        }
        let awaited = self.awaited(federate);
        if awaited < self.node(federate).awaited {
            self.node_mut(federate).awaited = awaited;
            self.send(federate, Down::Awaited(awaited));
        }
    }
}
