//! Runs with real programs. The tests need root, TUN and a few tools, and say so if they cannot run.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

#[path = "../../cli/tests/common/root.rs"]
mod root;

use std::ffi::OsString;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use coorp_core::Duration;
use coorp_emu::report::{Ended, Fate};
use coorp_emu::{Companion, Error, Options, Report};

use root::possible;

const ROBOTS: &str = "[[robot]]\nname = \"base\"\nleader = true\n[[robot]]\nname = \"rover\"\n";

/// A process may have one emulator at a time.
static ONE: Mutex<()> = Mutex::new(());

fn shell(script: &str) -> Vec<OsString> {
    ["sh", "-c", script].map(OsString::from).to_vec()
}

/// Returns the outcome of a run with these scripts as the programs and the companions, and all lines of output.
fn run(more: &str, program: &str, companion: Option<&str>) -> (Result<Report, Error>, Vec<String>) {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let team = coorp_team::parse(&format!("{ROBOTS}{more}"), "team.toml", Path::new("")).unwrap();
    let said = Arc::<Mutex<Vec<String>>>::default();
    let options = Options {
        program: shell(program),
        companion: companion.map(|script| Companion {
            command: shell(script),
            interface: "coorp0".to_owned(),
            folder: "".into(),
        }),
        duration: Some(Duration::from_secs(60)),
        ..Options::default()
    };
    let lines = said.clone();
    let lines = Arc::new(move |robot: &str, _, line: &[u8]| {
        let line = format!("{robot}: {}", String::from_utf8_lossy(line));
        lines.lock().unwrap().push(line);
    });
    let outcome = coorp_emu::run(&team, &options, lines, &|_| {});
    let left = std::fs::read_dir("/run/netns").into_iter().flatten().flatten();
    let own = format!("coorp-{}-", std::process::id());
    let left = left.filter(|name| name.file_name().to_string_lossy().starts_with(&own));
    assert_eq!(left.count(), 0, "namespaces are left");
    let said = said.lock().unwrap().clone();
    (outcome, said)
}

fn count(said: &[String], line: &str) -> usize {
    said.iter().filter(|said| *said == line).count()
}

