//! Searches exhaustively the orders in which events can happen to small programs under centralised coordination.
//!
//! Each step delivers the next message of one link. Three events can happen once each, at any moment, if the bounds
//! allow it. A federate asks for the end. The RTI is replaced, and everything in flight is lost. A federate dies with
//! its messages in flight. Because messages can be delivered before, every prefix of the messages in flight can
//! survive. States seen before are not searched again. In each state without a further step, all must have ended, and
//! the records must equal the reference. These programs end by a request, by their time limit, or by themselves once no
//! federate has an event.

use super::failover_epoch as epoch;
use super::program::{ActionKind, Connection, Program, Reaction, Reactor};
use super::protocol::{Down, Envelope, Up};
use super::reference::{self, Brains, Death, Given, Kinds, Random};
use super::scheduler::Ready;
use super::tests::ms;
use super::*;
use crate::{Duration, Instant};
use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::hash::{Hash, Hasher};
use std::rc::Rc;
use std::sync::Arc;

const NOW: Instant = Instant::from_nanos(1_000_000_000);

#[derive(Clone, Hash)]
struct Site {
    federate: Federate<u64>,
    brains: Brains,
    up: VecDeque<Envelope<Up<u64>>>,
    down: VecDeque<Envelope<Down<u64>>>,
    is_alive: bool,
    /// Whether the end of the link has still to be noticed.
    is_leaving: bool,
    has_ended: bool,
    /// The running reactions, if reactions take time.
    running: Option<(Tag, Vec<Ready>)>,
    arrived: BTreeMap<(Tag, ElementId), usize>,
    received: BTreeSet<(FederateId, u64)>,
}

/// A state of the search. Sites are shared between states, because a step changes few.
#[derive(Clone, Hash)]
struct State {
    sites: Vec<Rc<Site>>,
    rti: Rc<Rti<u64>>,
    round: u64,
    /// The patience of each RTI.
    patience: u32,
    stops: u8,
    takeovers: u8,
    deaths: u8,
}

#[derive(Clone, Copy, Debug)]
struct Bounds {
    stops: u8,
    takeovers: u8,
    deaths: u8,
    timeout: Option<Duration>,
    /// The patience of each RTI.
    patience: u32,
    /// The site whose reactions take time, so that other events may happen meanwhile.
    slow: Option<usize>,
    states_max: usize,
}

#[derive(Debug, Default)]
struct Found {
    states: usize,
    ends: usize,
    records: usize,
    /// How often a federate was told that no other waits for its next events.
    spared: usize,
    /// How often that was revoked after the federate had left out a report.
    recalled: usize,
    cut_short: bool,
}

#[derive(Clone, Copy, Debug)]
enum Move {
    Up(usize),
    Down(usize),
    Finish(usize),
    Stop(usize),
    Takeover,
    Die(usize),
    NoticeEnd(usize),
}

impl State {
    fn new(graph: &Arc<Graph>, bounds: Bounds) -> Self {
        let config = || FederateConfig {
            scheduler: SchedulerConfig {
                fast: true,
                timeout: bounds.timeout,
                ..SchedulerConfig::default()
            },
            ..FederateConfig::default()
        };
        let site = |id| Site {
            federate: Federate::new(Arc::clone(graph), id, config()),
            brains: Brains::new(),
            up: VecDeque::new(),
            down: VecDeque::new(),
            is_alive: true,
            is_leaving: false,
            has_ended: false,
            running: None,
            arrived: BTreeMap::new(),
            received: BTreeSet::new(),
        };
        let mut state = State {
            sites: graph.federate_ids().map(|id| Rc::new(site(id))).collect(),
            rti: Rc::new(rti(graph, 1, bounds.patience)),
            round: 1,
            patience: bounds.patience,
            stops: bounds.stops,
            takeovers: bounds.takeovers,
            deaths: bounds.deaths,
        };
        state.connect();
        state
    }

    fn connect(&mut self) {
        for at in 0..self.sites.len() {
            let id = FederateId(at as u16);
            let rti = Rc::make_mut(&mut self.rti);
            if self.sites[at].is_alive && !self.sites[at].has_ended {
                rti.on_connected(id, NOW);
            } else {
                rti.on_gone(id, NOW);
            }
        }
        self.drive_rti();
    }

