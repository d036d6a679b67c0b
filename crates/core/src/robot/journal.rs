//! Keeps a robot's decisions for a recording until they are taken, up to a limit.
//!
//! The gate decides about every datagram. Only [`GATE_MAX`] of its openings and closings are kept of each second, and each
//! says how many were left out before it. The journal is off unless something records. What it is told also goes to the
//! [`Scope`], for whoever watches.

use std::collections::VecDeque;

use super::Scope;
use crate::failover::{Epoch, Message};
use crate::paths::PATHS_MAX;
use crate::windows::Window;
use crate::{permits, Duration, Instant, RobotId};

/// The maximum number of decisions that wait to be taken. Further ones are lost and counted.
const WAITING_MAX: usize = 16_384;
/// The maximum number of openings and closings of the gate that are kept per second.
const GATE_MAX: u32 = 250;
const GATE_SPAN: Duration = Duration::from_secs(1);

/// A decision, or a message about one.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A robot sends another a message about permits, under a leadership.
    Said {
        /// The sender.
        from: RobotId,
        /// The receiver.
        to: RobotId,
        /// The leadership.
        epoch: Epoch,
        /// The message.
        message: permits::Message,
    },
    /// Whether this robot may send bulk.
    Permitted(bool),
    /// The leader has changed for this robot.
    Led(Led, Epoch),
    /// The window that bulk keeps out of, if any.
    Window(Option<Window>),
    /// The gate has opened or closed.
    Gate(GateChange),
}

/// A robot's part in a leadership.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Led {
    /// The robot leads.
    Leads,
    /// The robot follows.
    Follows,
    /// The robot no longer leads.
    Deposed,
}

/// An opening or closing of a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GateChange {
    /// The gate's path.
    pub path: usize,
    /// Whether the gate is open now.
    pub open: bool,
    /// Whether it closed for a window; otherwise it closed for the backlog.
    pub for_window: bool,
    /// The number of datagrams on their way.
    pub in_flight: usize,
    /// The number of openings and closings left out before this one.
    pub skipped: u32,
}

/// Decisions with their times on this robot's clock, and the number that were lost before they could be taken.
pub type Taken = (VecDeque<(Instant, Event)>, u64);

/// The journal. Set the time before noting anything in it.
#[derive(Clone, Debug, Default)]
pub struct Journal {
    /// What those see who watch.
    pub scope: Scope,
    on: bool,
    now: Instant,
    events: VecDeque<(Instant, Event)>,
    lost: u64,
    closed: [bool; PATHS_MAX],
    gate_since: Instant,
    gate_count: u32,
    gate_skipped: u32,
}

impl Journal {
    /// Switches it on or off, and forgets what it holds for a recording.
    pub fn set(&mut self, on: bool) {
        *self = Journal {
            scope: std::mem::take(&mut self.scope),
            on,
            now: self.now,
            ..Journal::default()
        };
    }

    /// Returns whether something records or somebody watches.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.on || self.scope.is_on()
    }

    /// Returns whether something records.
    pub fn records(&self) -> bool {
        self.on
    }

    /// Sets the time of the notes that follow.
    pub fn at(&mut self, now: Instant) {
        self.now = now;
    }

    /// Returns the notes made since the last call.
    pub fn take(&mut self) -> Taken {
        (std::mem::take(&mut self.events), std::mem::take(&mut self.lost))
    }

    /// Notes a decision, at the time set last.
    pub fn note(&mut self, event: Event) {
        if self.scope.is_on() {
            self.scope.decided(self.now, &event);
        }
        if !self.on {
            return;
        }
        if self.events.len() >= WAITING_MAX {
            self.lost += 1;
            return;
        }
        self.events.push_back((self.now, event));
    }

    /// Notes a message about permits. Other messages of the election carry no decision.
    pub fn said(&mut self, from: RobotId, to: RobotId, message: &Message) {
        if let Message::Permit { epoch, message } = message {
            self.note(Event::Said {
                from,
                to,
                epoch: *epoch,
                message: *message,
            });
        }
    }

    /// Notes the gate's answer about a datagram, if it differs from the last.
    #[inline]
    pub fn gate(&mut self, path: usize, open: bool, for_window: bool, in_flight: usize) {
        if self.on {
            self.note_gate(path, open, for_window, in_flight);
        }
    }

    fn note_gate(&mut self, path: usize, open: bool, for_window: bool, in_flight: usize) {
        let Some(closed) = self.closed.get_mut(path).filter(|closed| **closed == open) else {
            return;
        };
        *closed = !open;
        if self.now.since(self.gate_since) >= GATE_SPAN {
            (self.gate_since, self.gate_count) = (self.now, 0);
        }
        if self.gate_count >= GATE_MAX {
            self.gate_skipped += 1;
            return;
        }
        self.gate_count += 1;
        let skipped = std::mem::take(&mut self.gate_skipped);
        self.note(Event::Gate(GateChange {
            path,
            open,
            for_window,
            in_flight,
            skipped,
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn what_is_too_much_is_left_out_and_counted() {
        let mut journal = Journal::default();
        journal.note(Event::Permitted(true));
        assert_eq!(journal.take(), (VecDeque::new(), 0), "nobody records");
        journal.set(true);
        for ms in 0..1_000 {
            journal.at(at(ms));
            journal.gate(1, ms % 2 == 1, true, 3);
            journal.gate(1, ms % 2 == 1, true, 4);
        }
        let (events, lost) = journal.take();
        assert_eq!((events.len(), lost), (250, 0));
        journal.at(at(1_000));
        journal.gate(0, true, false, 5);
        journal.gate(0, false, false, 5);
        let gate = GateChange {
            path: 0,
            open: false,
            for_window: false,
            in_flight: 5,
            skipped: 750,
        };
        assert_eq!(journal.take().0, [(at(1_000), Event::Gate(gate))]);
        for _ in 0..WAITING_MAX + 5 {
            journal.note(Event::Permitted(true));
        }
        let (events, lost) = journal.take();
        assert_eq!((events.len(), lost), (WAITING_MAX, 5));
        journal.set(false);
        journal.note(Event::Permitted(true));
        assert_eq!(journal.take().0.len(), 0);
    }
}
