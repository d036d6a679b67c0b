//! Recordings of real robots: complete when they end, readable after a kill, harmless when the disk is full.
#![allow(clippy::unwrap_used)] // a test may fail by panicking

mod common;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;

use common::{be_a_robot, until, Fleet, Robot};
use coorp_node::recording::Recording;
use mcap::sans_io::{LinearReadEvent, LinearReader};
use serde_json::Value;

#[test]
#[ignore = "the process of a robot in the other tests"]
fn robot() {
    let recording: RefCell<Option<Recording>> = RefCell::default();
    be_a_robot(|node, words| {
        let mut recording = recording.borrow_mut();
        Some(match words {
            ["record", path] => match node.record(Path::new(path)) {
                Ok(begun) => {
                    *recording = Some(begun);
                    "ok".to_owned()
                }
                Err(error) => error.to_string(),
            },
            ["failed"] => recording.as_ref().unwrap().failed().unwrap_or_default(),
            ["finish"] => match recording.take().unwrap().finish() {
                Ok(()) => "ok".to_owned(),
                Err(error) => error.to_string(),
            },
            // Send control every 10 ms from now on.
            ["control"] => {
                let period = coorp_core::Duration::from_millis(10);
                let pose = node.control_publisher("pose", Some(period)).unwrap();
                std::thread::spawn(move || {
                    while pose.put(b"pose").is_ok() {
                        std::thread::sleep(std::time::Duration::from_millis(10));
                    }
                });
                "ok".to_owned()
            }
            ["holds"] => node.status().unwrap().bulk.unwrap().holds.to_string(),
            ["windows"] => node.status().unwrap().window_us.is_some().to_string(),
            ["send", to] => {
                let mut stream = node.bulk_stream(to, "map").unwrap();
                stream.write(&vec![7; 8_000_000]).unwrap();
                stream.finish().unwrap().wait().is_ok().to_string()
            }
            _ => return None,
        })
    });
}

/// Returns the messages of a file by topic, as far as they can be read, and whether it has its end.
fn read(path: &Path) -> (BTreeMap<String, Vec<(u64, Value)>>, bool) {
    let bytes = std::fs::read(path).unwrap();
    let (mut messages, mut topics, mut left) = (BTreeMap::<String, Vec<_>>::new(), BTreeMap::new(), &bytes[..]);
    let mut reader = LinearReader::new();
    while let Some(event) = reader.next_event() {
        match event {
            Ok(LinearReadEvent::ReadRequest(wanted)) => {
                let taken = wanted.min(left.len());
                reader.insert(wanted)[..taken].copy_from_slice(&left[..taken]);
                left = &left[taken..];
                reader.notify_read(taken);
            }
            Ok(LinearReadEvent::Record { data, opcode }) => match mcap::parse_record(opcode, data).unwrap() {
                mcap::records::Record::Channel(channel) => {
                    assert_eq!(channel.message_encoding, "json");
                    topics.insert(channel.id, channel.topic);
                }
                mcap::records::Record::Schema { header, data } => {
                    assert_eq!(header.encoding, "jsonschema");
                    assert_eq!(serde_json::from_slice::<Value>(&data).unwrap()["type"], "object");
                }
                mcap::records::Record::Message { header, data } => {
                    let value = serde_json::from_slice(&data).unwrap();
                    let topic = messages.entry(topics[&header.channel_id].clone()).or_default();
                    topic.push((header.log_time, value));
                }
                _ => {}
            },
            Err(_) => return (messages, false),
        }
    }
    (messages, true)
}

fn events(messages: &[(u64, Value)]) -> Vec<&str> {
    messages
        .iter()
        .filter_map(|(_, value)| value["event"].as_str())
        .collect()
}

fn work(lead: &mut Robot, one: &mut Robot) {
    one.until("windows", "true");
    // Wait until a window has occurred while bulk was in progress.
    until(|| {
        assert_eq!(one.say("send lead"), "true");
        one.say("holds") != "0"
    });
    lead.until("holders", "[]");
}

