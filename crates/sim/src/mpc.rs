//! The MPC loop: perceptions in, inference, commands out (001, sections I and III-A).
//!
//! Every robot but the leader samples once a period, with jitter, and sends what it saw. The leader waits for all of
//! them, infers, and sends each its command. A robot does not send before it has the command for its last perception:
//! a late loop puts off the next, which then starts at once. So the reaction time, first perception made to last
//! command arrived, counts each loop's own time and not the delay it inherited.
//!
//! Where loops overlap (`overlap` in the team file) a robot samples by its clock alone. The leader infers once it has a
//! sample of everybody that is newer than its last loop's, from the newest of each; an older one is of a loop that has
//! begun, and dropped.
//!
//! Losses: a robot that hears nothing for [`PATIENCE`] periods goes on with its next sample; a leader that still
//! misses somebody after that time infers without it. A loop that lost a command counts as over the bound, with the
//! patience as its reaction time. The leader's own perception is local and costs nothing.
//!
//! [`Leader`] and [`Worker`] are the two ends, without clock or I/O: the simulator drives them in virtual time, the demo
//! of `coorp emu` on real sockets. Left out: the content of perceptions and commands; only bytes and times matter.

mod leader;
mod rounds;
mod worker;

use coorp_core::{Duration, Instant, RobotId};
use coorp_team::{Control, Team};
use rand::SeedableRng;
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::delay::Delay;

pub use leader::{Leader, LeaderAction};
pub(crate) use rounds::{Ended, Rounds};
pub use worker::Worker;

/// Periods after which a robot or the leader stops waiting for a message.
pub const PATIENCE: u64 = 3;

/// A worker's message to the leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Perception {
    /// Which of the worker's samples it is.
    pub sample: u64,
    /// When it was made.
    pub made_at: Instant,
}

/// The leader's message to a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    /// Zero-based number of the loop.
    pub round: u64,
    /// The newest sample that the leader inferred from.
    pub newest: u64,
}

/// The loop of one team in a run.
#[derive(Debug)]
pub(crate) struct Mpc {
    pub leader: Leader,
    /// One a robot; nobody asks the leader's own for its samples.
    pub workers: Vec<Worker>,
    pub rounds: Rounds,
    /// From a control message's making to the host queue.
    pub stack_delay: Delay,
}

impl Mpc {
    pub fn new(team: &Team, control: Control, seed: u64) -> Self {
        let robots = (0..team.robots.len() as u16).map(RobotId);
        Mpc {
            leader: Leader::new(team, control, seed),
            workers: robots
                .map(|robot| Worker::new(team, control, robot, Instant::ZERO, seed))
                .collect(),
            rounds: Rounds::new(patience(&control)),
            stack_delay: Delay::new(control.send_jitter, seed ^ 0x0073_7461_636b),
        }
    }

    pub fn worker(&mut self, robot: RobotId) -> &mut Worker {
        &mut self.workers[usize::from(robot.0)]
    }

    /// Faults: a robot dies or comes back. One that comes back knows of no loop.
    pub fn set_alive(&mut self, robot: RobotId, alive: bool) {
        self.worker(robot).set_alive(alive);
        self.leader.set_alive(robot, alive);
        if robot == self.leader.robot() {
            self.rounds.clear();
        }
    }
}

fn patience(control: &Control) -> Duration {
    control.period * PATIENCE
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
