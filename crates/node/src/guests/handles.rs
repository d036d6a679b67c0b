//! The handles that a guest's program holds: like the robot's own, but the agent does the work.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration as StdDuration;

use blake3::Hasher;
use coorp_core::tracker::Updates;
use coorp_core::{Duration, Instant, RobotId};
use nix::sys::memfd::{memfd_create, MFdFlags};

use super::program::Link;
use crate::bulk::{BulkMessage, Delivery};
use crate::clock::since_boot;
use crate::control::{checked_length, Message};
use crate::gather::{RobotState, Table};
use crate::ground::{copy, folder_of, Disk, Linux};
use crate::mailbox::Mailbox;
use crate::sync::lock;
use crate::wire::guest::{Answer, FromGuest};
use crate::Error;

/// A declaration, which ends when this is dropped.
#[derive(Debug)]
struct Declared {
    link: Arc<Link>,
    id: u64,
}

impl Drop for Declared {
    fn drop(&mut self) {
        self.link.end(self.id);
    }
}

impl Declared {
    fn new(link: &Arc<Link>, id: u64) -> Declared {
        Declared { link: link.clone(), id }
    }
}

/// A wish for a permit.
#[derive(Debug)]
pub(crate) struct Wish(#[allow(dead_code)] Declared);

impl Wish {
    pub fn new(link: &Arc<Link>, id: u64) -> Wish {
        Wish(Declared::new(link, id))
    }
}

/// Publishes a topic.
#[derive(Debug)]
pub(crate) struct Publisher {
    declared: Declared,
    topic: String,
}

impl Publisher {
    pub fn new(link: &Arc<Link>, id: u64, topic: String) -> Publisher {
        let declared = Declared::new(link, id);
        Publisher { declared, topic }
    }

    pub fn set_bound(&self, bound: Option<Duration>) {
        self.declared.link.bound(self.declared.id, bound);
    }

    pub fn put(&self, message: &[u8]) -> Result<(), Error> {
        checked_length(&self.topic, message)?;
        self.declared.link.publish(self.declared.id, message)
    }
}

/// A message with its age at its arrival, and the time of its arrival, since the machine's start.
pub(super) type Waiting = (Message, Duration);

/// Receives a topic.
#[derive(Debug)]
pub(crate) struct Subscriber {
    _declared: Declared,
    waiting: Arc<Mailbox<Waiting>>,
}

impl Subscriber {
    pub fn new(link: &Arc<Link>, id: u64, waiting: Arc<Mailbox<Waiting>>) -> Subscriber {
        let _declared = Declared::new(link, id);
        Subscriber { _declared, waiting }
    }

    pub fn try_recv(&self) -> Option<Message> {
        self.waiting.try_recv().map(taken)
    }

    pub fn recv(&self, timeout: Option<StdDuration>) -> Option<Message> {
        self.waiting.recv(timeout).map(taken)
    }

    pub async fn next(&self) -> Message {
        taken(self.waiting.next().await)
    }
}

fn taken((mut message, came): Waiting) -> Message {
    if let Some(age) = &mut message.age {
        age.is += since_boot().saturating_sub(came);
    }
    message
}

/// Lists of a gathering.
#[derive(Debug)]
pub(crate) struct Gathered {
    coming: Mutex<Vec<RobotState>>,
    lists: Mailbox<(Instant, Vec<RobotState>)>,
}

impl Default for Gathered {
    fn default() -> Self {
        Gathered {
            coming: Mutex::default(),
            lists: Mailbox::new(),
        }
    }
}

impl Gathered {
    /// Adds a state of the next list.
    pub fn add(&self, state: RobotState) {
        let mut coming = lock(&self.coming);
        // A team has no more robots than this.
        if coming.len() < usize::from(u16::MAX) {
            coming.push(state);
        }
    }

    /// Completes the list.
    pub fn list(&self, at: Instant) {
        let mut states = std::mem::take(&mut *lock(&self.coming));
        for state in &mut states {
            state.stamps.listed_at = at;
        }
        self.lists.put((at, states), |_| true);
    }

    pub fn clear(&self) {
        lock(&self.coming).clear();
        self.lists.try_recv();
    }
}

/// Gathers a topic.
#[derive(Debug)]
pub(crate) struct Gather {
    declared: Declared,
    gathered: Arc<Gathered>,
}

impl Gather {
    pub fn new(link: &Arc<Link>, id: u64, gathered: Arc<Gathered>) -> Gather {
        let declared = Declared::new(link, id);
        Gather { declared, gathered }
    }

    pub fn try_recv(&self) -> Option<Table> {
        self.gathered.lists.try_recv().map(|listed| self.table(listed))
    }

    pub fn recv(&self, timeout: Option<StdDuration>) -> Option<Table> {
        self.gathered.lists.recv(timeout).map(|listed| self.table(listed))
    }

    pub async fn next(&self) -> Table {
        self.table(self.gathered.lists.next().await)
    }

    fn table(&self, (at, states): (Instant, Vec<RobotState>)) -> Table {
        Table::taken(at, states, self.declared.link.now())
    }

    pub fn updates(&self) -> Vec<(RobotId, Updates)> {
        let of = self.declared.id;
        let reply = self.declared.link.ask(|id| FromGuest::Updates { id, of });
        let counts = reply.ok().and_then(|reply| postcard::from_bytes(&reply.payload).ok());
        let counts: Vec<(RobotId, [u64; 3])> = counts.unwrap_or_default();
        let updates = |(robot, [due, missed, stale]): (RobotId, [u64; 3])| (robot, Updates { due, missed, stale });
        counts.into_iter().map(updates).collect()
    }
}

/// A bulk message that is being written, in memory that is passed on once the message is complete.
#[derive(Debug)]
pub(crate) struct Letter {
    link: Arc<Link>,
    file: File,
    length: u64,
    hasher: Box<Hasher>,
}

/// The size that is copied and hashed together, while it is in the processor's cache, bytes.
const WRITE_BYTES: usize = 256 << 10;

impl Letter {
    pub fn new(link: &Arc<Link>) -> Result<Letter, Error> {
        let made = memfd_create("coorp-bulk", MFdFlags::MFD_CLOEXEC);
        let file = made.map_err(|error| Error::Socket("cannot keep a bulk message".to_owned(), error.into()))?;
        Ok(Letter {
            link: link.clone(),
            file: file.into(),
            length: 0,
            hasher: Box::default(),
        })
    }

    /// Returns the number of bytes written.
    pub fn length(&self) -> u64 {
        self.length
    }

    pub fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let mut hasher = self.hasher.clone();
        let mut at = self.length;
        for chunk in bytes.chunks(WRITE_BYTES) {
            hasher.update(chunk);
            // Bytes that a failure leaves behind are overwritten, or cut off.
            let written = self.file.write_all_at(chunk, at);
            written.map_err(|error| Error::Socket("cannot keep a bulk message".to_owned(), error))?;
            at += chunk.len() as u64;
        }
        (self.hasher, self.length) = (hasher, at);
        Ok(())
    }

    /// Passes the message on if there is room for it; otherwise leaves it.
    pub fn send(&mut self, to: RobotId, name: &str) -> Result<Delivery, Error> {
        let failed = |error| Error::Socket("cannot pass on a bulk message".to_owned(), error);
        let content = self.file.set_len(self.length).and_then(|()| self.file.try_clone());
        let content = content.map_err(failed)?;
        let (length, hash) = (self.length, *self.hasher.finalize().as_bytes());
        let outcome = self.link.send_bulk(name, content.into(), |id| FromGuest::Send {
            id,
            to,
            name: name.to_owned(),
            length,
            hash,
        })?;
        Ok(Delivery { outcome })
    }
}

