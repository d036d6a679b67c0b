//! Transmit reports from the kernel: which datagrams of a UDP socket have left, read off its error queue.
//!
//! Two kinds are asked for. `SO_WIFI_STATUS`: mac80211 reports each datagram once the air has carried it, or given it up
//! (Linux's Documentation/networking has neither; `net/core/skbuff.c` and `net/mac80211/status.c` do).
//! `SO_TIMESTAMPING` with software transmit stamps: the driver reports each datagram as it hands it to the hardware.
//! An interface without either sends none, and QUIC's acknowledgements have to do.
//!
//! This is the crate's one room with unsafe code: no safe crate sets the first option or reads both messages. The report
//! of WiFi carries no number, so reports of that kind are in the order of sending.
#![allow(unsafe_code)]

use std::io;
use std::mem::{size_of, zeroed, MaybeUninit};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// `SO_WIFI_STATUS` and the message by the same number; libc does not have it.
const SO_WIFI_STATUS: libc::c_int = 41;
/// Stamps on what is received only where they were asked for; libc does not have it.
const SOF_TIMESTAMPING_OPT_RX_FILTER: libc::c_uint = 1 << 17;
/// Reports read at once, so that a flood of them does not keep their reader.
const READ_MAX: usize = 256;
/// Room for both control messages and the address, and then some.
const CONTROL_BYTES: usize = 512;

/// One datagram, or batch of them, has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Report {
    /// The driver has it: the number of the send call, from 0, and how long ago that was, where the kernel tells.
    Stamped(u32, Option<Duration>),
    /// The air has carried it or given it up: the oldest that was not reported yet.
    OnAir,
}

/// Asks for stamps on what is sent from now on; the first send call is number 0.
pub(crate) fn ask_for_stamps(socket: BorrowedFd<'_>) -> io::Result<()> {
    let reports =
        libc::SOF_TIMESTAMPING_TX_SOFTWARE | libc::SOF_TIMESTAMPING_OPT_ID | libc::SOF_TIMESTAMPING_OPT_TSONLY;
    let times = libc::SOF_TIMESTAMPING_SOFTWARE | SOF_TIMESTAMPING_OPT_RX_FILTER;
    // Kernels before 6.13 would stamp what is received too, for which QUIC's reader leaves no room. There the reports
    // have to do without the times themselves, and when they are read counts.
    set(socket, libc::SO_TIMESTAMPING, (reports | times) as libc::c_int)
        .or_else(|_| set(socket, libc::SO_TIMESTAMPING, reports as libc::c_int))
}

/// Asks for no stamps any longer.
pub(crate) fn ask_for_no_stamps(socket: BorrowedFd<'_>) -> io::Result<()> {
    set(socket, libc::SO_TIMESTAMPING, 0)
}

/// Asks for what the air made of each datagram.
pub(crate) fn ask_for_wifi_status(socket: BorrowedFd<'_>) -> io::Result<()> {
    set(socket, SO_WIFI_STATUS, 1)
}

fn set(socket: BorrowedFd<'_>, option: libc::c_int, value: libc::c_int) -> io::Result<()> {
    let length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the descriptor is open while it is borrowed, and the kernel reads `length` bytes of a live `c_int`.
    let set = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            (&raw const value).cast(),
            length,
        )
    };
    if set == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Waits until there are reports, for `timeout` at most.
