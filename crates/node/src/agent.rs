//! The driver of a robot on real sockets. The parts that it connects do not know it.
//!
//! The links' tasks report what arrived to the robot (`agent/inbound.rs`) and wake the driver.
//! Only the driver carries out the robot's actions (`agent/driver.rs`).

mod driver;
mod inbound;

use std::sync::{Arc, Mutex};

use coorp_core::robot::PermitState;
use coorp_core::windows::Window;
use coorp_core::{Duration, Instant, RobotId};

use crate::bulk::Bulk;
use crate::control::Control;
use crate::gather::Gatherings;
use crate::links::Links;
use crate::member::{robot_named, Member};
use crate::presence::Presence;
use crate::protect::{Protection, Wrapper};
use crate::shared_robot::{SharedRobot, STARTED};
use crate::status::{self, Status};
use crate::sync::lock;
use crate::Error;

/// A robot with everything that feeds it and acts for it.
#[derive(Debug)]
pub(crate) struct Agent {
    pub member: Arc<Member>,
    pub robot: Arc<SharedRobot>,
    pub presence: Mutex<Presence>,
    pub links: Arc<Links>,
    pub control: Arc<Control>,
    pub gatherings: Arc<Gatherings>,
    /// `None` without keys.
    pub bulk: Option<Arc<Bulk>>,
    pub wrapper: Arc<Wrapper>,
    /// The protection of this machine's other programs, if it was requested.
    pub protection: Mutex<Option<Arc<Protection>>>,
}

impl Agent {
    /// Runs one round of the robot's driver, as [`SharedRobot::round`] does.
    pub fn round(&self) -> Option<std::time::Duration> {
        self.robot.round(|action| self.act(action))
    }

    /// Returns the protection of this machine's other programs.
    pub fn protection(&self) -> Option<Arc<Protection>> {
        lock(&self.protection).clone()
    }

    /// Returns the robot that a bulk message goes to: the one with a name, or `leader`.
    pub fn bulk_to(&self, to: &str) -> Result<RobotId, Error> {
        let team = &self.member.team;
        let (robot, own) = match team.robot_named(to) {
            None if to == "leader" => match self.robot.ask(|robot, now| robot.leader(now)) {
                Some(leader) => (leader, "leads now: use data for the leader here, or name another robot"),
                None => (
                    team.leader,
                    "is the team file's leader, and nobody leads now: wait for a leader, or name another robot",
                ),
            },
            _ => (robot_named(team, to)?, "is this one: name another one"),
        };
        if robot == self.member.me {
            let name = self.member.name();
            return Err(Error::BulkToItself(format!(
                "bulk goes from one robot to another, and {name} {own}"
            )));
        }
        Ok(robot)
    }

    /// Stops sending, because the robot has failed.
    pub fn fall_silent(&self) {
        drop(lock(&self.protection).take());
        if let Some(bulk) = &self.bulk {
            bulk.close();
        }
        self.links.close();
    }

    /// Returns the robot's current status.
    pub fn status(&self) -> Status {
        let member = &self.member;
        let mut alive: Vec<u16> = lock(&self.presence).robots().map(|robot| robot.0).collect();
        alive.push(member.me.0);
        alive.sort_unstable();
        let bulk = self.bulk.as_ref().map(|bulk| bulk.status());
        let (published, heard) = (self.control.published(), self.control.heard());
        let gathered = self.gatherings.gathered();
        let door = member.door.status();
        let found = self.links.found();
        let flows = self.protection().map(|protection| protection.flows());
        self.robot.ask(|robot, now| {
            let (holders, queue) = robot.granted();
            let leader = robot.leader(now);
            let clock = robot.leaders_clock(now);
            Status {
                robot: member.name().to_owned(),
                leader: leader.map(|leader| leader.0),
                leads: leader == Some(member.me),
                secure: member.secure,
                policy: member.policy.name.clone(),
                up_ms: now.since(STARTED).as_nanos() / 1_000_000,
                alive,
                permit: match robot.permit(now) {
                    PermitState::NotNeeded => status::Permit::NotNeeded,
                    PermitState::Idle => status::Permit::Idle,
                    PermitState::Waiting => status::Permit::Waiting,
                    PermitState::Holding => status::Permit::Holding,
                },
                holders: holders.iter().map(|robot| robot.0).collect(),
                queue: queue.iter().map(|robot| robot.0).collect(),
                window_us: relative(robot.window(), now),
                clock_ns: clock.map(|(_, offset)| (offset.ahead_ns, offset.within.as_nanos())),
                paths: (0..member.paths).map(|path| member.path_name(path)).collect(),
                choices: robot.paths(now).into_iter().map(status::Path::from).collect(),
                bulk,
                published,
                heard,
                gathered,
                alarms: member.bell.standing(now),
                twins: member.bell.twins(now),
                refused: member.refused.read(),
                door,
                found,
                revoked: member.revoked.status(),
                flows: flows.unwrap_or_default(),
            }
        })
    }
}

/// Returns a window seen from now, in microseconds; `None` once it is over.
fn relative(window: Window, now: Instant) -> Option<(i64, u64)> {
    let micros = |span: Duration| span.as_nanos() / 1_000;
    let start = i64::try_from(micros(window.start.since(now))).unwrap_or(i64::MAX);
    let begun = i64::try_from(micros(now.since(window.start))).unwrap_or(i64::MAX);
    (window.end > now).then(|| (start - begun, micros(window.end.since(window.start))))
}
