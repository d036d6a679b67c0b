//! What a robot says of itself to its operator: the answer to a status query, and its text for `coorp watch`.

use coorp_core::robot::{self, PathStatus};
use serde::{Deserialize, Serialize};

use crate::wire::Frame;

/// One robot as it is now. Times are relative to now, as clocks are not shared.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Its name.
    pub robot: String,
    /// Who leads, as far as it knows, by place in the team file.
    pub leader: Option<u16>,
    /// Whether it leads.
    pub leads: bool,
    /// Whether it takes part with keys.
    pub secure: bool,
    /// The policy that it runs.
    pub policy: String,
    /// How long it has been up, milliseconds.
    pub up_ms: u64,
    /// The robots that it can hear, by their place in the team file.
    pub alive: Vec<u16>,
    /// Its permit.
    pub permit: Permit,
    /// As the leader: who holds permits.
    pub holders: Vec<u16>,
    /// As the leader: who waits for one, the next first.
    pub queue: Vec<u16>,
    /// The window that it keeps bulk out of: its start from now (negative: it has begun) and length, microseconds.
    pub window_us: Option<(i64, u64)>,
    /// The leader's clock minus its own and the bound of that, nanoseconds.
    pub clock_ns: Option<(i64, u64)>,
    /// The names of its paths, in their order.
    pub paths: Vec<String>,
    /// The paths to each robot to which there are several.
    pub choices: Vec<Path>,
    /// Its bulk; `None` without keys, where there is none.
    pub bulk: Option<Bulk>,
    /// The control topics that it publishes.
    pub published: Vec<Published>,
    /// The control topics that it hears, one entry a sender.
    pub heard: Vec<Heard>,
    /// The states that it gathers, one entry a robot.
    pub gathered: Vec<Gathered>,
    /// Frames that it has refused, by reason.
    pub refused: Refused,
}

/// One of several paths to another robot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Path {
    /// The other robot, by its place in the team file.
    pub to: u16,
    /// Its place among this robot's paths.
    pub path: u64,
    /// Whether it is there.
    pub state: PathState,
    /// The smoothed round trip, once there was one, microseconds.
    pub round_trip_us: Option<u64>,
    /// The share of what it carries that is lost or late, smoothed, in millionths.
    pub failures_ppm: u32,
    /// What it carried of the newest control message.
    pub carries: Carries,
    /// Whether it carries bulk now.
    pub bulk: bool,
}

impl From<PathStatus> for Path {
    fn from(path: PathStatus) -> Self {
        Path {
            to: path.to.0,
            path: path.path as u64,
            state: match path.state {
                robot::PathState::Resting => PathState::Resting,
                robot::PathState::Alive => PathState::Alive,
                robot::PathState::Dead => PathState::Dead,
            },
            round_trip_us: path.round_trip.map(|span| span.as_nanos() / 1_000),
            failures_ppm: path.failures_ppm,
            carries: match path.carries {
                robot::Carries::Nothing => Carries::Nothing,
                robot::Carries::Original => Carries::Original,
                robot::Carries::Duplicate => Carries::Duplicate,
            },
            bulk: path.bulk,
        }
    }
}

/// Whether a path is there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum PathState {
    /// Nothing is sent to that robot, so nobody knows.
    #[default]
    Resting,
    /// The other robot answers over it.
    Alive,
    /// It does not.
    Dead,
}

/// What a path carries of a control message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum Carries {
    #[default]
    Nothing,
    Original,
    Duplicate,
}

/// A control topic that a robot publishes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Published {
    /// Its name.
    pub topic: String,
    /// Messages so far.
    pub count: u64,
}

/// A control topic as a robot hears it from one sender.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heard {
    /// Its name.
    pub topic: String,
    /// The sender, by its place in the team file.
    pub from: u16,
    /// Messages that were newer than all before.
    pub count: u64,
    /// Messages that never came, or only after a newer one.
    pub missed: u64,
    /// Copies of messages that had come already, over another path.
    pub duplicates: u64,
    /// How long ago the newest came, microseconds.
    pub quiet_us: u64,
    /// The path that brought the newest first.
    pub path: u64,
    /// Messages that were taken and whose age was known then.
    pub aged: u64,
    /// How old these were, added up, microseconds.
    pub ages_us: u64,
    /// How many of them were older than the team's reaction bound; 0 where it has no control loop.
    pub late: u64,
}

