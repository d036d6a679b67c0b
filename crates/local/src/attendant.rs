//! Keeps a process connected, on one thread: finds the host or becomes it, links senders with receivers, and notices
//! which processes are gone. No payload waits for this thread.
//!
//! A process is gone when its socket closes or its pidfd becomes readable. The kernel does both, whatever ended the
//! process; the pidfd also works if a forked child still has the socket. A process that finds the host's address free
//! binds it and becomes the host; the kernel allows only one.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{poll, PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::SocketAddrUnix;
use rustix::process::geteuid;

use crate::bell::{timespec, Bell};
use crate::domain::{Command, Shared};
use crate::host::{Member, ENDPOINTS_MAX, MEMBERS_MAX, PEERS_MAX};
use crate::hosting::Hosting;
use crate::memory::View;
use crate::outbox::Reader;
use crate::receiver::{Incoming, Source};
use crate::ring::{Ring, ARENA_BYTES_MAX};
use crate::sender::Outgoing;
use crate::socket::{self, Packet};
use crate::wire::{self, EndpointId, FromHost, Limit, Misunderstood, OnLink, Role, ToHost, VERSION};
use crate::Error;

/// The wait before looking for the host again: the first time, and at most.
const SEEK_PAUSE: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));
/// The interval at which idle memory is returned while there is some.
const TEND_PERIOD: Duration = Duration::from_millis(200);

enum Endpoint {
    Sender(Arc<Outgoing>),
    Receiver(Arc<Incoming>),
}

/// The connection to the host.
enum Rendezvous {
    Sought {
        at: Instant,
        pause: Duration,
    },
    /// Connected, but not welcomed yet.
    Greeting {
        host: OwnedFd,
    },
    Joined {
        host: OwnedFd,
    },
}

enum Stage {
    /// A receiver waits for the offer.
    Introduced,
    /// A sender waits for the answer to its offer.
    Offered(Ring),
    /// A receiver waits to be told that it was added.
    Accepted,
    Ready,
}

struct Link {
    endpoint: EndpointId,
    peer: EndpointId,
    socket: OwnedFd,
    death: Option<OwnedFd>,
    stage: Stage,
    /// Whether the opener of the endpoint no longer waits for it.
    settled: bool,
}

#[derive(Clone, Copy)]
enum Token {
    Wake,
    Host,
    Listener,
    Member(Member),
    MemberDied(Member),
    Link(u64),
    LinkDied(u64),
}

pub(crate) struct Attendant {
    shared: Arc<Shared>,
    /// The name of its memory in /proc.
    label: String,
    address: SocketAddrUnix,
    own_death: Option<OwnedFd>,
    rendezvous: Rendezvous,
    hosting: Option<Hosting>,
    endpoints: HashMap<EndpointId, Endpoint>,
    links: HashMap<u64, Link>,
    next_link: u64,
    tend: Option<Instant>,
    stopped: bool,
}

impl Attendant {
    pub fn new(shared: Arc<Shared>, label: String, address: SocketAddrUnix) -> Self {
        Self {
            shared,
            label,
            address,
            own_death: socket::own_death(),
            rendezvous: Rendezvous::Sought {
                at: Instant::now(),
                pause: SEEK_PAUSE.0,
            },
            hosting: None,
            endpoints: HashMap::new(),
            links: HashMap::new(),
            next_link: 0,
            tend: None,
            stopped: false,
        }
    }

    pub fn run(mut self) {
        while !self.stopped {
            let ready = self.wait();
            let now = Instant::now();
            for token in ready {
                self.handle(token);
            }
            if let Rendezvous::Sought { at, pause } = self.rendezvous {
                if now >= at {
                    self.seek(now, pause);
                }
            }
            if self.tend.is_some_and(|at| now >= at) {
                self.tend_senders(now);
            }
        }
    }

    /// Sleeps until something happens or is due.
    fn wait(&self) -> Vec<Token> {
        let mut tokens = Vec::new();
        let mut descriptors = Vec::new();
        let mut watch = |token, descriptor| {
            tokens.push(token);
            descriptors.push(PollFd::from_borrowed_fd(descriptor, PollFlags::IN));
        };
        watch(Token::Wake, self.shared.wake.as_fd());
        if let Rendezvous::Greeting { host } | Rendezvous::Joined { host } = &self.rendezvous {
            watch(Token::Host, host.as_fd());
        }
        if let Some(hosting) = &self.hosting {
            watch(Token::Listener, hosting.listener());
            for (member, descriptor, death) in hosting.descriptors() {
                watch(
                    if death {
                        Token::MemberDied(member)
                    } else {
                        Token::Member(member)
                    },
                    descriptor,
                );
            }
        }
        for (&id, link) in &self.links {
            watch(Token::Link(id), link.socket.as_fd());
            if let Some(death) = &link.death {
                watch(Token::LinkDied(id), death.as_fd());
            }
        }
        let seek = if let Rendezvous::Sought { at, .. } = self.rendezvous {
            Some(at)
        } else {
            None
        };
        let due = seek.into_iter().chain(self.tend).min();
        let timeout = due.map(|due| timespec(due.saturating_duration_since(Instant::now())));
        if poll(&mut descriptors, timeout.as_ref()).is_err() {
            return Vec::new();
        }
        let ready = tokens
            .into_iter()
            .zip(&descriptors)
            .filter(|(_, polled)| !polled.revents().is_empty());
        ready.map(|(token, _)| token).collect()
    }

