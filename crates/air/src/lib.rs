//! One 802.11 channel with its stations, as a discrete-event model without its own clock.
//!
//! The same [`Air`] is driven by virtual time in a simulation and by the wall clock in an emulation. The caller passes
//! packets with their times ([`Air::send`]). The air returns when to call it again ([`Air::next_deadline`]), and
//! reports to its [`Host`] what the driver and the receivers would see.
//!
//! Layers, from the bottom: [`phy`] (durations), [`link`] (rates and losses), [`channel`] (who transmits when: EDCA,
//! TXOPs, RTS/CTS, acknowledgements), the WNIC with its queues, [`fq_codel`] (the host queue), [`tcp`].
//!
//! ```
//! use coorp_air::phy::{Phy, Rate, Standard};
//! use coorp_core::Duration;
//!
//! let phy = Phy { standard: Standard::Ac, width_mhz: 40, guard_interval_ns: 800, control_rate_mbps: 24 };
//! let timing = phy.timing(Rate { mcs: 7, streams: 2 });
//! // Full frames, one by one and in an aggregate: why bulk wants long transmissions.
//! let (alone, together) = (timing.ppdu(1_500) * 16, timing.ppdu(16 * 1_500));
//! assert!(together < alone && together > Duration::from_micros(700));
//! ```
//!
//! Not modelled: hidden stations (all stations hear each other), capture (frames that collide are lost), 160 MHz,
//! MU-MIMO and OFDMA, power save, beacons and management frames. `docs/fidelity.md` has the effect of the first two.

pub mod channel;
pub mod config;
pub mod fq_codel;
pub mod link;
pub mod packet;
pub mod phy;
pub mod tcp;
mod wnic;

pub use channel::{Air, Host, MacCounters, Outcome, Transmission};
pub use config::{Config, Edca, Wnic};
pub use packet::{AccessCategory, Packet, StationId};
pub use wnic::Load;
