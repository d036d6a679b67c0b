//! How this program is started once more, as a robot of its own.

use std::ffi::OsString;

/// The command line without options. The command of the Python package runs inside of Python, and of an interpreter only
/// the name that it was called by says which packages it has.
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
