//! The faults of a run, drawn from its seed: the same seed and team give the same schedule.
//!
//! Faults start after [`CALM`] and end by [`HEALED_BY`]; then everything must recover. The kind of the first fault
//! cycles with the seed, so a few seeds cover all kinds. The leader is hit as often as all other robots together. A
//! robot has one fault of its own at a time; faults of the air may overlap with all others. A third of the seeds omit
//! the robots' additional interfaces.
//!
//! In virtual time there are more kinds ([`Schedule::with_disks`]): disks that fill, and descriptors that run out. A robot
//! restarts with a full disk too, but not without descriptors. And there, a robot without power loses what its disk had not
//! synced.
//!
//! A clock step happens together with a restart. The robot's monotonic clock is shifted by a time namespace, and its
//! disk has lost the count of its starts. Left out: a step of the Unix clock itself, because all
//! namespaces share that clock. A running robot would not notice one, because it reads Unix time only at its start.

use std::ffi::OsString;
use std::fmt;

use coorp_core::{Duration, RobotId};
use coorp_emu::trouble::{Blow, What};
use coorp_team::{Change, Event, RateOverride, Team};
use rand::{Rng, SeedableRng};
use rand_distr::{Distribution, Exp1};
use rand_xoshiro::Xoshiro256PlusPlus;

/// By then the robots have found one another and bulk is flowing.
pub const CALM: Duration = Duration::from_millis(1_500);
/// The last fault is over by then.
pub const HEALED_BY: Duration = Duration::from_millis(3_600);
/// Number of kinds of faults.
const KINDS: u64 = 6;
/// Maximum number of faults in a run, and of those of disks and descriptors.
const FAULTS_MAX: usize = 4;
const DISK_FAULTS_MAX: usize = 2;
/// Bytes that others leave free on a full disk: none, fewer than the reserve, or few more than the reserve.
const ROOMS: [u64; 4] = [0, 10_000, 63_900_000, 64_200_000];
const FAULT_MIN: Duration = Duration::from_millis(50);
const FAULT_MAX: Duration = Duration::from_millis(1_400);
const FAULT_MEAN: Duration = Duration::from_millis(450);
/// Maximum clock step in seconds: a day is the longest time that the command line accepts.
const STEP_S_MAX: u32 = 86_400;

/// One fault.
#[derive(Clone, Debug, PartialEq)]
pub struct Fault {
    /// The start, relative to the programs' start.
    pub at: Duration,
    /// The end.
    pub until: Duration,
    pub what: Kind,
}

/// A kind of fault.
#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    /// The robot's process is killed, and restarted at the fault's end.
    Kill(RobotId),
    /// The same, but the robot restarts with its clocks ahead by this many seconds: see the module.
    ClockStep(RobotId, u32),
    /// The robot is off, with its cards and everything in their queues.
    PowerLoss(RobotId),
    /// The robot's process is stopped.
    Freeze(RobotId),
    /// These robots and the others cannot hear each other.
    Partition(Vec<RobotId>),
    /// All links of this interface lose this share of their frames.
    PathLoss(usize, f64),
    /// Others fill the robot's disk until this many bytes are left. In virtual time only.
    FullDisk(RobotId, u64),
    /// The robot's machine has no more descriptors for files and sockets. In virtual time only.
    NoDescriptors(RobotId),
}

impl Kind {
    /// Returns whether the fault ends the robot's process.
    pub fn kills(&self) -> bool {
        matches!(self, Kind::Kill(_) | Kind::ClockStep(..) | Kind::PowerLoss(_))
    }

    /// Returns the robot affected, which has no other fault of its own at that time.
    pub fn robot(&self) -> Option<RobotId> {
        match self {
            Kind::Kill(robot) | Kind::ClockStep(robot, _) | Kind::PowerLoss(robot) | Kind::Freeze(robot) => {
                Some(*robot)
            }
            Kind::NoDescriptors(robot) => Some(*robot),
            Kind::Partition(_) | Kind::PathLoss(..) | Kind::FullDisk(..) => None,
        }
    }
}

/// The faults of one run.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    /// The team of the run: possibly without additional interfaces, and with the air's faults as its script.
    pub team: Team,
    /// Sorted by start.
    pub faults: Vec<Fault>,
}

