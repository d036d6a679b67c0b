//! `coorp plan --paths`: how many interfaces bring 68, 95 and 99 % of control in time (Lee, eq. 10 to 17; Lee's own
//! question is section IV-C).
//!
//! Three answers stand side by side. Two are Lee's model: tries that are lost independently and repeated at once, counted as
//! Lee does, by the mean and deviations as if delays were normal (`core::paths::plan`), and counted exactly. The third one
//! simulates each interface's channel with the file's traffic and multiplies the shares of messages that are late or lost
//! (eq. 11). A try takes the median latency without losses; the card repeats it.
//!
//! The control loop is replaced by its messages, as periodic flows between the leader and each robot, so that each one is late
//! or not by itself. Learning is replaced by a saturated TCP connection from each robot to the leader. Link events last for
//! the whole run, so an answer holds for the worst of the file. Left out: bulk keeping to one interface (all of it loads each
//! one), and losses that interfaces share.

use coorp_core::paths::plan::{failures_allowed, failures_of_tries, fewest, sigmas_of};
use coorp_core::paths::PATHS_MAX;
use coorp_core::policy::Policy;
use coorp_core::{Duration, RobotId};
use coorp_sim::Options;
use coorp_team::{Category, Change, Control, Event, Flow, RateOverride, RateSource, Team, Traffic, Transport};
use serde::Serialize;

use super::{scale, Args};
use crate::failure::{Failure, NoResult};
use crate::jobs;
use crate::number::{figure, percent};
use crate::output::{self, Destination};
use crate::progress::Progress;
use crate::summary::shown;
use crate::table::{self, Sheet, DASH};

/// The shares of messages in time that Lee names.
const SHARES: [f64; 3] = [0.68, 0.95, 0.99];
/// How the flows of this module begin.
const NAME: &str = "plan-paths-";

/// The content of `--json`.
#[derive(Debug, Serialize)]
struct Plan<'a> {
    team: &'a str,
    seed: u64,
    policy: &'a str,
    target_ms: f64,
    interfaces: Vec<Interface>,
    answers: Vec<Answer>,
}

/// One interface, at its worst pair of robots.
#[derive(Clone, Debug, Serialize)]
struct Interface {
    name: String,
    /// The median latency without losses.
    try_ms: Option<f64>,
    /// Share of tries lost; null where losses depend on the signal.
    loss: Option<f64>,
    /// Share of messages simulated that are late or lost.
    failures: f64,
    /// Of which pair of robots.
    from: String,
    to: String,
}

/// How many interfaces a share of messages in time takes; null if 8 are not enough.
#[derive(Clone, Debug, Serialize)]
struct Answer {
    share: f64,
    lee: Option<usize>,
    counted: Option<usize>,
    simulated: Option<usize>,
}

/// A pair of robots on one interface.
#[derive(Clone, Copy, Debug)]
struct Path {
    pair: (RobotId, RobotId),
    /// Median latency without losses, ms.
    try_ms: Option<f64>,
    loss: Option<f64>,
    failures: f64,
}

/// Runs `coorp plan --paths`.
///
/// # Errors
/// A simulation violated an invariant, or there is nothing to simulate.
pub fn run(
    args: &Args,
    team: &Team,
    control: &Control,
    policy: &Policy,
    json: Option<&Destination>,
) -> Result<(), Failure> {
    let target = args.target.unwrap_or(control.bound);
    let least = target + control.period * 10;
    if args.duration < least {
        return Err(Failure::Input(format!(
            "error: {} is too short for messages that have {target} each; use a --duration of {:.1}s or more",
            args.duration,
            (least.as_secs_f64() * 10.0).ceil() / 10.0
        )));
    }
    let channels = team.channels().count();
    let paths = simulate(args, team, control, policy, target)?;
    let interfaces: Vec<Interface> = paths
        .iter()
        .enumerate()
        .filter_map(|(number, of)| interface(team, number, of))
        .collect();
    let plan = Plan {
        team: &team.name,
        seed: args.seed,
        policy: &args.policy,
        target_ms: target.as_millis_f64(),
        answers: SHARES
            .map(|share| answer(&paths, share, target.as_millis_f64()))
            .to_vec(),
        interfaces,
    };
    let mut outcomes = Vec::new();
    if !json.is_some_and(Destination::is_stdout) {
        outcomes.push(output::print(&text(&plan, args, channels)));
    }
    outcomes.extend(json.map(|json| output::write_json(json, &plan)));
    output::settle(outcomes)
}

