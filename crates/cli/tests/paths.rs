//! Control and bulk over two emulated interfaces of which one gets bad or dies. Needs root, and says so where it cannot run.
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
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::{coorp, text, Folder};
use coorp_core::policy::Policy;
use coorp_node::status::Carries::{Nothing, Original};
use coorp_node::status::{self, Carries, PathState};
use coorp_node::{Node, Options};
use root::possible;

/// How long anything may take; no test measures it.
const LONG: Duration = Duration::from_secs(180);
const PERIOD: Duration = Duration::from_millis(20);
/// More than the first interface carries before it dies.
const BULK_BYTES: usize = 90_000_000;
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
    let json = PathBuf::from(file).with_file_name("run.json");
    let json = json.to_str().unwrap();
    let output = coorp(&["emu", file, "--quiet", "--json", json, "--", "sh", "-c", &script]);
    let said = text(&output.stdout) + &text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    // Shown where the test is run with --nocapture.
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

/// Sends bulk, and tells which path carries it.
fn send(node: &Node) {
    let mut stream = node.bulk_stream("base", "map").unwrap();
    stream.write(&content()).unwrap();
    let delivery = stream.finish().unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut before = None;
            while !done.load(Ordering::Relaxed) {
                let now = node.status().choices.iter().position(|path| path.bulk);
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
    // The receiver looks for a second message.
    std::thread::sleep(Duration::from_secs(3));
}

/// Receives bulk, and tells for how long nothing came at most, which no test asserts.
fn receive(node: &Node) {
    let receiver = node.bulk_receiver().unwrap();
    let (began, mut came, mut last, mut pause) = (Instant::now(), 0, Instant::now(), Duration::ZERO);
    let message = loop {
        if let Some(message) = receiver.recv(Some(Duration::from_millis(5))) {
            break message;
        }
        let bytes = node.status().bulk.unwrap().received_bytes;
        if bytes != came {
            pause = pause.max(if came > 0 { last.elapsed() } else { Duration::ZERO });
            (came, last) = (bytes, Instant::now());
        }
        assert!(began.elapsed() < LONG, "{bytes} bytes came");
    };
    let received = node.status().bulk.unwrap().received_bytes;
    let same = message.take().unwrap() == content();
    // As long as its sender may need to hear that it is whole.
    let again = receiver.recv(Some(Duration::from_secs(15))).is_some();
    println!(
        "\nwhole {same}, again {again}, resumed {}",
        received < 2 * BULK_BYTES as u64
    );
    println!("\nnothing came for {} ms at most", pause.as_millis());
}

/// Bytes of which no two parts are alike.
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
    let events = "[[event]]\nat = \"5s\"\ninterface = \"wlan0\"\npartition = [\"rover\"]\n";
    let (_folder, file) = team("paths-bulk", events);
    let said = emulate(&file, "bulk");
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
    let (folder, file) = team("paths-loses", events);
    let said = emulate(&file, "loses");
    // Nothing but control and what the robots coordinate by went, and the kernel's own.
    let run = fs::read_to_string(folder.path("run.json")).unwrap();
    let run: serde_json::Value = serde_json::from_str(&run).unwrap();
    for interface in run["interfaces"].as_array().unwrap() {
        let [voice, best_effort] = ["voice", "best_effort"].map(|name| interface["sent_as"][name].as_u64().unwrap());
        assert!(voice > 1_000 && best_effort * 20 < voice, "{interface}");
    }
    assert!(said.contains("[rover] reached: it is well again\n"), "{said}");
    assert!(said.contains("[base] missed 0, copies true\n"), "{said}");
}
