//! Everything above the air: robots with their loops, streams, flows and agents, and the run itself.
//!
//! The air calls in through [`Host`]; what a callback wants sent is put aside and flushed once the air has returned.

use std::collections::VecDeque;

use coorp_air::tcp;
use coorp_air::{AccessCategory, Air, Host, Load, Packet, StationId, Transmission};
use coorp_core::permits::{Controller, ControllerAction, Message};
use coorp_core::policy::{Access, Policy};
use coorp_core::schedwifi::Schedule;
use coorp_core::{Duration, FlowId, Instant, RobotId};
use coorp_team::{Team, Traffic};

use crate::agent::{Agent, AgentAction, ControlFlow};
use crate::drlc::{Drlc, DrlcAction};
use crate::faults::{Faults, State, Strike, Watch};
use crate::measure::{mac_result, Ahead, Latency, Recorder, Stopwatch};
use crate::messages::{Fate, MessageFlow};
use crate::mpc::{Mpc, MpcAction};
use crate::plain::{Carrier, Plain};
use crate::results::{Charts, PolicyResult, Run, SpanKind};
use crate::setup::{self, robot, station, Geometry, MOVE_EVERY};
use crate::streams::Stream;
use crate::timers::{Armed, Timer, Timers};
use crate::{schedule, Error, Options};

/// Size of a message about permits, headers left out, bytes.
const PERMIT_MESSAGE_BYTES: u64 = 48;
/// What a robot's arrival model adds to a grant, bytes: period, phase, two deviations.
const MODEL_BYTES: u64 = 24;
/// Periods between two steps of steering one robot's phase: the first must have shown in its perceptions.
const STEER_EVERY: u64 = 10;
/// Phases that differ by less than this part of the period count as equal.
const PHASE_STEPS: u64 = 32;
/// How often the rules are checked.
const CHECK_EVERY: Duration = Duration::from_millis(5);
/// Timers that may go off at one instant before the run is taken to be stuck.
const TIMERS_PER_INSTANT_MAX: u32 = 1_000_000;

/// What a message flow is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Perception(RobotId),
    Command(RobotId),
    /// About permits, from this robot to the leader.
    ToController(RobotId),
    /// About permits, from the leader to this robot.
    FromController(RobotId),
    Plain(u32),
}

/// What a stream is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cargo {
    ToWorker(RobotId),
    ToLeader(RobotId),
    Plain(u32),
}

/// Where a packet's flow leads to, by `FlowId`.
#[derive(Clone, Copy, Debug)]
enum Slot {
    Message(u32),
    Data(u32),
    Acks(u32),
    Saturated(u32),
}

/// What a message says beyond its size, by the message's number.
#[derive(Clone, Copy, Debug)]
enum Content {
    /// A command of this round, and by how much the robot's next sample is to be later.
    Command(u64, Duration),
    /// All perceptions of a period are in; and the arrival models that came with them.
    Clear,
    Permit(Message),
}

struct Channel {
    flow: MessageFlow,
    role: Role,
    contents: VecDeque<(u64, Content)>,
}

/// A message that its sender's stack still has.
#[derive(Clone, Copy, Debug)]
struct Delayed {
    channel: u32,
    bytes: u64,
    made_at: Instant,
    content: Option<Content>,
}

pub(crate) struct World<'a> {
    team: &'a Team,
    policy: &'a Policy,
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
    controller: Option<Controller>,
    controller_armed: Armed,
    mpc: Option<Mpc>,
    drlc: Option<Drlc>,
    faults: Option<Faults>,
    watch: Watch,
    delayed: Vec<Option<Delayed>>,
    delayed_free: Vec<u32>,
    /// Until when each robot is not steered again.
    steered_until: Vec<Instant>,
    /// Message flow of each robot's perception, command, and permit messages up and down.
    perception: Vec<Option<u32>>,
    command: Vec<Option<u32>>,
    to_controller: Vec<Option<u32>>,
    from_controller: Vec<Option<u32>>,
    /// Streams and flows of bulk that each robot sends and that have something left.
    bulk_pending: Vec<u32>,
    stream_pending: Vec<bool>,
    streams_from: Vec<Vec<u32>>,
    saturated_from: Vec<Vec<u32>>,
    bulk_in_wnic: Vec<u32>,
    outbox: Vec<Packet>,
    kicks: Vec<StationId>,
    dirty: Vec<u32>,
    events: u64,
    counts: Counts,
    recorder: Option<Recorder>,
}

/// What is counted over the run.
struct Counts {
    loops: u64,
    violations: u64,
    reaction: Latency,
    control_latency: Latency,
    epochs: u64,
    epoch_started: Instant,
    epoch_time: Duration,
    bulk_bytes: u64,
    bulk_bytes_before: u64,
    bulk_active: Stopwatch,
    ahead: Ahead,
    throughput: Vec<(f64, f64)>,
    window_s: f64,
    sending_s: f64,
}

/// Runs one team under one policy.
pub(crate) fn run(
    team: &Team,
    policy: &Policy,
    options: &Options,
    progress: &(dyn Fn(Instant) + Sync),
) -> Result<Run, Error> {
    let mut air = Air::new(setup::config(team, policy), options.seed);
    let schedule = match &policy.schedwifi {
        Some(config) => {
            let control = team.control.as_ref().filter(|_| policy.control);
            let unfit = |reason| Error::Unfit {
                policy: policy.name.clone(),
                reason,
            };
            Some(schedule::schedule(team, policy, config, control).map_err(unfit)?)
        }
        None => None,
    };
    let mut world = World::new(team, policy, schedule, options);
    if world.slots.is_empty() {
        return Err(Error::NothingToRun {
            policy: policy.name.to_string(),
        });
    }
    let geometry = Geometry::new(team);
    let pairs = world.pairs();
    geometry.set_links(team, &pairs, Instant::ZERO, &mut air);
    let end = Instant::ZERO + options.duration;
    world.start(options, geometry.moves());
    world.flush(&mut air);
    let (mut next_report, mut next_check) = (Instant::ZERO, Instant::ZERO);
    let mut at_this_instant = 0u32;
    loop {
        let (air_at, timer_at) = (air.next_deadline(), world.timers.next());
        let next = air_at.min(timer_at);
        if next > end {
            break;
        }
        at_this_instant = if next > world.now { 0 } else { at_this_instant + 1 };
        if at_this_instant > TIMERS_PER_INSTANT_MAX {
            return Err(Error::Broken {
                rule: format!("time goes on; stuck at {} s", next.as_secs_f64()),
            });
        }
        world.now = next;
        world.events += 1;
        if air_at <= timer_at {
            air.on_deadline(&mut world);
        } else {
            match world.timers.pop() {
                Some(Timer::Move) => {
                    geometry.set_links(team, &pairs, next, &mut air);
                    world.timers.set(next + MOVE_EVERY, Timer::Move);
                }
                Some(timer) => world.on_timer(timer),
                None => {}
            }
        }
        world.flush(&mut air);
        if world.now >= next_check {
            world.check()?;
            next_check = world.now + CHECK_EVERY;
        }
        if next >= next_report {
            progress(next);
            next_report = next + Duration::from_millis(500);
        }
    }
    world.now = end;
    Ok(world.finish(&air, options))
}

