//! One robot on real sockets: what its users hold, and what its threads and callbacks share.
//!
//! Callbacks of the fabric tell the [`Brain`] what came and wake the driver (`drive.rs`); the driver alone does what the
//! brain wants done, so that the order of its wishes is the order on the wire. The lock is never held while something is
//! sent.

mod dead;
mod drive;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use coorp_core::clock::Offset;
use coorp_core::paths::PathId;
use coorp_core::policy::Policy;
use coorp_core::windows::Window;
use coorp_core::{Duration, FlowId, Instant, RobotId};
use coorp_team::Team;
use zenoh::liveliness::LivelinessToken;
use zenoh::query::Query;
use zenoh::Wait;

use crate::brain::{Brain, PermitState, TOPICS_MAX};
use crate::bulk::{replace, Bulk, BulkReceiver, BulkStream, Written};
use crate::control::{checked, Inbox, Publisher, Sent, Subscriber};
use crate::fabric::{Keys, Sessions, Who};
use crate::gather::Gatherings;
use crate::keys::Identity;
use crate::links::{Hearing, Links};
use crate::network;
use crate::paths::paths_used;
use crate::quic::Credentials;
use crate::status::{self, RefusedCounts, Status};
use crate::wire::{ControlHeader, Parcel, HEARS_BYTES_MAX};
use crate::Error;

/// Local clocks start so long after zero, so that no offset reaches below it.
const CLOCK_ORIGIN: Duration = Duration::from_secs(1_000);
/// Answers that may wait for one path.
const ANSWERS_MAX: usize = 1_024;
/// Starts are told apart where they are so far apart, milliseconds.
const INCARNATION_TICK_MS: u128 = 250;
/// From which incarnations are counted: 2025, in milliseconds of Unix time.
const INCARNATION_EPOCH_MS: u128 = 1_735_689_600_000;

/// How to take part in a team.
#[derive(Clone, Debug)]
pub struct Options {
    /// The team.
    pub team: Team,
    /// The robot to be, by name.
    pub robot: String,
    /// What runs; the team file's `[policy]` is applied to it.
    pub policy: Policy,
    /// Without keys: anyone who reaches the network may read, speak for robots and hand out permits. No bulk.
    pub insecure: bool,
    /// The folder for bulk that has come; `None`: below `$XDG_STATE_HOME` or `~/.local/state`.
    pub state: Option<PathBuf>,
}

/// Said where keys are left out.
pub const INSECURE: &str =
    "nothing is encrypted and nobody proves who they are; whoever reaches this network can read, \
                            speak for any robot and hand out permits";

/// A query and its answer, if it has one: its key and frame.
type Answer = (Query, Option<(String, Vec<u8>)>);

/// A robot that takes part in its team, until it is dropped.
#[derive(Debug)]
pub struct Node {
    inner: Arc<Inner>,
    driver: Option<JoinHandle<()>>,
    /// Gone with the node: the others learn at once.
    _alive: Vec<LivelinessToken>,
}

pub(crate) struct Inner {
    pub team: Team,
    pub me: RobotId,
    pub(crate) policy: Policy,
    secure: bool,
    pub keys: Keys,
    started: std::time::Instant,
    pub incarnation: u32,
    brain: Mutex<Brain>,
    wake: Condvar,
    stop: AtomicBool,
    /// Paths that are used.
    pub paths: usize,
    /// One a path.
    pub coordination: Sessions,
    /// There once the node is open.
    links: OnceLock<Arc<Links>>,
    /// Who hears what.
    hearing: Mutex<Hearing>,
    /// Robots whose tokens are there, each with the sessions that hold them.
    alive: Mutex<BTreeMap<RobotId, BTreeSet<String>>>,
    /// As the controller: the newest open query of each robot over each path, to be answered when there is something to
    /// say.
    asking: Mutex<BTreeMap<RobotId, BTreeMap<usize, Query>>>,
    /// To the threads that answer queries, one a path.
    answers: Vec<SyncSender<Answer>>,
    /// What the control topics of this robot count, for its status.
    published: Mutex<BTreeMap<FlowId, Arc<Sent>>>,
    /// Messages of each topic so far, ended topics included.
    counts: Mutex<BTreeMap<String, Arc<AtomicU64>>>,
    subscribed: Mutex<Vec<Weak<Inbox>>>,
    pub gatherings: Gatherings,
    /// How many want bulk to be sent.
    wishes: Mutex<usize>,
    /// `None` where there are no keys for it.
    bulk: OnceLock<Arc<Bulk>>,
    pub refused: RefusedCounts,
}

