//! Single rules of the protocol, and valid configurations.

use super::*;
use crate::permits::PermitConfig;
use proptest::prelude::*;

fn at(ms: u64) -> Instant {
    Instant::from_nanos(ms * 1_000_000)
}

fn robot(id: u16, robots: u16) -> Coordinator {
    let config = FailoverConfig::for_team(RobotId(0), robots);
    let permits = config.permits(PermitConfig::default());
    Coordinator::new(config, permits, RobotId(id), 1, at(0)).unwrap()
}

fn actions(it: &mut Coordinator) -> Vec<Action> {
    std::iter::from_fn(|| it.poll()).collect()
}

fn epoch(round: u64, robot: u16) -> Epoch {
    Epoch {
        round,
        robot: RobotId(robot),
        incarnation: 1,
    }
}

fn beat(round: u64, robot: u16) -> Message {
    Message::Beat {
        epoch: epoch(round, robot),
        sent_at: at(7),
    }
}

fn ask(round: u64, robot: u16) -> Message {
    Message::Ask {
        epoch: epoch(round, robot),
        sent_at: at(7),
    }
}

fn promises(it: &mut Coordinator) -> bool {
    let promise = |action: &Action| {
        matches!(
            action,
            Action::Send {
                message: Message::Promise { .. },
                ..
            }
        )
    };
    actions(it).iter().any(promise)
}

/// Returns robot 0 of three, leading since 300 ms through the promise of robot 1.
fn leader() -> Coordinator {
    let mut it = robot(0, 3);
    it.on_deadline(at(300));
    let epoch = epoch(1, 0);
    it.on_message(RobotId(1), Message::Promise { epoch, echo: at(300) }, at(302));
    assert!(actions(&mut it).contains(&Action::Leads(epoch)));
    it
}

#[test]
fn a_voter_keeps_its_promise_for_a_lease_and_is_mute_for_one_after_its_start() {
    let mut it = robot(2, 3);
    it.on_message(RobotId(1), ask(1, 1), at(299));
    assert!(!promises(&mut it));
    it.on_message(RobotId(1), ask(1, 1), at(300));
    assert!(promises(&mut it));
    it.on_message(RobotId(0), ask(2, 0), at(599));
    assert!(!promises(&mut it), "the promise runs");
    it.on_message(RobotId(0), ask(2, 0), at(600));
    assert!(promises(&mut it));
}

#[test]
fn not_even_an_elected_leader_breaks_a_promise() {
    let mut it = robot(2, 3);
    it.on_message(RobotId(1), ask(1, 1), at(300));
    assert!(promises(&mut it));
    it.on_message(RobotId(0), beat(2, 0), at(310));
    assert!(!promises(&mut it));
    assert_eq!(it.leader(at(310)), Some(RobotId(0)), "it follows all the same");
    it.on_message(RobotId(0), beat(2, 0), at(600));
    assert!(promises(&mut it));
}

#[test]
fn a_resignation_frees_only_the_promise_that_it_names() {
    let mut it = robot(2, 3);
    it.on_message(RobotId(1), ask(3, 1), at(300));
    assert!(promises(&mut it));
    it.on_message(RobotId(1), Message::Resign { epoch: epoch(2, 1) }, at(310));
    it.on_message(RobotId(0), ask(4, 0), at(311));
    assert!(!promises(&mut it));
    it.on_message(RobotId(1), Message::Resign { epoch: epoch(3, 1) }, at(320));
    it.on_message(RobotId(0), ask(4, 0), at(321));
    assert!(promises(&mut it));
}

#[test]
fn a_late_beat_does_not_replace_the_promise_to_a_newer_attempt_of_its_robot() {
    let mut it = robot(2, 3);
    it.on_message(RobotId(1), beat(1, 1), at(300));
    assert!(promises(&mut it));
    it.on_message(RobotId(1), ask(2, 1), at(310));
    assert!(promises(&mut it), "it lost that leadership, and asks for the next one");
    it.on_message(RobotId(1), beat(1, 1), at(320));
    assert!(!promises(&mut it));
    it.on_message(RobotId(1), Message::Resign { epoch: epoch(1, 1) }, at(321));
    it.on_message(RobotId(0), ask(3, 0), at(322));
    assert!(!promises(&mut it), "robot 1 may lead by the second promise");
}

