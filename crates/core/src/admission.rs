//! Decides which connection attempts a robot accepts, so that strangers cannot starve members.
//!
//! An address must first be proved by a Retry (RFC 9000, 8.1.2). Until then nothing is stored for it, because it may be
//! forged. Each handshake after that costs signatures, so three limits bound them: the rate per address, the unfinished
//! ones per address, and the unfinished ones in all. IPv6 strangers share their limits by /64, the smallest network
//! that a site gets.
//!
//! Addresses at which a member has recently shown its certificate, and addresses in the team file, have a separate
//! share, counted by whole address. A flood from elsewhere takes nothing from that share. There, one handshake at a
//! time needs no proof. Handshakes that succeed count against no share, because robots open a connection for each burst
//! of bulk. If a share is full, its oldest handshake makes room once it has lasted [`HANDSHAKE_MIN`], as in a SYN
//! cache. A member finishes within a few round trips, so a handshake that lingers is a stranger's. A member at a new
//! address therefore gets in too.
//!
//! The operator's certificate permits only queries. Its connections have a few places of their own, its handshakes
//! count like a stranger's, and its address does not become a member's. No number of them keeps a robot out.
//!
//! All state is bounded, including the counts of refusals. Source: this project; proof before state is an idea of
//! WireGuard and QUIC. Left out: limits on the bytes and streams of established connections, which belong to members
//! (QUIC's flow control bounds them). Also left out: a member's neighbour that sends from the member's own address.

mod refusals;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};

pub use self::refusals::{Reason, Refusals, Refused, ADDRESSES_SHOWN_MAX};
use crate::{Duration, Instant, RobotId};

/// Maximum duration of a handshake. A longer one is abandoned.
pub const HANDSHAKE_MAX: Duration = Duration::from_secs(2);
/// Age from which a handshake makes room for a new one if its share is full.
pub const HANDSHAKE_MIN: Duration = Duration::from_millis(250);
/// How long an address counts as a member's after its last connection has ended.
pub const KNOWN_FOR: Duration = Duration::from_secs(600);

/// A rate with a burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// The interval after which one more is allowed.
    pub every: Duration,
    /// The number allowed at once.
    pub burst: u64,
}

/// The limits for addresses of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// How often one address may begin a handshake.
    pub each: Rate,
    /// How often all addresses of the kind together may begin a handshake.
    pub all: Rate,
    /// The maximum number of unfinished handshakes of one address.
    pub unfinished_each_max: usize,
    /// The maximum number of unfinished handshakes of all addresses of the kind.
    pub unfinished_max: usize,
    /// The maximum number of addresses that are remembered.
    pub addresses_max: usize,
}

/// All limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The share of all addresses at which no member was seen.
    pub strangers: Share,
    /// The share of the team's addresses.
    pub members: Share,
    /// How often proof is demanded: of all addresses together, and in addition of each member's address.
    pub proofs: Rate,
    /// The maximum number of connections with one robot's certificate.
    pub connections_per_robot_max: usize,
    /// The maximum number of robots' connections from one address.
    pub connections_per_address_max: usize,
    /// The maximum number of connections with the operator's certificate.
    pub operators_max: usize,
}

