//! `coorp plan`: how many robots fit, from the capacity model (001, equations 1 to 3) and from simulation.
//!
//! A team size fits where the asked share of control loops ends within the bound. The model gives its answer at
//! once but knows neither WNIC nor retries; the simulation runs the team with its robots repeated (see `scale`),
//! doubles the size until the loops are late, and narrows the limit down. The sizes tried depend on the outcomes
//! only, so that the answer is the same on any number of threads. Left out: what a size does to learning's
//! convergence, and robots that differ from those in the file.

mod scale;

use std::collections::BTreeMap;
use std::path::PathBuf;

use coorp_core::capacity::{bulk_first_probability, Capacity};
use coorp_core::policy::Policy;
use coorp_core::Duration;
use coorp_sim::results::PolicyResult;
use coorp_sim::Options;
use coorp_team::{Category, Control, Flow, Team, Traffic, Transport};
use serde::Serialize;

use crate::failure::{Failure, NoResult};
use crate::jobs;
use crate::number::{figure, parse_duration, percent};
use crate::output::{self, Destination, Inputs};
use crate::policies;
use crate::progress::Progress;
use crate::summary::shown;
use crate::table::{self, Sheet};

/// Sizes beyond this are not tried: a channel with more robots than this has other worries.
const ROBOTS_MAX: usize = 257;
/// Sizes simulated together; fixed, so that the sizes tried do not depend on the machine.
const BATCH: usize = 3;
/// How long the channel's rate is measured for the model.
const PROBE: Duration = Duration::from_secs(5);

/// Options of `coorp plan`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The team file (TOML); its robots but the leader are repeated as the team grows
    file: PathBuf,
    /// Share of control loops that must end within the bound
    #[arg(long, value_name = "SHARE", default_value_t = 0.95, value_parser = parse_quantile)]
    quantile: f64,
    /// The policy to plan for
    #[arg(long, value_name = "NAME", default_value = "coorp", value_parser = policies::parser())]
    policy: String,
    /// Virtual time to simulate for each size
    #[arg(long, value_name = "TIME", default_value = "60s", allow_hyphen_values = true, value_parser = parse_duration)]
    duration: Duration,
    /// The seed of every random draw
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Write the plan as JSON; '-' is stdout, then without the table
    #[arg(long, value_name = "PATH")]
    json: Option<PathBuf>,
    /// Runs at once [default: as many as there are cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// No progress bar
    #[arg(long)]
    quiet: bool,
}

fn parse_quantile(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(share) if share > 0.0 && share < 1.0 => Ok(share),
        _ => Err("a share lies between 0 and 1, as in 0.95".to_owned()),
    }
}

/// What `--json` writes.
#[derive(Serialize)]
struct Plan<'a> {
    team: &'a str,
    seed: u64,
    policy: &'a str,
    quantile: f64,
    bound_ms: f64,
    /// The largest team that fits, the leader counted; null where not even two robots do.
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
    fits: bool,
}

/// Runs `coorp plan`.
///
/// # Errors
/// Input to mend (exit code 2), or a simulation that broke a rule of its own (exit code 1).
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
                "error: {} runs no control loop; plan for another policy",
                args.policy
            ))
        })?;
    let inputs = Inputs::of(&args.file, &team);
    let json = args
        .json
        .as_deref()
        .map(|path| Destination::check(path, &inputs))
        .transpose()?;
    let planner = Planner {
        args,
        team: &team,
        control,
        policy: &policy,
        model: model(args, &team, control)?,
    };
    let rows = planner.search()?;
    let plan = Plan {
        team: &team.name,
        seed: args.seed,
        policy: &args.policy,
        quantile: args.quantile,
        bound_ms: control.bound.as_millis_f64(),
        robots_max_model: planner.model.robots_max(control.bound, args.quantile),
        robots_max_simulated: largest_that_fits(&rows),
        rows: rows.into_values().collect(),
    };
    let mut outcomes = Vec::new();
    if !json.as_ref().is_some_and(Destination::is_stdout) {
        let table = sheet(&plan).layout(table::terminal_width());
        outcomes.push(output::print(&format!("{table}\n{}", verdict(&plan))));
    }
    outcomes.extend(json.as_ref().map(|json| output::write_json(json, &plan)));
    output::settle(outcomes)
}

