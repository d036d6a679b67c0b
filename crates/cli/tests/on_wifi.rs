//! `coorp up --protect` on a real WiFi stack, in the lab (`kernel/lab`): three stations with agents, programs that know
//! nothing of the agents, and a capture of everything that the radios send. The capture shows what left and when; the
//! agents' recordings show their windows and permits.
//!
//! The lab's script (`on_wifi/script`) calls the ignored tests of this file. The lab's machine is slow: an agent
//! without optimisation renews its leases too late there, so the test needs an optimised agent.

#![cfg(all(feature = "live", target_os = "linux"))]
#![allow(clippy::unwrap_used)] // a test may fail by panicking

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::net::{Ipv4Addr, UdpSocket};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use common::{coorp, text, Folder};

const ROBOTS: Range<usize> = 1..4;
/// Without loops to judge, windows are always on. They are long, so that there is much bulk to keep out of them.
const TEAM: &str = r#"
[policy]
slice = "500ms"
extension = "50ms"
early_release = false
[[protect]]
as = "bulk"
protocol = "tcp"
ports = "5201-5403"
"#;
const BULK_PORTS: Range<u16> = 5_201..5_404;
/// Shorter packets of bulk need not wait.
const SHORT_BYTES: usize = 256;

const CONTROL_TO: &str = "10.0.0.1:5300";
/// The machine is too slow to predict 30 messages a second: they deviate by more than an eighth of that period.
const CONTROL_PERIOD: Duration = Duration::from_millis(500);
const CONTROL_BYTES: usize = 100;
/// EF.
const CONTROL_TOS: u8 = 0xb8;
/// The number of messages from which an agent can predict the next.
const LEARNT: u32 = 8;
/// Number of other spans with which windows are compared.
const SHIFTS: u32 = 4;
/// Set in the number of a robot's last message.
const LAST: u32 = 1 << 31;

/// The number of attempts in the lab. On a busy host its machine may stall for seconds, which ends leases and connections,
/// or between the gate's decision and the card, and then packets leave in a window. Without the gate, each run fails.
const TRIES: usize = 3;

/// Says why a test cannot run; in CI it has to.
fn skip(why: &str) {
    assert!(std::env::var_os("CI").is_none(), "CI has to run on_wifi: {why}");
    // Write past the harness, which would hide the message.
    let _ = writeln!(std::io::stderr().lock(), "SKIPPED on_wifi: {why}");
}

fn runs(program: &str) -> bool {
    let said = Command::new(program).arg("--version").stdout(Stdio::null()).status();
    said.is_ok_and(|said| said.success())
}

/// Returns an optimised program: what this test was built with, or what `make` has built.
fn optimised() -> Option<PathBuf> {
    if !cfg!(debug_assertions) {
        return Some(env!("CARGO_BIN_EXE_coorp").into());
    }
    let built = PathBuf::from(std::env::var_os("COORP")?);
    // `make` gives the path relative to the workspace.
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(built);
    program.canonicalize().ok()
}

/// Held by a run: each takes a core, and is slow enough without others.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Runs the script on a suite's kernel, the machine's own if there is none.
fn in_the_lab(suite: Option<&str>) {
    if !cfg!(target_arch = "x86_64") || !runs("qemu-system-x86_64") {
        return skip("no qemu-system-x86_64");
    }
    if let Some(missing) = ["iperf3", "tcpdump"].into_iter().find(|program| !runs(program)) {
        return skip(&format!("no {missing}"));
    }
    let debian = fs::read_to_string("/etc/os-release").is_ok_and(|about| about.contains("\nID=debian\n"));
    if suite.is_some() && !debian {
        return skip("another kernel than the machine's own comes from Debian");
    }
    let Some(program) = optimised() else {
        return skip("it needs an optimised coorp: run make lab, or cargo test --release");
    };
    let folder = Folder::new(&format!("on-wifi-{}", suite.unwrap_or("own")));
    let team = folder.path("team.toml");
    let robot = |n: usize| {
        let (leads, host) = (n == ROBOTS.start, n + 1);
        format!(
            "[[robot]]\nname = \"r{n}\"\nleader = {leads}\ninterfaces = [\"wlan0\"]\naddresses = [\"10.0.0.{host}\"]\n"
        )
    };
    fs::write(&team, ROBOTS.map(robot).collect::<String>() + TEAM).unwrap();
    let keys = coorp(&["keys", "init", &team]);
    assert!(keys.status.success(), "{}", text(&keys.stderr));
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let lab = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernel/lab/run");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/on_wifi/script");
    let attempt = || {
        let output = Command::new(&lab)
            .args(suite.iter().flat_map(|suite| ["--suite", suite]))
            .args(["--timeout", "240", "bash"])
            .arg(&script)
            .arg(std::env::current_exe().unwrap())
            .arg(&program)
            .arg(&team)
            .output()
            .unwrap();
        let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        println!("{}\n{}", said[0], said[1]);
        output.status.success() && said[0].contains("s: the end")
    };
    assert!((0..TRIES).any(|_| attempt()), "the lab's script failed each time");
}

