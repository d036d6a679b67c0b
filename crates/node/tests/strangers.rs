//! What strangers can get: nothing without a key, with a key only what is theirs, and garbage is counted.
#![allow(clippy::unwrap_used)] // a test may fail by panicking

mod common;

use std::time::Duration;

use common::{agreed, be_a_robot, until, Caller, Fleet, Link, SOON};
use coorp_core::admission::Reason;
use coorp_core::failover::{self, Epoch};
use coorp_core::permits::{self, RequestId, Token};
use coorp_core::robot::Message;
use coorp_core::{Instant, RobotId};
use coorp_node::keys::{self, OPERATOR};
use coorp_node::status::Status;
use coorp_node::watch::Watch;
use coorp_node::wire::{self, Revocations, StatusQuery};

#[test]
#[ignore = "the process of a robot in the other tests"]
fn robot() {
    be_a_robot(|node, words| match words {
        ["operators", "refused"] => {
            let totals = node.status().unwrap().door.totals;
            let of = |(reason, count): (Reason, u64)| (reason == Reason::TooManyConnections).then_some(count);
            totals.into_iter().find_map(of).map(|count| count.to_string())
        }
        _ => None,
    });
}

fn request(epoch: Epoch, robot: u16, request: u64) -> Message {
    permit(
        epoch,
        permits::Message::Request {
            robot: RobotId(robot),
            request: RequestId(request),
            sent_at: Instant::from_nanos(1),
        },
    )
}

fn permit(epoch: Epoch, message: permits::Message) -> Message {
    Message::Coordination(failover::Message::Permit { epoch, message })
}

/// Requests until the permit is granted.
fn granted(link: &mut Link, epoch: Epoch, robot: u16) -> RequestId {
    // A leader that has just taken over grants nothing for a while.
    let began = std::time::Instant::now();
    while began.elapsed() < SOON {
        assert!(link.say(&request(epoch, robot, 1)));
        let heard = std::iter::from_fn(|| link.hear(Duration::from_millis(100))).take(100);
        let grant = heard.filter_map(|frame| match wire::decode(&frame) {
            Ok(Message::Coordination(failover::Message::Permit {
                epoch: of,
                message: permits::Message::Grant { request, .. },
            })) if of == epoch => Some(request),
            _ => None,
        });
        if let Some(request) = grant.into_iter().next() {
            return request;
        }
    }
    panic!("no permit");
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
    // No key, and the key of another team, which trusts nobody here.
    let strangers = [Caller::new(&fleet, None), Caller::new(&fleet, Some((&other, "one")))];
    for stranger in &strangers {
        let Some(mut link) = stranger.link(&fleet.team, 0) else {
            continue;
        };
        link.hello(7);
        link.say(&request(NOBODYS, 1, 1));
        link.say(&StatusQuery);
        assert_eq!(link.hear(A_WHILE), None, "a stranger hears nothing");
        assert!(link.is_closed(A_WHILE));
    }
    assert_eq!(lead.say("queue"), "[]");
    assert_eq!(lead.say("holders"), "[]");
    assert_eq!(lead.say("alive"), "[0]");
    assert!(lead.say("refused").contains("strangers: 2"));
    // A member gets an answer on the same port.
    let one = Caller::new(&fleet, Some((&fleet, "one")));
    let mut link = one.link(&fleet.team, 0).unwrap();
    link.hello(7);
    lead.until("alive", "[0, 1]");
    let ours = link.epoch();
    assert_eq!(granted(&mut link, ours, 1), RequestId(1));
    assert_eq!(lead.say("holders"), "[1]");
    drop(link);
    lead.until("alive", "[0]");
}

