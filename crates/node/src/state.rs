//! The folder in which a robot keeps what survives its restarts.

use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::Error;

/// Starts this far apart can be told apart, milliseconds.
const INCARNATION_TICK_MS: u128 = 250;
/// The origin of incarnations: 2025, in milliseconds of Unix time.
const INCARNATION_EPOCH_MS: u128 = 1_735_689_600_000;

/// The default folder for what a robot has received.
pub(crate) fn folder(team: &str, robot: &str) -> PathBuf {
    let set = |name: &str| {
        std::env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    let base = set("XDG_STATE_HOME").or_else(|| Some(set("HOME")?.join(".local/state")));
    base.unwrap_or_else(|| PathBuf::from("/var/tmp"))
        .join("coorp")
        .join(team)
        .join(robot)
}

/// A number that grows with each start of a robot. It is kept on disk, and derived from the clock if that is ahead, so
/// that a wiped disk does no harm.
pub(crate) fn incarnation(state: &Path) -> Result<u32, Error> {
    let file = state.join("incarnation");
    let known = match fs::read_to_string(&file) {
        Ok(text) => text.trim().parse().unwrap_or(0),
        Err(error) if error.kind() == ErrorKind::NotFound => 0u32,
        Err(error) => return Err(Error::at("read", &file, error)),
    };
    let now_ms = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_millis();
    let ticks = now_ms.saturating_sub(INCARNATION_EPOCH_MS) / INCARNATION_TICK_MS;
    let next = known.saturating_add(1).max(u32::try_from(ticks).unwrap_or(u32::MAX));
    make_private(state)?;
    replace(state, "incarnation", next.to_string().as_bytes()).map_err(|error| Error::at("write", &file, error))?;
    Ok(next)
}

/// Creates a folder that only this user can read, and its parents, if they are missing.
pub(crate) fn make_private(folder: &Path) -> Result<(), Error> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
    made.map_err(|error| Error::at("make the folder", folder, error))
}

/// Replaces a small file, so that after a crash it is the old or the new one.
pub(crate) fn replace(folder: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    let new = folder.join(format!("{name}.new"));
    let mut file = File::create(&new)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&new, folder.join(name))?;
    File::open(folder)?.sync_all()
}
