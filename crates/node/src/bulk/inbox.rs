//! The bulk that a robot has received, on disk, so that a restart loses nothing and delivers nothing twice.
//!
//! Each sender has a folder below `bulk/` (`file_name.rs` names it). `part` has the bytes of the message in progress,
//! and `part.head` its description. `delivered` has the newest message that is whole, and `whole/` the messages that
//! nobody has taken yet. A sender numbers its messages and sends one at a time to one receiver; each start of a sender
//! has its own lineage. So one entry per sender, a lineage and a number, shows whether a message was delivered: its
//! lineage is the same and its number is not greater.
//!
//! A message becomes whole in this order: its hash is checked; its bytes, its head and all folders are synced; it is
//! renamed into `whole/`; `delivered` records it; the sender is told. The sender's retry repairs a crash between any
//! two of these steps, except between the renaming and `delivered`. Then the message would be delivered at the next
//! start, and requested again too. So that start first corrects `delivered` ([`Inbox::mend`]) from `part.head`, which
//! still describes the message. If the disk cannot take even that, the message is delivered once its sender offers it
//! again and `delivered` records it.
//!
//! Nothing of a message is written unless all of it fits without touching the disk's reserve (`disk.rs`).

use std::io::{self, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::disk::{Claim, NoRoom, Room};
use crate::file_name::{file_name, name_in};
use crate::ground::{replace, replace_for_now, Disk, Opened};
use crate::wire::{self, Begin};

/// The maximum number of untaken messages of one sender; more are refused until some are taken.
const WHOLE_MAX: usize = 256;
/// Bytes are synced in batches of this size while more arrive, so that little is left to sync at the end of a message.
const SYNC_BYTES: u64 = 32 << 20;
/// The size of reads from disk, bytes.
const CHUNK_BYTES: usize = 256 << 10;
/// The folder of all senders' folders. It contains nothing else, so that a sender may have the name of another file.
const FOLDER: &str = "bulk";

/// The state of a message that a sender offers.
#[derive(Debug)]
pub(crate) enum Offer {
    /// It was already delivered.
    Delivered,
    /// This much of it has arrived.
    Part(Box<Part>),
    /// It is whole, and was recorded as delivered only now.
    Whole(Whole),
    /// The missing bytes do not fit on the disk.
    NoRoom(NoRoom),
    /// Too many messages wait to be taken.
    Full,
}

/// A message in progress.
#[derive(Debug)]
pub(crate) struct Part {
    begin: Begin,
    inbox: Inbox,
    file: Box<dyn Opened>,
    hasher: blake3::Hasher,
    length: u64,
    /// The number of its bytes that were synced.
    synced: u64,
    claim: Claim,
}

/// A message that is whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Whole {
    pub name: String,
    pub length: u64,
    pub path: PathBuf,
}

/// The messages from one sender.
#[derive(Clone, Debug)]
pub(crate) struct Inbox {
    disk: Arc<dyn Disk>,
    folder: PathBuf,
}

impl Inbox {
    /// Returns the folder of a sender, below a robot's.
    pub fn of(disk: Arc<dyn Disk>, robot: &Path, sender: &str) -> Inbox {
        Inbox {
            disk,
            folder: robot.join(FOLDER).join(file_name(sender)),
        }
    }

    /// Creates a sender's folder if it is missing.
    pub fn open(disk: Arc<dyn Disk>, robot: &Path, sender: &str) -> io::Result<Inbox> {
        let inbox = Inbox::of(disk, robot, sender);
        inbox.disk.make(&inbox.folder.join("whole"), 0o777)?;
        Ok(inbox)
    }

    /// Returns whether the folder exists.
    pub fn exists(&self) -> bool {
        self.disk.about(&self.folder).is_ok_and(|about| !about.is_file)
    }

    /// Records a whole message as delivered, if the previous start did not. Must be called at a start, before any
    /// message is delivered. Returns the path of the message, which must not be delivered yet, if it cannot be recorded
    /// now.
    pub fn mend(&self) -> Option<PathBuf> {
        let known = self.disk.read(&self.folder.join("part.head")).unwrap_or_default();
        let begin = wire::decode::<Begin>(&known).ok()?;
        let place = self.place_of(&begin);
        if self.is_delivered(&begin) || !self.has(&place) {
            return None;
        }
        let recorded = replace(&*self.disk, &self.folder.join("delivered"), &known, 0o600);
        recorded.is_err().then_some(place)
    }

    fn is_delivered(&self, begin: &Begin) -> bool {
        let delivered = self.disk.read(&self.folder.join("delivered")).unwrap_or_default();
        let delivered = wire::decode::<Begin>(&delivered);
        delivered.is_ok_and(|known| known.lineage == begin.lineage && known.sequence >= begin.sequence)
    }

    fn has(&self, file: &Path) -> bool {
        self.disk.about(file).is_ok_and(|about| about.is_file)
    }

    /// Returns the path of a whole message.
    fn place_of(&self, begin: &Begin) -> PathBuf {
        let name = format!(
            "{:016x}+{:016x}+{}",
            begin.lineage,
            begin.sequence,
            file_name(&begin.name)
        );
        self.folder.join("whole").join(name)
    }

