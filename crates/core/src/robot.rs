//! All that one robot decides: who leads and who may send bulk, arrival models and protection windows, the gates, the
//! paths, the leader's clock.
//!
//! [`Robot`] assembles the other modules of this crate. It is driven as the crate's documentation says: by real sockets
//! in `coorp-node`, in virtual time in `coorp-sim`. Its times are on the robot's own clock; what it tells others is on the
//! leader's, as far as it knows that.
//!
//! Windows for commands go by the times at which loops begin, which all robots know of each other: each loop's last
//! moments before its bound are kept clear, unless the leader's commands are out by then. Windows end early as in
//! decision 5: the leader tells the robots that may send bulk which control has arrived. Nobody tells of messages
//! to other robots than the leader; their windows last their time.
//!
//! Left out: sending control again that the air lost, which a stock kernel does not tell.

mod config;
mod flow;
mod input;
mod journal;
mod judge;
mod lead;
mod message;
mod peers;
mod reports;
mod riders;

use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, VecDeque};

pub use config::{Completions, ControlLoop, RobotConfig, Sight, Windows, ROBOTS_MAX};
pub use flow::FlowKey;
pub use input::{Answer, Input};
pub use journal::{Event, GateChange, Journal, Led, Taken};
pub use judge::Judged;
pub use message::{Arrived, ClockId, Message, Stamp, ARRIVED_MAX};
pub use peers::{Carries, PathState, PathStatus};
pub use reports::{Report, ReportAction, Reporters, Session, StateCopy};
pub use riders::RIDERS_MAX;

use crate::aggregates::Aggregates;
use crate::arrival::{ArrivalConfig, TimeModel};
use crate::clock::{ClockEstimate, Offset};
use crate::failover::{self, Coordinator};
use crate::gate::{Caution, CompletionTable, Gate, Verdict};
use crate::paths::{Copy, PathAction, PathId};
use crate::permits;
use crate::policy::LocalConfig;
use crate::windows::{PlannerConfig, Window, WindowAction, WindowPlanner};
use crate::{Duration, FlowId, Instant, RobotId};
use flow::set_end;
use judge::Judge;
use lead::{Lead, BLIND_AFTER};
use peers::Peers;
use riders::Riders;

/// Control flows of one robot at most.
pub const FLOWS_MAX: usize = 64;
/// Deepest queue for which completion times are kept.
const DEPTH_MAX: usize = 512;
/// Completions of one aggregate come within this of each other, even acknowledgements that had to wait for the air
/// themselves.
const TOGETHER: Duration = Duration::from_micros(500);
/// Interval between two queries for the leader's clock; shorter while little is known. In this time two clocks part by
/// at most 0.1 ms, by which shared windows are wider on both sides.
const ASK_TIME_EVERY: Duration = Duration::from_millis(500);
const ASK_TIME_FIRST: Duration = Duration::from_millis(50);
const ASKED_QUICKLY: u32 = 8;
/// Interval between two checks whether the others still know when this robot's control is due. Telling them costs a
/// frame to each.
const CHECK_TOLD_EVERY: Duration = Duration::from_secs(1);
/// Tolerated error of what they expect.
const TOLD_OFF_MAX: Duration = Duration::from_micros(200);
/// After this time they are told again what they should know: a frame may have been lost.
const TELL_EVERY: Duration = Duration::from_secs(10);
/// Number of checks that tell newcomers in any case.
const TELL_ANYWAY: u8 = 3;
/// Arrivals at the leader within this time of the first are told together, as each notice is a frame on the air.
const ARRIVED_TOGETHER: Duration = Duration::from_micros(500);
/// While windows are off, nobody waits to be told what has arrived; a robot that has not heard that they are off soon does.
const TELL_CALM_EVERY: Duration = Duration::from_millis(500);
/// Leaders whose clocks are remembered.
const CLOCKS_KEPT: usize = 4;

/// The way that a message takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Route {
    /// Over every path: coordination.
    Any,
    /// Over this one.
    Path(PathId),
}

/// What a robot wants done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Action {
    /// Send to one robot.
    Send(RobotId, Route, Message),
    /// Send to all other robots, over every path.
    Broadcast(Message),
    /// Bulk may, or may no longer, be sent.
    Permitted(bool),
    /// The gate has opened: ask [`Robot::may_pass`] again.
    Resume,
    /// This robot leads from now on.
    Led(RobotId),
    /// A path to a robot is alive again, or dead.
    PathAlive(RobotId, PathId, bool),
    /// From now on the messages of an own flow are to be made later by so much.
    Shift(FlowId, Duration),
    /// About the states that this robot reports.
    Report(ReportAction),
    /// A grant arrived that nobody asked for, or no longer. To be counted.
    StaleGrant(RobotId),
}

/// The state of a robot's permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PermitState {
    /// The policy has no permits.
    NotNeeded,
    /// There is no bulk.
    Idle,
    /// Bulk waits for a permit.
    Waiting,
    /// Bulk may be sent.
    Holding,
}

/// Why bulk is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hold {
    /// This robot has no permit.
    NoPermit {
        /// The leader, as far as is known.
        leader: Option<RobotId>,
        /// The robots that hold permits; known on the leader alone.
        holders: Vec<RobotId>,
    },
    /// For a protection window.
    Window {
        /// The window.
        window: Window,
        /// The flows whose messages are awaited in it.
        flows: Vec<FlowKey>,
    },
    /// Enough is on its way.
    Backlog {
        /// Packets on their way.
        n: usize,
        /// How long one behind them would take.
        takes: Duration,
        /// The bound on that.
        most: Duration,
    },
}

/// Where windows come from.
#[derive(Clone, Debug, Serialize, Deserialize)]
enum Source {
    None,
    Predicted(Box<WindowPlanner<FlowKey>>, LocalConfig),
    Scheduled {
        schedule: crate::schedwifi::Schedule,
        until: Instant,
    },
}

impl Source {
    fn planner(&self) -> Option<&WindowPlanner<FlowKey>> {
        match self {
            Source::Predicted(planner, _) => Some(planner),
            _ => None,
        }
    }

    fn planner_mut(&mut self) -> Option<&mut WindowPlanner<FlowKey>> {
        match self {
            Source::Predicted(planner, _) => Some(planner),
            _ => None,
        }
    }

