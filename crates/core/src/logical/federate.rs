//! One federate's part in centralised coordination (Kwok, section IV-A).
//!
//! [`Federate`] is a [`Scheduler`] that asks the RTI before it advances. It decides when the RTI has to hear what:
//!
//! - Each completed tag at once. The next event's tag whenever the queue has changed while it waits.
//! - A federate with physical actions and downstream federates promises what its clock allows: nothing before now and
//!   the least delay. It repeats this null message at an interval. Physical actions respect the promise. Without
//!   downstream federates, nobody needs it.
//! - A federate without upstream federates is always granted, and waits for no answer.
//! - After it has asked for the end or was asked, it opens no tag from its proposal on until the last tag is decided. Then
//!   everybody has an event at the last tag, so grants from there on are void; the RTI grants it anew.
//!
//! **A new RTI** has a greater epoch. The federate reports to it and ignores every older one from then on. It keeps what
//! it was granted, and goes on with that meanwhile.
//!
//! **Back pressure.** It opens no tag while a receiver has too many messages outstanding. It does not acknowledge
//! messages while its own queue is more than half full and it has work, so fast senders wait for it.
//!
//! A federate that dies says nothing: its driver's peers notice. Left out: choosing the next RTI, which
//! [`failover`](crate::failover) does between robots.

use super::graph::{ElementId, Graph, ReactionId};
use super::program::FederateId;
use super::protocol::{Down, Envelope, Message, Report, Up};
use super::scheduler::{Effects, Ready, Refused, Scheduler, SchedulerConfig, Step, Value, Waits};
use super::{Delay, Tag};
use crate::failover::Epoch;
use crate::{Duration, Instant};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// A federate says that it has received messages at least this often.
const RECEIVED_EVERY: u64 = 16;

/// The settings of a federate.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FederateConfig {
    /// Those of its scheduler.
    pub scheduler: SchedulerConfig,
    /// The interval of null messages: how much later than necessary the federates downstream of a physical action
    /// advance.
    pub null_interval: Duration,
    /// How long to wait, after the last tag, until the RTI says that everybody has completed it.
    pub linger_max: Duration,
    /// The most messages to one receiver that have not arrived, above which no tag opens. More than 64.
    pub outstanding_max: usize,
}

impl Default for FederateConfig {
    fn default() -> Self {
        FederateConfig {
            scheduler: SchedulerConfig::default(),
            null_interval: Duration::from_millis(10),
            linger_max: Duration::from_secs(30),
            outstanding_max: 1024,
        }
    }
}

/// An action for the federate's driver.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum FederateAction<V> {
    /// Send to the RTI of that epoch. Without a link to it, drop this.
    Send(Envelope<Up<V>>),
    /// Run these reactions, and tell [`Federate::finish`] the effects of each.
    Run {
        /// Their tag.
        tag: Tag,
        /// How far the clock is ahead of the tag.
        lag: Duration,
        /// The reactions.
        reactions: Vec<Ready>,
    },
    /// The program starts then.
    Started(Instant),
    /// Another federate died. Its outputs stay absent from now on.
    Gone(FederateId),
    /// A dead federate takes part again.
    Back(FederateId),
    /// The result is no longer that of the program.
    Fault(Refused),
    /// Nothing was started: these federates did not report in time.
    StartFailed(Vec<FederateId>),
    /// The others take this federate for dead. It has to start anew.
    Expelled,
    /// Everybody has completed the last tag, or the time to wait for that is over. Close the link after it is flushed.
    Ended,
}

/// A scheduler under an RTI's coordination.
#[derive(Clone, Debug, Hash)]
pub struct Federate<V> {
    graph: Arc<Graph>,
    id: FederateId,
    config: FederateConfig,
    scheduler: Scheduler<V>,
    epoch: Option<Epoch>,
    /// How many messages the link to the RTI has delivered, and how many of them are acknowledged.
    received: (u64, u64),
    received_from: BTreeMap<FederateId, u64>,
    sent_to: BTreeMap<FederateId, u64>,
    retained: BTreeMap<FederateId, VecDeque<Message<V>>>,
    /// The tag up to which the RTI knows that all is done.
    completed: Tag,
    announced: Option<(Tag, bool)>,
    announced_at: Instant,
    stop_proposal: Option<Tag>,
    gone: BTreeSet<FederateId>,
    /// When it completed the last tag.
    ended_at: Option<Instant>,
    is_over: bool,
    outbox: VecDeque<FederateAction<V>>,
}

