"""Adapts the network to the environment: the shape of observations and actions, and their units."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from coorp.envs import VECTOR_FIELDS, Task
from coorp.learn.checkpoint import load_any_model
from coorp.learn.driver import Driver
from coorp.learn.network import Network, Shape

PRETRAINED = Path(__file__).parent / "pretrained" / "navigation.pt"
"""The weights from which runs start, by `python -m coorp.learn.pretrain`."""
DRIVER = PRETRAINED.with_name("driver.pt")
"""The weights of the driver, by `python -m coorp.learn.imitate`."""
IMAGES = PRETRAINED.with_name("images.pt")
"""The same with the weights of its eyes, by `python -m coorp.learn.look`."""
SHAPE: Shape = {"vector": len(VECTOR_FIELDS), "action": 2}
TASK = Task()
SPEED_MPS = TASK.max_speed_mps


def fresh() -> Network:
    """Returns an untrained network that knows only the scale of an observation's numbers
    (`coorp.envs.VECTOR_FIELDS`)."""
    return Network(**SHAPE, scale=_scale(TASK))


def load(path: Path, task: Task) -> Network | Driver:
    """Returns a policy with the weights of a file, which sees this task's full speed as it saw that of its training."""
    network = load_any_model(path, SHAPE)
    if isinstance(network, Driver):
        network.adapt(task)
    else:
        adapt(network, task)
    return network


def adapt(network: Network, task: Task) -> None:
    """Makes a network see this task's full speed as it saw that of the task on which it was trained."""
    network.scale.copy_(torch.tensor(_scale(task)))


def _scale(task: Task) -> list[float]:
    pose = [task.width_m, task.height_m, 1.0, 1.0, task.max_speed_mps, task.max_turn_radps]
    return [*pose, task.width_m, 1.0, 1.0]


def velocities(actions: NDArray[np.float32], task: Task = TASK) -> NDArray[np.float32]:
    """Returns speed and turn (robots, 2) for actions: -1 .. 1 is the full range of each, and values beyond are
    clipped."""
    speed, turn = np.float32(task.max_speed_mps), np.float32(task.max_turn_radps)
    cut = np.clip(actions, -1.0, 1.0)
    return np.stack(((cut[:, 0] + 1) * (speed / 2), cut[:, 1] * turn), axis=1)
