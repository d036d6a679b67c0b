//! Control messages between real processes: newest wins, with their age; windows follow them; strangers hear nothing.
#![allow(clippy::unwrap_used)] // a test may fail by panicking

mod common;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

use common::{be_a_robot, Caller, Fleet};
use coorp_node::control::{Publisher, Subscriber};
use coorp_node::wire::{self, Parcel};

#[test]
#[ignore = "the process of a robot in the other tests"]
fn robot() {
    let publishers: RefCell<BTreeMap<String, Publisher>> = RefCell::default();
    let subscribers: RefCell<BTreeMap<String, Subscriber>> = RefCell::default();
    be_a_robot(|node, words| {
        let (mut publishers, mut subscribers) = (publishers.borrow_mut(), subscribers.borrow_mut());
        Some(match words {
            ["publish", topic] => {
                publishers.insert((*topic).to_owned(), node.control_publisher(topic, None).unwrap());
                "ok".to_owned()
            }
            ["period", micros] => {
                let period = coorp_core::Duration::from_micros(micros.parse().unwrap());
                let publisher = node.control_publisher("pose", Some(period));
                publisher.map_or_else(|error| error.to_string(), |_| "ok".to_owned())
            }
            ["subscribe", topic] => {
                subscribers.insert((*topic).to_owned(), node.control_subscriber(topic).unwrap());
                "ok".to_owned()
            }
            ["unsubscribe", topic] => subscribers.remove(*topic).is_some().to_string(),
            ["put", topic, text] => format!("{:?}", publishers[*topic].put(text.as_bytes()).is_ok()),
            ["put-large", topic, bytes] => {
                let message = vec![7; bytes.parse().unwrap()];
                publishers[*topic]
                    .put(&message)
                    .map_or_else(|error| error.to_string(), |()| "ok".to_owned())
            }
            ["drive", topic, period_ms, count] => {
                for _ in 0..count.parse().unwrap() {
                    publishers[*topic].put(b"pose").unwrap();
                    std::thread::sleep(Duration::from_millis(period_ms.parse().unwrap()));
                }
                "ok".to_owned()
            }
            ["take", topic] => match subscribers[*topic].recv(Some(Duration::from_millis(100))) {
                None => "nothing".to_owned(),
                Some(message) => {
                    let text = String::from_utf8_lossy(message.bytes()).into_owned();
                    let text = if text.len() > 100 { text.len().to_string() } else { text };
                    format!("{} {text} aged {}", message.from.0, message.age.is_some())
                }
            },
            ["missed", topic] => {
                let heard = node
                    .status()
                    .unwrap()
                    .heard
                    .into_iter()
                    .find(|heard| heard.topic == *topic);
                heard.map_or(0, |heard| heard.missed).to_string()
            }
            // A status does not plan a window: it shows the last planned one, unless that is over.
            ["windows"] => (0..200)
                .any(|_| {
                    std::thread::sleep(Duration::from_millis(5));
                    node.status().unwrap().window_us.is_some()
                })
                .to_string(),
            _ => return None,
        })
    });
}

#[test]
fn the_newest_message_of_each_robot_arrives_with_its_age() {
    let fleet = Fleet::new(&["lead", "one", "two"], "");
    let (mut lead, mut one, mut two) = (fleet.robot("lead"), fleet.robot("one"), fleet.robot("two"));
    lead.say("subscribe pose");
    one.say("publish pose");
    two.say("publish pose");
    // Messages go nowhere until the links are up and subscriptions have been exchanged.
    common::until(|| {
        one.say("put pose hello");
        lead.say("take pose") == "1 hello aged true" && one.say("leader") == lead.say("leader")
    });
    common::until(|| {
        two.say("put pose hello");
        lead.say("take pose") == "2 hello aged true"
    });
    // On a busy machine, not all may arrive in time.
    common::until(|| {
        while lead.say("take pose") != "nothing" {}
        for text in ["a", "b", "c"] {
            one.say(&format!("put pose {text}"));
        }
        two.say("put pose z");
        std::thread::sleep(Duration::from_millis(300));
        // The newest message of each of the two robots, not the oldest, in either order.
        let mut taken = [lead.say("take pose"), lead.say("take pose")];
        taken.sort();
        taken == ["1 c aged true", "2 z aged true"] && lead.say("take pose") == "nothing"
    });
    assert_eq!(lead.say("missed pose"), "0", "all came");
}

