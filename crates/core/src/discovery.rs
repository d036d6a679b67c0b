//! Decides which addresses a robot tries in order to reach the others of its team.
//!
//! Addresses have three sources. *Given* addresses come from the team file. At a *proven* address, a robot has shown
//! its certificate before. *Heard* addresses are hints from the network, which anybody may forge. Given and proven
//! addresses are tried without a budget, one at a time for each robot and path, with a back-off. So a flood of hints
//! never delays a known robot.
//!
//! A hint names one robot of the team, one path and one address. It must carry the team's proof, if the team has keys.
//! The address must belong to a network that an interface of this robot on that path is connected to. Other hints are
//! refused. So nobody can direct a robot at third parties. A heard address at which somebody showed a wrong certificate
//! is not tried again for a while, which grows with each repetition.
//!
//! Attempts at heard addresses share one [allowance](GUESSES_MAX) for all robots. A successful attempt gives back what
//! it took; after failed attempts, the allowance recovers only slowly. Half of it is reserved for robots without a
//! failed attempt. So a robot that joins late is tried at once, even if others do not answer.
//!
//! Searches, that is, queries to the network, are due while a robot is missing, at first often, then every four
//! seconds.
//!
//! Source: this project; see decision 23. Left out: first contact while a member of the team (or anybody, if the team
//! has no keys) floods the network with hints for all names. The allowance then runs out, and a robot that was never
//! reached at its address waits. IPv6 link-local addresses, which need a zone, are refused.

mod allowance;
mod counts;
mod peer;

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;

use self::allowance::Allowance;
pub use self::allowance::GUESSES_MAX;
pub use self::counts::{Counts, Refusal};
use self::peer::{Candidate, Peer, Source, HEARD_FOR, HEARD_MAX, HELD_MIN, PROVEN_FOR};
use crate::paths::PathId;
use crate::{Duration, Instant, RobotId};

/// The maximum number of attempts at heard addresses in progress.
pub const GUESSES_AT_ONCE_MAX: usize = 4;
/// Maximum duration of an attempt. A longer one has failed.
pub const ATTEMPT_MAX: Duration = Duration::from_secs(2);
/// How long an address is avoided after the first wrong certificate, and at most. Each further one quadruples the time.
const MISFIT_MIN: Duration = Duration::from_secs(4);
const MISFIT_MAX: Duration = Duration::from_secs(3_600);
/// The maximum number of such addresses that are remembered.
const MISFITS_MAX: usize = 256;
/// The interval between the first two searches, and the longest interval.
const SEARCH_MIN: Duration = Duration::from_millis(500);
const SEARCH_MAX: Duration = Duration::from_secs(4);
/// The maximum number of networks of a path.
const NETWORKS_MAX: usize = 32;

/// A robot to reach on a path, with its address there according to the team file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The robot.
    pub robot: RobotId,
    /// The path.
    pub path: PathId,
    /// The robot's address there, if the team file has one.
    pub given: Option<IpAddr>,
}

/// A network that an interface of this robot is connected to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Network {
    /// The interface's own address.
    pub address: IpAddr,
    /// The length of the network's prefix.
    pub prefix: u8,
}

impl Network {
    /// Returns whether a robot of this network may have this address.
    pub fn has(self, address: IpAddr) -> bool {
        match (self.address, address) {
            (IpAddr::V4(own), IpAddr::V4(address)) => {
                let host = u32::MAX.checked_shr(u32::from(self.prefix)).unwrap_or(0);
                let (own, bits) = (own.to_bits(), address.to_bits());
                // In networks with more than two addresses, the first and the last belong to no host.
                let nobodys = host > 1 && (bits & host == 0 || bits & host == host);
                own & !host == bits & !host && !nobodys && !address.is_multicast() && !address.is_unspecified()
            }
            (IpAddr::V6(own), IpAddr::V6(address)) => {
                let host = u128::MAX.checked_shr(u32::from(self.prefix)).unwrap_or(0);
                let same = own.to_bits() & !host == address.to_bits() & !host;
                same && !address.is_multicast() && !address.is_unspecified() && !address.is_unicast_link_local()
            }
            _ => false,
        }
    }
}

/// A claim from the network that a robot is reachable at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hint {
    /// The robot that the sender claims to be.
    pub robot: RobotId,
    /// The path whose interface heard it.
    pub path: PathId,
    /// The address that sent it.
    pub address: IpAddr,
    /// Whether the hint carries the team's proof.
    pub proved: bool,
}

