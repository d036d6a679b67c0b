//! A program that is a guest of its robot's agent: one connection, and the traffic over it.
//!
//! A frame goes out on the thread that sends it, if the socket takes it. Otherwise it waits for a task, and a newer
//! message of the same publisher replaces it. When the agent is gone, the guest tries to connect again for as long as
//! it lives: after 50 ms, then less often, but at least once a second. Then it declares everything again. Meanwhile
//! messages are dropped, nothing is received, and questions wait for a few seconds and then fail. Bulk that the agent
//! had taken and not confirmed has failed.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::sync::mpsc::{sync_channel, RecvTimeoutError, SyncSender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration as StdDuration, Instant as StdInstant};

use bytes::Bytes;
use coorp_core::tracker::{Stamps, Topics};
use coorp_core::{Duration, Instant, RobotId};
use coorp_team::Team;
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::{oneshot, Notify};

use super::handles::{Gathered, Letter, Parcel, Received, Waiting};
use super::line::{send, Incoming};
use super::place::Place;
use super::{Gather, Publisher, Receiver, Subscriber, Wish};
use crate::bulk::{BulkMessage, BulkStream, Whole};
use crate::clock::since_boot;
use crate::control::Message;
use crate::gather::RobotState;
use crate::ground::{Ground, Linux, Threads};
use crate::mailbox::Mailbox;
use crate::member::robot_named;
use crate::rank::real_time;
use crate::shared_robot::STARTED;
use crate::status::Status;
use crate::sync::lock;
use crate::topic::{checked, Age};
use crate::wire::guest::{packed, Answer, Failure, FromGuest, ToGuest};
use crate::{wire, Error};

/// Maximum wait for an answer, including the restart of an agent.
const ANSWER_MAX: StdDuration = StdDuration::from_secs(5);
/// The shortest and the longest time until the next attempt to connect.
const RETRY_MIN: StdDuration = StdDuration::from_millis(50);
const RETRY_MAX: StdDuration = StdDuration::from_secs(1);
/// Time for which a program waits for an agent that was killed, before it becomes the robot itself.
const COMES_BACK_MAX: StdDuration = StdDuration::from_secs(3);
/// The maximum number of frames that wait for the socket.
const UNSENT_MAX: usize = 4_096;
/// Maximum time for which closing waits for the thread.
const CLOSE_MAX: StdDuration = StdDuration::from_secs(1);

/// Whether a program has joined its robot's agent.
pub(crate) enum Joined {
    /// The program is a guest.
    Guest(Box<Guest>),
    /// There is no agent; these are the sockets of agents that were killed.
    NoAgent(Vec<Place>),
}

/// A guest of its robot's agent.
#[derive(Debug)]
pub(crate) struct Guest {
    link: Arc<Link>,
    threads: Threads,
    team: Team,
}

/// The connection to the agent, whether established or not.
#[derive(Debug)]
pub(crate) struct Link {
    me: RobotId,
    hello: FromGuest,
    place: Place,
    /// Names the robot and its team in errors.
    name: String,
    state: Mutex<State>,
    connected: Condvar,
    unsent: Mutex<Unsent>,
    left: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// The number of connections so far; the last one may have ended.
    session: u64,
    is_connected: bool,
    is_closed: bool,
    /// The time at which the robot's clock began, since the machine's start.
    began: Duration,
    /// The number of the newest question. Nothing has the number 0, which ends what was never asked.
    last: u64,
    declared: BTreeMap<u64, Declared>,
    asked: BTreeMap<u64, SyncSender<Reply>>,
    /// The bulk messages sent, by the numbers of their questions, with their names.
    sent: BTreeMap<u64, (String, oneshot::Sender<Result<(), Error>>)>,
}

/// A declaration of the guest, which is repeated whenever the agent has restarted.
#[derive(Debug)]
struct Declared {
    frame: FromGuest,
    bound: Option<FromGuest>,
    sink: Sink,
}

/// The destination of what arrives for a declaration.
#[derive(Clone, Debug)]
pub(super) enum Sink {
    Nothing,
    Control(Arc<Mailbox<Waiting>>),
    Gathered(Arc<Gathered>),
    Bulk(Arc<Received>),
}

/// An answer, with its payload and descriptor.
#[derive(Debug)]
pub(crate) struct Reply {
    outcome: Result<Answer, Failure>,
    pub payload: Bytes,
    pub descriptor: Option<OwnedFd>,
}

