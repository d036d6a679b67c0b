//! `coorp emu --faults`: runs robots as real processes over the emulated air, injects faults from a seeded schedule,
//! and checks rules that must hold nevertheless. `coorp sim --faults --nodes` does the same in virtual time, with the real
//! node and no air (`trial.rs`). Both test the whole live system, as `coorp sim --faults` tests the decisions.
//!
//! `schedule.rs` draws the faults, `robot.rs` is a robot's program, `record.rs` its records, `rules.rs` the rules. A
//! single seed is one run of the emulator in this process. For several seeds, `many.rs` starts one process of this
//! program per seed, because an emulator names its namespaces after its process.

mod many;
mod record;
mod robot;
mod rules;
mod schedule;
mod trial;

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use coorp_core::failover::FailoverConfig;
use coorp_core::policy::Policy;
use coorp_core::{Duration, RobotId};
use coorp_emu::trouble::{Watched, Watcher, What};
use coorp_emu::Stream;
use coorp_node::{file_name, keys};
use coorp_team::Team;
use serde::{Deserialize, Serialize};

pub use many::{run, Asked, Ground};
pub use robot::{take_part, RobotArgs};

use crate::failure::Failure;
use crate::live::program::this_program;
use record::SharedClock;
use rules::{Broken, Figures, Life, Seen, Span, Taken};
use schedule::Schedule;

/// The policy of the runs: with permits, gates and everything else.
const POLICY: &str = "coorp";
/// Bulk messages start until this long after the last fault, so that each robot requests a permit once more.
const STOP_AFTER: Duration = Duration::from_millis(300);
/// Control is judged until this long after the last fault.
const STAY_AFTER: Duration = Duration::from_millis(1_100);
/// Time to deliver messages already started, in addition to the wait for a permit: at most 3 MB, at the rate that short
/// permits allow.
const THROUGH_MAX: Duration = Duration::from_secs(5);
/// Bulk datagrams exceed this size.
const SMALL_BYTES: usize = 256;
/// Bulk's port, as an offset from a robot's first port.
const PORT_BULK: u16 = 1;

/// The paths in a run's folder.
#[derive(Clone, Debug)]
pub struct Folders(pub PathBuf);

impl Folders {
    pub fn keys(&self) -> PathBuf {
        self.0.join("keys")
    }

    pub fn records(&self) -> PathBuf {
        self.0.join("records")
    }

    pub fn state(&self, robot: &str) -> PathBuf {
        self.0.join("state").join(file_name(robot))
    }

    pub fn taken(&self, robot: &str) -> PathBuf {
        self.0.join("taken").join(file_name(robot))
    }

    pub fn settled(&self, robot: &str) -> PathBuf {
        self.0.join("settled").join(file_name(robot))
    }

    pub fn origin(&self) -> PathBuf {
        self.0.join("origin")
    }

    fn log(&self) -> PathBuf {
        self.0.join("log")
    }

    fn make(&self, team: &Team) -> io::Result<()> {
        for robot in &team.robots {
            fs::create_dir_all(self.taken(&robot.name))?;
        }
        fs::create_dir_all(self.0.join("settled"))?;
        fs::create_dir_all(self.records())
    }
}

/// The outcome of one seed, as in `--json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Outcome {
    pub seed: u64,
    /// The faults, in words.
    pub schedule: Vec<String>,
    /// Whether the run proves anything. It does not if the machine was too slow and only a rule about time was broken,
    /// or the robots were not up before the first fault.
    pub judged: bool,
    /// The broken rules that count.
    pub broken: Vec<Broken>,
    pub figures: Figures,
    /// The emulator's lateness at the 99th percentile, in microseconds.
    pub emulator_p99_us: f64,
    /// How often the run was repeated, alone, because the machine had not kept up.
    pub repeats: usize,
    /// The folder of the records, if they were kept.
    pub records: Option<PathBuf>,
}