/// Identifies an attempt. Numbers increase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttemptId(pub u64);

/// The result of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// This robot has shown its certificate. If it is not the expected one, the connection has ended.
    Connected(RobotId),
    /// Somebody answered without a certificate of the team.
    Misfit,
    /// Nobody answered.
    NoAnswer,
    /// Somebody, or this robot's kernel, refused.
    Refused,
}

/// An action for the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Attempt to connect, and report the [`Outcome`].
    Dial {
        /// Identifies the attempt in the report.
        attempt: AttemptId,
        /// The robot that is expected there.
        robot: RobotId,
        /// The path to use.
        path: PathId,
        /// The address to dial.
        address: IpAddr,
    },
    /// Abandon an attempt. Nothing needs to be reported.
    Stop(AttemptId),
    /// Query the networks of a path for the robots that are [missing](Discovery::missing) there.
    Search(PathId),
}

/// The state of all robots and paths.
#[derive(Clone, Debug)]
pub struct Discovery {
    needs_proof: bool,
    peers: BTreeMap<(RobotId, PathId), Peer>,
    networks: BTreeMap<PathId, Vec<Network>>,
    searches: BTreeMap<PathId, Search>,
    attempts: BTreeMap<AttemptId, Attempt>,
    misfits: BTreeMap<IpAddr, Misfit>,
    allowance: Allowance,
    random: u64,
    next: u64,
    wake: Option<Instant>,
    actions: VecDeque<Action>,
    counts: Counts,
}

#[derive(Clone, Copy, Debug)]
struct Attempt {
    robot: RobotId,
    path: PathId,
    address: IpAddr,
    source: Source,
    began: Instant,
}

/// An address at which somebody else answered.
#[derive(Clone, Copy, Debug)]
struct Misfit {
    until: Instant,
    avoid: Duration,
}

#[derive(Clone, Copy, Debug)]
struct Search {
    next: Instant,
    interval: Duration,
}

impl Discovery {
    /// Creates the state. `targets` are the robots that this one connects to. `needs_proof` says whether hints need the
    /// team's proof. `seed` makes each robot's jitter different.
    pub fn new(targets: impl IntoIterator<Item = Target>, needs_proof: bool, seed: u64, now: Instant) -> Self {
        let mut peers: BTreeMap<(RobotId, PathId), Peer> = BTreeMap::new();
        for target in targets {
            let peer = peers.entry((target.robot, target.path)).or_default();
            let given = target
                .given
                .map(|address| Candidate::new(address, Source::Given, Instant::FAR_FUTURE, now));
            peer.candidates.extend(given);
        }
        let paths = peers.keys().map(|(_, path)| *path);
        let search = Search {
            next: now,
            interval: SEARCH_MIN,
        };
        let searches = paths.map(|path| (path, search)).collect();
        let mut discovery = Discovery {
            needs_proof,
            peers,
            networks: BTreeMap::new(),
            searches,
            attempts: BTreeMap::new(),
            misfits: BTreeMap::new(),
            allowance: Allowance::new(),
            random: seed,
            next: 0,
            wake: None,
            actions: VecDeque::new(),
            counts: Counts::default(),
        };
        discovery.decide(now);
        discovery
    }

    /// Records that a path is now connected to exactly these networks.
    pub fn on_networks(&mut self, path: PathId, mut networks: Vec<Network>, now: Instant) {
        networks.truncate(NETWORKS_MAX);
        for ((_, of), peer) in &mut self.peers {
            if *of != path {
                continue;
            }
            let stays = |candidate: &Candidate| {
                candidate.source != Source::Heard || networks.iter().any(|network| network.has(candidate.address))
            };
            let gone = peer.candidates.iter().filter(|candidate| !stays(candidate));
            for attempt in gone.filter_map(|candidate| candidate.attempt) {
                self.attempts.remove(&attempt);
                self.actions.push_back(Action::Stop(attempt));
                self.allowance.give_back();
            }
            peer.candidates.retain(stays);
            // An address that did not answer over the old network may answer over the new one.
            for candidate in peer.candidates.iter_mut().filter(|one| one.source != Source::Heard) {
                candidate.again(now);
            }
        }
        self.networks.insert(path, networks);
        self.search_soon(path, now);
        self.decide(now);
    }

