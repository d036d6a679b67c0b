//! The host's sockets: the other members' connections, and the introductions that `host` decides.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::geteuid;

use crate::host::{Directory, Member, MEMBERS_MAX};
use crate::socket::{self, Packet};
use crate::wire::{self, EndpointId, FromHost, Misunderstood, Role, ToHost};

/// The number of packets taken from one member before the others have their turn.
const BURST: usize = 64;
/// The wait for descriptors if there are none for another member.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

#[derive(Debug)]
struct Connection {
    socket: OwnedFd,
    /// Readable when the member's process has ended.
    death: Option<OwnedFd>,
}

/// The additional state of a domain's host.
#[derive(Debug)]
pub(crate) struct Hosting {
    listener: OwnedFd,
    connections: BTreeMap<Member, Connection>,
    directory: Directory,
    next: u64,
}

impl Hosting {
    pub fn new(listener: OwnedFd) -> Self {
        Self {
            listener,
            connections: BTreeMap::new(),
            directory: Directory::default(),
            next: 0,
        }
    }

    pub fn listener(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// Returns every descriptor that shows something about a member.
    pub fn descriptors(&self) -> impl Iterator<Item = (Member, BorrowedFd<'_>, bool)> {
        self.connections.iter().flat_map(|(&member, connection)| {
            let death = connection.death.as_ref().map(|death| (member, death.as_fd(), true));
            std::iter::once((member, connection.socket.as_fd(), false)).chain(death)
        })
    }

    /// Accepts new connections of the same user.
    pub fn accept(&mut self) {
        loop {
            let socket = match socket::accept(self.listener.as_fd()) {
                Ok(socket) => socket,
                Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => return,
                // No descriptors are left. The connection still waits, so without a pause this would be retried at
                // once.
                Err(_) => return std::thread::sleep(ACCEPT_PAUSE),
            };
            if socket::peer(socket.as_fd()).map(|(_, uid)| uid) != Ok(geteuid().as_raw()) {
                continue;
            }
            if self.connections.len() >= MEMBERS_MAX {
                let _ = socket::send(socket.as_fd(), &wire::encode(&FromHost::Full), &[]);
                continue;
            }
            self.next += 1;
            self.connections
                .insert(Member(self.next), Connection { socket, death: None });
        }
    }

    /// Reads a member's packets.
    pub fn read(&mut self, member: Member) {
        for _ in 0..BURST {
            let Some(connection) = self.connections.get(&member) else {
                return;
            };
            match socket::receive(connection.socket.as_fd()) {
                Ok(Some(packet)) => self.told(member, packet),
                Ok(None) => return,
                Err(_) => return self.gone(member),
            }
        }
    }

    /// Cleans up after a member that is gone for any reason. Nothing else does.
    pub fn gone(&mut self, member: Member) {
        self.connections.remove(&member);
        self.directory.member_gone(member);
    }

    fn told(&mut self, member: Member, packet: Packet) {
        match wire::decode(&packet.bytes) {
            Ok(ToHost::Hello) => {
                if let Some(connection) = self.connections.get_mut(&member) {
                    connection.death = packet.descriptors.into_iter().next();
                }
                self.tell(member, &FromHost::Welcome, None);
            }
            Ok(ToHost::Open {
                endpoint,
                role,
                channel,
            }) => self.open(member, endpoint, role, &channel),
            Ok(ToHost::Close { endpoint }) => self.directory.close(member, endpoint),
            Err(Misunderstood::OtherVersion(_)) => {
                // This says which version the host has.
                self.tell(member, &FromHost::Welcome, None);
                self.gone(member);
            }
            Err(Misunderstood::Garbled) => self.gone(member),
        }
    }

    fn open(&mut self, member: Member, endpoint: EndpointId, role: Role, channel: &str) {
        match self.directory.open(member, endpoint, role, channel) {
            Ok(peers) => {
                for (other, peer) in peers {
                    // Without a pair of sockets the two will be introduced when one of them opens again.
                    let Ok((one, two)) = socket::pair() else { continue };
                    self.tell(
                        other,
                        &FromHost::Introduce {
                            endpoint: peer,
                            peer: endpoint,
                        },
                        Some(one),
                    );
                    self.tell(member, &FromHost::Introduce { endpoint, peer }, Some(two));
                }
                self.tell(member, &FromHost::Opened { endpoint }, None);
            }
            Err(what) => self.tell(member, &FromHost::Refused { endpoint, what }, None),
        }
    }

    /// Sends a message to a member. A member that does not read, for example because it is stopped, is cut off before
    /// it fills the host's memory. It reconnects later.
    fn tell(&mut self, member: Member, message: &FromHost, descriptor: Option<OwnedFd>) {
        let Some(connection) = self.connections.get(&member) else {
            return;
        };
        let descriptors: Vec<_> = descriptor.iter().map(AsFd::as_fd).collect();
        if socket::send(connection.socket.as_fd(), &wire::encode(message), &descriptors).is_err() {
            self.gone(member);
        }
    }
}