/// The model with this team's figures. B is not the nominal rate but what the robots' TCP gets through to
/// the leader, all together, measured on the team's own air.
fn model(args: &Args, team: &Team, control: &Control) -> Result<Capacity, Failure> {
    let mut probe = team.clone();
    (probe.control, probe.learning) = (None, None);
    let flow = |from| Flow {
        name: format!("probe-{from:?}"),
        from,
        to: team.leader,
        category: Category::BestEffort,
        transport: Transport::Tcp,
        traffic: Traffic::Saturated { packet_bytes: 1448 },
        start: Duration::ZERO,
        stop: None,
        bulk: true,
    };
    probe.flows = scale::ids(team).filter(|from| *from != team.leader).map(flow).collect();
    let options = Options {
        duration: PROBE,
        seed: args.seed,
        faults: false,
        timeline: false,
    };
    let edca = Policy::named("edca").ok_or_else(|| Failure::Found("error: the policy edca is missing".to_owned()))?;
    let run = coorp_sim::run(&probe, &edca, &options, &|_| ())
        .map_err(|error| NoResult::from(error).ends(&args.file.display().to_string()))?;
    let bandwidth_mbps: f64 = run.result.flows.iter().map(|flow| flow.mbps).sum();
    if bandwidth_mbps <= 0.0 {
        let file = args.file.display();
        return Err(Failure::Input(format!(
            "error: {file}: nothing gets through to the leader; check [air]"
        )));
    }
    let [voice, _, best_effort, _] = &team.air.edca;
    let has_bulk = team.learning.is_some() || team.flows.iter().any(|flow| flow.bulk);
    Ok(Capacity {
        bandwidth_bps: bandwidth_mbps * 1e6,
        frequency_hz: 1.0 / control.period.as_secs_f64(),
        perception_bytes: control.perception_bytes,
        control_bytes: control.command_bytes,
        ampdu_bytes: u64::from(
            best_effort
                .ampdu_bytes
                .min(team.air.wnic.ampdu_bytes_max.unwrap_or(u32::MAX)),
        ),
        inference: control.inference,
        bulk_first: if has_bulk {
            bulk_first_probability(u32::from(voice.cw_min), u32::from(best_effort.cw_min))
        } else {
            0.0
        },
    })
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
    /// Doubles the followers until the loops are late, then narrows down; the file's own size is always a row.
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
                .ok_or_else(|| NoResult::Input(format!("no team has {robots} robots")))?;
            let options = Options {
                duration: self.args.duration,
                seed: self.args.seed,
                faults: false,
                timeline: false,
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
                // A policy may fit the team in the file and not a larger one (SchedWiFi's windows fill the period).
                Err(NoResult::Input(why)) if *robots > self.team.robots.len() => {
                    output::note(&format!("{robots} robots: {why}"));
                    None
                }
                Err(failure) => return Err(failure.ends(&name())),
            };
            rows.insert(*robots, self.row(*robots, run.as_ref().map(|run| &run.result)));
        }
        Ok(())
    }

    fn row(&self, robots: usize, result: Option<&PolicyResult>) -> Row {
        let workers = u32::try_from(robots.saturating_sub(1)).unwrap_or(u32::MAX);
        let modelled = self.model.reaction_quantile(workers, self.args.quantile);
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
            bulk_mbps: result.and_then(|result| result.bulk_mbps),
            fits: result.is_some_and(|result| self.keeps_the_bound(result)),
        }
    }

    /// Without a single loop that ended the team does not work, whatever its rate of violations.
    fn keeps_the_bound(&self, result: &PolicyResult) -> bool {
        result.loops > 0
            && result
                .violation_rate
                .is_some_and(|rate| rate <= 1.0 - self.args.quantile)
    }
}

/// The largest size that fits below the smallest that does not.
fn largest_that_fits(rows: &BTreeMap<usize, Row>) -> Option<usize> {
    rows.values().take_while(|row| row.fits).last().map(|row| row.robots)
}

/// The sizes between which the limit lies, where there are untried ones between.
fn gap(rows: &BTreeMap<usize, Row>) -> Option<(usize, usize)> {
    let fits = largest_that_fits(rows)?;
    let late = rows.values().find(|row| !row.fits)?.robots;
    (late - fits > 1).then_some((fits, late))
}

fn sheet(plan: &Plan<'_>) -> Sheet {
    let share = format!("p{}", figure_of_share(plan.quantile));
    let titles = [
        "robots\n",
        &format!("model reaction\n{share} ms"),
        "model bulk\nMbit/s",
        "violation\nrate",
    ];
    let simulated = ["reaction ms\np50", "\np99", "bulk\nMbit/s", "fits\n"];
    Sheet {
        titles: titles.into_iter().chain(simulated).map(str::to_owned).collect(),
        names: 1,
        rows: plan
            .rows
            .iter()
            .map(|row| cells(row, plan.robots_max_simulated))
            .collect(),
    }
}

fn cells(row: &Row, limit: Option<usize>) -> Vec<String> {
    let fits = match row.fits {
        true if Some(row.robots) == limit => "limit",
        true => "yes",
        false => "no",
    };
    vec![
        row.robots.to_string(),
        figure(row.model_reaction_ms),
        figure(row.model_bulk_mbps),
        shown(row.violation_rate, percent),
        shown(row.reaction_p50_ms, figure),
        shown(row.reaction_p99_ms, figure),
        shown(row.bulk_mbps, figure),
        fits.to_owned(),
    ]
}

/// 0.95 as 95, 0.999 as 99.9.
fn figure_of_share(share: f64) -> f64 {
    (share * 1e5).round() / 1e3
}

fn verdict(plan: &Plan<'_>) -> String {
    let asked = format!(
        "{} % of loops within {} ms",
        figure_of_share(plan.quantile),
        plan.bound_ms
    );
    let none = "no team at all".to_owned();
    let simulated = match plan.robots_max_simulated {
        None => none.clone(),
        Some(limit) if limit >= ROBOTS_MAX => format!("at least {ROBOTS_MAX} robots"),
        Some(limit) => format!("{limit} robots"),
    };
    let modelled = plan.robots_max_model.map_or(none, |limit| format!("{limit} robots"));
    let policy = plan.policy;
    format!(
        "{asked} under {policy}: simulation has room for {simulated}, the model for {modelled} (the leader counts).\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(robots: usize, fits: bool) -> (usize, Row) {
        let row = Row {
            robots,
            model_reaction_ms: 1.0,
            model_bulk_mbps: 1.0,
            model_fits: true,
            violation_rate: None,
            reaction_p50_ms: None,
            reaction_p99_ms: None,
            bulk_mbps: None,
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
    }
}
