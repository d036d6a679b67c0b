//! Bulk: messages of many megabytes, sent as permits and the gate allow, each delivered whole and once or reported
//! failed.
//!
//! Messages go over QUIC, with one connection per receiver while there is something to send, and for a second after that.
//! `socket.rs` asks the gate, `under.rs` tracks what is below it, `cubic.rs` decides when packets are made, and
//! `reports.rs` reads what has left. `message.rs` is a message at its sender, `send.rs` and `receive.rs` are the two
//! ends of a transfer, `hashes.rs` hashes segments, and `inbox.rs` is what a receiver keeps on disk. `transport.rs` configures QUIC, and `turns.rs`
//! keeps the connections and knows whose turn it is.
//!
//! Each path has its own sockets, and its own connection. A message is split into segments, which all live paths carry at
//! once (`core::spread`, decision 36); if a path dies, the others carry what is left. QUIC's own migration would keep the
//! connection, but it moves only one end: the destination address would still be the dead interface's.
//!
//! A message is in its sender's memory until it is delivered; if the sender dies, the message has failed. Left out:
//! sending while it is still being written.

mod cubic;
mod hashes;
mod inbox;
mod message;
mod outcome;
mod receive;
mod reports;
mod send;
mod socket;
mod transport;
mod turns;
mod under;

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use coorp_core::RobotId;
use quinn::{Endpoint, EndpointConfig};
use tokio::sync::{mpsc, oneshot, Notify};

use self::inbox::Inbox;
pub(crate) use self::inbox::Whole;
pub(crate) use self::message::{Message, Written};
pub use self::outcome::Outcome;
use self::send::Job;
use self::socket::GatedSocket;
use self::turns::Receivers;
use crate::addresses::Addresses;
use crate::disk::Room;
use crate::ground::{folder_of, Bound, Disk, Threads};
use crate::guests::{By, Letter, Parcel, Receiver};
use crate::mailbox::Mailbox;
use crate::member::Member;
use crate::quic::Credentials;
use crate::shared_robot::SharedRobot;
use crate::sync::lock;
use crate::tasks::Tasks;
use crate::topic::checked;
use crate::{status, Error};

/// The largest bulk message, bytes.
pub const BULK_BYTES_MAX: u64 = 64 << 30;
/// The UDP port of incoming bulk, as an offset from a robot's first port; each path has its own address.
pub(crate) const PORT_BULK: u16 = 1;
/// The number of messages to one receiver that may wait.
const QUEUE_MAX: usize = 64;
/// Maximum time for which closing waits for tasks in progress.
const CLOSE_MAX: Duration = Duration::from_secs(1);
/// Maximum time for which closing waits until senders have their answers.
const ANSWER_MAX: Duration = Duration::from_millis(50);
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// Threads for QUIC; sealing packets is most of their work.
const THREADS: usize = 2;

/// A node's bulk state.
#[derive(Debug)]
pub(crate) struct Bulk {
    member: Arc<Member>,
    robot: Arc<SharedRobot>,
    addresses: Arc<Addresses>,
    /// The number of messages that are being received.
    receiving: Arc<AtomicUsize>,
    threads: Threads,
    tasks: Tasks,
    /// One per path.
    lanes: Vec<Lane>,
    state: PathBuf,
    room: Arc<Room>,
    lineage: u64,
    queues: Mutex<BTreeMap<RobotId, Queue>>,
    /// Bounded by what a sender may have on this disk.
    delivered: Arc<Mailbox<BulkMessage>>,
    /// The mailboxes of messages whose names begin with a prefix, while their receivers exist. Locked while a message is
    /// put into any mailbox, so that none goes to a receiver that has just ended.
    reserved: Mutex<Vec<(String, Arc<Mailbox<BulkMessage>>)>>,
    /// Notified when a permit arrives.
    permitted: Notify,
    /// The number of checks, one every [`LOOK_AT_LEADER_EVERY`], since there was last a leader.
    unled: AtomicU32,
    /// Counters of messages; the sockets count datagrams.
    counts: Mutex<status::Bulk>,
}

/// Sending and receiving over one path.
#[derive(Debug)]
struct Lane {
    /// Both endpoints are taken out when the node closes: their sockets end with them.
    sender: Mutex<Option<Endpoint>>,
    endpoint: EndpointConfig,
    client: quinn::ClientConfig,
    /// Replaced, like its endpoint, when the card is replaced.
    socket: Mutex<Arc<GatedSocket>>,
    receivers: Receivers,
    receiver: Mutex<Option<Endpoint>>,
}

