//! How a node drives its brain and talks to the others: the driver's loop, what it sends, and the callbacks of the
//! coordination sessions.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, PoisonError};
use std::time::Duration as StdDuration;

use bytes::Bytes;
use coorp_core::arrival::TimeModel;
use coorp_core::failover::Message;
use coorp_core::paths::PathId;
use coorp_core::{permits, Duration, Instant, RobotId};
use quinn::ConnectionError;
use zenoh::bytes::ZBytes;
use zenoh::qos::{CongestionControl, Priority};
use zenoh::query::{ConsolidationMode, Query, Reply};
use zenoh::sample::{Sample, SampleKind};
use zenoh::Wait;

use super::{dead, fabric_failed, lock, Answer, Inner};
use crate::brain::Action;
use crate::fabric::MESSAGE_BYTES_MAX;
use crate::quic::is_over_certificates;
use crate::wire::{self, Frame, Parcel, TimeQuery, TimeReply};
use crate::Error;

/// An answer to a query that takes longer is not waited for: the requester has asked again long since.
const ANSWER_MAX: StdDuration = StdDuration::from_secs(2);
/// The driver looks up at least this often, whatever the brain says.
const LOOK_UP_EVERY: Duration = Duration::from_millis(500);

impl Inner {
    pub(super) fn drive(self: &Arc<Self>) {
        let mut brain = lock(&self.brain);
        loop {
            let now = self.now();
            brain.journal.at(now);
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
                    bulk.wake();
                }
            }
            Action::AskTime(leader) => self.ask_time(leader),
            Action::TellModels(models) => self.tell_models(models),
            Action::Probe(to, probe) => self.send(to, probe.path, &Parcel::Probe(probe.into()), &Bytes::new()),
            Action::TellHeard(to, path, messages) => {
                let messages = messages.into_iter().map(|(robot, flow, made_at)| wire::HeardMessage {
                    robot: robot.0,
                    flow,
                    made_at: made_at.as_nanos(),
                });
                let heard = wire::Heard {
                    clock: self.own_clock(),
                    messages: messages.collect(),
                };
                self.send(to, path, &Parcel::Heard(heard), &Bytes::new());
            }
            Action::PathAlive(robot, path, alive) => {
                let (robot, path) = (self.name_of(robot), self.path_name(usize::from(path.0)));
                let state = if alive { "alive again" } else { "dead" };
                tracing::info!("{path} to {robot} is {state}");
            }
            Action::Report(report) => self.report(report),
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
                let queries = lock(&self.asking).remove(&to).unwrap_or_default();
                for (path, query) in queries {
                    self.answer(path, query, Some(wire::encode(&frame)));
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

    /// Says over all paths.
    pub(crate) fn put<F: Frame>(&self, key: &str, frame: &F) {
        let frame = ZBytes::from(wire::encode(frame));
        for session in self.coordination.iter() {
            let put = session.put(key, frame.clone());
            let put = put
                .priority(Priority::RealTime)
                .congestion_control(CongestionControl::Drop)
                .express(true);
            if let Err(error) = put.wait() {
                tracing::debug!("{key} was not sent: {error}");
            }
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
        let time = self.leaders_time(self.now());
        let Some(((clock, _, within), offset)) = time.and_then(|time| Some((time, self.clock(time.0)?))) else {
            return self.tell(|brain, _| brain.tell_models_again());
        };
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
        // A clock that is not known yet soon will be; to whoever is new it is told again.
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

    /// Asks over all paths; each may bring an answer.
    fn query<F: Frame>(&self, key: &str, frame: &F, then: impl Fn(&ZBytes) + Clone + Send + Sync + 'static) {
        let frame = ZBytes::from(wire::encode(frame));
        for session in self.coordination.iter() {
            let then = then.clone();
            let asked = session
                .get(key)
                .payload(frame.clone())
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
    }

    /// A connection to this robot did not come about; `what` it is for.
    pub fn on_not_connected(&self, what: &str, address: SocketAddr, error: &ConnectionError) {
        if is_over_certificates(error) {
            self.refused.count_stranger(address);
        }
        tracing::debug!("a connection for {what} from {address} did not come about: {error}");
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

    pub(super) fn listen(self: &Arc<Self>) -> Result<(), Error> {
        let name = self.name();
        self.answer_queries(&self.keys.status(name), |inner, path, query| {
            // The question is for any robot; the answer is this one's.
            let key = inner.keys.status(inner.name());
            inner.answer_as(path, query, Some((key, wire::encode(&inner.status()))));
        })?;
        self.answer_queries(&self.keys.permit(name, "*"), Inner::on_permit_query)?;
        self.answer_queries(&self.keys.time(name), Inner::on_time_query)?;
        self.hear(self.keys.lead("*", name), Inner::on_lead)?;
        self.hear(self.keys.lead_all("*"), Inner::on_lead)?;
        // They are told to nobody where nobody listens, and without keys there is no bulk to keep out of their way.
        if self.secure {
            self.hear(self.keys.models("*"), Inner::on_models)?;
        }
        self.hear(self.keys.fleet("*", name, "*"), Inner::on_fleet)?;
        self.hear_tokens(&self.keys.hears("*", "*", "*"), |inner, sample| inner.on_hears(sample))?;
        self.hear_tokens(&self.keys.gathers("*", "*", "*", "*"), |inner, sample| {
            inner.on_gathers(sample)
        })?;
        self.hear_tokens(&self.keys.alive("*", "*"), Inner::on_token)
    }

    fn hear_tokens(self: &Arc<Self>, key: &str, take: fn(&Arc<Inner>, &Sample)) -> Result<(), Error> {
        for session in self.coordination.iter() {
            let inner = Arc::downgrade(self);
            let tokens = session.liveliness().declare_subscriber(key.to_owned());
            let tokens = tokens.history(true).callback(move |sample| {
                if let Some(inner) = inner.upgrade() {
                    take(&inner, &sample);
                }
            });
            let tokens = tokens.background();
            tokens.wait().map_err(|error| fabric_failed(error.as_ref()))?;
        }
        Ok(())
    }

    fn hear(self: &Arc<Self>, key: String, take: fn(&Inner, &Sample)) -> Result<(), Error> {
        for session in self.coordination.iter() {
            let inner = Arc::downgrade(self);
            let subscriber = session.declare_subscriber(key.clone()).callback(move |sample| {
                if let Some(inner) = inner.upgrade() {
                    take(&inner, &sample);
                }
            });
            let subscriber = subscriber.background();
            subscriber.wait().map_err(|error| fabric_failed(error.as_ref()))?;
        }
        Ok(())
    }

    /// A message came from a robot over a link; answers what is to go back.
    pub(crate) fn on_parcel(&self, from: RobotId, path: PathId, mut message: Bytes) -> Option<Parcel> {
        let refuse = |what, refusal| {
            self.refused.count(what, refusal);
            None
        };
        let (parcel, content) = match wire::unpack(&message) {
            Ok(unpacked) => unpacked,
            Err(refusal) => return refuse("a control message", refusal),
        };
        let content = message.split_off(content);
        if content.len() > MESSAGE_BYTES_MAX {
            return refuse("a control message", wire::Refusal::Oversized);
        }
        let copied = |incarnation, copy: Option<u32>| {
            if let Some(number) = copy {
                self.tell(|brain, _| brain.on_copy(from, path, incarnation, number));
            }
        };
        match parcel {
            Parcel::Control { topic, header } => {
                copied(header.incarnation, header.copy);
                let made_at = header.made_at_leaders.and_then(|(clock, at)| {
                    let offset = self.clock(clock)?;
                    Some(offset.ours(Instant::from_nanos(at)))
                });
                self.tell(|brain, now| brain.on_heard(from, header.flow, made_at.unwrap_or(now), now));
                self.on_control(from, path, &topic, header, &content);
            }
            Parcel::State { topic, header } => {
                copied(header.incarnation, header.copy);
                self.on_state(from, &topic, header, &content);
            }
            Parcel::Probe(probe) if probe.path == path.0 => {
                let echo = self.tell(|brain, _| brain.on_probe(from, probe.into()))?;
                return Some(Parcel::Echo(echo.into()));
            }
            Parcel::Echo(echo) if echo.probe.path == path.0 => {
                self.tell(|brain, now| brain.on_echo(from, echo.into(), now));
            }
            Parcel::Heard(heard) if heard.messages.len() <= wire::HEARD_MAX => {
                // A clock that is not known yet soon will be; until then windows last their time.
                let offset = self.clock(heard.clock)?;
                let messages: Vec<_> = heard
                    .messages
                    .iter()
                    .map(|message| {
                        let made_at = offset.ours(Instant::from_nanos(message.made_at));
                        (RobotId(message.robot), message.flow, made_at)
                    })
                    .collect();
                self.tell(|brain, now| brain.on_told_heard(from, &messages, now));
            }
            Parcel::Heard(_) => return refuse("a word on what came", wire::Refusal::Oversized),
            Parcel::Hears => {
                let what = "a word on what is heard";
                if content.len() > wire::HEARS_BYTES_MAX {
                    return refuse(what, wire::Refusal::Oversized);
                }
                let Ok(topics) = std::str::from_utf8(&content) else {
                    return refuse(what, wire::Refusal::Malformed);
                };
                // What else it hears is of no use here.
                let published = self.published_topics();
                let now = self.now();
                let mut hearing = lock(&self.hearing);
                for topic in topics.lines().filter(|topic| published.contains(*topic)) {
                    hearing.on_told(from, topic, now);
                }
            }
            Parcel::Probe(_) | Parcel::Echo(_) => return refuse("a probe", wire::Refusal::Malformed),
        }
        None
    }

    /// A robot hears a topic, or no longer does.
    fn on_hears(&self, sample: &Sample) {
        let key = sample.key_expr().as_str();
        let robot = self.keys.part(key, 1).and_then(|name| self.team.robot_named(name));
        let (Some(robot), Some(topic), Some(token)) = (robot, self.keys.part(key, 2), self.keys.part(key, 3)) else {
            return;
        };
        let here = sample.kind() == SampleKind::Put;
        lock(&self.hearing).on_token(robot, topic, token, here, self.now());
        if here && self.published_topics().contains(topic) && robot != self.me {
            self.warm(robot);
        }
    }

    fn on_lead(&self, sample: &Sample) {
        let from = self.keys.part(sample.key_expr().as_str(), 1);
        match from.and_then(|name| self.team.robot_named(name)) {
            Some(from) if from == self.me => {}
            Some(from) => self.on_said(from, sample.payload()),
            None => self.refused.count("a word on who leads", wire::Refusal::Malformed),
        }
    }

    fn answer_queries(self: &Arc<Self>, key: &str, answer: fn(&Inner, usize, Query)) -> Result<(), Error> {
        for (path, session) in self.coordination.iter().enumerate() {
            let inner = Arc::downgrade(self);
            let queryable = session.declare_queryable(key.to_owned());
            let queryable = queryable.callback(move |query| {
                if let Some(inner) = inner.upgrade() {
                    answer(&inner, path, query);
                }
            });
            let queryable = queryable.background();
            queryable.wait().map_err(|error| fabric_failed(error.as_ref()))?;
        }
        Ok(())
    }

    fn on_permit_query(&self, path: usize, query: Query) {
        // Links are authenticated, and access rules hold each robot to the keys with its name.
        let key = query.key_expr().as_str().to_owned();
        let Some(from) = self.keys.part(&key, 2).and_then(|name| self.team.robot_named(name)) else {
            self.answer(path, query, None);
            return self.refused.count("a question for a permit", wire::Refusal::Malformed);
        };
        let payload = query.payload().cloned().unwrap_or_default();
        // An older query of this robot ends without an answer.
        let older = lock(&self.asking).entry(from).or_default().insert(path, query);
        if let Some(older) = older {
            self.answer(path, older, None);
        }
        self.on_said(from, &payload);
    }

    fn on_time_query(&self, path: usize, query: Query) {
        let received_at = self.now().as_nanos();
        let empty = ZBytes::new();
        let asked = self.read::<TimeQuery>("a question for the time", query.payload().unwrap_or(&empty));
        let answer = asked.map(|asked| {
            wire::encode(&TimeReply {
                clock: self.own_clock(),
                echo: asked.sent_at,
                received_at,
                sent_at: self.now().as_nanos(),
            })
        });
        self.answer(path, query, answer);
    }

    /// Answers a query, or ends it without an answer. The end of a query is never dropped: where its link is stuck it
    /// waits for seconds. So each path has a thread for it, and no path waits for another one.
    fn answer(&self, path: usize, query: Query, frame: Option<Vec<u8>>) {
        let answer = frame.map(|frame| (query.key_expr().as_str().to_owned(), frame));
        self.answer_as(path, query, answer);
    }

    fn answer_as(&self, path: usize, query: Query, answer: Option<(String, Vec<u8>)>) {
        if let Some(answers) = self.answers.get(path) {
            // Where that many wait the link is about to be given up.
            if answers.try_send((query, answer)).is_err() {
                tracing::debug!("an answer was not sent: too many wait");
            }
        }
    }

    /// The name of this robot's clock: no two have the same, nor does it after a start anew.
    pub(super) fn own_clock(&self) -> u64 {
        u64::from(self.me.0) << 32 | u64::from(self.incarnation)
    }

    fn on_token(self: &Arc<Self>, sample: &Sample) {
        let key = sample.key_expr().as_str();
        let robot = self.keys.part(key, 1).and_then(|name| self.team.robot_named(name));
        let (Some(robot), Some(session)) = (robot, self.keys.part(key, 2)) else {
            return;
        };
        // Held until all that tells who is there agrees: each path's session calls from a thread of its own.
        let mut alive = lock(&self.alive);
        if sample.kind() == SampleKind::Put {
            let sessions = alive.entry(robot).or_default();
            let first = sessions.is_empty();
            let new = sessions.insert(session.to_owned());
            let mut own = self.coordination.iter().map(|session| session.zid().to_string());
            if robot == self.me && own.all(|own| own != session) {
                tracing::error!("another process takes part as {} too: stop one of them", self.name());
                return;
            }
            let gone_at = first.then(|| lock(&self.hearing).on_here(robot, self.now())).flatten();
            drop(alive);
            if robot != self.me && new {
                if let (Some(links), Some(gone_at)) = (self.links.get(), gone_at) {
                    links.renew(robot, gone_at);
                }
                self.tell(|brain, _| brain.tell_models_again());
                if first {
                    tracing::info!("{} is here", self.name_of(robot));
                }
            }
            return;
        }
        let sessions = alive.get_mut(&robot);
        if sessions.is_some_and(|sessions| sessions.remove(session) && sessions.is_empty()) {
            alive.remove(&robot);
            lock(&self.hearing).on_gone(robot, self.now());
            drop(alive);
            self.tell(|brain, _| brain.on_gone(robot));
            dead::find_out(self, robot);
            self.gatherings.on_gone(self, robot);
            let queries = lock(&self.asking).remove(&robot).unwrap_or_default();
            queries
                .into_iter()
                .for_each(|(path, query)| self.answer(path, query, None));
            tracing::info!("{} is gone", self.name_of(robot));
        }
    }
}

/// Answers the queries that came over one path, until the node is gone.
pub(super) fn answer_all(queries: &Receiver<Answer>) {
    for (query, answer) in queries {
        let Some((key, frame)) = answer else { continue };
        let reply = query.reply(key, frame);
        if let Err(error) = reply.express(true).wait() {
            tracing::debug!("an answer was not sent: {error}");
        }
    }
}
