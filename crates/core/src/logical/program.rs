//! A program as the front end describes it: reactors, connections and placement, by name and without values.
//!
//! It uses Lingua Franca's vocabulary (Kwok, section III-B). Nothing here is checked: [`Graph::new`](super::Graph::new)
//! does that. A full name is the reactor's name, a dot, and the name within the reactor.

use crate::Duration;
use serde::{Deserialize, Serialize};

/// A federate of the program: the index in [`Program::federates`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct FederateId(pub u16);

/// A whole program.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    /// The names of the federates.
    pub federates: Vec<String>,
    /// All reactors, in the same order on every federate.
    pub reactors: Vec<Reactor>,
    /// All connections.
    pub connections: Vec<Connection>,
}

/// One reactor. Its reactions share its state, so they never run at the same time, and at one tag run in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reactor {
    /// The name, unique in the program. May contain dots.
    pub name: String,
    /// The federate that runs the reactor.
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

/// A timer that triggers reactions at fixed times.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timer {
    /// The name, unique within the reactor.
    pub name: String,
    /// The time of the first event, from the start.
    pub offset: Duration,
    /// The time between events. `None` for a single event.
    pub period: Option<Duration>,
}

/// What decides an action's tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ActionKind {
    /// The reaction that schedules the action: its own tag plus a delay.
    Logical,
    /// The clock at the time of scheduling, by a reaction or from outside.
    Physical,
}

/// An event that a reactor schedules for itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Action {
    /// The name, unique within the reactor.
    pub name: String,
    /// Logical or physical.
    pub kind: ActionKind,
    /// The least delay.
    pub delay_min: Duration,
}

/// What triggers a reaction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Trigger {
    /// The program's first tag.
    Startup,
    /// The program's last tag.
    Shutdown,
    /// An input, timer or action of the reactor.
    Element(String),
    /// Values of this input that arrived after their tag, under decentralised coordination. The reaction reads them,
    /// and never sees values that arrive in time.
    Tardy(String),
}

/// Code that runs at a tag.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reaction {
    /// The name, unique within the reactor.
    pub name: String,
    /// The triggers. The reaction runs when any of them is present.
    pub triggers: Vec<Trigger>,
    /// Inputs and actions that the reaction reads without being triggered by them.
    pub sources: Vec<String>,
    /// Outputs that the reaction may set, and actions that it may schedule.
    pub effects: Vec<String>,
    /// The deadline. If the reaction would begin later than this after its tag in physical time, its late handler runs
    /// instead.
    pub deadline: Option<Duration>,
}

/// A connection from an output to an input.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connection {
    /// The full name of the output.
    pub from: String,
    /// The full name of the input.
    pub to: String,
    /// The logical delay.
    pub after: Duration,
    /// Whether the receiver's clock at arrival decides the tag, instead of the sender's tag.
    pub physical: bool,
}

impl Reactor {
    /// Creates a reactor without ports, timers, actions or reactions.
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

    /// Adds a reaction after the existing ones.
    #[must_use]
    pub fn reaction(mut self, reaction: Reaction) -> Self {
        self.reactions.push(reaction);
        self
    }
}

impl Reaction {
    /// Creates a reaction without triggers, sources or effects.
    pub fn new(name: &str) -> Self {
        Reaction {
            name: name.into(),
            ..Reaction::default()
        }
    }

    /// Adds a trigger: the input, timer or action `name` is present.
    #[must_use]
    pub fn on(mut self, name: &str) -> Self {
        self.triggers.push(Trigger::Element(name.into()));
        self
    }

    /// Adds a trigger: a value of the input `name` has arrived after its tag.
    #[must_use]
    pub fn on_tardy(mut self, name: &str) -> Self {
        self.triggers.push(Trigger::Tardy(name.into()));
        self
    }

    /// Adds a trigger: the program's first tag.
    #[must_use]
    pub fn on_startup(mut self) -> Self {
        self.triggers.push(Trigger::Startup);
        self
    }

    /// Adds a trigger: the program's last tag.
    #[must_use]
    pub fn on_shutdown(mut self) -> Self {
        self.triggers.push(Trigger::Shutdown);
        self
    }

    /// Lets the reaction read the input or action `name` without being triggered by it.
    #[must_use]
    pub fn reads(mut self, name: &str) -> Self {
        self.sources.push(name.into());
        self
    }

    /// Lets the reaction set the output or schedule the action `name`.
    #[must_use]
    pub fn effect(mut self, name: &str) -> Self {
        self.effects.push(name.into());
        self
    }

    /// Sets the deadline.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }
}

impl Connection {
    /// Creates a logical connection without a delay, between full names.
    pub fn new(from: &str, to: &str) -> Self {
        Connection {
            from: from.into(),
            to: to.into(),
            after: Duration::ZERO,
            physical: false,
        }
    }

    /// Sets the delay.
    #[must_use]
    pub fn after(mut self, after: Duration) -> Self {
        self.after = after;
        self
    }

    /// Makes the connection physical.
    #[must_use]
    pub fn physical(mut self) -> Self {
        self.physical = true;
        self
    }
}