#[test]
fn in_the_lab_bulk_keeps_out_of_windows_and_waits_for_permits() {
    in_the_lab(None);
}

#[test]
fn in_the_lab_bulk_keeps_out_of_windows_and_waits_for_permits_on_a_new_kernel() {
    in_the_lab(Some("trixie-backports"));
}

#[test]
#[ignore = "in the lab"]
fn sender() {
    let robot: u32 = std::env::var("COORP_LAB_ROBOT").unwrap().parse().unwrap();
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    rustix::net::sockopt::set_ip_tos(&socket, CONTROL_TOS).unwrap();
    let mut message = [0; CONTROL_BYTES];
    message[..4].copy_from_slice(&robot.to_le_bytes());
    let mut send = |number: u32| {
        message[4..8].copy_from_slice(&number.to_le_bytes());
        socket.send_to(&message, CONTROL_TO).unwrap();
    };
    println!("control of r{robot} is ready");
    while !Path::new("/run/go").exists() {
        std::thread::sleep(CONTROL_PERIOD);
    }
    let began = Instant::now();
    for number in 0.. {
        std::thread::sleep((CONTROL_PERIOD * number).saturating_sub(began.elapsed()));
        if Path::new("/run/done").exists() {
            return send(number | LAST);
        }
        send(number);
        if number == LEARNT {
            println!("control of r{robot} has begun");
        }
    }
}

#[test]
#[ignore = "in the lab"]
fn receiver() {
    let socket = UdpSocket::bind(CONTROL_TO).unwrap();
    println!("listens");
    let (mut next, mut open) = (BTreeMap::<u32, u32>::new(), ROBOTS.len());
    let mut message = [0; CONTROL_BYTES];
    while open > 0 {
        socket.recv(&mut message).unwrap();
        let [robot, number] = [0, 4].map(|at| u32::from_le_bytes(message[at..at + 4].try_into().unwrap()));
        let next = next.entry(robot).or_default();
        assert_eq!(number & !LAST, *next, "of r{robot}, none is lost or late");
        *next += 1;
        open -= usize::from(number & LAST != 0);
    }
    println!("received of each robot: {next:?}");
}

/// A packet that a station has sent, as the air has carried it.
#[derive(Clone, Copy, Debug)]
struct Frame {
    /// Unix time, nanoseconds.
    at: u64,
    robot: usize,
    udp: bool,
    to_port: u16,
    bytes: usize,
    /// The user priority.
    priority: u8,
}

/// Reads a capture of radiotap frames.
fn frames(pcap: &[u8]) -> Vec<Frame> {
    let word = |at: usize| u32::from_le_bytes(pcap[at..at + 4].try_into().unwrap());
    let (microseconds, radiotap) = (0xa1b2_c3d4, 127);
    assert_eq!((word(0), word(20)), (microseconds, radiotap), "the format");
    let (mut frames, mut at) = (Vec::new(), 24);
    while at + 16 <= pcap.len() {
        let length = word(at + 8) as usize;
        let time = u64::from(word(at)) * 1_000_000_000 + u64::from(word(at + 4)) * 1_000;
        frames.extend(pcap.get(at + 16..at + 16 + length).and_then(|frame| read(frame, time)));
        at += 16 + length;
    }
    frames
}

