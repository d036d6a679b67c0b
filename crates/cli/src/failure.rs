//! How a failed command ends: its message on stderr and its exit code.
//!
//! Exit codes: 0 success, 1 the run found a failure, 2 bad input or unusable files. Clap's usage errors also
//! exit with 2, so scripts need only these three codes; `coorp up` also exits with 3.

use std::fmt;

/// The exit code of `coorp up` if its robot has failed by itself and has to be restarted.
#[cfg(feature = "live")]
pub const ROBOT_FAILED: u8 = 3;

/// Why a command stops early.
#[derive(Debug)]
pub enum Failure {
    /// The user has to fix something: an option, the team file, a path. Exit code 2.
    Input(String),
    /// The simulation violated an invariant: the finding of a fault run, or a bug. Exit code 1.
    Found(String),
}

impl Failure {
    /// Returns the exit code for scripts.
    pub fn exit_code(&self) -> u8 {
        match self {
            Failure::Input(_) => 2,
            Failure::Found(_) => 1,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Input(text) | Failure::Found(text) => f.write_str(text),
        }
    }
}

/// Why a run of the simulator has no result.
#[derive(Debug)]
pub enum NoResult {
    /// The team and the policy are incompatible: for the user to fix.
    Input(String),
    /// An invariant of Coorp was violated, as reported by the simulator or by an assertion.
    Broken(String),
}

impl NoResult {
    /// Returns the failure that ends the command, if a run without a result ends it. `run` identifies the run.
    pub fn ends(&self, run: &str) -> Failure {
        match self {
            NoResult::Input(text) => Failure::Input(format!("error: {run}: {text}")),
            NoResult::Broken(text) => Failure::Found(format!("failed: {run}: {text}")),
        }
    }

    /// Returns the message, for either kind.
    pub fn text(&self) -> &str {
        match self {
            NoResult::Input(text) | NoResult::Broken(text) => text,
        }
    }
}

impl From<coorp_sim::Error> for NoResult {
    fn from(error: coorp_sim::Error) -> Self {
        match error {
            coorp_sim::Error::Broken { .. } => NoResult::Broken(error.to_string()),
            _ => NoResult::Input(error.to_string()),
        }
    }
}
