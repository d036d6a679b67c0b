"""The content of the DRLC: each robot's model and share of the batch, and the computations (Deng 2022, section I).

The simulator or a live team determines when things happen, and this module what they contain. At BATCH_FULL the leader
computes advantages and distributes the batch. At TRAINED a robot's pass over its share, from its current model, is
finished. At UPDATE_IN the leader combines updates. Between MODEL_OUT and MODEL_IN a model is in flight. At EPOCH the
combined model becomes the control model. Until then the control loop continues with the old one, which collected the
batch (Deng 2022, section III-A).

In a simulated run, one `Learner` computes for all robots. In a live one, the leader's computes for the leader alone;
each other robot has its own `Pupil`, and its updates arrive.

Gradients are computed with CUDA if available. The control model stays on the CPU: it processes five small images in
less time than a GPU call takes.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from coorp import EventKind, Team
from coorp.learn import ppo, sync
from coorp.learn.inference import Inference
from coorp.learn.network import Network, flat, load_flat
from coorp.learn.ppo import Batch, Hyper, Optimiser, Transitions

# As plain numbers, see cosim.py.
COLLECT, BATCH_FULL, TRAINED = int(EventKind.COLLECT), int(EventKind.BATCH_FULL), int(EventKind.TRAINED)
UPDATE_IN, MODEL_OUT, MODEL_IN = int(EventKind.UPDATE_IN), int(EventKind.MODEL_OUT), int(EventKind.MODEL_IN)
EPOCH = int(EventKind.EPOCH)


class Pupil:
    """One robot's part: the model that it has, and its optimiser."""

    def __init__(self, model: Tensor, hyper: Hyper) -> None:
        self.has = model
        self.optimiser = Optimiser(model, hyper)

    def train(self, network: Network, share: Batch | None) -> Tensor:
        """Returns the update from a pass over a share of the batch, or zero without one. Overwrites the weights of
        `network`."""
        return torch.zeros_like(self.has) if share is None else self.optimiser.update(network, self.has, share)


class Learner:
    """The learning of one team. `control` is the network for inference; it changes only at the end of an epoch. `here`
    are the robots whose updates are computed here, by default all."""

    def __init__(self, control: Network, team: Team, hyper: Hyper, here: Iterable[int] | None = None) -> None:
        learning, robots = team.learning, len(team.robots)
        assert learning is not None, "a team without [learning]"
        self.control = control
        self.hyper = hyper
        self.sync = sync.make(learning.sync, flat(control), robots, learning.staleness or 0)
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._robot = copy.deepcopy(control).to(self._device)
        """The network in which a robot's update is computed; its weights are set beforehand."""
        self._robots = robots
        self._pupils = {robot: Pupil(self.sync.model(), hyper) for robot in (range(robots) if here is None else here)}
        self._models_under_way: dict[int, Tensor] = {}
        self._updates_under_way: dict[int, Tensor] = {}
        self._batch: Batch | None = None

    def on_event(self, kind: int, robot: int, inference: Inference) -> None:
        """Handles an event of learning. `inference` collects the batch, and gets the new model."""
        if kind == COLLECT:
            inference.collector.begin()
        elif kind == BATCH_FULL:
            self.on_batch_full(inference.collector.close())
        elif kind == TRAINED:
            self.on_trained(robot)
        elif kind == UPDATE_IN:
            self.on_update_in(robot)
        elif kind == MODEL_OUT:
            self.on_model_out(robot)
        elif kind == MODEL_IN:
            self.on_model_in(robot)
        elif kind == EPOCH:
            self.on_epoch()
            inference.on_new_model()

    def share(self, robot: int) -> Batch | None:
        """Returns a robot's share of the batch; None if there is nothing to learn from."""
        return None if self._batch is None else self._batch.part(robot, self._robots)

    def on_batch_full(self, got: Transitions | None) -> None:
        """Handles a full batch, which the leader distributes; if it is empty, there is nothing to learn from."""
        self._batch = None if got is None else ppo.prepare(self.control, got, self.hyper).to(self._device)
        self.sync.begin_epoch()

    def on_trained(self, robot: int) -> None:
        """Handles the end of a robot's computation: the robot sends its update."""
        self.send_update(robot, self._pupils[robot].train(self._robot, self.share(robot)))

    def send_update(self, robot: int, update: Tensor) -> None:
        """Handles a robot's update on its way to the leader."""
        self._updates_under_way[robot] = update

    def on_update_in(self, robot: int) -> None:
        """Handles the arrival of a robot's update at the leader."""
        self.sync.on_update(robot, self._updates_under_way.pop(robot))

    def on_model_out(self, robot: int) -> None:
        """Handles the leader's sending of the current model to a robot."""
        self._models_under_way[robot] = self.sync.model()

    def on_model_in(self, robot: int) -> None:
        """Handles the arrival of the model at a robot."""
        self._pupils[robot].has = self.take_model(robot)

    def sends_model(self, robot: int) -> bool:
        """Returns whether a model is on its way to a robot."""
        return robot in self._models_under_way

    def take_model(self, robot: int) -> Tensor:
        """Returns the model on its way to a robot, which is then no longer here."""
        return self._models_under_way.pop(robot)

    def on_epoch(self) -> None:
        """Handles the end of an epoch: all robots have the model of their last round, which drives from now on."""
        load_flat(self.control, self.sync.model())
        self._batch = None

    def state(self) -> dict[str, Any]:
        """Returns the state for a checkpoint."""
        return {
            "control": flat(self.control),
            "sync": self.sync.state(),
            "optimisers": [pupil.optimiser.state() for pupil in self._pupils.values()],
            "has": [pupil.has.clone() for pupil in self._pupils.values()],
            "models": dict(self._models_under_way),
            "updates": dict(self._updates_under_way),
            "batch": None if self._batch is None else dict(vars(self._batch)),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Restores a result of `state`."""
        load_flat(self.control, state["control"])
        self.sync.restore(state["sync"])
        for pupil, kept, has in zip(self._pupils.values(), state["optimisers"], state["has"], strict=True):
            pupil.optimiser.restore(kept)
            pupil.has = has
        self._models_under_way = dict(state["models"])
        self._updates_under_way = dict(state["updates"])
        self._batch = None if state["batch"] is None else Batch(**state["batch"]).to(self._device)
