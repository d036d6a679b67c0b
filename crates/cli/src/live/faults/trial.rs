//! A fault run in virtual time: the same schedule, program and rules as over the emulator, with the robots' real nodes on
//! the simulated machines of `coorp_node::trial`. Nothing depends on how fast this machine is.
//!
//! A robot's program takes each bulk message by moving it to a folder on its machine's disk. A message counts as taken
//! if it is in that folder at the end. It also counts if the program was told so and a power cut has undone it.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration as Time;

use coorp_core::policy::Policy;
use coorp_core::{Duration, RobotId};
use coorp_node::bulk::BulkMessage;
use coorp_node::trial::{Process, Trial};
use coorp_node::{keys, Options, Pulse};
use coorp_team::Team;

use super::record::Line;
use super::robot::{Robot, Seat, COUNT};
use super::rules::{self, Broken, Life, Seen, Span, Taken};
use super::schedule::{Fault, Kind, Schedule};
use super::{permits, Folders, Outcome, POLICY, STAY_AFTER, STOP_AFTER, THROUGH_MAX};
use crate::failure::Failure;

/// The interval at which the run checks whether everything is done.
const LOOK_EVERY: Time = Time::from_millis(10);

/// Runs one seed in an existing, empty folder.
pub(super) fn one(team: &Team, seed: u64, folders: &Folders) -> Result<Outcome, Failure> {
    let schedule = Schedule::draw(team, seed).with_disks(seed);
    let seen = seen(team, &schedule, seed, folders)?;
    let (mut broken, figures) = rules::judge(&seen.seen);
    broken.extend(seen.failed.into_iter().map(|what| Broken { rule: 0, what }));
    let (broken, judged) = rules::count(broken, &figures, true);
    Ok(Outcome {
        seed,
        schedule: schedule.lines(),
        judged,
        broken,
        figures,
        emulator_p99_us: 0.0,
        repeats: 0,
        records: None,
    })
}

/// The outcome of a run, to be judged.
#[derive(Debug)]
struct Shown {
    seen: Seen,
    /// Programs and robots that have failed.
    failed: Vec<String>,
}

fn seen(team: &Team, schedule: &Schedule, seed: u64, folders: &Folders) -> Result<Shown, Failure> {
    let failed = |error: io::Error| Failure::Found(format!("failed: {}: {error}", folders.0.display()));
    let mut keyed = schedule.team.clone();
    keyed.live.keys = folders.keys();
    keys::init(&keyed)?;
    let healed = schedule.healed_at();
    let (limit, permit_within) = permits(team);
    let channels = schedule.team.channels().count();
    let ran = Trial::run(&keyed, channels, seed, |trial| async move {
        let run = Arc::new(Run::new(trial, seed, healed, folders.clone()));
        let spans = run.strike(schedule).await;
        let end = healed + STOP_AFTER + permit_within + THROUGH_MAX;
        while run.trial.now() < time(end) && !run.all_settled() {
            tokio::time::sleep(LOOK_EVERY).await;
        }
        // The programs wait as long before they end.
        tokio::time::sleep(5 * LOOK_EVERY).await;
        run.notice_failures();
        let saw = std::mem::take(&mut *run.saw());
        (run.trial.now(), spans, run.taken(&saw.taken), saw)
    });
    let (end, spans, taken, saw) = ran.map_err(failed)?;
    let taken = taken.map_err(failed)?;
    Ok(Shown {
        seen: Seen {
            origin: 0,
            healed: healed.as_nanos(),
            judged_to: (healed + STAY_AFTER).as_nanos(),
            end: end.as_nanos() as u64,
            limit,
            permit_within,
            channels,
            lives: saw.lives,
            faults: schedule.faults.iter().cloned().zip(spans).collect(),
            sent: saw.sent,
            taken,
        },
        failed: saw.failed,
    })
}

fn time(duration: Duration) -> Time {
    Time::from_nanos(duration.as_nanos())
}

/// A run in progress.
#[derive(Debug)]
struct Run {
    trial: Arc<Trial>,
    seed: u64,
    healed: Duration,
    folders: Folders,
    saw: Mutex<Saw>,
}

/// The findings so far.
#[derive(Debug, Default)]
struct Saw {
    lives: Vec<Vec<Life>>,
    sent: Vec<Vec<u64>>,
    /// The robots and files of messages that programs were told to have taken.
    taken: BTreeSet<(u16, OsString)>,
    settled: BTreeSet<u16>,
    failed: Vec<String>,
    pulses: Vec<(u16, Pulse)>,
}

