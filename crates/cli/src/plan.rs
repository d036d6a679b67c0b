//! `coorp plan`: how many robots fit, by the capacity model (Deng 2022, equations 1 to 3) and by simulation; with `--paths`,
//! how many interfaces (`paths`).
//!
//! A team size fits if the requested share of control loops ends within the bound and bulk does not starve. (A team
//! whose control is on time only because no bulk is sent would be useless.) The model answers at once but ignores the
//! WNIC and retries. The simulation runs the team with its robots repeated (see `scale`), doubles the size until loops
//! are late, and narrows the limit down. The sizes tried depend only on the outcomes, so the answer is the same on any
//! number of threads. Left out: the effect of the size on learning's convergence, and robots that differ from those in
//! the file.

mod model;
mod paths;
mod scale;
mod text;

use std::collections::BTreeMap;
use std::path::PathBuf;

use coorp_core::capacity::Capacity;
use coorp_core::policy::Policy;
use coorp_core::Duration;
use coorp_sim::results::PolicyResult;
use coorp_sim::Options;
use coorp_team::{Control, Team};
use serde::Serialize;

use crate::failure::{Failure, NoResult};
use crate::jobs;
use crate::number::parse_duration;
use crate::output::{self, Destination, Inputs};
use crate::policies;
use crate::progress::Progress;
use crate::table;

/// Larger sizes are not tried: a channel with more robots has other problems.
const ROBOTS_MAX: usize = 257;
/// Number of sizes simulated together; fixed, so that the sizes tried do not depend on the machine.
const BATCH: usize = 3;

/// Options of `coorp plan`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The team file (TOML); its robots except the leader are repeated as the team grows
    file: PathBuf,
    /// Share of control loops that must end within the bound
    #[arg(long, value_name = "SHARE", default_value_t = 0.95, value_parser = parse_quantile)]
    quantile: f64,
    /// Share of the smallest tried team's bulk throughput that a team must reach; 0 for no such requirement
    #[arg(long, value_name = "SHARE", default_value_t = 0.25, value_parser = parse_bulk_min)]
    bulk_min: f64,
    /// Answer how many interfaces bring 68, 95 and 99 % of control in time, in place of how many robots fit
    #[arg(long, conflicts_with_all = ["quantile", "bulk_min"])]
    paths: bool,
    /// With --paths: share of tries that each link loses, in place of the file's losses and events
    #[arg(long, value_name = "SHARE", requires = "paths", value_parser = parse_loss)]
    loss: Option<f64>,
    /// With --paths: the time within which control is in time [default: the reaction bound]
    #[arg(long, value_name = "TIME", requires = "paths", value_parser = parse_duration)]
    target: Option<Duration>,
    /// The policy to plan for
    #[arg(long, value_name = "NAME", default_value = "coorp", value_parser = policies::parser())]
    policy: String,
    /// Virtual time to simulate per size
    #[arg(long, value_name = "TIME", default_value = "60s", allow_hyphen_values = true, value_parser = parse_duration)]
    duration: Duration,
    /// The seed of every random draw
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Write the plan as JSON; '-' is stdout, which omits the table
    #[arg(long, value_name = "PATH")]
    json: Option<PathBuf>,
    /// Runs at once [default: the number of cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// No progress bar
    #[arg(long)]
    quiet: bool,
}

fn parse_quantile(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(share) if share > 0.0 && share < 1.0 => Ok(share),
        _ => Err("a share is between 0 and 1, such as 0.95".to_owned()),
    }
}

fn parse_bulk_min(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
        _ => Err("a share of the smallest team's bulk is between 0 and 1, such as 0.25".to_owned()),
    }
}

fn parse_loss(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(share) if (0.0..1.0).contains(&share) => Ok(share),
        _ => Err("a share of lost tries is from 0 to below 1, such as 0.35".to_owned()),
    }
}

/// The content of `--json`.
#[derive(Serialize)]
struct Plan<'a> {
    team: &'a str,
    seed: u64,
    policy: &'a str,
    quantile: f64,
    bound_ms: f64,
    bulk_min: f64,
    /// The bulk throughput required; null if none is required, or if bulk never started in the smallest team.
    bulk_mbps_min: Option<f64>,
    /// The bandwidth assumed by the model.
    model_bandwidth_mbps: f64,
    /// The largest team that fits, including the leader; null if not even two robots do.
    robots_max_model: Option<u32>,
    robots_max_simulated: Option<usize>,
    rows: Vec<Row>,
}

/// One team size.
#[derive(Clone, Debug, Serialize)]
struct Row {
    robots: usize,
    model_reaction_ms: f64,
    model_bulk_mbps: f64,
    model_fits: bool,
    violation_rate: Option<f64>,
    reaction_p50_ms: Option<f64>,
    reaction_p99_ms: Option<f64>,
    bulk_mbps: Option<f64>,
    on_time: bool,
    bulk_enough: bool,
    fits: bool,
}

