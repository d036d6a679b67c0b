//! Decides what follows from a control message: for this robot's windows, for its loops, and for the robots that may
//! send bulk.
//!
//! A robot's own messages are the samples of its arrival models. Messages of others end the windows kept for them.
//! Windows end early as in decision 5. The leader hears all control, and tells the robots that may send bulk what has
//! arrived, together with the caution. A command from the leader ends its loop. The loop's duration goes back with the
//! next message ([`Stamp::last_loop`]), and the leader judges it ([`super::lead`]).
//!
//! The receiver judges messages with a bound ([`super::judge`]), and reports to the leader.
//!
//! Left out: reporting messages to robots other than the leader, whose windows last their full time. Also left out:
//! resending control that the air lost, because a stock kernel does not report the loss.

use serde::{Deserialize, Serialize};

use crate::clock::Offset;
use crate::gate::Caution;
use crate::{Duration, FlowId, Instant, RobotId};

use super::flow::{OwnFlow, FOREIGN_FLOWS_MAX};
use super::lead::{level_from_wire, level_to_wire, BLIND_AFTER};
use super::scope::micros;
use super::{Action, Arrived, FlowKey, Judged, Message, Robot, Route, Seen, Stamp, ARRIVED_MAX};

/// Longest time for which arrivals at the leader are collected for one notice. Each notice is a frame on the air, so
/// arrivals are reported together, once no more are due.
const ARRIVED_TOGETHER: Duration = Duration::from_micros(1_500);
/// A message that begins a loop was put off if it is made this soon after the command that ended the previous loop. At
/// most this many consecutive messages count as put off.
const PUT_OFF_BY: Duration = Duration::from_millis(1);
const PUT_OFF_MAX: u8 = 4;
/// Interval between notices while windows are off. Then arrivals are of no use, but robots still have to hear that
/// windows are off.
const TELL_CALM_EVERY: Duration = Duration::from_millis(500);

/// On the leader, the arrivals that have not been reported yet to the robots that may send bulk.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Notices {
    arrived: Vec<Arrived>,
    tell_at: Instant,
    /// While windows are off, arrivals before this time are not reported.
    calm_until: Instant,
}

impl Notices {
    pub fn new(now: Instant) -> Self {
        Notices {
            arrived: Vec::new(),
            tell_at: Instant::FAR_FUTURE,
            calm_until: now,
        }
    }

    fn add(&mut self, message: Arrived, calm: bool, at_once: bool, now: Instant) {
        let of_use = !calm || now >= self.calm_until;
        if !of_use || self.arrived.len() >= ARRIVED_MAX || self.arrived.contains(&message) {
            return;
        }
        if self.arrived.is_empty() {
            self.tell_at = now + ARRIVED_TOGETHER;
        }
        self.arrived.push(message);
        if at_once {
            self.tell_at = now;
        }
    }

    /// Schedules a notice with the caution, whether or not anything has arrived.
    fn tell(&mut self, calm: bool, now: Instant) {
        if !calm || now >= self.calm_until {
            self.tell_at = self.tell_at.min(now + ARRIVED_TOGETHER);
        }
    }

    fn take(&mut self, now: Instant) -> Vec<Arrived> {
        self.tell_at = Instant::FAR_FUTURE;
        self.calm_until = now + TELL_CALM_EVERY;
        std::mem::take(&mut self.arrived)
    }

    /// Returns when to call [`Robot::tell_arrived`].
    pub fn next_deadline(&self) -> Instant {
        self.tell_at
    }
}

impl Robot {
    /// Adds a control flow of this robot, with its `period` if the publisher declares one. Returns `None` once there
    /// are [`super::FLOWS_MAX`].
    pub fn add_flow(&mut self, period: Option<Duration>) -> Option<FlowId> {
        let free = self.flows.iter().position(|flow| !flow.taken)?;
        // The planner has room for every flow of every robot.
        self.local.add_flow(free as u8, period).then_some(())?;
        self.flows[free] = OwnFlow {
            taken: true,
            period,
            ..OwnFlow::default()
        };
        Some(FlowId(free as u32))
    }