impl Schedule {
    /// Draws the schedule of a seed.
    pub fn draw(team: &Team, seed: u64) -> Schedule {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed ^ 0x006c_6976_6566_6175);
        let mut team = team.clone();
        if (seed / KINDS).is_multiple_of(3) {
            team.interfaces.clear();
        }
        let count = rng.random_range(1..=FAULTS_MAX);
        let mut faults: Vec<Fault> = Vec::with_capacity(count);
        for number in 0..count {
            let choice = if number == 0 { seed } else { rng.random() };
            let (at, until) = span(&mut rng);
            let what = kind(&mut rng, &team, choice);
            add(&mut faults, Fault { at, until, what });
        }
        faults.sort_by_key(|fault| fault.at);
        team.events = faults.iter().filter_map(event).collect();
        Schedule { team, faults }
    }

    /// Returns the same with faults of disks and descriptors.
    pub fn with_disks(mut self, seed: u64) -> Schedule {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed ^ 0x0066_756c_6c64_6973);
        for _ in 0..rng.random_range(0..=DISK_FAULTS_MAX) {
            let (at, until) = span(&mut rng);
            let robot = struck(&mut rng, &self.team);
            let what = if rng.random() {
                Kind::FullDisk(robot, ROOMS[rng.random_range(0..ROOMS.len())])
            } else {
                Kind::NoDescriptors(robot)
            };
            add(&mut self.faults, Fault { at, until, what });
        }
        self.faults.sort_by_key(|fault| fault.at);
        self
    }

    /// Returns the end of the last fault.
    pub fn healed_at(&self) -> Duration {
        self.faults.iter().map(|fault| fault.until).max().unwrap_or(CALM)
    }

    /// Returns what the emulator does to programs, in order, each with the index of its fault. `program` starts a
    /// robot.
    pub fn blows(&self, program: &[OsString]) -> Vec<(usize, Blow)> {
        let blows = self.faults.iter().enumerate().flat_map(|(number, fault)| {
            let whats = match &fault.what {
                Kind::Kill(_) => Some([What::Kill, What::Start(program.to_vec())]),
                Kind::ClockStep(_, step_s) => Some([What::Kill, What::Start(with_clock(program, *step_s))]),
                Kind::Freeze(_) => Some([What::Freeze, What::Thaw]),
                _ => None,
            };
            let times = [fault.at, fault.until];
            let robot = fault.what.robot().unwrap_or(RobotId(0));
            let blow = move |(what, at)| (number, Blow { at, robot, what });
            whats
                .into_iter()
                .flat_map(move |whats| whats.into_iter().zip(times).map(blow))
        });
        let mut blows: Vec<(usize, Blow)> = blows.collect();
        blows.sort_by_key(|(_, blow)| blow.at);
        blows
    }

    /// Returns the schedule in words, one line per fault.
    pub fn lines(&self) -> Vec<String> {
        let name = |robot: RobotId| self.team.robots[usize::from(robot.0)].name.as_str();
        let line = |fault: &Fault| {
            let what = match &fault.what {
                Kind::Kill(robot) => format!("kill -9 of {}", name(*robot)),
                Kind::ClockStep(robot, step_s) => {
                    format!("kill -9 of {}, back with clocks ahead by {step_s} s", name(*robot))
                }
                Kind::PowerLoss(robot) => format!("{} without power", name(*robot)),
                Kind::Freeze(robot) => format!("{} frozen", name(*robot)),
                Kind::Partition(robots) => {
                    let names: Vec<&str> = robots.iter().map(|robot| name(*robot)).collect();
                    format!("{} parted from the others", names.join(" and "))
                }
                Kind::PathLoss(interface, loss) => format!("wlan{interface} loses {:.0} %", loss * 100.0),
                Kind::FullDisk(robot, room) => format!("{} with {room} bytes left on its disk", name(*robot)),
                Kind::NoDescriptors(robot) => format!("{} out of descriptors", name(*robot)),
            };
            format!("{} to {}: {what}", Shown(fault.at), Shown(fault.until))
        };
        let paths = match self.team.channels().count() {
            1 => "one interface a robot".to_owned(),
            count => format!("{count} interfaces a robot"),
        };
        std::iter::once(paths).chain(self.faults.iter().map(line)).collect()
    }
}

/// A time of a schedule, in seconds.
struct Shown(Duration);

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3} s", self.0.as_secs_f64())
    }
}

fn span(rng: &mut Xoshiro256PlusPlus) -> (Duration, Duration) {
    let length: f64 = Exp1.sample(rng);
    let length = Duration::from_secs_f64(FAULT_MEAN.as_secs_f64() * length).clamp(FAULT_MIN, FAULT_MAX);
    let latest = HEALED_BY.saturating_sub(length).as_nanos();
    let at = rng.random_range(CALM.as_nanos()..=latest);
    // Whole milliseconds, as printed.
    let at = Duration::from_millis(at / 1_000_000);
    (at, at + Duration::from_millis(length.as_nanos() / 1_000_000))
}

/// Adds a fault, if its robot has no other at that time.
fn add(faults: &mut Vec<Fault>, fault: Fault) {
    let one_at_a_time = |other: &Fault| {
        let own = fault.what.robot().is_some() && fault.what.robot() == other.what.robot();
        !own || fault.until < other.at || other.until < fault.at
    };
    if faults.iter().all(one_at_a_time) {
        faults.push(fault);
    }
}

/// Draws the robot that has the fault.
fn struck(rng: &mut Xoshiro256PlusPlus, team: &Team) -> RobotId {
    if rng.random() {
        team.leader
    } else {
        RobotId(rng.random_range(0..team.robots.len() as u16))
    }
}

