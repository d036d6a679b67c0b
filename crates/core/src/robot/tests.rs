use super::*;
use crate::arrival::TimeModel;
use crate::clock::Offset;
use crate::policy::Policy;
use crate::{failover, permits};

fn at(ms: u64) -> Instant {
    Instant::from_nanos(ms * 1_000_000)
}

/// Returns robot `me` of a team of `robots`, led by robot 0.
fn member(policy: &Policy, me: u16, robots: u16) -> Robot {
    let config = RobotConfig::new(policy, RobotId(me), robots, RobotId(0), 1);
    Robot::new(config, at(0)).unwrap()
}

fn robot(policy: &str) -> Robot {
    let mut policy = Policy::named(policy).unwrap();
    if let Some(local) = &mut policy.local {
        local.shared_windows = true;
    }
    member(&policy, 1, 2)
}

fn said(message: failover::Message) -> Message {
    Message::Coordination(message)
}

/// Lets a robot make a control message, which leaves at once.
fn make(robot: &mut Robot, flow: FlowId, now: Instant) {
    robot.on_control(flow, now);
    robot.on_control_left(flow, now);
}

/// Lets a control message arrive that is stamped by the receiver's own clock.
fn arrive(robot: &mut Robot, from: RobotId, flow: u8, made_at: Instant, now: Instant) {
    let stamp = Stamp {
        flow,
        made_at: Some((robot.clock_id(), made_at)),
        last_loop: None,
        bound: None,
    };
    robot.on_arrived(from, stamp, now);
}

fn run(robot: &mut Robot, until: Instant) -> Vec<Action> {
    let mut actions = Vec::new();
    while robot.next_deadline() <= until {
        let deadline = robot.next_deadline();
        robot.on_deadline(deadline);
        actions.extend(std::iter::from_fn(|| robot.poll()));
        assert!(robot.next_deadline() > deadline, "it stands still");
    }
    actions
}

#[test]
fn bulk_is_held_while_control_is_due_and_told_when_to_ask_again() {
    let mut robot = robot("edca+local");
    let flow = robot.add_flow(None).unwrap();
    for message in 1..=30 {
        run(&mut robot, at(20 * message));
        make(&mut robot, flow, at(20 * message));
    }
    run(&mut robot, at(610));
    assert!(robot.may_pass(0, 0, at(610)), "between two messages");
    run(&mut robot, at(620));
    assert!(!robot.may_pass(0, 0, at(620)), "one is due");
    assert!(run(&mut robot, at(630)).contains(&Action::Resume));
    assert!(robot.may_pass(0, 0, at(630)));
    robot.remove_flow(flow);
    // The window that was set stays, and is the last one.
    run(&mut robot, at(660));
    assert!(robot.may_pass(0, 0, at(660)), "nothing is due any more");
}

#[test]
fn foreign_flows_leave_places_for_the_robots_own_topics() {
    let policy = Policy::named("coorp").unwrap();
    let mut robot = Robot::new(RobotConfig::new(&policy, RobotId(1), 2, RobotId(1), 1), at(0)).unwrap();
    let foreign: Vec<FlowId> = std::iter::from_fn(|| robot.add_foreign_flow()).collect();
    let own = std::iter::from_fn(|| robot.add_flow(None)).count();
    assert_eq!((foreign.len(), own), (48, FLOWS_MAX - 48));
    robot.remove_flow(foreign[0]);
    assert!(robot.add_foreign_flow().is_some());
}

/// In an earlier version, flows of unchanged programs at the control loop's rate counted as its perceptions, whose
/// commands never arrived.
#[test]
fn foreign_flows_have_windows_here_and_no_part_in_the_loop() {
    let mut policy = Policy::named("coorp").unwrap();
    policy.global = None;
    let mut config = RobotConfig::new(&policy, RobotId(1), 2, RobotId(1), 1);
    config.control = Some(ControlLoop {
        period: Duration::from_millis(20),
        bound: Duration::from_millis(10),
    });
    let mut robot = Robot::new(config, at(0)).unwrap();
    robot.want_bulk(true, at(0));
    let flow = robot.add_foreign_flow().unwrap();
    let mut actions = Vec::new();
    for message in 1..=150 {
        actions.extend(run(&mut robot, at(20 * message)));
        make(&mut robot, flow, at(20 * message));
    }
    let told = |action: &Action| matches!(action, Action::Broadcast(Message::Models { .. }));
    assert!(!actions.iter().any(told), "nobody hears its messages");
    run(&mut robot, at(3_008));
    assert!(robot.may_pass(0, 0, at(3_008)), "no loop ends at 3,010");
    run(&mut robot, at(3_015));
    assert!(robot.may_acknowledge(at(3_015)));
    run(&mut robot, at(3_019));
    assert!(!robot.may_acknowledge(at(3_019)), "one is due soon");
    run(&mut robot, at(3_020));
    assert!(!robot.may_pass(0, 0, at(3_020)), "one is due");
    make(&mut robot, flow, at(3_020));
    assert!(
        robot.may_pass(0, 0, at(3_020)) && robot.may_acknowledge(at(3_020)),
        "it is out"
    );
}

