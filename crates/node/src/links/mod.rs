//! Links: what carries control from one robot to another, over one path.
//!
//! A link is a QUIC connection between two robots, made by the first that has something to say and used by both: what one
//! says acknowledges the other. Of two that were made at once that of the robot earlier in the team file stays in use.
//! What fits into a datagram goes as one: the newest counts, and what is lost is not worth waiting for.
//! What is larger goes over a stream of its own, so that a lost datagram delays its own message and no other. Few
//! messages of a topic are on their way at once; of those that wait behind them the newest stays. Answers to probes come
//! back over the same link. Each path has its own socket, marked for AC_VO (`socket.rs`), at both ends.
//!
//! Control is not held back by a congestion window: it is small, comes at a period, and what is late is of no use. The
//! fabric does not carry it, as its QUIC links cannot be marked on Linux and its TCP links let one lost segment hold up
//! all that comes after it (decision 13).
//!
//! Whom to send to is known from tokens on the fabric (`subscriptions.rs`), who is at the other end from its certificate. Left
//! out: resuming without a new handshake.

mod socket;
mod subscriptions;

use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use coorp_core::paths::PathId;
use coorp_core::robot::Message::Echo;
use coorp_core::{Instant as CoreInstant, RobotId};
use quinn::congestion::{Controller, ControllerFactory};
use quinn::{
    AckFrequencyConfig, Connection, Endpoint, IdleTimeout, MtuDiscoveryConfig, ReadToEndError, SendDatagramError,
    SendStream, TransportConfig, VarInt,
};

use self::socket::MarkedSocket;
pub(crate) use self::subscriptions::Subscriptions;
use crate::fabric::{MESSAGE_BYTES_MAX, PORT_CONTROL};
use crate::keys::SERVER_NAME;
use crate::node::Inner;
use crate::outqueue::{Handed, Target};
use crate::own_runtime::OwnRuntime;
use crate::quic::{bind, lengths, peer, Credentials, Door};
use crate::sync::lock;
use crate::wire::{self, Parcel};
use crate::Error;

const PROTOCOL: &[u8] = b"coorp-control/1";
/// An end that says nothing for so long is gone.
const IDLE_MS: u32 = 3_000;
/// Whoever opened a link keeps it.
const KEEP_ALIVE: Duration = Duration::from_secs(1);
/// Before the first round trip is known: a lost first datagram of a handshake is sent again after three of these.
const ROUND_TRIP_FIRST: Duration = Duration::from_millis(50);
/// A try to connect ends after so long, and the next begins.
const CONNECT_MAX: Duration = Duration::from_secs(1);
const RETRY: Duration = Duration::from_millis(100);
/// Nobody has sent anything for so long: it is no longer tried.
const WANTED: Duration = Duration::from_secs(5);
/// Topics whose newest message waits for a link.
const WAITING_MAX: usize = 256;
/// Large messages of a topic that are on their way, the ones included that have arrived and are not acknowledged yet; and
/// while the oldest is on its way for longer than acknowledgements take, as when nothing gets through.
const FLYING_MAX: usize = 32;
const FLYING_LATE_MAX: usize = 4;
const LATE: Duration = Duration::from_millis(100);
/// Large messages that are taken at once over a link. [`RECEIVE_BYTES`] bounds what they have in memory; more of them are
/// allowed, in a frame of its own, whenever an eighth has come.
const STREAMS_MAX: u32 = 64;
/// A large message that takes longer is given up.
const STREAM_MAX: Duration = Duration::from_secs(5);
/// An acknowledgement is a frame on the air that control may have to wait for. So the receiver is asked for one after so
/// many datagrams, or so long after the first: where control goes both ways 30 times a second or more often, it rides on
/// what goes back anyway. A datagram that is missing between others is told of at once. quinn asks for
/// no more than the round trip, or 25 ms where that is shorter.
const ACKNOWLEDGE_EVERY: u32 = 64;
const ACKNOWLEDGE_WITHIN: Duration = Duration::from_millis(50);
/// What is under way on one link at most.
const WINDOW_BYTES: u64 = 1 << 20;
const RECEIVE_BYTES: u32 = 32 << 20;
/// Datagrams that wait to be sent, and to be taken; older ones make room.
const DATAGRAMS_BYTES: usize = 256 << 10;
/// Closing waits so long for the others to be told, and then for the thread.
const GOODBYE_MAX: Duration = Duration::from_millis(50);
const CLOSE_MAX: Duration = Duration::from_secs(1);

