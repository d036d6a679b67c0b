//! Recordings: MCAP files and ROS 2 bags, read once from start to end, one message at a time.
//!
//! A file's type is determined by its first bytes, not by its name. A bag's folder is read by the `.mcap` or `.db3`
//! files in it and not by its `metadata.yaml`, which a recorder writes last and which is missing after a crash. Bags
//! compressed by `rosbag2` are read if that is possible as a stream: messages, MCAP's chunks, and whole `.mcap.zstd`
//! files.
//!
//! Message times are log times, the only times that every format has and that all topics share. Left out: the content
//! of messages, ROS 1 bags (there is a converter), and data after the damage that ends a file.

#[cfg(feature = "bags")]
mod bag;
mod container;
mod names;
mod robots;
mod topics;

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};

use crate::failure::Failure;

pub use names::{flow_name, flow_names, team_name};
pub use robots::Robots;
pub use topics::{Rhythm, Topic, Topics};

/// Enough of a file to recognise it.
const HEAD_BYTES: usize = 16;
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
const SQLITE_MAGIC: &[u8] = b"SQLite format 3\0";
const ROS_1_MAGIC: &[u8] = b"#ROSBAG V";
/// Maximum number of files in a bag.
const FILES_MAX: usize = 100_000;

/// One recorded message.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    /// The topic.
    pub topic: &'a str,
    /// The type, if the recording gives it; empty otherwise.
    pub schema: &'a str,
    /// When it was logged, nanoseconds since the recorder's epoch.
    pub at_ns: u64,
    /// The size of its payload, uncompressed.
    pub bytes: u64,
}

/// Receives each message.
pub type See<'s> = dyn FnMut(Message<'_>) + 's;

/// Why a file was read only partially.
enum Stopped {
    /// Damage: everything before it is good.
    Damage(String),
    /// Nothing is usable: what the file is instead, and what to do.
    Unusable(String),
}

/// Reads the recording at `path`, a file or a bag's folder, and passes each message to `see`. Returns a sentence for
/// each file of which only the part before damage was read, or which was left out.
///
/// # Errors
/// `path` is not a recording, or nothing in it is readable; the message gives the file and what to do.
pub fn read(path: &Path, see: &mut See<'_>) -> Result<Vec<String>, Failure> {
    let files = files(path)?;
    let (mut notes, mut reason) = (Vec::new(), None);
    let mut messages = 0u64;
    for file in &files {
        let mut counted = |message: Message<'_>| {
            messages += 1;
            see(message);
        };
        let (note, why) = match read_file(file, &mut counted) {
            Ok(()) => continue,
            Err(Stopped::Damage(why)) => (
                format!("{} {why}; everything before that was used", file.display()),
                format!(
                    "{} {why}; there is no message before that: record it again",
                    file.display()
                ),
            ),
            // A killed recorder may leave an empty part of a bag.
            Err(Stopped::Unusable(why)) => (
                format!("{} was left out: it {why}", file.display()),
                format!("{} {why}", file.display()),
            ),
        };
        notes.push(note);
        reason.get_or_insert(why);
    }
    if messages > 0 {
        return Ok(notes);
    }
    let none = || format!("{} contains no messages; record while the robots run", path.display());
    Err(input(reason.unwrap_or_else(none)))
}

/// Returns the files that belong to a recording, so that they are not overwritten.
///
/// # Errors
/// Same as [`read`].
pub fn files(path: &Path) -> Result<Vec<PathBuf>, Failure> {
    let found = fs::metadata(path).map_err(|error| input(unreadable(path, &error)))?;
    if !found.is_dir() {
        return Ok(vec![path.to_path_buf()]);
    }
    let entries = fs::read_dir(path).map_err(|error| input(unreadable(path, &error)))?;
    let mut files: Vec<PathBuf> = entries
        .take(FILES_MAX)
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|file| storage(file).is_some())
        .collect();
    let first = files.first().and_then(|file| storage(file));
    if first.is_none() {
        return Err(input(format!(
            "{} contains no .mcap or .db3 file; give an MCAP file, or a folder created by `ros2 bag record`",
            path.display()
        )));
    }
    if files.iter().any(|file| storage(file) != first) {
        return Err(input(format!(
            "{} contains .mcap and .db3 files, which are two recordings; give one of the files",
            path.display()
        )));
    }
    // rosbag2 numbers the parts of a long bag without leading zeros.
    files.sort_by_key(|file| (part(file), file.clone()));
    Ok(files)
}

/// Returns the type of a bag's file by its name, ignoring whole-file compression.
fn storage(file: &Path) -> Option<&'static str> {
    let name = file.file_name()?.to_str()?;
    let name = name.strip_suffix(".zstd").unwrap_or(name);
    ["mcap", "db3"]
        .into_iter()
        .find(|kind| name.strip_suffix(kind).is_some_and(|stem| stem.ends_with('.')))
}