impl Run {
    fn new(trial: Arc<Trial>, seed: u64, healed: Duration, folders: Folders) -> Run {
        let robots = trial.team().robots.len();
        Run {
            trial,
            seed,
            healed,
            folders,
            saw: Mutex::new(Saw {
                lives: vec![Vec::new(); robots],
                sent: vec![Vec::new(); robots],
                ..Saw::default()
            }),
        }
    }

    fn saw(&self) -> MutexGuard<'_, Saw> {
        self.saw.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now_ns(&self) -> u64 {
        self.trial.now().as_nanos() as u64
    }

    fn all_settled(&self) -> bool {
        self.saw().settled.len() == self.trial.team().robots.len()
    }

    /// Starts all robots and injects the scheduled faults. Returns the time of each fault.
    async fn strike(self: &Arc<Self>, schedule: &Schedule) -> Vec<Span> {
        let watching = Arc::downgrade(self);
        self.trial.watch_bulk(move |robot, _| {
            if let Some(run) = watching.upgrade() {
                let now = run.now_ns();
                run.saw().sent[usize::from(robot.0)].push(now);
            }
        });
        for robot in self.robots() {
            let taken = self.folders.taken(self.name(robot));
            if let Err(error) = self.trial.machine(robot).make_folder(&taken) {
                self.saw().failed.push(format!("{}: {error}", taken.display()));
            }
            self.start(robot);
        }
        let ends = |place: usize| {
            let fault = &schedule.faults[place];
            [(fault.at, place, true), (fault.until, place, false)]
        };
        let mut times: Vec<_> = (0..schedule.faults.len()).flat_map(ends).collect();
        times.sort_by_key(|(at, ..)| *at);
        let mut spans = vec![(0, 0); schedule.faults.len()];
        for (at, place, begins) in times {
            tokio::time::sleep(time(at).saturating_sub(self.trial.now())).await;
            self.turn(&schedule.faults[place], begins);
            let now = self.now_ns();
            if begins {
                spans[place].0 = now;
            } else {
                spans[place].1 = now;
            }
        }
        spans
    }

    /// Begins or ends a fault. A power loss cuts the power by the middle of the fault's time.
    fn turn(self: &Arc<Self>, fault: &Fault, begins: bool) {
        let within = time(fault.until.saturating_sub(fault.at)) / 2;
        let machine = |robot: &RobotId| self.trial.machine(*robot).clone();
        match (&fault.what, begins) {
            (Kind::Freeze(robot), _) => machine(robot).freeze(begins),
            (Kind::Partition(robots), _) => self.trial.part(robots, begins),
            (Kind::PathLoss(path, loss), _) => self.trial.lose(*path, if begins { *loss } else { 0.0 }),
            (Kind::Kill(robot) | Kind::ClockStep(robot, _), true) => {
                machine(robot).kill();
                self.is_killed(*robot);
            }
            (Kind::PowerLoss(robot), true) => {
                let (run, robot, machine) = (self.clone(), *robot, machine(robot));
                tokio::spawn(async move {
                    machine.cut(within).await;
                    run.is_killed(robot);
                });
            }
            (Kind::Kill(robot), false) => self.start(*robot),
            (Kind::ClockStep(robot, step_s), false) => {
                machine(robot).set_clocks(Time::from_secs((*step_s).into()));
                machine(robot).lose(&self.state(*robot).join(COUNT));
                self.start(*robot);
            }
            (Kind::PowerLoss(robot), false) => {
                machine(robot).switch_on();
                self.start(*robot);
            }
            (Kind::FullDisk(robot, room), _) => machine(robot).fill_disk(begins.then_some(*room)),
            (Kind::NoDescriptors(robot), _) => machine(robot).set_descriptors(!begins),
        }
    }

    fn is_killed(&self, robot: RobotId) {
        let now = self.now_ns();
        let mut saw = self.saw();
        saw.settled.remove(&robot.0);
        if let Some(life) = saw.lives[usize::from(robot.0)].last_mut() {
            life.killed = Some(now);
        }
    }

    fn name(&self, robot: RobotId) -> &str {
        &self.trial.team().robots[usize::from(robot.0)].name
    }

    fn state(&self, robot: RobotId) -> PathBuf {
        self.folders.state(self.name(robot))
    }

    fn robots(&self) -> impl Iterator<Item = RobotId> {
        (0u16..).map(RobotId).take(self.trial.team().robots.len())
    }

