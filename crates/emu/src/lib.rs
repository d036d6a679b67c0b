//! Runs a team's real programs over emulated WiFi, in wall-clock time.
//!
//! [`run`] creates a network namespace for each robot, with TAP interfaces `wlan0`, `wlan1` and so on, and starts the
//! program in each. It carries their Ethernet frames through the model of the air ([`channel`]) by the wall clock
//! (`pump`). It measures its own lateness and reports it in its [`Report`]. Linux only; needs root.
//!
//! ```no_run
//! use coorp_emu::{Options, Stream};
//! use std::sync::Arc;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let team = coorp_team::load("team.toml".as_ref())?;
//! let options = Options {
//!     team_file: "team.toml".into(),
//!     program: vec!["ping".into(), "-c3".into(), "base".into()],
//!     companion: None,
//!     duration: None,
//!     blows: Vec::new(),
//!     watched: Default::default(),
//! };
//! let lines = Arc::new(|robot: &str, _: Stream, line: &[u8]| println!("[{robot}] {}", String::from_utf8_lossy(line)));
//! let report = coorp_emu::run(&team, &options, lines, &|note| eprintln!("{note}"))?;
//! # Ok(())
//! # }
//! ```
//!
//! Left out: the robots' agents, which are programs like any other, and virtual time. If the machine is too slow, the
//! results do not count, and the report says so.

#![cfg(target_os = "linux")]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod channel;
mod companion;
mod error;
#[allow(unsafe_code)]
mod ffi;
mod frame;
mod identity;
mod namespace;
mod outqueue;
mod programs;
mod pump;
pub mod report;
mod run;
mod timing;
pub mod trouble;

pub use companion::Companion;
pub use error::Error;
pub use programs::Stream;
pub use report::Report;
pub use run::{run, Options};
