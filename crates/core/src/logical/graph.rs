//! Turns a program into one that can run: resolves, checks and orders everything (Kwok, sections III-B and IV-A).
//!
//! [`Graph::new`] reports every problem of a [`Program`] at once. It decides:
//!
//! - **Levels.** At one tag, a reaction runs after those before it in its reactor, and after those that may set an input
//!   it reads. Its level is the longest such chain. Reactions of one level are independent. Levels are counted over the
//!   whole program and are the same on every federate. So federates that wait for each other within a tag always make
//!   progress, because the lowest level can run somewhere.
//! - **Delays between federates.** For each pair, the least delay by which an event of one federate can cause a message
//!   to the other. All paths of reactions, actions and connections count. Federates in between count only with the
//!   paths that actually lead through them.
//! - **Zero-delay cycles.** Federates that can reach each other without a delay, directly or through others, can be
//!   granted a tag only provisionally.
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

/// The maximum number of reactors of a program.
pub const REACTORS_MAX: usize = 1 << 16;
/// The maximum number of reactions, and of ports, timers and actions.
pub const ELEMENTS_MAX: usize = 1 << 20;
/// The maximum number of connections.
pub const CONNECTIONS_MAX: usize = 1 << 20;
/// The maximum number of federates.
pub const FEDERATES_MAX: usize = 1024;

/// A reactor of a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReactorId(pub u32);

/// A reaction of a graph. Within a reactor, a later reaction has a greater id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReactionId(pub u32);

/// Anything that can be present at a tag: a port, timer or action, a reactor's startup or shutdown, or the late values of
/// an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub struct ElementId(pub u32);

/// The kind of an element.
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
    /// The values of an input that arrived after their tag.
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
    /// Returns whether a value is present at both ends at the same tag.
    pub fn is_direct(&self) -> bool {
        !self.physical && self.after == Duration::ZERO
    }

    /// Returns the delay by which a message's tag moves.
    pub fn delay(&self) -> Delay {
        Delay::of_connection(self.after)
    }
}

/// A port, timer or action.
#[derive(Clone, Debug)]
pub struct Element {
    /// The full name.
    pub name: String,
    /// The kind.
    pub kind: ElementKind,
    /// The reactor.
    pub reactor: ReactorId,
    /// The federate.
    pub federate: FederateId,
    /// The triggered reactions, in order.
    pub triggers: Vec<ReactionId>,
    /// Of an input, the least level of a reaction that reads it. Until the input is known, this level and those above
    /// wait. Of an output, the greatest level of a reaction that may set it. Once that level is done, the output is
    /// final. `None` if there is no such reaction.
    pub level: Option<u32>,
    /// Of an output, its connections.
    pub to: Vec<Link>,
    /// Of an input, its connection.
    pub from: Option<Link>,
    /// Of an input, the element for values that arrive after their tag. `None` if no reaction handles them.
    pub tardy: Option<ElementId>,
}

/// A reaction.
#[derive(Clone, Debug)]
pub struct ReactionInfo {
    /// The full name.
    pub name: String,
    /// The reactor.
    pub reactor: ReactorId,
    /// The federate.
    pub federate: FederateId,
    /// The level.
    pub level: u32,
    /// The triggers.
    pub triggers: Vec<ElementId>,
    /// The elements that the reaction reads without being triggered by them.
    pub sources: Vec<ElementId>,
    /// The elements that the reaction may set or schedule.
    pub effects: Vec<ElementId>,
    /// The deadline: how late the reaction may begin.
    pub deadline: Option<Duration>,
}

/// A federate and its neighbours.
#[derive(Clone, Debug, Default)]
pub struct FederateInfo {
    /// The name.
    pub name: String,
    /// The federates whose events can cause a message to this one, each with the least delay, in order. Contains the
    /// federate itself if its own messages can come back.
    pub upstream: Vec<(FederateId, Delay)>,
    /// The federates that have this one upstream, with the delays to them, in order.
    pub downstream: Vec<(FederateId, Delay)>,
    /// The zero-delay cycle that includes this federate. Federates with the same number are in the same cycle.
    pub cycle: Option<u16>,
    /// The inputs that reactions of other federates may set, over logical connections.
    pub inputs: Vec<ElementId>,
    /// The inputs among these that are set without a delay from within the zero-delay cycle.
    pub cycle_inputs: Vec<ElementId>,
    /// The outputs that are connected to other federates.
    pub outputs: Vec<ElementId>,
    /// The least delay of this federate's physical actions and of physical connections to it. `None` without any.
    pub physical_delay: Option<Duration>,
}

/// A checked program. Immutable, and shared by all that run parts of it.
#[derive(Clone, Debug)]
pub struct Graph {
    reactors: Vec<(String, FederateId)>,
    reactions: Vec<ReactionInfo>,
    elements: Vec<Element>,
    federates: Vec<FederateInfo>,
    names: BTreeMap<String, ElementId>,
}

impl Hash for Graph {
    /// Adds nothing, because all states that are compared share one graph.
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

impl Graph {
    /// # Errors
    /// All problems of `program`.
    pub fn new(program: &Program) -> Result<Graph, BuildError> {
        build::build(program)
    }

    /// Returns the reaction with this id, if it belongs to this graph.
    pub fn reaction(&self, id: ReactionId) -> Option<&ReactionInfo> {
        self.reactions.get(id.0 as usize)
    }

    /// Returns the element with this id, if it belongs to this graph.
    pub fn element(&self, id: ElementId) -> Option<&Element> {
        self.elements.get(id.0 as usize)
    }

    /// Returns the federate with this id, if it belongs to this graph.
    pub fn federate(&self, id: FederateId) -> Option<&FederateInfo> {
        self.federates.get(usize::from(id.0))
    }

    /// Returns all reactors, with their names and federates.
    pub fn reactors(&self) -> impl Iterator<Item = (ReactorId, &str, FederateId)> {
        let reactors = (0..).map(ReactorId).zip(&self.reactors);
        reactors.map(|(id, (name, federate))| (id, name.as_str(), *federate))
    }

    /// Returns the name of a reactor.
    pub fn reactor_name(&self, id: ReactorId) -> Option<&str> {
        self.reactors.get(id.0 as usize).map(|(name, _)| name.as_str())
    }

    /// Returns the port, timer or action with this full name.
    pub fn find(&self, name: &str) -> Option<ElementId> {
        self.names.get(name).copied()
    }

    /// Returns the reaction with this full name.
    pub fn find_reaction(&self, name: &str) -> Option<ReactionId> {
        let at = self.reactions.iter().position(|reaction| reaction.name == name)?;
        Some(ReactionId(at as u32))
    }

    /// Returns all reactions, in order of their ids.
    pub fn reactions(&self) -> &[ReactionInfo] {
        &self.reactions
    }

    /// Returns all elements, in order of their ids.
    pub fn elements(&self) -> &[Element] {
        &self.elements
    }

    /// Returns all federates, in order of their ids.
    pub fn federates(&self) -> &[FederateInfo] {
        &self.federates
    }

    /// Returns the ids of all federates, in order.
    pub fn federate_ids(&self) -> impl Iterator<Item = FederateId> {
        (0..self.federates.len() as u16).map(FederateId)
    }

    /// Returns the least delay by which an event of `from` can cause a message to `to`; `None` if none can.
    pub fn delay(&self, from: FederateId, to: FederateId) -> Option<Delay> {
        let upstream = &self.federate(to)?.upstream;
        let at = upstream.binary_search_by_key(&from, |(id, _)| *id).ok()?;
        Some(upstream[at].1)
    }
}

#[cfg(test)]
mod tests;