#[test]
fn a_robot_speaks_for_itself_alone() {
    let fleet = Fleet::new(&["lead", "one", "two"], "");
    let mut robots = agreed(vec![fleet.robot("lead"), fleet.robot("one")]);
    let (one, mut lead) = (robots.pop().unwrap(), robots.pop().unwrap());
    let place: u16 = if lead.say("place") == "[0]" { 0 } else { 1 };
    let two = Caller::new(&fleet, Some((&fleet, "two")));
    let mut two = two.link(&fleet.team, place).unwrap();
    // It is a member, and gets what is its own.
    two.hello(7);
    lead.until("alive", "[0, 1, 2]");
    let ours = two.epoch();
    granted(&mut two, ours, 2);
    assert_eq!(lead.say("holders"), "[2]");
    // But it gets no permit in another robot's name and no status, and nobody takes it for another robot.
    two.say(&request(ours, 1 - place, 1));
    two.say(&Message::Coordination(failover::Message::Resign { epoch: ours }));
    two.say(&StatusQuery);
    lead.until(
        "refused",
        "Refused { oversized: 0, version: 0, malformed: 1, stale_grants: 0, strangers: 0 }",
    );
    let heard = std::iter::from_fn(|| two.hear(A_WHILE / 20)).take(20);
    assert!(heard.into_iter().all(|frame| wire::decode::<Status>(&frame).is_err()));
    assert_eq!(lead.say("queue"), "[]");
    assert_eq!(lead.say("leads"), "true");
    drop(one);
    lead.until("alive", if place == 0 { "[0, 2]" } else { "[1, 2]" });
}

#[test]
fn garbage_is_refused_and_counted_and_nothing_else_is_disturbed() {
    let fleet = Fleet::new(&["lead", "one", "two"], "");
    let (mut lead, mut two) = (fleet.insecure("lead"), fleet.insecure("two"));
    let anyone = Caller::claiming("one");
    let mut link = anyone.link(&fleet.team, 0).unwrap();
    link.hello(7);
    lead.until("alive", "[0, 1, 2]");
    let frame = wire::encode(&request(NOBODYS, 1, 1));
    let mut newer = frame.clone();
    newer[2] += 1;
    let garbled = [&frame[..4], &[0xff; 4]].concat();
    let status = wire::encode(&StatusQuery);
    for garbage in [vec![0; 300_000], newer, vec![], garbled, status] {
        let length = u32::try_from(garbage.len()).unwrap().to_le_bytes();
        assert!(link.write(&[length.as_slice(), &garbage].concat()));
    }
    let counted = "Refused { oversized: 1, version: 1, malformed: 3, stale_grants: 0, strangers: 0 }";
    lead.until("refused", counted);
    two.say("bulk on");
    two.until("may", "true");
    // Nothing is read of a frame that is too long for a stream.
    assert!(!link.is_closed(Duration::from_millis(50)));
    link.write(&u32::MAX.to_le_bytes());
    assert!(link.is_closed(SOON));
    lead.until("alive", "[0, 2]");
    assert!(lead.say("refused").contains("oversized: 2"));
}

#[test]
fn a_replayed_grant_is_refused_and_counted() {
    let fleet = Fleet::new(&["lead", "one"], "");
    // Only without keys can anyone answer for the leader.
    let mut one = fleet.insecure("one");
    let forger = Caller::claiming("lead");
    let mut forger = forger.link(&fleet.team, 1).unwrap();
    forger.hello(7);
    // It claims to lead, and repeats a grant.
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
    one.say("bulk on");
    until(|| {
        let sent_at = Instant::from_nanos(1);
        forger.say(&Message::Coordination(failover::Message::Beat { epoch, sent_at }));
        forger.say(&permit(epoch, grant));
        std::thread::sleep(Duration::from_millis(10));
        assert_eq!(one.say("may"), "false");
        !one.say("refused").contains("stale_grants: 0")
    });
    assert_eq!(one.say("may"), "false");
}

#[test]
fn the_operator_may_ask_for_the_status_and_nothing_else() {
    let fleet = Fleet::new(&["lead", "one"], "");
    let mut lead = fleet.robot("lead");
    let operator = Caller::new(&fleet, Some((&fleet, "../operator")));
    let mut link = operator.link(&fleet.team, 0).unwrap();
    for _ in 0..2 {
        assert!(link.say(&StatusQuery));
        let status: Status = wire::decode(&link.hear(SOON).unwrap()).unwrap();
        assert_eq!((status.robot.as_str(), status.alive), ("lead", vec![0]));
    }
    link.hello(7);
    assert!(link.is_closed(SOON));
    assert_eq!(lead.say("alive"), "[0]");
}

