//! Payloads between the processes of one robot, from Python: `coorp_local` with its memory as NumPy arrays.
//!
//! - A [`Part`] is memory that NumPy can view: `numpy.asarray(part)` copies nothing, and its base is the part, which keeps
//!   the payload. The stable ABI of Python 3.10 has no buffers, hence `__array_interface__`.
//! - NumPy can write to the parts of a [`Loan`] until it is sent. They stay readable afterwards, because a part keeps
//!   the memory. NumPy still allows writing to a view made before the send; [`Loan::array`] marks its own arrays as
//!   read-only.
//! - Blocking calls release the GIL and check for signals at intervals. Dropping these objects takes no lock of Python.
//!
//! For the reactors: [`Payload::new`] makes parts of what a federate received, and [`find_loan`] recognises values that
//! are already in a loan.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use coorp_local::{self as local, run, DomainOptions, Error, Kept, ReceiverOptions, SenderOptions, WhenFull};
use pyo3::exceptions::{PyMemoryError, PyTimeoutError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyWeakrefMethods, PyWeakrefReference};

use crate::buffer::Contents;
use crate::error::{input as mend, ChannelError};
use crate::input;

/// Time between two checks for Python signals (Ctrl-C).
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Default room for the header of a loan: enough to describe a few arrays.
const LOAN_HEADER_BYTES: usize = 4096;
/// Copying this many bytes is faster than getting the GIL back while another thread computes.
const BRIEF_BYTES: usize = 64 << 10;
/// Maximum depth of the search for the part behind an array. NumPy itself collapses views of views.
const VIEWS_MAX: usize = 16;

/// Adds these classes to the module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("ChannelError", module.py().get_type::<ChannelError>())?;
    module.add_class::<Domain>()?;
    module.add_class::<Sender>()?;
    module.add_class::<Receiver>()?;
    module.add_class::<Loan>()?;
    module.add_class::<Payload>()?;
    module.add_class::<Part>()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Converts an error of `coorp_local`.
pub fn failed(error: Error) -> PyErr {
    match error {
        Error::Name { .. }
        | Error::Setting { .. }
        | Error::TooManyParts(_)
        | Error::HeaderTooLong(_)
        | Error::TooLarge { .. } => mend(error),
        Error::Deadline { .. } => PyTimeoutError::new_err(error.to_string()),
        Error::Memory { .. } => PyMemoryError::new_err(error.to_string()),
        _ => ChannelError::new_err(error.to_string()),
    }
}

/// Calls `attempt` without the GIL, each time until the next check for signals at the latest, until it returns
/// something or the time is over.
fn wait<T: Send>(
    py: Python<'_>,
    timeout: Option<f64>,
    mut attempt: impl FnMut(Duration) -> Result<Option<T>, Error> + Send,
) -> PyResult<Option<T>> {
    let timeout = timeout.map(input::timeout).transpose()?;
    let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    loop {
        let left = until.map_or(LOOK_EVERY, |until| until.saturating_duration_since(Instant::now()));
        let came = py.detach(|| attempt(left.min(LOOK_EVERY))).map_err(failed)?;
        if came.is_some() {
            return Ok(came);
        }
        py.check_signals()?;
        if until.is_some_and(|until| Instant::now() >= until) {
            return Ok(None);
        }
    }
}

fn wait_for_peers(py: Python<'_>, timeout: Option<f64>, attempt: impl Fn(Duration) -> bool + Sync) -> PyResult<bool> {
    let waited = wait(py, timeout, |time| Ok(attempt(time).then_some(())))?;
    Ok(waited.is_some())
}

/// Membership of a domain.
#[pyclass(module = "coorp", frozen)]
pub struct Domain {
    domain: local::Domain,
}

#[pymethods]
impl Domain {
    #[new]
    #[pyo3(signature = (name, *, timeout = 5.0))]
    fn new(py: Python<'_>, name: &str, timeout: f64) -> PyResult<Domain> {
        let timeout = input::timeout(timeout)?;
        let domain = py.detach(|| local::Domain::join(name, DomainOptions { timeout }));
        Ok(Domain {
            domain: domain.map_err(failed)?,
        })
    }

