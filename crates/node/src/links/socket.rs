//! The socket under control: every datagram is marked for AC_VO.
//!
//! quinn's own way to send writes the TOS byte of each datagram for ECN, and so takes off the mark that a socket has. Here
//! datagrams are sent plainly, so the socket's mark stays. Left out, as control has no use for them: ECN, and segmentation
//! by the kernel, which would put several messages into the card at once.

use std::fmt;
use std::future::Future;
use std::io::{self, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{ready, Context, Poll};

use quinn::udp::{RecvMeta, Transmit, UdpSocketState};
use quinn::{AsyncUdpSocket, UdpPoller};
use socket2::SockRef;
use tokio::io::Interest;

use crate::fabric::TOS_VOICE;

/// A UDP socket whose datagrams go AC_VO.
#[derive(Debug)]
pub(crate) struct MarkedSocket {
    io: tokio::net::UdpSocket,
    receiving: UdpSocketState,
}

impl MarkedSocket {
    /// Marks a bound socket. Called where there is an async runtime.
    pub fn new(socket: UdpSocket) -> io::Result<Arc<MarkedSocket>> {
        // First, as it sets up the socket.
        let receiving = UdpSocketState::new((&socket).into())?;
        let marked = SockRef::from(&socket);
        if socket.local_addr()?.is_ipv6() {
            marked.set_tclass_v6(TOS_VOICE.into())?;
        } else {
            marked.set_tos_v4(TOS_VOICE.into())?;
        }
        Ok(Arc::new(MarkedSocket {
            io: tokio::net::UdpSocket::from_std(socket)?,
            receiving,
        }))
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
        match self.io.try_send_to(transmit.contents, transmit.destination) {
            Ok(_) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(error),
            // A network that is down or parted has lost the datagram; QUIC learns by itself whether that lasts.
            Err(error) => {
                tracing::trace!("a datagram to {} was not sent: {error}", transmit.destination);
                Ok(())
            }
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
