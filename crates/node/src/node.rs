//! A robot on real sockets, as its users see it. It connects the parts, which do not know it.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use coorp_core::admission::Limits;
use coorp_core::policy::Policy;
use coorp_core::robot::Input;
use coorp_core::tracker::Topics;
use coorp_core::{Duration, RobotId};
use coorp_team::Team;

use crate::addresses::Addresses;
use crate::agent::Agent;
use crate::alarms::{Bell, Lookout};
use crate::bulk::{Bulk, BulkReceiver, BulkStream};
use crate::control::{Control, Publisher, Subscriber};
use crate::descriptors;
use crate::door::Door;
use crate::flight::Recorder;
use crate::gather::{Gather, Gatherings};
use crate::ground::{Ground, Linux, Worker};
use crate::guests::{self, By, Guest, Guests, Joined, Place};
use crate::keys::Identity;
use crate::links::Links;
use crate::member::{robot_named, Member};
use crate::metrics::Metrics;
use crate::policy::as_run;
use crate::protect::{Protection, Wrapper};
use crate::pulse::Pulse;
use crate::quic::Credentials;
use crate::rank::real_time;
use crate::recording::Recording;
use crate::refused::RefusedCounts;
use crate::revoked::Revoked;
use crate::shared_robot::{self, SharedRobot};
use crate::status::{Permit, Status};
use crate::sync::lock;
use crate::{network, state, Error};

/// The options for taking part in a team.
#[derive(Clone, Debug)]
pub struct Options {
    /// The team.
    pub team: Team,
    /// The name of the robot that this process is to be.
    pub robot: String,
    /// The policy to run; the team file's `[policy]` is applied to it.
    pub policy: Policy,
    /// Run without keys: anyone on the network may read, speak for robots and grant permits. Disables bulk.
    pub insecure: bool,
    /// The folder for received bulk and everything else that survives restarts. `None`: below `$XDG_STATE_HOME`,
    /// `~/.local/state`, or, without a home, `/var/lib/coorp`.
    pub state: Option<PathBuf>,
}

/// The warning about missing keys.
pub const INSECURE: &str =
    "nothing is encrypted and nobody proves an identity; anyone who reaches this network can read, \
                            impersonate any robot and grant permits";

/// A robot that takes part in its team until it is dropped. This process is the robot, or a guest of its agent.
#[derive(Debug)]
pub struct Node(By<Own, Guest>);

/// This process is the robot.
#[derive(Debug)]
struct Own {
    agent: Arc<Agent>,
    driver: Option<Worker>,
    /// Ends with the node, after everything else.
    recorder: Option<Recorder>,
    _lookout: Lookout,
    guests: Option<Guests>,
}

impl Node {
    /// Joins the robot's agent ([`Node::open_agent`]) as a guest, if one runs on this machine; otherwise, this process
    /// becomes the robot. Works without any other robot. Like dropping the node, this blocks for a fraction of a
    /// second, also in async code, under any of tokio's runtimes. If an agent was killed here, waits up to three
    /// seconds for its return. An insecure node logs a warning with the target `coorp_node::insecure`.
    ///
    /// # Errors
    /// If the policy does not run on real sockets, the team has no such robot, its keys are missing or revoked, this machine
    /// lacks its interfaces or addresses, its ports are taken, or the robot's agent refuses this program.
    pub fn open(mut options: Options) -> Result<Node, Error> {
        options.team = options.team.with_places();
        let state = options.state.as_deref();
        let dead = match Guest::join(&options.team, &options.robot, state, options.insecure)? {
            Joined::Guest(guest) => return Ok(Node(By::Guest(*guest))),
            Joined::NoAgent(dead) => dead,
        };
        let node = Node::open_here(options)?;
        // This process is the robot now, so no agent listens there.
        dead.iter().for_each(Place::remove);
        Ok(node)
    }

