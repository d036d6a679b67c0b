//! `coorp emu --faults`: real robots under real trouble, and what it refuses.
#![cfg(all(feature = "live", target_os = "linux"))]
#![allow(clippy::unwrap_used)] // a test may fail by panicking

mod common;
#[path = "common/root.rs"]
mod root;

use std::fs;

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
    // Power that fails, a kill and a freeze first of all.
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
        assert_eq!(run["broken"], serde_json::json!([]), "{stderr}");
        assert!(run["figures"]["begun"].as_u64().unwrap() > 0, "{run}");
    }
    let [power, kill, freeze] = [0, 1, 2].map(|place| runs[place]["schedule"].to_string());
    assert!(
        power.contains("2 interfaces") && power.contains("without power"),
        "{power}"
    );
    assert!(kill.contains("one interface") && kill.contains("kill -9"), "{kill}");
    assert!(freeze.contains("frozen"), "{freeze}");
    // A machine that is busy with other tests may be too slow for rules about time, and then says so.
    let slow = runs.iter().any(|run| run["kept_up"] == false);
    assert_eq!(output.status.code(), Some(i32::from(slow)), "{stderr}");
    assert_eq!(slow, stderr.contains("did not keep up"), "{stderr}");
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
