//! Decides which endpoints are introduced to each other. One process of a domain, the host, does this for all. No I/O
//! here.
//!
//! The host knows only what its members have told it, and they repeat it to the next host. So the host's death costs
//! only the time that members need to find the next one, and no connection between members.

use std::collections::{BTreeMap, HashMap};

use crate::wire::{EndpointId, Limit, Role};

/// The maximum number of endpoints of one process.
pub const ENDPOINTS_MAX: usize = 1024;
/// The maximum number of receivers of a sender, and of senders of a receiver.
pub const PEERS_MAX: usize = 256;
/// The maximum number of processes of a domain.
pub const MEMBERS_MAX: usize = 256;

/// A member's connection to the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Member(pub u64);

#[derive(Debug, Default)]
struct Ends {
    senders: BTreeMap<EndpointId, Member>,
    receivers: BTreeMap<EndpointId, Member>,
}

impl Ends {
    fn of(&mut self, role: Role) -> (&mut BTreeMap<EndpointId, Member>, &BTreeMap<EndpointId, Member>) {
        match role {
            Role::Sender => (&mut self.senders, &self.receivers),
            Role::Receiver => (&mut self.receivers, &self.senders),
        }
    }
}

/// The endpoints that all members have opened.
#[derive(Debug, Default)]
pub(crate) struct Directory {
    channels: HashMap<String, Ends>,
    open: HashMap<(Member, EndpointId), (String, Role)>,
    counts: HashMap<Member, usize>,
}

impl Directory {
    /// Registers an endpoint, and returns the peers to introduce it to.
    pub fn open(
        &mut self,
        member: Member,
        endpoint: EndpointId,
        role: Role,
        channel: &str,
    ) -> Result<Vec<(Member, EndpointId)>, Limit> {
        if self.open.contains_key(&(member, endpoint)) {
            return Ok(Vec::new());
        }
        if self.counts.get(&member).is_some_and(|&count| count >= ENDPOINTS_MAX) {
            return Err(Limit::Endpoints);
        }
        let (own, others) = self.channels.entry(channel.to_owned()).or_default().of(role);
        if own.len() >= PEERS_MAX {
            return Err(Limit::Peers);
        }
        own.insert(endpoint, member);
        let peers = others.iter().map(|(&endpoint, &member)| (member, endpoint)).collect();
        self.open.insert((member, endpoint), (channel.to_owned(), role));
        *self.counts.entry(member).or_default() += 1;
        Ok(peers)
    }

    pub fn close(&mut self, member: Member, endpoint: EndpointId) {
        let Some((channel, role)) = self.open.remove(&(member, endpoint)) else {
            return;
        };
        if let Some(count) = self.counts.get_mut(&member) {
            *count -= 1;
        }
        let Some(ends) = self.channels.get_mut(&channel) else {
            return;
        };
        // Another member, such as an impostor, may have opened an endpoint with the same id since.
        let own = ends.of(role).0;
        if own.get(&endpoint) == Some(&member) {
            own.remove(&endpoint);
        }
        if ends.senders.is_empty() && ends.receivers.is_empty() {
            self.channels.remove(&channel);
        }
    }

    pub fn member_gone(&mut self, member: Member) {
        let gone: Vec<_> = self
            .open
            .keys()
            .filter(|(owner, _)| *owner == member)
            .map(|(_, endpoint)| *endpoint)
            .collect();
        gone.into_iter().for_each(|endpoint| self.close(member, endpoint));
        self.counts.remove(&member);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u128) -> EndpointId {
        EndpointId::of(number)
    }

    #[test]
    fn the_ends_of_a_channel_are_introduced_whatever_their_order() {
        let mut directory = Directory::default();
        let (a, b) = (Member(1), Member(2));
        assert_eq!(directory.open(a, id(1), Role::Sender, "x"), Ok(vec![]));
        assert_eq!(directory.open(b, id(2), Role::Receiver, "y"), Ok(vec![]));
        assert_eq!(directory.open(b, id(3), Role::Receiver, "x"), Ok(vec![(a, id(1))]));
        assert_eq!(directory.open(a, id(4), Role::Sender, "x"), Ok(vec![(b, id(3))]));
        assert_eq!(
            directory.open(a, id(5), Role::Receiver, "x"),
            Ok(vec![(a, id(1)), (a, id(4))])
        );
        // The host is told twice, and already knows it.
        assert_eq!(directory.open(a, id(5), Role::Receiver, "x"), Ok(vec![]));
    }

    #[test]
    fn the_gone_are_introduced_to_nobody_and_leave_nothing() {
        let mut directory = Directory::default();
        let (a, b) = (Member(1), Member(2));
        directory.open(a, id(1), Role::Sender, "x").unwrap();
        directory.open(a, id(2), Role::Sender, "x").unwrap();
        directory.close(a, id(1));
        assert_eq!(directory.open(b, id(3), Role::Receiver, "x"), Ok(vec![(a, id(2))]));
        directory.member_gone(a);
        directory.member_gone(a);
        directory.member_gone(b);
        assert!(directory.channels.is_empty() && directory.open.is_empty() && directory.counts.is_empty());
    }

    #[test]
    fn limits() {
        let mut directory = Directory::default();
        for number in 0..PEERS_MAX as u128 {
            directory.open(Member(1), id(number), Role::Sender, "x").unwrap();
        }
        assert_eq!(
            directory.open(Member(1), id(1 << 64), Role::Sender, "x"),
            Err(Limit::Peers)
        );
        for number in PEERS_MAX..ENDPOINTS_MAX {
            directory
                .open(Member(1), id(number as u128), Role::Sender, &format!("{number}"))
                .unwrap();
        }
        assert_eq!(
            directory.open(Member(1), id(1 << 64), Role::Sender, "y"),
            Err(Limit::Endpoints)
        );
        assert!(directory.open(Member(2), id(1 << 64), Role::Sender, "y").is_ok());
    }
}
