//! What one 802.11 channel and the stations on it do, as a discrete-event model without a clock of its own.

pub mod fq_codel;
pub mod packet;
pub mod tcp;

pub use packet::{AccessCategory, Packet, StationId};