    #[pyo3(signature = (channel, *, when_full = "block", timeout = 1.0, store_bytes = None, idle_bytes = None, queue = None, held = None))]
    #[allow(clippy::too_many_arguments)] // Python has them by name.
    fn sender(
        &self,
        py: Python<'_>,
        channel: &str,
        when_full: &str,
        timeout: f64,
        store_bytes: Option<usize>,
        idle_bytes: Option<usize>,
        queue: Option<usize>,
        held: Option<usize>,
    ) -> PyResult<Sender> {
        let timeout = input::timeout(timeout)?;
        let defaults = SenderOptions::default();
        let options = SenderOptions {
            store_bytes: store_bytes.unwrap_or(defaults.store_bytes),
            idle_bytes: idle_bytes.unwrap_or(defaults.idle_bytes),
            queue_messages: queue.unwrap_or(defaults.queue_messages),
            held_messages: held.unwrap_or(defaults.held_messages),
            when_full: match when_full {
                "block" => WhenFull::Block(slice(timeout)),
                "drop-oldest" => WhenFull::DropOldest,
                "fail" => WhenFull::Fail,
                other => {
                    return Err(mend(format_args!(
                        "when_full = {other:?}: choose block, drop-oldest or fail"
                    )))
                }
            },
        };
        let sender = py.detach(|| self.domain.sender(channel, options)).map_err(failed)?;
        Ok(Sender {
            sender: Mutex::new(sender),
            timeout,
        })
    }

    #[pyo3(signature = (channel, *, spin = None))]
    fn receiver(&self, py: Python<'_>, channel: &str, spin: Option<f64>) -> PyResult<Receiver> {
        let spin = spin.map(input::timeout).transpose()?;
        let options = spin.map_or_else(ReceiverOptions::default, |spin| ReceiverOptions { spin });
        let receiver = py.detach(|| self.domain.receiver(channel, options)).map_err(failed)?;
        Ok(Receiver {
            receiver: Mutex::new(receiver),
        })
    }
}

/// Returns a time divided into equal parts that are no longer than [`LOOK_EVERY`].
fn slice(time: Duration) -> Duration {
    let slices = time.as_nanos().div_ceil(LOOK_EVERY.as_nanos()).max(1);
    time / u32::try_from(slices).unwrap_or(u32::MAX)
}

/// The writing end of a channel.
#[pyclass(module = "coorp", frozen)]
pub struct Sender {
    sender: Mutex<local::Sender>,
    /// The time for which it blocks.
    timeout: Duration,
}

#[pymethods]
impl Sender {
    #[pyo3(signature = (parts, *, header_bytes = LOAN_HEADER_BYTES))]
    fn loan(&self, py: Python<'_>, parts: Vec<usize>, header_bytes: usize) -> PyResult<Loan> {
        let loan = self.loan_when_possible(py, header_bytes, &parts)?;
        Ok(Loan::new(loan, parts))
    }

    fn send(&self, py: Python<'_>, header: &Bound<'_, PyAny>, parts: &Bound<'_, PyAny>) -> PyResult<usize> {
        let header = Contents::of(header)?;
        if let Ok(loan) = parts.cast::<Loan>() {
            let (memory, header) = (&loan.get().memory, header.as_slice());
            let taken = py.detach(|| memory.take(&lock(&self.sender), 0, header));
            return self.send_taken(py, taken.map_err(PyValueError::new_err)?, memory);
        }
        let parts: Vec<Bound<'_, PyAny>> = parts.try_iter()?.collect::<PyResult<_>>()?;
        if let Some(memory) = find_loan(&parts)? {
            let header = header.as_slice();
            let taken = py.detach(|| memory.take(&lock(&self.sender), 0, header));
            if let Ok(loan) = taken {
                return self.send_taken(py, loan, &memory);
            }
        }
        let parts: Vec<_> = parts.iter().map(Contents::of).collect::<PyResult<_>>()?;
        let (header, parts) = (
            header.as_slice(),
            parts.iter().map(Contents::as_slice).collect::<Vec<_>>(),
        );
        let lengths: Vec<_> = parts.iter().map(|part| part.len()).collect();
        let mut loan = self.loan_when_possible(py, header.len(), &lengths)?;
        let mut copy = || {
            loan.header_mut().copy_from_slice(header);
            for (to, from) in loan.parts_mut().into_iter().zip(&parts) {
                to.copy_from_slice(from);
            }
        };
        if lengths.iter().sum::<usize>() <= BRIEF_BYTES {
            copy();
        } else {
            py.detach(&mut copy);
        }
        self.send_when_possible(py, loan).map_err(|(error, _)| error)
    }

