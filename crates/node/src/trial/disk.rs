//! The disk of a machine, in memory: it outlives processes, and a power cut takes from it what was not synced.
//!
//! A file has the bytes that processes see and those that were synced. After a power cut, each block is one or the
//! other, or zeros, and the file's length lies between both. A name that was added, removed or changed since its folder
//! was synced may be the old or the new one. Names are independent of each other, except that a renaming happens as a
//! whole, and that a change needs the earlier changes that it builds on. A killed process loses nothing, because the
//! kernel keeps its cache.
//!
//! If a disk fills up, a write takes as much as there is room for, and fails. Left out: modes and links.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use nix::errno::Errno;
use rand::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use tokio::time::Instant;

use super::machine::Life;
use crate::disk::Space;
use crate::ground::{folder_of, About, Disk, Opened};
use crate::sync::lock;

const TOTAL_BYTES: u64 = 4_000_000_000;
const BLOCK_BYTES: usize = 4_096;
/// The possible shares of a file's changed blocks that reach the disk before a power cut.
const SHARES: [f64; 4] = [0.0, 0.5, 0.9, 1.0];
const ROOT: u64 = 0;
/// The time after which a kernel writes the change of a name by itself.
const WRITTEN_AFTER: Duration = Duration::from_secs(30);
/// Number of nodes at which those that nothing can reach any more are first removed.
const SWEEP_MIN: usize = 64;

/// A folder or a file, as processes see it (`now`) and as it was last synced.
#[derive(Debug)]
enum Node {
    Folder {
        now: Names,
        synced: Names,
    },
    File {
        now: Vec<u8>,
        synced: Vec<u8>,
        modified: SystemTime,
    },
}

type Names = BTreeMap<OsString, u64>;

/// A change of a name in a folder: to another node, or to none.
#[derive(Clone, Debug)]
struct Change {
    folder: u64,
    name: OsString,
    to: Option<u64>,
}

/// A disk.
pub(crate) struct Platter {
    inner: Mutex<Inner>,
    began: Instant,
    /// Called when the power fails while something is written.
    fails: Box<dyn Fn() + Send + Sync>,
}

#[derive(Debug)]
struct Inner {
    rng: Xoshiro256PlusPlus,
    nodes: BTreeMap<u64, Node>,
    next: u64,
    /// Number of handles by node.
    opened: BTreeMap<u64, usize>,
    /// Number of nodes at which to sweep.
    sweep_at: usize,
    /// Changes of names that were not synced, and when they were made, oldest first; the changes of one element happen
    /// together.
    pending: Vec<(Instant, Vec<Change>)>,
    /// The bytes that still fit, if others have filled the disk.
    room: Option<u64>,
    has_descriptors: bool,
    /// The number of changes and syncs after which the power fails.
    fuse: Option<u32>,
}

impl fmt::Debug for Platter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Platter").finish_non_exhaustive()
    }
}

impl Platter {
    /// Creates an empty disk; `fails` is called when the power fails because of [`Platter::set_fuse`].
    pub fn new(seed: u64, began: Instant, fails: impl Fn() + Send + Sync + 'static) -> Platter {
        let empty = Node::Folder {
            now: Names::new(),
            synced: Names::new(),
        };
        Platter {
            inner: Mutex::new(Inner {
                rng: Xoshiro256PlusPlus::seed_from_u64(seed ^ 0x6469_736b),
                nodes: BTreeMap::from([(ROOT, empty)]),
                next: ROOT + 1,
                opened: BTreeMap::new(),
                sweep_at: SWEEP_MIN,
                pending: Vec::new(),
                room: None,
                has_descriptors: true,
                fuse: None,
            }),
            began,
            fails: Box::new(fails),
        }
    }

    /// Returns the disk as seen by a process that is never killed.
    #[cfg(test)]
    pub fn mount(self: &Arc<Self>) -> Arc<dyn Disk> {
        let (disk, life) = (self.clone(), Life::default());
        Arc::new(Mounted { disk, life })
    }

    /// Leaves this many bytes of room, or again all of it.
    pub fn fill(&self, room: Option<u64>) {
        lock(&self.inner).room = room;
    }

    /// Sets whether files can be opened.
    pub fn set_descriptors(&self, some: bool) {
        lock(&self.inner).has_descriptors = some;
    }

    pub fn has_descriptors(&self) -> bool {
        lock(&self.inner).has_descriptors
    }

