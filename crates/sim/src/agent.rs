//! What runs on a robot: its side of the permits, its arrival models and protection windows, its gate.
//!
//! Everything here is on the robot's own clock; callers speak in the run's time. The decisions are `coorp-core`'s:
//! this module tells them what happened, in their terms, and passes on what they want.

use std::collections::VecDeque;

use coorp_air::Load;
use coorp_core::aggregates::{Aggregates, Sample};
use coorp_core::arrival::{Arrival, ArrivalConfig, TimeModel};
use coorp_core::gate::{Caution, CompletionTable, Gate, Verdict};
use coorp_core::loops::Loops;
use coorp_core::permits::{Message, Requester, RequesterAction};
use coorp_core::policy::{LocalConfig, Policy};
use coorp_core::schedwifi::Schedule;
use coorp_core::windows::{PlannerConfig, Window, WindowAction, WindowPlanner};
use coorp_core::{Duration, FlowId, Instant, RobotId};
use coorp_team::{Control, Team};

/// Local clocks start so long before the run, so that no skew reaches below zero.
pub(crate) const CLOCK_ORIGIN: Duration = Duration::from_secs(1_000);
/// Bound on what one robot knows of another's clock: WiFi's own timing function keeps stations within 25 us; the rest
/// is for reading it from user space.
const CLOCK_UNCERTAINTY: Duration = Duration::from_micros(100);
/// How long before a window for commands it is announced where loops do not end near it: the longest PPDU, which may be
/// on the air, is just over it.
const COMMAND_NOTICE: Duration = Duration::from_millis(5);
/// A robot tells again after so long what the leader should know already: a leader that started anew does not.
const TELL_EVERY: Duration = Duration::from_secs(1);
/// Deepest WNIC queue that completion times are kept for.
const WNIC_DEPTH: usize = 512;
/// Packets that a status log follows at most; no WNIC holds more.
const LOG_MAX: usize = 1 << 16;
/// Arrival models' ids in the planner: the robot's own flows, then the others' perceptions.
const PERCEPTION: FlowId = FlowId(0);
const COMMAND: FlowId = FlowId(1);
const PLAIN: u32 = 2;
const SHARED: u32 = 1 << 16;

/// A control flow that a robot sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ControlFlow {
    /// Its perceptions.
    Perception,
    /// The leader's commands: those of one loop are a burst.
    Command,
    /// A plain control flow: its place in the run.
    Plain(u32),
}

impl ControlFlow {
    fn id(self) -> FlowId {
        match self {
            ControlFlow::Perception => PERCEPTION,
            ControlFlow::Command => COMMAND,
            ControlFlow::Plain(place) => FlowId(PLAIN + place),
        }
    }
}

/// What an agent wants done.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum AgentAction {
    /// Send this to the controller.
    Send(Message),
    /// Bulk may, or may no longer, be transmitted.
    Permitted(bool),
    /// The gate has opened: the driver asks again.
    Resume,
    /// A window lasted from here to there.
    WindowOver(Instant, Instant),
}

/// Where windows come from.
#[derive(Debug)]
enum Windows {
    None,
    Predicted {
        planner: Box<WindowPlanner>,
        config: LocalConfig,
    },
    Scheduled {
        schedule: Schedule,
        until: Instant,
    },
}

#[derive(Debug)]
pub(crate) struct Agent {
    robot: RobotId,
    requester: Option<Requester>,
    windows: Windows,
    gate: Option<Gate>,
    /// Where the gate goes by transmit status and not by the driver's completion hook.
    status: Option<StatusLog>,
    leads: bool,
    control: Option<Control>,
    /// How long the commands of one loop take on a quiet channel.
    command_burst: Duration,
    /// The window for the commands that are awaited, and when it is to be announced.
    awaited: Option<(Instant, Arrival)>,
    loops: Loops,
    told: Told,
    caution: Option<Caution>,
    skew_ns: i64,
    up: bool,
    wants_bulk: bool,
    permitted: bool,
    held: bool,
    /// Packets that the gate let pass.
    passed: u64,
    window: Window,
    account: Account,
    actions: VecDeque<AgentAction>,
}

