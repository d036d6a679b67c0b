//! Decides which robots may transmit bulk, and for how long: global preemption (Deng 2022, section IV-A, algorithm 1).
//!
//! [`Controller`] is `schedule()` on the leader: a queue Q of requesting robots and a set S of transmitting robots. S
//! holds at most `limit` robots, each for at most `slice`. [`Requester`] is `send()` on every robot, including the
//! leader. Neither does I/O: both take events with their times, and return messages.
//!
//! The published algorithm assumes that every message arrives and that no robot dies. This module assumes neither:
//!
//! - Each grant carries a fresh [`Token`], so a late, repeated or forged release frees nothing else.
//! - A request carries an increasing id, and a grant names the request that it answers. A late grant for a request that
//!   is over is returned at once. A request with a newer id of the same start implies that the older one is over.
//!   Ids of different starts do not show which start is the later one.
//! - A permit is leased. The holder renews it; the controller answers each renewal with the grant. After `lease` of
//!   silence the controller takes the place back, and an unanswered holder stops by itself.
//! - Clocks are not shared. Each message of a robot carries the robot's own time of sending, and the grant echoes the
//!   newest one. The grant was sent after that instant. A holder stops at `echo + slice + grace`, or at `echo + lease`.
//!   So it has stopped before the controller's own limits expire, however long the grant travelled. At most `limit`
//!   robots therefore transmit at once, as long as clocks run at the same rate.
//! - A restarted controller knows no holders. It grants nothing for one `lease`, after which all have stopped.
//!
//! Left out: moving the controller to another robot when the leader dies, which [`failover`](crate::failover) does, and
//! several teams on one channel. A queue shorter than the team may starve the robots that it refuses: set `queue_max`
//! to the team's size.

mod controller;
mod requester;

pub use controller::{Controller, ControllerAction};
pub use requester::{Requester, RequesterAction};

use crate::{Duration, Instant, RobotId};
use serde::{Deserialize, Serialize};

/// The shortest interval between retransmissions, whatever the configuration says.
const INTERVAL_MIN: Duration = Duration::from_millis(1);

/// The settings shared by the controller and the requesters of one team.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PermitConfig {
    /// The maximum number of robots that may transmit bulk at once (LIMIT). Zero allows none.
    pub limit: u16,
    /// The duration of a permit (TIMESLICE).
    pub slice: Duration,
    /// A permit ends after this long a silence. Use several times the worst round trip.
    pub lease: Duration,
    /// How much longer than the slice the controller waits for a release; covers the grant's travel time.
    pub grace: Duration,
    /// Interval after which an unanswered request is repeated.
    pub retry: Duration,
    /// Length of the queue. A robot that finds it full is refused and asks again later.
    pub queue_max: u16,
}

impl Default for PermitConfig {
    /// Returns a limit of one and a slice of five seconds, as in Deng 2022.
    fn default() -> Self {
        PermitConfig {
            limit: 1,
            slice: Duration::from_secs(5),
            lease: Duration::from_secs(1),
            grace: Duration::from_millis(50),
            retry: Duration::from_millis(250),
            queue_max: 1024,
        }
    }
}

impl PermitConfig {
    fn retry_interval(&self) -> Duration {
        self.retry.max(INTERVAL_MIN)
    }

    /// Returns the interval of renewals: four per lease, so three may be lost.
    fn renew_interval(&self) -> Duration {
        (self.lease / 4).max(INTERVAL_MIN)
    }
}

/// Identifies one grant. No two grants of a controller share a token, nor do grants of two incarnations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Token(pub u64);

/// Identifies one request of a robot. Within a start of that robot, a later request has a greater id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RequestId(pub u64);

impl RequestId {
    /// Returns the first id of a start.
    fn first(incarnation: u32) -> Self {
        RequestId(u64::from(incarnation) << 32)
    }

    fn is_of_start(self, other: RequestId) -> bool {
        self.0 >> 32 == other.0 >> 32
    }
}

/// A message between controller and requester.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Message {
    /// From robot to controller: `robot` has bulk to send. Repeated until answered.
    Request {
        /// The requesting robot.
        robot: RobotId,
        /// The id of this request.
        request: RequestId,
        /// When this copy was sent, on the robot's clock; only that robot evaluates it.
        sent_at: Instant,
    },
    /// From controller to robot: transmit for `slice` from now. Also answers a renewal, with the rest of the slice.
    Grant {
        /// The granted request.
        request: RequestId,
        /// The token of this grant.
        token: Token,
        /// The rest of the slice.
        slice: Duration,
        /// The newest `sent_at` that the controller received from this robot.
        echo: Instant,
    },
    /// From robot to controller: the grant is over.
    Release {
        /// The returned grant.
        token: Token,
    },
    /// From robot to controller: the robot is still present and transmitting.
    Renew {
        /// The grant being held.
        token: Token,
        /// When this was sent, on the robot's clock.
        sent_at: Instant,
    },
    /// From controller to robot: the queue is full.
    Refuse {
        /// The refused request.
        request: RequestId,
        /// How long to wait before the next request.
        retry_after: Duration,
    },
}

#[cfg(test)]
mod tests;
