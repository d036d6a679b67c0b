"""The obstacle detector: a small convolutional network that finds the nearest obstacle in each sector of a frame."""

from __future__ import annotations

import numpy as np
import torch
from camera import COLUMNS, ROWS, Floats, Frame
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

SECTORS = 10
RANGE_M = 4.0
"""Obstacles farther away are not reported."""
STRIDE = 4
"""The network reads every fourth pixel of every fourth column."""
SMALL = (COLUMNS // STRIDE, ROWS // STRIDE, 3)
PATCH = 8
WIDTHS = (16, 32, 48)
HIDDEN = 64
_DEEP_ROWS = (SMALL[1] // PATCH + 1) // 2
_DEEP_COLUMNS = SMALL[0] // PATCH // 2 // SECTORS

Obstacles = NDArray[np.float32]
"""(SECTORS, 2), from left to right: the probability that there is an obstacle within range, and its distance in m."""


class DetectorNetwork(nn.Module):
    """Patches, two convolutions, and one perceptron for all sectors."""

    def __init__(self) -> None:
        super().__init__()
        first, second, third = WIDTHS
        self.patches = nn.Linear(PATCH * PATCH * 3, first)
        self.near = nn.Conv2d(first, second, 3, padding=1)
        self.deep = nn.Conv2d(second, third, 3, stride=2, padding=1)
        self.sector = nn.Linear(third * _DEEP_COLUMNS * _DEEP_ROWS, HIDDEN)
        self.answer = nn.Linear(HIDDEN, 2)

    def forward(self, small: Tensor) -> tuple[Tensor, Tensor]:
        """Returns logits of presence and distances as shares of the range, each (n, SECTORS), of (n, *SMALL) uint8."""
        count, (columns, rows, _) = len(small), SMALL
        x = small.reshape(count, columns // PATCH, PATCH, rows // PATCH, PATCH * 3).transpose(2, 3)
        x = x.reshape(count, columns // PATCH, rows // PATCH, -1).to(torch.float32) / 255 - 0.5
        x = functional.relu(self.patches(x)).permute(0, 3, 1, 2)
        x = functional.relu(self.deep(functional.relu(self.near(x))))
        x = x.reshape(count, WIDTHS[-1], SECTORS, _DEEP_COLUMNS, _DEEP_ROWS).transpose(1, 2).reshape(count, SECTORS, -1)
        x = self.answer(functional.relu(self.sector(x)))
        return x[..., 0], torch.sigmoid(x[..., 1])

    @torch.inference_mode()
    def find(self, frame: Frame) -> Obstacles:
        """Returns the obstacles in one frame."""
        present, shares = self(torch.from_numpy(reduced(frame))[None])
        return torch.stack((torch.sigmoid(present[0]), shares[0] * RANGE_M), dim=-1).numpy()


def reduced(frame: Frame) -> Frame:
    """Copies the pixels of a frame that the network reads."""
    return np.ascontiguousarray(frame[::STRIDE, ::STRIDE])


def truth(nearest: Floats) -> Obstacles:
    """Returns a perfect detector's result, from the distances by column of `Camera.nearest`."""
    sectors = nearest[:: STRIDE * 2].reshape(SECTORS, -1).min(axis=1)
    present = sectors < RANGE_M
    return np.stack((present, np.where(present, sectors, RANGE_M)), axis=-1).astype(np.float32)