#[test]
fn a_leader_that_was_frozen_grants_nothing() {
    let mut it = leader();
    assert!(it.is_leading(at(598)));
    let request = permits::Message::Request {
        robot: RobotId(1),
        request: permits::RequestId(1),
        sent_at: at(0),
    };
    let request = Message::Permit {
        epoch: epoch(1, 0),
        message: request,
    };
    // Its lease ends earlier than the voter's by twice the drift.
    assert!(!it.is_leading(Instant::from_nanos(599_500_000)));
    it.on_message(RobotId(1), request, at(900));
    let done = actions(&mut it);
    assert!(done.contains(&Action::Deposed(epoch(1, 0))));
    assert!(
        !done.iter().any(|a| matches!(
            a,
            Action::Send {
                message: Message::Permit { .. },
                ..
            }
        )),
        "{done:?}"
    );
}

#[test]
fn promises_count_from_when_they_were_asked_for() {
    let mut it = leader();
    it.on_deadline(at(402));
    let epoch = epoch(1, 0);
    // A late promise and a forged one.
    it.on_message(RobotId(1), Message::Promise { epoch, echo: at(300) }, at(590));
    it.on_message(RobotId(2), Message::Promise { epoch, echo: at(9_000) }, at(590));
    it.on_message(RobotId(9), Message::Promise { epoch, echo: at(590) }, at(590));
    assert!(it.is_leading(at(590)) && !it.is_leading(at(600)));
    it.on_message(RobotId(2), Message::Promise { epoch, echo: at(402) }, at(591));
    assert!(it.is_leading(at(700)) && !it.is_leading(at(702)));
}

#[test]
fn who_has_heard_a_newer_leader_takes_nothing_from_an_older_one() {
    let mut it = robot(2, 3);
    it.want(at(0));
    it.on_message(RobotId(1), beat(5, 1), at(10));
    actions(&mut it);
    it.on_message(RobotId(0), beat(4, 0), at(11));
    let grant = permits::Message::Grant {
        request: permits::RequestId(1 << 32),
        token: permits::Token(1),
        slice: Duration::from_secs(1),
        echo: at(10),
    };
    let old = Message::Permit {
        epoch: epoch(4, 0),
        message: grant,
    };
    it.on_message(RobotId(0), old, at(12));
    assert!(!it.may_send(at(12)));
    let deny = Action::Send {
        to: RobotId(0),
        message: Message::Deny {
            epoch: epoch(5, 1),
            elected: true,
        },
    };
    assert_eq!(actions(&mut it), [deny, deny]);
    let mut old_leader = leader();
    let elected = true;
    old_leader.on_message(
        RobotId(2),
        Message::Deny {
            epoch: epoch(5, 1),
            elected,
        },
        at(310),
    );
    assert!(!old_leader.is_leading(at(310)));
}

#[test]
fn a_holder_stops_before_its_lease_is_over_on_any_clock() {
    let mut it = robot(2, 3);
    it.on_message(RobotId(0), beat(1, 0), at(0));
    it.want(at(0));
    let grant = permits::Message::Grant {
        request: permits::RequestId(1 << 32),
        token: permits::Token(1),
        slice: Duration::from_secs(5),
        echo: at(0),
    };
    let message = Message::Permit {
        epoch: epoch(1, 0),
        message: grant,
    };
    it.on_message(RobotId(0), message, at(100));
    assert!(it.may_send(Instant::from_nanos(299_000_000)));
    assert!(!it.may_send(Instant::from_nanos(299_500_000)));
}

