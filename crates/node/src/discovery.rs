//! Finds the other robots of a team: announces this robot on the networks of its paths, listens for the others, and
//! says whom to dial. `core::discovery` decides; this module carries it out, over multicast DNS
//! (`discovery/packet.rs`).
//!
//! One thread does everything. For each of this machine's addresses that a path uses, it has one socket, bound to the
//! group. So it gets no unicast datagrams, and does not compete with Avahi or systemd-resolved for those. Several
//! robots on one machine work for the same reason. Twice a second the thread lists the interfaces. A robot announces
//! itself when an interface comes up or changes its address, and when somebody asks for it, at most once a second.
//!
//! `DATAGRAMS_MAX` bounds what the thread reads from the network; the kernel bounds what waits meanwhile. Nothing is
//! cached: a datagram leads to a hint, or to nothing. Left out: IPv6 networks without IPv4, and answers to a single
//! asker. Decision 23 says why no library does this.

mod packet;
mod places;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};
use std::sync::{Arc, Mutex, Weak};
use std::task::Poll;
use std::time::Duration as StdDuration;

use coorp_core::discovery::{Action, Discovery, Hint, Target};
pub use coorp_core::discovery::{AttemptId, Counts, Outcome, Refusal};
use coorp_core::paths::PathId;
use coorp_core::{Duration, Instant, RobotId};
use coorp_team::Team;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::UdpSocket;
use tokio::sync::Notify;

pub use self::packet::{Heard, Names, DATAGRAM_BYTES_MAX};
pub(crate) use self::places::{places, Place};
use crate::clock::Clock;
use crate::ground::{Ground, Linux, Threads};
use crate::sync::lock;
use crate::tasks::caught_in;
use crate::Error;

/// Multicast DNS.
const GROUP: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(224, 0, 0, 251), 5_353);
const HOPS: u32 = 255;
/// The interval at which the interfaces are listed.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// The times after which a robot announces itself at a new place.
const ANNOUNCED_AFTER: [Duration; 3] = [
    Duration::ZERO,
    Duration::from_millis(1_000),
    Duration::from_millis(3_000),
];
/// The minimum time between two announcements at a place.
const ANNOUNCE_EVERY: Duration = Duration::from_secs(1);
/// The maximum delay of an answer, so that not all robots answer at once (RFC 6762, section 6).
const ANSWER_WITHIN_MS: u64 = 100;
/// The maximum time for which a full send buffer holds the thread.
const SEND_MAX: StdDuration = StdDuration::from_millis(50);
/// The number of datagrams read in each window; the rest waits, and is dropped by the kernel.
const DATAGRAMS_MAX: u32 = 1_000;
const WINDOW: Duration = Duration::from_millis(100);
/// The number of datagrams read before the thread does anything else.
const DATAGRAMS_AT_ONCE: u32 = 32;

/// An order to the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Connect to an address, and [report](Finder::report) how that ended.
    Dial {
        /// The attempt, for the report.
        attempt: AttemptId,
        /// The robot that is expected there.
        robot: RobotId,
        /// The path to use.
        path: PathId,
        /// The address; the port is in the team file.
        address: IpAddr,
    },
    /// Abandon an attempt.
    Stop(AttemptId),
    /// Bind the path's sockets again, because the interface that the team file names is now another card. This order
    /// comes before attempts over the new card.
    Rebind(PathId),
}

/// Finds the robots of a team until it is dropped.
#[derive(Debug)]
pub struct Finder {
    shared: Arc<Shared>,
    _threads: Threads,
}

struct Shared {
    ground: Arc<dyn Ground>,
    clock: Clock,
    team: Team,
    me: Option<RobotId>,
    paths: usize,
    /// The names under each authority: several while keys are being renewed.
    names: Vec<Names>,
    inner: Mutex<Inner>,
    /// Wakes the thread.
    changed: Notify,
    ordered: Notify,
}

#[derive(Debug)]
struct Inner {
    decisions: Discovery,
    /// At most one for each attempt and path: an attempt that is stopped before it has begun leaves no order.
    orders: VecDeque<Order>,
    searches: BTreeSet<PathId>,
    closed: bool,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Shared")
            .field("me", &self.me)
            .finish_non_exhaustive()
    }
}

