//! Spreads a program over robots: on each robot, its federates are local processes as usual, and a bridge stands in for
//! the rest.
//!
//! One robot has the RTI. There, the bridge holds the inbox of each federate of another robot, while that federate is
//! connected on its own robot (`hub.rs`). On every other robot, it holds the RTI's office and inbox (`spoke.rs`). So
//! neither federates nor the RTI notice the bridge, and the program's result is the same.
//!
//! - **Messages** are control: frames, in order and without loss, over a [`Link`] that guarantees neither (`pipe.rs`).
//! - **Large values** are bulk, from robot to robot, once to each robot that reads them (`payloads.rs`). A message that
//!   refers to a value waits until the value is published on the receiver's robot, and so does everything behind the
//!   message in its link.
//! - **Death.** A robot that is not heard for [`BridgeSettings::silence_max`] is gone, and its federates with it. If
//!   the RTI's robot is gone, the others release the office. A federate there takes it, and finds out which federates
//!   are missing. A message whose sender died before its value arrived says that the input stays absent.
//! - **The clock** has to be common to all robots: [`Clock::TimeOfDay`](super::Clock::TimeOfDay), synchronised.
//!
//! Left out: decentralised coordination, whose federates send to each other. Choosing another RTI's robot; a robot that
//! comes back. Checks of a robot's messages: robots of a team trust each other, and the link has to authenticate them.

mod frame;
mod hub;
mod payloads;
mod pipe;
mod spoke;

#[cfg(test)]
mod tests;

use super::coordinator::try_office;
use super::frames::RETRY;
use super::{Clock, Failure};
use crate::bell::{wait_any, Bell};
use crate::sync::lock;
use crate::{Domain, DomainOptions, Error, Receiver, SenderOptions};
use coorp_core::logical::{FederateId, Graph};
use coorp_core::{Duration, Instant, RobotId};
use frame::Frame;
use hub::Hub;
use payloads::{Payloads, NAME_PREFIX};
use pipe::{Event, Pipe};
use spoke::Spoke;
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time;

/// The interval at which it checks which federates are there, and its longest sleep.
const LOOK_PERIOD: time::Duration = time::Duration::from_millis(5);
/// The number of messages passed on before the network is checked again.
const BURST: usize = 256;
/// The maximum number of packets that wait for the bridge; more are dropped, as a network may do.
const PACKETS_MAX: usize = 1024;
/// The maximum number of bulk messages that wait for the bridge.
const BULK_MAX: usize = 8;
/// The number of times that it says that it leaves, because packets may be lost.
const GOODBYES: usize = 3;

/// The placement of a program, and the settings of its bridge.
#[derive(Clone, Debug)]
pub struct BridgeSettings {
    /// The name of the program's domain on this robot.
    pub domain: String,
    /// The robot of each federate.
    pub robots: Vec<RobotId>,
    /// This robot.
    pub here: RobotId,
    /// The robot with the RTI.
    pub hub: RobotId,
    /// The time after which a silent robot is gone.
    pub silence_max: Duration,
    /// The time to wait for the RTI's robot at the start.
    pub start_max: Duration,
    /// The storage of large values from other robots.
    pub store: SenderOptions,
}

impl BridgeSettings {
    /// Returns the usual settings for a program on these robots.
    pub fn new(domain: &str, robots: Vec<RobotId>, here: RobotId, hub: RobotId) -> Self {
        BridgeSettings {
            domain: domain.to_owned(),
            robots,
            here,
            hub,
            silence_max: Duration::from_secs(5),
            start_max: Duration::from_secs(30),
            store: super::Settings::default().store,
        }
    }
}

/// The way to the other robots.
pub trait Link {
    /// Sends a packet of slightly more than 64 KiB at most, soon or never.
    fn send(&mut self, to: RobotId, packet: &[u8]);

    /// Sends bulk, all slices in one message. Returns whether the link accepts it: if too much already waits, it does
    /// not. Accepted messages arrive in order, or [`Arrivals::fail`] reports that they do not.
    ///
    /// # Errors
    /// The reason to end the program on this robot.
    fn send_bulk(&mut self, to: RobotId, name: &str, slices: &[&[u8]]) -> Result<bool, String>;

    /// Returns the name of a robot.
    fn name(&self, robot: RobotId) -> String;
}

/// Takes what arrives over a link, from any thread.
#[derive(Clone, Debug)]
pub struct Arrivals {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    bell: Bell,
    quit: AtomicBool,
    arrived: Mutex<Arrived>,
}

#[derive(Debug, Default)]
struct Arrived {
    packets: VecDeque<(RobotId, Vec<u8>)>,
    bulk: VecDeque<(RobotId, String, Vec<u8>)>,
    failure: Option<String>,
}

impl Arrivals {
    /// The prefix of the names of a bridge's bulk messages.
    pub const BULK_PREFIX: &str = NAME_PREFIX;

    fn new() -> Result<Self, Error> {
        let bell = Bell::new()?;
        let shared = Arc::new(Shared {
            bell,
            quit: AtomicBool::new(false),
            arrived: Mutex::default(),
        });
        Ok(Arrivals { shared })
    }

