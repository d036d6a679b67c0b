//! A run's result in Python: the JSON's numbers as attributes, the series as NumPy arrays.

use coorp_sim::results::Run;
use numpy::{PyArray1, PyArray2, PyArrayMethods};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use serde::Serialize;

/// The result of a run. Fields that do not apply to the team file are None.
#[pyclass(module = "coorp", frozen)]
pub struct Result {
    run: Run,
}

impl Result {
    pub fn of(run: Run) -> Result {
        Result { run }
    }
}

#[pymethods]
impl Result {
    #[getter]
    fn policy(&self) -> &str {
        &self.run.result.policy
    }

    #[getter]
    fn violation_rate(&self) -> Option<f64> {
        self.run.result.violation_rate
    }

    #[getter]
    fn loops(&self) -> u64 {
        self.run.result.loops
    }

    #[getter]
    fn reaction_ms<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        as_in_json(py, &self.run.result.reaction_ms)
    }

    #[getter]
    fn control_latency_ms<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        as_in_json(py, &self.run.result.control_latency_ms)
    }

    #[getter]
    fn perception_latency_ms<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        as_in_json(py, &self.run.result.perception_latency_ms)
    }

    #[getter]
    fn command_latency_ms<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        as_in_json(py, &self.run.result.command_latency_ms)
    }

    #[getter]
    fn bulk_mbps(&self) -> Option<f64> {
        self.run.result.bulk_mbps
    }

    #[getter]
    fn epochs(&self) -> u64 {
        self.run.result.epochs
    }

    #[getter]
    fn epoch_s(&self) -> Option<f64> {
        self.run.result.epoch_s
    }

    #[getter]
    fn wnic_ahead<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        as_in_json(py, &self.run.result.wnic_ahead)
    }

    #[getter]
    fn window_share(&self) -> f64 {
        self.run.result.window_share
    }

    #[getter]
    fn virtual_s(&self) -> f64 {
        self.run.result.virtual_s
    }

    #[getter]
    fn wall_s(&self) -> f64 {
        self.run.result.wall_s
    }

    #[getter]
    fn events(&self) -> u64 {
        self.run.result.events
    }

    #[getter]
    fn flows<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        as_in_json(py, &self.run.result.flows)
    }

    #[getter]
    fn mac<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        as_in_json(py, &self.run.result.mac)
    }

    #[getter]
    fn reaction_cdf<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray2<f64>>> {
        pairs(py, &self.run.charts.reaction_cdf)
    }

    #[getter]
    fn control_cdf<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray2<f64>>> {
        pairs(py, &self.run.charts.control_cdf)
    }

    #[getter]
    fn throughput<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray2<f64>>> {
        pairs(py, &self.run.charts.throughput)
    }

    fn to_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        as_in_json(py, &self.run.result)
    }

    fn to_json(&self) -> PyResult<String> {
        json(&self.run.result)
    }

    fn __repr__(&self) -> String {
        let result = &self.run.result;
        let late = result
            .violation_rate
            .map(|rate| format!(", violation rate {:.1} %", rate * 100.0));
        let bulk = result.bulk_mbps.map(|mbps| format!(", bulk {mbps:.1} Mbit/s"));
        let (late, bulk) = (late.unwrap_or_default(), bulk.unwrap_or_default());
        format!(
            "<coorp.Result of '{}' after {} s{late}{bulk}>",
            result.policy, result.virtual_s
        )
    }
}

fn json(value: &impl Serialize) -> PyResult<String> {
    serde_json::to_string(value).map_err(|error| PyRuntimeError::new_err(error.to_string()))
}

/// Returns the value as Python parses it from the JSON.
pub fn as_in_json<'py>(py: Python<'py>, value: &impl Serialize) -> PyResult<Bound<'py, PyAny>> {
    py.import("json")?.call_method1("loads", (json(value)?,))
}

/// Returns an array with one row per pair.
fn pairs<'py>(py: Python<'py>, pairs: &[(f64, f64)]) -> PyResult<Bound<'py, PyArray2<f64>>> {
    let flat: Vec<f64> = pairs.iter().flat_map(|(x, y)| [*x, *y]).collect();
    PyArray1::from_vec(py, flat).reshape([pairs.len(), 2])
}
