//! All that one live robot decides, in one place: who leads and who may send bulk, arrival models and protection
//! windows, the gate, the paths, the leader's clock.
//!
//! The decisions are `coorp-core`'s. This module tells them what happened and gathers what they want done; it has no
//! clock, socket or thread either, so its tests run in virtual time. Callers hold it behind one lock.
//!
//! Of the policy's switches some need what a live robot does not know yet and are off here: that a control message of its
//! own was lost on the air (resending), and who awaits which command (steered phases). Windows for commands go by the
//! times at which loops begin, which all know of each other: each loop's last moments before its bound are kept clear,
//! unless the leader's commands are out by then. Windows end early as in decision 5: the leader tells who may send bulk
//! what has come to it. What comes to other robots than the leader nobody tells of, and its windows last their time.

use std::collections::{BTreeSet, VecDeque};

use coorp_core::aggregates::Aggregates;
use coorp_core::arrival::{ArrivalConfig, TimeModel};
use coorp_core::clock::{ClockEstimate, Offset};
use coorp_core::failover::{self, Coordinator, FailoverConfig, Message};
use coorp_core::gate::{CompletionTable, Gate, Verdict};
use coorp_core::paths::{Copy, Echo, PathAction, PathId, Probe};
use coorp_core::permits;
use coorp_core::policy::{LocalConfig, Policy};
use coorp_core::windows::{PlannerConfig, Window, WindowAction, WindowPlanner};
use coorp_core::{Duration, FlowId, Instant, RobotId};
use coorp_team::Team;

use crate::journal::{Event, Journal, Led, Taken};
use crate::paths::{paths_used, Paths};
use crate::reporters::{ReportAction, Reporters, StateCopy};
use crate::status;
use crate::wire::HEARD_MAX;

/// Control topics that one robot publishes at most.
pub(crate) const TOPICS_MAX: usize = 64;
/// Deepest queue that completion times are kept for.
const DEPTH_MAX: usize = 512;
/// Reports of one aggregate come within this, be they acknowledgements that had to wait for the air themselves.
const TOGETHER: Duration = Duration::from_micros(500);
/// Where the policy leaves it open, no more than this is below the gate: the aggregate on the air, the next one, which a
/// card makes as long as what it has, and the time until it is known that the first has left. With 3 ms aggregates were
/// short and bulk lost a tenth; what is known of windows keeps bulk out of them whatever this is.
const BACKLOG_MAX: Duration = Duration::from_millis(8);
/// Between two questions for the leader's clock; shorter while little is known.
const ASK_TIME_EVERY: Duration = Duration::from_secs(1);
const ASK_TIME_FIRST: Duration = Duration::from_millis(50);
const ASKED_QUICKLY: u32 = 8;
/// Between two looks at whether the others know still when this robot's control is due. What they are told is a frame to
/// each of them.
const LOOK_AT_TOLD_EVERY: Duration = Duration::from_secs(1);
/// What they expect may be off by so much.
const TOLD_OFF_MAX: Duration = Duration::from_micros(200);
/// They are told again after so long what they should know already: a frame may have been lost.
const TELL_EVERY: Duration = Duration::from_secs(10);
/// In how many looks whoever has come is told.
const TELL_ANYWAY: u8 = 3;
/// What comes to the leader within so long of the first is told together: a notice is a frame on the air.
const HEARD_TOGETHER: Duration = Duration::from_micros(500);
/// Leaders whose clocks are remembered.
const CLOCKS_KEPT: usize = 4;
/// Flows of other robots in the planner come after our own.
const SHARED: u32 = 1 << 16;
/// The ends of loops come after these: as many robots as there can be, with as many topics.
const LOOP_END: u32 = 1 << 24;
/// A period that is off by less than this part of the control loop's is the loop's.
const LOOP_PERIOD_SHARE: u64 = 32;

/// What a robot wants done.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Action {
    /// Tell a robot.
    Tell(RobotId, Message),
    /// Tell all other robots.
    TellAll(Message),
    /// Bulk may be, or must no longer be, sent.
    Permitted(bool),
    /// The gate opens: bulk asks again.
    Resume,
    /// Who leads has changed: this robot, or another one.
    Led(RobotId),
    /// Ask the leader for its clock.
    AskTime(RobotId),
    /// Tell the others when this robot's control messages are due: by topic, on this robot's clock.
    TellModels(Vec<(u8, TimeModel)>),
    /// Ask a robot over a path whether that path is there.
    Probe(RobotId, Probe),
    /// Tell a robot that may send bulk, over a path, which control has come: whose, which flow of it, when it was made.
    TellHeard(RobotId, PathId, Vec<HeardMessage>),
    /// A path to a robot is dead, or alive again.
    PathAlive(RobotId, PathId, bool),
    /// About the states that this robot reports.
    Report(ReportAction),
}

/// A control message that came: its sender, the flow's number with that, and when it was made.
type HeardMessage = (RobotId, u8, Instant);

/// What a robot's permit is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PermitState {
    /// The policy has none.
    NotNeeded,
    /// There is no bulk.
    Idle,
    Waiting,
    Holding,
}

