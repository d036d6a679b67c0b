"""The leader's inference: from what it has of each robot to commands, and to the batch that it collects.

A simulated leader (cosim.py) and a live one (live/robot.py) both use it. This module decides:

- The leader infers from the newest perception of each robot, however old.
- While learning, each action deviates at random from the policy's mean; otherwise robots act by the mean.
- Each loop of a batch is an item. It contains the perceptions used, the actions, each robot's reward until the next
  perception used, and whether its drive ended in between. Loops inferred before the collection starts belong to the old
  model and are excluded (Deng 2022, section III-A).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coorp.learn.driver import Driver
from coorp.learn.network import Network
from coorp.learn.ppo import Transitions

Images = NDArray[np.uint8]
Floats = NDArray[np.float32]
Item = tuple[Images, Floats, Floats, NDArray[np.float64], NDArray[np.int64]]
"""A loop, by robot: perceived images and vectors, actions, and rewards and endings at the perceptions."""


@dataclass
class Perception:
    """One robot's perception, and its totals at that time."""

    tick: int
    image: Images
    vector: Floats
    reward: float
    """The robot's total reward at that time."""
    endings: int
    """The number of its drives that had ended at that time."""


class Collector:
    """Items of the batch being collected, loop by loop."""

    def __init__(self) -> None:
        self.open = False
        self._items: list[Item] = []

    def begin(self) -> None:
        """Starts at the next inference."""
        self.open = True
        self._items = []

    def add(self, used: list[Perception], images: Images, vectors: Floats, actions: Floats) -> None:
        """Adds a loop."""
        rewards = np.array([perception.reward for perception in used])
        endings = np.array([perception.endings for perception in used])
        self._items.append((images, vectors, actions, rewards, endings))

    def close(self) -> Transitions | None:
        """Returns the batch. The last loop's reward is not known yet, so that loop only serves as the state after the
        others; if that leaves nothing, there is no batch."""
        self.open = False
        if len(self._items) < 2:
            return None
        images, vectors, actions, rewards, endings = self._columns()
        self._items = []
        return Transitions(
            images=images[:-1],
            vectors=vectors[:-1],
            actions=actions[:-1],
            rewards=np.diff(rewards, axis=0).astype(np.float32),
            dones=np.diff(endings, axis=0) > 0,
            last_images=images[-1],
            last_vectors=vectors[-1],
        )

    def _columns(self) -> list[NDArray[Any]]:
        return [np.stack(column) for column in zip(*self._items, strict=True)]

    def state(self) -> dict[str, Any]:
        """Returns the state for a checkpoint."""
        return {"open": self.open, "items": self._columns()}

    def restore(self, state: dict[str, Any]) -> None:
        """Restores a result of `state`."""
        self.open = state["open"]
        self._items = list(zip(*state["items"], strict=True))


class Inference:
    """Infers for a team, and collects batches.

    `has` is what the leader has of each robot at first. Without `explores`, robots act by the mean.
    """

    def __init__(self, control: Network | Driver, has: list[Perception], seed: int, *, explores: bool) -> None:
        self.control = control
        self.collector = Collector()
        self._has = has
        self._explores = explores
        self._rng = np.random.default_rng([seed, 0x6C6561726E])
        self.on_new_model()

    def on_new_model(self) -> None:
        """Handles a change of the control model."""
        if self._explores:
            assert isinstance(self.control, Network), "a driver does not learn"
            self._deviation = self.control.deviation().detach().numpy().copy()

    def on_perception(self, robot: int, perception: Perception) -> None:
        """Handles the arrival of a robot's perception; older ones than the leader has do not count."""
        if perception.tick > self._has[robot].tick:
            self._has[robot] = perception

    def infer(self, leader: int, own: Perception) -> Floats:
        """Returns an action for each robot. `own` is what the leader itself perceives now."""
        self._has[leader] = own
        used = list(self._has)
        images, vectors = np.stack([p.image for p in used]), np.stack([p.vector for p in used])
        mean = self.control.act(images, vectors)
        actions = mean
        if self._explores:
            noise = self._rng.standard_normal(mean.shape, dtype=np.float32)
            actions = (mean + self._deviation * noise).astype(np.float32, copy=False)
        if self.collector.open:
            self.collector.add(used, images, vectors, actions)
        return actions

    def state(self) -> dict[str, Any]:
        """Returns the state for a checkpoint; the control model is not part of it."""
        return {
            "random": self._rng.bit_generator.state,
            "has": [vars(perception) for perception in self._has],
            "collector": self.collector.state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Restores a result of `state`, after the control model."""
        self._rng.bit_generator.state = state["random"]
        self._has = [Perception(**perception) for perception in state["has"]]
        self.collector.restore(state["collector"])
        self.on_new_model()
