//! Keeps the connections that bulk is sent over, and knows whose turn it is.
//!
//! The robot decides (`core::robot`, decision 15). A connection without the turn makes no packets, as without a permit.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use coorp_core::RobotId;
use quinn::Connection;

use super::transport;
use crate::quic::close_revoked;
use crate::revoked::Revoked;
use crate::sync::lock;

/// One connection's turn.
#[derive(Debug)]
pub(crate) struct Turn(AtomicBool);

impl Turn {
    pub fn new(has: bool) -> Self {
        Turn(AtomicBool::new(has))
    }

    /// Returns whether it may send now.
    pub fn has(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// The connections over one path, by receiver.
#[derive(Debug, Default)]
pub(super) struct Receivers(Mutex<BTreeMap<RobotId, (Arc<Turn>, Connection)>>);

impl Receivers {
    /// Adds a connection that is open.
    pub fn add(&self, to: RobotId, turn: &Arc<Turn>, connection: &Connection) {
        lock(&self.0).insert(to, (turn.clone(), connection.clone()));
    }

    /// Removes a connection that is closed.
    pub fn remove(&self, to: RobotId, turn: &Arc<Turn>) {
        let mut receivers = lock(&self.0);
        if receivers.get(&to).is_some_and(|(other, _)| Arc::ptr_eq(other, turn)) {
            receivers.remove(&to);
        }
    }

    /// Ends connections to robots whose certificates have been revoked.
    pub fn close_revoked(&self, revoked: &Revoked) {
        for (_, connection) in lock(&self.0).values() {
            close_revoked(revoked, connection);
        }
    }

    /// Gives the turn to one receiver and takes it from all others.
    pub fn set_turn(&self, to: RobotId) {
        let receivers = lock(&self.0);
        for (receiver, (turn, _)) in receivers.iter() {
            turn.0.store(*receiver == to, Ordering::Release);
        }
        drop(receivers);
        self.wake();
    }

    /// Makes the connections that may send check again. A connection that made no packets waits for nothing; setting
    /// its window again makes it check.
    pub fn wake(&self) {
        let receivers = lock(&self.0);
        let connections = receivers.values().filter(|(turn, _)| turn.has());
        connections.for_each(|(_, connection)| transport::wake(connection));
    }
}