#[test]
fn windows_wake_nobody_who_does_not_ask_but_for_a_recording() {
    let mut robot = robot("edca+local");
    let flow = robot.add_flow(None).unwrap();
    let wakes = |robot: &mut Robot, messages: std::ops::RangeInclusive<u64>| {
        let mut wakes = 0;
        for message in messages {
            while robot.next_deadline() <= at(20 * message) {
                robot.on_deadline(robot.next_deadline());
                while robot.poll().is_some() {}
                wakes += 1;
            }
            make(robot, flow, at(20 * message));
        }
        wakes
    };
    // The leader's clock is known.
    (0..8).for_each(|_| robot.clocks.on_time(ClockId::of(RobotId(0), 1), [at(1); 4]));
    wakes(&mut robot, 1..=30);
    assert!(wakes(&mut robot, 31..=60) < 5);
    // Asking the gate still plans the next one.
    robot.may_pass(0, 0, at(1_205));
    let window = robot.window();
    assert!(window.start <= at(1_220) && window.end > at(1_220), "{window:?}");
    robot.begin_journal();
    assert!(wakes(&mut robot, 61..=90) >= 29);
}

#[test]
fn who_watches_sees_what_is_decided_and_when() {
    let mut robot = robot("edca+local");
    let flow = robot.add_flow(None).unwrap();
    for message in 1..=30 {
        run(&mut robot, at(20 * message));
        make(&mut robot, flow, at(20 * message));
    }
    let asks = |robot: &mut Robot, ms| robot.handle(Input::MayPass { path: 0, n: 0 }, at(ms));
    assert_eq!(asks(&mut robot, 610), Answer::Yes);
    let first = robot.look(None, at(610));
    assert_eq!(first.events[0], (0, Seen::Led(Some(RobotId(0)))));
    let window = first.events.iter().find_map(|(_, seen)| match seen {
        Seen::Window(window) => *window,
        _ => None,
    });
    assert!(
        window.is_some_and(|(ahead, _)| (5_000..=10_000).contains(&ahead)),
        "{window:?}"
    );
    assert_eq!(asks(&mut robot, 620), Answer::No);
    robot.handle(Input::Control(flow), at(621));
    robot.handle(Input::ControlLeft(flow), at(623));
    arrive(&mut robot, RobotId(0), 4, at(620), at(625));
    run(&mut robot, at(635));
    assert_eq!(asks(&mut robot, 635), Answer::Yes);
    let second = robot.look(Some(first.cursor()), at(640));
    for (ms, seen) in [
        (
            623,
            Seen::Control {
                flow: 0,
                took_us: 2_000,
            },
        ),
        (635, Seen::Gate { path: 0, held_us: None }),
    ] {
        assert!(
            second.events.contains(&((640 - ms) * 1_000, seen)),
            "no {seen:?}: {second:?}"
        );
    }
    let held = |(ago_us, seen): &(u32, Seen)| {
        let holds = matches!(seen, Seen::Gate { held_us: Some(held_us), .. } if *held_us > 0);
        *ago_us == 20_000 && holds
    };
    assert!(second.events.iter().any(held), "{second:?}");
    let arrived = |(_, seen): &(u32, Seen)| {
        matches!(
            seen,
            Seen::Arrived {
                from: RobotId(0),
                flow: 4,
                ..
            }
        )
    };
    assert!(second.events.iter().any(arrived), "{second:?}");
    let moved = |(_, seen): &(u32, Seen)| matches!(seen, Seen::Window(Some(_)));
    assert!(second.events.iter().any(moved), "the next window: {second:?}");
}

/// A recording and watchers do not take each other's notes.
#[test]
fn a_recording_may_begin_while_somebody_watches() {
    let mut robot = robot("coorp");
    let first = robot.look(None, at(1));
    assert!(robot.begin_journal());
    robot.journal.at(at(2));
    robot.journal.note(Event::Permitted(true));
    assert_eq!(robot.take_journal().0, [(at(2), Event::Permitted(true))]);
    let seen = robot.look(Some(first.cursor()), at(3)).events;
    assert_eq!(seen, [(1_000, Seen::Permitted(true))]);
    robot.end_journal();
    robot.journal.note(Event::Permitted(false));
    assert!(robot.take_journal().0.is_empty());
    assert_eq!(robot.look(None, at(4)).events.len(), first.events.len() + 2);
}

#[test]
fn what_others_say_is_due_holds_bulk_until_they_say_otherwise() {
    let mut robot = robot("edca+local");
    let ms = Duration::from_millis;
    let model = TimeModel {
        period: ms(20),
        phase: at(100),
        sigma: ms(1),
        early: ms(1),
        late: ms(1),
    };
    robot.on_models(RobotId(0), &[(3, model)], Offset::NONE, at(90));
    run(&mut robot, at(120));
    assert!(!robot.may_pass(0, 0, at(120)));
    run(&mut robot, at(130));
    assert!(robot.may_pass(0, 0, at(130)));
    robot.on_models(RobotId(0), &[], Offset::NONE, at(130));
    run(&mut robot, at(160));
    assert!(robot.may_pass(0, 0, at(160)));
    robot.on_models(RobotId(0), &[(3, model)], Offset::NONE, at(161));
    robot.on_gone(RobotId(0));
    run(&mut robot, at(200));
    assert!(robot.may_pass(0, 0, at(200)), "who is gone sends nothing");
}

