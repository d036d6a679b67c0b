//! Decides the order in which the reactions of a program run, on one robot or on many: logical time and its
//! coordination.
//!
//! The reactor model as HPRM uses it (Kwok, sections III-B and IV). A program is a set of reactors, placed on
//! *federates*: processes or robots. Every event has a tag, and every federate handles its events in the order of their
//! tags. So the result depends on neither placement, delays nor the order of arrival.
//!
//! - [`tag`]: superdense time, and how delays change it.
//! - [`program`]: a program as the front end describes it.
//! - [`graph`]: the same program, checked, with its levels and its delays between federates.
//! - [`scheduler`]: the order in which the reactions of one federate run.
//! - [`rti`] and [`federate`]: centralised coordination, over the messages of [`protocol`].
//! - [`decentralised`]: coordination by offsets and promises. The RTI handles only the start and the last tag.
//!
//! Left out: payloads, which the driver moves, and their types, which the front end checks. Ports of nested reactors
//! are flattened by the front end.

pub mod decentralised;
pub mod federate;
pub mod graph;
pub mod program;
pub mod protocol;
pub mod rti;
pub mod scheduler;
pub mod tag;

pub use decentralised::{Decentralised, DecentralisedAction, DecentralisedConfig, NeedsOffset, PeerMessage};
pub use federate::{Federate, FederateAction, FederateConfig};
pub use graph::{ElementId, Graph, ReactionId};
pub use program::{FederateId, Program};
pub use rti::{Rti, RtiAction, RtiConfig};
pub use scheduler::{Effects, Scheduler, SchedulerConfig, Step, Value};
pub use tag::{Delay, Tag};

#[cfg(test)]
mod explore;
#[cfg(test)]
mod reference;
#[cfg(test)]
mod world;

/// Returns the epoch of the RTI with this number.
#[cfg(test)]
fn failover_epoch(round: u64) -> crate::failover::Epoch {
    crate::failover::Epoch {
        round,
        robot: crate::RobotId(0),
        incarnation: 0,
    }
}

#[cfg(test)]
mod tests;
