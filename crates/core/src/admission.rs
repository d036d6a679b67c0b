//! Decides which connection attempts a robot accepts, so that strangers cannot starve members.
//!
//! An address has to prove itself first, by a Retry (RFC 9000, 8.1.2). Until then nothing is stored for it, because it
//! may be forged. Each handshake after that costs signatures, so three shares bound them: how often an address may
//! begin one, how many of an address are unfinished, and how many in all. IPv6 strangers share by /64, the least that a
//! site gets.
//!
//! Addresses at which a member has recently shown its certificate, and those of the team file, have a share of their own,
//! each by its whole address. So a flood from elsewhere takes nothing from them. One handshake at a time goes without proof
//! there, and handshakes that succeed count against no share: robots open a connection for each burst of bulk. If a share is
//! full, its oldest handshake makes room once it has had its time, as in a SYN cache: a member finishes within a few round
//! trips, and what lingers is a stranger's. So a member at a new address gets in too.
//!
//! The operator's certificate only lets somebody ask. Its connections have a few places of their own, its handshakes count
//! like a stranger's, and its address does not become a member's. So no number of them keeps a robot out.
//!
//! Everything is bounded, and so are the counts of what was refused. Source: this project; the idea of proof before
//! state is WireGuard's and QUIC's. Left out: shares of bytes and streams of established connections, which are members'
//! (QUIC's flow control bounds them), and a member's neighbour that sends from the member's own address.

mod refusals;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};

pub use self::refusals::{Reason, Refusals, Refused, ADDRESSES_SHOWN_MAX};
use crate::{Duration, Instant, RobotId};

/// A handshake that takes longer is abandoned.
pub const HANDSHAKE_MAX: Duration = Duration::from_secs(2);
/// A handshake that has had this long makes room for a new one if its share is full.
pub const HANDSHAKE_MIN: Duration = Duration::from_millis(250);
/// How long an address counts as a member's after its last connection has ended.
pub const KNOWN_FOR: Duration = Duration::from_secs(600);

/// A rate with a burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// One more is allowed after each of these.
    pub every: Duration,
    /// The number allowed at once.
    pub burst: u64,
}

/// What addresses of one kind get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// How often one address may begin a handshake.
    pub each: Rate,
    /// How often all of them together may.
    pub all: Rate,
    /// The number of unfinished handshakes of one address.
    pub unfinished_each_max: usize,
    /// The number of unfinished handshakes of all of them.
    pub unfinished_max: usize,
    /// The number of addresses that are remembered.
    pub addresses_max: usize,
}

/// All limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The share of addresses at which no member was seen.
    pub strangers: Share,
    /// The share of the team's addresses.
    pub members: Share,
    /// How often any addresses are asked for their proof, and how often each of a member's is.
    pub proofs: Rate,
    /// The number of connections of one robot's certificate.
    pub connections_per_robot_max: usize,
    /// The number of connections of robots from one address.
    pub connections_per_address_max: usize,
    /// The number of connections with the operator's certificate.
    pub operators_max: usize,
}

impl Limits {
    /// The limits for a team of so many robots with so many paths each.
    pub fn of_team(robots: usize, paths: usize) -> Limits {
        // A robot opens one for control and one for bulk on each path, and new ones overlap with those that end.
        let per_robot = 4 * paths.max(1);
        let rate = |every_ms, burst| Rate {
            every: Duration::from_millis(every_ms),
            burst,
        };
        Limits {
            strangers: Share {
                each: rate(200, 10),
                all: rate(20, 50),
                unfinished_each_max: 4,
                unfinished_max: 32,
                addresses_max: 256,
            },
            // All of a team may share an address, behind a router or on one machine.
            members: Share {
                each: rate(20, 50 + 4 * robots as u64),
                all: rate(5, 200 + 4 * robots as u64),
                unfinished_each_max: 16 + 2 * robots,
                unfinished_max: 32 + 4 * robots,
                addresses_max: 64 + 4 * robots * paths.max(1),
            },
            proofs: rate(1, 1_000),
            connections_per_robot_max: per_robot,
            connections_per_address_max: per_robot * robots.max(1),
            operators_max: 4 * paths.max(1),
        }
    }
}

