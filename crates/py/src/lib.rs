//! `coorp._native`: the simulator, live robots and the command line for the Python package `coorp`.
//!
//! The wheel `coorp` has it without live robots, the wheel `coorp-live` with everything; Python loads one of the two
//! (`python/coorp/_halves.py`).
//!
//! A thin layer: it converts values and decides nothing. Slow operations release the GIL. `python/coorp/_native.pyi`
//! documents the Python API; `python/tests` tests it.

mod buffer;
mod error;
mod graph;
mod header;
mod input;
#[cfg(feature = "live")]
mod live;
#[cfg(target_os = "linux")]
mod local;
mod motion;
mod placement;
mod planner;
mod raster;
#[cfg(target_os = "linux")]
mod reactor;
mod result;
mod session;
mod surroundings;
mod team;

use std::ffi::OsString;

use pyo3::prelude::*;

/// Runs the whole command line; `arguments` excludes the program's name.
#[pyfunction]
fn main(py: Python<'_>, arguments: Vec<OsString>) -> u8 {
    py.detach(|| coorp_cli::run(&arguments))
}

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    coorp_cli::jobs::record_panics();
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("InputError", module.py().get_type::<error::InputError>())?;
    module.add("BrokenRuleError", module.py().get_type::<error::BrokenRuleError>())?;
    module.add_class::<team::Team>()?;
    module.add_class::<team::Learning>()?;
    module.add_class::<result::Result>()?;
    module.add_class::<session::Session>()?;
    module.add_function(wrap_pyfunction!(main, module)?)?;
    module.add_function(wrap_pyfunction!(team::check, module)?)?;
    module.add_function(wrap_pyfunction!(session::simulate, module)?)?;
    module.add_function(wrap_pyfunction!(session::event_dtype, module)?)?;
    #[cfg(feature = "live")]
    live::register(module)?;
    module.add("ProgramError", module.py().get_type::<graph::ProgramError>())?;
    module.add_class::<graph::ReactorGraph>()?;
    module.add_function(wrap_pyfunction!(graph::check_program, module)?)?;
    #[cfg(target_os = "linux")]
    local::register(module)?;
    #[cfg(target_os = "linux")]
    reactor::register(module)?;
    module.add_function(wrap_pyfunction!(header::check_header, module)?)?;
    module.add_function(wrap_pyfunction!(placement::placement_entries, module)?)?;
    module.add_class::<motion::NavigationDynamics>()?;
    module.add_class::<planner::Planner>()?;
    module.add_function(wrap_pyfunction!(raster::perceive, module)?)?;
    module.add_function(wrap_pyfunction!(surroundings::surroundings, module)?)?;
    Ok(())
}