    /// Handles a hint. Returns the reason if it is refused.
    pub fn on_hint(&mut self, hint: Hint, now: Instant) -> Option<Refusal> {
        let refusal = self.take_hint(hint, now).err();
        match refusal {
            Some(refusal) => self.counts.refuse(refusal),
            None => {
                self.counts.hints += 1;
                self.decide(now);
            }
        }
        refusal
    }

    /// Counts a message that was refused before it became a hint.
    pub fn on_refused(&mut self, refusal: Refusal) {
        self.counts.refuse(refusal);
    }

    /// Records the outcome of an attempt. Unknown and stopped attempts are ignored.
    pub fn on_outcome(&mut self, attempt: AttemptId, outcome: Outcome, now: Instant) {
        if let Some(ended) = self.attempts.remove(&attempt) {
            self.end(ended, attempt, outcome, now);
            self.decide(now);
        }
    }

    /// Records that a robot is connected over a path, whichever side has opened the connection.
    pub fn on_connected(&mut self, robot: RobotId, path: PathId, address: IpAddr, now: Instant) {
        self.connect(robot, path, address, now);
        self.decide(now);
    }

    /// Records that the connection to a robot over a path has ended.
    pub fn on_lost(&mut self, robot: RobotId, path: PathId, now: Instant) {
        let Some(peer) = self.peers.get_mut(&(robot, path)) else {
            return;
        };
        if let Some(address) = peer.connected.take() {
            for candidate in &mut peer.candidates {
                if candidate.address == address && candidate.source == Source::Proven {
                    candidate.until = now + PROVEN_FOR;
                }
                candidate.again(now);
            }
            self.search_soon(path, now);
        }
        self.decide(now);
    }

    /// Handles the deadline of [`next_deadline`](Self::next_deadline).
    pub fn on_deadline(&mut self, now: Instant) {
        self.decide(now);
    }

    /// Returns when to call [`on_deadline`](Self::on_deadline).
    pub fn next_deadline(&self) -> Option<Instant> {
        self.wake
    }

    /// Returns the next action, until `None`.
    pub fn poll(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Returns the robots without a given address that are not connected over a path.
    pub fn missing(&self, path: PathId) -> impl Iterator<Item = RobotId> + '_ {
        let of_path = self.peers.iter().filter(move |((_, of), _)| *of == path);
        of_path
            .filter(|(_, peer)| peer.connected.is_none() && !peer.is_given())
            .map(|((robot, _), _)| *robot)
    }

    /// Returns the counts so far.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Returns the number of addresses for which something is stored.
    pub fn addresses(&self) -> usize {
        let candidates = self.peers.values().map(|peer| peer.candidates.len());
        candidates.sum::<usize>() + self.misfits.len()
    }

    fn take_hint(&mut self, hint: Hint, now: Instant) -> Result<(), Refusal> {
        if self.needs_proof && !hint.proved {
            return Err(Refusal::Unproved);
        }
        let mut networks = self.networks.get(&hint.path).into_iter().flatten();
        if !networks.any(|network| network.has(hint.address)) {
            return Err(Refusal::Elsewhere);
        }
        if self.misfits.get(&hint.address).is_some_and(|misfit| misfit.until > now) {
            return Err(Refusal::Misfit);
        }
        // Robots with a given address need no other.
        let peer = self.peers.get_mut(&(hint.robot, hint.path));
        let Some(peer) = peer.filter(|peer| !peer.is_given()) else {
            return Ok(());
        };
        peer.forget(now);
        if let Some(known) = peer.candidates.iter_mut().find(|one| one.address == hint.address) {
            known.hear(now);
            return Ok(());
        }
        let heard = |one: &&Candidate| one.source == Source::Heard;
        if peer.candidates.iter().filter(heard).count() >= HEARD_MAX {
            let idle = |one: &Candidate| {
                one.source == Source::Heard
                    && one.attempt.is_none()
                    && (one.tried.is_some() || now.since(one.since) > HELD_MIN)
            };
            // The address with the most failures, and the oldest of those.
            let places = (0..peer.candidates.len()).filter(|place| idle(&peer.candidates[*place]));
            let place = places.max_by_key(|place| {
                let one = &peer.candidates[*place];
                (one.failures, now.since(one.since))
            });
            peer.candidates.swap_remove(place.ok_or(Refusal::TooMany)?);
        }
        let candidate = Candidate::new(hint.address, Source::Heard, now + HEARD_FOR, now);
        peer.candidates.push(candidate);
        Ok(())
    }

