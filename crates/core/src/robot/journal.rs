//! What a robot has decided, for a recording: kept until it is taken, and no more than so much.
//!
//! The gate decides about every datagram; of its openings and closings only so many a second are kept, and each says how
//! many were left out before it. Off unless something records.

use std::collections::VecDeque;

use crate::failover::{Epoch, Message};
use crate::paths::PATHS_MAX;
use crate::windows::Window;
use crate::{permits, Duration, Instant, RobotId};

/// Decisions that wait to be taken; further ones are lost, and counted.
const WAITING_MAX: usize = 16_384;
/// Openings and closings of the gate that are kept of each second.
const GATE_MAX: u32 = 250;
const GATE_SPAN: Duration = Duration::from_secs(1);

/// A decision, or what was said about one.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// One robot says to another something about permits, under a leadership.
    Said {
        /// Its sender.
        from: RobotId,
        /// Its receiver.
        to: RobotId,
        /// The leadership.
        epoch: Epoch,
        /// What was said.
        message: permits::Message,
    },
    /// This robot may send bulk, or no longer may.
    Permitted(bool),
    /// Who leads has changed for this robot.
    Led(Led, Epoch),
    /// The window that bulk is kept out of; `None`: there is none.
    Window(Option<Window>),
    /// The gate has opened or closed.
    Gate(GateChange),
}

/// How a robot stands to who leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Led {
    /// It leads.
    Leads,
    /// It follows.
    Follows,
    /// It led, and no longer does.
    Deposed,
}

/// A gate has opened or closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GateChange {
    /// Of which path it is the gate.
    pub path: usize,
    /// Whether it is open now.
    pub open: bool,
    /// Whether it was closed for a window; else because enough is on its way.
    pub for_window: bool,
    /// Datagrams on their way.
    pub in_flight: usize,
    /// Openings and closings before this one that are not recorded.
    pub skipped: u32,
}

/// What was taken: decisions with their times on this robot's clock, and how many were lost before they could be.
pub type Taken = (VecDeque<(Instant, Event)>, u64);

/// The journal. Told the time before anything is noted in it.
#[derive(Clone, Debug, Default)]
pub struct Journal {
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
    /// Begins or ends; what waits is forgotten.
    pub fn set(&mut self, on: bool) {
        *self = Journal {
            on,
            now: self.now,
            ..Journal::default()
        };
    }

    /// Returns whether it notes.
    pub fn is_on(&self) -> bool {
        self.on
    }

    /// What is noted next happens now.
    pub fn at(&mut self, now: Instant) {
        self.now = now;
    }

    /// The notes made since the last call.
    pub fn take(&mut self) -> Taken {
        (std::mem::take(&mut self.events), std::mem::take(&mut self.lost))
    }

    /// Notes a decision, at the time told last.
    pub fn note(&mut self, event: Event) {
        if !self.on {
            return;
        }
        if self.events.len() >= WAITING_MAX {
            self.lost += 1;
            return;
        }
        self.events.push_back((self.now, event));
    }

    /// What was said about permits; other words on who leads say nothing that is decided.
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

    /// What the gate answers about a datagram.
    pub fn gate(&mut self, path: usize, open: bool, for_window: bool, in_flight: usize) {
        let Some(closed) = self.closed.get_mut(path).filter(|closed| self.on && **closed == open) else {
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
