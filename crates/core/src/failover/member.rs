//! Decides the election: to whom this robot promises its vote, whom it follows, and whether it leads.

use super::{Action, Epoch, FailoverConfig, Message};
use crate::{Instant, RobotId};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// After each failed attempt, a robot waits one more stagger, up to this many.
const PATIENCE_MAX: u64 = 4;

/// Robots that do not vote hear one beat in this many, and miss a leader only after this many leases.
const UNHEARD: u32 = 4;

/// A promise that this robot gave, also to itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Bond {
    epoch: Epoch,
    until: Instant,
}

/// This robot's own leadership, or attempt at it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Claim {
    epoch: Epoch,
    /// By seat, the time at which this robot sent the message that the voter's newest promise answers.
    given: Vec<Option<Instant>>,
    /// When to send the next beat or ask.
    send_at: Instant,
    /// The number of beats or asks sent.
    sent: u32,
    /// The time until which a quorum's promises are certainly running.
    lease_until: Instant,
    /// The time at which an attempt is given up.
    ends_at: Instant,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
enum Role {
    Follower,
    Candidate(Claim),
    Leader(Claim),
}

/// One robot's part in electing.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct Member {
    config: FailoverConfig,
    me: RobotId,
    incarnation: u32,
    /// This robot's place among the voters.
    seat: Option<usize>,
    clock: Instant,
    /// The time before which this robot promises nothing, because promises of an earlier start may still be running.
    wake_at: Instant,
    bond: Option<Bond>,
    /// The newest epoch that this robot promised to on an ask.
    voted: Option<Epoch>,
    /// The newest leadership that this robot has heard of. Everything older is ignored.
    fence: Option<Epoch>,
    /// When the leader of `fence` was last heard.
    heard_at: Instant,
    /// The greatest round that other robots mentioned.
    round_seen: u64,
    role: Role,
    ask_at: Instant,
    failures: u64,
    outbox: VecDeque<Action>,
}

impl Member {
    /// A limit above the number of actions that one call can cause.
    const OUTBOX_MAX: usize = 32;

    pub fn new(config: FailoverConfig, me: RobotId, incarnation: u32, now: Instant) -> Self {
        let seat = config.seat(me);
        let mut member = Member {
            config,
            me,
            incarnation,
            seat,
            clock: now,
            wake_at: now,
            bond: None,
            voted: None,
            fence: None,
            heard_at: now,
            round_seen: 0,
            role: Role::Follower,
            ask_at: now,
            failures: 0,
            outbox: VecDeque::new(),
        };
        member.wake_up_later(now);
        member
    }

    /// Returns the leadership that this robot follows or holds: the newest one it knows.
    pub fn epoch(&self) -> Option<Epoch> {
        self.fence
    }

    /// Returns the leadership that this robot holds at `now`.
    pub fn leads(&self, now: Instant) -> Option<Epoch> {
        match &self.role {
            Role::Leader(claim) if now < claim.lease_until => Some(claim.epoch),
            _ => None,
        }
    }

    /// Returns whether the leader of [`Member::epoch`] was heard within the lease.
    pub fn hears(&self, now: Instant) -> bool {
        let leases = if self.seat.is_some() { 1 } else { u64::from(UNHEARD) };
        self.leads(now).is_some() || (self.fence.is_some() && now < self.heard_at + self.config.lease * leases)
    }

    pub fn poll(&mut self) -> Option<Action> {
        self.outbox.pop_front()
    }

    pub fn next_deadline(&self) -> Option<Instant> {
        match &self.role {
            Role::Follower => self.seat.map(|_| self.ask_at),
            Role::Candidate(claim) => Some(claim.send_at.min(claim.ends_at)),
            Role::Leader(claim) => Some(claim.send_at.min(claim.lease_until)),
        }
    }

