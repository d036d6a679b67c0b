//! Programs that are guests of their robot's agent: what they send and receive, and what remains of those that end.
//!
//! Agent and guests are in this process, but still use the agent's socket; `python/tests/test_guests.py` has separate
//! programs.
#![allow(clippy::unwrap_used)] // a test may fail by panicking

mod common;

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use common::{Fleet, SOON};
use coorp_core::policy::Policy;
use coorp_core::tracker::Topics;
use coorp_node::bulk::{BulkMessage, BulkReceiver};
use coorp_node::control::{Message, Publisher, Subscriber};
use coorp_node::{Error, Node, Options};

const PERIOD: coorp_core::Duration = coorp_core::Duration::from_millis(20);

fn options(fleet: &Fleet, robot: &str) -> Options {
    Options {
        team: fleet.team.clone(),
        robot: robot.to_owned(),
        policy: Policy::named("coorp").unwrap(),
        insecure: false,
        state: Some(fleet.folder.join("state").join(robot)),
    }
}

fn agent(fleet: &Fleet, robot: &str) -> Node {
    let agent = Node::open_agent(options(fleet, robot)).unwrap();
    assert!(!agent.is_guest() && agent.joined_at().is_some());
    agent
}

fn guest(fleet: &Fleet, robot: &str) -> Node {
    let guest = Node::open(options(fleet, robot)).unwrap();
    assert!(guest.is_guest());
    guest
}

/// Publishes until a message arrives.
fn meet(publisher: &Publisher, subscriber: &Subscriber) -> Message {
    let began = Instant::now();
    loop {
        publisher.put(b"hello").unwrap();
        if let Some(message) = subscriber.recv(Some(Duration::from_millis(20))) {
            return message;
        }
        assert!(began.elapsed() < SOON, "nothing arrives");
    }
}

