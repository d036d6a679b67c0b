//! Locks and threads.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};

use crate::Error;

/// Takes a lock. A thread that panicked while holding it has left nothing inconsistent.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts a thread with this name.
pub(crate) fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, Error> {
    let thread = Builder::new().name(name.to_owned()).spawn(work);
    thread.map_err(Error::Thread)
}