#[test]
fn an_attempt_deposes_nobody_and_strangers_are_not_heard() {
    let mut it = leader();
    let elected = false;
    it.on_message(
        RobotId(2),
        Message::Deny {
            epoch: epoch(9, 2),
            elected,
        },
        at(310),
    );
    it.on_message(RobotId(1), ask(9, 1), at(311));
    it.on_message(RobotId(2), beat(9, 1), at(312)); // Claims to be robot 1.
    assert!(it.is_leading(at(313)));
    assert!(!promises(&mut it));
}

#[test]
fn a_clock_that_steps_back_makes_a_leader_and_a_holder_begin_anew() {
    let mut it = leader();
    it.want(at(310));
    while !it.may_send(at(620)) {
        let now = it.next_deadline().unwrap();
        it.on_deadline(now);
        it.on_message(
            RobotId(1),
            Message::Promise {
                epoch: epoch(1, 0),
                echo: now,
            },
            now,
        );
        assert!(now < at(700));
    }
    actions(&mut it);
    it.on_deadline(at(600));
    assert!(!it.is_leading(at(600)) && !it.may_send(at(600)));
    let done = actions(&mut it);
    assert!(
        done.contains(&Action::Stopped) && done.contains(&Action::Deposed(epoch(1, 0))),
        "{done:?}"
    );
}

#[test]
fn of_two_attempts_of_one_round_the_one_nearer_to_the_front_goes_on() {
    let (mut front, mut other) = (robot(0, 4), robot(1, 4));
    front.on_deadline(at(300));
    assert!(actions(&mut front)
        .iter()
        .any(|action| matches!(action, Action::Broadcast(Message::Ask { .. }))));
    other.on_deadline(at(375));
    let asked = actions(&mut other);
    let tied = epoch(1, 1);
    assert!(matches!(asked[..], [Action::Broadcast(Message::Ask { epoch, .. })] if epoch == tied));
    // Each hears of the other's attempt.
    front.on_message(RobotId(1), ask(1, 1), at(376));
    other.on_message(RobotId(0), ask(1, 0), at(376));
    let said = actions(&mut other);
    assert!(
        said.contains(&Action::Broadcast(Message::Resign { epoch: tied })),
        "{said:?}"
    );
    let denied = Message::Deny {
        epoch: tied,
        elected: false,
    };
    assert!(
        said.contains(&Action::Send {
            to: RobotId(0),
            message: denied
        }),
        "{said:?}"
    );
    front.on_message(RobotId(1), denied, at(377));
    other.on_message(RobotId(0), ask(2, 0), at(378));
    assert!(promises(&mut other));
    let promise = Message::Promise {
        epoch: epoch(2, 0),
        echo: at(377),
    };
    front.on_message(RobotId(1), promise, at(379));
    assert!(front.is_leading(at(379)));
}

#[test]
fn two_quorums_share_a_voter_and_the_first_of_two_goes_on_alone() {
    for voters in 1..=VOTERS_MAX {
        let weigh = |set: usize| {
            (0..voters)
                .filter(|seat| set >> seat & 1 == 1)
                .map(FailoverConfig::votes)
                .sum::<usize>()
        };
        let all = weigh(usize::MAX);
        let quorum = |set: &usize| weigh(*set) * 2 > all;
        for a in (0..1 << voters).filter(quorum) {
            for b in (0..1 << voters).filter(quorum) {
                assert_ne!(a & b, 0, "{a:b} and {b:b} of {voters}");
            }
        }
        assert!(quorum(&((1 << (voters / 2 + 1)) - 1)), "any more than half are enough");
        assert_eq!(quorum(&1), voters <= 2);
    }
}

#[test]
fn the_order_is_the_files_from_the_last_leader_on() {
    let config = FailoverConfig::for_team(RobotId(2), 4);
    assert_eq!(config.voters, [2, 3, 0, 1].map(RobotId));
    let ranks = |last| [0, 1, 2, 3].map(|seat| config.rank(seat, last));
    assert_eq!(ranks(None), [0, 1, 2, 3]);
    assert_eq!(ranks(Some(RobotId(2))), [3, 0, 1, 2]);
    assert_eq!(ranks(Some(RobotId(0))), [1, 2, 3, 0]);
    assert_eq!(
        FailoverConfig::for_team(RobotId(148), 150).voters[..3],
        [148, 149, 0].map(RobotId)
    );
    assert_eq!(FailoverConfig::for_team(RobotId(148), 150).voters.len(), VOTERS_MAX);
}

