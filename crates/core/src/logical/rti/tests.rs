use super::super::failover_epoch as epoch;
use super::super::graph::ElementId;
use super::super::program::{Connection, Program, Reaction, Reactor};
use super::super::protocol::Report;
use super::super::reference::Random;
use super::super::tests::{at, ms, tag};
use super::super::Delay;
use super::*;
use std::rc::Rc;

const A: FederateId = FederateId(0);
const B: FederateId = FederateId(1);
const C: FederateId = FederateId(2);

fn relay(name: &str, federate: FederateId) -> Reactor {
    Reactor::new(name, federate)
        .input("in")
        .output("out")
        .timer("t", ms(0), Some(ms(10)))
        .reaction(Reaction::new("pass").on("in").effect("out"))
        .reaction(Reaction::new("tick").on("t"))
}

fn source(name: &str, federate: FederateId) -> Reactor {
    Reactor::new(name, federate)
        .output("out")
        .timer("t", ms(0), Some(ms(10)))
        .reaction(Reaction::new("tick").on("t").effect("out"))
}

/// Builds a -> b -> c, with these delays.
fn chain(first: Duration, second: Duration) -> Arc<Graph> {
    let program = Program {
        federates: vec!["a".into(), "b".into(), "c".into()],
        reactors: vec![source("a", A), relay("b", B), relay("c", C)],
        connections: vec![
            Connection::new("a.out", "b.in").after(first),
            Connection::new("b.out", "c.in").after(second),
        ],
    };
    Arc::new(Graph::new(&program).unwrap())
}

/// Builds a program in which a asks b and reads b's answer at the same tag. Neither sends to others.
fn cycle() -> Arc<Graph> {
    let asks = Reactor::new("a", A)
        .input("answer")
        .output("out")
        .timer("t", ms(0), Some(ms(10)))
        .reaction(Reaction::new("ask").on("t").effect("out"))
        .reaction(Reaction::new("read").on("answer"));
    let program = Program {
        federates: vec!["a".into(), "b".into()],
        reactors: vec![asks, relay("b", B)],
        connections: vec![Connection::new("a.out", "b.in"), Connection::new("b.out", "a.answer")],
    };
    Arc::new(Graph::new(&program).unwrap())
}

fn report<V>(now: Instant) -> Report<V> {
    Report {
        now,
        start: None,
        completed: Tag::NEVER,
        granted: Tag::NEVER,
        provisional: Tag::NEVER,
        next: Tag::FOREVER,
        is_bound: false,
        received: vec![],
        gone: vec![],
        retained: vec![],
        stop_proposal: None,
        stop: None,
        has_ended: false,
    }
}

fn tell<V: Clone>(rti: &mut Rti<V>, from: FederateId, body: Up<V>, now: Instant) {
    tell_received(rti, from, 0, body, now);
}

fn tell_received<V: Clone>(rti: &mut Rti<V>, from: FederateId, received: u64, body: Up<V>, now: Instant) {
    let epoch = rti.epoch;
    rti.on_message(from, Envelope { epoch, received, body }, now);
}

fn next<V: Clone>(rti: &mut Rti<V>, from: FederateId, tag: Tag) {
    let is_bound = false;
    tell(rti, from, Up::NextEvent { tag, is_bound }, at(100));
}

fn value(from: FederateId, to: FederateId, number: u64, input: ElementId, tag: Tag) -> Message<u64> {
    let value = Some(number);
    Message {
        from,
        to,
        number,
        input,
        tag,
        value,
    }
}

fn sent<V: Clone>(rti: &mut Rti<V>) -> Vec<(FederateId, Down<V>)> {
    let mut sent = Vec::new();
    while let Some(action) = rti.poll() {
        if let RtiAction::Send { to, envelope } = action {
            sent.push((to, envelope.body));
        }
    }
    sent
}

/// Returns only the messages to `to`.
fn sent_to(rti: &mut Rti<u64>, to: FederateId) -> Vec<Down<u64>> {
    let sent = sent(rti).into_iter();
    sent.filter(|(receiver, _)| *receiver == to)
        .map(|(_, body)| body)
        .collect()
}

