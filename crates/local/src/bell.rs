//! Waiting and waking: a pipe per endpoint, into which the processes at the other ends write.
//!
//! A bell is rung only for an endpoint that has noted in the ring that it sleeps, so a busy channel makes no system
//! call.
//!
//! It is a pipe rather than an eventfd, because the kernel assumes that a pipe's writer will soon sleep. It then wakes
//! the reader on the writer's own core instead of an idle one. On a virtual machine, an idle core has to be woken
//! through the hypervisor: 13 to 28 us instead of 6 to 12. All ends have the pipe open for both directions, so that
//! writing to it never raises SIGPIPE.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{eventfd, poll, EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::pipe::{pipe_with, PipeFlags};

use crate::Error;

/// The number of bytes of rings read at once, and the number of reads: together the capacity of a pipe.
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
        // /proc may not be mounted.
        rustix::fs::open(path, flags, Mode::empty())
            .or_else(|_| eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK))
    }

    /// Takes a bell that a peer sent. If it is something else, reading and writing it harms only the peer.
    pub fn of_peer(descriptor: OwnedFd) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&descriptor, true)?;
        Ok(Self(descriptor))
    }

    pub fn ring(&self) {
        // If the pipe is full, it was rung before and not yet read. Other errors mean that the peer is gone, which its
        // socket shows.
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

/// Returns the instant after this time. Times beyond a program's life are equivalent to forever.
pub(crate) fn after(time: Duration) -> Instant {
    const LONGEST: Duration = Duration::from_secs(1 << 30);
    Instant::now() + time.min(LONGEST)
}

/// Converts a time for `poll`, up to a maximum far beyond any time that a program waits.
pub(crate) fn timespec(time: Duration) -> Timespec {
    const SECONDS_MAX: u64 = 1 << 30;
    Timespec {
        tv_sec: time.as_secs().min(SECONDS_MAX) as i64,
        tv_nsec: time.subsec_nanos().into(),
    }
}
