//! Every team file in the repository is valid and matches what its comments claim.

#![allow(clippy::unwrap_used)] // a test may fail by panicking

use coorp_core::{Duration, RobotId};
use coorp_team::{load, Category, RateSource, Standard, Sync, Team, Traffic};
use std::path::{Path, PathBuf};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples")
}

fn example(name: &str) -> Team {
    load(&folder().join(name)).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn every_example_is_valid() {
    let mut seen = 0;
    for entry in std::fs::read_dir(folder()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "toml") {
            let team = load(&path).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(team.check(), Ok(()), "{}", path.display());
            assert_eq!(team.name, path.file_stem().unwrap().to_string_lossy());
            seen += 1;
        }
    }
    assert!(seen >= 5, "{seen} examples");
}

#[test]
fn navigation_is_the_papers_testbed() {
    let team = example("navigation.toml");
    assert_eq!((team.robots.len(), team.leader), (5, RobotId(0)));
    assert_eq!(
        (team.air.standard, team.air.channel, team.air.width_mhz),
        (Standard::Ac, 44, 80)
    );
    assert_eq!(team.air.wnic.name, "mt7612u");
    assert_eq!(
        (team.air.wnic.queue_frames, team.air.wnic.ampdu_bytes_max),
        (64, Some(32_768))
    );
    let control = team.control.unwrap();
    assert_eq!(control.period, Duration::from_nanos(33_333_333));
    assert_eq!(control.bound, Duration::from_millis(33));
    assert_eq!((control.perception_bytes, control.command_bytes), (12_288, 1_024));
    let learning = team.learning.unwrap();
    assert_eq!((learning.parameters, learning.bytes_per_parameter), (10_000_000, 4));
    assert_eq!((learning.sync, learning.item_bytes), (Sync::Bsp, 5 * 12_288));
    assert_eq!(
        (team.policy.limit, team.policy.slice),
        (Some(1), Some(Duration::from_secs(5)))
    );
    assert_eq!(
        (team.policy.extension, team.policy.accuracy),
        (Some(Duration::from_millis(2)), Some(0.95))
    );
}

#[test]
fn low_differs_in_one_robots_sending_only() {
    let (low, team) = (example("low.toml"), example("navigation.toml"));
    let slow = low.rate(RobotId(4), RobotId(0)).unwrap();
    assert_eq!((slow.source, slow.streams), (RateSource::Mcs(0), 1));
    let back = low.rate(RobotId(0), RobotId(4)).unwrap();
    assert_eq!((back.source, back.streams), (RateSource::Mcs(5), 2));
    assert_eq!(
        (&low.air, low.control, low.learning, low.policy),
        (&team.air, team.control, team.learning, team.policy)
    );
}

#[test]
fn the_others_show_what_they_are_for() {
    let flows = example("flows.toml");
    assert!(flows.control.is_none() && flows.learning.is_none());
    let bulk: Vec<bool> = flows.flows.iter().map(|flow| flow.bulk).collect();
    assert_eq!(bulk, [false, false, true, true]);
    assert_eq!(flows.flows[3].traffic, Traffic::Saturated { packet_bytes: 1_472 });

    let warehouse = example("warehouse.toml");
    assert_eq!(warehouse.robots.len(), 12);
    assert_eq!(warehouse.flows[0].category, Category::Video);
    let rate = warehouse.rate(RobotId(0), RobotId(9)).unwrap();
    assert_eq!((rate.source, rate.streams, rate.loss), (RateSource::Mcs(2), 1, 0.05));

    let two_links = example("two-links.toml");
    assert_eq!((two_links.channels().count(), two_links.events.len()), (2, 4));
    assert!(two_links.has_interface(RobotId(2), 1) && !two_links.has_interface(RobotId(2), 2));

    let drones = example("drones.toml");
    assert_eq!(
        drones.rate(RobotId(1), RobotId(2)).unwrap().source,
        RateSource::Distance
    );
    assert_eq!(drones.control.unwrap().bound, Duration::from_millis(15));
}
