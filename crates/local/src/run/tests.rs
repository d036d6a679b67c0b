//! The same program on one federate and on several, with small and large values, and without its coordinator.

use super::*;
use coorp_core::logical::program::{Connection, Program, Reaction, Reactor};
use coorp_core::logical::{ElementId, FederateId, Graph, ReactionId, RtiConfig};
use std::sync::Arc;
use std::time;

/// The observations of a sink: the tag, and the number in each value.
pub(super) type Log = Vec<(Tag, Option<u64>, Option<u64>)>;

/// Counts at each tick, and sends the count to both sides; `left` adds one and `right` doubles; `sink` sees both.
pub(super) fn diamond(place: [u16; 4]) -> Program {
    let on = |at: usize| FederateId(place[at]);
    let side = |name, at| {
        Reactor::new(name, on(at))
            .input("in")
            .output("out")
            .reaction(Reaction::new("work").on("in").effect("out"))
    };
    let federates = 1 + place.iter().max().copied().unwrap();
    Program {
        federates: (0..federates).map(|at| format!("f{at}")).collect(),
        reactors: vec![
            Reactor::new("source", on(0))
                .output("out")
                .timer("tick", Duration::ZERO, Some(Duration::from_millis(1)))
                .reaction(Reaction::new("count").on("tick").effect("out")),
            side("left", 1),
            side("right", 2),
            Reactor::new("sink", on(3))
                .input("left")
                .input("right")
                .reaction(Reaction::new("see").on("left").on("right")),
        ],
        connections: vec![
            Connection::new("source.out", "left.in"),
            Connection::new("source.out", "right.in").after(Duration::from_micros(1500)),
            Connection::new("left.out", "sink.left"),
            Connection::new("right.out", "sink.right"),
        ],
    }
}

/// The reactions of the diamond. Values are a number, in the first bytes of `bytes`.
pub(super) struct Diamond {
    graph: Arc<Graph>,
    bytes: usize,
    count: u64,
    pub log: Log,
    fails_at: u64,
    gone: Vec<String>,
    violations: u64,
}

fn number(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes[..8].try_into().unwrap())
}

impl Diamond {
    pub fn new(graph: &Arc<Graph>, bytes: usize) -> Self {
        Diamond {
            graph: Arc::clone(graph),
            bytes,
            count: 0,
            log: Vec::new(),
            fails_at: u64::MAX,
            gone: Vec::new(),
            violations: 0,
        }
    }

    fn read(&self, name: &str, inputs: &dyn Inputs<Arc<Vec<u8>>>) -> Option<u64> {
        match inputs.get(self.graph.find(name).unwrap())? {
            Input::Here(object) => Some(number(object)),
            Input::From(received) => {
                let part = received.part(0).unwrap();
                assert_eq!(part.len(), self.bytes);
                assert_eq!(received.payload().is_some(), self.bytes > INLINE_BYTES_MAX);
                assert!(part[8..].iter().all(|byte| *byte == part[0]), "a torn value");
                Some(number(part))
            }
            Input::Present => panic!("{name} has a value"),
        }
    }

    fn value(&self, number: u64) -> Arc<Vec<u8>> {
        let mut bytes = vec![number.to_le_bytes()[0]; self.bytes];
        bytes[..8].copy_from_slice(&number.to_le_bytes());
        Arc::new(bytes)
    }
}

impl Reactions for Diamond {
    type Object = Arc<Vec<u8>>;

    fn run(
        &mut self,
        moment: Moment,
        ready: &[Ready],
        inputs: &dyn Inputs<Self::Object>,
    ) -> Result<Vec<Ran<Self::Object>>, String> {
        let graph = Arc::clone(&self.graph);
        let mut all = Vec::new();
        for ready in ready {
            let name = graph.reaction(ready.reaction).unwrap().name.as_str();
            let sets = match name {
                "source.count" => {
                    self.count += 1;
                    if self.count == self.fails_at {
                        return Err("the camera is gone".into());
                    }
                    Some(("source.out", self.count))
                }
                "left.work" => self.read("left.in", inputs).map(|number| ("left.out", number + 1)),
                "right.work" => self.read("right.in", inputs).map(|number| ("right.out", number * 2)),
                _ => {
                    let sides = ["sink.left", "sink.right"].map(|side| self.read(side, inputs));
                    self.log.push((moment.tag, sides[0], sides[1]));
                    None
                }
            };
            let set = sets.map(|(output, number)| (graph.find(output).unwrap(), self.value(number)));
            let effects = Effects {
                sets: set.into_iter().collect(),
                ..Effects::default()
            };
            let now = Clock::default().now();
            let (began, ended) = (now, now);
            all.push(Ran { effects, began, ended });
        }
        Ok(all)
    }

