//! A robot on real sockets, as its users see it: connects the parts, which do not know it.

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
use crate::bulk::{Bulk, BulkReceiver, BulkStream, Written};
use crate::control::{Control, Publisher, Subscriber};
use crate::descriptors;
use crate::door::Door;
use crate::flight::Recorder;
use crate::gather::{Gather, Gatherings};
use crate::ground::{Ground, Linux, Worker};
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
use crate::shared_robot::{SharedRobot, Wish};
use crate::status::Status;
use crate::sync::lock;
use crate::topic::checked;
use crate::{network, state, Error};

/// The options for taking part in a team.
#[derive(Clone, Debug)]
pub struct Options {
    /// The team.
    pub team: Team,
    /// The name of the robot to be.
    pub robot: String,
    /// The policy to run; the team file's `[policy]` is applied to it.
    pub policy: Policy,
    /// Run without keys: anyone on the network may read, speak for robots and grant permits. Disables bulk.
    pub insecure: bool,
    /// The folder for received bulk and all else that survives restarts; `None`: below `$XDG_STATE_HOME`,
    /// `~/.local/state`, or, without a home, `/var/lib/coorp`.
    pub state: Option<PathBuf>,
}

/// The warning about missing keys.
pub const INSECURE: &str =
    "nothing is encrypted and nobody proves who they are; whoever reaches this network can read, \
                            speak for any robot and hand out permits";

/// A robot that takes part in its team until it is dropped.
#[derive(Debug)]
pub struct Node {
    agent: Arc<Agent>,
    driver: Option<Worker>,
    /// Ends with the node, after everything else.
    recorder: Option<Recorder>,
    _lookout: Lookout,
}

impl Node {
    /// Joins the team. Works without any other robot. Like dropping the node, this blocks for a fraction of a second,
    /// also in async code, under any of tokio's runtimes. An insecure node says so in the log, as
    /// `coorp_node::insecure`.
    ///
    /// # Errors
    /// If the policy does not run on real sockets, the team has no such robot, its keys are missing or revoked, this machine
    /// lacks its interfaces or addresses, or its ports are taken.
    pub fn open(mut options: Options) -> Result<Node, Error> {
        descriptors::raise();
        options.team = network::placed(options.team)?;
        Node::open_on(Arc::new(Linux), options)
    }