    fn handle(&mut self, token: Token) {
        match token {
            Token::Wake => self.obey(),
            Token::Host => self.hear_host(),
            Token::Listener => self.host_does(Hosting::accept),
            Token::Member(member) => self.host_does(|hosting| hosting.read(member)),
            Token::MemberDied(member) => self.host_does(|hosting| hosting.gone(member)),
            Token::Link(id) => self.hear_peer(id),
            Token::LinkDied(id) => self.peer_gone(id),
        }
    }

    fn host_does(&mut self, what: impl FnOnce(&mut Hosting)) {
        if let Some(hosting) = &mut self.hosting {
            what(hosting);
        }
    }

    fn obey(&mut self) {
        self.shared.wake.silence();
        for command in self.shared.take_commands() {
            match command {
                Command::Stop => self.stopped = true,
                Command::OpenSender(outgoing) => self.open(outgoing.id, Endpoint::Sender(outgoing)),
                Command::OpenReceiver(incoming) => self.open(incoming.id, Endpoint::Receiver(incoming)),
                Command::Close(endpoint) => self.close(endpoint),
                Command::CloseLink { endpoint, peer } => {
                    let id = self.link_between(endpoint, peer);
                    id.into_iter().for_each(|id| self.peer_gone(id));
                }
            }
        }
        let tended = |endpoint: &Endpoint| matches!(endpoint, Endpoint::Sender(it) if it.tended.load(SeqCst));
        if self.tend.is_none() && self.endpoints.values().any(tended) {
            self.tend = Some(Instant::now() + TEND_PERIOD);
        }
    }

    fn tend_senders(&mut self, now: Instant) {
        let mut again = false;
        for endpoint in self.endpoints.values() {
            if let Endpoint::Sender(outgoing) = endpoint {
                again |= outgoing.tended.load(SeqCst) && outgoing.tend();
            }
        }
        self.tend = again.then(|| now + TEND_PERIOD);
    }

    // The host.

    /// Connects to the host, or becomes it.
    fn seek(&mut self, now: Instant, pause: Duration) {
        let mut again = now + pause;
        let problem = match socket::connect(&self.address) {
            Ok(host) => match socket::peer(host.as_fd()) {
                Ok((pid, uid)) if uid == geteuid().as_raw() => return self.greet(host, pid),
                Ok((pid, uid)) => {
                    self.shared.refuse(Error::Foreign { uid, pid });
                    String::new()
                }
                Err(error) => error.to_string(),
            },
            Err(Errno::CONNREFUSED) if self.hosting.is_none() => match socket::listen(&self.address) {
                Ok(listener) => {
                    self.hosting = Some(Hosting::new(listener));
                    again = now;
                    String::new()
                }
                // Another process was faster.
                Err(error) => format!("its address is taken, but nobody listens there yet ({error})"),
            },
            Err(error) => format!("connecting failed: {error}"),
        };
        self.shared.lost(problem);
        self.rendezvous = Rendezvous::Sought {
            at: again,
            pause: (pause * 2).min(SEEK_PAUSE.1),
        };
    }

    fn greet(&mut self, host: OwnedFd, pid: i32) {
        let death = socket::with_death(&[], self.own_death.as_ref());
        self.shared.lost(format!(
            "process {pid} has the domain's address and does not answer: if it is stopped, continue it; if it is dead, end \
             the children that it forked"
        ));
        match socket::send(host.as_fd(), &wire::encode(&ToHost::Hello), &death) {
            Ok(()) => self.rendezvous = Rendezvous::Greeting { host },
            Err(error) => self.lose_host(error.to_string()),
        }
    }

    fn lose_host(&mut self, problem: String) {
        self.shared.lost(problem);
        self.rendezvous = Rendezvous::Sought {
            at: Instant::now(),
            pause: SEEK_PAUSE.0,
        };
    }

