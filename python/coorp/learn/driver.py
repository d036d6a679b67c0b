"""The driver: a policy that reads poses, goals and measured obstacles, and drives well. With eyes (eyes.py), it drives
each robot by its own image, pose, velocity and goal alone: it finds obstacles and other robots in the image.

A small network sees what is around each robot: the other robots, from what they tell the leader (pose, velocity, goal),
the obstacles that this robot measures (`coorp.envs.NEARBY_FIELDS`), and the walls. Each is one object, described in the
robot's own frame by crates/py/src/surroundings.rs. The same layers read every object, and only their sum and maximum go
on (Zaheer et al., "Deep Sets", NeurIPS 2017). So the order does not matter, and the same weights serve any number of
robots. The output chooses one of `coorp.envs.ARCS`.

The same weights drive at every pace, since times are path lengths at full speed. Full speed itself is an input too,
because reaction time is not scaled.

Weights come from `coorp.learn.imitate`. `coorp learn` only drives with them: there is no spread to explore with, and no
critic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from coorp import _native
from coorp.envs import ARCS, NEARBY_FIELDS, VECTOR_FIELDS, Task
from coorp.learn.eyes import Eyes

if TYPE_CHECKING:
    from coorp.learn.network import Shape

NEARBY = 8
"""Obstacles that each robot measures."""
OWN, OBJECT = 17, 28
"""The numbers that describe a robot, and an object as it sees it."""
CODE, POOLED, HIDDEN = 128, 96, 256
Floats = NDArray[np.float32]


class Driver(nn.Module):
    """Chooses among `ARCS`. The input per robot is the vector of `Navigation.observe` with `NEARBY` obstacles; with
    eyes, it is the vector without any, and the image."""

    def __init__(self, eyes: Eyes | None = None) -> None:
        super().__init__()
        self.eyes = eyes
        self.nearby = NEARBY if eyes is None else 0
        self.shape: Shape = {"vector": len(VECTOR_FIELDS) + self.nearby * len(NEARBY_FIELDS), "action": 2}
        self.object = nn.Linear(OWN + OBJECT, CODE)
        self.pooled = nn.Linear(CODE, POOLED)
        self.choice = nn.Sequential(
            nn.Linear(OWN + 2 * POOLED, HIDDEN),
            nn.ReLU(),
            nn.Linear(HIDDEN, HIDDEN),
            nn.ReLU(),
            nn.Linear(HIDDEN, len(ARCS)),
        )
        self.adapt(Task())

    def adapt(self, task: Task) -> None:
        """Makes it see the units of this task."""
        self._limits = limits(task)[None]

    def forward(self, own: Tensor, objects: Tensor, there: Tensor) -> Tensor:
        """Returns a logit for each of `ARCS`, (teams, robots, k), for what `_native.surroundings` returns."""
        # The robot's own part is the same for all its objects, so it is multiplied once.
        mine = functional.linear(own, self.object.weight[:, :OWN], self.object.bias)
        x = functional.relu(functional.linear(objects, self.object.weight[:, OWN:]) + mine[:, :, None])
        x = functional.relu(self.pooled(x)) * there[..., None]
        return self.choice(torch.cat((own, x.sum(2) / 4, x.amax(2)), dim=-1))

    @torch.inference_mode()
    def act(self, images: NDArray[np.uint8], vectors: Floats) -> Floats:
        """Returns the actions (robots, 2) for one loop."""
        if self.eyes is None:
            teams = vectors[None]
        else:  # Each robot is alone, with what it sees.
            found = self.eyes.measure(images, NEARBY).reshape(len(vectors), -1)
            teams = np.concatenate([vectors, found], axis=1)[:, None]
        logits = self(*inputs(teams, np.repeat(self._limits, len(teams), axis=0)))
        return ACTIONS[logits.argmax(-1).numpy().reshape(-1)]


ACTIONS = (ARCS * [2, 1] - [1, 0]).astype(np.float32)
"""`ARCS` as actions, in which -1 .. 1 is the full range of each velocity."""


def limits(task: Task) -> Floats:
    """Returns what of a task the driver must know."""
    units = (task.max_speed_mps, task.max_turn_radps, task.width_m, task.height_m)
    return np.array((*units, task.robot_radius_m, task.clearance_m), dtype=np.float32)


def inputs(vectors: Floats, limits: Floats) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the network's input for the vectors of teams (teams, robots, v) and the teams' limits (teams, 6)."""
    own, objects, there = _native.surroundings(np.ascontiguousarray(vectors), limits)
    return torch.from_numpy(own), torch.from_numpy(objects), torch.from_numpy(there)
