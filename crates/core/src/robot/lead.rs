//! The leader's decisions for the whole team, from the loops that it sees: how careful bulk has to be, and the phases
//! of sensors.
//!
//! **Caution** ([`Caution`], decision 7). A robot cannot see how its bulk delays others' loops; the leader sees every loop.
//! A loop begins with its first perception. Its inference starts once all robots' perceptions have arrived, and the
//! leader's own control messages are its commands. Their receivers report with their next perception how long the loop
//! took (`last_loop`). The leader cannot measure it, because a card may free a frame long before it is on the air.
//! Loops that bulk made late raise the caution, which goes to the robots that may send bulk, together with the
//! arrivals.
//!
//! **Phases** (decision 5). If sensors sample together, their windows coincide, and no loop waits for the last sensor.
//! The target is one flow's phase, kept while that flow exists. Each other flow is told once how much later to sample,
//! and then not again until its model must show the shift.
//!
//! If no loop can be judged for [`BLIND_AFTER`], for example because the team's programs run none, bulk may be doing harm
//! unseen, and windows hold it.
//!
//! Windows that save almost no loop, because the team has no room for its control, only cost bulk. Then they are off
//! for a while ([`Worth`]), and are tried again after ever longer pauses.
//!
//! Control messages outside the loop count like loops if their sender states a bound ([`super::judge`]). Each late one
//! raises the caution, unless most are late whatever windows do.
//!
//! Left out: robots that do not report how long their loops took. If other robots report, those loops count as in time.
//! A loop about which no robot reports is not judged at all.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::arrival::TimeModel;
use crate::gate::Caution;
use crate::loops::{Ended, Loops};
use crate::{Duration, Instant, RobotId};

use super::{ControlLoop, Judged};

/// The interval between two shifts of one flow, in which its model must show the first shift and be sent to the leader.
const SHIFT_EVERY: Duration = Duration::from_secs(4);
/// A phase that is off the target by less than this part of the period is kept. Loops that end late delay the messages
/// that begin the next ones, and models follow that for a while.
const TOLERANCE_PARTS: u64 = 10;
/// A phase has to be off by the same amount in this many consecutive checks, for the same reason.
const LOOKS_MIN: u32 = 4;
/// Time without a judged loop, or without a report of one, after which a robot is no longer calm.
pub(super) const BLIND_AFTER: Duration = Duration::from_secs(10);
/// Number of loops or messages under windows after which to decide whether windows are worth their cost.
const TRIED: u32 = 64;
/// Windows are worth their cost if one in this many is in time.
const SAVED_PARTS: u32 = 8;
/// Number of loops or messages for which windows are otherwise off, at first and at most.
const REST_MIN: u32 = 256;
const REST_MAX: u32 = 4_096;
/// Weight of one message in the share of late messages.
const LATE_WEIGHT: f64 = 1.0 / 64.0;
/// Maximum number of messages of one kind that one report counts.
const JUDGED_MAX: u16 = 1_000;
/// Resolution of levels of caution on the wire, in parts of one, from -1 on.
const LEVEL_PARTS: f64 = 50.0;

/// One loop as the leader sees it.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Seen {
    began: Instant,
    /// The flows whose messages have arrived. A message may arrive twice, over two paths.
    arrived: BTreeSet<(RobotId, u8)>,
    all_in: Option<Instant>,
    commanded: Option<Instant>,
    /// How long the loop took, as reported by the slowest robot.
    took: Option<Duration>,
}

/// Whether windows are worth their cost, judged by loops or messages.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Worth {
    /// The number judged under windows since the last decision, and the number of late ones among them.
    tried: u32,
    late: u32,
    /// The number still to pass before late ones bring windows back.
    rest: u32,
    rest_next: u32,
}

impl Worth {
    const NEW: Worth = Worth {
        tried: 0,
        late: 0,
        rest: 0,
        rest_next: REST_MIN,
    };

    fn rests(&self) -> bool {
        self.rest > 0
    }

    /// Counts a judged loop or message, without windows if `calm`. Returns whether windows should rest now.
    fn on_judged(&mut self, late: bool, calm: bool) -> bool {
        if calm {
            (self.tried, self.late) = (0, 0);
            self.rest = self.rest.saturating_sub(1);
            return false;
        }
        self.tried += 1;
        self.late += u32::from(late);
        if self.tried < TRIED {
            return false;
        }
        let useless = (self.tried - self.late) * SAVED_PARTS < self.tried;
        (self.tried, self.late) = (0, 0);
        (self.rest, self.rest_next) = if useless {
            (self.rest_next, (2 * self.rest_next).min(REST_MAX))
        } else {
            (0, REST_MIN)
        };
        useless
    }
}