    /// Returns the bulk messages that were taken, each as often as it was taken.
    fn taken(&self, told: &BTreeSet<(u16, OsString)>) -> io::Result<Vec<Taken>> {
        let mut taken = Vec::new();
        for robot in self.robots() {
            let files = self.trial.machine(robot).files(&self.folders.taken(self.name(robot)))?;
            let files: BTreeMap<OsString, Vec<u8>> = files.into_iter().collect();
            let undone = told
                .iter()
                .filter(|(by, file)| *by == robot.0 && !files.contains_key(file));
            let gone = undone.map(|(_, file)| (file, None));
            for (file, bytes) in files.iter().map(|(file, bytes)| (file, Some(bytes))).chain(gone) {
                let hash = bytes.map(|bytes| blake3::hash(bytes).to_hex().to_string());
                taken.push(Taken::of(robot.0, &file.to_string_lossy(), hash.unwrap_or_default())?);
            }
        }
        Ok(taken)
    }

    /// Starts a robot's program.
    fn start(self: &Arc<Self>, robot: RobotId) {
        let run = self.clone();
        let start = {
            let mut saw = self.saw();
            let lives = &mut saw.lives[usize::from(robot.0)];
            lives.push(Life::default());
            lives.len() - 1
        };
        self.trial.machine(robot).start(|process| async move {
            let ended = run.clone().program(robot, start, process.clone()).await;
            // A failure at the moment of a power loss does not count.
            if let (Err(failure), false) = (ended, process.is_over()) {
                run.saw().failed.push(format!("robot {}: {failure}", robot.0));
            }
        });
    }

    async fn program(self: Arc<Self>, robot: RobotId, start: usize, process: Process) -> Result<(), Failure> {
        let team = self.trial.team().clone();
        let seat = Chair {
            run: self.clone(),
            robot,
            start,
            process: process.clone(),
        };
        seat.write(&Line::Started { at: seat.now_ns() });
        let policy = Policy::named(POLICY).ok_or_else(|| Failure::Input(format!("error: no policy {POLICY}")))?;
        let node = process.open(Options {
            team: team.clone(),
            robot: team.robots[usize::from(robot.0)].name.clone(),
            policy,
            insecure: false,
            state: Some(self.state(robot)),
        })?;
        self.saw().pulses.push((robot.0, node.pulse()?));
        let program = Robot {
            node: Arc::new(node),
            team,
            seat,
            start: start as u32,
            stop: (self.healed + STOP_AFTER).as_nanos(),
            seed: self.seed,
        };
        program.run((self.healed + STAY_AFTER).as_nanos()).await
    }

    /// Records the robots in which something has panicked.
    fn notice_failures(&self) {
        let pulses = std::mem::take(&mut self.saw().pulses);
        for (robot, pulse) in pulses {
            if let Some(why) = pulse.failed_within(Time::ZERO) {
                self.saw().failed.push(format!("robot {robot}: {why}"));
            }
        }
    }
}

/// The environment of one start of a robot.
struct Chair {
    run: Arc<Run>,
    robot: RobotId,
    start: usize,
    process: Process,
}

impl Seat for Chair {
    fn now_ns(&self) -> u64 {
        self.run.now_ns()
    }

    fn write(&self, line: &Line) {
        self.run.saw().lives[usize::from(self.robot.0)][self.start]
            .lines
            .push(line.clone());
    }

    fn take(&self, message: &BulkMessage, number: u32) -> io::Result<()> {
        let file = Taken::file(self.start as u32, number, message);
        let folder = self.run.folders.taken(self.run.name(self.robot));
        message.take_to(&folder.join(&file))?;
        // Otherwise the power has failed, and the program was not told.
        if !self.process.is_over() {
            self.run.saw().taken.insert((self.robot.0, file.into()));
        }
        Ok(())
    }

    fn settle(&self) -> io::Result<()> {
        self.run.saw().settled.insert(self.robot.0);
        Ok(())
    }

    fn all_settled(&self) -> bool {
        self.run.all_settled()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::Path;

    fn team() -> Team {
        let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/faults-live.toml"));
        coorp_team::parse(&text.unwrap(), "t.toml", Path::new("")).unwrap()
    }

    fn shown(seed: u64, run: u32) -> Shown {
        let folder = std::env::temp_dir().join(format!("coorp-trial-{}-{seed}-{run}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let schedule = Schedule::draw(&team(), seed).with_disks(seed);
        let shown = seen(&team(), &schedule, seed, &Folders(folder.clone())).unwrap();
        fs::remove_dir_all(folder).unwrap();
        shown
    }

    #[test]
    fn a_seed_goes_the_same_way_again() {
        let [one, other] = [1, 2].map(|run| shown(3, run));
        assert_eq!(format!("{one:?}"), format!("{other:?}"));
    }
}
