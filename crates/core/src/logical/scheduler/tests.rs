use super::super::program::{ActionKind, Connection, Program, Reaction, Reactor};
use super::super::reference::{self, Brains, Kinds, Random};
use super::super::tests::{at, ms, tag};
use super::*;
use proptest::prelude::*;

const A: FederateId = FederateId(0);
const B: FederateId = FederateId(1);

fn graph(federates: usize, reactors: Vec<Reactor>, connections: Vec<Connection>) -> Arc<Graph> {
    let program = Program {
        federates: (0..federates).map(|n| format!("f{n}")).collect(),
        reactors,
        connections,
    };
    Arc::new(Graph::new(&program).unwrap())
}

fn scheduler(graph: &Arc<Graph>, federate: FederateId, fast: bool) -> Scheduler<u64> {
    let config = SchedulerConfig {
        fast,
        ..SchedulerConfig::default()
    };
    let mut scheduler = Scheduler::new(Arc::clone(graph), federate, Waits::InCycles, config);
    scheduler.start(at(0), Tag::START);
    scheduler
}

fn free(graph: &Arc<Graph>, fast: bool) -> Scheduler<u64> {
    let mut scheduler = scheduler(graph, A, fast);
    scheduler.advance_to(Tag::FOREVER);
    scheduler
}

/// Returns the names of the reactions to run. None sets or schedules anything.
fn names(graph: &Graph, step: Option<Step<u64>>) -> Vec<String> {
    match step {
        Some(Step::Run { reactions, .. }) => {
            let name = |ready: &Ready| graph.reaction(ready.reaction).unwrap().name.clone();
            reactions.iter().map(name).collect()
        }
        other => panic!("{other:?}"),
    }
}

fn finish(scheduler: &mut Scheduler<u64>, name: &str, effects: Effects<u64>) {
    let reaction = scheduler.graph.find_reaction(name).unwrap();
    let now = scheduler.clock;
    scheduler.finish(reaction, effects, now).unwrap();
}

fn sets(graph: &Graph, output: &str, value: u64) -> Effects<u64> {
    Effects {
        sets: vec![(graph.find(output).unwrap(), value)],
        ..Effects::default()
    }
}

fn schedules(graph: &Graph, action: &str, delays_ms: &[u64]) -> Effects<u64> {
    let action = graph.find(action).unwrap();
    Effects {
        schedules: delays_ms
            .iter()
            .map(|delay| (action, ms(*delay), Some(*delay)))
            .collect(),
        ..Effects::default()
    }
}

fn ticking(name: &str, federate: FederateId) -> Reactor {
    Reactor::new(name, federate)
        .output("out")
        .timer("t", ms(0), Some(ms(10)))
        .reaction(Reaction::new("tick").on("t").effect("out"))
}

fn reading(name: &str, federate: FederateId) -> Reactor {
    Reactor::new(name, federate)
        .input("in")
        .reaction(Reaction::new("read").on("in"))
}

#[test]
fn independent_reactions_come_together_and_dependent_ones_in_order() {
    let connections = vec![Connection::new("a.out", "c.in"), Connection::new("b.out", "d.in")];
    let reactors = vec![ticking("a", A), ticking("b", A), reading("c", A), reading("d", A)];
    let graph = graph(1, reactors, connections);
    let mut s = free(&graph, false);
    assert_eq!(names(&graph, s.poll(at(0))), ["a.tick", "b.tick"]);
    finish(&mut s, "b.tick", sets(&graph, "b.out", 2));
    assert_eq!(s.poll(at(0)), None, "the level is not done");
    finish(&mut s, "a.tick", sets(&graph, "a.out", 1));
    assert_eq!(names(&graph, s.poll(at(0))), ["c.read", "d.read"]);
    assert_eq!(s.value(graph.find("c.in").unwrap()), Some(&1));
    assert_eq!(s.value(graph.find("d.in").unwrap()), Some(&2));
    finish(&mut s, "c.read", Effects::default());
    finish(&mut s, "d.read", Effects::default());
    assert_eq!(s.poll(at(0)), Some(Step::Completed(Tag::START)));
    assert!(!s.is_present(graph.find("c.in").unwrap()));
    assert_eq!(s.next_tag(), tag(10, 0));
}

