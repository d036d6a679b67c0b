"""Whether learning while driving pays, how soon under each policy, and what late commands cost.

    pip install '.[learn]'
    python studies/convergence.py [--quick] [--markdown]

`coorp learn` on examples/navigation.toml, with batches of forty seconds and three rounds, from the shipped weights, in
the environment that they do not know (001, section VI-B; figures 2b and 9, table I). Four questions:

1. Does learning help? The weights that a run ends with drive, frozen, on a seed that was not learnt on, and so do the
   shipped ones: reward per robot and second. Over seeds, with the standard error of the paired difference.
2. How soon? The first time at which the reward of the learning runs, averaged over seeds and a quarter of an hour, is
   half way from where it begins to where it ends under `edca`. Over that of `edca`; with the range over leaving out one
   seed.
3. How long does an epoch take, over that of `edca`?
4. What does being late cost? Collisions per robot-hour of the weights learnt under `coorp` and BSP, frozen, under each
   policy, with 95 % confidence intervals, and whether each differs from `mpc-only`, which has no bulk at all (two-sided
   test of two Poisson rates).

Where the package or torch is missing the study says so and ends well. It ends with 1 where learning does not help under
BSP, or a run fails.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import re
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from lib.simulator import MADE, PARALLEL, REPOSITORY
from lib.table import number, percent, show

EXAMPLE = REPOSITORY / "examples" / "navigation.toml"
OUT = MADE / "convergence"
TEAM = OUT / EXAMPLE.name
BATCH_LOOPS, ROUNDS = 1_200, 3
"""Of a batch. In the example's ten seconds a dozen collisions happen, so that its gradient is mostly noise; a round
takes the air some fifteen seconds, and more passes over the same batch teach worse than newer batches do."""
NO_BULK = "mpc-only"
LEARNERS = ("edca", "schedwifi", "coorp")
DRIVERS = (NO_BULK, "edca", "coorp")
GIVES_WEIGHTS = "coorp"
SIGNIFICANT_SE = 3.0
UNSEEN = 1000
"""Added to a seed for the drives that judge weights."""


@dataclass(frozen=True)
class Effort:
    """What is run."""

    minutes: int
    """Of learning."""
    seeds: dict[str, range]
    """Of each paradigm."""
    judged_minutes: int
    """Of driving with the weights of a run."""
    late_minutes: int
    """Of driving for question 4, for each seed and policy."""
    smooth_s: int


FULL = Effort(180, {"bsp": range(1, 6), "ssp": range(1, 2), "asp": range(1, 2)}, 10, 90, 900)
QUICK = Effort(6, {"bsp": range(1, 2)}, 1, 1, 60)


@dataclass(frozen=True)
class Job:
    """One run of `coorp learn`."""

    policy: str
    sync: str
    seed: int
    minutes: int
    learner: Job | None = None
    """Frozen, with the weights that this run ended with."""
    frozen: bool = False

    @property
    def out(self) -> Path:
        if self.learner is not None:
            return self.learner.out / f"weights-of-{self.learner.name}"
        return OUT / ("shipped" if self.frozen else "learning")

    @property
    def name(self) -> str:
        return self.policy if self.policy == NO_BULK else f"{self.policy}-{self.sync}"

    @property
    def folder(self) -> Path:
        return self.out / f"{TEAM.stem}-seed{self.seed}" / self.name


@dataclass(frozen=True)
class Run:
    """What came of one."""

    robots: int
    hours: float
    collisions: int
    violation: float
    total_reward: list[float]
    """Over all robots, a figure a second."""
    epochs_s: list[float]

    @property
    def mean(self) -> float:
        """Reward per robot and second."""
        return self.total_reward[-1] / (len(self.total_reward) * self.robots)

    @property
    def rate(self) -> float:
        """Collisions per robot-hour."""
        return self.collisions / (self.hours * self.robots)

    @property
    def epoch_s(self) -> float:
        return self.epochs_s[-1] / len(self.epochs_s) if self.epochs_s else math.nan


def run(job: Job) -> Run:
    """Runs it."""
    command = [sys.executable, "-m", "coorp", "learn", str(TEAM), "--policy", job.policy, "--seed", str(job.seed)]
    command += ["--minutes", str(job.minutes), "--out", str(job.out), "--sync", job.sync, "--no-gif", "--no-report"]
    if job.frozen:
        command.append("--frozen")
    if job.learner is not None:
        command += ["--model", str(job.learner.folder / "model.pt")]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "TQDM_DISABLE": "1"})
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr}")
    content = json.loads((job.folder / "outcome.json").read_text())
    history = content["history"]
    return Run(
        content["robots"],
        content["minutes"] / 60,
        content["collisions"],
        content["violation_rate"],
        history["reward"],
        history["epochs_s"],
    )


def write_team() -> None:
    """The example with larger batches and fewer rounds."""
    text = EXAMPLE.read_text()
    for field, value in (("batch_loops", BATCH_LOOPS), ("rounds", ROUNDS)):
        text, count = re.subn(rf"^{field} = \d+", f"{field} = {value}", text, flags=re.MULTILINE)
        assert count == 1, f"{EXAMPLE} has {count} {field}"
    OUT.mkdir(parents=True, exist_ok=True)
    TEAM.write_text(text)


def learning_jobs(effort: Effort) -> list[Job]:
    return [
        Job(policy, sync, seed, effort.minutes)
        for sync, seeds in effort.seeds.items()
        for seed, policy in product(seeds, LEARNERS)
    ]


def judged(job: Job, effort: Effort, *, shipped: bool) -> Job:
    """The drive that judges the weights of a run, or the shipped ones where it would."""
    learner = None if shipped else job
    return Job(job.policy, job.sync, UNSEEN + job.seed, effort.judged_minutes, learner, frozen=True)


def late(policy: str, seed: int, effort: Effort) -> Job:
    """A drive for question 4."""
    learner = Job(GIVES_WEIGHTS, "bsp", seed, effort.minutes)
    return Job(policy, "bsp", 2 * UNSEEN + seed, effort.late_minutes, learner, frozen=True)


def print_gain(runs: dict[Job, Run], effort: Effort, *, markdown: bool) -> bool:
    """Question 1. Whether learning helps under BSP, under every policy."""
    rows: list[list[str]] = []
    clear = True
    for sync, policy in product(effort.seeds, LEARNERS):
        jobs = [Job(policy, sync, seed, effort.minutes) for seed in effort.seeds[sync]]
        learnt, before = ([runs[judged(job, effort, shipped=shipped)] for job in jobs] for shipped in (False, True))
        gains = [a.mean - b.mean for a, b in zip(learnt, before, strict=True)]
        gain = statistics.fmean(gains)
        error = statistics.stdev(gains) / math.sqrt(len(gains)) if len(gains) > 1 else math.nan
        if sync == "bsp" and len(gains) > 1:
            clear &= gain > SIGNIFICANT_SE * error
        rewards = [number(statistics.fmean(run.mean for run in of), 2) for of in (before, learnt)]
        collisions = [number(statistics.fmean(run.rate for run in of), 0) for of in (before, learnt)]
        cells = [*rewards, number(gain, 2, sign=True), number(error, 2), number(gain / error if error else math.nan, 1)]
        rows.append([f"{policy}, {sync.upper()}", str(len(gains)), *cells, *collisions])
    print("1. Reward per robot and second of the shipped and of the learnt weights, driving frozen on unseen seeds.\n")
    titles = ["", "seeds", "shipped", "learnt", "gain", "standard error", "gain over it"]
    show([*titles, "collisions/h, shipped", "learnt"], rows, markdown=markdown)
    return clear


def curve(runs: list[Run], smooth_s: int) -> list[float]:
    """Reward per robot and second by virtual second, averaged over runs and the `smooth_s` before; from then on."""
    count = min(len(run.total_reward) for run in runs)
    total = [statistics.fmean(run.total_reward[second] / run.robots for run in runs) for second in range(count)]
    return [(total[s] - total[s - smooth_s]) / smooth_s for s in range(smooth_s, count)]


def reached_s(runs: list[Run], goal: float, smooth_s: int) -> float:
    """When their curve first gets to the goal, s."""
    smooth = curve(runs, smooth_s)
    return next((float(second + smooth_s) for second, reward in enumerate(smooth) if reward >= goal), math.nan)


def ratios(of: dict[str, list[Run]], policy: str, goal: float, smooth_s: int) -> list[float]:
    """When a policy's curve reaches the goal over when edca's does: with all seeds, and with each left out."""
    subsets = [range(len(of["edca"]))]
    if len(subsets[0]) > 2:
        subsets += [[i for i in subsets[0] if i != out] for out in subsets[0]]
    return [
        reached_s([of[policy][i] for i in chosen], goal, smooth_s)
        / reached_s([of["edca"][i] for i in chosen], goal, smooth_s)
        for chosen in subsets
    ]


def print_speed(runs: dict[Job, Run], effort: Effort, *, markdown: bool) -> None:
    """Questions 2 and 3."""
    rows: list[list[str]] = []
    for sync, seeds in effort.seeds.items():
        of = {policy: [runs[Job(policy, sync, seed, effort.minutes)] for seed in seeds] for policy in LEARNERS}
        smooth = curve(of["edca"], effort.smooth_s)
        goal = (smooth[0] + smooth[-1]) / 2
        epochs = {policy: statistics.fmean(run.epoch_s for run in of[policy]) for policy in LEARNERS}
        for policy in LEARNERS:
            ratio, *others = ratios(of, policy, goal, effort.smooth_s)
            spread = f"{number(min(others), 2)} to {number(max(others), 2)}" if others else "-"
            cells = [number(goal, 2), number(reached_s(of[policy], goal, effort.smooth_s), 0), number(ratio, 2), spread]
            cells += [number(epochs[policy], 1), number(epochs[policy] / epochs["edca"], 2)]
            rows.append([f"{policy}, {sync.upper()}", *cells])
    print("2. and 3. When the reward first gets to the goal, and how long an epoch takes.\n")
    titles = ["", "goal", "reached, s", "over edca's", "leaving out a seed", "epoch, s", "over edca's"]
    show(titles, rows, markdown=markdown)


def print_cost(runs: dict[Job, Run], effort: Effort, *, markdown: bool) -> None:
    """Question 4."""
    counts: dict[str, tuple[int, float]] = {}
    rows: list[list[str]] = []
    for policy in DRIVERS:
        of = [runs[late(policy, seed, effort)] for seed in effort.seeds["bsp"]]
        count, hours = sum(run.collisions for run in of), sum(run.hours * run.robots for run in of)
        counts[policy] = (count, hours)
        half = 1.96 * math.sqrt(count) / hours
        rate, alone = count / hours, counts[NO_BULK]
        cells = [percent(statistics.fmean(run.violation for run in of)), number(hours, 0), str(count)]
        cells += [f"{number(rate - half)} to {number(rate + half)}", number(rate / (alone[0] / alone[1]), 3)]
        cells.append("-" if policy == NO_BULK else number(same_rate(counts[NO_BULK], counts[policy]), 3))
        cells.append(number(statistics.fmean(run.mean for run in of), 2))
        rows.append([policy, *cells])
    print("4. Learnt weights, frozen: collisions per robot-hour with 95 % intervals; p: no difference to mpc-only.\n")
    titles = ["policy", "violations", "robot-hours", "collisions", "per robot-hour", "over mpc-only's", "p", "reward"]
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
        for policy in LEARNERS:
            rewards = curve([runs[Job(policy, sync, seed, effort.minutes)] for seed in seeds], effort.smooth_s)
            minutes = [(second + effort.smooth_s) / 60 for second in range(len(rewards))]
            panel.plot(minutes, rewards, label=policy)
        panel.set_title(f"{sync.upper()}, {len(seeds)} seeds")
        panel.set_xlabel("virtual time, minutes")
        panel.grid(alpha=0.3)
    panels[0][0].set_ylabel(f"reward per robot and second,\nmean of {effort.smooth_s / 60:g} minutes")
    panels[0][0].legend()
    path = OUT / "reward.png"
    figure.savefig(path, dpi=110, bbox_inches="tight", metadata={"Software": None})
    return path


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
    write_team()
    learning = learning_jobs(effort)
    driving = [judged(job, effort, shipped=shipped) for job, shipped in product(learning, (False, True))]
    driving += [late(policy, seed, effort) for policy, seed in product(DRIVERS, effort.seeds["bsp"])]
    runs: dict[Job, Run] = {}
    with ThreadPoolExecutor(PARALLEL) as pool:
        for jobs in (learning, driving):
            runs |= zip(jobs, pool.map(run, jobs), strict=True)
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
