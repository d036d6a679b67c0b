//! Tracks which readers hold which payloads of one sender, and decides what makes room. No I/O except on the rings.
//!
//! Only this table counts references, and only its process sees it. A reference is made before its entry enters a
//! reader's queue. It ends in one of three ways: the reader released the slot, the sender took the entry back, or the
//! reader is gone, with everything that it held ([`Outbox::reader_gone`], which may be called any number of times). The
//! sender's process may also have references ([`Outbox::keep`]), made before the payload is sent.

use std::sync::Arc;

use crate::bell::Bell;
use crate::error::Shortage;
use crate::memory::Arena;
use crate::ranges::Claim;
use crate::ring::{Entry, Ring};
use crate::store::Store;
use crate::{EndpointId, Error};

/// A payload in readers' hands or queues, or kept by the sender's process.
#[derive(Debug)]
struct Chunk {
    /// The claim; `None` while the loan has it, which then is one of the references.
    claim: Option<Claim>,
    references: usize,
}

/// A payload that the sender's process keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ChunkId(usize);

/// The payload that a slot refers to.
#[derive(Debug, Clone, Copy)]
struct Reference {
    chunk: usize,
    /// The payload's number, to find the oldest one across several readers.
    number: u64,
}

/// A reader, as its sender sees it.
#[derive(Debug)]
pub(crate) struct Reader {
    id: EndpointId,
    pid: u32,
    ring: Ring,
    bell: Bell,
    /// The number of entries ever put.
    tail: u64,
    /// The number of entries taken, at the last check.
    head: u64,
    /// The slot of each entry of the queue.
    queued: Box<[u16]>,
    slots: Box<[Option<Reference>]>,
    vacant: Vec<u16>,
    /// Whether something was put since the last check for a sleeping reader.
    is_unaware: bool,
}

impl Reader {
    pub fn new(id: EndpointId, pid: u32, ring: Ring, bell: Bell) -> Self {
        let slots = ring.slots();
        let queued = vec![0; ring.queue()].into();
        Self {
            id,
            pid,
            ring,
            bell,
            tail: 0,
            head: 0,
            queued,
            slots: vec![None; slots].into(),
            vacant: (0..slots as u16).collect(),
            is_unaware: false,
        }
    }

    fn queue_full(&mut self) -> bool {
        if self.tail.saturating_sub(self.head) < self.queued.len() as u64 {
            return false;
        }
        self.head = self.ring.head();
        self.tail.saturating_sub(self.head) >= self.queued.len() as u64
    }

    /// Returns the shortage that keeps this reader from being sent anything now, if any.
    fn shortage(&mut self) -> Option<Shortage> {
        if self.queue_full() {
            Some(Shortage::Queue { pid: self.pid })
        } else {
            self.vacant.is_empty().then_some(Shortage::Held { pid: self.pid })
        }
    }

    fn queued_at(&self, position: u64) -> u16 {
        self.queued[(position % self.queued.len() as u64) as usize]
    }

    /// Returns the number of the oldest payload that the reader has not taken yet.
    fn oldest(&self) -> Option<u64> {
        let head = self.ring.head();
        let slot = (head < self.tail).then(|| self.queued_at(head))?;
        self.slots[usize::from(slot)].map(|reference| reference.number)
    }

    /// Takes the oldest entry back, and returns its slot's reference; `None` if the reader was faster.
    fn take_back(&mut self) -> Option<Reference> {
        let head = self.ring.head();
        if head >= self.tail || !self.ring.take_at(head) {
            return None;
        }
        let slot = self.queued_at(head);
        self.vacant.push(slot);
        self.slots[usize::from(slot)].take()
    }

    /// Ends the references that the reader has returned. Returns whether all of them were valid.
    fn reclaim(&mut self, mut ended: impl FnMut(Reference)) -> bool {
        let Self {
            ring, slots, vacant, ..
        } = self;
        let mut sound = ring.head() <= self.tail;
        ring.reclaim(|slot| match slots.get_mut(slot).and_then(Option::take) {
            Some(reference) => {
                vacant.push(slot as u16);
                ended(reference);
            }
            None => sound = false,
        });
        sound
    }
}

