//! Any Python buffer, as bytes.

use numpy::{PyArray1, PyArrayMethods};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyMemoryView};

use crate::error::input;

/// Calls `with` with the bytes of a buffer, without copying them. The stable ABI of Python 3.10 has no buffers, so
/// buffers other than `bytes` are accessed through NumPy.
pub fn bytes<T>(given: &Bound<'_, PyAny>, with: impl FnOnce(&[u8]) -> PyResult<T>) -> PyResult<T> {
    if let Ok(bytes) = given.cast::<PyBytes>() {
        return with(bytes.as_bytes());
    }
    let view = PyMemoryView::from(given).map_err(|_| {
        let kind = given
            .get_type()
            .name()
            .map_or_else(|_| "that".to_owned(), |name| name.to_string());
        PyTypeError::new_err(format!(
            "{kind} has no buffer: pass bytes, a bytearray, a NumPy array, or anything that memoryview() accepts"
        ))
    })?;
    if !view.getattr("c_contiguous")?.extract::<bool>()? {
        return Err(input(
            "the buffer is not contiguous: pass numpy.ascontiguousarray(...) of it",
        ));
    }
    if view.getattr("nbytes")?.extract::<usize>()? == 0 {
        return with(&[]);
    }
    let numpy = given.py().import("numpy")?;
    let array = numpy.call_method1("frombuffer", (view, numpy.getattr("uint8")?))?;
    let array = array
        .cast_into::<PyArray1<u8>>()
        .map_err(|error| PyTypeError::new_err(error.to_string()))?;
    let readable = array
        .try_readonly()
        .map_err(|error| PyTypeError::new_err(error.to_string()))?;
    let slice = readable
        .as_slice()
        .map_err(|error| PyTypeError::new_err(error.to_string()))?;
    with(slice)
}
