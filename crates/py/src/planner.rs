//! A planner for the robots of `coorp.envs.Navigation` that sees everything: the expert that `coorp.learn.imitate`
//! imitates.
//!
//! It searches over two arcs for each robot: one of the given choices for `FIRST` steps, then one of `LATER`. This is a
//! dynamic window (Fox, Burgard and Thrun, 1997) that looks on past its first command, so that a first arc counts as
//! what can still follow it. Robots plan one after another, those nearest to their goals first, and keep clear of the
//! tracks planned before theirs. Robots yet to plan are expected to keep their velocities; they will give way.
//!
//! Obstacles turn to new random points now and then, and nothing tells when. So an arc costs more the nearer it passes
//! to where an obstacle will be, even if they would not touch. Obstacles stay within the task's clearance of the walls:
//! one that reaches this border is about to turn, and is expected to be there until then.
//!
//! Lengths are metres; times are path lengths at full speed, so the same numbers fit every pace. Left out: the
//! acceleration that a real robot needs, and when obstacles will turn, which the environment knows.

use std::f64::consts::PI;

use numpy::{PyArray2, PyArrayMethods, PyReadonlyArray1, PyReadonlyArray2, PyUntypedArrayMethods};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::motion::{Obstacle, Robot, DRIVING};

/// The distance that a robot at full speed covers in a step: 0.1 s at 1.5 m/s.
const STEP_M: f64 = 0.15;
/// Steps of the first arc, steps after which the later arc goes straight on, and all steps.
const FIRST: usize = 5;
const BENDS: usize = 15;
const STEPS: usize = 25;
/// Later arcs, as shares of full speed and turn.
const LATER: [[f64; 2]; 13] = [
    [0.0, 0.0],
    [0.5, -1.0],
    [0.5, -0.5],
    [0.5, 0.0],
    [0.5, 0.5],
    [0.5, 1.0],
    [1.0, -1.0],
    [1.0, -0.67],
    [1.0, -0.33],
    [1.0, 0.0],
    [1.0, 0.33],
    [1.0, 0.67],
    [1.0, 1.0],
];
/// More arcs would not be a choice.
const CHOICES_MAX: usize = 1_000;

/// What a radian off the goal costs, besides the way to it.
const TURN_COST: f64 = 0.6;
/// What touching costs now; later it costs less, because there is time to plan again.
const HIT_COST: f64 = 60.0;
const HIT_FADE_M: f64 = 2.5;
const GUESS_FADE_M: f64 = 0.8;
/// What each metre of path beside an obstacle costs at most, how far away it costs anything, and how that fades.
const NEAR_COST: f64 = 10.0;
const NEAR_M: f64 = 0.6;
const NEAR_FADE_M: f64 = 3.0;
/// The same beside robots, which react.
const ROBOT_NEAR_COST: f64 = 1.0;
/// Gaps below these count as touching.
const OBSTACLE_MARGIN_M: f64 = 0.06;
const ROBOT_MARGIN_M: f64 = 0.05;
const WALL_MARGIN_M: f64 = 0.03;
/// The part of the goal's radius that counts, since the world checks it between steps too.
const GOAL_SHARE: f64 = 0.9;

/// The parameters of `coorp.envs.Task` used here, read from it by name.
#[derive(FromPyObject)]
struct Task {
    width_m: f64,
    height_m: f64,
    robot_radius_m: f64,
    goal_radius_m: f64,
    max_speed_mps: f64,
    max_turn_radps: f64,
    clearance_m: f64,
}

/// A place and a heading.
#[derive(Clone, Copy)]
struct Pose {
    at: [f64; 2],
    heading: f64,
}

impl Pose {
    /// Returns where `to`, given from the origin, leads from here.
    fn then(self, to: &Self, [sin, cos]: [f64; 2]) -> Self {
        Self {
            at: [
                self.at[0] + to.at[0] * cos - to.at[1] * sin,
                self.at[1] + to.at[0] * sin + to.at[1] * cos,
            ],
            heading: self.heading + to.heading,
        }
    }

    fn sin_cos(self) -> [f64; 2] {
        let (sin, cos) = self.heading.sin_cos();
        [sin, cos]
    }

