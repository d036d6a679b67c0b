//! The driver: calls the robot at its deadlines and does what it wants done, and nothing else does.

use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, PoisonError};
use std::time::Duration as StdDuration;

use bytes::Bytes;
use coorp_core::failover::Message as Coordination;
use coorp_core::paths::PathId;
use coorp_core::robot::{Action, Input, Message, Route};
use coorp_core::{permits, Duration, RobotId};
use zenoh::bytes::ZBytes;
use zenoh::qos::{CongestionControl, Priority};
use zenoh::query::{ConsolidationMode, Query, Reply};
use zenoh::Wait;

use super::input::Transport;
use super::{Answer, Inner};
use crate::sync::lock;
use crate::wire::{self, Frame, Parcel};

/// An answer to a query that takes longer is not waited for: the requester has asked again long since.
const ANSWER_MAX: StdDuration = StdDuration::from_secs(2);
/// The driver looks up at least this often, whatever the robot says.
const LOOK_UP_EVERY: Duration = Duration::from_millis(500);

impl Inner {
    pub(super) fn drive(self: &Arc<Self>) {
        let mut robot = lock(&self.robot);
        loop {
            let now = self.now();
            let answer = robot.handle(Input::Deadline, now);
            if let Some(actions) = answer.actions().filter(|actions| !actions.is_empty()) {
                drop(robot);
                actions.into_iter().for_each(|action| self.act(action));
                robot = lock(&self.robot);
                continue;
            }
            if self.stop.load(Ordering::Acquire) {
                return;
            }
            let until = robot.next_deadline().min(now + LOOK_UP_EVERY);
            let wait = StdDuration::from_nanos(until.since(self.now()).as_nanos());
            let woken = self
                .wake
                .wait_timeout(robot, wait)
                .unwrap_or_else(PoisonError::into_inner);
            robot = woken.0;
        }
    }

    fn act(self: &Arc<Self>, action: Action) {
        match action {
            Action::Send(to, route, message) => self.send_to(to, route, message),
            Action::Broadcast(message) => self.send_to_all(&message),
            Action::StaleGrant(_) => self.refused.count_stale_grant(),
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
            Action::PathAlive(robot, path, alive) => {
                let (robot, path) = (self.name_of(robot), self.path_name(usize::from(path.0)));
                let state = if alive { "alive again" } else { "dead" };
                tracing::info!("{path} to {robot} is {state}");
            }
            // The program owns its sensors; this library has no way yet to tell it.
            Action::Shift(flow, later) => tracing::debug!("flow {} would do better {later} later", flow.0),
            Action::Report(report) => self.report(report),
        }
    }

    /// Sends to one robot, over the transport that such messages take. What a requester says is a query, which its
    /// controller answers as soon as it has something to say.
    fn send_to(self: &Arc<Self>, to: RobotId, route: Route, message: Message) {
        let (name, me) = (self.name_of(to), self.name());
        match (route, &message) {
            (Route::Path(path), _) => drop(self.send(to, path, &Parcel::Robot(message), &Bytes::new())),
            (Route::Any, Message::Coordination(Coordination::Permit { message: about, .. })) => match about {
                permits::Message::Grant { .. } | permits::Message::Refuse { .. } => {
                    let queries = lock(&self.asking).remove(&to).unwrap_or_default();
                    // The question came with control.
                    if queries.is_empty() {
                        return drop(self.send(to, PathId(0), &Parcel::Robot(message), &Bytes::new()));
                    }
                    for (path, query) in queries {
                        self.answer(path, query, Some(wire::encode(&message)));
                    }
                }
                permits::Message::Request { .. }
                | permits::Message::Release { .. }
                | permits::Message::Renew { .. } => {
                    self.query(&self.keyspace.permit(name, me), &message, to, Transport::Permits);
                }
            },
            (Route::Any, Message::TimeQuery { .. }) => {
                self.query(&self.keyspace.time(name), &message, to, Transport::TimeReply)
            }
            (Route::Any, _) => self.put(&self.keyspace.lead(me, name), &message),
        }
    }

    /// Sends to all other robots.
    fn send_to_all(&self, message: &Message) {
        let key = match message {
            Message::Models { .. } => self.keyspace.models(self.name()),
            _ => self.keyspace.lead_all(self.name()),
        };
        self.put(&key, message);
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

    /// Asks a robot over all paths; each may bring an answer.
    fn query(self: &Arc<Self>, key: &str, message: &Message, to: RobotId, answers: Transport) {
        let frame = ZBytes::from(wire::encode(message));
        for session in self.coordination.iter() {
            let inner = self.clone();
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
                        inner.on_said(to, answers, sample.payload());
                    }
                });
            if let Err(error) = asked.wait() {
                tracing::debug!("a query was not sent: {error}");
            }
        }
    }

    /// Answers a query, or ends it without an answer. The end of a query is never dropped: where its link is stuck it
    /// waits for seconds. So each path has a thread for it, and no path waits for another one.
    pub(super) fn answer(&self, path: usize, query: Query, frame: Option<Vec<u8>>) {
        let answer = frame.map(|frame| (query.key_expr().as_str().to_owned(), frame));
        self.answer_as(path, query, answer);
    }

    pub(super) fn answer_as(&self, path: usize, query: Query, answer: Option<(String, Vec<u8>)>) {
        if let Some(answers) = self.answers.get(path) {
            // Where that many wait the link is about to be given up.
            if answers.try_send((query, answer)).is_err() {
                tracing::debug!("an answer was not sent: too many wait");
            }
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
