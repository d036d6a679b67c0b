"""PettingZoo's pursuit over the team's channel: `python examples/over_channel_pursuit.py [--games N]`.

Five pursuers catch evaders on a grid. Each steps towards the nearest one that it saw, as the leader tells it; both are
late by what the channel takes. Chance decides single games. Needs: pip install '.[learn]' pygame scipy
"""

import argparse
import statistics
from pathlib import Path

import numpy as np
from pettingzoo.sisl import pursuit_v5

from coorp.envs import OverChannel

TEAM = Path(__file__).with_name("navigation.toml")
WAYS = {(-1, 0): 0, (1, 0): 1, (0, 1): 2, (0, -1): 3}


def chase(seen: np.ndarray, rng: np.random.Generator) -> int:
    """Returns the step towards the nearest evader of what a pursuer sees: (7, 7, 3), itself at the centre."""
    apart = np.argwhere(seen[:, :, 2] > 0) - np.array(seen.shape[:2]) // 2
    if not len(apart):
        return int(rng.integers(4))
    x, y = min(apart.tolist(), key=lambda place: abs(place[0]) + abs(place[1]))
    return WAYS.get((int(np.sign(x)), 0) if abs(x) >= abs(y) else (0, int(np.sign(y))), 4)


def main() -> None:
    """Prints how soon all evaders are caught under each policy."""
    parser = argparse.ArgumentParser(description="PettingZoo's pursuit over the team's channel.")
    parser.add_argument("--games", type=int, default=10)
    games = parser.parse_args().games
    for policy in ("mpc-only", "edca", "coorp"):
        took_s = []
        for seed in range(games):
            env = pursuit_v5.parallel_env(n_pursuers=5, n_evaders=20, surround=False, n_catch=1, max_cycles=10_000)
            world, rng = OverChannel(env, TEAM, policy, step_s=1 / 30), np.random.default_rng(seed)
            seen, _ = world.reset(seed=seed)
            while world.agents:
                seen, _, _, _, _ = world.step({agent: chase(seen[agent], rng) for agent in world.agents})
            took_s.append(world.now_s)
        print(f"{policy:9} all caught after {statistics.mean(took_s):5.1f} s, mean of {games} games")


if __name__ == "__main__":
    main()
