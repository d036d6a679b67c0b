//! A program that can run: everything resolved, checked and put in order (Kwok, sections III-B and IV-A).
//!
//! [`Graph::new`] reports every problem of a [`Program`] at once. What it decides:
//!
//! - **Levels.** At one tag, a reaction runs after those before it in its reactor, and after those that may set an input
//!   it reads. Its level is the longest such chain. Reactions of one level are independent. Levels are counted over the
//!   whole program and are the same on every federate, so federates that wait for each other within a tag always make
//!   progress: somewhere the lowest level can run.
//! - **Delays between federates.** For each pair, the least delay by which an event of the one can cause a message to the
//!   other, over all paths of reactions, actions and connections. Federates in between count only with what can
//!   actually pass through them.
//! - **Zero-delay cycles.** Federates that can reach one another without a delay, directly or over others, can only be
//!   granted a tag provisionally.
//!
//! Physical connections carry no order, so they appear in neither levels nor delays; their receiver treats them like
//! physical actions.
//!
//! Left out: placements and programs that change at run time.

mod build;
mod paths;
mod problem;

pub use problem::{BuildError, Place, Problem, PROBLEMS_MAX};

use super::program::{FederateId, Program};
use super::Delay;
use crate::Duration;
use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};

/// The most reactors of a program.
pub const REACTORS_MAX: usize = 1 << 16;
/// The most reactions, and the most ports, timers and actions.
pub const ELEMENTS_MAX: usize = 1 << 20;
/// The most connections.
pub const CONNECTIONS_MAX: usize = 1 << 20;
/// The most federates.
pub const FEDERATES_MAX: usize = 1024;

/// A reactor of a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReactorId(pub u32);

/// A reaction of a graph. Within a reactor, a later reaction has a greater one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReactionId(pub u32);

/// Anything that can be present at a tag: a port, timer or action, a reactor's startup or shutdown, or the late values of
/// an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub struct ElementId(pub u32);

/// What an element is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElementKind {
    /// Present at a program's first tag.
    Startup,
    /// Present at a program's last tag.
    Shutdown,
    /// An input port.
    Input,
    /// An output port.
    Output,
    /// A timer.
    Timer {
        /// The first event's time.
        offset: Duration,
        /// The time between events.
        period: Option<Duration>,
    },
    /// A logical action with its least delay.
    Logical(Duration),
    /// A physical action with its least delay.
    Physical(Duration),
    /// The values of an input that came after their tag.
    Tardy,
}

/// A connection as its output sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// The other end: the input of an output, or the output of an input.
    pub other: ElementId,
    /// The federate of the other end.
    pub federate: FederateId,
    /// The delay.
    pub after: Duration,
    /// Whether the receiver's clock decides the tag.
    pub physical: bool,
}

impl Link {
    /// Whether a value is present at both ends at the same tag.
    pub fn is_direct(&self) -> bool {
        !self.physical && self.after == Duration::ZERO
    }

    /// How far a message's tag moves.
    pub fn delay(&self) -> Delay {
        Delay::of_connection(self.after)
    }
}

/// A port, timer or action.
#[derive(Clone, Debug)]
pub struct Element {
    /// Its full name.
    pub name: String,
    /// What it is.
    pub kind: ElementKind,
    /// Its reactor.
    pub reactor: ReactorId,
    /// Its federate.
    pub federate: FederateId,
    /// The reactions that it triggers, in order.
    pub triggers: Vec<ReactionId>,
    /// Of an input: the least level of a reaction that reads it; until it is known, this level and those above wait.
    /// Of an output: the greatest level of a reaction that may set it; once that is done, it is final. `None` if there
    /// is no such reaction.
    pub level: Option<u32>,
    /// Of an output: where its values go.
    pub to: Vec<Link>,
    /// Of an input: where its values come from.
    pub from: Option<Link>,
    /// Of an input: where its values go that came after their tag. `None` if no reaction handles them.
    pub tardy: Option<ElementId>,
}

/// A reaction.
#[derive(Clone, Debug)]
pub struct ReactionInfo {
    /// Its full name.
    pub name: String,
    /// Its reactor.
    pub reactor: ReactorId,
    /// Its federate.
    pub federate: FederateId,
    /// Its level.
    pub level: u32,
    /// What triggers it.
    pub triggers: Vec<ElementId>,
    /// What it only reads.
    pub sources: Vec<ElementId>,
    /// What it may set or schedule.
    pub effects: Vec<ElementId>,
    /// How late it may begin.
    pub deadline: Option<Duration>,
}