    fn local(&self) -> Option<&LocalConfig> {
        match self {
            Source::Predicted(_, local) => Some(local),
            _ => None,
        }
    }

    fn shares(&self) -> bool {
        self.local().is_some_and(|local| local.shared_windows)
    }
}

/// One robot. See the module's documentation.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Robot {
    me: RobotId,
    /// Robots in the team.
    robots: u16,
    /// The leader of the team file.
    leader: RobotId,
    clock: ClockId,
    /// `None` if the policy has no permits; then the team file's leader is the only one.
    coordinator: Option<Coordinator>,
    windows: Source,
    /// Set if windows are kept for the ends of its loops too.
    loops: Option<flow::LoopEnds>,
    /// The planner's flows that stand for these.
    ends: BTreeSet<FlowKey>,
    /// What it decides as the leader; set if the policy shares windows.
    lead: Option<Lead>,
    /// What it tells the leader of messages with a bound.
    judge: Judge,
    caution: Caution,
    /// When its leader last told how careful to be; at first, when it began.
    caution_told_at: Instant,
    /// When it made the message that began its newest loop, until the leader's command arrives, and how long the loop before
    /// took.
    loop_began: Option<Instant>,
    last_loop: Option<Duration>,
    /// On the leader: what has arrived and was not told yet to the robots that may send bulk, and when it is to be.
    arrived: Vec<Arrived>,
    tell_arrived_at: Instant,
    /// While windows are off, what arrives before this is not told.
    tell_calm_at: Instant,
    /// One for each path, as each leads into a card of its own; none if the policy has none.
    gates: Vec<Gate>,
    /// For each gate, what it learns from.
    aggregates: Vec<Aggregates>,
    peers: Peers,
    /// Words that wait for a control message.
    riders: Riders,
    /// What reports this robot's states to robots that gather them.
    pub reporters: Reporters,
    /// The decisions made, for a recording.
    #[serde(skip)]
    pub journal: Journal,
    wants_bulk: bool,
    /// Which of this robot's flows are taken.
    flows: Vec<bool>,
    /// The periods that their publishers declared.
    periods: Vec<Option<Duration>>,
    /// The ages at which their messages are late, if their publishers state them.
    bounds: Vec<Option<Duration>>,
    tell_models_at: Instant,
    /// What the others were told of the models, and when.
    told: Vec<(u8, TimeModel)>,
    told_at: Instant,
    /// This many checks tell them in any case.
    tell_anyway: u8,
    /// The clocks of the last leaders, the newest first: messages stamped by an older one may still be on their way.
    clocks: VecDeque<(ClockId, ClockEstimate)>,
    ask_time_at: Instant,
    asked_time: u32,
    actions: VecDeque<Action>,
}

impl Robot {
    /// # Errors
    /// If the configuration's values cannot work together; the text says which.
    pub fn new(config: RobotConfig, now: Instant) -> Result<Self, String> {
        if config.robots > ROBOTS_MAX {
            return Err(format!("a team has at most {ROBOTS_MAX} robots"));
        }
        let (me, incarnation) = (config.me, config.incarnation);
        let voters = config.permits.as_ref().map(|(failover, _)| failover.voters.clone());
        let voters = voters.unwrap_or_default();
        let coordinator = config.permits.map(|(failover, permits)| {
            Coordinator::new(failover, permits, me, incarnation, now).map_err(|error| error.to_string())
        });
        let gates = |local: &LocalConfig| (0..config.paths).map(|_| gate(local)).collect::<Vec<Gate>>();
        let (windows, gates) = match config.windows {
            Windows::None => (Source::None, Vec::new()),
            Windows::Predicted(local) => {
                let planner = WindowPlanner::new(PlannerConfig {
                    extension: local.extension,
                    early_release: local.early_release,
                    share_max: local.window_share_max,
                    flows_max: (2 * usize::from(config.robots) + 1) * FLOWS_MAX,
                });
                let gates = gates(&local);
                (Source::Predicted(Box::new(planner), local), gates)
            }
            Windows::Scheduled(schedule, shaper) => {
                let until = Instant::ZERO;
                (Source::Scheduled { schedule, until }, gates(&shaper))
            }
        };
        let loops = windows.local().filter(|local| local.command_windows).and_then(|local| {
            let control = config.control?;
            Some(flow::LoopEnds::new(control, local.extension))
        });
        let local = windows.local();
        let percentile = local.map_or(0.0, |local| local.protection_percentile);
        let most = local.and_then(|local| local.protection_percentile_max);
        let caution = Caution::new(percentile, most.unwrap_or(percentile));
        let control = config.control.filter(|_| windows.shares());
        let calm = config.judged && windows.shares();
        let caution = if calm { caution.calm() } else { caution };
        let lead = windows.shares().then(|| Lead::new(control, most.map(|_| caution), now));
        let mut robot = Robot {
            lead,
            judge: Judge::new(),
            caution,
            caution_told_at: now,
            loop_began: None,
            last_loop: None,
            me,
            robots: config.robots,
            leader: config.leader,
            clock: ClockId::of(me, incarnation),
            coordinator: coordinator.transpose()?,
            aggregates: vec![Aggregates::new(TOGETHER); gates.len()],
            gates,
            reporters: Reporters::new(incarnation),
            journal: Journal::default(),
            windows,
            loops,
            ends: BTreeSet::new(),
            arrived: Vec::new(),
            tell_arrived_at: Instant::FAR_FUTURE,
            tell_calm_at: now,
            peers: Peers::new(me, &config.paths_to, &config.path, incarnation, now)?,
            riders: Riders::new(&config.paths_to, &voters),
            wants_bulk: false,
            flows: vec![false; FLOWS_MAX],
            periods: vec![None; FLOWS_MAX],
            bounds: vec![None; FLOWS_MAX],
            tell_models_at: now + CHECK_TOLD_EVERY,
            told: Vec::new(),
            told_at: now,
            tell_anyway: 0,
            clocks: VecDeque::new(),
            ask_time_at: if config.team_time { now } else { Instant::FAR_FUTURE },
            asked_time: 0,
            actions: VecDeque::new(),
        };
        if robot.lead.is_some() {
            robot.set_caution(caution);
        }
        robot.next_scheduled(now);
        Ok(robot)
    }

    /// The name of this robot's clock.
    pub fn clock_id(&self) -> ClockId {
        self.clock
    }

    // --- permits ----------------------------------------------------------------------------------------------

