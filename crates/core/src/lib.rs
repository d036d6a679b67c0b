//! What Coorp decides, without I/O.
//!
//! Every decision is a state machine that is told what happened and when, and answers what to do and when to
//! be asked again. Nothing here has a clock, a socket, a thread, randomness or a global, so the code that runs
//! on a robot is the code that is simulated, fuzzed and replayed from a seed.
//!
//! Sources: 'COORP', IEEE IoT Journal 2022 ("001" in comments), its earlier draft ("000"), 'Quantitative analysis of
//! communication handling for centralized multi-agent robot systems using ROS2' ("002"), 'Improving Reliability of
//! Real-Time Remote Vehicle Control through Duplicating Control Packets' ("004").

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod aggregates;
pub mod arrival;
pub mod capacity;
pub mod clock;
pub mod failover;
pub mod gate;
pub mod id;
pub mod loops;
pub mod normal;
pub mod paths;
pub mod permits;
pub mod policy;
pub mod schedwifi;
pub mod time;
pub mod tracker;
pub mod windows;

pub use id::{FlowId, RobotId};
pub use time::{Duration, Instant};
