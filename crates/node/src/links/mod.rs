//! Links carry coordination and control between two robots, over one path.
//!
//! A link is a QUIC connection. Each robot opens one to every other robot that it finds (`discovery.rs`), unless there
//! is one. Both use it, so that the traffic of one acknowledges the other's. If both open one at once, the link of the
//! robot earlier in the team file stays in use. Certificates identify the robots.
//!
//! *Coordination* (leadership, permits, subscriptions, gathering) goes over one stream of each link, ahead of everything
//! else (`stream.rs`), and over all paths, because it tolerates duplicates. Each end begins with an announcement of
//! itself. A robot is present while it has a link whose announcement has arrived (`presence.rs`). A link ends when a
//! robot closes it, when its process reports by a stateless reset that it no longer knows it, or after three seconds of
//! silence, longer on large teams ([`keep_alive`]). Nothing that a third party can forge ends a link. If two processes run as one robot, each other robot keeps
//! its links with the process that it heard last, and tells the other why it has none ([`OVER`]).
//!
//! *Control* goes as a datagram if it fits: only the newest message counts, and a lost one is not worth waiting for. A
//! larger message goes over its own stream, so that a lost datagram delays only its own message. Few messages of a
//! topic are in flight at once; behind them, only the newest waits. Each path has its own socket, marked for AC_VO
//! (`socket.rs`), at both ends. No congestion window holds control back: it is small and periodic, and of no use if
//! late (decision 13).
//!
//! The operator connects to the same port, and may ask for the status and what the robot has seen; nothing else of it is heard
//! (`operator.rs`). Left out: resumption without a new handshake.

mod dial;
mod operator;
mod outbox;
mod socket;
mod stream;
mod subscriptions;
mod transport;
mod up;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use bytes::Bytes;
use coorp_core::admission::Reason;
use coorp_core::paths::PathId;
use coorp_core::robot::{Cursor, Look};
use coorp_core::{Instant, RobotId};
use coorp_team::Team;
use quinn::{Connection, ConnectionError, Endpoint, ReadToEndError, RecvStream, SendStream, VarInt};

use self::outbox::Outbox;
pub(crate) use self::socket::{MarkedSocket, TOS_VOICE};
pub(crate) use self::stream::read_frame;
use self::stream::Ended;
pub(crate) use self::subscriptions::Subscriptions;
pub(crate) use self::transport::{keep_alive, transport, KEEP_ALIVE, PROTOCOL};
use self::up::{Message, Up, STREAM_MAX};
use crate::addresses::Addresses;
use crate::discovery::{Counts, Finder};
use crate::door::Place;
use crate::ground::Threads;
use crate::keys::OPERATOR;
use crate::member::Member;
use crate::outqueue::{Handed, Target};
use crate::quic::{close_revoked, name_of, Credentials};
use crate::rank::real_time;
use crate::shared_robot::SharedRobot;
use crate::status::Status;
use crate::sync::lock;
use crate::tasks::Tasks;
use crate::wire::{self, Frame, Hello, Parcel};
use crate::Error;

/// The largest control message, bytes.
pub const MESSAGE_BYTES_MAX: usize = 16 << 20;

/// The first UDP port of links, as an offset from a robot's first port; each path has its own.
const PORT: u16 = 2;
const RETRY: Duration = Duration::from_millis(100);
/// The same if another process runs as one end's robot.
const RETRY_OVER: Duration = Duration::from_secs(5);
/// The code that closes links of an earlier start. If its process still runs, it is a twin: the reason is the other
/// process's address.
const OVER: VarInt = VarInt::from_u32(2);
/// The code that closes an operator's connection when there are too many.
pub(crate) const OPERATORS_FULL: VarInt = VarInt::from_u32(3);
/// The time limits of closing: until the others have everything, until they are told, and for the thread.
const GOODBYE_MAX: Duration = Duration::from_millis(50);
const CLOSE_MAX: Duration = Duration::from_secs(1);

/// The name of a link, unique within one start of this robot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LinkId(pub u64);

