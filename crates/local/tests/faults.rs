//! Processes that are killed at any moment: the others continue, no payload is torn, and nothing is left behind.
//!
//! Every process is this test's program, started again in a role. `COORP_LOCAL_FAULT_RUNS` sets the number of seeded runs.

#![allow(missing_docs, clippy::unwrap_used)]

use std::collections::{HashMap, VecDeque};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver as Lines};
use std::time::{Duration, Instant};

use coorp_local::{
    Domain, DomainOptions, Error, Payload, Receiver, ReceiverOptions, Sender, SenderOptions, Shortage, WhenFull,
};
use rustix::process::{kill_process, Pid, Signal};

/// The time limit for everything, on a machine that is busy with other tests.
const BOUND: Duration = Duration::from_secs(30);
const ROLE: &str = "COORP_LOCAL_TEST_ROLE";
/// The number of a writer's payloads that a reader must have checked before it says that it hears the writer.
const HEARD: u64 = 5;

/// xorshift64*, for reproducible choices.
#[derive(Clone)]
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

fn checksum(bytes: &[u8]) -> u64 {
    let words = bytes.chunks_exact(8);
    let rest = words.remainder().iter();
    let words = words.map(|word| u64::from_le_bytes(word.try_into().unwrap()));
    let rest = rest.map(|byte| u64::from(*byte));
    words.chain(rest).fold(bytes.len() as u64, |sum, word| {
        (sum ^ word).rotate_left(5).wrapping_mul(0x100_0000_01b3)
    })
}

/// Returns the number of this library's mappings and descriptors in the process, including those of senders that are
/// gone.
fn mappings(domain: &str) -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines()
        .filter(|line| line.contains(&format!("memfd:coorp-local/{domain}/")))
        .count()
}

// Roles.

/// Returns the commands for a process in a role: lines on its standard input, which ends with its parent.
fn orders() -> Lines<String> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || match std::io::stdin().lock().lines().next() {
        Some(Ok(line)) => sender.send(line),
        _ => std::process::exit(1),
    });
    receiver
}

fn say(what: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "@{what}").and_then(|()| out.flush()).unwrap();
}

fn join(domain: &str) -> Domain {
    // Without a time limit here, so that the library's limit hides no hang.
    Domain::join(domain, DomainOptions { timeout: Duration::MAX }).unwrap()
}

fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < BOUND, "no end of waiting: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Sends payloads of every size, with checksums, until it is told to stop; then none of its memory may be in use.
fn write(domain: &str, seed: u64) {
    let orders = orders();
    let member = join(domain);
    let mut random = Random::new(seed);
    let when_full = if random.below(2) == 0 {
        WhenFull::Block(BOUND)
    } else {
        WhenFull::DropOldest
    };
    // A small store, so that it is often full.
    let options = SenderOptions {
        store_bytes: 4 << 20,
        idle_bytes: 1 << 20,
        queue_messages: 4,
        held_messages: 4,
        when_full,
    };
    let mut sender = member.sender("data", options).unwrap();
    say("ready");
    let mut number = 0_u64;
    while orders.try_recv().is_err() {
        let length = match random.below(4) {
            0 => random.below(200),
            1 => random.below(60_000),
            2 => random.below(100_000),
            _ => random.below(1_500_000),
        };
        match send(&mut sender, &mut random, number, length as usize) {
            Ok(_) => number += 1,
            // Readers hold everything at the moment.
            Err(Error::Full { .. }) => std::thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
        if random.below(8) == 0 {
            std::thread::sleep(Duration::from_micros(random.below(500)));
        }
    }
    until("payloads that readers hold", || sender.used_bytes() == 0);
    drop(sender);
    say("clean");
}

fn send(sender: &mut Sender, random: &mut Random, number: u64, length: usize) -> Result<usize, Error> {
    let cut = length / 3;
    let mut loan = sender.loan_parts(24, &[cut, length - cut])?;
    let word = random.next();
    let mut sums = [0; 2];
    for (part, sum) in loan.parts_mut().into_iter().zip(&mut sums) {
        for (index, bytes) in part.chunks_mut(8).enumerate() {
            bytes.copy_from_slice(&(word ^ index as u64).to_le_bytes()[..bytes.len()]);
        }
        *sum = checksum(part);
    }
    for (field, value) in loan.header_mut().chunks_exact_mut(8).zip([number, sums[0], sums[1]]) {
        field.copy_from_slice(&value.to_le_bytes());
    }
    Ok(sender.send(loan)?)
}

fn check(payload: &Payload) -> u64 {
    let field = |index: usize| u64::from_le_bytes(payload.header()[8 * index..][..8].try_into().unwrap());
    assert_eq!(payload.len(), 2);
    for part in 0..2 {
        assert_eq!(
            checksum(payload.part(part).unwrap()),
            field(1 + part),
            "part {part} of payload {} is torn",
            field(0)
        );
    }
    field(0)
}

fn check_again(payload: &Payload) {
    check(payload);
}

/// Checks every payload, holds some for a while and checks them again, and prints which writers it hears.
fn read(domain: &str, seed: u64) {
    let orders = orders();
    let member = join(domain);
    let mut random = Random::new(seed);
    let mut receiver = member.receiver("data", ReceiverOptions::default()).unwrap();
    say("ready");
    let mut held = VecDeque::new();
    let mut heard: HashMap<u32, (u64, u64)> = HashMap::new();
    while orders.try_recv().is_err() {
        let Some(payload) = receiver.recv(Some(Duration::from_millis(2))).unwrap() else {
            held.pop_front().iter().for_each(check_again);
            continue;
        };
        let number = check(&payload);
        let (last, count) = heard.entry(payload.pid()).or_insert((0, 0));
        assert!(*count == 0 || number > *last, "payload {number} came after {last}");
        (*last, *count) = (number, *count + 1);
        if *count == HEARD {
            say(&format!("hears {}", payload.pid()));
        }
        if random.below(3) > 0 {
            held.push_back(payload);
        }
        while held.len() as u64 > random.below(5) {
            let index = random.below(held.len() as u64) as usize;
            check(&held.remove(index).unwrap());
        }
    }
    held.iter().for_each(check_again);
    drop(held);
    drain(&mut receiver);
    drop(receiver);
    until("mappings of senders that are gone", || mappings(domain) == 0);
    say("clean");
}

/// Receives the remaining payloads, until every writer is gone and forgotten.
fn drain(receiver: &mut Receiver) {
    until("writers that are gone", || {
        while let Some(payload) = receiver.try_recv().unwrap() {
            check(&payload);
        }
        receiver.senders() == 0
    });
}

#[test]
fn child() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let words: Vec<_> = role.split(' ').collect();
    match words[..] {
        ["write", domain, seed] => write(domain, seed.parse().unwrap()),
        ["read", domain, seed] => read(domain, seed.parse().unwrap()),
        ["hold", domain] => {
            let member = join(domain);
            say("ready");
            let _ = orders().recv();
            drop(member);
        }
        _ => panic!("no role {role}"),
    }
}

// The test.

struct Process {
    child: Child,
    lines: Lines<String>,
    role: String,
    seen: Vec<String>,
}

