//! A robot of `coorp learn --live`: the robot of `coorp emu --demo`, with a Python object for the content of its messages.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Mutex;

use coorp_cli::content::{figures, prepare, Content, Member};
use coorp_cli::failure::Failure;
use coorp_cli::policies;
use coorp_core::policy::Policy;
use coorp_core::{Duration, RobotId};
use coorp_sim::events::EventKind;
use coorp_team::Team;
use pyo3::call::PyCallArgs;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::wait::lock;
use crate::buffer;
use crate::error::{raised, NodeError};
use crate::input;
use crate::result::as_in_json;

/// The Python object, and the exception that ended the run.
struct Called {
    object: Py<PyAny>,
    ended: AtomicBool,
    raised: Mutex<Option<PyErr>>,
}

impl Called {
    /// Calls a method with what `arguments` makes, and reads its result.
    fn call<A: for<'py> PyCallArgs<'py>, T>(
        &self,
        name: &str,
        arguments: impl FnOnce(Python<'_>) -> A,
        read: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<T>,
    ) -> Result<T, Failure> {
        let called = Python::attach(|py| {
            let result = self.object.bind(py).call_method1(name, arguments(py))?;
            read(&result)
        });
        called.map_err(|error| {
            // The first exception is the cause of the others.
            lock(&self.raised).get_or_insert(error);
            Failure::Found("failed: the content of a message".to_owned())
        })
    }

    /// Ends the run if the method returned False.
    fn or_end(&self, goes_on: bool) {
        if !goes_on {
            self.ended.store(true, Ordering::Relaxed);
        }
    }
}

fn nothing(_: &Bound<'_, PyAny>) -> PyResult<()> {
    Ok(())
}

fn contents(given: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    buffer::bytes(given, |bytes| Ok(bytes.to_vec()))
}

impl Content for Called {
    fn begins(&self, at_ns: u64) -> Result<(), Failure> {
        self.call("begins", |_| (at_ns,), nothing)
    }

    fn goes_on(&self) -> bool {
        !self.ended.load(Ordering::Relaxed)
    }

    fn perceive(&self, sample: u64) -> Result<Vec<u8>, Failure> {
        let perceived = self.call(
            "perceive",
            |_| (sample,),
            |given| {
                let (goes_on, content) = given.extract::<(bool, Bound<'_, PyAny>)>()?;
                Ok((goes_on, contents(&content)?))
            },
        );
        perceived.map(|(goes_on, content)| {
            self.or_end(goes_on);
            content
        })
    }

    fn on_perception(&self, robot: RobotId, sample: u64, content: &[u8]) -> Result<(), Failure> {
        let arguments = |py: Python<'_>| (robot.0, sample, PyBytes::new(py, content).unbind());
        self.call("on_perception", arguments, nothing)
    }

    fn infer(&self, round: u64) -> Result<(), Failure> {
        self.call("infer", |_| (round,), |goes_on| goes_on.extract())
            .map(|goes_on| self.or_end(goes_on))
    }

    fn command(&self, round: u64, robot: RobotId) -> Result<Vec<u8>, Failure> {
        self.call("command", |_| (round, robot.0), contents)
    }

    fn on_command(&self, round: u64, content: &[u8]) -> Result<(), Failure> {
        let arguments = |py: Python<'_>| (round, PyBytes::new(py, content).unbind());
        self.call("on_command", arguments, nothing)
    }

    fn on_event(&self, kind: EventKind, robot: RobotId) -> Result<(), Failure> {
        self.call("on_event", |_| (kind as u8, robot.0), nothing)
    }

    fn to_worker(&self, robot: RobotId) -> Result<Vec<u8>, Failure> {
        self.call("to_worker", |_| (robot.0,), contents)
    }

    fn on_partition(&self, content: &[u8]) -> Result<(), Failure> {
        self.call("on_partition", |py| (PyBytes::new(py, content).unbind(),), nothing)
    }

    fn on_model(&self, content: &[u8]) -> Result<(), Failure> {
        self.call("on_model", |py| (PyBytes::new(py, content).unbind(),), nothing)
    }

    fn train(&self) -> Result<Vec<u8>, Failure> {
        self.call("train", |_| (), contents)
    }

    fn on_update(&self, robot: RobotId, content: &[u8]) -> Result<(), Failure> {
        let arguments = |py: Python<'_>| (robot.0, PyBytes::new(py, content).unbind());
        self.call("on_update", arguments, nothing)
    }
}

/// Reads a team and a policy, as for a session.
fn described(
    team: &Bound<'_, PyAny>,
    policy: &str,
    sync: Option<&str>,
    staleness: Option<i128>,
) -> PyResult<(Team, Policy)> {
    let policy = policies::named(policy).map_err(|failure| raised(&failure))?;
    let mut source = input::team(team)?;
    input::set_sync(&mut source, sync, staleness)?;
    Ok((source.team, policy))
}

/// Returns the exception for a failure of a live run.
fn failed(failure: &Failure) -> PyErr {
    match failure {
        Failure::Input(_) => raised(failure),
        Failure::Found(text) => NodeError::new_err(text.clone()),
    }
}

/// Prepares a folder for one run.
#[pyfunction]
pub fn prepare_members(py: Python<'_>, team: &Bound<'_, PyAny>, policy: &str, folder: PathBuf) -> PyResult<()> {
    let (team, policy) = described(team, policy, None, None)?;
    py.detach(|| prepare(&team, &policy, &folder))
        .map_err(|failure| failed(&failure))
}

/// Takes part in a run as the robot of this process.
#[pyfunction]
#[pyo3(signature = (team, policy, folder, *, duration_s, content, sync = None, staleness = None))]
#[allow(clippy::too_many_arguments)] // Python has them by name.
pub fn run_member(
    py: Python<'_>,
    team: &Bound<'_, PyAny>,
    policy: &str,
    folder: PathBuf,
    duration_s: f64,
    content: Py<PyAny>,
    sync: Option<&str>,
    staleness: Option<i128>,
) -> PyResult<()> {
    let (team, policy) = described(team, policy, sync, staleness)?;
    let length = input::duration(duration_s)?;
    let called = Called {
        object: content,
        ended: AtomicBool::new(false),
        raised: Mutex::new(None),
    };
    let member = Member {
        team: &team,
        policy: &policy,
        folder: &folder,
        settle: Duration::ZERO,
        length,
    };
    let outcome = py.detach(|| member.take_part(&called));
    let raised = lock(&called.raised).take();
    match raised {
        Some(error) => Err(error),
        None => outcome.map_err(|failure| failed(&failure)),
    }
}

/// Returns the figures of a run, measured by its robots.
#[pyfunction]
pub fn member_figures<'py>(
    py: Python<'py>,
    team: &Bound<'py, PyAny>,
    policy: &str,
    folder: PathBuf,
) -> PyResult<Bound<'py, PyAny>> {
    let (team, policy) = described(team, policy, None, None)?;
    let figures = py
        .detach(|| figures(&team, &policy, &folder))
        .map_err(|failure| PyRuntimeError::new_err(failure.to_string()))?;
    as_in_json(py, &figures)
}