/// Bulk messages for a receiver.
#[derive(Debug)]
pub(crate) struct Received {
    /// Each with the agent's number of it.
    waiting: Mailbox<(u64, BulkMessage)>,
    counts: Mutex<Counts>,
}

/// The number of callers that wait here, and the number of messages requested from the agent. The guest requests no
/// more messages than callers wait for.
#[derive(Debug, Default)]
struct Counts {
    waiting: usize,
    asked: usize,
}

impl Default for Received {
    fn default() -> Self {
        Received {
            waiting: Mailbox::new(),
            counts: Mutex::default(),
        }
    }
}

impl Received {
    /// Adds a message that arrived; `wanted` if it was requested by waiting callers.
    pub fn on_came(&self, number: u64, message: BulkMessage, wanted: bool) {
        let mut counts = lock(&self.counts);
        counts.asked = counts.asked.saturating_sub(usize::from(wanted));
        drop(counts);
        self.waiting.put((number, message), |_| false);
    }

    /// Returns the number of messages to request from a new agent.
    pub fn asks_anew(&self) -> usize {
        let mut counts = lock(&self.counts);
        counts.asked = counts.waiting;
        counts.asked
    }

    /// Drops the messages that nobody has received, and returns their numbers.
    pub fn take_all(&self) -> Vec<u64> {
        std::iter::from_fn(|| self.waiting.try_recv())
            .map(|(number, _)| number)
            .collect()
    }
}

