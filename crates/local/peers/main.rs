//! Measures latencies between processes, of this library and of plain iceoryx2 in the same run.
//!
//!     cargo run --release --manifest-path crates/local/peers/Cargo.toml [-- --quick]

#[path = "../benches/transfer/ours.rs"]
mod ours;
mod plain;
#[path = "../benches/transfer/scenarios.rs"]
mod scenarios;

fn main() {
    scenarios::run(&[("coorp", ours::join), ("iceoryx2", plain::join)]);
}
