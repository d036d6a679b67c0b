//! The contents of a team file, validated: plain values with units, ready for the simulator and the robots.
//!
//! Defaults follow the navigation testbed of Deng 2022 (section VI) and stock Linux stations; each type's reader sets
//! them. Random values (phases, fading) are left out: they belong to a run and its seed.

use crate::recorded::Recorded;
use coorp_core::paths::Duplicate;
use coorp_core::policy::Completions;
use coorp_core::protect::Rule;
use coorp_core::{Duration, RobotId};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

/// The fastest MCS that every standard has at every width and number of streams.
pub(crate) const MCS_DEFAULT: u8 = 7;

/// A team, as returned by `load` and `parse`.
#[derive(Clone, Debug, PartialEq)]
pub struct Team {
    /// `name`, or the file's stem by default.
    pub name: String,
    /// The robots in the file's order; a `RobotId` is an index into this list.
    pub robots: Vec<Robot>,
    /// The robot that leads, and does inference and permits.
    pub leader: RobotId,
    /// The channel and the WNICs of every robot's `wlan0`.
    pub air: Air,
    /// Additional interfaces of the robots: `wlan1`, `wlan2` and so on, in the file's order.
    pub interfaces: Vec<Interface>,
    /// Scripted events: faults and their times.
    pub events: Vec<Event>,
    /// The MPC loop; `None` if the team has none.
    pub control: Option<Control>,
    /// The DRLC; `None` if the team does not learn.
    pub learning: Option<Learning>,
    /// Plain flows; the caller assigns the `FlowId`s of a run.
    pub flows: Vec<Flow>,
    /// Overrides of the named policies.
    pub policy: PolicyOverrides,
    /// The settings with which robots find and trust each other on real networks.
    pub live: Live,
    /// The rules that classify unchanged programs' packets. The first rule that matches wins.
    pub protect: Vec<Rule>,
    /// Places for robots that may join the team while it runs. Not simulated: see [`Team::with_places`].
    pub places: Vec<Robot>,
}

/// One robot.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Robot {
    /// The name, unique in the team.
    pub name: String,
    /// Whether the robot leads; true for exactly one robot of a team.
    pub leader: bool,
    /// The position at the start, in metres.
    pub position_m: Option<[f64; 2]>,
    /// The route, in metres: from `position_m` along these points, back to `position_m`, and again.
    pub waypoints_m: Vec<[f64; 2]>,
    /// The speed in metres per second; zero without waypoints.
    pub speed_mps: f64,
    /// The rate of links that start at this robot.
    pub rate: RateOverride,
    /// Median duration of a training round on this robot; default `Learning::training`.
    pub training: Option<Duration>,
    /// The time of the sensor's first sample after the start, less than the period. Default: see
    /// `Control::synchronised_phases`.
    pub phase: Option<Duration>,
    /// The robot's clock minus the leader's, in nanoseconds.
    pub clock_skew_ns: i64,
    /// Network interfaces for control, best first; if empty, the kernel chooses.
    pub interfaces: Vec<String>,
    /// Addresses at which the others reach the robot, one per interface if both are given. If empty, it is found by
    /// multicast.
    pub addresses: Vec<IpAddr>,
    /// First of its [`PORTS`] ports, if it differs from the team's.
    pub port: Option<u16>,
    /// Whether this is a place for a robot that may join. Such a robot never leads and has no vote, and may be absent.
    pub may_join: bool,
}

/// The number of ports that a live robot listens on, starting with its `port`.
pub const PORTS: u16 = 16;
/// The maximum number of a live robot's paths, its `interfaces` or `addresses`. Each path has its own ports among
/// [`PORTS`].
pub const PATHS_MAX: usize = 4;

/// `[live]`: the team on real sockets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Live {
    /// First of the ports that every robot listens on; default 7460.
    pub port: u16,
    /// Folder of the team's keys; default `keys` next to the team file.
    pub keys: PathBuf,
    /// When control is sent over two interfaces at once; default adaptive.
    pub duplicate: Duplicate,
    /// Whether the agents that protect programs are their robots' Zenoh routers; default no.
    pub zenoh: bool,
    /// Whether agents also protect what leaves a robot's interface by the default route; default no.
    pub protect_all: bool,
}

/// The rate settings of a robot or a link; `None` defers to the next wider setting.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RateOverride {
    /// A fixed MCS. Excludes `snr_db`.
    pub mcs: Option<u8>,
    /// Spatial streams, 1 to 4.
    pub streams: Option<u8>,
    /// A fixed signal-to-noise ratio, which determines MCS and losses. Excludes `mcs`.
    pub snr_db: Option<f64>,
    /// Share of MPDUs lost, from 0 to below 1.
    pub loss: Option<f64>,
}

