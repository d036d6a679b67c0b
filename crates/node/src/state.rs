//! The state folder: a robot keeps there what survives its restarts.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use coorp_core::starts;
use nix::unistd::geteuid;

use crate::file_name::file_name;
use crate::ground::{folder_of, replace, Disk, Ground};
use crate::Error;

/// The file with the number of starts on this disk.
const STARTS: &str = "starts";

/// The folder for a service, whose user has no home.
const OF_SERVICES: &str = "/var/lib/coorp";

/// Returns the default folder for what survives a robot's restarts.
///
/// # Errors
/// If the user has no home, and the folder of services is not the user's.
pub fn folder(team: &str, robot: &str) -> Result<PathBuf, Error> {
    let set = |name: &str| {
        std::env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    let base = set("XDG_STATE_HOME").or_else(|| Some(set("HOME")?.join(".local/state")));
    match base {
        Some(base) => Ok(base.join("coorp").join(file_name(team)).join(file_name(robot))),
        None => below(Path::new(OF_SERVICES), team, robot),
    }
}

/// Returns a robot's folder below `base`, to which nobody else may write.
fn below(base: &Path, team: &str, robot: &str) -> Result<PathBuf, Error> {
    let mut folder = base.to_owned();
    check_own(&folder)?;
    for part in [team, robot] {
        folder.push(file_name(part));
        check_own(&folder)?;
    }
    Ok(folder)
}

/// Refuses anything but a folder that only this user may change, links included. Then only the user and root can
/// replace it. A folder that does not exist is created later.
fn check_own(folder: &Path) -> Result<(), Error> {
    let metadata = match fs::symlink_metadata(folder) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(Error::at("examine", folder, error)),
    };
    if metadata.is_dir() && metadata.uid() == geteuid().as_raw() && metadata.mode() & 0o022 == 0 {
        return Ok(());
    }
    let what = "it is not a folder that only this user may change: move it away and create it with \
                'install -d -m 700 -o USER', use systemd's StateDirectory=coorp, or name another one (--state, in Python state=)";
    let error = io::Error::new(io::ErrorKind::PermissionDenied, what);
    Err(Error::at("use the state folder", folder, error))
}

/// Returns the number of this start (`core::starts`), from a counter on disk, which is incremented, and a random part.
/// Logs if the state cannot be kept.
pub(crate) fn incarnation(ground: &dyn Ground, state: &Path) -> u32 {
    let random = ground.random() as u32;
    let counter = match count(&*ground.disk(), state) {
        Ok(counter) => Some(counter),
        Err(error) => {
            tracing::error!(
                "nothing can be kept in {}: {error}; the robot still leads and controls, but receives no bulk until \
                 this is fixed",
                state.display()
            );
            None
        }
    };
    starts::number(counter, random)
}

/// Counts the starts on this disk; an invalid counter begins again.
fn count(disk: &dyn Disk, state: &Path) -> Result<u16, Error> {
    make_private(disk, state)?;
    let file = state.join(STARTS);
    let known = disk.read(&file).ok().and_then(|bytes| String::from_utf8(bytes).ok());
    let known: u16 = known.and_then(|text| text.trim().parse().ok()).unwrap_or(0);
    let next = known.wrapping_add(1);
    replace(disk, &file, next.to_string().as_bytes(), 0o600).map_err(|error| Error::at("write", &file, error))?;
    Ok(next)
}

/// Creates a folder that only this user can read, and its parents, if they are missing, so that they survive a power
/// cut.
pub(crate) fn make_private(disk: &dyn Disk, folder: &Path) -> Result<(), Error> {
    let is_missing = |folder: &&Path| !folder.as_os_str().is_empty() && disk.about(folder).is_err();
    let missing: Vec<&Path> = folder.ancestors().take_while(is_missing).collect();
    let made = disk.make(folder, 0o700);
    let mut missing = missing.into_iter().map(folder_of);
    made.and_then(|()| missing.try_for_each(|parent| disk.sync(parent)))
        .map_err(|error| Error::at("make the folder", folder, error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ground::Linux;

    fn scratch(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("coorp-state-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        folder
    }

    #[test]
    fn a_service_keeps_nothing_where_others_may_put_something() {
        use std::os::unix::fs::{symlink, PermissionsExt};

        let base = scratch("service");
        let folder = || below(&base, "fleet", "r..1");
        let own = base.join("fleet/r..1");
        assert_eq!(folder().unwrap(), own, "it is made later");
        make_private(&Linux, &own).unwrap();
        assert_eq!(folder().unwrap(), own);
        for part in [&base, &base.join("fleet"), &own] {
            let mode = |mode| fs::set_permissions(part, fs::Permissions::from_mode(mode)).unwrap();
            mode(0o770);
            let open = folder().unwrap_err().to_string();
            assert!(open.contains("StateDirectory=coorp"), "{open}");
            mode(0o755);
            assert_eq!(folder().unwrap(), own);
            let moved = base.with_extension("moved");
            fs::rename(part, &moved).unwrap();
            symlink(&moved, part).unwrap();
            assert!(folder().is_err(), "a link is not followed");
            fs::remove_file(part).unwrap();
            fs::write(part, "").unwrap();
            assert!(folder().is_err());
            fs::remove_file(part).unwrap();
            fs::rename(&moved, part).unwrap();
        }
        fs::remove_dir_all(base).unwrap();
        if geteuid().is_root() {
            let others = scratch("others");
            fs::create_dir(&others).unwrap();
            std::os::unix::fs::chown(&others, Some(12_345), None).unwrap();
            assert!(check_own(&others).is_err());
            fs::remove_dir_all(others).unwrap();
        }
    }

    #[test]
    fn each_start_has_its_number_whatever_happened_to_the_disk() {
        let folder = scratch("starts");
        let [first, second] = [(); 2].map(|()| incarnation(&Linux, &folder));
        assert_eq!((first >> 16, second >> 16), (1, 2));
        // Copies of the folder on other robots: the same counter, but different numbers.
        let copies: Vec<u32> = (0..8)
            .map(|_| {
                fs::write(folder.join(STARTS), "2").unwrap();
                incarnation(&Linux, &folder)
            })
            .collect();
        assert!(copies.iter().all(|number| number >> 16 == 3));
        assert!(copies.iter().any(|number| *number != copies[0]));
        for (damaged, next) in [("", 1), ("rubbish", 1), ("65535", 0), ("99999999999", 1)] {
            fs::write(folder.join(STARTS), damaged).unwrap();
            assert_eq!(incarnation(&Linux, &folder) >> 16, next, "{damaged}");
        }
        fs::remove_dir_all(&folder).unwrap();
        // Without a folder, the number is random.
        fs::write(&folder, "").unwrap();
        assert_ne!(incarnation(&Linux, &folder), incarnation(&Linux, &folder));
        fs::remove_file(folder).unwrap();
    }
}
