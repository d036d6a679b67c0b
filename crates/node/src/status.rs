//! A robot's status for its operator: the answer to a status query, and its text for `coorp watch`.

use std::net::IpAddr;

use coorp_core::admission::{self, Reason};
use coorp_core::alarms::Alarm;
use coorp_core::discovery::Counts;
use coorp_core::protect;
use coorp_core::robot::{self, PathStatus};
use serde::{Deserialize, Serialize};
use serde_json::{json, Value};

use crate::wire::Frame;

/// One robot's current status. Times are relative to now, because clocks are not shared.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The name.
    pub robot: String,
    /// The leader, as far as the robot knows, by index in the team file.
    pub leader: Option<u16>,
    /// Whether it leads.
    pub leads: bool,
    /// Whether it runs with keys.
    pub secure: bool,
    /// The policy that it runs.
    pub policy: String,
    /// The uptime, milliseconds.
    pub up_ms: u64,
    /// The robots that it can hear, by index in the team file.
    pub alive: Vec<u16>,
    /// The permit.
    pub permit: Permit,
    /// As the leader: the robots that hold permits.
    pub holders: Vec<u16>,
    /// As the leader: the robots that wait for a permit, the next first.
    pub queue: Vec<u16>,
    /// The window that it keeps bulk out of: its start relative to now (negative: it has begun) and length,
    /// microseconds.
    pub window_us: Option<(i64, u64)>,
    /// The leader's clock minus its own, and the error bound, nanoseconds.
    pub clock_ns: Option<(i64, u64)>,
    /// The names of its paths, in order.
    pub paths: Vec<String>,
    /// The paths to each robot that has several.
    pub choices: Vec<Path>,
    /// The bulk; `None` without keys, which disable it.
    pub bulk: Option<Bulk>,
    /// The control topics that it publishes.
    pub published: Vec<Published>,
    /// The control topics that it receives, one entry per sender.
    pub heard: Vec<Heard>,
    /// The states that it gathers, one entry per robot.
    pub gathered: Vec<Gathered>,
    /// The alarms for the operator.
    pub alarms: Vec<Alarm>,
    /// The robots that two processes run as.
    pub twins: Vec<Twins>,
    /// Frames that it has refused, by reason.
    pub refused: Refused,
    /// Attempts to connect for control or bulk.
    pub door: Door,
    /// Counts of discovery: announcements, attempts and refusals.
    pub found: Counts,
    /// The list of revoked certificates.
    pub revoked: Revoked,
    /// The flows of other programs over its interfaces, if the robot protects them; if there are many, the most
    /// important ones.
    pub flows: Vec<protect::Status>,
}

/// A robot that two processes run as.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Twins {
    /// The robot, by index in the team file.
    pub robot: u16,
    /// The addresses of the two processes, as far as they are known.
    pub at: Vec<IpAddr>,
}

impl Twins {
    /// Returns the message for the operator.
    pub fn told(&self, robot: &str) -> String {
        let at: Vec<String> = self.at.iter().map(IpAddr::to_string).collect();
        let at = match at.join(" and ") {
            at if at.is_empty() => String::new(),
            at => format!(", at {at}"),
        };
        format!(
            "two processes run as {robot}{at}, and one of them is ignored: stop one, give it its own keys if it is on \
             another machine, and restart the other"
        )
    }
}

/// One of several paths to another robot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Path {
    /// The other robot, by index in the team file.
    pub to: u16,
    /// The index among this robot's paths.
    pub path: u64,
    /// Whether it is alive.
    pub state: PathState,
    /// The smoothed round trip, microseconds, once one was measured.
    pub round_trip_us: Option<u64>,
    /// The smoothed share of its messages that is lost or late, in millionths.
    pub failures_ppm: u32,
    /// Whether it carried the newest control message, or a duplicate.
    pub carries: Carries,
    /// Whether it carries bulk now.
    pub bulk: bool,
}

impl Path {
    /// Returns whether it is the same path in the same state: measurements may differ.
    pub fn is_like(&self, other: &Path) -> bool {
        let part = |path: &Path| (path.to, path.path, path.state, path.carries, path.bulk);
        part(self) == part(other)
    }

    /// Returns what is recorded of it ([`Kind::Paths`](crate::recording::Kind::Paths)), with the other robot's name and its own.
    pub fn recorded(&self, to: &str, name: &str) -> Value {
        let mut value = json!({
            "to": to, "path": name, "state": self.state, "carries": self.carries, "bulk": self.bulk,
            "failures": f64::from(self.failures_ppm) / 1e6,
        });
        if let Some(us) = self.round_trip_us {
            value["round_trip_us"] = us.into();
        }
        value
    }
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

/// Whether a path is alive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum PathState {
    /// Unknown: nothing is sent to that robot.
    #[default]
    Resting,
    /// The other robot answers over it.
    Alive,
    /// The other robot does not answer over it.
    Dead,
}

/// The role of a path for a control message.
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
    /// The name.
    pub topic: String,
    /// The number of messages so far.
    pub count: u64,
}