#[test]
fn logical_time_is_never_ahead_of_the_clock_unless_it_is_fast() {
    let graph = graph(1, vec![ticking("a", A)], vec![]);
    let mut s = free(&graph, false);
    names(&graph, s.poll(at(0)));
    finish(&mut s, "a.tick", Effects::default());
    assert_eq!(s.poll(at(9)), Some(Step::Completed(Tag::START)));
    assert_eq!((s.poll(at(9)), s.next_deadline()), (None, Some(at(10))));
    assert_eq!(names(&graph, s.poll(at(10))), ["a.tick"]);

    let mut s = free(&graph, true);
    names(&graph, s.poll(at(0)));
    finish(&mut s, "a.tick", Effects::default());
    assert_eq!(s.poll(at(0)), Some(Step::Completed(Tag::START)));
    assert_eq!(names(&graph, s.poll(at(0))), ["a.tick"]);
}

#[test]
fn a_reaction_that_begins_after_its_deadline_is_late_unless_it_is_fast() {
    let reactor = Reactor::new("a", A)
        .timer("t", ms(0), Some(ms(10)))
        .reaction(Reaction::new("tick").on("t").deadline(ms(3)));
    let graph = graph(1, vec![reactor], vec![]);
    for (fast, begins, expected) in [(false, 3, false), (false, 4, true), (true, 4, false)] {
        let mut s = free(&graph, fast);
        let Some(Step::Run { reactions, lag, .. }) = s.poll(at(begins)) else {
            panic!();
        };
        assert_eq!(reactions[0].late, expected);
        assert_eq!(lag, if fast { ms(0) } else { ms(begins) });
    }
}

#[test]
fn nothing_advances_beyond_its_grant() {
    let graph = graph(1, vec![ticking("a", A)], vec![]);
    let mut s = scheduler(&graph, A, true);
    assert_eq!(s.poll(at(0)), None);
    s.advance_to(tag(9, 9));
    names(&graph, s.poll(at(0)));
    finish(&mut s, "a.tick", Effects::default());
    assert_eq!(s.poll(at(0)), Some(Step::Completed(Tag::START)));
    assert_eq!(s.poll(at(99)), None);
    assert_eq!(s.next_deadline(), None, "the clock alone changes nothing");
    s.advance_to(tag(10, 0));
    assert_eq!(names(&graph, s.poll(at(99))), ["a.tick"]);
}

#[test]
fn an_action_scheduled_twice_for_one_tag_is_present_twice() {
    let reactor = Reactor::new("a", A)
        .action("x", ActionKind::Logical, ms(0))
        .reaction(Reaction::new("go").on_startup().effect("x"))
        .reaction(Reaction::new("see").on("x"));
    let graph = graph(1, vec![reactor], vec![]);
    let mut s = free(&graph, true);
    names(&graph, s.poll(at(0)));
    finish(&mut s, "a.go", schedules(&graph, "a.x", &[5, 0, 5]));
    let mut seen = Vec::new();
    while let Some(step) = s.poll(at(0)) {
        if let Step::Run { tag, .. } = step {
            seen.push(tag);
            finish(&mut s, "a.see", Effects::default());
        }
    }
    assert_eq!(seen, [tag(0, 1), tag(5, 0), tag(5, 1)]);
}

