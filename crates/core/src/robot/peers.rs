//! Decides which of the paths to each other robot carry a control message, and which ones carry bulk.
//!
//! [`crate::paths`] makes the decisions (DupCon, Lee): one sender and one listener for each robot that shares several
//! paths with this one. Path k leads from this robot's interface k to the other's interface k. A robot that shares only
//! one path leaves no choice. That path is not probed, because probes cost air.
//!
//! Left out: paths between different interfaces of two robots, which do not exist in separate networks.

use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

use crate::paths::{Class, Echo, InterfaceId, Listener, PathAction, PathConfig, PathCopy, PathId, Probe, Sender};
use crate::{Duration, Instant, RobotId};

/// The status of one path to another robot, for a status page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathStatus {
    /// The other robot.
    pub to: RobotId,
    /// The index among this robot's paths.
    pub path: usize,
    /// Whether the path works.
    pub state: PathState,
    /// The smoothed round trip, once one has been measured.
    pub round_trip: Option<Duration>,
    /// The share of copies that is lost or late, smoothed, in millionths.
    pub failures_ppm: u32,
    /// The path's part in the newest control message.
    pub carries: Carries,
    /// Whether the path carries bulk now.
    pub bulk: bool,
}

/// Whether a path works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathState {
    /// Unknown, because nothing is sent to that robot.
    Resting,
    /// The other robot answers over the path.
    Alive,
    /// The other robot does not answer over the path.
    Dead,
}

/// A path's part in a control message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carries {
    /// Nothing.
    Nothing,
    /// The message.
    Original,
    /// The duplicate.
    Duplicate,
}

/// The paths of one robot.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Peers {
    /// The peers by robot; `None` if there is no choice of paths.
    peers: Vec<Option<Peer>>,
    /// The earliest of all senders' deadlines.
    deadline: Instant,
    actions: VecDeque<(RobotId, PathAction)>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Peer {
    sender: Sender,
    listener: Listener,
    paths: usize,
    deadline: Instant,
    /// The paths that carry bulk, while there is bulk.
    bulk: Vec<PathId>,
}

impl Peers {
    /// Creates the paths of robot `me`. `paths_to` is by robot; the robot's own entry is not read.
    ///
    /// # Errors
    /// If a robot has more paths than [`crate::paths`] supports.
    pub fn new(
        me: RobotId,
        paths_to: &[usize],
        config: &PathConfig,
        incarnation: u32,
        now: Instant,
    ) -> Result<Self, String> {
        let peer = |robot: RobotId| {
            let paths = paths_to[usize::from(robot.0)];
            if robot == me || paths < 2 {
                return Ok(None);
            }
            let interfaces: Vec<InterfaceId> = (0u8..).map(InterfaceId).take(paths).collect();
            let sender =
                Sender::new(config.clone(), &interfaces, incarnation, now).map_err(|error| error.to_string())?;
            Ok(Some(Peer {
                // Nothing has been sent yet, so nothing is probed.
                deadline: Instant::FAR_FUTURE,
                sender,
                listener: Listener::new(paths).map_err(|error| error.to_string())?,
                paths,
                bulk: Vec::new(),
            }))
        };
        let peers = (0u16..).map(RobotId).take(paths_to.len()).map(peer);
        Ok(Peers {
            peers: peers.collect::<Result<_, String>>()?,
            deadline: Instant::FAR_FUTURE,
            actions: VecDeque::new(),
        })
    }

    /// Returns the copies of a control message to a robot; none if there is no choice of paths.
    pub fn assign(&mut self, to: RobotId, now: Instant) -> Vec<PathCopy> {
        self.with(to, |peer| peer.sender.assign(Class::Control, now))
            .unwrap_or_default()
    }

    /// Returns the best path to a robot, for a message that is sent once.
    pub fn best(&mut self, to: RobotId, now: Instant) -> PathId {
        let best = self.with(to, |peer| peer.best(now));
        best.unwrap_or(PathId(0))
    }

