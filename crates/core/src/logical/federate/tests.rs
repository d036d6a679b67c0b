use super::super::failover_epoch as epoch;
use super::super::program::{ActionKind, Connection, Program, Reaction, Reactor};
use super::super::tests::{at, ms, tag};
use super::super::{Rti, RtiAction, RtiConfig};
use super::*;

const A: FederateId = FederateId(0);
const B: FederateId = FederateId(1);

/// Builds a program in which a ticks and has a button, and b reads.
fn graph() -> Arc<Graph> {
    let a = Reactor::new("a", A)
        .output("out")
        .timer("t", ms(0), Some(ms(20)))
        .action("button", ActionKind::Physical, ms(2))
        .reaction(Reaction::new("tick").on("t").on("button").effect("out"));
    let b = Reactor::new("b", B)
        .input("in")
        .timer("t", ms(10), Some(ms(10)))
        .reaction(Reaction::new("read").on("in").on("t").on_shutdown());
    let program = Program {
        federates: vec!["a".into(), "b".into()],
        reactors: vec![a, b],
        connections: vec![Connection::new("a.out", "b.in").after(ms(1))],
    };
    Arc::new(Graph::new(&program).unwrap())
}

fn tell(federate: &mut Federate<u64>, body: Down<u64>, now: Instant) {
    let (epoch, received) = (federate.epoch.unwrap_or(epoch(1)), 0);
    federate.on_message(Envelope { epoch, received, body }, now);
}

/// Returns the messages that a federate sends. Its reactions run at once and set `out` to 1, if there is one.
fn sends(federate: &mut Federate<u64>, now: Instant) -> Vec<Up<u64>> {
    let mut sent = Vec::new();
    while let Some(action) = federate.poll(now) {
        match action {
            FederateAction::Send(envelope) => sent.push(envelope.body),
            FederateAction::Run { reactions, .. } => {
                for ready in reactions {
                    let declared = &federate.graph.reaction(ready.reaction).unwrap().effects;
                    let sets = declared.iter().map(|output| (*output, 1)).collect();
                    let effects = Effects {
                        sets,
                        ..Effects::default()
                    };
                    federate.finish(ready.reaction, effects, now).unwrap();
                }
            }
            FederateAction::Started(_) | FederateAction::Ended | FederateAction::Gone(_) => {}
            other => panic!("{other:?}"),
        }
    }
    sent
}

/// Returns a federate that starts at zero.
fn started(graph: &Arc<Graph>, id: FederateId, config: FederateConfig) -> Federate<u64> {
    let mut federate = Federate::new(Arc::clone(graph), id, config);
    tell(&mut federate, Down::Hello, at(0));
    assert!(matches!(sends(&mut federate, at(0))[..], [Up::Report(_)]));
    let (at_zero, first, sent) = (at(0), Tag::START, vec![]);
    tell(
        &mut federate,
        Down::Start {
            at: at_zero,
            first,
            sent,
        },
        at(0),
    );
    federate
}

fn net(tag: Tag, is_bound: bool) -> Up<u64> {
    Up::NextEvent { tag, is_bound }
}

fn value(graph: &Graph, number: u64, tag: Tag) -> Down<u64> {
    let (from, to, input, value) = (A, B, graph.find("b.in").unwrap(), Some(number));
    Down::Message(Message {
        from,
        to,
        number,
        input,
        tag,
        value,
    })
}

#[test]
fn rule_2_while_it_waits_each_change_of_its_queue_is_told() {
    let graph = graph();
    let mut b = started(&graph, B, FederateConfig::default());
    assert_eq!(sends(&mut b, at(0)), [net(tag(10, 0), false)]);
    assert_eq!(sends(&mut b, at(1)), [], "once");
    tell(&mut b, value(&graph, 1, tag(7, 0)), at(1));
    assert_eq!(sends(&mut b, at(1)), [net(tag(7, 0), false)]);
    tell(&mut b, Down::Grant(tag(8, 0)), at(2));
    assert_eq!(sends(&mut b, at(7)), [Up::Completed(tag(7, 0)), net(tag(10, 0), false)]);
}

