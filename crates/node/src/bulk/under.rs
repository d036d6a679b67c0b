//! Tracks what is below the gate: handed to the kernel, and not known to have left.

use std::collections::VecDeque;
use std::task::Waker;

use coorp_core::Instant;

use super::reports::Tail;
use crate::outqueue::OutQueue;

/// The maximum number of tracked sends; more than any queue below holds.
const FOLLOWED_MAX: usize = 4_096;

/// The datagrams below the gate, and the senders that wait above it.
#[derive(Debug)]
pub(super) struct Under {
    pub queue: OutQueue,
    /// The interface that datagrams leave by, and the time at which to look it up again.
    pub outlet: Option<String>,
    pub find_at: Instant,
    /// The send calls handed to the kernel and not reported as sent, in the order of sending.
    pub sends: VecDeque<SendCall>,
    /// The number of datagrams in them.
    pub datagrams: usize,
    /// The number of datagrams that have left.
    pub left: u64,
    /// The number of send calls since the last report.
    pub silent_for: u32,
    /// Whether a datagram has been held since waiters were last woken, and whether the gate itself held it, without
    /// regard to permits.
    pub closed: bool,
    pub gated: bool,
    /// When bulk was last handed over.
    pub bulk_at: Instant,
    pub waiters: Vec<Waker>,
    /// The number of times that a datagram was held back.
    pub holds: u64,
    /// The number of datagrams that the air has given up, as far as the kernel reports that.
    pub given_up: u64,
    /// The number of datagrams without the report that they should have had.
    pub unreported: u64,
}

/// One or several datagrams handed to the kernel together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendCall {
    /// The time at which it was handed over.
    pub at: Instant,
    pub datagrams: usize,
    pub bytes: u64,
    /// The number of datagrams that had left when it was handed over, and the number once it has left itself.
    pub left_before: u64,
    pub left_by: u64,
    /// Whether the gate decided about it, and learns from it.
    pub bulk: bool,
    pub tail: Tail,
    /// The end in the send queue.
    pub mark: u64,
}

impl Under {
    pub fn new(queue: OutQueue) -> Under {
        Under {
            queue,
            outlet: None,
            find_at: Instant::ZERO,
            sends: VecDeque::new(),
            datagrams: 0,
            left: 0,
            silent_for: 0,
            closed: false,
            gated: false,
            bulk_at: Instant::ZERO,
            waiters: Vec::new(),
            holds: 0,
            given_up: 0,
            unreported: 0,
        }
    }

    pub fn push(&mut self, send: SendCall) {
        if self.sends.len() >= FOLLOWED_MAX {
            self.pop();
        }
        if send.bulk {
            self.bulk_at = send.at;
        }
        self.datagrams += send.datagrams;
        self.sends.push_back(send);
        self.silent_for = self.silent_for.saturating_add(1);
    }

    pub fn pop(&mut self) -> Option<SendCall> {
        let send = self.sends.pop_front()?;
        Some(self.gone(send))
    }

    /// Takes out the send call with these last bytes, most often the oldest.
    pub fn take(&mut self, tail: &Tail) -> Option<SendCall> {
        let place = self.sends.iter().position(|send| send.tail == *tail)?;
        let send = self.sends.remove(place)?;
        Some(self.gone(send))
    }

    fn gone(&mut self, send: SendCall) -> SendCall {
        self.datagrams -= send.datagrams;
        self.left += send.datagrams as u64;
        SendCall {
            left_by: self.left,
            ..send
        }
    }
}

#[cfg(test)]
impl SendCall {
    /// Returns the number in its last bytes, which tests put there.
    pub fn number(&self) -> u32 {
        let [.., a, b, c, d] = self.tail;
        u32::from_le_bytes([a, b, c, d])
    }

    /// Returns the number of datagrams that left between its handover and its departure, without its own last one.
    pub fn ahead(&self) -> usize {
        (self.left_by - self.left_before) as usize - 1
    }
}
