//! One robot of a fault run. Sends control to all robots at the control loop's period, sends bulk to the leader and to
//! others without pause, and records everything that it sees.
//!
//! It may be killed, frozen or cut off at any moment. It takes each bulk message by moving it to a file in its own
//! folder. That is atomic on disk, so a kill leaves no partial message. When it has finished its own messages and
//! starts no more, it says so; it ends when all robots have said so.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration as Time;

use coorp_core::policy::Policy;
use coorp_core::{Duration, RobotId};
use coorp_node::{Error, Node, Options};
use coorp_team::Team;
use rand::{Rng, RngCore, SeedableRng};
use rand_distr::{Distribution, Exp1};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::record::{Line, SharedClock, Writer};
use super::{Folders, POLICY};
use crate::failure::Failure;
use crate::live::load;
use crate::output;

/// Default if the team file has no control loop.
const PERIOD: Duration = Duration::from_millis(33);
const STATE_BYTES: usize = 500;
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
    /// Take the count of starts from the disk first
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
        lose_count(&state).map_err(|error| broken("cannot take the count of starts from the disk", error))?;
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
    record.write(&Line::Up { at: clock.now_ns() });
    let robot = Robot {
        me: node.place(),
        node,
        team,
        record,
        clock,
        stop: origin + args.stop.as_nanos(),
        seed: args.seed,
    };
    robot.run(&name, &folders, origin + args.stay.as_nanos())
}