    /// Makes the power fail after this many changes and syncs.
    pub fn set_fuse(&self, after: Option<u32>) {
        lock(&self.inner).fuse = after;
    }

    /// Makes the power fail.
    pub fn cut(&self) {
        lock(&self.inner).cut();
    }

    /// Makes a folder, which survives power cuts.
    pub fn make(&self, folder: &Path) -> io::Result<()> {
        let mut inner = lock(&self.inner);
        for part in inner.missing(folder).into_iter().rev() {
            inner.add_folder(&part)?;
        }
        inner.sync_names();
        inner.names(inner.find(folder)?).map(|_| ())
    }

    /// Returns the files in a folder.
    pub fn files(&self, folder: &Path) -> io::Result<Vec<(OsString, Vec<u8>)>> {
        let mut inner = lock(&self.inner);
        let names = inner.names(inner.find(folder)?)?.clone();
        let read = |(name, id)| Some((name, inner.file(id).ok()?.0.clone()));
        Ok(names.into_iter().filter_map(read).collect())
    }

    /// Returns the memory that all files take.
    pub fn bytes(&self) -> usize {
        let files = lock(&self.inner);
        let sizes = files.nodes.values().map(|node| match node {
            Node::File { now, synced, .. } => now.capacity() + synced.capacity(),
            Node::Folder { .. } => 0,
        });
        sizes.sum()
    }

    /// Removes a file, also after power cuts.
    pub fn lose(&self, file: &Path) {
        let mut inner = lock(&self.inner);
        if inner.remove(file).is_ok() {
            inner.sync_names();
        }
    }
}

impl Inner {
    fn names(&self, folder: u64) -> io::Result<&Names> {
        match self.nodes.get(&folder) {
            Some(Node::Folder { now, .. }) => Ok(now),
            _ => Err(ErrorKind::NotADirectory.into()),
        }
    }

    fn find(&self, path: &Path) -> io::Result<u64> {
        let mut at = ROOT;
        for name in parts(path) {
            at = *self.names(at)?.get(name).ok_or(ErrorKind::NotFound)?;
        }
        Ok(at)
    }

    /// Returns the folder and the name of a path.
    fn place(&self, path: &Path) -> io::Result<(u64, OsString)> {
        let name = path.file_name().ok_or(ErrorKind::InvalidInput)?;
        let folder = self.find(path.parent().unwrap_or(Path::new("")))?;
        self.names(folder)?;
        Ok((folder, name.to_owned()))
    }

    fn file(&mut self, id: u64) -> io::Result<(&mut Vec<u8>, &mut Vec<u8>, &mut SystemTime)> {
        match self.nodes.get_mut(&id) {
            Some(Node::File { now, synced, modified }) => Ok((now, synced, modified)),
            Some(Node::Folder { .. }) => Err(ErrorKind::IsADirectory.into()),
            None => Err(ErrorKind::NotFound.into()),
        }
    }

    fn change(&mut self, changes: Vec<Change>) {
        changes.iter().for_each(|change| self.apply(change, false));
        self.pending.push((Instant::now(), changes));
        self.write_old();
    }

    /// Writes changes of names that a kernel has written by now.
    fn write_old(&mut self) {
        let now = Instant::now();
        let young = |(at, _): &(Instant, _)| now.duration_since(*at) < WRITTEN_AFTER;
        let old = self.pending.iter().position(young).unwrap_or(self.pending.len());
        let written: Vec<_> = self.pending.drain(..old).flat_map(|(_, changes)| changes).collect();
        written.iter().for_each(|change| self.apply(change, true));
    }

    fn apply(&mut self, change: &Change, on_disk: bool) {
        if let Some(Node::Folder { now, synced }) = self.nodes.get_mut(&change.folder) {
            let names = if on_disk { synced } else { now };
            match change.to {
                Some(to) => _ = names.insert(change.name.clone(), to),
                None => _ = names.remove(&change.name),
            }
        }
    }

    fn add(&mut self, folder: u64, name: OsString, node: Node) -> io::Result<u64> {
        // A file system without room may or may not have room for a name.
        if self.room == Some(0) && self.rng.random() {
            return Err(ErrorKind::StorageFull.into());
        }
        if self.nodes.len() >= self.sweep_at {
            self.sweep();
        }
        let id = self.next;
        self.next += 1;
        self.nodes.insert(id, node);
        let to = Some(id);
        self.change(vec![Change { folder, name, to }]);
        Ok(id)
    }

