//! What strangers get: nothing without a key, only what is theirs with one, and a count for garbage.
#![allow(clippy::unwrap_used)] // a test may fail by panicking

mod common;

use std::time::Duration;

use common::{agreed, be_a_robot, epoch, session, tls, Fleet, SOON};
use coorp_core::failover::{self, Epoch};
use coorp_core::permits::{self, RequestId, Token};
use coorp_core::robot::Message;
use coorp_core::{Instant, RobotId};
use coorp_node::wire;
use serde_json::json;
use zenoh::query::ConsolidationMode;
use zenoh::{Session, Wait};

#[test]
#[ignore = "the process of a robot in the other tests"]
fn robot() {
    be_a_robot(|_, _| None);
}

/// The answers to a query within a while.
fn ask(session: &Session, key: &str, payload: Vec<u8>, wait: Duration) -> Vec<Vec<u8>> {
    let replies = session
        .get(key)
        .payload(payload)
        .consolidation(ConsolidationMode::None)
        .timeout(wait);
    let replies = replies.wait().unwrap();
    let answers = std::iter::from_fn(|| replies.recv().ok());
    answers
        .filter_map(|reply| Some(reply.result().ok()?.payload().to_bytes().into_owned()))
        .collect()
}

/// Queries until there is an answer.
fn answer(session: &Session, key: &str, payload: &[u8]) -> Vec<u8> {
    let began = std::time::Instant::now();
    while began.elapsed() < SOON {
        if let Some(answer) = ask(session, key, payload.to_vec(), Duration::from_millis(300)).pop() {
            return answer;
        }
    }
    panic!("no answer on {key}");
}

fn request(epoch: Epoch, robot: u16, request: u64) -> Vec<u8> {
    permit(
        epoch,
        permits::Message::Request {
            robot: RobotId(robot),
            request: RequestId(request),
            sent_at: Instant::from_nanos(1),
        },
    )
}

fn permit(epoch: Epoch, message: permits::Message) -> Vec<u8> {
    said(failover::Message::Permit { epoch, message })
}

fn said(message: failover::Message) -> Vec<u8> {
    wire::encode(&Message::Coordination(message))
}

/// A forged leadership.
const NOBODYS: Epoch = Epoch {
    round: 1,
    robot: RobotId(0),
    incarnation: 1,
};

const A_WHILE: Duration = Duration::from_secs(2);

#[test]
fn a_stranger_is_not_let_in() {
    let (fleet, other) = (Fleet::new(&["lead", "one"], ""), Fleet::new(&["lead", "one"], ""));
    let mut lead = fleet.robot("lead");
    let without = json!({
        "verify_name_on_connect": false,
        "root_ca_certificate": fleet.team.live.keys.join("ca.pem"),
    });
    // No key; the key of another team that trusts nobody here; and a plain connection.
    let attempts = [
        ("tls", without),
        ("tls", tls(&fleet, &other, "one")),
        ("tcp", json!({})),
    ];
    for (protocol, keys) in attempts {
        let stranger = session(&fleet.team, 0, 0, protocol, keys);
        let heard = stranger.declare_subscriber("**").wait().unwrap();
        for key in ["coorp/team/permit/lead/one", "coorp/team/status/lead", "**"] {
            assert_eq!(
                ask(&stranger, key, request(NOBODYS, 1, 1), A_WHILE / 4),
                Vec::<Vec<u8>>::new(),
                "{key}"
            );
        }
        let alive = stranger.liveliness().get("**").timeout(A_WHILE / 4).wait().unwrap();
        assert!(alive.recv().is_err(), "a stranger sees who is there");
        assert!(heard.try_recv().unwrap().is_none());
        assert_eq!(stranger.info().peers_zid().wait().count(), 0, "a link over {protocol}");
    }
    assert_eq!(lead.say("queue"), "[]");
    assert_eq!(lead.say("holders"), "[]");
    // A member gets an answer on the same port.
    let one = session(&fleet.team, 0, 0, "tls", tls(&fleet, &fleet, "one"));
    let ours = epoch(&one);
    let grant = answer(&one, "coorp/team/permit/lead/one", &request(ours, 1, 1));
    let permit = match wire::decode(&grant) {
        Ok(Message::Coordination(failover::Message::Permit { epoch, message })) if epoch == ours => message,
        other => panic!("{other:?}"),
    };
    assert!(matches!(
        permit,
        permits::Message::Grant {
            request: RequestId(1),
            ..
        }
    ));
    assert_eq!(lead.say("holders"), "[1]");
}

