//! Control messages: small, predicted, sent ahead of bulk. Only the newest counts.
//!
//! A [`Publisher`] reports each message to the robot, which predicts the next one and keeps bulk out of its way.
//! A [`Subscriber`] takes, from each robot, the first copy of each message that is newer than all before. It holds one
//! message per robot: a slow receiver gets the newest, not the oldest.
//!
//! A message goes separately to each robot that subscribes to the topic, over the path or paths that the robot chooses
//! (DupCon; Lee, sections III and IV), or over the only one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use coorp_core::arrival::{PERIOD_MAX, PERIOD_MIN};
use coorp_core::paths::{Deduplicator, Delivery, PathId, Sequence, Verdict};
use coorp_core::robot::{Input, Stamp, FLOWS_MAX};
use coorp_core::{Duration, FlowId, Instant, RobotId};

use crate::gather::Gatherings;
use crate::ground::watched;
use crate::guests::{self, By};
use crate::links::{Links, Subscriptions, MESSAGE_BYTES_MAX};
use crate::mailbox::Mailbox;
use crate::member::Member;
use crate::outqueue::{Departures, Target};
use crate::rank::real_time;
use crate::shared_robot::SharedRobot;
use crate::status::{Heard, Published};
use crate::sync::lock;
use crate::topic::checked;
pub use crate::topic::Age;
use crate::wire::{ControlHeader, Hello, Parcel};
use crate::Error;

/// State shared by a robot's control topics.
#[derive(Debug)]
pub(crate) struct Control {
    member: Arc<Member>,
    robot: Arc<SharedRobot>,
    links: Arc<Links>,
    gatherings: Arc<Gatherings>,
    /// This robot's messages that have not left; `None` if no window of the policy waits for them.
    departures: Option<Arc<Departures>>,
    /// The robots that subscribe to each topic.
    subscriptions: Mutex<Subscriptions>,
    published: Mutex<BTreeMap<FlowId, Arc<Sent>>>,
    /// The number of messages of each topic so far, including ended topics.
    counts: Mutex<BTreeMap<String, Arc<AtomicU64>>>,
    subscribed: Mutex<Vec<Arc<Inbox>>>,
}

impl Control {
    /// Starts a thread that tells the robot when its messages have left.
    pub fn open(
        member: &Arc<Member>,
        robot: &Arc<SharedRobot>,
        links: &Arc<Links>,
        gatherings: &Arc<Gatherings>,
    ) -> Result<Arc<Self>, Error> {
        let departures = member.policy.local.as_ref().map(|_| {
            let robot = Arc::downgrade(robot);
            Departures::new(move |flow| {
                if let Some(robot) = robot.upgrade() {
                    robot.tell(|robot, now| robot.handle(Input::ControlLeft(flow), now));
                }
            })
        });
        if let Some(departures) = departures.clone() {
            let looked_at = departures.clone();
            // Neither keeps the robot alive: if the node does not open, nobody stops it.
            let [robot, panicked] = [robot, robot].map(Arc::downgrade);
            let round = move || {
                let robot = robot.upgrade().filter(|robot| !robot.is_stopped())?;
                Some(departures.round(robot.now()))
            };
            let on_panic = move |why: &str| {
                if let Some(robot) = panicked.upgrade() {
                    robot.on_panic(why);
                }
            };
            let round = watched("the thread that follows control", on_panic, round);
            let looker = member
                .ground
                .worker("coorp-left", || _ = real_time(), round)
                .map_err(Error::Thread)?;
            looked_at.looked_at_by(looker.signal().clone());
        }
        Ok(Arc::new(Control {
            member: member.clone(),
            robot: robot.clone(),
            links: links.clone(),
            gatherings: gatherings.clone(),
            departures,
            subscriptions: Mutex::default(),
            published: Mutex::default(),
            counts: Mutex::default(),
            subscribed: Mutex::default(),
        }))
    }

    // --- as a sender ------------------------------------------------------------------------------------------

    fn publish(&self, sent: &Arc<Sent>, period: Option<Duration>) -> Result<FlowId, Error> {
        let flow = self
            .robot
            .tell(|robot, now| robot.handle(Input::AddFlow(period), now).flow());
        let flow = flow.ok_or_else(|| {
            Error::TooManyTopics(format!(
                "{} already publishes {FLOWS_MAX} control topics, which is the limit",
                self.member.name()
            ))
        })?;
        lock(&self.published).insert(flow, sent.clone());
        let publish = Input::Publish(sent.topic.clone());
        self.robot.tell(|robot, now| robot.handle(publish, now));
        Ok(flow)
    }

