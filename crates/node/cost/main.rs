//! What Coorp costs beside the libraries that it stands on, side by side in one run.
//!
//!     cargo run --release --manifest-path crates/node/cost/Cargo.toml --features zenoh -- [--quick] [--json FILE]
//!
//! Three things, each between processes of their own on loopback, with keys:
//!
//! - **control**: from before `put` until the receiver has the message, at a message every 5 ms. A node's receiver waits
//!   in `recv`; once more, both programs are guests of their robots' agents. Zenoh's has it in a callback, and in `recv` as
//!   well. Zenoh as it comes runs over TCP without keys; over TLS it has the team's.
//!   Without the feature `zenoh` it is left out.
//! - **bulk**: from giving a message away until its receiver has confirmed the whole of it, on a new connection each
//!   time. Plain QUIC (quinn) drops what it receives; in a second form it hashes, writes and syncs as a node does. A node
//!   takes a copy and hashes it when it is given away; `written` is the time after that alone.
//! - **permits**: from the wish for bulk to the permit, by a robot that does not lead. It is looked for every few tens of
//!   microseconds, which counts in.
//!
//! Contenders take turns, in another order each round, so that what else the machine does meets all of them. Times are
//! the machine's monotonic clock, which its processes share. What is left out: what an idle agent costs
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

/// How much is measured.
struct Extent {
    control_rounds: usize,
    /// Control messages of one size in a round.
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
    /// Messages that did not come.
    lost: usize,
    p50_us: f64,
    p99_us: f64,
    /// Of both ends together, the median, where it was taken.
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
        // The first contender of a kind and size is the plain one.
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
            other => return Err(format!("{other} is no option").into()),
        }
    }
    let rows = measure(extent)?;
    show(&rows);
    if let Some(json) = json {
        std::fs::write(json, serde_json::to_vec_pretty(&rows)?)?;
    }
    Ok(())
}
