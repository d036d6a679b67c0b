//! Generated traffic of programs, alone and mixed, over a channel of 60 Mbit/s: the class of each, and how soon it is
//! found.

use super::*;

const SECONDS: u64 = 10;
const TICK: Duration = Duration::from_micros(50);
const BITS_PER_TICK: u64 = 60_000_000 / 20_000;
/// Number of packets below the driver from which it takes no more.
const BELOW_MAX: usize = 16;
/// Time from the end of a packet's transmission to the arrival of its acknowledgement.
const ANSWER: Duration = Duration::from_millis(4);

/// Pseudorandom numbers by SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Returns a number from 0 to 1.
    fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    fn between(&mut self, from: f64, to: f64) -> f64 {
        from + (to - from) * self.share()
    }

    fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.share()).ln()
    }

    /// Returns an approximately normal number with mean 0 and deviation 1.
    fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.share()).sum::<f64>() - 6.0
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// 200 B at 30 Hz, up to 3 ms late.
    Pose,
    /// 120 B at 100 Hz, up to 0.3 ms late.
    Commands,
    /// 700 B at 50 Hz over TCP, with an acknowledgement for each response.
    Telemetry,
    /// 64 B echo requests at 20 Hz.
    Ping,
    /// As much as the window allows, like iperf3.
    Bulk,
    /// 10 Mbit/s of unpaced UDP, in bursts of 250 kB.
    Maps,
    /// Acknowledgements of bulk: half a dozen for each aggregate of a busy channel, or of a quiet one.
    Acknowledgements,
    QuietAcknowledgements,
    /// 4 Mbit/s at 30 frames a second.
    Video,
    /// Two requests at a time, twice a second on average.
    Lookups,
    /// Five keystrokes a second, as people type.
    Typing,
}

impl Kind {
    fn protocol(self) -> u8 {
        match self {
            Kind::Telemetry | Kind::Bulk | Kind::Acknowledgements | Kind::QuietAcknowledgements | Kind::Typing => TCP,
            Kind::Ping => 1,
            _ => UDP,
        }
    }

    /// Returns what the program sends and when, in seconds, from `begin` on; nothing for [`Kind::Bulk`], whose sending
    /// depends on acknowledgements.
    fn schedule(self, random: &mut Random, begin: f64) -> Vec<(f64, u32)> {
        let mut out = Vec::new();
        let (mut time, end) = (begin, SECONDS as f64);
        while time < end {
            let (gap, late) = match self {
                Kind::Pose => (1.0 / 30.0, random.between(0.0, 0.003)),
                Kind::Commands => (0.01, random.between(0.0, 0.000_3)),
                Kind::Telemetry => (0.02, random.between(0.0, 0.001)),
                Kind::Ping => (0.05, random.between(0.0, 0.000_2)),
                Kind::Maps => (0.2, 0.0),
                Kind::Acknowledgements => (random.between(0.001_5, 0.009), 0.0),
                Kind::QuietAcknowledgements => (random.between(0.005_3, 0.005_7), 0.0),
                Kind::Video => (1.0 / 30.0, random.between(0.0, 0.001)),
                Kind::Lookups => (random.exponential(0.5), 0.0),
                Kind::Typing => (0.18 * (0.35 * random.normal()).exp(), 0.0),
                Kind::Bulk => return out,
            };
            let message: &[(f64, u32)] = match self {
                Kind::Pose => &[(0.0, 228)],
                Kind::Commands => &[(0.0, 148)],
                Kind::Telemetry => &[(0.0, 752), (0.003, BARE)],
                Kind::Ping => &[(0.0, 84)],
                Kind::Maps => &[(0.0, FULL); 166],
                Kind::Acknowledgements | Kind::QuietAcknowledgements => &[(0.0, BARE); 6],
                Kind::Video => &[(0.0, FULL); 11],
                Kind::Lookups => &[(0.0, 70), (0.000_1, 70)],
                Kind::Typing => &[(0.0, 88)],
                Kind::Bulk => &[],
            };
            out.extend(message.iter().map(|(after, bytes)| (time + late + after, *bytes)));
            time += gap;
        }
        out
    }
}

/// Length of a TCP packet without payload.
const BARE: u32 = 52;

