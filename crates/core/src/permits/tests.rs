//! Both ends driven in virtual time over a network that loses, duplicates, delays and reorders.

use super::*;
use proptest::prelude::*;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

const MS: u64 = 1_000_000;

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn at(ms: u64) -> Instant {
    Instant::from_nanos(ms * MS)
}

fn config() -> PermitConfig {
    PermitConfig {
        slice: ms(500),
        lease: ms(200),
        grace: ms(10),
        retry: ms(50),
        ..PermitConfig::default()
    }
}

fn request(controller: &mut Controller, robot: u16, id: u64, now: Instant) {
    let message = Message::Request {
        robot: RobotId(robot),
        request: RequestId(id),
        sent_at: now,
    };
    controller.on_message(RobotId(robot), message, now);
}

fn sent(controller: &mut Controller) -> Vec<(RobotId, Message)> {
    std::iter::from_fn(|| {
        controller
            .poll()
            .map(|ControllerAction::Send { to, message }| (to, message))
    })
    .collect()
}

fn token_of(sent: &[(RobotId, Message)]) -> Token {
    match sent {
        [(_, Message::Grant { token, .. })] => *token,
        other => panic!("one grant expected, got {other:?}"),
    }
}

#[test]
fn permits_go_out_in_the_order_of_the_requests() {
    let mut c = Controller::new(config(), 1);
    for robot in [3, 1, 2] {
        request(&mut c, robot, 1, at(0));
    }
    let mut order = Vec::new();
    for step in 0..3 {
        let grants = sent(&mut c);
        order.push(grants[0].0 .0);
        c.on_message(
            grants[0].0,
            Message::Release {
                token: token_of(&grants),
            },
            at(10 + step),
        );
    }
    assert_eq!(order, [3, 1, 2]);
}

#[test]
fn a_release_frees_only_the_grant_that_it_names() {
    let mut c = Controller::new(config(), 1);
    request(&mut c, 1, 1, at(0));
    let first = token_of(&sent(&mut c));
    c.on_message(RobotId(1), Message::Release { token: first }, at(10));
    request(&mut c, 2, 1, at(10));
    let second = token_of(&sent(&mut c));
    request(&mut c, 1, 2, at(11));
    // A repetition of the first release, a guess by the waiting robot, and a guess by a stranger: none frees a place.
    c.on_message(RobotId(1), Message::Release { token: first }, at(12));
    c.on_message(RobotId(1), Message::Release { token: second }, at(13));
    c.on_message(RobotId(9), Message::Release { token: second }, at(14));
    assert_eq!(c.holders().collect::<Vec<_>>(), [RobotId(2)]);
    assert!(sent(&mut c).is_empty());
}

#[test]
fn a_robot_that_asks_twice_holds_one_place_and_is_told_again() {
    let config = PermitConfig { limit: 2, ..config() };
    let mut c = Controller::new(config, 1);
    request(&mut c, 1, 7, at(0));
    let first = token_of(&sent(&mut c));
    request(&mut c, 1, 7, at(100));
    match sent(&mut c)[..] {
        [(_, Message::Grant { token, slice, echo, .. })] => {
            assert_eq!((token, slice, echo), (first, ms(400), at(100)));
        }
        ref other => panic!("{other:?}"),
    }
    assert_eq!(c.holders().count(), 1);
}

/// A robot whose disk was wiped restarts its count, so its requests have lower numbers than before.
#[test]
fn another_starts_request_is_neither_ignored_nor_taken_for_a_release() {
    let (old, new) = (9 << 32 | 7, 1 << 32);
    for (before, after) in [(old, new), (new, old)] {
        let mut c = Controller::new(config(), 1);
        request(&mut c, 1, before, at(0));
        request(&mut c, 2, before, at(1));
        sent(&mut c);
        // The holder's earlier process may still send, until its lease is over.
        request(&mut c, 1, after, at(2));
        assert_eq!(sent(&mut c), []);
        // A waiting robot keeps its place, and gets a grant for its newest request.
        request(&mut c, 2, after, at(150));
        c.on_deadline(at(200));
        let granted = sent(&mut c);
        let is_its = |message: &Message| matches!(message, Message::Grant { request, .. } if request.0 == after);
        assert!(
            matches!(&granted[..], [(RobotId(2), grant)] if is_its(grant)),
            "{granted:?}"
        );
        // The first one's new process waits in turn.
        request(&mut c, 1, after, at(201));
        assert_eq!(c.queue().collect::<Vec<_>>(), [RobotId(1)]);
    }
}

