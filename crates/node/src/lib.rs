//! A robot on real sockets: the decisions of `coorp-core` over QUIC.
//!
//! ```no_run
//! use coorp_node::{Duration, Node, Options, Policy, Topics};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let team = coorp_node::load("team.toml".as_ref())?;
//! let policy = Policy::named("coorp").ok_or("no such policy")?;
//! let node = Node::open(Options { team, robot: "r1".to_owned(), policy, insecure: false, state: None })?;
//!
//! let (period, timeout) = (Duration::from_millis(33), std::time::Duration::from_secs(1));
//! let pose = node.control_publisher("pose", Some(period))?;
//! pose.put(b"1.0 2.0")?;
//! let plans = node.control_subscriber("plan")?;
//! if let Some(plan) = plans.recv(Some(timeout)) {
//!     println!("{} bytes from robot {}, aged {:?}", plan.bytes().len(), plan.from.0, plan.age);
//! }
//! let table = node.gather("pose", period, Topics::OneToOne)?;
//! if let Some(list) = table.recv(Some(timeout)) {
//!     println!("{} robots", list.states.len());
//! }
//! let mut stream = node.bulk_stream("base", "gradients")?;
//! stream.write(&[0; 1_000_000])?;
//! stream.finish()?.wait()?;
//! # Ok(())
//! # }
//! ```
//!
//! `coorp_core::robot` makes a robot's decisions; this crate drives it. Begin at `node.rs`, which connects the parts.
//! All of them share the robot (`shared_robot.rs`) and its identity (`member.rs`). `agent.rs` passes arrivals to the
//! robot and carries out its actions. `control.rs`, `gather.rs` and `bulk/` are what users send and receive; `links/`
//! carries control and coordination. `presence.rs` knows who is present, and `addresses.rs` where. `outqueue.rs` and
//! `card.rs` know what has left, and from which source. `wire.rs` has the bytes, and `ground.rs` the machine below.
//! `keys.rs` creates and loads the team's keys, and `watch.rs` queries robots for their status.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod addresses;
mod agent;
mod alarms;
pub mod bulk;
pub mod card;
mod clock;
pub mod control;
mod descriptors;
pub mod discovery;
mod disk;
mod door;
mod error;
mod file_name;
pub mod flight;
#[doc(hidden)]
pub mod fuzz;
pub mod gather;
mod ground;
mod guests;
pub mod keys;
mod links;
mod mailbox;
mod member;
pub mod metrics;
mod network;
mod node;
pub mod outqueue;
mod policy;
mod presence;
mod protect;
mod pulse;
mod quic;
mod rank;
pub mod recording;
mod refused;
mod resets;
mod revoked;
pub mod shared_node;
mod shared_robot;
mod state;
pub mod status;
mod sync;
mod tasks;
mod topic;
pub mod trial;
pub mod watch;
pub mod wire;
mod zenoh;

pub use coorp_core::policy::Policy;
pub use coorp_core::tracker::Topics;
pub use coorp_core::{Duration, RobotId};
pub use coorp_team::{LoadError, Team};
pub use error::Error;
pub use file_name::file_name;
pub use links::MESSAGE_BYTES_MAX;
pub use node::{Node, Options, Wish, INSECURE};
pub use policy::{live_policies, why_not_live};
pub use protect::{protect_interface, protect_priorities, unprotect};
pub use pulse::Pulse;
pub use rank::real_time;
pub use state::folder as state_folder;

/// Reads a team file, and gives the robots that may join their places ([`Team::with_places`]).
///
/// # Errors
/// As [`coorp_team::load`].
pub fn load(path: &std::path::Path) -> Result<Team, LoadError> {
    coorp_team::load(path).map(Team::with_places)
}