/// Newer messages of a slot take the place of older ones.
type Slot = (bool, String);

/// A message: what it is, and its content.
#[derive(Clone, Debug)]
struct Message {
    /// `None`: of no use later.
    slot: Option<Slot>,
    head: Vec<u8>,
    content: Bytes,
}

/// All links of a robot.
#[derive(Debug)]
pub(crate) struct Links {
    node: Weak<Inner>,
    threads: OwnRuntime,
    /// One a path; taken when the node closes.
    endpoints: Mutex<Vec<Endpoint>>,
    /// What the socket of each path has handed over.
    handed: Vec<Arc<Handed>>,
    client: quinn::ClientConfig,
    /// By robot, then by path.
    out: Vec<Vec<Mutex<Link>>>,
    /// The connection to each robot over each path that came about last.
    newest: Mutex<BTreeMap<(RobotId, PathId), Connection>>,
    /// Tries to open a link so far.
    tries: AtomicU64,
}

#[derive(Debug)]
enum Link {
    Down,
    Opening {
        /// Which try it is: one that was overtaken by another robot's link says nothing any more.
        number: u64,
        waiting: BTreeMap<Slot, Message>,
        /// When somebody last sent something.
        wanted: Instant,
    },
    Up(Arc<Up>),
}

impl Link {
    /// Goes by this connection from now on. Answers with what has waited for one, and the one that it went by before.
    fn put_up(&mut self, connection: &Connection, now: CoreInstant) -> (Arc<Up>, Vec<Message>, Option<Arc<Up>>) {
        let up = Arc::new(Up {
            connection: connection.clone(),
            since: now,
            large: Mutex::default(),
        });
        match std::mem::replace(self, Link::Up(up.clone())) {
            Link::Opening { waiting, .. } => (up, waiting.into_values().collect(), None),
            Link::Up(before) => (up, Vec::new(), Some(before)),
            Link::Down => (up, Vec::new(), None),
        }
    }
}

#[derive(Debug)]
struct Up {
    connection: Connection,
    /// When it came about.
    since: CoreInstant,
    large: Mutex<BTreeMap<Slot, Large>>,
}

/// A large message on its way.
type Sending = Pin<Box<dyn Future<Output = Result<(), String>> + Send>>;

#[derive(Debug, Default)]
struct Large {
    /// Since when, the oldest first.
    flying: VecDeque<Instant>,
    next: Option<Message>,
}

