//! Counts of refused attempts, by reason and, for a few addresses, by address.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// The maximum number of counts by address. The smallest makes room for a new one.
pub const ADDRESSES_SHOWN_MAX: usize = 32;

/// The reason for refusing an attempt to connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Reason {
    /// The peer showed no certificate, or none of the team's.
    NoCertificate,
    /// The peer's certificate is revoked.
    Revoked,
    /// The peer did not finish the handshake in time, or broke it off.
    Unfinished,
    /// The address, or all addresses of its kind together, began handshakes too often.
    TooOften,
    /// Too many handshakes were unfinished.
    TooMany,
    /// Too many connections of this robot or from this address are open.
    TooManyConnections,
    /// More attempts lacked proof than the budget for demanding it allows.
    Unproved,
}

impl Reason {
    /// All reasons.
    pub const ALL: [Reason; 7] = [
        Reason::NoCertificate,
        Reason::Revoked,
        Reason::Unfinished,
        Reason::TooOften,
        Reason::TooMany,
        Reason::TooManyConnections,
        Reason::Unproved,
    ];

    /// Returns the reason's name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Reason::NoCertificate => "no-certificate",
            Reason::Revoked => "revoked",
            Reason::Unfinished => "unfinished",
            Reason::TooOften => "too-often",
            Reason::TooMany => "too-many",
            Reason::TooManyConnections => "too-many-connections",
            Reason::Unproved => "unproved",
        }
    }
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Reason::NoCertificate => "no certificate",
            Reason::Revoked => "revoked certificate",
            Reason::Unfinished => "handshake not finished",
            Reason::TooOften => "too often",
            Reason::TooMany => "too many handshakes at once",
            Reason::TooManyConnections => "too many connections",
            Reason::Unproved => "address not proved",
        })
    }
}

/// How often attempts of one address were refused for one reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// The address, or the first of its /64.
    pub address: IpAddr,
    /// The reason.
    pub reason: Reason,
    /// The number of refusals.
    pub count: u64,
}

/// All counts.
#[derive(Clone, Debug, Default)]
pub struct Refusals {
    totals: BTreeMap<Reason, u64>,
    by_address: BTreeMap<(IpAddr, Reason), u64>,
}

impl Refusals {
    /// Returns the number of refusals for a reason, over all addresses.
    pub fn total(&self, reason: Reason) -> u64 {
        self.totals.get(&reason).copied().unwrap_or(0)
    }

    /// Returns the addresses with the most refusals, in descending order of counts.
    pub fn by_address(&self) -> Vec<Refused> {
        let counts = self.by_address.iter();
        let mut shown: Vec<Refused> = counts
            .map(|(&(address, reason), &count)| Refused { address, reason, count })
            .collect();
        shown.sort_by_key(|refused| std::cmp::Reverse(refused.count));
        shown
    }

    /// Counts a refusal. `address` is `None` if it may be forged.
    pub(super) fn count(&mut self, address: Option<IpAddr>, reason: Reason) {
        *self.totals.entry(reason).or_default() += 1;
        let Some(address) = address else { return };
        let key = (address, reason);
        if !self.by_address.contains_key(&key) && self.by_address.len() >= ADDRESSES_SHOWN_MAX {
            let smallest = self.by_address.iter().min_by_key(|(_, count)| **count);
            if let Some(smallest) = smallest.map(|(key, _)| *key) {
                self.by_address.remove(&smallest);
            }
        }
        *self.by_address.entry(key).or_default() += 1;
    }
}