    fn unpublish(&self, flow: FlowId) {
        let sent = lock(&self.published).remove(&flow);
        self.robot.tell(|robot, now| {
            robot.handle(Input::RemoveFlow(flow), now);
            if let Some(sent) = sent {
                robot.handle(Input::Unpublish(sent.topic.clone()), now);
            }
        });
    }

    /// Returns the other robots that subscribe to a topic.
    fn subscribers(&self, topic: &str) -> Vec<RobotId> {
        let mut subscribers = lock(&self.subscriptions).subscribers(topic, self.robot.now());
        subscribers.retain(|robot| *robot != self.member.me);
        subscribers
    }

    /// Follows a message of this robot to `targets`; the robot is told when it has left.
    pub fn follow(&self, flow: FlowId, targets: Vec<Target>) {
        // Without targets there is nothing to wait for.
        let departures = self.departures.as_ref().filter(|_| !targets.is_empty());
        if !departures.is_some_and(|departures| departures.follow(flow, targets, self.robot.now())) {
            self.robot
                .tell(|robot, now| robot.handle(Input::ControlLeft(flow), now));
        }
    }

    /// Records a robot's announcement of all topics that it subscribes to.
    pub fn on_subscriptions(&self, robot: RobotId, topics: BTreeSet<String>) {
        lock(&self.subscriptions).on_announced(robot, topics);
    }

    /// Removes a robot that is gone.
    pub fn on_gone(&self, robot: RobotId) {
        lock(&self.subscriptions).on_gone(robot, self.robot.now());
    }

    // --- as a receiver ----------------------------------------------------------------------------------------

    fn subscribe(&self, inbox: &Arc<Inbox>) -> Result<(), Error> {
        let mut subscribed = lock(&self.subscribed);
        subscribed.push(inbox.clone());
        let topics: BTreeSet<&str> = subscribed.iter().map(|inbox| inbox.topic.as_str()).collect();
        if topics.len() > Hello::TOPICS_MAX {
            subscribed.pop();
            return Err(Error::TooManyTopics(format!(
                "{} already subscribes to {} topics, which is the limit",
                self.member.name(),
                Hello::TOPICS_MAX
            )));
        }
        drop(subscribed);
        self.links.announce();
        Ok(())
    }

    fn unsubscribe(&self, inbox: &Arc<Inbox>) {
        lock(&self.subscribed).retain(|other| !Arc::ptr_eq(other, inbox));
        self.links.announce();
    }

    fn inboxes(&self) -> Vec<Arc<Inbox>> {
        lock(&self.subscribed).clone()
    }

    /// Returns the topics that this robot subscribes to.
    pub fn subscribed_topics(&self) -> Vec<String> {
        let subscribed = lock(&self.subscribed);
        let topics: BTreeSet<&str> = subscribed.iter().map(|inbox| inbox.topic.as_str()).collect();
        topics.into_iter().map(str::to_owned).collect()
    }

    /// Handles a copy of a message that arrived, or that this robot has sent.
    pub fn on_message(&self, from: RobotId, path: PathId, topic: &str, header: ControlHeader, content: &Bytes) {
        let now = self.robot.now();
        // Not while holding the lock, because a receiver that takes a message asks for more.
        for inbox in self.inboxes().iter().filter(|inbox| inbox.topic == topic) {
            inbox.on_message(from, path, header, content, now);
        }
    }

    // --- for its status ---------------------------------------------------------------------------------------

    pub fn published(&self) -> Vec<Published> {
        let published = |sent: &Arc<Sent>| Published {
            topic: sent.topic.clone(),
            count: sent.next.load(Ordering::Relaxed),
        };
        lock(&self.published).values().map(published).collect()
    }

    pub fn heard(&self) -> Vec<Heard> {
        let now = self.robot.now();
        self.inboxes().iter().flat_map(|inbox| inbox.heard(now)).collect()
    }
}

/// Publishes control messages on one topic. Dropping it ends the topic.
#[derive(Debug)]
pub struct Publisher(pub(crate) By<OwnPublisher, guests::Publisher>);

impl Publisher {
    pub(crate) fn new(control: &Arc<Control>, topic: &str, period: Option<Duration>) -> Result<Publisher, Error> {
        Ok(Publisher(By::Robot(OwnPublisher::new(control, topic, period)?)))
    }

