//! Control: small messages, of which only the newest counts.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_void};
use std::ptr::{from_ref, null, null_mut};
use std::sync::Arc;

use coorp_node::control::{Age, Message, Publisher, Subscriber};
use coorp_node::{Duration, MESSAGE_BYTES_MAX};

use crate::boundary::{bytes, call, or_unknown, place, text, CoorpResult, Failure};
use crate::handles::{self, Kind};
use crate::node::{CoorpNode, OpenNode, Opened};

/// The longest control message, bytes.
pub const COORP_CONTROL_BYTES_MAX: usize = 16_777_216;

const _: () = assert!(COORP_CONTROL_BYTES_MAX == MESSAGE_BYTES_MAX);

/// Publishes control messages on one topic: predicted, ahead of bulk, over the best paths.
pub struct CoorpPublisher {
    _opaque: [u8; 0],
}

/// Receives the control messages of all robots on one topic.
pub struct CoorpSubscriber {
    _opaque: [u8; 0],
}

/// A control message that was received. It is yours to free with coorp_message_free(); its texts and data last until then, also
/// after its node is closed.
#[repr(C)]
pub struct CoorpMessage {
    /// The robot that sent it.
    pub robot: *const c_char,
    /// The path that delivered it first: an interface or an address of this robot.
    pub path: *const c_char,
    /// Zero-based sequence number within the topic since the sender's start.
    pub sequence: u64,
    /// Its age when it was taken; negative until both robots know the leader's clock.
    pub age_ns: i64,
    /// The error bound of the age by this robot's clock, to which the sender's adds; negative if the age is unknown.
    pub age_error_ns: i64,
    /// Its content.
    pub data: *const c_void,
    /// The length of its content.
    pub length_bytes: usize,
}

/// A message that C reads, and what its pointers point to.
pub struct Shown {
    shown: CoorpMessage,
    _message: Message,
    _node: Arc<OpenNode>,
}

// SAFETY: nobody writes what its pointers point to.
unsafe impl Send for Shown {}
// SAFETY: the same.
unsafe impl Sync for Shown {}

impl Kind for CoorpPublisher {
    type Value = Opened<Publisher>;
    const NAME: &'static str = "CoorpPublisher";
}

impl Kind for CoorpSubscriber {
    type Value = Opened<(String, Subscriber)>;
    const NAME: &'static str = "CoorpSubscriber";
}

impl Kind for CoorpMessage {
    type Value = Shown;
    const NAME: &'static str = "CoorpMessage";
}

/// An age and its error, in C.
pub fn aged(age: Option<Age>) -> (i64, i64) {
    let nanos = |of: fn(Age) -> Duration| or_unknown(age.map(|age| of(age).as_nanos()));
    (nanos(|age| age.is), nanos(|age| age.within))
}

fn or_none(nanos: u64) -> Option<Duration> {
    (nanos > 0).then(|| Duration::from_nanos(nanos))
}

/// Opens a publisher of a topic. `topic` has 1 to 64 letters, digits, `-`, `_` and `.`. `period_ns` is the time between two
/// messages, 10 us to 1 h, or 0 if it is to be learnt. `bound_ns` is the age at which a message is late: with it, bulk is held
/// back only as much as late messages call for; 0 keeps bulk clear of every message.
///
/// Ownership: `*publisher` is yours to close with coorp_publisher_close(), and is closed with the node; it is NULL if this fails.
/// Threads: from any; any number of them may use the publisher.
/// Errors: COORP_INVALID for a bad topic or period, or too many topics; COORP_FAILED if the robot's agent does not answer;
/// COORP_CLOSED.
#[no_mangle]
pub unsafe extern "C" fn coorp_publisher_open(
    node: *mut CoorpNode,
    topic: *const c_char,
    period_ns: u64,
    bound_ns: u64,
    publisher: *mut *mut CoorpPublisher,
) -> CoorpResult {
    call(|| {
        // SAFETY: what the head of the header asks of all pointers.
        let (publisher, topic) = unsafe { (place("publisher", publisher, null_mut())?, text("topic", topic)?) };
        *publisher = Opened::with(node, |node| {
            let publisher = node.control_publisher(topic, or_none(period_ns))?;
            publisher.set_bound(or_none(bound_ns));
            Ok(publisher)
        })?;
        Ok(())
    })
}

