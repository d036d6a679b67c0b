//! A robot of a live team in Python: `coorp.Node` and the objects it returns. Behind the feature `live`.

#[cfg(target_os = "linux")]
mod bridge;
mod bulk;
#[cfg(target_os = "linux")]
mod content;
mod control;
mod gather;
mod wait;

use std::ffi::CString;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, Weak};

use coorp_cli::policies;
use coorp_core::tracker::Topics;
use coorp_core::RobotId;
use coorp_node::metrics::Metrics;
use coorp_node::recording::Recording;
use coorp_node::shared_node::SharedNode;
use coorp_node::{Error, Options, INSECURE};
use numpy::PyArray1;
use pyo3::exceptions::{PyRuntimeWarning, PyTimeoutError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use crate::error::{input as mend, raised, NodeError};
use crate::input;
use crate::result::as_in_json;
use wait::{block, lock, or_closed, Coming, Waiting};

/// Adds the live classes to the module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("NodeError", module.py().get_type::<NodeError>())?;
    module.add_class::<Node>()?;
    #[cfg(target_os = "linux")]
    module.add_class::<bridge::Bridge>()?;
    module.add_class::<control::ControlPublisher>()?;
    module.add_class::<control::ControlSubscriber>()?;
    module.add_class::<control::Message>()?;
    module.add_class::<bulk::BulkStream>()?;
    module.add_class::<bulk::Delivery>()?;
    module.add_class::<bulk::BulkReceiver>()?;
    module.add_class::<bulk::BulkMessage>()?;
    module.add_class::<gather::Gather>()?;
    module.add_class::<gather::RobotState>()?;
    module.add_class::<Waiting>()?;
    #[cfg(target_os = "linux")]
    {
        module.add_function(wrap_pyfunction!(content::prepare_members, module)?)?;
        module.add_function(wrap_pyfunction!(content::run_member, module)?)?;
        module.add_function(wrap_pyfunction!(content::member_figures, module)?)?;
    }
    module.add_function(wrap_pyfunction!(close_all, module)?)
}

/// State shared by a node's objects.
struct Shared {
    node: SharedNode,
    metrics: Mutex<Option<Metrics>>,
    recording: Mutex<Option<Recording>>,
}

impl Shared {
    /// Runs `what` with the node. Call it without the GIL if that may take long.
    fn with<T>(&self, what: impl FnOnce(&coorp_node::Node) -> Result<T, Error>) -> PyResult<T> {
        self.node.with(what).map_err(failed)
    }

    /// Raises once the node has been closed.
    fn check(&self) -> PyResult<()> {
        self.node.closing().check().map_err(failed)
    }

    fn robot(&self, robot: RobotId) -> &str {
        self.node.robot(robot)
    }

    fn waiting(&self, coming: Coming) -> PyResult<Waiting> {
        Waiting::new(or_closed(coming, self.node.closing().clone()))
    }

    /// Blocks until the result arrives; raises `TimeoutError` if it does not arrive in time.
    fn block(&self, py: Python<'_>, coming: Coming, timeout: Option<f64>, what: &str) -> PyResult<Py<PyAny>> {
        let limit = timeout.map(input::timeout).transpose()?;
        let came = block(py, or_closed(coming, self.node.closing().clone()), limit)?;
        came.ok_or_else(|| PyTimeoutError::new_err(format!("{what} within {} s", timeout.unwrap_or_default())))
    }

    fn close(&self) {
        self.node.closing().close();
        let (recording, metrics) = (lock(&self.recording).take(), lock(&self.metrics).take());
        drop((recording, metrics));
        self.node.close();
    }
}

/// Open nodes, to be closed before the interpreter ends.
static OPEN: Mutex<Vec<Weak<Shared>>> = Mutex::new(Vec::new());

/// Closes every node. Python calls it on exit.
#[pyfunction]
fn close_all(py: Python<'_>) {
    let open = std::mem::take(&mut *lock(&OPEN));
    py.detach(|| open.iter().filter_map(Weak::upgrade).for_each(|node| node.close()));
}

fn close_at_exit(py: Python<'_>, node: &Arc<Shared>) -> PyResult<()> {
    static REGISTERED: PyOnceLock<()> = PyOnceLock::new();
    REGISTERED.get_or_try_init(py, || {
        let close = py.import("coorp._native")?.getattr("close_all")?;
        py.import("atexit")?.call_method1("register", (close,))?;
        PyResult::Ok(())
    })?;
    let mut open = lock(&OPEN);
    open.retain(|node| node.strong_count() > 0);
    open.push(Arc::downgrade(node));
    Ok(())
}

/// A robot that takes part in its team until it is closed.
#[pyclass(module = "coorp", frozen)]
pub struct Node {
    shared: Arc<Shared>,
    name: String,
}

#[pymethods]
impl Node {
    #[new]
    #[pyo3(signature = (team, robot, *, policy = "coorp", insecure = false, state = None))]
    fn new(
        py: Python<'_>,
        team: &Bound<'_, PyAny>,
        robot: String,
        policy: &str,
        insecure: bool,
        state: Option<PathBuf>,
    ) -> PyResult<Node> {
        let policy = policies::named(policy).map_err(|failure| raised(&failure))?;
        let team = input::team(team)?.team;
        if std::env::var_os("RUST_LOG").is_some() {
            coorp_cli::log();
        }
        let name = robot.clone();
        let options = Options {
            team,
            robot,
            policy,
            insecure,
            state,
        };
        if insecure {
            // The warning refers to the line that opened the node.
            let text = CString::new(format!("{name} is insecure: {INSECURE}"))?;
            PyErr::warn(py, &py.get_type::<PyRuntimeWarning>(), &text, 1)?;
        }
        let shared = Arc::new(Shared {
            node: py.detach(|| SharedNode::open(options)).map_err(failed)?,
            metrics: Mutex::default(),
            recording: Mutex::default(),
        });
        close_at_exit(py, &shared)?;
        Ok(Node { shared, name })
    }

