//! Faults in a run, and the rules that are checked.

use super::World;
use crate::agent::Agent;
use crate::faults::{Faults, State, Strike};
use crate::timers::Timer;
use crate::Error;
use coorp_core::RobotId;

impl World {
    pub(super) fn arm_faults(&mut self) {
        if let Some(at) = self.faults.as_ref().and_then(Faults::next) {
            self.timers.set(at.max(self.now), Timer::Fault);
        }
    }

    pub(super) fn on_fault(&mut self) {
        let Some(faults) = &mut self.faults else { return };
        let strike = faults.strike(self.now);
        self.arm_faults();
        match strike {
            Strike::Down { robot, dies } => {
                self.watch.on_trouble(self.now);
                self.agents[usize::from(robot.0)].set_up(false, self.now);
                self.set_permitted(robot, false);
                if let Some(mpc) = self.mpc.as_mut().filter(|_| dies) {
                    mpc.set_alive(robot, false);
                }
            }
            Strike::Up { robot, incarnation } => {
                self.watch.on_trouble(self.now);
                self.agents[usize::from(robot.0)].set_up(true, self.now);
                if let Some(incarnation) = incarnation {
                    self.restart(robot, incarnation);
                }
            }
            Strike::None => {}
        }
        self.run_leader();
        for robot in 0..self.agents.len() {
            let permitted = self.agents[robot].is_permitted();
            self.set_permitted(RobotId(robot as u16), permitted);
            self.run_agent(RobotId(robot as u16));
        }
    }

    /// Restarts a dead robot without any state.
    pub(super) fn restart(&mut self, robot: RobotId, incarnation: u32) {
        let place = usize::from(robot.0);
        // The same configuration was accepted when the run began.
        let restarted =
            self.agents[place].restart(&self.team, &self.policy, self.schedule.as_ref(), incarnation, self.now);
        debug_assert!(restarted.is_ok(), "{restarted:?}");
        if let Some(mpc) = &mut self.mpc {
            mpc.set_alive(robot, true);
        }
        self.agents[place].set_bulk(self.bulk_pending[place] > 0, self.now);
    }

    /// Checks the rules that must hold, in every run, whenever permits, windows or faults may have changed something.
    pub fn check(&mut self) -> Result<(), Error> {
        let now = self.now;
        let holders = self.agents.iter().map(Agent::holders).max().unwrap_or(0);
        let states = self.agents.iter().map(|agent| State {
            wants_bulk: agent.wants_bulk(),
            may_send: agent.may_send(now),
            held_after: agent.held_after(),
            up: agent.is_up(),
        });
        let broken = |rule| Error::Broken {
            rule: format!("{rule}, at {} s", now.as_secs_f64()),
        };
        self.watch.check(holders, states, now).map_err(broken)?;
        for stream in &self.streams {
            stream.check().map_err(broken)?;
        }
        Ok(())
    }
}
