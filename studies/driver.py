"""Measures how well the shipped policies and the planner drive if nothing but the loop's own time is in the way.

    pip install '.[learn]'
    python studies/driver.py [--quick] [--markdown] [--gif FILE]

Five robots, endless, in both levels of `coorp.envs.Navigation`. Thirty loops a second; each command takes effect 31 ms
after its perceptions, as on a channel without bulk. Success is the share of drives that arrived, of all that ended; the
others collided or ran out of time. Near misses are defined in `coorp.envs.task.NEAR_MISS_S`. 95 % intervals are
Poisson's. A robot restarts wherever there is room, at rest, and 1 m from an obstacle that may be coming: collisions
soon after a start are counted beside the others.

The planner sees everything and is what the driver imitates. The driver reads poses, goals and the measured positions
and velocities of obstacles. `images` is the same driver with eyes: each robot's own image, pose, velocity and goal.
`navigation` is the policy from which `coorp learn` starts: it reads images, and was trained without obstacles at 4.5
m/s.

With --gif, also draws a minute of the driver in `unknown` at 1.5 m/s. If the package or torch is missing, the study
says so and succeeds. It exits with 1 if the driver misses its goal, with or without eyes: at 1.5 m/s, success of 95 %
and fewer than five collisions per robot-hour.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from lib.simulator import PARALLEL
from lib.table import number, percent, show

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

    from coorp.envs import Navigation

    Policy = Callable[[Navigation], np.ndarray]

HZ, DELAY_S = 30, 0.031
ROBOTS = 5
GOAL_SUCCESS, GOAL_RATE = 0.95, 5.0
GOAL_MPS = 1.5
LEVELS = ("known", "unknown")
SPEEDS_MPS = {
    "driver": (1.5, 3.0, 4.5),
    "images": (1.5, 3.0, 4.5),
    "planner": (1.5,),
    "navigation": (1.5, 4.5),
}
"""By policy."""
START_S = 2.0
"""A collision this soon after a start counts as one of the start's; divided by the pace, as all times."""
MINUTES = {"driver": (15, 4), "images": (15, 4), "planner": (5, 0), "navigation": (2, 2)}
"""Of each run at the goal's speed, and at others; there is one run for each seed."""
QUICK_MINUTES = 0.2
SEEDS, QUICK_SEEDS = range(101, 105), range(101, 102)
FILM_S, FILM_HZ, FILM_PIXELS, COLOURS = 60, 8, 240, 32


@dataclass(frozen=True)
class Job:
    """One run."""

    policy: str
    level: str
    speed_mps: float
    seed: int
    minutes: float


@dataclass
class Sums:
    """What a run, or several, counted."""

    hours: float = 0.0
    arrivals: int = 0
    collisions: int = 0
    timeouts: int = 0
    near_misses: int = 0
    at_starts: int = 0
    to_goal_s: float = 0.0

    def add(self, other: Sums) -> None:
        """Adds another run."""
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)

    @property
    def success(self) -> float:
        """Share of ended drives that arrived."""
        return self.arrivals / max(1, self.arrivals + self.collisions + self.timeouts)


def make_env(level: str, speed_mps: float, seed: int) -> Navigation:
    """Returns a world at its start."""
    from coorp.envs import Navigation, Task
    from coorp.learn.driver import NEARBY

    task = Task.at(speed_mps)
    env = Navigation(level, robots=ROBOTS, task=task, endless=True, nearby=NEARBY, render_mode="rgb_array")
    env.reset(seed=seed)
    return env


def make_policy(name: str, env: Navigation) -> Policy:
    """Returns what chooses velocities."""
    from coorp.envs import Planner
    from coorp.learn.fit import PRETRAINED, load, velocities

    if name == "planner":
        planner = Planner(env.task)
        return lambda env: planner.velocities(env, DELAY_S)
    network = load(PRETRAINED.with_name(f"{name}.pt"), env.task)
    numbers = network.shape["vector"]

    def act(env: Navigation) -> np.ndarray:
        images, vectors = env.observe()
        return velocities(network.act(images, vectors[:, :numbers].copy()), env.task)

    return act


def drive(env: Navigation, policy: Policy, seconds: float, on_loop: Callable[[], None] = lambda: None) -> None:
    """Drives on for this time."""
    first = round(env.now_ns * HZ / 1e9)
    for loop in range(first, first + round(seconds * HZ)):
        chosen = policy(env)
        env.advance_to(loop / HZ + DELAY_S)
        for robot, velocity in enumerate(chosen):
            env.set_velocity(robot, velocity)
        env.advance_to((loop + 1) / HZ)
        on_loop()


