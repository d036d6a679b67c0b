"""The simulator and the command line, native (crates/py)."""

import os
from collections.abc import Sequence
from typing import Any, final

import numpy as np
import numpy.typing as npt

import numpy as np
import numpy.typing as npt

__version__: str

def main(arguments: Sequence[str]) -> int: ...

# The hot parts of coorp.envs

class NavigationDynamics:
    """`coorp.envs.dynamics.NumpyDynamics`, compiled. Reads its numbers off a `coorp.envs.Task`."""

    def __init__(self, task: object) -> None: ...
    def advance(
        self,
        robots: npt.NDArray[np.float64],
        status: npt.NDArray[np.uint8],
        obstacles: npt.NDArray[np.float64],
        tick: int,
        ticks: int,
    ) -> int: ...

def perceive(
    robots: npt.NDArray[np.float64],
    status: npt.NDArray[np.uint8],
    obstacles: npt.NDArray[np.float64],
    size_m: Sequence[float],
    robot_radius_m: float,
    goal_radius_m: float,
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float32]]:
    """Images (n, 64, 64, 3) and numbers (n, 9) of all robots."""