/// Transmit statuses, read aggregate by aggregate.
#[derive(Debug, Default)]
struct StatusLog {
    left: u64,
    /// For each packet in the WNIC: how many had left when it came.
    left_before: VecDeque<u64>,
    aggregates: Aggregates,
}

impl StatusLog {
    fn on_enqueued(&mut self) {
        if self.left_before.len() < LOG_MAX {
            self.left_before.push_back(self.left);
        }
    }

    /// A packet that came at `queued_at` left.
    fn on_status(&mut self, queued_at: Instant, now: Instant) -> Option<Sample> {
        let before = self.left_before.pop_front().unwrap_or(self.left);
        self.left += 1;
        self.aggregates.on_left(before, self.left, queued_at, now)
    }
}

/// What a robot told of itself last, and when.
#[derive(Clone, Copy, Debug, Default)]
struct Told {
    model: Option<(TimeModel, Instant)>,
    phase: Option<(Duration, Instant)>,
}

/// How long it had bulk that it was permitted to send, and how much of that was inside windows.
#[derive(Clone, Copy, Debug, Default)]
struct Account {
    until: Instant,
    sending: Duration,
    inside: Duration,
}

impl Agent {
    pub fn new(team: &Team, policy: &Policy, schedule: Option<&Schedule>, robot: RobotId) -> Self {
        let skew_ns = team.robots[usize::from(robot.0)].clock_skew_ns;
        let mut agent = Agent {
            robot,
            requester: None,
            windows: Windows::None,
            gate: None,
            status: policy
                .local
                .as_ref()
                .filter(|local| local.transmit_status)
                .map(|_| StatusLog::default()),
            leads: robot == team.leader,
            control: team.control.filter(|_| policy.control),
            awaited: None,
            loops: Loops::default(),
            told: Told::default(),
            caution: None,
            command_burst: crate::setup::command_burst(team, policy),
            skew_ns,
            up: true,
            wants_bulk: false,
            permitted: true,
            held: false,
            passed: 0,
            window: Window::NONE,
            account: Account::default(),
            actions: VecDeque::new(),
        };
        agent.restart(team, policy, schedule, 0, Instant::ZERO);
        agent
    }

    /// The robot starts (again): what it knew is gone.
    pub fn restart(
        &mut self,
        team: &Team,
        policy: &Policy,
        schedule: Option<&Schedule>,
        incarnation: u32,
        now: Instant,
    ) {
        self.spend(now);
        self.up = true;
        self.told = Told::default();
        self.loops = Loops::default();
        self.awaited = None;
        let local = self.local(now);
        let global = policy.global.clone().filter(|_| policy.bulk);
        self.requester = global.map(|config| Requester::new(self.robot, config, incarnation));
        self.permitted = self.requester.is_none();
        self.set_window(Window::NONE, now);
        (self.windows, self.gate) = (Windows::None, None);
        if let Some(config) = &policy.local {
            let planner = WindowPlanner::new(PlannerConfig {
                extension: config.extension,
                early_release: config.early_release,
                share_max: config.window_share_max,
                flows_max: team.robots.len() + team.flows.len() + 2,
            });
            self.windows = Windows::Predicted {
                planner: Box::new(planner),
                config: config.clone(),
            };
            self.gate = Some(gate(config));
            self.caution = config
                .protection_percentile_max
                .map(|max| Caution::new(config.protection_percentile, max));
            self.follow_flows(team);
        } else if let (Some(config), Some(schedule)) = (&policy.schedwifi, schedule) {
            self.gate = Some(gate(&config.shaper));
            self.windows = Windows::Scheduled {
                schedule: schedule.clone(),
                until: Instant::ZERO,
            };
            self.next_scheduled(local);
        }
    }