impl Links {
    /// Listens on all paths.
    pub fn open(node: &Arc<Inner>, credentials: &Credentials) -> Result<Arc<Links>, Error> {
        let failed = |what: &str, error: std::io::Error| Error::Failed(format!("cannot {what} for control: {error}"));
        let threads = OwnRuntime::start(1, "coorp-control").map_err(|error| failed("start a thread", error))?;
        let handle = threads.handle().clone();
        let entered = handle.enter();
        let server = credentials.server(PROTOCOL)?;
        let mut endpoints = Vec::with_capacity(node.paths);
        let mut handed = Vec::with_capacity(node.paths);
        for path in 0..node.paths {
            let (address, interface) = node.outlet(path);
            let socket = bind(
                "control",
                SocketAddr::new(address, port(node, node.me, path)),
                interface,
            )?;
            let config = credentials.endpoint(&socket);
            let socket = MarkedSocket::new(socket).map_err(|error| failed("set up a socket", error))?;
            handed.push(socket.handed());
            let endpoint =
                Endpoint::new_with_abstract_socket(config, Some(server.clone()), socket, Arc::new(quinn::TokioRuntime));
            endpoints.push(endpoint.map_err(|error| failed("open QUIC", error))?);
        }
        let robots = (0u16..).map(RobotId).take(node.team.robots.len());
        let out = robots.map(|to| {
            let paths = if to == node.me {
                0
            } else {
                node.team.paths_between(node.me, to).min(node.paths)
            };
            (0..paths).map(|_| Mutex::new(Link::Down)).collect()
        });
        let links = Arc::new(Links {
            node: Arc::downgrade(node),
            threads,
            endpoints: Mutex::new(endpoints.clone()),
            handed,
            client: credentials.client(PROTOCOL)?,
            out: out.collect(),
            newest: Mutex::default(),
            tries: AtomicU64::new(0),
        });
        for (path, endpoint) in endpoints.into_iter().enumerate() {
            tokio::spawn(accept(Arc::downgrade(&links), endpoint, path, server.clone()));
        }
        drop(entered);
        Ok(links)
    }

    /// Sends a message to a robot, or drops it where it cannot go. Does not wait. Returns what tells when it has left, unless
    /// it has to wait for a link.
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
            Link::Up(up) if up.connection.close_reason().is_none() => {
                let up = up.clone();
                drop(link);
                let bytes = message.head.len() + message.content.len();
                // Before it goes, as it may be handed over at once.
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

    /// Sends an answer back over the link that the robot made last, which is the one that it speaks by. Returns whether
    /// there is one.
    fn answer(&self, to: RobotId, path: PathId, message: &Message) -> bool {
        let newest = lock(&self.newest).get(&(to, path)).cloned();
        let Some(connection) = newest.filter(|connection| connection.close_reason().is_none()) else {
            return false;
        };
        let _ = connection.send_datagram(message.head.clone().into());
        true
    }

    /// Makes the links to a robot that is about to be sent to.
    pub fn warm(self: &Arc<Self>, to: RobotId) {
        for path in 0..self.out.get(usize::from(to.0)).map_or(0, Vec::len) {
            let Some(mut link) = self.link(to, path) else { continue };
            let is_up = matches!(&*link, Link::Up(up) if up.connection.close_reason().is_none());
            if !is_up && !matches!(&*link, Link::Opening { .. }) {
                self.begin(&mut link, to, path, None);
            }
        }
    }

    /// A robot was away, since `gone_at` at the latest, and may have started anew: what is said over links from before may
    /// reach nobody.
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

    /// Another robot has made a link: this one goes by it too, unless it has one that is to stay.
    fn adopt(&self, from: RobotId, path: usize, connection: &Connection) {
        let Some(node) = self.node.upgrade() else { return };
        let Some(mut link) = self.link(from, path) else { return };
        let stays = match &*link {
            Link::Up(up) => up.connection.close_reason().is_none(),
            Link::Opening { .. } => true,
            Link::Down => false,
        };
        if !stays || from < node.me {
            let (up, waiting, before) = link.put_up(connection, node.now());
            drop(link);
            for message in waiting {
                up.send(self.threads.handle(), message);
            }
            if let Some(before) = before {
                // Once what is on its way there has arrived.
                self.threads.handle().spawn(async move {
                    tokio::time::sleep(STREAM_MAX).await;
                    before.connection.close(0u8.into(), b"another one is in use");
                });
            }
        }
    }

    fn link(&self, to: RobotId, path: usize) -> Option<std::sync::MutexGuard<'_, Link>> {
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
        let node = self.node.upgrade().ok_or("the node has closed")?;
        let address = node
            .address_of(to, path)
            .ok_or("nobody knows its address: it is not here")?;
        let endpoint = lock(&self.endpoints).get(path).cloned().ok_or("the node has closed")?;
        let address = SocketAddr::new(address, port(&node, to, path));
        let mut client = self.client.clone();
        client.transport_config(transport(true, lengths(address, node.outlet(path))));
        let connecting = endpoint.connect_with(client, address, SERVER_NAME);
        let connecting = connecting.map_err(|error| error.to_string())?;
        let connection = tokio::time::timeout(CONNECT_MAX, connecting).await;
        let connection = connection
            .map_err(|_| format!("{address} does not answer"))?
            .map_err(|error| error.to_string())?;
        if peer(&node.team, &connection) != Some(to) {
            connection.close(1u8.into(), b"another robot");
            return Err(format!("another robot answers at {address}"));
        }
        Ok(connection)
    }

