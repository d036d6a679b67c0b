//! Control messages in Python.

use std::sync::{Arc, Mutex};

use coorp_node::control::{self, Age};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyBytes;

use super::wait::{lock, with, Came, Coming, Waiting};
use super::{failed, Shared};
use crate::buffer;
use crate::error::NodeError;

/// Publishes the messages of one topic.
#[pyclass(module = "coorp", frozen)]
pub struct ControlPublisher {
    shared: Arc<Shared>,
    /// `None` once it is closed.
    publisher: Mutex<Option<control::Publisher>>,
}

impl ControlPublisher {
    pub(super) fn new(shared: &Arc<Shared>, publisher: control::Publisher) -> Self {
        ControlPublisher {
            shared: shared.clone(),
            publisher: Mutex::new(Some(publisher)),
        }
    }
}

#[pymethods]
impl ControlPublisher {
    fn put(&self, message: &Bound<'_, PyAny>) -> PyResult<()> {
        self.shared.check()?;
        let py = message.py();
        buffer::bytes(message, |bytes| {
            with(py, &self.publisher, bytes.len(), |publisher| match publisher {
                Some(publisher) => publisher.put(bytes).map_err(failed),
                None => Err(NodeError::new_err("this publisher has been closed")),
            })
        })
    }

    fn close(&self, py: Python<'_>) {
        py.detach(|| drop(lock(&self.publisher).take()));
    }
}

/// Receives one topic from all robots.
#[pyclass(module = "coorp", frozen)]
pub struct ControlSubscriber {
    shared: Arc<Shared>,
    topic: String,
    subscriber: Arc<control::Subscriber>,
}

impl ControlSubscriber {
    pub(super) fn new(shared: &Arc<Shared>, topic: &str, subscriber: control::Subscriber) -> Self {
        ControlSubscriber {
            shared: shared.clone(),
            topic: topic.to_owned(),
            subscriber: Arc::new(subscriber),
        }
    }

    fn coming(&self) -> Coming {
        let (subscriber, shared) = (self.subscriber.clone(), self.shared.clone());
        Box::pin(async move {
            let message = subscriber.next().await;
            let came: Came = Box::new(move |py| Ok(Py::new(py, Message::new(&shared, message))?.into_any()));
            came
        })
    }
}

#[pymethods]
impl ControlSubscriber {
    #[pyo3(signature = (timeout = None))]
    fn recv(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Py<PyAny>> {
        let what = format!("no message arrived on \"{}\"", self.topic);
        self.shared.block(py, self.coming(), timeout, &what)
    }

    fn try_recv(&self) -> PyResult<Option<Message>> {
        self.shared.check()?;
        let message = self.subscriber.try_recv();
        Ok(message.map(|message| Message::new(&self.shared, message)))
    }

    fn next(&self) -> PyResult<Waiting> {
        self.shared.waiting(self.coming())
    }
}

/// A received control message.
#[pyclass(module = "coorp", frozen)]
pub struct Message {
    shared: Arc<Shared>,
    message: control::Message,
    data: PyOnceLock<Py<PyBytes>>,
}

impl Message {
    fn new(shared: &Arc<Shared>, message: control::Message) -> Self {
        Message {
            shared: shared.clone(),
            message,
            data: PyOnceLock::new(),
        }
    }
}

#[pymethods]
impl Message {
    #[getter]
    fn sender(&self) -> &str {
        self.shared.robot(self.message.from)
    }

    #[getter]
    fn sequence(&self) -> u64 {
        self.message.sequence
    }

    #[getter]
    fn path(&self) -> &str {
        self.shared.node.path(self.message.path)
    }

    #[getter]
    fn age(&self) -> Option<f64> {
        self.message.age.map(|age| age.is.as_secs_f64())
    }

    #[getter]
    fn age_error(&self) -> Option<f64> {
        self.message.age.map(|age| age.within.as_secs_f64())
    }

    /// Returns the content, which is copied once, on first access.
    #[getter]
    fn data(&self, py: Python<'_>) -> Py<PyBytes> {
        let data = self
            .data
            .get_or_init(py, || PyBytes::new(py, self.message.bytes()).unbind());
        data.clone_ref(py)
    }

    fn __bytes__(&self, py: Python<'_>) -> Py<PyBytes> {
        self.data(py)
    }

    fn __repr__(&self) -> String {
        format!(
            "<coorp.Message {} from '{}'{}>",
            self.message.sequence,
            self.sender(),
            aged(self.message.age)
        )
    }
}

/// Returns the age, as part of a message's text.
pub fn aged(age: Option<Age>) -> String {
    age.map_or_else(String::new, |age| format!(", {:.1} ms old", age.is.as_secs_f64() * 1e3))
}