#[test]
fn a_silent_holder_loses_its_place_after_the_lease_and_a_loud_one_after_the_slice() {
    let mut c = Controller::new(config(), 1);
    request(&mut c, 1, 1, at(0));
    request(&mut c, 2, 1, at(150));
    let token = token_of(&sent(&mut c));
    assert_eq!(c.next_deadline(), Some(at(200)));
    c.on_deadline(at(200));
    let second = token_of(&sent(&mut c));
    assert_ne!(token, second);
    for step in 1..=5 {
        c.on_message(
            RobotId(2),
            Message::Renew {
                token: second,
                sent_at: at(0),
            },
            at(200 + step * 100),
        );
    }
    assert_eq!(c.next_deadline(), Some(at(200 + 500 + 10)));
    c.on_deadline(at(710));
    assert_eq!(c.holders().count(), 0);
}

#[test]
fn a_full_queue_refuses_and_the_robot_waits_longer_each_time() {
    let mut c = Controller::new(
        PermitConfig {
            queue_max: 1,
            ..config()
        },
        1,
    );
    request(&mut c, 1, 1, at(0));
    request(&mut c, 2, 1, at(0));
    sent(&mut c);
    let mut r = Requester::new(RobotId(3), config(), 0);
    r.want(at(0));
    let mut waits = Vec::new();
    for _ in 0..3 {
        let now = r.next_deadline().unwrap();
        r.on_deadline(now);
        let id = RequestId(0);
        r.on_message(
            Message::Refuse {
                request: id,
                retry_after: ms(50),
            },
            now,
        );
        waits.push(r.next_deadline().unwrap().since(now));
    }
    assert_eq!(waits, [ms(50), ms(100), ms(200)]);
    request(&mut c, 3, 1, at(1));
    assert!(matches!(sent(&mut c)[..], [(RobotId(3), Message::Refuse { .. })]));
}

#[test]
fn a_recovering_controller_is_quiet_for_one_lease() {
    let mut c = Controller::recovering(config(), 2, at(1_000));
    request(&mut c, 1, 1, at(1_050));
    assert!(sent(&mut c).is_empty());
    assert_eq!(c.next_deadline(), Some(at(1_200)));
    c.on_deadline(at(1_200));
    assert_eq!(sent(&mut c).len(), 1);
}

#[test]
fn a_grant_that_nobody_waits_for_is_given_back_at_once() {
    let mut r = Requester::new(RobotId(1), config(), 0);
    r.want(at(0));
    r.done(at(1));
    while r.poll().is_some() {}
    r.on_message(
        Message::Grant {
            request: RequestId(0),
            token: Token(5),
            slice: ms(500),
            echo: at(0),
        },
        at(2),
    );
    assert_eq!(
        r.poll(),
        Some(RequesterAction::Send(Message::Release { token: Token(5) }))
    );
    assert!(!r.may_send(at(2)));
}

#[test]
fn a_grant_that_travelled_too_long_starts_nothing_until_a_fresh_one_comes() {
    let mut r = Requester::new(RobotId(1), config(), 0);
    r.want(at(0));
    let old = Message::Grant {
        request: RequestId(0),
        token: Token(5),
        slice: ms(500),
        echo: at(0),
    };
    r.on_message(old, at(900));
    assert!(!r.may_send(at(900)));
    let fresh = Message::Grant {
        request: RequestId(0),
        token: Token(5),
        slice: ms(300),
        echo: at(900),
    };
    r.on_message(fresh, at(901));
    assert!(r.may_send(at(901)));
    let actions: Vec<_> = std::iter::from_fn(|| r.poll()).collect();
    assert_eq!(actions.iter().filter(|a| **a == RequesterAction::Started).count(), 1);
    // Unanswered renewals: it stops at the end of the lease, not of the slice.
    assert!(!r.may_send(at(1_100)));
}

