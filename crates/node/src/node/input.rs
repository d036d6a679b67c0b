//! What sockets bring: which transport carries which messages, what of it is refused, and what the robot is told.
//!
//! Callbacks of the coordination sessions and the links' tasks run this. The transport proves who the sender is: keys of
//! the fabric hold the sender's name, which access rules enforce; a link has the sender's certificate.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use coorp_core::failover::Message as Coordination;
use coorp_core::paths::PathId;
use coorp_core::robot::{Input, Message};
use coorp_core::RobotId;
use quinn::ConnectionError;
use zenoh::bytes::ZBytes;
use zenoh::query::Query;
use zenoh::sample::{Sample, SampleKind};
use zenoh::Wait;

use super::{dead, fabric_failed, Inner};
use crate::fabric::MESSAGE_BYTES_MAX;
use crate::quic::is_over_certificates;
use crate::sync::lock;
use crate::wire::{self, Frame, Parcel, Refusal};
use crate::Error;

/// What carries a message between robots. Each carries only messages of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transport {
    /// Keys for words on who leads.
    Lead,
    /// Queries for permits, and their answers.
    Permits,
    /// Queries for the leader's time.
    TimeQuery,
    /// Their answers.
    TimeReply,
    /// Keys for arrival models.
    Models,
    /// Links, for what goes over one path.
    Link,
}

impl Transport {
    fn of(message: &Message) -> Self {
        match message {
            Message::Coordination(Coordination::Permit { .. }) => Transport::Permits,
            Message::Coordination(_) => Transport::Lead,
            Message::TimeQuery { .. } => Transport::TimeQuery,
            Message::TimeReply { .. } => Transport::TimeReply,
            Message::Models { .. } => Transport::Models,
            Message::Arrived { .. }
            | Message::Shift { .. }
            | Message::Probe(_)
            | Message::Echo(_)
            | Message::Judged(_) => Transport::Link,
        }
    }

    /// What it carries, for the log.
    fn what(self) -> &'static str {
        match self {
            Transport::Lead => "a word on who leads",
            Transport::Permits => "a word on permits",
            Transport::TimeQuery => "a question for the time",
            Transport::TimeReply => "an answer about the time",
            Transport::Models => "when control messages are due",
            Transport::Link => "a word about a path",
        }
    }
}

