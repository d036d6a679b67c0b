//! The writing end of a channel: loans memory to write into, and sends it to every reader.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::bell::{after, Bell};
use crate::domain::Core;
use crate::error::Shortage;
use crate::layout::{self, Shape};
use crate::memory::Arena;
use crate::name::Name;
use crate::outbox::{ChunkId, Outbox, Reader};
use crate::ranges::Claim;
use crate::ring::{ARENA_BYTES_MAX, HELD_MESSAGES_MAX, QUEUE_MESSAGES_MAX};
use crate::store::{Store, EAGER_BYTES_MAX};
use crate::sync::lock;
use crate::wire::EndpointId;
use crate::Error;

/// The policy of a sender if its store, or a reader's queue, is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhenFull {
    /// Wait this long, then return [`Error::Deadline`].
    Block(Duration),
    /// Drop the oldest payloads that readers have not received yet; [`Error::Full`] if readers hold all payloads.
    DropOldest,
    /// Return [`Error::Full`].
    Fail,
}

/// The options of a sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SenderOptions {
    /// The maximum number of payload bytes that are loaned, queued, held by readers or kept at once. Addresses are
    /// reserved for all of them, memory only for those that were used.
    pub store_bytes: usize,
    /// The number of free bytes that stay allocated for the next payloads. The kernel gets the rest back within a
    /// second.
    pub idle_bytes: usize,
    /// The number of payloads that each reader can be behind.
    pub queue_messages: usize,
    /// The number of payloads that each reader can hold in addition.
    pub held_messages: usize,
    /// The policy if any of these is exhausted.
    pub when_full: WhenFull,
}

impl Default for SenderOptions {
    fn default() -> Self {
        Self {
            store_bytes: 1 << 30,
            idle_bytes: 256 << 20,
            queue_messages: 16,
            held_messages: 48,
            when_full: WhenFull::Block(Duration::from_secs(1)),
        }
    }
}

impl SenderOptions {
    fn check(&self) -> Result<(), Error> {
        Error::unless_within("store_bytes", self.store_bytes as u64, (1 << 16, ARENA_BYTES_MAX / 4))?;
        Error::unless_within(
            "queue_messages",
            self.queue_messages as u64,
            (1, QUEUE_MESSAGES_MAX as u64),
        )?;
        Error::unless_within(
            "held_messages",
            self.held_messages as u64,
            (1, HELD_MESSAGES_MAX as u64),
        )
    }
}

/// The state that the sender, its loans and the attendant share.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub id: EndpointId,
    pub channel: Name,
    pub options: SenderOptions,
    pub outbox: Mutex<Outbox>,
    /// The bell that readers ring after making room.
    pub room: Bell,
    pub arena: Arc<Arena>,
    /// Whether the attendant periodically returns idle memory.
    pub tended: AtomicBool,
    /// This process; a forked child must not give back its parent's memory.
    process: u32,
}

impl Outgoing {
    pub fn new(id: EndpointId, channel: Name, options: SenderOptions, memory_name: &str) -> Result<Self, Error> {
        options.check()?;
        let outbox = Outbox::new(Store::new(memory_name, options.store_bytes, options.idle_bytes)?);
        let room = Bell::new()?;
        let (arena, outbox) = (outbox.arena().clone(), Mutex::new(outbox));
        Ok(Self {
            id,
            channel,
            options,
            outbox,
            room,
            arena,
            tended: AtomicBool::new(false),
            process: std::process::id(),
        })
    }

    pub fn add(&self, reader: Reader) {
        lock(&self.outbox).add(reader);
    }

    /// Ends everything that a reader held. May be called for readers that are already gone.
    pub fn reader_gone(&self, reader: EndpointId) {
        lock(&self.outbox).reader_gone(reader);
        self.room.ring();
    }

    /// Gives something back, and wakes the sender if it waits for room.
    fn give_back(&self, what: impl FnOnce(&mut Outbox) -> bool) {
        if self.process != std::process::id() {
            return;
        }
        let wake = what(&mut lock(&self.outbox));
        if wake {
            self.room.ring();
        }
    }

