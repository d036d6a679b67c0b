//! Links carry control from one robot to another, over one path.
//!
//! A link is a QUIC connection between two robots, opened by the first that has something to send and used by both, so
//! that the traffic of one acknowledges the other's. If both open one at once, that of the robot earlier in the team
//! file stays in use. A message that fits goes as a datagram: the newest counts, and a lost one is not worth waiting
//! for. A larger one goes over its own stream, so that a lost datagram delays only its own message. Few messages of a
//! topic are in flight at once; of those that wait behind them, the newest stays. Echoes of probes return over the same
//! link. Each path has its own socket, marked for AC_VO (`socket.rs`), at both ends.
//!
//! No congestion window holds control back: it is small and periodic, and of no use when late. The fabric does not
//! carry it, because its QUIC links cannot be marked on Linux, and a lost segment on its TCP links delays everything
//! after it (decision 13).
//!
//! Tokens on the fabric name the receivers (`subscriptions.rs`), and certificates identify the peers. Left out:
//! resumption without a new handshake.

mod socket;
mod subscriptions;
mod transport;
mod up;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use coorp_core::paths::PathId;
use coorp_core::robot::Message::Echo;
use coorp_core::{Instant as CoreInstant, RobotId};
use quinn::{Connection, Endpoint, ReadToEndError};

use self::socket::MarkedSocket;
pub(crate) use self::subscriptions::Subscriptions;
use self::transport::{transport, PROTOCOL};
use self::up::{Message, Slot, Up, STREAM_MAX};
use crate::coordination::Coordination;
use crate::fabric::{MESSAGE_BYTES_MAX, PORT_CONTROL};
use crate::member::Member;
use crate::outqueue::{Handed, Target};
use crate::own_runtime::OwnRuntime;
use crate::quic::{bind, connect, lengths, peer, Credentials};
use crate::rank::real_time;
use crate::shared_robot::SharedRobot;
use crate::sync::lock;
use crate::wire::{self, Parcel};
use crate::Error;

/// An attempt to connect ends after this time, and the next begins.
const CONNECT_MAX: Duration = Duration::from_secs(1);
const RETRY: Duration = Duration::from_millis(100);
/// After this time without anything to send, no more attempts are made.
const WANTED: Duration = Duration::from_secs(5);
/// The number of topics whose newest message waits for a link.
const WAITING_MAX: usize = 256;
/// How long closing waits for the others to be told, and then for the thread.
const GOODBYE_MAX: Duration = Duration::from_millis(50);
const CLOSE_MAX: Duration = Duration::from_secs(1);

/// Receives messages from links.
pub(crate) trait Receiver: Send + Sync {
    /// A message from a robot arrived.
    fn on_parcel(&self, from: RobotId, path: PathId, message: Bytes);
    /// The subscriptions announced to the other end of a new link: this robot's topics, one per line.
    fn subscribed_topics(&self) -> String;
}

/// All links of a robot.
#[derive(Debug)]
pub(crate) struct Links {
    member: Arc<Member>,
    robot: Arc<SharedRobot>,
    coordination: Arc<Coordination>,
    /// Set once the node is open.
    receiver: OnceLock<Weak<dyn Receiver>>,
    threads: OwnRuntime,
    /// One per path; taken when the node closes.
    endpoints: Mutex<Vec<Endpoint>>,
    /// What the socket of each path has handed over.
    handed: Vec<Arc<Handed>>,
    client: quinn::ClientConfig,
    server: quinn::ServerConfig,
    /// By robot, then by path.
    out: Vec<Vec<Mutex<Link>>>,
    /// The newest connection to each robot over each path.
    newest: Mutex<BTreeMap<(RobotId, PathId), Connection>>,
    /// The number of attempts to open a link so far.
    tries: AtomicU64,
}

#[derive(Debug)]
enum Link {
    Down,
    Opening {
        /// The number of the attempt: one that another robot's link has overtaken has no effect.
        number: u64,
        waiting: BTreeMap<Slot, Message>,
        /// When something was last sent.
        wanted: Instant,
    },
    Up(Arc<Up>),
}