#[test]
fn a_clock_that_steps_back_neither_blocks_the_place_nor_the_robot() {
    let hour = 3_600_000;
    let mut c = Controller::new(config(), 1);
    request(&mut c, 1, 1, at(hour));
    request(&mut c, 2, 1, at(hour));
    c.on_deadline(at(0));
    assert!(c.next_deadline().unwrap() <= at(200));
    let mut r = Requester::new(RobotId(1), config(), 0);
    r.want(at(hour));
    r.on_deadline(at(0));
    assert!(r.next_deadline().unwrap() <= at(50));
}

// ---- the whole team over a bad network ----

#[derive(Clone, Debug)]
struct Fault {
    at_ms: u64,
    kind: FaultKind,
}

#[derive(Clone, Debug)]
enum FaultKind {
    Die(usize),
    Restart(usize),
    Freeze(usize, u64),
    LeaderRestart,
    Want(usize),
    Done(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    ToLeader(usize, u64),
    ToRobot(usize, u64),
    Fault(usize),
    LeaderDeadline,
    RobotDeadline(usize),
}

struct Robot {
    requester: Requester,
    incarnation: u32,
    alive: bool,
    frozen_until: u64,
    wants: bool,
    asked_at: u64,
    longest_wait: u64,
    alarm: Option<Instant>,
}

struct Team {
    controller: Controller,
    incarnation: u32,
    config: PermitConfig,
    alarm: Option<Instant>,
    robots: Vec<Robot>,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    mail: Vec<Message>,
    sequence: u64,
    random: u64,
    loss_percent: u64,
    delay_max_ms: u64,
    now: u64,
}

impl Team {
    fn new(robots: usize, config: PermitConfig, seed: u64, loss_percent: u64, delay_max_ms: u64) -> Self {
        let robots = (0..robots)
            .map(|i| Robot {
                requester: Requester::new(RobotId(i as u16), config.clone(), 0),
                incarnation: 0,
                alive: true,
                frozen_until: 0,
                wants: false,
                asked_at: 0,
                longest_wait: 0,
                alarm: None,
            })
            .collect();
        Team {
            controller: Controller::new(config.clone(), 0),
            incarnation: 0,
            config,
            alarm: None,
            robots,
            events: BinaryHeap::new(),
            mail: Vec::new(),
            sequence: 0,
            random: seed | 1,
            loss_percent,
            delay_max_ms,
            now: 0,
        }
    }

    fn dice(&mut self, sides: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % sides.max(1)
    }

    fn schedule(&mut self, when: u64, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse((when.max(self.now), self.sequence, event)));
    }

    /// Loses, delays (and thus reorders) and duplicates.
    fn carry(&mut self, message: Message, event: impl Fn(u64) -> Event) {
        let copies = 1 + u64::from(self.dice(100) < self.loss_percent / 2);
        for _ in 0..copies {
            if self.dice(100) < self.loss_percent {
                continue;
            }
            let delay = self.dice(self.delay_max_ms * MS + 1);
            self.mail.push(message);
            let event = event(self.mail.len() as u64 - 1);
            self.schedule(self.now + delay, event);
        }
    }

    fn pump(&mut self) {
        while let Some(ControllerAction::Send { to, message }) = self.controller.poll() {
            self.carry(message, |mail| Event::ToRobot(usize::from(to.0), mail));
        }
        if let Some(deadline) = self.controller.next_deadline() {
            if self.alarm != Some(deadline) {
                self.alarm = Some(deadline);
                self.schedule(deadline.as_nanos(), Event::LeaderDeadline);
            }
        }
        for i in 0..self.robots.len() {
            if !self.robots[i].alive || self.now < self.robots[i].frozen_until {
                continue;
            }
            while let Some(action) = self.robots[i].requester.poll() {
                match action {
                    RequesterAction::Send(message) => self.carry(message, |mail| Event::ToLeader(i, mail)),
                    RequesterAction::Started => {
                        let waited = self.now - self.robots[i].asked_at;
                        self.robots[i].longest_wait = self.robots[i].longest_wait.max(waited);
                    }
                    RequesterAction::Stopped => self.robots[i].asked_at = self.now,
                }
            }
            if let Some(deadline) = self.robots[i].requester.next_deadline() {
                if self.robots[i].alarm != Some(deadline) {
                    self.robots[i].alarm = Some(deadline);
                    self.schedule(deadline.as_nanos(), Event::RobotDeadline(i));
                }
            }
        }
    }

