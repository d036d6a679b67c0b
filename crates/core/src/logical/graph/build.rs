//! Resolves names to ids, and collects problems on the way.

use super::super::program::{ActionKind, FederateId, Program, Reaction, Reactor, Trigger};
use super::{paths, BuildError, Element, ElementId, ElementKind, FederateInfo, Graph, Link, Place, Problem};
use super::{ReactionId, ReactionInfo, ReactorId, CONNECTIONS_MAX, ELEMENTS_MAX, FEDERATES_MAX, REACTORS_MAX};
use crate::Duration;
use std::collections::{BTreeMap, BTreeSet};

pub(super) fn build(program: &Program) -> Result<Graph, BuildError> {
    let mut builder = Builder {
        graph: Graph {
            reactors: Vec::new(),
            reactions: Vec::new(),
            elements: Vec::new(),
            federates: Vec::new(),
            names: BTreeMap::new(),
        },
        error: BuildError {
            problems: Vec::new(),
            more: 0,
        },
    };
    // A program beyond the limits is not examined further.
    if builder.exceeds_limits(program) {
        return Err(builder.error);
    }
    builder.add_federates(program);
    for reactor in &program.reactors {
        builder.add_reactor(reactor);
    }
    builder.connect(program);
    if let Err(cycles) = paths::set_levels(&mut builder.graph) {
        for path in cycles {
            builder.error.add(Problem::CausalityCycle { path });
        }
    }
    if !builder.error.problems.is_empty() {
        return Err(builder.error);
    }
    paths::set_delays(&mut builder.graph);
    Ok(builder.graph)
}

struct Builder {
    graph: Graph,
    error: BuildError,
}

fn full(reactor: &Reactor, name: &str) -> String {
    format!("{}.{name}", reactor.name)
}

impl Builder {
    fn exceeds_limits(&mut self, program: &Program) -> bool {
        let sum = |count: fn(&Reactor) -> usize| program.reactors.iter().map(count).sum::<usize>();
        let elements = sum(|r| 2 + r.inputs.len() + r.outputs.len() + r.timers.len() + r.actions.len());
        let named = |r: &Reaction| r.triggers.len() + r.sources.len() + r.effects.len();
        let references = program.reactors.iter().flat_map(|r| &r.reactions).map(named).sum();
        for (what, count, max) in [
            ("federates", program.federates.len(), FEDERATES_MAX),
            ("reactors", program.reactors.len(), REACTORS_MAX),
            ("reactions", sum(|r| r.reactions.len()), ELEMENTS_MAX),
            ("ports, timers and actions", elements, ELEMENTS_MAX),
            ("triggers, sources and effects", references, 4 * ELEMENTS_MAX),
            ("connections", program.connections.len(), CONNECTIONS_MAX),
        ] {
            if count > max {
                self.error.add(Problem::TooMany { what, count, max });
            }
        }
        !self.error.problems.is_empty()
    }

    fn add_federates(&mut self, program: &Program) {
        let mut names = BTreeSet::new();
        for name in &program.federates {
            if !names.insert(name) {
                self.error.add(Problem::DuplicateName { name: name.clone() });
            }
            self.graph.federates.push(FederateInfo {
                name: name.clone(),
                ..FederateInfo::default()
            });
        }
        let mut names = BTreeSet::new();
        for reactor in &program.reactors {
            let name = reactor.name.clone();
            if !names.insert(&reactor.name) {
                self.error.add(Problem::DuplicateName { name });
            }
        }
    }

    fn add_reactor(&mut self, reactor: &Reactor) {
        let id = ReactorId(self.graph.reactors.len() as u32);
        self.graph.reactors.push((reactor.name.clone(), reactor.federate));
        if usize::from(reactor.federate.0) >= self.graph.federates.len() {
            self.error.add(Problem::UnknownFederate {
                reactor: reactor.name.clone(),
                federate: reactor.federate.0,
                federates: self.graph.federates.len(),
            });
        }
        let startup = self.add_element(reactor, id, None, ElementKind::Startup);
        let shutdown = self.add_element(reactor, id, None, ElementKind::Shutdown);
        for name in &reactor.inputs {
            self.add_element(reactor, id, Some(name), ElementKind::Input);
        }
        for name in &reactor.outputs {
            self.add_element(reactor, id, Some(name), ElementKind::Output);
        }
        for timer in &reactor.timers {
            if timer.period == Some(Duration::ZERO) {
                let timer = full(reactor, &timer.name);
                self.error.add(Problem::ZeroPeriod { timer });
            }
            let (offset, period) = (timer.offset, timer.period);
            self.add_element(reactor, id, Some(&timer.name), ElementKind::Timer { offset, period });
        }
        for action in &reactor.actions {
            let kind = match action.kind {
                ActionKind::Logical => ElementKind::Logical(action.delay_min),
                ActionKind::Physical => ElementKind::Physical(action.delay_min),
            };
            self.add_element(reactor, id, Some(&action.name), kind);
        }
        let mut names = BTreeSet::new();
        for reaction in &reactor.reactions {
            if !names.insert(&reaction.name) {
                let name = full(reactor, &reaction.name);
                self.error.add(Problem::DuplicateName { name });
            }
            self.add_reaction(reactor, id, reaction, [startup, shutdown]);
        }
    }

