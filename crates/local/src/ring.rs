//! The memory that one sender and one receiver share: a queue of payload references, and the references that were
//! returned.
//!
//! A reference is a slot number. It exists in the sender's private table before it enters the queue, and ends there when
//! the receiver has set the slot's bit in `released`, or when the receiver is gone. So no count is ever shared: a
//! process that dies at any instruction leaves nothing that another process would have to repair.
//!
//! The queue's entries are single words. An entry carries the lap it was written in, so that the receiver sees it arrive
//! by reading the entry itself. The receiver takes the oldest entry by moving `head`; so does the sender when it drops the
//! oldest. The side that moves it has the reference.
//!
//! | word | what | written by |
//! | --- | --- | --- |
//! | 0, 1, 2 | [`MAGIC`], queue's length, number of slots | sender, before the receiver sees it |
//! | 8 | `head`: the number of entries taken | both |
//! | 16 | the receiver sleeps: ring its bell after the next entry | receiver; sender clears |
//! | 24 | the sender waits for room: ring its bell after a release | sender; receiver clears |
//! | 32 .. | `released`: a bit per slot | receiver sets, sender clears |
//! | then | the queue | sender |
//!
//! The two flags follow Dekker's rule (set the flag, then check again; write, then read the flag), so all accesses to
//! flags, entries and bits are sequentially consistent.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::{Acquire, SeqCst};

use crate::memory::Words;
use crate::store::UNIT_BYTES;

/// The maximum length of one receiver's queue.
pub const QUEUE_MESSAGES_MAX: usize = 1024;
/// The maximum number of payloads of one sender that one receiver can hold while others are queued.
pub const HELD_MESSAGES_MAX: usize = 1024;

/// Identifies the layout.
const MAGIC: u64 = u64::from_le_bytes(*b"coorp\x01rg");
const HEAD: usize = 8;
const RECEIVER_SLEEPS: usize = 16;
const SENDER_WAITS: usize = 24;
const RELEASED: usize = 32;
/// Words in a cache line.
const LINE: usize = 8;

const SLOT_BITS: u32 = 12;
const UNITS_BITS: u32 = 36;
const LAP_MASK: u64 = (1 << (64 - SLOT_BITS - UNITS_BITS)) - 1;
const _: () = assert!(QUEUE_MESSAGES_MAX + HELD_MESSAGES_MAX <= 1 << SLOT_BITS);
/// The largest arena whose offsets an entry can name.
pub(crate) const ARENA_BYTES_MAX: u64 = (1 << UNITS_BITS) * UNIT_BYTES as u64;

/// A queue entry: the payload's slot and its offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry {
    pub slot: u16,
    pub offset: u64,
}

#[derive(Debug)]
pub(crate) struct Ring {
    words: Words,
    queue: usize,
    slots: usize,
}

impl Ring {
    fn first_entry(slots: usize) -> usize {
        RELEASED + slots.div_ceil(64).next_multiple_of(LINE)
    }

    pub fn create(name: &str, queue: usize, held: usize) -> io::Result<(Self, OwnedFd)> {
        let slots = queue + held;
        let (words, memory) = Words::create(name, Self::first_entry(slots) + queue)?;
        words.at(1).store(queue as u64, SeqCst);
        words.at(2).store(slots as u64, SeqCst);
        words.at(0).store(MAGIC, SeqCst);
        Ok((Self { words, queue, slots }, memory))
    }

