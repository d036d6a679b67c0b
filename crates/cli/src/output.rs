//! Where results go: files, written completely or not at all, and the two standard streams.
//!
//! A long run must not end in "permission denied", so each path is tested before the run. A path that leads to the
//! run's own input is refused. A file is written under a temporary name in the same folder and then renamed. A full
//! disk therefore never leaves half a report, and never destroys the previous one.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use coorp_team::Team;
use serde::Serialize;

use crate::failure::Failure;

/// Written and deleted before the run: enough for a file system to report that it is full.
const PROBE_BYTES: usize = 64 * 1024;

/// The input files of a run, which it must not overwrite.
#[derive(Debug)]
pub struct Inputs(Vec<(PathBuf, &'static str)>);

impl Inputs {
    /// Returns the team file, and the WNIC profile if that is a file next to it.
    pub fn of(file: &Path, team: &Team) -> Inputs {
        let profile = team.air.wnic.name.as_str();
        // Built-in profiles have plain names (coorp_team reads no other file as a profile).
        let beside = profile
            .ends_with(".toml")
            .then(|| file.parent().unwrap_or(Path::new("")).join(profile));
        let named = [
            (Some(file.to_path_buf()), "the team file"),
            (beside, "the WNIC profile"),
        ];
        let real = |(path, what): (Option<PathBuf>, _)| Some((fs::canonicalize(path?).ok()?, what));
        Inputs(named.into_iter().filter_map(real).collect())
    }

    /// Returns the files of a recording.
    pub fn recording(files: &[PathBuf]) -> Inputs {
        let real = |file: &PathBuf| Some((fs::canonicalize(file).ok()?, "the recording"));
        Inputs(files.iter().filter_map(real).collect())
    }

    /// Also protects the inputs in `others`.
    pub fn add(&mut self, others: Inputs) {
        self.0.extend(others.0);
    }

    /// Returns the input to which `path` leads, with links followed.
    fn which(&self, path: &Path) -> Option<&'static str> {
        let real = fs::canonicalize(path).ok()?;
        self.0.iter().find(|(input, _)| *input == real).map(|(_, what)| *what)
    }
}

/// A path that was tested and found writable.
#[derive(Debug)]
pub struct Destination {
    /// As the user wrote it, for messages.
    shown: PathBuf,
    place: Place,
}

/// Where the bytes go.
#[derive(Debug, PartialEq)]
enum Place {
    /// A file, with links followed; replaced as a whole.
    File(PathBuf),
    /// A device or a pipe, which cannot be the target of a rename.
    Device(PathBuf),
    /// Standard output, given as `-`.
    Stdout,
}

impl Destination {
    /// Tests whether a file can be written at `path`; `-` is stdout. Leaves nothing behind.
    ///
    /// # Errors
    /// An input of the run, a missing folder, a folder at the file's path, no permission, or a full disk. The message
    /// gives the path and a fix.
    pub fn check(path: &Path, inputs: &Inputs) -> Result<Destination, Failure> {
        let place = if path.as_os_str() == "-" {
            Place::Stdout
        } else {
            Place::of(path, inputs)?
        };
        if let Place::File(target) = &place {
            let probe = beside(target);
            let tried = write_new(&probe, &[0; PROBE_BYTES]);
            remove_if_there(&probe);
            tried.map_err(|error| unwritable(path, &error))?;
        }
        Ok(Destination {
            shown: path.to_path_buf(),
            place,
        })
    }

    /// Writes all of `bytes`, or leaves the previous content.
    ///
    /// # Errors
    /// The disk is full, or the folder changed since [`Destination::check`]. The message gives the path and a fix.
    pub fn write(&self, bytes: &[u8]) -> Result<(), Failure> {
        let written = match &self.place {
            Place::File(target) => {
                let beside = beside(target);
                let outcome = write_new(&beside, bytes).and_then(|()| fs::rename(&beside, target));
                if outcome.is_err() {
                    remove_if_there(&beside);
                }
                outcome
            }
            Place::Device(device) => File::options()
                .write(true)
                .open(device)
                .and_then(|mut file| file.write_all(bytes)),
            Place::Stdout => return print_bytes(bytes),
        };
        written.map_err(|error| unwritable(&self.shown, &error))
    }

    /// Returns whether both names refer to the same file.
    pub fn same_as(&self, other: &Destination) -> bool {
        self.place == other.place
    }

    /// Returns whether the bytes go to stdout, which then has no room for a table.
    pub fn is_stdout(&self) -> bool {
        self.place == Place::Stdout
    }

    /// Returns the path as the user gave it.
    pub fn shown(&self) -> &Path {
        &self.shown
    }
}

impl Place {
    fn of(path: &Path, inputs: &Inputs) -> Result<Place, Failure> {
        let refused = |why: &str| Failure::Input(format!("error: {} {why}", path.display()));
        if let Some(what) = inputs.which(path) {
            return Err(refused(&format!(
                "is not written, because it is {what}; give another path"
            )));
        }
        let target = match fs::metadata(path) {
            Ok(found) if found.is_dir() => return Err(refused("is a folder; give the name of a file in it")),
            Ok(found) if !found.is_file() => return Ok(Place::Device(path.to_path_buf())),
            // Follow links, so that the file is replaced and not a link to it.
            Ok(_) => fs::canonicalize(path).map_err(|error| unwritable(path, &error))?,
            Err(_) => path.to_path_buf(),
        };
        match target.file_name() {
            Some(_) => Ok(Place::File(target)),
            None => Err(Failure::Input(format!(
                "error: '{}' is not the name of a file",
                path.display()
            ))),
        }
    }
}

/// Returns the temporary file: in the same folder, because a rename cannot cross file systems.
fn beside(target: &Path) -> PathBuf {
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    target.with_file_name(format!(".{name}.{}.tmp", std::process::id()))
}

/// Finishes several writes of one result: each was attempted regardless of the others, and each failure is reported.
///
/// # Errors
/// The last failure; earlier ones are printed on stderr.
pub fn settle(outcomes: impl IntoIterator<Item = Result<(), Failure>>) -> Result<(), Failure> {
    let mut last = Ok(());
    for failure in outcomes.into_iter().filter_map(Result::err) {
        if let Err(before) = std::mem::replace(&mut last, Err(failure)) {
            note(&before.to_string());
        }
    }
    last
}

/// Writes `value` as one line of JSON.
///
/// # Errors
/// As [`Destination::write`].
pub fn write_json(destination: &Destination, value: &impl Serialize) -> Result<(), Failure> {
    let mut text = serde_json::to_vec(value).map_err(|error| Failure::Found(format!("error: {error}")))?;
    text.push(b'\n');
    destination.write(&text)
}

fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(bytes)?;
    // Some file systems detect only here that they are full.
    file.sync_all()
}

