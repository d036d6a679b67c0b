//! Runs seeds one by one or several at once, and reports the results. If the machine did not keep up with a run, the
//! run is repeated while nothing else runs.
//!
//! A run that breaks no rule has passed, however slow the machine. If the machine was too slow to judge a run, the run
//! is named but does not fail, because it says nothing about the robots. If more than a tenth of the runs cannot be
//! judged, the command fails. Violations of rules that hold on any machine always count.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Instant;

use coorp_team::Team;
use serde::{Deserialize, Serialize};

use super::{one, trial, Folders, Outcome};
use crate::failure::{Failure, NoResult};
use crate::live::program::this_program;
use crate::output::{self, Destination};
use crate::summary::count;
use crate::table::{self, Sheet};
use crate::{jobs, number};

/// Maximum number of repetitions of a run, alone, before the machine is reported as too slow.
const REPEATS_MAX: usize = 2;
/// One run in this many may remain unjudged; with more gaps, the other runs prove too little.
const RUNS_A_GAP: usize = 10;
/// Maximum number of runs of one seed kept in a folder.
const KEPT_MAX: u32 = 1_000;
/// Maximum number of failed seeds shown in full.
const SHOWN_MAX: usize = 20;

/// Where the robots run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ground {
    /// As processes over the emulated air.
    Emulator,
    /// In virtual time.
    Trial,
}

/// The requested runs.
pub struct Asked<'a> {
    pub ground: Ground,
    pub file: &'a Path,
    pub team: &'a Team,
    pub seed: u64,
    pub seeds: u32,
    /// Number of emulators running at once.
    pub at_once: usize,
    /// Where to keep the runs' files.
    pub keep: Option<&'a Path>,
    pub json: Option<&'a Destination>,
    pub quiet: bool,
}

/// The content of `--json`.
#[derive(Serialize, Deserialize)]
struct Report {
    team: String,
    runs: Vec<Outcome>,
}

/// Runs the seeds.
///
/// # Errors
/// The emulator cannot run, a rule was broken, or the machine is too slow.
pub fn run(asked: &Asked<'_>) -> Result<(), Failure> {
    if asked.team.robots.len() < 2 {
        return Err(Failure::Input(format!(
            "error: {}: faults need two robots, but there is only one: add another [[robot]]",
            asked.file.display()
        )));
    }
    let last = asked.seed.checked_add(u64::from(asked.seeds - 1)).ok_or_else(|| {
        Failure::Input(format!(
            "error: {} seeds starting at {} go past the largest seed",
            asked.seeds, asked.seed
        ))
    })?;
    let began = Instant::now();
    if asked.ground == Ground::Trial && std::env::var_os("RUST_LOG").is_some() {
        crate::live::log();
    }
    let runs = if asked.seeds == 1 {
        vec![here(asked, asked.seed)?]
    } else {
        apart(asked, last)?
    };
    output::print(&sheet(&runs).layout(table::terminal_width()))?;
    if !asked.quiet {
        let (runs, wall_s) = (count(runs.len() as u64), began.elapsed().as_secs_f64());
        output::note(&format!("{runs} runs in {wall_s:.0} s"));
    }
    let slow = not_judged(asked, &runs);
    if !slow.is_empty() {
        output::note(slow.trim_end());
    }
    let failed = failures(asked, &runs);
    if let Some(json) = asked.json {
        let team = asked.team.name.clone();
        output::write_json(json, &Report { team, runs })?;
    }
    failed.map_or(Ok(()), |text| Err(Failure::Found(text)))
}

/// Runs one seed in this process.
fn here(asked: &Asked<'_>, seed: u64) -> Result<Outcome, Failure> {
    let folder = match asked.keep {
        Some(keep) => kept(keep, seed)?,
        None => std::env::temp_dir().join(format!("coorp-faults-{}-{}", std::process::id(), seed)),
    };
    fs::create_dir_all(&folder).map_err(|error| {
        let name = if asked.keep.is_some() { "--keep" } else { "TMPDIR" };
        Failure::Input(format!(
            "error: cannot create {}: {error}; set {name} to a writable folder",
            folder.display()
        ))
    })?;
    let folders = Folders(folder.clone());
    let outcome = match asked.ground {
        Ground::Emulator => one(asked.file, asked.team, seed, &folders),
        Ground::Trial => trial::one(asked.team, seed, &folders),
    };
    match outcome {
        // Keep the records for the user, or to find the reason for a failure.
        Ok(outcome) if asked.keep.is_some() || !outcome.broken.is_empty() => Ok(Outcome {
            records: Some(folder),
            ..outcome
        }),
        outcome => {
            // If this fails, the files stay in the folder for temporary files.
            let _ = fs::remove_dir_all(folder);
            outcome
        }
    }
}

/// Returns a new folder for a run of this seed, which may have been run before.
fn kept(keep: &Path, seed: u64) -> Result<PathBuf, Failure> {
    let mut folders = (1..=KEPT_MAX).map(|run| keep.join(format!("seed-{seed}-run-{run}")));
    folders.find(|folder| !folder.exists()).ok_or_else(|| {
        let keep = keep.display();
        Failure::Input(format!(
            "error: {keep} already has {KEPT_MAX} runs of seed {seed}: clear it, or name another folder"
        ))
    })
}

