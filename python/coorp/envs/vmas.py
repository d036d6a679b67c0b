"""Scenarios of VMAS as PettingZoo's environments; needs VMAS (pip install vmas)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from pettingzoo import ParallelEnv
from vmas import make_env

Arrays = dict[str, np.ndarray]


class Scenario(ParallelEnv[str, np.ndarray, np.ndarray]):
    """One world of a VMAS scenario, such as "wheel". `options` are the scenario's own."""

    def __init__(self, name: str, agents: int, **options: Any) -> None:  # noqa: ANN401
        self.metadata = {"name": f"vmas {name}"}
        self.world: Any = make_env(
            name, num_envs=1, n_agents=agents, continuous_actions=True, dict_spaces=True, seed=0, **options
        )
        self.possible_agents = [agent.name for agent in self.world.agents]
        sees, acts = self.world.observation_space.spaces, self.world.action_space.spaces
        self._sees = {name: spaces.Box(-np.inf, np.inf, space.shape) for name, space in sees.items()}
        self._acts = {name: spaces.Box(space.low, space.high) for name, space in acts.items()}

    def observation_space(self, agent: str) -> spaces.Box:
        return self._sees[agent]

    def action_space(self, agent: str) -> spaces.Box:
        return self._acts[agent]

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Arrays, dict[str, dict[str, Any]]]:
        """Starts again."""
        self.agents = list(self.possible_agents)
        return _first(self.world.reset(seed=seed)), {name: {} for name in self.agents}

    def step(
        self, actions: Arrays
    ) -> tuple[Arrays, dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, Any]]]:
        """Moves all agents, until the scenario is done for all of them."""
        told = {name: torch.as_tensor(action)[None] for name, action in actions.items()}
        seen, rewards, done, infos = self.world.step(told)
        earned = {name: value.item() for name, value in rewards.items()}
        ended, no = dict.fromkeys(self.agents, bool(done[0])), dict.fromkeys(self.agents, False)
        self.agents = [] if done[0] else self.agents
        return _first(seen), earned, ended, no, infos


def _first(values: dict[str, torch.Tensor]) -> Arrays:
    return {name: value[0].numpy() for name, value in values.items()}