#[derive(Debug)]
pub(crate) struct Brain {
    me: RobotId,
    leader: RobotId,
    /// `None` where the policy has no permits; then the team file's leader is the only one.
    coordinator: Option<Coordinator>,
    local: Option<LocalConfig>,
    planner: Option<WindowPlanner>,
    /// Where windows are kept for the ends of its loops too.
    loops: Option<ControlLoop>,
    /// The flows in the planner that stand for these.
    ends: BTreeSet<FlowId>,
    /// As the leader: what has come and was not told yet to who may send bulk, and when it is to be.
    heard: Vec<HeardMessage>,
    tell_heard_at: Instant,
    /// One a path, as each leads into a card of its own; none where the policy has none.
    gates: Vec<Gate>,
    /// For each gate, what it learns from.
    aggregates: Vec<Aggregates>,
    paths: Paths,
    pub reporters: Reporters,
    pub journal: Journal,
    wants_bulk: bool,
    /// Which of this robot's flows are taken.
    flows: [bool; TOPICS_MAX],
    tell_models_at: Instant,
    /// What the others were told of the models, and when.
    told: Vec<(u8, TimeModel)>,
    told_at: Instant,
    /// So many looks tell them in any case.
    tell_anyway: u8,
    /// The clocks of the last leaders, the newest first: messages stamped by an older one are still on their way.
    clocks: VecDeque<(u64, ClockEstimate)>,
    ask_time_at: Instant,
    asked_time: u32,
    actions: VecDeque<Action>,
}

impl Brain {
    /// # Errors
    /// Where the policy's times cannot work together; the text says which.
    pub fn new(team: &Team, policy: &Policy, me: RobotId, incarnation: u32, now: Instant) -> Result<Self, String> {
        let failover = FailoverConfig::for_team(team.leader, u16::try_from(team.robots.len()).unwrap_or(u16::MAX));
        let coordinator = policy.global.clone().map(|global| {
            let permits = failover.permits(global);
            Coordinator::new(failover, permits, me, incarnation, now).map_err(|error| error.to_string())
        });
        let coordinator = coordinator.transpose()?;
        let planner = policy.local.as_ref().map(|local| {
            WindowPlanner::new(PlannerConfig {
                extension: local.extension,
                early_release: local.early_release,
                share_max: local.window_share_max,
                flows_max: 2 * team.robots.len() * TOPICS_MAX + TOPICS_MAX,
            })
        });
        let gates = policy.local.iter();
        let gates = gates.flat_map(|local| (0..paths_used(team, me)).map(move |_| gate(local)));
        let gates: Vec<Gate> = gates.collect();
        Ok(Brain {
            me,
            leader: team.leader,
            coordinator,
            aggregates: vec![Aggregates::new(TOGETHER); gates.len()],
            gates,
            reporters: Reporters::new(incarnation),
            journal: Journal::default(),
            local: policy.local.clone(),
            planner,
            loops: policy
                .local
                .as_ref()
                .filter(|local| local.command_windows)
                .and_then(|local| {
                    let control = team.control?;
                    Some(ControlLoop {
                        period: control.period,
                        bound: control.bound,
                        at_risk: local.extension,
                    })
                }),
            ends: BTreeSet::new(),
            heard: Vec::new(),
            tell_heard_at: Instant::FAR_FUTURE,
            paths: Paths::new(team, me, incarnation, now)?,
            wants_bulk: false,
            flows: [false; TOPICS_MAX],
            tell_models_at: now + LOOK_AT_TOLD_EVERY,
            told: Vec::new(),
            told_at: now,
            tell_anyway: 0,
            clocks: VecDeque::new(),
            ask_time_at: now,
            asked_time: 0,
            actions: VecDeque::new(),
        })
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
        self.gather();
    }

    /// A robot says, which the fabric has made sure is that robot. Answers `false` for a grant that was not asked for,
    /// or no longer.
    pub fn on_said(&mut self, from: RobotId, message: Message, now: Instant) -> bool {
        self.gather();
        self.journal.said(from, self.me, &message);
        let before = self.actions.len();
        if let Some(coordinator) = &mut self.coordinator {
            coordinator.on_message(from, message, now);
        }
        self.gather();
        let Message::Permit {
            message: permits::Message::Grant { token, .. },
            ..
        } = message
        else {
            return true;
        };
        let may_send = self.is_permitted(now);
        // A grant that is of no use is given back, or was said under a leadership that is over.
        let given_back = self.actions.iter().skip(before).any(|action| {
            let Action::Tell(_, Message::Permit { message, .. }) = action else {
                return false;
            };
            *message == permits::Message::Release { token }
        });
        may_send && !given_back
    }

    /// A robot's links are gone. That does not say that its process has ended: a link breaks for many reasons, and who
    /// holds a permit may go on without it until its lease ends.
    pub fn on_gone(&mut self, robot: RobotId) {
        if let Some(planner) = &mut self.planner {
            for topic in 0..TOPICS_MAX {
                planner.remove_flow(shared(robot, topic));
                planner.remove_flow(loop_end(robot, topic));
                self.ends.remove(&loop_end(robot, topic));
            }
        }
        self.gather();
    }

    /// A robot's process had surely ended at some time after `since`: what it held then is free.
    pub fn on_dead(&mut self, robot: RobotId, since: Instant, now: Instant) {
        if let Some(coordinator) = &mut self.coordinator {
            coordinator.on_gone(robot, since, now);
        }
        self.gather();
    }

    /// This robot is about to stop in good order.
    pub fn resign(&mut self, now: Instant) {
        if let Some(coordinator) = &mut self.coordinator {
            coordinator.resign(now);
        }
        self.gather();
    }

    /// Who leads, as far as is known.
    pub fn leader(&self, now: Instant) -> Option<RobotId> {
        match &self.coordinator {
            Some(coordinator) => coordinator.leader(now),
            None => Some(self.leader),
        }
    }

    pub fn permit(&self, now: Instant) -> PermitState {
        match &self.coordinator {
            None => PermitState::NotNeeded,
            Some(coordinator) if coordinator.may_send(now) => PermitState::Holding,
            Some(_) if self.wants_bulk => PermitState::Waiting,
            Some(_) => PermitState::Idle,
        }
    }

