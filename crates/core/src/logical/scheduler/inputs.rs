//! Events from outside a federate, and what is known about future ones.

use super::super::graph::{ElementId, ElementKind, Link};
use super::super::program::FederateId;
use super::super::{Delay, Tag};
use super::{Refused, Scheduler, Value};
use crate::{Duration, Instant};

/// The tags up to which an input is known.
#[derive(Clone, Copy, Debug, Hash)]
pub(super) struct Known {
    /// By the messages of its sender.
    pub told: Tag,
    /// By promises.
    pub promised: Tag,
}

impl Default for Known {
    fn default() -> Self {
        Known {
            told: Tag::NEVER,
            promised: Tag::NEVER,
        }
    }
}

impl Known {
    pub fn through(self) -> Tag {
        self.told.max(self.promised)
    }
}

impl<V: Value> Scheduler<V> {
    /// Revokes grants and promises from `tag` on, because at the last tag every federate has an event that none
    /// foresaw. Messages of senders still count.
    ///
    /// Does nothing if the tag is open or complete.
    pub fn revoke_from(&mut self, tag: Tag) {
        if tag <= self.reached() {
            return;
        }
        self.granted = self.granted.min(tag.before());
        if self.provisional >= tag {
            self.provisional = Tag::NEVER;
        }
        for known in &mut self.known {
            if known.promised != Tag::FOREVER {
                known.promised = tag.before().min(known.promised);
            }
        }
    }

    /// Handles a message for `input` with its tag. On a physical connection, it gets the time of its arrival instead.
    ///
    /// # Errors
    /// If there is no such input, the message is too late, or the queue is full.
    pub fn on_message(&mut self, input: ElementId, tag: Tag, value: V, now: Instant) -> Result<(), Refused> {
        let link = self.link_to(input)?;
        self.clock = self.clock.max(now);
        if link.physical {
            return self.schedule_at_clock(input, link.after, Some(value), now).map(|_| ());
        }
        if self.start.is_none() {
            return Err(Refused::NotStarted);
        }
        let again = link.is_direct() && self.queue.contains_key(&(tag, input));
        if tag.time().is_none() || again {
            return Err(Refused::BadTag { input, tag });
        }
        if tag > self.last() {
            return Ok(());
        }
        if self.open == Some(tag) && self.is_unknown(input, tag) {
            self.set_known(input, tag);
            self.set(input, Some(value));
            return Ok(());
        }
        let reached = self.reached();
        if tag <= reached {
            let meant = tag;
            return Err(Refused::Tardy { input, meant, reached });
        }
        self.insert_free(tag, input, Some(value))?;
        self.set_known(input, tag);
        Ok(())
    }

    /// Handles a message for `input` that arrived after its tag, `meant`. Returns the tag at which its handlers run;
    /// `None` if no reaction handles late values of this input, or not before the program's end.
    ///
    /// # Errors
    /// If the queue is full.
    pub fn on_tardy(&mut self, input: ElementId, meant: Tag, value: V) -> Result<Option<Tag>, Refused> {
        let Some(tardy) = self.graph.element(input).and_then(|element| element.tardy) else {
            return Ok(None);
        };
        // As for a physical action, because no federate foresaw it.
        let first = self.promised.max(self.reached().next());
        match self.insert_free(first, tardy, Some(value)) {
            Ok(tag) => {
                self.meant.insert((tag, tardy), meant);
                Ok(Some(tag))
            }
            Err(Refused::Stopped) => Ok(None),
            Err(refused) => Err(refused),
        }
    }

    /// Records that `input` stays absent at `tag`, and receives nothing more before it.
    ///
    /// # Errors
    /// If there is no such input.
    pub fn on_absent(&mut self, input: ElementId, tag: Tag) -> Result<(), Refused> {
        self.link_to(input)?;
        self.set_known(input, tag);
        Ok(())
    }

    /// Records that no input from `federate` receives anything more up to `tag`.
    pub fn on_settled(&mut self, federate: FederateId, tag: Tag) {
        for (waiting, known) in self.plan.waiting.iter().zip(&mut self.known) {
            if waiting.from == federate {
                known.promised = tag.max(known.promised);
            }
        }
    }

    /// Records that `input` receives nothing more up to `tag`, as far as its sender can foresee.
    pub fn on_promise(&mut self, input: ElementId, tag: Tag) {
        for (waiting, known) in self.plan.waiting.iter().zip(&mut self.known) {
            if waiting.input == input {
                known.promised = tag.max(known.promised);
            }
        }
    }