/// A federate and its neighbours.
#[derive(Clone, Debug, Default)]
pub struct FederateInfo {
    /// Its name.
    pub name: String,
    /// The federates whose events can cause a message to this one, each with the least delay, in order. Contains the
    /// federate itself if its own messages can come back.
    pub upstream: Vec<(FederateId, Delay)>,
    /// The same in the other direction: the federates that have this one upstream, with the delays to them, in order.
    pub downstream: Vec<(FederateId, Delay)>,
    /// The zero-delay cycle that it is part of. Federates with the same number are in the same one.
    pub cycle: Option<u16>,
    /// The inputs that reactions of other federates may set, over logical connections.
    pub inputs: Vec<ElementId>,
    /// Of these, the ones set without a delay from within the zero-delay cycle.
    pub cycle_inputs: Vec<ElementId>,
    /// The outputs that are connected to other federates.
    pub outputs: Vec<ElementId>,
    /// The least delay of its physical actions and of physical connections from other federates. `None` without any.
    pub physical_delay: Option<Duration>,
}

/// A checked program. Immutable, and shared by all that run a part of it.
#[derive(Clone, Debug)]
pub struct Graph {
    reactors: Vec<(String, FederateId)>,
    reactions: Vec<ReactionInfo>,
    elements: Vec<Element>,
    federates: Vec<FederateInfo>,
    names: BTreeMap<String, ElementId>,
}

impl Hash for Graph {
    /// All states that are compared share one graph, so it adds nothing.
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

impl Graph {
    /// # Errors
    /// Everything that is wrong with `program`.
    pub fn new(program: &Program) -> Result<Graph, BuildError> {
        build::build(program)
    }

    /// The reaction with this id, if it is of this graph.
    pub fn reaction(&self, id: ReactionId) -> Option<&ReactionInfo> {
        self.reactions.get(id.0 as usize)
    }

    /// The element with this id, if it is of this graph.
    pub fn element(&self, id: ElementId) -> Option<&Element> {
        self.elements.get(id.0 as usize)
    }

    /// The federate with this id, if it is of this graph.
    pub fn federate(&self, id: FederateId) -> Option<&FederateInfo> {
        self.federates.get(usize::from(id.0))
    }

    /// All reactors: their names and where they run.
    pub fn reactors(&self) -> impl Iterator<Item = (ReactorId, &str, FederateId)> {
        let reactors = (0..).map(ReactorId).zip(&self.reactors);
        reactors.map(|(id, (name, federate))| (id, name.as_str(), *federate))
    }

    /// The name of a reactor.
    pub fn reactor_name(&self, id: ReactorId) -> Option<&str> {
        self.reactors.get(id.0 as usize).map(|(name, _)| name.as_str())
    }

    /// The port, timer or action with this full name.
    pub fn find(&self, name: &str) -> Option<ElementId> {
        self.names.get(name).copied()
    }

    /// The reaction with this full name.
    pub fn find_reaction(&self, name: &str) -> Option<ReactionId> {
        let at = self.reactions.iter().position(|reaction| reaction.name == name)?;
        Some(ReactionId(at as u32))
    }

    /// All reactions, in order of their ids.
    pub fn reactions(&self) -> &[ReactionInfo] {
        &self.reactions
    }

    /// All elements, in order of their ids.
    pub fn elements(&self) -> &[Element] {
        &self.elements
    }

    /// All federates, in order of their ids.
    pub fn federates(&self) -> &[FederateInfo] {
        &self.federates
    }

    /// The ids of all federates, in order.
    pub fn federate_ids(&self) -> impl Iterator<Item = FederateId> {
        (0..self.federates.len() as u16).map(FederateId)
    }

    /// The least delay by which an event of `from` can cause a message to `to`; `None` if none can.
    pub fn delay(&self, from: FederateId, to: FederateId) -> Option<Delay> {
        let upstream = &self.federate(to)?.upstream;
        let at = upstream.binary_search_by_key(&from, |(id, _)| *id).ok()?;
        Some(upstream[at].1)
    }
}

#[cfg(test)]
mod tests;