/// The leader's view of the team's loops.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Lead {
    /// The control loop; `None` for a team without one.
    control: Option<ControlLoop>,
    loops: Loops,
    current: Option<Seen>,
    previous: Option<Seen>,
    /// How long the commands of the newest judged loop took.
    commands_took: Option<Duration>,
    caution: Option<Caution>,
    /// When a loop was last judged; at first, when this state was created.
    judged_at: Instant,
    worth: Worth,
    /// The share of late messages among those with a bound, smoothed.
    late: f64,
    /// The flows that begin loops, with their models.
    flows: BTreeMap<(RobotId, u8), TimeModel>,
    target: Option<(RobotId, u8)>,
    shifted: BTreeMap<(RobotId, u8), Instant>,
    /// How far flows were off, and in how many consecutive checks.
    off: BTreeMap<(RobotId, u8), (Duration, u32)>,
}

impl Lead {
    pub fn new(control: Option<ControlLoop>, caution: Option<Caution>, now: Instant) -> Self {
        Lead {
            control,
            loops: Loops::default(),
            current: None,
            previous: None,
            commands_took: None,
            caution,
            judged_at: now,
            worth: Worth::NEW,
            late: 0.0,
            flows: BTreeMap::new(),
            target: None,
            shifted: BTreeMap::new(),
            off: BTreeMap::new(),
        }
    }

    /// Sets whether a flow's messages begin loops, with its model.
    pub fn set_flow(&mut self, flow: (RobotId, u8), model: Option<TimeModel>) {
        match model {
            Some(model) => _ = self.flows.insert(flow, model),
            None => {
                self.flows.remove(&flow);
                if let Some(current) = &mut self.current {
                    current.arrived.remove(&flow);
                }
            }
        }
    }

    /// Handles a message that begins a loop. `last_loop` is how long its sender's last loop took. Returns the caution
    /// if it has changed.
    pub fn on_arrived(
        &mut self,
        flow: (RobotId, u8),
        made_at: Instant,
        last_loop: Option<Duration>,
        bulk: bool,
        now: Instant,
    ) -> Option<Caution> {
        let control = self.control.filter(|_| self.flows.contains_key(&flow))?;
        let begins = self
            .current
            .as_ref()
            .is_none_or(|current| current.commanded.is_some() || made_at >= current.began + control.period / 2);
        let mut changed = None;
        if begins {
            changed = self.end_previous(control.bound, bulk, now);
            self.previous = self.current.take();
            self.current = Some(Seen {
                began: made_at,
                arrived: BTreeSet::new(),
                all_in: None,
                commanded: None,
                took: None,
            });
        }
        if let Some(previous) = &mut self.previous {
            previous.took = previous.took.max(last_loop);
        }
        if let Some(current) = &mut self.current {
            current.began = current.began.min(made_at);
            if current.arrived.insert(flow) && current.arrived.len() == self.flows.len() {
                current.all_in = Some(now);
            }
        }
        changed
    }

    /// Notes that the leader makes a control message, which is a command of the current loop.
    pub fn on_commanded(&mut self, now: Instant) {
        if let Some(current) = &mut self.current {
            current.commanded.get_or_insert(now);
        }
    }

    /// Returns how long the commands of a loop took, once for each loop.
    pub fn take_commands_took(&mut self) -> Option<Duration> {
        self.commands_took.take()
    }

    fn end_previous(&mut self, bound: Duration, bulk: bool, now: Instant) -> Option<Caution> {
        let ended = self.previous.as_ref()?;
        let took = ended.took?;
        self.loops.begin(ended.began, ended.all_in);
        if let Some(commanded) = ended.commanded {
            self.loops.on_commanded(commanded);
            self.commands_took = Some((ended.began + took).since(commanded));
        }
        self.loops.on_through(ended.began + took);
        let calm = self.caution.is_some_and(|caution| caution.is_calm());
        let Ended { late, by_bulk } = self.loops.end(bound, calm)?;
        self.judged_at = now;
        let caution = self.caution.as_mut().filter(|_| bulk)?;
        caution.on_loop(by_bulk && !self.worth.rests());
        if self.worth.on_judged(late, calm) {
            *caution = caution.calm();
        }
        if calm && !caution.is_calm() {
            // Loops without windows say nothing about loops with them.
            self.loops = Loops::default();
        }
        Some(*caution)
    }

    /// Judges messages with a bound that arrived anywhere. Returns the caution if its level has changed.
    pub fn on_judged(&mut self, judged: Judged, bulk: bool, now: Instant) -> Option<Caution> {
        self.judged_at = now;
        let before = self.caution.filter(|_| bulk)?;
        let caution = self.caution.as_mut()?;
        let count = |number: u16| usize::from(number.min(JUDGED_MAX));
        let late = std::iter::repeat_n(true, count(judged.late));
        for late in late.chain(std::iter::repeat_n(false, count(judged.in_time))) {
            self.late += (f64::from(u8::from(late)) - self.late) * LATE_WEIGHT;
            let calm = caution.is_calm();
            caution.on_loop(late && !self.worth.rests() && (calm || self.late < 0.5));
            if self.worth.on_judged(late, calm) {
                *caution = caution.calm();
            }
        }
        (caution.level() != before.level()).then_some(*caution)
    }

