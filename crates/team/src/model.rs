//! What a team file says, validated: plain values with units, ready for the simulator and the robots.
//!
//! Defaults follow the navigation testbed of 001 (section VI) and stock Linux stations; each type's reader gives
//! them. Anything random (phases, fading) is left out: it belongs to a run and its seed.

use crate::recorded::Recorded;
use coorp_core::paths::Duplicate;
use coorp_core::{Duration, RobotId};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

/// The fastest MCS that every standard has at every width and number of streams.
pub(crate) const MCS_DEFAULT: u8 = 7;

/// A team: what `load` and `parse` return.
#[derive(Clone, Debug, PartialEq)]
pub struct Team {
    /// `name`, or else the file's stem.
    pub name: String,
    /// The robots in the file's order; `RobotId` is the place in this list.
    pub robots: Vec<Robot>,
    /// The robot that leads: the access point, where inference and permits are.
    pub leader: RobotId,
    /// The channel and the WNICs: every robot's `wlan0`.
    pub air: Air,
    /// More interfaces of the robots: `wlan1`, `wlan2` and so on, in the file's order.
    pub interfaces: Vec<Interface>,
    /// What goes wrong, and when.
    pub events: Vec<Event>,
    /// The MPC loop; `None` where the team has none.
    pub control: Option<Control>,
    /// The DRLC; `None` where the team does not learn.
    pub learning: Option<Learning>,
    /// Plain flows; `FlowId`s of the run are the user's to give.
    pub flows: Vec<Flow>,
    /// Replaces parts of the named policies.
    pub policy: PolicyOverrides,
    /// How the robots find and trust each other on real networks.
    pub live: Live,
}

/// One robot.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Robot {
    /// Unique in the team.
    pub name: String,
    /// True for exactly one robot of a team.
    pub leader: bool,
    /// Where it stands at the start, metres.
    pub position_m: Option<[f64; 2]>,
    /// Where it drives, in a circle: from `position_m` along these points and back to `position_m`. Metres.
    pub waypoints_m: Vec<[f64; 2]>,
    /// How fast it drives, metres a second; zero without waypoints.
    pub speed_mps: f64,
    /// Of the links that start at this robot.
    pub rate: RateOverride,
    /// Median training time of a round on this robot; else `Learning::training`.
    pub training: Option<Duration>,
    /// When its sensor first samples, after the start and below the period; else see `Control::synchronised_phases`.
    pub phase: Option<Duration>,
    /// Its clock minus the leader's, nanoseconds.
    pub clock_skew_ns: i64,
    /// Network interfaces that control goes over, best first; none: whichever the kernel chooses.
    pub interfaces: Vec<String>,
    /// Addresses that the others reach it at, one an interface where both are given; none: found by multicast.
    pub addresses: Vec<IpAddr>,
    /// First of its [`PORTS`] ports, where it is not the team's.
    pub port: Option<u16>,
}

/// Ports that a live robot listens on, from its `port` on.
pub const PORTS: u16 = 16;
/// Paths of a live robot at most, that is its `interfaces` or `addresses`: each has ports of its own among those.
pub const PATHS_MAX: usize = 4;

/// `[live]`: the team on real sockets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Live {
    /// First of the ports that every robot listens on; default 7460.
    pub port: u16,
    /// Folder of the team's keys; default `keys` beside the team file.
    pub keys: PathBuf,
    /// When control goes over two interfaces at once; default adaptive.
    pub duplicate: Duplicate,
}

/// What a robot or a link says of its rate; `None` leaves it to the next wider description.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RateOverride {
    /// A fixed MCS. Excludes `snr_db`.
    pub mcs: Option<u8>,
    /// Spatial streams, 1 to 4.
    pub streams: Option<u8>,
    /// A fixed signal to noise ratio, from which MCS and losses follow. Excludes `mcs`.
    pub snr_db: Option<f64>,
    /// Share of MPDUs lost, 0 to below 1.
    pub loss: Option<f64>,
}

/// 802.11 amendments that the air knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standard {
    /// 802.11n, HT.
    N,
    /// 802.11ac, VHT.
    Ac,
    /// 802.11ax, HE.
    Ax,
}