/// Runs `coorp plan`.
///
/// # Errors
/// Invalid input (exit code 2), or a simulation that violated an invariant (exit code 1).
pub fn run(args: &Args) -> Result<(), Failure> {
    let team = coorp_team::load(&args.file).map_err(|error| Failure::Input(error.to_string()))?;
    let Some(control) = team.control.as_ref() else {
        let file = args.file.display();
        return Err(Failure::Input(format!(
            "error: {file}: there is no control loop to plan for; add a [control] table with its bound"
        )));
    };
    let policy = Policy::named(&args.policy)
        .filter(|policy| policy.control)
        .ok_or_else(|| {
            Failure::Input(format!(
                "error: {} has no control loop; plan for another policy",
                args.policy
            ))
        })?;
    let inputs = Inputs::of(&args.file, &team);
    let json = args
        .json
        .as_deref()
        .map(|path| Destination::check(path, &inputs))
        .transpose()?;
    if args.paths {
        return paths::run(args, &team, control, &policy, json.as_ref());
    }
    let planner = Planner {
        args,
        team: &team,
        control,
        policy: &policy,
        model: model::measure(args, &team, control)?,
    };
    let rows = planner.search()?;
    let plan = Plan {
        team: &team.name,
        seed: args.seed,
        policy: &args.policy,
        quantile: args.quantile,
        bound_ms: control.bound.as_millis_f64(),
        bulk_min: args.bulk_min,
        bulk_mbps_min: planner.bulk_mbps_min(&rows),
        model_bandwidth_mbps: planner.model.bandwidth_bps / 1e6,
        robots_max_model: planner.model.robots_max(control.bound, args.quantile),
        robots_max_simulated: largest_that_fits(&rows),
        rows: rows.into_values().collect(),
    };
    let mut outcomes = Vec::new();
    if !json.as_ref().is_some_and(Destination::is_stdout) {
        let table = text::sheet(&plan).layout(table::terminal_width());
        outcomes.push(output::print(&format!("{table}\n{}", text::below(&plan, &team))));
    }
    outcomes.extend(json.as_ref().map(|json| output::write_json(json, &plan)));
    output::settle(outcomes)
}

/// Returns whether a team has any bulk.
fn has_bulk(team: &Team) -> bool {
    team.learning.is_some() || team.flows.iter().any(|flow| flow.bulk)
}

/// The search for the limit.
struct Planner<'a> {
    args: &'a Args,
    team: &'a Team,
    control: &'a Control,
    policy: &'a Policy,
    model: Capacity,
}

