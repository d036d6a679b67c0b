//! The receiving end.

use super::{Ack, Config};
use coorp_core::Instant;

/// The receiving end of a connection.
#[derive(Clone, Debug)]
pub struct Receiver {
    next: u64,
    delivered: u64,
}

impl Receiver {
    /// A connection on which nothing has arrived yet.
    pub fn new(_config: Config) -> Self {
        Receiver { next: 0, delivered: 0 }
    }
    /// A segment arrived. What comes back is to be sent at once.
    pub fn on_segment(&mut self, number: u64, bytes: u16, _now: Instant) -> Option<Ack> {
        if number == self.next {
            self.next += 1;
            self.delivered += u64::from(bytes);
        }
        Some(Ack {
            next: self.next,
            ..Ack::default()
        })
    }
    /// When to call [`Receiver::on_deadline`].
    pub fn next_deadline(&self) -> Option<Instant> {
        None
    }
    /// The time asked for has come. What comes back is to be sent at once.
    pub fn on_deadline(&mut self, _now: Instant) -> Option<Ack> {
        None
    }
    /// Bytes handed to the application, in order.
    pub fn delivered_bytes(&self) -> u64 {
        self.delivered
    }
}
