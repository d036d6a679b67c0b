//! Shows whether a robot still decides, so that a supervisor can restart it otherwise.

use std::sync::Arc;
use std::time::Duration;

use crate::shared_robot::SharedRobot;

/// Shows whether a robot still decides. Keeps neither the robot's sockets nor its threads.
#[derive(Clone, Debug)]
pub struct Pulse(pub(crate) Arc<SharedRobot>);

impl Pulse {
    /// Waits until the robot has failed: something panicked while it decided. Returns the reason, or `None` after
    /// `timeout`. A failed robot no longer sends anything; only a new process helps.
    pub fn failed_within(&self, timeout: Duration) -> Option<String> {
        self.0.failed_within(timeout)
    }

    /// Returns the number of rounds of the deciding thread: at least one in [`Pulse::ROUND_MAX`], unless it hangs.
    pub fn rounds(&self) -> u64 {
        self.0.rounds()
    }

    /// Maximum duration of a round on a machine that is not overloaded.
    pub const ROUND_MAX: Duration = Duration::from_millis(500);
}
