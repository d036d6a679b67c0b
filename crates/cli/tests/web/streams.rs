//! `coorp watch --foxglove` and `--rerun`, from a viewer's view: what streams tell is what the page shows and the robots
//! record.

use std::collections::BTreeMap;
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::mpsc::{channel, Receiver};
use std::time::Instant;

use serde_json::{json, Value};
use tungstenite::{Message, WebSocket};

use crate::field::{drive, json as next, recorded, times, Field, Web, LONG, ROBOTS, ROUNDED_MS, UPGRADE};
use crate::View;

/// The page's zero is rounded to a millisecond.
const ZERO_MS: f64 = 0.6;
const PROTOCOL: &str = "Sec-WebSocket-Protocol: foxglove.sdk.v1\n";

/// A message of a channel: its topic, Unix time in nanoseconds, and what it says.
type Told = (String, u64, Value);

/// What a client of Foxglove's protocol has collected.
struct Client {
    channels: Vec<Value>,
    came: Receiver<Told>,
    told: Vec<Told>,
}

fn open(web: &Web) -> (WebSocket<TcpStream>, Vec<Value>) {
    let at = &web.at;
    let mut socket = web.open(&format!("GET / HTTP/1.1\nHost: {at}\n{PROTOCOL}"));
    let info = next(&mut socket);
    assert_eq!(
        (&info["op"], &info["capabilities"]),
        (&json!("serverInfo"), &json!(["time"]))
    );
    let channels = next(&mut socket);
    assert_eq!(channels["op"], "advertise");
    let channels = channels["channels"].as_array().unwrap().clone();
    (socket, channels)
}

impl Client {
    /// Subscribes to everything, under numbers that are not those of the channels.
    fn open(web: &Web) -> Client {
        let (mut socket, channels) = open(web);
        let ids: Vec<u64> = channels.iter().map(|channel| channel["id"].as_u64().unwrap()).collect();
        let all: Vec<Value> = ids.iter().map(|id| json!({"id": id + 100, "channelId": id})).collect();
        let subscribe = json!({"op": "subscribe", "subscriptions": all});
        socket.send(Message::text(subscribe.to_string())).unwrap();
        let topics: BTreeMap<u32, String> = channels
            .iter()
            .map(|channel| {
                let id = u32::try_from(channel["id"].as_u64().unwrap()).unwrap();
                (id + 100, channel["topic"].as_str().unwrap().to_owned())
            })
            .collect();
        let (tell, came) = channel();
        std::thread::spawn(move || {
            let mut time_ns = 0;
            // Until `coorp watch` ends.
            while let Ok(message) = socket.read() {
                let Message::Binary(bytes) = message else {
                    panic!("{message:?}");
                };
                let number = |from: usize| u64::from_le_bytes(bytes[from..from + 8].try_into().unwrap());
                match bytes[0] {
                    1 => {
                        let id = u32::from_le_bytes(bytes[1..5].try_into().unwrap());
                        let at_ns = number(5);
                        assert!(at_ns <= time_ns, "told before its time");
                        let value = serde_json::from_slice(&bytes[13..]).unwrap();
                        if tell.send((topics[&id].clone(), at_ns, value)).is_err() {
                            return;
                        }
                    }
                    2 => {
                        assert!(number(1) > time_ns, "time goes back");
                        time_ns = number(1);
                    }
                    other => panic!("opcode {other}"),
                }
            }
        });
        Client {
            channels,
            came,
            told: Vec::new(),
        }
    }

    fn take(&mut self) {
        self.told.extend(self.came.try_iter());
    }

    fn until(&mut self, what: &str, is: impl Fn(&Client) -> bool) {
        let began = Instant::now();
        while !is(self) {
            assert!(began.elapsed() < LONG, "not within {LONG:?}: {what}");
            let told = self.came.recv_timeout(LONG);
            self.told
                .push(told.unwrap_or_else(|_| panic!("nothing more comes: {what}")));
        }
    }

    /// A robot's messages on a channel.
    fn of<'c>(&'c self, topic: &'c str, robot: &'c str) -> impl Iterator<Item = (u64, &'c Value)> {
        let of = move |told: &&Told| told.0 == topic && told.2["robot"] == robot;
        self.told.iter().filter(of).map(|(_, at, value)| (*at, value))
    }

    /// Their times, of those that say this.
    fn at(&self, topic: &str, robot: &str, field: &str, says: &Value) -> Vec<u64> {
        let all = self.of(topic, robot).filter(|(_, value)| value[field] == *says);
        all.map(|(at, _)| at).collect()
    }

    fn newest<'c>(&'c self, topic: &'c str, robot: &'c str) -> &'c Value {
        self.of(topic, robot).last().unwrap().1
    }
}