#[test]
fn what_is_decided_is_recorded_and_no_file_is_written_over() {
    let fleet = Fleet::new(&["lead", "one"], "");
    let (mut lead, mut one) = (fleet.robot("lead"), fleet.robot("one"));
    one.say("control");
    let files = ["lead", "one"].map(|name| fleet.folder.join(format!("{name}.mcap")));
    assert_eq!(lead.say(&format!("record {}", files[0].display())), "ok");
    assert_eq!(one.say(&format!("record {}", files[1].display())), "ok");
    assert!(lead.say("record /tmp/other.mcap").contains("already being recorded"));
    until(|| lead.say("leader") != "None" && one.say("leader") != "None");
    work(&mut lead, &mut one);
    assert_eq!(lead.say("finish"), "ok");
    // Changes of the leader are recorded; without the other robot there is no leader.
    lead.kill();
    one.until("leader", "None");
    let _lead = fleet.robot("lead");
    until(|| one.say("leader") != "None");
    assert_eq!(one.say("finish"), "ok");
    assert!(one
        .say(&format!("record {}", files[1].display()))
        .contains("already exists"));
    let ([lead, one], whole): ([_; 2], Vec<bool>) = {
        let (a, b) = (read(&files[0]), read(&files[1]));
        ([a.0, b.0], vec![a.1, b.1])
    };
    assert_eq!(whole, [true, true]);
    // Both ends record the same events of the permit.
    for robot in [&lead, &one] {
        let said = events(&robot["/coorp/permits"]);
        let place = |event| {
            said.iter()
                .position(|said| *said == event)
                .unwrap_or_else(|| panic!("no {event}: {said:?}"))
        };
        assert!(
            place("request") < place("grant") && place("grant") < place("release"),
            "{said:?}"
        );
        let grant = &robot["/coorp/permits"][place("grant")].1;
        assert_eq!(grant["to"], if grant["from"] == "lead" { "one" } else { "lead" });
        assert!(grant["slice_ms"].as_f64().unwrap() > 0.0 && grant["token"].is_u64());
        assert_eq!(robot["/coorp/status"][0].1["lost_decisions"], 0);
        let times: Vec<u64> = robot.values().flatten().map(|(time, _)| *time).collect();
        let now = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap()
            .as_nanos() as u64;
        assert!(
            times.iter().all(|time| now.abs_diff(*time) < 300 * 1_000_000_000),
            "Unix time"
        );
    }
    let permitted = events(&one["/coorp/permits"]);
    assert!(permitted.contains(&"permitted") && permitted.contains(&"not-permitted"));
    assert!(one["/coorp/window"]
        .iter()
        .any(|(_, window)| window["length_us"].as_f64() > Some(0.0)));
    let gate: Vec<bool> = one["/coorp/gate"]
        .iter()
        .map(|(_, gate)| gate["open"].as_bool().unwrap())
        .collect();
    assert!(gate.contains(&false) && gate.contains(&true), "{gate:?}");
    let led = events(&one["/coorp/leader"]);
    assert!(led.contains(&"leads") || led.contains(&"follows"), "{led:?}");
}

#[test]
fn a_robot_that_is_killed_leaves_what_it_had_recorded() {
    let fleet = Fleet::new(&["lead", "one"], "");
    let (mut lead, mut one) = (fleet.robot("lead"), fleet.robot("one"));
    one.say("control");
    let file = fleet.folder.join("one.mcap");
    until(|| lead.say("leader") != "None" && one.say("leader") != "None");
    assert_eq!(one.say(&format!("record {}", file.display())), "ok");
    work(&mut lead, &mut one);
    // A chunk is finished every two seconds.
    until(|| {
        read(&file)
            .0
            .get("/coorp/permits")
            .is_some_and(|messages| events(messages).contains(&"release"))
    });
    one.kill();
    let (messages, whole) = read(&file);
    assert!(!whole);
    assert!(events(&messages["/coorp/permits"]).contains(&"grant"));
}

#[test]
fn a_disk_that_takes_no_more_ends_the_recording_and_nothing_else() {
    let fleet = Fleet::new(&["lead", "one"], "");
    let (mut lead, mut one) = (fleet.robot("lead"), fleet.robot("one"));
    one.say("control");
    let nowhere = one.say("record /nowhere/at/all.mcap");
    assert!(nowhere.contains("cannot record to /nowhere/at/all.mcap"), "{nowhere}");
    assert_eq!(one.say("record /dev/full"), "ok");
    until(|| {
        one.say("failed")
            .contains("/dev/full ends here: No space left on device")
    });
    until(|| lead.say("leader") != "None" && one.say("leader") != "None");
    work(&mut lead, &mut one);
    assert!(one.say("finish").contains("ends here"));
    // Another recording may begin.
    assert_eq!(
        one.say(&format!("record {}", fleet.folder.join("new.mcap").display())),
        "ok"
    );
    assert_eq!(one.say("finish"), "ok");
}
