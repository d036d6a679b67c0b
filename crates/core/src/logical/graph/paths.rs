//! Levels within a tag, and least delays between federates.

use super::super::program::FederateId;
use super::super::Delay;
use super::{ElementId, ElementKind, Graph};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// Reactions and elements as the nodes of one graph: first all reactions, then all elements.
struct Nodes {
    reactions: usize,
    count: usize,
}

impl Nodes {
    fn of(graph: &Graph) -> Self {
        let reactions = graph.reactions.len();
        Nodes {
            reactions,
            count: reactions + graph.elements.len(),
        }
    }

    fn element(&self, id: ElementId) -> usize {
        self.reactions + id.0 as usize
    }

    fn name<'a>(&self, graph: &'a Graph, node: usize) -> &'a str {
        match node.checked_sub(self.reactions) {
            None => &graph.reactions[node].name,
            Some(element) => &graph.elements[element].name,
        }
    }
}

/// What has to be done after each node at the same tag.
fn followers(graph: &Graph) -> Vec<Vec<usize>> {
    let nodes = Nodes::of(graph);
    let mut after = vec![Vec::new(); nodes.count];
    for (at, reaction) in graph.reactions.iter().enumerate() {
        if graph
            .reactions
            .get(at + 1)
            .is_some_and(|next| next.reactor == reaction.reactor)
        {
            after[at].push(at + 1);
        }
        for read in reaction.triggers.iter().chain(&reaction.sources) {
            after[nodes.element(*read)].push(at);
        }
        for effect in &reaction.effects {
            if graph.elements[effect.0 as usize].kind == ElementKind::Output {
                after[at].push(nodes.element(*effect));
            }
        }
    }
    for (at, element) in graph.elements.iter().enumerate() {
        let direct = element.to.iter().filter(|link| link.is_direct());
        after[nodes.reactions + at].extend(direct.map(|link| nodes.element(link.other)));
    }
    after
}

/// Sets the levels of reactions and ports.
///
/// # Errors
/// The cycles, each by names with the first repeated at the end.
pub(super) fn set_levels(graph: &mut Graph) -> Result<(), Vec<Vec<String>>> {
    let (nodes, after) = (Nodes::of(graph), followers(graph));
    let mut waits = vec![0u32; nodes.count];
    for next in after.iter().flatten() {
        waits[*next] += 1;
    }
    let mut level = vec![0u32; nodes.count];
    let mut done: Vec<usize> = (0..nodes.count).filter(|node| waits[*node] == 0).collect();
    let mut at = 0;
    while at < done.len() {
        let node = done[at];
        at += 1;
        // Only reactions take a level of their own.
        let reached = level[node] + u32::from(node < nodes.reactions);
        for next in &after[node] {
            level[*next] = level[*next].max(reached);
            waits[*next] -= 1;
            if waits[*next] == 0 {
                done.push(*next);
            }
        }
    }
    if done.len() < nodes.count {
        return Err(cycles(graph, &nodes, &after, &waits));
    }
    let Graph {
        reactions, elements, ..
    } = graph;
    for (reaction, level) in reactions.iter_mut().zip(level) {
        reaction.level = level;
        for read in reaction.triggers.iter().chain(&reaction.sources) {
            let known = &mut elements[read.0 as usize].level;
            *known = Some(known.map_or(level, |known| known.min(level)));
        }
        for effect in &reaction.effects {
            let known = &mut elements[effect.0 as usize].level;
            *known = Some(known.map_or(level, |known| known.max(level)));
        }
    }
    Ok(())
}

/// Disjoint cycles among the nodes that still wait. A walk backwards from any of them enters a cycle.
fn cycles(graph: &Graph, nodes: &Nodes, after: &[Vec<usize>], waits: &[u32]) -> Vec<Vec<String>> {
    let mut before = vec![usize::MAX; nodes.count];
    for (node, next) in after.iter().enumerate() {
        for next in next.iter().filter(|_| waits[node] > 0) {
            before[*next] = node;
        }
    }
    let (mut found, mut walk_of) = (Vec::new(), vec![usize::MAX; nodes.count]);
    for start in (0..nodes.count).filter(|node| waits[*node] > 0) {
        let mut node = start;
        while walk_of[node] == usize::MAX {
            walk_of[node] = start;
            node = before[node];
        }
        if walk_of[node] != start {
            continue;
        }
        let mut path = vec![node];
        let mut back = before[node];
        while back != node {
            path.push(back);
            back = before[back];
        }
        path.push(node);
        path.reverse();
        found.push(
            path.into_iter()
                .map(|node| nodes.name(graph, node).to_owned())
                .collect(),
        );
    }
    found
}

/// Sets everything that is known of each federate and its neighbours. Expects that all ids are valid.
pub(super) fn set_delays(graph: &mut Graph) {
    set_ends(graph);
    for from in graph.federate_ids() {
        for (to, delay) in delays_from(graph, from) {
            graph.federates[usize::from(to.0)].upstream.push((from, delay));
            graph.federates[usize::from(from.0)].downstream.push(to);
        }
    }
    set_cycles(graph);
}

