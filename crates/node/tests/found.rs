//! Robots without addresses find each other on a LAN: two network namespaces with a cable between them. Needs root;
//! without it, passes without a check.
#![allow(clippy::unwrap_used)] // a test may fail by panicking

mod common;

use std::io::Write;
use std::process::Command;

use common::{agreed, be_a_robot, Fleet, Robot};

#[test]
#[ignore = "the process of a robot in the other tests"]
fn robot() {
    let (subscriber, publisher) = (std::cell::RefCell::new(None), std::cell::RefCell::new(None));
    be_a_robot(|node, words| {
        Some(match words {
            ["hear"] => {
                subscriber.replace(Some(node.control_subscriber("pose").unwrap()));
                "ok".to_owned()
            }
            ["say"] => {
                let mut publisher = publisher.borrow_mut();
                let pose = publisher.get_or_insert_with(|| node.control_publisher("pose", None).unwrap());
                pose.put(b"hello").unwrap();
                "ok".to_owned()
            }
            ["heard"] => subscriber.borrow().as_ref().unwrap().try_recv().is_some().to_string(),
            ["send", to] => {
                let mut stream = node.bulk_stream(to, "map").unwrap();
                stream.write(&[7; 100_000]).unwrap();
                stream
                    .finish()
                    .unwrap()
                    .wait()
                    .map_or_else(|error| error.to_string(), |()| "whole".to_owned())
            }
            _ => return None,
        })
    });
}

/// Two namespaces and a cable; removed when dropped.
struct Lan([String; 2]);

impl Lan {
    fn new(name: &str) -> Option<Lan> {
        // An emulator must not take these names for another emulator's leftovers.
        let names = ["a", "b"].map(|end| format!("found-{}-{name}-{end}", std::process::id()));
        let ip = |arguments: &str| {
            Command::new("ip")
                .args(arguments.split(' '))
                .status()
                .is_ok_and(|done| done.success())
        };
        let [a, b] = &names;
        if !ip(&format!("netns add {a}")) {
            assert!(std::env::var_os("CI").is_none(), "CI is to have root and ip");
            let _ = writeln!(std::io::stderr().lock(), "SKIPPED {name}: not root, or no ip");
            return None;
        }
        let lan = Lan(names.clone());
        assert!(ip(&format!("netns add {b}")));
        for name in &names {
            assert!(ip(&format!("-n {name} link set lo up")));
        }
        lan.cable(0);
        Some(lan)
    }

    /// Adds a cable, from `ethN` to `ethN`.
    fn cable(&self, number: usize) {
        let ip = |arguments: &str| {
            let done = Command::new("ip").args(arguments.split(' ')).status();
            assert!(done.unwrap().success(), "ip {arguments}");
        };
        let ([a, b], eth) = (&self.0, format!("eth{number}"));
        ip(&format!("link add {eth} netns {a} type veth peer name {eth} netns {b}"));
        for (place, name) in self.0.iter().enumerate() {
            ip(&format!(
                "-n {name} addr add 10.{}.0.{}/24 dev {eth}",
                98 + number,
                place + 1
            ));
            ip(&format!("-n {name} link set {eth} up"));
        }
    }

    /// Removes a cable and the cards at its ends.
    fn cut(&self, number: usize) {
        let done = Command::new("ip")
            .args(["-n", &self.0[0], "link", "del", &format!("eth{number}")])
            .status();
        assert!(done.unwrap().success());
    }

    /// Returns the output of a command in the first namespace.
    fn says(&self, command: &str) -> String {
        let mut ip = Command::new("ip");
        let output = ip.args(["netns", "exec", &self.0[0]]).args(command.split(' ')).output();
        String::from_utf8(output.unwrap().stdout).unwrap()
    }
}

impl Drop for Lan {
    fn drop(&mut self) {
        for name in &self.0 {
            let _ = Command::new("ip").args(["netns", "del", name]).status();
        }
    }
}

