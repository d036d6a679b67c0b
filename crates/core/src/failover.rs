//! Decides which robot leads when the leader's controller disappears, such that two controllers never grant above the
//! limit.
//!
//! The conclusion of Deng 2022 leaves this open: the paper has one controller, and without it no robot sends bulk.
//! [`Coordinator`] is one robot's whole part in global preemption. It elects, owns the [`permits`] controller while its
//! robot leads, and always owns its robot's requester. Every robot runs one. The guarantee, its proof and the checks
//! are in docs/decisions/0009-failover.md.
//!
//! **Promises.** A leader broadcasts a [`Message::Beat`]; a voter answers with a [`Message::Promise`]. The promise is
//! that the voter will promise nothing to any other robot for one `lease` of its own clock. A candidate broadcasts a
//! [`Message::Ask`] and is answered in the same way. A robot leads while promises of a quorum are running. It counts
//! each from when it *sent* the message being answered, and shortens it by twice the allowed clock drift. Two quorums
//! share a voter, and a voter's promises to different robots never overlap. So at most one robot leads at any time,
//! whatever is lost, late, duplicated or frozen. A restarted robot does not know what it promised, and stays silent for
//! one lease. None of this relies on epochs; they are a second fence.
//!
//! **Permits.** A new leader's controller grants nothing for one permit lease. All grants of the previous leader were
//! decided earlier, and expire at their holders within that lease, counted from the holder's own request.
//!
//! **Fence.** Each leadership has its own [`Epoch`], greater than those that its voters know. Every permit message
//! carries it. A robot that has heard a leader accepts nothing from an older one, and informs that one.
//!
//! **Order.** The voters are the leader of the team file and the robots after it. A voter asks when its promise to the
//! last leader has expired, and later by one `stagger` for each place between the last leader and itself. The old
//! leader comes last: on its return it hears a beat and follows.
//!
//! **Quorum.** More than half of the votes; each voter has two, the first one three. So in a team of two, the leader
//! continues alone if the other robot is gone. The other robot never takes over, because it cannot distinguish a dead
//! leader from a lost link.
//!
//! Left out: voters that change at run time (robots of the file that are switched off count as dead), and robots that
//! lie. Also left out: promises that survive a restart on disk, and permits that survive a change of leader (bulk
//! pauses for one lease). The caller's clock must be monotonic, keep running while the process is stopped, and stay
//! within the drift.

mod coordinator;
mod member;

pub use coordinator::Coordinator;

use crate::clock::DRIFT_PPM;
use crate::permits::{self, PermitConfig};
use crate::{Duration, Instant, RobotId};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The maximum number of voters, so that beats cost a large team no more than a small one.
pub const VOTERS_MAX: usize = 5;
/// The largest drift that may be configured: a tenth.
const DRIFT_PPM_MAX: u32 = 100_000;

/// The settings shared by all robots of a team.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FailoverConfig {
    /// Candidates for leader: the leader of the team file, then the robots after it, wrapping around at the end of the
    /// file. A single voter always leads, and no robot follows it.
    pub voters: Vec<RobotId>,
    /// How often the leader sends a beat.
    pub beat: Duration,
    /// How long a promise lasts, and thus how long a leader that hears no one continues at most. Several beats.
    pub lease: Duration,
    /// How much later than its predecessor in the order a robot asks.
    pub stagger: Duration,
    /// The maximum error of a clock's rate against true time, in parts per million, including any slewing.
    pub drift_ppm: u32,
}

impl FailoverConfig {
    /// Returns the usual values for a team of `robots`: they take over within 1 s after two simultaneous deaths, with
    /// some beats lost. The first [`VOTERS_MAX`] robots, starting with the leader, vote.
    pub fn for_team(leader: RobotId, robots: u16) -> Self {
        let order = (leader.0..robots).chain(0..leader.0.min(robots)).map(RobotId);
        FailoverConfig {
            voters: order.take(VOTERS_MAX).collect(),
            beat: Duration::from_millis(100),
            lease: Duration::from_millis(300),
            stagger: Duration::from_millis(75),
            drift_ppm: DRIFT_PPM,
        }
    }

    /// Returns `permits` with leases and retries short enough that a new leader can grant within the second.
    pub fn permits(&self, permits: PermitConfig) -> PermitConfig {
        let lease = permits.lease.min(self.lease);
        PermitConfig {
            lease,
            retry: permits.retry.min(lease / 4),
            ..permits
        }
    }

    /// Returns the maximum time from a leader's death to the next leader's first grant. Assumes that the next `dead`
    /// robots in the order died too, that no message is lost, and that none takes longer than `delay`.
    pub fn takeover_max(&self, permits: &PermitConfig, dead: u16, delay: Duration) -> Duration {
        // The last beat was in flight. Then the promise ends, and the ask is repeated until all other promises have
        // ended too. It is answered, and the new controller waits for the permits of the old one.
        let ask = self.stagger * u64::from(dead) + self.retry() + delay * 2;
        delay + self.lease + ask + permits.lease
    }

