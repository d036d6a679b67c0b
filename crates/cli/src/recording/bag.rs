//! ROS 2 bags with `sqlite3` storage, the default of `ros2 bag` before Iron: a table of topics and one of messages.
//!
//! Rows are read in storage order, which is the order of recording, and only the length of each message is read: SQLite
//! then leaves the pages of large messages on disk. The file is opened read-only.

use std::collections::HashMap;
use std::path::Path;

use rusqlite::{Connection, ErrorCode, OpenFlags};

use super::{payload_bytes, Message, See, Stopped, ZSTD_MAGIC};

/// Reads all rows and passes each message to `see`.
pub fn read(path: &Path, see: &mut See<'_>) -> Result<(), Stopped> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let bag = Connection::open_with_flags(path, flags).map_err(|error| stopped(&error))?;
    // Do not run views and triggers of a foreign file.
    bag.pragma_update(None, "trusted_schema", false)
        .map_err(|error| stopped(&error))?;
    let tables = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name IN ('topics', 'messages')";
    let tables: u32 = bag
        .query_row(tables, [], |row| row.get(0))
        .map_err(|error| stopped(&error))?;
    if tables != 2 {
        return Err(Stopped::Unusable(
            "is an SQLite file, but not a ROS 2 bag: it has no tables `topics` and `messages`".to_owned(),
        ));
    }
    messages(&bag, see).map_err(|error| stopped(&error))
}

fn messages(bag: &Connection, see: &mut See<'_>) -> Result<(), rusqlite::Error> {
    let mut topics: HashMap<i64, (String, String)> = HashMap::new();
    let mut rows = bag.prepare("SELECT id, name, type FROM topics")?;
    let mut rows = rows.query([])?;
    while let Some(row) = rows.next()? {
        topics.insert(row.get(0)?, (row.get(1)?, row.get(2)?));
    }
    let compressed = is_compressed(bag)?;
    let what = if compressed { "data" } else { "length(data)" };
    let mut rows = bag.prepare(&format!("SELECT topic_id, timestamp, {what} FROM messages"))?;
    let mut rows = rows.query([])?;
    while let Some(row) = rows.next()? {
        let (topic, at_ns): (i64, i64) = (row.get(0)?, row.get(1)?);
        let bytes = if compressed {
            payload_bytes(row.get_ref(2)?.as_bytes().unwrap_or_default())
        } else {
            u64::try_from(row.get::<_, Option<i64>>(2)?.unwrap_or(0)).unwrap_or(0)
        };
        if let Some((topic, schema)) = topics.get(&topic) {
            let at_ns = u64::try_from(at_ns).unwrap_or(0);
            see(Message {
                topic,
                schema,
                at_ns,
                bytes,
            });
        }
    }
    Ok(())
}

/// Returns whether `rosbag2` compressed each message: it compresses all or none, so the first one shows it.
fn is_compressed(bag: &Connection) -> Result<bool, rusqlite::Error> {
    let mut first = bag.prepare("SELECT data FROM messages LIMIT 1")?;
    let mut first = first.query([])?;
    let Some(row) = first.next()? else { return Ok(false) };
    Ok(row.get_ref(0)?.as_bytes().unwrap_or_default().starts_with(&ZSTD_MAGIC))
}

fn stopped(error: &rusqlite::Error) -> Stopped {
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            Stopped::Unusable("is being written; stop the recorder first".to_owned())
        }
        Some(ErrorCode::ReadOnly) => {
            Stopped::Unusable("was left in the middle of a write; open it once with sqlite3 to repair it".to_owned())
        }
        Some(ErrorCode::CannotOpen | ErrorCode::PermissionDenied) => {
            Stopped::Unusable(format!("cannot be opened: {error}"))
        }
        _ => Stopped::Damage(format!("is damaged: {error}; sqlite3's `.recover` may find more")),
    }
}