fn set_ends(graph: &mut Graph) {
    for (id, element) in graph.elements.iter().enumerate() {
        let (id, here) = (ElementId(id as u32), element.federate);
        let federate = &mut graph.federates[usize::from(here.0)];
        let from_outside = element.from.filter(|link| link.federate != here);
        let physical = match (element.kind, from_outside) {
            (ElementKind::Physical(delay), _) => Some(delay),
            (_, Some(link)) if link.physical => Some(link.after),
            (_, Some(link)) => {
                // Nobody waits for an output that no reaction sets.
                if graph.elements[link.other.0 as usize].level.is_some() {
                    federate.inputs.push(id);
                }
                None
            }
            _ => None,
        };
        federate.physical_delay = [federate.physical_delay, physical].into_iter().flatten().min();
        if element.to.iter().any(|link| link.federate != here) {
            federate.outputs.push(id);
        }
    }
}

/// The least delays from any event of `from` to messages of other federates and its own, by Dijkstra's algorithm. It
/// applies because a longer path never has an earlier tag, whatever follows.
fn delays_from(graph: &Graph, from: FederateId) -> BTreeMap<FederateId, Delay> {
    let nodes = Nodes::of(graph);
    let mut least = vec![None; nodes.count];
    let mut heap = BinaryHeap::new();
    let mut arrivals = BTreeMap::new();
    for at in (0..nodes.reactions).filter(|at| graph.reactions[*at].federate == from) {
        least[at] = Some(Delay::NONE);
        heap.push(Reverse((Delay::NONE, at)));
    }
    while let Some(Reverse((delay, node))) = heap.pop() {
        if least[node] != Some(delay) {
            continue;
        }
        let mut reach = |next: usize, delay: Delay| {
            if least[next].is_none_or(|known| delay < known) {
                least[next] = Some(delay);
                heap.push(Reverse((delay, next)));
            }
        };
        let Some(element) = node.checked_sub(nodes.reactions) else {
            for effect in &graph.reactions[node].effects {
                let step = match graph.elements[effect.0 as usize].kind {
                    ElementKind::Logical(delay_min) => Delay::of_action(delay_min),
                    // Where logical time is ahead of the clock, a physical action comes at the next tag.
                    ElementKind::Physical(_) => Delay::MICROSTEP,
                    _ => Delay::NONE,
                };
                reach(nodes.element(*effect), delay.then(step));
            }
            continue;
        };
        let element = &graph.elements[element];
        for reaction in &element.triggers {
            reach(reaction.0 as usize, delay);
        }
        for link in &element.to {
            let crosses = link.federate != element.federate;
            if link.physical && crosses {
                continue;
            }
            let step = if link.physical { Delay::MICROSTEP } else { link.delay() };
            let arrival = delay.then(step);
            if crosses {
                let known = arrivals.entry(link.federate).or_insert(arrival);
                *known = arrival.min(*known);
            }
            reach(nodes.element(link.other), arrival);
        }
    }
    arrivals
}

/// Finds the federates that can reach each other without a delay, and the inputs on which they may wait for each other.
///
/// What one path needs of a federate may differ from what the next one gives to it. Such paths cause nothing together,
/// but they wait for each other, so they count.
fn set_cycles(graph: &mut Graph) {
    let count = graph.federates.len();
    let direct = |graph: &Graph, node: usize, forwards: bool| -> Vec<usize> {
        let (here, federate) = (FederateId(node as u16), &graph.federates[node]);
        let is_direct = |from, to| graph.delay(from, to) == Some(Delay::NONE);
        if forwards {
            let next = federate.downstream.iter().filter(|to| is_direct(here, **to));
            next.map(|to| usize::from(to.0)).collect()
        } else {
            let next = federate.upstream.iter().filter(|(_, delay)| *delay == Delay::NONE);
            next.map(|(from, _)| usize::from(from.0)).collect()
        }
    };
    let reached = |graph: &Graph, start: usize, forwards: bool| {
        let (mut seen, mut stack) = (vec![false; count], vec![start]);
        while let Some(node) = stack.pop() {
            for next in direct(graph, node, forwards) {
                if !std::mem::replace(&mut seen[next], true) {
                    stack.push(next);
                }
            }
        }
        seen
    };
    let mut cycles = 0;
    for node in 0..count {
        if graph.federates[node].cycle.is_some() {
            continue;
        }
        let (down, up) = (reached(graph, node, true), reached(graph, node, false));
        let members: Vec<_> = (0..count).filter(|other| down[*other] && up[*other]).collect();
        for member in &members {
            graph.federates[*member].cycle = Some(cycles);
        }
        cycles += u16::from(!members.is_empty());
    }
    for node in 0..count {
        let federate = &graph.federates[node];
        let waits = |input: &&ElementId| {
            let link = graph.elements[input.0 as usize].from;
            link.is_some_and(|link| {
                let sender = &graph.federates[usize::from(link.federate.0)];
                link.is_direct() && federate.cycle.is_some() && sender.cycle == federate.cycle
            })
        };
        graph.federates[node].cycle_inputs = federate.inputs.iter().filter(waits).copied().collect();
    }
}
