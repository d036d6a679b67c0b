//! The robot behind the door: QUIC's endpoint and `core::admission`, driven as `links/` and `door.rs` of the node drive
//! them, in virtual time. After each step it checks its limits.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use bytes::{Bytes, BytesMut};
use coorp_core::admission::{Admission, Limits, Reason, Ticket, Verdict, HANDSHAKE_MAX};
use coorp_core::RobotId;
use coorp_node::fuzz::Quic;
use quinn::rustls::pki_types::CertificateDer;
use quinn_proto::{Connection, ConnectionHandle, DatagramEvent, Endpoint, Event, Incoming, TimeSource};

/// The node's limits on attempts that wait for a decision, and on the bytes that follow them.
const INCOMING_MAX: usize = 256;
const INCOMING_BYTES_MAX: u64 = 1 << 20;
/// A closed connection is remembered for less than this.
const CLOSING_MAX_MS: u64 = 2_000;

/// The time since the start, for everything.
#[derive(Debug)]
pub(super) struct Time {
    began: Instant,
    ms: AtomicU64,
}

impl Time {
    pub fn start() -> Arc<Time> {
        Arc::new(Time {
            began: Instant::now(),
            ms: AtomicU64::new(0),
        })
    }

    pub fn ms(&self) -> u64 {
        self.ms.load(Ordering::Relaxed)
    }

    pub fn add_ms(&self, ms: u64) {
        self.ms.fetch_add(ms, Ordering::Relaxed);
    }

    pub fn quic(&self) -> Instant {
        self.began + Duration::from_millis(self.ms())
    }

    fn core(&self) -> coorp_core::Instant {
        coorp_core::Instant::ZERO + coorp_core::Duration::from_millis(self.ms())
    }
}

impl TimeSource for Time {
    fn now(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_millis(self.ms())
    }
}

pub(super) struct Robot {
    pub time: Arc<Time>,
    endpoint: Endpoint,
    limits: Limits,
    admission: Admission,
    member: CertificateDer<'static>,
    /// The addresses at which a member may be.
    known: BTreeSet<IpAddr>,
    held: BTreeMap<ConnectionHandle, Held>,
    /// Attempts that the door has not handled yet, with the times of their arrival.
    incoming: VecDeque<(u64, Incoming)>,
    pub is_busy: bool,
    /// The datagrams that it sends.
    pub sent: Vec<(SocketAddr, Vec<u8>)>,
    /// The addresses that it considers proved, with the times of their proofs.
    pub proved: Vec<(u64, SocketAddr)>,
}

struct Held {
    connection: Connection,
    began_ms: u64,
    place: Place,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Shaking(Ticket),
    Open(Ticket),
    /// The connection is closed, but not forgotten yet.
    Gone,
}

impl Robot {
    /// Returns a robot that knows one other by this certificate; `fixed` are the addresses of its team file.
    pub fn new(quic: &Quic, member: &CertificateDer<'static>, fixed: &[IpAddr]) -> Robot {
        let time = Time::start();
        let mut server = quic.server.clone();
        server.time_source(time.clone());
        let limits = Limits::of_team(3, 1);
        Robot {
            endpoint: Endpoint::new(
                Arc::new(quic.endpoint.clone()),
                Some(Arc::new(server)),
                true,
                Some([7; 32]),
            ),
            admission: Admission::new(limits, fixed.iter().copied()),
            limits,
            member: member.clone(),
            known: fixed.iter().copied().collect(),
            held: BTreeMap::new(),
            incoming: VecDeque::new(),
            is_busy: false,
            sent: Vec::new(),
            proved: Vec::new(),
            time,
        }
    }

    /// Handles a datagram that arrives.
    pub fn receive(&mut self, from: SocketAddr, datagram: &[u8]) {
        let (now, mut buffer) = (self.time.quic(), Vec::new());
        let event = self
            .endpoint
            .handle(now, from, None, None, BytesMut::from(datagram), &mut buffer);
        match event {
            Some(DatagramEvent::ConnectionEvent(handle, event)) => {
                self.held.get_mut(&handle).unwrap().connection.handle_event(event);
            }
            Some(DatagramEvent::NewConnection(incoming)) => self.incoming.push_back((self.time.ms(), incoming)),
            Some(DatagramEvent::Response(answer)) => {
                self.sent.push((answer.destination, buffer[..answer.size].to_vec()));
            }
            None => {}
        }
        assert!(self.incoming.len() <= INCOMING_MAX);
        assert!(self.endpoint.incoming_buffer_bytes() <= INCOMING_BYTES_MAX);
        self.go_on();
    }

    /// Does what is due.
    pub fn go_on(&mut self) {
        while !self.is_busy {
            let Some((came_ms, incoming)) = self.incoming.pop_front() else {
                break;
            };
            self.admit(came_ms, incoming);
        }
        let handles: Vec<ConnectionHandle> = self.held.keys().copied().collect();
        for handle in handles {
            self.drive(handle);
        }
        self.check();
    }

