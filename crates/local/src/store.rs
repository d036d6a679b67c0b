//! A sender's payload memory: small payloads are in pages that exist from the start. Large ones are in pages that are
//! allocated before their first use, and returned to the kernel when many are idle.
//!
//! The eager path (Kwok, section IV-C3): up to [`EAGER_BYTES_MAX`] a payload needs no allocation and no page fault.

use std::io;
use std::sync::Arc;

use crate::available::available_bytes;
use crate::memory::Arena;
use crate::ranges::{Claim, Ranges};
use crate::Error;

/// The largest payload, with its header and table, that is sent through memory allocated in advance.
pub const EAGER_BYTES_MAX: usize = 64 * 1024;
/// Memory is allocated and returned in pieces of this size.
const BLOCK_BYTES: usize = 256 * 1024;
/// The bytes allocated in advance: for eight of the largest eager payloads, or some thousands of small ones.
const EAGER_AREA_BYTES: usize = 2 * BLOCK_BYTES;
/// Payloads begin at a cache line, as SIMD code and tensors need.
pub(crate) const UNIT_BYTES: usize = 64;
/// Large payloads begin at a page.
const PAGE_BYTES: usize = 4096;

/// Allocated and free memory of one sender.
#[derive(Debug)]
pub(crate) struct Store {
    arena: Arc<Arena>,
    eager: Ranges,
    large: Ranges,
    /// Whether each block of the large area is allocated.
    committed: Vec<bool>,
    idle_bytes_max: usize,
}

impl Store {
    /// Creates a store that holds up to `bytes` of large payloads.
    pub fn new(name: &str, bytes: usize, idle_bytes_max: usize) -> Result<Self, Error> {
        let large = bytes.next_multiple_of(BLOCK_BYTES);
        let arena = Arena::reserve(name, EAGER_AREA_BYTES + large).map_err(|error| Error::memory(bytes, error))?;
        arena
            .commit(0, EAGER_AREA_BYTES)
            .map_err(|error| Error::memory(EAGER_AREA_BYTES, error))?;
        Ok(Self {
            arena: Arc::new(arena),
            eager: Ranges::new(0, EAGER_AREA_BYTES),
            large: Ranges::new(EAGER_AREA_BYTES, EAGER_AREA_BYTES + large),
            committed: vec![false; large / BLOCK_BYTES],
            idle_bytes_max,
        })
    }

    pub fn arena(&self) -> &Arc<Arena> {
        &self.arena
    }

    /// Claims memory that can be written. `Ok(None)`: the store is too full at present.
    pub fn claim(&mut self, bytes: usize) -> Result<Option<Claim>, Error> {
        if bytes <= EAGER_BYTES_MAX {
            if let Some(claim) = self.eager.claim(bytes, UNIT_BYTES) {
                return Ok(Some(claim));
            }
        }
        let Some(claim) = self.large.claim(bytes, PAGE_BYTES) else {
            return Ok(None);
        };
        match self.commit(&claim) {
            Ok(()) => Ok(Some(claim)),
            Err(error) => {
                self.large.give_back(claim);
                Err(Error::memory(bytes, error))
            }
        }
    }

    pub fn give_back(&mut self, claim: Claim) {
        if self.eager.owns(&claim) {
            self.eager.give_back(claim);
        } else {
            self.large.give_back(claim);
        }
    }

    /// Returns the bytes that payloads and loans occupy.
    pub fn used_bytes(&self) -> usize {
        self.eager.used() + self.large.used()
    }

    /// Returns the bytes of large payloads' memory that the kernel has allocated.
    pub fn committed_bytes(&self) -> usize {
        self.committed.iter().filter(|&&committed| committed).count() * BLOCK_BYTES
    }

    /// Returns free memory to the kernel, except what is kept for the next payloads.
    pub fn trim(&mut self) {
        let mut surplus = self
            .committed_bytes()
            .saturating_sub(self.large.used())
            .saturating_sub(self.idle_bytes_max);
        for (start, length) in self.large.free_from_the_top() {
            let first = (start - EAGER_AREA_BYTES).div_ceil(BLOCK_BYTES);
            let end = (start - EAGER_AREA_BYTES + length) / BLOCK_BYTES;
            for block in (first..end).rev() {
                if surplus < BLOCK_BYTES {
                    return;
                }
                // A block that cannot be returned stays allocated, which does no harm.
                if self.committed[block]
                    && self
                        .arena
                        .release(EAGER_AREA_BYTES + block * BLOCK_BYTES, BLOCK_BYTES)
                        .is_ok()
                {
                    self.committed[block] = false;
                    surplus -= BLOCK_BYTES;
                }
            }
        }
    }

    /// Allocates the blocks under a claim, adjacent ones by one call.
    fn commit(&mut self, claim: &Claim) -> io::Result<()> {
        let offset = claim.start() - EAGER_AREA_BYTES;
        let end = (offset + claim.len()).div_ceil(BLOCK_BYTES);
        let mut block = offset / BLOCK_BYTES;
        while block < end {
            let run = self.committed[block..end]
                .iter()
                .take_while(|&&committed| !committed)
                .count();
            if run > 0 {
                if (run * BLOCK_BYTES) as u64 > available_bytes() {
                    return Err(io::ErrorKind::OutOfMemory.into());
                }
                self.arena
                    .commit(EAGER_AREA_BYTES + block * BLOCK_BYTES, run * BLOCK_BYTES)?;
                self.committed[block..block + run].fill(true);
            }
            block += run.max(1);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_payloads_need_no_allocation_and_spill_into_the_large_area() {
        let mut store = Store::new("test", 1 << 20, 0).unwrap();
        let small: Vec<_> = (0..8).map(|_| store.claim(EAGER_BYTES_MAX).unwrap().unwrap()).collect();
        assert_eq!(store.committed_bytes(), 0);
        let spilled = store.claim(EAGER_BYTES_MAX).unwrap().unwrap();
        assert_eq!(store.committed_bytes(), BLOCK_BYTES);
        store.give_back(spilled);
        small.into_iter().for_each(|claim| store.give_back(claim));
        assert_eq!(store.used_bytes(), 0);
        store.trim();
        assert_eq!(store.committed_bytes(), 0);
    }

    #[test]
    fn a_full_store_answers_none_and_idle_memory_goes_back() {
        let mut store = Store::new("test", 4 << 20, 1 << 20).unwrap();
        let first = store.claim(3 << 20).unwrap().unwrap();
        assert!(store.claim(2 << 20).unwrap().is_none());
        store.give_back(first);
        store.trim();
        assert_eq!(store.committed_bytes(), 1 << 20);
        let mut again = store.claim(4 << 20).unwrap().unwrap();
        store.arena().clone().bytes_mut(&mut again).fill(1);
        assert_eq!(store.committed_bytes(), 4 << 20);
        store.trim();
        assert_eq!(store.committed_bytes(), 4 << 20);
        store.give_back(again);
    }
}
