//! `coorp._native`: the simulator and the command line as the Python package `coorp` has them.
//!
//! Thin: values cross the border here, nothing is decided. What Python sees of it is described in
//! `python/coorp/_native.pyi` and tested in `python/tests`.

use std::ffi::OsString;

use pyo3::prelude::*;

/// Runs the whole command line; the program's name is left out of `arguments`.
#[pyfunction]
fn main(py: Python<'_>, arguments: Vec<OsString>) -> u8 {
    py.detach(|| coorp_cli::run(&arguments))
}

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_function(wrap_pyfunction!(main, module)?)?;
    Ok(())
}
