//! Two ends over a network that loses, duplicates and reorders packets, in virtual time.

use super::*;
use proptest::prelude::*;

const SILENCE: Duration = Duration::from_secs(5);

/// A generator of numbers (SplitMix64).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit
    }
}

struct Network {
    random: Random,
    loss_percent: u64,
    double_percent: u64,
    delay_us_max: u64,
    /// The time of arrival, the end, and the packet.
    flying: Vec<(Instant, usize, Vec<u8>)>,
    packets: usize,
}

impl Network {
    fn send(&mut self, to: usize, packet: &[u8], now: Instant) {
        self.packets += 1;
        let copies = 1 + u64::from(self.random.below(100) < self.double_percent);
        for _ in 0..copies {
            if self.random.below(100) >= self.loss_percent {
                let delay = Duration::from_micros(100 + self.random.below(self.delay_us_max));
                self.flying.push((now + delay, to, packet.to_vec()));
            }
        }
    }

    fn take(&mut self, now: Instant) -> Option<(usize, Vec<u8>)> {
        let at = self.flying.iter().position(|(at, ..)| *at <= now)?;
        let (_, to, packet) = self.flying.swap_remove(at);
        Some((to, packet))
    }
}

struct Pair {
    ends: [Pipe; 2],
    network: Network,
    now: Instant,
    events: [Vec<Event>; 2],
}

impl Pair {
    fn new(seed: u64, loss_percent: u64, double_percent: u64, delay_us_max: u64) -> Self {
        let now = Instant::from_nanos(1_000_000_000);
        Pair {
            ends: [Pipe::new(7, SILENCE, now), Pipe::new(9, SILENCE, now)],
            network: Network {
                random: Random(seed),
                loss_percent,
                double_percent,
                delay_us_max,
                flying: Vec::new(),
                packets: 0,
            },
            now,
            events: [Vec::new(), Vec::new()],
        }
    }

    /// Advances by half a millisecond.
    fn step(&mut self) {
        self.now += Duration::from_micros(500);
        while let Some((to, packet)) = self.network.take(self.now) {
            self.ends[to].on_packet(&packet, self.now);
        }
        for end in 0..2 {
            while let Some(packet) = self.ends[end].poll_packet(self.now) {
                self.network.send(1 - end, &packet, self.now);
            }
            while let Some(event) = self.ends[end].poll() {
                self.events[end].push(event);
            }
        }
    }

    fn run(&mut self, steps: usize) {
        (0..steps).for_each(|_| self.step());
    }

    fn frames(&self, end: usize) -> Vec<&Vec<u8>> {
        let frames = self.events[end].iter().filter_map(|event| match event {
            Event::Frame(frame) => Some(frame),
            Event::Up | Event::Down => None,
        });
        frames.collect()
    }
}

fn frame(number: usize, bytes: usize) -> Vec<u8> {
    let mut frame = vec![number as u8; bytes];
    frame.extend_from_slice(&number.to_le_bytes());
    frame
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn all_frames_come_once_and_in_order(
        seed in any::<u64>(),
        loss in 0u64..40,
        double in 0u64..30,
        delay_us_max in 1u64..30_000,
        sizes in prop::collection::vec(prop_oneof![8 => 0usize..200, 1 => 0usize..150_000], 1..120),
        every in 1usize..20,
    ) {
        let mut pair = Pair::new(seed, loss, double, delay_us_max);
        while !(pair.ends[0].is_up() && pair.ends[1].is_up()) {
            pair.step();
            prop_assert!(pair.now < Instant::from_nanos(60_000_000_000), "never up");
        }
        for (number, bytes) in sizes.iter().enumerate() {
            pair.ends[number % 2].send(&frame(number, *bytes));
            pair.run(every);
        }
        let bound = pair.now + Duration::from_secs(60);
        while !(pair.ends[0].is_flushed() && pair.ends[1].is_flushed()) {
            pair.step();
            prop_assert!(pair.now < bound, "not flushed");
        }
        for end in 0..2 {
            let sent = sizes.iter().enumerate().filter(|(number, _)| number % 2 != end);
            let sent: Vec<_> = sent.map(|(number, bytes)| frame(number, *bytes)).collect();
            prop_assert!(pair.frames(end).into_iter().eq(sent.iter()), "end {end}");
            prop_assert_eq!(&pair.events[end][0], &Event::Up);
            prop_assert!(!pair.events[end].contains(&Event::Down));
        }
    }
}

#[test]
fn a_lost_packet_is_made_up_for_by_the_next_one() {
    let mut pair = Pair::new(1, 0, 0, 1);
    pair.run(10);
    pair.network.loss_percent = 100;
    pair.ends[0].send(b"lost");
    pair.step();
    pair.network.loss_percent = 0;
    pair.ends[0].send(b"arrives");
    pair.run(2);
    assert_eq!(pair.frames(1), [b"lost".as_slice(), b"arrives"]);
}

#[test]
fn an_idle_pair_says_little_and_a_silent_end_is_gone() {
    let mut pair = Pair::new(1, 0, 0, 1_000);
    pair.run(20_000);
    // Ten seconds: two packets a second from each, and the answers to the first ones.
    assert!(pair.network.packets < 2 * 25, "{}", pair.network.packets);
    assert_eq!(pair.events, [[Event::Up], [Event::Up]]);
    pair.network.loss_percent = 100;
    pair.run(9_000);
    assert!(pair.ends[0].is_up());
    pair.run(2_000);
    assert_eq!(pair.events, [[Event::Up, Event::Down], [Event::Up, Event::Down]]);
}

#[test]
fn another_session_ends_the_pipe_and_an_earlier_one_does_not() {
    let mut pair = Pair::new(1, 0, 0, 1);
    pair.run(10);
    for (session, ends) in [(8, false), (10, true)] {
        let mut other = Pipe::new(session, SILENCE, pair.now);
        let packet = other.poll_packet(pair.now).unwrap();
        pair.ends[0].on_packet(&packet, pair.now);
        pair.step();
        assert_eq!(pair.events[0].contains(&Event::Down), ends);
    }
}

#[test]
fn an_end_that_leaves_says_so() {
    let mut pair = Pair::new(1, 0, 0, 1);
    pair.run(10);
    let last = pair.ends[0].end();
    pair.ends[1].on_packet(&last, pair.now);
    pair.step();
    assert_eq!(pair.events[1], [Event::Up, Event::Down]);
    assert!(pair.events[0] == [Event::Up] && !pair.ends[0].is_up());
}

#[test]
fn garbage_is_ignored() {
    let mut pair = Pair::new(1, 0, 0, 1);
    pair.run(10);
    for garbage in [&[][..], &[0xff; 40], b"Co"] {
        pair.ends[0].on_packet(garbage, pair.now);
    }
    pair.ends[1].send(b"still here");
    pair.run(5);
    assert_eq!(pair.frames(0), [b"still here"]);
}