/// 802.11 amendments that the air models.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standard {
    /// 802.11n, HT.
    N,
    /// 802.11ac, VHT.
    Ac,
    /// 802.11ax, HE.
    Ax,
}

/// `[air]`: the channel, common to all robots.
#[derive(Clone, Debug, PartialEq)]
pub struct Air {
    /// Default 802.11ac.
    pub standard: Standard,
    /// Channel number in the 5 GHz band; default 44.
    pub channel: u16,
    /// 20, 40 or 80 MHz; default 20.
    pub width_mhz: u16,
    /// Spatial streams, 1 to 4; default 1.
    pub streams: u8,
    /// 400 or 800 ns (n, ac), 800, 1600 or 3200 ns (ax); default 800.
    pub guard_interval_ns: u16,
    /// MCS of every link that does not set its own.
    pub mcs: Option<u8>,
    /// Signal-to-noise ratio of every link without its own rate, in dB.
    pub snr_db: Option<f64>,
    /// Share of MPDUs lost on every link without its own share; adds to the losses from `snr_db` or distance.
    pub loss: f64,
    /// Links with different settings, sorted by sender and receiver, without duplicates. See `Team::rate`.
    pub links: Vec<Link>,
    /// Whether RTS/CTS precedes data; default false.
    pub rts_cts: bool,
    /// Highest rate of RTS, CTS and acknowledgements: 6, 12 or 24 Mbit/s; default 24.
    pub control_rate_mbps: u16,
    /// The robot that relays between the others; default the leader. `None`: all send directly.
    pub access_point: Option<RobotId>,
    /// Whether bystanders wait EIFS after a collision; default true.
    pub eifs: bool,
    /// Whether a BlockAckReq requests a missed block ack before its frames are repeated; default false.
    pub block_ack_request: bool,
    /// Transmit power in dBm; default 20. This and the next two apply only if robots have positions.
    pub tx_power_dbm: f64,
    /// Noise power over the channel's width, including the receiver's noise figure, in dBm. Default: the thermal noise
    /// of the width (-174 dBm/Hz) plus a noise figure of 7 dB.
    pub noise_dbm: f64,
    /// Log-distance path loss exponent; default 3, for indoors. Free-space loss up to 1 m.
    pub path_loss_exponent: f64,
    /// EDCA parameters of AC_VO, AC_VI, AC_BE, AC_BK.
    pub edca: [Edca; 4],
    /// The network card of every robot.
    pub wnic: Wnic,
}

/// `[[air.link]]`: one direction between two robots.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// The sender.
    pub from: RobotId,
    /// The receiver.
    pub to: RobotId,
    /// The settings that differ.
    pub rate: RateOverride,
}

/// `[[interface]]`: an additional interface of the robots, on its own channel.
#[derive(Clone, Debug, PartialEq)]
pub struct Interface {
    /// The robots that have the interface, sorted. The leader and the access point always do.
    pub robots: Vec<RobotId>,
    /// The channel and the WNICs.
    pub air: Air,
}

/// `[[event]]`: a temporary change of the air or the robots.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// When the event starts, after the start of the run.
    pub at: Duration,
    /// When the event ends, after `at`; `None` for never.
    pub until: Option<Duration>,
    /// The interface affected, numbered as in `Team::channels`; `None` for all.
    pub interface: Option<usize>,
    /// The change.
    pub change: Change,
}

/// The change made by an event.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// Links have another rate or other losses. Overrides every other setting; among events, the later one in the file
    /// wins.
    Link {
        /// The sender; `None` for any.
        from: Option<RobotId>,
        /// The receiver; `None` for any.
        to: Option<RobotId>,
        /// The settings that differ.
        rate: RateOverride,
    },
    /// These robots hear only each other, and no other robot hears them. Sorted.
    Partition(Vec<RobotId>),
    /// These robots are off; afterwards they restart without any state. Sorted.
    Death(Vec<RobotId>),
}

/// The rate of one direction between two robots, as resolved by `Team::rate`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkRate {
    /// What determines the MCS.
    pub source: RateSource,
    /// Spatial streams, 1 to 4.
    pub streams: u8,
    /// Share of MPDUs lost regardless of the signal.
    pub loss: f64,
}

