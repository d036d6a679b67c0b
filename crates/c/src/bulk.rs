//! Bulk: messages of many megabytes, each delivered whole and once or reported failed.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_void, CString};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::{from_ref, null, null_mut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use coorp_node::bulk::{BulkMessage, BulkReceiver, BulkStream, Outcome, BULK_BYTES_MAX};

use crate::boundary::{bytes, call, path, place, text, CoorpResult, Failure};
use crate::handles::{self, Kind};
use crate::node::{CoorpNode, OpenNode, Opened};

/// The longest bulk message, bytes.
pub const COORP_BULK_BYTES_MAX: u64 = 68_719_476_736;

const _: () = assert!(COORP_BULK_BYTES_MAX == BULK_BYTES_MAX);

/// The size of the pieces in which a file is read, bytes.
const PIECE_BYTES: usize = 1 << 20;

/// A bulk message that is being written.
pub struct CoorpBulkStream {
    _opaque: [u8; 0],
}

/// The delivery of a bulk message. It goes on whether or not anyone waits for it.
pub struct CoorpBulkDelivery {
    _opaque: [u8; 0],
}

/// Receives bulk messages, each once.
pub struct CoorpBulkReceiver {
    _opaque: [u8; 0],
}

/// A bulk message that has arrived whole. It stays on disk until it is taken, also after its node is closed and when it is freed;
/// then it is received again after a restart. It is yours to free with coorp_bulk_message_free(); its texts last until then.
#[repr(C)]
pub struct CoorpBulkMessage {
    /// The robot that sent it.
    pub robot: *const c_char,
    /// The sender's name for it.
    pub name: *const c_char,
    /// The file that has it until it is taken.
    pub file: *const c_char,
    /// Its length.
    pub length_bytes: u64,
}

/// A message that C reads, what its pointers point to, and what it is until it is taken.
pub struct Shown {
    shown: CoorpBulkMessage,
    name: CString,
    file: CString,
    message: Mutex<Taken>,
    _node: Arc<OpenNode>,
}

