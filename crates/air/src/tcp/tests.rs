//! Both ends in virtual time, over a path that queues, loses, duplicates and reorders.

use super::*;
use coorp_core::{Duration, Instant};
use proptest::prelude::*;
use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug)]
enum Event {
    Arrives { number: u64, bytes: u16 },
    Departs { bytes: u16 },
    Acknowledges(Ack),
    Write(u64),
    Pause(bool),
}

/// The path between the ends. Shares are per 1,000.
#[derive(Clone, Copy, Debug)]
struct Path {
    bits_per_s: u64,
    delay: Duration,
    /// Number of packets that the bottleneck queues; it drops the excess.
    queue_packets: u64,
    /// Whether the bottleneck is the sender's own WNIC, so that its queue is part of the local stack.
    local: bool,
    lost: u64,
    acks_lost: u64,
    doubled: u64,
    /// The share that is late, by up to 20 ms.
    late: u64,
    /// The time from which nothing is lost, duplicated or late.
    sound_from: Instant,
}

const CLEAN: Path = Path {
    bits_per_s: 200_000_000,
    delay: Duration::from_millis(1),
    queue_packets: 1_000_000,
    local: true,
    lost: 0,
    acks_lost: 0,
    doubled: 0,
    late: 0,
    sound_from: Instant::ZERO,
};

struct Pair {
    sender: Sender,
    receiver: Receiver,
    path: Path,
    now: Instant,
    events: BTreeMap<(Instant, u64), Event>,
    counter: u64,
    free_at: Instant,
    random: u64,
    sent: u64,
    /// Transmissions that were not a segment's first.
    resent: Vec<u64>,
    in_stack_max: u64,
    /// Transmissions to lose, counted from 0.
    lose: Vec<u64>,
}

impl Pair {
    fn new(config: Config, path: Path) -> Self {
        Pair {
            sender: Sender::new(config),
            receiver: Receiver::new(config),
            path,
            now: Instant::ZERO,
            events: BTreeMap::new(),
            counter: 0,
            free_at: Instant::ZERO,
            random: 1,
            sent: 0,
            resent: Vec::new(),
            in_stack_max: 0,
            lose: Vec::new(),
        }
    }

    fn at(&mut self, when: Instant, event: Event) {
        self.counter += 1;
        self.events.insert((when, self.counter), event);
    }

    fn happens(&mut self, share: u64) -> bool {
        self.random = self
            .random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        self.now < self.path.sound_from && (self.random >> 33) % 1000 < share
    }

    fn delay(&mut self) -> Duration {
        let late = self.happens(self.path.late);
        self.path.delay
            + if late {
                Duration::from_micros((self.random >> 20) % 20_000)
            } else {
                Duration::ZERO
            }
    }

    fn transmit(&mut self, segment: Segment) {
        let lose = self.lose.contains(&self.sent);
        if segment.retransmit {
            self.resent.push(self.sent);
        }
        self.sent += 1;
        let air = Duration::from_nanos(u64::from(segment.packet_bytes()) * 8_000_000_000 / self.path.bits_per_s);
        let backlog = self.free_at.since(self.now).as_nanos() / air.as_nanos().max(1);
        let full = backlog >= self.path.queue_packets;
        if !full {
            self.free_at = self.free_at.max(self.now) + air;
        }
        let departs_at = if self.path.local && !full {
            self.free_at
        } else {
            self.now
        };
        self.at(departs_at, Event::Departs { bytes: segment.bytes });
        if full || lose || self.happens(self.path.lost) {
            return;
        }
        let copies = 1 + u64::from(self.happens(self.path.doubled));
        for _ in 0..copies {
            let arrives_at = self.free_at + self.delay();
            self.at(
                arrives_at,
                Event::Arrives {
                    number: segment.number,
                    bytes: segment.bytes,
                },
            );
        }
    }

    fn send_ack(&mut self, ack: Option<Ack>) {
        let Some(ack) = ack else { return };
        if !self.happens(self.path.acks_lost) {
            let arrives_at = self.now + self.delay();
            self.at(arrives_at, Event::Acknowledges(ack));
        }
    }