/// Returns `Some(0)` for a packet that is known to have no payload.
fn carries(protocol: u8, bytes: u32) -> Option<u32> {
    (protocol == TCP && bytes == BARE).then_some(0)
}

/// The observed result for one program.
#[derive(Clone, Debug, Default)]
struct Seen {
    /// Each class that the flow had, and its first packet in that class.
    classes: Vec<(Class, u64)>,
    delivered_bytes: u64,
    /// The longest wait of a packet.
    wait_max: Duration,
}

impl Seen {
    fn last(&self) -> Class {
        self.classes.last().map_or(Class::Ordinary, |(class, _)| *class)
    }
}

/// A TCP window: the number of packets that may be on their way.
struct Window {
    size: f64,
    on_way: u32,
}

/// Runs the programs together.
fn run(kinds: &[Kind], seed: u64) -> Vec<Seen> {
    let mut random = Random(seed);
    let mut protect = Protect::new(Config::default());
    let mut seen = vec![Seen::default(); kinds.len()];
    let mut windows: Vec<Window> = kinds.iter().map(|_| Window { size: 10.0, on_way: 0 }).collect();
    let mut due: Vec<(Instant, usize, u32)> = Vec::new();
    for (program, kind) in kinds.iter().enumerate() {
        let begin = random.between(0.0, 0.5);
        let schedule = kind.schedule(&mut random, begin);
        due.extend(schedule.iter().map(|(time, bytes)| {
            let time = Instant::from_nanos((time * 1e9) as u64);
            (time, program, *bytes)
        }));
    }
    due.sort_unstable();
    let mut due = due.into_iter().peekable();
    let head = |program: usize, bytes| Head {
        flow: Flow {
            protocol: kinds[program].protocol(),
            ..flow(program as u16)
        },
        bytes,
        dscp: 0,
        message_bytes: carries(kinds[program].protocol(), bytes),
        opens: false,
    };
    let mut below = VecDeque::new();
    let mut answers: VecDeque<(Instant, usize)> = VecDeque::new();
    let mut credit = 0;
    let mut now = Instant::ZERO;
    protect.set_open(true, now);
    while now < at(SECONDS * 1_000) {
        now += TICK;
        while answers.front().is_some_and(|(due, _)| *due <= now) {
            let program = answers.pop_front().unwrap().1;
            windows[program].on_way -= 1;
            windows[program].size = (windows[program].size + 1.0).min(300.0);
        }
        let mut sends = Vec::new();
        while due.peek().is_some_and(|(due, ..)| *due <= now) {
            let (time, program, bytes) = due.next().unwrap();
            sends.push((time, program, bytes));
        }
        for (program, window) in windows
            .iter_mut()
            .enumerate()
            .filter(|(at, _)| kinds[*at] == Kind::Bulk)
        {
            while f64::from(window.on_way) < window.size {
                window.on_way += 1;
                sends.push((now, program, FULL));
            }
        }
        for (time, program, bytes) in sends {
            match protect.on_packet(head(program, bytes), (program, time), time) {
                Verdict::Send { packet, .. } => below.push_front((packet, bytes)),
                Verdict::Pass(packet) => below.push_back((packet, bytes)),
                Verdict::Queued => {}
                Verdict::Dropped(_) => windows[program].on_way = windows[program].on_way.saturating_sub(1),
            }
        }
        if protect.acknowledge_at().is_some_and(|at| at <= now) {
            protect.may_acknowledge(true, now);
        }
        for class in [Class::Ordinary, Class::Bulk] {
            while below.len() < BELOW_MAX {
                let Some((head, packet)) = protect.next(class, now) else {
                    break;
                };
                below.push_back((packet, head.bytes));
            }
        }
        // The channel.
        credit = (credit + BITS_PER_TICK).min(BITS_PER_TICK + 8 * u64::from(FULL));
        while below.front().is_some_and(|(_, bytes)| u64::from(*bytes) * 8 <= credit) {
            let ((program, sent_at), bytes) = below.pop_front().unwrap();
            credit -= u64::from(bytes) * 8;
            let it = &mut seen[program];
            it.delivered_bytes += u64::from(bytes);
            it.wait_max = it.wait_max.max(now.since(sent_at));
            if kinds[program] == Kind::Bulk {
                answers.push_back((now + ANSWER, program));
            }
        }
        while let Some(change) = protect.poll() {
            let program = usize::from(change.flow.from.1 - 10_000);
            let packets = protect.flows(now).find(|status| status.flow == change.flow);
            let it = &mut seen[program];
            if it.last() != change.class {
                let packets = packets.map_or(0, |status| status.packets);
                it.classes.push((change.class, packets));
            }
        }
    }
    seen
}