#[derive(Debug)]
struct Queue {
    jobs: mpsc::Sender<Job>,
    next: u64,
}

impl Bulk {
    /// Listens for bulk and loads what was received before.
    pub fn open(
        member: &Arc<Member>,
        robot: &Arc<SharedRobot>,
        addresses: &Arc<Addresses>,
        credentials: &Credentials,
        state: &Path,
    ) -> Result<Arc<Bulk>, Error> {
        let failed = |what: &str, error| Error::Socket(format!("cannot {what} for bulk"), error);
        let threads = member.ground.threads(THREADS, "coorp-bulk", || ());
        let threads = threads.map_err(|error| failed("start threads", error))?;
        let tasks = Tasks::new(threads.tasks(), robot);
        let spawn = threads.tasks().clone();
        let entered = spawn.enter();
        let lanes = (0..member.paths).map(|path| Lane::open(member, robot, &tasks, credentials, path));
        let lanes = lanes.collect::<Result<Vec<_>, _>>()?;
        let bulk = Arc::new(Bulk {
            member: member.clone(),
            robot: robot.clone(),
            addresses: addresses.clone(),
            receiving: Arc::default(),
            state: state.to_owned(),
            room: Arc::default(),
            // The lineage is unique to each start, and need not be stored.
            lineage: member.ground.random(),
            queues: Mutex::default(),
            delivered: Arc::new(Mailbox::new()),
            reserved: Mutex::default(),
            permitted: Notify::new(),
            unled: AtomicU32::new(0),
            counts: Mutex::default(),
            lanes,
            threads,
            tasks,
        });
        bulk.take_up();
        bulk.tasks
            .spawn("looking for a leader", send::look_at_leader(Arc::downgrade(&bulk)));
        bulk.set_permitted(robot.ask(|robot, now| robot.is_permitted(now)));
        let arrivals = Arc::default();
        for (path, lane) in bulk.lanes.iter().enumerate() {
            if let Some(receiver) = lock(&lane.receiver).clone() {
                let accept = receive::accept(Arc::downgrade(&bulk), path, receiver, Arc::clone(&arrivals));
                bulk.tasks.spawn("accepting bulk", accept);
            }
        }
        drop(entered);
        Ok(bulk)
    }

    /// Takes up the messages that were whole when this robot last stopped. Unreadable ones stay where they are.
    fn take_up(&self) {
        for (id, robot) in (0u16..).map(RobotId).zip(&self.member.team.robots) {
            let inbox = Inbox::of(self.member.ground.disk(), &self.state, &robot.name);
            if !inbox.exists() {
                continue;
            }
            let unrecorded = inbox.mend();
            match inbox.whole() {
                Ok(whole) => {
                    for whole in whole
                        .into_iter()
                        .filter(|whole| unrecorded.as_ref() != Some(&whole.path))
                    {
                        self.delivered
                            .put(BulkMessage::new(self.member.ground.disk(), id, whole), |_| false);
                    }
                }
                Err(error) => {
                    let (name, state) = (&robot.name, self.state.display());
                    tracing::error!("bulk from {name} below {state} cannot be read, and stays there: {error}");
                }
            }
        }
    }

    /// Sets whether the robot has a permit.
    pub fn set_permitted(&self, permitted: bool) {
        self.lanes
            .iter()
            .for_each(|lane| lane.socket().set_permitted(permitted));
        if permitted {
            self.permitted.notify_waiters();
            self.lanes.iter().for_each(|lane| lane.receivers.wake());
        }
    }

    /// Sends bulk over a path to this receiver only, until the next call.
    pub fn set_turn(&self, path: usize, to: RobotId) {
        if let Some(lane) = self.lanes.get(path) {
            lane.receivers.set_turn(to);
        }
    }

    /// Ends connections to robots whose certificates have been revoked. The door ends connections from these robots.
    pub fn close_revoked(&self) {
        self.lanes
            .iter()
            .for_each(|lane| lane.receivers.close_revoked(&self.member.revoked));
    }

    /// Wakes senders once the gate has opened.
    pub fn wake(&self) {
        self.lanes.iter().for_each(|lane| lane.socket().wake());
    }

