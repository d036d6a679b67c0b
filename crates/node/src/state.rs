//! The folder in which a robot keeps what survives its restarts.

use std::collections::hash_map::RandomState;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::hash::BuildHasher;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use coorp_core::starts;

use crate::file_name::file_name;
use crate::Error;

/// The file with the number of starts on this disk.
const STARTS: &str = "starts";

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

/// The number of this start (`core::starts`): of a counter on disk, which is counted up, and a random part. A state
/// that cannot be kept is logged.
pub(crate) fn incarnation(state: &Path) -> u32 {
    let random = RandomState::new().hash_one(std::process::id()) as u32;
    let counter = match count(state) {
        Ok(counter) => Some(counter),
        Err(error) => {
            tracing::error!(
                "nothing can be kept in {}: {error}; the robot leads and controls all the same, and receives no bulk \
                 until this is mended",
                state.display()
            );
            None
        }
    };
    starts::number(counter, random)
}

/// Counts the starts on this disk; a counter that makes no sense begins anew.
fn count(state: &Path) -> Result<u16, Error> {
    make_private(state)?;
    let file = state.join(STARTS);
    let known = fs::read_to_string(&file).ok();
    let known: u16 = known.and_then(|text| text.trim().parse().ok()).unwrap_or(0);
    let next = known.wrapping_add(1);
    replace(&file, next.to_string().as_bytes(), 0o600).map_err(|error| Error::at("write", &file, error))?;
    Ok(next)
}

/// Creates a folder that only this user can read, and its parents, if they are missing.
pub(crate) fn make_private(folder: &Path) -> Result<(), Error> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
    made.map_err(|error| Error::at("make the folder", folder, error))
}

/// Replaces a small file, so that after a crash it is the old or the new one.
pub(crate) fn replace(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    // One that was left behind may have another mode.
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&new)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    // A file in the current folder has an empty parent.
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("coorp-state-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        folder
    }

    #[test]
    fn each_start_has_its_number_whatever_happened_to_the_disk() {
        let folder = scratch("starts");
        let [first, second] = [(); 2].map(|()| incarnation(&folder));
        assert_eq!((first >> 16, second >> 16), (1, 2));
        // A copy of the folder on another robot: the same counter, and another number.
        let copies: Vec<u32> = (0..8)
            .map(|_| {
                fs::write(folder.join(STARTS), "2").unwrap();
                incarnation(&folder)
            })
            .collect();
        assert!(copies.iter().all(|number| number >> 16 == 3));
        assert!(copies.iter().any(|number| *number != copies[0]));
        for (damaged, next) in [("", 1), ("rubbish", 1), ("65535", 0), ("99999999999", 1)] {
            fs::write(folder.join(STARTS), damaged).unwrap();
            assert_eq!(incarnation(&folder) >> 16, next, "{damaged}");
        }
        fs::remove_dir_all(&folder).unwrap();
        // Without a folder, it is random.
        fs::write(&folder, "").unwrap();
        assert_ne!(incarnation(&folder), incarnation(&folder));
        fs::remove_file(folder).unwrap();
    }
}
