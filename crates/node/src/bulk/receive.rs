//! The receiving end: connections of the team's robots, each with one message at a time. Connections of one robot over
//! several paths bring segments of the same message, its [`Assembly`].
//!
//! A segment is hashed and then written to its place, once it has arrived as a whole; of several copies, the first is
//! kept. The path over which the last one arrives finishes the message, and its sender has the answer over each path.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, Weak};

use coorp_core::admission::Reason;
use coorp_core::spread::{segments_of, Run, RUN_MAX, SEGMENT_BYTES};
use coorp_core::RobotId;
use quinn::{Connection, Endpoint, RecvStream, SendStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::hashes::{self, Hash};
use super::inbox::{Inbox, Offer, Part};
use super::{Bulk, Receiving, BULK_BYTES_MAX};
use crate::disk::NoRoom;
use crate::quic;
use crate::sync::lock;
use crate::tasks::{awaited, beside};
use crate::topic::checked;
use crate::wire::{self, Answer, Begin, Frame, Refusal, Segments, Start};

/// What arrives from all robots.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    /// The newest connection of each robot over each path. An older one is closed: its other end has restarted, or has
    /// given it up.
    connections: Mutex<BTreeMap<(RobotId, usize), Connection>>,
    desks: Mutex<BTreeMap<RobotId, Desk>>,
}

/// Where a robot's messages are offered, one at a time; it has the message in progress.
type Desk = Arc<tokio::sync::Mutex<Weak<Assembly>>>;

/// A message that arrives over one or several paths, for as long as any of them brings it.
#[derive(Debug)]
struct Assembly {
    begin: Begin,
    /// Distinguishes the records of what has arrived.
    record: u64,
    /// Taken out when the message is complete, or cannot go on.
    part: Mutex<Option<Box<Part>>>,
    syncing: Mutex<Vec<JoinHandle<io::Result<()>>>>,
    over: watch::Sender<Option<Over>>,
}

/// Why a message no longer arrives.
#[derive(Clone, Copy, Debug)]
enum Over {
    Answered(Answer),
    /// Its sender has begun another one.
    Replaced,
}

/// The result of writing segments.
#[derive(Debug, Default)]
struct Stored {
    bytes: u64,
    /// The file, if it is to be synced now.
    file: Option<Box<dyn crate::ground::Opened>>,
    /// The message, if it is complete.
    complete: Option<Box<Part>>,
}

impl Assembly {
    fn new(part: Box<Part>, record: u64) -> Assembly {
        Assembly {
            begin: part.begin().clone(),
            record,
            part: Mutex::new(Some(part)),
            syncing: Mutex::default(),
            over: watch::Sender::new(None),
        }
    }

    /// Ends it, once nothing is being written. Waits for the disk.
    fn end(&self, over: Over) {
        *lock(&self.part) = None;
        self.over.send_if_modified(|known| {
            let first = known.is_none();
            known.get_or_insert(over);
            first
        });
    }

    /// Ends it because its sender has begun another one, unless it is complete or ends anyway. Waits for the disk.
    fn replace(&self) {
        // The task that has taken it out still uses its files, and ends it.
        if lock(&self.part).take().is_some() {
            self.end(Over::Replaced);
        }
    }

    fn is_over(&self) -> bool {
        self.over.borrow().is_some()
    }

    /// Returns the segments that it has or may have, with their hashes.
    fn list(&self) -> Vec<(u32, Hash)> {
        lock(&self.part).as_ref().map_or_else(Vec::new, |part| part.list())
    }

    /// Keeps the segments that the sender has found right. Returns the message if it is complete.
    fn keep(&self, right: Vec<(u32, Hash)>) -> Option<Box<Part>> {
        let mut part = lock(&self.part);
        part.as_mut()?.keep(right);
        part.take_if(|part| part.missing() == 0)
    }

