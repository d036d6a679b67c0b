//! A program beside each robot's own, such as an agent that protects it.
//!
//! It starts first. The robot's program is held until the companion has created its network interface. A robot's death
//! ends both, and both start again with it. Left out: restarting a companion that has ended by itself; its robot
//! continues without it.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::PathBuf;

use coorp_core::{Duration, Instant};
use rustix::process::Signal;

use crate::error::Error;
use crate::namespace::Namespace;
use crate::programs::{Lines, Program};
use crate::pump::Clock;
use crate::report::Fate;

/// Time limit for a companion to create its interface.
const READY_WITHIN: Duration = Duration::from_secs(10);
/// The interval at which to look for the interface.
pub const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Time limit for companions to end after being asked to.
pub const GRACE: Duration = Duration::from_secs(2);

/// A program that accompanies each robot's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Companion {
    /// The program and its arguments. It has the same environment as the robot's program.
    pub command: Vec<OsString>,
    /// The network interface that it creates in its robot's namespace once it is ready.
    pub interface: String,
    /// A folder with a subfolder for each companion's files; `COORP_AGENT` gives both programs the robot's subfolder.
    pub folder: PathBuf,
}

/// The companion of one robot, started or not.
pub struct Attendant {
    robot: String,
    program: Program,
    held: Option<Held>,
    /// The failure with which it ended by itself, if it ever did.
    failure: Option<Fate>,
    /// Whether it has been asked to end.
    asked: bool,
}

/// The robot's own program, held until the interface is there.
struct Held {
    program: Vec<OsString>,
    since: Clock,
}

impl Attendant {
    pub fn new(robot: &str, environment: Vec<(String, OsString)>) -> Self {
        Attendant {
            robot: robot.to_owned(),
            program: Program::new(robot, environment),
            held: None,
            failure: None,
            asked: false,
        }
    }

    /// Starts it unless it is running, and holds the robot's own program.
    pub fn start(
        &mut self,
        companion: &Companion,
        namespace: &Namespace,
        program: &[OsString],
        lines: &Lines,
    ) -> io::Result<()> {
        if !self.runs() {
            self.program.start(namespace, &companion.command, lines)?;
        }
        self.held = Some(Held {
            program: program.to_vec(),
            since: Clock::start(),
        });
        Ok(())
    }

    /// Returns whether the robot's program is held.
    pub fn holds(&self) -> bool {
        self.held.is_some()
    }

    /// Returns the robot's program once, when the interface is there.
    ///
    /// # Errors
    /// The companion has failed, or takes too long.
    pub fn release(&mut self, companion: &Companion, namespace: &Namespace) -> Result<Option<Vec<OsString>>, Error> {
        let Some(Held { since, .. }) = &self.held else {
            return Ok(None);
        };
        if namespace.has(&companion.interface) {
            return Ok(self.held.take().map(|held| held.program));
        }
        let interface = &companion.interface;
        let why = if !self.program.runs() && self.program.fate.failed() {
            format!("{} before it created the interface {interface}", self.program.fate)
        } else if READY_WITHIN <= since.now().since(Instant::ZERO) {
            format!("did not create the interface {interface} within {READY_WITHIN}")
        } else {
            return Ok(None);
        };
        let command = companion.command.join(OsStr::new(" "));
        Err(Error::Unable(format!(
            "{}: `{}` {why}; its output may say more",
            self.robot,
            command.to_string_lossy()
        )))
    }

    /// Returns whether it is running. If it has failed by itself, remembers how.
    pub fn runs(&mut self) -> bool {
        let runs = self.program.runs();
        if !runs && !self.asked && self.program.fate.failed() {
            self.failure = Some(self.program.fate);
        }
        runs
    }

    /// Asks it to end with the run.
    pub fn ask(&mut self) {
        self.asked = self.runs();
        self.program.signal(Signal::TERM);
    }

    /// Kills it and everything else in its namespace, because the robot dies.
    pub fn die(&mut self, namespace: &Namespace) {
        self.kill(namespace, Fate::Death);
    }

    /// Kills it and everything else in its namespace at the end of the run.
    pub fn end(&mut self, namespace: &Namespace) {
        let fate = if self.asked { Fate::Stopped } else { self.program.fate };
        self.kill(namespace, fate);
        self.program.finish();
    }

    fn kill(&mut self, namespace: &Namespace, why: Fate) {
        self.held = None;
        self.runs();
        self.program.kill(namespace, self.failure.unwrap_or(why));
    }

    /// Returns the way it ended.
    pub fn fate(&self) -> Fate {
        self.program.fate
    }

    /// Waits until all of its output has been forwarded.
    pub fn finish(&mut self) {
        self.program.finish();
    }
}