/// Somebody wants bulk to be sent: while one is there, the robot asks for permits.
#[derive(Debug)]
pub struct Wish(Weak<Inner>);

impl Drop for Wish {
    fn drop(&mut self) {
        if let Some(inner) = self.0.upgrade() {
            let mut wishes = lock(&inner.wishes);
            *wishes -= 1;
            if *wishes == 0 {
                inner.tell(|brain, now| brain.want_bulk(false, now));
            }
        }
    }
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inner").field("me", &self.me).finish_non_exhaustive()
    }
}

impl Node {
    /// Joins the team. Needs nobody else to be there. This waits, as dropping the node does, for part of a second, also in
    /// async code, where any of tokio's runtimes will do. One that is insecure says so in the log, as
    /// `coorp_node::insecure`.
    ///
    /// # Errors
    /// Where the team has no such robot, its keys are missing, this machine does not have its interfaces or addresses, or
    /// its ports cannot be had.
    pub fn open(options: Options) -> Result<Node, Error> {
        let Options {
            team,
            robot,
            policy,
            insecure,
            state,
        } = options;
        let team = network::placed(team)?;
        let me = robot_named(&team, &robot)?;
        let policy = team.policy.apply(&policy);
        let identity = if insecure {
            tracing::warn!(target: "coorp_node::insecure", "{robot} is insecure: {INSECURE}");
            None
        } else {
            Some(Identity::of_robot(&team, &robot)?)
        };
        let state = state.unwrap_or_else(|| state_folder(&team.name, &robot));
        let incarnation = incarnation(&state)?;
        let started = std::time::Instant::now();
        let brain = Brain::new(&team, &policy, me, incarnation, CLOCK_ORIGIN_INSTANT).map_err(Error::Input)?;
        let (who, identity) = (Who::Robot(me), identity.as_ref());
        let credentials = identity.map_or_else(|| Credentials::of_anybody(&robot), Credentials::of)?;
        let paths = paths_used(&team, me);
        network::check_here(&team.robots[usize::from(me.0)], paths)?;
        let answers = (0..paths).map(|_| answering()).collect::<Result<_, _>>()?;
        let coordination = Sessions::open(&team, who, identity, paths)?;
        let inner = Arc::new(Inner {
            me,
            secure: identity.is_some(),
            keys: Keys::new(&team),
            started,
            incarnation,
            brain: Mutex::new(brain),
            wake: Condvar::new(),
            stop: AtomicBool::new(false),
            paths,
            coordination,
            links: OnceLock::new(),
            hearing: Mutex::default(),
            alive: Mutex::default(),
            asking: Mutex::default(),
            answers,
            published: Mutex::default(),
            counts: Mutex::default(),
            subscribed: Mutex::default(),
            gatherings: Gatherings::default(),
            wishes: Mutex::default(),
            bulk: OnceLock::new(),
            refused: RefusedCounts::default(),
            policy,
            team,
        });
        // Nobody else has set it, nor what follows.
        let _ = inner.links.set(Links::open(&inner, &credentials)?);
        if identity.is_some() {
            let bulk = Bulk::open(&inner, &credentials, &state)?;
            bulk.set_permitted(inner.ask(|brain, now| brain.is_permitted(now)));
            let _ = inner.bulk.set(bulk);
        }
        inner.listen()?;
        let alive = inner.coordination.iter().map(|session| {
            let key = inner.keys.alive(&robot, &session.zid().to_string());
            let token = session.liveliness().declare_token(key).wait();
            token.map_err(|error| fabric_failed(error.as_ref()))
        });
        let alive = alive.collect::<Result<_, _>>()?;
        let driven = inner.clone();
        let driver = std::thread::Builder::new()
            .name("coorp-driver".to_owned())
            .spawn(move || driven.drive());
        let driver = driver.map_err(|error| Error::Failed(format!("cannot start a thread: {error}")))?;
        Ok(Node {
            inner,
            driver: Some(driver),
            _alive: alive,
        })
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }

    /// Which of the team's robots this is.
    pub fn place(&self) -> RobotId {
        self.inner.me
    }

    /// Begins a bulk message to a robot, or to `leader`: whoever leads when it is begun, or the team file's leader
    /// while nobody is known to lead. To that robot it goes, also where it dies and another one leads.
    ///
    /// # Errors
    /// Where there is no such robot, it is this one, or bulk was left out for lack of keys.
    pub fn bulk_stream(&self, to: &str, name: &str) -> Result<BulkStream, Error> {
        let inner = &self.inner;
        let (robot, own) = match inner.team.robot_named(to) {
            None if to == "leader" => match inner.ask(|brain, now| brain.leader(now)) {
                Some(leader) => (
                    leader,
                    "leads now: use here what is for the leader, or name another robot",
                ),
                None => (
                    inner.team.leader,
                    "is the team file's leader, and nobody leads now: wait for a leader, or name another robot",
                ),
            },
            _ => (robot_named(&inner.team, to)?, "is this one: name another one"),
        };
        if robot == inner.me {
            let name = inner.name();
            return Err(Error::Input(format!(
                "bulk goes from one robot to another, and {name} {own}"
            )));
        }
        Ok(BulkStream {
            bulk: self.bulk()?.clone(),
            to: robot,
            name: checked(name)?.to_owned(),
            written: Written::default(),
        })
    }

    /// Receives bulk messages from all robots, those that came before included.
    ///
    /// # Errors
    /// Where bulk was left out for lack of keys.
    pub fn bulk_receiver(&self) -> Result<BulkReceiver, Error> {
        Ok(BulkReceiver {
            bulk: self.bulk()?.clone(),
        })
    }

    fn bulk(&self) -> Result<&Arc<Bulk>, Error> {
        let bulk = self.inner.bulk.get();
        bulk.ok_or_else(|| {
            let text = "bulk needs the team's keys: run this robot without --insecure, in Python without insecure=True";
            Error::Input(text.to_owned())
        })
    }

    /// Asks for a permit for as long as the wish is kept: for bulk that goes other ways than this library's.
    pub fn wish_bulk(&self) -> Wish {
        self.inner.wish()
    }

    /// Whether bulk may be sent now, as far as permits go.
    pub fn may_send_bulk(&self) -> bool {
        self.inner.ask(|brain, now| brain.is_permitted(now))
    }

    /// Sends control messages on a topic; `period` where its messages come at one, which saves learning it.
    ///
    /// # Errors
    /// Where the topic's name or the period does not fit, or this robot publishes too many.
    pub fn control_publisher(&self, topic: &str, period: Option<Duration>) -> Result<Publisher, Error> {
        Publisher::new(&self.inner, topic, period)
    }

    /// Receives the control messages of all robots on a topic, this robot's own included.
    ///
    /// # Errors
    /// Where the topic's name does not fit.
    pub fn control_subscriber(&self, topic: &str) -> Result<Subscriber, Error> {
        Subscriber::new(&self.inner, topic)
    }

    /// The robot as it is now.
    pub fn status(&self) -> Status {
        self.inner.status()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(bulk) = self.inner.bulk.get() {
            bulk.close();
        }
        // What is held goes back before the others see us go, and they need not wait for a new leader.
        self.inner.tell(|brain, now| {
            brain.want_bulk(false, now);
            brain.resign(now);
        });
        self.inner.stop.store(true, Ordering::Release);
        self.inner.wake.notify_all();
        if let Some(driver) = self.driver.take() {
            let _ = driver.join();
        }
        if let Some(links) = self.inner.links.get() {
            links.close();
        }
        self.inner.coordination.close();
    }
}

const CLOCK_ORIGIN_INSTANT: Instant = Instant::from_nanos(CLOCK_ORIGIN.as_nanos());

