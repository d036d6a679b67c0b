//! Control messages: small, predicted, sent ahead of bulk, and the newest counts.
//!
//! A [`Publisher`] tells the robot of each message, which learns from it when the next is due and keeps bulk out of its
//! way. A [`Subscriber`] takes of each robot the first copy of what is newer than all before, and holds one message a
//! robot: whoever is slow gets the newest, not the oldest.
//!
//! A message goes to each robot that subscribes to the topic by itself, over the path, or paths, that the robot chooses for it
//! (DupCon, 004); where there is no choice, over the only one.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use coorp_core::arrival::{PERIOD_MAX, PERIOD_MIN};
use coorp_core::paths::{Deduplicator, Delivery, PathId, Sequence, Verdict};
use coorp_core::robot::{Input, Stamp};
use coorp_core::{Duration, FlowId, Instant, RobotId};
use zenoh::liveliness::LivelinessToken;
use zenoh::Wait;

use crate::fabric::MESSAGE_BYTES_MAX;
use crate::mailbox::Mailbox;
use crate::node::{fabric_failed, Inner};
use crate::status::{Heard, Published};
use crate::sync::lock;
use crate::wire::{ControlHeader, Parcel};
use crate::Error;

/// Longest name of a topic, characters.
const TOPIC_CHARS_MAX: usize = 64;

/// Sends the control messages of one topic. Dropped, the topic ends.
#[derive(Debug)]
pub struct Publisher {
    inner: Arc<Inner>,
    flow: FlowId,
    sent: Arc<Sent>,
}

/// What a robot counts of a topic that it publishes.
#[derive(Debug)]
pub(crate) struct Sent {
    topic: String,
    /// Goes on where an earlier publisher of the topic ended, as receivers count by topic.
    next: Arc<AtomicU64>,
}

impl Sent {
    pub fn topic(&self) -> &str {
        &self.topic
    }

    pub fn published(&self) -> Published {
        Published {
            topic: self.topic.clone(),
            count: self.next.load(Ordering::Relaxed),
        }
    }
}

impl Publisher {
    pub(crate) fn new(inner: &Arc<Inner>, topic: &str, period: Option<Duration>) -> Result<Publisher, Error> {
        let topic = checked(topic)?;
        if let Some(period) = period.filter(|period| !(PERIOD_MIN..=PERIOD_MAX).contains(period)) {
            return Err(Error::Input(format!(
                "a period of {period} on \"{topic}\" cannot be predicted: use {PERIOD_MIN} to {PERIOD_MAX}, or none"
            )));
        }
        let sent = Arc::new(Sent {
            topic: topic.to_owned(),
            next: inner.count_of(topic),
        });
        let flow = inner.publish(&sent, period)?;
        Ok(Publisher {
            inner: inner.clone(),
            flow,
            sent,
        })
    }

    /// Sends a message, or drops it where the network takes no more. Does not wait.
    ///
    /// # Errors
    /// Where the message is larger than [`MESSAGE_BYTES_MAX`], or the node has closed.
    pub fn put(&self, message: &[u8]) -> Result<(), Error> {
        if message.len() > MESSAGE_BYTES_MAX {
            return Err(Error::Input(format!(
                "a control message of {} bytes on \"{}\" is over the limit of {MESSAGE_BYTES_MAX}: send it as bulk",
                message.len(),
                self.sent.topic
            )));
        }
        let (inner, topic) = (&self.inner, &self.sent.topic);
        let mut subscribers = inner.subscribers(topic);
        let (made_at, stamp, copies, states) = inner.tell(|robot, now| {
            let stamp = robot.handle(Input::Control(self.flow), now).stamp();
            let mut copies = Vec::with_capacity(subscribers.len());
            // Who ends windows by what arrives there comes last: then the others' copies are out.
            subscribers.sort_by_key(|to| robot.ends_windows(*to, now));
            for to in subscribers {
                let chosen = robot.handle(Input::Assign(to), now).copies();
                let riders = robot.handle(Input::Riders(to), now).riders();
                if chosen.is_empty() {
                    copies.push((to, PathId(0), None, riders));
                }
                // Where there is a choice of paths nothing rides.
                copies.extend(chosen.into_iter().map(|copy| (to, copy.path, copy.number, Vec::new())));
            }
            (
                now,
                stamp,
                copies,
                robot.handle(Input::State(topic.clone()), now).states(),
            )
        });
        let mut header = ControlHeader {
            incarnation: inner.incarnation,
            sequence: self.sent.next.fetch_add(1, Ordering::Relaxed),
            stamp,
            made_at,
            copy: None,
        };
        let message = Bytes::copy_from_slice(message);
        inner.send_states(states, &message);
        let copies = copies.into_iter().filter_map(|(to, path, number, riders)| {
            header.copy = number;
            let topic = topic.clone();
            let parcel = Parcel::Control { topic, header, riders };
            inner.send(to, path, &parcel, &message)
        });
        let targets = copies.collect();
        inner.follow(self.flow, targets);
        header.copy = None;
        inner.on_control(inner.me, PathId(0), topic, header, &message);
        Ok(())
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        self.inner.unpublish(self.flow);
    }
}

