//! Local preemption (Deng 2022, sections IV-B and IV-C, algorithm 2): decides the protection windows that bulk keeps
//! out of, and whether a bulk packet may go over a path now.
//!
//! [`Local`] has one window planner ([`crate::windows`]) for all control that this robot knows about. It has one gate
//! ([`crate::gate`]) for each path, because each path has its own card. Every window goes to all gates. While no loop
//! is late there are none ([`Caution::is_calm`]).
//!
//! Windows for commands follow from the start of the current loop. Its last moments before the bound are kept clear,
//! unless the leader's commands are out by then ([`LoopEnds`], decision 4).
//!
//! Left out: permits, which `global` keeps, and the caution, which the leader decides (`lead`).

use serde::{Deserialize, Serialize};

use super::ends::LoopEnds;
use super::{Action, Arrived, Event, FlowKey, Journal, Robot, RobotConfig, Windows, FLOWS_MAX};
use crate::aggregates::Aggregates;
use crate::arrival::{ArrivalConfig, TimeModel};
use crate::gate::{Caution, CompletionTable, Gate, Verdict};
use crate::policy::LocalConfig;
use crate::schedwifi::Schedule;
use crate::windows::{PlannerConfig, Window, WindowAction, WindowPlanner};
use crate::{Duration, Instant, RobotId};

/// Greatest queue depth for which completion times are kept.
const DEPTH_MAX: usize = 512;
/// Time without a leader after which bulk of programs that know nothing about Coorp goes without a permit. A new leader
/// is found sooner.
const LEADERLESS_MAX: Duration = Duration::from_secs(2);
/// How long before a window the last acknowledgements go: about the duration of another robot's aggregate, for which
/// they wait.
const ACKNOWLEDGING: Duration = Duration::from_millis(2);
/// Maximum time between completions of one aggregate, including acknowledgements that had to wait for the air.
const TOGETHER: Duration = Duration::from_micros(500);

/// The reason why bulk is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hold {
    /// This robot has no permit.
    NoPermit {
        /// The leader, as far as is known.
        leader: Option<RobotId>,
        /// The robots that hold permits; known only on the leader.
        holders: Vec<RobotId>,
    },
    /// There is a protection window.
    Window {
        /// The window.
        window: Window,
        /// The flows whose messages are awaited in it.
        flows: Vec<FlowKey>,
    },
    /// The backlog on its way is large enough.
    Backlog {
        /// Packets on their way.
        n: usize,
        /// How long a packet behind them would take.
        takes: Duration,
        /// The bound on that time.
        most: Duration,
    },
}

/// The source of windows.
#[derive(Clone, Debug, Serialize, Deserialize)]
enum Source {
    None,
    Predicted(Box<WindowPlanner<FlowKey>>, LocalConfig),
    Scheduled { schedule: Schedule, until: Instant },
}

/// The windows and gates of one robot.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Local {
    source: Source,
    /// Set if there are windows for the ends of loops too.
    ends: Option<LoopEnds>,
    caution: Caution,
    /// The gates, one for each path; none if the policy has none.
    gates: Vec<Gate>,
    /// The aggregates that each gate learns from.
    aggregates: Vec<Aggregates>,
}

impl Local {
    pub fn new(config: &RobotConfig, now: Instant) -> Self {
        let gates = |local: &LocalConfig| (0..config.paths).map(|_| gate(local)).collect::<Vec<Gate>>();
        let (source, gates) = match &config.windows {
            Windows::None => (Source::None, Vec::new()),
            Windows::Predicted(local) => {
                let planner = WindowPlanner::new(PlannerConfig {
                    extension: local.extension,
                    early_release: local.early_release,
                    share_max: local.window_share_max,
                    flows_max: (2 * usize::from(config.robots) + 1) * FLOWS_MAX,
                });
                (Source::Predicted(Box::new(planner), local.clone()), gates(local))
            }
            Windows::Scheduled(schedule, shaper) => {
                let (schedule, until) = (schedule.clone(), Instant::ZERO);
                (Source::Scheduled { schedule, until }, gates(shaper))
            }
        };
        let mut local = Local {
            source,
            ends: None,
            caution: Caution::new(0.0, 0.0),
            aggregates: vec![Aggregates::new(TOGETHER); gates.len()],
            gates,
        };
        let Some(policy) = local.policy() else {
            local.plan(now, &mut Journal::default());
            return local;
        };
        let (delay, ends_too) = (policy.command_delay, policy.command_windows);
        let percentile = policy.protection_percentile;
        let caution = Caution::new(percentile, policy.protection_percentile_max.unwrap_or(percentile));
        let judged = config.judged && policy.shared_windows;
        let ends = config.control.map(|control| LoopEnds::new(control, delay));
        local.ends = ends.filter(|_| ends_too);
        // If control is judged, windows begin with the first late message.
        local.caution = if judged { caution.calm() } else { caution };
        for gate in &mut local.gates {
            gate.set_caution(local.caution);
        }
        local
    }

