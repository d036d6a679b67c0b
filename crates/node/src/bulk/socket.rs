//! The socket under bulk: the gate decides about every datagram that QUIC wants to send.
//!
//! A datagram that may not go is kept by QUIC, whose task is woken when the gate opens, a permit comes or something has
//! left. What has been handed to the kernel and not been reported gone is counted, and the gate learns from each
//! report; by that it knows what will have left when a window begins. While there is no permit QUIC is
//! given a congestion window of nothing, so that it makes no packets whose time would then be taken for the network's:
//! a stream that is paused sends nothing and keeps its congestion state.
//!
//! Small datagrams (acknowledgements and the like) and those of a handshake pass at all times: a connection stays alive
//! while it is paused.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io::{self, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll, Waker};
use std::time::{Duration as StdDuration, Instant as StdInstant};

use coorp_core::{Duration, Instant};
use quinn::congestion::{Controller, ControllerFactory, Cubic, CubicConfig};
use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, Runtime, UdpPoller};

use super::emulated::Emulated;
use super::reports::{self, Report, Tail};
use super::turns::Turn;
use crate::node::{lock, Inner};
use crate::quic::TOGETHER_MAX;
use crate::status::Completions;

/// Datagrams up to this size are not bulk.
const SMALL_BYTES: usize = 256;
/// What was not reported for so long never will be.
const REPORT_LATE: Duration = Duration::from_millis(500);
/// After so many datagrams without any report there will be none.
const UNREPORTED_MAX: u32 = 64;
/// Between two looks at whether the node is still there.
const LOOK_UP_EVERY: StdDuration = StdDuration::from_millis(200);
/// Sends that are followed at most; more than any queue below holds.
const FOLLOWED_MAX: usize = 4_096;

/// Interfaces whose kind is remembered at most.
const INTERFACES_MAX: usize = 64;

/// Who decides about each bulk datagram, and learns from those that have left.
pub(crate) trait Gatekeeper: Send + Sync {
    /// The time, on the clock that all here is told by.
    fn now(&self) -> Instant;
    /// Whether a datagram may go over a path where `n` are on their way, and when that was
    /// decided.
    fn may_pass(&self, path: usize, n: usize) -> (bool, Instant);
    /// How many datagrams, `most` at most, may go together where `n` are on their way.
    fn room(&self, path: usize, n: usize, most: usize) -> usize;
    /// What has left, and when; small datagrams too.
    fn on_gone(&self, path: usize, gone: &[(SendCall, Instant)]);
}

impl Gatekeeper for Inner {
    fn now(&self) -> Instant {
        Inner::now(self)
    }

    fn may_pass(&self, path: usize, n: usize) -> (bool, Instant) {
        self.tell(|brain, now| (brain.may_pass(path, n, now), now))
    }

    fn room(&self, path: usize, n: usize, most: usize) -> usize {
        self.ask(|brain, now| brain.room(path, n, most, now))
    }

    fn on_gone(&self, path: usize, gone: &[(SendCall, Instant)]) {
        self.tell(|brain, _| {
            for (send, left_at) in gone.iter().filter(|(send, _)| send.bulk) {
                brain.on_left(path, (send.left_before, send.left_by), send.at, *left_at);
            }
        });
    }
}

/// A UDP socket with the gate in front of it.
pub(crate) struct GatedSocket {
    inner: Arc<dyn AsyncUdpSocket>,
    gatekeeper: Weak<dyn Gatekeeper>,
    /// The path that it sends over.
    path: usize,
    under: Mutex<Under>,
    /// How completions are known, as [`Completions`] numbers them.
    completions: Arc<AtomicU8>,
    permitted: Arc<AtomicBool>,
    holds: AtomicU64,
    given_up: AtomicU64,
    unreported: AtomicU64,
    /// The shortest round trip that acknowledgements have shown, nanoseconds.
    round_trip_ns: AtomicU64,
}

/// What is below the gate, and who waits above it.
#[derive(Debug, Default)]
struct Under {
    /// Handed to the kernel and not reported gone, in the order of sending.
    sends: VecDeque<SendCall>,
    /// Datagrams in them.
    datagrams: usize,
    /// Datagrams that have left.
    left: u64,
    /// Number of the next send call; small datagrams count too.
    next: u32,
    /// Send calls since the last report.
    silent_for: u32,
    /// The gate has held a datagram since waiters were last woken.
    closed: bool,
    waiters: Vec<Waker>,
}