    /// # Errors
    /// If the values are inconsistent; the variant says which.
    pub fn check(&self) -> Result<(), ConfigError> {
        let mut seen = self.voters.clone();
        seen.sort_unstable();
        seen.dedup();
        if seen.len() != self.voters.len() || !(1..=VOTERS_MAX).contains(&seen.len()) {
            return Err(ConfigError::Voters);
        }
        if self.beat == Duration::ZERO || self.lease < self.beat * 3 {
            return Err(ConfigError::Lease);
        }
        if self.drift_ppm > DRIFT_PPM_MAX {
            return Err(ConfigError::Drift);
        }
        Ok(())
    }

    /// Returns the interval at which an unanswered ask is repeated.
    fn retry(&self) -> Duration {
        self.beat / 2
    }

    /// Returns `span` as one clock may count it such that it does not outlast `span` on any other clock: shorter by
    /// twice the drift.
    fn shortened(&self, span: Duration) -> Duration {
        let millionth = span / 1_000_000 + Duration::from_nanos(1);
        span.saturating_sub(millionth * (2 * u64::from(self.drift_ppm)))
    }

    fn seat(&self, robot: RobotId) -> Option<usize> {
        self.voters.iter().position(|voter| *voter == robot)
    }

    /// Returns the number of votes of a seat. The first voter's third vote breaks a tie.
    fn votes(seat: usize) -> usize {
        2 + usize::from(seat == 0)
    }

    /// Returns the number of voters between `last`, the last leader, and `seat`. Without a last leader, the first voter
    /// is first.
    fn rank(&self, seat: usize, last: Option<RobotId>) -> u64 {
        let count = self.voters.len();
        let after = last.and_then(|robot| self.seat(robot)).map_or(0, |last| last + 1);
        ((seat + count - after % count) % count) as u64
    }
}

/// Inconsistent values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConfigError {
    /// There is no voter, there are more than [`VOTERS_MAX`], or one is listed twice.
    Voters,
    /// The lease is shorter than three beats, or a beat takes no time.
    Lease,
    /// Clocks drift by more than a tenth.
    Drift,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ConfigError::Voters => "failover: list between one and five voters, each exactly once",
            ConfigError::Lease => {
                "failover: set the lease to at least three beats, or one lost beat deposes the leader"
            }
            ConfigError::Drift => "failover: leases need clocks that drift by at most a tenth",
        })
    }
}

impl std::error::Error for ConfigError {}

/// Identifies one leadership, or one attempt at it. Later leaderships have greater epochs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Epoch {
    /// Greater than all rounds that its voters had seen.
    pub round: u64,
    /// The robot that leads or attempts to.
    pub robot: RobotId,
    /// The start number of that robot, so that no two attempts share a name.
    pub incarnation: u32,
}

/// A message between the coordinators of a team.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Message {
    /// From a leader to all: it is present. Broadcast.
    Beat {
        /// Its leadership.
        epoch: Epoch,
        /// When this was sent, on the sender's clock; only the sender reads it again.
        sent_at: Instant,
    },
    /// From a candidate to all other voters: it wants to lead. Broadcast.
    Ask {
        /// The epoch that its leadership would have.
        epoch: Epoch,
        /// As in a beat.
        sent_at: Instant,
    },
    /// From a voter to the sender of a beat or an ask: for one lease, the voter promises nothing to any other robot.
    Promise {
        /// The epoch of the beat or ask.
        epoch: Epoch,
        /// The `sent_at` of that message.
        echo: Instant,
    },
    /// To a robot that uses an old epoch: a newer one exists.
    Deny {
        /// The newest epoch that the sender knows.
        epoch: Epoch,
        /// Whether that leadership was elected. A mere attempt deposes no leader.
        elected: bool,
    },
    /// To all: this leadership or attempt is over, and its voters are released. Broadcast.
    Resign {
        /// The epoch that ended.
        epoch: Epoch,
    },
    /// Between a requester and the controller of `epoch`.
    Permit {
        /// The leadership under which the message was sent.
        epoch: Epoch,
        /// The permit message.
        message: permits::Message,
    },
}

/// An action for the coordinator's driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Action {
    /// Send to one robot. May be lost, late, duplicated or reordered without harm.
    Send {
        /// The receiver, never this robot itself.
        to: RobotId,
        /// The message.
        message: Message,
    },
    /// Send to all other robots of the team.
    Broadcast(Message),
    /// From now on bulk may be transmitted.
    Started,
    /// From now on bulk must not be transmitted.
    Stopped,
    /// This robot leads from now on.
    Leads(Epoch),
    /// This robot no longer leads.
    Deposed(Epoch),
    /// Another robot leads from now on.
    Follows(Epoch),
}

#[cfg(test)]
mod explore;
#[cfg(test)]
mod schedules;
#[cfg(test)]
mod tests;
