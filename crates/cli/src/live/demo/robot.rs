//! One robot of the demo: the team file's control loop and learning as in the simulator, over the live library.
//!
//! `coorp_sim::mpc` runs the control loop, and `coorp_sim::drlc` determines the bytes of learning. Perceptions and
//! commands start with their creation time and their sample or round, bulk with the length of its content. The rest is
//! the [`Content`]: nothing in the demo, what robots perceive and learn under `coorp learn --live`. Messages are padded to
//! the sizes of the team file.

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, Scope};
use std::time::Duration as Time;

use coorp_core::{Duration, Instant, RobotId};
use coorp_node::bulk::BulkMessage;
use coorp_node::control::{Message, Publisher};
use coorp_node::status::Completions;
use coorp_node::{real_time, Error, Node};
use coorp_sim::drlc::{Drlc, DrlcAction};
use coorp_sim::events::EventKind;
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
pub const SETTLE: Duration = Duration::from_secs(2);
/// Maximum time between two checks of a thread for the end of the run.
const LOOK_EVERY: Time = Time::from_millis(100);

/// What the team's messages contain, and the computations between them.
///
/// A robot calls it from its thread of control and from those of learning, at the same time. What takes less time than
/// the team file says is waited for, and what takes longer makes the run slower.
pub trait Content: Sync {
    /// All robots are present, and the run begins at this time of the monotonic clock.
    ///
    /// # Errors
    /// The content fails, as for all functions; this ends the robot's run.
    fn begins(&self, _at_ns: u64) -> Result<(), Failure> {
        Ok(())
    }

    /// Returns whether the run goes on. It is asked several times a second.
    fn goes_on(&self) -> bool {
        true
    }

    /// Returns this robot's perception.
    fn perceive(&self, _sample: u64) -> Result<Vec<u8>, Failure> {
        Ok(Vec::new())
    }

    /// Handles a robot's perception at the leader.
    fn on_perception(&self, _robot: RobotId, _sample: u64, _content: &[u8]) -> Result<(), Failure> {
        Ok(())
    }

    /// Infers, at the leader.
    fn infer(&self, _round: u64) -> Result<(), Failure> {
        Ok(())
    }

    /// Returns the command for a robot, and at once for the leader itself.
    fn command(&self, _round: u64, _robot: RobotId) -> Result<Vec<u8>, Failure> {
        Ok(Vec::new())
    }

    /// Handles this robot's command.
    fn on_command(&self, _round: u64, _content: &[u8]) -> Result<(), Failure> {
        Ok(())
    }

    /// Handles an event of learning, at the leader, in the order in which the simulator would report it.
    fn on_event(&self, _kind: EventKind, _robot: RobotId) -> Result<(), Failure> {
        Ok(())
    }

    /// Returns the partition or the model for a robot, at the leader.
    fn to_worker(&self, _robot: RobotId) -> Result<Vec<u8>, Failure> {
        Ok(Vec::new())
    }

    /// Handles this robot's partition of a batch.
    fn on_partition(&self, _content: &[u8]) -> Result<(), Failure> {
        Ok(())
    }

    /// Handles the model of a round.
    fn on_model(&self, _content: &[u8]) -> Result<(), Failure> {
        Ok(())
    }

    /// Trains, and returns this robot's update. The leader keeps its own.
    fn train(&self) -> Result<Vec<u8>, Failure> {
        Ok(Vec::new())
    }

    /// Handles a robot's update at the leader, before the event that reports it.
    fn on_update(&self, _robot: RobotId, _content: &[u8]) -> Result<(), Failure> {
        Ok(())
    }
}

/// Messages without content.
pub struct Empty;

impl Content for Empty {}

/// A robot's part in one run.
pub struct Part<'a> {
    pub node: &'a Node,
    pub team: &'a Team,
    pub me: RobotId,
    /// Whether the policy runs control.
    pub control: bool,
    /// Whether the policy runs bulk.
    pub bulk: bool,
    /// Time from the start to the measured time.
    pub settle: Duration,
    /// The measured time.
    pub length: Duration,
    pub content: &'a dyn Content,
}

