//! The paths from one robot to each other one: which carry a control message, which bulk.
//!
//! The decisions are [`coorp_core::paths`] (DupCon, 004): one sender and one listener for each robot that shares several
//! paths with this one. Path k leads from this robot's interface k to the other's interface k, and what goes over it goes
//! through link k. With a robot that shares one path there is nothing to choose; that path is not probed, as
//! probes cost air.
//!
//! Left out: paths between different interfaces of two robots, which networks that are kept apart do not have.

use std::collections::VecDeque;

use coorp_core::paths::{Class, Copy, Echo, InterfaceId, Listener, PathAction, PathConfig, PathId, Probe, Sender};
use coorp_core::{Instant, RobotId};
use coorp_team::Team;

use crate::status;

/// Paths that a robot has.
fn paths_of(team: &Team, robot: RobotId) -> usize {
    let robot = &team.robots[usize::from(robot.0)];
    robot.interfaces.len().max(robot.addresses.len()).max(1)
}

/// Paths that lead from one robot to another.
pub(crate) fn paths_between(team: &Team, one: RobotId, other: RobotId) -> usize {
    paths_of(team, one).min(paths_of(team, other))
}

/// Whether any two robots of a team have a choice of paths.
pub(crate) fn any_choice(team: &Team) -> bool {
    let robots = (0u16..).map(RobotId).zip(&team.robots);
    robots.filter(|(robot, _)| paths_of(team, *robot) > 1).count() > 1
}

/// The paths of a robot that are used: one where it has no choice.
pub(crate) fn paths_used(team: &Team, robot: RobotId) -> usize {
    if any_choice(team) {
        paths_of(team, robot)
    } else {
        1
    }
}

/// All that one robot knows of paths.
#[derive(Debug)]
pub(crate) struct Paths {
    /// By robot; `None` where there is no choice.
    peers: Vec<Option<Peer>>,
    /// The earliest of all senders' deadlines.
    deadline: Instant,
    actions: VecDeque<(RobotId, PathAction)>,
}

#[derive(Debug)]
struct Peer {
    sender: Sender,
    listener: Listener,
    paths: usize,
    deadline: Instant,
    /// The path that carries bulk, while one does.
    bulk: Option<PathId>,
}

impl Paths {
    /// # Errors
    /// Where a robot has more paths than the decisions know.
    pub fn new(team: &Team, me: RobotId, incarnation: u32, now: Instant) -> Result<Self, String> {
        let default = PathConfig::default();
        let config = PathConfig {
            duplicate: team.live.duplicate,
            // Later than the loop's bound is of no use.
            target: team.control.as_ref().map_or(default.target, |control| control.bound),
            ..default
        };
        let peer = |robot: RobotId| {
            let paths = paths_between(team, me, robot);
            if robot == me || paths < 2 {
                return Ok(None);
            }
            let interfaces: Vec<InterfaceId> = (0u8..).map(InterfaceId).take(paths).collect();
            let sender =
                Sender::new(config.clone(), &interfaces, incarnation, now).map_err(|error| error.to_string())?;
            Ok(Some(Peer {
                // Nothing is sent yet, so nothing is probed.
                deadline: Instant::FAR_FUTURE,
                sender,
                listener: Listener::new(paths).map_err(|error| error.to_string())?,
                paths,
                bulk: None,
            }))
        };
        let peers = (0u16..).map(RobotId).zip(&team.robots).map(|(robot, _)| peer(robot));
        Ok(Paths {
            peers: peers.collect::<Result<_, String>>()?,
            deadline: Instant::FAR_FUTURE,
            actions: VecDeque::new(),
        })
    }

    /// A control message goes to a robot: its copies. None where there is no choice of paths.
    pub fn assign(&mut self, to: RobotId, now: Instant) -> Vec<Copy> {
        self.with(to, |peer| peer.sender.assign(Class::Control, now))
            .unwrap_or_default()
    }

    /// Bulk goes, or is to go, to a robot: over which path, and whether that path lives. While bulk goes this is asked
    /// again and again, which keeps the paths probed.
    pub fn bulk_path(&mut self, to: RobotId, now: Instant) -> PathId {
        let best = self.with(to, |peer| {
            let copies = peer.sender.assign(Class::Bulk, now);
            copies.first().map(|copy| copy.path)
        });
        best.flatten().unwrap_or(PathId(0))
    }

