//! Bulk between real processes: whole, once, across restarts, one sender at a time, and nothing for strangers.
#![allow(clippy::unwrap_used)] // a test may fail by panicking

mod common;

use std::cell::RefCell;
use std::io::Write;
use std::thread::JoinHandle;
use std::time::Duration;

use common::{be_a_robot, until, Caller, Fleet};
use coorp_node::bulk::{BulkStream, Delivery};
use coorp_node::wire::{self, Answer, Begin, Segments, Start};

/// Returns bytes that differ from offset to offset and from message to message.
fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    blake3::Hasher::new()
        .update(&seed.to_le_bytes())
        .finalize_xof()
        .fill(&mut bytes);
    bytes
}

/// Returns a thread that waits for the outcome of a message.
fn waiting(delivery: Delivery) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let outcome = delivery.wait();
        outcome.map_or_else(|error| error.to_string(), |()| "whole".to_owned())
    })
}

#[test]
#[ignore = "the process of a robot in the other tests"]
fn robot() {
    let outcome: RefCell<Option<JoinHandle<String>>> = RefCell::default();
    let kept: RefCell<Option<Box<BulkStream>>> = RefCell::default();
    let named = RefCell::new("gradients".to_owned());
    let name = || named.borrow().clone();
    be_a_robot(|node, words| {
        let status = node.status().unwrap().bulk;
        Some(match words {
            ["send", to, seed, length] => {
                let mut stream = node.bulk_stream(to, &name()).unwrap();
                for part in pattern(seed.parse().unwrap(), length.parse().unwrap()).chunks(1 << 20) {
                    stream.write(part).unwrap();
                }
                outcome.replace(Some(waiting(stream.finish().unwrap())));
                "ok".to_owned()
            }
            // Send as many small messages as there is room for, and one more, which is kept.
            ["fill", to, seed] => {
                let bytes = pattern(seed.parse().unwrap(), 1_000);
                for number in 0u32.. {
                    let mut stream = node.bulk_stream(to, "gradients").unwrap();
                    stream.write(&bytes).unwrap();
                    while let Err(unfinished) = stream.finish() {
                        // One is soon taken from the queue, and 64 wait.
                        if number == 65 {
                            let why = unfinished.to_string();
                            kept.replace(Some(unfinished.stream));
                            return Some(format!("{number} {why}"));
                        }
                        std::thread::sleep(Duration::from_millis(1));
                        stream = *unfinished.stream;
                    }
                }
                unreachable!()
            }
            ["finish"] => match kept.take().unwrap().finish() {
                Ok(delivery) => {
                    outcome.replace(Some(waiting(delivery)));
                    "ok".to_owned()
                }
                Err(unfinished) => {
                    kept.replace(Some(unfinished.stream));
                    unfinished.error.to_string()
                }
            },
            ["begin", to] => {
                let begun = node.bulk_stream(to, "gradients");
                begun.map_or_else(|error| error.to_string(), |_| "ok".to_owned())
            }
            ["outcome"] => {
                let done = outcome.borrow().as_ref().is_some_and(JoinHandle::is_finished);
                if done {
                    outcome.take().unwrap().join().unwrap()
                } else {
                    "pending".to_owned()
                }
            }
            ["got", seed] => match node.bulk_receiver().unwrap().recv(Some(Duration::from_millis(50))) {
                None => "nothing".to_owned(),
                Some(message) => {
                    let (from, name) = (message.from.0, message.name.clone());
                    let bytes = message.take().unwrap();
                    format!("{from} {name} {}", bytes == pattern(seed.parse().unwrap(), bytes.len()))
                }
            },
            ["name", new] => {
                named.replace((*new).to_owned());
                "ok".to_owned()
            }
            ["publish-for-good"] => {
                let pose = node.control_publisher("pose", None).unwrap();
                std::thread::spawn(move || {
                    while pose.put(b"pose").is_ok() {
                        std::thread::sleep(Duration::from_millis(10));
                    }
                });
                "ok".to_owned()
            }
            // The number of control messages that arrived while it listened.
            ["hears"] => {
                let poses = node.control_subscriber("pose").unwrap();
                let heard = (0..50).filter(|_| poses.recv(Some(Duration::from_millis(500))).is_some());
                heard.count().to_string()
            }
            // The paths that carry bulk to a robot.
            ["over", to] => {
                let choices = node.status().unwrap().choices;
                let of_robot = choices.iter().filter(|path| path.to.to_string() == *to && path.bulk);
                format!("{:?}", of_robot.map(|path| path.path).collect::<Vec<_>>())
            }
            ["received"] => status.unwrap().received_bytes.to_string(),
            ["alarms"] => format!("{:?}", node.status().unwrap().alarms),
            ["sent"] => status.unwrap().sent_bytes.to_string(),
            ["completions"] => status.unwrap().completions.to_string(),
            ["publish"] => {
                // Send control every 10 ms for a second, by the robot's own clock.
                let pose = node.control_publisher("pose", None).unwrap();
                for _ in 0..100 {
                    pose.put(b"pose").unwrap();
                    std::thread::sleep(Duration::from_millis(10));
                }
                "ok".to_owned()
            }
            ["holds"] => status.unwrap().holds.to_string(),
            ["in-flight"] => status.unwrap().in_flight.to_string(),
            ["bulk-refused"] => node
                .bulk_receiver()
                .err()
                .map_or_else(|| "no".to_owned(), |error| error.to_string()),
            _ => return None,
        })
    });
}

