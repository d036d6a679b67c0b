//! Errors of a live robot: programs use the variant, operators the text.
//!
//! Variants leave out what the caller passed in. A text says what happened and, if that is known, what to do.

use std::path::{Path, PathBuf};
use std::{fmt, io};

/// Why a live robot could not do what was requested.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The team has no robot of this name.
    UnknownRobot(String),
    /// The receiver of bulk would be its sender.
    BulkToItself(String),
    /// A topic or a bulk message cannot have this name.
    Name(String),
    /// A topic cannot be published or gathered at this period.
    Period(String),
    /// A message has too many bytes.
    TooLarge(String),
    /// The robot already publishes as many control topics as it can.
    TooManyTopics(String),
    /// The robot already gathers the topic.
    Gathered(String),
    /// The robot is already being recorded.
    Recorded,
    /// Bulk needs the team's keys, and the robot was opened without them.
    NoKeys,
    /// A key or certificate is missing, unusable, or already exists.
    Keys(String),
    /// The team's addresses and interfaces are not this machine's, or more than a robot can use.
    Network(String),
    /// The team and the policy do not make a valid robot.
    Config(String),
    /// A file is not a flight recorder's, or a folder has none.
    Flight(String),
    /// The file to record to already exists.
    FileExists(PathBuf),
    /// A file could not be read or written.
    File(String, io::Error),
    /// The node has closed.
    Closed,
    /// Too many bulk messages wait for a robot. This one can be finished later.
    QueueFull(String),
    /// A bulk message was not delivered.
    Undelivered(String),
    /// A thread could not be started.
    Thread(io::Error),
    /// A socket, or a protocol on top of it, could not be set up.
    Socket(String, io::Error),
    /// Keys that were read could not be used, or keys could not be created.
    Crypto(String),
    /// Other robots cannot reach this one: its port is taken.
    Listen(String),
    /// A recording could not start, or has ended by itself.
    Recording(String),
    /// This machine's programs could not be protected.
    Protect(String),
    /// The robot's agent could not be its Zenoh router.
    Zenoh(String),
    /// The program cannot be a guest of the robot's agent, or only the robot itself can do this.
    Guest(String),
    /// The robot's agent, whose guest this program is, does not answer, or has failed.
    Agent(String),
}

impl Error {
    /// Returns whether the user has to fix something: the team file, the keys, an argument. Otherwise the network or
    /// the machine failed.
    pub fn is_input(&self) -> bool {
        use Error::*;
        let failed = matches!(
            self,
            Closed | QueueFull(_) | Undelivered(_) | Thread(_) | Socket(..) | Crypto(_) | Agent(_)
        );
        !failed && !matches!(self, Listen(_) | Recording(_))
    }

    /// Returns the error of an operation that failed on a path.
    pub(crate) fn at(what: &str, path: &Path, error: io::Error) -> Self {
        Error::File(format!("cannot {what} {}", path.display()), error)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use Error::*;
        match self {
            UnknownRobot(text) | BulkToItself(text) | Name(text) | Period(text) | TooLarge(text) => f.write_str(text),
            TooManyTopics(text) | Gathered(text) | Keys(text) | Network(text) => f.write_str(text),
            Config(text) | Flight(text) | QueueFull(text) | Undelivered(text) | Crypto(text) => f.write_str(text),
            Listen(text) | Recording(text) | Protect(text) | Zenoh(text) | Guest(text) | Agent(text) => {
                f.write_str(text)
            }
            Recorded => f.write_str("this robot is already being recorded"),
            NoKeys => f.write_str(
                "bulk needs the team's keys: run this robot without --insecure, in Python without insecure=True",
            ),
            FileExists(path) => {
                let path = path.display();
                write!(
                    f,
                    "{path} already exists, and recordings are never overwritten: move it, or name another file"
                )
            }
            File(what, error) | Socket(what, error) => write!(f, "{what}: {error}"),
            Closed => f.write_str("the node has been closed"),
            Thread(error) => write!(f, "cannot start a thread: {error}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::File(_, error) | Error::Socket(_, error) | Error::Thread(error) => Some(error),
            _ => None,
        }
    }
}
