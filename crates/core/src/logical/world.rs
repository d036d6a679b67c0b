//! A program on federates under RTIs, in virtual time, with random delays, clock errors and deaths from a seed. The
//! federates are granted tags, or advance by themselves.
//!
//! Each link delivers in order, as the protocol demands; messages of different links may overtake each other.
//! Everything that the reactions saw is recorded, to be compared with the reference.

use super::decentralised::PeerMessage;
use super::failover_epoch as epoch;
use super::graph::ElementKind;
use super::protocol::{Down, Envelope, Up};
use super::reference::{Brains, Death, Given, Outside, Random, Record};
use super::scheduler::Refused;
use super::*;
use crate::{Duration, Instant};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::sync::Arc;

const MS: u64 = 1_000_000;

/// The events of a run.
#[derive(Clone, Debug)]
enum Event {
    Wake(usize),
    WakeRti(usize),
    Finish(usize, ReactionId, Effects<u64>),
    Physical(usize, ElementId, u64),
    ToFederate(usize, usize, Envelope<Down<u64>>),
    ToRti(usize, usize, Envelope<Up<u64>>),
    ToPeer(usize, usize, PeerMessage<u64>),
    RequestStop(usize),
    Kill(usize),
    KillRti(usize),
    NewRti,
    Gone(usize, usize),
}

#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    pub fast: bool,
    /// The longest time on a link.
    pub delay_max_ns: u64,
    /// The longest time that a reaction takes.
    pub reaction_max_ns: u64,
    /// The greatest offset of a clock.
    pub clock_error_ns: u64,
    pub deaths: u64,
    pub new_rtis: u64,
    /// Whether an RTI survives the arrival of a new one.
    pub rtis_survive: bool,
    /// The time of the request for the end, if `somebody_asks`.
    pub stop_at_ns: u64,
    pub somebody_asks: bool,
    pub timeout: Option<Duration>,
    /// For decentralised federates, the offset of members of zero-delay cycles, and the offset of others.
    pub offsets: Option<(Duration, Option<Duration>)>,
}

struct Site {
    federate: Federate<u64>,
    brains: Brains,
    offset_ns: u64,
    is_alive: bool,
    has_ended: bool,
    wake_at: u64,
}

struct Center {
    rti: Rti<u64>,
    is_alive: bool,
    wake_at: u64,
}

/// When the last message of a link arrives, and when the link breaks.
#[derive(Clone, Copy)]
struct Link {
    last: u64,
    cut: u64,
}

pub struct World {
    pub graph: Arc<Graph>,
    scenario: Scenario,
    random: Random,
    now: u64,
    events: BinaryHeap<Reverse<(u64, u64)>>,
    queue: BTreeMap<u64, Event>,
    event_next: u64,
    sites: Vec<Site>,
    centers: Vec<Center>,
    links: BTreeMap<(usize, usize, bool), Link>,
    outside: BTreeSet<Outside>,
    arrived: BTreeMap<(Tag, ElementId), usize>,
    /// Arrived messages as (receiver, sender, number).
    seen: BTreeSet<(usize, FederateId, u64)>,
    /// When the last message from one federate to another arrives.
    peers: BTreeMap<(usize, usize), u64>,
    /// The number of messages that arrived after their tag.
    late: BTreeMap<(Tag, ElementId), usize>,
    /// The tags at which reactions have to handle some of these, per site.
    handled: BTreeSet<(usize, Tag, ElementId)>,
    /// Whether a federate died before the start.
    start_failed: bool,
    /// When a federate last reached another tag.
    moved_at: u64,
    /// How many messages were sent, by kind.
    pub counts: BTreeMap<&'static str, u64>,
}