impl<V: Value> Federate<V> {
    /// A federate of a program. It waits for the RTI's [`Down::Hello`].
    pub fn new(graph: Arc<Graph>, id: FederateId, config: FederateConfig) -> Self {
        let scheduler = Scheduler::new(Arc::clone(&graph), id, Waits::InCycles, config.scheduler.clone());
        Federate {
            graph,
            id,
            config,
            scheduler,
            epoch: None,
            received: (0, 0),
            received_from: BTreeMap::new(),
            sent_to: BTreeMap::new(),
            retained: BTreeMap::new(),
            completed: Tag::NEVER,
            announced: None,
            announced_at: Instant::ZERO,
            stop_proposal: None,
            gone: BTreeSet::new(),
            ended_at: None,
            is_over: false,
            outbox: VecDeque::new(),
        }
    }

    /// The scheduler: for reading ports, tags and the clock.
    pub fn scheduler(&self) -> &Scheduler<V> {
        &self.scheduler
    }

    /// The RTI that it follows.
    pub fn epoch(&self) -> Option<Epoch> {
        self.epoch
    }

    /// The RTI said something.
    pub fn on_message(&mut self, envelope: Envelope<Down<V>>, now: Instant) {
        if matches!(envelope.body, Down::Hello) {
            return self.on_hello(envelope.epoch, now);
        }
        if self.epoch != Some(envelope.epoch) {
            return;
        }
        match envelope.body {
            Down::Hello => {}
            Down::Start { at, first, sent } => self.on_start(at, first, sent),
            Down::StartFailed { missing } => self.outbox.push_back(FederateAction::StartFailed(missing)),
            Down::Expelled => self.outbox.push_back(FederateAction::Expelled),
            Down::Grant(tag) => self.scheduler.advance_to(tag),
            Down::Provisional(tag) => self.scheduler.advance_provisionally(tag),
            Down::Message(message) => self.on_value(message, now),
            Down::Settled { federate, through } => self.scheduler.on_settled(federate, through),
            Down::Gone(federate) => {
                self.gone.insert(federate);
                self.scheduler.on_settled(federate, Tag::FOREVER);
                self.outbox.push_back(FederateAction::Gone(federate));
            }
            Down::Back { federate, first } => {
                self.gone.remove(&federate);
                self.scheduler.on_back(federate, first);
                self.outbox.push_back(FederateAction::Back(federate));
            }
            Down::StopRequest => {
                let proposal = self.propose_stop(Tag::START);
                self.send(Up::StopReply(proposal));
            }
            Down::Stop(tag) => self.on_stop(tag),
            Down::Over => self.leave(),
            Down::Delivered { to, number } => {
                if let Some(retained) = self.retained.get_mut(&to) {
                    retained.retain(|message| message.number > number);
                }
            }
        }
    }

    /// Whether [`Federate::on_message`] would take a message in this envelope: it is from the RTI that it follows, and new.
    pub fn takes(&self, envelope: &Envelope<Down<V>>) -> bool {
        let Down::Message(message) = &envelope.body else {
            return false;
        };
        let last = self.received_from.get(&message.from).copied().unwrap_or(0);
        self.epoch == Some(envelope.epoch) && message.number > last
    }

    /// A physical action happened. Returns its tag.
    ///
    /// # Errors
    /// If there is no such action, the program does not run, or the queue is full.
    pub fn on_physical(&mut self, action: ElementId, value: Option<V>, now: Instant) -> Result<Tag, Refused> {
        self.scheduler.on_physical(action, value, now)
    }

    /// A reaction has run, or its late handler.
    ///
    /// # Errors
    /// As in [`Scheduler::finish`].
    pub fn finish(&mut self, reaction: ReactionId, effects: Effects<V>, now: Instant) -> Result<(), Refused> {
        self.scheduler.finish(reaction, effects, now)
    }

    /// Asks for the end of the program, as soon as possible.
    pub fn request_stop(&mut self) {
        self.request_stop_at(Tag::START);
    }

    /// The next thing to do at `now`, until `None`.
    pub fn poll(&mut self, now: Instant) -> Option<FederateAction<V>> {
        if self.outbox.is_empty() {
            self.advance(now);
        }
        if self.lingers_until().is_some_and(|until| until <= now) {
            self.leave();
        }
        self.outbox.pop_front()
    }

    /// When to call [`Federate::poll`] again, if nothing happens before.
    pub fn next_deadline(&self) -> Option<Instant> {
        let due = self.scheduler.next_deadline().filter(|_| !self.is_held_back());
        due.into_iter()
            .chain(self.repeats_at())
            .chain(self.lingers_until())
            .min()
    }

    /// It may have to tell a new RTI the last tag, and what it sent there. So it stays until all know.
    fn lingers_until(&self) -> Option<Instant> {
        let ended_at = self.ended_at.filter(|_| !self.is_over)?;
        Some(ended_at + self.config.linger_max)
    }