/// Receives bulk.
#[derive(Debug)]
pub(crate) struct Receiver {
    declared: Declared,
    received: Arc<Received>,
}

/// A caller that waits for a message.
struct Waiter<'r>(&'r Receiver);

impl Receiver {
    pub fn new(link: &Arc<Link>, id: u64, received: Arc<Received>) -> Receiver {
        let declared = Declared::new(link, id);
        Receiver { declared, received }
    }

    pub fn try_recv(&self) -> Option<BulkMessage> {
        if self.received.waiting.is_empty() {
            let of = self.declared.id;
            // If the agent is not running, there is no message.
            let _ = self.declared.link.ask(|id| FromGuest::Look { id, of });
        }
        let message = self.received.waiting.try_recv();
        self.ask();
        message.map(|(_, message)| message)
    }

    pub fn recv(&self, timeout: Option<StdDuration>) -> Option<BulkMessage> {
        let _waiter = Waiter::new(self);
        self.received.waiting.recv(timeout).map(|(_, message)| message)
    }

    pub async fn next(&self) -> BulkMessage {
        let _waiter = Waiter::new(self);
        self.received.waiting.next().await.1
    }

    /// Requests as many messages as callers wait for.
    fn ask(&self) {
        let mut counts = lock(&self.received.counts);
        while counts.asked < counts.waiting {
            counts.asked += 1;
            self.declared.link.post(&FromGuest::Next { id: self.declared.id });
        }
    }
}

impl Waiter<'_> {
    fn new(receiver: &Receiver) -> Waiter<'_> {
        lock(&receiver.received.counts).waiting += 1;
        receiver.ask();
        Waiter(receiver)
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        lock(&self.0.received.counts).waiting -= 1;
    }
}

/// A bulk message that the agent has, until it is taken.
#[derive(Debug)]
pub(crate) struct Parcel {
    link: Arc<Link>,
    session: u64,
    message: u64,
}

impl Parcel {
    pub fn new(link: &Arc<Link>, message: u64) -> Parcel {
        Parcel {
            link: link.clone(),
            session: link.session(),
            message,
        }
    }

    pub fn take(&self, length: u64) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::with_capacity(usize::try_from(length).unwrap_or(0));
        self.open()?.read_to_end(&mut bytes)?;
        self.taken()?;
        Ok(bytes)
    }

    /// Moves the file if this user may do that and the disk is the same; otherwise copies it.
    pub fn hand_over(&self, path: &Path, to: &Path) -> io::Result<()> {
        // Fail if the message is an earlier agent's: the new agent may be delivering it to another program.
        let file = self.open()?;
        match fs::rename(path, to) {
            Ok(()) => Linux.sync(folder_of(to))?,
            Err(_) => copy(&file, to)?,
        }
        self.taken()
    }

    fn open(&self) -> io::Result<File> {
        let message = self.message;
        let descriptor = self.ask(|id| FromGuest::Open { id, message })?;
        descriptor
            .map(File::from)
            .ok_or_else(|| io::Error::other(self.link.odd()))
    }

    fn taken(&self) -> io::Result<()> {
        let message = self.message;
        self.ask(|id| FromGuest::Taken { id, message }).map(drop)
    }

    fn ask(&self, question: impl FnOnce(u64) -> FromGuest) -> io::Result<Option<OwnedFd>> {
        if self.session != self.link.session() {
            let anew = "the robot's agent has restarted, and delivers this message again";
            return Err(io::Error::other(anew));
        }
        let reply = self.link.ask(question).map_err(io::Error::other)?;
        match reply.answer().map_err(io::Error::other)? {
            Answer::Done | Answer::Descriptor => Ok(reply.descriptor),
            _ => Err(io::Error::other(self.link.odd())),
        }
    }
}
