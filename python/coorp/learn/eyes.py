"""The driver's eyes: they find obstacles and other robots in a robot's image, so that nothing has to measure or tell
them.

A small convolutional network reads the red channel, in which obstacles are, and the green one, in which robots are. It
divides the image into 16 x 16 cells, as large as a body. Each cell says whether the centre of a body is in it, where,
and where the centre was an afterglow ago; this gives the velocity over ground. So one image is enough. What the eyes
return looks like measured obstacles (`coorp.envs.NEARBY_FIELDS`).

Edges are smooth over one pixel and images have no noise. So positions far below a pixel can be read from them, and
velocities from an afterglow that is about one pixel long. A camera is not that good.

Weights come from `coorp.learn.look`. They learn from obstacles only; robots are drawn alike. Left out: bodies of
another size than in the two levels, those more than 3.2 m ahead or to a side, which the image does not show, and one of
two in the same cell.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from coorp.envs import Level

PIXEL_M, AFTERGLOW_S = 0.1, 0.17
FULL, WALL, HALF = 255, 160, 128
"""As crates/py/src/raster.rs draws."""
CHANNELS = (0, 1)
"""Those that show bodies: obstacles in red, robots in green."""
SIDE, CELL = 64, 4
"""Pixels of an image and of a cell, per side."""
CELLS = SIDE // CELL
RADIUS_M = Level().obstacle_radius_m
SURE = 0.3
"""A cell this sure has found something."""
APART_M = 0.2
"""Two centres nearer than this are one body, which two cells have found."""
FOUND_MAX = 12
"""Cells that can have found something, the surest first."""
Floats = NDArray[np.float32]


class Eyes(nn.Module):
    """Finds bodies in images."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(2, 16, 5, stride=2, padding=2),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 32, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 32, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 5, 1),
        )

    def forward(self, pictures: NDArray[np.uint8]) -> Tensor:
        """Returns (n, 5, 16, 16) for one channel of images, (n, 64, 64): the logit that the centre of a body is in a
        cell; how far it is below and to the right of the cell's; and its afterglow, ahead and to the left. Lengths are
        pixels."""
        grey = torch.from_numpy(np.ascontiguousarray(pictures)).float()
        # Only bodies are brighter than walls, and only what is below half is the edge of an afterglow.
        parts = (grey.clamp(max=HALF) / HALF, (grey - WALL).clamp(min=0) / (FULL - WALL))
        return self.layers(torch.stack(parts, dim=1))

    @torch.inference_mode()
    def measure(self, images: NDArray[np.uint8], most: int) -> Floats:
        """Returns the obstacles and robots in images (n, 64, 64, 3) as (n, most, 5) `NEARBY_FIELDS`, nearest first;
        zeros stand for missing ones."""
        cells = self(np.concatenate([images[..., channel] for channel in CHANNELS])).flatten(2).numpy()
        surest = np.argsort(-cells[:, 0], axis=1)[:, :FOUND_MAX]
        logit, down, right, ahead_px, left_px = np.take_along_axis(cells, surest[:, None], 2).swapaxes(0, 1)
        ahead, left = (SIDE / 2 - middles(surest // CELLS) - down), (SIDE / 2 - middles(surest % CELLS) - right)
        velocity = PIXEL_M / AFTERGLOW_S
        found = [ahead * PIXEL_M, left * PIXEL_M, ahead_px * velocity, left_px * velocity]
        rows = np.stack([*found, np.full_like(ahead, RADIUS_M)], axis=-1)
        is_there = logit > np.log(SURE / (1 - SURE))
        apart = np.hypot(*(rows[:, :, None, :2] - rows[:, None, :, :2]).transpose(3, 0, 1, 2))
        for place in range(1, FOUND_MAX):
            again = is_there[:, :place] & (apart[:, place, :place] < APART_M)
            is_there[:, place] &= ~again.any(axis=1)
        # What all channels show of an image.
        rows = np.where(is_there[..., None], rows, 0).reshape(len(CHANNELS), len(images), FOUND_MAX, -1)
        rows = np.concatenate(list(rows), axis=1).astype(np.float32)
        away = np.where(rows[..., 4] > 0, np.hypot(rows[..., 0], rows[..., 1]), np.inf)
        return np.take_along_axis(rows, np.argsort(away, axis=1)[:, :most, None], 1)


def middles(cells: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns the middles of columns or rows of cells, in pixels from the edge of the image."""
    return cells * CELL + CELL // 2
