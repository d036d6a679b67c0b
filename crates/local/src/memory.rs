//! Shared memory without a name: sealed memfds, and the rules for reading and writing them.
//!
//! A memfd has no path. The kernel frees it with its last descriptor and mapping, whatever kills the processes that had
//! them, so nothing is ever left behind. Its size is sealed before any other process sees it: no process can shrink it
//! under another's mapping. Memory is allocated before it is written ([`Arena::commit`]), so exhaustion is an error and
//! not a SIGBUS.
//!
//! Contains unsafe code: memory that other processes see cannot be expressed otherwise. Every access is checked against
//! the mapping's length here. Other modules must keep these rules:
//!
//! - A [`Claim`] is the only right to write its bytes; `ranges` hands out claims that do not overlap.
//! - [`Arena::bytes`] reads claimed bytes only after the outbox has the claim, for a reference to them.
//! - A reader's [`View`] is read only where its writer has promised not to write, until the reader gives the bytes
//!   back. The peer's process, which runs this crate under the same user, keeps this promise.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicU64;

use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::{self, FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags};

use crate::ranges::Claim;

const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);
const WORD_BYTES: usize = size_of::<u64>();

/// Creates a memfd whose size can no longer change. Pages are allocated by [`Arena::commit`] or [`Words::create`].
fn sealed(name: &str, bytes: usize) -> io::Result<OwnedFd> {
    let memory = fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    fs::ftruncate(&memory, bytes as u64)?;
    fs::fcntl_add_seals(&memory, SEALS)?;
    Ok(memory)
}

/// Returns the size of a peer's memory, or why it cannot be mapped safely.
fn sealed_bytes(memory: BorrowedFd<'_>, bytes_max: u64) -> Result<usize, &'static str> {
    // Only a memfd has seals.
    let seals = fs::fcntl_get_seals(memory).map_err(|_| "what was offered is not shared memory")?;
    if !seals.contains(SealFlags::SHRINK) {
        return Err("the memory offered can be shrunk by others");
    }
    let bytes = fs::fstat(memory).map_err(|_| "the memory offered has no size")?.st_size;
    match u64::try_from(bytes) {
        Ok(bytes) if bytes > 0 && bytes <= bytes_max => usize::try_from(bytes).map_err(|_| "the memory is too large"),
        _ => Err("the memory offered is empty or beyond the limit"),
    }
}

/// Allocates pages. A signal interrupts the allocation of many pages, which then begins again.
fn allocate(memory: BorrowedFd<'_>, offset: usize, bytes: usize) -> io::Result<()> {
    loop {
        match fs::fallocate(memory, FallocateFlags::empty(), offset as u64, bytes as u64) {
            Err(rustix::io::Errno::INTR) => {}
            outcome => return Ok(outcome?),
        }
    }
}

/// Atomic words that several processes read and write.
#[derive(Debug)]
pub(crate) struct Words {
    map: MmapRaw,
}

impl Words {
    /// Allocates at least this many words, all zero, and returns them with the descriptor for the peer.
    pub fn create(name: &str, count: usize) -> io::Result<(Self, OwnedFd)> {
        let bytes = (count * WORD_BYTES).next_multiple_of(rustix::param::page_size());
        let memory = sealed(name, bytes)?;
        allocate(memory.as_fd(), 0, bytes)?;
        Ok((
            Self {
                map: MmapOptions::new().len(bytes).map_raw(&memory)?,
            },
            memory,
        ))
    }

    /// Maps a peer's words, at most `bytes_max` bytes.
    pub fn open(memory: &OwnedFd, bytes_max: usize) -> Result<Self, &'static str> {
        let bytes = sealed_bytes(memory.as_fd(), bytes_max as u64)?;
        let map = MmapOptions::new()
            .len(bytes)
            .map_raw(memory)
            .map_err(|_| "the words offered cannot be mapped")?;
        Ok(Self { map })
    }

    pub fn len(&self) -> usize {
        self.map.len() / WORD_BYTES
    }

    /// # Panics
    ///
    /// If there is no such word, like indexing a slice.
    #[inline]
    pub fn at(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.len(), "word {index} of {}", self.len());
        // SAFETY: The index is within the mapping, which lives as long as `self` and is page-aligned, so every multiple of
        // eight bytes in it is an aligned u64. The mapping is writable, and every process accesses it by atomics only.
        unsafe { AtomicU64::from_ptr(self.map.as_mut_ptr().cast::<u64>().add(index)) }
    }
}

/// The memory of a sender's payloads: mapped for writing, and allocated piece by piece.
#[derive(Debug)]
pub(crate) struct Arena {
    map: MmapRaw,
    memory: OwnedFd,
}

impl Arena {
    /// Reserves addresses, but no memory.
    pub fn reserve(name: &str, bytes: usize) -> io::Result<Self> {
        let memory = sealed(name, bytes)?;
        Ok(Self {
            map: MmapOptions::new().len(bytes).map_raw(&memory)?,
            memory,
        })
    }

