//! The newest messages for all viewers of one kind: browsers, Foxglove or Rerun. Each viewer takes them at its own speed: who falls behind goes on with the newest,
//! and nothing waits for anybody.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How many messages are kept, and their bytes, apart from the newest.
const KEPT_MAX: usize = 10;
const KEPT_BYTES_MAX: usize = 16 << 20;

/// The messages, shared by one who tells and many who view.
#[derive(Debug)]
pub struct Hub<T> {
    inner: Mutex<Inner<T>>,
    came: Condvar,
    viewers: AtomicUsize,
}

#[derive(Debug)]
struct Inner<T> {
    /// The number of the next message.
    next: u64,
    /// Each message with its bytes.
    kept: VecDeque<(T, usize)>,
    bytes: usize,
}

impl<T> Default for Hub<T> {
    fn default() -> Self {
        Hub {
            inner: Mutex::new(Inner {
                next: 0,
                kept: VecDeque::new(),
                bytes: 0,
            }),
            came: Condvar::new(),
            viewers: AtomicUsize::new(0),
        }
    }
}

impl<T: Clone> Hub<T> {
    /// Adds a message that takes so many bytes.
    pub fn tell(&self, message: T, bytes: usize) {
        let mut inner = self.lock();
        inner.bytes += bytes;
        inner.kept.push_back((message, bytes));
        inner.next += 1;
        while inner.kept.len() > 1 && (inner.kept.len() > KEPT_MAX || inner.bytes > KEPT_BYTES_MAX) {
            let oldest = inner.kept.pop_front();
            inner.bytes -= oldest.map_or(0, |(_, bytes)| bytes);
        }
        drop(inner);
        self.came.notify_all();
    }

    /// Returns whether anybody views.
    pub fn has_viewers(&self) -> bool {
        self.viewers.load(Ordering::Acquire) > 0
    }

    /// Views what is told from now on, unless `most` do so already.
    pub fn view(self: &Arc<Self>, most: usize) -> Option<Viewer<T>> {
        let one_more = |viewers| (viewers < most).then_some(viewers + 1);
        let counted = self.viewers.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more);
        counted.ok()?;
        let next = self.lock().next;
        Some(Viewer {
            hub: self.clone(),
            next,
            skipped: 0,
        })
    }

    fn lock(&self) -> MutexGuard<'_, Inner<T>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One who views, until it is dropped.
#[derive(Debug)]
pub struct Viewer<T> {
    hub: Arc<Hub<T>>,
    next: u64,
    skipped: u64,
}

impl<T: Clone> Viewer<T> {
    /// The next message, or, if that is not kept any more, the newest; `None` if none comes within this time.
    pub fn next(&mut self, within: Duration) -> Option<T> {
        let inner = self.hub.lock();
        let none = |inner: &mut Inner<T>| inner.next <= self.next;
        let waited = self.hub.came.wait_timeout_while(inner, within, none);
        let inner = waited.unwrap_or_else(PoisonError::into_inner).0;
        let behind = usize::try_from(inner.next - self.next)
            .ok()
            .filter(|behind| *behind > 0)?;
        let place = inner.kept.len().checked_sub(behind);
        let message = place
            .map_or(inner.kept.back(), |place| inner.kept.get(place))?
            .0
            .clone();
        let after = if place.is_some() { self.next + 1 } else { inner.next };
        self.skipped += after - self.next - 1;
        self.next = after;
        Some(message)
    }

    /// How many messages were skipped since the last call, because the viewer fell behind.
    pub fn take_skipped(&mut self) -> u64 {
        std::mem::take(&mut self.skipped)
    }
}

impl<T> Drop for Viewer<T> {
    fn drop(&mut self) {
        self.hub.viewers.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT_ONCE: Duration = Duration::ZERO;

    fn tell(hub: &Hub<String>, message: String) {
        let bytes = message.len();
        hub.tell(message, bytes);
    }

    #[test]
    fn each_viewer_gets_every_message_as_long_as_it_keeps_up() {
        let hub = Arc::new(Hub::default());
        tell(&hub, "before".to_owned());
        let (mut one, mut other) = (hub.view(2).unwrap(), hub.view(2).unwrap());
        assert!(hub.view(2).is_none(), "there are two");
        assert_eq!(one.next(AT_ONCE), None);
        for message in 0..KEPT_MAX {
            tell(&hub, message.to_string());
            assert_eq!(one.next(AT_ONCE).unwrap().as_str(), message.to_string());
        }
        for message in 0..KEPT_MAX {
            assert_eq!(other.next(AT_ONCE).unwrap().as_str(), message.to_string());
        }
        assert_eq!(other.next(AT_ONCE), None);
        drop(one);
        assert!(hub.has_viewers() && hub.view(2).is_some());
        drop(other);
        assert!(!hub.has_viewers());
    }

    #[test]
    fn who_falls_behind_goes_on_with_the_newest_and_nothing_grows() {
        let hub = Arc::new(Hub::default());
        let mut slow = hub.view(1).unwrap();
        for message in 0..1_000 {
            tell(&hub, message.to_string());
        }
        assert_eq!(hub.lock().kept.len(), KEPT_MAX);
        assert_eq!(slow.next(AT_ONCE).unwrap().as_str(), "999");
        assert_eq!((slow.take_skipped(), slow.take_skipped()), (999, 0));
        assert_eq!(slow.next(AT_ONCE), None);
        for _ in 0..4 {
            tell(&hub, "x".repeat(KEPT_BYTES_MAX / 2 + 1));
        }
        assert_eq!(hub.lock().kept.len(), 1);
        assert_eq!(hub.lock().bytes, KEPT_BYTES_MAX / 2 + 1);
    }

    #[test]
    fn a_viewer_waits_for_the_next_message() {
        let hub = Arc::new(Hub::default());
        let mut viewer = hub.view(1).unwrap();
        let waiting = std::thread::spawn(move || viewer.next(Duration::from_secs(10)));
        tell(&hub, "it".to_owned());
        assert_eq!(waiting.join().unwrap().unwrap().as_str(), "it");
    }
}