    /// Returns the pose after a path of `speed` and `turn` per metre of time, for this much of it.
    fn along(self, speed: f64, turn: f64, time_m: f64) -> Self {
        let bend = turn * time_m;
        // The chord of an arc points half way through its bend.
        let chord = if bend.abs() < 1e-6 {
            1.0
        } else {
            (bend / 2.0).sin() / (bend / 2.0)
        };
        let (sin, cos) = (self.heading + bend / 2.0).sin_cos();
        let way = speed * time_m * chord;
        Self {
            at: [self.at[0] + way * cos, self.at[1] + way * sin],
            heading: self.heading + bend,
        }
    }
}

const ORIGIN: Pose = Pose {
    at: [0.0, 0.0],
    heading: 0.0,
};

/// Something to keep clear of.
#[derive(Clone, Copy)]
struct Body {
    at: [f64; 2],
    reach_m: f64,
    margin_m: f64,
    hit_cost: f64,
    near_cost: f64,
}

/// What can matter in each step, and the costs that fade.
struct Surroundings {
    bodies: Vec<Vec<Body>>,
    wall_cost: [f64; STEPS],
}

type Track = [[f64; 2]; STEPS];

/// Searches with one task's limits.
#[pyclass(frozen, module = "coorp._native")]
pub struct Planner {
    task: Task,
    /// Full turn per metre of path at full speed.
    turn: f64,
    first: Vec<[Pose; FIRST]>,
    later: Vec<[Pose; STEPS - FIRST]>,
}

#[pymethods]
impl Planner {
    #[new]
    fn new(task: Task, choices: PyReadonlyArray2<'_, f64>) -> PyResult<Self> {
        let turn = task.max_turn_radps / task.max_speed_mps;
        let count = choices.shape()[0];
        if choices.shape()[1] != 2 || !(1..=CHOICES_MAX).contains(&count) {
            let problem = format!("choices must be (k, 2), with 1 to {CHOICES_MAX} arcs");
            return Err(PyValueError::new_err(problem));
        }
        let first = choices
            .as_slice()?
            .chunks_exact(2)
            .map(|arc| std::array::from_fn(|step| ORIGIN.along(arc[0], arc[1] * turn, (step + 1) as f64 * STEP_M)))
            .collect();
        let later = LATER
            .iter()
            .map(|&[speed, share]| {
                std::array::from_fn(|step| {
                    let (bent, straight) = ((step + 1).min(BENDS - FIRST), (step + 1).saturating_sub(BENDS - FIRST));
                    ORIGIN
                        .along(speed, share * turn, bent as f64 * STEP_M)
                        .along(speed, 0.0, straight as f64 * STEP_M)
                })
            })
            .collect();
        Ok(Self {
            task,
            turn,
            first,
            later,
        })
    }

    /// Returns the cost of each choice for each robot, (n, k), if it begins after `lead_s` at the present velocities;
    /// zeros for a robot that does not drive.
    fn plan<'py>(
        &self,
        py: Python<'py>,
        robots: PyReadonlyArray2<'py, f64>,
        status: PyReadonlyArray1<'py, u8>,
        obstacles: PyReadonlyArray2<'py, f64>,
        lead_s: f64,
    ) -> PyResult<Bound<'py, PyArray2<f64>>> {
        let count = robots.shape()[0];
        if robots.shape()[1] != Robot::COLUMNS || obstacles.shape()[1] != Obstacle::COLUMNS || status.len() != count {
            return Err(PyValueError::new_err(
                "robots must be (n, 10), status (n,) and obstacles (m, 5)",
            ));
        }
        let robots: Vec<_> = robots
            .as_slice()?
            .chunks_exact(Robot::COLUMNS)
            .map(Robot::read)
            .collect();
        let obstacles: Vec<_> = obstacles
            .as_slice()?
            .chunks_exact(Obstacle::COLUMNS)
            .map(Obstacle::read)
            .collect();
        let costs = PyArray2::<f64>::zeros(py, [count, self.first.len()], false);
        self.search_all(
            &robots,
            status.as_slice()?,
            &obstacles,
            lead_s * self.task.max_speed_mps,
            costs.readwrite().as_slice_mut()?,
        );
        Ok(costs)
    }
}

