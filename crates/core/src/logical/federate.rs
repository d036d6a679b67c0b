//! One federate's part in coordination by an RTI (Kwok, section IV-A).
//!
//! [`Federate`] is a [`Scheduler`] that asks the RTI before it advances. It decides what to report to the RTI, and
//! when:
//!
//! - Each completed tag at once, and the next event's tag whenever the queue has changed while the federate waits.
//! - Neither of these, nor a null message, if the RTI said that no federate downstream waits for it and the next event
//!   is granted. If a federate begins to wait for it, it is reported at once, even while a reaction runs. This
//!   exemption holds until this federate sends a message or has a new RTI. The last tag and the end of all events are
//!   always reported.
//! - A federate with physical actions and downstream federates promises as much as its clock allows: no event before
//!   now plus the least delay. It repeats this null message at an interval. Physical actions respect the promise.
//!   Without downstream federates, no promise is needed.
//! - A federate without upstream federates is always granted, and waits for no answer.
//! - After a federate has requested the end or was asked about it, it opens no tag from its proposal on until the last
//!   tag is decided. Then every federate has an event at the last tag, so grants from there on are void, and the RTI
//!   grants that tag again.
//!
//! **A new RTI** has a greater epoch. The federate reports to it and ignores every older RTI from then on. It keeps its
//! grants and continues with them meanwhile.
//!
//! **Back pressure.** A federate opens no tag while a receiver has too many messages outstanding. It does not
//! acknowledge messages while its own queue is more than half full and it has work, so fast senders wait for it.
//!
//! **Decentralised coordination.** [`Federate::decentralised`] is driven in the same way, and reports, starts, holds and
//! resigns as above. It sends the RTI neither tags nor values: those go directly to other federates, for their
//! [`Federate::on_peer_message`]. About its next event, it reports only that there are no more. It resigns once all
//! federates that it listens to have ended or died. So a message that arrives after the last tag is still reported as a
//! violation.
//!
//! A federate that dies reports nothing; its driver's peers notice. Left out: choosing the next RTI, which
//! [`failover`](crate::failover) does between robots.

use super::decentralised::{Decentralised, DecentralisedAction, DecentralisedConfig, NeedsOffset, PeerMessage};
use super::graph::{ElementId, Graph, ReactionId};
use super::program::FederateId;
use super::protocol::{Down, Envelope, Message, Report, Up};
use super::scheduler::{Effects, Ready, Refused, Scheduler, SchedulerConfig, Step, Value, Waits};
use super::{Delay, Tag};
use crate::failover::Epoch;
use crate::{Duration, Instant};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// Number of received messages after which a federate acknowledges them at the latest.
const RECEIVED_EVERY: u64 = 16;

/// The settings of a federate.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FederateConfig {
    /// The settings of the scheduler.
    pub scheduler: SchedulerConfig,
    /// The interval of null messages: how much later than necessary the federates downstream of a physical action
    /// advance.
    pub null_interval: Duration,
    /// How long to wait, after the last tag, until the RTI says that every federate has completed it.
    pub linger_max: Duration,
    /// The number of outstanding messages to one receiver from which no tag opens. More than 64.
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
    /// Send to the RTI of that epoch. Drop this if there is no link to it.
    Send(Envelope<Up<V>>),
    /// Run these reactions, and pass the effects of each to [`Federate::finish`].
    Run {
        /// The tag of the reactions.
        tag: Tag,
        /// How far the clock is ahead of the tag.
        lag: Duration,
        /// The reactions.
        reactions: Vec<Ready>,
    },
    /// Send directly to another federate, in order and without loss. Only a decentralised federate emits this.
    SendToPeer {
        /// The receiver.
        to: FederateId,
        /// The message, for the receiver's [`Federate::on_peer_message`].
        message: PeerMessage<V>,
    },
    /// A message arrived after its tag. Only a decentralised federate emits this.
    Violation {
        /// The input.
        input: ElementId,
        /// The intended tag of the message.
        meant: Tag,
        /// The tag that had been reached.
        reached: Tag,
        /// When the reactions that handle late values see the message; `None` if it is not used.
        handled: Option<Tag>,
    },
    /// The program starts at this time.
    Started(Instant),
    /// Another federate died. Its outputs stay absent from now on.
    Gone(FederateId),
    /// A dead federate takes part again.
    Back(FederateId),
    /// The result no longer follows from the program.
    Fault(Refused),
    /// Nothing was started: these federates did not report in time.
    StartFailed(Vec<FederateId>),
    /// The others consider this federate dead. It has to restart.
    Expelled,
    /// Every federate has completed the last tag, or the time to wait for that is over. Flush the link, then close it.
    Ended,
}

