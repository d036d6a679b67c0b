//! Measures latencies between processes. `crates/local/peers` compares them with plain iceoryx2.
//!
//!     cargo bench -p coorp-local [-- --quick]

#![allow(missing_docs, clippy::unwrap_used)]

mod ours;
mod scenarios;

fn main() {
    scenarios::run(&[("coorp", ours::join)]);
}
