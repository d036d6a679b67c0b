//! How a command ends when it does not end well: what is said on stderr, and the exit code.
//!
//! Exit codes: 0 fine, 1 the run found a failure, 2 bad input or files that cannot be used. Clap's own usage
//! errors exit with 2 as well, so that a script needs to know these three only.

use std::fmt;
use std::process::ExitCode;

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
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Failure::Input(_) => ExitCode::from(2),
            Failure::Found(_) => ExitCode::from(1),
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
