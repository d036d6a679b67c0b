//! Any Python buffer, as bytes. The stable ABI of Python 3.10 has no buffers, so they are accessed through NumPy.

use numpy::{PyArray1, PyArrayMethods, PyReadonlyArray1};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyMemoryView};

use crate::error::input;

/// The bytes of a buffer, which stays borrowed.
pub enum Contents<'py> {
    Bytes(Bound<'py, PyBytes>),
    Array(PyReadonlyArray1<'py, u8>),
    /// NumPy makes no array of an empty buffer.
    Empty,
}

impl<'py> Contents<'py> {
    pub fn of(given: &Bound<'py, PyAny>) -> PyResult<Self> {
        if let Ok(bytes) = given.cast::<PyBytes>() {
            return Ok(Self::Bytes(bytes.clone()));
        }
        if let Ok(array) = given.cast::<PyArray1<u8>>() {
            return Self::borrowed(array);
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
            return Err(scattered());
        }
        if view.getattr("nbytes")?.extract::<usize>()? == 0 {
            return Ok(Self::Empty);
        }
        let numpy = given.py().import("numpy")?;
        let array = numpy.call_method1("frombuffer", (view, numpy.getattr("uint8")?))?;
        Self::borrowed(
            array
                .cast::<PyArray1<u8>>()
                .map_err(|error| PyTypeError::new_err(error.to_string()))?,
        )
    }

    fn borrowed(array: &Bound<'py, PyArray1<u8>>) -> PyResult<Self> {
        let array = array
            .try_readonly()
            .map_err(|error| PyTypeError::new_err(error.to_string()))?;
        array.as_slice().map_err(|_| scattered())?;
        Ok(Self::Array(array))
    }

    pub fn as_slice(&self) -> &[u8] {
        match self {
            Self::Bytes(bytes) => bytes.as_bytes(),
            // The array was already found to be contiguous.
            Self::Array(array) => array.as_slice().unwrap_or_default(),
            Self::Empty => &[],
        }
    }
}

fn scattered() -> PyErr {
    input("the buffer is not contiguous: pass numpy.ascontiguousarray(...) of it")
}

/// Calls `with` with the bytes of a buffer, without copying them.
#[cfg(feature = "live")]
pub fn bytes<T>(given: &Bound<'_, PyAny>, with: impl FnOnce(&[u8]) -> PyResult<T>) -> PyResult<T> {
    with(Contents::of(given)?.as_slice())
}
