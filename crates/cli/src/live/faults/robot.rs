//! One robot of a fault run. Sends control to all robots at the control loop's period, sends bulk to the leader and to
//! others without pause, and records everything that it sees. When it has finished its own messages and starts no more,
//! it says so; it ends when all robots have said so.
//!
//! It runs in a process of its own ([`take_part`]) or in virtual time (`trial.rs`), and may be killed, frozen or cut off at
//! any moment. A process takes each bulk message by moving it to a file in its own folder. That is atomic on disk, so a
//! kill leaves no partial message.

use std::convert::Infallible;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration as Time;

use coorp_core::policy::Policy;
use coorp_core::{Duration, RobotId};
use coorp_node::bulk::BulkMessage;
use coorp_node::{Error, Node, Options};
use coorp_team::Team;
use rand::{Rng, RngCore, SeedableRng};
use rand_distr::{Distribution, Exp1};
use rand_xoshiro::Xoshiro256PlusPlus;
use tokio::time::sleep;

use super::record::{Line, SharedClock, Writer};
use super::rules::Taken;
use super::{Folders, POLICY};
use crate::failure::Failure;
use crate::live::load;

/// Default if the team file has no control loop.
const PERIOD: Duration = Duration::from_millis(33);
const STATE_BYTES: usize = 500;
/// The file with the count of starts, in the state folder.
pub const COUNT: &str = "starts";
/// Time between two checks of the permit.
const LOOK_EVERY: Time = Time::from_millis(1);
/// A longer time between two checks is recorded.
const GAP_MIN_NS: u64 = 20_000_000;
/// Checks of the permit per check of the leader.
const LOOKS_A_LEADER: u32 = 20;
const WAIT: Time = Time::from_millis(10);
/// Sizes of bulk messages.
const BULK_MEAN: f64 = 250e3;
const BULK_MIN: f64 = 20e3;
const BULK_MAX: f64 = 1_000e3;

/// Options of one robot's process.
#[derive(Debug, clap::Args)]
pub struct RobotArgs {
    file: PathBuf,
    #[arg(long)]
    folder: PathBuf,
    #[arg(long)]
    seed: u64,
    /// Start no bulk after this time since the run's start
    #[arg(long, value_parser = crate::number::parse_duration)]
    stop: Duration,
    /// Do not end before this time
    #[arg(long, value_parser = crate::number::parse_duration)]
    stay: Duration,
    /// Delete the count of starts from the disk first
    #[arg(long)]
    lose_count: bool,
}