    /// Writes whole segments.
    fn store(&self, first: u32, bytes: &[u8]) -> io::Result<Stored> {
        let segments = (first..).zip(bytes.chunks(SEGMENT_BYTES as usize));
        let hashed = segments.map(|(segment, bytes)| {
            let hash = hashes::of_segment(segment, self.begin.length, [bytes]);
            (segment, hash, bytes)
        });
        let hashed: Vec<_> = hashed.collect();
        let mut part = lock(&self.part);
        let Some(open) = part.as_mut() else {
            return Ok(Stored::default());
        };
        let missing = open.missing();
        for (segment, hash, bytes) in hashed {
            open.write(segment, hash, bytes)?;
        }
        Ok(Stored {
            bytes: missing - open.missing(),
            file: open.unsynced()?,
            complete: part.take_if(|part| part.missing() == 0),
        })
    }
}

/// Accepts connections over one path until its endpoint closes.
pub(super) async fn accept(bulk: Weak<Bulk>, path: usize, endpoint: Endpoint, arrivals: Arc<Arrivals>) {
    while let Some(incoming) = endpoint.accept().await {
        let Some(open) = bulk.upgrade() else { return };
        let (member, tasks) = (open.member.clone(), open.tasks.clone());
        drop(open);
        let Some((incoming, place)) = member.door.admit(incoming) else {
            continue;
        };
        let (bulk, arrivals) = (bulk.clone(), arrivals.clone());
        tasks.spawn("receiving bulk", async move {
            let address = incoming.remote_address();
            let connection = match place.shake_hands(incoming).await {
                Ok(connection) => connection,
                Err(error) => return member.refused.on_not_connected("bulk", address, error.as_ref()),
            };
            let from = match quic::peer(&member.team, &member.revoked, &connection) {
                Ok(from) if from != member.me => from,
                other => {
                    member.refused.count_stranger(address);
                    place.fail(other.err().unwrap_or(Reason::NoCertificate));
                    return connection.close(1u8.into(), b"not another robot of this team");
                }
            };
            if !place.is_robots(from, &connection) {
                return connection.close(1u8.into(), b"too many connections");
            }
            drop(member);
            let older = lock(&arrivals.connections).insert((from, path), connection.clone());
            if let Some(older) = older {
                older.close(0u8.into(), b"replaced by a newer connection");
            }
            let desk = lock(&arrivals.desks).entry(from).or_default().clone();
            while let Ok((send, receive)) = connection.accept_bi().await {
                let Some(bulk) = bulk.upgrade() else { return };
                if let Err(why) = take(&bulk, from, &desk, send, receive).await {
                    tracing::debug!("bulk from robot {}: {why}", from.0);
                }
            }
        });
    }
}

/// Receives one message, or what comes of it over this path.
async fn take(
    bulk: &Bulk,
    from: RobotId,
    desk: &Desk,
    mut send: SendStream,
    mut receive: RecvStream,
) -> Result<(), String> {
    let member = &bulk.member;
    let _receiving = Receiving::new(bulk);
    let begin = match read::<Begin>(&mut receive).await {
        Ok(begin) if checked(&begin.name).is_ok() && begin.length <= BULK_BYTES_MAX => begin,
        Ok(_) => {
            member.refused.count("the head of a bulk message", Refusal::Malformed);
            return Err("its head is malformed".to_owned());
        }
        Err(why) => {
            // A stream that broke off is not a bad frame.
            if let Some(refusal) = why.1 {
                member.refused.count("the head of a bulk message", refusal);
            }
            return Err(why.0);
        }
    };
    let answer = match offered(bulk, from, desk, begin).await? {
        Ok(assembly) => assemble(bulk, from, &assembly, &mut send, &mut receive).await?,
        Err(answer) => answer,
    };
    // QUIC offers the next stream once both halves of this one are over. It does so at once only if the answer's
    // acknowledgement ends the last of them, and not when this half is dropped after it.
    drop(receive);
    write(&mut send, &answer).await?;
    send.finish().map_err(|error| error.to_string())?;
    // Wait until the answer has arrived, or the other end is gone.
    let _ = send.stopped().await;
    Ok(())
}