    fn end(&mut self, attempt: Attempt, id: AttemptId, outcome: Outcome, now: Instant) {
        let Attempt { robot, path, .. } = attempt;
        self.counts.end(outcome);
        let fits = outcome == Outcome::Connected(robot);
        if attempt.source == Source::Heard {
            self.allowance.on_end(fits, now);
        }
        let Some(peer) = self.peers.get_mut(&(robot, path)) else {
            return;
        };
        let place = peer.candidates.iter().position(|one| one.attempt == Some(id));
        if !fits && attempt.source == Source::Heard {
            peer.failed = peer.failed.saturating_add(1);
        }
        if let Some(place) = place {
            let candidate = &mut peer.candidates[place];
            candidate.attempt = None;
            let heard = candidate.source == Source::Heard;
            match outcome {
                Outcome::Connected(_) if fits => {}
                Outcome::Connected(_) if candidate.source != Source::Given => {
                    peer.candidates.swap_remove(place);
                }
                Outcome::Misfit if heard => {
                    peer.candidates.swap_remove(place);
                }
                // A host that takes the address of an absent robot must not keep that robot out when it returns.
                Outcome::Misfit | Outcome::Connected(_) => candidate.fail(true, now, &mut self.random),
                Outcome::NoAnswer | Outcome::Refused => candidate.fail(false, now, &mut self.random),
            }
        }
        match outcome {
            Outcome::Connected(_) if fits => self.connect(robot, path, attempt.address, now),
            // It can be dialled there.
            Outcome::Connected(other) => {
                self.misfits.remove(&attempt.address);
                if let Some(peer) = self.peers.get_mut(&(other, path)) {
                    peer.prove(attempt.address, now);
                }
            }
            Outcome::Misfit if attempt.source == Source::Heard => self.avoid(attempt.address, now),
            _ => {}
        }
    }

    fn connect(&mut self, robot: RobotId, path: PathId, address: IpAddr, now: Instant) {
        self.misfits.remove(&address);
        let Some(peer) = self.peers.get_mut(&(robot, path)) else {
            return;
        };
        peer.connected = Some(address);
        peer.failed = 0;
        for candidate in &mut peer.candidates {
            if let Some(attempt) = candidate.attempt.take() {
                if self.attempts.remove(&attempt).is_some() {
                    self.actions.push_back(Action::Stop(attempt));
                    // The stopped attempt did not fail.
                    if candidate.source == Source::Heard {
                        self.allowance.give_back();
                    }
                }
            }
        }
        peer.prove(address, now);
    }

    /// Avoids an address at which somebody else answered, unless a robot is connected there.
    fn avoid(&mut self, address: IpAddr, now: Instant) {
        if self.peers.values().any(|peer| peer.connected == Some(address)) {
            return;
        }
        let before = self.misfits.get(&address);
        let avoid = before.map_or(MISFIT_MIN, |misfit| (misfit.avoid * 4).min(MISFIT_MAX));
        let until = now + avoid;
        if before.is_none() && self.misfits.len() >= MISFITS_MAX {
            let first = self.misfits.iter().min_by_key(|(_, misfit)| misfit.until);
            if let Some(first) = first.map(|(address, _)| *address) {
                self.misfits.remove(&first);
            }
        }
        self.misfits.insert(address, Misfit { until, avoid });
        // An attempt there for another robot ends by itself.
        let idle = |one: &Candidate| one.attempt.is_none() && one.source == Source::Heard;
        for peer in self.peers.values_mut() {
            peer.candidates.retain(|one| one.address != address || !idle(one));
        }
    }

    fn search_soon(&mut self, path: PathId, now: Instant) {
        if let Some(search) = self.searches.get_mut(&path) {
            search.next = search.next.min(now + SEARCH_MIN / 10);
            search.interval = SEARCH_MIN;
        }
    }

    /// Carries out everything that is due, and sets the next deadline.
    fn decide(&mut self, now: Instant) {
        self.expire(now);
        self.allowance.refill(now);
        let mut wake = Instant::FAR_FUTURE;
        self.dial_known(now, &mut wake);
        self.dial_heard(now, &mut wake);
        self.search(now, &mut wake);
        let deadlines = self.attempts.values().map(|attempt| attempt.began + ATTEMPT_MAX);
        wake = deadlines.min().unwrap_or(wake).min(wake);
        self.wake = Some(wake).filter(|wake| *wake < Instant::FAR_FUTURE);
    }

