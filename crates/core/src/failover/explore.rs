//! Searches exhaustively what can happen to three robots, within bounds.
//!
//! The network is the set of all messages sent. In each tick, an adversary delivers to each robot any messages of
//! earlier ticks, in any order and any number of times. It lets the robot handle an expired deadline or not, or kills
//! and restarts it. So messages get lost (never delivered), duplicated, late and reordered. Robots freeze (not
//! scheduled), are cut off in any way, and die. Because no message arrives within its own tick, the order of the robots
//! within a tick does not matter. States seen before are not searched again. Each clock runs at its own rate.

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
    /// How fast each robot's clock runs, in percent.
    rates: [u64; 3],
    /// The number of ticks to search.
    ticks: u64,
    restarts: u8,
    /// The maximum number of effective deliveries, deadlines and restarts over all ticks.
    events: u8,
    states_max: usize,
}

/// Messages as (tick, receiver, sender, message).
type Sent = BTreeSet<(u64, usize, usize, Message)>;

/// Parts are shared between states, and each carries its hash, because a step changes only one part.
#[derive(Clone)]
struct State {
    tick: u64,
    turn: usize,
    robots: [Rc<(Coordinator, u64)>; 3],
    incarnations: [u32; 3],
    restarts: u8,
    events: u8,
    sent: Rc<(Sent, u64)>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Found {
    states: usize,
    /// The number of these states in which one robot leads after another.
    successions: usize,
    leaders_max: usize,
    cut_short: bool,
}

impl Bounds {
    fn team() -> Self {
        let tick = Duration::from_nanos(TICK);
        Bounds {
            config: FailoverConfig {
                voters: vec![RobotId(0), RobotId(1), RobotId(2)],
                beat: tick * 5 / 3,
                lease: tick * 5,
                stagger: Duration::ZERO,
                drift_ppm: 0,
            },
            rates: [100; 3],
            ticks: 7,
            restarts: 0,
            events: 3,
            states_max: 3_000_000,
        }
    }

    fn clock(&self, robot: usize, tick: u64) -> Instant {
        // The clocks of a team have nothing in common except, nearly, their rates.
        Instant::from_nanos(1_000 * TICK * (1 + robot as u64) + tick * TICK / 100 * self.rates[robot])
    }

    fn start(&self, robot: usize, incarnation: u32, tick: u64) -> Coordinator {
        let now = self.clock(robot, tick);
        let id = RobotId(robot as u16);
        Coordinator::new(self.config.clone(), PermitConfig::default(), id, incarnation, now).unwrap()
    }

    /// Returns the successor of `state` if the current robot does `step`; `None` if that changes nothing.
    fn after(&self, state: &State, step: impl FnOnce(&mut Coordinator, Instant)) -> Option<State> {
        let robot = state.turn;
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
        next.events = next.events.checked_sub(1)?;
        next.robots[robot] = Rc::new((changed, digest));
        if let Some(sent) = sent {
            let digest = hash(&sent);
            next.sent = Rc::new((sent, digest));
        }
        Some(next)
    }

    fn successors(&self, state: &State, mut visit: impl FnMut(State)) {
        let robot = state.turn;
        if state.robots[robot]
            .0
            .next_deadline()
            .is_some_and(|at| at <= self.clock(robot, state.tick))
        {
            self.after(state, |r, now| r.on_deadline(now)).map(&mut visit);
        }
        if state.restarts > 0 {
            let incarnation = state.incarnations[robot] + 1;
            let restarted = self.after(state, |r, _| *r = self.start(robot, incarnation, state.tick));
            if let Some(mut next) = restarted {
                next.restarts -= 1;
                next.incarnations[robot] = incarnation;
                visit(next);
            }
        }
        for (sent_at, to, from, message) in &state.sent.0 {
            if *to == robot && *sent_at < state.tick {
                let from = RobotId(*from as u16);
                self.after(state, |r, now| r.on_message(from, *message, now))
                    .map(&mut visit);
            }
        }
        if robot < 2 {
            let turn = robot + 1;
            visit(State { turn, ..state.clone() });
        } else if state.tick < self.ticks {
            let tick = state.tick + 1;
            visit(State {
                tick,
                turn: 0,
                ..state.clone()
            });
        }
    }

