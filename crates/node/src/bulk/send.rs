//! The sending end: messages to one receiver, one after another, each until it is delivered or has failed.
//!
//! A message goes over all paths that the robot names, each with its own connection, as `core::spread` hands its segments
//! out. Over each path the receiver says what it has, and then what has arrived. Its final answer over any path counts.

use std::future::{pending, poll_fn, Future};
use std::net::SocketAddr;
use std::pin::{pin, Pin};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::task::Poll;
use std::time::Duration;

use coorp_core::robot::Input;
use coorp_core::spread::{segments_of, Run, Spread};
use coorp_core::RobotId;
use quinn::{Connection, RecvStream, SendStream, WriteError};
use tokio::sync::{mpsc, oneshot, Notify};
use tokio::time::Instant;

use super::cubic::PermittedCubicConfig;
use super::message::Message;
use super::turns::Turn;
use super::{receive, transport, Bulk, Lane, Waiting, PORT_BULK};
use crate::disk::megabytes;
use crate::quic;
use crate::shared_robot::Wish;
use crate::sync::lock;
use crate::tasks::awaited;
use crate::wire::{unlisted, Answer, Begin, Segments, Start, LISTED_BYTES};
use crate::Error;

/// A receiver has failed if it is silent for this long while we may send, or has no room for this long.
const GIVE_UP: Duration = Duration::from_secs(60);
/// Without a leader nobody grants permits. Messages fail after this many checks, a minute. Checks are counted instead
/// of time, because this process may have been suspended.
const LOOK_AT_LEADER_EVERY: Duration = Duration::from_millis(500);
const UNLED_MAX: u32 = 120;
/// The retry interval, and the longer one if the receiver has no room for the message.
const RETRY: Duration = Duration::from_millis(200);
const RETRY_NO_ROOM: Duration = Duration::from_secs(1);
/// The interval at which the permit is checked, besides its notification.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// The interval at which the paths are checked.
const LOOK_AT_PATH_EVERY: Duration = Duration::from_millis(20);
/// Time limit for establishing a connection. A new attempt begins again with short waits for an answer.
const CONNECT_MAX: Duration = Duration::from_secs(2);
/// A message that arrives garbled this many times has failed.
const GARBLED_MAX: u32 = 3;
/// Time for which a connection stays after its last message: small messages often follow one another, and a new
/// connection costs more.
const LINGER: Duration = Duration::from_secs(1);
/// The size of the pieces given to QUIC, bytes.
const CHUNK_BYTES: usize = 64 << 10;

/// A message to be delivered.
pub(super) struct Job {
    pub name: String,
    pub sequence: u64,
    pub message: Message,
    pub _waiting: Waiting,
    pub done: oneshot::Sender<Result<(), Error>>,
}

/// A connection over a path.
#[derive(Clone)]
struct Open {
    connection: Connection,
    turn: Arc<Turn>,
    /// See [`acknowledged_every`].
    every: Option<u32>,
    /// Whether the robot has been told that nothing waits for the connection.
    rests: bool,
    /// The end of the last message that used it.
    used: Instant,
}

/// The connections to one receiver, by path.
struct Connections<'b> {
    bulk: &'b Bulk,
    to: RobotId,
    open: Vec<Mutex<Option<Open>>>,
}

impl Connections<'_> {
    fn open(&self, path: usize) -> Option<Open> {
        self.open.get(path).and_then(|open| lock(open).clone())
    }

    fn are_open(&self) -> bool {
        self.open.iter().any(|open| lock(open).is_some())
    }

    /// Tells the robot whether bulk goes over a path.
    fn tell(&self, path: usize, waits: bool) {
        let to = self.to;
        self.bulk
            .robot
            .tell(|robot, now| robot.handle(Input::Bulk { to, path, waits }, now));
    }

    /// Lets a connection go on: its turn comes.
    fn rouse(&self, path: usize) {
        let rested = self.open.get(path).is_some_and(|open| {
            let mut open = lock(open);
            open.as_mut().is_some_and(|open| std::mem::take(&mut open.rests))
        });
        if rested {
            self.tell(path, true);
        }
    }

    /// Ends a connection.
    fn hang_up(&self, path: usize) {
        let open = self.open.get(path).and_then(|open| lock(open).take());
        if let Some(Open { connection, turn, .. }) = open {
            connection.close(0u8.into(), b"done");
            if let Some(lane) = self.bulk.lanes.get(path) {
                lane.receivers.remove(self.to, &turn);
            }
            self.tell(path, false);
        }
    }

    fn hang_up_all(&self) {
        (0..self.open.len()).for_each(|path| self.hang_up(path));
    }

    /// Looks after the connections when a message is over that these paths carried, a bit each; `last` if none follows.
    fn on_message_over(&self, carried: u32, last: bool) {
        for (path, open) in self.open.iter().enumerate() {
            let every = self
                .bulk
                .lanes
                .get(path)
                .and_then(|lane| acknowledged_every(self.bulk, lane));
            let carried = carried & 1 << path != 0;
            let (ends, rests) = {
                let mut open = lock(open);
                let Some(open) = open.as_mut() else { continue };
                if carried {
                    open.used = Instant::now();
                }
                // The settings of a connection are fixed. An idle one would send keep-alives over the air.
                let ends = open.every != every || open.used.elapsed() > LINGER;
                let rests = !open.rests && (last || !carried);
                open.rests |= rests;
                (ends, rests)
            };
            if ends {
                self.hang_up(path);
            } else if rests {
                self.tell(path, false);
            }
        }
    }
}