    fn follow_flows(&mut self, team: &Team) {
        let mut ids = Vec::new();
        if self.control.is_some() && !self.leads {
            ids.push((PERCEPTION, self.control.map(|control| control.period)));
        }
        for (place, flow) in team.flows.iter().enumerate() {
            if let (false, coorp_team::Traffic::Periodic { period, .. }) = (flow.bulk, flow.traffic) {
                if flow.from == self.robot {
                    ids.push((FlowId(PLAIN + place as u32), Some(period)));
                }
            }
        }
        let Windows::Predicted { planner, config } = &mut self.windows else {
            return;
        };
        for (id, period) in ids {
            let added = planner.add_flow(
                id,
                ArrivalConfig {
                    accuracy: config.accuracy,
                    deviation: config.deviation,
                    refit_interval: config.refit_interval,
                    samples_max: config.model_samples,
                    period,
                },
            );
            debug_assert!(added.is_ok(), "the planner has room for every flow of the team");
        }
    }

    // --- clocks -----------------------------------------------------------------------------------------------

    /// The robot's clock when the run's shows `now`.
    pub fn local(&self, now: Instant) -> Instant {
        to_local(now, self.skew_ns)
    }

    /// The run's time when the robot's clock shows `local`.
    pub fn global(&self, local: Instant) -> Instant {
        if local == Instant::FAR_FUTURE {
            return local;
        }
        Instant::from_nanos(local.as_nanos().saturating_add_signed(-self.skew_ns)) - CLOCK_ORIGIN
    }

    /// The robot's clock is set, later for positive.
    pub fn step_clock(&mut self, by_ns: i64, now: Instant) {
        self.spend(now);
        self.skew_ns += by_ns;
        self.on_deadline(now);
    }

    // --- permits ----------------------------------------------------------------------------------------------

    /// Whether bulk waits for permits on this robot.
    pub fn needs_permit(&self) -> bool {
        self.requester.is_some()
    }

    /// Whether the robot runs.
    pub fn is_up(&self) -> bool {
        self.up
    }

    /// The robot stops, dead or frozen, or goes on. While it is down it decides nothing and hears nothing.
    pub fn set_up(&mut self, up: bool, now: Instant) {
        self.spend(now);
        self.up = up;
        if up {
            self.on_deadline(now);
            self.permitted = self.may_send(now);
            // What came or went meanwhile.
            self.set_bulk(self.wants_bulk, now);
        }
    }

    /// Whether it wants to send bulk.
    pub fn wants_bulk(&self) -> bool {
        self.wants_bulk
    }

    /// Whether a permit allows bulk now, or none is needed.
    pub fn may_send(&self, now: Instant) -> bool {
        let local = self.local(now);
        self.requester
            .as_ref()
            .is_none_or(|requester| requester.may_send(local))
    }

    /// Whether its streams may run: it is up and was permitted.
    pub fn is_permitted(&self) -> bool {
        self.up && self.permitted
    }

    /// How many packets the gate had let pass, if it holds one now.
    pub fn held_after(&self) -> Option<u64> {
        (self.held && self.gate.as_ref().is_some_and(Gate::is_paused)).then_some(self.passed)
    }

    /// Whether it has bulk that it may send now.
    pub fn is_sending(&self) -> bool {
        self.up && self.wants_bulk && self.permitted
    }

    /// The controller says.
    pub fn on_permit_message(&mut self, message: Message, now: Instant) {
        let local = self.local(now);
        if let Some(requester) = self.requester.as_mut().filter(|_| self.up) {
            requester.on_message(message, local);
        }
    }

    /// Bulk waits to be sent, or none is left.
    pub fn set_bulk(&mut self, wants: bool, now: Instant) {
        self.spend(now);
        self.wants_bulk = wants;
        let local = self.local(now);
        if let Some(requester) = self.requester.as_mut().filter(|_| self.up) {
            if wants {
                requester.want(local);
            } else {
                requester.done(local);
            }
        }
    }

    // --- what is observed -------------------------------------------------------------------------------------

    /// The application made a control message.
    pub fn on_control_made(&mut self, flow: ControlFlow, now: Instant) {
        let local = self.local(now);
        if flow == ControlFlow::Command {
            self.awaited = None;
            self.loops.on_commanded(local);
        }
        if let Windows::Predicted { planner, .. } = &mut self.windows {
            planner.on_message(flow.id(), local);
        }
    }

