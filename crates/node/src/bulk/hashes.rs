//! The hashes of a message's segments, and of the message: BLAKE3's tree, in which a segment is a subtree. So segments
//! that arrive in any order are each hashed once, and the hash of the message follows from theirs.

use std::ops::Range;

use blake3::hazmat::{left_subtree_len, merge_subtrees_non_root, merge_subtrees_root, HasherExt, Mode};
use blake3::Hasher;
use coorp_core::spread::{segments_of, Run, SEGMENT_BYTES};

/// BLAKE3 of a message or, within its tree, of a segment.
pub(super) type Hash = [u8; 32];

/// Returns the place of a segment in a message of this length.
pub(super) fn place(segment: u32, length: u64) -> Range<u64> {
    Run {
        first: segment,
        count: 1,
    }
    .bytes(length)
}

/// Returns the hash of a segment, which consists of these pieces, of a message of this length.
pub(super) fn of_segment<B: AsRef<[u8]>>(segment: u32, length: u64, pieces: impl IntoIterator<Item = B>) -> Hash {
    let mut hasher = Hasher::new();
    hasher.set_input_offset(place(segment, length).start);
    for piece in pieces {
        hasher.update(piece.as_ref());
    }
    match segments_of(length) {
        // It is the whole tree.
        0 | 1 => *hasher.finalize().as_bytes(),
        _ if hasher.count() == 0 => Hash::default(),
        _ => hasher.finalize_non_root(),
    }
}

/// Returns the hash of a message of this length from those of all its segments.
pub(super) fn of_message(segments: &[Hash], length: u64) -> Hash {
    match segments {
        [] => *blake3::hash(&[]).as_bytes(),
        [only] => *only,
        _ => {
            let (left, right) = halves(segments, length);
            *merge_subtrees_root(&left, &right, Mode::Hash).as_bytes()
        }
    }
}

/// Returns the hashes of a tree's two halves. The left one is the largest power of two, so it consists of segments.
fn halves(segments: &[Hash], length: u64) -> (Hash, Hash) {
    let left = left_subtree_len(length);
    let (first, second) = segments.split_at((left / SEGMENT_BYTES) as usize);
    (of_subtree(first, left), of_subtree(second, length - left))
}

fn of_subtree(segments: &[Hash], length: u64) -> Hash {
    match segments {
        [] => Hash::default(),
        [only] => *only,
        _ => {
            let (left, right) = halves(segments, length);
            merge_subtrees_non_root(&left, &right, Mode::Hash)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_of_a_message_follows_from_its_segments() {
        let around = |segments: u64| [0, 1, SEGMENT_BYTES / 2].map(|more| segments * SEGMENT_BYTES + more);
        for length in [0, 1, 2, 3, 4, 5, 8, 11].into_iter().flat_map(around) {
            let bytes: Vec<u8> = (0..length).map(|place| (place % 251) as u8).collect();
            let hashes: Vec<Hash> = (0..segments_of(length))
                .map(|segment| {
                    let place = place(segment, length);
                    let (from, to) = (place.start as usize, place.end as usize);
                    of_segment(segment, length, bytes[from..to].chunks(10_000))
                })
                .collect();
            assert_eq!(
                of_message(&hashes, length),
                *blake3::hash(&bytes).as_bytes(),
                "{length}"
            );
        }
    }
}
