//! A separate runtime: for control's QUIC, for bulk's, and for what Zenoh cannot do in a caller's.

use std::future::Future;
use std::io;
use std::sync::Mutex;
use std::time::Duration;

use tokio::runtime::{Builder, Handle, Runtime, RuntimeFlavor};

use crate::sync::lock;

/// Some threads. When dropped they end by themselves, without blocking, so that this works in async code.
#[derive(Debug)]
pub(crate) struct OwnRuntime {
    handle: Handle,
    /// Taken when they end.
    runtime: Mutex<Option<Runtime>>,
}

impl OwnRuntime {
    /// Starts `count` threads of this name, each of which begins with `first`.
    pub fn start(count: usize, name: &str, first: fn()) -> io::Result<OwnRuntime> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(count)
            .thread_name(name)
            .on_thread_start(first)
            .enable_all()
            .build()?;
        Ok(OwnRuntime {
            handle: runtime.handle().clone(),
            runtime: Mutex::new(Some(runtime)),
        })
    }

    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Ends them. Outside async code it waits for `last`, and then briefly for tasks in progress.
    pub fn end(&self, last: impl Future<Output = ()>, wait: Duration) {
        let Some(runtime) = lock(&self.runtime).take() else {
            return;
        };
        if Handle::try_current().is_ok() {
            runtime.shutdown_background();
        } else {
            runtime.block_on(last);
            runtime.shutdown_timeout(wait);
        }
    }
}

impl Drop for OwnRuntime {
    fn drop(&mut self) {
        if let Some(runtime) = lock(&self.runtime).take() {
            runtime.shutdown_background();
        }
    }
}

/// Runs work in which Zenoh blocks: opening sessions, closing them, querying their links. Under tokio's current-thread
/// runtime, which `#[tokio::test]` uses, Zenoh would panic, so a plain thread does the work while the caller waits.
/// Under others it must be the caller's thread, because tokio then lets its other threads continue, including Zenoh's.
pub(crate) fn waiting<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let single = Handle::try_current().is_ok_and(|handle| handle.runtime_flavor() == RuntimeFlavor::CurrentThread);
    if !single {
        return work();
    }
    let done = std::thread::scope(|scope| scope.spawn(work).join());
    done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_end_in_async_code_too() {
        let outer = OwnRuntime::start(1, "outer", || ()).unwrap();
        let in_async = async { drop(OwnRuntime::start(1, "inner", || ()).unwrap()) };
        outer.handle().block_on(in_async);
        let in_async = async {
            OwnRuntime::start(1, "inner", || ())
                .unwrap()
                .end(async {}, Duration::from_secs(1))
        };
        outer.handle().block_on(in_async);
        outer.end(async {}, Duration::from_secs(1));
        outer.end(async {}, Duration::from_secs(1));
    }
}
