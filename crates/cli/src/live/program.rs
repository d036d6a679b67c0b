//! Finds the command line that starts this program again, as a robot.

use std::ffi::OsString;

/// Returns the command line without options. The Python package's command runs inside Python. An interpreter's packages
/// depend on the name by which it was called, so that name is kept.
pub fn this_program() -> std::io::Result<Vec<OsString>> {
    let program = std::env::current_exe()?;
    let is_python = program
        .file_name()
        .is_some_and(|name| name.to_string_lossy().starts_with("python"));
    match std::env::args_os().next().filter(|_| is_python) {
        Some(python) => Ok(vec![python, "-m".into(), "coorp".into()]),
        None => Ok(vec![program.into()]),
    }
}
