//! Prepares a run: opens the flows that team and policy require, and starts everything that starts with the run.

use super::{Cargo, Channel, Counts, Role, Slot, Way, World};
use crate::agent::Agent;
use crate::delay::Delay;
use crate::drlc::Drlc;
use crate::faults::{Faults, Watch};
use crate::measure::{Ahead, Latency, Recorder, Stopwatch};
use crate::messages::MessageFlow;
use crate::mpc::Mpc;
use crate::plain::{Carrier, Plain};
use crate::setup::{self, robot, station, MOVE_EVERY};
use crate::streams::Stream;
use crate::timers::{Armed, Timer, Timers};
use crate::Options;
use coorp_air::tcp;
use coorp_air::AccessCategory;
use coorp_core::policy::{Access, Policy};
use coorp_core::schedwifi::Schedule;
use coorp_core::{Duration, FlowId, Instant, RobotId};
use coorp_team::{Team, Traffic};
use std::collections::{BTreeMap, VecDeque};

impl World {
    pub fn new(team: Team, policy: Policy, schedule: Option<Schedule>, options: &Options) -> Result<Self, String> {
        let robots = team.robots.len();
        let seed = options.seed;
        let mpc = team
            .control
            .filter(|_| policy.control && robots > 1)
            .map(|control| Mpc::new(&team, control, seed));
        let drlc = team
            .learning
            .filter(|_| policy.bulk && robots > 1)
            .map(|learning| Drlc::new(&team, learning, seed));
        let agents = (0..robots as u16)
            .map(|id| Agent::new(&team, &policy, schedule.as_ref(), RobotId(id), options.timeline))
            .collect::<Result<_, _>>()?;
        let watch = Watch::new(&team, &policy);
        let scheduling = Delay::new(policy.sight.scheduling_delay, seed ^ 0x0063_6f72_6573);
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
            mpc,
            drlc,
            faults: options.faults.then(|| Faults::new(robots, seed, options.duration)),
            watch,
            delayed: Vec::new(),
            delayed_free: Vec::new(),
            scheduling,
            stack_until: vec![Instant::ZERO; robots],
            perception: vec![None; robots],
            command: vec![None; robots],
            words: BTreeMap::new(),
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
                perception_latency: Latency::new(),
                command_latency: Latency::new(),
                epochs: 0,
                epoch_started: Instant::ZERO,
                epoch_time: Duration::ZERO,
                bulk_bytes: 0,
                bulk_bytes_before: 0,
                bulk_active: Stopwatch::default(),
                ahead: Ahead::default(),
                throughput: Vec::new(),
            },
            recorder: options.timeline.then(Recorder::new),
            log: options.events.then(Vec::new),
        };
        world.open_flows(seed);
        Ok(world)
    }

    fn open_flows(&mut self, seed: u64) {
        let leader = self.team.leader;
        let others: Vec<RobotId> = (0..self.team.robots.len() as u16)
            .map(RobotId)
            .filter(|id| *id != leader)
            .collect();
        let (voice, bulk) = (self.category(AccessCategory::Voice, false), AccessCategory::BestEffort);
        for id in others {
            let place = usize::from(id.0);
            if self.mpc.is_some() {
                self.perception[place] = Some(self.open_channel((id, leader), voice, Role::Perception(id), false));
                self.command[place] = Some(self.open_channel((leader, id), voice, Role::Command(id), false));
            }
            if self.drlc.is_some() {
                let config = tcp::Config {
                    ack_every: self.policy.ack_every,
                    ..Default::default()
                };
                self.open_stream((leader, id), bulk, Cargo::ToWorker(id), true, config);
                self.open_stream((id, leader), bulk, Cargo::ToLeader(id), true, config);
            }
        }
        self.open_words(voice);
        for flow in self.team.flows.clone() {
            let runs = if flow.bulk {
                self.policy.bulk
            } else {
                self.policy.control
            };
            if runs {
                self.open_plain(flow, seed);
            }
        }
    }

    /// Opens flows for coordination between robots, if there is any.
    fn open_words(&mut self, category: AccessCategory) {
        let local = self.policy.local.as_ref();
        let says = self.policy.bulk && self.policy.global.is_some() || local.is_some_and(|local| local.shared_windows);
        if !says {
            return;
        }
        let robots = || (0..self.team.robots.len() as u16).map(RobotId);
        let pairs = robots().flat_map(|from| robots().map(move |to| (from, to)));
        let pairs: Vec<_> = pairs.filter(|(from, to)| from != to).collect();
        for (from, to) in pairs {
            let channel = self.open_channel((from, to), category, Role::Word(from, to), false);
            self.words.insert((from, to), channel);
        }
    }

    /// Returns a flow's category under this policy. A gate recognises bulk by its category, so control never has one of
    /// bulk's, nor bulk one of control's. The same holds under policies without a gate: priority is not coordination.
    fn category(&self, own: AccessCategory, bulk: bool) -> AccessCategory {
        match (self.policy.access, bulk) {
            (Access::BestEffort, _) => AccessCategory::BestEffort,
            (Access::Edca, true) => own.max(AccessCategory::BestEffort),
            (Access::Edca, false) if own >= AccessCategory::BestEffort => AccessCategory::Voice,
            (Access::Edca, false) => own,
        }
    }

    fn next_flow(&self) -> FlowId {
        FlowId(self.slots.len() as u32)
    }

    fn open_slot(&mut self, leads_to: Way, bulk: bool) {
        self.slots.push(Slot { leads_to, bulk });
    }

    fn open_channel(
        &mut self,
        (from, to): (RobotId, RobotId),
        category: AccessCategory,
        role: Role,
        bulk: bool,
    ) -> u32 {
        let place = self.channels.len() as u32;
        let flow = MessageFlow::new(self.next_flow(), station(from), station(to), category);
        self.open_slot(Way::Message(place), bulk);
        self.channels.push(Channel {
            flow,
            role,
            contents: VecDeque::new(),
        });
        place
    }

    fn open_stream(
        &mut self,
        (from, to): (RobotId, RobotId),
        category: AccessCategory,
        cargo: Cargo,
        bulk: bool,
        config: tcp::Config,
    ) -> u32 {
        let place = self.streams.len() as u32;
        let ends = (station(from), station(to));
        let mut stream = Stream::new(self.next_flow(), ends, category, bulk, config);
        let held = bulk && self.agents[usize::from(from.0)].needs_permit();
        stream.set_permitted(!held, Instant::ZERO);
        self.open_slot(Way::Data(place), bulk);
        self.open_slot(Way::Acks(place), bulk);
        self.streams.push(stream);
        self.cargo.push(cargo);
        self.stream_pending.push(false);
        if bulk {
            self.streams_from[usize::from(from.0)].push(place);
        }
        place
    }

    fn open_plain(&mut self, flow: coorp_team::Flow, seed: u64) {
        let (from, to) = (flow.from, flow.to);
        let category = self.category(setup::category(flow.category), flow.bulk);
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
                Carrier::Stream(self.open_stream((from, to), category, Cargo::Plain(place), flow.bulk, config))
            }
            (coorp_team::Transport::Udp, false) => {
                Carrier::Messages(self.open_channel((from, to), category, Role::Plain(place), flow.bulk))
            }
            (coorp_team::Transport::Udp, true) => {
                self.open_slot(Way::Saturated(place), flow.bulk);
                if flow.bulk {
                    self.saturated_from[usize::from(from.0)].push(place);
                }
                Carrier::Saturated
            }
        };
        let permitted = !(flow.bulk && self.agents[usize::from(from.0)].needs_permit());
        self.plains
            .push(Plain::new(flow, id, category, carrier, permitted, seed));
    }

    /// Returns every direction in which something is sent or acknowledged.
    pub fn pairs(&self) -> Vec<(RobotId, RobotId)> {
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
            .flat_map(|(from, to)| self.team.hops(&self.team.air, robot(from), robot(to)))
            .flat_map(|(from, to)| [(from, to), (to, from)])
            .collect();
        pairs.sort_unstable();
        pairs.dedup();
        pairs
    }

    pub fn start(&mut self, options: &Options, moves: bool) {
        if let Some(mpc) = &self.mpc {
            let workers = (0..).map(RobotId).zip(&mpc.workers);
            for (robot, worker) in workers.filter(|(robot, _)| *robot != self.team.leader) {
                self.timers.set(worker.next_deadline(), Timer::Sense(robot));
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
        if options.series {
            self.timers.set(Instant::ZERO + Duration::from_secs(1), Timer::Second);
        }
        if self.recorder.is_some() {
            self.timers
                .set(Instant::ZERO + options.duration / 3, Timer::RecordStart);
        }
        self.arm_faults();
        self.run_drlc();
        for id in 0..self.agents.len() {
            self.run_agent(RobotId(id as u16));
        }
    }
}
