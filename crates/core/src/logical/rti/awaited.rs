//! Which next events nobody waits for: downstream next event tags (Lingua Franca's reactor-c, pull request 349).
//!
//! A federate's next event matters downstream where it is the first past a tag that somebody wants to be granted. Until
//! then, the federate need not tell next events, null messages or completed tags. A smaller next event than the real one
//! is always safe to grant by. So this only has to see that nobody waits for something that is not told:
//!
//! - If somebody now waits for an earlier next event than the federate was told, it is told the earlier one, and
//!   answers. That happens when a message, the last tag or a return gives a federate downstream an earlier event.
//! - A federate that sends a message tells what follows, without being asked.
//! - Where the federate itself needs a grant, it tells its next event as ever. The end of all events is always told.
//! - Members of zero-delay cycles are told nothing: what they wait for within a tag follows from completed tags, too.
//!
//! Each later tag that a federate is told costs a message, and perhaps another to take it back. So it is told one only
//! after some messages in a row that changed nothing for anybody, while what is waited for stayed the same.
//!
//! What a dead federate had completed in silence, the RTI does not know. It sent nothing there, so nobody can tell the
//! difference if it does so again.

use super::super::program::FederateId;
use super::super::protocol::Down;
use super::super::Tag;
use super::{Rti, Status, Stop};
use std::sync::Arc;

/// So many messages in a row that nobody needs are worth telling so.
pub(super) const PATIENCE: u32 = 4;

impl<V: Clone> Rti<V> {
    /// The first next event of `federate` that changes anything for somebody downstream.
    fn awaited(&self, federate: FederateId) -> Tag {
        let next = self.node(federate).next();
        let info = self.graph.federate(federate);
        let downstream = info.map_or(&[][..], |info| &info.downstream).iter();
        let others = downstream.filter(|(to, _)| *to != federate);
        let awaited = others.map(|(to, delay)| delay.first_past(self.node(*to).wants()));
        // Nobody waits for a tag that this federate has told already.
        awaited.filter(|tag| *tag > next).min().unwrap_or(Tag::FOREVER)
    }

    /// `federate` told something. If nobody needed it, and what would follow, spares it that.
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

    /// Tells `changed` and those upstream of it if somebody now waits for an earlier next event of theirs.
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
