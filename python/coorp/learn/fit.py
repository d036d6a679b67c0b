"""Adapts the network to the environment: the shape of observations and actions, and their units."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coorp.envs import VECTOR_FIELDS, Task
from coorp.learn.network import Network, Shape

PRETRAINED = Path(__file__).parent / "pretrained" / "navigation.pt"
"""The weights shipped with the package; `python -m coorp.learn.pretrain` produces them."""
SHAPE: Shape = {"vector": len(VECTOR_FIELDS), "action": 2}
TASK = Task()


def fresh() -> Network:
    """Returns an untrained network that knows only the scale of an observation's numbers
    (`coorp.envs.VECTOR_FIELDS`)."""
    pose = [TASK.width_m, TASK.height_m, 1.0, 1.0, TASK.max_speed_mps, TASK.max_turn_radps]
    return Network(**SHAPE, scale=[*pose, TASK.width_m, 1.0, 1.0])


def velocities(actions: NDArray[np.float32]) -> NDArray[np.float32]:
    """Returns speed and turn (robots, 2) for actions: -1 .. 1 is the full range of each, and values beyond are
    clipped."""
    speed, turn = np.float32(TASK.max_speed_mps), np.float32(TASK.max_turn_radps)
    cut = np.clip(actions, -1.0, 1.0)
    return np.stack(((cut[:, 0] + 1) * (speed / 2), cut[:, 1] * turn), axis=1)
