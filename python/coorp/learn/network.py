"""The control model: one policy shared by all robots, and a critic that sees the whole team.

The model computes a Gaussian over each robot's velocity from the robot's image (64 x 64 x 3) and vector (pose, goal),
and each robot's value from the observations of all robots. The critic is centralised (Deng 2022, section II-A:
perceptions of all are combined). A robot's value depends on its own observation and the mean over the team, so the same
weights serve any number of robots. The policy reads only a robot's own observation, with shared weights.

The network is small on purpose. Every control loop contains one batched forward pass of five images, 54,000 times in
half an hour. The size on the air comes from the team file, which pads it to `parameters`. The convolution does not
overlap, so it is one matrix product over patches, which on a CPU is faster than a convolution and needs no change of
layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

IMAGE = 64
CHANNELS = 3
PATCH, FEATURES = 8, 8
"""Pixels per side of a patch, and the features kept of each."""
CODE = 128
"""The size of an image's code."""
HIDDEN = 64
LOG_STD_MIN, LOG_STD_MAX = -3.0, 0.5


class Shape(TypedDict):
    """What must match between a network and its weights."""

    vector: int
    action: int


class Network(nn.Module):
    """Policy and critic. The input per robot is `vector` numbers and one image, the output `action` numbers.

    Images are (..., 64, 64, 3) uint8 and vectors (..., vector) float32. The last leading axis is the robot, over which
    the critic takes its mean. Both are scaled inside: images to -0.5 .. 0.5, vectors by `scale`, which is stored with
    the weights. Actions are in units of their range, see `velocity`.
    """

    scale: Tensor

    def __init__(self, vector: int, action: int, scale: Sequence[float] | None = None) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(vector) if scale is None else torch.tensor(scale))
        assert self.scale.shape == (vector,), f"{len(self.scale)} scales for {vector} numbers"
        self.shape: Shape = {"vector": vector, "action": action}
        self.patches = nn.Linear(PATCH * PATCH * CHANNELS, FEATURES)
        self.code = nn.Linear(FEATURES * (IMAGE // PATCH) ** 2, CODE)
        self.policy = _perceptron(CODE + vector, action)
        self.critic = _perceptron(2 * (CODE + vector), 1)
        self.log_std = nn.Parameter(torch.full((action,), -0.7))
        with torch.no_grad():
            # Initial actions near zero: an untrained policy stands still instead of driving into a wall.
            last = self.policy[-1]
            assert isinstance(last, nn.Linear)
            last.weight.mul_(0.01)

    def forward(self, images: Tensor, vectors: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the mean action (..., robots, action) and the value (..., robots)."""
        seen = self.seen(images, vectors)
        team = seen.mean(dim=-2, keepdim=True).expand_as(seen)
        value = self.critic(torch.cat((seen, team), dim=-1)).squeeze(-1)
        return self.policy(seen), value

    def seen(self, images: Tensor, vectors: Tensor) -> Tensor:
        """Returns each robot's image code and vector, side by side."""
        count, side = images.shape[:-3].numel(), IMAGE // PATCH
        # Patches are moved while their pixels are still bytes, eight at a time, and scaled through the weights: moving
        # pixels takes most of the time, not multiplying them.
        x = images.reshape(count, side, PATCH, side, PATCH * CHANNELS).view(torch.int64).transpose(2, 3)
        x = x.reshape(count * side * side, -1).view(torch.uint8).to(self.log_std.dtype)
        first = self.patches
        x = functional.relu(functional.linear(x, first.weight / 255, first.bias - 0.5 * first.weight.sum(1)))
        x = functional.relu(self.code(x.view(count, -1)))
        return torch.cat((x.view(*vectors.shape[:-1], CODE), vectors / self.scale), dim=-1)

    def deviation(self) -> Tensor:
        """Returns the standard deviation of each action, bounded so that exploration neither stops nor explodes."""
        return self.log_std.clamp(LOG_STD_MIN, LOG_STD_MAX).exp()

    @torch.inference_mode()
    def act(self, images: NDArray[np.uint8], vectors: NDArray[np.float32]) -> NDArray[np.float32]:
        """Returns the mean actions (robots, action) for one loop: the control loop's forward pass, without the
        critic."""
        return self.policy(self.seen(torch.from_numpy(images), torch.from_numpy(vectors))).numpy()


def _perceptron(inputs: int, outputs: int) -> nn.Sequential:
    layers = (nn.Linear(inputs, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, outputs))
    return nn.Sequential(*layers)


def flat(network: Network) -> Tensor:
    """Returns all parameters in one vector, as sent over the air."""
    return torch.cat([parameter.detach().reshape(-1) for parameter in network.parameters()])


@torch.no_grad()
def load_flat(network: Network, vector: Tensor) -> None:
    """Loads a flat vector into the network."""
    place = 0
    for parameter in network.parameters():
        count = parameter.numel()
        parameter.copy_(vector[place : place + count].view_as(parameter))
        place += count
    assert place == vector.numel(), f"{vector.numel()} parameters for a network of {place}"
