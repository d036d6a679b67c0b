"""The content of the DRLC: each robot's model and share of the batch, and the computations (Deng 2022, section I).

The simulator determines when things happen, this module what they contain. At BATCH_FULL the leader computes advantages
and distributes the batch. At TRAINED a robot's pass over its share, from its current model, is finished. At UPDATE_IN
the leader combines updates. Between MODEL_OUT and MODEL_IN a model is in flight. At EPOCH the combined model becomes
the control model. Until then the control loop continues with the old one, which collected the batch (Deng 2022, section
III-A).

Gradients are computed with CUDA if available. The control model stays on the CPU: it processes five small images in
less time than a GPU call takes.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from coorp import Team
from coorp.learn import ppo, sync
from coorp.learn.network import Network, flat, load_flat
from coorp.learn.ppo import Batch, Hyper, Optimiser, Transitions


class Learner:
    """The learning of one team. `control` is the network for inference; it changes only at the end of an epoch."""

    def __init__(self, control: Network, team: Team, hyper: Hyper) -> None:
        learning, robots = team.learning, len(team.robots)
        assert learning is not None, "a team without [learning]"
        self.control = control
        self.hyper = hyper
        self.sync = sync.make(learning.sync, flat(control), robots, learning.staleness or 0)
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._robot = copy.deepcopy(control).to(self._device)
        """The network in which a robot's update is computed; its weights are set beforehand."""
        self._optimisers = [Optimiser(flat(control), hyper) for _ in range(robots)]
        self._has: list[Tensor] = [self.sync.model() for _ in range(robots)]
        self._models_under_way: dict[int, Tensor] = {}
        self._updates_under_way: dict[int, Tensor] = {}
        self._batch: Batch | None = None

    def on_batch_full(self, got: Transitions | None) -> None:
        """Handles a full batch, which the leader distributes; if it is empty, there is nothing to learn from."""
        self._batch = None if got is None else ppo.prepare(self.control, got, self.hyper).to(self._device)
        self.sync.begin_epoch()

    def on_trained(self, robot: int) -> None:
        """Handles the end of a robot's computation: the robot sends its update."""
        if self._batch is None:
            self._updates_under_way[robot] = torch.zeros_like(self._has[robot])
            return
        share = self._batch.part(robot, len(self._has))
        self._updates_under_way[robot] = self._optimisers[robot].update(self._robot, self._has[robot], share)

    def on_update_in(self, robot: int) -> None:
        """Handles the arrival of a robot's update at the leader."""
        self.sync.on_update(robot, self._updates_under_way.pop(robot))

    def on_model_out(self, robot: int) -> None:
        """Handles the leader's sending of the current model to a robot."""
        self._models_under_way[robot] = self.sync.model()

    def on_model_in(self, robot: int) -> None:
        """Handles the arrival of the model at a robot."""
        self._has[robot] = self._models_under_way.pop(robot)

    def on_epoch(self) -> None:
        """Handles the end of an epoch: all robots have the model of their last round, which drives from now on."""
        load_flat(self.control, self.sync.model())
        self._batch = None

    def state(self) -> dict[str, Any]:
        """Returns the state for a checkpoint."""
        return {
            "control": flat(self.control),
            "sync": self.sync.state(),
            "optimisers": [optimiser.state() for optimiser in self._optimisers],
            "has": [model.clone() for model in self._has],
            "models": dict(self._models_under_way),
            "updates": dict(self._updates_under_way),
            "batch": None if self._batch is None else dict(vars(self._batch)),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Restores a result of `state`."""
        load_flat(self.control, state["control"])
        self.sync.restore(state["sync"])
        for optimiser, kept in zip(self._optimisers, state["optimisers"], strict=True):
            optimiser.restore(kept)
        self._has = list(state["has"])
        self._models_under_way = dict(state["models"])
        self._updates_under_way = dict(state["updates"])
        self._batch = None if state["batch"] is None else Batch(**state["batch"]).to(self._device)