#[test]
fn actions_that_schedule_each_other_without_a_delay_are_refused_in_the_end() {
    let reactor = Reactor::new("a", A)
        .action("x", ActionKind::Logical, ms(0))
        .reaction(Reaction::new("go").on_startup().on("x").effect("x"));
    let graph = graph(1, vec![reactor], vec![]);
    let mut s = free(&graph, true);
    s.config.microstep_max = 100;
    let x = graph.find("a.x").unwrap();
    for _ in 0..100 {
        while !matches!(s.poll(at(0)), Some(Step::Run { .. })) {}
        finish(&mut s, "a.go", schedules(&graph, "a.x", &[0]));
    }
    while !matches!(s.poll(at(0)), Some(Step::Run { .. })) {}
    let go = graph.find_reaction("a.go").unwrap();
    let refused = s.finish(go, schedules(&graph, "a.x", &[0]), at(0));
    assert_eq!(refused, Err(Refused::TooManyMicrosteps(x)));
}

#[test]
fn a_full_queue_refuses() {
    let reactor = Reactor::new("a", A)
        .action("p", ActionKind::Physical, ms(0))
        .reaction(Reaction::new("see").on("p"));
    let graph = graph(1, vec![reactor], vec![]);
    let mut s = free(&graph, false);
    s.config.events_max = 3;
    let p = graph.find("a.p").unwrap();
    for _ in 0..3 {
        s.on_physical(p, None, at(1)).unwrap();
    }
    assert_eq!(s.on_physical(p, None, at(1)), Err(Refused::QueueFull(p)));
}

#[test]
fn bad_input_is_refused_by_name_and_changes_nothing() {
    let reactors = vec![ticking("a", A), reading("b", B)];
    let graph = graph(2, reactors, vec![Connection::new("a.out", "b.in")]);
    let (input, output) = (graph.find("b.in").unwrap(), graph.find("a.out").unwrap());
    let (tick, read) = (
        graph.find_reaction("a.tick").unwrap(),
        graph.find_reaction("b.read").unwrap(),
    );
    let mut s = free(&graph, false);
    assert_eq!(s.on_message(input, tag(1, 0), 1, at(0)), Err(Refused::Unknown(input)));
    assert_eq!(s.on_physical(output, None, at(0)), Err(Refused::Unknown(output)));
    assert_eq!(
        s.on_absent(ElementId(999), tag(1, 0)),
        Err(Refused::Unknown(ElementId(999)))
    );
    assert_eq!(
        s.finish(tick, Effects::default(), at(0)),
        Err(Refused::NotRunning(tick))
    );
    assert_eq!(
        s.finish(ReactionId(999), Effects::default(), at(0)),
        Err(Refused::NotRunning(ReactionId(999)))
    );
    names(&graph, s.poll(at(0)));
    let element = graph.find("a.t").unwrap();
    let mut effects = sets(&graph, "a.out", 1);
    effects.sets.push((element, 1));
    let reaction = tick;
    assert_eq!(
        s.finish(tick, effects, at(0)),
        Err(Refused::Undeclared { reaction, element })
    );
    assert_eq!(s.poll(at(0)), Some(Step::Completed(Tag::START)), "nothing was sent");

    let mut s = scheduler(&graph, B, false);
    assert_eq!(
        s.finish(read, Effects::default(), at(0)),
        Err(Refused::NotRunning(read))
    );
    for infinite in [Tag::NEVER, Tag::FOREVER] {
        let refused = s.on_message(input, infinite, 1, at(0));
        assert_eq!(refused, Err(Refused::BadTag { input, tag: infinite }));
    }
    s.on_message(input, tag(1, 0), 1, at(0)).unwrap();
    let again = s.on_message(input, tag(1, 0), 1, at(0));
    assert_eq!(again, Err(Refused::BadTag { input, tag: tag(1, 0) }));
}