fn started<V: Clone>(graph: &Arc<Graph>) -> Rti<V> {
    let mut rti = Rti::new(Arc::clone(graph), epoch(1), RtiConfig::default(), at(0));
    for federate in graph.federate_ids() {
        rti.on_connected(federate, at(0));
        tell(&mut rti, federate, Up::Report(Box::new(report(at(0)))), at(0));
    }
    sent(&mut rti);
    rti
}

#[test]
fn rule_1_a_forwarded_message_lowers_the_next_event_until_it_is_accounted_for() {
    let graph = chain(ms(0), ms(0));
    let input = graph.find("b.in").unwrap();
    let mut rti = started(&graph);
    next(&mut rti, A, tag(5, 0));
    next(&mut rti, B, tag(50, 0));
    next(&mut rti, C, tag(40, 0));
    sent(&mut rti);
    tell(&mut rti, A, Up::Message(value(A, B, 1, input, tag(5, 0))), at(5));
    tell(&mut rti, A, Up::Completed(tag(5, 0)), at(5));
    next(&mut rti, A, tag(90, 0));
    assert!(sent_to(&mut rti, C).is_empty(), "b may still send at 5 ms");
    // b had not received the message when it sent this, as its count of received messages shows.
    next(&mut rti, B, tag(50, 0));
    assert!(sent_to(&mut rti, C).is_empty());
    let is_bound = false;
    tell_received(&mut rti, B, 1, Up::Completed(tag(5, 0)), at(6));
    tell_received(
        &mut rti,
        B,
        1,
        Up::NextEvent {
            tag: tag(50, 0),
            is_bound,
        },
        at(6),
    );
    assert_eq!(sent_to(&mut rti, C), [Down::Grant(tag(50, 0).before())]);
}

#[test]
fn rule_3_a_grant_reaches_up_to_the_earliest_message_over_all_paths() {
    let graph = chain(ms(2), ms(3));
    let mut rti = started::<u64>(&graph);
    next(&mut rti, B, tag(20, 0));
    next(&mut rti, C, tag(10, 0));
    sent(&mut rti);
    next(&mut rti, A, tag(4, 3));
    assert!(
        sent_to(&mut rti, C).is_empty(),
        "a's message at 4 ms can come to c at 9 ms"
    );
    next(&mut rti, A, tag(6, 3));
    assert_eq!(
        sent_to(&mut rti, C),
        [Down::Grant(tag(11, 0).before())],
        "the microsteps of a do not count"
    );
}

#[test]
fn a_federate_without_upstream_needs_no_grant() {
    let graph = chain(ms(0), ms(0));
    let mut rti = started::<u64>(&graph);
    next(&mut rti, A, tag(5, 0));
    assert!(sent_to(&mut rti, A).is_empty());
}

