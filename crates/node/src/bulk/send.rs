//! A sender's end: messages to one receiver, one after another, each until it is delivered or has failed.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use coorp_core::RobotId;
use quinn::Connection;
use tokio::sync::{mpsc, oneshot};

use super::message::Message;
use super::socket::PermittedCubicConfig;
use super::turns::{self, Look, Turn, Turns};
use super::{receive, transport, Bulk, Lane, Waiting};
use crate::fabric::PORT_BULK;
use crate::keys::SERVER_NAME;
use crate::node::{lock, Wish};
use crate::quic;
use crate::wire::{Answer, Begin, Start};
use crate::Error;

/// A receiver that says nothing for so long, while we may send, has failed.
const GIVE_UP: Duration = Duration::from_secs(60);
/// While nobody leads nobody gives permits. Messages fail after so many looks, a minute; looks and not time, as this
/// process may have stood still.
const LOOK_AT_LEADER_EVERY: Duration = Duration::from_millis(500);
const UNLED_MAX: u32 = 120;
/// Between two tries.
const RETRY: Duration = Duration::from_millis(200);
/// Between two looks at whether there is a permit, besides when it comes.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Between two looks at whether a path is still there.
const LOOK_AT_PATH_EVERY: Duration = Duration::from_millis(20);
/// How long a connection may take to come about. A new try begins again with short waits for an answer.
pub(super) const CONNECT_MAX: Duration = Duration::from_secs(2);
/// A message that arrives garbled so often has failed.
const GARBLED_MAX: u32 = 3;
/// Given to QUIC at once.
const CHUNK_BYTES: usize = 64 << 10;

/// A message to be delivered.
pub(super) struct Job {
    pub name: String,
    pub sequence: u64,
    pub message: Message,
    /// While it lasts the robot wants a permit.
    pub _wish: Wish,
    pub _waiting: Waiting,
    pub done: oneshot::Sender<Result<(), Error>>,
}

/// A connection, and the path that it goes over.
struct Open {
    connection: Connection,
    path: usize,
    turn: Arc<Turn>,
    /// See [`acknowledged_every`].
    every: Option<u32>,
}

/// After how many datagrams a receiver speaks up, where the gate knows by itself what has left; `None`: at once.
fn acknowledged_every(bulk: &Bulk, lane: &Lane) -> Option<u32> {
    let node = bulk.node.upgrade()?;
    let reported = lane.socket.completions().are_reported();
    reported.then_some(node.policy.ack_every)
}

/// Delivers the messages to one receiver.
pub(super) async fn deliver_all(bulk: Arc<Bulk>, to: RobotId, mut jobs: mpsc::Receiver<Job>) {
    let mut connection = None;
    while let Some(job) = jobs.recv().await {
        let outcome = deliver(&bulk, to, &job, &mut connection).await;
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
        if jobs.is_empty() || connection.as_ref().is_some_and(learnt) {
            // An open connection would be kept alive over the air; and what it is set up for stays.
            hang_up(&bulk, to, connection.take());
        }
        let Job {
            _wish: wish,
            _waiting: waiting,
            done,
            ..
        } = job;
        drop((wish, waiting));
        // Nobody may be waiting to hear it.
        let _ = done.send(outcome);
    }
}