    /// Where this robot leads: who holds permits and who waits for one.
    pub fn granted(&self) -> (Vec<RobotId>, Vec<RobotId>) {
        let coordinator = self.coordinator.as_ref();
        let holders = coordinator.map(|coordinator| coordinator.holders().collect());
        let queue = coordinator.map(|coordinator| coordinator.queue().collect());
        (holders.unwrap_or_default(), queue.unwrap_or_default())
    }

    // --- control ----------------------------------------------------------------------------------------------

    /// A control flow of this robot, with the period that its publisher declares. `None` once there are too many.
    pub fn add_flow(&mut self, period: Option<Duration>) -> Option<FlowId> {
        let free = self.flows.iter().position(|taken| !taken)?;
        self.flows[free] = true;
        let id = FlowId(free as u32);
        if let (Some(planner), Some(local)) = (&mut self.planner, &self.local) {
            let config = ArrivalConfig {
                accuracy: local.accuracy,
                deviation: local.deviation,
                refit_interval: local.refit_interval,
                samples_max: local.model_samples,
                period,
            };
            // The planner has room for every flow of every robot.
            planner.add_flow(id, config).ok()?;
        }
        Some(id)
    }

    /// This robot makes a control message.
    pub fn on_control(&mut self, flow: FlowId, now: Instant) {
        if let Some(planner) = &mut self.planner {
            planner.on_message(flow, now);
            planner.on_message_sent(flow, now);
        }
        if self.leader(now) == Some(self.me) {
            self.end_loops(now, now);
        }
        self.gather();
    }

    /// Whether a robot ends windows, its own or by telling others, by what it hears of this one.
    pub fn ends_windows(&self, robot: RobotId, now: Instant) -> bool {
        let mut holders = self.coordinator.iter().flat_map(Coordinator::holders);
        self.leader(now) == Some(robot) || holders.any(|holder| holder == robot)
    }

    /// A control message has come. From the leader it is a command: its loop is over. As the leader, whoever may send bulk
    /// is told soon, as that robot does not hear it.
    pub fn on_heard(&mut self, from: RobotId, flow: u8, made_at: Instant, now: Instant) {
        let leader = self.leader(now);
        self.hear(&[(from, flow, made_at)], now);
        let message = (from, flow, made_at);
        if leader == Some(from) {
            self.end_loops(made_at, now);
        } else if leader == Some(self.me) && self.heard.len() < HEARD_MAX && !self.heard.contains(&message) {
            let coordinator = self.coordinator.as_ref();
            let told = coordinator.is_some_and(|coordinator| coordinator.holders().any(|holder| holder != self.me));
            if told && self.local.as_ref().is_some_and(|local| local.early_release) {
                if self.heard.is_empty() {
                    self.tell_heard_at = now + HEARD_TOGETHER;
                }
                self.heard.push(message);
            }
        }
        self.gather();
    }

    /// A robot tells which control has come to it; it is believed where it leads.
    pub fn on_told_heard(&mut self, from: RobotId, messages: &[HeardMessage], now: Instant) {
        if self.leader(now) == Some(from) {
            self.hear(messages, now);
        }
        self.gather();
    }

    fn hear(&mut self, messages: &[HeardMessage], now: Instant) {
        let Some(planner) = self.planner.as_mut().filter(|_| self.wants_bulk) else {
            return;
        };
        let messages = messages.iter().filter(|(_, flow, _)| usize::from(*flow) < TOPICS_MAX);
        let messages = messages.map(|(robot, flow, made_at)| (shared(*robot, usize::from(*flow)), None, *made_at));
        // Flows that nobody has told of are passed over, so there is room for all.
        let _ = planner.hear_shared(messages, Duration::ZERO, now);
    }

    /// The commands that were made then are out: the ends of their loops need no window any more.
    fn end_loops(&mut self, made_at: Instant, now: Instant) {
        if let Some(planner) = self.planner.as_mut().filter(|_| self.wants_bulk) {
            let ends = self.ends.iter().map(|end| (*end, None, made_at));
            let _ = planner.hear_shared(ends, Duration::ZERO, now);
        }
    }

    fn tell_heard(&mut self, now: Instant) {
        self.tell_heard_at = Instant::FAR_FUTURE;
        let heard = std::mem::take(&mut self.heard);
        let holders: Vec<RobotId> = self.coordinator.iter().flat_map(Coordinator::holders).collect();
        for holder in holders.into_iter().filter(|holder| *holder != self.me) {
            let path = self.paths.bulk_path(holder, now);
            self.actions.push_back(Action::TellHeard(holder, path, heard.clone()));
        }
    }

    /// It goes to a robot: its copies. None where there is no choice of paths to that robot.
    pub fn assign(&mut self, to: RobotId, now: Instant) -> Vec<Copy> {
        let copies = self.paths.assign(to, now);
        self.gather();
        copies
    }

    /// A numbered copy of a control message came, whether it was the first or not.
    pub fn on_copy(&mut self, from: RobotId, path: PathId, incarnation: u32, number: u32) {
        self.paths.on_copy(from, path, incarnation, number);
    }

    /// A robot probes a path: what to answer.
    pub fn on_probe(&mut self, from: RobotId, probe: Probe) -> Option<Echo> {
        self.paths.on_probe(from, probe)
    }

    /// A robot answers a probe.
    pub fn on_echo(&mut self, from: RobotId, echo: Echo, now: Instant) {
        self.paths.on_echo(from, echo, now);
        self.gather();
    }

    /// Over which path bulk is to go to a robot, where it is to go over one that is alive. While bulk goes this is asked
    /// again and again, which keeps the paths probed.
    pub fn bulk_path(&mut self, to: RobotId, now: Instant) -> usize {
        let path = self.paths.bulk_path(to, now);
        self.gather();
        usize::from(path.0)
    }