/// Receives from links.
pub(crate) trait Receiver: Send + Sync {
    /// Handles a control message from a robot.
    fn on_parcel(&self, from: RobotId, path: PathId, message: Bytes);
    /// Handles a frame of coordination.
    fn on_frame(&self, from: RobotId, link: LinkId, frame: &[u8]);
    /// Handles the end of a link.
    fn on_ended(&self, from: RobotId, link: LinkId);
    /// Returns this robot's announcement of itself, under this number.
    fn hello(&self, number: u64) -> Hello;
    /// Binds everything but links to the card that is now a path's interface. If that fails, nothing changes.
    fn on_new_card(&self, path: usize) -> Result<(), Error>;
    /// Handles the news that two processes run as a robot, at these addresses.
    fn on_twins(&self, robot: RobotId, at: Vec<IpAddr>);
    /// Returns the status, for the operator.
    fn status(&self) -> Status;
    /// The operator asks what the robot has seen since its last look.
    fn look(&self, since: Option<Cursor>) -> Look;
    /// A list of revoked certificates arrived.
    fn on_revocations(&self, from: &str, frame: &[u8]);
}

/// All links of a robot.
#[derive(Debug)]
pub(crate) struct Links {
    member: Arc<Member>,
    robot: Arc<SharedRobot>,
    addresses: Arc<Addresses>,
    finder: Arc<Finder>,
    /// Set once the node is open.
    receiver: OnceLock<Weak<dyn Receiver>>,
    threads: Threads,
    tasks: Tasks,
    outbox: Arc<Outbox>,
    /// One per path; taken out when the node closes.
    endpoints: Mutex<Vec<Endpoint>>,
    /// The datagrams that the socket of each path has handed over.
    handed: Vec<Mutex<Arc<Handed>>>,
    client: quinn::ClientConfig,
    server: quinn::ServerConfig,
    /// The links by robot, then by path. A robot has several on one path only for moments.
    links: Vec<Vec<Mutex<Vec<Arc<Up>>>>>,
    /// The number of the newest announcement. Locked while it is sent, so that no new link misses it.
    announced: Mutex<u64>,
    next: AtomicU64,
}

impl Links {
    /// Binds the sockets of all paths. Links are opened and accepted once there is a receiver.
    pub fn open(
        member: &Arc<Member>,
        robot: &Arc<SharedRobot>,
        addresses: &Arc<Addresses>,
        credentials: &Credentials,
    ) -> Result<Arc<Links>, Error> {
        let failed = |what: &str, error| Error::Socket(format!("cannot {what} for control"), error);
        let threads = member
            .ground
            .threads(1, "coorp-control", || _ = real_time())
            .map_err(|error| failed("start a thread", error))?;
        let tasks = Tasks::new(threads.tasks(), robot);
        let entered = threads.tasks().enter();
        let server = credentials.server(PROTOCOL)?;
        let mut endpoints = Vec::with_capacity(member.paths);
        let mut handed = Vec::with_capacity(member.paths);
        for path in 0..member.paths {
            let port = port(&member.team, member.me, path);
            let bound = member.bind("control", path, port);
            let bound = bound.map_err(|error| is_taken(member, port, error))?;
            let config = credentials.endpoint(&*member.ground, &*bound);
            let socket = bound.marked(robot).map_err(|error| failed("set up a socket", error))?;
            handed.push(Mutex::new(socket.handed));
            let (server, tasks) = (Some(server.clone()), Arc::new(tasks.clone()));
            let endpoint = Endpoint::new_with_abstract_socket(config, server, socket.io, tasks);
            endpoints.push(endpoint.map_err(|error| failed("open QUIC", error))?);
        }
        drop(entered);
        let finder = Finder::start_on(
            &member.ground,
            &member.team,
            Some(member.me),
            member.paths,
            credentials.authorities(),
            {
                let robot = robot.clone();
                move |why| robot.on_panic(&why)
            },
        )?;
        let robots = (0u16..).map(RobotId).take(member.team.robots.len());
        let links = robots.map(|to| {
            let paths = if to == member.me {
                0
            } else {
                member.team.paths_between(member.me, to).min(member.paths)
            };
            (0..paths).map(|_| Mutex::default()).collect()
        });
        Ok(Arc::new(Links {
            links: links.collect(),
            member: member.clone(),
            robot: robot.clone(),
            addresses: addresses.clone(),
            finder: Arc::new(finder),
            receiver: OnceLock::new(),
            threads,
            tasks,
            outbox: Arc::default(),
            endpoints: Mutex::new(endpoints),
            handed,
            client: credentials.client(PROTOCOL)?,
            server,
            announced: Mutex::new(0),
            next: AtomicU64::new(0),
        }))
    }