/// One or several datagrams handed to the kernel together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendCall {
    pub number: u32,
    /// When.
    pub at: Instant,
    datagrams: usize,
    bytes: u64,
    /// Datagrams that had left when it went in, and once it has left itself.
    pub left_before: u64,
    pub left_by: u64,
    /// Whether the gate decided about it, and learns from it.
    bulk: bool,
    tail: Tail,
}

impl fmt::Debug for GatedSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GatedSocket")
            .field("inner", &self.inner)
            .finish_non_exhaustive()
    }
}

impl GatedSocket {
    /// Wraps a bound socket that sends over a path, and reads its reports in a thread of its own.
    pub fn new(socket: UdpSocket, path: usize, gatekeeper: Weak<dyn Gatekeeper>) -> io::Result<Arc<GatedSocket>> {
        let asked = [
            reports::ask_for_wifi_status(socket.as_fd()),
            reports::ask_for_stamps(socket.as_fd()),
        ];
        let emulated = Emulated::connect(LOOK_UP_EVERY);
        let completions = if !emulated.is_empty() {
            Completions::Emulated
        } else if asked.iter().any(Result::is_ok) {
            Completions::Unknown
        } else {
            Completions::Acknowledgements
        };
        reports::make_room(socket.as_fd())?;
        let queue: OwnedFd = socket.as_fd().try_clone_to_owned()?;
        let gated = Arc::new(GatedSocket {
            inner: quinn::TokioRuntime.wrap_udp_socket(socket)?,
            gatekeeper,
            path,
            under: Mutex::default(),
            completions: Arc::new(AtomicU8::new(completions as u8)),
            permitted: Arc::default(),
            holds: AtomicU64::new(0),
            given_up: AtomicU64::new(0),
            unreported: AtomicU64::new(0),
            round_trip_ns: AtomicU64::new(0),
        });
        if completions != Completions::Unknown {
            gated.know(completions);
        }
        let reader = Arc::downgrade(&gated);
        let thread = std::thread::Builder::new().name("coorp-reports".to_owned());
        thread.spawn(move || read_reports(&reader, &queue))?;
        for mut emulated in emulated {
            let reader = Arc::downgrade(&gated);
            let thread = std::thread::Builder::new().name("coorp-reports".to_owned());
            thread.spawn(move || {
                let mut came = Vec::new();
                while emulated.read(&mut came) {
                    let Some(socket) = reader.upgrade() else { return };
                    socket.on_reports(&came, Completions::Emulated);
                    came.clear();
                }
                if let Some(socket) = reader.upgrade() {
                    socket.know(Completions::Acknowledgements);
                }
            })?;
        }
        Ok(gated)
    }

    /// How completions are known.
    pub fn completions(&self) -> Completions {
        Completions::numbered(self.completions.load(Ordering::Relaxed))
    }

    /// Datagrams below the gate.
    pub fn in_flight(&self) -> usize {
        lock(&self.under).datagrams
    }

    /// How often a datagram was held back.
    pub fn holds(&self) -> u64 {
        self.holds.load(Ordering::Relaxed)
    }

    /// Datagrams that the air has given up, as far as the kernel reports that.
    pub fn given_up(&self) -> u64 {
        self.given_up.load(Ordering::Relaxed)
    }

    /// Datagrams that should have been reported and were not.
    pub fn unreported(&self) -> u64 {
        self.unreported.load(Ordering::Relaxed)
    }

    /// Whether QUIC has been told that a permit allows bulk.
    pub fn is_permitted(&self) -> bool {
        self.permitted.load(Ordering::Acquire)
    }

    /// Whether a permit allows bulk; without one QUIC makes no packets.
    pub fn set_permitted(&self, permitted: bool) {
        self.permitted.store(permitted, Ordering::Release);
        self.wake();
    }

    /// Who waits asks again.
    pub fn wake(&self) {
        let waiters = {
            let mut under = lock(&self.under);
            under.closed = false;
            std::mem::take(&mut under.waiters)
        };
        waiters.into_iter().for_each(Waker::wake);
    }

    fn is_bulk(transmit: &Transmit<'_>) -> bool {
        let long_header = transmit.contents.first().is_some_and(|first| first & 0x80 != 0);
        let size = transmit.segment_size.unwrap_or(transmit.contents.len());
        !long_header && size > SMALL_BYTES
    }

