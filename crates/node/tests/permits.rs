//! Permits between real processes: granted, passed on, freed by death; and what strangers and forgers can get.
#![allow(clippy::unwrap_used)] // a test may fail by panicking

mod common;

use common::{agreed, be_a_robot, until, Fleet, Robot};

#[test]
#[ignore = "the process of a robot in the other tests"]
fn robot() {
    be_a_robot(|_, _| None);
}

/// Returns three robots, the leader first, and their indices in the team file, as `holders` prints them.
fn three(fleet: &Fleet) -> ([Robot; 3], [String; 3]) {
    let robots = ["lead", "one", "two"].map(|name| fleet.robot(name));
    let mut robots: [Robot; 3] = agreed(robots.into()).try_into().ok().unwrap();
    let places = robots.each_mut().map(|robot| robot.say("place"));
    (robots, places)
}

#[test]
fn a_permit_goes_from_hand_to_hand() {
    let fleet = Fleet::new(&["lead", "one", "two"], "[policy]\nslice = \"60s\"\n");
    let ([mut lead, mut one, mut two], [first, second, third]) = three(&fleet);
    lead.until("alive", "[0, 1, 2]");
    one.say("bulk on");
    one.until("may", "true");
    lead.until("holders", &second);
    two.say("bulk on");
    lead.until("queue", &third);
    assert_eq!(two.say("may"), "false");
    one.say("bulk off");
    two.until("may", "true");
    lead.until("holders", &third);
    assert_eq!(one.say("may"), "false");
    one.until("synchronised", "true");
    two.say("bulk off");
    lead.say("bulk on");
    lead.until("may", "true");
    lead.until("holders", &first);
}

#[test]
fn a_dead_holders_permit_is_free_after_its_lease() {
    let fleet = Fleet::new(&["lead", "one", "two"], "[policy]\nslice = \"3600s\"\n");
    let ([mut lead, mut one, mut two], [_, _, third]) = three(&fleet);
    lead.until("alive", "[0, 1, 2]");
    one.say("bulk on");
    one.until("may", "true");
    two.say("bulk on");
    lead.until("queue", &third);
    let place = one.say("place").replace(['[', ']'], "");
    one.kill();
    lead.until("holders", &third);
    two.until("may", "true");
    // Its links end later; until then they are silent, as on a bad channel.
    until(|| !lead.say("alive").contains(&place));
}

#[test]
fn another_robot_leads_when_the_leader_dies_and_the_old_one_follows() {
    let fleet = Fleet::new(&["lead", "one", "two"], "");
    let ([lead, one, mut two], [.., third]) = three(&fleet);
    two.say("bulk on");
    two.until("may", "true");
    let name = lead.name.clone();
    lead.kill();
    let mut left = agreed(vec![one, two]);
    let holds = |left: &mut Vec<Robot>| left[0].say("holders");
    until(|| holds(&mut left) == third);
    let place = left[0].say("place");
    let mut back = fleet.robot(&name);
    let leader = place.replace('[', "Some(").replace(']', ")");
    back.until("leader", &leader);
    for robot in &mut left {
        robot.say("bulk off");
    }
    back.say("bulk on");
    back.until("may", "true");
    until(|| holds(&mut left) == back.say("place"));
    assert_eq!(left[0].say("leader"), leader, "who came back follows");
}