/// Returns the number of datagrams that a receiver acknowledges at once, if the gate has another source of completions.
/// `None`: it acknowledges each at once.
fn acknowledged_every(bulk: &Bulk, lane: &Lane) -> Option<u32> {
    let reported = lane.socket().completions().are_reported();
    reported.then_some(bulk.member.policy.ack_every)
}

/// Delivers the messages to one receiver.
pub(super) async fn deliver_all(bulk: Arc<Bulk>, to: RobotId, mut jobs: mpsc::Receiver<Job>) {
    let connections = Connections {
        bulk: &bulk,
        to,
        open: bulk.lanes.iter().map(|_| Mutex::default()).collect(),
    };
    // The robot requests a permit while the wish exists.
    let mut wish = None;
    let mut first = jobs.recv().await;
    while let Some(job) = first {
        let transfer = Transfer::new(&connections, &job);
        let outcome = transfer.deliver(&mut wish).await;
        let carried = transfer.carried.load(Ordering::Relaxed);
        if let Err(error) = &outcome {
            tracing::warn!("bulk: {error}");
        }
        // Take the next message before reporting this one's outcome, which frees a slot.
        let next = jobs.try_recv().ok();
        if next.is_none() {
            // The permit goes back at once, and the turn goes to others.
            wish = None;
        }
        connections.on_message_over(carried, next.is_none());
        let Job {
            _waiting: waiting,
            done,
            ..
        } = job;
        drop(waiting);
        // Nobody may be waiting for it.
        let _ = done.send(outcome);
        first = match next {
            Some(next) => Some(next),
            None if connections.are_open() => match tokio::time::timeout(LINGER, jobs.recv()).await {
                Ok(next) => next,
                Err(_) => {
                    connections.hang_up_all();
                    jobs.recv().await
                }
            },
            None => jobs.recv().await,
        };
    }
}

/// Tracks how long a receiver has not taken the message.
#[derive(Debug)]
struct Patience {
    /// The time of its last answer.
    heard: Instant,
    /// The time since which it has had no room, and whether for any message or for the rest of this one.
    no_room: Option<(Instant, NoRoom)>,
    /// The number of the message's segments that it had at its last answer.
    kept: u32,
    /// The end of the last time without a permit that was left out.
    waited_to: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NoRoom {
    /// Too many messages wait at the receiver.
    Full,
    /// The receiver cannot write to disk.
    Disk,
}

impl Patience {
    fn new(now: Instant) -> Self {
        Patience {
            heard: now,
            no_room: None,
            kept: 0,
            waited_to: now,
        }
    }

    /// Leaves out time without a permit, which is not the receiver's fault. Several paths may have waited at once.
    fn on_waited(&mut self, since: Instant, until: Instant) {
        let waited = until.saturating_duration_since(since.max(self.waited_to));
        self.waited_to = self.waited_to.max(until);
        self.heard += waited;
        if let Some((since, _)) = &mut self.no_room {
            *since += waited;
        }
    }

    /// Records that the receiver accepts the message, and has this many segments of it.
    fn on_here(&mut self, kept: u32) {
        if kept != self.kept || matches!(self.no_room, Some((_, NoRoom::Full))) {
            self.no_room = None;
        }
        self.kept = kept;
    }

