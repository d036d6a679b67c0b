//! The flight recorder: every input of a live robot and every answer, kept on disk in a ring, for replay.
//!
//! `Flown` is the robot with its recorder. Every [`Input`] goes through it and is noted, in memory and under the
//! robot's lock; a thread writes the notes (`flight/write.rs`). A segment begins with the robot's whole state, so each
//! file can be replayed by itself, and the oldest files make room. Notes for which there is no memory are left out and
//! counted; then a new segment begins.
//!
//! A file is `CoFR`, the layout's number, and blocks: length, the first bytes of BLAKE3 of the body, body, in postcard.
//! The first block is a [`Header`], each other one [`Record`]s. [`read`] accepts no block with a wrong hash, so garbage
//! never becomes a robot by chance. This version's types determine the state's layout: [`LAYOUT`] is incremented when
//! one changes.
//!
//! Left out: message contents, and the results of actions. Recordings for people are MCAP (`recording.rs`).

mod write;

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use coorp_core::robot::{Answer, Cursor, Input, Look, Robot, RobotConfig, Taken};
use coorp_core::Instant;
use serde::{Deserialize, Serialize};

pub(crate) use write::Recorder;

use crate::Error;

/// The layout of files: their blocks, and the types in them.
pub const LAYOUT: u16 = 10;
/// The file extension.
pub const SUFFIX: &str = "flight";
/// The folder of the files within a robot's state folder.
pub const FOLDER: &str = "flight";

const MAGIC: &[u8; 4] = b"CoFR";
const HASH_BYTES: usize = 8;
const BLOCK_HEAD_BYTES: usize = 4 + HASH_BYTES;
/// The error for a file without a whole state.
const CUT: &str = "the file ends before its robot's state; an older file in the same folder may be complete";
/// Larger files are not the recorder's, bytes.
const FILE_BYTES_MAX: u64 = 256 << 20;
/// The size of its records at which a segment ends, bytes.
const SEGMENT_BYTES: usize = 1 << 20;
/// The maximum number of bytes that wait to be written.
const WAITING_BYTES_MAX: usize = 4 << 20;

/// The first block of a file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Header {
    /// The version of Coorp that wrote it.
    pub coorp: String,
    /// The team's name.
    pub team: String,
    /// The names of the team's robots, in order.
    pub robots: Vec<String>,
    /// The configuration that the robot was started with.
    pub config: RobotConfig,
    /// The time at which the file begins, on the robot's clock.
    pub at: Instant,
    /// The same as Unix time, nanoseconds.
    pub unix_ns: u64,
    /// The number of inputs left out before this file, since the robot's start.
    pub lost: u64,
    /// The robot at that time.
    pub robot: Robot,
}

/// An input of a robot, and its answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// The time of the input, on the robot's clock.
    pub at: Instant,
    /// The input.
    pub input: Input,
    /// The answer.
    pub answer: Answer,
}

/// A file of the recorder.
#[derive(Clone, Debug)]
pub struct Segment {
    /// The first block.
    pub header: Header,
    /// The records.
    pub records: Vec<Record>,
    /// Whether its end is missing because the process was killed while writing.
    pub cut: bool,
}

/// A part of a file that waits to be written.
#[derive(Debug)]
enum Part {
    Begin(Box<Header>),
    Records(Vec<u8>),
}

/// The constant parts of a header, and the clock's origin.
#[derive(Clone, Debug)]
pub(crate) struct About {
    pub team: String,
    pub robots: Vec<String>,
    pub config: RobotConfig,
    /// The same moment on the robot's clock and as Unix time, nanoseconds.
    pub origin: (Instant, u64),
}

/// Notes that are not written yet.
#[derive(Debug)]
struct Notes {
    about: About,
    parts: Vec<Part>,
    /// The records of the open block.
    bytes: Vec<u8>,
    /// The size of the parts before it, without headers, bytes.
    waiting: usize,
    /// The bytes of this segment's records so far.
    segment: usize,
    last: Instant,
    lost: u64,
    /// Whether something was left out, so that this segment ends.
    broken: bool,
}

