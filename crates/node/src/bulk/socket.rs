//! The socket under bulk: the gate decides about every datagram that QUIC wants to send.
//!
//! QUIC keeps a datagram that the gate holds, and its task is woken when the gate opens, a permit arrives or something
//! has left. Datagrams that the kernel has and that have not left are counted, and the gate learns when each one
//! leaves. From that it knows what will have left when a window begins. Without a permit, QUIC gets a congestion window
//! of nearly zero, so that it makes no packets whose delay would count as the network's. A paused stream keeps its
//! congestion state.
//!
//! A connection stays alive while it is paused. Small datagrams (such as acknowledgements) and those of a handshake always
//! pass. But QUIC makes nothing else while it keeps a datagram. So one call a second goes without a permit, as the gate allows:
//! what QUIC had made when the permit ended, and later the packet that it may make once a second ([`super::cubic`]).
//!
//! What has left is known from the socket's send queue ([`crate::outqueue`]). A thread reads it while something is
//! below the gate, more often while the gate waits for it. If the driver is known to give transmit status without harm
//! ([`crate::card`]), that is requested instead, and read from the error queue. If neither reports anything,
//! acknowledgements take their place.

use std::fmt;
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration as StdDuration;

use coorp_core::robot::{Input, LOOK_HELD, LOOK_OPEN};
use coorp_core::{Duration, Instant};
use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, UdpPoller};
use socket2::SockRef;

use super::reports::{self, Report};
use super::under::{SendCall, Under};
use crate::card;
use crate::ground::{watched, Below, Ground, Signal};
use crate::outqueue::Emulated;
use crate::quic::TOGETHER_MAX;
use crate::shared_robot::SharedRobot;
use crate::status::{self, Completions};
use crate::sync::lock;
use crate::tasks::caught;

/// Datagrams up to this size are not bulk.
const SMALL_BYTES: usize = 256;
/// The interval of calls without a permit. A third of the time after which the other end gives up.
pub(super) const ALIVE_EVERY: Duration = Duration::from_secs(1);
/// A datagram that was not reported for this long never will be.
const REPORT_LATE: Duration = Duration::from_millis(500);
/// A kernel that still holds a datagram after this time counts wrongly: its driver has lost the frame.
const HELD_MAX: Duration = Duration::from_secs(10);
/// After this many datagrams without any report, there will be none.
const UNREPORTED_MAX: u32 = 64;
/// The interval at which the thread checks whether the node still exists.
const LOOK_UP_EVERY: StdDuration = StdDuration::from_millis(200);
const SILENCE_EVERY: Duration = Duration::from_nanos(LOOK_UP_EVERY.as_nanos() as u64);
/// The interval at which the outgoing interface is looked up.
const FIND_EVERY: Duration = Duration::from_secs(10);

/// The name of the threads that check what has left, for the message after a panic.
const FOLLOWS: &str = "the thread that follows bulk";

/// Decides about each bulk datagram, and learns from those that have left.
pub(crate) trait Gatekeeper: fmt::Debug + Send + Sync {
    /// Returns the time, on the clock used throughout.
    fn now(&self) -> Instant;
    /// Returns whether a datagram may go over a path with `n` on their way, and when that was decided. A datagram that
    /// keeps a connection `alive` needs no permit.
    fn may_pass(&self, path: usize, n: usize, alive: bool) -> (bool, Instant);
    /// Returns how many datagrams, `most` at most, may go together with `n` on their way.
    fn room(&self, path: usize, n: usize, most: usize) -> usize;
    /// Reports what has left, and when; small datagrams too.
    fn on_gone(&self, path: usize, gone: &[(SendCall, Instant)]);
    /// Reports that a thread that checks what has left has panicked: bulk would stay held.
    fn on_panic(&self, why: &str);
}

impl Gatekeeper for SharedRobot {
    fn now(&self) -> Instant {
        SharedRobot::now(self)
    }

    fn may_pass(&self, path: usize, n: usize, alive: bool) -> (bool, Instant) {
        let input = if alive {
            Input::PassesGate { path, n }
        } else {
            Input::MayPass { path, n }
        };
        self.tell(|robot, now| (robot.may(input, now), now))
    }

