//! Turns a team file into its channels: the configuration of each, and the state of every link at an instant.
//!
//! Both the simulator and the emulator build their air here, so a file means the same in both. A link combines the team
//! file's settings, the distance while robots move, and scripted events. Left out: seeded faults, which belong to the
//! simulator, and the policy's effect on a channel, apart from its RTS threshold.
//!
//! ```
//! use coorp_core::{Duration, Instant, RobotId};
//! use coorp_scene::Scene;
//!
//! let file = r#"
//!     [[robot]]
//!     name = "base"
//!     leader = true
//!
//!     [[robot]]
//!     name = "scout"
//!
//!     [[event]]
//!     at = "10s"
//!     from = "scout"
//!     to = "base"
//!     loss = 0.4
//! "#;
//! let team = coorp_team::parse(file, "team.toml", ".".as_ref())?;
//! let loss_after = |seconds| {
//!     let now = Instant::ZERO + Duration::from_secs(seconds);
//!     Scene::new(&team, 0).link(&team, RobotId(1), RobotId(0), now).loss
//! };
//! assert!(loss_after(9) < 0.4);
//! assert_eq!(loss_after(11), 0.4);
//! # Ok::<(), coorp_team::LoadError>(())
//! ```

use coorp_air::link::{self, Link, PathLoss, Track};
use coorp_air::phy::{Phy, Rate, Standard};
use coorp_air::{AccessCategory, Air, Config, Edca, StationId, Wnic};
use coorp_core::{Duration, Instant, RobotId};
use coorp_team::{Change, Event, RateOverride, RateSource, Team};

/// The interval at which a moving robot's links are recomputed.
pub const MOVE_EVERY: Duration = Duration::from_millis(100);

/// Returns a robot's station on the air.
pub fn station(robot: RobotId) -> StationId {
    StationId(robot.0)
}

/// Returns the robot that a station belongs to.
pub fn robot(station: StationId) -> RobotId {
    RobotId(station.0)
}

/// Returns a flow's access category on the air.
pub fn category(category: coorp_team::Category) -> AccessCategory {
    AccessCategory::ALL[category.index()]
}

/// Returns all robots of a team.
pub fn robots(team: &Team) -> impl Iterator<Item = RobotId> + Clone {
    (0..u16::try_from(team.robots.len()).unwrap_or(u16::MAX)).map(RobotId)
}

fn standard(air: &coorp_team::Air) -> Standard {
    match air.standard {
        coorp_team::Standard::N => Standard::N,
        coorp_team::Standard::Ac => Standard::Ac,
        coorp_team::Standard::Ax => Standard::Ax,
    }
}

/// Returns the configuration of a channel with `stations` as in the team file, without its links. Transmissions longer
/// than `rts_over` are preceded by RTS/CTS, and all are if the file says so.
pub fn config(air: &coorp_team::Air, stations: usize, rts_over: Duration) -> Config {
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
            standard: standard(air),
            width_mhz: air.width_mhz,
            guard_interval_ns: air.guard_interval_ns,
            control_rate_mbps: air.control_rate_mbps,
        },
        edca,
        rts_over: if air.rts_cts { Duration::ZERO } else { rts_over },
        retries_max: wnic.retries_max,
        access_point: air.access_point.map(station),
        eifs: air.eifs,
        block_ack_request: air.block_ack_request,
        block_ack_frames: if frames_max > 64 { 256 } else { 64 },
        stations: u16::try_from(stations).unwrap_or(u16::MAX),
        wnic: Wnic {
            queue_frames: wnic.queue_frames,
            burst_frames: wnic.burst_frames,
            commit_frames: wnic.commit_frames,
            completes_on_transfer: wnic.completes_on_transfer,
            host_queue_packets: wnic.host_queue_packets as usize,
            codel: wnic.codel,
            mpdu_spacing: wnic.mpdu_spacing,
        },
        link: lowest(air),
    }
}

/// Returns the default link between robots.
fn lowest(air: &coorp_team::Air) -> Link {
    Link {
        rate: Rate {
            mcs: 0,
            streams: air.streams,
        },
        loss: air.loss,
    }
}

/// One channel of a team: the robots' positions, and the resulting links including scripted events.
#[derive(Clone, Debug)]
pub struct Scene {
    /// The index of this channel in the team; `wlan0`'s is the first.
    interface: usize,
    standard: Standard,
    width_mhz: u16,
    path_loss: PathLoss,
    tracks: Vec<Option<Track>>,
}