    /// Adds a flow like [`Robot::add_flow`], for programs that know nothing about Coorp. Only this robot keeps windows
    /// for it: others never hear its messages, and could not know when to end their windows. The flow has no part in
    /// the team's control loop.
    ///
    /// Returns `None` once there are so many that this robot's own topics would find no place.
    pub fn add_foreign_flow(&mut self) -> Option<FlowId> {
        let foreign = self.flows.iter().filter(|flow| flow.taken && flow.foreign).count();
        if foreign >= FOREIGN_FLOWS_MAX {
            return None;
        }
        let added = self.add_flow(None)?;
        self.flows[added.0 as usize].foreign = true;
        Some(added)
    }

    /// Returns whether a flow belongs to programs that know nothing about Coorp.
    fn is_foreign(&self, flow: u8) -> bool {
        self.flows.get(usize::from(flow)).is_some_and(|own| own.foreign)
    }

    /// Sets the age at which messages of a control flow of this robot are late; `None` for no bound. With bounds, the
    /// leader learns whether bulk makes messages late, and bulk is held back only as much as necessary.
    pub fn set_bound(&mut self, flow: FlowId, bound: Option<Duration>) {
        if let Some(own) = self.flows.get_mut(flow.0 as usize) {
            own.bound = bound;
        }
    }

    /// Removes a control flow of this robot.
    pub fn remove_flow(&mut self, flow: FlowId) {
        let Some(own) = self.flows.get_mut(flow.0 as usize) else {
            return;
        };
        own.taken = false;
        let flow = flow.0 as u8;
        self.local.remove(FlowKey::Own(flow));
        if let Some(ends) = self.local.ends_mut() {
            ends.set_start((self.me, flow), false);
        }
        self.gather();
    }

    /// Handles a control message that this robot makes. Returns the stamp to send with it.
    pub fn on_control(&mut self, flow: FlowId, now: Instant) -> Stamp {
        let flow = flow.0 as u8;
        self.journal.scope.made(flow, now);
        let put_off = self.is_put_off(flow, now);
        self.local.on_message(flow, put_off, now);
        if self.is_foreign(flow) {
            // The message is neither a perception nor a command.
        } else if self.leader(now) == Some(self.me) {
            self.commands_waiting = self.commands_waiting.saturating_add(1);
            if let Some(lead) = &mut self.lead {
                lead.on_commanded(now);
            }
        } else if self.begins_loops(flow) {
            self.loop_began = Some(now);
            self.see_start((self.me, flow), now, now);
        }
        self.gather();
        let clock = self.team_clock(now);
        Stamp {
            flow,
            made_at: clock.map(|(clock, offset)| (clock, offset.theirs(now))),
            last_loop: self.last_loop,
            bound: self.flows.get(usize::from(flow)).and_then(|own| own.bound),
        }
    }

    /// Returns whether a message that is made now had to wait for the end of a late loop, because the command has only
    /// just arrived. If many consecutive messages look so, this is usual for the flow.
    fn is_put_off(&mut self, flow: u8, now: Instant) -> bool {
        let begins_loops = self.begins_loops(flow);
        let just_ended = self.loop_ended.is_some_and(|at| now.since(at) <= PUT_OFF_BY);
        let Some(own) = self.flows.get_mut(usize::from(flow)) else {
            return false;
        };
        let put_off = begins_loops && just_ended && own.put_off < PUT_OFF_MAX;
        own.put_off = if put_off { own.put_off + 1 } else { 0 };
        put_off
    }

    /// Records that a control message of this robot has left its WNIC, delivered or given up.
    pub fn on_control_left(&mut self, flow: FlowId, now: Instant) {
        self.journal.scope.left(flow.0 as u8, now);
        self.local.on_message_sent(flow.0 as u8, now);
        if self.commands_waiting > 0 && !self.is_foreign(flow.0 as u8) {
            self.commands_waiting -= 1;
            if self.commands_waiting == 0 {
                self.end_loop(now, now);
            }
        }
        self.gather();
    }

    /// Returns whether `robot` ends windows when it hears this robot's control, its own windows or others' by reporting
    /// to them.
    pub fn ends_windows(&self, robot: RobotId, now: Instant) -> bool {
        self.leader(now) == Some(robot) || self.holders().any(|holder| holder == robot)
    }