#[test]
fn values_for_other_federates_are_sent_once_they_are_final() {
    // The second writer overrides the first. The other federate sees only the last value.
    let reactor = Reactor::new("a", A)
        .output("out")
        .reaction(Reaction::new("first").on_startup().effect("out"))
        .reaction(Reaction::new("second").on_startup().effect("out"));
    let graph = graph(
        2,
        vec![reactor, reading("b", B)],
        vec![Connection::new("a.out", "b.in").after(ms(2))],
    );
    let mut s = free(&graph, false);
    names(&graph, s.poll(at(0)));
    finish(&mut s, "a.first", sets(&graph, "a.out", 1));
    assert_eq!(names(&graph, s.poll(at(0))), ["a.second"]);
    finish(&mut s, "a.second", sets(&graph, "a.out", 2));
    let (to, input, value) = (B, graph.find("b.in").unwrap(), Some(2));
    let tag = tag(2, 0);
    assert_eq!(s.poll(at(0)), Some(Step::Send { to, input, tag, value }));
    assert_eq!(s.poll(at(0)), Some(Step::Completed(Tag::START)));
}

/// A value of which other federates receive only a part.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Seen {
    Whole,
    Reference,
}

impl Value for Seen {
    fn to_send(&self) -> Self {
        Seen::Reference
    }
}

#[test]
fn only_what_leaves_for_another_federate_is_replaced_by_what_travels() {
    let connections = [("b.in", ms(0)), ("c.in", ms(0)), ("d.in", ms(5))]
        .map(|(to, after)| Connection::new("a.out", to).after(after))
        .to_vec();
    let reactors = vec![ticking("a", A), reading("b", B), reading("c", A), reading("d", A)];
    let graph = graph(2, reactors, connections);
    let mut s = Scheduler::new(Arc::clone(&graph), A, Waits::InCycles, SchedulerConfig::default());
    s.start(at(0), Tag::START);
    s.advance_to(Tag::FOREVER);
    let (mut sent, mut read) = (Vec::new(), Vec::new());
    while let Some(step) = s.poll(at(5)) {
        match step {
            Step::Send { value, .. } => sent.push(value),
            Step::Run { reactions, .. } => {
                for Ready { reaction, .. } in reactions {
                    let info = graph.reaction(reaction).unwrap();
                    read.extend(info.triggers.iter().filter_map(|input| s.value(*input).cloned()));
                    let sets = info.effects.iter().map(|output| (*output, Seen::Whole)).collect();
                    let (schedules, stop) = (Vec::new(), false);
                    s.finish(reaction, Effects { sets, schedules, stop }, at(5)).unwrap();
                }
            }
            _ => {}
        }
    }
    assert_eq!(sent, [Some(Seen::Reference)]);
    assert_eq!(read, [Seen::Whole, Seen::Whole], "c at once, d over a delay");
}

#[test]
fn the_last_tag_runs_shutdown_and_nothing_comes_after_it() {
    let reactor = ticking("a", A).reaction(Reaction::new("bye").on_shutdown());
    let graph = graph(1, vec![reactor], vec![]);
    let mut s = free(&graph, true);
    s.stop_at(tag(10, 0)).unwrap();
    let mut ran = Vec::new();
    let mut last = None;
    while let Some(step) = s.poll(at(0)) {
        if let Step::Run { tag, reactions, .. } = &step {
            for ready in reactions {
                let name = graph.reaction(ready.reaction).unwrap().name.clone();
                finish(&mut s, &name, Effects::default());
                ran.push((*tag, name));
            }
        }
        last = Some(step);
    }
    let expected = [(0, "a.tick"), (10, "a.tick"), (10, "a.bye")].map(|(ms, name)| (tag(ms, 0), name.to_owned()));
    assert_eq!((ran.as_slice(), last), (&expected[..], Some(Step::Ended)));
    assert_eq!(s.next_tag(), Tag::FOREVER);
    assert_eq!(s.stop_at(tag(20, 0)), Err(Refused::Stopped));
}

fn limited(graph: &Arc<Graph>, timeout: Duration) -> Scheduler<u64> {
    let config = SchedulerConfig {
        fast: true,
        timeout: Some(timeout),
        ..SchedulerConfig::default()
    };
    let mut s = Scheduler::new(Arc::clone(graph), A, Waits::InCycles, config);
    s.start(at(0), Tag::START);
    s.advance_to(Tag::FOREVER);
    s
}

