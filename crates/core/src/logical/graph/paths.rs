//! Computes levels within a tag, and least delays between federates.

use super::super::program::FederateId;
use super::super::Delay;
use super::{ElementId, ElementKind, Graph, ReactionId};
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

/// Returns, per node, the nodes that must follow it at the same tag.
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
/// The cycles, each as names with the first repeated at the end.
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
        // Only reactions add a level.
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

/// Returns disjoint cycles among the nodes that still wait. A walk backwards from any of them enters a cycle.
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

/// Computes the information about each federate and its neighbours. Expects that all ids are valid.
pub(super) fn set_delays(graph: &mut Graph) {
    set_ends(graph);
    let mut search = Search::new(graph);
    for from in graph.federate_ids() {
        search.run(from);
        for (to, delay) in graph.federate_ids().zip(&mut search.arrivals) {
            if let Some(delay) = delay.take() {
                graph.federates[usize::from(to.0)].upstream.push((from, delay));
                graph.federates[usize::from(from.0)].downstream.push((to, delay));
            }
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
                // No federate waits for an output that no reaction sets.
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

/// The search for the least delays from any event of one federate to messages to other federates and to itself, by
/// Dijkstra's algorithm. It applies because a longer path never has an earlier tag, whatever follows.
///
/// An input has one connection, so paths go directly from outputs to reactions.
struct Search {
    /// Per federate, the nodes at which paths begin.
    starts: Vec<Vec<usize>>,
    /// Per node, its effects, with delays.
    effects: Vec<Vec<(usize, Delay)>>,
    /// Per node, the other federates that it sends to, with delays.
    sends: Vec<Vec<(FederateId, Delay)>>,
    /// Per node, the least delay found by this search.
    least: Vec<Option<Delay>>,
    reached: Vec<usize>,
    heap: BinaryHeap<Reverse<(Delay, usize)>>,
    /// The result, per federate.
    arrivals: Vec<Option<Delay>>,
}

impl Search {
    fn new(graph: &Graph) -> Self {
        let nodes = Nodes::of(graph);
        let mut search = Search {
            starts: vec![Vec::new(); graph.federates.len()],
            effects: vec![Vec::new(); nodes.count],
            sends: vec![Vec::new(); nodes.count],
            least: vec![None; nodes.count],
            reached: Vec::new(),
            heap: BinaryHeap::new(),
            arrivals: vec![None; graph.federates.len()],
        };
        for (at, reaction) in graph.reactions.iter().enumerate() {
            search.starts[usize::from(reaction.federate.0)].push(at);
            for effect in &reaction.effects {
                let step = match graph.elements[effect.0 as usize].kind {
                    ElementKind::Logical(delay_min) => Delay::of_action(delay_min),
                    // If logical time is ahead of the clock, a physical action occurs at the next tag.
                    ElementKind::Physical(_) => Delay::MICROSTEP,
                    _ => Delay::NONE,
                };
                search.effects[at].push((nodes.element(*effect), step));
            }
        }
        for (at, element) in graph.elements.iter().enumerate() {
            let at = nodes.reactions + at;
            if element.kind != ElementKind::Input {
                search.add_triggers(at, &element.triggers, Delay::NONE);
            }
            for link in &element.to {
                let crosses = link.federate != element.federate;
                if link.physical && crosses {
                    continue;
                }
                let step = if link.physical { Delay::MICROSTEP } else { link.delay() };
                if crosses {
                    search.sends[at].push((link.federate, step));
                }
                search.add_triggers(at, &graph.elements[link.other.0 as usize].triggers, step);
            }
        }
        search
    }

    fn add_triggers(&mut self, at: usize, triggers: &[ReactionId], step: Delay) {
        self.effects[at].extend(triggers.iter().map(|reaction| (reaction.0 as usize, step)));
    }

    /// Computes `arrivals` for events of `from`.
    fn run(&mut self, from: FederateId) {
        for node in self.reached.drain(..) {
            self.least[node] = None;
        }
        // Nodes reached without a delay need no order.
        let mut stack = self.starts[usize::from(from.0)].clone();
        for start in &stack {
            self.least[*start] = Some(Delay::NONE);
        }
        self.reached.extend(&stack);
        let mut delay = Delay::NONE;
        loop {
            while let Some(node) = stack.pop() {
                for (to, step) in &self.sends[node] {
                    let arrival = delay.then(*step);
                    let known = self.arrivals[usize::from(to.0)].get_or_insert(arrival);
                    *known = arrival.min(*known);
                }
                for (next, step) in &self.effects[node] {
                    let arrival = delay.then(*step);
                    let known = &mut self.least[*next];
                    match *known {
                        Some(known) if known <= arrival => continue,
                        None => self.reached.push(*next),
                        Some(_) => {}
                    }
                    *known = Some(arrival);
                    if arrival == delay {
                        stack.push(*next);
                    } else {
                        self.heap.push(Reverse((arrival, *next)));
                    }
                }
            }
            let Some(Reverse((next, node))) = self.heap.pop() else {
                return;
            };
            delay = next;
            if self.least[node] == Some(delay) {
                stack.push(node);
            }
        }
    }
}

/// Finds the federates that can reach each other without a delay, and the inputs on which they may wait for each other.
///
/// The reactions that one path needs in a federate may differ from those that the next path reaches. Together such
/// paths cause nothing, but the federates still wait for each other. So every connection counts over which a reaction
/// can send.
fn set_cycles(graph: &mut Graph) {
    let mut next = vec![Vec::new(); graph.federates.len()];
    let senders = graph.elements.iter().filter(|element| element.level.is_some());
    for element in senders.filter(|element| element.kind == ElementKind::Output) {
        let crossing = element.to.iter().filter(|link| link.is_direct());
        next[usize::from(element.federate.0)].extend(crossing.map(|link| usize::from(link.federate.0)));
    }
    for next in &mut next {
        next.sort_unstable();
        next.dedup();
    }
    let component = components(&next);
    let mut members = vec![0; next.len()];
    for component in &component {
        members[*component] += 1;
    }
    let mut numbers = BTreeMap::new();
    for (federate, component) in graph.federates.iter_mut().zip(&component) {
        if members[*component] > 1 {
            let count = numbers.len() as u16;
            federate.cycle = Some(*numbers.entry(*component).or_insert(count));
        }
    }
    for node in 0..graph.federates.len() {
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

/// Returns, per node, the number of its strongly connected component, by Tarjan's algorithm without recursion.
fn components(next: &[Vec<usize>]) -> Vec<usize> {
    let (mut order, mut low) = (vec![usize::MAX; next.len()], vec![0; next.len()]);
    let mut component = vec![usize::MAX; next.len()];
    let (mut visited, mut found) = (0, 0);
    let (mut open, mut path) = (Vec::new(), Vec::new());
    for start in 0..next.len() {
        if order[start] == usize::MAX {
            path.push((start, 0));
        }
        while let Some((node, at)) = path.pop() {
            if at == 0 {
                (order[node], low[node]) = (visited, visited);
                visited += 1;
                open.push(node);
            } else {
                low[node] = low[node].min(low[next[node][at - 1]]);
            }
            let rest = next[node].iter().enumerate().skip(at);
            let mut unseen = None;
            for (at, other) in rest {
                if order[*other] == usize::MAX {
                    unseen = Some((at, *other));
                    break;
                }
                if component[*other] == usize::MAX {
                    low[node] = low[node].min(order[*other]);
                }
            }
            if let Some((at, other)) = unseen {
                path.push((node, at + 1));
                path.push((other, 0));
            } else if low[node] == order[node] {
                while let Some(member) = open.pop() {
                    component[member] = found;
                    if member == node {
                        break;
                    }
                }
                found += 1;
            }
        }
    }
    component
}
