//! Coorp's decisions, without I/O.
//!
//! Every decision is a state machine. The driver tells it what happened and when; it returns what to do and when to
//! call it again. Nothing here has a clock, a socket, a thread, randomness or a global. So the code that runs on a
//! robot is the code that is simulated, fuzzed and replayed from a seed.
//!
//! # How to drive a state machine
//!
//! All follow one contract, including [`robot::Robot`], which assembles the others:
//!
//! - Tell it each event as it happens, with `now` read from one monotonic clock after the event and directly before the call.
//! - After every call, poll until `None`, and take the actions in that order.
//! - Call `on_deadline` at `next_deadline`. A call at any other time is harmless. Every call may change the deadline.
//! - An answer that permits something (`may_pass`, `may_send`) holds only for the instant of the call. Ask again before
//!   each packet, because a process that was stopped has missed the end of its permission.
//!
//! # Sources
//!
//! Comments name these sources as docs/sources.md does:
//!
//! - Deng 2022: 'COORP', IEEE Internet of Things Journal, 2022.
//! - Deng, draft: 'COORP: A High Performance and High Accuracy Wireless Supporting System for Coordinated Robotic
//!   Learning'.
//! - Dust: 'Quantitative analysis of communication handling for centralized multi-agent robot systems using ROS2'.
//! - Lee (DupCon): 'Improving Reliability of Real-Time Remote Vehicle Control through Duplicating Control Packets'.
//! - Kwok (HPRM): 'HPRM: High-Performance Robotic Middleware for Intelligent Autonomous Systems'.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod admission;
pub mod aggregates;
pub mod alarms;
pub mod arrival;
pub mod capacity;
pub mod clock;
pub mod codel;
pub mod discovery;
pub mod failover;
pub mod gate;
pub mod id;
pub mod logical;
pub mod loops;
pub mod normal;
pub mod paths;
pub mod permits;
pub mod policy;
pub mod protect;
pub mod robot;
pub mod rtps;
pub mod schedwifi;
pub mod starts;
pub mod time;
pub mod tracker;
pub mod windows;
pub mod zenoh;

pub use id::{FlowId, RobotId};
pub use time::{Duration, Instant};