    fn hear_host(&mut self) {
        while let Rendezvous::Greeting { host } | Rendezvous::Joined { host } = &self.rendezvous {
            match socket::receive(host.as_fd()) {
                Ok(Some(packet)) => self.told_by_host(packet),
                Ok(None) => return,
                Err(Errno::MFILE) => {
                    let error = Errno::MFILE.into();
                    self.shared.refuse(Error::System {
                        what: "take the sockets of a peer: raise `ulimit -n`",
                        source: error,
                    });
                }
                Err(error) => return self.lose_host(format!("the connection to its host ended: {error}")),
            }
        }
    }

    fn told_by_host(&mut self, packet: Packet) {
        match wire::decode(&packet.bytes) {
            Ok(FromHost::Welcome) => self.welcomed(),
            Ok(FromHost::Full) => {
                self.shared.refuse(Error::TooMany {
                    what: "processes",
                    limit: MEMBERS_MAX,
                });
            }
            Ok(FromHost::Introduce { endpoint, peer }) => {
                if let Some(socket) = packet.descriptors.into_iter().next() {
                    self.introduced(endpoint, peer, socket);
                }
            }
            Ok(FromHost::Opened { endpoint }) => self.shared.opened(endpoint, None),
            Ok(FromHost::Refused { endpoint, what }) => {
                let (what, limit) = match what {
                    Limit::Endpoints => ("senders and receivers of one process", ENDPOINTS_MAX),
                    Limit::Peers => ("senders, and as many receivers, of one channel", PEERS_MAX),
                };
                self.shared.opened(endpoint, Some(Error::TooMany { what, limit }));
            }
            Err(Misunderstood::OtherVersion(theirs)) => {
                self.shared.refuse(Error::OtherVersion { theirs, ours: VERSION });
                self.seek_later("the domain runs another version");
            }
            Err(Misunderstood::Garbled) => self.seek_later("its host sends malformed packets"),
        }
    }

    fn seek_later(&mut self, problem: &str) {
        self.shared.lost(problem.to_owned());
        self.rendezvous = Rendezvous::Sought {
            at: Instant::now() + SEEK_PAUSE.1,
            pause: SEEK_PAUSE.1,
        };
    }

    /// Tells a host, possibly a new one, everything that this process has opened.
    fn welcomed(&mut self) {
        if let Rendezvous::Greeting { host } = std::mem::replace(
            &mut self.rendezvous,
            Rendezvous::Sought {
                at: Instant::now(),
                pause: SEEK_PAUSE.0,
            },
        ) {
            self.rendezvous = Rendezvous::Joined { host };
            self.shared.joined();
            let all: Vec<_> = self.endpoints.keys().copied().collect();
            all.into_iter().for_each(|endpoint| self.tell_open(endpoint));
        }
    }

    fn tell_open(&mut self, id: EndpointId) {
        let (role, channel) = match self.endpoints.get(&id) {
            Some(Endpoint::Sender(outgoing)) => (Role::Sender, &outgoing.channel),
            Some(Endpoint::Receiver(incoming)) => (Role::Receiver, &incoming.channel),
            None => return,
        };
        let channel = channel.as_str().to_owned();
        self.tell_host(&ToHost::Open {
            endpoint: id,
            role,
            channel,
        });
    }

    fn tell_host(&mut self, message: &ToHost) {
        if let Rendezvous::Joined { host } = &self.rendezvous {
            if let Err(error) = socket::send(host.as_fd(), &wire::encode(message), &[]) {
                // The next host will be told everything.
                self.lose_host(format!("its host does not read: {error}"));
            }
        }
    }

    // Endpoints and links.

    fn open(&mut self, id: EndpointId, endpoint: Endpoint) {
        self.endpoints.insert(id, endpoint);
        self.tell_open(id);
    }

    fn close(&mut self, endpoint: EndpointId) {
        self.tell_host(&ToHost::Close { endpoint });
        let own = self
            .links
            .iter()
            .filter(|(_, link)| link.endpoint == endpoint)
            .map(|(id, _)| *id);
        own.collect::<Vec<_>>().into_iter().for_each(|id| self.peer_gone(id));
        self.endpoints.remove(&endpoint);
    }

    fn link_between(&self, endpoint: EndpointId, peer: EndpointId) -> Option<u64> {
        self.links
            .iter()
            .find(|(_, link)| link.endpoint == endpoint && link.peer == peer)
            .map(|(id, _)| *id)
    }

