//! The socket with a test gate, on interfaces that every machine has.

use std::net::UdpSocket;
use std::time::Instant as StdInstant;

use coorp_core::gate::{CompletionTable, Gate, Verdict};
use coorp_core::windows::Window;

use super::*;
use crate::ground::Linux;

/// Time limit for anything that should happen at once.
pub const SOON: StdDuration = StdDuration::from_secs(60);

/// A test gate, which records what it learns.
#[derive(Debug)]
pub struct Door {
    began: StdInstant,
    pub gate: Mutex<Gate>,
    pub permits: AtomicBool,
    gone: Mutex<Vec<(SendCall, Instant)>>,
}

impl Gatekeeper for Door {
    fn now(&self) -> Instant {
        Instant::from_nanos(self.began.elapsed().as_nanos() as u64)
    }

    fn may_pass(&self, _path: usize, n: usize, alive: bool) -> (bool, Instant) {
        let now = self.now();
        let permitted = alive || self.permits.load(Ordering::Relaxed);
        (permitted && lock(&self.gate).on_dequeue(n, now) == Verdict::Pass, now)
    }

    fn room(&self, _path: usize, n: usize, most: usize) -> usize {
        lock(&self.gate).room(n, most, self.now())
    }

    fn on_gone(&self, _path: usize, gone: &[(SendCall, Instant)]) {
        for (send, left_at) in gone.iter().filter(|(send, _)| send.bulk) {
            lock(&self.gate).on_complete(send.ahead(), send.at, *left_at);
        }
        lock(&self.gone).extend(gone);
    }

    fn on_panic(&self, why: &str) {
        panic!("{why}");
    }
}

/// A socket with a test gate.
pub struct Bench {
    pub door: Arc<Door>,
    pub socket: Arc<GatedSocket>,
    pub sent: u32,
    _runtime: tokio::runtime::Runtime,
}

impl Bench {
    /// Creates a bench with its card's source of completions.
    pub fn new(backlog_max: Option<Duration>) -> Bench {
        Bench::by(Completions::Unknown, backlog_max)
    }

    pub fn by(source: Completions, backlog_max: Option<Duration>) -> Bench {
        let door = Arc::new(Door {
            began: StdInstant::now(),
            gate: Mutex::new(Gate::new(CompletionTable::new(256, 64, 0.9), backlog_max)),
            permits: AtomicBool::new(true),
            gone: Mutex::default(),
        });
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(1).enable_all().build().unwrap();
        let entered = runtime.enter();
        let below = Linux.bind(([0, 0, 0, 0], 0).into(), None).unwrap().below_gate();
        let socket = GatedSocket::with(&Linux, below.unwrap(), 0, door.clone(), source).unwrap();
        drop(entered);
        socket.set_permitted(true);
        Bench {
            door,
            socket,
            sent: 0,
            _runtime: runtime,
        }
    }

    /// Sends a datagram with the next number.
    pub fn send(&mut self, to: &str, bytes: usize) {
        self.hand_over(to, self.sent, bytes);
        self.sent += 1;
    }

    /// Returns what looks like a QUIC datagram with a short header, different for each number.
    fn contents(number: u32, bytes: usize) -> Vec<u8> {
        let number = number.to_le_bytes();
        [&[0x40][..], &vec![0; bytes - 5], &number].concat()
    }

    /// Hands a datagram to the kernel, as soon as the kernel and the gate accept it.
    pub fn hand_over(&self, to: &str, number: u32, bytes: usize) {
        until("the socket takes a datagram", || self.takes(to, number, bytes));
    }

    /// Returns whether the kernel and the gate accept a datagram now.
    fn takes(&self, to: &str, number: u32, bytes: usize) -> bool {
        let contents = Bench::contents(number, bytes);
        let transmit = Transmit {
            destination: to.parse().unwrap(),
            ecn: None,
            contents: &contents,
            segment_size: None,
            src_ip: None,
        };
        match self.socket.try_send(&transmit) {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => false,
            Err(error) => panic!("{error}"),
        }
    }

    /// Waits for all reports, and returns what the gate was told.
    pub fn reported(&self, by: Completions) -> Vec<(SendCall, Instant)> {
        until("all is reported", || lock(&self.door.gone).len() == self.sent as usize);
        assert_eq!(self.socket.in_flight(), 0);
        assert_eq!(self.socket.completions(), by);
        assert_eq!(lock(&self.socket.under).unreported, 0);
        lock(&self.door.gone).clone()
    }
}