fn until(what: &str, holds: impl Fn() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < SOON, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn send(node: &Node, to: &str, name: &str, bytes: &[u8]) {
    let mut stream = node.bulk_stream(to, name).unwrap();
    stream.write(bytes).unwrap();
    stream.finish().unwrap().wait().unwrap();
}

fn next(receiver: &BulkReceiver) -> BulkMessage {
    receiver.recv(Some(SOON)).unwrap()
}

#[test]
fn guests_do_what_a_robot_does() {
    let fleet = Fleet::new(&["lead", "one"], "");
    let (lead, _agent) = (agent(&fleet, "lead"), agent(&fleet, "one"));
    let (a, b) = (guest(&fleet, "one"), guest(&fleet, "one"));
    // Control, both ways and among guests, including the robot's own.
    let (pose, plan) = (
        a.control_publisher("pose", Some(PERIOD)).unwrap(),
        lead.control_publisher("plan", None).unwrap(),
    );
    pose.set_bound(Some(PERIOD));
    let (to_lead, to_b) = (
        lead.control_subscriber("pose").unwrap(),
        b.control_subscriber("pose").unwrap(),
    );
    assert_eq!(meet(&pose, &to_lead).from, a.place());
    assert_eq!(meet(&pose, &to_b).from, b.place());
    let plans = [&a, &b].map(|guest| guest.control_subscriber("plan").unwrap());
    for plans in &plans {
        let plan = meet(&plan, plans);
        assert_eq!((plan.from, plan.bytes()), (lead.place(), b"hello".as_slice()));
    }
    let large = vec![7; 3_000_000];
    until("large messages pass", || {
        plan.put(&large).unwrap();
        plans[0]
            .recv(Some(Duration::from_millis(50)))
            .is_some_and(|plan| plan.bytes() == large)
    });
    until("ages are known", || {
        meet(&plan, &plans[1])
            .age
            .is_some_and(|age| age.is < coorp_core::Duration::from_secs(60))
    });
    // Gathering by a guest, and of a guest's states.
    let (by_b, by_lead) = (
        b.gather("pose", PERIOD, Topics::OneToOne).unwrap(),
        lead.gather("pose", PERIOD, Topics::OneToOne).unwrap(),
    );
    let lead_pose = lead.control_publisher("pose", Some(PERIOD)).unwrap();
    until("both are gathered", || {
        pose.put(b"one").unwrap();
        lead_pose.put(b"lead").unwrap();
        std::thread::sleep(Duration::from_millis(5));
        let all = |table: coorp_node::gather::Table| {
            let states: Vec<&[u8]> = table.states.iter().map(|state| state.bytes()).collect();
            let aged = table.states.iter().all(|state| state.age.is_some());
            aged && states == [b"lead".as_slice(), b"one"]
        };
        by_b.try_recv().is_some_and(all)
    });
    until("misses are counted", || {
        by_b.updates().iter().filter(|(_, updates)| updates.missed > 0).count() == 2
    });
    assert!(by_lead.recv(Some(SOON)).is_some());
    let twice = a.gather("pose", PERIOD, Topics::OneToOne).unwrap_err();
    assert!(matches!(&twice, Error::Gathered(_)), "{twice}");
    // Bulk, both ways.
    let bytes: Vec<u8> = (0..3_000_000u32).map(|at| (at % 251) as u8).collect();
    let (at_lead, at_a) = (lead.bulk_receiver().unwrap(), a.bulk_receiver().unwrap());
    send(&a, "lead", "map", &bytes);
    let map = next(&at_lead);
    assert_eq!((map.from, map.name.as_str()), (a.place(), "map"));
    assert!(map.take().unwrap() == bytes);
    assert!(at_a.try_recv().is_none());
    send(&lead, "one", "model", &bytes);
    let model = at_a.try_recv().unwrap();
    assert!(model.take().unwrap() == bytes);
    assert!(model.take().is_err(), "it was taken");
    send(&lead, "one", "log", &bytes);
    let file = fleet.folder.join("log");
    next(&at_a).take_to(&file).unwrap();
    assert!(std::fs::read(&file).unwrap() == bytes);
    // The rest.
    let status = b.status().unwrap();
    assert_eq!((status.robot.as_str(), status.alive), ("one", vec![0, 1]));
    assert!(status.published.iter().any(|published| published.topic == "pose"));
    drop(b.wish_bulk().unwrap());
    until("a permit comes", || {
        let _wish = b.wish_bulk().unwrap();
        b.may_send_bulk().unwrap()
    });
    for refused in [a.protect().err(), a.pulse().err(), a.serve_metrics(0).err()] {
        assert!(refused.unwrap().to_string().contains("only the robot's agent itself"));
    }
}

#[test]
fn a_guest_takes_nothing_with_it() {
    let fleet = Fleet::new(&["lead", "one"], "");
    let (lead, agent) = (agent(&fleet, "lead"), agent(&fleet, "one"));
    let (a, b) = (guest(&fleet, "one"), guest(&fleet, "one"));
    let (pose, other) = (
        a.control_publisher("pose", Some(PERIOD)).unwrap(),
        b.control_publisher("other", None).unwrap(),
    );
    let (poses, others) = (
        lead.control_subscriber("pose").unwrap(),
        lead.control_subscriber("other").unwrap(),
    );
    let last = meet(&pose, &poses).sequence;
    meet(&other, &others);
    let _table = a.gather("state", PERIOD, Topics::OneToOne).unwrap();
    let wish = a.wish_bulk().unwrap();
    let half = a.bulk_stream("lead", "half").unwrap();
    let received = a.bulk_receiver().unwrap();
    for name in ["first", "second"] {
        send(&lead, "one", name, name.as_bytes());
    }
    let first = next(&received);
    assert_eq!(first.name, "first");
    let published = |node: &Node| -> Vec<String> {
        let published = node.status().unwrap().published.into_iter();
        published.map(|published| published.topic).collect()
    };
    assert_eq!(published(&agent), ["pose", "other"]);
    // The guest ends as if its process were killed: nothing says goodbye.
    drop(a);
    until("what it declared has gone", || published(&agent) == ["other"]);
    assert!(pose.put(b"late").is_err() && half.finish().is_err() && first.take().is_err());
    let _again = b.gather("state", PERIOD, Topics::OneToOne).unwrap();
    // Messages that it had not taken come again, in order.
    let again = b.bulk_receiver().unwrap();
    for name in ["first", "second"] {
        assert_eq!(next(&again).take().unwrap(), name.as_bytes());
    }
    drop((wish, received));
    until("no permit is wished for", || !agent.may_send_bulk().unwrap());
    // Its topic continues where it ended.
    let pose = b.control_publisher("pose", None).unwrap();
    assert!(meet(&pose, &poses).sequence > last);
    meet(&other, &others);
}

#[test]
fn what_a_receiver_has_not_received_goes_to_the_next() {
    let fleet = Fleet::new(&["lead", "one"], "");
    let (lead, agent) = (agent(&fleet, "lead"), agent(&fleet, "one"));
    let guest = guest(&fleet, "one");
    let taken = |from: &Node, names: &[&str]| {
        let receiver = from.bulk_receiver().unwrap();
        for name in names {
            assert_eq!(next(&receiver).take().unwrap(), name.as_bytes());
        }
    };
    for node in [&agent, &guest] {
        let reserved = node.bulk_receiver_of("map").unwrap();
        for name in ["map.1", "map.2"] {
            send(&lead, "one", name, name.as_bytes());
        }
        drop(reserved);
        taken(node, &["map.1", "map.2"]);
        // This one has asked for a message before it comes, and ends without it.
        let asked = node.bulk_receiver().unwrap();
        assert!(asked.recv(Some(Duration::from_millis(1))).is_none());
        send(&lead, "one", "log", b"log");
        std::thread::sleep(Duration::from_millis(100));
        drop(asked);
        taken(node, &["log"]);
    }
}

#[test]
fn guests_join_an_agent_that_has_started_anew() {
    let fleet = Fleet::new(&["lead", "one"], "");
    let (lead, first) = (agent(&fleet, "lead"), agent(&fleet, "one"));
    let a = guest(&fleet, "one");
    let (pose, plan) = (
        a.control_publisher("pose", Some(PERIOD)).unwrap(),
        lead.control_publisher("plan", None).unwrap(),
    );
    let (poses, plans) = (
        lead.control_subscriber("pose").unwrap(),
        a.control_subscriber("plan").unwrap(),
    );
    let (table, received) = (
        a.gather("plan", PERIOD, Topics::OneToOne).unwrap(),
        a.bulk_receiver().unwrap(),
    );
    meet(&pose, &poses);
    meet(&plan, &plans);
    send(&lead, "one", "map", b"map");
    let map = next(&received);
    drop(first);
    until("it is noticed", || {
        pose.put(b"dropped").is_ok() && poses.try_recv().is_none()
    });
    // A declaration that fails must not end an earlier one.
    let said = a.control_subscriber("late").unwrap_err().to_string();
    assert!(
        said.contains("one's agent is not running: start it again (coorp up)"),
        "{said}"
    );
    assert!(received.try_recv().is_none());
    let _second = agent(&fleet, "one");
    meet(&pose, &poses);
    meet(&plan, &plans);
    until("it is gathered", || {
        plan.put(b"plan").unwrap();
        let table = table.recv(Some(Duration::from_millis(20)));
        table.is_some_and(|table| !table.states.is_empty())
    });
    let said = map.take().unwrap_err().to_string();
    assert!(said.contains("delivers this message again"), "{said}");
    assert_eq!(next(&received).take().unwrap(), b"map");
}

#[test]
fn who_is_no_guest_is_told_why() {
    let fleet = Fleet::new(&["lead", "one"], "");
    let agent = agent(&fleet, "one");
    let mut other = options(&fleet, "one");
    other.team.robots[0].name = "base".to_owned();
    let said = Node::open(other).unwrap_err();
    assert!(
        said.is_input() && said.to_string().contains("another team file"),
        "{said}"
    );
    // Another robot's program that names the wrong folder.
    let mut other = options(&fleet, "lead");
    other.state = options(&fleet, "one").state;
    let said = Node::open(other).unwrap_err().to_string();
    assert!(said.contains("the agent is one's"), "{said}");
    // A program that speaks another protocol is dropped at once, and others continue.
    let place = agent.joined_at().unwrap().to_owned();
    let _a = guest(&fleet, "one");
    for garbage in [b"GET / HTTP/1.1\r\n\r\n".as_slice(), &[0; 64], &[0xff; 64]] {
        let mut stream = UnixStream::connect(&place).unwrap();
        stream.write_all(garbage).unwrap();
        let mut said = Vec::new();
        stream.read_to_end(&mut said).unwrap();
        assert!(String::from_utf8_lossy(&said).contains("it sends"), "{said:?}");
    }
    // The folder keeps other users out, not the socket's mode.
    let folder = place.parent().unwrap();
    assert_eq!(std::fs::metadata(folder).unwrap().permissions().mode() & 0o777, 0o700);
    drop(agent);
    assert!(!place.exists(), "an agent that ends leaves no socket");
}

#[test]
#[allow(unsafe_code)] // no safe crate here changes one thread's user
fn other_users_take_no_guests_place() {
    if !nix::unistd::geteuid().is_root() {
        assert!(std::env::var_os("CI").is_none(), "CI is to have root");
        return eprintln!("SKIPPED other_users_take_no_guests_place: not root");
    }
    let fleet = Fleet::new(&["one", "two"], "");
    let agent = agent(&fleet, "one");
    let place = agent.joined_at().unwrap().to_owned();
    // The state folder keeps other users out, so it is opened here.
    for folder in place.ancestors().skip(1) {
        if folder.starts_with(&fleet.folder) {
            std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o755)).unwrap();
        }
    }
    let connect = move || {
        let (same, nobody) = (-1i64, 65_534i64);
        // SAFETY: the call takes three numbers. It changes only this thread, which ends soon.
        let changed = unsafe { nix::libc::syscall(nix::libc::SYS_setresuid, same, nobody, same) };
        assert_eq!(changed, 0);
        let silent = (0..200).map(|_| UnixStream::connect(&place).unwrap());
        silent.collect::<Vec<_>>()
    };
    let silent = std::thread::spawn(connect).join().unwrap();
    let _guest = guest(&fleet, "one");
    drop(silent);
}