    #[getter]
    fn readers(&self, py: Python<'_>) -> usize {
        py.detach(|| lock(&self.sender).readers())
    }

    #[getter]
    fn used_bytes(&self, py: Python<'_>) -> usize {
        py.detach(|| lock(&self.sender).used_bytes())
    }

    #[getter]
    fn dropped(&self, py: Python<'_>) -> u64 {
        py.detach(|| lock(&self.sender).dropped())
    }

    #[pyo3(signature = (readers, timeout = None))]
    fn wait_for_readers(&self, py: Python<'_>, readers: usize, timeout: Option<f64>) -> PyResult<bool> {
        wait_for_peers(py, timeout, |time| lock(&self.sender).wait_for_readers(readers, time))
    }
}

impl Sender {
    fn loan_when_possible(&self, py: Python<'_>, header: usize, parts: &[usize]) -> PyResult<local::Loan> {
        let began = Instant::now();
        loop {
            match py.detach(|| lock(&self.sender).loan_parts(header, parts)) {
                Ok(loan) => return Ok(loan),
                Err(error) => self.may_try_again(py, error, began)?,
            }
        }
    }

    /// Sends a loan, or returns it with the error.
    fn send_when_possible(&self, py: Python<'_>, loan: local::Loan) -> Result<usize, (PyErr, local::Loan)> {
        let (began, mut loan) = (Instant::now(), loan);
        loop {
            match py.detach(|| lock(&self.sender).send(loan)) {
                Ok(readers) => return Ok(readers),
                Err(unsent) => {
                    loan = unsent.loan;
                    if let Err(error) = self.may_try_again(py, unsent.error, began) {
                        return Err((error, loan));
                    }
                }
            }
        }
    }

    fn send_taken(&self, py: Python<'_>, loan: local::Loan, memory: &Memory) -> PyResult<usize> {
        match self.send_when_possible(py, loan) {
            Ok(readers) => {
                memory.seal(py)?;
                Ok(readers)
            }
            Err((error, loan)) => {
                memory.put_back(loan);
                Err(error)
            }
        }
    }

    /// Returns normally if the error is only the end of a slice of the time, and nothing interrupts.
    fn may_try_again(&self, py: Python<'_>, error: Error, began: Instant) -> PyResult<()> {
        let Error::Deadline { channel, shortage, .. } = error else {
            return Err(failed(error));
        };
        py.check_signals()?;
        let waited = began.elapsed();
        if waited < self.timeout {
            return Ok(());
        }
        Err(failed(Error::Deadline {
            channel,
            waited,
            shortage,
        }))
    }
}

/// The reading end of a channel.
#[pyclass(module = "coorp", frozen)]
pub struct Receiver {
    receiver: Mutex<local::Receiver>,
}