#[test]
fn operators_keep_no_robot_out() {
    let fleet = Fleet::new(&["lead", "one"], "");
    let mut lead = fleet.robot("lead");
    let operators = [0; 40].map(|_| Caller::new(&fleet, Some((&fleet, "../operator"))));
    let mut links: Vec<Link> = operators
        .iter()
        .filter_map(|operator| operator.link(&fleet.team, 0))
        .collect();
    let mut answered = 0;
    for link in &mut links {
        answered += usize::from(link.say(&StatusQuery) && link.hear(A_WHILE).is_some());
    }
    assert!((1..=8).contains(&answered), "{answered}");
    let mut one = fleet.robot("one");
    one.until("alive", "[0, 1]");
    lead.until("alive", "[0, 1]");
    one.say("bulk on");
    one.until("may", "true");
    drop(links);
    // Once their places are free again, other operators see the team.
    let watch = Watch::open(&fleet.team, false).unwrap();
    until(|| watch.look().len() == 2);
}

#[test]
fn an_operator_without_a_place_is_told_why_and_does_not_come_again_and_again() {
    let fleet = Fleet::new(&["lead", "one"], "");
    let mut lead = fleet.robot("lead");
    let open = || Watch::open(&fleet.team, false).unwrap();
    let mut seated = [0; 4].map(|_| open());
    for watch in &mut seated {
        until(|| watch.look().len() == 1);
    }
    let watch = open();
    until(|| !watch.refusals().is_empty());
    let (robot, why) = watch.refusals()[0];
    assert_eq!(robot, RobotId(0));
    assert!(why.contains("end another 'coorp watch'"), "{why}");
    let mut refused = || lead.say("operators refused").parse::<u64>().unwrap();
    let before = refused();
    std::thread::sleep(Duration::from_secs(5));
    let more = refused() - before;
    assert!(more <= 10, "refused {more} times in five seconds");
    assert!(seated.iter().all(|watch| watch.look().len() == 1));
    let [first, ..] = seated;
    drop(first);
    until(|| watch.look().len() == 1);
    assert_eq!(watch.refusals(), []);
}

/// The ports of bulk and of links, as offsets from a robot's first port.
const DOORS: [u16; 2] = [1, 2];

/// Signs a certificate with a fleet's authority, and puts it beside the robots' certificates, under a name.
fn forge(fleet: &Fleet, file: &str, name: &str, valid_until: i32) {
    let folder = &fleet.team.live.keys;
    let read = |file: &str| std::fs::read_to_string(folder.join(file)).unwrap();
    let authority = rcgen::KeyPair::from_pem(&read("ca.key")).unwrap();
    let authority = rcgen::Issuer::from_ca_cert_pem(&read("ca.pem"), authority).unwrap();
    let mut params = rcgen::CertificateParams::new(vec!["robot.coorp.internal".to_owned()]).unwrap();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(rcgen::DnType::CommonName, name);
    params.not_before = rcgen::date_time_ymd(1970, 1, 1);
    params.not_after = rcgen::date_time_ymd(valid_until, 1, 1);
    let key = rcgen::KeyPair::generate().unwrap();
    let signed = params.signed_by(&key, &authority).unwrap();
    std::fs::write(folder.join(format!("robots/{file}.key")), key.serialize_pem()).unwrap();
    std::fs::write(folder.join(format!("robots/{file}.pem")), signed.pem()).unwrap();
}

/// Keeps a copy of a robot's keys, as a thief would have, and revokes them. The list is where no robot finds it.
fn revoke(fleet: &Fleet, name: &str) -> Revocations {
    let folder = &fleet.team.live.keys;
    for ending in ["pem", "key"] {
        let file = |name: &str| folder.join(format!("robots/{name}.{ending}"));
        if name != OPERATOR {
            std::fs::copy(file(name), file(&format!("stolen-{name}"))).unwrap();
        }
    }
    let (kept, list) = (folder.join("kept"), folder.join("revoked.crl"));
    if kept.exists() {
        std::fs::rename(&kept, &list).unwrap();
    }
    keys::revoke(&fleet.team, name).unwrap();
    std::fs::rename(list, &kept).unwrap();
    Revocations {
        list: std::fs::read(kept).unwrap(),
    }
}