#[test]
fn a_robot_speaks_for_itself_alone() {
    let fleet = Fleet::new(&["lead", "one", "two"], "");
    let mut robots = agreed(vec![fleet.robot("lead"), fleet.robot("one")]);
    let (one, mut lead) = (robots.pop().unwrap(), robots.pop().unwrap());
    let place = lead.say("place");
    let port = if place == "[0]" { 0 } else { 1 };
    let two = session(&fleet.team, port, 0, "tls", tls(&fleet, &fleet, "two"));
    // It is a member, and gets what is its own ...
    let ours = epoch(&two);
    let key = |robot: &str| format!("coorp/team/permit/{}/{robot}", lead.name);
    let (own, anothers) = (key("two"), key(&one.name));
    let _own = two.liveliness().declare_token("coorp/team/alive/two/1").wait().unwrap();
    lead.until("alive", "[0, 1, 2]");
    answer(&two, &own, &request(ours, 2, 1));
    assert_eq!(lead.say("holders"), "[2]");
    // ... but no permit in another's name, no status, and nobody takes it for another.
    let nothing = Vec::<Vec<u8>>::new();
    assert_eq!(ask(&two, &anothers, request(ours, 1 - port, 1), A_WHILE / 4), nothing);
    assert_eq!(
        ask(
            &two,
            &format!("coorp/team/status/{}", lead.name),
            Vec::new(),
            A_WHILE / 4
        ),
        nothing
    );
    assert_eq!(lead.say("queue"), "[]");
    let resign = said(failover::Message::Resign { epoch: ours });
    two.put(format!("coorp/team/lead-all/{}", one.name), resign.clone())
        .wait()
        .unwrap();
    two.put(format!("coorp/team/lead/{}/{}", one.name, lead.name), resign)
        .wait()
        .unwrap();
    let _token = two
        .liveliness()
        .declare_token(format!("coorp/team/alive/{}/1", one.name))
        .wait()
        .unwrap();
    std::thread::sleep(A_WHILE / 4);
    assert_eq!(lead.say("leads"), "true");
    drop(one);
    lead.until("alive", if port == 0 { "[0, 2]" } else { "[1, 2]" });
}

#[test]
fn garbage_is_refused_and_counted_and_nothing_else_is_disturbed() {
    let fleet = Fleet::new(&["lead", "one", "two"], "");
    let (mut lead, mut two) = (fleet.insecure("lead"), fleet.insecure("two"));
    let anyone = session(&fleet.team, 0, 0, "tcp", json!({}));
    let key = "coorp/team/permit/lead/one";
    let mut newer = request(NOBODYS, 1, 1);
    newer[2] += 1;
    let garbled = [&request(NOBODYS, 1, 1)[..4], &[0xff; 4]].concat();
    answer(&anyone, "coorp/team/status/lead", &[]);
    for garbage in [vec![0; 300_000], newer, vec![], garbled] {
        assert_eq!(ask(&anyone, key, garbage, A_WHILE / 8), Vec::<Vec<u8>>::new());
    }
    assert_eq!(
        ask(
            &anyone,
            "coorp/team/permit/lead/nobody",
            request(NOBODYS, 9, 1),
            A_WHILE / 8
        ),
        Vec::<Vec<u8>>::new()
    );
    let counted = "Refused { oversized: 1, version: 1, malformed: 3, stale_grants: 0, strangers: 0 }";
    assert_eq!(lead.say("refused"), counted);
    two.say("bulk on");
    two.until("may", "true");
}

#[test]
fn a_replayed_grant_is_refused_and_counted() {
    let fleet = Fleet::new(&["lead", "one"], "");
    // Only without keys can anyone answer for the leader at all.
    let mut one = fleet.insecure("one");
    let forger = session(&fleet.team, 1, 0, "tcp", json!({}));
    // It claims to lead, and grants what was granted once.
    let epoch = Epoch {
        round: 1 << 40,
        robot: RobotId(0),
        incarnation: 1,
    };
    let grant = permits::Message::Grant {
        request: RequestId(1),
        token: Token(1),
        slice: coorp_core::Duration::from_secs(5),
        echo: Instant::from_nanos(1),
    };
    let old = permit(epoch, grant);
    let answers = forger
        .declare_queryable("coorp/team/permit/lead/one")
        .callback(move |query| {
            query.reply(query.key_expr().clone(), old.clone()).wait().unwrap();
        });
    let _answers = answers.wait().unwrap();
    one.say("bulk on");
    let began = std::time::Instant::now();
    while one.say("refused").contains("stale_grants: 0") {
        let beat = said(failover::Message::Beat {
            epoch,
            sent_at: Instant::from_nanos(1),
        });
        forger.put("coorp/team/lead-all/lead", beat).wait().unwrap();
        assert_eq!(one.say("may"), "false");
        assert!(began.elapsed() < SOON, "the old grant never came");
    }
    assert_eq!(one.say("may"), "false");
}