impl Finder {
    /// Begins to look for the other robots of a team on `paths` paths: as the robot `me`, or as the operator, who is
    /// not announced. `authority` is the authority's certificate (DER); without one, hints need no proof. If the thread
    /// panics, `on_panic` gets the reason, and nothing more is found.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start(
        team: &Team,
        me: Option<RobotId>,
        paths: usize,
        authorities: &[impl AsRef<[u8]>],
        on_panic: impl FnOnce(String) + Send + 'static,
    ) -> Result<Finder, Error> {
        let ground: Arc<dyn Ground> = Arc::new(Linux);
        Finder::start_on(&ground, team, me, paths, authorities, on_panic)
    }

    /// Does the same on any ground.
    pub(crate) fn start_on(
        ground: &Arc<dyn Ground>,
        team: &Team,
        me: Option<RobotId>,
        paths: usize,
        authorities: &[impl AsRef<[u8]>],
        on_panic: impl FnOnce(String) + Send + 'static,
    ) -> Result<Finder, Error> {
        let clock = Clock::start(ground);
        let under = |authority: Option<&[u8]>| {
            let robots = team.robots.iter().map(|robot| robot.name.as_str());
            Names::new(&team.name, authority, robots)
        };
        let names = match authorities {
            [] => vec![under(None)],
            several => several
                .iter()
                .map(|authority| under(Some(authority.as_ref())))
                .collect(),
        };
        let targets = targets(team, me, paths);
        let decisions = Discovery::new(targets, !authorities.is_empty(), ground.random(), clock_now(&clock));
        let shared = Arc::new(Shared {
            ground: ground.clone(),
            clock,
            team: team.clone(),
            me,
            paths,
            names,
            inner: Mutex::new(Inner {
                decisions,
                orders: VecDeque::new(),
                searches: BTreeSet::new(),
                closed: false,
            }),
            changed: Notify::new(),
            ordered: Notify::new(),
        });
        let threads = ground.threads(1, "coorp-discovery", || ()).map_err(Error::Thread)?;
        let weak = Arc::downgrade(&shared);
        threads.tasks().spawn(Box::pin(async move {
            if let Some(why) = caught_in("looking for robots", run(weak)).await {
                on_panic(why);
            }
        }));
        Ok(Finder {
            shared,
            _threads: threads,
        })
    }

    /// Returns the next order; waits until there is one.
    pub async fn next(&self) -> Order {
        loop {
            let ordered = self.shared.ordered.notified();
            if let Some(order) = lock(&self.shared.inner).orders.pop_front() {
                return order;
            }
            ordered.await;
        }
    }

    /// Reports the outcome of an attempt. The outcome of a stopped attempt is ignored.
    pub fn report(&self, attempt: AttemptId, outcome: Outcome) {
        self.shared
            .tell(|decisions, now| decisions.on_outcome(attempt, outcome, now));
    }

    /// Reports a connection to a robot, whichever side has begun it.
    pub fn connected(&self, robot: RobotId, path: PathId, address: IpAddr) {
        let address = address.to_canonical();
        self.shared
            .tell(|decisions, now| decisions.on_connected(robot, path, address, now));
    }

    /// Reports that the last connection to a robot over a path has ended.
    pub fn lost(&self, robot: RobotId, path: PathId) {
        self.shared.tell(|decisions, now| decisions.on_lost(robot, path, now));
    }

    /// Returns what was heard, tried and refused so far.
    pub fn counts(&self) -> Counts {
        lock(&self.shared.inner).decisions.counts().clone()
    }
}

impl Finder {
    /// Announces, answers and searches no more.
    pub fn close(&self) {
        lock(&self.shared.inner).closed = true;
        self.shared.changed.notify_one();
    }
}

impl Drop for Finder {
    fn drop(&mut self) {
        self.close();
    }
}

/// Returns each other robot on each path that it has. A robot that may join calls the team, which does not wait for it.
fn targets(team: &Team, me: Option<RobotId>, paths: usize) -> Vec<Target> {
    let mine = me.and_then(|me| team.robots.get(usize::from(me.0)));
    let calls = mine.is_none_or(|me| me.may_join);
    let others = (0u16..)
        .map(RobotId)
        .zip(&team.robots)
        .filter(|(robot, _)| Some(*robot) != me);
    let of_each = others.flat_map(|(robot, of)| {
        let its = of.interfaces.len().max(of.addresses.len()).max(1);
        (0u8..).take(its.min(paths)).map(move |path| Target {
            robot,
            path: PathId(path),
            given: of
                .addresses
                .get(usize::from(path))
                .copied()
                .filter(|_| calls || !of.may_join),
        })
    });
    of_each.collect()
}