    /// Bulk waits to be sent, or none is left.
    pub fn want_bulk(&mut self, wants: bool, now: Instant) {
        self.wants_bulk = wants;
        if let Some(coordinator) = &mut self.coordinator {
            if wants {
                coordinator.want(now);
            } else {
                coordinator.done(now);
            }
        }
        self.gather_words(now);
    }

    /// A robot's links are gone. That does not prove that its process has ended: a link breaks for many reasons, and a
    /// permit's holder may go on without it until its lease ends.
    pub fn on_gone(&mut self, robot: RobotId) {
        for flow in 0..FLOWS_MAX as u8 {
            self.forget_shared(robot, flow);
        }
        self.gather();
    }

    fn forget_shared(&mut self, robot: RobotId, flow: u8) {
        if let Some(lead) = &mut self.lead {
            lead.set_flow((robot, flow), None);
        }
        if let Some(planner) = self.windows.planner_mut() {
            planner.remove_flow(FlowKey::Of(robot, flow));
            planner.remove_flow(FlowKey::LoopEnd(robot, flow));
            self.ends.remove(&FlowKey::LoopEnd(robot, flow));
        }
    }

    /// A robot's process had surely ended at some time after `since`: what it held then is free.
    pub fn on_dead(&mut self, robot: RobotId, since: Instant, now: Instant) {
        if let Some(coordinator) = &mut self.coordinator {
            coordinator.on_gone(robot, since, now);
        }
        self.gather_words(now);
    }

    /// This robot is about to stop in good order.
    pub fn resign(&mut self, now: Instant) {
        if let Some(coordinator) = &mut self.coordinator {
            coordinator.resign(now);
        }
        self.gather_words(now);
    }

    /// The leader, as far as is known.
    pub fn leader(&self, now: Instant) -> Option<RobotId> {
        match &self.coordinator {
            Some(coordinator) => coordinator.leader(now),
            None => Some(self.leader),
        }
    }

    /// The state of this robot's permit.
    pub fn permit(&self, now: Instant) -> PermitState {
        match &self.coordinator {
            None => PermitState::NotNeeded,
            Some(coordinator) if coordinator.may_send(now) => PermitState::Holding,
            Some(_) if self.wants_bulk => PermitState::Waiting,
            Some(_) => PermitState::Idle,
        }
    }

    /// On the leader: the robots that hold permits, and those that wait for one.
    pub fn granted(&self) -> (Vec<RobotId>, Vec<RobotId>) {
        let coordinator = self.coordinator.as_ref();
        let holders = coordinator.map(|coordinator| coordinator.holders().collect());
        let queue = coordinator.map(|coordinator| coordinator.queue().collect());
        (holders.unwrap_or_default(), queue.unwrap_or_default())
    }

    // --- messages ---------------------------------------------------------------------------------------------

    /// A message arrived, which the transport proves to be `from` that robot; `path` is the one that it came over, if
    /// the transport tells. One that came with control has the control's path.
    pub fn on_message(&mut self, from: RobotId, path: Option<PathId>, message: Message, now: Instant) {
        match message {
            Message::Coordination(message) => {
                self.riders.on_word(from, &message, path.is_some());
                self.on_coordination(from, message, now);
            }
            Message::TimeQuery { sent_at } => {
                let reply = self.time_reply(sent_at, now, now);
                self.actions.push_back(Action::Send(from, Route::Any, reply));
            }
            Message::TimeReply {
                clock,
                echo,
                received_at,
                sent_at,
            } => self.on_time(clock, [echo, received_at, sent_at, now]),
            Message::Models { clock, models } => {
                // If that clock is not known yet it soon will be, and newcomers are told again.
                let Some(offset) = self.clock(clock, now) else { return };
                let models: Vec<_> = models
                    .into_iter()
                    .map(|(flow, model)| (flow, to_ours(model, offset)))
                    .collect();
                self.on_models(from, &models, offset.within, now);
            }
            Message::Arrived {
                clock,
                messages,
                caution,
            } => {
                let Some(offset) = self.clock(clock, now) else { return };
                if self.leader(now) == Some(from) {
                    self.caution_told_at = now;
                    self.set_caution(self.caution.at_level(lead::level_from_wire(caution)));
                    let messages = messages.iter().take(ARRIVED_MAX).map(|message| Arrived {
                        made_at: offset.ours(message.made_at),
                        ..*message
                    });
                    self.release(messages.collect::<Vec<_>>(), now);
                }
            }
            Message::Judged(judged) if self.leader(now) == Some(self.me) => {
                self.on_judged(judged, now);
                let mut holders = self.coordinator.iter().flat_map(Coordinator::holders);
                if holders.any(|holder| holder != self.me) && (!self.caution.is_calm() || now >= self.tell_calm_at) {
                    self.tell_arrived_at = self.tell_arrived_at.min(now + ARRIVED_TOGETHER);
                }
            }
            Message::Shift { flow, later } if self.leader(now) == Some(from) => {
                self.restart_model(flow);
                self.actions.push_back(Action::Shift(FlowId(u32::from(flow)), later));
            }
            // Nobody else says so, and only the leader listens.
            Message::Shift { .. } | Message::Judged(_) => {}
            Message::Probe(probe) if path.is_none_or(|path| path == probe.path) => {
                let echo = self.peers.on_probe(from, probe);
                let echo = echo.map(|echo| Action::Send(from, Route::Path(probe.path), Message::Echo(echo)));
                self.actions.extend(echo);
            }
            Message::Echo(echo) if path.is_none_or(|path| path == echo.probe.path) => {
                self.peers.on_echo(from, echo, now)
            }
            // An answer over another path than its probe's says nothing of either.
            Message::Probe(_) | Message::Echo(_) => {}
        }
        self.gather();
    }

    /// The answer to a [`Message::TimeQuery`] that was sent at `echo` and received at `received_at`.
    pub fn time_reply(&self, echo: Instant, received_at: Instant, now: Instant) -> Message {
        Message::TimeReply {
            clock: self.clock,
            echo,
            received_at,
            sent_at: now,
        }
    }