impl Scene {
    /// Creates the scene of `wlan0`, or of another interface numbered as in `Team::channels`. A number out of range
    /// means `wlan0`.
    pub fn new(team: &Team, interface: usize) -> Self {
        let track = |robot: &coorp_team::Robot| {
            let mut way = vec![robot.position_m?];
            way.extend(&robot.waypoints_m);
            Track::new(way, robot.speed_mps)
        };
        let air = team.channels().nth(interface).unwrap_or(&team.air);
        Scene {
            interface,
            standard: standard(air),
            width_mhz: air.width_mhz,
            path_loss: PathLoss {
                tx_power_dbm: air.tx_power_dbm,
                noise_dbm: air.noise_dbm,
                exponent: air.path_loss_exponent,
            },
            tracks: team.robots.iter().map(track).collect(),
        }
    }

    /// Returns whether any robot moves.
    pub fn moves(&self) -> bool {
        self.tracks.iter().flatten().any(Track::moves)
    }

    /// Sets the links of `pairs` to their state at `now`.
    pub fn set_links(&self, team: &Team, pairs: &[(RobotId, RobotId)], now: Instant, air: &mut Air) {
        let going_on = self.going_on(team, now);
        for (from, to) in pairs {
            air.set_link(
                station(*from),
                station(*to),
                self.link_under(team, &going_on, *from, *to, now),
            );
        }
    }

    /// Sets the links of those `pairs` that depend on the distance to their state at `now`.
    pub fn move_links(&self, team: &Team, pairs: &[(RobotId, RobotId)], now: Instant, air: &mut Air) {
        let by_distance = |(from, to): &(RobotId, RobotId)| {
            self.tracks.iter().flatten().any(Track::moves)
                && self
                    .rate(team, RateOverride::default(), *from, *to)
                    .is_some_and(|rate| rate.source == RateSource::Distance)
        };
        let moving: Vec<(RobotId, RobotId)> = pairs.iter().copied().filter(by_distance).collect();
        self.set_links(team, &moving, now, air);
    }

    /// Returns the link from one robot to another at `now`.
    pub fn link(&self, team: &Team, from: RobotId, to: RobotId, now: Instant) -> Link {
        self.link_under(team, &self.going_on(team, now), from, to, now)
    }

    /// Returns the time of the script's next change after `now`.
    pub fn next_change(team: &Team, now: Instant) -> Option<Instant> {
        let times = team.events.iter().flat_map(|event| [Some(event.at), event.until]);
        let times = times.flatten().map(|time| Instant::ZERO + time);
        times.filter(|time| *time > now).min()
    }

    /// Returns whether the script has switched a robot off at `now`.
    pub fn dead(team: &Team, robot: RobotId, now: Instant) -> bool {
        let after = now.since(Instant::ZERO);
        team.events.iter().any(|event| {
            event.active(after) && matches!(&event.change, Change::Death(robots) if robots.contains(&robot))
        })
    }