    /// Processes the next event, unless it is after `end`.
    fn step(&mut self, end: Instant) -> bool {
        let event_at = self.events.keys().next().map(|(when, _)| *when);
        let next = [event_at, self.sender.next_deadline(), self.receiver.next_deadline()]
            .into_iter()
            .flatten()
            .min();
        let Some(next) = next.filter(|next| *next <= end) else {
            self.now = end;
            return false;
        };
        self.now = self.now.max(next);
        while let Some(entry) = self.events.first_entry().filter(|entry| entry.key().0 <= self.now) {
            match entry.remove() {
                Event::Arrives { number, bytes } => {
                    let ack = self.receiver.on_segment(number, bytes, self.now);
                    self.send_ack(ack);
                }
                Event::Departs { bytes } => self.sender.on_departed(bytes),
                Event::Acknowledges(ack) => self.sender.on_ack(&ack, self.now),
                Event::Write(bytes) => self.sender.write(bytes),
                Event::Pause(paused) => self.sender.set_paused(paused, self.now),
            }
        }
        self.sender.on_deadline(self.now);
        let ack = self.receiver.on_deadline(self.now);
        self.send_ack(ack);
        self.pump();
        true
    }

    fn pump(&mut self) {
        while let Some(segment) = self.sender.poll_transmit(self.now) {
            self.in_stack_max = self.in_stack_max.max(self.sender.in_stack());
            self.transmit(segment);
        }
    }

    fn run_until(&mut self, end: Instant) {
        self.pump();
        while self.step(end) {}
    }

    /// Runs until everything is acknowledged. Returns how long it took, or `None` after `limit`.
    fn run_idle(&mut self, limit: Duration) -> Option<Duration> {
        let begin = self.now;
        self.pump();
        while self.step(begin + limit) {
            let writes = self
                .events
                .values()
                .any(|event| matches!(event, Event::Write(_) | Event::Pause(_)));
            if self.sender.is_idle() && !writes {
                return Some(self.now.since(begin));
            }
        }
        None
    }

    /// Runs to `to` and returns the rate of payload delivered since `from`, in Mbit/s.
    fn goodput_mbps(&mut self, from: Instant, to: Instant) -> f64 {
        self.run_until(from);
        let before = self.receiver.delivered_bytes();
        self.in_stack_max = 0;
        self.run_until(to);
        (self.receiver.delivered_bytes() - before) as f64 * 8e-6 / to.since(from).as_secs_f64()
    }
}

fn at_ms(ms: u64) -> Instant {
    Instant::ZERO + Duration::from_millis(ms)
}

fn saturated(path: Path) -> Pair {
    let mut pair = Pair::new(Config::default(), path);
    pair.sender.saturate();
    pair
}

/// The payload's share of the bottleneck's rate.
const PAYLOAD_SHARE: f64 = 1448.0 / 1500.0;

#[test]
fn a_flow_fills_its_own_wnic_and_keeps_the_stack_short() {
    let mut pair = saturated(CLEAN);
    let mbps = pair.goodput_mbps(at_ms(1_000), at_ms(5_000));
    assert!(mbps > 0.99 * 200.0 * PAYLOAD_SHARE, "{mbps}");
    // 8 ms of the pacing rate, which is a little above the 25 bytes per microsecond that the WNIC sends.
    assert!(
        pair.in_stack_max < 25 * 16_000,
        "{} bytes in the stack",
        pair.in_stack_max
    );
    assert!(pair.resent.is_empty());
}

#[test]
fn a_flow_fills_a_remote_bottleneck_that_drops() {
    let path = Path {
        local: false,
        queue_packets: 150,
        delay: Duration::from_millis(5),
        ..CLEAN
    };
    let mut pair = saturated(path);
    let mbps = pair.goodput_mbps(at_ms(2_000), at_ms(60_000));
    assert!(mbps > 0.95 * 200.0 * PAYLOAD_SHARE, "{mbps}");
    let resent = pair.resent.len() as u64;
    assert!(
        resent > 0 && resent < pair.sent / 100,
        "{resent} of {} sent again",
        pair.sent
    );
}

#[test]
fn short_pauses_cost_their_share_at_most() {
    for local in [true, false] {
        let mut pair = saturated(Path {
            local,
            queue_packets: 1_000,
            ..CLEAN
        });
        for period in 0..300 {
            pair.at(at_ms(33 * period), Event::Pause(true));
            pair.at(at_ms(33 * period + 2), Event::Pause(false));
        }
        let mbps = pair.goodput_mbps(at_ms(1_000), at_ms(9_000));
        let share = mbps / (200.0 * PAYLOAD_SHARE);
        assert!(share > 0.97 * 31.0 / 33.0, "local {local}: {share}");
    }
}

