//! Who leads when the leader's controller disappears, and that never two controllers grant above the limit.
//!
//! Its source is issue 4 and the open limitation that 001 names in its conclusion: the paper has one controller, and
//! when that is gone nobody sends bulk. [`Coordinator`] is one robot's whole share of global preemption: it elects,
//! holds the [`permits`] controller while its robot leads, and its robot's requester always. Every
//! robot runs one. The guarantee, why it holds and what was checked: docs/decisions/0009-failover.md.
//!
//! **Promises.** A leader broadcasts a [`Message::Beat`]; a voter answers with a [`Message::Promise`]: for one `lease`
//! of its own clock it promises nothing to any other robot. Who wants to lead broadcasts a [`Message::Ask`] and is
//! answered alike. A robot leads while promises of a quorum run, each counted from when that robot *sent* what the
//! promise answers, and shorter than the voter counts it by twice the drift that clocks may have. Two quorums share a
//! voter and a voter's promises to different robots never overlap, so at most one robot leads at any time, whatever is
//! lost, late, doubled or frozen. A robot that started afresh does not know what it promised and stays mute for one
//! lease. None of this rests on epochs; they are a second fence.
//!
//! **Permits.** A new leader's controller is quiet for one lease of permits. All grants of the leader before were
//! decided before, and run out at their holders within that lease, counted from the holder's own request.
//!
//! **Fence.** Each leadership has an [`Epoch`] of its own, greater than those that its voters know. Everything about
//! permits carries it. A robot that has heard a leader takes nothing from an older one, and tells it so.
//!
//! **Order.** Voters are the leader of the team file and those after it. A voter asks as soon as its promise to the last
//! leader has run out, and a `stagger` later for each place that lies between the last leader and it. The old leader is
//! last: back again, it hears a beat and follows.
//!
//! **Quorum.** More than half of the votes; each voter has two, the first one three. So in a team of two the leader goes
//! on alone when the other is gone, and the other never takes over: it cannot tell a dead leader from a lost link.
//!
//! Left out: voters that change at run time (robots of the file that are not switched on count as dead), robots that
//! lie, promises that survive a restart on disk, and permits that survive a change of leader: bulk pauses for one lease.
//! It takes the caller's clock to be monotonic, to run on while the process is stopped, and to keep to the drift.

mod coordinator;
mod member;

pub use coordinator::Coordinator;

use crate::permits::{self, PermitConfig};
use crate::{Duration, Instant, RobotId};
use std::fmt;

/// Most voters, so that beats cost a large team no more than a small one.
pub const VOTERS_MAX: usize = 7;
/// The largest drift that may be configured: a tenth.
const DRIFT_PPM_MAX: u32 = 100_000;

/// What all robots of a team agree on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FailoverConfig {
    /// Who may lead: the leader of the team file, then those after it in the file's order, from the file's end on at
    /// its front. One voter alone leads always and nobody follows it.
    pub voters: Vec<RobotId>,
    /// How often the leader says that it is there.
    pub beat: Duration,
    /// How long a promise lasts, so how long a leader that hears nobody goes on at most. Several beats.
    pub lease: Duration,
    /// How much later than the one before it in order the next robot asks.
    pub stagger: Duration,
    /// How far a clock's rate may be off, in millionths, against true time. What slews a clock counts too.
    pub drift_ppm: u32,
}

impl FailoverConfig {
    /// The usual values for a team of so many robots: it takes over within 1 s after two deaths at once, with some beats
    /// lost. The first [`VOTERS_MAX`] robots from the leader on vote.
    pub fn for_team(leader: RobotId, robots: u16) -> Self {
        let order = (leader.0..robots).chain(0..leader.0.min(robots)).map(RobotId);
        FailoverConfig {
            voters: order.take(VOTERS_MAX).collect(),
            beat: Duration::from_millis(75),
            lease: Duration::from_millis(300),
            stagger: Duration::from_millis(75),
            drift_ppm: 1_000,
        }
    }

    /// `permits` with leases and retries short enough that a new leader can grant within the second.
    pub fn permits(&self, permits: PermitConfig) -> PermitConfig {
        let lease = permits.lease.min(self.lease);
        PermitConfig {
            lease,
            retry: permits.retry.min(lease / 4),
            ..permits
        }
    }

