"""Trains the initial policy of `coorp learn`: PPO in the easier environment, without a network in between.

    python -m coorp.learn.pretrain [--minutes 100] [--seed 1] [--rate 0.001] [--out navigation.pt]

In Coorp's source, `--out python/coorp/learn/pretrained/navigation.pt` replaces the shipped weights.

Several teams drive in parallel, without obstacles (level `known`), and every command takes effect as late as on a
channel without bulk. Nothing here needs to match the DRLC: there is one optimiser, and minibatches are larger.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np
import torch

from coorp.envs import Navigation
from coorp.learn import checkpoint, ppo
from coorp.learn.fit import PRETRAINED, fresh, velocities
from coorp.learn.network import Network, flat
from coorp.learn.ppo import Hyper, Optimiser, Transitions

LEVEL = "known"
TEAMS = 16
ROBOTS = 5
LOOPS = 64
"""Loops per team in a batch."""
PASSES = 3
MINIBATCH = 128
"""Loops."""
HZ = 30
DELAY_S = 0.031
"""Time from a perception to its command taking effect: about a loop of examples/navigation.toml under mpc-only."""
REPORT_EVERY = 20


class Teams:
    """Teams that drive in parallel; arrays start with (teams, robots)."""

    def __init__(self, envs: list[Navigation], seed: int) -> None:
        self.envs = envs
        for number, env in enumerate(self.envs):
            env.reset(seed=seed * 1_000 + number)
        self.step = 0

    def observe(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns the current perceptions of all robots."""
        seen = [env.observe() for env in self.envs]
        return np.stack([images for images, _ in seen]), np.stack([vectors for _, vectors in seen])

    def drive(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Runs one period. Returns the rewards, and which robots' drives ended."""
        told_s = self.step / HZ + DELAY_S
        self.step += 1
        rewards = np.zeros(actions.shape[:2], dtype=np.float32)
        ended = np.zeros(actions.shape[:2], dtype=np.bool_)
        for number, env in enumerate(self.envs):
            env.advance_to(told_s)
            for robot, velocity in enumerate(velocities(actions[number], env.task)):
                env.set_velocity(robot, velocity)
            env.advance_to(self.step / HZ)
            rewards[number] = env.take_rewards()
            ended[number, env.take_events()["robot"]] = True
        return rewards, ended

    def tally(self) -> np.ndarray:
        """Returns each team's arrivals, collisions and timeouts since the start."""
        tallies = [env.tally() for env in self.envs]
        return np.array([[it.arrivals.sum(), it.collisions.sum(), it.timeouts.sum()] for it in tallies])


def gather(network: Network, teams: Teams, rng: np.random.Generator) -> list[Transitions]:
    """Returns a batch from each team."""
    deviation = network.deviation().detach().numpy()
    columns: list[list[np.ndarray]] = [[], [], [], [], []]
    images, vectors = teams.observe()
    for _ in range(LOOPS):
        with torch.inference_mode():
            mean = network.policy(network.seen(torch.from_numpy(images), torch.from_numpy(vectors))).numpy()
        actions = mean + deviation * rng.standard_normal(mean.shape, dtype=np.float32)
        rewards, ended = teams.drive(actions)
        for column, value in zip(columns, (images, vectors, actions, rewards, ended), strict=True):
            column.append(value)
        images, vectors = teams.observe()
    seen, numbers, done, gained, ends = (np.stack(column) for column in columns)
    return [
        Transitions(seen[:, t], numbers[:, t], done[:, t], gained[:, t], ends[:, t], images[t], vectors[t])
        for t in range(TEAMS)
    ]


def pretrain(minutes: float, seed: int, hyper: Hyper) -> Network:
    """Trains for this many minutes of driving, over all teams together."""
    torch.manual_seed(seed)
    rng = np.random.default_rng([seed, 0x707265])
    network = fresh()
    optimiser = Optimiser(flat(network), hyper)
    teams = Teams([Navigation(LEVEL, robots=ROBOTS, endless=True) for _ in range(TEAMS)], seed)
    batches = max(1, round(minutes * 60 * HZ / (LOOPS * TEAMS)))
    rewards: list[float] = []
    before = teams.tally()
    for number in range(batches):
        gathered = gather(network, teams, rng)
        rewards.append(float(np.mean([got.rewards.mean() for got in gathered])) * HZ)
        optimiser.hyper = hyper.slowed(1 - number / batches)
        batch = ppo.joined([ppo.prepare(network, got, hyper) for got in gathered])
        ppo.train(network, optimiser, batch, PASSES)
        if (number + 1) % REPORT_EVERY == 0:
            now = teams.tally()
            arrivals, collisions, timeouts = (now - before).sum(axis=0)
            before = now
            print(
                f"batch {number + 1} of {batches}: reward per robot and second {np.mean(rewards[-REPORT_EVERY:]):.3f}, "
                f"arrived {arrivals}, collided {collisions}, timed out {timeouts}",
                flush=True,
            )
    return network


def main() -> int:
    """Runs the command."""
    parser = argparse.ArgumentParser(description="Pre-train the policy that coorp learn starts from.")
    parser.add_argument("--minutes", type=float, default=100.0, help="driving time of all teams together [100]")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rate", type=float, default=Hyper.rate)
    parser.add_argument(
        "--out", type=checkpoint.new_model, default=PRETRAINED.name, help=f"file for the weights [{PRETRAINED.name}]"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    network = pretrain(options.minutes, options.seed, Hyper(rate=options.rate, minibatch_loops=MINIBATCH))
    made_by = (
        f"python -m coorp.learn.pretrain --minutes {options.minutes:g} --seed {options.seed} --rate {options.rate:g}"
    )
    checkpoint.save_model(options.out, network, made_by)
    print(f"{options.out}: {options.out.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