impl<'a> World<'a> {
    fn new(team: &'a Team, policy: &'a Policy, schedule: Option<Schedule>, options: &Options) -> Self {
        let robots = team.robots.len();
        let seed = options.seed;
        let mpc = team
            .control
            .filter(|_| policy.control && robots > 1)
            .map(|control| Mpc::new(team, control, seed));
        let drlc = team
            .learning
            .filter(|_| policy.bulk && robots > 1)
            .map(|learning| Drlc::new(team, learning, seed));
        let coordinated = policy.global.clone().filter(|_| policy.bulk);
        let agents = (0..robots as u16)
            .map(|id| Agent::new(team, policy, schedule.as_ref(), RobotId(id)))
            .collect();
        let mut world = World {
            team,
            policy,
            schedule,
            now: Instant::ZERO,
            timers: Timers::default(),
            slots: Vec::new(),
            channels: Vec::new(),
            streams: Vec::new(),
            cargo: Vec::new(),
            plains: Vec::new(),
            agents,
            agents_armed: vec![Armed::default(); robots],
            controller: coordinated.map(|config| Controller::new(config, 0)),
            controller_armed: Armed::default(),
            mpc,
            drlc,
            faults: options.faults.then(|| Faults::new(robots, seed, options.duration)),
            watch: Watch::new(team, policy),
            delayed: Vec::new(),
            delayed_free: Vec::new(),
            steered_until: vec![Instant::ZERO; robots],
            perception: vec![None; robots],
            command: vec![None; robots],
            to_controller: vec![None; robots],
            from_controller: vec![None; robots],
            bulk_pending: vec![0; robots],
            stream_pending: Vec::new(),
            streams_from: vec![Vec::new(); robots],
            saturated_from: vec![Vec::new(); robots],
            bulk_in_wnic: vec![0; robots],
            outbox: Vec::new(),
            kicks: Vec::new(),
            dirty: Vec::new(),
            events: 0,
            counts: Counts {
                loops: 0,
                violations: 0,
                reaction: Latency::new(),
                control_latency: Latency::new(),
                epochs: 0,
                epoch_started: Instant::ZERO,
                epoch_time: Duration::ZERO,
                bulk_bytes: 0,
                bulk_bytes_before: 0,
                bulk_active: Stopwatch::default(),
                ahead: Ahead::default(),
                throughput: Vec::new(),
                window_s: 0.0,
                sending_s: 0.0,
            },
            recorder: options.timeline.then(Recorder::new),
        };
        world.open_flows(seed);
        world
    }

    // --- setting up -------------------------------------------------------------------------------------------

    fn open_flows(&mut self, seed: u64) {
        let leader = self.team.leader;
        let others: Vec<RobotId> = (0..self.team.robots.len() as u16)
            .map(RobotId)
            .filter(|id| *id != leader)
            .collect();
        let (voice, bulk) = (self.category(AccessCategory::Voice), AccessCategory::BestEffort);
        for id in others {
            let place = usize::from(id.0);
            if self.mpc.is_some() {
                self.perception[place] = Some(self.open_channel(id, leader, voice, Role::Perception(id)));
                self.command[place] = Some(self.open_channel(leader, id, voice, Role::Command(id)));
            }
            if self.controller.is_some() {
                self.to_controller[place] = Some(self.open_channel(id, leader, voice, Role::ToController(id)));
                self.from_controller[place] = Some(self.open_channel(leader, id, voice, Role::FromController(id)));
            }
            if self.drlc.is_some() {
                let config = tcp::Config {
                    ack_every: self.policy.ack_every,
                    ..Default::default()
                };
                self.open_stream(leader, id, bulk, Cargo::ToWorker(id), config);
                self.open_stream(id, leader, bulk, Cargo::ToLeader(id), config);
            }
        }
        for (index, flow) in self.team.flows.clone().into_iter().enumerate() {
            if if flow.bulk {
                self.policy.bulk
            } else {
                self.policy.control
            } {
                self.open_plain(index, flow, seed);
            }
        }
    }

    /// The category that a flow's own becomes under this policy.
    fn category(&self, own: AccessCategory) -> AccessCategory {
        match self.policy.access {
            Access::BestEffort => AccessCategory::BestEffort,
            Access::Edca => own,
        }
    }

    fn next_flow(&self) -> FlowId {
        FlowId(self.slots.len() as u32)
    }

    fn open_channel(&mut self, from: RobotId, to: RobotId, category: AccessCategory, role: Role) -> u32 {
        let place = self.channels.len() as u32;
        let flow = MessageFlow::new(self.next_flow(), station(from), station(to), category);
        self.slots.push(Slot::Message(place));
        self.channels.push(Channel {
            flow,
            role,
            contents: VecDeque::new(),
        });
        place
    }

