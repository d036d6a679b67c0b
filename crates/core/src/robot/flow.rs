//! The flows for which a robot plans windows: its own, other robots', and the ends of control loops.

use serde::{Deserialize, Serialize};

use crate::{Duration, RobotId};

/// The maximum number of control flows of one robot.
pub const FLOWS_MAX: usize = 64;
/// Maximum number of these that belong to programs that know nothing about Coorp.
pub(super) const FOREIGN_FLOWS_MAX: usize = 48;

/// A flow in a robot's window planner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum FlowKey {
    /// This robot's own flow of this number.
    Own(u8),
    /// Another robot's flow, by that robot's number for it.
    Of(RobotId, u8),
    /// The end of the control loop.
    LoopEnd,
}

/// One of this robot's own control flows.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct OwnFlow {
    pub taken: bool,
    /// Whether the flow belongs to programs that know nothing about Coorp.
    pub foreign: bool,
    /// The period that the publisher declared.
    pub period: Option<Duration>,
    /// The age at which messages are late, if the publisher stated one.
    pub bound: Option<Duration>,
    /// The number of newest consecutive messages that were put off.
    pub put_off: u8,
}