#[test]
fn an_agent_that_was_killed_is_waited_for_and_then_replaced() {
    let fleet = Fleet::new(&["one", "two"], "");
    let state = options(&fleet, "one").state.unwrap();
    std::fs::create_dir_all(&state).unwrap();
    // The socket that a killed agent leaves behind.
    let place = state.join("agent.sock");
    drop(std::os::unix::net::UnixListener::bind(&place).unwrap());
    let began = Instant::now();
    let node = Node::open(options(&fleet, "one")).unwrap();
    assert!(!node.is_guest() && began.elapsed() >= Duration::from_secs(3));
    assert!(!place.exists(), "the next program does not wait");
    drop(node);
    drop(std::os::unix::net::UnixListener::bind(&place).unwrap());
    let opening = std::thread::spawn({
        let options = options(&fleet, "one");
        move || Node::open(options).unwrap()
    });
    std::thread::sleep(Duration::from_millis(300));
    let _agent = agent(&fleet, "one");
    assert!(opening.join().unwrap().is_guest(), "it came back in time");
}

#[test]
fn agents_in_a_long_folder_are_found() {
    let mut fleet = Fleet::new(&["one", "two"], "");
    fleet.folder = fleet.folder.join("f".repeat(120));
    let agent = agent(&fleet, "one");
    assert_eq!(guest(&fleet, "one").place(), agent.place());
}

#[test]
fn without_keys_only_who_may_joins() {
    let fleet = Fleet::new(&["one", "two"], "");
    let insecure = |insecure| Options {
        insecure,
        ..options(&fleet, "one")
    };
    let _agent = Node::open_agent(insecure(true)).unwrap();
    let said = Node::open(insecure(false)).unwrap_err().to_string();
    assert!(said.contains("the agent runs without keys"), "{said}");
    let guest = Node::open(insecure(true)).unwrap();
    assert!(guest.is_guest());
    assert!(matches!(guest.bulk_stream("two", "map"), Err(Error::NoKeys)));
    assert!(matches!(guest.bulk_receiver(), Err(Error::NoKeys)));
}