    fn expire(&mut self, now: Instant) {
        let over = |attempt: &Attempt| now.since(attempt.began) >= ATTEMPT_MAX;
        while let Some((id, attempt)) = self.attempts.iter().find(|(_, attempt)| over(attempt)) {
            let (id, attempt) = (*id, *attempt);
            self.attempts.remove(&id);
            self.actions.push_back(Action::Stop(id));
            self.end(attempt, id, Outcome::NoAnswer, now);
        }
        for peer in self.peers.values_mut() {
            peer.forget(now);
        }
    }

    /// Dials given and proven addresses, one at a time for each robot and path.
    fn dial_known(&mut self, now: Instant, wake: &mut Instant) {
        let mut due = Vec::new();
        for (key, peer) in &self.peers {
            let known = |one: &&Candidate| one.source != Source::Heard;
            let busy = peer.candidates.iter().any(|one| known(&one) && one.attempt.is_some());
            if peer.connected.is_some() || busy {
                continue;
            }
            let first = peer
                .candidates
                .iter()
                .filter(known)
                .min_by_key(|one| (one.next.max(now), one.failures, one.source != Source::Proven));
            match first {
                Some(first) if first.next <= now => due.push((*key, first.address)),
                Some(first) => *wake = (*wake).min(first.next),
                None => {}
            }
        }
        for (key, address) in due {
            self.dial(key, address, now);
        }
    }

    /// Dials heard addresses, within the allowance.
    fn dial_heard(&mut self, now: Instant, wake: &mut Instant) {
        loop {
            let in_progress = self.attempts.values().filter(|one| one.source == Source::Heard).count();
            if in_progress >= GUESSES_AT_ONCE_MAX {
                return;
            }
            let mut first = None;
            for (key, peer) in &self.peers {
                let heard = |one: &&Candidate| one.source == Source::Heard;
                let busy = peer.candidates.iter().any(|one| heard(&one) && one.attempt.is_some());
                if peer.connected.is_some() || busy {
                    continue;
                }
                for one in peer.candidates.iter().filter(heard) {
                    let allowed = self.allowance.next(peer.failed == 0, now);
                    if one.next.max(allowed) > now {
                        // Wake no later than the address expires.
                        let due = one.next.max(allowed);
                        *wake = (*wake).min(if due < one.until { due } else { one.until });
                        continue;
                    }
                    let rank = (peer.failed, one.failures, one.since);
                    let choice = (rank, *key, one.address);
                    first = Some(first.map_or(choice, |first| choice.min(first)));
                }
            }
            let Some((_, key, address)) = first else { return };
            self.allowance.take(now);
            self.dial(key, address, now);
        }
    }

    fn dial(&mut self, (robot, path): (RobotId, PathId), address: IpAddr, now: Instant) {
        let Some(peer) = self.peers.get_mut(&(robot, path)) else {
            return;
        };
        let candidate = peer.candidates.iter_mut().find(|one| one.address == address);
        let Some(candidate) = candidate else { return };
        let attempt = AttemptId(self.next);
        self.next += 1;
        candidate.attempt = Some(attempt);
        candidate.tried = Some(now);
        let source = candidate.source;
        self.counts.attempts += 1;
        let begun = Attempt {
            robot,
            path,
            address,
            source,
            began: now,
        };
        self.attempts.insert(attempt, begun);
        self.actions.push_back(Action::Dial {
            attempt,
            robot,
            path,
            address,
        });
    }

    fn search(&mut self, now: Instant, wake: &mut Instant) {
        let paths: Vec<PathId> = self.searches.keys().copied().collect();
        for path in paths {
            let connected = self.networks.get(&path).is_some_and(|networks| !networks.is_empty());
            if !connected || self.missing(path).next().is_none() {
                continue;
            }
            let Some(search) = self.searches.get_mut(&path) else {
                continue;
            };
            if search.next <= now {
                self.actions.push_back(Action::Search(path));
                search.next = now + jittered(search.interval, &mut self.random);
                search.interval = (search.interval * 2).min(SEARCH_MAX);
            }
            *wake = (*wake).min(search.next);
        }
    }
}

/// Returns a time between three and five quarters of `time`.
fn jittered(time: Duration, random: &mut u64) -> Duration {
    // SplitMix64 (Steele 2014).
    *random = random.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut bits = *random;
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^= bits >> 31;
    let span = time.as_nanos() / 2;
    Duration::from_nanos(time.as_nanos() - span / 2 + bits % (span + 1))
}

#[cfg(test)]
mod tests;
