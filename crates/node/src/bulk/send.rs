//! The sending end: messages to one receiver, one after another, each until it is delivered or has failed.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use coorp_core::robot::Input;
use coorp_core::RobotId;
use quinn::{Connection, WriteError};
use tokio::sync::{mpsc, oneshot};
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
use crate::wire::{Answer, Begin, Start};
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
/// The interval at which the path is checked.
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

/// A connection, and its path.
struct Open {
    connection: Connection,
    path: usize,
    turn: Arc<Turn>,
    /// See [`acknowledged_every`].
    every: Option<u32>,
    /// Whether the robot has been told that nothing waits for the connection.
    rests: bool,
}

/// Returns the number of datagrams that a receiver acknowledges at once, if the gate has another source of completions.
/// `None`: it acknowledges each at once.
fn acknowledged_every(bulk: &Bulk, lane: &Lane) -> Option<u32> {
    let reported = lane.socket().completions().are_reported();
    reported.then_some(bulk.member.policy.ack_every)
}

/// Delivers the messages to one receiver.
pub(super) async fn deliver_all(bulk: Arc<Bulk>, to: RobotId, mut jobs: mpsc::Receiver<Job>) {
    // The robot requests a permit while the wish exists.
    let (mut connection, mut wish) = (None, None);
    let mut first = jobs.recv().await;
    while let Some(job) = first {
        let outcome = deliver(&bulk, to, &job, &mut connection, &mut wish).await;
        if let Err(error) = &outcome {
            tracing::warn!("bulk: {error}");
        }
        let learnt = |open: &Open| {
            open.every
                != bulk
                    .lanes
                    .get(open.path)
                    .and_then(|lane| acknowledged_every(&bulk, lane))
        };
        // Take the next message before reporting this one's outcome, which frees a slot.
        let next = jobs.try_recv().ok();
        if connection.as_ref().is_some_and(learnt) {
            // The settings of a connection are fixed.
            hang_up(&bulk, to, connection.take());
        }
        if next.is_none() {
            // The permit goes back at once, and the turn goes to others.
            wish = None;
            if let Some(open) = &mut connection {
                open.rests = true;
                bulk.robot
                    .tell(|robot, now| robot.handle(Input::Bulk { to, path: None }, now));
            }
        }
        let Job {
            _waiting: waiting,
            done,
            ..
        } = job;
        drop(waiting);
        // Nobody may be waiting for it.
        let _ = done.send(outcome);
        first = match (next, &connection) {
            (Some(next), _) => Some(next),
            (None, None) => jobs.recv().await,
            (None, Some(_)) => match tokio::time::timeout(LINGER, jobs.recv()).await {
                Ok(next) => next,
                Err(_) => {
                    // An idle connection would send keep-alives over the air.
                    hang_up(&bulk, to, connection.take());
                    jobs.recv().await
                }
            },
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
    /// The number of the message's bytes that it had at its last answer.
    kept: u64,
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
        }
    }

    /// Leaves out time without a permit, which is not the receiver's fault.
    fn on_waited(&mut self, waited: Duration) {
        self.heard += waited;
        if let Some((since, _)) = &mut self.no_room {
            *since += waited;
        }
    }

    /// Records that the receiver accepts the message, and has this many bytes of it.
    fn on_here(&mut self, length: u64) {
        if length != self.kept || matches!(self.no_room, Some((_, NoRoom::Full))) {
            self.no_room = None;
        }
        self.kept = length;
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

async fn deliver(
    bulk: &Bulk,
    to: RobotId,
    job: &Job,
    connection: &mut Option<Open>,
    wish: &mut Option<Wish>,
) -> Result<(), Error> {
    let name = bulk.member.name_of(to);
    wish.get_or_insert_with(|| bulk.robot.wish());
    let begin = Begin {
        lineage: bulk.lineage,
        sequence: job.sequence,
        name: job.name.clone(),
        length: job.message.length as u64,
        hash: job.message.hash,
    };
    let (mut patience, mut garbled) = (Patience::new(Instant::now()), 0);
    loop {
        let waited = tokio::select! {
            biased;
            waited = permitted(bulk) => waited,
            () = unled(bulk) => return Err(failed(job, name, UNLED)),
        };
        patience.on_waited(waited);
        let path = bulk.robot.tell(|robot, now| robot.handle(Input::BulkPath(to), now));
        let path = path.path();
        if connection.as_ref().is_some_and(|open| open.path != path) {
            hang_up(bulk, to, connection.take());
        }
        let answer = tokio::select! {
            biased;
            answer = attempt(bulk, (to, path), job, &begin, connection, &mut patience) => answer,
            () = moves(bulk, to, path) => {
                tracing::info!("\"{}\" to {name} moves to another path", job.name);
                hang_up(bulk, to, connection.take());
                continue;
            }
            () = unled(bulk) => {
                hang_up(bulk, to, connection.take());
                return Err(failed(job, name, UNLED));
            }
        };
        let now = Instant::now();
        let (why, is_over) = match answer {
            Ok(Answer::Whole) => return Ok(()),
            Ok(Answer::Garbled) => {
                garbled += 1;
                if garbled >= GARBLED_MAX {
                    return Err(failed(job, name, "it arrived garbled several times"));
                }
                continue;
            }
            Ok(Answer::Full) => (FULL.to_owned(), patience.on_no_room(NoRoom::Full, now)),
            Ok(Answer::Disk) => (DISK.to_owned(), patience.on_no_room(NoRoom::Disk, now)),
            Ok(Answer::NoRoom { missing, usable, most }) => {
                let why = no_room(begin.length, missing, usable, most);
                (why, patience.on_no_room(NoRoom::Disk, now) || begin.length > most)
            }
            Ok(Answer::Here { .. }) => ("the answer is not valid here".to_owned(), patience.is_silent(now)),
            Err(why) => {
                hang_up(bulk, to, connection.take());
                (why, patience.is_silent(now))
            }
        };
        if is_over {
            return Err(failed(job, name, &why));
        }
        tracing::debug!("bulk to {name}: {why}; retrying");
        if patience.no_room.is_some() {
            // Meanwhile, others may have the permit.
            *wish = None;
            tokio::time::sleep(RETRY_NO_ROOM).await;
            *wish = Some(bulk.robot.wish());
        } else {
            tokio::time::sleep(RETRY).await;
        }
    }
}

const FULL: &str = "too many messages wait there to be taken";
const DISK: &str = "the receiver cannot write to its disk: its log says why";
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

/// Waits for a permit; returns how long that took.
async fn permitted(bulk: &Bulk) -> Duration {
    let began = Instant::now();
    loop {
        // Wait from before the check, so that no permit is missed between the two.
        let comes = bulk.permitted.notified();
        // QUIC learns of a permit a moment after the robot: anything begun in between would wait for the next permit.
        let told = bulk.lanes.iter().all(|lane| lane.socket().is_permitted());
        if told && bulk.robot.ask(|robot, now| robot.is_permitted(now)) {
            return began.elapsed();
        }
        let _ = tokio::time::timeout(LOOK_EVERY, comes).await;
    }
}

/// Waits until bulk has to leave its path, perhaps forever.
async fn moves(bulk: &Bulk, to: RobotId, path: usize) {
    loop {
        tokio::time::sleep(LOOK_AT_PATH_EVERY).await;
        let moves = Input::BulkMoves { to, from: path };
        if bulk.robot.tell(|robot, now| robot.may(moves, now)) {
            return;
        }
    }
}

/// Makes one attempt, and returns the receiver's final answer.
async fn attempt(
    bulk: &Bulk,
    (to, path): (RobotId, usize),
    job: &Job,
    begin: &Begin,
    connection: &mut Option<Open>,
    patience: &mut Patience,
) -> Result<Answer, String> {
    if connection
        .as_ref()
        .is_some_and(|open| open.connection.close_reason().is_some())
    {
        hang_up(bulk, to, connection.take());
    }
    let open = match connection.take() {
        Some(open) => open,
        None => connect(bulk, to, path).await?,
    };
    let open = connection.insert(open);
    if std::mem::take(&mut open.rests) {
        let path = Some(path);
        bulk.robot
            .tell(|robot, now| robot.handle(Input::Bulk { to, path }, now));
    }
    let (mut send, mut receive) = open.connection.open_bi().await.map_err(|error| error.to_string())?;
    receive::write(&mut send, begin).await?;
    let answer: Answer = receive::read(&mut receive).await?;
    patience.heard = Instant::now();
    let Answer::Here { length, hash } = answer else {
        return Ok(answer);
    };
    patience.on_here(length);
    let message = job.message.clone();
    let kept = awaited(move || message.hash_of_first(length)).await == Some(hash);
    let offset = if kept { length as usize } else { 0 };
    receive::write(&mut send, &Start { offset: offset as u64 }).await?;
    for chunk in job.message.after(offset, CHUNK_BYTES) {
        let length = chunk.len() as u64;
        match send.write_chunk(chunk).await {
            // The receiver takes no more, and has said why.
            Err(WriteError::Stopped(_)) => break,
            written => written.map_err(|error| error.to_string())?,
        }
        lock(&bulk.counts).sent_bytes += length;
        patience.heard = Instant::now();
    }
    send.finish().map_err(|error| error.to_string())?;
    let answer = receive::read(&mut receive).await?;
    patience.heard = Instant::now();
    Ok(answer)
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
        path,
        turn,
        every,
        rests: true,
    })
}

fn hang_up(bulk: &Bulk, to: RobotId, open: Option<Open>) {
    if let Some(Open {
        connection, path, turn, ..
    }) = open
    {
        connection.close(0u8.into(), b"done");
        if let Some(lane) = bulk.lanes.get(path) {
            lane.receivers.remove(to, &turn);
        }
        bulk.robot
            .tell(|robot, now| robot.handle(Input::Bulk { to, path: None }, now));
    }
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
        patience.on_waited(LATER * 2);
        assert!(!patience.is_silent(began + GIVE_UP + LATER));
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
            patience.on_waited(LATER * 2);
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
