//! Many programs, one robot: the robot's agent (`coorp up`) is the robot, and programs that open a [`Node`](crate::Node) of it
//! are its guests, over a Unix socket (decision 29).
//!
//! `place.rs` says where the socket is and who may connect, `line.rs` reads and writes frames ([`crate::wire::guest`]),
//! `host.rs` is the agent's end: it does for each guest what the robot's own program would do, and undoes it when the
//! guest's connection ends, however that comes. `program.rs` is the guest's end: it connects again when the agent has
//! started anew, and declares again what it had declared. `handles.rs` has what its user holds.
//!
//! A guest that does not read is passed over: its subscribers keep each robot's newest message, its gatherings the newest
//! list. Bulk never goes through the socket: a sender's is in a memfd, a receiver's in a file, and the descriptor is
//! passed. Left out: metrics, recording, protection and the pulse, which are the robot's own.

mod handles;
mod host;
mod line;
mod place;
mod program;

pub(crate) use self::handles::{Gather, Letter, Parcel, Publisher, Receiver, Subscriber, Wish};
pub(crate) use self::host::Guests;
pub(crate) use self::place::Place;
pub(crate) use self::program::{Guest, Joined};

/// What belongs to the robot itself, or to a guest of its agent.
#[derive(Debug)]
pub(crate) enum By<R, G> {
    /// This process is the robot.
    Robot(R),
    /// The robot's agent is another process.
    Guest(G),
}