/// Cleaning up after a failure must not hide that failure, so errors here are ignored.
fn remove_if_there(path: &Path) {
    let _ = fs::remove_file(path);
}

fn unwritable(path: &Path, error: &io::Error) -> Failure {
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.display().to_string(),
        _ => ".".to_owned(),
    };
    let mend = match error.kind() {
        ErrorKind::NotFound => format!("the folder {folder} does not exist; create it (mkdir -p {folder})"),
        ErrorKind::NotADirectory => format!("{folder} is not a folder; give another path"),
        ErrorKind::PermissionDenied => {
            format!("no permission to write in {folder}; give another path, or change the permissions")
        }
        ErrorKind::ReadOnlyFilesystem => format!("{folder} is on a read-only disk; give another path"),
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            "the disk is full; free some space on it, or give a path on another disk".to_owned()
        }
        _ => format!("{error}; give another path"),
    };
    Failure::Input(format!("error: cannot write {}: {mend}", path.display()))
}

/// Prints results on stdout. A reader that has gone away (`coorp sim ... | head -1`) is not a failure.
///
/// # Errors
/// Stdout is a file on a full disk, or closed.
pub fn print(text: &str) -> Result<(), Failure> {
    print_bytes(text.as_bytes())
}

fn print_bytes(bytes: &[u8]) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(unwritable(Path::new("/dev/stdout"), &error)),
        _ => Ok(()),
    }
}

/// Prints a note on stderr. If stderr is closed, nothing can be reported, so errors are ignored.
pub fn note(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{}", text.trim_end());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("coorp-output-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        path
    }

    fn checked(path: &Path) -> Result<Destination, Failure> {
        Destination::check(path, &Inputs(Vec::new()))
    }

    #[test]
    fn a_file_is_replaced_whole_and_nothing_is_left_beside_it() {
        let folder = folder("replace");
        let path = folder.join("out.json");
        fs::write(&path, "old").unwrap();
        let destination = checked(&path).unwrap();
        assert_eq!(
            fs::read_to_string(&path).unwrap(),
            "old",
            "the check must not touch the file"
        );
        destination.write(b"new").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_missing_folder_is_found_before_the_run() {
        let path = folder("missing").join("nowhere").join("out.json");
        let message = checked(&path).unwrap_err().to_string();
        assert!(
            message.contains("nowhere/out.json") && message.contains("mkdir -p"),
            "{message}"
        );
    }

    #[test]
    fn a_folder_is_no_file() {
        let message = checked(&std::env::temp_dir()).unwrap_err().to_string();
        assert!(message.contains("is a folder"), "{message}");
    }

    #[cfg(unix)]
    #[test]
    fn a_link_stays_a_link() {
        let folder = folder("link");
        fs::write(folder.join("real"), "old").unwrap();
        std::os::unix::fs::symlink(folder.join("real"), folder.join("link")).unwrap();
        checked(&folder.join("link")).unwrap().write(b"new").unwrap();
        assert_eq!(fs::read_to_string(folder.join("real")).unwrap(), "new");
        assert!(fs::symlink_metadata(folder.join("link"))
            .unwrap()
            .file_type()
            .is_symlink());
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn every_failure_of_several_is_seen() {
        let full = || Err(Failure::Input("full".to_owned()));
        assert!(settle([Ok(()), full(), Ok(())]).is_err());
        assert!(settle([Ok(()), Ok(())]).is_ok());
    }
}
