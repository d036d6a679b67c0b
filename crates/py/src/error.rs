//! Errors in Python: the command line's two kinds of failure, with the same messages.

use coorp_cli::failure::{Failure, NoResult};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::{create_exception, PyErr};

create_exception!(
    coorp,
    InputError,
    PyValueError,
    "Invalid input: a team file, a policy or an option. The text says what is wrong and how to fix it."
);
#[cfg(feature = "live")]
create_exception!(
    coorp,
    NodeError,
    PyRuntimeError,
    "A failure of the network, the machine or another robot. The text says what happened."
);
#[cfg(target_os = "linux")]
create_exception!(
    coorp,
    ChannelError,
    PyRuntimeError,
    "A failure of the machine or of another process of this robot. The text says what happened."
);
create_exception!(
    coorp,
    BrokenRuleError,
    PyRuntimeError,
    "A run violated an invariant: a bug in Coorp. Please report it with this text."
);

/// Converts a failure of the command line to an exception.
pub fn raised(failure: &Failure) -> PyErr {
    match failure {
        Failure::Input(text) => InputError::new_err(text.clone()),
        Failure::Found(text) => BrokenRuleError::new_err(text.clone()),
    }
}

/// Returns the exception for invalid input.
pub fn input(text: impl std::fmt::Display) -> PyErr {
    InputError::new_err(format!("error: {text}"))
}

/// Returns the exception for a run without a result. `file` and `run` identify the run.
pub fn no_result(error: &NoResult, file: &str, run: &str) -> PyErr {
    match error {
        NoResult::Input(why) => input(format_args!("{file}: {why}")),
        NoResult::Broken(_) => raised(&error.ends(&format!("{file}, {run}"))),
    }
}
