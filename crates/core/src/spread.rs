//! Decides which parts of a bulk message go over which paths ([`Spread`], decision 36).
//!
//! A message consists of *segments* of [`SEGMENT_BYTES`]. Each path in use takes the next segments as it has room: it
//! may have about two of its congestion windows on their way, and so many bytes always that it need not wait for the
//! receiver's answers. So a slow path takes few, and nobody has to know in advance how fast a path is.
//!
//! When no segment is left to take, a path that has nearly sent its own repeats the last of those that the other paths
//! have taken and that have not arrived. Until the message is whole, every path therefore has something to send, and the message is
//! never slower than over the best path alone. The receiver keeps the copy that arrives first.
//!
//! When a path is lost, its segments can be taken again. The receiver tells what it has whenever a path begins, because
//! it may have lost answers, or may have been restarted. It does so under the number of its *record*. What it told under
//! another number no longer counts.
//!
//! Left out: shares by the paths' rates, which would have to be known; and repeats before the end, which would take the
//! air from segments that nobody has sent.

use std::ops::Range;

use crate::paths::PATHS_MAX;

/// The length of a segment, bytes. The last one of a message may be shorter.
pub const SEGMENT_BYTES: u64 = 256 << 10;
/// The largest number of segments that a path takes at once.
pub const RUN_MAX: u32 = 4;
/// The number of segments that one of several paths always has room for, and the largest number. A path with fewer than
/// the first on their way repeats others.
const AHEAD_MIN: u32 = 2;
const AHEAD_MAX: u32 = 64;
/// The largest number of segments for which the only path has room: more than fit into all buffers on the way.
const ALONE_MAX: u32 = 128;
/// A further path is worth a connection if at least this many segments are left to take.
const WORTH_MIN: u32 = 3;

/// Consecutive segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The first segment.
    pub first: u32,
    /// The number of segments.
    pub count: u32,
}

impl Run {
    /// Returns the segments.
    pub fn segments(self) -> Range<u32> {
        self.first..self.first.saturating_add(self.count)
    }

    /// Returns the place of its bytes in a message of this length.
    pub fn bytes(self, length: u64) -> Range<u64> {
        let at = |segment: u32| (u64::from(segment) * SEGMENT_BYTES).min(length);
        let segments = self.segments();
        at(segments.start)..at(segments.end)
    }
}

/// Returns the number of segments of a message of this length.
pub fn segments_of(length: u64) -> u32 {
    u32::try_from(length.div_ceil(SEGMENT_BYTES)).unwrap_or(u32::MAX)
}

/// One message on its way over one or several paths.
#[derive(Clone, Debug)]
pub struct Spread {
    /// By segment: whether the receiver has it, and the paths that carry it, a bit each.
    there: Vec<bool>,
    carried: Vec<u8>,
    /// No segment before this one is left to take.
    next: usize,
    /// The number of segments that are left to take, and of those that the receiver has not.
    free: u32,
    missing: u32,
    /// The receiver's record.
    record: Option<u64>,
    /// By path: the number of segments on their way, if it is in use.
    ahead: [Option<u32>; PATHS_MAX],
}

impl Spread {
    /// Begins a message of this length, of which the receiver has nothing.
    pub fn new(length: u64) -> Self {
        let segments = segments_of(length);
        Spread {
            there: vec![false; segments as usize],
            carried: vec![0; segments as usize],
            next: 0,
            free: segments,
            missing: segments,
            record: None,
            ahead: [None; PATHS_MAX],
        }
    }

    /// Returns whether the receiver has every segment, by what it told.
    pub fn is_whole(&self) -> bool {
        self.missing == 0
    }

    /// Returns the number of segments that the receiver has.
    pub fn arrived(&self) -> u32 {
        self.there.len() as u32 - self.missing
    }

    /// Returns whether the receiver has told, under this number of its record, that it has a segment.
    pub fn has(&self, record: u64, segment: u32) -> bool {
        self.record == Some(record) && self.there.get(segment as usize).is_some_and(|there| *there)
    }

    /// Returns whether another path, besides those in use, is worth a connection.
    pub fn is_worth_another(&self) -> bool {
        self.free >= WORTH_MIN
    }