/// Runs each seed. Over the emulator, each one runs in a separate process.
fn apart(asked: &Asked<'_>, last: u64) -> Result<Vec<Outcome>, Failure> {
    let seeds: Vec<u64> = (asked.seed..=last).collect();
    let runs = jobs::run(&seeds, asked.at_once, |_, seed| {
        let outcome = match asked.ground {
            Ground::Emulator => child(asked, *seed),
            Ground::Trial => here(asked, *seed),
        };
        if let (Ok(outcome), false) = (&outcome, asked.quiet) {
            if !outcome.broken.is_empty() {
                output::note(&format!("seed {seed}: {}", outcome.broken[0].what));
            }
        }
        outcome.map_err(|failure| match failure {
            Failure::Input(text) => NoResult::Input(text),
            Failure::Found(text) => NoResult::Broken(text),
        })
    });
    let mut outcomes = Vec::with_capacity(runs.len());
    for (seed, run) in seeds.iter().zip(runs) {
        let mut outcome = run.map_err(|none| match none {
            NoResult::Input(text) => Failure::Input(text),
            NoResult::Broken(text) => Failure::Found(text),
        })?;
        for _ in 0..REPEATS_MAX {
            if outcome.judged {
                break;
            }
            let again = child(asked, *seed)?;
            outcome = Outcome {
                repeats: outcome.repeats + 1,
                ..again
            };
        }
        outcomes.push(outcome);
    }
    Ok(outcomes)
}

/// Runs one seed in a separate process.
fn child(asked: &Asked<'_>, seed: u64) -> Result<Outcome, Failure> {
    let broken = |what: &str, error: io::Error| Failure::Found(format!("failed: seed {seed}: {what}: {error}"));
    let program = this_program().map_err(|error| broken("cannot find this program", error))?;
    let json = std::env::temp_dir().join(format!("coorp-faults-{}-{seed}.json", std::process::id()));
    let output = Command::new(&program[0])
        .args(&program[1..])
        .arg("emu")
        .arg(asked.file)
        .args(["--faults", "--quiet", "--seed", &seed.to_string(), "--json"])
        .arg(&json)
        .args(
            asked
                .keep
                .map(|keep| ["--keep".as_ref(), keep.as_os_str()])
                .into_iter()
                .flatten(),
        )
        .stdin(Stdio::null())
        .output()
        .map_err(|error| broken("cannot start this program", error))?;
    let text = fs::read(&json);
    // The file does not exist if the run had no result.
    let _ = fs::remove_file(&json);
    match text {
        Ok(text) => {
            let report: Result<Report, _> = serde_json::from_slice(&text);
            let run = report.ok().and_then(|report| report.runs.into_iter().next());
            run.ok_or_else(|| Failure::Found(format!("failed: seed {seed}: cannot read its report")))
        }
        Err(_) => Err(no_report(seed, &output)),
    }
}

fn no_report(seed: u64, output: &Output) -> Failure {
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    match output.status.code() {
        Some(2) => Failure::Input(said),
        _ => Failure::Found(format!(
            "{said}\nfailed: seed {seed} did not complete ({})",
            output.status
        )),
    }
}

fn sheet(runs: &[Outcome]) -> Sheet {
    let titles = [
        "runs",
        "failed",
        "not\njudged",
        "repeated\nalone",
        "bulk\nbegun",
        "\ndelivered",
        "\nreported failed",
        "\nsender died",
        "control back ms\nmedian",
        "\nworst",
        "permit ms\nmedian",
        "\nworst",
    ];
    let sum = |of: fn(&Outcome) -> usize| count(runs.iter().map(of).sum::<usize>() as u64);
    let spread = |of: fn(&Outcome) -> f64| {
        let mut all: Vec<f64> = runs.iter().map(of).collect();
        all.sort_by(f64::total_cmp);
        let at = |place: usize| number::figure(all.get(place).copied().unwrap_or_default());
        [at(all.len() / 2), at(all.len().saturating_sub(1))]
    };
    let counts = [
        count(runs.len() as u64),
        sum(|run| usize::from(!run.broken.is_empty())),
        sum(|run| usize::from(!run.judged)),
        sum(|run| usize::from(run.repeats > 0)),
        sum(|run| run.figures.begun),
        sum(|run| run.figures.delivered),
        sum(|run| run.figures.failed),
        sum(|run| run.figures.orphaned),
    ];
    let times = [
        spread(|run| run.figures.resumed_ms),
        spread(|run| run.figures.permit_ms),
    ];
    Sheet {
        titles: titles.map(str::to_owned).to_vec(),
        names: 0,
        rows: vec![counts.into_iter().chain(times.into_iter().flatten()).collect()],
    }
}

fn replay(asked: &Asked<'_>, seed: u64) -> String {
    let file = asked.file.display();
    match asked.ground {
        Ground::Emulator => format!("sudo coorp emu {file} --faults --seed {seed}"),
        Ground::Trial => format!("coorp sim {file} --faults --nodes --seed {seed}"),
    }
}