    /// Records that the receiver has no room. Returns whether it has had none for too long.
    fn on_no_room(&mut self, why: NoRoom, now: Instant) -> bool {
        let since = self.no_room.map_or(now, |(since, _)| since);
        self.no_room = Some((since, why));
        now.saturating_duration_since(since) > GIVE_UP
    }

    /// Returns whether it has been silent for too long.
    fn is_silent(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.heard) > GIVE_UP
    }
}

/// A message on its way.
struct Transfer<'t> {
    connections: &'t Connections<'t>,
    job: &'t Job,
    begin: Begin,
    spread: Mutex<Spread>,
    /// Notified when a path may have something to send.
    changed: Notify,
    patience: Mutex<Patience>,
    /// Whether a path has failed.
    troubled: AtomicBool,
    /// The paths that have carried it, a bit each.
    carried: AtomicU32,
}

/// A path that carries segments of a message, until this value is dropped.
struct Carrier<'t> {
    transfer: &'t Transfer<'t>,
    path: usize,
    record: u64,
    send: SendStream,
}

impl Drop for Carrier<'_> {
    fn drop(&mut self) {
        // The rest that it would send is no longer needed.
        let _ = self.send.reset(0u8.into());
        lock(&self.transfer.spread).lose(self.path);
        self.transfer.changed.notify_waiters();
    }
}

type Attempts<'t> = Vec<(usize, Pin<Box<dyn Future<Output = Result<Answer, String>> + Send + 't>>)>;

/// Returns the result of the first attempt that ends.
async fn first_over(attempts: &mut Attempts<'_>) -> Result<Answer, String> {
    poll_fn(|cx| {
        let mut polled = attempts.iter_mut().map(|(_, attempt)| attempt.as_mut().poll(cx));
        polled.find(Poll::is_ready).unwrap_or(Poll::Pending)
    })
    .await
}

impl<'t> Transfer<'t> {
    fn new(connections: &'t Connections<'t>, job: &'t Job) -> Self {
        let length = job.message.length as u64;
        Transfer {
            begin: Begin {
                lineage: connections.bulk.lineage,
                sequence: job.sequence,
                name: job.name.clone(),
                length,
                hash: job.message.hash,
            },
            spread: Mutex::new(Spread::new(length)),
            changed: Notify::new(),
            patience: Mutex::new(Patience::new(Instant::now())),
            troubled: AtomicBool::new(false),
            carried: AtomicU32::new(0),
            connections,
            job,
        }
    }

    async fn deliver(&self, wish: &mut Option<Wish>) -> Result<(), Error> {
        let (bulk, job) = (self.connections.bulk, self.job);
        let name = bulk.member.name_of(self.connections.to);
        wish.get_or_insert_with(|| bulk.robot.wish());
        let mut garbled = 0;
        loop {
            let answer = tokio::select! {
                biased;
                answer = self.over_all_paths() => answer,
                () = unled(bulk) => {
                    self.connections.hang_up_all();
                    return Err(failed(job, name, UNLED));
                }
            };
            let on_no_room = |why| lock(&self.patience).on_no_room(why, Instant::now());
            let (why, is_over) = match answer {
                Ok(Answer::Whole) => return Ok(()),
                Ok(Answer::Garbled) => {
                    garbled += 1;
                    if garbled >= GARBLED_MAX {
                        return Err(failed(job, name, "it arrived garbled several times"));
                    }
                    continue;
                }
                Ok(Answer::Full) => (FULL.to_owned(), on_no_room(NoRoom::Full)),
                Ok(Answer::Disk) => (DISK.to_owned(), on_no_room(NoRoom::Disk)),
                Ok(Answer::NoRoom { missing, usable, most }) => {
                    let why = no_room(self.begin.length, missing, usable, most);
                    (why, on_no_room(NoRoom::Disk) || self.begin.length > most)
                }
                Ok(Answer::Here { .. } | Answer::There { .. }) => (INVALID.to_owned(), true),
                Err(why) => (why, true),
            };
            if is_over {
                return Err(failed(job, name, &why));
            }
            tracing::debug!("bulk to {name}: {why}; retrying");
            // Meanwhile, others may have the permit.
            *wish = None;
            tokio::time::sleep(RETRY_NO_ROOM).await;
            *wish = Some(bulk.robot.wish());
        }
    }