/// A robot and its recorder. Anything may query the robot; only an [`Input`] changes it.
#[derive(Debug)]
pub(crate) struct Flown {
    robot: Robot,
    /// `None` once recording has ended because the disk takes no more.
    notes: Option<Box<Notes>>,
}

impl std::ops::Deref for Flown {
    type Target = Robot;

    fn deref(&self) -> &Robot {
        &self.robot
    }
}

impl Flown {
    pub fn new(robot: Robot, about: About) -> Self {
        let now = about.origin.0;
        let mut notes = Notes {
            about,
            parts: Vec::new(),
            bytes: Vec::new(),
            waiting: 0,
            segment: 0,
            last: now,
            lost: 0,
            broken: false,
        };
        notes.begin(&robot, now);
        Flown {
            robot,
            notes: Some(Box::new(notes)),
        }
    }

    /// Passes an input to the robot, and notes it.
    pub fn handle(&mut self, input: Input, now: Instant) -> Answer {
        let Some(notes) = &mut self.notes else {
            return self.robot.handle(input, now);
        };
        let noted = notes.input(&self.robot, &input, now);
        let answer = self.robot.handle(input, now);
        if noted {
            notes.answer(&answer);
        }
        answer
    }

    /// Returns whether the robot may do what it is asked about.
    pub fn may(&mut self, input: Input, now: Instant) -> bool {
        self.handle(input, now) == Answer::Yes
    }

    /// Returns the notes made since the last call.
    fn take(&mut self) -> Vec<Part> {
        self.notes.as_mut().map(|notes| notes.take()).unwrap_or_default()
    }

    /// Stops taking notes.
    fn end(&mut self) {
        self.notes = None;
    }

    pub fn begin_journal(&mut self) -> bool {
        self.robot.begin_journal()
    }

    pub fn end_journal(&mut self) {
        self.robot.end_journal();
    }

    pub fn take_journal(&mut self) -> Taken {
        self.robot.take_journal()
    }

    pub fn look(&mut self, since: Option<Cursor>, now: Instant) -> Look {
        self.robot.look(since, now)
    }
}

impl Notes {
    /// Begins a segment with the robot's current state.
    fn begin(&mut self, robot: &Robot, now: Instant) {
        self.close();
        let (origin, unix_ns) = self.about.origin;
        let header = Header {
            coorp: env!("CARGO_PKG_VERSION").to_owned(),
            team: self.about.team.clone(),
            robots: self.about.robots.clone(),
            config: self.about.config.clone(),
            at: now,
            unix_ns: unix_ns.saturating_add(now.since(origin).as_nanos()),
            lost: self.lost,
            robot: robot.clone(),
        };
        self.parts.push(Part::Begin(Box::new(header)));
        (self.segment, self.last, self.broken) = (0, now, false);
    }

    /// Notes an input. Returns whether there was room for it.
    fn input(&mut self, robot: &Robot, input: &Input, now: Instant) -> bool {
        if self.waiting + self.bytes.len() >= WAITING_BYTES_MAX {
            self.broken = true;
            self.lost += 1;
            return false;
        }
        if self.broken || self.segment >= SEGMENT_BYTES {
            self.begin(robot, now);
        }
        let after = now.since(self.last).as_nanos();
        self.last = now;
        self.add(&(after, input));
        true
    }

    fn answer(&mut self, answer: &Answer) {
        self.add(answer);
    }

    fn add(&mut self, value: &impl Serialize) {
        let before = self.bytes.len();
        // None of our values fails; half a record would end the segment for its reader.
        if let Ok(bytes) = postcard::to_extend(value, std::mem::take(&mut self.bytes)) {
            self.bytes = bytes;
        }
        self.segment += self.bytes.len().saturating_sub(before);
    }

    fn close(&mut self) {
        if !self.bytes.is_empty() {
            self.waiting += self.bytes.len();
            self.parts.push(Part::Records(std::mem::take(&mut self.bytes)));
        }
    }

    fn take(&mut self) -> Vec<Part> {
        self.close();
        self.waiting = 0;
        std::mem::take(&mut self.parts)
    }
}