    /// Records that `federate` takes part again from `first` on. From there, nothing is known about its inputs here.
    pub fn on_back(&mut self, federate: FederateId, first: Tag) {
        for (waiting, known) in self.plan.waiting.iter().zip(&mut self.known) {
            if waiting.from == federate {
                known.told = first.before().min(known.told);
                known.promised = first.before().min(known.promised);
            }
        }
    }

    /// Schedules a physical action. Returns its tag.
    ///
    /// # Errors
    /// If there is no such action, the program does not run, or the queue is full.
    pub fn on_physical(&mut self, action: ElementId, value: Option<V>, now: Instant) -> Result<Tag, Refused> {
        match self.graph.element(action) {
            Some(element) if element.federate == self.federate => match element.kind {
                ElementKind::Physical(delay_min) => self.schedule_at_clock(action, delay_min, value, now),
                _ => Err(Refused::Unknown(action)),
            },
            _ => Err(Refused::Unknown(action)),
        }
    }

    /// Replays a recorded event: a physical action, the input of a physical connection, or a late value was present at
    /// this tag.
    ///
    /// # Errors
    /// If there is no such element, the tag is over, or the queue is full.
    pub fn on_recorded(&mut self, element: ElementId, tag: Tag, value: Option<V>) -> Result<(), Refused> {
        let info = self
            .graph
            .element(element)
            .filter(|info| info.federate == self.federate);
        let is_physical = info.is_some_and(|info| {
            matches!(info.kind, ElementKind::Physical(_) | ElementKind::Tardy)
                || info.from.is_some_and(|link| link.physical)
        });
        if !is_physical {
            return Err(Refused::Unknown(element));
        }
        if tag <= self.reached() {
            let input = element;
            return Err(Refused::BadTag { input, tag });
        }
        self.insert(tag, element, value)
    }

    /// Returns the link to one of this federate's inputs from another federate.
    fn link_to(&self, input: ElementId) -> Result<Link, Refused> {
        let element = self
            .graph
            .element(input)
            .filter(|element| element.federate == self.federate);
        let link = element.and_then(|element| element.from);
        link.filter(|link| link.federate != self.federate)
            .ok_or(Refused::Unknown(input))
    }

    fn is_unknown(&self, input: ElementId, tag: Tag) -> bool {
        let waiting = self.plan.waiting.iter().zip(&self.known);
        let mut unknown = waiting.filter(|(waiting, known)| waiting.input == input && known.through() < tag);
        self.granted < tag && unknown.next().is_some()
    }

    fn set_known(&mut self, input: ElementId, tag: Tag) {
        for (waiting, known) in self.plan.waiting.iter().zip(&mut self.known) {
            if waiting.input == input {
                known.told = tag.max(known.told);
            }
        }
    }

    /// Inserts an event at the clock's time, but after everything that is already fixed.
    pub(super) fn schedule_at_clock(
        &mut self,
        element: ElementId,
        delay: Duration,
        value: Option<V>,
        now: Instant,
    ) -> Result<Tag, Refused> {
        self.clock = self.clock.max(now);
        let start = self.start.ok_or(Refused::NotStarted)?;
        if self.config.replay {
            return Ok(Tag::NEVER);
        }
        let tag = Tag::at(self.clock.since(start), 0) + Delay::of_connection(delay);
        self.insert_free(tag.max(self.promised).max(self.reached().next()), element, value)
    }

    /// Inserts an event at `tag`, or at the first microstep after it at which the element is not yet present.
    pub(super) fn insert_free(&mut self, mut tag: Tag, element: ElementId, value: Option<V>) -> Result<Tag, Refused> {
        while self.queue.contains_key(&(tag, element)) {
            tag = tag.next();
        }
        if tag.microstep() > self.config.microstep_max {
            return Err(Refused::TooManyMicrosteps(element));
        }
        self.insert(tag, element, value)?;
        Ok(tag)
    }

    pub(super) fn insert(&mut self, tag: Tag, element: ElementId, value: Option<V>) -> Result<(), Refused> {
        if tag > self.last() || tag == Tag::FOREVER {
            return Err(Refused::Stopped);
        }
        if self.queue.len() >= self.config.events_max {
            return Err(Refused::QueueFull(element));
        }
        self.queue.insert((tag, element), value);
        Ok(())
    }
}