    fn encode(
        &mut self,
        reaction: ReactionId,
        output: ElementId,
        object: &Self::Object,
        sender: &mut Sender,
    ) -> Result<Encoded, String> {
        let reactor = |name: &str| name.split('.').next().map(str::to_owned);
        let set_by = reactor(&self.graph.reaction(reaction).unwrap().name);
        assert_eq!(set_by, reactor(&self.graph.element(output).unwrap().name));
        if object.len() <= INLINE_BYTES_MAX {
            return Ok(Encoded::Inline(vec![1, 2, 3], vec![object.to_vec()]));
        }
        let mut loan = sender.loan_parts(HEADER_RESERVED + 3, &[object.len()]).unwrap();
        loan.part_mut(0).copy_from_slice(object);
        Ok(Encoded::Loan(loan))
    }

    fn on_violation(&mut self, violation: Violation) {
        assert!(violation.meant <= violation.reached);
        self.violations += 1;
    }

    fn on_gone(&mut self, federate: &str) {
        self.gone.push(federate.into());
    }
}

pub(super) fn domain() -> String {
    let mut random = [0; 8];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty()).unwrap();
    format!("run-test-{}", u64::from_le_bytes(random))
}

pub(super) fn settings(domain: &str, timeout: Duration, fast: bool) -> Settings {
    Settings {
        domain: domain.into(),
        fast,
        timeout: Some(timeout),
        ..Settings::default()
    }
}

pub(super) fn coordinator(domain: &str, coordination: Coordination) -> CoordinatorSettings {
    CoordinatorSettings {
        domain: domain.into(),
        clock: Clock::default(),
        rti: RtiConfig {
            start_delay: Duration::from_millis(20),
            report_max: Duration::from_secs(20),
            is_decentralised: coordination != Coordination::Centralised,
            ..RtiConfig::default()
        },
    }
}

/// Runs every federate of a program on a separate thread, and returns the result of each, with its reactions.
fn run_all(
    program: &Program,
    settings: &Settings,
    mut host: impl FnMut(&Arc<Graph>) -> Diamond,
) -> Vec<(Result<Report, Failure>, Diamond)> {
    let graph = Arc::new(Graph::new(program).unwrap());
    let hosts: Vec<_> = graph.federate_ids().map(|id| (id, host(&graph))).collect();
    let (standby, coordinator) = (
        Standby::new().unwrap(),
        coordinator(&settings.domain, settings.coordination),
    );
    std::thread::scope(|scope| {
        let rti = (hosts.len() > 1).then(|| scope.spawn(|| coordinate(&graph, &coordinator, &standby)));
        let threads: Vec<_> = hosts
            .into_iter()
            .map(|(id, mut host)| {
                let graph = &graph;
                scope.spawn(move || {
                    let handle = Handle::new().unwrap();
                    let outcome = run(graph, id, settings, &mut host, &handle);
                    (outcome, host)
                })
            })
            .collect();
        let outcomes = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        standby.quit();
        if let Some(rti) = rti {
            rti.join().unwrap().unwrap();
        }
        outcomes
    })
}

pub(super) fn log_of(place: [u16; 4], bytes: usize, fast: bool, coordination: Coordination) -> Log {
    let settings = Settings {
        coordination,
        ..settings(&domain(), Duration::from_millis(50), fast)
    };
    let outcomes = run_all(&diamond(place), &settings, |graph| Diamond::new(graph, bytes));
    let mut logs = Vec::new();
    for (outcome, host) in outcomes {
        assert_eq!(outcome.unwrap().completed, Some(Tag::at(Duration::from_millis(50), 0)));
        logs.extend(host.log);
    }
    logs
}