/// A control message that came.
#[derive(Clone, Debug)]
pub struct Message {
    /// The robot that sent it.
    pub from: RobotId,
    /// The how manieth of its topic since its sender started, from 0.
    pub sequence: u64,
    /// The path that brought it first, by its place among this robot's.
    pub path: usize,
    /// When it came, on this robot's clock.
    pub arrived_at: Instant,
    /// How old it was when it was taken, as far as the leader's clock is known to both ends.
    pub age: Option<Age>,
    payload: Bytes,
}

impl Message {
    /// Its content.
    pub fn bytes(&self) -> &[u8] {
        &self.payload
    }
}

/// How old a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Age {
    /// Since it was made.
    pub is: Duration,
    /// As this robot's clock is known; the sender's comes on top.
    pub within: Duration,
}

/// Receives one topic of all robots.
#[derive(Debug)]
pub struct Subscriber {
    inner: Arc<Inner>,
    inbox: Arc<Inbox>,
    /// One a path: the others send what is heard.
    _tokens: Vec<LivelinessToken>,
}

/// What came and was not taken yet: one message a robot.
#[derive(Debug)]
pub(crate) struct Inbox {
    topic: String,
    robots: Mutex<BTreeMap<RobotId, FromRobot>>,
    waiting: Mailbox<(Message, Stamp)>,
}

#[derive(Debug)]
struct FromRobot {
    deduplicator: Deduplicator,
    incarnation: u32,
    newest: u64,
    arrived_at: Instant,
    count: u64,
    missed: u64,
    duplicates: u64,
    path: usize,
    aged: u64,
    ages: Duration,
    late: u64,
}

impl Subscriber {
    pub(crate) fn new(inner: &Arc<Inner>, topic: &str) -> Result<Subscriber, Error> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let inbox = Arc::new(Inbox {
            topic: checked(topic)?.to_owned(),
            robots: Mutex::default(),
            waiting: Mailbox::new(),
        });
        inner.subscribe(&inbox);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let tokens = inner.coordination.iter().map(|session| {
            let token = format!("{}.{number}", session.zid());
            let token = session
                .liveliness()
                .declare_token(inner.keyspace.subscribes(inner.name(), topic, &token));
            token.wait().map_err(|error| fabric_failed(error.as_ref()))
        });
        Ok(Subscriber {
            inner: inner.clone(),
            inbox,
            _tokens: tokens.collect::<Result<_, _>>()?,
        })
    }

    /// The message that waits longest, if any does.
    pub fn try_recv(&self) -> Option<Message> {
        self.inbox.waiting.try_recv().map(|waiting| self.taken(waiting))
    }

    /// Waits for a message until `timeout` has passed; without a timeout, forever.
    pub fn recv(&self, timeout: Option<std::time::Duration>) -> Option<Message> {
        self.inbox.waiting.recv(timeout).map(|waiting| self.taken(waiting))
    }

    /// Waits for a message.
    pub async fn next(&self) -> Message {
        self.taken(self.inbox.waiting.next().await)
    }

    fn taken(&self, (mut message, stamp): (Message, Stamp)) -> Message {
        message.age = stamp.made_at.and_then(|(clock, made_at)| {
            let offset = self.inner.clock(clock)?;
            Some(Age {
                is: offset.theirs(self.inner.now()).since(made_at),
                within: offset.within,
            })
        });
        if let (Some(age), Some(entry)) = (message.age, lock(&self.inbox.robots).get_mut(&message.from)) {
            let bound = self.inner.team.control.as_ref().map(|control| control.bound);
            entry.aged += 1;
            entry.ages += age.is;
            entry.late += u64::from(bound.is_some_and(|bound| age.is > bound));
        }
        message
    }
}

