//! What a robot has received of bulk, on disk, so that a restart loses nothing and delivers nothing twice.
//!
//! For each sender there is a folder: `part` with the bytes of the message that is on its way and `part.head` with what
//! it will be, `delivered` with the newest message that is whole, and `whole/` with messages that nobody has taken yet.
//! A sender numbers its messages, and sends one at a time to one receiver; each start of a sender has a lineage of its
//! own. So one entry a sender tells whether a message was delivered: its lineage, and a number not below its own.
//!
//! A message becomes whole in this order: its hash is right, its bytes and its head are on the disk, it is renamed into `whole/`,
//! `delivered` says so, the sender is told. A crash between any two of these is mended by the sender's asking again, but for
//! one between the renaming and `delivered`: the message would be handed out at the next start, and asked for again too. So
//! that start puts `delivered` right first ([`Inbox::mend`]), by `part.head`, which still says what was on its way.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use crate::state::replace;
use crate::wire::{self, Begin};

/// Messages of one sender that wait to be taken at most; the next one is refused until some are.
const WHOLE_MAX: usize = 256;
/// So many bytes are given to the disk while more come, so that the end of a message has little to wait for.
const SYNC_BYTES: u64 = 32 << 20;
/// Read from disk at once.
const CHUNK_BYTES: usize = 256 << 10;

/// What is known of a message that a sender offers.
#[derive(Debug)]
pub(crate) enum Offer {
    /// It is delivered already.
    Delivered,
    /// So much of it is here.
    Part(Box<Part>),
    /// Too many wait to be taken.
    Full,
}

/// A message on its way.
#[derive(Debug)]
pub(crate) struct Part {
    begin: Begin,
    inbox: Inbox,
    file: File,
    hasher: blake3::Hasher,
    length: u64,
    /// Of it, what the disk was given.
    synced: u64,
}

/// A message that is whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Whole {
    pub name: String,
    pub length: u64,
    pub path: PathBuf,
}

/// What has come from one sender.
#[derive(Clone, Debug)]
pub(crate) struct Inbox {
    folder: PathBuf,
}

impl Inbox {
    /// What has come from a sender, below a robot's folder.
    pub fn open(robot: &Path, sender: &str) -> io::Result<Inbox> {
        let folder = robot.join(sender);
        fs::create_dir_all(folder.join("whole"))?;
        Ok(Inbox { folder })
    }

    /// To be called at a start, before a message is handed out: one that is whole is delivered, whether the start before
    /// came to write that down or not.
    pub fn mend(&self) -> io::Result<()> {
        let known = fs::read(self.folder.join("part.head")).unwrap_or_default();
        let Ok(begin) = wire::decode::<Begin>(&known) else {
            return Ok(());
        };
        if !self.is_delivered(&begin) && self.place_of(&begin).is_file() {
            replace(&self.folder, "delivered", &known)?;
        }
        Ok(())
    }

    fn is_delivered(&self, begin: &Begin) -> bool {
        let delivered = fs::read(self.folder.join("delivered")).unwrap_or_default();
        let delivered = wire::decode::<Begin>(&delivered);
        delivered.is_ok_and(|known| known.lineage == begin.lineage && known.sequence >= begin.sequence)
    }

    /// Where a message stands once it is whole.
    fn place_of(&self, begin: &Begin) -> PathBuf {
        let name = format!("{:016x}+{:016x}+{}", begin.lineage, begin.sequence, begin.name);
        self.folder.join("whole").join(name)
    }

    /// Messages that are whole and not taken, in the order of their coming.
    pub fn whole(&self) -> io::Result<Vec<Whole>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(self.folder.join("whole"))? {
            let entry = entry?;
            let about = entry.metadata()?;
            let file_name = entry.file_name();
            // What is called otherwise was not put there by us.
            let name = file_name.to_str().and_then(|name| name.splitn(3, '+').nth(2));
            if let (Some(name), true) = (name, about.is_file()) {
                let whole = Whole {
                    name: name.to_owned(),
                    length: about.len(),
                    path: entry.path(),
                };
                found.push((about.modified()?, file_name.clone(), whole));
            }
        }
        found.sort_by(|a, b| (a.0, &a.1).cmp(&(b.0, &b.1)));
        Ok(found.into_iter().map(|(_, _, whole)| whole).collect())
    }

    /// A sender offers a message: what is here of it already, with its hash worked out from the disk.
    pub fn offer(&self, begin: &Begin) -> io::Result<Offer> {
        if self.is_delivered(begin) {
            return Ok(Offer::Delivered);
        }
        if self.whole()?.len() >= WHOLE_MAX {
            return Ok(Offer::Full);
        }
        let known = fs::read(self.folder.join("part.head")).unwrap_or_default();
        let same = wire::decode::<Begin>(&known).is_ok_and(|known| known == *begin);
        let path = self.folder.join("part");
        if !same {
            // Nothing waits for the disk, which may still be busy with the message before: what is here is compared with
            // what the sender has, so that a head for other bytes does no harm.
            remove(&path)?;
            write(&self.folder, "part.head", &wire::encode(begin))?;
        }
        let mut options = OpenOptions::new();
        let mut file = options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)?;
        let mut hasher = blake3::Hasher::new();
        let (mut length, mut chunk) = (0, vec![0; CHUNK_BYTES]);
        loop {
            let read = file.read(&mut chunk)?;
            if read == 0 {
                break;
            }
            hasher.update(&chunk[..read]);
            length += read as u64;
        }
        let mut part = Part {
            begin: begin.clone(),
            inbox: self.clone(),
            file,
            hasher,
            length,
            synced: length,
        };
        if part.length > begin.length {
            part.restart()?;
        }
        Ok(Offer::Part(Box::new(part)))
    }
}