    /// Takes the message, of this length, if the queue has room for it; otherwise leaves it.
    pub fn send(
        self: &Arc<Self>,
        to: RobotId,
        name: &str,
        length: u64,
        message: impl FnOnce() -> Message,
    ) -> Result<Delivery, Error> {
        let name = checked(name)?.to_owned();
        checked_length(&name, length)?;
        let (done, outcome) = oneshot::channel();
        let mut queues = lock(&self.queues);
        let queue = queues.entry(to).or_insert_with(|| {
            let (jobs, queue) = mpsc::channel(QUEUE_MAX);
            self.tasks
                .spawn("sending bulk", send::deliver_all(self.clone(), to, queue));
            Queue { jobs, next: 0 }
        });
        let room = queue.jobs.try_reserve().map_err(|error| match error {
            mpsc::error::TrySendError::Full(()) => Error::QueueFull(format!(
                "{QUEUE_MAX} bulk messages already wait for {}: wait for one to be delivered, then finish this one",
                self.member.name_of(to)
            )),
            mpsc::error::TrySendError::Closed(()) => Error::Closed,
        })?;
        room.send(Job {
            name,
            sequence: queue.next,
            message: message(),
            _waiting: Waiting::new(self),
            done,
        });
        queue.next += 1;
        Ok(Delivery { outcome })
    }

    fn hand_out(&self, from: RobotId, whole: Whole) {
        lock(&self.counts).delivered += 1;
        let message = BulkMessage::new(self.member.ground.disk(), from, whole);
        let reserved = lock(&self.reserved);
        self.mailbox_of(&reserved, &message.name).put(message, |_| false);
    }

    fn mailbox_of<'m>(
        &'m self,
        reserved: &'m [(String, Arc<Mailbox<BulkMessage>>)],
        name: &str,
    ) -> &'m Mailbox<BulkMessage> {
        let found = reserved.iter().find(|(prefix, _)| name.starts_with(prefix));
        found.map_or(&self.delivered, |(_, mailbox)| mailbox)
    }

    /// Sorts the messages of a mailbox, which nobody has received, into the mailboxes that they belong to now.
    fn sort(&self, reserved: &[(String, Arc<Mailbox<BulkMessage>>)], mailbox: &Mailbox<BulkMessage>) {
        let waiting: Vec<_> = std::iter::from_fn(|| mailbox.try_recv()).collect();
        for message in waiting {
            self.mailbox_of(reserved, &message.name).put(message, |_| false);
        }
    }

    /// Returns a message to its mailbox, because the program that received it ended before taking it.
    pub fn put_back(&self, message: BulkMessage) {
        // If the program did take the file, there is nothing to return.
        if message.path().exists() {
            let reserved = lock(&self.reserved);
            self.mailbox_of(&reserved, &message.name).put_first(message);
        }
    }

    /// Returns a receiver for the messages that nobody else receives.
    pub fn receiver(&self) -> BulkReceiver {
        BulkReceiver(By::Robot(OwnReceiver {
            mailbox: self.delivered.clone(),
            reserved_by: Weak::new(),
        }))
    }

    /// Returns a receiver for the messages whose names begin with `prefix`, including those that nobody has received
    /// yet.
    pub fn receiver_of(self: &Arc<Self>, prefix: &str) -> BulkReceiver {
        let mailbox = Arc::new(Mailbox::new());
        let mut reserved = lock(&self.reserved);
        reserved.push((prefix.to_owned(), mailbox.clone()));
        self.sort(&reserved, &self.delivered);
        BulkReceiver(By::Robot(OwnReceiver {
            mailbox,
            reserved_by: Arc::downgrade(self),
        }))
    }

    pub fn status(&self) -> status::Bulk {
        // Ask before locking the counts: a sender queries the robot while holding that lock.
        let held = self.robot.ask(|robot, _| robot.is_held());
        let mut status = status::Bulk {
            held,
            ..*lock(&self.counts)
        };
        self.lanes.iter().for_each(|lane| lane.socket().add_to(&mut status));
        status
    }

    /// Binds a path's sockets to the card that is now its interface, or changes nothing. Incoming bulk continues if the
    /// address stays the same; outgoing bulk gets new connections and resumes.
    pub fn rebind(&self, path: usize) -> Result<(), Error> {
        let failed = |error| Error::Socket("cannot use another card for bulk".to_owned(), error);
        let Some(lane) = self.lanes.get(path) else {
            return Ok(());
        };
        let (receiver, mut sender) = (lock(&lane.receiver), lock(&lane.sender));
        let (Some(receiver), Some(before)) = (receiver.as_ref(), sender.as_ref()) else {
            return Ok(());
        };
        // Bind all sockets before using any. These threads read from them.
        let entered = self.threads.tasks().enter();
        let receiving = receiving_socket(&self.member, path)?.plain().map_err(failed)?;
        let (endpoint, socket) = sender_over(&self.member, &self.robot, &self.tasks, &lane.endpoint, path)?;
        receiver.rebind_abstract(receiving).map_err(failed)?;
        drop(entered);
        before.close(0u8.into(), b"another card");
        *sender = Some(endpoint);
        *lock(&lane.socket) = socket.clone();
        // The driver may set the permit at the same time, for an earlier or a later decision of the robot.
        let is_permitted = || self.robot.ask(|robot, now| robot.is_permitted(now));
        let mut permitted = !is_permitted();
        while permitted != is_permitted() {
            permitted = is_permitted();
            socket.set_permitted(permitted);
        }
        Ok(())
    }

    /// Ends everything. Waits briefly until senders have their answers, and outside async code until the sockets are gone.
    pub fn close(&self) {
        let endpoints: Vec<Endpoint> = self.lanes.iter().flat_map(Lane::take_endpoints).collect();
        let receiving = self.receiving.clone();
        let last = async move {
            // A program may close as soon as it has taken a message, but the sender must still hear that it was delivered.
            let answered = async {
                while receiving.load(Ordering::Acquire) > 0 {
                    tokio::time::sleep(LOOK_EVERY).await;
                }
            };
            let _ = tokio::time::timeout(ANSWER_MAX, answered).await;
            for endpoint in endpoints {
                endpoint.close(0u8.into(), b"closed");
            }
        };
        self.threads.end(last, 2 * ANSWER_MAX, CLOSE_MAX);
    }
}