    /// Returns the paths for bulk to a robot, the best one first: all live ones; if none is live, all. Ask repeatedly
    /// while bulk is sent, which keeps the paths probed.
    pub fn bulk_paths(&mut self, to: RobotId, now: Instant) -> Vec<usize> {
        let paths = self.with(to, |peer| {
            let best = usize::from(peer.best(now).0);
            let others = (0..peer.paths).filter(|path| *path != best);
            let all: Vec<usize> = std::iter::once(best).chain(others).collect();
            let live: Vec<usize> = all.iter().copied().filter(|path| peer.is_alive(*path)).collect();
            if live.is_empty() {
                all
            } else {
                live
            }
        });
        paths.unwrap_or_else(|| vec![0])
    }

    /// Notes whether a path carries bulk to a robot now, for a status page.
    pub fn set_bulk(&mut self, to: RobotId, path: usize, carries: bool) {
        let path = PathId(u8::try_from(path).unwrap_or(u8::MAX));
        if let Some(Some(peer)) = self.peers.get_mut(usize::from(to.0)) {
            peer.bulk.retain(|other| *other != path);
            if carries && usize::from(path.0) < peer.paths {
                peer.bulk.push(path);
            }
        }
    }

    /// Returns whether a path to a robot is alive. A robot's only path always counts as alive.
    pub fn is_alive(&self, to: RobotId, path: PathId) -> bool {
        let peer = self.peers.get(usize::from(to.0)).and_then(Option::as_ref);
        peer.is_none_or(|peer| peer.sender.health(path).is_some_and(|health| health.alive))
    }

    /// Records a copy of a control message from a robot.
    pub fn on_copy(&mut self, from: RobotId, path: PathId, incarnation: u32, number: u32) {
        if let Some(Some(peer)) = self.peers.get_mut(usize::from(from.0)) {
            peer.listener.on_copy(path, incarnation, number);
        }
    }

    /// Handles a robot's probe of a path. Returns the answer to send over the same path.
    pub fn on_probe(&mut self, from: RobotId, probe: Probe) -> Option<Echo> {
        let peer = self.peers.get_mut(usize::from(from.0))?.as_mut()?;
        peer.listener.on_probe(probe)
    }

    /// Handles a robot's answer to a probe of this robot.
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

    /// Returns the next action, until `None`.
    pub fn poll(&mut self) -> Option<(RobotId, PathAction)> {
        self.actions.pop_front()
    }

    /// Returns the status of the paths to robots that are reachable over several.
    pub fn status(&self, now: Instant) -> Vec<PathStatus> {
        let peers = (0u16..).map(RobotId).zip(&self.peers);
        let peers = peers.filter_map(|(to, peer)| Some((to, peer.as_ref()?)));
        let paths = peers.flat_map(|(to, peer)| (0..peer.paths).map(move |path| peer.status(to, path, now)));
        paths.collect()
    }

    /// Applies `what` to a peer, then collects its actions and its deadline.
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
            // The old deadline was the earliest, or equal to it.
            let deadlines = self.peers.iter().flatten().map(|peer| peer.deadline);
            self.deadline = deadlines.min().unwrap_or(Instant::FAR_FUTURE);
        }
        Some(done)
    }
}

impl Peer {
    fn best(&mut self, now: Instant) -> PathId {
        let copies = self.sender.assign(Class::Bulk, now);
        copies.first().map_or(PathId(0), |copy| copy.path)
    }

    fn is_alive(&self, path: usize) -> bool {
        let health = self.sender.health(PathId(path as u8));
        health.is_some_and(|health| health.alive)
    }