    fn add_folder(&mut self, folder: &Path) -> io::Result<()> {
        let (parent, name) = self.place(folder)?;
        let (now, synced) = Default::default();
        self.add(parent, name, Node::Folder { now, synced }).map(|_| ())
    }

    /// Removes the nodes that have no name, neither now nor after a power cut, and are not open.
    fn sweep(&mut self) {
        let (mut there, mut look) = (BTreeSet::new(), vec![ROOT]);
        look.extend(self.opened.keys());
        look.extend(
            self.pending
                .iter()
                .flat_map(|(_, changes)| changes)
                .filter_map(|change| change.to),
        );
        while let Some(id) = look.pop() {
            if !there.insert(id) {
                continue;
            }
            if let Some(Node::Folder { now, synced }) = self.nodes.get(&id) {
                look.extend(now.values().chain(synced.values()));
            }
        }
        self.nodes.retain(|id, _| there.contains(id));
        self.sweep_at = SWEEP_MIN.max(2 * self.nodes.len());
    }

    /// Returns a folder and its parents that are missing, the innermost first.
    fn missing(&self, folder: &Path) -> Vec<PathBuf> {
        let missing = folder.ancestors().take_while(|folder| self.find(folder).is_err());
        missing.map(Path::to_owned).collect()
    }

    fn remove(&mut self, file: &Path) -> io::Result<()> {
        let id = self.find(file)?;
        self.file(id)?;
        let (folder, name) = self.place(file)?;
        self.change(vec![Change { folder, name, to: None }]);
        Ok(())
    }

    fn sync(&mut self, id: u64) {
        if let Ok((now, synced, _)) = self.file(id) {
            synced.clone_from(now);
            return;
        }
        // Sync the changes of this folder, and those that they build on.
        let mut names = BTreeSet::new();
        let mut needed = Vec::new();
        for place in (0..self.pending.len()).rev() {
            let changes = &self.pending[place].1;
            let is_needed =
                |change: &Change| change.folder == id || names.contains(&(change.folder, change.name.clone()));
            if changes.iter().any(is_needed) {
                names.extend(changes.iter().map(|change| (change.folder, change.name.clone())));
                needed.push(self.pending.remove(place).1);
            }
        }
        for change in needed.into_iter().rev().flatten() {
            self.apply(&change, true);
        }
    }

    /// Syncs all folders.
    fn sync_names(&mut self) {
        for change in std::mem::take(&mut self.pending)
            .into_iter()
            .flat_map(|(_, changes)| changes)
        {
            self.apply(&change, true);
        }
    }

    /// Cuts the power: each change that was not synced is kept or lost.
    fn cut(&mut self) {
        self.fuse = None;
        self.write_old();
        let share = SHARES[self.rng.random_range(0..SHARES.len())];
        let mut lost = BTreeSet::new();
        for (_, changes) in std::mem::take(&mut self.pending) {
            let place = |change: &Change| (change.folder, change.name.clone());
            let builds_on_lost = changes.iter().any(|change| lost.contains(&place(change)));
            if builds_on_lost || !self.rng.random_bool(share) {
                lost.extend(changes.iter().map(place));
            } else {
                changes.iter().for_each(|change| self.apply(change, true));
            }
        }
        for node in self.nodes.values_mut() {
            match node {
                Node::Folder { now, synced } => now.clone_from(synced),
                Node::File { now, synced, .. } => {
                    *now = torn(now, synced, &mut self.rng);
                    synced.clone_from(now);
                }
            }
        }
        let (mut there, mut look) = (BTreeSet::new(), vec![ROOT]);
        while let Some(id) = look.pop() {
            there.insert(id);
            look.extend(self.names(id).into_iter().flat_map(|names| names.values().copied()));
        }
        self.nodes.retain(|id, _| there.contains(id));
    }
}

