//! A policy resolved for one robot: the parts that it has, and how much the ground lets it see.

use crate::failover::FailoverConfig;
use crate::paths::PathConfig;
use crate::permits::PermitConfig;
use crate::policy::{LocalConfig, Policy, Sight};
use crate::schedwifi::Schedule;
use crate::{Duration, RobotId};
use serde::{Deserialize, Serialize};

/// The maximum number of robots in one team.
pub const ROBOTS_MAX: u16 = 1 << 10;

/// The interval at which a robot without a driver's hook reads its sockets' send queues while they are not empty and
/// the gate is open. Packets that leave within it count as one aggregate.
pub const LOOK_OPEN: Duration = Duration::from_micros(500);
/// The same while the gate holds bulk, or a control message is on its way.
pub const LOOK_HELD: Duration = Duration::from_micros(200);

/// Where protection windows come from.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Windows {
    /// There are none, and no gate.
    None,
    /// From arrival models.
    Predicted(LocalConfig),
    /// From a precomputed plan (SchedWiFi), with the gate as its shaper.
    Scheduled(Schedule, LocalConfig),
}

/// What a robot knows about the team's control loop. Each loop begins with messages of this period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControlLoop {
    /// The time between the starts of two loops.
    pub period: Duration,
    /// The reaction bound.
    pub bound: Duration,
}

/// The configuration of one robot.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RobotConfig {
    /// This robot.
    pub me: RobotId,
    /// The number of robots in the team.
    pub robots: u16,
    /// The leader of the team file. Without permits, it is the only leader.
    pub leader: RobotId,
    /// The number of this start, which differs from all other starts of this robot ([`starts`](crate::starts)).
    pub incarnation: u32,
    /// The settings of permits; `None` if the policy has none.
    pub permits: Option<(FailoverConfig, PermitConfig)>,
    /// Where windows come from.
    pub windows: Windows,
    /// The control loop; `None` if the team has none.
    pub control: Option<ControlLoop>,
    /// Whether the leader learns which control is late, because there is a control loop or all control has bounds. Then
    /// the robot begins without windows.
    pub judged: bool,
    /// The number of paths to each robot. This robot's own entry is not read.
    pub paths_to: Vec<usize>,
    /// The number of this robot's paths, each with a gate of its own.
    pub paths: usize,
    /// Whether bulk goes to one receiver at a time.
    pub turns: bool,
    /// How control is spread over paths.
    pub path: PathConfig,
    /// How much the robot sees of its traffic.
    pub sight: Sight,
    /// Whether the robot follows the leader's clock. Stamps on control need it even without permits or shared windows.
    pub team_time: bool,
}

impl RobotConfig {
    /// Returns the configuration under `policy` of one robot of a team of `robots`, with one path to each other robot
    /// and without a plan.
    pub fn new(policy: &Policy, me: RobotId, robots: u16, leader: RobotId, incarnation: u32) -> Self {
        let failover = FailoverConfig::for_team(leader, robots);
        RobotConfig {
            me,
            robots,
            leader,
            incarnation,
            permits: policy.global.clone().map(|global| {
                let permits = failover.permits(global);
                (failover, permits)
            }),
            windows: policy.local.clone().map_or(Windows::None, Windows::Predicted),
            control: None,
            judged: false,
            paths_to: vec![1; usize::from(robots)],
            paths: 1,
            turns: policy.turns,
            path: PathConfig::default(),
            sight: policy.sight,
            team_time: policy.global.is_some() || policy.local.as_ref().is_some_and(|local| local.shared_windows),
        }
    }
}