    /// A control message has left the WNIC, all of it.
    pub fn on_control_left(&mut self, flow: ControlFlow, now: Instant) {
        let local = self.local(now);
        if flow == ControlFlow::Command {
            self.loops.on_through(local);
        }
        if let Windows::Predicted { planner, .. } = &mut self.windows {
            planner.on_message_sent(flow.id(), local);
        }
    }

    /// A loop that began at `start` has no command yet for this robot, or, on the leader, for anyone; `all_in` where all
    /// its perceptions are known to be in. It is at risk from the time that all commands take before its bound (the
    /// extension at least) until the bound.
    pub fn on_command_awaited(&mut self, start: Instant, all_in: bool, now: Instant) {
        let (start, local) = (self.local(start), self.local(now));
        if self.leads {
            self.end_loop();
        }
        self.loops.begin(start, all_in.then_some(local));
        let Some(control) = self.control else { return };
        let Windows::Predicted { config, .. } = &self.windows else {
            return;
        };
        if !config.command_windows {
            return;
        }
        let bound = start + control.bound;
        if bound <= local {
            return;
        }
        let arrival = Arrival {
            expected: bound - config.extension.min(bound.since(local)),
            early: self.command_burst.saturating_sub(config.extension),
            late: Duration::ZERO,
        };
        let notice = if self.loops.end_near(control.bound, self.command_burst) {
            Duration::MAX
        } else {
            COMMAND_NOTICE
        };
        self.awaited = Some((arrival.start() - notice, arrival));
        self.announce_awaited(local);
    }

    fn end_loop(&mut self) {
        let Some(control) = self.control else { return };
        // Whose bulk was not under way has nothing to learn from it.
        let sending = self.is_sending();
        let late_by_bulk = self.loops.end(control.bound).filter(|_| sending);
        if let (Some(late), Some(caution), Some(gate)) = (late_by_bulk, &mut self.caution, &mut self.gate) {
            caution.on_loop(late);
            gate.set_caution(*caution);
        }
    }

    fn announce_awaited(&mut self, local: Instant) {
        let (Some((at, arrival)), Windows::Predicted { planner, .. }) = (self.awaited, &mut self.windows) else {
            return;
        };
        if at <= local {
            self.awaited = None;
            let announced = planner.announce(COMMAND, arrival, local);
            debug_assert!(announced.is_ok(), "the planner has room for the commands");
        }
    }

    /// The command has arrived: nothing is at risk any more.
    pub fn on_command_arrived(&mut self, made_at: Instant, now: Instant) {
        let (made_at, local) = (self.local(made_at), self.local(now));
        self.awaited = None;
        self.loops.on_commanded(made_at);
        self.loops.on_through(local);
        self.end_loop();
        if let Windows::Predicted { planner, .. } = &mut self.windows {
            planner.on_message(COMMAND, local);
            planner.on_message_sent(COMMAND, local);
        }
    }

    /// The model of the robot's perceptions, on the run's clock.
    fn perception_model(&self) -> Option<TimeModel> {
        let Windows::Predicted { planner, .. } = &self.windows else {
            return None;
        };
        let model = planner.time_model(PERCEPTION)?;
        Some(TimeModel {
            phase: self.global(model.phase),
            ..model
        })
    }

    /// The model of the robot's perceptions, if it is news. Bytes added to a message can cost it a PPDU more.
    pub fn model_to_tell(&mut self, now: Instant) -> Option<TimeModel> {
        let model = self.perception_model()?;
        let known = self
            .told
            .model
            .is_some_and(|(told, at)| now.since(at) < TELL_EVERY && model.agrees_with(&told, CLOCK_UNCERTAINTY));
        (!known).then(|| {
            self.told.model = Some((model, now));
            model
        })
    }

    /// What was told last did not arrive.
    pub fn forget_told(&mut self) {
        self.told = Told::default();
    }

    /// The phase of the robot's sensor, if it is news.
    pub fn phase_to_tell(&mut self, phase: Duration, now: Instant) -> Option<Duration> {
        let known = self
            .told
            .phase
            .is_some_and(|(told, at)| now.since(at) < TELL_EVERY && told == phase);
        (!known).then(|| {
            self.told.phase = Some((phase, now));
            phase
        })
    }

