//! Follows control messages until the card has freed them, although a transport hands them over later.
//!
//! QUIC takes a message at once and hands it to the socket a moment later, sealed and perhaps in parts. So a message is
//! tracked by the bytes of its socket. It has left once the socket has handed over what was waiting before it and its
//! own bytes, and the card has freed those ([`Handed`]). Acknowledgements in between make a message seem to leave one
//! small datagram early. A message that is never handed over, because the transport drops it, counts as left after
//! [`LEFT_MAX`].
//!
//! A thread checks while a message is in progress and sleeps otherwise ([`Departures`]).

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration as StdDuration;

use coorp_core::robot::LOOK_HELD;
use coorp_core::{Duration, FlowId, Instant};

use super::OutQueue;
use crate::ground::Signal;
use crate::sync::lock;

/// A message counts as left after this time, whatever the card reports.
const LEFT_MAX: Duration = Duration::from_millis(100);
/// The intervals of checks: while a message is in progress, and otherwise.
const LOOK_EVERY: StdDuration = StdDuration::from_nanos(LOOK_HELD.as_nanos());
const REST: StdDuration = StdDuration::from_millis(200);
/// The maximum number of tracked sends; more than any queue below control holds.
const SENDS_MAX: usize = 1_024;
/// The maximum number of tracked messages.
const MESSAGES_MAX: usize = 1_024;

/// The payload bytes that one socket has handed over, and how many of them have left.
#[derive(Debug)]
pub(crate) struct Handed(Mutex<State>);

#[derive(Debug)]
struct State {
    queue: OutQueue,
    handed: u64,
    gone: u64,
    /// The bytes that will have been handed over with all messages so far.
    owed: u64,
    /// The mark of each send, and the bytes handed over up to and including it.
    sends: VecDeque<(u64, u64)>,
}

/// The bytes that a socket's card must have freed for a message to have left.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub socket: Arc<Handed>,
    bytes: u64,
}

impl Handed {
    pub fn by(queue: OutQueue) -> Arc<Handed> {
        Arc::new(Handed(Mutex::new(State {
            queue,
            handed: 0,
            gone: 0,
            owed: 0,
            sends: VecDeque::new(),
        })))
    }

    /// Sends `datagrams` datagrams, `bytes` in total, through `hand_over`.
    pub fn send(&self, bytes: usize, datagrams: usize, hand_over: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let mut state = lock(&self.0);
        let mark = state.queue.send(bytes, datagrams, hand_over)?;
        state.handed += bytes as u64;
        let handed = state.handed;
        if state.sends.len() >= SENDS_MAX {
            // The next send covers it.
            state.sends.pop_front();
        }
        state.sends.push_back((mark, handed));
        Ok(())
    }

    /// Returns the target of a message of this many bytes that is about to be handed over. None of it may have left
    /// yet.
    pub fn expect(self: &Arc<Self>, bytes: usize) -> Target {
        let mut state = lock(&self.0);
        state.owed = state.owed.max(state.handed) + bytes as u64;
        Target {
            socket: self.clone(),
            bytes: state.owed,
        }
    }

    /// Returns whether the card has freed this many bytes.
    fn has_let_go_of(&self, bytes: u64) -> bool {
        let mut state = lock(&self.0);
        let left = state.queue.left();
        while let Some((_, handed)) = state.sends.front().copied().filter(|(mark, _)| *mark <= left) {
            state.gone = handed;
            state.sends.pop_front();
        }
        state.gone >= bytes
    }

    /// Releases the socket.
    pub fn close(&self) {
        lock(&self.0).queue.close();
    }

    /// Stops expecting bytes that are not coming.
    fn forget(&self) {
        let mut state = lock(&self.0);
        state.owed = state.handed;
        // Frames that the emulator has lost before its card are lost to the count, too.
        let missing = state.handed.saturating_sub(state.gone);
        state.queue.give_up(missing);
    }
}

impl Target {
    /// Returns whether the message has left.
    pub fn is_reached(&self) -> bool {
        self.socket.has_let_go_of(self.bytes)
    }
}

