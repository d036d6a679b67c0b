//! The receiver's half: records which copies arrived over each path, and decides which copy of a message is delivered.

use super::{ahead, Echo, PathError, PathId, Probe, Sequence, PATHS_MAX};
use crate::starts::{Start, Starts};
use serde::{Deserialize, Serialize};

/// The number of messages within which a duplicate is recognised.
const WINDOW: u32 = 1_024;
const WORDS: usize = WINDOW as usize / 64;

/// Which messages of a flow to deliver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// Every message that arrives within the window, once, in the order of arrival.
    Every,
    /// Only messages newer than all delivered so far. For states and set-points.
    Newest,
}

/// The decision about a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The first of its message: deliver it.
    Deliver,
    /// The message was delivered already.
    Duplicate,
    /// From before the window, or overtaken if only the newest counts.
    Stale,
    /// From an earlier start of the sender.
    Over,
}

/// Distinguishes first copies from later ones, for one flow of one sender.
#[derive(Clone, Debug)]
pub struct Deduplicator {
    delivery: Delivery,
    starts: Starts,
    /// The newest number that was delivered.
    newest: Option<Sequence>,
    /// Bit i of the concatenated words says whether the number whose lowest bits are i was delivered, if it is within
    /// the window.
    seen: [u64; WORDS],
}

impl Deduplicator {
    /// Creates a deduplicator that has seen nothing yet.
    pub fn new(delivery: Delivery) -> Self {
        Deduplicator {
            delivery,
            starts: Starts::default(),
            newest: None,
            seen: [0; WORDS],
        }
    }

    /// Handles a copy. A restarted sender begins a new window; copies from its earlier start are stale.
    pub fn on_copy(&mut self, sequence: Sequence) -> Verdict {
        let newest = match (self.starts.on_heard(sequence.incarnation), self.newest) {
            (Start::Over, _) => return Verdict::Over,
            (Start::Same, Some(newest)) => newest,
            (Start::New, _) | (Start::Same, None) => {
                self.seen = [0; WORDS];
                return self.deliver_newest(sequence);
            }
        };
        let step = ahead(sequence.number, newest.number);
        if step > 0 {
            // The numbers between have not arrived yet. Their places held numbers that have left the window.
            for skipped in 1..step.unsigned_abs().min(WINDOW) {
                self.mark(newest.number.wrapping_add(skipped), false);
            }
            if step.unsigned_abs() > WINDOW {
                self.seen = [0; WORDS];
            }
            return self.deliver_newest(sequence);
        }
        if step.unsigned_abs() >= WINDOW {
            Verdict::Stale
        } else if self.is_marked(sequence.number) {
            Verdict::Duplicate
        } else if self.delivery == Delivery::Newest {
            Verdict::Stale
        } else {
            self.mark(sequence.number, true);
            Verdict::Deliver
        }
    }

    /// Returns the newest message that was delivered.
    pub fn newest(&self) -> Option<Sequence> {
        self.newest
    }

    fn deliver_newest(&mut self, sequence: Sequence) -> Verdict {
        self.newest = Some(sequence);
        self.mark(sequence.number, true);
        Verdict::Deliver
    }

    fn place(number: u32) -> (usize, u64) {
        let bit = number % WINDOW;
        ((bit / 64) as usize, 1 << (bit % 64))
    }

    fn is_marked(&self, number: u32) -> bool {
        let (word, bit) = Self::place(number);
        self.seen[word] & bit != 0
    }

    fn mark(&mut self, number: u32, came: bool) {
        let (word, bit) = Self::place(number);
        if came {
            self.seen[word] |= bit;
        } else {
            self.seen[word] &= !bit;
        }
    }
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Heard {
    starts: Starts,
    newest: u32,
    seen: u64,
}

/// Records which copies from one sender arrived over each path, and reports them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Listener {
    paths: Vec<Heard>,
}

impl Listener {
    /// Creates a listener for a sender with this many paths to here.
    ///
    /// # Errors
    /// If there are none or too many.
    pub fn new(paths: usize) -> Result<Self, PathError> {
        if !(1..=PATHS_MAX).contains(&paths) {
            return Err(PathError::Count);
        }
        Ok(Listener {
            paths: vec![Heard::default(); paths],
        })
    }

    /// Records that a copy of a control message arrived over `path`, whether or not it is delivered.
    pub fn on_copy(&mut self, path: PathId, incarnation: u32, number: u32) {
        let Some(heard) = self.paths.get_mut(usize::from(path.0)) else {
            return;
        };
        match heard.starts.on_heard(incarnation) {
            Start::Same => {}
            Start::New => {
                (heard.newest, heard.seen) = (number, 0);
                return;
            }
            Start::Over => return,
        }
        let step = ahead(number, heard.newest);
        if step > 0 {
            let shifted = heard.seen.checked_shl(step.unsigned_abs()).unwrap_or(0);
            // The number that was newest takes its place among the earlier ones.
            let place = 1u64.checked_shl(step.unsigned_abs() - 1).unwrap_or(0);
            (heard.newest, heard.seen) = (number, shifted | place);
        } else if step < 0 {
            heard.seen |= 1u64.checked_shl(step.unsigned_abs() - 1).unwrap_or(0);
        }
    }

    /// Handles a probe. Returns the answer to send over the same path; `None` for an unknown path or an earlier start.
    pub fn on_probe(&mut self, probe: Probe) -> Option<Echo> {
        self.on_copy(probe.path, probe.incarnation, probe.number);
        let heard = self.paths.get(usize::from(probe.path.0))?;
        (heard.starts.newest() == Some(probe.incarnation)).then_some(Echo {
            probe,
            newest: heard.newest,
            seen: heard.seen,
        })
    }
}
