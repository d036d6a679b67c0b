//! The perception of a robot of `coorp.envs.Navigation`: its egocentric image, and pose and goal as numbers.
//!
//! The image is square, with the robot at its centre, facing up. Each channel shows one kind of object:
//!
//! | channel | full              | half                                | less |
//! | ------- | ----------------- | ----------------------------------- | ---- |
//! | red     | obstacles         | their positions in the last 0.17 s  | beyond the walls, at 160 |
//! | green   | the other robots  | their positions in the last 0.17 s  |      |
//! | blue    | the goal          | a ray from the robot towards it     |      |
//!
//! The afterglow models a sensor with persistence, so that a single image shows speeds. Edges are smooth over one
//! pixel, because motion within a period is less than that. Not modelled: occlusion, noise, perspective.
//! `python/tests/test_envs.py` compares it with a slow, plain formula over all pixels.

use numpy::{PyArray2, PyArray4, PyArrayMethods, PyReadonlyArray1, PyReadonlyArray2, PyUntypedArrayMethods};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::motion::{Obstacle, Robot, DRIVING};

/// Pixels per side.
const SIDE: usize = 64;
const CHANNELS: usize = 3;
const IMAGE_BYTES: usize = SIDE * SIDE * CHANNELS;
/// x, y, cos and sin of the heading, v, w; distance to the goal, cos and sin of its bearing.
pub const VECTOR: usize = 9;
/// Of each measured obstacle: its centre ahead and to the left, its velocity in the same directions, its radius.
pub const MEASURED: usize = 5;
/// More cannot be measured; the same as `coorp.envs.navigation.OBSTACLES_MAX`.
const MEASURED_MAX: usize = 256;
/// The size of a pixel: 64 pixels show 3.2 m on each side.
const PIXEL_M: f64 = 0.1;
/// The centre of the image, in pixels.
const MIDDLE: f32 = (SIDE as f32 - 1.0) / 2.0;

const RED: usize = 0;
const GREEN: usize = 1;
const BLUE: usize = 2;

const FULL: f32 = 255.0;
const HALF: f32 = 128.0;
const WALL: f32 = 160.0;
const AFTERGLOW_S: f64 = 0.17;
/// Half the width of the ray to the goal, in pixels.
const RAY: f32 = 0.75;

/// Images and vectors of all robots.
type Perceptions<'py> = (Bound<'py, PyArray4<u8>>, Bound<'py, PyArray2<f32>>);
/// A point or direction in an image: columns to the right, rows downwards, in pixels from the top left.
type Pixel = [f32; 2];

/// Returns every robot's image and vector, or those of `only` one: (n, 64, 64, 3) uint8 and (n, 9 + 5 k) float32. A
/// robot that has ended still sees, but is not seen. `radii_m` are the radii of a robot and a goal. `nearby` is the
/// number k of nearest obstacles to measure, and the distance up to which that is possible; zeros stand for missing
/// ones.
#[pyfunction]
#[pyo3(signature = (robots, status, obstacles, size_m, radii_m, nearby, only=None))]
#[expect(
    clippy::too_many_arguments,
    reason = "the arrays and numbers of one world, which Python holds"
)]
pub fn perceive<'py>(
    py: Python<'py>,
    robots: PyReadonlyArray2<'py, f64>,
    status: PyReadonlyArray1<'py, u8>,
    obstacles: PyReadonlyArray2<'py, f64>,
    size_m: [f64; 2],
    radii_m: [f64; 2],
    nearby: (usize, f64),
    only: Option<usize>,
) -> PyResult<Perceptions<'py>> {
    let count = robots.shape()[0];
    if let Some(robot) = only.filter(|robot| *robot >= count) {
        let problem = format!("there is no robot {robot}; there are {count}, numbered from 0");
        return Err(PyValueError::new_err(problem));
    }
    let seeing = only.map_or(0..count, |robot| robot..robot + 1);
    if robots.shape()[1] != Robot::COLUMNS || obstacles.shape()[1] != Obstacle::COLUMNS || status.len() != count {
        return Err(PyValueError::new_err(
            "robots must be (n, 10), status (n,) and obstacles (m, 5)",
        ));
    }
    let (measured, range_m) = nearby;
    if measured > MEASURED_MAX {
        let problem = format!("at most {MEASURED_MAX} obstacles can be measured, not {measured}");
        return Err(PyValueError::new_err(problem));
    }
    let scene = Scene {
        robots: robots
            .as_slice()?
            .chunks_exact(Robot::COLUMNS)
            .map(Robot::read)
            .collect(),
        status: status.as_slice()?,
        obstacles: obstacles
            .as_slice()?
            .chunks_exact(Obstacle::COLUMNS)
            .map(Obstacle::read)
            .collect(),
        size_m,
        robot_radius_m: radii_m[0],
        goal_radius_m: radii_m[1],
    };
    let images = PyArray4::<u8>::zeros(py, [seeing.len(), SIDE, SIDE, CHANNELS], false);
    let numbers = VECTOR + MEASURED * measured;
    let vectors = PyArray2::<f32>::zeros(py, [seeing.len(), numbers], false);
    {
        let (mut images, mut vectors) = (images.readwrite(), vectors.readwrite());
        let (images, vectors) = (images.as_slice_mut()?, vectors.as_slice_mut()?);
        let each = images
            .chunks_exact_mut(IMAGE_BYTES)
            .zip(vectors.chunks_exact_mut(numbers))
            .zip(seeing);
        for ((image, vector), i) in each {
            scene.draw(i, &mut Image(image));
            let (own, objects) = vector.split_at_mut(VECTOR);
            own.copy_from_slice(&scene.numbers(i));
            scene.measure(i, range_m, objects);
        }
    }
    Ok((images, vectors))
}