impl Inner {
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
            Err(Refusal::Oversized)
        } else {
            wire::decode(&payload.to_bytes())
        };
        frame.map_err(|refusal| self.refused.count(what, refusal)).ok()
    }

    /// The message in a payload, if this transport carries it; counts it if it is refused.
    fn read_message(&self, over: Transport, payload: &ZBytes) -> Option<Message> {
        let message = self.read::<Message>(over.what(), payload)?;
        if Transport::of(&message) != over {
            self.refused.count(over.what(), Refusal::Malformed);
            return None;
        }
        Some(message)
    }

    /// A robot says something.
    pub(super) fn on_said(&self, from: RobotId, over: Transport, payload: &ZBytes) {
        if let Some(message) = self.read_message(over, payload) {
            self.tell(|robot, now| {
                let path = None;
                robot.handle(Input::Message { from, path, message }, now)
            });
        }
    }

    /// A robot publishes something under its name.
    fn on_published(&self, over: Transport, sample: &Sample) {
        let from = self.keyspace.part(sample.key_expr().as_str(), 1);
        match from.and_then(|name| self.team.robot_named(name)) {
            Some(from) if from == self.me => {}
            Some(from) => self.on_said(from, over, sample.payload()),
            None => self.refused.count(over.what(), Refusal::Malformed),
        }
    }

    pub(super) fn listen(self: &Arc<Self>) -> Result<(), Error> {
        let name = self.name();
        self.answer_queries(&self.keyspace.status(name), |inner, path, query| {
            // The question is for any robot; the answer is this one's.
            let key = inner.keyspace.status(inner.name());
            inner.answer_as(path, query, Some((key, wire::encode(&inner.status()))));
        })?;
        self.answer_queries(&self.keyspace.permit(name, "*"), Inner::on_permit_query)?;
        self.answer_queries(&self.keyspace.time(name), Inner::on_time_query)?;
        let on_lead = |inner: &Inner, sample: &Sample| inner.on_published(Transport::Lead, sample);
        self.subscribe_to(self.keyspace.lead("*", name), on_lead)?;
        self.subscribe_to(self.keyspace.lead_all("*"), on_lead)?;
        // They are told to nobody where nobody listens, and without keys there is no bulk to keep out of their way.
        if self.secure {
            self.subscribe_to(self.keyspace.models("*"), |inner, sample| {
                inner.on_published(Transport::Models, sample);
            })?;
        }
        self.subscribe_to(self.keyspace.fleet("*", name, "*"), Inner::on_fleet)?;
        self.watch_tokens(&self.keyspace.subscribes("*", "*", "*"), |inner, sample| {
            inner.on_subscription(sample)
        })?;
        self.watch_tokens(&self.keyspace.gathers("*", "*", "*", "*"), |inner, sample| {
            inner.on_gathers(sample)
        })?;
        self.watch_tokens(&self.keyspace.alive("*", "*"), Inner::on_token)
    }

    fn watch_tokens(self: &Arc<Self>, key: &str, take: fn(&Arc<Inner>, &Sample)) -> Result<(), Error> {
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

    fn subscribe_to(self: &Arc<Self>, key: String, take: fn(&Inner, &Sample)) -> Result<(), Error> {
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

    /// A message came from a robot over a link.
    pub(crate) fn on_parcel(&self, from: RobotId, path: PathId, mut message: Bytes) {
        let refuse = |what, refusal| self.refused.count(what, refusal);
        let (parcel, content) = match wire::unpack(&message) {
            Ok(unpacked) => unpacked,
            Err(refusal) => return refuse("a control message", refusal),
        };
        let content = message.split_off(content);
        if content.len() > MESSAGE_BYTES_MAX {
            return refuse("a control message", Refusal::Oversized);
        }
        match parcel {
            Parcel::Control { topic, header, riders } => {
                if !riders.iter().all(Message::may_ride) {
                    return refuse("a control message", Refusal::Malformed);
                }
                self.tell(|robot, now| {
                    if let Some(number) = header.copy {
                        let incarnation = header.incarnation;
                        let copy = Input::Copy {
                            from,
                            path,
                            incarnation,
                            number,
                        };
                        robot.handle(copy, now);
                    }
                    let stamp = header.stamp;
                    robot.handle(Input::Arrived { from, stamp }, now);
                    for message in riders {
                        let path = Some(path);
                        robot.handle(Input::Message { from, path, message }, now);
                    }
                });
                self.on_control(from, path, &topic, header, &content);
            }
            Parcel::State { topic, header } => {
                if let Some(number) = header.copy {
                    let incarnation = header.header.sequence.incarnation;
                    let copy = Input::Copy {
                        from,
                        path,
                        incarnation,
                        number,
                    };
                    self.tell(|robot, now| robot.handle(copy, now));
                }
                self.on_state(from, &topic, header, &content);
            }
            Parcel::Robot(message) if Transport::of(&message) == Transport::Link || message.may_ride() => {
                self.tell(|robot, now| {
                    let path = Some(path);
                    robot.handle(Input::Message { from, path, message }, now)
                });
            }
            Parcel::Robot(_) => refuse(Transport::Link.what(), Refusal::Malformed),
            Parcel::Subscriptions => {
                let what = "a word on subscriptions";
                if content.len() > wire::SUBSCRIPTIONS_BYTES_MAX {
                    return refuse(what, Refusal::Oversized);
                }
                let Ok(topics) = std::str::from_utf8(&content) else {
                    return refuse(what, Refusal::Malformed);
                };
                // What else it subscribes to is of no use here.
                let published = self.published_topics();
                let now = self.now();
                let mut subscriptions = lock(&self.subscriptions);
                for topic in topics.lines().filter(|topic| published.contains(*topic)) {
                    subscriptions.on_told(from, topic, now);
                }
            }
        }
    }

    /// A robot subscribes to a topic, or no longer does.
    fn on_subscription(&self, sample: &Sample) {
        let key = sample.key_expr().as_str();
        let robot = self.keyspace.part(key, 1).and_then(|name| self.team.robot_named(name));
        let (Some(robot), Some(topic), Some(token)) = (robot, self.keyspace.part(key, 2), self.keyspace.part(key, 3))
        else {
            return;
        };
        let here = sample.kind() == SampleKind::Put;
        lock(&self.subscriptions).on_token(robot, topic, token, here, self.now());
        if here && self.published_topics().contains(topic) && robot != self.me {
            self.warm(robot);
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
        let Some(from) = self.keyspace.part(&key, 2).and_then(|name| self.team.robot_named(name)) else {
            self.answer(path, query, None);
            return self.refused.count(Transport::Permits.what(), Refusal::Malformed);
        };
        let payload = query.payload().cloned().unwrap_or_default();
        // An older query of this robot ends without an answer.
        let older = lock(&self.asking).entry(from).or_default().insert(path, query);
        if let Some(older) = older {
            self.answer(path, older, None);
        }
        self.on_said(from, Transport::Permits, &payload);
    }

    fn on_time_query(&self, path: usize, query: Query) {
        // Before it is read: what that takes belongs to the way there.
        let received_at = self.now();
        let empty = ZBytes::new();
        let answer = match self.read_message(Transport::TimeQuery, query.payload().unwrap_or(&empty)) {
            Some(Message::TimeQuery { sent_at }) => {
                let reply = self.ask(|robot, now| robot.time_reply(sent_at, received_at, now));
                Some(wire::encode(&reply))
            }
            _ => None,
        };
        self.answer(path, query, answer);
    }

    fn on_token(self: &Arc<Self>, sample: &Sample) {
        let key = sample.key_expr().as_str();
        let peer = self.keyspace.part(key, 1).and_then(|name| self.team.robot_named(name));
        let (Some(peer), Some(session)) = (peer, self.keyspace.part(key, 2)) else {
            return;
        };
        // Held until all that tells who is there agrees: each path's session calls from a thread of its own.
        let mut alive = lock(&self.alive);
        if sample.kind() == SampleKind::Put {
            let sessions = alive.entry(peer).or_default();
            let first = sessions.is_empty();
            let new = sessions.insert(session.to_owned());
            let mut own = self.coordination.iter().map(|session| session.zid().to_string());
            if peer == self.me && own.all(|own| own != session) {
                tracing::error!("another process takes part as {} too: stop one of them", self.name());
                return;
            }
            let gone_at = first
                .then(|| lock(&self.subscriptions).on_here(peer, self.now()))
                .flatten();
            drop(alive);
            if peer != self.me && new {
                if let (Some(links), Some(gone_at)) = (self.links.get(), gone_at) {
                    links.renew(peer, gone_at);
                }
                self.tell(|robot, now| robot.handle(Input::TellModelsAgain, now));
                if first {
                    tracing::info!("{} is here", self.name_of(peer));
                }
            }
            return;
        }
        let sessions = alive.get_mut(&peer);
        if sessions.is_some_and(|sessions| sessions.remove(session) && sessions.is_empty()) {
            alive.remove(&peer);
            lock(&self.subscriptions).on_gone(peer, self.now());
            drop(alive);
            self.tell(|robot, now| robot.handle(Input::Gone(peer), now));
            dead::find_out(self, peer);
            self.gatherings.on_gone(self, peer);
            let queries = lock(&self.asking).remove(&peer).unwrap_or_default();
            queries
                .into_iter()
                .for_each(|(path, query)| self.answer(path, query, None));
            tracing::info!("{} is gone", self.name_of(peer));
        }
    }
}
