"""Parameter synchronisation: how the leader combines the robots' updates (Deng 2022, section II-A; its reference [34]).

This module decides when received updates are applied to the model, and with what weight. The simulator
(`crates/sim/src/drlc.rs`) decides *when the model is sent* and to whom, by the same rules and at the same instants:

- BSP: once per round, when the updates of all robots have arrived.
- SSP with bound s: when the sender of an update is at most s rounds ahead of the slowest robot, or when a slower robot
  has caught up so far that a waiting one may continue. Until then its update waits too.
- ASP: each update by itself, on arrival.

An update is the distance by which a robot has moved the model (ppo.py). Updates applied together are averaged in the
order of the robots, and scaled by the share of the team that they come from. So separate updates of N robots move the
model about as far as one update of all N. With s = 0, SSP equals BSP bit for bit. For a single robot, each of the three
is plain PPO.

A robot computes its update on the model that it *has*: between MODEL_OUT and MODEL_IN, that is still the old one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

PARADIGMS = ("bsp", "ssp", "asp")


class Sync(ABC):
    """The leader's side of synchronisation, one epoch after another."""

    def __init__(self, model: Tensor, robots: int) -> None:
        assert robots > 0
        self._model = model.clone()
        self.rounds = [0] * robots
        """For each robot, the number of this epoch's rounds whose update the leader has."""
        self._waiting: dict[int, Tensor] = {}

    def begin_epoch(self) -> None:
        """Begins an epoch: partitions are sent, and rounds count from zero."""
        assert not self._waiting, "unused updates of the last epoch"
        self.rounds = [0] * len(self.rounds)

    def on_update(self, robot: int, update: Tensor) -> None:
        """Handles the arrival of a robot's update at the leader."""
        assert robot not in self._waiting, f"robot {robot} sent an update before the reply to its last one"
        self._waiting[robot] = update
        self.rounds[robot] += 1
        if self._due():
            self._combine()

    def model(self) -> Tensor:
        """Returns the current model, as sent by MODEL_OUT."""
        return self._model.clone()

    @abstractmethod
    def _due(self) -> bool:
        """Returns whether the waiting updates are applied now."""

    def _combine(self) -> None:
        updates = [update for _, update in sorted(self._waiting.items(), key=lambda item: item[0])]
        self._waiting.clear()
        self._model += torch.stack(updates).mean(0) * (len(updates) / len(self.rounds))

    def state(self) -> dict[str, object]:
        """Returns the state for a checkpoint."""
        return {"rounds": list(self.rounds), "waiting": dict(self._waiting), "model": self._model.clone()}

    def restore(self, state: dict) -> None:
        """Restores a result of `state`."""
        self.rounds = list(state["rounds"])
        self._waiting = dict(state["waiting"])
        self._model.copy_(state["model"])


class Bsp(Sync):
    """Bulk synchronous parallel."""

    def _due(self) -> bool:
        return len(self._waiting) == len(self.rounds)


class Ssp(Sync):
    """Stale synchronous parallel: no robot gets more than `staleness` rounds ahead of the slowest."""

    def __init__(self, model: Tensor, robots: int, staleness: int) -> None:
        assert staleness >= 0
        super().__init__(model, robots)
        self.staleness = staleness

    def _due(self) -> bool:
        slowest = min(self.rounds)
        return any(self.rounds[robot] - slowest <= self.staleness for robot in self._waiting)


class Asp(Sync):
    """Asynchronous parallel."""

    def _due(self) -> bool:
        return True


def make(paradigm: str, model: Tensor, robots: int, staleness: int) -> Sync:
    """Returns the synchronisation with this name, one of `PARADIGMS`."""
    match paradigm:
        case "bsp":
            return Bsp(model, robots)
        case "ssp":
            return Ssp(model, robots, staleness)
        case "asp":
            return Asp(model, robots)
    raise ValueError(f"unknown paradigm '{paradigm}'; choose one of {', '.join(PARADIGMS)}")