async fn deliver(bulk: &Bulk, to: RobotId, job: &Job, connection: &mut Option<Open>) -> Result<(), Error> {
    let node = bulk.node.upgrade().ok_or_else(super::closed)?;
    let name = node.name_of(to).to_owned();
    drop(node);
    let begin = Begin {
        lineage: bulk.lineage,
        sequence: job.sequence,
        name: job.name.clone(),
        length: job.message.length as u64,
        hash: job.message.hash,
    };
    let (mut heard, mut garbled) = (Instant::now(), 0);
    loop {
        // Time without a permit is not the receiver's fault.
        let waited = tokio::select! {
            waited = permitted(bulk) => waited?,
            () = unled(bulk) => return Err(failed(job, &name, UNLED)),
        };
        heard += waited;
        let path = path_to(bulk, to)?;
        if connection.as_ref().is_some_and(|open| open.path != path) {
            hang_up(bulk, to, connection.take());
        }
        let answer = tokio::select! {
            answer = attempt(bulk, (to, path), job, &begin, connection, &mut heard) => answer,
            () = moves(bulk, to, path) => {
                tracing::info!("\"{}\" to {name} moves to another path", job.name);
                hang_up(bulk, to, connection.take());
                continue;
            }
            () = unled(bulk) => {
                hang_up(bulk, to, connection.take());
                return Err(failed(job, &name, UNLED));
            }
        };
        let why = match answer {
            Ok(Answer::Whole) => return Ok(()),
            Ok(Answer::Garbled) => {
                garbled += 1;
                if garbled >= GARBLED_MAX {
                    return Err(failed(job, &name, "it arrived garbled again and again"));
                }
                continue;
            }
            Ok(Answer::Full) => "too many messages wait there to be taken".to_owned(),
            Ok(Answer::Disk) => "it cannot be written down there".to_owned(),
            Ok(Answer::Here { .. }) => "the answer makes no sense".to_owned(),
            Err(why) => {
                hang_up(bulk, to, connection.take());
                why
            }
        };
        if heard.elapsed() > GIVE_UP {
            return Err(failed(job, &name, &why));
        }
        tracing::debug!("bulk to {name}: {why}; trying again");
        tokio::time::sleep(RETRY).await;
    }
}

const UNLED: &str = "no robot leads, so that nobody gives permits: are enough of them switched on?";

fn failed(job: &Job, to: &str, why: &str) -> Error {
    Error::Failed(format!(
        "\"{}\" of {} bytes was not delivered to {to}: {why}",
        job.name, job.message.length
    ))
}

