//! Decides when bulk must not be in the WNIC: the preemption controller (Deng 2022, section IV-B).
//!
//! [`WindowPlanner`] keeps the arrival models of many control flows and publishes one protection window at a
//! time. It is the earliest expected arrival, merged with every other that begins before the window ends. When a window
//! ends, the next is computed from the models at that time and published.
//!
//! The paper extends each window by a constant after merging. Here each arrival's end is extended before merging. This
//! covers the same time, and no next window begins inside the previous one.
//!
//! Beyond the paper:
//!
//! - Flows of other robots are planned by the [`TimeModel`] that those robots sent, widened on both sides by the
//!   uncertainty between the clocks.
//! - A message without a period, such as the leader's command, can be announced once its cause is known.
//! - `early_release`: the window ends once every message that it was opened for has left the WNIC. It continues while
//!   some have arrived and not all have left. Messages of many robots, or a message of many packets, take longer on the
//!   air than any constant extension. Another robot's message, which is heard only after it has left, counts as on its
//!   way, unless none arrived in [`MISSED_MAX`] consecutive windows.
//! - Windows can be limited to a share of the time, so that many flows at different phases do not starve bulk.
//! - A window that has not begun is replaced if another flow's message becomes expected before or in it.
//!
//! Left out: converting from another robot's clock (models must be on this robot's), and sending models over the air.

use crate::arrival::{Arrival, ArrivalConfig, ArrivalModel, TimeModel};
use crate::{Duration, FlowId, Instant};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Number of consecutive windows without another robot's message, after which no window continues for it.
pub const MISSED_MAX: u32 = 2;

/// A span of time in which bulk must not be in the WNIC: from `start` until before `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Window {
    /// t1.
    pub start: Instant,
    /// t2.
    pub end: Instant,
}

impl Window {
    /// A window that holds nothing.
    pub const NONE: Window = Window {
        start: Instant::ZERO,
        end: Instant::ZERO,
    };
}

/// An action for the gate's owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WindowAction {
    /// Pass this window to the gate, in place of the previous one. The gate then resumes the queue.
    Set(Window),
    /// Nothing is expected: pass [`Window::NONE`] to the gate.
    Clear,
}

/// The settings of a planner.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlannerConfig {
    /// How much longer than the expected arrival a window lasts.
    pub extension: Duration,
    /// Whether a window ends when its messages have left, before or after its planned end.
    pub early_release: bool,
    /// The maximum number of flows, including other robots'.
    pub flows_max: usize,
    /// The share of time that windows may take, above 0 and up to 1. A window lasts at most this share of the shortest
    /// period in it, and none begins that would bring windows above their share.
    pub share_max: f64,
}

/// The planner already has the maximum number of flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyFlows {
    /// The configured bound.
    pub flows_max: usize,
}

impl std::fmt::Display for TooManyFlows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "windows are planned for at most {} flows; raise that bound or leave flows unprotected",
            self.flows_max
        )
    }
}

impl std::error::Error for TooManyFlows {}

#[derive(Clone, Debug, Serialize, Deserialize)]
enum Source {
    /// Boxed, because a model is large, and most flows in a big team are others'.
    Own(Box<ArrivalModel>),
    Shared {
        model: TimeModel,
        uncertainty: Duration,
        seen_until: Instant,
    },
    /// Announced once its cause is known, one message at a time.
    Announced(Option<Arrival>),
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Flow<K> {
    id: K,
    source: Source,
    /// The arrival that the current window covers.
    covered: Option<Arrival>,
    /// Whether the message of that arrival has been seen.
    seen: bool,
    /// The number of consecutive complete windows in which the message did not arrive.
    missed: u32,
    /// The number of messages that have entered the WNIC and not yet left.
    in_wnic: u32,
}

impl<K> Flow<K> {
    fn next(&self, now: Instant) -> Option<Arrival> {
        match &self.source {
            Source::Own(model) => model.predict(now),
            Source::Announced(arrival) => arrival.filter(|arrival| arrival.end() > now),
            Source::Shared {
                model,
                uncertainty,
                seen_until,
                ..
            } => {
                let wide = TimeModel {
                    early: model.early + *uncertainty,
                    late: model.late + *uncertainty,
                    ..*model
                };
                wide.next_after(now.max(*seen_until))
            }
        }
    }

    fn period(&self) -> Option<Duration> {
        match &self.source {
            Source::Own(model) => model.period(),
            Source::Shared { model, .. } => Some(model.period),
            Source::Announced(_) => None,
        }
    }

