//! Everything above the air: robots with their loops, streams, flows and agents.
//!
//! The air calls in through [`Host`]. Packets that a callback sends are queued, and flushed once the air has returned.

mod bulk;
mod control;
mod coordinate;
mod host;
mod open;
mod trouble;

use crate::agent::Agent;
use crate::delay::Delay;
use crate::drlc::Drlc;
use crate::events::{Event, EventKind};
use crate::faults::{Faults, Watch};
use crate::measure::{mac_result, Ahead, Latency, Recorder, Stopwatch};
use crate::messages::MessageFlow;
use crate::mpc::{Command, Leader, Mpc};
use crate::plain::Plain;
use crate::results::{Charts, PolicyResult, Run};
use crate::streams::Stream;
use crate::timers::{Armed, Timer, Timers};
use crate::Options;
use coorp_air::{Air, Packet, StationId};
use coorp_core::policy::Policy;
use coorp_core::robot::{Message, Stamp};
use coorp_core::schedwifi::Schedule;
use coorp_core::{Duration, Instant, RobotId};
use coorp_team::Team;
use std::collections::{BTreeMap, VecDeque};

/// The interval at which the rules are checked.
pub(crate) const CHECK_EVERY: Duration = Duration::from_millis(5);
/// Maximum number of timers that may go off at one instant. Beyond it, the run counts as stuck.
pub(crate) const TIMERS_PER_INSTANT_MAX: u32 = 1_000_000;

/// The purpose of a message flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Perception(RobotId),
    Command(RobotId),
    /// Coordination messages: sender, receiver.
    Word(RobotId, RobotId),
    Plain(u32),
}

/// The purpose of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cargo {
    ToWorker(RobotId),
    ToLeader(RobotId),
    Plain(u32),
}

/// The properties of a flow's packets, by `FlowId`.
#[derive(Clone, Copy, Debug)]
struct Slot {
    leads_to: Way,
    /// Whether the packets belong to bulk, as acknowledgements of bulk do.
    bulk: bool,
}

/// The destination of a flow.
#[derive(Clone, Copy, Debug)]
enum Way {
    Message(u32),
    Data(u32),
    Acks(u32),
    Saturated(u32),
}

/// The content of a message, by the message's number.
#[derive(Clone, Debug)]
enum Content {
    /// A perception, with the number of its sample.
    Perception(u64, Option<Told>),
    /// A command.
    Command(Command, Option<Told>),
    /// A plain control message.
    Plain(Told),
    /// A coordination message.
    Word(Message),
}

/// Data sent along with a control message.
#[derive(Clone, Debug)]
struct Told {
    stamp: Stamp,
    /// Messages that need no separate frame.
    riders: Vec<Message>,
}

impl Told {
    /// Returns the number of bytes that riders add to the message.
    fn bytes(&self) -> u64 {
        self.riders.iter().map(word_bytes).sum()
    }
}

fn word_bytes(message: &Message) -> u64 {
    postcard::to_allocvec(message).map_or(0, |bytes| bytes.len() as u64)
}

struct Channel {
    flow: MessageFlow,
    role: Role,
    contents: VecDeque<(u64, Content)>,
}

/// A message that is still in its sender's stack.
#[derive(Clone, Debug)]
struct Delayed {
    channel: u32,
    bytes: u64,
    made_at: Instant,
    content: Option<Content>,
}

