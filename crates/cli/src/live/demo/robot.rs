//! One robot of the demo: the team file's control loop and learning as in the simulator, over the live library.
//!
//! `coorp_sim::mpc` runs the control loop, and `coorp_sim::drlc` determines the bytes of learning. Message contents are
//! meaningless, except that perceptions and commands start with their creation time and their sample or round.

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration as Time;

use coorp_core::{Duration, Instant, RobotId};
use coorp_node::control::{Message, Publisher};
use coorp_node::status::Completions;
use coorp_node::{real_time, Error, Node};
use coorp_sim::drlc::{Drlc, DrlcAction};
use coorp_sim::mpc::{Command, Leader, LeaderAction, Perception, Worker};
use coorp_team::{Control, Learning, Team};
use rand::SeedableRng;
use rand_distr::{Distribution, StandardNormal};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::record::{Bin, Record, Span, BIN_NS};
use crate::failure::Failure;

/// Maximum time for all robots to find one another.
const FIND_MAX: Time = Time::from_secs(30);
/// Time between the announcement of the start and the start.
const NOTICE_NS: u64 = 1_000_000_000;
/// Effects of the start have settled after this time.
const SETTLE_NS: u64 = 2_000_000_000;
/// Maximum time between two checks of a thread for the end of the run.
const LOOK_EVERY: Time = Time::from_millis(100);

/// A robot's part in one run.
pub struct Part<'a> {
    pub node: &'a Node,
    pub team: &'a Team,
    pub me: RobotId,
    /// Whether the policy runs control.
    pub control: bool,
    /// Whether the policy runs bulk.
    pub bulk: bool,
    /// The measured time.
    pub length: Duration,
}

/// Waits for all robots, then takes part until the end of the run.
///
/// # Errors
/// The robots do not find one another, or the live library fails.
pub fn run(part: &Part<'_>) -> Result<(Record, Span), Failure> {
    let start = meet(part)?;
    let span = Span {
        from_ns: start + SETTLE_NS,
        to_ns: start + SETTLE_NS + part.length.as_nanos(),
    };
    let run = Run {
        part,
        start,
        span,
        broke_off: AtomicBool::new(false),
    };
    let leads = part.me == part.team.leader;
    let (events, heard) = mpsc::channel();
    let mut record = Record::default();
    thread::scope(|scope| {
        let control = part.team.control.filter(|_| part.control).map(|control| {
            let (run, loops) = (&run, events.clone());
            scope.spawn(move || {
                run.or_break_off(if leads {
                    run.lead(control, &loops)
                } else {
                    run.follow(control)
                })
            })
        });
        let learning = part.team.learning.filter(|_| part.bulk).map(|learning| {
            let run = &run;
            scope.spawn(move || {
                run.or_break_off(if leads {
                    run.teach(learning, &events, &heard)
                } else {
                    run.learn(learning).map(|()| Vec::new())
                })
            })
        });
        record.bins = run.watch();
        let control = control.map(|thread| thread.join().unwrap_or_else(|_| Err(panicked())));
        let learning = learning.map(|thread| thread.join().unwrap_or_else(|_| Err(panicked())));
        if let Some(noted) = control.transpose()? {
            (record.rounds, record.arrivals, record.latencies) = (noted.rounds, noted.arrivals, noted.latencies);
        }
        record.epochs = learning.transpose()?.unwrap_or_default();
        Ok::<(), Failure>(())
    })?;
    let completions = part.node.status()?.bulk.map(|bulk| bulk.completions);
    let known = completions.filter(|completions| *completions != Completions::Unknown);
    record.completions = known.map(|known| known.to_string());
    Ok((record, span))
}