#[pymethods]
impl Receiver {
    #[pyo3(signature = (timeout = None))]
    fn recv(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Payload> {
        if let Some(payload) = self.try_recv(py)? {
            return Ok(payload);
        }
        let came = wait(py, timeout, |time| lock(&self.receiver).recv(Some(time)))?;
        came.map(Payload::new).ok_or_else(|| {
            let seconds = timeout.unwrap_or_default();
            PyTimeoutError::new_err(format!("no payload arrived within {seconds} s"))
        })
    }

    fn try_recv(&self, py: Python<'_>) -> PyResult<Option<Payload>> {
        let came = match self.receiver.try_lock() {
            Ok(mut receiver) => receiver.try_recv(),
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner().try_recv(),
            Err(TryLockError::WouldBlock) => py.detach(|| lock(&self.receiver).try_recv()),
        };
        Ok(came.map_err(failed)?.map(Payload::new))
    }

    #[getter]
    fn senders(&self, py: Python<'_>) -> usize {
        py.detach(|| lock(&self.receiver).senders())
    }

    #[pyo3(signature = (senders, timeout = None))]
    fn wait_for_senders(&self, py: Python<'_>, senders: usize, timeout: Option<f64>) -> PyResult<bool> {
        wait_for_peers(py, timeout, |time| lock(&self.receiver).wait_for_senders(senders, time))
    }
}

/// The memory of a loan and its parts.
pub struct Memory {
    /// The loan, until it is sent.
    loan: Mutex<Option<local::Loan>>,
    /// The lengths of the parts.
    parts: Vec<usize>,
    /// The arrays to make read-only when it is sent.
    arrays: Mutex<Vec<Py<PyWeakrefReference>>>,
}

impl Memory {
    /// Takes the loan to be sent by this sender, with a header after `reserved` bytes; or returns why it cannot be
    /// sent.
    pub fn take(&self, sender: &local::Sender, reserved: usize, header: &[u8]) -> Result<local::Loan, &'static str> {
        let mut place = lock(&self.loan);
        let mut loan = place.take().ok_or("this loan has been sent")?;
        let room = loan.header_mut().len();
        let problem = if !sender.has_loaned(&loan) {
            "only the sender that made a loan can send it"
        } else if reserved + header.len() > room {
            "the header does not fit into this loan; give `header_bytes` when it is made"
        } else {
            loan.header_mut()[reserved..reserved + header.len()].copy_from_slice(header);
            loan.truncate_header(reserved + header.len());
            return Ok(loan);
        };
        *place = Some(loan);
        Err(problem)
    }

    /// Returns a loan that could not be sent.
    pub fn put_back(&self, loan: local::Loan) {
        *lock(&self.loan) = Some(loan);
    }

    /// Marks arrays as read-only, after the send.
    pub fn seal(&self, py: Python<'_>) -> PyResult<()> {
        let arrays = std::mem::take(&mut *lock(&self.arrays));
        for array in arrays {
            if let Some(array) = array.bind(py).upgrade() {
                array.call_method1("setflags", (false,))?;
            }
        }
        Ok(())
    }
}

/// A payload that is being written.
#[pyclass(module = "coorp", frozen)]
pub struct Loan {
    memory: Arc<Memory>,
}

#[pymethods]
impl Loan {
    /// Returns the parts, to be written until the loan is sent.
    fn parts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let parts = (0..self.memory.parts.len()).map(|index| self.part(index));
        PyList::new(py, parts.collect::<PyResult<Vec<_>>>()?)
    }

    #[pyo3(signature = (dtype, shape, *, part = 0))]
    fn array<'py>(
        &self,
        py: Python<'py>,
        dtype: &Bound<'py, PyAny>,
        shape: &Bound<'py, PyAny>,
        part: usize,
    ) -> PyResult<Bound<'py, PyAny>> {
        let bytes = py.import("numpy")?.call_method1("asarray", (self.part(part)?,))?;
        let array = bytes
            .call_method1("view", (dtype,))?
            .call_method1("reshape", (shape,))?;
        lock(&self.memory.arrays).push(PyWeakrefReference::new(&array)?.unbind());
        Ok(array)
    }

    #[getter]
    fn sent(&self) -> bool {
        lock(&self.memory.loan).is_none()
    }
}

impl Loan {
    /// Returns a loan with parts of these lengths.
    pub fn new(loan: local::Loan, parts: Vec<usize>) -> Self {
        let memory = Memory {
            loan: Mutex::new(Some(loan)),
            parts,
            arrays: Mutex::new(Vec::new()),
        };
        Self {
            memory: Arc::new(memory),
        }
    }

    fn part(&self, index: usize) -> PyResult<Part> {
        let mut loan = lock(&self.memory.loan);
        let loan = loan
            .as_mut()
            .ok_or_else(|| PyValueError::new_err("this loan has been sent"))?;
        let bytes = *self.memory.parts.get(index).ok_or_else(|| {
            let count = self.memory.parts.len();
            PyValueError::new_err(format!("there is no part {index}; there are {count}, numbered from 0"))
        })?;
        Ok(Part {
            address: loan.part_mut(index).as_mut_ptr() as usize,
            bytes,
            keeper: Keeper::Loan {
                memory: self.memory.clone(),
                index,
                _kept: loan.keep(),
            },
        })
    }
}

