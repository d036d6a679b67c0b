//! The MPC loop: perceptions in, inference, commands out (Deng 2022, sections I and III-A).
//!
//! Every robot except the leader samples once per period, with jitter, and sends its perception. The leader waits for
//! all perceptions, infers, and sends each robot its command. A robot does not send before it has the command for its
//! last perception. So a late loop puts off the next one, which then starts at once. The reaction time, from the first
//! perception made to the last command arrived, therefore counts each loop's own time, without the delay that it
//! inherited.
//!
//! If loops overlap (`overlap` in the team file), a robot samples only by its clock. The leader infers once it has a
//! sample of each robot that is newer than its last loop's, using the newest of each. An older sample belongs to a loop
//! that has begun, and is dropped.
//!
//! Losses: a robot that hears nothing for [`PATIENCE`] periods continues with its next sample. A leader that still
//! misses a robot's perception after that time infers without it. A loop that lost a command counts as over the bound,
//! with the patience as its reaction time. The leader's own perception is local and costs nothing.
//!
//! [`Leader`] and [`Worker`] are the two ends, without clock or I/O. The simulator drives them in virtual time, and the
//! demo of `coorp emu` on real sockets. Left out: the content of perceptions and commands; only bytes and times matter.

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

/// Number of periods after which a robot or the leader stops waiting for a message.
pub const PATIENCE: u64 = 3;

/// A worker's message to the leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Perception {
    /// The number of the worker's sample.
    pub sample: u64,
    /// When the perception was made.
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
    /// The workers, one per robot. The leader's own is never asked for samples.
    pub workers: Vec<Worker>,
    pub rounds: Rounds,
    /// The delay from a control message's creation to the host queue.
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

    /// Lets a robot die or come back, for faults. A robot that comes back knows no loop.
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

/// Returns when each robot's sensor samples within the period: as the team file says, together, or drawn from the seed.
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

/// Draws a number uniformly from [0, 1).
fn uniform(rng: &mut impl rand::RngCore) -> f64 {
    (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64
}