/// Takes part until all robots have said that they are done.
///
/// # Errors
/// The robot cannot take part.
pub fn take_part(args: &RobotArgs) -> Result<(), Failure> {
    let clock = SharedClock::new();
    let broken = |what: &str, error: std::io::Error| Failure::Found(format!("failed: {what}: {error}"));
    let name = std::env::var("COORP_ROBOT")
        .map_err(|_| Failure::Input("error: only 'coorp emu --faults' starts this command".to_owned()))?;
    crate::live::log();
    let folders = Folders(args.folder.clone());
    let record = Writer::next(&folders.records(), &name).map_err(|error| broken("cannot create a record", error))?;
    record.write(&Line::Started { at: clock.now_ns() });
    let state = folders.state(&name);
    if args.lose_count {
        lose_count(&state).map_err(|error| broken("cannot delete the count of starts from the disk", error))?;
    }
    let origin = fs::read_to_string(folders.origin())
        .ok()
        .and_then(|text| text.parse().ok());
    let origin: u64 = origin.ok_or_else(|| Failure::Found("failed: the run's start time is missing".to_owned()))?;
    let mut team = load(&args.file)?;
    team.live.keys = folders.keys();
    let policy = Policy::named(POLICY).ok_or_else(|| Failure::Input(format!("error: no policy {POLICY}")))?;
    let node = Node::open(Options {
        team: team.clone(),
        robot: name.clone(),
        policy,
        insecure: false,
        state: Some(state),
    })?;
    let seat = Process {
        start: record.start,
        record,
        clock,
        taken: folders.taken(&name),
        name,
        robots: team.robots.iter().map(|robot| robot.name.clone()).collect(),
        folders,
    };
    let robot = Robot {
        node: Arc::new(node),
        team,
        start: seat.start,
        seat,
        stop: origin + args.stop.as_nanos(),
        seed: args.seed,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let runtime = runtime.map_err(|error| broken("cannot start a runtime", error))?;
    runtime.block_on(robot.run(origin + args.stay.as_nanos()))?;
    // Do not notify the others, as after a kill.
    std::process::exit(0)
}

/// Deletes the count of starts, as if an older copy of the disk had been restored.
///
/// # Errors
/// The file exists and cannot be removed.
fn lose_count(state: &Path) -> std::io::Result<()> {
    match fs::remove_file(state.join(COUNT)) {
        // A robot that was killed before its first count has no file.
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// The environment of a robot's program.
pub trait Seat {
    /// Returns the time on the clock of the whole run.
    fn now_ns(&self) -> u64;
    /// Records what the robot saw.
    fn write(&self, line: &Line);
    /// Takes a bulk message, the `number`th one of this start.
    ///
    /// # Errors
    /// It cannot be taken.
    fn take(&self, message: &BulkMessage, number: u32) -> io::Result<()>;
    /// Announces that this robot has finished.
    ///
    /// # Errors
    /// The announcement failed.
    fn settle(&self) -> io::Result<()>;
    /// Returns whether all robots have finished.
    fn all_settled(&self) -> bool;
}

/// A separate process.
struct Process {
    start: u32,
    record: Writer,
    clock: SharedClock,
    taken: PathBuf,
    name: String,
    robots: Vec<String>,
    folders: Folders,
}

impl Seat for Process {
    fn now_ns(&self) -> u64 {
        self.clock.now_ns()
    }

    fn write(&self, line: &Line) {
        self.record.write(line);
    }

    fn take(&self, message: &BulkMessage, number: u32) -> io::Result<()> {
        message.take_to(&self.taken.join(Taken::file(self.start, number, message)))
    }

    fn settle(&self) -> io::Result<()> {
        fs::write(self.folders.settled(&self.name), "")
    }

    fn all_settled(&self) -> bool {
        self.robots.iter().all(|robot| self.folders.settled(robot).exists())
    }
}

/// A robot's program.
pub struct Robot<S> {
    pub node: Arc<Node>,
    pub team: Team,
    pub seat: S,
    /// The number of this start.
    pub start: u32,
    /// The time from which it starts no more bulk.
    pub stop: u64,
    pub seed: u64,
}

impl<S: Seat> Robot<S> {
    /// Runs the robot until all have settled.
    ///
    /// # Errors
    /// The robot failed at something.
    pub async fn run(&self, stay: u64) -> Result<(), Failure> {
        self.seat.write(&Line::Up { at: self.seat.now_ns() });
        let own = async {
            self.send().await?;
            while self.seat.now_ns() < stay {
                sleep(WAIT).await;
            }
            self.seat
                .settle()
                .map_err(|error| failed("cannot announce that this robot is done", &error))?;
            while !self.seat.all_settled() {
                sleep(WAIT).await;
            }
            // Give the receivers time to take what was reported as delivered.
            sleep(5 * WAIT).await;
            Ok(())
        };
        let never = |ended: Result<Infallible, Failure>| ended.map(|never| match never {});
        tokio::select! {
            biased;
            ended = self.watch() => never(ended),
            ended = self.publish() => never(ended),
            ended = self.hear() => never(ended),
            ended = self.take() => never(ended),
            ended = own => ended,
        }
    }

    /// Publishes the robot's state.
    async fn publish(&self) -> Result<Infallible, Failure> {
        let control = self.team.control;
        let period = control.map_or(PERIOD, |control| control.period);
        let bytes = control.map_or(STATE_BYTES, |control| control.perception_bytes as usize);
        let publisher = self.node.control_publisher("state", Some(period))?;
        let mut message = vec![0; bytes.max(8)];
        let mut due = self.seat.now_ns();
        loop {
            let made_at = self.seat.now_ns();
            message[..8].copy_from_slice(&made_at.to_le_bytes());
            publisher.put(&message)?;
            // After standing still, do not catch up on missed messages.
            due = (due + period.as_nanos()).max(made_at);
            sleep(Time::from_nanos(due.saturating_sub(self.seat.now_ns()))).await;
        }
    }

    async fn hear(&self) -> Result<Infallible, Failure> {
        let subscriber = self.node.control_subscriber("state")?;
        loop {
            let message = subscriber.next().await;
            if message.from == self.node.place() {
                continue;
            }
            let at = self.seat.now_ns();
            let made_at = message.bytes().get(..8).and_then(|bytes| bytes.try_into().ok());
            let made_at = made_at.map_or(0, u64::from_le_bytes);
            self.seat.write(&Line::Heard {
                at,
                from: message.from.0,
                made_at,
            });
        }
    }

    /// Watches the permit and the leader.
    async fn watch(&self) -> Result<Infallible, Failure> {
        let (mut may, mut last, mut leader) = (false, self.seat.now_ns(), None);
        let mut look = 0u32;
        loop {
            let before = self.seat.now_ns();
            if before - last > GAP_MIN_NS {
                self.seat.write(&Line::Gap { from: last, to: before });
            }
            let may_now = self.node.may_send_bulk()?;
            let at = self.seat.now_ns();
            match (may, may_now) {
                (_, true) => self.seat.write(&Line::May { asked: before, at }),
                (true, false) => self.seat.write(&Line::MayNot { at }),
                (false, false) => {}
            }
            (may, last) = (may_now, before);
            if look.is_multiple_of(LOOKS_A_LEADER) {
                let leads = self.node.status()?.leader;
                if leads != leader {
                    self.seat.write(&Line::Led { at, leader: leads });
                    leader = leads;
                }
            }
            look = look.wrapping_add(1);
            sleep(LOOK_EVERY).await;
        }
    }

    /// Takes arriving bulk messages.
    async fn take(&self) -> Result<Infallible, Failure> {
        let receiver = self.node.bulk_receiver()?;
        let mut number = 0u32;
        loop {
            let message = receiver.next().await;
            let taken = self.seat.take(&message, number);
            taken.map_err(|error| failed(&format!("cannot take \"{}\"", message.name), &error))?;
            number = number.wrapping_add(1);
        }
    }

    /// Sends one bulk message after another, every second one to the current leader.
    async fn send(&self) -> Result<(), Failure> {
        let stream = u64::from(self.node.place().0) << 32 | u64::from(self.start);
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(self.seed ^ stream << 16);
        let robots = self.team.robots.len() as u16;
        for number in 0u32.. {
            if self.seat.now_ns() >= self.stop {
                break;
            }
            let size: f64 = Exp1.sample(&mut rng);
            let size = (size * BULK_MEAN).clamp(BULK_MIN, BULK_MAX) as usize;
            let mut bytes = vec![0; size];
            rng.fill_bytes(&mut bytes);
            let other = RobotId((self.node.place().0 + rng.random_range(1..robots)) % robots);
            let other = (Some(other.0), self.team.robots[usize::from(other.0)].name.as_str());
            // A leader cannot send to "leader", and this robot may become the leader at any moment.
            let to_leader = number % 2 == 0 && !self.node.status()?.leads;
            let (to, to_name) = if to_leader { (None, "leader") } else { other };
            let name = format!("{}-{number}", self.start);
            let (to, mut stream) = match self.node.bulk_stream(to_name, &name) {
                Err(_) if to_leader => (other.0, self.node.bulk_stream(other.1, &name)?),
                stream => (to, stream?),
            };
            stream.write(&bytes)?;
            let hash = blake3::hash(&bytes).to_hex().to_string();
            drop(bytes);
            self.seat.write(&Line::Begin {
                at: self.seat.now_ns(),
                name: name.clone(),
                to,
                bytes: size as u64,
                hash,
            });
            let why = stream
                .finish()
                .map_err(Error::from)?
                .await
                .err()
                .map(|error| error.to_string());
            self.seat.write(&Line::Told {
                at: self.seat.now_ns(),
                name,
                why,
            });
        }
        Ok(())
    }
}

fn failed(what: &str, error: &io::Error) -> Failure {
    Failure::Found(format!("failed: {what}: {error}"))
}