    fn planner(&self) -> Option<&WindowPlanner<FlowKey>> {
        match &self.source {
            Source::Predicted(planner, _) => Some(planner),
            _ => None,
        }
    }

    fn planner_mut(&mut self) -> Option<&mut WindowPlanner<FlowKey>> {
        match &mut self.source {
            Source::Predicted(planner, _) => Some(planner),
            _ => None,
        }
    }

    /// Returns the settings for predicting windows; `None` if they are not predicted.
    pub fn policy(&self) -> Option<&LocalConfig> {
        match &self.source {
            Source::Predicted(_, policy) => Some(policy),
            _ => None,
        }
    }

    /// Returns whether robots keep windows for each other's control.
    pub fn shares(&self) -> bool {
        self.policy().is_some_and(|policy| policy.shared_windows)
    }

    /// Passes the windows planned since the last call to the gates. Returns whether a gate has opened.
    pub fn settle(&mut self, journal: &mut Journal) -> bool {
        while let Some(action) = self.planner_mut().and_then(WindowPlanner::poll) {
            let window = match action {
                WindowAction::Set(window) => window,
                WindowAction::Clear => Window::NONE,
            };
            self.set_window(window, journal);
        }
        self.gates.iter_mut().filter_map(Gate::poll).count() > 0
    }

    fn set_window(&mut self, window: Window, journal: &mut Journal) {
        let window = if self.caution.is_calm() { Window::NONE } else { window };
        journal.note(Event::Window((window != Window::NONE).then_some(window)));
        for gate in &mut self.gates {
            gate.on_window(window);
        }
    }

    // --- flows ------------------------------------------------------------------------------------------------

    /// Plans for one of this robot's flows. A known flow restarts. Returns whether there was room.
    pub fn add_flow(&mut self, flow: u8, period: Option<Duration>) -> bool {
        let Source::Predicted(planner, policy) = &mut self.source else {
            return true;
        };
        let config = ArrivalConfig {
            accuracy: policy.accuracy,
            deviation: policy.deviation,
            refit_interval: policy.refit_interval,
            samples_max: policy.model_samples,
            period,
        };
        planner.add_flow(FlowKey::Own(flow), config).is_ok()
    }

    /// Stops planning for a flow.
    pub fn remove(&mut self, flow: FlowKey) {
        if let Some(planner) = self.planner_mut() {
            planner.remove_flow(flow);
        }
    }

    /// Records a message of one of this robot's flows; `put_off` if it had to wait for something else.
    pub fn on_message(&mut self, flow: u8, put_off: bool, now: Instant) {
        let Some(planner) = self.planner_mut() else { return };
        if put_off {
            planner.on_put_off(FlowKey::Own(flow), now);
        } else {
            planner.on_message(FlowKey::Own(flow), now);
        }
    }

    /// Records that a message of one of this robot's flows has left.
    pub fn on_message_sent(&mut self, flow: u8, now: Instant) {
        if let Some(planner) = self.planner_mut() {
            planner.on_message_sent(FlowKey::Own(flow), now);
        }
    }

    /// Returns the model of one of this robot's flows.
    pub fn model(&self, flow: u8) -> Option<TimeModel> {
        self.planner()?.time_model(FlowKey::Own(flow))
    }

    /// Plans for another robot's flow, whose model is on this robot's clock to within `within`.
    pub fn set_shared(&mut self, flow: FlowKey, model: TimeModel, within: Duration, now: Instant) {
        if let Some(planner) = self.planner_mut() {
            // The planner has room for every flow of every robot.
            let _ = planner.set_shared(flow, model, within, now);
        }
    }

    /// Returns the state of the team's loops; `None` if there are none, or no windows for their ends.
    pub fn ends(&self) -> Option<&LoopEnds> {
        self.ends.as_ref()
    }

    pub fn ends_mut(&mut self) -> Option<&mut LoopEnds> {
        self.ends.as_mut()
    }

