//! The addresses of one robot on one path.

use std::net::IpAddr;

use super::{jittered, AttemptId};
use crate::{Duration, Instant};

/// The maximum numbers of heard and of proven addresses kept for each robot and path.
pub(super) const HEARD_MAX: usize = 4;
pub(super) const PROVEN_MAX: usize = 2;
/// A heard address is forgotten if it is not heard again for this long, a proven one after the second, longer time.
pub(super) const HEARD_FOR: Duration = Duration::from_secs(15);
pub(super) const PROVEN_FOR: Duration = Duration::from_secs(600);
/// An untried address keeps its place against newer ones for this long.
pub(super) const HELD_MIN: Duration = Duration::from_secs(2);
/// Back-off at given and proven addresses, at heard ones, and at given or proven ones that showed a wrong certificate.
const RETRY_MIN: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(1);
const RETRY_HEARD_MIN: Duration = Duration::from_secs(1);
const RETRY_HEARD_MAX: Duration = Duration::from_secs(64);
const RETRY_MISFIT: Duration = Duration::from_secs(4);
/// A proven address that is heard again is tried at once, at most this often.
const RETRY_ON_HINT: Duration = Duration::from_secs(1);

/// A robot on a path.
#[derive(Clone, Debug, Default)]
pub(super) struct Peer {
    pub connected: Option<IpAddr>,
    pub candidates: Vec<Candidate>,
    /// The failed attempts at heard addresses since the last connection.
    pub failed: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Source {
    Given,
    Proven,
    Heard,
}

#[derive(Clone, Debug)]
pub(super) struct Candidate {
    pub address: IpAddr,
    pub source: Source,
    /// When the address was first heard or proven, and when it will be forgotten.
    pub since: Instant,
    pub until: Instant,
    pub failures: u32,
    pub next: Instant,
    pub attempt: Option<AttemptId>,
    pub tried: Option<Instant>,
}

impl Peer {
    pub fn is_given(&self) -> bool {
        self.candidates.iter().any(|one| one.source == Source::Given)
    }

    pub fn forget(&mut self, now: Instant) {
        let connected = self.connected;
        let stays = |one: &Candidate| one.until > now || one.attempt.is_some() || connected == Some(one.address);
        self.candidates.retain(stays);
    }

    /// Records that the robot has been reached at this address.
    pub fn prove(&mut self, address: IpAddr, now: Instant) {
        let until = now + PROVEN_FOR;
        if let Some(known) = self.candidates.iter_mut().find(|one| one.address == address) {
            if known.source != Source::Given {
                (known.source, known.until) = (Source::Proven, until);
            }
            known.again(now);
        } else {
            self.candidates
                .push(Candidate::new(address, Source::Proven, until, now));
        }
        let proven = self.candidates.iter().filter(|one| one.source == Source::Proven);
        if proven.count() > PROVEN_MAX {
            let proven = self.candidates.iter().enumerate();
            let others = proven.filter(|(_, one)| one.source == Source::Proven && one.address != address);
            if let Some((place, _)) = others.min_by_key(|(_, one)| one.until) {
                self.candidates.swap_remove(place);
            }
        }
    }
}

impl Candidate {
    pub fn new(address: IpAddr, source: Source, until: Instant, now: Instant) -> Self {
        Candidate {
            address,
            source,
            since: now,
            until,
            failures: 0,
            next: now,
            attempt: None,
            tried: None,
        }
    }

    pub fn hear(&mut self, now: Instant) {
        match self.source {
            Source::Given | Source::Proven => {
                let tried = self.tried.map_or(Instant::ZERO, |tried| tried + RETRY_ON_HINT);
                self.next = self.next.min(tried.max(now));
                self.until = self.until.max(now + HEARD_FOR);
            }
            Source::Heard => self.until = now + HEARD_FOR,
        }
    }

    /// Resets the back-off.
    pub fn again(&mut self, now: Instant) {
        self.failures = 0;
        self.next = now;
    }

    pub fn fail(&mut self, misfit: bool, now: Instant, random: &mut u64) {
        let (first, most) = match self.source {
            Source::Given | Source::Proven if misfit => (RETRY_MISFIT, RETRY_MISFIT),
            Source::Given | Source::Proven => (RETRY_MIN, RETRY_MAX),
            Source::Heard => (RETRY_HEARD_MIN, RETRY_HEARD_MAX),
        };
        let wait = (first * (1 << self.failures.min(16))).min(most);
        self.failures = self.failures.saturating_add(1);
        self.next = now + jittered(wait, random);
    }
}