/// Waits until all robots are present; the leader then announces the start.
fn meet(part: &Part<'_>) -> Result<u64, Failure> {
    let until = now_ns() + FIND_MAX.as_nanos() as u64;
    if part.me != part.team.leader {
        let word = part.node.control_subscriber("demo-start")?;
        let start = word.recv(Some(2 * FIND_MAX)).and_then(|message| number(&message, 0));
        return start.ok_or_else(|| failed("the leader never announced the start"));
    }
    let word = part.node.control_publisher("demo-start", None)?;
    loop {
        let here = part.node.status()?.alive.len();
        if here >= part.team.robots.len() {
            break;
        }
        if now_ns() >= until {
            let robots = part.team.robots.len();
            let within_s = FIND_MAX.as_secs();
            return Err(failed(format_args!(
                "{here} of {robots} robots found one another in {within_s} s"
            )));
        }
        thread::sleep(LOOK_EVERY);
    }
    let start = now_ns() + NOTICE_NS;
    while now_ns() < start {
        word.put(&start.to_le_bytes())?;
        thread::sleep(LOOK_EVERY);
    }
    Ok(start)
}

struct Run<'a> {
    part: &'a Part<'a>,
    start: u64,
    span: Span,
    broke_off: AtomicBool,
}

/// The control loop's records.
#[derive(Default)]
struct Noted {
    rounds: Vec<(u64, u64)>,
    arrivals: Vec<(u64, u64)>,
    latencies: Vec<(u64, u64)>,
}

/// Events for the leader's learning.
enum Event {
    Loop,
    BatchFull,
    Delivered(RobotId, Result<(), Error>),
    Update(RobotId),
    Trained(RobotId),
}

