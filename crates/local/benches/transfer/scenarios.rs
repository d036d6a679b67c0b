//! The measured scenarios: a 64-byte hop, and broadcast to three and gather from three of 1, 10 and 50 MB.
//!
//! Large payloads are timed in two ways: from a private array, which costs one copy, and from a loaned buffer that is
//! already filled, which costs none. `view` ends when every reader has its view; `read` ends when every reader has read
//! a byte of every page. The two ends of a spinning hop are pinned to two cores, because a scheduler may keep them on
//! one for minutes.

use std::process::{Child, Command};
use std::time::Duration;

use rustix::thread::{sched_setaffinity, CpuSet};
use rustix::time::{clock_gettime, ClockId};

const PEERS: usize = 3;
const MEGABYTE: usize = 1_000_000;

/// The interface of a transport for a benchmark. Stamps are nanoseconds of the monotonic clock, which all processes
/// share.
pub trait Transport {
    fn sender(&self, channel: &str, bytes_max: usize) -> Box<dyn Sender>;
    fn receiver(&self, channel: &str) -> Box<dyn Receiver>;
}

pub trait Sender {
    fn wait_for_readers(&mut self, readers: usize);
    fn send_copy(&mut self, stamp: u64, bytes: &[u8]);
    /// Gets memory, and fills it as a camera does: without emptying the processor's caches. One byte of each page
    /// represents all.
    fn prepare(&mut self, bytes: usize);
    fn send_prepared(&mut self, stamp: u64);
}

pub trait Receiver {
    /// Waits for a payload, passes its bytes on, and returns its stamp. Patient receivers never sleep.
    fn recv(&mut self, patient: bool, bytes: &mut dyn FnMut(&[u8])) -> u64;
}

/// A transport's name, and the function that joins a domain of it.
pub type Named = (&'static str, fn(&str) -> Box<dyn Transport>);

pub fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum From {
    Private { read: bool },
    Loan,
}

impl From {
    const ALL: [Self; 3] = [Self::Private { read: false }, Self::Private { read: true }, Self::Loan];

    fn name(self) -> &'static str {
        match self {
            Self::Private { read: false } => "private, view",
            Self::Private { read: true } => "private, read",
            Self::Loan => "loaned, view",
        }
    }
}

/// Measures these transports in turn, or plays the role given on the command line.
pub fn run(transports: &[Named]) {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let words: Vec<_> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["child", role, name, domain, bytes, count] => {
            let (_, join) = transports.iter().find(|(known, _)| *known == name).unwrap();
            child(role, &*join(domain), bytes.parse().unwrap(), count.parse().unwrap());
        }
        _ => measure(transports, words.contains(&"--quick")),
    }
}

fn measure(transports: &[Named], quick: bool) {
    println!("{:<34} {:>12} {:>12} {:>12}", "microseconds", "transport", "p50", "p99");
    for named in transports {
        report(
            "hop, 64 bytes, spinning",
            named,
            hop(named, if quick { 5_000 } else { 200_000 }),
        );
    }
    for named in transports {
        report(
            "hop, 64 bytes, reader asleep",
            named,
            asleep(named, if quick { 50 } else { 2_000 }),
        );
    }
    let rounds = if quick { 10 } else { 200 };
    let pattern = |name: &str, measure: fn(&Named, usize, From, usize) -> Vec<u64>| {
        for megabytes in [1, 10, 50] {
            for from in From::ALL {
                for named in transports {
                    let samples = measure(named, megabytes * MEGABYTE, from, rounds);
                    report(&format!("{name}, {megabytes} MB, {}", from.name()), named, samples);
                }
            }
        }
    };
    pattern("broadcast", broadcast);
    pattern("gather", gather);
}

fn report(what: &str, (transport, _): &Named, mut samples: Vec<u64>) {
    samples.sort_unstable();
    let at = |quantile: f64| samples[((samples.len() - 1) as f64 * quantile) as usize] as f64 / 1e3;
    println!("{what:<34} {transport:>12} {:>12.2} {:>12.2}", at(0.5), at(0.99));
}

