//! What can go wrong with a live robot, in words for its operator.

use std::fmt;

/// Why a live robot could not do what it was asked to.
#[derive(Debug)]
pub enum Error {
    /// Something for the user to mend: the team file, the keys, an argument. The text says what and how.
    Input(String),
    /// The network or the machine did not do its part.
    Failed(String),
}

impl Error {
    /// What happened, as a sentence without a mend: an input or output error at a path.
    pub(crate) fn at(what: &str, path: &std::path::Path, error: &std::io::Error) -> Self {
        Error::Input(format!("cannot {what} {}: {error}", path.display()))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Input(text) | Error::Failed(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for Error {}