    fn room(&self, path: usize, n: usize, most: usize) -> usize {
        self.ask(|robot, now| robot.room(path, n, most, now))
    }

    fn on_gone(&self, path: usize, gone: &[(SendCall, Instant)]) {
        self.tell(|robot, now| {
            for (send, left_at) in gone.iter().filter(|(send, _)| send.bulk) {
                let left = Input::Left {
                    path,
                    left: (send.left_before, send.left_by),
                    entered_at: send.at,
                    left_at: *left_at,
                };
                robot.handle(left, now);
            }
        });
    }

    fn on_panic(&self, why: &str) {
        SharedRobot::on_panic(self, why);
    }
}

/// A UDP socket with the gate in front of it.
#[derive(Debug)]
pub(crate) struct GatedSocket {
    inner: Arc<dyn AsyncUdpSocket>,
    gatekeeper: Arc<dyn Gatekeeper>,
    /// The path that it sends over.
    path: usize,
    under: Mutex<Under>,
    /// The source of completions, by its number in [`Completions`].
    completions: AtomicU8,
    permitted: Arc<AtomicBool>,
    /// The kernel's socket, to request reports.
    descriptor: Option<OwnedFd>,
    /// Wakes the thread that reads the send queue.
    looker: OnceLock<Signal>,
    /// The shortest round trip of acknowledgements, nanoseconds.
    round_trip_ns: AtomicU64,
}

impl GatedSocket {
    /// Wraps a socket that sends over a path, and starts a thread that checks what has left.
    pub fn new(
        ground: &dyn Ground,
        below: Below,
        path: usize,
        gatekeeper: Arc<dyn Gatekeeper>,
    ) -> io::Result<Arc<GatedSocket>> {
        GatedSocket::with(ground, below, path, gatekeeper, Completions::Unknown)
    }

    /// Does the same with a given source of completions; without one, uses the source of the outgoing card.
    fn with(
        ground: &dyn Ground,
        below: Below,
        path: usize,
        gatekeeper: Arc<dyn Gatekeeper>,
        by: Completions,
    ) -> io::Result<Arc<GatedSocket>> {
        let Below {
            io,
            queue,
            emulated,
            descriptor,
        } = below;
        let by = match (emulated.is_empty(), &descriptor) {
            (false, _) => Completions::Emulated,
            (true, Some(_)) => by,
            (true, None) => Completions::OutQueue,
        };
        let errors = descriptor.as_ref().map(OwnedFd::try_clone).transpose()?;
        let gated = Arc::new(GatedSocket {
            inner: io,
            gatekeeper,
            path,
            under: Mutex::new(Under::new(queue)),
            completions: AtomicU8::default(),
            permitted: Arc::default(),
            descriptor,
            looker: OnceLock::new(),
            round_trip_ns: AtomicU64::new(0),
        });
        if by != Completions::Unknown {
            lock(&gated.under).find_at = Instant::FAR_FUTURE;
            gated.know(by);
        }
        let (looked_at, panicked) = (Arc::downgrade(&gated), gated.gatekeeper.clone());
        let mut looked = gated.gatekeeper.now();
        let round = move || look_on(&looked_at, errors.as_ref(), &mut looked);
        let round = watched(FOLLOWS, move |why| panicked.on_panic(why), round);
        let looker = ground.worker("coorp-left", || (), round)?;
        let _ = gated.looker.set(looker.signal().clone());
        for emulated in emulated {
            let socket = Arc::downgrade(&gated);
            let thread = std::thread::Builder::new().name("coorp-left".to_owned());
            let gatekeeper = gated.gatekeeper.clone();
            thread.spawn(move || {
                if let Some(why) = caught(FOLLOWS, || follow(emulated, &socket)) {
                    gatekeeper.on_panic(&why);
                }
            })?;
        }
        Ok(gated)
    }

    /// Returns the source of completions.
    pub fn completions(&self) -> Completions {
        Completions::numbered(self.completions.load(Ordering::Relaxed))
    }

    /// Returns the number of datagrams below the gate.
    pub fn in_flight(&self) -> usize {
        lock(&self.under).datagrams
    }

