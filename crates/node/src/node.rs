//! One robot on real sockets: the threads and callbacks that drive its [`Brain`].
//!
//! Callbacks of the fabric tell the brain what came and wake the driver; the driver alone does what the brain wants
//! done, so that the order of its wishes is the order on the wire. The lock is never held while something is sent.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration as StdDuration, SystemTime, UNIX_EPOCH};

use coorp_core::arrival::TimeModel;
use coorp_core::clock::Offset;
use coorp_core::failover::Message;
use coorp_core::permits;
use coorp_core::policy::Policy;
use coorp_core::windows::Window;
use coorp_core::{Duration, FlowId, Instant, RobotId};
use coorp_team::Team;
use zenoh::bytes::ZBytes;
use zenoh::liveliness::LivelinessToken;
use zenoh::qos::{CongestionControl, Priority};
use zenoh::query::{ConsolidationMode, Query, Reply};
use zenoh::sample::{Sample, SampleKind};
use zenoh::{Session, Wait};

use crate::brain::{Action, Brain, PermitState, TOPICS_MAX};
use crate::bulk::{replace, Bulk, BulkReceiver, BulkStream};
use crate::control::{checked, Inbox, Publisher, Sent, Subscriber};
use crate::fabric::{self, Keys, Who, PORT_BULK};
use crate::keys::Identity;
use crate::status::{self, RefusedCounts, Status};
use crate::wire::{self, Frame, TimeQuery, TimeReply};
use crate::Error;

/// Local clocks start so long after zero, so that no offset reaches below it.
const CLOCK_ORIGIN: Duration = Duration::from_secs(1_000);
/// An answer to a query that takes longer is not waited for: the requester has asked again long since.
const ANSWER_MAX: StdDuration = StdDuration::from_secs(2);
/// The driver looks up at least this often, whatever the brain says.
const LOOK_UP_EVERY: Duration = Duration::from_millis(500);
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

/// A robot that takes part in its team, until it is dropped.
#[derive(Debug)]
pub struct Node {
    inner: Arc<Inner>,
    driver: Option<JoinHandle<()>>,
    /// Gone with the node: the others learn at once.
    _alive: LivelinessToken,
}

