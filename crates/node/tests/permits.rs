//! Permits between real processes: granted, handed on, freed by death; and what strangers and forgers get.
#![allow(clippy::unwrap_used)] // a test may fail by panicking

mod common;

use common::{be_a_robot, Fleet};

#[test]
#[ignore = "the process of a robot in the other tests"]
fn robot() {
    be_a_robot(|_, _| None);
}

#[test]
fn a_permit_goes_from_hand_to_hand() {
    let fleet = Fleet::new(&["lead", "one", "two"], "[policy]\nslice = \"60s\"\n");
    let (mut lead, mut one, mut two) = (fleet.robot("lead"), fleet.robot("one"), fleet.robot("two"));
    lead.until("alive", "[0, 1, 2]");
    one.until("alive", "[0, 1, 2]");
    one.say("bulk on");
    one.until("may", "true");
    two.say("bulk on");
    lead.until("queue", "[2]");
    assert_eq!(two.say("may"), "false");
    one.say("bulk off");
    two.until("may", "true");
    assert_eq!(lead.say("holders"), "[2]");
    assert_eq!(one.say("may"), "false");
    one.until("synchronised", "true");
    two.say("bulk off");
    lead.say("bulk on");
    lead.until("may", "true");
    assert_eq!(lead.say("holders"), "[0]");
}

#[test]
fn a_dead_holders_permit_is_free_before_its_lease_ends() {
    let fleet = Fleet::new(&["lead", "one", "two"], "[policy]\nslice = \"3600s\"\nlease = \"5s\"\n");
    let (mut lead, mut one, mut two) = (fleet.robot("lead"), fleet.robot("one"), fleet.robot("two"));
    lead.until("alive", "[0, 1, 2]");
    one.say("bulk on");
    one.until("may", "true");
    two.say("bulk on");
    lead.until("queue", "[2]");
    one.kill();
    lead.until("alive", "[0, 2]");
    // Its link would have been given up after three seconds, before the lease ends.
    assert_eq!(lead.say("holders"), "[2]", "free as soon as it is known to be dead");
    two.until("may", "true");
}

#[test]
fn the_next_in_order_leads_when_the_leader_dies_and_the_old_one_follows() {
    let fleet = Fleet::new(&["lead", "one", "two"], "");
    let (mut lead, mut one, mut two) = (fleet.robot("lead"), fleet.robot("one"), fleet.robot("two"));
    two.until("leader", "Some(0)");
    two.say("bulk on");
    two.until("may", "true");
    assert_eq!(lead.say("holders"), "[2]");
    lead.kill();
    one.until("leader", "Some(1)");
    two.until("leader", "Some(1)");
    two.until("may", "true");
    assert_eq!(one.say("holders"), "[2]");
    let mut lead = fleet.robot("lead");
    lead.until("leader", "Some(1)");
    two.say("bulk off");
    lead.say("bulk on");
    lead.until("may", "true");
    assert_eq!(one.say("holders"), "[0]");
    assert_eq!(one.say("leader"), "Some(1)", "who came back follows");
}
