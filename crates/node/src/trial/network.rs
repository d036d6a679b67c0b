//! The network of a trial: one frame at a time on each path, delays, losses, and partitions.
//!
//! Control goes ahead of bulk, as with EDCA; frames of bulk wait for each other. A frame has left once it has been on
//! the air.

use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use std::fmt;
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use coorp_core::RobotId;
use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, UdpPoller};
use rand::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::place;
use crate::ground::{Below, Bound, Marked};
use crate::outqueue::{Freed, Handed, OutQueue};
use crate::shared_robot::SharedRobot;
use crate::sync::lock;

/// The rate of a path, in bytes per second, and the additional time of each frame.
const RATE: f64 = 8e6;
const FRAME: Duration = Duration::from_micros(60);
/// The delay of a frame after it was on the air.
const DELAY_MIN_US: u64 = 200;
const DELAY_MAX_US: u64 = 3_000;
/// The share of frames that are always lost, and the share that arrive twice.
const LOSS: f64 = 0.005;
const TWICE: f64 = 0.002;
/// The maximum number of datagrams that a socket holds until they are read; more are lost.
const INBOX_MAX: usize = 2_048;
/// Longer datagrams to bulk's ports are bulk.
const SMALL_BYTES: usize = 256;
/// The first of the ports that are given to sockets without one.
const PORT_FIRST: u16 = 40_000;

/// Called for each long datagram for bulk.
type Watcher = Box<dyn Fn(RobotId, usize) + Send + Sync>;

/// The network.
pub(super) struct Network {
    inner: Mutex<Inner>,
    watcher: OnceLock<(BTreeSet<u16>, Watcher)>,
    /// Wakes the task that delivers.
    sooner: Notify,
}

#[derive(Debug)]
struct Inner {
    began: Instant,
    rng: Xoshiro256PlusPlus,
    sockets: BTreeMap<SocketAddr, Weak<Udp>>,
    next_port: u16,
    /// The robots on one side of each partition.
    parted: Vec<BTreeSet<RobotId>>,
    /// The machines without power.
    off: BTreeSet<RobotId>,
    lost: BTreeMap<usize, f64>,
    slowed: BTreeMap<usize, f64>,
    /// The time at which bulk's last frame on each path is done.
    busy: BTreeMap<usize, Instant>,
    /// The events, the earliest first.
    events: BinaryHeap<std::cmp::Reverse<Event>>,
    number: u64,
}

/// Something that happens to a frame.
#[derive(Debug)]
struct Event {
    at: Instant,
    number: u64,
    what: What,
}

#[derive(Debug)]
enum What {
    Left(Arc<Freed>, u64),
    Arrives {
        from: SocketAddr,
        to: SocketAddr,
        bytes: Vec<u8>,
    },
}

impl PartialEq for Event {
    fn eq(&self, other: &Event) -> bool {
        self.number == other.number
    }
}

impl Eq for Event {}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Event) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Event {
    fn cmp(&self, other: &Event) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Network").finish_non_exhaustive()
    }
}

impl Network {
    pub fn start(seed: u64, began: Instant) -> Arc<Network> {
        let network = Arc::new(Network {
            inner: Mutex::new(Inner {
                began,
                rng: Xoshiro256PlusPlus::seed_from_u64(seed ^ 0x006e_6574_776f_726b),
                sockets: BTreeMap::new(),
                next_port: PORT_FIRST,
                parted: Vec::new(),
                off: BTreeSet::new(),
                lost: BTreeMap::new(),
                slowed: BTreeMap::new(),
                busy: BTreeMap::new(),
                events: BinaryHeap::new(),
                number: 0,
            }),
            watcher: OnceLock::new(),
            sooner: Notify::new(),
        });
        tokio::spawn(deliver(network.clone()));
        network
    }

    pub fn part(&self, robots: &[RobotId], parted: bool) {
        let side: BTreeSet<RobotId> = robots.iter().copied().collect();
        let mut inner = lock(&self.inner);
        if parted {
            inner.parted.push(side);
        } else if let Some(which) = inner.parted.iter().position(|other| *other == side) {
            inner.parted.remove(which);
        }
    }

