//! The reason why a run has no report.

use std::fmt;

/// The reason why a run did not start or did not finish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// Something is missing, or the user must fix something; the text says what and how.
    Unable(String),
    /// The run was aborted: a bug, or the machine ran out of a resource.
    Broken(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Unable(text) | Error::Broken(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for Error {}
