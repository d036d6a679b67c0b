//! Many programs, one robot: the robot's agent (`coorp up`) is the robot, and programs that open a [`Node`](crate::Node) of it
//! are its guests, over a Unix socket (decision 29).
//!
//! `place.rs` says where the socket is and who may connect, and `line.rs` reads and writes frames
//! ([`crate::wire::guest`]). `host.rs` is the agent's end: it does for each guest what the robot's own program would
//! do, and undoes it when the guest's connection ends for any reason. `program.rs` is the guest's end: when the agent
//! has restarted, it connects and declares everything again. `handles.rs` has the handles that the guest's program
//! holds.
//!
//! A guest that does not read holds up nobody: its subscribers keep each robot's newest message, and its gatherings the
//! newest list. Bulk never goes through the socket: a sender's bulk is in a memfd, a receiver's in a file, and the
//! descriptor is passed. Left out: metrics, recording, protection and the pulse, which are the robot's own.

mod handles;
mod host;
mod line;
mod place;
mod program;

pub(crate) use self::handles::{Gather, Letter, Parcel, Publisher, Receiver, Subscriber, Wish};
pub(crate) use self::host::Guests;
pub(crate) use self::place::Place;
pub(crate) use self::program::{Guest, Joined};

/// A part of the robot itself, or of a guest of its agent.
#[derive(Debug)]
pub(crate) enum By<R, G> {
    /// This process is the robot.
    Robot(R),
    /// The robot's agent is another process.
    Guest(G),
}