/// Pins this process to one of the first two cores, or lets it run on either.
fn pin(core: Option<usize>) {
    let mut cores = CpuSet::new();
    core.map_or(0..CpuSet::MAX_CPU, |core| core..core + 1)
        .for_each(|core| cores.set(core));
    // A machine with one core keeps both ends there.
    let _ = sched_setaffinity(None, &cores);
}

/// Returns a new domain, for one measurement.
fn domain() -> String {
    format!("bench-{}-{}", std::process::id(), now())
}

fn spawn(role: &str, transport: &str, domain: &str, bytes: usize, count: usize) -> Child {
    let program = std::env::current_exe().unwrap();
    let numbers = [bytes.to_string(), count.to_string()];
    Command::new(program)
        .args(["child", role, transport, domain])
        .args(numbers)
        .spawn()
        .unwrap()
}

fn end(children: Vec<Child>) {
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
}

fn child(role: &str, transport: &dyn Transport, bytes: usize, count: usize) {
    match role {
        "echo" => {
            pin(Some(1));
            let (mut pings, mut pongs) = (transport.receiver("spin-ping"), transport.sender("spin-pong", 64));
            pongs.wait_for_readers(1);
            for _ in 0..count {
                let stamp = pings.recv(true, &mut |_| {});
                pongs.send_copy(stamp, &[1; 64]);
            }
            // The last answer must not be lost with its sender.
            pings.recv(true, &mut |_| {});
        }
        "latency" => {
            let (mut pings, mut pongs) = (transport.receiver("ping"), transport.sender("pong", 64));
            pongs.wait_for_readers(1);
            for _ in 0..count {
                let stamp = pings.recv(false, &mut |_| {});
                pongs.send_copy(now() - stamp, &[]);
            }
            pings.recv(false, &mut |_| {});
        }
        "view" | "read" => {
            let (mut payloads, mut answers) = (transport.receiver("payload"), transport.sender("answer", 64));
            answers.wait_for_readers(1);
            for _ in 0..count {
                let mut sum = 0_u64;
                payloads.recv(false, &mut |seen| {
                    assert_eq!(seen.len(), bytes);
                    let pages = if role == "read" { seen } else { &seen[..1] };
                    sum = pages.iter().step_by(4096).map(|byte| u64::from(*byte)).sum();
                });
                let arrived = now();
                answers.send_copy(arrived, &sum.to_le_bytes());
            }
            payloads.recv(false, &mut |_| {});
        }
        "private" | "loan" => {
            let (mut starts, mut payloads) = (transport.receiver("start"), transport.sender("payload", bytes));
            payloads.wait_for_readers(1);
            let source = vec![1; bytes];
            let mut ready = transport.sender("ready", 64);
            ready.wait_for_readers(1);
            for _ in 0..count {
                starts.recv(false, &mut |_| {});
                if role == "loan" {
                    payloads.prepare(bytes);
                }
                ready.send_copy(0, &[]);
                starts.recv(false, &mut |_| {});
                let began = now();
                if role == "loan" {
                    payloads.send_prepared(began);
                } else {
                    payloads.send_copy(began, &source);
                }
            }
            starts.recv(false, &mut |_| {});
        }
        other => panic!("no role {other}"),
    }
}

/// Returns one-way latencies, as half of the round trips.
fn hop((name, join): &Named, count: usize) -> Vec<u64> {
    let domain = domain();
    let transport = join(&domain);
    let (mut pings, mut pongs) = (transport.sender("spin-ping", 64), transport.receiver("spin-pong"));
    let children = vec![spawn("echo", name, &domain, 64, count)];
    pin(Some(0));
    pings.wait_for_readers(1);
    std::thread::sleep(Duration::from_millis(200));
    let samples = (0..count).map(|_| {
        let began = now();
        pings.send_copy(began, &[1; 64]);
        pongs.recv(true, &mut |bytes| assert_eq!(bytes, [1; 64]));
        (now() - began) / 2
    });
    let samples = samples.collect();
    pings.send_copy(0, &[0; 64]);
    end(children);
    pin(None);
    samples
}