#[test]
fn rule_6_physical_actions_bound_the_next_event_by_the_clock() {
    let graph = graph();
    let button = graph.find("a.button").unwrap();
    let mut a = started(&graph, A, FederateConfig::default());
    let first = sends(&mut a, at(0));
    assert_eq!(
        first.last(),
        Some(&net(tag(2, 0), true)),
        "now and the least delay, not the timer's 20 ms: {first:?}"
    );
    assert_eq!(a.next_deadline(), Some(at(10)), "a null message after the interval");
    assert_eq!(sends(&mut a, at(9)), []);
    assert_eq!(sends(&mut a, at(10)), [net(tag(12, 0), true)]);
    assert!(
        a.on_physical(button, None, at(10)).unwrap() >= tag(12, 0),
        "a promise is kept"
    );
    let mut a = started(&graph, A, FederateConfig::default());
    sends(&mut a, at(0));
    assert_eq!(
        sends(&mut a, at(19)),
        [net(tag(20, 0), false)],
        "the clock has passed the timer's event"
    );
}

#[test]
fn rule_6_without_downstream_nobody_needs_null_messages() {
    let reader = Reactor::new("b", B)
        .input("in")
        .action("button", ActionKind::Physical, ms(0))
        .reaction(Reaction::new("read").on("in").on("button"));
    let source = Reactor::new("a", A)
        .output("out")
        .reaction(Reaction::new("go").on_startup().effect("out"));
    let program = Program {
        federates: vec!["a".into(), "b".into()],
        reactors: vec![source, reader],
        connections: vec![Connection::new("a.out", "b.in")],
    };
    let graph = Arc::new(Graph::new(&program).unwrap());
    let mut b = started(&graph, B, FederateConfig::default());
    assert_eq!(sends(&mut b, at(0)), [net(Tag::FOREVER, false)]);
    assert_eq!(b.next_deadline(), None);
    let button = graph.find("b.button").unwrap();
    assert_eq!(
        b.on_physical(button, None, at(3)),
        Ok(tag(3, 0)),
        "and it promised nothing"
    );
    assert_eq!(sends(&mut b, at(3)), [net(tag(3, 0), false)]);
}

#[test]
fn rule_10_a_reply_raises_a_barrier_and_the_last_tag_is_told_before_it_leaves() {
    let graph = graph();
    let mut b = started(&graph, B, FederateConfig::default());
    tell(&mut b, Down::Grant(tag(10, 5)), at(0));
    sends(&mut b, at(9));
    tell(&mut b, Down::StopRequest, at(9));
    assert_eq!(sends(&mut b, at(9)), [Up::StopReply(Tag::START)]);
    assert_eq!(sends(&mut b, at(30)), [], "it holds, although it is granted 10 ms");
    tell(&mut b, Down::Stop(tag(11, 0)), at(30));
    assert_eq!(
        sends(&mut b, at(30)),
        [Up::Completed(tag(10, 0)), net(tag(11, 0), false)]
    );
    tell(&mut b, Down::Grant(tag(11, 0)), at(31));
    assert_eq!(sends(&mut b, at(31)), [Up::Completed(tag(11, 0)), Up::Resign]);
}

#[test]
fn before_a_time_limit_a_request_is_clipped_to_it_and_at_the_limit_it_changes_nothing() {
    let graph = graph();
    let limited = |timeout| {
        let scheduler = SchedulerConfig {
            timeout: Some(timeout),
            ..SchedulerConfig::default()
        };
        let config = FederateConfig {
            scheduler,
            ..FederateConfig::default()
        };
        let mut b = started(&graph, B, config);
        tell(&mut b, Down::Grant(tag(30, 0)), at(0));
        b
    };
    let mut b = limited(ms(15));
    assert_eq!(
        sends(&mut b, at(10)),
        [Up::Completed(tag(10, 0)), net(tag(15, 0), false)]
    );
    b.request_stop_at(tag(40, 0));
    assert_eq!(sends(&mut b, at(14)), [Up::StopRequest(tag(15, 0))]);
    assert_eq!(
        sends(&mut b, at(15)),
        [Up::Completed(tag(15, 0)), Up::Resign],
        "it need not wait for the answer"
    );
    let mut b = limited(ms(0));
    assert_eq!(sends(&mut b, at(0)), [Up::Completed(Tag::START), Up::Resign]);
    b.request_stop();
    assert_eq!(sends(&mut b, at(1)), []);
}