#[test]
fn certificates_that_do_not_count_are_refused_at_every_door_and_counted() {
    let (fleet, other) = (Fleet::new(&["lead", "one"], ""), Fleet::new(&["lead", "one"], ""));
    let mut lead = fleet.robot("lead");
    forge(&fleet, "good", "one", 2999);
    forge(&fleet, "expired", "one", 2001);
    forge(&fleet, "renamed", "nobody", 2999);
    let caller = |door, from: Option<(&Fleet, &str)>| match door {
        1 => Caller::of_bulk(&fleet, from),
        _ => Caller::new(&fleet, from),
    };
    let mut refused = 0;
    let mut count = |lead: &mut common::Robot, door| {
        refused += 1;
        lead.until("door no-certificate", &refused.to_string());
        assert!(lead.say("refused").contains(&format!("strangers: {refused}")), "{door}");
    };
    for door in DOORS {
        assert!(!caller(door, Some((&fleet, "good"))).is_refused(&fleet.team, 0, door));
        for bad in ["expired", "renamed", "lead"] {
            assert!(
                caller(door, Some((&fleet, bad))).is_refused(&fleet.team, 0, door),
                "{bad}"
            );
            count(&mut lead, door);
        }
        for from in [None, Some((&other, "one"))] {
            assert!(caller(door, from).is_refused(&fleet.team, 0, door));
            count(&mut lead, door);
        }
    }
    assert!(Caller::of_bulk(&fleet, Some((&fleet, "../operator"))).is_refused(&fleet.team, 0, 1));
    count(&mut lead, 1);
    assert_eq!(lead.say("door revoked"), "0");
}

/// Brings a robot a list, and returns its status after that.
fn bring(operator: &Caller, fleet: &Fleet, robot: u16, list: &Revocations) -> Status {
    let mut link = operator.link(&fleet.team, robot).unwrap();
    link.say(list);
    link.say(&StatusQuery);
    wire::decode(&link.hear(SOON).unwrap()).unwrap()
}

#[test]
fn a_revocation_spreads_and_stays() {
    let fleet = Fleet::new(&["lead", "one", "two", "three"], "");
    let [mut lead, mut two, mut three] = ["lead", "two", "three"].map(|name| fleet.robot(name));
    lead.until("alive", "[0, 2, 3]");
    three.until("alive", "[0, 2, 3]");
    let first = revoke(&fleet, "two");
    let operator = Caller::new(&fleet, Some((&fleet, "../operator")));
    let mut link = operator.link(&fleet.team, 0).unwrap();
    link.say(&first);
    // The list passes from one robot to the other, and `two` is locked out at once.
    for robot in [&mut lead, &mut three] {
        robot.until("revoked", "1 1 0");
        robot.until("alive", "[0, 3]");
    }
    // It retries repeatedly.
    until(|| lead.say("door revoked") != "0");
    assert_eq!(two.say("revoked"), "0 0 0");
    two.kill();
    // A robot that was off gets the list, and so do the next starts of all.
    let mut one = fleet.robot("one");
    one.until("revoked", "1 1 0");
    // The list is valid before it is on the disk.
    let state = fleet.folder.join("state");
    let kept = |name: &str| std::fs::read(state.join(name).join("revoked.crl")).is_ok_and(|list| list == first.list);
    for name in ["lead", "three", "one"] {
        until(|| kept(name));
    }
    lead.kill();
    three.kill();
    one.kill();
    let (mut lead, mut one) = (fleet.robot("lead"), fleet.robot("one"));
    for robot in [&mut lead, &mut one] {
        assert_eq!(robot.say("revoked"), "1 1 0");
    }
    for (number, door) in DOORS.into_iter().enumerate() {
        let stolen = Some((&fleet, "stolen-two"));
        let caller = match door {
            1 => Caller::of_bulk(&fleet, stolen),
            _ => Caller::new(&fleet, stolen),
        };
        assert!(caller.is_refused(&fleet.team, 0, door));
        lead.until("door revoked", &(number + 1).to_string());
    }
    // A robot that replaces it is admitted, over a connection that began with an older list.
    keys::init(&fleet.team).unwrap();
    let mut two = fleet.robot("two");
    two.until("revoked", "1 1 0");
    lead.until("alive", "[0, 1, 2]");
    let second = revoke(&fleet, OPERATOR);
    let mut link = operator.link(&fleet.team, 0).unwrap();
    link.say(&second);
    for robot in [&mut lead, &mut one, &mut two] {
        robot.until("revoked", "2 2 0");
    }
    assert!(link.is_closed(SOON), "the operator that brought it is revoked itself");
    assert!(operator.is_refused(&fleet.team, 0, 2));
    // Older lists, and lists of other teams, change nothing.
    let operator = Caller::new(&fleet, Some((&fleet, "../operator")));
    let mut link = operator.link(&fleet.team, 0).unwrap();
    let other = Fleet::new(&["lead", "one"], "");
    revoke(&other, "lead");
    revoke(&other, OPERATOR);
    let mut garbled = second.clone();
    garbled.list.truncate(100);
    for list in [&first, &revoke(&other, "one"), &garbled] {
        link.say(list);
    }
    link.say(&StatusQuery);
    let status: Status = wire::decode(&link.hear(SOON).unwrap()).unwrap();
    let revoked = status.revoked;
    assert_eq!((revoked.list, revoked.certificates, revoked.rejected), (2, 2, 2));
    assert_eq!(lead.say("revoked"), "2 2 2");
    assert_eq!(one.say("revoked"), "2 2 0", "it goes no further");
}