/// A control topic as received from one sender.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heard {
    /// The name.
    pub topic: String,
    /// The sender, by index in the team file.
    pub from: u16,
    /// The number of messages that were newer than all before.
    pub count: u64,
    /// The number of messages that never arrived, or only after a newer one.
    pub missed: u64,
    /// The number of copies of messages that had already arrived over another path.
    pub duplicates: u64,
    /// The time since the newest arrived, microseconds.
    pub quiet_us: u64,
    /// The path that delivered the newest first.
    pub path: u64,
    /// The number of messages that were taken and whose age was known then.
    pub aged: u64,
    /// The sum of their ages, microseconds.
    pub ages_us: u64,
    /// The number of them that were older than the team's reaction bound; 0 without a control loop.
    pub late: u64,
}

/// Statistics of the states of one robot on a gathered topic.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gathered {
    /// The topic.
    pub topic: String,
    /// The robot, by index in the team file.
    pub from: u16,
    /// The number of lists on which a fresh state was due.
    pub due: u64,
    /// The number of these lists without one: missed updates.
    pub missed: u64,
    /// The number of states that were older than one that had arrived, or copies.
    pub stale: u64,
    /// The current age of the state on the last list, and the error bound, microseconds, if the clocks were compared.
    pub age_us: Option<(u64, u64)>,
}

/// A robot's permit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum Permit {
    /// The policy has no permits.
    #[default]
    NotNeeded,
    Idle,
    Waiting,
    Holding,
}

/// The source by which a robot knows that a bulk datagram has left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Completions {
    /// Nothing has been sent yet.
    #[default]
    Unknown,
    /// mac80211 reports each datagram's fate on the air (`SO_WIFI_STATUS`).
    WifiStatus,
    /// The kernel counts what its driver has not freed yet (`SIOCOUTQ`).
    OutQueue,
    /// No lower layer reports anything; the receiver acknowledges.
    Acknowledgements,
    /// `coorp emu` counts what its card has not freed yet.
    Emulated,
}

impl Completions {
    /// Returns the source with this number, in the order above.
    pub(crate) fn numbered(number: u8) -> Self {
        match number {
            1 => Completions::WifiStatus,
            2 => Completions::OutQueue,
            3 => Completions::Acknowledgements,
            4 => Completions::Emulated,
            _ => Completions::Unknown,
        }
    }

    /// Returns whether a count of held bytes shows what has left.
    pub(crate) fn are_counted(self) -> bool {
        matches!(self, Completions::OutQueue | Completions::Emulated)
    }

    /// Returns whether a lower layer reports what has left.
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
    /// The number of its messages that wait to be delivered.
    pub waiting: u64,
    /// The bytes that it has sent, including repeated ones.
    pub sent_bytes: u64,
    /// The bytes that it has received.
    pub received_bytes: u64,
    /// The number of messages delivered to it.
    pub delivered: u64,
    /// The number of datagrams that the kernel has and did not report as sent.
    pub in_flight: u64,
    /// Whether the gate holds bulk now.
    pub held: bool,
    /// The number of times that a datagram was held back, including for lack of a permit.
    pub holds: u64,
    /// The number of datagrams that the air has given up, as far as the interface reports that.
    pub given_up: u64,
    /// The number of datagrams without any report for half a second.
    pub unreported: u64,
    /// The source by which it knows what has left.
    pub completions: Completions,
}

/// Counts of what was refused: frames, and peers that are not members of the team.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// Frames longer than their kind allows.
    pub oversized: u64,
    /// Frames of another version.
    pub version: u64,
    /// Frames that are not of the expected kind.
    pub malformed: u64,
    /// Grants that were not requested, or no longer wanted.
    pub stale_grants: u64,
    /// Connections for control or bulk that failed because one end's certificate is not of the other's team.
    pub strangers: u64,
}

impl Refused {
    /// Returns the sum of all counts.
    pub fn total(&self) -> u64 {
        self.oversized + self.version + self.malformed + self.stale_grants + self.strangers
    }
}

/// Attempts to connect to a robot for control or bulk, over all its paths.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Door {
    /// The number of handshakes that are not finished.
    pub unfinished: u64,
    /// The number of connections that other robots have opened.
    pub connections: u64,
    /// The number of addresses for which something is stored.
    pub addresses: u64,
    /// The number of refused attempts, by reason.
    pub totals: Vec<(Reason, u64)>,
    /// The same for the addresses with the most refusals, the highest counts first.
    pub refused: Vec<admission::Refused>,
}

/// The list of revoked certificates that a robot has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revoked {
    /// The list's number; the list with the highest one is valid. 0 before the first.
    pub list: u64,
    /// The number of certificates in it.
    pub certificates: u64,
    /// The number of lists that were refused because the team's authority had not signed them.
    pub rejected: u64,
}

impl Frame for Status {
    const KIND: u8 = 5;
    const BYTES_MAX: usize = 4 << 20;
}
