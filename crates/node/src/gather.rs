//! The newest state of every robot on a topic, as one list a period, with how old each state is: 002 on real sockets.
//!
//! Who is connected, what is newest and what was missed is `core::tracker`'s. Here are a [`Gather`], whose lists are made by
//! whoever waits for one, or else by a thread, and the other end: what a robot does whose states are gathered. A robot says by a token on the fabric
//! that it gathers a topic. Whoever publishes that topic then connects (002, IV-A), is answered once there is a
//! subscription for it, and sends its states with T1 on the clock of the robot that gathers.
//!
//! States go as control does, over the paths that the robot chooses, and as copies of their own: a robot that gathers a topic
//! need not subscribe to it as well. Left out: sending the list on to others, as the paper's tracker does; it is used
//! where it is made, so T4 is when it is taken.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Instant as StdInstant;

use bytes::Bytes;
use coorp_core::paths::PathId;
use coorp_core::robot::{Input, ReportAction, StateCopy};
use coorp_core::tracker::{Message, Stamps, Topics, Tracker, TrackerAction, TrackerConfig, Updates};
use coorp_core::{Duration, Instant, RobotId};
use zenoh::liveliness::LivelinessToken;
use zenoh::sample::{Sample, SampleKind};
use zenoh::Wait;

use crate::control::{checked, Age};
use crate::mailbox::Mailbox;
use crate::node::{fabric_failed, Inner};
use crate::status::Gathered;
use crate::sync::{lock, spawn};
use crate::wire::{self, Parcel, Refusal};
use crate::{Error, Node};

/// Shortest and longest time between two lists.
const PERIOD_MIN: Duration = Duration::from_micros(500);
const PERIOD_MAX: Duration = Duration::from_secs(60);
/// Things to be done that may wait for the thread; what would add to them is dropped.
const TODO_MAX: usize = 4_096;
/// The thread that makes lists looks up at least this often.
const LOOK_UP_EVERY: std::time::Duration = std::time::Duration::from_millis(500);
/// Whoever waits for a list makes it itself; by so much later the thread does.
const OTHERS_FIRST: Duration = Duration::from_micros(300);

/// Gathers the states of all robots on a topic. Dropped, it ends.
#[derive(Debug)]
pub struct Gather {
    inner: Arc<Inner>,
    shared: Arc<Gathering>,
    lister: Option<JoinHandle<()>>,
    /// One a path.
    tokens: Vec<LivelinessToken>,
}

/// What callbacks, the thread that makes lists and the user share.
#[derive(Debug)]
pub(crate) struct Gathering {
    topic: String,
    state: Mutex<State>,
    /// The thread has something to do.
    wake: Condvar,
    stop: AtomicBool,
    /// The newest list, until it is taken.
    lists: Mailbox<Listed>,
}

#[derive(Debug)]
struct State {
    tracker: Tracker<Bytes>,
    /// To be done by the thread.
    todo: VecDeque<TrackerAction>,
    /// Those that wait for a list, who look when one is due.
    waiting: usize,
    /// How old each robot's state was on the last list, in the robots' order.
    ages: Vec<(RobotId, Stamps)>,
}

#[derive(Debug)]
struct Listed {
    at: Instant,
    /// Without ages, which count to when the list is taken.
    states: Vec<RobotState>,
}

/// A list: each connected robot's newest state.
#[derive(Clone, Debug)]
pub struct Table {
    /// When it was made (T3), on this robot's clock.
    pub listed_at: Instant,
    /// When it was taken (T4), on this robot's clock.
    pub taken_at: Instant,
    /// The robots that have sent a state, in the team file's order.
    pub states: Vec<RobotState>,
}

/// A robot's newest state.
#[derive(Clone, Debug)]
pub struct RobotState {
    /// The robot.
    pub from: RobotId,
    /// T1 to T3, on this robot's clock.
    pub stamps: Stamps,
    /// Whether it came since the last list; if not, the robot missed its update.
    pub fresh: bool,
    /// How old it was when the list was taken: T4 - T1. `None` before the clocks were compared.
    pub age: Option<Age>,
    payload: Bytes,
}

impl RobotState {
    /// Its content.
    pub fn bytes(&self) -> &[u8] {
        &self.payload
    }
}

impl Node {
    /// Gathers the states that robots publish on a topic into one list a period. The robots need not be there yet, and
    /// may come and go. `topics` says whether all have one topic's number or each its own; over links they cost the same.
    ///
    /// # Errors
    /// Where the topic's name or the period does not fit, or this robot gathers the topic already.
    pub fn gather(&self, topic: &str, period: Duration, topics: Topics) -> Result<Gather, Error> {
        Gather::new(self.inner(), topic, period, topics)
    }
}

