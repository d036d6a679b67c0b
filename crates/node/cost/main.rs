//! Measures what Coorp costs, side by side with the libraries that it builds on, in one run.
//!
//!     cargo run --release --manifest-path crates/node/cost/Cargo.toml --features zenoh -- [--quick] [--json FILE]
//!
//! It measures three things, each between separate processes on loopback, with keys:
//!
//! - **control**: from before `put` until the receiver has the message, with a message every 5 ms. A node's receiver
//!   waits in `recv`; in a second form, both programs are guests of their robots' agents. Zenoh's receiver gets the
//!   message in a callback, and also in `recv`. Zenoh by default runs over TCP without keys; over TLS it has the team's
//!   keys. Without the feature `zenoh` it is left out.
//! - **bulk**: from handing over a message until its receiver has confirmed all of it, on a new connection each time.
//!   Plain QUIC (quinn) drops what it receives; in a second form it hashes, writes and syncs as a node does. A node
//!   copies and hashes the message at the handover; `written` is only the time after that.
//! - **permits**: from the wish for bulk to the permit, of a robot that does not lead. The permit is checked every few
//!   tens of microseconds, which is included.
//!
//! Contenders take turns, in another order each round, so that other load on the machine affects all of them. Times are
//! from the machine's monotonic clock, which its processes share. Left out: the cost of an idle agent
//! (`studies/cost.py` adds that), and any network but loopback.

mod bulk;
mod control;
mod peer;
mod robot;
mod team;
#[cfg(feature = "zenoh")]
mod zenoh;

use std::error::Error;
use std::path::PathBuf;

use serde::Serialize;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// The extent of the measurement.
struct Extent {
    control_rounds: usize,
    /// The number of control messages of one size in a round.
    messages: usize,
    bulk_rounds: usize,
    bulk_bytes: usize,
    permits: usize,
}

const FULL: Extent = Extent {
    control_rounds: 20,
    messages: 40,
    bulk_rounds: 7,
    bulk_bytes: 256_000_000,
    permits: 400,
};
const QUICK: Extent = Extent {
    control_rounds: 2,
    messages: 20,
    bulk_rounds: 2,
    bulk_bytes: 32_000_000,
    permits: 50,
};

/// One contender at one size.
#[derive(Serialize)]
struct Row {
    /// `control`, `bulk` or `permit`.
    what: &'static str,
    contender: &'static str,
    bytes: usize,
    count: usize,
    /// The number of messages that did not arrive.
    lost: usize,
    p50_us: f64,
    p99_us: f64,
    /// The median processor time of both ends together, if it was measured.
    processor_ms: Option<f64>,
}

impl Row {
    fn new(
        what: &'static str,
        contender: &'static str,
        bytes: usize,
        mut nanos: Vec<u64>,
        lost: usize,
    ) -> Outcome<Row> {
        nanos.sort_unstable();
        let last = nanos.len().checked_sub(1).ok_or("nothing was measured")?;
        let at = |share: f64| nanos[(share * last as f64).round() as usize] as f64 / 1e3;
        Ok(Row {
            what,
            contender,
            bytes,
            count: nanos.len(),
            lost,
            p50_us: at(0.5),
            p99_us: at(0.99),
            processor_ms: None,
        })
    }
}

/// Returns the order in which `n` contenders have their turns in a round.
fn turns(n: usize, round: usize) -> impl Iterator<Item = usize> {
    (0..n).map(move |turn| (turn + round) % n)
}

fn measure(extent: &Extent) -> Outcome<Vec<Row>> {
    let mut rows = control::measure(extent)?;
    rows.extend(bulk::measure(extent)?);
    Ok(rows)
}

fn show(rows: &[Row]) {
    println!(
        "{:<8} {:<28} {:>11} {:>6} {:>5} {:>11} {:>11} {:>9} {:>9} {:>8}",
        "what", "contender", "bytes", "count", "lost", "median us", "p99 us", "CPU ms", "Mbit/s", "of plain"
    );
    for row in rows {
        // The first contender of a kind and size is the plain library.
        let plain = rows
            .iter()
            .find(|plain| (plain.what, plain.bytes) == (row.what, row.bytes));
        let ratio = plain.map_or(1.0, |plain| row.p50_us / plain.p50_us);
        let rate = (row.what == "bulk").then(|| format!("{:.0}", row.bytes as f64 * 8.0 / row.p50_us));
        println!(
            "{:<8} {:<28} {:>11} {:>6} {:>5} {:>11.1} {:>11.1} {:>9} {:>9} {:>8.2}",
            row.what,
            row.contender,
            row.bytes,
            row.count,
            row.lost,
            row.p50_us,
            row.p99_us,
            row.processor_ms.map(|ms| format!("{ms:.0}")).unwrap_or_default(),
            rate.unwrap_or_default(),
            ratio
        );
    }
}

fn main() -> Outcome<()> {
    let mut arguments = std::env::args().skip(1);
    let (mut extent, mut json) = (&FULL, None);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            peer::ARGUMENT => return peer::be(&arguments.next().ok_or("which peer?")?),
            "--quick" => extent = &QUICK,
            "--json" => json = Some(PathBuf::from(arguments.next().ok_or("--json takes a file")?)),
            other => return Err(format!("unknown option {other}").into()),
        }
    }
    let rows = measure(extent)?;
    show(&rows);
    if let Some(json) = json {
        std::fs::write(json, serde_json::to_vec_pretty(&rows)?)?;
    }
    Ok(())
}
