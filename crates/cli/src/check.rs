//! `coorp check`: reports what is wrong with a team file, and where, or one line if it is valid.

use std::path::PathBuf;

use coorp_team::Team;

use crate::failure::Failure;
use crate::number::grouped;
use crate::output;

/// Options of `coorp check`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The team file (TOML)
    file: PathBuf,
}

/// Checks one team file.
///
/// # Errors
/// The file has problems; the message lists all of them, each with its line and a fix.
pub fn run(args: &Args) -> Result<(), Failure> {
    let team = coorp_team::load(&args.file).map_err(|error| Failure::Input(error.to_string()))?;
    output::print(&format!("{}: valid: {}\n", args.file.display(), describe(&team)))
}

/// Returns the team in one line.
fn describe(team: &Team) -> String {
    let mut parts = vec![plural(team.robots.len(), "robot")];
    if !team.places.is_empty() {
        parts.push(format!("{} for others", plural(team.places.len(), "place")));
    }
    parts.push(format!(
        "channel {} at {} MHz, {} WNICs",
        team.air.channel, team.air.width_mhz, team.air.wnic.name
    ));
    if !team.interfaces.is_empty() {
        parts.push(plural(team.interfaces.len(), "further interface"));
    }
    if let Some(control) = &team.control {
        let rate_hz = 1.0 / control.period.as_secs_f64();
        parts.push(format!("control at {rate_hz:.1} Hz within {}", control.bound));
    }
    if let Some(learning) = &team.learning {
        let parameters = i64::try_from(learning.parameters).unwrap_or(i64::MAX);
        parts.push(format!("learning with {} parameters", grouped(parameters)));
    }
    if !team.flows.is_empty() {
        parts.push(plural(team.flows.len(), "flow"));
    }
    if !team.events.is_empty() {
        parts.push(plural(team.events.len(), "event"));
    }
    parts.join(", ")
}

fn plural(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}
