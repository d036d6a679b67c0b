//! Checks a reactor program with [`coorp_core::logical`], for the front end, before the program runs.

use std::sync::Arc;

use coorp_core::logical::graph::{BuildError, Place, Problem};
use coorp_core::logical::{Graph, Program};
use pyo3::exceptions::{PyKeyError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use pyo3::{create_exception, intern};

create_exception!(
    coorp.reactor,
    ProgramError,
    PyValueError,
    "A reactor program that cannot run. The text names each problem, with its line in the file if it has one."
);

/// A checked program. The native runtime uses the same ids.
#[pyclass(module = "coorp._native", frozen)]
pub struct ReactorGraph {
    pub graph: Arc<Graph>,
}

#[pymethods]
impl ReactorGraph {
    #[new]
    fn new(py: Python<'_>, program: &str) -> PyResult<Self> {
        let graph = py.detach(|| Graph::new(&parse(program)?).map_err(|error| refused(&error)))?;
        let graph = Arc::new(graph);
        Ok(ReactorGraph { graph })
    }

    fn element(&self, name: &str) -> PyResult<u32> {
        let id = self.graph.find(name);
        id.map(|id| id.0).ok_or_else(|| PyKeyError::new_err(name.to_owned()))
    }

    fn reaction(&self, name: &str) -> PyResult<u32> {
        let id = self.graph.find_reaction(name);
        id.map(|id| id.0).ok_or_else(|| PyKeyError::new_err(name.to_owned()))
    }

    fn levels(&self) -> Vec<u32> {
        self.graph.reactions().iter().map(|reaction| reaction.level).collect()
    }

    /// Returns, for each federate, the zero-delay cycle that it is part of.
    fn cycles(&self) -> Vec<Option<u16>> {
        self.graph.federates().iter().map(|federate| federate.cycle).collect()
    }

    fn __repr__(&self) -> String {
        let [federates, reactions, elements] = [
            self.graph.federates().len(),
            self.graph.reactions().len(),
            self.graph.elements().len(),
        ];
        format!("<ReactorGraph of {federates} federates, {reactions} reactions, {elements} elements>")
    }
}

/// Returns every problem of a program; empty if it can run.
#[pyfunction]
pub fn check_program<'py>(py: Python<'py>, program: &str) -> PyResult<Bound<'py, PyList>> {
    let checked = py.detach(|| Ok::<_, PyErr>(Graph::new(&parse(program)?)))?;
    let problems = PyList::empty(py);
    if let Err(error) = checked {
        for problem in &error.problems {
            let entry = PyDict::new(py);
            let (kind, names) = described(problem);
            entry.set_item(intern!(py, "kind"), kind)?;
            entry.set_item(intern!(py, "message"), problem.to_string())?;
            entry.set_item(intern!(py, "names"), names)?;
            problems.append(entry)?;
        }
    }
    Ok(problems)
}

fn parse(program: &str) -> PyResult<Program> {
    serde_json::from_str(program).map_err(|error| ProgramError::new_err(format!("not a reactor program: {error}")))
}

fn refused(error: &BuildError) -> PyErr {
    ProgramError::new_err(error.to_string())
}

/// Returns the kind of a problem, and the full names that it concerns.
fn described(problem: &Problem) -> (&'static str, Vec<&str>) {
    match problem {
        Problem::CausalityCycle { path } => ("CausalityCycle", path.iter().map(String::as_str).collect()),
        Problem::DoubleWriter { input, first, second } => ("DoubleWriter", vec![input, first, second]),
        Problem::UnconnectedInput { input } => ("UnconnectedInput", vec![input]),
        Problem::Unknown { name, place } => ("Unknown", named(name, place)),
        Problem::WrongKind { name, place } => ("WrongKind", named(name, place)),
        Problem::DuplicateName { name } => ("DuplicateName", vec![name]),
        Problem::NoTrigger { reaction } => ("NoTrigger", vec![reaction]),
        Problem::ZeroPeriod { timer } => ("ZeroPeriod", vec![timer]),
        Problem::UnknownFederate { reactor, .. } => ("UnknownFederate", vec![reactor]),
        Problem::TooMany { .. } => ("TooMany", Vec::new()),
        _ => ("Other", Vec::new()),
    }
}

fn named<'a>(name: &'a str, place: &'a Place) -> Vec<&'a str> {
    match place {
        Place::Triggers(other)
        | Place::Sources(other)
        | Place::Effects(other)
        | Place::From { to: other }
        | Place::To { from: other } => vec![name, other],
        _ => vec![name],
    }
}
