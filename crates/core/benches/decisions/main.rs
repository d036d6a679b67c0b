//! The cost of a decision: of the gate per bulk packet, of a model per control message, and of a whole robot's step.
//!
//! `cargo bench -p coorp-core`. A step is one input with all actions that follow from it. The goals are 50 ns for a
//! gate's decision about bulk, and 1 us for every other usual input. Each step's figure includes reading the clock,
//! some 25 ns. Gate decisions are the exception, because many are timed together.

// criterion's macros generate public functions.
#![allow(missing_docs)]

mod team;

use coorp_core::arrival::{ArrivalConfig, ArrivalModel, Deviation};
use coorp_core::gate::{CompletionTable, Gate};
use coorp_core::windows::Window;
use coorp_core::{Duration, Instant};
use criterion::{criterion_group, criterion_main, Criterion};
use std::hint::black_box;
use team::{Kind, Team};

const PERIOD_NS: u64 = 33_333_333;

fn gate_decision(c: &mut Criterion) {
    let mut table = CompletionTable::new(256, 32, 0.95);
    for n in 0..64 {
        for sample in 0..32 {
            table.record(
                n,
                Duration::from_micros(300 + 60 * n as u64 + sample),
                Instant::from_nanos(0),
            );
        }
    }
    let mut gate = Gate::new(table, None);
    let mut now = Instant::from_nanos(0);
    c.bench_function("gate decision", |b| {
        b.iter(|| {
            // Packets 20 us apart; a 3 ms window in each period, published when the previous one has ended.
            now += Duration::from_micros(20);
            if now >= gate.window().end {
                let start = now + Duration::from_millis(30);
                gate.on_window(Window {
                    start,
                    end: start + Duration::from_millis(3),
                });
            }
            black_box(gate.on_dequeue(black_box((now.as_nanos() / 20_000 % 64) as usize), now))
        });
    });
    c.bench_function("gate completion", |b| {
        b.iter(|| {
            now += Duration::from_micros(20);
            gate.on_complete(
                (now.as_nanos() / 20_000 % 64) as usize,
                now - Duration::from_micros(900),
                now,
            );
        });
    });
}

fn arrival_sample(c: &mut Criterion) {
    for (name, deviation) in [("normal", Deviation::Normal), ("quantile", Deviation::Quantile)] {
        let mut model = ArrivalModel::new(ArrivalConfig {
            deviation,
            ..ArrivalConfig::default()
        });
        let (mut ideal_ns, mut random) = (0, 1u64);
        c.bench_function(&format!("arrival sample, {name}"), |b| {
            b.iter(|| {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                ideal_ns += PERIOD_NS;
                // The sum of four bytes approximates a normal distribution with 0.3 ms deviation.
                let jitter_ns: u64 = random.to_le_bytes()[..4].iter().map(|b| u64::from(*b) * 2_000).sum();
                model.on_sample(Instant::from_nanos(ideal_ns + jitter_ns));
            });
        });
        c.bench_function(&format!("arrival prediction, {name}"), |b| {
            b.iter(|| black_box(black_box(&model).predict(Instant::from_nanos(ideal_ns))));
        });
    }
}

fn robot_step(c: &mut Criterion) {
    let mut team = Team::new();
    for (name, kind) in [
        ("may pass", Kind::Ask),
        ("bulk left", Kind::BulkLeft),
        ("control made", Kind::ControlMade),
        ("control arrived", Kind::ControlArrived),
        ("word arrived", Kind::Word),
        ("time", Kind::Time),
    ] {
        c.bench_function(&format!("robot step, {name}"), |b| {
            b.iter_custom(|times| team.measure(kind, times));
        });
    }
}

criterion_group!(decisions, gate_decision, arrival_sample, robot_step);
criterion_main!(decisions);
