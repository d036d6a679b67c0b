//! The sockets by which processes meet: abstract Unix sockets, which have no file, and which the kernel closes with
//! their process.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{self, AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{geteuid, getpid, pidfd_open, PidfdFlags};

use crate::name::Name;
use crate::wire::PACKET_BYTES_MAX;

/// The maximum number of descriptors with one packet.
const DESCRIPTORS_MAX: usize = 4;
const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);
const BACKLOG: i32 = 256;

/// A packet that arrived.
#[derive(Debug)]
pub(crate) struct Packet {
    pub bytes: Vec<u8>,
    pub descriptors: Vec<OwnedFd>,
}

/// Returns the address at which the members of a domain meet. It is unique per user, machine and network namespace.
pub(crate) fn address(domain: &Name) -> io::Result<SocketAddrUnix> {
    let name = format!("coorp-local/{}/{}", geteuid().as_raw(), domain.as_str());
    Ok(SocketAddrUnix::new_abstract_name(name.as_bytes())?)
}

fn socket() -> Result<OwnedFd, Errno> {
    net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, FLAGS, None)
}

pub(crate) fn connect(address: &SocketAddrUnix) -> Result<OwnedFd, Errno> {
    let socket = socket()?;
    net::connect(&socket, address)?;
    Ok(socket)
}

pub(crate) fn listen(address: &SocketAddrUnix) -> Result<OwnedFd, Errno> {
    let socket = socket()?;
    net::bind(&socket, address)?;
    net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

pub(crate) fn accept(listener: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    net::accept_with(listener, FLAGS)
}

pub(crate) fn pair() -> Result<(OwnedFd, OwnedFd), Errno> {
    net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, FLAGS, None)
}

/// Returns the process and user at the other end of a connection.
pub(crate) fn peer(socket: BorrowedFd<'_>) -> Result<(i32, u32), Errno> {
    let peer = net::sockopt::socket_peercred(socket)?;
    Ok((peer.pid.as_raw_nonzero().get(), peer.uid.as_raw()))
}

/// Returns a descriptor that becomes readable when this process ends, even if a child that it forked still has its
/// sockets. `None` on kernels before 5.3, which have only the sockets for this.
pub(crate) fn own_death() -> Option<OwnedFd> {
    pidfd_open(getpid(), PidfdFlags::empty()).ok()
}

/// Sends a packet, or fails at once.
pub(crate) fn send(socket: BorrowedFd<'_>, packet: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(Errno::TOOMANYREFS);
    }
    loop {
        match net::sendmsg(
            socket,
            &[IoSlice::new(packet)],
            &mut control,
            SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
        ) {
            Err(Errno::INTR) => {}
            outcome => return outcome.map(|_| ()),
        }
    }
}

/// Receives a packet. `Ok(None)`: none is there. The end of the connection is an error.
pub(crate) fn receive(socket: BorrowedFd<'_>) -> Result<Option<Packet>, Errno> {
    let mut bytes = vec![0; PACKET_BYTES_MAX];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let received = match net::recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags) {
        Ok(received) => received,
        Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    if received.bytes == 0 {
        return Err(Errno::CONNRESET);
    }
    if received.flags.contains(ReturnFlags::CTRUNC) {
        // This process may have no more descriptors.
        return Err(Errno::MFILE);
    }
    if received.flags.contains(ReturnFlags::TRUNC) {
        return Err(Errno::MSGSIZE);
    }
    bytes.truncate(received.bytes);
    Ok(Some(Packet { bytes, descriptors }))
}

/// Takes the descriptors that must come with a message; a pidfd may follow.
pub(crate) fn exactly<const COUNT: usize>(descriptors: Vec<OwnedFd>) -> Option<([OwnedFd; COUNT], Option<OwnedFd>)> {
    let mut rest = descriptors.into_iter();
    let needed: Vec<_> = rest.by_ref().take(COUNT).collect();
    let death = rest.next();
    Some((needed.try_into().ok()?, death))
}

/// Returns descriptors with the pidfd, if there is one.
pub(crate) fn with_death<'a>(descriptors: &[BorrowedFd<'a>], death: Option<&'a OwnedFd>) -> Vec<BorrowedFd<'a>> {
    descriptors.iter().copied().chain(death.map(AsFd::as_fd)).collect()
}