/// Runs one seed in an existing, empty folder.
fn one(file: &Path, team: &Team, seed: u64, folders: &Folders) -> Result<Outcome, Failure> {
    let broken = |error: io::Error| Failure::Found(format!("failed: {}: {error}", folders.0.display()));
    let schedule = Schedule::draw(team, seed);
    folders.make(team).map_err(broken)?;
    let mut keyed = team.clone();
    keyed.live.keys = folders.keys();
    keys::init(&keyed)?;
    let healed = schedule.healed_at();
    let robots = team.robots.len() as u16;
    let (limit, permit_within) = permits(team);
    let program = program(file, folders, seed, healed).map_err(broken)?;
    let (of, blows): (Vec<usize>, Vec<_>) = schedule.blows(&program).into_iter().unzip();
    let watch = Arc::new(Watch {
        clock: SharedClock::new(),
        origin_file: folders.origin(),
        ports: (0..robots).map(|robot| team.port(RobotId(robot)) + PORT_BULK).collect(),
        saw: Mutex::new(Saw {
            sent: vec![Vec::new(); team.robots.len()],
            struck: vec![(0, 0); blows.len()],
            origin: 0,
        }),
    });
    let log = Arc::new(Mutex::new(fs::File::create(folders.log()).map_err(broken)?));
    let lines = Arc::new(move |robot: &str, _: Stream, line: &[u8]| {
        let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
        // Anyone who looks for the log will notice if it could not be written.
        let _ = io::Write::write_all(&mut *log, &[b"[", robot.as_bytes(), b"] ", line, b"\n"].concat());
    });
    let starts: Vec<bool> = blows
        .iter()
        .map(|blow| matches!(blow.what, What::Start(_) | What::Thaw))
        .collect();
    let options = coorp_emu::Options {
        team_file: file.to_owned(),
        program,
        companion: None,
        duration: Some(healed + STOP_AFTER + permit_within + THROUGH_MAX),
        blows,
        watched: Watched(Some(watch.clone())),
    };
    let report = coorp_emu::run(&schedule.team, &options, lines, &|_| {})?;
    if report.ended == coorp_emu::report::Ended::Signal {
        return Err(Failure::Found("stopped: the run did not complete".to_owned()));
    }
    let saw = watch.saw.lock().unwrap_or_else(PoisonError::into_inner);
    let spans = spans(&schedule, &saw, &of, &starts);
    let seen = Seen {
        origin: saw.origin,
        healed: saw.origin + healed.as_nanos(),
        judged_to: saw.origin + (healed + STAY_AFTER).as_nanos(),
        end: watch.clock.now_ns(),
        limit,
        permit_within,
        channels: schedule.team.channels().count(),
        lives: lives(team, folders, &schedule, &spans).map_err(broken)?,
        faults: schedule.faults.iter().cloned().zip(spans).collect(),
        sent: saw.sent.clone(),
        taken: taken(team, folders).map_err(broken)?,
    };
    let (mut rules_broken, figures) = rules::judge(&seen);
    for robot in report.robots.iter().filter(|robot| robot.program.failed()) {
        rules_broken.push(Broken {
            rule: 0,
            what: format!("{}: the program {}", robot.name, robot.program),
        });
    }
    let kept_up = report.timing.max_us <= rules::STOOD_STILL_MAX_MS * 1e3 && figures.kept_up();
    let (rules_broken, judged) = rules::count(rules_broken, &figures, kept_up);
    Ok(Outcome {
        seed,
        schedule: schedule.lines(),
        judged,
        broken: rules_broken,
        figures,
        emulator_p99_us: report.timing.p99_us,
        repeats: 0,
        records: None,
    })
}

/// Returns the number of the team's permits, and the longest time that a robot waits for one.
fn permits(team: &Team) -> (usize, Duration) {
    let policy = Policy::named(POLICY).map(|policy| team.policy.apply(&policy));
    let robots = team.robots.len() as u16;
    let failover = FailoverConfig::for_team(team.leader, robots);
    let permits = failover.permits(policy.and_then(|policy| policy.global).unwrap_or_default());
    (
        usize::from(permits.limit),
        rules::permit_within(&failover, &permits, robots),
    )
}

/// Returns the command line of a robot.
fn program(file: &Path, folders: &Folders, seed: u64, healed: Duration) -> io::Result<Vec<OsString>> {
    let file = fs::canonicalize(file)?;
    let options: [OsString; 7] = [
        "fault-robot".into(),
        file.into(),
        "--folder".into(),
        folders.0.clone().into(),
        format!("--seed={seed}").into(),
        format!("--stop={}ns", (healed + STOP_AFTER).as_nanos()).into(),
        format!("--stay={}ns", (healed + STAY_AFTER).as_nanos()).into(),
    ];
    Ok([this_program()?, options.to_vec()].concat())
}

/// Returns the time of each fault. The emulator reported when it injected faults into programs; the air's script is on
/// time.
fn spans(schedule: &Schedule, saw: &Saw, of: &[usize], ends: &[bool]) -> Vec<Span> {
    let by_script = |fault: &schedule::Fault| (saw.origin + fault.at.as_nanos(), saw.origin + fault.until.as_nanos());
    let mut spans: Vec<Span> = schedule.faults.iter().map(by_script).collect();
    for ((fault, ends), (from, to)) in of.iter().zip(ends).zip(&saw.struck) {
        if *ends {
            spans[*fault].1 = *to;
        } else {
            spans[*fault].0 = *from;
        }
    }
    spans
}