/// Returns the number of a part of a bag: `run_12.mcap` is 12.
fn part(file: &Path) -> u64 {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let stem = name.split('.').next().unwrap_or_default();
    let digits = stem.rsplit(|c: char| !c.is_ascii_digit()).next().unwrap_or_default();
    digits.parse().unwrap_or(0)
}

fn read_file(path: &Path, see: &mut See<'_>) -> Result<(), Stopped> {
    let unread = |error: io::Error| Stopped::Unusable(why_unreadable(&error));
    let mut file = File::open(path).map_err(unread)?;
    let head = head(&mut file).map_err(unread)?;
    if head.starts_with(SQLITE_MAGIC) {
        #[cfg(feature = "bags")]
        return bag::read(path, see);
        #[cfg(not(feature = "bags"))]
        return Err(Stopped::Unusable(
            "is stored by SQLite, which this coorp was built without; build it with '--features bags', or convert the \
             bag to MCAP: ros2 bag convert"
                .to_owned(),
        ));
    }
    if !head.starts_with(&ZSTD_MAGIC) {
        recognise(&head)?;
        return container::read(&mut head.as_slice().chain(file), see);
    }
    let mut inside = zstd::Decoder::new(head.as_slice().chain(file)).map_err(unread)?;
    let head = self::head(&mut inside).map_err(|error| Stopped::Damage(format!("is damaged: {error}")))?;
    if head.starts_with(SQLITE_MAGIC) {
        return Err(Stopped::Unusable(format!(
            "is compressed as a whole, but SQLite needs random access; decompress it first: zstd -d {}",
            path.display()
        )));
    }
    recognise(&head)?;
    container::read(&mut head.as_slice().chain(inside), see)
}

/// Rejects files that are not MCAP, by their first bytes.
fn recognise(head: &[u8]) -> Result<(), Stopped> {
    if head.starts_with(mcap::MAGIC) {
        return Ok(());
    }
    Err(Stopped::Unusable(if head.is_empty() {
        "is empty; record it again, and stop the recorder with Ctrl-C so that it can finish the file".to_owned()
    } else if head.starts_with(ROS_1_MAGIC) {
        "is a ROS 1 bag; convert it first: rosbags-convert (pip install rosbags) makes it a ROS 2 bag".to_owned()
    } else if mcap::MAGIC.starts_with(head) {
        "is truncated in its first bytes; record it again".to_owned()
    } else {
        "is not a recording: neither MCAP nor a ROS 2 bag; give a file or folder from `ros2 bag record` or an MCAP \
         writer"
            .to_owned()
    }))
}

fn head(from: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut head = Vec::with_capacity(HEAD_BYTES);
    from.take(HEAD_BYTES as u64).read_to_end(&mut head)?;
    Ok(head)
}

/// Returns a payload's size before compression by `rosbag2`. A compressed CDR message begins with a zstd frame, while
/// CDR itself begins with a zero byte.
fn payload_bytes(data: &[u8]) -> u64 {
    let inside = data
        .starts_with(&ZSTD_MAGIC)
        .then(|| zstd::zstd_safe::get_frame_content_size(data).ok().flatten());
    inside.flatten().unwrap_or(data.len() as u64)
}

fn unreadable(path: &Path, error: &io::Error) -> String {
    format!("{} {}", path.display(), why_unreadable(error))
}

fn why_unreadable(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::NotFound => "does not exist; give an MCAP file, or the folder of a ROS 2 bag".to_owned(),
        ErrorKind::PermissionDenied => "cannot be read without permission; change its permissions".to_owned(),
        _ => format!("cannot be read: {error}"),
    }
}

fn input(text: String) -> Failure {
    Failure::Input(format!("error: {text}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_bag_come_in_the_order_of_their_numbers() {
        let order = |name: &str| part(Path::new(name));
        assert_eq!(order("bag/run_2.mcap"), 2);
        assert_eq!(order("run_10.db3.zstd"), 10);
        assert_eq!(order("run.mcap"), 0);
        assert_eq!(order("2024_06_01-10_11_12.mcap"), 12);
        assert_eq!(order("99999999999999999999999.mcap"), 0);
    }

    #[test]
    fn only_recordings_of_a_folder_are_read() {
        let kind = |name: &str| storage(Path::new(name));
        assert_eq!(kind("a/run_0.mcap"), Some("mcap"));
        assert_eq!(kind("a/run_0.db3.zstd"), Some("db3"));
        assert_eq!(kind("metadata.yaml"), None);
        assert_eq!(kind("run_0.db3-wal"), None);
        assert_eq!(kind("mcap"), None);
    }

    #[test]
    fn a_compressed_payload_counts_by_what_is_in_it() {
        let plain = [0u8, 1, 0, 0, 7, 7, 7, 7];
        assert_eq!(payload_bytes(&plain), 8);
        let packed = zstd::bulk::compress(&[0; 5000], 3).unwrap();
        assert!(packed.len() < 100);
        assert_eq!(payload_bytes(&packed), 5000);
        assert_eq!(payload_bytes(&ZSTD_MAGIC), 4, "a frame cut short");
    }
}
