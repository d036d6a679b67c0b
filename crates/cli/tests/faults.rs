//! `coorp emu --faults`: real robots under injected faults, and invalid input.
#![cfg(all(feature = "live", target_os = "linux"))]
#![allow(clippy::unwrap_used)] // a test may fail by panicking

mod common;
#[path = "common/root.rs"]
mod root;

use std::fs;
use std::path::{Path, PathBuf};

use common::{coorp, text, Folder};
use root::possible;

const TEAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/faults-live.toml");

#[test]
fn a_few_seeds_break_no_rule_and_say_what_they_did() {
    if !possible("a_few_seeds_break_no_rule", &["unshare"]) {
        return;
    }
    let folder = Folder::new("faults");
    let json = folder.path("out.json");
    // These seeds start with a power failure, a kill and a freeze.
    let output = coorp(&[
        "emu",
        TEAM,
        "--faults",
        "--seed",
        "17",
        "--seeds",
        "3",
        "--at-once",
        "1",
        "--json",
        &json,
        "--keep",
        &folder.path("kept"),
    ]);
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(
        stdout.contains("bulk") && stdout.contains("permit ms"),
        "{stdout}\n{stderr}"
    );
    let report: serde_json::Value = serde_json::from_slice(&fs::read(json).unwrap()).unwrap();
    let runs = report["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 3);
    for run in runs {
        // Rules about time are for `make test-all`, with an optimised program that has the machine to itself.
        let about_time = |broken: &serde_json::Value| [2, 3].contains(&broken["rule"].as_u64().unwrap());
        assert!(run["broken"].as_array().unwrap().iter().all(about_time), "{stderr}");
        assert!(
            run["judged"] == false || run["figures"]["begun"].as_u64().unwrap() > 0,
            "{run}"
        );
    }
    let [power, kill, freeze] = [0, 1, 2].map(|place| runs[place]["schedule"].to_string());
    assert!(
        power.contains("2 interfaces") && power.contains("without power"),
        "{power}"
    );
    assert!(kill.contains("one interface") && kill.contains("kill -9"), "{kill}");
    assert!(freeze.contains("frozen"), "{freeze}");
    for run in runs {
        replays(&PathBuf::from(run["records"].as_str().unwrap()));
    }
    // If the machine was too slow for one of three runs, that is more than a tenth.
    let fails = |run: &serde_json::Value| run["judged"] == false || run["broken"] != serde_json::json!([]);
    let code = i32::from(runs.iter().any(fails));
    assert_eq!(output.status.code(), Some(code), "{stderr}");
    assert_eq!(code == 1, stderr.contains("failed: "), "{stderr}");
}

/// Replays the robots' decisions of a run bit for bit, and checks that the reasons for held bulk are given.
fn replays(records: &Path) {
    let mut held = 0;
    for robot in fs::read_dir(records.join("state")).unwrap() {
        let flight = robot.unwrap().path().join("flight");
        let flight = flight.to_str().unwrap();
        let output = coorp(&["replay", flight, "--why"]);
        let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
        assert_eq!(output.status.code(), Some(0), "{stderr}");
        assert!(
            stdout.contains("agrees bit for bit") && stdout.contains("deadline"),
            "{stdout}"
        );
        held += stdout.lines().filter(|line| line.contains(": no permit")).count();
        let output = coorp(&["replay", flight, "--at", "100ms"]);
        assert_eq!(output.status.code(), Some(0));
        assert!(text(&output.stdout).contains(" leads; "), "{}", text(&output.stdout));
    }
    assert!(held > 0, "bulk was held, at least for permits");
}

#[test]
fn what_is_no_recording_is_said() {
    let folder = Folder::new("replay-refused");
    let file = folder.path("other.flight");
    fs::write(&file, "CoFR and no more").unwrap();
    for path in [file.as_str(), TEAM, "/nowhere", env!("CARGO_MANIFEST_DIR")] {
        let output = coorp(&["replay", path]);
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{path}: {stderr}");
        assert!(
            stderr.starts_with("error: ") && !stderr.contains("panicked"),
            "{stderr}"
        );
    }
}

#[test]
fn what_cannot_be_run_is_said() {
    let folder = Folder::new("faults-refused");
    let alone = folder.path("alone.toml");
    fs::write(&alone, "[[robot]]\nname = \"base\"\nleader = true\n").unwrap();
    let refused = |arguments: &[&str]| {
        let output = coorp(&[&["emu"], arguments].concat());
        assert_eq!(output.status.code(), Some(2));
        text(&output.stderr)
    };
    assert!(refused(&[&alone, "--faults"]).contains("add another [[robot]]"));
    assert!(refused(&[TEAM, "--faults", "--", "true"]).contains("cannot be used with"));
    assert!(refused(&[TEAM, "--seed", "4"]).contains("--faults"));
    let most = u64::MAX.to_string();
    assert!(refused(&[TEAM, "--faults", "--seeds", "2", "--seed", &most]).contains("past the largest seed"));
}