#[test]
fn a_long_pause_keeps_the_window_and_sends_nothing() {
    let mut pair = saturated(CLEAN);
    pair.run_until(at_ms(1_000));
    let window = pair.sender.cwnd();
    let sent = pair.sent;
    pair.at(at_ms(1_000), Event::Pause(true));
    pair.at(at_ms(16_000), Event::Pause(false));
    pair.run_until(at_ms(15_999));
    assert_eq!(pair.sent, sent);
    assert_eq!(pair.sender.next_deadline(), None);
    assert_eq!(pair.sender.unacknowledged(), 0);
    let mbps = pair.goodput_mbps(at_ms(16_000), at_ms(16_100));
    assert!(pair.sender.cwnd() >= window);
    assert!(mbps > 0.9 * 200.0 * PAYLOAD_SHARE, "{mbps} right after the pause");
    assert!(pair.resent.is_empty());
}

#[test]
fn a_gate_that_holds_the_host_queue_makes_no_timeout() {
    let mut sender = Sender::new(Config::default());
    sender.saturate();
    while sender.poll_transmit(Instant::ZERO).is_some() {}
    let window = sender.cwnd();
    for _ in 0..4 {
        let at = sender.next_deadline().expect("segments are out");
        sender.on_deadline(at);
        assert!(sender.poll_transmit(at).is_none());
    }
    assert_eq!(sender.cwnd(), window);
    sender.on_departed(1448);
    let at = sender.next_deadline().expect("segments are out");
    sender.on_deadline(at);
    assert_eq!(sender.cwnd(), 1);
    assert_eq!(
        sender.poll_transmit(at),
        Some(Segment {
            number: 0,
            bytes: 1448,
            retransmit: true
        })
    );
}

#[test]
fn timeouts_double_and_an_acknowledgement_ends_them() {
    let mut sender = Sender::new(Config::default());
    sender.write(1000);
    let mut now = Instant::ZERO;
    let mut gaps_ms = Vec::new();
    for _ in 0..5 {
        let segment = sender.poll_transmit(now).expect("the segment, repeatedly");
        assert_eq!(
            (segment.number, segment.bytes, segment.retransmit),
            (0, 1000, !gaps_ms.is_empty())
        );
        sender.on_departed(segment.bytes);
        let next = sender.next_deadline().expect("a segment is out");
        sender.on_deadline(next - Duration::from_nanos(1));
        assert_eq!(sender.poll_transmit(next), None);
        sender.on_deadline(next);
        gaps_ms.push(next.since(now).as_millis_f64() as u64);
        now = next;
    }
    assert_eq!(gaps_ms, [1_000, 2_000, 4_000, 8_000, 16_000]);
    sender.on_ack(
        &Ack {
            next: 1,
            ..Ack::default()
        },
        now,
    );
    assert!(sender.is_idle());
    assert_eq!(sender.next_deadline(), None);
    // The round trip of a segment that was sent twice does not count, and the backoff is over.
    assert_eq!(sender.srtt(), None);
    sender.write(1000);
    assert!(sender.poll_transmit(now).is_some());
    assert_eq!(sender.next_deadline(), Some(now + Duration::from_secs(1)));
}

#[test]
fn the_timeout_stands_still_in_a_pause() {
    let mut sender = Sender::new(Config::default());
    sender.write(1000);
    sender.poll_transmit(Instant::ZERO).expect("there is data");
    sender.on_departed(1000);
    sender.set_paused(true, at_ms(400));
    sender.on_deadline(at_ms(5_000));
    assert_eq!((sender.next_deadline(), sender.cwnd()), (None, 10));
    sender.set_paused(false, at_ms(10_400));
    assert_eq!(sender.next_deadline(), Some(at_ms(11_000)));
    sender.on_deadline(at_ms(11_000));
    assert_eq!(sender.cwnd(), 1);
}

/// Returns a sender with segments 0 to 9 in flight for 100 ms, of which `arrived` are then SACKed.
fn sender_with_hole(arrived: SackRange) -> Sender {
    let mut sender = Sender::new(Config::default());
    sender.write(1448);
    sender.poll_transmit(Instant::ZERO).expect("there is data");
    sender.on_departed(1448);
    sender.on_ack(
        &Ack {
            next: 1,
            ..Ack::default()
        },
        at_ms(100),
    );
    sender.write(1448 * 100);
    while let Some(segment) = sender.poll_transmit(at_ms(100)) {
        sender.on_departed(segment.bytes);
    }
    sender.on_ack(
        &Ack {
            next: 1,
            sack: [arrived, SackRange::default(), SackRange::default()],
        },
        at_ms(200),
    );
    sender
}