impl Planner {
    fn search_all(&self, robots: &[Robot], status: &[u8], obstacles: &[Obstacle], lead_m: f64, costs: &mut [f64]) {
        let full = self.task.max_speed_mps;
        let poses: Vec<Pose> = robots
            .iter()
            .map(|it| {
                let pose = Pose {
                    at: it.position,
                    heading: it.heading,
                };
                pose.along(it.speed / full, it.turn / full, lead_m)
            })
            .collect();
        let mut tracks: Vec<Track> = robots
            .iter()
            .zip(&poses)
            .map(|(it, pose)| {
                std::array::from_fn(|step| {
                    let time_m = (step + 1) as f64 * STEP_M;
                    let bent = time_m.min(FIRST as f64 * STEP_M);
                    pose.along(it.speed / full, it.turn / full, bent)
                        .along(it.speed / full, 0.0, time_m - bent)
                        .at
                })
            })
            .collect();
        let expected: Vec<(Track, f64)> = obstacles
            .iter()
            .map(|it| {
                let track = std::array::from_fn(|step| self.expected(it, lead_m + (step + 1) as f64 * STEP_M));
                (track, it.radius + self.task.robot_radius_m)
            })
            .collect();
        let mut order: Vec<usize> = (0..robots.len()).filter(|&i| status[i] == DRIVING).collect();
        order.sort_by(|&a, &b| distance(poses[a].at, robots[a].goal).total_cmp(&distance(poses[b].at, robots[b].goal)));
        for (place, &i) in order.iter().enumerate() {
            let others: Vec<(Track, bool)> = order
                .iter()
                .enumerate()
                .filter(|(_, &j)| j != i)
                .map(|(at, &j)| (tracks[j], at < place))
                .collect();
            let surroundings = self.surroundings(poses[i].at, &expected, &others);
            let into = &mut costs[i * self.first.len()..(i + 1) * self.first.len()];
            tracks[i] = self.search(poses[i], robots[i].goal, &surroundings, into);
        }
    }

    /// Returns where an obstacle is expected after `time_m`: straight ahead, but not beyond the border at which it
    /// turns.
    fn expected(&self, it: &Obstacle, time_m: f64) -> [f64; 2] {
        let border = self.task.clearance_m;
        let mut time_s = time_m / self.task.max_speed_mps;
        for (axis, size) in [self.task.width_m, self.task.height_m].into_iter().enumerate() {
            let (at, speed) = (it.position[axis], it.velocity[axis]);
            let edge = if speed > 0.0 { size - border } else { border };
            if speed != 0.0 {
                time_s = time_s.min(((edge - at) / speed).max(0.0));
            }
        }
        [
            it.position[0] + it.velocity[0] * time_s,
            it.position[1] + it.velocity[1] * time_s,
        ]
    }

    fn surroundings(&self, from: [f64; 2], obstacles: &[(Track, f64)], robots: &[(Track, bool)]) -> Surroundings {
        let robot_reach_m = 2.0 * self.task.robot_radius_m;
        let bodies = (0..STEPS)
            .map(|step| {
                let time_m = (step + 1) as f64 * STEP_M;
                let hit = HIT_COST * (-time_m / HIT_FADE_M).exp();
                let guess = HIT_COST * (-time_m / GUESS_FADE_M).exp();
                let fade = STEP_M * (-time_m / NEAR_FADE_M).exp();
                let obstacles = obstacles.iter().map(|(track, reach_m)| Body {
                    at: track[step],
                    reach_m: *reach_m,
                    margin_m: OBSTACLE_MARGIN_M,
                    hit_cost: hit,
                    near_cost: NEAR_COST * fade,
                });
                let robots = robots.iter().map(|(track, planned)| Body {
                    at: track[step],
                    reach_m: robot_reach_m,
                    margin_m: ROBOT_MARGIN_M,
                    hit_cost: if *planned { hit } else { guess },
                    near_cost: ROBOT_NEAR_COST * fade,
                });
                obstacles
                    .chain(robots)
                    .filter(|it| distance(it.at, from) - time_m < it.reach_m + NEAR_M)
                    .collect()
            })
            .collect();
        Surroundings {
            bodies,
            wall_cost: std::array::from_fn(|step| HIT_COST * (-((step + 1) as f64) * STEP_M / HIT_FADE_M).exp()),
        }
    }

