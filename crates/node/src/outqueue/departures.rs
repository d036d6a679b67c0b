//! Follows control messages until the card has freed them, although a transport hands them over later.
//!
//! QUIC takes a message at once and hands it to the socket a moment later, sealed and perhaps in parts. So a message is
//! tracked by the bytes of its socket. It has left once the socket has handed over what was waiting before it and its
//! own bytes, and the card has freed those ([`Handed`]). Acknowledgements in between make a message seem to leave one
//! small datagram early. A message that is never handed over, because the transport drops it, counts as left after
//! [`LEFT_MAX`].
//!
//! Most messages have left when the socket has handed them over, or soon after. So the thread that hands over checks
//! first. Only while that does not suffice does another thread check again and again; it sleeps otherwise
//! ([`Departures`]).

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
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
const REST: StdDuration = StdDuration::from_millis(100);
/// The maximum number of tracked sends; more than any queue below control holds.
const SENDS_MAX: usize = 1_024;
/// The maximum number of tracked messages.
const MESSAGES_MAX: usize = 1_024;

/// Told each time that a socket has handed something over.
type OnHanded = Arc<dyn Fn() + Send + Sync>;

/// The payload bytes that one socket has handed over, and how many of them have left.
pub(crate) struct Handed {
    state: Mutex<State>,
    on_handed: OnceLock<OnHanded>,
}

impl fmt::Debug for Handed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Handed").field(&self.state).finish()
    }
}

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
        Arc::new(Handed {
            state: Mutex::new(State {
                queue,
                handed: 0,
                gone: 0,
                owed: 0,
                sends: VecDeque::new(),
            }),
            on_handed: OnceLock::new(),
        })
    }

    /// Sends `datagrams` datagrams, `bytes` in total, through `hand_over`.
    pub fn send(&self, bytes: usize, datagrams: usize, hand_over: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let mut state = lock(&self.state);
        let mark = state.queue.send(bytes, datagrams, hand_over)?;
        state.handed += bytes as u64;
        let handed = state.handed;
        if state.sends.len() >= SENDS_MAX {
            // The next send covers it.
            state.sends.pop_front();
        }
        state.sends.push_back((mark, handed));
        let left = state.queue.left_at_last();
        state.on_left(left);
        drop(state);
        if let Some(on_handed) = self.on_handed.get() {
            on_handed();
        }
        Ok(())
    }

    /// Returns the target of a message of this many bytes that is about to be handed over. None of it may have left
    /// yet.
    pub fn expect(self: &Arc<Self>, bytes: usize) -> Target {
        let mut state = lock(&self.state);
        state.owed = state.owed.max(state.handed) + bytes as u64;
        Target {
            socket: self.clone(),
            bytes: state.owed,
        }
    }

    /// Returns whether the card has freed this many bytes.
    fn has_let_go_of(&self, bytes: u64) -> bool {
        let mut state = lock(&self.state);
        if state.gone < bytes {
            let left = state.queue.left();
            state.on_left(left);
        }
        state.gone >= bytes
    }

    /// Releases the socket.
    pub fn close(&self) {
        lock(&self.state).queue.close();
    }

    /// Stops expecting bytes that are not coming.
    fn forget(&self) {
        let mut state = lock(&self.state);
        state.owed = state.handed;
        // Frames that the emulator has lost before its card are lost to the count, too.
        let missing = state.handed.saturating_sub(state.gone);
        state.queue.give_up(missing);
    }
}

impl State {
    /// Takes note that everything up to this mark has left.
    fn on_left(&mut self, left: u64) {
        while let Some((_, handed)) = self.sends.front().copied().filter(|(mark, _)| *mark <= left) {
            self.gone = handed;
            self.sends.pop_front();
        }
    }
}

impl Target {
    /// Returns whether the message has left.
    pub fn is_reached(&self) -> bool {
        self.socket.has_let_go_of(self.bytes)
    }

