//! The socket on a real WiFi stack: a test that runs others of this file in the lab (`kernel/lab`). The lab's script
//! calls them one by one, each in the namespace of a robot.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::SystemTime;

use coorp_core::policy::Policy;
use coorp_core::windows::Window;

use super::tests::{until, Bench, SOON};
use super::*;
use crate::outqueue::{Handed, OutQueue};
use crate::{Node, Options};

const AP: &str = "10.0.0.1:5000";
const STATION: &str = "10.0.0.2:5000";
const BULK_BYTES: usize = 1_200;

/// The lab's script. `$1` runs a test of this file, `$2` is a team file.
const SCRIPT: &str = r#"
set -e
. "$LAB/wifi"
wifi_up
inside() { ip netns exec "$1" "$2" --exact "bulk::socket::on_wifi::$3" --ignored --nocapture --test-threads=1; }
export COORP_LAB_TEAM=$2

echo "== each datagram is reported"
inside s1 "$1" each_datagram_is_reported_in_order

echo "== a flood is reported"
inside s1 "$1" no_report_of_a_flood_vanishes

echo "== the gate closes"
inside ap "$1" receiver >/dev/null & receiver=$!
inside s1 "$1" a_window_that_begins_finds_few_datagrams_below_the_gate
wait $receiver

echo "== two robots"
inside ap "$1" robot_that_receives & receiver=$!
inside s1 "$1" robot_that_sends
wait $receiver

echo "== a radio goes away"
ip -n ap neigh replace 10.0.0.2 lladdr 02:00:00:00:01:00 dev wlan0 nud permanent
wifi_away s1
inside ap "$1" what_nobody_acknowledges_is_given_up
echo "== the end"
"#;

/// Returns whether a test that needs qemu can run. In CI it has to.
fn possible() -> bool {
    let qemu = Command::new("qemu-system-x86_64")
        .arg("--version")
        .stdout(Stdio::null())
        .status();
    let there = qemu.is_ok_and(|qemu| qemu.success()) && cfg!(target_arch = "x86_64");
    if !there {
        assert!(std::env::var_os("CI").is_none(), "CI is to have qemu-system-x86_64");
        // Write past the harness, which would hide the message.
        let _ = writeln!(std::io::stderr().lock(), "SKIPPED on_wifi: no qemu-system-x86_64");
    }
    there
}

/// The number of attempts in the lab. The lab's machine is emulated: if it stalls for seconds, as on a busy host, a
/// station loses its access point and everything queued for it. A real defect fails each time.
const TRIES: usize = 3;

/// Runs a script in the lab, with this program and `arguments`, and returns its output.
fn in_the_lab_runs(script: &str, arguments: &[&std::ffi::OsStr]) -> String {
    /// Held by a run: each takes a core, and is slow enough without others.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _alone = lock(&ONE_AT_A_TIME);
    let mut tries = (0..TRIES).map(|_| try_in_the_lab(script, arguments));
    tries.find_map(|said| said).expect("the lab's script failed each time")
}

/// Returns the script's output, if it succeeds.
fn try_in_the_lab(script: &str, arguments: &[&std::ffi::OsStr]) -> Option<String> {
    let lab = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernel/lab/run");
    let output = Command::new(lab)
        .args(["bash", "-c", script, "script"])
        .arg(std::env::current_exe().unwrap())
        .args(arguments)
        .output()
        .unwrap();
    let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    println!("{}\n{}", said[0], said[1]);
    let [said, _] = said;
    (output.status.success() && said.contains("== the end")).then_some(said)
}

