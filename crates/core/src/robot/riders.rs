//! Decides which coordination messages wait for control to the same robot, and go out with it instead of in a separate
//! frame.
//!
//! A frame of a few bytes costs a hundred times the airtime of its bytes. Beats, promises and renewals go to and from each
//! robot several times a second, and control goes between the same robots more often. A message that may be late waits for
//! control, at most [`WAIT_MAX`]. After that, or if no control went to its receiver recently, it goes separately. All
//! these messages may be late or lost without harm, because promises and grants count from when the message that they
//! answer was made (`failover`, `permits`).
//!
//! Control may be lost when coordination is not, because control has its own links, and a newer control message
//! replaces one that has not been sent. So an answer takes the route of its question, and after [`UNANSWERED_MAX`]
//! unanswered questions the next goes separately.
//!
//! Left out: peers with several paths, because coordination goes over every path and control does not. Also left out:
//! queries for the time, whose two directions should take equally long.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::Message;
use crate::permits::{self, Token};
use crate::{failover, Duration, Instant, RobotId};

/// The maximum number of messages that go with one control message.
pub const RIDERS_MAX: usize = 2;
/// Maximum time that a message waits. At 30 control messages a second, one is sent within this time.
const WAIT_MAX: Duration = Duration::from_millis(40);
/// If no control has gone for this long, messages do not wait for it.
const REGULAR: Duration = Duration::from_millis(100);
/// Maximum number of consecutive unanswered questions that go with control. One is often still on its way when the next
/// is asked.
const UNANSWERED_MAX: u32 = 2;

/// The waiting messages, by receiver.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Riders {
    seats: Vec<Seat>,
    /// When the first of the waiting messages has waited long enough.
    due: Instant,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Seat {
    /// Whether only one path leads there.
    taken_along: bool,
    /// When a control message last went there.
    control_at: Option<Instant>,
    waiting: VecDeque<Message>,
    due: Instant,
    /// Whether this robot answers beats.
    votes: bool,
    /// The numbers of beats and renewals sent there since this robot last answered one.
    beats: u32,
    renewals: u32,
    /// Whether the newest message from there came with control.
    came_along: bool,
    /// The last permit granted to this robot.
    granted: Option<Token>,
}

impl Riders {
    /// Creates the state. `paths_to` has the number of paths to each robot.
    pub fn new(paths_to: &[usize], voters: &[RobotId]) -> Self {
        let seats = (0u16..).map(RobotId).zip(paths_to).map(|(robot, paths)| Seat {
            votes: voters.contains(&robot),
            beats: 0,
            renewals: 0,
            came_along: false,
            taken_along: *paths < 2,
            control_at: None,
            waiting: VecDeque::new(),
            due: Instant::FAR_FUTURE,
            granted: None,
        });
        Riders {
            seats: seats.collect(),
            due: Instant::FAR_FUTURE,
        }
    }

    /// Takes a message for a robot. Returns it if it must go at once.
    pub fn offer(&mut self, to: RobotId, word: failover::Message, now: Instant) -> Option<Message> {
        let message = Message::Coordination(word);
        let Some(seat) = self.seats.get_mut(usize::from(to.0)) else {
            return Some(message);
        };
        let may_wait = seat.may_wait(&word);
        let comes = seat.control_at.is_some_and(|at| now.since(at) < REGULAR);
        if !(may_wait && comes && seat.taken_along) || seat.waiting.len() >= RIDERS_MAX {
            return Some(message);
        }
        seat.waiting.push_back(message);
        seat.due = seat.due.min(now + WAIT_MAX);
        self.due = self.due.min(seat.due);
        None
    }

    /// Records a message from a robot that arrived with its control or separately.
    pub fn on_word(&mut self, from: RobotId, word: &failover::Message, with_control: bool) {
        let Some(seat) = self.seats.get_mut(usize::from(from.0)) else {
            return;
        };
        seat.came_along = with_control;
        match word {
            failover::Message::Promise { .. } => seat.beats = 0,
            failover::Message::Permit { .. } => seat.renewals = 0,
            _ => {}
        }
    }

    /// Records that a control message for a robot was made. Returns the messages that go with it.
    pub fn take(&mut self, to: RobotId, now: Instant) -> Vec<Message> {
        let Some(seat) = self.seats.get_mut(usize::from(to.0)) else {
            return Vec::new();
        };
        seat.control_at = Some(now);
        if seat.waiting.is_empty() {
            return Vec::new();
        }
        let words = seat.leave();
        self.settle();
        words
    }

    /// Returns the messages that have waited long enough.
    pub fn on_deadline(&mut self, now: Instant) -> Vec<(RobotId, Message)> {
        if now < self.due {
            return Vec::new();
        }
        let due = (0u16..).map(RobotId).zip(&mut self.seats);
        let due = due.filter(|(_, seat)| seat.due <= now);
        let words = due.flat_map(|(to, seat)| seat.leave().into_iter().map(move |word| (to, word)));
        let words = words.collect();
        self.settle();
        words
    }

    /// Returns when to call [`Riders::on_deadline`] next.
    pub fn next_deadline(&self) -> Instant {
        self.due
    }