impl Inner {
    /// This robot's clock.
    pub fn now(&self) -> Instant {
        let nanos = u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        CLOCK_ORIGIN_INSTANT + Duration::from_nanos(nanos)
    }

    /// Tells the brain something, and lets the driver do what comes of it.
    pub fn tell<T>(&self, what: impl FnOnce(&mut Brain, Instant) -> T) -> T {
        let mut brain = lock(&self.brain);
        // Read once it is ours, so that the brain never sees time go back.
        let now = self.now();
        brain.journal.at(now);
        let before = brain.next_deadline();
        let told = what(&mut brain, now);
        if brain.is_pressing(before) {
            self.wake.notify_one();
        }
        told
    }

    /// Asks the brain something that changes nothing.
    pub fn ask<T>(&self, what: impl FnOnce(&Brain, Instant) -> T) -> T {
        what(&lock(&self.brain), self.now())
    }

    pub fn name(&self) -> &str {
        self.name_of(self.me)
    }

    pub fn name_of(&self, robot: RobotId) -> &str {
        self.team
            .robots
            .get(usize::from(robot.0))
            .map_or("", |robot| robot.name.as_str())
    }

    /// What a path of this robot's is called: its interface, or else its address.
    pub fn path_name(&self, path: usize) -> String {
        let robot = &self.team.robots[usize::from(self.me.0)];
        match (robot.interfaces.get(path), robot.addresses.get(path)) {
            (Some(interface), _) => interface.clone(),
            (None, Some(address)) => address.to_string(),
            (None, None) => "any".to_owned(),
        }
    }

    /// What the leader's clock shows when ours shows `ours`: which leader's it is, the time, and within what.
    pub fn leaders_time(&self, ours: Instant) -> Option<(u64, Instant, Duration)> {
        let (leader, known) = self.ask(|brain, now| (brain.leader(now), brain.leaders_clock(now)));
        if leader == Some(self.me) {
            return Some((self.own_clock(), ours, Duration::ZERO));
        }
        // While nobody leads the last leader's clock is still what all know.
        let (clock, offset) = known?;
        Some((clock, offset.theirs(ours), offset.within))
    }

    /// Somebody wants bulk to be sent.
    pub fn wish(self: &Arc<Self>) -> Wish {
        let mut wishes = lock(&self.wishes);
        *wishes += 1;
        if *wishes == 1 {
            self.tell(|brain, now| brain.want_bulk(true, now));
        }
        Wish(Arc::downgrade(self))
    }

    /// What this robot's sockets of a path are bound to: its address there, and its interface, as a path must not lead
    /// through another one than its own.
    pub fn outlet(&self, path: usize) -> (IpAddr, Option<&String>) {
        let robot = &self.team.robots[usize::from(self.me.0)];
        let everywhere = IpAddr::from([0, 0, 0, 0]);
        let address = robot.addresses.get(path).copied().unwrap_or(everywhere);
        (address, robot.interfaces.get(path))
    }

    /// Where a robot is on a path: at its address in the team file, or where its session comes from.
    pub fn address_of(&self, robot: RobotId, path: usize) -> Option<IpAddr> {
        let given = self.team.robots.get(usize::from(robot.0))?.addresses.get(path).copied();
        given.or_else(|| self.found(robot, path))
    }

    fn found(&self, robot: RobotId, path: usize) -> Option<IpAddr> {
        let sessions = lock(&self.alive).get(&robot)?.clone();
        self.coordination.peer(path, |session| sessions.contains(session))
    }

    /// Where that clock is, if it is ours or was a leader's of late.
    pub fn clock(&self, clock: u64) -> Option<Offset> {
        if clock == self.own_clock() {
            return Some(Offset {
                ahead_ns: 0,
                within: Duration::ZERO,
            });
        }
        self.ask(|brain, now| brain.clock(clock, now))
    }

    // --- control topics ---------------------------------------------------------------------------------------

    /// The other robots that hear a topic.
    pub fn hearers(&self, topic: &str) -> Vec<RobotId> {
        let mut hearers = lock(&self.hearing).hearers(topic, self.now());
        hearers.retain(|robot| *robot != self.me);
        hearers
    }