    /// Ends everything that has expired. Call it before anything else is done at `now`.
    pub fn advance(&mut self, now: Instant) {
        if now < self.clock {
            // No monotonic clock does that. Promises given and counted are meaningless now: behave as after a start.
            self.drop_claim(now);
            self.bond = None;
            self.heard_at = now - self.config.lease;
            self.wake_up_later(now);
        }
        self.clock = now;
        if matches!(&self.role, Role::Leader(claim) if now >= claim.lease_until) {
            self.drop_claim(now);
            self.ask_later(now);
        }
    }

    pub fn on_deadline(&mut self, now: Instant) {
        self.advance(now);
        let retry = self.config.retry();
        match &mut self.role {
            Role::Follower => {
                if self.seat.is_some() && now >= self.ask_at {
                    match &self.bond {
                        Some(bond) if now < bond.until => self.ask_later(bond.until),
                        _ => self.ask(now),
                    }
                }
            }
            Role::Candidate(claim) if now >= claim.ends_at => {
                self.failures = (self.failures + 1).min(PATIENCE_MAX);
                self.drop_claim(now);
                self.ask_later(now + self.config.stagger * self.failures);
            }
            Role::Candidate(claim) if now >= claim.send_at => {
                claim.send_at = now + retry;
                let message = Message::Ask {
                    epoch: claim.epoch,
                    sent_at: now,
                };
                self.claim_again(message, now);
            }
            Role::Leader(claim) if now >= claim.send_at => {
                claim.send_at = now + self.config.beat;
                let message = Message::Beat {
                    epoch: claim.epoch,
                    sent_at: now,
                };
                self.claim_again(message, now);
            }
            Role::Candidate(_) | Role::Leader(_) => {}
        }
        self.assert_invariants(now);
    }

    pub fn on_message(&mut self, from: RobotId, message: Message, now: Instant) {
        self.advance(now);
        match message {
            // A robot speaks only for itself: anything else is forged or garbled.
            Message::Beat { epoch, .. } | Message::Ask { epoch, .. } | Message::Resign { epoch }
                if epoch.robot != from || from == self.me => {}
            Message::Beat { epoch, sent_at } => self.on_beat(epoch, sent_at, now),
            Message::Ask { epoch, sent_at } => self.on_ask(epoch, sent_at, now),
            Message::Promise { epoch, echo } => self.on_promise(from, epoch, echo, now),
            Message::Deny { epoch, elected } => self.on_newer(epoch, elected, now),
            Message::Resign { epoch } => self.on_resign(epoch, now),
            Message::Permit { .. } => {}
        }
        self.assert_invariants(now);
    }

    /// Records that another robot knows of `epoch`. If that is newer than this robot's own, its own is useless.
    pub fn on_newer(&mut self, epoch: Epoch, elected: bool, now: Instant) {
        self.round_seen = self.round_seen.max(epoch.round);
        match &self.role {
            Role::Leader(claim) if elected && claim.epoch < epoch => {
                self.drop_claim(now);
                self.ask_at = now;
            }
            // The voters that already promised may do so again: the same robot asks.
            Role::Candidate(claim) if claim.epoch.round <= epoch.round && claim.epoch != epoch => self.ask(now),
            _ => {}
        }
    }

    /// Stops leading, and announces it.
    pub fn resign(&mut self, now: Instant) {
        self.advance(now);
        self.drop_claim(now);
        // The other robots should take over, not this one.
        self.ask_at = now + self.config.lease + self.config.stagger * self.config.voters.len() as u64;
    }

    fn on_beat(&mut self, epoch: Epoch, sent_at: Instant, now: Instant) {
        if let Some(fence) = self.fence.filter(|fence| epoch < *fence) {
            return self.deny(epoch.robot, fence);
        }
        // The sender was elected, so whatever this robot attempts is over, or nearly so. A running promise is kept all
        // the same.
        self.drop_claim(now);
        self.heard_at = now;
        self.failures = 0;
        if self.fence != Some(epoch) {
            self.fence = Some(epoch);
            self.push(Action::Follows(epoch));
        }
        self.ask_later(now + self.config.lease);
        if self.is_free_for(epoch, now) {
            self.promise(epoch, sent_at, now);
        }
    }

