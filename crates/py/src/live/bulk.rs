//! Bulk messages in Python.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::task::Poll;

use coorp_node::bulk::{self, Outcome};
use numpy::PyArray1;
use pyo3::exceptions::{PyFileNotFoundError, PyOSError};
use pyo3::prelude::*;

use super::wait::{lock, with, Came, Coming, Waiting};
use super::{failed, Shared};
use crate::buffer;
use crate::error::NodeError;

/// A bulk message being written.
#[pyclass(module = "coorp", frozen)]
pub struct BulkStream {
    shared: Arc<Shared>,
    state: Mutex<Stream>,
}

enum Stream {
    Open(bulk::BulkStream),
    /// The message is finished; holds its outcome.
    Finished(Arc<Outcome>),
    /// A `with` block ended with an exception, so the message is not sent.
    Dropped,
}

impl BulkStream {
    pub(super) fn new(shared: &Arc<Shared>, stream: bulk::BulkStream) -> Self {
        BulkStream {
            shared: shared.clone(),
            state: Mutex::new(Stream::Open(stream)),
        }
    }

    /// Returns the outcome of a finished message. Call it without the GIL: another thread may be writing.
    fn finished(&self) -> PyResult<Arc<Outcome>> {
        let mut state = lock(&self.state);
        match std::mem::replace(&mut *state, Stream::Dropped) {
            Stream::Open(stream) => match stream.finish() {
                Ok(delivery) => {
                    let outcome = Arc::new(Outcome::from(delivery));
                    *state = Stream::Finished(outcome.clone());
                    Ok(outcome)
                }
                Err(unfinished) => {
                    *state = Stream::Open(*unfinished.stream);
                    Err(failed(unfinished.error))
                }
            },
            Stream::Finished(outcome) => {
                *state = Stream::Finished(outcome.clone());
                Ok(outcome)
            }
            Stream::Dropped => Err(NodeError::new_err("this message was abandoned and is not sent")),
        }
    }

    /// Abandons the message, which frees its memory.
    fn give_up(&self, py: Python<'_>) {
        py.detach(|| *lock(&self.state) = Stream::Dropped);
    }
}

#[pymethods]
impl BulkStream {
    fn write(&self, buffer: &Bound<'_, PyAny>) -> PyResult<()> {
        buffer::bytes(buffer, |bytes| {
            with(buffer.py(), &self.state, bytes.len(), |state| match state {
                Stream::Open(stream) => stream.write(bytes).map_err(failed),
                _ => Err(NodeError::new_err("this message is finished: start another one")),
            })
        })
    }

    fn finish(&self, py: Python<'_>) -> PyResult<Delivery> {
        let outcome = py.detach(|| self.finished())?;
        Ok(Delivery {
            shared: self.shared.clone(),
            outcome,
        })
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    /// Waits until the message is delivered. If the block raised, it is not sent.
    fn __exit__(
        &self,
        py: Python<'_>,
        kind: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _trace: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        if !kind.is_none() {
            self.give_up(py);
            return Ok(());
        }
        self.finish(py)?.wait(py, None)
    }

    fn __aenter__(slf: Py<Self>) -> PyResult<Waiting> {
        Waiting::new(Box::pin(async move {
            let came: Came = Box::new(move |_| Ok(slf.into_any()));
            came
        }))
    }

    fn __aexit__(
        &self,
        kind: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _trace: &Bound<'_, PyAny>,
    ) -> PyResult<Waiting> {
        if !kind.is_none() {
            self.give_up(kind.py());
            return Waiting::new(Box::pin(async {
                let came: Came = Box::new(|py| Ok(py.None()));
                came
            }));
        }
        self.finish(kind.py())?.awaited()
    }
}

/// The delivery of a bulk message.
#[pyclass(module = "coorp", frozen)]
pub struct Delivery {
    shared: Arc<Shared>,
    outcome: Arc<Outcome>,
}

impl Delivery {
    fn coming(&self) -> Coming {
        let outcome = self.outcome.clone();
        Box::pin(async move {
            let outcome = outcome.known().await;
            let came: Came = Box::new(move |py| match outcome {
                Ok(()) => Ok(py.None()),
                Err(error) => Err(NodeError::new_err(error.to_string())),
            });
            came
        })
    }

