//! Why a program did not run to its end.

use crate::Error;
use std::fmt;

/// Why a federate stopped before the end of its program.
#[derive(Debug)]
#[non_exhaustive]
pub enum Failure {
    /// Payloads, channels or the domain.
    Local(Error),
    /// Federates did not report in time. Nothing was started.
    Missing(Vec<String>),
    /// The others take this federate for dead.
    Expelled,
    /// A federate of a zero-delay cycle has no offset, under decentralised coordination.
    NeedsOffset(String),
    /// Federates died while the program ran.
    Died(Vec<String>),
    /// A reaction failed. Shutdown reactions have run.
    Reaction(String),
    /// A value did not come in order, or a limit was exceeded. The result is not that of the program.
    Fault(String),
    /// The program does not have this federate, or other federates on a machine of their own.
    Settings(&'static str),
    /// The program was interrupted a second time, before it came to its end.
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
            Failure::Expelled => f.write_str("the others take this federate for dead; start the program anew"),
            Failure::Died(names) => write!(f, "{} died while the program ran", names.join(", ")),
            Failure::Reaction(what) | Failure::NeedsOffset(what) => f.write_str(what),
            Failure::Fault(what) => write!(f, "the result is not that of the program: {what}"),
            Failure::Settings(what) => f.write_str(what),
            Failure::Interrupted => f.write_str("interrupted before the program came to its end"),
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
