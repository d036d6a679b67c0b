//! The MPC loop: perceptions in, inference, commands out (001, sections I and III-A).
//!
//! Every robot but the leader samples once a period, with jitter, and sends what it saw. The leader waits for all of
//! them, infers, and sends each its command. A robot does not send before it has the command for its last perception:
//! a late loop puts off the next, which then starts at once. So the reaction time, first perception made to last
//! command arrived, counts each loop's own time and not the delay it inherited.
//!
//! Losses: a robot that hears nothing for [`PATIENCE`] periods goes on with its next sample; a leader that still
//! misses somebody after that time infers without it. A loop that lost a command counts as over the bound, with the
//! patience as its reaction time. The leader's own perception is local and costs nothing.

use std::collections::VecDeque;

use coorp_core::{Duration, Instant, RobotId};
use coorp_team::{Control, Team};
use rand::SeedableRng;
use rand_distr::{Distribution, Exp1, StandardNormal};
use rand_xoshiro::Xoshiro256PlusPlus;

/// Periods after which a robot or the leader stops waiting for a message.
const PATIENCE: u64 = 3;
/// Loops whose commands are under way at most; PATIENCE keeps it far below.
const ROUNDS_MAX: usize = 64;

#[derive(Clone, Debug, Default)]
struct Worker {
    /// Samples scheduled so far; all but the last have fallen due.
    ticks: u64,
    /// Which sample its last perception was.
    sent_tick: u64,
    /// When it made the perception that it has no command for yet.
    waiting_since: Option<Instant>,
    /// A sample fell due while it waited.
    put_off: bool,
    /// When the perception that the leader has of it, and has not used, was made.
    fresh: Option<Instant>,
    alive: bool,
}

#[derive(Clone, Copy, Debug)]
struct Round {
    number: u64,
    /// The newest sample in it.
    tick: u64,
    start: Instant,
    outstanding: u16,
    lost: bool,
}

/// What the loop wants done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MpcAction {
    /// `robot` sends its perception of this sample to the leader.
    SendPerception(RobotId, u64),
    /// The leader sends `robot` the command of this round.
    SendCommand(RobotId, u64),
    /// The inference of this round, for the loop that began at `start`, takes this time; `complete` where it has all
    /// perceptions.
    Infer {
        round: u64,
        start: Instant,
        time: Duration,
        complete: bool,
    },
    /// The inference of this round has ended.
    Inferred(u64),
    /// Call [`Mpc::on_round_timeout`] with this number after this time.
    Timeout(u64, Duration),
    /// A loop has ended after this reaction time.
    LoopEnded {
        round: u64,
        start: Instant,
        reaction: Duration,
        lost: bool,
    },
}

/// The loop of one team.
#[derive(Debug)]
pub(crate) struct Mpc {
    control: Control,
    leader: RobotId,
    workers: Vec<Worker>,
    phases: Vec<Duration>,
    /// Robots but the leader that live, and how many perceptions the leader has that it has not used.
    living: u16,
    fresh: u16,
    inferring: bool,
    rounds: VecDeque<Round>,
    next_round: u64,
    sense_rng: Vec<Xoshiro256PlusPlus>,
    stack_rng: Xoshiro256PlusPlus,
    inference_rng: Xoshiro256PlusPlus,
    pub actions: VecDeque<MpcAction>,
}

