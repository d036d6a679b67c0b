//! Whether a robot still decides, for whoever restarts it if it does not.

use std::sync::Arc;
use std::time::Duration;

use crate::shared_robot::SharedRobot;

/// Shows whether a robot still decides. Keeps neither the robot's sockets nor its threads.
#[derive(Clone, Debug)]
pub struct Pulse(pub(crate) Arc<SharedRobot>);

impl Pulse {
    /// Waits until the robot has failed: something panicked while it decided. Returns the reason, or `None` after
    /// `timeout`. Such a robot sends nothing any more, and only a new process helps.
    pub fn failed_within(&self, timeout: Duration) -> Option<String> {
        self.0.failed_within(timeout)
    }

    /// Returns how often the deciding thread has come round: at least once in [`Pulse::ROUND_MAX`], unless it hangs.
    pub fn rounds(&self) -> u64 {
        self.0.rounds()
    }

    /// The longest that a round lasts on a machine that is not overloaded.
    pub const ROUND_MAX: Duration = Duration::from_millis(500);
}
