//! A message at its sender: hashed as it is written, in pieces that never move.
//!
//! Large pieces use huge pages: the thousands of small ones under a message of hundreds of megabytes cost as much time
//! as sending it.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use blake3::Hasher;
use bytes::{Buf, Bytes};
use coorp_core::spread::segments_of;
use memmap2::{Advice, MmapMut};
use nix::fcntl::{fcntl, FcntlArg};

use super::hashes::{self, Hash};

/// The size that is copied and hashed together, while it is in the processor's cache, bytes.
const WRITE_BYTES: usize = 256 << 10;
/// The lengths of the shortest and the longest piece. In between, each is as long as all before it, or as the write.
const PIECE_BYTES_MIN: usize = 16 << 10;
const PIECE_BYTES_MAX: usize = 64 << 20;
/// Pieces from this length on use huge pages, bytes.
const HUGE_BYTES: usize = 4 << 20;

/// The message so far.
#[derive(Debug, Default)]
pub(crate) struct Written {
    pieces: Vec<Bytes>,
    open: Piece,
    length: usize,
    /// Boxed, because it takes two kilobytes.
    hasher: Box<Hasher>,
}

/// A piece that is being filled.
#[derive(Debug)]
enum Piece {
    Small(Vec<u8>),
    Huge { pages: MmapMut, filled: usize },
}

impl Default for Piece {
    fn default() -> Self {
        Piece::Small(Vec::new())
    }
}

impl Piece {
    fn of(bytes: usize) -> Piece {
        let pages = (bytes >= HUGE_BYTES).then(|| MmapMut::map_anon(bytes).ok()).flatten();
        let Some(pages) = pages else {
            return Piece::Small(Vec::with_capacity(bytes));
        };
        // If there are no huge pages, small ones will do.
        let _ = pages.advise(Advice::HugePage);
        Piece::Huge { pages, filled: 0 }
    }

    fn room(&self) -> usize {
        match self {
            Piece::Small(bytes) => bytes.capacity() - bytes.len(),
            Piece::Huge { pages, filled } => pages.len() - filled,
        }
    }

    /// Appends as many bytes as there is room for.
    fn add(&mut self, more: &[u8]) {
        match self {
            Piece::Small(bytes) => bytes.extend_from_slice(more),
            Piece::Huge { pages, filled } => {
                pages[*filled..*filled + more.len()].copy_from_slice(more);
                *filled += more.len();
            }
        }
    }

    fn whole(self) -> Bytes {
        match self {
            Piece::Small(bytes) => bytes.into(),
            Piece::Huge { pages, filled } => Bytes::from_owner(pages).slice(..filled),
        }
    }
}

impl Written {
    /// Appends to the message.
    pub fn write(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.open.room() == 0 {
                let next = Piece::of(bytes.len().max(self.length).clamp(PIECE_BYTES_MIN, PIECE_BYTES_MAX));
                self.pieces.push(std::mem::replace(&mut self.open, next).whole());
            }
            let (now, later) = bytes.split_at(bytes.len().min(self.open.room()).min(WRITE_BYTES));
            self.hasher.update(now);
            self.open.add(now);
            self.length += now.len();
            bytes = later;
        }
    }

    /// Returns the number of bytes written.
    pub fn length(&self) -> u64 {
        self.length as u64
    }

    pub fn finish(mut self) -> Message {
        self.pieces.push(self.open.whole());
        self.pieces.retain(|piece| !piece.is_empty());
        Message {
            hash: *self.hasher.finalize().as_bytes(),
            length: self.length,
            content: Content::Pieces(self.pieces),
        }
    }
}

/// A complete message.
#[derive(Clone, Debug)]
pub(crate) struct Message {
    pub hash: [u8; 32],
    /// The length, bytes.
    pub length: usize,
    content: Content,
}

#[derive(Clone, Debug)]
enum Content {
    Pieces(Vec<Bytes>),
    /// Memory that another program has written, and can still change. That program also computed the hash, so a change
    /// harms only its own message.
    Memory(Arc<File>),
}