/// An admitted attempt, from its beginning to the end of its connection. Numbers grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(u64);

/// What to do about an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Demand a proof of its address.
    Prove,
    /// Begin the handshake.
    Begin {
        /// By which to name it from now on.
        ticket: Ticket,
        /// Abandon this one for it; it has ended.
        instead_of: Option<Ticket>,
    },
    /// Do not answer.
    Ignore(Reason),
}

/// The state for all connections of a robot, over all paths.
#[derive(Clone, Debug)]
pub struct Admission {
    limits: Limits,
    strangers: Class,
    members: Class,
    proofs: Bucket,
    /// Of robots; `None`: of the operator.
    connections: BTreeMap<Ticket, (IpAddr, Option<RobotId>)>,
    next: u64,
    refusals: Refusals,
}

impl Admission {
    /// `addresses` are those of the team's robots, as far as they are fixed.
    pub fn new(limits: Limits, addresses: impl IntoIterator<Item = IpAddr>) -> Self {
        let mut members = Class::new(limits.members, false);
        let fixed = addresses.into_iter().take(limits.members.addresses_max / 2);
        let fixed = fixed.map(|address| (address.to_canonical(), Entry::until(Instant::FAR_FUTURE)));
        members.entries.extend(fixed);
        Admission {
            limits,
            strangers: Class::new(limits.strangers, true),
            members,
            proofs: Bucket::default(),
            connections: BTreeMap::new(),
            next: 0,
            refusals: Refusals::default(),
        }
    }

    /// Somebody attempts to connect. `proved` says whether the address is proved to be its own.
    pub fn on_attempt(&mut self, from: IpAddr, proved: bool, now: Instant) -> Verdict {
        let from = from.to_canonical();
        let is_busy = self.members.unfinished.values().any(|(at, ..)| *at == from);
        let is_in_use = self
            .connections
            .values()
            .any(|(at, robot)| *at == from && robot.is_some());
        let known = self.members.entries.get_mut(&from);
        let mut known = known.filter(|entry| is_in_use || entry.until >= now);
        // One handshake of a member's address goes without a proof, which saves a round trip. Whoever forges the address
        // gets no more than that one, and fills a bucket of its own with those that fail at once.
        let (each, proofs) = (self.limits.members.each, self.limits.proofs);
        let is_free = |entry: &mut &mut Entry| !is_busy && entry.unproved.take(each, now);
        if !proved && !known.as_mut().is_some_and(is_free) {
            // A member's has its own budget, and the general one after that.
            let own = known.is_some_and(|entry| entry.proofs.take(proofs, now));
            if own || self.proofs.take(self.limits.proofs, now) {
                return Verdict::Prove;
            }
            // Not by address: it may be forged.
            self.refusals.count(None, Reason::Unproved);
            return Verdict::Ignore(Reason::Unproved);
        }
        let class = if known.is_some() {
            &mut self.members
        } else {
            &mut self.strangers
        };
        let ticket = Ticket(self.next);
        match class.begin(ticket, from, proved, now) {
            Ok(replaced) => {
                self.next += 1;
                if let Some((_, whose)) = replaced {
                    self.refusals.count(Some(site(whose)), Reason::Unfinished);
                }
                let instead_of = replaced.map(|(of, _)| of);
                Verdict::Begin { ticket, instead_of }
            }
            Err(reason) => {
                self.refusals.count(Some(site(from)), reason);
                Verdict::Ignore(reason)
            }
        }
    }