    /// Plans for the end of the current loop.
    pub fn plan_end(&mut self, now: Instant) {
        let at_risk = self.ends.as_ref().and_then(LoopEnds::at_risk);
        if let (Some(planner), Some(at_risk)) = (self.planner_mut(), at_risk) {
            // The planner has room for this flow.
            let _ = planner.announce(FlowKey::LoopEnd, at_risk, now);
        }
    }

    /// Withdraws the current loop's window.
    pub fn end_loop(&mut self, now: Instant) {
        if let Some(planner) = self.planner_mut() {
            planner.withdraw(FlowKey::LoopEnd, now);
        }
    }

    /// Records other robots' control that has arrived, so that its window need not wait for it.
    pub fn hear(&mut self, messages: impl IntoIterator<Item = Arrived>, now: Instant) {
        let Some(planner) = self.planner_mut() else { return };
        let messages = messages
            .into_iter()
            .filter(|message| usize::from(message.flow) < FLOWS_MAX)
            .map(|message| (FlowKey::Of(message.robot, message.flow), None, message.made_at));
        // Flows without a model are skipped, so there is room for all.
        let _ = planner.hear_shared(messages, Duration::ZERO, now);
    }

    /// Returns whether no control is awaited now.
    pub fn is_nothing_due(&self, now: Instant) -> bool {
        let window = self.planner().and_then(WindowPlanner::window);
        window.is_none_or(|window| now < window.start || window.end <= now)
    }

    // --- gates ------------------------------------------------------------------------------------------------

    /// Returns how careful bulk is.
    pub fn caution(&self) -> Caution {
        self.caution
    }

    pub fn set_caution(&mut self, caution: Caution, journal: &mut Journal) {
        let calms = caution.is_calm() && !self.caution.is_calm();
        self.caution = caution;
        if calms {
            self.set_window(Window::NONE, journal);
        }
        for gate in &mut self.gates {
            gate.set_caution(caution);
        }
    }

    /// Plans the next window if this one is over.
    pub fn plan(&mut self, now: Instant, journal: &mut Journal) {
        match &mut self.source {
            Source::Predicted(planner, _) => planner.on_deadline(now),
            Source::Scheduled { schedule, until } if *until <= now => {
                let window = schedule.window_at_or_after(now);
                *until = window.map_or(Instant::FAR_FUTURE, |window| window.end);
                if let Some(window) = window {
                    self.set_window(window, journal);
                }
            }
            _ => {}
        }
    }

    pub fn on_deadline(&mut self, now: Instant, journal: &mut Journal) {
        self.plan(now, journal);
        for gate in &mut self.gates {
            gate.on_deadline(now);
        }
    }

    /// Returns when the window ends.
    #[inline]
    pub fn window_deadline(&self) -> Option<Instant> {
        match &self.source {
            Source::None => None,
            Source::Predicted(planner, _) => planner.next_deadline(),
            Source::Scheduled { until, .. } => Some(*until),
        }
    }

    /// When a gate that holds bulk opens.
    pub fn gates_deadline(&self) -> Option<Instant> {
        self.gates.iter().filter_map(Gate::next_deadline).min()
    }
}

impl Robot {
    /// Returns whether a bulk packet may go over a path on which `n` are on their way. If not, [`Action::Resume`] says
    /// when to ask again. A hold without a time ends with the next completion.
    pub fn may_pass(&mut self, path: usize, n: usize, now: Instant) -> bool {
        self.is_permitted(now) && self.passes_gate(path, n, now)
    }

    /// Returns the same as [`Robot::may_pass`], but for programs that know nothing about Coorp, which never agreed to
    /// depend on a leader. Once there has been no leader for `LEADERLESS_MAX`, only the gate holds their packets.
    pub fn may_forward(&mut self, path: usize, n: usize, now: Instant) -> bool {
        if self.leader(now).is_some() || now.since(self.led_at) < LEADERLESS_MAX {
            return self.may_pass(path, n, now);
        }
        self.passes_gate(path, n, now)
    }

    /// Returns whether acknowledgements of others' bulk may go now. They need no permit, but an acknowledgement that
    /// has just gone delays this robot's control for as long as the other robot's bulk occupies the channel.
    pub fn may_acknowledge(&mut self, now: Instant) -> bool {
        self.plan_windows(now);
        let window = self.window();
        now + ACKNOWLEDGING < window.start || window.end <= now
    }