    fn on_ask(&mut self, epoch: Epoch, sent_at: Instant, now: Instant) {
        let (Some(seat), Some(other)) = (self.seat, self.config.seat(epoch.robot)) else {
            return;
        };
        // Two attempts of one round deny each other, and would do so in each later round. The one nearer to the front
        // continues.
        let tied = matches!(&self.role, Role::Candidate(claim) if claim.epoch.round == epoch.round);
        if other < seat && tied {
            self.drop_claim(now);
            self.ask_later(now + self.config.stagger);
        }
        let newest = self.voted.max(self.fence);
        if let Some(newest) = newest.filter(|n| epoch.round <= n.round && epoch != *n) {
            return self.deny(epoch.robot, newest);
        }
        // If two robots ask at once, the one nearer to the front continues. All robots agree on that.
        if other < seat && matches!(self.role, Role::Candidate(_)) {
            self.drop_claim(now);
        }
        if self.is_free_for(epoch, now) {
            self.drop_claim(now);
            self.voted = Some(epoch);
            self.promise(epoch, sent_at, now);
            self.ask_later(now + self.config.lease);
        }
    }

    fn on_promise(&mut self, from: RobotId, epoch: Epoch, echo: Instant, now: Instant) {
        let Some(seat) = self.config.seat(from) else { return };
        let (Role::Candidate(claim) | Role::Leader(claim)) = &mut self.role else {
            return;
        };
        // Nothing can have been sent later than now.
        if claim.epoch == epoch && echo <= now && from != self.me {
            let given = &mut claim.given[seat];
            *given = (*given).max(Some(echo));
            self.count(now);
        }
    }

    fn on_resign(&mut self, epoch: Epoch, now: Instant) {
        // An older resignation of the same robot says nothing about a later promise.
        if self.bond.as_ref().is_some_and(|bond| bond.epoch == epoch) {
            self.bond = None;
            self.ask_later(now);
        }
    }

    fn ask(&mut self, now: Instant) {
        let Some(seat) = self.seat else { return };
        let newest = self.voted.max(self.fence).map_or(0, |epoch| epoch.round);
        let epoch = Epoch {
            round: newest.max(self.round_seen).saturating_add(1),
            robot: self.me,
            incarnation: self.incarnation,
        };
        self.voted = Some(epoch);
        let mut given = vec![None; self.config.voters.len()];
        given[seat] = Some(now);
        self.role = Role::Candidate(Claim {
            epoch,
            given,
            send_at: now + self.config.retry(),
            sent: 0,
            lease_until: now,
            ends_at: now + self.config.lease,
        });
        self.claim_again(Message::Ask { epoch, sent_at: now }, now);
    }

    /// Sends a beat or an ask, and with it renews this robot's promise to itself.
    fn claim_again(&mut self, message: Message, now: Instant) {
        let until = now + self.config.lease;
        let (Role::Candidate(claim) | Role::Leader(claim)) = &mut self.role else {
            return;
        };
        self.bond = Some(Bond {
            epoch: claim.epoch,
            until,
        });
        let claim_sent = claim.sent;
        claim.sent = claim.sent.wrapping_add(1);
        if let Some(own) = self.seat.and_then(|seat| claim.given.get_mut(seat)) {
            *own = Some(now);
        }
        let to_all = matches!(message, Message::Ask { .. }) || claim_sent % UNHEARD == 0;
        if to_all {
            self.push(Action::Broadcast(message));
        } else {
            for voter in self.config.voters.clone() {
                if voter != self.me {
                    self.send(voter, message);
                }
            }
        }
        self.count(now);
    }

