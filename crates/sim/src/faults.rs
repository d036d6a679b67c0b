//! Seeded faults, for runs that try to break the decisions instead of measuring them.
//!
//! In the first two thirds of a run, robots die and restart, freeze and thaw, and their messages to each other are
//! lost, duplicated and delayed. In the last third nothing more goes wrong, and everything must recover. The rules that
//! must hold are in [`Watch`]. Left out: faults of the air itself, which has its own losses. Clocks are not set either,
//! because a robot reads a clock that is never set (decision 9).

use coorp_core::policy::Policy;
use coorp_core::{Duration, Instant, RobotId};
use coorp_team::Team;
use rand::{Rng, SeedableRng};
use rand_distr::{Distribution, Exp1};
use rand_xoshiro::Xoshiro256PlusPlus;

/// Mean time between two strikes.
const STRIKE_EVERY: Duration = Duration::from_millis(400);
/// Longest time that a robot stays dead or frozen.
const AWAY_MAX: Duration = Duration::from_millis(1_500);
/// Longest delay of a message between robots.
const DELAY_MAX: Duration = Duration::from_millis(400);
/// Longest continuous hold of a gate. Windows last milliseconds; the rest is for clocks that were set. Not for a plan
/// (`schedwifi`), which may leave no gap that a slow packet fits into. That is the plan's cost, not a defect.
const HOLD_MAX: Duration = Duration::from_millis(2_500);

/// One fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Strike {
    /// The robot stops. Its state is lost if it `dies`, and kept if it freezes.
    Down { robot: RobotId, dies: bool },
    /// The robot continues, with a new incarnation if it had died.
    Up { robot: RobotId, incarnation: Option<u32> },
    /// Nothing to do.
    None,
}

/// The faults of one run.
#[derive(Debug)]
pub(crate) struct Faults {
    rng: Xoshiro256PlusPlus,
    quiet_from: Instant,
    /// For each robot, how often it has started, and when it comes back if it is away.
    incarnations: Vec<u32>,
    away: Vec<Option<(Instant, bool)>>,
    next_strike: Instant,
}

impl Faults {
    pub fn new(robots: usize, seed: u64, duration: Duration) -> Self {
        Faults {
            rng: Xoshiro256PlusPlus::seed_from_u64(seed ^ 0x6661_756c_7473),
            quiet_from: Instant::ZERO + duration / 3 * 2,
            incarnations: vec![0; robots],
            away: vec![None; robots],
            next_strike: Instant::ZERO + STRIKE_EVERY,
        }
    }

    /// Returns when something next happens.
    pub fn next(&self) -> Option<Instant> {
        let back = self.away.iter().flatten().map(|(at, _)| *at).min();
        let strike = (self.next_strike < self.quiet_from).then_some(self.next_strike);
        [back, strike].into_iter().flatten().min()
    }

    /// Returns the fault that strikes now.
    pub fn strike(&mut self, now: Instant) -> Strike {
        let back = self.away.iter().position(|away| away.is_some_and(|(at, _)| at <= now));
        if let Some(place) = back {
            let dies = self.away[place].take().is_some_and(|(_, dies)| dies);
            self.incarnations[place] += u32::from(dies);
            let incarnation = dies.then_some(self.incarnations[place]);
            return Strike::Up {
                robot: RobotId(place as u16),
                incarnation,
            };
        }
        if now < self.next_strike || now >= self.quiet_from {
            return Strike::None;
        }
        let gap: f64 = Exp1.sample(&mut self.rng);
        self.next_strike = now + Duration::from_secs_f64(gap * STRIKE_EVERY.as_secs_f64());
        let place = self.rng.random_range(0..self.away.len());
        let robot = RobotId(place as u16);
        if self.away[place].is_some() {
            return Strike::None;
        }
        let dies = self.rng.random_range(0..2) == 0;
        let away = Duration::from_nanos(self.rng.random_range(0..AWAY_MAX.as_nanos()));
        self.away[place] = Some((now + away, dies));
        Strike::Down { robot, dies }
    }

    /// Draws the delay of each copy of a message between robots that gets through; none if it is lost.
    pub fn message(&mut self, now: Instant) -> Vec<Duration> {
        if now >= self.quiet_from {
            return vec![Duration::ZERO];
        }
        let copies = match self.rng.random_range(0..10) {
            0 | 1 => 0,
            2 => 2,
            _ => 1,
        };
        (0..copies).map(|_| self.delay()).collect()
    }

    fn delay(&mut self) -> Duration {
        if self.rng.random_range(0..4) > 0 {
            return Duration::ZERO;
        }
        Duration::from_nanos(self.rng.random_range(0..DELAY_MAX.as_nanos()))
    }
}

