//! Drives one federate: carries out the decisions of its state machine, and reports events to it.

use super::carried::{Carried, Kept, Wire};
use super::coordinator::{federate_channel, names, ToFederate, ToRti, RTI_CHANNEL};
use super::frames::{decode, inbox, Outbound, RETRY};
use super::outlets::{output_channel, Outlets};
use super::trace::{Event, Trace};
use super::{
    Clock, Failure, Handle, Input, Inputs, Moment, Reactions, Received, Recorded, Report, Spent, Violation,
    HEADER_RESERVED,
};
use crate::bell::wait_any;
use crate::{Domain, DomainOptions, Error, Payload, Receiver, ReceiverOptions, SenderOptions, WhenFull};
use coorp_core::logical::protocol::{Down, Envelope, Message};
use coorp_core::logical::scheduler::{Effects, Ready, Refused, Waits};
use coorp_core::logical::{
    DecentralisedConfig, ElementId, Federate, FederateAction, FederateConfig, FederateId, Graph, PeerMessage,
    ReactionId, Scheduler, SchedulerConfig, Step, Tag,
};
use coorp_core::{Duration, Instant};
use rustix::thread::{current_timer_slack, set_current_timer_slack};
use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU64;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time;

/// The longest sleep before checking whether the program was interrupted.
const SLICE: time::Duration = time::Duration::from_millis(50);
/// The longest wait for its links.
const CONNECTING_MAX: time::Duration = time::Duration::from_secs(5);
/// The number of messages that wait for a reader before the federate pauses.
const WAITING_MAX: usize = 1024;
/// The number of queued events at which a federate under decentralised coordination stops reading until it has worked.
const EVENTS_MAX: usize = 16_384;
/// The time for which it spins before it sleeps, if the last wait was short.
const SPIN: time::Duration = time::Duration::from_micros(100);

/// The kind of coordination. All federates of a program and their coordinators must use the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Coordination {
    /// The RTI grants tags (Kwok, section IV-A).
    #[default]
    Centralised,
    /// Each federate advances by itself (section IV-B). The RTI decides only the start and the end.
    Decentralised {
        /// The time after a tag at which an unknown input counts as absent; `None` to wait until it is known.
        offset: Option<Duration>,
    },
}

/// The settings of a federate.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The kind of coordination.
    pub coordination: Coordination,
    /// The name of the program's domain: the same for all its federates, and for no other program.
    pub domain: String,
    /// The program's clock.
    pub clock: Clock,
    /// Whether not to wait for the clock.
    pub fast: bool,
    /// The time of the last tag, unless the program ends earlier.
    pub timeout: Option<Duration>,
    /// Whether the program ends when another federate dies. Otherwise the dead federate's outputs stay absent.
    pub stop_on_death: bool,
    /// The storage of its large outputs.
    pub store: SenderOptions,
    /// Replays a recording up to this tag, with the inputs from [`Reactions::next_recorded`]. For a federate without
    /// others.
    pub replay: Option<Tag>,
    /// Whether to keep a trace.
    pub trace: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            coordination: Coordination::Centralised,
            domain: String::new(),
            clock: Clock::default(),
            fast: false,
            timeout: None,
            stop_on_death: true,
            store: SenderOptions {
                queue_messages: 1024,
                held_messages: 1024,
                when_full: WhenFull::Block(time::Duration::from_secs(5)),
                ..SenderOptions::default()
            },
            replay: None,
            trace: false,
        }
    }
}

/// Runs one federate until the program's end.
///
/// # Errors
/// If the program does not run to its end. After [`Failure::Died`] and [`Failure::Reaction`], shutdown reactions have run.
pub fn run<R: Reactions>(
    graph: &Arc<Graph>,
    federate: FederateId,
    settings: &Settings,
    reactions: &mut R,
    handle: &Handle<R::Object>,
) -> Result<Report, Failure> {
    if graph.federate(federate).is_none() {
        return Err(Failure::Settings("the program has no federate with this number"));
    }
    let _slack = NoSlack::begin();
    let mut driver = Driver::open(graph, federate, settings, reactions, handle)?;
    let outcome = driver.run();
    driver.flush_at_end();
    handle.set_outlets(None);
    let Driver {
        reactions,
        failure,
        report,
        ..
    } = driver;
    let died = (settings.stop_on_death && !report.gone.is_empty()).then(|| Failure::Died(report.gone.clone()));
    match outcome.err().or(failure).or(died) {
        Some(failure) => {
            reactions.on_failed(report);
            Err(failure)
        }
        None => Ok(report),
    }
}