    /// Reclaims payloads, and returns idle memory to the kernel. Returns whether to call this again later.
    pub fn tend(&self) -> bool {
        let mut outbox = lock(&self.outbox);
        let corrupt = outbox.reclaim();
        let again = outbox.tend() || !corrupt.is_empty();
        self.tended.store(again, SeqCst);
        again
    }
}

/// Sends payloads to every reader of a channel. A channel may have many senders.
#[derive(Debug)]
pub struct Sender {
    outgoing: Arc<Outgoing>,
    core: Arc<Core>,
}

/// A payload that is being written: shared memory that only its holder can see and write.
///
/// Dropping it gives the memory back. Until they are written, its bytes are from earlier payloads.
pub struct Loan {
    outgoing: Arc<Outgoing>,
    /// The claim, taken out when the loan is sent.
    claim: Option<Claim>,
    /// The kept payload, if this process keeps it.
    kept: Option<ChunkId>,
}

/// Keeps a loan's memory in the sender's process, so that it can be read there after the send.
///
/// The memory is reused once every reader, and every `Kept`, has dropped it: from any thread, in any order, and also
/// after the sender is gone.
pub struct Kept {
    outgoing: Arc<Outgoing>,
    chunk: ChunkId,
    start: usize,
    len: usize,
}

/// A payload that was not sent, and why.
#[derive(Debug)]
pub struct Unsent {
    /// The reason why it was not sent.
    pub error: Error,
    /// The payload, to be sent again.
    pub loan: Loan,
}

impl Sender {
    pub(crate) fn new(outgoing: Arc<Outgoing>, core: Arc<Core>) -> Self {
        Self { outgoing, core }
    }

    /// Loans memory for a payload of one part without a header.
    ///
    /// # Errors
    ///
    /// As for [`Sender::loan_parts`].
    pub fn loan(&mut self, bytes: usize) -> Result<Loan, Error> {
        self.loan_parts(0, &[bytes])
    }

    /// Loans memory for a payload: a header of this many bytes, and parts of these lengths, each at a multiple of 64.
    ///
    /// # Errors
    ///
    /// If the payload is beyond the limits, the store is full and stays full, or the kernel has no memory.
    pub fn loan_parts(&mut self, header: usize, parts: &[usize]) -> Result<Loan, Error> {
        let store_bytes = self.outgoing.options.store_bytes;
        let bytes = match layout::bytes_needed(header, parts) {
            Ok(bytes) if bytes <= store_bytes.max(EAGER_BYTES_MAX) => bytes,
            Ok(bytes) | Err(Error::TooLarge { bytes, .. }) => return Err(Error::TooLarge { bytes, store_bytes }),
            Err(error) => return Err(error),
        };
        let mut claim = self.when_possible(|outbox| outbox.claim(bytes))?;
        layout::write_table(self.outgoing.arena.bytes_mut(&mut claim), header, parts);
        Ok(Loan {
            outgoing: self.outgoing.clone(),
            claim: Some(claim),
            kept: None,
        })
    }

    /// Sends a loan of this sender to all current readers, or to none, and returns their number. Copies nothing.
    ///
    /// # Errors
    ///
    /// If a reader's queue is full and stays full. The error returns the payload.
    ///
    /// # Panics
    ///
    /// If the loan is another sender's.
    // The error contains the payload so that 50 MB need not be written again.
    #[allow(clippy::result_large_err)]
    pub fn send(&mut self, loan: Loan) -> Result<usize, Unsent> {
        let sent = self.queue(loan);
        self.wake();
        sent
    }

    #[allow(clippy::result_large_err)]
    fn queue(&mut self, mut loan: Loan) -> Result<usize, Unsent> {
        assert!(self.has_loaned(&loan), "a loan is sent by the sender that made it");
        let sent = self.when_possible(|outbox| {
            if let Some(shortage) = outbox.shortage() {
                return Ok(Err(shortage));
            }
            Ok(Ok(loan.claim.take().map_or(0, |claim| outbox.send(claim, loan.kept))))
        });
        match sent {
            Ok(readers) => {
                self.have_tended();
                Ok(readers)
            }
            Err(error) => Err(Unsent { error, loan }),
        }
    }

