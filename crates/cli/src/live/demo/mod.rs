//! `coorp emu --demo`: runs the team file's own traffic live under each policy in turn, and prints the table of
//! `coorp sim`.
//!
//! Each policy is one run of the emulator. Every robot is a process of this program (`robot.rs`) that records what it
//! sees; `record.rs` computes the figures from that. Keys and leftover bulk are in a folder that is deleted at the end.
//!
//! `coorp learn --live` (Python) runs the same robots with [`Content`]: [`prepare`], a [`Member`] in each robot's process,
//! and [`figures`].

mod record;
mod robot;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use coorp_core::policy::Policy;
use coorp_core::Duration;
use coorp_emu::Stream;
use coorp_node::{file_name, keys, why_not_live, Node, Options};
use coorp_sim::results::PolicyResult;
use coorp_team::Team;
use serde::Serialize;

use super::load;
use super::program::this_program;
use crate::failure::Failure;
use crate::notes::Unfit;
use crate::output::{self, Destination};
use crate::{policies, summary, table};
use record::{Record, Span};
use robot::{Empty, Part, SETTLE};

pub use robot::Content;

const POLICIES: [&str; 4] = ["mpc-only", "bulk-only", "edca", "coorp"];
const LENGTH: Duration = Duration::from_secs(60);
/// The folder of the keys, in a run's.
const KEYS: &str = "keys";
/// Maximum number of the robots' last lines shown if the demo fails.
const LINES_MAX: usize = 20;

/// The requested demo.
pub struct Demo<'a> {
    pub file: &'a Path,
    pub team: &'a Team,
    /// Empty for the default ones.
    pub policies: &'a [String],
    pub length: Option<Duration>,
    pub json: Option<&'a Destination>,
    pub quiet: bool,
}

/// Options of one robot's process.
#[derive(Debug, clap::Args)]
pub struct RobotArgs {
    file: PathBuf,
    #[arg(long)]
    policy: String,
    #[arg(long)]
    folder: PathBuf,
    #[arg(long, value_parser = crate::number::parse_duration)]
    length: Duration,
}

/// The content of `--json`.
#[derive(Serialize)]
struct Report<'a> {
    team: &'a str,
    results: Vec<serde_json::Value>,
    emulator: &'a [Emulator],
}

/// The emulator's report on one policy's run.
#[derive(Serialize)]
struct Emulator {
    policy: String,
    #[serde(flatten)]
    report: coorp_emu::Report,
}

/// Figures of the simulator that are not measured live.
const NOT_MEASURED: [&str; 4] = ["events", "flows", "mac", "wnic_ahead"];

/// Runs the demo.
///
/// # Errors
/// The emulator cannot run, the team has no control loop, or a robot failed.
pub fn run(demo: &Demo<'_>) -> Result<(), Failure> {
    if demo.team.control.is_none() {
        return Err(Failure::Input(format!(
            "error: {}: the demo runs the team's control loop, but there is none; add [control], as in \
             examples/navigation.toml",
            demo.file.display()
        )));
    }
    let folder = Folder::make()?;
    make_keys(demo.team, &folder.0)?;
    let names: Vec<&str> = if demo.policies.is_empty() {
        POLICIES.to_vec()
    } else {
        demo.policies.iter().map(String::as_str).collect()
    };
    let (mut results, mut unfit, mut reports, mut notes) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for (place, name) in names.iter().enumerate() {
        let policy = policies::named(name)?;
        if let Some(why) = only_simulated(&policy) {
            unfit.push(Unfit {
                place,
                policy: (*name).to_owned(),
                why,
            });
            continue;
        }
        let (result, report, completions) = one(demo, &policy, &folder.0.join(name), &folder.0.join(KEYS))?;
        if !report.kept_up {
            notes.push(format!(
                "under {name} this machine was too slow for the emulator: its figures do not count"
            ));
        }
        if let Some(completions) = completions {
            notes.push(format!("under {name} the gate learned from {completions}"));
        }
        if policy.bulk && demo.team.learning.is_some() && result.bulk_mbps.is_none() {
            notes.push(format!(
                "under {name} no bulk was due in the measured time: use a longer --duration"
            ));
        }
        results.push(result);
        reports.push(Emulator {
            policy: policy.name,
            report,
        });
    }
    if results.is_empty() {
        let why: Vec<&str> = unfit.iter().map(|unfit| unfit.why.as_str()).collect();
        return Err(Failure::Input(format!(
            "error: nothing to run live: {}",
            why.join("; ")
        )));
    }
    notes.extend(unfit.iter().map(|unfit| unfit.why.clone()));
    summary::share_of_bulk_only(&mut results);
    let table = summary::policies(&summary::entries(&results, &unfit)).layout(table::terminal_width());
    if !demo.json.is_some_and(Destination::is_stdout) {
        let notes: String = notes.iter().map(|note| format!("Note: {note}\n")).collect();
        output::print(&format!("{table}\n{notes}"))?;
    }
    let Some(json) = demo.json else { return Ok(()) };
    let report = Report {
        team: &demo.team.name,
        results: results.iter().map(measured).collect(),
        emulator: &reports,
    };
    output::write_json(json, &report)
}

