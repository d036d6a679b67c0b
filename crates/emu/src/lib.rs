//! Real programs of a team over emulated WiFi, in wall-clock time.
//!
//! [`run`] makes a network namespace for each robot with a TAP interface `wlan0` (and `wlan1` and so on), starts the
//! program in each, and carries their Ethernet frames through the air's model ([`channel`]) by the wall clock
//! (`pump`). It measures how late it was and says so in its [`Report`]. Linux only, and it takes root.
//!
//! Left out: the robots' agents, which are programs like any other, and virtual time: a machine that is too slow gives
//! results that do not count, and the report says that too.

#![cfg(target_os = "linux")]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod channel;
#[allow(unsafe_code)]
mod ffi;
mod frame;
mod namespace;
mod programs;
mod pump;
pub mod report;
mod run;
mod status;
mod timing;
pub mod trouble;

pub use report::Report;
pub use run::{run, Error, Options, Stream};