    /// Adds its counters to a status.
    pub fn add_to(&self, status: &mut status::Bulk) {
        let under = lock(&self.under);
        status.in_flight += under.datagrams as u64;
        status.holds += under.holds;
        status.given_up += under.given_up;
        status.unreported += under.unreported;
        if status.completions == Completions::Unknown {
            status.completions = self.completions();
        }
    }

    /// Returns the flag that a permit allows bulk.
    pub fn permitted(&self) -> Arc<AtomicBool> {
        self.permitted.clone()
    }

    /// Returns whether QUIC has been told that a permit allows bulk.
    pub fn is_permitted(&self) -> bool {
        self.permitted.load(Ordering::Acquire)
    }

    /// Sets whether a permit allows bulk; without one, QUIC makes next to no packets.
    pub fn set_permitted(&self, permitted: bool) {
        self.permitted.store(permitted, Ordering::Release);
        self.wake();
    }

    /// Returns whether bulk may go to keep a connection alive, without a permit.
    fn keeps_alive(&self, under: &Under) -> bool {
        !self.is_permitted() && self.gatekeeper.now().since(under.bulk_at) >= ALIVE_EVERY
    }

    /// Wakes every blocked sender.
    pub fn wake(&self) {
        let waiters = {
            let mut under = lock(&self.under);
            (under.closed, under.gated) = (false, false);
            std::mem::take(&mut under.waiters)
        };
        waiters.into_iter().for_each(Waker::wake);
    }

    fn is_bulk(transmit: &Transmit<'_>) -> bool {
        let long_header = transmit.contents.first().is_some_and(|first| first & 0x80 != 0);
        let size = transmit.segment_size.unwrap_or(transmit.contents.len());
        !long_header && size > SMALL_BYTES
    }

    /// Tells the gate what the reports show.
    fn on_reports(&self, came: &[Report]) {
        let now = self.gatekeeper.now();
        let mut gone = Vec::new();
        {
            let mut under = lock(&self.under);
            for report in came {
                let Some(send) = under.take(&report.tail) else { continue };
                under.silent_for = 0;
                under.given_up += u64::from(!report.acknowledged);
                gone.push((send, now));
            }
        }
        self.learn(&gone);
    }

    /// Reads the send queue, and tells the gate what has left. Returns when to read it again.
    fn look(&self) -> StdDuration {
        let mut gone = Vec::new();
        let next = {
            let mut under = lock(&self.under);
            let left = under.queue.left();
            let now = self.gatekeeper.now();
            while under.sends.front().is_some_and(|send| send.mark <= left) {
                under.silent_for = 0;
                gone.extend(under.pop().map(|send| (send, now)));
            }
            match (under.sends.is_empty(), under.closed) {
                (true, _) => LOOK_UP_EVERY,
                (false, true) => StdDuration::from_nanos(LOOK_HELD.as_nanos()),
                (false, false) => StdDuration::from_nanos(LOOK_OPEN.as_nanos()),
            }
        };
        self.learn(&gone);
        next
    }

    /// From time to time, looks up the interface that datagrams leave by, and selects its card's source of completions.
    pub fn find_source(&self, to: SocketAddr) {
        let now = self.gatekeeper.now();
        let known = {
            let mut under = lock(&self.under);
            if under.find_at > now {
                return;
            }
            under.find_at = now + FIND_EVERY;
            under.outlet.clone()
        };
        let device = self.descriptor.as_ref().map(SockRef::from);
        let device = device.and_then(|socket| socket.device().ok().flatten());
        let device = device.and_then(|name| String::from_utf8(name).ok());
        let from = self.inner.local_addr().map(|address| address.ip());
        // If the interface is unknown, for example without a route, use the source that every card has.
        let found = from
            .and_then(|from| card::towards(to, from, device))
            .unwrap_or_default();
        if known.as_ref() != Some(&found) {
            self.know(card::source(card::driver(&found).as_deref()));
            lock(&self.under).outlet = Some(found);
        }
    }