#[test]
fn a_period_that_would_not_be_predicted_is_refused() {
    let fleet = Fleet::new(&["lead", "one"], "");
    let mut one = fleet.robot("one");
    for micros in [0, 9, 3_600_000_001u64] {
        let refused = one.say(&format!("period {micros}"));
        assert!(
            refused.contains("on \"pose\"") && refused.contains("use 10us to 3600s"),
            "{refused}"
        );
    }
    for micros in [10, 3_600_000_000u64] {
        assert_eq!(one.say(&format!("period {micros}")), "ok");
    }
}

#[test]
fn a_message_of_many_datagrams_arrives_whole_and_one_too_large_is_refused() {
    let fleet = Fleet::new(&["lead", "one"], "");
    let (mut lead, mut one) = (fleet.robot("lead"), fleet.robot("one"));
    lead.say("subscribe image");
    one.say("publish image");
    common::until(|| {
        one.say("put-large image 12288");
        lead.say("take image").starts_with("1 12288")
    });
    let refused = one.say(&format!("put-large image {}", coorp_node::MESSAGE_BYTES_MAX + 1));
    assert!(refused.contains("send it as bulk"), "{refused}");
}

#[test]
fn whoever_hears_of_a_flow_keeps_its_windows() {
    let fleet = Fleet::new(&["lead", "one", "two"], "");
    let robots = ["lead", "one", "two"].map(|name| fleet.robot(name));
    let mut robots = common::agreed(robots.into()).into_iter();
    let [mut lead, mut one, mut two] = std::array::from_fn(|_| robots.next().unwrap());
    assert_eq!(one.say("windows"), "false");
    one.until("synchronised", "true");
    two.until("synchronised", "true");
    one.say("publish pose");
    // The timing of a machine that stalls now and then cannot be learnt.
    common::until(|| {
        one.say("drive pose 20 100");
        one.say("windows") == "true"
    });
    two.say("windows");
    common::until(|| {
        one.say("drive pose 20 25");
        two.say("windows") == "true" && lead.say("windows") == "true"
    });
}

/// Returns a control message on `pose`, as its sender's node would encode it.
fn said(text: &str) -> Vec<u8> {
    let header = wire::ControlHeader {
        incarnation: 1,
        sequence: 0,
        stamp: coorp_core::robot::Stamp::default(),
        made_at: coorp_core::Instant::ZERO,
        copy: None,
    };
    let topic = "pose".to_owned();
    [
        wire::pack(&Parcel::Control {
            topic,
            header,
            riders: Vec::new(),
        })
        .as_slice(),
        text.as_bytes(),
    ]
    .concat()
}

#[test]
fn who_says_something_is_told_by_the_key_and_without_one_nobody_says_anything() {
    let (fleet, other) = (Fleet::new(&["lead", "one"], ""), Fleet::new(&["lead", "one"], ""));
    let mut lead = fleet.robot("lead");
    lead.say("subscribe pose");
    let strangers = [
        Caller::new(&fleet, None),
        // The key of another team, which trusts nobody here.
        Caller::new(&fleet, Some((&other, "one"))),
        // The operator may look, but not take part. It is no stranger.
        Caller::new(&fleet, Some((&fleet, "../operator"))),
    ];
    for over_stream in [false, true] {
        for stranger in &strangers {
            stranger.say(&fleet.team, 0, &said("forged"), over_stream);
        }
    }
    assert_eq!(lead.say("take pose"), "nothing");
    let member = Caller::new(&fleet, Some((&fleet, "one")));
    member.say(&fleet.team, 0, &said("true"), false);
    assert_eq!(lead.say("take pose"), "1 true aged false");
    let counted = "Refused { oversized: 0, version: 0, malformed: 0, stale_grants: 0, strangers: 4 }";
    lead.until("refused", counted);
}

