//! What the driver of `coorp.learn` reads: each robot and the objects around it, as numbers that a small network can
//! use.
//!
//! The input is what the leader has: the robots' vectors with their measured obstacles (`raster`). The objects are the
//! other robots, from their own vectors; the obstacles, as measured; and the nearest point of each wall. Each is
//! described in the robot's own frame, with what follows if it and the robot keep their velocities: when they are
//! nearest, how near, and whether and when they touch. Times are path lengths at full speed and speeds are shares of
//! it, so that all paces look the same; full speed itself is one of the numbers.
//!
//! It is compiled because it is some hundred small formulas for each object: microseconds here, a millisecond in
//! PyTorch.

use numpy::{PyArray3, PyArray4, PyArrayMethods, PyReadonlyArray2, PyReadonlyArray3, PyUntypedArrayMethods};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::raster::{MEASURED, VECTOR};

const OWN: usize = 17;
const OBJECT: usize = 28;
const LIMITS: usize = 6;
const WALLS: usize = 4;
/// Distances and times beyond this are all the same.
const FAR_M: f32 = 6.0;

/// Of robots, of objects, and whether these are there.
type Inputs<'py> = (
    Bound<'py, PyArray3<f32>>,
    Bound<'py, PyArray4<f32>>,
    Bound<'py, PyArray3<f32>>,
);

/// Returns, for vectors (teams, n, 9 + 5 k) and limits (teams, 6): each robot (teams, n, 17), the objects around it
/// (teams, n, n - 1 + k + 4, 28), and which of these are there, as 0 or 1. Limits are full speed and turn, the world's
/// width and height, a robot's radius, and how near to walls obstacles come.
#[pyfunction]
pub fn surroundings<'py>(
    py: Python<'py>,
    vectors: PyReadonlyArray3<'py, f32>,
    limits: PyReadonlyArray2<'py, f32>,
) -> PyResult<Inputs<'py>> {
    let [teams, robots, numbers] = *vectors.shape() else {
        return Err(PyValueError::new_err("vectors must be (teams, n, 9 + 5 k)"));
    };
    if numbers < VECTOR
        || !(numbers - VECTOR).is_multiple_of(MEASURED)
        || robots == 0
        || limits.shape() != [teams, LIMITS]
    {
        return Err(PyValueError::new_err(
            "vectors must be (teams, n, 9 + 5 k) and limits (teams, 6)",
        ));
    }
    let count = robots - 1 + (numbers - VECTOR) / MEASURED + WALLS;
    let own = PyArray3::<f32>::zeros(py, [teams, robots, OWN], false);
    let objects = PyArray4::<f32>::zeros(py, [teams, robots, count, OBJECT], false);
    let there = PyArray3::<f32>::zeros(py, [teams, robots, count], false);
    {
        let (mut own, mut objects, mut there) = (own.readwrite(), objects.readwrite(), there.readwrite());
        let own = own.as_slice_mut()?.chunks_exact_mut(robots * OWN);
        let objects = objects.as_slice_mut()?.chunks_exact_mut(robots * count * OBJECT);
        let there = there.as_slice_mut()?.chunks_exact_mut(robots * count);
        let inputs = vectors
            .as_slice()?
            .chunks_exact(robots * numbers)
            .zip(limits.as_slice()?.chunks_exact(LIMITS));
        for (((vectors, limits), own), (objects, there)) in inputs.zip(own).zip(objects.zip(there)) {
            let limits = Limits::read(limits);
            let team: Vec<_> = vectors
                .chunks_exact(numbers)
                .map(|row| View::read(row, &limits))
                .collect();
            let rows = own.chunks_exact_mut(OWN).zip(objects.chunks_exact_mut(count * OBJECT));
            for (i, ((own, objects), there)) in rows.zip(there.chunks_exact_mut(count)).enumerate() {
                own.copy_from_slice(&team[i].own(&limits));
                let mut slots = objects.chunks_exact_mut(OBJECT).zip(there);
                for object in around(&team, i, &limits) {
                    let Some((slot, is_there)) = slots.next() else {
                        break;
                    };
                    if let Some(object) = object {
                        object.write(team[i].speed, slot);
                        *is_there = 1.0;
                    }
                }
            }
        }
    }
    Ok((own, objects, there))
}

struct Limits {
    full: f32,
    turn: f32,
    width: f32,
    height: f32,
    radius: f32,
    border: f32,
}

impl Limits {
    fn read(row: &[f32]) -> Self {
        Self {
            full: row[0],
            turn: row[1],
            width: row[2],
            height: row[3],
            radius: row[4],
            border: row[5],
        }
    }
}

/// A robot's vector.
struct View<'a> {
    at: [f32; 2],
    /// Cosine and sine of the heading.
    facing: [f32; 2],
    speed: f32,
    turn: f32,
    goal_m: f32,
    /// Cosine and sine of the goal's bearing.
    bearing: [f32; 2],
    measured: &'a [f32],
}

impl<'a> View<'a> {
    fn read(row: &'a [f32], limits: &Limits) -> Self {
        let (own, measured) = row.split_at(VECTOR);
        Self {
            at: [own[0], own[1]],
            facing: [own[2], own[3]],
            speed: own[4] / limits.full,
            turn: own[5] / limits.turn,
            goal_m: own[6],
            bearing: [own[7], own[8]],
            measured,
        }
    }

    fn own(&self, limits: &Limits) -> [f32; OWN] {
        let (near, [cos, sin]) = (self.goal_m.min(1.0), self.bearing);
        [
            self.speed,
            self.turn,
            cos,
            sin,
            cos * near,
            sin * near,
            self.goal_m / FAR_M,
            near,
            (-4.0 * self.goal_m).exp(),
            self.goal_m * cos / FAR_M,
            self.goal_m * sin / FAR_M,
            self.at[0] / limits.width - 0.5,
            self.at[1] / limits.height - 0.5,
            self.facing[0],
            self.facing[1],
            limits.full / 4.5,
            self.goal_m * sin / (self.goal_m + 0.1),
        ]
    }