/// Makes the kernel end this thread's waits on time. By default they may take 50 us longer, to save wake-ups.
struct NoSlack(Option<NonZeroU64>);

impl NoSlack {
    fn begin() -> Self {
        let before = current_timer_slack().ok().and_then(NonZeroU64::new);
        let _ = set_current_timer_slack(Some(NonZeroU64::MIN));
        NoSlack(before)
    }
}

impl Drop for NoSlack {
    fn drop(&mut self) {
        let _ = set_current_timer_slack(self.0);
    }
}

/// The number of events that a replay passes to the scheduler ahead.
const AHEAD: usize = 1024;

type Value<R> = Carried<<R as Reactions>::Object>;

/// The state machine that lets this federate advance, and its links.
enum Mode<V> {
    Alone(Box<Scheduler<V>>),
    Coordinated(Box<Coordinated<V>>),
}

/// A federate with its links.
struct Coordinated<V> {
    federate: Federate<V>,
    rti: Outbound,
    inbox: Receiver,
    /// The links to the federates that read its outputs, if it sends to them directly.
    peers: BTreeMap<FederateId, Outbound>,
    /// The time until which links may still be on their way after the start.
    connects_until: Option<time::Instant>,
    /// Whether the end was requested before the start.
    stops_at_start: bool,
}

impl<V: coorp_core::logical::Value> Coordinated<V> {
    /// Sends waiting messages. Returns whether none wait any more.
    fn flush(&mut self) -> Result<bool, Error> {
        let mut is_flushed = true;
        for link in self.peers.values_mut().chain([&mut self.rti]) {
            is_flushed &= link.flush()? || !link.is_connected();
        }
        Ok(is_flushed)
    }

    /// Returns the number of waiting messages on the fullest link.
    fn waiting(&self) -> usize {
        let links = self.peers.values().chain([&self.rti]);
        links.map(Outbound::waiting).max().unwrap_or(0)
    }

    /// Returns whether it has so much to do that its inbox, and the federates that send to it directly, must wait. An
    /// RTI's grants must not wait; the RTI has its own limits.
    fn is_behind(&self, settings: &Settings) -> bool {
        let scheduler = self.federate.scheduler();
        settings.coordination != Coordination::Centralised && scheduler.events() >= EVENTS_MAX && scheduler.has_work()
    }

    /// Returns whether everything that it sends will arrive, or can never arrive.
    fn is_connected(&mut self, outlets: &Outlets) -> bool {
        let Some(until) = self.connects_until else {
            return true;
        };
        let mut links = self.peers.values_mut().chain([&mut self.rti]);
        if links.all(|link| link.is_connected()) && outlets.are_connected() || until <= time::Instant::now() {
            self.connects_until = None;
        }
        self.connects_until.is_none()
    }
}

/// The driver's next step.
enum Next<V> {
    Run(Tag, Duration, Vec<Ready>),
    Federate(FederateAction<V>),
    Fault(Refused),
    Ended,
}

/// The channel of an output that this federate reads.
struct Inlet {
    receiver: Receiver,
    /// The number of inputs here that are connected to it.
    links: usize,
    /// The latest payload, for the inputs that do not have it yet.
    latest: Option<(u64, Arc<Payload>, usize)>,
}