/// Returns a file after a power cut.
fn torn(now: &[u8], synced: &[u8], rng: &mut Xoshiro256PlusPlus) -> Vec<u8> {
    if now == synced {
        return now.to_vec();
    }
    let (short, long) = (now.len().min(synced.len()), now.len().max(synced.len()));
    let length = if rng.random() {
        now.len()
    } else {
        rng.random_range(short..=long)
    };
    let share = SHARES[rng.random_range(0..SHARES.len())];
    let mut torn = vec![0; length];
    for (number, block) in torn.chunks_mut(BLOCK_BYTES).enumerate() {
        let from = if rng.random_bool(share) { now } else { synced };
        let from = from.get(number * BLOCK_BYTES..).unwrap_or_default();
        let common = from.len().min(block.len());
        block[..common].copy_from_slice(&from[..common]);
    }
    torn
}

fn parts(path: &Path) -> impl Iterator<Item = &OsStr> {
    path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name),
        _ => None,
    })
}

/// A disk as one process sees it.
#[derive(Clone, Debug)]
pub(super) struct Mounted {
    pub disk: Arc<Platter>,
    /// The process's life: what it does while it ends has no effect.
    pub life: Life,
}

impl Mounted {
    fn read_by<T>(&self, work: impl FnOnce(&mut Inner) -> io::Result<T>) -> io::Result<T> {
        if self.life.is_over() {
            return Err(Errno::EIO.into());
        }
        work(&mut lock(&self.disk.inner))
    }

    /// Opens something for `work`.
    fn open_for<T>(&self, work: impl FnOnce(&mut Inner) -> io::Result<T>) -> io::Result<T> {
        self.read_by(|inner| {
            if !inner.has_descriptors {
                return Err(Errno::EMFILE.into());
            }
            work(inner)
        })
    }

    /// Counts a change or a sync, which is about to happen: the power may fail just before.
    fn touch(&self) -> io::Result<()> {
        let mut inner = lock(&self.disk.inner);
        match &mut inner.fuse {
            Some(0) if !self.life.is_over() => {
                inner.cut();
                drop(inner);
                (self.disk.fails)();
                return Err(Errno::EIO.into());
            }
            Some(left) => *left = left.saturating_sub(1),
            None => {}
        }
        Ok(())
    }

    fn modified(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + self.disk.began.elapsed()
    }

    fn opened(&self, inner: &mut Inner, id: u64) -> Box<dyn Opened> {
        *inner.opened.entry(id).or_default() += 1;
        Box::new(Handle {
            on: self.clone(),
            id,
            position: 0,
        })
    }

    fn empty(&self) -> Node {
        Node::File {
            now: Vec::new(),
            synced: Vec::new(),
            modified: self.modified(),
        }
    }
}

impl Disk for Mounted {
    fn make(&self, folder: &Path, _: u32) -> io::Result<()> {
        let missing = self.read_by(|inner| Ok(inner.missing(folder)))?;
        for folder in missing.into_iter().rev() {
            self.touch()?;
            self.read_by(|inner| inner.add_folder(&folder))?;
        }
        self.read_by(|inner| inner.names(inner.find(folder)?).map(|_| ()))
    }

    fn list(&self, folder: &Path) -> io::Result<Vec<(OsString, About)>> {
        self.open_for(|inner| {
            let names = inner.names(inner.find(folder)?)?.clone();
            names
                .into_iter()
                .map(|(name, id)| Ok((name, inner.about(id)?)))
                .collect()
        })
    }

    fn about(&self, path: &Path) -> io::Result<About> {
        self.read_by(|inner| inner.about(inner.find(path)?))
    }

    fn read(&self, file: &Path) -> io::Result<Vec<u8>> {
        self.open_for(|inner| {
            let id = inner.find(file)?;
            Ok(inner.file(id)?.0.clone())
        })
    }

    fn open(&self, file: &Path) -> io::Result<Box<dyn Opened>> {
        self.touch()?;
        self.open_for(|inner| {
            let id = match inner.find(file) {
                Ok(id) => id,
                Err(_) => {
                    let (folder, name) = inner.place(file)?;
                    inner.add(folder, name, self.empty())?
                }
            };
            inner.file(id)?;
            Ok(self.opened(inner, id))
        })
    }

    fn create(&self, file: &Path, _: u32) -> io::Result<Box<dyn Opened>> {
        self.touch()?;
        self.open_for(|inner| {
            match inner.remove(file) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            let (folder, name) = inner.place(file)?;
            let id = inner.add(folder, name, self.empty())?;
            Ok(self.opened(inner, id))
        })
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.touch()?;
        self.read_by(|inner| {
            let id = inner.find(from)?;
            let ((from, old), (to, new)) = (inner.place(from)?, inner.place(to)?);
            let changes = [(from, old, None), (to, new, Some(id))];
            inner.change(changes.map(|(folder, name, to)| Change { folder, name, to }).into());
            Ok(())
        })
    }

