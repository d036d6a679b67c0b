//! Searches what can happen to three robots, all of it within bounds.
//!
//! The network is the set of all that was ever sent. At each step the adversary delivers any of it to its receiver, lets
//! a robot handle a deadline that has come, kills and restarts a robot, or lets time go on. So messages get lost (never
//! delivered), doubled, late and reordered, robots freeze (not served), are cut off in any way, and die. States that were
//! met before are not searched again. Clocks run at rates of their own.

use super::*;
use crate::permits::PermitConfig;
use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeSet, HashSet};
use std::hash::{Hash, Hasher};
use std::rc::Rc;

/// One step of true time.
const TICK: u64 = 100_000_000;

#[derive(Clone)]
struct Bounds {
    config: FailoverConfig,
    permits: PermitConfig,
    /// How fast each robot's clock runs, in percent.
    rates: [u64; 3],
    ticks: u64,
    restarts: u8,
    /// Whether the robots have bulk to send.
    bulk: bool,
    /// A message is not delivered later than so many ticks after it was sent.
    age_max: u64,
    states_max: usize,
}

/// When, to whom, by whom, what.
type Sent = BTreeSet<(u64, usize, usize, Message)>;

/// Parts are shared between states, and each carries its hash, as a step changes one part only.
#[derive(Clone)]
struct State {
    tick: u64,
    robots: [Rc<(Coordinator, u64)>; 3],
    incarnations: [u32; 3],
    restarts: u8,
    sent: Rc<(Sent, u64)>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Found {
    states: usize,
    /// Of these, states in which one robot leads after another one did.
    successions: usize,
    leaders_max: usize,
    senders_max: usize,
    cut_short: bool,
}

impl Bounds {
    fn team() -> Self {
        let tick = Duration::from_nanos(TICK);
        Bounds {
            config: FailoverConfig {
                voters: vec![RobotId(0), RobotId(1), RobotId(2)],
                beat: tick,
                lease: tick * 3,
                stagger: Duration::ZERO,
                drift_ppm: 0,
            },
            permits: PermitConfig {
                slice: tick * 4,
                lease: tick * 2,
                grace: Duration::ZERO,
                retry: tick,
                ..PermitConfig::default()
            },
            rates: [100; 3],
            ticks: 8,
            restarts: 0,
            bulk: false,
            age_max: 8,
            states_max: 30_000,
        }
    }

    fn clock(&self, robot: usize, tick: u64) -> Instant {
        // Clocks of one team have nothing in common but, nearly, their rates.
        Instant::from_nanos(1_000 * TICK * (1 + robot as u64) + tick * TICK / 100 * self.rates[robot])
    }

    fn start(&self, robot: usize, incarnation: u32, tick: u64) -> Coordinator {
        let now = self.clock(robot, tick);
        let id = RobotId(robot as u16);
        let mut fresh = Coordinator::new(self.config.clone(), self.permits.clone(), id, incarnation, now).unwrap();
        if self.bulk {
            fresh.want(now);
        }
        fresh
    }

    /// What becomes of `state` if `robot` does `step`; nothing if that changes nothing.
    fn after(&self, state: &State, robot: usize, step: impl FnOnce(&mut Coordinator, Instant)) -> Option<State> {
        let now = self.clock(robot, state.tick);
        let mut changed = state.robots[robot].0.clone();
        step(&mut changed, now);
        let mut sent: Option<Sent> = None;
        while let Some(action) = changed.poll() {
            let (to, message) = match action {
                Action::Send { to, message } => (vec![usize::from(to.0)], message),
                Action::Broadcast(message) => ((0..3).filter(|to| *to != robot).collect(), message),
                _ => continue,
            };
            let sent = sent.get_or_insert_with(|| state.sent.0.clone());
            sent.extend(to.into_iter().map(|to| (state.tick, to, robot, message)));
        }
        changed.forget_the_past(now);
        let digest = hash(&changed);
        if sent.is_none() && digest == state.robots[robot].1 {
            return None;
        }
        let mut next = state.clone();
        next.robots[robot] = Rc::new((changed, digest));
        if let Some(sent) = sent {
            let digest = hash(&sent);
            next.sent = Rc::new((sent, digest));
        }
        Some(next)
    }

    fn successors(&self, state: &State, mut visit: impl FnMut(State)) {
        for robot in 0..3 {
            let now = self.clock(robot, state.tick);
            if state.robots[robot].0.next_deadline().is_some_and(|at| at <= now) {
                self.after(state, robot, |r, now| r.on_deadline(now)).map(&mut visit);
            }
            if state.restarts > 0 {
                let incarnation = state.incarnations[robot] + 1;
                let restarted = self.after(state, robot, |r, _| *r = self.start(robot, incarnation, state.tick));
                if let Some(mut next) = restarted {
                    next.restarts -= 1;
                    next.incarnations[robot] = incarnation;
                    visit(next);
                }
            }
        }
        for (_, to, from, message) in &state.sent.0 {
            let from = RobotId(*from as u16);
            self.after(state, *to, |r, now| r.on_message(from, *message, now))
                .map(&mut visit);
        }
        if state.tick < self.ticks {
            let mut next = state.clone();
            next.tick += 1;
            let mut sent = next.sent.0.clone();
            sent.retain(|(at, ..)| next.tick - at <= self.age_max);
            let digest = hash(&sent);
            next.sent = Rc::new((sent, digest));
            visit(next);
        }
    }

    fn explore(&self) -> Found {
        let robot = |robot| {
            let fresh = self.start(robot, 0, 0);
            let digest = hash(&fresh);
            Rc::new((fresh, digest))
        };
        let start = State {
            tick: 0,
            robots: [robot(0), robot(1), robot(2)],
            incarnations: [0; 3],
            restarts: self.restarts,
            sent: Rc::new((Sent::new(), 0)),
        };
        let (mut seen, mut stack, mut found) = (HashSet::new(), vec![start], Found::default());
        while let Some(state) = stack.pop() {
            found.states += 1;
            self.look(&state, &mut found);
            if found.states >= self.states_max {
                found.cut_short = true;
                break;
            }
            self.successors(&state, |next| {
                let parts = (next.tick, next.restarts, next.incarnations, next.sent.1);
                if seen.insert(hash(&(parts, next.robots[0].1, next.robots[1].1, next.robots[2].1))) {
                    stack.push(next);
                }
            });
        }
        found
    }

    fn look(&self, state: &State, found: &mut Found) {
        let now = |robot| self.clock(robot, state.tick);
        let leads = |robot: usize| state.robots[robot].0.is_leading(now(robot));
        let leaders = (0..3).filter(|robot| leads(*robot)).count();
        let senders = (0..3)
            .filter(|robot| state.robots[*robot].0.may_send(now(*robot)))
            .count();
        let second = |robot: usize| {
            leads(robot)
                && state
                    .robots
                    .iter()
                    .any(|other| other.0.epoch() < state.robots[robot].0.epoch())
        };
        found.successions +=
            usize::from((0..3).any(|robot| second(robot) && state.robots[robot].0.epoch().unwrap().round > 1));
        found.leaders_max = found.leaders_max.max(leaders);
        found.senders_max = found.senders_max.max(senders);
    }
}

fn hash(what: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    hasher.finish()
}

#[test]
#[ignore]
fn measure() {
    for ticks in 4..8 {
        let t = std::time::Instant::now();
        let bounds = Bounds {
            states_max: 1_000_000,
            ticks,
            ..Bounds::team()
        };
        println!("{ticks}: {:?} {:?}", bounds.explore(), t.elapsed());
    }
}