    /// Begins to use a path, over which the receiver has told what it has: these segments, under this number. If the
    /// number is new, it has nothing else, and paths under another number are to be begun anew.
    pub fn begin(&mut self, path: usize, record: u64, has: &[u32]) {
        if self.record != Some(record) {
            self.record = Some(record);
            self.there.fill(false);
            self.carried.fill(0);
            (self.next, self.free, self.missing) = (0, self.there.len() as u32, self.there.len() as u32);
            self.ahead = [None; PATHS_MAX];
        }
        self.lose(path);
        if let Some(ahead) = self.ahead.get_mut(path) {
            *ahead = Some(0);
        }
        has.iter().for_each(|segment| self.arrive(*segment));
    }

    /// Returns whether a path was begun under this number, and neither lost nor outdated since.
    pub fn is_begun(&self, path: usize, record: u64) -> bool {
        self.record == Some(record) && self.ahead.get(path).is_some_and(Option::is_some)
    }

    /// Ends the use of a path. Others can take what it carried.
    pub fn lose(&mut self, path: usize) {
        if self.ahead.get_mut(path).and_then(Option::take).is_none() {
            return;
        }
        let bit = 1 << path;
        for segment in 0..self.there.len() {
            if self.carried[segment] & bit != 0 {
                self.carried[segment] &= !bit;
                if self.carried[segment] == 0 {
                    self.free += 1;
                    self.next = self.next.min(segment);
                }
            }
        }
    }

    /// Returns the segments that a path sends next, if it has room with this congestion window, in bytes, and if there
    /// is anything to send. Ask again when something has arrived or a path was lost.
    pub fn take(&mut self, path: usize, window: u64) -> Option<Run> {
        let ahead = self.ahead.get(path).copied().flatten()?;
        let alone = self.ahead.iter().flatten().count() == 1;
        let most = match alone {
            true => ALONE_MAX,
            false => segments_of(window.saturating_mul(2)).clamp(AHEAD_MIN, AHEAD_MAX),
        };
        let room = most.saturating_sub(ahead).min(RUN_MAX);
        if room == 0 {
            return None;
        }
        let repeats = ahead < AHEAD_MIN;
        let run = self
            .next_free(room)
            .or_else(|| repeats.then(|| self.last_elsewhere(path)).flatten())?;
        for segment in run.segments() {
            self.free -= u32::from(self.carried[segment as usize] == 0);
            self.carried[segment as usize] |= 1 << path;
        }
        self.ahead[path] = Some(ahead + run.count);
        Some(run)
    }

    /// Records that the receiver has told, under this number, that segments have arrived over any path.
    pub fn on_arrived(&mut self, record: u64, run: Run) {
        if self.record == Some(record) {
            let Range { start, end } = run.segments();
            let end = end.min(self.there.len() as u32);
            (start..end).for_each(|segment| self.arrive(segment));
        }
    }

    fn arrive(&mut self, segment: u32) {
        let at = segment as usize;
        let Some(there) = self.there.get_mut(at) else { return };
        if std::mem::replace(there, true) {
            return;
        }
        self.missing -= 1;
        self.free -= u32::from(self.carried[at] == 0);
        for (path, ahead) in self.ahead.iter_mut().enumerate() {
            if let Some(ahead) = ahead.as_mut().filter(|_| self.carried[at] & 1 << path != 0) {
                *ahead -= 1;
            }
        }
        self.carried[at] = 0;
    }

    fn is_free(&self, segment: usize) -> bool {
        !self.there[segment] && self.carried[segment] == 0
    }

    /// Returns the next segments that nobody has taken, up to `most`.
    fn next_free(&mut self, most: u32) -> Option<Run> {
        while self.next < self.there.len() && !self.is_free(self.next) {
            self.next += 1;
        }
        let free = (self.next..self.there.len()).take(most as usize);
        let count = free.take_while(|segment| self.is_free(*segment)).count() as u32;
        (count > 0).then_some(Run {
            first: self.next as u32,
            count,
        })
    }

    /// Returns the last segment that only other paths carry, of those that the fewest carry.
    fn last_elsewhere(&self, path: usize) -> Option<Run> {
        let elsewhere = |segment: &usize| !self.there[*segment] && self.carried[*segment] & 1 << path == 0;
        let candidates = (0..self.there.len()).rev().filter(elsewhere);
        let last = candidates.min_by_key(|segment| self.carried[*segment].count_ones())?;
        Some(Run {
            first: last as u32,
            count: 1,
        })
    }
}

#[cfg(test)]
mod tests;