    fn leave(&mut self) {
        if !self.is_over {
            self.is_over = true;
            self.outbox.push_back(FederateAction::Ended);
        }
    }

    /// Whether a receiver has too many messages outstanding for another tag to open.
    fn is_held_back(&self) -> bool {
        let max = self.config.outstanding_max;
        self.scheduler.is_between_tags() && self.retained.values().any(|retained| retained.len() >= max)
    }

    /// Moves what the scheduler wants into the outbox, until it waits.
    fn advance(&mut self, now: Instant) {
        while !self.is_held_back() {
            let Some(step) = self.scheduler.poll(now) else { break };
            match step {
                Step::Run { tag, lag, reactions } => {
                    self.outbox.push_back(FederateAction::Run { tag, lag, reactions });
                    return;
                }
                Step::Send { to, input, tag, value } => self.send_value(to, input, tag, value),
                Step::StopRequested(tag) => self.request_stop_at(tag),
                Step::Completed(tag) => {
                    self.completed = tag;
                    self.send(Up::Completed(tag));
                    // A message may have lowered what the RTI takes for the next event, for this tag only.
                    self.announced = None;
                    // One tag at a time, so that a fast federate still takes what comes.
                    if self.scheduler.last() != tag {
                        return;
                    }
                }
                Step::Ended => {
                    self.ended_at = Some(now);
                    self.send(Up::Resign);
                }
                Step::Fault(refused) => self.outbox.push_back(FederateAction::Fault(refused)),
            }
        }
        self.announce(now);
        self.tell_received();
    }

    fn on_hello(&mut self, epoch: Epoch, now: Instant) {
        if self.epoch.is_some_and(|known| epoch < known) {
            return;
        }
        // Everything that is done belongs into the report. What is left of the old link is void.
        self.advance(now);
        self.outbox.retain(|action| !matches!(action, FederateAction::Send(_)));
        self.epoch = Some(epoch);
        self.received = (0, 0);
        let (next, is_bound) = self.next_event(now);
        self.note_announced((next, is_bound), now);
        let (granted, provisional) = self.scheduler.grants();
        let report = Report {
            now,
            start: self.scheduler.started_at(),
            completed: self.completed,
            granted,
            provisional,
            next,
            is_bound,
            received: self
                .received_from
                .iter()
                .map(|(from, number)| (*from, *number))
                .collect(),
            gone: self.gone.iter().copied().collect(),
            retained: self.retained.values().flatten().cloned().collect(),
            stop_proposal: self.stop_proposal,
            stop: Some(self.scheduler.stop()).filter(|stop| *stop != Tag::FOREVER),
            has_ended: self.ended_at.is_some(),
        };
        self.send(Up::Report(Box::new(report)));
    }

    fn on_start(&mut self, at: Instant, first: Tag, sent: Vec<(FederateId, u64)>) {
        if self.scheduler.started_at().is_some() {
            return;
        }
        if self.scheduler.limit() < first {
            self.outbox.push_back(FederateAction::Expelled);
            return;
        }
        self.scheduler.start(at, first);
        self.completed = self.scheduler.completed();
        self.sent_to = sent.into_iter().collect();
        self.announced = None;
        let upstream = self
            .graph
            .federate(self.id)
            .map(|federate| federate.upstream.as_slice());
        if upstream.is_none_or(<[_]>::is_empty) {
            self.scheduler.advance_to(Tag::FOREVER);
        }
        self.outbox.push_back(FederateAction::Started(at));
    }

    fn has_upstream(&self) -> bool {
        let federate = self.graph.federate(self.id);
        federate.is_some_and(|federate| !federate.upstream.is_empty())
    }

    fn on_stop(&mut self, tag: Tag) {
        if self.scheduler.stop() == tag {
            return;
        }
        if let Err(refused) = self.scheduler.stop_at(tag) {
            self.outbox.push_back(FederateAction::Fault(refused));
        }
        if self.has_upstream() {
            self.scheduler.revoke_from(tag);
        }
    }

    fn on_value(&mut self, message: Message<V>, now: Instant) {
        self.received.0 += 1;
        let last = self.received_from.entry(message.from).or_insert(0);
        let is_new = message.number > *last;
        *last = message.number.max(*last);
        if is_new {
            let accepted = match message.value {
                Some(value) => self.scheduler.on_message(message.input, message.tag, value, now),
                None => self.scheduler.on_absent(message.input, message.tag),
            };
            match accepted {
                Ok(()) | Err(Refused::Stopped) => {}
                Err(refused) => self.outbox.push_back(FederateAction::Fault(refused)),
            }
        }
        self.tell_received();
    }