    /// Learns from QUIC's acknowledgements if the kernel reports nothing: this many bytes have arrived, with the
    /// shortest round trip, or are lost.
    ///
    /// An acknowledged datagram counts as having left the shortest round trip ago. It spent any further time waiting,
    /// below the gate or elsewhere on its way. Unacknowledged datagrams count as below the gate. Some of them have
    /// left, but the gate learns how soon so many are acknowledged, which compensates for that. Leaving out the newest
    /// would admit any number at once.
    pub fn on_acknowledged(&self, mut bytes: u64, round_trip: Option<StdDuration>) {
        if self.completions().are_reported() {
            return;
        }
        if let Some(round_trip) = round_trip {
            let nanos = u64::try_from(round_trip.as_nanos()).unwrap_or(u64::MAX);
            self.round_trip_ns.store(nanos, Ordering::Relaxed);
        }
        let round_trip = Duration::from_nanos(self.round_trip_ns.load(Ordering::Relaxed));
        let now = self.gatekeeper.now();
        let mut gone = Vec::new();
        {
            let mut under = lock(&self.under);
            while let Some(send) = under.sends.front_mut() {
                if send.bulk && send.bytes > bytes {
                    send.bytes -= bytes;
                    break;
                }
                bytes -= if send.bulk { send.bytes } else { 0 };
                gone.extend(under.pop().map(|send| (send, (now - round_trip).max(send.at))));
            }
        }
        self.learn(&gone);
    }

    /// Passes on what has left, and when.
    fn learn(&self, gone: &[(SendCall, Instant)]) {
        if !gone.is_empty() {
            self.gatekeeper.on_gone(self.path, gone);
            self.wake();
        }
    }

    fn know(&self, completions: Completions) {
        let status = completions == Completions::WifiStatus;
        let descriptor = self.descriptor.as_ref();
        let asked = descriptor.is_some_and(|socket| reports::ask_for_wifi_status(socket.as_fd(), status).is_ok());
        let completions = if status && !asked {
            Completions::OutQueue
        } else {
            completions
        };
        self.completions.store(completions as u8, Ordering::Relaxed);
        tracing::info!("bulk: the gate learns what has left from {completions}");
        self.kick();
    }

    /// Makes the thread read the send queue now.
    fn kick(&self) {
        if let Some(looker) = self.looker.get() {
            looker.wake();
        }
    }

    /// Gives up on overdue datagrams. Gives up on the source if nothing leaves, or nothing leaves any more.
    fn on_silence(&self) {
        let now = self.gatekeeper.now();
        let by = self.completions();
        let late = if by == Completions::OutQueue {
            HELD_MAX
        } else {
            REPORT_LATE
        };
        let (gave_up, none_come) = {
            let mut under = lock(&self.under);
            let before = under.datagrams;
            while under.sends.front().is_some_and(|send| now.since(send.at) > late) {
                let bytes = under.pop().map_or(0, |send| send.bytes);
                under.queue.give_up(bytes);
            }
            let gave_up = before - under.datagrams;
            under.unreported += gave_up as u64;
            let none_come = under.silent_for >= UNREPORTED_MAX || by == Completions::OutQueue;
            (gave_up, gave_up > 0 && none_come)
        };
        match by {
            Completions::WifiStatus if none_come => self.know(Completions::OutQueue),
            Completions::OutQueue | Completions::Emulated if none_come => self.know(Completions::Acknowledgements),
            _ => {}
        }
        if gave_up > 0 {
            self.wake();
        }
    }
}

/// Checks what has left, for as long as the socket exists. `errors` is its error queue, and `looked` when it was last
/// checked for silence. Returns when to check again.
fn look_on(socket: &Weak<GatedSocket>, errors: Option<&OwnedFd>, looked: &mut Instant) -> Option<StdDuration> {
    let gated = socket.upgrade()?;
    let now = gated.gatekeeper.now();
    if now.since(*looked) >= SILENCE_EVERY {
        *looked = now;
        gated.on_silence();
    }
    match (gated.completions(), errors) {
        (Completions::OutQueue, _) => Some(gated.look()),
        (Completions::WifiStatus, Some(errors)) => {
            drop(gated);
            read_reports(socket, errors);
            Some(StdDuration::ZERO)
        }
        // The thread that follows the emulator checks on its own.
        _ => Some(LOOK_UP_EVERY),
    }
}