/// Creates an interface that disappears with the companion, like an agent's; then prints that it is ready, and stays.
const TUN: &str = "exec python3 -c '
import fcntl, os, struct, sys, time
tun = os.open(\"/dev/net/tun\", os.O_RDWR)
time.sleep(float(sys.argv[1]))
print(\"ready\", flush=True)
fcntl.ioctl(tun, 0x400454CA, struct.pack(\"16sH22x\", b\"coorp0\", 0x1001))
time.sleep(1000)
' ";

#[test]
fn a_companion_is_ready_first_and_ends_last() {
    if !possible("a_companion_is_ready_first_and_ends_last", &[]) {
        return;
    }
    let companion = "end() { sleep 0.3; echo ends; exit 7; }; trap end TERM
        sleep 0.5; echo ready; ip tuntap add coorp0 mode tun; while :; do sleep 0.05; done";
    let program = "ip link show coorp0 >/dev/null && echo $COORP_ROBOT sees it; sleep 0.5; echo done";
    let (report, said) = run("", program, Some(companion));
    let report = report.unwrap_or_else(|why| panic!("{why} {said:?}"));
    for robot in ["base", "rover"] {
        let expected = ["ready", &format!("{robot} sees it"), "done", "ends"].map(|line| format!("{robot}: {line}"));
        // A shell reports that its children were asked to end, too.
        let own = said
            .iter()
            .filter(|line| line.starts_with(robot) && !line.ends_with("Terminated"));
        assert!(own.eq(&expected), "{said:?}");
    }
    assert_eq!(report.ended, Ended::Programs);
    for robot in &report.robots {
        assert_eq!((robot.program, robot.companion), (Fate::Exit(0), Fate::Stopped));
    }
    assert!(
        !report.failed(),
        "an exit code after the run's end is not a failure of the run"
    );
    assert!(report.seconds < 10.0, "counts from the programs' start");
}

#[test]
fn a_companion_that_does_not_end_is_killed() {
    if !possible("a_companion_that_does_not_end_is_killed", &[]) {
        return;
    }
    let companion = "trap '' TERM; ip tuntap add coorp0 mode tun; while :; do sleep 0.05; done";
    let (report, said) = run("", "echo done", Some(companion));
    let report = report.unwrap_or_else(|why| panic!("{why} {said:?}"));
    assert!(report.robots.iter().all(|robot| robot.companion == Fate::Stopped));
    assert!(!report.failed() && count(&said, "rover: done") == 1, "{said:?}");
}

#[test]
fn a_companion_that_fails_does_not_end_the_run_but_makes_it_fail() {
    if !possible("a_companion_that_fails_does_not_end_the_run", &[]) {
        return;
    }
    // The base's companion ends successfully, and leaves its interface. The rover's fails only in its first life.
    let events = "[[event]]\nat = \"2s\"\nuntil = \"2100ms\"\ndeath = [\"rover\"]\n";
    let companion = "ip link show coorp0 >/dev/null 2>&1 && exec sleep 1000
        ip tuntap add coorp0 mode tun; [ $COORP_ROBOT = base ] || { sleep 0.1; exit 3; }";
    let (report, said) = run(events, "sleep 3; echo done", Some(companion));
    let report = report.unwrap_or_else(|why| panic!("{why} {said:?}"));
    let [base, rover] = [&report.robots[0], &report.robots[1]];
    assert_eq!([base.companion, rover.companion], [Fate::Exit(0), Fate::Exit(3)]);
    assert_eq!([base.program, rover.program], [Fate::Exit(0); 2]);
    assert!(report.failed());
    let text = report.text();
    assert!(
        text.contains("rover: the companion ended with exit code 3") && !text.contains("base:"),
        "{text}"
    );
}

#[test]
fn without_its_companion_no_program_starts() {
    if !possible("without_its_companion_no_program_starts", &[]) {
        return;
    }
    let unable = |companion: &str| {
        let (outcome, said) = run("", "echo starts", Some(companion));
        let Err(Error::Unable(why)) = outcome else {
            panic!("{outcome:?} {said:?}")
        };
        assert!(!said.iter().any(|line| line.ends_with("starts")), "{said:?}");
        assert!(
            why.starts_with("rover: `sh -c ") && why.contains("interface coorp0"),
            "{why}"
        );
        (why, said)
    };
    let rover = "[ $COORP_ROBOT = rover ] || ip tuntap add coorp0 mode tun; ";
    let (why, said) = unable(&format!("{rover} echo no key; exit 5"));
    assert!(why.contains("ended with exit code 5 before"), "{why}");
    assert_eq!(count(&said, "rover: no key"), 1);
    let (why, _) = unable(&format!("{rover} sleep 1000"));
    assert!(why.contains("within 10s"), "{why}");
    let options = Options {
        companion: Some(Companion {
            command: vec!["./no-such-agent".into()],
            interface: "coorp0".to_owned(),
            folder: "".into(),
        }),
        ..Options::default()
    };
    let team = coorp_team::parse(ROBOTS, "team.toml", Path::new("")).unwrap();
    let why = coorp_emu::run(&team, &options, Arc::new(|_, _, _| {}), &|_| {}).unwrap_err();
    assert!(why.to_string().contains("no program './no-such-agent'"), "{why}");
}

#[test]
fn a_signal_ends_a_run_whose_companions_are_not_ready() {
    if !possible("a_signal_ends_a_run_whose_companions_are_not_ready", &[]) {
        return;
    }
    let (report, said) = run("", "echo starts", Some("kill -TERM $PPID; exec sleep 1000"));
    let report = report.unwrap_or_else(|why| panic!("{why} {said:?}"));
    assert_eq!((report.ended, said.len()), (Ended::Signal, 0), "{said:?}");
    assert!(report.robots.iter().all(|robot| robot.program == Fate::None));
    assert!(report.robots.iter().all(|robot| robot.companion == Fate::Stopped));
}

#[test]
fn companions_die_and_start_again_with_their_robots() {
    if !possible("companions_die_and_start_again_with_their_robots", &["python3"]) {
        return;
    }
    // The robot that is dead at the start comes later.
    let events = "[[event]]\nat = \"1s\"\nuntil = \"1500ms\"\ndeath = [\"rover\"]\n\
                  [[event]]\nat = \"0s\"\nuntil = \"500ms\"\ndeath = [\"base\"]\n";
    let program = "ip link show coorp0 >/dev/null && echo sees it; sleep 3; echo done";
    let (report, said) = run(events, program, Some(&format!("{TUN} 0.5")));
    let report = report.unwrap_or_else(|why| panic!("{why} {said:?}"));
    let of = |robot: &str| -> Vec<&str> {
        let own = said
            .iter()
            .filter_map(|line| line.strip_prefix(robot)?.strip_prefix(": "));
        own.collect()
    };
    assert_eq!(of("base"), ["ready", "sees it", "done"]);
    assert_eq!(of("rover"), ["ready", "sees it", "ready", "sees it", "done"]);
    assert_eq!(report.ended, Ended::Programs);
    assert_eq!([report.robots[0].deaths, report.robots[1].deaths], [0, 1]);
    assert!(report.robots.iter().all(|robot| robot.companion == Fate::Stopped));
    assert!(!report.failed(), "{}", report.text());
}

#[test]
fn the_script_counts_from_the_programs_start() {
    if !possible("the_script_counts_from_the_programs_start", &["ping", "python3"]) {
        return;
    }
    let events = "[[event]]\nat = \"2500ms\"\nuntil = \"6s\"\npartition = [\"rover\"]\n";
    let program = "[ $COORP_ROBOT = rover ] || exec sleep 8
        reach() { ping -q -c 1 -W 1 base >/dev/null && echo $1 reached || echo $1 cut off; }
        reach first; sleep 3.5; reach then; sleep 3; reach last";
    let (report, said) = run(events, program, Some(&format!("{TUN} 3")));
    let report = report.unwrap_or_else(|why| panic!("{why} {said:?}"));
    let reached = ["ready", "first reached", "then cut off", "last reached"].map(|line| format!("rover: {line}"));
    assert!(
        said.iter().filter(|line| line.starts_with("rover")).eq(&reached),
        "{said:?}"
    );
    assert!((7.0..11.0).contains(&report.seconds), "{}", report.seconds);
}

#[test]
fn programs_read_which_packets_the_card_has_freed() {
    if !possible("programs_read_which_packets", &["ping", "python3"]) {
        return;
    }
    // The first record is of one of the first echo requests: 8 bytes of ICMP and 600 of payload after the IPv4 header.
    let program = "[ $COORP_ROBOT = rover ] || exec sleep 4
        exec python3 -c '
import os, socket, struct, subprocess
reader = socket.socket(socket.AF_UNIX)
reader.settimeout(20)
reader.connect(\"\\0coorp-outqueue/\" + os.environ[\"COORP_OUTQUEUE\"] + \"/ip\")
subprocess.run([\"ping\", \"-q\", \"-c\", \"3\", \"-i\", \"0.1\", \"-s\", \"600\", \"base\"], stdout=subprocess.DEVNULL)
for _ in range(3):
    print(struct.unpack(\"!HH\", reader.recv(4, socket.MSG_WAITALL))[1], flush=True)
'";
    let (report, said) = run("", program, None);
    let report = report.unwrap_or_else(|why| panic!("{why} {said:?}"));
    assert_eq!(said, ["rover: 628"; 3]);
    assert_eq!(report.robots[1].companion, Fate::None);
}
