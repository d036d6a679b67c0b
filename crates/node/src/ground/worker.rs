//! A thread that works by itself, round by round: it says how long it rests after each, and may be woken before.

use std::sync::Arc;
use std::thread::{JoinHandle, Thread};
use std::time::Duration;

use tokio::sync::Notify;

use crate::tasks::caught;

/// One round of a worker. Returns how long it rests; `None`: for good.
pub(crate) type Work = Box<dyn FnMut() -> Option<Duration> + Send>;

/// Wakes a worker, or lets it begin its next round at once.
#[derive(Clone, Debug)]
pub(crate) enum Signal {
    Thread(Thread),
    Task(Arc<Notify>),
}

impl Signal {
    pub fn wake(&self) {
        match self {
            Signal::Thread(thread) => thread.unpark(),
            Signal::Task(task) => task.notify_one(),
        }
    }
}

/// A worker. Dropping it leaves it at work.
#[derive(Debug)]
pub(crate) struct Worker {
    signal: Signal,
    /// `None` in virtual time, where a worker is a task.
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    pub fn new(signal: Signal, thread: Option<JoinHandle<()>>) -> Worker {
        Worker { signal, thread }
    }

    pub fn signal(&self) -> &Signal {
        &self.signal
    }

    /// Wakes it, and waits until it has rested for good. In virtual time that comes after this: its last round is then
    /// the caller's to do.
    pub fn join(self) {
        self.signal.wake();
        if let Some(thread) = self.thread {
            let _ = thread.join();
        }
    }
}

/// The same work, with its panics reported; `what` names it. After one, it rests for good.
pub(crate) fn watched(
    what: &'static str,
    on_panic: impl FnOnce(&str) + Send + 'static,
    mut work: impl FnMut() -> Option<Duration> + Send + 'static,
) -> Work {
    let mut on_panic = Some(on_panic);
    Box::new(move || {
        let mut rest = None;
        let panicked = caught(what, || rest = work());
        if let (Some(why), Some(on_panic)) = (panicked, on_panic.take()) {
            on_panic(&why);
        }
        rest
    })
}