/// Returns a message in progress, or the answer to its offer.
async fn offered(
    bulk: &Bulk,
    from: RobotId,
    desk: &Desk,
    begin: Begin,
) -> Result<Result<Arc<Assembly>, Answer>, String> {
    let member = &bulk.member;
    let mut current = desk.lock().await;
    if let Some(before) = current.upgrade().filter(|before| !before.is_over()) {
        if before.begin == begin {
            return Ok(Ok(before));
        }
        if before.begin.lineage == begin.lineage && before.begin.sequence > begin.sequence {
            return Err("its sender has begun a later message".to_owned());
        }
        let mut over = before.over.subscribe();
        awaited(move || before.replace()).await;
        let _ = over.wait_for(Option::is_some).await;
    }
    let name = member.name_of(from);
    let (disk, state, name) = (member.ground.disk(), bulk.state.clone(), name.to_owned());
    let (room, length) = (bulk.room.clone(), begin.length);
    let offer = awaited(move || Inbox::open(disk, &state, &name)?.offer(&begin, &room)).await;
    Ok(Err(match offer {
        Ok(Offer::Part(part)) => {
            bulk.room.note(&bulk.state, None);
            let assembly = Arc::new(Assembly::new(part, member.ground.random()));
            *current = Arc::downgrade(&assembly);
            return Ok(Ok(assembly));
        }
        Ok(Offer::Delivered) => Answer::Whole,
        Ok(Offer::Whole(whole)) => {
            bulk.hand_out(from, whole);
            Answer::Whole
        }
        Ok(Offer::Full) => Answer::Full,
        Ok(Offer::NoRoom(why)) => no_room(bulk, why),
        Err(error) => unwritten(bulk, length, &error),
    }))
}

/// Receives segments over one path until the message is over. Returns the answer.
async fn assemble(
    bulk: &Bulk,
    from: RobotId,
    assembly: &Arc<Assembly>,
    send: &mut SendStream,
    receive: &mut RecvStream,
) -> Result<Answer, String> {
    let mut over = assembly.over.subscribe();
    let right = agree(bulk, assembly, send, receive).await?;
    let keeper = assembly.clone();
    let complete = awaited(move || keeper.keep(right)).await;
    if let Some(part) = complete {
        finish(bulk, from, assembly, part).await;
    }
    let mut bytes = Vec::new();
    loop {
        let run = tokio::select! {
            biased;
            over = over.wait_for(Option::is_some) => {
                return match over.ok().and_then(|over| *over) {
                    Some(Over::Answered(answer)) => Ok(answer),
                    Some(Over::Replaced) | None => Err("its sender has begun another message".to_owned()),
                };
            }
            run = gather(bulk, assembly.begin.length, receive, &mut bytes) => run,
        };
        let (run, ended) = match run {
            Ok(run) => (run, None),
            Err((run, why)) => (run, Some(why)),
        };
        if run.count > 0 {
            let keeper = assembly.clone();
            let stored;
            (stored, bytes) = awaited(move || (keeper.store(run.first, &bytes), bytes)).await;
            go_on(bulk, from, assembly, stored).await;
        }
        if let Some(why) = ended {
            return Err(why);
        }
        if !assembly.is_over() {
            let Run { first, count } = run;
            write(send, &Answer::There { first, count }).await?;
        }
    }
}

/// Tells the sender which segments are or may be here. Returns those that the sender finds right.
async fn agree(
    bulk: &Bulk,
    assembly: &Arc<Assembly>,
    send: &mut SendStream,
    receive: &mut RecvStream,
) -> Result<Vec<(u32, Hash)>, String> {
    let keeper = assembly.clone();
    let mut list = awaited(move || keeper.list()).await;
    let here = Answer::Here {
        record: assembly.record,
        listed: list.len() as u32,
    };
    write(send, &here).await?;
    let entries: Vec<u8> = list
        .iter()
        .flat_map(|(segment, hash)| wire::listed(*segment, *hash))
        .collect();
    send.write_all(&entries).await.map_err(|error| error.to_string())?;
    let start: Start = read(receive).await?;
    if start.listed as usize != list.len() {
        bulk.member
            .refused
            .count("the start of a bulk message", Refusal::Malformed);
        return Err("it starts with other segments than listed".to_owned());
    }
    let mut bits = vec![0; list.len().div_ceil(8)];
    receive.read_exact(&mut bits).await.map_err(|error| error.to_string())?;
    let mut at = 0..;
    list.retain(|_| at.next().is_some_and(|at: usize| bits[at / 8] >> (at % 8) & 1 == 1));
    Ok(list)
}

