//! A panic in a thread that a robot needs: the robot stops sending, and says so.
#![allow(clippy::unwrap_used)] // a test may fail by panicking

mod common;

use std::io;
use std::time::Duration;

use common::{Fleet, SOON};
use coorp_node::{Node, Options, Policy};

/// The lines at which the log panics, which a program's log may do: the driver writes the first, a link's task the
/// second.
const FAULTS: [&str; 2] = ["lead leads", "right is here"];

struct Log;

impl io::Write for Log {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(line);
        let faulty = FAULTS.iter().any(|fault| text.contains(fault));
        assert!(!faulty || std::thread::panicking(), "a fault in the log");
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn open(fleet: &Fleet, name: &str) -> Node {
    // The other test may have set it up.
    let _ = tracing_subscriber::fmt()
        .with_env_filter("coorp_node=info")
        .with_ansi(false)
        .with_writer(|| Log)
        .try_init();
    Node::open(Options {
        team: fleet.team.clone(),
        robot: name.to_owned(),
        policy: Policy::named("coorp").unwrap(),
        insecure: false,
        state: Some(fleet.folder.join("state").join(name)),
    })
    .unwrap()
}

/// Asserts that a node decides nothing, and takes no bulk for the other robot.
fn assert_silent(node: Node, other: &str) {
    // Its sockets close a moment later.
    std::thread::sleep(Duration::from_secs(2));
    let pulse = node.pulse().unwrap();
    let rounds = pulse.rounds();
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(pulse.rounds(), rounds);
    let mut stream = node.bulk_stream(other, "map").unwrap();
    stream.write(b"map").unwrap();
    assert!(stream.finish().is_err_and(|error| error.to_string().contains("closed")));
    // Dropping it does not hang.
    drop(node);
}

#[test]
fn a_panic_in_the_deciding_thread_silences_the_robot() {
    let fleet = Fleet::new(&["lead", "one"], "");
    let node = open(&fleet, "lead");
    // It logs that it leads.
    let failed = node.pulse().unwrap().failed_within(SOON).unwrap();
    assert!(failed.contains("its process must be restarted"), "{failed}");
    assert_silent(node, "one");
}

#[test]
fn a_panic_in_a_links_task_silences_the_robot_and_is_told() {
    let fleet = Fleet::new(&["left", "right"], "");
    let (node, other) = (open(&fleet, "left"), open(&fleet, "right"));
    let failed = node.pulse().unwrap().failed_within(SOON).unwrap();
    assert!(
        failed.contains("receiving coordination panicked: a fault in the log"),
        "{failed}"
    );
    assert_silent(node, "right");
    assert_eq!(other.pulse().unwrap().failed_within(Duration::ZERO), None);
}
