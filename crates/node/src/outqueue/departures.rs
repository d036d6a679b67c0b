//! When control messages have left, although a transport hands them over later: follows them until the card has freed
//! them.
//!
//! QUIC takes a message at once and hands it to the socket a moment later, sealed and perhaps in parts. So a message is
//! tracked by the bytes of its socket. It has left once the socket has handed over what was waiting before it and its
//! own bytes, and the card has freed those ([`Handed`]). Acknowledgements in between make a message seem to leave one
//! small datagram early. One that is never handed over, because the transport drops it, counts as left after
//! [`LEFT_MAX`].
//!
//! A thread checks while a message is in progress and sleeps otherwise ([`Departures`]).

use std::collections::VecDeque;
use std::io;
use std::net::UdpSocket;
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::Thread;
use std::time::{Duration, Instant};

use coorp_core::robot::LOOK_HELD;
use coorp_core::FlowId;

use super::{Freed, OutQueue};
use crate::sync::lock;

/// A message counts as left after this time, whatever the card reports.
const LEFT_MAX: Duration = Duration::from_millis(100);
/// The interval of checks while a message is in progress, and otherwise.
const LOOK_EVERY: Duration = Duration::from_nanos(LOOK_HELD.as_nanos());
const REST: Duration = Duration::from_millis(200);
/// The maximum number of tracked sends; more than any queue below control holds.
const SENDS_MAX: usize = 1_024;
/// The maximum number of tracked messages.
const MESSAGES_MAX: usize = 1_024;

/// What one socket has handed over, and how much of it has left, bytes of payload.
#[derive(Debug)]
pub(crate) struct Handed(Mutex<State>);

#[derive(Debug)]
struct State {
    queue: OutQueue,
    handed: u64,
    gone: u64,
    /// What the messages so far will have handed over.
    owed: u64,
    /// The mark of each send, and what had been handed over with it.
    sends: VecDeque<(u64, u64)>,
}

/// What a socket's card must have freed for a message to have left.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub socket: Arc<Handed>,
    bytes: u64,
}

impl Handed {
    pub fn of(socket: &UdpSocket, emulated: Option<Arc<Freed>>) -> io::Result<Arc<Handed>> {
        Ok(Arc::new(Handed(Mutex::new(State {
            queue: OutQueue::of(socket, emulated)?,
            handed: 0,
            gone: 0,
            owed: 0,
            sends: VecDeque::new(),
        }))))
    }

    /// Sends `datagrams` datagrams, `bytes` in total, through `hand_over`.
    pub fn send(&self, bytes: usize, datagrams: usize, hand_over: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let mut state = lock(&self.0);
        let mark = state.queue.send(bytes, datagrams, hand_over)?;
        state.handed += bytes as u64;
        let handed = state.handed;
        if state.sends.len() >= SENDS_MAX {
            // The next one covers it.
            state.sends.pop_front();
        }
        state.sends.push_back((mark, handed));
        Ok(())
    }

    /// A message of this many bytes is about to be handed over. Returns its target; none of it may have left yet.
    pub fn expect(self: &Arc<Self>, bytes: usize) -> Target {
        let mut state = lock(&self.0);
        state.owed = state.owed.max(state.handed) + bytes as u64;
        Target {
            socket: self.clone(),
            bytes: state.owed,
        }
    }

    /// Returns whether the card has freed this much.
    fn has_let_go_of(&self, bytes: u64) -> bool {
        let mut state = lock(&self.0);
        let left = state.queue.left();
        while let Some((_, handed)) = state.sends.front().copied().filter(|(mark, _)| *mark <= left) {
            state.gone = handed;
            state.sends.pop_front();
        }
        state.gone >= bytes
    }

    /// Gives the socket up.
    pub fn close(&self) {
        lock(&self.0).queue.close();
    }

    /// The expected bytes are not coming.
    fn forget(&self) {
        let mut state = lock(&self.0);
        state.owed = state.handed;
        // Frames that the emulator has lost before its card are lost to the count, too.
        let missing = state.handed.saturating_sub(state.gone);
        state.queue.give_up(missing);
    }
}

