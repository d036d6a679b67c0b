//! Opening a node in this process: the reasons to refuse it, and the runtimes that it works under.
#![allow(clippy::unwrap_used)] // a test may fail by panicking

mod common;

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use common::{until, Fleet, SOON};
use coorp_core::policy::Policy;
use coorp_core::tracker::Topics;
use coorp_core::RobotId;
use coorp_node::watch::Watch;
use coorp_node::{Node, Options};

fn options(fleet: &Fleet, robot: &str) -> Options {
    Options {
        team: fleet.team.clone(),
        robot: robot.to_owned(),
        policy: Policy::named("coorp").unwrap(),
        insecure: false,
        state: Some(fleet.folder.join("state").join(robot)),
    }
}

/// Returns the error, for the user to fix, with which opening the first robot of a team fails.
fn refusal(options: Options) -> String {
    let error = Node::open(options).unwrap_err();
    assert!(error.is_input(), "not for the user to mend: {error}");
    error.to_string()
}

#[test]
fn an_interface_that_is_not_here_is_named_with_those_that_are() {
    let fleet = Fleet::new(&["lead", "one"], "");
    let mut options = options(&fleet, "lead");
    options.team.robots[0].interfaces = vec!["wlan77".to_owned()];
    let said = refusal(options.clone());
    let parts = [
        "gives lead the interface wlan77",
        "only ",
        "lo",
        "correct `interfaces` of lead",
    ];
    assert!(parts.iter().all(|part| said.contains(part)), "{said}");
    // This holds even if nothing else is given.
    options.team.robots[0].addresses = Vec::new();
    assert!(refusal(options).contains("wlan77"));
}

#[test]
fn an_address_that_is_not_here_is_named_with_those_that_are() {
    let fleet = Fleet::new(&["lead", "one"], "");
    let mut options = options(&fleet, "lead");
    // This address is reserved for documentation: no machine has it.
    options.team.robots[0].addresses = vec!["192.0.2.77".parse().unwrap()];
    let said = refusal(options.clone());
    let parts = [
        "gives lead the address 192.0.2.77,",
        "127.0.0.1 on lo",
        "correct `addresses` of lead",
    ];
    assert!(parts.iter().all(|part| said.contains(part)), "{said}");
    // The same for the second address, if it is used, and for its interface.
    options.team.robots[1].addresses = vec!["127.0.0.3".parse().unwrap(), "127.0.0.4".parse().unwrap()];
    options.team.robots[0].addresses = vec!["127.0.0.1".parse().unwrap(), "192.0.2.78".parse().unwrap()];
    options.team.robots[0].interfaces = vec!["lo".to_owned(), "lo".to_owned()];
    let said = refusal(options);
    assert!(said.contains("192.0.2.78 on lo,"), "{said}");
}

/// An earlier version opened it and ran plain EDCA.
#[test]
fn a_policy_that_does_not_run_live_is_refused_with_those_that_run_live() {
    let fleet = Fleet::new(&["lead", "one"], "");
    for name in ["schedwifi", "best-effort", "mpc-only", "bulk-only"] {
        let mut options = options(&fleet, "lead");
        options.policy = Policy::named(name).unwrap();
        let said = refusal(options);
        let parts = [
            &format!("policy '{name}' does not run on real sockets: "),
            "choose one of edca, edca+global, edca+local, coorp-paper, coorp",
        ];
        assert!(parts.iter().all(|part| said.contains(part)), "{said}");
    }
}

#[test]
fn opening_in_vain_leaves_no_threads_behind() {
    const TIMES: usize = 20;
    let fleet = Fleet::new(&["lead", "one"], "");
    let of_bulk = fleet.team.port(RobotId(0)) + 1;
    let _taken = UdpSocket::bind(("127.0.0.1", of_bulk)).unwrap();
    for _ in 0..TIMES {
        let said = Node::open(options(&fleet, "lead")).unwrap_err().to_string();
        assert!(said.contains("for bulk"), "{said}");
    }
    // The nodes of the other tests have a few.
    until(|| {
        let threads = std::fs::read_dir("/proc/self/task").unwrap();
        let names = threads.filter_map(|thread| std::fs::read_to_string(thread.unwrap().path().join("comm")).ok());
        names.filter(|name| name.trim() == "coorp-left").count() < TIMES
    });
}

/// Uses everything that a node has, in async code of one thread or several.
async fn take_part(fleet: &Fleet) {
    let one = Node::open(options(fleet, "one")).unwrap();
    let lead = Node::open(options(fleet, "lead")).unwrap();
    let period = coorp_core::Duration::from_millis(20);
    let pose = one.control_publisher("pose", None).unwrap();
    let poses = lead.control_subscriber("pose").unwrap();
    let table = lead.gather("pose", period, Topics::OneToOne).unwrap();
    let heard = async {
        let (mut heard, mut listed) = (false, false);
        while !(heard && listed) {
            pose.put(b"here").unwrap();
            tokio::time::sleep(Duration::from_millis(10)).await;
            heard |= poses.try_recv().is_some();
            listed |= table.try_recv().is_some_and(|table| !table.states.is_empty());
        }
        poses.next().await;
        table.next().await;
    };
    let puts = async {
        loop {
            pose.put(b"here").unwrap();
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::select! {
        () = heard => {}
        () = puts => {}
        () = tokio::time::sleep(SOON) => panic!("nothing is heard or gathered"),
    }
    let mut map = one.bulk_stream("lead", "map").unwrap();
    map.write(&[7; 100_000]).unwrap();
    tokio::time::timeout(SOON, map.finish().unwrap())
        .await
        .unwrap()
        .unwrap();
    let received = lead.bulk_receiver().unwrap();
    assert_eq!(
        tokio::time::timeout(SOON, received.next())
            .await
            .unwrap()
            .take()
            .unwrap()
            .len(),
        100_000
    );
    assert_eq!(lead.status().unwrap().robot, "lead");
    let watch = Watch::open(&fleet.team, false).unwrap();
    let began = Instant::now();
    while watch.look().len() < 2 {
        assert!(began.elapsed() < SOON, "the operator sees nobody");
    }
    drop(watch);
    // Drop what the node gave out last in one case, and the node itself in the other.
    drop(one);
    drop(pose);
    drop((poses, table, received));
    drop(lead);
}

#[tokio::test]
async fn a_node_lives_under_a_runtime_of_one_thread() {
    take_part(&Fleet::new(&["lead", "one"], "")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_node_lives_under_a_runtime_of_several_threads() {
    take_part(&Fleet::new(&["lead", "one"], "")).await;
}