    /// Makes attempts over all paths that the robot names. Returns the receiver's final answer, or why it has failed.
    async fn over_all_paths(&self) -> Result<Answer, String> {
        let Connections { bulk, to, .. } = *self.connections;
        let mut attempts = Attempts::new();
        loop {
            let paths = bulk.robot.tell(|robot, now| robot.handle(Input::BulkPaths(to), now));
            let paths = paths.paths();
            attempts.retain(|(path, _)| {
                let stays = paths.contains(path);
                if !stays {
                    let (name, path) = (&self.job.name, bulk.member.path_name(*path));
                    tracing::info!("\"{name}\" to {} leaves {path}", bulk.member.name_of(to));
                }
                stays
            });
            for path in (0..bulk.lanes.len()).filter(|path| !paths.contains(path)) {
                self.connections.hang_up(path);
            }
            for path in paths {
                let another = self.troubled.load(Ordering::Relaxed) || lock(&self.spread).is_worth_another();
                if attempts.iter().all(|(other, _)| *other != path) && (attempts.is_empty() || another) {
                    attempts.push((path, Box::pin(self.over(path))));
                }
            }
            tokio::select! {
                biased;
                answer = first_over(&mut attempts) => return answer,
                () = tokio::time::sleep(LOOK_AT_PATH_EVERY) => {}
            }
        }
    }

    /// Makes attempts over one path, until the receiver has given its final answer or has been silent for too long.
    async fn over(&self, path: usize) -> Result<Answer, String> {
        loop {
            let since = Instant::now();
            permitted(self.connections.bulk).await;
            lock(&self.patience).on_waited(since, Instant::now());
            let why = match self.attempt(path).await {
                Ok(answer) => return Ok(answer),
                Err(why) => why,
            };
            self.connections.hang_up(path);
            self.troubled.store(true, Ordering::Relaxed);
            if lock(&self.patience).is_silent(Instant::now()) {
                return Err(why);
            }
            let name = self.connections.bulk.member.name_of(self.connections.to);
            tracing::debug!("bulk to {name} over path {path}: {why}; retrying");
            tokio::time::sleep(RETRY).await;
        }
    }

    /// Makes one attempt over a path, and returns the receiver's final answer.
    async fn attempt(&self, path: usize) -> Result<Answer, String> {
        let open = match self.connections.open(path) {
            Some(open) if open.connection.close_reason().is_none() => open,
            _ => {
                self.connections.hang_up(path);
                let open = connect(self.connections.bulk, self.connections.to, path).await?;
                let place = self.connections.open.get(path).ok_or("there is no such path")?;
                lock(place).insert(open).clone()
            }
        };
        self.connections.rouse(path);
        self.carried.fetch_or(1 << path, Ordering::Relaxed);
        let (send, mut receive) = open.connection.open_bi().await.map_err(|error| error.to_string())?;
        let mut carrier = Carrier {
            transfer: self,
            path,
            record: 0,
            send,
        };
        receive::write(&mut carrier.send, &self.begin).await?;
        let answer: Answer = receive::read(&mut receive).await?;
        lock(&self.patience).heard = Instant::now();
        let Answer::Here { record, listed } = answer else {
            return Ok(answer);
        };
        carrier.agree(record, listed, &mut receive).await?;
        tokio::select! {
            biased;
            answer = self.hear(record, &mut receive) => answer,
            why = carrier.say(&open.connection) => Err(why),
        }
    }

    /// Hears what has arrived, until the receiver's final answer.
    async fn hear(&self, record: u64, receive: &mut RecvStream) -> Result<Answer, String> {
        loop {
            let mut reading = pin!(receive::read::<Answer>(receive));
            let answer = loop {
                match tokio::time::timeout(GIVE_UP, &mut reading).await {
                    Ok(answer) => break answer?,
                    // Ask again: it may not have what it told.
                    Err(_) if lock(&self.spread).is_whole() => return Err("no answer".to_owned()),
                    Err(_) => {}
                }
            };
            lock(&self.patience).heard = Instant::now();
            match answer {
                Answer::There { first, count } => {
                    lock(&self.spread).on_arrived(record, Run { first, count });
                    self.changed.notify_waiters();
                }
                Answer::Here { .. } => return Err(INVALID.to_owned()),
                answer => return Ok(answer),
            }
        }
    }
}