impl Inbox {
    pub fn topic(&self) -> &str {
        &self.topic
    }

    /// A copy of a message came. It waits if it is newer than all before.
    pub fn on_message(&self, from: RobotId, path: PathId, header: ControlHeader, payload: &Bytes, now: Instant) {
        let mut robots = lock(&self.robots);
        let entry = robots.entry(from).or_insert_with(|| FromRobot::new(&header, now));
        if entry.take_in(path.0.into(), &header, now) {
            let message = Message {
                from,
                sequence: header.sequence,
                path: path.0.into(),
                arrived_at: now,
                age: None,
                payload: payload.clone(),
            };
            // Under the lock, so that no older message takes its place.
            self.waiting
                .put((message, header.stamp), |(older, _)| older.from == from);
        }
    }

    pub fn heard(&self, now: Instant) -> Vec<Heard> {
        let heard = |(robot, from): (&RobotId, &FromRobot)| Heard {
            topic: self.topic.clone(),
            from: robot.0,
            count: from.count,
            missed: from.missed,
            duplicates: from.duplicates,
            quiet_us: now.since(from.arrived_at).as_nanos() / 1_000,
            path: from.path as u64,
            aged: from.aged,
            ages_us: from.ages.as_nanos() / 1_000,
            late: from.late,
        };
        lock(&self.robots).iter().map(heard).collect()
    }
}

impl FromRobot {
    fn new(first: &ControlHeader, now: Instant) -> Self {
        FromRobot {
            deduplicator: Deduplicator::new(Delivery::Newest),
            incarnation: first.incarnation,
            newest: first.sequence,
            arrived_at: now,
            count: 0,
            missed: 0,
            duplicates: 0,
            path: 0,
            aged: 0,
            ages: Duration::ZERO,
            late: 0,
        }
    }

    /// Counts a copy. Returns whether it is newer than all before.
    fn take_in(&mut self, path: usize, header: &ControlHeader, now: Instant) -> bool {
        // The deduplicator's numbers wrap; within its window the lower half of ours tells them apart.
        let verdict = self.deduplicator.on_copy(Sequence {
            incarnation: header.incarnation,
            number: header.sequence as u32,
        });
        if verdict != Verdict::Deliver {
            self.duplicates += u64::from(verdict == Verdict::Duplicate);
            return false;
        }
        if self.count > 0 && header.incarnation == self.incarnation {
            self.missed += header.sequence.saturating_sub(self.newest.saturating_add(1));
        }
        self.count += 1;
        (self.incarnation, self.newest) = (header.incarnation, header.sequence);
        (self.arrived_at, self.path) = (now, path);
        true
    }
}

/// The topic, or a bulk message's name, where it may be called so.
pub(crate) fn checked(topic: &str) -> Result<&str, Error> {
    let fits = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.');
    if topic.is_empty() || topic.chars().count() > TOPIC_CHARS_MAX || !topic.chars().all(fits) {
        return Err(Error::Input(format!(
            "\"{}\" cannot be a name: use 1 to {TOPIC_CHARS_MAX} letters, digits, `-`, `_` and `.`",
            topic.chars().take(TOPIC_CHARS_MAX).collect::<String>().escape_debug()
        )));
    }
    Ok(topic)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(incarnation: u32, sequence: u64) -> ControlHeader {
        ControlHeader {
            incarnation,
            sequence,
            stamp: Stamp::default(),
            made_at: Instant::ZERO,
            copy: None,
        }
    }

    #[test]
    fn the_first_copy_of_the_newest_is_taken() {
        let mut from = FromRobot::new(&header(1, 5), Instant::ZERO);
        let mut take = |incarnation, sequence, path| from.take_in(path, &header(incarnation, sequence), Instant::ZERO);
        assert!(take(1, 5, 0));
        assert!(!take(1, 5, 1), "the copy over the other path");
        assert!(take(1, 8, 1));
        assert!(!take(1, 7, 0), "overtaken");
        assert!(take(2, 0, 0), "its sender started anew");
        assert!(!take(1, 9, 0), "from before that");
        assert_eq!((from.count, from.missed, from.duplicates), (3, 2, 1));
    }

    #[test]
    fn a_topic_is_a_name() {
        assert!(checked("pose.2").is_ok());
        for topic in ["", "a/b", "*", "\u{7}", &"x".repeat(65)] {
            assert!(checked(topic).is_err(), "{topic:?}");
        }
    }
}
