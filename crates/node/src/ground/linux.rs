//! The machine itself.

mod disk;

pub(crate) use self::disk::copy;

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration as StdDuration, SystemTime, UNIX_EPOCH};

use coorp_core::{Duration, RobotId};
use coorp_team::{Robot, Team};
use nix::sys::socket::{getsockopt, sockopt};
use quinn::{AsyncUdpSocket, Runtime, TokioRuntime};
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tokio::runtime::Builder;

use super::{Below, Bound, Disk, Ground, Marked, Signal, Threads, Work, Worker};
use crate::clock::since_boot;
use crate::discovery::{places, Place};
use crate::links::MarkedSocket;
use crate::network;
use crate::outqueue::{Emulated, OutQueue};
use crate::quic::RECEIVE_BUFFER_BYTES;
use crate::shared_robot::SharedRobot;
use crate::Error;

/// Maximum time for which reading the emulator's reports waits, so that it ends in time for the socket to be closed.
const LOOK_UP_EVERY: StdDuration = StdDuration::from_millis(200);

/// This machine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Linux;

impl Ground for Linux {
    fn now(&self) -> Duration {
        since_boot()
    }

    fn unix(&self) -> StdDuration {
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
    }

    fn random(&self) -> u64 {
        RandomState::new().hash_one(std::process::id())
    }

    fn quic_seed(&self) -> Option<[u8; 32]> {
        None
    }

    fn disk(&self) -> Arc<dyn Disk> {
        Arc::new(Linux)
    }

    fn threads(&self, count: usize, name: &str, first: fn()) -> io::Result<Threads> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(count)
            .thread_name(name)
            .on_thread_start(first)
            .enable_all()
            .build()?;
        Ok(Threads::new(Arc::new(runtime.handle().clone()), Some(runtime)))
    }

    fn worker(&self, name: &str, first: fn(), mut work: Work) -> io::Result<Worker> {
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            first();
            while let Some(rest) = work() {
                std::thread::park_timeout(rest);
            }
        })?;
        Ok(Worker::new(Signal::Thread(thread.thread().clone()), Some(thread)))
    }

    fn bind(&self, at: SocketAddr, interface: Option<&String>) -> io::Result<Box<dyn Bound>> {
        Ok(Box::new(socket(at, interface)?))
    }

    fn mtu(&self, to: SocketAddr, (address, interface): (IpAddr, Option<&String>)) -> Option<u16> {
        let socket = socket(SocketAddr::new(address, 0), interface).ok()?;
        socket.connect(to).ok()?;
        let mtu = getsockopt(&socket, sockopt::IpMtu).ok()?;
        // Loopback's MTU exceeds a u16.
        u32::try_from(mtu).ok().map(|mtu| mtu.min(u16::MAX.into()) as u16)
    }

    fn check_here(&self, robot: &Robot, paths: usize) -> Result<(), Error> {
        network::check_here(robot, paths)
    }

    fn places(&self, team: &Team, me: Option<RobotId>, paths: usize) -> Vec<Place> {
        places(team, me, paths, &pnet_datalink::interfaces())
    }
}

impl Bound for UdpSocket {
    fn is_roomy(&self) -> bool {
        // Linux reports twice the requested size.
        let bytes = SockRef::from(self).recv_buffer_size();
        bytes.is_ok_and(|bytes| bytes >= 2 * RECEIVE_BUFFER_BYTES)
    }

    fn plain(self: Box<Self>) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        TokioRuntime.wrap_udp_socket(*self)
    }

    fn marked(self: Box<Self>, robot: &Arc<SharedRobot>) -> io::Result<Marked> {
        let io = MarkedSocket::new(*self, robot)?;
        let handed = io.handed();
        Ok(Marked { io, handed })
    }

    fn below_gate(self: Box<Self>) -> io::Result<Below> {
        let emulated = Emulated::connect(&self, LOOK_UP_EVERY);
        Ok(Below {
            queue: OutQueue::of(&self, emulated.first().map(Emulated::freed))?,
            emulated,
            descriptor: Some(self.as_fd().try_clone_to_owned()?),
            io: TokioRuntime.wrap_udp_socket(*self)?,
        })
    }
}

/// Returns a UDP socket at an address, bound to an interface if one is given.
pub(crate) fn socket(address: SocketAddr, interface: Option<&String>) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
    // The system caps the buffer at its own limit.
    socket.set_recv_buffer_size(RECEIVE_BUFFER_BYTES)?;
    socket.bind_device(interface.map(String::as_bytes))?;
    socket.bind(&address.into())?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quic::ETHERNET_BYTES;

    #[test]
    fn what_an_interface_takes_is_known_without_asking_anybody() {
        let everywhere = IpAddr::from([0, 0, 0, 0]);
        let loopback = Linux.mtu(([127, 0, 0, 1], 9).into(), (everywhere, None));
        assert!(loopback.is_some_and(|mtu| mtu > ETHERNET_BYTES));
        let six = IpAddr::from(std::net::Ipv6Addr::LOCALHOST);
        assert_eq!(Linux.mtu((six, 9).into(), (everywhere, None)), None);
    }
}