    /// Returns the events that affect this channel at `now`.
    fn going_on<'t>(&self, team: &'t Team, now: Instant) -> Vec<&'t Event> {
        let after = now.since(Instant::ZERO);
        let here = |event: &&Event| event.interface.is_none_or(|only| only == self.interface) && event.active(after);
        team.events.iter().filter(here).collect()
    }

    fn rate(&self, team: &Team, now: RateOverride, from: RobotId, to: RobotId) -> Option<coorp_team::LinkRate> {
        let air = team.channels().nth(self.interface).unwrap_or(&team.air);
        team.rate_on(air, now, from, to)
    }

    fn link_under(&self, team: &Team, events: &[&Event], from: RobotId, to: RobotId, now: Instant) -> Link {
        let (mut changed, mut cut) = (RateOverride::default(), false);
        for event in events {
            match &event.change {
                Change::Link {
                    from: one,
                    to: other,
                    rate,
                } => {
                    if one.is_none_or(|one| one == from) && other.is_none_or(|other| other == to) {
                        changed = rate.or(changed);
                    }
                }
                Change::Partition(robots) => cut |= robots.contains(&from) != robots.contains(&to),
                Change::Death(robots) => cut |= robots.contains(&from) || robots.contains(&to),
            }
        }
        let Some(rate) = self.rate(team, changed, from, to) else {
            return lowest(&team.air);
        };
        let from_snr = |snr_db| link::from_snr(self.standard, self.width_mhz, rate.streams, snr_db);
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
        link.loss = if cut {
            1.0
        } else {
            1.0 - (1.0 - link.loss) * (1.0 - rate.loss)
        };
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

#[cfg(test)]
mod tests {
    use super::*;

    const ROBOTS: &str =
        "[[robot]]\nname = \"base\"\nleader = true\n[[robot]]\nname = \"a\"\n[[robot]]\nname = \"b\"\n";
    const BASE: RobotId = RobotId(0);
    const A: RobotId = RobotId(1);
    const B: RobotId = RobotId(2);

    fn team_of(text: &str) -> Result<Team, coorp_team::LoadError> {
        coorp_team::parse(text, "t.toml", std::path::Path::new(""))
    }

    fn team(more: &str) -> Team {
        team_of(&format!("{ROBOTS}{more}")).expect("a valid team")
    }

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn events_change_their_links_for_their_time_and_the_later_one_wins() {
        let team = team(
            "[air]\nmcs = 5\n[[event]]\nat = \"2s\"\nuntil = \"4s\"\nfrom = \"a\"\nloss = 0.5\n\
             [[event]]\nat = \"3s\"\nfrom = \"a\"\nto = \"base\"\nmcs = 1\nloss = 0.25\n",
        );
        let scene = Scene::new(&team, 0);
        let link = |from, to, second| {
            let link = scene.link(&team, from, to, at(second));
            (link.rate.mcs, link.loss)
        };
        assert_eq!(
            [1, 2, 3, 4].map(|second| link(A, BASE, second)),
            [(5, 0.0), (5, 0.5), (1, 0.25), (1, 0.25)]
        );
        assert_eq!(
            [1, 2, 3, 4].map(|second| link(A, B, second)),
            [(5, 0.0), (5, 0.5), (5, 0.5), (5, 0.0)]
        );
        assert_eq!(link(BASE, A, 3), (5, 0.0), "the way back is another link");
        let changes: Vec<_> = [0, 2, 3, 4].map(|second| Scene::next_change(&team, at(second))).into();
        assert_eq!(changes, [Some(at(2)), Some(at(3)), Some(at(4)), None]);
    }

    #[test]
    fn a_partition_and_a_death_cut_links() {
        let team = team(
            "[[event]]\nat = \"1s\"\nuntil = \"2s\"\npartition = [\"a\"]\n\
             [[event]]\nat = \"3s\"\nuntil = \"5s\"\ndeath = [\"b\"]\n",
        );
        let scene = Scene::new(&team, 0);
        let cut = |from, to, second| scene.link(&team, from, to, at(second)).loss >= 1.0;
        assert!(cut(A, BASE, 1) && cut(BASE, A, 1) && !cut(B, BASE, 1));
        assert!(!cut(A, BASE, 2) && !cut(A, BASE, 3));
        assert!(cut(A, B, 4) && cut(B, BASE, 4) && !cut(B, BASE, 5));
        assert!(Scene::dead(&team, B, at(4)) && !Scene::dead(&team, B, at(5)) && !Scene::dead(&team, A, at(4)));
    }

    #[test]
    fn no_signal_gives_a_rate_that_a_team_file_could_not_set() {
        for width_mhz in [20, 40, 80] {
            for streams in 1..=4 {
                for snr_db in 0..=40 {
                    let air =
                        |rate: String| format!("{ROBOTS}[air]\nwidth_mhz = {width_mhz}\nstreams = {streams}\n{rate}\n");
                    let team = team_of(&air(format!("snr_db = {snr_db}"))).expect("a valid team");
                    let mcs = Scene::new(&team, 0).link(&team, A, BASE, at(0)).rate.mcs;
                    let fixed = team_of(&air(format!("mcs = {mcs}")));
                    assert!(
                        fixed.is_ok(),
                        "{width_mhz} MHz, {streams} streams, {snr_db} dB: MCS {mcs}"
                    );
                }
            }
        }
    }

    #[test]
    fn each_interface_has_its_own_links() {
        let team = team("[air]\nmcs = 3\n[[interface]]\nchannel = 149\nmcs = 6\n[[event]]\nat = \"1s\"\nloss = 0.5\ninterface = \"wlan1\"\n");
        let link = |interface, second| Scene::new(&team, interface).link(&team, A, B, at(second));
        assert_eq!((link(0, 1).rate.mcs, link(0, 1).loss), (3, 0.0));
        assert_eq!((link(1, 0).rate.mcs, link(1, 0).loss, link(1, 1).loss), (6, 0.0, 0.5));
    }
}