impl Run<'_> {
    fn goes_on(&self) -> bool {
        now_ns() < self.span.to_ns && !self.broke_off.load(Ordering::Relaxed)
    }

    fn or_break_off<T>(&self, outcome: Result<T, Failure>) -> Result<T, Failure> {
        if outcome.is_err() {
            self.broke_off.store(true, Ordering::Relaxed);
        }
        outcome
    }

    // --- the control loop -------------------------------------------------------------------------------------

    /// Runs the leader's control loop.
    fn lead(&self, control: Control, loops: &Sender<Event>) -> Result<Noted, Failure> {
        let perceptions = self.part.node.control_subscriber("perception")?;
        let publisher = |robot| Ok::<_, Error>((robot, self.part.node.control_publisher(&command(robot), None)?));
        let publishers: BTreeMap<RobotId, Publisher> = self.others().map(publisher).collect::<Result<_, _>>()?;
        real_time();
        // Sleeps stand for work, which ends on time; so the timer slack must not prolong them.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        let mut leader = Leader::new(self.part.team, control, self.start);
        let mut noted = Noted::default();
        let mut deadline = None;
        while self.goes_on() {
            if let Some(message) = perceptions.recv(Some(deadline.map_or(LOOK_EVERY, until))) {
                let now = now_ns();
                if let Some((made_at, sample)) = number(&message, 0).zip(number(&message, 1)) {
                    noted.latencies.push((now, now.saturating_sub(made_at)));
                    let made_at = Instant::from_nanos(made_at);
                    leader.on_perception(message.from, Perception { sample, made_at }, Instant::from_nanos(now));
                }
            }
            if deadline.is_some_and(|deadline| now_ns() >= deadline) {
                deadline = None;
                leader.on_deadline(Instant::from_nanos(now_ns()));
            }
            while let Some(action) = leader.poll() {
                match action {
                    LeaderAction::Wait(until) => deadline = Some(until.as_nanos()),
                    LeaderAction::Infer { round, start, time, .. } => {
                        thread::sleep(Time::from_nanos(time.as_nanos()));
                        noted.rounds.push((round, start.as_nanos()));
                        leader.on_inferred();
                    }
                    LeaderAction::SendCommand(robot, Command { round, newest }) => {
                        if let Some(publisher) = publishers.get(&robot) {
                            publisher.put(&filled(&[now_ns(), round, newest], control.command_bytes))?;
                        }
                    }
                    // Without learning there is no receiver.
                    LeaderAction::Inferred(_) => drop(loops.send(Event::Loop)),
                }
            }
        }
        Ok(noted)
    }

    /// Runs another robot's control loop.
    fn follow(&self, control: Control) -> Result<Noted, Failure> {
        let perceptions = self.part.node.control_publisher("perception", Some(control.period))?;
        let commands = self.part.node.control_subscriber(&command(self.part.me))?;
        real_time();
        let start = Instant::from_nanos(self.start);
        let mut worker = Worker::new(self.part.team, control, self.part.me, start, self.start);
        let mut noted = Noted::default();
        while self.goes_on() {
            if let Some(message) = commands.recv(Some(until(worker.next_deadline().as_nanos()))) {
                let now = now_ns();
                let numbers = [0, 1, 2].map(|place| number(&message, place));
                if let [Some(made_at), Some(round), Some(newest)] = numbers {
                    noted.latencies.push((now, now.saturating_sub(made_at)));
                    noted.arrivals.push((round, now));
                    worker.on_command(newest, Instant::from_nanos(now));
                }
            } else {
                worker.on_deadline(Instant::from_nanos(now_ns()));
            }
            while let Some(sample) = worker.poll() {
                perceptions.put(&filled(&[now_ns(), sample], control.perception_bytes))?;
            }
        }
        Ok(noted)
    }

    // --- learning ---------------------------------------------------------------------------------------------

    /// Runs the leader's learning and returns the start of each epoch.
    fn teach(
        &self,
        learning: Learning,
        events: &Sender<Event>,
        heard: &mpsc::Receiver<Event>,
    ) -> Result<Vec<u64>, Failure> {
        let mut drlc = Drlc::new(self.part.team, learning, self.start);
        let mut epochs = vec![self.start];
        thread::scope(|scope| {
            scope.spawn(|| {
                let receiver = self.part.node.bulk_receiver()?;
                while self.goes_on() {
                    if let Some(message) = receiver.recv(Some(LOOK_EVERY)) {
                        let from = message.from;
                        message
                            .take()
                            .map_err(|error| failed(format_args!("cannot take bulk: {error}")))?;
                        // This function owns the receiver.
                        let _ = events.send(Event::Update(from));
                    }
                }
                Ok::<(), Failure>(())
            });
            while self.goes_on() {
                while let Some(action) = drlc.poll() {
                    self.act(&learning, action, events, &mut epochs)?;
                }
                match heard.recv_timeout(LOOK_EVERY) {
                    Ok(Event::Loop) => drlc.on_loop(),
                    Ok(Event::BatchFull) => drlc.on_batch_full(),
                    Ok(Event::Delivered(robot, delivered)) => {
                        delivered?;
                        drlc.on_arrived_at_worker(robot);
                    }
                    Ok(Event::Update(robot)) => {
                        drlc.on_trained(robot);
                        drlc.on_arrived_at_leader(robot);
                    }
                    Ok(Event::Trained(robot)) => drlc.on_trained(robot),
                    Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
                }
            }
            Ok::<(), Failure>(())
        })?;
        Ok(epochs)
    }

    fn act(
        &self,
        learning: &Learning,
        action: DrlcAction,
        events: &Sender<Event>,
        epochs: &mut Vec<u64>,
    ) -> Result<(), Failure> {
        let later = |time: Duration, event: Event| {
            let events = events.clone();
            thread::spawn(move || {
                thread::sleep(Time::from_nanos(time.as_nanos()));
                // After the end of the run there is no receiver.
                let _ = events.send(event);
            });
        };
        match action {
            DrlcAction::ToWorker(robot, bytes) => {
                let delivery = self.send(robot, bytes)?;
                let events = events.clone();
                thread::spawn(move || {
                    let _ = events.send(Event::Delivered(robot, delivery.wait()));
                });
            }
            DrlcAction::Train(robot, time) if robot == self.part.me => later(time, Event::Trained(robot)),
            DrlcAction::Collect if !self.part.control => {
                // The batch fills as fast as from a control loop.
                let period = self.part.team.control.map_or(Duration::ZERO, |control| control.period);
                later(period * u64::from(learning.batch_loops), Event::BatchFull);
            }
            DrlcAction::EpochEnded => epochs.push(now_ns()),
            // The other robots train and send on their own.
            DrlcAction::Train(..) | DrlcAction::ToLeader(..) | DrlcAction::Collect | DrlcAction::Happened(..) => {}
        }
        Ok(())
    }

    /// Runs another robot's learning.
    fn learn(&self, learning: Learning) -> Result<(), Failure> {
        let receiver = self.part.node.bulk_receiver()?;
        let median = self.part.team.robots[usize::from(self.part.me.0)]
            .training
            .unwrap_or(learning.training);
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(self.start ^ (u64::from(self.part.me.0) << 32));
        let mut rounds_left = 0;
        while self.goes_on() {
            let Some(message) = receiver.recv(Some(LOOK_EVERY)) else {
                continue;
            };
            message
                .take()
                .map_err(|error| failed(format_args!("cannot take bulk: {error}")))?;
            // If no round is left, this is the next partition; otherwise it is a round's model.
            rounds_left = if rounds_left == 0 {
                learning.rounds
            } else {
                rounds_left - 1
            };
            if rounds_left > 0 {
                let normal: f64 = StandardNormal.sample(&mut rng);
                thread::sleep(spread(median, normal * learning.training_sigma));
                let update = learning.parameters * u64::from(learning.bytes_per_parameter);
                drop(self.send(self.part.team.leader, update.max(1))?);
            }
        }
        Ok(())
    }

    fn send(&self, to: RobotId, bytes: u64) -> Result<coorp_node::bulk::Delivery, Error> {
        let name = &self.part.team.robots[usize::from(to.0)].name;
        let mut stream = self.part.node.bulk_stream(name, "learning")?;
        stream.write(&vec![0x5a; usize::try_from(bytes).unwrap_or(usize::MAX)])?;
        Ok(stream.finish()?)
    }

    /// Samples the bulk counters until the end of the run.
    fn watch(&self) -> Vec<Bin> {
        let mut bins = Vec::new();
        let mut before = None;
        while self.goes_on() {
            thread::sleep(until((now_ns() / BIN_NS + 1) * BIN_NS));
            let Ok(Some(bulk)) = self.part.node.status().map(|status| status.bulk) else {
                continue;
            };
            let received = bulk.received_bytes - before.replace(bulk.received_bytes).unwrap_or(bulk.received_bytes);
            bins.push(Bin {
                number: now_ns() / BIN_NS - 1,
                received,
                waiting: bulk.waiting > 0,
                held: bulk.held,
            });
        }
        bins
    }

    fn others(&self) -> impl Iterator<Item = RobotId> + '_ {
        let robots = (0..).map(RobotId).take(self.part.team.robots.len());
        robots.filter(|robot| *robot != self.part.me)
    }
}