#[test]
fn in_the_lab() {
    if !possible() {
        return;
    }
    let folder = std::env::temp_dir().join(format!("coorp-on-wifi-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("team.toml");
    let robots = "[[robot]]\nname = \"lead\"\nleader = true\naddresses = [\"10.0.0.1\"]\n\
                  [[robot]]\nname = \"one\"\naddresses = [\"10.0.0.2\"]\n";
    std::fs::write(&file, robots).unwrap();
    crate::keys::init(&coorp_team::load(&file).unwrap()).unwrap();
    let said = in_the_lab_runs(SCRIPT, &[file.as_os_str()]);
    std::fs::remove_dir_all(&folder).unwrap();
    assert_eq!(said.matches("1 passed").count(), 6, "each ran, but for the receiver");
}

/// A network whose long frames complete when the test says so. `$1` runs a test of this file, `$2` is its security.
const SCRIPT_WITH_MEDIUM: &str = r#"
set -e
. "$LAB/wifi"
wifi_medium /run/allow /run/done
wifi_up "$2"
ip netns exec s1 "$1" --exact bulk::socket::on_wifi::the_send_queue_tells_when_the_air_is_done --ignored --nocapture
echo "== the end"
"#;

#[test]
fn in_the_lab_the_send_queue_tells_what_the_air_has_done() {
    if !possible() {
        return;
    }
    for security in ["open", "wpa2"] {
        let said = in_the_lab_runs(SCRIPT_WITH_MEDIUM, &[security.as_ref()]);
        assert_eq!(said.matches("1 passed").count(), 1);
    }
}

/// Returns when the medium completed each long frame, on the clock of [`monotonic`].
fn done_by_the_medium() -> Vec<u64> {
    let text = std::fs::read_to_string("/run/done").unwrap();
    text.lines().map(|line| line.parse().unwrap()).collect()
}

fn monotonic() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Lets the air complete one more long frame.
fn allow_one() {
    std::fs::OpenOptions::new()
        .write(true)
        .open("/run/allow")
        .and_then(|mut fifo| fifo.write_all(b"1"))
        .unwrap();
}

#[test]
#[ignore = "in the lab"]
fn the_send_queue_tells_when_the_air_is_done() {
    // The number that the gate admits to an unknown card.
    const DATAGRAMS: usize = 8;
    let mut bench = Bench::by(Completions::OutQueue, None);
    // Read the clocks in this order, so that a pause between the two makes nothing seem too early.
    let (began, clock) = (bench.door.now(), monotonic());
    for _ in 0..DATAGRAMS {
        bench.send(AP, BULK_BYTES);
    }
    for left in 0..DATAGRAMS {
        // Leave time to read the queue several times.
        std::thread::sleep(StdDuration::from_millis(5));
        assert_eq!(
            bench.socket.in_flight(),
            DATAGRAMS - left,
            "the air is done with {left}"
        );
        allow_one();
        until("one has left", || bench.socket.in_flight() < DATAGRAMS - left);
    }
    let gone = bench.reported(Completions::OutQueue);
    assert!(gone.iter().map(|(send, _)| send.number() as usize).eq(0..DATAGRAMS));
    assert!(
        gone.iter().map(|(send, _)| send.ahead()).eq(0..DATAGRAMS),
        "what was below"
    );
    let done = done_by_the_medium();
    assert_eq!(done.len(), DATAGRAMS);
    let left: Vec<u64> = gone.iter().map(|(_, at)| clock + at.since(began).as_nanos()).collect();
    let late = left.iter().zip(&done).map(|(left, done)| left.checked_sub(*done));
    let late: Option<Vec<u64>> = late.collect();
    println!("learnt so long after the air was done, ns: {late:?}");
    assert!(late.is_some(), "one has left before the air was done with it");

    // A control message that is handed over some time after it was expected.
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    let handed = Handed::by(OutQueue::of(&socket, None).unwrap());
    let message = handed.expect(BULK_BYTES);
    assert!(!message.is_reached(), "it is not handed over");
    let content = vec![0; BULK_BYTES];
    let sent = handed.send(BULK_BYTES, 1, || socket.send_to(&content, AP).map(drop));
    sent.unwrap();
    std::thread::sleep(StdDuration::from_millis(5));
    assert!(!message.is_reached(), "the card has it");
    allow_one();
    until("the message has left", || message.is_reached());
}

#[test]
#[ignore = "in the lab"]
fn each_datagram_is_reported_in_order() {
    let mut bench = Bench::new(Some(Duration::from_millis(1)));
    for number in 0..400 {
        bench.send(AP, if number % 4 == 0 { 100 } else { BULK_BYTES });
    }
    let gone = bench.reported(Completions::WifiStatus);
    let numbers = gone.iter().map(|(send, _)| send.number());
    assert!(numbers.eq(0..400), "the air has kept the order");
    assert_eq!(lock(&bench.socket.under).given_up, 0);
    assert_eq!(
        bench.socket.max_transmit_segments(),
        1,
        "not every kernel reports several at once"
    );
}

#[test]
#[ignore = "in the lab"]
fn no_report_of_a_flood_vanishes() {
    // A busy host may run the sender so slowly that its card keeps up with it.
    let flood = || {
        let mut bench = Bench::new(None);
        for _ in 0..2_000 {
            bench.send(AP, BULK_BYTES);
        }
        let gone = bench.reported(Completions::WifiStatus);
        let deepest = gone.iter().map(|(send, _)| send.ahead()).max();
        println!("{deepest:?} were below the gate at most");
        deepest > Some(16)
    };
    if !(0..5).any(|_| flood()) {
        println!("NOT JUDGED: the card is as fast as this machine");
    }
}

#[test]
#[ignore = "in the lab"]
fn what_nobody_acknowledges_is_given_up() {
    let mut bench = Bench::new(None);
    for _ in 0..20 {
        bench.send(STATION, BULK_BYTES);
    }
    bench.reported(Completions::WifiStatus);
    assert_eq!(lock(&bench.socket.under).given_up, 20);
}

/// The file with each datagram's number and arrival, in nanoseconds of Unix time.
const ARRIVALS: &str = "/run/arrivals";
/// The number of the last datagram.
const LAST: u32 = u32::MAX;

#[test]
#[ignore = "in the lab"]
fn receiver() {
    let socket = UdpSocket::bind(AP).unwrap();
    let (mut arrivals, mut datagram) = (String::new(), [0; 2_000]);
    loop {
        let length = socket.recv(&mut datagram).unwrap();
        let number = u32::from_le_bytes(datagram[length - 4..length].try_into().unwrap());
        if number == LAST {
            break;
        }
        arrivals += &format!("{number} {}\n", unix(SystemTime::now()));
    }
    std::fs::write(format!("{ARRIVALS}.new"), arrivals).unwrap();
    std::fs::rename(format!("{ARRIVALS}.new"), ARRIVALS).unwrap();
}

fn unix(time: SystemTime) -> u128 {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_nanos()
}

#[test]
#[ignore = "in the lab"]
fn a_window_that_begins_finds_few_datagrams_below_the_gate() {
    let mut bench = Bench::new(Some(Duration::from_millis(1)));
    let (unix_now, now) = (unix(SystemTime::now()), bench.door.now());
    let in_ms = |ms| now + Duration::from_millis(ms);
    let window = Window {
        start: in_ms(1_000),
        end: in_ms(1_500),
    };
    lock(&bench.door.gate).on_window(window);
    while bench.door.now() < in_ms(2_500) {
        bench.send(AP, BULK_BYTES);
    }
    let gone = bench.reported(Completions::WifiStatus);
    until("the receiver has written", || {
        bench.hand_over(AP, LAST, 100);
        Path::new(ARRIVALS).exists()
    });
    let inside = |at: Instant| window.start <= at && at < window.end;
    let sent: BTreeMap<u32, Instant> = gone.iter().map(|(send, _)| (send.number(), send.at)).collect();
    assert!(sent.values().any(|at| *at < window.start) && sent.values().any(|at| *at >= window.end));
    assert_eq!(
        sent.values().filter(|at| inside(**at)).count(),
        0,
        "the gate was closed"
    );
    let deepest = 1 + gone.iter().map(|(send, _)| send.ahead()).max().unwrap();
    println!("{deepest} were below the gate at most");
    assert!(deepest <= 64, "{deepest} datagrams are as many as without a gate");
    let in_window = |arrival: &(u32, u128)| {
        let at = now + Duration::from_nanos(arrival.1.saturating_sub(unix_now) as u64);
        inside(at)
    };
    let arrivals = std::fs::read_to_string(ARRIVALS).unwrap();
    let arrivals = arrivals.lines().map(|line| {
        let (number, at) = line.split_once(' ').unwrap();
        (number.parse().unwrap(), at.parse().unwrap())
    });
    let late: Vec<(u32, u128)> = arrivals.filter(in_window).collect();
    println!("{} came inside the window", late.len());
    assert!(late.len() <= deepest, "{late:?}");
    assert!(late.iter().all(|(number, _)| sent[number] < window.start));
}

fn robot(name: &str) -> Node {
    let file = PathBuf::from(std::env::var_os("COORP_LAB_TEAM").unwrap());
    Node::open(Options {
        team: coorp_team::load(&file).unwrap(),
        robot: name.to_owned(),
        // Without permits: in the lab, everything is too slow for a leader's deadlines.
        policy: Policy::named("edca+local").unwrap(),
        insecure: false,
        state: Some(PathBuf::from("/run/state").join(name)),
    })
    .unwrap()
}

fn map() -> Vec<u8> {
    (0..300_000u32).flat_map(u32::to_le_bytes).collect()
}

#[test]
#[ignore = "in the lab"]
fn robot_that_receives() {
    let node = robot("lead");
    let message = node.bulk_receiver().unwrap().recv(Some(2 * SOON)).unwrap();
    assert!(message.take().unwrap() == map());
    until("the sender is done", || !node.status().unwrap().alive.contains(&1));
}

#[test]
#[ignore = "in the lab"]
fn robot_that_sends() {
    let node = robot("one");
    let mut stream = node.bulk_stream("lead", "map").unwrap();
    stream.write(&map()).unwrap();
    stream.finish().unwrap().wait().unwrap();
    let bulk = || node.status().unwrap().bulk.unwrap();
    assert_eq!(bulk().completions, Completions::WifiStatus);
    until("all is reported", || bulk().in_flight == 0);
    println!("{:?}", bulk());
    assert_eq!(bulk().given_up, 0);
}