/// Returns the tags at which reactions run, until the end.
fn runs(s: &mut Scheduler<u64>) -> Vec<Tag> {
    let mut tags = Vec::new();
    loop {
        match s.poll(at(0)) {
            Some(Step::Run { tag, reactions, .. }) => {
                tags.extend(Some(tag).filter(|tag| tags.last() != Some(tag)));
                for ready in reactions {
                    s.finish(ready.reaction, Effects::default(), at(0)).unwrap();
                }
            }
            Some(Step::Completed(_)) => {}
            Some(Step::Ended) => return tags,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_time_limit_is_the_last_tag_unless_an_earlier_one_is_decided() {
    let reactor = ticking("a", A).reaction(Reaction::new("bye").on_shutdown());
    let graph = graph(1, vec![reactor], vec![]);
    let mut s = limited(&graph, ms(25));
    assert_eq!(runs(&mut s), [tag(0, 0), tag(10, 0), tag(20, 0), tag(25, 0)]);

    let mut s = limited(&graph, ms(25));
    assert_eq!(s.stop_at(tag(26, 0)), Err(Refused::Stopped));
    s.hold(tag(25, 0));
    assert!(s.stop_at(tag(12, 0)).is_ok());
    assert_eq!((s.stop(), s.last()), (tag(12, 0), tag(12, 0)));
    assert_eq!(runs(&mut s), [tag(0, 0), tag(10, 0), tag(12, 0)]);

    let mut s = limited(&graph, ms(0));
    s.hold(Tag::START);
    assert_eq!(runs(&mut s), [Tag::START], "startup, the timer and shutdown");
    assert_eq!(s.stop_at(Tag::START), Ok(()), "which has come already");
}

#[test]
fn a_federate_without_events_is_starved_unless_a_clock_can_bring_one() {
    let starting = |name: &str| Reactor::new(name, A).reaction(Reaction::new("go").on_startup());
    let start = |reactor: Reactor, timeout| {
        let graph = graph(1, vec![reactor], vec![]);
        let mut s = Scheduler::<u64>::new(
            Arc::clone(&graph),
            A,
            Waits::InCycles,
            SchedulerConfig {
                timeout,
                ..SchedulerConfig::default()
            },
        );
        assert!(!s.is_starved(), "it has not started");
        s.start(at(0), Tag::START);
        s.advance_to(Tag::FOREVER);
        assert!(!s.is_starved(), "startup is an event");
        names(&graph, s.poll(at(0)));
        finish(&mut s, "a.go", Effects::default());
        assert!(!s.is_starved(), "the tag is open");
        assert_eq!(s.poll(at(0)), Some(Step::Completed(Tag::START)));
        s
    };
    assert!(start(starting("a"), None).is_starved());
    assert!(!start(starting("a"), Some(ms(5))).is_starved(), "shutdown is an event");
    let button = starting("a")
        .action("p", ActionKind::Physical, ms(0))
        .reaction(Reaction::new("see").on("p"));
    assert!(!start(button, None).is_starved());
}

#[test]
fn a_reaction_asks_for_the_end_once_and_a_hold_keeps_its_tag_free() {
    let graph = graph(1, vec![ticking("a", A)], vec![]);
    let mut s = free(&graph, true);
    names(&graph, s.poll(at(0)));
    let stop = Effects {
        stop: true,
        ..Effects::default()
    };
    finish(&mut s, "a.tick", stop);
    assert_eq!(s.poll(at(0)), Some(Step::StopRequested(tag(0, 1))));
    s.hold(tag(0, 1));
    assert_eq!(s.poll(at(0)), Some(Step::Completed(Tag::START)));
    assert_eq!(s.poll(at(0)), None, "it holds");
    s.stop_at(tag(0, 1)).unwrap();
    assert_eq!(s.poll(at(0)), Some(Step::Completed(tag(0, 1))));
    assert_eq!(s.poll(at(0)), Some(Step::Ended));
}

#[test]
fn rule_6_a_physical_action_gets_neither_a_reached_tag_nor_a_promised_one() {
    let reactor = ticking("a", A)
        .action("p", ActionKind::Physical, ms(0))
        .reaction(Reaction::new("see").on("p"));
    let graph = graph(1, vec![reactor], vec![]);
    let p = graph.find("a.p").unwrap();
    let mut s = free(&graph, true);
    assert_eq!(s.on_physical(p, None, at(3)), Ok(tag(3, 0)), "the clock's time");
    assert_eq!(s.on_physical(p, None, at(3)), Ok(tag(3, 1)), "the next microstep");
    s.promise(tag(7, 0));
    assert_eq!(s.on_physical(p, None, at(4)), Ok(tag(7, 0)));
    while s.reached() < tag(20, 0) {
        if let Some(Step::Run { reactions, .. }) = s.poll(at(4)) {
            for ready in reactions {
                s.finish(ready.reaction, Effects::default(), at(4)).unwrap();
            }
        }
    }
    assert_eq!(s.on_physical(p, None, at(5)), Ok(s.reached().next()));
}

#[test]
fn rule_13_a_clock_that_steps_back_counts_as_standing_still() {
    let reactor = Reactor::new("a", A)
        .action("p", ActionKind::Physical, ms(0))
        .reaction(Reaction::new("see").on("p"));
    let graph = graph(1, vec![reactor], vec![]);
    let p = graph.find("a.p").unwrap();
    let mut s = free(&graph, false);
    assert_eq!(s.poll(at(9)), None);
    assert_eq!(s.on_physical(p, None, at(2)), Ok(tag(9, 0)));
    assert!(matches!(s.poll(at(1)), Some(Step::Run { .. })));
}

/// Builds a program in which a asks b and reads b's answer at the same tag.
fn asking() -> Arc<Graph> {
    let asks = Reactor::new("a", A)
        .input("answer")
        .output("out")
        .timer("t", ms(0), Some(ms(10)))
        .reaction(Reaction::new("ask").on("t").effect("out"))
        .reaction(Reaction::new("read").on("answer"));
    let answers = Reactor::new("b", B)
        .input("in")
        .output("out")
        .reaction(Reaction::new("answer").on("in").effect("out"));
    let connections = vec![Connection::new("a.out", "b.in"), Connection::new("b.out", "a.answer")];
    graph(2, vec![asks, answers], connections)
}

#[test]
fn rule_4_a_provisional_grant_makes_no_input_known_and_completes_nothing() {
    let graph = asking();
    let answer = graph.find("a.answer").unwrap();
    let mut s = scheduler(&graph, A, false);
    s.advance_provisionally(Tag::START);
    assert_eq!(names(&graph, s.poll(at(0))), ["a.ask"]);
    finish(&mut s, "a.ask", sets(&graph, "a.out", 1));
    assert!(matches!(s.poll(at(0)), Some(Step::Send { value: Some(1), .. })));
    assert_eq!(s.poll(at(0)), None, "the answer is unknown, so the tag is not complete");
    s.on_message(answer, Tag::START, 5, at(0)).unwrap();
    assert_eq!(names(&graph, s.poll(at(0))), ["a.read"]);
    finish(&mut s, "a.read", Effects::default());
    assert_eq!(s.poll(at(0)), Some(Step::Completed(Tag::START)));
    let (input, meant, reached) = (answer, Tag::START, Tag::START);
    let late = s.on_message(answer, Tag::START, 5, at(0));
    assert_eq!(late, Err(Refused::Tardy { input, meant, reached }));
}

#[test]
fn rule_4_each_way_to_know_an_input_lets_the_tag_complete() {
    let graph = asking();
    let answer = graph.find("a.answer").unwrap();
    let ways: [fn(&mut Scheduler<u64>, ElementId); 3] = [
        |s, answer| s.on_absent(answer, Tag::START).unwrap(),
        |s, _| s.on_settled(B, Tag::START),
        |s, _| s.advance_to(Tag::START),
    ];
    for way in ways {
        let mut s = scheduler(&graph, A, false);
        s.advance_provisionally(Tag::START);
        names(&graph, s.poll(at(0)));
        finish(&mut s, "a.ask", Effects::default());
        let absent = s.poll(at(0));
        assert!(matches!(absent, Some(Step::Send { value: None, .. })), "{absent:?}");
        assert_eq!(s.poll(at(0)), None);
        way(&mut s, answer);
        assert_eq!(s.poll(at(0)), Some(Step::Completed(Tag::START)));
    }
}

#[test]
fn rule_4_a_federate_without_an_event_opens_a_provisional_tag_to_report_absence() {
    let graph = asking();
    let mut s = scheduler(&graph, B, false);
    s.advance_provisionally(Tag::START);
    assert_eq!(s.poll(at(0)), None, "whether it will send depends on a");
    s.on_absent(graph.find("b.in").unwrap(), Tag::START).unwrap();
    let (to, input, tag) = (A, graph.find("a.answer").unwrap(), Tag::START);
    assert_eq!(
        s.poll(at(0)),
        Some(Step::Send {
            to,
            input,
            tag,
            value: None
        })
    );
    assert_eq!(s.poll(at(0)), Some(Step::Completed(Tag::START)));
}

#[test]
fn rule_5_an_unknown_input_blocks_its_level_and_those_above_and_a_delayed_one_blocks_nothing() {
    // b.first and b.last share no reactor and no port with b2.read, but lie below and above it.
    let chain = |name: &str| Reactor::new(name, B).input("in").output("out");
    let reactors = vec![
        ticking("b0", B),
        chain("b1").reaction(Reaction::new("low").on("in").effect("out")),
        Reactor::new("b2", B)
            .input("in")
            .reaction(Reaction::new("high").on("in")),
        Reactor::new("w", B)
            .input("gate")
            .input("mid")
            .input("slow")
            .output("out")
            .reaction(Reaction::new("wait").on("gate").on("mid").on("slow").effect("out")),
        Reactor::new("a", A)
            .input("in")
            .output("out")
            .output("slow")
            .reaction(Reaction::new("relay").on("in").effect("out"))
            .reaction(Reaction::new("other").on("in").effect("slow")),
    ];
    let connections = vec![
        Connection::new("b0.out", "b1.in"),
        Connection::new("b1.out", "b2.in"),
        Connection::new("b0.out", "a.in"),
        Connection::new("b0.out", "w.mid"),
        Connection::new("a.out", "w.gate"),
        Connection::new("a.slow", "w.slow").after(ms(1)),
    ];
    let graph = graph(2, reactors, connections);
    let level = |name: &str| graph.reaction(graph.find_reaction(name).unwrap()).unwrap().level;
    assert_eq!(["b0.tick", "b1.low", "w.wait", "b2.high"].map(level), [0, 1, 2, 2]);
    let mut s = scheduler(&graph, B, false);
    s.advance_provisionally(Tag::START);
    assert_eq!(names(&graph, s.poll(at(0))), ["b0.tick"]);
    finish(&mut s, "b0.tick", sets(&graph, "b0.out", 1));
    assert!(matches!(s.poll(at(0)), Some(Step::Send { to: A, .. })));
    assert_eq!(names(&graph, s.poll(at(0))), ["b1.low"]);
    finish(&mut s, "b1.low", sets(&graph, "b1.out", 1));
    assert_eq!(s.poll(at(0)), None, "level 2 waits as a whole, b2.high too");
    s.on_absent(graph.find("w.gate").unwrap(), Tag::START).unwrap();
    assert_eq!(
        names(&graph, s.poll(at(0))),
        ["b2.high", "w.wait"],
        "the delayed input is not waited for"
    );
}

#[test]
fn a_federate_that_joins_later_starts_there_and_its_timers_keep_their_times() {
    let reactor = Reactor::new("a", A)
        .timer("t", ms(3), Some(ms(10)))
        .reaction(Reaction::new("up").on_startup())
        .reaction(Reaction::new("tick").on("t"));
    let graph = graph(1, vec![reactor], vec![]);
    for (first, tick) in [(tag(13, 0), 13), (tag(13, 1), 23), (tag(14, 0), 23), (tag(2, 1), 3)] {
        let mut s = Scheduler::<u64>::new(Arc::clone(&graph), A, Waits::InCycles, SchedulerConfig::default());
        s.start(at(0), first);
        assert_eq!(s.queue.keys().map(|(tag, _)| *tag).max(), Some(tag(tick, 0).max(first)));
        assert_eq!(s.next_tag(), first);
    }
}

/// Runs a whole program on one federate, and finishes the reactions of a level in an order from the seed.
fn run_alone(graph: &Arc<Graph>, stop: Tag, random: &mut Random) -> Vec<reference::Record> {
    let mut s = free(graph, true);
    s.stop_at(stop).unwrap();
    let mut brains = Brains::new();
    loop {
        match s.poll(at(0)) {
            Some(Step::Run { tag, reactions, .. }) => {
                let mut done: Vec<_> = reactions
                    .iter()
                    .map(|ready| {
                        let read = |element| s.is_present(element).then(|| s.value(element).copied());
                        (ready.reaction, brains.run(graph, ready.reaction, tag, read))
                    })
                    .collect();
                while !done.is_empty() {
                    let (reaction, effects) = done.swap_remove(random.below(done.len() as u64) as usize);
                    s.finish(reaction, effects, at(0)).unwrap();
                }
            }
            Some(Step::Ended) => break,
            Some(Step::Completed(_)) => {}
            other => panic!("{other:?}"),
        }
    }
    brains.records.sort_unstable();
    brains.records
}

proptest! {
    #[test]
    fn one_federate_does_what_the_reference_does(seed in any::<u64>()) {
        let mut random = Random::new(seed);
        let kinds = Kinds { federates: 1, physical_actions: false, physical_connections: false, shutdown: true, periodic: true };
        let program = reference::random_program(&mut random, kinds);
        let graph = Arc::new(Graph::new(&program).unwrap());
        let stop = tag(20, 0);
        let expected = reference::run(&graph, stop, &reference::Given::default());
        prop_assert_eq!(run_alone(&graph, stop, &mut random), expected);
    }
}

#[test]
fn a_replay_takes_what_is_physical_from_the_recording_only() {
    let reactor = ticking("a", A)
        .action("p", ActionKind::Physical, ms(0))
        .reaction(Reaction::new("see").on("p"));
    let graph = graph(1, vec![reactor], vec![]);
    let (p, tick) = (graph.find("a.p").unwrap(), graph.find("a.t").unwrap());
    let mut s = free(&graph, true);
    s.config.replay = true;
    s.on_physical(p, Some(7), at(3)).unwrap();
    s.on_recorded(p, tag(2, 5), Some(8)).unwrap();
    assert_eq!(s.on_recorded(tick, tag(2, 0), None), Err(Refused::Unknown(tick)));
    assert_eq!(names(&graph, s.poll(at(0))), ["a.tick"]);
    finish(&mut s, "a.tick", Effects::default());
    assert_eq!(s.poll(at(0)), Some(Step::Completed(Tag::START)));
    assert_eq!(names(&graph, s.poll(at(0))), ["a.see"]);
    assert_eq!(s.value(p), Some(&8));
    let early = s.on_recorded(p, tag(2, 5), None);
    assert!(matches!(early, Err(Refused::BadTag { .. })), "it is over: {early:?}");
}
