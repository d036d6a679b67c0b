//! Who may transmit bulk, and for how long: global preemption (001, section IV-A, Algorithm 1).
//!
//! [`Controller`] is `schedule()` on the leader: a queue Q of robots that asked, a set S of robots that
//! transmit, at most `limit` of them, each for at most `slice`. [`Requester`] is `send()` on every robot, the
//! leader among them. Neither does I/O: both are told what happened and when, and answer with messages.
//!
//! The algorithm assumes that every message arrives and that nobody dies. Here nothing of that is assumed:
//!
//! - Each grant carries a fresh [`Token`], so a late, repeated or forged release frees nothing else.
//! - A request carries an id that grows; a grant names the request it answers. A grant that comes late, for a
//!   request that is over, is given back at once. A request with a newer id implies that the older is over.
//! - A permit is leased. The holder renews; the controller answers each renewal with the grant again. After
//!   `lease` of silence the controller takes the place back, and a holder that is not answered stops by itself.
//! - Clocks are not shared. A message of a robot carries the robot's own time of sending, and the grant echoes
//!   the newest. The grant was sent after that instant, so a holder that stops at `echo + slice + grace`, or at
//!   `echo + lease`, has stopped before the controller's own limits run out, however long the grant travelled.
//!   So never more than `limit` robots transmit at once as long as clocks run at one rate.
//! - A controller that restarts knows no holders. It stays quiet for one `lease`, after which all have stopped.
//!
//! Left out: handing the controller's part to another robot when the leader dies, which is [`failover`](crate::failover),
//! and several teams on one channel. A queue shorter than the team may starve the robots that it refuses: make `queue_max` the team's size.

mod controller;
mod requester;

pub use controller::{Controller, ControllerAction};
pub use requester::{Requester, RequesterAction};

use crate::{Duration, Instant, RobotId};

/// The shortest interval at which anything is sent again, whatever the configuration says.
const INTERVAL_MIN: Duration = Duration::from_millis(1);

/// What the controller and the requesters of one team agree on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PermitConfig {
    /// How many robots may transmit bulk at once (LIMIT). Zero lets nobody.
    pub limit: u16,
    /// How long one permit lasts (TIMESLICE).
    pub slice: Duration,
    /// After how long a silence a permit ends. Keep it at several times the worst round trip.
    pub lease: Duration,
    /// How much longer than the slice the controller waits for a release; covers a grant's way to the robot.
    pub grace: Duration,
    /// After how long an unanswered request is sent again.
    pub retry: Duration,
    /// How many robots may wait. The next one is refused and asks again later.
    pub queue_max: u16,
}

impl Default for PermitConfig {
    /// The paper's limit of one and slice of five seconds.
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

    /// Four renewals fit a lease, so three may be lost.
    fn renew_interval(&self) -> Duration {
        (self.lease / 4).max(INTERVAL_MIN)
    }
}

/// Names one grant. No two grants of a controller share one, nor do those of two incarnations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

/// Names one request of a robot; a later request of the same robot has a greater one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// What controller and requesters say to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Message {
    /// Robot to controller: `robot` has bulk to send. Repeated until it is answered.
    Request {
        /// Who asks.
        robot: RobotId,
        /// Which of its requests this is.
        request: RequestId,
        /// When this copy was sent, on the robot's clock; only the robot reads it again.
        sent_at: Instant,
    },
    /// Controller to robot: transmit for `slice` from now. Also answers a renewal, with what is left.
    Grant {
        /// The request that is granted.
        request: RequestId,
        /// The name of this grant.
        token: Token,
        /// How much of the slice is left.
        slice: Duration,
        /// The newest `sent_at` that the controller had from this robot.
        echo: Instant,
    },
    /// Robot to controller: the grant is over.
    Release {
        /// The grant that is given back.
        token: Token,
    },
    /// Robot to controller: still here and transmitting.
    Renew {
        /// The grant that is held.
        token: Token,
        /// When this was sent, on the robot's clock.
        sent_at: Instant,
    },
    /// Controller to robot: the queue is full.
    Refuse {
        /// The request that is refused.
        request: RequestId,
        /// How long to wait before the next one.
        retry_after: Duration,
    },
}

#[cfg(test)]
mod tests;
