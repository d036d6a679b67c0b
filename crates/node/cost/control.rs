//! Control messages: a node beside Zenoh used plainly.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use coorp_node::keys::Identity;
use rustix::time::ClockId;
use serde_json::{json, Value};
use zenoh::{Config, Session, Wait};

use crate::peer::{nanos, Ask, Obey, Peer, Role};
use crate::team::{free_ports, Team};
use crate::{turns, Extent, Outcome, Row};

const SIZES: [usize; 3] = [64, 1_000, 32_000];
const PERIOD_US: u64 = 5_000;
/// Before each measured run: what was asleep is awake.
const WARM_UP: usize = 5;
/// How long the first message may take to arrive, and the last.
const SOON: Duration = Duration::from_secs(20);
/// Keys of plain Zenoh's messages, by how they are received.
const CALLBACK: &str = "cost/callback";
const RECV: &str = "cost/recv";

/// How long messages took, by their key.
#[derive(Default)]
pub struct Times(Mutex<BTreeMap<String, Vec<u64>>>);

impl Times {
    /// A message came.
    pub fn note(&self, key: &str, message: &[u8]) {
        let now = nanos(ClockId::Monotonic);
        let Some(Ok(made)) = message.get(..8).map(TryInto::try_into) else {
            return;
        };
        let mut times = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let took = now.saturating_sub(u64::from_le_bytes(made));
        times.entry(key.to_owned()).or_default().push(took);
    }

    pub fn take(&self, key: &str) -> Vec<u64> {
        let mut times = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        times.remove(key).unwrap_or_default()
    }
}

/// Sends messages at a period, each with the time of its making at its head.
pub fn send(bytes: usize, count: usize, period_us: u64, put: impl Fn(&[u8]) -> Outcome<()>) -> Outcome<()> {
    let mut message = vec![0; bytes.max(8)];
    let mut due = Instant::now();
    for _ in 0..count {
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        message[..8].copy_from_slice(&nanos(ClockId::Monotonic).to_le_bytes());
        put(&message)?;
        due += Duration::from_micros(period_us);
    }
    Ok(())
}

/// A session of Zenoh, with its own defaults but for where it listens and connects.
pub struct Zenoh {
    session: Session,
    times: Arc<Times>,
}

impl Zenoh {
    pub fn open(config: &str) -> Outcome<Zenoh> {
        Ok(Zenoh {
            session: zenoh::open(Config::from_json5(config)?).wait()?,
            times: Arc::default(),
        })
    }

    fn listen(&self) -> Outcome<()> {
        let times = self.times.clone();
        let callback = self.session.declare_subscriber(CALLBACK);
        let callback = callback.callback(move |sample| times.note(CALLBACK, &sample.payload().to_bytes()));
        callback.background().wait()?;
        let (subscriber, times) = (self.session.declare_subscriber(RECV).wait()?, self.times.clone());
        std::thread::spawn(move || {
            while let Ok(sample) = subscriber.recv() {
                times.note(RECV, &sample.payload().to_bytes());
            }
        });
        Ok(())
    }
}

impl Obey for Zenoh {
    fn obey(&mut self, ask: Ask) -> Outcome<Value> {
        Ok(match ask {
            Ask::Listen => json!(self.listen()?),
            Ask::Send {
                key,
                bytes,
                count,
                period_us,
            } => {
                let publisher = self.session.declare_publisher(key).wait()?;
                json!(send(bytes, count, period_us, |message| publisher.put(message).wait())?)
            }
            Ask::Collect { key } => json!(self.times.take(&key)),
            _ => return Err("Zenoh alone does control".into()),
        })
    }
}

/// Two processes between which messages go.
struct Contender {
    name: &'static str,
    key: &'static str,
    /// Of the processes below; two contenders may share theirs.
    pair: usize,
}

const CONTENDERS: [Contender; 5] = [
    Contender {
        name: "zenoh, callback",
        key: CALLBACK,
        pair: 0,
    },
    Contender {
        name: "zenoh, recv",
        key: RECV,
        pair: 0,
    },
    Contender {
        name: "zenoh over TLS, callback",
        key: CALLBACK,
        pair: 1,
    },
    Contender {
        name: "coorp, recv",
        key: "",
        pair: 2,
    },
    Contender {
        name: "guests of coorp, recv",
        key: "",
        pair: 3,
    },
];

