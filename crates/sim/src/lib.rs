//! Simulates a team in virtual time, from its robots, the air and the decisions of `coorp-core` to results.
//!
//! One [`run`] is one team under one policy from one seed. It is deterministic and single-threaded: the same input
//! gives the same output, bit for bit, regardless of the machine's load.
//!
//! ```
//! use coorp_core::policy::Policy;
//! use coorp_core::Duration;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let file = r#"
//!     [[robot]]
//!     name = "base"
//!     leader = true
//!
//!     [[robot]]
//!     name = "scout"
//!
//!     [control]
//!     rate_hz = 30
//!     perception = "8KiB"
//!     inference = "10ms"
//! "#;
//! let team = coorp_team::parse(file, "team.toml", ".".as_ref())?;
//! let policy = Policy::named("coorp").ok_or("no such policy")?;
//! let options = coorp_sim::Options { duration: Duration::from_secs(1), seed: 1, ..Default::default() };
//! let run = coorp_sim::run(&team, &policy, &options, &|_now| ())?;
//! assert_eq!(run.result.violation_rate, Some(0.0));
//! # Ok(())
//! # }
//! ```

mod agent;
mod delay;
pub mod drlc;
pub mod events;
mod faults;
mod measure;
mod messages;
pub mod mpc;
mod plain;
pub mod results;
mod schedule;
mod session;
mod setup;
mod streams;
mod timers;
mod world;

use std::fmt;

use coorp_core::policy::Policy;
use coorp_core::{Duration, Instant};
use coorp_team::Team;

use results::Run;
pub use session::Session;

/// Options of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Virtual time to simulate. A [`Session`] may stop earlier or continue beyond it. Faults and the recorded second
    /// depend on this value.
    pub duration: Duration,
    /// The seed of every random draw.
    pub seed: u64,
    /// Makes robots die, restart and freeze, loses, duplicates and delays messages about permits, and steps clocks.
    pub faults: bool,
    /// Samples bulk throughput every second, and returns CDFs.
    pub series: bool,
    /// Records one second in detail for the report.
    pub timeline: bool,
    /// Keeps events for [`Session::take_events`].
    pub events: bool,
}

/// The reason why a run gave no results.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// The team file contains nothing that this policy would run.
    NothingToRun {
        /// The requested policy.
        policy: String,
    },
    /// The policy cannot be applied to this team.
    Unfit {
        /// The requested policy.
        policy: String,
        /// The reason, and a fix.
        reason: String,
    },
    /// A rule that must always hold was broken. This is a defect of Coorp; the same team, policy and seed reproduce it.
    Broken {
        /// The rule, and when it was broken.
        rule: String,
    },
    /// A session holds the maximum number of events.
    TooManyEvents {
        /// The number of events.
        max: usize,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NothingToRun { policy } => write!(
                f,
                "policy '{policy}' has nothing to run: it needs [control], [learning] or a [[flow]] that it does not exclude"
            ),
            Error::Unfit { policy, reason } => write!(f, "policy '{policy}' does not fit this team: {reason}"),
            Error::Broken { rule } => write!(f, "broken rule: {rule}"),
            Error::TooManyEvents { max } => write!(f, "{max} events wait to be taken, and no more fit: advance by less at a time"),
        }
    }
}

impl std::error::Error for Error {}

/// Runs `team` under `policy`. `progress` receives the virtual time now and then.
///
/// # Errors
/// [`Error::NothingToRun`] if policy and team have nothing in common; [`Error::Broken`] if an invariant fails.
pub fn run(team: &Team, policy: &Policy, options: &Options, progress: &(dyn Fn(Instant) + Sync)) -> Result<Run, Error> {
    let unlogged = Options {
        events: false,
        ..*options
    };
    let mut session = Session::new(team.clone(), policy, &unlogged)?;
    session::to_the_end(&mut session, progress)?;
    Ok(session.result())
}
