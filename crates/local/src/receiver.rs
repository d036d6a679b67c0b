//! The reading end of a channel: receives payloads of all its senders, and waits for them.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::bell::{self, after, Bell};
use crate::domain::Core;
use crate::layout::{self, Shape};
use crate::memory::View;
use crate::name::Name;
use crate::ring::{Entry, Ring};
use crate::sync::lock;
use crate::wire::EndpointId;
use crate::Error;

/// The longest spin; for longer waits, sleeping is better.
const SPIN_US_MAX: u64 = 100_000;

/// The options of a receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReceiverOptions {
    /// The time for which it polls before it sleeps. A payload that comes meanwhile is received within a microsecond.
    /// Waking takes tens of microseconds, and two processes that answer each other need a spin of twice that to stay
    /// awake. It spins only if the last wait was no longer than this, so a receiver at 30 Hz sleeps at once and costs
    /// no CPU time.
    pub spin: Duration,
}

impl Default for ReceiverOptions {
    /// Spins for 100 us if there is another core for the sender.
    fn default() -> Self {
        let alone = std::thread::available_parallelism().is_ok_and(|cores| cores.get() == 1);
        Self {
            spin: if alone {
                Duration::ZERO
            } else {
                Duration::from_micros(100)
            },
        }
    }
}

impl ReceiverOptions {
    pub(crate) fn check(&self) -> Result<(), Error> {
        let spin_us = u64::try_from(self.spin.as_micros()).unwrap_or(u64::MAX);
        Error::unless_within("spin, in microseconds,", spin_us, (0, SPIN_US_MAX))
    }
}

/// A sender, as a receiver sees it. Exists until the last payload received from it is dropped.
#[derive(Debug)]
pub(crate) struct Source {
    pub id: EndpointId,
    pub pid: u32,
    ring: Ring,
    view: View,
    /// The sender's bell, rung if the sender waits for room.
    room: Bell,
    /// Whether the sender is gone, so that no more payloads follow the queued ones.
    gone: AtomicBool,
    /// This process; a forked child must not give back its parent's payloads.
    process: u32,
}

impl Source {
    pub fn new(id: EndpointId, pid: u32, ring: Ring, view: View, room: Bell) -> Self {
        Self {
            id,
            pid,
            ring,
            view,
            room,
            gone: AtomicBool::new(false),
            process: std::process::id(),
        }
    }

    #[inline]
    fn release(&self, slot: u16) {
        self.ring.release(slot);
        self.wake_sender();
    }

    #[inline]
    fn wake_sender(&self) {
        if self.ring.must_wake_sender() {
            self.room.ring();
        }
    }
}

/// The state that the receiver and the attendant share.
#[derive(Debug)]
pub(crate) struct Incoming {
    pub id: EndpointId,
    pub channel: Name,
    /// Rung by senders, and by the attendant when senders come and go.
    pub bell: Bell,
    sources: Mutex<Vec<Arc<Source>>>,
    /// Counts the changes of `sources`.
    changes: AtomicUsize,
}

impl Incoming {
    pub fn new(id: EndpointId, channel: Name) -> Result<Self, Error> {
        let bell = Bell::new()?;
        Ok(Self {
            id,
            channel,
            bell,
            sources: Mutex::new(Vec::new()),
            changes: AtomicUsize::new(0),
        })
    }

    pub fn add(&self, source: Source) {
        lock(&self.sources).push(Arc::new(source));
        self.changed();
    }

    /// Marks a sender as gone. Its queued payloads can still be received. May be called for senders that are already
    /// gone.
    pub fn sender_gone(&self, sender: EndpointId) {
        for source in lock(&self.sources).iter().filter(|source| source.id == sender) {
            source.gone.store(true, SeqCst);
        }
        self.changed();
    }

    fn forget(&self, sender: EndpointId) {
        lock(&self.sources).retain(|source| source.id != sender);
    }

    fn changed(&self) {
        self.changes.fetch_add(1, SeqCst);
        self.bell.ring();
    }
}

/// Receives the payloads of every sender of a channel. A channel may have many receivers, and each receives all.
///
/// A sender that is gone is forgotten, and its memory unmapped, once the receiver is used after taking its last
/// payload.
#[derive(Debug)]
pub struct Receiver {
    incoming: Arc<Incoming>,
    core: Arc<Core>,
    options: ReceiverOptions,
    sources: Vec<Arc<Source>>,
    seen: usize,
    next: usize,
    /// Whether the last wait was short enough for the next one to spin.
    spins: bool,
}