    /// Returns how far a direction of the world leads ahead and to the left.
    fn turned(&self, [x, y]: [f32; 2]) -> [f32; 2] {
        let [cos, sin] = self.facing;
        [x * cos + y * sin, y * cos - x * sin]
    }

    /// Returns the direction of the world that leads so far ahead and to the left.
    fn returned(&self, [ahead, left]: [f32; 2]) -> [f32; 2] {
        let [cos, sin] = self.facing;
        [ahead * cos - left * sin, ahead * sin + left * cos]
    }
}

/// An object in a robot's frame: ahead, and to the left.
#[derive(Default)]
struct Object {
    at: [f32; 2],
    velocity: [f32; 2],
    reach: f32,
    /// Of a robot: its heading, turn and goal, and how much farther it is from its goal than the one who sees it.
    facing: [f32; 2],
    turn: f32,
    goal: [f32; 2],
    farther: f32,
    /// How long it can go straight on.
    straight: f32,
    /// Robot, obstacle or wall.
    kind: usize,
}

/// Returns everything around robot `i`, in a fixed order; `None` for obstacles that are not there.
fn around<'a>(team: &'a [View<'a>], i: usize, limits: &'a Limits) -> impl Iterator<Item = Option<Object>> + 'a {
    let me = &team[i];
    let robots = team
        .iter()
        .enumerate()
        .filter(move |(j, _)| *j != i)
        .map(move |(_, it)| {
            let at = me.turned([it.at[0] - me.at[0], it.at[1] - me.at[1]]);
            let facing = me.turned(it.facing);
            let to_goal = me.turned(it.returned([it.goal_m * it.bearing[0], it.goal_m * it.bearing[1]]));
            Some(Object {
                at,
                velocity: [it.speed * facing[0], it.speed * facing[1]],
                reach: 2.0 * limits.radius,
                facing,
                turn: it.turn,
                goal: [at[0] + to_goal[0], at[1] + to_goal[1]],
                farther: (it.goal_m - me.goal_m).clamp(-2.0, 2.0),
                straight: FAR_M,
                kind: 0,
            })
        });
    let obstacles = me.measured.chunks_exact(MEASURED).map(move |row| {
        let (at, velocity) = ([row[0], row[1]], [row[2] / limits.full, row[3] / limits.full]);
        (row[4] > 0.0).then(|| Object {
            at,
            velocity,
            reach: row[4] + limits.radius,
            straight: straight(me, at, velocity, limits),
            kind: 1,
            ..Object::default()
        })
    });
    let [x, y] = me.at;
    let walls = [[-x, 0.0], [limits.width - x, 0.0], [0.0, -y], [0.0, limits.height - y]]
        .into_iter()
        .map(move |to| {
            Some(Object {
                at: me.turned(to),
                reach: limits.radius,
                straight: FAR_M,
                kind: 2,
                ..Object::default()
            })
        });
    robots.chain(obstacles).chain(walls)
}

/// Returns how long an obstacle can go on before it comes too near to a wall.
fn straight(me: &View<'_>, at: [f32; 2], velocity: [f32; 2], limits: &Limits) -> f32 {
    let (offset, velocity) = (me.returned(at), me.returned(velocity));
    let size = [limits.width, limits.height];
    (0..2)
        .map(|axis| {
            let at = me.at[axis] + offset[axis];
            let room = if velocity[axis] > 0.0 {
                size[axis] - limits.border - at
            } else {
                at - limits.border
            };
            room / (velocity[axis].abs() + 1e-3)
        })
        .fold(FAR_M, f32::min)
        .max(0.0)
}

impl Object {
    fn write(&self, speed: f32, into: &mut [f32]) {
        let [ahead, left] = self.at;
        let [vx, vy] = [self.velocity[0] - speed, self.velocity[1]];
        let away = ahead.hypot(left).max(1e-3);
        let gap = (away - self.reach).max(0.0);
        let speed2 = vx * vx + vy * vy + 1e-3;
        let nearest = (-(ahead * vx + left * vy) / speed2).clamp(0.0, FAR_M);
        let miss2 = (ahead + vx * nearest).powi(2) + (left + vy * nearest).powi(2);
        let miss = miss2.sqrt() - self.reach;
        let touch = (nearest - ((self.reach * self.reach - miss2).max(0.0) / speed2).sqrt()).max(0.0);
        let hits = if miss < 0.0 { (-touch).exp() } else { 0.0 };
        let mut kind = [0.0; 3];
        kind[self.kind] = 1.0;
        into.copy_from_slice(&[
            ahead / 2.0,
            left / 2.0,
            self.velocity[0],
            self.velocity[1],
            self.reach,
            self.facing[0],
            self.facing[1],
            self.turn,
            self.goal[0] / FAR_M,
            self.goal[1] / FAR_M,
            self.farther,
            self.straight / FAR_M,
            kind[0],
            kind[1],
            kind[2],
            ahead / away,
            left / away,
            away / FAR_M,
            (-gap / 0.3).exp(),
            (-gap).exp(),
            nearest / FAR_M,
            (-miss.max(0.0) / 0.3).exp() * (-nearest / 2.0).exp(),
            hits,
            hits.powi(3),
            miss.clamp(-0.5, 2.0),
            // How it comes nearer, and how it passes.
            (vx * ahead + vy * left) / away,
            (vx * left - vy * ahead) / away,
            (-self.straight).exp(),
        ]);
    }
}
