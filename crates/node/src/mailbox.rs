//! Holds messages that have arrived and were not taken yet, for threads and tasks that wait for them.
//!
//! Putting a message in never blocks. The user of a mailbox bounds it: each message replaces an older one, or the user
//! limits the messages in other ways. Left out: closing. A receiver waits until its own timeout, even after the node is
//! gone.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use crate::sync::lock;

/// A queue of messages. Each goes to one receiver.
#[derive(Debug)]
pub(crate) struct Mailbox<T> {
    waiting: Mutex<VecDeque<T>>,
    came: Condvar,
    came_async: Notify,
}

impl<T> Mailbox<T> {
    pub fn new() -> Self {
        Mailbox {
            waiting: Mutex::default(),
            came: Condvar::new(),
            came_async: Notify::new(),
        }
    }

    /// Puts a message in place of the one that it `replaces`, or else behind all others.
    pub fn put(&self, message: T, replaces: impl Fn(&T) -> bool) {
        let mut waiting = lock(&self.waiting);
        match waiting.iter_mut().find(|waiting| replaces(waiting)) {
            Some(older) => *older = message,
            None => waiting.push_back(message),
        }
        drop(waiting);
        self.came.notify_one();
        self.came_async.notify_one();
    }

    /// Puts a message before all others.
    pub fn put_first(&self, message: T) {
        lock(&self.waiting).push_front(message);
        self.came.notify_one();
        self.came_async.notify_one();
    }

    /// Returns whether no message waits.
    pub fn is_empty(&self) -> bool {
        lock(&self.waiting).is_empty()
    }

    /// Takes the first message, if any.
    pub fn try_recv(&self) -> Option<T> {
        lock(&self.waiting).pop_front()
    }

    /// Takes the first message. Waits for one until `timeout` has passed; without a timeout, forever.
    pub fn recv(&self, timeout: Option<Duration>) -> Option<T> {
        let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut waiting = lock(&self.waiting);
        loop {
            if let Some(message) = waiting.pop_front() {
                return Some(message);
            }
            waiting = match until {
                None => self.came.wait(waiting).unwrap_or_else(PoisonError::into_inner),
                Some(until) => {
                    let left = until.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return None;
                    }
                    let waited = self.came.wait_timeout(waiting, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    /// Takes the first message. Waits for one.
    pub async fn next(&self) -> T {
        loop {
            if let Some(message) = self.try_recv() {
                // One notification is kept, however many messages arrived.
                if !lock(&self.waiting).is_empty() {
                    self.came_async.notify_one();
                }
                return message;
            }
            self.came_async.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    const SOON: Duration = Duration::from_secs(60);

    #[test]
    fn a_newer_message_takes_the_place_of_its_older_one() {
        let mailbox = Mailbox::new();
        for message in [(1, "a"), (2, "b"), (1, "c")] {
            mailbox.put(message, |older| older.0 == message.0);
        }
        assert_eq!(mailbox.try_recv(), Some((1, "c")));
        assert_eq!(mailbox.recv(None), Some((2, "b")));
        assert_eq!(mailbox.recv(Some(Duration::from_millis(1))), None);
    }

    #[test]
    fn each_message_wakes_a_receiver() {
        let mailbox = Mailbox::new();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let two = async { tokio::join!(mailbox.next(), mailbox.next()) };
        let mut came = thread::scope(|scope| {
            let blocked = scope.spawn(|| mailbox.recv(Some(SOON)));
            let awaiting = scope.spawn(|| runtime.block_on(two));
            (0..3).for_each(|message| mailbox.put(message, |_| false));
            let (a, b) = awaiting.join().unwrap();
            [a, b, blocked.join().unwrap().unwrap()]
        });
        came.sort_unstable();
        assert_eq!(came, [0, 1, 2]);
    }
}