impl Process {
    fn start(role: &str) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["child", "--exact", "--nocapture"])
            .env(ROLE, role)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                // The test harness prints to the same stream.
                if let Some((_, said)) = line.split_once('@') {
                    let _ = sender.send(said.to_owned());
                }
            }
        });
        Self {
            child,
            lines,
            role: role.to_owned(),
            seen: Vec::new(),
        }
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until the process has printed `what`.
    fn expect(&mut self, what: &str) {
        let began = Instant::now();
        while !self.seen.iter().any(|said| said == what) {
            let left = BOUND.saturating_sub(began.elapsed());
            match self.lines.recv_timeout(left) {
                Ok(line) => self.seen.push(line),
                Err(error) => panic!("{}, process {}: never printed {what:?}: {error}", self.role, self.pid()),
            }
        }
    }

    fn order(&mut self) {
        writeln!(self.child.stdin.as_mut().unwrap(), "stop").unwrap();
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Stops all threads of the process.
    fn stop(&self) {
        kill_process(Pid::from_child(&self.child), Signal::STOP).unwrap();
        until("a stop", || {
            let tasks = std::fs::read_dir(format!("/proc/{}/task", self.pid())).unwrap();
            let mut states = tasks
                .flatten()
                .map(|task| std::fs::read_to_string(task.path().join("stat")).unwrap());
            states.all(|state| state.contains(") T "))
        });
    }

    fn end(mut self, said: &str) {
        self.order();
        self.expect(said);
        assert!(self.child.wait().unwrap().success(), "{}", self.role);
    }
}

/// Returns all traces of a domain in the system: mappings and sockets of any process, files of any name.
fn traces(domain: &str) -> Vec<String> {
    let mut traces = Vec::new();
    for process in std::fs::read_dir("/proc").unwrap().flatten() {
        let maps = std::fs::read_to_string(process.path().join("maps")).unwrap_or_default();
        traces.extend(maps.lines().filter(|line| line.contains(domain)).map(str::to_owned));
    }
    let sockets = std::fs::read_to_string("/proc/net/unix").unwrap();
    traces.extend(sockets.lines().filter(|line| line.contains(domain)).map(str::to_owned));
    for folder in ["/dev/shm", "/tmp", "/run"] {
        let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
        traces.extend(
            files
                .map(|file| file.path().display().to_string())
                .filter(|path| path.contains("coorp-local")),
        );
    }
    traces
}

/// Returns a name that no other run of these tests has.
fn domain_name(test: &str, run: u64) -> String {
    format!("fault-{}-{test}-{run}", std::process::id())
}

fn one_run(seed: u64) {
    let mut random = Random::new(seed + 1);
    let domain = domain_name("seeded", seed);
    let role = |kind: usize, life: u64| format!("{} {domain} {}", ["write", "read"][kind % 2], seed * 100 + life);
    // Any of them may be the host.
    let mut processes: Vec<_> = (0..4).map(|index| Process::start(&role(index, index as u64))).collect();
    let young = random.below(4) == 0;
    if !young {
        processes.iter_mut().for_each(|process| process.expect("ready"));
    }
    for life in 0..1 + random.below(2) {
        std::thread::sleep(Duration::from_micros(random.below(15_000)));
        let victim = random.below(4) as usize;
        processes[victim].kill();
        std::thread::sleep(Duration::from_micros(random.below(2_000)));
        processes[victim] = Process::start(&role(victim, 10 + life));
    }
    processes.iter_mut().for_each(|process| process.expect("ready"));
    let (writers, readers) = processes
        .into_iter()
        .partition::<Vec<_>, _>(|process| process.role.starts_with("write"));
    let mut readers = readers;
    for reader in &mut readers {
        writers
            .iter()
            .for_each(|writer| reader.expect(&format!("hears {}", writer.pid())));
    }
    // Writers end first: they must get everything back from readers that are alive.
    writers.into_iter().for_each(|writer| writer.end("clean"));
    readers.into_iter().for_each(|reader| reader.end("clean"));
    assert_eq!(traces(&domain), [""; 0]);
}

#[test]
fn the_others_go_on_when_one_is_killed_at_any_moment() {
    let runs = std::env::var("COORP_LOCAL_FAULT_RUNS")
        .ok()
        .map(|runs| runs.parse().unwrap());
    for seed in 0..runs.unwrap_or(if cfg!(debug_assertions) { 25 } else { 200 }) {
        let run = std::panic::catch_unwind(|| one_run(seed));
        assert!(run.is_ok(), "seed {seed}");
    }
}