/// Reads a run of segments. If the stream breaks off, returns the segments that have arrived, and why.
async fn gather(bulk: &Bulk, length: u64, receive: &mut RecvStream, bytes: &mut Vec<u8>) -> Result<Run, (Run, String)> {
    let none = Run { first: 0, count: 0 };
    let Segments { first, count } = read(receive).await.map_err(|why: Unread| (none, why.0))?;
    let run = Run { first, count };
    if !(1..=RUN_MAX).contains(&count) || run.segments().end > segments_of(length) {
        bulk.member
            .refused
            .count("the segments of a bulk message", Refusal::Malformed);
        return Err((none, "it has no such segments".to_owned()));
    }
    let place = run.bytes(length);
    bytes.resize((place.end - place.start) as usize, 0);
    let mut filled = 0;
    while filled < bytes.len() {
        match receive.read(&mut bytes[filled..]).await {
            Ok(Some(read)) => filled += read,
            broken => {
                let count = filled / SEGMENT_BYTES as usize;
                bytes.truncate(count * SEGMENT_BYTES as usize);
                let why = broken
                    .err()
                    .map_or("it is shorter than announced".to_owned(), |error| error.to_string());
                return Err((
                    Run {
                        first,
                        count: count as u32,
                    },
                    why,
                ));
            }
        }
    }
    Ok(run)
}

/// Goes on after segments were written, or could not be.
async fn go_on(bulk: &Bulk, from: RobotId, assembly: &Arc<Assembly>, stored: io::Result<Stored>) {
    let written = match stored {
        Ok(stored) => {
            lock(&bulk.counts).received_bytes += stored.bytes;
            if let Some(file) = stored.file {
                // The disk writes while more arrive.
                lock(&assembly.syncing).push(beside(move || file.sync()));
            }
            if let Some(part) = stored.complete {
                return finish(bulk, from, assembly, part).await;
            }
            synced(assembly, false).await
        }
        Err(error) => synced(assembly, true).await.and(Err(error)),
    };
    if let Err(error) = written {
        fail(bulk, assembly, &error).await;
    }
}

/// Finishes a message that is complete, which ends it over all paths.
async fn finish(bulk: &Bulk, from: RobotId, assembly: &Arc<Assembly>, mut part: Box<Part>) {
    // The kernel reports a disk's failure once: a sync only at the end would miss it.
    let whole = match synced(assembly, true).await {
        Ok(()) => awaited(|| part.finish()).await,
        Err(error) => awaited(move || part.restart()).await.and(Err(error)),
    };
    let answer = match whole {
        Ok(Some(whole)) => {
            tracing::info!(
                "received \"{}\" of {} bytes from {}",
                whole.name,
                whole.length,
                bulk.member.name_of(from)
            );
            bulk.hand_out(from, whole);
            Answer::Whole
        }
        Ok(None) => Answer::Garbled,
        Err(error) => return fail(bulk, assembly, &error).await,
    };
    assembly.end(Over::Answered(answer));
}

/// Ends a message that could not be written.
async fn fail(bulk: &Bulk, assembly: &Arc<Assembly>, error: &io::Error) {
    let answer = unwritten(bulk, assembly.begin.length, error);
    let assembly = assembly.clone();
    awaited(move || assembly.end(Over::Answered(answer))).await;
}

/// Returns the results of all syncs that have ended, or waits for all. If one has failed, discards what has arrived,
/// unless the message is complete.
async fn synced(assembly: &Arc<Assembly>, all: bool) -> io::Result<()> {
    let ended: Vec<_> = {
        let mut syncing = lock(&assembly.syncing);
        let (ended, going) = std::mem::take(&mut *syncing)
            .into_iter()
            .partition(|sync| all || sync.is_finished());
        *syncing = going;
        ended
    };
    for sync in ended {
        if let Err(error) = sync.await.map_err(io::Error::other)? {
            let broken = assembly.clone();
            let restarted = awaited(move || lock(&broken.part).as_mut().map_or(Ok(()), |part| part.restart()));
            return restarted.await.and(Err(error));
        }
    }
    Ok(())
}