/// What determines a link's MCS.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RateSource {
    /// Always this MCS; valid for the standard, width and streams.
    Mcs(u8),
    /// The best MCS for this signal-to-noise ratio in dB, with the resulting losses.
    SnrDb(f64),
    /// Like `SnrDb`, with the ratio computed from both robots' positions, which must exist.
    Distance,
}

/// `[air.ac_vo]` and so on: one access category (IEEE 802.11-2020, 10.23.2, defaults of table 9-155).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edca {
    /// Slots after a SIFS before the backoff, 1 to 15.
    pub aifsn: u8,
    /// Smallest contention window, a power of two minus one.
    pub cw_min: u16,
    /// Largest contention window, a power of two minus one, at least `cw_min`.
    pub cw_max: u16,
    /// TXOP limit; zero means one PPDU.
    pub txop: Duration,
    /// Maximum number of MPDUs in an A-MPDU, 1 (no aggregation) to 64, up to 256 for 802.11ax.
    pub ampdu_frames: u16,
    /// Maximum length of an A-MPDU in bytes.
    pub ampdu_bytes: u32,
}

/// A network card: the profile named by `wnic`.
#[derive(Clone, Debug, PartialEq)]
pub struct Wnic {
    /// `ideal`, `mt7612u`, or the path of a profile file.
    pub name: String,
    /// Capacity of each category's hardware queue, in frames.
    pub queue_frames: u16,
    /// Frames that the driver takes for one receiver before it moves to the next.
    pub burst_frames: u16,
    /// Capacity of the commit stage, a FIFO in the baseband in which nothing overtakes. `None`: no such stage.
    pub commit_frames: Option<u16>,
    /// Whether the driver completes a frame when the baseband has it, instead of after it was on the air.
    pub completes_on_transfer: bool,
    /// Retransmissions of a frame before it is given up.
    pub retries_max: u8,
    /// Caps `Edca::ampdu_frames`.
    pub ampdu_frames_max: Option<u16>,
    /// Caps `Edca::ampdu_bytes`.
    pub ampdu_bytes_max: Option<u32>,
    /// Minimum time between the starts of two MPDUs of an A-MPDU; zero for none.
    pub mpdu_spacing: Duration,
    /// Capacity of the host queue (FQ-CoDel), in packets.
    pub host_queue_packets: u32,
    /// Whether the host queue also drops by delay (CoDel).
    pub codel: bool,
}

/// `[control]`: the MPC loop (Deng 2022, section III).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Control {
    /// Time between perceptions of one robot.
    pub period: Duration,
    /// The reaction bound; at most the period unless loops overlap.
    pub bound: Duration,
    /// Size of a perception, bytes.
    pub perception_bytes: u64,
    /// Size of a control message to one robot, bytes.
    pub command_bytes: u64,
    /// Standard deviation of a sensor's sampling instant.
    pub jitter: Duration,
    /// How sampling instants are spread.
    pub jitter_shape: JitterShape,
    /// Whether a sensor samples only by its clock. Otherwise it waits until its robot has the last loop's command.
    pub overlap: bool,
    /// Mean of the exponential delay from a message's creation until it reaches the host queue.
    pub send_jitter: Duration,
    /// Median duration of the leader's inference.
    pub inference: Duration,
    /// Sigma of the inference time's logarithm; zero for a constant duration.
    pub inference_sigma: f64,
    /// Whether all sensors without a `Robot::phase` sample together; otherwise each has a phase drawn from the seed.
    pub synchronised_phases: bool,
}

/// A distribution of given standard deviation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JitterShape {
    /// Normal: small most of the time, and without a limit.
    Normal,
    /// Uniform: up to the square root of three standard deviations either way.
    Uniform,
}

/// `[learning]`: the DRLC (Deng 2022, section III). An epoch is `batch_loops` MPC loops of collecting, the batch's
/// dissemination, and `rounds` times training on every robot and synchronising.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Learning {
    /// Number of model parameters.
    pub parameters: u64,
    /// Bytes of one parameter on the air.
    pub bytes_per_parameter: u8,
    /// How rounds are synchronised.
    pub sync: Sync,
    /// MPC loops in a batch, and thus data items.
    pub batch_loops: u32,
    /// Rounds of training and synchronisation on one batch.
    pub rounds: u32,
    /// Median duration of the training in a round.
    pub training: Duration,
    /// Sigma of the training time's logarithm; zero for a constant duration.
    pub training_sigma: f64,
    /// Size of a data item, bytes.
    pub item_bytes: u64,
}