/// The way in which a federate decides to advance.
#[derive(Clone, Debug, Hash)]
enum Core<V> {
    /// The RTI grants tags.
    Granted(Scheduler<V>),
    /// The federate relies on offsets and promises.
    Alone(Decentralised<V>),
}

impl<V: Value> Core<V> {
    fn scheduler(&self) -> &Scheduler<V> {
        match self {
            Core::Granted(scheduler) => scheduler,
            Core::Alone(decentralised) => decentralised.scheduler(),
        }
    }
}

/// A scheduler under an RTI's coordination.
#[derive(Clone, Debug, Hash)]
pub struct Federate<V> {
    graph: Arc<Graph>,
    id: FederateId,
    config: FederateConfig,
    core: Core<V>,
    epoch: Option<Epoch>,
    /// The numbers of messages that the link to the RTI has delivered, and of those that are acknowledged.
    received: (u64, u64),
    received_from: BTreeMap<FederateId, u64>,
    sent_to: BTreeMap<FederateId, u64>,
    retained: BTreeMap<FederateId, VecDeque<Message<V>>>,
    /// The tag up to which everything is done.
    completed: Tag,
    /// The tag before which no federate downstream waits for a next event.
    awaited: Tag,
    /// Whether the completed tag has not been reported to the RTI, and whether the next event has not.
    skipped: (bool, bool),
    /// Whether a reaction ran since the last completed tag.
    has_run: bool,
    announced: Option<(Tag, bool)>,
    announced_at: Instant,
    stop_proposal: Option<Tag>,
    gone: BTreeSet<FederateId>,
    /// When the last tag was completed.
    ended_at: Option<Instant>,
    has_resigned: bool,
    is_over: bool,
    outbox: VecDeque<FederateAction<V>>,
}

impl<V: Value> Federate<V> {
    /// Creates a federate of a program. It waits for the RTI's [`Down::Hello`].
    pub fn new(graph: Arc<Graph>, id: FederateId, config: FederateConfig) -> Self {
        let scheduler = Scheduler::new(Arc::clone(&graph), id, Waits::InCycles, config.scheduler.clone());
        Federate::over(graph, id, config, Core::Granted(scheduler))
    }

    /// Creates a federate that advances by itself, as described in [`decentralised`](super::decentralised). Its RTI has
    /// to be [decentralised](super::RtiConfig::is_decentralised) too. Settings in both configurations are taken from
    /// `config`.
    ///
    /// # Errors
    /// If it would wait forever.
    pub fn decentralised(
        graph: Arc<Graph>,
        id: FederateId,
        config: FederateConfig,
        offsets: DecentralisedConfig,
    ) -> Result<Self, NeedsOffset> {
        let offsets = DecentralisedConfig {
            scheduler: config.scheduler.clone(),
            null_interval: config.null_interval,
            ..offsets
        };
        let core = Core::Alone(Decentralised::new(Arc::clone(&graph), id, offsets)?);
        Ok(Federate::over(graph, id, config, core))
    }

    fn over(graph: Arc<Graph>, id: FederateId, config: FederateConfig, core: Core<V>) -> Self {
        Federate {
            graph,
            id,
            config,
            core,
            epoch: None,
            received: (0, 0),
            received_from: BTreeMap::new(),
            sent_to: BTreeMap::new(),
            retained: BTreeMap::new(),
            completed: Tag::NEVER,
            awaited: Tag::NEVER,
            skipped: (false, false),
            has_run: false,
            announced: None,
            announced_at: Instant::ZERO,
            stop_proposal: None,
            gone: BTreeSet::new(),
            ended_at: None,
            has_resigned: false,
            is_over: false,
            outbox: VecDeque::new(),
        }
    }

    /// Returns the scheduler, for reading ports, tags and the clock.
    pub fn scheduler(&self) -> &Scheduler<V> {
        self.core.scheduler()
    }

    /// Returns the epoch of the RTI that this federate follows.
    pub fn epoch(&self) -> Option<Epoch> {
        self.epoch
    }

