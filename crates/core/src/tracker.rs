//! The newest state of every robot, how old it is, and who is there: the fleet tracker (002, sections III and IV).
//!
//! [`Tracker`] runs where the states are gathered, [`Reporter`] on every robot. Decided are who is connected and on which
//! topic it publishes, which state is the newest, and what age and misses the table has. The states themselves are the
//! caller's; here they are a value that is kept.
//!
//! **Connection service** (IV-A). A robot asks to connect and repeats it until it is answered. The tracker makes what it
//! needs to hear it, and only then acknowledges, so no state is published to nobody. A robot that is silent has left; one
//! whose tracker is silent, or does not know it, connects again. So both may restart, and robots come and go.
//!
//! **Topics** (III). [`Topics::ManyToOne`]: all publish on one. [`Topics::OneToOne`]: each on its own. The paper loses states
//! in the first because robots overwrite one another in a queue of one. Here both end in a place of its own for each
//! robot, so the choice is about how many subscriptions there are, and about what a fabric does before.
//!
//! **Stamps** (IV-A). T1: a robot made its state. T2: the tracker received it. T3: it was put on the list. T4: the list was
//! received where it is used. [`Stamps`] holds all four on the tracker's clock. 002 synchronises clocks from outside; here
//! each robot estimates the tracker's clock by exchanges as NTP does, of which that with the shortest way counts, and
//! says how far it may be off.
//!
//! **Misses** (IV-B). A robot that was on the last list and has no newer state on this one missed its update.
//!
//! Left out: what is done with the list (visualisation, control), history, and interpolation of states between samples.

mod clock;
mod reporter;
mod table;

pub use clock::{ClockOffset, OffsetEstimate};
pub use reporter::{Reporter, ReporterAction, StateHeader};
pub use table::{Entry, Tracker, TrackerAction};

use crate::{Duration, Instant, RobotId};

/// Whether robots share a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topics {
    /// All robots publish on topic 0.
    ManyToOne,
    /// Each robot publishes on a topic of its own, from 1 on.
    OneToOne,
}

/// Where a robot publishes its states.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicId(pub u32);

/// What tracker and reporters agree on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrackerConfig {
    /// Shared or own topics.
    pub topics: Topics,
    /// How often a list is made.
    pub period: Duration,
    /// After how long a silence the other side counts as gone. Several times `sync`.
    pub silence: Duration,
    /// How often a reporter compares clocks, and asks again where it is not answered.
    pub sync: Duration,
    /// How many robots may be connected.
    pub robots_max: u16,
}

impl Default for TrackerConfig {
    /// For states every 33 ms.
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

/// When a message of a robot came to the tracker and was answered, for comparing clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Answer {
    /// When the robot sent what is answered, on its clock.
    pub echo: Instant,
    /// When that was received, on the tracker's clock.
    pub received_at: Instant,
    /// When the answer was sent, on the tracker's clock.
    pub sent_at: Instant,
}

/// What trackers and reporters say to each other, beside the states.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Message {
    /// Robot to tracker: take me in.
    Connect {
        /// Which start of the robot. Later ones have greater numbers.
        incarnation: u32,
        /// When this was sent, on the robot's clock.
        sent_at: Instant,
    },
    /// Tracker to robot: publish on `topic`.
    Accept {
        /// The start of the robot that is taken in.
        incarnation: u32,
        /// Where it publishes.
        topic: TopicId,
        /// For comparing clocks.
        answer: Answer,
    },
    /// Tracker to robot: there is no room.
    Refuse {
        /// The start of the robot that is refused.
        incarnation: u32,
    },
    /// Robot to tracker: still here; what is your time?
    Sync {
        /// The start of the robot.
        incarnation: u32,
        /// When this was sent, on the robot's clock.
        sent_at: Instant,
    },
    /// Tracker to robot: this.
    Synced {
        /// The start of the robot that asked.
        incarnation: u32,
        /// For comparing clocks.
        answer: Answer,
    },
    /// Tracker to robot: you are not connected.
    Unknown {
        /// The start of the robot that was not known.
        incarnation: u32,
    },
    /// Robot to tracker: I leave.
    Leave {
        /// The start of the robot that leaves.
        incarnation: u32,
    },
}

/// When one state passed each point, all on the tracker's clock (002, figure 3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamps {
    /// T1, as the robot reckons the tracker's clock. `None` until it has compared clocks.
    pub created_at: Option<Instant>,
    /// By how much T1 may be off.
    pub error: Duration,
    /// T2.
    pub received_at: Instant,
    /// T3.
    pub listed_at: Instant,
}

impl Stamps {
    /// The data age at `used_at`, T4: T4 - T1. Zero where clocks seem to say that it is used before it was made. `None`
    /// where T1 is not known. Who uses the list elsewhere than at the tracker turns its time into the tracker's first,
    /// with [`OffsetEstimate::offset`].
    pub fn age(&self, used_at: Instant) -> Option<Duration> {
        self.created_at.map(|created_at| used_at.since(created_at))
    }

    /// T2 - T1, T3 - T2 and T4 - T3, of which the age consists (002, figures 4 to 6). The first as [`Stamps::age`].
    pub fn legs(&self, used_at: Instant) -> (Option<Duration>, Duration, Duration) {
        let on_the_way = self.created_at.map(|created_at| self.received_at.since(created_at));
        (
            on_the_way,
            self.listed_at.since(self.received_at),
            used_at.since(self.listed_at),
        )
    }
}

/// How well a robot's states come in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Updates {
    /// On how many lists a fresh state was due.
    pub due: u64,
    /// On how many of these there was none.
    pub missed: u64,
    /// States that were older than one that had come, or came twice.
    pub stale: u64,
}

impl Updates {
    /// The update-miss ratio, 0 to 1.
    pub fn miss_ratio(&self) -> f64 {
        if self.due == 0 {
            return 0.0;
        }
        self.missed as f64 / self.due as f64
    }
}

/// The robot that a message is for.
fn reply(to: RobotId, message: Message) -> TrackerAction {
    TrackerAction::Send { to, message }
}

#[cfg(test)]
mod tests;
