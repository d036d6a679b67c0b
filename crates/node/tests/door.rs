//! Strangers that begin QUIC handshakes and never finish them: members come up and bulk flows all the same, and what is
//! stored for strangers is bounded.
#![allow(clippy::unwrap_used)] // a test may fail by panicking

mod common;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use common::{be_a_robot, until, Fleet, Robot};
use coorp_core::admission::{Limits, Reason};
use coorp_core::RobotId;
use quinn_proto::{Connection, DatagramEvent, Endpoint, EndpointConfig};

#[test]
#[ignore = "the process of a robot in the other tests"]
fn robot() {
    let outcome: RefCell<Option<JoinHandle<bool>>> = RefCell::default();
    let publisher = RefCell::default();
    let subscriber = RefCell::default();
    be_a_robot(|node, words| {
        let door = node.status().door;
        Some(match words {
            ["send", to, length] => {
                let mut stream = node.bulk_stream(to, "map").unwrap();
                stream.write(&vec![7; length.parse().unwrap()]).unwrap();
                let delivery = stream.finish().unwrap();
                outcome.replace(Some(std::thread::spawn(move || delivery.wait().is_ok())));
                "ok".to_owned()
            }
            ["outcome"] => {
                let done = outcome.borrow().as_ref().is_some_and(JoinHandle::is_finished);
                if done {
                    outcome.take().unwrap().join().unwrap().to_string()
                } else {
                    "pending".to_owned()
                }
            }
            ["publish"] => {
                publisher.replace(Some(node.control_publisher("pose", None).unwrap()));
                "ok".to_owned()
            }
            ["put"] => publisher.borrow().as_ref().unwrap().put(b"here").is_ok().to_string(),
            ["subscribe"] => {
                subscriber.replace(Some(node.control_subscriber("pose").unwrap()));
                "ok".to_owned()
            }
            ["take"] => {
                let wait = Some(Duration::from_millis(50));
                let taken = subscriber.borrow().as_ref().unwrap().recv(wait);
                taken.map_or_else(|| "nothing".to_owned(), |message| message.from.0.to_string())
            }
            ["stored"] => format!("{} {}", door.unfinished, door.addresses),
            ["refused-at", address] => {
                let at = door
                    .refused
                    .iter()
                    .filter(|refused| refused.address.to_string() == *address);
                at.map(|refused| refused.count).sum::<u64>().to_string()
            }
            ["kept-out", address] => {
                let full = |reason| matches!(reason, Reason::TooOften | Reason::TooMany);
                let at = door
                    .refused
                    .iter()
                    .filter(|refused| refused.address.to_string() == *address);
                at.filter(|refused| full(refused.reason)).count().to_string()
            }
            ["descriptors"] => std::fs::read_dir("/proc/self/fd").unwrap().count().to_string(),
            _ => return None,
        })
    });
}