    fn add_element(&mut self, reactor: &Reactor, of: ReactorId, name: Option<&str>, kind: ElementKind) -> ElementId {
        let id = ElementId(self.graph.elements.len() as u32);
        let name = match (name, kind) {
            (Some(name), _) => {
                let name = full(reactor, name);
                if self.graph.names.insert(name.clone(), id).is_some() {
                    self.error.add(Problem::DuplicateName { name: name.clone() });
                }
                name
            }
            (None, ElementKind::Startup) => full(reactor, "(startup)"),
            (None, _) => full(reactor, "(shutdown)"),
        };
        self.graph.elements.push(Element {
            name,
            kind,
            reactor: of,
            federate: reactor.federate,
            triggers: Vec::new(),
            level: None,
            to: Vec::new(),
            from: None,
            tardy: None,
        });
        id
    }

    fn add_reaction(&mut self, reactor: &Reactor, of: ReactorId, reaction: &Reaction, ends: [ElementId; 2]) {
        let id = ReactionId(self.graph.reactions.len() as u32);
        let name = full(reactor, &reaction.name);
        if reaction.triggers.is_empty() {
            self.error.add(Problem::NoTrigger { reaction: name.clone() });
        }
        let mut triggers = BTreeSet::new();
        for trigger in &reaction.triggers {
            triggers.extend(match trigger {
                Trigger::Startup => Some(ends[0]),
                Trigger::Shutdown => Some(ends[1]),
                Trigger::Element(trigger) => self.resolve(reactor, trigger, Place::Triggers(name.clone())),
                Trigger::Tardy(input) => self.tardy(reactor, of, input, name.clone()),
            });
        }
        let mut resolve_all = |names: &[String], place: fn(String) -> Place| {
            let resolved = names
                .iter()
                .filter_map(|n| self.resolve(reactor, n, place(name.clone())));
            resolved.collect::<BTreeSet<_>>()
        };
        let sources = resolve_all(&reaction.sources, Place::Sources);
        let effects = resolve_all(&reaction.effects, Place::Effects);
        for trigger in &triggers {
            self.graph.elements[trigger.0 as usize].triggers.push(id);
        }
        self.graph.reactions.push(ReactionInfo {
            name,
            reactor: of,
            federate: reactor.federate,
            level: 0,
            triggers: triggers.into_iter().collect(),
            sources: sources.into_iter().collect(),
            effects: effects.into_iter().collect(),
            deadline: reaction.deadline,
        });
    }

    /// Returns the element for the late values of an input.
    fn tardy(&mut self, reactor: &Reactor, of: ReactorId, input: &str, reaction: String) -> Option<ElementId> {
        let id = self.resolve(reactor, input, Place::Tardy(reaction))?;
        if let Some(tardy) = self.graph.elements[id.0 as usize].tardy {
            return Some(tardy);
        }
        let tardy = self.add_element(reactor, of, Some(&format!("{input} (late)")), ElementKind::Tardy);
        self.graph.elements[id.0 as usize].tardy = Some(tardy);
        Some(tardy)
    }

    fn resolve(&mut self, reactor: &Reactor, name: &str, place: Place) -> Option<ElementId> {
        let name = full(reactor, name);
        self.look_up(name, place)
    }

    fn look_up(&mut self, name: String, place: Place) -> Option<ElementId> {
        let Some(id) = self.graph.find(&name) else {
            self.error.add(Problem::Unknown { name, place });
            return None;
        };
        let kind = self.graph.elements[id.0 as usize].kind;
        let is_action = matches!(kind, ElementKind::Logical(_) | ElementKind::Physical(_));
        let fits = match &place {
            Place::Triggers(_) => is_action || matches!(kind, ElementKind::Input | ElementKind::Timer { .. }),
            Place::Sources(_) => is_action || kind == ElementKind::Input,
            Place::Tardy(_) => kind == ElementKind::Input,
            Place::Effects(_) => is_action || kind == ElementKind::Output,
            Place::From { .. } => kind == ElementKind::Output,
            Place::To { .. } => kind == ElementKind::Input,
        };
        if !fits {
            self.error.add(Problem::WrongKind { name, place });
            return None;
        }
        Some(id)
    }

    fn connect(&mut self, program: &Program) {
        for connection in &program.connections {
            let (from, to) = (connection.from.clone(), connection.to.clone());
            let output = self.look_up(from.clone(), Place::From { to: to.clone() });
            let input = self.look_up(to, Place::To { from });
            let (Some(output), Some(input)) = (output, input) else {
                continue;
            };
            let federates = [output, input].map(|id| self.graph.elements[id.0 as usize].federate);
            let link = |other, federate: FederateId| Link {
                other,
                federate,
                after: connection.after,
                physical: connection.physical,
            };
            let end = &mut self.graph.elements[input.0 as usize];
            if let Some(first) = end.from {
                let input = end.name.clone();
                let first = self.graph.elements[first.other.0 as usize].name.clone();
                let second = connection.from.clone();
                self.error.add(Problem::DoubleWriter { input, first, second });
                continue;
            }
            end.from = Some(link(output, federates[0]));
            self.graph.elements[output.0 as usize]
                .to
                .push(link(input, federates[1]));
        }
        // An input that is connected to an unknown output has been reported already.
        let named: BTreeSet<_> = program.connections.iter().map(|c| c.to.as_str()).collect();
        for element in &self.graph.elements {
            let loose = element.kind == ElementKind::Input && element.from.is_none();
            if loose && !named.contains(element.name.as_str()) {
                let input = element.name.clone();
                self.error.add(Problem::UnconnectedInput { input });
            }
        }
    }
}
