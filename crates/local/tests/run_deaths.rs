//! Processes of a program that are killed at any moment: the others end within a bound, and their results until then
//! are correct.
//!
//! Every process is this test's program, started again in a role. `COORP_LOCAL_FAULT_RUNS` sets the number of seeded runs.

#![allow(missing_docs, clippy::unwrap_used)]

use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use coorp_core::logical::program::{Connection, Program, Reaction, Reactor};
use coorp_core::logical::scheduler::{Effects, Ready};
use coorp_core::logical::{ElementId, FederateId, Graph, ReactionId, RtiConfig, Tag};
use coorp_local::run::{
    coordinate, run, Clock, CoordinatorSettings, Encoded, Failure, Handle, Input, Inputs, Moment, Ran, Reactions,
    Settings, Standby, HEADER_RESERVED, INLINE_BYTES_MAX,
};
use coorp_local::Sender;

/// The time limit for everything, on a machine that is busy with other tests.
const BOUND: Duration = Duration::from_secs(30);
const ROLE: &str = "COORP_LOCAL_TEST_ROLE";
const FEDERATES: u16 = 4;
/// The program's length.
const TICKS: u64 = 200;

/// xorshift64*, for reproducible choices.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) % limit
    }
}

/// Returns a program: a source ticks every millisecond, `left` and `right` pass its value on, and `sink` sees both.
fn program() -> Program {
    let side = |name, at| {
        Reactor::new(name, FederateId(at))
            .input("in")
            .output("out")
            .reaction(Reaction::new("work").on("in").effect("out"))
    };
    Program {
        federates: (0..FEDERATES).map(|at| format!("f{at}")).collect(),
        reactors: vec![
            Reactor::new("source", FederateId(0))
                .output("out")
                .timer(
                    "tick",
                    coorp_core::Duration::ZERO,
                    Some(coorp_core::Duration::from_millis(1)),
                )
                .reaction(Reaction::new("count").on("tick").effect("out")),
            side("left", 1),
            side("right", 2),
            Reactor::new("sink", FederateId(3))
                .input("left")
                .input("right")
                .reaction(Reaction::new("see").on("left").on("right")),
        ],
        connections: vec![
            Connection::new("source.out", "left.in"),
            Connection::new("source.out", "right.in").after(coorp_core::Duration::from_micros(500)),
            Connection::new("left.out", "sink.left"),
            Connection::new("right.out", "sink.right"),
        ],
    }
}

struct Host {
    graph: Arc<Graph>,
    count: u64,
    /// The number of values that the sink saw from each side, and the latest value.
    seen: [(u64, u64); 2],
}

/// Returns a value: its number, and bytes derived from the number. Every third value is small.
fn value(number: u64) -> Arc<Vec<u8>> {
    let length = if number.is_multiple_of(3) {
        1000
    } else {
        80_000 + number as usize % 7
    };
    let mut random = Random(number + 1);
    let mut bytes: Vec<u8> = (0..length / 8)
        .flat_map(|_| random.below(u64::MAX).to_le_bytes())
        .collect();
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    Arc::new(bytes)
}

/// Returns the number of a value, after checking that it is intact.
fn checked(bytes: &[u8]) -> u64 {
    let number = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    assert!(bytes == value(number).as_slice(), "a torn value");
    number
}

impl Host {
    fn read(&self, name: &str, inputs: &dyn Inputs<Arc<Vec<u8>>>) -> Option<u64> {
        match inputs.get(self.graph.find(name).unwrap())? {
            Input::Here(object) => Some(checked(object)),
            Input::From(received) => Some(checked(received.part(0).unwrap())),
            Input::Present => panic!("{name} has a value"),
        }
    }
}

impl Reactions for Host {
    type Object = Arc<Vec<u8>>;

    fn run(
        &mut self,
        _: Moment,
        ready: &[Ready],
        inputs: &dyn Inputs<Self::Object>,
    ) -> Result<Vec<Ran<Self::Object>>, String> {
        let graph = Arc::clone(&self.graph);
        let react = |ready: &Ready| {
            let set = match graph.reaction(ready.reaction).unwrap().name.as_str() {
                "source.count" => {
                    self.count += 1;
                    Some(("source.out", self.count))
                }
                "left.work" => self.read("left.in", inputs).map(|number| ("left.out", number)),
                "right.work" => self.read("right.in", inputs).map(|number| ("right.out", number)),
                _ => {
                    let sides = ["sink.left", "sink.right"].map(|side| self.read(side, inputs));
                    for (seen, number) in self.seen.iter_mut().zip(sides) {
                        let Some(number) = number else { continue };
                        assert_eq!(number, seen.1 + 1, "one after the other, and none lost");
                        *seen = (seen.0 + 1, number);
                    }
                    None
                }
            };
            let set = set.map(|(output, number)| (graph.find(output).unwrap(), value(number)));
            let effects = Effects {
                sets: set.into_iter().collect(),
                ..Effects::default()
            };
            let (began, ended) = (Clock::default().now(), Clock::default().now());
            Ran { effects, began, ended }
        };
        Ok(ready.iter().map(react).collect())
    }

    fn encode(
        &mut self,
        _reaction: ReactionId,
        _output: ElementId,
        object: &Self::Object,
        sender: &mut Sender,
    ) -> Result<Encoded, String> {
        if object.len() <= INLINE_BYTES_MAX {
            return Ok(Encoded::Inline(Vec::new(), vec![object.to_vec()]));
        }
        let mut loan = sender
            .loan_parts(HEADER_RESERVED, &[object.len()])
            .map_err(|error| error.to_string())?;
        loan.part_mut(0).copy_from_slice(object);
        Ok(Encoded::Loan(loan))
    }
}

