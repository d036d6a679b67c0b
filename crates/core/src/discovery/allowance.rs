//! Limits how often attempts at heard addresses may fail, over all robots.

use crate::{Duration, Instant};

/// The number of attempts at heard addresses that may fail in a row, over all robots.
pub const GUESSES_MAX: u32 = 8;
/// The part of [`GUESSES_MAX`] that only robots without a failed attempt may use.
const GUESSES_RESERVED: u32 = 4;
/// The time after which one more attempt is allowed. Each failure doubles it, each success halves it.
const GUESS_EVERY_MIN: Duration = Duration::from_secs(4);
const GUESS_EVERY_MAX: Duration = Duration::from_secs(64);

/// The number of attempts at heard addresses that may still fail.
#[derive(Clone, Copy, Debug)]
pub(super) struct Allowance {
    free: u32,
    every: Duration,
    refill_at: Instant,
}

impl Allowance {
    pub fn new() -> Self {
        Allowance {
            free: GUESSES_MAX,
            every: GUESS_EVERY_MIN,
            refill_at: Instant::FAR_FUTURE,
        }
    }

    pub fn refill(&mut self, now: Instant) {
        while self.free < GUESSES_MAX && self.refill_at <= now {
            self.free += 1;
            self.refill_at += self.every;
        }
        if self.free == GUESSES_MAX {
            *self = Allowance::new();
        }
    }

    /// Returns when an attempt may begin, for a robot without failures (`fresh`) or for any other.
    pub fn next(&self, fresh: bool, now: Instant) -> Instant {
        let least = if fresh { 1 } else { GUESSES_RESERVED + 1 };
        match least.saturating_sub(self.free) {
            0 => now,
            missing => self.refill_at + self.every * u64::from(missing - 1),
        }
    }

    pub fn take(&mut self, now: Instant) {
        self.free = self.free.saturating_sub(1);
        if self.refill_at == Instant::FAR_FUTURE {
            self.refill_at = now + self.every;
        }
    }

    pub fn give_back(&mut self) {
        self.free = (self.free + 1).min(GUESSES_MAX);
    }

    pub fn on_end(&mut self, fits: bool, now: Instant) {
        if fits {
            self.every = (self.every / 2).max(GUESS_EVERY_MIN);
            self.give_back();
        } else {
            self.every = (self.every * 2).min(GUESS_EVERY_MAX);
            self.refill_at = self.refill_at.max(now + self.every / 2);
        }
    }
}