    /// What a try to connect has come to; sends what has waited.
    fn settle(&self, to: RobotId, path: usize, tried: u64, connected: Result<Connection, String>) -> Opened {
        let (Some(mut link), Some(node)) = (self.link(to, path), self.node.upgrade()) else {
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
        let (up, waiting, _) = link.put_up(&connection, node.now());
        drop(link);
        for message in waiting {
            up.send(self.threads.handle(), message);
        }
        Opened::Up(connection)
    }

    /// Ends all of it. Waits a moment for the sockets to be gone, where it is not called from async code.
    pub fn close(&self) {
        let endpoints = std::mem::take(&mut *lock(&self.endpoints));
        for endpoint in &endpoints {
            endpoint.close(0u8.into(), b"closed");
        }
        // So that the others are told; whoever is out of reach is not waited for.
        let told = async {
            for endpoint in &endpoints {
                let _ = tokio::time::timeout(GOODBYE_MAX, endpoint.wait_idle()).await;
            }
        };
        self.threads.end(told, CLOSE_MAX);
        self.handed.iter().for_each(|handed| handed.close());
    }
}

/// Where a robot takes control over a path.
fn port(node: &Inner, robot: RobotId, path: usize) -> u16 {
    // A team file has no more paths than there are ports.
    node.team.port(robot) + PORT_CONTROL + u16::try_from(path).unwrap_or(0)
}

/// Opens a link, and tries again while somebody wants to send.
async fn open(links: Arc<Links>, to: RobotId, path: usize, number: u64) {
    loop {
        let connected = links.connect(to, path).await;
        match links.settle(to, path, number, connected) {
            Opened::Up(connection) => {
                let node = links.node.clone();
                // Whoever only listens must not keep the links.
                drop(links);
                return listen(node, connection, to, path).await;
            }
            Opened::NotYet => tokio::time::sleep(RETRY).await,
            Opened::GivenUp => return,
        }
    }
}

/// What came of a try to open a link.
enum Opened {
    Up(Connection),
    NotYet,
    GivenUp,
}

impl Large {
    fn may_fly(&self) -> bool {
        let late = self.flying.front().is_some_and(|since| since.elapsed() > LATE);
        self.flying.len() < if late { FLYING_LATE_MAX } else { FLYING_MAX }
    }
}

impl Up {
    fn send(self: &Arc<Self>, on: &tokio::runtime::Handle, message: Message) {
        let length = message.head.len() + message.content.len();
        if self.connection.max_datagram_size().is_some_and(|most| length <= most) {
            let mut whole = message.head.clone();
            whole.extend_from_slice(&message.content);
            match self.connection.send_datagram(whole.into()) {
                // A path that has just become narrower.
                Err(SendDatagramError::TooLarge) => {}
                Err(error) => return tracing::trace!("a control message was not sent: {error}"),
                Ok(()) => return,
            }
        }
        let Some(slot) = message.slot.clone() else { return };
        let mut all = lock(&self.large);
        let large = all.entry(slot.clone()).or_default();
        if !large.may_fly() {
            large.next = Some(message);
            return;
        }
        let since = Instant::now();
        large.flying.push_back(since);
        drop(all);
        let mut sending: Sending = Box::pin(self.clone().send_stream(message));
        // What QUIC has room for is given to it here and now, without the way over another thread.
        if let Poll::Ready(sent) = sending.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            sending = Box::pin(std::future::ready(sent));
        }
        on.spawn(self.clone().fly(slot, sending, since));
    }