impl Carrier<'_> {
    /// Reads what the receiver has or may have, and says which of it is right.
    async fn agree(&mut self, record: u64, listed: u32, receive: &mut RecvStream) -> Result<(), String> {
        let Transfer {
            begin,
            spread,
            patience,
            ..
        } = self.transfer;
        if listed > segments_of(begin.length) {
            return Err(INVALID.to_owned());
        }
        let mut entries = vec![[0; LISTED_BYTES]; listed as usize];
        let read = receive.read_exact(entries.as_flattened_mut()).await;
        read.map_err(|error| error.to_string())?;
        let entries: Vec<_> = entries.into_iter().map(unlisted).collect();
        let known: Vec<bool> = {
            let spread = lock(spread);
            entries
                .iter()
                .map(|(segment, _)| spread.has(record, *segment))
                .collect()
        };
        let message = self.transfer.job.message.clone();
        let right = move || {
            let listed = entries.into_iter().zip(known);
            listed
                .map(|((segment, hash), known)| (segment, known || message.hash_of(segment) == Some(hash)))
                .collect()
        };
        let right: Vec<(u32, bool)> = awaited(right).await;
        let mut bits = vec![0u8; right.len().div_ceil(8)];
        for (at, (_, right)) in right.iter().enumerate() {
            bits[at / 8] |= u8::from(*right) << (at % 8);
        }
        receive::write(&mut self.send, &Start { listed }).await?;
        self.send.write_all(&bits).await.map_err(|error| error.to_string())?;
        let has: Vec<u32> = right
            .iter()
            .filter(|(_, right)| *right)
            .map(|(segment, _)| *segment)
            .collect();
        let arrived = {
            let mut spread = lock(spread);
            spread.begin(self.path, record, &has);
            spread.arrived()
        };
        lock(patience).on_here(arrived);
        self.record = record;
        self.transfer.changed.notify_waiters();
        Ok(())
    }

    /// Sends segments as there is room for them, and returns why that ended.
    async fn say(&mut self, connection: &Connection) -> String {
        let Transfer {
            connections,
            job,
            begin,
            spread,
            changed,
            patience,
            ..
        } = self.transfer;
        loop {
            // Wait from before the check, so that no change is missed between the two.
            let changed = changed.notified();
            let window = connection.stats().path.cwnd;
            let run = {
                let mut spread = lock(spread);
                if !spread.is_begun(self.path, self.record) {
                    return "the receiver has been restarted".to_owned();
                }
                spread.take(self.path, window)
            };
            let Some(run) = run else {
                changed.await;
                continue;
            };
            let Run { first, count } = run;
            let head = receive::framed(&Segments { first, count }).into();
            let chunks = job.message.part(run.bytes(begin.length), CHUNK_BYTES);
            for (chunk, counts) in std::iter::once((head, false)).chain(chunks.map(|chunk| (chunk, true))) {
                let length = if counts { chunk.len() as u64 } else { 0 };
                match self.send.write_chunk(chunk).await {
                    Ok(()) => {}
                    // The receiver takes no more, and has said why.
                    Err(WriteError::Stopped(_)) => pending().await,
                    Err(error) => return error.to_string(),
                }
                lock(&connections.bulk.counts).sent_bytes += length;
                lock(patience).heard = Instant::now();
            }
        }
    }
}

const FULL: &str = "too many messages wait there to be taken";
const DISK: &str = "the receiver cannot write to its disk: its log says why";
const INVALID: &str = "the answer is not valid here";
const UNLED: &str = "no robot leads, so nobody grants permits: are enough robots switched on?";

/// Returns why a message does not fit on its receiver's disk.
fn no_room(length: u64, missing: u64, usable: u64, most: u64) -> String {
    let fits = length <= most;
    let [missing, usable, most] = [missing, usable, most].map(megabytes);
    if !fits {
        return format!(
            "its disk takes only {most} of bulk even when empty, and keeps the rest free: send less at once"
        );
    }
    format!("its disk has room for {usable} of bulk and keeps the rest free, but {missing} are needed")
}

fn failed(job: &Job, to: &str, why: &str) -> Error {
    Error::Undelivered(format!(
        "\"{}\" of {} bytes was not delivered to {to}: {why}",
        job.name, job.message.length
    ))
}