    fn on_coordination(&mut self, from: RobotId, message: failover::Message, now: Instant) {
        self.gather_words(now);
        self.journal.said(from, self.me, &message);
        let before = self.actions.len();
        if let Some(coordinator) = &mut self.coordinator {
            coordinator.on_message(from, message, now);
        }
        self.gather_words(now);
        let failover::Message::Permit {
            message: permits::Message::Grant { token, .. },
            ..
        } = message
        else {
            return;
        };
        // A grant that is of no use is given back, or was made under a leadership that is over.
        let given_back = self.actions.iter().skip(before).any(|action| {
            let Action::Send(_, _, Message::Coordination(failover::Message::Permit { message, .. })) = action else {
                return false;
            };
            *message == permits::Message::Release { token }
        });
        if given_back || !self.is_permitted(now) {
            self.actions.push_back(Action::StaleGrant(from));
        }
    }

    // --- control ----------------------------------------------------------------------------------------------

    /// Adds a control flow of this robot; `period` if its publisher declares one. Returns `None` once there are
    /// [`FLOWS_MAX`].
    pub fn add_flow(&mut self, period: Option<Duration>) -> Option<FlowId> {
        let free = self.flows.iter().position(|taken| !taken)?;
        self.flows[free] = true;
        if let Source::Predicted(planner, local) = &mut self.windows {
            // The planner has room for every flow of every robot.
            let config = arrival_config(local, period);
            planner.add_flow(FlowKey::Own(free as u8), config).ok()?;
        }
        (self.periods[free], self.bounds[free]) = (period, None);
        Some(FlowId(free as u32))
    }

    /// States the age at which the messages of a control flow of this robot are late; `None` if any age will do. With a
    /// bound the leader learns whether bulk makes them late, and holds bulk back only as much as that calls for.
    pub fn set_bound(&mut self, flow: FlowId, bound: Option<Duration>) {
        if let Some(stated) = self.bounds.get_mut(flow.0 as usize) {
            *stated = bound;
        }
    }

    /// The flow's messages are about to come at another phase: what was learnt of it is void.
    fn restart_model(&mut self, flow: u8) {
        let period = self.periods.get(usize::from(flow)).copied().flatten();
        if let Source::Predicted(planner, local) = &mut self.windows {
            // It is there already, so there is room.
            let _ = planner.add_flow(FlowKey::Own(flow), arrival_config(local, period));
        }
    }

    /// Removes a control flow of this robot.
    pub fn remove_flow(&mut self, flow: FlowId) {
        let Some(taken) = self.flows.get_mut(flow.0 as usize) else {
            return;
        };
        *taken = false;
        if let Some(planner) = self.windows.planner_mut() {
            planner.remove_flow(FlowKey::Own(flow.0 as u8));
            let end = FlowKey::LoopEnd(self.me, flow.0 as u8);
            planner.remove_flow(end);
            self.ends.remove(&end);
        }
        self.gather();
    }

    /// This robot makes a control message. Returns what it tells with it.
    pub fn on_control(&mut self, flow: FlowId, now: Instant) -> Stamp {
        if let Some(planner) = self.windows.planner_mut() {
            planner.on_message(FlowKey::Own(flow.0 as u8), now);
        }
        if self.leader(now) == Some(self.me) {
            self.end_loops(now, now);
            if let Some(lead) = &mut self.lead {
                lead.on_commanded(now);
            }
        } else if self.ends.contains(&FlowKey::LoopEnd(self.me, flow.0 as u8)) {
            self.loop_began = Some(now);
        }
        self.gather();
        let clock = self.team_clock(now);
        Stamp {
            flow: flow.0 as u8,
            made_at: clock.map(|(clock, offset)| (clock, offset.theirs(now))),
            last_loop: self.last_loop,
            bound: self.bounds.get(flow.0 as usize).copied().flatten(),
        }
    }

    /// A control message of this robot has left its WNIC, delivered or given up.
    pub fn on_control_left(&mut self, flow: FlowId, now: Instant) {
        if let Some(planner) = self.windows.planner_mut() {
            planner.on_message_sent(FlowKey::Own(flow.0 as u8), now);
        }
        self.gather();
    }

    /// Returns whether `robot` ends windows, its own or by telling others, when it hears this one's control.
    pub fn ends_windows(&self, robot: RobotId, now: Instant) -> bool {
        let mut holders = self.coordinator.iter().flat_map(Coordinator::holders);
        self.leader(now) == Some(robot) || holders.any(|holder| holder == robot)
    }

    /// A control message arrived. One from the leader is a command, whose loop is over. The leader soon tells the robots
    /// that may send bulk, as they do not hear it.
    pub fn on_arrived(&mut self, from: RobotId, stamp: Stamp, now: Instant) {
        let flow = stamp.flow;
        let made_at = stamp
            .made_at
            .and_then(|(clock, at)| Some(self.clock(clock, now)?.ours(at)));
        if let (Some(made_at), Some(bound)) = (made_at, stamp.bound) {
            self.judge_message(now.since(made_at) > bound, now);
        }
        let made_at = made_at.unwrap_or(now).min(now);
        let leader = self.leader(now);
        if leader == Some(from) {
            self.last_loop = self.loop_began.take().map(|began| now.since(began)).or(self.last_loop);
        } else if leader == Some(self.me) {
            self.judge_loop((from, flow), made_at, stamp.last_loop, now);
        }
        let message = Arrived {
            robot: from,
            flow,
            made_at,
        };
        self.release([message], now);
        if leader == Some(from) {
            self.end_loops(made_at, now);
        } else if leader == Some(self.me) && self.arrived.len() < ARRIVED_MAX && !self.arrived.contains(&message) {
            let mut holders = self.coordinator.iter().flat_map(Coordinator::holders);
            let told = holders.any(|holder| holder != self.me);
            let told = told && (!self.caution.is_calm() || now >= self.tell_calm_at);
            if told && self.windows.local().is_some_and(|local| local.early_release) {
                if self.arrived.is_empty() {
                    self.tell_arrived_at = now + ARRIVED_TOGETHER;
                }
                self.arrived.push(message);
            }
        }
        self.gather();
    }

    /// A message with a bound arrived here.
    fn judge_message(&mut self, late: bool, now: Instant) {
        if !self.windows.shares() {
            return;
        }
        if self.leader(now) == Some(self.me) {
            self.on_judged(Judged::of(late), now);
        } else {
            self.judge.on_message(late, now);
        }
    }

    /// On the leader: messages with a bound arrived somewhere.
    fn on_judged(&mut self, judged: Judged, now: Instant) {
        let bulk = self.is_bulk_around();
        let lead = self.lead.as_mut();
        if let Some(caution) = lead.and_then(|lead| lead.on_judged(judged, bulk, now)) {
            self.set_caution(caution);
        }
    }