/// Sends a message of up to COORP_CONTROL_BYTES_MAX bytes to all who subscribe. Does not block; if the network takes no more, or
/// the robot's agent does not run, the message is dropped, because a newer one will follow.
///
/// Ownership: the data is copied. NULL is allowed if the length is 0.
/// Threads: from any.
/// Errors: COORP_INVALID for NULL or too many bytes; COORP_CLOSED.
#[no_mangle]
pub unsafe extern "C" fn coorp_publisher_put(
    publisher: *mut CoorpPublisher,
    data: *const c_void,
    length_bytes: usize,
) -> CoorpResult {
    call(|| {
        // SAFETY: what the head of the header asks of all pointers.
        let data = unsafe { bytes(data, length_bytes)? };
        Ok(handles::get(publisher)?.what.put(data)?)
    })
}

/// Stops publishing.
///
/// Ownership: the handle is gone. NULL is allowed, and does nothing.
/// Threads: from any.
/// Errors: COORP_CLOSED if it has been closed before.
#[no_mangle]
pub unsafe extern "C" fn coorp_publisher_close(publisher: *mut CoorpPublisher) -> CoorpResult {
    call(|| handles::close(publisher))
}

/// Subscribes to a topic, also to this robot's own messages.
///
/// Ownership: `*subscriber` is yours to close with coorp_subscriber_close(), and is closed with the node; it is NULL if this
/// fails.
/// Threads: from any; any number of them may use the subscriber, and each message goes to one.
/// Errors: COORP_INVALID for a bad topic or too many topics; COORP_FAILED if the robot's agent does not answer; COORP_CLOSED.
#[no_mangle]
pub unsafe extern "C" fn coorp_subscriber_open(
    node: *mut CoorpNode,
    topic: *const c_char,
    subscriber: *mut *mut CoorpSubscriber,
) -> CoorpResult {
    call(|| {
        // SAFETY: what the head of the header asks of all pointers.
        let (subscriber, topic) = unsafe { (place("subscriber", subscriber, null_mut())?, text("topic", topic)?) };
        *subscriber = Opened::with(node, |node| Ok((topic.to_owned(), node.control_subscriber(topic)?)))?;
        Ok(())
    })
}

/// Waits for a message: the newest of a robot whose newest was not received yet. `timeout_ns` is how long at most: 0 does not
/// wait, and a negative one (COORP_FOREVER) waits for as long as it takes.
///
/// Ownership: `*message` is yours to free with coorp_message_free(); it is NULL if this fails.
/// Threads: from any. Signals do not end the wait; closing the subscriber or the node in another thread does.
/// Errors: COORP_TIMEOUT; COORP_INVALID for NULL; COORP_CLOSED.
#[no_mangle]
pub unsafe extern "C" fn coorp_subscriber_receive(
    subscriber: *mut CoorpSubscriber,
    timeout_ns: i64,
    message: *mut *const CoorpMessage,
) -> CoorpResult {
    call(|| {
        // SAFETY: what the head of the header asks of all pointers.
        let place = unsafe { place("message", message, null())? };
        let opened = handles::get(subscriber)?;
        let (topic, subscriber) = &opened.what;
        let missing = || format!("no message arrived on \"{topic}\"");
        let message = opened.wait::<CoorpSubscriber, _>(subscriber.next(), timeout_ns, missing)?;
        *place = show(&opened.node, message)?;
        Ok(())
    })
}

fn show(node: &Arc<OpenNode>, message: Message) -> Result<*const CoorpMessage, Failure> {
    let (age_ns, age_error_ns) = aged(message.age);
    let shown = Arc::new(Shown {
        shown: CoorpMessage {
            robot: node.robot(message.from),
            path: node.path(message.path),
            sequence: message.sequence,
            age_ns,
            age_error_ns,
            data: message.bytes().as_ptr().cast(),
            length_bytes: message.bytes().len(),
        },
        _message: message,
        _node: node.clone(),
    });
    let address = from_ref(&shown.shown);
    handles::show(shown, address)
}

/// Unsubscribes, and ends waits with COORP_CLOSED.
///
/// Ownership: the handle is gone; messages that were received are not. NULL is allowed, and does nothing.
/// Threads: from any.
/// Errors: COORP_CLOSED if it has been closed before.
#[no_mangle]
pub unsafe extern "C" fn coorp_subscriber_close(subscriber: *mut CoorpSubscriber) -> CoorpResult {
    call(|| handles::close(subscriber))
}

/// Frees a message that was received.
///
/// Ownership: the message is gone, with its texts and data. NULL is allowed, and does nothing.
/// Threads: from any.
/// Errors: COORP_INVALID if it has been freed before, as long as no other one has taken its place.
#[no_mangle]
pub unsafe extern "C" fn coorp_message_free(message: *const CoorpMessage) -> CoorpResult {
    call(|| handles::close(message))
}
