//! Robots as separate processes that take commands line by line.
//!
//! Each process is this test program again, running only the ignored test `robot`. It opens a node and answers each
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
use quinn::rustls::pki_types::CertificateDer;

#[path = "../../src/quic/anybody.rs"]
mod anybody;

/// Time limit for anything that should happen at once; no test measures it.
pub const SOON: Duration = Duration::from_secs(240);

const ANSWER: &str = "answer: ";

/// A team of robots on loopback, in its own folder.
pub struct Fleet {
    pub folder: PathBuf,
    pub file: PathBuf,
    pub team: Team,
}

impl Fleet {
    /// Returns a team whose first robot leads, with `more` added to the file and with keys.
    pub fn new(robots: &[&str], more: &str) -> Fleet {
        let network = |_| format!("addresses = [\"127.0.0.1\"]\nport = {}\n", free_ports());
        Fleet::with(robots, network, more)
    }

    /// Returns the same, with two paths between any two robots.
    pub fn with_two_paths(robots: &[&str]) -> Fleet {
        let network = |_| format!("addresses = [\"127.0.0.1\", \"127.0.0.2\"]\nport = {}\n", free_ports());
        Fleet::with(robots, network, "")
    }

    /// Returns a team whose robots have to find each other, each on its own machine.
    pub fn without_addresses(robots: &[&str]) -> Fleet {
        Fleet::with(robots, |_| String::new(), "")
    }

    /// Returns the same, with only this interface.
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
        let team = coorp_node::load(&file).unwrap();
        coorp_node::keys::init(&team).unwrap();
        Fleet { folder, file, team }
    }

    /// Returns the team file on a robot's own machine (a separate folder), with its bundle installed.
    pub fn machine(&self, name: &str) -> PathBuf {
        let folder = self.folder.join(format!("machine of {name}"));
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join("team.toml");
        std::fs::copy(&self.file, &file).unwrap();
        let bundle = coorp_node::keys::bundle(&self.team, name, &folder).unwrap();
        coorp_node::keys::install(&coorp_node::load(&file).unwrap(), &bundle).unwrap();
        file
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

/// Returns the first of 16 ports that are free now, and that no other robot of this program uses.
pub fn free_ports() -> u16 {
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
    /// Returns a robot of any team file, under this policy.
    pub fn start_with(team: &Path, name: &str, policy: &str) -> Robot {
        Robot::start(team, name, policy, false)
    }

    /// Returns a robot in a network namespace.
    pub fn inside(namespace: &str, team: &Path, name: &str) -> Robot {
        let mut command = Command::new("ip");
        command
            .args(["netns", "exec", namespace])
            .arg(std::env::current_exe().unwrap());
        Robot::run(command, team, name, "coorp", false)
    }

    pub fn start(team: &Path, name: &str, policy: &str, insecure: bool) -> Robot {
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
                // The test harness also prints to this stream, even in front of a line.
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

    /// Repeats a command until this is the answer.
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

/// Runs the main loop of a robot's process.
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
    let (team, folder) = (coorp_node::load(&file).unwrap(), file.parent().unwrap());
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
                wish = (*wants == "on").then(|| node.wish_bulk().unwrap());
                "ok".to_owned()
            }
            ["wishes"] => wish.is_some().to_string(),
            ["may"] => node.may_send_bulk().unwrap().to_string(),
            ["alive"] => format!("{:?}", node.status().unwrap().alive),
            ["holders"] => format!("{:?}", node.status().unwrap().holders),
            ["leader"] => format!("{:?}", node.status().unwrap().leader),
            ["leads"] => node.status().unwrap().leads.to_string(),
            ["place"] => format!("[{}]", node.place().0),
            ["queue"] => format!("{:?}", node.status().unwrap().queue),
            ["refused"] => format!("{:?}", node.status().unwrap().refused),
            ["revoked"] => {
                let revoked = node.status().unwrap().revoked;
                format!("{} {} {}", revoked.list, revoked.certificates, revoked.rejected)
            }
            ["door", reason] => {
                let totals = node.status().unwrap().door.totals;
                let of_reason = totals.iter().find(|(of, _)| of.name() == *reason);
                of_reason.unwrap().1.to_string()
            }
            ["synchronised"] => node.status().unwrap().clock_ns.is_some().to_string(),
            _ => answer_to(&node, &words).unwrap_or_else(|| panic!("what is '{line}'?")),
        };
        println!("\n{ANSWER}{said}");
    }
}

