//! Every robot's newest state in Python.

use std::sync::Arc;
use std::time::Instant;

use coorp_node::gather;
use pyo3::exceptions::PyTimeoutError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyString};

use super::control::aged;
use super::wait::{Came, Coming, Waiting, LOOK_EVERY};
use super::Shared;
use crate::input;

/// Makes a list of all robots' states once per period.
#[pyclass(module = "coorp", frozen)]
pub struct Gather {
    shared: Arc<Shared>,
    topic: String,
    names: Names,
    gather: Arc<gather::Gather>,
}

/// All robots' names in the team file's order. Created once, because a list of many robots is made many times a second.
#[derive(Clone)]
struct Names(Arc<[Py<PyString>]>);

impl Gather {
    pub(super) fn new(py: Python<'_>, shared: &Arc<Shared>, topic: &str, gather: gather::Gather) -> Self {
        let names = shared.node.robots().iter().map(|name| PyString::new(py, name).unbind());
        Gather {
            shared: shared.clone(),
            topic: topic.to_owned(),
            names: Names(names.collect()),
            gather: Arc::new(gather),
        }
    }

    fn coming(&self) -> Coming {
        let (gather, names) = (self.gather.clone(), self.names.clone());
        Box::pin(async move {
            let table = gather.next().await;
            let came: Came = Box::new(move |py| Ok(names.states(py, table)?.into_any().unbind()));
            came
        })
    }
}

impl Names {
    /// Returns a list as a dictionary by robot, in the team file's order.
    fn states<'py>(&self, py: Python<'py>, table: gather::Table) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        let taken_ns = table.taken_at.as_nanos();
        for state in table.states {
            // A state always belongs to a robot of the team.
            let Some(name) = self.0.get(usize::from(state.from.0)) else {
                continue;
            };
            let state = RobotState {
                name: name.clone_ref(py),
                state,
                taken_ns,
                data: PyOnceLock::new(),
            };
            dict.set_item(name, Py::new(py, state)?)?;
        }
        Ok(dict)
    }
}

#[pymethods]
impl Gather {
    #[pyo3(signature = (timeout = None))]
    fn recv<'py>(&self, py: Python<'py>, timeout: Option<f64>) -> PyResult<Bound<'py, PyDict>> {
        let limit = timeout.map(input::timeout).transpose()?;
        let until = limit.and_then(|limit| Instant::now().checked_add(limit));
        loop {
            self.shared.check()?;
            let left = until.map_or(LOOK_EVERY, |until| until.saturating_duration_since(Instant::now()));
            // The waiting thread makes the list itself when it is due, which is faster than being woken.
            if let Some(table) = py.detach(|| self.gather.recv(Some(left.min(LOOK_EVERY)))) {
                self.shared.check()?;
                return self.names.states(py, table);
            }
            py.check_signals()?;
            if left.is_zero() {
                let limit = timeout.unwrap_or_default();
                let what = format!("no list of \"{}\" was made within {limit} s", self.topic);
                return Err(PyTimeoutError::new_err(what));
            }
        }
    }

    fn try_recv<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        self.shared.check()?;
        let table = self.gather.try_recv();
        table.map(|table| self.names.states(py, table)).transpose()
    }

    fn next(&self) -> PyResult<Waiting> {
        self.shared.waiting(self.coming())
    }

    /// Returns, by robot, the number of lists on which a state was due, the number of these without one, and the number
    /// of stale states.
    fn updates<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        for (robot, updates) in self.gather.updates() {
            let counted = (updates.due, updates.missed, updates.stale);
            dict.set_item(self.shared.robot(robot), counted)?;
        }
        Ok(dict)
    }
}

/// A robot's newest state.
#[pyclass(module = "coorp", frozen)]
pub struct RobotState {
    name: Py<PyString>,
    state: gather::RobotState,
    taken_ns: u64,
    data: PyOnceLock<Py<PyBytes>>,
}

#[pymethods]
impl RobotState {
    #[getter]
    fn sender(&self, py: Python<'_>) -> Py<PyString> {
        self.name.clone_ref(py)
    }

    #[getter]
    fn fresh(&self) -> bool {
        self.state.fresh
    }

    #[getter]
    fn age(&self) -> Option<f64> {
        self.state.age.map(|age| age.is.as_secs_f64())
    }

    #[getter]
    fn age_error(&self) -> Option<f64> {
        self.state.age.map(|age| age.within.as_secs_f64())
    }

    #[getter]
    fn stamps_ns(&self) -> (Option<u64>, u64, u64, u64) {
        let stamps = self.state.stamps;
        let created_ns = stamps.created_at.map(coorp_core::Instant::as_nanos);
        (
            created_ns,
            stamps.received_at.as_nanos(),
            stamps.listed_at.as_nanos(),
            self.taken_ns,
        )
    }

    #[getter]
    fn data(&self, py: Python<'_>) -> Py<PyBytes> {
        let data = self
            .data
            .get_or_init(py, || PyBytes::new(py, self.state.bytes()).unbind());
        data.clone_ref(py)
    }

    fn __bytes__(&self, py: Python<'_>) -> Py<PyBytes> {
        self.data(py)
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        format!("<coorp.RobotState of '{}'{}>", self.name.bind(py), aged(self.state.age))
    }
}
