//! A team in Python, as far as a co-simulation needs it.

use coorp_team::Sync;
use pyo3::prelude::*;

use crate::input::{self, Source};

/// The contents of a team file, read-only.
#[pyclass(module = "coorp", frozen, get_all)]
pub struct Team {
    name: String,
    robots: Vec<String>,
    leader: usize,
    period_s: Option<f64>,
    bound_s: Option<f64>,
    perception_bytes: Option<u64>,
    command_bytes: Option<u64>,
    learning: Option<Py<Learning>>,
}

/// The contents of `[learning]`, read-only.
#[pyclass(module = "coorp", frozen, get_all)]
pub struct Learning {
    parameters: u64,
    bytes_per_parameter: u8,
    sync: &'static str,
    staleness: Option<u32>,
    batch_loops: u32,
    rounds: u32,
    training_s: Vec<f64>,
    item_bytes: u64,
}

#[pymethods]
impl Team {
    fn __repr__(&self) -> String {
        format!("<coorp.Team '{}' of {} robots>", self.name, self.robots.len())
    }
}

#[pymethods]
impl Learning {
    fn __repr__(&self) -> String {
        format!(
            "<coorp.Learning of {} parameters, {} rounds under {}>",
            self.parameters, self.rounds, self.sync
        )
    }
}

impl Team {
    pub fn of(py: Python<'_>, team: &coorp_team::Team) -> PyResult<Team> {
        let control = team.control.as_ref();
        let learning = team.learning.map(|learning| Py::new(py, Learning::of(team, &learning)));
        Ok(Team {
            name: team.name.clone(),
            robots: team.robots.iter().map(|robot| robot.name.clone()).collect(),
            leader: usize::from(team.leader.0),
            period_s: control.map(|control| control.period.as_secs_f64()),
            bound_s: control.map(|control| control.bound.as_secs_f64()),
            perception_bytes: control.map(|control| control.perception_bytes),
            command_bytes: control.map(|control| control.command_bytes),
            learning: learning.transpose()?,
        })
    }
}

impl Learning {
    fn of(team: &coorp_team::Team, learning: &coorp_team::Learning) -> Learning {
        let (sync, staleness) = match learning.sync {
            Sync::Bsp => ("bsp", None),
            Sync::Ssp { staleness } => ("ssp", Some(staleness)),
            Sync::Asp => ("asp", None),
        };
        let training = |robot: &coorp_team::Robot| robot.training.unwrap_or(learning.training).as_secs_f64();
        Learning {
            parameters: learning.parameters,
            bytes_per_parameter: learning.bytes_per_parameter,
            sync,
            staleness,
            batch_loops: learning.batch_loops,
            rounds: learning.rounds,
            training_s: team.robots.iter().map(training).collect(),
            item_bytes: learning.item_bytes,
        }
    }
}

/// Reads a team file and returns its contents.
#[pyfunction]
pub fn check(py: Python<'_>, team: &Bound<'_, PyAny>) -> PyResult<Team> {
    let Source { team, .. } = input::team(team)?;
    Team::of(py, &team)
}