struct Driver<'a, R: Reactions> {
    graph: &'a Arc<Graph>,
    id: FederateId,
    settings: &'a Settings,
    reactions: &'a mut R,
    handle: &'a Handle<R::Object>,
    mode: Mode<Value<R>>,
    outlets: Arc<Outlets>,
    inlets: BTreeMap<ElementId, Inlet>,
    report: Report,
    failure: Option<Failure>,
    /// The next input that a replay passes to the scheduler.
    recorded: Option<Recorded<R::Object>>,
    has_stopped: bool,
    is_flushed: bool,
    spins: bool,
    checked: time::Instant,
}

struct Reads<'a, T>(&'a Scheduler<Carried<T>>);

impl<T: Clone> Inputs<T> for Reads<'_, T> {
    fn get(&self, element: ElementId) -> Option<Input<'_, T>> {
        if !self.0.is_present(element) {
            return None;
        }
        match self.0.value(element) {
            Some(Carried::Here(object) | Carried::Both(object, _)) => Some(Input::Here(object)),
            Some(Carried::From(received)) => Some(Input::From(received)),
            // `resolve` leaves nothing of this kind.
            Some(Carried::Away(_)) | None => Some(Input::Present),
        }
    }

    fn meant(&self, element: ElementId) -> Option<Tag> {
        self.0.meant(element)
    }
}

impl<V: coorp_core::logical::Value> Mode<V> {
    fn scheduler(&self) -> &Scheduler<V> {
        match self {
            Mode::Alone(scheduler) => scheduler,
            Mode::Coordinated(this) => this.federate.scheduler(),
        }
    }

    fn poll(&mut self, now: Instant) -> Option<Next<V>> {
        let scheduler = match self {
            Mode::Alone(scheduler) => scheduler,
            Mode::Coordinated(this) => {
                return Some(match this.federate.poll(now)? {
                    FederateAction::Run { tag, lag, reactions } => Next::Run(tag, lag, reactions),
                    FederateAction::Fault(refused) => Next::Fault(refused),
                    FederateAction::Ended => Next::Ended,
                    other => Next::Federate(other),
                })
            }
        };
        loop {
            match scheduler.poll(now) {
                Some(Step::Run { tag, lag, reactions }) => return Some(Next::Run(tag, lag, reactions)),
                Some(Step::Fault(refused)) => return Some(Next::Fault(refused)),
                Some(Step::Ended) => return Some(Next::Ended),
                Some(Step::StopRequested(tag)) => Self::stop(scheduler, tag),
                // There is nobody to tell.
                Some(Step::Completed(_) | Step::Send { .. }) => {}
                None if scheduler.is_starved() => Self::stop(scheduler, Tag::START),
                None => return None,
            }
        }
    }

    /// Ends a federate without others as soon as possible.
    fn stop(scheduler: &mut Scheduler<V>, tag: Tag) {
        // A refusal means that it already ends earlier.
        let _ = scheduler.stop_at(tag.max(scheduler.reached().next()));
    }

    fn request_stop(&mut self) {
        match self {
            Mode::Alone(scheduler) => Self::stop(scheduler, Tag::START),
            Mode::Coordinated(this) if this.federate.scheduler().started_at().is_none() => this.stops_at_start = true,
            Mode::Coordinated(this) => this.federate.request_stop(),
        }
    }

    fn finish(&mut self, reaction: ReactionId, effects: Effects<V>, now: Instant) -> Result<(), Refused> {
        match self {
            Mode::Alone(scheduler) => scheduler.finish(reaction, effects, now),
            Mode::Coordinated(this) => this.federate.finish(reaction, effects, now),
        }
    }

