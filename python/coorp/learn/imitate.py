"""Trains the driver: it imitates `coorp.envs.Planner`, which sees everything, in the states that its own driving leads
to (DAgger: Ross, Gordon and Bagnell, AISTATS 2011).

    python -m coorp.learn.imitate [--rounds 100] [--seed 1] [--out driver.pt]

In Coorp's source, `--out python/coorp/learn/pretrained/driver.pt` replaces the shipped weights.

Teams drive in parallel, in both levels and at several paces. In each loop, the planner says what each of its arcs would
cost, as seen from when the command will take effect. The driver learns from all loops so far. It is charged what its
choice costs more than the cheapest (cost-sensitive classification), so what matters most is where a wrong choice is a
collision. Some teams are driven by the planner, some commands are lost and some are random, so that the driver also
learns to come back from where it would not go by itself.

Prints a line for each round, which ships as driver.log beside the weights.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coorp.envs import ARCS, NEARBY_FIELDS, VECTOR_FIELDS, Navigation, Planner, Task
from coorp.learn import checkpoint
from coorp.learn.driver import ACTIONS, NEARBY, Driver, Floats, inputs, limits
from coorp.learn.fit import DRIVER
from coorp.learn.pretrain import DELAY_S, ROBOTS, TEAMS, Teams

SPEEDS_MPS = (1.5, 1.5, 3.0, 4.5)
LEVELS = ("unknown", "unknown", "unknown", "known")
"""Of every four teams, and of every four fours."""
LOOPS = 150
"""Loops per team in a round."""
GUIDED = 0.2
"""Share of rounds in which the planner drives a team; it drives all in the first."""
LOST, RANDOM = 0.03, 0.02
"""Shares of commands that are lost, and that are random."""
STEPS = 50
"""Gradient steps in a round."""
FINAL_STEPS = 1_500
"""Gradient steps after the last one."""
BATCH = 200
"""Team loops in a gradient step."""
RATE = 1e-3
REGRET_MAX = 8.0
"""A choice that costs more than this above the cheapest counts as this, in metres of path at full speed."""
SHARPNESS_M = 0.15
"""Choices that differ by less than this are about as good; the driver also learns their order."""
ORDER_WEIGHT = 0.1


class Memory:
    """All loops so far: what the leader saw, and what each choice would have cost above the cheapest."""

    def __init__(self, loops: int, envs: list[Navigation]) -> None:
        teams = len(envs)
        self.vectors = np.zeros((loops, teams, ROBOTS, Driver().shape["vector"]), dtype=np.float32)
        self.regrets = np.zeros((loops, teams, ROBOTS, len(ARCS)), dtype=np.float16)
        self._limits = np.stack([limits(env.task) for env in envs])
        self.count = 0

    def add(self, vectors: Floats, costs: NDArray[np.float64]) -> None:
        """Adds a loop of all teams."""
        self.vectors[self.count] = vectors
        self.regrets[self.count] = np.minimum(costs - costs.min(axis=-1, keepdims=True), REGRET_MAX)
        self.count += 1

    def sample(self, rng: np.random.Generator) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor]:
        """Returns a random batch, as seen from a random side and in a mirror half of the time."""
        loops, teams = rng.integers(self.count, size=BATCH), rng.integers(len(self._limits), size=BATCH)
        vectors, regrets = self.vectors[loops, teams], self.regrets[loops, teams].astype(np.float32)
        vectors = turned(vectors, self._limits[0, 2], rng)
        half = BATCH // 2
        vectors[:half], regrets[:half] = mirrored(vectors[:half], regrets[:half], self._limits[0, 3])
        return inputs(vectors, self._limits[teams]), torch.from_numpy(regrets)


def turned(vectors: Floats, side_m: float, rng: np.random.Generator) -> Floats:
    """Returns the same worlds, each turned by a random number of quarters. Only a robot's own pose refers to it."""
    x, y, cos, sin = np.moveaxis(vectors[..., :4], -1, 0)
    quarters = rng.integers(4, size=(len(vectors), 1))
    poses = [
        (x, y, cos, sin),
        (side_m - y, x, -sin, cos),
        (side_m - x, side_m - y, -cos, -sin),
        (y, side_m - x, sin, -cos),
    ]
    result = vectors.copy()
    for column, options in enumerate(zip(*poses, strict=True)):
        result[..., column] = np.choose(quarters, options)
    return result


def mirrored(vectors: Floats, regrets: Floats, height_m: float) -> tuple[Floats, Floats]:
    """Returns the same worlds upside down, in which left is right."""
    sides = [-1.0 if _is_sideways(name) else 1.0 for name in VECTOR_FIELDS]
    sides += [-1.0 if _is_sideways(name) else 1.0 for name in NEARBY_FIELDS] * NEARBY
    result = vectors * np.array(sides, dtype=np.float32)
    result[..., 1] = height_m - result[..., 1]
    return result, regrets[..., _MIRRORED]


