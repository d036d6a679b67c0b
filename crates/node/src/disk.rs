//! Limits how much of a disk bulk and recordings may fill: all but a reserve, so that the rest of the machine can still
//! write.
//!
//! The reserve is 64 MB, or 5 % of a disk that is smaller than 1.28 GB. Messages in progress claim what they still need,
//! so that several senders cannot share the same free bytes. Other programs may fill the disk in the meantime, so each
//! write checks the space again.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use nix::sys::statvfs::Statvfs;

use crate::ground::Disk;
use crate::sync::lock;

/// The reserve of a large disk, bytes. On a small disk, the reserve is a twentieth of it.
const RESERVE_BYTES: u64 = 64_000_000;
const RESERVE_SHARE: u64 = 20;

/// The space on a disk, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Space {
    /// The bytes that this user can still write.
    pub free: u64,
    /// The bytes that have to stay free.
    pub reserve: u64,
    /// The bytes that an empty disk would take, without the reserve.
    pub most: u64,
}

impl Space {
    pub fn of(disk: &Statvfs) -> Space {
        let block = disk.fragment_size();
        Space::new(
            disk.blocks().saturating_mul(block),
            disk.blocks_available().saturating_mul(block),
        )
    }

    pub fn new(total: u64, free: u64) -> Space {
        let reserve = RESERVE_BYTES.min(total / RESERVE_SHARE);
        Space {
            free,
            reserve,
            most: total - reserve,
        }
    }

    /// Returns the bytes that may be written without touching the reserve.
    pub fn usable(self) -> u64 {
        self.free.saturating_sub(self.reserve)
    }

    /// Fails if less than the reserve is free.
    pub fn check(self) -> io::Result<()> {
        if self.free < self.reserve {
            return Err(self.short());
        }
        Ok(())
    }

    /// Returns the error of a write that would touch the reserve.
    pub fn short(self) -> io::Error {
        let (free, reserve) = (megabytes(self.free), megabytes(self.reserve));
        io::Error::new(
            io::ErrorKind::StorageFull,
            format!("{free} are free on its disk, and {reserve} of that are kept free"),
        )
    }
}

/// The disk that bulk is received on.
#[derive(Debug, Default)]
pub(crate) struct Room {
    /// The bytes that messages in progress still need.
    claimed: Mutex<u64>,
    /// The senders' folders that survive a power cut, as far as this start knows.
    kept: Mutex<BTreeSet<PathBuf>>,
    /// Whether the most recent bulk was refused for lack of room.
    short: AtomicBool,
}

/// The reason why there is no room for a message, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoRoom {
    /// The bytes that the message still needs.
    pub missing: u64,
    /// The bytes that it could have now.
    pub usable: u64,
    /// The bytes that it could have on an empty disk.
    pub most: u64,
}

impl Room {
    /// Claims room for a message below a folder.
    pub fn claim(self: &Arc<Self>, disk: &dyn Disk, folder: &Path, bytes: u64) -> io::Result<Result<Claim, NoRoom>> {
        let space = disk.space(folder)?;
        let mut claimed = lock(&self.claimed);
        let usable = space.usable().saturating_sub(*claimed);
        if bytes > usable {
            return Ok(Err(NoRoom {
                missing: bytes,
                usable,
                most: space.most,
            }));
        }
        *claimed += bytes;
        Ok(Ok(Claim {
            room: self.clone(),
            bytes,
        }))
    }

    /// Makes a sender's folder, and the two above it, survive a power cut. An earlier start may have been killed right
    /// after creating them, so only what this start has synced counts.
    pub fn keep(&self, disk: &dyn Disk, folder: &Path) -> io::Result<()> {
        let mut kept = lock(&self.kept);
        if !kept.contains(folder) {
            folder.ancestors().take(3).try_for_each(|folder| disk.sync(folder))?;
            kept.insert(folder.to_owned());
        }
        Ok(())
    }

    /// Notes whether bulk was refused; logs changes, not each attempt of each sender.
    pub fn note(&self, folder: &Path, refused: Option<NoRoom>) {
        if self.short.swap(refused.is_some(), Ordering::Relaxed) == refused.is_some() {
            return;
        }
        let folder = folder.display();
        match refused {
            Some(NoRoom { missing, usable, .. }) => tracing::error!(
                "the disk of {folder} has room for {} of bulk, not counting its reserve, but {} are needed: bulk waits, \
                 control continues",
                megabytes(usable),
                megabytes(missing)
            ),
            None => tracing::info!("the disk of {folder} has room for bulk again"),
        }
    }
}

/// A message's claim to room on the disk, until it is dropped.
#[derive(Debug)]
pub(crate) struct Claim {
    room: Arc<Room>,
    bytes: u64,
}

impl Claim {
    /// Sets the number of bytes that the message still needs.
    pub fn set(&mut self, bytes: u64) {
        let mut claimed = lock(&self.room.claimed);
        *claimed = *claimed - self.bytes + bytes;
        self.bytes = bytes;
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// Formats a number of bytes for people: `12.3 MB`.
pub(crate) fn megabytes(bytes: u64) -> String {
    let tenths = bytes / 100_000;
    format!("{}.{} MB", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ground::Linux;

    #[test]
    fn the_reserve_is_64_mb_or_a_twentieth() {
        let space = |total, free| Space::new(total, free);
        let (mb, gb) = (1_000_000, 1_000_000_000);
        assert_eq!(space(100 * gb, gb).usable(), gb - 64 * mb);
        assert_eq!(space(100 * mb, 50 * mb).usable(), 45 * mb);
        assert_eq!(space(100 * mb, 4 * mb).usable(), 0);
        assert!(space(100 * mb, 5 * mb).check().is_ok());
        let short = space(100_000_000, 4_000_000).check().unwrap_err();
        assert_eq!(short.kind(), io::ErrorKind::StorageFull);
        assert_eq!(
            short.to_string(),
            "4.0 MB are free on its disk, and 5.0 MB of that are kept free"
        );
    }

    #[test]
    fn two_senders_cannot_have_the_same_room() {
        let (room, folder) = (Arc::new(Room::default()), std::env::temp_dir());
        let usable = Linux.space(&folder).unwrap().usable();
        let half = usable / 2 + (usable / 8);
        let mut first = room.claim(&Linux, &folder, half).unwrap().unwrap();
        let second = room.claim(&Linux, &folder, half).unwrap().unwrap_err();
        assert!(second.missing == half && second.usable < half && second.most >= half);
        // As the message arrives, the disk has less room and the claim needs less.
        first.set(0);
        drop(room.claim(&Linux, &folder, half).unwrap().unwrap());
        assert_eq!(*lock(&room.claimed), 0);
    }
}
