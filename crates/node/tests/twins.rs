//! Two processes that run as one robot, for example after copying a machine's disk with its keys.
#![allow(clippy::unwrap_used)] // a test may fail by panicking

mod common;

use std::fs;
use std::time::Duration;

use common::{be_a_robot, Fleet, Robot};

#[test]
#[ignore = "the process of a robot in the other tests"]
fn robot() {
    be_a_robot(|node, words| match words {
        ["twins"] => Some(format!("{:?}", node.status().unwrap().twins)),
        ["alarmed"] => Some(
            node.status()
                .unwrap()
                .alarms
                .contains(&coorp_core::alarms::Alarm::Twins)
                .to_string(),
        ),
        ["attempts"] => Some(node.status().unwrap().found.attempts.to_string()),
        _ => None,
    });
}

fn attempts(robots: &mut [&mut Robot]) -> u64 {
    robots
        .iter_mut()
        .map(|robot| robot.say("attempts").parse::<u64>().unwrap())
        .sum()
}

#[test]
fn twins_are_told_where_they_are_and_do_not_take_turns() {
    let fleet = Fleet::new(&["lead", "one"], "");
    let (mut lead, mut one) = (fleet.robot("lead"), fleet.robot("one"));
    one.until("alive", "[0, 1]");
    lead.until("alive", "[0, 1]");
    // The same keys and ports, on another machine.
    let elsewhere = fleet.folder.join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    let text = fs::read_to_string(&fleet.file).unwrap();
    let (first, second) = text.split_at(text.rfind("[[robot]]").unwrap());
    let second = second.replace("127.0.0.1", "127.0.0.3");
    let file = elsewhere.join("team.toml");
    fs::write(&file, format!("{first}{second}[live]\nkeys = \"../keys\"\n")).unwrap();
    let mut twin = Robot::start_with(&file, "one", "coorp");
    twin.until("alive", "[0, 1]");

    // The lead tells the earlier process at once, and notices the twins when the earlier process connects again.
    let both = "[Twins { robot: 1, at: [127.0.0.1, 127.0.0.3] }]";
    one.until("twins", both);
    lead.until("twins", both);
    lead.until("alarmed", "true");
    one.until("alarmed", "true");

    let before = attempts(&mut [&mut lead, &mut one, &mut twin]);
    for _ in 0..40 {
        assert_eq!(twin.say("alive"), "[0, 1]");
        assert_eq!(lead.say("alive"), "[0, 1]");
        std::thread::sleep(Duration::from_millis(100));
    }
    let more = attempts(&mut [&mut lead, &mut one, &mut twin]) - before;
    assert!(more <= 3, "{more} attempts in four seconds");
    assert_eq!(twin.say("twins"), "[]", "nobody has ignored it");
}
