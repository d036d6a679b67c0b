//! The disk below a robot's state folder, as far as the node's files need it.
//!
//! Only [`Disk::sync`] and [`Opened::sync`] wait for the disk: after a power cut, everything else that was written may
//! be complete, missing or partial.
//!
//! Left out, because programs and people own them: keys, recordings, and the default state folder's check (`state.rs`).
//! They are on the machine's own disk on every ground.

use std::ffi::OsString;
use std::fmt;
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::disk::Space;

/// A disk. Paths are the machine's paths.
pub(crate) trait Disk: fmt::Debug + Send + Sync {
    /// Creates a folder, and its parents, with this mode if they are missing.
    fn make(&self, folder: &Path, mode: u32) -> io::Result<()>;
    /// Lists a folder's entries in no particular order. Symbolic links are not followed.
    fn list(&self, folder: &Path) -> io::Result<Vec<(OsString, About)>>;
    fn about(&self, path: &Path) -> io::Result<About>;
    /// Reads a whole file.
    fn read(&self, file: &Path) -> io::Result<Vec<u8>>;
    /// Opens a file to read and to write; creates an empty one if it is missing.
    fn open(&self, file: &Path) -> io::Result<Box<dyn Opened>>;
    /// Creates a new file with this mode, and replaces an existing one.
    fn create(&self, file: &Path, mode: u32) -> io::Result<Box<dyn Opened>>;
    /// Renames a file, and replaces an existing one of the new name.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    fn remove(&self, file: &Path) -> io::Result<()>;
    /// Waits until a file's content, or the names in a folder, survive a power cut.
    fn sync(&self, path: &Path) -> io::Result<()>;
    /// Reads a file and removes it, so that no power cut brings it back.
    fn take(&self, file: &Path) -> io::Result<Vec<u8>>;
    /// Moves a file to where a program wants it, also on another disk. It stays there after a power cut.
    fn hand_over(&self, file: &Path, to: &Path) -> io::Result<()>;
    /// Returns the space on the disk below a folder.
    fn space(&self, folder: &Path) -> io::Result<Space>;
}

/// An open file.
pub(crate) trait Opened: Read + Write + Seek + fmt::Debug + Send + Sync {
    fn set_len(&self, bytes: u64) -> io::Result<()>;
    /// Waits until the content survives a power cut.
    fn sync(&self) -> io::Result<()>;
    /// Returns the space on its disk.
    fn space(&self) -> io::Result<Space>;
    /// Returns another handle to the same file.
    fn again(&self) -> io::Result<Box<dyn Opened>>;
}

/// Metadata of a file or folder.
#[derive(Clone, Copy, Debug)]
pub(crate) struct About {
    /// Whether it is a regular file, and not a folder or anything else.
    pub is_file: bool,
    pub length: u64,
    pub modified: SystemTime,
}

/// Replaces a small file, so that after a power cut it is the old or the new one.
pub(crate) fn replace(disk: &dyn Disk, path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let new = beside(path);
    let mut file = disk.create(&new, mode)?;
    file.write_all(bytes)?;
    file.sync()?;
    disk.rename(&new, path)?;
    disk.sync(folder_of(path))
}

/// The same, but only readers see the old or the new one. Does not wait for the disk.
pub(crate) fn replace_for_now(disk: &dyn Disk, path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let new = beside(path);
    disk.create(&new, mode)?.write_all(bytes)?;
    disk.rename(&new, path)
}

fn beside(path: &Path) -> PathBuf {
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    new.into()
}

/// Returns the folder of a file. A plain file name, in the current folder, has an empty parent.
pub(crate) fn folder_of(path: &Path) -> &Path {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    folder.unwrap_or(Path::new("."))
}