/// Returns the topic of a robot's commands.
fn command(robot: RobotId) -> String {
    format!("command-{}", robot.0)
}

/// Returns a message that starts with these numbers, padded to `bytes`.
fn filled(numbers: &[u64], bytes: u64) -> Vec<u8> {
    let mut message: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    let length = usize::try_from(bytes).unwrap_or(0).max(message.len());
    message.resize(length, 0);
    message
}

/// Returns the number at index `place` of a message.
fn number(message: &Message, place: usize) -> Option<u64> {
    let bytes = message.bytes();
    let bytes = bytes.get(8 * place..8 * place + 8)?;
    bytes.try_into().ok().map(u64::from_le_bytes)
}

/// Returns the monotonic clock, which all processes of the machine share.
fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Returns the time whose logarithm exceeds the median's by `off`.
fn spread(median: Duration, off: f64) -> Time {
    Time::from_nanos(Duration::from_secs_f64(median.as_secs_f64() * off.exp()).as_nanos())
}

fn until(at_ns: u64) -> Time {
    Time::from_nanos(at_ns.saturating_sub(now_ns()))
}

fn panicked() -> Failure {
    failed("a thread of the demo panicked")
}

fn failed(what: impl std::fmt::Display) -> Failure {
    Failure::Found(format!("failed: {what}"))
}
