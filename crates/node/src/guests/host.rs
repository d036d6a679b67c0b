//! The agent's end: admits programs, and does for each what it asks, until its connection ends.
//!
//! One task per guest reads what it says; one task per subscriber, gathering and receiver passes on what arrives. So a
//! guest that does not read holds up its own tasks and nothing else. A guest's declarations end with its connection.
//! Bulk that it has received and not taken goes to the next receiver, and bulk that it has sent continues.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, Mutex};
use std::time::Duration as StdDuration;

use bytes::Bytes;
use coorp_core::RobotId;
use rustix::net::{shutdown, Shutdown};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{oneshot, Semaphore};

use super::line::{refused, Incoming, Outgoing};
use super::place::{admits, Place};
use super::program::team_hash;
use crate::agent::Agent;
use crate::bulk::{Bulk, BulkMessage, BulkReceiver, Message};
use crate::control::{Publisher, Subscriber};
use crate::gather::Gather;
use crate::ground::{Spawn, Threads};
use crate::rank::real_time;
use crate::shared_robot::{SharedRobot, Wish};
use crate::sync::lock;
use crate::tasks::{awaited, caught_in};
use crate::wire::guest::{packed, Answer, Failure, FromGuest, ToGuest};
use crate::wire::{encode, Refusal};
use crate::Error;

/// The maximum number of guests at once, and of programs at once that may not join and are told so.
const GUESTS_MAX: usize = 64;
const STRANGERS_MAX: usize = 16;
/// The maximum number of one guest's declarations at once.
const DECLARED_MAX: usize = 4_096;
/// Time limit for a program to introduce itself.
const HELLO_MAX: StdDuration = StdDuration::from_secs(2);
/// Time until the next attempt to accept, if one has failed, for example for lack of descriptors.
const ACCEPT_AGAIN: StdDuration = StdDuration::from_millis(100);
/// Threads for all guests; they carry control.
const THREADS: usize = 2;
/// Maximum time for which closing waits for tasks in progress.
const CLOSE_MAX: StdDuration = StdDuration::from_secs(1);

/// The guests of a robot's agent.
#[derive(Debug)]
pub(crate) struct Guests {
    place: Place,
    threads: Threads,
}

impl Guests {
    /// Admits programs from now on.
    pub fn open(agent: &Arc<Agent>, place: Place) -> Result<Guests, Error> {
        let failed = |error| {
            let at = place.path().display();
            Error::Socket(format!("programs cannot join this robot's agent at {at}"), error)
        };
        let threads = agent.member.ground.threads(THREADS, "coorp-guests", || _ = real_time());
        let threads = threads.map_err(failed)?;
        let listener = place.listen().map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let entered = threads.tasks().enter();
        let listener = UnixListener::from_std(listener).map_err(failed)?;
        drop(entered);
        let spawn = threads.tasks().clone();
        threads.tasks().spawn(Box::pin(accept(agent.clone(), listener, spawn)));
        Ok(Guests { place, threads })
    }

    /// Ends all connections.
    pub fn close(&self) {
        self.place.remove();
        self.threads.end(std::future::ready(()), CLOSE_MAX, CLOSE_MAX);
    }

    /// Returns the place at which programs join.
    pub fn place(&self) -> &Place {
        &self.place
    }
}

async fn accept(agent: Arc<Agent>, listener: UnixListener, spawn: Arc<dyn Spawn>) {
    let places = [GUESTS_MAX, STRANGERS_MAX].map(|most| Arc::new(Semaphore::new(most)));
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::debug!("cannot accept a program: {error}");
                tokio::time::sleep(ACCEPT_AGAIN).await;
                continue;
            }
        };
        let (agent, places, on) = (agent.clone(), places.clone(), spawn.clone());
        spawn.spawn(Box::pin(async move {
            // A panic here harms only this guest.
            if let Some(why) = caught_in("a guest's task", attend(agent, stream, places, on)).await {
                tracing::error!("{why}");
            }
        }));
    }
}