/// Simulates each interface without losses and with them; returns its pairs of robots.
fn simulate(
    args: &Args,
    team: &Team,
    control: &Control,
    policy: &Policy,
    target: Duration,
) -> Result<Vec<Vec<Path>>, Failure> {
    let runs: Vec<(usize, Option<f64>)> = (0..team.channels().count())
        .flat_map(|number| [(number, Some(0.0)), (number, args.loss)])
        .collect();
    let progress = Progress::new(runs.len(), args.duration, args.quiet);
    let threads = args.threads.map_or_else(jobs::cores, usize::from);
    let results = jobs::run(&runs, threads, |index, (number, loss)| {
        let mut team = on_interface(team, control, *number, *loss, target);
        // Whatever is sent has its time to arrive.
        let messages = team
            .flows
            .iter_mut()
            .filter(|flow| flow.name.starts_with(NAME) && !flow.bulk);
        messages.for_each(|flow| flow.stop = Some(Duration::from_nanos(args.duration.as_nanos() - target.as_nanos())));
        let options = Options {
            duration: args.duration,
            seed: args.seed,
            ..Options::default()
        };
        let reach = |now| progress.reach(index, now);
        let run = coorp_sim::run(&team, policy, &options, &reach).map_err(NoResult::from);
        progress.finish(index);
        run.map(|run| run.result.flows)
    });
    progress.clear();
    let name = || format!("{}, seed {}", args.file.display(), args.seed);
    let flows: Vec<_> = results
        .into_iter()
        .collect::<Result<_, _>>()
        .map_err(|why| why.ends(&name()))?;
    let paths = flows.chunks_exact(2).enumerate().map(|(number, both)| {
        let of = |(pair, name): ((RobotId, RobotId), String)| {
            let [free, lossy] = [&both[0], &both[1]].map(|flows| flows.iter().find(|flow| flow.name == name));
            Path {
                pair,
                try_ms: free.and_then(|flow| flow.latency_ms).map(|latency| latency.p50),
                loss: args.loss.or_else(|| loss(team, number, pair)),
                // Where a robot lacks the interface, nothing arrives.
                failures: lossy.and_then(|flow| flow.violation_rate).unwrap_or(1.0),
            }
        };
        pairs(team).map(of).collect()
    });
    Ok(paths.collect())
}

/// Returns the pairs that exchange perceptions and commands, with the names of their flows.
fn pairs(team: &Team) -> impl Iterator<Item = ((RobotId, RobotId), String)> + '_ {
    let led = scale::ids(team).filter(|id| *id != team.leader);
    let both = led.flat_map(|id| [(id, team.leader), (team.leader, id)]);
    both.map(|(from, to)| ((from, to), format!("{NAME}{}-{}", from.0, to.0)))
}

