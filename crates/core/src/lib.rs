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
//! For example, the gate of a card, which holds bulk that would still be there when control is due:
//!
//! ```
//! use coorp_core::gate::{CompletionTable, Gate, GateAction, Verdict};
//! use coorp_core::windows::Window;
//! use coorp_core::{Duration, Instant};
//!
//! let at = |ms: u64| Instant::ZERO + Duration::from_millis(ms);
//! let mut gate = Gate::new(CompletionTable::new(64, 32, 0.9), None);
//! // A packet that found the card empty at 0 ms had left at 2 ms.
//! gate.on_complete(0, at(0), at(2));
//! // Control is due at 10 ms, and has arrived by 12 ms.
//! gate.on_window(Window { start: at(10), end: at(12) });
//! while gate.poll().is_some() {}
//!
//! assert_eq!(gate.on_dequeue(0, at(5)), Verdict::Pass);
//! assert_eq!(gate.on_dequeue(0, at(9)), Verdict::Hold { until: Some(at(12)) });
//! assert_eq!(gate.next_deadline(), Some(at(12)));
//! gate.on_deadline(at(12));
//! assert_eq!(gate.poll(), Some(GateAction::Resume));
//! ```
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
pub mod spread;
pub mod starts;
pub mod time;
pub mod tracker;
pub mod windows;
pub mod zenoh;

pub use id::{FlowId, RobotId};
pub use time::{Duration, Instant};