/// Returns why a policy has no live form, if so.
fn only_simulated(policy: &Policy) -> Option<String> {
    why_not_live(&of_nodes(policy)).map(|why| format!("{} is only simulated: {why}", policy.name))
}

/// Makes the keys of a run's robots, in its folder.
fn make_keys(team: &Team, folder: &Path) -> Result<(), Failure> {
    let mut team = team.clone();
    team.live.keys = folder.join(KEYS);
    keys::init(&team)?;
    Ok(())
}

/// Prepares a folder for one run of a team with content.
///
/// # Errors
/// The policy has no live form, or the keys cannot be made.
pub fn prepare(team: &Team, policy: &Policy, folder: &Path) -> Result<(), Failure> {
    match only_simulated(policy) {
        Some(why) => Err(Failure::Input(format!("error: {why}"))),
        None => make_keys(team, folder),
    }
}

/// Returns the measured figures of a run, once all of its robots have ended.
///
/// # Errors
/// A robot's record is missing or unreadable.
pub fn figures(team: &Team, policy: &Policy, folder: &Path) -> Result<serde_json::Value, Failure> {
    Ok(measured(&result(team, policy, folder)?.0))
}

/// Computes the result of a run from the robots' records, and returns both.
fn result(team: &Team, policy: &Policy, folder: &Path) -> Result<(PolicyResult, Vec<Record>), Failure> {
    let (records, span) = read(team, folder)?;
    let control = team.control.filter(|_| policy.control);
    let control = control.map(|control| (control.period, control.bound));
    Ok((record::result(&policy.name, &records, span, control), records))
}

/// Returns a policy's measured figures.
fn measured(result: &PolicyResult) -> serde_json::Value {
    let mut value = serde_json::json!(result);
    if let Some(figures) = value.as_object_mut() {
        figures.retain(|name, _| !NOT_MEASURED.contains(&name.as_str()));
    }
    value
}

/// Returns the policy as the robots' nodes run it. The demo's programs, not the nodes, decide whether control and bulk
/// run.
fn of_nodes(policy: &Policy) -> Policy {
    Policy {
        control: true,
        bulk: true,
        ..policy.clone()
    }
}

/// Runs one policy. Also returns the source of completions that its gates learned from, if it has gates.
fn one(
    demo: &Demo<'_>,
    policy: &Policy,
    folder: &Path,
    keys: &Path,
) -> Result<(PolicyResult, coorp_emu::Report, Option<String>), Failure> {
    let broken = |what: &str, error: std::io::Error| Failure::Found(format!("failed: {what}: {error}"));
    fs::create_dir_all(folder).map_err(|error| broken("cannot make a folder", error))?;
    std::os::unix::fs::symlink(keys, folder.join(KEYS)).map_err(|error| broken("cannot link the keys", error))?;
    let program = this_program().map_err(|error| broken("cannot find this program", error))?;
    let length = demo.length.unwrap_or(LENGTH);
    let options: [OsString; 7] = [
        "demo-robot".into(),
        demo.file.into(),
        "--policy".into(),
        policy.name.clone().into(),
        "--folder".into(),
        folder.into(),
        format!("--length={}ns", length.as_nanos()).into(),
    ];
    if !demo.quiet {
        output::note(&format!("{}: {} s live", policy.name, length.as_secs_f64()));
    }
    let said = Arc::new(Mutex::new(Vec::new()));
    let lines = {
        let said = said.clone();
        Arc::new(move |robot: &str, _: Stream, line: &[u8]| {
            let mut said = said.lock().unwrap_or_else(PoisonError::into_inner);
            said.push(format!("[{robot}] {}", String::from_utf8_lossy(line)));
        })
    };
    let options = coorp_emu::Options {
        team_file: demo.file.to_owned(),
        program: [program, options.to_vec()].concat(),
        duration: None,
        ..coorp_emu::Options::default()
    };
    let report = coorp_emu::run(demo.team, &options, lines, &|_| {})?;
    if report.ended != coorp_emu::report::Ended::Programs {
        return Err(Failure::Found("stopped: the demo did not complete".to_owned()));
    }
    if report.failed() {
        let said = said.lock().unwrap_or_else(PoisonError::into_inner);
        let last: Vec<&str> = said.iter().rev().take(LINES_MAX).rev().map(String::as_str).collect();
        let last = last.join("\n");
        return Err(Failure::Found(format!(
            "{last}\nfailed: a robot's program failed under {}",
            policy.name
        )));
    }
    let (result, records) = result(demo.team, policy, folder)?;
    let completions = policy.local.as_ref().and_then(|_| {
        let all: BTreeSet<&str> = records
            .iter()
            .filter_map(|record| record.completions.as_deref())
            .collect();
        (!all.is_empty()).then(|| Vec::from_iter(all).join(", "))
    });
    Ok((result, report, completions))
}