    #[getter]
    fn robot(&self) -> &str {
        &self.name
    }

    #[getter]
    fn guest(&self) -> PyResult<bool> {
        self.shared.with(|node| Ok(node.is_guest()))
    }

    #[getter]
    fn leader(&self, py: Python<'_>) -> PyResult<Option<String>> {
        let status = py.detach(|| self.shared.with(coorp_node::Node::status))?;
        let leader = status
            .leader
            .map(|leader| self.shared.robot(RobotId(leader)).to_owned());
        Ok(leader)
    }

    #[pyo3(signature = (name, period = None, *, bound = None))]
    fn control_publisher(
        &self,
        py: Python<'_>,
        name: &str,
        period: Option<&Bound<'_, PyAny>>,
        bound: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<control::ControlPublisher> {
        let period = period.map(|period| span("period", period)).transpose()?;
        let bound = bound.map(|bound| span("bound", bound)).transpose()?;
        let publisher = py.detach(|| self.shared.with(|node| node.control_publisher(name, period)))?;
        publisher.set_bound(bound);
        Ok(control::ControlPublisher::new(&self.shared, publisher))
    }

    fn control_subscriber(&self, py: Python<'_>, name: &str) -> PyResult<control::ControlSubscriber> {
        let subscriber = py.detach(|| self.shared.with(|node| node.control_subscriber(name)))?;
        Ok(control::ControlSubscriber::new(&self.shared, name, subscriber))
    }

    fn bulk_stream(&self, py: Python<'_>, to: &str, name: &str) -> PyResult<bulk::BulkStream> {
        let stream = py.detach(|| self.shared.with(|node| node.bulk_stream(to, name)))?;
        Ok(bulk::BulkStream::new(&self.shared, stream))
    }

    fn bulk_receiver(&self, py: Python<'_>) -> PyResult<bulk::BulkReceiver> {
        // This loads NumPy, which takes 0.1 s and more. With the first message, control would wait for it.
        drop(PyArray1::<u8>::from_vec(py, Vec::new()));
        let receiver = py.detach(|| self.shared.with(coorp_node::Node::bulk_receiver))?;
        Ok(bulk::BulkReceiver::new(&self.shared, receiver))
    }

    #[pyo3(signature = (name, period, *, many_to_one = false))]
    fn gather(
        &self,
        py: Python<'_>,
        name: &str,
        period: &Bound<'_, PyAny>,
        many_to_one: bool,
    ) -> PyResult<gather::Gather> {
        let period = span("period", period)?;
        let topics = if many_to_one {
            Topics::ManyToOne
        } else {
            Topics::OneToOne
        };
        let gather = py.detach(|| self.shared.with(|node| node.gather(name, period, topics)))?;
        Ok(gather::Gather::new(py, &self.shared, name, gather))
    }

    fn status<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let status = py.detach(|| self.shared.with(coorp_node::Node::status))?;
        as_in_json(py, &status)
    }

    #[pyo3(signature = (port = 0))]
    fn serve_metrics(&self, py: Python<'_>, port: u16) -> PyResult<u16> {
        // Stop an earlier server first, because it may use the same port.
        let before = lock(&self.shared.metrics).take();
        let metrics = py.detach(|| {
            drop(before);
            self.shared.with(|node| node.serve_metrics(port))
        })?;
        let port = metrics.port();
        *lock(&self.shared.metrics) = Some(metrics);
        Ok(port)
    }

    fn record(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        let recording = py.detach(|| self.shared.with(|node| node.record(&path)))?;
        *lock(&self.shared.recording) = Some(recording);
        Ok(())
    }

    fn stop_recording(&self, py: Python<'_>) -> PyResult<()> {
        let Some(recording) = lock(&self.shared.recording).take() else {
            return Ok(());
        };
        py.detach(|| recording.finish()).map_err(failed)
    }

    fn close(&self, py: Python<'_>) {
        py.detach(|| self.shared.close());
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_raised))]
    fn __exit__(&self, py: Python<'_>, _raised: &Bound<'_, PyAny>) {
        self.close(py);
    }

    fn __repr__(&self) -> String {
        let closed = if self.shared.check().is_err() { ", closed" } else { "" };
        format!("<coorp.Node '{}'{closed}>", self.name)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // The node's threads never take the GIL, so this may hold it while they end.
        self.shared.close();
    }
}

/// Returns the exception for a failure of a live robot.
fn failed(error: Error) -> PyErr {
    if error.is_input() {
        mend(error)
    } else {
        NodeError::new_err(error.to_string())
    }
}

/// Parses a span of time, the argument `name`: a text with a unit, or a number of seconds.
fn span(name: &str, given: &Bound<'_, PyAny>) -> PyResult<coorp_core::Duration> {
    if let Ok(text) = given.extract::<String>() {
        return coorp_team::duration(&text).map_err(|why| mend(format_args!("{name} = \"{text}\": {why}")));
    }
    let seconds = given
        .extract::<f64>()
        .ok()
        .filter(|seconds| (1e-9..=1e6).contains(seconds));
    let seconds = seconds.ok_or_else(|| {
        let given = given
            .repr()
            .map_or_else(|_| "that".to_owned(), |shown| shown.to_string());
        mend(format_args!(
            "{name} = {given}: write a time such as \"33ms\", or seconds such as 0.033"
        ))
    })?;
    Ok(coorp_core::Duration::from_secs_f64(seconds))
}