def counted(env: Navigation) -> Sums:
    """Returns what an environment has counted."""
    tally = env.tally()
    return Sums(
        hours=float(tally.driven_s.sum()) / 3600,
        arrivals=int(tally.arrivals.sum()),
        collisions=int(tally.collisions.sum()),
        timeouts=int(tally.timeouts.sum()),
        near_misses=int(tally.near_misses.sum()),
        to_goal_s=float(tally.to_goal_s.sum()),
    )


def run(job: Job) -> Sums:
    """Runs a job."""
    import torch

    from coorp.envs import Ending

    torch.set_num_threads(1)
    env = make_env(job.level, job.speed_mps, job.seed)
    drive(env, make_policy(job.policy, env), job.minutes * 60)
    sums, began = counted(env), [0.0] * ROBOTS
    for t_ns, robot, code in env.take_events().tolist():
        sums.at_starts += Ending(code).collision and t_ns / 1e9 - began[robot] < START_S * GOAL_MPS / job.speed_mps
        began[robot] = t_ns / 1e9
    return sums


def film(path: Path, seconds: int) -> None:
    """Draws the driver in `unknown` at the goal's speed."""
    import torch
    from PIL import Image

    torch.set_num_threads(1)
    env = make_env("unknown", GOAL_MPS, 1)
    frames: list[Image.Image] = []

    def draw() -> None:
        if env.now_ns * FILM_HZ / 1e9 >= len(frames):
            picture = env.render()
            assert picture is not None
            frames.append(Image.fromarray(picture).resize((FILM_PIXELS, FILM_PIXELS)).quantize(COLOURS))

    drive(env, make_policy("driver", env), seconds, draw)
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=1000 // FILM_HZ, loop=0, optimize=True)
    print(f"{path}: {path.stat().st_size:,} bytes")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one seed and seconds, for CI: shows nothing")
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    parser.add_argument("--gif", type=Path, help="draw a minute of the driver to this file, and measure nothing")
    arguments = parser.parse_args()
    missing = [name for name in ("coorp", "torch") if importlib.util.find_spec(name) is None]
    if missing:
        print(f"skipped: needs {' and '.join(missing)}; in the repository: pip install '.[learn]'")
        return 0
    if arguments.gif is not None:
        film(arguments.gif, FILM_S)
        return 0
    quick = arguments.quick
    cases: list[tuple[str, str, float]] = [
        (policy, level, speed) for policy, level in product(SPEEDS_MPS, LEVELS) for speed in SPEEDS_MPS[policy]
    ]
    jobs = [
        Job(*case, seed, QUICK_MINUTES if quick else MINUTES[case[0]][case[2] != GOAL_MPS])
        for case in cases
        for seed in (QUICK_SEEDS if quick else SEEDS)
    ]
    measured = {case: Sums() for case in cases}
    with ProcessPoolExecutor(PARALLEL) as pool:
        for job, sums in zip(jobs, pool.map(run, jobs), strict=True):
            measured[job.policy, job.level, job.speed_mps].add(sums)
            print(f"{job}: {sums.collisions} collisions, {sums.arrivals} arrivals", file=sys.stderr, flush=True)
    return report(measured, quick=quick, markdown=arguments.markdown)


def report(measured: dict[tuple[str, str, float], Sums], *, quick: bool, markdown: bool) -> int:
    """Prints the table and whether the goal is met; returns the exit code."""
    from coorp.learn.outcome import poisson_interval

    rows, good = [], True
    for (policy, level, speed_mps), sums in measured.items():
        rate = sums.collisions / sums.hours
        low, high = (limit / sums.hours for limit in poisson_interval(sums.collisions))
        cells = [number(speed_mps), number(sums.hours), percent(sums.success, 2)]
        cells += [str(sums.collisions), number(rate), f"{number(low)} to {number(high)}"]
        cells += [number(sums.at_starts / sums.hours), number(sums.near_misses / sums.hours, 0), str(sums.timeouts)]
        cells.append(number(sums.to_goal_s / max(1, sums.arrivals), 2))
        rows.append([f"{policy}, {level}", *cells])
        if policy in ("driver", "images") and speed_mps == GOAL_MPS:
            good &= sums.success >= GOAL_SUCCESS and rate < GOAL_RATE
    titles = [
        "",
        "m/s",
        "robot-hours",
        "success",
        "collisions",
        "per robot-hour",
        "95 %",
        "of which soon after a start",
    ]
    show([*titles, "near misses per robot-hour", "time-outs", "time to goal, s"], rows, markdown=markdown)
    if quick:
        print("seconds show nothing; this only checks that everything runs")
        return 0
    print(
        f"{'shown' if good else 'NOT SHOWN'}: at {GOAL_MPS} m/s, the driver has, with and without eyes, a success of "
        f"{percent(GOAL_SUCCESS, 0)} or more and fewer than {GOAL_RATE:g} collisions per robot-hour in both levels"
    )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
