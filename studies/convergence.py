"""Whether learning while driving pays, how soon under each policy, and what late commands cost.

    pip install '.[learn]'
    python studies/convergence.py [--quick] [--markdown]

`coorp learn` on examples/navigation.toml, from the shipped weights, in the environment that they do not know (001,
section VI-B; figures 2b and 9, table I). Four questions:

1. Does learning help? Reward per robot and second over the last third of the run, against the same seed and policy
   with frozen weights; over seeds, with the standard error of the paired difference.
2. How soon? The first time at which the reward, averaged over seeds and two minutes, is half way from what the frozen
   weights get to what learning gets under `edca` at the end. Over that of `edca`.
3. How long does an epoch take, over that of `edca`?
4. What does being late cost? Collisions per robot-hour with frozen weights under each policy, with 95 % confidence
   intervals, and whether each differs from `mpc-only`, which has no bulk at all (two-sided test of two Poisson rates).

Where the package or torch is missing the study says so and ends well. It ends with 1 where learning does not help under
BSP, or a run fails.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from lib.simulator import MADE, PARALLEL, REPOSITORY
from lib.table import number, percent, show

TEAM = REPOSITORY / "examples" / "navigation.toml"
OUT = MADE / "convergence"
NO_BULK = "mpc-only"
LEARNERS = ("edca", "schedwifi", "coorp-paper", "coorp")
DRIVERS = (NO_BULK, *LEARNERS)
SMOOTH_S = 120
SIGNIFICANT_SE = 3.0


@dataclass(frozen=True)
class Effort:
    """What is run."""

    minutes: int
    seeds: dict[str, range]
    """Of each paradigm."""
    learners: tuple[str, ...]
    frozen_minutes: int
    frozen_seeds: range


FULL = Effort(30, {"bsp": range(1, 6), "ssp": range(1, 3), "asp": range(1, 3)}, LEARNERS, 60, range(1, 9))
QUICK = Effort(4, {"bsp": range(1, 2)}, ("edca", "coorp"), 2, range(1, 2))


@dataclass(frozen=True)
class Job:
    """One run of `coorp learn`."""

    policy: str
    sync: str
    """none: frozen weights."""
    seed: int
    minutes: int

    @property
    def frozen(self) -> bool:
        return self.sync == "none"


@dataclass(frozen=True)
class Run:
    """What came of one."""

    robots: int
    hours: float
    collisions: int
    violation: float
    reward: list[float]
    """Total over all robots, a figure a second."""
    epochs_s: list[float]

    def mean(self, first: float, last: float) -> float:
        """Reward per robot and second between two shares of the run."""
        a, b = (round(share * (len(self.reward) - 1)) for share in (first, last))
        return (self.reward[b] - self.reward[a]) / ((b - a) * self.robots)

    @property
    def epoch_s(self) -> float:
        return self.epochs_s[-1] / len(self.epochs_s) if self.epochs_s else math.nan


def run(job: Job) -> Run:
    """Runs it, or takes what an earlier call left."""
    kind = "frozen" if job.frozen else "learning"
    out = OUT / f"{kind}-{job.minutes}min"
    command = [sys.executable, "-m", "coorp", "learn", str(TEAM), "--policy", job.policy, "--seed", str(job.seed)]
    command += ["--minutes", str(job.minutes), "--out", str(out), "--no-gif", "--no-report"]
    command += ["--frozen"] if job.frozen else ["--sync", job.sync]
    folder = out / f"{TEAM.stem}-seed{job.seed}"
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "TQDM_DISABLE": "1"})
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr}")
    names = {job.policy, f"{job.policy}-{job.sync}", f"{job.policy}-bsp"}
    [found] = [path for name in names if (path := folder / name / "outcome.json").exists()]
    content = json.loads(found.read_text())
    history = content["history"]
    return Run(
        content["robots"],
        content["minutes"] / 60,
        content["collisions"],
        content["violation_rate"],
        history["reward"],
        history["epochs_s"],
    )


def print_gain(runs: dict[Job, Run], effort: Effort, *, markdown: bool) -> bool:
    """Question 1. Whether learning helps under BSP, under every policy."""
    rows: list[list[str]] = []
    clear = True
    for sync, policy in product(effort.seeds, effort.learners):
        seeds = effort.seeds[sync]
        learnt = [runs[Job(policy, sync, seed, effort.minutes)].mean(2 / 3, 1) for seed in seeds]
        frozen = [runs[Job(policy, "none", seed, effort.minutes)].mean(2 / 3, 1) for seed in seeds]
        gains = [a - b for a, b in zip(learnt, frozen, strict=True)]
        gain = statistics.fmean(gains)
        error = statistics.stdev(gains) / math.sqrt(len(gains)) if len(gains) > 1 else math.nan
        if sync == "bsp" and len(gains) > 1:
            clear &= gain > SIGNIFICANT_SE * error
        cells = [number(statistics.fmean(frozen), 3), number(statistics.fmean(learnt), 3)]
        cells += [number(gain, 3, sign=True), number(error, 3), number(gain / error if error else math.nan, 1)]
        rows.append([f"{policy}, {sync.upper()}", str(len(gains)), *cells])
    print("1. Reward per robot and second over the last third: frozen weights, learning, and the gain.\n")
    show(["", "seeds", "frozen", "learnt", "gain", "standard error", "gain over it"], rows, markdown=markdown)
    return clear


def curve(runs: list[Run]) -> list[float]:
    """Reward per robot and second by virtual second, averaged over runs and the last `SMOOTH_S`."""
    count = min(len(run.reward) for run in runs)
    total = [statistics.fmean(run.reward[second] / run.robots for run in runs) for second in range(count)]
    return [(total[s] - total[s - SMOOTH_S]) / SMOOTH_S for s in range(SMOOTH_S, count)]


def reached_s(rewards: list[float], goal: float) -> float:
    """When a curve first gets to the goal, s."""
    return next((float(second + SMOOTH_S) for second, reward in enumerate(rewards) if reward >= goal), math.nan)


def print_speed(runs: dict[Job, Run], effort: Effort, *, markdown: bool) -> None:
    """Questions 2 and 3."""
    rows: list[list[str]] = []
    for sync, seeds in effort.seeds.items():
        of = {p: [runs[Job(p, sync, seed, effort.minutes)] for seed in seeds] for p in effort.learners}
        frozen = [runs[Job("edca", "none", seed, effort.minutes)] for seed in seeds]
        start = statistics.fmean(run.mean(0, 1) for run in frozen)
        goal = (start + statistics.fmean(run.mean(2 / 3, 1) for run in of["edca"])) / 2
        times = {policy: reached_s(curve(of[policy]), goal) for policy in effort.learners}
        epochs = {policy: statistics.fmean(run.epoch_s for run in of[policy]) for policy in effort.learners}
        for policy in effort.learners:
            cells = [number(goal, 3), number(times[policy], 0), number(times[policy] / times["edca"], 2)]
            cells += [number(epochs[policy], 1), number(epochs[policy] / epochs["edca"], 2)]
            rows.append([f"{policy}, {sync.upper()}", *cells])
    print("2. and 3. When the reward first gets to the goal, and how long an epoch takes.\n")
    show(["", "goal", "reached, s", "over edca's", "epoch, s", "over edca's"], rows, markdown=markdown)


def print_cost(runs: dict[Job, Run], effort: Effort, *, markdown: bool) -> None:
    """Question 4."""
    counts: dict[str, tuple[int, float]] = {}
    rows: list[list[str]] = []
    for policy in DRIVERS:
        of = [runs[Job(policy, "none", seed, effort.frozen_minutes)] for seed in effort.frozen_seeds]
        count, hours = sum(run.collisions for run in of), sum(run.hours * run.robots for run in of)
        counts[policy] = (count, hours)
        half = 1.96 * math.sqrt(count) / hours
        rate, alone = count / hours, counts[NO_BULK]
        cells = [percent(statistics.fmean(run.violation for run in of)), number(hours, 0), str(count)]
        cells += [f"{number(rate - half)} to {number(rate + half)}", number(rate / (alone[0] / alone[1]), 3)]
        cells.append("-" if policy == NO_BULK else number(same_rate(counts[NO_BULK], counts[policy]), 3))
        rows.append([policy, *cells])
    print("4. Frozen weights: collisions per robot-hour with 95 % intervals; p: no difference to mpc-only.\n")
    titles = ["policy", "violations", "robot-hours", "collisions", "per robot-hour", "over mpc-only's", "p"]
    show(titles, rows, markdown=markdown)
    against = same_rate(counts["coorp"], counts["edca"])
    print(f"That edca and coorp collide as often: p = {number(against, 4)}.\n")


def same_rate(one: tuple[int, float], other: tuple[int, float]) -> float:
    """p of two counts over their hours if the rates are the same: given their sum, one is binomial (here normal)."""
    total, share = one[0] + other[0], one[1] / (one[1] + other[1])
    if total == 0:
        return math.nan
    z = (one[0] - total * share) / math.sqrt(total * share * (1 - share))
    return math.erfc(abs(z) / math.sqrt(2))


def draw(runs: dict[Job, Run], effort: Effort) -> Path:
    """Reward over virtual time, one panel a paradigm."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(
        1, len(effort.seeds), figsize=(5 * len(effort.seeds), 3.6), sharey=True, squeeze=False
    )
    for panel, (sync, seeds) in zip(panels[0], effort.seeds.items(), strict=True):
        for policy in effort.learners:
            rewards = curve([runs[Job(policy, sync, seed, effort.minutes)] for seed in seeds])
            minutes = [(second + SMOOTH_S) / 60 for second in range(len(rewards))]
            panel.plot(minutes, rewards, label=policy)
        panel.set_title(f"{sync.upper()}, {len(seeds)} seeds")
        panel.set_xlabel("virtual time, minutes")
        panel.grid(alpha=0.3)
    panels[0][0].set_ylabel(f"reward per robot and second,\nmean of {SMOOTH_S} s")
    panels[0][0].legend()
    path = OUT / "reward.png"
    figure.savefig(path, dpi=110, bbox_inches="tight", metadata={"Software": None})
    return path