const LONG: usize = 64_000_000;

#[test]
fn a_message_arrives_whole_and_once_across_a_restart_of_its_receiver() {
    let fleet = Fleet::new(&["lead", "one", "two"], "");
    let (_lead, mut one, mut two) = (fleet.robot("lead"), fleet.robot("one"), fleet.robot("two"));
    one.say(&format!("send two 1 {LONG}"));
    until(|| two.say("received").parse::<usize>().unwrap() > LONG / 8);
    two.kill();
    assert_eq!(one.say("outcome"), "pending");
    let mut two = fleet.robot("two");
    one.until("outcome", "whole");
    assert_eq!(two.say("got 1"), "1 gradients true");
    assert_eq!(two.say("got 1"), "nothing");
    let again: usize = two.say("received").parse().unwrap();
    assert!(again < LONG, "it was resumed, not begun anew: {again}");
    assert_eq!(one.say("may"), "false", "the permit went back");
    // Received messages do not come again after another restart, but others do.
    one.say("send two 2 1000");
    one.until("outcome", "whole");
    two.kill();
    let mut two = fleet.robot("two");
    assert_eq!(two.say("got 2"), "1 gradients true");
    assert_eq!(two.say("got 2"), "nothing");
}

#[test]
fn a_message_goes_over_both_paths_whole_and_once_across_a_restart_of_its_receiver() {
    let fleet = Fleet::with_two_paths(&["lead", "one", "two"]);
    let (_lead, mut one, mut two) = (fleet.robot("lead"), fleet.robot("one"), fleet.robot("two"));
    // Another message, if the machine was too slow to see this one on its way.
    until(|| {
        one.say(&format!("send two 1 {}", 2 * LONG));
        let mut both = false;
        until(|| {
            both |= one.say("over 2") == "[0, 1]";
            one.say("outcome") == "whole"
        });
        assert_eq!(two.say("got 1"), "1 gradients true");
        both
    });
    assert_eq!(one.say("over 2"), "[]");
    let before: usize = two.say("received").parse().unwrap();
    one.say(&format!("send two 2 {}", 2 * LONG));
    until(|| two.say("received").parse::<usize>().unwrap() > before + LONG / 4);
    two.kill();
    let mut two = fleet.robot("two");
    one.until("outcome", "whole");
    assert_eq!(two.say("got 2"), "1 gradients true");
    assert_eq!(two.say("got 2"), "nothing");
    let again: usize = two.say("received").parse().unwrap();
    assert!(again < 2 * LONG, "it was resumed, not begun anew: {again}");
}

#[test]
fn bulk_waits_for_a_permit_and_says_how_it_knows_what_has_left() {
    let fleet = Fleet::new(&["lead", "one"], "");
    let mut one = fleet.robot("one");
    one.say("send lead 3 3000000");
    std::thread::sleep(Duration::from_millis(700));
    assert_eq!(one.say("sent"), "0", "nobody permits it");
    let mut lead = fleet.robot("lead");
    one.until("outcome", "whole");
    assert_eq!(lead.say("got 3"), "1 gradients true");
    assert_eq!(one.say("completions"), "the kernel's send queue");
    one.until("in-flight", "0");
    lead.until("holders", "[]");
}