    /// Sets the age at which the topic's messages are late; `None` for none. Receivers then judge them, and the team
    /// holds bulk back only as much as late messages require. Without a bound, bulk keeps clear of every message.
    pub fn set_bound(&self, bound: Option<Duration>) {
        match &self.0 {
            By::Robot(own) => own.set_bound(bound),
            By::Guest(guest) => guest.set_bound(bound),
        }
    }

    /// Sends a message, or drops it if the network takes no more or the robot's agent does not run. Does not block.
    ///
    /// # Errors
    /// If the message is larger than [`MESSAGE_BYTES_MAX`], or the node has closed.
    pub fn put(&self, message: &[u8]) -> Result<(), Error> {
        match &self.0 {
            By::Robot(own) => own.put(message),
            By::Guest(guest) => guest.put(message),
        }
    }
}

/// Refuses a message that is too long.
pub(crate) fn checked_length(topic: &str, message: &[u8]) -> Result<(), Error> {
    if message.len() > MESSAGE_BYTES_MAX {
        return Err(Error::TooLarge(format!(
            "a control message of {} bytes on \"{topic}\" is over the limit of {MESSAGE_BYTES_MAX}: send it as bulk",
            message.len(),
        )));
    }
    Ok(())
}

/// A robot's own publisher.
#[derive(Debug)]
pub(crate) struct OwnPublisher {
    control: Arc<Control>,
    flow: FlowId,
    sent: Arc<Sent>,
}

/// Counters of a topic that a robot publishes.
#[derive(Debug)]
pub(crate) struct Sent {
    topic: String,
    /// Continues from an earlier publisher of the topic, because receivers count by topic.
    next: Arc<AtomicU64>,
}

impl OwnPublisher {
    fn new(control: &Arc<Control>, topic: &str, period: Option<Duration>) -> Result<OwnPublisher, Error> {
        let topic = checked(topic)?;
        if let Some(period) = period.filter(|period| !(PERIOD_MIN..=PERIOD_MAX).contains(period)) {
            return Err(Error::Period(format!(
                "a period of {period} on \"{topic}\" cannot be predicted: use {PERIOD_MIN} to {PERIOD_MAX}, or none"
            )));
        }
        let sent = Arc::new(Sent {
            topic: topic.to_owned(),
            next: lock(&control.counts).entry(topic.to_owned()).or_default().clone(),
        });
        Ok(OwnPublisher {
            flow: control.publish(&sent, period)?,
            control: control.clone(),
            sent,
        })
    }

    fn set_bound(&self, bound: Option<Duration>) {
        let bound = Input::SetBound(self.flow, bound);
        self.control.robot.tell(|robot, now| robot.handle(bound, now));
    }

    fn put(&self, message: &[u8]) -> Result<(), Error> {
        checked_length(&self.sent.topic, message)?;
        let (control, topic) = (&*self.control, &self.sent.topic);
        let mut subscribers = control.subscribers(topic);
        let (made_at, stamp, copies, states) = control.robot.tell(|robot, now| {
            let stamp = robot.handle(Input::Control(self.flow), now).stamp();
            let mut copies = Vec::with_capacity(subscribers.len());
            // The robot that ends windows on arrivals comes last: by then, the other copies are out.
            subscribers.sort_by_key(|to| robot.ends_windows(*to, now));
            for to in subscribers {
                let chosen = robot.handle(Input::Assign(to), now).copies();
                let riders = robot.handle(Input::Riders(to), now).riders();
                if chosen.is_empty() {
                    copies.push((to, PathId(0), None, riders));
                }
                // Messages over chosen paths carry no riders.
                copies.extend(chosen.into_iter().map(|copy| (to, copy.path, copy.number, Vec::new())));
            }
            let states = robot.handle(Input::State(topic.clone()), now).states();
            (now, stamp, copies, states)
        });
        let mut header = ControlHeader {
            incarnation: control.member.incarnation,
            sequence: self.sent.next.fetch_add(1, Ordering::Relaxed),
            stamp,
            made_at,
            copy: None,
        };
        let message = Bytes::copy_from_slice(message);
        control.gatherings.send_states(states, &message);
        let copies = copies.into_iter().filter_map(|(to, path, number, riders)| {
            header.copy = number;
            let topic = topic.clone();
            let parcel = Parcel::Control { topic, header, riders };
            control.links.send(to, path, &parcel, &message)
        });
        let targets = copies.collect();
        control.links.hurry();
        control.follow(self.flow, targets);
        header.copy = None;
        control.on_message(control.member.me, PathId(0), topic, header, &message);
        Ok(())
    }
}

impl Drop for OwnPublisher {
    fn drop(&mut self) {
        self.control.unpublish(self.flow);
    }
}

