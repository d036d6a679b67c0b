//! What arrives at sockets: which transport carries which messages, what is refused, and what goes to the robot.
//!
//! Callbacks of the coordination sessions and the links' tasks run this. The transport proves the sender's identity:
//! keys of the fabric contain its name, which access rules enforce; a link has its certificate.

use std::sync::Arc;

use bytes::Bytes;
use coorp_core::failover::Message as Coordinated;
use coorp_core::paths::PathId;
use coorp_core::robot::{Input, Message};
use coorp_core::RobotId;
use zenoh::bytes::ZBytes;
use zenoh::query::Query;
use zenoh::sample::{Sample, SampleKind};

use super::{dead, Agent};
use crate::fabric::MESSAGE_BYTES_MAX;
use crate::links::Receiver;
use crate::sync::lock;
use crate::wire::{self, ControlHeader, Parcel, Refusal};
use crate::Error;

/// The transport of a message between robots. Each carries only its own kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transport {
    /// Keys for messages about leadership.
    Lead,
    /// Queries for permits, and their answers.
    Permits,
    /// Keys for arrival models.
    Models,
    /// Links, for messages tied to one path.
    Link,
}

impl Transport {
    fn of(message: &Message) -> Self {
        match message {
            Message::Coordination(Coordinated::Permit { .. }) => Transport::Permits,
            Message::Coordination(_) => Transport::Lead,
            Message::Models { .. } => Transport::Models,
            Message::TimeQuery { .. }
            | Message::TimeReply { .. }
            | Message::Arrived { .. }
            | Message::Shift { .. }
            | Message::Probe(_)
            | Message::Echo(_)
            | Message::Judged(_) => Transport::Link,
        }
    }

    /// The name of its messages, for the log.
    fn what(self) -> &'static str {
        match self {
            Transport::Lead => "a leadership message",
            Transport::Permits => "a permit message",
            Transport::Models => "arrival models",
            Transport::Link => "a link message",
        }
    }
}

impl Agent {
    /// Receives from the fabric for as long as this exists.
    pub fn listen(self: &Arc<Self>) -> Result<(), Error> {
        let (fabric, keyspace, name) = (&self.coordination, &self.member.keyspace, self.member.name());
        fabric.take_queries(&keyspace.status(name), self.with(Agent::on_status_query))?;
        fabric.take_queries(&keyspace.permit(name, "*"), self.with(Agent::on_permit_query))?;
        let on_lead = |agent: &Agent, sample: Sample| agent.on_published(Transport::Lead, &sample);
        fabric.subscribe(&keyspace.lead("*", name), self.with(on_lead))?;
        fabric.subscribe(&keyspace.lead_all("*"), self.with(on_lead))?;
        // Without listeners nobody sends them, and without keys there is no bulk to keep out of their way.
        if self.member.secure {
            let on_models = |agent: &Agent, sample: Sample| agent.on_published(Transport::Models, &sample);
            fabric.subscribe(&keyspace.models("*"), self.with(on_models))?;
        }
        let on_fleet = |agent: &Agent, sample: Sample| agent.gatherings.on_fleet(&sample);
        fabric.subscribe(&keyspace.fleet("*", name, "*"), self.with(on_fleet))?;
        let on_subscription = |agent: &Agent, sample: Sample| agent.control.on_subscription(&sample);
        fabric.watch_tokens(&keyspace.subscribes("*", "*", "*"), self.with(on_subscription))?;
        let on_gathers = |agent: &Agent, sample: Sample| agent.gatherings.on_gathers(&sample);
        fabric.watch_tokens(&keyspace.gathers("*", "*", "*", "*"), self.with(on_gathers))?;
        fabric.watch_tokens(&keyspace.alive("*", "*"), self.with(Agent::on_token))
    }

    /// A callback that does nothing once this is gone.
    fn with<T: 'static>(self: &Arc<Self>, take: fn(&Agent, T)) -> impl Fn(T) + Clone + Send + Sync + 'static {
        let agent = Arc::downgrade(self);
        move |came| {
            if let Some(agent) = agent.upgrade() {
                take(&agent, came);
            }
        }
    }

    /// Decodes the message in a payload, if this transport carries it; counts it if it is refused.
    fn read_message(&self, over: Transport, payload: &ZBytes) -> Option<Message> {
        let message = self.member.refused.decode::<Message>(over.what(), payload)?;
        if Transport::of(&message) != over {
            self.member.refused.count(over.what(), Refusal::Malformed);
            return None;
        }
        Some(message)
    }

    /// A message from a robot arrived.
    pub(super) fn on_said(&self, from: RobotId, over: Transport, payload: &ZBytes) {
        if let Some(message) = self.read_message(over, payload) {
            self.on_message(from, None, message);
        }
    }

    fn on_message(&self, from: RobotId, path: Option<PathId>, message: Message) {
        self.robot
            .tell(|robot, now| robot.handle(Input::Message { from, path, message }, now));
    }

    /// A robot has published under its name.
    fn on_published(&self, over: Transport, sample: &Sample) {
        match self.member.named_in(sample.key_expr().as_str(), 1) {
            Some(from) if from == self.member.me => {}
            Some(from) => self.on_said(from, over, sample.payload()),
            None => self.member.refused.count(over.what(), Refusal::Malformed),
        }
    }

