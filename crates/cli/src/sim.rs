//! `coorp sim`: one team under one or more policies, in virtual time.
//!
//! With one seed: a table, and on request JSON for scripts and the HTML report. With several: a summary over the seeds,
//! the failed ones, and the command that replays each.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time;

use coorp_core::policy::Policy;
use coorp_core::Duration;
use coorp_sim::results::{PolicyResult, Report, Run};
use coorp_sim::Options;
use coorp_team::Team;

use crate::failure::{Failure, NoResult};
use crate::notes::{self, Unfit};
use crate::number::{parse_duration, percent};
use crate::output::{self, Destination, Inputs};
use crate::progress::Progress;
use crate::summary::{self, count, shown};
use crate::table::{self, Sheet};
use crate::{jobs, policies, recording, replay, report};

/// Without `--policy`: the best possible control, the best possible bulk, stock WiFi, and Coorp.
const POLICIES_OF_A_TEAM: [&str; 4] = ["mpc-only", "bulk-only", "edca", "coorp"];
/// The same for a team without bulk.
const POLICIES_OF_CONTROL: [&str; 3] = ["mpc-only", "edca", "coorp"];
/// The same for a file with only flows, which has no control loop.
const POLICIES_OF_FLOWS: [&str; 2] = ["edca", "coorp"];
/// Maximum number of failed seeds whose replay is printed; a single bug can fail all of them.
const REPLAYS_SHOWN_MAX: usize = 20;

/// Options of `coorp sim`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The team file (TOML)
    file: PathBuf,
    /// Policies, separated by commas or by repeating the option [default: mpc-only,bulk-only,edca,coorp]
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = policies::parser())]
    policy: Vec<String>,
    /// Virtual time to simulate
    #[arg(long, value_name = "TIME", default_value = "60s", allow_hyphen_values = true, value_parser = parse_duration)]
    duration: Duration,
    /// The seed of every random draw
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Run this many seeds, starting at --seed
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    seeds: u32,
    /// Inject faults: robots die, freeze and restart, messages get lost, and clocks step
    #[arg(long)]
    faults: bool,
    /// Inject the faults into the robots' real nodes, with QUIC and disks, in virtual time, and not into simulated
    /// robots; the air is a plain network, and the policy is coorp
    #[cfg(all(feature = "live", target_os = "linux"))]
    #[arg(long, requires = "faults", conflicts_with_all = ["policy", "duration", "replay", "html"])]
    nodes: bool,
    /// Simulate a folder of team files, or one, on all cores or on Ray, and resume that later; see 'coorp sim --sweep
    /// --help' (Python package only)
    #[arg(long = "sweep")]
    _sweep: bool,
    /// Let flows send at the times and sizes of their topics in this recording (MCAP or ROS 2 bag)
    #[arg(long, value_name = "RECORDING")]
    replay: Option<PathBuf>,
    /// Write the results as JSON; '-' is stdout, which omits the table
    #[arg(long, value_name = "PATH")]
    json: Option<PathBuf>,
    /// Write the report as one HTML file; '-' is stdout, which omits the table
    #[arg(long, value_name = "PATH")]
    html: Option<PathBuf>,
    /// Runs at once [default: the number of cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Print only the table: no progress bar, no notes
    #[arg(long)]
    quiet: bool,
}

/// One run of the simulator.
struct Job {
    policy: Policy,
    seed: u64,
}

/// Runs `coorp sim`. `arguments` is the whole command line, for the report.
///
/// # Errors
/// Invalid input (exit code 2), or a run that violated an invariant (exit code 1).
pub fn run(args: &Args, arguments: &[OsString]) -> Result<(), Failure> {
    let mut team = coorp_team::load(&args.file).map_err(|error| Failure::Input(error.to_string()))?;
    #[cfg(all(feature = "live", target_os = "linux"))]
    if args.nodes {
        let json = args
            .json
            .as_deref()
            .map(|path| Destination::check(path, &Inputs::of(&args.file, &team)));
        return crate::live::faults::run(&crate::live::faults::Asked {
            ground: crate::live::faults::Ground::Trial,
            file: &args.file,
            team: &team,
            seed: args.seed,
            seeds: args.seeds,
            at_once: args.threads.map_or_else(jobs::cores, usize::from),
            keep: None,
            json: json.transpose()?.as_ref(),
            quiet: args.quiet,
        });
    }
    let policies = chosen_policies(&team, &args.policy)?;
    if args.seeds > 1 {
        play(args, &mut team)?;
        return run_seeds(args, &team, &policies);
    }
    let mut inputs = Inputs::of(&args.file, &team);
    if let Some(recording) = &args.replay {
        inputs.add(Inputs::recording(&recording::files(recording)?));
    }
    let (json, html) = destinations(args, &inputs)?;
    play(args, &mut team)?;
    let jobs: Vec<Job> = policies
        .into_iter()
        .map(|policy| Job {
            policy,
            seed: args.seed,
        })
        .collect();
    let mut runs = Vec::with_capacity(jobs.len());
    let mut unfit = Vec::new();
    let outcomes = simulate(args, &team, &jobs, html.is_some(), |run| run);
    for (place, (job, outcome)) in jobs.iter().zip(outcomes).enumerate() {
        match outcome {
            Ok(run) => runs.push(run),
            Err(NoResult::Input(why)) => unfit.push(Unfit {
                place,
                policy: job.policy.name.clone(),
                why,
            }),
            // A violated invariant casts doubt on the other runs too.
            Err(broken) => return Err(one_failure(args, job, &broken)),
        }
    }
    if runs.is_empty() {
        return Err(none_fits(args, &unfit));
    }
    finish(args, arguments, &team, runs, &unfit, [json.as_ref(), html.as_ref()])
}