    /// The topics that this robot publishes.
    pub fn published_topics(&self) -> BTreeSet<String> {
        lock(&self.published)
            .values()
            .map(|sent| sent.topic().to_owned())
            .collect()
    }

    /// The topics that this robot hears, a line each, as far as that may be told.
    pub fn heard_topics(&self) -> String {
        let inboxes: Vec<_> = lock(&self.subscribed).iter().filter_map(Weak::upgrade).collect();
        let topics: BTreeSet<&str> = inboxes.iter().map(|inbox| inbox.topic()).collect();
        let mut lines = String::new();
        for topic in topics {
            if lines.len() + topic.len() < HEARS_BYTES_MAX {
                lines += topic;
                lines.push('\n');
            }
        }
        lines
    }

    /// Sends a message over a link.
    pub fn send(&self, to: RobotId, path: PathId, parcel: &Parcel, content: &Bytes) {
        if let Some(links) = self.links.get() {
            links.send(to, path, parcel, content);
        }
    }

    /// Makes the links to a robot that is about to be sent to.
    pub fn warm(&self, to: RobotId) {
        if let Some(links) = self.links.get() {
            links.warm(to);
        }
    }

    /// A copy of a control message came, or this robot has sent one.
    pub fn on_control(&self, from: RobotId, path: PathId, topic: &str, header: ControlHeader, content: &Bytes) {
        let now = self.now();
        // Not under the lock: whoever takes a message asks for more.
        let inboxes: Vec<_> = lock(&self.subscribed)
            .iter()
            .filter_map(Weak::upgrade)
            .filter(|inbox| inbox.topic() == topic)
            .collect();
        for inbox in inboxes {
            inbox.on_message(from, path, header, content, now);
        }
    }

    pub fn publish(&self, sent: &Arc<Sent>, period: Option<Duration>) -> Result<FlowId, Error> {
        let flow = self.tell(|brain, _| brain.add_flow(period)).ok_or_else(|| {
            Error::Input(format!(
                "{} publishes {TOPICS_MAX} control topics already, which is the limit",
                self.name()
            ))
        })?;
        lock(&self.published).insert(flow, sent.clone());
        self.hearers(sent.topic())
            .into_iter()
            .for_each(|robot| self.warm(robot));
        self.tell(|brain, now| brain.reporters.publish(sent.topic(), now));
        Ok(flow)
    }

    /// The count of a topic's messages.
    pub fn count_of(&self, topic: &str) -> Arc<AtomicU64> {
        lock(&self.counts).entry(topic.to_owned()).or_default().clone()
    }

    pub fn unpublish(&self, flow: FlowId) {
        let sent = lock(&self.published).remove(&flow);
        self.tell(|brain, now| {
            brain.remove_flow(flow);
            if let Some(sent) = sent {
                brain.reporters.unpublish(sent.topic(), now);
            }
        });
    }

    pub fn subscribe(&self, inbox: &Arc<Inbox>) {
        let mut subscribed = lock(&self.subscribed);
        subscribed.retain(|inbox| inbox.strong_count() > 0);
        subscribed.push(Arc::downgrade(inbox));
    }

    // --- status -----------------------------------------------------------------------------------------------