    /// Ends the sending of a large message, and then sends whatever has come to wait behind it.
    async fn fly(self: Arc<Self>, slot: Slot, mut sending: Sending, mut since: Instant) {
        loop {
            let sent = tokio::time::timeout(STREAM_MAX, sending).await;
            if let Ok(Err(why)) = &sent {
                tracing::trace!("a large control message was not sent: {why}");
            }
            let mut large = lock(&self.large);
            let Some(entry) = large.get_mut(&slot) else { return };
            if let Some(place) = entry.flying.iter().position(|flying| *flying == since) {
                entry.flying.remove(place);
            }
            if !entry.flying.is_empty() && !entry.may_fly() {
                return; // One of the others takes what waits.
            }
            let Some(next) = entry.next.take() else {
                if entry.flying.is_empty() {
                    large.remove(&slot);
                }
                return;
            };
            (sending, since) = (Box::pin(self.clone().send_stream(next)), Instant::now());
            entry.flying.push_back(since);
        }
    }

    async fn send_stream(self: Arc<Self>, message: Message) -> Result<(), String> {
        let stream = self.connection.open_uni().await.map_err(|error| error.to_string())?;
        let mut stream = Unfinished(stream);
        let mut parts = [message.head.into(), message.content];
        stream
            .0
            .write_all_chunks(&mut parts)
            .await
            .map_err(|error| error.to_string())?;
        stream.0.finish().map_err(|error| error.to_string())?;
        // Until it is there.
        stream.0.stopped().await.map_err(|error| error.to_string())?;
        Ok(())
    }
}

/// A stream that is given up unless it is whole: whoever receives half a message must not take it for one.
struct Unfinished(SendStream);

impl Drop for Unfinished {
    fn drop(&mut self) {
        // Of no effect once all has arrived.
        let _ = self.0.reset(0u8.into());
    }
}

/// Takes links over one path until its endpoint closes: one of each robot, its newest, as it opens no more.
async fn accept(links: Weak<Links>, endpoint: Endpoint, path: usize, server: quinn::ServerConfig) {
    let door = Door::default();
    let taken: Arc<Mutex<BTreeMap<RobotId, Connection>>> = Arc::default();
    while let Some(incoming) = endpoint.accept().await {
        let Some((incoming, place)) = door.admit(incoming) else {
            continue;
        };
        let Some(node) = links.upgrade().and_then(|links| links.node.upgrade()) else {
            return;
        };
        let (links, taken, mut server) = (links.clone(), taken.clone(), server.clone());
        server.transport_config(transport(false, lengths(incoming.remote_address(), node.outlet(path))));
        drop(node);
        let address = incoming.remote_address();
        let Ok(connecting) = incoming.accept_with(Arc::new(server)) else {
            continue;
        };
        tokio::spawn(async move {
            let Ok(connected) = tokio::time::timeout(CONNECT_MAX, connecting).await else {
                return;
            };
            let Some(links) = links.upgrade() else { return };
            let node = links.node.clone();
            let Some(inner) = node.upgrade() else { return };
            let connection = match connected {
                Ok(connection) => connection,
                Err(error) => return inner.on_not_connected("control", address, &error),
            };
            let from = peer(&inner.team, &connection).filter(|from| *from != inner.me);
            let Some(from) = from else {
                inner.refused.count_stranger(address);
                return connection.close(1u8.into(), b"not a robot of this team");
            };
            drop((inner, place));
            if let Some(older) = lock(&taken).insert(from, connection.clone()) {
                older.close(0u8.into(), b"a newer one came");
            }
            links.adopt(from, path, &connection);
            // Whoever only listens must not keep the links.
            drop(links);
            listen(node, connection, from, path).await;
        });
    }
}