/// Each program, its classes, and the number of packets within which it has the last of them.
const TABLE: [(Kind, &[Class], u64); 11] = [
    (Kind::Pose, &[Class::Control], 10),
    (Kind::Commands, &[Class::Control], 10),
    (Kind::Telemetry, &[Class::Control], 20),
    (Kind::Ping, &[Class::Control], 10),
    (Kind::Bulk, &[Class::Bulk], 600),
    // As long as the channel takes each burst within 50 ms.
    (Kind::Maps, &[], 0),
    (Kind::Acknowledgements, &[], 0),
    (Kind::QuietAcknowledgements, &[], 0),
    (Kind::Video, &[], 0),
    (Kind::Lookups, &[], 0),
    (Kind::Typing, &[], 0),
];

fn check(kind: Kind, seen: &Seen) {
    let (_, classes, packets_max) = TABLE.into_iter().find(|row| row.0 == kind).unwrap();
    let had: Vec<Class> = seen.classes.iter().map(|(class, _)| *class).collect();
    assert_eq!(had, classes, "{kind:?}: {seen:?}");
    let within = seen.classes.last().map_or(0, |(_, packets)| *packets);
    assert!(within <= packets_max, "{kind:?}: {seen:?}");
}

#[test]
fn each_program_alone_gets_its_class_and_keeps_it() {
    for (kind, ..) in TABLE {
        for seed in 0..2 {
            check(kind, &run(&[kind], seed)[0]);
        }
    }
}

#[test]
fn all_together_they_get_the_same_classes_and_bulk_what_is_left() {
    let kinds = TABLE.map(|(kind, ..)| kind);
    for seed in 0..2 {
        let seen = run(&kinds, seed);
        let bytes: u64 = seen.iter().map(|it| it.delivered_bytes).sum();
        assert!(bytes * 8 > SECONDS * 59_000_000, "{bytes}");
        for (kind, it) in kinds.into_iter().zip(seen) {
            check(kind, &it);
            let wait_max = if matches!(kind, Kind::Bulk | Kind::Maps) {
                120
            } else {
                10
            };
            assert!(it.wait_max < ms(wait_max), "{kind:?}: {it:?}");
        }
    }
}

/// Sends one message of a flow at each of these times, in seconds. Returns the flow's class after each.
fn classes(messages: impl Iterator<Item = (f64, u32)>, protocol: u8) -> Vec<Class> {
    let mut protect = Protect::new(Config::default());
    let flow = Flow { protocol, ..flow(0) };
    let mut out = Vec::new();
    for (time, bytes) in messages {
        let now = Instant::from_nanos((time * 1e9) as u64);
        for piece in 0..bytes.div_ceil(FULL) {
            let head = Head {
                flow,
                bytes: (bytes - piece * FULL).min(FULL),
                dscp: 0,
                message_bytes: carries(protocol, bytes),
                opens: false,
            };
            protect.on_packet(head, (), now);
            protect.next(Class::Ordinary, now);
        }
        out.push(protect.flows(now).next().unwrap().class);
    }
    out
}

/// Returns the times of 500 messages with these gaps between them.
fn after_gaps(seed: u64, gap: impl Fn(&mut Random) -> f64) -> impl Iterator<Item = (f64, u32)> {
    let (mut random, mut time) = (Random(seed), 0.0);
    (0..500).map(move |_| {
        time += gap(&mut random);
        (time, 100)
    })
}