impl Lane {
    fn open(
        member: &Member,
        robot: &Arc<SharedRobot>,
        tasks: &Tasks,
        credentials: &Credentials,
        path: usize,
    ) -> Result<Lane, Error> {
        let failed = |what: &str, error| Error::Socket(format!("cannot {what} for bulk"), error);
        // Receiving has its own socket: what goes back to a sender needs no permit.
        let socket = receiving_socket(member, path)?;
        let endpoint = credentials.endpoint(&*member.ground, &*socket);
        let server = Some(transport::server(credentials)?);
        let socket = socket.plain().map_err(|error| failed("set up a socket", error))?;
        let receiver = Endpoint::new_with_abstract_socket(endpoint.clone(), server, socket, Arc::new(tasks.clone()));
        let receiver = receiver.map_err(|error| failed("open QUIC", error))?;
        let (sender, socket) = sender_over(member, robot, tasks, &endpoint, path)?;
        Ok(Lane {
            sender: Mutex::new(Some(sender)),
            endpoint,
            client: credentials.client(transport::PROTOCOL)?,
            socket: Mutex::new(socket),
            receivers: Receivers::default(),
            receiver: Mutex::new(Some(receiver)),
        })
    }

    fn socket(&self) -> Arc<GatedSocket> {
        lock(&self.socket).clone()
    }

    fn take_endpoints(&self) -> impl Iterator<Item = Endpoint> + '_ {
        let both = [&self.sender, &self.receiver].into_iter();
        both.filter_map(|endpoint| lock(endpoint).take())
    }
}

fn receiving_socket(member: &Member, path: usize) -> Result<Box<dyn Bound>, Error> {
    member.bind("bulk", path, member.team.port(member.me) + PORT_BULK)
}

/// Opens the endpoint that sends over a path, with its socket. Must be called within an async runtime.
fn sender_over(
    member: &Member,
    robot: &Arc<SharedRobot>,
    tasks: &Tasks,
    endpoint: &EndpointConfig,
    path: usize,
) -> Result<(Endpoint, Arc<GatedSocket>), Error> {
    let failed = |what: &str, error| Error::Socket(format!("cannot {what} for bulk"), error);
    let below = member.bind("bulk", path, 0)?.below_gate();
    let socket = below.and_then(|below| GatedSocket::new(&*member.ground, below, path, robot.clone()));
    let socket = socket.map_err(|error| failed("set up the socket", error))?;
    let tasks = Arc::new(tasks.clone());
    let sender = Endpoint::new_with_abstract_socket(endpoint.clone(), None, socket.clone(), tasks);
    Ok((sender.map_err(|error| failed("open QUIC", error))?, socket))
}