    /// Over which path bulk goes to a robot now, for whoever looks.
    pub fn set_bulk(&mut self, to: RobotId, path: Option<PathId>) {
        if let Some(Some(peer)) = self.peers.get_mut(usize::from(to.0)) {
            peer.bulk = path;
        }
    }

    /// Whether a path leads to a robot. The only one there is counts as alive.
    pub fn is_alive(&self, to: RobotId, path: PathId) -> bool {
        let peer = self.peers.get(usize::from(to.0)).and_then(Option::as_ref);
        peer.is_none_or(|peer| peer.sender.health(path).is_some_and(|health| health.alive))
    }

    /// A copy of a control message came from a robot.
    pub fn on_copy(&mut self, from: RobotId, path: PathId, incarnation: u32, number: u32) {
        if let Some(Some(peer)) = self.peers.get_mut(usize::from(from.0)) {
            peer.listener.on_copy(path, incarnation, number);
        }
    }

    /// A robot probes a path: what to answer, over the same path.
    pub fn on_probe(&mut self, from: RobotId, probe: Probe) -> Option<Echo> {
        let peer = self.peers.get_mut(usize::from(from.0))?.as_mut()?;
        peer.listener.on_probe(probe)
    }

    /// A robot answers a probe of ours.
    pub fn on_echo(&mut self, from: RobotId, echo: Echo, now: Instant) {
        self.with(from, |peer| peer.sender.on_echo(echo, now));
    }

    pub fn on_deadline(&mut self, now: Instant) {
        if now < self.deadline {
            return;
        }
        for robot in (0u16..).map(RobotId).take(self.peers.len()) {
            let due = self.peers[usize::from(robot.0)]
                .as_ref()
                .is_some_and(|peer| peer.deadline <= now);
            if due {
                self.with(robot, |peer| peer.sender.on_deadline(now));
            }
        }
    }

    pub fn next_deadline(&self) -> Instant {
        self.deadline
    }

    /// The next thing to do, until `None`.
    pub fn poll(&mut self) -> Option<(RobotId, PathAction)> {
        self.actions.pop_front()
    }

    /// What is known of all paths between which there is a choice.
    pub fn status(&self, now: Instant) -> Vec<status::Path> {
        let peers = (0u16..).zip(&self.peers);
        let peers = peers.filter_map(|(to, peer)| Some((to, peer.as_ref()?)));
        let paths = peers.flat_map(|(to, peer)| (0..peer.paths).map(move |path| peer.status(to, path, now)));
        paths.collect()
    }

    /// Does something with what is known of a robot, and keeps up what follows from it.
    fn with<T>(&mut self, robot: RobotId, what: impl FnOnce(&mut Peer) -> T) -> Option<T> {
        let peer = self.peers.get_mut(usize::from(robot.0))?.as_mut()?;
        let done = what(peer);
        self.actions
            .extend(std::iter::from_fn(|| peer.sender.poll()).map(|action| (robot, action)));
        let before = std::mem::replace(
            &mut peer.deadline,
            peer.sender.next_deadline().unwrap_or(Instant::FAR_FUTURE),
        );
        if peer.deadline < self.deadline {
            self.deadline = peer.deadline;
        } else if before <= self.deadline {
            // It was the earliest, or one of them.
            let deadlines = self.peers.iter().flatten().map(|peer| peer.deadline);
            self.deadline = deadlines.min().unwrap_or(Instant::FAR_FUTURE);
        }
        Some(done)
    }
}

