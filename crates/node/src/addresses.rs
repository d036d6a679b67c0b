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

    /// Notes that the certificate of a robot was seen at this address on a path.
    pub fn saw(&self, robot: RobotId, path: usize, address: IpAddr) {
        lock(&self.seen).insert((robot, path), address.to_canonical());
    }
}