#[test]
fn keys_are_renewed_while_the_team_works() {
    let fleet = Fleet::new(&["lead", "one", "two", "three"], "");
    let folder = fleet.team.live.keys.clone();
    let start = |name: &str| common::Robot::start_with(&fleet.machine(name), name, "coorp");
    let [mut lead, mut one, two, mut three] = ["lead", "one", "two", "three"].map(start);
    lead.until("alive", "[0, 1, 2, 3]");
    for name in ["ca.pem", "ca.key"] {
        std::fs::copy(folder.join(name), fleet.folder.join(name)).unwrap();
    }
    assert!(keys::renew(&fleet.team).unwrap() && !keys::renew(&fleet.team).unwrap());
    // `one` has its new keys, the others do not.
    lead.kill();
    let mut lead = start("lead");
    lead.until("alive", "[0, 1, 2, 3]");
    one.until("alive", "[0, 1, 2, 3]");
    let (new, old) = (Some((&fleet, "one")), Some((&fleet, "../old/robots/one")));
    for door in DOORS {
        for from in [new, old] {
            let caller = match door {
                1 => Caller::of_bulk(&fleet, from),
                _ => Caller::new(&fleet, from),
            };
            assert!(!caller.is_refused(&fleet.team, 0, door));
        }
    }
    one.until("alive", "[0, 1, 2, 3]");
    // All robots accept what the old authority signs, and both keys of a robot are revoked.
    let list = |fleet: &Fleet| Revocations {
        list: std::fs::read(fleet.team.live.keys.join("revoked.crl")).unwrap(),
    };
    keys::revoke(&fleet.team, "two").unwrap();
    let operator = Caller::new(&fleet, Some((&fleet, "../operator")));
    bring(&operator, &fleet, 1, &list(&fleet));
    for robot in [&mut one, &mut lead, &mut three] {
        robot.until("revoked", "1 2 0");
        robot.until("alive", "[0, 1, 3]");
    }
    two.kill();
    one.kill();
    let mut one = start("one");
    one.until("alive", "[0, 1, 3]");
    // The renewal ends, also for a robot that still has old keys.
    for ending in ["pem", "key"] {
        let old = folder.join(format!("old/robots/one.{ending}"));
        std::fs::copy(old, folder.join(format!("robots/former.{ending}"))).unwrap();
    }
    assert_eq!(keys::finish(&fleet.team).unwrap(), 2);
    assert!(!folder.join("old").exists() && keys::finish(&fleet.team).is_err());
    bring(&operator, &fleet, 1, &list(&fleet));
    for robot in [&mut one, &mut lead] {
        robot.until("revoked", "2 3 0");
        robot.until("alive", "[0, 1]");
    }
    let before = lead.say("door revoked");
    assert!(Caller::new(&fleet, Some((&fleet, "former"))).is_refused(&fleet.team, 0, 2));
    until(|| lead.say("door revoked") != before);
    three.kill();
    let mut three = start("three");
    three.until("alive", "[0, 1, 3]");
    assert_eq!(
        three.say("revoked"),
        "2 3 0",
        "its state folder has a list of the old authority"
    );
    // The old authority's lists are no longer valid, whatever their number.
    let thief = Fleet::new(&["lead", "one"], "");
    for name in ["ca.pem", "ca.key"] {
        std::fs::copy(fleet.folder.join(name), thief.team.live.keys.join(name)).unwrap();
    }
    for name in ["lead", "one", OPERATOR, OPERATOR] {
        keys::revoke(&thief.team, name).unwrap();
    }
    let status = bring(&operator, &fleet, 0, &list(&thief));
    assert_eq!((status.revoked.list, status.revoked.certificates), (2, 3));
}
