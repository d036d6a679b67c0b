//! SchedWiFi's plan for a team: an ST window for every perception and every command of a period (Deng 2022, section
//! VI).
//!
//! The plan is made before the run, from the team file, as the baseline does. Perceptions are at their robots' phases.
//! Commands begin when the perceptions have arrived on a quiet channel and the median inference has ended. The
//! bandwidth of eq. 4 is the link's PHY rate. Plain control flows have windows too. Every robot keeps bulk out of all
//! windows; control messages are not held. The plan runs on the leader's clock, which every robot knows to within the
//! widening, as under `coorp`.

use coorp_core::policy::{Policy, SchedWifiConfig};
use coorp_core::schedwifi::{st_window, Schedule, ScheduledFlow};
use coorp_core::{Duration, FlowId, Instant, RobotId};
use coorp_scene::Scene;
use coorp_team::{Control, Team, Traffic};

use crate::agent::CLOCK_ORIGIN;
use crate::setup;

/// First id of plain flows in the plan, after the ids of perceptions and commands.
const PLAIN: u32 = 1 << 20;

/// Computes the plan, on a clock that runs with the leader's. Empty if there is no control loop.
///
/// # Errors
/// The text to show if the windows do not fit the period.
pub(crate) fn schedule(
    team: &Team,
    policy: &Policy,
    phases: &[Duration],
    config: &SchedWifiConfig,
    control: Option<&Control>,
) -> Result<Schedule, String> {
    let mut flows = Vec::new();
    if let Some(control) = control {
        let phy = setup::config(team, policy).phy;
        let scene = Scene::new(team, 0);
        let window = |from: RobotId, to: RobotId, bytes: u64| {
            let link = scene.link(team, from, to, Instant::ZERO);
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
        let mut sampled = Duration::ZERO;
        for robot in others.clone() {
            let phase = phases.get(usize::from(robot.0)).copied().unwrap_or(Duration::ZERO);
            let length = window(robot, team.leader, control.perception_bytes);
            sampled = sampled.max(phase);
            let flow = FlowId(u32::from(robot.0));
            flows.push(ScheduledFlow {
                flow,
                period: control.period,
                phase,
                length,
            });
        }
        let told = sampled + setup::perception_burst(team, policy) + control.inference;
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
    for (place, plain) in team
        .flows
        .iter()
        .enumerate()
        .filter(|(_, flow)| !flow.bulk && policy.control)
    {
        if let Traffic::Periodic { size_bytes, period, .. } = plain.traffic {
            let link = Scene::new(team, 0).link(team, plain.from, plain.to, Instant::ZERO);
            let bandwidth_bps = setup::config(team, policy).phy.timing(link.rate).bits_per_second();
            let length = st_window(
                size_bytes,
                bandwidth_bps,
                config.sifs,
                config.acknowledgement,
                config.retries,
            );
            let flow = FlowId(PLAIN + place as u32);
            flows.push(ScheduledFlow {
                flow,
                period,
                phase: plain.start,
                length,
            });
        }
    }
    let origin = Instant::ZERO + CLOCK_ORIGIN;
    Schedule::lay(&flows, config.clock_skew, origin).map_err(|error| error.to_string())
}
