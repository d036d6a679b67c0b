//! The event log and stepped runs: in order, complete against the result's own counts, and without effect on the run.
#![allow(missing_docs)]

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use coorp_core::policy::Policy;
use coorp_core::{Duration, Instant, RobotId};
use coorp_sim::events::{Event, EventKind};
use coorp_sim::results::PolicyResult;
use coorp_sim::{Options, Session};
use coorp_team::{Sync, Team};

const SECONDS: u64 = 120;
const LEADER: RobotId = RobotId(0);

fn example() -> Team {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/navigation.toml");
    coorp_team::load(&path).unwrap_or_else(|error| panic!("{error}"))
}

/// Returns the example with small batches and models, so that epochs end within the run.
fn team(sync: Sync) -> Team {
    let mut team = example();
    let learning = team.learning.as_mut().expect("learning");
    learning.sync = sync;
    learning.parameters = 100_000;
    learning.batch_loops = 60;
    learning.rounds = 4;
    team.robots[3].training = Some(Duration::from_secs(3));
    team
}

fn at(seconds: f64) -> Instant {
    Instant::ZERO + Duration::from_secs_f64(seconds)
}

fn options(events: bool) -> Options {
    Options {
        duration: Duration::from_secs(SECONDS),
        seed: 3,
        events,
        ..Options::default()
    }
}

fn session(team: Team, policy: &str, events: bool) -> Session {
    let policy = Policy::named(policy).expect("a preset");
    Session::new(team, &policy, &options(events)).expect("a team that fits")
}

fn numbers(session: &Session) -> PolicyResult {
    let mut result = session.result().result;
    result.wall_s = 0.0;
    result
}

fn json(result: &PolicyResult) -> String {
    serde_json::to_string(result).expect("serialisable")
}

/// Returns the events and the result of a whole run.
fn whole(team: Team, policy: &str) -> (Vec<Event>, PolicyResult) {
    let mut session = session(team, policy, true);
    session.advance(at(SECONDS as f64)).expect("an unbroken run");
    (session.take_events(), numbers(&session))
}

fn count(events: &[Event], kind: EventKind) -> u64 {
    events.iter().filter(|event| event.kind == kind).count() as u64
}

#[test]
fn steps_of_any_length_give_the_same_events_and_the_same_result_as_a_run() {
    for policy in ["coorp", "schedwifi"] {
        let (events, result) = whole(team(Sync::Bsp), policy);
        assert!(!events.is_empty() && result.epochs > 2, "{policy}");
        let mut stepped = session(team(Sync::Bsp), policy, true);
        let (mut gathered, mut steps) = (Vec::new(), 0);
        while stepped.now() < at(SECONDS as f64) {
            steps += 1;
            // Uneven steps, some of them without length, with a look at the result now and then.
            let length = Duration::from_micros([0, 1, 333, 4_000, 70_001, 1_500_000][steps % 6]);
            let until = (stepped.now() + length).min(at(SECONDS as f64));
            stepped.advance(until).expect("an unbroken run");
            let new = stepped.take_events();
            assert!(new.iter().all(|event| event.at <= until));
            gathered.extend(new);
            if steps % 50 == 0 {
                assert_eq!(stepped.result().result.virtual_s, stepped.now().as_secs_f64());
            }
        }
        assert!(gathered == events, "{policy}: other events in steps");
        assert_eq!(json(&numbers(&stepped)), json(&result), "{policy}");
        let preset = Policy::named(policy).expect("a preset");
        let mut run = coorp_sim::run(&team(Sync::Bsp), &preset, &options(false), &|_| {}).expect("an unbroken run");
        run.result.wall_s = 0.0;
        assert_eq!(json(&run.result), json(&result), "{policy}: the log changed the run");
    }
}

#[test]
fn nothing_is_logged_where_nothing_was_asked_for() {
    let mut session = session(example(), "coorp", false);
    session.advance(at(5.0)).expect("an unbroken run");
    assert!(session.take_events().is_empty() && session.result().result.loops > 0);
}

#[test]
fn events_are_ordered_and_each_stage_follows_the_one_before() {
    let (events, _) = whole(team(Sync::Asp), "edca");
    assert!(events.windows(2).all(|pair| pair[0].at <= pair[1].at));
    let mut numbers: HashMap<(EventKind, RobotId), Vec<u64>> = HashMap::new();
    for event in &events {
        let of = |kind| numbers.get(&(kind, event.robot)).map_or(&[] as &[u64], Vec::as_slice);
        let before = match event.kind {
            EventKind::PerceptionIn => Some(of(EventKind::Perception)),
            EventKind::Inferred => Some(of(EventKind::Infer)),
            EventKind::Trained => Some(of(EventKind::Train)),
            EventKind::UpdateIn => Some(of(EventKind::Trained)),
            EventKind::ModelOut => Some(of(EventKind::UpdateIn)),
            EventKind::ModelIn => Some(of(EventKind::ModelOut)),
            _ => None,
        };
        if let Some(before) = before {
            assert!(of(event.kind).len() < before.len(), "{event:?} comes before its cause");
            assert!(before.contains(&event.number), "{event:?} without its cause");
        }
        let own = numbers.entry((event.kind, event.robot)).or_default();
        own.push(event.number);
    }
}