    /// Checks whether loops are judged at all. Returns the caution if its level has changed.
    pub fn look(&mut self, now: Instant) -> Option<Caution> {
        let blind = now.since(self.judged_at) >= BLIND_AFTER;
        let caution = self.caution.as_mut().filter(|caution| blind && caution.is_calm())?;
        *caution = caution.at_level(0.0);
        Some(*caution)
    }

    /// Returns the flows that should sample later, and by how much.
    pub fn shifts(&mut self, now: Instant) -> Vec<((RobotId, u8), Duration)> {
        let target = self.target.filter(|target| self.flows.contains_key(target));
        self.target = target.or_else(|| self.flows.keys().next().copied());
        let Some(target) = self.target.and_then(|target| self.flows.get(&target)).copied() else {
            return Vec::new();
        };
        let Some(control) = self.control else {
            return Vec::new();
        };
        let period = control.period.as_nanos().max(1);
        let mut shifts = Vec::new();
        for (flow, model) in &self.flows {
            let rests = self.shifted.get(flow).is_some_and(|at| now.since(*at) < SHIFT_EVERY);
            let ahead = (target.phase.as_nanos() % period + period - model.phase.as_nanos() % period) % period;
            let tolerance = (control.period / TOLERANCE_PARTS).max(model.sigma * 2);
            if rests || Duration::from_nanos(ahead.min(period - ahead)) < tolerance {
                self.off.remove(flow);
                continue;
            }
            let ahead = Duration::from_nanos(ahead);
            let (before, looks) = self.off.get(flow).copied().unwrap_or((ahead, 0));
            let same = ahead.saturating_sub(before).max(before.saturating_sub(ahead)) < tolerance / 4;
            let looks = if same { looks + 1 } else { 1 };
            self.off.insert(*flow, (ahead, looks));
            if looks >= LOOKS_MIN {
                shifts.push((*flow, ahead));
            }
        }
        for (flow, _) in &shifts {
            self.shifted.insert(*flow, now);
        }
        shifts
    }
}

/// Encodes a level of caution for the wire.
pub(super) fn level_to_wire(caution: &Caution) -> u8 {
    ((caution.level() + 1.0) * LEVEL_PARTS).round() as u8
}