/// Attends to a program until its connection ends.
async fn attend(
    agent: Arc<Agent>,
    stream: UnixStream,
    [guests, strangers]: [Arc<Semaphore>; 2],
    spawn: Arc<dyn Spawn>,
) {
    let who = stream.peer_cred();
    let (user, process) = who.as_ref().map_or((None, None), |who| (Some(who.uid()), who.pid()));
    let may_join = who.is_ok_and(|who| admits(who.uid(), who.gid()));
    let place = if may_join { guests } else { strangers }.try_acquire_owned().ok();
    if !may_join && place.is_none() {
        // No number of them takes a guest's place, or all descriptors.
        return;
    }
    let stream = Arc::new(stream);
    let (mut incoming, out) = (Incoming::new(&stream), Arc::new(Outgoing::new(&stream)));
    let hello = tokio::time::timeout(HELLO_MAX, incoming.next::<FromGuest>()).await;
    let why_not = match hello {
        _ if !may_join => Some("its user is neither the agent's, nor root, nor in the agent's group".to_owned()),
        Ok(Ok((hello, _))) if place.is_some() => why_not(&agent, &hello),
        Ok(Ok(_)) => Some(format!("it already has {GUESTS_MAX} guests, which is the limit")),
        Ok(Err(error)) => Some(error.to_string()),
        Err(_) => Some("the program does not introduce itself".to_owned()),
    };
    let name = agent.member.name().to_owned();
    let (process, user) = (process.unwrap_or(0), user.unwrap_or(u32::MAX));
    if let Some(why) = why_not {
        tracing::warn!("process {process} of user {user} may not join {name}: {why}");
        let _ = out.write(&packed(&ToGuest::Refused(why), &[]), None).await;
        return;
    }
    let began = agent.robot.began();
    if out
        .write(&packed(&ToGuest::Welcome { began }, &[]), None)
        .await
        .is_err()
    {
        return;
    }
    tracing::info!("process {process} of user {user} has joined {name}");
    let mut guest = Session {
        agent,
        out,
        spawn,
        objects: BTreeMap::new(),
        held: Arc::default(),
    };
    let error = guest.listen(&mut incoming).await;
    // Wake the tasks that wait until the guest reads.
    let _ = shutdown(&stream, Shutdown::Both);
    let why = match error.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => String::new(),
        _ => format!(": {error}"),
    };
    tracing::info!("process {process} has left {name}{why}");
}

/// Returns why a program may not join.
fn why_not(agent: &Agent, hello: &FromGuest) -> Option<String> {
    let FromGuest::Hello { team, robot, insecure } = hello else {
        return Some("the program does not introduce itself".to_owned());
    };
    let member = &agent.member;
    if *team != team_hash(&member.team) {
        return Some("the agent has another team file: the names of the team and its robots differ".to_owned());
    }
    if *robot != member.me {
        return Some(format!("the agent is {}'s", member.name()));
    }
    let needs_keys = !insecure && !member.secure;
    needs_keys.then(|| {
        "the agent runs without keys (--insecure), but this program wants them: start it with keys, or open \
                        the node with insecure"
            .to_owned()
    })
}

/// A guest.
struct Session {
    agent: Arc<Agent>,
    out: Arc<Outgoing>,
    spawn: Arc<dyn Spawn>,
    objects: BTreeMap<u64, Object>,
    held: Arc<Mutex<Held>>,
}