    fn admit(&mut self, came_ms: u64, incoming: Incoming) {
        let (from, proved) = (incoming.remote_address(), incoming.remote_address_validated());
        let mut buffer = Vec::new();
        match self.admission.on_attempt(from.ip(), proved, self.time.core()) {
            Verdict::Prove => {
                let answer = self.endpoint.retry(incoming, &mut buffer).unwrap();
                self.sent.push((answer.destination, buffer[..answer.size].to_vec()));
            }
            Verdict::Ignore(_) => self.endpoint.ignore(incoming),
            Verdict::Begin { ticket, instead_of } => {
                assert!(
                    proved || self.known.contains(&from.ip()),
                    "a handshake without proof from {from}"
                );
                if proved {
                    self.proved.push((came_ms, from));
                }
                if let Some(other) = instead_of {
                    self.close_ticket(other);
                }
                let now = self.time.quic();
                match self.endpoint.accept(incoming, now, &mut buffer, None) {
                    Ok((handle, connection)) => {
                        let held = Held {
                            connection,
                            began_ms: self.time.ms(),
                            place: Place::Shaking(ticket),
                        };
                        assert!(self.held.insert(handle, held).is_none());
                    }
                    Err(error) => {
                        if let Some(answer) = error.response {
                            self.sent.push((answer.destination, buffer[..answer.size].to_vec()));
                        }
                        self.admission.on_ended(ticket, self.time.core());
                    }
                }
            }
        }
    }

    fn close_ticket(&mut self, ticket: Ticket) {
        let now = self.time.quic();
        let held = self.held.values_mut().find(|held| held.place == Place::Shaking(ticket));
        let held = held.unwrap();
        held.place = Place::Gone;
        held.connection.close(now, 0u8.into(), Bytes::new());
    }

    fn drive(&mut self, handle: ConnectionHandle) {
        let (now, core) = (self.time.quic(), self.time.core());
        let held = self.held.get_mut(&handle).unwrap();
        if held.connection.poll_timeout().is_some_and(|due| due <= now) {
            held.connection.handle_timeout(now);
        }
        while let Some(event) = held.connection.poll() {
            match (event, held.place) {
                (Event::Connected, Place::Shaking(ticket)) => {
                    let identity = held.connection.crypto_session().peer_identity().unwrap();
                    let chain = identity.downcast::<Vec<CertificateDer<'static>>>().unwrap();
                    assert_eq!(chain.first(), Some(&self.member), "a stranger is let in");
                    if self.admission.on_member(ticket, RobotId(1), core) {
                        held.place = Place::Open(ticket);
                        self.known.insert(held.connection.remote_address().ip());
                    } else {
                        held.place = Place::Gone;
                        held.connection.close(now, 1u8.into(), Bytes::new());
                    }
                }
                (Event::ConnectionLost { .. }, Place::Shaking(ticket) | Place::Open(ticket)) => {
                    self.admission.on_ended(ticket, core);
                    held.place = Place::Gone;
                }
                _ => {}
            }
        }
        if let Place::Shaking(ticket) = held.place {
            if self.time.ms() >= held.began_ms + HANDSHAKE_MAX.as_nanos() / 1_000_000 {
                self.admission.on_failed(ticket, Reason::Unfinished);
                held.place = Place::Gone;
                held.connection.close(now, 0u8.into(), Bytes::new());
            }
        }
        let mut buffer = Vec::new();
        while let Some(transmit) = held.connection.poll_transmit(now, 1, &mut buffer) {
            self.sent.push((transmit.destination, std::mem::take(&mut buffer)));
        }
        while let Some(event) = held.connection.poll_endpoint_events() {
            if let Some(event) = self.endpoint.handle_event(handle, event) {
                held.connection.handle_event(event);
            }
        }
        if held.connection.is_drained() {
            assert!(held.place == Place::Gone);
            self.held.remove(&handle);
        }
    }

    fn check(&self) {
        let (strangers, members) = (self.limits.strangers, self.limits.members);
        assert!(self.admission.unfinished() <= strangers.unfinished_max + members.unfinished_max);
        assert!(self.admission.addresses() <= strangers.addresses_max + members.addresses_max);
        assert_eq!(self.endpoint.open_connections(), self.held.len());
        let gone = self.held.values().filter(|held| held.place == Place::Gone).count();
        assert_eq!(
            self.held.len() - gone,
            self.admission.unfinished() + self.admission.connections()
        );
        let begun = |rate: coorp_core::admission::Rate| rate.burst + CLOSING_MAX_MS * 1_000_000 / rate.every.as_nanos();
        assert!(gone as u64 <= begun(strangers.all) + begun(members.all));
    }
}