/// Frames that are still to be sent.
#[derive(Debug, Default)]
struct Unsent {
    stream: Option<Arc<UnixStream>>,
    frames: VecDeque<Frame>,
}

#[derive(Debug)]
struct Frame {
    bytes: Vec<u8>,
    done: usize,
    descriptor: Option<OwnedFd>,
    /// The publisher, if the frame is a message.
    message_of: Option<u64>,
}

impl Guest {
    /// Joins the agent of a robot, if there is one.
    ///
    /// # Errors
    /// If there is an agent that this program may not join.
    pub fn join(team: &Team, robot: &str, state: Option<&std::path::Path>, insecure: bool) -> Result<Joined, Error> {
        let me = robot_named(team, robot)?;
        let mut dead = Vec::new();
        for place in Place::to_find(&team.name, robot, state) {
            let stream = match connect(&place) {
                Ok(stream) => stream,
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                    dead.push(place);
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    return Err(Error::Guest(format!(
                        "{robot}'s agent is at {}, which this user may not reach: run this program as the agent's user",
                        place.path().display()
                    )));
                }
                Err(_) => continue,
            };
            return Guest::over(stream, place, team, me, insecure).map(|guest| Joined::Guest(Box::new(guest)));
        }
        Ok(Joined::NoAgent(dead))
    }

    fn over(stream: StdUnixStream, place: Place, team: &Team, me: RobotId, insecure: bool) -> Result<Guest, Error> {
        let name = team.robots[usize::from(me.0)].name.clone();
        let link = Arc::new(Link {
            me,
            hello: FromGuest::Hello {
                team: team_hash(team),
                robot: me,
                insecure,
            },
            place,
            name,
            state: Mutex::default(),
            connected: Condvar::new(),
            unsent: Mutex::default(),
            left: Notify::new(),
        });
        let threads = Linux.threads(1, "coorp-guest", || _ = real_time());
        let threads = threads.map_err(Error::Thread)?;
        let (tell, told) = sync_channel(1);
        let task = run(Arc::downgrade(&link), stream, tell);
        threads.tasks().spawn(Box::pin(task));
        match told.recv_timeout(ANSWER_MAX) {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return Err(error),
            Err(_) => return Err(link.silent()),
        }
        tracing::info!(
            "{}'s agent runs here, at {}: this program is its guest",
            link.name,
            link.place.path().display()
        );
        Ok(Guest {
            link,
            threads,
            team: team.clone(),
        })
    }

    /// Returns the robot.
    pub fn place(&self) -> RobotId {
        self.link.me
    }

    pub fn publisher(&self, topic: &str, period: Option<Duration>) -> Result<Publisher, Error> {
        let topic = checked(topic)?.to_owned();
        let publish = |id| FromGuest::Publish {
            id,
            topic: topic.clone(),
            period,
        };
        let id = self.link.declare(publish, Sink::Nothing)?;
        Ok(Publisher::new(&self.link, id, topic))
    }

    pub fn subscriber(&self, topic: &str) -> Result<Subscriber, Error> {
        let (topic, waiting) = (checked(topic)?.to_owned(), Arc::new(Mailbox::new()));
        let subscribe = |id| FromGuest::Subscribe { id, topic };
        let id = self.link.declare(subscribe, Sink::Control(waiting.clone()))?;
        Ok(Subscriber::new(&self.link, id, waiting))
    }

    pub fn gather(&self, topic: &str, period: Duration, topics: Topics) -> Result<Gather, Error> {
        let (topic, gathered) = (checked(topic)?.to_owned(), Arc::new(Gathered::default()));
        let gather = |id| FromGuest::Gather {
            id,
            topic,
            period,
            topics,
        };
        let id = self.link.declare(gather, Sink::Gathered(gathered.clone()))?;
        Ok(Gather::new(&self.link, id, gathered))
    }

    pub fn receiver(&self, prefix: Option<&str>) -> Result<Receiver, Error> {
        let prefix = prefix.map(checked).transpose()?.map(str::to_owned);
        let received = Arc::new(Received::default());
        let receive = |id| FromGuest::Receive { id, prefix };
        let id = self.link.declare(receive, Sink::Bulk(received.clone()))?;
        Ok(Receiver::new(&self.link, id, received))
    }

    pub fn bulk_stream(&self, to: &str, name: &str) -> Result<BulkStream, Error> {
        if to != "leader" {
            robot_named(&self.team, to)?;
        }
        let (to, name) = (to.to_owned(), checked(name)?);
        let address = |id| FromGuest::Address {
            id,
            to,
            name: name.to_owned(),
        };
        let reply = self.link.ask(address)?;
        match reply.answer()? {
            Answer::To(robot) => BulkStream::of_guest(Letter::new(&self.link)?, robot, name),
            _ => Err(self.link.odd()),
        }
    }

    pub fn wish(&self) -> Result<Wish, Error> {
        let id = self.link.declare(|id| FromGuest::Wish { id }, Sink::Nothing)?;
        Ok(Wish::new(&self.link, id))
    }

    pub fn status(&self) -> Result<Status, Error> {
        let reply = self.link.ask(|id| FromGuest::Status { id })?;
        reply.answer()?;
        wire::decode(&reply.payload).map_err(|_| self.link.odd())
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        {
            let mut state = lock(&self.link.state);
            state.is_closed = true;
            self.link.disconnect(&mut state);
        }
        self.threads.end(std::future::ready(()), CLOSE_MAX, CLOSE_MAX);
    }
}