/// Waits a while for reports, and passes them on.
fn read_reports(socket: &Weak<GatedSocket>, errors: &OwnedFd) {
    let waited = reports::wait(errors.as_fd(), LOOK_UP_EVERY);
    let Some(socket) = socket.upgrade() else { return };
    let mut came = Vec::new();
    if let Err(error) = waited.and_then(|_| reports::read(errors.as_fd(), &mut came)) {
        // An error of the socket itself wakes the poll again and again until it has been read.
        tracing::debug!("reports cannot be read: {error}");
        std::thread::sleep(StdDuration::from_millis(1));
    }
    socket.on_reports(&came);
}

/// Follows the emulator's reports until they end.
fn follow(mut emulated: Emulated, socket: &Weak<GatedSocket>) {
    while let Some(freed) = emulated.read() {
        let Some(socket) = socket.upgrade() else { return };
        let open = StdDuration::from_nanos(LOOK_OPEN.as_nanos());
        let rest = if freed { socket.look().min(open) } else { open };
        drop(socket);
        // Poll, as for a kernel's count; waking up for each frame would cost more than it is worth.
        std::thread::sleep(rest);
    }
    emulated.freed().end();
    if let Some(socket) = socket.upgrade() {
        socket.know(Completions::Acknowledgements);
    }
}

impl AsyncUdpSocket for GatedSocket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(GatedPoller {
            socket: self.clone(),
            inner: self.inner.clone().create_io_poller(),
        })
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        if self.completions().are_counted() {
            self.look();
        }
        self.find_source(transmit.destination);
        let bulk = GatedSocket::is_bulk(transmit);
        let datagrams = transmit
            .segment_size
            .map_or(1, |size| transmit.contents.len().div_ceil(size.max(1)));
        // Hold the lock while sending the datagram, so that no wake-up is missed between the answer and the wait.
        let mut under = lock(&self.under);
        let n = under.datagrams;
        let alive = bulk && self.keeps_alive(&under);
        let (pass, at) = if bulk {
            self.gatekeeper.may_pass(self.path, n, alive)
        } else {
            (true, self.gatekeeper.now())
        };
        if !pass {
            (under.closed, under.gated) = (true, alive);
            under.holds += 1;
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let bytes = transmit.contents.len();
        let mark = under.queue.send(bytes, datagrams, || self.inner.try_send(transmit))?;
        let first = under.sends.is_empty();
        let left = under.left;
        under.push(SendCall {
            at,
            datagrams,
            bytes: bytes as u64,
            left_before: left,
            left_by: left,
            bulk,
            tail: reports::tail(transmit.contents),
            mark,
        });
        drop(under);
        // Loopback has already freed it.
        if first && self.completions() == Completions::OutQueue && self.look() < LOOK_UP_EVERY {
            self.kick();
        }
        Ok(())
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        self.inner.poll_recv(cx, bufs, meta)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.local_addr()
    }

    fn may_fragment(&self) -> bool {
        self.inner.may_fragment()
    }

    fn max_transmit_segments(&self) -> usize {
        // Kernels differ in how they report several datagrams of one call over WiFi. The emulator's count would wait
        // for datagrams that a TAP does not take that way.
        let alone = matches!(
            self.completions(),
            Completions::Unknown | Completions::WifiStatus | Completions::Emulated
        );
        if alone {
            return 1;
        }
        let most = self.inner.max_transmit_segments().min(TOGETHER_MAX);
        let n = self.in_flight();
        self.gatekeeper.room(self.path, n, most)
    }

    fn max_receive_segments(&self) -> usize {
        self.inner.max_receive_segments()
    }
}

#[derive(Debug)]
struct GatedPoller {
    socket: Arc<GatedSocket>,
    inner: Pin<Box<dyn UdpPoller>>,
}

impl UdpPoller for GatedPoller {
    fn poll_writable(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        {
            let mut under = lock(&self.socket.under);
            // A connection that may be kept alive asks again at each keep-alive of its other end. If the gate holds that
            // too, it says when it opens.
            if under.closed && (under.gated || !self.socket.keeps_alive(&under)) {
                if !under.waiters.iter().any(|waiter| waiter.will_wake(cx.waker())) {
                    under.waiters.push(cx.waker().clone());
                }
                return Poll::Pending;
            }
        }
        self.inner.as_mut().poll_writable(cx)
    }
}

#[cfg(test)]
mod on_wifi;
#[cfg(test)]
mod tests;