/// Returns the team on one of its interfaces alone, with its control as flows. With `loss`, each link loses that share of its
/// tries; otherwise as the file says, with its events all the time.
fn on_interface(team: &Team, control: &Control, number: usize, loss: Option<f64>, target: Duration) -> Team {
    let mut alone = team.clone();
    if let Some(air) = team.channels().nth(number) {
        alone.air = air.clone();
    }
    alone.interfaces.clear();
    alone.events = match loss {
        Some(_) => Vec::new(),
        None => events(team, number).collect(),
    };
    if let Some(loss) = loss {
        alone.air.loss = loss;
        let rates = alone.robots.iter_mut().map(|robot| &mut robot.rate);
        let links = alone.air.links.iter_mut().map(|link| &mut link.rate);
        rates.chain(links).for_each(|rate| rate.loss = None);
    }
    let here = |id: RobotId| team.has_interface(id, number);
    alone.flows.retain(|flow| here(flow.from) && here(flow.to));
    let learns = alone.learning.is_some();
    (alone.control, alone.learning) = (None, None);
    let pairs: Vec<_> = pairs(team).filter(|((from, to), _)| here(*from) && here(*to)).collect();
    let count = pairs.len().max(1) as u64;
    for (place, ((from, to), name)) in (0u64..).zip(pairs) {
        let size_bytes = if to == team.leader {
            control.perception_bytes
        } else {
            control.command_bytes
        };
        let message = Flow {
            name,
            from,
            to,
            category: Category::Voice,
            transport: Transport::Udp,
            traffic: Traffic::Periodic {
                size_bytes,
                period: control.period,
                jitter: control.jitter,
            },
            // Spread over the period, as of sensors that do not agree.
            start: Duration::from_nanos(control.period.as_nanos() / count * place),
            stop: None,
            bulk: false,
            bound: Some(target),
            recorded: None,
        };
        if learns && to == team.leader {
            alone.flows.push(Flow {
                name: format!("{}-bulk", message.name),
                category: Category::BestEffort,
                transport: Transport::Tcp,
                traffic: Traffic::Saturated { packet_bytes: 1448 },
                start: Duration::ZERO,
                bulk: true,
                bound: None,
                ..message.clone()
            });
        }
        alone.flows.push(message);
    }
    alone
}

/// Returns the changes of an interface's links, for the whole run.
fn events(team: &Team, number: usize) -> impl Iterator<Item = Event> + '_ {
    let here = move |event: &&Event| {
        event.interface.is_none_or(|of| of == number) && matches!(event.change, Change::Link { .. })
    };
    team.events.iter().filter(here).map(|event| Event {
        at: Duration::ZERO,
        until: None,
        interface: None,
        ..event.clone()
    })
}

/// Returns the share of tries lost between two robots, over all hops; `None` where it depends on the signal.
fn loss(team: &Team, number: usize, (from, to): (RobotId, RobotId)) -> Option<f64> {
    let air = team.channels().nth(number)?;
    let mut arrives = 1.0;
    for (from, to) in team.hops(air, from, to) {
        let mut now = RateOverride::default();
        for event in events(team, number) {
            if let Change::Link { from: of, to: by, rate } = event.change {
                if of.is_none_or(|of| of == from) && by.is_none_or(|by| by == to) {
                    now = rate.or(now);
                }
            }
        }
        let rate = team.rate_on(air, now, from, to)?;
        if !matches!(rate.source, RateSource::Mcs(_)) {
            return None;
        }
        arrives *= 1.0 - rate.loss;
    }
    Some(1.0 - arrives)
}

/// Returns an interface as its worst pair of robots sees it.
fn interface(team: &Team, number: usize, of: &[Path]) -> Option<Interface> {
    // Of equals, the first.
    let worst = of.iter().rev().max_by(|a, b| {
        let losses = a.loss.unwrap_or(0.0).total_cmp(&b.loss.unwrap_or(0.0));
        a.failures.total_cmp(&b.failures).then(losses)
    })?;
    let name = |id: RobotId| team.robots.get(usize::from(id.0)).map(|robot| robot.name.clone());
    Some(Interface {
        name: format!("wlan{number}"),
        try_ms: worst.try_ms,
        loss: worst.loss,
        failures: worst.failures,
        from: name(worst.pair.0)?,
        to: name(worst.pair.1)?,
    })
}

