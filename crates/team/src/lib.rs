//! The team file: a team's robots, air and policy, in TOML.
//!
//! `load` reads a file, `parse` a text. Both return a validated [`Team`], or a [`LoadError`] that lists every problem
//! with its line and a fix. The format is described in `docs/team-file.md`. Nothing here simulates or decides.
//!
//! ```
//! let file = r#"
//!     [[robot]]
//!     name = "base"
//!     leader = true
//!
//!     [[robot]]
//!     name = "scout"
//! "#;
//! let team = coorp_team::parse(file, "team.toml", ".".as_ref())?;
//! assert_eq!(team.robots[1].name, "scout");
//!
//! let error = coorp_team::parse(&file.replace("leader", "leeder"), "team.toml", ".".as_ref()).unwrap_err();
//! assert!(error.to_string().contains("team.toml:4"));
//! # Ok::<(), coorp_team::LoadError>(())
//! ```
//!
//! Left out: includes, variables, and anything that belongs to a run (policy, duration, seed).

mod apply;
mod check;
mod model;
mod problem;
mod read;
mod recorded;
mod robot;
mod rules;
mod sheet;
mod units;
mod wnic;

pub use model::{
    Air, Category, Change, Control, Edca, Event, Flow, Interface, JitterShape, Learning, Link, LinkRate, Live,
    PolicyOverrides, RateOverride, RateSource, Robot, Standard, Sync, Team, Traffic, Transport, Wnic, PATHS_MAX, PORTS,
};
pub use problem::LoadError;
pub use recorded::Recorded;

use problem::Problems;
use std::io::Read;
use std::path::Path;
use toml::de::DeTable;

/// The maximum size of a team file, in bytes.
const FILE_BYTES_MAX: usize = 1 << 20;

/// Parses a time with its unit, such as `33ms`, as in a team file.
///
/// # Errors
/// If the text is not a valid time; the message says what is wrong and how to fix it.
pub fn duration(text: &str) -> Result<coorp_core::Duration, String> {
    units::duration(text)
}

/// Reads and validates a team file.
///
/// # Errors
/// If the file cannot be read, is not UTF-8, is larger than 1 MiB, or is refused by `parse`.
pub fn load(path: &Path) -> Result<Team, LoadError> {
    let shown = path.display().to_string();
    let unread = |error: std::io::Error| {
        let mend = match error.kind() {
            std::io::ErrorKind::PermissionDenied => "let your user read it (chmod, chown)",
            _ => "name a team file, such as examples/navigation.toml",
        };
        LoadError::plain(format!("cannot read {shown}: {error}"), mend)
    };
    let file = std::fs::File::open(path).map_err(unread)?;
    let mut bytes = Vec::new();
    // One byte more than allowed, to detect an oversized file without reading an endless device to its end.
    file.take(FILE_BYTES_MAX as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(unread)?;
    if bytes.len() > FILE_BYTES_MAX {
        return Err(too_large(&shown));
    }
    match std::str::from_utf8(&bytes) {
        Ok(text) => parse(text, &shown, path.parent().unwrap_or(Path::new(""))),
        Err(error) => {
            let before = bytes.get(..error.valid_up_to()).unwrap_or_default();
            let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
            let column = before.rsplit(|byte| *byte == b'\n').next().map_or(0, |rest| rest.len()) + 1;
            let message = format!("{shown}:{line}:{column}: the file is not UTF-8 text");
            Err(LoadError::plain(message, "save it as UTF-8"))
        }
    }
}

/// Reads and validates a team file's text.
///
/// `file_name` is used in messages, and its stem is the default team name. WNIC profiles are resolved relative to the
/// folder `base`.
///
/// # Errors
/// If the text is larger than 1 MiB, is not TOML, or does not describe a valid team. The error contains all independent
/// problems.
pub fn parse(text: &str, file_name: &str, base: &Path) -> Result<Team, LoadError> {
    if text.len() > FILE_BYTES_MAX {
        return Err(too_large(file_name));
    }
    let problems = Problems::default();
    let file = problems.file(file_name, text);
    let (table, errors) = DeTable::parse_recoverable(text);
    syntax(&problems, file, &errors);
    let mut team = None;
    // After a syntax error, tables are cut short, and every further problem may be a consequence of it.
    if errors.is_empty() {
        let stem = Path::new(file_name)
            .file_stem()
            .map_or("team".into(), |stem| stem.to_string_lossy());
        let sheet = sheet::Sheet::new(table.get_ref(), table.span(), "the team file", &problems, file);
        team = read::team(sheet, &stem, base);
    }
    match (problems.into_error(), team) {
        (Some(error), _) => Err(error),
        (None, Some(team)) => Ok(team),
        (None, None) => Err(LoadError::plain(
            format!("{file_name} does not describe a team"),
            "add two [[robot]] tables",
        )),
    }
}

/// Records TOML's own errors.
fn syntax(problems: &Problems, file: usize, errors: &[toml::de::Error]) {
    for error in errors {
        let mend = "fix the TOML here; https://toml.io describes the syntax";
        problems.add(file, error.span().unwrap_or(0..0), error.message(), mend);
    }
}

fn too_large(shown: &str) -> LoadError {
    let limit = FILE_BYTES_MAX >> 20;
    LoadError::plain(
        format!("{shown} is larger than {limit} MiB"),
        "a team file has a few kilobytes; check that this is the right file",
    )
}