    fn settle(&mut self) {
        let due = self.seats.iter().map(|seat| seat.due);
        self.due = due.min().unwrap_or(Instant::FAR_FUTURE);
    }
}

impl Seat {
    /// Returns whether the message may wait and go with control, because it begins or ends neither bulk nor an
    /// election.
    fn may_wait(&mut self, word: &failover::Message) -> bool {
        match word {
            failover::Message::Beat { .. } => {
                self.beats += u32::from(self.votes);
                self.beats <= UNANSWERED_MAX
            }
            failover::Message::Promise { .. } => self.came_along,
            failover::Message::Permit { message, .. } => match message {
                permits::Message::Renew { .. } => {
                    self.renewals += 1;
                    self.renewals <= UNANSWERED_MAX
                }
                // The answer to a renewal names the same permit again.
                permits::Message::Grant { token, .. } => {
                    self.granted.replace(*token) == Some(*token) && self.came_along
                }
                permits::Message::Request { .. }
                | permits::Message::Release { .. }
                | permits::Message::Refuse { .. } => false,
            },
            failover::Message::Ask { .. } | failover::Message::Deny { .. } | failover::Message::Resign { .. } => false,
        }
    }

    fn leave(&mut self) -> Vec<Message> {
        self.due = Instant::FAR_FUTURE;
        self.waiting.drain(..).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failover::Epoch;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    fn epoch() -> Epoch {
        Epoch {
            round: 1,
            robot: RobotId(0),
            incarnation: 1,
        }
    }

    fn beat(ms: u64) -> failover::Message {
        let sent_at = at(ms);
        failover::Message::Beat {
            epoch: epoch(),
            sent_at,
        }
    }

    fn grant(token: u64) -> failover::Message {
        let message = permits::Message::Grant {
            request: permits::RequestId(1),
            token: Token(token),
            slice: Duration::from_millis(5),
            echo: at(0),
        };
        failover::Message::Permit {
            epoch: epoch(),
            message,
        }
    }

    #[test]
    fn a_word_goes_with_the_next_control_message_or_by_itself_when_none_comes() {
        let mut riders = Riders::new(&[1, 1, 1], &[]);
        let (one, other) = (RobotId(1), RobotId(2));
        let word = |ms| Message::Coordination(beat(ms));
        assert_eq!(
            riders.offer(one, beat(0), at(0)),
            Some(word(0)),
            "no control goes there"
        );
        assert_eq!(riders.take(one, at(1)), []);
        assert_eq!(riders.offer(one, beat(2), at(2)), None);
        assert_eq!(
            riders.offer(other, beat(2), at(2)),
            Some(word(2)),
            "control for another robot"
        );
        assert_eq!(riders.take(one, at(33)), [word(2)]);
        assert_eq!(riders.next_deadline(), Instant::FAR_FUTURE);
        assert_eq!(riders.offer(one, beat(34), at(34)), None);
        assert_eq!(riders.on_deadline(at(73)), []);
        assert_eq!(riders.next_deadline(), at(74));
        assert_eq!(riders.on_deadline(at(74)), [(one, word(34))]);
        assert_eq!(
            riders.offer(one, beat(140), at(140)),
            Some(word(140)),
            "control has ended"
        );
    }

    #[test]
    fn what_somebody_waits_for_goes_at_once() {
        let mut riders = Riders::new(&[1, 1, 2], &[]);
        let one = RobotId(1);
        riders.take(one, at(0));
        riders.take(RobotId(2), at(0));
        riders.on_word(one, &beat(0), true);
        assert!(riders.offer(RobotId(2), beat(1), at(1)).is_some(), "several paths");
        assert!(riders.offer(one, grant(1), at(1)).is_some(), "a new permit");
        assert!(riders.offer(one, grant(1), at(1)).is_none(), "a renewed one");
        assert!(riders.offer(one, grant(2), at(1)).is_some(), "the next one");
        for ms in 2..2 + RIDERS_MAX as u64 {
            assert_eq!(
                riders.offer(one, beat(ms), at(ms)).is_some(),
                ms > RIDERS_MAX as u64,
                "{ms}: no room"
            );
        }
        assert!(riders.offer(RobotId(7), beat(9), at(9)).is_some(), "no such robot");
        assert_eq!(riders.take(one, at(10)).len(), RIDERS_MAX);
    }

    #[test]
    fn words_go_by_themselves_where_control_does_not_get_through() {
        let mut riders = Riders::new(&[1, 1], &[RobotId(1)]);
        let one = RobotId(1);
        let promise = failover::Message::Promise {
            epoch: epoch(),
            echo: at(0),
        };
        let mut alone = |ms: u64, word| {
            riders.take(one, at(ms));
            riders.offer(one, word, at(ms)).is_some()
        };
        assert!(!alone(0, beat(0)) && !alone(75, beat(75)));
        assert!(alone(150, beat(150)) && alone(225, beat(225)), "unanswered");
        assert!(alone(226, promise), "asked by itself");
        riders.on_word(one, &promise, true);
        assert!(riders.offer(one, promise, at(227)).is_none(), "asked with control");
        assert!(riders.offer(one, beat(300), at(300)).is_none(), "answered");
    }
}