#[test]
fn robots_without_addresses_find_each_other() {
    let Some(lan) = Lan::new("turn") else {
        return;
    };
    let fleet = Fleet::without_addresses(&["lead", "one"]);
    let [a, b] = &lan.0;
    let robots = vec![
        Robot::inside(a, &fleet.file, "lead"),
        Robot::inside(b, &fleet.file, "one"),
    ];
    let mut robots = agreed(robots);
    let (mut one, mut lead) = (robots.pop().unwrap(), robots.pop().unwrap());
    lead.until("alive", "[0, 1]");
    lead.say("hear");
    until_heard(&mut lead, &mut one);
    let to = lead.name.clone();
    assert_eq!(
        one.say(&format!("send {to}")),
        "whole",
        "its address is that of its link"
    );
    let name = one.name.clone();
    one.kill();
    lead.until("alive", if name == "one" { "[0]" } else { "[1]" });
    let mut back = Robot::inside(if name == "one" { b } else { a }, &fleet.file, &name);
    back.until("alive", "[0, 1]");
}

#[test]
fn robots_that_start_at_once_find_each_other() {
    let Some(lan) = Lan::new("once") else {
        return;
    };
    let fleet = Fleet::without_addresses(&["lead", "one"]);
    let start = |place: usize, name: &'static str| {
        let (namespace, file) = (lan.0[place].clone(), fleet.file.clone());
        std::thread::spawn(move || Robot::inside(&namespace, &file, name))
    };
    let both = [start(0, "lead"), start(1, "one")];
    let robots = both.map(|robot| robot.join().unwrap());
    for robot in &mut agreed(robots.into()) {
        robot.until("alive", "[0, 1]");
    }
}

/// Returns two robots that are connected only by another cable; the leader hears control.
fn two_over_a_card(lan: &Lan) -> (Fleet, Robot, Robot) {
    lan.cable(1);
    let fleet = Fleet::over(&["lead", "one"], "eth1");
    let [a, b] = &lan.0;
    let mut lead = Robot::inside(a, &fleet.file, "lead");
    let one = Robot::inside(b, &fleet.file, "one");
    lead.say("hear");
    (fleet, lead, one)
}

/// Sends control until it arrives.
fn until_heard(lead: &mut Robot, one: &mut Robot) {
    common::until(|| {
        one.say("say");
        lead.say("heard") == "true"
    });
}

/// A USB card is unplugged and plugged in again at both ends: for the kernel, it is another card.
#[test]
fn a_card_that_is_replaced_is_used_again() {
    let Some(lan) = Lan::new("card") else {
        return;
    };
    let (_fleet, mut lead, mut one) = two_over_a_card(&lan);
    let index = || lan.says("cat /sys/class/net/eth1/ifindex");
    for _ in 0..2 {
        lead.until("alive", "[0, 1]");
        one.until("alive", "[0, 1]");
        until_heard(&mut lead, &mut one);
        assert_eq!(one.say("send lead"), "whole");
        assert_eq!(lead.say("send one"), "whole");
        let before = index();
        lan.cut(1);
        // Wait until the other robot is gone.
        lead.until("alive", "[0]");
        one.until("alive", "[1]");
        lan.cable(1);
        assert_ne!(index(), before);
    }
    lead.until("alive", "[0, 1]");
}

#[test]
fn a_single_interface_is_used_and_no_other_one() {
    let Some(lan) = Lan::new("single") else {
        return;
    };
    let (_fleet, mut lead, mut one) = two_over_a_card(&lan);
    lead.until("alive", "[0, 1]");
    until_heard(&mut lead, &mut one);
    // Links and bulk.
    let sockets = lan.says("ss -Huln");
    for port in [":7462 ", ":7461 "] {
        let listening = sockets.lines().find(|line| line.contains(port));
        let listening = listening.unwrap_or_else(|| panic!("nobody listens on {port}: {sockets}"));
        assert!(listening.contains("%eth1:"), "{listening}");
    }
    // Discovery listens only on that card.
    let listens = |eth| lan.says(&format!("ip maddr show dev {eth}")).contains("224.0.0.251");
    assert!(listens("eth1") && !listens("eth0"));
}
