//! Gathering states between real processes: every robot's newest state with its age, robots that come and go, and no
//! strangers' states.
#![allow(clippy::unwrap_used)] // a test may fail by panicking

mod common;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

use common::{be_a_robot, until, Fleet, Robot};
use coorp_core::paths::Sequence;
use coorp_core::tracker::{self, StateHeader, TopicId, Topics};
use coorp_node::control::Publisher;
use coorp_node::gather::Gather;
use coorp_node::wire;

#[test]
#[ignore = "the process of a robot in the other tests"]
fn robot() {
    let publishers: RefCell<BTreeMap<String, Publisher>> = RefCell::default();
    let gathers: RefCell<BTreeMap<String, Gather>> = RefCell::default();
    be_a_robot(|node, words| {
        let (mut publishers, mut gathers) = (publishers.borrow_mut(), gathers.borrow_mut());
        Some(match words {
            ["publish", topic] => {
                publishers.insert((*topic).to_owned(), node.control_publisher(topic, None).unwrap());
                "ok".to_owned()
            }
            ["unpublish", topic] => publishers.remove(*topic).is_some().to_string(),
            ["put", topic, text] => publishers[*topic].put(text.as_bytes()).is_ok().to_string(),
            ["gather", topic, topics] => {
                let topics = if *topics == "shared" {
                    Topics::ManyToOne
                } else {
                    Topics::OneToOne
                };
                let period = coorp_core::Duration::from_millis(20);
                match node.gather(topic, period, topics) {
                    Ok(gather) => {
                        gathers.insert((*topic).to_owned(), gather);
                        "ok".to_owned()
                    }
                    Err(error) => error.to_string(),
                }
            }
            ["ungather", topic] => gathers.remove(*topic).is_some().to_string(),
            // Every robot of the next list: its index, its state, and whether its age is known and not negative.
            ["table", topic] => {
                let table = gathers[*topic].recv(Some(Duration::from_secs(1))).unwrap();
                let states = table.states.iter().map(|state| {
                    let text = String::from_utf8_lossy(state.bytes()).into_owned();
                    let aged = state
                        .age
                        .is_some_and(|age| age.is < coorp_core::Duration::from_secs(60));
                    format!("{} {text} {aged}", state.from.0)
                });
                states.collect::<Vec<_>>().join(", ")
            }
            ["updates", topic] => format!("{:?}", gathers[*topic].updates().len()),
            ["due", robot] => {
                let gathered = node.status().unwrap().gathered;
                let of = gathered.iter().find(|gathered| gathered.from.to_string() == *robot);
                of.map_or_else(|| "absent".to_owned(), |of| (of.due > 0 && of.missed > 0).to_string())
            }
            _ => return None,
        })
    });
}

/// Makes each of these robots put a state, until the table is as expected.
fn table(lead: &mut Robot, robots: &mut [&mut Robot], text: &str, expected: &str) {
    let (began, mut said) = (std::time::Instant::now(), String::new());
    while began.elapsed() < common::SOON {
        for robot in &mut *robots {
            robot.say(&format!("put pose {text}"));
        }
        said = lead.say("table pose");
        if said == expected {
            return;
        }
    }
    panic!("the table is '{said}', not '{expected}'");
}

fn robots_come_and_go(fleet: &Fleet, topics: &str) {
    let (mut lead, mut one) = (fleet.robot("lead"), fleet.robot("one"));
    one.say("publish pose");
    assert_eq!(lead.say(&format!("gather pose {topics}")), "ok");
    assert!(lead.say("gather pose own").contains("already gathers \"pose\""));
    table(&mut lead, &mut [&mut one], "a", "1 a true");
    // One robot that joins later, and the gathering robot itself.
    let mut two = fleet.robot("two");
    two.say("publish pose");
    lead.say("publish pose");
    table(&mut lead, &mut [&mut one, &mut two], "b", "1 b true, 2 b true");
    lead.say("put pose own");
    let all = "0 own true, 1 c true, 2 c true";
    table(&mut lead, &mut [&mut one, &mut two], "c", all);
    lead.until("due 1", "true");
    // A robot that dies leaves the list, and one that returns is on it with its new state.
    two.kill();
    lead.until("table pose", "0 own true, 1 c true");
    assert_eq!(lead.say("due 2"), "absent");
    let mut two = fleet.robot("two");
    two.say("publish pose");
    table(&mut lead, &mut [&mut two], "d", "0 own true, 1 c true, 2 d true");
    // The same for one that stops publishing, and publishes again.
    one.say("unpublish pose");
    lead.until("table pose", "0 own true, 2 d true");
    one.say("publish pose");
    table(&mut lead, &mut [&mut one], "e", "0 own true, 1 e true, 2 d true");
    // The gathering robot may stop as well, and begin again.
    assert_eq!(lead.say("ungather pose"), "true");
    assert_eq!(lead.say("due 1"), "absent");
    assert_eq!(lead.say(&format!("gather pose {topics}")), "ok");
    table(&mut lead, &mut [&mut one, &mut two], "f", "1 f true, 2 f true");
}

#[test]
fn robots_with_topics_of_their_own_come_and_go() {
    robots_come_and_go(&Fleet::new(&["lead", "one", "two"], ""), "own");
}

#[test]
fn robots_that_share_a_topic_come_and_go() {
    robots_come_and_go(&Fleet::new(&["lead", "one", "two"], ""), "shared");
}

#[test]
fn robots_with_a_choice_of_paths_come_and_go() {
    robots_come_and_go(&Fleet::with_two_paths(&["lead", "one", "two"]), "shared");
}

#[test]
fn two_robots_gather_the_same_and_only_what_robots_say_of_themselves() {
    let fleet = Fleet::new(&["lead", "one", "two"], "");
    let (mut lead, mut one) = (fleet.robot("lead"), fleet.robot("one"));
    assert_eq!(lead.say("gather pose shared"), "ok");
    assert_eq!(one.say("gather pose shared"), "ok");
    one.say("publish pose");
    table(&mut lead, &mut [&mut one], "a", "1 a true");
    table(&mut one, &mut [], "", "1 a true");
    // The third robot has keys, but sends forbidden or meaningless messages.
    let forger = common::Caller::new(&fleet, Some((&fleet, "two")));
    let mut link = forger.link(&fleet.team, 0).unwrap();
    let sequence = Sequence {
        incarnation: u32::MAX,
        number: 1,
    };
    let header = wire::State {
        topic: TopicId(0),
        header: StateHeader {
            sequence,
            created_at: None,
            error: coorp_core::Duration::ZERO,
        },
        copy: None,
    };
    let topic = "pose".to_owned();
    let state = [wire::pack(&wire::Parcel::State { topic, header }).as_slice(), b"x"].concat();
    let mut garbage = wire::prefixed(&wire::Gathering {
        topic: "pose".to_owned(),
        message: tracker::Message::Connect {
            incarnation: u32::MAX,
            sent_at: coorp_core::Instant::ZERO,
        },
    });
    // No message of this kind exists.
    garbage[13] = 0xff;
    link.hello(7);
    link.write(&garbage);
    until(|| {
        forger.say(&fleet.team, 0, &state, false);
        !lead.say("refused").contains("malformed: 0")
    });
    // The third robot has a key, but never asked to be admitted.
    lead.until("table pose", "1 a true");
    assert_eq!(lead.say("updates pose"), "1");
    table(&mut lead, &mut [&mut one], "b", "1 b true");
}
