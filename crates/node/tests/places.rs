//! Robots that join a running team without being in its file: a place and a key are enough.
#![allow(clippy::unwrap_used)] // a test may fail by panicking

mod common;

use std::time::Duration;

use common::{agreed, be_a_robot, free_ports, until, Fleet, Robot};

#[test]
#[ignore = "the process of a robot in the other tests"]
fn robot() {
    be_a_robot(|_, _| None);
}

/// Returns a team with places at an address of their own, because each takes more ports.
fn fleet(address: &str, more: &str) -> Fleet {
    let port = free_ports();
    let place = format!("[[place]]\nname = \"scout\"\ncount = 2\naddresses = [\"{address}\"]\nport = {port}\n");
    Fleet::new(&["lead", "one", "two"], &format!("{place}{more}"))
}

/// Starts a robot in its own folder, with nothing but the team file and its bundle.
fn joins(fleet: &Fleet, name: &str) -> Robot {
    Robot::start(&fleet.machine(name), name, "coorp", false)
}

#[test]
fn a_robot_that_is_not_in_the_file_joins_and_gets_permits() {
    let fleet = fleet("127.0.0.3", "[policy]\nslice = \"60s\"\n");
    let robots = ["lead", "one", "two"].map(|name| fleet.robot(name));
    let [mut first, mut second, third]: [Robot; 3] = agreed(robots.into()).try_into().ok().unwrap();
    // Nobody waits for those that may join.
    first.until("alive", "[0, 1, 2]");
    second.say("bulk on");
    second.until("may", "true");
    let mut scout = joins(&fleet, "scout-2");
    assert_eq!(scout.say("place"), "[4]");
    first.until("alive", "[0, 1, 2, 4]");
    scout.until("alive", "[0, 1, 2, 4]");
    scout.say("bulk on");
    first.until("queue", "[4]");
    second.say("bulk off");
    scout.until("may", "true");
    scout.kill();
    until(|| first.say("alive") == "[0, 1, 2]");
    drop(third);
}

#[test]
fn robots_that_joined_have_no_vote_and_never_lead() {
    let fleet = fleet("127.0.0.4", "");
    let robots = ["lead", "one", "two"].map(|name| fleet.robot(name));
    let [first, second, third]: [Robot; 3] = agreed(robots.into()).try_into().ok().unwrap();
    let mut scouts = ["scout-1", "scout-2"].map(|name| joins(&fleet, name));
    for scout in &mut scouts {
        scout.until("alive", "[0, 1, 2, 3, 4]");
    }
    // With two of the three founders gone, the three that are left would be a quorum of five.
    first.kill();
    let mut left = agreed(vec![second, third]);
    left.remove(0).kill();
    let [last] = &mut left[..] else { panic!("one is left") };
    last.until("leader", "None");
    scouts[0].say("bulk on");
    // A quorum would have a leader within a second.
    std::thread::sleep(Duration::from_secs(3));
    for robot in scouts.iter_mut().chain([last]) {
        assert_eq!(robot.say("leader"), "None");
    }
    assert_eq!(scouts[0].say("may"), "false");
}