impl Links {
    /// Binds the sockets of all paths. Connections are accepted once there is a receiver.
    pub fn open(
        member: &Arc<Member>,
        robot: &Arc<SharedRobot>,
        coordination: &Arc<Coordination>,
        credentials: &Credentials,
    ) -> Result<Arc<Links>, Error> {
        let failed = |what: &str, error| Error::Socket(format!("cannot {what} for control"), error);
        let threads = OwnRuntime::start(1, "coorp-control", || _ = real_time())
            .map_err(|error| failed("start a thread", error))?;
        let entered = threads.handle().enter();
        let server = credentials.server(PROTOCOL)?;
        let mut endpoints = Vec::with_capacity(member.paths);
        let mut handed = Vec::with_capacity(member.paths);
        for path in 0..member.paths {
            let (address, interface) = member.outlet(path);
            let address = SocketAddr::new(address, port(member, member.me, path));
            let socket = bind("control", address, interface)?;
            let config = credentials.endpoint(&socket);
            let socket = MarkedSocket::new(socket).map_err(|error| failed("set up a socket", error))?;
            handed.push(socket.handed());
            let endpoint =
                Endpoint::new_with_abstract_socket(config, Some(server.clone()), socket, Arc::new(quinn::TokioRuntime));
            endpoints.push(endpoint.map_err(|error| failed("open QUIC", error))?);
        }
        drop(entered);
        let robots = (0u16..).map(RobotId).take(member.team.robots.len());
        let out = robots.map(|to| {
            let paths = if to == member.me {
                0
            } else {
                member.team.paths_between(member.me, to).min(member.paths)
            };
            (0..paths).map(|_| Mutex::new(Link::Down)).collect()
        });
        Ok(Arc::new(Links {
            out: out.collect(),
            member: member.clone(),
            robot: robot.clone(),
            coordination: coordination.clone(),
            receiver: OnceLock::new(),
            threads,
            endpoints: Mutex::new(endpoints),
            handed,
            client: credentials.client(PROTOCOL)?,
            server,
            newest: Mutex::default(),
            tries: AtomicU64::new(0),
        }))
    }

    /// Accepts connections from now on, and passes on messages for as long as the receiver exists.
    pub fn receive(self: &Arc<Self>, receiver: Weak<dyn Receiver>) {
        // Set only here.
        let _ = self.receiver.set(receiver);
        for (path, endpoint) in lock(&self.endpoints).iter().enumerate() {
            let taking = accept(Arc::downgrade(self), endpoint.clone(), path);
            self.threads.handle().spawn(taking);
        }
    }

    /// Sends a message to a robot, or drops it if it cannot go. Does not block. Returns the target by which to tell
    /// when it has left, unless it has to wait for a link.
    pub fn send(self: &Arc<Self>, to: RobotId, path: PathId, parcel: &Parcel, content: &Bytes) -> Option<Target> {
        let slot = match parcel {
            Parcel::Control { topic, .. } => Some((false, topic.clone())),
            Parcel::State { topic, .. } => Some((true, topic.clone())),
            Parcel::Robot(_) | Parcel::Subscriptions => None,
        };
        let message = Message {
            slot,
            head: wire::pack(parcel),
            content: content.clone(),
        };
        if matches!(parcel, Parcel::Robot(Echo(_))) && self.answer(to, path, &message) {
            return None;
        }
        let mut link = self.link(to, path.0.into())?;
        match &mut *link {
            Link::Up(up) if up.is_open() => {
                let up = up.clone();
                drop(link);
                let bytes = message.head.len() + message.content.len();
                // Before the message goes, because it may be handed over at once.
                let target = message.slot.as_ref().and(self.handed.get(usize::from(path.0)));
                let target = target.map(|socket| socket.expect(bytes));
                up.send(self.threads.handle(), message);
                return target;
            }
            Link::Opening { waiting, wanted, .. } => {
                *wanted = Instant::now();
                let slot = message.slot.clone();
                if let Some(slot) = slot.filter(|slot| waiting.len() < WAITING_MAX || waiting.contains_key(slot)) {
                    waiting.insert(slot, message);
                }
            }
            Link::Up(_) | Link::Down => self.begin(&mut link, to, path.0.into(), Some(message)),
        }
        None
    }

    /// Sends an answer over the newest link that the robot has opened, which is the one that it sends over. Returns
    /// whether there is one.
    fn answer(&self, to: RobotId, path: PathId, message: &Message) -> bool {
        let newest = lock(&self.newest).get(&(to, path)).cloned();
        let Some(connection) = newest.filter(|connection| connection.close_reason().is_none()) else {
            return false;
        };
        let _ = connection.send_datagram(message.head.clone().into());
        true
    }

