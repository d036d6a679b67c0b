//! Decides the order in which the reactions of one federate run (Kwok, section III-B).
//!
//! The inputs of the scheduler are events, the tag up to which it may advance, and physical time. It returns the
//! reactions to run next, the values for other federates, and the completed tags. These rules apply:
//!
//! - Tags are handled in order, one at a time. The next one opens once it is granted and the clock has reached it. With
//!   `fast` it does not wait for the clock.
//! - Within a tag, reactions run by level. Reactions of one level are independent: a driver may run them in parallel,
//!   and report their effects in any order. The result is the same.
//! - A tag that is granted only provisionally may still receive inputs. While any is unknown, its level and those above
//!   wait. Outputs that become final meanwhile are sent or reported absent. That is how federates of a zero-delay cycle
//!   make progress. The tag is complete once all inputs are known. A provisional grant makes no input known.
//! - If a reaction would begin later than its tag plus its deadline, its late handler runs instead. With `fast`, none
//!   is late.
//! - An action that is scheduled twice for one tag is present at the next microstep too; nothing is overwritten. The
//!   same applies to the values of a delayed connection whose sender set them at several microsteps of one time. On an
//!   output, the last value set at a tag counts.
//! - A value that arrives after its tag goes to the reactions that handle late values of its input, at the next tag
//!   that is still free. It never counts as a value of the input itself.
//! - Physical actions get the time of the clock, but never a tag that is open, complete, or promised to be empty. The
//!   clock never goes back: a time before the latest one counts as the latest one.
//!
//! Left out: when to advance, which [`federate`](super::federate) and [`decentralised`](super::decentralised) decide,
//! and actions with a minimum spacing.

mod inputs;
mod plan;
mod step;

pub use step::{Effects, Ready, Refused, SchedulerConfig, Step, Value, Waits};

use super::graph::{ElementId, ElementKind, Graph, Link, ReactionId};
use super::program::FederateId;
use super::{Delay, Tag};
use crate::{Duration, Instant};
use inputs::Known;
use plan::{Output, Plan};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// A port, timer or action at the open tag.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Presence<V> {
    Absent,
    Present(Option<V>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Progress {
    Idle,
    Ready,
    Running,
}

/// The event queue and the order of reactions of one federate, with values of type `V`.
#[derive(Clone, Debug)]
pub struct Scheduler<V> {
    graph: Arc<Graph>,
    plan: Arc<Plan>,
    federate: FederateId,
    config: SchedulerConfig,
    start: Option<Instant>,
    /// The latest time passed in.
    clock: Instant,
    queue: BTreeMap<(Tag, ElementId), Option<V>>,
    /// The intended tags of the late values in the queue and at the open tag.
    meant: BTreeMap<(Tag, ElementId), Tag>,
    granted: Tag,
    provisional: Tag,
    /// The tag from which on no tag opens.
    barrier: Tag,
    stop: Tag,
    stop_requested: bool,
    completed: Tag,
    /// The tag before which no physical action takes place.
    promised: Tag,
    open: Option<Tag>,
    values: Vec<Presence<V>>,
    present: Vec<ElementId>,
    ready: BTreeSet<(u32, ReactionId)>,
    progress: Vec<Progress>,
    running: usize,
    /// The number of the plan's outputs that are final at the open tag.
    outputs_final: usize,
    /// Per waiting input of the plan, the tags up to which it is known.
    known: Vec<Known>,
    outbox: VecDeque<Step<V>>,
}

impl<V: Hash> Hash for Scheduler<V> {
    /// Hashes everything that changes and affects further steps.
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.start, self.clock, &self.queue, self.granted, self.provisional).hash(state);
        (
            &self.meant,
            self.barrier,
            self.stop,
            self.stop_requested,
            self.completed,
            self.promised,
        )
            .hash(state);
        (self.open, &self.values, &self.ready, &self.progress).hash(state);
        (self.outputs_final, &self.known, &self.outbox).hash(state);
    }
}