#[test]
fn the_result_depends_on_neither_placement_nor_speed_nor_size() {
    let alone = log_of([0; 4], 8, true, Coordination::Centralised);
    // 51 counts at whole milliseconds from the left, 49 at half milliseconds from the right.
    assert_eq!(alone.len(), 100);
    assert_eq!(alone[0], (Tag::START, Some(2), None));
    assert_eq!(alone[2], (Tag::at(Duration::from_micros(1500), 0), None, Some(2)));
    for place in [[0; 4], [0, 1, 1, 0], [0, 1, 2, 3]] {
        for (bytes, fast) in [(8, true), (8, false), (100_000, true), (100_000, false)] {
            for coordination in [Coordination::Centralised, Coordination::Decentralised { offset: None }] {
                if coordination != Coordination::Centralised && place == [0, 1, 1, 0] {
                    // The two federates form a zero-delay cycle.
                    continue;
                }
                let log = log_of(place, bytes, fast, coordination);
                assert_eq!(log, alone, "{place:?}, {bytes} bytes, fast {fast}, {coordination:?}");
            }
        }
    }
}

/// With an offset shorter than a message's latency, each late message is reported, and none is used.
#[test]
fn violations_are_reported_and_not_used() {
    let program = diamond([0, 1, 2, 3]);
    let settings = Settings {
        coordination: Coordination::Decentralised {
            offset: Some(Duration::ZERO),
        },
        ..settings(&domain(), Duration::from_millis(100), false)
    };
    let outcomes = run_all(&program, &settings, |graph| Diamond::new(graph, 8));
    let (mut seen, mut violated, mut reported) = (0, 0, 0);
    for (outcome, host) in outcomes {
        let sides = host
            .log
            .iter()
            .map(|(_, left, right)| u64::from(left.is_some()) + u64::from(right.is_some()));
        seen += sides.sum::<u64>();
        violated += outcome.unwrap().violations.values().map(|of| of.count).sum::<u64>();
        reported += host.violations;
    }
    assert_eq!(violated, reported);
    assert!(violated > 0, "nobody is that fast");
    // Values that a side does not use are missing at the sink: there are 101 values from the left, 99 from the right.
    assert_eq!(seen + violated, 200);
}

#[test]
fn logical_time_is_never_ahead_of_the_clock() {
    let program = diamond([0, 1, 2, 3]);
    let settings = settings(&domain(), Duration::from_millis(50), false);
    let began = time::Instant::now();
    for (outcome, _) in run_all(&program, &settings, |graph| Diamond::new(graph, 8)) {
        assert!(outcome.unwrap().reactions() > 0);
    }
    assert!(began.elapsed() >= time::Duration::from_millis(50));
}

#[test]
fn a_failed_reaction_ends_the_program_on_all_federates() {
    let program = diamond([0, 1, 2, 3]);
    let settings = settings(&domain(), Duration::from_secs(600), false);
    let outcomes = run_all(&program, &settings, |graph| Diamond {
        fails_at: 10,
        ..Diamond::new(graph, 8)
    });
    let (source, rest) = outcomes.split_first().unwrap();
    assert!(matches!(&source.0, Err(Failure::Reaction(what)) if what == "the camera is gone"));
    for (outcome, _) in rest {
        assert!(outcome.as_ref().unwrap().completed < Some(Tag::at(Duration::from_secs(600), 0)));
    }
}

#[test]
fn a_program_without_events_ends_by_itself() {
    let mut program = diamond([0, 1, 2, 3]);
    program.reactors[0].timers[0].period = None;
    let settings = Settings {
        domain: domain(),
        ..Settings::default()
    };
    for (outcome, _) in run_all(&program, &settings, |graph| Diamond::new(graph, 8)) {
        assert!(outcome.unwrap().completed > Some(Tag::at(Duration::from_micros(1500), 0)));
    }
    let mut alone = diamond([0; 4]);
    alone.reactors[0].timers[0].period = None;
    for (outcome, host) in run_all(&alone, &settings, |graph| Diamond::new(graph, 8)) {
        assert_eq!((outcome.unwrap().reactions(), host.log.len()), (5, 2));
    }
}