    /// Becomes the robot, and admits programs of this machine as guests. If they cannot join, the log says why.
    ///
    /// # Errors
    /// As [`Node::open`].
    pub fn open_agent(options: Options) -> Result<Node, Error> {
        let (team, robot) = (options.team.name.clone(), options.robot.clone());
        let state = options.state.clone().map_or_else(|| state::folder(&team, &robot), Ok)?;
        let mut node = Node::open_here(options)?;
        if let By::Robot(own) = &mut node.0 {
            let guests = Guests::open(&own.agent, Place::to_listen(&team, &robot, &state));
            own.guests = guests.map_err(|error| tracing::error!("{error}")).ok();
        }
        Ok(node)
    }

    fn open_here(mut options: Options) -> Result<Node, Error> {
        descriptors::raise();
        options.team = network::placed(options.team.with_places())?;
        Node::open_on(Arc::new(Linux), options)
    }

    /// Does the same on any ground.
    pub(crate) fn open_on(ground: Arc<dyn Ground>, options: Options) -> Result<Node, Error> {
        let Options {
            team,
            robot: name,
            policy,
            insecure,
            state,
        } = options;
        let policy = as_run(team.policy.apply(&policy))?;
        let me = robot_named(&team, &name)?;
        let identity = if insecure {
            tracing::warn!(target: "coorp_node::insecure", "{name} is insecure: {INSECURE}");
            None
        } else {
            Some(Identity::of(&team, &name)?)
        };
        let identity = identity.as_ref();
        let state = state.map_or_else(|| state::folder(&team.name, &name), Ok)?;
        let incarnation = state::incarnation(&*ground, &state);
        let robot = SharedRobot::start(&ground, &team, team.robot_config(&policy, me, incarnation))?;
        let credentials = identity.map_or_else(|| Credentials::of_anybody(&name), Credentials::of)?;
        let revoked = if insecure {
            Arc::default()
        } else {
            Arc::new(Revoked::of(
                &credentials,
                &team.live.keys,
                Some((ground.disk(), &state)),
            )?)
        };
        ground.check_here(&team.robots[usize::from(me.0)], team.paths_used(me))?;
        let member = Arc::new(Member {
            me,
            policy,
            paths: team.paths_used(me),
            incarnation,
            secure: !insecure,
            refused: RefusedCounts::default(),
            revoked: revoked.clone(),
            door: Door::new(
                &ground,
                Limits::of_team(team.robots.len(), team.paths_used(me)),
                team.robots.iter().flat_map(|robot| robot.addresses.iter().copied()),
                revoked,
            ),
            bell: Bell::default(),
            team,
            ground,
        });
        let addresses = Addresses::of(&member.team);
        let links = Links::open(&member, &robot, &addresses, &credentials)?;
        let gatherings = Gatherings::new(&member, &robot, &links);
        let control = Control::open(&member, &robot, &links, &gatherings)?;
        let bulk = identity.map(|_| Bulk::open(&member, &robot, &addresses, &credentials, &state));
        let bulk = bulk.transpose()?;
        let wrapper = Wrapper::new(&member, &robot, &addresses, &links);
        let agent = Arc::new(Agent {
            member,
            robot,
            presence: Mutex::default(),
            links,
            control,
            gatherings,
            bulk,
            wrapper,
            protection: Mutex::default(),
        });
        let receiver = Arc::downgrade(&agent);
        agent.links.receive(receiver);
        let ground = &agent.member.ground;
        let recorder = Recorder::start(&**ground, agent.robot.flown(), &state)?;
        let lookout = Lookout::start(agent.member.clone(), agent.robot.clone(), state)?;
        let driven = agent.clone();
        let round = move || {
            // The robot itself has noted the panic.
            let rest = catch_unwind(AssertUnwindSafe(|| driven.round())).unwrap_or(None);
            if driven.robot.failed().is_some() {
                driven.fall_silent();
                return None;
            }
            rest
        };
        let driver = ground
            .worker("coorp-driver", || _ = real_time(), Box::new(round))
            .map_err(Error::Thread)?;
        agent.robot.driven_by(driver.signal().clone());
        Ok(Node(By::Robot(Own {
            agent,
            driver: Some(driver),
            recorder: Some(recorder),
            _lookout: lookout,
            guests: None,
        })))
    }

    /// Returns this robot's ID in the team.
    pub fn place(&self) -> RobotId {
        match &self.0 {
            By::Robot(own) => own.agent.member.me,
            By::Guest(guest) => guest.place(),
        }
    }

