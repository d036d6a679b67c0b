//! Finds out whether a robot whose links are gone has died, by asking its kernel.
//!
//! The fabric's tokens end with a link, and links break for many reasons: a robot may be alive, hold a permit and send.
//! But if a process has ended, its kernel refuses connections to its ports, whereas a frozen, disconnected or slow one
//! does not answer or accepts. So a refusal frees a dead robot's permit at once, and the lease covers everything else.
//! Left out: robots without known addresses, whose permits always end with their lease.
//!
//! This assumes that robots' ports are open to their team, as they have to be: a firewall that refuses connections to a
//! live robot would speak for its kernel.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use coorp_core::robot::Input;
use coorp_core::RobotId;

use crate::fabric::PORTS_COORDINATION;
use crate::member::Member;
use crate::shared_robot::SharedRobot;
use crate::sync::spawn;

/// How long to wait for an answer: no permit lasts much longer anyway.
const ANSWER_MAX: Duration = Duration::from_millis(200);

/// Checks in a short-lived thread, and frees the robot's permit if it has died.
pub(super) fn find_out(robot: &Arc<SharedRobot>, member: &Member, suspect: RobotId) {
    let Some(about) = member.team.robots.get(usize::from(suspect.0)) else {
        return;
    };
    let port = member.team.port(suspect);
    let places = about.addresses.iter().zip(PORTS_COORDINATION);
    let places: Vec<SocketAddr> = places
        .map(|(address, place)| SocketAddr::new(*address, port.saturating_add(place)))
        .collect();
    let robot = robot.clone();
    let ask = move || {
        for place in places {
            let since = robot.now();
            let refused = TcpStream::connect_timeout(&place, ANSWER_MAX)
                .is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused);
            if refused {
                let dead = Input::Dead { robot: suspect, since };
                robot.tell(|robot, now| robot.handle(dead, now));
                return;
            }
        }
    };
    if let Err(error) = spawn("coorp-dead", ask) {
        tracing::debug!("cannot ask whether a robot has died: {error}");
    }
}