struct Scene<'a> {
    robots: Vec<Robot>,
    status: &'a [u8],
    obstacles: Vec<Obstacle>,
    size_m: [f64; 2],
    robot_radius_m: f64,
    goal_radius_m: f64,
}

impl Scene<'_> {
    fn numbers(&self, i: usize) -> [f32; VECTOR] {
        let me = &self.robots[i];
        let (sin, cos) = me.heading.sin_cos();
        let to_goal = [me.goal[0] - me.position[0], me.goal[1] - me.position[1]];
        let distance = to_goal[0].hypot(to_goal[1]);
        let bearing = to_goal[1].atan2(to_goal[0]) - me.heading;
        let numbers = [
            me.position[0],
            me.position[1],
            cos,
            sin,
            me.speed,
            me.turn,
            distance,
            bearing.cos(),
            bearing.sin(),
        ];
        numbers.map(|number| number as f32)
    }

    /// Writes the nearest obstacles, nearest first, until `into` is full.
    fn measure(&self, i: usize, range_m: f64, into: &mut [f32]) {
        if into.is_empty() {
            return;
        }
        let view = View::of(&self.robots[i]);
        let away = |it: &&Obstacle| {
            let [dx, dy] = [it.position[0] - view.position[0], it.position[1] - view.position[1]];
            dx.hypot(dy)
        };
        let mut near: Vec<_> = self.obstacles.iter().filter(|it| away(it) <= range_m).collect();
        near.sort_by(|a, b| away(a).total_cmp(&away(b)));
        for (it, row) in near.into_iter().zip(into.chunks_exact_mut(MEASURED)) {
            let [ahead, left] = view.turned([it.position[0] - view.position[0], it.position[1] - view.position[1]]);
            let [ahead_mps, left_mps] = view.turned(it.velocity);
            row.copy_from_slice(&[ahead, left, ahead_mps, left_mps, it.radius].map(|number| number as f32));
        }
    }

    fn draw(&self, i: usize, image: &mut Image<'_>) {
        let me = &self.robots[i];
        let view = View::of(me);
        view.walls(self.size_m, image);
        for it in &self.obstacles {
            view.body(it.position, it.velocity, it.radius, RED, image);
        }
        let others = self.robots.iter().zip(self.status).enumerate();
        for (_, (other, _)) in others.filter(|(j, (_, status))| *j != i && **status == DRIVING) {
            view.body(other.position, other.velocity(), self.robot_radius_m, GREEN, image);
        }
        let goal = view.pixel(me.goal);
        image.capsule([MIDDLE, MIDDLE], goal, RAY, HALF, BLUE);
        image.capsule(goal, goal, (self.goal_radius_m / PIXEL_M) as f32, FULL, BLUE);
    }
}

/// Transforms the world into the image of one robot.
struct View {
    position: [f64; 2],
    cos: f64,
    sin: f64,
}

impl View {
    fn of(robot: &Robot) -> Self {
        let (sin, cos) = robot.heading.sin_cos();
        Self {
            position: robot.position,
            cos,
            sin,
        }
    }

    fn pixel(&self, point: [f64; 2]) -> Pixel {
        let [ahead, left] = self.turned([point[0] - self.position[0], point[1] - self.position[1]]);
        [MIDDLE - (left / PIXEL_M) as f32, MIDDLE - (ahead / PIXEL_M) as f32]
    }

    /// Returns how far a direction of the world leads ahead and to the left.
    fn turned(&self, [x, y]: [f64; 2]) -> [f64; 2] {
        [x * self.cos + y * self.sin, y * self.cos - x * self.sin]
    }

    /// Draws a moving disc with its afterglow.
    fn body(&self, at: [f64; 2], velocity: [f64; 2], radius_m: f64, channel: usize, image: &mut Image<'_>) {
        let was = [at[0] - velocity[0] * AFTERGLOW_S, at[1] - velocity[1] * AFTERGLOW_S];
        let (at, was, radius) = (self.pixel(at), self.pixel(was), (radius_m / PIXEL_M) as f32);
        image.capsule(was, at, radius, HALF, channel);
        image.capsule(at, at, radius, FULL, channel);
    }