    pub fn lose(&self, path: usize, share: f64) {
        lock(&self.inner).lost.insert(path, share);
    }

    pub fn slow(&self, path: usize, times: f64) {
        lock(&self.inner).slowed.insert(path, times);
    }

    /// Switches a machine's cards off, including what is in their queues, or on.
    pub fn switch(&self, robot: RobotId, off: bool) {
        let mut inner = lock(&self.inner);
        if off {
            inner.off.insert(robot);
        } else {
            inner.off.remove(&robot);
        }
    }

    pub fn watch(&self, ports: BTreeSet<u16>, watcher: Watcher) {
        // This is set only here.
        let _ = self.watcher.set((ports, watcher));
    }

    /// Binds a socket.
    pub fn bind(self: &Arc<Self>, mut at: SocketAddr) -> io::Result<Arc<Udp>> {
        let mut inner = lock(&self.inner);
        if at.port() == 0 {
            at.set_port(inner.next_port);
            inner.next_port = inner.next_port.checked_add(1).unwrap_or(PORT_FIRST);
        }
        if inner.sockets.get(&at).is_some_and(|socket| socket.strong_count() > 0) {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        let udp = Arc::new(Udp {
            at,
            network: self.clone(),
            inbox: Mutex::default(),
            freed: Arc::default(),
            handed: OnceLock::new(),
        });
        inner.sockets.insert(at, Arc::downgrade(&udp));
        Ok(udp)
    }

    fn send(&self, from: &Udp, to: SocketAddr, bytes: &[u8]) {
        let Some((robot, path)) = place(from.at.ip()) else {
            return;
        };
        let mut guard = lock(&self.inner);
        let inner = &mut *guard;
        if inner.off.contains(&robot) {
            from.freed.add(bytes.len() as u64);
            return;
        }
        let now = Instant::now();
        let slowed = inner.slowed.get(&path).copied().unwrap_or(1.0);
        let frame = (FRAME + Duration::from_secs_f64(bytes.len() as f64 / RATE)).mul_f64(slowed);
        let is_voice = from.handed.get().is_some();
        let left = if is_voice {
            now + frame
        } else {
            let busy = inner.busy.entry(path).or_insert(inner.began);
            *busy = (*busy).max(now) + frame;
            *busy
        };
        inner.add(left, What::Left(from.freed.clone(), bytes.len() as u64));
        if let Some((ports, watcher)) = self.watcher.get() {
            let is_short = bytes.first().is_some_and(|first| first & 0x80 == 0);
            if is_short && bytes.len() > SMALL_BYTES && ports.contains(&to.port()) {
                watcher(robot, path);
            }
        }
        let loss = inner.lost.get(&path).copied().unwrap_or(0.0).max(LOSS);
        for _ in 0..if inner.rng.random_bool(TWICE) { 2 } else { 1 } {
            if !inner.rng.random_bool(loss) {
                let delay = Duration::from_micros(inner.rng.random_range(DELAY_MIN_US..DELAY_MAX_US));
                let (from, bytes) = (from.at, bytes.to_vec());
                inner.add(left + delay, What::Arrives { from, to, bytes });
            }
        }
        drop(guard);
        self.sooner.notify_one();
    }
}

impl Inner {
    fn add(&mut self, at: Instant, what: What) {
        let number = self.number;
        self.number += 1;
        self.events.push(std::cmp::Reverse(Event { at, number, what }));
    }