fn federate(graph: &Arc<Graph>, id: FederateId, config: FederateConfig, scenario: Scenario) -> Federate<u64> {
    let Some((in_cycles, otherwise)) = scenario.offsets else {
        return Federate::new(Arc::clone(graph), id, config);
    };
    let in_cycle = graph.federate(id).is_some_and(|info| info.cycle.is_some());
    let offset = if in_cycle { Some(in_cycles) } else { otherwise };
    let offsets = DecentralisedConfig {
        offset,
        offset_within_tag: offset.unwrap_or(Duration::ZERO) * 3,
        ..DecentralisedConfig::default()
    };
    Federate::decentralised(Arc::clone(graph), id, config, offsets).unwrap()
}

/// The result of a run.
pub struct Outcome {
    pub records: Vec<Record>,
    pub given: Given,
    pub stop: Tag,
    pub takeovers: usize,
    pub violations: usize,
    pub handled: usize,
    pub counts: BTreeMap<&'static str, u64>,
}

impl World {
    pub fn new(graph: Arc<Graph>, scenario: Scenario, mut random: Random) -> Self {
        let sites = graph.federate_ids().map(|id| {
            let config = FederateConfig {
                scheduler: SchedulerConfig {
                    fast: scenario.fast,
                    timeout: scenario.timeout,
                    ..SchedulerConfig::default()
                },
                null_interval: Duration::from_millis(2),
                ..FederateConfig::default()
            };
            Site {
                federate: federate(&graph, id, config, scenario),
                brains: Brains::new(),
                offset_ns: random.below(scenario.clock_error_ns + 1),
                is_alive: true,
                has_ended: false,
                wake_at: u64::MAX,
            }
        });
        let mut world = World {
            sites: sites.collect(),
            graph,
            scenario,
            random,
            now: 0,
            events: BinaryHeap::new(),
            queue: BTreeMap::new(),
            event_next: 0,
            centers: Vec::new(),
            links: BTreeMap::new(),
            outside: BTreeSet::new(),
            arrived: BTreeMap::new(),
            seen: BTreeSet::new(),
            peers: BTreeMap::new(),
            late: BTreeMap::new(),
            handled: BTreeSet::new(),
            start_failed: false,
            moved_at: 0,
            counts: BTreeMap::new(),
        };
        world.plan();
        world
    }

    fn plan(&mut self) {
        let (count, stop_at) = (self.sites.len() as u64, self.scenario.stop_at_ns);
        self.at(0, Event::NewRti);
        let asks = self.random.below(count) as usize;
        if self.scenario.somebody_asks {
            self.at(stop_at, Event::RequestStop(asks));
            // Finally every federate asks, in case the first one is dead.
            for site in 0..self.sites.len() {
                self.at(stop_at * 2, Event::RequestStop(site));
                self.at(stop_at * 2 + 700 * MS, Event::RequestStop(site));
            }
        }
        for _ in 0..self.scenario.deaths {
            let (at, site) = (self.random.below(stop_at * 3 / 2), self.random.below(count) as usize);
            self.at(at, Event::Kill(site));
        }
        for _ in 0..self.scenario.new_rtis {
            let at = self.random.below(stop_at * 3 / 2);
            self.at(at, Event::NewRti);
        }
        let elements: Vec<_> = self.graph.elements().iter().map(|e| (e.kind, e.federate)).collect();
        for (id, (kind, federate)) in elements.into_iter().enumerate() {
            if matches!(kind, ElementKind::Physical(_)) {
                for _ in 0..self.random.below(6) {
                    let (at, value) = (self.random.below(stop_at * 5 / 4), self.random.below(1000));
                    let id = ElementId(id as u32);
                    self.at(at, Event::Physical(usize::from(federate.0), id, value));
                }
            }
        }
    }

    fn at(&mut self, at: u64, event: Event) {
        self.events.push(Reverse((at.max(self.now), self.event_next)));
        self.queue.insert(self.event_next, event);
        self.event_next += 1;
    }

    fn clock(&self, site: usize) -> Instant {
        Instant::from_nanos(1_000_000 * MS + self.now + self.sites[site].offset_ns)
    }

