//! Threads that run tasks: for the QUIC of links, of bulk, and of the operator.

use std::future::Future;
use std::pin::Pin;
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::runtime::{EnterGuard, Handle, Runtime};

use crate::sync::lock;

/// A task.
pub(crate) type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Starts tasks.
pub(crate) trait Spawn: std::fmt::Debug + Send + Sync {
    fn spawn(&self, task: Task);
    /// Makes the calling thread count as one that runs the tasks, until the returned guard is dropped.
    fn enter(&self) -> Option<EnterGuard<'_>>;
}

impl Spawn for Handle {
    fn spawn(&self, task: Task) {
        Handle::spawn(self, task);
    }

    fn enter(&self) -> Option<EnterGuard<'_>> {
        Some(Handle::enter(self))
    }
}

/// Some threads. When dropped, they end without blocking, so that this works in async code.
#[derive(Debug)]
pub(crate) struct Threads {
    spawn: Arc<dyn Spawn>,
    /// Taken out when the threads end; `None` in virtual time.
    runtime: Mutex<Option<Runtime>>,
}

impl Threads {
    pub fn new(spawn: Arc<dyn Spawn>, runtime: Option<Runtime>) -> Threads {
        let runtime = Mutex::new(runtime);
        Threads { spawn, runtime }
    }

    /// Returns the means to start tasks on the threads.
    pub fn tasks(&self) -> &Arc<dyn Spawn> {
        &self.spawn
    }

    /// Runs `last` on the threads, and ends them. Blocks until `last` is done, for at most `last_max`, and outside
    /// async code for at most `wait` while tasks are in progress. In virtual time it does not block.
    pub fn end(&self, last: impl Future<Output = ()> + Send + 'static, last_max: Duration, wait: Duration) {
        let (done, waited) = mpsc::sync_channel(1);
        self.spawn.spawn(Box::pin(async move {
            last.await;
            let _ = done.send(());
        }));
        let Some(runtime) = lock(&self.runtime).take() else {
            return;
        };
        let _ = waited.recv_timeout(last_max);
        if Handle::try_current().is_ok() {
            runtime.shutdown_background();
        } else {
            runtime.shutdown_timeout(wait);
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        if let Some(runtime) = lock(&self.runtime).take() {
            runtime.shutdown_background();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ground::{Ground, Linux};
    use std::sync::atomic::{AtomicU32, Ordering};

    const WAIT: Duration = Duration::from_secs(1);

    #[test]
    fn they_do_the_last_and_end_in_async_code_too() {
        static DONE: AtomicU32 = AtomicU32::new(0);
        let last = || async { _ = DONE.fetch_add(1, Ordering::Relaxed) };
        let outer = Linux.threads(1, "outer", || ()).unwrap();
        let outside = tokio::runtime::Builder::new_current_thread().build().unwrap();
        outside.block_on(async { drop(Linux.threads(1, "inner", || ()).unwrap()) });
        outside.block_on(async {
            Linux.threads(1, "inner", || ()).unwrap().end(last(), WAIT, WAIT);
        });
        outer.end(last(), WAIT, WAIT);
        outer.end(last(), WAIT, WAIT);
        assert_eq!(DONE.load(Ordering::Relaxed), 2, "the third has no threads left");
    }
}
