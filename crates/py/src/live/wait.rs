//! Waiting for a live robot from Python: on threads, which block without the GIL, and in asyncio.
//!
//! The waiter polls a future that any thread may wake. A blocked thread is unparked; an event loop has a socket that
//! becomes readable. So the node's threads never take the GIL: Python slows none of them down, and none can hang when
//! the interpreter ends.

use std::future::Future;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use coorp_node::shared_node::{wait, Closing};
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;

use super::failed;
use crate::error::NodeError;

/// Time between two checks for Python signals (Ctrl-C).
pub const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Copying and hashing this many bytes is faster than getting the GIL back while another thread computes.
const BRIEF_BYTES: usize = 64 << 10;

/// A result, to be converted to a Python object.
pub type Came = Box<dyn FnOnce(Python<'_>) -> PyResult<Py<PyAny>> + Send>;
/// A result that arrives later.
pub type Coming = Pin<Box<dyn Future<Output = Came> + Send>>;

/// The same, but it ends with an error once the node is closed.
pub fn or_closed(coming: Coming, closing: Arc<Closing>) -> Coming {
    Box::pin(async move {
        match closing.or_closed(coming).await {
            Ok(came) => came,
            Err(error) => {
                let raised: Came = Box::new(move |_| Err(failed(error)));
                raised
            }
        }
    })
}

/// Blocks until the result arrives, until `timeout` has passed (`None`), or until a signal handler raises.
pub fn block(py: Python<'_>, mut coming: Coming, timeout: Option<Duration>) -> PyResult<Option<Py<PyAny>>> {
    let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    loop {
        let look_at = Instant::now() + LOOK_EVERY;
        let until_now = until.map_or(look_at, |until| until.min(look_at));
        let polled = py.detach(|| wait(coming.as_mut(), Some(until_now)));
        if let Some(came) = polled {
            return came(py).map(Some);
        }
        py.check_signals()?;
        if until.is_some_and(|until| Instant::now() >= until) {
            return Ok(None);
        }
    }
}

/// A result for an event loop: `await` it once. `python/coorp/_waiting.py` is its other half.
#[pyclass(module = "coorp", frozen)]
pub struct Waiting {
    coming: Mutex<Option<Coming>>,
    readable: UnixStream,
    waker: Waker,
}

impl Waiting {
    pub fn new(coming: Coming) -> PyResult<Waiting> {
        let pair = UnixStream::pair().and_then(|(readable, writable)| {
            readable.set_nonblocking(true)?;
            writable.set_nonblocking(true)?;
            Ok((readable, writable))
        });
        let (readable, writable) =
            pair.map_err(|error| PyOSError::new_err(format!("cannot wait without blocking: {error}")))?;
        Ok(Waiting {
            coming: Mutex::new(Some(coming)),
            readable,
            waker: Waker::from(Arc::new(Writes(writable))),
        })
    }
}

#[pymethods]
impl Waiting {
    /// Returns the file descriptor that becomes readable when another poll is worthwhile.
    fn fileno(&self) -> i32 {
        self.readable.as_raw_fd()
    }

    /// Returns the result, in a tuple; None while there is none.
    fn poll(&self, py: Python<'_>) -> PyResult<Option<(Py<PyAny>,)>> {
        // Discard the wake-up bytes; there are only a few.
        while (&self.readable).read(&mut [0; 64]).is_ok_and(|read| read > 0) {}
        let mut slot = lock(&self.coming);
        let Some(coming) = slot.as_mut() else {
            return Err(NodeError::new_err("this was already awaited; request the next one"));
        };
        let Poll::Ready(came) = coming.as_mut().poll(&mut Context::from_waker(&self.waker)) else {
            return Ok(None);
        };
        *slot = None;
        drop(slot);
        came(py).map(|item| Some((item,)))
    }

    fn __await__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let wait = slf.py().import("coorp._waiting")?.call_method1("wait", (slf,))?;
        wait.call_method0("__await__")
    }
}

struct Writes(UnixStream);

impl Wake for Writes {
    fn wake(self: Arc<Self>) {
        // A full socket is already readable.
        let _ = (&self.0).write(&[1]);
    }
}

/// Runs `what` on the value of a mutex and `bytes` bytes. Releases the GIL unless the work is brief and the mutex is
/// free, so that no thread holding the GIL waits for another one.
pub fn with<T, R>(py: Python<'_>, mutex: &Mutex<T>, bytes: usize, what: impl FnOnce(&mut T) -> R + Send) -> R
where
    T: Send,
    R: Send,
{
    if bytes <= BRIEF_BYTES {
        if let Ok(mut held) = mutex.try_lock() {
            return what(&mut held);
        }
    }
    py.detach(|| what(&mut lock(mutex)))
}

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
