//! How a command ends when it does not end well: what is said on stderr, and the exit code.
//!
//! Exit codes: 0 fine, 1 the run found a failure, 2 bad input or files that cannot be used. Clap's own usage
//! errors exit with 2 as well, so that a script needs to know these three only.

use std::fmt;

/// Why a command stops early.
#[derive(Debug)]
pub enum Failure {
    /// The user has to mend something: an option, the team file, a path. Exit code 2.
    Input(String),
    /// The simulation broke one of its own rules: a fault run's finding, or a bug. Exit code 1.
    Found(String),
}

impl Failure {
    /// The exit code that scripts see.
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

/// Why one run of the simulator gave no result.
#[derive(Debug)]
pub enum NoResult {
    /// The team and the policy do not go together: for the user to mend.
    Input(String),
    /// A rule of Coorp's own was broken: the simulator says so, or an assertion did not hold.
    Broken(String),
}

impl NoResult {
    /// The failure to end with, where one run without a result ends the command. `run` says which run it was.
    pub fn ends(&self, run: &str) -> Failure {
        match self {
            NoResult::Input(text) => Failure::Input(format!("error: {run}: {text}")),
            NoResult::Broken(text) => Failure::Found(format!("failed: {run}: {text}")),
        }
    }

    /// What happened, whichever it was.
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