    fn on_physical(&mut self, action: ElementId, value: Option<V>, now: Instant) -> Result<Tag, Refused> {
        match self {
            Mode::Alone(scheduler) => scheduler.on_physical(action, value, now),
            Mode::Coordinated(this) => this.federate.on_physical(action, value, now),
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        match self {
            Mode::Alone(scheduler) => scheduler.next_deadline(),
            Mode::Coordinated(this) => this.federate.next_deadline(),
        }
    }
}

impl<'a, R: Reactions> Driver<'a, R> {
    fn open(
        graph: &'a Arc<Graph>,
        id: FederateId,
        settings: &'a Settings,
        reactions: &'a mut R,
        handle: &'a Handle<R::Object>,
    ) -> Result<Self, Failure> {
        let scheduler = SchedulerConfig {
            fast: settings.fast,
            replay: settings.replay.is_some(),
            timeout: settings.timeout,
            ..SchedulerConfig::default()
        };
        let (mut outlets, mut inlets) = (Outlets::default(), BTreeMap::new());
        let mode = if graph.federates().len() == 1 {
            Mode::Alone(Box::new(Scheduler::new(
                Arc::clone(graph),
                id,
                Waits::InCycles,
                scheduler,
            )))
        } else {
            let domain = Domain::join(&settings.domain, DomainOptions::default())?;
            outlets = Outlets::open(graph, id, &domain, settings.store)?;
            inlets = open_inlets(graph, id, &domain)?;
            let config = FederateConfig {
                scheduler,
                ..FederateConfig::default()
            };
            let (federate, peers) = match settings.coordination {
                Coordination::Centralised => (Federate::new(Arc::clone(graph), id, config), BTreeMap::new()),
                Coordination::Decentralised { offset } => {
                    let is_in_cycle = graph.federate(id).is_some_and(|info| info.cycle.is_some());
                    let within = offset.filter(|_| is_in_cycle).unwrap_or(Duration::ZERO);
                    let offsets = DecentralisedConfig {
                        offset,
                        // Other federates of the cycle open the tag up to an offset later, and answer after another
                        // offset.
                        offset_within_tag: within + within + within,
                        ..DecentralisedConfig::default()
                    };
                    let federate = Federate::decentralised(Arc::clone(graph), id, config, offsets);
                    let federate = federate.map_err(|needs| Failure::NeedsOffset(needs.to_string()))?;
                    (federate, open_peers(graph, id, &domain)?)
                }
            };
            // The inbox comes last: once it exists, the RTI greets the federate, and the answer means that all channels
            // exist.
            Mode::Coordinated(Box::new(Coordinated {
                federate,
                rti: Outbound::open(&domain, RTI_CHANNEL)?,
                inbox: inbox(&domain, &federate_channel(id))?,
                peers,
                connects_until: None,
                stops_at_start: false,
            }))
        };
        let outlets = Arc::new(outlets);
        handle.set_outlets(Some(Arc::clone(&outlets)));
        Ok(Driver {
            graph,
            id,
            settings,
            reactions,
            handle,
            mode,
            outlets,
            inlets,
            report: Report {
                reactions: vec![Spent::default(); graph.reactions().len()],
                trace: settings.trace.then(Trace::default),
                ..Report::default()
            },
            failure: None,
            recorded: None,
            has_stopped: false,
            is_flushed: true,
            spins: false,
            checked: time::Instant::now(),
        })
    }

    fn run(&mut self) -> Result<(), Failure> {
        if let Mode::Alone(scheduler) = &mut self.mode {
            let start = self.settings.clock.now();
            scheduler.start(start, Tag::START);
            scheduler.advance_to(Tag::FOREVER);
            if let Some(last) = self.settings.replay {
                Mode::stop(scheduler, last);
            }
            self.reactions.on_started(start);
        }
        loop {
            self.take_requests();
            self.feed();
            while let Some(next) = self.next() {
                match next {
                    Next::Run(tag, lag, ready) => {
                        self.flush()?;
                        self.react(Moment { tag, lag }, &ready)?;
                    }
                    Next::Federate(action) => self.act(action)?,
                    Next::Fault(refused) => self.fail(Failure::Fault(self.describe(&refused))),
                    Next::Ended => {
                        self.report.completed = Some(self.mode.scheduler().completed());
                        return Ok(());
                    }
                }
                self.take_requests();
                self.feed();
                self.look_for_interrupts()?;
                // A federate that is always behind must still read.
                self.read()?;
            }
            self.flush()?;
            if !self.read()? {
                self.wait()?;
                self.look_for_interrupts()?;
            }
        }
    }