impl<V: Value> Scheduler<V> {
    /// Creates the scheduler of one federate. It does nothing before [`Scheduler::start`].
    pub fn new(graph: Arc<Graph>, federate: FederateId, waits: Waits, config: SchedulerConfig) -> Self {
        let plan = Arc::new(Plan::new(&graph, federate, waits));
        Scheduler {
            federate,
            config,
            start: None,
            clock: Instant::ZERO,
            queue: BTreeMap::new(),
            meant: BTreeMap::new(),
            granted: Tag::NEVER,
            provisional: Tag::NEVER,
            barrier: Tag::FOREVER,
            stop: Tag::FOREVER,
            stop_requested: false,
            completed: Tag::NEVER,
            promised: Tag::NEVER,
            open: None,
            values: vec![Presence::Absent; graph.elements().len()],
            present: Vec::new(),
            ready: BTreeSet::new(),
            progress: vec![Progress::Idle; graph.reactions().len()],
            running: 0,
            outputs_final: 0,
            known: vec![Known::default(); plan.waiting.len()],
            outbox: VecDeque::new(),
            graph,
            plan,
        }
    }

    /// Starts the program. Tags count from `start`. This federate takes part from `first`, usually [`Tag::START`]. A
    /// federate that joins later gets its startup events there, and its timers keep their times. A second start is
    /// ignored.
    pub fn start(&mut self, start: Instant, first: Tag) {
        let Some(from) = first.time().filter(|_| self.start.is_none()) else {
            return;
        };
        self.start = Some(start);
        self.completed = first.before();
        let plan = Arc::clone(&self.plan);
        for startup in &plan.startups {
            self.queue.insert((first, *startup), None);
        }
        for timer in &plan.timers {
            let ElementKind::Timer { offset, period } = self.graph.elements()[timer.0 as usize].kind else {
                continue;
            };
            // The timer's first time at or after `first`.
            let missed_ns = from.saturating_sub(offset).as_nanos() + u64::from(first.microstep() > 0);
            let at = match period.filter(|_| Tag::at(offset, 0) < first) {
                Some(period) => offset + period * missed_ns.div_ceil(period.as_nanos().max(1)),
                None => offset,
            };
            if Tag::at(at, 0) >= first {
                self.queue.insert((Tag::at(at, 0), *timer), None);
            }
        }
    }

    /// Grants `tag`: all messages up to it have arrived.
    pub fn advance_to(&mut self, tag: Tag) {
        self.granted = self.granted.max(tag);
    }

    /// Grants `tag` provisionally: all messages before it have arrived, and at `tag` all except those of inputs on
    /// which the federate may have to wait.
    pub fn advance_provisionally(&mut self, tag: Tag) {
        self.provisional = self.provisional.max(tag);
    }

    /// Keeps `tag` and all later ones closed until a stop is decided. The tag of the time limit needs no decision.
    pub fn hold(&mut self, tag: Tag) {
        if self.stop == Tag::FOREVER && tag < self.limit() {
            self.barrier = self.barrier.min(tag);
        }
    }

    /// Sets the program's last tag. Later events are dropped.
    ///
    /// # Errors
    /// If that tag is already complete or open, so it can no longer become the last one.
    pub fn stop_at(&mut self, tag: Tag) -> Result<(), Refused> {
        if tag == self.stop {
            return Ok(());
        }
        let is_reached = tag <= self.reached() && tag != self.last();
        if is_reached || self.last() < tag {
            return Err(Refused::Stopped);
        }
        self.stop = tag;
        self.barrier = Tag::FOREVER;
        self.queue.split_off(&(tag.next(), ElementId(0)));
        Ok(())
    }

    /// Promises that no physical action gets a tag before `tag` any more.
    pub fn promise(&mut self, tag: Tag) {
        self.promised = self.promised.max(tag);
    }

