"""A planner that sees the whole world: the expert that `coorp.learn.imitate` imitates, and a standard to compare
with."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from coorp import _native
from coorp.envs.dynamics import Floats
from coorp.envs.navigation import Navigation
from coorp.envs.task import Task

ARCS: npt.NDArray[np.float64] = np.array(
    [(speed, turn) for speed in (0.0, 0.25, 0.5, 0.75, 1.0) for turn in (-1.0, -0.67, -0.33, 0.0, 0.33, 0.67, 1.0)]
)
"""(k, 2) The velocities between which a robot chooses, as shares of its full speed and turn."""


class Planner:
    """Chooses velocities for all robots of a `Navigation` from its true state; crates/py/src/planner.rs says how."""

    def __init__(self, task: Task) -> None:
        self._native = _native.Planner(task, ARCS)
        self._full = np.array([task.max_speed_mps, task.max_turn_radps])

    def costs(self, env: Navigation, lead_s: float = 0.0) -> Floats:
        """Returns the (n, k) cost of each of `ARCS` for each robot, if it takes effect after `lead_s`: the time to the
        goal and what is at risk on the way, as metres of path at full speed. The world keeps its velocities until
        then."""
        return self._native.plan(*env.world(), lead_s)

    def velocities(self, env: Navigation, lead_s: float = 0.0) -> Floats:
        """Returns the (n, 2) cheapest velocities, speed in m/s and turn in rad/s."""
        return ARCS[self.costs(env, lead_s).argmin(axis=1)] * self._full