impl Gather {
    fn new(inner: &Arc<Inner>, topic: &str, period: Duration, topics: Topics) -> Result<Gather, Error> {
        let topic = checked(topic)?;
        if !(PERIOD_MIN..=PERIOD_MAX).contains(&period) {
            return Err(Error::Input(format!(
                "a period of {period} cannot be gathered at: use {PERIOD_MIN} to {PERIOD_MAX}"
            )));
        }
        let config = TrackerConfig {
            topics,
            period,
            robots_max: u16::try_from(inner.team.robots.len()).unwrap_or(u16::MAX),
            ..TrackerConfig::default()
        };
        let shared = Arc::new(Gathering {
            topic: topic.to_owned(),
            state: Mutex::new(State {
                tracker: Tracker::new(config, inner.now()),
                todo: VecDeque::new(),
                waiting: 0,
                ages: Vec::new(),
            }),
            wake: Condvar::new(),
            stop: AtomicBool::new(false),
            lists: Mailbox::new(),
        });
        inner.gatherings.insert(topic, &shared)?;
        // From here on what is begun ends with this.
        let mut gather = Gather {
            inner: inner.clone(),
            shared: shared.clone(),
            lister: None,
            tokens: Vec::new(),
        };
        let (works, node) = (shared, Arc::downgrade(inner));
        gather.lister = Some(spawn("coorp-gather", move || {
            while let Some(inner) = node.upgrade() {
                if works.stop.load(Ordering::Acquire) {
                    return;
                }
                works.work(&inner);
            }
        })?);
        for session in inner.coordination.iter() {
            let (incarnation, zid) = (inner.incarnation.to_string(), session.zid().to_string());
            let token = session.liveliness();
            let token = token.declare_token(inner.keyspace.gathers(inner.name(), topic, &incarnation, &zid));
            gather
                .tokens
                .push(token.wait().map_err(|error| fabric_failed(error.as_ref()))?);
        }
        Ok(gather)
    }

    /// The newest list, if there is one that was not taken yet.
    pub fn try_recv(&self) -> Option<Table> {
        self.shared.lists.try_recv().map(|listed| self.table(listed))
    }

    /// Waits for the next list that was not taken yet, until `timeout` has passed; without one, for ever. A list goes to one
    /// taker: who waits here makes it, and leaves none for [`Gather::next`].
    pub fn recv(&self, timeout: Option<std::time::Duration>) -> Option<Table> {
        let until = timeout.and_then(|timeout| StdInstant::now().checked_add(timeout));
        loop {
            let mut state = lock(&self.shared.state);
            // Made here, there is no other thread to be woken by.
            self.shared.look(&self.inner, &mut state);
            let mut listed = self.shared.lists.try_recv();
            if listed.is_none() {
                let left = until.map(|until| until.saturating_duration_since(StdInstant::now()));
                if left.is_some_and(|left| left.is_zero()) {
                    return None;
                }
                let due = state.until_due(self.inner.now());
                state.waiting += 1;
                drop(state);
                listed = self.shared.lists.recv(Some(left.map_or(due, |left| left.min(due))));
                lock(&self.shared.state).waiting -= 1;
            }
            if let Some(listed) = listed {
                return Some(self.table(listed));
            }
        }
    }

    /// Waits for the next list.
    pub async fn next(&self) -> Table {
        self.table(self.shared.lists.next().await)
    }

    /// The robots that are connected, and on how many lists each had no fresh state.
    pub fn updates(&self) -> Vec<(RobotId, Updates)> {
        lock(&self.shared.state).tracker.robots().collect()
    }

    fn table(&self, listed: Listed) -> Table {
        let (taken_at, mut states) = (self.inner.now(), listed.states);
        for state in &mut states {
            state.age = age(&state.stamps, taken_at);
        }
        Table {
            listed_at: listed.at,
            taken_at,
            states,
        }
    }
}

impl Drop for Gather {
    fn drop(&mut self) {
        // First, so that nobody connects any more.
        self.tokens.clear();
        self.shared.stop.store(true, Ordering::Release);
        self.shared.wake.notify_one();
        if let Some(lister) = self.lister.take() {
            let _ = lister.join();
        }
        self.inner.gatherings.remove(&self.shared.topic);
    }
}