    /// Handles a control message that arrived. A message from the leader is a command, and its loop is over. The leader
    /// soon reports arrivals to the robots that may send bulk, because they do not hear them.
    pub fn on_arrived(&mut self, from: RobotId, stamp: Stamp, now: Instant) {
        let made_at = stamp
            .made_at
            .and_then(|(clock, at)| Some(self.clock(clock, now)?.ours(at)));
        if let (Some(made_at), Some(bound)) = (made_at, stamp.bound) {
            self.judge_message(now.since(made_at) > bound, now);
        }
        let (flow, age_us) = (stamp.flow, made_at.map(|made_at| micros(now.since(made_at))));
        self.journal.scope.note(now, Seen::Arrived { from, flow, age_us });
        let made_at = made_at.unwrap_or(now).min(now);
        let message = Arrived {
            robot: from,
            flow: stamp.flow,
            made_at,
        };
        let leader = self.leader(now);
        if leader == Some(from) {
            if let Some(began) = self.loop_began.take() {
                (self.last_loop, self.loop_ended) = (Some(now.since(began)), Some(now));
                let took_us = micros(now.since(began));
                self.journal.scope.note(now, Seen::Loop { took_us });
            }
        } else if leader == Some(self.me) {
            self.judge_loop(message, stamp.last_loop, now);
        }
        self.see_start((from, message.flow), made_at, now);
        self.release([message], now);
        if leader == Some(from) {
            if let Some(ends) = self.local.ends_mut() {
                ends.on_took(now.since(made_at));
            }
            self.end_loop(made_at, now);
        } else if leader == Some(self.me) && self.holders().any(|holder| holder != self.me) {
            let told = self.local.policy().is_some_and(|policy| policy.early_release);
            if told {
                let calm = self.local.caution().is_calm();
                let at_once = !calm && self.local.is_nothing_due(now);
                self.notices.add(message, calm, at_once, now);
            }
        }
        self.gather();
    }

    /// Judges a message with a bound that arrived here.
    fn judge_message(&mut self, late: bool, now: Instant) {
        if !self.local.shares() {
            return;
        }
        if self.leader(now) == Some(self.me) {
            self.on_judged(Judged::of(late), now);
        } else {
            self.judge.on_message(late, now);
        }
    }

    /// Adjusts the caution, on the leader, for messages with a bound that arrived anywhere.
    fn on_judged(&mut self, judged: Judged, now: Instant) {
        let bulk = self.is_bulk_around();
        let lead = self.lead.as_mut();
        if let Some(caution) = lead.and_then(|lead| lead.on_judged(judged, bulk, now)) {
            self.set_caution(caution);
        }
    }

    /// Handles, on the leader, another robot's report on messages with a bound that arrived there. The robots that may
    /// send bulk may not hear those messages, so the leader sends them the caution.
    pub(super) fn on_judged_elsewhere(&mut self, judged: Judged, now: Instant) {
        self.on_judged(judged, now);
        if self.holders().any(|holder| holder != self.me) {
            self.notices.tell(self.local.caution().is_calm(), now);
        }
    }

    /// Reports to the leader how many messages with a bound arrived here in time, once that is due and there is a
    /// leader.
    pub(super) fn tell_judged(&mut self, now: Instant) {
        let Some(leader) = self.leader(now) else {
            return self.judge.put_off(now);
        };
        let Some(judged) = self.judge.take(now) else { return };
        if leader == self.me {
            return self.on_judged_elsewhere(judged, now);
        }
        let route = Route::Path(self.peers.best(leader, now));
        let message = Message::Judged(judged);
        self.actions.push_back(Action::Send(leader, route, message));
    }

    /// Returns whether this robot wants to send bulk or, on the leader, another one may.
    fn is_bulk_around(&self) -> bool {
        self.wants_bulk || self.holders().next().is_some()
    }

