//! Carries messages between federates and the RTI, in order and without loss, over the channels of a domain.

use crate::{Domain, Error, Payload, Receiver, ReceiverOptions, Sender, SenderOptions, WhenFull};
use serde::{de::DeserializeOwned, Serialize};
use std::collections::VecDeque;
use std::time::Duration;

/// The maximum number of messages that wait for a slow receiver, besides those in its queue.
const BACKLOG_MAX: usize = 65_536;
/// The number of messages that a receiver can be behind before they wait here.
pub(super) const QUEUE_MESSAGES: usize = 1024;
/// The time until the next attempt while messages wait.
pub(super) const RETRY: Duration = Duration::from_millis(1);

/// The sending end of a link. Never blocks: messages that do not fit wait here. Only [`Outbound::flush`] wakes the
/// receiver, so that messages that belong together arrive together.
#[derive(Debug)]
pub(super) struct Outbound {
    sender: Sender,
    backlog: VecDeque<Vec<u8>>,
    is_quiet: bool,
}

impl Outbound {
    pub fn open(domain: &Domain, channel: &str) -> Result<Self, Error> {
        let options = SenderOptions {
            store_bytes: 256 << 20,
            idle_bytes: 1 << 20,
            queue_messages: QUEUE_MESSAGES,
            held_messages: 16,
            when_full: WhenFull::Fail,
        };
        Ok(Outbound {
            sender: domain.sender(channel, options)?,
            backlog: VecDeque::new(),
            is_quiet: false,
        })
    }

    /// Returns whether there is a receiver at the other end.
    pub fn is_connected(&self) -> bool {
        self.sender.readers() > 0
    }

    /// Returns the number of messages that wait here.
    pub fn waiting(&self) -> usize {
        self.backlog.len()
    }

    /// Sends a message, or drops it if there is no receiver at the other end.
    ///
    /// # Errors
    /// If too many messages already wait, or the system refuses.
    pub fn send(&mut self, message: &impl Serialize) -> Result<(), Error> {
        self.send_bytes(encode(message)?)
    }

    /// Sends a message that is already encoded.
    ///
    /// # Errors
    /// As for [`Outbound::send`].
    pub fn send_bytes(&mut self, bytes: Vec<u8>) -> Result<(), Error> {
        if !self.backlog.is_empty() {
            if self.backlog.len() >= BACKLOG_MAX {
                return Err(Error::TooMany {
                    what: "messages for a federate that does not read them",
                    limit: BACKLOG_MAX,
                });
            }
            self.backlog.push_back(bytes);
            return Ok(());
        }
        if !self.put(&bytes)? {
            self.backlog.push_back(bytes);
        }
        Ok(())
    }

    /// Sends waiting messages, as far as they fit, and wakes the receiver. Returns whether none wait any more.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn flush(&mut self) -> Result<bool, Error> {
        while let Some(bytes) = self.backlog.pop_front() {
            if !self.put(&bytes)? {
                self.backlog.push_front(bytes);
                break;
            }
        }
        if std::mem::take(&mut self.is_quiet) {
            self.sender.wake();
        }
        Ok(self.backlog.is_empty())
    }

    fn put(&mut self, bytes: &[u8]) -> Result<bool, Error> {
        self.is_quiet = true;
        match self.sender.queue_copy(bytes) {
            Ok(_) => Ok(true),
            Err(Error::Full { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

pub(super) fn inbox(domain: &Domain, channel: &str) -> Result<Receiver, Error> {
    domain.receiver(channel, ReceiverOptions::default())
}

pub(super) fn decode<M: DeserializeOwned>(payload: &Payload) -> Option<M> {
    decode_bytes(payload.part(0)?)
}

pub(super) fn decode_bytes<M: DeserializeOwned>(bytes: &[u8]) -> Option<M> {
    postcard::from_bytes(bytes).ok()
}

pub(super) fn encode(message: &impl Serialize) -> Result<Vec<u8>, Error> {
    postcard::to_allocvec(message).map_err(|error| Error::System {
        what: "encode a message",
        source: std::io::Error::other(error.to_string()),
    })
}