    /// Returns whether a loan is from this sender.
    pub fn has_loaned(&self, loan: &Loan) -> bool {
        Arc::ptr_eq(&loan.outgoing, &self.outgoing)
    }

    /// Sends a copy of these bytes, as [`Sender::loan`] and [`Sender::send`] do.
    ///
    /// # Errors
    ///
    /// As for both.
    pub fn send_copy(&mut self, bytes: &[u8]) -> Result<usize, Error> {
        let sent = self.queue_copy(bytes);
        self.wake();
        sent
    }

    /// Sends a copy, but leaves sleeping receivers asleep until [`Sender::wake`]: several messages cost one wake-up,
    /// and no woken receiver takes this core before the last message is sent.
    ///
    /// # Errors
    ///
    /// As for [`Sender::send_copy`].
    pub fn queue_copy(&mut self, bytes: &[u8]) -> Result<usize, Error> {
        let mut loan = self.loan(bytes.len())?;
        loan.part_mut(0).copy_from_slice(bytes);
        Ok(self.queue(loan)?)
    }

    /// Wakes the sleeping receivers that were sent something in the meantime.
    pub fn wake(&mut self) {
        lock(&self.outgoing.outbox).wake();
    }

    /// Returns the number of readers.
    pub fn readers(&self) -> usize {
        lock(&self.outgoing.outbox).readers()
    }

    /// Waits until there are at least this many readers. Returns false if the time was over first.
    pub fn wait_for_readers(&self, readers: usize, timeout: Duration) -> bool {
        self.core.wait_until(after(timeout), || self.readers() >= readers)
    }

    /// Returns the bytes that are loaned, queued, held by readers or kept now.
    pub fn used_bytes(&self) -> usize {
        let mut outbox = lock(&self.outgoing.outbox);
        self.cut_off(outbox.reclaim());
        outbox.used_bytes()
    }

    /// Returns the bytes of large payloads' memory that the kernel has allocated, in use or idle.
    pub fn committed_bytes(&self) -> usize {
        lock(&self.outgoing.outbox).committed_bytes()
    }

    /// Returns the number of queued payloads that [`WhenFull::DropOldest`] has dropped, counted per reader.
    pub fn dropped(&self) -> u64 {
        lock(&self.outgoing.outbox).dropped()
    }

    /// Retries until there is room, according to the policy.
    fn when_possible<T>(
        &mut self,
        mut attempt: impl FnMut(&mut Outbox) -> Result<Result<T, Shortage>, Error>,
    ) -> Result<T, Error> {
        if self.core.is_forked() {
            return Err(Error::Forked);
        }
        let channel = || self.outgoing.channel.as_str().to_owned();
        let mut began = None;
        loop {
            let mut outbox = lock(&self.outgoing.outbox);
            self.cut_off(outbox.reclaim());
            let shortage = match attempt(&mut outbox)? {
                Ok(done) => return Ok(done),
                Err(shortage) => shortage,
            };
            match self.outgoing.options.when_full {
                WhenFull::DropOldest if outbox.drop_oldest(shortage) => {}
                WhenFull::DropOldest | WhenFull::Fail => {
                    return Err(Error::Full {
                        channel: channel(),
                        shortage,
                    })
                }
                WhenFull::Block(time) => {
                    let began = *began.get_or_insert_with(Instant::now);
                    let waited = began.elapsed();
                    if waited >= time {
                        return Err(Error::Deadline {
                            channel: channel(),
                            waited,
                            shortage,
                        });
                    }
                    // Dekker's rule: request a ring, check again, then sleep.
                    outbox.wait_for_room();
                    self.cut_off(outbox.reclaim());
                    if let Ok(done) = attempt(&mut outbox)? {
                        return Ok(done);
                    }
                    drop(outbox);
                    let wait = self.outgoing.room.wait(began.checked_add(time));
                    wait.map_err(|source| Error::System {
                        what: "wait for room",
                        source,
                    })?;
                    self.outgoing.room.silence();
                }
            }
        }
    }