/// Returns the answer if a message does not fit on the disk.
fn no_room(bulk: &Bulk, why: NoRoom) -> Answer {
    bulk.room.note(&bulk.state, Some(why));
    let NoRoom { missing, usable, most } = why;
    Answer::NoRoom { missing, usable, most }
}

/// Returns the answer if a message of some length could not be written.
fn unwritten(bulk: &Bulk, length: u64, error: &io::Error) -> Answer {
    let space = bulk.member.ground.disk().space(&bulk.state);
    match space {
        Ok(space) if error.kind() == io::ErrorKind::StorageFull => no_room(
            bulk,
            NoRoom {
                missing: length,
                usable: space.usable(),
                most: space.most,
            },
        ),
        _ => {
            tracing::error!("bulk cannot be written below {}: {error}", bulk.state.display());
            Answer::Disk
        }
    }
}

/// The reason why a frame was not read: a text, and the defect if there was a frame.
#[derive(Debug)]
pub(super) struct Unread(String, Option<Refusal>);

impl From<Unread> for String {
    fn from(unread: Unread) -> Self {
        unread.0
    }
}

/// Reads a frame from a stream: two bytes with its length, then the frame.
pub(super) async fn read<F: Frame>(receive: &mut RecvStream) -> Result<F, Unread> {
    let broken = |error: quinn::ReadExactError| Unread(error.to_string(), None);
    let mut length = [0; 2];
    receive.read_exact(&mut length).await.map_err(broken)?;
    let length = usize::from(u16::from_le_bytes(length));
    let refused = |refusal| Unread("a frame is malformed".to_owned(), Some(refusal));
    if length > F::BYTES_MAX {
        return Err(refused(Refusal::Oversized));
    }
    let mut frame = vec![0; length];
    receive.read_exact(&mut frame).await.map_err(broken)?;
    wire::decode(&frame).map_err(refused)
}

/// Writes a frame to a stream.
pub(super) async fn write<F: Frame>(send: &mut SendStream, frame: &F) -> Result<(), String> {
    send.write_all(&framed(frame)).await.map_err(|error| error.to_string())
}

/// Returns a frame as it is on a stream, after its length.
pub(super) fn framed<F: Frame>(frame: &F) -> Vec<u8> {
    let frame = wire::encode(frame);
    let length = u16::try_from(frame.len()).unwrap_or(u16::MAX);
    [&length.to_le_bytes(), frame.as_slice()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ground::Linux;

    fn assembly(folder: &std::path::Path, bytes: &[u8]) -> Assembly {
        let begin = Begin {
            lineage: 5,
            sequence: 1,
            name: "map".to_owned(),
            length: bytes.len() as u64,
            hash: *blake3::hash(bytes).as_bytes(),
        };
        let inbox = Inbox::open(Arc::new(Linux), folder, "one").unwrap();
        match inbox.offer(&begin, &Arc::default()).unwrap() {
            Offer::Part(part) => Assembly::new(part, 7),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_message_that_is_being_finished_keeps_its_files_to_itself() {
        let folder = std::env::temp_dir().join(format!("coorp-receive-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        let bytes = vec![7; SEGMENT_BYTES as usize + 10];
        let (first, last) = bytes.split_at(SEGMENT_BYTES as usize);
        let replaced = assembly(&folder, &bytes);
        assert!(replaced.store(1, last).unwrap().complete.is_none());
        replaced.replace();
        assert!(replaced.is_over(), "nothing uses its files");
        assert_eq!(replaced.store(0, first).unwrap().bytes, 0, "and nothing will");
        drop(replaced);
        let finished = assembly(&folder, &bytes);
        assert!(finished.store(0, &bytes[..]).unwrap().complete.is_some());
        finished.replace();
        assert!(!finished.is_over(), "the other message has to wait");
        finished.end(Over::Answered(Answer::Whole));
        finished.end(Over::Replaced);
        assert!(matches!(*finished.over.borrow(), Some(Over::Answered(Answer::Whole))));
        std::fs::remove_dir_all(folder).unwrap();
    }
}