    /// Handles a message of the RTI.
    pub fn on_message(&mut self, envelope: Envelope<Down<V>>, now: Instant) {
        if matches!(envelope.body, Down::Hello) {
            return self.on_hello(envelope.epoch, now);
        }
        if self.epoch != Some(envelope.epoch) {
            return;
        }
        match envelope.body {
            Down::Hello => {}
            Down::Start { at, first, sent } => self.on_start(at, first, sent, now),
            Down::StartFailed { missing } => self.outbox.push_back(FederateAction::StartFailed(missing)),
            Down::Expelled => self.outbox.push_back(FederateAction::Expelled),
            Down::Gone(federate) => {
                self.gone.insert(federate);
                match &mut self.core {
                    Core::Granted(scheduler) => scheduler.on_settled(federate, Tag::FOREVER),
                    Core::Alone(decentralised) => decentralised.on_gone(federate),
                }
                if self.ended_at.is_none() {
                    self.outbox.push_back(FederateAction::Gone(federate));
                }
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
            Down::Awaited(tag) => self.on_awaited(tag),
            Down::Message(message) => self.on_value(message, now),
            Down::Grant(_) | Down::Provisional(_) | Down::Settled { .. } | Down::Back { .. } => {
                self.on_grant(envelope.body);
            }
        }
    }

    /// Handles the messages that only a federate under grants receives.
    fn on_grant(&mut self, body: Down<V>) {
        let Core::Granted(scheduler) = &mut self.core else {
            return;
        };
        match body {
            Down::Grant(tag) => scheduler.advance_to(tag),
            Down::Provisional(tag) => scheduler.advance_provisionally(tag),
            Down::Settled { federate, through } => scheduler.on_settled(federate, through),
            Down::Back { federate, first } => {
                self.gone.remove(&federate);
                scheduler.on_back(federate, first);
                self.outbox.push_back(FederateAction::Back(federate));
            }
            _ => {}
        }
    }

    /// Handles a direct message of another federate. Only decentralised federates send these.
    pub fn on_peer_message(&mut self, message: PeerMessage<V>, now: Instant) {
        if let Core::Alone(decentralised) = &mut self.core {
            decentralised.on_message(message, now);
        }
    }

    /// Returns whether [`Federate::on_message`] would accept this envelope: it is from the RTI that this federate
    /// follows, and new.
    pub fn takes(&self, envelope: &Envelope<Down<V>>) -> bool {
        let Down::Message(message) = &envelope.body else {
            return false;
        };
        let last = self.received_from.get(&message.from).copied().unwrap_or(0);
        self.epoch == Some(envelope.epoch) && message.number > last
    }

    /// Schedules a physical action. Returns its tag.
    ///
    /// # Errors
    /// If there is no such action, the program does not run, or the queue is full.
    pub fn on_physical(&mut self, action: ElementId, value: Option<V>, now: Instant) -> Result<Tag, Refused> {
        match &mut self.core {
            Core::Granted(scheduler) => scheduler.on_physical(action, value, now),
            Core::Alone(decentralised) => decentralised.on_physical(action, value, now),
        }
    }

    /// Records the effects of a reaction or of its late handler.
    ///
    /// # Errors
    /// As in [`Scheduler::finish`].
    pub fn finish(&mut self, reaction: ReactionId, effects: Effects<V>, now: Instant) -> Result<(), Refused> {
        match &mut self.core {
            Core::Granted(scheduler) => scheduler.finish(reaction, effects, now),
            Core::Alone(decentralised) => decentralised.finish(reaction, effects, now),
        }
    }

    /// Asks for the end of the program, as soon as possible.
    pub fn request_stop(&mut self) {
        self.request_stop_at(Tag::START);
    }

    /// Returns the next action at `now`, until `None`.
    pub fn poll(&mut self, now: Instant) -> Option<FederateAction<V>> {
        if self.outbox.is_empty() {
            self.advance(now);
        }
        if self.lingers_until().is_some_and(|until| until <= now) {
            self.leave();
        }
        self.outbox.pop_front()
    }

    /// Returns when to call [`Federate::poll`] again, if nothing happens before.
    pub fn next_deadline(&self) -> Option<Instant> {
        let due = match &self.core {
            Core::Granted(scheduler) => scheduler.next_deadline().filter(|_| !self.is_held_back()),
            Core::Alone(decentralised) => decentralised.next_deadline().filter(|_| self.ended_at.is_none()),
        };
        due.into_iter()
            .chain(self.repeats_at())
            .chain(self.lingers_until())
            .min()
    }

    /// Returns until when this federate stays. It may have to report the last tag and its messages there to a new RTI,
    /// so it stays until all federates know.
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

    /// Returns whether a receiver has too many messages outstanding for another tag to open.
    fn is_held_back(&self) -> bool {
        let max = self.config.outstanding_max;
        self.scheduler().is_between_tags() && self.retained.values().any(|retained| retained.len() >= max)
    }

    /// Moves the scheduler's actions into the outbox, until it waits.
    fn advance(&mut self, now: Instant) {
        while !self.is_held_back() {
            let goes_on = match &mut self.core {
                Core::Granted(scheduler) => scheduler.poll(now).map(|step| self.on_step(step, now)),
                Core::Alone(decentralised) => decentralised.poll(now).map(|action| self.on_action(action, now)),
            };
            match goes_on {
                Some(true) => {}
                Some(false) => return,
                None => break,
            }
        }
        self.resign();
        self.announce(now);
        self.tell_received();
    }

    /// Handles a step of the scheduler. Returns whether to continue at once.
    fn on_step(&mut self, step: Step<V>, now: Instant) -> bool {
        match step {
            Step::Run { tag, lag, reactions } => {
                self.has_run = true;
                self.outbox.push_back(FederateAction::Run { tag, lag, reactions });
                return false;
            }
            Step::Send { to, input, tag, value } => self.send_value(to, input, tag, value),
            Step::StopRequested(tag) => self.request_stop_at(tag),
            Step::Completed(tag) => {
                self.completed = tag;
                // A message may have lowered the RTI's view of the next event, only for this tag.
                self.announced = None;
                self.skipped.0 = true;
                let last = self.scheduler().last();
                if std::mem::take(&mut self.has_run) && tag.next() < self.needed_from() && tag < last {
                    return true;
                }
                self.tell_completed();
                // One tag at a time, so that a fast federate still handles arriving messages.
                return self.scheduler().last() == tag;
            }
            Step::Ended => self.ended_at = Some(now),
            Step::Fault(refused) => self.outbox.push_back(FederateAction::Fault(refused)),
        }
        true
    }

    /// Handles an action of the decentralised coordination. Returns whether to continue at once.
    fn on_action(&mut self, action: DecentralisedAction<V>, now: Instant) -> bool {
        self.completed = self.scheduler().completed();
        match action {
            DecentralisedAction::Run { tag, lag, reactions } => {
                self.outbox.push_back(FederateAction::Run { tag, lag, reactions });
                return false;
            }
            DecentralisedAction::Send { to, message } => {
                self.outbox.push_back(FederateAction::SendToPeer { to, message });
            }
            DecentralisedAction::Violation {
                input,
                meant,
                reached,
                handled,
            } => self.outbox.push_back(FederateAction::Violation {
                input,
                meant,
                reached,
                handled,
            }),
            DecentralisedAction::StopRequested(tag) => self.request_stop_at(tag),
            // The RTI has reported this already.
            DecentralisedAction::Gone(_) => {}
            DecentralisedAction::Fault(refused) => self.outbox.push_back(FederateAction::Fault(refused)),
            DecentralisedAction::Ended => {
                // The program's last tag is not before this one.
                self.send(Up::Completed(self.completed));
                self.ended_at = Some(now);
            }
        }
        true
    }

    fn resign(&mut self) {
        // Messages still in flight from other federates may be violations.
        let has_heard = match &self.core {
            Core::Granted(_) => true,
            Core::Alone(decentralised) => decentralised.has_heard_all(),
        };
        if self.ended_at.is_some() && !self.has_resigned && has_heard {
            self.has_resigned = true;
            self.send(Up::Resign);
        }
    }

    fn on_hello(&mut self, epoch: Epoch, now: Instant) {
        if self.epoch.is_some_and(|known| epoch < known) {
            return;
        }
        // The report must cover everything that is done. Messages left over for the old link are void.
        self.advance(now);
        self.outbox.retain(|action| !matches!(action, FederateAction::Send(_)));
        self.epoch = Some(epoch);
        self.received = (0, 0);
        self.awaited = Tag::NEVER;
        self.skipped = (false, false);
        let (next, is_bound) = self.next_event(now);
        self.note_announced((next, is_bound), now);
        let (granted, provisional) = self.scheduler().grants();
        let report = Report {
            now,
            start: self.scheduler().started_at(),
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
            stop: Some(self.scheduler().stop()).filter(|stop| *stop != Tag::FOREVER),
            has_ended: self.has_resigned,
        };
        self.send(Up::Report(Box::new(report)));
    }

    fn on_start(&mut self, at: Instant, first: Tag, sent: Vec<(FederateId, u64)>, now: Instant) {
        if self.scheduler().started_at().is_some() {
            return;
        }
        if self.scheduler().limit() < first {
            self.outbox.push_back(FederateAction::Expelled);
            return;
        }
        let has_upstream = self.has_upstream();
        match &mut self.core {
            Core::Granted(scheduler) => {
                scheduler.start(at, first);
                if !has_upstream {
                    scheduler.advance_to(Tag::FOREVER);
                }
            }
            Core::Alone(decentralised) => decentralised.start(at, now),
        }
        self.completed = self.scheduler().completed();
        self.sent_to = sent.into_iter().collect();
        self.announced = None;
        self.outbox.push_back(FederateAction::Started(at));
    }

    fn has_upstream(&self) -> bool {
        let federate = self.graph.federate(self.id);
        federate.is_some_and(|federate| !federate.upstream.is_empty())
    }

    fn on_stop(&mut self, tag: Tag) {
        if self.scheduler().stop() == tag {
            return;
        }
        let has_upstream = self.has_upstream();
        let accepted = match &mut self.core {
            Core::Granted(scheduler) => {
                let accepted = scheduler.stop_at(tag);
                if has_upstream {
                    scheduler.revoke_from(tag);
                }
                accepted
            }
            Core::Alone(decentralised) => decentralised.stop_at(tag),
        };
        if let Err(refused) = accepted {
            self.outbox.push_back(FederateAction::Fault(refused));
        }
    }

    fn on_value(&mut self, message: Message<V>, now: Instant) {
        let Core::Granted(scheduler) = &mut self.core else {
            return;
        };
        self.received.0 += 1;
        let last = self.received_from.entry(message.from).or_insert(0);
        let is_new = message.number > *last;
        *last = message.number.max(*last);
        if is_new {
            let accepted = match message.value {
                Some(value) => scheduler.on_message(message.input, message.tag, value, now),
                None => scheduler.on_absent(message.input, message.tag),
            };
            match accepted {
                Ok(()) | Err(Refused::Stopped) => {}
                Err(refused) => self.outbox.push_back(FederateAction::Fault(refused)),
            }
        }
        self.tell_received();
    }

    /// Returns the tag before which next events need not be reported: no federate downstream waits for them, and they
    /// are granted.
    fn needed_from(&self) -> Tag {
        self.awaited.min(self.scheduler().grants().0.next())
    }

    fn has_skipped(&self) -> bool {
        self.skipped.0 || self.skipped.1
    }

    /// Records that federates downstream wait for a different next event than before.
    fn on_awaited(&mut self, tag: Tag) {
        self.awaited = tag;
        // Between tags, the next poll reports it. An open tag may take long.
        let open = self.scheduler().reached();
        if self.has_skipped() && open > self.completed && open >= self.needed_from() {
            self.tell_next((open, false));
        }
    }

    fn tell_completed(&mut self) {
        if std::mem::take(&mut self.skipped.0) {
            self.send(Up::Completed(self.completed));
        }
    }

    fn tell_next(&mut self, (tag, is_bound): (Tag, bool)) {
        self.tell_completed();
        self.skipped.1 = false;
        self.send(Up::NextEvent { tag, is_bound });
    }

    fn tell_received(&mut self) {
        if self.acknowledged() >= self.received.1 + RECEIVED_EVERY {
            self.send(Up::Received);
        }
    }

    fn request_stop_at(&mut self, tag: Tag) {
        let decided = self.scheduler().stop() != Tag::FOREVER;
        // At the time limit, the program ends without a request.
        let is_earlier = self.scheduler().reached().next() < self.scheduler().limit();
        if self.scheduler().started_at().is_some() && self.stop_proposal.is_none() && !decided && is_earlier {
            let proposal = self.propose_stop(tag);
            self.send(Up::StopRequest(proposal));
        }
    }

    /// Returns the earliest last tag at or after `tag` that this federate accepts, and holds there.
    fn propose_stop(&mut self, tag: Tag) -> Tag {
        let proposal = *self
            .stop_proposal
            .get_or_insert(tag.max(self.scheduler().reached().next()).min(self.scheduler().limit()));
        match &mut self.core {
            Core::Granted(scheduler) => scheduler.hold(proposal),
            Core::Alone(decentralised) => decentralised.hold(proposal),
        }
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
        // The receiver will wait for the event after this one.
        self.awaited = Tag::NEVER;
        self.send(Up::Message(message));
    }

    /// Returns the tag before which no event occurs by itself, and whether only the clock says so.
    fn next_event(&self, now: Instant) -> (Tag, bool) {
        if let Core::Alone(decentralised) = &self.core {
            // A decentralised RTI needs to know only when there are no more events.
            return if decentralised.is_done() {
                (Tag::FOREVER, false)
            } else {
                (Tag::START, true)
            };
        }
        let next = self.scheduler().next_tag();
        let Some(delay) = self.promised_delay() else {
            return (next, false);
        };
        let elapsed = self.scheduler().elapsed(now).unwrap_or(Duration::ZERO);
        let bound = Tag::at(elapsed, 0) + Delay::of_connection(delay);
        let bound = bound.max(self.scheduler().reached().next());
        (next.min(bound), bound < next)
    }

    /// Returns the least delay of a physical action, if any federate depends on this one's promises.
    fn promised_delay(&self) -> Option<Duration> {
        if matches!(self.core, Core::Alone(_)) {
            return None;
        }
        let federate = self.graph.federate(self.id)?;
        federate.physical_delay.filter(|_| !federate.downstream.is_empty())
    }

    fn note_announced(&mut self, next: (Tag, bool), now: Instant) {
        self.announced = Some(next);
        self.announced_at = now;
        let promises = self.promised_delay().is_some() && self.scheduler().started_at().is_some();
        if let Core::Granted(scheduler) = &mut self.core {
            if promises {
                scheduler.promise(next.0);
            }
        }
    }

    /// Returns when to announce again although nothing happened: at the interval, or when the clock has passed the next
    /// event.
    fn repeats_at(&self) -> Option<Instant> {
        let (start, delay) = (self.scheduler().started_at()?, self.promised_delay()?);
        if self.ended_at.is_some() || !self.scheduler().is_between_tags() {
            return None;
        }
        if self.skipped.1 {
            let needed = self.needed_from();
            let needed = needed.time().filter(|_| needed <= self.scheduler().next_tag())?;
            return Some(start + needed.saturating_sub(delay) + Duration::from_nanos(1));
        }
        if !self.announced?.1 {
            return None;
        }
        let interval = self.announced_at + self.config.null_interval;
        let next = self.scheduler().next_tag().time();
        let passed = next.map(|time| start + time.saturating_sub(delay) + Duration::from_nanos(1));
        Some(
            passed
                .filter(|at| *at > self.announced_at)
                .map_or(interval, |at| at.min(interval)),
        )
    }

    /// Reports the next event to the RTI, if it has changed.
    fn announce(&mut self, now: Instant) {
        let waits = self.scheduler().started_at().is_some() && self.scheduler().is_between_tags();
        if !waits || self.ended_at.is_some() || self.epoch.is_none() {
            return;
        }
        let next = self.next_event(now);
        if matches!(self.core, Core::Alone(_)) && next.1 {
            return;
        }
        if next.0 < self.needed_from() {
            self.skipped.1 |= self.announced != Some(next);
            self.announced_at = now;
            return;
        }
        let repeats = !self.skipped.1 && self.announced.is_some_and(|(_, was_bound)| was_bound && next.1);
        let too_soon = repeats && now < self.announced_at + self.config.null_interval;
        if too_soon {
            return;
        }
        if self.announced == Some(next) && !self.skipped.1 {
            // For example, logical time is ahead of the clock. Check again after the interval.
            self.announced_at = now;
            return;
        }
        self.note_announced(next, now);
        self.tell_next(next);
    }

    /// Returns how many messages to acknowledge: all, unless the queue is rather full and there is work.
    fn acknowledged(&self) -> u64 {
        let full = self.scheduler().events() > self.config.scheduler.events_max / 2;
        let (received, before) = self.received;
        if full && self.scheduler().has_work() {
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
impl<V: Value> Federate<V> {
    /// Returns the tag before which no federate waits, and whether a report was left out because of it.
    pub(super) fn awaited(&self) -> (Tag, bool) {
        (self.awaited, self.has_skipped())
    }
}

#[cfg(test)]
mod tests;
