//! The door of all of a robot's QUIC endpoints. `core::admission` decides which attempts are taken up, and this module
//! carries that out. Other attempts get no answer, so that a stranger learns nothing, and cannot make the robot answer
//! a third party.
//!
//! Left out: what QUIC answers before it passes on an attempt (unknown versions, foreign tokens, resets of unknown
//! connections). Each answer is one packet, no longer than the packet that it answers.

use std::collections::BTreeMap;
use std::future::IntoFuture;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use coorp_core::admission::{Admission, Limits, Reason, Ticket, Verdict, HANDSHAKE_MAX};
use coorp_core::{Instant, RobotId};
use quinn::{Connection, ConnectionError, Incoming};
use tokio::sync::Notify;

use crate::clock::Clock;
use crate::ground::Ground;
use crate::quic::{close_revoked, is_over_certificates};
use crate::revoked::Revoked;
use crate::status;
use crate::sync::lock;

/// The state of all endpoints together.
#[derive(Debug)]
pub(crate) struct Door {
    clock: Clock,
    revoked: Arc<Revoked>,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    admission: Admission,
    /// Notified when a handshake has to make room for another.
    handshakes: BTreeMap<Ticket, Arc<Notify>>,
    connections: BTreeMap<Ticket, Connection>,
}

impl Door {
    /// Creates the door; `addresses` are the addresses of the team's robots.
    pub fn new(
        ground: &Arc<dyn Ground>,
        limits: Limits,
        addresses: impl IntoIterator<Item = IpAddr>,
        revoked: Arc<Revoked>,
    ) -> Arc<Door> {
        let inner = Inner {
            admission: Admission::new(limits, addresses),
            handshakes: BTreeMap::new(),
            connections: BTreeMap::new(),
        };
        Arc::new(Door {
            clock: Clock::start(ground),
            revoked,
            inner: Mutex::new(inner),
        })
    }

    /// Takes up an attempt, or demands a proof of its address, or leaves it unanswered.
    pub fn admit(self: &Arc<Self>, incoming: Incoming) -> Option<(Incoming, Place)> {
        let (from, proved) = (incoming.remote_address(), incoming.remote_address_validated());
        let now = self.now();
        let mut inner = lock(&self.inner);
        match inner.admission.on_attempt(from.ip(), proved, now) {
            Verdict::Prove => {
                drop(inner);
                // The attempt comes again, from an address that is proved then.
                let _ = incoming.retry();
                None
            }
            Verdict::Ignore(reason) => {
                drop(inner);
                tracing::trace!("ignored an attempt to connect from {from}: {reason}");
                incoming.ignore();
                None
            }
            Verdict::Begin { ticket, instead_of } => {
                if let Some(other) = instead_of.and_then(|other| inner.handshakes.remove(&other)) {
                    other.notify_one();
                }
                let replaced = Arc::new(Notify::new());
                inner.handshakes.insert(ticket, replaced.clone());
                drop(inner);
                let place = Place {
                    door: self.clone(),
                    ticket,
                    replaced,
                };
                Some((incoming, place))
            }
        }
    }

    /// Ends connections whose certificates have been revoked.
    pub fn close_revoked(&self) {
        let connections: Vec<Connection> = lock(&self.inner).connections.values().cloned().collect();
        let closed = connections.iter();
        closed.for_each(|connection| close_revoked(&self.revoked, connection));
    }

    pub fn status(&self) -> status::Door {
        let inner = lock(&self.inner);
        let refusals = inner.admission.refusals();
        status::Door {
            unfinished: inner.admission.unfinished() as u64,
            connections: inner.admission.connections() as u64,
            addresses: inner.admission.addresses() as u64,
            totals: Reason::ALL.map(|reason| (reason, refusals.total(reason))).to_vec(),
            refused: refusals.by_address(),
        }
    }

    fn now(&self) -> Instant {
        Instant::ZERO + self.clock.elapsed()
    }
}

/// The place of an attempt that was taken up, until its connection ends.
#[derive(Debug)]
pub(crate) struct Place {
    door: Arc<Door>,
    ticket: Ticket,
    replaced: Arc<Notify>,
}

impl Place {
    /// Waits for the handshake, unless it takes too long or has to make room. Counts a failure; without an error, the
    /// other end did not continue.
    pub async fn shake_hands(
        &self,
        connecting: impl IntoFuture<Output = Result<Connection, ConnectionError>>,
    ) -> Result<Connection, Option<ConnectionError>> {
        let deadline = Duration::from_nanos(HANDSHAKE_MAX.as_nanos());
        let shaken = tokio::select! {
            biased;
            shaken = tokio::time::timeout(deadline, connecting.into_future()) => shaken,
            () = self.replaced.notified() => return Err(None),
        };
        let error = match shaken {
            Ok(Ok(connection)) => return Ok(connection),
            Ok(Err(error)) => Some(error),
            Err(_) => None,
        };
        self.fail(match &error {
            Some(error) if is_over_certificates(error) => Reason::NoCertificate,
            _ => Reason::Unfinished,
        });
        Err(error)
    }

    /// Registers the connection of a robot that has shown its certificate. Returns whether the connection may stay.
    pub fn is_robots(&self, robot: RobotId, connection: &Connection) -> bool {
        let now = self.door.now();
        self.open(connection, |admission| admission.on_member(self.ticket, robot, now))
    }

    /// Registers the connection of an operator who has shown the certificate. Returns whether the connection may stay.
    pub fn is_operators(&self, connection: &Connection) -> bool {
        self.open(connection, |admission| admission.on_operator(self.ticket))
    }

    fn open(&self, connection: &Connection, admit: impl FnOnce(&mut Admission) -> bool) -> bool {
        let mut inner = lock(&self.door.inner);
        inner.handshakes.remove(&self.ticket);
        let stays = admit(&mut inner.admission);
        if stays {
            inner.connections.insert(self.ticket, connection.clone());
            drop(inner);
            // The certificate may have been revoked since it was shown.
            close_revoked(&self.door.revoked, connection);
        }
        stays
    }

    /// Records that the other end has shown no valid certificate.
    pub fn fail(&self, reason: Reason) {
        let mut inner = lock(&self.door.inner);
        inner.handshakes.remove(&self.ticket);
        inner.admission.on_failed(self.ticket, reason);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let now = self.door.now();
        let mut inner = lock(&self.door.inner);
        inner.handshakes.remove(&self.ticket);
        inner.connections.remove(&self.ticket);
        inner.admission.on_ended(self.ticket, now);
    }
}