#[test]
fn a_message_for_which_there_is_no_room_is_kept_and_goes_later() {
    let fleet = Fleet::new(&["lead", "one"], "");
    let mut one = fleet.robot("one");
    let refused = one.say("fill lead 8");
    assert!(refused.contains("64 bulk messages already wait for lead"), "{refused}");
    let before: usize = refused.split_once(' ').unwrap().0.parse().unwrap();
    assert_eq!(one.say("finish"), refused.split_once(' ').unwrap().1, "it is still so");
    let mut lead = fleet.robot("lead");
    one.until("finish", "ok");
    one.until("outcome", "whole");
    for _ in 0..=before {
        assert_eq!(lead.say("got 8"), "1 gradients true");
    }
    assert_eq!(lead.say("got 8"), "nothing");
}

#[test]
fn whoever_has_taken_over_is_told_that_it_leads() {
    let fleet = Fleet::new(&["lead", "one", "two"], "");
    let (mut lead, mut one, mut two) = (fleet.robot("lead"), fleet.robot("one"), fleet.robot("two"));
    // Any of the robots that are up at first may lead.
    until(|| {
        let robots = [&mut lead, &mut one, &mut two];
        let refused = robots.into_iter().filter_map(|robot| {
            let begun = robot.say("begin leader");
            (begun != "ok").then(|| (robot.name.clone(), robot.say("leads"), begun))
        });
        let refused: Vec<_> = refused.collect();
        matches!(&refused[..], [(name, leads, begun)] if leads == "true" && begun.contains(&format!("{name} leads now")))
    });
    let own = one.say("begin one");
    assert!(own.contains("one is this one: name another one"), "{own}");
    lead.kill();
    until(|| {
        let (of_one, of_two) = (one.say("begin leader"), two.say("begin leader"));
        of_one.contains("one leads now") && of_two == "ok" || of_two.contains("two leads now") && of_one == "ok"
    });
}

#[test]
fn the_files_leader_is_told_that_nobody_leads() {
    let fleet = Fleet::new(&["lead", "one", "two"], "");
    let mut lead = fleet.robot("lead");
    let refused = lead.say("begin leader");
    assert!(
        refused.contains("lead is the team file's leader, and nobody leads now"),
        "{refused}"
    );
}

#[test]
fn two_senders_take_turns_and_both_get_through() {
    let fleet = Fleet::new(&["lead", "one", "two"], "[policy]\nslice = \"100ms\"\n");
    let (mut lead, mut one, mut two) = (fleet.robot("lead"), fleet.robot("one"), fleet.robot("two"));
    // The second robot takes a while to make its message; the first robot's message takes many times as long to send.
    one.say(&format!("send lead 4 {}", 2 * LONG));
    two.say(&format!("send lead 5 {}", LONG / 8));
    let (mut both, mut outcomes) = (false, [String::new(), String::new()]);
    until(|| {
        // The leader knows; the others return nothing.
        for robot in [&mut lead, &mut one, &mut two] {
            let holders = robot.say("holders");
            assert!(["[]", "[1]", "[2]"].contains(&holders.as_str()), "{holders}");
            both |= robot.say("queue") != "[]";
        }
        for (outcome, robot) in outcomes.iter_mut().zip([&mut one, &mut two]) {
            if outcome != "whole" {
                *outcome = robot.say("outcome");
            }
        }
        outcomes == ["whole", "whole"]
    });
    assert!(both, "one had to wait for the other");
}

#[test]
fn bulk_is_held_for_the_robots_own_control_and_arrives_all_the_same() {
    let fleet = Fleet::new(&["lead", "one"], "");
    // Use a policy with windows and without permits, so that anything held is held for control.
    let mut one = common::Robot::start_with(&fleet.file, "one", "edca+local");
    let mut lead = common::Robot::start_with(&fleet.file, "lead", "edca+local");
    one.say("publish");
    assert_eq!(one.say("holds"), "0", "there was no bulk to hold");
    // Control is learnt after a while, if it is regular on this machine; bulk has to last until then.
    until(|| {
        one.say(&format!("send lead 7 {}", 4 * LONG));
        one.say("publish");
        one.say("holds") != "0"
    });
    one.until("outcome", "whole");
    assert_eq!(lead.say("got 7"), "1 gradients true");
}

