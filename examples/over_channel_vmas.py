"""A scenario of VMAS over the team's channel: `python examples/over_channel_vmas.py [--seconds S]`.

Five robots turn a beam by VMAS's own heuristic, as the leader tells them. Needs: pip install '.[learn]' vmas
"""

import argparse
from pathlib import Path

import numpy as np
import torch
import vmas
from gymnasium import spaces
from pettingzoo import ParallelEnv
from vmas.scenarios.wheel import HeuristicPolicy

from coorp.envs import OverChannel

TEAM = Path(__file__).with_name("navigation.toml")


class Scenario(ParallelEnv[str, np.ndarray, np.ndarray]):
    """One world of VMAS as a ParallelEnv."""

    def __init__(self, name: str, agents: int) -> None:
        self.metadata = {"name": f"vmas {name}"}
        self.world = vmas.make_env(name, num_envs=1, n_agents=agents, continuous_actions=True, dict_spaces=True, seed=0)
        self.possible_agents = [agent.name for agent in self.world.agents]
        sees, acts = self.world.observation_space.spaces, self.world.action_space.spaces
        self.observation_spaces = {name: spaces.Box(-np.inf, np.inf, space.shape) for name, space in sees.items()}
        self.action_spaces = {name: spaces.Box(space.low, space.high) for name, space in acts.items()}

    def reset(self, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        self.agents = list(self.possible_agents)
        seen = self.world.reset(seed=seed)
        return {name: value[0].numpy() for name, value in seen.items()}, {name: {} for name in self.agents}

    def step(self, actions: dict[str, np.ndarray]) -> tuple[dict, dict, dict, dict, dict]:
        told = {name: torch.as_tensor(action)[None] for name, action in actions.items()}
        seen, rewards, done, infos = self.world.step(told)
        seen = {name: value[0].numpy() for name, value in seen.items()}
        rewards = {name: value.item() for name, value in rewards.items()}
        ended, no = dict.fromkeys(self.agents, bool(done[0])), dict.fromkeys(self.agents, False)
        self.agents = [] if done[0] else self.agents
        return seen, rewards, ended, no, infos


def main() -> None:
    """Prints what the robots earn under each policy."""
    parser = argparse.ArgumentParser(description="A scenario of VMAS over the team's channel.")
    parser.add_argument("--seconds", type=float, default=30.0)
    seconds = parser.parse_args().seconds
    for policy in ("mpc-only", "edca", "coorp"):
        world = OverChannel(Scenario("wheel", agents=5), TEAM, policy, step_s=1 / 60)
        heuristic = HeuristicPolicy(continuous_action=True)
        seen, _ = world.reset(seed=1)
        earned = 0.0
        while world.agents and world.now_s < seconds:
            told = {name: heuristic.compute_action(torch.as_tensor(seen[name])[None], 1.0)[0] for name in world.agents}
            seen, rewards, _, _, _ = world.step({name: action.numpy() for name, action in told.items()})
            earned += sum(rewards.values())
        late = world.result().violation_rate or 0.0
        print(f"{policy:9} earned {earned:7.2f} in {world.now_s:.0f} s, {100 * late:4.1f} % of the loops late")


if __name__ == "__main__":
    main()