    fn introduced(&mut self, endpoint: EndpointId, peer: EndpointId, socket: OwnedFd) {
        // A new host introduces linked endpoints again. If the old host died between its two introductions, the link is
        // dead, which may not have been noticed yet.
        if let Some(id) = self.link_between(endpoint, peer) {
            self.hear_peer(id);
            if self.links.contains_key(&id) {
                return;
            }
        }
        let stage = match self.endpoints.get(&endpoint) {
            Some(Endpoint::Sender(outgoing)) => match self.offer(outgoing, &socket) {
                Ok(ring) => Stage::Offered(ring),
                Err(error) => return self.shared.opened(endpoint, Some(error)),
            },
            Some(Endpoint::Receiver(_)) => Stage::Introduced,
            None => return,
        };
        self.next_link += 1;
        let link = Link {
            endpoint,
            peer,
            socket,
            death: None,
            stage,
            settled: false,
        };
        self.links.insert(self.next_link, link);
        self.shared.linking(endpoint, 1);
    }

    fn offer(&self, outgoing: &Outgoing, socket: &OwnedFd) -> Result<Ring, Error> {
        let failed = |source| Error::System {
            what: "make a queue for a reader",
            source,
        };
        let options = &outgoing.options;
        let label = format!("{}/queue", self.label);
        let (ring, memory) = Ring::create(&label, options.queue_messages, options.held_messages).map_err(failed)?;
        let arena = outgoing.arena.read_only().map_err(failed)?;
        let descriptors = [arena.as_fd(), memory.as_fd(), outgoing.room.as_fd()];
        let descriptors = socket::with_death(&descriptors, self.own_death.as_ref());
        let offer = wire::encode(&OnLink::Offer {
            pid: std::process::id(),
        });
        // If the peer is already gone, reading its socket shows that.
        let _ = socket::send(socket.as_fd(), &offer, &descriptors);
        Ok(ring)
    }

    fn hear_peer(&mut self, id: u64) {
        while let Some(link) = self.links.get_mut(&id) {
            let packet = match socket::receive(link.socket.as_fd()) {
                Ok(Some(packet)) => packet,
                Ok(None) => return,
                Err(_) => return self.peer_gone(id),
            };
            if Self::step(&self.shared, &self.endpoints, link, packet).is_none() {
                self.peer_gone(id);
            }
        }
    }

    /// Takes the next step of setting up a link. `None`: the peer's packet was not the expected step.
    fn step(shared: &Shared, endpoints: &HashMap<EndpointId, Endpoint>, link: &mut Link, packet: Packet) -> Option<()> {
        let stage = std::mem::replace(&mut link.stage, Stage::Ready);
        match (wire::decode(&packet.bytes).ok()?, endpoints.get(&link.endpoint)?, stage) {
            (OnLink::Offer { pid }, Endpoint::Receiver(incoming), Stage::Introduced) => {
                let ([arena, ring, room], death) = socket::exactly(packet.descriptors)?;
                let (view, ring) = (View::open(&arena, ARENA_BYTES_MAX).ok()?, Ring::open(&ring).ok()?);
                incoming.add(Source::new(link.peer, pid, ring, view, Bell::of_peer(room).ok()?));
                let own_death = socket::own_death();
                let descriptors = [incoming.bell.as_fd()];
                let descriptors = socket::with_death(&descriptors, own_death.as_ref());
                let accept = wire::encode(&OnLink::Accept {
                    pid: std::process::id(),
                });
                socket::send(link.socket.as_fd(), &accept, &descriptors).ok()?;
                (link.death, link.stage) = (death, Stage::Accepted);
            }
            (OnLink::Accept { pid }, Endpoint::Sender(outgoing), Stage::Offered(ring)) => {
                let ([bell], death) = socket::exactly(packet.descriptors)?;
                outgoing.add(Reader::new(link.peer, pid, ring, Bell::of_peer(bell).ok()?));
                socket::send(link.socket.as_fd(), &wire::encode(&OnLink::Ready), &[]).ok()?;
                link.death = death;
                Self::settle(shared, link);
            }
            (OnLink::Ready, Endpoint::Receiver(_), Stage::Accepted) => Self::settle(shared, link),
            _ => return None,
        }
        Some(())
    }

    /// Cleans up after a peer that died, closed its end, or broke the rules. Nothing else does.
    fn peer_gone(&mut self, id: u64) {
        let Some(mut link) = self.links.remove(&id) else { return };
        match self.endpoints.get(&link.endpoint) {
            Some(Endpoint::Sender(outgoing)) => outgoing.reader_gone(link.peer),
            Some(Endpoint::Receiver(incoming)) => incoming.sender_gone(link.peer),
            None => {}
        }
        Self::settle(&self.shared, &mut link);
    }

    /// Settles a link that is complete, or never will be. Wakes threads that wait for the link, or for a change.
    fn settle(shared: &Shared, link: &mut Link) {
        let first = !std::mem::replace(&mut link.settled, true);
        shared.linking(link.endpoint, if first { -1 } else { 0 });
    }
}