fn checked_length(name: &str, bytes: u64) -> Result<(), Error> {
    if bytes > BULK_BYTES_MAX {
        return Err(Error::TooLarge(format!(
            "\"{name}\" would have {bytes} bytes, but a bulk message has at most {BULK_BYTES_MAX}: send it as several"
        )));
    }
    Ok(())
}

/// Counts a message that is being received, until its sender has the answer.
#[derive(Debug)]
struct Receiving<'b>(&'b Bulk);

impl<'b> Receiving<'b> {
    fn new(bulk: &'b Bulk) -> Self {
        bulk.receiving.fetch_add(1, Ordering::AcqRel);
        Receiving(bulk)
    }
}

impl Drop for Receiving<'_> {
    fn drop(&mut self) {
        self.0.receiving.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Counts a waiting message.
#[derive(Debug)]
struct Waiting(Arc<Bulk>);

impl Waiting {
    fn new(bulk: &Arc<Bulk>) -> Self {
        lock(&bulk.counts).waiting += 1;
        Waiting(bulk.clone())
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        lock(&self.0.counts).waiting -= 1;
    }
}

/// A bulk message that is being written. Dropping it discards the message.
#[derive(Debug)]
pub struct BulkStream {
    to: RobotId,
    name: String,
    message: By<(Arc<Bulk>, Written), Letter>,
}

impl BulkStream {
    pub(crate) fn new(bulk: &Arc<Bulk>, to: RobotId, name: &str) -> Result<BulkStream, Error> {
        BulkStream::with(to, name, By::Robot((bulk.clone(), Written::default())))
    }

    pub(crate) fn of_guest(letter: Letter, to: RobotId, name: &str) -> Result<BulkStream, Error> {
        BulkStream::with(to, name, By::Guest(letter))
    }

    fn with(to: RobotId, name: &str, message: By<(Arc<Bulk>, Written), Letter>) -> Result<BulkStream, Error> {
        let name = checked(name)?.to_owned();
        Ok(BulkStream { to, name, message })
    }

    /// Appends to the message.
    ///
    /// # Errors
    /// If the message would be longer than [`BULK_BYTES_MAX`], or there is no memory for it; then none of these bytes
    /// are written.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let before = match &self.message {
            By::Robot((_, written)) => written.length(),
            By::Guest(letter) => letter.length(),
        };
        checked_length(&self.name, before.saturating_add(bytes.len() as u64))?;
        match &mut self.message {
            By::Robot((_, written)) => written.write(bytes),
            By::Guest(letter) => letter.write(bytes)?,
        }
        Ok(())
    }

    /// Completes the message, which is sent as soon as it may be.
    ///
    /// # Errors
    /// If too many messages already wait, the node has closed, or the robot's agent does not run. The error contains
    /// the message, which can be finished later.
    pub fn finish(mut self) -> Result<Delivery, Unfinished> {
        let sent = match &mut self.message {
            By::Robot((bulk, written)) => {
                let length = written.length();
                bulk.send(self.to, &self.name, length, || std::mem::take(written).finish())
            }
            By::Guest(letter) => letter.send(self.to, &self.name),
        };
        sent.map_err(|error| Unfinished {
            error,
            stream: Box::new(self),
        })
    }
}

/// Why a bulk message could not be finished, and the message with everything written.
#[derive(Debug)]
pub struct Unfinished {
    /// The reason.
    pub error: Error,
    /// The message, which can be finished later.
    pub stream: Box<BulkStream>,
}

impl From<Unfinished> for Error {
    fn from(unfinished: Unfinished) -> Self {
        unfinished.error
    }
}

impl fmt::Display for Unfinished {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for Unfinished {}

/// The outcome of a bulk message. Dropping it does not stop the message.
#[derive(Debug)]
pub struct Delivery {
    pub(crate) outcome: oneshot::Receiver<Result<(), Error>>,
}

impl Delivery {
    /// Waits until the message is delivered: whole, checked, and on its receiver's disk. Not for async code; `await`
    /// the `Delivery` there.
    ///
    /// # Errors
    /// If the message has failed. It may still have arrived, but only if its receiver fell silent at the very end.
    pub fn wait(self) -> Result<(), Error> {
        self.outcome.blocking_recv().unwrap_or(Err(Error::Closed))
    }
}

impl Future for Delivery {
    type Output = Result<(), Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.outcome)
            .poll(cx)
            .map(|outcome| outcome.unwrap_or(Err(Error::Closed)))
    }
}