    /// Passes recorded inputs to the scheduler some way ahead, in a replay.
    fn feed(&mut self) {
        if self.settings.replay.is_none() {
            return;
        }
        let Mode::Alone(scheduler) = &mut self.mode else { return };
        loop {
            if self.recorded.is_none() {
                self.recorded = self.reactions.next_recorded();
            }
            let is_next =
                |(tag, ..): &mut Recorded<R::Object>| scheduler.events() < AHEAD || *tag <= scheduler.next_tag();
            let Some((tag, element, object)) = self.recorded.take_if(is_next) else {
                return;
            };
            match scheduler.on_recorded(element, tag, object.map(Carried::Here)) {
                Ok(()) | Err(Refused::Stopped) => {}
                Err(refused) => {
                    let failure = Failure::Fault(self.describe(&refused));
                    return self.fail(failure);
                }
            }
        }
    }

    fn next(&mut self) -> Option<Next<Value<R>>> {
        if let Mode::Coordinated(this) = &mut self.mode {
            if !this.is_connected(&self.outlets) {
                // Messages sent now could be lost. All federates are there, so this takes only milliseconds.
                return None;
            }
            if !self.is_flushed && this.waiting() >= WAITING_MAX {
                // The readers are behind: this federate waits for them.
                return None;
            }
        }
        self.mode.poll(self.settings.clock.now())
    }

    /// Handles the requests of other threads.
    fn take_requests(&mut self) {
        if !self.handle.is_rung() {
            return;
        }
        let (scheduled, stop) = self.handle.take();
        for (action, object) in scheduled {
            // Before the start and after the end, nothing happens.
            match self
                .mode
                .on_physical(action, object.map(Carried::Here), self.settings.clock.now())
            {
                Ok(_) | Err(Refused::NotStarted | Refused::Stopped) => {}
                Err(refused) => self.fail(Failure::Fault(self.describe(&refused))),
            }
        }
        if stop {
            self.mode.request_stop();
        }
    }

    fn look_for_interrupts(&mut self) -> Result<(), Failure> {
        if self.checked.elapsed() < SLICE / 2 {
            return Ok(());
        }
        self.checked = time::Instant::now();
        if !self.reactions.is_interrupted() {
            return Ok(());
        }
        if self.has_stopped {
            return Err(Failure::Interrupted);
        }
        self.has_stopped = true;
        self.mode.request_stop();
        Ok(())
    }

    fn react(&mut self, moment: Moment, ready: &[Ready]) -> Result<(), Failure> {
        self.report.lag_max = self.report.lag_max.max(moment.lag);
        let reads = Reads(self.mode.scheduler());
        let ran = match self.reactions.run(moment, ready, &reads) {
            Ok(ran) => ran,
            Err(what) => {
                self.fail(Failure::Reaction(what));
                Vec::new()
            }
        };
        let mut ran = ran.into_iter();
        for ready in ready {
            let effects = match ran.next() {
                Some(ran) => {
                    self.note_reaction(moment.tag, *ready, ran.began, ran.ended);
                    ran.effects
                }
                None => Effects::default(),
            };
            let mut sets = Vec::with_capacity(effects.sets.len());
            for (output, object) in effects.sets {
                sets.push((output, self.carry(ready.reaction, output, object)?));
            }
            let effects = Effects {
                sets,
                schedules: effects
                    .schedules
                    .into_iter()
                    .map(|(action, delay, object)| (action, delay, object.map(Carried::Here)))
                    .collect(),
                stop: effects.stop,
            };
            if let Err(refused) = self.mode.finish(ready.reaction, effects, self.settings.clock.now()) {
                self.fail(Failure::Fault(self.describe(&refused)));
            }
        }
        Ok(())
    }

    fn note_reaction(&mut self, tag: Tag, ready: Ready, began: Instant, ended: Instant) {
        let Ready { reaction, late } = ready;
        if let Some(spent) = self.report.reactions.get_mut(reaction.0 as usize) {
            spent.add(ended.since(began), late);
        }
        self.trace(
            began,
            Event::Reaction {
                reaction,
                tag,
                late,
                ended,
            },
        );
    }