    /// Returns whether frames from one robot reach another now.
    fn reaches(&self, from: SocketAddr, to: SocketAddr) -> bool {
        let (Some((from, out)), Some((to, into))) = (place(from.ip()), place(to.ip())) else {
            return false;
        };
        let parted = |side: &BTreeSet<RobotId>| side.contains(&from) != side.contains(&to);
        out == into && !self.off.contains(&from) && !self.off.contains(&to) && !self.parted.iter().any(parted)
    }
}

/// Does what is due, for as long as the trial runs.
async fn deliver(network: Arc<Network>) {
    loop {
        let next = {
            let mut inner = lock(&network.inner);
            let now = Instant::now();
            while inner.events.peek().is_some_and(|event| event.0.at <= now) {
                let Some(std::cmp::Reverse(event)) = inner.events.pop() else {
                    break;
                };
                match event.what {
                    What::Left(freed, bytes) => freed.add(bytes),
                    What::Arrives { from, to, bytes } if inner.reaches(from, to) => {
                        if let Some(socket) = inner.sockets.get(&to).and_then(Weak::upgrade) {
                            socket.take(from, bytes);
                        }
                    }
                    What::Arrives { .. } => {}
                }
            }
            inner.events.peek().map(|event| event.0.at)
        };
        match next {
            None => network.sooner.notified().await,
            Some(next) => {
                let _ = tokio::time::timeout_at(next, network.sooner.notified()).await;
            }
        }
    }
}

/// A socket of a machine.
#[derive(Debug)]
pub(super) struct Udp {
    at: SocketAddr,
    network: Arc<Network>,
    inbox: Mutex<Inbox>,
    freed: Arc<Freed>,
    /// The count for control.
    handed: OnceLock<Arc<Handed>>,
}

#[derive(Debug, Default)]
struct Inbox {
    waiting: VecDeque<(SocketAddr, Vec<u8>)>,
    reader: Option<Waker>,
}

impl Udp {
    fn take(&self, from: SocketAddr, bytes: Vec<u8>) {
        let mut inbox = lock(&self.inbox);
        if inbox.waiting.len() < INBOX_MAX {
            inbox.waiting.push_back((from, bytes));
        }
        if let Some(reader) = inbox.reader.take() {
            reader.wake();
        }
    }
}

/// A bound socket that nobody uses yet.
pub(super) struct Unused(pub Arc<Udp>);

impl Bound for Unused {
    fn is_roomy(&self) -> bool {
        true
    }

    fn plain(self: Box<Self>) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        Ok(self.0)
    }

    fn marked(self: Box<Self>, _: &Arc<SharedRobot>) -> io::Result<Marked> {
        let handed = Handed::by(OutQueue::by(self.0.freed.clone()));
        let handed = self.0.handed.get_or_init(|| handed).clone();
        Ok(Marked { io: self.0, handed })
    }

    fn below_gate(self: Box<Self>) -> io::Result<Below> {
        Ok(Below {
            queue: OutQueue::by(self.0.freed.clone()),
            io: self.0,
            emulated: Vec::new(),
            descriptor: None,
        })
    }
}

#[derive(Debug)]
struct Always;

impl UdpPoller for Always {
    fn poll_writable(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl AsyncUdpSocket for Udp {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(Always)
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let each = transmit.segment_size.unwrap_or(usize::MAX).max(1);
        for datagram in transmit.contents.chunks(each) {
            let send = || {
                self.network.send(self, transmit.destination, datagram);
                Ok(())
            };
            match self.handed.get() {
                Some(handed) => handed.send(datagram.len(), 1, send)?,
                None => send()?,
            }
        }
        Ok(())
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let mut inbox = lock(&self.inbox);
        let mut read = 0;
        for (buffer, meta) in bufs.iter_mut().zip(meta) {
            let Some((from, bytes)) = inbox.waiting.pop_front() else {
                break;
            };
            let length = bytes.len().min(buffer.len());
            buffer[..length].copy_from_slice(&bytes[..length]);
            *meta = RecvMeta {
                addr: from,
                len: length,
                stride: length,
                ecn: None,
                dst_ip: Some(self.at.ip()),
            };
            read += 1;
        }
        if read > 0 {
            return Poll::Ready(Ok(read));
        }
        inbox.reader = Some(cx.waker().clone());
        Poll::Pending
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.at)
    }

    fn may_fragment(&self) -> bool {
        false
    }
}