/// Decodes a level of caution from the wire.
pub(super) fn level_from_wire(level: u8) -> f64 {
    f64::from(level) / LEVEL_PARTS - 1.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    fn lead() -> Lead {
        let control = ControlLoop {
            period: Duration::from_millis(33),
            bound: Duration::from_millis(33),
        };
        let mut lead = Lead::new(Some(control), Some(Caution::new(0.5, 0.95)), at(0));
        for robot in 1..=2 {
            lead.set_flow((RobotId(robot), 0), Some(model(0)));
        }
        lead
    }

    fn model(phase: u64) -> TimeModel {
        let ms = Duration::from_millis;
        TimeModel {
            period: ms(33),
            phase: at(330 + phase),
            sigma: Duration::ZERO,
            early: ms(1),
            late: ms(1),
        }
    }

    /// Runs loop number `k`, whose perceptions take `messages_ms`. The robots report that their last loop took
    /// `took_ms`.
    fn run(lead: &mut Lead, k: u64, messages_ms: u64, took_ms: u64, bulk: bool) -> Option<Caution> {
        let began = 33 * k;
        let mut changed = None;
        for robot in 1..=2 {
            let last = Some(Duration::from_millis(took_ms));
            let told = lead.on_arrived((RobotId(robot), 0), at(began), last, bulk, at(began + messages_ms));
            changed = told.or(changed);
        }
        lead.on_commanded(at(began + messages_ms + 20));
        changed
    }

    #[test]
    fn caution_rises_with_loops_that_bulk_made_late_and_only_while_there_is_bulk() {
        let mut lead = lead();
        for k in 1..30 {
            run(&mut lead, k, 5, 28, true);
        }
        // Loop 30 takes 15 ms longer, all of it on the air, as loop 31's perceptions report. Loop 32's arrival ends it.
        run(&mut lead, 30, 12, 28, true);
        run(&mut lead, 31, 5, 43, true);
        let level = run(&mut lead, 32, 5, 28, true).map(|caution| caution.level());
        assert!(level.is_some_and(|level| level > 0.0), "{level:?}");
        run(&mut lead, 33, 12, 28, false);
        run(&mut lead, 34, 5, 43, false);
        assert!(run(&mut lead, 35, 5, 28, false).is_none(), "nobody sends bulk");
        let stranger = lead.on_arrived((RobotId(7), 0), at(2_000), None, true, at(2_001));
        assert!(stranger.is_none(), "it begins no loop");
    }

    /// In an earlier version, a perception that arrived over two paths counted for the missing one.
    #[test]
    fn inference_begins_when_each_flow_has_arrived() {
        let mut lead = lead();
        let mut arrive = |robot, ms| {
            lead.on_arrived((RobotId(robot), 0), at(33), None, false, at(ms));
            lead.current.as_ref().unwrap().all_in
        };
        assert_eq!([arrive(1, 34), arrive(1, 35)], [None, None], "the other one is missing");
        assert_eq!([arrive(2, 40), arrive(2, 41)], [Some(at(40)); 2]);
        lead.set_flow((RobotId(3), 0), Some(model(0)));
        lead.on_commanded(at(60));
        for robot in [1, 3] {
            lead.on_arrived((RobotId(robot), 0), at(66), None, false, at(67));
        }
        lead.set_flow((RobotId(3), 0), None);
        let all_in = |lead: &Lead| lead.current.as_ref().unwrap().all_in;
        assert_eq!(all_in(&lead), None, "who is gone stands for nobody");
        lead.on_arrived((RobotId(2), 0), at(66), None, false, at(68));
        assert_eq!(all_in(&lead), Some(at(68)));
    }

    #[test]
    fn windows_that_save_nothing_rest_longer_and_longer() {
        let mut worth = Worth::NEW;
        let mut rested = Vec::new();
        for _ in 0..3 {
            let decided = (0..TRIED).filter(|_| worth.on_judged(true, false)).count();
            assert_eq!(decided, 1);
            rested.push(
                (0..)
                    .take_while(|_| worth.rests() && !worth.on_judged(true, true))
                    .count(),
            );
        }
        assert_eq!(rested, [256, 512, 1_024]);
        let saved = |loop_: u32| loop_.is_multiple_of(SAVED_PARTS);
        assert!(
            (0..TRIED).all(|number| !worth.on_judged(!saved(number), false)),
            "one in eight is saved"
        );
        assert!((0..TRIED).any(|_| worth.on_judged(true, false)));
        assert_eq!(worth.rest, REST_MIN, "they had been of use");
    }

    #[test]
    fn late_messages_raise_the_caution_unless_most_are_late_in_any_case() {
        let mut lead = Lead::new(None, Some(Caution::new(0.5, 0.95)), at(0));
        let mut hear = |in_time, late, bulk| lead.on_judged(Judged { in_time, late }, bulk, at(0));
        assert!(hear(0, 3, false).is_none(), "nobody sends bulk");
        assert!(hear(100, 3, true).is_some_and(|caution| caution.level() > 0.0));
        assert!(hear(1_000, 0, true).is_some_and(|caution| caution.is_calm()));
        assert!(
            hear(0, 3, true).is_some_and(|caution| caution.level() > 0.0),
            "calm no longer"
        );
        assert!(
            hear(0, 200, true).is_some_and(|caution| caution.is_calm()),
            "windows save none"
        );
        assert!(hear(0, 50, true).is_none(), "they rest");
        assert!(lead.shifts(at(1_000)).is_empty(), "no control loop, nothing to steer");
    }

    #[test]
    fn a_leader_that_judges_no_loop_does_not_stay_calm() {
        let mut lead = lead();
        lead.caution = Some(Caution::new(0.5, 0.95).calm());
        for k in 1..=300 {
            run(&mut lead, k, 5, 28, true);
        }
        assert!(lead.look(at(10_500)).is_none(), "it has judged");
        assert!(lead.look(at(25_000)).is_some_and(|caution| !caution.is_calm()));
        assert!(lead.look(at(25_001)).is_none(), "nothing changes");
    }

    #[test]
    fn a_flow_is_shifted_to_the_target_once_it_was_off_for_several_looks() {
        let mut lead = lead();
        lead.set_flow((RobotId(2), 0), Some(model(13)));
        for look in 0..LOOKS_MIN - 1 {
            assert_eq!(lead.shifts(at(1_000 * u64::from(look))), []);
        }
        let shifts = lead.shifts(at(10_000));
        assert_eq!(shifts, [((RobotId(2), 0), Duration::from_millis(20))]);
        assert_eq!(lead.shifts(at(10_500)), [], "its model has to show the first");
        lead.set_flow((RobotId(2), 0), Some(model(2)));
        (0..10).for_each(|look| assert_eq!(lead.shifts(at(20_000 + 1_000 * look)), [], "near enough"));
    }
}
