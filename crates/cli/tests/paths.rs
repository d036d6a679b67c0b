//! Control over two emulated interfaces of which one gets bad or dies. Needs root, and says so where it cannot run.
//!
//! A robot's program is this test program again, running the ignored test `robot` alone.

#![cfg(all(target_os = "linux", feature = "live"))]
#![allow(clippy::unwrap_used)] // a test may fail by panicking

mod common;
#[path = "common/root.rs"]
mod root;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use common::{coorp, text, Folder};
use coorp_core::policy::Policy;
use coorp_node::status::Carries::{Nothing, Original};
use coorp_node::status::{self, Carries, PathState};
use coorp_node::{Node, Options};
use root::possible;

/// How long anything may take; no test measures it.
const LONG: Duration = Duration::from_secs(60);
const PERIOD: Duration = Duration::from_millis(20);
/// What the last messages say.
const END: &[u8] = b"end";

/// Two robots on two channels, of which the first is the better one; with keys.
fn team(name: &str, more: &str) -> (Folder, String) {
    let folder = Folder::new(name);
    let robot = |name: &str, number: u8| {
        format!(
            "[[robot]]\nname = \"{name}\"\nleader = {}\ninterfaces = [\"wlan0\", \"wlan1\"]\n\
             addresses = [\"10.77.0.{number}\", \"10.78.0.{number}\"]\n",
            number == 1
        )
    };
    let channel = "[[interface]]\nchannel = 149\nloss = 0.3\n";
    let file = folder.path("team.toml");
    fs::write(
        &file,
        format!("{}{}{channel}{more}", robot("base", 1), robot("rover", 2)),
    )
    .unwrap();
    let made = coorp(&["keys", "init", &file]);
    assert!(made.status.success(), "{}", text(&made.stderr));
    (folder, file)
}

/// Runs a part of `robot` as every robot's program; answers all that they said.
fn emulate(file: &str, part: &str) -> String {
    let program = std::env::current_exe().unwrap();
    let script = format!(
        "COORP_TEST_PART={part} exec {} --exact robot --ignored --nocapture",
        program.display()
    );
    let output = coorp(&["emu", file, "--quiet", "--", "sh", "-c", &script]);
    let said = text(&output.stdout) + &text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    said
}

#[test]
#[ignore = "the program of a robot in the other tests"]
fn robot() {
    let Ok(part) = std::env::var("COORP_TEST_PART") else {
        return;
    };
    let filter = tracing_subscriber::EnvFilter::from_default_env();
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .init();
    let (robot, file) = (
        std::env::var("COORP_ROBOT").unwrap(),
        PathBuf::from(std::env::var("COORP_TEAM").unwrap()),
    );
    let node = Node::open(Options {
        team: coorp_team::load(&file).unwrap(),
        policy: Policy::named("coorp").unwrap(),
        insecure: false,
        state: Some(file.parent().unwrap().join("state").join(&robot)),
        robot: robot.clone(),
    });
    let node = node.unwrap();
    match (part.as_str(), robot.as_str()) {
        (_, "base") => listen(&node),
        ("dies", _) => drive(
            &node,
            &[
                ("only the first carries", |it| {
                    both(it, PathState::Alive) && carries(it) == [Original, Nothing]
                }),
                ("the first is dead", |it| {
                    it[0].state == PathState::Dead && carries(it) == [Nothing, Original]
                }),
                ("it is back", |it| {
                    both(it, PathState::Alive) && carries(it) == [Original, Nothing]
                }),
            ],
        ),
        ("loses", _) => drive(
            &node,
            &[
                ("both carry", |it| {
                    both(it, PathState::Alive) && it[0].failures_ppm < 50_000 && !carries(it).contains(&Nothing)
                }),
                ("the first loses", |it| {
                    it[0].failures_ppm > 300_000 && !carries(it).contains(&Nothing)
                }),
                ("it is well again", |it| it[0].failures_ppm < 50_000),
            ],
        ),
        other => panic!("what is {other:?}?"),
    }
}

/// Whether both paths are like this, and have been measured.
fn both(paths: &[status::Path], state: PathState) -> bool {
    paths
        .iter()
        .all(|path| path.state == state && path.round_trip_us.is_some())
}

fn carries(paths: &[status::Path]) -> [Carries; 2] {
    [paths[0].carries, paths[1].carries]
}

/// What the paths to the other robot have to be like.
type Phase = (&'static str, fn(&[status::Path]) -> bool);

/// Sends control until its paths have been like this, one after another.
fn drive(node: &Node, phases: &[Phase]) {
    let pose = node
        .control_publisher("pose", Some(coorp_core::Duration::from_millis(20)))
        .unwrap();
    for (number, (name, reached)) in (b'0'..).zip(phases) {
        let began = Instant::now();
        loop {
            let paths = node.status().choices;
            if reached(&paths) {
                println!("\nreached: {name}");
                break;
            }
            assert!(began.elapsed() < LONG, "not '{name}': {paths:?}");
            pose.put(&[number]).unwrap();
            std::thread::sleep(PERIOD);
        }
    }
    for _ in 0..50 {
        pose.put(END).unwrap();
        std::thread::sleep(PERIOD);
    }
}

/// Hears control until its end, and tells over which paths it came, by phase, and how many messages did not.
fn listen(node: &Node) {
    let poses = node.control_subscriber("pose").unwrap();
    let (mut paths, mut missed) = (BTreeMap::<u8, BTreeSet<usize>>::new(), 0);
    let mut last = None;
    loop {
        let pose = poses.recv(Some(LONG)).expect("control goes on");
        if *pose.bytes() == *END {
            break;
        }
        let phase = pose.bytes()[0];
        paths.entry(phase).or_default().insert(pose.path);
        // Before the first phase ends not all links may be up.
        if phase > b'0' {
            missed += last.map_or(0, |last| pose.sequence - last - 1);
            last = Some(pose.sequence);
        }
    }
    for (phase, paths) in paths {
        println!("\nphase {}: {paths:?}", char::from(phase));
    }
    let copies = node.status().heard.iter().map(|heard| heard.duplicates).sum::<u64>();
    println!("\nmissed {missed}, copies {}", copies > 0);
}

#[test]
fn control_moves_to_another_path_when_its_own_dies_and_comes_back() {
    if !possible("control_moves_to_another_path", &[]) {
        return;
    }
    let events = "[[event]]\nat = \"8s\"\nuntil = \"14s\"\ninterface = \"wlan0\"\npartition = [\"rover\"]\n";
    let (_folder, file) = team("paths-dies", events);
    let said = emulate(&file, "dies");
    for reached in ["only the first carries", "the first is dead", "it is back"] {
        assert!(said.contains(&format!("[rover] reached: {reached}\n")), "{said}");
    }
    assert!(
        said.contains("[base] phase 2: {1}") || said.contains("[base] phase 2: {0, 1}"),
        "{said}"
    );
}

#[test]
fn no_control_is_missed_where_both_paths_carry_it_and_one_loses() {
    if !possible("no_control_is_missed", &[]) {
        return;
    }
    // Some six in ten of its packets are given up.
    let events = "[[event]]\nat = \"8s\"\nuntil = \"14s\"\ninterface = \"wlan0\"\nloss = 0.94\n\
                  [live]\nduplicate = \"always\"\n";
    let (_folder, file) = team("paths-loses", events);
    let said = emulate(&file, "loses");
    assert!(said.contains("[rover] reached: it is well again\n"), "{said}");
    assert!(said.contains("[base] missed 0, copies true\n"), "{said}");
}
