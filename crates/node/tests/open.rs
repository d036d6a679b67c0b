//! Opening a node in this process: what it is refused for, and the runtimes that it may be opened under.
#![allow(clippy::unwrap_used)] // a test may fail by panicking

mod common;

use common::Fleet;
use coorp_core::policy::Policy;
use coorp_node::{Error, Node, Options};

fn options(fleet: &Fleet, robot: &str) -> Options {
    Options {
        team: fleet.team.clone(),
        robot: robot.to_owned(),
        policy: Policy::named("coorp").unwrap(),
        insecure: false,
        state: Some(fleet.folder.join("state").join(robot)),
    }
}

/// Why the first robot of a team is not opened, which is for the user to mend.
fn refusal(options: Options) -> String {
    match Node::open(options).unwrap_err() {
        Error::Input(text) => text,
        Error::Failed(text) => panic!("not for the user to mend: {text}"),
    }
}

#[test]
fn an_interface_that_is_not_here_is_named_with_those_that_are() {
    let fleet = Fleet::new(&["lead", "one"], "");
    let mut options = options(&fleet, "lead");
    options.team.robots[0].interfaces = vec!["wlan77".to_owned()];
    let said = refusal(options.clone());
    let parts = [
        "gives lead the interface wlan77",
        "only ",
        "lo",
        "mend `interfaces` of lead",
    ];
    assert!(parts.iter().all(|part| said.contains(part)), "{said}");
    // Also where nothing is given but that.
    options.team.robots[0].addresses = Vec::new();
    assert!(refusal(options).contains("wlan77"));
}

#[test]
fn an_address_that_is_not_here_is_named_with_those_that_are() {
    let fleet = Fleet::new(&["lead", "one"], "");
    let mut options = options(&fleet, "lead");
    // Kept for documentation: no machine has it.
    options.team.robots[0].addresses = vec!["192.0.2.77".parse().unwrap()];
    let said = refusal(options.clone());
    let parts = [
        "gives lead the address 192.0.2.77,",
        "127.0.0.1 on lo",
        "mend `addresses` of lead",
    ];
    assert!(parts.iter().all(|part| said.contains(part)), "{said}");
    // So is the second, where it is used, and its interface with it.
    options.team.robots[1].addresses = vec!["127.0.0.3".parse().unwrap(), "127.0.0.4".parse().unwrap()];
    options.team.robots[0].addresses = vec!["127.0.0.1".parse().unwrap(), "192.0.2.78".parse().unwrap()];
    options.team.robots[0].interfaces = vec!["lo".to_owned(), "lo".to_owned()];
    let said = refusal(options);
    assert!(said.contains("192.0.2.78 on lo,"), "{said}");
}
