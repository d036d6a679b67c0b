//! A separate runtime: for the QUIC of links, of bulk, and of the operator.

use std::future::Future;
use std::io;
use std::sync::Mutex;
use std::time::Duration;

use tokio::runtime::{Builder, Handle, Runtime};

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