    fn judge_loop(&mut self, message: Arrived, last_loop: Option<Duration>, now: Instant) {
        let bulk = self.is_bulk_around();
        let Some(lead) = &mut self.lead else { return };
        let flow = (message.robot, message.flow);
        let caution = lead.on_arrived(flow, message.made_at, last_loop, bulk, now);
        if let (Some(took), Some(ends)) = (lead.take_commands_took(), self.local.ends_mut()) {
            ends.on_took(took);
        }
        if let Some(caution) = caution {
            self.set_caution(caution);
        }
    }

    /// Sets whether some control belongs to programs that know nothing about Coorp. No one reports when it is late, so
    /// then this robot reads completion times at least at the highest percentile.
    pub fn set_protects(&mut self, protects: bool) {
        self.protects = protects;
        self.repeats.set_protects(protects);
        self.set_caution(self.caution);
    }

    pub(super) fn set_caution(&mut self, caution: Caution) {
        self.caution = caution;
        let level = caution.level();
        let caution = if self.protects {
            caution.at_level(level.max(Caution::UNJUDGED))
        } else {
            caution
        };
        self.local.set_caution(caution, &mut self.journal);
    }

    /// Ends the wait of windows for control that has arrived.
    fn release(&mut self, messages: impl IntoIterator<Item = Arrived>, now: Instant) {
        if self.is_bulk_around() {
            self.local.plan(now, &mut self.journal);
            self.local.hear(messages, now);
        }
    }

    fn begins_loops(&self, flow: u8) -> bool {
        self.local.ends().is_some_and(|ends| ends.starts((self.me, flow)))
    }

    /// Notes that a control message of any robot was made at `made_at`, which may begin a loop.
    fn see_start(&mut self, flow: (RobotId, u8), made_at: Instant, now: Instant) {
        let changes = self.local.ends_mut().is_some_and(|ends| ends.on_message(flow, made_at));
        if !changes {
            return;
        }
        // Commands of earlier loops whose departure is never reported must not count forever.
        self.commands_waiting = 0;
        if self.wants_bulk {
            self.local.plan_end(now);
        }
    }

    /// Ends the loop whose commands, made at `made_at`, are out.
    fn end_loop(&mut self, made_at: Instant, now: Instant) {
        if self.local.ends_mut().is_some_and(|ends| ends.on_commands(made_at)) {
            self.local.end_loop(now);
        }
    }

    /// Reports arrivals, on the leader, to the robots that may send bulk.
    pub(super) fn tell_arrived(&mut self, now: Instant) {
        let messages = self.notices.take(now);
        let caution = level_to_wire(&self.caution);
        let holders: Vec<RobotId> = self.holders().filter(|holder| *holder != self.me).collect();
        for holder in holders {
            let route = Route::Path(self.peers.best(holder, now));
            let message = Message::Arrived {
                clock: self.clock,
                messages: messages.clone(),
                caution,
            };
            self.actions.push_back(Action::Send(holder, route, message));
        }
    }

    /// Handles the leader's notice of arrivals, with times on its clock, and of the caution.
    pub(super) fn on_notice(&mut self, messages: &[Arrived], caution: u8, offset: Offset, now: Instant) {
        self.caution_told_at = now;
        self.set_caution(self.caution.at_level(level_from_wire(caution)));
        let messages = messages.iter().take(ARRIVED_MAX).map(|message| Arrived {
            made_at: offset.ours(message.made_at),
            ..*message
        });
        let messages: Vec<Arrived> = messages.collect();
        for message in &messages {
            self.see_start((message.robot, message.flow), message.made_at.min(now), now);
        }
        self.release(messages, now);
    }

    /// Ends calm if this robot neither judges loops nor hears about them although it may send bulk, which may be doing
    /// harm unseen.
    pub(super) fn look_whether_calm(&mut self, now: Instant) {
        let caution = self.caution;
        let blind = if self.leader(now) == Some(self.me) {
            self.lead.as_mut().and_then(|lead| lead.look(now))
        } else {
            let unheard = self.is_permitted(now) && now.since(self.caution_told_at) >= BLIND_AFTER;
            (unheard && caution.is_calm()).then(|| caution.at_level(0.0))
        };
        if let Some(caution) = blind {
            self.set_caution(caution);
        }
    }
}
