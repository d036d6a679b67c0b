//! The bodies of the fuzz targets. libFuzzer drives them (`fuzz_targets/`), and so does a test of `coorp-node`
//! (`crates/node/tests/fuzz.rs`), which needs no nightly compiler.

#![allow(clippy::unwrap_used)] // a finding is a panic

pub mod discovery;
pub mod door;
mod input;
pub mod rtps;
pub mod team_file;
pub mod wire;
pub mod wrapped;
