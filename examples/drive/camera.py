"""A camera on a robot of `coorp.envs.Navigation`: its view ahead, as a frame of 3 MB.

A pinhole camera with a view of 90 degrees, drawn by casting a ray for each column: walls, obstacles as upright
cylinders, and the goal as a disc on the floor. The frame is (columns, rows, 3), as a camera mounted on its side reads
it out: a column is contiguous, so that drawing one is a copy. Not modelled: noise, blur, textures, other robots.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from coorp.envs import Navigation

COLUMNS, ROWS = 1280, 800
FRAME_SHAPE = (COLUMNS, ROWS, 3)
FOCAL = COLUMNS / 2
"""In pixels, for a view of 90 degrees."""
HEIGHT_M, OBSTACLE_M, WALL_M = 0.25, 0.4, 0.8
"""Heights of the camera, obstacles and walls."""
NEAR_M = 0.05
HORIZON = ROWS // 2
WALLS = ((196, 196, 190), (168, 172, 176), (182, 176, 168), (150, 150, 156))
"""Colours of the left, right, lower and upper wall."""
CEILING, FLOOR = ((210, 220, 232), (240, 244, 248)), ((176, 170, 160), (96, 92, 86))
"""Colours near the horizon and far from it; both fade from one to the other."""
OBSTACLE, GOAL = (200, 50, 45), (60, 90, 210)

Frame = NDArray[np.uint8]
Floats = NDArray[np.float64]


class Camera:
    """Draws frames of one environment."""

    def __init__(self, env: Navigation) -> None:
        self._env = env
        self._slopes: Floats = np.asarray((np.arange(COLUMNS) + 0.5 - COLUMNS / 2) / FOCAL, np.float64)
        """How far each column's ray goes to the right, per metre ahead."""
        self._strips = _strips()

    def take(self, frame: Frame) -> None:
        """Fills a frame with robot 0's current view."""
        task = self._env.task
        x, y, heading = self._env.poses[0]
        walls, depths = _walls(x, y, heading, self._slopes, task.width_m, task.height_m)
        # A wall's rows depend only on where it meets the floor, so its columns are copied from drawn ones.
        feet = np.minimum(np.rint(FOCAL * HEIGHT_M / depths), HORIZON).astype(np.intp)
        # With the mode "raise" NumPy would fill a copy first.
        np.take(self._strips, walls * (HORIZON + 1) + feet, axis=0, out=frame, mode="clip")
        ahead, left = _seen_from(self._env.goals[:1], x, y, heading)
        self._draw_goal(frame, float(ahead[0]), float(left[0]), task.goal_radius_m)
        obstacles = self._env.obstacles
        ahead, left = _seen_from(obstacles[:, :2], x, y, heading)
        for i in np.argsort(-np.hypot(ahead, left)):
            self._draw_obstacle(frame, float(ahead[i]), float(left[i]), float(obstacles[i, 4]))

    def nearest(self) -> Floats:
        """Returns each column's distance to the nearest obstacle in m, or infinity."""
        x, y, heading = self._env.poses[0]
        obstacles = self._env.obstacles
        ahead, left = _seen_from(obstacles[:, :2], x, y, heading)
        found = np.full(COLUMNS, np.inf)
        for i in range(len(obstacles)):
            near, _ = _hits(self._slopes, float(ahead[i]), float(left[i]), float(obstacles[i, 4]))
            np.minimum(found, near * np.hypot(1.0, self._slopes), out=found)
        return found

    def _draw_goal(self, frame: Frame, ahead: float, left: float, radius_m: float) -> None:
        near, far = _hits(self._slopes, ahead, left, radius_m)
        columns = np.flatnonzero(np.isfinite(near))
        if len(columns):
            top, bottom = _row(0.0, far[columns]), _row(0.0, near[columns])
            _paint(frame, columns, top, bottom, np.tile(np.array(GOAL, np.uint8), (len(columns), 1)))

    def _draw_obstacle(self, frame: Frame, ahead: float, left: float, radius_m: float) -> None:
        near, _ = _hits(self._slopes, ahead, left, radius_m)
        columns = np.flatnonzero(np.isfinite(near))
        if len(columns):
            depth, slope = near[columns], self._slopes[columns]
            # Brighter where its surface faces the camera.
            facing = ((ahead - depth) - slope * (left + slope * depth)) / (radius_m * np.hypot(1.0, slope))
            shades = (0.55 + 0.45 * np.clip(facing, 0.0, 1.0))[:, None] * np.array(OBSTACLE)
            _paint(frame, columns, _row(OBSTACLE_M, depth), _row(0.0, depth), shades.astype(np.uint8))