/// A received payload: a read-only view of the sender's memory.
///
/// The sender may use the memory again once every reader has dropped the payload, from any thread and in any order. The
/// payload stays readable if the sender has ended.
pub struct Payload {
    source: Arc<Source>,
    slot: u16,
    offset: usize,
    shape: Shape,
}

impl Receiver {
    pub(crate) fn new(incoming: Arc<Incoming>, core: Arc<Core>, options: ReceiverOptions) -> Self {
        Self {
            incoming,
            core,
            options,
            sources: Vec::new(),
            seen: usize::MAX,
            next: 0,
            spins: true,
        }
    }

    /// Returns the next payload, if there is one. Each sender's payloads come in order; senders take turns.
    ///
    /// # Errors
    ///
    /// If a sender broke the protocol: it is cut off, and the next call receives from the others. Also if the process
    /// was forked after joining.
    pub fn try_recv(&mut self) -> Result<Option<Payload>, Error> {
        if self.core.is_forked() {
            return Err(Error::Forked);
        }
        self.take()
    }

    #[inline]
    fn take(&mut self) -> Result<Option<Payload>, Error> {
        self.look_for_changes();
        let count = self.sources.len();
        for turn in 0..count {
            let index = (self.next + turn) % count;
            let source = &self.sources[index];
            if let Some(entry) = source.ring.take() {
                self.next = index + 1;
                source.wake_sender();
                if source.gone.load(SeqCst) && !source.ring.has_entry() {
                    // This was the last payload of a sender that is gone: forget the sender at the next call.
                    self.seen = self.seen.wrapping_sub(1);
                }
                return self.open(index, entry).map(Some);
            }
        }
        Ok(None)
    }

    /// Returns whether there is a payload to receive.
    #[inline]
    pub fn has_payload(&mut self) -> bool {
        self.look_for_changes();
        self.sources.iter().any(|source| source.ring.has_entry())
    }

    /// Returns the next payload; `None` if none came in time. Without a timeout, waits forever.
    ///
    /// # Errors
    ///
    /// As for [`Receiver::try_recv`].
    pub fn recv(&mut self, timeout: Option<Duration>) -> Result<Option<Payload>, Error> {
        if let Some(payload) = self.try_recv()? {
            return Ok(Some(payload));
        }
        match wait(&mut [&mut *self], timeout)? {
            Some(_) => self.take(),
            None => Ok(None),
        }
    }

    /// Returns the number of senders.
    pub fn senders(&self) -> usize {
        lock(&self.incoming.sources)
            .iter()
            .filter(|source| !source.gone.load(SeqCst))
            .count()
    }

    /// Waits until there are at least this many senders. Returns false if the time was over first.
    pub fn wait_for_senders(&self, senders: usize, timeout: Duration) -> bool {
        self.core.wait_until(after(timeout), || self.senders() >= senders)
    }

    /// Asks senders to make the descriptor ([`AsFd`]) readable when something comes, for the caller's event loop.
    /// Returns whether something is already there; then the caller need not wait.
    pub fn arm(&mut self) -> bool {
        self.look_for_changes();
        self.incoming.bell.silence();
        // Dekker's rule: request a ring, then check again.
        self.sources.iter().for_each(|source| source.ring.receiver_sleeps());
        self.is_ready()
    }

    #[inline]
    fn is_ready(&self) -> bool {
        self.incoming.changes.load(SeqCst) != self.seen || self.sources.iter().any(|source| source.ring.has_entry())
    }

    /// Adopts senders that came, and forgets those that are gone and have nothing left.
    #[inline]
    fn look_for_changes(&mut self) {
        let changes = self.incoming.changes.load(SeqCst);
        if changes == self.seen {
            return;
        }
        self.seen = changes;
        let mut sources = lock(&self.incoming.sources);
        sources.retain(|source| !source.gone.load(SeqCst) || source.ring.has_entry());
        self.sources.clone_from(&sources);
    }

    fn open(&mut self, index: usize, entry: Entry) -> Result<Payload, Error> {
        let source = &self.sources[index];
        let checked = usize::try_from(entry.offset).ok().and_then(|offset| {
            let shape = layout::check(&source.view, offset)?;
            (usize::from(entry.slot) < source.ring.slots()).then_some((offset, shape))
        });
        if let Some((offset, shape)) = checked {
            return Ok(Payload {
                source: source.clone(),
                slot: entry.slot,
                offset,
                shape,
            });
        }
        let source = self.sources.remove(index);
        self.incoming.forget(source.id);
        self.core.close_link(self.incoming.id, source.id);
        let channel = self.incoming.channel.as_str().to_owned();
        Err(Error::Corrupt {
            channel,
            pid: source.pid,
            problem: "a payload outside its memory",
        })
    }
}

