//! Control messages between real processes: newest wins, with their age; windows follow them; strangers hear nothing.
#![allow(clippy::unwrap_used)] // a test may fail by panicking

mod common;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

use common::{be_a_robot, Fleet};
use coorp_node::control::{Publisher, Subscriber};

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
            ["subscribe", topic] => {
                subscribers.insert((*topic).to_owned(), node.control_subscriber(topic).unwrap());
                "ok".to_owned()
            }
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
                    let text = String::from_utf8_lossy(&message.bytes()).into_owned();
                    let text = if text.len() > 100 { text.len().to_string() } else { text };
                    format!("{} {text} aged {}", message.from.0, message.age.is_some())
                }
            },
            ["missed", topic] => {
                let heard = node.status().heard.into_iter().find(|heard| heard.topic == *topic);
                heard.map_or(0, |heard| heard.missed).to_string()
            }
            ["windows"] => node.status().window_us.is_some().to_string(),
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
    // Until the links and what is subscribed to have been exchanged, messages go nowhere.
    common::until(|| {
        one.say("put pose hello");
        lead.say("take pose") == "1 hello aged true" && one.say("leader") == lead.say("leader")
    });
    common::until(|| {
        two.say("put pose hello");
        lead.say("take pose") == "2 hello aged true"
    });
    while lead.say("take pose") != "nothing" {}
    for text in ["a", "b", "c"] {
        one.say(&format!("put pose {text}"));
    }
    two.say("put pose z");
    std::thread::sleep(Duration::from_millis(300));
    // Of two robots whichever's came first.
    let mut taken = [lead.say("take pose"), lead.say("take pose")];
    taken.sort();
    assert_eq!(taken, ["1 c aged true", "2 z aged true"], "the newest, not the oldest");
    assert_eq!(lead.say("take pose"), "nothing");
    assert_eq!(lead.say("missed pose"), "0", "all came");
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
    one.say("drive pose 20 100");
    assert_eq!(one.say("windows"), "true", "its own");
    two.say("windows");
    common::until(|| {
        one.say("drive pose 20 25");
        two.say("windows") == "true" && lead.say("windows") == "true"
    });
}

#[test]
fn without_a_key_nobody_hears_or_says_control() {
    let fleet = Fleet::new(&["lead", "one"], "");
    let (mut lead, mut one) = (fleet.robot("lead"), fleet.robot("one"));
    lead.say("subscribe pose");
    one.say("publish pose");
    let stranger = common::session(
        &fleet.team,
        0,
        2,
        "quic",
        serde_json::json!({
            "verify_name_on_connect": false,
            "root_ca_certificate": fleet.team.live.keys.join("ca.pem"),
        }),
    );
    // Who has the key of `one` may say what `one` says, and nothing else.
    let member = common::session(&fleet.team, 0, 2, "quic", common::tls(&fleet, &fleet, "one"));
    let heard = zenoh::Wait::wait(stranger.declare_subscriber("**")).unwrap();
    let header = coorp_node::wire::encode(&coorp_node::wire::ControlHeader {
        incarnation: 1,
        sequence: 0,
        made_at: 0,
        made_at_leaders: None,
        copy: None,
    });
    let say = |session: &zenoh::Session, robot: &str, text: &str| {
        let put = session
            .put(format!("coorp/team/control/{robot}/pose"), text)
            .attachment(header.clone());
        zenoh::Wait::wait(put).unwrap();
    };
    common::until(|| {
        say(&stranger, "one", "forged");
        say(&member, "lead", "forged");
        say(&member, "one", "true");
        let said = lead.say("take pose");
        assert!(!said.contains("forged"), "{said}");
        said == "1 true aged false"
    });
    common::until(|| {
        one.say("put pose hello");
        lead.say("take pose").contains("hello")
    });
    // Its own words go round in its own session.
    while let Some(sample) = heard.try_recv().unwrap() {
        assert_eq!(
            sample.payload().to_bytes().as_ref(),
            b"forged",
            "a stranger hears control"
        );
    }
}
