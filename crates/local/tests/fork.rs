//! A process that forks: its child has copies of its sockets, and must neither use them nor keep it alive.

// Rust's library has no fork, and a `Command` closes what a fork keeps.
#![allow(missing_docs, unsafe_code, clippy::unwrap_used)]

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use coorp_local::{Domain, DomainOptions, Error, ReceiverOptions, SenderOptions};
use rustix::process::{kill_process, Pid, Signal};

const ROLE: &str = "COORP_LOCAL_FORK_ROLE";
const BOUND: Duration = Duration::from_secs(30);

#[test]
fn child() {
    let Ok(domain) = std::env::var(ROLE) else { return };
    let member = Domain::join(&domain, DomainOptions::default()).unwrap();
    let mut receiver = member.receiver("data", ReceiverOptions::default()).unwrap();
    let mut sender = member.sender("other", SenderOptions::default()).unwrap();
    let payload = receiver.recv(Some(BOUND)).unwrap().unwrap();
    // SAFETY: The child uses only memory and system calls, and no lock that another thread may have held.
    match unsafe { libc::fork() } {
        0 => {
            assert!(matches!(receiver.try_recv(), Err(Error::Forked)));
            assert!(matches!(receiver.recv(None), Err(Error::Forked)));
            assert!(matches!(sender.loan(10), Err(Error::Forked)));
            assert!(matches!(
                member.receiver("data", ReceiverOptions::default()),
                Err(Error::Forked)
            ));
            drop((payload, receiver, sender, member));
            println!("@{}", std::process::id());
        }
        forked => assert!(forked > 0),
    }
    std::thread::sleep(2 * BOUND);
}

#[test]
fn a_forked_child_takes_nothing_and_keeps_nobody_alive() {
    let domain = format!("fork-{}", std::process::id());
    let member = Domain::join(&domain, DomainOptions::default()).unwrap();
    let mut sender = member.sender("data", SenderOptions::default()).unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["child", "--exact", "--nocapture"])
        .env(ROLE, &domain)
        .stdout(Stdio::piped());
    let mut parent = command.spawn().unwrap();
    assert!(sender.wait_for_readers(1, BOUND));
    sender.send_copy(&[1; 1_000_000]).unwrap();
    let lines = BufReader::new(parent.stdout.take().unwrap())
        .lines()
        .map_while(Result::ok);
    let forked = lines
        .filter_map(|line| line.split_once('@')?.1.parse().ok())
        .next()
        .unwrap();
    // The child has dropped its copy, but its parent has not.
    assert!(sender.used_bytes() > 1_000_000);
    parent.kill().unwrap();
    parent.wait().unwrap();
    let began = Instant::now();
    while sender.used_bytes() > 0 || sender.readers() > 0 {
        assert!(began.elapsed() < BOUND, "a forked child keeps its dead parent alive");
        std::thread::sleep(Duration::from_millis(1));
    }
    kill_process(Pid::from_raw(forked).unwrap(), Signal::KILL).unwrap();
}
