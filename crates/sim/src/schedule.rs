//! SchedWiFi's plan for a team: an ST window for every perception and every command of a period (001, section VI).
//!
//! The plan is made before the run, from the team file, as the baseline does: perceptions at their robots' phases,
//! commands after the perceptions' windows and the median inference. The bandwidth of eq. 4 is the link's PHY rate.
//! Every robot keeps bulk out of all windows. Control messages themselves are not held.

use coorp_core::policy::{Policy, SchedWifiConfig};
use coorp_core::schedwifi::{st_window, Schedule, ScheduledFlow};
use coorp_core::{Duration, FlowId, Instant, RobotId};
use coorp_team::{Control, Team};

use crate::agent::CLOCK_ORIGIN;
use crate::setup::{self, Geometry};

/// The plan, on a clock that runs with the leader's. Empty where there is no control loop.
///
/// # Errors
/// The text to show where the windows do not fit the period.
pub(crate) fn schedule(
    team: &Team,
    policy: &Policy,
    config: &SchedWifiConfig,
    control: Option<&Control>,
) -> Result<Schedule, String> {
    let mut flows = Vec::new();
    if let Some(control) = control {
        let phy = setup::config(team, policy).phy;
        let geometry = Geometry::new(team);
        let window = |from: RobotId, to: RobotId, bytes: u64| {
            let link = geometry.link(team, from, to, Instant::ZERO);
            let bandwidth_bps = phy.timing(link.rate).bits_per_second();
            st_window(
                bytes,
                bandwidth_bps,
                config.sifs,
                config.acknowledgement,
                config.retries,
            )
        };
        let others = (0..team.robots.len() as u16)
            .map(RobotId)
            .filter(|robot| *robot != team.leader);
        let mut perceived = Duration::ZERO;
        for robot in others.clone() {
            let phase = team.robots[usize::from(robot.0)].phase.unwrap_or(Duration::ZERO);
            let length = window(robot, team.leader, control.perception_bytes);
            perceived = perceived.max(phase) + length;
            let flow = FlowId(u32::from(robot.0));
            flows.push(ScheduledFlow {
                flow,
                period: control.period,
                phase,
                length,
            });
        }
        let told = perceived + control.inference;
        for robot in others {
            let length = window(team.leader, robot, control.command_bytes);
            let flow = FlowId(u32::from(u16::MAX) + u32::from(robot.0));
            flows.push(ScheduledFlow {
                flow,
                period: control.period,
                phase: told,
                length,
            });
        }
    }
    let origin = Instant::ZERO + CLOCK_ORIGIN;
    Schedule::lay(&flows, config.clock_skew, origin).map_err(|error| error.to_string())
}