#[test]
fn irregular_messages_are_not_control() {
    type Gap = fn(&mut Random) -> f64;
    let irregular: [(&str, Gap); 5] = [
        ("keys", |random| 0.18 * (0.35 * random.normal()).exp()),
        ("requests", |random| random.exponential(0.5)),
        ("requests of a busy program", |random| random.exponential(0.02)),
        ("a loop of uneven work", |random| random.between(0.03, 0.07)),
        ("QUIC's acknowledgements", |random| random.between(0.001_5, 0.009)),
    ];
    for (name, gap) in irregular {
        for seed in 0..40 {
            let control = classes(after_gaps(seed, gap), UDP).contains(&Class::Control);
            assert!(!control, "{name}, seed {seed}");
        }
    }
}

/// Between regular and irregular, chance decides. It should not do so too often.
#[test]
fn messages_that_are_nearly_periodic_are_control_sometimes() {
    let nearly = |random: &mut Random| random.between(0.004, 0.007);
    let control = (0..40).filter(|seed| classes(after_gaps(*seed, nearly), UDP).contains(&Class::Control));
    let control = control.count();
    assert!((1..20).contains(&control), "{control} of 40");
}

/// Jitter is up to a fifth of the period, and one message in fifty stalls.
#[test]
fn periodic_messages_with_jitter_are_control_soon_and_stay_it() {
    for (period, jitter, stalls, soon, late) in [
        (1.0 / 30.0, 0.003, 0.0, 9, 10),
        (1.0 / 30.0, 0.006, 0.0, 17, 17),
        (1.0 / 30.0, 0.003, 0.02, 9, 60),
        (0.01, 0.001, 0.0, 9, 17),
        (0.01, 0.002, 0.02, 17, 100),
        (1.0, 0.001, 0.0, 9, 9),
    ] {
        let mut first: Vec<usize> = Vec::new();
        for seed in 0..40 {
            let mut random = Random(seed);
            let messages = (0..500).map(|message| {
                let stall = if random.share() < stalls {
                    random.between(0.0, period)
                } else {
                    0.0
                };
                (f64::from(message) * period + random.between(0.0, jitter) + stall, 200)
            });
            let classes = classes(messages, UDP);
            let found = classes.iter().position(|class| *class == Class::Control).unwrap();
            let lost = classes[found..]
                .iter()
                .filter(|class| **class != Class::Control)
                .count();
            assert!(lost < 50, "{lost} of a period of {period}, seed {seed}");
            first.push(found + 1);
        }
        first.sort_unstable();
        assert!(
            first[20] <= soon && first[39] <= late,
            "{period}, {jitter}, {stalls}: {first:?}"
        );
    }
}

/// Jitter of a timer, as a share of its period, whose messages are each late by a random time. No message can be
/// predicted, but none gets out of step for long.
#[test]
fn a_steady_rate_is_control_whatever_its_jitter() {
    type Late = fn(&mut Random) -> f64;
    let timers: [(&str, Late, usize); 4] = [
        ("normal, 15 %", |random| 1.0 + 0.15 * random.normal(), 129),
        ("normal, 20 %", |random| 1.0 + 0.2 * random.normal(), 160),
        ("a waiting scheduler", |random| random.exponential(0.2), 300),
        ("ticks of another timer", |random| random.between(0.0, 0.6), 140),
    ];
    for (name, late, soon) in timers {
        for period in [0.01, 1.0 / 30.0, 0.5] {
            let mut first = Vec::new();
            for seed in 0..20 {
                let mut random = Random(seed);
                let mut times: Vec<f64> = (0..600)
                    .map(|at| period * (f64::from(at) + late(&mut random)))
                    .collect();
                times.sort_by(f64::total_cmp);
                let classes = classes(times.into_iter().map(|time| (time, 200)), UDP);
                let is_control = |class: &Class| *class == Class::Control;
                let found = classes.iter().position(is_control).unwrap_or(usize::MAX);
                let kept = classes.iter().skip(300).filter(|class| is_control(class)).count();
                assert!(kept >= 290, "{name}, period {period}, seed {seed}: {kept} of 300");
                first.push(found);
            }
            first.sort_unstable();
            assert!(first[15] <= soon, "{name}, period {period}: {first:?}");
        }
    }
}