    /// Returns whether a message made at `made_at` is the one that the current window covers. It may also be an earlier
    /// one that arrived late, after the window had been planned.
    fn covers(&self, made_at: Instant) -> bool {
        self.covered.is_some_and(|arrival| {
            self.period()
                .is_none_or(|period| made_at + period / 2 >= arrival.expected)
        })
    }

    /// Returns whether the whole interval of the covered message lay before the window's end. A window that was cut
    /// short says nothing about a message that arrives later.
    fn was_awaited_in(&self, window: Window) -> bool {
        self.covered.is_some_and(|arrival| arrival.end() <= window.end)
    }

    fn is_through(&self) -> bool {
        self.seen && self.in_wnic == 0
    }
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Expected {
    start: Instant,
    end: Instant,
    arrival: Arrival,
    flow: usize,
}

/// The state machine that plans the protection windows of one WNIC, for flows identified by `K`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WindowPlanner<K = FlowId> {
    config: PlannerConfig,
    /// The flows, sorted by id.
    flows: Vec<Flow<K>>,
    window: Option<Window>,
    /// The latest end to which the window may be extended while its messages are on their way.
    limit: Instant,
    clock: Instant,
    /// The number of flows that the window covers, and of those whose messages have not left.
    covered: usize,
    waited_for: usize,
    /// The time that windows may still take, as of `credit_at`. It grows at the rate of their share.
    credit_ns: f64,
    credit_at: Instant,
    outbox: VecDeque<WindowAction>,
    expected: Vec<Expected>,
}

impl<K: Copy + Ord> WindowPlanner<K> {
    /// Creates a planner without flows.
    pub fn new(config: PlannerConfig) -> Self {
        WindowPlanner {
            config,
            flows: Vec::new(),
            window: None,
            limit: Instant::ZERO,
            clock: Instant::ZERO,
            covered: 0,
            waited_for: 0,
            credit_ns: 0.0,
            credit_at: Instant::ZERO,
            outbox: VecDeque::new(),
            expected: Vec::new(),
        }
    }

    /// Plans for a control flow of this robot, learnt from its messages. A known flow restarts.
    pub fn add_flow(&mut self, flow: K, config: ArrivalConfig) -> Result<(), TooManyFlows> {
        self.put(flow, Source::Own(Box::new(ArrivalModel::new(config))))
    }

    /// Plans for a flow of another robot by its model, given in this robot's clock to within `uncertainty`.
    /// Another call replaces the model; the current window stays.
    pub fn set_shared(
        &mut self,
        flow: K,
        model: TimeModel,
        uncertainty: Duration,
        now: Instant,
    ) -> Result<(), TooManyFlows> {
        if let Ok(at) = self.find(flow) {
            if let Source::Shared {
                model: old,
                uncertainty: old_uncertainty,
                ..
            } = &mut self.flows[at].source
            {
                (*old, *old_uncertainty) = (model, uncertainty);
                self.advance(at, now);
                return Ok(());
            }
        }
        self.put(
            flow,
            Source::Shared {
                model,
                uncertainty,
                seen_until: Instant::ZERO,
            },
        )?;
        if let Ok(at) = self.find(flow) {
            self.advance(at, now);
        }
        Ok(())
    }

    /// Announces the next message of a flow, known from its cause, such as an inference that will end and send
    /// commands. Another call replaces the announcement; a window that has begun stays.
    pub fn announce(&mut self, flow: K, arrival: Arrival, now: Instant) -> Result<(), TooManyFlows> {
        self.follow_clock(now);
        match self.find(flow) {
            Ok(at) if matches!(self.flows[at].source, Source::Announced(_)) => {
                self.flows[at].source = Source::Announced(Some(arrival));
                if self.flows[at].covered.is_some() && self.window.is_some_and(|window| now < window.start) {
                    self.plan(now);
                    return Ok(());
                }
            }
            _ => self.put(flow, Source::Announced(Some(arrival)))?,
        }
        if let Ok(at) = self.find(flow) {
            self.advance(at, now);
        }
        Ok(())
    }

    /// Withdraws an announcement, because its message has left or will not be sent.
    pub fn withdraw(&mut self, flow: K, now: Instant) {
        self.follow_clock(now);
        let Ok(at) = self.find(flow) else { return };
        if let Source::Announced(arrival) = &mut self.flows[at].source {
            *arrival = None;
            self.change(at, |entry| entry.seen = true);
            let begun = self.window.is_some_and(|window| now >= window.start);
            let covered = self.flows[at].covered.is_some();
            if (covered && !begun) || self.is_nothing_due(now) {
                self.plan(now);
            }
        }
    }

