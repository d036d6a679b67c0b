//! The diamond on several robots: each has its own domain, and the network loses, delays and reorders control.

use super::*;
use crate::run::tests::{coordinator, diamond, domain, log_of, settings, Diamond, Log};
use crate::run::{coordinate, run, Coordination, CoordinatorSettings, Handle, Report, Settings, Standby};
use coorp_core::logical::Tag;
use std::sync::atomic::AtomicUsize;
use std::thread;

/// The constant latency of bulk.
const BULK: time::Duration = time::Duration::from_millis(4);

/// Packets and payloads in flight.
enum Flying {
    Packet(Vec<u8>),
    Bulk(String, Vec<u8>),
}

/// The faults of a network.
#[derive(Default)]
struct Faults {
    /// The number of lost packets per 100.
    loss: usize,
    /// The robot from which no bulk arrives.
    no_bulk_from: Option<RobotId>,
    /// A robot, and the time at which it is cut off.
    cut: Option<(RobotId, time::Instant)>,
}

struct Network {
    faults: Faults,
    flying: Mutex<Vec<(time::Instant, RobotId, RobotId, Flying)>>,
    sent: AtomicUsize,
    arrivals: Mutex<BTreeMap<RobotId, Arrivals>>,
    is_over: AtomicBool,
}

impl Network {
    fn new(faults: Faults) -> Arc<Self> {
        Arc::new(Network {
            faults,
            flying: Mutex::default(),
            sent: AtomicUsize::new(0),
            arrivals: Mutex::default(),
            is_over: AtomicBool::new(false),
        })
    }

    fn is_cut(&self, robots: [RobotId; 2]) -> bool {
        let cut = self.faults.cut;
        cut.is_some_and(|(robot, at)| robots.contains(&robot) && time::Instant::now() >= at)
    }

    /// Delivers what is due, until the test is over.
    fn deliver(&self) {
        while !self.is_over.load(SeqCst) {
            thread::sleep(time::Duration::from_micros(200));
            let now = time::Instant::now();
            let mut due = Vec::new();
            let mut flying = lock(&self.flying);
            let mut at = 0;
            while at < flying.len() {
                if flying[at].0 <= now {
                    due.push(flying.remove(at));
                } else {
                    at += 1;
                }
            }
            drop(flying);
            let arrivals = lock(&self.arrivals);
            for (_, from, to, what) in due {
                let Some(arrivals) = arrivals.get(&to).filter(|_| !self.is_cut([from, to])) else {
                    continue;
                };
                match what {
                    Flying::Packet(packet) => arrivals.packet(from, packet),
                    Flying::Bulk(name, body) => arrivals.bulk(from, name, body),
                }
            }
        }
    }
}

struct Robot {
    network: Arc<Network>,
    here: RobotId,
}

impl Link for Robot {
    fn send(&mut self, to: RobotId, packet: &[u8]) {
        let number = self.network.sent.fetch_add(1, SeqCst);
        // A fixed pattern, so that failures are reproducible.
        if number * 37 % 100 < self.network.faults.loss {
            return;
        }
        let delay = time::Duration::from_micros(300 + (number * 7_919 % 2_000) as u64);
        let at = time::Instant::now() + delay;
        lock(&self.network.flying).push((at, self.here, to, Flying::Packet(packet.to_vec())));
    }

    fn send_bulk(&mut self, to: RobotId, name: &str, slices: &[&[u8]]) -> Result<bool, String> {
        if self.network.faults.no_bulk_from != Some(self.here) {
            let bulk = Flying::Bulk(name.to_owned(), slices.concat());
            lock(&self.network.flying).push((time::Instant::now() + BULK, self.here, to, bulk));
        }
        Ok(true)
    }

    fn name(&self, robot: RobotId) -> String {
        format!("robot {}", robot.0)
    }
}

/// The results of the federates and the bridges, and everything that the sinks saw.
struct Outcome {
    federates: Vec<Result<Report, Failure>>,
    bridges: Vec<Result<(), Failure>>,
    log: Log,
}

/// Runs the diamond with each federate on its robot. The first robot has the RTI.
fn spread(robots: [u16; 4], bytes: usize, timeout_ms: u64, faults: Faults) -> Outcome {
    let graph = Arc::new(Graph::new(&diamond([0, 1, 2, 3])).unwrap());
    let robots: Vec<_> = robots.map(RobotId).into();
    let names: Vec<_> = (0..3).map(|_| domain()).collect();
    let network = Network::new(faults);
    let standby = Standby::new().unwrap();
    let coordinator_of = |name: &str| CoordinatorSettings {
        clock: Clock::TimeOfDay,
        ..coordinator(name, Coordination::Centralised)
    };
    thread::scope(|scope| {
        let mut bridges = Vec::new();
        let mut used = robots.clone();
        used.push(RobotId(0));
        used.sort_unstable();
        used.dedup();
        for here in used {
            let name = &names[usize::from(here.0)];
            let settings = BridgeSettings {
                silence_max: Duration::from_millis(400),
                ..BridgeSettings::new(name, robots.clone(), here, RobotId(0))
            };
            let bridge = Bridge::open(&graph, settings).unwrap();
            lock(&network.arrivals).insert(here, bridge.arrivals());
            let network = Arc::clone(&network);
            bridges.push(scope.spawn(move || bridge.run(&mut Robot { network, here })));
        }
        let delivery = scope.spawn(|| network.deliver());
        let rti = scope.spawn(|| coordinate(&graph, &coordinator_of(&names[0]), &standby));
        let federates: Vec<_> = graph
            .federate_ids()
            .map(|id| {
                let name = &names[usize::from(robots[usize::from(id.0)].0)];
                let settings = Settings {
                    clock: Clock::TimeOfDay,
                    ..settings(name, Duration::from_millis(timeout_ms), false)
                };
                let (graph, coordinator) = (&graph, coordinator_of(name));
                scope.spawn(move || {
                    // Each federate could coordinate, as in a separate process.
                    let standby = Standby::new().unwrap();
                    thread::scope(|scope| {
                        scope.spawn(|| coordinate(graph, &coordinator, &standby));
                        let mut host = Diamond::new(graph, bytes);
                        let outcome = run(graph, id, &settings, &mut host, &Handle::new().unwrap());
                        standby.quit();
                        (outcome, host.log)
                    })
                })
            })
            .collect();
        let mut outcome = Outcome {
            federates: Vec::new(),
            bridges: Vec::new(),
            log: Log::new(),
        };
        for federate in federates {
            let (federate, log) = federate.join().unwrap();
            outcome.federates.push(federate);
            outcome.log.extend(log);
        }
        outcome.bridges = bridges.into_iter().map(|bridge| bridge.join().unwrap()).collect();
        standby.quit();
        rti.join().unwrap().unwrap();
        network.is_over.store(true, SeqCst);
        delivery.join().unwrap();
        outcome
    })
}

