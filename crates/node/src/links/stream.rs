//! Coordination over a link: reliable frames, in order, on the one stream that the link's opener opens. The length
//! precedes each frame.
//!
//! Frames go ahead of everything else on streams. Frames for which QUIC has room go to it at once, in the caller's
//! thread: it keeps what is not acknowledged, up to the window of a link (`transport.rs`). The window has room for the
//! largest control message, so that frames do not wait behind one. The rest waits here, bounded: a new announcement
//! replaces a waiting one, and otherwise the oldest frames make room. Later messages between robots repeat or supersede
//! earlier ones, so the newest are worth the most.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{ready, Context, Poll, Waker};

use bytes::{Buf, Bytes};
use quinn::{RecvStream, SendStream};

use crate::sync::lock;
use crate::tasks::Tasks;
use crate::wire::PREFIX_BYTES;

/// The maximum number of frames that wait for a link whose QUIC takes nothing.
const WAITING_MAX: usize = 256;
/// The stream's priority, above control's large messages.
const PRIORITY: i32 = 1;

/// The sending end.
#[derive(Clone, Debug)]
pub(super) struct Outgoing(Arc<Mutex<Inner>>);

#[derive(Debug)]
struct Inner {
    stream: SendStream,
    /// The rest of the frame that is being written.
    current: Bytes,
    hello: Option<Bytes>,
    waiting: VecDeque<Bytes>,
    /// Whether a task will write as soon as the stream takes more.
    blocked: bool,
}

impl Outgoing {
    pub fn new(stream: SendStream) -> Self {
        // This fails only if the link has ended.
        let _ = stream.set_priority(PRIORITY);
        Outgoing(Arc::new(Mutex::new(Inner {
            stream,
            current: Bytes::new(),
            hello: None,
            waiting: VecDeque::new(),
            blocked: false,
        })))
    }

    /// Sends a frame. Does not block.
    pub fn say(&self, on: &Tasks, frame: Bytes) {
        let mut inner = lock(&self.0);
        if inner.waiting.len() >= WAITING_MAX {
            inner.waiting.pop_front();
        }
        inner.waiting.push_back(frame);
        self.write(inner, on);
    }

    /// Sends an announcement, and replaces one that waits. Does not block.
    pub fn announce(&self, on: &Tasks, frame: Bytes) {
        let mut inner = lock(&self.0);
        inner.hello = Some(frame);
        self.write(inner, on);
    }

    fn write(&self, mut inner: std::sync::MutexGuard<'_, Inner>, on: &Tasks) {
        if inner.blocked || inner.poll_write(&mut Context::from_waker(Waker::noop())).is_ready() {
            return;
        }
        inner.blocked = true;
        let inner = self.0.clone();
        let write = poll_fn(move |cx| {
            let mut inner = lock(&inner);
            ready!(inner.poll_write(cx));
            inner.blocked = false;
            Poll::Ready(())
        });
        on.spawn("sending coordination", write);
    }

    /// Ends the stream, and returns a future that waits until the other end has everything.
    pub fn finish(&self) -> impl std::future::Future<Output = ()> + Send + 'static {
        let mut inner = lock(&self.0);
        let _ = inner.stream.finish();
        let all = inner.stream.stopped();
        async move {
            let _ = all.await;
        }
    }
}

impl Inner {
    /// Writes what waits, until everything is written or the stream has ended.
    fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            if self.current.is_empty() {
                let next = self.hello.take().or_else(|| self.waiting.pop_front());
                let Some(next) = next else { return Poll::Ready(()) };
                self.current = next;
            }
            match ready!(Pin::new(&mut self.stream).poll_write(cx, &self.current)) {
                Ok(written) => self.current.advance(written),
                Err(_) => {
                    // Nothing more goes over this link.
                    self.current = Bytes::new();
                    self.waiting.clear();
                    return Poll::Ready(());
                }
            }
        }
    }
}

/// Reads the next frame. Reads nothing of a frame that is longer than allowed.
pub(crate) async fn read_frame(stream: &mut RecvStream, bytes_max: usize) -> Result<Bytes, Ended> {
    let mut length = [0; PREFIX_BYTES];
    stream.read_exact(&mut length).await.map_err(|_| Ended::Link)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > bytes_max {
        return Err(Ended::Oversized);
    }
    // Allocate step by step: a peer that announces a long frame need not send it.
    let mut frame = Vec::new();
    while frame.len() < length {
        let chunk = stream.read_chunk(length - frame.len(), true).await;
        let chunk = chunk.ok().flatten().ok_or(Ended::Link)?;
        frame.extend_from_slice(&chunk.bytes);
    }
    Ok(frame.into())
}

/// The reason why there are no more frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// The link or its stream has ended.
    Link,
    /// A frame is longer than allowed.
    Oversized,
}