    /// Plans the next window if this one is over. Called when bulk asks, because planning at each window's end would
    /// wake a robot without bulk for every control message.
    #[inline]
    fn plan_windows(&mut self, now: Instant) {
        if self.local.window_deadline().is_some_and(|due| now >= due) {
            self.local.plan(now, &mut self.journal);
            self.gather();
        }
    }

    /// Returns the same as [`Robot::may_pass`], but ignores permits. For drivers that enforce permits elsewhere, for
    /// example by pausing streams, and for what such a driver had made before the permit ended.
    #[inline]
    pub fn passes_gate(&mut self, path: usize, n: usize, now: Instant) -> bool {
        self.plan_windows(now);
        let Some(gate) = self.local.gates.get_mut(path) else {
            return true;
        };
        let verdict = gate.on_dequeue(n, now);
        let for_window = match verdict {
            Verdict::Hold { until } => until,
            Verdict::Pass => None,
        };
        self.journal
            .gate(path, verdict == Verdict::Pass, for_window.is_some(), n);
        self.journal.scope.gate(path, for_window, now);
        verdict == Verdict::Pass
    }

    /// Returns how many packets, up to `most`, may go together.
    pub fn room(&self, path: usize, n: usize, most: usize, now: Instant) -> usize {
        let gate = self.local.gates.get(path);
        gate.map_or(most, |gate| gate.room(n, most, now))
    }

    /// Returns how long `n` packets of bulk in the WNIC take to leave; zero without a gate, or if that has seen none.
    pub fn time_below(&self, path: usize, n: usize) -> Duration {
        let gate = self.local.gates.get(path);
        gate.map_or(Duration::ZERO, |gate| gate.time_below(n))
    }

    /// Returns whether permits or the gate ever hold bulk back.
    pub fn coordinates_bulk(&self) -> bool {
        self.coordinator.is_some() || !self.local.gates.is_empty()
    }

    /// Records that a bulk packet that entered at `entered_at` left at `left_at`. `left` counts the packets that had
    /// left when it entered, and that have left now, including this one.
    pub fn on_left(&mut self, path: usize, left: (u64, u64), entered_at: Instant, left_at: Instant) {
        self.journal.scope.bulk(path, entered_at, left_at);
        let local = &mut self.local;
        if let (Some(gate), Some(aggregates)) = (local.gates.get_mut(path), local.aggregates.get_mut(path)) {
            if let Some(sample) = aggregates.on_left(left.0, left.1, entered_at, left_at) {
                gate.on_complete(sample.ahead, sample.entered_at, sample.left_at);
            }
            gate.on_left(left_at);
        }
        self.gather_gate(path);
    }

    /// Records a report of the driver's hook that a bulk packet, which entered at `entered_at` behind `ahead` others,
    /// has left.
    #[inline]
    pub fn on_completed(&mut self, path: usize, ahead: usize, entered_at: Instant, left_at: Instant) {
        self.journal.scope.bulk(path, entered_at, left_at);
        if let Some(gate) = self.local.gates.get_mut(path) {
            gate.on_complete(ahead, entered_at, left_at);
        }
        self.gather_gate(path);
    }

    /// Collects the actions of one gate. When packets leave, no other part has any.
    #[inline]
    fn gather_gate(&mut self, path: usize) {
        if self.local.gates.get_mut(path).and_then(Gate::poll).is_some() {
            self.actions.push_back(Action::Resume);
        }
    }

    /// Returns the window that bulk keeps out of, the same on all paths. For a status page; plans nothing.
    #[inline]
    pub fn window(&self) -> Window {
        self.local.gates.first().map_or(Window::NONE, Gate::window)
    }

    /// Returns why a bulk packet would be held on a path on which `n` are on their way; `None` if it would pass. For a
    /// status page; changes nothing.
    pub fn hold(&self, path: usize, n: usize, now: Instant) -> Option<Hold> {
        if !self.is_permitted(now) {
            return Some(Hold::NoPermit {
                leader: self.leader(now),
                holders: self.granted().0,
            });
        }
        let gate = self.local.gates.get(path)?;
        if !gate.is_clear_of_window(n, now) {
            let planner = self.local.planner().into_iter();
            return Some(Hold::Window {
                window: gate.window(),
                flows: planner.flat_map(WindowPlanner::awaited).collect(),
            });
        }
        let (takes, most) = gate.backlog(n);
        gate.is_held_for_backlog(n).then_some(Hold::Backlog { n, takes, most })
    }

    /// Returns whether a gate holds bulk now.
    pub fn is_held(&self) -> bool {
        self.local.gates.iter().any(Gate::is_paused)
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