/// Waits until all of these robots agree on which of them leads, and puts that robot first. Usually the first one up
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

/// A bare QUIC endpoint, to try to take part by hand.
pub struct Caller {
    runtime: tokio::runtime::Runtime,
    endpoint: quinn::Endpoint,
}

impl Caller {
    /// Returns a caller for links, with a robot's keys from `keys`, or none, that trusts the authority of `fleet`.
    pub fn new(fleet: &Fleet, keys: Option<(&Fleet, &str)>) -> Caller {
        Caller::with(client("coorp-control/1", fleet, keys))
    }

    /// Returns the same for bulk.
    pub fn of_bulk(fleet: &Fleet, keys: Option<(&Fleet, &str)>) -> Caller {
        Caller::with(client("coorp-bulk/1", fleet, keys))
    }

    /// Returns a caller without keys, under a name.
    pub fn claiming(name: &str) -> Caller {
        Caller::with(unsigned(name))
    }

    fn with(config: quinn::ClientConfig) -> Caller {
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

    /// Opens a link to a robot, with coordination's stream.
    pub fn link(&self, team: &Team, robot: u16) -> Option<Link<'_>> {
        let address = ([127, 0, 0, 1], team.port(RobotId(robot)) + 2).into();
        self.runtime.block_on(async {
            let connecting = self.endpoint.connect(address, "robot.coorp.internal").unwrap();
            let connection = tokio::time::timeout(SOON, connecting).await.unwrap().ok()?;
            let opened = tokio::time::timeout(SOON, connection.open_bi()).await.unwrap();
            let (send, receive) = opened.ok()?;
            Some(Link {
                runtime: &self.runtime,
                connection,
                send,
                receive,
            })
        })
    }

    /// Returns whether a robot refuses this caller at one of its ports.
    pub fn is_refused(&self, team: &Team, robot: u16, port: u16) -> bool {
        let address = ([127, 0, 0, 1], team.port(RobotId(robot)) + port).into();
        self.runtime.block_on(async {
            match self.endpoint.connect(address, "robot.coorp.internal").unwrap().await {
                Ok(connection) => {
                    let closed = tokio::time::timeout(Duration::from_secs(1), connection.closed());
                    closed.await.is_ok()
                }
                Err(_) => true,
            }
        })
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

    /// Sends a robot a control message: as a datagram, or over a stream. The caller does not learn whether it arrived.
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
            // Wait until it has left, or was refused.
            let _ = tokio::time::timeout(Duration::from_millis(100), connection.closed()).await;
        });
    }
}

/// A link over which the test sends and reads frames directly.
pub struct Link<'c> {
    runtime: &'c tokio::runtime::Runtime,
    connection: quinn::Connection,
    send: quinn::SendStream,
    receive: quinn::RecvStream,
}