    fn check(&self) {
        let now = Instant::from_nanos(self.now);
        let limit = usize::from(self.config.limit);
        assert!(self.controller.holders().count() <= limit);
        let sending = self
            .robots
            .iter()
            .filter(|r| r.alive && r.requester.may_send(now))
            .count();
        assert!(sending <= limit, "{sending} robots transmit at {now:?}");
        let mut queued: Vec<_> = self.controller.queue().collect();
        queued.sort();
        queued.dedup();
        assert_eq!(queued.len(), self.controller.queue().count(), "a robot waits twice");
    }

    fn run(&mut self, faults: &[Fault], until_ms: u64) {
        for (i, fault) in faults.iter().enumerate() {
            self.schedule(fault.at_ms * MS, Event::Fault(i));
        }
        self.pump();
        while let Some(Reverse((when, _, event))) = self.events.pop() {
            if when > until_ms * MS {
                break;
            }
            self.now = when;
            self.step(event, faults);
            self.check();
            self.pump();
        }
        self.now = until_ms * MS;
    }

    fn step(&mut self, event: Event, faults: &[Fault]) {
        let now = Instant::from_nanos(self.now);
        match event {
            Event::ToLeader(from, mail) => {
                self.controller
                    .on_message(RobotId(from as u16), self.mail[mail as usize], now);
            }
            Event::LeaderDeadline => {
                self.alarm = None;
                self.controller.on_deadline(now);
            }
            Event::ToRobot(to, mail) => {
                if self.robots[to].alive && self.now >= self.robots[to].frozen_until {
                    let message = self.mail[mail as usize];
                    self.robots[to].requester.on_message(message, now);
                }
            }
            Event::RobotDeadline(i) => {
                let frozen_until = self.robots[i].frozen_until;
                self.robots[i].alarm = None;
                if self.now < frozen_until {
                    self.schedule(frozen_until, Event::RobotDeadline(i));
                } else if self.robots[i].alive {
                    self.robots[i].requester.on_deadline(now);
                }
            }
            Event::Fault(i) => self.fault(&faults[i].kind, now),
        }
    }

    fn fault(&mut self, kind: &FaultKind, now: Instant) {
        let config = self.config.clone();
        match *kind {
            FaultKind::Die(i) => self.robots[i].alive = false,
            FaultKind::Restart(i) => {
                let robot = &mut self.robots[i];
                robot.incarnation += 1;
                robot.alive = true;
                robot.requester = Requester::new(RobotId(i as u16), config, robot.incarnation);
                if robot.wants {
                    robot.asked_at = self.now;
                    robot.requester.want(now);
                }
            }
            FaultKind::Freeze(i, for_ms) => self.robots[i].frozen_until = self.now + for_ms * MS,
            FaultKind::LeaderRestart => {
                self.incarnation += 1;
                self.controller = Controller::recovering(config, self.incarnation, now);
            }
            FaultKind::Want(i) => {
                let robot = &mut self.robots[i];
                if robot.alive && self.now >= robot.frozen_until {
                    if !robot.requester.is_active() {
                        robot.asked_at = self.now;
                    }
                    robot.wants = true;
                    robot.requester.want(now);
                }
            }
            FaultKind::Done(i) => {
                let robot = &mut self.robots[i];
                if robot.alive && self.now >= robot.frozen_until {
                    robot.wants = false;
                    robot.requester.done(now);
                }
            }
        }
    }
}