impl Part {
    /// Bytes that are here.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Bytes that are still to come.
    pub fn missing(&self) -> u64 {
        self.begin.length - self.length
    }

    /// The hash of the bytes that are here.
    pub fn hash(&self) -> [u8; 32] {
        *self.hasher.finalize().as_bytes()
    }

    /// Forgets the bytes that are here.
    pub fn restart(&mut self) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.seek(SeekFrom::Start(0))?;
        self.hasher.reset();
        (self.length, self.synced) = (0, 0);
        Ok(())
    }

    /// More bytes. Beyond the message's length there are none.
    pub fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        if bytes.len() as u64 > self.missing() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "more bytes than the message has",
            ));
        }
        self.file.write_all(bytes)?;
        self.hasher.update(bytes);
        self.length += bytes.len() as u64;
        Ok(())
    }

    /// The file, where enough has come since this was last asked that it should be synced now. Whoever does has to hear
    /// what comes of it before the message is finished.
    pub fn unsynced(&mut self) -> io::Result<Option<File>> {
        if self.length - self.synced < SYNC_BYTES {
            return Ok(None);
        }
        self.synced = self.length;
        self.file.try_clone().map(Some)
    }

    /// All bytes are here. `None` where they are not those that were announced: then they are forgotten.
    pub fn finish(mut self) -> io::Result<Option<Whole>> {
        if self.missing() > 0 || self.hash() != self.begin.hash {
            self.restart()?;
            return Ok(None);
        }
        self.file.sync_all()?;
        // The next start goes by it once the message is whole.
        File::open(self.inbox.folder.join("part.head"))?.sync_all()?;
        File::open(&self.inbox.folder)?.sync_all()?;
        let (folder, path) = (&self.inbox.folder, self.inbox.place_of(&self.begin));
        fs::rename(folder.join("part"), &path)?;
        File::open(folder.join("whole"))?.sync_all()?;
        replace(folder, "delivered", &wire::encode(&self.begin))?;
        Ok(Some(Whole {
            name: self.begin.name.clone(),
            length: self.begin.length,
            path,
        }))
    }
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Moves a message to another file, so that this is the message or what it was before. On another disk it has to be copied:
/// after a crash it may then be in both places, and never in none.
pub(super) fn move_to(from: &Path, to: &Path) -> io::Result<()> {
    match fs::rename(from, to) {
        Err(error) if error.kind() == io::ErrorKind::CrossesDevices => {
            copy_to(from, to)?;
            fs::remove_file(from)
        }
        moved => moved,
    }
}

fn copy_to(from: &Path, to: &Path) -> io::Result<()> {
    let folder = to.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    // Not the other name with something added, which might be too long; the same each time, so that what a crash has left
    // does not stay.
    let name = blake3::hash(to.file_name().unwrap_or_default().as_encoded_bytes()).to_hex();
    let new = folder.join(format!(".coorp-{}", &name[..16]));
    let _ = fs::remove_file(&new);
    let mut file = File::create_new(&new)?;
    let mut copy = || {
        io::copy(&mut File::open(from)?, &mut file)?;
        file.sync_all()?;
        fs::rename(&new, to)
    };
    if let Err(error) = copy() {
        let _ = fs::remove_file(&new);
        return Err(error);
    }
    File::open(folder)?.sync_all()
}

/// Replaces a small file, so that whoever reads it while the machine is up sees the old or the new one.
fn write(folder: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    let new = folder.join(format!("{name}.new"));
    fs::write(&new, bytes)?;
    fs::rename(&new, folder.join(name))
}

#[cfg(test)]
mod tests;