/// How training rounds are synchronised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sync {
    /// Bulk synchronous: all robots wait for the slowest.
    Bsp,
    /// Stale synchronous: the fastest robot is at most this many rounds ahead of the slowest.
    Ssp {
        /// Number of rounds, at least 1.
        staleness: u32,
    },
    /// Asynchronous: no robot waits.
    Asp,
}

/// `[[flow]]`: plain traffic between two robots.
#[derive(Clone, Debug, PartialEq)]
pub struct Flow {
    /// The name, unique among the flows.
    pub name: String,
    /// The sender.
    pub from: RobotId,
    /// The receiver; differs from the sender.
    pub to: RobotId,
    /// The access category; default AC_BE.
    pub category: Category,
    /// The transport; default UDP.
    pub transport: Transport,
    /// The traffic.
    pub traffic: Traffic,
    /// When the flow starts.
    pub start: Duration,
    /// When the flow stops, after `start`; `None` for the end of the run.
    pub stop: Option<Duration>,
    /// Whether policies treat the flow as bulk (permits, gate). Default: true if saturated and in AC_BE or AC_BK.
    pub bulk: bool,
    /// The age at which a message of a control flow is late, if any.
    pub bound: Option<Duration>,
    /// Messages that replace those of a periodic flow's `traffic` when a run replays a recording. Never set by a team
    /// file.
    pub recorded: Option<Arc<Recorded>>,
}

/// EDCA access categories, as named in the team file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Category {
    /// AC_VO
    Voice,
    /// AC_VI
    Video,
    /// AC_BE
    BestEffort,
    /// AC_BK
    Background,
}

impl Category {
    /// Returns the index in `Air::edca`: 0 for AC_VO to 3 for AC_BK.
    pub const fn index(self) -> usize {
        self as usize
    }
}

/// The transport protocol of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Transport {
    Udp,
    Tcp,
}

/// The traffic of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traffic {
    /// Always has more to send.
    Saturated {
        /// Payload of a packet: at most 1472 bytes for UDP and 1448 for TCP, which are the defaults.
        packet_bytes: u16,
    },
    /// One message per period.
    Periodic {
        /// Size of a message in bytes; it may take several packets.
        size_bytes: u64,
        /// Time between messages.
        period: Duration,
        /// Standard deviation of a message's instant.
        jitter: Duration,
    },
}

/// `[policy]`: overrides these parts of every named policy that has them; `None` keeps the policy's own value.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PolicyOverrides {
    /// Permits at once (LIMIT).
    pub limit: Option<u16>,
    /// The duration of a permit (TIMESLICE).
    pub slice: Option<Duration>,
    /// Silence after which a holder loses its permit.
    pub lease: Option<Duration>,
    /// C: the share of control messages that a window should cover, 0.5 to below 1.
    pub accuracy: Option<f64>,
    /// The constant extension of windows.
    pub extension: Option<Duration>,
    /// p_prot: the percentile, as a share, at which the completion time table is read.
    pub protection_percentile: Option<f64>,
    /// Limit to which p_prot rises while bulk makes loops late. Beyond it, bulk also keeps a distance from windows. If
    /// not above p_prot, neither happens.
    pub protection_percentile_max: Option<f64>,
    /// N_samp: samples per depth of the completion time table.
    pub completion_samples: Option<u16>,
    /// Forget the completion times of a depth without samples for this long.
    pub completions_stale: Option<Duration>,
    /// Hold bulk if the WNIC would take longer than this to drain.
    pub backlog_max: Option<Duration>,
    /// End a window when its messages have left.
    pub early_release: Option<bool>,
    /// Open windows for the commands of loops at risk.
    pub command_windows: Option<bool>,
    /// Windows for other robots' messages also hold this robot's bulk.
    pub shared_windows: Option<bool>,
    /// Steer sensor phases so that windows coincide.
    pub steered_phases: Option<bool>,
    /// Send bulk to one receiver at a time.
    pub turns: Option<bool>,
    /// Maximum share of time taken by windows.
    pub window_share_max: Option<f64>,
    /// PPDUs longer than this are preceded by RTS/CTS.
    pub rts_over: Option<Duration>,
    /// Segments of bulk per acknowledgement.
    pub ack_every: Option<u32>,
    /// How robots learn that bulk has left; `None` for the best source of a stock kernel.
    pub completions: Option<Completions>,
    /// Mean time for which a robot's programs wait for a core whenever they have something to do; only simulated.
    pub scheduling_delay: Option<Duration>,
}

