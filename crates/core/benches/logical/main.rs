//! The cost of logical time: of a reaction in the scheduler, of building a graph, and of coordinating many federates.
//!
//! `cargo bench -p coorp-core --bench logical`. Figures that show a number of elements are the cost of all elements
//! together. Reactions do nothing but set their outputs.

// criterion's macros generate public functions.
#![allow(missing_docs)]

mod programs;

use coorp_core::failover::Epoch;
use coorp_core::logical::protocol::{Envelope, Report, Up};
use coorp_core::logical::scheduler::Waits;
use coorp_core::logical::{Effects, FederateId, Graph, Program, Rti, RtiConfig, Scheduler, SchedulerConfig, Step, Tag};
use coorp_core::{Duration, Instant, RobotId};
use criterion::{criterion_group, criterion_main, Criterion, Throughput};
use programs::Shape;
use std::hint::black_box;
use std::sync::Arc;

const SHAPES: [(&str, Shape); 3] = [
    ("forward", Shape::Forward),
    ("feedback", Shape::Feedback),
    ("mutual", Shape::Mutual),
];

fn build(program: &Program) -> Arc<Graph> {
    Arc::new(Graph::new(program).expect("the program is correct"))
}

fn scheduler(graph: &Arc<Graph>) -> Scheduler<u64> {
    let config = SchedulerConfig {
        fast: true,
        ..SchedulerConfig::default()
    };
    let mut scheduler = Scheduler::new(Arc::clone(graph), FederateId(0), Waits::InCycles, config);
    scheduler.start(Instant::ZERO, Tag::START);
    scheduler.advance_to(Tag::FOREVER);
    scheduler
}

/// Runs one tag and returns the number of reactions that ran.
fn tag(graph: &Graph, scheduler: &mut Scheduler<u64>) -> u64 {
    let mut count = 0;
    loop {
        match scheduler.poll(Instant::ZERO).expect("there is a timer") {
            Step::Run { reactions, .. } => {
                for ready in reactions {
                    count += 1;
                    let sets = graph.reactions()[ready.reaction.0 as usize].effects.iter();
                    let effects = Effects {
                        sets: sets.map(|output| (*output, 1)).collect(),
                        ..Effects::default()
                    };
                    let finished = scheduler.finish(ready.reaction, effects, Instant::ZERO);
                    finished.expect("it was to be run");
                }
            }
            Step::Completed(_) => return count,
            other => panic!("{other:?}"),
        }
    }
}

fn tags(c: &mut Criterion) {
    let mut group = c.benchmark_group("tag");
    for (name, program) in [
        ("one reaction", programs::chain(1)),
        ("chain of 100", programs::chain(100)),
        ("fan-out to 100", programs::fan_out(101)),
        (
            "1,000 reactors, 10,000 connections",
            programs::mesh(Shape::Forward, 1_000, 10_000, false),
        ),
    ] {
        let graph = build(&program);
        let mut scheduler = scheduler(&graph);
        let count = tag(&graph, &mut scheduler);
        group.throughput(Throughput::Elements(count));
        group.bench_function(name, |b| b.iter(|| black_box(tag(&graph, &mut scheduler))));
    }
}

fn graphs(c: &mut Criterion) {
    let mut group = c.benchmark_group("graph of 1,000 reactors, 10,000 connections");
    group.sample_size(10);
    for (name, shape) in SHAPES {
        for (place, one_each) in [("one federate", false), ("1,000 federates", true)] {
            let program = programs::mesh(shape, 1_000, 10_000, one_each);
            group.bench_function(format!("{name}, {place}"), |b| {
                b.iter(|| Graph::new(black_box(&program)));
            });
        }
    }
}

/// An RTI with federates that take turns at completing one tag after the other.
struct Round {
    graph: Arc<Graph>,
    rti: Rti<u64>,
    at: Tag,
}

const EPOCH: Epoch = Epoch {
    round: 1,
    robot: RobotId(0),
    incarnation: 0,
};

/// Returns the report of a federate before the start.
fn waiting() -> Report<u64> {
    Report {
        now: Instant::ZERO,
        start: None,
        completed: Tag::NEVER,
        granted: Tag::NEVER,
        provisional: Tag::NEVER,
        next: Tag::START,
        is_bound: true,
        received: Vec::new(),
        gone: Vec::new(),
        retained: Vec::new(),
        stop_proposal: None,
        stop: None,
        has_ended: false,
    }
}

impl Round {
    fn new(graph: Arc<Graph>) -> Self {
        let rti = Rti::new(Arc::clone(&graph), EPOCH, RtiConfig::default(), Instant::ZERO);
        let at = Tag::START;
        let mut round = Round { graph, rti, at };
        for federate in round.graph.federate_ids().collect::<Vec<_>>() {
            round.rti.on_connected(federate, Instant::ZERO);
            round.tell(federate, Up::Report(Box::new(waiting())));
        }
        for federate in round.graph.federate_ids().collect::<Vec<_>>() {
            let (tag, is_bound) = (Tag::START, false);
            round.tell(federate, Up::NextEvent { tag, is_bound });
        }
        round
    }

    fn tell(&mut self, from: FederateId, body: Up<u64>) -> u64 {
        let (epoch, received) = (EPOCH, 0);
        self.rti
            .on_message(from, Envelope { epoch, received, body }, Instant::ZERO);
        let mut actions = 0;
        while let Some(action) = self.rti.poll() {
            black_box(action);
            actions += 1;
        }
        actions
    }

    /// Lets every federate complete a tag and report its next one.
    fn run(&mut self) -> u64 {
        let completed = self.at;
        let time = completed.time().expect("a program ends before") + Duration::from_millis(10);
        self.at = Tag::at(time, 0);
        let (tag, is_bound) = (self.at, false);
        let mut actions = 0;
        for federate in self.graph.federate_ids().collect::<Vec<_>>() {
            actions += self.tell(federate, Up::Completed(completed));
            actions += self.tell(federate, Up::NextEvent { tag, is_bound });
        }
        actions
    }
}

fn rti(c: &mut Criterion) {
    let mut group = c.benchmark_group("RTI of 1,000 federates, LTC and NET of each");
    group.sample_size(10).throughput(Throughput::Elements(2_000));
    for (name, shape) in SHAPES {
        let mut round = Round::new(build(&programs::mesh(shape, 1_000, 10_000, true)));
        let actions = round.run();
        assert!(actions >= 900, "{actions} grants");
        group.bench_function(name, |b| b.iter(|| black_box(round.run())));
    }
}

criterion_group!(logical, tags, graphs, rti);
criterion_main!(logical);
