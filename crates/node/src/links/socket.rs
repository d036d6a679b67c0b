//! The socket under control: every datagram is marked for AC_VO.
//!
//! quinn's own way to send writes the TOS byte of each datagram for ECN, which removes a socket's mark. Here datagrams
//! are sent without ECN, so the socket's mark stays. A large message's datagrams that are ready together go to the
//! kernel in one call, which segments them again. Left out, because control has no use for it: ECN.

use std::fmt;
use std::future::Future;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::task::{ready, Context, Poll};
use std::time::Duration;

use coorp_core::robot::LOOK_HELD;
use nix::errno::Errno;
use nix::sys::socket::{sendmsg, ControlMessage, MsgFlags, SockaddrStorage};
use quinn::udp::{RecvMeta, Transmit, UdpSocketState};
use quinn::{AsyncUdpSocket, UdpPoller};
use socket2::SockRef;
use tokio::io::Interest;

use crate::outqueue::{Emulated, Handed, OutQueue};
use crate::quic::TOGETHER_MAX;
use crate::rank::real_time;
use crate::shared_robot::SharedRobot;
use crate::tasks::caught;

/// TOS byte of DSCP 48 (CS6), which WiFi's default mapping, old and new, maps to AC_VO.
pub(crate) const TOS_VOICE: u8 = 48 << 2;

/// A UDP socket whose datagrams go to AC_VO.
#[derive(Debug)]
pub(crate) struct MarkedSocket {
    io: tokio::net::UdpSocket,
    receiving: UdpSocketState,
    /// Whether the interface refuses several datagrams in one call.
    one_by_one: AtomicBool,
    /// The datagrams that have left.
    handed: Arc<Handed>,
    /// Whether the emulator tells that, which sees no datagram that stays on this machine.
    emulated: bool,
}

/// Maximum time for which reading the emulator's reports waits, so that it ends in time for the socket to be closed.
const LOOK_UP_EVERY: Duration = Duration::from_millis(200);

impl MarkedSocket {
    /// Marks a bound socket. Must be called within an async runtime.
    pub fn new(socket: UdpSocket, robot: &Arc<SharedRobot>) -> io::Result<Arc<MarkedSocket>> {
        // This goes first, because it configures the socket.
        let receiving = UdpSocketState::new((&socket).into())?;
        let marked = SockRef::from(&socket);
        if socket.local_addr()?.is_ipv6() {
            marked.set_tclass_v6(TOS_VOICE.into())?;
        } else {
            marked.set_tos_v4(TOS_VOICE.into())?;
        }
        let emulated = Emulated::connect(&socket, LOOK_UP_EVERY);
        let is_emulated = !emulated.is_empty();
        let handed = Handed::by(OutQueue::of(&socket, emulated.first().map(Emulated::freed))?);
        for mut emulated in emulated {
            let socket = Arc::downgrade(&handed);
            let thread = std::thread::Builder::new().name("coorp-left".to_owned());
            let follow = move || {
                while emulated.read().is_some() {
                    if socket.strong_count() == 0 {
                        return;
                    }
                    // A kernel's count would be read as often.
                    std::thread::sleep(Duration::from_nanos(LOOK_HELD.as_nanos()));
                }
                emulated.freed().end();
            };
            let robot = robot.clone();
            thread.spawn(move || {
                real_time();
                if let Some(why) = caught("the thread that follows a socket", follow) {
                    robot.on_panic(&why);
                }
            })?;
        }
        Ok(Arc::new(MarkedSocket {
            io: tokio::net::UdpSocket::from_std(socket)?,
            receiving,
            one_by_one: AtomicBool::new(false),
            handed,
            emulated: is_emulated,
        }))
    }

    /// Returns the datagrams that the socket has handed over, to follow messages until these have left.
    pub fn handed(&self) -> Arc<Handed> {
        self.handed.clone()
    }

    /// Hands datagrams to the kernel, of `each` bytes, the last perhaps with fewer. Those that stay `here`, such as an operator's
    /// beside the robot, do not count: the emulator would never tell that they have left.
    fn send(&self, to: SocketAddr, here: bool, datagrams: &[u8], each: u16) -> io::Result<()> {
        let to = SockaddrStorage::from(to);
        let together = [ControlMessage::UdpGsoSegments(&each)];
        let count = datagrams.len().div_ceil(each.into());
        let how = if count > 1 { &together[..] } else { &[] };
        self.io.try_io(Interest::WRITABLE, || {
            let bytes = [IoSlice::new(datagrams)];
            let hand_over = || {
                sendmsg(self.io.as_raw_fd(), &bytes, how, MsgFlags::MSG_DONTWAIT, Some(&to))
                    .map(drop)
                    .map_err(io::Error::from)
            };
            if here {
                return hand_over();
            }
            self.handed.send(datagrams.len(), count, hand_over)
        })
    }
}

impl AsyncUdpSocket for MarkedSocket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(Writable {
            socket: self,
            waiting: None,
        })
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let (to, all) = (transmit.destination, transmit.contents);
        // A datagram's length fits a u16.
        let each = transmit.segment_size.map_or(u16::MAX, |size| size as u16).max(1);
        let here = self.emulated && transmit.src_ip == Some(to.ip());
        let mut sent = self.send(to, here, all, each);
        // A card that leaves checksums to the kernel takes them one by one.
        let refused = |error: &io::Error| {
            [Errno::EIO, Errno::EINVAL].contains(&Errno::from_raw(error.raw_os_error().unwrap_or(0)))
        };
        if transmit.segment_size.is_some() && sent.as_ref().is_err_and(refused) {
            self.one_by_one.store(true, Ordering::Relaxed);
            sent = all
                .chunks(each.into())
                .try_for_each(|one| self.send(to, here, one, each));
        }
        match sent {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
                // A network that is down or partitioned has lost the datagram; QUIC finds out whether it stays so.
                tracing::trace!("a datagram to {to} was not sent: {error}");
                Ok(())
            }
            sent => sent,
        }
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.io.poll_recv_ready(cx))?;
            let received = self.io.try_io(Interest::READABLE, || {
                self.receiving.recv((&self.io).into(), bufs, meta)
            });
            if let Ok(count) = received {
                return Poll::Ready(Ok(count));
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.io.local_addr()
    }

    fn may_fragment(&self) -> bool {
        self.receiving.may_fragment()
    }

    fn max_transmit_segments(&self) -> usize {
        if self.one_by_one.load(Ordering::Relaxed) {
            1
        } else {
            self.receiving.max_gso_segments().min(TOGETHER_MAX)
        }
    }

    fn max_receive_segments(&self) -> usize {
        self.receiving.gro_segments()
    }
}

type Waiting = Pin<Box<dyn Future<Output = io::Result<()>> + Send + Sync>>;

/// Waits until the socket takes more. Several connections wait at one socket, each with one of these.
struct Writable {
    socket: Arc<MarkedSocket>,
    waiting: Option<Waiting>,
}

impl fmt::Debug for Writable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writable").finish_non_exhaustive()
    }
}

impl UdpPoller for Writable {
    fn poll_writable(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Writable { socket, waiting } = &mut *self;
        let wait = waiting.get_or_insert_with(|| {
            let socket = socket.clone();
            Box::pin(async move { socket.io.writable().await })
        });
        let writable = ready!(wait.as_mut().poll(cx));
        *waiting = None;
        Poll::Ready(writable)
    }
}