/// Returns how many interfaces each pair of robots needs, at most.
fn answer(paths: &[Vec<Path>], share: f64, target_ms: f64) -> Answer {
    let pairs = paths.first().map_or(0, Vec::len);
    let worst = |of: &dyn Fn(&[Path]) -> Option<usize>| {
        let each = (0..pairs).map(|pair| of(&paths.iter().map(|of| of[pair]).collect::<Vec<_>>()));
        // One that has no answer leaves none.
        each.collect::<Option<Vec<usize>>>()?.into_iter().max()
    };
    let late = 1.0 - share;
    Answer {
        share,
        lee: worst(&|paths| {
            let (losses, delays) = tries(paths, target_ms)?;
            let slowest = |count: usize| delays.iter().take(count).copied().fold(0.0, f64::max);
            let sigmas = sigmas_of(share)?;
            fewest(losses, |count| failures_allowed(slowest(count), sigmas))
        }),
        counted: worst(&|paths| {
            let (losses, delays) = tries(paths, target_ms)?;
            let failures = losses.into_iter().zip(delays);
            fewest(failures.map(|(loss, delay)| failures_of_tries(loss, delay)), |_| late)
        }),
        simulated: worst(&|paths| fewest(further(paths, |path| Some(path.failures))?, |_| late)),
    }
}

/// Returns the losses of tries, and the time of one as a share of the target.
fn tries(paths: &[Path], target_ms: f64) -> Option<(Vec<f64>, Vec<f64>)> {
    let losses = further(paths, |path| path.loss)?;
    let delays = further(paths, |path| path.try_ms.map(|ms| ms / target_ms))?;
    Some((losses, delays))
}

/// Returns a figure of up to [`PATHS_MAX`] interfaces, the best ones first; those that the file lacks are like its worst.
fn further(paths: &[Path], figure: impl Fn(&Path) -> Option<f64>) -> Option<Vec<f64>> {
    let mut order: Vec<&Path> = paths.iter().collect();
    order.sort_by(|a, b| a.failures.total_cmp(&b.failures));
    let mut figures = order.into_iter().map(figure).collect::<Option<Vec<f64>>>()?;
    let last = *figures.last()?;
    figures.resize(PATHS_MAX.max(figures.len()), last);
    Some(figures)
}

fn text(plan: &Plan<'_>, args: &Args, channels: usize) -> String {
    let interfaces = Sheet {
        titles: [
            "interface",
            "a try\nms",
            "lost\nof tries",
            "simulated:\nlate or lost",
            "at worst\nfrom",
            "\nto",
        ]
        .map(str::to_owned)
        .to_vec(),
        names: 1,
        rows: plan.interfaces.iter().map(row).collect(),
    };
    let by_share = |title: &str, of: fn(&Answer) -> Option<usize>| {
        let cell = |answer: &Answer| match of(answer) {
            Some(count) if count > channels => format!("{count}, {} more", count - channels),
            Some(count) => count.to_string(),
            None => DASH.to_owned(),
        };
        std::iter::once(title.to_owned())
            .chain(plan.answers.iter().map(cell))
            .collect()
    };
    let shares = plan.answers.iter().map(|answer| percent(answer.share));
    let answers = Sheet {
        titles: std::iter::once("interfaces for, in time".to_owned())
            .chain(shares)
            .collect(),
        names: 1,
        rows: vec![
            by_share("Lee, eq. 17 with deviations", |answer| answer.lee),
            by_share("the same tries, counted", |answer| answer.counted),
            by_share("simulated", |answer| answer.simulated),
        ],
    };
    let width = table::terminal_width();
    let mut text = format!("{}\n{}\n", interfaces.layout(width), answers.layout(width));
    text += &format!(
        "In time: within {} ms, for each pair of robots. Lee's lines assume tries that fail independently and are \
         repeated at once, for as long as the message is of use.\nSimulated: each interface for {} under {}, with the \
         file's bulk on each and its link events all the time.\n",
        figure(plan.target_ms),
        args.duration,
        plan.policy
    );
    if plan.answers.iter().any(|answer| {
        [answer.lee, answer.counted, answer.simulated]
            .iter()
            .any(|count| *count > Some(channels))
    }) {
        text += "More: further interfaces are taken to be like the worst one of the file.\n";
    }
    if plan.answers.iter().any(|answer| answer.simulated.is_none()) {
        text += &format!("{DASH}: even {PATHS_MAX} interfaces are not enough.\n");
    }
    if plan.interfaces.iter().any(|interface| interface.loss.is_none()) {
        text += "Losses depend on the signal here, which Lee's model does not know; --loss gives one.\n";
    }
    text
}