/// A flood of handshakes that never go on, until it is dropped.
struct Flood {
    stop: Arc<AtomicBool>,
    /// How many were begun, and how many proved their address.
    begun: Arc<AtomicU64>,
    proved: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

/// The handshakes that wait for a Retry, at most.
const WAITING_MAX: usize = 512;

impl Flood {
    /// So many a second, from these addresses in turn, to the control and the bulk port of a robot in turn. Those that
    /// `prove` answer a Retry, and nothing else.
    fn new(fleet: &Fleet, robot: u16, from: &[[u8; 4]], per_second: u32, prove: bool) -> Flood {
        let port = fleet.team.port(RobotId(robot));
        let targets = [("coorp-bulk/1", port + 1), ("coorp-control/1", port + 2)];
        let targets = targets.map(|(protocol, port)| {
            let to: SocketAddr = ([127, 0, 0, 1], port).into();
            (common::client(protocol, fleet, None), to)
        });
        let sockets = from.iter().map(|from| {
            let socket = UdpSocket::bind(SocketAddr::from((*from, 0))).unwrap();
            socket.set_nonblocking(true).unwrap();
            socket
        });
        let sockets: Vec<UdpSocket> = sockets.collect();
        let (stop, begun, proved) = (Arc::<AtomicBool>::default(), Arc::default(), Arc::default());
        let (stopped, counts) = (stop.clone(), (Arc::clone(&begun), Arc::clone(&proved)));
        let run = move || flood(&targets, &sockets, per_second, prove, &stopped, &counts);
        Flood {
            stop,
            begun,
            proved,
            thread: Some(std::thread::spawn(run)),
        }
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().unwrap().join();
    }
}

fn flood(
    targets: &[(quinn::ClientConfig, SocketAddr)],
    sockets: &[UdpSocket],
    per_second: u32,
    prove: bool,
    stop: &AtomicBool,
    (begun, proved): &(Arc<AtomicU64>, Arc<AtomicU64>),
) {
    let started = Instant::now();
    let mut waiting: BTreeMap<Vec<u8>, (Endpoint, Connection)> = BTreeMap::new();
    let (mut packet, mut buffer) = (vec![0; 2_000], Vec::new());
    for number in 0u32.. {
        let turn = number as usize;
        let ((config, to), socket) = (&targets[turn % targets.len()], &sockets[turn % sockets.len()]);
        while started.elapsed() * per_second < Duration::from_secs(1) * number {
            std::thread::sleep(Duration::from_millis(1));
        }
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let mut endpoint = Endpoint::new(Arc::new(EndpointConfig::default()), None, false, None);
        let connect = endpoint.connect(Instant::now(), config.clone(), *to, "robot.coorp.internal");
        let (_, mut connection) = connect.unwrap();
        buffer.clear();
        let first = connection.poll_transmit(Instant::now(), 1, &mut buffer).unwrap();
        let _ = socket.send_to(&buffer[..first.size], to);
        begun.fetch_add(1, Ordering::Relaxed);
        // Behind the version: the other end's ID, then its own.
        let other = usize::from(buffer[5]);
        let own = &buffer[7 + other..][..usize::from(buffer[6 + other])];
        waiting.insert(own.to_vec(), (endpoint, connection));
        while waiting.len() > WAITING_MAX {
            waiting.pop_first();
        }
        for socket in sockets {
            while let Ok((length, from)) = socket.recv_from(&mut packet) {
                let packet = &packet[..length];
                // A Retry: the ID that it is for follows the version.
                if !prove || packet[0] & 0xf0 != 0xf0 {
                    continue;
                }
                let Some((mut endpoint, mut connection)) = waiting.remove(&packet[6..][..usize::from(packet[5])])
                else {
                    continue;
                };
                let (now, bytes) = (Instant::now(), BytesMut::from(packet));
                buffer.clear();
                if let Some(DatagramEvent::ConnectionEvent(_, event)) =
                    endpoint.handle(now, from, None, None, bytes, &mut buffer)
                {
                    connection.handle_event(event);
                    buffer.clear();
                    if let Some(again) = connection.poll_transmit(now, 1, &mut buffer) {
                        let _ = socket.send_to(&buffer[..again.size], from);
                        proved.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
        }
    }
}

/// Two members exchange control and bulk with a robot under a flood, one of them from its start.
fn members_get_through(fleet: &Fleet, lead: &mut Robot, flood: &Flood) {
    let limits = Limits::of_team(3, 1);
    let unfinished_max = limits.strangers.unfinished_max + limits.members.unfinished_max;
    let addresses_max = limits.strangers.addresses_max + limits.members.addresses_max;
    lead.say("subscribe");
    until(|| flood.begun.load(Ordering::Relaxed) > 50);
    let mut one = fleet.robot("one");
    one.say("send lead 100000000");
    for _ in 0..3 {
        let mut two = fleet.robot("two");
        two.say("publish");
        until(|| {
            two.say("put");
            lead.say("take") == "2"
        });
        two.say("send lead 1000000");
        two.until("outcome", "true");
        let stored = lead.say("stored");
        let (unfinished, addresses) = stored.split_once(' ').unwrap();
        assert!(unfinished.parse::<usize>().unwrap() <= unfinished_max, "{stored}");
        assert!(addresses.parse::<usize>().unwrap() <= addresses_max, "{stored}");
        two.kill();
    }
    one.until("outcome", "true");
}

#[test]
fn unfinished_handshakes_of_one_stranger_keep_no_member_out() {
    let fleet = Fleet::new(&["lead", "one", "two"], "");
    let mut lead = fleet.robot("lead");
    let descriptors: usize = lead.say("descriptors").parse().unwrap();
    let (unproved, proved) = ([127, 0, 0, 65], [127, 0, 0, 66]);
    let floods = [
        Flood::new(&fleet, 0, &[unproved], 75, false),
        Flood::new(&fleet, 0, &[proved], 75, true),
    ];
    members_get_through(&fleet, &mut lead, &floods[1]);
    until(|| lead.say("refused-at 127.0.0.66") != "0");
    assert_eq!(lead.say("refused-at 127.0.0.65"), "0", "it may be forged");
    assert_eq!(lead.say("kept-out 127.0.0.1"), "0", "members are not refused");
    assert!(floods[1].proved.load(Ordering::Relaxed) > 0);
    drop(floods);
    // What it had is gone again.
    until(|| lead.say("stored").starts_with("0 "));
    until(|| lead.say("descriptors").parse::<usize>().unwrap() <= descriptors + 8);
}

#[test]
fn unfinished_handshakes_from_many_addresses_keep_no_member_out() {
    let fleet = Fleet::new(&["lead", "one", "two"], "");
    let mut lead = fleet.robot("lead");
    let many: Vec<[u8; 4]> = (1..=50).map(|last| [127, 0, 1, last]).collect();
    let flood = Flood::new(&fleet, 0, &many, 150, true);
    members_get_through(&fleet, &mut lead, &flood);
    assert_eq!(lead.say("kept-out 127.0.0.1"), "0", "members are not refused");
    assert!(flood.proved.load(Ordering::Relaxed) > 0);
    drop(flood);
    until(|| lead.say("stored").starts_with("0 "));
}