    fn open_stream(
        &mut self,
        from: RobotId,
        to: RobotId,
        category: AccessCategory,
        cargo: Cargo,
        config: tcp::Config,
    ) -> u32 {
        let place = self.streams.len() as u32;
        let mut stream = Stream::new(self.next_flow(), station(from), station(to), category, config);
        let held = self.is_bulk(cargo) && self.agents[usize::from(from.0)].needs_permit();
        stream.sender.set_paused(held, Instant::ZERO);
        self.slots.extend([Slot::Data(place), Slot::Acks(place)]);
        self.streams.push(stream);
        self.cargo.push(cargo);
        self.stream_pending.push(false);
        if self.is_bulk(cargo) {
            self.streams_from[usize::from(from.0)].push(place);
        }
        place
    }

    fn is_bulk(&self, cargo: Cargo) -> bool {
        match cargo {
            Cargo::Plain(place) => self.team.flows[place as usize].bulk,
            Cargo::ToWorker(_) | Cargo::ToLeader(_) => true,
        }
    }

    fn open_plain(&mut self, index: usize, flow: coorp_team::Flow, seed: u64) {
        let (from, to) = (flow.from, flow.to);
        let category = self.category(setup::category(flow.category));
        let id = self.next_flow();
        let place = self.plains.len() as u32;
        let saturated = matches!(flow.traffic, Traffic::Saturated { .. });
        let carrier = match (flow.transport, saturated) {
            (coorp_team::Transport::Tcp, _) => {
                let ack_every = if flow.bulk {
                    self.policy.ack_every
                } else {
                    tcp::Config::default().ack_every
                };
                let mut config = tcp::Config {
                    ack_every,
                    ..Default::default()
                };
                if let Traffic::Saturated { packet_bytes } = flow.traffic {
                    config.mss = packet_bytes;
                }
                Carrier::Stream(self.open_stream(from, to, category, Cargo::Plain(index as u32), config))
            }
            (coorp_team::Transport::Udp, false) => {
                Carrier::Messages(self.open_channel(from, to, category, Role::Plain(place)))
            }
            (coorp_team::Transport::Udp, true) => {
                self.slots.push(Slot::Saturated(place));
                if flow.bulk {
                    self.saturated_from[usize::from(from.0)].push(place);
                }
                Carrier::Saturated
            }
        };
        let permitted = !(flow.bulk && self.agents[usize::from(from.0)].needs_permit());
        self.plains.push(Plain::new(flow, id, carrier, permitted, seed));
    }

    /// Every direction that something is sent in.
    fn pairs(&self) -> Vec<(RobotId, RobotId)> {
        let channels = self.channels.iter().map(|channel| (channel.flow.from, channel.flow.to));
        let streams = self
            .streams
            .iter()
            .flat_map(|stream| [(stream.from, stream.to), (stream.to, stream.from)]);
        let plains = self
            .plains
            .iter()
            .map(|plain| (station(plain.flow.from), station(plain.flow.to)));
        let mut pairs: Vec<_> = channels
            .chain(streams)
            .chain(plains)
            .map(|(from, to)| (robot(from), robot(to)))
            .collect();
        pairs.sort_unstable();
        pairs.dedup();
        pairs
    }

    fn start(&mut self, options: &Options, moves: bool) {
        if let Some(mpc) = &mut self.mpc {
            for (robot, at) in mpc.first_ticks() {
                self.timers.set(at, Timer::Sense(robot));
            }
        }
        for (place, plain) in self.plains.iter().enumerate() {
            self.timers
                .set(Instant::ZERO + plain.flow.start, Timer::FlowStart(place as u32));
            if let Some(stop) = plain.flow.stop {
                self.timers.set(Instant::ZERO + stop, Timer::FlowStop(place as u32));
            }
        }
        if moves {
            self.timers.set(Instant::ZERO + MOVE_EVERY, Timer::Move);
        }
        if self.recorder.is_some() {
            self.timers.set(Instant::ZERO + Duration::from_secs(1), Timer::Second);
            self.timers
                .set(Instant::ZERO + options.duration / 3, Timer::RecordStart);
        }
        self.arm_faults();
        self.run_drlc();
        for id in 0..self.agents.len() {
            self.run_agent(RobotId(id as u16));
        }
    }

    // --- the loop of events -----------------------------------------------------------------------------------

    fn on_timer(&mut self, timer: Timer) {
        let now = self.now;
        match timer {
            Timer::Sense(robot) => self.on_sense(robot),
            Timer::Stack(place) => self.on_stack(place),
            Timer::Inference => {
                if let Some(mpc) = &mut self.mpc {
                    mpc.on_inferred();
                }
                self.run_mpc();
            }
            Timer::RoundTimeout(round) => {
                if let Some(mpc) = &mut self.mpc {
                    mpc.on_round_timeout(round);
                }
                self.run_mpc();
            }
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
                    self.run_agent(robot);
                }
            }
            Timer::Controller => {
                if self.controller_armed.went_off(now) {
                    let local = self.agents[usize::from(self.team.leader.0)].local(now);
                    if let Some(controller) = &mut self.controller {
                        controller.on_deadline(local);
                    }
                    self.run_controller();
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
            Timer::Move => {}
        }
    }