fn fault(robots: usize) -> impl Strategy<Value = Fault> {
    let kind = prop_oneof![
        1 => (0..robots).prop_map(FaultKind::Die),
        2 => (0..robots).prop_map(FaultKind::Restart),
        2 => (0..robots, 1..1_500u64).prop_map(|(i, t)| FaultKind::Freeze(i, t)),
        1 => Just(FaultKind::LeaderRestart),
        8 => (0..robots).prop_map(FaultKind::Want),
        3 => (0..robots).prop_map(FaultKind::Done),
    ];
    (0..6_000u64, kind).prop_map(|(at_ms, kind)| Fault { at_ms, kind })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// At any time, at most LIMIT robots are holders or on the air. Once the faults end, every robot that wants to send
    /// gets its turn within a bound, so no permit is lost and no robot starves.
    #[test]
    fn limit_holds_under_faults_and_everybody_is_served_afterwards(
        faults in prop::collection::vec(fault(5), 0..60),
        limit in 1..4u16,
        seed in any::<u64>(),
        loss in 0..40u64,
        delay in 0..600u64,
    ) {
        let config = PermitConfig { limit, ..config() };
        let mut team = Team::new(5, config, seed, loss, delay);
        team.run(&faults, 6_000);
        // The faults end: all robots live, want to send, and are heard well.
        team.loss_percent = 0;
        team.delay_max_ms = 5;
        let calm: Vec<Fault> = (0..5)
            .flat_map(|i| [
                Fault { at_ms: 7_000, kind: FaultKind::Restart(i) },
                Fault { at_ms: 7_001, kind: FaultKind::Freeze(i, 0) },
                Fault { at_ms: 7_002, kind: FaultKind::Want(i) },
            ])
            .collect();
        for robot in &mut team.robots {
            robot.frozen_until = 0;
            robot.longest_wait = 0;
            robot.asked_at = team.now;
            robot.alarm = None;
        }
        team.alarm = None;
        team.events.clear();
        team.run(&calm, 20_000);
        // Five turns of a slice, and one lease to recover from the faults.
        let bound = (5 * 520 + 200 + 600) * MS;
        for (i, robot) in team.robots.iter().enumerate() {
            let waiting = if robot.requester.may_send(Instant::from_nanos(team.now)) { 0 } else { team.now - robot.asked_at };
            prop_assert!(robot.longest_wait.max(waiting) <= bound, "robot {i} waited {} ms", robot.longest_wait.max(waiting) / MS);
        }
        prop_assert_eq!(team.controller.holders().count(), usize::from(limit).min(5));
    }

    /// Arbitrary messages cause no panic, and the bounds hold.
    #[test]
    fn garbage_does_no_harm(
        messages in prop::collection::vec((0..5u8, any::<u16>(), any::<u64>(), any::<u64>(), any::<u64>()), 0..200),
        queue_max in 0..8u16,
        limit in 0..4u16,
    ) {
        let config = PermitConfig { limit, queue_max, ..config() };
        let mut controller = Controller::new(config.clone(), 0);
        let mut requester = Requester::new(RobotId(0), config, 0);
        requester.want(Instant::ZERO);
        for (kind, robot, a, b, now) in messages {
            let (robot, now) = (RobotId(robot % 12), Instant::from_nanos(now));
            let (instant, span) = (Instant::from_nanos(b), Duration::from_nanos(b));
            let message = match kind {
                0 => Message::Request { robot, request: RequestId(a), sent_at: instant },
                1 => Message::Grant { request: RequestId(a % 2), token: Token(a), slice: span, echo: instant },
                2 => Message::Release { token: Token(a % 16) },
                3 => Message::Renew { token: Token(a % 16), sent_at: instant },
                _ => Message::Refuse { request: RequestId(a % 2), retry_after: span },
            };
            controller.on_message(robot, message, now);
            requester.on_message(message, now);
            requester.on_deadline(now);
            controller.on_deadline(now);
            prop_assert!(controller.queue().count() <= usize::from(queue_max).max(1));
            while controller.poll().is_some() {}
            while requester.poll().is_some() {}
        }
    }
}