/// Returns the recorder's files at a path, in order: the file itself, or those of a folder.
///
/// # Errors
/// If the folder cannot be read or has none.
pub fn files(path: &Path) -> Result<Vec<PathBuf>, Error> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let cannot = |error| Error::at("read the folder", path, error);
    let mut files = Vec::new();
    for entry in std::fs::read_dir(path).map_err(cannot)? {
        let file = entry.map_err(cannot)?.path();
        if file.extension().is_some_and(|suffix| suffix == SUFFIX) {
            files.push(file);
        }
    }
    files.sort();
    if files.is_empty() {
        return Err(Error::Flight(format!(
            "{} has no files of a flight recorder (*.{SUFFIX}); a robot keeps them in {FOLDER}/ of its state folder",
            path.display()
        )));
    }
    Ok(files)
}

/// Reads a file of the recorder.
///
/// # Errors
/// If it cannot be read, is not the recorder's, has another layout, or its beginning is damaged.
pub fn read(path: &Path) -> Result<Segment, Error> {
    let cannot = |error| Error::at("read", path, error);
    let file = File::open(path).map_err(cannot)?;
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(cannot)?;
    parse(&bytes).map_err(|what| Error::Flight(format!("{}: {what}", path.display())))
}

fn parse(bytes: &[u8]) -> Result<Segment, String> {
    let rest = bytes.strip_prefix(MAGIC);
    let Some(rest) = rest.filter(|_| bytes.len() as u64 <= FILE_BYTES_MAX) else {
        return Err("this is not a flight recorder's file; those are in flight/ of a robot's state folder".to_owned());
    };
    let Some((layout, rest)) = rest.split_first_chunk::<2>() else {
        return Err(CUT.to_owned());
    };
    let layout = u16::from_le_bytes(*layout);
    if layout != LAYOUT {
        return Err(format!(
            "it has layout {layout}, but this coorp reads layout {LAYOUT}: replay it with the coorp that wrote it"
        ));
    }
    let (header, mut rest) = match block(rest) {
        Block::Whole(body, rest) => (body, rest),
        Block::Cut => return Err(CUT.to_owned()),
        Block::Damaged => return Err("the robot's state in it is damaged".to_owned()),
    };
    let Ok((header, [])) = postcard::take_from_bytes::<Header>(header) else {
        return Err(
            "the robot's state in it is from another version: replay it with the coorp that wrote it".to_owned(),
        );
    };
    let (mut records, mut at, mut cut) = (Vec::new(), header.at, false);
    while !rest.is_empty() {
        let mut body = match block(rest) {
            Block::Whole(body, after) => {
                rest = after;
                body
            }
            Block::Cut => {
                cut = true;
                break;
            }
            Block::Damaged => return Err(format!("it is damaged after {} inputs", records.len())),
        };
        while !body.is_empty() {
            let Ok(((after, input, answer), left)) = postcard::take_from_bytes::<(u64, Input, Answer)>(body) else {
                return Err(format!("input {} in it is invalid", records.len() + 1));
            };
            at += coorp_core::Duration::from_nanos(after);
            records.push(Record { at, input, answer });
            body = left;
        }
    }
    Ok(Segment { header, records, cut })
}

enum Block<'b> {
    /// The body, and the bytes after it.
    Whole(&'b [u8], &'b [u8]),
    Cut,
    Damaged,
}

fn block(bytes: &[u8]) -> Block<'_> {
    let Some((length, rest)) = bytes.split_first_chunk::<4>() else {
        return Block::Cut;
    };
    let Some((hash, rest)) = rest.split_first_chunk::<HASH_BYTES>() else {
        return Block::Cut;
    };
    let length = usize::try_from(u32::from_le_bytes(*length)).unwrap_or(usize::MAX);
    match rest.split_at_checked(length) {
        None => Block::Cut,
        Some((body, after)) if blake3::hash(body).as_bytes()[..HASH_BYTES] == *hash => Block::Whole(body, after),
        Some(_) => Block::Damaged,
    }
}

#[cfg(test)]
mod tests;