/// An earlier version accepted a period of a nanosecond, and an interval longer than the period.
#[test]
fn a_model_of_no_use_holds_no_bulk() {
    let us = Duration::from_micros;
    let model = |period, early, late| TimeModel {
        period,
        phase: at(100),
        sigma: Duration::ZERO,
        early,
        late,
    };
    let useless = [
        model(Duration::from_nanos(1), Duration::ZERO, Duration::ZERO),
        model(us(9), us(1), us(1)),
        model(Duration::MAX, us(1), us(1)),
        model(us(20_000), us(10_000), us(10_001)),
        model(us(20_000), Duration::MAX, Duration::MAX),
    ];
    for useless in useless {
        for policy in ["edca+local", "coorp"] {
            let mut robot = robot(policy);
            robot.begin_journal();
            robot.on_models(RobotId(0), &[(3, useless)], Offset::NONE, at(90));
            run(&mut robot, at(99));
            let mut wakes = 0;
            while robot.next_deadline() <= at(101) {
                robot.on_deadline(robot.next_deadline());
                wakes += 1;
                assert!(wakes < 10, "{policy}: {useless:?}");
            }
            let free = (101..200).all(|ms| robot.passes_gate(0, 0, at(ms)));
            assert!(free, "{policy}: {useless:?}");
        }
    }
    let mut robot = robot("edca+local");
    let widest = model(us(20_000), us(10_000), us(10_000));
    robot.on_models(RobotId(0), &[(3, widest)], Offset::NONE, at(90));
    run(&mut robot, at(100));
    assert!(!robot.passes_gate(0, 0, at(100)), "as wide as can be");
}

#[test]
fn the_end_of_a_loop_holds_bulk_too() {
    let mut policy = Policy::named("coorp").unwrap();
    policy.global = None;
    let mut config = RobotConfig::new(&policy, RobotId(1), 2, RobotId(1), 1);
    config.judged = true;
    config.control = Some(ControlLoop {
        period: Duration::from_millis(100),
        bound: Duration::from_millis(40),
    });
    let mut robot = Robot::new(config, at(0)).unwrap();
    assert!(robot.local.caution().is_calm(), "no loop was late yet");
    {
        let mut blind = robot.clone();
        run(&mut blind, at(9_000));
        assert!(blind.local.caution().is_calm());
        run(&mut blind, at(12_000));
        assert!(!blind.local.caution().is_calm(), "nobody judges loops");
    }
    robot.set_caution(robot.local.caution().at_level(0.0));
    let ms = Duration::from_millis;
    let model = |period| TimeModel {
        period: ms(period),
        phase: at(100),
        sigma: ms(1),
        early: ms(1),
        late: ms(1),
    };
    robot.want_bulk(true, at(0));
    run(&mut robot, at(90));
    robot.on_models(RobotId(0), &[(3, model(100))], Offset::NONE, at(90));
    arrive(&mut robot, RobotId(0), 3, at(100), at(100));
    run(&mut robot, at(120));
    assert!(robot.may_pass(0, 0, at(120)), "the inference is under way");
    run(&mut robot, at(138));
    assert!(!robot.may_pass(0, 0, at(138)), "commands are at risk");
    run(&mut robot, at(141));
    assert!(robot.may_pass(0, 0, at(141)), "the bound is over");
    run(&mut robot, at(200));
    arrive(&mut robot, RobotId(0), 3, at(200), at(200));
    run(&mut robot, at(238));
    assert!(!robot.may_pass(0, 0, at(238)), "commands are at risk");
    // This robot leads, and sends them.
    make(&mut robot, FlowId(0), at(239));
    assert!(robot.may_pass(0, 0, at(239)), "they are out");
    robot.on_models(RobotId(0), &[(3, model(20))], Offset::NONE, at(250));
    robot.on_models(RobotId(0), &[], Offset::NONE, at(260));
    run(&mut robot, at(338));
    assert!(robot.may_pass(0, 0, at(338)), "who is told of no flow knows no loop");
}

/// Runs two robots for a time. Their messages to each other arrive within a millisecond.
/// Returns what the robots said to each other.
fn run_pair(robots: &mut [Robot; 2], from_ms: u64, until_ms: u64) -> Vec<Message> {
    let mut said = Vec::new();
    for now in (from_ms..until_ms).map(at) {
        for me in 0..2 {
            if robots[me].next_deadline() <= now {
                robots[me].on_deadline(now);
            }
            while let Some(action) = robots[me].poll() {
                if let Action::Send(_, _, message) | Action::Broadcast(message) = action {
                    said.push(message.clone());
                    robots[1 - me].on_message(RobotId(me as u16), None, message, now);
                }
            }
        }
    }
    said
}