/// All payloads of one sender.
#[derive(Debug)]
pub(crate) struct Outbox {
    store: Store,
    chunks: Vec<Option<Chunk>>,
    vacant: Vec<usize>,
    readers: Vec<Reader>,
    sent: u64,
    dropped: u64,
    /// Whether the sender may be asleep until there is room.
    waits: bool,
}

impl Outbox {
    pub fn new(store: Store) -> Self {
        Self {
            store,
            chunks: Vec::new(),
            vacant: Vec::new(),
            readers: Vec::new(),
            sent: 0,
            dropped: 0,
            waits: false,
        }
    }

    pub fn arena(&self) -> &Arc<Arena> {
        self.store.arena()
    }

    pub fn readers(&self) -> usize {
        self.readers.len()
    }

    /// Returns the number of queued payloads that were dropped, counted per reader.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    pub fn used_bytes(&self) -> usize {
        self.store.used_bytes()
    }

    pub fn committed_bytes(&self) -> usize {
        self.store.committed_bytes()
    }

    pub fn add(&mut self, reader: Reader) {
        self.readers.push(reader);
    }

    /// Cleans up after a reader that is gone for any reason. Nothing else does.
    pub fn reader_gone(&mut self, id: EndpointId) {
        while let Some(index) = self.readers.iter().position(|reader| reader.id == id) {
            let reader = self.readers.swap_remove(index);
            for reference in reader.slots.iter().flatten() {
                self.end(reference.chunk);
            }
        }
    }

    /// Ends the references that readers have released. Returns the readers that were cut off because they broke the
    /// protocol.
    pub fn reclaim(&mut self) -> Vec<(EndpointId, u32)> {
        let mut corrupt = Vec::new();
        let Self {
            readers,
            chunks,
            vacant,
            store,
            ..
        } = self;
        for reader in readers {
            if !reader.reclaim(|reference| end(chunks, vacant, store, reference.chunk)) {
                corrupt.push((reader.id, reader.pid));
            }
        }
        for (id, _) in &corrupt {
            self.reader_gone(*id);
        }
        corrupt
    }

    /// Claims memory for a payload.
    pub fn claim(&mut self, bytes: usize) -> Result<Result<Claim, Shortage>, Error> {
        let claim = self.store.claim(bytes)?;
        Ok(claim.ok_or(Shortage::Store {
            bytes,
            used: self.store.used_bytes(),
        }))
    }

    /// Ends a claim that was not sent. Returns whether to wake the sender.
    pub fn give_back(&mut self, claim: Claim, kept: Option<ChunkId>) -> bool {
        match kept {
            Some(chunk) => {
                self.hand_over(claim, chunk, 0);
                self.end(chunk.0);
            }
            None => self.store.give_back(claim),
        }
        std::mem::take(&mut self.waits)
    }

    /// Adds a reference of this process to a loan's memory, which outlasts the loan.
    pub fn keep(&mut self, loaned: Option<ChunkId>) -> ChunkId {
        let chunk = loaned.unwrap_or_else(|| {
            ChunkId(self.insert(Chunk {
                claim: None,
                references: 1,
            }))
        });
        self.chunk_mut(chunk.0).references += 1;
        chunk
    }

    /// Ends a reference of this process. Returns whether to wake the sender.
    pub fn end_kept(&mut self, chunk: ChunkId) -> bool {
        self.end(chunk.0);
        std::mem::take(&mut self.waits)
    }

    /// Returns whether nobody can write any more to a payload that this process keeps.
    pub fn is_final(&mut self, chunk: ChunkId) -> bool {
        self.chunk_mut(chunk.0).claim.is_some()
    }

    /// Returns the shortage that keeps a payload from being sent to every reader, if any.
    pub fn shortage(&mut self) -> Option<Shortage> {
        self.readers.iter_mut().find_map(Reader::shortage)
    }

    /// Sends a payload to every reader, and returns the number of readers. [`Outbox::shortage`] must have found none.
    /// Sleeping readers sleep until [`Outbox::wake`].
    pub fn send(&mut self, claim: Claim, kept: Option<ChunkId>) -> usize {
        let references = self.readers.len();
        let offset = claim.start() as u64;
        let chunk = match kept {
            Some(chunk) => {
                self.hand_over(claim, chunk, references);
                self.end(chunk.0);
                chunk.0
            }
            None if references == 0 => {
                self.store.give_back(claim);
                return 0;
            }
            None => self.insert(Chunk {
                claim: Some(claim),
                references,
            }),
        };
        let reference = Reference {
            chunk,
            number: self.sent,
        };
        self.sent += 1;
        for reader in &mut self.readers {
            let slot = reader
                .vacant
                .pop()
                .expect("a payload is sent only if `shortage` found a slot");
            reader.slots[usize::from(slot)] = Some(reference);
            let length = reader.queued.len() as u64;
            reader.queued[(reader.tail % length) as usize] = slot;
            reader.ring.put(reader.tail, Entry { slot, offset });
            reader.tail += 1;
            reader.is_unaware = true;
        }
        references
    }

    /// Wakes the sleeping readers that were sent something in the meantime.
    pub fn wake(&mut self) {
        let unaware = self.readers.iter_mut().filter(|reader| reader.is_unaware);
        for reader in unaware {
            reader.is_unaware = false;
            if reader.ring.must_wake_receiver() {
                reader.bell.ring();
            }
        }
    }

    fn insert(&mut self, chunk: Chunk) -> usize {
        let index = self.vacant.pop().unwrap_or_else(|| {
            self.chunks.push(None);
            self.chunks.len() - 1
        });
        self.chunks[index] = Some(chunk);
        index
    }

    fn chunk_mut(&mut self, index: usize) -> &mut Chunk {
        self.chunks[index].as_mut().expect("a reference keeps its payload")
    }

    /// Takes a kept payload's memory from its loan, for `references` more references.
    fn hand_over(&mut self, claim: Claim, chunk: ChunkId, references: usize) {
        let chunk = self.chunk_mut(chunk.0);
        chunk.claim = Some(claim);
        chunk.references += references;
    }

    /// Drops the oldest payload that causes the shortage. Returns whether there was one.
    pub fn drop_oldest(&mut self, shortage: Shortage) -> bool {
        let everywhere = matches!(shortage, Shortage::Store { .. });
        let candidates = self.readers.iter_mut().filter_map(|reader| {
            let stands_in_the_way = everywhere || reader.shortage().is_some();
            stands_in_the_way
                .then(|| reader.oldest().map(|number| (number, reader)))
                .flatten()
        });
        let oldest = candidates.min_by_key(|(number, _)| *number);
        let Some((_, reader)) = oldest else { return false };
        // If the reader was faster, there may be room, too.
        if let Some(reference) = reader.take_back() {
            self.dropped += 1;
            self.end(reference.chunk);
        }
        true
    }

    /// Asks every reader, and every drop in this process, to ring when there is room.
    pub fn wait_for_room(&mut self) {
        self.waits = true;
        self.readers.iter().for_each(|reader| reader.ring.sender_waits());
    }

    /// Returns idle memory to the kernel. Returns whether to call this again later.
    pub fn tend(&mut self) -> bool {
        self.store.trim();
        self.store.used_bytes() > 0
    }

    fn end(&mut self, chunk: usize) {
        end(&mut self.chunks, &mut self.vacant, &mut self.store, chunk);
    }
}

/// Ends one reference; the last one ends the payload.
fn end(chunks: &mut [Option<Chunk>], vacant: &mut Vec<usize>, store: &mut Store, index: usize) {
    let chunk = chunks[index].as_mut().expect("a reference keeps its payload");
    chunk.references -= 1;
    if chunk.references == 0 {
        if let Some(claim) = chunks[index].take().and_then(|chunk| chunk.claim) {
            store.give_back(claim);
        }
        vacant.push(index);
    }
}