/// A guest's declaration, which ends when this is dropped.
enum Object {
    Publisher(Publisher),
    Subscriber(#[allow(dead_code)] Task),
    Gather(Arc<Gather>, #[allow(dead_code)] Task),
    Receiver(Arc<BulkReceiver>, Arc<Semaphore>, #[allow(dead_code)] Task),
    Wish(#[allow(dead_code)] Wish),
}

/// Ends a task when it is dropped.
type Task = oneshot::Sender<()>;

/// Bulk that a guest has received and not taken.
#[derive(Default)]
struct Held {
    next: u64,
    messages: BTreeMap<u64, Arc<BulkMessage>>,
    /// Whether the guest is gone.
    is_over: bool,
}

impl Drop for Session {
    fn drop(&mut self) {
        self.objects.clear();
        let Some(bulk) = self.agent.bulk.clone() else { return };
        let mut held = lock(&self.held);
        held.is_over = true;
        // In this order, the oldest comes first again.
        for message in std::mem::take(&mut held.messages).into_values().rev() {
            put_back(&bulk, message);
        }
    }
}

fn put_back(bulk: &Bulk, message: Arc<BulkMessage>) {
    // Otherwise the message is being taken.
    if let Some(message) = Arc::into_inner(message) {
        bulk.put_back(message);
    }
}

impl Session {
    /// Does what the guest asks, until the connection ends. Returns why it ended.
    async fn listen(&mut self, incoming: &mut Incoming) -> io::Error {
        loop {
            let (frame, payload) = match incoming.next::<FromGuest>().await {
                Ok(came) => came,
                Err(error) => return error,
            };
            if let Err(error) = self.on_frame(frame, payload, incoming).await {
                return error;
            }
        }
    }

    async fn on_frame(&mut self, frame: FromGuest, payload: Bytes, incoming: &mut Incoming) -> io::Result<()> {
        match frame {
            FromGuest::Put { id } => {
                if let Some(Object::Publisher(publisher)) = self.objects.get(&id) {
                    // The guest has checked the length, too.
                    let _ = publisher.put(&payload);
                }
                Ok(())
            }
            FromGuest::Bound { id, bound } => {
                if let Some(Object::Publisher(publisher)) = self.objects.get(&id) {
                    publisher.set_bound(bound);
                }
                Ok(())
            }
            FromGuest::Next { id } => {
                if let Some(Object::Receiver(_, wanted, _)) = self.objects.get(&id) {
                    wanted.add_permits(1);
                }
                Ok(())
            }
            FromGuest::PutBack { message } => {
                let message = lock(&self.held).messages.remove(&message);
                if let (Some(bulk), Some(message)) = (&self.agent.bulk, message) {
                    put_back(bulk, message);
                }
                Ok(())
            }
            FromGuest::End { id } => {
                self.objects.remove(&id);
                Ok(())
            }
            FromGuest::Hello { .. } => Err(refused(Refusal::Malformed)),
            FromGuest::Publish { id, topic, period } => {
                let publisher = Publisher::new(&self.agent.control, &topic, period);
                self.declare(id, publisher.map(Object::Publisher)).await
            }
            FromGuest::Subscribe { id, topic } => {
                let subscriber = Subscriber::new(&self.agent.control, &topic);
                let subscriber = subscriber.map(|subscriber| {
                    let robot = self.agent.robot.clone();
                    let pass_on = |out, task| pass_on_control(subscriber, robot, id, out, task);
                    Object::Subscriber(self.begin("passing on control", pass_on))
                });
                self.declare(id, subscriber).await
            }
            FromGuest::Gather {
                id,
                topic,
                period,
                topics,
            } => {
                let gather = Gather::new(&self.agent.gatherings, &topic, period, topics);
                let gather = gather.map(|gather| {
                    let gather = Arc::new(gather);
                    let passed = gather.clone();
                    let pass_on = |out, task| pass_on_lists(passed, id, out, task);
                    Object::Gather(gather, self.begin("passing on lists", pass_on))
                });
                self.declare(id, gather).await
            }
            FromGuest::Receive { id, prefix } => {
                let receiver = self.bulk().map(|bulk| {
                    let receiver = match &prefix {
                        Some(prefix) => bulk.receiver_of(prefix),
                        None => bulk.receiver(),
                    };
                    let (receiver, wanted) = (Arc::new(receiver), Arc::new(Semaphore::new(0)));
                    let passed = Passed {
                        receiver: receiver.clone(),
                        wanted: wanted.clone(),
                        bulk: bulk.clone(),
                        held: self.held.clone(),
                        id,
                    };
                    let task = self.begin("passing on bulk", |out, task| passed.pass_on(out, task));
                    Object::Receiver(receiver, wanted, task)
                });
                self.declare(id, receiver).await
            }
            FromGuest::Wish { id } => {
                let wish = self.agent.robot.wish();
                self.declare(id, Ok(Object::Wish(wish))).await
            }
            FromGuest::Updates { id, of } => {
                let Some(Object::Gather(gather, _)) = self.objects.get(&of) else {
                    return self.answer(id, Err(undeclared()), &[], None).await;
                };
                let updates = gather.updates().into_iter();
                let counts = updates.map(|(robot, counts)| (robot, [counts.due, counts.missed, counts.stale]));
                let counts: Vec<(RobotId, [u64; 3])> = counts.collect();
                let counts = postcard::to_extend(&counts, Vec::new()).unwrap_or_default();
                self.answer(id, Ok(Answer::Payload), &counts, None).await
            }
            FromGuest::Look { id, of } => {
                let Some(Object::Receiver(receiver, ..)) = self.objects.get(&of) else {
                    return self.answer(id, Err(undeclared()), &[], None).await;
                };
                if let (Some(bulk), Some(message)) = (&self.agent.bulk, receiver.try_recv()) {
                    hand_over(bulk, &self.held, &self.out, of, message, false).await?;
                }
                self.answer(id, Ok(Answer::Done), &[], None).await
            }
            FromGuest::Open { id, message } => {
                let message = lock(&self.held).messages.get(&message).cloned();
                let file = match message {
                    Some(message) => File::open(message.path()),
                    None => Err(taken_before()),
                };
                match file {
                    Ok(file) => self.answer(id, Ok(Answer::Descriptor), &[], Some(&file.into())).await,
                    Err(error) => self.answer(id, Err(Error::Agent(error.to_string())), &[], None).await,
                }
            }
            FromGuest::Taken { id, message } => {
                let done = self.discard(message).await;
                let done = done
                    .map(|()| Answer::Done)
                    .map_err(|error| Error::Agent(error.to_string()));
                self.answer(id, done, &[], None).await
            }
            FromGuest::Address { id, to, name } => {
                let robot = self.agent.bulk_to(&to).and_then(|robot| {
                    crate::topic::checked(&name)?;
                    self.bulk().map(|_| Answer::To(robot))
                });
                self.answer(id, robot, &[], None).await
            }
            FromGuest::Send {
                id,
                to,
                name,
                length,
                hash,
            } => {
                let content = incoming.descriptor()?;
                self.send(id, to, &name, content, (length, hash)).await
            }
            FromGuest::Status { id } => {
                let status = encode(&self.agent.status());
                self.answer(id, Ok(Answer::Payload), &status, None).await
            }
        }
    }

    fn bulk(&self) -> Result<&Arc<Bulk>, Error> {
        self.agent.bulk.as_ref().ok_or(Error::NoKeys)
    }

    /// Keeps what the guest has declared.
    async fn declare(&mut self, id: u64, object: Result<Object, Error>) -> io::Result<()> {
        if self.objects.contains_key(&id) {
            return Err(refused(Refusal::Malformed));
        }
        let is_full = self.objects.len() >= DECLARED_MAX;
        let declared = match object {
            Ok(_) if is_full => Err(Error::TooManyTopics(format!(
                "this program already has {DECLARED_MAX} publishers, subscribers and the like, which is the limit"
            ))),
            object => object.map(|object| _ = self.objects.insert(id, object)),
        };
        self.answer(id, declared.map(|()| Answer::Done), &[], None).await
    }

    /// Starts a task that runs until the returned value is dropped.
    fn begin<F>(&self, what: &'static str, task: impl FnOnce(Arc<Outgoing>, oneshot::Receiver<()>) -> F) -> Task
    where
        F: std::future::Future<Output = ()> + Send + 'static,
    {
        let (end, ended) = oneshot::channel();
        let task = task(self.out.clone(), ended);
        self.spawn.spawn(Box::pin(async move {
            if let Some(why) = caught_in(what, task).await {
                tracing::error!("{why}");
            }
        }));
        end
    }

    async fn answer(
        &self,
        id: u64,
        outcome: Result<Answer, Error>,
        payload: &[u8],
        descriptor: Option<&OwnedFd>,
    ) -> io::Result<()> {
        let outcome = outcome.map_err(Failure::from);
        let frame = ToGuest::Answer { id, outcome };
        self.out.write(&packed(&frame, payload), descriptor).await
    }

    async fn send(
        &self,
        id: u64,
        to: RobotId,
        name: &str,
        content: OwnedFd,
        (length, hash): (u64, [u8; 32]),
    ) -> io::Result<()> {
        let member = &self.agent.member;
        if to == member.me || usize::from(to.0) >= member.team.robots.len() {
            return Err(refused(Refusal::Malformed));
        }
        let message = Message::in_memory(content, length, hash)?;
        let delivery = self.bulk().and_then(|bulk| bulk.send(to, name, length, || message));
        match delivery {
            Ok(delivery) => {
                self.answer(id, Ok(Answer::Done), &[], None).await?;
                let out = self.out.clone();
                self.spawn.spawn(Box::pin(async move {
                    let outcome = delivery.await.map_err(Failure::from);
                    let _ = out.write(&packed(&ToGuest::Delivered { id, outcome }, &[]), None).await;
                }));
                Ok(())
            }
            Err(error) => self.answer(id, Err(error), &[], None).await,
        }
    }

    /// Removes a message that the guest has taken.
    async fn discard(&self, number: u64) -> io::Result<()> {
        let message = lock(&self.held).messages.remove(&number).ok_or_else(taken_before)?;
        let discarded = message.clone();
        let done = awaited(move || discarded.discard()).await;
        if done.is_err() {
            lock(&self.held).messages.insert(number, message);
        }
        done
    }
}

/// Returns the error for an unknown declaration, which an agent may have refused after its restart.
fn undeclared() -> Error {
    Error::Agent("the agent has no such gathering or receiver".to_owned())
}

fn taken_before() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "it was already taken")
}

/// Passes on a topic's messages. While one is being written, each robot's newest waits.
async fn pass_on_control(
    subscriber: Subscriber,
    robot: Arc<SharedRobot>,
    id: u64,
    out: Arc<Outgoing>,
    mut task: oneshot::Receiver<()>,
) {
    loop {
        let message = tokio::select! {
            biased;
            _ = &mut task => return,
            message = subscriber.next() => message,
        };
        let frame = ToGuest::Control {
            id,
            from: message.from,
            sequence: message.sequence,
            path: u16::try_from(message.path).unwrap_or(u16::MAX),
            arrived_at: message.arrived_at,
            at: robot.now(),
            age: message.age.map(|age| (age.is, age.within)),
        };
        if out.write(&packed(&frame, message.bytes()), None).await.is_err() {
            return;
        }
    }
}

/// Passes on the lists of a gathering. While one is being written, the newest waits.
async fn pass_on_lists(gather: Arc<Gather>, id: u64, out: Arc<Outgoing>, mut task: oneshot::Receiver<()>) {
    loop {
        let table = tokio::select! {
            biased;
            _ = &mut task => return,
            table = gather.next() => table,
        };
        let states = table.states.iter().map(|state| {
            let frame = ToGuest::State {
                id,
                from: state.from,
                created_at: state.stamps.created_at,
                error: state.stamps.error,
                received_at: state.stamps.received_at,
                fresh: state.fresh,
            };
            packed(&frame, state.bytes())
        });
        let at = table.listed_at;
        let listed = packed(&ToGuest::Listed { id, at }, &[]);
        let frames: Vec<Vec<u8>> = states.chain([listed]).collect();
        if out.write(&frames.concat(), None).await.is_err() {
            return;
        }
    }
}

/// The state of passing on the bulk of a receiver.
struct Passed {
    receiver: Arc<BulkReceiver>,
    wanted: Arc<Semaphore>,
    bulk: Arc<Bulk>,
    held: Arc<Mutex<Held>>,
    id: u64,
}

impl Passed {
    /// Passes on as many messages as the guest waits for.
    async fn pass_on(self, out: Arc<Outgoing>, mut task: oneshot::Receiver<()>) {
        loop {
            let next = async {
                if let Ok(wanted) = self.wanted.acquire().await {
                    wanted.forget();
                }
                self.receiver.next().await
            };
            let message = tokio::select! {
                biased;
                _ = &mut task => return,
                message = next => message,
            };
            if hand_over(&self.bulk, &self.held, &out, self.id, message, true)
                .await
                .is_err()
            {
                return;
            }
        }
    }
}

/// Passes on a message, and holds it until the guest takes it or is gone.
async fn hand_over(
    bulk: &Bulk,
    held: &Mutex<Held>,
    out: &Outgoing,
    id: u64,
    message: BulkMessage,
    wanted: bool,
) -> io::Result<()> {
    let frame = {
        let mut held = lock(held);
        if held.is_over {
            bulk.put_back(message);
            return Err(io::ErrorKind::NotConnected.into());
        }
        let number = held.next;
        held.next += 1;
        let frame = ToGuest::Bulk {
            id,
            message: number,
            from: message.from,
            name: message.name.clone(),
            length: message.length,
            path: message.path().as_os_str().as_bytes().to_vec(),
            wanted,
        };
        held.messages.insert(number, Arc::new(message));
        frame
    };
    out.write(&packed(&frame, &[]), None).await
}