/// Finds the loan whose parts are exactly these arrays, if any; then they can be sent without copying.
pub fn find_loan(arrays: &[Bound<'_, PyAny>]) -> PyResult<Option<Arc<Memory>>> {
    let mut found: Option<Arc<Memory>> = None;
    for (place, array) in arrays.iter().enumerate() {
        let Some(behind) = part_behind(array)? else {
            return Ok(None);
        };
        let part = behind.get();
        let Keeper::Loan { memory, index, .. } = &part.keeper else {
            return Ok(None);
        };
        let contents = Contents::of(array)?;
        let bytes = contents.as_slice();
        let is_whole = bytes.len() == part.bytes && (bytes.is_empty() || bytes.as_ptr() as usize == part.address);
        let same = found.get_or_insert_with(|| memory.clone());
        if !is_whole || *index != place || !Arc::ptr_eq(same, memory) {
            return Ok(None);
        }
    }
    // A loan may have more parts than these.
    Ok(found.filter(|memory| memory.parts.len() == arrays.len()))
}

/// Returns the part that an array is a view of.
fn part_behind<'py>(array: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, Part>>> {
    let base = pyo3::intern!(array.py(), "base");
    let mut object = array.clone();
    for _ in 0..VIEWS_MAX {
        if let Ok(part) = object.cast::<Part>() {
            return Ok(Some(part.clone()));
        }
        match object.getattr_opt(base)? {
            Some(next) if !next.is_none() => object = next,
            _ => return Ok(None),
        }
    }
    Ok(None)
}

/// A payload with its memory, in any place.
pub trait Held: Send + Sync {
    fn header(&self) -> &[u8];
    fn parts(&self) -> usize;
    fn part(&self, index: usize) -> Option<&[u8]>;
}

impl Held for local::Payload {
    fn header(&self) -> &[u8] {
        self.header()
    }
    fn parts(&self) -> usize {
        self.len()
    }
    fn part(&self, index: usize) -> Option<&[u8]> {
        self.part(index)
    }
}

impl Held for run::Received {
    fn header(&self) -> &[u8] {
        self.header()
    }
    fn parts(&self) -> usize {
        self.parts()
    }
    fn part(&self, index: usize) -> Option<&[u8]> {
        self.part(index)
    }
}

/// A received payload.
#[pyclass(module = "coorp", frozen)]
pub struct Payload {
    held: Arc<dyn Held>,
}

impl Payload {
    pub fn new(held: impl Held + 'static) -> Self {
        Self { held: Arc::new(held) }
    }
}

#[pymethods]
impl Payload {
    fn header<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.held.header())
    }

    pub fn parts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let parts = (0..self.held.parts()).filter_map(|index| self.held.part(index));
        let parts = parts.map(|part| Part {
            address: part.as_ptr() as usize,
            bytes: part.len(),
            keeper: Keeper::Payload {
                _held: self.held.clone(),
            },
        });
        PyList::new(py, parts.collect::<Vec<_>>())
    }
}

/// The owner that keeps a part's memory alive.
enum Keeper {
    Payload {
        _held: Arc<dyn Held>,
    },
    Loan {
        memory: Arc<Memory>,
        index: usize,
        _kept: Kept,
    },
}

/// Memory that NumPy can view.
#[pyclass(module = "coorp", frozen)]
pub struct Part {
    address: usize,
    bytes: usize,
    keeper: Keeper,
}

#[pymethods]
impl Part {
    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let read_only = match &self.keeper {
            Keeper::Payload { .. } => true,
            Keeper::Loan { memory, .. } => lock(&memory.loan).is_none(),
        };
        let interface = PyDict::new(py);
        interface.set_item(pyo3::intern!(py, "version"), 3)?;
        interface.set_item(pyo3::intern!(py, "typestr"), pyo3::intern!(py, "|u1"))?;
        interface.set_item(pyo3::intern!(py, "shape"), (self.bytes,))?;
        interface.set_item(pyo3::intern!(py, "data"), (self.address, read_only))?;
        Ok(interface)
    }

    fn __len__(&self) -> usize {
        self.bytes
    }
}
