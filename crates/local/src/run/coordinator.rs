//! Drives the RTI of one program, for as long as this process coordinates.
//!
//! An abstract Unix address is the office: the process that binds it coordinates, until it ends or returns. The others
//! hold a connection to the address, which nobody accepts and which the kernel closes with the address. Each RTI's
//! epoch begins with the program's time at which it took the office, so each epoch is greater than all earlier ones.

use super::carried::Carried;
use super::frames::{decode, inbox, Outbound, QUEUE_MESSAGES, RETRY};
use super::{Clock, Failure};
use crate::bell::{wait_any, Bell};
use crate::name::Name;
use crate::{socket, Domain, DomainOptions, Error, Receiver};
use coorp_core::failover::Epoch;
use coorp_core::logical::protocol::{Down, Envelope, Up};
use coorp_core::logical::{FederateId, Graph, PeerMessage, Rti, RtiAction, RtiConfig};
use coorp_core::RobotId;
use rustix::io::Errno;
use rustix::net::SocketAddrUnix;
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The interval at which it checks which federates are there.
const LOOK_PERIOD: Duration = Duration::from_millis(5);
/// The time after which a running program continues without the federates that did not join a new coordinator.
const ABSENCE_MAX: Duration = Duration::from_secs(2);
/// The pause before retrying to take an office that is neither free nor reachable, because its holder is just taking
/// it.
const OFFICE_PAUSE: Duration = Duration::from_millis(5);
/// The number of messages handled before the clock and the links are checked again.
const BURST: usize = 256;

const TAKE_OFFICE: &str = "take the address of the program's coordinator";

/// The channel on which the RTI of a program listens.
pub(super) const RTI_CHANNEL: &str = "rti";

/// Returns the channel on which a federate listens.
pub(super) fn federate_channel(federate: FederateId) -> String {
    format!("federate/{}", federate.0)
}

/// A message to the RTI.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ToRti<V> {
    pub from: FederateId,
    pub envelope: Envelope<Up<V>>,
}

/// A message to a federate.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum ToFederate<V> {
    Rti(Envelope<Down<V>>),
    /// From another federate, without the RTI.
    Peer(PeerMessage<V>),
    /// The program is asked to end from outside.
    Stop,
}

/// The settings of a coordinator.
#[derive(Clone, Debug)]
pub struct CoordinatorSettings {
    /// The name of the program's domain.
    pub domain: String,
    /// The program's clock.
    pub clock: Clock,
    /// The settings of the RTI.
    pub rti: RtiConfig,
}

/// The handle by which other threads control a coordinator.
#[derive(Clone, Debug)]
pub struct Standby {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    bell: Bell,
    quit: AtomicBool,
    stop: AtomicBool,
}

impl Standby {
    /// Creates a handle for one call of [`coordinate`].
    ///
    /// # Errors
    /// If the system has no descriptor left.
    pub fn new() -> Result<Self, Error> {
        let bell = Bell::new()?;
        let shared = Arc::new(Shared {
            bell,
            quit: AtomicBool::new(false),
            stop: AtomicBool::new(false),
        });
        Ok(Standby { shared })
    }

    /// Makes [`coordinate`] return.
    pub fn quit(&self) {
        self.shared.quit.store(true, SeqCst);
        self.shared.bell.ring();
    }

    /// Ends the program, if this process coordinates it.
    pub fn request_stop(&self) {
        self.shared.stop.store(true, SeqCst);
        self.shared.bell.ring();
    }

    fn is_over(&self) -> bool {
        self.shared.quit.load(SeqCst)
    }
}

/// Waits until no other process coordinates the program, and then coordinates it until its end, or until told to quit.
///
/// # Errors
/// If nothing was started, or the domain fails.
pub fn coordinate(graph: &Arc<Graph>, settings: &CoordinatorSettings, standby: &Standby) -> Result<(), Failure> {
    let Some(_office) = take_office(&settings.domain, standby)? else {
        return Ok(());
    };
    Coordinator::open(graph, settings, standby)?.run()
}

/// Returns the address of a domain's coordinator.
fn office_address(domain: &str) -> Result<SocketAddrUnix, Error> {
    let name = Name::new(domain)?;
    let address = format!("coorp-run/{}/{}", geteuid().as_raw(), name.as_str());
    SocketAddrUnix::new_abstract_name(address.as_bytes()).map_err(Error::system(TAKE_OFFICE))
}

/// Takes the office, unless another process has it.
pub(super) fn try_office(domain: &str) -> Result<Option<OwnedFd>, Error> {
    match socket::listen(&office_address(domain)?) {
        Ok(office) => Ok(Some(office)),
        Err(Errno::ADDRINUSE) => Ok(None),
        Err(error) => Err(Error::system(TAKE_OFFICE)(error)),
    }
}

/// Waits for the office, and takes it; `None` if told to quit first.
fn take_office(domain: &str, standby: &Standby) -> Result<Option<OwnedFd>, Error> {
    let address = office_address(domain)?;
    while !standby.is_over() {
        if let Some(office) = try_office(domain)? {
            return Ok(Some(office));
        }
        let holder = socket::connect(&address).ok();
        let watched: Vec<_> = holder
            .iter()
            .map(AsFd::as_fd)
            .chain([standby.shared.bell.as_fd()])
            .collect();
        let until = holder.is_none().then(|| Instant::now() + OFFICE_PAUSE);
        wait_any(&watched, until).map_err(|source| Error::System {
            what: "wait for the program's coordinator",
            source,
        })?;
        standby.shared.bell.silence();
    }
    Ok(None)
}

