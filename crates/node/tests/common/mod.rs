//! Robots as separate processes that take commands line by line.
//!
//! Such a process is this test program again, running only the ignored test `robot`. It opens a node and answers each
//! line that it reads with one line.

#![allow(dead_code)] // each test program uses its part

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::mpsc::{channel, Receiver};
use std::time::{Duration, Instant};

use coorp_core::failover::{self, Epoch};
use coorp_core::policy::Policy;
use coorp_core::robot::Message;
use coorp_core::RobotId;
use coorp_node::wire;
use coorp_node::{Node, Options};
use coorp_team::Team;
use serde_json::{json, Value};
use zenoh::{Session, Wait};

/// How long anything may take that should happen at once; no test measures it.
pub const SOON: Duration = Duration::from_secs(240);

const ANSWER: &str = "answer: ";

/// A team of robots on loopback, in a folder of its own.
pub struct Fleet {
    pub folder: PathBuf,
    pub file: PathBuf,
    pub team: Team,
}

impl Fleet {
    /// A team whose first robot leads, with `more` added to the file and with keys.
    pub fn new(robots: &[&str], more: &str) -> Fleet {
        let network = |_| format!("addresses = [\"127.0.0.1\"]\nport = {}\n", free_ports());
        Fleet::with(robots, network, more)
    }

    /// The same, with two paths between any two robots.
    pub fn with_two_paths(robots: &[&str]) -> Fleet {
        let network = |_| format!("addresses = [\"127.0.0.1\", \"127.0.0.2\"]\nport = {}\n", free_ports());
        Fleet::with(robots, network, "")
    }

    /// A team whose robots have to find each other, on machines of their own.
    pub fn without_addresses(robots: &[&str]) -> Fleet {
        Fleet::with(robots, |_| String::new(), "")
    }

    /// The same, over this interface alone.
    pub fn over(robots: &[&str], interface: &str) -> Fleet {
        Fleet::with(robots, |_| format!("interfaces = [\"{interface}\"]\n"), "")
    }