    /// Opens the links to a robot that is about to be sent to.
    pub fn warm(self: &Arc<Self>, to: RobotId) {
        for path in 0..self.out.get(usize::from(to.0)).map_or(0, Vec::len) {
            let Some(mut link) = self.link(to, path) else { continue };
            let is_up = matches!(&*link, Link::Up(up) if up.is_open());
            if !is_up && !matches!(&*link, Link::Opening { .. }) {
                self.begin(&mut link, to, path, None);
            }
        }
    }

    /// A robot was away, since `gone_at` at the latest, and may have restarted: messages over earlier links may reach
    /// nobody.
    pub fn renew(self: &Arc<Self>, robot: RobotId, gone_at: CoreInstant) {
        let mut known = false;
        for link in self.out.get(usize::from(robot.0)).into_iter().flatten() {
            let mut link = lock(link);
            if let Link::Up(up) = &*link {
                if up.since > gone_at {
                    continue;
                }
                up.connection.close(0u8.into(), b"anew");
                *link = Link::Down;
                known = true;
            }
        }
        if known {
            self.warm(robot);
        }
    }

    /// Another robot has opened a link: this one uses it too, unless its own has precedence.
    fn adopt(&self, from: RobotId, path: usize, connection: &Connection) {
        let Some(link) = self.link(from, path) else { return };
        let stays = match &*link {
            Link::Up(up) => up.is_open(),
            Link::Opening { .. } => true,
            Link::Down => false,
        };
        if !stays || from < self.member.me {
            if let Some(before) = self.put_up(link, connection) {
                // Once messages in flight over it have arrived.
                self.threads.handle().spawn(async move {
                    tokio::time::sleep(STREAM_MAX).await;
                    before.connection.close(0u8.into(), b"another one is in use");
                });
            }
        }
    }

    /// Uses this connection from now on, and sends the waiting messages. Returns the previous one.
    fn put_up(&self, mut link: MutexGuard<'_, Link>, connection: &Connection) -> Option<Arc<Up>> {
        let up = Up::new(connection, self.robot.now());
        let before = std::mem::replace(&mut *link, Link::Up(up.clone()));
        drop(link);
        match before {
            Link::Opening { waiting, .. } => {
                let send = |message| up.send(self.threads.handle(), message);
                waiting.into_values().for_each(send);
                None
            }
            Link::Up(before) => Some(before),
            Link::Down => None,
        }
    }

    fn link(&self, to: RobotId, path: usize) -> Option<MutexGuard<'_, Link>> {
        self.out.get(usize::from(to.0))?.get(path).map(lock)
    }

    fn begin(self: &Arc<Self>, link: &mut Link, to: RobotId, path: usize, first: Option<Message>) {
        if lock(&self.endpoints).is_empty() {
            return; // The node has closed.
        }
        let waiting = first.and_then(|message| message.slot.clone().map(|slot| (slot, message)));
        let number = self.tries.fetch_add(1, Ordering::Relaxed);
        *link = Link::Opening {
            number,
            waiting: waiting.into_iter().collect(),
            wanted: Instant::now(),
        };
        self.threads.handle().spawn(open(self.clone(), to, path, number));
    }

    async fn connect(&self, to: RobotId, path: usize) -> Result<Connection, String> {
        let member = &self.member;
        let address = self
            .coordination
            .address_of(to, path)
            .ok_or("nobody knows its address: it is not here")?;
        let endpoint = lock(&self.endpoints).get(path).cloned().ok_or("the node has closed")?;
        let address = SocketAddr::new(address, port(member, to, path));
        let mut client = self.client.clone();
        client.transport_config(transport(true, lengths(address, member.outlet(path))));
        connect(&endpoint, client, (&member.team, to), address, CONNECT_MAX).await
    }

    /// Handles the result of an attempt to connect; sends the waiting messages.
    fn settle(&self, to: RobotId, path: usize, tried: u64, connected: Result<Connection, String>) -> Opened {
        let Some(mut link) = self.link(to, path) else {
            return Opened::GivenUp;
        };
        let wanted = match &*link {
            Link::Opening { number, wanted, .. } if *number == tried => wanted,
            _ => return Opened::GivenUp,
        };
        let connection = match connected {
            Ok(connection) => connection,
            Err(why) => {
                tracing::debug!("control has no link to robot {} over path {path}: {why}", to.0);
                if wanted.elapsed() <= WANTED && !lock(&self.endpoints).is_empty() {
                    return Opened::NotYet;
                }
                *link = Link::Down;
                return Opened::GivenUp;
            }
        };
        self.put_up(link, &connection);
        Opened::Up(connection)
    }

    /// Ends everything. Outside async code, it waits briefly for the sockets to be gone.
    pub fn close(&self) {
        let endpoints = std::mem::take(&mut *lock(&self.endpoints));
        for endpoint in &endpoints {
            endpoint.close(0u8.into(), b"closed");
        }
        // So that the others are told; unreachable ones are not waited for.
        let told = async {
            for endpoint in &endpoints {
                let _ = tokio::time::timeout(GOODBYE_MAX, endpoint.wait_idle()).await;
            }
        };
        self.threads.end(told, CLOSE_MAX);
        self.handed.iter().for_each(|handed| handed.close());
    }
}