    /// Reports came; the gate learns from them. What the air made of datagrams is told `by` one of two.
    fn on_reports(&self, came: &[Report], by: Completions) {
        let Some(gatekeeper) = self.gatekeeper.upgrade().filter(|_| !came.is_empty()) else {
            return;
        };
        let wifi = came.iter().any(|report| matches!(report, Report::OnAir { .. }));
        match self.completions() {
            known if known.of_the_air() => {}
            _ if wifi => self.know(by),
            Completions::Stamps => {}
            _ => self.know(Completions::Stamps),
        }
        let by_wifi = self.completions().of_the_air();
        let now = gatekeeper.now();
        let mut gone = Vec::new();
        {
            let mut under = lock(&self.under);
            if !by_wifi {
                under.silent_for = 0;
            }
            for report in came {
                match report {
                    Report::OnAir { tail, acknowledged } => {
                        // The emulator tells of other sockets' datagrams too.
                        let Some(send) = under.take(tail) else { continue };
                        under.silent_for = 0;
                        gone.push((send, now));
                        self.given_up.fetch_add(u64::from(!acknowledged), Ordering::Relaxed);
                    }
                    Report::Stamped { .. } if by_wifi => {}
                    Report::Stamped { number, ago, .. } => {
                        // When it left, as far as the kernel tells: not before it came, nor later than now.
                        let ago = ago.map_or(Duration::ZERO, |ago| Duration::from_secs_f64(ago.as_secs_f64()));
                        // Earlier ones whose report was lost have left before it.
                        while under
                            .sends
                            .front()
                            .is_some_and(|send| send.number.wrapping_sub(*number) as i32 <= 0)
                        {
                            let send = under.pop().filter(|send| send.number == *number);
                            gone.extend(send.map(|send| (send, (now - ago).max(send.at))));
                        }
                    }
                }
            }
        }
        self.learn(gatekeeper.as_ref(), &gone);
    }

    /// QUIC's acknowledgements, where the kernel reports nothing: so many bytes have arrived, or are lost.
    ///
    /// What was acknowledged has left the shortest round trip earlier. Whatever else it took it has waited, below the
    /// gate or anywhere on its way. What is not acknowledged counts as below the gate: some of it has left, and the gate
    /// learns how soon so many are acknowledged, which makes up for it. To leave out the newest would let any number go
    /// at once.
    fn on_acknowledged(&self, mut bytes: u64) {
        if self.completions().are_reported() {
            return;
        }
        let round_trip = self.round_trip();
        let Some(gatekeeper) = self.gatekeeper.upgrade() else {
            return;
        };
        let now = gatekeeper.now();
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
        self.learn(gatekeeper.as_ref(), &gone);
    }

    fn round_trip(&self) -> Duration {
        Duration::from_nanos(self.round_trip_ns.load(Ordering::Relaxed))
    }

    /// What has left, and when.
    fn learn(&self, gatekeeper: &dyn Gatekeeper, gone: &[(SendCall, Instant)]) {
        if !gone.is_empty() {
            gatekeeper.on_gone(self.path, gone);
            self.wake();
        }
    }

    fn know(&self, completions: Completions) {
        self.completions.store(completions as u8, Ordering::Relaxed);
        tracing::info!("bulk: what has left is known by {completions}");
    }

    /// Gives up on reports that are overdue, and on the kernel's altogether where none come, or come no longer.
    fn on_silence(&self) {
        let Some(gatekeeper) = self.gatekeeper.upgrade() else {
            return;
        };
        let now = gatekeeper.now();
        let (gave_up, none_come) = {
            let mut under = lock(&self.under);
            let before = under.datagrams;
            while under.sends.front().is_some_and(|send| now.since(send.at) > REPORT_LATE) {
                under.pop();
            }
            let gave_up = before - under.datagrams;
            (gave_up, gave_up > 0 && under.silent_for >= UNREPORTED_MAX)
        };
        let by_kernel = self.completions() != Completions::Acknowledgements;
        if by_kernel && none_come {
            self.know(Completions::Acknowledgements);
        }
        if gave_up > 0 {
            self.unreported.fetch_add(gave_up as u64, Ordering::Relaxed);
            self.wake();
        }
    }
}

#[cfg(test)]
impl SendCall {
    /// Datagrams before its last one, once it has left: those that left from its coming to its leaving.
    pub fn ahead(&self) -> usize {
        (self.left_by - self.left_before) as usize - 1
    }
}

