"""Parameter synchronisation: how the leader combines the robots' updates (001, section II-A; its reference [34]).

What it decides: when updates that have come in are put into the model, and with what weight. *When the model goes out*
to whom is decided in the simulator (`crates/sim/src/drlc.rs`), from the same rules and at the same instants:

- BSP: once a round, when all robots' updates of it are in.
- SSP with bound s: when the sender of an update is at most s rounds ahead of the slowest robot, or a slower one has
  caught up so far that somebody who waited may go on. Until then its update waits with it.
- ASP: each update by itself, as it comes.

An update is how far a robot has moved the model (ppo.py). Updates that are put in together are averaged in the order of
the robots, and scaled by the share of the team that they come from. So N robots' lone updates move the model about as
far as one of all N; with s = 0 SSP is BSP bit for bit; and alone, each of the three is plain PPO.

A robot computes its update on the model it *has*: between MODEL_OUT and MODEL_IN that is still its old one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

PARADIGMS = ("bsp", "ssp", "asp")


class Sync(ABC):
    """The leader's side of one epoch after the other."""

    def __init__(self, model: Tensor, robots: int) -> None:
        assert robots > 0
        self._model = model.clone()
        self.rounds = [0] * robots
        """Rounds of this epoch whose update the leader has, of each robot."""
        self._waiting: dict[int, Tensor] = {}

    def begin_epoch(self) -> None:
        """Partitions go out: rounds count from zero."""
        assert not self._waiting, "updates of the last epoch that nobody used"
        self.rounds = [0] * len(self.rounds)

    def on_update(self, robot: int, update: Tensor) -> None:
        """The leader has a robot's update."""
        assert robot not in self._waiting, f"robot {robot} sent an update before it had an answer to its last"
        self._waiting[robot] = update
        self.rounds[robot] += 1
        if self._due():
            self._combine()

    def model(self) -> Tensor:
        """The model as of now: what MODEL_OUT sends."""
        return self._model.clone()

    @abstractmethod
    def _due(self) -> bool:
        """Whether what waits goes into the model now."""

    def _combine(self) -> None:
        updates = [update for _, update in sorted(self._waiting.items(), key=lambda item: item[0])]
        self._waiting.clear()
        self._model += torch.stack(updates).mean(0) * (len(updates) / len(self.rounds))

    def state(self) -> dict[str, object]:
        """All that goes into a checkpoint."""
        return {"rounds": list(self.rounds), "waiting": dict(self._waiting), "model": self._model.clone()}

    def restore(self, state: dict) -> None:
        """Puts back what `state` gave."""
        self.rounds = list(state["rounds"])
        self._waiting = dict(state["waiting"])
        self._model.copy_(state["model"])


class Bsp(Sync):
    """Bulk synchronous parallel."""

    def _due(self) -> bool:
        return len(self._waiting) == len(self.rounds)


class Ssp(Sync):
    """Stale synchronous parallel: nobody gets more than `staleness` rounds ahead of the slowest."""

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
    """The synchronisation of this name, one of `PARADIGMS`."""
    match paradigm:
        case "bsp":
            return Bsp(model, robots)
        case "ssp":
            return Ssp(model, robots, staleness)
        case "asp":
            return Asp(model, robots)
    raise ValueError(f"unknown paradigm '{paradigm}'; there are {', '.join(PARADIGMS)}")
