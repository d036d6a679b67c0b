//! Control messages on their way to QUIC, which takes them on its own thread.
//!
//! quinn wakes that thread while it still holds the connection's lock. The thread runs ahead of all others, so it would
//! preempt a caller there, wait for the lock, and wait again for the caller to continue: two switches more for each
//! message. So callers leave messages here instead.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use tokio::sync::Notify;

use super::up::{Message, Up};
use crate::sync::lock;
use crate::tasks::Tasks;

/// The maximum number of messages that wait. QUIC takes them at once, unless its thread gets no core.
const WAITING_MAX: usize = 1_024;

/// The messages that wait.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    waiting: Mutex<VecDeque<(Arc<Up>, Message)>>,
    filled: Notify,
}

impl Outbox {
    /// Adds a message, in place of the oldest if there are too many. Nothing is sent before [`Outbox::hurry`].
    pub fn add(&self, up: Arc<Up>, message: Message) {
        let mut waiting = lock(&self.waiting);
        if waiting.len() == WAITING_MAX {
            waiting.pop_front();
            tracing::trace!("a control message was not sent: {WAITING_MAX} newer ones wait");
        }
        waiting.push_back((up, message));
    }

    /// Makes QUIC's thread send what was added.
    pub fn hurry(&self) {
        if !lock(&self.waiting).is_empty() {
            self.filled.notify_one();
        }
    }

    /// Sends what is added, for as long as QUIC's threads run.
    pub async fn run(self: Arc<Self>, on: Tasks) {
        loop {
            self.filled.notified().await;
            self.send(&on);
        }
    }

    /// Sends everything that waits.
    pub fn send(&self, on: &Tasks) {
        // In a call of its own, which lets go of the lock: what is added meanwhile must not wait for it.
        let next = || lock(&self.waiting).pop_front();
        while let Some((up, message)) = next() {
            up.send(on, message);
        }
    }
}
