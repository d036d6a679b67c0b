//! The reasons why a program did not run to its end.

use crate::Error;
use std::fmt;

/// The reason why a federate stopped before the end of its program.
#[derive(Debug)]
#[non_exhaustive]
pub enum Failure {
    /// A failure of payloads, channels or the domain.
    Local(Error),
    /// These federates did not report in time. Nothing was started.
    Missing(Vec<String>),
    /// The others consider this federate dead.
    Expelled,
    /// A federate of a zero-delay cycle has no offset, under decentralised coordination.
    NeedsOffset(String),
    /// These federates died while the program ran.
    Died(Vec<String>),
    /// A reaction failed. Shutdown reactions have run.
    Reaction(String),
    /// A value did not come in order, or a limit was exceeded. The result is not the program's.
    Fault(String),
    /// The settings do not fit the program, for example a federate that it does not have.
    Settings(&'static str),
    /// The bridge to other robots failed.
    Bridge(String),
    /// The robot with this name was not heard for too long.
    Unreachable(String),
    /// The program was interrupted a second time, before its end.
    Interrupted,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Local(error) => error.fmt(f),
            Failure::Missing(names) => write!(
                f,
                "nothing was started: {} did not report in time; see what they printed, or wait longer",
                names.join(", ")
            ),
            Failure::Expelled => f.write_str("the others consider this federate dead; restart the program"),
            Failure::Died(names) => write!(f, "{} died while the program ran", names.join(", ")),
            Failure::Reaction(what) | Failure::NeedsOffset(what) | Failure::Bridge(what) => f.write_str(what),
            Failure::Fault(what) => write!(f, "the result is not the program's: {what}"),
            Failure::Settings(what) => f.write_str(what),
            Failure::Unreachable(robot) => write!(
                f,
                "{robot} cannot be reached; is it on, and does the program run there?"
            ),
            Failure::Interrupted => f.write_str("interrupted before the end of the program"),
        }
    }
}

impl std::error::Error for Failure {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Failure::Local(error) => Some(error),
            _ => None,
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::Local(error)
    }
}
