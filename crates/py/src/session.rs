//! Runs from Python: a whole run at once, or step by step with the events of each step.

use std::sync::{Mutex, MutexGuard};

use coorp_cli::failure::NoResult;
use coorp_cli::{jobs, policies};
use coorp_core::policy::Policy;
use coorp_core::{Duration, Instant};
use coorp_sim::events::Event;
use coorp_sim::Options;
use numpy::PyArray1;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyString;

use crate::error::{no_result, raised};
use crate::input;
use crate::result::Result;
use crate::team::Team;

/// Virtual time between two checks for Python signals (Ctrl-C).
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// A run and its name in messages.
struct Running {
    session: coorp_sim::Session,
    file: String,
    run: String,
    /// Whether an invariant was violated, so that any further result would be meaningless.
    broken: bool,
}

impl Running {
    fn new(source: input::Source, policy: &Policy, options: &Options) -> PyResult<Running> {
        let file = source.shown;
        let run = format!("{}, seed {}", policy.name, options.seed);
        let made = jobs::guarded(|| coorp_sim::Session::new(source.team, policy, options).map_err(NoResult::from));
        match made {
            Ok(session) => Ok(Running {
                session,
                file,
                run,
                broken: false,
            }),
            Err(error) => Err(no_result(&error, &file, &run)),
        }
    }

    /// Advances up to `until`, or until a signal. Call it without the GIL.
    fn advance(&mut self, until: Instant) -> PyResult<()> {
        loop {
            let next = until.min(self.session.now() + LOOK_EVERY);
            if let Err(error) = jobs::guarded(|| self.session.advance(next).map_err(NoResult::from)) {
                self.broken = matches!(error, NoResult::Broken(_));
                return Err(no_result(&error, &self.file, &self.run));
            }
            if next >= until {
                return Ok(());
            }
            Python::attach(|py| py.check_signals())?;
        }
    }
}

/// Simulates a team under a policy and returns the result.
#[pyfunction]
#[pyo3(signature = (team, policy = "coorp", *, duration_s = 60.0, seed = 1, faults = false, sync = None, staleness = None))]
#[allow(clippy::too_many_arguments)] // Python has them by name.
pub fn simulate(
    py: Python<'_>,
    team: &Bound<'_, PyAny>,
    policy: &str,
    duration_s: f64,
    seed: i128,
    faults: bool,
    sync: Option<&str>,
    staleness: Option<i128>,
) -> PyResult<Result> {
    let duration = input::duration(duration_s)?;
    let policy = policies::named(policy).map_err(|failure| raised(&failure))?;
    let mut source = input::team(team)?;
    input::set_sync(&mut source, sync, staleness)?;
    let options = Options {
        duration,
        seed: input::seed(seed)?,
        faults,
        series: true,
        ..Options::default()
    };
    py.detach(|| {
        let mut running = Running::new(source, &policy, &options)?;
        running.advance(Instant::ZERO + duration)?;
        Ok(Result::of(running.session.result()))
    })
}

/// A run that is advanced step by step.
#[pyclass(module = "coorp", frozen)]
pub struct Session {
    running: Mutex<Running>,
    team: Py<Team>,
}

#[pymethods]
impl Session {
    #[new]
    #[pyo3(signature = (team, policy = "coorp", *, seed = 1, sync = None, staleness = None))]
    fn new(
        py: Python<'_>,
        team: &Bound<'_, PyAny>,
        policy: &str,
        seed: i128,
        sync: Option<&str>,
        staleness: Option<i128>,
    ) -> PyResult<Session> {
        let policy = policies::named(policy).map_err(|failure| raised(&failure))?;
        let mut source = input::team(team)?;
        input::set_sync(&mut source, sync, staleness)?;
        let team = Py::new(py, Team::of(py, &source.team)?)?;
        let options = Options {
            seed: input::seed(seed)?,
            series: true,
            events: true,
            ..Options::default()
        };
        let running = py.detach(|| Running::new(source, &policy, &options))?;
        Ok(Session {
            running: Mutex::new(running),
            team,
        })
    }

    #[getter]
    fn team(&self, py: Python<'_>) -> Py<Team> {
        self.team.clone_ref(py)
    }

    #[getter]
    fn now_s(&self, py: Python<'_>) -> PyResult<f64> {
        py.detach(|| Ok(self.lock()?.session.now().as_secs_f64()))
    }

    fn advance<'py>(&self, py: Python<'py>, until_s: f64) -> PyResult<Bound<'py, PyAny>> {
        let bytes = py.detach(|| {
            let mut running = self.lock()?;
            let until = input::until(until_s, running.session.now())?;
            running.advance(until)?;
            PyResult::Ok(packed(&running.session.take_events()))
        })?;
        let array = PyArray1::from_vec(py, bytes);
        array.call_method1("view", (event_dtype(py)?,))
    }

    fn result(&self, py: Python<'_>) -> PyResult<Result> {
        py.detach(|| Ok(Result::of(self.lock()?.session.result())))
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        py.detach(|| {
            let running = self.lock()?;
            let now_s = running.session.now().as_secs_f64();
            Ok(format!(
                "<coorp.Session of {}, {}, at {now_s} s>",
                running.file, running.run
            ))
        })
    }
}

impl Session {
    /// Locks the run. Call it without the GIL: the thread that has the run may be waiting for the GIL.
    fn lock(&self) -> PyResult<MutexGuard<'_, Running>> {
        let running = self.running.lock();
        running
            .ok()
            .filter(|running| !running.broken)
            .ok_or_else(|| PyRuntimeError::new_err("this session has failed; create a new one"))
    }
}

/// The layout of an event in Python's arrays.
const EVENT_FIELDS: [(&str, &str); 4] = [("t_ns", "<u8"), ("kind", "u1"), ("robot", "<u2"), ("number", "<u8")];
const EVENT_BYTES: usize = 8 + 1 + 2 + 8;

fn packed(events: &[Event]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(events.len() * EVENT_BYTES);
    for event in events {
        bytes.extend_from_slice(&event.at.as_nanos().to_le_bytes());
        bytes.push(event.kind as u8);
        bytes.extend_from_slice(&event.robot.0.to_le_bytes());
        bytes.extend_from_slice(&event.number.to_le_bytes());
    }
    bytes
}

/// Returns the dtype of [`Session::advance`]'s arrays.
#[pyfunction]
pub fn event_dtype(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    static DTYPE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let made = DTYPE.get_or_try_init(py, || {
        let fields = EVENT_FIELDS
            .map(|(name, kind)| (PyString::intern(py, name), kind))
            .to_vec();
        let dtype = py.import("numpy")?.call_method1("dtype", (fields,))?;
        PyResult::Ok(dtype.unbind())
    })?;
    Ok(made.bind(py).clone())
}