/// `[air]`: the channel, the same for all.
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
    /// MCS of every link without one of its own.
    pub mcs: Option<u8>,
    /// Signal to noise ratio of every link without a rate of its own, dB.
    pub snr_db: Option<f64>,
    /// Share of MPDUs lost on every link without a share of its own; comes on top of what `snr_db` or distance cost.
    pub loss: f64,
    /// Links that differ, sorted by sender and receiver, each pair once. See `Team::rate`.
    pub links: Vec<Link>,
    /// Whether data is sent behind RTS and CTS; default false.
    pub rts_cts: bool,
    /// Rate of RTS, CTS and acknowledgements: 6, 12 or 24 Mbit/s; default 24.
    pub control_rate_mbps: u16,
    /// Transmit power, dBm; default 20. This and the next two count only where robots have positions.
    pub tx_power_dbm: f64,
    /// Noise power over the channel's width, receiver's noise figure included, dBm. Default: the thermal noise of
    /// the width (-174 dBm/Hz) and a noise figure of 7 dB.
    pub noise_dbm: f64,
    /// Log-distance path loss exponent; default 3, indoors. Free space loss up to 1 m.
    pub path_loss_exponent: f64,
    /// EDCA parameters: AC_VO, AC_VI, AC_BE, AC_BK.
    pub edca: [Edca; 4],
    /// The network card of every robot.
    pub wnic: Wnic,
}

/// `[[air.link]]`: one direction between two robots.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// Who sends.
    pub from: RobotId,
    /// Who receives.
    pub to: RobotId,
    /// What differs.
    pub rate: RateOverride,
}

/// `[[interface]]`: one more interface of the robots, on a channel of its own.
#[derive(Clone, Debug, PartialEq)]
pub struct Interface {
    /// Who has it, sorted; the leader, who is its access point, is always among them.
    pub robots: Vec<RobotId>,
    /// Its channel and WNICs.
    pub air: Air,
}

/// `[[event]]`: something that happens to the air or to robots at its time, and ends at another.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// When it begins, after the run's start.
    pub at: Duration,
    /// When it ends, after `at`; `None`: never.
    pub until: Option<Duration>,
    /// The interface that it is about, as `Team::channels` counts them; `None`: all.
    pub interface: Option<usize>,
    /// What happens.
    pub change: Change,
}

/// What an event changes.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// Links have another rate or other losses. Wins over whatever else is said of them; among events the later one
    /// in the file.
    Link {
        /// Who sends; `None`: anybody.
        from: Option<RobotId>,
        /// Who receives; `None`: anybody.
        to: Option<RobotId>,
        /// What differs.
        rate: RateOverride,
    },
    /// These robots hear one another and nobody else, nor does anybody else hear them. Sorted.
    Partition(Vec<RobotId>),
    /// These robots are off; afterwards they start anew, knowing nothing. Sorted.
    Death(Vec<RobotId>),
}

/// The rate of one direction between two robots, all descriptions of it put together by `Team::rate`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkRate {
    /// What fixes the MCS.
    pub source: RateSource,
    /// Spatial streams, 1 to 4.
    pub streams: u8,
    /// Share of MPDUs lost whatever the signal.
    pub loss: f64,
}

/// What fixes a link's MCS.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RateSource {
    /// This MCS always; valid for the standard, width and streams.
    Mcs(u8),
    /// The best MCS for this signal to noise ratio, dB, and the losses that go with it.
    SnrDb(f64),
    /// Like `SnrDb`, with the ratio from both robots' positions, which both have.
    Distance,
}

/// `[air.ac_vo]` and the like: one access category (IEEE 802.11-2020, 10.23.2, defaults of table 9-155).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edca {
    /// Slots after a SIFS before backoff, 1 to 15.
    pub aifsn: u8,
    /// Smallest contention window, a power of two less one.
    pub cw_min: u16,
    /// Largest contention window, a power of two less one, not below `cw_min`.
    pub cw_max: u16,
    /// TXOP limit; zero stands for one PPDU.
    pub txop: Duration,
    /// MPDUs in an A-MPDU at most, 1 (no aggregation) to 64, for 802.11ax to 256.
    pub ampdu_frames: u16,
    /// A-MPDU length at most, bytes.
    pub ampdu_bytes: u32,
}

