"""The driver's eyes: they find obstacles in a robot's image, so that nothing has to measure them.

A small convolutional network reads the red channel, in which obstacles are. It divides the image into 16 x 16 cells, as
large as an obstacle. Each cell says whether the centre of an obstacle is in it, where, and where the centre was an
afterglow ago; this gives the velocity over ground. So one image is enough. What the eyes return looks like measured
obstacles (`coorp.envs.NEARBY_FIELDS`).

Edges are smooth over one pixel and images have no noise. So positions far below a pixel can be read from them, and
velocities from an afterglow that is about one pixel long. A camera is not that good.

Weights come from `coorp.learn.look`. Left out: obstacles of another size than those of the two levels, those more than
3.2 m ahead or to a side, which the image does not show, and one of two in the same cell.
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
SIDE, CELL = 64, 4
"""Pixels of an image and of a cell, per side."""
CELLS = SIDE // CELL
RADIUS_M = Level().obstacle_radius_m
SURE = 0.3
"""A cell this sure has found something."""
APART_M = 0.2
"""Two centres nearer than this are one obstacle, which two cells have found."""
FOUND_MAX = 12
"""Cells that can have found something, the surest first."""
Floats = NDArray[np.float32]


class Eyes(nn.Module):
    """Finds obstacles in images."""

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

    def forward(self, images: NDArray[np.uint8]) -> Tensor:
        """Returns (n, 5, 16, 16) for images (n, 64, 64, 3): the logit that an obstacle is in a cell; how far its centre
        is below and to the right of the cell's; and its afterglow, ahead and to the left. Lengths are pixels."""
        red = torch.from_numpy(np.ascontiguousarray(images[..., 0])).float()
        # Only bodies are brighter than walls, and only what is below half is the edge of an afterglow.
        return self.layers(torch.stack((red.clamp(max=HALF) / HALF, (red - WALL).clamp(min=0) / (FULL - WALL)), dim=1))

    @torch.inference_mode()
    def measure(self, images: NDArray[np.uint8], most: int) -> Floats:
        """Returns the obstacles in images (n, 64, 64, 3) as (n, most, 5) `NEARBY_FIELDS`, nearest first; zeros stand
        for missing ones."""
        cells = self(images).flatten(2).numpy()
        surest = np.argsort(-cells[:, 0], axis=1)[:, :FOUND_MAX]
        logit, down, right, ahead_px, left_px = np.take_along_axis(cells, surest[:, None], 2).swapaxes(0, 1)
        ahead, left = (SIDE / 2 - middles(surest // CELLS) - down), (SIDE / 2 - middles(surest % CELLS) - right)
        velocity = PIXEL_M / AFTERGLOW_S
        found = np.stack([ahead * PIXEL_M, left * PIXEL_M, ahead_px * velocity, left_px * velocity], axis=-1)
        away = np.hypot(found[..., 0], found[..., 1])
        is_there = logit > np.log(SURE / (1 - SURE))
        apart = np.hypot(*(found[:, :, None, :2] - found[:, None, :, :2]).transpose(3, 0, 1, 2))
        for place in range(1, FOUND_MAX):
            again = is_there[:, :place] & (apart[:, place, :place] < APART_M)
            is_there[:, place] &= ~again.any(axis=1)
        nearest = np.argsort(np.where(is_there, away, np.inf), axis=1)[:, :most, None]
        rows = np.concatenate([found, np.full_like(found[..., :1], RADIUS_M)], axis=-1)
        return np.take_along_axis(np.where(is_there[..., None], rows, 0), nearest, 1).astype(np.float32)


def middles(cells: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns the middles of columns or rows of cells, in pixels from the edge of the image."""
    return cells * CELL + CELL // 2
