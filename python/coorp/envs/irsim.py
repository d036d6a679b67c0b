"""The same world moved by IR-SIM (the PyPI package `ir-sim`): its kinematics, its collisions, its arrivals.

It takes some 0.4 ms per tick, a thousand times as long as the compiled dynamics, so it serves for comparison and not
for learning. IR-SIM's discs are polygons of 64 corners whose radius is up to 0.12 % short between corners. A collision
may therefore come one tick later than with exact discs, and a grazing one may be missed.
"""

import contextlib
import gc
import io
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from coorp.envs.dynamics import Floats, Status, sample
from coorp.envs.task import DRIVING, REWARD_TICKS, TICK_S, Ending, Task

_FAR_M = 1000.0
"""Robots that have ended are kept this far outside, each 10 m from the next."""


class IrsimDynamics:
    """IR-SIM behind the interface of `coorp.envs.dynamics.Dynamics`, built for the given radii."""

    def __init__(self, task: Task, robots: int, obstacle_radii_m: list[float]) -> None:
        self._task = task
        self._world = _make_world(task, robots, obstacle_radii_m)
        objects = self._world.objects
        self._robots = [it for it in objects if it.role == "robot"]
        self._obstacles = [it for it in objects if it.role == "obstacle" and not it.static]
        self._moving = [it.id for it in self._robots + self._obstacles]

    def advance(self, robots: Floats, status: Status, obstacles: Floats, tick: int, ticks: int) -> int:
        self._place(robots, status, obstacles)
        velocities = np.where((status == DRIVING)[:, None], robots[:, 3:5], 0.0)
        actions = [row.reshape(2, 1) for row in np.concatenate([velocities, obstacles[:, 2:4]])]
        for made in range(ticks):
            if (tick + made) % REWARD_TICKS == 0:
                sample(self._task, robots, status, obstacles)
            self._world.step(actions, self._moving)
            for i, it in enumerate(self._robots):
                if status[i] == DRIVING:
                    robots[i, :3] = it.state[:3, 0]
            for row, it in zip(obstacles, self._obstacles, strict=True):
                row[:2] = it.state[:2, 0]
            if self._mark_endings(status):
                return made + 1
        return ticks

    def _place(self, robots: Floats, status: Status, obstacles: Floats) -> None:
        for i, it in enumerate(self._robots):
            driving = status[i] == DRIVING
            it.set_state(robots[i, :3].reshape(3, 1) if driving else [[-_FAR_M - 10 * i], [-_FAR_M], [0.0]])
            it.set_goal([*robots[i, 5:7].tolist(), 0.0])
        for row, it in zip(obstacles, self._obstacles, strict=True):
            it.set_state([[row[0]], [row[1]], [0.0]])

    def _mark_endings(self, status: Status) -> bool:
        any_ended = False
        for i, it in enumerate(self._robots):
            if status[i] != DRIVING or not (it.collision or it.arrive):
                continue
            any_ended = True
            hit = {_kind(other) for other in it.collision_obj}
            status[i] = min(hit) if hit else Ending.ARRIVED
        return any_ended


def _kind(other: Any) -> Ending:  # noqa: ANN401 - IR-SIM's objects have one class for all
    if other.role == "robot":
        return Ending.HIT_ROBOT
    return Ending.HIT_WALL if other.static else Ending.HIT_OBSTACLE


def _make_world(task: Task, robots: int, obstacle_radii_m: list[float]) -> Any:  # noqa: ANN401
    """Creates a complete IR-SIM world from the YAML text that IR-SIM expects in a file."""
    # IR-SIM prints the window systems that it could not open, even if it needs none.
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            import irsim
    except ModuleNotFoundError as missing:
        message = f"backend 'irsim' needs the package '{missing.name}'; in Coorp's source: pip install '.[learn]'"
        raise ModuleNotFoundError(message, name=missing.name) from missing
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "navigation.yaml")
        path.write_text(_yaml(task, robots, obstacle_radii_m), encoding="utf-8")
        with _uncollected():
            return irsim.make(str(path), display=False, headless=True, log_level="CRITICAL")


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Disables the garbage collector temporarily.

    A world that is collected removes its log sinks under loguru's lock. If that happens while another world adds its
    own sinks, and thus holds the lock, it deadlocks (IR-SIM 2.12).
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _yaml(task: Task, robots: int, obstacle_radii_m: list[float]) -> str:
    lines = [
        f"world: {{width: {task.width_m}, height: {task.height_m}, step_time: {TICK_S}, collision_mode: unobstructed}}",
        "robot:",
    ]
    for _ in range(robots):
        lines.append(
            f"  - {{kinematics: {{name: diff}}, shape: {{name: circle, radius: {task.robot_radius_m}}}, "
            f"vel_min: [{-task.max_speed_mps}, {-task.max_turn_radps}], "
            f"vel_max: [{task.max_speed_mps}, {task.max_turn_radps}], "
            f"goal_threshold: {task.goal_radius_m}, arrive_mode: position, state: [0, 0, 0], goal: [0, 0, 0]}}"
        )
    lines.append("obstacle:")
    for radius_m in obstacle_radii_m:
        lines.append(
            f"  - {{kinematics: {{name: omni}}, shape: {{name: circle, radius: {radius_m}}}, "
            "vel_min: [-100, -100], vel_max: [100, 100], state: [0, 0, 0]}"
        )
    w, h = task.width_m, task.height_m
    corners = f"[[0, 0], [{w}, 0], [{w}, {h}], [0, {h}], [0, 0]]"
    lines.append(f"  - {{shape: {{name: linestring, vertices: {corners}}}, state: [0, 0, 0], unobstructed: false}}")
    return "\n".join(lines) + "\n"