    /// Opens and accepts links from now on, and passes on what arrives for as long as the receiver exists.
    pub fn receive(self: &Arc<Self>, receiver: Weak<dyn Receiver>) {
        // This is set only here.
        let _ = self.receiver.set(receiver);
        for (path, endpoint) in lock(&self.endpoints).iter().enumerate() {
            let accepting = accept(Arc::downgrade(self), endpoint.clone(), path);
            self.tasks.spawn("accepting links", accepting);
        }
        let sending = self.outbox.clone().run(self.tasks.clone());
        self.tasks.spawn("sending control", sending);
        let dialling = dial::dial(Arc::downgrade(self), self.finder.clone());
        self.tasks.spawn("looking for robots", dialling);
    }

    // --- what goes out ----------------------------------------------------------------------------------------

    /// Sends a control message to a robot with the next [`Links::hurry`], or drops it if it cannot be sent. Does not
    /// block. Returns the target that shows when it has left.
    pub fn send(&self, to: RobotId, path: PathId, parcel: &Parcel, content: &Bytes) -> Option<Target> {
        let up = self.best(to, path.0.into())?;
        let message = Message {
            slot: match parcel {
                Parcel::Control { topic, .. } => Some((false, topic.clone())),
                Parcel::State { topic, .. } => Some((true, topic.clone())),
                Parcel::Robot(_) | Parcel::Wrapped(_) => None,
            },
            head: wire::pack(parcel),
            content: content.clone(),
        };
        let bytes = message.head.len() + message.content.len();
        // Before sending, because the message may be handed over at once.
        let socket = self.handed.get(usize::from(path.0));
        let socket = socket.filter(|_| !matches!(parcel, Parcel::Robot(_)));
        let target = socket.map(|socket| lock(socket).expect(bytes));
        self.outbox.add(up, message);
        target
    }

    /// Makes the messages so far leave now.
    pub fn hurry(&self) {
        self.outbox.hurry();
    }

    /// Returns the longest datagram to a robot over a path, bytes; `None` if there is no link.
    pub fn room(&self, to: RobotId, path: usize) -> Option<usize> {
        self.best(to, path)?.connection.max_datagram_size()
    }

    /// Sends a frame of coordination to a robot, over all paths. Does not block.
    pub fn say<F: Frame>(&self, to: RobotId, frame: &F) {
        self.say_encoded(to, &wire::prefixed(frame).into());
    }

    /// Sends a frame of coordination to all robots. Does not block.
    pub fn say_to_all<F: Frame>(&self, frame: &F) {
        let frame = wire::prefixed(frame).into();
        let robots = (0u16..).map(RobotId).take(self.links.len());
        robots.for_each(|to| self.say_encoded(to, &frame));
    }

    fn say_encoded(&self, to: RobotId, frame: &Bytes) {
        for path in 0..self.links.get(usize::from(to.0)).map_or(0, Vec::len) {
            if let Some(up) = self.best(to, path) {
                up.coordination.say(&self.tasks, frame.clone());
            }
        }
    }

    /// Announces to all robots what this one subscribes to and gathers, after a change.
    pub fn announce(&self) {
        let mut number = lock(&self.announced);
        *number += 1;
        let Some(hello) = self.hello(*number) else { return };
        for link in self.links.iter().flatten() {
            for up in lock(link).iter() {
                up.coordination.announce(&self.tasks, hello.clone());
            }
        }
    }

    /// Returns the counts of discovery: announcements, attempts and refusals.
    pub fn found(&self) -> Counts {
        self.finder.counts()
    }

    fn hello(&self, number: u64) -> Option<Bytes> {
        let receiver = self.receiver.get()?.upgrade()?;
        Some(wire::prefixed(&receiver.hello(number)).into())
    }

    // --- the links --------------------------------------------------------------------------------------------