#[test]
fn rule_4_provisional_grants_are_for_zero_delay_cycles_only() {
    let graph = chain(ms(0), ms(0));
    let mut rti = started::<u64>(&graph);
    for federate in [C, B, A] {
        next(&mut rti, federate, tag(10, 0));
    }
    assert!(sent(&mut rti).is_empty(), "b and c wait for a");

    let graph = cycle();
    let mut rti = started::<u64>(&graph);
    next(&mut rti, A, tag(10, 0));
    sent(&mut rti);
    next(&mut rti, B, tag(30, 0));
    let granted = sent(&mut rti);
    let to = |to| {
        granted
            .iter()
            .filter(|(id, _)| *id == to)
            .map(|(_, down)| down.clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(to(A), [Down::Provisional(tag(10, 0))]);
    assert_eq!(
        to(B),
        [Down::Provisional(tag(10, 0))],
        "it has no event there, but has to say so"
    );
    // Once b is done with the tag, a need not wait for it.
    tell(&mut rti, B, Up::Completed(tag(10, 0)), at(11));
    let (federate, through) = (B, tag(10, 0));
    assert_eq!(sent_to(&mut rti, A), [Down::Settled { federate, through }]);
}

#[test]
fn a_bound_opens_no_tag_provisionally() {
    let graph = cycle();
    let mut rti = started::<u64>(&graph);
    next(&mut rti, A, tag(10, 0));
    sent(&mut rti);
    let (tag, is_bound) = (tag(5, 0), true);
    tell(&mut rti, B, Up::NextEvent { tag, is_bound }, at(5));
    assert!(sent(&mut rti).is_empty());
}

#[test]
fn rule_8_the_start_waits_for_all_and_not_for_ever() {
    let graph = chain(ms(0), ms(0));
    let config = RtiConfig::default();
    let until = at(0) + config.report_max;
    let mut rti = Rti::<u64>::new(Arc::clone(&graph), epoch(1), config.clone(), at(0));
    for (federate, now) in [(A, at(7)), (B, at(3))] {
        rti.on_connected(federate, now);
        tell(&mut rti, federate, Up::Report(Box::new(report(now))), now);
    }
    sent(&mut rti);
    let mut late = rti.clone();
    assert_eq!(rti.next_deadline(), Some(until));
    rti.on_deadline(until);
    let missing = vec![C];
    let failed = Down::StartFailed {
        missing: missing.clone(),
    };
    assert_eq!(rti.outbox.back(), Some(&RtiAction::StartFailed(missing)));
    assert_eq!(sent(&mut rti), [(A, failed.clone()), (B, failed)]);

    late.on_connected(C, at(9));
    tell(&mut late, C, Up::Report(Box::new(report(at(5)))), at(9));
    let start = at(7) + config.start_delay;
    let starts = sent(&mut late)
        .into_iter()
        .filter(|(_, body)| matches!(body, Down::Start { at, .. } if *at == start));
    assert_eq!(starts.count(), 3, "all at the latest of their times");
}

#[test]
fn rule_9_a_link_that_ends_without_resignation_is_a_fault_that_frees_the_others() {
    let graph = chain(ms(0), ms(0));
    let input = graph.find("b.in").unwrap();
    let mut rti = started(&graph);
    next(&mut rti, A, tag(5, 0));
    next(&mut rti, B, tag(20, 0));
    tell(&mut rti, A, Up::Message(value(A, B, 1, input, tag(7, 0))), at(5));
    sent(&mut rti);
    rti.on_gone(A, at(6));
    let downs = sent_to(&mut rti, B);
    assert_eq!(
        downs,
        [Down::Gone(A), Down::Grant(tag(7, 0))],
        "what is in flight still counts, nothing else"
    );

    let mut rti = started::<u64>(&graph);
    tell(&mut rti, A, Up::Resign, at(6));
    rti.on_gone(A, at(6));
    assert!(
        !sent(&mut rti).iter().any(|(_, body)| matches!(body, Down::Gone(_))),
        "it had resigned"
    );
}

#[test]
fn rule_10_the_latest_proposal_is_the_last_tag_and_the_dead_have_replied() {
    let graph = chain(ms(0), ms(0));
    let mut rti = started::<u64>(&graph);
    tell(&mut rti, B, Up::StopRequest(tag(4, 1)), at(4));
    let asked: Vec<_> = sent(&mut rti)
        .into_iter()
        .filter(|(_, body)| *body == Down::StopRequest)
        .collect();
    assert_eq!(asked.iter().map(|(to, _)| *to).collect::<Vec<_>>(), [A, C]);
    tell(&mut rti, A, Up::StopReply(tag(6, 0)), at(5));
    assert!(sent(&mut rti).is_empty());
    rti.on_gone(C, at(5));
    let stops: Vec<_> = sent(&mut rti)
        .into_iter()
        .filter(|(_, body)| *body == Down::Stop(tag(6, 0)))
        .collect();
    assert_eq!(stops.iter().map(|(to, _)| *to).collect::<Vec<_>>(), [A, B]);
}

#[test]
fn rule_10_who_does_not_reply_in_time_counts_as_dead() {
    let graph = chain(ms(0), ms(0));
    let mut rti = started::<u64>(&graph);
    tell(&mut rti, B, Up::StopRequest(tag(4, 1)), at(4));
    let until = rti.next_deadline().unwrap();
    rti.on_deadline(until);
    assert!(sent_to(&mut rti, B).contains(&Down::Stop(tag(4, 1))));
    assert_eq!(rti.next_deadline(), None);
}

#[test]
fn rule_10_a_next_event_that_crossed_the_decision_does_not_hide_the_last_tag() {
    let graph = chain(ms(0), ms(0));
    let mut rti = started::<u64>(&graph);
    for federate in [A, B, C] {
        tell(&mut rti, federate, Up::StopReply(tag(6, 0)), at(5));
    }
    sent(&mut rti);
    next(&mut rti, A, tag(90, 0));
    next(&mut rti, B, tag(6, 0));
    let beyond = |(_, body): &(FederateId, Down<u64>)| matches!(body, Down::Grant(granted) if *granted >= tag(6, 0));
    assert!(
        !sent(&mut rti).iter().any(beyond),
        "a runs its shutdown reactions at 6 ms, and may send there"
    );
}

#[test]
fn rule_11_values_pass_through_as_references() {
    let graph = chain(ms(0), ms(0));
    let mut rti = started::<Rc<Vec<u8>>>(&graph);
    let payload = Rc::new(vec![0; 1_000_000]);
    let (from, to, number, input, tag) = (A, B, 1, graph.find("b.in").unwrap(), tag(5, 0));
    let value = Some(Rc::clone(&payload));
    tell(
        &mut rti,
        A,
        Up::Message(Message {
            from,
            to,
            number,
            input,
            tag,
            value,
        }),
        at(5),
    );
    let forwarded = sent(&mut rti).into_iter().find_map(|(_, body)| match body {
        Down::Message(message) => message.value,
        _ => None,
    });
    assert!(Rc::ptr_eq(&forwarded.unwrap(), &payload));
}

#[test]
fn rule_14_who_returns_does_so_after_everything_that_others_relied_on() {
    let graph = chain(ms(2), ms(0));
    let input = graph.find("b.in").unwrap();
    let mut rti = started(&graph);
    next(&mut rti, A, tag(5, 0));
    next(&mut rti, B, tag(30, 0));
    rti.on_gone(A, at(6));
    sent(&mut rti);
    assert_eq!(
        rti.grants(B),
        Some((tag(30, 0), Tag::NEVER)),
        "no further than asked while a may return"
    );
    rti.on_connected(A, at(9));
    tell(&mut rti, A, Up::Report(Box::new(report(at(9)))), at(9));
    let first = sent_to(&mut rti, A).into_iter().find_map(|body| match body {
        Down::Start { first, .. } => Some(first),
        _ => None,
    });
    let first = first.unwrap();
    assert!(first + Delay::of_connection(ms(2)) > tag(30, 0), "{first}");
    assert!(
        first.before() + Delay::of_connection(ms(2)) <= tag(30, 0),
        "no later than necessary: {first}"
    );
    // Dropped messages count as well: here those to b, which dies too.
    rti.on_gone(B, at(10));
    tell(&mut rti, A, Up::Message(value(A, B, 1, input, tag(77, 0))), at(10));
    rti.on_connected(B, at(11));
    sent(&mut rti);
    tell(&mut rti, B, Up::Report(Box::new(report(at(11)))), at(11));
    let starts = sent_to(&mut rti, B).into_iter().find_map(|body| match body {
        Down::Start { first, .. } => Some(first),
        _ => None,
    });
    assert_eq!(starts, Some(tag(77, 1)));
}

#[test]
fn a_program_ends_once_nobody_has_an_event_and_nothing_is_on_its_way() {
    let graph = chain(ms(0), ms(0));
    let input = graph.find("b.in").unwrap();
    let mut rti = started(&graph);
    for federate in [B, C] {
        next(&mut rti, federate, Tag::FOREVER);
    }
    tell(&mut rti, A, Up::Message(value(A, B, 1, input, tag(5, 0))), at(5));
    tell(&mut rti, A, Up::Completed(tag(5, 0)), at(5));
    next(&mut rti, A, Tag::FOREVER);
    let asked = |rti: &mut Rti<u64>| {
        let asked = sent(rti).into_iter().filter(|(_, body)| *body == Down::StopRequest);
        asked.map(|(to, _)| to).collect::<Vec<_>>()
    };
    assert_eq!(asked(&mut rti), [], "a message is on its way");
    let mut dies = rti.clone();
    tell_received(&mut rti, B, 1, Up::Completed(tag(5, 0)), at(6));
    assert_eq!(asked(&mut rti), [], "its next event is not known");
    next(&mut rti, B, Tag::FOREVER);
    assert_eq!(asked(&mut rti), [A, B, C]);
    for (federate, tag) in [(A, tag(5, 1)), (B, tag(5, 1)), (C, Tag::START)] {
        tell(&mut rti, federate, Up::StopReply(tag), at(7));
    }
    assert!(sent_to(&mut rti, C).contains(&Down::Stop(tag(5, 1))));

    dies.on_gone(B, at(6));
    assert_eq!(asked(&mut dies), [A, C]);
}

#[test]
fn who_has_left_at_the_time_limit_raises_a_requested_last_tag_to_it() {
    let graph = chain(ms(0), ms(0));
    let mut rti = started::<u64>(&graph);
    tell(&mut rti, B, Up::StopRequest(tag(4, 1)), at(4));
    tell(&mut rti, C, Up::StopReply(tag(6, 0)), at(5));
    tell(&mut rti, A, Up::Completed(tag(50, 0)), at(50));
    tell(&mut rti, A, Up::Resign, at(50));
    assert!(sent_to(&mut rti, C).contains(&Down::Stop(tag(50, 0))));
}

#[test]
fn who_was_taken_for_dead_is_expelled_and_an_old_rti_stops() {
    let graph = chain(ms(0), ms(0));
    let mut rti = started::<u64>(&graph);
    rti.on_gone(A, at(6));
    rti.on_connected(A, at(7));
    let start = Some(at(1));
    tell(
        &mut rti,
        A,
        Up::Report(Box::new(Report { start, ..report(at(7)) })),
        at(7),
    );
    assert_eq!(sent_to(&mut rti, A), [Down::Hello, Down::Expelled]);
    let (received, body) = (0, Up::Received);
    rti.on_message(
        B,
        Envelope {
            epoch: epoch(2),
            received,
            body,
        },
        at(8),
    );
    assert_eq!(rti.poll(), Some(RtiAction::Deposed(epoch(2))));
    next(&mut rti, B, tag(5, 0));
    assert_eq!((rti.poll(), rti.next_deadline()), (None, None));
}

#[test]
fn nonsense_is_dropped_and_reported() {
    let graph = chain(ms(0), ms(0));
    let input = graph.find("b.in").unwrap();
    let mut rti = started(&graph);
    let bad = [
        value(C, B, 1, input, tag(5, 0)),
        value(A, C, 1, input, tag(5, 0)),
        value(A, B, 1, ElementId(999), tag(5, 0)),
        value(A, B, 1, graph.find("b.out").unwrap(), tag(5, 0)),
    ];
    for message in bad {
        let from = if message.from == C { C } else { A };
        tell(&mut rti, from, Up::Message(message), at(5));
        assert_eq!(rti.poll(), Some(RtiAction::Nonsense(from)));
        assert_eq!(rti.poll(), None);
    }
    rti.on_connected(FederateId(99), at(5));
    rti.on_gone(FederateId(99), at(5));
    next(&mut rti, FederateId(99), tag(5, 0));
    assert_eq!(rti.poll(), None);
}

#[test]
fn a_new_rti_grants_nothing_before_all_have_reported_and_then_goes_on_from_there() {
    let graph = chain(ms(0), ms(0));
    let input = graph.find("b.in").unwrap();
    let mut rti = Rti::new(Arc::clone(&graph), epoch(2), RtiConfig::default(), at(50));
    let running = |next: Tag, granted: Tag| Report {
        start: Some(at(1)),
        next,
        granted,
        ..report(at(50))
    };
    for federate in [A, B, C] {
        rti.on_connected(federate, at(50));
    }
    // a has sent two messages, of which b has the first.
    let mut of_a = running(tag(20, 0), Tag::NEVER);
    of_a.retained = vec![value(A, B, 1, input, tag(8, 0)), value(A, B, 2, input, tag(10, 0))];
    tell(&mut rti, A, Up::Report(Box::new(of_a)), at(51));
    tell(
        &mut rti,
        C,
        Up::Report(Box::new(running(tag(30, 0), tag(9, 9)))),
        at(51),
    );
    let early = sent(&mut rti);
    assert!(early.iter().all(|(_, body)| *body == Down::Hello), "{early:?}");
    let mut of_b = running(tag(15, 0), tag(9, 9));
    of_b.received = vec![(A, 1)];
    tell(&mut rti, B, Up::Report(Box::new(of_b)), at(52));
    let sent = sent(&mut rti);
    let to_b: Vec<_> = sent
        .iter()
        .filter(|(to, _)| *to == B)
        .map(|(_, body)| body.clone())
        .collect();
    let again = value(A, B, 2, input, tag(10, 0));
    assert_eq!(to_b, [Down::Message(again), Down::Grant(tag(20, 0).before())]);
    assert!(
        !sent.iter().any(|(to, body)| *to == C && matches!(body, Down::Grant(_))),
        "b may send at 10 ms"
    );
    assert_eq!(rti.grants(C), Some((tag(9, 9), Tag::NEVER)));
}

#[test]
fn who_is_dead_to_one_that_reports_is_expelled_and_nobody_gets_what_it_told_a_new_rti() {
    let graph = chain(ms(0), ms(5));
    let to_b = graph.find("b.in").unwrap();
    let mut rti = Rti::new(Arc::clone(&graph), epoch(2), RtiConfig::default(), at(50));
    let running = |next: Tag| Report {
        start: Some(at(1)),
        next,
        ..report(at(50))
    };
    for federate in [A, B, C] {
        rti.on_connected(federate, at(50));
    }
    // b has come over. The earlier RTI believes that b has no event and that a is dead, and grants c everything.
    let mut of_a = running(tag(20, 0));
    of_a.retained = vec![value(A, B, 1, to_b, tag(10, 0))];
    tell(&mut rti, A, Up::Report(Box::new(of_a)), at(51));
    tell(&mut rti, B, Up::Report(Box::new(running(Tag::FOREVER))), at(51));
    tell(&mut rti, A, Up::Message(value(A, B, 2, to_b, tag(11, 0))), at(52));
    let mut of_c = running(tag(30, 0));
    (of_c.granted, of_c.gone) = (Tag::FOREVER.before(), vec![A]);
    tell(&mut rti, C, Up::Report(Box::new(of_c)), at(53));
    let sent = sent(&mut rti);
    assert!(sent.contains(&(A, Down::Expelled)), "{sent:?}");
    assert!(sent.contains(&(B, Down::Gone(A))), "{sent:?}");
    assert!(
        !sent.iter().any(|(_, body)| matches!(body, Down::Message(_))),
        "{sent:?}"
    );
    tell(&mut rti, A, Up::Message(value(A, B, 3, to_b, tag(12, 0))), at(54));
    assert_eq!(rti.poll(), None);
}

#[test]
fn many_federates_are_granted_what_the_definition_says() {
    // Enough federates upstream that the horizon is searched in the order of events. The RTI compares it with the
    // definition.
    const COUNT: u16 = 60;
    let mut random = Random::new(1);
    for with_cycle in [false, true] {
        let id = |at: u16| FederateId(at);
        let mut program = Program {
            federates: (0..COUNT).map(|at| format!("f{at}")).collect(),
            reactors: (0..COUNT).map(|at| relay(&format!("r{at}"), id(at))).collect(),
            connections: vec![],
        };
        program.reactors[0] = source("r0", A);
        for at in 1..COUNT {
            let connection = Connection::new(&format!("r{}.out", at - 1), &format!("r{at}.in"));
            program.connections.push(connection.after(ms(random.below(2))));
        }
        if with_cycle {
            let asks = Reactor::new("asks", id(40))
                .input("in")
                .reaction(Reaction::new("read").on("in"));
            program.reactors.push(asks);
            program.connections.push(Connection::new("r41.out", "asks.in"));
        }
        let graph = Arc::new(Graph::new(&program).unwrap());
        let mut rti: Rti<u64> = started(&graph);
        let mut at = vec![0; usize::from(COUNT)];
        for _ in 0..3_000 {
            let from = random.below(COUNT.into()) as u16;
            let step = random.below(20);
            at[usize::from(from)] += step;
            next(&mut rti, id(from), tag(at[usize::from(from)], 0));
        }
        let grants = graph.federate_ids().map(|id| rti.grants(id).unwrap().0);
        let granted = grants.filter(|tag| *tag > Tag::START).count();
        assert!(granted > 20, "{granted}");
    }
}

fn awaited(rti: &mut Rti<u64>) -> Vec<(FederateId, Tag)> {
    let awaited = |(to, down)| match down {
        Down::Awaited(tag) => Some((to, tag)),
        _ => None,
    };
    sent(rti).into_iter().filter_map(awaited).collect()
}

/// Lets a send enough unneeded reports, with its next event at `from_ms` and later.
fn tell_unneeded(rti: &mut Rti<u64>, from_ms: u64) {
    for step in 0..=u64::from(awaited::PATIENCE) {
        assert_eq!(awaited(rti), []);
        next(rti, A, tag(from_ms + step, 0));
    }
}

#[test]
fn rule_7_who_tells_what_nobody_waits_for_is_told_so_and_told_again_where_that_drops() {
    let graph = chain(ms(0), ms(5));
    let input = graph.find("b.in").unwrap();
    let mut rti = started(&graph);
    next(&mut rti, B, tag(50, 0));
    next(&mut rti, C, tag(40, 0));
    tell_unneeded(&mut rti, 1);
    // a's message at 35 ms arrives at c at 40 ms, and c waits for the event after that.
    assert_eq!(
        awaited(&mut rti),
        [(A, tag(35, 0) + Delay::of_connection(Duration::from_nanos(1)))]
    );
    next(&mut rti, A, tag(9, 0));
    assert_eq!(awaited(&mut rti), [], "once");
    tell(&mut rti, A, Up::Message(value(A, B, 1, input, tag(20, 0))), at(20));
    assert_eq!(awaited(&mut rti), [(A, tag(20, 1))], "now b waits for less");
    tell(&mut rti, A, Up::Completed(tag(20, 0)), at(20));
    assert_eq!(awaited(&mut rti), [], "and does not wait any more");
}

#[test]
fn rule_7_where_what_is_waited_for_moves_nothing_is_saved_and_nothing_told() {
    let graph = chain(ms(0), ms(0));
    let mut rti = started::<u64>(&graph);
    for step in 1..50 {
        for federate in [A, B, C] {
            next(&mut rti, federate, tag(step, 0));
        }
        for federate in [A, B, C] {
            tell(&mut rti, federate, Up::Completed(tag(step, 0)), at(100));
        }
    }
    assert!(
        awaited(&mut rti).iter().all(|(to, _)| *to == C),
        "of c, nobody needs anything"
    );
}

#[test]
fn rule_7_members_of_zero_delay_cycles_are_told_nothing() {
    let graph = cycle();
    let mut rti = started::<u64>(&graph);
    next(&mut rti, B, Tag::FOREVER);
    tell_unneeded(&mut rti, 1);
    assert_eq!(awaited(&mut rti), []);
}

#[test]
fn rule_7_the_last_tag_is_waited_for_by_everybody() {
    let graph = chain(ms(0), ms(0));
    let mut rti = started::<u64>(&graph);
    next(&mut rti, B, Tag::FOREVER);
    next(&mut rti, C, Tag::FOREVER);
    tell_unneeded(&mut rti, 1);
    assert_eq!(awaited(&mut rti), [(A, Tag::FOREVER)]);
    for federate in [A, B, C] {
        tell(&mut rti, federate, Up::StopReply(tag(16, 0)), at(16));
    }
    assert_eq!(awaited(&mut rti), [(A, tag(16, 1))]);
}

#[test]
fn rule_7_who_returns_waits_again_and_who_died_does_not() {
    let graph = chain(ms(0), ms(0));
    let mut rti = started::<u64>(&graph);
    next(&mut rti, B, tag(50, 0));
    next(&mut rti, C, tag(40, 0));
    rti.on_gone(C, at(1));
    tell_unneeded(&mut rti, 1);
    assert_eq!(awaited(&mut rti), [(A, tag(50, 1))]);
    rti.on_connected(C, at(2));
    tell(&mut rti, C, Up::Report(Box::new(report(at(2)))), at(2));
    let told = awaited(&mut rti);
    assert!(matches!(told[..], [(A, tag)] if tag < Tag::at(ms(50), 0)), "{told:?}");
}
