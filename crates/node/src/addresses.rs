//! The other robots' addresses: from the team file, or else those at which their certificates were last seen.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use coorp_core::RobotId;
use coorp_team::Team;

use crate::sync::lock;

/// The addresses of all robots of a team, by robot and path.
#[derive(Debug)]
pub(crate) struct Addresses {
    given: Vec<Vec<IpAddr>>,
    seen: Mutex<BTreeMap<(RobotId, usize), IpAddr>>,
}

impl Addresses {
    pub fn of(team: &Team) -> Arc<Self> {
        Arc::new(Addresses {
            given: team.robots.iter().map(|robot| robot.addresses.clone()).collect(),
            seen: Mutex::default(),
        })
    }

    /// Returns the address of a robot on a path, as far as it is known.
    pub fn known(&self, robot: RobotId, path: usize) -> Option<IpAddr> {
        let given = self.given.get(usize::from(robot.0))?.get(path).copied();
        given.or_else(|| lock(&self.seen).get(&(robot, path)).copied())
    }

    /// Returns whether a robot is known to have this address.
    pub fn has(&self, address: IpAddr) -> bool {
        self.given.iter().flatten().any(|given| *given == address)
            || lock(&self.seen).values().any(|seen| *seen == address)
    }

    /// Notes that the certificate of a robot was seen at this address on a path.
    pub fn saw(&self, robot: RobotId, path: usize, address: IpAddr) {
        lock(&self.seen).insert((robot, path), address.to_canonical());
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn robots_have_the_addresses_that_are_given_or_were_seen() {
        let text = "[[robot]]\nname = \"r0\"\nleader = true\naddresses = [\"10.0.0.1\"]\n[[robot]]\nname = \"r1\"\n";
        let addresses = Addresses::of(&coorp_team::parse(text, "t.toml", Path::new("")).unwrap());
        let [given, seen, other]: [IpAddr; 3] = [[10, 0, 0, 1], [10, 0, 0, 2], [10, 0, 0, 3]].map(Into::into);
        assert!(addresses.has(given) && !addresses.has(seen));
        addresses.saw(RobotId(1), 0, seen);
        assert!(addresses.has(seen) && !addresses.has(other));
    }
}