pub(crate) struct World {
    pub team: Team,
    policy: Policy,
    schedule: Option<Schedule>,
    pub now: Instant,
    pub timers: Timers,
    slots: Vec<Slot>,
    channels: Vec<Channel>,
    streams: Vec<Stream>,
    cargo: Vec<Cargo>,
    plains: Vec<Plain>,
    agents: Vec<Agent>,
    agents_armed: Vec<Armed>,
    mpc: Option<Mpc>,
    drlc: Option<Drlc>,
    faults: Option<Faults>,
    watch: Watch,
    delayed: Vec<Option<Delayed>>,
    delayed_free: Vec<u32>,
    /// Delay until a robot's programs get a core.
    scheduling: Delay,
    /// When each robot's stack will have handed over all its messages.
    stack_until: Vec<Instant>,
    /// The message flows of each robot's perceptions and commands.
    perception: Vec<Option<u32>>,
    command: Vec<Option<u32>>,
    /// The message flows of coordination between robots.
    words: BTreeMap<(RobotId, RobotId), u32>,
    /// The number of streams and flows of bulk from each robot that have something left.
    bulk_pending: Vec<u32>,
    stream_pending: Vec<bool>,
    streams_from: Vec<Vec<u32>>,
    saturated_from: Vec<Vec<u32>>,
    bulk_in_wnic: Vec<u32>,
    outbox: Vec<Packet>,
    kicks: Vec<StationId>,
    dirty: Vec<u32>,
    pub events: u64,
    counts: Counts,
    recorder: Option<Recorder>,
    /// Events since the last call that took them, if recorded.
    pub log: Option<Vec<Event>>,
}

/// Counters of the run.
struct Counts {
    loops: u64,
    violations: u64,
    reaction: Latency,
    control_latency: Latency,
    perception_latency: Latency,
    command_latency: Latency,
    epochs: u64,
    epoch_started: Instant,
    epoch_time: Duration,
    bulk_bytes: u64,
    bulk_bytes_before: u64,
    bulk_active: Stopwatch,
    ahead: Ahead,
    throughput: Vec<(f64, f64)>,
}