/// Reads the robots' records, in the team's order.
fn read(team: &Team, folder: &Path) -> Result<(Vec<Record>, Span), Failure> {
    let mut span = None;
    let mut records = Vec::with_capacity(team.robots.len());
    for robot in &team.robots {
        let path = folder.join(record_of(&robot.name));
        let broken = |error: String| Failure::Found(format!("failed: {}: {error}", path.display()));
        let text = fs::read(&path).map_err(|error| broken(error.to_string()))?;
        let (record, of): (Record, Span) = serde_json::from_slice(&text).map_err(|error| broken(error.to_string()))?;
        records.push(record);
        span.get_or_insert(of);
    }
    let span = span.ok_or_else(|| Failure::Found("failed: a team without robots".to_owned()))?;
    Ok((records, span))
}

fn record_of(robot: &str) -> String {
    format!("{}.json", file_name(robot))
}

/// Runs one robot's process.
///
/// # Errors
/// The robot cannot take part.
pub fn take_part(args: &RobotArgs) -> Result<(), Failure> {
    let member = Member {
        team: &load(&args.file)?,
        policy: &policies::named(&args.policy)?,
        folder: &args.folder,
        settle: SETTLE,
        length: args.length,
    };
    member.take_part(&Empty)
}

/// A robot of a run, in its own process.
pub struct Member<'a> {
    /// The team.
    pub team: &'a Team,
    /// The policy, which also decides whether control and bulk run.
    pub policy: &'a Policy,
    /// The run's folder, with the keys.
    pub folder: &'a Path,
    /// Time from the start to the measured time.
    pub settle: Duration,
    /// The measured time.
    pub length: Duration,
}

impl Member<'_> {
    /// Takes part in the run as the robot that the emulator started this process for, and leaves its record.
    ///
    /// # Errors
    /// The robot cannot take part.
    pub fn take_part(&self, content: &dyn Content) -> Result<(), Failure> {
        let name = std::env::var("COORP_ROBOT")
            .map_err(|_| Failure::Input("error: only 'coorp emu' starts this command".to_owned()))?;
        let mut team = self.team.clone();
        team.live.keys = self.folder.join(KEYS);
        let node = Node::open(Options {
            team: team.clone(),
            robot: name.clone(),
            policy: of_nodes(self.policy),
            insecure: false,
            state: Some(self.folder.join("state").join(file_name(&name))),
        })?;
        let outcome = robot::run(&Part {
            node: &node,
            team: &team,
            me: node.place(),
            control: self.policy.control,
            bulk: self.policy.bulk,
            settle: self.settle,
            length: self.length,
            content,
        })?;
        let path = self.folder.join(record_of(&name));
        let text = serde_json::to_vec(&outcome).map_err(|error| Failure::Found(format!("failed: {error}")))?;
        fs::write(&path, text).map_err(|error| Failure::Found(format!("failed: {}: {error}", path.display())))
    }
}

/// A temporary folder, deleted on drop.
struct Folder(PathBuf);

impl Folder {
    fn make() -> Result<Self, Failure> {
        let path = std::env::temp_dir().join(format!("coorp-demo-{}", std::process::id()));
        fs::create_dir_all(&path).map_err(|error| {
            Failure::Input(format!(
                "error: cannot create {}: {error}; set TMPDIR to a writable folder",
                path.display()
            ))
        })?;
        Ok(Folder(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // If this fails, the files stay in the folder for temporary files.
        let _ = fs::remove_dir_all(&self.0);
    }
}