def _is_sideways(name: str) -> bool:
    return name.startswith(("sin_", "turn_", "left_"))


_MIRRORED = [int(np.abs(ARCS - arc * [1, -1]).sum(axis=1).argmin()) for arc in ARCS]


def loss(logits: Tensor, regrets: Tensor) -> Tensor:
    """Returns the mean of what choices cost above the cheapest, and how far their order is off."""
    log_share = logits.log_softmax(-1)
    wanted = (-regrets / SHARPNESS_M).softmax(-1)
    regret = (log_share.exp() * regrets).sum(-1).mean()
    return regret - ORDER_WEIGHT * (wanted * log_share).sum(-1).mean()


def make_envs() -> list[Navigation]:
    """Returns a world for each team."""
    return [
        Navigation(
            LEVELS[number // 4 % 4],
            robots=ROBOTS,
            task=Task.at(SPEEDS_MPS[number % 4]),
            endless=True,
            nearby=NEARBY,
        )
        for number in range(TEAMS)
    ]


class Imitation:
    """One training."""

    def __init__(self, rounds: int, seed: int) -> None:
        torch.manual_seed(seed)
        self.driver = Driver()
        self._rng = np.random.default_rng([seed, 0x696D69])
        self._teams = Teams(make_envs(), seed)
        envs = self._teams.envs
        self._planners = [Planner(env.task) for env in envs]
        self._limits = np.stack([limits(env.task) for env in envs])
        self._memory = Memory(rounds * LOOPS, envs)
        self._adam = torch.optim.Adam(self.driver.parameters(), lr=RATE)
        self._steps = rounds * STEPS + FINAL_STEPS
        self._made = 0

    def gather(self, guided: NDArray[np.bool_]) -> None:
        """Drives for a round; the planner drives the `guided` teams."""
        rng, envs = self._rng, self._teams.envs
        before = np.zeros((len(envs), ROBOTS), dtype=np.int64)
        for _ in range(LOOPS):
            vectors = np.stack([env.observe()[1] for env in envs])
            costs = np.stack([it.costs(env, DELAY_S) for it, env in zip(self._planners, envs, strict=True)])
            self._memory.add(vectors, costs)
            with torch.inference_mode():
                chosen = self.driver(*inputs(vectors, self._limits)).argmax(-1).numpy()
            chosen[guided] = costs.argmin(-1)[guided]
            chance = rng.random(chosen.shape)
            chosen = np.where(chance < RANDOM, rng.integers(len(ARCS), size=chosen.shape), chosen)
            chosen = np.where(chance > 1 - LOST, before, chosen)
            self._teams.drive(ACTIONS[chosen])
            before = chosen

    def train(self, steps: int) -> float:
        """Makes gradient steps; returns the mean loss."""
        losses = []
        for _ in range(steps):
            share = self._made / self._steps
            self._adam.param_groups[0]["lr"] = RATE * 0.5 * (1 + np.cos(np.pi * share))
            batch, regrets = self._memory.sample(self._rng)
            value = loss(self.driver(*batch), regrets)
            self._adam.zero_grad()
            value.backward()
            torch.nn.utils.clip_grad_norm_(self.driver.parameters(), 1.0)
            self._adam.step()
            self._made += 1
            losses.append(value.item())
        return float(np.mean(losses))

    def run(self, rounds: int) -> None:
        """Trains, and prints how each round went."""
        began_s = time.monotonic()
        for number in range(rounds):
            guided = self._rng.random(TEAMS) < (1.0 if number == 0 else GUIDED)
            before = self._teams.tally()
            self.gather(guided)
            made = (self._teams.tally() - before)[~guided].sum(axis=0)
            mean = self.train(STEPS)
            print(
                f"round {number + 1} of {rounds}, {time.monotonic() - began_s:.0f} s: loss {mean:.3f}; "
                f"driving by itself, arrived {made[0]}, collided {made[1]}, timed out {made[2]}",
                flush=True,
            )
        mean = self.train(FINAL_STEPS)
        print(f"{FINAL_STEPS} last steps, {time.monotonic() - began_s:.0f} s: loss {mean:.3f}", flush=True)


def main() -> int:
    """Runs the command."""
    parser = argparse.ArgumentParser(description="Train the driver to imitate the planner.")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--out", type=checkpoint.new_model, default=DRIVER.name, help=f"file for the weights [{DRIVER.name}]"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    imitation = Imitation(options.rounds, options.seed)
    imitation.run(options.rounds)
    made_by = f"python -m coorp.learn.imitate --rounds {options.rounds} --seed {options.seed}"
    checkpoint.save_model(options.out, imitation.driver, made_by)
    print(f"{options.out.name}: {options.out.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
