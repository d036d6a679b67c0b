//! The problems that a program can have.

use std::fmt;

/// Where an element is named.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Place {
    /// The triggers of a reaction, by its full name.
    Triggers(String),
    /// The inputs whose late values trigger a reaction.
    Tardy(String),
    /// The sources of a reaction.
    Sources(String),
    /// The effects of a reaction.
    Effects(String),
    /// The sending end of the connection to this input.
    From {
        /// The other end.
        to: String,
    },
    /// The receiving end of the connection from this output.
    To {
        /// The other end.
        from: String,
    },
}

/// One reason why a program cannot run. Names are full names.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Problem {
    /// Reactions that each wait for the other at the same tag.
    CausalityCycle {
        /// The reactions and ports around the cycle. The first is also the last.
        path: Vec<String>,
    },
    /// An input has two connections.
    DoubleWriter {
        /// The input.
        input: String,
        /// The output connected first.
        first: String,
        /// The output connected second.
        second: String,
    },
    /// An input has no connection.
    UnconnectedInput {
        /// The input.
        input: String,
    },
    /// A name that does not exist.
    Unknown {
        /// The name.
        name: String,
        /// The place of the name.
        place: Place,
    },
    /// A name of something that is not allowed there.
    WrongKind {
        /// The name.
        name: String,
        /// The place of the name.
        place: Place,
    },
    /// Two things share a name.
    DuplicateName {
        /// The name.
        name: String,
    },
    /// A reaction without a trigger.
    NoTrigger {
        /// The reaction.
        reaction: String,
    },
    /// A timer that fires infinitely often at one time.
    ZeroPeriod {
        /// The timer.
        timer: String,
    },
    /// A reactor on a federate that does not exist.
    UnknownFederate {
        /// The reactor.
        reactor: String,
        /// The index of the federate.
        federate: u16,
        /// The number of federates.
        federates: usize,
    },
    /// The program is too large.
    TooMany {
        /// The kind of thing of which there are too many.
        what: &'static str,
        /// The number of them.
        count: usize,
        /// The maximum number.
        max: usize,
    },
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Triggers(reaction) => write!(f, "as a trigger of {reaction}"),
            Place::Tardy(reaction) => write!(f, "as an input whose late values trigger {reaction}"),
            Place::Sources(reaction) => write!(f, "as a source of {reaction}"),
            Place::Effects(reaction) => write!(f, "as an effect of {reaction}"),
            Place::From { to } => write!(f, "as the start of the connection to {to}"),
            Place::To { from } => write!(f, "as the end of the connection from {from}"),
        }
    }
}

impl Place {
    fn allowed(&self) -> &'static str {
        match self {
            Place::Triggers(_) => "use an input, a timer or an action of the same reactor",
            Place::Tardy(_) => "use an input of the same reactor",
            Place::Sources(_) => "use an input or an action of the same reactor",
            Place::Effects(_) => "use an output or an action of the same reactor",
            Place::From { .. } => "use an output",
            Place::To { .. } => "use an input",
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Problem::CausalityCycle { path } => {
                let path = path.join(" -> ");
                write!(
                    f,
                    "causality cycle: {path}; give a connection of it a delay, or reorder reactions"
                )
            }
            Problem::DoubleWriter { input, first, second } => {
                write!(
                    f,
                    "{input} is connected to both {first} and {second}; remove one connection"
                )
            }
            Problem::UnconnectedInput { input } => write!(f, "{input} is not connected; connect it or remove it"),
            Problem::Unknown { name, place } => write!(f, "{name} does not exist {place}; {}", place.allowed()),
            Problem::WrongKind { name, place } => write!(f, "{name} is not allowed {place}; {}", place.allowed()),
            Problem::DuplicateName { name } => write!(f, "{name} is defined twice; rename one"),
            Problem::NoTrigger { reaction } => write!(f, "nothing triggers {reaction}; give it a trigger"),
            Problem::ZeroPeriod { timer } => {
                write!(
                    f,
                    "{timer} has a period of zero; for a single event leave the period out"
                )
            }
            Problem::UnknownFederate {
                reactor,
                federate,
                federates,
            } => write!(
                f,
                "{reactor} is placed on federate {federate}, but there are {federates}; counting starts at 0"
            ),
            Problem::TooMany { what, count, max } => write!(f, "{count} {what}; at most {max} are supported"),
        }
    }
}

/// The problems of a program, at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BuildError {
    /// The problems, in the order of the program. At most [`PROBLEMS_MAX`] are kept.
    pub problems: Vec<Problem>,
    /// The number of problems that were left off.
    pub more: usize,
}

/// The maximum number of problems reported at once.
pub const PROBLEMS_MAX: usize = 100;

impl BuildError {
    pub(super) fn add(&mut self, problem: Problem) {
        if self.problems.len() < PROBLEMS_MAX {
            self.problems.push(problem);
        } else {
            self.more += 1;
        }
    }
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, problem) in self.problems.iter().enumerate() {
            if at > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{problem}")?;
        }
        if self.more > 0 {
            write!(f, "\nand {} more", self.more)?;
        }
        Ok(())
    }
}

impl std::error::Error for BuildError {}
