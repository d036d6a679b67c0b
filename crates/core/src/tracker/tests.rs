//! Tracker and reporters over a network that loses, duplicates, delays and reorders, each with its own clock.

use super::*;
use crate::paths::Sequence;
use proptest::prelude::*;
use std::collections::{BTreeMap, BinaryHeap};

const MS: u64 = 1_000_000;

fn at(ms: u64) -> Instant {
    Instant::from_nanos(ms * MS)
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn tracker(config: &TrackerConfig) -> Tracker<u32> {
    Tracker::new(config.clone(), at(0))
}

fn actions(it: &mut Tracker<u32>) -> Vec<TrackerAction> {
    std::iter::from_fn(|| it.poll()).collect()
}

fn connect(it: &mut Tracker<u32>, robot: u16, incarnation: u32, now: Instant) -> Option<TopicId> {
    let sent_at = now;
    it.on_message(RobotId(robot), Message::Connect { incarnation, sent_at }, now);
    actions(it).into_iter().find_map(|action| match action {
        TrackerAction::Send {
            message: Message::Accept { topic, .. },
            ..
        } => Some(topic),
        _ => None,
    })
}

fn header(incarnation: u32, number: u32, created_at: Instant) -> StateHeader {
    StateHeader {
        sequence: Sequence { incarnation, number },
        created_at: Some(created_at),
        error: Duration::ZERO,
    }
}

fn updates(it: &Tracker<u32>, robot: u16) -> Updates {
    it.robots().find(|(id, _)| *id == RobotId(robot)).unwrap().1
}

#[test]
fn a_topic_is_open_before_its_robot_is_told_and_closed_after_it_left() {
    let mut it = tracker(&TrackerConfig::default());
    let (incarnation, sent_at) = (1, at(3));
    it.on_message(RobotId(4), Message::Connect { incarnation, sent_at }, at(5));
    let answer = Answer {
        echo: at(3),
        received_at: at(5),
        sent_at: at(5),
    };
    let accept = Message::Accept {
        incarnation,
        topic: TopicId(1),
        answer,
    };
    let expected = [
        TrackerAction::Open(TopicId(1)),
        TrackerAction::Joined(RobotId(4)),
        TrackerAction::Send {
            to: RobotId(4),
            message: accept,
        },
    ];
    assert_eq!(actions(&mut it), expected);
    it.on_message(RobotId(4), Message::Leave { incarnation: 0 }, at(6));
    assert_eq!(actions(&mut it), [], "an earlier start left");
    it.on_message(RobotId(4), Message::Leave { incarnation }, at(6));
    assert_eq!(
        actions(&mut it),
        [TrackerAction::Left(RobotId(4)), TrackerAction::Close(TopicId(1))]
    );
    connect(&mut it, 4, 1, at(7));
    it.on_gone(RobotId(4), at(8));
    it.on_gone(RobotId(4), at(8));
    assert_eq!(
        actions(&mut it),
        [TrackerAction::Left(RobotId(4)), TrackerAction::Close(TopicId(1))],
        "it died, and is told so once"
    );
}

#[test]
fn robots_share_a_topic_or_have_their_own() {
    let shared = TrackerConfig {
        topics: Topics::ManyToOne,
        ..TrackerConfig::default()
    };
    for (config, expected) in [(shared, [0, 0, 0]), (TrackerConfig::default(), [1, 2, 3])] {
        let mut it = tracker(&config);
        let topics = [7, 8, 9].map(|robot| connect(&mut it, robot, 1, at(0)).unwrap());
        assert_eq!(topics, expected.map(TopicId));
        assert_eq!(
            connect(&mut it, 8, 2, at(1)),
            Some(topics[1]),
            "a restart keeps the topic"
        );
        it.on_message(RobotId(7), Message::Leave { incarnation: 1 }, at(2));
        let closed = actions(&mut it).contains(&TrackerAction::Close(topics[0]));
        assert_eq!(closed, topics[0] != topics[1], "others still publish on a shared one");
    }
}

#[test]
fn the_list_has_the_newest_state_of_each_and_counts_what_was_missed() {
    let mut it = tracker(&TrackerConfig::default());
    let topics = [1, 2].map(|robot| connect(&mut it, robot, 1, at(0)).unwrap());
    it.gather(at(1));
    for (number, state) in [(0, 10), (2, 12), (1, 11)] {
        it.on_state(RobotId(1), topics[0], header(1, number, at(2)), state, at(4));
    }
    it.on_state(RobotId(2), topics[0], header(1, 0, at(2)), 99, at(4));
    let list = it.gather(at(9));
    let [entry] = &list[..] else { panic!("{list:?}") };
    assert_eq!((entry.robot, *entry.state, entry.fresh), (RobotId(1), 12, true));
    assert_eq!(entry.stamps.age(at(12)), Some(ms(10)));
    assert_eq!(entry.stamps.legs(at(12)), (Some(ms(2)), ms(5), ms(3)));
    assert!(!it.gather(at(42))[0].fresh);
    assert_eq!(
        updates(&it, 1),
        Updates {
            due: 2,
            missed: 1,
            stale: 1
        }
    );
    assert_eq!(
        updates(&it, 2).miss_ratio(),
        1.0,
        "published on a topic that is not its own"
    );
}

#[test]
fn who_is_not_connected_is_told_and_who_does_not_fit_is_refused() {
    let mut it = tracker(&TrackerConfig {
        robots_max: 1,
        ..TrackerConfig::default()
    });
    it.on_state(RobotId(1), TopicId(1), header(1, 0, at(0)), 5, at(1));
    let unknown = TrackerAction::Send {
        to: RobotId(1),
        message: Message::Unknown { incarnation: 1 },
    };
    assert_eq!(actions(&mut it), [unknown]);
    assert!(it.gather(at(2)).is_empty());
    assert!(connect(&mut it, 1, 1, at(3)).is_some());
    assert_eq!(connect(&mut it, 2, 1, at(4)), None);
    // The first robot falls silent, so there is room again.
    it.on_deadline(at(2_003));
    assert!(actions(&mut it).contains(&TrackerAction::Left(RobotId(1))));
    assert!(connect(&mut it, 2, 1, at(2_004)).is_some());
}

#[test]
fn lists_keep_their_phase_and_are_not_made_up_for() {
    let mut it = tracker(&TrackerConfig {
        period: ms(10),
        ..TrackerConfig::default()
    });
    assert_eq!(it.next_deadline(), Some(at(10)));
    it.on_deadline(at(37));
    assert_eq!(actions(&mut it), [TrackerAction::List]);
    assert_eq!(it.next_deadline(), Some(at(40)));
}

#[test]
fn a_reporter_takes_states_only_while_connected() {
    let mut it = Reporter::new(TrackerConfig::default(), Sequence::first(3), at(0));
    assert_eq!(it.on_state(at(0)), None);
    it.on_deadline(at(0));
    let connect = Message::Connect {
        incarnation: 3,
        sent_at: at(0),
    };
    assert_eq!(it.poll(), Some(ReporterAction::Send(connect)));
    let answer = Answer {
        echo: at(0),
        received_at: at(1_000),
        sent_at: at(1_000),
    };
    let accept = |incarnation| Message::Accept {
        incarnation,
        topic: TopicId(5),
        answer,
    };
    it.on_message(accept(2), at(4));
    assert_eq!(it.on_state(at(4)), None, "meant for an earlier start");
    it.on_message(accept(3), at(4));
    assert_eq!(it.poll(), Some(ReporterAction::Connected(TopicId(5))));
    let (topic, header) = it.on_state(at(10)).unwrap();
    // The round trip took 4 ms, so the tracker's clock is 998 ms ahead, give or take 2.
    assert_eq!((topic, header.created_at), (TopicId(5), Some(at(1_008))));
    assert!(header.error >= ms(2) && header.error < ms(3), "{}", header.error);
    it.on_message(Message::Unknown { incarnation: 3 }, at(11));
    assert_eq!(it.poll(), Some(ReporterAction::Disconnected));
    assert_eq!(it.on_state(at(11)), None);
}

/// A tracker and reporters in virtual time.
struct Fleet {
    config: TrackerConfig,
    tracker: Tracker<u32>,
    robots: Vec<Robot>,
    events: BinaryHeap<std::cmp::Reverse<(u64, u64)>>,
    mail: Vec<(usize, Mail)>,
    now: u64,
    random: u64,
    loss_percent: u64,
    delay_max: u64,
    /// By robot and start: when each state was created, in true time.
    made: BTreeMap<(usize, u32), Vec<u64>>,
    joined: Vec<bool>,
}

struct Robot {
    it: Reporter,
    incarnation: u32,
    alive: bool,
    offset: u64,
}

#[derive(Clone, Copy)]
enum Mail {
    ToTracker(Message),
    ToRobot(Message),
    State(TopicId, StateHeader),
}

const TRACKER_OFFSET: u64 = 50_000 * MS;

impl Fleet {
    fn new(robots: usize, topics: Topics, seed: u64, loss_percent: u64, delay_max: u64) -> Self {
        let config = TrackerConfig {
            topics,
            robots_max: 4,
            ..TrackerConfig::default()
        };
        let robot = |i: usize| {
            let offset = (1 + i as u64) * 30_000 * MS;
            Robot {
                it: Reporter::new(config.clone(), Sequence::first(0), Instant::from_nanos(offset)),
                incarnation: 0,
                alive: true,
                offset,
            }
        };
        Fleet {
            tracker: Tracker::new(config.clone(), Instant::from_nanos(TRACKER_OFFSET)),
            robots: (0..robots).map(robot).collect(),
            config,
            events: BinaryHeap::new(),
            mail: Vec::new(),
            now: 0,
            random: seed | 1,
            loss_percent,
            delay_max,
            made: BTreeMap::new(),
            joined: vec![false; robots],
        }
    }

    fn dice(&mut self, sides: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % sides.max(1)
    }

    fn carry(&mut self, robot: usize, mail: Mail) {
        let copies = 1 + u64::from(self.dice(100) < self.loss_percent / 2);
        for _ in 0..copies {
            if self.dice(100) >= self.loss_percent {
                let at = self.now + 1 + self.dice(self.delay_max);
                self.mail.push((robot, mail));
                self.events.push(std::cmp::Reverse((at, self.mail.len() as u64 - 1)));
            }
        }
    }

    fn local(&self, robot: usize) -> Instant {
        Instant::from_nanos(self.now + self.robots[robot].offset)
    }

    fn restart(&mut self, robot: usize) {
        let now = self.local(robot);
        let it = &mut self.robots[robot];
        it.incarnation += 1;
        (it.it, it.alive) = (
            Reporter::new(self.config.clone(), Sequence::first(it.incarnation), now),
            true,
        );
    }

    /// Runs `span_ms` milliseconds; in each, checks all deadlines and creates states.
    fn run(&mut self, span_ms: u64) {
        for _ in 0..span_ms {
            self.now += MS;
            let now = Instant::from_nanos(self.now + TRACKER_OFFSET);
            while self.events.peek().is_some_and(|e| e.0 .0 <= self.now) {
                let (robot, mail) = self.mail[self.events.pop().unwrap().0 .1 as usize];
                let from = RobotId(robot as u16);
                match mail {
                    Mail::ToTracker(message) => self.tracker.on_message(from, message, now),
                    Mail::State(topic, header) => {
                        self.tracker.on_state(from, topic, header, header.sequence.number, now)
                    }
                    Mail::ToRobot(message) if self.robots[robot].alive => {
                        let now = self.local(robot);
                        self.robots[robot].it.on_message(message, now);
                    }
                    Mail::ToRobot(_) => {}
                }
            }
            self.tracker.on_deadline(now);
            self.drain(now);
            for robot in (0..self.robots.len())
                .filter(|i| self.robots[*i].alive)
                .collect::<Vec<_>>()
            {
                self.drive(robot);
            }
        }
    }

    fn drain(&mut self, now: Instant) {
        while let Some(action) = self.tracker.poll() {
            match action {
                TrackerAction::Send { to, message } => self.carry(usize::from(to.0), Mail::ToRobot(message)),
                TrackerAction::Joined(robot) => self.joined[usize::from(robot.0)] = true,
                TrackerAction::Left(robot) => self.joined[usize::from(robot.0)] = false,
                TrackerAction::Open(_) | TrackerAction::Close(_) => {}
                TrackerAction::List => self.check(now),
            }
        }
    }

    fn drive(&mut self, robot: usize) {
        let now = self.local(robot);
        self.robots[robot].it.on_deadline(now);
        while let Some(action) = self.robots[robot].it.poll() {
            if let ReporterAction::Send(message) = action {
                self.carry(robot, Mail::ToTracker(message));
            }
        }
        // Several per period, so that there is a fresh state whenever the list is made.
        if self.now / MS % 11 == robot as u64 {
            if let Some((topic, header)) = self.robots[robot].it.on_state(now) {
                let key = (robot, self.robots[robot].incarnation);
                self.made.entry(key).or_default().push(self.now);
                self.carry(robot, Mail::State(topic, header));
            }
        }
    }

    /// Checks that every entry is a state that was created, with a T1 error within its stated bound.
    fn check(&mut self, now: Instant) {
        for entry in self.tracker.gather(now) {
            let robot = usize::from(entry.robot.0);
            let stamps = entry.stamps;
            assert!(stamps.received_at <= stamps.listed_at);
            let made = |incarnation| {
                self.made
                    .get(&(robot, incarnation))
                    .and_then(|made| made.get(*entry.state as usize))
            };
            let nearest = (0..=self.robots[robot].incarnation)
                .filter_map(made)
                .map(|at| at + TRACKER_OFFSET);
            let created_at = stamps
                .created_at
                .expect("who is connected has compared clocks")
                .as_nanos();
            let off = nearest
                .map(|at| at.abs_diff(created_at))
                .min()
                .expect("a state that nobody made");
            assert!(
                off <= stamps.error.as_nanos(),
                "T1 is off by {off} ns, and says {}",
                stamps.error
            );
        }
        assert!(self.tracker.robots().count() <= usize::from(self.config.robots_max));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Robots join, die, leave and restart on a bad network, and the tracker restarts. Afterwards all robots are on the
    /// list with fresh states.
    #[test]
    fn robots_come_and_go_and_all_are_listed_afterwards(
        robots in 1..5usize,
        shared in any::<bool>(),
        seed in any::<u64>(),
        loss_percent in 0..50u64,
        delay_ms in 1..400u64,
        harms in prop::collection::vec((0..5usize, 0..4u8, 1..600u64), 0..12),
    ) {
        let topics = if shared { Topics::ManyToOne } else { Topics::OneToOne };
        let mut fleet = Fleet::new(robots, topics, seed, loss_percent, delay_ms * MS);
        for (robot, harm, wait_ms) in harms {
            let robot = robot % robots;
            match harm {
                0 => fleet.robots[robot].alive = false,
                1 => fleet.restart(robot),
                2 if fleet.robots[robot].alive => {
                    let now = fleet.local(robot);
                    fleet.robots[robot].it.leave(now);
                }
                2 => {}
                _ => {
                    let now = Instant::from_nanos(fleet.now + TRACKER_OFFSET);
                    fleet.tracker = Tracker::new(fleet.config.clone(), now);
                    fleet.joined.fill(false);
                }
            }
            fleet.run(wait_ms);
        }
        (fleet.loss_percent, fleet.delay_max) = (0, 5 * MS);
        (0..robots).filter(|i| !fleet.robots[*i].alive).collect::<Vec<_>>().into_iter().for_each(|i| fleet.restart(i));
        fleet.run(5_000);
        prop_assert!(fleet.joined.iter().all(|joined| *joined));
        let before: Vec<Updates> = fleet.tracker.robots().map(|(_, updates)| updates).collect();
        fleet.run(1_000);
        for ((robot, after), before) in fleet.tracker.robots().zip(before) {
            prop_assert!(after.due - before.due >= 30);
            prop_assert!(after.missed == before.missed, "{robot:?} missed {after:?}");
        }
        let now = Instant::from_nanos(fleet.now + TRACKER_OFFSET);
        prop_assert_eq!(fleet.tracker.gather(now).len(), robots);
    }

    /// The offset is within the estimate's bound, whatever the delays in both directions.
    #[test]
    fn the_offset_is_as_good_as_it_says(
        ways in prop::collection::vec((0..200u64, 0..200u64, 0..20u64), 1..40),
        offset_ms in 0..100_000u64,
    ) {
        let mut it = OffsetEstimate::default();
        let mut now = 200_000;
        for (there, back, inside) in ways {
            let echo = at(now);
            let received_at = at(now + there + offset_ms);
            now += there + inside + back;
            it.on_answer(Answer { echo, received_at, sent_at: at(now - back + offset_ms) }, at(now));
            let (offset, error) = it.offset(at(now)).unwrap();
            let off = offset.as_nanos().abs_diff((offset_ms * MS) as i64);
            prop_assert!(off <= error.as_nanos(), "off by {off}, says {error}");
            prop_assert_eq!(offset.there(at(now)).as_nanos() as i64 - at(now).as_nanos() as i64, offset.as_nanos());
        }
    }

    /// Any messages and times cause no panic, and the bounds hold.
    #[test]
    fn garbage_does_no_harm(
        events in prop::collection::vec((0..8u8, 0..6u16, 0..3u32, any::<u64>(), any::<u64>()), 0..200),
        shared in any::<bool>(),
    ) {
        let topics = if shared { Topics::ManyToOne } else { Topics::OneToOne };
        let config = TrackerConfig { topics, robots_max: 3, ..TrackerConfig::default() };
        let mut tracker = tracker(&config);
        let mut reporter = Reporter::new(config, Sequence::first(1), at(0));
        for (kind, robot, incarnation, a, b) in events {
            let (now, sent_at) = (Instant::from_nanos(a), Instant::from_nanos(b));
            let answer = Answer { echo: sent_at, received_at: now, sent_at };
            let message = match kind {
                0 => Message::Connect { incarnation, sent_at },
                1 => Message::Accept { incarnation, topic: TopicId(b as u32), answer },
                2 => Message::Refuse { incarnation },
                3 => Message::Sync { incarnation, sent_at },
                4 => Message::Synced { incarnation, answer },
                5 => Message::Unknown { incarnation },
                _ => Message::Leave { incarnation },
            };
            tracker.on_message(RobotId(robot), message, now);
            tracker.on_state(RobotId(robot), TopicId(b as u32 % 4), header(incarnation, b as u32, now), 0, now);
            tracker.on_deadline(now);
            reporter.on_message(message, now);
            reporter.on_deadline(now);
            _ = reporter.on_state(now);
            prop_assert!(tracker.gather(now).len() <= 3);
            while tracker.poll().is_some() {}
            while reporter.poll().is_some() {}
        }
    }
}
