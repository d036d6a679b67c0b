//! Transmit status from the kernel: which datagrams of a UDP socket the air has carried, read from its error queue.
//!
//! With `SO_WIFI_STATUS`, mac80211 reports each datagram once the air has carried it or given it up. Linux's
//! Documentation/networking does not describe this; see `net/core/skbuff.c` and `net/mac80211/status.c`. Requesting it
//! is harmless only with some drivers: see [`crate::card`].
//!
//! The report contains no number but the frame itself, which is identified by its end: each of QUIC's packets has its
//! own seal there. Reports do not arrive in the order of sending if one datagram is repeated on the air, or goes to
//! another robot. Kernel 7.3 reports several datagrams of one send call one by one; kernel 6.1 cannot send them over a
//! WiFi card without checksums of its own. So each call must send one datagram.
//!
//! Contains unsafe code: no safe crate sets the option or reads these messages.
#![allow(unsafe_code)]

use std::io;
use std::mem::{size_of, zeroed, MaybeUninit};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

/// The option `SO_WIFI_STATUS`, and the message with the same number; libc lacks it.
const SO_WIFI_STATUS: libc::c_int = 41;
/// The number of reports read at once, so that a flood of them does not occupy their reader.
const READ_MAX: usize = 256;
/// Room for the control messages and the address, with some to spare.
const CONTROL_BYTES: usize = 512;
/// Room for a frame; QUIC sends none longer over any WiFi.
const FRAME_BYTES: usize = 4_096;
/// The space for unread reports of one socket. The kernel silently drops more, and the default holds only some 90 of
/// them.
const QUEUE_BYTES: libc::c_int = 4 << 20;

/// The last bytes of a datagram, which identify it.
pub(crate) type Tail = [u8; 16];

/// A report that the air has carried a datagram, or given it up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Report {
    /// The datagram's last bytes.
    pub tail: Tail,
    /// Whether the next station has acknowledged it.
    pub acknowledged: bool,
}

/// Returns the last bytes of a datagram.
pub(crate) fn tail(datagram: &[u8]) -> Tail {
    let mut tail = Tail::default();
    let length = datagram.len().min(tail.len());
    let from = tail.len() - length;
    tail[from..].copy_from_slice(&datagram[datagram.len() - length..]);
    tail
}

/// Requests reports of each datagram's fate from now on, with as much room for them as the machine allows; or stops
/// requesting them.
pub(crate) fn ask_for_wifi_status(socket: BorrowedFd<'_>, wanted: bool) -> io::Result<()> {
    set(socket, libc::SOL_SOCKET, SO_WIFI_STATUS, wanted.into())?;
    if wanted {
        set(socket, libc::SOL_SOCKET, libc::SO_RCVBUF, QUEUE_BYTES)?;
    }
    Ok(())
}

fn set(socket: BorrowedFd<'_>, level: libc::c_int, option: libc::c_int, value: libc::c_int) -> io::Result<()> {
    let length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the descriptor is open while it is borrowed, and the kernel reads `length` bytes of a live `c_int`.
    let set = unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const value).cast(), length) };
    if set == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Waits for reports, for at most `timeout`.
pub(crate) fn wait(socket: BorrowedFd<'_>, timeout: Duration) -> io::Result<bool> {
    // No events are requested: an error queue that is not empty is always reported.
    let mut poll = libc::pollfd {
        fd: socket.as_raw_fd(),
        events: 0,
        revents: 0,
    };
    let timeout_ms = libc::c_int::try_from(timeout.as_millis()).unwrap_or(libc::c_int::MAX);
    // SAFETY: one live pollfd is passed, and counted as one.
    match unsafe { libc::poll(&raw mut poll, 1, timeout_ms) } {
        -1 => Err(io::Error::last_os_error()),
        ready => Ok(ready > 0),
    }
}