    /// On the leader: some robot may send bulk, or this one wants to.
    fn is_bulk_around(&self) -> bool {
        let mut holders = self.coordinator.iter().flat_map(Coordinator::holders);
        self.wants_bulk || holders.next().is_some()
    }

    fn judge_loop(&mut self, flow: (RobotId, u8), made_at: Instant, last_loop: Option<Duration>, now: Instant) {
        let bulk = self.is_bulk_around();
        let lead = self.lead.as_mut();
        if let Some(caution) = lead.and_then(|lead| lead.on_arrived(flow, made_at, last_loop, bulk, now)) {
            self.set_caution(caution);
        }
    }

    fn set_caution(&mut self, caution: Caution) {
        let calms = caution.is_calm() && !self.caution.is_calm();
        self.caution = caution;
        if calms {
            self.set_window(Window::NONE);
        }
        for gate in &mut self.gates {
            gate.set_caution(caution);
        }
    }

    /// Control has arrived: its window need not wait for it.
    fn release(&mut self, messages: impl IntoIterator<Item = Arrived>, now: Instant) {
        let Some(planner) = self.windows.planner_mut().filter(|_| self.wants_bulk) else {
            return;
        };
        let messages = messages
            .into_iter()
            .filter(|message| usize::from(message.flow) < FLOWS_MAX);
        let messages = messages.map(|message| (FlowKey::Of(message.robot, message.flow), None, message.made_at));
        // Flows without a model are passed over, so there is room for all.
        let _ = planner.hear_shared(messages, Duration::ZERO, now);
    }

    /// The commands made at `made_at` are out: the ends of their loops need no window any more.
    fn end_loops(&mut self, made_at: Instant, now: Instant) {
        if let Some(planner) = self.windows.planner_mut().filter(|_| self.wants_bulk) {
            let ends = self.ends.iter().map(|end| (*end, None, made_at));
            let _ = planner.hear_shared(ends, Duration::ZERO, now);
        }
    }

    fn tell_judged(&mut self, now: Instant) {
        let leader = self.leader(now).filter(|leader| *leader != self.me);
        if let (Some(judged), Some(leader)) = (self.judge.take(now), leader) {
            let route = Route::Path(self.peers.bulk_path(leader, now));
            let message = Message::Judged(judged);
            self.actions.push_back(Action::Send(leader, route, message));
        }
    }

    fn tell_arrived(&mut self, now: Instant) {
        self.tell_arrived_at = Instant::FAR_FUTURE;
        self.tell_calm_at = now + TELL_CALM_EVERY;
        let messages = std::mem::take(&mut self.arrived);
        let holders: Vec<RobotId> = self.coordinator.iter().flat_map(Coordinator::holders).collect();
        for holder in holders.into_iter().filter(|holder| *holder != self.me) {
            let route = Route::Path(self.peers.bulk_path(holder, now));
            let message = Message::Arrived {
                clock: self.clock,
                messages: messages.clone(),
                caution: lead::level_to_wire(&self.caution),
            };
            self.actions.push_back(Action::Send(holder, route, message));
        }
    }

    /// A control message is made for a robot, after [`Robot::on_control`]: the words that go with it, which its receiver takes
    /// as messages of their own.
    pub fn riders(&mut self, to: RobotId, now: Instant) -> Vec<Message> {
        self.riders.take(to, now)
    }

    // --- paths ------------------------------------------------------------------------------------------------

    /// A control message goes to a robot: its copies. None if there is no choice of paths to that robot.
    pub fn assign(&mut self, to: RobotId, now: Instant) -> Vec<Copy> {
        let copies = self.peers.assign(to, now);
        self.gather();
        copies
    }

    /// A numbered copy of a control message arrived, whether or not it was the first.
    pub fn on_copy(&mut self, from: RobotId, path: PathId, incarnation: u32, number: u32) {
        self.peers.on_copy(from, path, incarnation, number);
    }

    /// Returns the path that bulk to a robot is to take, one that is alive if there is any. While bulk goes this is asked
    /// again and again, which keeps the paths probed.
    pub fn bulk_path(&mut self, to: RobotId, now: Instant) -> usize {
        let path = self.peers.bulk_path(to, now);
        self.gather();
        usize::from(path.0)
    }

    /// Returns whether bulk to a robot has to leave this path: it is dead, and another one is not.
    pub fn bulk_moves(&mut self, to: RobotId, from: usize, now: Instant) -> bool {
        let better = self.peers.bulk_path(to, now);
        self.gather();
        let from = PathId(u8::try_from(from).unwrap_or(u8::MAX));
        !self.peers.is_alive(to, from) && self.peers.is_alive(to, better)
    }

    /// Bulk goes to a robot over a path, or no longer.
    pub fn on_bulk(&mut self, to: RobotId, path: Option<usize>) {
        let path = path.map(|path| PathId(u8::try_from(path).unwrap_or(u8::MAX)));
        self.peers.set_bulk(to, path);
    }

    /// All paths among which there is a choice.
    pub fn paths(&self, now: Instant) -> Vec<PathStatus> {
        self.peers.status(now)
    }

    // --- arrival models of others -----------------------------------------------------------------------------

    /// Another robot tells when its control messages are due, all of them, on our clock to `within`.
    fn on_models(&mut self, from: RobotId, models: &[(u8, TimeModel)], within: Duration, now: Instant) {
        if !self.windows.shares() {
            return;
        }
        let leader = self.leader(now);
        for flow in 0..FLOWS_MAX as u8 {
            let model = models.iter().find(|(told, _)| *told == flow).map(|(_, model)| model);
            let Some(model) = model.filter(|model| model.period > Duration::ZERO) else {
                self.forget_shared(from, flow);
                continue;
            };
            // The leader's are commands, which end loops.
            let begins = self.loops.filter(|_| leader != Some(from));
            let end = begins.and_then(|loops| loops.end(model));
            if let Some(lead) = &mut self.lead {
                lead.set_flow((from, flow), end.map(|_| *model));
            }
            if let Some(planner) = self.windows.planner_mut() {
                // The planner has room for every flow of every robot.
                let _ = planner.set_shared(FlowKey::Of(from, flow), *model, within, now);
                set_end(planner, &mut self.ends, FlowKey::LoopEnd(from, flow), end, within, now);
            }
        }
    }