    /// Records the effects of a reaction or of its late handler.
    ///
    /// # Errors
    /// If the reaction was not to be run, or has effects that it does not declare. Then none takes effect. Also if an
    /// action cannot be scheduled. Then the effects before it have taken effect.
    pub fn finish(&mut self, reaction: ReactionId, effects: Effects<V>, now: Instant) -> Result<(), Refused> {
        self.clock = self.clock.max(now);
        let (Some(tag), Some(Progress::Running)) = (self.open, self.progress.get(reaction.0 as usize)) else {
            return Err(Refused::NotRunning(reaction));
        };
        self.progress[reaction.0 as usize] = Progress::Idle;
        self.running -= 1;
        self.check(reaction, &effects)?;
        for (output, value) in effects.sets {
            self.set(output, Some(value));
        }
        if effects.stop && !self.stop_requested {
            self.stop_requested = true;
            self.outbox.push_back(Step::StopRequested(tag.next()));
        }
        for (action, extra, value) in effects.schedules {
            let scheduled = match self.graph.elements()[action.0 as usize].kind {
                ElementKind::Physical(delay_min) => self
                    .schedule_at_clock(action, delay_min + extra, value, now)
                    .map(|_| ()),
                ElementKind::Logical(delay_min) => self
                    .insert_free(tag + Delay::of_action(delay_min + extra), action, value)
                    .map(|_| ()),
                _ => Ok(()),
            };
            match scheduled {
                Ok(()) | Err(Refused::Stopped) => {}
                Err(refused) => return Err(refused),
            }
        }
        Ok(())
    }

    /// Returns the next step at `now`; `None` while waiting for a grant, an input, the clock, or a running reaction.
    pub fn poll(&mut self, now: Instant) -> Option<Step<V>> {
        self.clock = self.clock.max(now);
        loop {
            if let Some(step) = self.outbox.pop_front() {
                return Some(step);
            }
            if self.running > 0 {
                return None;
            }
            let Some(tag) = self.open else {
                let tag = self.opens_next().filter(|tag| self.is_due(*tag))?;
                self.open_tag(tag);
                continue;
            };
            let wall = self.wall(tag);
            let level = self.ready.first().map_or(u32::MAX, |(level, _)| *level);
            self.send_final_outputs(tag, wall.unwrap_or(u32::MAX).min(level));
            if !self.outbox.is_empty() {
                continue;
            }
            if self.ready.is_empty() {
                if wall.is_some() {
                    return None;
                }
                self.complete(tag);
            } else if wall.is_none_or(|wall| level < wall) {
                return Some(self.run(tag, level));
            } else {
                return None;
            }
        }
    }

    /// Returns when the clock alone lets [`Scheduler::poll`] continue.
    pub fn next_deadline(&self) -> Option<Instant> {
        let tag = self.opens_next().filter(|_| self.open.is_none())?;
        let time = tag.time().filter(|_| !self.is_due(tag))?;
        self.start.map(|start| start + time)
    }

    /// Returns the tag of the next event, or the open tag while one is open. [`Tag::FOREVER`] if there is none.
    pub fn next_tag(&self) -> Tag {
        if let Some(tag) = self.open {
            return tag;
        }
        let event = self.queue.first_key_value().map_or(Tag::FOREVER, |((tag, _), _)| *tag);
        let last = Some(self.last()).filter(|last| self.completed < *last);
        event.min(last.unwrap_or(Tag::FOREVER))
    }

    /// Returns the tag up to which everything is done.
    pub fn completed(&self) -> Tag {
        self.completed
    }

    /// Returns the open tag, or the last one that is complete.
    pub fn reached(&self) -> Tag {
        self.open.unwrap_or(self.completed)
    }

    /// Returns whether no tag is open and all steps before have been returned.
    pub fn is_between_tags(&self) -> bool {
        self.open.is_none() && self.outbox.is_empty()
    }

    /// Returns whether a tag is open, or the next one is granted and due.
    pub fn has_work(&self) -> bool {
        self.open.is_some() || self.opens_next().is_some_and(|tag| self.is_due(tag))
    }

    /// Returns the number of events in the queue.
    pub fn events(&self) -> usize {
        self.queue.len()
    }

    /// Returns the tag up to which the federate may advance, and the one that it may open provisionally.
    pub fn grants(&self) -> (Tag, Tag) {
        (self.granted, self.provisional)
    }

    /// Returns the decided last tag; [`Tag::FOREVER`] until it is decided.
    pub fn stop(&self) -> Tag {
        self.stop
    }

    /// Returns the tag of the time limit; [`Tag::FOREVER`] without one.
    pub fn limit(&self) -> Tag {
        self.config.timeout.map_or(Tag::FOREVER, |time| Tag::at(time, 0))
    }

    /// Returns the last tag, by decision or by the time limit.
    pub fn last(&self) -> Tag {
        self.stop.min(self.limit())
    }