/// A network card: the profile that `wnic` names.
#[derive(Clone, Debug, PartialEq)]
pub struct Wnic {
    /// `ideal`, `mt7612u`, or the path of a profile file.
    pub name: String,
    /// Frames in each category's hardware queue at most.
    pub queue_frames: u16,
    /// Frames that the driver takes for one receiver before it turns to the next.
    pub burst_frames: u16,
    /// Frames that the baseband takes out of order of priority: nothing overtakes them. `None`: no such stage.
    pub commit_frames: Option<u16>,
    /// Whether the driver counts a frame as complete when the baseband has it and not when it was on the air.
    pub completes_on_transfer: bool,
    /// Times that a frame is sent again before it is given up.
    pub retries_max: u8,
    /// Caps `Edca::ampdu_frames`.
    pub ampdu_frames_max: Option<u16>,
    /// Caps `Edca::ampdu_bytes`.
    pub ampdu_bytes_max: Option<u32>,
    /// Least time between the starts of two MPDUs of an A-MPDU; zero for none.
    pub mpdu_spacing: Duration,
    /// Packets in the host queue (FQ-CoDel) at most.
    pub host_queue_packets: u32,
    /// Whether the host queue drops by delay (CoDel) too.
    pub codel: bool,
}

/// `[control]`: the MPC loop (001 section III).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Control {
    /// Time between perceptions of one robot.
    pub period: Duration,
    /// The reaction bound, not over the period.
    pub bound: Duration,
    /// Size of a perception, bytes.
    pub perception_bytes: u64,
    /// Size of a control message to one robot, bytes.
    pub command_bytes: u64,
    /// Standard deviation of a sensor's sampling instant.
    pub jitter: Duration,
    /// Mean of an exponential delay between a message's making and its reaching the host queue.
    pub send_jitter: Duration,
    /// Median time of the leader's inference.
    pub inference: Duration,
    /// Sigma of the inference time's logarithm; zero for a constant time.
    pub inference_sigma: f64,
    /// Whether all sensors without a `Robot::phase` sample together; else each has a phase drawn from the seed.
    pub synchronised_phases: bool,
}

/// `[learning]`: the DRLC (001 section III). An epoch is `batch_loops` MPC loops of collecting, the batch's
/// dissemination, and `rounds` times training on every robot and synchronising.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Learning {
    /// Parameters of the model.
    pub parameters: u64,
    /// Bytes of one parameter on the air.
    pub bytes_per_parameter: u8,
    /// How rounds are kept in step.
    pub sync: Sync,
    /// MPC loops, and so data items, in a batch.
    pub batch_loops: u32,
    /// Rounds of training and synchronisation on one batch.
    pub rounds: u32,
    /// Median training time of a robot's round.
    pub training: Duration,
    /// Sigma of the training time's logarithm; zero for a constant time.
    pub training_sigma: f64,
    /// Size of a data item, bytes.
    pub item_bytes: u64,
}

/// How training rounds are kept in step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sync {
    /// Bulk synchronous: all wait for the slowest.
    Bsp,
    /// Stale synchronous: the fastest is at most so many rounds ahead of the slowest.
    Ssp {
        /// Rounds, at least 1.
        staleness: u32,
    },
    /// Asynchronous: nobody waits.
    Asp,
}

/// `[[flow]]`: plain traffic between two robots.
#[derive(Clone, Debug, PartialEq)]
pub struct Flow {
    /// Unique among the flows.
    pub name: String,
    /// Who sends.
    pub from: RobotId,
    /// Who receives; not the sender.
    pub to: RobotId,
    /// Where it is queued; default AC_BE.
    pub category: Category,
    /// Default UDP.
    pub transport: Transport,
    /// What it sends.
    pub traffic: Traffic,
    /// When it starts.
    pub start: Duration,
    /// When it stops, after `start`; `None`: at the run's end.
    pub stop: Option<Duration>,
    /// Whether policies treat it as bulk (permits, gate). Default: where it is saturated and in AC_BE or AC_BK.
    pub bulk: bool,
    /// Messages that a periodic flow sends instead of those of its `traffic`, where a run replays a recording. Never
    /// from a team file.
    pub recorded: Option<Arc<Recorded>>,
}

/// EDCA access categories as the team file names them.
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
    /// 0 for AC_VO to 3 for AC_BK: the place in `Air::edca`.
    pub const fn index(self) -> usize {
        self as usize
    }
}

/// What carries a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Transport {
    Udp,
    Tcp,
}