impl Reply {
    /// Returns the answer, or the failure that it reports.
    pub fn answer(&self) -> Result<Answer, Error> {
        self.outcome.clone().map_err(Error::from)
    }
}

/// Returns the hash of what an agent and its guests must agree on: which robot has which number.
pub(super) fn team_hash(team: &Team) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    let names = team.robots.iter().map(|robot| &robot.name);
    for name in [&team.name].into_iter().chain(names) {
        hasher.update(&(name.len() as u64).to_le_bytes());
        hasher.update(name.as_bytes());
    }
    *hasher.finalize().as_bytes()
}

/// Connects to an agent. Waits for one that was killed and may be restarting.
fn connect(place: &Place) -> io::Result<StdUnixStream> {
    let until = StdInstant::now() + COMES_BACK_MAX;
    loop {
        match place.connect() {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused && StdInstant::now() < until => {
                std::thread::sleep(RETRY_MIN);
            }
            connected => return connected,
        }
    }
}

impl Link {
    /// Returns the robot's clock.
    pub fn now(&self) -> Instant {
        STARTED + since_boot().saturating_sub(lock(&self.state).began)
    }

    /// Returns the number of connections so far.
    pub fn session(&self) -> u64 {
        lock(&self.state).session
    }

    /// Declares something, and waits until the agent has it. Returns its number.
    fn declare(&self, frame: impl FnOnce(u64) -> FromGuest, sink: Sink) -> Result<u64, Error> {
        let mut id = 0;
        let declared = |number, state: &mut State| {
            id = number;
            let frame = frame(number);
            let declared = Declared {
                frame: frame.clone(),
                bound: None,
                sink,
            };
            state.declared.insert(number, declared);
            frame
        };
        let done = self.question(declared, None).and_then(|reply| reply.answer());
        if let Err(error) = done {
            self.end(id);
            return Err(error);
        }
        Ok(id)
    }

    /// Ends a declaration. Bulk that came for it and that nobody has received goes to others.
    pub fn end(&self, id: u64) {
        // Still under the lock, because another agent numbers its messages anew.
        let mut state = lock(&self.state);
        let ended = state.declared.remove(&id);
        self.post(&FromGuest::End { id });
        if let Some(Sink::Bulk(received)) = ended.map(|ended| ended.sink) {
            // In this order, the oldest comes first again.
            let unwanted = received.take_all().into_iter().rev();
            unwanted.for_each(|message| self.post(&FromGuest::PutBack { message }));
        }
    }

    /// Sets a publisher's bound, now and whenever it is declared.
    pub fn bound(&self, id: u64, bound: Option<Duration>) {
        let mut state = lock(&self.state);
        let frame = FromGuest::Bound { id, bound };
        if let Some(declared) = state.declared.get_mut(&id) {
            declared.bound = Some(frame.clone());
        }
        self.post(&frame);
    }

    /// Asks a question, and waits for its answer.
    pub fn ask(&self, question: impl FnOnce(u64) -> FromGuest) -> Result<Reply, Error> {
        self.question(|id, _| question(id), None)
    }