    fn tell_received(&mut self) {
        if self.acknowledged() >= self.received.1 + RECEIVED_EVERY {
            self.send(Up::Received);
        }
    }

    fn request_stop_at(&mut self, tag: Tag) {
        let decided = self.scheduler.stop() != Tag::FOREVER;
        // At its time limit it ends without being asked.
        let is_earlier = self.scheduler.reached().next() < self.scheduler.limit();
        if self.scheduler.started_at().is_some() && self.stop_proposal.is_none() && !decided && is_earlier {
            let proposal = self.propose_stop(tag);
            self.send(Up::StopRequest(proposal));
        }
    }

    /// The earliest last tag at or after `tag` that this federate accepts. It holds there.
    fn propose_stop(&mut self, tag: Tag) -> Tag {
        let proposal = *self
            .stop_proposal
            .get_or_insert(tag.max(self.scheduler.reached().next()).min(self.scheduler.limit()));
        self.scheduler.hold(proposal);
        proposal
    }

    fn send_value(&mut self, to: FederateId, input: ElementId, tag: Tag, value: Option<V>) {
        let number = self.sent_to.entry(to).or_insert(0);
        *number += 1;
        let message = Message {
            from: self.id,
            to,
            number: *number,
            input,
            tag,
            value,
        };
        self.retained.entry(to).or_default().push_back(message.clone());
        self.send(Up::Message(message));
    }

    /// The tag before which no event comes by itself, and whether only the clock says so.
    fn next_event(&self, now: Instant) -> (Tag, bool) {
        let next = self.scheduler.next_tag();
        let Some(delay) = self.promised_delay() else {
            return (next, false);
        };
        let elapsed = self.scheduler.elapsed(now).unwrap_or(Duration::ZERO);
        let bound = Tag::at(elapsed, 0) + Delay::of_connection(delay);
        let bound = bound.max(self.scheduler.reached().next());
        (next.min(bound), bound < next)
    }

    /// The least delay of a physical action, if anyone depends on this federate's promises.
    fn promised_delay(&self) -> Option<Duration> {
        let federate = self.graph.federate(self.id)?;
        federate.physical_delay.filter(|_| !federate.downstream.is_empty())
    }

    fn note_announced(&mut self, next: (Tag, bool), now: Instant) {
        self.announced = Some(next);
        self.announced_at = now;
        if self.promised_delay().is_some() && self.scheduler.started_at().is_some() {
            self.scheduler.promise(next.0);
        }
    }

    /// When to announce again although nothing happened: at the interval, or when the clock has passed the next event.
    fn repeats_at(&self) -> Option<Instant> {
        let (start, delay) = (self.scheduler.started_at()?, self.promised_delay()?);
        if self.ended_at.is_some() || !self.announced?.1 || !self.scheduler.is_between_tags() {
            return None;
        }
        let interval = self.announced_at + self.config.null_interval;
        let next = self.scheduler.next_tag().time();
        let passed = next.map(|time| start + time.saturating_sub(delay) + Duration::from_nanos(1));
        Some(
            passed
                .filter(|at| *at > self.announced_at)
                .map_or(interval, |at| at.min(interval)),
        )
    }

    /// Tells the RTI the next event, if that is news.
    fn announce(&mut self, now: Instant) {
        let waits = self.scheduler.started_at().is_some() && self.scheduler.is_between_tags();
        if !waits || self.ended_at.is_some() || self.epoch.is_none() {
            return;
        }
        let next = self.next_event(now);
        let repeats = self.announced.is_some_and(|(_, was_bound)| was_bound && next.1);
        let too_soon = repeats && now < self.announced_at + self.config.null_interval;
        if too_soon {
            return;
        }
        if self.announced == Some(next) {
            // Logical time is ahead of the clock, say. Look again after the interval.
            self.announced_at = now;
            return;
        }
        self.note_announced(next, now);
        let (tag, is_bound) = next;
        self.send(Up::NextEvent { tag, is_bound });
    }

    /// How many messages are acknowledged: all, unless there is enough to do first.
    fn acknowledged(&self) -> u64 {
        let full = self.scheduler.events() > self.config.scheduler.events_max / 2;
        let (received, before) = self.received;
        if full && self.scheduler.has_work() {
            before
        } else {
            received
        }
    }

    fn send(&mut self, body: Up<V>) {
        let Some(epoch) = self.epoch else { return };
        self.received.1 = self.acknowledged();
        let received = self.received.1;
        self.outbox
            .push_back(FederateAction::Send(Envelope { epoch, received, body }));
    }
}

#[cfg(test)]
mod tests;