    fn rti_clock(&self) -> Instant {
        Instant::from_nanos(1_000_000 * MS + self.now)
    }

    /// Runs until all have ended.
    pub fn run(mut self) -> Result<Outcome, String> {
        // A tag may take a federate a tenth of a second, so only a long time without progress means a hang.
        let (idle_max, limit) = (30_000 * MS, 600_000 * MS);
        let (mut at_once, mut asks_at) = (0, idle_max / 2);
        while let Some(Reverse((at, id))) = self.events.pop() {
            at_once = if at == self.now { at_once + 1 } else { 0 };
            if at_once > 200_000 {
                return Err(format!("spins: {:?}", self.queue.get(&id)));
            }
            self.now = at;
            if self.start_failed || self.sites.iter().all(|site| site.has_ended || !site.is_alive) {
                let ended = self.sites.iter().filter(|site| site.is_alive);
                let stops: BTreeSet<_> = ended.map(|site| site.federate.scheduler().last()).collect();
                if stops.len() > 1 && !self.start_failed {
                    return Err(format!("two last tags: {stops:?}"));
                }
                let unhandled = |(site, tag, tardy): &&(usize, Tag, ElementId)| {
                    let site = &self.sites[*site];
                    let is_over = !site.is_alive || *tag > site.federate.scheduler().last();
                    !is_over
                        && !self
                            .outside
                            .iter()
                            .any(|(at, element, _)| (at, element) == (tag, tardy))
                };
                if let Some(unhandled) = self.handled.iter().find(unhandled) {
                    return Err(format!("a late value was not handled: {unhandled:?}"));
                }
                return Ok(self.outcome());
            }
            if at > limit || at > self.moved_at + idle_max {
                break;
            }
            if let Some(event) = self.queue.remove(&id) {
                self.handle(event)?;
            }
            // Without the values of dead federates, a program may run forever.
            if at > asks_at && self.scenario.deaths > 0 && at < self.moved_at + 1000 * MS {
                asks_at = u64::MAX;
                for site in 0..self.sites.len() {
                    self.at(at, Event::RequestStop(site));
                }
            }
        }
        let states = self.sites.iter().map(|site| {
            let s = site.federate.scheduler();
            (
                site.is_alive,
                s.is_between_tags(),
                s.reached(),
                s.next_tag(),
                s.grants(),
                s.last(),
            )
        });
        let rti = self.centers.last().map(|center| center.rti.describe());
        let events = self.queue.len();
        Err(format!(
            "hangs: {:?}\nrti {rti:#?} {events}",
            states.collect::<Vec<_>>()
        ))
    }