    /// Returns whether only messages can cause further events: no event is left, and no physical action can cause one.
    /// A federate without others then ends at the next tag. Otherwise the RTI decides.
    pub fn is_starved(&self) -> bool {
        let federate = self.graph.federate(self.federate);
        let is_physical = federate.is_none_or(|federate| federate.physical_delay.is_some());
        self.start.is_some() && self.is_between_tags() && self.next_tag() == Tag::FOREVER && !is_physical
    }

    /// Returns the time since the program's start; `None` while the start is unknown, and zero before it.
    pub fn elapsed(&self, now: Instant) -> Option<Duration> {
        self.start.map(|start| now.max(self.clock).since(start))
    }

    /// Returns when the program started or will start.
    pub fn started_at(&self) -> Option<Instant> {
        self.start
    }

    /// Returns whether a port, timer or action is present at the open tag.
    pub fn is_present(&self, element: ElementId) -> bool {
        self.presence(element).is_some()
    }

    /// Returns the value of a port or action at the open tag, if it is present and has one.
    pub fn value(&self, element: ElementId) -> Option<&V> {
        self.presence(element).and_then(Option::as_ref)
    }

    /// Returns the intended tag of a late value at the open tag.
    pub fn meant(&self, element: ElementId) -> Option<Tag> {
        self.meant.get(&(self.open?, element)).copied()
    }

    fn presence(&self, element: ElementId) -> Option<&Option<V>> {
        let kept = self.plan.kept.get(element.0 as usize)?;
        match &self.values[kept.0 as usize] {
            Presence::Absent => None,
            Presence::Present(value) => Some(value),
        }
    }

    /// Returns the tag that would open next, if it is granted.
    fn opens_next(&self) -> Option<Tag> {
        let next = self.next_tag();
        let provisional = self.provisional > self.granted.max(self.completed) && self.provisional <= next;
        let tag = if provisional { self.provisional } else { next };
        let may_open = (provisional || tag <= self.granted) && tag < self.barrier && tag <= self.last();
        tag.time().filter(|_| may_open)?;
        Some(tag)
    }

    fn is_due(&self, tag: Tag) -> bool {
        let (Some(start), Some(time)) = (self.start, tag.time()) else {
            return false;
        };
        self.config.fast || self.clock >= start + time
    }

    fn open_tag(&mut self, tag: Tag) {
        debug_assert!(tag > self.completed && self.present.is_empty() && self.ready.is_empty());
        self.open = Some(tag);
        self.outputs_final = 0;
        while let Some(event) = self.queue.first_entry() {
            if event.key().0 > tag {
                break;
            }
            let ((_, element), value) = event.remove_entry();
            if let ElementKind::Timer {
                period: Some(period), ..
            } = self.graph.elements()[element.0 as usize].kind
            {
                let next = tag + Delay::of_connection(period);
                if next <= self.last() && next != Tag::FOREVER {
                    self.queue.insert((next, element), None);
                }
            }
            self.set(element, value);
        }
        if tag == self.last() {
            let plan = Arc::clone(&self.plan);
            for shutdown in &plan.shutdowns {
                self.set(*shutdown, None);
            }
        }
    }

    /// Returns the level from which on reactions wait for inputs; `None` if all are known.
    fn wall(&self, tag: Tag) -> Option<u32> {
        if self.granted >= tag {
            return None;
        }
        let unknown = self
            .plan
            .waiting
            .iter()
            .zip(&self.known)
            .filter(|(_, known)| known.through() < tag);
        unknown.map(|(waiting, _)| waiting.level).min()
    }

    fn run(&mut self, tag: Tag, level: u32) -> Step<V> {
        let lag = match (self.start, tag.time()) {
            (Some(start), Some(time)) if !self.config.fast => self.clock.since(start + time),
            _ => Duration::ZERO,
        };
        let mut reactions = Vec::with_capacity(1);
        while let Some((_, reaction)) = self.ready.first().copied().filter(|(at, _)| *at == level) {
            self.ready.pop_first();
            self.progress[reaction.0 as usize] = Progress::Running;
            self.running += 1;
            let deadline = self.graph.reactions()[reaction.0 as usize].deadline;
            let late = deadline.is_some_and(|deadline| lag > deadline);
            reactions.push(Ready { reaction, late });
        }
        Step::Run { tag, lag, reactions }
    }

