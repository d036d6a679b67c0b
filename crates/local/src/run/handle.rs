//! The handle by which other threads control a running federate.

use super::outlets::Outlets;
use crate::bell::Bell;
use crate::sync::lock;
use crate::{Error, Loan};
use coorp_core::logical::ElementId;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

/// The maximum number of physical actions that wait for the federate.
const WAITING_MAX: usize = 65_536;

/// Schedules physical actions, loans memory for outputs and requests the end, from any thread.
#[derive(Debug)]
pub struct Handle<T> {
    shared: Arc<Shared<T>>,
}

#[derive(Debug)]
struct Shared<T> {
    bell: Bell,
    scheduled: Mutex<Vec<(ElementId, Option<T>)>>,
    rung: AtomicBool,
    stop: AtomicBool,
    outlets: Mutex<Option<Arc<Outlets>>>,
}

impl<T> Clone for Handle<T> {
    fn clone(&self) -> Self {
        Handle {
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<T> Handle<T> {
    /// Returns a handle for one call of [`run`](super::run()).
    ///
    /// # Errors
    /// If the system has no descriptor left.
    pub fn new() -> Result<Self, Error> {
        let bell = Bell::new()?;
        let shared = Arc::new(Shared {
            bell,
            scheduled: Mutex::new(Vec::new()),
            rung: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            outlets: Mutex::new(None),
        });
        Ok(Handle { shared })
    }

    /// Schedules a physical action now. Returns whether there was room for it.
    pub fn schedule(&self, action: ElementId, value: Option<T>) -> bool {
        let mut scheduled = lock(&self.shared.scheduled);
        if scheduled.len() >= WAITING_MAX {
            return false;
        }
        scheduled.push((action, value));
        drop(scheduled);
        self.ring();
        true
    }

    /// Returns memory in which to write a value of this output, where its readers read it: a header with
    /// [`HEADER_RESERVED`](super::HEADER_RESERVED) bytes more than `header`, and parts of these lengths. `None` if no
    /// other federate reads the output.
    ///
    /// # Errors
    /// As in [`Sender::loan_parts`](crate::Sender::loan_parts).
    pub fn loan(&self, output: ElementId, header: usize, parts: &[usize]) -> Result<Option<Loan>, Error> {
        let outlets = lock(&self.shared.outlets).clone();
        let loan = outlets.and_then(|outlets| outlets.loan(output, header, parts));
        loan.transpose()
    }

    /// Requests the end of the program, as soon as possible.
    pub fn request_stop(&self) {
        self.shared.stop.store(true, SeqCst);
        self.ring();
    }

    pub(super) fn set_outlets(&self, outlets: Option<Arc<Outlets>>) {
        *lock(&self.shared.outlets) = outlets;
    }

    fn ring(&self) {
        self.shared.rung.store(true, SeqCst);
        self.shared.bell.ring();
    }

    pub(super) fn is_rung(&self) -> bool {
        self.shared.rung.load(SeqCst)
    }

    /// Takes the physical actions scheduled since the last call, and returns whether a stop was requested.
    pub(super) fn take(&self) -> (Vec<(ElementId, Option<T>)>, bool) {
        if !self.shared.rung.swap(false, SeqCst) {
            return (Vec::new(), false);
        }
        self.shared.bell.silence();
        let scheduled = std::mem::take(&mut *lock(&self.shared.scheduled));
        (scheduled, self.shared.stop.swap(false, SeqCst))
    }
}

impl<T> AsFd for Handle<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.bell.as_fd()
    }
}