#[test]
fn a_new_rti_is_told_everything_and_an_old_one_is_ignored() {
    let graph = graph();
    let mut a = started(&graph, A, FederateConfig::default());
    let mut b = started(&graph, B, FederateConfig::default());
    let sent = sends(&mut a, at(0));
    let message = sent.iter().find_map(|up| match up {
        Up::Message(message) => Some(message.clone()),
        _ => None,
    });
    let message = message.unwrap();
    tell(&mut b, Down::Message(message.clone()), at(1));
    tell(&mut b, Down::Grant(tag(1, 0)), at(1));
    sends(&mut b, at(1));

    let hello = |round| Envelope {
        epoch: epoch(round),
        received: 0,
        body: Down::Hello,
    };
    let report = |federate: &mut Federate<u64>| match sends(federate, at(2)).into_iter().next() {
        Some(Up::Report(report)) => *report,
        other => panic!("{other:?}"),
    };
    a.on_message(hello(2), at(2));
    b.on_message(hello(2), at(2));
    let (of_a, of_b) = (report(&mut a), report(&mut b));
    assert_eq!(
        (of_a.completed, of_a.start, &of_a.retained[..]),
        (Tag::START, Some(at(0)), &[message.clone()][..])
    );
    assert_eq!(
        (of_b.completed, of_b.granted, of_b.next),
        (tag(1, 0), tag(1, 0), tag(10, 0))
    );
    assert_eq!(of_b.received, [(A, 1)]);

    let old = Envelope {
        epoch: epoch(1),
        received: 0,
        body: Down::Grant(tag(90, 0)),
    };
    b.on_message(old, at(3));
    b.on_message(hello(1), at(3));
    assert_eq!(b.scheduler().grants().0, tag(1, 0));
    // The new RTI delivers the message again; it has no second effect.
    tell(&mut b, Down::Message(message), at(3));
    assert_eq!(sends(&mut b, at(3)), []);
    assert_eq!(b.scheduler().next_tag(), tag(10, 0));
}

#[test]
fn a_fast_sender_waits_for_messages_to_arrive() {
    let graph = graph();
    let outstanding_max = 64;
    let scheduler = SchedulerConfig {
        fast: true,
        ..SchedulerConfig::default()
    };
    let config = FederateConfig {
        scheduler,
        outstanding_max,
        ..FederateConfig::default()
    };
    let mut a = started(&graph, A, config);
    let messages = |sent: &[Up<u64>]| sent.iter().filter(|up| matches!(up, Up::Message(_))).count();
    assert_eq!(messages(&sends(&mut a, at(0))), 64);
    let (to, number) = (B, 32);
    tell(&mut a, Down::Delivered { to, number }, at(0));
    assert_eq!(messages(&sends(&mut a, at(0))), 32);
}

#[test]
fn a_receiver_with_much_to_do_acknowledges_later() {
    let graph = graph();
    let scheduler = SchedulerConfig {
        events_max: 100,
        ..SchedulerConfig::default()
    };
    let mut b = started(
        &graph,
        B,
        FederateConfig {
            scheduler,
            ..FederateConfig::default()
        },
    );
    sends(&mut b, at(0));
    tell(&mut b, Down::Grant(tag(1, 0)), at(0));
    for number in 1..=80 {
        tell(&mut b, value(&graph, number, tag(number, 0)), at(9));
    }
    let acknowledged = b.received.1;
    assert!(
        (30..=60).contains(&acknowledged),
        "about half of the queue: {acknowledged}"
    );
    tell(&mut b, Down::Grant(tag(80, 0)), at(90));
    sends(&mut b, at(90));
    assert_eq!(b.received.1, 80);
}

/// Returns only b, which joins a's messages within the tag with a tick at that tag.
fn alone() -> (Arc<Graph>, Federate<u64>) {
    let a = Reactor::new("a", A)
        .output("out")
        .timer("t", ms(0), Some(ms(10)))
        .reaction(Reaction::new("tick").on("t").effect("out"));
    let b = Reactor::new("b", B)
        .input("in")
        .timer("t", ms(0), Some(ms(10)))
        .reaction(Reaction::new("join").on("in").on("t").on_shutdown());
    let program = Program {
        federates: vec!["a".into(), "b".into()],
        reactors: vec![a, b],
        connections: vec![Connection::new("a.out", "b.in")],
    };
    let graph = Arc::new(Graph::new(&program).unwrap());
    let (config, offsets) = (FederateConfig::default(), DecentralisedConfig::default());
    let mut b = Federate::decentralised(Arc::clone(&graph), B, config, offsets).unwrap();
    tell(&mut b, Down::Hello, at(0));
    assert!(matches!(sends(&mut b, at(0))[..], [Up::Report(_)]));
    let (at_zero, first, sent) = (at(0), Tag::START, vec![]);
    tell(
        &mut b,
        Down::Start {
            at: at_zero,
            first,
            sent,
        },
        at(0),
    );
    (graph, b)
}

