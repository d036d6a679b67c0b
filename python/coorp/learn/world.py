"""The environment and what each robot has earned in it: in a simulated run (cosim.py), or a live one (live/link.py)."""

from __future__ import annotations

from typing import Any

import numpy as np

from coorp.envs import Navigation
from coorp.learn.inference import Perception
from coorp.learn.outcome import History

NS = 1_000_000_000


class World:
    """An endless environment that has been reset, with totals of rewards and endings."""

    def __init__(self, env: Navigation) -> None:
        robots = len(env.possible_agents)
        self.env = env
        self._rewards = np.zeros(robots)
        self._endings = [0] * robots

    def perceive(self, robot: int, tick: int) -> Perception:
        """Returns the current perception of `robot`."""
        self._settle()
        [image], [vector] = self.env.observe(robot)
        return Perception(tick, image, vector, float(self._rewards[robot]), self._endings[robot])

    def end_second(self, second: int, history: History) -> None:
        """Advances to this second, and adds it to the history."""
        self.env.advance_to_ns(second * NS)
        self._settle()
        history.add(second, float(self._rewards.sum()), self.env.tally())

    def _settle(self) -> None:
        """Records rewards and endings up to now."""
        self._rewards += self.env.take_rewards()
        for ended in self.env.take_events()["robot"].tolist():
            self._endings[ended] += 1

    def state(self) -> dict[str, Any]:
        """Returns the state for a checkpoint."""
        return {"env": self.env.get_state(), "rewards": self._rewards, "endings": self._endings}

    def restore(self, state: dict[str, Any]) -> None:
        """Restores a result of `state`."""
        self.env.set_state(state["env"])
        self._rewards = state["rewards"]
        self._endings = state["endings"]
