//! Moves payloads of any size between the processes of one robot, without a copy (Kwok, section IV-C).
//!
//! ```
//! use coorp_local::{Domain, DomainOptions, ReceiverOptions, SenderOptions};
//! use std::time::Duration;
//!
//! # fn main() -> Result<(), coorp_local::Error> {
//! let domain = Domain::join("robot-1", DomainOptions::default())?;
//! let mut frames = domain.receiver("camera/left", ReceiverOptions::default())?; // in any process
//! let mut camera = domain.sender("camera/left", SenderOptions::default())?;
//!
//! let mut loan = camera.loan(3 * 640 * 480)?;
//! loan.part_mut(0).fill(127); // written where readers read it
//! let readers = camera.send(loan)?;
//! assert_eq!(readers, 1);
//!
//! let frame = frames.recv(Some(Duration::from_secs(1)))?.expect("it was sent");
//! assert_eq!(frame.part(0).map(<[u8]>::len), Some(921_600));
//! # Ok(())
//! # }
//! ```
//!
//! A **domain** is the processes of one application, of one user, in one network namespace of one machine. They send over
//! named **channels**: every receiver of a channel gets every payload of every sender. Processes may come and go at any
//! time; a channel has no history.
//!
//! A **payload** is a header and parts, in its sender's memory. Readers see it read-only. The sender may write there
//! again when the last reader has dropped the payload, or was killed. All memory is in memfds and all sockets are
//! abstract: there is no file, so nothing remains of killed processes, not even of the last one
//! (`docs/decisions/0019-memory-without-files.md`).
//!
//! [`run`] builds on this: programs of reactors in logical time, whose values travel this way.
//!
//! Begin at `domain.rs`. `sender.rs` and `receiver.rs` are the handles of users. `outbox.rs` decides which memory a
//! sender may reuse, `ring.rs` is the memory that a sender and a receiver share, and `layout.rs` is the layout of a
//! payload. `attendant.rs` connects processes and notices which are gone; `host.rs` decides which endpoints are
//! introduced to each other. All unsafe code is in `memory.rs`.
//!
//! Left out: other systems than Linux 5.3; payloads between users, or between containers that do not share a network
//! namespace; history for receivers that come late.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod attendant;
mod available;
mod bell;
mod domain;
mod error;
mod host;
mod hosting;
mod layout;
mod memory;
mod name;
mod outbox;
mod ranges;
mod receiver;
mod ring;
pub mod run;
mod sender;
mod socket;
mod store;
mod sync;
mod wire;

#[cfg(test)]
mod tests;

pub use domain::{Domain, DomainOptions};
pub use error::{Error, Shortage};
pub use host::{ENDPOINTS_MAX, MEMBERS_MAX, PEERS_MAX};
pub use layout::{HEADER_BYTES_MAX, PARTS_MAX};
pub use name::NAME_BYTES_MAX;
pub use receiver::{wait_any, Payload, Receiver, ReceiverOptions};
pub use ring::{HELD_MESSAGES_MAX, QUEUE_MESSAGES_MAX};
pub use sender::{Kept, Loan, Sender, SenderOptions, Unsent, WhenFull};
pub use store::EAGER_BYTES_MAX;
pub use wire::EndpointId;
