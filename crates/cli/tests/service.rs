//! The systemd unit that ships, `packaging/coorp@.service`.

#![cfg(all(feature = "live", target_os = "linux"))]
#![allow(clippy::unwrap_used)]

mod common;

use std::fs;
use std::io::Write;
use std::process::Command;

use common::{coorp, text, Folder};

const UNIT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/coorp@.service");
const PROGRAM: &str = "/usr/bin/coorp";

#[test]
fn the_units_command_is_one_that_coorp_takes() {
    let folder = Folder::new("unit-command");
    let state = folder.path("state");
    let unit = fs::read_to_string(UNIT).unwrap();
    let starts = unit.lines().filter_map(|line| line.strip_prefix("ExecStart="));
    let [start] = starts.collect::<Vec<_>>()[..] else {
        panic!("{unit}");
    };
    let team = folder.path("team.toml");
    let start = start.replace("/etc/coorp/team.toml", &team).replace("%S/coorp", &state);
    let words: Vec<String> = start.split(' ').map(|word| word.replace("%i", "rover")).collect();
    assert_eq!(words[0], PROGRAM);
    let arguments: Vec<&str> = words[1..].iter().map(String::as_str).collect();
    // The program accepts all arguments, and then finds no robot of that name.
    fs::write(
        &team,
        "[[robot]]\nname = \"base\"\nleader = true\n[[robot]]\nname = \"scout\"\n",
    )
    .unwrap();
    let output = coorp(&arguments);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("no robot") && stderr.contains("rover"), "{stderr}");
    assert!(arguments.contains(&"--protect") && start.contains(&state), "{start}");
    // What an agent leaves on this machine is not here to be undone, so this changes nothing.
    let stops = unit.lines().filter_map(|line| line.strip_prefix("ExecStopPost=-"));
    let [stop] = stops.collect::<Vec<_>>()[..] else {
        panic!("{unit}");
    };
    let words: Vec<&str> = stop.split(' ').collect();
    assert_eq!(words[0], PROGRAM);
    let output = coorp(&words[1..]);
    let stderr = text(&output.stderr);
    assert_ne!(output.status.code(), Some(2), "{stderr}");
}

#[test]
fn systemd_finds_no_fault_in_the_unit_and_little_to_attack() {
    let run = |arguments: &[&str]| Command::new("systemd-analyze").args(arguments).output();
    if run(&["--version"]).is_err() {
        let _ = writeln!(
            std::io::stderr().lock(),
            "SKIPPED systemd_finds_no_fault_in_the_unit: no systemd-analyze"
        );
        return;
    }
    let folder = Folder::new("unit-verified");
    let unit = fs::read_to_string(UNIT).unwrap();
    // The program need not be installed where this runs.
    let here = unit.replace(PROGRAM, env!("CARGO_BIN_EXE_coorp"));
    let file = folder.path("coorp@rover.service");
    fs::write(&file, here).unwrap();
    let verified = run(&["verify", "--man=no", &file]).unwrap();
    let said = text(&verified.stderr);
    let of_ours: Vec<&str> = said.lines().filter(|line| line.contains("coorp@")).collect();
    assert!(verified.status.success() && of_ours.is_empty(), "{said}");
    // The threshold is in tenths, out of 10. Most of the exposure is what the agent needs: the network, and the right
    // to change it.
    let judged = run(&["security", "--offline=yes", "--no-pager", "--threshold=25", &file]).unwrap();
    let old = text(&judged.stderr).contains("unrecognized option");
    assert!(
        old || judged.status.success(),
        "{}{}",
        text(&judged.stdout),
        text(&judged.stderr)
    );
}