    fn awaited(&self) -> PyResult<Waiting> {
        self.shared.waiting(self.coming())
    }
}

#[pymethods]
impl Delivery {
    #[pyo3(signature = (timeout = None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        self.shared
            .block(py, self.coming(), timeout, "the message was not delivered")
            .map(drop)
    }

    #[getter]
    fn state(&self) -> &'static str {
        match self.outcome.look() {
            Poll::Pending => "pending",
            Poll::Ready(Ok(())) => "whole",
            Poll::Ready(Err(_)) => "failed",
        }
    }

    fn __await__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let waiting = Bound::new(slf.py(), slf.get().awaited()?)?;
        waiting.call_method0("__await__")
    }

    fn __repr__(&self) -> String {
        format!("<coorp.Delivery, {}>", self.state())
    }
}

/// Receives bulk messages, each once.
#[pyclass(module = "coorp", frozen)]
pub struct BulkReceiver {
    shared: Arc<Shared>,
    receiver: Arc<bulk::BulkReceiver>,
}

impl BulkReceiver {
    pub(super) fn new(shared: &Arc<Shared>, receiver: bulk::BulkReceiver) -> Self {
        BulkReceiver {
            shared: shared.clone(),
            receiver: Arc::new(receiver),
        }
    }

    fn coming(&self) -> Coming {
        let (receiver, shared) = (self.receiver.clone(), self.shared.clone());
        Box::pin(async move {
            let message = receiver.next().await;
            let came: Came = Box::new(move |py| Ok(Py::new(py, BulkMessage::new(&shared, message))?.into_any()));
            came
        })
    }
}

#[pymethods]
impl BulkReceiver {
    #[pyo3(signature = (timeout = None))]
    fn recv(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Py<PyAny>> {
        self.shared.block(py, self.coming(), timeout, "no bulk message arrived")
    }

    fn try_recv(&self) -> PyResult<Option<BulkMessage>> {
        self.shared.check()?;
        let message = self.receiver.try_recv();
        Ok(message.map(|message| BulkMessage::new(&self.shared, message)))
    }

    fn next(&self) -> PyResult<Waiting> {
        self.shared.waiting(self.coming())
    }
}

/// A bulk message that has arrived completely.
#[pyclass(module = "coorp", frozen)]
pub struct BulkMessage {
    #[pyo3(get)]
    sender: String,
    #[pyo3(get)]
    name: String,
    #[pyo3(get)]
    length: u64,
    #[pyo3(get)]
    path: PathBuf,
    /// `None` once it has been taken.
    message: Mutex<Option<bulk::BulkMessage>>,
}

impl BulkMessage {
    fn new(shared: &Arc<Shared>, message: bulk::BulkMessage) -> Self {
        BulkMessage {
            sender: shared.robot(message.from).to_owned(),
            name: message.name.clone(),
            length: message.length,
            path: message.path().to_owned(),
            message: Mutex::new(Some(message)),
        }
    }

    /// Takes the message without the GIL. If that fails, it is still there for another attempt.
    fn taken<T: Send>(
        &self,
        py: Python<'_>,
        to: &str,
        take: impl FnOnce(&bulk::BulkMessage) -> io::Result<T> + Send,
    ) -> PyResult<T> {
        py.detach(|| {
            let mut slot = lock(&self.message);
            let Some(message) = slot.as_ref() else {
                let before = format!("\"{}\" has already been taken", self.name);
                return Err(PyFileNotFoundError::new_err(before));
            };
            let taken = take(message).map_err(|error| {
                let (name, path) = (&self.name, self.path.display());
                PyOSError::new_err(format!("cannot take \"{name}\", which is in {path}{to}: {error}"))
            })?;
            *slot = None;
            Ok(taken)
        })
    }
}

#[pymethods]
impl BulkMessage {
    /// Takes the message; the bytes are not copied after reading.
    fn take<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray1<u8>>> {
        let bytes = self.taken(py, "", bulk::BulkMessage::take)?;
        Ok(PyArray1::from_vec(py, bytes))
    }

    fn take_to(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        let to = format!(", to {}", path.display());
        self.taken(py, &to, |message| message.take_to(&path))
    }

    fn __repr__(&self) -> String {
        format!(
            "<coorp.BulkMessage '{}' of {} bytes from '{}'>",
            self.name, self.length, self.sender
        )
    }
}