#[test]
fn a_stream_tells_what_the_page_shows_and_the_robots_record() {
    let field = Field::new("stream", [28_880, 28_900]);
    let (base, scout) = (field.node("base"), field.node("scout"));
    let file = field.0.join("scout.mcap");
    let recording = scout.record(&file).unwrap();
    let [web, foxglove] = &field.watch(&["--web", "0", "--foxglove", "0"])[..] else {
        panic!("two outlets");
    };
    let (mut page, mut client) = (View::open(web), Client::open(foxglove));
    page.until("both are here, and somebody leads", |page| {
        page.absent.is_empty() && page.robots.iter().all(|robot| robot.status["leader"].is_u64())
    });
    let _kept = drive(&base, &scout, |traffic| {
        page.until("there is control of known age, and the gate holds bulk", |page| {
            client.take();
            page.shows_control_and_holds() && client.of("/coorp/ages", "base").count() > 10
        });
        traffic.end();
        page.until("the last bulk is there", |_| traffic.is_over());
    });
    let settled = page.taken + 25;
    page.until("it is quiet", |page| page.taken >= settled);
    recording.finish().unwrap();
    assert!(page.has_all);
    client.take();
    let shown = &page.robots[1];
    // The page's spans begin and end when the stream says so.
    let ms = |at: u64| page.ms(at);
    let same = |all: &[u64], at: f64| all.iter().any(|told| (ms(*told) - at).abs() <= ZERO_MS);
    for (kind, topic, field, begins, ends) in [
        (
            "permit",
            "/coorp/permits",
            "event",
            json!("permitted"),
            json!("not-permitted"),
        ),
        ("hold", "/coorp/gate", "open", json!(false), json!(true)),
        ("window", "/coorp/window", "open", json!(true), json!(false)),
    ] {
        let (begins, ends) = (
            client.at(topic, "scout", field, &begins),
            client.at(topic, "scout", field, &ends),
        );
        let spans = &shown.spans[kind];
        assert!(!spans.is_empty());
        // The page may have one more that is open at its end.
        assert!(
            begins.len() - spans.len() <= 1,
            "{kind}: {} of {}",
            spans.len(),
            begins.len()
        );
        for (start, end) in spans {
            assert!(
                same(&begins, *start) && same(&ends, *end),
                "{kind} from {start} to {end}"
            );
        }
    }
    let loops_and_air = client.of("/coorp/air", "scout");
    let (control, bulk): (Vec<_>, Vec<_>) = loops_and_air.partition(|(_, value)| value["what"] == "control");
    assert_eq!(
        (control.len(), bulk.len()),
        (shown.spans["control"].len(), shown.spans["bulk"].len())
    );
    // What the robot records.
    let recording = recorded(&file);
    let within = shown.within_ms + ROUNDED_MS;
    let near = |all: &[u64], at: u64| all.iter().any(|told| (ms(*told) - ms(at)).abs() <= within);
    for event in ["permitted", "not-permitted"] {
        let told = client.at("/coorp/permits", "scout", "event", &json!(event));
        let all = times(&recording, "/coorp/permits", |value| value["event"] == event);
        assert!(
            !all.is_empty() && all.iter().all(|at| near(&told, *at)),
            "{event}: {all:?} {told:?}"
        );
    }
    let (held, passed) = (
        client.at("/coorp/gate", "scout", "open", &json!(false)),
        client.at("/coorp/gate", "scout", "open", &json!(true)),
    );
    for at in times(&recording, "/coorp/gate", |value| value["why"] == "window") {
        let is_told = held
            .iter()
            .zip(&passed)
            .any(|(from, to)| ms(*from) - within <= ms(at) && ms(at) <= ms(*to) + within);
        assert!(is_told, "held at {}: {held:?} {passed:?}", ms(at));
    }
    let leader = page.robots[1].status["leader"].as_u64().unwrap();
    let told = &client.newest("/coorp/leader", "scout")["leader"];
    assert_eq!(*told, ROBOTS[usize::try_from(leader).unwrap()]);
    // Counters, as `coorp watch` shows them, and bulk by the second.
    let status = client.newest("/coorp/status", "base");
    assert_eq!(crate::heard(status), crate::heard(&page.robots[0].status));
    assert_eq!(status["bulk"], page.robots[0].status["bulk"]);
    let ages: Vec<f64> = client
        .of("/coorp/ages", "base")
        .map(|(_, value)| value["age_ms"].as_f64().unwrap())
        .collect();
    let arrived = page.robots[0].arrived;
    assert!(
        ages.len() > 10 && ages.len() as u64 <= arrived,
        "{} ages of {arrived} messages",
        ages.len()
    );
    let received = status["bulk"]["received_bytes"].as_f64().unwrap() * 8.0 / 1e6;
    let rates = client
        .of("/coorp/bulk", "base")
        .map(|(_, value)| value["received_mbps"].as_f64().unwrap());
    // A status comes each second, and what came before the first one is in no rate.
    let told: f64 = rates.sum();
    assert!(
        told > 0.3 * received && told < 1.5 * received,
        "{told} of {received} Mbit"
    );
    schemas_are_those_of_the_recording(&client, &file);
}

