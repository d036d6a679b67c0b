//! Both ends over paths that lose, duplicate, delay and reorder, and what each must never do.

use super::*;
use proptest::prelude::*;
use std::collections::{BTreeSet, BinaryHeap};

const MS: u64 = 1_000_000;

fn at(ms: u64) -> Instant {
    Instant::from_nanos(ms * MS)
}

fn sequence(incarnation: u32, number: u32) -> Sequence {
    Sequence { incarnation, number }
}

#[test]
fn the_first_copy_is_delivered_and_no_other() {
    let mut it = Deduplicator::new(Delivery::Every);
    let verdicts = [5, 5, 7, 6, 7, 6, 5].map(|number| it.on_copy(sequence(1, number)));
    use Verdict::{Deliver, Duplicate};
    assert_eq!(
        verdicts,
        [Deliver, Duplicate, Deliver, Deliver, Duplicate, Duplicate, Duplicate]
    );
}

#[test]
fn where_the_newest_wins_what_it_overtook_is_stale() {
    let mut it = Deduplicator::new(Delivery::Newest);
    let verdicts = [5, 7, 6, 7, 8].map(|number| it.on_copy(sequence(1, number)));
    use Verdict::{Deliver, Duplicate, Stale};
    assert_eq!(verdicts, [Deliver, Deliver, Stale, Duplicate, Deliver]);
}

#[test]
fn a_sender_that_starts_anew_is_heard_and_its_past_is_not() {
    let mut it = Deduplicator::new(Delivery::Every);
    assert_eq!(it.on_copy(sequence(1, 4_000_000_000)), Verdict::Deliver);
    assert_eq!(it.on_copy(sequence(2, 0)), Verdict::Deliver);
    assert_eq!(it.on_copy(sequence(1, 4_000_000_001)), Verdict::Over);
    assert_eq!(it.on_copy(sequence(2, 1)), Verdict::Deliver);
}

#[test]
fn numbers_wrap_and_the_window_ends() {
    let mut it = Deduplicator::new(Delivery::Every);
    assert_eq!(it.on_copy(sequence(1, u32::MAX - 1)), Verdict::Deliver);
    assert_eq!(sequence(1, u32::MAX).next(), sequence(1, 0));
    assert_eq!(it.on_copy(sequence(1, 1)), Verdict::Deliver);
    assert_eq!(it.on_copy(sequence(1, u32::MAX)), Verdict::Deliver);
    assert_eq!(it.on_copy(sequence(1, 1_022)), Verdict::Deliver);
    assert_eq!(it.on_copy(sequence(1, u32::MAX - 1)), Verdict::Stale);
    assert_eq!(it.on_copy(sequence(1, u32::MAX)), Verdict::Duplicate);
}

/// Two paths in virtual time, and the messages that the peer delivers.
struct Pair {
    sender: Sender,
    listener: Listener,
    deduplicator: Deduplicator,
    next: Sequence,
    now: u64,
    period: u64,
    random: u64,
    /// One-way delay and loss in percent, by path.
    paths: Vec<(u64, u64)>,
    events: BinaryHeap<std::cmp::Reverse<(u64, u64)>>,
    mail: Vec<Mail>,
    /// The delivered messages, and the number of copies of each message.
    delivered: Vec<u32>,
    copies: Vec<usize>,
    /// The path of each message's original.
    firsts: Vec<PathId>,
}

#[derive(Clone, Copy)]
enum Mail {
    Control(Sequence, PathCopy),
    Probe(Probe),
    Echo(Echo),
}

impl Pair {
    fn new(duplicate: Duplicate, paths: &[(u64, u64)]) -> Self {
        let config = PathConfig {
            duplicate,
            ..PathConfig::default()
        };
        let interfaces: Vec<_> = (0..paths.len() as u8).map(InterfaceId).collect();
        Pair {
            sender: Sender::new(config, &interfaces, 1, at(0)).unwrap(),
            listener: Listener::new(paths.len()).unwrap(),
            deduplicator: Deduplicator::new(Delivery::Every),
            next: Sequence::first(1),
            now: 0,
            period: 30 * MS,
            random: 88_172_645_463_325_252,
            paths: paths.to_vec(),
            events: BinaryHeap::new(),
            mail: Vec::new(),
            delivered: Vec::new(),
            copies: Vec::new(),
            firsts: Vec::new(),
        }
    }

    fn dice(&mut self, sides: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % sides.max(1)
    }

    fn carry(&mut self, path: PathId, mail: Mail) {
        let (delay, loss) = self.paths[usize::from(path.0)];
        if self.dice(100) >= loss {
            let jitter = self.dice(delay * MS / 10 + 1);
            self.mail.push(mail);
            self.events.push(std::cmp::Reverse((
                self.now + delay * MS + jitter,
                self.mail.len() as u64 - 1,
            )));
        }
    }