    /// A handshake has ended with a robot's certificate. Returns whether the connection may stay; if not, it has ended.
    pub fn on_member(&mut self, ticket: Ticket, robot: RobotId, now: Instant) -> bool {
        // Only handshakes that fail count against a share.
        let of_member = self.members.unfinished.contains_key(&ticket);
        let class = if of_member {
            &mut self.members
        } else {
            &mut self.strangers
        };
        let Some((from, _, proved)) = class.unfinished.remove(&ticket) else {
            return false;
        };
        class.give_back(from, proved);
        self.members.know(from, now);
        let of_robots = || self.connections.values().filter(|(_, of)| of.is_some());
        let of_robot = of_robots().filter(|(_, of)| *of == Some(robot)).count();
        let of_address = of_robots().filter(|(at, _)| *at == from).count();
        let limits = &self.limits;
        if of_robot >= limits.connections_per_robot_max || of_address >= limits.connections_per_address_max {
            self.refusals.count(Some(site(from)), Reason::TooManyConnections);
            return false;
        }
        self.connections.insert(ticket, (from, Some(robot)));
        true
    }

    /// A handshake has ended with the operator's certificate. Returns whether the connection may stay; if not, it has
    /// ended.
    pub fn on_operator(&mut self, ticket: Ticket) -> bool {
        let Some(from) = self.finish(ticket) else { return false };
        let operators = self.connections.values().filter(|(_, of)| of.is_none()).count();
        if operators >= self.limits.operators_max {
            self.refusals.count(Some(site(from)), Reason::TooManyConnections);
            return false;
        }
        self.connections.insert(ticket, (from, None));
        true
    }

    /// A handshake has failed, or its deadline has passed.
    pub fn on_failed(&mut self, ticket: Ticket, reason: Reason) {
        if let Some(from) = self.finish(ticket) {
            self.refusals.count(Some(site(from)), reason);
        }
    }

    /// A connection has ended, or a handshake that brought none.
    pub fn on_ended(&mut self, ticket: Ticket, now: Instant) {
        match self.connections.remove(&ticket) {
            Some((from, Some(_))) => self.members.know(from, now),
            Some((_, None)) => {}
            None => self.on_failed(ticket, Reason::Unfinished),
        }
    }

    /// The attempts refused so far.
    pub fn refusals(&self) -> &Refusals {
        &self.refusals
    }

    /// The number of unfinished handshakes.
    pub fn unfinished(&self) -> usize {
        self.strangers.unfinished.len() + self.members.unfinished.len()
    }

    /// The number of connections.
    pub fn connections(&self) -> usize {
        self.connections.len()
    }

    /// The number of addresses that something is stored for.
    pub fn addresses(&self) -> usize {
        self.strangers.entries.len() + self.members.entries.len()
    }

    fn finish(&mut self, ticket: Ticket) -> Option<IpAddr> {
        let of_member = self.members.finish(ticket);
        of_member.or_else(|| self.strangers.finish(ticket))
    }
}

/// What strangers at an address share: all of a /64, but on one link, where all share that, each its address.
fn site(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(six) if !six.is_unicast_link_local() => {
            let [a, b, c, d, ..] = six.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        _ => address,
    }
}

/// The addresses of one kind, and their unfinished handshakes.
#[derive(Clone, Debug)]
struct Class {
    share: Share,
    /// Of strangers by [`site`], of members by address.
    by_site: bool,
    entries: BTreeMap<IpAddr, Entry>,
    all: Bucket,
    /// With the whole addresses, and whether they are proved; the oldest first.
    unfinished: BTreeMap<Ticket, (IpAddr, Instant, bool)>,
}

/// An address.
#[derive(Clone, Debug)]
struct Entry {
    attempts: Bucket,
    /// Attempts without a proof. They take nothing from the others, because they may be forged.
    unproved: Bucket,
    proofs: Bucket,
    /// Until when it is remembered; a stranger's is replaced by need only.
    until: Instant,
}

impl Entry {
    fn until(until: Instant) -> Self {
        Entry {
            attempts: Bucket::default(),
            unproved: Bucket::default(),
            proofs: Bucket::default(),
            until,
        }
    }
}