/// Adds the recording of `--replay` to the team.
fn play(args: &Args, team: &mut Team) -> Result<(), Failure> {
    let Some(path) = &args.replay else { return Ok(()) };
    let notes = replay::into_team(team, &args.file, path)?;
    if !args.quiet {
        notes.iter().for_each(|note| output::note(&format!("Note: {note}")));
    }
    Ok(())
}

/// Returns the failure if no policy fits: every reason once.
fn none_fits(args: &Args, unfit: &[Unfit]) -> Failure {
    let line = |unfit: &Unfit| format!("error: {}: {}", args.file.display(), unfit.why);
    Failure::Input(unfit.iter().map(line).collect::<Vec<_>>().join("\n"))
}

fn chosen_policies(team: &Team, asked: &[String]) -> Result<Vec<Policy>, Failure> {
    let has_bulk = team.learning.is_some() || team.flows.iter().any(|flow| flow.bulk);
    let default: &[&str] = match (team.control.is_some(), has_bulk) {
        (true, true) => &POLICIES_OF_A_TEAM,
        (true, false) => &POLICIES_OF_CONTROL,
        (false, _) => &POLICIES_OF_FLOWS,
    };
    let mut names: Vec<&str> = Vec::new();
    for name in if asked.is_empty() {
        default.to_vec()
    } else {
        asked.iter().map(String::as_str).collect()
    } {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names.into_iter().map(policies::named).collect()
}

fn destinations(args: &Args, inputs: &Inputs) -> Result<(Option<Destination>, Option<Destination>), Failure> {
    let check = |path: &Option<PathBuf>| path.as_deref().map(|path| Destination::check(path, inputs)).transpose();
    let (json, html) = (check(&args.json)?, check(&args.html)?);
    if let Some((json, html)) = json.as_ref().zip(html.as_ref()) {
        if json.same_as(html) {
            return Err(Failure::Input(
                "error: --json and --html name the same file; give different ones".to_owned(),
            ));
        }
    }
    Ok((json, html))
}

/// Runs all jobs in parallel. `keep` extracts what is needed from each run, so a thousand runs need not fit in memory.
fn simulate<T: Send>(
    args: &Args,
    team: &Team,
    jobs: &[Job],
    timeline: bool,
    keep: impl Fn(Run) -> T + Sync,
) -> Vec<Result<T, NoResult>> {
    let progress = Progress::new(jobs.len(), args.duration, args.quiet);
    let threads = args.threads.map_or_else(jobs::cores, usize::from);
    let results = jobs::run(jobs, threads, |index, job| {
        let options = Options {
            duration: args.duration,
            seed: job.seed,
            faults: args.faults,
            series: timeline,
            timeline,
            events: false,
        };
        let outcome = coorp_sim::run(team, &job.policy, &options, &|now| progress.reach(index, now));
        progress.finish(index);
        outcome.map(&keep).map_err(NoResult::from)
    });
    progress.clear();
    results
}

fn finish(
    args: &Args,
    arguments: &[OsString],
    team: &Team,
    runs: Vec<Run>,
    unfit: &[Unfit],
    [json, html]: [Option<&Destination>; 2],
) -> Result<(), Failure> {
    let (mut results, charts): (Vec<_>, Vec<_>) = runs.into_iter().map(|run| (run.result, run.charts)).unzip();
    summary::share_of_bulk_only(&mut results);
    let numbers = Report {
        team: team.name.clone(),
        seed: args.seed,
        results,
    };
    // The reason for an empty row is part of the answer, so a quiet run prints it too.
    let reasons: Vec<String> = unfit.iter().map(|unfit| unfit.why.clone()).collect();
    let notes = [reasons.clone(), notes::notes(team, args.duration, &numbers.results)].concat();
    let below = below(if args.quiet { &reasons } else { &notes });
    // Try each regardless of the others: a full disk must not lose the table, nor a closed stdout the files.
    let mut outcomes = Vec::new();
    if ![json, html].into_iter().flatten().any(Destination::is_stdout) {
        let tables = tables(&numbers.results, unfit, table::terminal_width());
        outcomes.push(output::print(&format!("{tables}{below}")));
    } else if !below.is_empty() {
        output::note(&below);
    }
    if let Some(json) = json {
        outcomes.push(told(args, json, output::write_json(json, &numbers)));
    }
    if let Some(html) = html {
        let bound_ms = team.control.as_ref().map(|control| control.bound.as_millis_f64());
        let page = report::Page {
            numbers: &numbers,
            charts: &charts,
            unfit,
            notes: &notes,
            bound_ms,
            command: &command_line(arguments),
        };
        outcomes.push(told(args, html, html.write(page.render().as_bytes())));
    }
    output::settle(outcomes)
}

/// Reports a file once it is written.
fn told(args: &Args, file: &Destination, written: Result<(), Failure>) -> Result<(), Failure> {
    if written.is_ok() && !args.quiet && !file.is_stdout() {
        output::note(&format!("wrote {}", file.shown().display()));
    }
    written
}

/// Returns the notes below a table.
fn below(notes: &[String]) -> String {
    let lines: String = notes.iter().map(|note| format!("Note: {note}\n")).collect();
    if lines.is_empty() {
        lines
    } else {
        format!("\n{lines}")
    }
}

fn tables(results: &[PolicyResult], unfit: &[Unfit], width: Option<usize>) -> String {
    let entries = summary::entries(results, unfit);
    let mut blocks = Vec::new();
    if summary::has_team_work(results) {
        blocks.push(summary::policies(&entries).layout(width));
    }
    if results.iter().any(|result| !result.flows.is_empty()) {
        blocks.push(summary::flows(&entries).layout(width));
    }
    blocks.join("\n")
}

fn one_failure(args: &Args, job: &Job, failure: &NoResult) -> Failure {
    let ended = failure.ends(&format!(
        "{}, {}, seed {}",
        args.file.display(),
        job.policy.name,
        job.seed
    ));
    match ended {
        Failure::Found(text) => Failure::Found(format!(
            "{text}\nThis is a bug in Coorp; please report it with the team file and: {}",
            again(args, job)
        )),
        input => input,
    }
}

/// The data kept from each of many runs.
struct Kept {
    violation_rate: Option<f64>,
    bulk_mbps: Option<f64>,
    virtual_s: f64,
}

fn run_seeds(args: &Args, team: &Team, policies: &[Policy]) -> Result<(), Failure> {
    if args.json.is_some() || args.html.is_some() {
        return Err(Failure::Input(
            "error: --json and --html are for a single seed; leave out --seeds".to_owned(),
        ));
    }
    let last = args.seed.checked_add(u64::from(args.seeds - 1)).ok_or_else(|| {
        Failure::Input(format!(
            "error: {} seeds starting at {} go past the largest seed",
            args.seeds, args.seed
        ))
    })?;
    let jobs: Vec<Job> = policies
        .iter()
        .flat_map(|policy| {
            (args.seed..=last).map(move |seed| Job {
                policy: policy.clone(),
                seed,
            })
        })
        .collect();
    let started = time::Instant::now();
    let outcomes = simulate(args, team, &jobs, false, |run| Kept {
        violation_rate: run.result.violation_rate,
        bulk_mbps: run.result.bulk_mbps,
        virtual_s: run.result.virtual_s,
    });
    let unfit = unfit_seeds(&jobs, &outcomes);
    if outcomes
        .iter()
        .all(|outcome| matches!(outcome, Err(NoResult::Input(_))))
    {
        return Err(none_fits(args, &unfit));
    }
    let wall_s = started.elapsed().as_secs_f64();
    let reasons: Vec<String> = unfit.into_iter().map(|unfit| unfit.why).collect();
    let table = seeds_sheet(args, policies, &outcomes).layout(table::terminal_width());
    output::print(&format!("{table}{}", below(&reasons)))?;
    let virtual_s: f64 = outcomes.iter().flatten().map(|kept| kept.virtual_s).sum();
    if !args.quiet {
        let speed = shown(summary::speed(virtual_s, wall_s), crate::number::figure);
        output::note(&format!(
            "{} runs, {speed} virtual seconds per wall second",
            count(jobs.len() as u64)
        ));
    }
    let failed: Vec<(&Job, &NoResult)> = jobs
        .iter()
        .zip(&outcomes)
        .filter_map(|(job, outcome)| outcome.as_ref().err().map(|why| (job, why)))
        .filter(|(_, why)| matches!(why, NoResult::Broken(_)))
        .collect();
    if failed.is_empty() {
        return Ok(());
    }
    Err(Failure::Found(seeds_failed(args, &failed)))
}

/// Returns the policies that did not fit, each once, although the reason's figures may differ between seeds.
fn unfit_seeds<T>(jobs: &[Job], outcomes: &[Result<T, NoResult>]) -> Vec<Unfit> {
    let mut unfit: Vec<Unfit> = Vec::new();
    for (job, outcome) in jobs.iter().zip(outcomes) {
        let policy = &job.policy.name;
        if let Err(NoResult::Input(why)) = outcome {
            if !unfit.iter().any(|seen| seen.policy == *policy) {
                unfit.push(Unfit {
                    place: unfit.len(),
                    policy: policy.clone(),
                    why: format!("{why} (seed {})", job.seed),
                });
            }
        }
    }
    unfit
}

fn seeds_sheet(args: &Args, policies: &[Policy], outcomes: &[Result<Kept, NoResult>]) -> Sheet {
    let per_policy = policies.iter().zip(outcomes.chunks(args.seeds as usize));
    let titles = [
        "policy\n",
        "\nseeds",
        "\nfailed",
        "violation rate\nmean",
        "\nworst",
        "bulk Mbit/s\nmean",
        "\nworst",
    ];
    Sheet {
        titles: titles.map(str::to_owned).to_vec(),
        names: 1,
        rows: per_policy
            .map(|(policy, outcomes)| seeds_row(&policy.name, outcomes))
            .collect(),
    }
}

fn seeds_row(policy: &str, outcomes: &[Result<Kept, NoResult>]) -> Vec<String> {
    let violations: Vec<f64> = outcomes
        .iter()
        .flatten()
        .filter_map(|kept| kept.violation_rate)
        .collect();
    let bulks: Vec<f64> = outcomes.iter().flatten().filter_map(|kept| kept.bulk_mbps).collect();
    let mean = |values: &[f64]| (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64);
    vec![
        policy.to_owned(),
        count(outcomes.len() as u64),
        count(
            outcomes
                .iter()
                .filter(|outcome| matches!(outcome, Err(NoResult::Broken(_))))
                .count() as u64,
        ),
        shown(mean(&violations), percent),
        shown(violations.iter().copied().reduce(f64::max), percent),
        shown(mean(&bulks), crate::number::figure),
        shown(bulks.iter().copied().reduce(f64::min), crate::number::figure),
    ]
}

fn seeds_failed(args: &Args, failed: &[(&Job, &NoResult)]) -> String {
    let mut text = format!("{} failed:\n", plural_runs(failed.len()));
    for (job, why) in failed.iter().take(REPLAYS_SHOWN_MAX) {
        let why = why.text();
        text += &format!(
            "  {}, seed {}: {why}\n    replay: {}\n",
            job.policy.name,
            job.seed,
            again(args, job)
        );
    }
    if failed.len() > REPLAYS_SHOWN_MAX {
        let rest: Vec<String> = failed
            .iter()
            .skip(REPLAYS_SHOWN_MAX)
            .map(|(job, _)| format!("{} {}", job.policy.name, job.seed))
            .collect();
        text += &format!("  and {}\n", rest.join(", "));
    }
    text
}

fn plural_runs(count: usize) -> String {
    format!("{count} run{}", if count == 1 { "" } else { "s" })
}

/// Returns the command that repeats one run. It includes the duration, because the draws depend on it.
fn again(args: &Args, job: &Job) -> String {
    let faults = if args.faults { " --faults" } else { "" };
    let recording = args.replay.as_deref().map(quoted_path);
    let replay = recording.map_or(String::new(), |path| format!(" --replay {path}"));
    let (policy, seed, duration) = (&job.policy.name, job.seed, args.duration);
    format!(
        "coorp sim {}{replay}{faults} --seed {seed} --policy {policy} --duration {duration}",
        quoted_path(&args.file)
    )
}

fn command_line(arguments: &[OsString]) -> String {
    let own = arguments.iter().map(|argument| quoted(&argument.to_string_lossy()));
    std::iter::once("coorp".to_owned())
        .chain(own)
        .collect::<Vec<_>>()
        .join(" ")
}

fn quoted_path(path: &Path) -> String {
    quoted(&path.to_string_lossy())
}

/// Returns an argument, quoted for a shell.
fn quoted(argument: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./,:=+@%".contains(c);
    if !argument.is_empty() && argument.chars().all(plain) {
        return argument.to_owned();
    }
    format!("'{}'", argument.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_quoted_where_a_shell_needs_it() {
        assert_eq!(quoted("examples/navigation.toml"), "examples/navigation.toml");
        assert_eq!(quoted("my team.toml"), "'my team.toml'");
        assert_eq!(quoted("it's"), "'it'\\''s'");
        assert_eq!(quoted(""), "''");
    }
}