    /// Sends a control message in each period of a time span.
    fn run(&mut self, span_ms: u64) {
        let end = self.now + span_ms * MS;
        let mut send_at = self.now;
        while self.now < end {
            let arrival = self.events.peek().map(|e| e.0 .0);
            let deadline = self.sender.next_deadline().map(|at| at.as_nanos().max(self.now));
            let next = [arrival, deadline, Some(send_at)].into_iter().flatten().min().unwrap();
            self.now = next;
            let now = Instant::from_nanos(next);
            if arrival == Some(next) {
                let mail = self.mail[self.events.pop().unwrap().0 .1 as usize];
                self.arrive(mail, now);
            } else if next == send_at {
                send_at += self.period;
                let copies = self.sender.assign(Class::Control, now);
                self.copies.push(copies.len());
                self.firsts.push(copies[0].path);
                let sequence = self.next;
                self.next = sequence.next();
                copies
                    .into_iter()
                    .for_each(|copy| self.carry(copy.path, Mail::Control(sequence, copy)));
            } else {
                self.sender.on_deadline(now);
            }
            while let Some(action) = self.sender.poll() {
                if let PathAction::Probe(probe) = action {
                    self.carry(probe.path, Mail::Probe(probe));
                }
            }
        }
    }

    fn arrive(&mut self, mail: Mail, now: Instant) {
        match mail {
            Mail::Control(sequence, copy) => {
                self.listener.on_copy(copy.path, 1, copy.number.unwrap());
                if self.deduplicator.on_copy(sequence) == Verdict::Deliver {
                    self.delivered.push(sequence.number);
                }
            }
            Mail::Probe(probe) => {
                let echo = self.listener.on_probe(probe).unwrap();
                self.carry(probe.path, Mail::Echo(echo));
            }
            Mail::Echo(echo) => self.sender.on_echo(echo, now),
        }
    }

    /// Returns the share of the newest messages that had more than one copy.
    fn duplicated(&self, of: usize) -> f64 {
        self.copies.iter().rev().take(of).filter(|n| **n > 1).count() as f64 / of as f64
    }

    fn first(&self) -> PathId {
        *self.firsts.last().unwrap()
    }

    fn health(&self, path: u8) -> Health {
        self.sender.health(PathId(path)).unwrap()
    }
}

#[test]
fn never_sends_one_copy_and_always_two_on_two_interfaces() {
    let mut once = Pair::new(Duplicate::Never, &[(5, 50), (2, 50), (9, 0)]);
    let mut twice = Pair::new(Duplicate::Always, &[(5, 50), (2, 50), (9, 0)]);
    once.run(3_000);
    twice.run(3_000);
    assert!(once.copies.iter().all(|n| *n == 1));
    assert!(twice.copies.iter().all(|n| *n == 2));
    let interfaces = [0, 0, 1].map(InterfaceId);
    let config = PathConfig {
        duplicate: Duplicate::Always,
        ..PathConfig::default()
    };
    let mut it = Sender::new(config, &interfaces, 1, at(0)).unwrap();
    let copies = it.assign(Class::Control, at(0));
    assert_eq!(
        copies.iter().map(|copy| copy.path).collect::<Vec<_>>(),
        [PathId(0), PathId(2)]
    );
    assert_eq!(it.assign(Class::Bulk, at(0)).len(), 1);
}

#[test]
fn adaptive_duplicates_while_the_first_path_loses_and_no_longer() {
    let mut pair = Pair::new(Duplicate::Adaptive, &[(2, 0), (4, 0)]);
    assert_eq!(
        pair.sender.assign(Class::Control, at(0)).len(),
        2,
        "nothing is known yet"
    );
    pair.run(10_000);
    assert_eq!(pair.duplicated(100), 0.0);
    // Both lose, so neither alone is enough.
    pair.paths = vec![(2, 20), (4, 20)];
    pair.run(5_000);
    assert!(pair.duplicated(100) > 0.9);
    pair.paths = vec![(2, 0), (4, 0)];
    pair.run(20_000);
    assert_eq!(pair.duplicated(100), 0.0);
}

/// An echo covers 64 numbers, and probes are 100 ms apart.
#[test]
fn losses_are_known_at_any_rate() {
    // Losses in either direction raise the estimate, as unanswered probes count.
    for (loss, least, most) in [(0, 0.0, 0.01), (20, 0.17, 0.5)] {
        for per_second in [30, 700, 1_000, 3_000] {
            let mut pair = Pair::new(Duplicate::Never, &[(2, loss)]);
            pair.period = 1_000 * MS / per_second;
            let mut found = Vec::new();
            for _ in 0..100 {
                pair.run(100);
                found.push(pair.health(0).failures);
            }
            let mean = found[50..].iter().sum::<f64>() / 50.0;
            assert!((least..=most).contains(&mean), "{mean}, and {loss} % at {per_second}/s");
        }
    }
}