    /// Returns the link over which to send. Of several announced links, prefers the one opened by the robot earlier in
    /// the team file, and of these the newest.
    fn best(&self, to: RobotId, path: usize) -> Option<Arc<Up>> {
        let links = lock(self.links.get(usize::from(to.0))?.get(path)?);
        let open = links.iter().filter(|up| up.is_open());
        let mine_first = self.member.me < to;
        open.max_by_key(|up| (up.is_heard(), up.own == mine_first, up.id))
            .cloned()
    }

    /// Begins to use a new link. Returns it, unless the node has closed.
    fn begin(
        self: &Arc<Self>,
        connection: &Connection,
        (to, path): (RobotId, usize),
        (own, began): (bool, Instant),
        (send, receive): Streams,
    ) -> Option<Arc<Up>> {
        let id = LinkId(self.next.fetch_add(1, Ordering::Relaxed));
        let up = self.add(to, path, Up::new(id, began, connection, own, send))?;
        let conversation = converse(Arc::downgrade(self), up.clone(), (to, path), receive);
        self.tasks.spawn("receiving coordination", conversation);
        Some(up)
    }

    /// Handles the first announcement over a link.
    fn on_heard(&self, from: RobotId, path: usize, up: &Up) {
        let address = up.connection.remote_address().ip();
        self.addresses.saw(from, path, address);
        self.finder.connected(from, path_id(path), address);
        up.on_heard();
        // The opener has lost the links that it opened before.
        if let Some(links) = self.links.get(usize::from(from.0)).and_then(|links| links.get(path)) {
            close_older(&*lock(links), up);
        }
    }

    /// Handles the end of a link. Discovery looks for a new one a moment later, so that links that end at once cost
    /// little.
    fn on_unlinked(self: &Arc<Self>, of: RobotId, path: usize, ended: &Up) {
        if let Some(links) = self.links.get(usize::from(of.0)).and_then(|links| links.get(path)) {
            lock(links).retain(|up| up.id != ended.id);
        }
        let retry = if ended.is_over() { RETRY_OVER } else { RETRY };
        let links = Arc::downgrade(self);
        self.tasks.spawn("the end of a link", async move {
            tokio::time::sleep(retry).await;
            if let Some(links) = links.upgrade().filter(|links| links.best(of, path).is_none()) {
                links.finder.lost(of, path_id(path));
            }
        });
    }

    /// Adds a link and returns it, unless the node has closed.
    fn add(self: &Arc<Self>, to: RobotId, path: usize, up: Arc<Up>) -> Option<Arc<Up>> {
        let number = lock(&self.announced);
        let hello = self.hello(*number)?;
        up.coordination.announce(&self.tasks, hello);
        if let Some(list) = self.member.revoked.list() {
            up.coordination.say(&self.tasks, wire::prefixed(&list).into());
        }
        let mut links = lock(self.links.get(usize::from(to.0))?.get(path)?);
        // A link in use stays until the other end of this one has announced which start it is.
        close_older(links.iter().filter(|older| !older.is_heard()), &up);
        links.push(up.clone());
        // The certificate may have been revoked since it was shown.
        close_revoked(&self.member.revoked, &up.connection);
        let several = links.len() > 1;
        drop((links, number));
        if several {
            self.close_spares(to, path);
        }
        Some(up)
    }

    /// Closes this robot's links that are not in use, once everything in flight over them has arrived.
    fn close_spares(self: &Arc<Self>, to: RobotId, path: usize) {
        let links = Arc::downgrade(self);
        self.tasks.spawn("closing a spare link", async move {
            tokio::time::sleep(STREAM_MAX).await;
            let Some(links) = links.upgrade() else { return };
            let Some(best) = links.best(to, path) else { return };
            let all = links.links.get(usize::from(to.0)).and_then(|paths| paths.get(path));
            for spare in all.into_iter().flat_map(|all| lock(all).clone()) {
                if spare.own && spare.id != best.id {
                    spare.connection.close(0u8.into(), b"another link is in use");
                }
            }
        });
    }

    /// Ends links of a robot's earlier start.
    pub fn end(&self, of: RobotId, stale: &[LinkId]) {
        let (stale, others): (Vec<_>, Vec<_>) = self.open_to(of).into_iter().partition(|up| stale.contains(&up.id));
        let elsewhere = others.first().map(|up| address(&up.connection).to_string());
        for up in stale {
            up.on_over();
            up.connection.close(OVER, elsewhere.as_deref().unwrap_or("").as_bytes());
        }
    }