impl Target {
    /// Returns whether the message has left by this socket.
    pub fn is_reached(&self) -> bool {
        self.socket.has_let_go_of(self.bytes)
    }
}

/// The messages in progress.
#[derive(Debug, Default)]
pub(crate) struct Departures {
    messages: Mutex<VecDeque<Message>>,
    thread: OnceLock<Thread>,
}

#[derive(Debug)]
struct Message {
    flow: FlowId,
    /// One per copy.
    targets: Vec<Target>,
    since: Instant,
}

impl Departures {
    /// A message of a flow is on its way to these targets. Returns false if too many are tracked already.
    pub fn follow(&self, flow: FlowId, targets: Vec<Target>) -> bool {
        let mut messages = lock(&self.messages);
        if messages.len() >= MESSAGES_MAX {
            return false;
        }
        let since = Instant::now();
        messages.push_back(Message { flow, targets, since });
        drop(messages);
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
        true
    }

    /// Returns the flows of messages that have left since the last check, in their order of sending.
    fn look(&self) -> Vec<FlowId> {
        let mut left = Vec::new();
        lock(&self.messages).retain(|message| {
            let overdue = message.since.elapsed() > LEFT_MAX;
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

    /// Reports what has left, from the calling thread, until `on_left` returns false. Some calls have no news.
    pub fn run(&self, on_left: impl Fn(&[FlowId]) -> bool) {
        let _ = self.thread.set(std::thread::current());
        loop {
            let left = self.look();
            if !on_left(&left) {
                return;
            }
            let rest = if lock(&self.messages).is_empty() {
                REST
            } else {
                LOOK_EVERY
            };
            std::thread::park_timeout(rest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn by_hand() -> (Arc<Handed>, Arc<Freed>) {
        let freed = Arc::new(Freed::default());
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        (Handed::of(&socket, Some(freed.clone())).unwrap(), freed)
    }

    #[test]
    fn a_message_has_left_once_it_was_handed_over_and_let_go_of() {
        let (socket, freed) = by_hand();
        let departures = Departures::default();
        assert!(departures.follow(FlowId(3), vec![socket.expect(500)]));
        assert!(departures.follow(FlowId(4), vec![socket.expect(300)]));
        assert_eq!(departures.look(), [], "nothing was handed over");
        socket.send(540, 1, || Ok(())).unwrap();
        assert_eq!(departures.look(), [], "the card has it still");
        freed.add(540);
        assert_eq!(departures.look(), [FlowId(3)]);
        socket.send(340, 1, || Ok(())).unwrap();
        freed.add(340);
        assert_eq!(departures.look(), [FlowId(4)]);
    }

    #[test]
    fn a_message_over_two_paths_has_left_once_both_copies_have() {
        let ((one, freed_one), (other, freed_other)) = (by_hand(), by_hand());
        let departures = Departures::default();
        departures.follow(FlowId(1), vec![one.expect(100), other.expect(100)]);
        for socket in [&one, &other] {
            socket.send(140, 1, || Ok(())).unwrap();
        }
        freed_one.add(140);
        assert_eq!(departures.look(), []);
        freed_other.add(140);
        assert_eq!(departures.look(), [FlowId(1)]);
    }

    #[test]
    fn what_is_never_handed_over_is_let_go_of_and_does_not_hold_up_the_next() {
        let (socket, freed) = by_hand();
        let departures = Departures::default();
        departures.follow(FlowId(1), vec![socket.expect(1_000)]);
        std::thread::sleep(2 * LEFT_MAX);
        assert_eq!(departures.look(), [FlowId(1)]);
        departures.follow(FlowId(2), vec![socket.expect(100)]);
        socket.send(140, 1, || Ok(())).unwrap();
        freed.add(140);
        assert_eq!(departures.look(), [FlowId(2)]);
    }
}
