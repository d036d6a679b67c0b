//! The thread that writes the recorder's notes into a ring of files.
//!
//! The robot never waits for it. A full disk ends the recorder with a log message, and the robot continues. The ring
//! does not grow into the disk's reserve (`disk.rs`).

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::{Flown, Part, BLOCK_HEAD_BYTES, FOLDER, HASH_BYTES, LAYOUT, MAGIC, SUFFIX};
use crate::ground::{Disk, Ground, Opened, Worker};
use crate::sync::lock;
use crate::Error;

/// The interval at which notes are written. A killed process loses no more than this.
const TAKE_EVERY: Duration = Duration::from_millis(100);
/// The number of files to keep, including those of earlier starts.
const FILES_MAX: usize = 16;

/// The recorder's thread. When dropped, it writes what is left and ends.
#[derive(Debug)]
pub(crate) struct Recorder {
    writer: Arc<Writer>,
    worker: Option<Worker>,
}

#[derive(Debug)]
struct Writer {
    robot: Arc<Mutex<Flown>>,
    ring: Mutex<Ring>,
    end: AtomicBool,
}

impl Recorder {
    /// Starts writing below a robot's state folder.
    pub fn start(ground: &dyn Ground, robot: Arc<Mutex<Flown>>, state: &Path) -> Result<Recorder, Error> {
        let writer = Arc::new(Writer {
            robot,
            ring: Mutex::new(Ring::new(ground.disk(), state.join(FOLDER))),
            end: AtomicBool::new(false),
        });
        let round = writer.clone();
        let round = move || (!round.end.load(Ordering::Acquire) && round.look()).then_some(TAKE_EVERY);
        let worker = ground
            .worker("coorp-flight", || (), Box::new(round))
            .map_err(Error::Thread)?;
        Ok(Recorder {
            writer,
            worker: Some(worker),
        })
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.writer.end.store(true, Ordering::Release);
        if let Some(worker) = self.worker.take() {
            worker.join();
        }
        // The recording includes the notes until the end.
        self.writer.look();
    }
}

impl Writer {
    /// Writes the notes. Returns whether it can continue.
    fn look(&self) -> bool {
        let parts = lock(&self.robot).take();
        let mut ring = lock(&self.ring);
        let written = parts.into_iter().try_for_each(|part| ring.write(part));
        if let Err(error) = &written {
            lock(&self.robot).end();
            let folder = ring.folder.display();
            tracing::error!("the flight recorder in {folder} ends here: {error}; the robot continues");
        }
        written.is_ok()
    }
}

/// The files of a robot's recorder.
#[derive(Debug)]
pub(super) struct Ring {
    disk: Arc<dyn Disk>,
    folder: PathBuf,
    /// The number of this start, greater than that of any file in the folder. Known with the first file.
    start: Option<u64>,
    next: u32,
    file: Option<Box<dyn Opened>>,
}

impl Ring {
    pub fn new(disk: Arc<dyn Disk>, folder: PathBuf) -> Self {
        Ring {
            disk,
            folder,
            start: None,
            next: 0,
            file: None,
        }
    }

    pub fn write(&mut self, part: Part) -> io::Result<()> {
        let (mut bytes, body) = match part {
            Part::Begin(header) => {
                self.file = Some(self.open()?);
                let head = [MAGIC.as_slice(), &LAYOUT.to_le_bytes()].concat();
                (head, postcard::to_allocvec(&*header).map_err(io::Error::other)?)
            }
            Part::Records(body) => (Vec::new(), body),
        };
        let length = u32::try_from(body.len()).map_err(io::Error::other)?;
        bytes.reserve(BLOCK_HEAD_BYTES + body.len());
        bytes.extend_from_slice(&length.to_le_bytes());
        bytes.extend_from_slice(&blake3::hash(&body).as_bytes()[..HASH_BYTES]);
        bytes.extend_from_slice(&body);
        // Write at once, so that a killed process leaves whole blocks.
        self.file.as_mut().map_or(Ok(()), |file| file.write_all(&bytes))
    }

    /// Opens the next file; the oldest files make room for it. The names are in order. On a disk with no more than its
    /// reserve free, the ring does not grow.
    fn open(&mut self) -> io::Result<Box<dyn Opened>> {
        self.disk.make(&self.folder, 0o777)?;
        let listed = self.disk.list(&self.folder)?.into_iter();
        let mut files: Vec<PathBuf> = listed.map(|(name, _)| name.into()).collect();
        files.retain(|file| file.extension().is_some_and(|suffix| suffix == SUFFIX));
        files.sort();
        let space = self.disk.space(&self.folder)?;
        let surplus = (files.len() + 1).saturating_sub(FILES_MAX);
        if space.usable() == 0 && files.is_empty() {
            return Err(space.short());
        }
        for old in files.iter().take(surplus.max(usize::from(space.usable() == 0))) {
            self.disk.remove(&self.folder.join(old))?;
        }
        let start = *self.start.get_or_insert_with(|| {
            let last = files.iter().filter_map(|file| start_of(file)).max();
            last.map_or(1, |last| last.saturating_add(1))
        });
        let name = format!("{start:010}-{:06}.{SUFFIX}", self.next);
        self.next = self.next.wrapping_add(1);
        self.disk.create(&self.folder.join(name), 0o666)
    }
}

/// Returns the number of the start that wrote a file, by the file's name.
fn start_of(file: &Path) -> Option<u64> {
    let (start, _) = file.file_name()?.to_str()?.split_once('-')?;
    start.parse().ok()
}
