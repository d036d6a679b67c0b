//! The tables that one federate's scheduler reads at every step, computed once.

use super::super::graph::{ElementId, ElementKind, Graph, Link, ReactionId};
use super::super::program::FederateId;
use super::Waits;

/// An output with connections that need more than sharing the value with an input.
#[derive(Clone, Debug)]
pub(super) struct Output {
    pub element: ElementId,
    /// The level at whose end the output is final. `None` if no reaction ever sets it.
    pub level: Option<u32>,
    pub links: Vec<Link>,
}

/// An input on which the federate may have to wait within a tag.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    pub input: ElementId,
    pub from: FederateId,
    /// The level from which on reactions wait while the input is unknown.
    pub level: u32,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Plan {
    /// Per element, the element that keeps its value: for an input that is connected directly, the output.
    pub kept: Vec<ElementId>,
    /// Per element, the reactions here that its value triggers.
    pub triggers: Vec<Vec<ReactionId>>,
    /// The outputs, sorted by level.
    pub outputs: Vec<Output>,
    pub waiting: Vec<Waiting>,
    /// The startup and shutdown elements of reactors here that react to them.
    pub startups: Vec<ElementId>,
    pub shutdowns: Vec<ElementId>,
    pub timers: Vec<ElementId>,
}

impl Plan {
    pub fn new(graph: &Graph, federate: FederateId, waits: Waits) -> Self {
        let elements = graph.elements();
        let ids = || (0..elements.len() as u32).map(ElementId);
        let mut plan = Plan {
            kept: ids().collect(),
            triggers: vec![Vec::new(); elements.len()],
            ..Plan::default()
        };
        for (id, element) in ids().zip(elements).filter(|(_, element)| element.federate == federate) {
            let here = |link: &Link| link.is_direct() && link.federate == federate;
            if let Some(link) = element.from.filter(here) {
                plan.kept[id.0 as usize] = link.other;
                plan.triggers[link.other.0 as usize].extend(&element.triggers);
                continue;
            }
            plan.triggers[id.0 as usize].extend(&element.triggers);
            let reacts = !element.triggers.is_empty();
            match element.kind {
                ElementKind::Startup if reacts => plan.startups.push(id),
                ElementKind::Shutdown if reacts => plan.shutdowns.push(id),
                ElementKind::Timer { .. } if reacts => plan.timers.push(id),
                ElementKind::Output => {
                    let links: Vec<_> = element.to.iter().filter(|link| !here(link)).copied().collect();
                    if !links.is_empty() {
                        let level = element.level;
                        plan.outputs.push(Output {
                            element: id,
                            level,
                            links,
                        });
                    }
                }
                _ => {}
            }
        }
        plan.outputs.sort_by_key(|output| (output.level, output.element));
        let federate = graph.federate(federate);
        let inputs = match waits {
            Waits::InCycles => federate.map(|f| &f.cycle_inputs),
            Waits::OnAll => federate.map(|f| &f.inputs),
        };
        for input in inputs.into_iter().flatten() {
            let element = &elements[input.0 as usize];
            if let Some(link) = element.from.filter(Link::is_direct) {
                plan.waiting.push(Waiting {
                    input: *input,
                    from: link.federate,
                    level: element.level.unwrap_or(u32::MAX),
                });
            }
        }
        plan
    }
}