    fn handle(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::Wake(site) => {
                if self.sites[site].wake_at <= self.now {
                    self.sites[site].wake_at = u64::MAX;
                }
                self.drive(site)
            }
            Event::Finish(site, reaction, effects) => {
                let now = self.clock(site);
                let finished = self.sites[site].federate.finish(reaction, effects, now);
                finished.map_err(|e| e.to_string())?;
                self.drive(site)
            }
            Event::Physical(site, action, value) => {
                let now = self.clock(site);
                match self.sites[site].federate.on_physical(action, Some(value), now) {
                    Ok(_) | Err(Refused::NotStarted | Refused::Stopped) => self.drive(site),
                    Err(refused) => Err(refused.to_string()),
                }
            }
            Event::ToFederate(_, site, envelope) => {
                let counts = self.sites[site].federate.epoch() == Some(envelope.epoch);
                if let Down::Message(message) = &envelope.body {
                    if counts && message.value.is_some() && self.seen.insert((site, message.from, message.number)) {
                        *self.arrived.entry((message.tag, message.input)).or_insert(0) += 1;
                    }
                }
                let now = self.clock(site);
                self.sites[site].federate.on_message(envelope, now);
                self.drive(site)
            }
            Event::ToPeer(_, site, message) => {
                if let PeerMessage::Value { input, tag, .. } = &message {
                    if self.sites[site].is_alive && !self.sites[site].has_ended {
                        *self.arrived.entry((*tag, *input)).or_insert(0) += 1;
                    }
                }
                let now = self.clock(site);
                self.sites[site].federate.on_peer_message(message, now);
                self.drive(site)
            }
            Event::RequestStop(site) => {
                self.sites[site].federate.request_stop();
                self.drive(site)
            }
            Event::Kill(site) => {
                self.kill(site);
                Ok(())
            }
            Event::NewRti => self.new_rti(),
            Event::KillRti(center) => {
                self.centers[center].is_alive = false;
                Ok(())
            }
            Event::WakeRti(center) => {
                if self.centers[center].wake_at <= self.now {
                    self.centers[center].wake_at = u64::MAX;
                }
                let now = self.rti_clock();
                self.centers[center].rti.on_deadline(now);
                self.drive_rti(center)
            }
            Event::ToRti(center, site, envelope) => {
                let now = self.rti_clock();
                let from = FederateId(site as u16);
                self.centers[center].rti.on_message(from, envelope, now);
                self.drive_rti(center)
            }
            Event::Gone(center, site) => {
                let now = self.rti_clock();
                self.centers[center].rti.on_gone(FederateId(site as u16), now);
                self.drive_rti(center)
            }
        }
    }

    fn delay(&mut self, max_ns: u64) -> u64 {
        // Mostly short, sometimes long.
        if self.random.one_in(3) {
            self.random.below(max_ns + 1)
        } else {
            self.random.below(max_ns / 10 + 1)
        }
    }

    /// Returns when the next message of a link arrives; `None` if the link breaks before.
    fn deliver(&mut self, center: usize, site: usize, up: bool) -> Option<u64> {
        let delay = self.delay(self.scenario.delay_max_ns);
        let now = self.now;
        let link = self
            .links
            .entry((center, site, up))
            .or_insert(Link { last: 0, cut: u64::MAX });
        link.last = link.last.max(now + delay);
        (link.last < link.cut).then_some(link.last)
    }

    fn drive(&mut self, site: usize) -> Result<(), String> {
        let now = self.clock(site);
        if !self.sites[site].is_alive || self.sites[site].has_ended {
            return Ok(());
        }
        let before = self.sites[site].federate.scheduler().reached();
        while let Some(action) = self.sites[site].federate.poll(now) {
            match action {
                FederateAction::Send(envelope) => {
                    *self.counts.entry(kind_of(&envelope.body)).or_insert(0) += 1;
                    let center = envelope.epoch.round as usize - 1;
                    if let Some(at) = self.deliver(center, site, true) {
                        self.at(at, Event::ToRti(center, site, envelope));
                    }
                }
                FederateAction::Run { tag, reactions, .. } => {
                    self.note_outside(site, tag);
                    for ready in reactions {
                        let Site { federate, brains, .. } = &mut self.sites[site];
                        let s = federate.scheduler();
                        let read = |element| s.is_present(element).then(|| s.value(element).copied());
                        let effects = brains.run(&self.graph, ready.reaction, tag, read);
                        // Without the clock, only reactions take time.
                        let least = if self.scenario.fast { MS / 10 } else { 0 };
                        let at = self.now + least + self.delay(self.scenario.reaction_max_ns);
                        self.at(at, Event::Finish(site, ready.reaction, effects));
                    }
                }
                FederateAction::SendToPeer { to, message } => {
                    let (delay, to) = (self.delay(self.scenario.delay_max_ns), usize::from(to.0));
                    let last = self.peers.entry((site, to)).or_insert(0);
                    *last = (self.now + delay).max(*last);
                    let at = *last;
                    self.at(at, Event::ToPeer(site, to, message));
                }
                FederateAction::Violation {
                    input, meant, handled, ..
                } => {
                    *self.late.entry((meant, input)).or_insert(0) += 1;
                    let tardy = self.graph.element(input).and_then(|element| element.tardy);
                    self.handled
                        .extend(handled.zip(tardy).map(|(tag, tardy)| (site, tag, tardy)));
                }
                FederateAction::Ended => self.sites[site].has_ended = true,
                FederateAction::Started(_) | FederateAction::Gone(_) | FederateAction::Back(_) => {}
                FederateAction::StartFailed(_) => {}
                other => return Err(format!("federate {site}: {other:?}")),
            }
        }
        if self.sites[site].federate.scheduler().reached() != before {
            self.moved_at = self.now;
        }
        if let Some(at) = self.sites[site].federate.next_deadline() {
            let at = at
                .as_nanos()
                .saturating_sub(1_000_000 * MS + self.sites[site].offset_ns)
                .max(self.now);
            if at < self.sites[site].wake_at {
                self.sites[site].wake_at = at;
                self.at(at, Event::Wake(site));
            }
        }
        Ok(())
    }

    /// Records the physical events and late values that are present now, because the reference cannot know them.
    fn note_outside(&mut self, site: usize, tag: Tag) {
        let s = self.sites[site].federate.scheduler();
        for (id, element) in self.graph.elements().iter().enumerate() {
            let id = ElementId(id as u32);
            let is_outside = matches!(element.kind, ElementKind::Physical(_) | ElementKind::Tardy)
                || element.from.is_some_and(|link| link.physical);
            if usize::from(element.federate.0) == site && is_outside && s.is_present(id) {
                self.outside.insert((tag, id, s.value(id).copied()));
            }
        }
    }

    fn drive_rti(&mut self, center: usize) -> Result<(), String> {
        if !self.centers[center].is_alive {
            return Ok(());
        }
        while let Some(action) = self.centers[center].rti.poll() {
            match action {
                RtiAction::Send { to, envelope } => {
                    *self.counts.entry("down").or_insert(0) += 1;
                    let site = usize::from(to.0);
                    if let Some(at) = self.deliver(center, site, false) {
                        self.at(at, Event::ToFederate(center, site, envelope));
                    }
                }
                RtiAction::Runs(_) | RtiAction::Gone(_) | RtiAction::Over | RtiAction::Deposed(_) => {}
                RtiAction::StartFailed(_) if center + 1 < self.centers.len() => {}
                RtiAction::StartFailed(_) if self.sites.iter().any(|site| !site.is_alive) => self.start_failed = true,
                other => return Err(format!("rti {center}: {other:?}")),
            }
        }
        if let Some(at) = self.centers[center].rti.next_deadline() {
            let at = at.as_nanos().saturating_sub(1_000_000 * MS).max(self.now);
            if at < self.centers[center].wake_at {
                self.centers[center].wake_at = at;
                self.at(at, Event::WakeRti(center));
            }
        }
        Ok(())
    }

    fn kill(&mut self, site: usize) {
        if !self.sites[site].is_alive || self.sites[site].has_ended {
            return;
        }
        self.sites[site].is_alive = false;
        for center in 0..self.centers.len() {
            // Some of its last messages still arrive.
            let cut = self.now + self.random.below(self.scenario.delay_max_ns + 1);
            self.cut(center, site, true, cut);
            let noticed = cut.max(self.now) + self.random.below(2 * MS);
            self.at(noticed, Event::Gone(center, site));
        }
        for to in 0..self.sites.len() {
            let cut = self.now + self.random.below(self.scenario.delay_max_ns + 1);
            self.lose(
                cut,
                |event| matches!(event, Event::ToPeer(from, other, _) if (*from, *other) == (site, to)),
            );
        }
    }

    /// Breaks a link. Messages that would arrive from then on never do.
    fn cut(&mut self, center: usize, site: usize, up: bool, cut: u64) {
        let link = self.links.entry((center, site, up)).or_insert(Link { last: 0, cut });
        link.cut = cut.min(link.cut);
        self.lose(cut, |event| match event {
            Event::ToRti(c, s, _) => up && (*c, *s) == (center, site),
            Event::ToFederate(c, s, _) => !up && (*c, *s) == (center, site),
            _ => false,
        });
    }

    /// Removes the events that `is_hit` selects, from `cut` on.
    fn lose(&mut self, cut: u64, is_hit: impl Fn(&Event) -> bool) {
        let lost: Vec<_> = self
            .events
            .iter()
            .filter(|Reverse((at, _))| *at >= cut)
            .map(|Reverse((_, id))| *id)
            .collect();
        for id in lost {
            if self.queue.get(&id).is_some_and(&is_hit) {
                self.queue.remove(&id);
            }
        }
    }

    fn new_rti(&mut self) -> Result<(), String> {
        let old = self.centers.len().checked_sub(1);
        if let Some(old) = old.filter(|_| !self.scenario.rtis_survive) {
            for site in 0..self.sites.len() {
                for up in [false, true] {
                    let cut = self.now + self.random.below(self.scenario.delay_max_ns + 1);
                    self.cut(old, site, up, cut);
                }
            }
            self.at(self.now, Event::KillRti(old));
        }
        let center = self.centers.len();
        let config = RtiConfig {
            report_max: Duration::from_millis(300),
            start_delay: Duration::from_millis(5),
            stop_reply_max: Duration::from_millis(500),
            is_decentralised: self.scenario.offsets.is_some(),
        };
        let now = self.rti_clock();
        let patience = 4 * self.random.below(2) as u32;
        let rti = Rti::new(Arc::clone(&self.graph), epoch(center as u64 + 1), config, now);
        self.centers.push(Center {
            rti: rti.with_patience(patience),
            is_alive: true,
            wake_at: u64::MAX,
        });
        for site in 0..self.sites.len() {
            if self.sites[site].is_alive {
                self.centers[center].rti.on_connected(FederateId(site as u16), now);
            } else if self.random.one_in(2) {
                self.centers[center].rti.on_gone(FederateId(site as u16), now);
            }
        }
        self.drive_rti(center)
    }

    fn outcome(&self) -> Outcome {
        let mut records: Vec<_> = self.sites.iter().flat_map(|site| site.brains.records.clone()).collect();
        records.sort_unstable();
        let stops = self.sites.iter().map(|site| site.federate.scheduler().last());
        let stop = stops.min().filter(|_| !self.start_failed).unwrap_or(Tag::NEVER);
        // Dead federates may have been ahead.
        records.retain(|(tag, ..)| *tag <= stop);
        let mut arrived = self.arrived.clone();
        for (message, late) in &self.late {
            if let Some(arrived) = arrived.get_mut(message) {
                *arrived -= late;
            }
        }
        let dead = self.sites.iter().enumerate().filter(|(_, site)| !site.is_alive);
        let deaths = dead.map(|(at, site)| {
            let ran = site
                .brains
                .records
                .iter()
                .map(|(tag, reaction, _)| (*tag, *reaction))
                .collect();
            let arrived = arrived.clone();
            (
                FederateId(at as u16),
                Death {
                    ran,
                    arrived,
                    knew_stop: site.federate.scheduler().last() == stop,
                },
            )
        });
        Outcome {
            records,
            given: Given {
                outside: self.outside.iter().copied().collect(),
                deaths: deaths.collect(),
                in_time: self
                    .late
                    .keys()
                    .map(|late| (*late, arrived.get(late).copied().unwrap_or(0)))
                    .collect(),
            },
            stop,
            takeovers: self.centers.len() - 1,
            violations: self.late.values().sum(),
            handled: self.handled.len(),
            counts: self.counts.clone(),
        }
    }
}

fn kind_of(up: &Up<u64>) -> &'static str {
    match up {
        Up::NextEvent { is_bound: true, .. } => "null",
        Up::NextEvent { .. } => "next",
        Up::Completed(_) => "completed",
        Up::Message(message) if message.value.is_none() => "absent",
        Up::Message(_) => "message",
        _ => "other",
    }
}
