//! Transmit reports from the kernel: which datagrams of a UDP socket have left, read off its error queue.
//!
//! Two kinds are asked for. `SO_WIFI_STATUS`: mac80211 reports each datagram once the air has carried it, or given it up
//! (Linux's Documentation/networking has neither; `net/core/skbuff.c` and `net/mac80211/status.c` do).
//! `SO_TIMESTAMPING` with software transmit stamps: the driver reports each datagram as it hands it to the hardware.
//! An interface without either sends none, and QUIC's acknowledgements have to do.
//!
//! The report of WiFi carries no number but the frame itself, which is known by its end: each of QUIC's packets has a
//! seal of its own there. Reports do not come in the order of sending where one datagram is repeated on the air, or
//! goes to another robot. Several datagrams in one send call are reported one by one by kernel 7.3, and cannot be sent
//! over a WiFi card without checksums of its own by 6.1; so one call is to send one datagram.
//!
//! A TAP stamps a datagram as it puts it into the queue of the program behind, and not as it leaves; so each stamp
//! comes with its interface, and [`is_tun`] tells what to make of it.
//!
//! This is the crate's one room with unsafe code: no safe crate sets the first option or reads these messages.
#![allow(unsafe_code)]

use std::ffi::c_char;
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
/// Room for the control messages and the address, and then some.
const CONTROL_BYTES: usize = 512;
/// Room for a frame; QUIC sends none longer over any WiFi.
const FRAME_BYTES: usize = 4_096;
/// What the reports of one socket may fill before they are read. The kernel drops more without a word, and the default
/// is full with some 90 of them.
const QUEUE_BYTES: libc::c_int = 4 << 20;

/// The last bytes of a datagram, which tell one from all others.
pub(crate) type Tail = [u8; 16];

/// One datagram, or batch of them, has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Report {
    /// The driver has it.
    Stamped {
        /// The number of the send call, from 0.
        number: u32,
        /// How long ago that was, where the kernel tells.
        ago: Option<Duration>,
        /// The number of the interface, or 0 where the kernel does not say.
        interface: u32,
    },
    /// The air has carried it, or given it up.
    OnAir {
        /// Which one.
        tail: Tail,
        /// Whether the next station has acknowledged it.
        acknowledged: bool,
    },
}

/// The end of a datagram.
pub(crate) fn tail(datagram: &[u8]) -> Tail {
    let mut tail = Tail::default();
    let length = datagram.len().min(tail.len());
    let from = tail.len() - length;
    tail[from..].copy_from_slice(&datagram[datagram.len() - length..]);
    tail
}

/// Makes room for reports, as far as the machine allows.
pub(crate) fn make_room(socket: BorrowedFd<'_>) -> io::Result<()> {
    set(socket, libc::SOL_SOCKET, libc::SO_RCVBUF, QUEUE_BYTES)
}

/// Asks for stamps on what is sent from now on; the first send call is number 0.
pub(crate) fn ask_for_stamps(socket: BorrowedFd<'_>) -> io::Result<()> {
    // The last one asks for the interface, which comes as it does with what is received.
    let reports = libc::SOF_TIMESTAMPING_TX_SOFTWARE | libc::SOF_TIMESTAMPING_OPT_ID | libc::SOF_TIMESTAMPING_OPT_CMSG;
    for (level, option) in [
        (libc::SOL_IP, libc::IP_PKTINFO),
        (libc::SOL_IPV6, libc::IPV6_RECVPKTINFO),
    ] {
        // One of them is for a socket of the other kind.
        let _ = set(socket, level, option, 1);
    }
    let times = libc::SOF_TIMESTAMPING_SOFTWARE | SOF_TIMESTAMPING_OPT_RX_FILTER;
    // Kernels before 6.13 would stamp what is received too, for which QUIC's reader leaves no room. There the reports
    // have to do without the times themselves, and when they are read counts.
    let ask = |flags| set(socket, libc::SOL_SOCKET, libc::SO_TIMESTAMPING, flags as libc::c_int);
    ask(reports | times).or_else(|_| ask(reports))
}

/// Asks for what the air made of each datagram.
pub(crate) fn ask_for_wifi_status(socket: BorrowedFd<'_>) -> io::Result<()> {
    set(socket, libc::SOL_SOCKET, SO_WIFI_STATUS, 1)
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
    let mut about = About::default();
    // SAFETY: the kernel filled the message just now; the macros walk it within msg_controllen.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    while !header.is_null() {
        // SAFETY: the macros return null or a whole, aligned header inside the buffer.
        unsafe {
            about.read(header);
            header = libc::CMSG_NXTHDR(&raw const message, header);
        }
    }
    // SAFETY: the kernel has written so many bytes, and no more than there is room.
    let frame = unsafe { std::slice::from_raw_parts(frame.as_ptr().cast::<u8>(), length.min(FRAME_BYTES)) };
    Ok(match (about.acknowledged, about.stamped) {
        (Some(acknowledged), _) => Some(Report::OnAir {
            tail: tail(frame),
            acknowledged,
        }),
        (None, Some(number)) => Some(Report::Stamped {
            number,
            ago: about.ago,
            interface: about.interface,
        }),
        (None, None) => None,
    })
}

