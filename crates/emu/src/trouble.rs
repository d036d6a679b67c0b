//! What befalls programs beside what the team file's script says: a process killed while its machine lives on, one that
//! freezes, one that is started as another command. And a way to see what happened when.

use std::ffi::OsString;
use std::fmt;
use std::sync::Arc;

use coorp_core::{Duration, RobotId};

/// One thing that befalls one robot's program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blow {
    /// When, counted from the programs' start.
    pub at: Duration,
    /// Whose program.
    pub robot: RobotId,
    /// What.
    pub what: What,
}

/// What befalls a program. Where it makes no sense, as for a program that has ended, nothing happens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// `kill -9`. The machine lives on: its kernel closes the connections.
    Kill,
    /// The program is started, by this command line.
    Start(Vec<OsString>),
    /// Its processes stand still (SIGSTOP).
    Freeze,
    /// They go on (SIGCONT).
    Thaw,
}

/// Sees a run from the outside. Called on the run's own threads: answer at once.
pub trait Watcher: Send + Sync {
    /// The run's clock starts now.
    fn began(&self);
    /// The stack of a robot has sent this Ethernet frame over `wlan0`, `wlan1` and so on.
    fn sent(&self, interface: usize, robot: RobotId, frame: &[u8]);
    /// The `number`th blow, from 0, falls now; once more when it has fallen.
    fn strikes(&self, number: usize, fallen: bool);
}

/// Nobody, or who watches.
#[derive(Clone, Default)]
pub struct Watched(pub Option<Arc<dyn Watcher>>);

impl fmt::Debug for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Watched({})", self.0.is_some())
    }
}