    /// Has the agent send bulk.
    pub fn send_bulk(
        &self,
        name: &str,
        content: OwnedFd,
        frame: impl FnOnce(u64) -> FromGuest,
    ) -> Result<oneshot::Receiver<Result<(), Error>>, Error> {
        let (done, outcome) = oneshot::channel();
        let mut id = 0;
        let question = |number, state: &mut State| {
            id = number;
            state.sent.insert(number, (name.to_owned(), done));
            frame(number)
        };
        let taken = self.question(question, Some(content)).and_then(|reply| reply.answer());
        if let Err(error) = taken {
            lock(&self.state).sent.remove(&id);
            return Err(error);
        }
        Ok(outcome)
    }

    fn question(
        &self,
        frame: impl FnOnce(u64, &mut State) -> FromGuest,
        descriptor: Option<OwnedFd>,
    ) -> Result<Reply, Error> {
        let until = StdInstant::now() + ANSWER_MAX;
        let (tell, told) = sync_channel(1);
        let mut state = self.connected_until(until)?;
        state.last += 1;
        let id = state.last;
        let frame = frame(id, &mut state);
        state.asked.insert(id, tell);
        // Still under the lock, so that an agent that restarts is asked only once.
        self.put(packed(&frame, &[]), descriptor, None);
        drop(state);
        let reply = told.recv_timeout(until.saturating_duration_since(StdInstant::now()));
        reply.map_err(|error| {
            lock(&self.state).asked.remove(&id);
            match error {
                RecvTimeoutError::Timeout => self.silent(),
                RecvTimeoutError::Disconnected => self.gone(),
            }
        })
    }

