//! What the window planner plans for: this robot's flows, the others', and the ends of loops.

use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

use super::ControlLoop;
use crate::arrival::TimeModel;
use crate::windows::WindowPlanner;
use crate::{Duration, Instant, RobotId};

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

/// When loops are at risk.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct LoopEnds {
    control: ControlLoop,
    /// How long before the bound commands are at risk.
    at_risk: Duration,
}

impl LoopEnds {
    pub fn new(control: ControlLoop, at_risk: Duration) -> Self {
        LoopEnds { control, at_risk }
    }

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

/// Plans for the ends of the loops that a flow's messages begin, or no longer if they begin none.
pub(super) fn set_end(
    planner: &mut WindowPlanner<FlowKey>,
    ends: &mut BTreeSet<FlowKey>,
    key: FlowKey,
    end: Option<TimeModel>,
    within: Duration,
    now: Instant,
) {
    match end {
        Some(end) => {
            // The planner has room for every flow of every robot.
            let _ = planner.set_bounded(key, end, within, now);
            ends.insert(key);
        }
        None if ends.remove(&key) => planner.remove_flow(key),
        None => {}
    }
}
