//! The tracker's side: decides which robots are connected, and the newest state of each.

use super::{reply, Answer, Message, Stamps, StateHeader, TopicId, Topics, TrackerConfig, Updates};
use crate::paths::{Deduplicator, Delivery, Verdict};
use crate::starts::{Start, Starts};
use crate::{Duration, Instant, RobotId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The shortest period of lists, whatever the configuration says.
const PERIOD_MIN: Duration = Duration::from_micros(100);

/// An action for the tracker's owner. Actions must be taken in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrackerAction {
    /// Subscribe to this topic. Must happen before the acknowledgement that follows is sent.
    Open(TopicId),
    /// Unsubscribe: no robot publishes on this topic any more.
    Close(TopicId),
    /// Send this to one robot.
    Send {
        /// The receiver.
        to: RobotId,
        /// The message.
        message: Message,
    },
    /// A robot is connected, or connected again after a restart.
    Joined(RobotId),
    /// A robot is no longer connected.
    Left(RobotId),
    /// A period is over: call [`Tracker::gather`].
    List,
}

/// One robot's entry on a list.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Entry<'a, T> {
    /// The robot.
    pub robot: RobotId,
    /// The newest state.
    pub state: &'a T,
    /// T1 to T3.
    pub stamps: Stamps,
    /// Whether the state arrived since the last list.
    pub fresh: bool,
}

#[derive(Clone, Debug)]
struct Newest<T> {
    state: T,
    header: StateHeader,
    received_at: Instant,
}

#[derive(Clone, Debug)]
struct Member<T> {
    starts: Starts,
    topic: TopicId,
    heard_at: Instant,
    order: Deduplicator,
    newest: Option<Newest<T>>,
    /// Whether a state arrived since the last list, and whether the robot was on that list.
    fresh: bool,
    listed: bool,
    updates: Updates,
}

/// The state machine that gathers the states of a fleet.
#[derive(Clone, Debug)]
pub struct Tracker<T> {
    config: TrackerConfig,
    members: BTreeMap<RobotId, Member<T>>,
    open: BTreeSet<TopicId>,
    list_at: Instant,
    clock: Instant,
    outbox: VecDeque<TrackerAction>,
}

impl<T> Tracker<T> {
    /// Creates a tracker without robots. Its first list is due one period from now.
    pub fn new(config: TrackerConfig, now: Instant) -> Self {
        let list_at = now + config.period.max(PERIOD_MIN);
        Tracker {
            config,
            members: BTreeMap::new(),
            open: BTreeSet::new(),
            list_at,
            clock: now,
            outbox: VecDeque::new(),
        }
    }

    /// Handles a message of robot `from`. Ignores messages that only a tracker sends.
    pub fn on_message(&mut self, from: RobotId, message: Message, now: Instant) {
        self.follow_clock(now);
        match message {
            Message::Connect { incarnation, sent_at } => self.on_connect(from, incarnation, sent_at, now),
            Message::Sync { incarnation, sent_at } => match self.member(from, incarnation) {
                Some(member) => {
                    member.heard_at = now;
                    let answer = answer(sent_at, now);
                    self.push(reply(from, Message::Synced { incarnation, answer }));
                }
                None => self.push(reply(from, Message::Unknown { incarnation })),
            },
            Message::Leave { incarnation } => {
                if self.member(from, incarnation).is_some() {
                    self.remove(from);
                }
            }
            Message::Accept { .. } | Message::Refuse { .. } | Message::Synced { .. } | Message::Unknown { .. } => {}
        }
        self.assert_invariants();
    }

    /// Records that a robot's process has ended, known by other means than silence.
    pub fn on_gone(&mut self, robot: RobotId, now: Instant) {
        self.follow_clock(now);
        self.remove(robot);
        self.assert_invariants();
    }

    /// Records a state of robot `from` received on `topic` (T2). Only the newest is kept. Drops a state from an
    /// unconnected robot, or on a topic other than its own, and tells the robot to connect.
    pub fn on_state(&mut self, from: RobotId, topic: TopicId, header: StateHeader, state: T, now: Instant) {
        self.follow_clock(now);
        let incarnation = header.sequence.incarnation;
        match self.member(from, incarnation).filter(|member| member.topic == topic) {
            Some(member) => {
                member.heard_at = now;
                if member.order.on_copy(header.sequence) == Verdict::Deliver {
                    member.fresh = true;
                    member.newest = Some(Newest {
                        state,
                        header,
                        received_at: now,
                    });
                } else {
                    member.updates.stale += 1;
                }
            }
            None => self.push(reply(from, Message::Unknown { incarnation })),
        }
    }