    /// Returns the time at which a robot's link began, if it has not ended.
    pub fn began(&self, of: RobotId, link: LinkId) -> Option<Instant> {
        let links = self.open_to(of);
        links.iter().find(|up| up.id == link).map(|up| up.began)
    }

    /// Returns the addresses at the other ends of a robot's links.
    pub fn addresses(&self, of: RobotId) -> Vec<IpAddr> {
        let addresses: BTreeSet<IpAddr> = self.open_to(of).iter().map(|up| address(&up.connection)).collect();
        addresses.into_iter().collect()
    }

    fn open_to(&self, of: RobotId) -> Vec<Arc<Up>> {
        let links = self.links.get(usize::from(of.0)).into_iter().flatten();
        let all = links.flat_map(|links| lock(links).clone());
        all.filter(|up| up.is_open()).collect()
    }

    /// Ends the links of newly revoked certificates, and sends the list to all other robots.
    pub fn on_revoked(&self) {
        // Hold the lock, so that no new link misses the list.
        let _announced = lock(&self.announced);
        for up in self.links.iter().flatten().flat_map(|links| lock(links).clone()) {
            close_revoked(&self.member.revoked, &up.connection);
        }
        if let Some(list) = self.member.revoked.list() {
            self.say_to_all(&list);
        }
    }

    /// Binds a path's sockets to the card that is now its interface, or changes nothing. The links stay, and continue
    /// if the address stays the same.
    fn rebind(&self, path: usize) -> Result<(), Error> {
        let failed = |error| Error::Socket("cannot use another card for control".to_owned(), error);
        let (Some(endpoint), Some(handed)) = (lock(&self.endpoints).get(path).cloned(), self.handed.get(path)) else {
            return Ok(());
        };
        let port = port(&self.member.team, self.member.me, path);
        let entered = self.threads.tasks().enter();
        let bound = self.member.bind("control", path, port)?;
        let socket = bound.marked(&self.robot).map_err(failed)?;
        drop(entered);
        if let Some(receiver) = self.receiver.get().and_then(Weak::upgrade) {
            receiver.on_new_card(path)?;
        }
        let before = std::mem::replace(&mut *lock(handed), socket.handed);
        before.close();
        endpoint.rebind_abstract(socket.io).map_err(failed)
    }

    /// Ends everything. Waits briefly until the others have received what was sent.
    pub fn close(&self) {
        self.finder.close();
        let endpoints = std::mem::take(&mut *lock(&self.endpoints));
        let links = self.links.iter().flatten();
        let links: Vec<_> = links.flat_map(|links| lock(links).clone()).collect();
        let said: Vec<_> = links.iter().map(|up| up.coordination.finish()).collect();
        let handed: Vec<_> = self.handed.iter().map(|handed| lock(handed).clone()).collect();
        let last_max = GOODBYE_MAX * u32::try_from(2 + endpoints.len()).unwrap_or(u32::MAX);
        let (outbox, tasks) = (self.outbox.clone(), self.tasks.clone());
        let last = async move {
            outbox.send(&tasks);
            let all = async {
                for said in said {
                    said.await;
                }
            };
            let _ = tokio::time::timeout(GOODBYE_MAX, all).await;
            for endpoint in &endpoints {
                endpoint.close(0u8.into(), b"closed");
            }
            // Wait until the others are told, but not for unreachable ones.
            for endpoint in &endpoints {
                let _ = tokio::time::timeout(GOODBYE_MAX, endpoint.wait_idle()).await;
            }
        };
        self.threads.end(last, last_max, CLOSE_MAX);
        handed.iter().for_each(|handed| handed.close());
    }
}

/// Coordination's stream of a link.
type Streams = (SendStream, RecvStream);

/// Returns the port for a robot's links over a path.
pub(crate) fn port(team: &Team, robot: RobotId, path: usize) -> u16 {
    // A team file has no more paths than there are ports.
    team.port(robot) + PORT + u16::try_from(path).unwrap_or(0)
}