    /// Returns whether it had left when the socket handed over its last bytes.
    fn was_reached(&self) -> bool {
        lock(&self.socket.state).gone >= self.bytes
    }

    /// Returns whether the socket has handed over all of it.
    fn is_handed(&self) -> bool {
        lock(&self.socket.state).handed >= self.bytes
    }
}

/// The messages in progress.
pub(crate) struct Departures {
    messages: Mutex<VecDeque<Message>>,
    /// Told the flow of each message that has left.
    on_left: Box<dyn Fn(FlowId) + Send + Sync>,
    on_handed: OnHanded,
    /// Wakes the thread that checks, once there is one.
    looker: OnceLock<Signal>,
    /// Whether that thread checks soon. Changed while the messages are locked.
    looks: AtomicBool,
}

impl fmt::Debug for Departures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Departures").field(&self.messages).finish()
    }
}

#[derive(Debug)]
struct Message {
    flow: FlowId,
    /// One per copy.
    targets: Vec<Target>,
    since: Instant,
}

impl Departures {
    /// Tells `on_left` the flow of each message that has left, in their order of sending.
    pub fn new(on_left: impl Fn(FlowId) + Send + Sync + 'static) -> Arc<Departures> {
        Arc::new_cyclic(|departures: &Weak<Departures>| {
            let departures = departures.clone();
            Departures {
                messages: Mutex::default(),
                on_left: Box::new(on_left),
                on_handed: Arc::new(move || {
                    if let Some(departures) = departures.upgrade() {
                        departures.on_handed();
                    }
                }),
                looker: OnceLock::new(),
                looks: AtomicBool::new(false),
            }
        })
    }

    /// Follows a flow's message, which is on its way to these targets since `since`. Returns false if too many are
    /// already tracked.
    pub fn follow(&self, flow: FlowId, targets: Vec<Target>, since: Instant) -> bool {
        let mut messages = lock(&self.messages);
        if messages.len() >= MESSAGES_MAX {
            return false;
        }
        for target in &targets {
            target.socket.on_handed.get_or_init(|| self.on_handed.clone());
        }
        messages.push_back(Message { flow, targets, since });
        drop(messages);
        // The socket may have been faster.
        self.on_handed();
        true
    }

    /// Handles that a socket has handed datagrams over. While messages in its card are on their way, the thread checks.
    fn on_handed(&self) {
        self.retain(|message| !message.targets.iter().all(Target::was_reached));
        let messages = lock(&self.messages);
        let in_card = |message: &Message| message.targets.iter().any(Target::is_handed);
        if messages.iter().any(in_card) && !self.looks.swap(true, Ordering::Relaxed) {
            if let Some(looker) = self.looker.get() {
                looker.wake();
            }
        }
    }

    /// Checks once. Returns the time until the next check.
    pub fn round(&self, now: Instant) -> StdDuration {
        self.retain(|message| {
            let gone = message.targets.iter().all(Target::is_reached);
            let overdue = now.since(message.since) > LEFT_MAX;
            if overdue && !gone {
                message.targets.iter().for_each(|target| target.socket.forget());
            }
            !(overdue || gone)
        });
        let messages = lock(&self.messages);
        let looks = !messages.is_empty();
        self.looks.store(looks, Ordering::Relaxed);
        if looks {
            LOOK_EVERY
        } else {
            REST
        }
    }

    /// Forgets the other messages, and tells that they have left.
    fn retain(&self, on_their_way: impl Fn(&Message) -> bool) {
        let mut left = Vec::new();
        lock(&self.messages).retain(|message| {
            let stays = on_their_way(message);
            if !stays {
                left.push(message.flow);
            }
            stays
        });
        left.into_iter().for_each(&self.on_left);
    }

