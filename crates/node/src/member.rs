//! A robot's place in its team: its identity, the interfaces of its paths, and what it has refused. Fixed at the
//! robot's start, except for the counts.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use coorp_core::policy::Policy;
use coorp_core::RobotId;
use coorp_team::Team;
use quinn::MtuDiscoveryConfig;

use crate::alarms::Bell;
use crate::door::Door;
use crate::ground::{Bound, Ground};
use crate::quic::lengths;
use crate::refused::RefusedCounts;
use crate::revoked::Revoked;
use crate::Error;

/// A robot of a team.
#[derive(Debug)]
pub(crate) struct Member {
    pub ground: Arc<dyn Ground>,
    pub team: Team,
    pub me: RobotId,
    /// The policy, with the team file's `[policy]` applied.
    pub policy: Policy,
    /// The number of paths in use.
    pub paths: usize,
    pub incarnation: u32,
    /// Whether it has keys.
    pub secure: bool,
    pub refused: RefusedCounts,
    pub revoked: Arc<Revoked>,
    pub door: Arc<Door>,
    pub bell: Bell,
}

impl Member {
    pub fn name(&self) -> &str {
        self.name_of(self.me)
    }

    pub fn name_of(&self, robot: RobotId) -> &str {
        self.team
            .robots
            .get(usize::from(robot.0))
            .map_or("", |robot| robot.name.as_str())
    }

    /// Returns the name of one of this robot's paths: its interface, or else its address.
    pub fn path_name(&self, path: usize) -> String {
        let robot = &self.team.robots[usize::from(self.me.0)];
        match (robot.interfaces.get(path), robot.addresses.get(path)) {
            (Some(interface), _) => interface.clone(),
            (None, Some(address)) => address.to_string(),
            (None, None) => "any".to_owned(),
        }
    }

    /// Returns the binding of this robot's sockets on a path: its address there, and its interface, because datagrams
    /// must not leave by another interface.
    pub fn outlet(&self, path: usize) -> (IpAddr, Option<&String>) {
        let robot = &self.team.robots[usize::from(self.me.0)];
        let everywhere = IpAddr::from([0, 0, 0, 0]);
        let address = robot.addresses.get(path).copied().unwrap_or(everywhere);
        (address, robot.interfaces.get(path))
    }

    /// Binds a socket on a path; `what` names its purpose.
    pub fn bind(&self, what: &str, path: usize, port: u16) -> Result<Box<dyn Bound>, Error> {
        let (address, interface) = self.outlet(path);
        let over = interface
            .map(|interface| format!(" on {interface}"))
            .unwrap_or_default();
        let bound = self.ground.bind(SocketAddr::new(address, port), interface);
        bound.map_err(|error| {
            Error::Socket(
                format!("cannot use the address {address}:{port}{over} for {what}"),
                error,
            )
        })
    }

    /// Returns the lengths of datagrams over a path to an address.
    pub fn lengths(&self, path: usize, to: SocketAddr) -> MtuDiscoveryConfig {
        lengths(self.ground.mtu(to, self.outlet(path)))
    }
}

/// Returns the team's robot with this name.
pub(crate) fn robot_named(team: &Team, name: &str) -> Result<RobotId, Error> {
    team.robot_named(name).ok_or_else(|| {
        let names: Vec<&str> = team.robots.iter().map(|robot| robot.name.as_str()).collect();
        Error::UnknownRobot(format!(
            "the team has no robot \"{name}\"; its robots are {}",
            names.join(", ")
        ))
    })
}