    /// Takes a packet that arrived.
    pub fn packet(&self, from: RobotId, packet: Vec<u8>) {
        self.put(|arrived| {
            if arrived.packets.len() < PACKETS_MAX {
                arrived.packets.push_back((from, packet));
            }
        });
    }

    /// Returns whether there is room for bulk. The link must keep its bulk until there is.
    pub fn has_room(&self) -> bool {
        lock(&self.shared.arrived).bulk.len() < BULK_MAX
    }

    /// Takes bulk that arrived.
    pub fn bulk(&self, from: RobotId, name: String, body: Vec<u8>) {
        self.put(|arrived| arrived.bulk.push_back((from, name, body)));
    }

    /// Ends the bridge, because something sent does not arrive, or the link no longer works.
    pub fn fail(&self, why: String) {
        self.put(|arrived| {
            arrived.failure.get_or_insert(why);
        });
    }

    /// Makes [`Bridge::run`] return.
    pub fn quit(&self) {
        self.shared.quit.store(true, SeqCst);
        self.shared.bell.ring();
    }

    fn put(&self, put: impl FnOnce(&mut Arrived)) {
        put(&mut lock(&self.shared.arrived));
        self.shared.bell.ring();
    }

    fn take(&self) -> Arrived {
        self.shared.bell.silence();
        std::mem::take(&mut *lock(&self.shared.arrived))
    }
}

impl AsFd for Arrivals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.bell.as_fd()
    }
}

/// The places of the federates of a program.
#[derive(Debug)]
struct Place {
    here: RobotId,
    hub: RobotId,
    robots: Vec<RobotId>,
}

impl Place {
    fn new(graph: &Graph, settings: &BridgeSettings) -> Result<Self, Failure> {
        if graph.federates().len() != settings.robots.len() {
            return Err(Failure::Settings("each federate of the program needs a robot"));
        }
        Ok(Place {
            here: settings.here,
            hub: settings.hub,
            robots: settings.robots.clone(),
        })
    }

    /// Returns the robot of a federate; every federate has one.
    fn of(&self, federate: FederateId) -> RobotId {
        self.robots.get(usize::from(federate.0)).copied().unwrap_or(self.hub)
    }
}

#[derive(Debug)]
enum Side {
    Hub(Hub),
    Spoke(Spoke),
}

/// Connects the federates of one robot to those of the others.
#[derive(Debug)]
pub struct Bridge {
    settings: BridgeSettings,
    arrivals: Arrivals,
    payloads: Payloads,
    side: Side,
    /// The pipes to the robots with which messages are exchanged.
    pipes: BTreeMap<RobotId, Pipe>,
    session: u64,
    began: Instant,
    /// The office, released last, so that its next holder finds nothing of this bridge.
    _office: Option<OwnedFd>,
}

impl Bridge {
    /// Joins the program's domain. Must be called before any federate starts here, because a federate would take the
    /// RTI's office.
    ///
    /// # Errors
    /// If the settings do not fit the program, the office is taken, or the domain fails.
    pub fn open(graph: &Graph, settings: BridgeSettings) -> Result<Self, Failure> {
        let place = Place::new(graph, &settings)?;
        let office = if place.here == place.hub {
            None
        } else {
            let office = try_office(&settings.domain)?;
            Some(office.ok_or(Failure::Settings("start the bridge before the federates of this robot"))?)
        };
        let domain = Domain::join(&settings.domain, DomainOptions::default())?;
        let mut payloads = Payloads::open(graph, &place, &domain, settings.store)?;
        let session = Clock::TimeOfDay.now().as_nanos();
        let began = now();
        let (side, peers) = if office.is_none() {
            payloads.run = Some(session);
            let mut peers = place.robots.clone();
            peers.retain(|robot| *robot != place.here);
            (Side::Hub(Hub::open(graph, &place, domain)?), peers)
        } else {
            (Side::Spoke(Spoke::open(graph, &place, &domain)?), vec![place.hub])
        };
        let pipe = |robot| (robot, Pipe::new(session, settings.silence_max, began));
        Ok(Bridge {
            pipes: peers.into_iter().map(pipe).collect(),
            arrivals: Arrivals::new()?,
            payloads,
            side,
            session,
            began,
            settings,
            _office: office,
        })
    }

    /// Returns the object to which the link passes what arrives.
    pub fn arrivals(&self) -> Arrivals {
        self.arrivals.clone()
    }

    /// Passes everything on until the federates that it connects have joined and left, or until told to quit.
    ///
    /// # Errors
    /// If the RTI's robot cannot be reached, the link fails, or the domain does.
    pub fn run(mut self, link: &mut impl Link) -> Result<(), Failure> {
        let outcome = self.pass(link);
        for (robot, pipe) in &mut self.pipes {
            let goodbye = pipe.end();
            for _ in 0..GOODBYES {
                link.send(*robot, &goodbye);
            }
        }
        outcome
    }