    /// Makes a list (T3): the newest state of each connected robot that has one, ordered by id. Also counts misses.
    /// Call it once per period, on [`TrackerAction::List`]; a late call counts at most one period.
    pub fn gather(&mut self, now: Instant) -> Vec<Entry<'_, T>> {
        self.follow_clock(now);
        let mut list = Vec::with_capacity(self.members.len());
        for (robot, member) in &mut self.members {
            let fresh = std::mem::take(&mut member.fresh);
            // A robot that has just joined has missed nothing yet.
            if std::mem::replace(&mut member.listed, true) {
                member.updates.due += 1;
                member.updates.missed += u64::from(!fresh);
            }
            if let Some(newest) = &member.newest {
                list.push(Entry {
                    robot: *robot,
                    state: &newest.state,
                    stamps: Stamps {
                        created_at: newest.header.created_at,
                        error: newest.header.error,
                        received_at: newest.received_at,
                        listed_at: now,
                    },
                    fresh,
                });
            }
        }
        list
    }

    /// Handles the deadline returned by [`Tracker::next_deadline`]. Harmless at any other time.
    pub fn on_deadline(&mut self, now: Instant) {
        self.follow_clock(now);
        let silent = |member: &Member<T>| now >= member.heard_at + self.config.silence;
        let gone: Vec<RobotId> = self
            .members
            .iter()
            .filter(|(_, m)| silent(m))
            .map(|(robot, _)| *robot)
            .collect();
        gone.into_iter().for_each(|robot| self.remove(robot));
        if now >= self.list_at {
            // Lists keep their phase; missed ones are not made up for.
            let period = self.config.period.max(PERIOD_MIN);
            let periods = now.since(self.list_at).as_nanos() / period.as_nanos() + 1;
            self.list_at += period * periods;
            self.push(TrackerAction::List);
        }
        self.assert_invariants();
    }

    /// Returns when to call [`Tracker::on_deadline`] next.
    pub fn next_deadline(&self) -> Option<Instant> {
        let silences = self
            .members
            .values()
            .map(|member| member.heard_at + self.config.silence);
        silences.chain([self.list_at]).min()
    }

    /// Returns the next action, until `None`.
    pub fn poll(&mut self) -> Option<TrackerAction> {
        self.outbox.pop_front()
    }

    /// Returns the connected robots and their update statistics.
    pub fn robots(&self) -> impl Iterator<Item = (RobotId, Updates)> + '_ {
        self.members.iter().map(|(robot, member)| (*robot, member.updates))
    }

    fn on_connect(&mut self, from: RobotId, incarnation: u32, sent_at: Instant, now: Instant) {
        let known = self.members.get(&from);
        let mut starts = known.map_or_else(Starts::default, |member| member.starts);
        let again = match starts.on_heard(incarnation) {
            Start::Over => return, // A late message from before its restart.
            start => start == Start::Same,
        };
        let topic = match known {
            Some(member) => member.topic,
            None if self.members.len() >= usize::from(self.config.robots_max) => {
                return self.push(reply(from, Message::Refuse { incarnation }));
            }
            None => self.free_topic(),
        };
        if self.open.insert(topic) {
            self.push(TrackerAction::Open(topic));
        }
        if again {
            if let Some(member) = self.members.get_mut(&from) {
                member.heard_at = now;
            }
        } else {
            let updates = known_updates(self.members.get(&from));
            let member = Member {
                starts,
                topic,
                heard_at: now,
                order: Deduplicator::new(Delivery::Newest),
                newest: None,
                fresh: false,
                listed: false,
                updates,
            };
            self.members.insert(from, member);
            self.push(TrackerAction::Joined(from));
        }
        let answer = answer(sent_at, now);
        let accept = Message::Accept {
            incarnation,
            topic,
            answer,
        };
        self.push(reply(from, accept));
    }

    fn member(&mut self, robot: RobotId, incarnation: u32) -> Option<&mut Member<T>> {
        self.members
            .get_mut(&robot)
            .filter(|member| member.starts.newest() == Some(incarnation))
    }

    fn free_topic(&self) -> TopicId {
        match self.config.topics {
            Topics::ManyToOne => TopicId(0),
            // There are more topics than robots, so one is free.
            Topics::OneToOne => (1..)
                .map(TopicId)
                .find(|topic| !self.open.contains(topic))
                .unwrap_or(TopicId(0)),
        }
    }

    fn remove(&mut self, robot: RobotId) {
        let Some(member) = self.members.remove(&robot) else {
            return;
        };
        self.push(TrackerAction::Left(robot));
        if !self.members.values().any(|other| other.topic == member.topic) {
            self.open.remove(&member.topic);
            self.push(TrackerAction::Close(member.topic));
        }
    }

    /// Moves deadlines along with a clock that steps back, which would otherwise delay them.
    fn follow_clock(&mut self, now: Instant) {
        let back = self.clock.since(now);
        self.clock = now;
        if back == Duration::ZERO {
            return;
        }
        self.list_at = self.list_at - back;
        for member in self.members.values_mut() {
            member.heard_at = member.heard_at - back;
        }
    }

    fn push(&mut self, action: TrackerAction) {
        // If the caller does not poll, the oldest action is dropped, as the air might have dropped it.
        let outbox_max = 16 + 4 * usize::from(self.config.robots_max);
        if self.outbox.len() >= outbox_max {
            self.outbox.pop_front();
        }
        self.outbox.push_back(action);
    }

    fn assert_invariants(&self) {
        assert!(
            self.members.len() <= usize::from(self.config.robots_max),
            "more robots than the table holds"
        );
        assert!(
            self.open.len() <= self.members.len(),
            "a topic is open that nobody publishes on"
        );
    }
}

fn answer(echo: Instant, now: Instant) -> Answer {
    Answer {
        echo,
        received_at: now,
        sent_at: now,
    }
}

/// Returns a robot's statistics, which continue across its restarts.
fn known_updates<T>(member: Option<&Member<T>>) -> Updates {
    member.map_or(Updates::default(), |member| member.updates)
}
