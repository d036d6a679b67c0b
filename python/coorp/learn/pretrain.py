"""Makes the policy that `coorp learn` starts from: PPO in the easier environment, with no network in between.

    python -m coorp.learn.pretrain [--minutes 400] [--seed 1] [--rate 0.001] [--out FILE]

Several teams drive side by side at 30 Hz, each among few and slow obstacles (level `known`); every command takes effect
at once. Nothing here needs to be like the DRLC, so a batch is larger and goes in minibatches. The weights kept are
those of the batch with the best mean reward over the last few.
"""

from __future__ import annotations

import argparse
import sys
from collections import deque
from pathlib import Path

import numpy as np
import torch

from coorp.envs import Navigation
from coorp.learn import checkpoint, ppo
from coorp.learn.fit import PRETRAINED, fresh, velocities
from coorp.learn.network import Network, flat, load_flat
from coorp.learn.ppo import Hyper, Optimiser, Transitions

LEVEL = "known"
TEAMS = 8
ROBOTS = 5
LOOPS = 256
"""Loops of every team in a batch."""
PARTS = 8
PASSES = 4
HZ = 30
BEST_OF = 20


class Teams:
    """Teams that drive side by side; arrays begin (teams, robots)."""

    def __init__(self, seed: int, level: str = LEVEL) -> None:
        self.envs = [Navigation(level, robots=ROBOTS, endless=True, control_hz=HZ) for _ in range(TEAMS)]
        for number, env in enumerate(self.envs):
            env.reset(seed=seed * 1_000 + number)
        self.step = 0

    def observe(self) -> tuple[np.ndarray, np.ndarray]:
        """What every robot perceives now."""
        seen = [env.observe() for env in self.envs]
        return np.stack([images for images, _ in seen]), np.stack([vectors for _, vectors in seen])

    def drive(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """One period. Returns rewards, and whose drive ended."""
        self.step += 1
        rewards = np.zeros(actions.shape[:2], dtype=np.float32)
        ended = np.zeros(actions.shape[:2], dtype=np.bool_)
        for number, env in enumerate(self.envs):
            for robot, velocity in enumerate(velocities(actions[number])):
                env.set_velocity(robot, velocity)
            env.advance_to_ns(round(self.step * 1e9 / HZ))
            rewards[number] = env.take_rewards()
            ended[number, env.take_events()["robot"]] = True
        return rewards, ended

    def tally(self) -> tuple[int, int, int]:
        """Arrivals, collisions and drives given up, since the start."""
        tallies = [env.tally() for env in self.envs]
        sums = [(int(t.arrivals.sum()), int(t.collisions.sum()), int(t.timeouts.sum())) for t in tallies]
        return sum(s[0] for s in sums), sum(s[1] for s in sums), sum(s[2] for s in sums)


def gather(network: Network, teams: Teams, rng: np.random.Generator) -> list[Transitions]:
    """A batch from each team."""
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
    """Trains for so many minutes of driving, of all teams together."""
    torch.manual_seed(seed)
    rng = np.random.default_rng([seed, 0x707265])
    network = fresh()
    optimiser = Optimiser(flat(network), hyper)
    teams = Teams(seed)
    batches = max(1, round(minutes * 60 * HZ / (LOOPS * TEAMS)))
    recent: deque[float] = deque(maxlen=BEST_OF)
    best, kept = -np.inf, flat(network)
    before = teams.tally()
    for number in range(batches):
        gathered = gather(network, teams, rng)
        recent.append(float(np.mean([got.rewards.mean() for got in gathered])) * HZ)
        if len(recent) == BEST_OF and np.mean(recent) > best:
            best, kept = float(np.mean(recent)), flat(network)
        optimiser.hyper = hyper.slowed(1 - number / batches)
        batch = ppo.joined([ppo.prepare(network, got, hyper) for got in gathered])
        for _ in range(PASSES):
            for part in range(PARTS):
                load_flat(network, optimiser.parameters)
                optimiser.step(ppo.gradient(network, batch.part(part, PARTS), hyper))
        load_flat(network, optimiser.parameters)
        if number % 20 == 19:
            now = teams.tally()
            arrivals, collisions, timeouts = (b - a for a, b in zip(before, now, strict=True))
            before = now
            print(
                f"batch {number + 1} of {batches}: reward per robot and second {np.mean(recent):.3f}, "
                f"arrived {arrivals}, collided {collisions}, gave up {timeouts}",
                flush=True,
            )
    load_flat(network, kept)
    return network


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description="Pre-train the policy that coorp learn starts from.")
    parser.add_argument("--minutes", type=float, default=400.0, help="driving of all teams together [400]")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--out", type=Path, default=PRETRAINED)
    options = parser.parse_args()
    torch.set_num_threads(1)
    network = pretrain(options.minutes, options.seed, Hyper(rate=options.rate))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    made_by = (
        f"python -m coorp.learn.pretrain --minutes {options.minutes:g} --seed {options.seed} --rate {options.rate:g}"
    )
    checkpoint.save_model(options.out, network, made_by)
    print(f"{options.out}: {options.out.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
