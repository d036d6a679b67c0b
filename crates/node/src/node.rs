//! One robot on real sockets: what its users hold, and what its threads and callbacks share.
//!
//! [`Robot`] decides. Callbacks of the fabric and the links tell it what came (`input.rs`) and wake the driver
//! (`drive.rs`); the driver alone does what the robot wants done, so that the order of its actions is the order on the wire.
//! The lock is never held while something is sent.

mod dead;
mod drive;
mod input;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Condvar, Mutex, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use coorp_core::clock::Offset;
use coorp_core::paths::PathId;
use coorp_core::policy::Policy;
use coorp_core::robot::{ClockId, Input, PermitState, Robot, FLOWS_MAX};
use coorp_core::windows::Window;
use coorp_core::{Duration, FlowId, Instant, RobotId};
use coorp_team::Team;
use zenoh::liveliness::LivelinessToken;
use zenoh::query::Query;
use zenoh::Wait;

use crate::bulk::{replace, Bulk, BulkReceiver, BulkStream, Written};
use crate::clock::Clock;
use crate::control::{checked, Inbox, Publisher, Sent, Subscriber};
use crate::fabric::{KeySpace, Sessions, Who};
use crate::flight::{About, Flown, Recorder};
use crate::gather::Gatherings;
use crate::keys::Identity;
use crate::links::{Links, Subscriptions};
use crate::network;
use crate::outqueue::{Departures, Target};
use crate::quic::Credentials;
use crate::status::{self, RefusedCounts, Status};
use crate::sync::{lock, spawn};
use crate::wire::{ControlHeader, Parcel, SUBSCRIPTIONS_BYTES_MAX};
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
    /// Ends with the node, after all else.
    recorder: Option<Recorder>,
    /// Gone with the node: the others learn at once.
    _alive: Vec<LivelinessToken>,
}