fn clock_now(clock: &Clock) -> Instant {
    Instant::ZERO + clock.elapsed()
}

impl Shared {
    /// Reads a datagram under each authority, and returns the result of one that knows it, if any.
    fn read(&self, datagram: &[u8], from: Ipv4Addr) -> Result<Option<Heard>, Refusal> {
        let mut all = self.names.iter().map(|names| names.read(datagram, from));
        let first = all.next().unwrap_or(Ok(None));
        match first {
            Ok(Some(_)) => first,
            _ => all.find(|heard| matches!(heard, Ok(Some(_)))).unwrap_or(first),
        }
    }

    fn now(&self) -> Instant {
        clock_now(&self.clock)
    }

    /// Passes an event to the state machine, from outside the thread.
    fn tell(&self, what: impl FnOnce(&mut Discovery, Instant)) {
        self.decide(what);
        self.changed.notify_one();
    }

    /// Issues an order that the state machine does not decide, once.
    fn order(&self, order: Order) {
        let orders = &mut lock(&self.inner).orders;
        if !orders.contains(&order) {
            orders.push_back(order);
        }
        self.ordered.notify_one();
    }

    /// Passes an event to the state machine, and takes the actions that it requests.
    fn decide<T>(&self, what: impl FnOnce(&mut Discovery, Instant) -> T) -> T {
        let mut inner = lock(&self.inner);
        // Read the clock under the lock, so that it never goes back.
        let told = what(&mut inner.decisions, self.now());
        while let Some(action) = inner.decisions.poll() {
            match action {
                Action::Dial {
                    attempt,
                    robot,
                    path,
                    address,
                } => inner.orders.push_back(Order::Dial {
                    attempt,
                    robot,
                    path,
                    address,
                }),
                Action::Stop(stopped) => {
                    let is_its = |order: &Order| matches!(order, Order::Dial { attempt, .. } if *attempt == stopped);
                    let before = inner.orders.len();
                    inner.orders.retain(|order| !is_its(order));
                    if inner.orders.len() == before {
                        inner.orders.push_back(Order::Stop(stopped));
                    }
                }
                Action::Search(path) => {
                    inner.searches.insert(path);
                }
            }
        }
        if !inner.orders.is_empty() {
            self.ordered.notify_one();
        }
        told
    }
}

/// A place at which the thread listens.
struct Post {
    place: Place,
    socket: UdpSocket,
    /// The times of the unsolicited announcements still to be sent.
    announcements: VecDeque<Instant>,
    last: Option<Instant>,
    answer: Option<Instant>,
}

impl Post {
    fn open(place: Place, now: Instant) -> io::Result<Post> {
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
        socket.set_nonblocking(true)?;
        // Others on this machine listen to the group too.
        socket.set_reuse_address(true)?;
        socket.bind(&SocketAddr::from(GROUP).into())?;
        // Receive only what comes in over this interface.
        socket.set_multicast_all_v4(false)?;
        socket.join_multicast_v4_n(GROUP.ip(), &socket2::InterfaceIndexOrAddress::Index(place.index))?;
        socket.set_multicast_if_v4(&place.address)?;
        socket.set_multicast_ttl_v4(HOPS)?;
        let announcements = if place.announces { &ANNOUNCED_AFTER[..] } else { &[] };
        Ok(Post {
            announcements: announcements.iter().map(|after| now + *after).collect(),
            place,
            socket: UdpSocket::from_std(socket.into())?,
            last: None,
            answer: None,
        })
    }

    /// Returns when it has something to send.
    fn due(&self) -> Option<Instant> {
        self.announcements.front().copied().into_iter().chain(self.answer).min()
    }

    /// Schedules an answer to a question for this robot.
    fn asked(&mut self, now: Instant) {
        if self.place.announces && self.answer.is_none() {
            let soon = now + Duration::from_millis(1 + now.as_nanos() / 1_000 % ANSWER_WITHIN_MS);
            let free = self.last.map_or(soon, |last| last + ANNOUNCE_EVERY);
            self.answer = Some(soon.max(free));
        }
    }