    fn moves(&self) -> Vec<Move> {
        let mut moves = Vec::new();
        for (at, site) in self.sites.iter().enumerate() {
            if !site.up.is_empty() {
                moves.push(Move::Up(at));
            } else if site.is_leaving {
                moves.push(Move::NoticeEnd(at));
            }
            if !site.is_alive || site.has_ended {
                continue;
            }
            if !site.down.is_empty() {
                moves.push(Move::Down(at));
            }
            if site.running.is_some() {
                moves.push(Move::Finish(at));
            }
            if site.federate.scheduler().started_at().is_some() {
                if self.stops > 0 {
                    moves.push(Move::Stop(at));
                }
                if self.deaths > 0 {
                    moves.push(Move::Die(at));
                }
            }
        }
        let runs = self
            .sites
            .iter()
            .all(|site| site.federate.scheduler().started_at().is_some());
        if self.takeovers > 0 && runs {
            moves.push(Move::Takeover);
        }
        moves
    }

    fn after(&self, graph: &Arc<Graph>, step: Move, slow: Option<usize>) -> State {
        let mut next = self.clone();
        match step {
            Move::Up(at) => {
                let envelope = Rc::make_mut(&mut next.sites[at]).up.pop_front().unwrap();
                Rc::make_mut(&mut next.rti).on_message(FederateId(at as u16), envelope, NOW);
                next.drive_rti();
            }
            Move::Down(at) => {
                let site = Rc::make_mut(&mut next.sites[at]);
                let envelope = site.down.pop_front().unwrap();
                if let Down::Message(message) = &envelope.body {
                    let is_new = site.received.insert((message.from, message.number));
                    let from = usize::from(message.from.0);
                    if is_new && message.value.is_some() {
                        let sender = Rc::make_mut(&mut next.sites[from]);
                        *sender.arrived.entry((message.tag, message.input)).or_insert(0) += 1;
                    }
                }
                let site = Rc::make_mut(&mut next.sites[at]);
                site.federate.on_message(envelope, NOW);
                site.drive(graph, next.round, slow == Some(at));
            }
            Move::Finish(at) => {
                let site = Rc::make_mut(&mut next.sites[at]);
                let (tag, reactions) = site.running.take().unwrap();
                site.run(graph, tag, reactions);
                site.drive(graph, next.round, slow == Some(at));
            }
            Move::Stop(at) => {
                next.stops -= 1;
                let site = Rc::make_mut(&mut next.sites[at]);
                site.federate.request_stop();
                site.drive(graph, next.round, slow == Some(at));
            }
            Move::Takeover => {
                next.takeovers -= 1;
                next.round += 1;
                next.rti = Rc::new(rti(graph, next.round, next.patience));
                for site in &mut next.sites {
                    let site = Rc::make_mut(site);
                    site.up.clear();
                    site.down.clear();
                    site.is_leaving = false;
                }
                next.connect();
            }
            Move::Die(at) => {
                next.deaths -= 1;
                let site = Rc::make_mut(&mut next.sites[at]);
                site.is_alive = false;
                site.is_leaving = true;
                site.up.clear();
                site.down.clear();
            }
            Move::NoticeEnd(at) => {
                Rc::make_mut(&mut next.sites[at]).is_leaving = false;
                Rc::make_mut(&mut next.rti).on_gone(FederateId(at as u16), NOW);
                next.drive_rti();
            }
        }
        next
    }

