//! Control messages of a node, compared with Zenoh's (`zenoh.rs`).

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::time::ClockId;

use crate::peer::{nanos, Ask, Peer};
use crate::team::Team;
use crate::{turns, Extent, Outcome, Row};

const SIZES: [usize; 3] = [64, 1_000, 32_000];
const PERIOD_US: u64 = 5_000;
/// Number of messages before each measured run, to wake what sleeps.
const WARM_UP: usize = 5;
/// Time limit for the arrival of the first message, and of the last.
const SOON: Duration = Duration::from_secs(20);

/// The latencies of messages, by key.
#[derive(Default)]
pub struct Times(Mutex<BTreeMap<String, Vec<u64>>>);

impl Times {
    /// Records the latency of a message that arrived.
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

/// Sends messages at a period, each beginning with its creation time.
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

/// Two processes that exchange messages.
struct Contender {
    name: &'static str,
    key: &'static str,
    /// The index of its two processes; two contenders may share a pair.
    pair: usize,
}

/// Adds a pair and the contenders that use it.
fn add(
    pairs: &mut Vec<[Peer; 2]>,
    contenders: &mut Vec<Contender>,
    pair: [Peer; 2],
    names: &[(&'static str, &'static str)],
) {
    let place = pairs.len();
    contenders.extend(names.iter().map(|(name, key)| Contender { name, key, pair: place }));
    pairs.push(pair);
}

pub fn measure(extent: &Extent) -> Outcome<Vec<Row>> {
    let team = Team::make()?;
    let (mut pairs, mut contenders) = (Vec::new(), Vec::new());
    #[cfg(feature = "zenoh")]
    {
        use crate::zenoh::{pair, CALLBACK, RECV};
        let plain = [("zenoh, callback", CALLBACK), ("zenoh, recv", RECV)];
        add(&mut pairs, &mut contenders, pair(&team, "tcp")?, &plain);
        let over_tls = [("zenoh over TLS, callback", CALLBACK)];
        add(&mut pairs, &mut contenders, pair(&team, "tls")?, &over_tls);
    }
    add(&mut pairs, &mut contenders, team.robots(None)?, &[("coorp, recv", "")]);
    let team_of_guests = Team::make()?;
    let (_agents, guests) = team_of_guests.guests()?;
    add(&mut pairs, &mut contenders, guests, &[("guests of coorp, recv", "")]);
    for [receiver, _] in &mut pairs {
        receiver.ask::<()>(&Ask::Listen)?;
    }
    for contender in &contenders {
        await_first(&mut pairs[contender.pair], contender.key)?;
    }
    let mut found: BTreeMap<(usize, usize), (Vec<u64>, usize)> = BTreeMap::new();
    for round in 0..extent.control_rounds {
        for turn in turns(contenders.len() * SIZES.len(), round) {
            let (place, size) = (turn % contenders.len(), turn / contenders.len());
            let contender = &contenders[place];
            let times = run(&mut pairs[contender.pair], contender.key, SIZES[size], extent.messages)?;
            let (all, lost) = found.entry((size, place)).or_default();
            *lost += extent.messages.saturating_sub(times.len());
            all.extend(times);
        }
    }
    let rows = found.into_iter();
    rows.map(|((size, place), (times, lost))| Row::new("control", contenders[place].name, SIZES[size], times, lost))
        .collect()
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