pub(crate) fn wait(socket: BorrowedFd<'_>, timeout: Duration) -> io::Result<bool> {
    // Nothing is asked for: that the error queue has something is always told.
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

/// Reads the reports that are there, some hundred at most.
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

/// A buffer for control messages, aligned as they need it.
#[repr(C, align(8))]
struct Control([MaybeUninit<u8>; CONTROL_BYTES]);

/// Takes one message off the error queue. `None`: it is about something else, an unreachable port say.
fn read_one(socket: BorrowedFd<'_>) -> io::Result<Option<Report>> {
    // WiFi's report returns the datagram; none of it is wanted, so what does not fit is cut.
    let mut rest = [0u8; 1];
    let mut part = libc::iovec {
        iov_base: rest.as_mut_ptr().cast(),
        iov_len: rest.len(),
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
    if unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags) } < 0 {
        return Err(io::Error::last_os_error());
    }
    let mut on_air = false;
    let (mut stamped, mut ago) = (None, None);
    // SAFETY: the kernel filled the message just now; the macros walk it within msg_controllen.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    while !header.is_null() {
        // SAFETY: the macros return null or a whole, aligned header inside the buffer.
        let (level, kind, length) = unsafe { ((*header).cmsg_level, (*header).cmsg_type, (*header).cmsg_len as usize) };
        let error = matches!(
            (level, kind),
            (libc::SOL_IP, libc::IP_RECVERR) | (libc::SOL_IPV6, libc::IPV6_RECVERR)
        );
        // SAFETY: computes a length from a length.
        let needed = unsafe { libc::CMSG_LEN(size_of::<libc::sock_extended_err>() as u32) } as usize;
        // SAFETY: computes a length from a length.
        let stamp = unsafe { libc::CMSG_LEN(size_of::<libc::timespec>() as u32) } as usize;
        if (level, kind) == (libc::SOL_SOCKET, SO_WIFI_STATUS) {
            on_air = true;
        } else if (level, kind) == (libc::SOL_SOCKET, libc::SCM_TIMESTAMPING) && length >= stamp {
            // SAFETY: the message is long enough for its first of three times, the software's; it may stand anywhere.
            let time = unsafe { libc::CMSG_DATA(header).cast::<libc::timespec>().read_unaligned() };
            ago = since(time);
        } else if error && length >= needed {
            // SAFETY: the message is long enough for one, as was checked; it may stand at any address.
            let about: libc::sock_extended_err = unsafe {
                libc::CMSG_DATA(header)
                    .cast::<libc::sock_extended_err>()
                    .read_unaligned()
            };
            if about.ee_origin == libc::SO_EE_ORIGIN_TIMESTAMPING {
                stamped = Some(about.ee_data);
            }
        }
        // SAFETY: as for the first one.
        header = unsafe { libc::CMSG_NXTHDR(&raw const message, header) };
    }
    Ok(if on_air {
        Some(Report::OnAir)
    } else {
        stamped.map(|number| Report::Stamped(number, ago))
    })
}

/// How long ago a time of the kernel's was. `None` where its clock has been set since.
fn since(time: libc::timespec) -> Option<Duration> {
    let (seconds, nanos) = (u64::try_from(time.tv_sec).ok()?, u32::try_from(time.tv_nsec).ok()?);
    let time = UNIX_EPOCH.checked_add(Duration::new(seconds, nanos))?;
    SystemTime::now().duration_since(time).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;
    use std::os::fd::AsFd;

    #[test]
    fn loopback_stamps_each_datagram_in_order() {
        let (from, to) = (
            UdpSocket::bind("127.0.0.1:0").unwrap(),
            UdpSocket::bind("127.0.0.1:0").unwrap(),
        );
        ask_for_wifi_status(from.as_fd()).unwrap();
        ask_for_stamps(from.as_fd()).unwrap();
        let mut reports = Vec::new();
        read(from.as_fd(), &mut reports).unwrap();
        assert_eq!(reports, []);
        for _ in 0..3 {
            from.send_to(b"hello", to.local_addr().unwrap()).unwrap();
        }
        while reports.len() < 3 {
            assert!(wait(from.as_fd(), Duration::from_secs(5)).unwrap(), "{reports:?}");
            read(from.as_fd(), &mut reports).unwrap();
        }
        let numbers = reports.iter().map(|report| match report {
            Report::Stamped(number, ago) => (*number, ago.is_none_or(|ago| ago < Duration::from_secs(60))),
            Report::OnAir => panic!("loopback is no WiFi"),
        });
        assert_eq!(numbers.collect::<Vec<_>>(), [(0, true), (1, true), (2, true)]);
        ask_for_no_stamps(from.as_fd()).unwrap();
        from.send_to(b"hello", to.local_addr().unwrap()).unwrap();
        assert!(!wait(from.as_fd(), Duration::from_millis(50)).unwrap());
    }
}
