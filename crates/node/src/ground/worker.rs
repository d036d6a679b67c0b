//! A thread that works in rounds: after each it says how long it rests, and it may be woken earlier.

use std::sync::Arc;
use std::thread::{JoinHandle, Thread};
use std::time::Duration;

use tokio::sync::Notify;

use crate::tasks::caught;

/// One round of a worker. Returns how long it rests; `None`: forever.
pub(crate) type Work = Box<dyn FnMut() -> Option<Duration> + Send>;

/// Wakes a worker, or makes it begin its next round at once.
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

/// A worker. It continues to work after this is dropped.
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

    /// Wakes the worker, and waits until it rests forever. In virtual time this does not wait, and the caller must do
    /// the last round.
    pub fn join(self) {
        self.signal.wake();
        if let Some(thread) = self.thread {
            let _ = thread.join();
        }
    }
}

/// Returns the same work, with panics reported under the name `what`. After a panic, it rests forever.
pub(crate) fn watched(
    what: &'static str,
    on_panic: impl FnOnce(&str) + Send + 'static,
    mut work: impl FnMut() -> Option<Duration> + Send + 'static,
) -> Work {
    let mut on_panic = Some(on_panic);
    Box::new(move || {
        let mut rest = None;
        let panicked = caught(what, || rest = work());
        if let Some(why) = panicked {
            on_panic.take().into_iter().for_each(|on_panic| on_panic(&why));
        }
        rest
    })
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn a_panic_is_reported_in_whichever_round_it_comes() {
        let (told, reported) = channel();
        let mut rounds = 0;
        let work = move || {
            rounds += 1;
            assert!(rounds < 3, "too many rounds");
            Some(Duration::ZERO)
        };
        let mut work = watched("a worker", move |why| told.send(why.to_owned()).unwrap(), work);
        assert_eq!(
            [work(), work(), work()],
            [Some(Duration::ZERO), Some(Duration::ZERO), None]
        );
        let why = reported.try_recv().unwrap();
        assert!(why.contains("a worker panicked: too many rounds"), "{why}");
    }
}