impl Peer {
    fn status(&self, to: u16, path: usize, now: Instant) -> status::Path {
        let id = PathId(path as u8);
        let health = self.sender.health(id);
        let carriers = self.sender.carriers();
        status::Path {
            to,
            path: path as u64,
            state: match health {
                _ if self.sender.is_resting(now) => status::PathState::Resting,
                Some(health) if health.alive => status::PathState::Alive,
                _ => status::PathState::Dead,
            },
            round_trip_us: health
                .and_then(|health| health.round_trip)
                .map(|round_trip| round_trip.as_nanos() / 1_000),
            failures_ppm: health.map_or(0, |health| (health.failures * 1e6) as u32),
            carries: match carriers.iter().position(|carrier| *carrier == id) {
                Some(0) => status::Carries::Original,
                Some(_) => status::Carries::Duplicate,
                None => status::Carries::Nothing,
            },
            bulk: self.bulk == Some(id),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    const TEAM: &str = "[[robot]]\nname = \"a\"\nleader = true\ninterfaces = [\"w0\", \"w1\"]\n\
                        [[robot]]\nname = \"b\"\ninterfaces = [\"w0\", \"w1\"]\n[[robot]]\nname = \"c\"\n";

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    fn paths(duplicate: &str) -> Paths {
        let text = format!("{TEAM}[live]\nduplicate = \"{duplicate}\"\n");
        let team = coorp_team::parse(&text, "t.toml", Path::new("")).unwrap();
        Paths::new(&team, RobotId(0), 1, at(0)).unwrap()
    }

    /// Control every 10 ms; `answers` says which paths are answered, 2 ms later.
    fn run(paths: &mut Paths, other: &mut Paths, span: std::ops::Range<u64>, answers: [bool; 2]) {
        let mut echoes = VecDeque::new();
        for ms in span {
            if ms % 10 == 0 {
                for copy in paths.assign(RobotId(1), at(ms)) {
                    if answers[usize::from(copy.path.0)] {
                        other.on_copy(RobotId(0), copy.path, 1, copy.number.unwrap());
                    }
                }
            }
            while echoes.front().is_some_and(|(due, _)| *due <= ms) {
                paths.on_echo(RobotId(1), echoes.pop_front().unwrap().1, at(ms));
            }
            paths.on_deadline(at(ms));
            assert!(paths.next_deadline() > at(ms), "it stands still");
            while let Some((robot, action)) = paths.poll() {
                assert_eq!(robot, RobotId(1));
                if let PathAction::Probe(probe) = action {
                    if answers[usize::from(probe.path.0)] {
                        echoes.push_back((ms + 2, other.on_probe(RobotId(0), probe).unwrap()));
                    }
                }
            }
        }
    }

    #[test]
    fn there_is_a_choice_where_both_have_several_paths_and_it_is_probed_while_it_is_used() {
        let mut it = paths("always");
        assert_eq!(it.next_deadline(), Instant::FAR_FUTURE, "nobody sends");
        assert_eq!(it.assign(RobotId(2), at(0)), []);
        assert_eq!(it.bulk_path(RobotId(2), at(0)), PathId(0));
        assert!(it.is_alive(RobotId(2), PathId(0)));
        assert_eq!(it.next_deadline(), Instant::FAR_FUTURE);
        assert_eq!(it.assign(RobotId(1), at(0)).len(), 2);
        assert_eq!(it.next_deadline(), at(0));
        it.on_deadline(at(0));
        assert_eq!(std::iter::from_fn(|| it.poll()).count(), 2, "a probe a path");
        assert_eq!(paths("never").assign(RobotId(1), at(0)).len(), 1);
    }

    #[test]
    fn control_and_bulk_leave_a_path_that_dies_and_everybody_can_see_it() {
        let text = format!("{TEAM}[live]\nduplicate = \"adaptive\"\n");
        let team = coorp_team::parse(&text, "t.toml", Path::new("")).unwrap();
        let (mut it, mut other) = (paths("adaptive"), Paths::new(&team, RobotId(1), 1, at(0)).unwrap());
        run(&mut it, &mut other, 0..10_000, [true, true]);
        assert_eq!(it.bulk_path(RobotId(1), at(10_000)), PathId(0));
        it.set_bulk(RobotId(1), Some(PathId(0)));
        let seen = it.status(at(10_000));
        assert_eq!(seen.len(), 2);
        assert_eq!(
            (seen[0].state, seen[0].carries, seen[0].bulk),
            (status::PathState::Alive, status::Carries::Original, true)
        );
        assert_eq!(
            (seen[1].carries, seen[1].round_trip_us),
            (status::Carries::Nothing, Some(2_000))
        );
        run(&mut it, &mut other, 10_000..11_000, [false, true]);
        assert!(!it.is_alive(RobotId(1), PathId(0)));
        assert_eq!(it.bulk_path(RobotId(1), at(11_000)), PathId(1));
        let seen = it.status(at(11_000));
        assert_eq!(
            (seen[0].state, seen[1].carries),
            (status::PathState::Dead, status::Carries::Original)
        );
        assert!(seen[0].failures_ppm > 500_000);
        run(&mut it, &mut other, 11_000..12_000, [true, true]);
        assert!(it.is_alive(RobotId(1), PathId(0)));
        assert_eq!(it.status(at(30_000))[0].state, status::PathState::Resting);
    }
}
