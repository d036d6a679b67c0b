//! The motion, collisions, arrivals and rewards of the robots in `coorp.envs.Navigation`.
//!
//! Equivalent to `NumpyDynamics` in `python/coorp/envs/dynamics.py`, the reference, which documents the columns, the
//! parameters and their sources. `python/tests/test_envs.py` compares the two. It is compiled because a period of 33 ms
//! has 33 ticks of a few hundred operations each: microseconds of arithmetic, milliseconds of NumPy.

use std::f64::consts::PI;

use numpy::{PyReadwriteArray1, PyReadwriteArray2, PyUntypedArrayMethods};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// The length of a tick; all integration and all checks use this grid.
const TICK_S: f64 = 1e-3;
/// The shaped reward and near misses are sampled once in this many ticks.
const REWARD_TICKS: u64 = 10;
/// `coorp.envs.task.NEAR_MISS_S`, which has the definition.
const NEAR_MISS_S: f64 = 0.5;

/// Values of `status`; the same as `coorp.envs.Ending`.
pub const DRIVING: u8 = 0;
const ARRIVED: u8 = 1;
const HIT_ROBOT: u8 = 2;
const HIT_OBSTACLE: u8 = 3;
const HIT_WALL: u8 = 4;

/// The parameters of `coorp.envs.Task` used here, read from it by name.
#[derive(FromPyObject)]
pub struct Task {
    width_m: f64,
    height_m: f64,
    robot_radius_m: f64,
    goal_radius_m: f64,
    max_speed_mps: f64,
    region_m: f64,
    horizon_s: f64,
    wall_horizon_s: f64,
    margin_m: f64,
    risk_bonus: f64,
    risk_detour: f64,
    risk_time: f64,
    softening_s: f64,
    free_bonus: f64,
    free_detour: f64,
    shaping_step_s: f64,
}

/// A row of `robots`.
pub struct Robot {
    pub position: [f64; 2],
    pub heading: f64,
    pub speed: f64,
    pub turn: f64,
    pub goal: [f64; 2],
    reward: f64,
    near_misses: f64,
    is_near: bool,
}

/// A row of `obstacles`.
pub struct Obstacle {
    pub position: [f64; 2],
    pub velocity: [f64; 2],
    pub radius: f64,
}

impl Robot {
    pub const COLUMNS: usize = 10;

    pub fn read(row: &[f64]) -> Self {
        Self {
            position: [row[0], row[1]],
            heading: row[2],
            speed: row[3],
            turn: row[4],
            goal: [row[5], row[6]],
            reward: row[7],
            near_misses: row[8],
            is_near: row[9] != 0.0,
        }
    }

    /// Writes back only the fields that motion changes.
    fn write(&self, row: &mut [f64]) {
        row[..2].copy_from_slice(&self.position);
        row[2] = self.heading;
        row[7..].copy_from_slice(&[self.reward, self.near_misses, f64::from(u8::from(self.is_near))]);
    }

    pub fn velocity(&self) -> [f64; 2] {
        let (sin, cos) = self.heading.sin_cos();
        [self.speed * cos, self.speed * sin]
    }
}

impl Obstacle {
    pub const COLUMNS: usize = 5;

    pub fn read(row: &[f64]) -> Self {
        Self {
            position: [row[0], row[1]],
            velocity: [row[2], row[3]],
            radius: row[4],
        }
    }
}

/// `NumpyDynamics`, compiled.
#[pyclass(frozen, module = "coorp._native")]
pub struct NavigationDynamics {
    task: Task,
}

#[pymethods]
impl NavigationDynamics {
    #[new]
    fn new(task: Task) -> Self {
        Self { task }
    }

    /// Advances everything by at most `ticks`, starting at `tick`. Stops after the first tick in which a robot ended,
    /// with the reason in `status`. Returns the number of ticks done.
    fn advance(
        &self,
        mut robots: PyReadwriteArray2<'_, f64>,
        mut status: PyReadwriteArray1<'_, u8>,
        mut obstacles: PyReadwriteArray2<'_, f64>,
        tick: u64,
        ticks: u64,
    ) -> PyResult<u64> {
        let count = robots.shape()[0];
        if robots.shape()[1] != Robot::COLUMNS || obstacles.shape()[1] != Obstacle::COLUMNS || status.len() != count {
            return Err(PyValueError::new_err(
                "robots must be (n, 10), status (n,) and obstacles (m, 5)",
            ));
        }
        let robot_rows = robots.as_slice_mut()?;
        let obstacle_rows = obstacles.as_slice_mut()?;
        let mut world = World {
            task: &self.task,
            robots: robot_rows.chunks_exact(Robot::COLUMNS).map(Robot::read).collect(),
            status: status.as_slice_mut()?,
            obstacles: obstacle_rows
                .chunks_exact(Obstacle::COLUMNS)
                .map(Obstacle::read)
                .collect(),
        };
        let made = world.advance(tick, ticks);
        for (row, robot) in robot_rows.chunks_exact_mut(Robot::COLUMNS).zip(&world.robots) {
            robot.write(row);
        }
        for (row, obstacle) in obstacle_rows.chunks_exact_mut(Obstacle::COLUMNS).zip(&world.obstacles) {
            row[..2].copy_from_slice(&obstacle.position);
        }
        Ok(made)
    }
}