#[test]
fn nothing_is_left_when_all_are_killed_at_once_and_a_new_start_works() {
    let domain = domain_name("all", 0);
    for life in 0..3 {
        let start = |kind: &str| Process::start(&format!("{kind} {domain} {life}"));
        let mut processes = vec![start("write"), start("read"), start("write"), start("read")];
        processes.iter_mut().for_each(|process| process.expect("ready"));
        let writer = processes[0].pid();
        processes[1].expect(&format!("hears {writer}"));
        assert!(!traces(&domain).is_empty());
        for process in &processes {
            process.stop();
        }
        processes.iter_mut().for_each(Process::kill);
        until("memory of the dead", || traces(&domain).is_empty());
    }
}

#[test]
fn a_payload_outlives_its_killed_sender_and_then_goes() {
    let domain = domain_name("outlive", 0);
    let member = join(&domain);
    let mut receiver = member.receiver("data", ReceiverOptions::default()).unwrap();
    let mut writer = Process::start(&format!("write {domain} 7"));
    let held: Vec<_> = (0..2).map(|_| receiver.recv(Some(BOUND)).unwrap().unwrap()).collect();
    writer.kill();
    drain(&mut receiver);
    held.iter().for_each(check_again);
    drop(receiver);
    drop(member);
    held.iter().for_each(check_again);
    assert!(mappings(&domain) > 0);
    drop(held);
    assert_eq!(mappings(&domain), 0);
}

#[test]
fn a_killed_reader_gives_back_all_it_held() {
    let domain = domain_name("held", 0);
    let member = join(&domain);
    let options = SenderOptions {
        when_full: WhenFull::Fail,
        queue_messages: 1,
        ..SenderOptions::default()
    };
    let mut sender = member.sender("data", options).unwrap();
    let mut reader = Process::start(&format!("read {domain} 7"));
    assert!(sender.wait_for_readers(1, BOUND));
    let mut random = Random::new(1);
    // The reader is stopped with one payload in its hands or in its queue.
    reader.expect("ready");
    reader.stop();
    while send(&mut sender, &mut random, 0, 1_000_000).is_ok() {}
    let pid = reader.pid();
    let Err(Error::Full { shortage, .. }) = send(&mut sender, &mut random, 0, 1_000_000) else {
        panic!()
    };
    assert_eq!(shortage, Shortage::Queue { pid });
    assert!(sender.used_bytes() > 1_000_000);
    reader.kill();
    until("what the dead reader held", || sender.used_bytes() == 0);
    assert_eq!(sender.readers(), 0);
}

#[test]
fn a_stopped_host_holds_up_newcomers_only_and_is_named() {
    let domain = domain_name("stopped", 0);
    let mut host = Process::start(&format!("hold {domain}"));
    host.expect("ready");
    let member = join(&domain);
    let mut receiver = member.receiver("data", ReceiverOptions::default()).unwrap();
    let mut sender = member.sender("data", SenderOptions::default()).unwrap();
    host.stop();
    sender.send_copy(b"goes on").unwrap();
    assert_eq!(
        receiver.recv(Some(BOUND)).unwrap().unwrap().part(0),
        Some(b"goes on".as_slice())
    );
    let brief = DomainOptions {
        timeout: Duration::from_secs(1),
    };
    let Err(Error::Unreachable { problem, .. }) = Domain::join(&domain, brief) else {
        panic!("joined")
    };
    assert!(
        problem.contains(&format!("process {} has the domain's address", host.pid())),
        "{problem}"
    );
    // After the host's death, another process becomes the host.
    host.kill();
    let newcomer = join(&domain);
    let mut late = newcomer.receiver("data", ReceiverOptions::default()).unwrap();
    until("the introduction by a new host", || sender.readers() == 2);
    sender.send_copy(b"to both").unwrap();
    for receiver in [&mut receiver, &mut late] {
        assert_eq!(
            receiver.recv(Some(BOUND)).unwrap().unwrap().part(0),
            Some(b"to both".as_slice())
        );
    }
}
