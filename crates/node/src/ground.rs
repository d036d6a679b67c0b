//! The ground below a robot: time, randomness, threads, sockets and the disk. A node gets them from one trait, so that it runs
//! unchanged on two grounds: on the machine ([`Linux`]) and, in virtual time, on a simulated one (`trial.rs`), where a seed
//! decides what fails and when.
//!
//! Left out, because no other robot depends on them and no trial runs them: the emulator's reports, metrics over HTTP,
//! recordings for people, and the programs `coorp watch` and `coorp keys`. A node reads its keys from the machine's own disk.

mod disk;
mod linux;
mod threads;
mod worker;

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration as StdDuration;

use coorp_core::{Duration, RobotId};
use coorp_team::{Robot, Team};
use quinn::AsyncUdpSocket;

pub(crate) use self::disk::{folder_of, replace, replace_for_now, About, Disk, Opened};
pub(crate) use self::linux::{copy, socket, Linux};
pub(crate) use self::threads::{Spawn, Task, Threads};
pub(crate) use self::worker::{watched, Signal, Work, Worker};
use crate::discovery::Place;
use crate::outqueue::{Emulated, Handed, OutQueue};
use crate::shared_robot::SharedRobot;
use crate::Error;

/// A machine, real or simulated.
pub(crate) trait Ground: fmt::Debug + Send + Sync {
    /// Returns the time since some moment before the robot's start, which runs on while the machine sleeps.
    fn now(&self) -> Duration;
    /// Returns the time since 1970 by the machine's calendar, which may jump.
    fn unix(&self) -> StdDuration;
    /// Returns an unpredictable number.
    fn random(&self) -> u64;
    /// Returns the seed of QUIC's randomness, if runs must be repeatable.
    fn quic_seed(&self) -> Option<[u8; 32]>;
    /// Returns the disk of the state folder.
    fn disk(&self) -> Arc<dyn Disk>;
    /// Starts threads for tasks; each begins with `first`.
    fn threads(&self, count: usize, name: &str, first: fn()) -> io::Result<Threads>;
    /// Starts a worker thread, which begins with `first`.
    fn worker(&self, name: &str, first: fn(), work: Work) -> io::Result<Worker>;
    /// Binds a UDP socket to an address, and to an interface if one is given.
    fn bind(&self, at: SocketAddr, interface: Option<&String>) -> io::Result<Box<dyn Bound>>;
    /// Returns the MTU, in bytes, of the interface on the way to an address from sockets with this binding; `None` if
    /// there is no route. Sends nothing.
    fn mtu(&self, to: SocketAddr, from: (IpAddr, Option<&String>)) -> Option<u16>;
    /// Checks whether the interfaces and addresses that a robot uses for its paths exist.
    fn check_here(&self, robot: &Robot, paths: usize) -> Result<(), Error>;
    /// Returns the places at which robots without addresses are looked for.
    fn places(&self, team: &Team, me: Option<RobotId>, paths: usize) -> Vec<Place>;
}

/// A UDP socket that is bound, for one use. The methods must be called where tasks may be started.
pub(crate) trait Bound: Send {
    /// Returns whether it has room for many long datagrams.
    fn is_roomy(&self) -> bool;
    /// Returns the socket as an asynchronous one, otherwise unchanged.
    fn plain(self: Box<Self>) -> io::Result<Arc<dyn AsyncUdpSocket>>;
    /// Returns the socket for control.
    fn marked(self: Box<Self>, robot: &Arc<SharedRobot>) -> io::Result<Marked>;
    /// Returns the socket for bulk, below the gate.
    fn below_gate(self: Box<Self>) -> io::Result<Below>;
}

/// A socket whose datagrams go to AC_VO, and the count of those that have left.
pub(crate) struct Marked {
    pub io: Arc<dyn AsyncUdpSocket>,
    pub handed: Arc<Handed>,
}

/// A socket below the gate, and the means to see what has left it.
pub(crate) struct Below {
    pub io: Arc<dyn AsyncUdpSocket>,
    pub queue: OutQueue,
    /// The emulator's reports, if the emulator frees frames.
    pub emulated: Vec<Emulated>,
    /// The kernel's socket, to request its reports.
    pub descriptor: Option<OwnedFd>,
}