    /// Whether bulk to a robot has to leave this path: it is dead, and another one is not.
    pub fn bulk_moves(&mut self, to: RobotId, from: usize, now: Instant) -> bool {
        let better = self.paths.bulk_path(to, now);
        self.gather();
        let from = PathId(u8::try_from(from).unwrap_or(u8::MAX));
        !self.paths.is_alive(to, from) && self.paths.is_alive(to, better)
    }

    /// Bulk goes to a robot over a path, or no longer.
    pub fn on_bulk(&mut self, to: RobotId, path: Option<usize>) {
        let path = path.map(|path| PathId(u8::try_from(path).unwrap_or(u8::MAX)));
        self.paths.set_bulk(to, path);
    }

    /// All paths between which there is a choice.
    pub fn paths(&self, now: Instant) -> Vec<status::Path> {
        self.paths.status(now)
    }

    /// A control flow of this robot ends.
    pub fn remove_flow(&mut self, flow: FlowId) {
        if let Some(taken) = self.flows.get_mut(flow.0 as usize) {
            *taken = false;
        }
        if let Some(planner) = &mut self.planner {
            planner.remove_flow(flow);
            let end = loop_end(self.me, flow.0 as usize);
            planner.remove_flow(end);
            self.ends.remove(&end);
        }
        self.gather();
    }

    /// Another robot says when its control messages are due, on our clock as far as that is known: all that it has.
    pub fn on_models(&mut self, from: RobotId, models: &[(u8, TimeModel)], within: Duration, now: Instant) {
        let sharing = self.local.as_ref().is_some_and(|local| local.shared_windows);
        let Some(planner) = self.planner.as_mut().filter(|_| sharing) else {
            return;
        };
        for topic in 0..TOPICS_MAX {
            let model = models.iter().find(|(told, _)| usize::from(*told) == topic);
            match model {
                // The planner has room for every flow of every robot.
                Some((_, model)) if model.period > Duration::ZERO => {
                    let _ = planner.set_shared(shared(from, topic), *model, within, now);
                    let end = self.loops.and_then(|loops| loops.end(model));
                    set_end(planner, &mut self.ends, loop_end(from, topic), end, within, now);
                }
                _ => {
                    planner.remove_flow(shared(from, topic));
                    set_end(planner, &mut self.ends, loop_end(from, topic), None, within, now);
                }
            }
        }
        self.gather();
    }

    fn tell_models(&mut self, now: Instant) {
        let sharing = self.local.as_ref().is_some_and(|local| local.shared_windows);
        let Some(planner) = self.planner.as_ref().filter(|_| sharing) else {
            self.tell_models_at = Instant::FAR_FUTURE;
            return;
        };
        self.tell_models_at = now + LOOK_AT_TOLD_EVERY;
        let known = (0u8..).zip(&self.flows).filter(|(_, taken)| **taken);
        let models = known.filter_map(|(topic, _)| Some((topic, planner.time_model(FlowId(u32::from(topic)))?)));
        let models: Vec<(u8, TimeModel)> = models.collect();
        if let (Some(loops), Some(planner)) = (self.loops, self.planner.as_mut()) {
            for (topic, taken) in self.flows.iter().enumerate() {
                let model = models.iter().find(|(told, _)| *taken && usize::from(*told) == topic);
                let end = model.and_then(|(_, model)| loops.end(model));
                set_end(
                    planner,
                    &mut self.ends,
                    loop_end(self.me, topic),
                    end,
                    Duration::ZERO,
                    now,
                );
            }
        }
        let expected = |((topic, model), (told, before)): (&(u8, TimeModel), &(u8, TimeModel))| {
            topic == told && model.agrees_with(before, TOLD_OFF_MAX)
        };
        let known = models.len() == self.told.len() && models.iter().zip(&self.told).all(expected);
        let anyway = self.tell_anyway > 0 || now.since(self.told_at) >= TELL_EVERY;
        self.tell_anyway = self.tell_anyway.saturating_sub(1);
        if !known || anyway && !models.is_empty() {
            (self.told, self.told_at) = (models.clone(), now);
            self.actions.push_back(Action::TellModels(models));
        }
    }

    /// Somebody may not know what the others were told: it has come just now, or there was no clock to tell it by. It is
    /// told some times, as it may have no clock itself at first.
    pub fn tell_models_again(&mut self) {
        self.tell_anyway = TELL_ANYWAY;
    }

    /// This robot has made a state: the copies that go to who gathers it.
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

    /// The clock of the last leader that was another robot, and where it is.
    pub fn leaders_clock(&self, now: Instant) -> Option<(u64, Offset)> {
        let (clock, estimate) = self.clocks.front()?;
        Some((*clock, estimate.offset(now)?.1))
    }

    /// Where that clock is, if it was a leader's of late.
    pub fn clock(&self, clock: u64, now: Instant) -> Option<Offset> {
        let (_, estimate) = self.clocks.iter().find(|(known, _)| *known == clock)?;
        Some(estimate.offset(now)?.1)
    }

    /// A leader said what time it is.
    pub fn on_time(&mut self, clock: u64, times: [Instant; 4]) {
        let [sent_at, received_at, answered_at, back_at] = times;
        if !self.clocks.iter().any(|(known, _)| *known == clock) {
            self.clocks.truncate(CLOCKS_KEPT - 1);
            self.clocks.push_front((clock, ClockEstimate::default()));
        }
        if let Some((_, estimate)) = self.clocks.iter_mut().find(|(known, _)| *known == clock) {
            estimate.on_exchange(clock, sent_at, received_at, answered_at, back_at);
        }
    }