impl Planner<'_> {
    /// Doubles the followers until loops are late, then narrows down; the file's own size is always a row.
    fn search(&self) -> Result<BTreeMap<usize, Row>, Failure> {
        let mut rows = BTreeMap::new();
        let mut ladder: Vec<usize> = std::iter::successors(Some(1), |followers| Some(followers * 2))
            .map(|followers: usize| followers + 1)
            .take_while(|robots| *robots <= ROBOTS_MAX)
            .chain([self.team.robots.len()])
            .collect();
        ladder.sort_unstable();
        ladder.dedup();
        for batch in ladder.chunks(BATCH) {
            self.simulate(batch, &mut rows)?;
            if rows.values().any(|row| !row.fits) && batch.iter().any(|robots| *robots >= self.team.robots.len()) {
                break;
            }
        }
        while let Some((fits, late)) = gap(&rows) {
            let inner = (1..=BATCH).map(|part| fits + (late - fits) * part / (BATCH + 1));
            let mut sizes: Vec<usize> = inner.filter(|size| *size > fits && *size < late).collect();
            sizes.dedup();
            self.simulate(&sizes, &mut rows)?;
        }
        Ok(rows)
    }

    fn simulate(&self, sizes: &[usize], rows: &mut BTreeMap<usize, Row>) -> Result<(), Failure> {
        let progress = Progress::new(sizes.len(), self.args.duration, self.args.quiet);
        let threads = self.args.threads.map_or_else(jobs::cores, usize::from);
        let results = jobs::run(sizes, threads, |index, robots| {
            let team = scale::team_of(self.team, *robots)
                .ok_or_else(|| NoResult::Input(format!("a team cannot have {robots} robots")))?;
            let options = Options {
                duration: self.args.duration,
                seed: self.args.seed,
                ..Options::default()
            };
            let reach = |now| progress.reach(index, now);
            let run = coorp_sim::run(&team, self.policy, &options, &reach).map_err(NoResult::from);
            progress.finish(index);
            run
        });
        progress.clear();
        for (robots, result) in sizes.iter().zip(results) {
            let name = || format!("{}, {robots} robots, seed {}", self.args.file.display(), self.args.seed);
            let run = match result {
                Ok(run) => Some(run),
                // A policy may be feasible for the file's team but not for a larger one (SchedWiFi's windows fill the
                // period).
                Err(NoResult::Input(why)) if *robots > self.team.robots.len() => {
                    output::note(&format!("{robots} robots: {why}"));
                    None
                }
                Err(failure) => return Err(failure.ends(&name())),
            };
            let result = run.as_ref().map(|run| &run.result);
            // The smallest size is tried first, so that its bulk is known for all others.
            let row = self.row(*robots, result, self.bulk_mbps_min(rows));
            rows.insert(*robots, row);
        }
        Ok(())
    }

    /// Returns the bulk throughput required. `None` before the smallest team has run, and if its bulk never started.
    fn bulk_mbps_min(&self, rows: &BTreeMap<usize, Row>) -> Option<f64> {
        let smallest = rows.values().next().and_then(|row| row.bulk_mbps)?;
        Some(smallest * self.args.bulk_min).filter(|mbps| *mbps > 0.0)
    }

    fn row(&self, robots: usize, result: Option<&PolicyResult>, bulk_mbps_min: Option<f64>) -> Row {
        let workers = u32::try_from(robots.saturating_sub(1)).unwrap_or(u32::MAX);
        let modelled = self.model.reaction_quantile(workers, self.args.quantile);
        let bulk_mbps = result.and_then(|result| result.bulk_mbps);
        let on_time = result.is_some_and(|result| self.keeps_the_bound(result));
        let enough = |least: f64| bulk_mbps.is_some_and(|mbps| mbps >= least);
        let bulk_enough = result.is_some() && bulk_mbps_min.is_none_or(enough);
        Row {
            robots,
            model_reaction_ms: modelled.as_millis_f64(),
            model_bulk_mbps: self.model.bulk_bps(workers) / 1e6,
            model_fits: modelled <= self.control.bound && self.model.bulk_bps(workers) > 0.0,
            violation_rate: result.and_then(|result| result.violation_rate),
            reaction_p50_ms: result
                .and_then(|result| result.reaction_ms)
                .map(|reaction| reaction.p50),
            reaction_p99_ms: result
                .and_then(|result| result.reaction_ms)
                .map(|reaction| reaction.p99),
            bulk_mbps,
            on_time,
            bulk_enough,
            fits: on_time && bulk_enough,
        }
    }

    /// If no loop ended, the team does not work, whatever its violation rate.
    fn keeps_the_bound(&self, result: &PolicyResult) -> bool {
        result.loops > 0
            && result
                .violation_rate
                .is_some_and(|rate| rate <= 1.0 - self.args.quantile)
    }
}

/// Returns the largest size that fits below the smallest that does not.
fn largest_that_fits(rows: &BTreeMap<usize, Row>) -> Option<usize> {
    rows.values().take_while(|row| row.fits).last().map(|row| row.robots)
}

/// Returns the sizes between which the limit lies, if there are untried ones in between.
fn gap(rows: &BTreeMap<usize, Row>) -> Option<(usize, usize)> {
    let fits = largest_that_fits(rows)?;
    let late = rows.values().find(|row| !row.fits)?.robots;
    (late - fits > 1).then_some((fits, late))
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn row(robots: usize, fits: bool) -> (usize, Row) {
        let row = Row {
            robots,
            model_reaction_ms: 1.0,
            model_bulk_mbps: 1.0,
            model_fits: true,
            violation_rate: None,
            reaction_p50_ms: None,
            reaction_p99_ms: None,
            bulk_mbps: None,
            on_time: fits,
            bulk_enough: true,
            fits,
        };
        (robots, row)
    }

    #[test]
    fn the_limit_is_below_the_first_size_that_is_late() {
        let rows = BTreeMap::from([row(2, true), row(5, true), row(9, false), row(17, true)]);
        assert_eq!(largest_that_fits(&rows), Some(5));
        assert_eq!(gap(&rows), Some((5, 9)));
        let narrowed = BTreeMap::from([row(5, true), row(6, false)]);
        assert_eq!(gap(&narrowed), None);
        assert_eq!(largest_that_fits(&BTreeMap::from([row(2, false)])), None);
    }

    #[test]
    fn shares_are_read_between_nothing_and_all() {
        assert_eq!(parse_quantile("0.95"), Ok(0.95));
        for bad in ["0", "1", "95", "-0.5", "nan", "x"] {
            assert!(parse_quantile(bad).is_err(), "{bad}");
        }
        assert_eq!((parse_bulk_min("0"), parse_bulk_min("1")), (Ok(0.0), Ok(1.0)));
        for bad in ["-0.1", "25", "nan", ""] {
            assert!(parse_bulk_min(bad).is_err(), "{bad}");
        }
    }
}