fn age(stamps: &Stamps, used_at: Instant) -> Option<Age> {
    Some(Age {
        is: stamps.age(used_at)?,
        within: stamps.error,
    })
}

impl Gathering {
    /// One round of the thread: what is due is done, then it waits for more.
    fn work(&self, inner: &Inner) {
        let mut state = lock(&self.state);
        if state.waiting == 0 || state.until_due(inner.now() - OTHERS_FIRST).is_zero() {
            self.look(inner, &mut state);
        }
        let todo = std::mem::take(&mut state.todo);
        if todo.is_empty() {
            let later = if state.waiting == 0 {
                Duration::ZERO
            } else {
                OTHERS_FIRST
            };
            let wait = state.until_due(inner.now() - later);
            drop(self.wake.wait_timeout(state, wait.min(LOOK_UP_EVERY)));
            return;
        }
        drop(state);
        // Never under the lock: what is told to the fabric may call back.
        for action in todo {
            match action {
                // Links carry all topics.
                TrackerAction::Open(_) | TrackerAction::Close(_) => {}
                TrackerAction::Send { to, message } => inner.say_fleet(&self.topic, to, message),
                TrackerAction::Joined(robot) => {
                    tracing::info!("{} is gathered on {}", inner.name_of(robot), self.topic);
                }
                TrackerAction::Left(robot) => {
                    tracing::info!("{} is no longer gathered on {}", inner.name_of(robot), self.topic);
                }
                // Made when it came.
                TrackerAction::List => {}
            }
        }
    }

    /// Makes the list, if one is due.
    fn look(&self, inner: &Inner, state: &mut State) {
        let now = inner.now();
        state.tracker.on_deadline(now);
        self.collect(state, now);
    }

    /// A copy of a state came.
    fn on_state(&self, inner: &Inner, from: RobotId, header: wire::State, payload: &Bytes) {
        let mut state = lock(&self.state);
        if state.todo.len() >= TODO_MAX {
            return;
        }
        // Read under the lock, so that no later time was told before.
        let received_at = inner.now();
        state
            .tracker
            .on_state(from, header.topic, header.header, payload.clone(), received_at);
        self.collect(&mut state, received_at);
    }

    fn on_said(&self, inner: &Inner, from: RobotId, message: Message) {
        let mut state = lock(&self.state);
        if state.todo.len() >= TODO_MAX {
            return; // As if it were lost on the way.
        }
        let now = inner.now();
        state.tracker.on_message(from, message, now);
        self.collect(&mut state, now);
    }

    fn on_gone(&self, inner: &Inner, robot: RobotId) {
        let mut state = lock(&self.state);
        let now = inner.now();
        state.tracker.on_gone(robot, now);
        self.collect(&mut state, now);
    }

    /// Notes what the tracker wants done, and makes its list, if it wants one.
    fn collect(&self, state: &mut State, now: Instant) {
        while let Some(action) = state.tracker.poll() {
            if matches!(action, TrackerAction::List) {
                self.lists.put(state.list(now), |_| true);
            } else {
                state.todo.push_back(action);
            }
        }
        if !state.todo.is_empty() {
            self.wake.notify_one();
        }
    }

    /// How well each robot's states come in.
    pub fn gathered(&self, now: Instant) -> Vec<Gathered> {
        let state = lock(&self.state);
        let robots = state.tracker.robots();
        let gathered = robots.map(|(robot, updates)| {
            let place = state.ages.binary_search_by_key(&robot, |(robot, _)| *robot);
            let age = place.ok().and_then(|place| age(&state.ages[place].1, now));
            Gathered {
                topic: self.topic.clone(),
                from: robot.0,
                due: updates.due,
                missed: updates.missed,
                stale: updates.stale,
                age_us: age.map(|age| (age.is.as_nanos() / 1_000, age.within.as_nanos() / 1_000)),
            }
        });
        gathered.collect()
    }
}

impl State {
    /// How long it is until the tracker has something to do.
    fn until_due(&self, now: Instant) -> std::time::Duration {
        let due = self.tracker.next_deadline();
        due.map_or(LOOK_UP_EVERY, |due| {
            std::time::Duration::from_nanos(due.since(now).as_nanos())
        })
    }

    fn list(&mut self, at: Instant) -> Listed {
        let entries = self.tracker.gather(at).into_iter();
        let states = entries.map(|entry| RobotState {
            from: entry.robot,
            stamps: entry.stamps,
            fresh: entry.fresh,
            age: None,
            payload: entry.state.clone(),
        });
        let states: Vec<_> = states.collect();
        self.ages.clear();
        self.ages.extend(states.iter().map(|state| (state.from, state.stamps)));
        Listed { at, states }
    }
}