    /// The same on any ground.
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
            // What panicked has been noted by the robot itself.
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
        Ok(Node {
            agent,
            driver: Some(driver),
            recorder: Some(recorder),
            _lookout: lookout,
        })
    }

    /// This robot's ID in the team.
    pub fn place(&self) -> RobotId {
        self.agent.member.me
    }

    /// Begins a bulk message to a robot, or to `leader`: the robot that leads at this moment, or the team file's leader
    /// if none is known to lead. It stays addressed to that robot, even if it dies and another one leads.
    ///
    /// # Errors
    /// If there is no such robot, it is this one, or bulk is disabled for lack of keys.
    pub fn bulk_stream(&self, to: &str, name: &str) -> Result<BulkStream, Error> {
        let team = &self.agent.member.team;
        let (robot, own) = match team.robot_named(to) {
            None if to == "leader" => match self.agent.robot.ask(|robot, now| robot.leader(now)) {
                Some(leader) => (
                    leader,
                    "leads now: use here what is for the leader, or name another robot",
                ),
                None => (
                    team.leader,
                    "is the team file's leader, and nobody leads now: wait for a leader, or name another robot",
                ),
            },
            _ => (robot_named(team, to)?, "is this one: name another one"),
        };
        if robot == self.agent.member.me {
            let name = self.agent.member.name();
            return Err(Error::BulkToItself(format!(
                "bulk goes from one robot to another, and {name} {own}"
            )));
        }
        Ok(BulkStream {
            bulk: self.bulk()?.clone(),
            to: robot,
            name: checked(name)?.to_owned(),
            written: Written::default(),
        })
    }

    /// Receives bulk messages from all robots, including those that arrived before.
    ///
    /// # Errors
    /// If bulk is disabled for lack of keys.
    pub fn bulk_receiver(&self) -> Result<BulkReceiver, Error> {
        Ok(self.bulk()?.receiver())
    }

    /// Receives the bulk messages whose name begins with `prefix`, including those that arrived before. As long as the
    /// receiver exists, others do not receive them.
    ///
    /// # Errors
    /// If bulk is disabled for lack of keys.
    pub fn bulk_receiver_of(&self, prefix: &str) -> Result<BulkReceiver, Error> {
        Ok(self.bulk()?.receiver_of(prefix))
    }

    fn bulk(&self) -> Result<&Arc<Bulk>, Error> {
        self.agent.bulk.as_ref().ok_or(Error::NoKeys)
    }

    /// Requests a permit for as long as the wish is kept: for bulk that does not go through this library.
    pub fn wish_bulk(&self) -> Wish {
        self.agent.robot.wish()
    }

    /// Whether bulk may be sent now, as far as permits go.
    pub fn may_send_bulk(&self) -> bool {
        self.agent.robot.ask(|robot, now| robot.is_permitted(now))
    }

    /// Protects what this machine's other programs send over the robot's interfaces, until the node is dropped: control goes
    /// out at once, bulk waits for the permit and the gate. Called again, it changes nothing. Needs root, or `CAP_NET_ADMIN`
    /// and `CAP_NET_RAW`, and iproute2.
    ///
    /// # Errors
    /// If the team file names no interface of this robot, one has no IPv4 address, or the machine refuses.
    pub fn protect(&self) -> Result<(), Error> {
        let Agent {
            protection,
            member,
            robot,
            control,
            wrapper,
            ..
        } = &*self.agent;
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
        Publisher::new(&self.agent.control, topic, period)
    }

    /// Receives the control messages of all robots on a topic, including this robot's own.
    ///
    /// # Errors
    /// If the topic's name is invalid.
    pub fn control_subscriber(&self, topic: &str) -> Result<Subscriber, Error> {
        Subscriber::new(&self.agent.control, topic)
    }

    /// Gathers the states that robots publish on a topic into one list per period. The robots may come and go at any
    /// time. `topics` says whether all share one topic number or each has its own; over links they cost the same.
    ///
    /// # Errors
    /// If the topic's name or the period is invalid, or this robot gathers the topic already.
    pub fn gather(&self, topic: &str, period: Duration, topics: Topics) -> Result<Gather, Error> {
        Gather::new(&self.agent.gatherings, topic, period, topics)
    }

    /// Shows whether the robot still decides.
    pub fn pulse(&self) -> Pulse {
        Pulse(self.agent.robot.clone())
    }

    /// The robot's current status.
    pub fn status(&self) -> Status {
        self.agent.status()
    }

    /// Serves this robot's metrics at `http://127.0.0.1:<port>/metrics`; with port 0 the kernel chooses one.
    ///
    /// # Errors
    /// If the port is taken.
    pub fn serve_metrics(&self, port: u16) -> Result<Metrics, Error> {
        Metrics::serve(&self.agent, port)
    }

    /// Records everything that this robot decides into a new MCAP file. One recording at a time.
    ///
    /// # Errors
    /// If the file exists already or cannot be created, or this robot is being recorded.
    pub fn record(&self, path: &Path) -> Result<Recording, Error> {
        Recording::begin(&self.agent, path)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        drop(lock(&self.agent.protection).take());
        if let Some(bulk) = &self.agent.bulk {
            bulk.close();
        }
        // Permits go back before the others see us leave, so they need not wait for a new leader.
        self.agent.robot.tell(|robot, now| {
            robot.handle(Input::WantBulk(false), now);
            robot.handle(Input::Resign, now);
        });
        self.agent.robot.stop();
        if let Some(driver) = self.driver.take() {
            driver.join();
        }
        // In virtual time, the driver's last round is still to come.
        if self.agent.robot.failed().is_none() {
            self.agent.round();
        }
        self.agent.links.close();
        drop(self.recorder.take());
    }
}