struct World<'a> {
    task: &'a Task,
    robots: Vec<Robot>,
    status: &'a mut [u8],
    obstacles: Vec<Obstacle>,
}

impl World<'_> {
    fn advance(&mut self, tick: u64, ticks: u64) -> u64 {
        for made in 0..ticks {
            if (tick + made).is_multiple_of(REWARD_TICKS) {
                self.sample();
            }
            self.step();
            if self.end() {
                return made + 1;
            }
        }
        ticks
    }

    /// One Euler step, in the order of operations of IR-SIM, so that the last bits agree.
    fn step(&mut self) {
        for (robot, _) in self
            .robots
            .iter_mut()
            .zip(&*self.status)
            .filter(|(_, status)| **status == DRIVING)
        {
            robot.position[0] += robot.heading.cos() * robot.speed * TICK_S;
            robot.position[1] += robot.heading.sin() * robot.speed * TICK_S;
            robot.heading = (robot.heading + robot.turn * TICK_S + PI).rem_euclid(2.0 * PI) - PI;
        }
        for obstacle in &mut self.obstacles {
            obstacle.position[0] += obstacle.velocity[0] * TICK_S;
            obstacle.position[1] += obstacle.velocity[1] * TICK_S;
        }
    }

    /// Marks robots that collided or arrived, and returns whether any did. All are judged by the state at the end of
    /// the tick, so if two robots touch, both have collided.
    fn end(&mut self) -> bool {
        let endings: Vec<u8> = (0..self.robots.len()).map(|i| self.ending(i)).collect();
        let any = endings.iter().any(|&ending| ending != DRIVING);
        if any {
            for (status, ending) in self
                .status
                .iter_mut()
                .zip(endings)
                .filter(|(_, ending)| *ending != DRIVING)
            {
                *status = ending;
            }
        }
        any
    }

    fn ending(&self, i: usize) -> u8 {
        if self.status[i] != DRIVING {
            return DRIVING;
        }
        let (me, radius) = (&self.robots[i], self.task.robot_radius_m);
        if self
            .others(i)
            .any(|other| within(me.position, other.position, 2.0 * radius))
        {
            return HIT_ROBOT;
        }
        if self
            .obstacles
            .iter()
            .any(|it| within(me.position, it.position, radius + it.radius))
        {
            return HIT_OBSTACLE;
        }
        if self.wall_gaps(i).into_iter().any(|(gap, _)| gap <= radius) {
            return HIT_WALL;
        }
        let away = [me.position[0] - me.goal[0], me.position[1] - me.goal[1]];
        if dot(away, away).sqrt() < self.task.goal_radius_m {
            return ARRIVED;
        }
        DRIVING
    }

    fn others(&self, i: usize) -> impl Iterator<Item = &Robot> {
        let driving = self.robots.iter().zip(&*self.status).enumerate();
        driving
            .filter(move |(j, (_, status))| *j != i && **status == DRIVING)
            .map(|(_, (robot, _))| robot)
    }

    /// Returns, for each wall, the distance of robot `i`'s centre and its closing speed.
    fn wall_gaps(&self, i: usize) -> [(f64, f64); 4] {
        let ([x, y], [vx, vy]) = (self.robots[i].position, self.robots[i].velocity());
        [
            (x, -vx),
            (self.task.width_m - x, vx),
            (y, -vy),
            (self.task.height_m - y, vy),
        ]
    }

    /// Adds a sample of the shaped reward to every driving robot, and counts the near misses that begin.
    fn sample(&mut self) {
        let share = REWARD_TICKS as f64 * TICK_S / self.task.shaping_step_s;
        for i in (0..self.robots.len())
            .filter(|&i| self.status[i] == DRIVING)
            .collect::<Vec<_>>()
        {
            let gained = self.shaped(i);
            let (objects_s, walls_s) = self.collision_s(i, 0.0, f64::INFINITY);
            let time_s = objects_s.min(walls_s);
            let robot = &mut self.robots[i];
            robot.reward += gained * share;
            if !robot.is_near && time_s < NEAR_MISS_S {
                robot.near_misses += 1.0;
                robot.is_near = true;
            } else if time_s >= 2.0 * NEAR_MISS_S {
                robot.is_near = false;
            }
        }
    }

    /// Returns the published shaping for one 0.1 s step, at robot `i`'s velocity.
    fn shaped(&self, i: usize) -> f64 {
        let (task, me) = (self.task, &self.robots[i]);
        let to_goal = [me.goal[0] - me.position[0], me.goal[1] - me.position[1]];
        let distance = dot(to_goal, to_goal).sqrt();
        let scale = if distance > 0.0 {
            task.max_speed_mps / distance
        } else {
            0.0
        };
        let velocity = me.velocity();
        let off = [velocity[0] - to_goal[0] * scale, velocity[1] - to_goal[1] * scale];
        let detour = dot(off, off).sqrt() / (2.0 * task.max_speed_mps);
        match self.expected_collision_s(i) {
            Some(time_s) => {
                task.risk_bonus
                    - task.risk_detour * detour
                    - task.risk_time * task.softening_s / (time_s + task.softening_s)
            }
            None => task.free_bonus - task.free_detour * detour,
        }
    }

    /// Returns the time until robot `i`'s first collision if all keep their velocities; `None` beyond the horizons.
    fn expected_collision_s(&self, i: usize) -> Option<f64> {
        let (objects_s, walls_s) = self.collision_s(i, self.task.margin_m, self.task.region_m);
        let objects_s = Some(objects_s).filter(|time_s| *time_s < self.task.horizon_s);
        let walls_s = Some(walls_s).filter(|time_s| *time_s < self.task.wall_horizon_s);
        [objects_s, walls_s].into_iter().flatten().reduce(f64::min)
    }

    /// Returns the times until robot `i`, larger by a margin, touches a robot or obstacle of a region, and a wall, if all
    /// keep their velocities; infinite if never.
    fn collision_s(&self, i: usize, margin_m: f64, region_m: f64) -> (f64, f64) {
        let (task, me) = (self.task, &self.robots[i]);
        let (velocity, reach) = (me.velocity(), task.robot_radius_m + margin_m);
        let mut objects_s = f64::INFINITY;
        let mut consider = |position: [f64; 2], other: [f64; 2], radius: f64| {
            let apart = [position[0] - me.position[0], position[1] - me.position[1]];
            if dot(apart, apart) <= region_m * region_m {
                let closing = [velocity[0] - other[0], velocity[1] - other[1]];
                objects_s = objects_s.min(time_to_touch(apart, closing, reach + radius));
            }
        };
        self.others(i)
            .for_each(|robot| consider(robot.position, robot.velocity(), task.robot_radius_m));
        self.obstacles
            .iter()
            .for_each(|it| consider(it.position, it.velocity, it.radius));
        let walls_s = self
            .wall_gaps(i)
            .into_iter()
            .filter(|(_, closing)| *closing > 0.0)
            .map(|(gap, closing)| ((gap - reach) / closing).max(0.0))
            .fold(f64::INFINITY, f64::min);
        (objects_s, walls_s)
    }
}

fn dot(a: [f64; 2], b: [f64; 2]) -> f64 {
    a[0] * b[0] + a[1] * b[1]
}

fn within(a: [f64; 2], b: [f64; 2], distance: f64) -> bool {
    let apart = [a[0] - b[0], a[1] - b[1]];
    dot(apart, apart) <= distance * distance
}

/// Returns the time until two discs touch: their centres are `apart` and approach by `closing`; `reach` is the sum of
/// their radii.
fn time_to_touch(apart: [f64; 2], closing: [f64; 2], reach: f64) -> f64 {
    let approach = dot(apart, closing);
    if approach <= 0.0 {
        return f64::INFINITY;
    }
    let free = dot(apart, apart) - reach * reach;
    if free <= 0.0 {
        return 0.0;
    }
    let speed = dot(closing, closing);
    let discriminant = approach * approach - speed * free;
    if discriminant < 0.0 {
        return f64::INFINITY;
    }
    (approach - discriminant.sqrt()) / speed
}