    /// Returns a descriptor for readers, which does not allow mapping the memory for writing.
    pub fn read_only(&self) -> io::Result<OwnedFd> {
        use std::os::fd::AsRawFd;
        let path = format!("/proc/self/fd/{}", self.memory.as_raw_fd());
        Ok(fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
    }

    /// Allocates memory, so that writing there cannot fail.
    pub fn commit(&self, offset: usize, bytes: usize) -> io::Result<()> {
        allocate(self.memory.as_fd(), offset, bytes)
    }

    /// Returns memory to the kernel.
    pub fn release(&self, offset: usize, bytes: usize) -> io::Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(fs::fallocate(&self.memory, flags, offset as u64, bytes as u64)?)
    }

    /// Returns the bytes of a claim. They contain data of an earlier payload.
    pub fn bytes_mut<'a>(&'a self, claim: &'a mut Claim) -> &'a mut [u8] {
        let (start, length) = (claim.start(), claim.len());
        assert!(
            start.checked_add(length).is_some_and(|end| end <= self.map.len()),
            "a claim lies within its arena"
        );
        // SAFETY: The range lies in the mapping, which `self` keeps. Claims of one allocator never overlap and cannot be
        // cloned, and this one is borrowed mutably, so this process has no other reference to these bytes. No reader has
        // access to a claimed range before it is sent, and sending takes the claim away.
        unsafe { std::slice::from_raw_parts_mut(self.map.as_mut_ptr().add(start), length) }
    }

    /// Returns the bytes of a payload that this process keeps after it was sent, if they lie within the memory.
    #[inline]
    pub fn bytes(&self, start: usize, length: usize) -> Option<&[u8]> {
        if start.checked_add(length)? > self.map.len() {
            return None;
        }
        // SAFETY: The range lies in the mapping, which `self` keeps. The outbox has its claim for references, of which
        // the caller has one. So nobody has the claim to write there until that reference ends.
        Some(unsafe { std::slice::from_raw_parts(self.map.as_ptr().add(start), length) })
    }
}

/// The same memory in a reader, read-only.
#[derive(Debug)]
pub(crate) struct View {
    map: MmapRaw,
}

impl View {
    /// Maps a peer's arena, at most `bytes_max` bytes.
    pub fn open(memory: &OwnedFd, bytes_max: u64) -> Result<Self, &'static str> {
        let bytes = sealed_bytes(memory.as_fd(), bytes_max)?;
        let map = MmapOptions::new()
            .len(bytes)
            .map_raw_read_only(memory)
            .map_err(|_| "the memory offered cannot be mapped")?;
        Ok(Self { map })
    }

    /// Returns the bytes of a payload that this reader holds, if they lie within the memory.
    #[inline]
    pub fn bytes(&self, start: usize, length: usize) -> Option<&[u8]> {
        if start.checked_add(length)? > self.map.len() {
            return None;
        }
        // SAFETY: The range lies in the mapping, which `self` keeps, and which the sealed size keeps from faulting. The
        // sender does not write there until the reader returns the payload's slot, which ends the payload's borrow first.
        Some(unsafe { std::slice::from_raw_parts(self.map.as_ptr().add(start), length) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ranges::Ranges;

    #[test]
    fn refuses_memory_that_can_shrink_or_is_none_or_too_large() {
        let loose = fs::memfd_create("loose", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        fs::ftruncate(&loose, 4096).unwrap();
        assert_eq!(
            View::open(&loose, 1 << 20).unwrap_err(),
            "the memory offered can be shrunk by others"
        );
        let socket = OwnedFd::from(std::os::unix::net::UnixDatagram::unbound().unwrap());
        assert_eq!(
            View::open(&socket, 1 << 20).unwrap_err(),
            "what was offered is not shared memory"
        );
        let large = sealed("large", 1 << 20).unwrap();
        assert!(View::open(&large, 4096).is_err() && Words::open(&large, 4096).is_err());
    }

    #[test]
    fn readers_get_what_was_written_and_cannot_map_it_for_writing() {
        let arena = Arena::reserve("test", 1 << 20).unwrap();
        let mut claim = Ranges::new(0, 1 << 20).claim(100, 64).unwrap();
        arena.commit(claim.start(), 4096).unwrap();
        arena.bytes_mut(&mut claim).fill(7);
        let memory = arena.read_only().unwrap();
        let view = View::open(&memory, 1 << 20).unwrap();
        assert_eq!(view.bytes(claim.start(), 100), Some([7; 100].as_slice()));
        assert_eq!(view.bytes(1 << 20, 1), None);
        assert_eq!(view.bytes(usize::MAX, 2), None);
        assert!(Words::open(&memory, 1 << 20).is_err());
        assert!(fs::ftruncate(&arena.memory, 0).is_err());
    }
}
