//! A robot on real sockets: the decisions of `coorp-core` over Zenoh and QUIC.
//!
//! Begin at `node.rs` (threads and callbacks), `brain.rs` (what is decided), `fabric.rs` (sessions, keys, who may say
//! what), `links/` (what carries control), `paths.rs` (what goes over which interface), `wire.rs` (the bytes). `keys.rs` makes and loads the team's keys, `watch.rs` asks robots for their status.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod brain;
pub mod bulk;
pub mod control;
mod error;
mod fabric;
pub mod gather;
mod journal;
pub mod keys;
mod links;
pub mod metrics;
mod network;
mod node;
mod paths;
mod quic;
pub mod recording;
mod reporters;
mod resets;
mod runtime;
pub mod status;
mod threads;
pub mod watch;
pub mod wire;

pub use error::Error;
pub use fabric::MESSAGE_BYTES_MAX;
pub use node::{Node, Options, Wish, INSECURE};
