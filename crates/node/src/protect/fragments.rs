//! Makes fragments leave as they were handed over.
//!
//! If a firewall tracks connections, the kernel joins the fragments of a raw socket before it looks at them. The first
//! ones then wait for the last, which waits here until few packets are below: forever, with everything behind them.

use std::io;
use std::mem::size_of;
use std::os::fd::AsRawFd;

/// Lets a raw socket's fragments pass one by one.
#[allow(unsafe_code)]
pub(super) fn keep(socket: &impl AsRawFd) -> io::Result<()> {
    let on: libc::c_int = 1;
    let length = size_of::<libc::c_int>() as libc::socklen_t;
    let (level, option) = (libc::IPPROTO_IP, libc::IP_NODEFRAG);
    // SAFETY: the descriptor is open while it is borrowed, and the kernel reads `length` bytes of a live `c_int`.
    match unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const on).cast(), length) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
