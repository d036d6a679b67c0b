//! Recordings from the view of users and scripts: `coorp import`, and `coorp sim --replay`.

#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::io::Cursor;
use std::path::Path;

use common::{coorp, text, Folder};
use coorp_core::{Duration, RobotId};
use coorp_team::{Category, Flow, Team, Traffic, Transport};
use mcap::records::MessageHeader;
use mcap::{Compression, WriteOptions};

/// One message of a recording: topic, type, milliseconds, bytes.
type Row = (String, &'static str, f64, usize);

fn rows(topic: &str, schema: &'static str, every_ms: f64, seconds: f64, bytes: usize) -> Vec<Row> {
    let count = (seconds * 1e3 / every_ms) as u32;
    let row = |tick: u32| (topic.to_owned(), schema, f64::from(tick) * every_ms, bytes);
    (0..count).map(row).collect()
}

/// Returns an MCAP file of these messages, in order of time.
fn container(mut rows: Vec<Row>, options: WriteOptions) -> Vec<u8> {
    rows.sort_by(|one, other| one.2.total_cmp(&other.2));
    let mut file = Cursor::new(Vec::new());
    let mut writer = options.profile("ros2").create(&mut file).unwrap();
    let mut channels = BTreeMap::new();
    for (number, (topic, schema, at_ms, bytes)) in rows.into_iter().enumerate() {
        let channel = *channels.entry(topic.clone()).or_insert_with(|| {
            let schema = writer.add_schema(schema, "ros2msg", b"").unwrap();
            writer.add_channel(schema, &topic, "cdr", &BTreeMap::new()).unwrap()
        });
        let at_ns = 1_700_000_000_000_000_000 + (at_ms * 1e6) as u64;
        let header = MessageHeader {
            channel_id: channel,
            sequence: number as u32,
            log_time: at_ns,
            publish_time: at_ns,
        };
        // A CDR header, followed by incompressible data.
        let mut noise = number as u32 + 1;
        let data: Vec<u8> = (0..bytes)
            .map(|place| {
                noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                if place < 4 {
                    u8::from(place == 1)
                } else {
                    (noise >> 24) as u8
                }
            })
            .collect();
        writer.write_to_known_channel(&header, &data).unwrap();
    }
    writer.finish().unwrap();
    drop(writer);
    file.into_inner()
}

fn zstd_chunks() -> WriteOptions {
    WriteOptions::new()
        .compression(Some(Compression::Zstd))
        .chunk_size(Some(64 * 1024))
}

/// Returns a recording like that of the learning environment: three robots' images, poses and velocities, and scalars.
fn environment(seconds: f64) -> Vec<Row> {
    let period = 1e3 / 30.0;
    let mut all = rows("/reward", "std_msgs/msg/Float64", period, seconds, 12);
    for robot in 0..3 {
        let topic = |name: &str| format!("/robot_{robot}/{name}");
        all.extend(rows(&topic("camera"), "sensor_msgs/msg/Image", period, seconds, 12_356));
        all.extend(rows(
            &topic("pose"),
            "geometry_msgs/msg/PoseStamped",
            period,
            seconds,
            92,
        ));
        all.extend(rows(&topic("cmd_vel"), "geometry_msgs/msg/Twist", period, seconds, 52));
    }
    all
}

/// Returns the team in a file's text, as the other commands read it.
fn parsed(text: &str) -> Team {
    coorp_team::parse(text, "team.toml", Path::new(".")).unwrap_or_else(|error| panic!("{error}"))
}

/// Returns the flow with this name, and its period in milliseconds.
fn flow(text: &str, name: &str) -> (Flow, f64) {
    let flows = parsed(text).flows;
    let found = flows.into_iter().find(|flow| flow.name == name);
    let flow = found.unwrap_or_else(|| panic!("no flow {name}"));
    match flow.traffic {
        Traffic::Periodic { period, .. } => (flow, period.as_millis_f64()),
        Traffic::Saturated { .. } => panic!("{name} is saturated"),
    }
}

fn import(path: &str) -> (String, String) {
    let output = coorp(&["import", path]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    (text(&output.stdout), text(&output.stderr))
}

/// Returns the message about an unusable recording.
fn refused(path: &str) -> String {
    let output = coorp(&["import", path]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.starts_with("error: ") && said.contains(path), "{said}");
    assert!(output.stdout.is_empty(), "half a team file");
    said
}

#[test]
fn what_the_environment_records_becomes_its_team() {
    let folder = Folder::new("environment");
    let (run, team) = (folder.path("run.mcap"), folder.path("team.toml"));
    fs::write(&run, container(environment(10.0), zstd_chunks())).unwrap();
    let output = coorp(&["import", &run, "-o", &team]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(output.stdout.is_empty() && text(&output.stderr).contains("wrote"));
    let written = fs::read_to_string(&team).unwrap();
    for (name, from, to, size) in [
        ("robot_2.camera", "robot_2", "base", 12_356),
        ("robot_0.pose", "robot_0", "base", 92),
        ("robot_1.cmd_vel", "base", "robot_1", 52),
    ] {
        let robots = parsed(&written).robots;
        let (flow, _) = flow(&written, name);
        let end = |robot: RobotId| robots[usize::from(robot.0)].name.clone();
        assert_eq!((end(flow.from).as_str(), end(flow.to).as_str()), (from, to));
        assert_eq!(
            (flow.category, flow.bulk),
            (Category::Voice, false),
            "{name} is control"
        );
        let traffic = Traffic::Periodic {
            size_bytes: size,
            period: Duration::from_micros(33_333),
            jitter: Duration::ZERO,
        };
        assert_eq!(flow.traffic, traffic);
    }
    let scalar = written.find("# name = \"reward\"").expect("the scalar is of no robot");
    assert!(scalar > written.find("contain no robot's name").unwrap());
    let check = coorp(&["check", &team]);
    assert!(text(&check.stdout).contains("4 robots") && text(&check.stdout).contains("9 flows"));
    let sim = coorp(&["sim", &team, "--duration", "2s", "--policy", "edca", "--replay", &run]);
    assert!(sim.status.success(), "{}", text(&sim.stderr));
    assert!(
        text(&sim.stderr).contains("9 of 9 flows replay"),
        "{}",
        text(&sim.stderr)
    );
    assert!(text(&sim.stdout).contains("robot_2.camera"));
}

#[test]
fn large_rare_and_uneven_topics_are_bulk() {
    let folder = Folder::new("bulk");
    let run = folder.path("run.mcap");
    let mut all = rows("/scan", "sensor_msgs/msg/LaserScan", 100.0, 20.0, 3_000);
    all.extend(rows("/image_raw", "sensor_msgs/msg/Image", 50.0, 20.0, 100_000));
    all.extend(rows("/map", "nav_msgs/msg/OccupancyGrid", 1_000.0, 20.0, 2_000));
    // Fifty in fifty milliseconds, every five seconds.
    all.extend((0..200).map(|n| ("/rosout".to_owned(), "x", f64::from(n / 50 * 5_000 + n % 50), 80)));
    all.extend([("/tf_static".to_owned(), "tf2_msgs/msg/TFMessage", 0.0, 500)]);
    fs::write(
        &run,
        container(all, WriteOptions::new().compression(Some(Compression::Lz4))),
    )
    .unwrap();
    let (team, _) = import(&run);
    let robots: Vec<String> = parsed(&team).robots.into_iter().map(|robot| robot.name).collect();
    assert_eq!(robots, ["base", "robot"], "nothing tells robots apart");
    let (scan, every_ms) = flow(&team, "scan");
    assert_eq!(
        (scan.category, scan.from, every_ms),
        (Category::Voice, RobotId(1), 100.0)
    );
    for name in ["image_raw", "map", "rosout"] {
        let (flow, _) = flow(&team, name);
        assert_eq!((flow.bulk, flow.transport), (true, Transport::Tcp), "{name}");
    }
    assert!(team.contains("irregular") && team.contains("#   /tf_static (tf2_msgs/msg/TFMessage): 1 message\n"));
}

#[test]
fn a_topic_cannot_leave_its_comment() {
    let folder = Folder::new("names");
    let run = folder.path("run.mcap");
    let topics = ["/a\n[[robot]]\nname = \"x\"", "/ä/\"b\"", "", "/a b", "/a_b", "a_b"];
    let all = topics.iter().flat_map(|topic| rows(topic, "t\r\nx = 1", 20.0, 1.0, 0));
    fs::write(&run, container(all.collect(), WriteOptions::new())).unwrap();
    let (team, _) = import(&run);
    let team = parsed(&team);
    assert_eq!((team.robots.len(), team.flows.len()), (2, topics.len()));
}

#[test]
fn a_truncated_recording_gives_what_stands_before_the_end() {
    let folder = Folder::new("truncated");
    let whole = container(environment(20.0), zstd_chunks());
    for share in [0.01, 0.3, 0.5, 0.77, 0.99] {
        let run = folder.path("cut.mcap");
        fs::write(&run, &whole[..(whole.len() as f64 * share) as usize]).unwrap();
        let output = coorp(&["import", &run]);
        let said = text(&output.stderr);
        assert!(said.contains(&run) && said.contains("is truncated"), "{share}: {said}");
        let team = text(&output.stdout);
        if share < 0.1 {
            assert_eq!(output.status.code(), Some(2), "hardly a second: {said}");
        } else {
            assert_eq!(output.status.code(), Some(0), "{said}");
            assert!(team.contains("# Incomplete: "));
            assert_eq!(flow(&team, "robot_0.camera").1, 33.333);
        }
    }
    fs::write(folder.path("head.mcap"), &whole[..40]).unwrap();
    assert!(refused(&folder.path("head.mcap")).contains("there is no message before that"));
    fs::write(folder.path("magic.mcap"), &whole[..5]).unwrap();
    assert!(refused(&folder.path("magic.mcap")).contains("record it again"));
}

#[test]
fn damage_anywhere_never_panics() {
    let folder = Folder::new("damage");
    let run = folder.path("run.mcap");
    let few = || environment(0.5);
    for options in [
        zstd_chunks(),
        WriteOptions::new().compression(Some(Compression::Lz4)),
        { WriteOptions::new().use_chunks(false) },
    ] {
        let whole = container(few(), options);
        for step in 0..60 {
            let mut damaged = whole.clone();
            // The first bytes, with lengths and headers, and then all over the file.
            let at = if step < 30 {
                8 + step * 3
            } else {
                (step - 30) * whole.len() / 30
            };
            damaged[at..(at + 4).min(whole.len())].fill(0xff);
            fs::write(&run, &damaged).unwrap();
            let output = coorp(&["import", &run]);
            let said = text(&output.stderr);
            assert!(matches!(output.status.code(), Some(0 | 2)), "byte {at}: {said}");
            assert!(
                !said.contains("panicked") && (said.is_empty() || said.contains(&run)),
                "byte {at}: {said}"
            );
        }
    }
}

#[test]
fn a_length_that_is_made_up_takes_no_memory() {
    let folder = Folder::new("length");
    let run = folder.path("run.mcap");
    let mut file = mcap::MAGIC.to_vec();
    file.push(9);
    file.extend((1u64 << 30).to_le_bytes());
    fs::write(&run, &file).unwrap();
    assert!(refused(&run).contains("is truncated"));
    let length = file.len();
    file[length - 8..].copy_from_slice(&u64::MAX.to_le_bytes());
    fs::write(&run, &file).unwrap();
    assert!(refused(&run).contains("damaged"));
}

/// Large messages, strongly compressed: 512 MB within 150 MB of address space.
#[cfg(target_os = "linux")]
#[test]
fn a_recording_is_never_in_memory_whole() {
    let folder = Folder::new("memory");
    let run = folder.path("run.mcap");
    let file = fs::File::create(&run).unwrap();
    let mut writer = zstd_chunks().create(std::io::BufWriter::new(file)).unwrap();
    let schema = writer.add_schema("x", "ros2msg", b"").unwrap();
    let channel = writer.add_channel(schema, "/image", "cdr", &BTreeMap::new()).unwrap();
    let data = vec![0; 4 << 20];
    for number in 0..128 {
        let at_ns = u64::from(number) * 100_000_000;
        let header = MessageHeader {
            channel_id: channel,
            sequence: number,
            log_time: at_ns,
            publish_time: at_ns,
        };
        writer.write_to_known_channel(&header, &data).unwrap();
    }
    writer.finish().unwrap();
    let limited = "ulimit -v 150000 && exec \"$0\" import \"$1\"";
    let output = std::process::Command::new("sh")
        .args(["-c", limited, env!("CARGO_BIN_EXE_coorp"), &run])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("size = 4194304"));
}

#[test]
fn what_is_no_recording_is_named() {
    let folder = Folder::new("foreign");
    let file = |name: &str, bytes: &[u8]| {
        let path = folder.path(name);
        fs::write(&path, bytes).unwrap();
        path
    };
    assert!(refused(&folder.path("nowhere.mcap")).contains("does not exist"));
    assert!(refused(&file("empty.mcap", b"")).contains("is empty"));
    assert!(refused(&file("team.toml", b"[[robot]]\nname = \"a\"\n")).contains("is not a recording"));
    assert!(refused(&file("old.bag", b"#ROSBAG V2.0\nxxxx")).contains("rosbags-convert"));
    let none = container(Vec::new(), WriteOptions::new());
    assert!(refused(&file("none.mcap", &none)).contains("contains no messages"));
    let short = container(rows("/odom", "", 20.0, 0.1, 10), WriteOptions::new());
    assert!(refused(&file("short.mcap", &short)).contains("record for longer"));
    let empty = Folder::new("foreign-folder");
    assert!(refused(&empty.path("")).contains("no .mcap or .db3 file"));
    fs::write(empty.path("a.mcap"), &none).unwrap();
    fs::write(empty.path("b.db3"), b"").unwrap();
    assert!(refused(&empty.path("")).contains("two recordings"));
    let packed = zstd::encode_all(&b"SQLite format 3\0"[..], 1).unwrap();
    assert!(refused(&file("a.db3.zstd", &packed)).contains("zstd -d"));
}

#[test]
fn an_output_does_not_overwrite_the_recording() {
    let folder = Folder::new("overwrite");
    let run = folder.path("run.mcap");
    let whole = container(environment(2.0), zstd_chunks());
    fs::write(&run, &whole).unwrap();
    let output = coorp(&["import", &run, "-o", &run]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        text(&output.stderr).contains("it is the recording"),
        "{}",
        text(&output.stderr)
    );
    assert_eq!(fs::read(&run).unwrap(), whole);
}

/// A bag with `sqlite3` storage, in the layout of `rosbag2`.
fn bag(path: &str, rows: &[Row], compressed: bool) {
    let bag = rusqlite::Connection::open(path).unwrap();
    bag.execute_batch(
        "CREATE TABLE topics(id INTEGER PRIMARY KEY, name TEXT NOT NULL, type TEXT NOT NULL,
                             serialization_format TEXT NOT NULL, offered_qos_profiles TEXT NOT NULL);
         CREATE TABLE messages(id INTEGER PRIMARY KEY, topic_id INTEGER NOT NULL, timestamp INTEGER NOT NULL,
                               data BLOB NOT NULL);
         BEGIN;",
    )
    .unwrap();
    let mut topics: Vec<&str> = Vec::new();
    for (topic, schema, at_ms, bytes) in rows {
        let place = topics.iter().position(|known| known == topic).unwrap_or_else(|| {
            let id = topics.len() as i64;
            let values = (id, topic, schema);
            bag.execute("INSERT INTO topics VALUES (?, ?, ?, 'cdr', '')", values)
                .unwrap();
            topics.push(topic);
            topics.len() - 1
        });
        let plain = vec![0u8; *bytes];
        let data = if compressed {
            zstd::bulk::compress(&plain, 1).unwrap()
        } else {
            plain
        };
        let values = (place as i64, (*at_ms * 1e6) as i64, data);
        bag.execute(
            "INSERT INTO messages(topic_id, timestamp, data) VALUES (?, ?, ?)",
            values,
        )
        .unwrap();
    }
    bag.execute_batch("COMMIT").unwrap();
}

#[test]
fn bags_of_both_storages_give_the_same_flows() {
    let (first, second): (Vec<Row>, Vec<Row>) = environment(8.0).into_iter().partition(|row| row.2 < 4_000.0);
    let folder = Folder::new("bags");
    let make = |name: &str, write: &dyn Fn(&str, &[Row])| {
        let path = folder.path(name);
        fs::create_dir_all(&path).unwrap();
        fs::write(format!("{path}/metadata.yaml"), "rosbag2_bagfile_information:\n").unwrap();
        let kind = name.trim_start_matches("packed-");
        write(&format!("{path}/run_2.{kind}"), &first);
        write(&format!("{path}/run_10.{kind}"), &second);
        let (team, _) = import(&path);
        team.split("\n[[flow]]").skip(1).map(str::to_owned).collect::<Vec<_>>()
    };
    let flows = make("mcap", &|path, rows| {
        fs::write(path, container(rows.to_vec(), zstd_chunks())).unwrap();
    });
    assert_eq!(flows.len(), 9);
    // The part that a killed recorder had just started.
    fs::write(folder.path("mcap/run_11.mcap"), b"").unwrap();
    let (_, said) = import(&folder.path("mcap"));
    assert!(said.contains("run_11.mcap was left out: it is empty"), "{said}");
    assert_eq!(flows, make("db3", &|path, rows| bag(path, rows, false)));
    assert_eq!(flows, make("packed-db3", &|path, rows| bag(path, rows, true)));
    assert_eq!(
        flows,
        make("mcap.zstd", &|path, rows| {
            let whole = container(rows.to_vec(), zstd_chunks());
            fs::write(path, zstd::encode_all(&whole[..], 1).unwrap()).unwrap();
        })
    );
}

#[test]
fn damaged_and_foreign_bags_are_told_from_good_ones() {
    let folder = Folder::new("bad-bags");
    let run = folder.path("run.db3");
    let mut all = environment(10.0);
    all.sort_by(|one, other| one.2.total_cmp(&other.2));
    bag(&run, &all, false);
    let whole = fs::read(&run).unwrap();
    let cut = folder.path("cut.db3");
    fs::write(&cut, &whole[..whole.len() / 2]).unwrap();
    let output = coorp(&["import", &cut]);
    let said = text(&output.stderr);
    assert!(matches!(output.status.code(), Some(0 | 2)), "{said}");
    assert!(said.contains(&cut) && said.contains("damaged"), "{said}");
    fs::write(&cut, &whole[..100]).unwrap();
    assert!(refused(&cut).contains("damaged"));
    let foreign = folder.path("foreign.db3");
    let other = rusqlite::Connection::open(&foreign).unwrap();
    other
        .execute_batch("CREATE TABLE x(y); INSERT INTO x VALUES (1)")
        .unwrap();
    drop(other);
    assert!(refused(&foreign).contains("not a ROS 2 bag"));
    let view = folder.path("view.db3");
    let other = rusqlite::Connection::open(&view).unwrap();
    let endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x AS id, 'a' AS name, \
                   'b' AS type, x AS topic_id, x AS timestamp, x AS data FROM n";
    other
        .execute_batch(&format!(
            "CREATE VIEW topics AS {endless}; CREATE VIEW messages AS {endless}"
        ))
        .unwrap();
    drop(other);
    assert!(
        refused(&view).contains("not a ROS 2 bag"),
        "an endless view is not read"
    );
}

#[test]
fn a_replay_sends_what_was_recorded_and_when() {
    let folder = Folder::new("replay");
    let (run, team, json) = (
        folder.path("run.mcap"),
        folder.path("team.toml"),
        folder.path("out.json"),
    );
    // Bursts of ten, one burst per second, of growing messages: no period describes this.
    let burst = |n: u32| {
        (
            "/robot/log".to_owned(),
            "",
            f64::from(n / 10 * 1_000 + n % 10),
            100 + n as usize,
        )
    };
    let mut all: Vec<Row> = (0..100).map(burst).collect();
    all.extend(rows("/robot/odom", "", 50.0, 10.0, 200));
    // Commands are sent as datagrams: each arriving message counts with its own size.
    let command = |n: u32| ("/robot/cmd_vel".to_owned(), "", f64::from(n * n), 50 + 3 * n as usize);
    all.extend((0..90).map(command));
    fs::write(&run, container(all, zstd_chunks())).unwrap();
    assert!(coorp(&["import", &run, "-o", &team]).status.success());
    let sent = |duration: &str| {
        let arguments = [
            "sim", &team, "--replay", &run, "--policy", "edca", "--quiet", "--json", &json,
        ];
        let output = coorp(&[&arguments[..], &["--duration", duration]].concat());
        assert!(output.status.success(), "{}", text(&output.stderr));
        let report: serde_json::Value = serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
        let flows = report["results"][0]["flows"].as_array().unwrap().clone();
        let named = |name: &str| flows.iter().find(|flow| flow["name"] == name).unwrap().clone();
        let sent = |name: &str| named(name)["sent"].as_u64();
        let mbps = |name: &str| named(name)["mbps"].as_f64().unwrap();
        let both = [mbps("robot.log"), mbps("robot.cmd_vel")];
        (sent("robot.log"), sent("robot.odom"), both)
    };
    let (log, odom, [mbps, command_mbps]) = sent("9.9s");
    assert_eq!((log, odom), (Some(100), Some(199)), "the whole recording, once");
    let bytes: u32 = (0..100).map(|n| 100 + n).sum();
    assert!((mbps - f64::from(bytes) * 8e-6 / 9.9).abs() < 1e-9, "{mbps}");
    let bytes: u32 = (0..90).map(|n| 50 + 3 * n).sum();
    assert!(
        (command_mbps - f64::from(bytes) * 8e-6 / 9.9).abs() < 1e-9,
        "{command_mbps}"
    );
    assert_eq!(sent("500ms").0, Some(10), "one burst");
    assert_eq!(sent("20.5s").0, Some(210), "and again after its end");
}

#[test]
fn a_replay_without_a_flow_of_its_own_says_what_to_do() {
    let folder = Folder::new("unmatched");
    let run = folder.path("run.mcap");
    fs::write(&run, container(environment(2.0), zstd_chunks())).unwrap();
    let flows = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/flows.toml");
    let output = coorp(&["sim", flows, "--replay", &run]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("coorp import") && said.contains("reward"), "{said}");
    let output = coorp(&["sim", flows, "--replay", flows]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("is not a recording"));
}