struct Coordinator<'a> {
    graph: &'a Graph,
    standby: &'a Standby,
    clock: Clock,
    rti: Rti<Carried<()>>,
    inbox: Receiver,
    links: Vec<Link>,
    looked: Option<Instant>,
    /// The time until which federates that never joined may still be on their way.
    expects_until: Option<Instant>,
    is_over: bool,
}

struct Link {
    outbound: Outbound,
    is_connected: bool,
    is_told_to_stop: bool,
}

impl<'a> Coordinator<'a> {
    fn open(graph: &'a Arc<Graph>, settings: &CoordinatorSettings, standby: &'a Standby) -> Result<Self, Failure> {
        let domain = Domain::join(&settings.domain, DomainOptions::default())?;
        let inbox = inbox(&domain, RTI_CHANNEL)?;
        let links = graph.federate_ids().map(|federate| {
            Ok(Link {
                outbound: Outbound::open(&domain, &federate_channel(federate))?,
                is_connected: false,
                is_told_to_stop: false,
            })
        });
        let links = links.collect::<Result<_, Error>>()?;
        let now = settings.clock.now();
        let epoch = Epoch {
            round: now.as_nanos(),
            robot: RobotId(0),
            incarnation: std::process::id(),
        };
        Ok(Coordinator {
            graph,
            standby,
            clock: settings.clock,
            rti: Rti::new(Arc::clone(graph), epoch, settings.rti.clone(), now),
            inbox,
            links,
            looked: None,
            expects_until: Some(Instant::now() + ABSENCE_MAX),
            is_over: false,
        })
    }

    fn run(mut self) -> Result<(), Failure> {
        loop {
            let gone = self.look()?;
            // Everything that a dead federate sent has arrived by now: at most what its queue holds.
            let most = if gone.is_empty() {
                BURST
            } else {
                QUEUE_MESSAGES * self.links.len()
            };
            self.read(most)?;
            for federate in gone {
                self.rti.on_gone(federate, self.clock.now());
            }
            self.rti.on_deadline(self.clock.now());
            self.act()?;
            let is_flushed = self.flush()?;
            if self.standby.is_over() || (self.is_over && is_flushed) {
                return Ok(());
            }
            if self.standby.shared.stop.load(SeqCst) {
                // Federates that join later are told then.
                for link in self
                    .links
                    .iter_mut()
                    .filter(|link| link.is_connected && !link.is_told_to_stop)
                {
                    link.outbound.send(&ToFederate::<Carried<()>>::Stop)?;
                    link.is_told_to_stop = true;
                }
            }
            self.wait(is_flushed)?;
        }
    }

    /// Checks which federates have joined, and returns those that are gone.
    fn look(&mut self) -> Result<Vec<FederateId>, Failure> {
        let mut gone = Vec::new();
        let due = self.looked.is_none_or(|at| at.elapsed() >= LOOK_PERIOD);
        if !due {
            return Ok(gone);
        }
        let at = Instant::now();
        self.looked = Some(at);
        let is_absence_over = self.expects_until.is_some_and(|until| until <= at);
        if is_absence_over {
            self.expects_until = None;
        }
        for (federate, link) in self.graph.federate_ids().zip(&mut self.links) {
            let is_connected = link.outbound.is_connected();
            if is_connected && !link.is_connected {
                self.rti.on_connected(federate, self.clock.now());
            }
            if !is_connected && (link.is_connected || is_absence_over) {
                gone.push(federate);
            }
            link.is_connected = is_connected;
        }
        Ok(gone)
    }

    fn read(&mut self, most: usize) -> Result<(), Failure> {
        for _ in 0..most {
            let Some(payload) = self.inbox.try_recv()? else {
                return Ok(());
            };
            if let Some(ToRti { from, envelope }) = decode(&payload) {
                self.rti.on_message(from, envelope, self.clock.now());
                self.act()?;
            }
        }
        Ok(())
    }

    /// Carries out the RTI's actions.
    fn act(&mut self) -> Result<(), Failure> {
        while let Some(action) = self.rti.poll() {
            match action {
                RtiAction::Send { to, envelope } => {
                    if let Some(link) = self.links.get_mut(usize::from(to.0)) {
                        link.outbound.send(&ToFederate::Rti(envelope))?;
                    }
                }
                RtiAction::StartFailed(missing) => {
                    self.flush()?;
                    return Err(Failure::Missing(names(self.graph, &missing)));
                }
                RtiAction::Over | RtiAction::Deposed(_) => self.is_over = true,
                RtiAction::Runs(_) | RtiAction::Gone(_) | RtiAction::Nonsense(_) | RtiAction::Tardy(..) => {}
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<bool, Failure> {
        let mut is_flushed = true;
        for link in &mut self.links {
            is_flushed &= link.outbound.flush()? || !link.outbound.is_connected();
        }
        Ok(is_flushed)
    }

    fn wait(&mut self, is_flushed: bool) -> Result<(), Failure> {
        let longest = if is_flushed { LOOK_PERIOD } else { RETRY };
        let due = self
            .rti
            .next_deadline()
            .map(|at| Duration::from_nanos(at.since(self.clock.now()).as_nanos()));
        let longest = due.map_or(longest, |due| due.min(longest));
        crate::wait_any(&mut [&mut self.inbox], Some(longest))?;
        Ok(())
    }
}

pub(super) fn names(graph: &Graph, federates: &[FederateId]) -> Vec<String> {
    let infos = federates.iter().filter_map(|federate| graph.federate(*federate));
    infos.map(|info| info.name.clone()).collect()
}