/// Returns the robots' records: each start, with the time when it was killed.
fn lives(team: &Team, folders: &Folders, schedule: &Schedule, spans: &[Span]) -> io::Result<Vec<Vec<Life>>> {
    let of = |(place, robot): (usize, &coorp_team::Robot)| {
        let kills = schedule.faults.iter().zip(spans).filter_map(|(fault, span)| {
            (fault.what.kills() && fault.what.robot() == Some(RobotId(place as u16))).then_some(span.0)
        });
        let kills: Vec<u64> = kills.collect();
        let starts = record::read(&folders.records(), &robot.name)?;
        let life = |lines: Vec<record::Line>| {
            let began = match lines.first() {
                Some(record::Line::Started { at }) => *at,
                _ => 0,
            };
            let killed = kills.iter().copied().filter(|killed| *killed >= began).min();
            Life { lines, killed }
        };
        Ok(starts.into_iter().map(life).collect())
    };
    team.robots.iter().enumerate().map(of).collect()
}

/// Returns the bulk messages that robots took.
fn taken(team: &Team, folders: &Folders) -> io::Result<Vec<Taken>> {
    let mut taken = Vec::new();
    for (by, robot) in (0u16..).zip(&team.robots) {
        for entry in fs::read_dir(folders.taken(&robot.name))? {
            let entry = entry?;
            let hash = blake3::hash(&fs::read(entry.path())?).to_hex().to_string();
            taken.push(Taken::of(by, &entry.file_name().to_string_lossy(), hash)?);
        }
    }
    Ok(taken)
}

/// Observes a run from the emulator's side.
struct Watch {
    clock: SharedClock,
    origin_file: PathBuf,
    /// Each robot's port for bulk.
    ports: Vec<u16>,
    saw: Mutex<Saw>,
}

struct Saw {
    origin: u64,
    /// For each robot, the times at which bulk datagrams left its stack.
    sent: Vec<Vec<u64>>,
    /// The times before and after each injected fault.
    struck: Vec<Span>,
}

impl Watcher for Watch {
    fn began(&self) {
        let now = self.clock.now_ns();
        self.saw.lock().unwrap_or_else(PoisonError::into_inner).origin = now;
        // Without the file robots fail with a message.
        let _ = fs::write(&self.origin_file, now.to_string());
    }

    fn sent(&self, _: usize, robot: RobotId, frame: &[u8]) {
        if is_bulk(frame, &self.ports) {
            let now = self.clock.now_ns();
            let mut saw = self.saw.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(sent) = saw.sent.get_mut(usize::from(robot.0)) {
                sent.push(now);
            }
        }
    }

    fn strikes(&self, number: usize, fallen: bool) {
        let now = self.clock.now_ns();
        let mut saw = self.saw.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(struck) = saw.struck.get_mut(number) {
            if fallen {
                struck.1 = now;
            } else {
                struck.0 = now;
            }
        }
    }
}

/// Returns whether an Ethernet frame is a bulk datagram: UDP to a robot's port for bulk, with QUIC's short header, and
/// longer than acknowledgements.
fn is_bulk(frame: &[u8], ports: &[u16]) -> bool {
    const ETHERNET: usize = 14;
    const UDP: usize = 8;
    let Some((ethernet, packet)) = frame.split_at_checked(ETHERNET) else {
        return false;
    };
    let is_udp = ethernet[12..] == [0x08, 0x00]
        && packet.first().is_some_and(|first| first >> 4 == 4)
        && packet.get(9) == Some(&17);
    let header = packet.first().map_or(0, |first| usize::from(first & 0xf) * 4);
    let Some(datagram) = packet
        .get(header..)
        .filter(|datagram| is_udp && datagram.len() > UDP + SMALL_BYTES)
    else {
        return false;
    };
    let to = u16::from_be_bytes([datagram[2], datagram[3]]);
    ports.contains(&to) && datagram[UDP] & 0x80 == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(protocol: u8, port: u16, first: u8, length: usize) -> Vec<u8> {
        let mut frame = vec![0; 14 + 20 + 8 + length];
        frame[12..14].copy_from_slice(&[0x08, 0x00]);
        (frame[14], frame[23]) = (0x45, protocol);
        frame[36..38].copy_from_slice(&port.to_be_bytes());
        frame[42..].fill(first);
        frame
    }

    #[test]
    fn bulk_is_told_from_all_else() {
        let ports = [7461];
        assert!(is_bulk(&frame(17, 7461, 0x40, 1_200), &ports));
        let others = [
            frame(6, 7461, 0x40, 1_200),
            frame(17, 7462, 0x40, 1_200),
            frame(17, 7461, 0xc0, 1_200),
            frame(17, 7461, 0x40, 200),
            vec![0; 10],
            vec![0x45; 20],
        ];
        assert!(others.iter().all(|other| !is_bulk(other, &ports)));
    }
}