    /// Computes how long the promises of a quorum run. An attempt that has a quorum at `now` becomes a leadership.
    fn count(&mut self, now: Instant) {
        let total: usize = (0..self.config.voters.len()).map(FailoverConfig::votes).sum();
        let counted = self.config.shortened(self.config.lease);
        let (Role::Candidate(claim) | Role::Leader(claim)) = &mut self.role else {
            return;
        };
        let mut newest_first: Vec<(Instant, usize)> = (claim.given.iter().enumerate())
            .filter_map(|(seat, given)| given.map(|given| (given, FailoverConfig::votes(seat))))
            .collect();
        newest_first.sort_unstable_by(|a, b| b.cmp(a));
        let mut votes = 0;
        for (given, weight) in newest_first {
            votes += weight;
            if votes * 2 > total {
                claim.lease_until = given + counted;
                break;
            }
        }
        if let Role::Candidate(claim) = &self.role {
            if now < claim.lease_until && now < claim.ends_at {
                let epoch = claim.epoch;
                self.role = Role::Leader(Claim {
                    send_at: now + self.config.beat,
                    sent: 0,
                    ..claim.clone()
                });
                self.fence = Some(epoch);
                self.failures = 0;
                self.push(Action::Leads(epoch));
                self.claim_again(Message::Beat { epoch, sent_at: now }, now);
            }
        }
    }

    /// Stops relying on promises. Tells the voters, and frees this robot itself.
    fn drop_claim(&mut self, now: Instant) {
        let epoch = match &self.role {
            Role::Follower => return,
            Role::Candidate(claim) => claim.epoch,
            Role::Leader(claim) => {
                let epoch = claim.epoch;
                self.heard_at = now - self.config.lease;
                self.push(Action::Deposed(epoch));
                epoch
            }
        };
        self.role = Role::Follower;
        if self.bond.as_ref().is_some_and(|bond| bond.epoch == epoch) {
            self.bond = None;
        }
        self.push(Action::Broadcast(Message::Resign { epoch }));
    }

    /// Returns whether no promise to another robot is running, and none to a newer attempt of the same robot. A late beat
    /// of its older leadership must not replace that one: the late resignation that ends the older would end both.
    fn is_free_for(&self, epoch: Epoch, now: Instant) -> bool {
        let bound = |bond: &Bond| now < bond.until && (bond.epoch.robot != epoch.robot || epoch < bond.epoch);
        self.seat.is_some() && now >= self.wake_at && !self.bond.as_ref().is_some_and(bound)
    }

    fn promise(&mut self, epoch: Epoch, echo: Instant, now: Instant) {
        self.bond = Some(Bond {
            epoch,
            until: now + self.config.lease,
        });
        self.send(epoch.robot, Message::Promise { epoch, echo });
    }

    pub fn deny(&mut self, to: RobotId, epoch: Epoch) {
        let elected = self.fence == Some(epoch);
        self.send(to, Message::Deny { epoch, elected });
    }

    fn wake_up_later(&mut self, now: Instant) {
        self.wake_at = now + self.config.lease;
        self.ask_later(self.wake_at);
    }

    /// Asks at `start` if this robot is next in the order, and later by its distance otherwise.
    fn ask_later(&mut self, start: Instant) {
        if let Some(seat) = self.seat {
            let rank = self.config.rank(seat, self.fence.map(|fence| fence.robot));
            self.ask_at = start.max(self.wake_at) + self.config.stagger * rank;
        }
    }

    fn send(&mut self, to: RobotId, message: Message) {
        self.push(Action::Send { to, message });
    }

    fn push(&mut self, action: Action) {
        if self.outbox.len() >= Self::OUTBOX_MAX {
            self.outbox.pop_front();
        }
        self.outbox.push_back(action);
    }

    #[cfg(test)]
    pub fn forget_the_past(&mut self, now: Instant) {
        self.clock = now;
        self.heard_at = Instant::ZERO;
    }

    fn assert_invariants(&self, now: Instant) {
        if let Role::Candidate(claim) | Role::Leader(claim) = &self.role {
            // A robot that relies on promises has promised itself, and no other robot since.
            let own = self.bond.as_ref().is_some_and(|bond| bond.epoch == claim.epoch);
            assert!(own, "claims to lead while promised to another");
            assert!(
                claim.lease_until <= now + self.config.lease,
                "counts a promise for too long"
            );
        }
    }
}