#[test]
fn a_robot_that_hears_nothing_gives_up_being_calm_only_where_it_may_send() {
    let policy = Policy::named("coorp").unwrap();
    let mut robots = [0, 1].map(|me| {
        let mut config = RobotConfig::new(&policy, RobotId(me), 2, RobotId(0), 1);
        config.judged = true;
        Robot::new(config, at(0)).unwrap()
    });
    run_pair(&mut robots, 0, 20_000);
    assert!(robots[1].local.caution().is_calm(), "it has sent nothing");
    robots[1].want_bulk(true, at(20_000));
    run_pair(&mut robots, 20_000, 24_000);
    assert!(robots[1].is_permitted(at(24_000)));
    assert!(
        robots[1].local.caution().is_calm(),
        "it holds the permit for four seconds"
    );
    robots[1].want_bulk(false, at(24_000));
    run_pair(&mut robots, 24_000, 40_000);
    assert!(robots[1].local.caution().is_calm(), "it holds none");
}

#[test]
fn a_window_ends_when_the_leader_tells_that_its_message_has_come() {
    let mut policy = Policy::named("coorp").unwrap();
    // The leader hears of two, and tells the holder once.
    let mut leader = member(&policy, 0, 2);
    let leads = run(&mut leader, at(900));
    let beat = leads.iter().find_map(|action| match action {
        Action::Broadcast(Message::Coordination(failover::Message::Beat { epoch, .. })) => Some(*epoch),
        _ => None,
    });
    arrive(&mut leader, RobotId(2), 3, at(900), at(901));
    assert_eq!(told_arrived(run(&mut leader, at(910))), [], "nobody may send");
    let message = permits::Message::Request {
        robot: RobotId(1),
        request: permits::RequestId(1),
        sent_at: at(910),
    };
    let epoch = beat.unwrap();
    leader.on_message(
        RobotId(1),
        None,
        said(failover::Message::Permit { epoch, message }),
        at(910),
    );
    let ms = Duration::from_millis;
    let model = TimeModel {
        period: ms(100),
        phase: at(100),
        sigma: ms(1),
        early: ms(5),
        late: ms(10),
    };
    for (robot, flow) in [(2, 3), (1, 4)] {
        leader.on_models(RobotId(robot), &[(flow, model)], Offset::NONE, at(920));
    }
    run(&mut leader, at(1_000));
    arrive(&mut leader, RobotId(2), 3, at(1_000), at(1_001));
    assert_eq!(told_arrived(run(&mut leader, at(1_001))), [], "another one is due");
    arrive(&mut leader, RobotId(1), 4, at(1_000), at(1_001));
    let arrived = |robot, flow| Arrived {
        robot: RobotId(robot),
        flow,
        made_at: at(1_000),
    };
    let heard = vec![arrived(2, 3), arrived(1, 4)];
    assert_eq!(told_arrived(run(&mut leader, at(1_001))), [(RobotId(1), heard.clone())]);
    assert_eq!(told_arrived(run(&mut leader, at(1_020))), []);
    run(&mut leader, at(1_100));
    arrive(&mut leader, RobotId(2), 3, at(1_100), at(1_100));
    assert_eq!(told_arrived(run(&mut leader, at(1_101))), []);
    assert_eq!(
        told_arrived(run(&mut leader, at(1_102))).len(),
        1,
        "the other one is late"
    );

    policy.global = None;
    let mut holder = member(&policy, 1, 3);
    holder.want_bulk(true, at(0));
    holder.on_models(RobotId(2), &[(3, model)], Offset::NONE, at(90));
    assert!(!holder.may_pass(0, 0, at(999)), "it may come at any time");
    // The clock is known: one exchange that took no time.
    let clock = ClockId::of(RobotId(0), 1);
    holder.clocks.on_time(clock, [at(80); 4]);
    let notice = Message::Arrived {
        clock,
        messages: heard,
        caution: 50,
    };
    holder.on_message(RobotId(2), None, notice.clone(), at(1_002));
    assert!(!holder.may_pass(0, 0, at(1_002)), "who does not lead is not believed");
    holder.on_message(RobotId(0), None, notice, at(1_003));
    assert!(holder.may_pass(0, 0, at(1_003)));
    assert!(!holder.may_pass(0, 0, at(1_100)), "the next one");
}