/// Counts the checks that found no leader, for as long as the node exists.
pub(super) async fn look_at_leader(bulk: Weak<Bulk>) {
    loop {
        tokio::time::sleep(LOOK_AT_LEADER_EVERY).await;
        let Some(bulk) = bulk.upgrade() else { return };
        if bulk.robot.ask(|robot, now| robot.leader(now)).is_some() {
            bulk.unled.store(0, Ordering::Relaxed);
        } else {
            bulk.unled.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Waits until there has been no leader for too long, perhaps forever.
async fn unled(bulk: &Bulk) {
    while bulk.unled.load(Ordering::Relaxed) < UNLED_MAX {
        tokio::time::sleep(LOOK_AT_LEADER_EVERY).await;
    }
}

/// Waits for a permit.
async fn permitted(bulk: &Bulk) {
    loop {
        // Wait from before the check, so that no permit is missed between the two.
        let comes = bulk.permitted.notified();
        // QUIC learns of a permit a moment after the robot: anything begun in between would wait for the next permit.
        let told = bulk.lanes.iter().all(|lane| lane.socket().is_permitted());
        if told && bulk.robot.ask(|robot, now| robot.is_permitted(now)) {
            return;
        }
        let _ = tokio::time::timeout(LOOK_EVERY, comes).await;
    }
}

async fn connect(bulk: &Bulk, to: RobotId, path: usize) -> Result<Open, String> {
    let (member, robot) = (&bulk.member, &bulk.robot);
    let address = bulk
        .addresses
        .known(to, path)
        .ok_or("its address is unknown: it is not here")?;
    let address = SocketAddr::new(address, member.team.port(to) + PORT_BULK);
    let lane = bulk.lanes.get(path).ok_or("there is no such path")?;
    // Both are replaced under the first one's lock.
    let (sender, socket) = {
        let sender = lock(&lane.sender);
        (sender.clone().ok_or("the node has closed")?, lane.socket())
    };
    // Use plain QUIC if the policy coordinates no bulk.
    let coordinated = robot.ask(|robot, _| robot.coordinates_bulk());
    let turn = Arc::new(Turn::new(!member.policy.turns));
    let permitted = PermittedCubicConfig {
        socket: Arc::downgrade(&socket),
        robot: robot.clone(),
        to,
        path,
        turn: turn.clone(),
        coordinated,
    };
    socket.find_source(address);
    let every = acknowledged_every(bulk, lane);
    let mut client = lane.client.clone();
    client.transport_config(transport::sender(member.lengths(path, address), permitted, every));
    let connection = quic::connect(
        &sender,
        client,
        (&member.team, &member.revoked, to),
        address,
        CONNECT_MAX,
    )
    .await;
    let connection = connection.map_err(|missed| missed.to_string())?;
    lane.receivers.add(to, &turn, &connection);
    // The certificate may have been revoked since it was shown.
    quic::close_revoked(&member.revoked, &connection);
    // A permit that arrived meanwhile was announced to the connections that existed then.
    transport::wake(&connection);
    Ok(Open {
        connection,
        turn,
        every,
        rests: true,
        used: Instant::now(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LATER: Duration = Duration::from_secs(1);

    #[test]
    fn who_says_nothing_is_given_up_and_a_missing_permit_does_not_count() {
        let began = Instant::now();
        let mut patience = Patience::new(began);
        assert!(!patience.is_silent(began + GIVE_UP));
        assert!(patience.is_silent(began + GIVE_UP + LATER));
        for _ in 0..2 {
            // Over two paths at once.
            patience.on_waited(began, began + LATER * 2);
        }
        assert!(!patience.is_silent(began + GIVE_UP + LATER * 2));
        assert!(patience.is_silent(began + GIVE_UP + LATER * 3));
    }

    #[test]
    fn who_has_no_room_is_given_up_though_it_speaks() {
        for why in [NoRoom::Full, NoRoom::Disk] {
            let began = Instant::now();
            let mut patience = Patience::new(began);
            for seconds in 0..=60 {
                let over = patience.on_no_room(why, began + LATER * seconds);
                assert!(!over, "{why:?} after {seconds} s");
            }
            assert!(patience.on_no_room(why, began + GIVE_UP + LATER), "{why:?}");
            patience.on_waited(began, began + LATER * 2);
            let over = patience.on_no_room(why, began + GIVE_UP + LATER);
            assert!(!over, "it had no permit for that long");
        }
    }

    #[test]
    fn room_that_is_found_again_counts_from_the_start() {
        let began = Instant::now();
        let refused = |why, kept| {
            let mut patience = Patience::new(began);
            patience.on_here(5);
            patience.on_no_room(why, began);
            patience.on_here(kept);
            patience.no_room.is_some()
        };
        assert!(!refused(NoRoom::Full, 0), "there is room now");
        assert!(!refused(NoRoom::Disk, 6), "it has got on");
        assert!(!refused(NoRoom::Disk, 0), "somebody has made room");
        assert!(refused(NoRoom::Disk, 5), "and here it has not");
    }
}