/// Each channel of a recording is a channel of the stream, whose schema has the same properties and the robot.
fn schemas_are_those_of_the_recording(client: &Client, file: &std::path::Path) {
    let bytes = std::fs::read(file).unwrap();
    let summary = mcap::Summary::read(&bytes).unwrap().unwrap();
    assert_eq!(summary.channels.len(), 6);
    for channel in summary.channels.values() {
        let schema = channel.schema.as_ref().unwrap();
        let told = client
            .channels
            .iter()
            .find(|told| told["topic"] == channel.topic)
            .unwrap();
        assert_eq!(
            (&told["encoding"], &told["schemaName"]),
            (&json!("json"), &json!(schema.name))
        );
        let recorded: Value = serde_json::from_slice(&schema.data).unwrap();
        let told: Value = serde_json::from_str(told["schema"].as_str().unwrap()).unwrap();
        assert_eq!(told["properties"]["robot"]["type"], "string");
        for (name, property) in recorded["properties"].as_object().unwrap() {
            assert_eq!(told["properties"][name], *property, "{name} of {}", channel.topic);
        }
    }
}

#[test]
fn who_subscribes_later_gets_what_is_so_and_robots_that_go_raise_an_alarm() {
    let field = Field::new("later", [28_920, 28_940]);
    let (_base, scout) = (field.node("base"), field.node("scout"));
    let web = field.watch(&["--foxglove", "0"]).remove(0);
    let mut first = Client::open(&web);
    let knows = |client: &Client, robot: &str| {
        let topics = ["/coorp/status", "/coorp/leader", "/coorp/permits"];
        topics.iter().all(|topic| client.of(topic, robot).next().is_some())
    };
    first.until("the first viewer knows both", |client| {
        ROBOTS.iter().all(|robot| knows(client, robot))
    });
    // Nothing of this happens again by itself.
    let mut second = Client::open(&web);
    second.until("the second one does too", |client| {
        ROBOTS.iter().all(|robot| knows(client, robot))
    });
    drop(scout);
    let tells = |client: &Client, level: u64, text: &str| {
        client.told.iter().any(|(topic, _, log)| {
            topic == "/coorp/alarms" && log["level"] == level && log["message"].as_str().unwrap().contains(text)
        })
    };
    second.until("one is gone", |client| tells(client, 4, "scout does not answer"));
    let mut third = Client::open(&web);
    third.until("that is still so", |client| tells(client, 4, "scout does not answer"));
    let _scout = field.node("scout");
    second.until("it is back", |client| tells(client, 2, "scout answers again"));
}