    /// Calls [`WindowPlanner::set_shared`] for many flows whose messages have been heard, made at the given instants of
    /// this robot's clock. Plans at most once.
    pub fn hear_shared(
        &mut self,
        heard: impl IntoIterator<Item = (K, Option<TimeModel>, Instant)>,
        uncertainty: Duration,
        now: Instant,
    ) -> Result<(), TooManyFlows> {
        self.follow_clock(now);
        for (flow, model, made_at) in heard {
            // Clocks are known only approximately, but a message that was heard was made before now.
            let made_at = made_at.min(now);
            if self.find(flow).is_err() {
                let Some(model) = model else { continue };
                let seen_until = Instant::ZERO;
                self.put(
                    flow,
                    Source::Shared {
                        model,
                        uncertainty,
                        seen_until,
                    },
                )?;
            }
            let Ok(at) = self.find(flow) else { continue };
            self.change(at, |entry| {
                entry.seen |= entry.covers(made_at);
                if let Source::Shared {
                    model: old,
                    uncertainty,
                    seen_until,
                    ..
                } = &mut entry.source
                {
                    *old = model.unwrap_or(*old);
                    *seen_until = (*seen_until).max(old.end_of(made_at) + *uncertainty);
                }
            });
        }
        let begun = self.window.is_some_and(|window| now >= window.start);
        if !begun || self.is_nothing_due(now) {
            self.plan(now);
        }
        Ok(())
    }

    /// Stops planning for a flow. The current window stays.
    pub fn remove_flow(&mut self, flow: K) {
        if let Ok(at) = self.find(flow) {
            self.change(at, |entry| entry.covered = None);
            self.flows.remove(at);
        }
    }

    /// Records that the flow's message entered the WNIC (or, for another robot's flow, was heard). Ignores unknown
    /// flows.
    pub fn on_message(&mut self, flow: K, now: Instant) {
        self.came(flow, false, now);
    }

    /// Records a message like [`WindowPlanner::on_message`] that had to wait for something else
    /// ([`ArrivalModel::on_put_off`]).
    pub fn on_put_off(&mut self, flow: K, now: Instant) {
        self.came(flow, true, now);
    }

    fn came(&mut self, flow: K, put_off: bool, now: Instant) {
        self.follow_clock(now);
        let Ok(at) = self.find(flow) else { return };
        self.change(at, |entry| {
            entry.seen |= entry.covers(now);
            entry.in_wnic = entry.in_wnic.saturating_add(1);
        });
        match &mut self.flows[at].source {
            Source::Own(model) if put_off => model.on_put_off(now),
            Source::Own(model) => model.on_sample(now),
            Source::Announced(arrival) => *arrival = None,
            Source::Shared {
                model,
                uncertainty,
                seen_until,
                ..
            } => *seen_until = (*seen_until).max(model.end_of(now) + *uncertainty),
        }
        self.advance(at, now);
    }

    /// Records that the flow's message has left the WNIC, delivered or given up.
    pub fn on_message_sent(&mut self, flow: K, now: Instant) {
        self.follow_clock(now);
        let Ok(at) = self.find(flow) else { return };
        self.change(at, |entry| entry.in_wnic = entry.in_wnic.saturating_sub(1));
        if self.window.is_some() && self.is_nothing_due(now) {
            self.plan(now);
        }
    }

    /// Handles the deadline of [`WindowPlanner::next_deadline`]. Harmless at any other time.
    pub fn on_deadline(&mut self, now: Instant) {
        self.follow_clock(now);
        if self.window.is_some_and(|w| now >= w.end) {
            self.end_window(now);
        }
    }

    /// Plans the next window at the end of this one, or extends this one while its messages are on their way.
    fn end_window(&mut self, now: Instant) {
        if let Some(window) = self.window.filter(|_| self.config.early_release && self.waited_for > 0) {
            let on_its_way = |flow: &Flow<K>| {
                let unheard = flow.missed < MISSED_MAX && matches!(flow.source, Source::Shared { .. });
                flow.covered.is_some() && !flow.is_through() && (flow.seen || unheard)
            };
            if now < self.limit && self.flows.iter().any(on_its_way) {
                let extended = Window {
                    end: self.limit,
                    ..window
                };
                self.window = Some(extended);
                return self.publish(WindowAction::Set(extended));
            }
        }
        self.plan(now);
    }