def jobs_of(effort: Effort) -> list[Job]:
    """All runs, longest first."""
    jobs = [
        Job(policy, sync, seed, effort.minutes)
        for sync, seeds in effort.seeds.items()
        for policy, seed in product(effort.learners, seeds)
    ]
    frozen = [Job(policy, "none", seed, effort.minutes) for policy in effort.learners for seed in effort.seeds["bsp"]]
    frozen += [Job(policy, "none", seed, effort.frozen_minutes) for policy in DRIVERS for seed in effort.frozen_seeds]
    return jobs + list(dict.fromkeys(frozen))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one seed and minutes, for CI: shows no effect")
    parser.add_argument("--markdown", action="store_true", help="print the tables as Markdown")
    arguments = parser.parse_args()
    missing = [name for name in ("coorp", "torch") if importlib.util.find_spec(name) is None]
    if missing:
        print(f"skipped: needs {' and '.join(missing)}; in the repository: pip install '.[learn]'")
        return 0
    effort, markdown = QUICK if arguments.quick else FULL, arguments.markdown
    OUT.mkdir(parents=True, exist_ok=True)
    jobs = jobs_of(effort)
    with ThreadPoolExecutor(PARALLEL) as pool:
        runs = dict(zip(jobs, pool.map(run, jobs), strict=True))
    print(f"{effort.minutes} virtual minutes; seeds by paradigm: {effort.seeds}.\n")
    clear = print_gain(runs, effort, markdown=markdown)
    print_speed(runs, effort, markdown=markdown)
    print_cost(runs, effort, markdown=markdown)
    print(f"reward over time: {draw(runs, effort).relative_to(REPOSITORY)}")
    if not clear:
        print(f"FAIL: under BSP learning does not gain more than {SIGNIFICANT_SE:g} standard errors")
    return 0 if clear else 1


if __name__ == "__main__":
    sys.exit(main())