#[test]
fn the_result_does_not_depend_on_robots() {
    let alone = log_of([0; 4], 8, true, Coordination::Centralised);
    for robots in [[0, 1, 0, 1], [1, 0, 0, 1], [1, 1, 1, 1], [1, 0, 2, 2], [1, 2, 0, 2]] {
        for (bytes, loss) in [(8, 0), (8, 20), (100_000, 0), (100_000, 20)] {
            let faults = Faults {
                loss,
                ..Faults::default()
            };
            let outcome = spread(robots, bytes, 50, faults);
            let told = format!("{robots:?}, {bytes} bytes, {loss} % lost");
            for federate in outcome.federates {
                let completed = federate.unwrap().completed;
                assert_eq!(completed, Some(Tag::at(Duration::from_millis(50), 0)), "{told}");
            }
            assert_eq!(outcome.log, alone, "{told}");
            for bridge in outcome.bridges {
                bridge.unwrap();
            }
        }
    }
}

#[test]
fn a_robot_that_is_cut_off_ends_the_program_on_both_sides() {
    for bytes in [8, 100_000] {
        let began = time::Instant::now();
        let cut = Some((RobotId(1), began + time::Duration::from_millis(600)));
        let faults = Faults {
            cut,
            ..Faults::default()
        };
        let outcome = spread([0, 1, 0, 1], bytes, 600_000, faults);
        for (federate, missing) in outcome
            .federates
            .into_iter()
            .zip([["f1", "f3"], ["f0", "f2"]].into_iter().cycle())
        {
            let Err(Failure::Died(mut names)) = federate else {
                panic!("{federate:?}");
            };
            names.sort_unstable();
            assert_eq!(names, missing);
        }
        assert!(!outcome.log.is_empty());
        assert!(matches!(&outcome.bridges[1], Err(Failure::Unreachable(name)) if name == "robot 0"));
    }
}

/// The sink's robot and the RTI's robot each wait for a value of a robot that dies before the value arrives.
#[test]
fn nobody_waits_for_the_value_of_a_robot_that_died() {
    for robots in [[1, 0, 0, 0], [1, 2, 2, 2]] {
        let began = time::Instant::now();
        let faults = Faults {
            loss: 0,
            no_bulk_from: Some(RobotId(1)),
            cut: Some((RobotId(1), began + time::Duration::from_millis(600))),
        };
        let outcome = spread(robots, 100_000, 600_000, faults);
        assert!(began.elapsed() < time::Duration::from_secs(10));
        for federate in &outcome.federates[1..] {
            assert!(
                matches!(federate, Err(Failure::Died(names)) if names == &["f0"]),
                "{federate:?}"
            );
        }
        assert!(outcome
            .log
            .iter()
            .all(|(_, left, right)| left.is_none() && right.is_none()));
    }
}

#[test]
fn a_bridge_without_the_other_robot_gives_up() {
    let graph = Graph::new(&diamond([0, 1, 2, 3])).unwrap();
    let robots: Vec<_> = [0, 1, 1, 1].map(RobotId).into();
    let name = domain();
    let settings = BridgeSettings {
        start_max: Duration::from_millis(50),
        ..BridgeSettings::new(&name, robots.clone(), RobotId(1), RobotId(0))
    };
    let bridge = Bridge::open(&graph, settings.clone()).unwrap();
    assert!(matches!(
        Bridge::open(&graph, settings.clone()),
        Err(Failure::Settings(_))
    ));
    let network = Network::new(Faults::default());
    let mut link = Robot {
        network,
        here: RobotId(1),
    };
    assert!(matches!(bridge.run(&mut link), Err(Failure::Unreachable(name)) if name == "robot 0"));
    let bridge = Bridge::open(&graph, settings).unwrap();
    bridge.arrivals().fail("the card is gone".into());
    assert!(matches!(bridge.run(&mut link), Err(Failure::Bridge(why)) if why == "the card is gone"));
    let few = BridgeSettings::new(&name, vec![RobotId(0)], RobotId(1), RobotId(0));
    assert!(matches!(Bridge::open(&graph, few), Err(Failure::Settings(_))));
}
