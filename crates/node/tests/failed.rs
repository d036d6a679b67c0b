//! A panic in the deciding thread: the robot sends nothing any more, and says so.
#![allow(clippy::unwrap_used)] // a test may fail by panicking

mod common;

use std::io;
use std::time::Duration;

use common::{Fleet, SOON};
use coorp_node::{Node, Options, Policy};

/// Where the log goes. In the driver's thread, its first line panics: a fault that a program's log can cause.
struct Log;

impl io::Write for Log {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let driver = std::thread::current().name() == Some("coorp-driver");
        assert!(!driver || std::thread::panicking(), "a fault in the log");
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_panic_in_the_deciding_thread_silences_the_robot() {
    tracing_subscriber::fmt()
        .with_env_filter("coorp_node=info")
        .with_writer(|| Log)
        .init();
    let fleet = Fleet::new(&["lead", "one"], "");
    let open = |name: &str| {
        Node::open(Options {
            team: fleet.team.clone(),
            robot: name.to_owned(),
            policy: Policy::named("coorp").unwrap(),
            insecure: false,
            state: Some(fleet.folder.join("state").join(name)),
        })
        .unwrap()
    };
    let node = open("lead");
    let pulse = node.pulse();
    // It logs that it leads.
    let failed = pulse.failed_within(SOON).unwrap();
    assert!(failed.contains("its process must start anew"), "{failed}");
    // Its sockets close a moment later.
    std::thread::sleep(Duration::from_secs(2));
    let rounds = pulse.rounds();
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(pulse.rounds(), rounds);
    let mut stream = node.bulk_stream("one", "map").unwrap();
    stream.write(b"map").unwrap();
    assert!(stream.finish().is_err_and(|error| error.to_string().contains("closed")));
    // Dropping it does not hang.
    drop(node);
}