#[test]
fn messages_with_a_bound_are_judged_where_they_arrive_and_weighed_by_the_leader() {
    let policy = Policy::named("coorp").unwrap();
    let local = Policy {
        global: None,
        ..policy.clone()
    };
    let bounded = |policy: &Policy, me| {
        let mut config = RobotConfig::new(policy, RobotId(me), 3, RobotId(0), 1);
        config.judged = true;
        Robot::new(config, at(0)).unwrap()
    };
    let mut sender = bounded(&local, 0);
    let flow = sender.add_flow(None).unwrap();
    assert_eq!(sender.on_control(flow, at(1)).bound, None);
    sender.set_bound(flow, Some(Duration::from_millis(20)));
    let stamp = sender.on_control(flow, at(100));
    // Robot 1 does not lead, but knows the leader's clock.
    let mut receiver = bounded(&local, 1);
    receiver.clocks.on_time(ClockId::of(RobotId(0), 1), [at(80); 4]);
    receiver.on_arrived(RobotId(0), stamp, at(110));
    receiver.on_arrived(RobotId(0), stamp, at(130));
    let judged = |actions: Vec<Action>| {
        let judged = actions.into_iter().filter_map(|action| match action {
            Action::Send(RobotId(0), _, message @ Message::Judged(_)) => Some(message),
            _ => None,
        });
        judged.collect::<Vec<_>>()
    };
    let told = judged(run(&mut receiver, at(200)));
    assert_eq!(told, [Message::Judged(Judged { in_time: 1, late: 1 })]);
    assert_eq!(judged(run(&mut receiver, at(2_000))), [], "all is told");

    let mut leader = bounded(&local, 0);
    assert!(leader.local.caution().is_calm(), "it begins calm");
    leader.on_message(RobotId(1), None, told[0].clone(), at(200));
    assert!(leader.local.caution().is_calm(), "there is no bulk");
    leader.want_bulk(true, at(200));
    for _ in 0..3 {
        leader.on_message(RobotId(1), None, told[0].clone(), at(201));
    }
    assert!(!leader.local.caution().is_calm());
    let mut stranger = bounded(&local, 2);
    stranger.want_bulk(true, at(200));
    (0..9).for_each(|_| stranger.on_message(RobotId(1), None, told[0].clone(), at(201)));
    assert!(stranger.local.caution().is_calm(), "it does not lead");
}

/// In an earlier version, counts that were due while there was no leader were lost.
#[test]
fn judged_messages_wait_for_a_leader() {
    let mut config = RobotConfig::new(&Policy::named("coorp").unwrap(), RobotId(1), 3, RobotId(0), 1);
    config.judged = true;
    let mut robot = Robot::new(config, at(0)).unwrap();
    let bound = Some(Duration::from_millis(20));
    for made_at in [30, 0] {
        let stamp = Stamp {
            flow: 0,
            made_at: Some((robot.clock_id(), at(made_at))),
            last_loop: None,
            bound,
        };
        robot.on_arrived(RobotId(2), stamp, at(40));
    }
    let told = |actions: Vec<Action>| {
        let told = actions.into_iter().filter_map(|action| match action {
            Action::Send(to, _, Message::Judged(judged)) => Some((to, judged)),
            _ => None,
        });
        told.collect::<Vec<_>>()
    };
    assert_eq!((robot.leader(at(300)), told(run(&mut robot, at(300)))), (None, vec![]));
    let mut leads = robot.clone();
    let epoch = failover::Epoch {
        round: 1,
        robot: RobotId(0),
        incarnation: 1,
    };
    let beat = failover::Message::Beat { epoch, sent_at: at(1) };
    robot.on_message(RobotId(0), None, said(beat), at(301));
    robot.on_deadline(at(301));
    let both = Judged { in_time: 1, late: 1 };
    assert_eq!(told(run(&mut robot, at(500))), [(RobotId(0), both)]);
    assert_eq!(told(run(&mut robot, at(600))), [], "all is told");
    // A robot that becomes the leader weighs its own counts.
    leads.coordinator = None;
    leads.leader = RobotId(1);
    leads.want_bulk(true, at(301));
    assert!(leads.local.caution().is_calm());
    leads.judge.on_message(true, at(301));
    assert_eq!(told(run(&mut leads, at(500))), []);
    assert!(!leads.local.caution().is_calm(), "two were late");
}

fn told_arrived(actions: Vec<Action>) -> Vec<(RobotId, Vec<Arrived>)> {
    let told = actions.into_iter().filter_map(|action| match action {
        Action::Send(to, _, Message::Arrived { messages, .. }) => Some((to, messages)),
        _ => None,
    });
    told.collect()
}

#[test]
fn models_are_told_while_there_are_any_and_once_when_there_are_none() {
    // It leads, so it knows the team's clock.
    let mut robot = robot("edca+local");
    robot.leader = RobotId(1);
    let flow = robot.add_flow(Some(Duration::from_millis(20))).unwrap();
    let told = |actions: Vec<Action>| {
        let told = actions.into_iter().filter_map(|action| match action {
            Action::Broadcast(Message::Models { models, .. }) => Some(models.len()),
            _ => None,
        });
        told.collect::<Vec<usize>>()
    };
    let mut all = Vec::new();
    for message in 1..=1_200 {
        all.extend(told(run(&mut robot, at(20 * message))));
        make(&mut robot, flow, at(20 * message));
    }
    assert_eq!(all, [1, 1, 1], "at first, and every ten seconds");
    robot.tell_models_again();
    for message in 1_201..=1_500 {
        all.extend(told(run(&mut robot, at(20 * message))));
        make(&mut robot, flow, at(20 * message));
    }
    assert_eq!(all.len(), 6, "three times more for who is new");
    for message in 1_501..=1_560 {
        all.extend(told(run(&mut robot, at(20 * message + 5))));
        make(&mut robot, flow, at(20 * message + 5));
    }
    assert!(all.len() > 6, "it comes at other times");
    robot.remove_flow(flow);
    assert_eq!(told(run(&mut robot, at(39_000))), [0]);
    assert_eq!(told(run(&mut robot, at(60_000))), [0; 0]);
}