/// The port on which a robot receives control over a path.
fn port(member: &Member, robot: RobotId, path: usize) -> u16 {
    // A team file has no more paths than there are ports.
    member.team.port(robot) + PORT_CONTROL + u16::try_from(path).unwrap_or(0)
}

/// Opens a link, and retries while there is something to send.
async fn open(links: Arc<Links>, to: RobotId, path: usize, number: u64) {
    loop {
        let connected = links.connect(to, path).await;
        match links.settle(to, path, number, connected) {
            Opened::Up(connection) => {
                return listen(links, connection, to, path).await;
            }
            Opened::NotYet => tokio::time::sleep(RETRY).await,
            Opened::GivenUp => return,
        }
    }
}

/// The result of an attempt to open a link.
enum Opened {
    Up(Connection),
    NotYet,
    GivenUp,
}

/// Accepts links over one path until its endpoint closes: one per robot, its newest, because it opens no more.
async fn accept(links: Weak<Links>, endpoint: Endpoint, path: usize) {
    let taken: Arc<Mutex<BTreeMap<RobotId, Connection>>> = Arc::default();
    while let Some(incoming) = endpoint.accept().await {
        let Some(open) = links.upgrade() else { return };
        let Some((incoming, place)) = open.member.door.admit(incoming) else {
            continue;
        };
        let (links, taken, mut server) = (links.clone(), taken.clone(), open.server.clone());
        let address = incoming.remote_address();
        server.transport_config(transport(false, lengths(address, open.member.outlet(path))));
        drop(open);
        let Ok(connecting) = incoming.accept_with(Arc::new(server)) else {
            continue;
        };
        tokio::spawn(async move {
            let connected = place.shake_hands(connecting).await;
            let Some(links) = links.upgrade() else { return };
            let member = &links.member;
            let connection = match connected {
                Ok(connection) => connection,
                Err(error) => return member.refused.on_not_connected("control", address, error.as_ref()),
            };
            let Some(from) = peer(&member.team, &connection).filter(|from| *from != member.me) else {
                member.refused.count_stranger(address);
                place.is_strangers();
                return connection.close(1u8.into(), b"not a robot of this team");
            };
            if !place.is_robots(from) {
                return connection.close(1u8.into(), b"too many connections");
            }
            if let Some(older) = lock(&taken).insert(from, connection.clone()) {
                older.close(0u8.into(), b"a newer one came");
            }
            links.adopt(from, path, &connection);
            listen(links, connection, from, path).await;
        });
    }
}

/// Receives a robot's messages over a link until it ends.
async fn listen(links: Arc<Links>, connection: Connection, from: RobotId, path: usize) {
    let path = PathId(u8::try_from(path).unwrap_or(u8::MAX));
    lock(&links.newest).insert((from, path), connection.clone());
    let (Some(receiver), member) = (links.receiver.get().cloned(), links.member.clone()) else {
        return;
    };
    // A mere listener must not keep the links alive.
    drop(links);
    if let Some(receiver) = receiver.upgrade() {
        let mut told = wire::pack(&Parcel::Subscriptions);
        told.extend_from_slice(receiver.subscribed_topics().as_bytes());
        // If it does not fit, the tokens announce the same.
        let _ = connection.send_datagram(told.into());
    }
    loop {
        let (bytes, stream) = tokio::select! {
            bytes = connection.read_datagram() => (Some(bytes), None),
            stream = connection.accept_uni() => (None, Some(stream)),
        };
        match (bytes, stream) {
            (Some(Ok(bytes)), _) => {
                let Some(receiver) = receiver.upgrade() else { return };
                receiver.on_parcel(from, path, bytes);
            }
            (_, Some(Ok(mut stream))) => {
                let (receiver, member) = (receiver.clone(), member.clone());
                tokio::spawn(async move {
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
                });
            }
            _ => return,
        }
    }
}