enum Taken {
    Not(BulkMessage),
    /// C reads it.
    Here(#[allow(dead_code)] Vec<u8>),
    Elsewhere,
}

// SAFETY: nobody writes what its pointers point to.
unsafe impl Send for Shown {}
// SAFETY: the same.
unsafe impl Sync for Shown {}

impl Kind for CoorpBulkStream {
    type Value = Opened<Mutex<Option<BulkStream>>>;
    const NAME: &'static str = "CoorpBulkStream";
}

impl Kind for CoorpBulkDelivery {
    type Value = Opened<Outcome>;
    const NAME: &'static str = "CoorpBulkDelivery";
}

impl Kind for CoorpBulkReceiver {
    type Value = Opened<BulkReceiver>;
    const NAME: &'static str = "CoorpBulkReceiver";
}

impl Kind for CoorpBulkMessage {
    type Value = Shown;
    const NAME: &'static str = "CoorpBulkMessage";
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Begins a bulk message to a robot, or to "leader": the robot that leads at this moment, or the team file's leader if none is
/// known to lead. `name` has 1 to 64 letters, digits, `-`, `_` and `.`.
///
/// Ownership: `*stream` is yours to close with coorp_bulk_stream_finish(), or with coorp_bulk_stream_close(), and is closed with
/// the node; it is NULL if this fails.
/// Threads: from any; any number of them may use the stream, one after another.
/// Errors: COORP_INVALID if there is no such robot, it is this one, the name is bad, or there are no keys; COORP_FAILED if the
/// robot's agent does not answer; COORP_CLOSED.
#[no_mangle]
pub unsafe extern "C" fn coorp_bulk_stream_open(
    node: *mut CoorpNode,
    to: *const c_char,
    name: *const c_char,
    stream: *mut *mut CoorpBulkStream,
) -> CoorpResult {
    call(|| {
        // SAFETY: what the head of the header asks of all pointers.
        let (stream, to, name) = unsafe {
            (
                place("stream", stream, null_mut())?,
                text("to", to)?,
                text("name", name)?,
            )
        };
        *stream = Opened::with(node, |node| Ok(Mutex::new(Some(node.bulk_stream(to, name)?))))?;
        Ok(())
    })
}

/// Appends to the message, which has at most COORP_BULK_BYTES_MAX bytes. They are kept in memory until it is delivered.
///
/// Ownership: the data is copied. NULL is allowed if the length is 0.
/// Threads: from any.
/// Errors: COORP_INVALID for NULL, or if the message would be too long; COORP_FAILED if a guest gets no memory for it. Then
/// nothing of the data is appended. COORP_CLOSED also after it was finished.
#[no_mangle]
pub unsafe extern "C" fn coorp_bulk_stream_write(
    stream: *mut CoorpBulkStream,
    data: *const c_void,
    length_bytes: usize,
) -> CoorpResult {
    call(|| {
        // SAFETY: what the head of the header asks of all pointers.
        let data = unsafe { bytes(data, length_bytes)? };
        let opened = handles::get(stream)?;
        write(&opened, data)
    })
}

fn write(opened: &Opened<Mutex<Option<BulkStream>>>, data: &[u8]) -> Result<(), Failure> {
    opened.check::<CoorpBulkStream>()?;
    match &mut *lock(&opened.what) {
        Some(stream) => Ok(stream.write(data)?),
        None => Err(Failure::closed(CoorpBulkStream::NAME)),
    }
}

/// Appends the content of a regular file. Blocks while it is read.
///
/// Threads: from any; what other threads write meanwhile goes in between.
/// Errors: COORP_INVALID if there is no such file that can be read, or the message would be too long; then nothing is appended.
/// COORP_FAILED if reading fails later: then the stream is closed, and nothing of the message is sent. COORP_CLOSED.
#[no_mangle]
pub unsafe extern "C" fn coorp_bulk_stream_write_file(
    stream: *mut CoorpBulkStream,
    file: *const c_char,
) -> CoorpResult {
    call(|| {
        // SAFETY: what the head of the header asks of all pointers.
        let from = unsafe { path("file", file)? };
        let opened = handles::get(stream)?;
        let mut file = regular(from)?;
        let appended = append(&opened, from, &mut file);
        if appended.is_err() {
            // Perhaps closed by another thread meanwhile.
            let _ = handles::close(stream);
        }
        appended
    })
}

/// Opens a file with an end, such that its content may be a message.
fn regular(path: &Path) -> Result<File, Failure> {
    let unread = |error: io::Error| Failure::invalid(format!("cannot read {}: {error}", path.display()));
    let metadata = fs::metadata(path).map_err(unread)?;
    if !metadata.is_file() {
        let path = path.display();
        return Err(Failure::invalid(format!(
            "{path} is not a regular file, which has a length"
        )));
    }
    if metadata.len() > BULK_BYTES_MAX {
        return Err(Failure::invalid(format!(
            "{} has {} bytes, and a bulk message has at most {BULK_BYTES_MAX}: send it as several",
            path.display(),
            metadata.len()
        )));
    }
    File::open(path).map_err(unread)
}

fn append(opened: &Opened<Mutex<Option<BulkStream>>>, path: &Path, file: &mut File) -> Result<(), Failure> {
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        match file.read(&mut piece) {
            Ok(0) => return Ok(()),
            Ok(length) => write(opened, piece.get(..length).unwrap_or_default())?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Failure::failed(format!("cannot read {}: {error}", path.display()))),
        }
    }
}

/// Completes the message, which goes as soon as permits and the gate allow. Does not wait until it is delivered.
///
/// Ownership: the stream's handle is gone, unless this fails. `*delivery` is yours to close with coorp_bulk_delivery_close(), and
/// is closed with the node; it is NULL if this fails. `delivery` may be NULL if nobody waits for it.
/// Threads: from any.
/// Errors: COORP_FULL if 64 messages wait for that robot already: the stream stays as it is, and can be finished once one of those
/// is delivered. COORP_FAILED if the robot's agent does not run, the same. COORP_CLOSED also after it was finished.
#[no_mangle]
pub unsafe extern "C" fn coorp_bulk_stream_finish(
    stream: *mut CoorpBulkStream,
    delivery: *mut *mut CoorpBulkDelivery,
) -> CoorpResult {
    call(|| {
        // SAFETY: what the head of the header asks of all pointers.
        let wanted = match delivery.is_null() {
            true => None,
            false => Some(unsafe { place("delivery", delivery, null_mut())? }),
        };
        let opened = handles::get(stream)?;
        opened.check::<CoorpBulkStream>()?;
        let mut slot = lock(&opened.what);
        let written = slot.take().ok_or_else(|| Failure::closed(CoorpBulkStream::NAME))?;
        let delivery = match written.finish() {
            Ok(delivery) => delivery,
            Err(unfinished) => {
                *slot = Some(*unfinished.stream);
                return Err(unfinished.error.into());
            }
        };
        drop(slot);
        // Perhaps closed by another thread meanwhile.
        let _ = handles::close(stream);
        if let Some(wanted) = wanted {
            *wanted = Opened::handle(opened.node.clone(), opened.node_handle, Outcome::from(delivery))?;
        }
        Ok(())
    })
}

