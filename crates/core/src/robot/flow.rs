//! Which flows a robot's windows are planned for: its own, other robots', and the ends of control loops.

use serde::{Deserialize, Serialize};

use crate::{Duration, RobotId};

/// Control flows of one robot at most.
pub const FLOWS_MAX: usize = 64;

/// A flow in a robot's window planner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum FlowKey {
    /// This robot's own flow of that number.
    Own(u8),
    /// Another robot's, by its number with that robot.
    Of(RobotId, u8),
    /// The end of the control loop.
    LoopEnd,
}

/// One of this robot's own control flows.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct OwnFlow {
    pub taken: bool,
    /// Whether it is a flow of programs that know nothing of Coorp.
    pub foreign: bool,
    /// The period that its publisher declared.
    pub period: Option<Duration>,
    /// The age at which its messages are late, if its publisher stated one.
    pub bound: Option<Duration>,
    /// How many of its newest messages in a row were put off.
    pub put_off: u8,
}
