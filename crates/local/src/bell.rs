//! Waiting and waking: a pipe per endpoint, into which the processes at the other ends write.
//!
//! A bell is rung only for those who said that they sleep (in the ring), so a busy channel makes no system call.
//!
//! A pipe rather than an eventfd, since the kernel wakes its reader as one whose waker will soon sleep. It then prefers the
//! waker's own core to an idle one, which on a virtual machine has to be woken through the hypervisor: 6 to 12 us instead
//! of 13 to 28. All ends have the pipe open for both directions, so that writing to it never raises SIGPIPE.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{eventfd, poll, EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::pipe::{pipe_with, PipeFlags};

use crate::Error;

/// How many bytes of rings are forgotten at once, and how often: all that a pipe has.
const RINGS_BYTES: usize = 4096;
const READS_MAX: usize = 16;

/// One end's bell, or another end's copy of it.
#[derive(Debug)]
pub(crate) struct Bell(OwnedFd);

impl Bell {
    pub fn new() -> Result<Self, Error> {
        Self::open().map(Self).map_err(Error::system("create a pipe"))
    }

    fn open() -> Result<OwnedFd, Errno> {
        let (read, _write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let path = format!("/proc/self/fd/{}", read.as_raw_fd());
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
        // Nothing may be mounted there.
        rustix::fs::open(path, flags, Mode::empty())
            .or_else(|_| eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK))
    }

    /// A bell that a peer sent. Reading or writing something else in its place harms only the peer.
    pub fn of_peer(descriptor: OwnedFd) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&descriptor, true)?;
        Ok(Self(descriptor))
    }

    pub fn ring(&self) {
        // Full: it was rung before and nobody has looked. Other errors: the peer is gone, which its socket tells.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Forgets earlier rings.
    pub fn silence(&self) {
        let mut rings = [0; RINGS_BYTES];
        for _ in 0..READS_MAX {
            if rustix::io::read(&self.0, &mut rings) != Ok(RINGS_BYTES) {
                return;
            }
        }
    }

    /// Sleeps until it is rung. Returns whether it was before the deadline.
    pub fn wait(&self, deadline: Option<Instant>) -> io::Result<bool> {
        Ok(wait_any(&[self.as_fd()], deadline)?.is_some())
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Sleeps until one of these is readable, and returns which.
pub(crate) fn wait_any(descriptors: &[BorrowedFd<'_>], deadline: Option<Instant>) -> io::Result<Option<usize>> {
    let mut descriptors: Vec<_> = descriptors
        .iter()
        .map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN))
        .collect();
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        match poll(&mut descriptors, left.map(timespec).as_ref()) {
            Ok(0) if deadline.is_none_or(|deadline| Instant::now() >= deadline) => return Ok(None),
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => return Ok(descriptors.iter().position(|polled| !polled.revents().is_empty())),
            Err(error) => return Err(error.into()),
        }
    }
}

/// When so much time will have passed. Times beyond a program's life are as good as for ever.
pub(crate) fn after(time: Duration) -> Instant {
    const LONGEST: Duration = Duration::from_secs(1 << 30);
    Instant::now() + time.min(LONGEST)
}

/// The longest time that `poll` takes is far beyond any that a program waits.
pub(crate) fn timespec(time: Duration) -> Timespec {
    const SECONDS_MAX: u64 = 1 << 30;
    Timespec {
        tv_sec: time.as_secs().min(SECONDS_MAX) as i64,
        tv_nsec: time.subsec_nanos().into(),
    }
}