#[test]
fn three_segments_past_a_hole_call_it_lost_at_once() {
    let mut sender = sender_with_hole(SackRange { start: 2, end: 5 });
    assert_eq!(
        sender.poll_transmit(at_ms(200)),
        Some(Segment {
            number: 1,
            bytes: 1448,
            retransmit: true
        })
    );
}

#[test]
fn fewer_leave_it_a_quarter_of_a_round_trip() {
    let mut sender = sender_with_hole(SackRange { start: 2, end: 4 });
    while let Some(segment) = sender.poll_transmit(at_ms(200)) {
        assert!(!segment.retransmit);
    }
    assert_eq!(sender.next_deadline(), Some(at_ms(225)));
    sender.on_deadline(at_ms(224));
    assert_eq!(sender.poll_transmit(at_ms(224)), None);
    sender.on_deadline(at_ms(225));
    assert_eq!(
        sender.poll_transmit(at_ms(225)),
        Some(Segment {
            number: 1,
            bytes: 1448,
            retransmit: true
        })
    );
}

#[test]
fn a_recovery_sends_in_proportion_and_ends_at_the_threshold() {
    let mut sender = Sender::new(Config::default());
    sender.saturate();
    let mut next = 0;
    for round in 0..4 {
        while let Some(segment) = sender.poll_transmit(at_ms(100 * round)) {
            sender.on_departed(segment.bytes);
            next = segment.number + 1;
        }
        if round < 3 {
            sender.on_ack(&Ack { next, ..Ack::default() }, at_ms(100 * round + 100));
        }
    }
    let before = sender.cwnd();
    let (lost, end) = (next - u64::from(before), next);
    let mut sent = 0;
    for arrived in lost + 1..end {
        let sack = [
            SackRange {
                start: lost + 1,
                end: arrived + 1,
            },
            SackRange::default(),
            SackRange::default(),
        ];
        sender.on_ack(&Ack { next: lost, sack }, at_ms(400));
        let mut burst = 0;
        while let Some(segment) = sender.poll_transmit(at_ms(400)) {
            sender.on_departed(segment.bytes);
            burst += 1;
        }
        assert!(burst <= 2, "{burst} at once");
        sent += burst;
    }
    let after = sender.cwnd();
    assert!(
        (sent as f64 / f64::from(before) - 0.7).abs() < 0.05,
        "{sent} of {before}"
    );
    sender.on_ack(
        &Ack {
            next: end,
            ..Ack::default()
        },
        at_ms(500),
    );
    let kept = f64::from(sender.cwnd()) / f64::from(before);
    assert!(
        (0.68..0.75).contains(&kept),
        "{before}, {after}, then {}",
        sender.cwnd()
    );
}

#[test]
fn a_lost_segment_goes_out_again_once_without_a_timeout() {
    let mut pair = Pair::new(Config::default(), CLEAN);
    pair.lose = vec![20];
    pair.sender.write(1448 * 200);
    let took = pair.run_idle(Duration::from_secs(10)).expect("finishes");
    assert_eq!(pair.resent.len(), 1);
    assert!(took < Duration::from_millis(100), "{took}");
    assert_eq!(pair.receiver.delivered_bytes(), 1448 * 200);
}

#[test]
fn a_retransmission_lost_again_is_found_without_a_timeout() {
    let mut probe = Pair::new(Config::default(), CLEAN);
    probe.lose = vec![20];
    probe.sender.write(1448 * 2000);
    probe.run_idle(Duration::from_secs(10)).expect("finishes");
    let mut pair = Pair::new(Config::default(), CLEAN);
    pair.lose = vec![20, probe.resent[0]];
    pair.sender.write(1448 * 2000);
    let took = pair.run_idle(Duration::from_secs(10)).expect("finishes");
    assert_eq!(pair.resent.len(), 2);
    assert!(took < Duration::from_millis(190), "{took}");
    assert_eq!(pair.receiver.delivered_bytes(), 1448 * 2000);
}