/// Closes the links of one robot and path that the same end opened earlier.
fn close_older<'u>(links: impl IntoIterator<Item = &'u Arc<Up>>, newer: &Up) {
    let same_end = |older: &&Arc<Up>| older.own == newer.own && older.id < newer.id;
    for older in links.into_iter().filter(same_end) {
        older.connection.close(0u8.into(), b"replaced by a newer link");
    }
}

/// Returns the address at the other end.
fn address(connection: &Connection) -> IpAddr {
    connection.remote_address().ip().to_canonical()
}

fn path_id(path: usize) -> PathId {
    PathId(u8::try_from(path).unwrap_or(u8::MAX))
}

/// Explains the error of a port that is already in use.
fn is_taken(member: &Member, port: u16, error: Error) -> Error {
    match error {
        Error::Socket(_, error) if error.kind() == std::io::ErrorKind::AddrInUse => Error::Listen(format!(
            "{name} cannot listen: port {port} is taken: {name}, or another robot with the same `port`, already runs \
             here; stop it, or set another `port`. To join a running agent (coorp up), name its state folder",
            name = member.name()
        )),
        error => error,
    }
}

/// Accepts links over one path until its endpoint closes.
async fn accept(links: Weak<Links>, endpoint: Endpoint, path: usize) {
    while let Some(incoming) = endpoint.accept().await {
        let Some(open) = links.upgrade() else { return };
        let Some((incoming, place)) = open.member.door.admit(incoming) else {
            continue;
        };
        let (links, mut server) = (links.clone(), open.server.clone());
        let address = incoming.remote_address();
        let alive = keep_alive(open.member.team.robots.len());
        server.transport_config(transport(false, alive, open.member.lengths(path, address)));
        let tasks = open.tasks.clone();
        drop(open);
        let Ok(connecting) = incoming.accept_with(Arc::new(server)) else {
            continue;
        };
        tasks.spawn("admitting a link", async move {
            let connected = place.shake_hands(connecting).await;
            let Some(open) = links.upgrade() else { return };
            match connected {
                Ok(connection) => admit(open, connection, path, place).await,
                Err(error) => {
                    let refused = &open.member.refused;
                    refused.on_not_connected("control", address, error.as_ref());
                }
            }
        });
    }
}

/// Admits a peer with a certificate of the team, and waits until its connection ends.
async fn admit(links: Arc<Links>, connection: Connection, path: usize, place: Place) {
    let (member, address) = (&links.member, connection.remote_address());
    let name = match name_of(&member.revoked, &connection) {
        Ok(name) => name,
        Err(reason) => return refuse(&links, &connection, &place, reason),
    };
    if name == OPERATOR {
        if !place.is_operators(&connection) {
            return connection.close(OPERATORS_FULL, b"too many operators");
        }
        let receiver = links.receiver.get().cloned();
        drop(links);
        return operator::answer(connection, receiver).await;
    }
    let Some(from) = member.team.robot_named(&name).filter(|from| *from != member.me) else {
        if name == member.name() {
            on_own_twin(&links, (&connection, path), Some(address.ip().to_canonical()));
        }
        return refuse(&links, &connection, &place, Reason::NoCertificate);
    };
    if !place.is_robots(from, &connection) {
        return connection.close(1u8.into(), b"too many connections");
    }
    let began = links.robot.now();
    listen(&links, &connection, from, path);
    let links = Arc::downgrade(&links);
    // The connection keeps its place until it ends.
    let streams = tokio::select! {
        biased;
        streams = connection.accept_bi() => streams.ok(),
        _ = connection.closed() => None,
    };
    if let (Some(links), Some(streams)) = (links.upgrade(), streams) {
        let _ = links.begin(&connection, (from, path), (false, began), streams);
    }
    connection.closed().await;
}

fn refuse(links: &Links, connection: &Connection, place: &Place, reason: Reason) {
    links.member.refused.count_stranger(connection.remote_address());
    place.fail(reason);
    connection.close(1u8.into(), b"not another robot of this team");
}

