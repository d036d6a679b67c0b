"""Trains the papers' team while it drives, with the Python API: `python examples/train_navigation.py [--minutes M]`.

Does the same as `coorp learn examples/navigation.toml`, without checkpoints and report. It is easy to change the
environment, the network, or how updates are combined. Needs: pip install '.[learn]'
"""

import argparse
from pathlib import Path

import torch

import coorp
from coorp.envs import Navigation
from coorp.learn.checkpoint import load_model
from coorp.learn.cosim import Cosim
from coorp.learn.fit import PRETRAINED, SHAPE
from coorp.learn.learner import Learner
from coorp.learn.ppo import Hyper


def main() -> None:
    """Trains the team, and prints its progress minute by minute."""
    parser = argparse.ArgumentParser(description="Train the papers' team while it drives.")
    parser.add_argument("--policy", default="coorp")
    parser.add_argument("--sync", default="bsp", choices=["bsp", "ssp", "asp"])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()

    torch.set_num_threads(1)  # the network is too small for several cores
    team = Path(__file__).with_name("navigation.toml")
    session = coorp.Session(team, options.policy, seed=options.seed, sync=options.sync)
    env = Navigation("unknown", robots=session.team.robots, endless=True)
    env.reset(seed=options.seed)
    control = load_model(PRETRAINED, SHAPE)
    learner = Learner(control, session.team, Hyper())
    run = Cosim(session, env, control, learner, seed=options.seed)

    seconds = max(1, round(60 * options.minutes))
    for minute in range(0, seconds, 60):
        until = min(minute + 60, seconds)
        run.run(until)
        history = run.history
        before = history.reward[minute - 1] if minute else 0.0
        gained = (history.reward[-1] - before) / ((until - minute) * len(session.team.robots))
        print(
            f"{run.now_s / 60:5.1f} min   reward per robot and second {gained:6.3f}   "
            f"collisions {history.collisions[-1]:4}   arrivals {history.arrivals[-1]:4}   "
            f"epochs {len(history.epochs_s)}"
        )
    result = session.result()
    # Bulk starts when the first batch is full, and nothing is late before the first loop ends.
    print(f"violation rate {result.violation_rate or 0:.3f}, bulk {result.bulk_mbps or 0:.1f} Mbit/s")


if __name__ == "__main__":
    main()