/// What the control messages say about a datagram.
#[derive(Default)]
struct About {
    acknowledged: Option<bool>,
    stamped: Option<u32>,
    ago: Option<Duration>,
    interface: u32,
}

impl About {
    /// # Safety
    /// `header` is a whole control message, as the kernel wrote it.
    unsafe fn read(&mut self, header: *const libc::cmsghdr) {
        // SAFETY: the header is whole, as the caller promises.
        let (level, kind) = unsafe { ((*header).cmsg_level, (*header).cmsg_type) };
        // SAFETY: as above, for each; `value` looks at the length before it reads.
        unsafe {
            match (level, kind) {
                (libc::SOL_SOCKET, SO_WIFI_STATUS) => {
                    self.acknowledged = value::<libc::c_int>(header).map(|acknowledged| acknowledged != 0);
                }
                // The first of three times, the software's.
                (libc::SOL_SOCKET, libc::SCM_TIMESTAMPING) => self.ago = value(header).and_then(since),
                (libc::SOL_IP, libc::IP_RECVERR) | (libc::SOL_IPV6, libc::IPV6_RECVERR) => {
                    self.stamped = value::<libc::sock_extended_err>(header)
                        .filter(|error| error.ee_origin == libc::SO_EE_ORIGIN_TIMESTAMPING)
                        .map(|error| error.ee_data);
                }
                (libc::SOL_IP, libc::IP_PKTINFO) => {
                    let info = value::<libc::in_pktinfo>(header);
                    self.interface = info.map_or(0, |info| info.ipi_ifindex.unsigned_abs());
                }
                (libc::SOL_IPV6, libc::IPV6_PKTINFO) => {
                    let info = value::<libc::in6_pktinfo>(header);
                    self.interface = info.map_or(0, |info| info.ipi6_ifindex);
                }
                _ => {}
            }
        }
    }
}

/// The value of a control message, where it is long enough for one.
///
/// # Safety
/// `header` is a whole control message, and any bytes make a `T`.
unsafe fn value<T: Copy>(header: *const libc::cmsghdr) -> Option<T> {
    // SAFETY: the header is whole; the macros compute a length, and a place behind the header. The value may stand at any
    // address.
    unsafe {
        let needed = libc::CMSG_LEN(size_of::<T>() as u32);
        ((*header).cmsg_len >= needed as _).then(|| libc::CMSG_DATA(header).cast::<T>().read_unaligned())
    }
}

/// Whether an interface is a TUN or TAP, whose stamps say nothing. `false` also where the kernel does not tell.
pub(crate) fn is_tun(socket: BorrowedFd<'_>, interface: u32) -> bool {
    /// `struct ethtool_drvinfo` of linux/ethtool.h, which libc does not have.
    #[repr(C)]
    struct DriverInfo {
        command: u32,
        driver: [u8; 32],
        rest: [u8; 160],
    }
    const ETHTOOL_GDRVINFO: u32 = 3;
    let mut info = DriverInfo {
        command: ETHTOOL_GDRVINFO,
        driver: [0; 32],
        rest: [0; 160],
    };
    // SAFETY: all zeroes is a valid ifreq.
    let mut request: libc::ifreq = unsafe { zeroed() };
    request.ifr_ifru.ifru_ifindex = libc::c_int::try_from(interface).unwrap_or(0);
    // SAFETY: the first call writes the name into the live request, the second one what it points to, which is as long
    // as the kernel takes it to be.
    let told = unsafe {
        libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFNAME, &raw mut request) == 0 && {
            request.ifr_ifru.ifru_data = (&raw mut info).cast::<c_char>();
            libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL, &raw mut request) == 0
        }
    };
    told && info.driver.starts_with(b"tun\0")
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
            Report::Stamped { number, ago, interface } => {
                assert!(ago.is_none_or(|ago| ago < Duration::from_secs(60)));
                (*number, *interface)
            }
            Report::OnAir { .. } => panic!("loopback is no WiFi"),
        });
        assert_eq!(numbers.collect::<Vec<_>>(), [(0, 1), (1, 1), (2, 1)]);
        assert!(!is_tun(from.as_fd(), 1));
    }

    #[test]
    fn a_datagram_is_known_by_its_end() {
        let frame: Vec<u8> = (0..100).collect();
        assert_eq!(tail(&frame), tail(&frame[42..]));
        assert_ne!(tail(&frame), tail(&frame[..99]));
        assert_eq!(tail(&[1, 2])[13..], [0, 1, 2]);
    }
}