/// In an earlier version, a broken link freed the permit of a holder that continued to send.
#[test]
fn a_permit_outlives_its_holders_link_and_not_its_process() {
    let policy = Policy::named("coorp").unwrap();
    let mut robot = member(&policy, 0, 2);
    let leads = run(&mut robot, at(900));
    let beat = leads.iter().find_map(|action| match action {
        Action::Broadcast(Message::Coordination(failover::Message::Beat { epoch, .. })) => Some(*epoch),
        _ => None,
    });
    let epoch = beat.unwrap();
    let ask = |robot: &mut Robot, request, now| {
        let message = permits::Message::Request {
            robot: RobotId(1),
            request: permits::RequestId(request),
            sent_at: now,
        };
        robot.on_message(
            RobotId(1),
            None,
            said(failover::Message::Permit { epoch, message }),
            now,
        );
    };
    ask(&mut robot, 1, at(900));
    assert_eq!(robot.granted().0, [RobotId(1)]);
    robot.on_gone(RobotId(1));
    assert_eq!(robot.granted().0, [RobotId(1)], "its link alone is gone");
    ask(&mut robot, 2, at(910));
    robot.on_dead(RobotId(1), at(905), at(911));
    assert_eq!(robot.granted().0, [RobotId(1)], "it has started anew since");
    robot.on_dead(RobotId(1), at(911), at(912));
    assert_eq!(robot.granted().0, []);
}

#[test]
fn a_grant_that_nobody_asked_for_is_no_permit() {
    let mut robot = robot("coorp");
    let epoch = failover::Epoch {
        round: 1,
        robot: RobotId(0),
        incarnation: 1,
    };
    let beat = said(failover::Message::Beat { epoch, sent_at: at(1) });
    robot.on_message(RobotId(0), None, beat, at(400));
    let message = permits::Message::Grant {
        request: permits::RequestId(1),
        token: permits::Token(1),
        slice: Duration::from_secs(5),
        echo: at(1),
    };
    run(&mut robot, at(400));
    robot.on_message(
        RobotId(0),
        None,
        said(failover::Message::Permit { epoch, message }),
        at(401),
    );
    assert!(std::iter::from_fn(|| robot.poll()).any(|action| action == Action::StaleGrant(RobotId(0))));
    assert!(!robot.may_pass(0, 0, at(401)));
    assert_eq!(robot.permit(at(401)), PermitState::Idle);
}

#[test]
fn a_message_made_as_its_late_loop_ends_was_put_off() {
    let policy = Policy::named("coorp").unwrap();
    let mut config = RobotConfig::new(&policy, RobotId(1), 2, RobotId(0), 1);
    let period = Duration::from_millis(20);
    let bound = period;
    config.control = Some(ControlLoop { period, bound });
    config.permits = None;
    let mut robot = Robot::new(config, at(0)).unwrap();
    let flow = robot.add_flow(Some(period)).unwrap();
    let mut width = |range: std::ops::RangeInclusive<u64>, late: fn(u64) -> bool| {
        for message in range {
            let due = at(20 * message);
            let made = if late(message) {
                due + Duration::from_millis(6)
            } else {
                due
            };
            run(&mut robot, made);
            // The previous loop's command arrives just before a message that waited for it.
            let command = if late(message) {
                made
            } else {
                due - Duration::from_millis(5)
            };
            arrive(
                &mut robot,
                RobotId(0),
                0,
                command,
                command.max(made - Duration::from_millis(5)),
            );
            make(&mut robot, flow, made);
        }
        let model = robot.local.model(0).expect("it is regular");
        model.early + model.late
    };
    let usual = width(1..=60, |_| false);
    assert_eq!(width(61..=300, |message| message % 8 == 0), usual);
}