    /// Sends what has come together, until nothing is left.
    fn flush(&mut self, air: &mut Air) {
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
                    self.dropped(&dropped, now);
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

    /// Rules that must hold, looked at in every run whenever permits, windows or faults may have changed something.
    fn check(&mut self) -> Result<(), Error> {
        let now = self.now;
        let holders = self
            .controller
            .as_ref()
            .map_or(0, |controller| controller.holders().count());
        let states = self.agents.iter().map(|agent| State {
            wants_bulk: agent.wants_bulk(),
            may_send: agent.may_send(now),
            held_after: agent.held_after(),
            up: agent.is_up(),
        });
        let broken = |rule| Error::Broken {
            rule: format!("{rule}, at {} s", now.as_secs_f64()),
        };
        self.watch.check(holders, states, now).map_err(broken)?;
        for stream in &self.streams {
            stream.check().map_err(broken)?;
        }
        Ok(())
    }

    // --- the MPC loop -----------------------------------------------------------------------------------------

    fn on_sense(&mut self, robot: RobotId) {
        if let Some(mpc) = &mut self.mpc {
            let next = mpc.on_tick(robot, self.now);
            self.timers.set(next.max(self.now), Timer::Sense(robot));
        }
        self.run_mpc();
    }

    fn run_mpc(&mut self) {
        while let Some(action) = self.mpc.as_mut().and_then(|mpc| mpc.actions.pop_front()) {
            match action {
                MpcAction::SendPerception(robot) => {
                    let bytes = self.team.control.map_or(0, |control| control.perception_bytes);
                    self.send_control(self.perception[usize::from(robot.0)], bytes, None);
                    self.agents[usize::from(robot.0)].on_command_awaited(self.now, self.now);
                    self.run_agent(robot);
                }
                MpcAction::SendCommand(robot, round) => {
                    let bytes = self.team.control.map_or(0, |control| control.command_bytes);
                    let shift = self.steer(robot);
                    let content = Some(Content::Command(round, shift));
                    self.send_control(self.command[usize::from(robot.0)], bytes, content);
                }
                MpcAction::Infer { start, time } => {
                    self.timers.set(self.now + time, Timer::Inference);
                    self.agents[usize::from(self.team.leader.0)].on_command_awaited(start, self.now);
                    self.run_agent(self.team.leader);
                    self.send_clear();
                }
                MpcAction::Timeout(round, after) => self.timers.set(self.now + after, Timer::RoundTimeout(round)),
                MpcAction::LoopEnded { start, reaction, lost } => self.on_loop_ended(start, reaction, lost),
            }
        }
    }

    /// By how much `robot` is to sample later, so that all sample together: windows then coincide, and no loop waits
    /// for the last. Each robot tells the phase of its sensor's timer with its perceptions; the leader compares.
    fn steer(&mut self, robot: RobotId) -> Duration {
        let steered = self.policy.local.as_ref().is_some_and(|local| local.steered_phases);
        let reference = self.perception.iter().position(Option::is_some).filter(|_| steered);
        let (Some(reference), Some(mpc), Some(control)) = (reference, &self.mpc, &self.team.control) else {
            return Duration::ZERO;
        };
        let (period, target) = (
            control.period.as_nanos(),
            mpc.phase(RobotId(reference as u16)).as_nanos(),
        );
        let ahead = (target + period - mpc.phase(robot).as_nanos()) % period;
        // A step is not worth it for less than what clocks and timers are uncertain by.
        if ahead.min(period - ahead) < period / PHASE_STEPS || self.now < self.steered_until[usize::from(robot.0)] {
            return Duration::ZERO;
        }
        self.steered_until[usize::from(robot.0)] = self.now + control.period * STEER_EVERY;
        Duration::from_nanos(ahead)
    }

    fn on_loop_ended(&mut self, start: Instant, reaction: Duration, lost: bool) {
        let bound = self.team.control.map_or(Duration::MAX, |control| control.bound);
        self.counts.loops += 1;
        self.counts.violations += u64::from(lost || reaction > bound);
        self.counts.reaction.record(reaction);
        if let Some(recorder) = &mut self.recorder {
            recorder.span(self.team.leader, SpanKind::Loop, start, self.now, 0);
        }
        self.with_drlc(Drlc::on_loop);
    }

    /// A control message is made: it is a sample of its flow's arrival model now and reaches the host queue after
    /// its stack's delay.
    fn send_control(&mut self, channel: Option<u32>, bytes: u64, content: Option<Content>) {
        let Some(channel) = channel else { return };
        let delay = self.mpc.as_mut().map_or(Duration::ZERO, Mpc::stack_delay);
        let message = Delayed {
            channel,
            bytes,
            made_at: self.now,
            content,
        };
        self.note_control_made(channel);
        if delay == Duration::ZERO {
            self.send_message(message);
            return;
        }
        let place = self.delayed_free.pop().unwrap_or_else(|| {
            self.delayed.push(None);
            self.delayed.len() as u32 - 1
        });
        self.delayed[place as usize] = Some(message);
        self.timers.set(self.now + delay, Timer::Stack(place));
    }

    fn note_control_made(&mut self, channel: u32) {
        let Channel { flow, role, .. } = &self.channels[channel as usize];
        let sender = robot(flow.from);
        if let Some(control) = control_flow(*role) {
            self.agents[usize::from(sender.0)].on_control_made(control, self.now);
            self.run_agent(sender);
        }
    }

    fn on_stack(&mut self, place: u32) {
        if let Some(message) = self.delayed.get_mut(place as usize).and_then(Option::take) {
            self.delayed_free.push(place);
            self.send_message(message);
        }
    }

    fn send_message(&mut self, message: Delayed) {
        let channel = &mut self.channels[message.channel as usize];
        let number = channel
            .flow
            .send(message.bytes, message.made_at, self.now, &mut self.outbox);
        if let Some(content) = message.content {
            channel.contents.push_back((number, content));
        }
    }

    fn on_message_fate(&mut self, place: u32, number: u64, fate: Fate) {
        let channel = &mut self.channels[place as usize];
        let role = channel.role;
        let at = channel.contents.iter().position(|(other, _)| *other == number);
        let content = at
            .and_then(|at| channel.contents.remove(at))
            .map(|(_, content)| content);
        match (role, fate, content) {
            (Role::Perception(robot), Fate::Arrived(latency), _) => {
                self.counts.control_latency.record(latency);
                let made_at = self.now - latency;
                self.on_perceptions_in(self.team.leader, &[robot]);
                if let Some(mpc) = &mut self.mpc {
                    mpc.on_perception(robot, made_at);
                }
            }
            (Role::Command(robot), Fate::Arrived(latency), Some(Content::Command(round, shift))) => {
                self.counts.control_latency.record(latency);
                self.agents[usize::from(robot.0)].on_command_arrived(self.now);
                self.run_agent(robot);
                if let Some(mpc) = &mut self.mpc {
                    mpc.on_command(robot, round, self.now);
                    mpc.shift_phase(robot, shift);
                }
            }
            (Role::Command(_), Fate::Lost, Some(Content::Command(round, _))) => {
                if let Some(mpc) = &mut self.mpc {
                    mpc.on_command_lost(round, self.now);
                }
            }
            (Role::ToController(robot), Fate::Arrived(_), Some(Content::Permit(message))) => {
                self.on_controller_message(robot, message);
            }
            (Role::FromController(robot), Fate::Arrived(_), Some(Content::Permit(message))) => {
                self.on_requester_message(robot, message);
                self.tell_models(robot);
            }
            (Role::FromController(robot), Fate::Arrived(_), Some(Content::Clear)) => {
                let others: Vec<RobotId> = (0..self.agents.len() as u16).map(RobotId).collect();
                self.on_perceptions_in(robot, &others);
            }
            (Role::Plain(plain), Fate::Arrived(latency), _) => {
                let plain = &mut self.plains[plain as usize];
                plain.on_message(latency);
                if plain.flow.bulk {
                    if let Traffic::Periodic { size_bytes, .. } = plain.flow.traffic {
                        self.counts.bulk_bytes += size_bytes;
                    }
                } else {
                    self.counts.control_latency.record(latency);
                }
            }
            _ => {}
        }
        self.run_mpc();
    }

    // --- permits ----------------------------------------------------------------------------------------------

    fn send_permit(&mut self, channel: Option<u32>, to_robot: bool, message: Message) {
        let Some(channel) = channel else { return };
        let models = if to_robot && self.shares_windows() {
            MODEL_BYTES * self.agents.len() as u64
        } else {
            0
        };
        let copies = match &mut self.faults {
            Some(faults) => faults.permit_message(self.now),
            None => vec![Duration::ZERO],
        };
        for delay in copies {
            let bytes = PERMIT_MESSAGE_BYTES + models;
            let message = Delayed {
                channel,
                bytes,
                made_at: self.now,
                content: Some(Content::Permit(message)),
            };
            if delay == Duration::ZERO {
                self.send_message(message);
            } else {
                self.delayed.push(Some(message));
                self.timers
                    .set(self.now + delay, Timer::Stack(self.delayed.len() as u32 - 1));
            }
        }
    }

    fn on_controller_message(&mut self, from: RobotId, message: Message) {
        let leader = &self.agents[usize::from(self.team.leader.0)];
        if !leader.is_up() {
            return;
        }
        let local = leader.local(self.now);
        if let Some(controller) = &mut self.controller {
            controller.on_message(from, message, local);
        }
        self.run_controller();
    }

    fn run_controller(&mut self) {
        while let Some(action) = self.controller.as_mut().and_then(Controller::poll) {
            let ControllerAction::Send { to, message } = action;
            if to == self.team.leader {
                self.on_requester_message(to, message);
            } else {
                self.send_permit(self.from_controller[usize::from(to.0)], true, message);
            }
        }
        let leader = &self.agents[usize::from(self.team.leader.0)];
        if let Some(deadline) = self.controller.as_ref().and_then(Controller::next_deadline) {
            let at = leader.global(deadline).max(self.now);
            self.controller_armed.arm(at, Timer::Controller, &mut self.timers);
        }
    }

    fn on_requester_message(&mut self, robot: RobotId, message: Message) {
        self.agents[usize::from(robot.0)].on_permit_message(message, self.now);
        self.run_agent(robot);
    }

    /// Does what a robot's agent wants and arms its next alarm.
    fn run_agent(&mut self, robot: RobotId) {
        let place = usize::from(robot.0);
        let now = self.now;
        while let Some(action) = self.agents[place].poll(now) {
            match action {
                AgentAction::Send(message) if robot == self.team.leader => self.on_controller_message(robot, message),
                AgentAction::Send(message) => self.send_permit(self.to_controller[place], false, message),
                AgentAction::Permitted(permitted) => self.set_permitted(robot, permitted),
                AgentAction::Resume => self.kicks.push(station(robot)),
                AgentAction::WindowOver(start, end) => {
                    if let Some(recorder) = &mut self.recorder {
                        recorder.span(robot, SpanKind::Window, start, end, 0);
                    }
                }
            }
        }
        if let Some(deadline) = self.agents[place].next_deadline() {
            self.agents_armed[place].arm(deadline.max(now), Timer::Agent(robot), &mut self.timers);
        }
    }

    fn set_permitted(&mut self, robot: RobotId, permitted: bool) {
        let place = usize::from(robot.0);
        for index in 0..self.streams_from[place].len() {
            let stream = self.streams_from[place][index];
            self.streams[stream as usize].sender.set_paused(!permitted, self.now);
            self.mark(stream);
        }
        for index in 0..self.saturated_from[place].len() {
            let plain = self.saturated_from[place][index];
            self.plains[plain as usize].permitted = permitted;
            self.plains[plain as usize].fill(self.now, &mut self.outbox);
        }
        if !permitted {
            self.agents[place].forget_shared(self.team.robots.len() as u16);
        }
        if let Some(recorder) = &mut self.recorder {
            recorder.state(robot, SpanKind::Permit, permitted, self.now);
        }
    }

    fn shares_windows(&self) -> bool {
        self.controller.is_some() && self.policy.local.as_ref().is_some_and(|local| local.shared_windows)
    }

    /// `listener`, which may send bulk now, learns the others' arrival models: they travel with perceptions to the
    /// leader and from there with messages about permits.
    fn tell_models(&mut self, listener: RobotId) {
        let place = usize::from(listener.0);
        if !self.shares_windows() || !self.agents[place].is_sending() {
            return;
        }
        for other in (0..self.agents.len() as u16)
            .map(RobotId)
            .filter(|other| *other != listener)
        {
            if let Some(model) = self.agents[usize::from(other.0)].perception_model() {
                self.agents[place].on_shared_model(other, model, self.now);
            }
        }
        self.run_agent(listener);
    }

    /// `listener` learns that perceptions have arrived, and the arrival models that came with them.
    fn on_perceptions_in(&mut self, listener: RobotId, arrived: &[RobotId]) {
        let place = usize::from(listener.0);
        if !self.shares_windows() || !self.agents[place].is_sending() {
            return;
        }
        let agents = &self.agents;
        let others = arrived.iter().filter(|other| **other != listener);
        let heard: Vec<_> = others
            .map(|other| (*other, agents[usize::from(other.0)].perception_model()))
            .collect();
        self.agents[place].on_shared_arrived(heard, self.now);
        self.run_agent(listener);
    }

    /// The leader tells the robots that hold permits that all perceptions of this period are in.
    fn send_clear(&mut self) {
        if !self.shares_windows() {
            return;
        }
        let holders: Vec<RobotId> = self.controller.iter().flat_map(Controller::holders).collect();
        for holder in holders {
            if let Some(channel) = self.from_controller[usize::from(holder.0)] {
                let bytes = PERMIT_MESSAGE_BYTES + MODEL_BYTES * self.agents.len() as u64;
                let content = Some(Content::Clear);
                self.send_message(Delayed {
                    channel,
                    bytes,
                    made_at: self.now,
                    content,
                });
            }
        }
    }

    // --- bulk -------------------------------------------------------------------------------------------------

    /// This stream may have something to send, or to finish.
    fn mark(&mut self, place: u32) {
        let stream = &mut self.streams[place as usize];
        if !stream.dirty {
            stream.dirty = true;
            self.dirty.push(place);
        }
    }

    fn pump(&mut self, place: u32) {
        let now = self.now;
        let stream = &mut self.streams[place as usize];
        stream.dirty = false;
        stream.pump(now, &mut self.outbox);
        if let Some(deadline) = stream.sender.next_deadline() {
            stream
                .sender_armed
                .arm(deadline.max(now), Timer::Sender(place), &mut self.timers);
        }
        let pending = stream.is_pending();
        if pending != self.stream_pending[place as usize] {
            self.stream_pending[place as usize] = pending;
            if self.is_bulk(self.cargo[place as usize]) {
                self.count_pending(robot(self.streams[place as usize].from), pending);
            }
        }
    }

    /// A robot has one more, or one less, stream or flow of bulk with something left to send.
    fn count_pending(&mut self, robot: RobotId, more: bool) {
        let pending = &mut self.bulk_pending[usize::from(robot.0)];
        *pending = if more { *pending + 1 } else { pending.saturating_sub(1) };
        let wants = *pending > 0;
        self.agents[usize::from(robot.0)].set_bulk(wants, self.now);
        let active = self.bulk_pending.iter().any(|pending| *pending > 0);
        self.counts.bulk_active.set(active, self.now);
        self.run_agent(robot);
    }

    fn arm_receiver(&mut self, place: u32) {
        let stream = &mut self.streams[place as usize];
        if let Some(deadline) = stream.receiver.next_deadline() {
            stream
                .receiver_armed
                .arm(deadline.max(self.now), Timer::Receiver(place), &mut self.timers);
        }
    }

    fn on_stream_data(&mut self, place: u32, packet: &Packet) {
        let cargo = self.cargo[place as usize];
        let bulk = self.is_bulk(cargo);
        let stream = &mut self.streams[place as usize];
        let before = stream.receiver.delivered_bytes();
        let completed = stream.on_data(packet, self.now, &mut self.outbox);
        let gained = stream.receiver.delivered_bytes() - before;
        if bulk {
            self.counts.bulk_bytes += gained;
        }
        self.arm_receiver(place);
        if let Cargo::Plain(flow) = cargo {
            self.on_plain_stream(place, flow, gained, completed);
            return;
        }
        for _ in 0..completed {
            match cargo {
                Cargo::ToWorker(robot) => self.with_drlc(|drlc| drlc.on_arrived_at_worker(robot)),
                Cargo::ToLeader(robot) => self.with_drlc(|drlc| drlc.on_arrived_at_leader(robot)),
                Cargo::Plain(_) => {}
            }
        }
    }

    fn with_drlc(&mut self, tell: impl FnOnce(&mut Drlc)) {
        if let Some(drlc) = &mut self.drlc {
            tell(drlc);
            self.run_drlc();
        }
    }

    fn run_drlc(&mut self) {
        while let Some(action) = self.drlc.as_mut().and_then(|drlc| drlc.actions.pop_front()) {
            match action {
                DrlcAction::ToWorker(robot, bytes) => self.transfer(Cargo::ToWorker(robot), bytes),
                DrlcAction::ToLeader(robot, bytes) => self.transfer(Cargo::ToLeader(robot), bytes),
                DrlcAction::Train(robot, time) => self.timers.set(self.now + time, Timer::Trained(robot)),
                DrlcAction::Collect => self.collect(),
                DrlcAction::EpochEnded => {
                    self.counts.epochs += 1;
                    self.counts.epoch_time += self.now.since(self.counts.epoch_started);
                    self.counts.epoch_started = self.now;
                }
            }
        }
    }

    /// Without a control loop the batch fills as fast as one would have filled it.
    fn collect(&mut self) {
        if self.mpc.is_some() {
            return;
        }
        let period = self.team.control.map_or(Duration::ZERO, |control| control.period);
        let loops = self.drlc.as_ref().map_or(0, Drlc::batch_loops);
        self.timers.set(self.now + period * u64::from(loops), Timer::BatchFull);
    }

    fn transfer(&mut self, cargo: Cargo, bytes: u64) {
        if let Some(place) = self.cargo.iter().position(|other| *other == cargo) {
            self.streams[place].transfer(bytes);
            self.mark(place as u32);
        }
    }

    // --- plain flows ------------------------------------------------------------------------------------------

    fn on_flow_start(&mut self, place: u32) {
        let plain = &mut self.plains[place as usize];
        plain.running = true;
        let (sender, bulk) = (plain.flow.from, plain.flow.bulk);
        let saturated = matches!(plain.flow.traffic, Traffic::Saturated { .. });
        match (plain.carrier, saturated) {
            (Carrier::Stream(stream), true) => {
                self.streams[stream as usize].sender.saturate();
                self.mark(stream);
            }
            (Carrier::Saturated, _) => {
                plain.fill(self.now, &mut self.outbox);
                if bulk {
                    self.count_pending(sender, true);
                }
            }
            _ => {
                if let Some(at) = plain.next_tick() {
                    self.timers.set(at.max(self.now), Timer::FlowTick(place));
                }
            }
        }
    }

    fn on_flow_stop(&mut self, place: u32) {
        let plain = &mut self.plains[place as usize];
        plain.running = false;
        let (sender, bulk) = (plain.flow.from, plain.flow.bulk);
        match plain.carrier {
            Carrier::Saturated if bulk => self.count_pending(sender, false),
            Carrier::Stream(stream) => {
                self.streams[stream as usize].stop(self.now);
                self.mark(stream);
            }
            _ => {}
        }
    }

    fn on_flow_tick(&mut self, place: u32) {
        let plain = &mut self.plains[place as usize];
        if !plain.running {
            return;
        }
        if let Some(at) = plain.next_tick() {
            self.timers.set(at.max(self.now), Timer::FlowTick(place));
        }
        let Traffic::Periodic { size_bytes, .. } = plain.flow.traffic else {
            return;
        };
        plain.sent += 1;
        match plain.carrier {
            Carrier::Messages(channel) => {
                if !plain.flow.bulk {
                    self.note_control_made(channel);
                }
                let message = Delayed {
                    channel,
                    bytes: size_bytes,
                    made_at: self.now,
                    content: None,
                };
                self.send_message(message);
            }
            Carrier::Stream(stream) => {
                plain.made_at.push_back(self.now);
                self.streams[stream as usize].transfer(size_bytes);
                self.mark(stream);
            }
            Carrier::Saturated => {}
        }
    }

    fn on_plain_stream(&mut self, stream: u32, flow: u32, gained: u64, completed: usize) {
        let name = &self.team.flows[flow as usize].name;
        let Some(plain) = self.plains.iter_mut().find(|plain| plain.flow.name == *name) else {
            return;
        };
        if matches!(plain.flow.traffic, Traffic::Saturated { .. }) {
            plain.delivered_bytes += gained;
            plain.delivered = self.streams[stream as usize].segments_delivered;
            plain.sent = self.streams[stream as usize].segments_sent;
            return;
        }
        for _ in 0..completed {
            if let Some(made_at) = plain.made_at.pop_front() {
                plain.on_message(self.now.since(made_at));
            }
        }
    }

    // --- measuring --------------------------------------------------------------------------------------------

    fn on_second(&mut self) {
        let gained = self.counts.bulk_bytes - self.counts.bulk_bytes_before;
        self.counts.bulk_bytes_before = self.counts.bulk_bytes;
        self.counts
            .throughput
            .push((self.now.as_secs_f64(), gained as f64 * 8e-6));
        self.timers.set(self.now + Duration::from_secs(1), Timer::Second);
    }

    /// Records a second in which bulk is under way, if one comes.
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

    fn arm_faults(&mut self) {
        if let Some(at) = self.faults.as_ref().and_then(Faults::next) {
            self.timers.set(at.max(self.now), Timer::Fault);
        }
    }

    fn on_fault(&mut self) {
        let Some(faults) = &mut self.faults else { return };
        let strike = faults.strike(self.now);
        self.arm_faults();
        match strike {
            Strike::Down { robot, dies } => {
                self.watch.on_trouble(robot, false, self.now);
                self.agents[usize::from(robot.0)].set_up(false, self.now);
                self.set_permitted(robot, false);
                if let Some(mpc) = self.mpc.as_mut().filter(|_| dies) {
                    mpc.set_alive(robot, false);
                }
            }
            Strike::Up { robot, incarnation } => {
                self.watch.on_trouble(robot, false, self.now);
                self.agents[usize::from(robot.0)].set_up(true, self.now);
                if let Some(incarnation) = incarnation {
                    self.restart(robot, incarnation);
                }
            }
            Strike::ClockStep(robot, by_ns) => {
                self.watch.on_trouble(robot, true, self.now);
                self.agents[usize::from(robot.0)].step_clock(by_ns, self.now);
                self.agents_armed[usize::from(robot.0)] = Armed::default();
                if robot == self.team.leader {
                    self.controller_armed = Armed::default();
                }
            }
            Strike::None => {}
        }
        self.run_mpc();
        for robot in 0..self.agents.len() {
            let permitted = self.agents[robot].is_permitted();
            self.set_permitted(RobotId(robot as u16), permitted);
            self.run_agent(RobotId(robot as u16));
        }
        self.run_controller();
    }

    /// A robot comes back from the dead, knowing nothing.
    fn restart(&mut self, robot: RobotId, incarnation: u32) {
        let place = usize::from(robot.0);
        self.agents[place].restart(self.team, self.policy, self.schedule.as_ref(), incarnation, self.now);
        if let (true, Some(config)) = (robot == self.team.leader, &self.policy.global) {
            let local = self.agents[place].local(self.now);
            self.controller = self
                .controller
                .take()
                .map(|_| Controller::recovering(config.clone(), incarnation, local));
        }
        if let Some(mpc) = &mut self.mpc {
            mpc.set_alive(robot, true);
        }
        self.agents[place].set_bulk(self.bulk_pending[place] > 0, self.now);
    }

    fn finish(mut self, air: &Air, options: &Options) -> Run {
        let end = self.now;
        for agent in &mut self.agents {
            let (window_s, sending_s) = agent.window_time_s(end);
            self.counts.window_s += window_s;
            self.counts.sending_s += sending_s;
        }
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
            bulk_mbps: (has_bulk && active_s > 0.0).then(|| counts.bulk_bytes as f64 * 8e-6 / active_s),
            bulk_share: None,
            epochs: counts.epochs,
            epoch_s: (counts.epochs > 0).then(|| counts.epoch_time.as_secs_f64() / counts.epochs as f64),
            wnic_ahead: counts.ahead.result(),
            window_share: if counts.sending_s > 0.0 {
                counts.window_s / counts.sending_s
            } else {
                0.0
            },
            virtual_s: options.duration.as_secs_f64(),
            wall_s: 0.0,
            events: self.events,
            flows: self.plains.iter().map(|plain| plain.result(end)).collect(),
            mac: mac_result(air.counters(), options.duration),
        };
        let robots = self.team.robots.iter().map(|robot| robot.name.clone()).collect();
        let charts = match self.recorder {
            Some(recorder) => Charts {
                reaction_cdf: counts.reaction.cdf_ms(),
                control_cdf: counts.control_latency.cdf_ms(),
                throughput: counts.throughput.clone(),
                timeline: recorder.timeline(robots),
            },
            None => Charts::default(),
        };
        Run { result, charts }
    }
}