    /// Returns whether this process is a guest of the robot's agent, and not the robot itself.
    pub fn is_guest(&self) -> bool {
        matches!(self.0, By::Guest(_))
    }

    /// Returns the robot's parts, if this process is the robot; `what` names what only the robot itself does.
    fn own(&self, what: &str) -> Result<&Arc<Agent>, Error> {
        match &self.0 {
            By::Robot(own) => Ok(&own.agent),
            By::Guest(_) => Err(Error::Guest(format!(
                "only the robot's agent itself {what}, but this program is its guest: see the options of coorp up"
            ))),
        }
    }

    /// Begins a bulk message to a robot, or to `leader`: the robot that leads at this moment, or the team file's leader
    /// if none is known to lead. The message stays addressed to that robot, even if the robot dies and another one
    /// leads.
    ///
    /// # Errors
    /// If there is no such robot, it is this one, or bulk is disabled for lack of keys.
    pub fn bulk_stream(&self, to: &str, name: &str) -> Result<BulkStream, Error> {
        match &self.0 {
            By::Robot(own) => {
                let to = own.agent.bulk_to(to)?;
                BulkStream::new(own.bulk()?, to, name)
            }
            By::Guest(guest) => guest.bulk_stream(to, name),
        }
    }

    /// Receives bulk messages from all robots, including those that arrived before.
    ///
    /// # Errors
    /// If bulk is disabled for lack of keys.
    pub fn bulk_receiver(&self) -> Result<BulkReceiver, Error> {
        match &self.0 {
            By::Robot(own) => Ok(own.bulk()?.receiver()),
            By::Guest(guest) => Ok(BulkReceiver(By::Guest(guest.receiver(None)?))),
        }
    }

    /// Receives the bulk messages whose names begin with `prefix`, including those that arrived before. While this
    /// receiver exists, no other one receives them.
    ///
    /// # Errors
    /// If bulk is disabled for lack of keys.
    pub fn bulk_receiver_of(&self, prefix: &str) -> Result<BulkReceiver, Error> {
        match &self.0 {
            By::Robot(own) => Ok(own.bulk()?.receiver_of(prefix)),
            By::Guest(guest) => Ok(BulkReceiver(By::Guest(guest.receiver(Some(prefix))?))),
        }
    }

    /// Requests a permit for as long as the wish is kept: for bulk that does not go through this library.
    ///
    /// # Errors
    /// If the robot's agent does not answer.
    pub fn wish_bulk(&self) -> Result<Wish, Error> {
        Ok(Wish(match &self.0 {
            By::Robot(own) => By::Robot(own.agent.robot.wish()),
            By::Guest(guest) => By::Guest(guest.wish()?),
        }))
    }

    /// Returns whether bulk may be sent now, as far as permits go.
    ///
    /// # Errors
    /// If the robot's agent does not answer.
    pub fn may_send_bulk(&self) -> Result<bool, Error> {
        match &self.0 {
            By::Robot(own) => Ok(own.agent.robot.ask(|robot, now| robot.is_permitted(now))),
            By::Guest(guest) => Ok(matches!(guest.status()?.permit, Permit::Holding | Permit::NotNeeded)),
        }
    }

    /// Protects what this machine's other programs send over the robot's interfaces, until the node is dropped: control
    /// leaves at once, bulk waits for the permit and the gate. Calling it again changes nothing. Needs root, or
    /// `CAP_NET_ADMIN` and `CAP_NET_RAW`, and iproute2.
    ///
    /// # Errors
    /// If the team file names no interface of this robot, an interface has no IPv4 address, the machine refuses, or
    /// this process is a guest.
    pub fn protect(&self) -> Result<(), Error> {
        let Agent {
            protection,
            member,
            robot,
            control,
            wrapper,
            ..
        } = &**self.own("protects its machine")?;
        let mut protection = lock(protection);
        if protection.is_none() {
            *protection = Some(Arc::new(Protection::start(member, robot, control, wrapper)?));
        }
        Ok(())
    }