    fn remove(&self, file: &Path) -> io::Result<()> {
        self.touch()?;
        self.read_by(|inner| inner.remove(file))
    }

    fn sync(&self, path: &Path) -> io::Result<()> {
        self.touch()?;
        self.open_for(|inner| {
            let id = inner.find(path)?;
            inner.sync(id);
            Ok(())
        })
    }

    fn hand_over(&self, file: &Path, to: &Path) -> io::Result<()> {
        self.open_for(|_| Ok(()))?;
        self.rename(file, to)?;
        // This fails if the power does.
        let _ = [to, file].map(|file| self.sync(folder_of(file)));
        Ok(())
    }

    fn take(&self, file: &Path) -> io::Result<Vec<u8>> {
        let bytes = self.read(file)?;
        self.remove(file)?;
        let _ = self.sync(folder_of(file));
        Ok(bytes)
    }

    fn space(&self, folder: &Path) -> io::Result<Space> {
        self.read_by(|inner| inner.find(folder).map(|_| inner.space()))
    }
}

/// A file that a process has opened.
#[derive(Debug)]
struct Handle {
    on: Mounted,
    id: u64,
    position: usize,
}

impl Drop for Handle {
    fn drop(&mut self) {
        let mut inner = lock(&self.on.disk.inner);
        if let Some(count) = inner.opened.get_mut(&self.id) {
            *count -= 1;
            if *count == 0 {
                inner.opened.remove(&self.id);
            }
        }
    }
}

impl Read for Handle {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let (id, position) = (self.id, self.position);
        let read = self.on.read_by(|inner| {
            let bytes = inner.file(id)?.0.get(position..).unwrap_or_default();
            let read = bytes.len().min(buffer.len());
            buffer[..read].copy_from_slice(&bytes[..read]);
            Ok(read)
        })?;
        self.position += read;
        Ok(read)
    }
}

impl Write for Handle {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.on.touch()?;
        let (id, position, at) = (self.id, self.position, self.on.modified());
        let written = self.on.read_by(|inner| {
            let fits = inner.room.map_or(bytes.len(), |room| bytes.len().min(room as usize));
            if fits < bytes.len().min(1) {
                return Err(ErrorKind::StorageFull.into());
            }
            inner.room = inner.room.map(|room| room - fits as u64);
            let (now, _, modified) = inner.file(id)?;
            now.resize(now.len().max(position + fits), 0);
            now[position..position + fits].copy_from_slice(&bytes[..fits]);
            *modified = at;
            Ok(fits)
        })?;
        self.position += written;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for Handle {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        // The node seeks only from the start.
        let SeekFrom::Start(to) = to else {
            return Err(ErrorKind::Unsupported.into());
        };
        self.position = usize::try_from(to).map_err(io::Error::other)?;
        Ok(to)
    }
}

impl Opened for Handle {
    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.on.touch()?;
        let bytes = usize::try_from(bytes).map_err(io::Error::other)?;
        self.on.read_by(|inner| {
            inner.file(self.id)?.0.resize(bytes, 0);
            Ok(())
        })
    }

    fn sync(&self) -> io::Result<()> {
        self.on.touch()?;
        self.on.read_by(|inner| {
            inner.sync(self.id);
            Ok(())
        })
    }

    fn space(&self) -> io::Result<Space> {
        self.on.read_by(|inner| Ok(inner.space()))
    }

    fn again(&self) -> io::Result<Box<dyn Opened>> {
        self.on.open_for(|inner| Ok(self.on.opened(inner, self.id)))
    }
}

impl Inner {
    fn about(&self, id: u64) -> io::Result<About> {
        match self.nodes.get(&id).ok_or(ErrorKind::NotFound)? {
            Node::File { now, modified, .. } => Ok(About {
                is_file: true,
                length: now.len() as u64,
                modified: *modified,
            }),
            Node::Folder { .. } => Ok(About {
                is_file: false,
                length: 0,
                modified: SystemTime::UNIX_EPOCH,
            }),
        }
    }

    fn space(&self) -> Space {
        Space::new(TOTAL_BYTES, self.room.unwrap_or(TOTAL_BYTES))
    }
}