pub(crate) struct Inner {
    pub team: Team,
    pub me: RobotId,
    pub(crate) policy: Policy,
    secure: bool,
    pub keyspace: KeySpace,
    clock: Clock,
    pub incarnation: u32,
    /// All that is decided, and its flight recorder.
    pub robot: Mutex<Flown>,
    wake: Condvar,
    stop: AtomicBool,
    /// Paths that are used.
    pub paths: usize,
    /// One a path.
    pub coordination: Sessions,
    /// There once the node is open.
    links: OnceLock<Arc<Links>>,
    /// Own control messages that have not left; `None` if the policy has no windows that wait for them.
    departures: Option<Arc<Departures>>,
    /// Which robots subscribe to which topics.
    subscriptions: Mutex<Subscriptions>,
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
                inner.tell(|robot, now| robot.handle(Input::WantBulk(false), now));
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
        let clock = Clock::start();
        let config = team.robot_config(&policy, me, incarnation);
        let decides = Robot::new(config.clone(), CLOCK_ORIGIN_INSTANT).map_err(Error::Input)?;
        let about = About {
            team: team.name.clone(),
            robots: team.robots.iter().map(|robot| robot.name.clone()).collect(),
            config,
            origin: (CLOCK_ORIGIN_INSTANT, unix_ns()),
        };
        let (who, identity) = (Who::Robot(me), identity.as_ref());
        let credentials = identity.map_or_else(|| Credentials::of_anybody(&robot), Credentials::of)?;
        let paths = team.paths_used(me);
        network::check_here(&team.robots[usize::from(me.0)], paths)?;
        let answers = (0..paths).map(|_| answering()).collect::<Result<_, _>>()?;
        let coordination = Sessions::open(&team, who, identity, paths)?;
        let inner = Arc::new(Inner {
            me,
            secure: identity.is_some(),
            keyspace: KeySpace::new(&team),
            clock,
            incarnation,
            robot: Mutex::new(Flown::new(decides, about)),
            wake: Condvar::new(),
            stop: AtomicBool::new(false),
            paths,
            coordination,
            links: OnceLock::new(),
            departures: policy.local.is_some().then(Arc::default),
            subscriptions: Mutex::default(),
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
            bulk.set_permitted(inner.ask(|robot, now| robot.is_permitted(now)));
            let _ = inner.bulk.set(bulk);
        }
        inner.listen()?;
        let alive = inner.coordination.iter().map(|session| {
            let key = inner.keyspace.alive(&robot, &session.zid().to_string());
            let token = session.liveliness().declare_token(key).wait();
            token.map_err(|error| fabric_failed(error.as_ref()))
        });
        let alive = alive.collect::<Result<_, _>>()?;
        let recorder = Recorder::start(&inner, &state)?;
        let driven = inner.clone();
        let driver = spawn("coorp-driver", move || driven.drive())?;
        inner.watch_departures()?;
        Ok(Node {
            inner,
            driver: Some(driver),
            recorder: Some(recorder),
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
            None if to == "leader" => match inner.ask(|robot, now| robot.leader(now)) {
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
        self.inner.ask(|robot, now| robot.is_permitted(now))
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
        self.inner.tell(|robot, now| {
            robot.handle(Input::WantBulk(false), now);
            robot.handle(Input::Resign, now);
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
        drop(self.recorder.take());
    }
}

const CLOCK_ORIGIN_INSTANT: Instant = Instant::from_nanos(CLOCK_ORIGIN.as_nanos());

impl Inner {
    /// This robot's clock.
    pub fn now(&self) -> Instant {
        CLOCK_ORIGIN_INSTANT + self.clock.elapsed()
    }

    /// Tells the robot something, and lets the driver do what comes of it.
    pub fn tell<T>(&self, what: impl FnOnce(&mut Flown, Instant) -> T) -> T {
        let mut robot = lock(&self.robot);
        // Read once it is ours, so that the robot never sees time go back.
        let now = self.now();
        let before = robot.next_deadline();
        let told = what(&mut robot, now);
        if robot.is_pressing(before) {
            self.wake.notify_one();
        }
        told
    }

    /// Asks the robot something that changes nothing.
    pub fn ask<T>(&self, what: impl FnOnce(&Robot, Instant) -> T) -> T {
        what(&lock(&self.robot), self.now())
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

    /// Somebody wants bulk to be sent.
    pub fn wish(self: &Arc<Self>) -> Wish {
        let mut wishes = lock(&self.wishes);
        *wishes += 1;
        if *wishes == 1 {
            self.tell(|robot, now| robot.handle(Input::WantBulk(true), now));
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

    /// Where a clock is, if it is ours or was a leader's of late.
    pub fn clock(&self, clock: ClockId) -> Option<Offset> {
        self.ask(|robot, now| robot.clock(clock, now))
    }

    // --- control topics ---------------------------------------------------------------------------------------

    /// The other robots that subscribe to a topic.
    pub fn subscribers(&self, topic: &str) -> Vec<RobotId> {
        let mut subscribers = lock(&self.subscriptions).subscribers(topic, self.now());
        subscribers.retain(|robot| *robot != self.me);
        subscribers
    }

    /// The topics that this robot publishes.
    pub fn published_topics(&self) -> BTreeSet<String> {
        lock(&self.published)
            .values()
            .map(|sent| sent.topic().to_owned())
            .collect()
    }

    /// The topics that this robot subscribes to, a line each, as far as that may be told.
    pub fn subscribed_topics(&self) -> String {
        let inboxes: Vec<_> = lock(&self.subscribed).iter().filter_map(Weak::upgrade).collect();
        let topics: BTreeSet<&str> = inboxes.iter().map(|inbox| inbox.topic()).collect();
        let mut lines = String::new();
        for topic in topics {
            if lines.len() + topic.len() < SUBSCRIPTIONS_BYTES_MAX {
                lines += topic;
                lines.push('\n');
            }
        }
        lines
    }

    /// Sends a message over a link. Returns what tells when it has left, where it goes at once.
    pub fn send(&self, to: RobotId, path: PathId, parcel: &Parcel, content: &Bytes) -> Option<Target> {
        self.links.get()?.send(to, path, parcel, content)
    }

    /// Tells the robot, from a thread of its own, when control messages of this robot have left.
    fn watch_departures(self: &Arc<Self>) -> Result<(), Error> {
        let Some(departures) = self.departures.clone() else {
            return Ok(());
        };
        let node = Arc::downgrade(self);
        let on_left = move |flows: &[FlowId]| {
            let Some(node) = node.upgrade().filter(|node| !node.stop.load(Ordering::Acquire)) else {
                return false;
            };
            for flow in flows {
                node.tell(|robot, now| robot.handle(Input::ControlLeft(*flow), now));
            }
            true
        };
        spawn("coorp-left", move || departures.run(on_left)).map(drop)
    }

    /// A control message of this robot is under way to these; the robot is told when it has left.
    pub fn follow(&self, flow: FlowId, targets: Vec<Target>) {
        // Where nothing is under way there is nothing to wait for.
        let departures = self.departures.as_ref().filter(|_| !targets.is_empty());
        if !departures.is_some_and(|departures| departures.follow(flow, targets)) {
            self.tell(|robot, now| robot.handle(Input::ControlLeft(flow), now));
        }
    }

    /// There once the node is open.
    pub fn links(&self) -> Option<&Links> {
        self.links.get().map(|links| &**links)
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
        let flow = self.tell(|robot, now| robot.handle(Input::AddFlow(period), now).flow());
        let flow = flow.ok_or_else(|| {
            Error::Input(format!(
                "{} publishes {FLOWS_MAX} control topics already, which is the limit",
                self.name()
            ))
        })?;
        lock(&self.published).insert(flow, sent.clone());
        self.subscribers(sent.topic())
            .into_iter()
            .for_each(|robot| self.warm(robot));
        self.tell(|robot, now| robot.handle(Input::Publish(sent.topic().to_owned()), now));
        Ok(flow)
    }

    /// The count of a topic's messages.
    pub fn count_of(&self, topic: &str) -> Arc<AtomicU64> {
        lock(&self.counts).entry(topic.to_owned()).or_default().clone()
    }

    pub fn unpublish(&self, flow: FlowId) {
        let sent = lock(&self.published).remove(&flow);
        self.tell(|robot, now| {
            robot.handle(Input::RemoveFlow(flow), now);
            if let Some(sent) = sent {
                robot.handle(Input::Unpublish(sent.topic().to_owned()), now);
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
        let name = self.name().to_owned();
        // Before the robot is held: whoever sends bulk asks the robot while holding what is counted here.
        let held = self.ask(|robot, _| robot.is_held());
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
        let (robot, now) = (lock(&self.robot), self.now());
        let (holders, queue) = robot.granted();
        Status {
            robot: name,
            leader: robot.leader(now).map(|leader| leader.0),
            leads: robot.leader(now) == Some(self.me),
            secure: self.secure,
            policy: self.policy.name.clone(),
            up_ms: now.since(CLOCK_ORIGIN_INSTANT).as_nanos() / 1_000_000,
            alive,
            permit: match robot.permit(now) {
                PermitState::NotNeeded => status::Permit::NotNeeded,
                PermitState::Idle => status::Permit::Idle,
                PermitState::Waiting => status::Permit::Waiting,
                PermitState::Holding => status::Permit::Holding,
            },
            holders: holders.iter().map(|robot| robot.0).collect(),
            queue: queue.iter().map(|robot| robot.0).collect(),
            window_us: relative(robot.window(), now),
            clock_ns: robot
                .leaders_clock(now)
                .map(|(_, offset)| (offset.ahead_ns, offset.within.as_nanos())),
            paths: (0..self.paths).map(|path| self.path_name(path)).collect(),
            choices: robot.paths(now).into_iter().map(status::Path::from).collect(),
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
    spawn("coorp-answers", move || drive::answer_all(&queries))?;
    Ok(answers)
}

fn unix_ns() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
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