    fn trace(&mut self, at: Instant, event: Event) {
        if let Some(trace) = &mut self.report.trace {
            trace.push(at, event);
        }
    }

    /// Sends the value of an output ahead, if other federates read it.
    fn carry(&mut self, reaction: ReactionId, output: ElementId, object: R::Object) -> Result<Value<R>, Failure> {
        let reactions = &mut *self.reactions;
        let encode = |sender: &mut _| reactions.encode(reaction, output, &object, sender);
        let (wire, bytes) = match self.outlets.send(output, encode) {
            Ok(Some(sent)) => sent,
            Ok(None) => return Ok(Carried::Here(object)),
            Err(Failure::Reaction(what)) => {
                self.fail(Failure::Reaction(what));
                return Ok(Carried::Here(object));
            }
            Err(failure) => return Err(failure),
        };
        if self.report.trace.is_some() {
            self.trace(self.settings.clock.now(), Event::Sent { output, bytes });
        }
        Ok(Carried::Both(object, Arc::new(wire)))
    }

    fn act(&mut self, action: FederateAction<Value<R>>) -> Result<(), Failure> {
        match action {
            FederateAction::Send(envelope) => {
                if let Mode::Coordinated(this) = &mut self.mode {
                    let from = self.id;
                    this.rti.send(&ToRti { from, envelope })?;
                    self.is_flushed = false;
                }
            }
            FederateAction::SendToPeer { to, message } => {
                let Mode::Coordinated(this) = &mut self.mode else {
                    return Ok(());
                };
                if let Some(peer) = this.peers.get_mut(&to) {
                    peer.send(&ToFederate::Peer(message))?;
                    self.is_flushed = false;
                }
            }
            FederateAction::Violation {
                input,
                meant,
                reached,
                handled,
            } => {
                let violations = self.report.violations.entry(input).or_default();
                violations.count += 1;
                violations.handled += u64::from(handled.is_some());
                self.trace(self.settings.clock.now(), Event::Violated { input, meant });
                self.reactions.on_violation(Violation {
                    input,
                    meant,
                    reached,
                    handled,
                });
            }
            FederateAction::Started(at) => {
                if let Mode::Coordinated(this) = &mut self.mode {
                    this.connects_until = Some(time::Instant::now() + CONNECTING_MAX);
                    if this.stops_at_start {
                        this.federate.request_stop();
                    }
                }
                self.reactions.on_started(at);
            }
            FederateAction::Gone(federate) => {
                for name in names(self.graph, &[federate]) {
                    self.reactions.on_gone(&name);
                    self.report.gone.push(name);
                }
                if self.settings.stop_on_death {
                    self.mode.request_stop();
                }
            }
            FederateAction::StartFailed(missing) => return Err(Failure::Missing(names(self.graph, &missing))),
            FederateAction::Expelled => return Err(Failure::Expelled),
            // No federate comes back here. `Mode::poll` has handled the rest.
            FederateAction::Back(_) | FederateAction::Run { .. } | FederateAction::Fault(_) | FederateAction::Ended => {
            }
        }
        Ok(())
    }

    /// Sends waiting messages, and wakes the receivers that got something.
    fn flush(&mut self) -> Result<(), Failure> {
        if let Mode::Coordinated(this) = &mut self.mode {
            if !self.is_flushed {
                self.is_flushed = this.flush()?;
            }
        }
        Ok(())
    }

    /// Reads one message, if there is one.
    fn read(&mut self) -> Result<bool, Failure> {
        let Mode::Coordinated(this) = &mut self.mode else {
            return Ok(false);
        };
        if this.is_behind(self.settings) {
            return Ok(false);
        }
        let Some(payload) = this.inbox.try_recv()? else {
            return Ok(false);
        };
        let now = self.settings.clock.now();
        match decode::<ToFederate<Value<R>>>(&payload) {
            Some(ToFederate::Rti(mut envelope)) => {
                self.complete(&mut envelope, now)?;
                if let Mode::Coordinated(this) = &mut self.mode {
                    this.federate.on_message(envelope, now);
                }
            }
            Some(ToFederate::Peer(mut message)) => {
                if let PeerMessage::Value { input, tag, value } = &mut message {
                    self.arrive(*input, *tag, value, now)?;
                }
                if let Mode::Coordinated(this) = &mut self.mode {
                    this.federate.on_peer_message(message, now);
                }
            }
            Some(ToFederate::Stop) => self.mode.request_stop(),
            // All processes here have the same user and version.
            None => self.fail(Failure::Fault("a message that no coordinator writes".to_owned())),
        }
        Ok(true)
    }