impl Under {
    fn push(&mut self, send: SendCall) {
        if self.sends.len() >= FOLLOWED_MAX {
            self.pop();
        }
        self.datagrams += send.datagrams;
        self.sends.push_back(send);
        self.silent_for = self.silent_for.saturating_add(1);
    }

    fn pop(&mut self) -> Option<SendCall> {
        let send = self.sends.pop_front()?;
        Some(self.gone(send))
    }

    /// The one with this end, most often the oldest.
    fn take(&mut self, tail: &Tail) -> Option<SendCall> {
        let place = self.sends.iter().position(|send| send.tail == *tail)?;
        let send = self.sends.remove(place)?;
        Some(self.gone(send))
    }

    fn gone(&mut self, send: SendCall) -> SendCall {
        self.datagrams -= send.datagrams;
        self.left += send.datagrams as u64;
        SendCall {
            left_by: self.left,
            ..send
        }
    }
}

fn read_reports(socket: &Weak<GatedSocket>, queue: &OwnedFd) {
    let mut came = Vec::new();
    let mut tuns = BTreeMap::new();
    let mut looked = StdInstant::now();
    loop {
        let waited = reports::wait(queue.as_fd(), LOOK_UP_EVERY);
        let Some(socket) = socket.upgrade() else { return };
        came.clear();
        let read = waited.and_then(|_| reports::read(queue.as_fd(), &mut came));
        if let Err(error) = read {
            // An error of the socket itself wakes the poll again and again until it has been read.
            tracing::debug!("reports cannot be read: {error}");
            std::thread::sleep(StdDuration::from_millis(1));
        }
        came.retain(|report| says_something(report, queue, &mut tuns));
        socket.on_reports(&came, Completions::WifiStatus);
        if looked.elapsed() >= LOOK_UP_EVERY {
            looked = StdInstant::now();
            socket.on_silence();
        }
    }
}

/// Whether a report tells that something has left: a TAP's stamps do not.
fn says_something(report: &Report, queue: &OwnedFd, tuns: &mut BTreeMap<u32, bool>) -> bool {
    let &Report::Stamped { interface, .. } = report else {
        return true;
    };
    if interface != 0 && !tuns.contains_key(&interface) {
        if tuns.len() >= INTERFACES_MAX {
            tuns.clear();
        }
        let tun = reports::is_tun(queue.as_fd(), interface);
        if tun {
            tracing::info!("bulk: interface {interface} is a TAP or TUN, whose stamps do not tell what has left");
        }
        tuns.insert(interface, tun);
    }
    !tuns.get(&interface).copied().unwrap_or(false)
}

impl AsyncUdpSocket for GatedSocket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(GatedPoller {
            socket: self.clone(),
            inner: self.inner.clone().create_io_poller(),
        })
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let Some(gatekeeper) = self.gatekeeper.upgrade() else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        let bulk = GatedSocket::is_bulk(transmit);
        let datagrams = transmit
            .segment_size
            .map_or(1, |size| transmit.contents.len().div_ceil(size.max(1)));
        // Held while the datagram goes in, so that nobody is told to ask again between the answer and the wait.
        let mut under = lock(&self.under);
        let n = under.datagrams;
        let (pass, at) = if bulk {
            gatekeeper.may_pass(self.path, n)
        } else {
            (true, gatekeeper.now())
        };
        if !pass {
            under.closed = true;
            self.holds.fetch_add(1, Ordering::Relaxed);
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.inner.try_send(transmit)?;
        let number = under.next;
        under.next = under.next.wrapping_add(1);
        let left = under.left;
        under.push(SendCall {
            number,
            at,
            datagrams,
            bytes: transmit.contents.len() as u64,
            left_before: left,
            left_by: left,
            bulk,
            tail: reports::tail(transmit.contents),
        });
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
        // Of several that go in together WiFi's reports are another matter on each kernel.
        let completions = self.completions();
        let alone = completions == Completions::Unknown || completions.of_the_air();
        let Some(gatekeeper) = self.gatekeeper.upgrade().filter(|_| !alone) else {
            return 1;
        };
        let most = self.inner.max_transmit_segments().min(TOGETHER_MAX);
        let n = self.in_flight();
        gatekeeper.room(self.path, n, most)
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
            if under.closed {
                if !under.waiters.iter().any(|waiter| waiter.will_wake(cx.waker())) {
                    under.waiters.push(cx.waker().clone());
                }
                return Poll::Pending;
            }
        }
        self.inner.as_mut().poll_writable(cx)
    }
}