#[test]
fn a_request_from_outside_ends_the_program() {
    let graph = Arc::new(Graph::new(&diamond([0; 4])).unwrap());
    let handle = Handle::new().unwrap();
    let other = handle.clone();
    let stopper = std::thread::spawn(move || {
        std::thread::sleep(time::Duration::from_millis(20));
        other.request_stop();
    });
    let settings = Settings::default();
    let report = run(&graph, FederateId(0), &settings, &mut Diamond::new(&graph, 8), &handle).unwrap();
    assert!(report.completed >= Some(Tag::at(Duration::from_millis(10), 0)));
    stopper.join().unwrap();
}

/// The coordinator quits repeatedly; another takes over each time.
#[test]
fn coordinators_come_and_go() {
    let (program, domain) = (diamond([0, 1, 2, 3]), domain());
    let settings = settings(&domain, Duration::from_millis(400), false);
    let graph = Arc::new(Graph::new(&program).unwrap());
    let is_over = std::sync::atomic::AtomicBool::new(false);
    let coordinator = coordinator(&domain, Coordination::Centralised);
    let outcomes = std::thread::scope(|scope| {
        let (coordinator, is_over) = (&coordinator, &is_over);
        let graph = &graph;
        for _ in 0..2 {
            scope.spawn(move || {
                for _ in 0..6 {
                    let standby = Standby::new().unwrap();
                    let other = standby.clone();
                    std::thread::spawn(move || {
                        std::thread::sleep(time::Duration::from_millis(60));
                        other.quit();
                    });
                    coordinate(graph, coordinator, &standby).unwrap();
                }
                let standby = Standby::new().unwrap();
                let other = standby.clone();
                scope.spawn(move || {
                    while !is_over.load(std::sync::atomic::Ordering::SeqCst) {
                        std::thread::sleep(time::Duration::from_millis(10));
                    }
                    other.quit();
                });
                coordinate(graph, coordinator, &standby).unwrap();
            });
        }
        let run_one = |id: FederateId| {
            let settings = &settings;
            scope.spawn(move || {
                let mut host = Diamond::new(graph, 100_000);
                run(graph, id, settings, &mut host, &Handle::new().unwrap()).map(|_| host.log)
            })
        };
        let threads: Vec<_> = graph.federate_ids().map(run_one).collect();
        let outcomes: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        is_over.store(true, std::sync::atomic::Ordering::SeqCst);
        outcomes
    });
    let seen: Log = outcomes.into_iter().flat_map(Result::unwrap).collect();
    assert_eq!(seen.len(), 401 + 399);
    assert!(seen.windows(2).all(|pair| pair[0].0 < pair[1].0));
}

#[test]
fn a_federate_that_the_program_does_not_have() {
    let graph = Arc::new(Graph::new(&diamond([0; 4])).unwrap());
    let mut host = Diamond::new(&graph, 8);
    let outcome = run(
        &graph,
        FederateId(1),
        &Settings::default(),
        &mut host,
        &Handle::new().unwrap(),
    );
    assert!(matches!(outcome, Err(Failure::Settings(_))));
}

#[test]
fn a_missing_federate_is_named() {
    let (graph, domain) = (Arc::new(Graph::new(&diamond([0, 1, 1, 1])).unwrap()), domain());
    let mut settings_of_rti = coordinator(&domain, Coordination::Centralised);
    settings_of_rti.rti.report_max = Duration::from_millis(100);
    let settings = settings(&domain, Duration::from_secs(1), false);
    std::thread::scope(|scope| {
        let standby = Standby::new().unwrap();
        let rti = scope.spawn(|| {
            let standby = standby;
            coordinate(&graph, &settings_of_rti, &standby)
        });
        let mut host = Diamond::new(&graph, 8);
        let outcome = run(&graph, FederateId(0), &settings, &mut host, &Handle::new().unwrap());
        assert!(matches!(outcome, Err(Failure::Missing(names)) if names == ["f1"]));
        assert!(matches!(rti.join().unwrap(), Err(Failure::Missing(names)) if names == ["f1"]));
    });
}
