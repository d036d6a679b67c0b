//! Decides when a loop's commands need a quiet channel (decision 4).
//!
//! A loop begins with its first perception. Every robot soon knows of it: the robot made one itself, heard one as the
//! leader, or was told by the leader. Commands take [`LoopEnds::commands`] in a quiet channel. If they are made later
//! than that before the bound, the loop is late whatever bulk does. If they are made earlier by more than bulk can
//! delay them, it is in time. The time in between is at risk, unless the commands are already out.
//!
//! Left out: loops that overlap. A robot follows only the newest one.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::ControlLoop;
use crate::arrival::{Arrival, TimeModel};
use crate::loops::Quiet;
use crate::{Duration, Instant, RobotId};

/// A period counts as the control loop's if it differs by less than this part of it.
const LOOP_PERIOD_SHARE: u64 = 32;

/// The state that follows the team's control loops.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct LoopEnds {
    control: ControlLoop,
    /// How much bulk may delay commands.
    delay: Duration,
    /// The flows whose messages begin loops.
    starts: BTreeSet<(RobotId, u8)>,
    /// When the current loop began; `None` once its commands are out.
    began: Option<Instant>,
    /// When the previous loop began.
    ended: Option<Instant>,
    commands: Quiet,
}

impl LoopEnds {
    pub fn new(control: ControlLoop, delay: Duration) -> Self {
        LoopEnds {
            control,
            delay,
            starts: BTreeSet::new(),
            began: None,
            ended: None,
            commands: Quiet::default(),
        }
    }

    /// Returns whether messages of this model begin loops, judged by their period.
    pub fn is_start(&self, model: &TimeModel) -> bool {
        let period = self.control.period.as_nanos();
        model.period.as_nanos().abs_diff(period) <= period / LOOP_PERIOD_SHARE
    }

    /// Sets whether a flow's messages begin loops.
    pub fn set_start(&mut self, flow: (RobotId, u8), starts: bool) {
        if starts {
            self.starts.insert(flow);
        } else {
            self.starts.remove(&flow);
        }
    }

    /// Returns whether this flow's messages begin loops.
    pub fn starts(&self, flow: (RobotId, u8)) -> bool {
        self.starts.contains(&flow)
    }

    /// Notes that a control message was made at `made_at`. Returns whether this changes when a loop began.
    pub fn on_message(&mut self, flow: (RobotId, u8), made_at: Instant) -> bool {
        let half = self.control.period / 2;
        let of_ended = self.ended.is_some_and(|ended| made_at < ended + half);
        let of_current = self.began.is_some_and(|began| {
            let later = made_at >= began && made_at < began + half;
            later || made_at + half < began
        });
        let changes = self.starts(flow) && !of_ended && !of_current;
        if changes {
            self.began = Some(made_at);
        }
        changes
    }

    /// Notes that the commands made at `made_at` are out. Returns whether they end a loop.
    pub fn on_commands(&mut self, made_at: Instant) -> bool {
        let ended = self.began.filter(|began| made_at >= *began);
        if ended.is_some() {
            (self.ended, self.began) = (ended, None);
        }
        ended.is_some()
    }

    /// Adds a sample of the time that a loop's commands took from being made until the last had left.
    pub fn on_took(&mut self, took: Duration) {
        self.commands.add(took);
    }

    /// Returns the current loop's time at risk.
    pub fn at_risk(&self) -> Option<Arrival> {
        let bound = self.began? + self.control.bound;
        let expected = bound - self.commands.get().min(self.control.bound);
        Some(Arrival {
            expected,
            early: self.delay,
            late: Duration::ZERO,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: u64 = 1_000_000;
    const FLOW: (RobotId, u8) = (RobotId(1), 0);

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * MS)
    }

    fn ends() -> LoopEnds {
        let control = ControlLoop {
            period: Duration::from_millis(40),
            bound: Duration::from_millis(30),
        };
        let mut ends = LoopEnds::new(control, Duration::from_millis(4));
        ends.set_start(FLOW, true);
        ends.set_start((RobotId(2), 0), true);
        ends
    }

    fn span(ends: &LoopEnds) -> Option<(u64, u64)> {
        let at_risk = ends.at_risk()?;
        Some((at_risk.start().as_nanos() / MS, at_risk.end().as_nanos() / MS))
    }

    #[test]
    fn a_loop_begins_with_the_earliest_message_and_ends_with_its_commands() {
        let mut ends = ends();
        assert!(!ends.on_message((RobotId(3), 0), at(99)), "it begins no loop");
        assert!(ends.on_message(FLOW, at(102)));
        assert!(
            ends.on_message((RobotId(2), 0), at(100)),
            "an earlier one of the same loop"
        );
        assert!(!ends.on_message(FLOW, at(103)));
        assert_eq!(span(&ends), Some((126, 130)));
        assert!(!ends.on_commands(at(98)), "those of the loop before");
        assert!(ends.on_commands(at(120)));
        assert_eq!(span(&ends), None);
        assert!(!ends.on_message(FLOW, at(101)), "heard late");
        assert!(ends.on_message(FLOW, at(141)));
        assert_eq!(span(&ends), Some((167, 171)));
        assert!(ends.on_message(FLOW, at(180)), "a loop that never ended");
    }

    #[test]
    fn commands_that_take_long_are_at_risk_earlier() {
        let mut ends = ends();
        (0..64).for_each(|_| ends.on_took(Duration::from_millis(6)));
        ends.on_took(Duration::from_millis(20));
        ends.on_message(FLOW, at(100));
        assert_eq!(span(&ends), Some((120, 124)));
        (0..64).for_each(|_| ends.on_took(Duration::from_secs(1)));
        assert_eq!(span(&ends).map(|(_, end)| end), Some(100), "never before the loop");
    }

    proptest! {
        #[test]
        fn times_at_risk_lie_within_a_loop(
            events in prop::collection::vec((0..3u8, 0..4u16, 0..2_000u64, 0..50u64), 1..100)
        ) {
            let mut ends = ends();
            for (kind, robot, ms, took) in events {
                match kind {
                    0 => _ = ends.on_message((RobotId(robot), 0), at(ms)),
                    1 => _ = ends.on_commands(at(ms)),
                    _ => ends.on_took(Duration::from_millis(took)),
                }
                if let Some(at_risk) = ends.at_risk() {
                    prop_assert!(at_risk.start() <= at_risk.end());
                    let began = ends.began.unwrap();
                    prop_assert!(began <= at_risk.end() && at_risk.end() <= began + ends.control.bound);
                }
            }
        }
    }
}