/// Returns the message about runs for which the machine was too slow; empty if there are none.
fn not_judged(asked: &Asked<'_>, runs: &[Outcome]) -> String {
    let slow: Vec<&Outcome> = runs.iter().filter(|run| !run.judged).collect();
    let mut text = String::new();
    for run in slow.iter().take(SHOWN_MAX) {
        text += &format!(
            "seed {}: not judged: this machine did not keep up (emulator late by {:.0} us at p99, a robot's process \
             stood still for {:.0} ms); rerun it with less other load: {}\n",
            run.seed,
            run.emulator_p99_us,
            run.figures.stood_still_ms,
            replay(asked, run.seed)
        );
    }
    if slow.len() > SHOWN_MAX {
        let rest: Vec<String> = slow[SHOWN_MAX..].iter().map(|run| run.seed.to_string()).collect();
        text += &format!("also not judged: seeds {}\n", rest.join(", "));
    }
    text
}

/// Returns the message if runs broke a rule, or if too few could be judged.
fn failures(asked: &Asked<'_>, runs: &[Outcome]) -> Option<String> {
    let failed: Vec<&Outcome> = runs.iter().filter(|run| !run.broken.is_empty()).collect();
    let slow = runs.iter().filter(|run| !run.judged).count();
    let mut text = String::new();
    if !failed.is_empty() {
        text += &format!("failed: {} of {} runs\n", failed.len(), runs.len());
    }
    for run in failed.iter().take(SHOWN_MAX) {
        text += &format!("seed {}:\n", run.seed);
        for broken in run.broken.iter().take(SHOWN_MAX) {
            text += &format!("  rule {}: {}\n", broken.rule, broken.what);
        }
        text += &format!("  schedule: {}\n", run.schedule.join("; "));
        let records: Option<&PathBuf> = run.records.as_ref();
        text += &records.map_or(String::new(), |records| {
            format!(
                "  records: {}; 'coorp replay' reads state/ROBOT/flight in it\n",
                records.display()
            )
        });
        text += &format!("  replay: {}\n", replay(asked, run.seed));
    }
    if failed.len() > SHOWN_MAX {
        let rest: Vec<String> = failed[SHOWN_MAX..].iter().map(|run| run.seed.to_string()).collect();
        text += &format!("and seeds {}\n", rest.join(", "));
    }
    if slow * RUNS_A_GAP > runs.len() {
        text += &format!(
            "failed: {slow} of {} runs could not be judged, more than one in {RUNS_A_GAP}: this machine is too slow\n",
            runs.len()
        );
    }
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::super::rules::{Broken, Figures};
    use super::*;

    fn outcome(seed: u64, judged: bool, broken_rule: Option<u8>) -> Outcome {
        let what = "what it did".to_owned();
        Outcome {
            seed,
            schedule: Vec::new(),
            judged,
            broken: broken_rule.map(|rule| Broken { rule, what }).into_iter().collect(),
            figures: Figures::default(),
            emulator_p99_us: 700.0,
            repeats: 0,
            records: None,
        }
    }

    /// Returns the messages about ten runs: those not judged, and the failures. The runs in `different` replace good
    /// ones.
    fn said(different: &[Outcome]) -> (String, Option<String>) {
        let file = PathBuf::from("t.toml");
        let team = coorp_team::parse(
            "[[robot]]\nname = \"a\"\nleader = true\n[[robot]]\nname = \"b\"\n",
            "t.toml",
            Path::new(""),
        )
        .unwrap();
        let mut runs: Vec<Outcome> = (0..10).map(|seed| outcome(seed, true, None)).collect();
        for run in different {
            runs[run.seed as usize] = run.clone();
        }
        let asked = Asked {
            ground: Ground::Emulator,
            keep: None,
            file: &file,
            team: &team,
            seed: 0,
            seeds: 10,
            at_once: 1,
            json: None,
            quiet: true,
        };
        (not_judged(&asked, &runs), failures(&asked, &runs))
    }

    #[test]
    fn a_run_that_the_machine_is_too_slow_for_is_named_and_fails_nothing() {
        assert_eq!(said(&[]), (String::new(), None));
        let (named, failed) = said(&[outcome(3, false, None)]);
        assert!(
            named.contains("seed 3: not judged") && named.contains("700 us"),
            "{named}"
        );
        assert_eq!(failed, None);
    }

    #[test]
    fn more_than_a_tenth_of_such_runs_fail_in_one_line() {
        let (named, failed) = said(&[outcome(3, false, None), outcome(4, false, None)]);
        assert_eq!(named.lines().count(), 2);
        let failed = failed.unwrap();
        assert!(
            failed.starts_with("failed: 2 of 10 runs could not be judged"),
            "{failed}"
        );
        assert_eq!(failed.lines().count(), 1);
    }

    #[test]
    fn a_broken_rule_fails() {
        let (named, failed) = said(&[outcome(3, true, Some(4))]);
        assert_eq!(named, "");
        assert!(failed.unwrap().contains("seed 3:\n  rule 4: what it did"));
    }
}
