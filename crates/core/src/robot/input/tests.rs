use proptest::prelude::*;

use super::super::*;
use super::*;
use crate::arrival::TimeModel;
use crate::failover::{self, Epoch};
use crate::paths::{Echo, Probe};
use crate::permits::{self, RequestId, Token};
use crate::policy::Policy;

const ROBOTS: u16 = 4;

fn config(policy: &str, me: u16) -> RobotConfig {
    let mut config = RobotConfig::new(&Policy::named(policy).unwrap(), RobotId(me), ROBOTS, RobotId(0), 7);
    config.paths_to = vec![2; usize::from(ROBOTS)];
    config.paths = 2;
    config.judged = true;
    config.control = Some(ControlLoop {
        period: Duration::from_millis(33),
        bound: Duration::from_millis(33),
    });
    config
}

/// Generates a time near those of the run, which begins at one second and lasts a few.
fn instant() -> impl Strategy<Value = Instant> {
    (900u64..6_000).prop_map(|ms| Instant::from_nanos(ms * 1_000_000))
}

fn span() -> impl Strategy<Value = Duration> {
    (0u64..100_000).prop_map(Duration::from_micros)
}

fn peer() -> impl Strategy<Value = RobotId> {
    (0..ROBOTS).prop_map(RobotId)
}

fn epoch() -> impl Strategy<Value = Epoch> {
    (1u64..4, peer()).prop_map(|(round, robot)| Epoch {
        round,
        robot,
        incarnation: 7,
    })
}

fn permit() -> impl Strategy<Value = permits::Message> {
    let (request, token) = ((0u64..9).prop_map(RequestId), (0u64..9).prop_map(Token));
    prop_oneof![
        (peer(), request.clone(), instant()).prop_map(|(robot, request, sent_at)| permits::Message::Request {
            robot,
            request,
            sent_at
        }),
        (request, token.clone(), span(), instant()).prop_map(|(request, token, slice, echo)| permits::Message::Grant {
            request,
            token,
            slice,
            echo
        }),
        token.prop_map(|token| permits::Message::Release { token }),
    ]
}

/// Generates a model that a robot may send, or one with any values.
fn model() -> impl Strategy<Value = TimeModel> {
    let usual = (span(), instant(), span());
    let odd_span = || prop_oneof![0u64..100, any::<u64>()].prop_map(Duration::from_nanos);
    let odd_instant = any::<u64>().prop_map(Instant::from_nanos);
    let odd = (odd_span(), prop_oneof![instant(), odd_instant], odd_span());
    prop_oneof![3 => usual.boxed(), 1 => odd.boxed()].prop_map(|(period, phase, late)| TimeModel {
        period,
        phase,
        sigma: late / 4,
        early: late,
        late,
    })
}

fn probe() -> impl Strategy<Value = Probe> {
    (0u8..2, 0u32..50, instant()).prop_map(|(path, number, sent_at)| Probe {
        path: PathId(path),
        incarnation: 7,
        number,
        sent_at,
    })
}

fn stamp() -> impl Strategy<Value = Stamp> {
    let made_at = prop::option::of(((0u64..3).prop_map(ClockId), instant()));
    let last_loop = prop::option::of((0u64..100).prop_map(Duration::from_millis));
    let bound = prop::option::of(span());
    (0u8..4, made_at, last_loop, bound).prop_map(|(flow, made_at, last_loop, bound)| Stamp {
        flow,
        made_at,
        last_loop,
        bound,
    })
}

fn message() -> impl Strategy<Value = Message> {
    let clock = || peer().prop_map(|robot| ClockId::of(robot, 7));
    prop_oneof![
        (epoch(), instant())
            .prop_map(|(epoch, sent_at)| Message::Coordination(failover::Message::Beat { epoch, sent_at })),
        (epoch(), instant())
            .prop_map(|(epoch, echo)| Message::Coordination(failover::Message::Promise { epoch, echo })),
        (epoch(), permit())
            .prop_map(|(epoch, message)| Message::Coordination(failover::Message::Permit { epoch, message })),
        instant().prop_map(|sent_at| Message::TimeQuery { sent_at }),
        (clock(), instant(), instant(), instant()).prop_map(|(clock, echo, received_at, sent_at)| Message::TimeReply {
            clock,
            echo,
            received_at,
            sent_at
        }),
        (clock(), prop::collection::vec((0u8..70, model()), 0..4))
            .prop_map(|(clock, models)| Message::Models { clock, models }),
        (clock(), peer(), 0u8..4, instant()).prop_map(|(clock, robot, flow, made_at)| Message::Arrived {
            clock,
            messages: vec![Arrived { robot, flow, made_at }],
            caution: flow * 40,
        }),
        (0u8..4, span()).prop_map(|(flow, later)| Message::Shift { flow, later }),
        (any::<u16>(), any::<u16>()).prop_map(|(in_time, late)| Message::Judged(Judged { in_time, late })),
        probe().prop_map(Message::Probe),
        (probe(), 0u32..50, any::<u64>()).prop_map(|(probe, newest, seen)| Message::Echo(Echo { probe, newest, seen })),
    ]
}

