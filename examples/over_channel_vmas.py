"""VMAS's wheel over the team's channel: five robots turn a beam by VMAS's own heuristic, as their leader tells them.

Needs: pip install '.[learn]' vmas. Takes the virtual time in seconds: 30, unless given.
"""

import sys
from pathlib import Path

import torch
from vmas.scenarios.wheel import HeuristicPolicy

from coorp.envs import OverChannel
from coorp.envs.vmas import Scenario

SECONDS = float(sys.argv[1]) if sys.argv[1:] else 30.0
heuristic = HeuristicPolicy(continuous_action=True)

for policy in ("mpc-only", "edca", "coorp"):
    team = Path(__file__).with_name("navigation.toml")
    world = OverChannel(Scenario("wheel", agents=5), team, policy, step_s=1 / 60)
    seen, _ = world.reset(seed=1)
    earned = 0.0
    while world.agents and world.now_s < SECONDS:
        told = {name: heuristic.compute_action(torch.as_tensor(seen[name])[None], 1.0)[0] for name in world.agents}
        seen, rewards, *_ = world.step({name: action.numpy() for name, action in told.items()})
        earned += sum(rewards.values())
    late = world.result().violation_rate or 0.0
    print(f"{policy:9} earned {earned:7.2f} in {world.now_s:.0f} s, {100 * late:4.1f} % of the loops late")
