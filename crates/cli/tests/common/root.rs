//! Shared by tests that need root and an emulator.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Command;

/// Returns whether a test can run; in CI it must. Prints the reason directly, because the harness would hide it.
pub fn possible(test: &str, tools: &[&str]) -> bool {
    let root = fs::read_to_string("/proc/self/status")
        .unwrap()
        .contains("\nUid:\t0\t0\t");
    let runs = |tool: &str| {
        Command::new("sh")
            .args(["-c", &format!("command -v {tool}")])
            .output()
            .unwrap()
    };
    let missing: Vec<&str> = tools
        .iter()
        .copied()
        .chain(["ip"])
        .filter(|tool| !runs(tool).status.success())
        .collect();
    let why = if !root {
        "not root".to_owned()
    } else if !Path::new("/dev/net/tun").exists() {
        "no /dev/net/tun".to_owned()
    } else if !missing.is_empty() {
        format!("no {}", missing.join(", "))
    } else {
        return true;
    };
    assert!(std::env::var_os("CI").is_none(), "CI has to run {test}: {why}");
    let _ = writeln!(std::io::stderr().lock(), "SKIPPED {test}: {why}");
    false
}
