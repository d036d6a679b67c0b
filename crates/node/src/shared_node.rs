//! A node shared by the handles of one program, and waits that end when it is closed. The libraries for other languages
//! are built on it: their programs may close a node while other threads use it.
//!
//! Left out: signals. A caller that has to look at them waits in steps.

use std::future::{poll_fn, Future};
use std::pin::{pin, Pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Instant;

use coorp_core::RobotId;
use tokio::sync::Notify;

use crate::sync::lock;
use crate::{Error, Node, Options};

/// A node until it is closed, by any thread.
#[derive(Debug)]
pub struct SharedNode {
    /// `None` once it is closed.
    node: Mutex<Option<Node>>,
    closing: Arc<Closing>,
    robots: Vec<String>,
    paths: Vec<String>,
}

impl SharedNode {
    /// Opens a node, like [`Node::open`].
    ///
    /// # Errors
    /// As [`Node::open`].
    pub fn open(mut options: Options) -> Result<SharedNode, Error> {
        options.team = options.team.with_places();
        let robots = options.team.robots.iter().map(|robot| robot.name.clone()).collect();
        let node = Node::open(options)?;
        Ok(SharedNode {
            closing: Arc::default(),
            robots,
            paths: node.status()?.paths,
            node: Mutex::new(Some(node)),
        })
    }

    /// Runs `what` with the node, which is not closed meanwhile.
    ///
    /// # Errors
    /// Once the node has been closed, and those of `what`.
    pub fn with<T>(&self, what: impl FnOnce(&Node) -> Result<T, Error>) -> Result<T, Error> {
        let node = lock(&self.node);
        self.closing.check()?;
        what(node.as_ref().ok_or(Error::Closed)?)
    }

    /// The names of the team's robots, by their IDs.
    pub fn robots(&self) -> &[String] {
        &self.robots
    }

    /// The names of this robot's paths, by their indices: interfaces or addresses.
    pub fn paths(&self) -> &[String] {
        &self.paths
    }

    /// The name of a robot; empty if the team has no such robot.
    pub fn robot(&self, robot: RobotId) -> &str {
        self.robots.get(usize::from(robot.0)).map_or("", String::as_str)
    }

    /// The name of a path; empty if this robot has no such path.
    pub fn path(&self, path: usize) -> &str {
        self.paths.get(path).map_or("", String::as_str)
    }

    /// Whether it has been closed, and the end of all waits then.
    pub fn closing(&self) -> &Arc<Closing> {
        &self.closing
    }

    /// Leaves the team, and ends all waits. Blocks for a fraction of a second, or until calls of [`SharedNode::with`]
    /// have returned.
    pub fn close(&self) {
        self.closing.close();
        // Dropped after the lock.
        let node = lock(&self.node).take();
        drop(node);
    }
}

/// Whether something has been closed.
#[derive(Debug, Default)]
pub struct Closing {
    closed: AtomicBool,
    notify: Notify,
}

impl Closing {
    /// Ends every wait of [`Closing::or_closed`].
    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.notify.notify_waiters();
    }

    /// Refuses once it has been closed.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn check(&self) -> Result<(), Error> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::Closed);
        }
        Ok(())
    }

    /// Waits for a result.
    ///
    /// # Errors
    /// [`Error::Closed`] if it is closed first.
    pub async fn or_closed<T>(&self, coming: impl Future<Output = T>) -> Result<T, Error> {
        let mut coming = pin!(coming);
        let mut notified = pin!(self.notify.notified());
        notified.as_mut().enable();
        poll_fn(|cx| {
            if let Poll::Ready(came) = coming.as_mut().poll(cx) {
                return Poll::Ready(Ok(came));
            }
            let woken = notified.as_mut().poll(cx).is_ready();
            if woken || self.check().is_err() {
                return Poll::Ready(Err(Error::Closed));
            }
            Poll::Pending
        })
        .await
    }
}

/// Blocks this thread until a result arrives, or until this time; without one, for as long as it takes. A result that is
/// there already is returned whatever the time. Not for async code.
pub fn wait<F: Future + ?Sized>(mut coming: Pin<&mut F>, until: Option<Instant>) -> Option<F::Output> {
    let waker = Waker::from(Arc::new(Unparks(thread::current())));
    loop {
        if let Poll::Ready(came) = coming.as_mut().poll(&mut Context::from_waker(&waker)) {
            return Some(came);
        }
        match until.map(|until| until.saturating_duration_since(Instant::now())) {
            None => thread::park(),
            Some(left) if left.is_zero() => return None,
            Some(left) => thread::park_timeout(left),
        }
    }
}

struct Unparks(Thread);

impl Wake for Unparks {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::sync::oneshot;

    const SOON: Duration = Duration::from_secs(60);

    #[test]
    fn a_wait_ends_with_its_result_its_time_or_its_closing() {
        let closing = Closing::default();
        let (done, mut coming) = oneshot::channel();
        let brief = Some(Instant::now() + Duration::from_millis(5));
        assert!(wait(pin!(closing.or_closed(&mut coming)), brief).is_none());
        thread::scope(|scope| {
            let (number, never) = (
                scope.spawn(|| wait(pin!(closing.or_closed(coming)), None)),
                scope.spawn(|| {
                    wait(
                        pin!(closing.or_closed(std::future::pending::<()>())),
                        Some(Instant::now() + SOON),
                    )
                }),
            );
            done.send(7).unwrap();
            assert_eq!(number.join().unwrap().unwrap().unwrap(), Ok(7));
            closing.close();
            assert!(matches!(never.join().unwrap(), Some(Err(Error::Closed))));
        });
        assert!(matches!(closing.check(), Err(Error::Closed)));
        // Existing data is not lost.
        assert!(matches!(wait(pin!(closing.or_closed(async { 8 })), None), Some(Ok(8))));
        assert!(matches!(
            wait(pin!(closing.or_closed(std::future::pending::<()>())), None),
            Some(Err(Error::Closed))
        ));
    }
}