/// Receives a robot's control over a link, in a separate task, until the link ends.
fn listen(links: &Arc<Links>, connection: &Connection, from: RobotId, path: usize) {
    let path = path_id(path);
    let (Some(receiver), member) = (links.receiver.get().cloned(), links.member.clone()) else {
        return;
    };
    let connection = connection.clone();
    let tasks = links.tasks.clone();
    // Listening must not keep the links alive.
    links.tasks.spawn("receiving control", async move {
        loop {
            let (bytes, stream) = tokio::select! {
            biased;
                bytes = connection.read_datagram() => (Some(bytes), None),
                stream = connection.accept_uni() => (None, Some(stream)),
            };
            match (bytes, stream) {
                (Some(Ok(bytes)), _) => {
                    let Some(receiver) = receiver.upgrade() else { return };
                    receiver.on_parcel(from, path, bytes);
                }
                (_, Some(Ok(stream))) => {
                    let taking = take_large(receiver.clone(), member.clone(), stream, from, path);
                    tasks.spawn("receiving a large control message", taking);
                }
                _ => return,
            }
        }
    });
}

/// Receives a control message over its own stream.
async fn take_large(
    receiver: Weak<dyn Receiver>,
    member: Arc<Member>,
    mut stream: RecvStream,
    from: RobotId,
    path: PathId,
) {
    let read = stream.read_to_end(wire::PARCEL_BYTES_MAX + MESSAGE_BYTES_MAX);
    let read = tokio::time::timeout(STREAM_MAX, read).await;
    let Some(receiver) = receiver.upgrade() else { return };
    match read {
        Ok(Ok(bytes)) => receiver.on_parcel(from, path, bytes.into()),
        Ok(Err(ReadToEndError::TooLong)) => {
            member.refused.count("a control message", wire::Refusal::Oversized);
        }
        // The message was abandoned, or the link has ended.
        Ok(Err(ReadToEndError::Read(_))) | Err(_) => {}
    }
}

/// Receives a robot's coordination over a link that is up, until the link ends.
async fn converse(links: Weak<Links>, up: Arc<Up>, (from, path): (RobotId, usize), mut stream: RecvStream) {
    let Some(receiver) = links.upgrade().and_then(|links| links.receiver.get().cloned()) else {
        return;
    };
    let mut is_first = true;
    loop {
        let frame = read_frame(&mut stream, wire::STREAM_FRAME_BYTES_MAX).await;
        let Some(receiver) = receiver.upgrade() else { return };
        match frame {
            Ok(frame) => {
                receiver.on_frame(from, up.id, &frame);
                if std::mem::take(&mut is_first) && !up.is_over() {
                    let Some(links) = links.upgrade() else { return };
                    links.on_heard(from, path, &up);
                }
            }
            Err(ended) => {
                if let (Ended::Oversized, Some(links)) = (ended, links.upgrade()) {
                    links.member.refused.count("a frame", wire::Refusal::Oversized);
                }
                break;
            }
        }
    }
    if let Some(links) = links.upgrade() {
        if let Some(elsewhere) = elsewhere(&up.connection) {
            up.on_over();
            on_own_twin(&links, (&up.connection, path), elsewhere);
        }
        links.on_unlinked(from, path, &up);
    }
    // Without this stream, the link is of no use.
    up.connection.close(0u8.into(), b"coordination has ended");
    if let Some(receiver) = receiver.upgrade() {
        receiver.on_ended(from, up.id);
    }
}

/// Handles the other end's report that another process runs as this robot.
fn on_own_twin(links: &Links, (connection, path): (&Connection, usize), elsewhere: Option<IpAddr>) {
    let Some(receiver) = links.receiver.get().and_then(Weak::upgrade) else {
        return;
    };
    let bound = Some(links.member.outlet(path).0).filter(|bound| !bound.is_unspecified());
    let here = bound.or_else(|| connection.local_ip().map(|here| here.to_canonical()));
    receiver.on_twins(links.member.me, here.into_iter().chain(elsewhere).collect());
}

/// Returns the address of another start of this robot, if known. The outer `None`: the other end did not close the link
/// because of another start.
fn elsewhere(connection: &Connection) -> Option<Option<IpAddr>> {
    match connection.close_reason() {
        Some(ConnectionError::ApplicationClosed(closed)) if closed.error_code == OVER => {
            let text = std::str::from_utf8(&closed.reason).ok();
            Some(text.and_then(|text| text.parse().ok()))
        }
        _ => None,
    }
}
