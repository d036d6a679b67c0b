//! The newest state of every robot on a topic, as one list per period, with the age of each state: Dust's tracker on
//! real sockets.
//!
//! `core::tracker` decides who is connected, what is newest and what was missed. This module has a [`Gather`] and its
//! counterpart, the reporting side of a robot whose states are gathered. A gather's lists are made by a caller that
//! waits for one, or else by a thread. A robot announces over its links that it gathers a topic. Each
//! publisher of that topic then connects (Dust, section IV-A), is answered once there is a subscription for it, and
//! sends its states with T1 on the gathering robot's clock.
//!
//! States travel like control, over the paths that the robot chooses, and as separate copies: a robot need not
//! subscribe to a topic that it gathers. Left out: sending the list on to others, as the paper's tracker does. The list
//! is used where it is made, so T4 is the time at which it is taken.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant as StdInstant;

use bytes::Bytes;
use coorp_core::paths::PathId;
use coorp_core::robot::{Input, ReportAction, StateCopy};
use coorp_core::tracker::{Message, Stamps, Topics, Tracker, TrackerAction, TrackerConfig, Updates};
use coorp_core::{Duration, Instant, RobotId};

use crate::ground::{watched, Signal, Worker};
use crate::guests::{self, By};
use crate::links::Links;
use crate::mailbox::Mailbox;
use crate::member::Member;
use crate::presence::Gathers;
use crate::shared_robot::SharedRobot;
use crate::status::Gathered;
use crate::sync::lock;
use crate::topic::{checked, Age};
use crate::wire::{self, Hello, Parcel};
use crate::Error;

/// The shortest and the longest time between two lists.
const PERIOD_MIN: Duration = Duration::from_micros(500);
const PERIOD_MAX: Duration = Duration::from_secs(60);
/// The number of actions that may wait for the thread; inputs that would add more are dropped.
const TODO_MAX: usize = 4_096;
/// The thread that makes lists wakes at least this often.
const LOOK_UP_EVERY: std::time::Duration = std::time::Duration::from_millis(500);
/// A caller that waits for a list makes it itself; the thread does so this much later.
const OTHERS_FIRST: Duration = Duration::from_micros(300);

/// Gathers the states of all robots on a topic, until it is dropped.
#[derive(Debug)]
pub struct Gather(pub(crate) By<OwnGather, guests::Gather>);

impl Gather {
    pub(crate) fn new(
        gatherings: &Arc<Gatherings>,
        topic: &str,
        period: Duration,
        topics: Topics,
    ) -> Result<Gather, Error> {
        Ok(Gather(By::Robot(OwnGather::new(gatherings, topic, period, topics)?)))
    }

    /// Returns the newest list, if it was not taken before.
    pub fn try_recv(&self) -> Option<Table> {
        match &self.0 {
            By::Robot(own) => own.shared.lists.try_recv().map(|listed| own.table(listed)),
            By::Guest(guest) => guest.try_recv(),
        }
    }

    /// Waits for the next list until `timeout` has passed; without a timeout, forever. Each list goes to one taker: a
    /// caller that waits here makes it, and leaves none for [`Gather::next`].
    pub fn recv(&self, timeout: Option<std::time::Duration>) -> Option<Table> {
        match &self.0 {
            By::Robot(own) => own.recv(timeout),
            By::Guest(guest) => guest.recv(timeout),
        }
    }

    /// Waits for the next list.
    pub async fn next(&self) -> Table {
        match &self.0 {
            By::Robot(own) => own.table(own.shared.lists.next().await),
            By::Guest(guest) => guest.next().await,
        }
    }

    /// Returns the connected robots, each with the number of lists on which it had no fresh state. Empty while a
    /// guest's agent is not running.
    pub fn updates(&self) -> Vec<(RobotId, Updates)> {
        match &self.0 {
            By::Robot(own) => lock(&own.shared.state).tracker.robots().collect(),
            By::Guest(guest) => guest.updates(),
        }
    }
}

/// A gathering of the robot itself.
#[derive(Debug)]
pub(crate) struct OwnGather {
    gatherings: Arc<Gatherings>,
    shared: Arc<Gathering>,
    lister: Option<Worker>,
}

/// State shared by callbacks, the thread that makes lists and the user.
#[derive(Debug)]
pub(crate) struct Gathering {
    topic: String,
    /// Distinguishes it from earlier ones of the topic.
    number: u32,
    state: Mutex<State>,
    /// Wakes the thread, once there is one.
    lister: OnceLock<Signal>,
    stop: AtomicBool,
    /// The newest list, until it is taken.
    lists: Mailbox<Listed>,
}

