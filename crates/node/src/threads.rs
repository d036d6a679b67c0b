//! Threads of their own for control's QUIC and for bulk's.

use std::future::Future;
use std::io;
use std::sync::Mutex;
use std::time::Duration;

use tokio::runtime::{Builder, Handle, Runtime};

use crate::node::lock;

/// Some threads. Dropped, they end by themselves: nobody is waited for, so that it may be in async code.
#[derive(Debug)]
pub(crate) struct Threads {
    handle: Handle,
    /// Taken when they end.
    runtime: Mutex<Option<Runtime>>,
}

impl Threads {
    pub fn start(count: usize, name: &str) -> io::Result<Threads> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(count)
            .thread_name(name)
            .enable_all()
            .build()?;
        Ok(Threads {
            handle: runtime.handle().clone(),
            runtime: Mutex::new(Some(runtime)),
        })
    }

    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Ends them. Outside async code it waits for `last`, and then a while for what they are at.
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

    #[test]
    fn they_end_in_async_code_too() {
        let outer = Threads::start(1, "outer").unwrap();
        let in_async = async { drop(Threads::start(1, "inner").unwrap()) };
        outer.handle().block_on(in_async);
        let in_async = async {
            Threads::start(1, "inner")
                .unwrap()
                .end(async {}, Duration::from_secs(1))
        };
        outer.handle().block_on(in_async);
        outer.end(async {}, Duration::from_secs(1));
        outer.end(async {}, Duration::from_secs(1));
    }
}