/// Reads the available reports, some hundred at most.
pub(crate) fn read(socket: BorrowedFd<'_>, reports: &mut Vec<Report>) -> io::Result<()> {
    for _ in 0..READ_MAX {
        match read_one(socket) {
            Ok(report) => reports.extend(report),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// A buffer for control messages, with their alignment.
#[repr(C, align(8))]
struct Control([MaybeUninit<u8>; CONTROL_BYTES]);

/// Takes one message off the error queue. `None`: it is about something else, such as an unreachable port.
fn read_one(socket: BorrowedFd<'_>) -> io::Result<Option<Report>> {
    let mut frame = [MaybeUninit::<u8>::uninit(); FRAME_BYTES];
    let mut part = libc::iovec {
        iov_base: frame.as_mut_ptr().cast(),
        iov_len: FRAME_BYTES,
    };
    let mut control = Control([MaybeUninit::uninit(); CONTROL_BYTES]);
    // SAFETY: all zeroes is a valid msghdr: null pointers with lengths of zero.
    let mut message: libc::msghdr = unsafe { zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = (&raw mut control.0).cast();
    message.msg_controllen = CONTROL_BYTES as _;
    let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
    // SAFETY: the message's pointers are to live buffers with their lengths, and the descriptor is open.
    let length = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags) };
    let length = usize::try_from(length).map_err(|_| io::Error::last_os_error())?;
    let mut acknowledged = None;
    // SAFETY: the kernel filled the message just now; the macros walk it within msg_controllen.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    while !header.is_null() {
        // SAFETY: the macros return null or a whole, aligned header inside the buffer.
        unsafe {
            if ((*header).cmsg_level, (*header).cmsg_type) == (libc::SOL_SOCKET, SO_WIFI_STATUS) {
                acknowledged = value::<libc::c_int>(header).map(|acknowledged| acknowledged != 0);
            }
            header = libc::CMSG_NXTHDR(&raw const message, header);
        }
    }
    // SAFETY: the kernel has written this many bytes, and no more than fit.
    let frame = unsafe { std::slice::from_raw_parts(frame.as_ptr().cast::<u8>(), length.min(FRAME_BYTES)) };
    Ok(acknowledged.map(|acknowledged| Report {
        tail: tail(frame),
        acknowledged,
    }))
}

/// Returns the value of a control message, if it is long enough for one.
///
/// # Safety
/// `header` is a whole control message, and any bytes make a `T`.
unsafe fn value<T: Copy>(header: *const libc::cmsghdr) -> Option<T> {
    // SAFETY: the header is whole; the macros compute a length, and a place behind the header. The value may be at
    // any address.
    unsafe {
        let needed = libc::CMSG_LEN(size_of::<T>() as u32);
        ((*header).cmsg_len >= needed as _).then(|| libc::CMSG_DATA(header).cast::<T>().read_unaligned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;
    use std::os::fd::AsFd;

    #[test]
    fn loopback_reports_nothing_though_it_may_be_asked() {
        let (from, to) = (
            UdpSocket::bind("127.0.0.1:0").unwrap(),
            UdpSocket::bind("127.0.0.1:0").unwrap(),
        );
        ask_for_wifi_status(from.as_fd(), true).unwrap();
        from.send_to(b"hello", to.local_addr().unwrap()).unwrap();
        let mut reports = Vec::new();
        assert!(!wait(from.as_fd(), Duration::from_millis(20)).unwrap());
        read(from.as_fd(), &mut reports).unwrap();
        assert_eq!(reports, []);
        ask_for_wifi_status(from.as_fd(), false).unwrap();
    }

    #[test]
    fn a_datagram_is_known_by_its_end() {
        let frame: Vec<u8> = (0..100).collect();
        assert_eq!(tail(&frame), tail(&frame[42..]));
        assert_ne!(tail(&frame), tail(&frame[..99]));
        assert_eq!(tail(&[1, 2])[13..], [0, 1, 2]);
    }
}
