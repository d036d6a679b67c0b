"""Motion, collisions and arrivals of robots and obstacles: the reference in NumPy.

An implementation works only on these three arrays:

- `robots`, (n, 10) float64: x and y in m, heading in rad, speed in m/s, turn in rad/s, the goal's x and y, the shaped
  reward so far, the near misses so far, and 1 during a near miss;
- `status`, (n,) uint8: 0 while a robot drives, then its `Ending`; ended robots neither move nor obstruct;
- `obstacles`, (m, 5) float64: x, y, vx, vy, radius.

There are three equivalent implementations. `coorp._native.NavigationDynamics` is compiled and used for learning.
`NumpyDynamics` below defines its results. `IrsimDynamics` makes IR-SIM move the robots and judge collisions and
arrivals. The tests compare all three over whole episodes.

Simplified: robots adopt a velocity at once (as by default in IR-SIM). The shaped reward assumes constant velocities, so
a reciprocal velocity obstacle equals a velocity obstacle. All shapes are discs.
"""

from typing import Protocol

import numpy as np
import numpy.typing as npt

from coorp.envs.task import DRIVING, NEAR_MISS_S, REWARD_TICKS, TICK_S, Ending, Task

Floats = npt.NDArray[np.float64]
Status = npt.NDArray[np.uint8]


class Dynamics(Protocol):
    """Moves the world."""

    def advance(self, robots: Floats, status: Status, obstacles: Floats, tick: int, ticks: int) -> int:
        """Moves everything in place by at most `ticks`, starting at `tick`. Stops after the first tick in which a robot
        ended, with its ending in `status`. Returns the number of ticks done."""
        ...


class NumpyDynamics:
    """The reference."""

    def __init__(self, task: Task) -> None:
        self._task = task

    def advance(self, robots: Floats, status: Status, obstacles: Floats, tick: int, ticks: int) -> int:
        for made in range(ticks):
            if (tick + made) % REWARD_TICKS == 0:
                sample(self._task, robots, status, obstacles)
            _step(robots, status, obstacles)
            endings = _endings(self._task, robots, status, obstacles)
            if endings.any():
                status[endings > 0] = endings[endings > 0]
                return made + 1
        return ticks


def _step(robots: Floats, status: Status, obstacles: Floats) -> None:
    """Makes one Euler step, in IR-SIM's order of operations."""
    driving = status == DRIVING
    heading, speed, turn = robots[driving, 2], robots[driving, 3], robots[driving, 4]
    robots[driving, 0] += np.cos(heading) * speed * TICK_S
    robots[driving, 1] += np.sin(heading) * speed * TICK_S
    robots[driving, 2] = (heading + turn * TICK_S + np.pi) % (2 * np.pi) - np.pi
    obstacles[:, :2] += obstacles[:, 2:4] * TICK_S


def _endings(task: Task, robots: Floats, status: Status, obstacles: Floats) -> Status:
    """Returns each robot's ending at this instant, 0 for none. All are judged by the current state."""
    driving = status == DRIVING
    xy, radius = robots[:, :2], task.robot_radius_m
    between = np.hypot(*(xy[:, None] - xy[None]).transpose(2, 0, 1))
    near = (between <= 2 * radius) & driving[None] & ~np.eye(len(xy), dtype=bool)
    apart = np.hypot(*(xy[:, None] - obstacles[None, :, :2]).transpose(2, 0, 1))
    gaps = _wall_gaps(task, xy)
    endings = np.zeros(len(xy), dtype=np.uint8)
    endings[np.hypot(*(xy - robots[:, 5:7]).T) < task.goal_radius_m] = Ending.ARRIVED
    endings[(gaps <= radius).any(axis=1)] = Ending.HIT_WALL
    endings[(apart <= radius + obstacles[:, 4]).any(axis=1)] = Ending.HIT_OBSTACLE
    endings[near.any(axis=1)] = Ending.HIT_ROBOT
    endings[~driving] = 0
    return endings


def sample(task: Task, robots: Floats, status: Status, obstacles: Floats) -> None:
    """Adds one sample of the shaped reward to every driving robot, and counts the near misses that begin."""
    _add_reward(task, robots, status, obstacles)
    _count_near_misses(task, robots, status, obstacles)