    fn with(robots: &[&str], network: impl Fn(usize) -> String, more: &str) -> Fleet {
        static NEXT: AtomicU16 = AtomicU16::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("coorp-node-{}-{number}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        let mut text = String::new();
        for (place, name) in robots.iter().enumerate() {
            text += &format!(
                "[[robot]]\nname = \"{name}\"\nleader = {}\n{}",
                place == 0,
                network(place)
            );
        }
        let file = folder.join("team.toml");
        std::fs::write(&file, text + more).unwrap();
        let team = coorp_team::load(&file).unwrap();
        coorp_node::keys::init(&team).unwrap();
        Fleet { folder, file, team }
    }

    pub fn robot(&self, name: &str) -> Robot {
        Robot::start(&self.file, name, "coorp", false)
    }

    pub fn insecure(&self, name: &str) -> Robot {
        Robot::start(&self.file, name, "coorp", true)
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// The first of 16 ports that are free now, and that no other robot of this program uses.
fn free_ports() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    loop {
        let block = NEXT.fetch_add(1, Ordering::Relaxed);
        let base = 20_000 + (std::process::id() as u16 % 64) * 512 % 8_192 + block * 16;
        let free =
            |port| TcpListener::bind(("127.0.0.1", port)).is_ok() && UdpSocket::bind(("127.0.0.1", port)).is_ok();
        if (base..base + 16).all(free) {
            return base;
        }
    }
}

/// A robot in its own process. It is killed when dropped.
pub struct Robot {
    pub name: String,
    child: Child,
    input: ChildStdin,
    answers: Receiver<String>,
}

impl Robot {
    /// A robot of any team file, under this policy.
    pub fn start_with(team: &Path, name: &str, policy: &str) -> Robot {
        Robot::start(team, name, policy, false)
    }

    /// A robot in a network namespace.
    pub fn inside(namespace: &str, team: &Path, name: &str) -> Robot {
        let mut command = Command::new("ip");
        command
            .args(["netns", "exec", namespace])
            .arg(std::env::current_exe().unwrap());
        Robot::run(command, team, name, "coorp", false)
    }

    fn start(team: &Path, name: &str, policy: &str, insecure: bool) -> Robot {
        Robot::run(
            Command::new(std::env::current_exe().unwrap()),
            team,
            name,
            policy,
            insecure,
        )
    }

    fn run(mut command: Command, team: &Path, name: &str, policy: &str, insecure: bool) -> Robot {
        let mut child = command
            .args(["--exact", "robot", "--ignored", "--nocapture", "--test-threads=1"])
            .env("COORP_TEST_TEAM", team)
            .env("COORP_TEST_ROBOT", name)
            .env("COORP_TEST_POLICY", policy)
            .env("COORP_TEST_INSECURE", if insecure { "1" } else { "" })
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (sender, answers) = channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                // The test harness also prints on this stream, even in front of a line.
                if let Some((_, answer)) = line.split_once(ANSWER) {
                    let _ = sender.send(answer.to_owned());
                }
            }
        });
        let robot = Robot {
            name: name.to_owned(),
            child,
            input,
            answers,
        };
        assert_eq!(
            robot.answers.recv_timeout(SOON).as_deref(),
            Ok("up"),
            "{name} does not come up"
        );
        robot
    }

    /// Sends it a command, and returns its answer.
    pub fn say(&mut self, line: &str) -> String {
        writeln!(self.input, "{line}").unwrap();
        let answer = self.answers.recv_timeout(SOON);
        answer.unwrap_or_else(|_| panic!("{} does not answer to '{line}'", self.name))
    }

    /// Repeats a command until the answer is this one.
    pub fn until(&mut self, line: &str, answer: &str) {
        let (began, mut said) = (Instant::now(), String::new());
        while began.elapsed() < SOON {
            said = self.say(line);
            if said == answer {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("{} answers '{said}' to '{line}', not '{answer}'", self.name);
    }

    /// Like `kill -9`.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Robot {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The main loop of a robot's process.
pub fn be_a_robot(answer_to: impl Fn(&Node, &[&str]) -> Option<String>) {
    let Ok(robot) = std::env::var("COORP_TEST_ROBOT") else {
        return;
    };
    // RUST_LOG shows what the robots do.
    let filter = tracing_subscriber::EnvFilter::from_default_env();
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .init();
    let file = PathBuf::from(std::env::var("COORP_TEST_TEAM").unwrap());
    let (team, folder) = (coorp_team::load(&file).unwrap(), file.parent().unwrap());
    let node = Node::open(Options {
        team,
        policy: Policy::named(&std::env::var("COORP_TEST_POLICY").unwrap()).unwrap(),
        insecure: std::env::var("COORP_TEST_INSECURE").is_ok_and(|insecure| !insecure.is_empty()),
        state: Some(folder.join("state").join(coorp_node::file_name(&robot))),
        robot,
    });
    let node = node.unwrap();
    let mut wish = None;
    println!("\n{ANSWER}up");
    for line in std::io::stdin().lines().map_while(Result::ok) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let said = match words.as_slice() {
            ["bulk", wants] => {
                wish = (*wants == "on").then(|| node.wish_bulk());
                "ok".to_owned()
            }
            ["wishes"] => wish.is_some().to_string(),
            ["may"] => node.may_send_bulk().to_string(),
            ["alive"] => format!("{:?}", node.status().alive),
            ["holders"] => format!("{:?}", node.status().holders),
            ["leader"] => format!("{:?}", node.status().leader),
            ["leads"] => node.status().leads.to_string(),
            ["place"] => format!("[{}]", node.place().0),
            ["queue"] => format!("{:?}", node.status().queue),
            ["refused"] => format!("{:?}", node.status().refused),
            ["synchronised"] => node.status().clock_ns.is_some().to_string(),
            _ => answer_to(&node, &words).unwrap_or_else(|| panic!("what is '{line}'?")),
        };
        println!("\n{ANSWER}{said}");
    }
}

/// Waits until all of these robots agree on which of them leads, and puts that one first. Mostly the first one up
/// leads, but on a busy machine any may.
pub fn agreed(mut robots: Vec<Robot>) -> Vec<Robot> {
    let mut place = None;
    until(|| {
        let said: Vec<String> = robots.iter_mut().map(|robot| robot.say("leader")).collect();
        let leading: Vec<bool> = robots.iter_mut().map(|robot| robot.say("leads") == "true").collect();
        place = leading.iter().position(|leads| *leads);
        said[0] != "None" && said.iter().all(|leader| *leader == said[0]) && place.is_some()
    });
    robots.rotate_left(place.unwrap());
    robots
}

/// Repeats something until it succeeds.
pub fn until(mut so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !so() {
        assert!(began.elapsed() < SOON, "it does not come to pass");
    }
}

/// A stranger's session to a robot's coordination port, with these keys.
pub fn session(team: &Team, robot: u16, place: u16, protocol: &str, tls: Value) -> Session {
    let port = team.port(RobotId(robot)) + place;
    let config = json!({
        "mode": "peer",
        "listen": { "endpoints": [] },
        "connect": {
            "endpoints": [format!("{protocol}/127.0.0.1:{port}")],
            "timeout_ms": -1,
            "exit_on_failure": false,
        },
        "scouting": { "multicast": { "enabled": false } },
        "transport": { "link": { "tls": tls } },
    });
    let config = zenoh::Config::from_json5(&config.to_string()).unwrap();
    zenoh::open(config).wait().unwrap()
}

/// The configuration of a link with a robot's keys from `keys`.
pub fn tls(fleet: &Fleet, keys: &Fleet, name: &str) -> Value {
    let (mine, trusted) = (&keys.team.live.keys, &fleet.team.live.keys);
    json!({
        "enable_mtls": true,
        "verify_name_on_connect": false,
        "root_ca_certificate": trusted.join("ca.pem"),
        "connect_private_key": mine.join(format!("robots/{name}.key")),
        "connect_certificate": mine.join(format!("robots/{name}.pem")),
    })
}

/// The leadership messages that a session receives.
pub fn epoch(session: &Session) -> Epoch {
    let beats = session.declare_subscriber("coorp/team/lead-all/*").wait().unwrap();
    let began = Instant::now();
    while began.elapsed() < SOON {
        if let Ok(Some(sample)) = beats.recv_timeout(Duration::from_millis(100)) {
            let said = wire::decode(&sample.payload().to_bytes());
            if let Ok(Message::Coordination(failover::Message::Beat { epoch, .. })) = said {
                return epoch;
            }
        }
    }
    panic!("nobody leads");
}

/// A stranger that tries to take part in control: a bare QUIC endpoint.
pub struct Caller {
    runtime: tokio::runtime::Runtime,
    endpoint: quinn::Endpoint,
}

impl Caller {
    /// With a robot's keys from `keys`, or none, and trust in the authority of `fleet`; for control.
    pub fn new(fleet: &Fleet, keys: Option<(&Fleet, &str)>) -> Caller {
        Caller::of("coorp-control/1", fleet, keys)
    }

    /// The same for bulk.
    pub fn of_bulk(fleet: &Fleet, keys: Option<(&Fleet, &str)>) -> Caller {
        Caller::of("coorp-bulk/1", fleet, keys)
    }

    fn of(protocol: &str, fleet: &Fleet, keys: Option<(&Fleet, &str)>) -> Caller {
        let config = client(protocol, fleet, keys);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let entered = runtime.enter();
        let mut endpoint = quinn::Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
        endpoint.set_default_client_config(config);
        drop(entered);
        Caller { runtime, endpoint }
    }

    /// Sends a robot a bulk message; returns its answer.
    pub fn offer(&self, team: &Team, robot: u16, message: &[u8]) -> Vec<u8> {
        let address = ([127, 0, 0, 1], team.port(RobotId(robot)) + 1).into();
        self.runtime.block_on(async {
            let connecting = self.endpoint.connect(address, "robot.coorp.internal").unwrap();
            let connection = connecting.await.unwrap();
            let (mut send, mut receive) = connection.open_bi().await.unwrap();
            send.write_all(message).await.unwrap();
            let _ = send.finish();
            let answer = tokio::time::timeout(SOON, receive.read_to_end(4_096)).await.unwrap();
            connection.close(0u8.into(), b"");
            answer.unwrap_or_default()
        })
    }

    /// Sends a robot a control message: as a datagram, or over a stream. Whether it arrived is not known.
    pub fn say(&self, team: &Team, robot: u16, message: &[u8], over_stream: bool) {
        let port = team.port(RobotId(robot)) + 2;
        let address = ([127, 0, 0, 1], port).into();
        self.runtime.block_on(async {
            let Ok(connection) = self.endpoint.connect(address, "robot.coorp.internal").unwrap().await else {
                return;
            };
            if over_stream {
                let Ok(mut stream) = connection.open_uni().await else {
                    return;
                };
                let _ = stream.write_all(message).await;
                let _ = stream.finish();
                let _ = stream.stopped().await;
            } else {
                let _ = connection.send_datagram(message.to_vec().into());
            }
            // Until it has gone, or been refused.
            let _ = tokio::time::timeout(Duration::from_millis(100), connection.closed()).await;
        });
    }
}

/// The configuration of a bare QUIC client of a protocol.
pub fn client(protocol: &str, fleet: &Fleet, keys: Option<(&Fleet, &str)>) -> quinn::ClientConfig {
    use quinn::rustls::pki_types::{pem::PemObject, CertificateDer, PrivateKeyDer};
    use quinn::rustls::{crypto::ring, ClientConfig, RootCertStore};

    let mut roots = RootCertStore::empty();
    let authority = CertificateDer::from_pem_file(fleet.team.live.keys.join("ca.pem"));
    roots.add(authority.unwrap()).unwrap();
    let config = ClientConfig::builder_with_provider(std::sync::Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let mut config = match keys {
        None => config.with_no_client_auth(),
        Some((keys, name)) => {
            let folder = keys.team.live.keys.join("robots");
            let chain = CertificateDer::from_pem_file(folder.join(format!("{name}.pem"))).unwrap();
            let key = PrivateKeyDer::from_pem_file(folder.join(format!("{name}.key"))).unwrap();
            config.with_client_auth_cert(vec![chain], key).unwrap()
        }
    };
    config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
    let config = quinn::crypto::rustls::QuicClientConfig::try_from(config).unwrap();
    quinn::ClientConfig::new(std::sync::Arc::new(config))
}
