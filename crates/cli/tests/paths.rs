//! Control and bulk over two emulated interfaces, one of which degrades or dies. Needs root, and says so if it cannot
//! run.
//!
//! A robot's program is this test binary again, running only the ignored test `robot`.

#![cfg(all(target_os = "linux", feature = "live"))]
#![allow(clippy::unwrap_used)] // a test may fail by panicking

mod common;
#[path = "common/root.rs"]
mod root;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::{coorp, text, Folder};
use coorp_core::policy::Policy;
use coorp_node::status::Carries::{Nothing, Original};
use coorp_node::status::{self, Carries, PathState};
use coorp_node::{Node, Options};
use root::possible;

/// Time limit for every wait; no test measures it.
const LONG: Duration = Duration::from_secs(180);
const PERIOD: Duration = Duration::from_millis(20);
/// Maximum number of times that a waiting robot may stand still for more than two periods. Above it, a timeout says
/// nothing about its paths.
const STOOD_STILL_MAX: u32 = 20;
const TOO_SLOW: &str = "too slow";
/// More than the first interface carries before it dies.
const BULK_BYTES: usize = 130_000_000;
/// The content of the last messages.
const END: &[u8] = b"end";

/// Returns a team with keys: two robots on two channels, of which the first is the better one.
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

/// Trouble on the first interface from 8 s to 14 s, repeated four times for robots that a busy machine starts late.
fn again_and_again(trouble: &str) -> String {
    (8..88)
        .step_by(16)
        .map(|start_s| event("wlan0", start_s, trouble))
        .collect()
}

/// Six seconds of trouble on an interface.
fn event(interface: &str, start_s: u32, trouble: &str) -> String {
    let end_s = start_s + 6;
    format!("[[event]]\nat = \"{start_s}s\"\nuntil = \"{end_s}s\"\ninterface = \"{interface}\"\n{trouble}\n")
}

