//! Counts the control messages that arrived within their bound, and those that arrived late. This is the evidence for
//! the caution ([`Caution`](crate::gate::Caution)) from control outside the control loop.
//!
//! A sender states the bound of a flow in each message's stamp. The receiver compares it with the message's age on the
//! leader's clock. It reports the counts to the leader, soon after a late message, otherwise now and then. While there
//! is no leader, the counts wait for one. The leader weighs them in [`super::lead`], like loops.
//!
//! Left out: lost messages, about which the receiver learns nothing. Also left out: messages whose age is unknown,
//! because their sender or receiver does not know the leader's clock yet.

use serde::{Deserialize, Serialize};

use crate::{Duration, Instant};

/// Late messages that arrive within this time of the first are reported together.
const LATE_TOGETHER: Duration = Duration::from_millis(20);
/// Interval between two reports of messages in time.
const TELL_EVERY: Duration = Duration::from_millis(500);
/// Interval between two checks for a leader to report to.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The counts of messages with a bound that arrived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Judged {
    /// Messages within their bound.
    pub in_time: u16,
    /// Late messages.
    pub late: u16,
}

impl Judged {
    /// Returns the count of one message.
    pub fn of(late: bool) -> Self {
        Judged {
            in_time: u16::from(!late),
            late: u16::from(late),
        }
    }
}

/// The counts that have not been reported to the leader yet.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Judge {
    judged: Judged,
    tell_at: Instant,
}

impl Judge {
    pub fn new() -> Self {
        Judge {
            judged: Judged::default(),
            tell_at: Instant::FAR_FUTURE,
        }
    }

    /// Counts a message that arrived, `late` or in time.
    pub fn on_message(&mut self, late: bool, now: Instant) {
        let one = Judged::of(late);
        self.judged.in_time = self.judged.in_time.saturating_add(one.in_time);
        self.judged.late = self.judged.late.saturating_add(one.late);
        let wait = if late { LATE_TOGETHER } else { TELL_EVERY };
        self.tell_at = self.tell_at.min(now + wait);
    }

    /// Returns the counts since the last call, if they are due.
    pub fn take(&mut self, now: Instant) -> Option<Judged> {
        if now < self.tell_at {
            return None;
        }
        self.tell_at = Instant::FAR_FUTURE;
        Some(std::mem::take(&mut self.judged))
    }

    /// Keeps due counts for later, because there is no leader.
    pub fn put_off(&mut self, now: Instant) {
        if now >= self.tell_at {
            self.tell_at = now + LOOK_EVERY;
        }
    }

    pub fn next_deadline(&self) -> Instant {
        self.tell_at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn a_late_message_is_told_soon_and_others_now_and_then() {
        let mut judge = Judge::new();
        assert_eq!(judge.next_deadline(), Instant::FAR_FUTURE, "nothing to tell");
        judge.on_message(false, at(0));
        assert_eq!((judge.next_deadline(), judge.take(at(100))), (at(500), None));
        judge.on_message(true, at(100));
        judge.on_message(true, at(110));
        assert_eq!(judge.next_deadline(), at(120));
        assert_eq!(judge.take(at(120)), Some(Judged { in_time: 1, late: 2 }));
        assert_eq!(
            (judge.take(at(1_000)), judge.next_deadline()),
            (None, Instant::FAR_FUTURE)
        );
    }
}