/// Waits for all robots, then takes part until the end of the run.
///
/// # Errors
/// The robots do not find one another, or the live library or the content fails.
pub fn run(part: &Part<'_>) -> Result<(Record, Span), Failure> {
    let start = meet(part)?;
    part.content.begins(start)?;
    let from_ns = start + part.settle.as_nanos();
    let span = Span {
        from_ns,
        to_ns: from_ns + part.length.as_nanos(),
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
    // Unless the content ended the run.
    let to_ns = span.to_ns.min(now_ns()).max(from_ns);
    Ok((record, Span { from_ns, to_ns }))
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
    /// An update and its content.
    Update(RobotId, Vec<u8>),
    Trained(RobotId),
    Failed(Failure),
}

impl Run<'_> {
    fn goes_on(&self) -> bool {
        now_ns() < self.span.to_ns && !self.broke_off.load(Ordering::Relaxed) && self.part.content.goes_on()
    }

    /// Sleeps, but not beyond the end of the run.
    fn sleep_until(&self, at_ns: u64) {
        while now_ns() < at_ns && self.goes_on() {
            thread::sleep(until(at_ns).min(LOOK_EVERY));
        }
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
                    self.part
                        .content
                        .on_perception(message.from, sample, content(&message, 2))?;
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
                        let ends_ns = now_ns() + time.as_nanos();
                        self.part.content.infer(round)?;
                        thread::sleep(until(ends_ns));
                        noted.rounds.push((round, start.as_nanos()));
                        leader.on_inferred();
                    }
                    LeaderAction::SendCommand(robot, Command { round, newest }) => {
                        if let Some(publisher) = publishers.get(&robot) {
                            let content = self.part.content.command(round, robot)?;
                            publisher.put(&filled(&[now_ns(), round, newest], &content, control.command_bytes))?;
                        }
                    }
                    LeaderAction::Inferred(round) => {
                        let content = self.part.content.command(round, self.part.me)?;
                        self.part.content.on_command(round, &content)?;
                        // Without learning there is no receiver.
                        drop(loops.send(Event::Loop));
                    }
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
                    self.part.content.on_command(round, content(&message, 3))?;
                    worker.on_command(newest, Instant::from_nanos(now));
                }
            } else {
                worker.on_deadline(Instant::from_nanos(now_ns()));
            }
            while let Some(sample) = worker.poll() {
                let content = self.part.content.perceive(sample)?;
                perceptions.put(&filled(&[now_ns(), sample], &content, control.perception_bytes))?;
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
        let mut epochs = vec![self.start];
        thread::scope(|scope| {
            scope.spawn(|| {
                // The caller owns the receiver of the events.
                let _ = self
                    .hear_updates(events)
                    .map_err(|failure| events.send(Event::Failed(failure)));
            });
            // If this thread fails, the others end too.
            self.or_break_off(self.run_epochs(scope, learning, events, heard, &mut epochs))
        })?;
        Ok(epochs)
    }

    /// Takes the robots' updates until the end of the run.
    fn hear_updates(&self, events: &Sender<Event>) -> Result<(), Failure> {
        let receiver = self.part.node.bulk_receiver()?;
        while self.goes_on() {
            if let Some(message) = receiver.recv(Some(LOOK_EVERY)) {
                let _ = events.send(Event::Update(message.from, taken(&message)?));
            }
        }
        Ok(())
    }

    fn run_epochs<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        learning: Learning,
        events: &'scope Sender<Event>,
        heard: &mpsc::Receiver<Event>,
        epochs: &mut Vec<u64>,
    ) -> Result<(), Failure> {
        let mut drlc = Drlc::new(self.part.team, learning, self.start);
        while self.goes_on() {
            while let Some(action) = drlc.poll() {
                self.act(scope, &learning, action, events, epochs)?;
            }
            match heard.recv_timeout(LOOK_EVERY) {
                Ok(Event::Loop) => drlc.on_loop(),
                Ok(Event::BatchFull) => drlc.on_batch_full(),
                Ok(Event::Delivered(robot, delivered)) => {
                    delivered?;
                    drlc.on_arrived_at_worker(robot);
                }
                Ok(Event::Update(robot, content)) => {
                    self.part.content.on_update(robot, &content)?;
                    drlc.on_trained(robot);
                    drlc.on_arrived_at_leader(robot);
                }
                Ok(Event::Trained(robot)) => drlc.on_trained(robot),
                Ok(Event::Failed(failure)) => return Err(failure),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
            }
        }
        Ok(())
    }

    fn act<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        learning: &Learning,
        action: DrlcAction,
        events: &'scope Sender<Event>,
        epochs: &mut Vec<u64>,
    ) -> Result<(), Failure> {
        match action {
            DrlcAction::ToWorker(robot, bytes) => {
                let delivery = self.send(robot, &self.part.content.to_worker(robot)?, bytes)?;
                let events = events.clone();
                thread::spawn(move || {
                    let _ = events.send(Event::Delivered(robot, delivery.wait()));
                });
            }
            DrlcAction::Train(robot, time) if robot == self.part.me => {
                scope.spawn(move || {
                    let ends_ns = now_ns() + time.as_nanos();
                    let trained = self.part.content.train();
                    self.sleep_until(ends_ns);
                    // After the end of the run there is no receiver.
                    let _ = events.send(trained.map_or_else(Event::Failed, |_| Event::Trained(robot)));
                });
            }
            DrlcAction::Collect if !self.part.control => {
                // The batch fills as fast as from a control loop.
                let period = self.part.team.control.map_or(Duration::ZERO, |control| control.period);
                let full_ns = now_ns() + (period * u64::from(learning.batch_loops)).as_nanos();
                scope.spawn(move || {
                    self.sleep_until(full_ns);
                    let _ = events.send(Event::BatchFull);
                });
            }
            DrlcAction::EpochEnded => epochs.push(now_ns()),
            DrlcAction::Happened(kind, robot, _) => self.part.content.on_event(kind, robot)?,
            // The other robots train and send on their own.
            DrlcAction::Train(..) | DrlcAction::ToLeader(..) | DrlcAction::Collect => {}
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
            let content = taken(&message)?;
            // If no round is left, this is the next partition; otherwise it is a round's model.
            if rounds_left == 0 {
                self.part.content.on_partition(&content)?;
                rounds_left = learning.rounds;
            } else {
                self.part.content.on_model(&content)?;
                rounds_left -= 1;
            }
            if rounds_left > 0 {
                let normal: f64 = StandardNormal.sample(&mut rng);
                let ends_ns = now_ns() + spread(median, normal * learning.training_sigma).as_nanos();
                let update = self.part.content.train()?;
                self.sleep_until(ends_ns);
                let bytes = learning.parameters * u64::from(learning.bytes_per_parameter);
                drop(self.send(self.part.team.leader, &update, bytes)?);
            }
        }
        Ok(())
    }

    /// Sends content, padded to `bytes` with its length in front.
    fn send(&self, to: RobotId, content: &[u8], bytes: u64) -> Result<coorp_node::bulk::Delivery, Error> {
        let name = &self.part.team.robots[usize::from(to.0)].name;
        let mut stream = self.part.node.bulk_stream(name, "learning")?;
        stream.write(&filled(&[content.len() as u64], content, bytes))?;
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

/// Returns a message of these numbers and this content, padded to `bytes`.
fn filled(numbers: &[u64], content: &[u8], bytes: u64) -> Vec<u8> {
    let own = 8 * numbers.len() + content.len();
    let length = usize::try_from(bytes).unwrap_or(0).max(own);
    let mut message = Vec::with_capacity(length);
    message.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
    message.extend_from_slice(content);
    message.resize(length, 0);
    message
}

/// Returns the number at index `place` of a control message.
fn number(message: &Message, place: usize) -> Option<u64> {
    number_of(message.bytes(), place)
}

fn number_of(bytes: &[u8], place: usize) -> Option<u64> {
    let bytes = bytes.get(8 * place..8 * place + 8)?;
    bytes.try_into().ok().map(u64::from_le_bytes)
}

/// Returns what follows after the numbers of a control message, with its padding.
fn content(message: &Message, numbers: usize) -> &[u8] {
    message.bytes().get(8 * numbers..).unwrap_or_default()
}

/// Takes a bulk message, and returns its content.
fn taken(message: &BulkMessage) -> Result<Vec<u8>, Failure> {
    let bytes = message
        .take()
        .map_err(|error| failed(format_args!("cannot take bulk: {error}")))?;
    content_of(bytes).ok_or_else(|| failed("bulk without the length of its content"))
}

/// Returns the content of a bulk message, without its length and padding.
fn content_of(mut bytes: Vec<u8>) -> Option<Vec<u8>> {
    let length = usize::try_from(number_of(&bytes, 0)?).ok()?;
    let end = length.checked_add(8).filter(|end| *end <= bytes.len())?;
    bytes.truncate(end);
    bytes.drain(..8);
    Some(bytes)
}

/// Returns the monotonic clock, which all processes of the machine share.
fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Returns the time whose logarithm exceeds the median's by `off`.
fn spread(median: Duration, off: f64) -> Duration {
    Duration::from_secs_f64(median.as_secs_f64() * off.exp())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_comes_back_without_its_padding() {
        for (content, bytes) in [(&b"tensor"[..], 100), (b"tensor", 3), (b"", 8), (b"", 0)] {
            let sent = filled(&[content.len() as u64], content, bytes);
            assert_eq!(sent.len() as u64, bytes.max(8 + content.len() as u64));
            assert_eq!(content_of(sent).as_deref(), Some(content));
        }
    }

    #[test]
    fn bulk_that_is_too_short_for_its_content_has_none() {
        for sent in [&b""[..], b"short", &9_u64.to_le_bytes(), &u64::MAX.to_le_bytes()] {
            assert_eq!(content_of(sent.to_vec()), None);
        }
    }
}