fn row(interface: &Interface) -> Vec<String> {
    vec![
        interface.name.clone(),
        shown(interface.try_ms, figure),
        shown(interface.loss, percent),
        percent(interface.failures),
        interface.from.clone(),
        interface.to.clone(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(try_ms: f64, loss: f64, failures: f64) -> Path {
        Path {
            pair: (RobotId(0), RobotId(1)),
            try_ms: Some(try_ms),
            loss: Some(loss),
            failures,
        }
    }

    #[test]
    fn the_worst_pair_decides_and_further_interfaces_are_like_the_worst() {
        let good = path(10.0, 0.1, 0.001);
        let poor = path(10.0, 0.4, 0.2);
        // The first pair has one good interface and a poor one, the second pair two poor ones.
        let paths = [vec![good, poor], vec![poor, poor]];
        let at = |share| answer(&paths, share, 24.5);
        assert_eq!((at(0.95).simulated, at(0.99).simulated), (Some(2), Some(3)));
        assert_eq!(
            (at(0.95).lee, at(0.99).lee),
            (Some(2), Some(3)),
            "as in core::paths::plan"
        );
        assert_eq!(at(0.95).counted, Some(2));
        let only_good = [vec![good], vec![good]];
        assert_eq!(answer(&only_good, 0.99, 24.5).simulated, Some(1));
    }

    #[test]
    fn what_is_not_known_or_never_enough_has_no_answer() {
        let unknown = Path {
            loss: None,
            ..path(1.0, 0.0, 0.5)
        };
        let found = answer(&[vec![unknown]], 0.95, 24.5);
        assert_eq!((found.lee, found.counted, found.simulated), (None, None, Some(5)));
        let dead = answer(&[vec![path(30.0, 0.0, 1.0)]], 0.68, 24.5);
        assert_eq!(
            (dead.lee, dead.counted, dead.simulated),
            (None, None, None),
            "no try fits into the target"
        );
    }

    #[test]
    fn a_files_events_last_all_the_time_and_a_given_loss_takes_their_place() {
        let text = "[[robot]]\nname = \"a\"\nleader = true\n[[robot]]\nname = \"b\"\n[air]\nchannel = 36\nmcs = 5\n\
                    [[interface]]\nchannel = 149\nmcs = 3\nloss = 0.1\n\
                    [[event]]\nat = \"60s\"\ninterface = \"wlan0\"\nfrom = \"b\"\nloss = 0.4\n\
                    [control]\nrate_hz = 30\n";
        let team = coorp_team::parse(text, "t.toml", std::path::Path::new(".")).unwrap();
        let control = team.control.unwrap();
        let (to_leader, to_robot) = ((RobotId(1), RobotId(0)), (RobotId(0), RobotId(1)));
        assert_eq!(
            (loss(&team, 0, to_leader), loss(&team, 0, to_robot)),
            (Some(0.4), Some(0.0))
        );
        let near = |share: Option<f64>| (share.unwrap() - 0.1).abs() < 1e-9;
        assert!(near(loss(&team, 1, to_leader)), "wlan1 has no event");
        let target = control.bound;
        let worst = on_interface(&team, &control, 0, None, target);
        assert!(
            worst.events.len() == 1 && worst.events[0].active(Duration::ZERO),
            "{:?}",
            worst.events
        );
        assert!(worst.control.is_none() && worst.flows.len() == 2, "{:?}", worst.flows);
        let other = on_interface(&team, &control, 1, None, target);
        assert!(other.events.is_empty() && other.air.channel == 149 && other.interfaces.is_empty());
        let given = on_interface(&team, &control, 1, Some(0.3), target);
        assert_eq!((given.air.loss, given.events.len()), (0.3, 0));
    }
}
