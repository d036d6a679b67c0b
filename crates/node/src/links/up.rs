//! A link that is up: sends frames of coordination, datagrams, and larger messages over their own streams.

use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use coorp_core::Instant as RobotInstant;
use quinn::{Connection, SendDatagramError, SendStream};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::stream::Outgoing;
use super::LinkId;
use crate::sync::lock;
use crate::tasks::Tasks;

/// The maximum number of large messages of a topic in flight, including those that have arrived and are not
/// acknowledged yet. The second limit applies while the oldest is in flight for longer than acknowledgements take, for
/// example because nothing gets through.
const FLYING_MAX: usize = 32;
const FLYING_LATE_MAX: usize = 4;
const LATE: Duration = Duration::from_millis(100);
/// A large message that takes longer is abandoned.
pub(super) const STREAM_MAX: Duration = Duration::from_secs(5);

/// The key under which a newer message replaces an older one.
pub(super) type Slot = (bool, String);

/// A message: its head and its content.
#[derive(Clone, Debug)]
pub(super) struct Message {
    /// `None`: the message is of no use later.
    pub slot: Option<Slot>,
    pub head: Vec<u8>,
    pub content: Bytes,
}

/// A connection over which a robot can be sent to.
#[derive(Debug)]
pub(super) struct Up {
    pub id: LinkId,
    /// The time at which both ends had proved their identity, on the robot's clock.
    pub began: RobotInstant,
    pub connection: Connection,
    /// Whether this robot has opened it.
    pub own: bool,
    pub coordination: Outgoing,
    /// Notified when the other end has announced itself.
    pub heard: Notify,
    is_heard: AtomicBool,
    /// Whether one end knows a later start of the other end's robot.
    is_over: AtomicBool,
    large: Mutex<BTreeMap<Slot, Large>>,
}

/// A large message in flight.
type Sending = Pin<Box<dyn Future<Output = Result<(), String>> + Send>>;

#[derive(Debug, Default)]
struct Large {
    /// The start of each, the oldest first.
    flying: VecDeque<Instant>,
    next: Option<Message>,
}

impl Large {
    fn may_fly(&self) -> bool {
        let late = self.flying.front().is_some_and(|since| since.elapsed() > LATE);
        self.flying.len() < if late { FLYING_LATE_MAX } else { FLYING_MAX }
    }
}

impl Up {
    /// Creates a link; `stream` is coordination's.
    pub fn new(id: LinkId, began: RobotInstant, connection: &Connection, own: bool, stream: SendStream) -> Arc<Self> {
        Arc::new(Up {
            id,
            began,
            connection: connection.clone(),
            own,
            coordination: Outgoing::new(stream),
            heard: Notify::new(),
            is_heard: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            large: Mutex::default(),
        })
    }

    pub fn is_open(&self) -> bool {
        self.connection.close_reason().is_none()
    }

    pub fn is_heard(&self) -> bool {
        self.is_heard.load(Ordering::Acquire)
    }

    pub fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// Records that the other end has announced itself.
    pub fn on_heard(&self) {
        self.is_heard.store(true, Ordering::Release);
        self.heard.notify_one();
    }

    /// Records that one end's robot runs as another process, as far as the other end knows.
    pub fn on_over(&self) {
        self.is_over.store(true, Ordering::Release);
    }

    /// Sends a message, or drops it if it cannot be sent. Does not block.
    pub fn send(self: &Arc<Self>, on: &Tasks, message: Message) {
        let length = message.head.len() + message.content.len();
        if self.connection.max_datagram_size().is_some_and(|most| length <= most) {
            let mut whole = message.head.clone();
            whole.extend_from_slice(&message.content);
            match self.connection.send_datagram(whole.into()) {
                // The path has just become narrower.
                Err(SendDatagramError::TooLarge) => {}
                Err(error) => return tracing::trace!("a control message was not sent: {error}"),
                Ok(()) => return,
            }
        }
        let Some(slot) = message.slot.clone() else { return };
        let mut all = lock(&self.large);
        let large = all.entry(slot.clone()).or_default();
        if !large.may_fly() {
            large.next = Some(message);
            return;
        }
        let since = Instant::now();
        large.flying.push_back(since);
        drop(all);
        let mut sending: Sending = Box::pin(self.clone().send_stream(message));
        // If QUIC has room, the message goes to it directly, without a detour over another thread.
        if let Poll::Ready(sent) = sending.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            sending = Box::pin(std::future::ready(sent));
        }
        on.spawn("sending control", self.clone().fly(slot, sending, since));
    }

    /// Waits for the end of a large message, and then sends the message that waits behind it, if any.
    async fn fly(self: Arc<Self>, slot: Slot, mut sending: Sending, mut since: Instant) {
        loop {
            let sent = tokio::time::timeout(STREAM_MAX, sending).await;
            if let Ok(Err(why)) = &sent {
                tracing::trace!("a large control message was not sent: {why}");
            }
            let mut large = lock(&self.large);
            let Some(entry) = large.get_mut(&slot) else { return };
            if let Some(place) = entry.flying.iter().position(|flying| *flying == since) {
                entry.flying.remove(place);
            }
            if !entry.flying.is_empty() && !entry.may_fly() {
                return; // Another message's task sends what waits.
            }
            let Some(next) = entry.next.take() else {
                if entry.flying.is_empty() {
                    large.remove(&slot);
                }
                return;
            };
            (sending, since) = (Box::pin(self.clone().send_stream(next)), Instant::now());
            entry.flying.push_back(since);
        }
    }

    async fn send_stream(self: Arc<Self>, message: Message) -> Result<(), String> {
        let stream = self.connection.open_uni().await.map_err(|error| error.to_string())?;
        let mut stream = Unfinished(stream);
        let mut parts = [message.head.into(), message.content];
        stream
            .0
            .write_all_chunks(&mut parts)
            .await
            .map_err(|error| error.to_string())?;
        stream.0.finish().map_err(|error| error.to_string())?;
        // Wait until the message has arrived.
        stream.0.stopped().await.map_err(|error| error.to_string())?;
        Ok(())
    }
}

/// A stream that is reset unless it is complete: nobody may take half a message for a whole one.
struct Unfinished(SendStream);

impl Drop for Unfinished {
    fn drop(&mut self) {
        // This has no effect once everything has arrived.
        let _ = self.0.reset(0u8.into());
    }
}