    /// Closes the connections to readers that broke the protocol.
    fn cut_off(&self, corrupt: Vec<(EndpointId, u32)>) {
        for (reader, _) in corrupt {
            self.core.close_link(self.outgoing.id, reader);
        }
    }

    /// Requests the attendant's periodic visits while there are payloads whose memory may become idle.
    fn have_tended(&self) {
        if !self.outgoing.tended.load(SeqCst) && !self.outgoing.tended.swap(true, SeqCst) {
            self.core.wake();
        }
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.core.close(self.outgoing.id);
    }
}

impl Loan {
    /// Keeps the memory readable here after the loan was sent or dropped. May be called more than once.
    pub fn keep(&mut self) -> Kept {
        let claim = self.claim.as_ref().expect("a loan has its memory until it is sent");
        let chunk = lock(&self.outgoing.outbox).keep(self.kept);
        self.kept = Some(chunk);
        Kept {
            outgoing: self.outgoing.clone(),
            chunk,
            start: claim.start(),
            len: claim.len(),
        }
    }

    /// Keeps only the first bytes of the header, if its length was not known when the memory was loaned.
    pub fn truncate_header(&mut self, bytes: usize) {
        layout::truncate_header(self.payload(), bytes);
    }

    /// Returns the bytes of the header.
    pub fn header_mut(&mut self) -> &mut [u8] {
        let payload = self.payload();
        let (start, length) = shape(payload).header();
        &mut payload[start..start + length]
    }

    /// Returns the bytes of a part.
    ///
    /// # Panics
    ///
    /// If there is no such part.
    pub fn part_mut(&mut self, index: usize) -> &mut [u8] {
        let payload = self.payload();
        let (start, length) = shape(payload)
            .part(payload, index)
            .expect("a loan has the parts that it was created with");
        &mut payload[start..start + length]
    }

    /// Returns the bytes of all parts.
    pub fn parts_mut(&mut self) -> Vec<&mut [u8]> {
        let mut rest = self.payload();
        let (shape, mut begin) = (shape(rest), 0);
        let places: Vec<_> = (0..shape.parts).filter_map(|index| shape.part(rest, index)).collect();
        let cut = places.into_iter().map(|(start, length)| {
            let (part, after) = std::mem::take(&mut rest)[start - begin..].split_at_mut(length);
            (rest, begin) = (after, start + length);
            part
        });
        cut.collect()
    }

    fn payload(&mut self) -> &mut [u8] {
        let claim = self.claim.as_mut().expect("a loan has its memory until it is sent");
        self.outgoing.arena.bytes_mut(claim)
    }
}

fn shape(payload: &[u8]) -> Shape {
    Shape::read(payload).expect("a loan begins with the table that was written when it was created")
}

impl Drop for Loan {
    fn drop(&mut self) {
        if let Some(claim) = self.claim.take() {
            self.outgoing.give_back(|outbox| outbox.give_back(claim, self.kept));
        }
    }
}

impl Kept {
    /// Returns the header, once the loan was sent or dropped.
    pub fn header(&self) -> Option<&[u8]> {
        let payload = self.payload()?;
        let (start, length) = shape(payload).header();
        Some(&payload[start..start + length])
    }

    /// Returns a part, once the loan was sent or dropped; `None` beyond the last one.
    pub fn part(&self, index: usize) -> Option<&[u8]> {
        let payload = self.payload()?;
        let (start, length) = shape(payload).part(payload, index)?;
        Some(&payload[start..start + length])
    }

    fn payload(&self) -> Option<&[u8]> {
        let is_final = lock(&self.outgoing.outbox).is_final(self.chunk);
        is_final
            .then(|| self.outgoing.arena.bytes(self.start, self.len))
            .flatten()
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.outgoing.give_back(|outbox| outbox.end_kept(self.chunk));
    }
}

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kept").field("bytes", &self.len).finish_non_exhaustive()
    }
}

impl fmt::Debug for Loan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loan")
            .field("bytes", &self.claim.as_ref().map_or(0, Claim::len))
            .finish_non_exhaustive()
    }
}

impl fmt::Display for Unsent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for Unsent {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}

impl From<Unsent> for Error {
    fn from(unsent: Unsent) -> Self {
        unsent.error
    }
}