/// A flow that was steady may not stay control once it is not.
#[test]
fn a_steady_flow_that_becomes_irregular_is_ordinary_within_its_next_messages() {
    let mut lasted = Vec::new();
    for seed in 0..40 {
        let mut random = Random(seed);
        let begin: Vec<(f64, u32)> = (0..200)
            .map(|at| (0.033 * (f64::from(at) + 0.15 * random.normal()).max(0.0), 200))
            .collect();
        let irregular = after_gaps(seed, |random| random.exponential(0.033)).map(|(time, bytes)| (6.6 + time, bytes));
        let after = classes(begin.into_iter().chain(irregular), UDP);
        assert_eq!(after[199], Class::Control, "seed {seed}");
        lasted.push(after[200..].iter().filter(|class| **class == Class::Control).count());
    }
    lasted.sort_unstable();
    assert!(lasted[20] <= 50 && lasted[39] < 110, "{lasted:?}");
}

#[test]
fn periodic_is_not_control_if_it_is_large_or_too_often_or_too_seldom() {
    for (period, bytes, control) in [
        (0.033, 4_096, true),
        (0.033, 4_600, false),
        // 1.2 Mbit/s.
        (0.01, 1_500, false),
        (0.005, 100, true),
        (0.004, 100, false),
        (1.0, 100, true),
        (1.1, 100, false),
    ] {
        let messages = (0..200).map(|message| (f64::from(message) * period, bytes));
        let last = classes(messages, UDP).pop().unwrap();
        assert_eq!(last == Class::Control, control, "{bytes} bytes each {period} s");
    }
    let sometimes_large =
        (0..200).map(|message| (f64::from(message) / 10.0, if message % 6 == 0 { 5_000 } else { 200 }));
    assert!(!classes(sometimes_large, UDP).contains(&Class::Control));
}

#[test]
fn control_outlasts_a_few_erratic_messages() {
    let mut time = 0.0;
    let messages = (0..200).map(|message| {
        time += match message {
            100..108 => [0.4, 1.7, 0.6, 2.3, 0.5, 1.6, 0.45, 1.55][message - 100] / 30.0,
            _ => 1.0 / 30.0,
        };
        (time, 200)
    });
    assert!(classes(messages, UDP)[20..]
        .iter()
        .all(|class| *class == Class::Control));
}

/// Programs change their period, which is reported, and their size or regularity, which ends control.
#[test]
fn a_flow_that_changes_its_nature_is_taken_anew() {
    let begin = (0..100).map(|message| (f64::from(message) / 30.0, 200));
    let slower = (1..100).map(|message| (3.3 + f64::from(message) / 10.0, 200));
    let after = classes(begin.clone().chain(slower), UDP);
    assert!(after[20..].iter().all(|class| *class == Class::Control));

    let larger = (1..100).map(|message| (3.3 + f64::from(message) / 30.0, 16_000));
    let after = classes(begin.clone().chain(larger), UDP);
    assert!(after[99] == Class::Control && after[103..].iter().all(|class| *class != Class::Control));

    // Slowly, so that the rate is not the reason.
    let larger = (0..200).map(|message| (f64::from(message) / 10.0, if message < 100 { 200 } else { 5_000 }));
    let after = classes(larger, UDP);
    assert!(after[100] == Class::Control && after[106..].iter().all(|class| *class == Class::Ordinary));

    let mut lasted = Vec::new();
    for seed in 0..40 {
        let irregular = after_gaps(seed, |random| random.exponential(0.033)).map(|(time, bytes)| (3.3 + time, bytes));
        let after = classes(begin.clone().chain(irregular), UDP);
        lasted.push(after[100..].iter().filter(|class| **class == Class::Control).count());
    }
    lasted.sort_unstable();
    assert!(lasted[20] <= 20 && lasted[39] < 100, "{lasted:?}");
}

#[test]
fn another_period_is_told() {
    let mut protect = Protect::new(Config::default());
    let mut told = Vec::new();
    for message in 0..300 {
        let now = at(if message < 100 {
            33 * message
        } else {
            3_300 + 100 * (message - 100)
        });
        protect.on_packet(head(0, 200), (), now);
        protect.next(Class::Ordinary, now);
        told.extend(std::iter::from_fn(|| protect.poll()).map(|change| (change.class, change.period)));
    }
    let periods = [33, 100].map(|period| (Class::Control, Some(ms(period))));
    assert_eq!(told, periods);
}