/// A received control message.
#[derive(Clone, Debug)]
pub struct Message {
    /// The robot that sent it.
    pub from: RobotId,
    /// Zero-based sequence number within the topic since the sender's start.
    pub sequence: u64,
    /// The path that delivered it first, by its index among this robot's paths.
    pub path: usize,
    /// The time of its arrival, on this robot's clock.
    pub arrived_at: Instant,
    /// The age when it was taken, if both ends know the leader's clock.
    pub age: Option<Age>,
    pub(crate) payload: Bytes,
}

impl Message {
    /// Returns the content.
    pub fn bytes(&self) -> &[u8] {
        &self.payload
    }
}

/// Receives one topic of all robots.
#[derive(Debug)]
pub struct Subscriber(pub(crate) By<OwnSubscriber, guests::Subscriber>);

impl Subscriber {
    pub(crate) fn new(control: &Arc<Control>, topic: &str) -> Result<Subscriber, Error> {
        Ok(Subscriber(By::Robot(OwnSubscriber::new(control, topic)?)))
    }

    /// Returns the message that has waited longest, if any.
    pub fn try_recv(&self) -> Option<Message> {
        match &self.0 {
            By::Robot(own) => own.inbox.waiting.try_recv().map(|waiting| own.taken(waiting)),
            By::Guest(guest) => guest.try_recv(),
        }
    }

    /// Waits for a message until `timeout` has passed; without a timeout, forever.
    pub fn recv(&self, timeout: Option<std::time::Duration>) -> Option<Message> {
        match &self.0 {
            By::Robot(own) => own.inbox.waiting.recv(timeout).map(|waiting| own.taken(waiting)),
            By::Guest(guest) => guest.recv(timeout),
        }
    }

    /// Waits for a message.
    pub async fn next(&self) -> Message {
        match &self.0 {
            By::Robot(own) => own.taken(own.inbox.waiting.next().await),
            By::Guest(guest) => guest.next().await,
        }
    }
}

/// A robot's own subscriber.
#[derive(Debug)]
pub(crate) struct OwnSubscriber {
    control: Arc<Control>,
    inbox: Arc<Inbox>,
}

/// Messages that arrived and were not taken yet: one per robot.
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

impl OwnSubscriber {
    fn new(control: &Arc<Control>, topic: &str) -> Result<OwnSubscriber, Error> {
        let inbox = Arc::new(Inbox {
            topic: checked(topic)?.to_owned(),
            robots: Mutex::default(),
            waiting: Mailbox::new(),
        });
        control.subscribe(&inbox)?;
        Ok(OwnSubscriber {
            control: control.clone(),
            inbox,
        })
    }

    fn taken(&self, (mut message, stamp): (Message, Stamp)) -> Message {
        let (robot, team) = (&self.control.robot, &self.control.member.team);
        message.age = stamp
            .made_at
            .and_then(|(clock, made_at)| Some(Age::by(robot.clock(clock)?, made_at, robot.now())));
        if let (Some(age), Some(entry)) = (message.age, lock(&self.inbox.robots).get_mut(&message.from)) {
            let bound = team.control.as_ref().map(|control| control.bound);
            entry.aged += 1;
            entry.ages += age.is;
            entry.late += u64::from(bound.is_some_and(|bound| age.is > bound));
        }
        message
    }
}

impl Drop for OwnSubscriber {
    fn drop(&mut self) {
        self.control.unsubscribe(&self.inbox);
    }
}

impl Inbox {
    /// Handles a copy of a message. It waits to be taken if it is newer than all before.
    fn on_message(&self, from: RobotId, path: PathId, header: ControlHeader, payload: &Bytes, now: Instant) {
        let mut robots = lock(&self.robots);
        let entry = robots.entry(from).or_insert_with(|| FromRobot::new(&header, now));
        let newer = entry.take_in(path.0.into(), &header, now);
        if newer {
            let message = Message {
                from,
                sequence: header.sequence,
                path: path.0.into(),
                arrived_at: now,
                age: None,
                payload: payload.clone(),
            };
            // Still under the lock, so that no older message takes its place.
            self.waiting
                .put((message, header.stamp), |(older, _)| older.from == from);
        }
    }

    fn heard(&self, now: Instant) -> Vec<Heard> {
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
        // The deduplicator's numbers wrap; within its window, the lower half of ours is unambiguous.
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
        assert!(take(0, 0, 0), "its disk was wiped");
        assert_eq!((from.count, from.missed, from.duplicates), (4, 2, 1));
    }
}
