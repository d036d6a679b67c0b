"""PettingZoo's pursuit over the team's channel: five robots chase the nearest evader that their leader has heard of.

Needs: pip install '.[learn]' pygame scipy. Takes the number of games, of which chance decides each: one, unless given.
"""

import sys
from pathlib import Path

import numpy as np
from pettingzoo.sisl import pursuit_v5

from coorp.envs import OverChannel

rng = np.random.default_rng(1)


def chase(seen: np.ndarray) -> int:
    """Returns the step towards the nearest evader in what a robot sees: (7, 7, 3), itself at the centre."""
    x, y = min(np.argwhere(seen[:, :, 2]) - 3, key=lambda to: abs(to).sum(), default=rng.integers(-3, 3, size=2))
    return int(x > 0) if abs(x) >= abs(y) else 2 + int(y < 0)


for policy in ("mpc-only", "edca", "coorp"):
    for game in range(int(sys.argv[1]) if sys.argv[1:] else 1):
        env = pursuit_v5.parallel_env(n_pursuers=5, n_evaders=20, surround=False, n_catch=1, max_cycles=10_000)
        world = OverChannel(env, Path(__file__).with_name("navigation.toml"), policy, step_s=1 / 30)
        seen, _ = world.reset(seed=game)
        while world.agents:
            seen, *_ = world.step({agent: chase(seen[agent]) for agent in world.agents})
        print(f"{policy:9} game {game}: all caught after {world.now_s:5.1f} s")
