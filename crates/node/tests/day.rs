//! A day of the real node in virtual time: what three robots allocate does not grow with what they send.
//!
//! `COORP_DAY_HOURS` is the length, three minutes by default; `make studies` has eight hours. The same over real sockets
//! is studies/day.py.
#![allow(clippy::unwrap_used)] // a test may fail by panicking
#![allow(unsafe_code)] // glibc's statistics

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;

use coorp_core::policy::Policy;
use coorp_core::RobotId;
use coorp_node::trial::{Process, Trial};
use coorp_node::{keys, Options};

const ROBOTS: [&str; 3] = ["one", "two", "three"];
const PERIOD: Duration = Duration::from_nanos(1_000_000_000 / 30);
const BULK_PERIOD: Duration = Duration::from_secs(10);
const BULK_BYTES: usize = 300_000;
/// The time until all is set up, and the two spans that are compared.
const WARM_UP: Duration = Duration::from_secs(60);
const SPAN: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The TLS sessions that are kept for being resumed become 0.8 MB in the first 45 minutes, evenly. A byte for each
/// message that is received in eight hours would be 7.7 MB, and in a minute 16 kB. One minute differs from the next by up
/// to 0.1 MB.
const MORE_BYTES: usize = 150_000;
const MORE_BYTES_PER_MINUTE: usize = 20_000;
const MORE_BYTES_MAX: usize = 1_500_000;
/// The simulated disks remove deleted files only now and then.
const DISK_BYTES_MAX: usize = 100_000_000;

/// What the robots' programs received.
#[derive(Debug, Default)]
struct Seen {
    messages: AtomicU64,
    pieces: AtomicU64,
}

/// Returns the bytes of the files on all simulated disks.
fn on_disks(trial: &Trial) -> usize {
    let robots = (0..ROBOTS.len()).map(|robot| RobotId(robot as u16));
    robots.map(|robot| trial.machine(robot).disk_bytes()).sum()
}

/// Returns the bytes that are allocated, without those files.
fn allocated(trial: &Trial) -> usize {
    // SAFETY: it takes nothing and returns a struct of numbers.
    let info = unsafe { libc::mallinfo2() };
    info.uordblks + info.hblkhd - on_disks(trial)
}

async fn robot(trial: Arc<Trial>, seen: Arc<Seen>, robot: usize, process: Process) {
    let options = Options {
        team: trial.team().clone(),
        policy: Policy::named("coorp").unwrap(),
        insecure: false,
        state: Some(Path::new("/state").join(ROBOTS[robot])),
        robot: ROBOTS[robot].to_owned(),
    };
    let node = process.open(options).unwrap();
    let receiver = node.bulk_receiver().unwrap();
    let subscriber = node.control_subscriber("state").unwrap();
    let publisher = node
        .control_publisher(
            "state",
            Some(coorp_core::Duration::from_nanos(PERIOD.as_nanos() as u64)),
        )
        .unwrap();
    let publish = async {
        let mut ticks = tokio::time::interval(PERIOD);
        loop {
            ticks.tick().await;
            publisher.put(&[7; 500]).unwrap();
        }
    };
    let hear = async {
        loop {
            subscriber.next().await;
            seen.messages.fetch_add(1, Ordering::Relaxed);
        }
    };
    let take = async {
        loop {
            assert_eq!(receiver.next().await.take().unwrap().len(), BULK_BYTES);
            seen.pieces.fetch_add(1, Ordering::Relaxed);
        }
    };
    let send = async {
        let mut ticks = tokio::time::interval(BULK_PERIOD);
        loop {
            ticks.tick().await;
            let mut stream = node.bulk_stream(ROBOTS[(robot + 1) % ROBOTS.len()], "log").unwrap();
            stream.write(&[7; BULK_BYTES]).unwrap();
            stream.finish().unwrap().await.unwrap();
        }
    };
    tokio::join!(publish, hear, take, send);
}

/// Returns the median of what is allocated over a span.
async fn median(trial: &Trial) -> usize {
    let mut looks = Vec::new();
    for _ in 0..SPAN.as_secs() / LOOK_EVERY.as_secs() {
        tokio::time::sleep(LOOK_EVERY).await;
        looks.push(allocated(trial));
    }
    looks.sort_unstable();
    looks[looks.len() / 2]
}

#[test]
fn what_is_allocated_does_not_grow_over_a_day() {
    let hours = std::env::var("COORP_DAY_HOURS").map_or(0.05, |hours| hours.parse().unwrap());
    let length = Duration::from_secs_f64(3_600.0 * hours).max(WARM_UP + 2 * SPAN);
    let folder = std::env::temp_dir().join(format!("coorp-day-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    let robots = ROBOTS
        .map(|name| format!("[[robot]]\nname = \"{name}\"\nleader = {}\n", name == ROBOTS[0]))
        .concat();
    let mut team = coorp_team::parse(&robots, "team.toml", &folder).unwrap();
    team.live.keys = folder.join("keys");
    keys::init(&team).unwrap();

    let seen: Arc<Seen> = Arc::default();
    let watched = seen.clone();
    let ran = Trial::run(&team, 1, 1, |trial| async move {
        for number in 0..ROBOTS.len() {
            let (it, seen) = (trial.clone(), watched.clone());
            trial
                .machine(RobotId(number as u16))
                .start(|process| robot(it, seen, number, process));
        }
        tokio::time::sleep(WARM_UP).await;
        let first = median(&trial).await;
        let mut last = first;
        while trial.now() < length {
            println!("{:8.0} s: {last} bytes", trial.now().as_secs_f64());
            last = median(&trial).await;
        }
        (first, last, trial.now(), on_disks(&trial))
    });
    std::fs::remove_dir_all(folder).unwrap();
    let (first, last, took, disks) = ran.unwrap();
    let (messages, pieces) = (
        seen.messages.load(Ordering::Relaxed),
        seen.pieces.load(Ordering::Relaxed),
    );
    println!(
        "{messages} messages and {pieces} pieces of bulk in {took:?}: from {first} to {last} bytes, {disks} on disks"
    );
    // Each robot hears itself too.
    let due = took.as_nanos() / PERIOD.as_nanos() * 9;
    assert!(u128::from(messages) > due * 95 / 100, "{messages} of {due}");
    let due = took.as_secs() / BULK_PERIOD.as_secs() * 3;
    assert!(pieces > due * 95 / 100, "{pieces} of {due}");
    let minutes = (took - WARM_UP).as_secs().div_ceil(60) as usize;
    let more = MORE_BYTES_MAX.min(MORE_BYTES + minutes * MORE_BYTES_PER_MINUTE);
    assert!(last <= first + more, "from {first} to {last} bytes");
    assert!(disks <= DISK_BYTES_MAX, "{disks} bytes on the disks");
}