fn coordinator(domain: &str) -> CoordinatorSettings {
    CoordinatorSettings {
        domain: domain.into(),
        clock: Clock::default(),
        rti: RtiConfig {
            start_delay: coorp_core::Duration::from_millis(20),
            report_max: coorp_core::Duration::from_secs(3),
            ..RtiConfig::default()
        },
    }
}

/// Plays the role of a process: `rti`, or the number of a federate. Prints how it ended.
fn play(domain: &str, role: &str, survives: bool) {
    let graph = Arc::new(Graph::new(&program()).unwrap());
    let standby = Standby::new().unwrap();
    let coordinator = coordinator(domain);
    if role == "rti" {
        return println!(
            "{:?}",
            coordinate(&graph, &coordinator, &standby).map_err(|failure| failure.to_string())
        );
    }
    let federate = FederateId(role.parse().unwrap());
    let settings = Settings {
        domain: domain.into(),
        timeout: Some(coorp_core::Duration::from_millis(TICKS)),
        stop_on_death: !survives,
        ..Settings::default()
    };
    let mut host = Host {
        graph: Arc::clone(&graph),
        count: 0,
        seen: [(0, 0); 2],
    };
    let outcome = std::thread::scope(|scope| {
        scope.spawn(|| coordinate(&graph, &coordinator, &standby));
        let outcome = run(&graph, federate, &settings, &mut host, &Handle::new().unwrap());
        standby.quit();
        outcome
    });
    let end = Tag::at(coorp_core::Duration::from_millis(TICKS), 0);
    match outcome {
        Ok(report) if report.completed == Some(end) => println!("whole {:?} {:?}", host.seen, report.gone),
        Ok(report) => println!("ended {:?}", report.completed),
        Err(Failure::Died(names)) => println!("died {names:?}"),
        Err(Failure::Missing(names)) => println!("missing {names:?}"),
        Err(failure) => println!("failed {failure}"),
    }
}

#[test]
fn role() {
    if let Ok(role) = std::env::var(ROLE) {
        let mut words = role.split(' ');
        let mut word = || words.next().unwrap();
        play(word(), word(), word() == "survives");
    }
}

fn start(domain: &str, role: &str, survives: bool) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["role", "--exact", "--nocapture", "--test-threads=1"])
        .env(
            ROLE,
            format!("{domain} {role} {}", if survives { "survives" } else { "ends" }),
        )
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Waits for the end of a process, and kills it after the bound.
fn end(mut child: Child, since: Instant) -> Output {
    while child.try_wait().unwrap().is_none() {
        if since.elapsed() > BOUND {
            child.kill().unwrap();
            let output = child.wait_with_output().unwrap();
            panic!("no end: {}", String::from_utf8_lossy(&output.stdout));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    child.wait_with_output().unwrap()
}

/// Returns the addresses that processes of this program have. Memory has no name.
fn traces(domain: &str) -> Vec<String> {
    let sockets = std::fs::read_to_string("/proc/net/unix").unwrap();
    sockets
        .lines()
        .filter(|line| line.contains(domain))
        .map(str::to_owned)
        .collect()
}

fn one_run(seed: u64) {
    let mut random = Random((seed + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let domain = format!("deaths-{}-{seed}", std::process::id());
    let survives = random.below(2) == 0;
    let victim = seed % u64::from(FEDERATES + 1);
    let mut processes: Vec<_> = (0..FEDERATES)
        .map(|at| at.to_string())
        .chain(["rti".to_owned()])
        .map(|role| (start(&domain, &role, survives), role))
        .collect();
    let began = Instant::now();
    std::thread::sleep(Duration::from_micros(random.below(400_000)));
    let (mut killed, role) = processes.remove(victim as usize);
    let had_ended = killed.try_wait().unwrap().is_some();
    killed.kill().unwrap();
    killed.wait().unwrap();
    let name = format!("[\"f{role}\"]");
    for (mut process, other) in processes {
        if other == "rti" {
            // The process may have waited for the death of a coordinating federate, and finds none now.
            process.kill().unwrap();
            process.wait().unwrap();
            continue;
        }
        let output = end(process, began);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let what = format!(
            "seed {seed}, {role} killed, {other} says: {text}{}",
            String::from_utf8_lossy(&output.stderr)
        );
        assert!(output.status.success(), "{what}");
        if role == "rti" || had_ended {
            let is_whole = text.contains("whole [(0, 0), (0, 0)] []");
            let saw_all = text.contains(&format!("whole [({0}, {0}), ({1}, {1})] []", TICKS + 1, TICKS));
            assert!(
                other == "rti" || if other == "3" { saw_all } else { is_whole },
                "{what}"
            );
        } else if other != "rti" {
            let knows = ["died ", "missing ", "whole "].iter().any(|how| text.contains(how));
            assert!(knows && (text.contains(&name) || text.contains("whole ")), "{what}");
        }
    }
    assert_eq!(traces(&domain), [""; 0]);
}

#[test]
fn the_others_end_in_time_when_one_is_killed_at_any_moment() {
    let runs = std::env::var("COORP_LOCAL_FAULT_RUNS")
        .ok()
        .map(|runs| runs.parse().unwrap());
    for seed in 0..runs.unwrap_or(20) {
        let run = std::panic::catch_unwind(|| one_run(seed));
        assert!(run.is_ok(), "seed {seed}");
    }
}