impl Class {
    fn new(share: Share, by_site: bool) -> Self {
        Class {
            share,
            by_site,
            entries: BTreeMap::new(),
            all: Bucket::default(),
            unfinished: BTreeMap::new(),
        }
    }

    fn key(&self, address: IpAddr) -> IpAddr {
        if self.by_site {
            site(address)
        } else {
            address
        }
    }

    /// Begins a handshake. Returns the one that makes room for it, and whose that was.
    fn begin(
        &mut self,
        ticket: Ticket,
        from: IpAddr,
        proved: bool,
        now: Instant,
    ) -> Result<Option<(Ticket, IpAddr)>, Reason> {
        let (share, key) = (self.share, self.key(from));
        self.remember(key, now);
        let entry = self.entries.get_mut(&key).ok_or(Reason::TooMany)?;
        if proved && (!entry.attempts.take(share.each, now) || !self.all.take(share.all, now)) {
            return Err(Reason::TooOften);
        }
        let own = |(_, (address, ..)): &(&Ticket, &(IpAddr, Instant, bool))| self.key(*address) == key;
        let is_own_full = self.unfinished.iter().filter(own).count() >= share.unfinished_each_max;
        let oldest = if is_own_full {
            self.unfinished.iter().find(own)
        } else if self.unfinished.len() >= share.unfinished_max {
            self.unfinished.iter().next()
        } else {
            None
        };
        let replaced = match oldest {
            Some((_, (_, since, _))) if now.since(*since) < HANDSHAKE_MIN => return Err(Reason::TooMany),
            oldest => oldest.map(|(ticket, (address, ..))| (*ticket, *address)),
        };
        if let Some((ticket, _)) = replaced {
            self.unfinished.remove(&ticket);
        }
        self.unfinished.insert(ticket, (from, now, proved));
        Ok(replaced)
    }

    fn finish(&mut self, ticket: Ticket) -> Option<IpAddr> {
        self.unfinished.remove(&ticket).map(|(from, ..)| from)
    }

    /// A handshake does not count after all.
    fn give_back(&mut self, from: IpAddr, proved: bool) {
        if proved {
            self.all.give_back(self.share.all);
        }
        let key = self.key(from);
        if let Some(entry) = self.entries.get_mut(&key) {
            let bucket = if proved {
                &mut entry.attempts
            } else {
                &mut entry.unproved
            };
            bucket.give_back(self.share.each);
        }
    }

    /// Makes an entry for a stranger, in place of the one that was least active.
    fn remember(&mut self, key: IpAddr, now: Instant) {
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.until = entry.until.max(now);
            return;
        }
        self.make_room();
        self.entries.insert(key, Entry::until(now));
    }

    /// An address is a member's, now.
    fn know(&mut self, address: IpAddr, now: Instant) {
        let until = now + KNOWN_FOR;
        if let Some(entry) = self.entries.get_mut(&address) {
            entry.until = entry.until.max(until);
            return;
        }
        self.make_room();
        self.entries.insert(address, Entry::until(until));
    }

    fn make_room(&mut self) {
        if self.entries.len() >= self.share.addresses_max {
            let first = self.entries.iter().min_by_key(|(_, entry)| entry.until);
            if let Some(address) = first.map(|(address, _)| *address) {
                self.entries.remove(&address);
            }
        }
    }
}

/// A token bucket, by when it will be full (the generic cell rate algorithm, ITU-T I.371).
#[derive(Clone, Copy, Debug, Default)]
struct Bucket(Instant);

impl Bucket {
    /// Takes a token if there is one.
    fn take(&mut self, rate: Rate, now: Instant) -> bool {
        let full = self.0.max(now);
        if full.since(now) + rate.every > rate.every * rate.burst {
            return false;
        }
        self.0 = full + rate.every;
        true
    }

    /// Puts a token back.
    fn give_back(&mut self, rate: Rate) {
        self.0 = self.0 - rate.every;
    }
}

#[cfg(test)]
mod tests;
