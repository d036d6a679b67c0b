//! Compares short runs of the examples, byte for byte, with the results in `golden/`. A change of structure must change
//! no number, and a change of behaviour shows which.
//!
//! `COORP_GOLDEN=write cargo test -p coorp-sim --test golden` rewrites the files; read their diff before you commit it.
//! There is one file per example: each policy with seed 1, `navigation` also with other seeds, and `faults` also with
//! faults. Left out: the series and the timeline, which `runs.rs` checks to change no number.
#![allow(missing_docs)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::{env, fs, thread};

use coorp_core::policy::Policy;
use coorp_core::Duration;
use coorp_sim::results::PolicyResult;
use coorp_sim::{Error, Options};
use coorp_team::Team;
use serde::Serialize;

const SECONDS: u64 = 5;
const FAULT_SECONDS: u64 = 4;

/// One run.
#[derive(Serialize)]
struct Golden {
    policy: &'static str,
    seed: u64,
    faults: bool,
    /// The result; null if the policy does not fit the team. `wall_s` is always 0.
    result: Option<PolicyResult>,
}

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// Returns the names of the files in a folder that have this ending, without the ending.
fn stems(folder: &Path, ending: &str) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let names = entries.flatten().map(|entry| entry.file_name());
    names
        .filter_map(|name| Some(name.to_str()?.strip_suffix(ending)?.to_owned()))
        .collect()
}

/// Returns an example with much smaller learning, so that bulk flows and epochs end in a short run.
fn example(name: &str) -> Team {
    let path = folder("../../examples").join(format!("{name}.toml"));
    let mut team = coorp_team::load(&path).unwrap_or_else(|error| panic!("{error}"));
    if let Some(learning) = &mut team.learning {
        learning.batch_loops = learning.batch_loops.min(15);
        learning.rounds = learning.rounds.min(2);
        learning.parameters = learning.parameters.min(1_000_000);
        learning.training = learning.training.min(Duration::from_millis(100));
    }
    for robot in &mut team.robots {
        robot.training = robot.training.map(|time| time.min(Duration::from_millis(200)));
    }
    team
}

fn coordinates(policy: &str) -> bool {
    let policy = Policy::named(policy).expect("a preset");
    policy.global.is_some() || policy.local.is_some() || policy.schedwifi.is_some()
}

fn runs(name: &str) -> Vec<Golden> {
    let team = example(name);
    let seeds = if name == "navigation" { 1..=3 } else { 1..=1 };
    let plain = seeds.flat_map(|seed| Policy::NAMES.map(|policy| (policy, seed, false)));
    let fault_seeds = 0..if name == "faults" { 3 } else { 0 };
    let coordinating = Policy::NAMES.into_iter().filter(|policy| coordinates(policy));
    let faulty = coordinating.flat_map(|policy| fault_seeds.clone().map(move |seed| (policy, seed + 1, true)));
    let all = plain.chain(faulty);
    all.map(|(policy, seed, faults)| Golden {
        policy,
        seed,
        faults,
        result: run(&team, policy, seed, faults),
    })
    .collect()
}

fn run(team: &Team, policy: &str, seed: u64, faults: bool) -> Option<PolicyResult> {
    let options = Options {
        duration: Duration::from_secs(if faults { FAULT_SECONDS } else { SECONDS }),
        seed,
        faults,
        ..Options::default()
    };
    match coorp_sim::run(team, &Policy::named(policy).expect("a preset"), &options, &|_| {}) {
        Ok(mut run) => {
            run.result.wall_s = 0.0;
            Some(run.result)
        }
        Err(Error::NothingToRun { .. } | Error::Unfit { .. }) => None,
        Err(error) => panic!("{policy}, seed {seed}, faults {faults}: {error}"),
    }
}

/// Returns the first line that differs, and the run that it belongs to.
fn difference(name: &str, runs: &[Golden], golden: &str) -> Option<String> {
    let text = json(runs);
    let (mut is, mut was) = (text.lines(), golden.lines());
    let mut begun = 0;
    for number in 1.. {
        let (is, was) = (is.next(), was.next());
        if is == was {
            is?;
            begun += usize::from(is == Some("  {"));
            continue;
        }
        let [is, was] = [is, was].map(|line| line.map_or("the end of the file", str::trim));
        let run = runs.get(begun.saturating_sub(1)).map_or(String::new(), |run| {
            format!("{}, seed {}, faults {}: ", run.policy, run.seed, run.faults)
        });
        return Some(format!("{name}, {run}line {number} was {was}, is {is}"));
    }
    None
}

fn json(runs: &[Golden]) -> String {
    serde_json::to_string_pretty(runs).expect("serialisable") + "\n"
}

#[test]
fn short_runs_of_the_examples_are_as_they_were() {
    let examples = stems(&folder("../../examples"), ".toml");
    let write = env::var_os("COORP_GOLDEN").is_some_and(|value| value == "write");
    let compare = |name: &str| {
        let runs = runs(name);
        let path = folder("tests/golden").join(format!("{name}.json"));
        if write {
            return fs::write(&path, json(&runs))
                .err()
                .map(|error| format!("{}: {error}", path.display()));
        }
        match fs::read_to_string(&path) {
            Ok(golden) => difference(name, &runs, &golden),
            Err(error) => Some(format!("{}: {error}", path.display())),
        }
    };
    let differences: Vec<String> = thread::scope(|scope| {
        let compare = &compare;
        let threads: Vec<_> = examples.iter().map(|name| scope.spawn(move || compare(name))).collect();
        let outcomes = threads.into_iter().map(|thread| thread.join().expect("no panic"));
        outcomes.flatten().collect()
    });
    assert!(
        differences.is_empty(),
        "{}\nIf this is meant: COORP_GOLDEN=write cargo test -p coorp-sim --test golden",
        differences.join("\n")
    );
    assert_eq!(stems(&folder("tests/golden"), ".json"), examples, "one file an example");
}
