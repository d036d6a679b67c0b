//! The receiving end: connections of the team's robots, one message at a time from each.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use coorp_core::admission::Reason;
use coorp_core::RobotId;
use quinn::{Connection, Endpoint, RecvStream, SendStream};
use tokio::task::JoinHandle;

use super::inbox::{Inbox, Offer, Part};
use super::{Bulk, Receiving, BULK_BYTES_MAX};
use crate::disk::NoRoom;
use crate::quic;
use crate::sync::lock;
use crate::tasks::{awaited, beside};
use crate::topic::checked;
use crate::wire::{self, Answer, Begin, Frame, Refusal, Start};

/// The number of pieces taken from QUIC at once, each from one packet.
const CHUNKS: usize = 64;
/// The size of writes and hashes, bytes. Small compared with the window, so that QUIC does not wait for it.
const WRITE_BYTES: usize = 1 << 20;

/// The newest connection of each robot over any path. An older one is closed: its other end has restarted, or moved.
pub(super) type Connections = std::sync::Mutex<BTreeMap<RobotId, (Connection, Arc<tokio::sync::Mutex<()>>)>>;

/// Accepts connections over one path until its endpoint closes.
pub(super) async fn accept(bulk: Weak<Bulk>, endpoint: Endpoint, connections: Arc<Connections>) {
    while let Some(incoming) = endpoint.accept().await {
        let Some(open) = bulk.upgrade() else { return };
        let (member, tasks) = (open.member.clone(), open.tasks.clone());
        drop(open);
        let Some((incoming, place)) = member.door.admit(incoming) else {
            continue;
        };
        let (bulk, connections) = (bulk.clone(), connections.clone());
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
            let turn = take_over(&connections, from, &connection);
            let _turn = turn.lock().await;
            while let Ok((send, receive)) = connection.accept_bi().await {
                let Some(bulk) = bulk.upgrade() else { return };
                if let Err(why) = take(&bulk, from, send, receive).await {
                    tracing::debug!("bulk from robot {}: {why}", from.0);
                }
            }
        });
    }
}

/// Closes the robot's earlier connection. Returns the lock with which its connections take turns.
fn take_over(connections: &Connections, from: RobotId, connection: &Connection) -> Arc<tokio::sync::Mutex<()>> {
    let mut connections = lock(connections);
    let turn = match connections.get(&from) {
        Some((older, turn)) => {
            older.close(0u8.into(), b"replaced by a newer connection");
            turn.clone()
        }
        None => Arc::default(),
    };
    connections.insert(from, (connection.clone(), turn.clone()));
    turn
}

/// Receives one message.
async fn take(bulk: &Bulk, from: RobotId, mut send: SendStream, mut receive: RecvStream) -> Result<(), String> {
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
    let name = member.name_of(from);
    let (disk, state, name) = (member.ground.disk(), bulk.state.clone(), name.to_owned());
    let (room, length) = (bulk.room.clone(), begin.length);
    let offer = awaited(move || Inbox::open(disk, &state, &name)?.offer(&begin, &room)).await;
    let answer = match offer {
        Ok(Offer::Part(part)) => {
            bulk.room.note(&bulk.state, None);
            let here = Answer::Here {
                length: part.length(),
                hash: part.hash(),
            };
            write(&mut send, &here).await?;
            take_rest(bulk, from, part, &mut receive).await?
        }
        Ok(Offer::Delivered) => Answer::Whole,
        Ok(Offer::Whole(whole)) => {
            bulk.hand_out(from, whole);
            Answer::Whole
        }
        Ok(Offer::Full) => Answer::Full,
        Ok(Offer::NoRoom(why)) => no_room(bulk, why),
        Err(error) => unwritten(bulk, length, &error),
    };
    write(&mut send, &answer).await?;
    send.finish().map_err(|error| error.to_string())?;
    // Wait until the answer has arrived, or the other end is gone.
    let _ = send.stopped().await;
    Ok(())
}

async fn take_rest(
    bulk: &Bulk,
    from: RobotId,
    mut part: Box<Part>,
    receive: &mut RecvStream,
) -> Result<Answer, String> {
    let start: Start = read(receive).await?;
    if start.offset != 0 && start.offset != part.length() {
        bulk.member
            .refused
            .count("the start of a bulk message", Refusal::Malformed);
        return Err("it starts at another byte than agreed".to_owned());
    }
    let anew = if start.offset == 0 { part.restart() } else { Ok(()) };
    let length = part.whole_length();
    let part = match anew {
        Ok(()) => fill(bulk, part, receive).await?,
        Err(error) => Err(error),
    };
    let whole = match part {
        Ok(part) => awaited(|| part.finish()).await,
        Err(error) => Err(error),
    };
    match whole {
        Ok(Some(whole)) => {
            tracing::info!(
                "received \"{}\" of {} bytes from {}",
                whole.name,
                whole.length,
                bulk.member.name_of(from)
            );
            bulk.hand_out(from, whole);
            Ok(Answer::Whole)
        }
        Ok(None) => Ok(Answer::Garbled),
        Err(error) => Ok(unwritten(bulk, length, &error)),
    }
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

/// Reads bytes into a part until their stream ends. If it breaks off, what has arrived is kept.
///
/// They are hashed and written by the megabyte: QUIC delivers them packet by packet, and a system call and a thread
/// handover for each would take longer than QUIC itself. The disk writes while more arrive.
async fn fill(bulk: &Bulk, mut part: Box<Part>, receive: &mut RecvStream) -> Result<io::Result<Box<Part>>, String> {
    let mut chunks = [const { Bytes::new() }; CHUNKS];
    let mut gathered = Vec::with_capacity(WRITE_BYTES + WRITE_BYTES / 4);
    let mut syncing: Option<JoinHandle<io::Result<()>>> = None;
    let ended = loop {
        let read = receive.read_chunks(&mut chunks).await;
        let came = read.as_ref().ok().copied().flatten().unwrap_or(0);
        for chunk in chunks.iter_mut().take(came) {
            gathered.extend_from_slice(&std::mem::take(chunk));
        }
        let more = matches!(read, Ok(Some(_)));
        if gathered.len() < WRITE_BYTES && more {
            continue;
        }
        let appended;
        (part, gathered, appended) = awaited(move || {
            let appended = part.append(&gathered);
            (part, gathered, appended)
        })
        .await;
        if let Err(error) = appended {
            return Ok(Err(error));
        }
        lock(&bulk.counts).received_bytes += gathered.len() as u64;
        gathered.clear();
        if !more {
            break read;
        }
        if syncing.as_ref().is_none_or(JoinHandle::is_finished) {
            if let Err(error) = synced(syncing.take()).await {
                return Ok(Err(error));
            }
            match part.unsynced() {
                Ok(file) => syncing = file.map(|file| beside(move || file.sync())),
                Err(error) => return Ok(Err(error)),
            }
        }
    };
    // The kernel reports a disk's failure once: a sync only at the end would miss it.
    let synced = synced(syncing).await;
    ended.map_err(|error| error.to_string())?;
    Ok(synced.map(|()| part))
}

/// Waits for a sync in progress, and returns its result.
async fn synced(syncing: Option<JoinHandle<io::Result<()>>>) -> io::Result<()> {
    match syncing {
        Some(syncing) => syncing.await.map_err(io::Error::other)?,
        None => Ok(()),
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
    let frame = wire::encode(frame);
    let length = u16::try_from(frame.len()).unwrap_or(u16::MAX);
    let bytes = [&length.to_le_bytes(), frame.as_slice()].concat();
    send.write_all(&bytes).await.map_err(|error| error.to_string())
}