    fn tell_models(&mut self, now: Instant) {
        if !self.windows.shares() {
            self.tell_models_at = Instant::FAR_FUTURE;
            return;
        }
        self.tell_models_at = now + CHECK_TOLD_EVERY;
        let models = self.own_models();
        self.plan_own_ends(&models, now);
        self.look_whether_calm(now);
        self.steer(now);
        let expected = |((flow, model), (told, before)): (&(u8, TimeModel), &(u8, TimeModel))| {
            flow == told && model.agrees_with(before, TOLD_OFF_MAX)
        };
        let known = models.len() == self.told.len() && models.iter().zip(&self.told).all(expected);
        let anyway = self.tell_anyway > 0 || now.since(self.told_at) >= TELL_EVERY;
        self.tell_anyway = self.tell_anyway.saturating_sub(1);
        if known && (!anyway || models.is_empty()) {
            return;
        }
        let Some((clock, offset)) = self.team_clock(now) else {
            return self.tell_models_again();
        };
        (self.told, self.told_at) = (models.clone(), now);
        let models = models
            .into_iter()
            .map(|(flow, model)| (flow, to_theirs(model, offset)))
            .collect();
        self.actions
            .push_back(Action::Broadcast(Message::Models { clock, models }));
    }

    /// Gives up being calm where this robot neither judges loops nor hears of them: bulk may be doing harm unseen.
    fn look_whether_calm(&mut self, now: Instant) {
        let blind = if self.leader(now) == Some(self.me) {
            self.lead.as_mut().and_then(|lead| lead.look(now))
        } else {
            let blind = self.caution.is_calm() && now.since(self.caution_told_at) >= BLIND_AFTER;
            blind.then(|| self.caution.at_level(0.0))
        };
        if let Some(caution) = blind {
            self.set_caution(caution);
        }
    }

    /// On the leader: tells flows whose phase is off to sample later.
    fn steer(&mut self, now: Instant) {
        let steers = self.windows.local().is_some_and(|local| local.steered_phases);
        if !steers || self.leader(now) != Some(self.me) {
            return;
        }
        let shifts = self.lead.as_mut().map(|lead| lead.shifts(now)).unwrap_or_default();
        for ((robot, flow), later) in shifts {
            let route = Route::Path(self.peers.bulk_path(robot, now));
            let message = Message::Shift { flow, later };
            self.actions.push_back(Action::Send(robot, route, message));
        }
    }

    fn own_models(&self) -> Vec<(u8, TimeModel)> {
        let Some(planner) = self.windows.planner() else {
            return Vec::new();
        };
        let taken = (0u8..).zip(&self.flows).filter(|(_, taken)| **taken);
        let models = taken.filter_map(|(flow, _)| Some((flow, planner.time_model(FlowKey::Own(flow))?)));
        models.collect()
    }

    fn plan_own_ends(&mut self, models: &[(u8, TimeModel)], now: Instant) {
        let (Some(loops), me) = (self.loops, self.me) else {
            return;
        };
        let leads = self.leader(now) == Some(me);
        for flow in 0..FLOWS_MAX as u8 {
            let model = models.iter().find(|(told, _)| *told == flow);
            let end = model.filter(|_| !leads).and_then(|(_, model)| loops.end(model));
            if let Some(planner) = self.windows.planner_mut() {
                let key = FlowKey::LoopEnd(me, flow);
                set_end(planner, &mut self.ends, key, end, Duration::ZERO, now);
            }
        }
    }

    /// Somebody may not know what the others were told, who is new or had no clock to read it by: it is told again a
    /// few times.
    pub fn tell_models_again(&mut self) {
        self.tell_anyway = TELL_ANYWAY;
    }

    /// This robot has made a state: the copies that go to the robots that gather it.
    pub fn state_copies(&mut self, topic: &str, now: Instant) -> Vec<StateCopy> {
        let mut states = Vec::new();
        for (report, topic, header) in self.reporters.on_state(topic, now) {
            let chosen = self.assign(report.1, now);
            let copies = chosen.iter().copied().map(Some);
            let alone = chosen.is_empty().then_some(None);
            states.extend(copies.chain(alone).map(|copy| StateCopy {
                report: report.clone(),
                topic,
                header,
                copy,
            }));
        }
        states
    }

    // --- clocks -----------------------------------------------------------------------------------------------

    /// The clock that the whole team knows: the leader's, or the last leader's while nobody leads. `None` while this robot
    /// does not know where it is.
    pub fn team_clock(&self, now: Instant) -> Option<(ClockId, Offset)> {
        if self.leader(now) == Some(self.me) {
            return Some((self.clock, Offset::NONE));
        }
        self.leaders_clock(now)
    }

    /// The clock of the last leader that was another robot, and where it is.
    pub fn leaders_clock(&self, now: Instant) -> Option<(ClockId, Offset)> {
        let (clock, estimate) = self.clocks.front()?;
        Some((*clock, estimate.offset(now)?.1))
    }

    /// Where a clock is, if it is this robot's or was a leader's of late.
    pub fn clock(&self, clock: ClockId, now: Instant) -> Option<Offset> {
        if clock == self.clock {
            return Some(Offset::NONE);
        }
        let (_, estimate) = self.clocks.iter().find(|(known, _)| *known == clock)?;
        Some(estimate.offset(now)?.1)
    }

    /// A leader told its time: sent, received there, answered there, back here.
    fn on_time(&mut self, clock: ClockId, times: [Instant; 4]) {
        let [sent_at, received_at, answered_at, back_at] = times;
        if !self.clocks.iter().any(|(known, _)| *known == clock) {
            self.clocks.truncate(CLOCKS_KEPT - 1);
            self.clocks.push_front((clock, ClockEstimate::default()));
        }
        if let Some((_, estimate)) = self.clocks.iter_mut().find(|(known, _)| *known == clock) {
            estimate.on_exchange(clock.0, sent_at, received_at, answered_at, back_at);
        }
    }

    // --- the gate ---------------------------------------------------------------------------------------------

    /// Returns whether a bulk packet may go over a path on which `n` are on their way. If not, [`Action::Resume`] says when
    /// to ask again; a hold without a time ends with the next completion.
    pub fn may_pass(&mut self, path: usize, n: usize, now: Instant) -> bool {
        self.is_permitted(now) && self.passes_gate(path, n, now)
    }