/// The invariants of every run, with faults or without, and the time since which each robot has been waiting.
#[derive(Debug)]
pub(crate) struct Watch {
    limit: usize,
    /// How long a living robot may wait for a permit while nothing goes wrong.
    wait_max: Duration,
    hold_max: Duration,
    /// Age on arrival beyond which a message between robots is of no use.
    lease: Duration,
    robots: Vec<Robot>,
    /// The last time that something went wrong.
    troubled_at: Instant,
}

#[derive(Clone, Copy, Debug, Default)]
struct Robot {
    waits_since: Option<Instant>,
    /// The time since which the gate has let nothing pass, and the number of packets before that.
    holds_since: Option<(Instant, u64)>,
}

/// A robot's state at an instant, for [`Watch::check`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct State {
    pub wants_bulk: bool,
    pub may_send: bool,
    /// The number of packets that the gate had let pass before the one that it holds. `None` if it holds none, or if a
    /// packet is on its way.
    pub held_after: Option<u64>,
    pub up: bool,
}

impl Watch {
    pub fn new(team: &Team, policy: &Policy) -> Self {
        let robots = team.robots.len() as u64;
        let (limit, turn, lease) = match &policy.global {
            Some(global) => (usize::from(global.limit), global.slice + global.grace, global.lease),
            None => (usize::MAX, Duration::ZERO, Duration::from_secs(1)),
        };
        Watch {
            limit,
            wait_max: turn * robots + lease * 4 + Duration::from_secs(2),
            hold_max: if policy.schedwifi.is_some() {
                Duration::MAX
            } else {
                HOLD_MAX
            },
            lease,
            robots: vec![Robot::default(); team.robots.len()],
            troubled_at: Instant::ZERO,
        }
    }

    pub fn on_trouble(&mut self, now: Instant) {
        self.troubled_at = now;
    }

    /// Records that a message between robots arrived after `latency`, or was lost. If the channel cannot carry messages
    /// in time, permits and windows can do nothing for bulk.
    pub fn on_word(&mut self, latency: Option<Duration>, now: Instant) {
        if latency.is_none_or(|latency| latency > self.lease) {
            self.on_trouble(now);
        }
    }

    /// Checks the rules. `holders` is the number of holders by the leader's records.
    ///
    /// # Errors
    /// The rule that is broken.
    pub fn check(&mut self, holders: usize, states: impl Iterator<Item = State>, now: Instant) -> Result<(), String> {
        if holders > self.limit {
            return Err(format!("never more than LIMIT holders: {holders} on record"));
        }
        let mut senders = 0;
        let (troubled_at, wait_max) = (self.troubled_at, self.wait_max);
        let hold_max = self.hold_max;
        for (place, (robot, state)) in self.robots.iter_mut().zip(states).enumerate() {
            senders += usize::from(state.may_send && state.up);
            let waits = state.up && state.wants_bulk && !state.may_send;
            robot.waits_since = robot.waits_since.or(Some(now)).filter(|_| waits);
            robot.holds_since = match (state.held_after.filter(|_| state.up), robot.holds_since) {
                (Some(passed), Some((since, before))) if passed == before => Some((since, before)),
                (held_after, _) => held_after.map(|passed| (now, passed)),
            };
            if let Some(since) = robot.waits_since {
                if now.since(since.max(troubled_at)) > wait_max {
                    return Err(format!(
                        "no starvation: robot {place} has waited since {} s",
                        since.as_secs_f64()
                    ));
                }
            }
            if let Some((since, _)) = robot.holds_since {
                if now.since(since.max(troubled_at)) > hold_max {
                    return Err(format!(
                        "the gate opens again: robot {place} has held since {} s",
                        since.as_secs_f64()
                    ));
                }
            }
        }
        if senders > self.limit {
            return Err(format!("never more than LIMIT senders: {senders}"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn a_robot_starves_only_where_words_arrive_in_time() {
        let text = "robot = [{ name = 'base', leader = true }, { name = 'a' }]";
        let team = coorp_team::parse(text, "test.toml", Path::new(".")).expect("a team");
        let policy = Policy::named("coorp").expect("a preset");
        let waits = State {
            wants_bulk: true,
            may_send: false,
            held_after: None,
            up: true,
        };
        let starves = |latency: Option<Duration>| {
            let mut watch = Watch::new(&team, &policy);
            let checked: Vec<_> = (0..120)
                .map(|second| {
                    let now = Instant::ZERO + Duration::from_secs(second);
                    watch.on_word(latency, now);
                    watch.check(0, [waits; 2].into_iter(), now)
                })
                .collect();
            checked.iter().any(Result::is_err)
        };
        assert!(starves(Some(Duration::from_millis(20))));
        assert!(!starves(Some(Duration::from_secs(5))), "late");
        assert!(!starves(None), "lost");
    }
}