/// What this robot gathers, by topic.
#[derive(Debug, Default)]
pub(crate) struct Gatherings(Mutex<BTreeMap<String, Arc<Gathering>>>);

impl Gatherings {
    fn insert(&self, topic: &str, gathering: &Arc<Gathering>) -> Result<(), Error> {
        let mut all = lock(&self.0);
        if all.contains_key(topic) {
            return Err(Error::Input(format!(
                "this robot gathers \"{topic}\" already: share what `gather` has returned"
            )));
        }
        all.insert(topic.to_owned(), gathering.clone());
        Ok(())
    }

    fn remove(&self, topic: &str) {
        lock(&self.0).remove(topic);
    }

    fn get(&self, topic: &str) -> Option<Arc<Gathering>> {
        lock(&self.0).get(topic).cloned()
    }

    pub fn all(&self) -> Vec<Arc<Gathering>> {
        lock(&self.0).values().cloned().collect()
    }

    /// A robot's process has ended.
    pub fn on_gone(&self, inner: &Inner, robot: RobotId) {
        self.all().iter().for_each(|gathering| gathering.on_gone(inner, robot));
    }
}

impl Inner {
    /// Does what the reporters want done.
    pub(crate) fn report(&self, action: ReportAction) {
        match action {
            ReportAction::Say((topic, to), message) => self.say_fleet(&topic, to, message),
            ReportAction::Open((_, to)) => self.warm(to),
            ReportAction::Close((topic, to)) => {
                tracing::debug!("states on {topic} no longer go to {}", self.name_of(to));
            }
        }
    }

    /// Sends a state to who gathers it.
    pub(crate) fn send_states(&self, states: Vec<StateCopy>, message: &Bytes) {
        for state in states {
            let (topic, to) = state.report;
            let path = state.copy.map_or(PathId(0), |copy| copy.path);
            let number = state.copy.and_then(|copy| copy.number);
            let header = wire::State {
                topic: state.topic,
                header: state.header,
                copy: number,
            };
            if to == self.me {
                self.on_state(to, &topic, header, message);
            } else {
                self.send(to, path, &Parcel::State { topic, header }, message);
            }
        }
    }

    /// A copy of a state came.
    pub(crate) fn on_state(&self, from: RobotId, topic: &str, header: wire::State, payload: &Bytes) {
        if let Some(gathering) = self.gatherings.get(topic) {
            gathering.on_state(self, from, header, payload);
        }
    }

    fn say_fleet(&self, topic: &str, to: RobotId, message: Message) {
        let key = self.keyspace.fleet(self.name(), self.name_of(to), topic);
        self.put(&key, &message);
    }

    /// A robot says something about being gathered.
    pub(crate) fn on_fleet(&self, sample: &Sample) {
        let (what, key) = ("a word on being gathered", sample.key_expr().as_str());
        let from = self.keyspace.part(key, 1).and_then(|name| self.team.robot_named(name));
        let (Some(from), Some(topic)) = (from, self.keyspace.part(key, 3)) else {
            return self.refused.count(what, Refusal::Malformed);
        };
        let Some(said) = self.read::<Message>(what, sample.payload()) else {
            return;
        };
        let to_gatherer = matches!(
            said,
            Message::Connect { .. } | Message::Sync { .. } | Message::Leave { .. }
        );
        if to_gatherer {
            if let Some(gathering) = self.gatherings.get(topic) {
                gathering.on_said(self, from, said);
            }
        } else {
            let report = (topic.to_owned(), from);
            self.tell(|robot, now| {
                let message = said;
                robot.handle(Input::Gathering { report, message }, now)
            });
        }
    }

    /// A robot gathers a topic, or no longer does.
    pub(crate) fn on_gathers(&self, sample: &Sample) {
        let key = sample.key_expr().as_str();
        let robot = self.keyspace.part(key, 1).and_then(|name| self.team.robot_named(name));
        let [topic, incarnation, session] = [2, 3, 4].map(|place| self.keyspace.part(key, place));
        let (Some(robot), Some(topic), Some(incarnation), Some(session)) = (robot, topic, incarnation, session) else {
            return;
        };
        let (report, here) = ((topic.to_owned(), robot), sample.kind() == SampleKind::Put);
        let session = (incarnation.to_owned(), session.to_owned());
        self.tell(|robot, now| robot.handle(Input::Gatherer { report, session, here }, now));
    }
}