    /// Handles the content of a datagram.
    fn take(&mut self, shared: &Shared, heard: Result<Option<Heard>, Refusal>, from: Ipv4Addr) {
        let own = |robot: &RobotId, path: &u8| Some(*robot) == shared.me && *path == self.place.path;
        match heard {
            // The robot's own announcement, looped back by the kernel.
            Ok(Some(Heard::Announcement { robot, .. })) if Some(robot) == shared.me => {}
            Ok(Some(Heard::Announcement { robot, path, proved })) => {
                let hint = Hint {
                    robot,
                    path: PathId(path),
                    address: from.into(),
                    proved,
                };
                shared.decide(|decisions, now| {
                    // Paths lead from the first interface to the first, from the second to the second, and so on.
                    if path == self.place.path {
                        decisions.on_hint(hint, now);
                    } else {
                        decisions.on_refused(Refusal::Elsewhere);
                    }
                });
            }
            Ok(Some(Heard::Question(asked))) if !asked.iter().any(|(robot, path)| own(robot, path)) => {}
            Ok(Some(Heard::Question(_) | Heard::QuestionForAll)) => self.asked(shared.now()),
            Ok(None) => {}
            Err(refusal) => shared.decide(|decisions, _| decisions.on_refused(refusal)),
        }
    }

    async fn say(&self, datagram: &[u8]) {
        // A network that is congested or down gets the next one.
        let sent = self.socket.send_to(datagram, SocketAddr::from(GROUP));
        if !matches!(tokio::time::timeout(SEND_MAX, sent).await, Ok(Ok(_))) {
            tracing::debug!("cannot send to {GROUP} on {}", self.place.interface);
        }
    }
}

/// The thread's state.
struct Listener {
    /// The places at which the robot is connected to a network.
    places: BTreeSet<Place>,
    posts: Vec<Post>,
    /// The kernel's number of each path's card.
    cards: BTreeMap<u8, u32>,
    /// Whether the team file names the robot's interfaces.
    is_bound: bool,
    /// Whether there is anything to listen for, and whether interfaces matter.
    listens: bool,
    looks: bool,
    look_at: Instant,
    window: Instant,
    read: u32,
    buffer: Vec<u8>,
}

async fn run(shared: Weak<Shared>) {
    let mut listener = match shared.upgrade() {
        Some(shared) => Listener::new(&shared),
        None => return,
    };
    loop {
        let Some(open) = shared.upgrade().filter(|open| !lock(&open.inner).closed) else {
            return;
        };
        let changed = open.changed.notified();
        listener.look(&open);
        open.decide(|decisions, now| {
            if decisions.next_deadline().is_some_and(|at| at <= now) {
                decisions.on_deadline(now);
            }
        });
        listener.speak(&open).await;
        let now = open.now();
        let deadline = lock(&open.inner).decisions.next_deadline();
        let until = listener.next().into_iter().chain(deadline).min();
        let sleep = until.map_or(StdDuration::from_secs(60), |until| {
            StdDuration::from_nanos(until.since(now).as_nanos())
        });
        let may_read = listener.may_read(now);
        tokio::select! {
            biased;
            () = changed => {}
            () = tokio::time::sleep(sleep) => {}
            place = listener.readable(), if may_read => listener.hear(&open, place),
        }
    }
}

impl Listener {
    fn new(shared: &Shared) -> Listener {
        let robots = &shared.team.robots;
        let me = shared.me.and_then(|me| robots.get(usize::from(me.0)));
        let sought = robots.iter().any(|robot| robot.addresses.is_empty());
        let listens = sought || me.is_some_and(|me| me.addresses.len() < shared.paths);
        let is_bound = me.is_some_and(|me| !me.interfaces.is_empty());
        Listener {
            places: BTreeSet::new(),
            posts: Vec::new(),
            cards: BTreeMap::new(),
            is_bound,
            listens,
            looks: listens || is_bound,
            look_at: Instant::ZERO,
            window: Instant::ZERO,
            read: 0,
            buffer: vec![0; DATAGRAM_BYTES_MAX + 1],
        }
    }