#[test]
fn a_full_inbox_holds_the_next_message_up_until_one_is_taken() {
    let fleet = Fleet::new(&["lead", "one"], "");
    let (mut lead, mut one) = (fleet.robot("lead"), fleet.robot("one"));
    for _ in 0..256 {
        one.say("send lead 8 100");
        one.until("outcome", "whole");
    }
    one.say("send lead 8 100");
    one.say("send lead 9 100");
    // Meanwhile they keep no permit from others: now and then one is granted for an attempt, and returned.
    std::thread::sleep(Duration::from_millis(1_500));
    one.until("may", "false");
    assert_eq!(one.say("outcome"), "pending");
    assert_eq!(lead.say("got 8"), "1 gradients true");
    assert_eq!(lead.say("got 8"), "1 gradients true");
    one.until("outcome", "whole");
    for _ in 2..257 {
        assert_eq!(lead.say("got 8"), "1 gradients true");
    }
    assert_eq!(lead.say("got 9"), "1 gradients true");
    assert_eq!(lead.say("got 9"), "nothing");
}

/// A small disk, for as long as this value lives.
struct Disk(std::path::PathBuf);

impl Disk {
    fn new(at: std::path::PathBuf) -> Option<Disk> {
        std::fs::create_dir_all(&at).unwrap();
        let disk = Disk(at);
        if !disk.mount("size=20m") {
            assert!(std::env::var_os("CI").is_none(), "CI is to have root and mount");
            let _ = writeln!(std::io::stderr().lock(), "SKIPPED a full disk: not root, or no mount");
            return None;
        }
        Some(disk)
    }

