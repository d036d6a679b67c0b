//! Random programs, the effects of their reactions, and a single-threaded executor to compare with.
//!
//! The executor knows nothing about levels, federates or grants. It runs every reaction of the program that has a
//! trigger, in an order found by comparing reactions pair by pair. Each value is a hash of everything that the reaction
//! saw, so two runs with equal records did the same.

use super::graph::{ElementKind, Link, Problem};
use super::program::{Action, ActionKind, Connection, FederateId, Program, Reaction, Reactor, Timer, Trigger};
use super::{Delay, Effects, ElementId, Graph, ReactionId, Tag};
use crate::Duration;
use std::collections::{BTreeMap, BTreeSet};

/// Pseudorandom numbers from a seed.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Random(mix(seed, 0x9e37_79b9_7f4a_7c15))
    }

    /// Returns a number below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 = mix(self.0, 1);
        self.0 % limit.max(1)
    }

    pub fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }
}

/// Mixes two numbers with SplitMix64's finaliser.
pub fn mix(state: u64, value: u64) -> u64 {
    let mut z = (state ^ value.wrapping_mul(0xff51_afd7_ed55_8ccd)).wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A reaction that ran, its tag, and a hash of everything that it saw. Sorted records are comparable between runs.
pub type Record = (Tag, ReactionId, u64);

/// The states of all reactors, and the behaviour of their reactions.
#[derive(Clone, Debug, Hash)]
pub struct Brains {
    states: BTreeMap<u32, u64>,
    pub records: Vec<Record>,
}

impl Brains {
    pub fn new() -> Self {
        Brains {
            states: BTreeMap::new(),
            records: Vec::new(),
        }
    }

    /// Runs `reaction`, which reads its elements through `read`.
    pub fn run(
        &mut self,
        graph: &Graph,
        reaction: ReactionId,
        tag: Tag,
        read: impl Fn(ElementId) -> Option<Option<u64>>,
    ) -> Effects<u64> {
        let info = graph.reaction(reaction).unwrap();
        let state = self.states.entry(info.reactor.0).or_insert(0);
        let mut seen = mix(*state, u64::from(reaction.0));
        seen = mix(seen, tag.time().unwrap().as_nanos());
        seen = mix(seen, u64::from(tag.microstep()));
        for element in info.triggers.iter().chain(&info.sources) {
            seen = match read(*element) {
                None => mix(seen, 1),
                Some(None) => mix(seen, 2),
                Some(Some(value)) => mix(mix(seen, 3), value),
            };
        }
        *state = seen;
        self.records.push((tag, reaction, seen));
        let mut effects = Effects::default();
        for (at, effect) in info.effects.iter().enumerate() {
            let dice = mix(seen, 100 + at as u64);
            match graph.element(*effect).unwrap().kind {
                ElementKind::Output if !dice.is_multiple_of(4) => effects.sets.push((*effect, dice)),
                // The limit ends loops without a delay.
                ElementKind::Logical(_) if !dice.is_multiple_of(2) && tag.microstep() < 4 => {
                    let delay = Duration::from_millis((dice >> 8) % 3);
                    effects.schedules.push((*effect, delay, Some(dice)));
                    if dice % 8 == 1 {
                        effects.schedules.push((*effect, delay, None));
                    }
                }
                _ => {}
            }
        }
        effects
    }
}

/// An event from outside: a physical action, an arrival over a physical connection, or a late value.
pub type Outside = (Tag, ElementId, Option<u64>);

/// A federate that died, and what had happened by then.
#[derive(Clone, Debug, Default)]
pub struct Death {
    /// The reactions that it had run.
    pub ran: BTreeSet<(Tag, ReactionId)>,
    /// The messages from it or to it that arrived.
    pub arrived: BTreeMap<(Tag, ElementId), usize>,
    /// Whether the federate knew the last tag.
    pub knew_stop: bool,
}

/// The inputs of a run that do not follow from its program.
#[derive(Clone, Debug, Default)]
pub struct Given {
    pub outside: Vec<Outside>,
    pub deaths: BTreeMap<FederateId, Death>,
    /// By tag and input, the number of messages that arrived in time, if some arrived late.
    pub in_time: BTreeMap<(Tag, ElementId), usize>,
}

/// Runs the whole program up to and including `stop`.
pub fn run(graph: &Graph, stop: Tag, given: &Given) -> Vec<Record> {
    simulate(graph, stop, given).0
}

/// The latest end that [`end`] finds. Within twice that time, a program that multiplies its events does not yet have
/// too many.
pub const SIGHT: Duration = Duration::from_millis(100);

/// Returns the tag at which a program ends by itself: the one after its last event. `None` if that is beyond [`SIGHT`],
/// as for a program that runs forever.
pub fn end(graph: &Graph) -> Option<Tag> {
    let (_, last) = simulate(graph, Tag::at(SIGHT + SIGHT, 0), &Given::default());
    (last < Tag::at(SIGHT, 0)).then(|| Delay::NONE.first_past(last))
}

/// Returns the records, and the tag of the last event before `stop`.
fn simulate(graph: &Graph, stop: Tag, given: &Given) -> (Vec<Record>, Tag) {
    let deaths = &given.deaths;
    let order = order(graph);
    // If all died, no federate knows a last tag.
    let all_died = deaths.len() == graph.federates().len();
    let latest = || {
        deaths
            .values()
            .filter_map(|death| death.ran.last())
            .map(|(tag, _)| *tag)
            .max()
    };
    let until = if all_died {
        latest().unwrap_or(Tag::NEVER).min(stop)
    } else {
        stop
    };
    let mut queue: BTreeMap<Tag, BTreeMap<ElementId, Option<u64>>> = BTreeMap::new();
    let insert = |queue: &mut BTreeMap<_, BTreeMap<_, _>>, mut tag: Tag, element, value, free| {
        while free && queue.get(&tag).is_some_and(|at| at.contains_key(&element)) {
            tag = tag.next();
        }
        queue.entry(tag).or_default().insert(element, value);
    };
    let knew_stop = |federate| deaths.get(&federate).is_none_or(|death| death.knew_stop);
    for (id, element) in graph.elements().iter().enumerate() {
        let id = ElementId(id as u32);
        match element.kind {
            ElementKind::Startup | ElementKind::Timer { .. } if element.triggers.is_empty() => {}
            ElementKind::Startup => insert(&mut queue, Tag::START, id, None, false),
            ElementKind::Shutdown if stop.time().is_some() && knew_stop(element.federate) => {
                insert(&mut queue, stop, id, None, false)
            }
            ElementKind::Timer { offset, .. } => insert(&mut queue, Tag::at(offset, 0), id, None, false),
            _ => {}
        }
    }
    for (tag, element, value) in &given.outside {
        insert(&mut queue, *tag, *element, *value, false);
    }
    let mut left: BTreeMap<_, _> = deaths.iter().map(|(id, death)| (*id, death.arrived.clone())).collect();
    let mut in_time = given.in_time.clone();
    let (mut brains, mut last) = (Brains::new(), Tag::NEVER);
    while let Some((tag, mut present)) = queue.pop_first() {
        if tag > until {
            break;
        }
        if tag < stop {
            last = tag;
        }
        for id in present.keys() {
            if let ElementKind::Timer {
                period: Some(period), ..
            } = graph.element(*id).unwrap().kind
            {
                insert(&mut queue, tag + Delay::of_connection(period), *id, None, false);
            }
        }
        // The messages from or to dead federates that arrive, and those that arrive in time, decided once per tag.
        let mut decided = BTreeMap::new();
        let mut arrives = |from: FederateId, link: &Link, tag: Tag| {
            let message = (tag, link.other);
            *decided.entry(message).or_insert_with(|| {
                let dead = [from, link.federate].into_iter().find(|id| left.contains_key(id));
                let dead = dead.filter(|_| from != link.federate).and_then(|id| left.get_mut(&id));
                let left = match (in_time.get_mut(&message), dead) {
                    // The last messages are the late ones.
                    (Some(left), _) => left,
                    (None, Some(left)) => left.entry(message).or_insert(0),
                    (None, None) => return true,
                };
                let any = *left > 0;
                *left = left.saturating_sub(1);
                any
            })
        };
        for reaction in &order {
            let info = graph.reaction(*reaction).unwrap();
            let cut = deaths
                .get(&info.federate)
                .is_some_and(|death| !death.ran.contains(&(tag, *reaction)));
            if cut || !info.triggers.iter().any(|trigger| present.contains_key(trigger)) {
                continue;
            }
            let effects = brains.run(graph, *reaction, tag, |element| present.get(&element).copied());
            for (action, extra, value) in effects.schedules {
                let ElementKind::Logical(delay_min) = graph.element(action).unwrap().kind else {
                    continue;
                };
                insert(
                    &mut queue,
                    tag + Delay::of_action(delay_min + extra),
                    action,
                    value,
                    true,
                );
            }
            for (output, value) in effects.sets {
                present.insert(output, Some(value));
                for link in &graph.element(output).unwrap().to {
                    if link.is_direct() && arrives(info.federate, link, tag) {
                        present.insert(link.other, Some(value));
                    }
                }
            }
        }
        // Over a delay, only the last value that was set is sent.
        for (output, value) in &present {
            let element = graph.element(*output).unwrap();
            for link in element.to.iter().filter(|link| !link.is_direct() && !link.physical) {
                let arrival = tag + link.delay();
                if arrives(element.federate, link, arrival) {
                    insert(&mut queue, arrival, link.other, *value, true);
                }
            }
        }
    }
    brains.records.sort_unstable();
    (brains.records, last)
}

/// Returns an order in which every reaction follows those that it depends on.
fn order(graph: &Graph) -> Vec<ReactionId> {
    let reactions = graph.reactions();
    let after = |late: usize, early: usize| {
        let (l, e) = (&reactions[late], &reactions[early]);
        let feeds = |output: &ElementId| {
            let links = graph
                .element(*output)
                .unwrap()
                .to
                .iter()
                .filter(|link| link.is_direct());
            links
                .map(|link| link.other)
                .any(|input| l.triggers.contains(&input) || l.sources.contains(&input))
        };
        (l.reactor == e.reactor && early < late) || e.effects.iter().any(feeds)
    };
    let mut placed: Vec<usize> = Vec::new();
    while placed.len() < reactions.len() {
        let free = (0..reactions.len()).find(|one| {
            !placed.contains(one) && (0..reactions.len()).all(|other| placed.contains(&other) || !after(*one, other))
        });
        placed.push(free.expect("a graph has no cycles"));
    }
    placed.into_iter().map(|at| ReactionId(at as u32)).collect()
}

/// The features that a random program may have.
#[derive(Clone, Copy, Debug)]
pub struct Kinds {
    pub federates: u16,
    pub physical_actions: bool,
    pub physical_connections: bool,
    pub shutdown: bool,
    /// Whether timers fire forever.
    pub periodic: bool,
}

/// Returns a random program without problems.
pub fn random_program(random: &mut Random, kinds: Kinds) -> Program {
    let count = 2 + random.below(5).max(u64::from(kinds.federates).saturating_sub(2));
    let mut program = Program {
        federates: (0..kinds.federates).map(|at| format!("f{at}")).collect(),
        ..Program::default()
    };
    for at in 0..count {
        let federate = if at < u64::from(kinds.federates) {
            at
        } else {
            random.below(kinds.federates.into())
        };
        let mut reactor = Reactor::new(&format!("r{at}"), FederateId(federate as u16));
        if at == 0 || random.one_in(3) {
            reactor.timers.push(Timer {
                name: "t".into(),
                offset: Duration::from_millis(random.below(3)),
                period: Some(Duration::from_millis(1 + random.below(4))).filter(|_| kinds.periodic),
            });
        }
        for (name, kind, wanted) in [
            ("a", ActionKind::Logical, random.one_in(2)),
            ("p", ActionKind::Physical, kinds.physical_actions && random.one_in(2)),
        ] {
            if wanted {
                reactor.actions.push(Action {
                    name: name.into(),
                    kind,
                    delay_min: Duration::from_millis(random.below(2)),
                });
            }
        }
        program.reactors.push(reactor);
    }
    for at in 0..count + random.below(count) {
        let (from, to) = (random.below(count) as usize, random.below(count) as usize);
        let outputs = &mut program.reactors[from].outputs;
        if outputs.is_empty() || random.one_in(2) {
            outputs.push(format!("o{at}"));
        }
        let output = outputs[random.below(outputs.len() as u64) as usize].clone();
        program.reactors[to].inputs.push(format!("i{at}"));
        let connection = Connection::new(&format!("r{from}.{output}"), &format!("r{to}.i{at}"));
        program.connections.push(match random.below(8) {
            0 => connection.after(Duration::from_millis(1)),
            1 => connection.after(Duration::from_millis(2)),
            // In a loop, physical connections would multiply events endlessly, at new times each.
            2 if kinds.physical_connections && from < to => connection.physical(),
            _ => connection,
        });
    }
    for reactor in &mut program.reactors {
        add_reactions(random, kinds, reactor);
    }
    // Delays a connection of each causality cycle.
    while let Err(error) = Graph::new(&program) {
        for problem in error.problems {
            let Problem::CausalityCycle { path } = problem else {
                panic!("{problem}");
            };
            let inside = |c: &&mut Connection| path.contains(&c.to) && path.contains(&c.from);
            let direct = program
                .connections
                .iter_mut()
                .filter(|c| c.after == Duration::ZERO && !c.physical);
            let Some(connection) = direct.filter(inside).max_by_key(|c| mix(random.0, c.to.len() as u64)) else {
                panic!("{path:?}");
            };
            connection.after = Duration::from_millis(1 + random.below(2));
        }
    }
    program
}

fn add_reactions(random: &mut Random, kinds: Kinds, reactor: &mut Reactor) {
    let actions: Vec<_> = reactor.actions.iter().map(|a| a.name.clone()).collect();
    let timers = reactor.timers.iter().map(|t| t.name.clone());
    let causes: Vec<_> = reactor
        .inputs
        .iter()
        .cloned()
        .chain(timers)
        .chain(actions.iter().cloned())
        .collect();
    let effects: Vec<_> = reactor.outputs.iter().chain(&actions).cloned().collect();
    for at in 0..1 + random.below(3) {
        let mut reaction = Reaction::new(&format!("n{at}"));
        for cause in &causes {
            match random.below(3) {
                0 => reaction.triggers.push(Trigger::Element(cause.clone())),
                1 if cause != "t" => reaction.sources.push(cause.clone()),
                _ => {}
            }
            if reactor.inputs.contains(cause) && random.one_in(2) {
                reaction.triggers.push(Trigger::Tardy(cause.clone()));
            }
        }
        if reaction.triggers.is_empty() || random.one_in(4) {
            reaction.triggers.push(Trigger::Startup);
        }
        if kinds.shutdown && random.one_in(4) {
            reaction.triggers.push(Trigger::Shutdown);
        }
        reaction.effects = effects.iter().filter(|_| random.one_in(2)).cloned().collect();
        reactor.reactions.push(reaction);
    }
}