/// What a flow sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traffic {
    /// Always more to send.
    Saturated {
        /// Payload of a packet: at most 1472 bytes for UDP, 1448 for TCP, which are the defaults.
        packet_bytes: u16,
    },
    /// A message every period.
    Periodic {
        /// Size of a message, bytes; it may take several packets.
        size_bytes: u64,
        /// Time between messages.
        period: Duration,
        /// Standard deviation of a message's instant.
        jitter: Duration,
    },
}

/// `[policy]`: replaces these parts of every named policy that has them; `None` keeps the policy's own.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PolicyOverrides {
    /// Permits at once (LIMIT).
    pub limit: Option<u16>,
    /// How long a permit lasts (TIMESLICE).
    pub slice: Option<Duration>,
    /// After how long a silent holder loses its permit.
    pub lease: Option<Duration>,
    /// C: the share of control messages that a window is to catch, 0.5 to below 1.
    pub accuracy: Option<f64>,
    /// Constant by which windows are extended.
    pub extension: Option<Duration>,
    /// p_prot: the percentile, as a share, at which the completion time table is read.
    pub protection_percentile: Option<f64>,
    /// How far p_prot rises while bulk makes loops late; then bulk also keeps a distance to windows. Not above p_prot:
    /// neither happens.
    pub protection_percentile_max: Option<f64>,
    /// N_samp: samples kept for each depth of the completion time table.
    pub completion_samples: Option<u16>,
    /// Forget completion times of a depth that had none for so long.
    pub completions_stale: Option<Duration>,
    /// Hold bulk where the WNIC would take longer than this to drain.
    pub backlog_max: Option<Duration>,
    /// End a window once its messages have gone.
    pub early_release: Option<bool>,
    /// Windows for the commands of loops that are at risk.
    pub command_windows: Option<bool>,
    /// Windows of other robots' messages hold this robot's bulk too.
    pub shared_windows: Option<bool>,
    /// Steer sensor phases so that windows coincide.
    pub steered_phases: Option<bool>,
    /// Share of the time that windows may take.
    pub window_share_max: Option<f64>,
    /// PPDUs longer than this open with RTS/CTS.
    pub rts_over: Option<Duration>,
    /// Segments of bulk that are acknowledged at once.
    pub ack_every: Option<u32>,
    /// The gate goes by transmit status, not by the driver's completions.
    pub transmit_status: Option<bool>,
    /// Send perceptions and commands again that the WNIC gave up.
    pub resend_lost: Option<bool>,
}

impl RateOverride {
    /// This description, with what it leaves open taken from a wider one. An MCS here hides a ratio there and the
    /// other way round.
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
    /// What `[air]` says of every link.
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
    /// First of the ports that a robot listens on.
    pub fn port(&self, robot: RobotId) -> u16 {
        let own = self.robots.get(usize::from(robot.0)).and_then(|robot| robot.port);
        own.unwrap_or(self.live.port)
    }

    /// The robot of this name.
    pub fn robot_named(&self, name: &str) -> Option<RobotId> {
        let at = self.robots.iter().position(|robot| robot.name == name)?;
        u16::try_from(at).ok().map(RobotId)
    }

    /// The rate from one robot to another: what `[[air.link]]` says, else the sender, else `[air]`, else the
    /// positions, else MCS 7. `None` where a robot does not exist. Events are left out, and so are other interfaces
    /// than `wlan0`: see `Team::rate_on`.
    pub fn rate(&self, from: RobotId, to: RobotId) -> Option<LinkRate> {
        self.rate_on(&self.air, RateOverride::default(), from, to)
    }

    /// The same on any channel of the team, with what `now` says of the link ahead of everything else.
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

    /// The channels in the order of the interfaces on them: `wlan0`, which is `Team::air`, then `Team::interfaces`.
    pub fn channels(&self) -> impl Iterator<Item = &Air> {
        std::iter::once(&self.air).chain(self.interfaces.iter().map(|interface| &interface.air))
    }

    /// Whether a robot has the interface of this number, `wlan0` being the first.
    pub fn has_interface(&self, robot: RobotId, interface: usize) -> bool {
        let Some(further) = interface.checked_sub(1) else {
            return usize::from(robot.0) < self.robots.len();
        };
        let interface = self.interfaces.get(further);
        interface.is_some_and(|interface| interface.robots.binary_search(&robot).is_ok())
    }
}

impl Event {
    /// Whether it is going on so long after the start.
    pub fn active(&self, after: Duration) -> bool {
        self.at <= after && self.until.is_none_or(|until| after < until)
    }
}