#[test]
fn control_that_makes_no_sense_is_refused_and_counted_and_the_rest_goes_on() {
    let fleet = Fleet::new(&["lead", "one", "two"], "");
    let (mut lead, mut one) = (fleet.robot("lead"), fleet.robot("one"));
    lead.say("subscribe pose");
    one.say("publish pose");
    let member = Caller::new(&fleet, Some((&fleet, "two")));
    let mut newer = said("x");
    newer[4] += 1;
    let oversized = [700u16.to_le_bytes().as_slice(), &[0; 700]].concat();
    for (garbage, over_stream) in [
        (b"".as_slice(), true),
        (b"\xff\xff", false),
        (&newer, false),
        (&oversized, false),
        (&[0; 100_000], true),
    ] {
        member.say(&fleet.team, 0, garbage, over_stream);
    }
    let counted = "Refused { oversized: 1, version: 1, malformed: 3, stale_grants: 0, strangers: 0 }";
    lead.until("refused", counted);
    common::until(|| {
        one.say("put pose hello");
        lead.say("take pose") == "1 hello aged true"
    });
}

#[test]
fn a_robot_that_is_killed_and_starts_anew_is_heard_and_hears_at_once() {
    let fleet = Fleet::new(&["lead", "one"], "");
    let (mut lead, mut one) = (fleet.robot("lead"), fleet.robot("one"));
    let talk = |from: &mut common::Robot, to: &mut common::Robot, topic: &str| {
        common::until(|| {
            from.say(&format!("put {topic} hello"));
            to.say(&format!("take {topic}")).contains("hello")
        });
    };
    lead.say("subscribe pose");
    lead.say("publish plan");
    for _ in 0..2 {
        one.say("publish pose");
        one.say("subscribe plan");
        talk(&mut one, &mut lead, "pose");
        talk(&mut lead, &mut one, "plan");
        one.kill();
        one = fleet.robot("one");
    }
    // A robot that no longer subscribes is no longer sent to.
    lead.say("unsubscribe pose");
    one.say("publish pose");
    // It takes a while until the sender knows.
    common::until(|| {
        lead.say("unsubscribe pose");
        std::thread::sleep(Duration::from_millis(300));
        one.say("put pose hello");
        lead.say("subscribe pose");
        lead.say("take pose") == "nothing"
    });
}

/// The counter of starts is lower after a disk was wiped or replaced by an older one. Robots that heard the robot
/// before still hear it.
#[test]
fn a_robot_with_a_wiped_or_restored_state_is_heard_at_once() {
    let fleet = Fleet::new(&["lead", "one"], "");
    let state = fleet.folder.join("state/one");
    let starts = state.join("starts");
    std::fs::create_dir_all(&state).unwrap();
    std::fs::write(&starts, "60000").unwrap();
    let mut lead = fleet.robot("lead");
    lead.say("subscribe pose");
    for (text, next) in [("first", "60001"), ("wiped", "1"), ("restored", "41")] {
        let mut one = fleet.robot("one");
        one.say("publish pose");
        let began = std::time::Instant::now();
        common::until(|| {
            one.say(&format!("put pose {text}"));
            lead.say("take pose").starts_with(&format!("1 {text} "))
        });
        // This is ten times what a link takes on an idle machine, and much less than any time after which robots
        // forget.
        assert!(
            began.elapsed() < Duration::from_secs(20),
            "{text}: {:?}",
            began.elapsed()
        );
        assert_eq!(std::fs::read_to_string(&starts).unwrap(), next);
        one.kill();
        std::fs::remove_dir_all(&state).unwrap();
        std::fs::create_dir_all(&state).unwrap();
        if next == "1" {
            std::fs::write(&starts, "40").unwrap();
        }
    }
}