#[test]
fn clocks_are_asked_for_as_control_goes() {
    let policy = Policy::named("coorp").unwrap();
    let (mut leader, mut one) = (member(&policy, 0, 2), member(&policy, 1, 2));
    run(&mut leader, at(1_000));
    let said = run(&mut leader, at(1_100));
    let word = |action: &Action| match action {
        Action::Send(_, _, message) | Action::Broadcast(message) => Some(message.clone()),
        _ => None,
    };
    for message in said.iter().filter_map(word) {
        one.on_message(RobotId(0), None, message, at(1_100));
    }
    let asked = run(&mut one, at(1_200));
    let query = |action: &Action| match action {
        Action::Send(to, route, message @ Message::TimeQuery { .. }) => Some((*to, *route, message.clone())),
        _ => None,
    };
    let (to, route, query) = asked.iter().find_map(query).expect("it asks for the leader's clock");
    assert_eq!((to, route), (RobotId(0), Route::Path(PathId(0))));
    leader.on_message(RobotId(1), Some(PathId(0)), query, at(1_200));
    let answered = std::iter::from_fn(|| leader.poll()).any(|action| {
        let Action::Send(to, route, Message::TimeReply { .. }) = action else {
            return false;
        };
        (to, route) == (RobotId(1), Route::Path(PathId(0)))
    });
    assert!(answered, "over the path of the question");
}

/// In an earlier version, the clock of a robot that led again ranked behind the clock of the leader in between, which
/// was no longer queried.
#[test]
fn the_clock_of_a_leader_that_leads_again_is_the_teams() {
    let mut robot = member(&Policy::named("coorp").unwrap(), 2, 3);
    let led_by = |robot: &mut Robot, leader: u16, round, ms| {
        let epoch = failover::Epoch {
            round,
            robot: RobotId(leader),
            incarnation: 1,
        };
        run(robot, at(ms));
        let beat = said(failover::Message::Beat { epoch, sent_at: at(ms) });
        robot.on_message(RobotId(leader), None, beat, at(ms));
        assert_eq!(robot.leader(at(ms)), Some(RobotId(leader)));
    };
    let reply = |robot: &mut Robot, from: u16, of: u16, ms| {
        let answered = Message::TimeReply {
            clock: ClockId::of(RobotId(of), 1),
            echo: at(ms),
            received_at: at(ms),
            sent_at: at(ms),
        };
        robot.on_message(RobotId(from), None, answered, at(ms + 2));
        let (clock, offset) = robot.team_clock(at(ms + 2))?;
        Some((clock, offset.within))
    };
    let clock = |of, ms| Some((ClockId::of(RobotId(of), 1), Duration::from_millis(ms)));
    led_by(&mut robot, 0, 1, 1_000);
    assert_eq!(reply(&mut robot, 1, 1, 1_000), None, "it does not lead");
    assert_eq!(reply(&mut robot, 0, 1, 1_000), None, "it is not its clock");
    assert_eq!(reply(&mut robot, 0, 0, 1_001), clock(0, 1));
    led_by(&mut robot, 1, 2, 2_000);
    assert_eq!(reply(&mut robot, 1, 1, 2_000), clock(1, 1));
    assert_eq!(
        reply(&mut robot, 0, 0, 2_001).unwrap().0,
        ClockId::of(RobotId(1), 1),
        "too late"
    );
    led_by(&mut robot, 0, 3, 3_000);
    let (again, within) = reply(&mut robot, 0, 0, 3_000).unwrap();
    assert_eq!(again, ClockId::of(RobotId(0), 1));
    assert!(within <= Duration::from_millis(1), "{within}");
    assert!(
        robot.clock(ClockId::of(RobotId(1), 1), at(3_010)).is_some(),
        "messages may bear it still"
    );
}

#[test]
fn only_a_flow_that_there_is_can_be_shifted() {
    let mut robot = robot("edca+local");
    let later = Duration::from_millis(5);
    let flow = robot.add_flow(None).unwrap();
    let ended = robot.add_flow(None).unwrap();
    robot.remove_flow(ended);
    let shifted = |robot: &mut Robot, flow| {
        robot.on_message(RobotId(0), None, Message::Shift { flow, later }, at(1));
        std::iter::from_fn(|| robot.poll()).collect::<Vec<_>>()
    };
    let before = postcard::to_allocvec(&robot).unwrap();
    for flow in [1, 2, FLOWS_MAX as u8, u8::MAX] {
        assert_eq!(shifted(&mut robot, flow), []);
        assert_eq!(
            postcard::to_allocvec(&robot).unwrap(),
            before,
            "nothing is planned for flow {flow}"
        );
    }
    assert_eq!(shifted(&mut robot, 0), [Action::Shift(flow, later)]);
}

