//! The folder in which a robot keeps what survives its restarts.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::file_name::file_name;
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
        .join(file_name(team))
        .join(file_name(robot))
}

/// A number that grows with each start of a robot. It is kept on disk, and derived from the clock if that is ahead, so
/// that a wiped disk does no harm.
pub(crate) fn incarnation(state: &Path) -> u32 {
    let known = fs::read_to_string(state.join("incarnation"))
        .ok()
        .and_then(|text| text.trim().parse().ok());
    let known = known.unwrap_or(0u32);
    let now_ms = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_millis();
    let ticks = now_ms.saturating_sub(INCARNATION_EPOCH_MS) / INCARNATION_TICK_MS;
    let next = known.saturating_add(1).max(u32::try_from(ticks).unwrap_or(u32::MAX));
    let kept = make_private(state)
        .map_err(|error| error.to_string())
        .and_then(|()| replace(state, "incarnation", next.to_string().as_bytes()).map_err(|error| error.to_string()));
    if let Err(error) = kept {
        tracing::error!(
            "nothing can be kept in {}: {error}; the robot leads and controls all the same, and receives no bulk until \
             this is mended",
            state.display()
        );
    }
    next
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