/// Runs a part of `robot` as every robot's program, and returns the combined output.
fn emulate(file: &str, part: &str) -> String {
    let program = std::env::current_exe().unwrap();
    let script = format!(
        "COORP_TEST_PART={part} exec {} --exact robot --ignored --nocapture",
        program.display()
    );
    let json = PathBuf::from(file).with_file_name("run.json");
    let json = json.to_str().unwrap();
    let output = coorp(&["emu", file, "--quiet", "--json", json, "--", "sh", "-c", &script]);
    let said = text(&output.stdout) + &text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    // Shown if the test runs with --nocapture.
    println!("{said}");
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
        ("bulk", "base") => receive(&node),
        ("bulk", _) => send(&node),
        (_, "base") => listen(&node),
        ("dies", _) => drive(
            &node,
            &[
                ("one carries", |it| {
                    both(it, PathState::Alive) && [[Original, Nothing], [Nothing, Original]].contains(&carries(it))
                }),
                ("the first is dead", |it| {
                    it[0].state == PathState::Dead && carries(it) == [Nothing, Original]
                }),
                ("the second is dead", |it| {
                    it[1].state == PathState::Dead && carries(it) == [Original, Nothing]
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

/// Returns whether both paths have this state and have been measured.
fn both(paths: &[status::Path], state: PathState) -> bool {
    paths
        .iter()
        .all(|path| path.state == state && path.round_trip_us.is_some())
}

fn carries(paths: &[status::Path]) -> [Carries; 2] {
    [paths[0].carries, paths[1].carries]
}

/// The required state of the paths to the other robot.
type Phase = (&'static str, fn(&[status::Path]) -> bool);

/// Sends control until its paths have been in each of these phases, in order. Gives up if the machine is too slow.
fn drive(node: &Node, phases: &[Phase]) {
    let pose = node
        .control_publisher("pose", Some(coorp_core::Duration::from_millis(20)))
        .unwrap();
    for (number, (name, reached)) in (b'0'..).zip(phases) {
        let (began, mut stood_still) = (Instant::now(), 0);
        loop {
            let paths = node.status().unwrap().choices;
            if reached(&paths) {
                println!("\nreached: {name}");
                break;
            }
            if began.elapsed() > LONG {
                assert!(stood_still > STOOD_STILL_MAX, "not '{name}': {paths:?}");
                println!("\n{TOO_SLOW}");
                break;
            }
            pose.put(&[number]).unwrap();
            let slept = Instant::now();
            std::thread::sleep(PERIOD);
            stood_still += u32::from(slept.elapsed() > 3 * PERIOD);
        }
    }
    for _ in 0..50 {
        pose.put(END).unwrap();
        std::thread::sleep(PERIOD);
    }
}

/// Receives control until its end, and reports by phase which paths it used and how many messages were lost.
fn listen(node: &Node) {
    let poses = node.control_subscriber("pose").unwrap();
    let mut paths = BTreeMap::<u8, BTreeSet<usize>>::new();
    // Messages that never arrived at this robot. A program that is slow to take them receives even fewer.
    let missed = || {
        node.status()
            .unwrap()
            .heard
            .iter()
            .map(|heard| heard.missed)
            .sum::<u64>()
    };
    let mut missed_before = None;
    loop {
        let pose = poses.recv(Some(LONG)).expect("control goes on");
        if *pose.bytes() == *END {
            break;
        }
        let phase = pose.bytes()[0];
        paths.entry(phase).or_default().insert(pose.path);
        // Before the end of the first phase, some links may still be down.
        if phase > b'0' {
            missed_before = missed_before.or_else(|| Some(missed()));
        }
    }
    for (phase, paths) in paths {
        println!("\nphase {}: {paths:?}", char::from(phase));
    }
    let copies = node
        .status()
        .unwrap()
        .heard
        .iter()
        .map(|heard| heard.duplicates)
        .sum::<u64>();
    let missed = missed() - missed_before.unwrap_or(0);
    println!("\nmissed {missed}, copies {}", copies > 0);
}

/// Sends bulk, and reports which path carries it.
fn send(node: &Node) {
    let mut stream = node.bulk_stream("base", "map").unwrap();
    stream.write(&content()).unwrap();
    let delivery = stream.finish().unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut before = None;
            while !done.load(Ordering::Relaxed) {
                let now = node.status().unwrap().choices.iter().position(|path| path.bulk);
                if let Some(path) = now.filter(|_| now != before) {
                    println!("\nbulk over path {path}");
                    before = now;
                }
                std::thread::sleep(PERIOD);
            }
        });
        println!("\ndelivered: {:?}", delivery.wait().map_err(|error| error.to_string()));
        done.store(true, Ordering::Relaxed);
    });
    // The receiver checks for a second message.
    std::thread::sleep(Duration::from_secs(3));
}

/// Receives bulk, and reports the longest gap, which no test asserts.
fn receive(node: &Node) {
    let receiver = node.bulk_receiver().unwrap();
    let (began, mut came, mut last, mut pause) = (Instant::now(), 0, Instant::now(), Duration::ZERO);
    let message = loop {
        if let Some(message) = receiver.recv(Some(Duration::from_millis(5))) {
            break message;
        }
        let bytes = node.status().unwrap().bulk.unwrap().received_bytes;
        if bytes != came {
            pause = pause.max(if came > 0 { last.elapsed() } else { Duration::ZERO });
            (came, last) = (bytes, Instant::now());
        }
        assert!(began.elapsed() < LONG, "{bytes} bytes arrived");
    };
    let received = node.status().unwrap().bulk.unwrap().received_bytes;
    let same = message.take().unwrap() == content();
    // Wait as long as its sender may need to learn that it is whole.
    let again = receiver.recv(Some(Duration::from_secs(15))).is_some();
    println!(
        "\nwhole {same}, again {again}, resumed {}",
        received < 2 * BULK_BYTES as u64
    );
    println!("\nlongest gap: {} ms", pause.as_millis());
}

/// Returns the bytes without repeating parts.
fn content() -> Vec<u8> {
    (0..BULK_BYTES as u32 / 4)
        .flat_map(|number| number.wrapping_mul(2_654_435_761).to_le_bytes())
        .collect()
}

#[test]
fn bulk_moves_to_another_path_when_its_own_dies_whole_and_once() {
    if !possible("bulk_moves_to_another_path", &[]) {
        return;
    }
    // Late enough for bulk to be on its way, and early enough for much of it to be left. Later on a busy machine.
    let mut runs = [7, 14, 28, 56].into_iter().map(|at_s| {
        let event = format!("[[event]]\nat = \"{at_s}s\"\ninterface = \"wlan0\"\npartition = [\"rover\"]\n");
        let (_folder, file) = team("paths-bulk", &event);
        emulate(&file, "bulk")
    });
    let Some(said) = runs.find(|said| said.contains("[rover] bulk over path 0\n")) else {
        return println!("NOT JUDGED: bulk started after its path had died, so this machine is too slow");
    };
    let places = [
        "[rover] bulk over path 0\n",
        "[rover] bulk over path 1\n",
        "[rover] delivered: Ok(())\n",
    ];
    let places = places.map(|part| said.find(part));
    assert!(places.is_sorted() && places[0].is_some(), "{said}");
    assert!(
        said.contains("[base] whole true, again false, resumed true\n"),
        "{said}"
    );
}

#[test]
fn control_moves_to_another_path_when_its_own_dies_and_comes_back() {
    if !possible("control_moves_to_another_path", &[]) {
        return;
    }
    // In turn. While both paths are alive, control stays on the current one unless the other is clearly better.
    let dies = |interface, start_s| event(interface, start_s, "partition = [\"rover\"]");
    let events: String = (8..88)
        .step_by(16)
        .flat_map(|start_s| [dies("wlan0", start_s), dies("wlan1", start_s + 8)])
        .collect();
    let (_folder, file) = team("paths-dies", &events);
    let said = emulate(&file, "dies");
    if said.contains(TOO_SLOW) {
        return println!("NOT JUDGED: this machine is too slow");
    }
    for reached in ["one carries", "the first is dead", "the second is dead"] {
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
    // About six in ten of its packets are given up.
    let events = again_and_again("loss = 0.94") + "[live]\nduplicate = \"always\"\n";
    let (folder, file) = team("paths-loses", &events);
    let said = emulate(&file, "loses");
    if said.contains(TOO_SLOW) {
        return println!("NOT JUDGED: this machine is too slow");
    }
    // Only control, coordination messages and the kernel's own packets were sent.
    let run = fs::read_to_string(folder.path("run.json")).unwrap();
    let run: serde_json::Value = serde_json::from_str(&run).unwrap();
    for interface in run["interfaces"].as_array().unwrap() {
        let [voice, best_effort] = ["voice", "best_effort"].map(|name| interface["sent_as"][name].as_u64().unwrap());
        assert!(voice > 1_000 && best_effort * 20 < voice, "{interface}");
    }
    assert!(said.contains("[rover] reached: it is well again\n"), "{said}");
    assert!(said.contains("[base] missed 0, copies true\n"), "{said}");
}