#[test]
fn adaptive_duplicates_where_the_paths_are_late() {
    let mut pair = Pair::new(Duplicate::Adaptive, &[(2, 0), (40, 0)]);
    pair.run(10_000);
    assert_eq!(pair.duplicated(100), 0.0);
    assert_eq!(pair.first(), PathId(0));
    pair.paths = vec![(60, 0), (40, 0)];
    pair.run(10_000);
    assert_eq!(pair.first(), PathId(1));
    assert!(pair.duplicated(100) > 0.9, "no path is in time");
}

#[test]
fn a_path_dies_and_revives_and_control_goes_on() {
    let mut pair = Pair::new(Duplicate::Adaptive, &[(2, 0), (10, 0)]);
    pair.run(10_000);
    assert_eq!(pair.first(), PathId(0));
    pair.paths[0].1 = 100;
    let sent = pair.next.number;
    pair.run(10_000);
    assert!(!pair.health(0).alive && pair.health(1).alive);
    assert_eq!(pair.first(), PathId(1));
    let lost = (sent..pair.next.number - 1)
        .filter(|n| !pair.delivered.contains(n))
        .count();
    assert!(lost <= 10, "{lost} were lost until the path was given up");
    pair.paths[0].1 = 0;
    pair.run(20_000);
    assert!(pair.health(0).alive);
    assert_eq!(pair.first(), PathId(0));
    // With all paths dead it still sends, and it recovers when one is back.
    pair.paths = vec![(2, 100), (10, 100)];
    pair.run(5_000);
    assert!(!pair.health(0).alive && !pair.health(1).alive);
    pair.paths[1].1 = 0;
    pair.run(5_000);
    assert_eq!((pair.first(), pair.health(1).alive), (PathId(1), true));
}

#[test]
fn nobody_probes_paths_that_are_not_used_and_what_was_known_of_them_is_old() {
    let mut pair = Pair::new(Duplicate::Adaptive, &[(2, 0), (4, 0)]);
    pair.run(10_000);
    assert_eq!(pair.sender.carriers(), [PathId(0)]);
    // Only open copies and the last probe still have a deadline.
    let (mut it, end) = (pair.sender.clone(), pair.now + 60_000 * MS);
    let (mut now, mut probes) = (pair.now, 0);
    while let Some(deadline) = it.next_deadline() {
        now = deadline.as_nanos().max(now);
        assert!(now < end, "it is probed forever");
        it.on_deadline(Instant::from_nanos(now));
        probes += std::iter::from_fn(|| it.poll())
            .filter(|action| matches!(action, PathAction::Probe(_)))
            .count();
    }
    assert!((40..80).contains(&probes), "{probes} probes in three seconds");
    let later = Instant::from_nanos(end);
    assert!(it.is_resting(later));
    assert_eq!(it.assign(Class::Control, later).len(), 2, "who knows");
    assert_eq!(it.next_deadline(), Some(later));
    it.on_deadline(later);
    assert!(matches!(it.poll(), Some(PathAction::Probe(_))));
}

#[test]
fn echoes_of_nothing_that_was_sent_change_nothing() {
    let mut it = Sender::new(PathConfig::default(), &[InterfaceId(0)], 3, at(0)).unwrap();
    it.on_deadline(at(0));
    let Some(PathAction::Probe(probe)) = it.poll() else {
        panic!("a probe is due")
    };
    let before = it.health(PathId(0)).unwrap();
    for wrong in [
        Probe {
            path: PathId(1),
            ..probe
        },
        Probe {
            incarnation: 2,
            ..probe
        },
        Probe {
            sent_at: at(9),
            ..probe
        },
        Probe { number: 7, ..probe },
    ] {
        it.on_echo(
            Echo {
                probe: wrong,
                newest: wrong.number,
                seen: u64::MAX,
            },
            at(5),
        );
    }
    assert_eq!(it.health(PathId(0)).unwrap(), before);
    it.on_echo(
        Echo {
            probe,
            newest: 0,
            seen: 0,
        },
        at(5),
    );
    assert_eq!(it.health(PathId(0)).unwrap().round_trip, Some(Duration::from_millis(5)));
}