    /// As [`Robot::may_pass`], if permits are kept elsewhere, such as where streams are paused.
    pub fn passes_gate(&mut self, path: usize, n: usize, now: Instant) -> bool {
        self.settle_window(now);
        let Some(gate) = self.gates.get_mut(path) else {
            return true;
        };
        let verdict = gate.on_dequeue(n, now);
        let for_window = matches!(verdict, Verdict::Hold { until: Some(_) });
        self.journal.gate(path, verdict == Verdict::Pass, for_window, n);
        verdict == Verdict::Pass
    }

    /// Returns how many packets, at most `most`, may go together.
    pub fn room(&self, path: usize, n: usize, most: usize, now: Instant) -> usize {
        self.gates.get(path).map_or(most, |gate| gate.room(n, most, now))
    }

    /// Returns whether bulk may be sent as far as permits go.
    pub fn is_permitted(&self, now: Instant) -> bool {
        self.coordinator
            .as_ref()
            .is_none_or(|coordinator| coordinator.may_send(now))
    }

    /// Returns whether permits or the gate ever hold bulk back.
    pub fn coordinates_bulk(&self) -> bool {
        self.coordinator.is_some() || !self.gates.is_empty()
    }

    /// A bulk packet that entered at `entered_at` left at `left_at`; `left` counts the packets that had left when it
    /// entered, and by now, itself included.
    pub fn on_left(&mut self, path: usize, left: (u64, u64), entered_at: Instant, left_at: Instant) {
        if let (Some(gate), Some(aggregates)) = (self.gates.get_mut(path), self.aggregates.get_mut(path)) {
            if let Some(sample) = aggregates.on_left(left.0, left.1, entered_at, left_at) {
                gate.on_complete(sample.ahead, sample.entered_at, sample.left_at);
            }
            gate.on_left(left_at);
        }
        self.gather();
    }

    /// The driver's hook tells that a bulk packet, which entered at `entered_at` behind `ahead` others, has left.
    pub fn on_completed(&mut self, path: usize, ahead: usize, entered_at: Instant, left_at: Instant) {
        if let Some(gate) = self.gates.get_mut(path) {
            gate.on_complete(ahead, entered_at, left_at);
        }
        self.gather();
    }

    /// The window that bulk keeps out of, on all paths alike. For a status page: plans nothing.
    pub fn window(&self) -> Window {
        self.gates.first().map_or(Window::NONE, Gate::window)
    }

    /// Why a bulk packet would be held that is to go over a path on which `n` are on their way; `None` if it would pass.
    /// For whoever looks: decides nothing.
    pub fn hold(&self, path: usize, n: usize, now: Instant) -> Option<Hold> {
        if !self.is_permitted(now) {
            return Some(Hold::NoPermit {
                leader: self.leader(now),
                holders: self.granted().0,
            });
        }
        let gate = self.gates.get(path)?;
        if !gate.is_clear_of_window(n, now) {
            let awaited = self.windows.planner().map(|planner| planner.awaited().collect());
            return Some(Hold::Window {
                window: gate.window(),
                flows: awaited.unwrap_or_default(),
            });
        }
        let (takes, most) = gate.backlog(n);
        gate.is_held_for_backlog(n).then_some(Hold::Backlog { n, takes, most })
    }

    /// Returns whether a gate holds bulk now.
    pub fn is_held(&self) -> bool {
        self.gates.iter().any(Gate::is_paused)
    }

    /// Plans the next window if this one is over. Done when bulk asks: doing it at each window's end would wake a robot
    /// without bulk for every control message that it sends.
    fn settle_window(&mut self, now: Instant) {
        if self.window_deadline().is_some_and(|due| now >= due) {
            self.plan_windows(now);
            self.gather();
        }
    }

    fn window_deadline(&self) -> Option<Instant> {
        match &self.windows {
            Source::None => None,
            Source::Predicted(planner, _) => planner.next_deadline(),
            Source::Scheduled { until, .. } => Some(*until),
        }
    }

    fn plan_windows(&mut self, now: Instant) {
        if let Some(planner) = self.windows.planner_mut() {
            planner.on_deadline(now);
        }
        self.next_scheduled(now);
    }

    fn next_scheduled(&mut self, now: Instant) {
        let Source::Scheduled { schedule, until } = &mut self.windows else {
            return;
        };
        if *until > now {
            return;
        }
        let window = schedule.window_at_or_after(now);
        *until = window.map_or(Instant::FAR_FUTURE, |window| window.end);
        if let Some(window) = window {
            self.set_window(window);
        }
    }

    fn set_window(&mut self, window: Window) {
        let window = if self.caution.is_calm() { Window::NONE } else { window };
        self.journal
            .note(Event::Window((window != Window::NONE).then_some(window)));
        for gate in &mut self.gates {
            gate.on_window(window);
        }
    }

    // --- being recorded ---------------------------------------------------------------------------------------

    /// Notes what is decided from now on. Returns `false` if it is noted already.
    pub fn begin_journal(&mut self) -> bool {
        let begins = !self.journal.is_on();
        if begins {
            self.journal.set(true);
        }
        begins
    }

    /// Notes no more.
    pub fn end_journal(&mut self) {
        self.journal.set(false);
    }

    /// The decisions made since the last call.
    pub fn take_journal(&mut self) -> Taken {
        self.journal.take()
    }

    // --- being driven -----------------------------------------------------------------------------------------

    /// The time asked for by [`Robot::next_deadline`] has come. Harmless at any other time.
    pub fn on_deadline(&mut self, now: Instant) {
        self.journal.at(now);
        if let Some(coordinator) = &mut self.coordinator {
            coordinator.on_deadline(now);
        }
        self.plan_windows(now);
        for gate in &mut self.gates {
            gate.on_deadline(now);
        }
        self.peers.on_deadline(now);
        let overdue = self.riders.on_deadline(now);
        let overdue = overdue.into_iter().map(|(to, word)| Action::Send(to, Route::Any, word));
        self.actions.extend(overdue);
        self.reporters.on_deadline(now);
        if now >= self.tell_models_at {
            self.tell_models(now);
        }
        if now >= self.tell_arrived_at {
            self.tell_arrived(now);
        }
        if now >= self.ask_time_at {
            self.ask_time(now);
        }
        self.tell_judged(now);
        self.gather_words(now);
    }