impl Mpc {
    pub fn new(team: &Team, control: Control, seed: u64) -> Self {
        let phases = phases(team, &control, seed);
        let sense_seed = |robot: usize| seed ^ 0x7365_6e73_6500 ^ (robot as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Mpc {
            control,
            leader: team.leader,
            workers: vec![
                Worker {
                    alive: true,
                    ..Worker::default()
                };
                phases.len()
            ],
            sense_rng: (0..phases.len())
                .map(|i| Xoshiro256PlusPlus::seed_from_u64(sense_seed(i)))
                .collect(),
            living: phases.len() as u16 - 1,
            fresh: 0,
            phases,
            inferring: false,
            rounds: VecDeque::new(),
            next_round: 0,
            stack_rng: Xoshiro256PlusPlus::seed_from_u64(seed ^ 0x0073_7461_636b),
            inference_rng: Xoshiro256PlusPlus::seed_from_u64(seed ^ 0x696e_6665_7200),
            actions: VecDeque::new(),
        }
    }

    fn others(&self) -> impl Iterator<Item = RobotId> {
        let leader = self.leader;
        (0..self.workers.len() as u16)
            .map(RobotId)
            .filter(move |robot| *robot != leader)
    }

    /// Robots that sample, and when each first does.
    pub fn first_ticks(&mut self) -> Vec<(RobotId, Instant)> {
        let robots: Vec<RobotId> = self.others().collect();
        robots.into_iter().map(|robot| (robot, self.tick_at(robot))).collect()
    }

    /// The instant of the robot's next sample: its place on the grid, off by the sensor's jitter.
    fn tick_at(&mut self, robot: RobotId) -> Instant {
        let place = usize::from(robot.0);
        let worker = &mut self.workers[place];
        // One period of room, so that jitter never reaches before the start.
        let nominal = Instant::ZERO + self.control.period * (worker.ticks + 1) + self.phases[place];
        worker.ticks += 1;
        let normal: f64 = StandardNormal.sample(&mut self.sense_rng[place]);
        let off = Duration::from_secs_f64(normal.abs() * self.control.jitter.as_secs_f64());
        if normal < 0.0 {
            nominal - off
        } else {
            nominal + off
        }
    }

    /// A robot's sensor samples. Returns when it next does.
    pub fn on_tick(&mut self, robot: RobotId, now: Instant) -> Instant {
        let patience = self.patience();
        let worker = &mut self.workers[usize::from(robot.0)];
        if worker.alive {
            match worker.waiting_since {
                Some(since) if now.since(since) < patience => worker.put_off = true,
                _ => {
                    let tick = worker.ticks;
                    self.sense(robot, tick, now);
                }
            }
        }
        self.tick_at(robot)
    }

    fn patience(&self) -> Duration {
        self.control.period * PATIENCE
    }

    fn sense(&mut self, robot: RobotId, tick: u64, now: Instant) {
        let worker = &mut self.workers[usize::from(robot.0)];
        worker.waiting_since = Some(now);
        worker.put_off = false;
        worker.sent_tick = tick;
        self.actions.push_back(MpcAction::SendPerception(robot, tick));
    }

    /// The leader has the perception that `robot` made at `made_at`.
    pub fn on_perception(&mut self, robot: RobotId, made_at: Instant) {
        if !self.workers[usize::from(self.leader.0)].alive || !self.workers[usize::from(robot.0)].alive {
            return;
        }
        let first = self.fresh == 0;
        let known = self.workers[usize::from(robot.0)].fresh.replace(made_at).is_some();
        self.fresh += u16::from(!known);
        if first {
            self.actions
                .push_back(MpcAction::Timeout(self.next_round, self.patience()));
        }
        self.infer_if_complete();
    }

    fn infer_if_complete(&mut self) {
        if self.fresh >= self.living {
            self.infer();
        }
    }

    fn infer(&mut self) {
        if self.inferring || self.fresh == 0 {
            return;
        }
        let complete = self.fresh >= self.living;
        self.fresh = 0;
        self.inferring = true;
        let normal: f64 = StandardNormal.sample(&mut self.inference_rng);
        let seconds = self.control.inference.as_secs_f64() * (normal * self.control.inference_sigma).exp();
        let newest = self
            .workers
            .iter()
            .filter(|worker| worker.fresh.is_some())
            .map(|worker| worker.sent_tick)
            .max();
        let start = self
            .workers
            .iter_mut()
            .filter_map(|worker| worker.fresh.take())
            .min()
            .unwrap_or(Instant::ZERO);
        let outstanding = self.living;
        if self.rounds.len() == ROUNDS_MAX {
            self.rounds.pop_front();
        }
        let round = self.next_round;
        self.rounds.push_back(Round {
            number: round,
            tick: newest.unwrap_or(0),
            start,
            outstanding,
            lost: false,
        });
        self.next_round += 1;
        self.actions.push_back(MpcAction::Infer {
            round,
            start,
            time: Duration::from_secs_f64(seconds),
            complete,
        });
    }

    /// The leader has waited long enough in this round; it infers from what it has.
    pub fn on_round_timeout(&mut self, round: u64) {
        if round == self.next_round && self.workers[usize::from(self.leader.0)].alive {
            self.infer();
        }
    }

    /// The inference has ended: everybody gets a command, these robots last.
    pub fn on_inferred(&mut self, last: &[RobotId]) {
        if !std::mem::take(&mut self.inferring) || !self.workers[usize::from(self.leader.0)].alive {
            return;
        }
        let number = self.next_round - 1;
        self.actions.push_back(MpcAction::Inferred(number));
        let (last, first): (Vec<_>, Vec<_>) = self.others().partition(|robot| last.contains(robot));
        for robot in first.into_iter().chain(last) {
            if self.workers[usize::from(robot.0)].alive {
                self.actions.push_back(MpcAction::SendCommand(robot, number));
            }
        }
        self.infer_if_complete();
    }

    /// A robot has its command of a round. If a sample fell due meanwhile, the next loop starts at once, unless the
    /// others' samples of that instant were in this round: then the robot had fallen out of step and waits.
    pub fn on_command(&mut self, robot: RobotId, round: u64, now: Instant) {
        let newest = self
            .rounds
            .iter()
            .find(|other| other.number == round)
            .map_or(0, |other| other.tick);
        self.command_decided(round, false, now);
        let worker = &mut self.workers[usize::from(robot.0)];
        worker.waiting_since = None;
        let put_off = worker.ticks - 1;
        if std::mem::take(&mut worker.put_off) && worker.alive && newest < put_off {
            self.sense(robot, put_off, now);
        }
    }

    /// A command of this round will never arrive.
    pub fn on_command_lost(&mut self, round: u64, now: Instant) {
        self.command_decided(round, true, now);
    }

    fn command_decided(&mut self, round: u64, lost: bool, now: Instant) {
        let patience = self.patience();
        let Some(place) = self.rounds.iter().position(|other| other.number == round) else {
            return;
        };
        let state = &mut self.rounds[place];
        state.lost |= lost;
        state.outstanding = state.outstanding.saturating_sub(1);
        if state.outstanding == 0 {
            let Round { start, lost, .. } = *state;
            let reaction = if lost {
                patience.max(now.since(start))
            } else {
                now.since(start)
            };
            self.rounds.remove(place);
            self.actions.push_back(MpcAction::LoopEnded {
                round,
                start,
                reaction,
                lost,
            });
        }
    }

    /// Mean-one exponential draw times the stack delay: how long a message takes from its making to the host queue.
    pub fn stack_delay(&mut self) -> Duration {
        if self.control.send_jitter == Duration::ZERO {
            return Duration::ZERO;
        }
        let draw: f64 = Exp1.sample(&mut self.stack_rng);
        Duration::from_secs_f64(draw * self.control.send_jitter.as_secs_f64())
    }

    /// The phase of a robot's sensor, below the period.
    pub fn phase(&self, robot: RobotId) -> Duration {
        self.phases[usize::from(robot.0)]
    }

    /// Moves a robot's sampling grid later. Samples keep the number of the period they fall into.
    pub fn shift_phase(&mut self, robot: RobotId, by: Duration) {
        let place = usize::from(robot.0);
        let phase = (self.phases[place] + by).as_nanos();
        let period = self.control.period.as_nanos().max(1);
        self.phases[place] = Duration::from_nanos(phase % period);
        self.workers[place].ticks += phase / period;
    }

    /// Faults: a robot dies or comes back. One that comes back knows of no loop.
    pub fn set_alive(&mut self, robot: RobotId, alive: bool) {
        let worker = &mut self.workers[usize::from(robot.0)];
        let changed = worker.alive != alive;
        worker.alive = alive;
        worker.waiting_since = None;
        worker.put_off = false;
        self.fresh -= u16::from(worker.fresh.take().is_some());
        if robot == self.leader {
            self.inferring = false;
            self.rounds.clear();
            self.fresh = 0;
            self.workers.iter_mut().for_each(|worker| worker.fresh = None);
        } else if changed {
            self.living = if alive { self.living + 1 } else { self.living - 1 };
            self.infer_if_complete();
        }
    }
}

/// When each robot's sensor samples within the period: as the team file says, together, or drawn from the seed.
pub(crate) fn phases(team: &Team, control: &Control, seed: u64) -> Vec<Duration> {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed ^ 0x7068_6173_6573);
    let phase = |robot: &coorp_team::Robot| {
        let drawn = Duration::from_secs_f64(uniform(&mut rng) * control.period.as_secs_f64());
        let open = if control.synchronised_phases {
            Duration::ZERO
        } else {
            drawn
        };
        robot.phase.unwrap_or(open)
    };
    team.robots.iter().map(phase).collect()
}

/// Uniform over [0, 1).
fn uniform(rng: &mut impl rand::RngCore) -> f64 {
    (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64
}
