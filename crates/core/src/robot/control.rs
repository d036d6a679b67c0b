//! What follows from a control message: for this robot's windows, for its loops, and for the robots that may send bulk.
//!
//! A robot's own messages are the samples of its arrival models. Those of others end the windows kept for them: windows end
//! early as in decision 5, as the leader hears all control and tells the robots that may send bulk what has arrived, with how
//! careful to be. A command from the leader ends its loop; how long that took goes back with the next message
//! ([`Stamp::last_loop`]), and the leader judges it ([`super::lead`]).
//!
//! Messages with a bound are judged where they arrive ([`super::judge`]), and the leader is told.
//!
//! Left out: telling of messages to robots other than the leader, whose windows last their time; and sending control again
//! that the air lost, which a stock kernel does not tell.

use serde::{Deserialize, Serialize};

use crate::clock::Offset;
use crate::gate::Caution;
use crate::{Duration, FlowId, Instant, RobotId};

use super::flow::OwnFlow;
use super::lead::{level_from_wire, level_to_wire, BLIND_AFTER};
use super::{Action, Arrived, FlowKey, Judged, Message, Robot, Route, Stamp, ARRIVED_MAX};

/// Each notice is a frame on the air. So arrivals at the leader are told together: once no more are due, and after this time
/// in any case.
const ARRIVED_TOGETHER: Duration = Duration::from_micros(1_500);
/// A message that begins a loop was put off if it is made this soon after the command that ended the loop before; at most
/// so many in a row.
const PUT_OFF_BY: Duration = Duration::from_millis(1);
const PUT_OFF_MAX: u8 = 4;
/// While windows are off, what has arrived is of no use; a robot that has not heard that they are off soon does.
const TELL_CALM_EVERY: Duration = Duration::from_millis(500);

/// On the leader: what has arrived and was not yet told to the robots that may send bulk.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Notices {
    arrived: Vec<Arrived>,
    tell_at: Instant,
    /// While windows are off, what arrives before this is not told.
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

    /// Tells how careful to be, whether or not anything has arrived.
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

    /// When to call [`Robot::tell_arrived`].
    pub fn next_deadline(&self) -> Instant {
        self.tell_at
    }
}

impl Robot {
    /// Adds a control flow of this robot; `period` if its publisher declares one. Returns `None` once there are
    /// [`super::FLOWS_MAX`].
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

    /// As [`Robot::add_flow`], for a flow of programs that know nothing of Coorp. This robot alone keeps windows for it: others
    /// never hear its messages, and could not tell when to end theirs. It has no part in the team's control loop.
    pub fn add_foreign_flow(&mut self) -> Option<FlowId> {
        let added = self.add_flow(None)?;
        self.flows[added.0 as usize].foreign = true;
        Some(added)
    }

    /// Whether a flow is one of programs that know nothing of Coorp.
    fn is_foreign(&self, flow: u8) -> bool {
        self.flows.get(usize::from(flow)).is_some_and(|own| own.foreign)
    }

    /// Sets the age at which messages of a control flow of this robot are late; `None` for none. Given bounds, the leader
    /// learns whether bulk makes them late, and bulk is held back only as much as that calls for.
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

