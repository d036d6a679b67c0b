//! The leader's end of the MPC loop: decides which robots it waits for, when it infers, and which robots it commands.

use std::collections::VecDeque;

use coorp_core::{Duration, Instant, RobotId};
use coorp_team::{Control, Team};
use rand::SeedableRng;
use rand_distr::{Distribution, StandardNormal};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::{Command, Perception};

/// An action of the leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaderAction {
    /// Call [`Leader::on_deadline`] at this time. A later `Wait` replaces this one.
    Wait(Instant),
    /// Infer, then call [`Leader::on_inferred`].
    Infer {
        /// Zero-based number of the loop.
        round: u64,
        /// When the oldest perception of the loop was made.
        start: Instant,
        /// The duration of the inference.
        time: Duration,
    },
    /// The inference of this round has ended. Nothing to do.
    Inferred(u64),
    /// Send `robot` its command.
    SendCommand(RobotId, Command),
}

/// A worker, as the leader sees it.
#[derive(Clone, Copy, Debug)]
struct Seen {
    alive: bool,
    /// The worker's perception that is not in any inference yet.
    fresh: Option<Perception>,
}

/// The robot that infers and commands.
///
/// Pass it what arrives, and after each call carry out the actions of [`Leader::poll`]. A call adds at most one command
/// per robot.
#[derive(Debug)]
pub struct Leader {
    control: Control,
    robot: RobotId,
    alive: bool,
    /// The workers by robot. The leader's own entry is never alive.
    workers: Vec<Seen>,
    /// When the leader will have waited long enough for missing robots.
    deadline: Option<Instant>,
    /// Whether the leader has waited long enough.
    overdue: bool,
    /// The command of the running inference.
    inferring: Option<Command>,
    next_round: u64,
    /// The newest sample in the last inference.
    newest: u64,
    rng: Xoshiro256PlusPlus,
    actions: VecDeque<LeaderAction>,
}

impl Leader {
    /// Creates the leader of a team.
    pub fn new(team: &Team, control: Control, seed: u64) -> Self {
        let seen = |robot: usize| Seen {
            alive: robot != usize::from(team.leader.0),
            fresh: None,
        };
        Leader {
            control,
            robot: team.leader,
            alive: true,
            workers: (0..team.robots.len()).map(seen).collect(),
            deadline: None,
            overdue: false,
            inferring: None,
            next_round: 0,
            newest: 0,
            rng: Xoshiro256PlusPlus::seed_from_u64(seed ^ 0x696e_6665_7200),
            actions: VecDeque::new(),
        }
    }

    /// Returns the leader's robot.
    pub fn robot(&self) -> RobotId {
        self.robot
    }

    /// Returns the number of robots that the leader waits for and commands.
    pub fn living(&self) -> u16 {
        self.workers.iter().map(|seen| u16::from(seen.alive)).sum()
    }

    /// Infers from the perceptions at hand, if the leader has waited long enough by now.
    pub fn on_deadline(&mut self, now: Instant) {
        if self.deadline.is_some_and(|deadline| deadline <= now) {
            self.deadline = None;
            self.overdue = true;
            self.infer_if_due();
        }
    }

    /// Handles a perception of `robot`. Ignores perceptions of unknown or dead robots, and all while the leader is
    /// dead.
    pub fn on_perception(&mut self, robot: RobotId, perception: Perception, now: Instant) {
        if self.control.overlap && perception.sample <= self.newest {
            // The sample belongs to a loop that has begun.
            return;
        }
        let waits = self.overdue || self.deadline.is_some();
        let seen = self.workers.get_mut(usize::from(robot.0));
        let Some(seen) = seen.filter(|seen| self.alive && seen.alive) else {
            return;
        };
        seen.fresh = Some(perception);
        if !waits {
            let deadline = now + super::patience(&self.control);
            self.deadline = Some(deadline);
            self.actions.push_back(LeaderAction::Wait(deadline));
        }
        self.infer_if_due();
    }

    fn infer_if_due(&mut self) {
        let fresh = self.workers.iter().filter_map(|seen| seen.fresh);
        let (count, newest) = fresh.clone().fold((0, 0), |(count, newest), perception| {
            (count + 1, newest.max(perception.sample))
        });
        let complete = count >= self.living();
        let Some(start) = fresh.map(|perception| perception.made_at).min() else {
            return;
        };
        if self.inferring.is_some() || !(complete || self.overdue) {
            return;
        }
        let round = self.next_round;
        self.next_round += 1;
        self.forget_perceptions();
        self.inferring = Some(Command { round, newest });
        self.newest = newest;
        let normal: f64 = StandardNormal.sample(&mut self.rng);
        let seconds = self.control.inference.as_secs_f64() * (normal * self.control.inference_sigma).exp();
        self.actions.push_back(LeaderAction::Infer {
            round,
            start,
            time: Duration::from_secs_f64(seconds),
        });
    }

    fn forget_perceptions(&mut self) {
        self.workers.iter_mut().for_each(|seen| seen.fresh = None);
        (self.deadline, self.overdue) = (None, false);
    }

    /// Ends the inference. Every robot gets a command.
    pub fn on_inferred(&mut self) {
        let Some(command) = self.inferring.take() else {
            return;
        };
        self.actions.push_back(LeaderAction::Inferred(command.round));
        let robots = (0..).map(RobotId).zip(&self.workers);
        let living = robots.filter(|(_, seen)| seen.alive).map(|(robot, _)| robot);
        self.actions
            .extend(living.map(|robot| LeaderAction::SendCommand(robot, command)));
        self.infer_if_due();
    }