    fn connected_until(&self, until: StdInstant) -> Result<MutexGuard<'_, State>, Error> {
        let state = lock(&self.state);
        let left = until.saturating_duration_since(StdInstant::now());
        let missing = |state: &mut State| !state.is_connected && !state.is_closed;
        let waited = self.connected.wait_timeout_while(state, left, missing);
        let state = waited.unwrap_or_else(PoisonError::into_inner).0;
        if state.is_closed {
            return Err(Error::Closed);
        }
        if !state.is_connected {
            return Err(self.gone());
        }
        Ok(state)
    }

    /// Sends a frame, if the agent is connected.
    pub fn post(&self, frame: &FromGuest) {
        self.put(packed(frame, &[]), None, None);
    }

    /// Sends a publisher's message, if the agent is connected.
    ///
    /// # Errors
    /// If the node has closed.
    pub fn publish(&self, id: u64, message: &[u8]) -> Result<(), Error> {
        let frame = packed(&FromGuest::Put { id }, message);
        if !self.put(frame, None, Some(id)) && lock(&self.state).is_closed {
            return Err(Error::Closed);
        }
        Ok(())
    }

    /// Sends now what the socket takes; the rest waits. Returns whether the agent is connected.
    fn put(&self, bytes: Vec<u8>, descriptor: Option<OwnedFd>, message_of: Option<u64>) -> bool {
        let mut unsent = lock(&self.unsent);
        let Some(stream) = unsent.stream.clone() else {
            return false;
        };
        let mut frame = Frame {
            bytes,
            done: 0,
            descriptor,
            message_of,
        };
        if unsent.frames.is_empty() && frame.send(&stream).is_ok() {
            return true;
        }
        let older =
            |waiting: &&mut Frame| message_of.is_some() && waiting.message_of == message_of && waiting.done == 0;
        if let Some(older) = unsent.frames.iter_mut().find(older) {
            *older = frame;
        } else if message_of.is_none() || unsent.frames.len() < UNSENT_MAX {
            unsent.frames.push_back(frame);
        }
        drop(unsent);
        self.left.notify_one();
        true
    }

    /// Sends what waits, as far as the socket takes it.
    fn flush(&self) -> io::Result<()> {
        let mut unsent = lock(&self.unsent);
        let Unsent { stream, frames } = &mut *unsent;
        let Some(stream) = stream else { return Ok(()) };
        while let Some(frame) = frames.front_mut() {
            frame.send(stream)?;
            frames.pop_front();
        }
        Ok(())
    }

    /// Declares everything to an agent that has admitted this program.
    fn on_welcome(&self, stream: &Arc<UnixStream>, began: Duration) {
        let mut state = lock(&self.state);
        if state.is_closed {
            return;
        }
        *lock(&self.unsent) = Unsent {
            stream: Some(stream.clone()),
            frames: VecDeque::new(),
        };
        (state.began, state.is_connected) = (began, true);
        state.session += 1;
        for (id, declared) in &state.declared {
            self.post(&declared.frame);
            declared.bound.iter().for_each(|bound| self.post(bound));
            if let Sink::Bulk(received) = &declared.sink {
                for _ in 0..received.asks_anew() {
                    self.post(&FromGuest::Next { id: *id });
                }
            }
        }
        drop(state);
        self.connected.notify_all();
    }

    /// Cleans up after the end of the connection.
    fn disconnect(&self, state: &mut State) {
        *lock(&self.unsent) = Unsent::default();
        state.is_connected = false;
        state.asked.clear();
        for (name, done) in std::mem::take(&mut state.sent).into_values() {
            let _ = done.send(Err(Error::Undelivered(format!(
                "\"{name}\" was not confirmed before {}'s agent ended: it may still have arrived",
                self.name
            ))));
        }
        for declared in state.declared.values() {
            match &declared.sink {
                // Lists have times of another clock, and a new agent delivers bulk that was not taken again.
                Sink::Gathered(gathered) => gathered.clear(),
                Sink::Bulk(received) => drop(received.take_all()),
                Sink::Control(_) | Sink::Nothing => {}
            }
        }
        self.connected.notify_all();
    }

    fn on_frame(self: &Arc<Self>, frame: ToGuest, payload: Bytes, incoming: &mut Incoming) -> io::Result<()> {
        match frame {
            ToGuest::Answer { id, outcome } => {
                let descriptor = (outcome == Ok(Answer::Descriptor)).then(|| incoming.descriptor());
                let descriptor = descriptor.transpose()?;
                let mut state = lock(&self.state);
                let is_declared = state.declared.contains_key(&id);
                if let Some(asked) = state.asked.remove(&id) {
                    let reply = Reply {
                        outcome,
                        payload,
                        descriptor,
                    };
                    // The caller may have given up waiting.
                    let _ = asked.try_send(reply);
                } else if let (Err(failure), true) = (outcome, is_declared) {
                    let error = Error::from(failure);
                    tracing::error!(
                        "{}'s agent has restarted, and refuses what it had accepted: {error}",
                        self.name
                    );
                }
            }
            ToGuest::Delivered { id, outcome } => {
                if let Some((_, done)) = lock(&self.state).sent.remove(&id) {
                    // Nobody may be waiting for it.
                    let _ = done.send(outcome.map_err(Error::from));
                }
            }
            ToGuest::Control {
                id,
                from,
                sequence,
                path,
                arrived_at,
                at,
                age,
            } => {
                let since = self.now().since(at);
                let message = Message {
                    from,
                    sequence,
                    path: path.into(),
                    arrived_at,
                    age: age.map(|(is, within)| Age { is: is + since, within }),
                    payload,
                };
                if let Some(Sink::Control(waiting)) = self.sink(id) {
                    waiting.put((message, since_boot()), |(older, _)| older.from == from);
                }
            }
            ToGuest::State {
                id,
                from,
                created_at,
                error,
                received_at,
                fresh,
            } => {
                let stamps = Stamps {
                    created_at,
                    error,
                    received_at,
                    listed_at: received_at,
                };
                let state = RobotState {
                    from,
                    stamps,
                    fresh,
                    age: None,
                    payload,
                };
                if let Some(Sink::Gathered(gathered)) = self.sink(id) {
                    gathered.add(state);
                }
            }
            ToGuest::Listed { id, at } => {
                if let Some(Sink::Gathered(gathered)) = self.sink(id) {
                    gathered.list(at);
                }
            }
            ToGuest::Bulk {
                id,
                message,
                from,
                name,
                length,
                path,
                wanted,
            } => {
                let path = OsString::from_vec(path).into();
                let whole = Whole { name, length, path };
                let came = BulkMessage::of_guest(Parcel::new(self, message), from, whole);
                // Hold the lock, so that the receiver does not end meanwhile.
                let state = lock(&self.state);
                match state.declared.get(&id).map(|declared| &declared.sink) {
                    Some(Sink::Bulk(received)) => received.on_came(message, came, wanted),
                    _ => {
                        drop(state);
                        self.post(&FromGuest::PutBack { message });
                    }
                }
            }
            ToGuest::Welcome { .. } | ToGuest::Refused(_) => return Err(io::ErrorKind::InvalidData.into()),
        }
        Ok(())
    }

    fn sink(&self, id: u64) -> Option<Sink> {
        lock(&self.state)
            .declared
            .get(&id)
            .map(|declared| declared.sink.clone())
    }

    fn gone(&self) -> Error {
        Error::Agent(format!(
            "{}'s agent is not running: start it again (coorp up), and this program rejoins it",
            self.name
        ))
    }

    fn silent(&self) -> Error {
        Error::Agent(format!(
            "{}'s agent did not answer within {} s: does it hang?",
            self.name,
            ANSWER_MAX.as_secs()
        ))
    }

    /// Returns the error for an answer that does not fit its question.
    pub fn odd(&self) -> Error {
        Error::Agent(format!(
            "{}'s agent gave an answer that does not fit the question",
            self.name
        ))
    }
}