    fn pass(&mut self, link: &mut impl Link) -> Result<(), Failure> {
        while !self.arrivals.shared.quit.load(SeqCst) {
            self.take_arrivals(link)?;
            self.payloads.publish()?;
            self.payloads.send(link)?;
            self.act()?;
            self.send_packets(link);
            if self.take_events(link)? {
                continue;
            }
            let is_over = match &self.side {
                Side::Hub(hub) => hub.is_over(),
                Side::Spoke(spoke) => spoke.is_over(),
            };
            if is_over && self.pipes.values().all(Pipe::is_flushed) {
                return Ok(());
            }
            self.wait()?;
        }
        Ok(())
    }

    fn take_arrivals(&mut self, link: &impl Link) -> Result<(), Failure> {
        let arrived = self.arrivals.take();
        if let Some(why) = arrived.failure {
            return Err(Failure::Bridge(why));
        }
        for (from, name, body) in arrived.bulk {
            self.payloads.on_bulk(from, &name, body);
        }
        for (from, packet) in arrived.packets {
            if let Some(pipe) = self.pipes.get_mut(&from) {
                pipe.on_packet(&packet, now());
            }
        }
        self.take_events(link).map(drop)
    }

    /// Handles the pipes' events. Returns whether there were any.
    fn take_events(&mut self, link: &impl Link) -> Result<bool, Failure> {
        let mut has_events = false;
        for (robot, pipe) in &mut self.pipes {
            while let Some(event) = pipe.poll() {
                has_events = true;
                match (event, &mut self.side) {
                    (Event::Up, Side::Hub(_)) => pipe.send(&Frame::Run(self.session).encode()?),
                    (Event::Up, Side::Spoke(_)) => {}
                    (Event::Frame(bytes), side) => match (Frame::decode(&bytes), side) {
                        (Some(frame), Side::Hub(hub)) => hub.on_frame(*robot, frame),
                        (Some(frame), Side::Spoke(spoke)) => spoke.on_frame(frame, &mut self.payloads),
                        // All bridges have the same version.
                        (None, _) => return Err(Failure::Fault("a message that no bridge writes".to_owned())),
                    },
                    (Event::Down, Side::Hub(hub)) => {
                        hub.on_down(*robot, &self.payloads)?;
                        let session = Clock::TimeOfDay.now().as_nanos();
                        *pipe = Pipe::new(session, self.settings.silence_max, now());
                    }
                    (Event::Down, Side::Spoke(spoke)) if spoke.is_over() => {}
                    (Event::Down, Side::Spoke(_)) => return Err(Failure::Unreachable(link.name(*robot))),
                }
            }
        }
        if let Side::Spoke(_) = self.side {
            let is_late = now().since(self.began) >= self.settings.start_max;
            if is_late && self.payloads.run.is_none() {
                return Err(Failure::Unreachable(link.name(self.settings.hub)));
            }
        }
        Ok(has_events)
    }

    fn act(&mut self) -> Result<(), Failure> {
        match &mut self.side {
            Side::Hub(hub) => {
                hub.act(&self.payloads)?;
                hub.read(&mut self.pipes)
            }
            Side::Spoke(spoke) => {
                let pipe = self.pipes.get_mut(&self.settings.hub);
                pipe.map_or(Ok(()), |pipe| spoke.act(pipe, &self.payloads))
            }
        }
    }

    fn send_packets(&mut self, link: &mut impl Link) {
        for (robot, pipe) in &mut self.pipes {
            while let Some(packet) = pipe.poll_packet(now()) {
                link.send(*robot, &packet);
            }
        }
    }

    /// Sleeps until something comes or is due.
    fn wait(&mut self) -> Result<(), Failure> {
        let is_waiting = self.payloads.is_waiting()
            || match &self.side {
                Side::Hub(hub) => hub.is_waiting(),
                Side::Spoke(spoke) => spoke.is_waiting(),
            };
        let longest = if is_waiting { RETRY } else { LOOK_PERIOD };
        let deadlines = self.pipes.values().filter_map(Pipe::next_deadline);
        let due = deadlines.min().map(|at| at.since(now()).as_nanos());
        let longest = due.map_or(longest, |due| longest.min(time::Duration::from_nanos(due)));
        let until = time::Instant::now() + longest;
        let mut side: Vec<&mut Receiver> = match &mut self.side {
            Side::Hub(hub) => hub.receivers().collect(),
            Side::Spoke(spoke) => spoke.receivers().collect(),
        };
        side.extend(self.payloads.receivers());
        let mut is_ready = false;
        for receiver in &mut side {
            is_ready |= receiver.arm();
        }
        // Messages that a full pipe does not take would wake it repeatedly.
        if is_ready && self.pipes.values().all(Pipe::has_room) {
            return Ok(());
        }
        let watched: Vec<_> = side
            .iter()
            .map(|receiver| receiver.as_fd())
            .chain([self.arrivals.as_fd()])
            .collect();
        wait_any(&watched, Some(until)).map_err(|source| Error::System {
            what: "wait for messages",
            source,
        })?;
        Ok(())
    }
}

/// Returns the time on the bridge's own clock.
fn now() -> Instant {
    Clock::Machine.now()
}