    /// Completes the value of a message from the RTI, if this federate accepts the message. A payload is taken once,
    /// not by dropped messages, such as those of an earlier RTI or repeated ones.
    fn complete(&mut self, envelope: &mut Envelope<Down<Value<R>>>, now: Instant) -> Result<(), Failure> {
        let takes = matches!(&self.mode, Mode::Coordinated(this) if this.federate.takes(envelope));
        match &mut envelope.body {
            Down::Message(Message {
                input,
                tag,
                value: Some(value),
                ..
            }) if takes => self.arrive(*input, *tag, value, now),
            Down::Grant(tag) | Down::Provisional(tag) => {
                self.trace(now, Event::Granted(*tag));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Finds the payload to which a value refers, and records how long it took to arrive.
    fn arrive(&mut self, input: ElementId, tag: Tag, value: &mut Value<R>, now: Instant) -> Result<(), Failure> {
        self.note_arrival(input, tag, now);
        let Carried::Away(wire) = value else {
            return Ok(());
        };
        let kept = match &**wire {
            Wire::Inline { .. } => Some(Kept::Inline(Arc::clone(wire))),
            Wire::Payload { output, number } => match self.inlets.get_mut(output) {
                Some(inlet) => inlet.payload(*number)?.map(Kept::Payload),
                None => None,
            },
        };
        let Some(received) = kept.map(Received) else {
            let what = "a payload that its message refers to is lost".to_owned();
            self.fail(Failure::Fault(what));
            return Ok(());
        };
        if self.report.trace.is_some() {
            let parts = (0..received.parts()).filter_map(|index| received.part(index));
            let bytes = received.header().len() + parts.map(<[u8]>::len).sum::<usize>();
            self.trace(now, Event::Arrived { input, tag, bytes });
        }
        *value = Carried::From(received);
        Ok(())
    }

    fn note_arrival(&mut self, input: ElementId, tag: Tag, now: Instant) {
        let link = self.graph.element(input).and_then(|element| element.from);
        let times = self.mode.scheduler().elapsed(now).zip(tag.time()).zip(link);
        if let Some(((elapsed, time), link)) = times.filter(|_| !self.settings.fast) {
            let sent = if link.physical {
                time
            } else {
                time.saturating_sub(link.after)
            };
            let lag = elapsed.saturating_sub(sent);
            self.report.arrivals.entry(input).or_default().add(lag);
        }
    }

    /// Sleeps until something arrives or is due.
    fn wait(&mut self) -> Result<(), Failure> {
        let began = time::Instant::now();
        let is_connecting = matches!(&self.mode, Mode::Coordinated(this) if this.connects_until.is_some());
        let longest = if self.is_flushed && !is_connecting {
            SLICE
        } else {
            RETRY
        };
        let due = self
            .mode
            .next_deadline()
            .map(|at| at.since(self.settings.clock.now()).as_nanos());
        let longest = due.map_or(longest, |due| longest.min(time::Duration::from_nanos(due)));
        let until = began + longest;
        if self.spins {
            while began.elapsed() < SPIN.min(longest) {
                if self.is_ready() {
                    return Ok(());
                }
                std::thread::yield_now();
            }
        }
        let inbox = match &mut self.mode {
            Mode::Alone(_) => None,
            Mode::Coordinated(this) => Some(&mut this.inbox),
        };
        let is_ready = inbox.map(|inbox| (inbox.arm(), inbox));
        if is_ready.as_ref().is_none_or(|(is_ready, _)| !is_ready) && !self.handle.is_rung() {
            let watched = [self.handle.as_fd()].into_iter();
            let watched: Vec<_> = watched.chain(is_ready.iter().map(|(_, inbox)| inbox.as_fd())).collect();
            wait_any(&watched, Some(until)).map_err(|source| Error::System {
                what: "wait for messages",
                source,
            })?;
        }
        self.spins = began.elapsed() <= SPIN;
        Ok(())
    }

    fn is_ready(&mut self) -> bool {
        let has_message = match &mut self.mode {
            Mode::Alone(_) => false,
            Mode::Coordinated(this) => this.inbox.has_payload(),
        };
        has_message || self.handle.is_rung()
    }

    /// Ends the program because of this failure, unless it has already failed.
    fn fail(&mut self, failure: Failure) {
        self.failure.get_or_insert(failure);
        self.mode.request_stop();
    }

    /// Sends the last messages before the links close.
    fn flush_at_end(&mut self) {
        let until = time::Instant::now() + SLICE;
        if let Mode::Coordinated(this) = &mut self.mode {
            while time::Instant::now() < until && matches!(this.flush(), Ok(false)) {
                std::thread::sleep(RETRY);
            }
        }
    }

    /// Returns the text of a refusal, with names.
    fn describe(&self, refused: &Refused) -> String {
        let element = match refused {
            Refused::Unknown(element)
            | Refused::QueueFull(element)
            | Refused::TooManyMicrosteps(element)
            | Refused::Undeclared { element, .. }
            | Refused::Tardy { input: element, .. }
            | Refused::BadTag { input: element, .. } => self.graph.element(*element),
            _ => None,
        };
        match element {
            Some(element) => format!("{}: {refused}", element.name),
            None => refused.to_string(),
        }
    }
}

impl Inlet {
    /// Returns the payload with this number; `None` if it was already taken.
    fn payload(&mut self, number: u64) -> Result<Option<Arc<Payload>>, Failure> {
        loop {
            match &mut self.latest {
                Some((latest, ..)) if *latest > number => return Ok(None),
                Some((latest, payload, left)) if *latest == number => {
                    let payload = Arc::clone(payload);
                    *left -= 1;
                    if *left == 0 {
                        self.latest = None;
                    }
                    return Ok(Some(payload));
                }
                _ => {}
            }
            let Some(payload) = self.receiver.try_recv()? else {
                return Ok(None);
            };
            let reserved = payload
                .header()
                .get(..HEADER_RESERVED)
                .and_then(|bytes| bytes.try_into().ok());
            let latest = reserved.map_or(0, u64::from_le_bytes);
            self.latest = Some((latest, Arc::new(payload), self.links));
        }
    }
}

/// Returns the links to the federates that read this one's outputs.
fn open_peers(graph: &Graph, id: FederateId, domain: &Domain) -> Result<BTreeMap<FederateId, Outbound>, Error> {
    let elements = graph.elements().iter().filter(|element| element.federate == id);
    let readers = elements.flat_map(|element| &element.to).map(|link| link.federate);
    let readers: BTreeSet<_> = readers.filter(|reader| *reader != id).collect();
    let links = readers
        .into_iter()
        .map(|reader| Ok((reader, Outbound::open(domain, &federate_channel(reader))?)));
    links.collect()
}

fn open_inlets(graph: &Graph, id: FederateId, domain: &Domain) -> Result<BTreeMap<ElementId, Inlet>, Error> {
    let mut links: BTreeMap<ElementId, usize> = BTreeMap::new();
    let elements = graph.elements().iter().filter(|element| element.federate == id);
    for link in elements.filter_map(|element| element.from.filter(|link| link.federate != id)) {
        *links.entry(link.other).or_default() += 1;
    }
    let opened = links.into_iter().map(|(output, links)| {
        let options = ReceiverOptions {
            spin: time::Duration::ZERO,
        };
        let receiver = domain.receiver(&output_channel(output), options)?;
        let latest = None;
        Ok((
            output,
            Inlet {
                receiver,
                links,
                latest,
            },
        ))
    });
    opened.collect()
}
