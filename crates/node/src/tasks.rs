//! Tasks and threads that a robot needs. A panic in one of them ends the robot (`shared_robot.rs`). Otherwise it would
//! look alive but be deaf, because runtimes and threads do not pass on a panic.
//!
//! QUIC's own tasks are among them: they call the sockets and the congestion controllers of this crate. Left out,
//! because no other robot depends on them: the threads that record, serve metrics and check for alarms.

use std::any::Any;
use std::future::{pending, poll_fn, ready, Future};
use std::io;
use std::net::UdpSocket;
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::pin::{pin, Pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Instant;

use crate::ground::Spawn;
use crate::shared_robot::SharedRobot;
use quinn::{AsyncTimer, AsyncUdpSocket, Runtime, TokioRuntime};
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::{spawn_blocking, JoinError, JoinHandle};

/// Starts the tasks on a runtime.
#[derive(Clone, Debug)]
pub(crate) struct Tasks {
    on: Arc<dyn Spawn>,
    robot: Arc<SharedRobot>,
}

impl Tasks {
    pub fn new(on: &Arc<dyn Spawn>, robot: &Arc<SharedRobot>) -> Tasks {
        Tasks {
            on: on.clone(),
            robot: robot.clone(),
        }
    }

    /// Starts a task; `what` names it if it panics.
    pub fn spawn(&self, what: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        let robot = self.robot.clone();
        self.on.spawn(Box::pin(async move {
            if let Some(why) = caught_in(what, task).await {
                robot.on_panic(&why);
            }
        }));
    }
}

impl Runtime for Tasks {
    fn new_timer(&self, at: Instant) -> Pin<Box<dyn AsyncTimer>> {
        TokioRuntime.new_timer(at)
    }

    fn spawn(&self, task: Pin<Box<dyn Future<Output = ()> + Send>>) {
        Tasks::spawn(self, "QUIC", task);
    }

    fn wrap_udp_socket(&self, socket: UdpSocket) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        TokioRuntime.wrap_udp_socket(socket)
    }

    fn now(&self) -> Instant {
        TokioRuntime.now()
    }
}

/// Runs a task, which `what` names. Returns the message if it panicked.
pub(crate) async fn caught_in(what: &'static str, task: impl Future<Output = ()>) -> Option<String> {
    let mut task = pin!(task);
    let ended = poll_fn(|cx| match catch_unwind(AssertUnwindSafe(|| task.as_mut().poll(cx))) {
        Ok(polled) => polled.map(|()| None),
        Err(panic) => Poll::Ready(Some(panic)),
    });
    ended.await.map(|panic| told(what, &*panic))
}

/// Does work that waits for a disk, on a separate thread. In virtual time there is no such thread, and the work takes
/// no time.
pub(crate) fn beside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    match Handle::current().runtime_flavor() {
        // Do it at once: a process that is killed must not write afterwards.
        RuntimeFlavor::CurrentThread => tokio::spawn(ready(work())),
        _ => spawn_blocking(work),
    }
}

/// Does work as [`beside`] does, while the task waits for it. A panic there is repeated here.
pub(crate) async fn awaited<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match beside(work).await.map_err(JoinError::try_into_panic) {
        Ok(done) => done,
        Err(Ok(panic)) => resume_unwind(panic),
        // The runtime's threads are ending, and so is this task.
        Err(Err(_)) => pending().await,
    }
}

/// Does the work of a thread, which `what` names. Returns the message if it panicked.
pub(crate) fn caught(what: &str, work: impl FnOnce()) -> Option<String> {
    let panicked = catch_unwind(AssertUnwindSafe(work)).err();
    panicked.map(|panic| told(what, &*panic))
}

fn told(what: &str, panic: &(dyn Any + Send)) -> String {
    let literal = panic.downcast_ref::<&str>().copied();
    let why = literal.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("{what} panicked: {}", why.unwrap_or("no message"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_says_where_and_why() {
        assert_eq!(caught("a thread", || ()), None);
        let literal = caught("a thread", || panic!("no more room"));
        assert_eq!(literal.as_deref(), Some("a thread panicked: no more room"));
        let made = caught("a thread", || panic!("{} is too much", 7));
        assert_eq!(made.as_deref(), Some("a thread panicked: 7 is too much"));
    }
}
