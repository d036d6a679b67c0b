//! The machine's own disk.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::time::SystemTime;

use nix::sys::statvfs::{fstatvfs, statvfs};

use super::Linux;
use crate::disk::Space;
use crate::ground::{folder_of, About, Disk, Opened};

impl Disk for Linux {
    fn make(&self, folder: &Path, mode: u32) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(mode).create(folder)
    }

    fn list(&self, folder: &Path) -> io::Result<Vec<(OsString, About)>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            match entry.metadata() {
                // Another program has taken it in the meantime.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                about => found.push((entry.file_name(), About::of(&about?))),
            }
        }
        Ok(found)
    }

    fn about(&self, path: &Path) -> io::Result<About> {
        Ok(About::of(&fs::metadata(path)?))
    }

    fn read(&self, file: &Path) -> io::Result<Vec<u8>> {
        fs::read(file)
    }

    fn open(&self, file: &Path) -> io::Result<Box<dyn Opened>> {
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(false);
        Ok(Box::new(options.open(file)?))
    }

    fn create(&self, file: &Path, mode: u32) -> io::Result<Box<dyn Opened>> {
        // A leftover file may have another mode.
        match fs::remove_file(file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut options = OpenOptions::new();
        let file = options.write(true).create_new(true).mode(mode).open(file)?;
        Ok(Box::new(file))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, file: &Path) -> io::Result<()> {
        fs::remove_file(file)
    }

    fn sync(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }

    fn take(&self, file: &Path) -> io::Result<Vec<u8>> {
        let folder = File::open(folder_of(file))?;
        let bytes = fs::read(file)?;
        fs::remove_file(file)?;
        for_good(file, &folder);
        Ok(bytes)
    }

    /// The target then has the file or its previous content. To another disk, the file is copied: after a crash it may
    /// be in both places, but never in none.
    fn hand_over(&self, file: &Path, to: &Path) -> io::Result<()> {
        // Open the folders before changing anything: there may be no descriptor left.
        let folder = File::open(folder_of(file))?;
        let target = match File::open(folder_of(to)) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => None,
            target => Some(target?),
        };
        match fs::rename(file, to) {
            Err(error) if error.kind() == io::ErrorKind::CrossesDevices => {
                copy(&File::open(file)?, to)?;
                fs::remove_file(file)?;
            }
            moved => moved?,
        }
        target.iter().for_each(|target| for_good(file, target));
        for_good(file, &folder);
        Ok(())
    }

    fn space(&self, folder: &Path) -> io::Result<Space> {
        Ok(Space::of(&statvfs(folder)?))
    }
}

impl Opened for File {
    fn set_len(&self, bytes: u64) -> io::Result<()> {
        File::set_len(self, bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_all()
    }

    fn space(&self) -> io::Result<Space> {
        Ok(Space::of(&fstatvfs(self)?))
    }

    fn again(&self) -> io::Result<Box<dyn Opened>> {
        Ok(Box::new(self.try_clone()?))
    }
}

impl About {
    fn of(metadata: &Metadata) -> About {
        About {
            is_file: metadata.is_file(),
            length: metadata.len(),
            // Every file system of Linux has this time.
            modified: metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH),
        }
    }
}

/// Syncs a folder that a file has left or entered. The move itself is done, so an error is only logged.
fn for_good(file: &Path, folder: &File) {
    if let Err(error) = folder.sync_all() {
        let file = file.display();
        tracing::warn!("{file} was taken, but may reappear after a power cut: {error}");
    }
}

/// Copies a file that was just opened to a path, which then has the copy or its previous content.
pub(crate) fn copy(mut from: &File, to: &Path) -> io::Result<()> {
    let folder = folder_of(to);
    let (space, length) = (Linux.space(folder)?, from.metadata()?.len());
    if length > space.usable() {
        return Err(space.short());
    }
    // A hash, because a longer form of the name might be too long; the same each time, so that a crash leaves nothing
    // behind for long.
    let name = blake3::hash(to.file_name().unwrap_or_default().as_encoded_bytes()).to_hex();
    let new = folder.join(format!(".coorp-{}", &name[..16]));
    let _ = fs::remove_file(&new);
    let mut file = File::create_new(&new)?;
    let mut copy = || {
        io::copy(&mut from, &mut file)?;
        file.sync_all()?;
        fs::rename(&new, to)
    };
    if let Err(error) = copy() {
        let _ = fs::remove_file(&new);
        return Err(error);
    }
    Linux.sync(folder)
}