/// Counts, while the node is there, the looks at who leads at which nobody did.
pub(super) async fn look_at_leader(bulk: Weak<Bulk>) {
    loop {
        tokio::time::sleep(LOOK_AT_LEADER_EVERY).await;
        let Some(bulk) = bulk.upgrade() else { return };
        let Some(node) = bulk.node.upgrade() else { return };
        if node.ask(|brain, now| brain.leader(now)).is_some() {
            bulk.unled.store(0, Ordering::Relaxed);
        } else {
            bulk.unled.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Waits until nobody has led for too long, perhaps for ever.
async fn unled(bulk: &Bulk) {
    while bulk.unled.load(Ordering::Relaxed) < UNLED_MAX {
        tokio::time::sleep(LOOK_AT_LEADER_EVERY).await;
    }
}

/// Waits for a permit; answers for how long.
async fn permitted(bulk: &Bulk) -> Result<Duration, Error> {
    let began = Instant::now();
    loop {
        // Before the look, so that none comes unnoticed between the two.
        let comes = bulk.permitted.notified();
        let node = bulk.node.upgrade().ok_or_else(super::closed)?;
        // QUIC hears of it a moment after the brain: what began in between would wait for the next permit.
        let told = bulk.lanes.iter().all(|lane| lane.socket.is_permitted());
        if told && node.ask(|brain, now| brain.is_permitted(now)) {
            return Ok(began.elapsed());
        }
        drop(node);
        let _ = tokio::time::timeout(LOOK_EVERY, comes).await;
    }
}

/// The path to go over now.
fn path_to(bulk: &Bulk, to: RobotId) -> Result<usize, Error> {
    let node = bulk.node.upgrade().ok_or_else(super::closed)?;
    Ok(node.tell(|brain, now| brain.bulk_path(to, now)))
}

/// Waits until bulk has to leave its path, perhaps for ever.
async fn moves(bulk: &Bulk, to: RobotId, path: usize) {
    loop {
        tokio::time::sleep(LOOK_AT_PATH_EVERY).await;
        let node = bulk.node.upgrade();
        if node.is_some_and(|node| node.tell(|brain, now| brain.bulk_moves(to, path, now))) {
            return;
        }
    }
}

/// One try: what the receiver says in the end. `heard` is when it last said anything.
async fn attempt(
    bulk: &Bulk,
    (to, path): (RobotId, usize),
    job: &Job,
    begin: &Begin,
    connection: &mut Option<Open>,
    heard: &mut Instant,
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
    let (mut send, mut receive) = open.connection.open_bi().await.map_err(|error| error.to_string())?;
    receive::write(&mut send, begin).await?;
    let answer: Answer = receive::read(&mut receive).await?;
    *heard = Instant::now();
    let Answer::Here { length, hash } = answer else {
        return Ok(answer);
    };
    let kept = tokio::task::block_in_place(|| job.message.hash_of_first(length)) == Some(hash);
    let offset = if kept { length as usize } else { 0 };
    receive::write(&mut send, &Start { offset: offset as u64 }).await?;
    for chunk in job.message.after(offset, CHUNK_BYTES) {
        let length = chunk.len() as u64;
        send.write_chunk(chunk).await.map_err(|error| error.to_string())?;
        bulk.sent_bytes.fetch_add(length, Ordering::Relaxed);
        *heard = Instant::now();
    }
    send.finish().map_err(|error| error.to_string())?;
    let answer = receive::read(&mut receive).await?;
    *heard = Instant::now();
    Ok(answer)
}

async fn connect(bulk: &Bulk, to: RobotId, path: usize) -> Result<Open, String> {
    let node = bulk.node.upgrade().ok_or("the node has closed")?;
    let address = node
        .address_of(to, path)
        .ok_or("nobody knows its address: it is not here")?;
    let address = SocketAddr::new(address, node.team.port(to) + PORT_BULK);
    let lane = bulk.lanes.get(path).ok_or("there is no such path")?;
    let sender = lock(&lane.sender).clone().ok_or("the node has closed")?;
    // Plain QUIC, where nobody asks for more.
    let coordinated = node.ask(|brain, _| brain.coordinates_bulk());
    let turn = Arc::<Turn>::default();
    let permitted = PermittedCubicConfig {
        socket: Arc::downgrade(&lane.socket),
        turn: turn.clone(),
        coordinated,
    };
    let every = acknowledged_every(bulk, lane);
    let mut client = lane.client.clone();
    client.transport_config(transport::sender(
        quic::lengths(address, node.outlet(path)),
        permitted,
        every,
    ));
    let connecting = sender.connect_with(client, address, SERVER_NAME);
    let connecting = connecting.map_err(|error| error.to_string())?;
    let connection = tokio::time::timeout(CONNECT_MAX, connecting).await;
    let connection = connection
        .map_err(|_| format!("{address} does not answer"))?
        .map_err(|error| error.to_string())?;
    if quic::peer(&node.team, &connection) != Some(to) {
        connection.close(1u8.into(), b"another robot");
        return Err(format!("another robot answers at {address}"));
    }
    if coordinated && lane.turns.join(&turn, connection.clone()) {
        tokio::spawn(take_turns(lane.turns.clone()));
    }
    // A permit that came meanwhile was told to those that were there.
    transport::wake(&connection);
    node.tell(|brain, _| brain.on_bulk(to, Some(path)));
    Ok(Open {
        connection,
        path,
        turn,
        every,
    })
}

/// Tells each whose turn begins, while there are several.
async fn take_turns(turns: Arc<Turns<Connection>>) {
    loop {
        tokio::time::sleep(turns::LOOK_EVERY).await;
        match turns.look() {
            Look::Alone => return,
            Look::GoesOn => {}
            Look::Begins(connection) => transport::wake(&connection),
        }
    }
}

fn hang_up(bulk: &Bulk, to: RobotId, open: Option<Open>) {
    if let Some(Open {
        connection, path, turn, ..
    }) = open
    {
        if let Some(node) = bulk.node.upgrade() {
            node.tell(|brain, _| brain.on_bulk(to, None));
        }
        connection.close(0u8.into(), b"done");
        let next = bulk.lanes.get(path).and_then(|lane| lane.turns.leave(&turn));
        next.iter().for_each(transport::wake);
    }
}
