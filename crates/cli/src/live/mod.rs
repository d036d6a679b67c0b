//! The commands of the live system: `coorp keys`, `coorp up`, `coorp watch`, `coorp doctor`. Behind the feature `live`,
//! which is on by default.

#[cfg(target_os = "linux")]
pub mod demo;
#[cfg(target_os = "linux")]
pub mod doctor;
#[cfg(target_os = "linux")]
pub mod faults;
pub mod keys;
#[cfg(target_os = "linux")]
mod program;
pub mod replay;
mod rights;
mod supervise;
mod terminal;
pub mod up;
pub mod watch;
mod web;

use std::io::IsTerminal;
use std::path::Path;

use coorp_node::Error;
use coorp_team::Team;
use tracing_subscriber::EnvFilter;

use crate::failure::Failure;
use crate::output;

#[cfg(target_os = "linux")]
pub use program::this_program;

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        if error.is_input() {
            Failure::Input(format!("error: {error}"))
        } else {
            Failure::Found(format!("failed: {error}"))
        }
    }
}

fn load(file: &Path) -> Result<Team, Failure> {
    coorp_node::load(file).map_err(|error| Failure::Input(error.to_string()))
}

/// Warns that there are no keys, regardless of the log filter.
fn note_insecure() {
    output::note(&format!("WARNING: --insecure: {}", coorp_node::INSECURE));
}

/// The default log filter if RUST_LOG is not set: what the robot does, and errors of libraries.
const LOG_DEFAULT: &str = "coorp_node=info,error";
/// Not logged, because the commands print this warning themselves.
const LOG_WITHOUT: &str = "coorp_node::insecure=off";

/// Sends this process's log to standard error from now on. A second call changes nothing, and says so.
pub fn log() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(LOG_DEFAULT));
    let filter = match LOG_WITHOUT.parse() {
        Ok(without) => filter.add_directive(without),
        Err(_) => filter,
    };
    let colours = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(colours);
    if log.try_init().is_err() {
        output::note("note: the log was already set up, and stays as it is");
    }
}
