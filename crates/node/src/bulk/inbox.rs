//! The bulk that a robot has received, on disk, so that a restart loses nothing and delivers nothing twice.
//!
//! Each sender has a folder below `bulk/` (`file_name.rs` names it). `part` has the segments of the message in progress,
//! each at its place, and `part.head` its description. Which segments there are is not written down: whatever a start
//! finds at their places is hashed, and the sender says which of these hashes are right. `delivered` has the newest message that is whole, and `whole/` the messages that
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
//! Nothing of a message is written unless all of it fits without touching the disk's reserve (`disk.rs`). Until the sender
//! has said what is right, the file counts as if it had no holes.

use std::collections::BTreeMap;
use std::io::{self, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use coorp_core::spread::{segments_of, SEGMENT_BYTES};

use super::hashes::{self, Hash};
use crate::disk::{Claim, NoRoom, Room};
use crate::file_name::{file_name, name_in};
use crate::ground::{replace, replace_for_now, Disk, Opened};
use crate::wire::{self, Begin};

/// The maximum number of untaken messages of one sender; more are refused until some are taken.
const WHOLE_MAX: usize = 256;
/// Bytes are synced in batches of this size while more arrive, so that little is left to sync at the end of a message.
const SYNC_BYTES: u64 = 32 << 20;
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
    /// By segment: the hash of what has arrived.
    hashes: Vec<Option<Hash>>,
    /// The hashes of what else was found at the places of segments.
    found: BTreeMap<u32, Hash>,
    /// The number of bytes that are missing, and that were written since the last sync.
    missing: u64,
    unsynced: u64,
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

    /// Returns what has arrived of a message that a sender offers, with the hashes computed from the disk.
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
        let found = if there > begin.length {
            file.set_len(0)?;
            BTreeMap::new()
        } else {
            found(&mut *file, begin.length)?
        };
        Ok(Offer::Part(Box::new(Part {
            begin: begin.clone(),
            inbox: self.clone(),
            file,
            hashes: vec![None; segments_of(begin.length) as usize],
            found,
            missing: begin.length,
            unsynced: 0,
            claim,
        })))
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

/// Returns the hashes of what a file has at the places of a message's segments.
fn found(file: &mut dyn Opened, length: u64) -> io::Result<BTreeMap<u32, Hash>> {
    let (mut found, mut bytes) = (BTreeMap::new(), vec![0; SEGMENT_BYTES as usize]);
    file.seek(SeekFrom::Start(0))?;
    for segment in 0..segments_of(length) {
        let place = hashes::place(segment, length);
        let bytes = &mut bytes[..(place.end - place.start) as usize];
        match file.read_exact(bytes) {
            Ok(()) => found.insert(segment, hashes::of_segment(segment, length, [bytes])),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => break,
            Err(error) => return Err(error),
        };
    }
    Ok(found)
}

impl Part {
    /// Returns the description of the message.
    pub fn begin(&self) -> &Begin {
        &self.begin
    }

    /// Returns the number of bytes that are still missing.
    pub fn missing(&self) -> u64 {
        self.missing
    }

    /// Returns the segments that have arrived, and those that may have arrived before this start, with their hashes.
    pub fn list(&self) -> Vec<(u32, Hash)> {
        let arrived = (0u32..).zip(&self.hashes);
        let arrived = arrived.filter_map(|(segment, hash)| Some((segment, (*hash)?)));
        arrived
            .chain(self.found.iter().map(|(segment, hash)| (*segment, *hash)))
            .collect()
    }

    /// Keeps segments that its sender has found right in a list, unless they have been written since.
    pub fn keep(&mut self, right: impl IntoIterator<Item = (u32, Hash)>) {
        for (segment, hash) in right {
            if self.found.get(&segment) == Some(&hash) {
                self.arrive(segment, hash);
            }
        }
        self.claim.set(self.missing);
    }

    fn arrive(&mut self, segment: u32, hash: Hash) {
        self.found.remove(&segment);
        if let Some(place @ None) = self.hashes.get_mut(segment as usize) {
            *place = Some(hash);
            let place = hashes::place(segment, self.begin.length);
            self.missing -= place.end - place.start;
        }
    }

    /// Discards the bytes that have arrived: they are wrong, or a sync has failed, and the kernel may show what the disk
    /// lacks.
    pub fn restart(&mut self) -> io::Result<()> {
        self.file.set_len(0)?;
        self.hashes.fill(None);
        self.found.clear();
        (self.missing, self.unsynced) = (self.begin.length, 0);
        self.claim.set(self.missing);
        Ok(())
    }

    /// Writes a segment with this hash to its place, if it has not arrived. Fails if the message has no such segment, or
    /// if the segment would touch the disk's reserve.
    pub fn write(&mut self, segment: u32, hash: Hash, bytes: &[u8]) -> io::Result<()> {
        let place = hashes::place(segment, self.begin.length);
        if bytes.is_empty() || bytes.len() as u64 != place.end - place.start {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "not a segment of the message",
            ));
        }
        if self.hashes.get(segment as usize).is_some_and(Option::is_some) {
            return Ok(());
        }
        // Other programs may have filled the disk since the claim.
        let (space, coming) = (self.file.space()?, bytes.len() as u64);
        if coming > space.usable() {
            return Err(space.short());
        }
        // If it is only partly written, what was there before has gone too.
        self.found.remove(&segment);
        self.file.seek(SeekFrom::Start(place.start))?;
        self.file.write_all(bytes)?;
        self.arrive(segment, hash);
        self.unsynced += coming;
        self.claim.set(self.missing);
        Ok(())
    }

    /// Returns the file if enough has arrived since the last call to sync it now. The caller must report the result
    /// before the message is finished.
    pub fn unsynced(&mut self) -> io::Result<Option<Box<dyn Opened>>> {
        if self.unsynced < SYNC_BYTES {
            return Ok(None);
        }
        self.unsynced = 0;
        self.file.again().map(Some)
    }

    /// Finishes the message once all bytes have arrived. Returns `None`, and discards the bytes, if they are not the
    /// announced ones.
    pub fn finish(mut self) -> io::Result<Option<Whole>> {
        let hashes: Option<Vec<Hash>> = self.hashes.iter().copied().collect();
        let hash = hashes.map(|hashes| hashes::of_message(&hashes, self.begin.length));
        if hash != Some(self.begin.hash) {
            self.restart()?;
            return Ok(None);
        }
        if let Err(error) = self.file.sync() {
            self.restart()?;
            return Err(error);
        }
        let (disk, folder) = (&self.inbox.disk, &self.inbox.folder);
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