    /// Returns the team as it starts.
    fn cold(&self) -> State {
        let robot = |robot| {
            let fresh = self.start(robot, 0, 0);
            let digest = hash(&fresh);
            Rc::new((fresh, digest))
        };
        State {
            tick: 0,
            turn: 0,
            robots: [robot(0), robot(1), robot(2)],
            incarnations: [0; 3],
            restarts: self.restarts,
            events: self.events,
            sent: Rc::new((Sent::new(), 0)),
        }
    }

    /// Returns the team after both others elected robot 0.
    fn led(&self) -> State {
        let mut state = State {
            events: u8::MAX,
            ..self.cold()
        };
        let awake = (0..3).map(|robot| 500u64.div_ceil(self.rates[robot])).max().unwrap();
        for (tick, turn) in (0..=awake + 2).flat_map(|tick| [0, 1, 2].map(|turn| (tick, turn))) {
            (state.tick, state.turn) = (tick, turn);
            let sent = Rc::clone(&state.sent);
            for (_, _, from, message) in sent.0.iter().filter(|(at, to, ..)| *to == turn && at + 1 == tick) {
                let step = |r: &mut Coordinator, now| r.on_message(RobotId(*from as u16), *message, now);
                state = self.after(&state, step).unwrap_or(state.clone());
            }
            if (tick, turn) == (awake, 0) {
                state = self.after(&state, |r, now| r.on_deadline(now)).unwrap();
            }
        }
        let (turn, events) = (0, self.events);
        assert!(state.robots[0].0.is_leading(self.clock(0, state.tick)));
        State { turn, events, ..state }
    }

    fn explore(&self, start: State) -> Found {
        let ticks = start.tick + self.ticks;
        Bounds { ticks, ..self.clone() }.search(start)
    }

    fn search(&self, start: State) -> Found {
        let (mut seen, mut stack, mut found) = (HashSet::new(), vec![start], Found::default());
        while let Some(state) = stack.pop() {
            found.states += 1;
            self.look(&state, &mut found);
            if found.states >= self.states_max {
                found.cut_short = true;
                break;
            }
            self.successors(&state, |next| {
                let parts = (
                    next.tick,
                    next.turn,
                    next.restarts,
                    next.events,
                    next.incarnations,
                    next.sent.1,
                );
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
    }
}

fn hash(what: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    hasher.finish()
}

/// Rates within a tenth of true time: a slow leader with fast voters, and the other way round.
const RATES: [[u64; 3]; 3] = [[100, 100, 100], [91, 110, 110], [110, 91, 91]];

fn drifting(rates: [u64; 3], bounds: Bounds) -> Bounds {
    let mut bounds = Bounds { rates, ..bounds };
    bounds.config.drift_ppm = if rates == [100; 3] { 0 } else { 100_000 };
    bounds
}

#[test]
fn two_never_lead_whatever_happens() {
    for rates in RATES {
        let bounds = drifting(rates, Bounds::team());
        let found = bounds.explore(bounds.led());
        assert!(found.leaders_max == 1 && !found.cut_short, "{found:?}");
        assert!(found.successions > 0, "{found:?}");
    }
}

#[test]
fn the_search_finds_two_leaders_where_clocks_drift_by_more_than_is_allowed() {
    let rates = [60, 100, 250];
    let bounds = Bounds {
        rates,
        events: 3,
        ..Bounds::team()
    };
    let found = bounds.explore(bounds.led());
    assert_eq!(found.leaders_max, 2, "{found:?}");
}

/// `cargo test --release -p coorp-core search -- --ignored --nocapture`
#[test]
#[ignore = "takes minutes"]
fn the_deep_search_finds_nothing() {
    let deep = Bounds {
        ticks: 8,
        events: 4,
        states_max: 40_000_000,
        ..Bounds::team()
    };
    let led = |rates, restarts| {
        let bounds = drifting(
            rates,
            Bounds {
                restarts,
                ..deep.clone()
            },
        );
        (bounds.led(), bounds)
    };
    let cold = Bounds {
        ticks: 10,
        ..deep.clone()
    };
    let mut searches = vec![("from the start", (cold.cold(), cold))];
    searches.extend(RATES.map(|rates| ("with a leader", led(rates, 0))));
    searches.extend(RATES.map(|rates| ("with a restart", led(rates, 1))));
    for (name, (start, bounds)) in searches {
        let found = bounds.explore(start);
        println!("{name}, clocks at {:?} %: {found:?}", bounds.rates);
        assert!(found.leaders_max == 1 && !found.cut_short);
    }
}