    /// Opens and closes posts as interfaces come and go.
    fn look(&mut self, shared: &Shared) {
        let now = shared.now();
        if !self.looks || now < self.look_at {
            return;
        }
        self.look_at = now + LOOK_EVERY;
        let here = shared.ground.places(&shared.team, shared.me, shared.paths);
        self.note_cards(shared, &here);
        let before = std::mem::take(&mut self.places);
        self.posts.retain(|post| here.contains(&post.place));
        for place in here {
            if self.listens && !self.posts.iter().any(|post| post.place == place) {
                match Post::open(place.clone(), now) {
                    Ok(post) => self.posts.push(post),
                    // The interface may be gone; if not, this is retried.
                    Err(error) => {
                        tracing::debug!("cannot look for robots on {}: {error}", place.interface);
                        continue;
                    }
                }
            }
            self.places.insert(place);
        }
        let changed = before.symmetric_difference(&self.places).map(|place| place.path);
        for path in changed.collect::<BTreeSet<u8>>() {
            let of_path = self.places.iter().filter(|place| place.path == path);
            let networks = of_path.map(Place::network).collect();
            shared.decide(|decisions, now| decisions.on_networks(PathId(path), networks, now));
        }
    }

    /// Orders to bind a path's sockets again if its card has changed: bound sockets stay with the old card.
    fn note_cards(&mut self, shared: &Shared, here: &[Place]) {
        if !self.is_bound {
            return;
        }
        for place in here {
            let before = self.cards.insert(place.path, place.index);
            if before.is_some_and(|before| before != place.index) {
                shared.order(Order::Rebind(PathId(place.path)));
            }
        }
    }

    /// Sends what is due.
    async fn speak(&mut self, shared: &Shared) {
        let searches = std::mem::take(&mut lock(&shared.inner).searches);
        for path in searches {
            let missing: Vec<RobotId> = lock(&shared.inner).decisions.missing(path).collect();
            let missing = turned(missing, shared.now());
            for names in &shared.names {
                let question = names.question(missing.iter().copied(), path.0);
                for post in self.posts.iter().filter(|post| post.place.path == path.0) {
                    post.say(&question).await;
                }
            }
        }
        for post in &mut self.posts {
            let (now, place) = (shared.now(), &post.place);
            let Some(me) = shared.me.filter(|_| post.due().is_some_and(|due| due <= now)) else {
                continue;
            };
            let port = shared.team.port(me);
            for names in &shared.names {
                let announcement = names.announcement(me, place.path, place.address, port);
                post.say(&announcement).await;
            }
            post.announcements.retain(|at| *at > now);
            (post.answer, post.last) = (None, Some(now));
        }
    }

    /// Returns when something is due here.
    fn next(&self) -> Option<Instant> {
        let posts = self.posts.iter().filter_map(Post::due);
        let look = self.looks.then_some(self.look_at);
        let window = (self.read >= DATAGRAMS_MAX).then_some(self.window + WINDOW);
        posts.chain(look).chain(window).min()
    }

    /// Returns whether more may be read now.
    fn may_read(&mut self, now: Instant) -> bool {
        if now.since(self.window) >= WINDOW {
            (self.window, self.read) = (now, 0);
        }
        self.read < DATAGRAMS_MAX
    }

    /// Waits until there is a datagram at a post.
    async fn readable(&self) -> usize {
        poll_fn(|context| {
            let is_ready = |post: &Post| post.socket.poll_recv_ready(context).is_ready();
            let ready = self.posts.iter().position(is_ready);
            ready.map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }

    /// Reads some of what waits at each post, beginning with one that has something.
    fn hear(&mut self, shared: &Shared, first: usize) {
        let posts = self.posts.len();
        for turn in 0..posts {
            let post = &mut self.posts[(first + turn) % posts];
            for _ in 0..DATAGRAMS_AT_ONCE {
                let Ok((bytes, SocketAddr::V4(from))) = post.socket.try_recv_from(&mut self.buffer) else {
                    break;
                };
                self.read += 1;
                let heard = shared.read(&self.buffer[..bytes], *from.ip());
                post.take(shared, heard, *from.ip());
            }
        }
    }
}

/// Returns the same robots, each time starting at another one, because not all fit into a question.
fn turned(mut robots: Vec<RobotId>, now: Instant) -> Vec<RobotId> {
    let places = robots.len().max(1) as u64;
    robots.rotate_left((now.as_nanos() / 1_000 % places) as usize);
    robots
}