#[test]
fn a_lost_tail_waits_for_the_timeout() {
    let mut pair = Pair::new(Config::default(), CLEAN);
    pair.lose = vec![4];
    pair.sender.write(1448 * 4 + 100);
    let took = pair.run_idle(Duration::from_secs(10)).expect("finishes");
    assert!(took > Duration::from_millis(200), "{took}");
    assert_eq!(
        (pair.resent.len(), pair.receiver.delivered_bytes()),
        (1, 1448 * 4 + 100)
    );
}

#[test]
fn the_receive_window_bounds_what_is_on_its_way() {
    let config = Config {
        receive_window: 20_000,
        ..Config::default()
    };
    let mut pair = Pair::new(
        config,
        Path {
            delay: Duration::from_millis(50),
            ..CLEAN
        },
    );
    pair.sender.saturate();
    for ms in 0..3_000 {
        pair.run_until(at_ms(ms));
        assert!(pair.sender.unacknowledged() <= 20_000);
    }
    let mbps = pair.goodput_mbps(at_ms(3_000), at_ms(5_000));
    assert!((1.2..1.6).contains(&mbps), "{mbps}");
}

#[test]
fn a_flow_that_its_application_limits_does_not_grow_its_window() {
    let mut pair = Pair::new(Config::default(), CLEAN);
    for period in 0..200 {
        pair.at(at_ms(33 * period), Event::Write(2_000));
    }
    pair.run_until(at_ms(8_000));
    assert!(pair.sender.is_idle());
    assert!(pair.sender.cwnd() <= 20, "{}", pair.sender.cwnd());
}

#[test]
fn acknowledgements_that_make_no_sense_are_passed_over() {
    let mut sender = Sender::new(Config::default());
    sender.write(10_000);
    while sender.poll_transmit(Instant::ZERO).is_some() {}
    let range = |start, end| SackRange { start, end };
    let wild = [range(u64::MAX, 0), range(5, 2), range(0, u64::MAX)];
    sender.on_ack(
        &Ack {
            next: u64::MAX,
            sack: wild,
        },
        at_ms(1),
    );
    sender.on_ack(&Ack { next: 8, sack: wild }, at_ms(1));
    assert_eq!(sender.unacknowledged(), 10_000);
    sender.on_ack(&Ack { next: 7, sack: wild }, at_ms(2));
    sender.on_ack(&Ack { next: 3, sack: wild }, at_ms(2));
    assert!(sender.is_idle());
    sender.on_departed(u16::MAX);
    assert_eq!(sender.in_stack(), 0);
}

prop_compose! {
    fn rough_path()(
        bits_per_s in 200_000_u64..500_000_000,
        delay_us in 10_u64..50_000,
        queue_packets in 2_u64..300,
        local in any::<bool>(),
        lost in 0_u64..400,
        acks_lost in 0_u64..400,
        doubled in 0_u64..200,
        late in 0_u64..400,
        sound_from_ms in 0_u64..20_000,
    ) -> Path {
        Path {
            bits_per_s, queue_packets, local, lost, acks_lost, doubled, late,
            delay: Duration::from_micros(delay_us),
            sound_from: at_ms(sound_from_ms),
        }
    }
}

proptest! {
    /// Whatever the path does, each byte is delivered once and in order, and all bytes arrive once the path is good.
    #[test]
    fn every_byte_arrives_once_and_in_order(
        path in rough_path(),
        writes in proptest::collection::vec((0_u64..10_000, 0_u64..60_000), 1..20),
        pauses in proptest::collection::vec((0_u64..10_000, 0_u64..3_000), 0..5),
        mss in 100_u16..1448,
        receive_window in 0_u32..300_000,
        ack_every in 0_u32..20,
        seed in any::<u64>(),
    ) {
        let mut pair = Pair::new(Config { mss, receive_window, ack_every }, path);
        pair.random = seed;
        let mut written = 0;
        for (ms, bytes) in writes {
            written += bytes;
            pair.at(at_ms(ms), Event::Write(bytes));
        }
        for (ms, length) in pauses {
            pair.at(at_ms(ms), Event::Pause(true));
            pair.at(at_ms(ms + length), Event::Pause(false));
        }
        // Losses end after 20 s at the latest, and a timeout is at most 120 s.
        prop_assert!(pair.run_idle(Duration::from_secs(400)).is_some(), "stuck: {:?}", pair.sender);
        prop_assert_eq!(pair.receiver.delivered_bytes(), written);
    }
}
