//! What a policy makes of a team's channel, and what the team file replaces of the policy.

use coorp_air::phy::{SIFS, SLOT};
use coorp_air::{AccessCategory, Config};
use coorp_core::policy::Policy;
use coorp_core::{Duration, Instant, RobotId};
use coorp_scene::Scene;
pub(crate) use coorp_scene::{category, robot, station, MOVE_EVERY};
use coorp_team::{PolicyOverrides, Team};

/// Messages longer than this count as this long where their time on the air is estimated.
const MESSAGE_BYTES_MAX: u32 = 1 << 20;

/// The channel that the team file describes, without its links, as a policy sets its stations up.
pub(crate) fn config(team: &Team, policy: &Policy) -> Config {
    coorp_scene::config(&team.air, team.robots.len(), policy.rts_over)
}

/// How long all commands of a loop take on a quiet channel.
pub(crate) fn command_burst(team: &Team, policy: &Policy) -> Duration {
    let bytes = team.control.map_or(0, |control| control.command_bytes);
    burst(team, policy, bytes, |robot| (team.leader, robot))
}

/// How long all perceptions of a loop take on a quiet channel.
pub(crate) fn perception_burst(team: &Team, policy: &Policy) -> Duration {
    let bytes = team.control.map_or(0, |control| control.perception_bytes);
    burst(team, policy, bytes, |robot| (robot, team.leader))
}

/// For each robot but the leader, the mean wait of AC_VO and one exchange of `bytes`.
fn burst(team: &Team, policy: &Policy, bytes: u64, link: impl Fn(RobotId) -> (RobotId, RobotId)) -> Duration {
    let (config, scene) = (config(team, policy), Scene::new(team, 0));
    let voice = config.edca[AccessCategory::Voice.index()];
    let wait = SIFS + SLOT * u64::from(voice.aifsn) + SLOT * u64::from(voice.cw_min) / 2;
    let bytes = u32::try_from(bytes).unwrap_or(u32::MAX).min(MESSAGE_BYTES_MAX);
    let exchange = |robot| {
        let (from, to) = link(robot);
        let ppdu = config
            .phy
            .timing(scene.link(team, from, to, Instant::ZERO).rate)
            .ppdu(bytes);
        let announced = if ppdu > config.rts_over {
            config.phy.rts() + config.phy.cts() + SIFS * 2
        } else {
            Duration::ZERO
        };
        wait + announced + ppdu + SIFS + config.phy.ack()
    };
    let others = (0..team.robots.len() as u16)
        .map(RobotId)
        .filter(|robot| *robot != team.leader);
    others.map(exchange).fold(Duration::ZERO, |sum, time| sum + time)
}

/// The policy with what the team file's `[policy]` replaces of it.
pub(crate) fn overridden(policy: &Policy, overrides: &PolicyOverrides) -> Policy {
    let mut policy = policy.clone();
    replace(&mut policy.ack_every, overrides.ack_every);
    replace(&mut policy.rts_over, overrides.rts_over);
    if let Some(global) = &mut policy.global {
        replace(&mut global.limit, overrides.limit);
        replace(&mut global.slice, overrides.slice);
        replace(&mut global.lease, overrides.lease);
    }
    if let Some(local) = &mut policy.local {
        replace(&mut local.accuracy, overrides.accuracy);
        replace(&mut local.extension, overrides.extension);
        replace(&mut local.protection_percentile, overrides.protection_percentile);
        replace(
            &mut local.protection_percentile_max,
            overrides.protection_percentile_max.map(Some),
        );
        replace(
            &mut local.completion_samples,
            overrides.completion_samples.map(usize::from),
        );
        replace(&mut local.completions_stale, overrides.completions_stale.map(Some));
        replace(&mut local.early_release, overrides.early_release);
        replace(&mut local.command_windows, overrides.command_windows);
        replace(&mut local.shared_windows, overrides.shared_windows);
        replace(&mut local.steered_phases, overrides.steered_phases);
        replace(&mut local.window_share_max, overrides.window_share_max);
        replace(&mut local.transmit_status, overrides.transmit_status);
        replace(&mut local.resend_lost, overrides.resend_lost);
        replace(&mut local.backlog_max, overrides.backlog_max.map(Some));
    }
    policy
}

fn replace<T>(value: &mut T, by: Option<T>) {
    if let Some(by) = by {
        *value = by;
    }
}