#[test]
fn rule_9_decentralised_it_goes_on_without_a_federate_that_the_rti_calls_dead() {
    let (_, mut b) = alone();
    assert_eq!(
        sends(&mut b, at(500)),
        [],
        "without an offset it waits for what a sends"
    );
    tell(&mut b, Down::Gone(A), at(500));
    assert_eq!(sends(&mut b, at(500)), []);
    assert_eq!(
        b.scheduler().completed(),
        tag(500, 0),
        "from now on, the input is absent"
    );
}

#[test]
fn decentralised_it_holds_for_the_last_tag_and_resigns_once_it_has_heard_all() {
    let (graph, mut b) = alone();
    let input = graph.find("b.in").unwrap();
    let known = |through| PeerMessage::Known { input, through };
    b.on_peer_message(known(tag(50, 0)), at(5));
    assert_eq!(sends(&mut b, at(5)), []);
    tell(&mut b, Down::StopRequest, at(5));
    assert_eq!(sends(&mut b, at(5)), [Up::StopReply(tag(0, 1))]);
    assert_eq!(sends(&mut b, at(25)), [], "it holds");
    tell(&mut b, Down::Stop(tag(20, 0)), at(25));
    assert_eq!(
        sends(&mut b, at(25)),
        [],
        "nobody foresaw the last tag, so the promise does not hold there"
    );
    assert_eq!(b.scheduler().reached(), tag(20, 0));
    let (tag_last, value) = (tag(20, 0), 3);
    let last = PeerMessage::Value {
        input,
        tag: tag_last,
        value,
    };
    b.on_peer_message(last, at(26));
    assert_eq!(sends(&mut b, at(26)), [Up::Completed(tag_last)]);
    let tag = Tag::FOREVER;
    b.on_peer_message(PeerMessage::Absent { input, tag }, at(27));
    assert_eq!(sends(&mut b, at(27)), [Up::Resign]);
    tell(&mut b, Down::Over, at(28));
    assert_eq!(b.poll(at(28)), Some(FederateAction::Ended));
}

/// Builds a reactor that ticks with this period, and that could send.
fn ticks(name: &str, federate: FederateId, period: Duration) -> Reactor {
    Reactor::new(name, federate)
        .output("out")
        .timer("t", ms(0), Some(period))
        .reaction(Reaction::new("tick").on("t").effect("out"))
}

/// Builds a program in which a ticks every millisecond, c every ten, and b's only events are their messages.
fn fan_in() -> Arc<Graph> {
    let b = Reactor::new("b", B)
        .input("in")
        .input("other")
        .reaction(Reaction::new("read").on("in").on("other"));
    let program = Program {
        federates: vec!["a".into(), "b".into(), "c".into()],
        reactors: vec![ticks("a", A, ms(1)), b, ticks("c", FederateId(2), ms(10))],
        connections: vec![Connection::new("a.out", "b.in"), Connection::new("c.out", "b.other")],
    };
    Arc::new(Graph::new(&program).unwrap())
}

/// Builds a program in which a ticks every millisecond, and b has one event per second.
fn sparse() -> Arc<Graph> {
    let b = Reactor::new("b", B)
        .input("in")
        .timer("t", ms(0), Some(ms(1000)))
        .reaction(Reaction::new("read").on("in").on("t"));
    let program = Program {
        federates: vec!["a".into(), "b".into()],
        reactors: vec![ticks("a", A, ms(1)), b],
        connections: vec![Connection::new("a.out", "b.in")],
    };
    Arc::new(Graph::new(&program).unwrap())
}

