//! A robot that sends control periodically and bulk all the time, and a leader that reports what arrived and when.
//!
//!     sudo coorp emu team.toml -- target/release/examples/control 500 60 16000000
//!
//! The numbers are the period in milliseconds, the duration in seconds, and the size in bytes of the bulk messages,
//! which follow one another; 0 means no bulk. The leader prints one line of JSON: each control message's arrival
//! (seconds since its program began) and path, and, once a second, the number of bulk bytes that it has.
//! `studies/dupcon.py` reads it.

use std::error::Error;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

use coorp_core::policy::Policy;
use coorp_node::{Node, Options};
use serde_json::json;

fn main() -> Result<(), Box<dyn Error>> {
    let began = Instant::now();
    let numbers: Vec<u64> = std::env::args()
        .skip(1)
        .map(|text| text.parse())
        .collect::<Result<_, _>>()?;
    let [period_ms, seconds, bulk_bytes] = numbers.try_into().map_err(|_| "control PERIOD_MS SECONDS BULK_BYTES")?;
    let file = PathBuf::from(std::env::var("COORP_TEAM")?);
    let (robot, leader) = (std::env::var("COORP_ROBOT")?, std::env::var("COORP_LEADER")?);
    let state = file.with_extension("state").join(&robot);
    let node = Node::open(Options {
        team: coorp_team::load(&file)?,
        robot: robot.clone(),
        policy: Policy::named("coorp").ok_or("no such policy")?,
        insecure: false,
        state: Some(state),
    })?;
    let end = began + Duration::from_secs(seconds);
    if robot == leader {
        println!("{}", receive(&node, began, end)?);
    } else {
        std::thread::scope(|scope| {
            scope.spawn(|| send_bulk(&node, &leader, bulk_bytes, end));
            send_control(&node, Duration::from_millis(period_ms), end)
        })?;
    }
    Ok(())
}

fn send_control(node: &Node, period: Duration, end: Instant) -> Result<(), coorp_node::Error> {
    let predicted = coorp_core::Duration::from_nanos(period.as_nanos() as u64);
    let commands = node.control_publisher("command", Some(predicted))?;
    let mut due = Instant::now();
    while due < end {
        sleep(due.saturating_duration_since(Instant::now()));
        commands.put(&[0; 64])?;
        due += period;
    }
    Ok(())
}

/// Sends one message after another. A message that has not arrived at the end never does.
fn send_bulk(node: &Node, leader: &str, bytes: u64, end: Instant) {
    while bytes > 0 && Instant::now() < end {
        let sent = node.bulk_stream(leader, "video").and_then(|mut stream| {
            stream.write(&vec![7; bytes as usize])?;
            Ok(stream.finish()?)
        });
        let Ok(delivery) = sent else { return };
        let waiting = std::thread::spawn(move || delivery.wait());
        while !waiting.is_finished() && Instant::now() < end {
            sleep(Duration::from_millis(5));
        }
    }
}

fn receive(node: &Node, began: Instant, end: Instant) -> Result<serde_json::Value, Box<dyn Error>> {
    let commands = node.control_subscriber("command")?;
    let mut arrivals = Vec::new();
    std::thread::scope(|scope| {
        // On another thread, because taking a message from the disk takes longer than control may wait.
        let bytes = scope.spawn(|| receive_bulk(node, began, end).map_err(|error| error.to_string()));
        while Instant::now() < end {
            if let Some(message) = commands.recv(Some(Duration::from_millis(100))) {
                arrivals.push((began.elapsed().as_secs_f64(), message.path));
            }
        }
        let bytes = bytes.join().map_err(|_| "taking bulk panicked")??;
        Ok(json!({ "arrivals": arrivals, "bytes": bytes }))
    })
}

/// Takes bulk that arrives. Returns how many bytes had arrived at which time.
fn receive_bulk(node: &Node, began: Instant, end: Instant) -> Result<Vec<(f64, u64)>, Box<dyn Error>> {
    let bulk = node.bulk_receiver()?;
    let mut bytes = Vec::new();
    while Instant::now() < end {
        if let Some(message) = bulk.recv(Some(Duration::from_millis(100))) {
            message.take()?;
        }
        if began.elapsed().as_secs() >= bytes.len() as u64 {
            let came = node.status()?.bulk.map_or(0, |bulk| bulk.received_bytes);
            bytes.push((began.elapsed().as_secs_f64(), came));
        }
    }
    Ok(bytes)
}
