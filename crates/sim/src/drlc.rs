//! The DRLC: a batch is collected and disseminated, every robot trains on its partition, and parameters are exchanged
//! (Deng 2022, sections I, II-A and III-A).
//!
//! An epoch begins with `batch_loops` MPC loops, which fill the batch. The leader sends every worker its partition.
//! Each worker then repeats `rounds` times: it trains, sends its update and gets the combined model. The leader trains
//! its own partition. BSP: the model of a round goes out when all its updates have arrived. SSP: a worker gets the
//! model at once unless it is more than the staleness bound ahead of the slowest. ASP: at once. The next batch is
//! collected when all have the model of the last round.
//!
//! Left out: the content of learning. Only the bytes and the times matter here.

use std::collections::VecDeque;

use coorp_core::{Duration, RobotId};
use coorp_team::{Learning, Sync, Team};
use rand::SeedableRng;
use rand_distr::{Distribution, StandardNormal};
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::events::EventKind;

/// An action of learning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrlcAction {
    /// The leader sends this robot this many bytes: its partition, or the model.
    ToWorker(RobotId, u64),
    /// This robot sends its update, of this many bytes, to the leader.
    ToLeader(RobotId, u64),
    /// This robot trains for this long.
    Train(RobotId, Duration),
    /// A new batch is collected.
    Collect,
    /// An epoch has ended.
    EpochEnded,
    /// An event to record with its number. Nothing else to do.
    Happened(EventKind, RobotId, u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    AwaitsPartition,
    Trains,
    Uploads,
    AwaitsModel,
    Finished,
}

#[derive(Clone, Copy, Debug)]
struct Worker {
    robot: RobotId,
    stage: Stage,
    /// The number of rounds whose update the leader has.
    rounds: u32,
}

/// Learning of one team.
#[derive(Debug)]
pub struct Drlc {
    learning: Learning,
    training: Vec<Duration>,
    leader: RobotId,
    /// All robots. The leader's partition and updates do not go over the air.
    workers: Vec<Worker>,
    collected: u32,
    collecting: bool,
    /// The number of epochs that have ended.
    epochs: u64,
    rng: Xoshiro256PlusPlus,
    actions: VecDeque<DrlcAction>,
}

impl Drlc {
    /// Creates the learning of a team, which is collecting its first batch.
    pub fn new(team: &Team, learning: Learning, seed: u64) -> Self {
        let robots = (0..team.robots.len() as u16).map(RobotId);
        let workers = robots
            .map(|robot| Worker {
                robot,
                stage: Stage::Finished,
                rounds: 0,
            })
            .collect();
        Drlc {
            learning,
            training: team
                .robots
                .iter()
                .map(|robot| robot.training.unwrap_or(learning.training))
                .collect(),
            leader: team.leader,
            workers,
            collected: 0,
            collecting: true,
            epochs: 0,
            rng: Xoshiro256PlusPlus::seed_from_u64(seed ^ 0x7472_6169_6e00),
            actions: VecDeque::from([
                DrlcAction::Happened(EventKind::Collect, team.leader, 0),
                DrlcAction::Collect,
            ]),
        }
    }

    /// Returns the next action, until `None`.
    pub fn poll(&mut self) -> Option<DrlcAction> {
        self.actions.pop_front()
    }

    /// Returns the number of MPC loops that make a batch.
    pub fn batch_loops(&self) -> u32 {
        self.learning.batch_loops
    }

    /// Counts an ended MPC loop: one more item of training data, if a batch is being collected.
    pub fn on_loop(&mut self) {
        self.collected += u32::from(self.collecting);
        if self.collecting && self.collected >= self.learning.batch_loops {
            self.on_batch_full();
        }
    }

    /// Sends out the partitions of the batch, because it is full.
    pub fn on_batch_full(&mut self) {
        self.collecting = false;
        self.collected = 0;
        self.note(EventKind::BatchFull, self.leader, self.epochs);
        let partition = self.learning.item_bytes * u64::from(self.learning.batch_loops) / self.workers.len() as u64;
        for worker in &mut self.workers {
            worker.rounds = 0;
            worker.stage = Stage::AwaitsPartition;
            if worker.robot != self.leader {
                self.actions
                    .push_back(DrlcAction::ToWorker(worker.robot, partition.max(1)));
            }
        }
        self.on_arrived_at_worker(self.leader);
    }

    fn model_bytes(&self) -> u64 {
        (self.learning.parameters * u64::from(self.learning.bytes_per_parameter)).max(1)
    }

    fn note(&mut self, kind: EventKind, robot: RobotId, number: u64) {
        self.actions.push_back(DrlcAction::Happened(kind, robot, number));
    }

    /// Records an event of the round that `robot` is in.
    fn note_round(&mut self, kind: EventKind, robot: RobotId) {
        let round = u64::from(self.worker(robot).rounds);
        self.note(kind, robot, round);
    }

    fn worker(&mut self, robot: RobotId) -> &mut Worker {
        &mut self.workers[usize::from(robot.0)]
    }

    /// Handles the arrival of a partition, or of the model of a round, at its robot.
    pub fn on_arrived_at_worker(&mut self, robot: RobotId) {
        let rounds_max = self.learning.rounds;
        match self.worker(robot).rounds {
            0 => self.note(EventKind::PartitionIn, robot, self.epochs),
            rounds => self.note(EventKind::ModelIn, robot, u64::from(rounds - 1)),
        }
        let worker = self.worker(robot);
        if worker.rounds >= rounds_max {
            worker.stage = Stage::Finished;
            self.end_epoch_if_all_finished();
            return;
        }
        worker.stage = Stage::Trains;
        let normal: f64 = StandardNormal.sample(&mut self.rng);
        let spread = (normal * self.learning.training_sigma).exp();
        let time = Duration::from_secs_f64(self.training[usize::from(robot.0)].as_secs_f64() * spread);
        self.note_round(EventKind::Train, robot);
        self.actions.push_back(DrlcAction::Train(robot, time));
    }