    /// Writes the cost of each choice for a robot, and returns the cheapest one's track.
    fn search(&self, start: Pose, goal: [f64; 2], around: &Surroundings, costs: &mut [f64]) -> Track {
        let mut best = f64::INFINITY;
        let mut best_track = [start.at; STEPS];
        let turned = start.sin_cos();
        for (arc, into) in self.first.iter().zip(costs) {
            *into = f64::INFINITY;
            let mut track = [start.at; STEPS];
            let mut spent = Spent::default();
            for (step, local) in arc.iter().enumerate() {
                let pose = start.then(local, turned);
                track[step] = pose.at;
                self.spend(&mut spent, step, pose, goal, around);
                if spent.over {
                    track[step..].fill(pose.at);
                    break;
                }
            }
            let middle = start.then(&arc[FIRST - 1], turned);
            let turned = middle.sin_cos();
            for later in &self.later {
                let mut whole = spent;
                let mut track = track;
                let mut last = middle;
                for (step, local) in (FIRST..STEPS).zip(later) {
                    if whole.over || whole.cost >= *into {
                        break;
                    }
                    last = middle.then(local, turned);
                    track[step] = last.at;
                    self.spend(&mut whole, step, last, goal, around);
                }
                let cost = if whole.over {
                    whole.cost
                } else {
                    whole.cost + STEPS as f64 * STEP_M + self.to_go(last, goal)
                };
                *into = into.min(cost);
                if cost < best {
                    best = cost;
                    best_track = track;
                }
                if spent.over {
                    break;
                }
            }
        }
        best_track
    }

    /// Adds the cost of a step that ends at `pose`.
    fn spend(&self, spent: &mut Spent, step: usize, pose: Pose, goal: [f64; 2], around: &Surroundings) {
        let time_m = (step + 1) as f64 * STEP_M;
        let radius = self.task.robot_radius_m;
        let mut hit: f64 = 0.0;
        for it in &around.bodies[step] {
            let gap = distance(pose.at, it.at) - it.reach_m;
            if gap < it.margin_m {
                // Deeper is worse, so that there is a way out where nothing is free.
                hit = hit.max(it.hit_cost * (1.0 + 0.5 * (it.margin_m - gap)));
            } else if gap < NEAR_M {
                let share = 1.0 - gap / NEAR_M;
                spent.cost += it.near_cost * share * share;
            }
        }
        let [x, y] = pose.at;
        let wall = x.min(self.task.width_m - x).min(y).min(self.task.height_m - y) - radius;
        if wall < WALL_MARGIN_M {
            hit = hit.max(around.wall_cost[step]);
        }
        if hit > 0.0 {
            spent.cost += hit + time_m + self.to_go(pose, goal);
            spent.over = true;
        } else if distance(pose.at, goal) < GOAL_SHARE * self.task.goal_radius_m {
            spent.cost += time_m;
            spent.over = true;
        }
    }

    /// Returns the time from `pose` to the goal if nothing is in the way.
    fn to_go(&self, pose: Pose, goal: [f64; 2]) -> f64 {
        let bearing = (goal[1] - pose.at[1]).atan2(goal[0] - pose.at[0]) - pose.heading;
        let off = ((bearing + PI).rem_euclid(2.0 * PI) - PI).abs();
        (distance(pose.at, goal) - self.task.goal_radius_m).max(0.0) + TURN_COST * off / self.turn
    }
}

/// The cost of an arc so far, and whether it has hit something or arrived.
#[derive(Clone, Copy, Default)]
struct Spent {
    cost: f64,
    over: bool,
}

fn distance(a: [f64; 2], b: [f64; 2]) -> f64 {
    let (dx, dy) = (a[0] - b[0], a[1] - b[1]);
    (dx * dx + dy * dy).sqrt()
}