fn kind(rng: &mut Xoshiro256PlusPlus, team: &Team, choice: u64) -> Kind {
    let robots = team.robots.len() as u16;
    let robot = struck(rng, team);
    let interfaces = team.channels().count();
    match choice % KINDS {
        0 => Kind::Kill(robot),
        1 => Kind::Freeze(robot),
        2 => {
            // Neither nobody nor everybody: of the lowest bits, at least one is set and at least one is not.
            let set = rng.random_range(1..(1u32 << robots.min(16)) - 1);
            Kind::Partition(
                (0..robots.min(16))
                    .filter(|robot| set >> robot & 1 == 1)
                    .map(RobotId)
                    .collect(),
            )
        }
        3 => Kind::ClockStep(robot, rng.random_range(1..=STEP_S_MAX)),
        4 => {
            let losses = [0.3, 0.6, 0.9, 1.0];
            Kind::PathLoss(
                rng.random_range(0..interfaces),
                losses[rng.random_range(0..losses.len())],
            )
        }
        _ => Kind::PowerLoss(robot),
    }
}

/// Returns the fault as an entry of the emulator's script.
fn event(fault: &Fault) -> Option<Event> {
    let (interface, change) = match &fault.what {
        Kind::Partition(robots) => (None, Change::Partition(robots.clone())),
        Kind::PowerLoss(robot) => (None, Change::Death(vec![*robot])),
        Kind::PathLoss(interface, loss) => {
            let rate = RateOverride {
                loss: Some(*loss),
                ..RateOverride::default()
            };
            let (from, to) = (None, None);
            (Some(*interface), Change::Link { from, to, rate })
        }
        _ => return None,
    };
    Some(Event {
        at: fault.at,
        until: Some(fault.until),
        interface,
        change,
    })
}

/// Returns the command line that runs the program with its clocks since boot ahead by the step, and without the count
/// of its starts.
fn with_clock(program: &[OsString], step_s: u32) -> Vec<OsString> {
    let step = step_s.to_string();
    let namespace = ["unshare", "--time", "--monotonic", &step, "--boottime", &step, "--"].map(OsString::from);
    [&namespace, program, &["--lose-count".into()]].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::path::Path;

    fn team() -> Team {
        let text = "[[robot]]\nname = \"a\"\nleader = true\n[[robot]]\nname = \"b\"\n[[robot]]\nname = \"c\"\n\
                    [[interface]]\nchannel = 149\n";
        coorp_team::parse(text, "t.toml", Path::new("")).unwrap()
    }

    #[test]
    fn a_seed_has_one_schedule_and_others_have_others() {
        assert_eq!(Schedule::draw(&team(), 7), Schedule::draw(&team(), 7));
        let all: BTreeSet<Vec<String>> = (0..50).map(|seed| Schedule::draw(&team(), seed).lines()).collect();
        assert_eq!(all.len(), 50);
    }

    #[test]
    fn all_kinds_come_and_every_schedule_can_be_run() {
        let mut kinds = BTreeSet::new();
        for seed in 0..300 {
            let schedule = Schedule::draw(&team(), seed);
            assert!(!schedule.faults.is_empty());
            for (place, fault) in schedule.faults.iter().enumerate() {
                kinds.insert(format!("{:?}", fault.what).split(['(', ' ']).next().unwrap().to_owned());
                assert!(
                    CALM <= fault.at && fault.at < fault.until && fault.until <= HEALED_BY,
                    "{fault:?}"
                );
                let others = &schedule.faults[place + 1..];
                let clash = |other: &&Fault| other.what.robot() == fault.what.robot() && other.at <= fault.until;
                let clashes = others.iter().find(clash).filter(|_| fault.what.robot().is_some());
                assert_eq!(clashes, None, "seed {seed}: {fault:?}");
            }
            let blows = schedule.blows(&["coorp".into()]);
            assert!(blows.windows(2).all(|pair| pair[0].1.at <= pair[1].1.at));
            assert_eq!(schedule.team.channels().count(), if seed / 6 % 3 == 0 { 1 } else { 2 });
        }
        assert_eq!(kinds.len(), 6, "{kinds:?}");
    }

    #[test]
    fn disks_fill_only_beside_what_else_the_seed_has() {
        let (mut kinds, mut filled) = (BTreeSet::new(), 0);
        for seed in 0..100 {
            let plain = Schedule::draw(&team(), seed);
            let more = plain.clone().with_disks(seed);
            assert!(plain.faults.iter().all(|fault| more.faults.contains(fault)));
            filled += more.faults.len() - plain.faults.len();
            kinds.extend(
                more.faults
                    .iter()
                    .map(|fault| std::mem::discriminant(&fault.what))
                    .map(|kind| format!("{kind:?}")),
            );
        }
        assert!(filled > 50 && kinds.len() == 8, "{filled} {kinds:?}");
    }

    #[test]
    fn a_set_clock_is_another_command() {
        let program = with_clock(&["coorp".into(), "x".into()], 5);
        let words: Vec<&str> = program.iter().map(|word| word.to_str().unwrap()).collect();
        let wanted = "unshare --time --monotonic 5 --boottime 5 -- coorp x --lose-count";
        assert_eq!(words.join(" "), wanted);
    }
}