/// Returns a frame, if it is data that a station sends to the access point in an IPv4 packet of UDP or TCP.
fn read(radiotap: &[u8], at: u64) -> Option<Frame> {
    let length = u16::from_le_bytes(radiotap.get(2..4)?.try_into().ok()?);
    let frame = radiotap.get(usize::from(length)..)?;
    let (kind, to_ap) = (*frame.first()?, frame.get(1)? & 3 == 1);
    // Data with QoS, and not its null.
    if kind & 0xcc != 0x88 || !to_ap || frame.get(32..34)? != [0x08, 0x00] {
        return None;
    }
    let ip = frame.get(34..)?;
    let (protocol, from) = (*ip.get(9)?, Ipv4Addr::from(<[u8; 4]>::try_from(ip.get(12..16)?).ok()?));
    let ports = ip.get(usize::from(ip[0] & 15) * 4..)?;
    matches!(protocol, 6 | 17).then_some(Frame {
        at,
        robot: usize::from(from.octets()[3]).checked_sub(1)?,
        udp: protocol == 17,
        to_port: u16::from_be_bytes(ports.get(2..4)?.try_into().ok()?),
        bytes: usize::from(u16::from_be_bytes(ip[2..4].try_into().ok()?)),
        priority: frame[24] & 7,
    })
}

/// A span of Unix time, nanoseconds.
type Span = Range<u64>;

/// A robot's windows, in which its agent kept bulk out, and its permits, by the agent's own record.
#[derive(Debug, Default)]
struct Record {
    windows: Vec<Span>,
    permits: Vec<Span>,
    /// The time of its newest message.
    end: u64,
}

fn record(mcap: &[u8]) -> Record {
    let mut record = Record::default();
    let (mut window, mut permit) = (None::<Span>, None);
    let mut until = |window: Option<Span>, at: u64| {
        // A window may be replaced before its end.
        let kept = window.map(|window| window.start..window.end.min(at));
        record.windows.extend(kept.filter(|kept| !kept.is_empty()));
    };
    for message in mcap::MessageStream::new(mcap).unwrap() {
        let message = message.unwrap();
        let (at, value): (u64, serde_json::Value) = (message.log_time, serde_json::from_slice(&message.data).unwrap());
        let ns = |key: &str| value[key].as_f64().map(|us| (us * 1e3) as i64);
        record.end = at;
        match (message.channel.topic.as_str(), value["event"].as_str()) {
            ("/coorp/window", _) => {
                until(window.take(), at);
                window = ns("starts_in_us").zip(ns("length_us")).map(|(after, length)| {
                    let start = at.saturating_add_signed(after);
                    // A window counts from the moment at which it is known.
                    start.max(at)..start.saturating_add_signed(length)
                });
            }
            ("/coorp/permits", Some("permitted")) => permit = Some(at),
            ("/coorp/permits", Some("not-permitted")) => {
                record.permits.extend(permit.take().map(|from| from..at));
            }
            ("/coorp/status", _) => assert_eq!(value["lost_decisions"], 0, "the record is whole"),
            _ => {}
        }
    }
    until(window, u64::MAX);
    record.permits.extend(permit.map(|from| from..u64::MAX));
    record
}

/// Returns the number of packets in each span.
fn inside(spans: &[Span], sent: &[u64]) -> Vec<usize> {
    let before = |at: u64| sent.partition_point(|sent| *sent < at);
    spans.iter().map(|span| before(span.end) - before(span.start)).collect()
}

/// Returns the same spans some time later.
fn later(spans: &[Span], by: Duration) -> Vec<Span> {
    let by = by.as_nanos() as u64;
    spans
        .iter()
        .map(|span| span.start.saturating_add(by)..span.end.saturating_add(by))
        .collect()
}

/// A robot's bulk on the air, and its agent's recording.
struct Robot {
    number: usize,
    /// The times at which bulk was on the air.
    bulk: Vec<u64>,
    record: Record,
}

#[test]
#[ignore = "in the lab"]
fn what_the_air_has_carried() {
    let frames = frames(&fs::read("/run/air.pcap").unwrap());
    let robots: Vec<Robot> = ROBOTS.map(|number| robot(number, &frames)).collect();
    windows_are_clear(&robots);
    permits_hold(&robots);
}

