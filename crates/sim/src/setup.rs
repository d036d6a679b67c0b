//! From the team file's air to the channel's configuration.

use coorp_air::link::{self, Link, PathLoss, Track};
use coorp_air::phy::{Phy, Rate, Standard, SIFS, SLOT};
use coorp_air::{AccessCategory, Air, Config, Edca, StationId, Wnic};
use coorp_core::policy::Policy;
use coorp_core::{Duration, Instant, RobotId};
use coorp_team::{PolicyOverrides, RateSource, Team};

/// How often a moving robot's links are worked out anew.
pub(crate) const MOVE_EVERY: Duration = Duration::from_millis(100);

/// Messages longer than this count as this long where their time on the air is estimated.
const MESSAGE_BYTES_MAX: u32 = 1 << 20;

/// The station that a robot is on the air.
pub(crate) fn station(robot: RobotId) -> StationId {
    StationId(robot.0)
}

/// The robot that a station belongs to.
pub(crate) fn robot(station: StationId) -> RobotId {
    RobotId(station.0)
}

fn standard(team: &Team) -> Standard {
    match team.air.standard {
        coorp_team::Standard::N => Standard::N,
        coorp_team::Standard::Ac => Standard::Ac,
        coorp_team::Standard::Ax => Standard::Ax,
    }
}

/// The channel that the team file describes, without its links, as a policy sets its stations up.
pub(crate) fn config(team: &Team, policy: &Policy) -> Config {
    let air = &team.air;
    let wnic = &air.wnic;
    let edca = air.edca.map(|edca| Edca {
        aifsn: edca.aifsn,
        cw_min: edca.cw_min,
        cw_max: edca.cw_max,
        txop: edca.txop,
        ampdu_frames: edca.ampdu_frames.min(wnic.ampdu_frames_max.unwrap_or(u16::MAX)),
        ampdu_bytes: edca.ampdu_bytes.min(wnic.ampdu_bytes_max.unwrap_or(u32::MAX)),
    });
    let frames_max = edca.iter().map(|edca| edca.ampdu_frames).max().unwrap_or(1);
    Config {
        phy: Phy {
            standard: standard(team),
            width_mhz: air.width_mhz,
            guard_interval_ns: air.guard_interval_ns,
            control_rate_mbps: air.control_rate_mbps,
        },
        edca,
        rts_over: if air.rts_cts { Duration::ZERO } else { policy.rts_over },
        retries_max: wnic.retries_max,
        block_ack_frames: if frames_max > 64 { 256 } else { 64 },
        stations: team.robots.len() as u16,
        wnic: Wnic {
            queue_frames: wnic.queue_frames,
            burst_frames: wnic.burst_frames,
            commit_frames: wnic.commit_frames,
            completes_on_transfer: wnic.completes_on_transfer,
            host_queue_packets: wnic.host_queue_packets as usize,
            codel: wnic.codel,
            mpdu_spacing: wnic.mpdu_spacing,
        },
        link: lowest(team),
    }
}

/// The link between robots that nothing is said of.
fn lowest(team: &Team) -> Link {
    Link {
        rate: Rate {
            mcs: 0,
            streams: team.air.streams,
        },
        loss: team.air.loss,
    }
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
    let (config, geometry) = (config(team, policy), Geometry::new(team));
    let voice = config.edca[AccessCategory::Voice.index()];
    let wait = SIFS + SLOT * u64::from(voice.aifsn) + SLOT * u64::from(voice.cw_min) / 2;
    let bytes = u32::try_from(bytes).unwrap_or(u32::MAX).min(MESSAGE_BYTES_MAX);
    let exchange = |robot| {
        let (from, to) = link(robot);
        let ppdu = config
            .phy
            .timing(geometry.link(team, from, to, Instant::ZERO).rate)
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

/// A flow's access category on the air.
pub(crate) fn category(category: coorp_team::Category) -> AccessCategory {
    AccessCategory::ALL[category.index()]
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

/// Where everybody is and what that makes of the links.
#[derive(Debug)]
pub(crate) struct Geometry {
    standard: Standard,
    path_loss: PathLoss,
    tracks: Vec<Option<Track>>,
}

impl Geometry {
    pub fn new(team: &Team) -> Self {
        let track = |robot: &coorp_team::Robot| {
            let mut way = vec![robot.position_m?];
            way.extend(&robot.waypoints_m);
            Track::new(way, robot.speed_mps)
        };
        Geometry {
            standard: standard(team),
            path_loss: PathLoss {
                tx_power_dbm: team.air.tx_power_dbm,
                noise_dbm: team.air.noise_dbm,
                exponent: team.air.path_loss_exponent,
            },
            tracks: team.robots.iter().map(track).collect(),
        }
    }

    /// Whether any robot moves.
    pub fn moves(&self) -> bool {
        self.tracks.iter().flatten().any(Track::moves)
    }

    /// Sets the links of `pairs` as they are at `now`; at the start all of them, later those that distance decides.
    pub fn set_links(&self, team: &Team, pairs: &[(RobotId, RobotId)], now: Instant, air: &mut Air) {
        for (from, to) in pairs {
            let by_distance = team
                .rate(*from, *to)
                .is_some_and(|rate| rate.source == RateSource::Distance);
            if now == Instant::ZERO || by_distance {
                air.set_link(station(*from), station(*to), self.link(team, *from, *to, now));
            }
        }
    }

    /// The link from one robot to another as it is at `now`.
    pub fn link(&self, team: &Team, from: RobotId, to: RobotId, now: Instant) -> Link {
        let Some(rate) = team.rate(from, to) else {
            return lowest(team);
        };
        let from_snr = |snr_db| link::from_snr(self.standard, rate.streams, snr_db);
        let mut link = match rate.source {
            RateSource::Mcs(mcs) => Link {
                rate: Rate {
                    mcs,
                    streams: rate.streams,
                },
                loss: 0.0,
            },
            RateSource::SnrDb(snr_db) => from_snr(snr_db),
            RateSource::Distance => from_snr(self.path_loss.snr_db(self.distance_m(from, to, now))),
        };
        link.loss = 1.0 - (1.0 - link.loss) * (1.0 - rate.loss);
        link
    }

    fn distance_m(&self, from: RobotId, to: RobotId, now: Instant) -> f64 {
        let at = |robot: RobotId| self.tracks.get(usize::from(robot.0)).and_then(Option::as_ref);
        match (at(from), at(to)) {
            (Some(a), Some(b)) => link::distance_m(a.at(now.as_secs_f64()), b.at(now.as_secs_f64())),
            _ => 1.0,
        }
    }
}