/// A bulk message that has arrived whole. It stays on disk until it is taken, across restarts too.
#[derive(Debug)]
pub struct BulkMessage {
    /// The robot that sent it.
    pub from: RobotId,
    /// The sender's name for it.
    pub name: String,
    /// The length, bytes.
    pub length: u64,
    path: PathBuf,
    on: By<Arc<dyn Disk>, Parcel>,
}

impl BulkMessage {
    fn new(disk: Arc<dyn Disk>, from: RobotId, whole: Whole) -> Self {
        BulkMessage::with(from, whole, By::Robot(disk))
    }

    pub(crate) fn of_guest(parcel: Parcel, from: RobotId, whole: Whole) -> Self {
        BulkMessage::with(from, whole, By::Guest(parcel))
    }

    fn with(from: RobotId, whole: Whole, on: By<Arc<dyn Disk>, Parcel>) -> Self {
        BulkMessage {
            from,
            name: whole.name,
            length: whole.length,
            path: whole.path,
            on,
        }
    }

    /// Removes what is left of the message, once another program has taken it and perhaps moved its file.
    pub(crate) fn discard(&self) -> io::Result<()> {
        let By::Robot(disk) = &self.on else { return Ok(()) };
        match disk.remove(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => disk.sync(folder_of(&self.path)),
        }
    }

    /// Returns the file that contains it, until it is taken.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Takes the message from disk into memory. It does not come back afterwards, not even after a power cut.
    ///
    /// # Errors
    /// If the message cannot be read or removed; then it is still there, and can be taken again. Also if it was already
    /// taken.
    pub fn take(&self) -> io::Result<Vec<u8>> {
        match &self.on {
            By::Robot(disk) => disk.take(&self.path),
            By::Guest(parcel) => parcel.take(self.length),
        }
    }

    /// Moves the message to `path`, and replaces a file that is there. The message survives a power cut. On another
    /// disk, it is copied under another name beside that file, and renamed once complete.
    ///
    /// # Errors
    /// If the message cannot be moved; then it is still there, and can be taken again. Also if it was already taken.
    pub fn take_to(&self, path: &Path) -> io::Result<()> {
        match &self.on {
            By::Robot(disk) => disk.hand_over(&self.path, path),
            By::Guest(parcel) => parcel.hand_over(&self.path, path),
        }
    }
}

/// The robot's own receiver.
#[derive(Debug)]
pub(crate) struct OwnReceiver {
    mailbox: Arc<Mailbox<BulkMessage>>,
    /// Nobody, if the mailbox is for the messages that nobody else receives.
    reserved_by: Weak<Bulk>,
}

impl Drop for OwnReceiver {
    /// Leaves the messages that it has not received to others.
    fn drop(&mut self) {
        if let Some(bulk) = self.reserved_by.upgrade() {
            let mut reserved = lock(&bulk.reserved);
            reserved.retain(|(_, mailbox)| !Arc::ptr_eq(mailbox, &self.mailbox));
            bulk.sort(&reserved, &self.mailbox);
        }
    }
}

/// Receives bulk messages, each once.
#[derive(Debug)]
pub struct BulkReceiver(pub(crate) By<OwnReceiver, Receiver>);

impl BulkReceiver {
    /// Returns the oldest message that nobody has received, if any.
    pub fn try_recv(&self) -> Option<BulkMessage> {
        match &self.0 {
            By::Robot(own) => own.mailbox.try_recv(),
            By::Guest(guest) => guest.try_recv(),
        }
    }

    /// Waits for a message until `timeout` has passed; without a timeout, forever.
    pub fn recv(&self, timeout: Option<Duration>) -> Option<BulkMessage> {
        match &self.0 {
            By::Robot(own) => own.mailbox.recv(timeout),
            By::Guest(guest) => guest.recv(timeout),
        }
    }

    /// Waits for a message.
    pub async fn next(&self) -> BulkMessage {
        match &self.0 {
            By::Robot(own) => own.mailbox.next().await,
            By::Guest(guest) => guest.next().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_has_a_longest() {
        checked_length("map", BULK_BYTES_MAX).unwrap();
        let refused = checked_length("map", BULK_BYTES_MAX + 1).unwrap_err().to_string();
        assert!(refused.contains("\"map\" would have 68719476737 bytes"), "{refused}");
    }
}