    /// Returns the whole messages that were not taken, in order of arrival.
    pub fn whole(&self) -> io::Result<Vec<Whole>> {
        let (mut found, folder) = (Vec::new(), self.folder.join("whole"));
        for (file, about) in self.disk.list(&folder)? {
            // Files with other names are not ours.
            let name = file.to_str().and_then(|name| name.splitn(3, '+').nth(2));
            if let (Some(name), true) = (name.and_then(name_in), about.is_file) {
                let whole = Whole {
                    name,
                    length: about.length,
                    path: folder.join(&file),
                };
                found.push((about.modified, file, whole));
            }
        }
        found.sort_by(|a, b| (a.0, &a.1).cmp(&(b.0, &b.1)));
        Ok(found.into_iter().map(|(_, _, whole)| whole).collect())
    }

    /// Returns what has arrived of a message that a sender offers, with its hash computed from the disk.
    pub fn offer(&self, begin: &Begin, room: &Arc<Room>) -> io::Result<Offer> {
        if self.is_delivered(begin) {
            return Ok(Offer::Delivered);
        }
        if self.has(&self.place_of(begin)) {
            return self.record(begin).map(Offer::Whole);
        }
        if self.whole()?.len() >= WHOLE_MAX {
            return Ok(Offer::Full);
        }
        let known = self.disk.read(&self.folder.join("part.head")).unwrap_or_default();
        let same = wire::decode::<Begin>(&known).is_ok_and(|known| known == *begin);
        let path = self.folder.join("part");
        if !same {
            // A head that belongs to other bytes does no harm: the sender compares what has arrived with its own.
            remove(&*self.disk, &path)?;
        }
        // Claim room before reading anything: a sender that gets no room asks often.
        let there = self.disk.about(&path).map_or(0, |about| about.length);
        let claim = match room.claim(&*self.disk, &self.folder, begin.length.saturating_sub(there))? {
            Ok(claim) => claim,
            Err(why) => return Ok(Offer::NoRoom(why)),
        };
        room.keep(&*self.disk, &self.folder)?;
        if !same {
            // This does not wait for the disk, which may still be busy with the previous message.
            replace_for_now(&*self.disk, &self.folder.join("part.head"), &wire::encode(begin), 0o666)?;
        }
        let mut file = self.disk.open(&path)?;
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
            claim,
        };
        if part.length > begin.length {
            part.restart()?;
        }
        Ok(Offer::Part(Box::new(part)))
    }

    /// Records that a whole message is delivered.
    fn record(&self, begin: &Begin) -> io::Result<Whole> {
        replace(&*self.disk, &self.folder.join("delivered"), &wire::encode(begin), 0o600)?;
        Ok(Whole {
            name: begin.name.clone(),
            length: begin.length,
            path: self.place_of(begin),
        })
    }
}

impl Part {
    /// Returns the number of bytes that have arrived.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Returns the length of the whole message, bytes.
    pub fn whole_length(&self) -> u64 {
        self.begin.length
    }

    /// Returns the number of bytes that are still missing.
    pub fn missing(&self) -> u64 {
        self.begin.length - self.length
    }

    /// Returns the hash of the bytes that have arrived.
    pub fn hash(&self) -> [u8; 32] {
        *self.hasher.finalize().as_bytes()
    }

    /// Discards the bytes that have arrived.
    pub fn restart(&mut self) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.seek(SeekFrom::Start(0))?;
        self.hasher.reset();
        (self.length, self.synced) = (0, 0);
        self.claim.set(self.missing());
        Ok(())
    }

    /// Appends bytes. Fails if the message has fewer, or if they would touch the disk's reserve.
    pub fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        if bytes.len() as u64 > self.missing() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "more bytes than the message has",
            ));
        }
        // Other programs may have filled the disk since the claim.
        let (space, coming) = (self.file.space()?, bytes.len() as u64);
        if coming > space.usable() {
            return Err(space.short());
        }
        if let Err(error) = self.file.write_all(bytes) {
            // A short write: what is on disk must be what was hashed.
            self.file.set_len(self.length)?;
            return Err(error);
        }
        self.hasher.update(bytes);
        self.length += coming;
        self.claim.set(self.missing());
        Ok(())
    }

    /// Returns the file if enough has arrived since the last call to sync it now. The caller must report the result
    /// before the message is finished.
    pub fn unsynced(&mut self) -> io::Result<Option<Box<dyn Opened>>> {
        if self.length - self.synced < SYNC_BYTES {
            return Ok(None);
        }
        self.synced = self.length;
        self.file.again().map(Some)
    }

    /// Finishes the message once all bytes have arrived. Returns `None`, and discards the bytes, if they are not the
    /// announced ones.
    pub fn finish(mut self) -> io::Result<Option<Whole>> {
        if self.missing() > 0 || self.hash() != self.begin.hash {
            self.restart()?;
            return Ok(None);
        }
        let (disk, folder) = (&self.inbox.disk, &self.inbox.folder);
        self.file.sync()?;
        // The next start relies on it once the message is whole.
        disk.sync(&folder.join("part.head"))?;
        disk.sync(folder)?;
        disk.rename(&folder.join("part"), &self.inbox.place_of(&self.begin))?;
        disk.sync(&folder.join("whole"))?;
        self.inbox.record(&self.begin).map(Some)
    }
}

fn remove(disk: &dyn Disk, path: &Path) -> io::Result<()> {
    match disk.remove(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