    /// Returns when the current window ends.
    #[inline]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.window.map(|w| w.end)
    }

    /// Returns the last published window, unless it has ended.
    pub fn window(&self) -> Option<Window> {
        self.window
    }

    /// Returns the flows that the current window is for and whose messages have not left yet.
    pub fn awaited(&self) -> impl Iterator<Item = K> + '_ {
        let awaited = self
            .flows
            .iter()
            .filter(|flow| flow.covered.is_some() && !flow.is_through());
        awaited.map(|flow| flow.id)
    }

    /// Returns the model of one of this robot's flows, to send to other robots.
    pub fn time_model(&self, flow: K) -> Option<TimeModel> {
        match &self.flows[self.find(flow).ok()?].source {
            Source::Own(model) => model.time_model(),
            Source::Shared { .. } | Source::Announced(_) => None,
        }
    }

    /// Returns the next action, until `None`.
    pub fn poll(&mut self) -> Option<WindowAction> {
        self.outbox.pop_front()
    }

    fn find(&self, flow: K) -> Result<usize, usize> {
        self.flows.binary_search_by_key(&flow, |f| f.id)
    }

    fn put(&mut self, id: K, source: Source) -> Result<(), TooManyFlows> {
        let flow = Flow {
            id,
            source,
            covered: None,
            seen: false,
            missed: 0,
            in_wnic: 0,
        };
        match self.find(id) {
            Ok(at) => {
                self.change(at, |entry| entry.covered = None);
                self.flows[at] = flow;
            }
            Err(_) if self.flows.len() >= self.config.flows_max => {
                return Err(TooManyFlows {
                    flows_max: self.config.flows_max,
                });
            }
            Err(at) => self.flows.insert(at, flow),
        }
        Ok(())
    }

    /// Returns whether the window may end early: it covers some flow, and each flow whose message has not left is due
    /// later than now.
    fn is_nothing_due(&self, now: Instant) -> bool {
        let due = |flow: &Flow<K>| {
            let due = flow.covered.is_some_and(|arrival| arrival.start() <= now);
            due && !flow.is_through()
        };
        self.config.early_release && self.covered > 0 && !self.flows.iter().any(due)
    }

    /// Changes a flow's state and updates the counts of flows that the window covers and waits for.
    fn change(&mut self, at: usize, change: impl FnOnce(&mut Flow<K>)) {
        let flow = &mut self.flows[at];
        let counts = |flow: &Flow<K>| {
            let covered = flow.covered.is_some();
            (usize::from(covered), usize::from(covered && !flow.is_through()))
        };
        let (covered, waited_for) = counts(flow);
        change(flow);
        let (covered_now, waited_for_now) = counts(flow);
        self.covered = self.covered + covered_now - covered;
        self.waited_for = self.waited_for + waited_for_now - waited_for;
    }

    /// Handles a possible change of a flow's expected arrival. Plans again if there is no window, or if the flow falls
    /// into or before one that has not begun.
    fn advance(&mut self, at: usize, now: Instant) {
        let replan = match self.window {
            None => true,
            // The call at the deadline is only late.
            Some(window) if now >= window.end => return self.end_window(now),
            Some(window) if now >= window.start => false,
            Some(window) => {
                let flow = &self.flows[at];
                flow.covered.is_none() && flow.next(now).is_some_and(|a| a.start() <= window.end)
            }
        };
        if replan {
            self.plan(now);
        }
    }

    /// Publishes the window for the next arrivals, merged as in section IV-B.
    fn plan(&mut self, now: Instant) {
        let before = self.window.take();
        let share = self.config.share_max.clamp(f64::MIN_POSITIVE, 1.0);
        if let Some(window) = before {
            self.spend_credit(now.min(window.end).since(window.start), share, now);
        }
        let rest = Duration::from_nanos((-self.credit_ns / share).max(0.0) as u64);
        let from = now.max(self.credit_at + rest);
        self.expected.clear();
        (self.covered, self.waited_for) = (0, 0);
        for (at, flow) in self.flows.iter_mut().enumerate() {
            if flow.seen {
                flow.missed = 0;
            } else if before.is_some_and(|window| now >= window.end && flow.was_awaited_in(window)) {
                flow.missed = flow.missed.saturating_add(1);
            }
            (flow.covered, flow.seen) = (None, false);
            if let Some(arrival) = flow.next(now) {
                let announced = matches!(flow.source, Source::Announced(_));
                let extension = if announced {
                    Duration::ZERO
                } else {
                    self.config.extension
                };
                let (start, end) = (arrival.start().max(from), arrival.end() + extension);
                if start < end || from == now {
                    self.expected.push(Expected {
                        start,
                        end,
                        arrival,
                        flow: at,
                    });
                }
            }
        }
        self.expected.sort_unstable_by_key(|e| (e.start, e.flow));
        let Some(first) = self.expected.first() else {
            if before.is_some() {
                self.publish(WindowAction::Clear);
            }
            return;
        };
        let mut window = Window {
            start: first.start,
            end: first.end,
        };
        let mut longest = None;
        for e in &self.expected {
            if e.start > window.end {
                break;
            }
            if let Some(period) = self.flows[e.flow].period() {
                let share = Duration::from_secs_f64(period.as_secs_f64() * share);
                longest = Some(longest.map_or(share, |longest: Duration| longest.min(share)));
            }
            window.end = window.end.max(e.end);
            self.flows[e.flow].covered = Some(e.arrival);
            (self.covered, self.waited_for) = (self.covered + 1, self.waited_for + 1);
        }
        self.limit = longest.map_or(window.end, |longest| window.start + longest);
        if share < 1.0 {
            window.end = window.end.min(self.limit);
        }
        assert!(
            now <= window.start && window.start <= window.end,
            "a window in the past"
        );
        // A window without length would end at once and be planned again at the same instant, forever.
        window.end = window.end.max(now + Duration::from_nanos(1));
        self.window = Some(window);
        self.publish(WindowAction::Set(window));
    }

    /// Charges a window that lasted `lasted`. Credit for up to a share of one period can be saved, so that a window for
    /// perceptions and one for commands need no rest between them.
    fn spend_credit(&mut self, lasted: Duration, share: f64, now: Instant) {
        let period = self.flows.iter().filter_map(Flow::period).min();
        let most = period.map_or(0.0, |period| period.as_nanos() as f64 * share);
        let earned = now.since(self.credit_at).as_nanos() as f64 * share;
        self.credit_ns = (self.credit_ns + earned).min(most) - lasted.as_nanos() as f64;
        self.credit_at = now;
    }

    fn publish(&mut self, action: WindowAction) {
        // Only the newest action matters. It replaces any that the gate has not received.
        self.outbox.clear();
        self.outbox.push_back(action);
    }

    /// Drops the window after the clock has stepped back, because it lies far ahead, and plans again.
    fn follow_clock(&mut self, now: Instant) {
        let back = self.clock > now;
        self.clock = now;
        if back {
            self.credit_at = now;
            for flow in &mut self.flows {
                if let Source::Shared { seen_until, .. } = &mut flow.source {
                    *seen_until = Instant::ZERO;
                }
            }
            self.plan(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: u64 = 1_000_000;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * MS)
    }

    fn planner(early_release: bool) -> WindowPlanner {
        WindowPlanner::new(PlannerConfig {
            extension: ms(2),
            early_release,
            flows_max: 8,
            share_max: 1.0,
        })
    }

    fn shared(p: &mut WindowPlanner, flow: u32, phase_ms: u64, half_width_ms: u64) {
        let model = TimeModel {
            period: ms(30),
            phase: at(phase_ms),
            sigma: ms(1),
            early: ms(half_width_ms),
            late: ms(half_width_ms),
        };
        p.set_shared(FlowId(flow), model, Duration::ZERO, Instant::ZERO)
            .unwrap();
    }

    fn set(p: &mut WindowPlanner) -> Window {
        match p.poll() {
            Some(WindowAction::Set(window)) => window,
            other => panic!("a window expected, got {other:?}"),
        }
    }

    #[test]
    fn windows_leave_bulk_its_share_of_the_time() {
        let mut p = planner(false);
        p.config.share_max = 0.4;
        // Half-widths of 14 ms on flows that are due throughout the period. Merged, they would never end.
        (0..3).for_each(|flow| shared(&mut p, flow, 20 + 10 * u64::from(flow), 14));
        let (mut now, mut inside) = (at(0), Duration::ZERO);
        while now < at(3_000) {
            let window = p.window().expect("something is always expected");
            inside += window.end.since(window.start);
            now = window.end;
            p.on_deadline(now);
        }
        let share = inside.as_secs_f64() / 3.0;
        assert!((0.3..0.41).contains(&share), "{share}");
    }

    #[test]
    fn a_window_that_is_cut_off_counts_no_message_as_missed() {
        let mut p = planner(true);
        p.config.share_max = 0.5;
        // [6, 34] and so on, of which a window of 15 ms is left. The messages arrive at the interval's end.
        shared(&mut p, 1, 20, 14);
        for period in 0..20 {
            let comes_at = at(33 + 30 * period);
            while p.next_deadline().is_some_and(|deadline| deadline <= comes_at) {
                p.on_deadline(p.next_deadline().unwrap());
            }
            p.on_message(FlowId(1), comes_at);
            p.on_message_sent(FlowId(1), comes_at);
            assert_eq!(p.flows[0].missed, 0, "in period {period}");
        }
    }

    #[test]
    fn a_message_made_ahead_of_now_is_taken_to_be_made_now() {
        let mut p = planner(true);
        shared(&mut p, 1, 10, 2);
        let heard = [(FlowId(1), None, at(1_000))];
        p.hear_shared(heard, Duration::ZERO, at(11)).unwrap();
        p.on_deadline(at(15));
        assert_eq!(p.window().map(|window| window.start), Some(at(38)));
    }

    #[test]
    fn an_announced_message_is_protected_once() {
        let mut p = planner(true);
        let arrival = Arrival {
            expected: at(10),
            early: ms(1),
            late: ms(3),
        };
        p.announce(FlowId(1), arrival, at(2)).expect("room");
        let exactly = Window {
            start: at(9),
            end: at(13),
        };
        assert_eq!(p.window(), Some(exactly), "no extension");
        p.on_message(FlowId(1), at(11));
        p.on_message(FlowId(1), at(11));
        p.on_message_sent(FlowId(1), at(12));
        assert!(p.window().is_some(), "one of the burst is still in the WNIC");
        p.on_message_sent(FlowId(1), at(13));
        assert_eq!(p.window(), None);
        p.announce(
            FlowId(1),
            Arrival {
                expected: at(40),
                ..arrival
            },
            at(30),
        )
        .expect("room");
        assert_eq!(p.window().map(|w| w.start), Some(at(39)));
    }

    #[test]
    fn a_withdrawn_message_needs_no_window() {
        let mut p = planner(true);
        let arrival = Arrival {
            expected: at(10),
            early: ms(2),
            late: ms(0),
        };
        p.announce(FlowId(1), arrival, at(2)).expect("room");
        p.withdraw(FlowId(1), at(5));
        assert_eq!(p.window(), None, "it has not begun");
        p.announce(FlowId(1), arrival, at(6)).expect("room");
        p.on_deadline(at(8));
        assert!(p.window().is_some());
        p.withdraw(FlowId(1), at(9));
        assert_eq!(p.window(), None);
        p.withdraw(FlowId(7), at(9));
    }

    #[test]
    fn bulk_goes_on_until_the_rest_of_a_merged_window_is_due() {
        let mut p = planner(true);
        shared(&mut p, 1, 10, 2);
        shared(&mut p, 2, 14, 2);
        assert_eq!(set(&mut p).start, at(8));
        p.hear_shared([(FlowId(1), None, at(9))], Duration::ZERO, at(9))
            .unwrap();
        assert_eq!(p.window().map(|window| window.start), Some(at(12)), "the second one's");
        p.hear_shared([(FlowId(2), None, at(13))], Duration::ZERO, at(13))
            .unwrap();
        assert_eq!(p.window().map(|window| window.start), Some(at(38)));
    }

    #[test]
    fn overlapping_arrivals_share_one_window_and_the_rest_wait_for_the_next() {
        let mut p = planner(false);
        shared(&mut p, 1, 10, 2);
        shared(&mut p, 2, 13, 2);
        shared(&mut p, 3, 20, 1);
        // [8, 12] and [11, 15] merge and are extended by 2 ms; [19, 21] stays separate.
        assert_eq!(
            set(&mut p),
            Window {
                start: at(8),
                end: at(17)
            }
        );
        p.on_deadline(at(17));
        assert_eq!(
            set(&mut p),
            Window {
                start: at(19),
                end: at(23)
            }
        );
        p.on_deadline(at(23));
        assert_eq!(
            set(&mut p),
            Window {
                start: at(38),
                end: at(47)
            }
        );
    }

    #[test]
    fn an_uncertain_clock_widens_the_window() {
        let mut p = planner(false);
        shared(&mut p, 1, 10, 2);
        let model = TimeModel {
            period: ms(30),
            phase: at(10),
            sigma: ms(1),
            early: ms(2),
            late: ms(2),
        };
        p.on_deadline(at(14));
        p.set_shared(FlowId(1), model, ms(1), at(14)).unwrap();
        p.on_deadline(at(44));
        assert_eq!(
            set(&mut p),
            Window {
                start: at(67),
                end: at(75)
            }
        );
    }

    #[test]
    fn own_flows_are_learnt_and_protected() {
        let mut p = planner(false);
        p.add_flow(FlowId(1), ArrivalConfig::default()).unwrap();
        for k in 1..=20 {
            p.on_message(FlowId(1), at(k * 30));
            while p.next_deadline().is_some_and(|d| d < at((k + 1) * 30)) {
                p.on_deadline(p.next_deadline().unwrap());
            }
        }
        let window = p.window().unwrap();
        assert!(window.start <= at(630) && at(630) <= window.end, "{window:?}");
        assert!(window.end.since(window.start) < ms(3));
    }

    #[test]
    fn the_window_ends_early_once_all_its_messages_have_left() {
        let mut p = planner(true);
        shared(&mut p, 1, 10, 2);
        shared(&mut p, 2, 11, 2);
        p.on_message(FlowId(1), at(9));
        p.on_message_sent(FlowId(1), at(9));
        assert_eq!(p.window().unwrap().end, at(15));
        p.on_message(FlowId(2), at(10));
        assert_eq!(p.window().unwrap().end, at(15), "it has come but not left");
        p.on_message_sent(FlowId(2), at(11));
        assert_eq!(
            set(&mut p),
            Window {
                start: at(38),
                end: at(45)
            }
        );
    }

    #[test]
    fn the_window_goes_on_while_its_messages_are_on_their_way() {
        let mut p = planner(true);
        p.add_flow(FlowId(1), ArrivalConfig::default()).unwrap();
        for k in 1..=20 {
            p.on_message(FlowId(1), at(k * 30));
            p.on_message_sent(FlowId(1), at(k * 30));
            while p.next_deadline().is_some_and(|d| d < at((k + 1) * 30)) {
                p.on_deadline(p.next_deadline().unwrap());
            }
        }
        p.on_message(FlowId(1), at(630));
        let end = p.window().expect("it has come and not left").end;
        p.on_deadline(end);
        let extended = p.window().unwrap();
        assert!(
            extended.start < at(630) && extended.end > at(655),
            "to the period at most: {extended:?}"
        );
        p.on_message_sent(FlowId(1), at(634));
        assert!(p.window().unwrap().start > at(650), "it has left");
    }

    #[test]
    fn the_window_is_not_extended_for_a_robot_that_has_fallen_silent() {
        let mut p = planner(true);
        shared(&mut p, 1, 10, 2);
        let mut lasted = Vec::new();
        for _ in 0..4 {
            let start = p.window().unwrap().start;
            while p.window().unwrap().start == start {
                p.on_deadline(p.next_deadline().unwrap());
            }
            lasted.push(p.clock.since(start));
        }
        assert_eq!(lasted, [ms(30), ms(30), ms(6), ms(6)]);
    }

    #[test]
    fn a_silent_robot_does_not_keep_windows_open_that_others_are_through_with() {
        let mut p = planner(true);
        shared(&mut p, 1, 10, 2);
        shared(&mut p, 2, 10, 2);
        let mut inside = Duration::ZERO;
        for k in 0..20 {
            let made_at = at(10 + 30 * k);
            while p.next_deadline().is_some_and(|deadline| deadline <= made_at) {
                p.on_deadline(p.next_deadline().unwrap());
            }
            p.hear_shared([(FlowId(1), None, made_at)], Duration::ZERO, made_at)
                .unwrap();
            let window = p.window().unwrap();
            p.on_deadline(window.end);
            let lasted = p.window().map_or(
                window.end,
                |now| if now.start == window.start { now.end } else { window.end },
            );
            if k >= 10 {
                inside += lasted.since(window.start);
            }
        }
        assert_eq!(
            inside,
            ms(10 * 6),
            "4 ms and the extension each, though the second is never heard"
        );
    }

    #[test]
    fn a_message_heard_after_its_window_is_not_the_next_ones() {
        let mut p = planner(true);
        shared(&mut p, 1, 10, 2);
        p.limit = at(14);
        p.on_deadline(at(14));
        let next = p.window().unwrap();
        p.hear_shared([(FlowId(1), None, at(9))], Duration::ZERO, at(16))
            .unwrap();
        assert_eq!(p.window(), Some(next));
        p.hear_shared([(FlowId(1), None, at(39))], Duration::ZERO, at(41))
            .unwrap();
        assert!(p.window().unwrap().start > next.end, "heard in its window");
    }

    #[test]
    fn without_early_release_the_window_stays() {
        let mut p = planner(false);
        shared(&mut p, 1, 10, 2);
        p.on_message(FlowId(1), at(9));
        p.on_message_sent(FlowId(1), at(9));
        assert_eq!(p.window().unwrap().end, at(14));
    }

    #[test]
    fn a_flow_expected_earlier_replaces_a_window_that_has_not_begun() {
        let mut p = planner(false);
        shared(&mut p, 1, 25, 2);
        assert_eq!(set(&mut p).start, at(23));
        shared(&mut p, 2, 10, 2);
        assert_eq!(
            set(&mut p),
            Window {
                start: at(8),
                end: at(14)
            }
        );
    }

    #[test]
    fn the_last_flow_gone_clears_the_window() {
        let mut p = planner(false);
        shared(&mut p, 1, 10, 2);
        p.remove_flow(FlowId(1));
        p.on_deadline(at(14));
        assert_eq!(p.poll(), Some(WindowAction::Clear));
        assert_eq!((p.poll(), p.window(), p.next_deadline()), (None, None, None));
    }

    #[test]
    fn flows_are_bounded() {
        let mut p = planner(false);
        for flow in 0..8 {
            p.add_flow(FlowId(flow), ArrivalConfig::default()).unwrap();
        }
        assert_eq!(
            p.add_flow(FlowId(8), ArrivalConfig::default()),
            Err(TooManyFlows { flows_max: 8 })
        );
        assert_eq!(p.add_flow(FlowId(7), ArrivalConfig::default()), Ok(()));
    }

    proptest! {
        /// Windows are never in the past, and never overlap the previous one (unless that had not begun, was released
        /// early, or continues). The planner never requests the same instant endlessly.
        #[test]
        fn windows_never_overlap_and_never_lie_in_the_past(
            flows in prop::collection::vec((0..60u64, 1..60u64, 0..20u64, 0..20u64), 0..8),
            events in prop::collection::vec((0..3u8, 0..10u32, 0..20_000u64, any::<bool>()), 1..300),
            early_release in any::<bool>(),
        ) {
            let mut p = planner(early_release);
            p.add_flow(FlowId(9), ArrivalConfig::default()).unwrap();
            for (i, (phase, period, early, late)) in flows.into_iter().take(7).enumerate() {
                let model = TimeModel { period: ms(period), phase: at(phase), sigma: ms(1), early: ms(early), late: ms(late) };
                p.set_shared(FlowId(i as u32), model, Duration::ZERO, Instant::ZERO).unwrap();
            }
            let (mut now, mut last) = (Instant::ZERO, None);
            check(&mut p, now, &mut last, false)?;
            for (kind, flow, wait_us, late) in events {
                now += Duration::from_micros(wait_us);
                let mut asked = 0;
                while p.next_deadline().is_some_and(|d| d <= now) {
                    let deadline = p.next_deadline().unwrap();
                    let when = if late { now } else { deadline };
                    p.on_deadline(when);
                    check(&mut p, when, &mut last, false)?;
                    prop_assert!(p.next_deadline().is_none_or(|d| d > when), "the planner stands still");
                    asked += 1;
                    prop_assert!(asked < 1_000);
                }
                match kind {
                    0 => p.on_message(FlowId(flow), now),
                    1 => p.on_message_sent(FlowId(flow), now),
                    _ => p.on_message(FlowId(9), now),
                }
                check(&mut p, now, &mut last, early_release && kind == 1)?;
            }
        }
    }

    fn check(
        p: &mut WindowPlanner,
        now: Instant,
        last: &mut Option<Window>,
        released: bool,
    ) -> Result<(), TestCaseError> {
        while let Some(action) = p.poll() {
            let WindowAction::Set(window) = action else { continue };
            prop_assert!(window.end > now);
            let extends = |last: Window| window.start == last.start && window.end > last.end && now >= last.end;
            prop_assert!(
                window.start >= now || last.is_some_and(extends),
                "{last:?} then {window:?} at {now:?}"
            );
            if let Some(last) = last.filter(|last| !extends(*last)) {
                prop_assert!(
                    released || window.start >= last.end || now < last.start,
                    "{last:?} then {window:?} at {now:?}"
                );
            }
            *last = Some(window);
        }
        Ok(())
    }
}
