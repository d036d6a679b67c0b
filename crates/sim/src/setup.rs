//! A team's channel under a policy.

use coorp_air::phy::{SIFS, SLOT};
use coorp_air::{AccessCategory, Config};
use coorp_core::policy::Policy;
use coorp_core::{Duration, Instant, RobotId};
use coorp_scene::Scene;
pub(crate) use coorp_scene::{category, robot, station, MOVE_EVERY};
use coorp_team::Team;

/// Messages longer than this count as this long when their time on the air is estimated.
const MESSAGE_BYTES_MAX: u32 = 1 << 20;

/// Returns the channel that the team file describes, without its links, with stations configured by a policy.
pub(crate) fn config(team: &Team, policy: &Policy) -> Config {
    coorp_scene::config(&team.air, team.robots.len(), policy.rts_over)
}

/// Returns how long all perceptions of a loop take on a quiet channel.
pub(crate) fn perception_burst(team: &Team, policy: &Policy) -> Duration {
    let bytes = team.control.map_or(0, |control| control.perception_bytes);
    burst(team, policy, bytes, |robot| (robot, team.leader))
}

/// Sums up, for each robot except the leader, the mean wait of AC_VO and one exchange of `bytes`.
fn burst(team: &Team, policy: &Policy, bytes: u64, link: impl Fn(RobotId) -> (RobotId, RobotId)) -> Duration {
    let (config, scene) = (config(team, policy), Scene::new(team, 0));
    let voice = config.edca[AccessCategory::Voice.index()];
    let wait = SIFS + SLOT * u64::from(voice.aifsn) + SLOT * u64::from(voice.cw_min) / 2;
    let bytes = u32::try_from(bytes).unwrap_or(u32::MAX).min(MESSAGE_BYTES_MAX);
    let exchange = |(from, to)| {
        let rate = scene.link(team, from, to, Instant::ZERO).rate;
        let (ppdu, control) = (config.phy.timing(rate).ppdu(bytes), config.phy.control_rate(rate));
        let announced = if ppdu > config.rts_over {
            control.rts() + control.cts() + SIFS * 2
        } else {
            Duration::ZERO
        };
        wait + announced + ppdu + SIFS + control.ack()
    };
    let others = (0..team.robots.len() as u16)
        .map(RobotId)
        .filter(|robot| *robot != team.leader);
    let hops = others.flat_map(|robot| {
        let (from, to) = link(robot);
        team.hops(&team.air, from, to)
    });
    hops.map(exchange).fold(Duration::ZERO, |sum, time| sum + time)
}
