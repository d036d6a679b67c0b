//! Decides the place of a payload in an arena: first fit, lowest address first.
//!
//! Low addresses are reused first, so a steady stream stays on pages that every process has already mapped. Only the
//! sender knows these tables; no other process can damage them, and nothing in them must survive the death of a
//! process.

use std::collections::BTreeMap;

/// The right to a range, until it is returned. It must not be cloned: two claims never overlap.
#[derive(Debug)]
pub(crate) struct Claim {
    start: usize,
    len: usize,
    /// The bytes that the allocator set aside, which may be more because of the alignment.
    whole: usize,
}

impl Claim {
    pub fn start(&self) -> usize {
        self.start
    }

    pub fn len(&self) -> usize {
        self.len
    }
}

/// Free ranges, none touching another: start to length.
#[derive(Debug)]
pub(crate) struct Ranges {
    free: BTreeMap<usize, usize>,
    first: usize,
    end: usize,
    used: usize,
}

impl Ranges {
    /// Creates an allocator for `first..end`, all free. `first` must have the largest alignment that will be claimed.
    pub fn new(first: usize, end: usize) -> Self {
        assert!(first < end, "an arena of {first}..{end}");
        Self {
            free: BTreeMap::from([(first, end - first)]),
            first,
            end,
            used: 0,
        }
    }

    /// Claims `len` bytes that start and end at a multiple of `unit`; `None` if no free range is large enough.
    pub fn claim(&mut self, len: usize, unit: usize) -> Option<Claim> {
        let whole = len.max(1).checked_next_multiple_of(unit)?;
        let (&start, &room) = self.free.iter().find(|&(_, &room)| room >= whole)?;
        self.free.remove(&start);
        if room > whole {
            self.free.insert(start + whole, room - whole);
        }
        self.used += whole;
        debug_assert!(
            start % unit == 0,
            "every range begins and ends at a multiple of its unit"
        );
        Some(Claim { start, len, whole })
    }

    /// Takes a range back, and joins it with its free neighbours.
    pub fn give_back(&mut self, claim: Claim) {
        let Claim { mut start, whole, .. } = claim;
        assert!(
            start >= self.first && start + whole <= self.end,
            "a claim is returned to its own ranges"
        );
        self.used -= whole;
        let mut length = whole;
        if let Some(after) = self.free.remove(&(start + length)) {
            length += after;
        }
        if let Some((&before, &room)) = self.free.range(..start).next_back() {
            if before + room == start {
                (start, length) = (before, room + length);
            }
        }
        self.free.insert(start, length);
    }

    /// Returns the bytes claimed, including those added by alignment.
    pub fn used(&self) -> usize {
        self.used
    }

    /// Returns whether the range belongs to this allocator.
    pub fn owns(&self, claim: &Claim) -> bool {
        (self.first..self.end).contains(&claim.start)
    }

    /// Returns the free ranges, highest first.
    pub fn free_from_the_top(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        self.free.iter().rev().map(|(&start, &length)| (start, length))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Claims never overlap, nothing is lost, and at the end everything is one free range again.
        #[test]
        fn claims_are_disjoint_and_all_comes_back(steps in prop::collection::vec((0_usize..5000, 0_usize..16), 1..300)) {
            let mut ranges = Ranges::new(4096, 4096 + 65536);
            let mut held: Vec<Claim> = Vec::new();
            for (len, pick) in steps {
                if pick < 8 {
                    if let Some(claim) = ranges.claim(len, 64) {
                        prop_assert!(claim.start % 64 == 0 && claim.len == len);
                        prop_assert!(claim.start >= 4096 && claim.start + claim.whole <= 4096 + 65536);
                        for other in &held {
                            prop_assert!(claim.start + claim.whole <= other.start || other.start + other.whole <= claim.start);
                        }
                        held.push(claim);
                    }
                } else if !held.is_empty() {
                    let claim = held.swap_remove(pick % held.len());
                    ranges.give_back(claim);
                }
                prop_assert_eq!(ranges.used(), held.iter().map(|claim| claim.whole).sum::<usize>());
            }
            for claim in held {
                ranges.give_back(claim);
            }
            prop_assert_eq!(ranges.free_from_the_top().collect::<Vec<_>>(), vec![(4096, 65536)]);
        }
    }
}
