//! Faults injected into programs in addition to the team file's script: a process is killed while its machine stays up,
//! freezes, or is started with another command. Also an observer of what happens when.

use std::ffi::OsString;
use std::fmt;
use std::sync::Arc;

use coorp_core::{Duration, RobotId};

/// A fault injected into one robot's program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blow {
    /// The time since the programs' start.
    pub at: Duration,
    /// The robot.
    pub robot: RobotId,
    /// The fault.
    pub what: What,
}

/// A fault. If it does not apply, for example to a program that has ended, nothing happens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// `kill -9`, also of its companion. The machine stays up: its kernel closes the connections.
    Kill,
    /// Starts the program with this command line, after its companion.
    Start(Vec<OsString>),
    /// Stops its processes (SIGSTOP).
    Freeze,
    /// Continues them (SIGCONT).
    Thaw,
}

/// Observes a run from the outside. Called on the run's own threads: return quickly.
pub trait Watcher: Send + Sync {
    /// Called when the run's clock starts. Companions may have sent frames before.
    fn began(&self);
    /// Called with each Ethernet frame that a robot's stack has sent on interface `wlan0`, `wlan1` and so on.
    fn sent(&self, interface: usize, robot: RobotId, frame: &[u8]);
    /// Called just before fault `number`, counted from 0, is injected, and again once it has been injected.
    fn strikes(&self, number: usize, fallen: bool);
}

/// The observer, if any.
#[derive(Clone, Default)]
pub struct Watched(pub Option<Arc<dyn Watcher>>);

impl fmt::Debug for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Watched({})", self.0.is_some())
    }
}