    /// Another robot's model, on the run's clock; this robot knows its own clock's place in it to within a bound.
    pub fn on_shared_model(&mut self, robot: RobotId, model: TimeModel, now: Instant) {
        let (local, phase) = (self.local(now), self.local(model.phase));
        if let Windows::Predicted { planner, .. } = &mut self.windows {
            let id = FlowId(SHARED + u32::from(robot.0));
            let shared = planner.set_shared(id, TimeModel { phase, ..model }, CLOCK_UNCERTAINTY, local);
            debug_assert!(shared.is_ok(), "the planner has room for every robot");
        }
    }

    /// Perceptions of these robots, made then, have arrived; with them, perhaps, came their models. All on the run's
    /// clock.
    pub fn on_shared_arrived(
        &mut self,
        arrived: impl IntoIterator<Item = (RobotId, Option<TimeModel>, Instant)>,
        now: Instant,
    ) {
        let local = self.local(now);
        let skew_ns = self.skew_ns;
        if let Windows::Predicted { planner, .. } = &mut self.windows {
            let heard = arrived.into_iter().map(|(robot, model, made_at)| {
                let model = model.map(|model| TimeModel {
                    phase: to_local(model.phase, skew_ns),
                    ..model
                });
                let flow = FlowId(SHARED + u32::from(robot.0));
                (flow, model, to_local(made_at, skew_ns))
            });
            let shared = planner.hear_shared(heard, CLOCK_UNCERTAINTY, local);
            debug_assert!(shared.is_ok(), "the planner has room for every robot");
        }
    }

    /// The robot holds a permit no longer: the others' messages need no protection from it.
    pub fn forget_shared(&mut self, robots: u16) {
        if let Windows::Predicted { planner, .. } = &mut self.windows {
            (0..robots).for_each(|robot| planner.remove_flow(FlowId(SHARED + u32::from(robot))));
        }
    }

    // --- the gate ---------------------------------------------------------------------------------------------

    /// The driver wants to take a bulk packet. Answers whether it may, and whether that differs from last time.
    pub fn may_dequeue(&mut self, load: Load, now: Instant) -> (bool, bool) {
        let local = self.local(now);
        let in_wnic = if self.status.is_some() {
            load.unsent
        } else {
            load.incomplete
        };
        let Some(gate) = self.gate.as_mut() else {
            return (true, false);
        };
        let pass = gate.on_dequeue(usize::from(in_wnic), local) == Verdict::Pass;
        self.passed += u64::from(pass);
        let changed = pass == self.held;
        self.held = !pass;
        (pass, changed)
    }

    /// The WNIC got a bulk packet.
    pub fn on_enqueued(&mut self) {
        if let Some(log) = &mut self.status {
            log.on_enqueued();
        }
    }

    /// The driver counts a bulk packet as complete.
    pub fn on_released(&mut self, ahead: u16, queued_at: Instant, now: Instant) {
        if self.status.is_none() {
            self.learn(usize::from(ahead), queued_at, now);
        }
    }

    /// A bulk packet has its transmit status.
    pub fn on_status(&mut self, queued_at: Instant, now: Instant) {
        if let Some(sample) = self.status.as_mut().and_then(|log| log.on_status(queued_at, now)) {
            self.learn(sample.ahead, sample.entered_at, sample.left_at);
        }
    }

    fn learn(&mut self, ahead: usize, queued_at: Instant, now: Instant) {
        let (queued_at, now) = (self.local(queued_at), self.local(now));
        if let Some(gate) = &mut self.gate {
            gate.on_complete(ahead, queued_at, now);
        }
    }

    fn set_window(&mut self, window: Window, now: Instant) {
        self.spend(now);
        let (start, end) = (self.global(self.window.start), self.global(self.window.end).min(now));
        if self.window != Window::NONE && end > start {
            self.actions.push_back(AgentAction::WindowOver(start, end));
        }
        self.window = window;
        if let Some(gate) = &mut self.gate {
            gate.on_window(window);
        }
    }