pub fn until(what: &str, mut so: impl FnMut() -> bool) {
    let began = StdInstant::now();
    while !so() {
        assert!(began.elapsed() < SOON, "{what}: it does not come to pass");
        std::thread::sleep(StdDuration::from_micros(100));
    }
}

/// Returns a destination that nobody reads.
fn sink() -> (UdpSocket, String) {
    let sink = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = sink.local_addr().unwrap().to_string();
    (sink, address)
}

fn on_air(number: u32) -> Report {
    Report {
        tail: reports::tail(&Bench::contents(number, 100)),
        acknowledged: number != 1,
    }
}

#[test]
fn the_send_queue_of_the_kernel_tells_what_has_left() {
    let (_sink, to) = sink();
    let mut bench = Bench::new(None);
    assert_eq!(bench.socket.completions(), Completions::Unknown);
    assert_eq!(bench.socket.max_transmit_segments(), 1, "nobody knows the card yet");
    for _ in 0..100 {
        bench.send(&to, 1_000);
    }
    let gone = bench.reported(Completions::OutQueue);
    assert!(gone.iter().map(|(send, _)| send.number()).eq(0..100));
    assert!(bench.socket.max_transmit_segments() > 1, "a count will do for several");
}

#[test]
fn one_call_a_second_goes_without_a_permit() {
    let (_sink, to) = sink();
    let bench = Bench::new(None);
    bench.hand_over(&to, 0, 1_000);
    bench.door.permits.store(false, Ordering::Relaxed);
    bench.socket.set_permitted(false);
    lock(&bench.socket.under).bulk_at = bench.door.now();
    assert!(!bench.takes(&to, 1, 1_000));
    lock(&bench.socket.under).bulk_at = Instant::ZERO;
    std::thread::sleep(StdDuration::from_nanos(ALIVE_EVERY.as_nanos()));
    bench.hand_over(&to, 1, 1_000);
    assert!(!bench.takes(&to, 2, 1_000));
}

/// Otherwise QUIC asks again and again until the window ends.
#[test]
fn a_call_that_would_keep_a_connection_alive_waits_for_the_gate() {
    let (_sink, to) = sink();
    let bench = Bench::new(None);
    let window = Window {
        start: Instant::ZERO,
        end: Instant::FAR_FUTURE,
    };
    lock(&bench.door.gate).on_window(window);
    bench.door.permits.store(false, Ordering::Relaxed);
    bench.socket.set_permitted(false);
    until("the connection may be kept alive", || {
        bench.socket.keeps_alive(&lock(&bench.socket.under))
    });
    let mut poller = bench.socket.clone().create_io_poller();
    let mut is_ready = || {
        let mut cx = Context::from_waker(Waker::noop());
        poller.as_mut().poll_writable(&mut cx).is_ready()
    };
    until("the kernel has room", &mut is_ready);
    assert!(!bench.takes(&to, 0, 1_000));
    assert!(!is_ready(), "it waits for the gate");
    lock(&bench.door.gate).on_window(Window::NONE);
    bench.socket.wake();
    assert!(is_ready() && bench.takes(&to, 0, 1_000));
}

#[test]
fn reports_of_wifi_are_told_apart_in_whatever_order_they_come() {
    let (_sink, to) = sink();
    let mut bench = Bench::by(Completions::WifiStatus, None);
    for _ in 0..4 {
        bench.send(&to, 100);
    }
    bench.socket.on_reports(&[on_air(2), on_air(77), on_air(1)]);
    assert_eq!((bench.socket.in_flight(), lock(&bench.socket.under).given_up), (2, 1));
    bench.socket.on_reports(&[on_air(3), on_air(3), on_air(0)]);
    let gone = bench.reported(Completions::WifiStatus);
    assert_eq!(
        gone.iter().map(|(send, _)| send.number()).collect::<Vec<_>>(),
        [2, 1, 3, 0]
    );
}

#[test]
fn where_wifis_reports_cease_the_send_queue_takes_over() {
    let (_sink, to) = sink();
    // Loopback reports nothing.
    let mut bench = Bench::by(Completions::WifiStatus, None);
    until("the send queue counts", || {
        bench.send(&to, 1_000);
        bench.socket.completions() == Completions::OutQueue
    });
    assert!(bench.sent > UNREPORTED_MAX);
}