    fn on_control(
        &self,
        from: RobotId,
        path: PathId,
        topic: &str,
        header: ControlHeader,
        riders: Vec<Message>,
        content: &Bytes,
    ) {
        self.robot.tell(|robot, now| {
            if let Some(copy) = copy(from, path, header.incarnation, header.copy) {
                robot.handle(copy, now);
            }
            let stamp = header.stamp;
            robot.handle(Input::Arrived { from, stamp }, now);
            for message in riders {
                let path = Some(path);
                robot.handle(Input::Message { from, path, message }, now);
            }
        });
        self.control.on_message(from, path, topic, header, content);
    }

    fn on_state(&self, from: RobotId, path: PathId, topic: &str, header: wire::State, content: &Bytes) {
        if let Some(copy) = copy(from, path, header.header.sequence.incarnation, header.copy) {
            self.robot.tell(|robot, now| robot.handle(copy, now));
        }
        self.gatherings.on_state(from, topic, header, content);
    }

    /// The question is for any robot; the answer is this one's.
    fn on_status_query(&self, (path, query): (usize, Query)) {
        let key = self.member.keyspace.status(self.member.name());
        let status = wire::encode(&self.status());
        self.coordination.answer_as(path, query, Some((key, status)));
    }

    fn on_permit_query(&self, (path, query): (usize, Query)) {
        // Links are authenticated, and access rules hold each robot to the keys with its name.
        let Some(from) = self.member.named_in(query.key_expr().as_str(), 2) else {
            self.coordination.answer(path, query, None);
            return self.member.refused.count(Transport::Permits.what(), Refusal::Malformed);
        };
        let payload = query.payload().cloned().unwrap_or_default();
        self.coordination.keep_query(from, path, query);
        self.on_said(from, Transport::Permits, &payload);
    }

    /// A session of a robot appears or vanishes.
    fn on_token(&self, sample: Sample) {
        let (key, member) = (sample.key_expr().as_str(), &self.member);
        let (Some(peer), Some(session)) = (member.named_in(key, 1), member.keyspace.part(key, 2)) else {
            return;
        };
        // Held until everything that tracks presence agrees, because each path's session calls from its own thread.
        let mut alive = lock(&self.coordination.alive);
        if sample.kind() == SampleKind::Put {
            let sessions = alive.entry(peer).or_default();
            let first = sessions.is_empty();
            let new = sessions.insert(session.to_owned());
            if peer == member.me {
                if !self.coordination.is_own(session) {
                    tracing::error!("another process takes part as {} too: stop one of them", member.name());
                }
                return;
            }
            let gone_at = first.then(|| self.control.on_here(peer)).flatten();
            drop(alive);
            if new {
                if let Some(gone_at) = gone_at {
                    self.links.renew(peer, gone_at);
                }
                self.robot.tell(|robot, now| robot.handle(Input::TellModelsAgain, now));
                if first {
                    tracing::info!("{} is here", member.name_of(peer));
                }
            }
            return;
        }
        let sessions = alive.get_mut(&peer);
        if sessions.is_some_and(|sessions| sessions.remove(session) && sessions.is_empty()) {
            alive.remove(&peer);
            self.control.on_gone(peer);
            drop(alive);
            self.robot.tell(|robot, now| robot.handle(Input::Gone(peer), now));
            dead::find_out(&self.robot, member, peer);
            self.gatherings.on_gone(peer);
            self.coordination.answer_kept(peer, None);
            tracing::info!("{} is gone", member.name_of(peer));
        }
    }
}

/// One of several copies of a message arrived, if it is numbered.
fn copy(from: RobotId, path: PathId, incarnation: u32, number: Option<u32>) -> Option<Input> {
    number.map(|number| Input::Copy {
        from,
        path,
        incarnation,
        number,
    })
}

impl Receiver for Agent {
    fn on_parcel(&self, from: RobotId, path: PathId, mut message: Bytes) {
        let refuse = |what, refusal| self.member.refused.count(what, refusal);
        let (parcel, content) = match wire::unpack(&message) {
            Ok(unpacked) => unpacked,
            Err(refusal) => return refuse("a control message", refusal),
        };
        let content = message.split_off(content);
        if content.len() > MESSAGE_BYTES_MAX {
            return refuse("a control message", Refusal::Oversized);
        }
        match parcel {
            Parcel::Control { riders, .. } if !riders.iter().all(Message::may_ride) => {
                refuse("a control message", Refusal::Malformed);
            }
            Parcel::Control { topic, header, riders } => self.on_control(from, path, &topic, header, riders, &content),
            Parcel::State { topic, header } => self.on_state(from, path, &topic, header, &content),
            Parcel::Robot(message) if Transport::of(&message) == Transport::Link || message.may_ride() => {
                self.on_message(from, Some(path), message);
            }
            Parcel::Robot(_) => refuse(Transport::Link.what(), Refusal::Malformed),
            Parcel::Subscriptions => {
                let what = "a list of subscriptions";
                if content.len() > wire::SUBSCRIPTIONS_BYTES_MAX {
                    return refuse(what, Refusal::Oversized);
                }
                match std::str::from_utf8(&content) {
                    Ok(topics) => self.control.on_told(from, topics),
                    Err(_) => refuse(what, Refusal::Malformed),
                }
            }
        }
    }

    fn subscribed_topics(&self) -> String {
        self.control.subscribed_topics()
    }
}