    /// Returns the next action, until `None`.
    pub fn poll(&mut self) -> Option<LeaderAction> {
        self.actions.pop_front()
    }

    /// Lets a robot die or come back. The leader itself comes back without knowledge of any loop, but continues to
    /// count rounds.
    pub fn set_alive(&mut self, robot: RobotId, alive: bool) {
        if robot == self.robot {
            self.alive = alive;
            self.inferring = None;
            self.forget_perceptions();
        } else if let Some(seen) = self.workers.get_mut(usize::from(robot.0)) {
            *seen = Seen { alive, fresh: None };
            if self.workers.iter().all(|seen| seen.fresh.is_none()) {
                self.forget_perceptions();
            }
            self.infer_if_due();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn leader() -> Leader {
        let text = "robot = [{ name = 'a' }, { name = 'l', leader = true }, { name = 'b' }, { name = 'c' }]\n\
                    [control]\nperiod = '30ms'\nbound = '30ms'\ninference = '8ms'\ninference_spread = 0";
        let team = coorp_team::parse(text, "test.toml", std::path::Path::new(".")).expect("a valid team");
        Leader::new(&team, team.control.expect("a control loop"), 1)
    }

    fn at(ms: u64) -> Instant {
        Instant::ZERO + MS * ms
    }

    /// Passes the leader perceptions of these robots' samples, each made a millisecond before it arrives.
    fn hear(leader: &mut Leader, of: &[(u16, u64, u64)]) {
        for (robot, sample, ms) in of {
            let perception = Perception {
                sample: *sample,
                made_at: at(ms - 1),
            };
            leader.on_perception(RobotId(*robot), perception, at(*ms));
        }
    }

    fn drain(leader: &mut Leader) -> Vec<LeaderAction> {
        let asked = |action: &LeaderAction| !matches!(action, LeaderAction::Wait(_));
        leader.actions.drain(..).filter(asked).collect()
    }

    fn infer(round: u64, start: Instant) -> LeaderAction {
        LeaderAction::Infer {
            round,
            start,
            time: MS * 8,
        }
    }

    fn commands(leader: &mut Leader) -> Vec<(u16, u64, u64)> {
        let sent = |action| match action {
            LeaderAction::SendCommand(robot, Command { round, newest }) => Some((robot.0, round, newest)),
            _ => None,
        };
        drain(leader).into_iter().filter_map(sent).collect()
    }

    #[test]
    fn it_infers_when_all_perceptions_are_in_and_commands_everybody() {
        let mut leader = leader();
        hear(&mut leader, &[(0, 1, 31), (2, 1, 32)]);
        let asked: Vec<_> = std::iter::from_fn(|| leader.poll()).collect();
        assert_eq!(asked, [LeaderAction::Wait(at(31 + 90))]);
        hear(&mut leader, &[(3, 2, 33)]);
        assert_eq!(drain(&mut leader), [infer(0, at(30))]);
        assert_eq!(leader.deadline, None);
        leader.on_inferred();
        assert_eq!(commands(&mut leader), [(0, 0, 2), (2, 0, 2), (3, 0, 2)]);
    }

    #[test]
    fn it_infers_without_those_that_it_has_waited_for_long_enough() {
        let mut leader = leader();
        hear(&mut leader, &[(0, 1, 31), (2, 1, 60)]);
        leader.on_deadline(at(120));
        assert_eq!(drain(&mut leader), []);
        leader.on_deadline(at(121));
        assert_eq!(drain(&mut leader), [infer(0, at(30))]);
    }

    #[test]
    fn patience_that_ends_during_an_inference_ends_the_next_wait() {
        let mut leader = leader();
        hear(&mut leader, &[(0, 1, 31), (2, 1, 31), (3, 1, 31)]);
        hear(&mut leader, &[(0, 2, 40)]);
        drain(&mut leader);
        leader.on_deadline(at(130));
        assert_eq!((drain(&mut leader), leader.deadline), (vec![], None));
        leader.on_inferred();
        assert_eq!(drain(&mut leader).last(), Some(&infer(1, at(39))));
    }

    #[test]
    fn it_waits_for_the_living_alone() {
        let mut leader = leader();
        hear(&mut leader, &[(0, 1, 31), (2, 1, 32)]);
        leader.set_alive(RobotId(3), false);
        assert_eq!(drain(&mut leader), [infer(0, at(30))]);
        leader.on_inferred();
        assert_eq!(commands(&mut leader), [(0, 0, 1), (2, 0, 1)]);
        hear(&mut leader, &[(3, 2, 40), (1, 2, 40), (9, 2, 40)]);
        assert_eq!(leader.deadline, None, "the dead, itself and strangers are not heard");
        leader.set_alive(RobotId(3), true);
        hear(&mut leader, &[(0, 2, 61), (2, 2, 62)]);
        assert_eq!(drain(&mut leader), []);
    }

    #[test]
    fn after_its_death_it_knows_of_no_loop() {
        let mut leader = leader();
        hear(&mut leader, &[(0, 1, 31), (2, 1, 31), (3, 1, 31), (0, 2, 35)]);
        drain(&mut leader);
        leader.set_alive(RobotId(1), false);
        hear(&mut leader, &[(0, 3, 36)]);
        leader.set_alive(RobotId(1), true);
        leader.on_inferred();
        assert_eq!((drain(&mut leader), leader.deadline), (vec![], None));
        hear(&mut leader, &[(0, 4, 50), (2, 4, 50), (3, 4, 50)]);
        assert_eq!(drain(&mut leader), [infer(1, at(49))]);
    }
}