    /// Sets the thread that checks the messages from now on.
    pub fn looked_at_by(&self, looker: Signal) {
        // This is set only here.
        let _ = self.looker.set(looker);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::super::tests::by_hand;
    use super::super::Freed;
    use super::*;

    const NOW: Instant = Instant::ZERO;

    fn handed() -> (Arc<Handed>, Arc<Freed>) {
        let (queue, freed) = by_hand();
        (Handed::by(queue), freed)
    }

    /// Returns departures, and the flows that have left since this was last called.
    fn departures() -> (Arc<Departures>, impl Fn() -> Vec<FlowId>) {
        let (told, left) = channel();
        let told = Mutex::new(told);
        let departures = Departures::new(move |flow| lock(&told).send(flow).unwrap());
        (departures, move || left.try_iter().collect())
    }

    #[test]
    fn a_message_has_left_once_it_was_handed_over_and_let_go_of() {
        let (socket, freed) = handed();
        let (departures, left) = departures();
        assert!(departures.follow(FlowId(3), vec![socket.expect(500)], NOW));
        assert!(departures.follow(FlowId(4), vec![socket.expect(300)], NOW));
        departures.round(NOW);
        assert_eq!(left(), [], "nothing was handed over");
        socket.send(540, 1, || Ok(())).unwrap();
        departures.round(NOW);
        assert_eq!(left(), [], "the card has it still");
        freed.add(540);
        assert_eq!(departures.round(NOW), LOOK_EVERY);
        assert_eq!(left(), [FlowId(3)]);
        socket.send(340, 1, || Ok(())).unwrap();
        freed.add(340);
        assert_eq!(departures.round(NOW), REST);
        assert_eq!(left(), [FlowId(4)]);
    }

    #[test]
    fn the_thread_checks_only_if_the_card_holds_a_message() {
        let (socket, freed) = handed();
        let (departures, left) = departures();
        let looks = || departures.looks.load(Ordering::Relaxed);
        departures.follow(FlowId(1), vec![socket.expect(500)], NOW);
        assert!(!looks(), "nothing was handed over");
        let lets_go = |bytes| {
            freed.add(bytes);
            Ok(())
        };
        socket.send(540, 1, || lets_go(540)).unwrap();
        assert_eq!(left(), [FlowId(1)], "without the thread");
        // The socket is faster than the one who follows.
        let target = socket.expect(500);
        socket.send(540, 1, || lets_go(540)).unwrap();
        departures.follow(FlowId(2), vec![target], NOW);
        assert_eq!(left(), [FlowId(2)]);
        assert!(!looks());
        departures.follow(FlowId(3), vec![socket.expect(500)], NOW);
        socket.send(540, 1, || Ok(())).unwrap();
        assert!(looks() && left().is_empty(), "the card holds it");
        lets_go(540).unwrap();
        assert_eq!(departures.round(NOW), REST);
        assert!(!looks() && left() == [FlowId(3)]);
    }

    #[test]
    fn a_message_over_two_paths_has_left_once_both_copies_have() {
        let ((one, freed_one), (other, freed_other)) = (handed(), handed());
        let (departures, left) = departures();
        departures.follow(FlowId(1), vec![one.expect(100), other.expect(100)], NOW);
        for socket in [&one, &other] {
            socket.send(140, 1, || Ok(())).unwrap();
        }
        freed_one.add(140);
        departures.round(NOW);
        assert_eq!(left(), []);
        freed_other.add(140);
        departures.round(NOW);
        assert_eq!(left(), [FlowId(1)]);
    }

    #[test]
    fn what_is_never_handed_over_is_let_go_of_and_does_not_hold_up_the_next() {
        let (socket, freed) = handed();
        let (departures, left) = departures();
        departures.follow(FlowId(1), vec![socket.expect(1_000)], NOW);
        let later = NOW + LEFT_MAX + Duration::from_nanos(1);
        departures.round(NOW + LEFT_MAX);
        assert_eq!(left(), []);
        departures.round(later);
        assert_eq!(left(), [FlowId(1)]);
        departures.follow(FlowId(2), vec![socket.expect(100)], later);
        socket.send(140, 1, || Ok(())).unwrap();
        freed.add(140);
        departures.round(later);
        assert_eq!(left(), [FlowId(2)]);
    }
}