pub fn measure(extent: &Extent) -> Outcome<Vec<Row>> {
    let team = Team::make()?;
    let mut pairs = Vec::new();
    for protocol in ["tcp", "tls"] {
        pairs.push(zenoh_pair(&team, protocol)?);
    }
    pairs.push(team.robots(None)?);
    let team_of_guests = Team::make()?;
    let (_agents, guests) = team_of_guests.guests()?;
    pairs.push(guests);
    for [receiver, _] in &mut pairs {
        receiver.ask::<()>(&Ask::Listen)?;
    }
    for contender in &CONTENDERS {
        await_first(&mut pairs[contender.pair], contender.key)?;
    }
    let mut found: BTreeMap<(usize, usize), (Vec<u64>, usize)> = BTreeMap::new();
    for round in 0..extent.control_rounds {
        for turn in turns(CONTENDERS.len() * SIZES.len(), round) {
            let (place, size) = (turn % CONTENDERS.len(), turn / CONTENDERS.len());
            let contender = &CONTENDERS[place];
            let times = run(&mut pairs[contender.pair], contender.key, SIZES[size], extent.messages)?;
            let (all, lost) = found.entry((size, place)).or_default();
            *lost += extent.messages.saturating_sub(times.len());
            all.extend(times);
        }
    }
    let rows = found.into_iter();
    rows.map(|((size, place), (times, lost))| Row::new("control", CONTENDERS[place].name, SIZES[size], times, lost))
        .collect()
}

fn zenoh_pair(team: &Team, protocol: &str) -> Outcome<[Peer; 2]> {
    let endpoint = format!("{protocol}/127.0.0.1:{}", free_ports(1)?);
    let start = |name: &str, listen: &[&str], connect: &[&str]| {
        let mut config = json!({
            "mode": "peer",
            "listen": { "endpoints": listen },
            "connect": { "endpoints": connect },
            // Or the pairs would find each other.
            "scouting": { "multicast": { "enabled": false } },
        });
        if protocol != "tcp" {
            let identity = Identity::of(&team.team, name)?;
            config["transport"]["link"]["tls"] = json!({
                "enable_mtls": true,
                "verify_name_on_connect": false,
                "root_ca_certificate": identity.authority,
                "listen_private_key": identity.key,
                "listen_certificate": identity.certificate,
                "connect_private_key": identity.key,
                "connect_certificate": identity.certificate,
            });
        }
        let config = config.to_string();
        Peer::start(&Role::Zenoh { config })
    };
    Ok([start("one", &[&endpoint], &[])?, start("two", &[], &[&endpoint])?])
}

/// Sends until something arrives.
fn await_first([receiver, sender]: &mut [Peer; 2], key: &str) -> Outcome<()> {
    let began = Instant::now();
    while began.elapsed() < SOON {
        sender.ask::<()>(&sends(key, SIZES[0], 1))?;
        std::thread::sleep(Duration::from_millis(20));
        if !collect(receiver, key)?.is_empty() {
            return Ok(());
        }
    }
    Err("no message arrives".into())
}

fn run([receiver, sender]: &mut [Peer; 2], key: &str, bytes: usize, count: usize) -> Outcome<Vec<u64>> {
    sender.ask::<()>(&sends(key, bytes, WARM_UP + count))?;
    let (began, mut times) = (Instant::now(), Vec::new());
    while times.len() < WARM_UP + count && began.elapsed() < Duration::from_millis(500) {
        times.extend(collect(receiver, key)?);
    }
    Ok(times.split_off(WARM_UP.min(times.len())))
}

fn sends(key: &str, bytes: usize, count: usize) -> Ask {
    Ask::Send {
        key: key.to_owned(),
        bytes,
        count,
        period_us: PERIOD_US,
    }
}

fn collect(receiver: &mut Peer, key: &str) -> Outcome<Vec<u64>> {
    receiver.ask(&Ask::Collect { key: key.to_owned() })
}
