//! A team in virtual time: robots, the air and the decisions of `coorp-core`, to results.
//!
//! One [`run`] is one team under one policy from one seed. It is deterministic and single-threaded: the same input
//! gives the same output, bit for bit, whatever runs beside it.

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
    /// Virtual time to simulate. A [`Session`] may stop before or go on after; faults and the recorded second go by
    /// this.
    pub duration: Duration,
    /// Seed of every random draw.
    pub seed: u64,
    /// Let robots die, restart and freeze, messages about permits get lost, doubled and delayed, and clocks step.
    pub faults: bool,
    /// Sample bulk throughput every second, and give CDFs.
    pub series: bool,
    /// Record one second in detail for the report.
    pub timeline: bool,
    /// Keep what happens, for [`Session::take_events`].
    pub events: bool,
}

/// Why a run gave no results.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// The team file has nothing that this policy would run.
    NothingToRun {
        /// The policy asked for.
        policy: String,
    },
    /// The policy cannot be applied to this team.
    Unfit {
        /// The policy asked for.
        policy: String,
        /// Why, and what would mend it.
        reason: String,
    },
    /// A rule that must always hold was broken: a defect of Coorp, replayed by the same team, policy and seed.
    Broken {
        /// Which rule, and when.
        rule: String,
    },
    /// A session holds as many events as it can.
    TooManyEvents {
        /// So many.
        max: usize,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NothingToRun { policy } => write!(
                f,
                "policy '{policy}' has nothing to run: it needs [control], [learning] or a [[flow]] that it does not leave out"
            ),
            Error::Unfit { policy, reason } => write!(f, "policy '{policy}' does not fit this team: {reason}"),
            Error::Broken { rule } => write!(f, "broken rule: {rule}"),
            Error::TooManyEvents { max } => write!(f, "{max} events wait to be taken, and no more fit: advance by less at a time"),
        }
    }
}

impl std::error::Error for Error {}

/// Runs `team` under `policy`. `progress` is told the virtual time now and then.
///
/// # Errors
/// [`Error::NothingToRun`] where policy and team have nothing in common; [`Error::Broken`] where an invariant fails.
pub fn run(team: &Team, policy: &Policy, options: &Options, progress: &(dyn Fn(Instant) + Sync)) -> Result<Run, Error> {
    let unlogged = Options {
        events: false,
        ..*options
    };
    let mut session = Session::new(team.clone(), policy, &unlogged)?;
    session::to_the_end(&mut session, progress)?;
    Ok(session.result())
}