    /// Maps a sender's ring, and refuses one with another layout than this version's.
    pub fn open(memory: &OwnedFd) -> Result<Self, &'static str> {
        let entries_max = QUEUE_MESSAGES_MAX + Self::first_entry(QUEUE_MESSAGES_MAX + HELD_MESSAGES_MAX);
        let words = Words::open(memory, (entries_max * 8).next_multiple_of(rustix::param::page_size()))?;
        if words.len() < RELEASED || words.at(0).load(SeqCst) != MAGIC {
            return Err("the ring offered is not one of this version");
        }
        let read = |index| usize::try_from(words.at(index).load(SeqCst)).unwrap_or(usize::MAX);
        let (queue, slots) = (read(1), read(2));
        let sane = (1..=QUEUE_MESSAGES_MAX).contains(&queue)
            && (queue..=queue.saturating_add(HELD_MESSAGES_MAX)).contains(&slots)
            && Self::first_entry(slots) + queue <= words.len();
        if sane {
            Ok(Self { words, queue, slots })
        } else {
            Err("the ring offered has impossible sizes")
        }
    }

    pub fn queue(&self) -> usize {
        self.queue
    }

    pub fn slots(&self) -> usize {
        self.slots
    }

    #[inline]
    fn entry(&self, position: u64) -> usize {
        Self::first_entry(self.slots) + (position % self.queue as u64) as usize
    }

    /// Returns the number of the position's lap, which is not 0 in the first lap, because the queue begins as zeros.
    #[inline]
    fn lap(&self, position: u64) -> u64 {
        (position / self.queue as u64 + 1) & LAP_MASK
    }

    /// Returns the number of entries taken by either side.
    #[inline]
    pub fn head(&self) -> u64 {
        self.words.at(HEAD).load(Acquire)
    }

    /// Writes an entry. The sender must know that there is room at this position.
    #[inline]
    pub fn put(&self, position: u64, entry: Entry) {
        let units = entry.offset / UNIT_BYTES as u64;
        debug_assert!(units < 1 << UNITS_BITS, "an arena is no larger than an entry can tell");
        let word = self.lap(position) << (SLOT_BITS + UNITS_BITS) | u64::from(entry.slot) << UNITS_BITS | units;
        self.words.at(self.entry(position)).store(word, SeqCst);
    }

    /// Returns whether the receiver sleeps and has to be woken. The caller must then wake it.
    #[inline]
    pub fn must_wake_receiver(&self) -> bool {
        let sleeps = self.words.at(RECEIVER_SLEEPS);
        sleeps.load(SeqCst) != 0 && sleeps.swap(0, SeqCst) != 0
    }

    pub fn receiver_sleeps(&self) {
        self.words.at(RECEIVER_SLEEPS).store(1, SeqCst);
    }

    #[inline]
    pub fn must_wake_sender(&self) -> bool {
        let waits = self.words.at(SENDER_WAITS);
        waits.load(SeqCst) != 0 && waits.swap(0, SeqCst) != 0
    }

    pub fn sender_waits(&self) {
        self.words.at(SENDER_WAITS).store(1, SeqCst);
    }

    /// Returns whether there is an entry to take.
    #[inline]
    pub fn has_entry(&self) -> bool {
        let position = self.head();
        let word = self.words.at(self.entry(position)).load(SeqCst);
        // If the sender took the entry meanwhile, there is a newer one.
        word >> (SLOT_BITS + UNITS_BITS) == self.lap(position) || self.head() != position
    }

    /// Takes the oldest entry, if there is one.
    #[inline]
    pub fn take(&self) -> Option<Entry> {
        loop {
            let position = self.head();
            let word = self.words.at(self.entry(position)).load(SeqCst);
            if word >> (SLOT_BITS + UNITS_BITS) != self.lap(position) {
                // The queue is empty, unless the sender has taken and overwritten this entry since `head` was read.
                if self.head() == position {
                    return None;
                }
                continue;
            }
            if self.take_at(position) {
                let slot = (word >> UNITS_BITS) & ((1 << SLOT_BITS) - 1);
                let units = word & ((1 << UNITS_BITS) - 1);
                return Some(Entry {
                    slot: slot as u16,
                    offset: units * UNIT_BYTES as u64,
                });
            }
        }
    }

    /// Moves `head` past a position, unless the other side was first.
    #[inline]
    pub fn take_at(&self, position: u64) -> bool {
        self.words
            .at(HEAD)
            .compare_exchange(position, position + 1, SeqCst, SeqCst)
            .is_ok()
    }

    /// Gives a slot back, from any thread and in any order.
    #[inline]
    pub fn release(&self, slot: u16) {
        let slot = usize::from(slot);
        self.words.at(RELEASED + slot / 64).fetch_or(1 << (slot % 64), SeqCst);
    }

    /// Calls `each` for every slot that was returned since the last call.
    #[inline]
    pub fn reclaim(&self, mut each: impl FnMut(usize)) {
        for index in 0..self.slots.div_ceil(64) {
            let word = self.words.at(RELEASED + index);
            if word.load(SeqCst) == 0 {
                continue;
            }
            let mut bits = word.swap(0, SeqCst);
            while bits != 0 {
                each(index * 64 + bits.trailing_zeros() as usize);
                bits &= bits - 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_come_in_order_over_many_laps() {
        let (sender, memory) = Ring::create("test", 3, 2).unwrap();
        let receiver = Ring::open(&memory).unwrap();
        assert_eq!((receiver.queue(), receiver.slots()), (3, 5));
        assert_eq!(receiver.take(), None);
        // More laps than an entry can count.
        let laps = 3 * (LAP_MASK + 3);
        for position in 0..laps {
            let entry = Entry {
                slot: (position % 5) as u16,
                offset: position % 1000 * 64,
            };
            sender.put(position, entry);
            assert_eq!(receiver.take(), Some(entry), "at {position}");
            assert_eq!(receiver.take(), None, "at {position}");
        }
    }

    #[test]
    fn released_slots_come_back_once() {
        let (sender, memory) = Ring::create("test", 100, 100).unwrap();
        let receiver = Ring::open(&memory).unwrap();
        for slot in [0, 63, 64, 199] {
            receiver.release(slot);
        }
        let mut back = Vec::new();
        sender.reclaim(|slot| back.push(slot));
        assert_eq!(back, [0, 63, 64, 199]);
        sender.reclaim(|slot| panic!("slot {slot} came back twice"));
    }

    #[test]
    fn refuses_foreign_rings() {
        let (words, memory) = Words::create("test", 512).unwrap();
        assert_eq!(
            Ring::open(&memory).unwrap_err(),
            "the ring offered is not one of this version"
        );
        words.at(0).store(MAGIC, SeqCst);
        for (queue, slots) in [(0, 4), (4, 3), (1024, 1025), (8, u64::MAX), (u64::MAX, u64::MAX)] {
            words.at(1).store(queue, SeqCst);
            words.at(2).store(slots, SeqCst);
            assert_eq!(
                Ring::open(&memory).unwrap_err(),
                "the ring offered has impossible sizes"
            );
        }
    }

    /// Each entry is taken by exactly one side, and the receiver takes its own in order.
    #[test]
    fn sender_and_receiver_never_take_the_same_entry() {
        let (sender, memory) = Ring::create("test", 4, 4).unwrap();
        let receiver = Ring::open(&memory).unwrap();
        let count = 200_000;
        let taken = std::thread::scope(|scope| {
            let dropped = scope.spawn(move || {
                let mut dropped = Vec::new();
                for position in 0..count {
                    let oldest = position - 4.min(position);
                    if position >= 4 && sender.head() <= oldest && sender.take_at(oldest) {
                        dropped.push(oldest);
                    }
                    sender.put(
                        position,
                        Entry {
                            slot: 0,
                            offset: position * 64,
                        },
                    );
                }
                dropped
            });
            let mut taken = Vec::new();
            while receiver.head() < count {
                taken.extend(receiver.take().map(|entry| entry.offset / 64));
            }
            assert!(taken.is_sorted(), "out of order");
            taken.extend(dropped.join().unwrap());
            taken
        });
        let mut taken = taken;
        taken.sort_unstable();
        assert_eq!(taken, (0..count).collect::<Vec<_>>());
    }
}
