//! Which flows a robot's windows are planned for: its own, other robots', and the ends of control loops.

use serde::{Deserialize, Serialize};

use super::ControlLoop;
use crate::arrival::TimeModel;
use crate::{Duration, RobotId};

/// Control flows of one robot at most.
pub const FLOWS_MAX: usize = 64;
/// A period that is off by less than this part of the control loop's is the loop's.
const LOOP_PERIOD_SHARE: u64 = 32;

/// A flow in a robot's window planner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum FlowKey {
    /// This robot's own flow of that number.
    Own(u8),
    /// Another robot's, by its number with that robot.
    Of(RobotId, u8),
    /// The ends of the loops that such a flow's messages begin.
    LoopEnd(RobotId, u8),
}

/// One of this robot's own control flows.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct OwnFlow {
    pub taken: bool,
    /// The period that its publisher declared.
    pub period: Option<Duration>,
    /// The age at which its messages are late, if its publisher stated one.
    pub bound: Option<Duration>,
    /// How many of its newest messages in a row were put off.
    pub put_off: u8,
}

/// When loops are at risk.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct LoopEnds {
    pub control: ControlLoop,
    /// How long before the bound commands are at risk.
    pub at_risk: Duration,
}

impl LoopEnds {
    /// When the loops that begin with messages of this model are at risk: just before their bound. `None` if such messages
    /// begin no loops. What extends each window is part of that time.
    pub fn end(self, model: &TimeModel) -> Option<TimeModel> {
        let ControlLoop { period, bound } = self.control;
        let off = model.period.as_nanos().abs_diff(period.as_nanos());
        (off <= period.as_nanos() / LOOP_PERIOD_SHARE).then(|| TimeModel {
            phase: model.phase + bound.saturating_sub(self.at_risk),
            late: Duration::ZERO,
            ..*model
        })
    }
}