/// Takes the count of starts from the disk, as an older copy of it would.
fn lose_count(state: &Path) -> std::io::Result<()> {
    match fs::remove_file(state.join("starts")) {
        // A robot that was killed before it had counted starts as if for the first time.
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

struct Robot {
    me: RobotId,
    node: Node,
    team: Team,
    record: Writer,
    clock: SharedClock,
    stop: u64,
    seed: u64,
}

impl Robot {
    /// Runs the robot, then ends the process.
    fn run(&self, name: &str, folders: &Folders, stay: u64) -> ! {
        let taken = folders.taken(name);
        thread::scope(|scope| {
            scope.spawn(|| self.watch());
            scope.spawn(|| or_end(self.publish()));
            scope.spawn(|| or_end(self.hear()));
            scope.spawn(|| or_end(self.take(&taken)));
            or_end(self.send());
            while self.clock.now_ns() < stay {
                thread::sleep(WAIT);
            }
            let settled = folders.settled(name);
            let told = fs::write(&settled, "");
            or_end(told.map_err(|error| Failure::Found(format!("failed: {}: {error}", settled.display()))));
            let others = || {
                self.team
                    .robots
                    .iter()
                    .all(|robot| folders.settled(&robot.name).exists())
            };
            while !others() {
                thread::sleep(WAIT);
            }
            // Give the receivers time to take what was reported as delivered.
            thread::sleep(5 * WAIT);
            std::process::exit(0)
        })
    }

    /// Publishes the robot's state.
    fn publish(&self) -> Result<(), Failure> {
        let control = self.team.control;
        let period = control.map_or(PERIOD, |control| control.period);
        let bytes = control.map_or(STATE_BYTES, |control| control.perception_bytes as usize);
        let publisher = self.node.control_publisher("state", Some(period))?;
        let mut message = vec![0; bytes.max(8)];
        let mut due = self.clock.now_ns();
        loop {
            let made_at = self.clock.now_ns();
            message[..8].copy_from_slice(&made_at.to_le_bytes());
            publisher.put(&message)?;
            // After standing still, do not catch up on missed messages.
            due = (due + period.as_nanos()).max(made_at);
            thread::sleep(Time::from_nanos(due.saturating_sub(self.clock.now_ns())));
        }
    }

    fn hear(&self) -> Result<(), Failure> {
        let subscriber = self.node.control_subscriber("state")?;
        loop {
            let Some(message) = subscriber.recv(None).filter(|message| message.from != self.me) else {
                continue;
            };
            let at = self.clock.now_ns();
            let made_at = message.bytes().get(..8).and_then(|bytes| bytes.try_into().ok());
            let made_at = made_at.map_or(0, u64::from_le_bytes);
            self.record.write(&Line::Heard {
                at,
                from: message.from.0,
                made_at,
            });
        }
    }

    /// Watches the permit and the leader.
    fn watch(&self) {
        let (mut may, mut last, mut leader) = (false, self.clock.now_ns(), None);
        for look in 0u32.. {
            let before = self.clock.now_ns();
            if before - last > GAP_MIN_NS {
                self.record.write(&Line::Gap { from: last, to: before });
            }
            let may_now = self.node.may_send_bulk();
            let at = self.clock.now_ns();
            match (may, may_now) {
                (_, true) => self.record.write(&Line::May { asked: before, at }),
                (true, false) => self.record.write(&Line::MayNot { at }),
                (false, false) => {}
            }
            (may, last) = (may_now, before);
            if look % LOOKS_A_LEADER == 0 {
                let leads = self.node.status().leader;
                if leads != leader {
                    self.record.write(&Line::Led { at, leader: leads });
                    leader = leads;
                }
            }
            thread::sleep(LOOK_EVERY);
        }
    }

    /// Takes arriving bulk messages into a folder.
    fn take(&self, folder: &Path) -> Result<(), Failure> {
        let receiver = self.node.bulk_receiver()?;
        for number in 0u32.. {
            let Some(message) = receiver.recv(None) else { continue };
            let file = folder.join(format!(
                "{}+{number}+{}+{}",
                self.record.start, message.from.0, message.name
            ));
            let taken = message.take_to(&file);
            taken.map_err(|error| Failure::Found(format!("failed: {}: {error}", file.display())))?;
        }
        Ok(())
    }

    /// Sends one bulk message after another, every second one to the current leader.
    fn send(&self) -> Result<(), Failure> {
        let stream = u64::from(self.me.0) << 32 | u64::from(self.record.start);
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(self.seed ^ stream << 16);
        let robots = self.team.robots.len() as u16;
        for number in 0u32.. {
            if self.clock.now_ns() >= self.stop {
                break;
            }
            let size: f64 = Exp1.sample(&mut rng);
            let size = (size * BULK_MEAN).clamp(BULK_MIN, BULK_MAX) as usize;
            let mut bytes = vec![0; size];
            rng.fill_bytes(&mut bytes);
            let other = RobotId((self.me.0 + rng.random_range(1..robots)) % robots);
            let other = (Some(other.0), self.team.robots[usize::from(other.0)].name.as_str());
            // A leader cannot send to "leader", and this robot may become the leader at any moment.
            let to_leader = number % 2 == 0 && !self.node.status().leads;
            let (to, to_name) = if to_leader { (None, "leader") } else { other };
            let name = format!("{}-{number}", self.record.start);
            let (to, mut stream) = match self.node.bulk_stream(to_name, &name) {
                Err(_) if to_leader => (other.0, self.node.bulk_stream(other.1, &name)?),
                stream => (to, stream?),
            };
            stream.write(&bytes)?;
            let hash = blake3::hash(&bytes).to_hex().to_string();
            drop(bytes);
            self.record.write(&Line::Begin {
                at: self.clock.now_ns(),
                name: name.clone(),
                to,
                bytes: size as u64,
                hash,
            });
            let why = stream
                .finish()
                .map_err(Error::from)?
                .wait()
                .err()
                .map(|error| error.to_string());
            self.record.write(&Line::Told {
                at: self.clock.now_ns(),
                name,
                why,
            });
        }
        Ok(())
    }
}

/// Ends the process after an error, which ends the run too: the other threads would wait forever.
fn or_end<T>(outcome: Result<T, Failure>) -> T {
    outcome.unwrap_or_else(|failure| {
        output::note(&failure.to_string());
        std::process::exit(1)
    })
}