/// The flow that a message belongs to in its sender's arrival models, if they follow it.
fn control_flow(role: Role) -> Option<ControlFlow> {
    match role {
        Role::Perception(_) => Some(ControlFlow::Perception),
        Role::Command(_) => Some(ControlFlow::Command),
        Role::Plain(place) => Some(ControlFlow::Plain(place)),
        Role::ToController(_) | Role::FromController(_) => None,
    }
}

impl Host for World<'_> {
    fn may_dequeue(&mut self, station: StationId, category: AccessCategory, load: Load, now: Instant) -> bool {
        if category < AccessCategory::BestEffort {
            return true;
        }
        let robot = robot(station);
        let agent = &mut self.agents[usize::from(robot.0)];
        let (pass, changed) = agent.may_dequeue(load, now);
        if changed {
            if let Some(deadline) = agent.next_deadline() {
                self.agents_armed[usize::from(robot.0)].arm(deadline.max(now), Timer::Agent(robot), &mut self.timers);
            }
            if let Some(recorder) = &mut self.recorder {
                recorder.state(robot, SpanKind::Hold, !pass, now);
            }
        }
        pass
    }

    fn enqueued(&mut self, packet: &Packet, _now: Instant) {
        let place = usize::from(packet.from.0);
        if packet.category >= AccessCategory::BestEffort {
            self.agents[place].on_enqueued();
        }
        match self.slots[packet.flow.0 as usize] {
            Slot::Message(channel) if self.channels[channel as usize].role_is_control(&self.plains) => {
                if MessageFlow::is_first(packet) {
                    self.counts.ahead.record(self.bulk_in_wnic[place]);
                }
            }
            _ => self.bulk_in_wnic[place] += 1,
        }
    }

    fn released(&mut self, packet: &Packet, ahead: u16, queued_at: Instant, now: Instant) {
        if packet.category >= AccessCategory::BestEffort {
            self.agents[usize::from(packet.from.0)].on_released(ahead, queued_at, now);
        }
    }

    fn completed(&mut self, packet: &Packet, queued_at: Instant, acknowledged: bool, now: Instant) {
        let sender = robot(packet.from);
        let place = usize::from(packet.from.0);
        if packet.category >= AccessCategory::BestEffort {
            self.agents[place].on_status(queued_at, now);
        }
        match self.slots[packet.flow.0 as usize] {
            Slot::Message(channel) => {
                let channel_state = &mut self.channels[channel as usize];
                let (gone, fate) = channel_state.flow.on_left(packet, acknowledged, now);
                if !channel_state.role_is_control(&self.plains) {
                    self.bulk_in_wnic[place] -= 1;
                }
                if gone {
                    if let Some(control) = control_flow(self.channels[channel as usize].role) {
                        self.agents[place].on_control_left(control, now);
                        self.run_agent(sender);
                    }
                }
                if let Some((number, fate)) = fate {
                    self.on_message_fate(channel, number, fate);
                }
            }
            Slot::Data(stream) => {
                self.bulk_in_wnic[place] -= 1;
                self.streams[stream as usize]
                    .sender
                    .on_departed(packet.bytes - tcp::HEADER_BYTES);
                self.mark(stream);
            }
            Slot::Acks(_) => self.bulk_in_wnic[place] -= 1,
            Slot::Saturated(plain) => {
                self.bulk_in_wnic[place] -= 1;
                let plain = &mut self.plains[plain as usize];
                plain.outstanding -= 1;
                plain.fill(now, &mut self.outbox);
            }
        }
    }

    fn delivered(&mut self, packet: &Packet, now: Instant) {
        match self.slots[packet.flow.0 as usize] {
            Slot::Message(channel) => {
                let fate = self.channels[channel as usize].flow.on_delivered(packet, now);
                if let Some((number, fate)) = fate {
                    self.on_message_fate(channel, number, fate);
                }
            }
            Slot::Data(stream) => self.on_stream_data(stream, packet),
            Slot::Acks(stream) => {
                self.streams[stream as usize].on_ack(packet, now);
                self.mark(stream);
            }
            Slot::Saturated(plain) => {
                let plain = &mut self.plains[plain as usize];
                plain.on_packet(packet, now);
                if plain.flow.bulk {
                    self.counts.bulk_bytes += u64::from(packet.bytes) - 28;
                }
            }
        }
    }

    fn dropped(&mut self, packet: &Packet, now: Instant) {
        match self.slots[packet.flow.0 as usize] {
            Slot::Message(channel) => {
                let (_, fate) = self.channels[channel as usize].flow.on_left(packet, false, now);
                if let Some((number, fate)) = fate {
                    self.on_message_fate(channel, number, fate);
                }
            }
            Slot::Data(stream) => {
                self.streams[stream as usize]
                    .sender
                    .on_departed(packet.bytes - tcp::HEADER_BYTES);
                self.mark(stream);
            }
            Slot::Acks(_) => {}
            Slot::Saturated(plain) => {
                let plain = &mut self.plains[plain as usize];
                plain.outstanding -= 1;
                plain.fill(now, &mut self.outbox);
            }
        }
    }

    fn transmitted(&mut self, transmission: &Transmission) {
        if let Some(recorder) = &mut self.recorder {
            recorder.transmission(transmission, transmission.category < AccessCategory::BestEffort);
        }
    }
}

impl Channel {
    /// Whether its messages count as control. Those about permits do.
    fn role_is_control(&self, plains: &[Plain]) -> bool {
        match self.role {
            Role::Plain(place) => !plains[place as usize].flow.bulk,
            _ => true,
        }
    }
}