def _add_reward(task: Task, robots: Floats, status: Status, obstacles: Floats) -> None:
    """Adds a sample of the shaped reward; `Task` has the formula."""
    driving = status == DRIVING
    velocity = _velocities(robots)
    to_goal = robots[:, 5:7] - robots[:, :2]
    distance = np.hypot(*to_goal.T)
    wanted = to_goal * (task.max_speed_mps / np.where(distance > 0, distance, np.inf))[:, None]
    detour = np.hypot(*(velocity - wanted).T) / (2 * task.max_speed_mps)
    time_s = expected_collision_s(task, robots, status, obstacles)
    risk = task.risk_bonus - task.risk_detour * detour - task.risk_time * task.softening_s / (time_s + task.softening_s)
    free = task.free_bonus - task.free_detour * detour
    gained = np.where(np.isfinite(time_s), risk, free)
    robots[driving, 7] += gained[driving] * (REWARD_TICKS * TICK_S / task.shaping_step_s)


def _count_near_misses(task: Task, robots: Floats, status: Status, obstacles: Floats) -> None:
    """Begins and ends near misses; `NEAR_MISS_S` has the definition."""
    driving = status == DRIVING
    objects_s, walls_s = _collision_s(task, robots, status, obstacles, 0.0, np.inf)
    time_s = np.minimum(objects_s, walls_s)
    begins = driving & (robots[:, 9] == 0.0) & (time_s < NEAR_MISS_S)
    robots[begins, 8] += 1.0
    robots[begins, 9] = 1.0
    robots[driving & (time_s >= 2 * NEAR_MISS_S), 9] = 0.0


def expected_collision_s(task: Task, robots: Floats, status: Status, obstacles: Floats) -> Floats:
    """Returns the time to each robot's first collision if all keep their velocities; infinite beyond the horizons."""
    objects_s, walls_s = _collision_s(task, robots, status, obstacles, task.margin_m, task.region_m)
    objects_s = np.where(objects_s < task.horizon_s, objects_s, np.inf)
    return np.minimum(objects_s, np.where(walls_s < task.wall_horizon_s, walls_s, np.inf))


def _collision_s(
    task: Task, robots: Floats, status: Status, obstacles: Floats, margin_m: float, region_m: float
) -> tuple[Floats, Floats]:
    """Returns the times until each robot, larger by a margin, touches a robot or obstacle of a region, and a wall, if
    all keep their velocities; infinite if never."""
    velocity = _velocities(robots)
    other_xy = np.concatenate([robots[:, :2], obstacles[:, :2]])
    other_velocity = np.concatenate([velocity, obstacles[:, 2:4]])
    reach = np.concatenate([np.full(len(robots), task.robot_radius_m), obstacles[:, 4]])
    reach = reach + task.robot_radius_m + margin_m
    there = np.concatenate([status == DRIVING, np.ones(len(obstacles), dtype=bool)])

    apart = other_xy[None] - robots[:, None, :2]
    closing = velocity[:, None] - other_velocity[None]
    approach, distance2 = (apart * closing).sum(axis=2), (apart * apart).sum(axis=2)
    speed2, free = (closing * closing).sum(axis=2), distance2 - reach * reach
    discriminant = approach * approach - speed2 * free
    with np.errstate(divide="ignore", invalid="ignore"):
        time_s = np.where(free <= 0, 0.0, (approach - np.sqrt(discriminant)) / speed2)
    meet = (approach > 0) & ((discriminant >= 0) | (free <= 0)) & (distance2 <= region_m**2) & there[None]
    meet[np.arange(len(robots)), np.arange(len(robots))] = False
    time_s = np.where(meet, time_s, np.inf).min(axis=1, initial=np.inf)

    vx, vy = velocity.T
    closing = np.stack([-vx, vx, -vy, vy], axis=1)
    gap = _wall_gaps(task, robots[:, :2]) - task.robot_radius_m - margin_m
    with np.errstate(divide="ignore", invalid="ignore"):
        wall_s = np.where(closing > 0, np.maximum(gap / closing, 0.0), np.inf).min(axis=1)
    return time_s, wall_s


def _velocities(robots: Floats) -> Floats:
    return robots[:, 3:4] * np.stack([np.cos(robots[:, 2]), np.sin(robots[:, 2])], axis=1)


def _wall_gaps(task: Task, xy: Floats) -> Floats:
    """Returns the distance of each centre from the left, right, lower and upper wall."""
    x, y = xy.T
    return np.stack([x, task.width_m - x, y, task.height_m - y], axis=1)