#[derive(Debug)]
struct State {
    tracker: Tracker<Bytes>,
    /// Actions for the thread.
    todo: VecDeque<TrackerAction>,
    /// The number of callers that wait for a list and check when one is due.
    waiting: usize,
    /// The stamps of each robot's state on the last list, in the robots' order.
    ages: Vec<(RobotId, Stamps)>,
}

#[derive(Debug)]
struct Listed {
    at: Instant,
    /// Without ages, which depend on when the list is taken.
    states: Vec<RobotState>,
}

/// A list: each connected robot's newest state.
#[derive(Clone, Debug)]
pub struct Table {
    /// The time at which it was made (T3), on this robot's clock.
    pub listed_at: Instant,
    /// The time at which it was taken (T4), on this robot's clock.
    pub taken_at: Instant,
    /// The robots that have sent a state, in the team file's order.
    pub states: Vec<RobotState>,
}

impl Table {
    /// Returns a list that was made and is taken now, at this time.
    pub(crate) fn taken(listed_at: Instant, mut states: Vec<RobotState>, taken_at: Instant) -> Table {
        for state in &mut states {
            state.age = Age::of(&state.stamps, taken_at);
        }
        Table {
            listed_at,
            taken_at,
            states,
        }
    }
}

/// A robot's newest state.
#[derive(Clone, Debug)]
pub struct RobotState {
    /// The robot.
    pub from: RobotId,
    /// T1 to T3, on this robot's clock.
    pub stamps: Stamps,
    /// Whether it arrived since the last list; if not, the robot missed its update.
    pub fresh: bool,
    /// The age when the list was taken: T4 - T1. `None` before the clocks were compared.
    pub age: Option<Age>,
    pub(crate) payload: Bytes,
}

impl RobotState {
    /// Returns the content.
    pub fn bytes(&self) -> &[u8] {
        &self.payload
    }
}

impl OwnGather {
    fn new(gatherings: &Arc<Gatherings>, topic: &str, period: Duration, topics: Topics) -> Result<OwnGather, Error> {
        let topic = checked(topic)?;
        if !(PERIOD_MIN..=PERIOD_MAX).contains(&period) {
            return Err(Error::Period(format!(
                "cannot gather at a period of {period}: use {PERIOD_MIN} to {PERIOD_MAX}"
            )));
        }
        let config = TrackerConfig {
            topics,
            period,
            robots_max: u16::try_from(gatherings.member.team.robots.len()).unwrap_or(u16::MAX),
            ..TrackerConfig::default()
        };
        let shared = Arc::new(Gathering {
            topic: topic.to_owned(),
            number: gatherings.next.fetch_add(1, Ordering::Relaxed),
            state: Mutex::new(State {
                tracker: Tracker::new(config, gatherings.robot.now()),
                todo: VecDeque::new(),
                waiting: 0,
                ages: Vec::new(),
            }),
            lister: OnceLock::new(),
            stop: AtomicBool::new(false),
            lists: Mailbox::new(),
        });
        gatherings.insert(topic, &shared)?;
        // From here on, dropping this ends whatever was started.
        let mut gather = OwnGather {
            gatherings: gatherings.clone(),
            shared: shared.clone(),
            lister: None,
        };
        let all = gatherings.clone();
        let robot = gatherings.robot.clone();
        let round = move || (!shared.stop.load(Ordering::Acquire)).then(|| shared.work(&all));
        let round = watched("the thread that gathers", move |why| robot.on_panic(why), round);
        let lister = gatherings
            .member
            .ground
            .worker("coorp-gather", || (), round)
            .map_err(Error::Thread)?;
        let _ = gather.shared.lister.set(lister.signal().clone());
        // Something may have arrived before the thread could be woken.
        lister.signal().wake();
        gather.lister = Some(lister);
        gatherings.announce(&gather.shared, true);
        Ok(gather)
    }