/// In an earlier version, turns restarted every ten milliseconds for as long as a robot waited for a permit.
#[test]
fn turns_wait_for_the_permit() {
    let mut robot = member(&Policy::named("coorp").unwrap(), 1, 3);
    let epoch = failover::Epoch {
        round: 1,
        robot: RobotId(0),
        incarnation: 1,
    };
    let hear = |robot: &mut Robot, message, ms| {
        robot.on_message(RobotId(0), None, said(message), at(ms));
        robot.on_deadline(at(ms));
        std::iter::from_fn(|| robot.poll()).collect::<Vec<_>>()
    };
    let beat = failover::Message::Beat { epoch, sent_at: at(1) };
    hear(&mut robot, beat, 400);
    robot.on_bulk(RobotId(0), 0, true, at(400));
    robot.on_bulk(RobotId(2), 0, true, at(400));
    robot.want_bulk(true, at(400));
    assert_eq!(robot.turns.next_deadline(), Instant::FAR_FUTURE);
    robot.on_deadline(at(410));
    let asked = std::iter::from_fn(|| robot.poll()).find_map(|action| match action {
        Action::Send(_, _, Message::Coordination(failover::Message::Permit { message, .. })) => Some(message),
        _ => None,
    });
    let Some(permits::Message::Request { request, sent_at, .. }) = asked else {
        panic!("it asks: {asked:?}");
    };
    let grant = permits::Message::Grant {
        request,
        token: permits::Token(1),
        slice: Duration::from_secs(1),
        echo: sent_at,
    };
    let granted = hear(&mut robot, failover::Message::Permit { epoch, message: grant }, 430);
    assert!(granted.contains(&Action::Permitted(true)), "{granted:?}");
    assert!(robot.has_turn(RobotId(0), 0), "the first of them");
    assert_eq!(robot.turns.next_deadline(), at(440), "its turn began with the permit");
    robot.want_bulk(false, at(435));
    robot.on_deadline(at(440));
    assert_eq!(robot.turns.next_deadline(), Instant::FAR_FUTURE);
    assert!(robot.has_turn(RobotId(0), 0), "nothing was sent in its turn");
}

#[test]
fn other_programs_bulk_waits_for_a_permit_but_not_for_a_leader_for_ever() {
    let mut robot = member(&Policy::named("coorp").unwrap(), 1, 3);
    run(&mut robot, at(1_999));
    assert!(!robot.may_forward(0, 0, at(1_999)), "somebody may lead soon");
    assert!(!robot.may_pass(0, 0, at(2_000)), "the team's own bulk waits");
    assert!(robot.may_forward(0, 0, at(2_000)));
    robot.want_bulk(true, at(2_010));
    let epoch = failover::Epoch {
        round: 1,
        robot: RobotId(0),
        incarnation: 1,
    };
    let beat = failover::Message::Beat {
        epoch,
        sent_at: at(2_020),
    };
    robot.on_message(RobotId(0), None, said(beat), at(2_020));
    robot.on_deadline(at(2_025));
    assert!(!robot.may_forward(0, 0, at(2_030)), "a leader has not granted it");
    run(&mut robot, at(3_000));
    assert!(!robot.may_forward(0, 0, at(3_000)), "that was a moment ago");
    run(&mut robot, at(6_000));
    assert!(robot.may_forward(0, 0, at(6_000)));
}

#[test]
fn a_robot_that_protects_other_programs_predicts_with_care() {
    let mut robot = robot("coorp");
    robot.set_caution(robot.local.caution().calm());
    assert!(robot.local.caution().is_calm());
    robot.set_protects(true);
    assert_eq!(robot.local.caution().percentile(), 0.95);
    robot.set_caution(robot.local.caution().calm());
    let caution = robot.local.caution();
    assert_eq!(caution.percentile(), 0.95, "the leader sees only its own loops");
    robot.set_caution(caution.at_level(1.5));
    assert_eq!(robot.local.caution().level(), 1.5);
    // What it adds by itself is for itself alone.
    robot.set_caution(caution.at_level(0.5));
    assert_eq!(robot.local.caution().level(), 1.0);
    assert_eq!(robot.caution.level(), 0.5, "which it tells others as the leader");
    robot.set_protects(false);
    assert_eq!(robot.local.caution().level(), 0.5);
    robot.set_protects(false);
    robot.set_caution(robot.local.caution().calm());
    assert!(robot.local.caution().is_calm());
}

/// A robot that protects other programs, whose bulk comes and goes, and its leader.
#[test]
fn short_permits_of_other_programs_take_few_messages() {
    let policy = Policy::named("coorp").unwrap();
    let mut robots = [member(&policy, 0, 2), member(&policy, 1, 2)];
    run_pair(&mut robots, 0, 1_000);
    let mut counts = Vec::new();
    for protects in [false, true] {
        robots[1].set_protects(protects);
        let mut sent = Vec::new();
        for image in 0..10 {
            let begin = 1_000 + 1_000 * u64::from(protects) + 100 * image;
            robots[1].want_bulk(true, at(begin));
            sent.extend(run_pair(&mut robots, begin, begin + 30));
            assert!(robots[1].is_permitted(at(begin + 30)), "{image}");
            robots[1].want_bulk(false, at(begin + 30));
            sent.extend(run_pair(&mut robots, begin + 30, begin + 100));
            assert!(!robots[1].is_permitted(at(begin + 100)), "{image}");
        }
        let of_permits =
            |message: &&Message| matches!(message, Message::Coordination(failover::Message::Permit { .. }));
        counts.push(sent.iter().filter(of_permits).count());
    }
    assert_eq!(
        counts,
        [50, 30],
        "request, grant, release, and a renewal with its answer"
    );
    // A long permit is kept.
    robots[1].want_bulk(true, at(3_000));
    run_pair(&mut robots, 3_000, 6_000);
    assert!(robots[1].is_permitted(at(6_000)));
}