    fn drive_rti(&mut self) {
        let rti = Rc::make_mut(&mut self.rti);
        while let Some(action) = rti.poll() {
            match action {
                RtiAction::Send { to, envelope } => {
                    let site = &mut self.sites[usize::from(to.0)];
                    if site.is_alive {
                        Rc::make_mut(site).down.push_back(envelope);
                    }
                }
                RtiAction::Runs(_) | RtiAction::Gone(_) | RtiAction::Over => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// Checks a final state, in which nothing more can happen.
    fn check(&self, graph: &Graph, bounds: Bounds) -> usize {
        let alive = || self.sites.iter().filter(|site| site.is_alive);
        assert!(alive().all(|site| site.has_ended), "hangs: {:?}", self.describe());
        let stops: BTreeSet<_> = alive().map(|site| site.federate.scheduler().last()).collect();
        assert!(stops.len() <= 1, "two last tags: {stops:?}");
        let stop = stops.first().copied().unwrap_or(Tag::FOREVER);
        if self.stops == bounds.stops && self.deaths == bounds.deaths {
            let limit = bounds.timeout.map(|time| Tag::at(time, 0));
            let end = limit.or_else(|| reference::end(graph));
            let fits = end.map_or(stop > Tag::at(reference::SIGHT, 0), |end| stop == end);
            assert!(fits, "ends at {stop} and not {end:?}: {:?}", self.describe());
        }
        let mut records: Vec<_> = self.sites.iter().flat_map(|site| site.brains.records.clone()).collect();
        records.sort_unstable();
        // Dead federates may have been ahead.
        records.retain(|(tag, ..)| *tag <= stop);
        let dead = self.sites.iter().enumerate().filter(|(_, site)| !site.is_alive);
        let deaths = dead.map(|(at, site)| {
            let ran = site
                .brains
                .records
                .iter()
                .map(|(tag, reaction, _)| (*tag, *reaction))
                .collect();
            let arrived = self.sites.iter().flat_map(|site| site.arrived.clone()).collect();
            (
                FederateId(at as u16),
                Death {
                    ran,
                    arrived,
                    knew_stop: site.federate.scheduler().last() == stop,
                },
            )
        });
        let expected = reference::run(
            graph,
            stop,
            &Given {
                deaths: deaths.collect(),
                ..Given::default()
            },
        );
        assert_eq!(records, expected, "{:?}", self.describe());
        records.len()
    }

    /// Checks that once all messages have arrived, no federate waits for something that another could have reported.
    fn check_what_is_told(&self, graph: &Graph) {
        let is_quiet = |site: &Rc<Site>| site.up.is_empty() && site.down.is_empty() && !site.is_leaving;
        if !self.sites.iter().all(is_quiet) {
            return;
        }
        let ids = graph.federate_ids().zip(graph.federates()).zip(&self.sites);
        for ((id, info), site) in ids.filter(|(_, site)| site.is_alive) {
            let waiting = site.federate.scheduler();
            let (next, granted) = (waiting.next_tag(), waiting.grants().0);
            if next <= granted || info.cycle.is_some() {
                continue;
            }
            for (from, delay) in &info.upstream {
                let site = &self.sites[usize::from(from.0)];
                let s = site.federate.scheduler();
                let could = if s.is_between_tags() {
                    s.next_tag()
                } else {
                    s.completed().next()
                };
                let told = self.rti.next_of(*from);
                let waits = told + *delay <= next && could + *delay > next;
                let in_vain = waits && site.is_alive && *from != id;
                assert!(
                    !in_vain,
                    "{id:?} waits for {from:?}: {told} {could} {:?}",
                    self.describe()
                );
            }
        }
    }

    fn describe(&self) -> Vec<String> {
        let describe = |site: &Rc<Site>| {
            let s = site.federate.scheduler();
            let (tags, open) = ((s.reached(), s.next_tag(), s.grants(), s.last()), !s.is_between_tags());
            format!("alive {} ended {} open {open} {tags:?}", site.is_alive, site.has_ended)
        };
        self.sites.iter().map(describe).collect()
    }
}

impl Site {
    /// Returns whether the next message spares the federate reports, or revokes that after the federate made use of it.
    fn is_spared(&self) -> (bool, bool) {
        let Some(Down::Awaited(tag)) = self.down.front().map(|envelope| &envelope.body) else {
            return (false, false);
        };
        let (awaited, has_skipped) = self.federate.awaited();
        (*tag > awaited, *tag < awaited && has_skipped)
    }

    fn run(&mut self, graph: &Graph, tag: Tag, reactions: Vec<Ready>) {
        for ready in reactions {
            let s = self.federate.scheduler();
            let read = |element| s.is_present(element).then(|| s.value(element).copied());
            let effects = self.brains.run(graph, ready.reaction, tag, read);
            self.federate.finish(ready.reaction, effects, NOW).unwrap();
        }
    }

    fn drive(&mut self, graph: &Graph, round: u64, slow: bool) {
        while let Some(action) = self.federate.poll(NOW) {
            match action {
                FederateAction::Send(envelope) if envelope.epoch == epoch(round) => self.up.push_back(envelope),
                FederateAction::Send(_) => {}
                FederateAction::Run { tag, reactions, .. } if slow => self.running = Some((tag, reactions)),
                FederateAction::Run { tag, reactions, .. } => self.run(graph, tag, reactions),
                FederateAction::Ended => self.has_ended = true,
                FederateAction::Started(_) | FederateAction::Gone(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }
}

fn rti(graph: &Arc<Graph>, round: u64, patience: u32) -> Rti<u64> {
    Rti::new(Arc::clone(graph), epoch(round), RtiConfig::default(), NOW).with_patience(patience)
}

fn digest(what: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    hasher.finish()
}

fn explore(program: &Program, bounds: Bounds) -> Found {
    let graph = Arc::new(Graph::new(program).unwrap());
    let (mut seen, mut found) = (HashSet::new(), Found::default());
    let mut stack = vec![State::new(&graph, bounds)];
    while let Some(state) = stack.pop() {
        found.states += 1;
        if found.states > bounds.states_max {
            found.cut_short = true;
            break;
        }
        let moves = state.moves();
        state.check_what_is_told(&graph);
        let left = moves
            .iter()
            .any(|step| !matches!(step, Move::Stop(_) | Move::Takeover | Move::Die(_)));
        if !left {
            found.ends += 1;
            found.records += state.check(&graph, bounds);
        }
        for step in moves {
            if let Move::Down(at) = step {
                let (spared, recalled) = state.sites[at].is_spared();
                found.spared += usize::from(spared);
                found.recalled += usize::from(recalled);
            }
            let next = state.after(&graph, step, bounds.slow);
            if seen.insert(digest(&next)) {
                stack.push(next);
            }
        }
    }
    found
}

fn program(federates: u16, reactors: Vec<Reactor>, connections: Vec<Connection>) -> Program {
    Program {
        federates: (0..federates).map(|at| format!("f{at}")).collect(),
        reactors,
        connections,
    }
}

fn once(name: &str, at: u16, offset: Duration) -> Reactor {
    Reactor::new(name, FederateId(at))
        .output("out")
        .timer("t", offset, None)
}

/// Builds two federates that ask each other, read the answers within the tag, and act on them after a step.
fn asking() -> Program {
    let asks = once("a", 0, ms(0))
        .input("in")
        .action("x", ActionKind::Logical, ms(0))
        .reaction(Reaction::new("ask").on("t").on("x").effect("out"))
        .reaction(Reaction::new("read").on("in").effect("x"));
    let answers = once("b", 1, ms(0))
        .input("in")
        .reaction(Reaction::new("answer").on("in").on("t").effect("out"));
    let connections = vec![Connection::new("a.out", "b.in"), Connection::new("b.out", "a.in")];
    program(2, vec![asks, answers], connections)
}

/// Builds a chain of three with a delay, and a shortcut without one.
fn chain() -> Program {
    let source = once("a", 0, ms(0))
        .action("x", ActionKind::Logical, ms(0))
        .reaction(Reaction::new("tick").on("t").on("x").effect("out").effect("x"));
    let relay = Reactor::new("b", FederateId(1))
        .input("in")
        .output("out")
        .reaction(Reaction::new("pass").on("in").effect("out"));
    let sink = once("c", 2, ms(1))
        .input("in")
        .input("short")
        .reaction(Reaction::new("join").on("in").on("short").on("t").on_shutdown());
    let connections = vec![
        Connection::new("a.out", "b.in").after(ms(1)),
        Connection::new("b.out", "c.in"),
        Connection::new("a.out", "c.short"),
    ];
    program(3, vec![source, relay, sink], connections)
}

const NORMAL: Bounds = Bounds {
    stops: 0,
    takeovers: 0,
    deaths: 0,
    timeout: None,
    patience: 4,
    slow: None,
    states_max: 60_000,
};

fn check(name: &str, program: &Program, bounds: Bounds) -> Found {
    let found = explore(program, bounds);
    println!("{name}: {bounds:?} {found:?}");
    found
}

#[test]
fn small_programs_do_the_same_in_every_order() {
    for (name, program) in [("asking", asking()), ("chain", chain())] {
        for (stops, takeovers, deaths) in [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)] {
            for timeout in [None, Some(ms(1))] {
                let found = check(
                    name,
                    &program,
                    Bounds {
                        stops,
                        takeovers,
                        deaths,
                        timeout,
                        ..NORMAL
                    },
                );
                assert!(found.records > 0 && !found.cut_short, "{found:?}");
            }
        }
    }
}

/// Builds a federate that ticks and sends nothing until the third tick, and another that waits for it once.
fn sparse() -> Program {
    let ticks = Reactor::new("a", FederateId(0))
        .output("out")
        .timer("t0", ms(0), None)
        .timer("t1", ms(1), None)
        .timer("t2", ms(2), None)
        .timer("t3", ms(3), None)
        .reaction(Reaction::new("tick").on("t0").on("t1").on("t3").on_shutdown())
        .reaction(Reaction::new("tell").on("t2").effect("out"));
    let waits = once("b", 1, ms(1))
        .input("in")
        .reaction(Reaction::new("read").on("in").on("t"));
    program(2, vec![ticks, waits], vec![Connection::new("a.out", "b.in")])
}

/// Builds a federate that only ticks, one that sends messages, and one whose only events are their messages.
fn fan_in() -> Program {
    let ticks = Reactor::new("a", FederateId(0))
        .output("out")
        .timer("t0", ms(0), None)
        .timer("t1", ms(1), None)
        .timer("t2", ms(2), None)
        .action("never", ActionKind::Logical, ms(0))
        .reaction(Reaction::new("tick").on("t0").on("t1").on("t2"))
        .reaction(Reaction::new("tell").on("never").effect("out"));
    let says = once("c", 1, ms(0)).reaction(Reaction::new("say").on("t").effect("out"));
    let hears = Reactor::new("b", FederateId(2))
        .input("in")
        .input("other")
        .reaction(Reaction::new("hear").on("in").on("other"));
    let connections = vec![
        Connection::new("a.out", "b.in"),
        Connection::new("c.out", "b.other").after(ms(1)),
    ];
    program(3, vec![hears, says, ticks], connections)
}

const SPARING: Bounds = Bounds {
    patience: 0,
    slow: Some(0),
    ..NORMAL
};

#[test]
fn rule_7_what_nobody_waits_for_is_not_told_and_nobody_waits_for_what_is_not_told() {
    let (mut spared, mut recalled) = (0, 0);
    let alone = [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)].map(|bounds| ("sparse", sparse(), bounds));
    let both = [(0, 0, 0), (0, 1, 0)].map(|bounds| ("fan-in", fan_in(), bounds));
    for (name, program, (stops, takeovers, deaths)) in alone.into_iter().chain(both) {
        let bounds = Bounds {
            stops,
            takeovers,
            deaths,
            ..SPARING
        };
        let found = check(name, &program, bounds);
        assert!(found.records > 0 && !found.cut_short, "{found:?}");
        spared += found.spared;
        recalled += found.recalled;
    }
    assert!(spared > 0 && recalled > 0);
}

fn random_small(seed: u64) -> Program {
    let mut random = Random::new(seed);
    let kinds = Kinds {
        federates: 2 + random.below(2) as u16,
        physical_actions: false,
        physical_connections: false,
        shutdown: random.one_in(2),
        periodic: false,
    };
    reference::random_program(&mut random, kinds)
}

#[test]
fn random_small_programs_do_the_same_in_every_order() {
    for seed in 0..12 {
        let stops = (seed % 2) as u8;
        check(
            "random",
            &random_small(seed),
            Bounds {
                stops,
                states_max: 3_000,
                ..NORMAL
            },
        );
    }
}

/// `cargo test --release -p coorp-core deep_search_of_coordination -- --ignored --nocapture`
#[test]
#[ignore = "takes minutes"]
fn the_deep_search_of_coordination_finds_nothing() {
    let deep = Bounds {
        states_max: 3_000_000,
        ..NORMAL
    };
    for (name, program) in [("asking", asking()), ("chain", chain())] {
        let bounds = [(0, 0, 0), (1, 0, 0), (1, 1, 0), (1, 0, 1), (1, 1, 1)];
        for ((stops, takeovers, deaths), timeout) in bounds.into_iter().flat_map(|b| [(b, None), (b, Some(ms(1)))]) {
            check(
                name,
                &program,
                Bounds {
                    stops,
                    takeovers,
                    deaths,
                    timeout,
                    ..deep
                },
            );
        }
    }
    for (stops, takeovers, deaths) in [(1, 0, 0), (0, 0, 1), (1, 1, 0), (0, 1, 1), (1, 0, 1)] {
        for (name, program) in [("sparse", sparse()), ("fan-in", fan_in())] {
            let bounds = Bounds {
                stops,
                takeovers,
                deaths,
                states_max: 1_000_000,
                ..SPARING
            };
            check(name, &program, bounds);
        }
    }
    for seed in 0..200 {
        let (stops, takeovers, deaths) = ((seed % 2) as u8, (seed / 2 % 2) as u8, (seed / 4 % 2) as u8);
        let program = random_small(seed);
        // Events that multiply endlessly would fill the memory.
        let ends = reference::end(&Graph::new(&program).unwrap()).is_some();
        let bounds = Bounds {
            stops,
            takeovers,
            deaths,
            timeout: (seed % 3 == 0 || !ends).then_some(ms(2)),
            patience: [0, 4][(seed / 8 % 2) as usize],
            slow: (seed / 16 % 2 == 0).then_some(0),
            states_max: 50_000,
        };
        check("random", &program, bounds);
    }
}
