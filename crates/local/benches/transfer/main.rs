//! Latencies between processes. The same beside plain iceoryx2: `crates/local/peers`.
//!
//!     cargo bench -p coorp-local [-- --quick]

#![allow(missing_docs, clippy::unwrap_used)]

mod ours;
mod scenarios;

fn main() {
    scenarios::run(&[("coorp", ours::join)]);
}
