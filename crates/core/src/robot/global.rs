//! Global preemption: decides whether this robot may send bulk at all, and how the messages about that go out (Deng
//! 2022, algorithm 1).
//!
//! [`crate::failover`] and [`crate::permits`] decide. This module passes events to their [`Coordinator`], and sends its
//! messages with control or separately ([`super::riders`]). A robot without permits may always send, and its leader is
//! the one in the team file.
//!
//! Left out: proof that a robot has ended. A broken link is no proof; the driver has to know.

use crate::failover::{self, Coordinator};
use crate::permits;
use crate::{Instant, RobotId};

use super::{Action, Event, Led, Message, Robot, Route};

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

impl Robot {
    /// Sets whether bulk waits to be sent.
    pub fn want_bulk(&mut self, wants: bool, now: Instant) {
        self.wants_bulk = wants;
        if !wants {
            self.repeats.drop_requests();
        }
        self.coordinate(now, |coordinator| {
            if wants {
                coordinator.want(now);
            } else {
                coordinator.done(now);
            }
        });
    }

    /// Records that a robot's process had certainly ended at some time after `since`. A permit that it held then is
    /// free.
    pub fn on_dead(&mut self, robot: RobotId, since: Instant, now: Instant) {
        self.coordinate(now, |coordinator| coordinator.on_gone(robot, since, now));
    }

    /// Prepares an orderly stop of this robot.
    pub fn resign(&mut self, now: Instant) {
        self.coordinate(now, |coordinator| coordinator.resign(now));
    }

    fn coordinate(&mut self, now: Instant, what: impl FnOnce(&mut Coordinator)) {
        if let Some(coordinator) = &mut self.coordinator {
            what(coordinator);
        }
        self.gather_words(now);
    }

    /// Returns the leader, if one is known.
    pub fn leader(&self, now: Instant) -> Option<RobotId> {
        match &self.coordinator {
            Some(coordinator) => coordinator.leader(now),
            None => Some(self.leader),
        }
    }

    /// Returns the state of this robot's permit.
    pub fn permit(&self, now: Instant) -> PermitState {
        match &self.coordinator {
            None => PermitState::NotNeeded,
            Some(coordinator) if coordinator.may_send(now) => PermitState::Holding,
            Some(_) if self.wants_bulk => PermitState::Waiting,
            Some(_) => PermitState::Idle,
        }
    }

    /// Returns whether permits allow bulk to be sent.
    pub fn is_permitted(&self, now: Instant) -> bool {
        let coordinator = self.coordinator.as_ref();
        coordinator.is_none_or(|coordinator| coordinator.may_send(now))
    }

    /// Returns, on the leader, the robots that hold permits and those that wait for one.
    pub fn granted(&self) -> (Vec<RobotId>, Vec<RobotId>) {
        let queue = self.coordinator.iter().flat_map(Coordinator::queue);
        (self.holders().collect(), queue.collect())
    }

    /// Returns, on the leader, the robots that hold permits.
    pub(super) fn holders(&self) -> impl Iterator<Item = RobotId> + '_ {
        self.coordinator.iter().flat_map(Coordinator::holders)
    }

    pub(super) fn on_coordination(&mut self, from: RobotId, message: failover::Message, now: Instant) {
        self.gather_words(now);
        self.journal.said(from, self.me, &message);
        let before = self.actions.len();
        self.coordinate(now, |coordinator| coordinator.on_message(from, message, now));
        let failover::Message::Permit {
            message: permits::Message::Grant { token, .. },
            ..
        } = message
        else {
            return;
        };
        // A useless grant is given back, or was made under a leadership that is over.
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

    /// Collects the actions of all parts, including the coordinator.
    pub(super) fn gather_words(&mut self, now: Instant) {
        self.gather();
        while let Some(action) = self.coordinator.as_mut().and_then(Coordinator::poll) {
            self.note(&action);
            match action {
                failover::Action::Send { to, message } => self.say(to, message, now),
                failover::Action::Broadcast(message) => self.say_to_all(message, now),
                failover::Action::Started => {
                    // The leader sends the caution only to holders, so this robot has heard nothing since its last
                    // permit.
                    self.caution_told_at = now;
                    self.turns.restart(now);
                    self.actions.push_back(Action::Permitted(true));
                }
                failover::Action::Stopped => self.actions.push_back(Action::Permitted(false)),
                failover::Action::Leads(epoch) => self.actions.push_back(Action::Led(epoch.robot)),
                failover::Action::Follows(epoch) => {
                    self.clocks.ask_anew();
                    self.tell_models_again();
                    self.actions.push_back(Action::Led(epoch.robot));
                }
                failover::Action::Deposed(_) => {}
            }
        }
        let due = self.coordinator.as_ref().and_then(Coordinator::next_deadline);
        self.coordinator_due = due.unwrap_or(Instant::FAR_FUTURE);
    }

    fn say(&mut self, to: RobotId, word: failover::Message, now: Instant) {
        if self.say_alone(to, word, now) {
            if let Some(word) = self.repeats.along(to, now) {
                self.repeat(to, word);
            }
        }
    }

    /// Returns whether the message goes at once.
    fn say_alone(&mut self, to: RobotId, word: failover::Message, now: Instant) -> bool {
        let Some(message) = self.riders.offer(to, word, now) else {
            self.journal.said(self.me, to, &word);
            return false;
        };
        if self.repeats.hold(to, word, now) {
            return false;
        }
        self.journal.said(self.me, to, &word);
        self.actions.push_back(Action::Send(to, Route::Any, message));
        true
    }

    /// Sends a repetition that has waited.
    pub(super) fn repeat(&mut self, to: RobotId, word: failover::Message) {
        self.journal.said(self.me, to, &word);
        let message = Message::Coordination(word);
        self.actions.push_back(Action::Send(to, Route::Any, message));
    }

    /// Sends a message to all other robots, in one broadcast if no copy goes with control.
    fn say_to_all(&mut self, word: failover::Message, now: Instant) {
        let (me, before, mut others) = (self.me, self.actions.len(), 0);
        for to in (0..self.robots).map(RobotId).filter(|to| *to != me) {
            self.say_alone(to, word, now);
            others += 1;
        }
        if self.actions.len() == before + others {
            self.actions.truncate(before);
            self.actions.push_back(Action::Broadcast(Message::Coordination(word)));
        }
    }

    fn note(&mut self, action: &failover::Action) {
        let journal = &mut self.journal;
        match action {
            // `say` notes what is sent.
            failover::Action::Send { .. } | failover::Action::Broadcast(_) => {}
            failover::Action::Started => journal.note(Event::Permitted(true)),
            failover::Action::Stopped => journal.note(Event::Permitted(false)),
            failover::Action::Leads(epoch) => journal.note(Event::Led(Led::Leads, *epoch)),
            failover::Action::Follows(epoch) => journal.note(Event::Led(Led::Follows, *epoch)),
            failover::Action::Deposed(epoch) => journal.note(Event::Led(Led::Deposed, *epoch)),
        }
    }
}