    /// Publishes control messages on a topic. A known `period` need not be learnt.
    ///
    /// # Errors
    /// If the topic's name or the period is invalid, or this robot publishes too many topics.
    pub fn control_publisher(&self, topic: &str, period: Option<Duration>) -> Result<Publisher, Error> {
        match &self.0 {
            By::Robot(own) => Publisher::new(&own.agent.control, topic, period),
            By::Guest(guest) => Ok(Publisher(By::Guest(guest.publisher(topic, period)?))),
        }
    }

    /// Receives the control messages of all robots on a topic, including this robot's own.
    ///
    /// # Errors
    /// If the topic's name is invalid.
    pub fn control_subscriber(&self, topic: &str) -> Result<Subscriber, Error> {
        match &self.0 {
            By::Robot(own) => Subscriber::new(&own.agent.control, topic),
            By::Guest(guest) => Ok(Subscriber(By::Guest(guest.subscriber(topic)?))),
        }
    }

    /// Gathers the states that robots publish on a topic into one list per period. The robots may come and go at any
    /// time. `topics` says whether all share one topic number or each has its own; over links they cost the same.
    ///
    /// # Errors
    /// If the topic's name or the period is invalid, or this robot already gathers the topic.
    pub fn gather(&self, topic: &str, period: Duration, topics: Topics) -> Result<Gather, Error> {
        match &self.0 {
            By::Robot(own) => Gather::new(&own.agent.gatherings, topic, period, topics),
            By::Guest(guest) => Ok(Gather(By::Guest(guest.gather(topic, period, topics)?))),
        }
    }

    /// Shows whether the robot still decides.
    ///
    /// # Errors
    /// If this process is a guest: the agent's own process has to watch its pulse.
    pub fn pulse(&self) -> Result<Pulse, Error> {
        Ok(Pulse(self.own("has a pulse")?.robot.clone()))
    }

    /// Returns the robot's current status.
    ///
    /// # Errors
    /// If the robot's agent does not answer.
    pub fn status(&self) -> Result<Status, Error> {
        match &self.0 {
            By::Robot(own) => Ok(own.agent.status()),
            By::Guest(guest) => guest.status(),
        }
    }

    /// Returns the socket at which programs join this process as guests; `None` if they cannot.
    pub fn joined_at(&self) -> Option<&Path> {
        match &self.0 {
            By::Robot(own) => Some(own.guests.as_ref()?.place().path()),
            By::Guest(_) => None,
        }
    }

    /// Serves this robot's metrics at `http://127.0.0.1:<port>/metrics`; with port 0 the kernel chooses one.
    ///
    /// # Errors
    /// If the port is taken, or this process is a guest.
    pub fn serve_metrics(&self, port: u16) -> Result<Metrics, Error> {
        Metrics::serve(self.own("serves metrics")?, port)
    }

    /// Records everything that this robot decides into a new MCAP file. There is one recording at a time.
    ///
    /// # Errors
    /// If the file already exists or cannot be created, this robot is already being recorded, or this process is a
    /// guest.
    pub fn record(&self, path: &Path) -> Result<Recording, Error> {
        Recording::begin(self.own("records what it decides")?, path)
    }
}

impl Own {
    fn bulk(&self) -> Result<&Arc<Bulk>, Error> {
        self.agent.bulk.as_ref().ok_or(Error::NoKeys)
    }
}

/// A wish for a permit to send bulk; dropping it ends it.
#[derive(Debug)]
pub struct Wish(#[allow(dead_code)] By<shared_robot::Wish, guests::Wish>);

impl Drop for Own {
    fn drop(&mut self) {
        if let Some(guests) = self.guests.take() {
            guests.close();
        }
        drop(lock(&self.agent.protection).take());
        if let Some(bulk) = &self.agent.bulk {
            bulk.close();
        }
        // Return permits before the others see us leave, so that nobody has to wait for a new leader.
        self.agent.robot.tell(|robot, now| {
            robot.handle(Input::WantBulk(false), now);
            robot.handle(Input::Resign, now);
        });
        self.agent.robot.stop();
        if let Some(driver) = self.driver.take() {
            driver.join();
        }
        // In virtual time, the driver has not done its last round yet.
        if self.agent.robot.failed().is_none() {
            self.agent.round();
        }
        self.agent.links.close();
        drop(self.recorder.take());
    }
}
