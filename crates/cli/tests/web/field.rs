//! Two robots, `coorp watch` beside them, and what they record.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

use coorp_core::policy::Policy;
use coorp_node::{Node, Options};
use serde_json::Value;
use tungstenite::protocol::Role;
use tungstenite::{Message, WebSocket};

/// Limit on every wait; no test measures it.
pub const LONG: Duration = Duration::from_secs(60);
/// RFC 6455's example.
pub const UPGRADE: &str = "Upgrade: websocket\nConnection: Upgrade\nSec-WebSocket-Version: 13\n\
                           Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==";
pub const ROBOTS: [&str; 2] = ["base", "scout"];
/// How far a time on the page may be from the robot's own, apart from the error of its clock: rounding, twice.
pub const ROUNDED_MS: f64 = 0.01;

pub struct Field(pub PathBuf);

impl Field {
    pub fn new(name: &str, ports: [u16; 2]) -> Field {
        let folder = std::env::temp_dir().join(format!("coorp-web-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        let robot = |place: usize| {
            let (name, port) = (ROBOTS[place], ports[place]);
            format!("[[robot]]\nname = \"{name}\"\naddresses = [\"127.0.0.1\"]\nport = {port}\n")
        };
        let team = format!("{}leader = true\n{}", robot(0), robot(1));
        std::fs::write(folder.join("team.toml"), team).unwrap();
        let field = Field(folder);
        assert!(field.run(&["keys", "init"]).status.success());
        field
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_coorp"));
        command.args(arguments).current_dir(&self.0);
        command
    }

    pub fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    pub fn node(&self, robot: &str) -> Node {
        let options = Options {
            team: coorp_team::load(&self.0.join("team.toml")).unwrap(),
            state: Some(self.0.join("state").join(robot)),
            robot: robot.to_owned(),
            policy: Policy::named("coorp").unwrap(),
            insecure: false,
        };
        Node::open(options).unwrap()
    }

    pub fn web(&self) -> Web {
        self.watch(&["--web", "0"]).remove(0)
    }

    /// `coorp watch`, and where each outlet is.
    pub fn watch(&self, outlets: &[&str]) -> Vec<Web> {
        let mut child = self
            .command(&["watch"])
            .args(outlets)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(child.stdout.take().unwrap());
        let child = Arc::new(Ended(child));
        let count = outlets.iter().filter(|outlet| outlet.starts_with("--")).count();
        let each = (0..count).map(|_| {
            let mut line = String::new();
            said.read_line(&mut line).unwrap();
            let at = line.split("://").nth(1).and_then(|rest| rest.split([' ', '\n']).next());
            Web {
                at: at.unwrap_or_else(|| panic!("no address: {line}")).to_owned(),
                _child: child.clone(),
            }
        });
        each.collect()
    }
}

impl Drop for Field {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// What `coorp watch` serves, until all of it is dropped.
pub struct Web {
    pub at: String,
    _child: Arc<Ended>,
}

struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Web {
    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.at).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        stream
    }

    /// The whole answer to a request; empty if there is none.
    pub fn ask(&self, request: &str) -> String {
        let mut stream = self.connect();
        stream.write_all(request.replace('\n', "\r\n").as_bytes()).unwrap();
        let mut answer = Vec::new();
        // A connection that is reset ends like any other.
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8(answer).unwrap()
    }

    /// The page's WebSocket, as a browser opens it.
    pub fn view(&self) -> WebSocket<TcpStream> {
        let at = &self.at;
        self.open(&format!("GET /live HTTP/1.1\nHost: {at}\nOrigin: http://{at}\n"))
    }

    /// A WebSocket, opened by a request that begins like this.
    pub fn open(&self, request: &str) -> WebSocket<TcpStream> {
        let mut stream = self.connect();
        let request = format!("{request}{UPGRADE}\n\n").replace('\n', "\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            head.push(byte[0]);
        }
        let head = String::from_utf8(head).unwrap();
        assert!(
            head.starts_with("HTTP/1.1 101 ") && head.contains("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="),
            "{head}"
        );
        WebSocket::from_raw_socket(stream, Role::Client, None)
    }
}

pub fn json<S: Read + Write>(socket: &mut WebSocket<S>) -> Value {
    match socket.read().unwrap() {
        Message::Text(text) => serde_json::from_str(text.as_str()).unwrap(),
        other => panic!("{other:?}"),
    }
}

/// What moves between two robots, until it is told to end.
pub struct Traffic<'t> {
    ends: &'t AtomicBool,
    is_over: &'t dyn Fn() -> bool,
}

impl Traffic<'_> {
    /// No more begins.
    pub fn end(&self) {
        self.ends.store(true, Ordering::Release);
    }

    /// The last bulk is there.
    pub fn is_over(&self) -> bool {
        (self.is_over)()
    }
}

/// The scout publishes poses and sends bulk to the base while this runs; it has to end the traffic. A status counts it as long
/// as what is returned is kept.
pub fn drive(base: &Node, scout: &Node, run: impl FnOnce(&Traffic)) -> Box<dyn std::any::Any> {
    let poses = base.control_subscriber("pose").unwrap();
    let bulk = base.bulk_receiver().unwrap();
    let ends = AtomicBool::new(false);
    let period = coorp_core::Duration::from_millis(10);
    let pose = scout.control_publisher("pose", Some(period)).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ends.load(Ordering::Acquire) {
                pose.put(b"pose").unwrap();
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        scope.spawn(|| while poses.recv(Some(Duration::from_secs(2))).is_some() {});
        let sending = scope.spawn(|| {
            while !ends.load(Ordering::Acquire) {
                let mut stream = scout.bulk_stream("base", "map").unwrap();
                stream.write(&vec![7; 4_000_000]).unwrap();
                let delivery = stream.finish().unwrap();
                assert!(bulk.recv(Some(LONG)).is_some());
                delivery.wait().unwrap();
            }
        });
        run(&Traffic {
            ends: &ends,
            is_over: &|| sending.is_finished(),
        });
    });
    Box::new((poses, bulk, pose))
}

/// A recording's messages by topic: Unix time in nanoseconds, and the message.
pub fn recorded(path: &Path) -> BTreeMap<String, Vec<(u64, Value)>> {
    let bytes = std::fs::read(path).unwrap();
    let mut topics = BTreeMap::<_, Vec<_>>::new();
    for message in mcap::MessageStream::new(&bytes).unwrap() {
        let message = message.unwrap();
        let value = serde_json::from_slice(&message.data).unwrap();
        let topic = topics.entry(message.channel.topic.clone()).or_default();
        topic.push((message.log_time, value));
    }
    topics
}

/// The times of what a recording has of a kind.
pub fn times(recording: &BTreeMap<String, Vec<(u64, Value)>>, topic: &str, is: impl Fn(&Value) -> bool) -> Vec<u64> {
    let messages = recording.get(topic).into_iter().flatten();
    messages.filter(|(_, value)| is(value)).map(|(at, _)| *at).collect()
}