#[test]
fn the_usual_values_take_over_within_a_second_after_two_deaths() {
    let config = FailoverConfig::for_team(RobotId(0), 5);
    let permits = config.permits(PermitConfig::default());
    let takeover = config.takeover_max(&permits, 1, Duration::from_millis(50));
    assert!(takeover < Duration::from_secs(1), "{takeover}");
}

#[test]
fn what_contradicts_itself_is_refused() {
    let good = FailoverConfig::for_team(RobotId(0), 3);
    assert_eq!(good.check(), Ok(()));
    let double = vec![RobotId(0), RobotId(1), RobotId(0)];
    for bad in [
        FailoverConfig {
            voters: Vec::new(),
            ..good.clone()
        },
        FailoverConfig {
            voters: double,
            ..good.clone()
        },
        FailoverConfig {
            lease: Duration::from_millis(100),
            ..good.clone()
        },
        FailoverConfig {
            beat: Duration::ZERO,
            ..good.clone()
        },
        FailoverConfig {
            drift_ppm: 200_000,
            ..good.clone()
        },
    ] {
        let error = Coordinator::new(bad, PermitConfig::default(), RobotId(0), 0, at(0)).unwrap_err();
        assert!(error.to_string().starts_with("failover: "));
    }
}

#[test]
fn a_span_shortened_by_drift_outlasts_itself_on_no_clock() {
    let config = FailoverConfig {
        drift_ppm: 100_000,
        ..FailoverConfig::for_team(RobotId(0), 3)
    };
    let span = Duration::from_millis(300);
    let slowest = config.shortened(span).as_nanos() as f64 * 1.1;
    assert!(slowest <= span.as_nanos() as f64 / 1.1);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    /// Arbitrary messages at arbitrary times: no panic, no robot leads without promises, and the number of actions is
    /// bounded.
    #[test]
    fn garbage_does_no_harm(
        events in prop::collection::vec((0..14u8, 0..5u16, 0..5u16, any::<u64>(), any::<u64>(), 0..2_000u64), 0..300),
    ) {
        let mut it = robot(1, 3);
        for (kind, from, of, a, b, now_ms) in events {
            let (now, instant) = (at(now_ms), at(b % 2_000));
            let round = if a % 5 == 0 { u64::MAX - a % 2 } else { a % 8 };
            let epoch = epoch(round, of);
            let (request, token) = (permits::RequestId(b), permits::Token(b % 4));
            let permit = |message| Message::Permit { epoch, message };
            let message = match kind {
                0 | 1 => Message::Beat { epoch, sent_at: instant },
                2 | 3 => Message::Ask { epoch, sent_at: instant },
                4 => Message::Promise { epoch, echo: instant },
                5 => Message::Deny { epoch, elected: b % 2 == 0 },
                6 => Message::Resign { epoch },
                7 => permit(permits::Message::Request { robot: RobotId(from), request, sent_at: instant }),
                8 => permit(permits::Message::Grant { request, token, slice: Duration::from_nanos(a), echo: instant }),
                9 => permit(permits::Message::Renew { token, sent_at: instant }),
                10 => permit(permits::Message::Release { token }),
                _ => permit(permits::Message::Refuse { request, retry_after: Duration::from_nanos(a) }),
            };
            it.on_message(RobotId(from), message, now);
            match kind {
                11 => it.want(now),
                12 => it.done(now),
                13 => it.resign(now),
                _ => it.on_deadline(now),
            }
            prop_assert!(actions(&mut it).len() < 200);
            prop_assert!(it.holders().count() <= 1);
        }
    }
}