/// Returns the messages that a federate sends at these times, if its reactions have no effects.
fn sends_silently(federate: &mut Federate<u64>, times_ms: std::ops::RangeInclusive<u64>) -> Vec<Up<u64>> {
    let mut sent = Vec::new();
    for now in times_ms.map(at) {
        while let Some(action) = federate.poll(now) {
            match action {
                FederateAction::Send(envelope) => sent.push(envelope.body),
                FederateAction::Run { reactions, .. } => {
                    for ready in reactions {
                        federate.finish(ready.reaction, Effects::default(), now).unwrap();
                    }
                }
                FederateAction::Started(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }
    sent
}

#[test]
fn rule_7_what_nobody_waits_for_is_not_told_and_the_skipped_is_sent_where_that_drops() {
    let mut a = started(&sparse(), A, FederateConfig::default());
    let first = [Up::Completed(tag(0, 0)), net(tag(1, 0), false)];
    assert_eq!(sends_silently(&mut a, 0..=0), first);
    tell(&mut a, Down::Awaited(tag(20, 1)), at(0));
    assert_eq!(sends_silently(&mut a, 1..=19), []);
    let next = [Up::Completed(tag(20, 0)), net(tag(21, 0), false)];
    assert_eq!(sends_silently(&mut a, 20..=20), next, "the first that matters");

    tell(&mut a, Down::Awaited(Tag::FOREVER), at(20));
    assert_eq!(sends_silently(&mut a, 21..=30), []);
    tell(&mut a, Down::Awaited(tag(30, 1)), at(30));
    let skipped = [Up::Completed(tag(30, 0)), net(tag(31, 0), false)];
    assert_eq!(sends_silently(&mut a, 30..=30), skipped, "at once");
}

#[test]
fn rule_7_what_it_skipped_is_sent_even_while_a_reaction_runs() {
    let mut a = started(&sparse(), A, FederateConfig::default());
    sends_silently(&mut a, 0..=0);
    tell(&mut a, Down::Awaited(Tag::FOREVER), at(0));
    sends_silently(&mut a, 1..=4);
    assert!(matches!(a.poll(at(5)), Some(FederateAction::Run { .. })));
    tell(&mut a, Down::Awaited(tag(4, 1)), at(5));
    let skipped = [Up::Completed(tag(4, 0)), net(tag(5, 0), false)];
    assert_eq!(sends_silently(&mut a, 5..=5), skipped);
}

#[test]
fn rule_7_after_a_message_it_tells_what_follows() {
    let mut a = started(&graph(), A, FederateConfig::default());
    sends(&mut a, at(0));
    tell(&mut a, Down::Awaited(Tag::FOREVER), at(0));
    assert_eq!(sends(&mut a, at(19)), []);
    let sent = sends(&mut a, at(20));
    let told = [Up::Completed(tag(20, 0)), net(tag(22, 0), true)];
    assert!(matches!(sent[0], Up::Message(_)) && sent[1..] == told, "{sent:?}");
}

#[test]
fn rule_7_where_it_needs_a_grant_itself_and_at_the_end_of_all_events_it_tells() {
    let graph = graph();
    let mut b = started(&graph, B, FederateConfig::default());
    tell(&mut b, Down::Awaited(Tag::FOREVER), at(0));
    assert_eq!(sends(&mut b, at(0)), [net(tag(10, 0), false)]);
    tell(&mut b, Down::Grant(tag(25, 0)), at(0));
    assert_eq!(sends(&mut b, at(10)), [], "20 ms is granted");
    assert_eq!(
        sends(&mut b, at(20)),
        [Up::Completed(tag(20, 0)), net(tag(30, 0), false)]
    );

    let a = Reactor::new("a", A)
        .timer("t", ms(0), None)
        .reaction(Reaction::new("tick").on("t"));
    let program = Program {
        federates: vec!["a".into()],
        reactors: vec![a],
        connections: vec![],
    };
    let graph = Arc::new(Graph::new(&program).unwrap());
    let mut a = started(&graph, A, FederateConfig::default());
    tell(&mut a, Down::Awaited(Tag::FOREVER), at(0));
    assert_eq!(
        sends(&mut a, at(0)),
        [Up::Completed(Tag::START), net(Tag::FOREVER, false)]
    );
}

#[test]
fn rule_7_a_new_rti_makes_it_void() {
    let mut a = started(&sparse(), A, FederateConfig::default());
    sends_silently(&mut a, 0..=0);
    tell(&mut a, Down::Awaited(Tag::FOREVER), at(0));
    sends_silently(&mut a, 1..=4);
    let (epoch, received, body) = (epoch(2), 0, Down::Hello);
    a.on_message(Envelope { epoch, received, body }, at(4));
    let sent = sends_silently(&mut a, 4..=4);
    let [Up::Report(report)] = &sent[..] else {
        panic!("{sent:?}")
    };
    assert_eq!((report.completed, report.next), (tag(4, 0), tag(5, 0)));
    let told = [Up::Completed(tag(5, 0)), net(tag(6, 0), false)];
    assert_eq!(sends_silently(&mut a, 5..=5), told);
}

#[test]
fn rule_7_null_messages_begin_where_somebody_waits() {
    let graph = graph();
    let mut a = started(&graph, A, FederateConfig::default());
    sends(&mut a, at(0));
    tell(&mut a, Down::Awaited(tag(15, 0)), at(0));
    assert_eq!(sends(&mut a, at(10)), [], "at 12 ms nobody waits for it");
    let due = at(13) + Duration::from_nanos(1);
    assert_eq!(a.next_deadline(), Some(due));
    let bound = ms(15) + Duration::from_nanos(1);
    assert_eq!(sends(&mut a, due), [net(Tag::at(bound, 0), true)]);
}

/// Returns how many messages the RTI receives and sends in five seconds, if all messages arrive at once. Reactions have
/// their effects if `sends` says so for their federate and the time in milliseconds.
fn messages(graph: &Arc<Graph>, patience: u32, sends: impl Fn(FederateId, u64) -> bool) -> (usize, usize) {
    let config = RtiConfig::default();
    let start = at(0) + config.start_delay;
    let mut rti = Rti::new(Arc::clone(graph), epoch(1), config, at(0)).with_patience(patience);
    let new = |id| Federate::new(Arc::clone(graph), id, FederateConfig::default());
    let mut federates: Vec<Federate<u64>> = graph.federate_ids().map(new).collect();
    for id in graph.federate_ids() {
        rti.on_connected(id, at(0));
    }
    let (mut up, mut down) = (0, 0);
    for now in (0..=5000).map(|time| start + ms(time)) {
        let mut is_busy = true;
        while is_busy {
            is_busy = false;
            while let Some(action) = rti.poll() {
                if let RtiAction::Send { to, envelope } = action {
                    down += 1;
                    federates[usize::from(to.0)].on_message(envelope, now);
                }
            }
            for (id, federate) in graph.federate_ids().zip(&mut federates) {
                while let Some(action) = federate.poll(now) {
                    is_busy = true;
                    match action {
                        FederateAction::Send(envelope) => {
                            up += 1;
                            rti.on_message(id, envelope, now);
                        }
                        FederateAction::Run { tag, reactions, .. } => {
                            let sends = sends(id, tag.time().unwrap().as_nanos() / 1_000_000);
                            for ready in reactions.iter().map(|ready| ready.reaction) {
                                let declared = graph.reaction(ready).unwrap().effects.iter().filter(|_| sends);
                                let sets = declared.map(|output| (*output, 1)).collect();
                                let effects = Effects {
                                    sets,
                                    ..Effects::default()
                                };
                                federate.finish(ready, effects, now).unwrap();
                            }
                        }
                        FederateAction::Started(_) => {}
                        other => panic!("{other:?}"),
                    }
                }
            }
        }
    }
    (up, down)
}

/// Every message counts, so these figures are the same on every machine.
#[test]
fn rule_7_a_sparse_sender_tells_little_and_a_dense_one_costs_nothing_more() {
    let (sparse, fan_in) = (sparse(), fan_in());
    // The number of messages to the RTI, without and with this rule, and the number that it sends for that.
    let count = |graph, sends: &dyn Fn(FederateId, u64) -> bool| {
        let (told, spared) = (messages(graph, u32::MAX, sends), messages(graph, 4, sends));
        println!("{told:?} {spared:?}");
        (told.0, spared.0, spared.1 - told.1)
    };
    let (all, rest, cost) = count(&sparse, &|_, time| time % 500 == 499);
    assert!(rest * 50 < all && cost < 50, "a message each half second");
    let (all, rest, cost) = count(&sparse, &|_, time| time % 10 == 9);
    assert!(
        rest * 3 < all * 2 && 5 * cost < all - rest,
        "a message each ten milliseconds"
    );
    let (all, rest, cost) = count(&sparse, &|_, _| true);
    assert!(
        rest <= all && cost <= 1,
        "a message each millisecond: only b is spared anything"
    );
    let (all, rest, cost) = count(&fan_in, &|id, _| id != A);
    assert!(rest * 3 < all * 2 && 4 * cost < all - rest, "only the other one sends");
}
