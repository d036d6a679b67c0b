//! The layout of a payload in memory: a table, the header, the parts.
//!
//! | bytes | what |
//! | --- | --- |
//! | 0 .. 4 | [`MAGIC`] |
//! | 4 .. 8 | number of parts |
//! | 8 .. 16 | length of the header |
//! | then, for each part | its offset from the payload's first byte, and its length, 8 bytes each |
//! | then | the header |
//! | then | the parts, each at a multiple of 64 |
//!
//! A reader checks all of it against the memory it has mapped: an offset that points elsewhere is an error, not a fault.

use crate::memory::View;
use crate::store::UNIT_BYTES;
use crate::Error;

/// The maximum number of parts of a payload.
pub const PARTS_MAX: usize = 1024;
/// The maximum length of a payload's header, bytes.
pub const HEADER_BYTES_MAX: usize = 1 << 20;

const MAGIC: u32 = u32::from_le_bytes(*b"cpl\x01");
const FIXED_BYTES: usize = 16;
const PART_BYTES: usize = 16;

fn word(bytes: &[u8], at: usize) -> Option<usize> {
    let word = u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?);
    usize::try_from(word).ok()
}

/// Returns the bytes that a payload needs, or the error if it is not allowed.
pub(crate) fn bytes_needed(header: usize, parts: &[usize]) -> Result<usize, Error> {
    if parts.len() > PARTS_MAX {
        return Err(Error::TooManyParts(parts.len()));
    }
    if header > HEADER_BYTES_MAX {
        return Err(Error::HeaderTooLong(header));
    }
    let start = FIXED_BYTES + parts.len() * PART_BYTES + header;
    let end = parts.iter().try_fold(start, |end, part| {
        end.checked_next_multiple_of(UNIT_BYTES)?.checked_add(*part)
    });
    end.ok_or(Error::TooLarge {
        bytes: usize::MAX,
        store_bytes: 0,
    })
}

/// Writes the table of a payload whose size [`bytes_needed`] has given.
pub(crate) fn write_table(payload: &mut [u8], header: usize, parts: &[usize]) {
    payload[..4].copy_from_slice(&MAGIC.to_le_bytes());
    payload[4..8].copy_from_slice(&(parts.len() as u32).to_le_bytes());
    payload[8..16].copy_from_slice(&(header as u64).to_le_bytes());
    let mut end = FIXED_BYTES + parts.len() * PART_BYTES + header;
    for (entry, part) in payload[FIXED_BYTES..].chunks_exact_mut(PART_BYTES).zip(parts) {
        let start = end.next_multiple_of(UNIT_BYTES);
        entry[..8].copy_from_slice(&(start as u64).to_le_bytes());
        entry[8..].copy_from_slice(&(*part as u64).to_le_bytes());
        end = start + part;
    }
}

/// Shortens the header of a payload to at most this length.
pub(crate) fn truncate_header(payload: &mut [u8], header: usize) {
    if word(payload, 8).is_some_and(|length| header < length) {
        payload[8..16].copy_from_slice(&(header as u64).to_le_bytes());
    }
}

/// The content of the table's fixed part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    pub header: usize,
    pub parts: usize,
}

impl Shape {
    /// Reads the first bytes of a payload.
    #[inline]
    pub fn read(payload: &[u8]) -> Option<Self> {
        let magic = u32::from_le_bytes(payload.get(..4)?.try_into().ok()?);
        let parts = u32::from_le_bytes(payload.get(4..8)?.try_into().ok()?) as usize;
        let header = word(payload, 8)?;
        (magic == MAGIC && parts <= PARTS_MAX && header <= HEADER_BYTES_MAX).then_some(Self { header, parts })
    }

    /// Returns the header's offset and length.
    #[inline]
    pub fn header(self) -> (usize, usize) {
        (FIXED_BYTES + self.parts * PART_BYTES, self.header)
    }

    /// Returns a part's offset and length, from the table in the payload's first bytes.
    #[inline]
    pub fn part(self, table: &[u8], index: usize) -> Option<(usize, usize)> {
        if index >= self.parts {
            return None;
        }
        let at = FIXED_BYTES + index * PART_BYTES;
        Some((word(table, at)?, word(table, at + 8)?))
    }
}

/// Returns the shape of the payload at `offset` if all of it lies within the memory.
#[inline]
pub(crate) fn check(view: &View, offset: usize) -> Option<Shape> {
    let shape = Shape::read(view.bytes(offset, FIXED_BYTES)?)?;
    let (header, length) = shape.header();
    view.bytes(offset.checked_add(header)?, length)?;
    (0..shape.parts)
        .all(|index| part(view, offset, shape, index).is_some())
        .then_some(shape)
}

/// Returns a part of the payload at `offset`.
#[inline]
pub(crate) fn part(view: &View, offset: usize, shape: Shape, index: usize) -> Option<&[u8]> {
    let table = view.bytes(offset, shape.header().0)?;
    let (start, length) = shape.part(table, index)?;
    view.bytes(offset.checked_add(start)?, length)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Arena;
    use crate::ranges::Ranges;
    use proptest::prelude::*;

    fn view(payload: &[u8]) -> View {
        let arena = Arena::reserve("test", 1 << 20).unwrap();
        let mut claim = Ranges::new(0, 1 << 20).claim(payload.len(), 64).unwrap();
        arena.bytes_mut(&mut claim).copy_from_slice(payload);
        View::open(&arena.read_only().unwrap(), 1 << 20).unwrap()
    }

    proptest! {
        #[test]
        fn parts_are_aligned_disjoint_and_found_again(
            header in 0_usize..200, lengths in prop::collection::vec(0_usize..1000, 0..20),
        ) {
            let bytes = bytes_needed(header, &lengths).unwrap();
            let mut payload = vec![0; bytes];
            write_table(&mut payload, header, &lengths);
            let shape = check(&view(&payload), 0).unwrap();
            prop_assert_eq!(shape, Shape { header, parts: lengths.len() });
            let mut end = shape.header().0 + header;
            for (index, &length) in lengths.iter().enumerate() {
                let (start, found) = shape.part(&payload, index).unwrap();
                prop_assert!(start >= end && start % UNIT_BYTES == 0 && found == length);
                end = start + length;
            }
            prop_assert_eq!(end, bytes);
        }

        /// Anything that a broken process writes is an error, or a payload within the memory.
        #[test]
        fn no_table_points_outside(table in prop::collection::vec(any::<u8>(), 16..200), sound in any::<bool>(), at: usize) {
            let mut table = table;
            if sound {
                table[..8].copy_from_slice(&[b'c', b'p', b'l', 1, 2, 0, 0, 0]);
                table[10..16].fill(0);
            }
            let view = view(&table);
            check(&view, at);
            if let Some(shape) = check(&view, 0) {
                for index in 0..shape.parts {
                    prop_assert!(part(&view, 0, shape, index).is_some());
                }
            }
        }
    }

    #[test]
    fn limits() {
        assert!(matches!(
            bytes_needed(0, &[1; PARTS_MAX + 1]),
            Err(Error::TooManyParts(_))
        ));
        assert!(matches!(
            bytes_needed(HEADER_BYTES_MAX + 1, &[]),
            Err(Error::HeaderTooLong(_))
        ));
        assert!(matches!(bytes_needed(0, &[usize::MAX, 1]), Err(Error::TooLarge { .. })));
    }
}