    // --- the gate ---------------------------------------------------------------------------------------------

    /// Whether a bulk datagram may go into the kernel over a path, where `n` are on their way. Where not, `Resume` tells
    /// when to ask again, but for a hold without a time: then the next completion does.
    pub fn may_pass(&mut self, path: usize, n: usize, now: Instant) -> bool {
        if !self.is_permitted(now) {
            return false;
        }
        self.settle_window(now);
        let Some(gate) = self.gates.get_mut(path) else {
            return true;
        };
        let verdict = gate.on_dequeue(n, now);
        let for_window = matches!(verdict, Verdict::Hold { until: Some(_) });
        self.journal.gate(path, verdict == Verdict::Pass, for_window, n);
        verdict == Verdict::Pass
    }

    /// How many datagrams, `most` at most, may go in together.
    pub fn room(&self, path: usize, n: usize, most: usize, now: Instant) -> usize {
        self.gates.get(path).map_or(most, |gate| gate.room(n, most, now))
    }

    /// Whether bulk may be sent as far as permits go.
    pub fn is_permitted(&self, now: Instant) -> bool {
        self.coordinator
            .as_ref()
            .is_none_or(|coordinator| coordinator.may_send(now))
    }

    /// Whether permits or the gate hold bulk back at times.
    pub fn coordinates_bulk(&self) -> bool {
        self.coordinator.is_some() || !self.gates.is_empty()
    }

    /// A bulk datagram left at `left_at` that went in at `entered_at`, and so many had left when it did, and by now, itself
    /// included.
    pub fn on_left(&mut self, path: usize, left: (u64, u64), entered_at: Instant, left_at: Instant) {
        if let (Some(gate), Some(aggregates)) = (self.gates.get_mut(path), self.aggregates.get_mut(path)) {
            if let Some(sample) = aggregates.on_left(left.0, left.1, entered_at, left_at) {
                gate.on_complete(sample.ahead, sample.entered_at, sample.left_at);
            }
            gate.on_left(left_at);
        }
        self.gather();
    }

    /// The window that bulk keeps out of, on all paths alike.
    pub fn window(&mut self, now: Instant) -> Window {
        self.settle_window(now);
        self.gates.first().map_or(Window::NONE, Gate::window)
    }

    /// Whether a gate holds bulk now.
    pub fn is_held(&self) -> bool {
        self.gates.iter().any(Gate::is_paused)
    }

    /// Where the window is over, plans the next one. Done when somebody asks: to do it at each window's end would have a
    /// robot without bulk wake up for every control message that it sends.
    fn settle_window(&mut self, now: Instant) {
        let due = self.planner.as_ref().and_then(WindowPlanner::next_deadline);
        if due.is_some_and(|due| now >= due) {
            if let Some(planner) = &mut self.planner {
                planner.on_deadline(now);
            }
            self.gather();
        }
    }

    // --- being recorded ---------------------------------------------------------------------------------------

    /// What is decided is noted from now on. Answers `false` where it is already.
    pub fn begin_journal(&mut self) -> bool {
        let begins = !self.journal.is_on();
        if begins {
            self.journal.set(true);
        }
        begins
    }

    pub fn end_journal(&mut self) {
        self.journal.set(false);
    }

    /// What was decided since the last time.
    pub fn take_journal(&mut self) -> Taken {
        self.journal.take()
    }

    // --- being driven -----------------------------------------------------------------------------------------

    pub fn on_deadline(&mut self, now: Instant) {
        if let Some(coordinator) = &mut self.coordinator {
            coordinator.on_deadline(now);
        }
        if let Some(planner) = &mut self.planner {
            planner.on_deadline(now);
        }
        for gate in &mut self.gates {
            gate.on_deadline(now);
        }
        self.paths.on_deadline(now);
        self.reporters.on_deadline(now);
        if now >= self.tell_models_at {
            self.tell_models(now);
        }
        if now >= self.tell_heard_at {
            self.tell_heard(now);
        }
        if now >= self.ask_time_at {
            let known = self.asked_time >= ASKED_QUICKLY;
            self.ask_time_at = now + if known { ASK_TIME_EVERY } else { ASK_TIME_FIRST };
            self.asked_time = self.asked_time.saturating_add(1);
            let leader = self.leader(now).filter(|leader| *leader != self.me);
            self.actions.extend(leader.map(Action::AskTime));
        }
        self.gather();
    }

    pub fn next_deadline(&self) -> Instant {
        // A recording has each window; else it is enough that the gate, where it holds bulk, knows until when.
        let recorded = self.planner.as_ref().filter(|_| self.journal.is_on());
        let deadlines = [
            self.coordinator.as_ref().and_then(Coordinator::next_deadline),
            recorded.and_then(WindowPlanner::next_deadline),
            self.gates.iter().filter_map(Gate::next_deadline).min(),
            self.reporters.next_deadline(),
        ];
        let own = self
            .ask_time_at
            .min(self.tell_models_at)
            .min(self.tell_heard_at)
            .min(self.paths.next_deadline());
        deadlines.into_iter().flatten().fold(own, Instant::min)
    }

    /// The next thing to do, until `None`.
    pub fn poll(&mut self) -> Option<Action> {
        let report = || Some(Action::Report(self.reporters.poll()?));
        self.actions.pop_front().or_else(report)
    }

    /// Whether something is to be done, or is to be done earlier than `at`.
    pub fn is_pressing(&self, at: Instant) -> bool {
        !self.actions.is_empty() || self.reporters.is_pressing() || self.next_deadline() < at
    }