    fn recv(&self, timeout: Option<std::time::Duration>) -> Option<Table> {
        let until = timeout.and_then(|timeout| StdInstant::now().checked_add(timeout));
        loop {
            let mut state = lock(&self.shared.state);
            // A list made here needs no other thread to wake this one.
            self.shared.look(&self.gatherings.robot, &mut state);
            let mut listed = self.shared.lists.try_recv();
            if listed.is_none() {
                let left = until.map(|until| until.saturating_duration_since(StdInstant::now()));
                if left.is_some_and(|left| left.is_zero()) {
                    return None;
                }
                let due = state.until_due(self.gatherings.robot.now());
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

    fn table(&self, listed: Listed) -> Table {
        Table::taken(listed.at, listed.states, self.gatherings.robot.now())
    }
}

impl Drop for OwnGather {
    fn drop(&mut self) {
        // This goes first, so that no more robots connect.
        lock(&self.gatherings.by_topic).remove(&self.shared.topic);
        self.gatherings.announce(&self.shared, false);
        self.shared.stop.store(true, Ordering::Release);
        if let Some(lister) = self.lister.take() {
            lister.join();
        }
    }
}

impl Gathering {
    /// Does what is due, as one round of the thread. Returns how long the thread rests, unless it is woken.
    fn work(&self, gatherings: &Gatherings) -> std::time::Duration {
        let robot = &gatherings.robot;
        let mut state = lock(&self.state);
        if state.waiting == 0 || state.until_due(robot.now() - OTHERS_FIRST).is_zero() {
            self.look(robot, &mut state);
        }
        let todo = std::mem::take(&mut state.todo);
        if todo.is_empty() {
            let later = if state.waiting == 0 {
                Duration::ZERO
            } else {
                OTHERS_FIRST
            };
            return state.until_due(robot.now() - later).min(LOOK_UP_EVERY);
        }
        drop(state);
        // Not while holding the lock, which arrivals wait for.
        for action in todo {
            match action {
                // Links carry all topics.
                TrackerAction::Open(_) | TrackerAction::Close(_) => {}
                TrackerAction::Send { to, message } => gatherings.say(&self.topic, to, message),
                TrackerAction::Joined(robot) => {
                    tracing::info!("{} is gathered on {}", gatherings.member.name_of(robot), self.topic);
                }
                TrackerAction::Left(robot) => {
                    tracing::info!(
                        "{} is no longer gathered on {}",
                        gatherings.member.name_of(robot),
                        self.topic
                    );
                }
                // The list was made when this was queued.
                TrackerAction::List => {}
            }
        }
        std::time::Duration::ZERO
    }

    /// Makes the list, if one is due.
    fn look(&self, robot: &SharedRobot, state: &mut State) {
        let now = robot.now();
        state.tracker.on_deadline(now);
        self.collect(state, now);
    }

    /// Passes an arrival from a robot to the tracker. If too many actions already wait, the arrival counts as lost on
    /// the way.
    fn hear(&self, robot: &SharedRobot, what: impl FnOnce(&mut Tracker<Bytes>, Instant)) {
        if lock(&self.state).todo.len() < TODO_MAX {
            self.tell(robot, what);
        }
    }

    fn tell(&self, robot: &SharedRobot, what: impl FnOnce(&mut Tracker<Bytes>, Instant)) {
        let mut state = lock(&self.state);
        // Read under the lock, so that the tracker's time never goes back.
        let now = robot.now();
        what(&mut state.tracker, now);
        self.collect(&mut state, now);
    }

    /// Queues the tracker's actions, and makes its list, if it wants one.
    fn collect(&self, state: &mut State, now: Instant) {
        while let Some(action) = state.tracker.poll() {
            if matches!(action, TrackerAction::List) {
                self.lists.put(state.list(now), |_| true);
            } else {
                state.todo.push_back(action);
            }
        }
        if let (false, Some(lister)) = (state.todo.is_empty(), self.lister.get()) {
            lister.wake();
        }
    }

    /// Statistics of each robot's states.
    fn gathered(&self, now: Instant) -> Vec<Gathered> {
        let state = lock(&self.state);
        let robots = state.tracker.robots();
        let gathered = robots.map(|(robot, updates)| {
            let place = state.ages.binary_search_by_key(&robot, |(robot, _)| *robot);
            let age = place.ok().and_then(|place| Age::of(&state.ages[place].1, now));
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
    /// Returns the time until the tracker's next deadline.
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

/// The topics that this robot gathers, and the states that it sends to gathering robots.
#[derive(Debug)]
pub(crate) struct Gatherings {
    member: Arc<Member>,
    robot: Arc<SharedRobot>,
    links: Arc<Links>,
    by_topic: Mutex<BTreeMap<String, Arc<Gathering>>>,
    next: AtomicU32,
}

impl Gatherings {
    pub fn new(member: &Arc<Member>, robot: &Arc<SharedRobot>, links: &Arc<Links>) -> Arc<Self> {
        Arc::new(Gatherings {
            member: member.clone(),
            robot: robot.clone(),
            links: links.clone(),
            by_topic: Mutex::default(),
            next: AtomicU32::new(0),
        })
    }

    fn insert(&self, topic: &str, gathering: &Arc<Gathering>) -> Result<(), Error> {
        let mut all = lock(&self.by_topic);
        if all.contains_key(topic) {
            return Err(Error::Gathered(format!(
                "this robot already gathers \"{topic}\": share what `gather` has returned, or end the other program that \
                 does"
            )));
        }
        if all.len() >= Hello::TOPICS_MAX {
            return Err(Error::TooManyTopics(format!(
                "{} already gathers {} topics, which is the limit",
                self.member.name(),
                Hello::TOPICS_MAX
            )));
        }
        all.insert(topic.to_owned(), gathering.clone());
        Ok(())
    }

    /// Announces to all robots, including this one, that this robot gathers a topic or no longer does.
    fn announce(&self, gathering: &Gathering, here: bool) {
        let own = (gathering.topic.clone(), (self.member.incarnation, gathering.number));
        self.on_gathers(self.member.me, vec![own], here);
        self.links.announce();
    }

    fn get(&self, topic: &str) -> Option<Arc<Gathering>> {
        lock(&self.by_topic).get(topic).cloned()
    }

    fn all(&self) -> Vec<Arc<Gathering>> {
        lock(&self.by_topic).values().cloned().collect()
    }

    /// Statistics of the states of each topic and robot.
    pub fn gathered(&self) -> Vec<Gathered> {
        let now = self.robot.now();
        self.all()
            .iter()
            .flat_map(|gathering| gathering.gathered(now))
            .collect()
    }

    /// Handles the end of a robot's process.
    pub fn on_gone(&self, gone: RobotId) {
        for gathering in self.all() {
            gathering.tell(&self.robot, |tracker, now| tracker.on_gone(gone, now));
        }
    }

    /// Carries out the reporters' actions.
    pub fn report(&self, action: ReportAction) {
        match action {
            ReportAction::Say((topic, to), message) => self.say(&topic, to, message),
            // Links are open, or being opened, in any case.
            ReportAction::Open(_) => {}
            ReportAction::Close((topic, to)) => {
                tracing::debug!("states on {topic} no longer go to {}", self.member.name_of(to));
            }
        }
    }

    /// Sends states to the robots that gather them.
    pub fn send_states(&self, states: Vec<StateCopy>, message: &Bytes) {
        for state in states {
            let (topic, to) = state.report;
            let path = state.copy.map_or(PathId(0), |copy| copy.path);
            let header = wire::State {
                topic: state.topic,
                header: state.header,
                copy: state.copy.and_then(|copy| copy.number),
            };
            if to == self.member.me {
                self.on_state(to, &topic, header, message);
            } else {
                self.links.send(to, path, &Parcel::State { topic, header }, message);
            }
        }
    }

    /// Handles a copy of a state that arrived.
    pub fn on_state(&self, from: RobotId, topic: &str, header: wire::State, payload: &Bytes) {
        if let Some(gathering) = self.get(topic) {
            let (topic, header, payload) = (header.topic, header.header, payload.clone());
            gathering.hear(&self.robot, |tracker, now| {
                tracker.on_state(from, topic, header, payload, now);
            });
        }
    }

    fn say(&self, topic: &str, to: RobotId, message: Message) {
        let gathering = wire::Gathering {
            topic: topic.to_owned(),
            message,
        };
        if to == self.member.me {
            self.on_said(to, gathering);
        } else {
            self.links.say(to, &gathering);
        }
    }

    /// Handles a message about gathering from a robot.
    pub fn on_said(&self, from: RobotId, wire::Gathering { topic, message }: wire::Gathering) {
        let to_gatherer = matches!(
            message,
            Message::Connect { .. } | Message::Sync { .. } | Message::Leave { .. }
        );
        if to_gatherer {
            if let Some(gathering) = self.get(&topic) {
                gathering.hear(&self.robot, |tracker, now| tracker.on_message(from, message, now));
            }
        } else {
            let report = (topic, from);
            self.robot
                .tell(|robot, now| robot.handle(Input::Gathering { report, message }, now));
        }
    }

    /// Records that a robot gathers topics, or no longer does.
    pub fn on_gathers(&self, robot: RobotId, topics: Vec<Gathers>, here: bool) {
        for (topic, (start, number)) in topics {
            let (report, session) = ((topic, robot), (start.to_string(), number.to_string()));
            self.robot
                .tell(|robot, now| robot.handle(Input::Gatherer { report, session, here }, now));
        }
    }

    /// Returns the topics that this robot gathers, each with its gathering's number.
    pub fn topics(&self) -> Vec<(String, u32)> {
        let all = lock(&self.by_topic);
        all.values()
            .map(|gathering| (gathering.topic.clone(), gathering.number))
            .collect()
    }
}
