//! The robots' records, written line by line so that nothing is lost on `kill -9`, and the clock that the robots share
//! with the emulator.
//!
//! Each start of a robot has a separate file. Times are nanoseconds of the machine's monotonic clock; a robot in a time
//! namespace subtracts the namespace's offset.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

/// Maximum number of starts of one robot.
const STARTS_MAX: u32 = 1_000;

/// One line of a record.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Line {
    /// The process has started.
    Started { at: u64 },
    /// The node is open.
    Up { at: u64 },
    /// A control message arrived from robot `from`, created at `made_at`.
    Heard { at: u64, from: u16, made_at: u64 },
    /// Bulk may be sent: asked at `asked`, answered at `at`. Written at every check, so that the last one before a kill
    /// is known too.
    May { asked: u64, at: u64 },
    /// Bulk may no longer be sent.
    MayNot { at: u64 },
    /// There was no check between these times: the machine was slow, or the process stood still.
    Gap { from: u64, to: u64 },
    /// A bulk message starts, to robot `to`, or to the current leader if `None`.
    Begin {
        at: u64,
        name: String,
        to: Option<u16>,
        bytes: u64,
        hash: String,
    },
    /// The message's outcome: why it failed, or `None` if it was delivered.
    Told { at: u64, name: String, why: Option<String> },
    /// The robot sees another leader, or none.
    Led { at: u64, leader: Option<u16> },
}

/// The clock that all processes of the machine share, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct SharedClock {
    /// The offset of this process's time namespace.
    ahead_ns: i64,
}

impl SharedClock {
    pub fn new() -> Self {
        // Kernels without time namespaces have no such file, and no offsets.
        let offsets = fs::read_to_string("/proc/self/timens_offsets").unwrap_or_default();
        let ahead_ns = offset(&offsets).unwrap_or(0);
        SharedClock { ahead_ns }
    }

    pub fn now_ns(self) -> u64 {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        (now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64).saturating_add_signed(-self.ahead_ns)
    }
}

/// Returns the offset of the monotonic clock in the kernel's table.
fn offset(table: &str) -> Option<i64> {
    let mut words = table
        .lines()
        .find_map(|line| line.strip_prefix("monotonic"))?
        .split_whitespace();
    let (seconds, nanos): (i64, i64) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    Some(seconds * 1_000_000_000 + nanos)
}

/// Writes the record of one start of a robot.
#[derive(Debug)]
pub struct Writer {
    file: Mutex<File>,
    /// Zero-based number of this start.
    pub start: u32,
}

fn path(folder: &Path, robot: &str, start: u32) -> PathBuf {
    folder.join(format!("{}-{start}.jsonl", coorp_node::file_name(robot)))
}

impl Writer {
    /// Creates the record for the next start of a robot.
    ///
    /// # Errors
    /// The file cannot be created.
    pub fn next(folder: &Path, robot: &str) -> io::Result<Writer> {
        for start in 0..STARTS_MAX {
            match OpenOptions::new()
                .append(true)
                .create_new(true)
                .open(path(folder, robot, start))
            {
                Ok(file) => {
                    return Ok(Writer {
                        file: Mutex::new(file),
                        start,
                    })
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::Error::other("a robot started too often"))
    }

    /// Writes a line. On return the kernel has it, so a kill cannot lose it.
    pub fn write(&self, line: &Line) {
        let mut text = serde_json::to_vec(line).unwrap_or_default();
        text.push(b'\n');
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = file.write_all(&text) {
            // Without a complete record the run cannot be judged, so it must not pass.
            crate::output::note(&format!("failed: cannot write a record: {error}"));
            std::process::abort();
        }
    }
}

/// Reads the lines of each start of a robot, in order. Skips a line cut short by the end of its process.
///
/// # Errors
/// A file cannot be read, or is not a record.
pub fn read(folder: &Path, robot: &str) -> io::Result<Vec<Vec<Line>>> {
    let mut starts = Vec::new();
    for start in 0..STARTS_MAX {
        let text = match fs::read_to_string(path(folder, robot, start)) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => break,
            Err(error) => return Err(error),
        };
        let whole = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
        let lines: Result<Vec<Line>, _> = whole.map(serde_json::from_str).collect();
        starts.push(lines?);
    }
    Ok(starts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_are_read_from_the_kernels_table() {
        assert_eq!(
            offset("monotonic        5000         7\nboottime 1 2\n"),
            Some(5_000_000_000_007)
        );
        assert_eq!(offset("monotonic -3 0\n"), Some(-3_000_000_000));
        assert_eq!(offset(""), None);
    }

    #[test]
    fn each_start_has_a_file_and_a_torn_line_is_left_out() {
        let folder = std::env::temp_dir().join(format!("coorp-faults-record-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        // The longest legal name, of 256 bytes.
        let name = "\u{20000}".repeat(64);
        for at in [1, 2] {
            Writer::next(&folder, &name).unwrap().write(&Line::Started { at });
        }
        let mut torn = OpenOptions::new().append(true).open(path(&folder, &name, 1)).unwrap();
        torn.write_all(b"{\"up\":{\"a").unwrap();
        let read = read(&folder, &name).unwrap();
        assert_eq!(read, [[Line::Started { at: 1 }], [Line::Started { at: 2 }]]);
        fs::remove_dir_all(folder).unwrap();
    }
}