    fn set(&mut self, element: ElementId, value: Option<V>) {
        let kept = &mut self.values[element.0 as usize];
        let is_new = matches!(kept, Presence::Absent);
        *kept = Presence::Present(value);
        if !is_new {
            return;
        }
        self.present.push(element);
        for reaction in &self.plan.triggers[element.0 as usize] {
            let progress = &mut self.progress[reaction.0 as usize];
            if *progress == Progress::Idle {
                *progress = Progress::Ready;
                self.ready
                    .insert((self.graph.reactions()[reaction.0 as usize].level, *reaction));
            }
        }
    }

    /// Sends the outputs that can no longer change, because all reactions below `level` are done.
    fn send_final_outputs(&mut self, tag: Tag, level: u32) {
        let plan = Arc::clone(&self.plan);
        let left = &plan.outputs[self.outputs_final.min(plan.outputs.len())..];
        let is_final = |output: &&Output| output.level.is_none_or(|last| last < level);
        for output in left.iter().take_while(is_final) {
            self.outputs_final += 1;
            for link in &output.links {
                let value = match &self.values[output.element.0 as usize] {
                    Presence::Present(Some(value)) if link.federate == self.federate => Some(value.clone()),
                    Presence::Present(Some(value)) => Some(value.to_send()),
                    _ => None,
                };
                if let Some(step) = self.deliver(tag, link, value) {
                    self.outbox.push_back(step);
                }
            }
        }
    }

    fn deliver(&mut self, tag: Tag, link: &Link, value: Option<V>) -> Option<Step<V>> {
        let to = link.federate;
        let (input, arrival) = (link.other, tag + link.delay());
        let Some(value) = value else {
            // Only a federate of the same zero-delay cycle may wait for this.
            let waits = link.is_direct() && self.granted < tag && to != self.federate && self.in_cycle_with(to);
            return waits.then_some(Step::Send {
                to,
                input,
                tag,
                value: None,
            });
        };
        if to != self.federate {
            let tag = if link.physical { tag } else { arrival };
            let value = Some(value);
            return (tag <= self.last() && tag != Tag::FOREVER).then_some(Step::Send { to, input, tag, value });
        }
        let kept = if link.physical {
            self.schedule_at_clock(input, link.after, Some(value), self.clock)
                .map(|_| ())
        } else {
            self.insert_free(arrival, input, Some(value)).map(|_| ())
        };
        match kept {
            Ok(()) | Err(Refused::Stopped) => None,
            Err(refused) => Some(Step::Fault(refused)),
        }
    }

    fn in_cycle_with(&self, other: FederateId) -> bool {
        let cycle = |id| self.graph.federate(id).and_then(|federate| federate.cycle);
        cycle(self.federate).is_some() && cycle(self.federate) == cycle(other)
    }

    fn complete(&mut self, tag: Tag) {
        debug_assert!(self.running == 0 && self.outputs_final == self.plan.outputs.len());
        for element in self.present.drain(..) {
            self.values[element.0 as usize] = Presence::Absent;
        }
        self.meant = self.meant.split_off(&(tag.next(), ElementId(0)));
        self.open = None;
        self.completed = tag;
        self.outbox.push_back(Step::Completed(tag));
        if tag == self.last() {
            self.queue.clear();
            self.outbox.push_back(Step::Ended);
        }
    }

    fn check(&self, reaction: ReactionId, effects: &Effects<V>) -> Result<(), Refused> {
        let declared = &self.graph.reactions()[reaction.0 as usize].effects;
        let is_output = |id: ElementId| {
            let kind = self.graph.element(id).map(|element| element.kind);
            kind == Some(ElementKind::Output)
        };
        let sets = effects.sets.iter().map(|(id, _)| (*id, true));
        let schedules = effects.schedules.iter().map(|(id, ..)| (*id, false));
        for (element, sets) in sets.chain(schedules) {
            if declared.binary_search(&element).is_err() || is_output(element) != sets {
                return Err(Refused::Undeclared { reaction, element });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