/// Abandons a message that is not finished.
///
/// Ownership: the handle is gone. NULL is allowed, and does nothing.
/// Threads: from any.
/// Errors: COORP_CLOSED if it has been finished or closed before.
#[no_mangle]
pub unsafe extern "C" fn coorp_bulk_stream_close(stream: *mut CoorpBulkStream) -> CoorpResult {
    call(|| handles::close(stream))
}

/// Waits until the message is delivered: whole, checked, and on its receiver's disk. `timeout_ns` is how long at most: 0 only
/// looks, and a negative one (COORP_FOREVER) waits for as long as it takes. May be called again, with the same answer.
///
/// Threads: from any, also from several. Signals do not end the wait; closing the delivery or the node in another thread does.
/// Errors: COORP_TIMEOUT if it is not known yet; COORP_FAILED if the message has failed; COORP_CLOSED.
#[no_mangle]
pub unsafe extern "C" fn coorp_bulk_delivery_wait(delivery: *mut CoorpBulkDelivery, timeout_ns: i64) -> CoorpResult {
    call(|| {
        let opened = handles::get(delivery)?;
        let missing = || "the message was not delivered".to_owned();
        let outcome = opened.wait::<CoorpBulkDelivery, _>(opened.what.known(), timeout_ns, missing)?;
        outcome.map_err(|error| Failure::from(&*error))
    })
}

/// Forgets a delivery, and ends waits with COORP_CLOSED. The message goes on.
///
/// Ownership: the handle is gone. NULL is allowed, and does nothing.
/// Threads: from any.
/// Errors: COORP_CLOSED if it has been closed before.
#[no_mangle]
pub unsafe extern "C" fn coorp_bulk_delivery_close(delivery: *mut CoorpBulkDelivery) -> CoorpResult {
    call(|| handles::close(delivery))
}

/// Opens a receiver of the bulk messages of all robots, including those that arrived before.
///
/// Ownership: `*receiver` is yours to close with coorp_bulk_receiver_close(), and is closed with the node; it is NULL if this
/// fails.
/// Threads: from any; any number of them may use the receiver, and each message goes to one.
/// Errors: COORP_INVALID if there are no keys; COORP_FAILED if the robot's agent does not answer; COORP_CLOSED.
#[no_mangle]
pub unsafe extern "C" fn coorp_bulk_receiver_open(
    node: *mut CoorpNode,
    receiver: *mut *mut CoorpBulkReceiver,
) -> CoorpResult {
    call(|| {
        // SAFETY: what the head of the header asks of all pointers.
        let receiver = unsafe { place("receiver", receiver, null_mut())? };
        *receiver = Opened::with(node, coorp_node::Node::bulk_receiver)?;
        Ok(())
    })
}

/// Waits for a message that nobody has received. `timeout_ns` is how long at most: 0 does not wait, and a negative one
/// (COORP_FOREVER) waits for as long as it takes.
///
/// Ownership: `*message` is yours to free with coorp_bulk_message_free(); it is NULL if this fails.
/// Threads: from any. Signals do not end the wait; closing the receiver or the node in another thread does.
/// Errors: COORP_TIMEOUT; COORP_INVALID for NULL; COORP_CLOSED.
#[no_mangle]
pub unsafe extern "C" fn coorp_bulk_receiver_receive(
    receiver: *mut CoorpBulkReceiver,
    timeout_ns: i64,
    message: *mut *const CoorpBulkMessage,
) -> CoorpResult {
    call(|| {
        // SAFETY: what the head of the header asks of all pointers.
        let place = unsafe { place("message", message, null())? };
        let opened = handles::get(receiver)?;
        // A guest asks its agent here, and above zero while it waits.
        let waiting = (timeout_ns == 0).then(|| opened.what.try_recv()).flatten();
        let message = match waiting {
            Some(message) => message,
            None => {
                let missing = || "no bulk message arrived".to_owned();
                opened.wait::<CoorpBulkReceiver, _>(opened.what.next(), timeout_ns, missing)?
            }
        };
        *place = show(&opened.node, message)?;
        Ok(())
    })
}