    /// Draws everything beyond a wall.
    fn walls(&self, size_m: [f64; 2], image: &mut Image<'_>) {
        // How far a pixel is beyond a wall is linear in column and row; for each wall: outward normal and offset.
        let [x, y] = self.position;
        let walls = [
            ([-1.0, 0.0], -x),
            ([1.0, 0.0], x - size_m[0]),
            ([0.0, -1.0], -y),
            ([0.0, 1.0], y - size_m[1]),
        ];
        for (normal, beyond_m) in walls {
            // A pixel further right is further along (sin, -cos) in the world, one further down along (-cos, -sin).
            let across = (normal[0] * self.sin - normal[1] * self.cos) as f32;
            let down = (-normal[0] * self.cos - normal[1] * self.sin) as f32;
            let middle = (beyond_m / PIXEL_M) as f32;
            image.half_plane(middle - (across + down) * MIDDLE, across, down);
        }
    }
}

/// The bytes of one image, row by row, three per pixel.
struct Image<'a>(&'a mut [u8]);

impl Image<'_> {
    fn raise(&mut self, row: usize, column: usize, channel: usize, value: f32) {
        let byte = &mut self.0[(row * SIDE + column) * CHANNELS + channel];
        *byte = (*byte).max((value + 0.5) as u8);
    }

    /// Draws all points within `radius` of the segment from `a` to `b`.
    fn capsule(&mut self, a: Pixel, b: Pixel, radius: f32, value: f32, channel: usize) {
        let reach = radius + 0.5;
        let Some((top, bottom)) = span(a[1], b[1], reach) else {
            return;
        };
        let along = [b[0] - a[0], b[1] - a[1]];
        let length2 = along[0] * along[0] + along[1] * along[1];
        let per_length2 = if length2 > 0.0 { 1.0 / length2 } else { 0.0 };
        for row in top..=bottom {
            let Some((left, right)) = within_reach(a, along, row as f32, reach).and_then(|(p, q)| span(p, q, reach))
            else {
                continue;
            };
            for column in left..=right {
                let from = [column as f32 - a[0], row as f32 - a[1]];
                let share = ((from[0] * along[0] + from[1] * along[1]) * per_length2).clamp(0.0, 1.0);
                let off = [from[0] - share * along[0], from[1] - share * along[1]];
                let distance2 = off[0] * off[0] + off[1] * off[1];
                if distance2 < reach * reach {
                    let cover = (reach - distance2.sqrt()).clamp(0.0, 1.0);
                    self.raise(row, column, channel, value * cover);
                }
            }
        }
    }

    /// Draws all points whose `offset + across * column + down * row`, a distance in pixels, is positive.
    fn half_plane(&mut self, offset: f32, across: f32, down: f32) {
        let last = (SIDE - 1) as f32;
        if offset + (across.max(0.0) + down.max(0.0)) * last <= -0.5 {
            return;
        }
        for row in 0..SIDE {
            let start = offset + down * row as f32;
            // The edge passes between these two columns, exclusive and in either order; the casts clamp to the image.
            let [outside, inside] = [-0.5, 0.5].map(|level: f32| ((level - start) / across).clamp(-1.0, SIDE as f32));
            let (edge, full) = if across > 0.0 {
                (
                    outside.ceil() as usize..inside.ceil() as usize,
                    inside.ceil() as usize..SIDE,
                )
            } else if across < 0.0 {
                let full = (inside + 1.0).floor() as usize;
                (full..(outside + 1.0).floor() as usize, 0..full)
            } else {
                (0..SIDE, 0..0)
            };
            for column in edge.start..edge.end.min(SIDE) {
                let cover = (start + across * column as f32 + 0.5).clamp(0.0, 1.0);
                self.raise(row, column, RED, WALL * cover);
            }
            for column in full.start..full.end.min(SIDE) {
                self.raise(row, column, RED, WALL);
            }
        }
    }
}

/// Returns the range of columns in which a line from `a` along `along` is within `reach` of `row`.
fn within_reach(a: Pixel, along: Pixel, row: f32, reach: f32) -> Option<(f32, f32)> {
    if along[1] == 0.0 {
        return ((row - a[1]).abs() <= reach).then_some((a[0], a[0] + along[0]));
    }
    let (p, q) = ((row - reach - a[1]) / along[1], (row + reach - a[1]) / along[1]);
    let (first, last) = (p.min(q).max(0.0), p.max(q).min(1.0));
    (first <= last).then_some((a[0] + first * along[0], a[0] + last * along[0]))
}

/// Returns the pixels within `reach` of the interval between `a` and `b`, along one axis.
fn span(a: f32, b: f32, reach: f32) -> Option<(usize, usize)> {
    let (low, high) = (
        (a.min(b) - reach).ceil().max(0.0),
        (a.max(b) + reach).floor().min((SIDE - 1) as f32),
    );
    (low <= high).then_some((low as usize, high as usize))
}