/// CUBIC, but that nothing goes without a permit and a turn, and that the gate hears of acknowledgements.
///
/// QUIC asks it several times a packet, so it reads what it needs without taking hold of the socket.
pub(crate) struct PermittedCubic {
    inner: Box<dyn Controller>,
    socket: Weak<GatedSocket>,
    permitted: Arc<AtomicBool>,
    completions: Arc<AtomicU8>,
    turn: Arc<Turn>,
    /// The other end has acknowledged something.
    heard: bool,
}

/// Makes [`PermittedCubic`]s of one connection.
pub(crate) struct PermittedCubicConfig {
    pub socket: Weak<GatedSocket>,
    pub turn: Arc<Turn>,
    pub coordinated: bool,
}

/// What a connection sends at once before the first acknowledgement, where bulk is coordinated: few others send, and the
/// gate bounds what is below it.
const FIRST_WINDOW_BYTES: u64 = 256 << 10;

impl ControllerFactory for PermittedCubicConfig {
    fn build(self: Arc<Self>, now: StdInstant, current_mtu: u16) -> Box<dyn Controller> {
        let socket = self.socket.upgrade();
        let known = socket.map(|socket| (socket.permitted.clone(), socket.completions.clone()));
        // Of a socket that is gone nothing is permitted.
        let (permitted, completions) = known.unwrap_or_default();
        let mut cubic = CubicConfig::default();
        if self.coordinated {
            cubic.initial_window(FIRST_WINDOW_BYTES);
        }
        Box::new(PermittedCubic {
            inner: Box::new(Cubic::new(Arc::new(cubic), now, current_mtu)),
            socket: self.socket.clone(),
            permitted,
            completions,
            turn: self.turn.clone(),
            heard: false,
        })
    }
}

impl PermittedCubic {
    /// So many bytes are off the network; acknowledgements come with the shortest round trip.
    fn acknowledged(&self, bytes: u64, round_trip: Option<StdDuration>) {
        let completions = Completions::numbered(self.completions.load(Ordering::Relaxed));
        if completions.are_reported() {
            return;
        }
        let Some(socket) = self.socket.upgrade() else { return };
        if let Some(round_trip) = round_trip {
            let nanos = u64::try_from(round_trip.as_nanos()).unwrap_or(u64::MAX);
            socket.round_trip_ns.store(nanos, Ordering::Relaxed);
        }
        socket.on_acknowledged(bytes);
    }
}

impl Controller for PermittedCubic {
    fn on_sent(&mut self, now: StdInstant, bytes: u64, last_packet_number: u64) {
        self.turn.on_sent();
        self.inner.on_sent(now, bytes, last_packet_number);
    }

    fn on_ack(
        &mut self,
        now: StdInstant,
        sent: StdInstant,
        bytes: u64,
        limited: bool,
        rtt: &quinn_proto::RttEstimator,
    ) {
        self.heard = true;
        self.acknowledged(bytes, Some(rtt.min()));
        self.inner.on_ack(now, sent, bytes, limited, rtt);
    }

    fn on_end_acks(&mut self, now: StdInstant, in_flight: u64, app_limited: bool, largest: Option<u64>) {
        self.inner.on_end_acks(now, in_flight, app_limited, largest);
    }

    fn on_congestion_event(&mut self, now: StdInstant, sent: StdInstant, persistent: bool, lost_bytes: u64) {
        self.acknowledged(lost_bytes, None);
        self.inner.on_congestion_event(now, sent, persistent, lost_bytes);
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.inner.on_mtu_update(new_mtu);
    }

    fn window(&self) -> u64 {
        // Without a word from the other end there is no connection yet: nobody could tell it of a permit that comes.
        if !self.heard || self.permitted.load(Ordering::Acquire) && self.turn.has() {
            self.inner.window()
        } else {
            // No packet fits into it. Not 0, which quinn's pacing takes for a mistake where a permit goes meanwhile.
            1
        }
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(PermittedCubic {
            inner: self.inner.clone_box(),
            socket: self.socket.clone(),
            permitted: self.permitted.clone(),
            completions: self.completions.clone(),
            turn: self.turn.clone(),
            heard: self.heard,
        })
    }

    fn initial_window(&self) -> u64 {
        self.inner.initial_window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn std::any::Any> {
        self
    }
}

#[cfg(test)]
mod on_wifi;
#[cfg(test)]
mod tests;