    fn status(&self, to: RobotId, path: usize, now: Instant) -> PathStatus {
        let id = PathId(path as u8);
        let health = self.sender.health(id);
        let carriers = self.sender.carriers();
        PathStatus {
            to,
            path,
            state: match health {
                _ if self.sender.is_resting(now) => PathState::Resting,
                Some(health) if health.alive => PathState::Alive,
                _ => PathState::Dead,
            },
            round_trip: health.and_then(|health| health.round_trip),
            failures_ppm: health.map_or(0, |health| (health.failures * 1e6) as u32),
            carries: match carriers.iter().position(|carrier| *carrier == id) {
                Some(0) => Carries::Original,
                Some(_) => Carries::Duplicate,
                None => Carries::Nothing,
            },
            bulk: self.bulk.contains(&id),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paths::Duplicate;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    /// Returns the state of a robot with two paths to robot 1 and one to robot 2.
    fn peers(me: u16, duplicate: Duplicate) -> Peers {
        let config = PathConfig {
            duplicate,
            ..PathConfig::default()
        };
        Peers::new(RobotId(me), &[2, 2, 1], &config, 1, at(0)).unwrap()
    }

    /// Sends control every 10 ms. `answers` says which paths are answered, 2 ms later.
    fn run(paths: &mut Peers, other: &mut Peers, span: std::ops::Range<u64>, answers: [bool; 2]) {
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
        let mut it = peers(0, Duplicate::Always);
        assert_eq!(it.next_deadline(), Instant::FAR_FUTURE, "nobody sends");
        assert_eq!(it.assign(RobotId(2), at(0)), []);
        assert_eq!(
            (it.best(RobotId(2), at(0)), it.bulk_paths(RobotId(2), at(0))),
            (PathId(0), vec![0])
        );
        assert!(it.is_alive(RobotId(2), PathId(0)));
        assert_eq!(it.next_deadline(), Instant::FAR_FUTURE);
        assert_eq!(it.assign(RobotId(1), at(0)).len(), 2);
        assert_eq!(it.next_deadline(), at(0));
        it.on_deadline(at(0));
        assert_eq!(std::iter::from_fn(|| it.poll()).count(), 2, "a probe a path");
        assert_eq!(peers(0, Duplicate::Never).assign(RobotId(1), at(0)).len(), 1);
    }

    #[test]
    fn control_and_bulk_leave_a_path_that_dies_and_everybody_can_see_it() {
        let (mut it, mut other) = (peers(0, Duplicate::Adaptive), peers(1, Duplicate::Adaptive));
        run(&mut it, &mut other, 0..10_000, [true, true]);
        assert_eq!(it.bulk_paths(RobotId(1), at(10_000)), [0, 1]);
        it.set_bulk(RobotId(1), 0, true);
        let seen = it.status(at(10_000));
        assert_eq!(seen.len(), 2);
        assert_eq!(
            (seen[0].state, seen[0].carries, seen[0].bulk),
            (PathState::Alive, Carries::Original, true)
        );
        assert_eq!(
            (seen[1].carries, seen[1].round_trip),
            (Carries::Nothing, Some(Duration::from_millis(2)))
        );
        run(&mut it, &mut other, 10_000..11_000, [false, true]);
        assert!(!it.is_alive(RobotId(1), PathId(0)));
        assert_eq!(it.bulk_paths(RobotId(1), at(11_000)), [1]);
        assert_eq!(it.best(RobotId(1), at(11_000)), PathId(1));
        let seen = it.status(at(11_000));
        assert_eq!((seen[0].state, seen[1].carries), (PathState::Dead, Carries::Original));
        assert!(seen[0].failures_ppm > 500_000);
        run(&mut it, &mut other, 11_000..12_000, [true, true]);
        assert!(it.is_alive(RobotId(1), PathId(0)));
        run(&mut it, &mut other, 12_000..13_000, [false, false]);
        assert_eq!(it.bulk_paths(RobotId(1), at(13_000)), [1, 0], "any may come back");
        assert_eq!(it.status(at(30_000))[0].state, PathState::Resting);
    }
}
