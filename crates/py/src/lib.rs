//! `coorp._native`: the simulator, live robots and the command line as the Python package `coorp` has them.
//!
//! Thin: values cross the border here, nothing is decided. Whatever takes long lets go of the GIL. What Python sees
//! is described in `python/coorp/_native.pyi` and tested in `python/tests`.

mod error;
mod input;
#[cfg(feature = "live")]
mod live;
mod motion;
mod raster;
mod result;
mod session;
mod team;

use std::ffi::OsString;

use pyo3::prelude::*;

/// Runs the whole command line; the program's name is left out of `arguments`.
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
    module.add_class::<motion::NavigationDynamics>()?;
    module.add_function(wrap_pyfunction!(raster::perceive, module)?)?;
    Ok(())
}