    /// How long after a leader's death the first grant of the next one comes at the latest, if `dead` robots that are
    /// next in order died too, no message is lost and none takes longer than `delay`.
    pub fn takeover_max(&self, permits: &PermitConfig, dead: u16, delay: Duration) -> Duration {
        // The last beat was on its way; then the promise ends, the ask is repeated until all other promises have ended
        // too, is answered, and the new controller waits for the permits of the old one.
        let ask = self.stagger * u64::from(dead) + self.retry() + delay * 2;
        delay + self.lease + ask + permits.lease
    }

    /// # Errors
    /// If the values cannot work together; the message says which and why.
    pub fn check(&self) -> Result<(), ConfigError> {
        let mut seen = self.voters.clone();
        seen.sort_unstable();
        seen.dedup();
        let bad = |what| Err(ConfigError(what));
        if seen.len() != self.voters.len() || !(1..=VOTERS_MAX).contains(&seen.len()) {
            return bad("failover: list between one and seven voters, each of them once");
        }
        if self.beat == Duration::ZERO || self.lease < self.beat * 3 {
            return bad("failover: make the lease three beats at least, or one lost beat deposes the leader");
        }
        if self.drift_ppm > DRIFT_PPM_MAX {
            return bad("failover: clocks that drift by more than a tenth are of no use for leases");
        }
        Ok(())
    }

    /// An unanswered ask is repeated after so long.
    fn retry(&self) -> Duration {
        self.beat / 2
    }

    /// `span` as one clock may count it while it must not outlast `span` on any other: shorter by twice the drift.
    fn shortened(&self, span: Duration) -> Duration {
        let millionth = span / 1_000_000 + Duration::from_nanos(1);
        span.saturating_sub(millionth * (2 * u64::from(self.drift_ppm)))
    }

    fn seat(&self, robot: RobotId) -> Option<usize> {
        self.voters.iter().position(|voter| *voter == robot)
    }

    /// The first voter's third vote settles a tie.
    fn votes(seat: usize) -> usize {
        2 + usize::from(seat == 0)
    }

    /// How many voters stand between `last`, who led, and `seat`. Where nobody led, the first voter comes first.
    fn rank(&self, seat: usize, last: Option<RobotId>) -> u64 {
        let count = self.voters.len();
        let after = last.and_then(|robot| self.seat(robot)).map_or(0, |last| last + 1);
        ((seat + count - after % count) % count) as u64
    }
}

/// Values that cannot work together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError(&'static str);

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for ConfigError {}

/// Names one leadership, or one attempt at it. Later leaderships have greater ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch {
    /// Above all rounds that its voters had seen.
    pub round: u64,
    /// Whose it is.
    pub robot: RobotId,
    /// Which start of that robot, so that no two attempts share a name.
    pub incarnation: u32,
}

/// What the coordinators of a team say to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Message {
    /// A leader to all: it is there. Broadcast.
    Beat {
        /// Its leadership.
        epoch: Epoch,
        /// When this was sent, on the sender's clock; only the sender reads it again.
        sent_at: Instant,
    },
    /// A voter to all other voters: it wants to lead. Broadcast.
    Ask {
        /// What its leadership would be.
        epoch: Epoch,
        /// As in a beat.
        sent_at: Instant,
    },
    /// A voter to who sent a beat or an ask: for one lease it promises nothing to another.
    Promise {
        /// The epoch of the beat or ask.
        epoch: Epoch,
        /// Its `sent_at`.
        echo: Instant,
    },
    /// To one that uses an old epoch: there is this newer one.
    Deny {
        /// The newest epoch that the sender knows.
        epoch: Epoch,
        /// Whether that one was elected. A mere attempt deposes nobody.
        elected: bool,
    },
    /// To all: this leadership or attempt is over, whoever promised is free. Broadcast.
    Resign {
        /// The epoch that ended.
        epoch: Epoch,
    },
    /// Between a requester and the controller of `epoch`.
    Permit {
        /// Under which leadership this was said.
        epoch: Epoch,
        /// What was said.
        message: permits::Message,
    },
}

/// What a coordinator wants done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Send to one robot. May be lost, late, doubled or reordered without harm.
    Send {
        /// The receiver, never this robot itself.
        to: RobotId,
        /// What to send.
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
    /// This robot leads no longer.
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