impl Link<'_> {
    /// Sends a frame. Returns whether the link takes it.
    pub fn say<F: wire::Frame>(&mut self, frame: &F) -> bool {
        self.write(&wire::prefixed(frame))
    }

    /// Sends bytes as they are.
    pub fn write(&mut self, bytes: &[u8]) -> bool {
        self.runtime.block_on(self.send.write_all(bytes)).is_ok()
    }

    /// Sends an empty announcement, which makes the caller present.
    pub fn hello(&mut self, incarnation: u32) {
        let hello = wire::Hello {
            incarnation,
            ..wire::Hello::default()
        };
        self.say(&hello);
    }

    /// Returns the next frame within a while; `None` if none comes or the link has ended.
    pub fn hear(&mut self, within: Duration) -> Option<Vec<u8>> {
        let read = async {
            let mut length = [0; wire::PREFIX_BYTES];
            self.receive.read_exact(&mut length).await.ok()?;
            let mut frame = vec![0; u32::from_le_bytes(length) as usize];
            self.receive.read_exact(&mut frame).await.ok()?;
            Some(frame)
        };
        self.runtime
            .block_on(async { tokio::time::timeout(within, read).await })
            .ok()?
    }

    /// Reads messages until `find` finds something in one.
    pub fn hear_until<T>(&mut self, find: impl Fn(failover::Message) -> Option<T>) -> T {
        let began = Instant::now();
        while began.elapsed() < SOON {
            let message = self.hear(SOON).map(|frame| wire::decode::<Message>(&frame));
            if let Some(Ok(Message::Coordination(message))) = message {
                if let Some(found) = find(message) {
                    return found;
                }
            }
        }
        panic!("no such message arrived");
    }

    /// Returns the leadership of the beats that reach this link.
    pub fn epoch(&mut self) -> Epoch {
        self.hear_until(|message| match message {
            failover::Message::Beat { epoch, .. } => Some(epoch),
            _ => None,
        })
    }

    /// Returns whether the other end has closed the link, within a while.
    pub fn is_closed(&self, within: Duration) -> bool {
        let closed = async { tokio::time::timeout(within, self.connection.closed()).await.is_ok() };
        self.runtime.block_on(closed)
    }
}

/// Returns the configuration of a client that claims a name, and accepts any robot under any name.
fn unsigned(name: &str) -> quinn::ClientConfig {
    use quinn::rustls::pki_types::PrivatePkcs8KeyDer;
    use quinn::rustls::{crypto::ring, ClientConfig};

    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::default();
    params.distinguished_name.push(rcgen::DnType::CommonName, name);
    let certificate = params.self_signed(&key).unwrap();
    let provider = std::sync::Arc::new(ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(std::sync::Arc::new(anybody::Anybody(provider)));
    let key = PrivatePkcs8KeyDer::from(key.serialize_der()).into();
    let mut config = config
        .with_client_auth_cert(vec![certificate.der().clone()], key)
        .unwrap();
    config.alpn_protocols = vec![b"coorp-control/1".to_vec()];
    let config = quinn::crypto::rustls::QuicClientConfig::try_from(config).unwrap();
    quinn::ClientConfig::new(std::sync::Arc::new(config))
}

/// Returns the configuration of a bare QUIC client of a protocol.
pub fn client(protocol: &str, fleet: &Fleet, keys: Option<(&Fleet, &str)>) -> quinn::ClientConfig {
    use quinn::rustls::pki_types::{pem::PemObject, PrivateKeyDer};
    use quinn::rustls::{crypto::ring, ClientConfig, RootCertStore};

    let mut roots = RootCertStore::empty();
    let certificates = |file: PathBuf| -> Vec<CertificateDer<'static>> {
        let read = CertificateDer::pem_file_iter(file).unwrap();
        read.map(Result::unwrap).collect()
    };
    roots.add_parsable_certificates(certificates(fleet.team.live.keys.join("ca.pem")));
    let config = ClientConfig::builder_with_provider(std::sync::Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let mut config = match keys {
        None => config.with_no_client_auth(),
        Some((keys, name)) => {
            let folder = keys.team.live.keys.join("robots");
            let chain = certificates(folder.join(format!("{name}.pem")));
            let key = PrivateKeyDer::from_pem_file(folder.join(format!("{name}.key"))).unwrap();
            config.with_client_auth_cert(chain, key).unwrap()
        }
    };
    config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
    let config = quinn::crypto::rustls::QuicClientConfig::try_from(config).unwrap();
    quinn::ClientConfig::new(std::sync::Arc::new(config))
}
