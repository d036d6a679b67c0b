//! A program as the front end describes it: reactors, connections and placement, by name and without values.
//!
//! The vocabulary is that of Lingua Franca (Kwok, section III-B). Nothing here is checked:
//! [`Graph::new`](super::Graph::new) does that. A full name is the reactor's name, a dot, and the name within the
//! reactor.

use crate::Duration;
use serde::{Deserialize, Serialize};

/// A federate of the program: its place in [`Program::federates`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct FederateId(pub u16);

/// A whole program.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    /// The names of the federates.
    pub federates: Vec<String>,
    /// All reactors, in an order that every federate shares.
    pub reactors: Vec<Reactor>,
    /// All connections.
    pub connections: Vec<Connection>,
}

/// One reactor. Its reactions share its state, so they never run at the same time, and at one tag run in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reactor {
    /// Unique in the program; may contain dots.
    pub name: String,
    /// The federate that it runs on.
    pub federate: FederateId,
    /// The names of the input ports.
    pub inputs: Vec<String>,
    /// The names of the output ports.
    pub outputs: Vec<String>,
    /// The timers.
    pub timers: Vec<Timer>,
    /// The logical and physical actions.
    pub actions: Vec<Action>,
    /// The reactions, in their order.
    pub reactions: Vec<Reaction>,
}

/// Triggers reactions at fixed times.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timer {
    /// Unique within the reactor.
    pub name: String,
    /// The time of the first event, from the start.
    pub offset: Duration,
    /// The time between events. `None` for a single event.
    pub period: Option<Duration>,
}

/// Who decides an action's tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ActionKind {
    /// The reaction that schedules it: its own tag and a delay.
    Logical,
    /// The clock, when it is scheduled, by a reaction or from outside.
    Physical,
}

/// An event that a reactor schedules for itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Action {
    /// Unique within the reactor.
    pub name: String,
    /// Logical or physical.
    pub kind: ActionKind,
    /// The least delay.
    pub delay_min: Duration,
}

/// What starts a reaction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Trigger {
    /// The program's first tag.
    Startup,
    /// The program's last tag.
    Shutdown,
    /// An input, timer or action of the reactor.
    Element(String),
    /// Values of this input that came after their tag, under decentralised coordination. The reaction reads them, and
    /// never sees those that come in time.
    Tardy(String),
}

/// Code that runs at a tag.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reaction {
    /// Unique within the reactor.
    pub name: String,
    /// The reaction runs when any of these is present.
    pub triggers: Vec<Trigger>,
    /// Inputs and actions that it only reads.
    pub sources: Vec<String>,
    /// Outputs that it may set, and actions that it may schedule.
    pub effects: Vec<String>,
    /// If it would begin later than this after its tag in physical time, its late handler runs instead.
    pub deadline: Option<Duration>,
}

/// From an output to an input.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connection {
    /// The full name of the output.
    pub from: String,
    /// The full name of the input.
    pub to: String,
    /// The logical delay.
    pub after: Duration,
    /// Whether the receiver's clock decides the tag at arrival, and not the sender's tag.
    pub physical: bool,
}

impl Reactor {
    /// A reactor without ports, timers, actions and reactions.
    pub fn new(name: &str, federate: FederateId) -> Self {
        Reactor {
            name: name.into(),
            federate,
            ..Reactor::default()
        }
    }

    /// Adds an input port.
    #[must_use]
    pub fn input(mut self, name: &str) -> Self {
        self.inputs.push(name.into());
        self
    }

    /// Adds an output port.
    #[must_use]
    pub fn output(mut self, name: &str) -> Self {
        self.outputs.push(name.into());
        self
    }

    /// Adds a timer.
    #[must_use]
    pub fn timer(mut self, name: &str, offset: Duration, period: Option<Duration>) -> Self {
        self.timers.push(Timer {
            name: name.into(),
            offset,
            period,
        });
        self
    }

    /// Adds an action.
    #[must_use]
    pub fn action(mut self, name: &str, kind: ActionKind, delay_min: Duration) -> Self {
        self.actions.push(Action {
            name: name.into(),
            kind,
            delay_min,
        });
        self
    }

    /// Adds a reaction after those that are there.
    #[must_use]
    pub fn reaction(mut self, reaction: Reaction) -> Self {
        self.reactions.push(reaction);
        self
    }
}

impl Reaction {
    /// A reaction without triggers, sources and effects.
    pub fn new(name: &str) -> Self {
        Reaction {
            name: name.into(),
            ..Reaction::default()
        }
    }

    /// Triggers it when the input, timer or action `name` is present.
    #[must_use]
    pub fn on(mut self, name: &str) -> Self {
        self.triggers.push(Trigger::Element(name.into()));
        self
    }

    /// Triggers it when a value of the input `name` has come after its tag.
    #[must_use]
    pub fn on_tardy(mut self, name: &str) -> Self {
        self.triggers.push(Trigger::Tardy(name.into()));
        self
    }

    /// Triggers it at the program's first tag.
    #[must_use]
    pub fn on_startup(mut self) -> Self {
        self.triggers.push(Trigger::Startup);
        self
    }

    /// Triggers it at the program's last tag.
    #[must_use]
    pub fn on_shutdown(mut self) -> Self {
        self.triggers.push(Trigger::Shutdown);
        self
    }

    /// Lets it read the input or action `name`, without a trigger.
    #[must_use]
    pub fn reads(mut self, name: &str) -> Self {
        self.sources.push(name.into());
        self
    }

    /// Lets it set the output or schedule the action `name`.
    #[must_use]
    pub fn effect(mut self, name: &str) -> Self {
        self.effects.push(name.into());
        self
    }

    /// Gives it a deadline.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }
}

impl Connection {
    /// A logical connection without a delay, between full names.
    pub fn new(from: &str, to: &str) -> Self {
        Connection {
            from: from.into(),
            to: to.into(),
            after: Duration::ZERO,
            physical: false,
        }
    }

    /// Gives it a delay.
    #[must_use]
    pub fn after(mut self, after: Duration) -> Self {
        self.after = after;
        self
    }

    /// Makes it a physical connection.
    #[must_use]
    pub fn physical(mut self) -> Self {
        self.physical = true;
        self
    }
}