    /// This robot makes a control message. Returns what it tells with it.
    pub fn on_control(&mut self, flow: FlowId, now: Instant) -> Stamp {
        let flow = flow.0 as u8;
        let put_off = self.is_put_off(flow, now);
        self.local.on_message(flow, put_off, now);
        if self.is_foreign(flow) {
            // Neither a perception nor a command.
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

    /// Returns whether a message that is made now had to wait for the end of a late loop, as the command has only just come.
    /// If many in a row look so, they are the flow's usual ones.
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

    /// A control message of this robot has left its WNIC, delivered or given up.
    pub fn on_control_left(&mut self, flow: FlowId, now: Instant) {
        self.local.on_message_sent(flow.0 as u8, now);
        if self.commands_waiting > 0 && !self.is_foreign(flow.0 as u8) {
            self.commands_waiting -= 1;
            if self.commands_waiting == 0 {
                self.end_loop(now, now);
            }
        }
        self.gather();
    }

    /// Returns whether `robot` ends windows, its own or by telling others, when it hears this one's control.
    pub fn ends_windows(&self, robot: RobotId, now: Instant) -> bool {
        self.leader(now) == Some(robot) || self.holders().any(|holder| holder == robot)
    }

    /// A control message arrived. One from the leader is a command, whose loop is over. The leader soon tells the robots
    /// that may send bulk, as they do not hear it.
    pub fn on_arrived(&mut self, from: RobotId, stamp: Stamp, now: Instant) {
        let made_at = stamp
            .made_at
            .and_then(|(clock, at)| Some(self.clock(clock, now)?.ours(at)));
        if let (Some(made_at), Some(bound)) = (made_at, stamp.bound) {
            self.judge_message(now.since(made_at) > bound, now);
        }
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

    /// A message with a bound arrived here.
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

    /// On the leader: messages with a bound arrived somewhere.
    fn on_judged(&mut self, judged: Judged, now: Instant) {
        let bulk = self.is_bulk_around();
        let lead = self.lead.as_mut();
        if let Some(caution) = lead.and_then(|lead| lead.on_judged(judged, bulk, now)) {
            self.set_caution(caution);
        }
    }

    /// On the leader: another robot tells of the messages with a bound that arrived there. The robots that may send bulk
    /// need not hear those messages, so they are told how careful to be.
    pub(super) fn on_judged_elsewhere(&mut self, judged: Judged, now: Instant) {
        self.on_judged(judged, now);
        if self.holders().any(|holder| holder != self.me) {
            self.notices.tell(self.local.caution().is_calm(), now);
        }
    }

    /// Tells the leader which messages with a bound arrived here in time, once that is due and there is a leader.
    pub(super) fn tell_judged(&mut self, now: Instant) {
        let Some(leader) = self.leader(now) else {
            return self.judge.put_off(now);
        };
        let Some(judged) = self.judge.take(now) else { return };
        if leader == self.me {
            return self.on_judged_elsewhere(judged, now);
        }
        let route = Route::Path(self.peers.bulk_path(leader, now));
        let message = Message::Judged(judged);
        self.actions.push_back(Action::Send(leader, route, message));
    }

    /// This robot wants to send bulk or, on the leader, another one may.
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

    /// From now on, or no longer, some control is that of programs that know nothing of Coorp. Nobody tells when it is late, so
    /// this robot is never calm.
    pub fn set_protects(&mut self, protects: bool) {
        self.protects = protects;
        self.set_caution(self.local.caution());
    }

    pub(super) fn set_caution(&mut self, caution: Caution) {
        let caution = if self.protects && caution.level() < 0.0 {
            caution.at_level(0.0)
        } else {
            caution
        };
        self.local.set_caution(caution, &mut self.journal);
    }

    /// Control has arrived: its window need not wait for it.
    fn release(&mut self, messages: impl IntoIterator<Item = Arrived>, now: Instant) {
        if self.is_bulk_around() {
            self.local.plan(now, &mut self.journal);
            self.local.hear(messages, now);
        }
    }

    fn begins_loops(&self, flow: u8) -> bool {
        self.local.ends().is_some_and(|ends| ends.starts((self.me, flow)))
    }

    /// A control message of any robot was made at `made_at`, which may begin a loop.
    fn see_start(&mut self, flow: (RobotId, u8), made_at: Instant, now: Instant) {
        let changes = self.local.ends_mut().is_some_and(|ends| ends.on_message(flow, made_at));
        if !changes {
            return;
        }
        // Commands of earlier loops whose departure nobody tells of do not count for ever.
        self.commands_waiting = 0;
        if self.wants_bulk {
            self.local.plan_end(now);
        }
    }

    /// The commands made at `made_at` are out.
    fn end_loop(&mut self, made_at: Instant, now: Instant) {
        if self.local.ends_mut().is_some_and(|ends| ends.on_commands(made_at)) {
            self.local.end_loop(now);
        }
    }

    /// On the leader: tells the robots that may send bulk what has arrived.
    pub(super) fn tell_arrived(&mut self, now: Instant) {
        let messages = self.notices.take(now);
        let caution = level_to_wire(&self.local.caution());
        let holders: Vec<RobotId> = self.holders().filter(|holder| *holder != self.me).collect();
        for holder in holders {
            let route = Route::Path(self.peers.bulk_path(holder, now));
            let message = Message::Arrived {
                clock: self.clock,
                messages: messages.clone(),
                caution,
            };
            self.actions.push_back(Action::Send(holder, route, message));
        }
    }

    /// The leader tells what has arrived, on its clock, and how careful to be.
    pub(super) fn on_notice(&mut self, messages: &[Arrived], caution: u8, offset: Offset, now: Instant) {
        self.caution_told_at = now;
        self.set_caution(self.local.caution().at_level(level_from_wire(caution)));
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

    /// Gives up being calm where this robot neither judges loops nor hears of them although it may send bulk, which may be
    /// doing harm unseen.
    pub(super) fn look_whether_calm(&mut self, now: Instant) {
        let caution = self.local.caution();
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
