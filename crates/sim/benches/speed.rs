//! Virtual seconds per wall-clock second, for the papers' team under `coorp`, and for teams of 5 to 200 robots.
//!
//! `cargo bench -p coorp-sim`. Throughput is in elements per second; an element is a virtual second.
#![allow(missing_docs)]

use std::hint::black_box;
use std::path::Path;

use coorp_core::policy::Policy;
use coorp_core::Duration;
use coorp_sim::Options;
use criterion::{criterion_group, criterion_main, BenchmarkId, Criterion, Throughput};

const VIRTUAL_S: u64 = 60;

fn simulate(team: &coorp_team::Team, policy: &Policy) {
    let options = Options {
        duration: Duration::from_secs(VIRTUAL_S),
        seed: 1,
        ..Options::default()
    };
    let run = coorp_sim::run(team, policy, &options, &|_| {});
    black_box(run.is_ok());
}

/// Returns a team whose robots report 200 bytes five times a second, so that 200 of them leave room on the channel.
fn many(robots: usize) -> String {
    let mut text = String::from("[[robot]]\nname = \"leader\"\nleader = true\n");
    for robot in 1..robots {
        text += &format!("[[robot]]\nname = \"robot-{robot}\"\n");
    }
    text + "[air]\nwidth_mhz = 80\nstreams = 2\nmcs = 5\nrts_cts = true\nwnic = \"mt7612u\"\n\
            [control]\nrate_hz = 5\nbound = \"150ms\"\nperception = \"200B\"\ncommand = \"64B\"\n\
            inference = \"20ms\"\njitter = \"5ms\"\n\
            [learning]\nparameters = 10_000_000\nbatch_loops = 5\nrounds = 10\ntraining = \"100ms\"\n"
}

fn speed(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("simulate");
    group.sample_size(10).throughput(Throughput::Elements(VIRTUAL_S));
    let Some(coorp) = Policy::named("coorp") else { return };
    let navigation = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/navigation.toml");
    if let Ok(team) = coorp_team::load(&navigation) {
        group.bench_function("navigation", |bencher| bencher.iter(|| simulate(&team, &coorp)));
    }
    for robots in [5, 10, 25, 50, 100, 200] {
        if let Ok(team) = coorp_team::parse(&many(robots), "many.toml", Path::new(".")) {
            let id = BenchmarkId::new("robots", robots);
            group.bench_function(id, |bencher| bencher.iter(|| simulate(&team, &coorp)));
        }
    }
    group.finish();
}

criterion_group!(benches, speed);
criterion_main!(benches);