    fn ask_time(&mut self, now: Instant) {
        let every = if self.asked_time >= ASKED_QUICKLY {
            ASK_TIME_EVERY
        } else {
            ASK_TIME_FIRST
        };
        self.ask_time_at = now + every;
        self.asked_time = self.asked_time.saturating_add(1);
        if let Some(leader) = self.leader(now).filter(|leader| *leader != self.me) {
            let query = Message::TimeQuery { sent_at: now };
            self.actions.push_back(Action::Send(leader, Route::Any, query));
        }
    }

    /// When to call [`Robot::on_deadline`] next.
    pub fn next_deadline(&self) -> Instant {
        // A recording has each window; else it is enough that the gate, if it holds bulk, knows until when.
        let deadlines = [
            self.coordinator.as_ref().and_then(Coordinator::next_deadline),
            self.window_deadline().filter(|_| self.journal.is_on()),
            self.gates.iter().filter_map(Gate::next_deadline).min(),
            self.reporters.next_deadline(),
        ];
        let own = self
            .ask_time_at
            .min(self.tell_models_at)
            .min(self.tell_arrived_at)
            .min(self.judge.next_deadline())
            .min(self.peers.next_deadline())
            .min(self.riders.next_deadline());
        deadlines.into_iter().flatten().fold(own, Instant::min)
    }

    /// The next thing to do, until `None`.
    pub fn poll(&mut self) -> Option<Action> {
        let report = || Some(Action::Report(self.reporters.poll()?));
        self.actions.pop_front().or_else(report)
    }

    /// Returns whether something is to be done, or will be earlier than `at`.
    pub fn is_pressing(&self, at: Instant) -> bool {
        !self.actions.is_empty() || self.reporters.is_pressing() || self.next_deadline() < at
    }

    /// Collects what the parts want done.
    fn gather(&mut self) {
        while let Some(action) = self.windows.planner_mut().and_then(WindowPlanner::poll) {
            self.set_window(match action {
                WindowAction::Set(window) => window,
                WindowAction::Clear => Window::NONE,
            });
        }
        while let Some((robot, action)) = self.peers.poll() {
            self.actions.push_back(match action {
                PathAction::Probe(probe) => Action::Send(robot, Route::Path(probe.path), Message::Probe(probe)),
                PathAction::Died(path) => Action::PathAlive(robot, path, false),
                PathAction::Revived(path) => Action::PathAlive(robot, path, true),
            });
        }
        if self.gates.iter_mut().filter_map(Gate::poll).count() > 0 {
            self.actions.push_back(Action::Resume);
        }
    }

    /// Collects what all parts want done, the coordinator too.
    fn gather_words(&mut self, now: Instant) {
        self.gather();
        while let Some(action) = self.coordinator.as_mut().and_then(Coordinator::poll) {
            if matches!(action, failover::Action::Follows(_)) {
                // Another clock counts from now on: it is asked for at once.
                self.asked_time = 0;
                self.ask_time_at = self.ask_time_at.min(Instant::ZERO);
                self.tell_models_again();
            }
            self.note(&action);
            match action {
                failover::Action::Send { to, message } => self.say(to, message, now),
                failover::Action::Broadcast(message) => self.say_to_all(message, now),
                failover::Action::Started => self.actions.push_back(Action::Permitted(true)),
                failover::Action::Stopped => self.actions.push_back(Action::Permitted(false)),
                failover::Action::Leads(epoch) | failover::Action::Follows(epoch) => {
                    self.actions.push_back(Action::Led(epoch.robot));
                }
                failover::Action::Deposed(_) => {}
            }
        }
    }

    fn say(&mut self, to: RobotId, word: failover::Message, now: Instant) {
        let at_once = self.riders.offer(to, word, now);
        let at_once = at_once.map(|message| Action::Send(to, Route::Any, message));
        self.actions.extend(at_once);
    }

    /// Says something to all other robots, in one broadcast if nobody takes it along with control.
    fn say_to_all(&mut self, word: failover::Message, now: Instant) {
        let others: Vec<RobotId> = (0..self.robots).map(RobotId).filter(|to| *to != self.me).collect();
        let left = others
            .iter()
            .filter_map(|to| Some((*to, self.riders.offer(*to, word, now)?)));
        let left: Vec<(RobotId, Message)> = left.collect();
        if left.len() == others.len() {
            self.actions.push_back(Action::Broadcast(Message::Coordination(word)));
        } else {
            let sends = left
                .into_iter()
                .map(|(to, message)| Action::Send(to, Route::Any, message));
            self.actions.extend(sends);
        }
    }

    fn note(&mut self, action: &failover::Action) {
        let journal = &mut self.journal;
        match action {
            failover::Action::Send { to, message } => journal.said(self.me, *to, message),
            failover::Action::Broadcast(_) => {}
            failover::Action::Started => journal.note(Event::Permitted(true)),
            failover::Action::Stopped => journal.note(Event::Permitted(false)),
            failover::Action::Leads(epoch) => journal.note(Event::Led(Led::Leads, *epoch)),
            failover::Action::Follows(epoch) => journal.note(Event::Led(Led::Follows, *epoch)),
            failover::Action::Deposed(epoch) => journal.note(Event::Led(Led::Deposed, *epoch)),
        }
    }
}

fn to_ours(model: TimeModel, offset: Offset) -> TimeModel {
    TimeModel {
        phase: offset.ours(model.phase),
        ..model
    }
}

/// The model on another clock; its interval is widened by what is not known of that clock.
fn to_theirs(model: TimeModel, offset: Offset) -> TimeModel {
    TimeModel {
        phase: offset.theirs(model.phase),
        early: model.early + offset.within,
        late: model.late + offset.within,
        ..model
    }
}

fn arrival_config(local: &LocalConfig, period: Option<Duration>) -> ArrivalConfig {
    ArrivalConfig {
        accuracy: local.accuracy,
        deviation: local.deviation,
        refit_interval: local.refit_interval,
        samples_max: local.model_samples,
        period,
    }
}

fn gate(local: &LocalConfig) -> Gate {
    let table = CompletionTable::new(DEPTH_MAX, local.completion_samples, local.protection_percentile);
    let table = match local.completions_stale {
        Some(after) => table.forgetting(after),
        None => table,
    };
    Gate::new(table, local.backlog_max)
}

#[cfg(test)]
mod tests;