impl Frame {
    fn send(&mut self, stream: &UnixStream) -> io::Result<()> {
        while self.done < self.bytes.len() {
            let descriptor = self.descriptor.as_ref().filter(|_| self.done == 0).map(AsFd::as_fd);
            match send(stream, &self.bytes[self.done..], descriptor) {
                Ok(sent) => self.done += sent,
                // The reader notices if the connection is closed.
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Keeps up the connection for as long as the link exists. Reports the outcome of the first attempt.
async fn run(link: Weak<Link>, first: StdUnixStream, tell: SyncSender<Result<(), Error>>) {
    let (mut stream, mut tell, mut wait) = (Some(first), Some(tell), RETRY_MIN);
    let Some(place) = link.upgrade().map(|link| link.place.clone()) else {
        return;
    };
    loop {
        let Some(link) = link.upgrade() else { return };
        if let Some(stream) = stream.take() {
            match join(&link, stream).await {
                Ok((stream, incoming)) => {
                    wait = RETRY_MIN;
                    if let Some(tell) = tell.take() {
                        let _ = tell.send(Ok(()));
                    } else {
                        tracing::info!("{}'s agent is back", link.name);
                    }
                    let why = listen(&link, &stream, incoming).await;
                    link.disconnect(&mut lock(&link.state));
                    tracing::warn!(
                        "{}'s agent is gone ({why}); this program rejoins it when it is back",
                        link.name
                    );
                }
                Err(error) => {
                    if let Some(tell) = tell.take() {
                        let _ = tell.send(Err(error));
                        return;
                    }
                    tracing::warn!("{error}");
                }
            }
        }
        drop(link);
        tokio::time::sleep(wait).await;
        wait = RETRY_MAX.min(wait * 2);
        stream = place.connect().ok();
    }
}

/// Introduces this program.
async fn join(link: &Link, stream: StdUnixStream) -> Result<(Arc<UnixStream>, Incoming), Error> {
    let name = &link.name;
    let failed = |error| Error::Agent(format!("cannot join {name}'s agent: {error}"));
    let stream = stream.set_nonblocking(true).and_then(|()| UnixStream::from_std(stream));
    let stream = Arc::new(stream.map_err(failed)?);
    send(&stream, &packed(&link.hello, &[]), None).map_err(failed)?;
    let mut incoming = Incoming::new(&stream);
    let came = tokio::time::timeout(ANSWER_MAX, incoming.next::<ToGuest>()).await;
    let came = came.map_err(|_| link.silent())?;
    match came {
        Ok((ToGuest::Welcome { began }, _)) => link.on_welcome(&stream, began),
        Ok((ToGuest::Refused(why), _)) => return Err(Error::Guest(format!("cannot join {name}'s agent: {why}"))),
        Ok(_) => return Err(link.odd()),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            return Err(Error::Guest(format!(
                "cannot join {name}'s agent at {}: {error}",
                link.place.path().display()
            )));
        }
        Err(error) => return Err(failed(error)),
    }
    Ok((stream, incoming))
}

/// Receives what arrives, and sends what waits, until the connection ends. Returns why it ended.
async fn listen(link: &Arc<Link>, stream: &UnixStream, mut incoming: Incoming) -> io::Error {
    let flushed = async {
        loop {
            link.left.notified().await;
            if let Err(error) = stream.async_io(Interest::WRITABLE, || link.flush()).await {
                return error;
            }
        }
    };
    let read = async {
        loop {
            let came = incoming.next::<ToGuest>().await;
            if let Err(error) = came.and_then(|(frame, payload)| link.on_frame(frame, payload, &mut incoming)) {
                return error;
            }
        }
    };
    tokio::select! {
        error = read => error,
        error = flushed => error,
    }
}
