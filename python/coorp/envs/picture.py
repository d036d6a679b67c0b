"""The world of `coorp.envs.Navigation` from above, for people."""

import numpy as np
import numpy.typing as npt

from coorp.envs.dynamics import Floats, Status
from coorp.envs.task import DRIVING, Task

_SIDE = 600
_BACKGROUND = (250, 250, 248)
_OBSTACLE = (110, 110, 115)
_NOSE = (255, 255, 255)
# Tol's bright palette, distinguishable with most kinds of colour blindness; it repeats after seven robots.
_COLOURS = (
    (68, 119, 170),
    (238, 102, 119),
    (34, 136, 51),
    (204, 187, 68),
    (102, 204, 238),
    (170, 51, 119),
    (80, 80, 80),
)


def draw_world(task: Task, robots: Floats, status: Status, obstacles: Floats) -> npt.NDArray[np.uint8]:
    """Draws the world as RGB, y upwards, the longer side 600 pixels. Obstacles are grey. Each robot has a colour, and
    its goal is a ring of that colour; robots that have ended are pale."""
    scale = _SIDE / max(task.width_m, task.height_m)
    shape = (max(1, round(task.height_m * scale)), max(1, round(task.width_m * scale)), 3)
    canvas = np.empty(shape, dtype=np.float32)
    canvas[:] = _BACKGROUND

    def disc(
        x: float, y: float, radius_m: float, colour: tuple[int, ...], alpha: float = 1.0, ring: float = 0.0
    ) -> None:
        column, row, radius = x * scale, shape[0] - y * scale, max(radius_m * scale, 1.0)
        top, bottom = max(0, int(row - radius - 2)), max(0, int(row + radius + 3))
        left, right = max(0, int(column - radius - 2)), max(0, int(column + radius + 3))
        part = canvas[top:bottom, left:right]
        rows, columns = np.ogrid[top : top + part.shape[0], left : left + part.shape[1]]
        off = np.hypot(rows + 0.5 - row, columns + 0.5 - column)
        cover = np.clip(radius + 0.5 - off, 0, 1)
        if ring:
            cover = cover * np.clip(off - (radius - ring), 0, 1)
        part += (cover * alpha)[..., None] * (np.array(colour, dtype=np.float32) - part)

    for x, y, _, _, radius_m in obstacles:
        disc(x, y, radius_m, _OBSTACLE)
    for i, row in enumerate(robots):
        colour, alpha = _COLOURS[i % len(_COLOURS)], 1.0 if status[i] == DRIVING else 0.25
        if status[i] == DRIVING:
            disc(row[5], row[6], task.goal_radius_m, colour, ring=2.5)
        disc(row[0], row[1], task.robot_radius_m, colour, alpha)
        ahead = 0.6 * task.robot_radius_m
        disc(row[0] + ahead * np.cos(row[2]), row[1] + ahead * np.sin(row[2]), 0.3 * task.robot_radius_m, _NOSE, alpha)
    return (canvas + 0.5).astype(np.uint8)