def _seen_from(points: Floats, x: float, y: float, heading: float) -> tuple[Floats, Floats]:
    """Returns the distances of points ahead and to the left of the robot."""
    dx, dy = points[:, 0] - x, points[:, 1] - y
    cos, sin = np.cos(heading), np.sin(heading)
    return dx * cos + dy * sin, dy * cos - dx * sin


def _hits(slopes: Floats, ahead: float, left: float, radius_m: float) -> tuple[Floats, Floats]:
    """Returns how far ahead each ray enters and leaves a disc, or infinity if it misses it or starts beyond."""
    squares = 1.0 + slopes * slopes
    along = ahead - slopes * left
    inside = along * along - squares * (ahead * ahead + left * left - radius_m * radius_m)
    root = np.sqrt(np.maximum(inside, 0.0))
    near, far = (along - root) / squares, (along + root) / squares
    hit = (inside > 0.0) & (far > NEAR_M)
    return np.where(hit, np.maximum(near, NEAR_M), np.inf), np.where(hit, far, np.inf)


def _walls(
    x: float, y: float, heading: float, slopes: Floats, width_m: float, height_m: float
) -> tuple[NDArray[np.intp], Floats]:
    """Returns the wall that each ray meets, and how far ahead."""
    dx = np.cos(heading) + slopes * np.sin(heading)
    dy = np.sin(heading) - slopes * np.cos(heading)
    with np.errstate(divide="ignore"):
        ways = np.stack([-x / dx, (width_m - x) / dx, -y / dy, (height_m - y) / dy])
    ways = np.where(ways > 0.0, ways, np.inf)
    walls = ways.argmin(axis=0)
    return walls, np.maximum(np.take_along_axis(ways, walls[None], axis=0)[0], NEAR_M)


def _row(height_m: float, depth: Floats) -> NDArray[np.intp]:
    """Returns the rows of points at this height and depth."""
    rows = np.rint(HORIZON + FOCAL * (HEIGHT_M - height_m) / depth)
    return np.clip(rows, 0, ROWS).astype(np.intp)


def _paint(
    frame: Frame, columns: NDArray[np.intp], top: NDArray[np.intp], bottom: NDArray[np.intp], colours: Frame
) -> None:
    """Fills rows `top` to `bottom` of each of these adjacent columns."""
    first, last = int(top.min()), int(bottom.max())
    part = frame[columns[0] : columns[-1] + 1, first:last]
    rows = np.arange(first, last)
    inside = (rows >= top[:, None]) & (rows < bottom[:, None])
    np.copyto(part, colours[:, None], where=inside[..., None])


def _strips() -> Frame:
    """Draws a column for each wall and each row at which it can meet the floor."""
    rows = np.arange(ROWS)
    fade = np.abs(rows - HORIZON)[:, None] / HORIZON
    ceiling, floor = (np.array(near) + fade * (np.array(far) - np.array(near)) for near, far in (CEILING, FLOOR))
    empty = np.where((rows < HORIZON)[:, None], ceiling, floor).astype(np.uint8)
    strips = np.tile(empty, (len(WALLS), HORIZON + 1, 1, 1))
    for foot in range(HORIZON + 1):
        top = max(0, HORIZON - round(foot * (WALL_M - HEIGHT_M) / HEIGHT_M))
        strips[:, foot, top : HORIZON + foot] = np.array(WALLS, np.uint8)[:, None]
    return strips.reshape(-1, ROWS, 3)