/// Receives no more, and ends waits with COORP_CLOSED.
///
/// Ownership: the handle is gone; messages that were received are not. NULL is allowed, and does nothing.
/// Threads: from any.
/// Errors: COORP_CLOSED if it has been closed before.
#[no_mangle]
pub unsafe extern "C" fn coorp_bulk_receiver_close(receiver: *mut CoorpBulkReceiver) -> CoorpResult {
    call(|| handles::close(receiver))
}

fn show(node: &Arc<OpenNode>, message: BulkMessage) -> Result<*const CoorpBulkMessage, Failure> {
    // Neither has a NUL.
    let name = CString::new(message.name.as_str()).unwrap_or_default();
    let file = CString::new(message.path().as_os_str().as_bytes()).unwrap_or_default();
    let shown = Arc::new(Shown {
        shown: CoorpBulkMessage {
            robot: node.robot(message.from),
            name: name.as_ptr(),
            file: file.as_ptr(),
            length_bytes: message.length,
        },
        name,
        file,
        message: Mutex::new(Taken::Not(message)),
        _node: node.clone(),
    });
    let address = from_ref(&shown.shown);
    handles::show(shown, address)
}

impl Shown {
    /// Takes the message. If that fails, it is still there for another attempt.
    fn take<T>(
        &self,
        to: &str,
        take: impl FnOnce(&BulkMessage) -> io::Result<T>,
        taken: impl FnOnce(T) -> Taken,
    ) -> Result<(), Failure> {
        let mut slot = lock(&self.message);
        let Taken::Not(message) = &*slot else {
            let name = self.name.to_string_lossy();
            return Err(Failure::invalid(format!("\"{name}\" has already been taken")));
        };
        let took = take(message).map_err(|error| {
            let (name, file) = (self.name.to_string_lossy(), self.file.to_string_lossy());
            Failure::failed(format!("cannot take \"{name}\", which is in {file}{to}: {error}"))
        })?;
        *slot = taken(took);
        Ok(())
    }
}

/// Takes the message from disk into memory. After that it does not come back, not even after a power cut.
///
/// Ownership: `*data`, of the message's length, is the library's, and lasts until the message is freed; it is NULL if this fails.
/// Threads: from any.
/// Errors: COORP_FAILED if it cannot be read or removed; then it is still there, and can be taken again. COORP_INVALID for
/// NULL, or if it has been taken before.
#[no_mangle]
pub unsafe extern "C" fn coorp_bulk_message_take(
    message: *const CoorpBulkMessage,
    data: *mut *const c_void,
) -> CoorpResult {
    call(|| {
        // SAFETY: what the head of the header asks of all pointers.
        let data = unsafe { place("data", data, null())? };
        let here = |bytes: Vec<u8>| {
            *data = bytes.as_ptr().cast();
            Taken::Here(bytes)
        };
        handles::get(message)?.take("", BulkMessage::take, here)
    })
}

/// Moves the message to a file, which is replaced, and which has it after a power cut, too. To another disk it is copied.
///
/// Threads: from any.
/// Errors: COORP_FAILED if it cannot be moved; then it is still there, and can be taken again. COORP_INVALID for NULL, or if it
/// has been taken before.
#[no_mangle]
pub unsafe extern "C" fn coorp_bulk_message_take_to(
    message: *const CoorpBulkMessage,
    file: *const c_char,
) -> CoorpResult {
    call(|| {
        // SAFETY: what the head of the header asks of all pointers.
        let to = unsafe { path("file", file)? };
        let shown = handles::get(message)?;
        let elsewhere = |()| Taken::Elsewhere;
        shown.take(
            &format!(", to {}", to.display()),
            |message| message.take_to(to),
            elsewhere,
        )
    })
}

/// Frees a message that was received. If it was not taken, it stays on disk.
///
/// Ownership: the message is gone, with its texts, and its data if it was taken into memory. NULL is allowed, and does nothing.
/// Threads: from any.
/// Errors: COORP_INVALID if it has been freed before, as long as no other one has taken its place.
#[no_mangle]
pub unsafe extern "C" fn coorp_bulk_message_free(message: *const CoorpBulkMessage) -> CoorpResult {
    call(|| handles::close(message))
}
