//! How things go wrong in Python: the command line's two kinds of failure, with its words.

use coorp_cli::failure::{Failure, NoResult};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::{create_exception, PyErr};

create_exception!(
    coorp,
    InputError,
    PyValueError,
    "Something for you to mend: a team file, a policy, an option. The text says what and how."
);
#[cfg(feature = "live")]
create_exception!(
    coorp,
    NodeError,
    PyRuntimeError,
    "The network, the machine or another robot did not do its part. The text says what happened."
);
create_exception!(
    coorp,
    BrokenRuleError,
    PyRuntimeError,
    "A run broke a rule that always holds: a defect of Coorp. Please report it with the text."
);

/// The exception for a failure of the command line.
pub fn raised(failure: &Failure) -> PyErr {
    match failure {
        Failure::Input(text) => InputError::new_err(text.clone()),
        Failure::Found(text) => BrokenRuleError::new_err(text.clone()),
    }
}

/// The exception for input to mend.
pub fn input(text: impl std::fmt::Display) -> PyErr {
    InputError::new_err(format!("error: {text}"))
}

/// The exception where a run gave no result. `file` and `run` say which run it was.
pub fn no_result(error: &NoResult, file: &str, run: &str) -> PyErr {
    match error {
        NoResult::Input(why) => input(format_args!("{file}: {why}")),
        NoResult::Broken(_) => raised(&error.ends(&format!("{file}, {run}"))),
    }
}
