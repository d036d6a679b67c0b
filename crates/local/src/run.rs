//! Runs one federate of a program: its reactions, its clock, and its links to the others (Kwok, sections III-B and IV-A).
//!
//! [`coorp_core::logical`] decides the order of events. Here are the clock, the links, and the code of the reactions,
//! which the front end supplies as [`Reactions`].
//!
//! - A program of a single federate needs no domain and no RTI.
//! - Otherwise each federate has an inbox, a channel of the [`Domain`](crate::Domain); so has the RTI. They carry the
//!   messages of [`coorp_core::logical::protocol`], with values of up to [`INLINE_BYTES_MAX`] in them: the eager path of
//!   section IV-C3.
//! - A larger value goes over the channel of its output, into shared memory, before the message that refers to it
//!   leaves. So the value is there when the reference arrives, and it outlives its sender. Each value is written once,
//!   whatever the number of receivers.
//! - Under decentralised coordination, federates send these messages to each other directly ([`Coordination`]).
//! - **The RTI** is [`coordinate`], called by a separate process and by every federate's process on a thread. The
//!   process that binds its address coordinates; the kernel allows only one, and the others wait for its end. The
//!   takeover takes only as long as the kernel needs to notice.
//!
//! Begin at `driver.rs`; `coordinator.rs` is the RTI's driver, `frames.rs` has the links, `carried.rs` the values, and
//! `outlets.rs` the channels of large values. `trace.rs` records events with their times, and `journal.rs` records the
//! effects of reactions, for comparison and replay.
//!
//! With several robots, `bridge.rs` stands in on each robot for the parts on the others.
//!
//! Left out: federates that come back, and running reactions of one level in parallel, which [`Reactions::run`] may do.

mod bridge;
mod carried;
mod clock;
mod coordinator;
mod driver;
mod failure;
mod frames;
mod handle;
mod journal;
mod outlets;
mod report;
mod trace;

#[cfg(test)]
mod tests;

pub use bridge::{Arrivals as BridgeArrivals, Bridge, BridgeSettings, Link};
pub use carried::{Received, INLINE_BYTES_MAX};
pub use clock::Clock;
pub use coordinator::{coordinate, CoordinatorSettings, Standby};
pub use driver::{run, Coordination, Settings};
pub use failure::Failure;
pub use handle::Handle;
pub use journal::{Bytes, Digest, Journal, Record, Writer};
pub use report::{Arrivals, Report, Spent, Violations};
pub use trace::{Chrome, Event, Trace};

use crate::Sender;
use coorp_core::logical::scheduler::{Effects, Ready};
use coorp_core::logical::{ElementId, ReactionId, Tag};
use coorp_core::{Duration, Instant};

/// The tag at which reactions run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// The tag.
    pub tag: Tag,
    /// How far the clock is ahead of the tag.
    pub lag: Duration,
}

/// A value that a reaction reads.
#[derive(Debug)]
pub enum Input<'a, T> {
    /// An object of this process.
    Here(&'a T),
    /// A value from another federate.
    From(&'a Received),
    /// Present, without a value: a timer, or an action that was scheduled without one.
    Present,
}

/// A value that came after its tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The input.
    pub input: ElementId,
    /// The intended tag.
    pub meant: Tag,
    /// The tag that had been reached.
    pub reached: Tag,
    /// The tag at which reactions that handle late values see it; `None` if it is not used.
    pub handled: Option<Tag>,
}

/// A physical action, an input of a physical connection, or a late value, that was present at a tag, with its value.
pub type Recorded<T> = (Tag, ElementId, Option<T>);

/// The run of a reaction.
#[derive(Debug)]
pub struct Ran<T> {
    /// The effects.
    pub effects: Effects<T>,
    /// The time at which it began, on the program's clock.
    pub began: Instant,
    /// The time at which it ended.
    pub ended: Instant,
}

/// The inputs that the reactions of a level can read.
pub trait Inputs<T> {
    /// Returns the port or action, if it is present.
    fn get(&self, element: ElementId) -> Option<Input<'_, T>>;

    /// Returns the intended tag of a late value that is present. `None` in a replay.
    fn meant(&self, element: ElementId) -> Option<Tag>;
}

/// A value in the form in which it leaves the process.
#[derive(Debug)]
pub enum Encoded {
    /// Small enough for the message: a header, and parts.
    Inline(Vec<u8>, Vec<Vec<u8>>),
    /// In memory that the output's sender loaned, with [`HEADER_RESERVED`] bytes left free at the start of the header.
    Loan(crate::Loan),
}

/// The first bytes of the header of a payload, which belong to the runtime.
pub const HEADER_RESERVED: usize = 8;

/// The code of a federate's reactions.
pub trait Reactions {
    /// A value within the process; a handle that is cheap to clone.
    type Object: Clone;

    /// Runs reactions that are independent of each other, and returns their runs, in order.
    ///
    /// # Errors
    /// The reason to end the program.
    fn run(
        &mut self,
        moment: Moment,
        ready: &[Ready],
        inputs: &dyn Inputs<Self::Object>,
    ) -> Result<Vec<Ran<Self::Object>>, String>;

    /// Encodes a value that this reaction has set, to leave the process over the sender of its output.
    ///
    /// # Errors
    /// The reason to end the program.
    fn encode(
        &mut self,
        reaction: ReactionId,
        output: ElementId,
        object: &Self::Object,
        sender: &mut Sender,
    ) -> Result<Encoded, String>;

    /// Returns whether the program has to end. Called at least every 50 ms while it waits.
    fn is_interrupted(&mut self) -> bool {
        false
    }

    /// Returns, in a replay, the next input from the physical world, in order of tags.
    fn next_recorded(&mut self) -> Option<Recorded<Self::Object>> {
        None
    }

    /// Called if a value came after its tag: the offset is too short. Only under decentralised coordination.
    fn on_violation(&mut self, violation: Violation) {
        let _ = violation;
    }

    /// Called if another federate died.
    fn on_gone(&mut self, federate: &str) {
        let _ = federate;
    }

    /// Called when the program has started, at this time of its clock.
    fn on_started(&mut self, at: Instant) {
        let _ = at;
    }

    /// Called if the program did not run to its end, with the counts until then.
    fn on_failed(&mut self, report: Report) {
        let _ = report;
    }
}