impl AsFd for Receiver {
    /// Returns the descriptor that is readable after [`Receiver::arm`] once something has come.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.incoming.bell.as_fd()
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.core.close(self.incoming.id);
    }
}

/// Waits until one of these receivers has a payload, and returns its index; the lowest if several have one. Spins for
/// the longest spin time among them, then sleeps. Without a timeout, waits forever.
///
/// # Errors
///
/// If the system refuses to wait, or the process was forked after joining.
pub fn wait_any(receivers: &mut [&mut Receiver], timeout: Option<Duration>) -> Result<Option<usize>, Error> {
    if receivers.iter().any(|receiver| receiver.core.is_forked()) {
        return Err(Error::Forked);
    }
    wait(receivers, timeout)
}

fn wait(receivers: &mut [&mut Receiver], timeout: Option<Duration>) -> Result<Option<usize>, Error> {
    let began = Instant::now();
    let deadline = timeout.and_then(|timeout| began.checked_add(timeout));
    let ready = wait_until(receivers, began, deadline)?;
    let waited = began.elapsed();
    for receiver in receivers {
        receiver.spins = ready.is_some() && waited <= receiver.options.spin;
    }
    Ok(ready)
}

fn wait_until(
    receivers: &mut [&mut Receiver],
    began: Instant,
    deadline: Option<Instant>,
) -> Result<Option<usize>, Error> {
    let patience = |receiver: &&mut Receiver| {
        if receiver.spins {
            receiver.options.spin
        } else {
            Duration::ZERO
        }
    };
    let spin = began + receivers.iter().map(patience).max().unwrap_or_default();
    let spin = deadline.map_or(spin, |deadline| deadline.min(spin));
    loop {
        // The clock is read between bursts, because it costs more than a check.
        for _ in 0..32 {
            if let Some(ready) = first_ready(receivers) {
                return Ok(Some(ready));
            }
            std::hint::spin_loop();
        }
        if Instant::now() >= spin {
            break;
        }
        // The sender may be waiting for this core.
        std::thread::yield_now();
    }
    loop {
        let mut armed = false;
        for receiver in receivers.iter_mut() {
            armed |= receiver.arm();
        }
        if armed {
            if let Some(ready) = first_ready(receivers) {
                return Ok(Some(ready));
            }
            // A sender came or went, but left no payload.
            continue;
        }
        let bells: Vec<_> = receivers.iter().map(|receiver| receiver.as_fd()).collect();
        let rung = bell::wait_any(&bells, deadline);
        if rung
            .map_err(|source| Error::System {
                what: "wait for payloads",
                source,
            })?
            .is_none()
        {
            return Ok(first_ready(receivers));
        }
    }
}

#[inline]
fn first_ready(receivers: &mut [&mut Receiver]) -> Option<usize> {
    receivers.iter_mut().position(|receiver| receiver.has_payload())
}

impl Payload {
    /// Returns the header.
    pub fn header(&self) -> &[u8] {
        let (start, length) = self.shape.header();
        self.source.view.bytes(self.offset + start, length).unwrap_or_default()
    }

    /// Returns the number of parts.
    pub fn len(&self) -> usize {
        self.shape.parts
    }

    /// Returns whether it has no parts.
    pub fn is_empty(&self) -> bool {
        self.shape.parts == 0
    }

    /// Returns a part; `None` beyond the last one.
    pub fn part(&self, index: usize) -> Option<&[u8]> {
        layout::part(&self.source.view, self.offset, self.shape, index)
    }

    /// Returns all parts.
    pub fn parts(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.len()).filter_map(|index| self.part(index))
    }

    /// Returns the sender's ID.
    pub fn sender(&self) -> EndpointId {
        self.source.id
    }

    /// Returns the ID of the sender's process.
    pub fn pid(&self) -> u32 {
        self.source.pid
    }
}

impl Drop for Payload {
    fn drop(&mut self) {
        if self.source.process == std::process::id() {
            self.source.release(self.slot);
        }
    }
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shape { header, parts } = self.shape;
        f.debug_struct("Payload")
            .field("header", &header)
            .field("parts", &parts)
            .finish_non_exhaustive()
    }
}
