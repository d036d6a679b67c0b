//! `coorp doctor` on the machine that runs the tests.

#![cfg(all(feature = "live", target_os = "linux"))]
#![allow(clippy::unwrap_used)]

use std::process::{Command, Output};

fn doctor(interface: &str) -> Output {
    let coorp = env!("CARGO_BIN_EXE_coorp");
    Command::new(coorp).args(["doctor", interface]).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn loopback_is_usable_and_each_line_says_what_it_means() {
    let output = doctor("lo");
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{said}{}", text(&output.stderr));
    assert!(
        said.starts_with("lo\n") && said.contains("\nthis machine\n") && said.contains("\ncoorp up --protect\n"),
        "{said}"
    );
    for about in [
        "state",
        "driver",
        "kind",
        "completions",
        "transmit status",
        "queues",
        "kernel",
        "clock source",
        "DSCP mark",
        "TUN",
        "reverse path",
        "rights",
        "iproute2",
    ] {
        let line = said.lines().find(|line| line.contains(&format!("  {about} ")));
        assert!(line.is_some_and(|line| line.contains(": ")), "{about}: {said}");
    }
    assert!(
        said.contains("the kernel's send queue: the gate learns when each datagram has left"),
        "{said}"
    );
    assert!(said.contains("CLOCK_BOOTTIME at "), "{said}");
    assert!(!said.contains("BAD"), "{said}");
}

#[test]
fn an_interface_that_is_not_there_is_refused() {
    let output = doctor("there-is-none");
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("this machine has no interface 'there-is-none'"));
    assert_eq!(text(&output.stdout), "");
}