fn input() -> impl Strategy<Value = Input> {
    let flow = || (0u32..3).prop_map(FlowId);
    let topic = || "[ab]";
    let report = || (topic(), peer());
    prop_oneof![
        8 => (0usize..3, 0usize..40).prop_map(|(path, n)| Input::MayPass { path, n }),
        2 => (0usize..3, 0usize..40).prop_map(|(path, n)| Input::PassesGate { path, n }),
        2 => (0usize..3, 0usize..40).prop_map(|(path, n)| Input::MayForward { path, n }),
        1 => any::<bool>().prop_map(Input::Protects),
        4 => (0usize..2, 0u64..20, instant(), span()).prop_map(|(path, before, entered_at, took)| Input::Left {
            path,
            left: (before, before + 1),
            entered_at,
            left_at: entered_at + took,
        }),
        2 => (0usize..2, 0usize..20, instant(), span()).prop_map(|(path, ahead, entered_at, took)| Input::Completed {
            path,
            ahead,
            entered_at,
            left_at: entered_at + took,
        }),
        4 => flow().prop_map(Input::Control),
        4 => flow().prop_map(Input::ControlLeft),
        4 => (peer(), stamp()).prop_map(|(from, stamp)| Input::Arrived { from, stamp }),
        2 => peer().prop_map(Input::Assign),
        2 => (peer(), 0u8..2, 0u32..50).prop_map(|(from, path, number)| Input::Copy {
            from,
            path: PathId(path),
            incarnation: 7,
            number,
        }),
        1 => topic().prop_map(Input::State),
        12 => (peer(), prop::option::of((0u8..2).prop_map(PathId)), message())
            .prop_map(|(from, path, message)| Input::Message { from, path, message }),
        2 => any::<bool>().prop_map(Input::WantBulk),
        2 => peer().prop_map(Input::BulkPaths),
        1 => (peer(), 0usize..2, any::<bool>()).prop_map(|(to, path, waits)| Input::Bulk { to, path, waits }),
        1 => (peer(), 0usize..2).prop_map(|(to, path)| Input::BulkSent { to, path }),
        2 => prop::option::of(span()).prop_map(Input::AddFlow),
        1 => Just(Input::AddForeignFlow),
        1 => Just(Input::MayAcknowledge),
        1 => flow().prop_map(Input::RemoveFlow),
        1 => (flow(), prop::option::of(span())).prop_map(|(flow, bound)| Input::SetBound(flow, bound)),
        1 => Just(Input::TellModelsAgain),
        1 => peer().prop_map(Input::Gone),
        1 => (peer(), instant()).prop_map(|(robot, since)| Input::Dead { robot, since }),
        1 => topic().prop_map(Input::Publish),
        1 => topic().prop_map(Input::Unpublish),
        1 => (report(), "[xy]", any::<bool>()).prop_map(|(report, session, here)| Input::Gatherer {
            report,
            session: ("1".to_owned(), session),
            here,
        }),
        1 => (report(), 0u32..9).prop_map(|(report, incarnation)| Input::Gathering {
            report,
            message: tracker::Message::Unknown { incarnation },
        }),
    ]
}

/// A robot's inputs with their times, and its answers.
type Told = Vec<(Instant, Input, Answer)>;

/// Passes inputs to a robot, each after a while, and calls it at its deadlines in between.
fn drive(robot: &mut Robot, inputs: Vec<(u64, Input)>, now: &mut Instant) -> Told {
    let mut told = Vec::new();
    let mut tell = |robot: &mut Robot, input: Input, now: Instant| {
        let answer = robot.handle(input.clone(), now);
        told.push((now, input, answer));
    };
    for (us, input) in inputs {
        let until = *now + Duration::from_micros(us);
        for _ in 0..100 {
            if robot.next_deadline() > until {
                break;
            }
            *now = (*now).max(robot.next_deadline());
            tell(robot, Input::Deadline, *now);
        }
        *now = until;
        tell(robot, input, *now);
    }
    told
}

/// Returns a copy of a value through its wire form.
fn copied<T: Serialize + serde::de::DeserializeOwned>(value: &T) -> T {
    postcard::from_bytes(&postcard::to_allocvec(value).unwrap()).unwrap()
}

fn replay(robot: &mut Robot, told: &Told) {
    for (now, input, answer) in copied(told) {
        assert_eq!(robot.handle(input.clone(), now), answer, "{input:?} at {now:?}");
    }
}

fn bytes(robot: &Robot) -> Vec<u8> {
    postcard::to_allocvec(robot).unwrap()
}

fn inputs() -> impl Strategy<Value = Vec<(u64, Input)>> {
    prop::collection::vec((0u64..30_000, input()), 0..120)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    #[test]
    fn a_replay_gives_the_same_from_the_start_and_from_a_snapshot(
        policy in prop::sample::select(vec!["coorp", "coorp-paper", "edca+local"]),
        me in 0..ROBOTS,
        before in inputs(),
        after in inputs(),
    ) {
        let config = config(policy, me);
        let mut now = Instant::from_nanos(1_000_000_000);
        let start = now;
        let mut robot = Robot::new(config.clone(), start).unwrap();
        let mut told = drive(&mut robot, before, &mut now);
        let snapshot = copied(&robot);
        prop_assert_eq!(bytes(&snapshot), bytes(&robot));
        let later = drive(&mut robot, after, &mut now);

        let mut from_snapshot = snapshot;
        replay(&mut from_snapshot, &later);
        prop_assert_eq!(bytes(&from_snapshot), bytes(&robot));

        told.extend(later);
        let mut from_start = Robot::new(copied(&config), start).unwrap();
        replay(&mut from_start, &told);
        prop_assert_eq!(bytes(&from_start), bytes(&robot));
    }
}

#[test]
fn another_robot_is_told_apart() {
    let start = Instant::from_nanos(1_000_000_000);
    let (mut now, mut robot) = (start, Robot::new(config("coorp", 0), start).unwrap());
    let told = drive(
        &mut robot,
        vec![(2_000_000, Input::WantBulk(true)), (100_000, Input::TellModelsAgain)],
        &mut now,
    );
    let mut another = Robot::new(config("coorp", 1), start).unwrap();
    let same = told
        .iter()
        .all(|(now, input, answer)| another.handle(input.clone(), *now) == *answer);
    assert!(!same);
}