/// How the states of one robot on a topic come in where they are gathered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gathered {
    /// The topic.
    pub topic: String,
    /// The robot, by its place in the team file.
    pub from: u16,
    /// Lists on which a fresh state was due.
    pub due: u64,
    /// Lists among them that had none: missed updates.
    pub missed: u64,
    /// States that were older than one that had come, or copies.
    pub stale: u64,
    /// How old the state on the last list is now and the bound of that, microseconds, where the clocks were compared.
    pub age_us: Option<(u64, u64)>,
}

/// A robot's permit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum Permit {
    /// The policy has none.
    #[default]
    NotNeeded,
    Idle,
    Waiting,
    Holding,
}

/// How a robot knows that a bulk datagram has left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Completions {
    /// Nothing was sent yet.
    #[default]
    Unknown,
    /// mac80211 reports what the air made of each (`SO_WIFI_STATUS`).
    WifiStatus,
    /// The kernel counts what its driver has not freed yet (`SIOCOUTQ`).
    OutQueue,
    /// Nobody below says; the receiver acknowledges.
    Acknowledgements,
    /// `coorp emu` counts what its card has not freed yet.
    Emulated,
}

impl Completions {
    /// The one of this number, in the order above.
    pub(crate) fn numbered(number: u8) -> Self {
        match number {
            1 => Completions::WifiStatus,
            2 => Completions::OutQueue,
            3 => Completions::Acknowledgements,
            4 => Completions::Emulated,
            _ => Completions::Unknown,
        }
    }

    /// Whether a count of what is held says what has left.
    pub(crate) fn are_counted(self) -> bool {
        matches!(self, Completions::OutQueue | Completions::Emulated)
    }

    /// Whether somebody below says what has left.
    pub(crate) fn are_reported(self) -> bool {
        self.are_counted() || self == Completions::WifiStatus
    }
}

impl std::fmt::Display for Completions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Completions::Unknown => "nothing yet",
            Completions::WifiStatus => "WiFi status",
            Completions::OutQueue => "the kernel's send queue",
            Completions::Acknowledgements => "acknowledgements",
            Completions::Emulated => "the emulator's send queue",
        })
    }
}

/// Bulk, as one robot sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bulk {
    /// Messages that wait to be delivered by it.
    pub waiting: u64,
    /// Bytes that it has sent, repeated ones included.
    pub sent_bytes: u64,
    /// Bytes that it has received.
    pub received_bytes: u64,
    /// Messages that were delivered to it.
    pub delivered: u64,
    /// Datagrams that the kernel has and did not report gone.
    pub in_flight: u64,
    /// Whether the gate holds bulk now.
    pub held: bool,
    /// How often a datagram was held back, for want of a permit too.
    pub holds: u64,
    /// Datagrams that the air has given up, as far as the interface tells.
    pub given_up: u64,
    /// Datagrams that nothing was heard of for half a second.
    pub unreported: u64,
    /// How it knows what has left.
    pub completions: Completions,
}

/// What was refused: frames, and who is of another team or of none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// Longer than their kind may be.
    pub oversized: u64,
    /// Of another version.
    pub version: u64,
    /// No frames of the kind.
    pub malformed: u64,
    /// Grants that nobody had asked for, or no longer.
    pub stale_grants: u64,
    /// Connections for control or bulk that did not come about because one end's certificate is not the other's team's.
    pub strangers: u64,
}

impl Refused {
    /// All of them.
    pub fn total(&self) -> u64 {
        self.oversized + self.version + self.malformed + self.stale_grants + self.strangers
    }
}

impl Frame for Status {
    const KIND: u8 = 5;
    const BYTES_MAX: usize = 4 << 20;
}