/// Takes what a robot says over a link until it ends.
async fn listen(node: Weak<Inner>, connection: Connection, from: RobotId, path: usize) {
    let path = PathId(u8::try_from(path).unwrap_or(u8::MAX));
    if let Some(inner) = node.upgrade() {
        if let Some(links) = inner.links() {
            lock(&links.newest).insert((from, path), connection.clone());
        }
        let mut told = wire::pack(&Parcel::Subscriptions);
        told.extend_from_slice(inner.subscribed_topics().as_bytes());
        // Where it does not fit, tokens tell as well.
        let _ = connection.send_datagram(told.into());
    }
    loop {
        let (bytes, stream) = tokio::select! {
            bytes = connection.read_datagram() => (Some(bytes), None),
            stream = connection.accept_uni() => (None, Some(stream)),
        };
        match (bytes, stream) {
            (Some(Ok(bytes)), _) => {
                let Some(inner) = node.upgrade() else { return };
                inner.on_parcel(from, path, bytes);
            }
            (_, Some(Ok(mut stream))) => {
                let node = node.clone();
                tokio::spawn(async move {
                    let read = stream.read_to_end(wire::PARCEL_BYTES_MAX + MESSAGE_BYTES_MAX);
                    let read = tokio::time::timeout(STREAM_MAX, read).await;
                    let Some(inner) = node.upgrade() else { return };
                    match read {
                        Ok(Ok(bytes)) => inner.on_parcel(from, path, bytes.into()),
                        Ok(Err(ReadToEndError::TooLong)) => {
                            inner.refused.count("a control message", wire::Refusal::Oversized);
                        }
                        // It was given up, or the link has ended.
                        Ok(Err(ReadToEndError::Read(_))) | Err(_) => {}
                    }
                });
            }
            _ => return,
        }
    }
}

/// How a link is set up by who `opens` it or by the other one, with datagrams of these lengths.
fn transport(opens: bool, lengths: MtuDiscoveryConfig) -> Arc<TransportConfig> {
    let mut transport = TransportConfig::default();
    transport
        .max_idle_timeout(Some(IdleTimeout::from(VarInt::from_u32(IDLE_MS))))
        .keep_alive_interval(opens.then_some(KEEP_ALIVE))
        .initial_rtt(ROUND_TRIP_FIRST)
        .max_concurrent_bidi_streams(VarInt::from_u32(0))
        .max_concurrent_uni_streams(VarInt::from_u32(STREAMS_MAX))
        .stream_receive_window(VarInt::from_u32(RECEIVE_BYTES))
        .receive_window(VarInt::from_u32(RECEIVE_BYTES))
        .send_window(u64::from(RECEIVE_BYTES))
        .datagram_receive_buffer_size(Some(DATAGRAMS_BYTES))
        .datagram_send_buffer_size(DATAGRAMS_BYTES)
        .mtu_discovery_config(Some(lengths))
        .congestion_controller_factory(Arc::new(SteadyConfig));
    let mut acknowledgements = AckFrequencyConfig::default();
    acknowledgements
        .ack_eliciting_threshold(VarInt::from_u32(ACKNOWLEDGE_EVERY))
        .max_ack_delay(Some(ACKNOWLEDGE_WITHIN));
    transport.ack_frequency_config(Some(acknowledgements));
    Arc::new(transport)
}

/// Always the same window.
#[derive(Clone, Debug)]
struct Steady;

struct SteadyConfig;

impl ControllerFactory for SteadyConfig {
    fn build(self: Arc<Self>, _: Instant, _: u16) -> Box<dyn Controller> {
        Box::new(Steady)
    }
}

impl Controller for Steady {
    fn on_congestion_event(&mut self, _: Instant, _: Instant, _: bool, _: u64) {}

    fn on_mtu_update(&mut self, _: u16) {}

    fn window(&self) -> u64 {
        WINDOW_BYTES
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(Steady)
    }

    fn initial_window(&self) -> u64 {
        WINDOW_BYTES
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}