#[test]
fn what_makes_no_sense_is_refused() {
    let good = PathConfig::default();
    let new = |config: &PathConfig, paths: usize| Sender::new(config.clone(), &vec![InterfaceId(0); paths], 0, at(0));
    assert!(new(&good, 8).is_ok());
    assert!(new(&good, 0).is_err() && new(&good, 9).is_err());
    assert!(new(
        &PathConfig {
            failures_max: f64::NAN,
            ..good.clone()
        },
        1
    )
    .is_err());
    assert!(Listener::new(0).is_err() && Listener::new(9).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    /// Compares with a plain set of all delivered numbers, over any walk of numbers around the wrap.
    #[test]
    fn nothing_is_delivered_twice_nor_from_before_the_window(
        start in prop_oneof![Just(0u32), Just(u32::MAX - 700), any::<u32>()],
        steps in prop::collection::vec((-1_500i64..1_800, 0..8u8), 1..400),
        newest_only in any::<bool>(),
    ) {
        let delivery = if newest_only { Delivery::Newest } else { Delivery::Every };
        let mut it = Deduplicator::new(delivery);
        let (mut incarnation, mut newest, mut delivered) = (1, i64::from(start), BTreeSet::new());
        for (i, (step, restart)) in steps.into_iter().enumerate() {
            if restart == 0 && i % 16 == 15 {
                incarnation += 1;
                delivered.clear();
            }
            let number = newest + step;
            let verdict = it.on_copy(sequence(incarnation, number as u32));
            let fresh = delivered.is_empty();
            let expected = if fresh || number > newest {
                Verdict::Deliver
            } else if newest - number >= 1_024 {
                Verdict::Stale
            } else if delivered.contains(&number) {
                Verdict::Duplicate
            } else if newest_only {
                Verdict::Stale
            } else {
                Verdict::Deliver
            };
            prop_assert_eq!(verdict, expected, "{} after {}", number, newest);
            if verdict == Verdict::Deliver {
                delivered.insert(number);
                newest = if fresh { number } else { newest.max(number) };
            }
            if incarnation > 1 {
                prop_assert_eq!(it.on_copy(sequence(incarnation - 1, (number + 1) as u32)), Verdict::Over);
            }
        }
    }

    /// With paths of any delay and loss, the first one is the best by its expected delay.
    #[test]
    fn the_best_path_is_in_use_once_it_is_known(
        paths in prop::collection::vec((1..100u64, 0..15u64), 2..5),
        seed in any::<u64>(),
    ) {
        let mut pair = Pair::new(Duplicate::Always, &paths);
        pair.random = seed | 1;
        pair.run(30_000);
        let expected = |path: &PathId| {
            let (delay, loss) = paths[usize::from(path.0)];
            delay as f64 / (1.0 - loss as f64 / 100.0)
        };
        let best = (0..paths.len() as u8).map(|path| expected(&PathId(path))).fold(f64::MAX, f64::min);
        // Estimates vary, a slightly better path does not displace, and a lossy path seems dead at times.
        let good = pair.firsts.iter().rev().take(400).filter(|path| expected(path) < best * 1.5).count();
        prop_assert!(good > 200, "{good} of 400 over {paths:?}");
        let mut once = pair.delivered.clone();
        once.sort_unstable();
        once.dedup();
        prop_assert_eq!(once.len(), pair.delivered.len(), "delivered twice");
    }

    /// With any echoes, copies and clocks, there is no panic, numbers and memory are bounded, and there is always a
    /// path.
    #[test]
    fn garbage_does_no_harm(
        events in prop::collection::vec((0..6u8, any::<u8>(), any::<u32>(), any::<u64>(), any::<u64>()), 0..300),
    ) {
        let interfaces = [0, 1, 1].map(InterfaceId);
        let mut sender = Sender::new(PathConfig::default(), &interfaces, 1, at(0)).unwrap();
        let mut listener = Listener::new(3).unwrap();
        for (kind, path, number, time, seen) in events {
            let (path, now) = (PathId(path % 5), Instant::from_nanos(time));
            let probe = Probe { path, incarnation: number % 3, number: number % 1_000, sent_at: Instant::from_nanos(seen) };
            match kind {
                0 => sender.on_echo(Echo { probe, newest: number % 1_000, seen }, now),
                1 => sender.on_deadline(now),
                2 => listener.on_copy(path, number % 3, number),
                3 => _ = listener.on_probe(probe),
                _ => {
                    let copies = sender.assign(Class::Control, now);
                    prop_assert!((1..=2).contains(&copies.len()));
                    let used: BTreeSet<_> = copies.iter().map(|copy| interfaces[usize::from(copy.path.0)]).collect();
                    prop_assert_eq!(used.len(), copies.len(), "two copies share an interface");
                }
            }
            while sender.poll().is_some() {}
            for path in 0..3 {
                let health = sender.health(PathId(path)).unwrap();
                prop_assert!((0.0..=1.0).contains(&health.failures));
            }
        }
    }
}