/// Returns one-way latencies to a reader that has gone to sleep.
fn asleep((name, join): &Named, count: usize) -> Vec<u64> {
    let domain = domain();
    let transport = join(&domain);
    let (mut pings, mut pongs) = (transport.sender("ping", 64), transport.receiver("pong"));
    let children = vec![spawn("latency", name, &domain, 64, count)];
    pings.wait_for_readers(1);
    std::thread::sleep(Duration::from_millis(200));
    let samples = (0..count).map(|_| {
        std::thread::sleep(Duration::from_millis(1));
        pings.send_copy(now(), &[1; 64]);
        pongs.recv(false, &mut |_| {})
    });
    let samples = samples.collect();
    pings.send_copy(0, &[0; 64]);
    end(children);
    samples
}

/// Returns the times from the sender's start until the last of three readers has the payload.
fn broadcast((name, join): &Named, bytes: usize, from: From, count: usize) -> Vec<u64> {
    let domain = domain();
    let transport = join(&domain);
    let (mut payloads, mut answers) = (transport.sender("payload", bytes), transport.receiver("answer"));
    let role = if from == (From::Private { read: true }) {
        "read"
    } else {
        "view"
    };
    let children: Vec<_> = (0..PEERS).map(|_| spawn(role, name, &domain, bytes, count)).collect();
    payloads.wait_for_readers(PEERS);
    std::thread::sleep(Duration::from_millis(200));
    let source = vec![1; bytes];
    let samples = (0..count).map(|_| {
        if from == From::Loan {
            payloads.prepare(bytes);
        }
        // The readers have gone to sleep again.
        std::thread::sleep(Duration::from_millis(2));
        let began = now();
        if from == From::Loan {
            payloads.send_prepared(began);
        } else {
            payloads.send_copy(began, &source);
        }
        let arrived = (0..PEERS).map(|_| answers.recv(false, &mut |_| {})).max();
        arrived.unwrap() - began
    });
    // The first payloads allocate and map memory that the others use again.
    let samples: Vec<_> = samples.skip(count / 10).collect();
    payloads.send_copy(0, &source);
    end(children);
    samples
}

/// Returns the times from each of three senders' start until the reader has the payload.
fn gather((name, join): &Named, bytes: usize, from: From, count: usize) -> Vec<u64> {
    let domain = domain();
    let transport = join(&domain);
    let (mut starts, mut payloads) = (transport.sender("start", 64), transport.receiver("payload"));
    let mut ready = transport.receiver("ready");
    let role = if from == From::Loan { "loan" } else { "private" };
    let children: Vec<_> = (0..PEERS).map(|_| spawn(role, name, &domain, bytes, count)).collect();
    starts.wait_for_readers(PEERS);
    std::thread::sleep(Duration::from_millis(300));
    let samples = (0..count).flat_map(|_| {
        starts.send_copy(0, &[]);
        for _ in 0..PEERS {
            ready.recv(false, &mut |_| {});
        }
        std::thread::sleep(Duration::from_millis(2));
        starts.send_copy(0, &[]);
        let arrived = (0..PEERS).map(|_| {
            let mut sum = 0_u64;
            let began = payloads.recv(false, &mut |seen| {
                assert_eq!(seen.len(), bytes);
                if from == (From::Private { read: true }) {
                    sum += seen.iter().step_by(4096).map(|byte| u64::from(*byte)).sum::<u64>();
                }
            });
            std::hint::black_box(sum);
            now() - began
        });
        arrived.collect::<Vec<_>>()
    });
    let samples: Vec<_> = samples.skip(count / 10 * PEERS).collect();
    starts.send_copy(0, &[]);
    end(children);
    samples
}