/// Returns loops and violations as counted only from the events.
fn loops_from(events: &[Event], bound: Duration, patience: Duration) -> (u64, u64) {
    let mut made: HashMap<(RobotId, u64), Instant> = HashMap::new();
    let mut fresh: BTreeMap<RobotId, Instant> = BTreeMap::new();
    let mut starts: HashMap<u64, Instant> = HashMap::new();
    let mut lost: HashMap<u64, bool> = HashMap::new();
    let (mut loops, mut violations) = (0, 0);
    for event in events {
        match event.kind {
            EventKind::Perception => {
                made.insert((event.robot, event.number), event.at);
            }
            EventKind::PerceptionIn => {
                fresh.insert(event.robot, made[&(event.robot, event.number)]);
            }
            EventKind::Infer => {
                let start = std::mem::take(&mut fresh).into_values().min();
                starts.insert(event.number, start.expect("a perception"));
            }
            EventKind::CommandLost => {
                lost.insert(event.number, true);
            }
            EventKind::LoopEnded => {
                let reaction = event.at.since(starts[&event.number]);
                let reaction = if lost.contains_key(&event.number) {
                    reaction.max(patience)
                } else {
                    reaction
                };
                loops += 1;
                violations += u64::from(reaction > bound);
            }
            _ => {}
        }
    }
    (loops, violations)
}

#[test]
fn loops_and_violations_follow_from_the_events_alone() {
    let mut lossy = team(Sync::Bsp);
    lossy.air.loss = 0.6;
    lossy.air.wnic.retries_max = 3;
    for (team, policy) in [
        (team(Sync::Bsp), "edca"),
        (team(Sync::Bsp), "mpc-only"),
        (lossy, "edca"),
    ] {
        let control = team.control.expect("a control loop");
        let robots = team.robots.len() as u64;
        let (events, result) = whole(team, policy);
        let (loops, violations) = loops_from(&events, control.bound, control.period * 3);
        assert_eq!(loops, result.loops, "{policy}");
        assert_eq!(
            violations as f64 / loops as f64,
            result.violation_rate.expect("loops"),
            "{policy}"
        );
        // Each round has one command per robot: arrived, lost, or still under way at the end.
        let decided = count(&events, EventKind::CommandIn) + count(&events, EventKind::CommandLost);
        let sent = count(&events, EventKind::Inferred) * robots;
        assert!(decided <= sent && sent < decided + 4 * robots, "{decided} of {sent}");
    }
}

#[test]
fn a_lossy_channel_loses_commands_and_says_so() {
    let mut lossy = team(Sync::Bsp);
    lossy.air.loss = 0.6;
    lossy.air.wnic.retries_max = 3;
    let (events, _) = whole(lossy, "edca");
    let lost = events.iter().filter(|event| event.kind == EventKind::CommandLost);
    let robots: Vec<RobotId> = lost.map(|event| event.robot).collect();
    assert!(!robots.is_empty() && robots.iter().all(|robot| *robot != LEADER && robot.0 < 5));
}

#[test]
fn learning_is_logged_whole() {
    for sync in [Sync::Bsp, Sync::Ssp { staleness: 1 }, Sync::Asp] {
        let team = team(sync);
        let (robots, rounds) = (team.robots.len() as u64, 4);
        let (events, result) = whole(team, "coorp");
        assert!(result.epochs >= 2, "{sync:?}: {} epochs", result.epochs);
        let epochs = count(&events, EventKind::Epoch);
        assert_eq!(epochs, result.epochs, "{sync:?}");
        assert_eq!(count(&events, EventKind::Collect), epochs + 1);
        let last = events
            .iter()
            .rposition(|event| event.kind == EventKind::Epoch)
            .expect("one");
        let done = &events[..=last];
        assert_eq!(count(done, EventKind::BatchFull), epochs);
        assert_eq!(count(done, EventKind::PartitionIn), epochs * robots);
        for kind in [
            EventKind::Train,
            EventKind::Trained,
            EventKind::UpdateIn,
            EventKind::ModelOut,
            EventKind::ModelIn,
        ] {
            assert_eq!(count(done, kind), epochs * robots * rounds, "{sync:?}: {kind:?}");
            for round in 0..rounds {
                let of_round = done.iter().filter(|event| event.kind == kind && event.number == round);
                assert_eq!(
                    of_round.count() as u64,
                    epochs * robots,
                    "{sync:?}: {kind:?} of round {round}"
                );
            }
        }
        let batch = done.iter().position(|event| event.kind == EventKind::BatchFull);
        assert_eq!(
            count(&done[..batch.expect("a batch")], EventKind::LoopEnded),
            60,
            "{sync:?}"
        );
    }
}

/// Returns the maximum number of rounds by which a robot begins to train ahead of the slowest robot's updates.
fn ahead_max(events: &[Event], robots: usize) -> u64 {
    let mut updates = vec![0; robots];
    let mut ahead = 0;
    for event in events {
        match event.kind {
            EventKind::BatchFull => updates.fill(0),
            EventKind::UpdateIn => updates[usize::from(event.robot.0)] = event.number + 1,
            EventKind::Train => ahead = ahead.max(event.number - updates.iter().min().expect("robots")),
            _ => {}
        }
    }
    ahead
}

#[test]
fn the_paradigms_differ_in_how_far_a_robot_runs_ahead() {
    let ahead = |sync| ahead_max(&whole(team(sync), "edca").0, 5);
    assert_eq!(ahead(Sync::Bsp), 0);
    assert_eq!(ahead(Sync::Ssp { staleness: 0 }), 0);
    assert_eq!(ahead(Sync::Ssp { staleness: 1 }), 1);
    assert!(ahead(Sync::Asp) > 1);
    let events = |sync| whole(team(sync), "edca").0;
    assert!(
        events(Sync::Ssp { staleness: 0 }) == events(Sync::Bsp),
        "SSP without staleness is BSP"
    );
}