    fn gather(&mut self) {
        while let Some(action) = self.planner.as_mut().and_then(WindowPlanner::poll) {
            let window = match action {
                WindowAction::Set(window) => window,
                WindowAction::Clear => Window::NONE,
            };
            self.journal
                .note(Event::Window((window != Window::NONE).then_some(window)));
            for gate in &mut self.gates {
                gate.on_window(window);
            }
        }
        while let Some((robot, action)) = self.paths.poll() {
            self.actions.push_back(match action {
                PathAction::Probe(probe) => Action::Probe(robot, probe),
                PathAction::Died(path) => Action::PathAlive(robot, path, false),
                PathAction::Revived(path) => Action::PathAlive(robot, path, true),
            });
        }
        let opened = self.gates.iter_mut().filter_map(Gate::poll).count();
        if opened > 0 {
            self.actions.push_back(Action::Resume);
        }
        while let Some(action) = self.coordinator.as_mut().and_then(Coordinator::poll) {
            if matches!(action, failover::Action::Follows(_)) {
                // Another clock counts from now on: it is asked for at once.
                (self.asked_time, self.ask_time_at) = (0, Instant::ZERO);
                self.tell_models_again();
            }
            self.note(&action);
            self.actions.push_back(match action {
                failover::Action::Send { to, message } => Action::Tell(to, message),
                failover::Action::Broadcast(message) => Action::TellAll(message),
                failover::Action::Started => Action::Permitted(true),
                failover::Action::Stopped => Action::Permitted(false),
                failover::Action::Leads(epoch) | failover::Action::Follows(epoch) => Action::Led(epoch.robot),
                failover::Action::Deposed(_) => continue,
            });
        }
    }
}