pub(crate) struct Inner {
    pub team: Team,
    pub me: RobotId,
    policy: Policy,
    secure: bool,
    pub keys: Keys,
    started: std::time::Instant,
    pub incarnation: u32,
    brain: Mutex<Brain>,
    wake: Condvar,
    stop: AtomicBool,
    coordination: Session,
    /// One a path.
    pub control: Vec<Session>,
    /// Robots whose tokens are there, each with the sessions that hold them.
    alive: Mutex<BTreeMap<RobotId, BTreeSet<String>>>,
    /// As the controller: the newest open query of each robot, to be answered when there is something to say.
    asking: Mutex<BTreeMap<RobotId, Query>>,
    /// What the control topics of this robot count, for its status.
    published: Mutex<BTreeMap<FlowId, Arc<Sent>>>,
    subscribed: Mutex<Vec<Weak<Inbox>>>,
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
    /// Joins the team. Needs nobody else to be there.
    ///
    /// # Errors
    /// Where the team has no such robot, its keys are missing, or its ports or addresses cannot be had.
    pub fn open(options: Options) -> Result<Node, Error> {
        let Options {
            team,
            robot,
            policy,
            insecure,
            state,
        } = options;
        let me = robot_named(&team, &robot)?;
        let policy = team.policy.apply(&policy);
        let identity = if insecure {
            None
        } else {
            Some(Identity::of_robot(&team, &robot)?)
        };
        let state = state.unwrap_or_else(|| state_folder(&team.name, &robot));
        let incarnation = incarnation(&state)?;
        let started = std::time::Instant::now();
        let brain = Brain::new(&team, &policy, me, incarnation, CLOCK_ORIGIN_INSTANT).map_err(Error::Input)?;
        let (who, identity) = (Who::Robot(me), identity.as_ref());
        let coordination = fabric::coordination(&team, who, identity)?;
        let control = (0..fabric::paths(&team, me)).map(|path| fabric::control(&team, who, identity, path));
        let inner = Arc::new(Inner {
            me,
            secure: identity.is_some(),
            keys: Keys::new(&team),
            started,
            incarnation,
            brain: Mutex::new(brain),
            wake: Condvar::new(),
            stop: AtomicBool::new(false),
            control: control.collect::<Result<_, _>>()?,
            coordination,
            alive: Mutex::default(),
            asking: Mutex::default(),
            published: Mutex::default(),
            subscribed: Mutex::default(),
            wishes: Mutex::default(),
            bulk: OnceLock::new(),
            refused: RefusedCounts::default(),
            policy,
            team,
        });
        if let Some(identity) = identity {
            let bulk = Bulk::open(&inner, identity, &state)?;
            bulk.set_permitted(inner.ask(|brain, now| brain.is_permitted(now)));
            // Nobody else has set it.
            let _ = inner.bulk.set(bulk);
        }
        inner.listen()?;
        let session = inner.coordination.zid().to_string();
        let token = inner
            .coordination
            .liveliness()
            .declare_token(inner.keys.alive(&robot, &session));
        let alive = token.wait().map_err(|error| fabric_failed(error.as_ref()))?;
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

    /// Which of the team's robots this is.
    pub fn place(&self) -> RobotId {
        self.inner.me
    }

    /// Begins a bulk message to a robot.
    ///
    /// # Errors
    /// Where there is no such robot, it is this one, or bulk was left out for lack of keys.
    pub fn bulk_stream(&self, to: &str, name: &str) -> Result<BulkStream, Error> {
        let robot = robot_named(&self.inner.team, to)?;
        if robot == self.inner.me {
            return Err(Error::Input(format!(
                "bulk goes from one robot to another, and {to} is this one"
            )));
        }
        Ok(BulkStream {
            bulk: self.bulk()?.clone(),
            to: robot,
            name: checked(name)?.to_owned(),
            bytes: Vec::new(),
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
        bulk.ok_or_else(|| Error::Input("bulk needs the team's keys: run without --insecure".to_owned()))
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
    /// Where the topic's name does not fit, or this robot publishes too many.
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
        for session in self.inner.control.iter().chain([&self.inner.coordination]) {
            if let Err(error) = session.close().wait() {
                tracing::debug!("a session did not close: {error}");
            }
        }
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
        let now = self.now();
        let mut brain = lock(&self.brain);
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

    /// Where a robot takes bulk: at its address in the team file, or where its link comes from.
    pub fn bulk_address_of(&self, robot: RobotId) -> Option<SocketAddr> {
        let given = self.team.robots.get(usize::from(robot.0))?.addresses.first().copied();
        let address = given.or_else(|| self.found(robot))?;
        Some(SocketAddr::new(address, self.team.port(robot) + PORT_BULK))
    }

    fn found(&self, robot: RobotId) -> Option<IpAddr> {
        let sessions = lock(&self.alive).get(&robot)?.clone();
        let mut links = self.coordination.info().links().wait();
        let link = links.find(|link| sessions.contains(&link.zid().to_string()))?;
        let address = link.dst().address().as_str().parse::<SocketAddr>().ok()?;
        Some(address.ip())
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

    pub fn publish(&self, sent: &Arc<Sent>, period: Option<Duration>) -> Result<FlowId, Error> {
        let flow = self.tell(|brain, _| brain.add_flow(period)).ok_or_else(|| {
            Error::Input(format!(
                "{} publishes {TOPICS_MAX} control topics already, which is the limit",
                self.name()
            ))
        })?;
        lock(&self.published).insert(flow, sent.clone());
        Ok(flow)
    }

    pub fn unpublish(&self, flow: FlowId) {
        lock(&self.published).remove(&flow);
        self.tell(|brain, _| brain.remove_flow(flow));
    }

    pub fn subscribe(&self, inbox: &Arc<Inbox>) {
        let mut subscribed = lock(&self.subscribed);
        subscribed.retain(|inbox| inbox.strong_count() > 0);
        subscribed.push(Arc::downgrade(inbox));
    }

    // --- driving ----------------------------------------------------------------------------------------------

    fn drive(self: &Arc<Self>) {
        let mut brain = lock(&self.brain);
        loop {
            let now = self.now();
            brain.on_deadline(now);
            let actions: Vec<Action> = std::iter::from_fn(|| brain.poll()).collect();
            if !actions.is_empty() {
                drop(brain);
                actions.into_iter().for_each(|action| self.act(action));
                brain = lock(&self.brain);
                continue;
            }
            if self.stop.load(Ordering::Acquire) {
                return;
            }
            let until = brain.next_deadline().min(now + LOOK_UP_EVERY);
            let wait = StdDuration::from_nanos(until.since(self.now()).as_nanos());
            let woken = self
                .wake
                .wait_timeout(brain, wait)
                .unwrap_or_else(PoisonError::into_inner);
            brain = woken.0;
        }
    }

    fn act(self: &Arc<Self>, action: Action) {
        match action {
            Action::Tell(to, message) => self.say(to, message),
            Action::TellAll(message) => self.put(&self.keys.lead_all(self.name()), &wire::Coordination::from(message)),
            Action::Led(leader) => tracing::info!("{} leads", self.name_of(leader)),
            Action::Permitted(permitted) => {
                tracing::debug!("bulk is {}permitted", if permitted { "" } else { "no longer " });
                if let Some(bulk) = self.bulk.get() {
                    bulk.set_permitted(permitted);
                }
            }
            Action::Resume => {
                if let Some(bulk) = self.bulk.get() {
                    bulk.socket.wake();
                }
            }
            Action::AskTime(leader) => self.ask_time(leader),
            Action::TellModels(models) => self.tell_models(models),
        }
    }

    /// Tells a robot. What a requester says is a query, which its controller answers as soon as it has something to say.
    fn say(self: &Arc<Self>, to: RobotId, message: Message) {
        let frame = wire::Coordination::from(message);
        let Message::Permit { message: about, .. } = message else {
            return self.put(&self.keys.lead(self.name(), self.name_of(to)), &frame);
        };
        match about {
            permits::Message::Grant { .. } | permits::Message::Refuse { .. } => {
                // Where no query is open the robot asks again, and gets its answer then.
                if let Some(query) = lock(&self.asking).remove(&to) {
                    reply(&query, query.key_expr().as_str(), wire::encode(&frame));
                }
            }
            permits::Message::Request { .. } | permits::Message::Release { .. } | permits::Message::Renew { .. } => {
                let inner = self.clone();
                self.query(
                    &self.keys.permit(self.name_of(to), self.name()),
                    &frame,
                    move |payload| {
                        inner.on_said(to, payload);
                    },
                );
            }
        }
    }

    /// A robot says something about who leads, or about permits.
    fn on_said(&self, from: RobotId, payload: &ZBytes) {
        if let Some(said) = self.read::<wire::Coordination>("a word on permits", payload) {
            if !self.tell(|brain, now| brain.on_said(from, said.into(), now)) {
                self.refused.count_stale_grant();
            }
        }
    }

    fn put<F: Frame>(&self, key: &str, frame: &F) {
        let put = self.coordination.put(key, wire::encode(frame));
        let put = put
            .priority(Priority::RealTime)
            .congestion_control(CongestionControl::Drop)
            .express(true);
        if let Err(error) = put.wait() {
            tracing::debug!("{key} was not sent: {error}");
        }
    }

    fn ask_time(self: &Arc<Self>, leader: RobotId) {
        let leader = self.name_of(leader);
        let inner = self.clone();
        let asked = TimeQuery {
            sent_at: self.now().as_nanos(),
        };
        self.query(&self.keys.time(leader), &asked, move |payload| {
            let back_at = inner.now();
            if let Some(told) = inner.read::<TimeReply>("an answer about the time", payload) {
                let [sent_at, received_at, answered_at] =
                    [told.echo, told.received_at, told.sent_at].map(Instant::from_nanos);
                inner.tell(|brain, _| brain.on_time(told.clock, [sent_at, received_at, answered_at, back_at]));
            }
        });
    }

    /// Tells the others when this robot's control messages are due, so that they keep bulk off the air then.
    fn tell_models(&self, models: Vec<(u8, TimeModel)>) {
        let Some((clock, _, within)) = self.leaders_time(self.now()) else {
            return;
        };
        let Some(offset) = self.clock(clock) else { return };
        let theirs = |at: Instant| offset.theirs(at).as_nanos();
        let models = models.into_iter().map(|(topic, model)| wire::Model {
            topic,
            period: model.period.as_nanos(),
            phase: theirs(model.phase),
            sigma: model.sigma.as_nanos(),
            early: (model.early + within).as_nanos(),
            late: (model.late + within).as_nanos(),
        });
        let told = wire::Models {
            clock,
            models: models.collect(),
        };
        self.put(&self.keys.models(self.name()), &told);
    }

    fn on_models(&self, sample: &Sample) {
        let what = "when control messages are due";
        let from = self.keys.part(sample.key_expr().as_str(), 1);
        let Some(from) = from.and_then(|name| self.team.robot_named(name)) else {
            return self.refused.count(what, wire::Refusal::Malformed);
        };
        if from == self.me {
            return;
        }
        let Some(told) = self.read::<wire::Models>(what, sample.payload()) else {
            return;
        };
        // A clock that is not known yet soon will be; it is told again.
        let Some(offset) = self.clock(told.clock) else { return };
        let local = |at: Instant| offset.ours(at);
        let models = told.models.into_iter().map(|model| {
            let time_model = TimeModel {
                period: Duration::from_nanos(model.period),
                phase: local(Instant::from_nanos(model.phase)),
                sigma: Duration::from_nanos(model.sigma),
                early: Duration::from_nanos(model.early),
                late: Duration::from_nanos(model.late),
            };
            (model.topic, time_model)
        });
        let models: Vec<_> = models.collect();
        self.tell(|brain, now| brain.on_models(from, &models, offset.within, now));
    }

    fn query<F: Frame>(&self, key: &str, frame: &F, then: impl Fn(&ZBytes) + Send + Sync + 'static) {
        let asked = self
            .coordination
            .get(key)
            .payload(wire::encode(frame))
            .priority(Priority::RealTime)
            .congestion_control(CongestionControl::Drop)
            .express(true)
            .consolidation(ConsolidationMode::None)
            .timeout(ANSWER_MAX)
            .callback(move |reply: Reply| {
                if let Ok(sample) = reply.result() {
                    then(sample.payload());
                }
            });
        if let Err(error) = asked.wait() {
            tracing::debug!("a query was not sent: {error}");
        }
    }

    /// The frame in a payload; counts it where it is refused.
    pub fn read<F: Frame>(&self, what: &str, payload: &ZBytes) -> Option<F> {
        // Not put together where it is too long anyway.
        let frame = if payload.len() > F::BYTES_MAX {
            Err(wire::Refusal::Oversized)
        } else {
            wire::decode(&payload.to_bytes())
        };
        frame.map_err(|refusal| self.refused.count(what, refusal)).ok()
    }

    // --- listening --------------------------------------------------------------------------------------------

    fn listen(self: &Arc<Self>) -> Result<(), Error> {
        let name = self.name();
        self.answer_queries(&self.keys.status(name), |inner, query| {
            let key = inner.keys.status(inner.name());
            reply(query, &key, wire::encode(&inner.status()));
        })?;
        self.answer_queries(&self.keys.permit(name, "*"), Inner::on_permit_query)?;
        self.answer_queries(&self.keys.time(name), Inner::on_time_query)?;
        self.hear(self.keys.lead("*", name), Inner::on_lead)?;
        self.hear(self.keys.lead_all("*"), Inner::on_lead)?;
        self.hear(self.keys.models("*"), Inner::on_models)?;
        let inner = Arc::downgrade(self);
        let tokens = self
            .coordination
            .liveliness()
            .declare_subscriber(self.keys.alive("*", "*"));
        let tokens = tokens.history(true).callback(move |sample| {
            if let Some(inner) = inner.upgrade() {
                inner.on_token(&sample);
            }
        });
        let tokens = tokens.background();
        tokens.wait().map_err(|error| fabric_failed(error.as_ref()))
    }

    fn hear(self: &Arc<Self>, key: String, take: fn(&Inner, &Sample)) -> Result<(), Error> {
        let inner = Arc::downgrade(self);
        let subscriber = self.coordination.declare_subscriber(key).callback(move |sample| {
            if let Some(inner) = inner.upgrade() {
                take(&inner, &sample);
            }
        });
        subscriber
            .background()
            .wait()
            .map_err(|error| fabric_failed(error.as_ref()))
    }

    fn on_lead(&self, sample: &Sample) {
        let from = self.keys.part(sample.key_expr().as_str(), 1);
        match from.and_then(|name| self.team.robot_named(name)) {
            Some(from) if from == self.me => {}
            Some(from) => self.on_said(from, sample.payload()),
            None => self.refused.count("a word on who leads", wire::Refusal::Malformed),
        }
    }

    fn answer_queries(self: &Arc<Self>, key: &str, answer: fn(&Inner, &Query)) -> Result<(), Error> {
        let inner = Arc::downgrade(self);
        let queryable = self.coordination.declare_queryable(key.to_owned());
        let queryable = queryable.callback(move |query| {
            if let Some(inner) = inner.upgrade() {
                answer(&inner, &query);
            }
        });
        let queryable = queryable.background();
        queryable.wait().map_err(|error| fabric_failed(error.as_ref()))
    }

    fn on_permit_query(&self, query: &Query) {
        // Links are authenticated, and access rules hold each robot to the keys with its name.
        let key = query.key_expr().as_str().to_owned();
        let Some(from) = self.keys.part(&key, 2).and_then(|name| self.team.robot_named(name)) else {
            return self.refused.count("a question for a permit", wire::Refusal::Malformed);
        };
        // An older query of this robot ends without an answer.
        let older = lock(&self.asking).insert(from, query.clone());
        drop(older);
        let empty = ZBytes::new();
        self.on_said(from, query.payload().unwrap_or(&empty));
    }

    fn on_time_query(&self, query: &Query) {
        let received_at = self.now().as_nanos();
        let empty = ZBytes::new();
        let payload = query.payload().unwrap_or(&empty);
        if let Some(asked) = self.read::<TimeQuery>("a question for the time", payload) {
            let frame = wire::encode(&TimeReply {
                clock: self.own_clock(),
                echo: asked.sent_at,
                received_at,
                sent_at: self.now().as_nanos(),
            });
            reply(query, query.key_expr().as_str(), frame);
        }
    }

    /// The name of this robot's clock: no two have the same, nor does it after a start anew.
    fn own_clock(&self) -> u64 {
        u64::from(self.me.0) << 32 | u64::from(self.incarnation)
    }

    fn on_token(&self, sample: &Sample) {
        let key = sample.key_expr().as_str();
        let robot = self.keys.part(key, 1).and_then(|name| self.team.robot_named(name));
        let (Some(robot), Some(session)) = (robot, self.keys.part(key, 2)) else {
            return;
        };
        let mut alive = lock(&self.alive);
        let sessions = alive.entry(robot).or_default();
        match sample.kind() {
            SampleKind::Put => {
                let known = !sessions.is_empty();
                sessions.insert(session.to_owned());
                if robot == self.me && session != self.coordination.zid().to_string() {
                    tracing::error!("another process takes part as {} too: stop one of them", self.name());
                } else if !known && robot != self.me {
                    tracing::info!("{} is here", self.name_of(robot));
                }
            }
            SampleKind::Delete => {
                sessions.remove(session);
                if sessions.is_empty() {
                    drop(alive);
                    self.tell(|brain, now| brain.on_gone(robot, now));
                    lock(&self.asking).remove(&robot);
                    lock(&self.alive).remove(&robot);
                    tracing::info!("{} is gone", self.name_of(robot));
                }
            }
        }
    }

    // --- status -----------------------------------------------------------------------------------------------

    fn status(&self) -> Status {
        let now = self.now();
        let alive = lock(&self.alive).keys().map(|robot| robot.0).collect();
        let robot = &self.team.robots[usize::from(self.me.0)];
        let path = |path: usize| match (robot.interfaces.get(path), robot.addresses.get(path)) {
            (Some(interface), _) => interface.clone(),
            (None, Some(address)) => address.to_string(),
            (None, None) => "any".to_owned(),
        };
        // Before the brain is held: whoever sends bulk asks the brain while holding what is counted here.
        let held = self.ask(|brain, _| brain.window().1);
        let bulk = self.bulk.get().map(|bulk| bulk.status(held));
        let published = lock(&self.published).values().map(|sent| sent.published()).collect();
        let subscribed = lock(&self.subscribed).clone();
        let heard = subscribed
            .iter()
            .filter_map(Weak::upgrade)
            .flat_map(|inbox| inbox.heard(now))
            .collect();
        let brain = lock(&self.brain);
        let (holders, queue) = brain.granted();
        let (window, _) = brain.window();
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
            paths: (0..self.control.len()).map(path).collect(),
            bulk,
            published,
            heard,
            refused: self.refused.read(),
        }
    }
}

/// A window seen from now, in microseconds; `None` once it is over.
fn relative(window: Window, now: Instant) -> Option<(i64, u64)> {
    let micros = |span: Duration| span.as_nanos() / 1_000;
    let start = i64::try_from(micros(window.start.since(now))).unwrap_or(i64::MAX);
    let begun = i64::try_from(micros(now.since(window.start))).unwrap_or(i64::MAX);
    (window.end > now).then(|| (start - begun, micros(window.end.since(window.start))))
}

fn reply(query: &Query, key: &str, frame: Vec<u8>) {
    if let Err(error) = query.reply(key, frame).express(true).wait() {
        tracing::debug!("an answer was not sent: {error}");
    }
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