    /// Sends a robot's update to the leader, after it has trained.
    pub fn on_trained(&mut self, robot: RobotId) {
        self.note_round(EventKind::Trained, robot);
        self.worker(robot).stage = Stage::Uploads;
        if robot == self.leader {
            self.on_arrived_at_leader(robot);
        } else {
            self.actions.push_back(DrlcAction::ToLeader(robot, self.model_bytes()));
        }
    }

    /// Handles the arrival of a robot's update at the leader.
    pub fn on_arrived_at_leader(&mut self, robot: RobotId) {
        self.note_round(EventKind::UpdateIn, robot);
        let worker = self.worker(robot);
        worker.rounds += 1;
        worker.stage = Stage::AwaitsModel;
        let slowest = self.workers.iter().map(|worker| worker.rounds).min().unwrap_or(0);
        let ahead_max = match self.learning.sync {
            Sync::Bsp => 0,
            Sync::Ssp { staleness } => staleness,
            Sync::Asp => u32::MAX,
        };
        let ready = |worker: &Worker| worker.stage == Stage::AwaitsModel && worker.rounds - slowest <= ahead_max;
        let robots: Vec<RobotId> = self
            .workers
            .iter()
            .filter(|worker| ready(worker))
            .map(|w| w.robot)
            .collect();
        for robot in robots {
            let round = u64::from(self.worker(robot).rounds - 1);
            self.note(EventKind::ModelOut, robot, round);
            if robot == self.leader {
                self.on_arrived_at_worker(robot);
            } else {
                // Marked as under way by leaving AwaitsModel: the model must not go out twice.
                self.worker(robot).stage = Stage::AwaitsPartition;
                self.actions.push_back(DrlcAction::ToWorker(robot, self.model_bytes()));
            }
        }
    }

    fn end_epoch_if_all_finished(&mut self) {
        if self.workers.iter().all(|worker| worker.stage == Stage::Finished) {
            self.collecting = true;
            self.note(EventKind::Epoch, self.leader, self.epochs);
            self.actions.push_back(DrlcAction::EpochEnded);
            self.epochs += 1;
            self.note(EventKind::Collect, self.leader, self.epochs);
            self.actions.push_back(DrlcAction::Collect);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEAM: &str = "[[robot]]\nname = \"l\"\nleader = true\n[[robot]]\nname = \"a\"\n[[robot]]\nname = \"b\"\n";

    fn drlc(sync: &str, rounds: u32) -> Drlc {
        let text = format!(
            "{TEAM}[control]\nperiod = \"33ms\"\nbound = \"33ms\"\n[learning]\nparameters = 1000\nsync = \"{sync}\"\n\
             rounds = {rounds}\nbatch_loops = 2\ntraining = \"1s\"\n"
        );
        let team = coorp_team::parse(&text, "test.toml", std::path::Path::new(".")).expect("a valid team");
        Drlc::new(&team, team.learning.expect("learning"), 1)
    }

    fn drain(drlc: &mut Drlc) -> Vec<DrlcAction> {
        let asked = |action: &DrlcAction| !matches!(action, DrlcAction::Happened(..));
        drlc.actions.drain(..).filter(asked).collect()
    }

    /// Collects a batch, and trains one robot after the other up to its first update.
    fn started(sync: &str, rounds: u32) -> Drlc {
        let mut drlc = drlc(sync, rounds);
        drlc.on_loop();
        drlc.on_loop();
        drlc.on_arrived_at_worker(RobotId(1));
        drlc.on_arrived_at_worker(RobotId(2));
        drain(&mut drlc);
        drlc
    }

    #[test]
    fn bsp_sends_the_model_when_all_updates_are_in() {
        let mut drlc = started("BSP", 1);
        for robot in [0, 1, 2] {
            drlc.on_trained(RobotId(robot));
        }
        assert_eq!(drain(&mut drlc).len(), 2, "two updates go to the leader");
        drlc.on_arrived_at_leader(RobotId(1));
        assert!(drain(&mut drlc).is_empty());
        drlc.on_arrived_at_leader(RobotId(2));
        assert_eq!(
            drain(&mut drlc),
            [1, 2].map(|robot| DrlcAction::ToWorker(RobotId(robot), 4000))
        );
        drlc.on_arrived_at_worker(RobotId(1));
        drlc.on_arrived_at_worker(RobotId(2));
        assert_eq!(drain(&mut drlc), [DrlcAction::EpochEnded, DrlcAction::Collect]);
    }

    #[test]
    fn asp_answers_each_update_at_once_and_ssp_until_the_bound() {
        let mut asp = started("ASP", 9);
        asp.on_trained(RobotId(1));
        asp.on_arrived_at_leader(RobotId(1));
        assert!(drain(&mut asp).contains(&DrlcAction::ToWorker(RobotId(1), 4000)));
        let mut drlc = Drlc {
            learning: Learning {
                sync: Sync::Ssp { staleness: 1 },
                ..asp.learning
            },
            ..started("ASP", 9)
        };
        drlc.on_trained(RobotId(1));
        drlc.on_arrived_at_leader(RobotId(1));
        assert!(
            drain(&mut drlc).contains(&DrlcAction::ToWorker(RobotId(1), 4000)),
            "one round ahead is allowed"
        );
        drlc.on_arrived_at_worker(RobotId(1));
        drlc.on_trained(RobotId(1));
        drain(&mut drlc);
        drlc.on_arrived_at_leader(RobotId(1));
        assert!(drain(&mut drlc).is_empty(), "two rounds ahead is not");
    }
}