impl Limits {
    /// Returns the limits for a team of `robots` with `paths` each.
    pub fn of_team(robots: usize, paths: usize) -> Limits {
        // A robot opens one connection for control and one for bulk on each path, and new ones overlap with those that
        // end.
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
            // A whole team may share one address, behind a router or on one machine.
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

/// Identifies an admitted attempt, from its beginning to the end of its connection. Numbers increase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(u64);

/// The decision about an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Demand proof of the address.
    Prove,
    /// Begin the handshake.
    Begin {
        /// Identifies the attempt from now on.
        ticket: Ticket,
        /// An older attempt to abandon in favour of this one. Its ticket has ended.
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
    /// By ticket, the address and the robot; `None` for the operator.
    connections: BTreeMap<Ticket, (IpAddr, Option<RobotId>)>,
    next: u64,
    refusals: Refusals,
}

impl Admission {
    /// Creates the state. `addresses` are those of the team's robots that are fixed.
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

    /// Decides about an attempt to connect. `proved` says whether the address is proved to be the sender's own.
    pub fn on_attempt(&mut self, from: IpAddr, proved: bool, now: Instant) -> Verdict {
        let from = from.to_canonical();
        let is_busy = self.members.unfinished.values().any(|(at, ..)| *at == from);
        let is_in_use = self
            .connections
            .values()
            .any(|(at, robot)| *at == from && robot.is_some());
        let known = self.members.entries.get_mut(&from);
        let mut known = known.filter(|entry| is_in_use || entry.until >= now);
        // One handshake of a member's address needs no proof, which saves a round trip. A forger of the address gets no
        // more than that one; its attempts that fail at once count in a separate bucket.
        let (each, proofs) = (self.limits.members.each, self.limits.proofs);
        let is_free = |entry: &mut &mut Entry| !is_busy && entry.unproved.take(each, now);
        if !proved && !known.as_mut().is_some_and(is_free) {
            // A member's address uses its own budget first, then the general one.
            let own = known.is_some_and(|entry| entry.proofs.take(proofs, now));
            if own || self.proofs.take(self.limits.proofs, now) {
                return Verdict::Prove;
            }
            // Not counted by address, because the address may be forged.
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

    /// Ends a handshake that showed a robot's certificate. Returns whether the connection may stay; if not, its ticket
    /// has ended.
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

    /// Ends a handshake that showed the operator's certificate. Returns whether the connection may stay; if not, its
    /// ticket has ended.
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

    /// Ends a handshake that failed or timed out.
    pub fn on_failed(&mut self, ticket: Ticket, reason: Reason) {
        if let Some(from) = self.finish(ticket) {
            self.refusals.count(Some(site(from)), reason);
        }
    }

    /// Ends a connection, or a handshake that led to none.
    pub fn on_ended(&mut self, ticket: Ticket, now: Instant) {
        match self.connections.remove(&ticket) {
            Some((from, Some(_))) => self.members.know(from, now),
            Some((_, None)) => {}
            None => self.on_failed(ticket, Reason::Unfinished),
        }
    }

    /// Returns the attempts refused so far.
    pub fn refusals(&self) -> &Refusals {
        &self.refusals
    }

    /// Returns the number of unfinished handshakes.
    pub fn unfinished(&self) -> usize {
        self.strangers.unfinished.len() + self.members.unfinished.len()
    }

    /// Returns the number of connections.
    pub fn connections(&self) -> usize {
        self.connections.len()
    }

    /// Returns the number of addresses for which something is stored.
    pub fn addresses(&self) -> usize {
        self.strangers.entries.len() + self.members.entries.len()
    }

    fn finish(&mut self, ticket: Ticket) -> Option<IpAddr> {
        let of_member = self.members.finish(ticket);
        of_member.or_else(|| self.strangers.finish(ticket))
    }
}

/// Returns the address that strangers are counted by: the /64 of an IPv6 address, or any other whole address.
/// Link-local addresses stay whole too, because all hosts of a link share that /64.
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
    /// Whether addresses are counted by [`site`], as strangers' are, or whole, as members' are.
    by_site: bool,
    entries: BTreeMap<IpAddr, Entry>,
    all: Bucket,
    /// By ticket, oldest first: the whole address, the start, and whether the address is proved.
    unfinished: BTreeMap<Ticket, (IpAddr, Instant, bool)>,
}

/// The state of one address.
#[derive(Clone, Debug)]
struct Entry {
    attempts: Bucket,
    /// Attempts without proof. They take nothing from `attempts`, because they may be forged.
    unproved: Bucket,
    proofs: Bucket,
    /// For a member's address, when it ceases to count as one; for a stranger's, the last activity. The entry with the
    /// lowest value makes room for a new one.
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

    /// Begins a handshake. Returns the handshake that makes room for it, if any, with its address.
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

    /// Refunds the tokens that a handshake took.
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

    /// Updates or creates the entry of an address. If there is no room, the entry with the lowest `until` goes.
    fn remember(&mut self, key: IpAddr, now: Instant) {
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.until = entry.until.max(now);
            return;
        }
        self.make_room();
        self.entries.insert(key, Entry::until(now));
    }

    /// Records that an address is a member's.
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

/// A token bucket, stored as the time when it will be full (the generic cell rate algorithm, ITU-T I.371).
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