fn robot(number: usize, frames: &[Frame]) -> Robot {
    let own = || frames.iter().filter(move |frame| frame.robot == number);
    let control = own().filter(|frame| frame.udp && CONTROL_TO.ends_with(&frame.to_port.to_string()));
    let bulk = own().filter(|frame| !frame.udp && BULK_PORTS.contains(&frame.to_port) && frame.bytes > SHORT_BYTES);
    let robot = Robot {
        number,
        bulk: bulk.clone().map(|frame| frame.at).collect(),
        record: record(&fs::read(format!("/run/r{number}.mcap")).unwrap()),
    };
    let (of_bulk, of_control) = (robot.bulk.len(), control.clone().count());
    println!("r{number}: {of_bulk} frames of bulk, {of_control} of control");
    assert!(of_bulk >= 150 && of_control >= 15, "r{number} has sent both");
    assert!(bulk.into_iter().all(|frame| frame.priority == 0), "AC_BE");
    assert!(control.into_iter().all(|frame| frame.priority == 6), "AC_VO");
    let server: serde_json::Value =
        serde_json::from_slice(&fs::read(format!("/run/iperf3-{number}.json")).unwrap()).unwrap();
    let came = server["end"]["sum_received"]["bytes"].as_u64();
    assert!(came > Some(0), "iperf3 of r{number}: {came:?}");
    assert!(
        robot.bulk.last() < Some(&robot.record.end),
        "the record has all of the bulk"
    );
    robot
}

fn windows_are_clear(robots: &[Robot]) {
    let (mut windows, mut within, mut beside) = (0, Vec::new(), 0);
    for Robot { number, bulk, record } in robots {
        println!("r{number}: {} windows", record.windows.len());
        windows += record.windows.len();
        within.extend(inside(&record.windows, bulk).into_iter().filter(|count| *count > 0));
        for window in &record.windows {
            for at in bulk.iter().filter(|at| window.contains(at)) {
                let (after, of) = ((at - window.start) / 1_000, (window.end - window.start) / 1_000);
                println!("r{number}: a frame of bulk {after} us after the beginning of a window of {of} us");
            }
        }
        // Between a window and the next.
        for shift in 1..=SHIFTS {
            let elsewhere = later(&record.windows, CONTROL_PERIOD * shift / (SHIFTS + 1));
            beside += inside(&elsewhere, bulk).iter().sum::<usize>();
        }
    }
    let (all, elsewhere) = (within.iter().sum::<usize>(), beside / SHIFTS as usize);
    println!("{windows} windows: {all} frames of bulk inside, {elsewhere} in as many other spans");
    assert!(windows >= 30 && elsewhere >= 60, "there was bulk to be kept out");
    assert!(within.is_empty(), "frames of bulk in windows that had some: {within:?}");
}

/// These radios send as soon as they may. Others still send what they have taken when a permit ends.
fn permits_hold(robots: &[Robot]) {
    let mut permits = Vec::new();
    for Robot { number, bulk, record } in robots {
        let within = inside(&record.permits, bulk);
        let used = within.iter().filter(|count| **count > 0).count();
        let without = |at: &&u64| {
            let begun = record.permits.partition_point(|permit| permit.start <= **at);
            begun
                .checked_sub(1)
                .is_none_or(|last| !record.permits[last].contains(*at))
        };
        let without = bulk.iter().filter(without).count();
        println!("r{number}: {used} permits with bulk, and {without} frames without a permit");
        assert!(used >= 3, "it has had its turns");
        assert_eq!(without, 0, "frames of bulk without a permit");
        let spans = record.permits.iter();
        permits.extend(spans.map(|permit| (permit.start, permit.end, *number)));
    }
    permits.sort_unstable();
    let pairs = || permits.windows(2).map(|pair| (pair[0], pair[1]));
    let turns = pairs().filter(|(one, next)| one.2 != next.2).count();
    println!("{} permits, {turns} handed over to another robot", permits.len());
    assert!(turns >= 6);
    let at_once = pairs().find(|(one, next)| next.0 < one.1);
    assert!(at_once.is_none(), "two permits at once: {at_once:?}");
}