    pub(crate) fn status(&self) -> Status {
        let now = self.now();
        let alive = lock(&self.alive).keys().map(|robot| robot.0).collect();
        let robot = &self.team.robots[usize::from(self.me.0)];
        // Before the brain is held: whoever sends bulk asks the brain while holding what is counted here.
        let held = self.ask(|brain, _| brain.is_held());
        let bulk = self.bulk.get().map(|bulk| bulk.status(held));
        let published = lock(&self.published).values().map(|sent| sent.published()).collect();
        let subscribed = lock(&self.subscribed).clone();
        let heard = subscribed
            .iter()
            .filter_map(Weak::upgrade)
            .flat_map(|inbox| inbox.heard(now))
            .collect();
        let gatherings = self.gatherings.all();
        let gathered = gatherings
            .iter()
            .flat_map(|gathering| gathering.gathered(now))
            .collect();
        let (window, now) = self.tell(|brain, now| (brain.window(now), now));
        let brain = lock(&self.brain);
        let (holders, queue) = brain.granted();
        Status {
            robot: robot.name.clone(),
            leader: brain.leader(now).map(|leader| leader.0),
            leads: brain.leader(now) == Some(self.me),
            secure: self.secure,
            policy: self.policy.name.clone(),
            up_ms: now.since(CLOCK_ORIGIN_INSTANT).as_nanos() / 1_000_000,
            alive,
            permit: match brain.permit(now) {
                PermitState::NotNeeded => status::Permit::NotNeeded,
                PermitState::Idle => status::Permit::Idle,
                PermitState::Waiting => status::Permit::Waiting,
                PermitState::Holding => status::Permit::Holding,
            },
            holders: holders.iter().map(|robot| robot.0).collect(),
            queue: queue.iter().map(|robot| robot.0).collect(),
            window_us: relative(window, now),
            clock_ns: brain
                .leaders_clock(now)
                .map(|(_, offset)| (offset.ahead_ns, offset.within.as_nanos())),
            paths: (0..self.paths).map(|path| self.path_name(path)).collect(),
            choices: brain.paths(now),
            bulk,
            published,
            heard,
            gathered,
            refused: self.refused.read(),
        }
    }
}

/// A thread that answers queries; it ends when what they are handed over by is dropped.
fn answering() -> Result<SyncSender<Answer>, Error> {
    let (answers, queries) = std::sync::mpsc::sync_channel(ANSWERS_MAX);
    let thread = std::thread::Builder::new().name("coorp-answers".to_owned());
    let thread = thread.spawn(move || drive::answer_all(&queries));
    thread.map_err(|error| Error::Failed(format!("cannot start a thread: {error}")))?;
    Ok(answers)
}

/// A window seen from now, in microseconds; `None` once it is over.
fn relative(window: Window, now: Instant) -> Option<(i64, u64)> {
    let micros = |span: Duration| span.as_nanos() / 1_000;
    let start = i64::try_from(micros(window.start.since(now))).unwrap_or(i64::MAX);
    let begun = i64::try_from(micros(now.since(window.start))).unwrap_or(i64::MAX);
    (window.end > now).then(|| (start - begun, micros(window.end.since(window.start))))
}

pub(crate) fn robot_named(team: &Team, name: &str) -> Result<RobotId, Error> {
    team.robot_named(name).ok_or_else(|| {
        let names: Vec<&str> = team.robots.iter().map(|robot| robot.name.as_str()).collect();
        Error::Input(format!(
            "the team has no robot \"{name}\"; its robots are {}",
            names.join(", ")
        ))
    })
}

/// Where a robot keeps what it has received, unless it is told otherwise.
fn state_folder(team: &str, robot: &str) -> PathBuf {
    let set = |name: &str| {
        std::env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    let base = set("XDG_STATE_HOME").or_else(|| Some(set("HOME")?.join(".local/state")));
    base.unwrap_or_else(|| PathBuf::from("/var/tmp"))
        .join("coorp")
        .join(team)
        .join(robot)
}

/// A number that grows from each start of a robot to the next: kept on disk, and of the clock's time where that is ahead,
/// so that a disk that was wiped does no harm.
fn incarnation(state: &Path) -> Result<u32, Error> {
    let file = state.join("incarnation");
    let known = match std::fs::read_to_string(&file) {
        Ok(text) => text.trim().parse().unwrap_or(0),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => 0u32,
        Err(error) => return Err(Error::at("read", &file, &error)),
    };
    let now_ms = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_millis();
    let ticks = now_ms.saturating_sub(INCARNATION_EPOCH_MS) / INCARNATION_TICK_MS;
    let next = known.saturating_add(1).max(u32::try_from(ticks).unwrap_or(u32::MAX));
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(state);
    made.map_err(|error| Error::at("make the folder", state, &error))?;
    replace(state, "incarnation", next.to_string().as_bytes()).map_err(|error| Error::at("write", &file, &error))?;
    Ok(next)
}

pub(crate) fn fabric_failed(error: &(dyn std::error::Error + 'static)) -> Error {
    Error::Failed(format!("the fabric failed: {error}"))
}

/// Takes a lock. A thread that panicked under it has broken nothing that the next would trip over.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
