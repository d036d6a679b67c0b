//! Strangers that begin QUIC handshakes and never finish them: members still come up, bulk still flows, and the memory
//! for strangers is bounded.
#![allow(clippy::unwrap_used)] // a test may fail by panicking

mod common;
#[path = "common/flood.rs"]
mod flood;

use std::cell::RefCell;
use std::net::SocketAddr;
use std::thread::JoinHandle;
use std::time::Duration;

use common::{be_a_robot, until, Fleet, Robot};
use coorp_core::admission::{Limits, Reason};
use coorp_core::RobotId;
use flood::Flood;

#[test]
#[ignore = "the process of a robot in the other tests"]
fn robot() {
    let outcome: RefCell<Option<JoinHandle<bool>>> = RefCell::default();
    let publisher = RefCell::default();
    let subscriber = RefCell::default();
    be_a_robot(|node, words| {
        let door = node.status().unwrap().door;
        Some(match words {
            ["send", to, length] => {
                let mut stream = node.bulk_stream(to, "map").unwrap();
                stream.write(&vec![7; length.parse().unwrap()]).unwrap();
                let delivery = stream.finish().unwrap();
                outcome.replace(Some(std::thread::spawn(move || delivery.wait().is_ok())));
                "ok".to_owned()
            }
            ["outcome"] => {
                let done = outcome.borrow().as_ref().is_some_and(JoinHandle::is_finished);
                if done {
                    outcome.take().unwrap().join().unwrap().to_string()
                } else {
                    "pending".to_owned()
                }
            }
            ["publish"] => {
                publisher.replace(Some(node.control_publisher("pose", None).unwrap()));
                "ok".to_owned()
            }
            ["put"] => publisher.borrow().as_ref().unwrap().put(b"here").is_ok().to_string(),
            ["subscribe"] => {
                subscriber.replace(Some(node.control_subscriber("pose").unwrap()));
                "ok".to_owned()
            }
            ["take"] => {
                let wait = Some(Duration::from_millis(50));
                let taken = subscriber.borrow().as_ref().unwrap().recv(wait);
                taken.map_or_else(|| "nothing".to_owned(), |message| message.from.0.to_string())
            }
            ["stored"] => format!("{} {}", door.unfinished, door.addresses),
            ["refused-at", address] => {
                let at = door
                    .refused
                    .iter()
                    .filter(|refused| refused.address.to_string() == *address);
                at.map(|refused| refused.count).sum::<u64>().to_string()
            }
            ["kept-out", address] => {
                let full = |reason| matches!(reason, Reason::TooOften | Reason::TooMany);
                let at = door
                    .refused
                    .iter()
                    .filter(|refused| refused.address.to_string() == *address);
                at.filter(|refused| full(refused.reason)).count().to_string()
            }
            ["descriptors"] => std::fs::read_dir("/proc/self/fd").unwrap().count().to_string(),
            _ => return None,
        })
    });
}

/// Returns the addresses at which a robot listens.
fn doors(fleet: &Fleet, robot: u16) -> [SocketAddr; 2] {
    let port = fleet.team.port(RobotId(robot));
    [port + 1, port + 2].map(|port| ([127, 0, 0, 1], port).into())
}

/// Two members exchange control and bulk with a robot under a flood, one of them from its start.
fn members_get_through(fleet: &Fleet, lead: &mut Robot, flood: &Flood) {
    let limits = Limits::of_team(3, 1);
    let unfinished_max = limits.strangers.unfinished_max + limits.members.unfinished_max;
    let addresses_max = limits.strangers.addresses_max + limits.members.addresses_max;
    lead.say("subscribe");
    until(|| flood.begun() > 50);
    let mut one = fleet.robot("one");
    one.say("send lead 100000000");
    for _ in 0..3 {
        let mut two = fleet.robot("two");
        two.say("publish");
        until(|| {
            two.say("put");
            lead.say("take") == "2"
        });
        two.say("send lead 1000000");
        two.until("outcome", "true");
        let stored = lead.say("stored");
        let (unfinished, addresses) = stored.split_once(' ').unwrap();
        assert!(unfinished.parse::<usize>().unwrap() <= unfinished_max, "{stored}");
        assert!(addresses.parse::<usize>().unwrap() <= addresses_max, "{stored}");
        two.kill();
    }
    one.until("outcome", "true");
}

#[test]
fn unfinished_handshakes_of_one_stranger_keep_no_member_out() {
    let fleet = Fleet::new(&["lead", "one", "two"], "");
    let mut lead = fleet.robot("lead");
    let descriptors: usize = lead.say("descriptors").parse().unwrap();
    let (unproved, proved) = ([127, 0, 0, 65], [127, 0, 0, 66]);
    let floods = [
        Flood::new(doors(&fleet, 0), &[unproved], 75, false),
        Flood::new(doors(&fleet, 0), &[proved], 75, true),
    ];
    members_get_through(&fleet, &mut lead, &floods[1]);
    until(|| lead.say("refused-at 127.0.0.66") != "0");
    assert_eq!(lead.say("refused-at 127.0.0.65"), "0", "it may be forged");
    assert_eq!(lead.say("kept-out 127.0.0.1"), "0", "members are not refused");
    assert!(floods[1].proved() > 0);
    drop(floods);
    // The stored state is gone again.
    until(|| lead.say("stored").starts_with("0 "));
    until(|| lead.say("descriptors").parse::<usize>().unwrap() <= descriptors + 8);
}

#[test]
fn unfinished_handshakes_from_many_addresses_keep_no_member_out() {
    let fleet = Fleet::new(&["lead", "one", "two"], "");
    let mut lead = fleet.robot("lead");
    let many: Vec<[u8; 4]> = (1..=50).map(|last| [127, 0, 1, last]).collect();
    let flood = Flood::new(doors(&fleet, 0), &many, 150, true);
    members_get_through(&fleet, &mut lead, &flood);
    assert_eq!(lead.say("kept-out 127.0.0.1"), "0", "members are not refused");
    assert!(flood.proved() > 0);
    drop(flood);
    until(|| lead.say("stored").starts_with("0 "));
}