#[test]
fn strangers_pages_get_no_stream() {
    let field = Field::new("no-stream", [28_960, 28_980]);
    let web = field.watch(&["--foxglove", "0"]).remove(0);
    let at = &web.at;
    let stream = |host: &str, more: &str| web.ask(&format!("GET / HTTP/1.1\nHost: {host}\n{UPGRADE}\n{more}\n\n"));
    let refused = stream(at, &format!("{PROTOCOL}Origin: https://evil.example"));
    assert!(
        refused.starts_with("HTTP/1.1 403") && refused.contains("Foxglove's pages"),
        "{refused}"
    );
    assert!(stream("evil.example", PROTOCOL.trim()).starts_with("HTTP/1.1 403"));
    let refused = stream(at, "Sec-WebSocket-Protocol: chat");
    assert!(
        refused.starts_with("HTTP/1.1 400") && refused.contains("foxglove.sdk.v1"),
        "{refused}"
    );
    let at_foxglove = format!("GET / HTTP/1.1\nHost: {at}\nOrigin: https://app.foxglove.dev\n{PROTOCOL}");
    assert_eq!(next(&mut web.open(&at_foxglove))["op"], "serverInfo");
    // Nonsense ends a connection, and what is not for here does not.
    let (mut socket, _) = open(&web);
    socket
        .send(Message::text(
            r#"{"op": "getParameters", "parameterNames": [], "id": "1"}"#,
        ))
        .unwrap();
    assert!(matches!(socket.read(), Ok(Message::Binary(_))), "time goes on");
    socket.send(Message::text("grant me a permit")).unwrap();
    let ended = std::iter::from_fn(|| Some(socket.read()))
        .take(1_000)
        .any(|read| read.is_err());
    assert!(ended);
    let layout = web.ask(&format!("GET /layout.json HTTP/1.1\nHost: {at}\n\n"));
    let body: Value = serde_json::from_str(layout.split("\r\n\r\n").nth(1).unwrap()).unwrap();
    assert!(layout.contains("attachment") && body["layout"]["first"].is_object());
    assert!(layout.contains(r#"{robot==\"scout\"}.event"#), "{layout}");
    for (arguments, says) in [
        (["watch", "--foxglove", "0.0.0.0:8765"], "ssh -L 8765:127.0.0.1:8765"),
        (["watch", "--foxglove", "--once"], "cannot be used with"),
        (["watch", "--rerun", "run.mcap"], "--rerun FILE.rrd"),
        (["watch", "--rerun", "--once"], "cannot be used with"),
    ] {
        let output = field.run(&arguments);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && said.contains(says), "{said}");
    }
}

/// What stands for Python: a script that has the lines of a shell.
fn stand_in(field: &Field, script: &str) -> PathBuf {
    use std::os::unix::fs::PermissionsExt;
    let path = field.0.join("python");
    std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

#[test]
fn rerun_gets_the_same_as_lines_and_says_what_is_missing() {
    let field = Field::new("rerun", [29_000, 29_020]);
    let (_base, _scout) = (field.node("base"), field.node("scout"));
    let run = |python: &PathBuf| {
        let mut command = field.command(&["watch", "--rerun", "run.rrd"]);
        command
            .env("COORP_PYTHON", python)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let output = command.output().unwrap();
        (
            output.status.code(),
            String::from_utf8(output.stdout).unwrap(),
            String::from_utf8(output.stderr).unwrap(),
        )
    };
    let (code, _, said) = run(&field.0.join("nowhere"));
    assert!(code == Some(2) && said.contains("COORP_PYTHON"), "{said}");
    let (code, _, said) = run(&stand_in(&field, "exit 2"));
    assert!(code == Some(2) && said.contains("-m pip install \"rerun-sdk"), "{said}");
    let (code, _, said) = run(&stand_in(&field, "exit 7"));
    assert!(code == Some(1) && said.contains("7"), "{said}");
    // It ends when the viewer is closed: here, after some lines.
    let (code, said, _) = run(&stand_in(&field, "head -n 60 > lines"));
    assert_eq!((code, said.as_str()), (Some(0), "Rerun's viewer was closed\n"));
    let lines = std::fs::read_to_string(field.0.join("lines")).unwrap();
    let mut lines = lines.lines();
    let hello: Value = serde_json::from_str(lines.next().unwrap()).unwrap();
    assert_eq!((&hello["file"], &hello["port"]), (&json!("run.rrd"), &Value::Null));
    let messages: Vec<Value> = lines
        .filter(|line| !line.is_empty())
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    std::fs::write(field.0.join("run.rrd"), "").unwrap();
    let (code, _, said) = run(&stand_in(&field, "exit 0"));
    assert!(code == Some(2) && said.contains("run.rrd exists"), "{said}");
    for robot in ROBOTS {
        let is_status = |message: &&Value| message["topic"] == "/coorp/status" && message["value"]["robot"] == robot;
        assert!(messages.iter().find(is_status).unwrap()["at_ns"].as_u64().unwrap() > 1_600_000_000_000_000_000);
    }
}
