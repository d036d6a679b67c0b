//! The results of a run: numbers that scripts read (serialised), and series that the report draws.

use serde::Serialize;

/// `coorp sim --json`: one file, all policies of one team and seed. Rates and shares are of 1, not percent.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The team's name.
    pub team: String,
    /// The seed of every random draw.
    pub seed: u64,
    /// One entry per policy, in the requested order.
    pub results: Vec<PolicyResult>,
}

/// One policy's run. Fields without a basis in the team file (no control loop, no learning) are null.
#[derive(Clone, Debug, Serialize)]
pub struct PolicyResult {
    /// The policy's name, as on the command line.
    pub policy: String,
    /// Share of MPC loops that took longer than the reaction bound.
    pub violation_rate: Option<f64>,
    /// MPC loops that ended.
    pub loops: u64,
    /// Reaction time of those loops, ms.
    pub reaction_ms: Option<Quantiles>,
    /// Latency of every control message (perceptions, commands and plain flows), sender's stack to receiver's, ms.
    pub control_latency_ms: Option<Quantiles>,
    /// The same, only for perceptions.
    pub perception_latency_ms: Option<Quantiles>,
    /// The same, only for commands.
    pub command_latency_ms: Option<Quantiles>,
    /// Bulk payload delivered per second of time in which some bulk was waiting or under way, Mbit/s.
    pub bulk_mbps: Option<f64>,
    /// `bulk_mbps` divided by that of `bulk-only` in the same run; null if `bulk-only` was not requested.
    pub bulk_share: Option<f64>,
    /// Learning epochs that ended.
    pub epochs: u64,
    /// Mean time of an epoch, s; null before the first has ended.
    pub epoch_s: Option<f64>,
    /// Bulk packets in the sender's WNIC when a control packet reaches it.
    pub wnic_ahead: Option<WnicAhead>,
    /// Share of the time with bulk to send that robots spent inside a protection or ST window.
    pub window_share: f64,
    /// Simulated seconds.
    pub virtual_s: f64,
    /// Wall-clock seconds that the simulation took. Not reproducible.
    pub wall_s: f64,
    /// Events processed.
    pub events: u64,
    /// One entry per `[[flow]]`.
    pub flows: Vec<FlowResult>,
    /// Counters of the MAC.
    pub mac: MacResult,
}

/// Quantiles and mean of a latency, in the unit of the field's name.
#[derive(Clone, Copy, Debug, Serialize)]
#[allow(missing_docs)]
pub struct Quantiles {
    pub p10: f64,
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub p999: f64,
    pub mean: f64,
}

/// The number of bulk packets found ahead of a control packet.
#[derive(Clone, Copy, Debug, Serialize)]
#[allow(missing_docs)]
pub struct WnicAhead {
    /// Share of the control packets that found none.
    pub none: f64,
    pub mean: f64,
    pub p99: f64,
}

/// The outcome of a `[[flow]]`.
#[derive(Clone, Debug, Serialize)]
pub struct FlowResult {
    /// The name in the team file.
    pub name: String,
    /// Payload delivered over the time for which the flow ran, Mbit/s.
    pub mbps: f64,
    /// Messages (UDP) or segments (TCP) sent.
    pub sent: u64,
    /// Messages or segments delivered, each once.
    pub delivered: u64,
    /// Message latency, ms; null if nothing arrived.
    pub latency_ms: Option<Quantiles>,
    /// Share of messages that arrived after the flow's bound or not at all; absent for a flow without a bound.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub violation_rate: Option<f64>,
}

/// Counters of the MAC over the run.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct MacResult {
    /// Transmission attempts of two or more stations in one slot.
    pub collisions: u64,
    /// MPDUs sent again.
    pub retries: u64,
    /// How the channel's time was used.
    pub airtime_share: AirtimeShare,
}

/// Shares of the channel's time; they add up to 1.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct AirtimeShare {
    /// Data PPDUs, including collided ones.
    pub data: f64,
    /// RTS, CTS, acknowledgements and the gaps inside an exchange.
    pub control: f64,
    /// Everything else: backoff, and time in which no station has anything to send.
    pub idle: f64,
}

/// Data of the HTML report's charts. Not in the JSON.
#[derive(Clone, Debug, Default)]
pub struct Charts {
    /// CDF of the reaction time: (ms, share of loops at or below), ascending, at most some 500 points.
    pub reaction_cdf: Vec<(f64, f64)>,
    /// CDF of control latency, likewise.
    pub control_cdf: Vec<(f64, f64)>,
    /// Bulk throughput: (second, Mbit/s in that second).
    pub throughput: Vec<(f64, f64)>,
    /// One second of the run in detail.
    pub timeline: Timeline,
}

/// The events of one second, robot by robot.
#[derive(Clone, Debug, Default)]
pub struct Timeline {
    /// Virtual time at which the second starts, s.
    pub start_s: f64,
    /// The length, s.
    pub length_s: f64,
    /// Robot names; a span's `robot` is an index into them.
    pub robots: Vec<String>,
    /// The spans, by start.
    pub spans: Vec<Span>,
}

/// A state or a transmission of one robot, with its duration.
#[derive(Clone, Debug)]
pub struct Span {
    /// Index into `Timeline::robots`.
    pub robot: u16,
    /// The kind.
    pub kind: SpanKind,
    /// Start and end, ms after `Timeline::start_s`.
    pub start_ms: f64,
    /// End, ms after `Timeline::start_s`.
    pub end_ms: f64,
    /// For a transmission, the MPDUs in the PPDU; otherwise 0.
    pub frames: u16,
}

/// The meaning of a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanKind {
    /// The robot held a bulk permit.
    Permit,
    /// A protection window (or ST window) of this robot.
    Window,
    /// The gate held waiting bulk.
    Hold,
    /// A bulk PPDU on the air.
    Bulk,
    /// A control PPDU on the air.
    Control,
    /// A PPDU or RTS that collided.
    Collision,
    /// An MPC loop, first perception to last command (drawn in the leader's row).
    Loop,
}

/// The complete result of one policy's run.
#[derive(Clone, Debug)]
pub struct Run {
    /// The numbers.
    pub result: PolicyResult,
    /// The series.
    pub charts: Charts,
}