impl World {
    /// Returns whether team and policy leave nothing to run.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    fn log(&mut self, kind: EventKind, robot: RobotId, number: u64) {
        let at = self.now;
        if let Some(log) = &mut self.log {
            log.push(Event {
                at,
                kind,
                robot,
                number,
            });
        }
    }

    pub fn on_timer(&mut self, timer: Timer) {
        let now = self.now;
        match timer {
            Timer::Sense(robot) => self.on_sense(robot),
            Timer::Stack(place) => self.on_stack(place),
            Timer::Inference => {
                self.with_leader(|leader, _| leader.on_inferred());
            }
            Timer::Leader => self.with_leader(Leader::on_deadline),
            Timer::Trained(robot) => self.with_drlc(|drlc| drlc.on_trained(robot)),
            Timer::BatchFull => self.with_drlc(Drlc::on_batch_full),
            Timer::Sender(place) => {
                let stream = &mut self.streams[place as usize];
                if stream.sender_armed.went_off(now) {
                    stream.sender.on_deadline(now);
                    self.mark(place);
                }
            }
            Timer::Receiver(place) => {
                let stream = &mut self.streams[place as usize];
                if stream.receiver_armed.went_off(now) {
                    stream.on_receiver_deadline(now, &mut self.outbox);
                    self.arm_receiver(place);
                }
            }
            Timer::Agent(robot) => {
                let place = usize::from(robot.0);
                if self.agents_armed[place].went_off(now) {
                    self.agents[place].on_deadline(now);
                    self.agents[place].set_late(self.scheduling.draw());
                    self.run_agent(robot);
                }
            }
            Timer::FlowTick(place) => self.on_flow_tick(place),
            Timer::FlowStart(place) => self.on_flow_start(place),
            Timer::FlowStop(place) => self.on_flow_stop(place),
            Timer::Second => self.on_second(),
            Timer::RecordStart => self.on_record_start(),
            Timer::RecordEnd => {
                if let Some(recorder) = &mut self.recorder {
                    recorder.stop(now);
                }
            }
            Timer::Fault => self.on_fault(),
            Timer::Move | Timer::Script => {}
        }
    }

    /// Sends all queued packets, and those that result from sending them.
    pub fn flush(&mut self, air: &mut Air) {
        let now = self.now;
        loop {
            while let Some(place) = self.dirty.pop() {
                self.pump(place);
            }
            if self.outbox.is_empty() && self.kicks.is_empty() {
                return;
            }
            let mut packets = std::mem::take(&mut self.outbox);
            for packet in &packets {
                if let Some(dropped) = air.queue(*packet, now) {
                    self.on_overflow(packet.from, &dropped);
                }
                if self.kicks.last() != Some(&packet.from) {
                    self.kicks.push(packet.from);
                }
            }
            packets.clear();
            if self.outbox.is_empty() {
                self.outbox = packets;
            }
            let mut kicks = std::mem::take(&mut self.kicks);
            for station in &kicks {
                air.kick(*station, now, self);
            }
            kicks.clear();
            if self.kicks.is_empty() {
                self.kicks = kicks;
            }
        }
    }

    fn on_second(&mut self) {
        let gained = self.counts.bulk_bytes - self.counts.bulk_bytes_before;
        self.counts.bulk_bytes_before = self.counts.bulk_bytes;
        self.counts
            .throughput
            .push((self.now.as_secs_f64(), gained as f64 * 8e-6));
        self.timers.set(self.now + Duration::from_secs(1), Timer::Second);
    }

    /// Records a second in which bulk is under way, if there is one.
    fn on_record_start(&mut self) {
        let bulk = self.bulk_pending.iter().any(|pending| *pending > 0);
        let late = self.now.as_nanos() > 3 * Recorder::LENGTH.as_nanos() && self.counts.epochs > 1;
        if self.policy.bulk && self.drlc.is_some() && !bulk && !late {
            self.timers
                .set(self.now + Duration::from_millis(500), Timer::RecordStart);
            return;
        }
        if let Some(recorder) = &mut self.recorder {
            recorder.start(self.now);
            self.timers.set(self.now + Recorder::LENGTH, Timer::RecordEnd);
        }
    }

    /// Returns the result of the run so far, which has reached `end`.
    pub fn result(&self, air: &Air, end: Instant, options: &Options) -> Run {
        let whole = end.since(Instant::ZERO);
        let times = self.agents.iter().map(|agent| agent.window_time_s(end));
        let (window_s, sending_s) = times.fold((0.0, 0.0), |sum, time| (sum.0 + time.0, sum.1 + time.1));
        let counts = &self.counts;
        let active_s = counts.bulk_active.total(end).as_secs_f64();
        let has_bulk = self.policy.bulk && (self.drlc.is_some() || self.plains.iter().any(|plain| plain.flow.bulk));
        let share = |part: u64, whole: u64| (whole > 0).then(|| part as f64 / whole as f64);
        let result = PolicyResult {
            policy: self.policy.name.to_string(),
            violation_rate: share(counts.violations, counts.loops),
            loops: counts.loops,
            reaction_ms: counts.reaction.quantiles_ms(),
            control_latency_ms: counts.control_latency.quantiles_ms(),
            perception_latency_ms: counts.perception_latency.quantiles_ms(),
            command_latency_ms: counts.command_latency.quantiles_ms(),
            bulk_mbps: (has_bulk && active_s > 0.0).then(|| counts.bulk_bytes as f64 * 8e-6 / active_s),
            bulk_share: None,
            epochs: counts.epochs,
            epoch_s: (counts.epochs > 0).then(|| counts.epoch_time.as_secs_f64() / counts.epochs as f64),
            wnic_ahead: counts.ahead.result(),
            window_share: if sending_s > 0.0 { window_s / sending_s } else { 0.0 },
            virtual_s: whole.as_secs_f64(),
            wall_s: 0.0,
            events: self.events,
            flows: self.plains.iter().map(|plain| plain.result(end)).collect(),
            mac: mac_result(air.counters(), whole),
        };
        let mut charts = Charts::default();
        if options.series {
            charts.reaction_cdf = counts.reaction.cdf_ms();
            charts.control_cdf = counts.control_latency.cdf_ms();
            charts.throughput = counts.throughput.clone();
        }
        if let Some(recorder) = &self.recorder {
            let robots = self.team.robots.iter().map(|robot| robot.name.clone()).collect();
            charts.timeline = recorder.timeline(robots);
        }
        Run { result, charts }
    }
}