impl Brain {
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

/// The team's control loop, as far as live robots know it: it begins with messages of its period.
#[derive(Clone, Copy, Debug)]
struct ControlLoop {
    period: Duration,
    bound: Duration,
    /// How long before the bound commands are at risk.
    at_risk: Duration,
}

impl ControlLoop {
    /// When the loops that begin with messages of this model are at risk: just before their bound. What extends each window
    /// is a part of that time.
    fn end(self, model: &TimeModel) -> Option<TimeModel> {
        let off = model.period.as_nanos().abs_diff(self.period.as_nanos());
        (off <= self.period.as_nanos() / LOOP_PERIOD_SHARE).then(|| TimeModel {
            phase: model.phase + self.bound.saturating_sub(self.at_risk),
            late: Duration::ZERO,
            ..*model
        })
    }
}

/// Plans for the ends of the loops that a topic's messages begin, or no longer where they begin none.
fn set_end(
    planner: &mut WindowPlanner,
    ends: &mut BTreeSet<FlowId>,
    id: FlowId,
    end: Option<TimeModel>,
    within: Duration,
    now: Instant,
) {
    match end {
        Some(end) => {
            // The planner has room for every flow of every robot.
            let _ = planner.set_bounded(id, end, within, now);
            ends.insert(id);
        }
        None if ends.remove(&id) => planner.remove_flow(id),
        None => {}
    }
}

/// The flow in the planner that stands for the ends of the loops that a topic's messages begin.
fn loop_end(robot: RobotId, topic: usize) -> FlowId {
    FlowId(LOOP_END + shared(robot, topic).0)
}

fn shared(robot: RobotId, topic: usize) -> FlowId {
    FlowId(SHARED + u32::from(robot.0) * TOPICS_MAX as u32 + topic as u32)
}

fn gate(local: &LocalConfig) -> Gate {
    // Nobody tells a live robot which loops its bulk has made late, by which caution moves between the two.
    let most = local.protection_percentile_max.unwrap_or(0.0);
    let percentile = local
        .protection_percentile
        .midpoint(most.max(local.protection_percentile));
    let table = CompletionTable::new(DEPTH_MAX, local.completion_samples, percentile);
    let table = match local.completions_stale {
        Some(after) => table.forgetting(after),
        None => table,
    };
    Gate::new(table, Some(local.backlog_max.unwrap_or(BACKLOG_MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    fn brain(policy: &str) -> Brain {
        let text = "[[robot]]\nname = \"a\"\nleader = true\n[[robot]]\nname = \"b\"\n";
        let team = coorp_team::parse(text, "t.toml", Path::new("")).unwrap();
        let mut policy = Policy::named(policy).unwrap();
        if let Some(local) = &mut policy.local {
            local.shared_windows = true;
        }
        Brain::new(&team, &policy, RobotId(1), 1, at(0)).unwrap()
    }

    fn run(brain: &mut Brain, until: Instant) -> Vec<Action> {
        let mut actions = Vec::new();
        while brain.next_deadline() <= until {
            let deadline = brain.next_deadline();
            brain.on_deadline(deadline);
            actions.extend(std::iter::from_fn(|| brain.poll()));
            assert!(brain.next_deadline() > deadline, "it stands still");
        }
        actions
    }

    #[test]
    fn bulk_is_held_while_control_is_due_and_told_when_to_ask_again() {
        let mut brain = brain("edca+local");
        let flow = brain.add_flow(None).unwrap();
        for message in 1..=30 {
            run(&mut brain, at(20 * message));
            brain.on_control(flow, at(20 * message));
        }
        run(&mut brain, at(610));
        assert!(brain.may_pass(0, 0, at(610)), "between two messages");
        run(&mut brain, at(620));
        assert!(!brain.may_pass(0, 0, at(620)), "one is due");
        assert!(run(&mut brain, at(630)).contains(&Action::Resume));
        assert!(brain.may_pass(0, 0, at(630)));
        brain.remove_flow(flow);
        // The window that was set stays, and is the last one.
        run(&mut brain, at(660));
        assert!(brain.may_pass(0, 0, at(660)), "nothing is due any more");
    }

    #[test]
    fn windows_wake_nobody_who_does_not_ask_but_for_a_recording() {
        let mut brain = brain("edca+local");
        let flow = brain.add_flow(None).unwrap();
        let wakes = |brain: &mut Brain, messages: std::ops::RangeInclusive<u64>| {
            let mut wakes = 0;
            for message in messages {
                while brain.next_deadline() <= at(20 * message) {
                    brain.on_deadline(brain.next_deadline());
                    while brain.poll().is_some() {}
                    wakes += 1;
                }
                brain.on_control(flow, at(20 * message));
            }
            wakes
        };
        wakes(&mut brain, 1..=30);
        assert!(wakes(&mut brain, 31..=60) < 5);
        // Whoever asks is told of the next one all the same.
        let window = brain.window(at(1_205));
        assert!(window.start <= at(1_220) && window.end > at(1_220), "{window:?}");
        brain.begin_journal();
        assert!(wakes(&mut brain, 61..=90) >= 29);
    }

    #[test]
    fn what_others_say_is_due_holds_bulk_until_they_say_otherwise() {
        let mut brain = brain("edca+local");
        let ms = Duration::from_millis;
        let model = TimeModel {
            period: ms(20),
            phase: at(100),
            sigma: ms(1),
            early: ms(1),
            late: ms(1),
        };
        brain.on_models(RobotId(0), &[(3, model)], Duration::ZERO, at(90));
        run(&mut brain, at(120));
        assert!(!brain.may_pass(0, 0, at(120)));
        run(&mut brain, at(130));
        assert!(brain.may_pass(0, 0, at(130)));
        brain.on_models(RobotId(0), &[], Duration::ZERO, at(130));
        run(&mut brain, at(160));
        assert!(brain.may_pass(0, 0, at(160)));
        brain.on_models(RobotId(0), &[(3, model)], Duration::ZERO, at(161));
        brain.on_gone(RobotId(0));
        run(&mut brain, at(200));
        assert!(brain.may_pass(0, 0, at(200)), "who is gone sends nothing");
    }

    #[test]
    fn the_end_of_a_loop_holds_bulk_too() {
        let text = "[[robot]]\nname = \"a\"\nleader = true\n[[robot]]\nname = \"b\"\n[control]\nrate_hz = 10\n\
                    bound = \"40ms\"\ninference = \"20ms\"\nperception = \"1KiB\"\ncommand = \"1KiB\"\n";
        let team = coorp_team::parse(text, "t.toml", Path::new("")).unwrap();
        let mut policy = Policy::named("coorp").unwrap();
        policy.global = None;
        let mut brain = Brain::new(&team, &policy, RobotId(1), 1, at(0)).unwrap();
        let ms = Duration::from_millis;
        let model = |period| TimeModel {
            period: ms(period),
            phase: at(100),
            sigma: ms(1),
            early: ms(1),
            late: ms(1),
        };
        brain.want_bulk(true, at(0));
        // The perceptions are of a robot that does not lead.
        let mut brain = Brain {
            leader: RobotId(1),
            ..brain
        };
        run(&mut brain, at(90));
        brain.on_models(RobotId(0), &[(3, model(100))], Duration::ZERO, at(90));
        brain.on_heard(RobotId(0), 3, at(100), at(100));
        run(&mut brain, at(120));
        assert!(brain.may_pass(0, 0, at(120)), "the inference is under way");
        run(&mut brain, at(138));
        assert!(!brain.may_pass(0, 0, at(138)), "commands are at risk");
        run(&mut brain, at(141));
        assert!(brain.may_pass(0, 0, at(141)), "the bound is over");
        run(&mut brain, at(200));
        brain.on_heard(RobotId(0), 3, at(200), at(200));
        run(&mut brain, at(238));
        assert!(!brain.may_pass(0, 0, at(238)), "commands are at risk");
        // This robot leads, and sends them.
        brain.on_control(FlowId(0), at(239));
        assert!(brain.may_pass(0, 0, at(239)), "they are out");
        brain.on_models(RobotId(0), &[(3, model(20))], Duration::ZERO, at(250));
        brain.on_models(RobotId(0), &[], Duration::ZERO, at(260));
        run(&mut brain, at(338));
        assert!(brain.may_pass(0, 0, at(338)), "who is told of no flow knows no loop");
    }

    #[test]
    fn a_window_ends_when_the_leader_tells_that_its_message_has_come() {
        let robots = "[[robot]]\nname = \"a\"\nleader = true\n[[robot]]\nname = \"b\"\n[[robot]]\nname = \"c\"\n";
        let team = coorp_team::parse(robots, "t.toml", Path::new("")).unwrap();
        let mut policy = Policy::named("coorp").unwrap();
        // The leader hears of two, and tells the holder, once.
        let two = "[[robot]]\nname = \"a\"\nleader = true\n[[robot]]\nname = \"b\"\n";
        let two = coorp_team::parse(two, "t.toml", Path::new("")).unwrap();
        let mut leader = Brain::new(&two, &policy, RobotId(0), 1, at(0)).unwrap();
        let leads = run(&mut leader, at(900));
        let beat = leads.iter().find_map(|action| match action {
            Action::TellAll(Message::Beat { epoch, .. }) => Some(*epoch),
            _ => None,
        });
        leader.on_heard(RobotId(2), 3, at(900), at(901));
        assert_eq!(told_heard(run(&mut leader, at(910))), [], "nobody may send");
        let message = permits::Message::Request {
            robot: RobotId(1),
            request: permits::RequestId(1),
            sent_at: at(910),
        };
        let epoch = beat.unwrap();
        leader.on_said(RobotId(1), Message::Permit { epoch, message }, at(910));
        leader.on_heard(RobotId(2), 3, at(1_000), at(1_001));
        leader.on_heard(RobotId(1), 4, at(1_000), at(1_001));
        assert_eq!(told_heard(run(&mut leader, at(1_001))), []);
        let heard = vec![(RobotId(2), 3, at(1_000)), (RobotId(1), 4, at(1_000))];
        assert_eq!(told_heard(run(&mut leader, at(1_002))), [(RobotId(1), heard.clone())]);
        assert_eq!(told_heard(run(&mut leader, at(1_020))), []);

        policy.global = None;
        let mut holder = Brain::new(&team, &policy, RobotId(1), 1, at(0)).unwrap();
        holder.want_bulk(true, at(0));
        let ms = Duration::from_millis;
        let model = TimeModel {
            period: ms(100),
            phase: at(100),
            sigma: ms(1),
            early: ms(5),
            late: ms(10),
        };
        holder.on_models(RobotId(2), &[(3, model)], Duration::ZERO, at(90));
        assert!(!holder.may_pass(0, 0, at(999)), "it may come at any time");
        holder.on_told_heard(RobotId(2), &heard, at(1_002));
        assert!(!holder.may_pass(0, 0, at(1_002)), "who does not lead is not believed");
        holder.on_told_heard(RobotId(0), &heard, at(1_003));
        assert!(holder.may_pass(0, 0, at(1_003)));
        assert!(!holder.may_pass(0, 0, at(1_100)), "the next one");
    }

    fn told_heard(actions: Vec<Action>) -> Vec<(RobotId, Vec<HeardMessage>)> {
        let told = actions.into_iter().filter_map(|action| match action {
            Action::TellHeard(to, _, messages) => Some((to, messages)),
            _ => None,
        });
        told.collect()
    }

    #[test]
    fn models_are_told_while_there_are_any_and_once_when_there_are_none() {
        let mut brain = brain("edca+local");
        let flow = brain.add_flow(Some(Duration::from_millis(20))).unwrap();
        let told = |actions: Vec<Action>| {
            let told = actions.into_iter().filter_map(|action| match action {
                Action::TellModels(models) => Some(models.len()),
                _ => None,
            });
            told.collect::<Vec<usize>>()
        };
        let mut all = Vec::new();
        for message in 1..=1_200 {
            all.extend(told(run(&mut brain, at(20 * message))));
            brain.on_control(flow, at(20 * message));
        }
        assert_eq!(all, [1, 1, 1], "at first, and every ten seconds");
        brain.tell_models_again();
        for message in 1_201..=1_500 {
            all.extend(told(run(&mut brain, at(20 * message))));
            brain.on_control(flow, at(20 * message));
        }
        assert_eq!(all.len(), 6, "three times more for who is new");
        for message in 1_501..=1_560 {
            all.extend(told(run(&mut brain, at(20 * message + 5))));
            brain.on_control(flow, at(20 * message + 5));
        }
        assert!(all.len() > 6, "it comes at other times");
        brain.remove_flow(flow);
        assert_eq!(told(run(&mut brain, at(39_000))), [0]);
        assert_eq!(told(run(&mut brain, at(60_000))), [0; 0]);
    }

    /// A link that broke once freed the permit of a holder that went on sending.
    #[test]
    fn a_permit_outlives_its_holders_link_and_not_its_process() {
        let text = "[[robot]]\nname = \"a\"\nleader = true\n[[robot]]\nname = \"b\"\n";
        let team = coorp_team::parse(text, "t.toml", Path::new("")).unwrap();
        let policy = Policy::named("coorp").unwrap();
        let mut brain = Brain::new(&team, &policy, RobotId(0), 1, at(0)).unwrap();
        let leads = run(&mut brain, at(900));
        let beat = leads.iter().find_map(|action| match action {
            Action::TellAll(Message::Beat { epoch, .. }) => Some(*epoch),
            _ => None,
        });
        let epoch = beat.unwrap();
        let ask = |brain: &mut Brain, request, now| {
            let message = permits::Message::Request {
                robot: RobotId(1),
                request: permits::RequestId(request),
                sent_at: now,
            };
            brain.on_said(RobotId(1), Message::Permit { epoch, message }, now);
        };
        ask(&mut brain, 1, at(900));
        assert_eq!(brain.granted().0, [RobotId(1)]);
        brain.on_gone(RobotId(1));
        assert_eq!(brain.granted().0, [RobotId(1)], "its link alone is gone");
        ask(&mut brain, 2, at(910));
        brain.on_dead(RobotId(1), at(905), at(911));
        assert_eq!(brain.granted().0, [RobotId(1)], "it has started anew since");
        brain.on_dead(RobotId(1), at(911), at(912));
        assert_eq!(brain.granted().0, []);
    }

    #[test]
    fn a_grant_that_nobody_asked_for_is_no_permit() {
        let mut brain = brain("coorp");
        let epoch = failover::Epoch {
            round: 1,
            robot: RobotId(0),
            incarnation: 1,
        };
        let beat = Message::Beat { epoch, sent_at: at(1) };
        assert!(brain.on_said(RobotId(0), beat, at(400)));
        let message = permits::Message::Grant {
            request: permits::RequestId(1),
            token: permits::Token(1),
            slice: Duration::from_secs(5),
            echo: at(1),
        };
        assert!(!brain.on_said(RobotId(0), Message::Permit { epoch, message }, at(401)));
        assert!(!brain.may_pass(0, 0, at(401)));
        assert_eq!(brain.permit(at(401)), PermitState::Idle);
    }
}