    fn mount(&self, options: &str) -> bool {
        let mut mount = std::process::Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(&self.0);
        mount.status().is_ok_and(|done| done.success())
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn a_full_disk_holds_a_long_message_up_until_there_is_room() {
    let fleet = Fleet::new(&["lead", "one"], "");
    let Some(disk) = Disk::new(fleet.folder.join("state/lead")) else {
        return;
    };
    // Without the filler, it has room for the message.
    assert!(disk.mount("remount,size=96m"));
    let filler = disk.0.join("filler");
    std::fs::write(&filler, vec![1; 40 << 20]).unwrap();
    let (mut lead, mut one) = (fleet.robot("lead"), fleet.robot("one"));
    one.say(&format!("send lead 13 {LONG}"));
    std::thread::sleep(Duration::from_millis(1_500));
    one.until("may", "false");
    assert_eq!(one.say("sent"), "0", "for nothing");
    assert_eq!(one.say("outcome"), "pending");
    std::fs::remove_file(&filler).unwrap();
    one.until("outcome", "whole");
    assert_eq!(lead.say("got 13"), "1 gradients true");
}

/// Bytes for which a disk of 20 MiB has room, but not without its reserve of 1 MiB.
const INTO_THE_RESERVE: usize = (20 << 20) - 700_000;

fn free_bytes(folder: &std::path::Path) -> u64 {
    let disk = nix::sys::statvfs::statvfs(folder).unwrap();
    disk.blocks_available() * disk.fragment_size()
}

#[test]
fn bulk_leaves_the_reserve_free_and_a_robot_on_a_full_disk_leads_and_controls() {
    let fleet = Fleet::new(&["lead", "one"], "");
    let Some(disk) = Disk::new(fleet.folder.join("state/lead")) else {
        return;
    };
    // First, nothing is free: the robot starts, leads and controls.
    let filler = disk.0.join("filler");
    let mut file = std::fs::File::create(&filler).unwrap();
    while file.write_all(&[1; 4_096]).is_ok() {}
    drop(file);
    assert_eq!(free_bytes(&disk.0), 0);
    let (mut lead, mut one) = (fleet.robot("lead"), fleet.robot("one"));
    until(|| lead.say("leader") != "None" && one.say("leader") != "None");
    lead.until("alarms", "[DiskShort]");
    one.say("publish-for-good");
    until(|| lead.say("hears") == "50");
    one.say("send lead 3 1000");
    std::thread::sleep(Duration::from_millis(1_500));
    assert_eq!(
        (one.say("outcome").as_str(), one.say("sent").as_str()),
        ("pending", "0")
    );
    // The message waits for room, and the robot needs no restart.
    std::fs::remove_file(&filler).unwrap();
    one.until("outcome", "whole");
    assert_eq!(lead.say("got 3"), "1 gradients true");
    // The disk has room for this message, but only in its reserve.
    one.say(&format!("send lead 4 {INTO_THE_RESERVE}"));
    let mut said = String::new();
    until(|| {
        said = one.say("outcome");
        said != "pending"
    });
    assert!(
        said.contains("was not delivered to lead: its disk takes only 19.9 MB of bulk even when empty"),
        "{said}"
    );
    assert!(free_bytes(&disk.0) > 1 << 20);
    assert_eq!(one.say("sent"), "1000", "for nothing");
    assert_eq!(lead.say("hears"), "50");
    // A message stops before the reserve if other programs take its room.
    std::fs::write(&filler, vec![1; 15 << 20]).unwrap();
    one.say("send lead 5 8000000");
    std::thread::sleep(Duration::from_millis(1_500));
    assert_eq!(one.say("outcome"), "pending");
    std::fs::remove_file(&filler).unwrap();
    one.until("outcome", "whole");
    assert_eq!(lead.say("got 5"), "1 gradients true");
}

#[test]
fn a_robot_whose_state_cannot_be_kept_leads_and_controls() {
    let fleet = Fleet::new(&["lead", "one"], "");
    // Not even root makes a folder of a file.
    std::fs::write(fleet.folder.join("state"), b"").unwrap();
    let (mut lead, mut one) = (fleet.robot("lead"), fleet.robot("one"));
    until(|| lead.say("leader") != "None" && one.say("leader") != "None");
    one.say("publish-for-good");
    until(|| lead.say("hears") == "50");
    one.say("send lead 3 1000");
    std::thread::sleep(Duration::from_millis(1_500));
    assert_eq!(one.say("outcome"), "pending");
    std::fs::remove_file(fleet.folder.join("state")).unwrap();
    std::fs::create_dir_all(fleet.folder.join("state/lead")).unwrap();
    one.until("outcome", "whole");
    assert_eq!(lead.say("got 3"), "1 gradients true");
}

#[test]
fn the_longest_names_arrive_and_are_kept_over_a_restart() {
    // A name of 256 bytes, and a name that means a folder.
    let longest = "\u{20000}".repeat(64);
    for sender in [longest.as_str(), ".."] {
        let fleet = Fleet::new(&["lead", sender], "");
        let (lead, mut one) = (fleet.robot("lead"), fleet.robot(sender));
        for name in [&longest, ".."] {
            one.say(&format!("name {name}"));
            one.say("send lead 3 100000");
            one.until("outcome", "whole");
        }
        lead.kill();
        let mut lead = fleet.robot("lead");
        assert_eq!(lead.say("got 3"), format!("1 {longest} true"));
        assert_eq!(lead.say("got 3"), "1 .. true");
        assert_eq!(lead.say("got 3"), "nothing");
    }
}

#[test]
fn without_keys_there_is_no_bulk() {
    let fleet = Fleet::new(&["lead", "one"], "");
    let mut lead = fleet.insecure("lead");
    let refused = lead.say("bulk-refused");
    assert!(refused.contains("needs the team's keys"), "{refused}");
}

#[test]
fn bulk_that_makes_no_sense_is_refused_and_counted_and_the_rest_goes_on() {
    let fleet = Fleet::new(&["lead", "one", "two"], "");
    let (mut lead, mut one) = (fleet.robot("lead"), fleet.robot("one"));
    let member = Caller::of_bulk(&fleet, Some((&fleet, "two")));
    let framed = |frame: &[u8]| [&(frame.len() as u16).to_le_bytes(), frame].concat();
    let begin = |sequence, name: &str, length| Begin {
        lineage: 1,
        sequence,
        name: name.to_owned(),
        length,
        hash: *blake3::hash(&[7; 10]).as_bytes(),
    };
    let start = |listed| framed(&wire::encode(&Start { listed }));
    let segments = |first, count| framed(&wire::encode(&Segments { first, count }));
    let head = |begin: &Begin| framed(&wire::encode(begin));
    let whole = framed(&wire::encode(&Answer::Whole));
    let mut newer = wire::encode(&begin(0, "map", 10));
    newer[2] += 1;
    for refused in [
        framed(&newer),
        framed(&[0; 385]),
        framed(&pattern(9, 100)),
        head(&begin(0, "../x", 10)),
        head(&begin(0, "map", u64::MAX)),
        [head(&begin(0, "map", 10)), start(5)].concat(),
        [head(&begin(0, "map", 10)), start(0), segments(0, 2)].concat(),
        [head(&begin(0, "map", 10)), start(0), segments(u32::MAX, 1)].concat(),
        [head(&begin(0, "map", 3 << 20)), start(0), segments(0, 5)].concat(),
        [head(&begin(0, "map", 10)), start(0), segments(0, 0)].concat(),
    ] {
        let answer = member.offer(&fleet.team, 0, &refused);
        assert!(!answer.ends_with(&whole), "{answer:?}");
    }
    let counted = "Refused { oversized: 1, version: 1, malformed: 8, stale_grants: 0, strangers: 0 }";
    lead.until("refused", counted);
    // The bytes are not the announced ones, or fewer.
    for (sequence, bytes) in [(1, vec![8; 10]), (2, vec![7; 9]), (3, vec![])] {
        let offered = [head(&begin(sequence, "map", 10)), start(0), segments(0, 1), bytes].concat();
        let answer = member.offer(&fleet.team, 0, &offered);
        assert!(!answer.ends_with(&whole), "{sequence}");
    }
    assert_eq!(lead.say("got 0"), "nothing");
    one.say("send lead 10 100000");
    one.until("outcome", "whole");
    assert_eq!(lead.say("got 10"), "1 gradients true");
    // A valid message from the member is accepted.
    let offered = [head(&begin(4, "map", 10)), start(0), segments(0, 1), vec![7; 10]].concat();
    let answer = member.offer(&fleet.team, 0, &offered);
    assert!(answer.ends_with(&whole), "{answer:?}");
}

/// Sends seeded bytes to every port of a robot: datagrams, some like the first of a QUIC connection, and TCP
/// connections that break off or stay open.
#[test]
fn garbage_at_every_port_disturbs_nothing() {
    let fleet = Fleet::new(&["lead", "one"], "");
    let (mut lead, mut one) = (fleet.robot("lead"), fleet.robot("one"));
    one.say("send lead 11 30000000");
    let first = fleet.team.port(coorp_core::RobotId(0));
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut open = Vec::new();
    for round in 0..40 {
        for port in first..first + 16 {
            let seed = u64::from(port) * 1_000 + round;
            let mut bytes = pattern(seed, 1 + (seed % 1_400) as usize);
            if round % 2 == 0 {
                // A long header of version 1.
                let head = [0xc0, 0, 0, 0, 1, 8];
                let length = head.len().min(bytes.len());
                bytes[..length].copy_from_slice(&head[..length]);
            }
            // Nobody listens on some ports; the error of the last datagram is reported with the next.
            let _ = socket.send_to(&bytes, ("127.0.0.1", port));
            if let Ok(mut stream) = std::net::TcpStream::connect(("127.0.0.1", port)) {
                let _ = stream.write_all(&bytes);
                if round % 4 == 0 {
                    open.push(stream);
                }
            }
        }
    }
    one.until("outcome", "whole");
    assert_eq!(lead.say("got 11"), "1 gradients true");
    one.say("send lead 12 1000");
    one.until("outcome", "whole");
    drop(open);
}

#[test]
fn a_stranger_brings_no_bulk() {
    let (fleet, other) = (Fleet::new(&["lead", "one"], ""), Fleet::new(&["lead", "one"], ""));
    // A team with the same names but other keys, whose leader has our leader's ports.
    let port = |fleet: &Fleet, robot| fleet.team.port(coorp_core::RobotId(robot)).to_string();
    let text = std::fs::read_to_string(&fleet.file).unwrap();
    std::fs::write(&other.file, text.replace(&port(&fleet, 1), &port(&other, 1))).unwrap();
    // A policy without permits: it requests none.
    let mut lead = fleet.robot("lead");
    let mut stranger = common::Robot::start_with(&other.file, "one", "edca");
    stranger.say("send lead 6 100000");
    until(|| !lead.say("refused").contains("strangers: 0"));
    assert_eq!(stranger.say("outcome"), "pending");
    assert_eq!(
        (lead.say("received").as_str(), lead.say("got 6").as_str()),
        ("0", "nothing")
    );
}
