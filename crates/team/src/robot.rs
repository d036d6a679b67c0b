//! One robot's part of a team: its configuration, and its paths to the others.
//!
//! Path k leads from a robot's interface k to another's interface k. Left out: a plan for SchedWiFi's windows, which
//! needs more than the team file.

use coorp_core::paths::PathConfig;
use coorp_core::policy::Policy;
use coorp_core::robot::{ControlLoop, RobotConfig};
use coorp_core::RobotId;

use crate::model::Team;

impl Team {
    /// Returns the configuration of robot `me` under `policy`, which already includes the team's `[policy]`. No other
    /// start of that robot may have this `incarnation`.
    pub fn robot_config(&self, policy: &Policy, me: RobotId, incarnation: u32) -> RobotConfig {
        let robots = u16::try_from(self.robots.len()).unwrap_or(u16::MAX);
        let founders = u16::try_from(self.founders()).unwrap_or(u16::MAX);
        let default = PathConfig::default();
        RobotConfig {
            robots,
            judged: self.control.is_some() || self.bounds_control(),
            control: self.control.map(|control| ControlLoop {
                period: control.period,
                bound: control.bound,
            }),
            paths_to: (0..robots)
                .map(|robot| self.paths_between(me, RobotId(robot)))
                .collect(),
            paths: self.paths_used(me),
            path: PathConfig {
                duplicate: self.live.duplicate,
                // Arriving later than the loop's bound is useless.
                target: self.control.map_or(default.target, |control| control.bound),
                ..default
            },
            // Only founders vote: with robots that come and go, a quorum would not be one of the robots that are there.
            ..RobotConfig::new(policy, me, founders, self.leader, incarnation)
        }
    }

    /// Returns whether there are control flows, each with a bound.
    fn bounds_control(&self) -> bool {
        let mut control = self.flows.iter().filter(|flow| !flow.bulk).peekable();
        control.peek().is_some() && control.all(|flow| flow.bound.is_some())
    }

    /// Returns the number of paths from one robot to another.
    pub fn paths_between(&self, one: RobotId, other: RobotId) -> usize {
        self.paths_of(one).min(self.paths_of(other))
    }

    /// Returns whether any two robots have a choice of paths.
    pub fn any_choice(&self) -> bool {
        let robots = (0u16..).map(RobotId).zip(&self.robots);
        robots.filter(|(robot, _)| self.paths_of(*robot) > 1).count() > 1
    }

    /// Returns the number of a robot's paths in use: one if no robot has a choice.
    pub fn paths_used(&self, robot: RobotId) -> usize {
        if self.any_choice() {
            self.paths_of(robot)
        } else {
            1
        }
    }

    /// Returns the number of a robot's paths: its interfaces or addresses.
    fn paths_of(&self, robot: RobotId) -> usize {
        let robot = &self.robots[usize::from(robot.0)];
        robot.interfaces.len().max(robot.addresses.len()).max(1)
    }
}
