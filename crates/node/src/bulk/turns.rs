//! Turns: with several receivers, one at a time is sent to.
//!
//! An aggregate on WiFi goes to one station. If datagrams alternate between stations, each gets only a few, so a queue
//! that is kept short makes short aggregates: four receivers at once got a third of what one gets. So each receiver has
//! the path to itself for [`TURN`], or until there is nothing more to send to it. The others make no packets, as
//! without a permit. Left out: unequal shares.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::sync::lock;

/// How long one receiver is sent to while others wait.
const TURN: Duration = Duration::from_millis(50);
/// The interval at which sending is checked.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(5);
/// The number of checks without sending that end a turn: a window of the gate is hardly longer.
const IDLE_LOOKS: u32 = 2;

/// The sending state of one connection. It has the turn by itself until it joins others.
#[derive(Debug)]
pub(crate) struct Turn {
    has: AtomicBool,
    sent: AtomicU64,
}

impl Default for Turn {
    fn default() -> Self {
        Turn {
            has: AtomicBool::new(true),
            sent: AtomicU64::new(0),
        }
    }
}

impl Turn {
    /// Returns whether it may send now.
    pub fn has(&self) -> bool {
        self.has.load(Ordering::Acquire)
    }

    /// It has sent a packet.
    pub fn on_sent(&self) {
        self.sent.fetch_add(1, Ordering::Relaxed);
    }
}

/// The connections with something to send over one path; the first has the turn.
#[derive(Debug)]
pub(super) struct Turns<C>(Mutex<Queue<C>>);

#[derive(Debug)]
struct Queue<C> {
    senders: VecDeque<(Arc<Turn>, C)>,
    /// Whether somebody calls [`Turns::look`].
    watched: bool,
    looks: u32,
    idle: u32,
    sent: u64,
}

/// The result of a check.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Look<C> {
    /// No others are left to take turns with: stop checking until [`Turns::join`] requests it.
    Alone,
    /// The same connection continues.
    GoesOn,
    /// This connection's turn begins and must be announced.
    Begins(C),
}

impl<C: Clone> Turns<C> {
    pub fn new() -> Self {
        Turns(Mutex::new(Queue {
            senders: VecDeque::new(),
            watched: false,
            looks: 0,
            idle: 0,
            sent: 0,
        }))
    }

    /// A connection joins behind the others. Returns whether checks have to begin.
    #[must_use]
    pub fn join(&self, turn: &Arc<Turn>, connection: C) -> bool {
        let mut queue = lock(&self.0);
        turn.has.store(false, Ordering::Release);
        queue.senders.push_back((turn.clone(), connection));
        if queue.senders.len() == 1 {
            queue.begin();
            return false;
        }
        !std::mem::replace(&mut queue.watched, true)
    }

    /// Returns the connection that has the turn.
    pub fn first(&self) -> Option<C> {
        lock(&self.0).senders.front().map(|(_, connection)| connection.clone())
    }

    /// A connection has no more to send. Returns the one whose turn begins, if it is another.
    pub fn leave(&self, turn: &Arc<Turn>) -> Option<C> {
        let mut queue = lock(&self.0);
        let had = queue.senders.front().is_some_and(|(first, _)| Arc::ptr_eq(first, turn));
        queue.senders.retain(|(sender, _)| !Arc::ptr_eq(sender, turn));
        turn.has.store(false, Ordering::Release);
        had.then(|| queue.begin()).flatten()
    }

    /// Call this every [`LOOK_EVERY`] once [`Turns::join`] requests it, until no others are left to take turns with.
    pub fn look(&self) -> Look<C> {
        let mut queue = lock(&self.0);
        if queue.senders.len() < 2 {
            queue.watched = false;
            return Look::Alone;
        }
        let sent = queue.senders[0].0.sent.load(Ordering::Relaxed);
        queue.looks += 1;
        queue.idle = if sent == queue.sent { queue.idle + 1 } else { 0 };
        queue.sent = sent;
        let over = LOOK_EVERY * queue.looks >= TURN || queue.idle >= IDLE_LOOKS;
        if !over {
            return Look::GoesOn;
        }
        queue.senders[0].0.has.store(false, Ordering::Release);
        queue.senders.rotate_left(1);
        queue.begin().map_or(Look::GoesOn, Look::Begins)
    }
}

impl<C: Clone> Queue<C> {
    fn begin(&mut self) -> Option<C> {
        let (turn, connection) = self.senders.front()?;
        turn.has.store(true, Ordering::Release);
        (self.looks, self.idle, self.sent) = (0, 0, turn.sent.load(Ordering::Relaxed));
        Some(connection.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turns(names: &[&'static str]) -> (Turns<&'static str>, Vec<Arc<Turn>>) {
        let turns = Turns::new();
        let senders: Vec<Arc<Turn>> = names.iter().map(|_| Arc::default()).collect();
        let asked = senders
            .iter()
            .zip(names)
            .map(|(sender, name)| turns.join(sender, *name));
        let places = asked.enumerate().filter(|(_, asked)| *asked).map(|(place, _)| place);
        assert_eq!(
            places.collect::<Vec<_>>(),
            [1],
            "the second one needs looks, and once is enough"
        );
        (turns, senders)
    }

    fn having(senders: &[Arc<Turn>]) -> Vec<usize> {
        (0..senders.len()).filter(|place| senders[*place].has()).collect()
    }

    #[test]
    fn each_has_the_path_to_itself_for_as_long() {
        let (turns, senders) = turns(&["a", "b", "c"]);
        let mut order = Vec::new();
        for _ in 0..30 {
            assert_eq!(having(&senders).len(), 1);
            senders[having(&senders)[0]].on_sent();
            if let Look::Begins(name) = turns.look() {
                order.push(name);
            }
        }
        assert_eq!(order, ["b", "c", "a"]);
    }

    #[test]
    fn who_sends_nothing_makes_room_and_who_is_alone_keeps_it() {
        let (turns, senders) = turns(&["a", "b"]);
        assert_eq!((turns.look(), turns.look()), (Look::GoesOn, Look::Begins("b")));
        assert_eq!(having(&senders), [1]);
        assert_eq!(turns.leave(&senders[0]), None);
        assert_eq!((turns.look(), turns.look()), (Look::Alone, Look::Alone));
        assert_eq!((turns.first(), having(&senders)), (Some("b"), vec![1]));
        assert!(turns.join(&senders[0], "a"), "looks begin anew");
        assert_eq!(turns.leave(&senders[1]), Some("a"));
        assert_eq!(turns.leave(&senders[0]), None);
        assert_eq!((turns.look(), turns.first()), (Look::Alone, None));
        assert_eq!(having(&senders), [0; 0]);
    }

    #[test]
    fn who_leaves_hands_on() {
        let (turns, senders) = turns(&["a", "b", "c"]);
        assert_eq!(turns.leave(&senders[0]), Some("b"));
        assert_eq!(turns.leave(&senders[0]), None);
        assert_eq!(having(&senders), [1]);
    }
}