impl Message {
    /// Returns a message that another program has written and hashed. Fails if the file is not sealed memory: reading
    /// any other file might block.
    pub fn in_memory(content: OwnedFd, length: u64, hash: [u8; 32]) -> io::Result<Message> {
        // Only memory has seals.
        fcntl(&content, FcntlArg::F_GET_SEALS)?;
        Ok(Message {
            hash,
            length: usize::try_from(length).unwrap_or(usize::MAX),
            content: Content::Memory(Arc::new(content.into())),
        })
    }

    /// Returns the hash of a segment, if there is one of this number.
    pub fn hash_of(&self, segment: u32) -> Option<Hash> {
        let length = self.length as u64;
        let place = hashes::place(segment, length);
        (segment < segments_of(length)).then(|| hashes::of_segment(segment, length, self.part(place, WRITE_BYTES)))
    }

    /// Returns the bytes of a place, in chunks of at most this size.
    pub fn part(&self, place: Range<u64>, at_once: usize) -> Box<dyn Iterator<Item = Bytes> + Send + '_> {
        let (from, to) = (place.start as usize, place.end as usize);
        match &self.content {
            Content::Pieces(pieces) => Box::new(part_of(pieces, from, to, at_once)),
            Content::Memory(file) => {
                let places = (from..to).step_by(at_once);
                Box::new(places.map(move |at| {
                    let mut chunk = vec![0; at_once.min(to - at)];
                    // Memory that has become shorter arrives garbled.
                    let _ = file.read_exact_at(&mut chunk, at as u64);
                    chunk.into()
                }))
            }
        }
    }
}

fn part_of(pieces: &[Bytes], from: usize, to: usize, at_once: usize) -> impl Iterator<Item = Bytes> + Send + '_ {
    let (mut left_out, mut left) = (from, to.saturating_sub(from));
    let rests = pieces.iter().map(move |piece| {
        let skipped = left_out.min(piece.len());
        left_out -= skipped;
        let taken = left.min(piece.len() - skipped);
        left -= taken;
        piece.slice(skipped..skipped + taken)
    });
    rests.flat_map(move |mut rest| {
        std::iter::from_fn(move || rest.has_remaining().then(|| rest.split_to(rest.len().min(at_once))))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use coorp_core::spread::SEGMENT_BYTES;
    use proptest::prelude::*;

    fn bytes(length: usize) -> Vec<u8> {
        (0..length).map(|place| (place % 251) as u8).collect()
    }

    fn agrees(message: &Message, all: &[u8], offset: usize, at_once: usize) {
        assert_eq!(
            (message.length, message.hash),
            (all.len(), *blake3::hash(all).as_bytes())
        );
        let hashes: Vec<_> = (0..).map_while(|segment| message.hash_of(segment)).collect();
        assert_eq!(hashes.len(), all.len().div_ceil(SEGMENT_BYTES as usize));
        assert_eq!(hashes::of_message(&hashes, all.len() as u64), message.hash);
        for (from, to) in [(0, offset), (offset, all.len())] {
            let part: Vec<Bytes> = message.part(from as u64..to as u64, at_once).collect();
            assert!(part.iter().all(|part| (1..=at_once).contains(&part.len())));
            assert!(part.concat() == all[from..to]);
        }
    }

    #[test]
    fn large_ones_are_whole() {
        let all = bytes(3 * HUGE_BYTES + 5);
        let mut written = Written::default();
        written.write(&all[..7]);
        written.write(&all[7..HUGE_BYTES + 100]);
        written.write(&all[HUGE_BYTES + 100..]);
        let message = written.finish();
        for offset in [0, 7, HUGE_BYTES, all.len()] {
            agrees(&message, &all, offset, 64 << 10);
        }
    }

    proptest! {
        #[test]
        fn in_whatever_pieces_it_is_written(
            parts in prop::collection::vec(0usize..40_000, 0..12),
            share in 0.0..=1.0,
            at_once in 1_000usize..100_000,
        ) {
            let all = bytes(parts.iter().sum());
            let (mut written, mut rest) = (Written::default(), all.as_slice());
            for part in parts {
                let (now, later) = rest.split_at(part);
                written.write(now);
                rest = later;
            }
            agrees(&written.finish(), &all, (share * all.len() as f64) as usize, at_once);
        }
    }
}