/// The messages in progress.
#[derive(Debug, Default)]
pub(crate) struct Departures {
    messages: Mutex<VecDeque<Message>>,
    /// Wakes the thread that checks, once there is one.
    looker: OnceLock<Signal>,
}

#[derive(Debug)]
struct Message {
    flow: FlowId,
    /// One per copy.
    targets: Vec<Target>,
    since: Instant,
}

impl Departures {
    /// Follows a flow's message, which is on its way to these targets since `since`. Returns false if too many are
    /// already tracked.
    pub fn follow(&self, flow: FlowId, targets: Vec<Target>, since: Instant) -> bool {
        let mut messages = lock(&self.messages);
        if messages.len() >= MESSAGES_MAX {
            return false;
        }
        messages.push_back(Message { flow, targets, since });
        drop(messages);
        if let Some(looker) = self.looker.get() {
            looker.wake();
        }
        true
    }

    /// Returns the flows of messages that have left since the last check, in their order of sending.
    fn look(&self, now: Instant) -> Vec<FlowId> {
        let mut left = Vec::new();
        lock(&self.messages).retain(|message| {
            let overdue = now.since(message.since) > LEFT_MAX;
            let gone = message.targets.iter().all(Target::is_reached);
            if overdue && !gone {
                message.targets.iter().for_each(|target| target.socket.forget());
            }
            if overdue || gone {
                left.push(message.flow);
            }
            !(overdue || gone)
        });
        left
    }

    /// Sets the thread that checks the messages from now on.
    pub fn looked_at_by(&self, looker: Signal) {
        // This is set only here.
        let _ = self.looker.set(looker);
    }

    /// Checks once: returns the flows whose messages have left, and the time until the next check.
    pub fn round(&self, now: Instant) -> (Vec<FlowId>, StdDuration) {
        let left = self.look(now);
        let rests = lock(&self.messages).is_empty();
        (left, if rests { REST } else { LOOK_EVERY })
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::by_hand;
    use super::super::Freed;
    use super::*;

    const NOW: Instant = Instant::ZERO;

    fn handed() -> (Arc<Handed>, Arc<Freed>) {
        let (queue, freed) = by_hand();
        (Handed::by(queue), freed)
    }

    #[test]
    fn a_message_has_left_once_it_was_handed_over_and_let_go_of() {
        let (socket, freed) = handed();
        let departures = Departures::default();
        assert!(departures.follow(FlowId(3), vec![socket.expect(500)], NOW));
        assert!(departures.follow(FlowId(4), vec![socket.expect(300)], NOW));
        assert_eq!(departures.look(NOW), [], "nothing was handed over");
        socket.send(540, 1, || Ok(())).unwrap();
        assert_eq!(departures.look(NOW), [], "the card has it still");
        freed.add(540);
        assert_eq!(departures.look(NOW), [FlowId(3)]);
        socket.send(340, 1, || Ok(())).unwrap();
        freed.add(340);
        assert_eq!(departures.look(NOW), [FlowId(4)]);
    }

    #[test]
    fn a_message_over_two_paths_has_left_once_both_copies_have() {
        let ((one, freed_one), (other, freed_other)) = (handed(), handed());
        let departures = Departures::default();
        departures.follow(FlowId(1), vec![one.expect(100), other.expect(100)], NOW);
        for socket in [&one, &other] {
            socket.send(140, 1, || Ok(())).unwrap();
        }
        freed_one.add(140);
        assert_eq!(departures.look(NOW), []);
        freed_other.add(140);
        assert_eq!(departures.look(NOW), [FlowId(1)]);
    }

    #[test]
    fn what_is_never_handed_over_is_let_go_of_and_does_not_hold_up_the_next() {
        let (socket, freed) = handed();
        let departures = Departures::default();
        departures.follow(FlowId(1), vec![socket.expect(1_000)], NOW);
        let later = NOW + LEFT_MAX + Duration::from_nanos(1);
        assert_eq!(departures.look(NOW + LEFT_MAX), []);
        assert_eq!(departures.look(later), [FlowId(1)]);
        departures.follow(FlowId(2), vec![socket.expect(100)], later);
        socket.send(140, 1, || Ok(())).unwrap();
        freed.add(140);
        assert_eq!(departures.look(later), [FlowId(2)]);
    }
}
