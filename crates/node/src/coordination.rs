//! Coordination between robots, over the fabric's sessions, one per path.
//!
//! Messages that may arrive twice go over all sessions. This module keeps queries that are answered later, and which
//! robots' tokens are present. Others decide what is sent, and what follows from it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::mpsc::{sync_channel, SyncSender};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use coorp_core::RobotId;
use zenoh::bytes::ZBytes;
use zenoh::liveliness::LivelinessToken;
use zenoh::qos::{CongestionControl, Priority};
use zenoh::query::{ConsolidationMode, Query, Reply};
use zenoh::sample::Sample;
use zenoh::Wait;

use crate::fabric::{fabric_failed, Sessions, Who};
use crate::keys::Identity;
use crate::member::Member;
use crate::sync::{lock, spawn};
use crate::wire::{self, Frame};
use crate::Error;

/// The number of answers that may wait for one path.
const ANSWERS_MAX: usize = 1_024;
/// The longest wait for an answer to a query: by then, the requester has asked again.
const ANSWER_MAX: Duration = Duration::from_secs(2);

/// A query and its answer, if any, as key and frame.
type Answer = (Query, Option<(String, Vec<u8>)>);

/// A robot's sessions and the queries in progress over them.
#[derive(Debug)]
pub(crate) struct Coordination {
    member: Arc<Member>,
    sessions: Sessions,
    /// To the threads that answer queries, one per path.
    answers: Vec<SyncSender<Answer>>,
    /// Robots whose tokens are present, each with the sessions that hold them.
    pub alive: Mutex<BTreeMap<RobotId, BTreeSet<String>>>,
    /// As the controller: each robot's newest open query over each path, to be answered once there is an answer.
    asking: Mutex<BTreeMap<RobotId, BTreeMap<usize, Query>>>,
}

impl Coordination {
    /// Opens the sessions. Works without any peer.
    pub fn open(member: &Arc<Member>, identity: Option<&Identity>) -> Result<Arc<Self>, Error> {
        let answers = (0..member.paths).map(|_| answering()).collect::<Result<_, _>>()?;
        Ok(Arc::new(Coordination {
            sessions: Sessions::open(&member.team, Who::Robot(member.me), identity, member.paths)?,
            member: member.clone(),
            answers,
            alive: Mutex::default(),
            asking: Mutex::default(),
        }))
    }

    pub fn close(&self) {
        self.sessions.close();
    }

    /// Returns whether a session is one of this robot's.
    pub fn is_own(&self, session: &str) -> bool {
        self.sessions.iter().any(|own| own.zid().to_string() == session)
    }

    /// A robot's address on a path: from the team file, or else the origin of its session.
    pub fn address_of(&self, robot: RobotId, path: usize) -> Option<IpAddr> {
        let known = self.member.team.robots.get(usize::from(robot.0))?;
        known.addresses.get(path).copied().or_else(|| {
            let sessions = lock(&self.alive).get(&robot)?.clone();
            self.sessions.peer(path, |session| sessions.contains(session))
        })
    }

    /// Declares a token in each session, with the session's name in its key. It lasts as long as the returned value.
    pub fn declare_tokens(&self, key: impl Fn(&str) -> String) -> Result<Vec<LivelinessToken>, Error> {
        let tokens = self.sessions.iter().map(|session| {
            let key = key(&session.zid().to_string());
            session.liveliness().declare_token(key).wait().map_err(fabric_failed)
        });
        tokens.collect()
    }

    /// Passes on tokens that appear and vanish, starting with those already present.
    pub fn watch_tokens(&self, key: &str, take: impl Fn(Sample) + Clone + Send + Sync + 'static) -> Result<(), Error> {
        self.sessions.iter().try_for_each(|session| {
            let tokens = session.liveliness().declare_subscriber(key.to_owned());
            let tokens = tokens.history(true).callback(take.clone());
            tokens.background().wait().map_err(fabric_failed)
        })
    }

    /// Passes on published samples.
    pub fn subscribe(&self, key: &str, take: impl Fn(Sample) + Clone + Send + Sync + 'static) -> Result<(), Error> {
        self.sessions.iter().try_for_each(|session| {
            let subscriber = session.declare_subscriber(key.to_owned()).callback(take.clone());
            subscriber.background().wait().map_err(fabric_failed)
        })
    }

    /// Passes on queries, each with the path that it arrived over.
    pub fn take_queries(
        &self,
        key: &str,
        take: impl Fn((usize, Query)) + Clone + Send + Sync + 'static,
    ) -> Result<(), Error> {
        self.sessions.iter().enumerate().try_for_each(|(path, session)| {
            let take = take.clone();
            let queryable = session.declare_queryable(key.to_owned());
            let queryable = queryable.callback(move |query| take((path, query)));
            queryable.background().wait().map_err(fabric_failed)
        })
    }

    /// Publishes over all paths.
    pub fn put<F: Frame>(&self, key: &str, frame: &F) {
        let frame = ZBytes::from(wire::encode(frame));
        for session in self.sessions.iter() {
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

    /// Queries over all paths; each may bring an answer.
    pub fn query<F: Frame>(&self, key: &str, frame: &F, on_answer: impl Fn(&ZBytes) + Clone + Send + Sync + 'static) {
        let frame = ZBytes::from(wire::encode(frame));
        for session in self.sessions.iter() {
            let on_answer = on_answer.clone();
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
                        on_answer(sample.payload());
                    }
                });
            if let Err(error) = asked.wait() {
                tracing::debug!("a query was not sent: {error}");
            }
        }
    }

    /// Keeps a robot's query until there is an answer. An older one over the same path ends without an answer.
    pub fn keep_query(&self, from: RobotId, path: usize, query: Query) {
        let older = lock(&self.asking).entry(from).or_default().insert(path, query);
        if let Some(older) = older {
            self.answer(path, older, None);
        }
    }

    /// Answers the kept queries of a robot. Returns whether there were any.
    pub fn answer_kept(&self, to: RobotId, frame: Option<&[u8]>) -> bool {
        let queries = lock(&self.asking).remove(&to).unwrap_or_default();
        let any = !queries.is_empty();
        for (path, query) in queries {
            self.answer(path, query, frame.map(<[u8]>::to_vec));
        }
        any
    }

    /// Answers a query, or ends it without an answer. The end of a query is never dropped: if its link is stuck, this
    /// blocks for seconds. So each path has a thread for it, and no path waits for another one.
    pub fn answer(&self, path: usize, query: Query, frame: Option<Vec<u8>>) {
        let answer = frame.map(|frame| (query.key_expr().as_str().to_owned(), frame));
        self.answer_as(path, query, answer);
    }

    /// The same, with a key.
    pub fn answer_as(&self, path: usize, query: Query, answer: Option<(String, Vec<u8>)>) {
        if let Some(answers) = self.answers.get(path) {
            // With so many waiting, the link is about to be given up.
            if answers.try_send((query, answer)).is_err() {
                tracing::debug!("an answer was not sent: too many wait");
            }
        }
    }
}

/// Starts a thread that answers queries; it ends when its sender is dropped.
fn answering() -> Result<SyncSender<Answer>, Error> {
    let (answers, queries) = sync_channel::<Answer>(ANSWERS_MAX);
    spawn("coorp-answers", move || {
        for (query, answer) in queries {
            let Some((key, frame)) = answer else { continue };
            let reply = query.reply(key, frame);
            if let Err(error) = reply.express(true).wait() {
                tracing::debug!("an answer was not sent: {error}");
            }
        }
    })?;
    Ok(answers)
}