    fn next_scheduled(&mut self, local: Instant) {
        let Windows::Scheduled { schedule, until } = &mut self.windows else {
            return;
        };
        let Some(window) = schedule.window_at_or_after(local) else {
            *until = Instant::FAR_FUTURE;
            return;
        };
        *until = window.end;
        let now = self.global(local);
        self.set_window(window, now);
    }

    // --- being driven -----------------------------------------------------------------------------------------

    pub fn on_deadline(&mut self, now: Instant) {
        if !self.up {
            return;
        }
        let local = self.local(now);
        if let Some(requester) = &mut self.requester {
            requester.on_deadline(local);
        }
        self.announce_awaited(local);
        match &mut self.windows {
            Windows::Predicted { planner, .. } => planner.on_deadline(local),
            Windows::Scheduled { until, .. } if *until <= local => self.next_scheduled(local),
            _ => {}
        }
        if let Some(gate) = &mut self.gate {
            gate.on_deadline(local);
        }
    }

    pub fn next_deadline(&self) -> Option<Instant> {
        if !self.up {
            return None;
        }
        let windows = match &self.windows {
            Windows::Predicted { planner, .. } => planner.next_deadline(),
            Windows::Scheduled { until, .. } => Some(*until),
            Windows::None => None,
        };
        let requester = self.requester.as_ref().and_then(Requester::next_deadline);
        let gate = self.gate.as_ref().and_then(Gate::next_deadline);
        let awaited = self.awaited.map(|(at, _)| at);
        let next = [windows, requester, gate, awaited].into_iter().flatten().min()?;
        Some(self.global(next))
    }

    /// The next thing to do, until `None`.
    pub fn poll(&mut self, now: Instant) -> Option<AgentAction> {
        if !self.up {
            return None;
        }
        while let Windows::Predicted { planner, .. } = &mut self.windows {
            match planner.poll() {
                Some(WindowAction::Set(window)) => self.set_window(window, now),
                Some(WindowAction::Clear) => self.set_window(Window::NONE, now),
                None => break,
            }
        }
        while let Some(action) = self.requester.as_mut().and_then(Requester::poll) {
            let action = match action {
                RequesterAction::Send(message) => AgentAction::Send(message),
                RequesterAction::Started => AgentAction::Permitted(true),
                RequesterAction::Stopped => AgentAction::Permitted(false),
            };
            if let AgentAction::Permitted(permitted) = action {
                self.spend(now);
                self.permitted = permitted;
            }
            self.actions.push_back(action);
        }
        if self.gate.as_mut().is_some_and(|gate| gate.poll().is_some()) {
            self.actions.push_back(AgentAction::Resume);
        }
        self.actions.pop_front()
    }

    // --- accounts ---------------------------------------------------------------------------------------------

    /// Books the time since it last did, under the state that held meanwhile.
    fn spend(&mut self, now: Instant) {
        self.account = self.account_at(now);
    }

    fn account_at(&self, now: Instant) -> Account {
        let mut account = self.account;
        if self.wants_bulk && self.permitted && self.up {
            let (start, end) = (self.global(self.window.start), self.global(self.window.end));
            let (from, to) = (account.until.max(start), now.min(end));
            account.sending += now.since(account.until);
            account.inside += to.since(from);
        }
        account.until = now;
        account
    }

    /// Seconds inside windows, and in all, that it had bulk which it was permitted to send.
    pub fn window_time_s(&self, now: Instant) -> (f64, f64) {
        let account = self.account_at(now);
        (account.inside.as_secs_f64(), account.sending.as_secs_f64())
    }
}

fn to_local(now: Instant, skew_ns: i64) -> Instant {
    Instant::from_nanos((now + CLOCK_ORIGIN).as_nanos().saturating_add_signed(skew_ns))
}

fn gate(config: &LocalConfig) -> Gate {
    let table = CompletionTable::new(WNIC_DEPTH, config.completion_samples, config.protection_percentile);
    let table = match config.completions_stale {
        Some(after) => table.forgetting(after),
        None => table,
    };
    Gate::new(table, config.backlog_max)
}