impl RateOverride {
    /// Returns this setting, completed from a wider one. An MCS here overrides a signal-to-noise ratio there, and vice
    /// versa.
    pub fn or(self, wider: RateOverride) -> RateOverride {
        let fixed = self.mcs.is_some() || self.snr_db.is_some();
        RateOverride {
            mcs: if fixed { self.mcs } else { wider.mcs },
            streams: self.streams.or(wider.streams),
            snr_db: if fixed { self.snr_db } else { wider.snr_db },
            loss: self.loss.or(wider.loss),
        }
    }
}

impl Air {
    /// Returns the settings of `[air]` for every link.
    pub(crate) fn rate(&self) -> RateOverride {
        RateOverride {
            mcs: self.mcs,
            streams: Some(self.streams),
            snr_db: self.snr_db,
            loss: Some(self.loss),
        }
    }
}

impl Team {
    /// Returns the first of the ports that a robot listens on.
    pub fn port(&self, robot: RobotId) -> u16 {
        let own = self.robots.get(usize::from(robot.0)).and_then(|robot| robot.port);
        own.unwrap_or(self.live.port)
    }

    /// Returns the team with its places among its robots, at their end: the team as it runs live. Every robot's place is
    /// then the same, whether or not others have joined.
    #[must_use]
    pub fn with_places(mut self) -> Team {
        self.robots.append(&mut self.places);
        self
    }

    /// Returns the number of robots that belong to the team from the start.
    pub fn founders(&self) -> usize {
        self.robots.iter().filter(|robot| !robot.may_join).count()
    }

    /// Returns the robot with this name.
    pub fn robot_named(&self, name: &str) -> Option<RobotId> {
        let at = self.robots.iter().position(|robot| robot.name == name)?;
        u16::try_from(at).ok().map(RobotId)
    }

    /// Returns the rate from one robot to another: from `[[air.link]]`, the sender, `[air]`, the positions, or MCS 7,
    /// in this order. `None` if a robot does not exist. Ignores events and interfaces other than `wlan0`: see
    /// `Team::rate_on`.
    pub fn rate(&self, from: RobotId, to: RobotId) -> Option<LinkRate> {
        self.rate_on(&self.air, RateOverride::default(), from, to)
    }

    /// Returns the rate on any channel of the team, with `now` taking precedence over everything else.
    pub fn rate_on(&self, air: &Air, now: RateOverride, from: RobotId, to: RobotId) -> Option<LinkRate> {
        let sender = self.robots.get(usize::from(from.0))?;
        let receiver = self.robots.get(usize::from(to.0))?;
        let link = air.links.binary_search_by_key(&(from, to), |link| (link.from, link.to));
        let link = link
            .ok()
            .and_then(|at| air.links.get(at))
            .map(|link| link.rate)
            .unwrap_or_default();
        let own = now.or(link).or(sender.rate).or(air.rate());
        let placed = sender.position_m.is_some() && receiver.position_m.is_some();
        let source = match (own.mcs, own.snr_db) {
            (Some(mcs), _) => RateSource::Mcs(mcs),
            (None, Some(snr_db)) => RateSource::SnrDb(snr_db),
            (None, None) if placed => RateSource::Distance,
            (None, None) => RateSource::Mcs(MCS_DEFAULT),
        };
        let (streams, loss) = (own.streams.unwrap_or(air.streams), own.loss.unwrap_or(air.loss));
        Some(LinkRate { source, streams, loss })
    }

    /// Returns the channels in the order of their interfaces: `wlan0`, which is `Team::air`, then `Team::interfaces`.
    pub fn channels(&self) -> impl Iterator<Item = &Air> {
        std::iter::once(&self.air).chain(self.interfaces.iter().map(|interface| &interface.air))
    }

    /// Returns the hops of a packet on a channel of this team: one, or two through the access point.
    pub fn hops(&self, air: &Air, from: RobotId, to: RobotId) -> impl Iterator<Item = (RobotId, RobotId)> {
        let point = air.access_point.filter(|point| ![from, to].contains(point));
        let first = (from, point.unwrap_or(to));
        std::iter::once(first).chain(point.map(|point| (point, to)))
    }

    /// Returns whether a robot has the interface of this number; `wlan0` is the first.
    pub fn has_interface(&self, robot: RobotId, interface: usize) -> bool {
        let Some(further) = interface.checked_sub(1) else {
            return usize::from(robot.0) < self.robots.len();
        };
        let interface = self.interfaces.get(further);
        interface.is_some_and(|interface| interface.robots.binary_search(&robot).is_ok())
    }
}

impl Event {
    /// Returns whether the event is active at this time after the start.
    pub fn active(&self, after: Duration) -> bool {
        self.at <= after && self.until.is_none_or(|until| after < until)
    }
}
