//! Decides which robots are connected, and the newest state of each and its age: the fleet tracker (Dust, sections III
//! and IV).
//!
//! [`Tracker`] runs where the states are gathered, [`Reporter`] on every robot. They decide which robots are connected
//! and on which topics they publish, which state is the newest, and the age and misses of each. The state itself
//! belongs to the caller and is opaque here.
//!
//! **Connection service** (IV-A). A robot repeats its request to connect until it is answered. The tracker subscribes
//! first and acknowledges afterwards, so that no state is lost for want of a subscriber. A silent robot counts as gone. A robot
//! whose tracker is silent, or does not know it, connects again. So both may restart, and robots may come and go.
//!
//! **Topics** (III). [`Topics::ManyToOne`]: all robots publish on one. [`Topics::OneToOne`]: each robot publishes on
//! its own. In the paper, many-to-one loses states, because robots overwrite each other in a queue of length one. Here
//! each robot has its own slot in either case, so the choice affects only the number of subscriptions.
//!
//! **Time stamps** (IV-A). T1: the robot created its state. T2: the tracker received it. T3: it was put on the list.
//! T4: the list was received by its user. [`Stamps`] holds all four on the tracker's clock. Dust synchronises clocks
//! externally. Here each robot estimates the tracker's clock by exchanges, as NTP does, uses the one with the shortest
//! round trip, and states the error bound.
//!
//! **Misses** (IV-B). A robot that was on the previous list and has no newer state on this list has missed its update.
//!
//! Left out: what the list is used for (visualisation, control), history, and interpolation between states.

mod clock;
mod reporter;
mod table;

pub use clock::{ClockOffset, OffsetEstimate};
pub use reporter::{Reporter, ReporterAction, StateHeader};
pub use table::{Entry, Tracker, TrackerAction};

use crate::{Duration, Instant, RobotId};
use serde::{Deserialize, Serialize};

/// Whether robots share a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Topics {
    /// All robots publish on topic 0.
    ManyToOne,
    /// Each robot publishes on a topic of its own, from 1 on.
    OneToOne,
}

/// Where a robot publishes its states.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TopicId(pub u32);

/// The settings shared by tracker and reporters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrackerConfig {
    /// Whether robots share a topic.
    pub topics: Topics,
    /// The interval between lists.
    pub period: Duration,
    /// The silence after which the other side counts as gone. Use several times `sync`.
    pub silence: Duration,
    /// The interval at which a reporter compares clocks, and repeats unanswered requests.
    pub sync: Duration,
    /// The maximum number of connected robots.
    pub robots_max: u16,
}

impl Default for TrackerConfig {
    /// Returns values for states every 33 ms.
    fn default() -> Self {
        TrackerConfig {
            topics: Topics::OneToOne,
            period: Duration::from_millis(33),
            silence: Duration::from_secs(2),
            sync: Duration::from_millis(250),
            robots_max: 1_024,
        }
    }
}

/// When a robot's message arrived at the tracker and was answered, for comparing clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Answer {
    /// When the robot sent the message being answered, on its clock.
    pub echo: Instant,
    /// When the tracker received it, on the tracker's clock.
    pub received_at: Instant,
    /// When the answer was sent, on the tracker's clock.
    pub sent_at: Instant,
}

/// A message between tracker and reporter, other than states.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Message {
    /// From robot to tracker: requests to connect.
    Connect {
        /// The robot's start number, which differs from those of its other starts.
        incarnation: u32,
        /// When this was sent, on the robot's clock.
        sent_at: Instant,
    },
    /// From tracker to robot: publish on `topic`.
    Accept {
        /// The start number of the accepted robot.
        incarnation: u32,
        /// The topic to publish on.
        topic: TopicId,
        /// For comparing clocks.
        answer: Answer,
    },
    /// From tracker to robot: the table is full.
    Refuse {
        /// The start number of the refused robot.
        incarnation: u32,
    },
    /// From robot to tracker: the robot is still present, and asks for the tracker's time.
    Sync {
        /// The robot's start number.
        incarnation: u32,
        /// When this was sent, on the robot's clock.
        sent_at: Instant,
    },
    /// From tracker to robot: the answer to [`Message::Sync`].
    Synced {
        /// The start number of the robot that asked.
        incarnation: u32,
        /// For comparing clocks.
        answer: Answer,
    },
    /// From tracker to robot: the robot is not connected.
    Unknown {
        /// The start number of the unknown robot.
        incarnation: u32,
    },
    /// From robot to tracker: the robot leaves.
    Leave {
        /// The start number of the robot that leaves.
        incarnation: u32,
    },
}

/// When a state passed each point, all on the tracker's clock (Dust, figure 3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamps {
    /// T1, as the robot estimates it on the tracker's clock. `None` until the robot has compared clocks.
    pub created_at: Option<Instant>,
    /// The error bound of T1.
    pub error: Duration,
    /// T2.
    pub received_at: Instant,
    /// T3.
    pub listed_at: Instant,
}

impl Stamps {
    /// Returns the data age at `used_at` (T4): T4 - T1. Zero if, by the clocks, the state is used before it was
    /// created. `None` if T1 is unknown. A user on another machine first converts its time to the tracker's with
    /// [`OffsetEstimate::offset`].
    pub fn age(&self, used_at: Instant) -> Option<Duration> {
        self.created_at.map(|created_at| used_at.since(created_at))
    }

    /// Returns the components of the age: T2 - T1, T3 - T2 and T4 - T3 (Dust, figures 4 to 6). The first behaves like
    /// [`Stamps::age`].
    pub fn legs(&self, used_at: Instant) -> (Option<Duration>, Duration, Duration) {
        let on_the_way = self.created_at.map(|created_at| self.received_at.since(created_at));
        (
            on_the_way,
            self.listed_at.since(self.received_at),
            used_at.since(self.listed_at),
        )
    }
}

/// Statistics of a robot's state updates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Updates {
    /// The number of lists on which a fresh state was due.
    pub due: u64,
    /// The number of these on which it was missing.
    pub missed: u64,
    /// States that were older than one received before, or duplicates.
    pub stale: u64,
}

impl Updates {
    /// Returns the update-miss ratio, 0 to 1.
    pub fn miss_ratio(&self) -> f64 {
        if self.due == 0 {
            return 0.0;
        }
        self.missed as f64 / self.due as f64
    }
}

/// Returns the action that sends `message` to `to`.
fn reply(to: RobotId, message: Message) -> TrackerAction {
    TrackerAction::Send { to, message }
}

#[cfg(test)]
mod tests;
