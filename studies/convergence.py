"""Measures whether learning while driving pays off, how soon under each policy, and what late commands cost.

    pip install '.[learn]'
    python studies/convergence.py [--quick] [--markdown]

`coorp learn` on examples/navigation.toml, with batches of forty seconds and three rounds, from the shipped weights, in
the environment that they do not know (Deng 2022, section VI-B; figures 2b and 9, table I). Four questions:

1. Does learning help? A run's final weights and the shipped ones drive, frozen, on a seed not used for learning: reward
per robot and second. Over seeds, with the standard error of the paired difference. 2. How soon? The middle of the first
quarter of an hour in which the mean reward of the learning runs reaches half way from its start to its end under
`edca`. Relative to `edca`, with a 95 % interval from 2,000 bootstrap samples of the seeds, independently for each
policy. 3. How long does an epoch take, relative to `edca`? 4. What do late commands cost? Collisions per robot-hour
with the weights learnt under `coorp` and BSP, frozen, under each policy, relative to `mpc-only`, which has no bulk; 95
% intervals, and a two-sided test of two Poisson rates.

If the package or torch is missing, the study says so and succeeds. At the end it lists which claims it shows. It exits
with 1 if a claim is not shown or a run fails; a single seed cannot show any.
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
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
from lib.simulator import MADE, PARALLEL, REPOSITORY
from lib.table import number, percent, show

Rewards = np.ndarray[tuple[int, int], np.dtype[np.float64]]
"""Rewards, of shape (runs, seconds)."""
EXAMPLE = REPOSITORY / "examples" / "navigation.toml"
OUT = MADE / "convergence"
TEAM = OUT / EXAMPLE.name
BATCH_LOOPS, ROUNDS = 1_200, 3
"""Loops in a batch. The example's ten seconds contain a dozen collisions, so the gradient would be mostly noise. A
round takes some fifteen seconds on the air, and more passes over the same batch teach less than newer batches."""
NO_BULK = "mpc-only"
LEARNERS = ("edca", "schedwifi", "coorp")
DRIVERS = (NO_BULK, "edca", "coorp")
GIVES_WEIGHTS = "coorp"
SIGNIFICANT_SE = 3.0
SOON_ENOUGH = 1.05
"""Maximum of Coorp's time to the goal relative to edca's."""
SIGNIFICANT_P = 0.05
DRAWS = 2_000
UNSEEN = 1000
"""Offset of the seeds of the runs that evaluate weights."""


@dataclass(frozen=True)
class Effort:
    """The extent of the study."""

    minutes: int
    """Minutes of learning."""
    seeds: dict[str, range]
    """Seeds of each paradigm."""
    judged_minutes: int
    """Minutes of driving with the weights of a run."""
    late_minutes: int
    """Minutes of driving for question 4, per seed and policy."""
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
    """The run whose final weights this one drives with, frozen."""
    frozen: bool = False

    @property
    def out(self) -> Path:
        if self.learner is not None:
            return self.learner.out / f"weights-of-{self.learner.name}"
        return OUT / ("shipped" if self.frozen else "learning")

    @property
    def name(self) -> str:
        if self.policy == NO_BULK:
            return self.policy
        return f"{self.policy}-{self.sync}{'-frozen' if self.frozen else ''}"

    @property
    def folder(self) -> Path:
        return self.out / f"{TEAM.stem}-seed{self.seed}" / self.name


@dataclass(frozen=True)
class Run:
    """The outcome of a run."""

    robots: int
    hours: float
    collisions: int
    violation: float
    total_reward: list[float]
    """Reward over all robots, one figure per second."""
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
    """Runs a job."""
    command = [sys.executable, "-m", "coorp", "learn", str(TEAM), "--policy", job.policy, "--seed", str(job.seed)]
    command += ["--minutes", str(job.minutes), "--out", str(job.out), "--sync", job.sync, "--no-gif", "--no-report"]
    command.append("--overwrite")
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
    """Writes the example with larger batches and fewer rounds."""
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
    """Returns the run that evaluates the weights of a run, or the shipped ones in the same way."""
    learner = None if shipped else job
    return Job(job.policy, job.sync, UNSEEN + job.seed, effort.judged_minutes, learner, frozen=True)


def late(policy: str, seed: int, effort: Effort) -> Job:
    """Returns a run for question 4."""
    learner = Job(GIVES_WEIGHTS, "bsp", seed, effort.minutes)
    return Job(policy, "bsp", 2 * UNSEEN + seed, effort.late_minutes, learner, frozen=True)


def print_gain(runs: dict[Job, Run], effort: Effort, *, markdown: bool) -> bool:
    """Answers question 1. Returns whether learning helps under BSP, under every policy."""
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


def curves(runs: list[Run], smooth_s: int) -> Rewards:
    """Returns the reward per robot and second of each run, averaged over `smooth_s`, by the first second of that
    interval."""
    count = min(len(run.total_reward) for run in runs)
    total = np.array([run.total_reward[:count] for run in runs]) / runs[0].robots
    return (total[:, smooth_s:] - total[:, :-smooth_s]) / smooth_s


def reached_s(rewards: Rewards, goal: float, smooth_s: int) -> float:
    """Returns the time at which the runs' mean first reaches the goal: the middle of that interval, in s. Infinite if
    it never does."""
    there = rewards.mean(axis=0) >= goal
    return float(there.argmax()) + smooth_s / 2 if there.any() else math.inf


def interval(statistic: Callable[[np.random.Generator], float]) -> str:
    """Returns the middle 95 % of a statistic over bootstrap samples of the seeds."""
    rng = np.random.default_rng(1)
    low, high = np.quantile([statistic(rng) for _ in range(DRAWS)], [0.025, 0.975], method="nearest")
    return f"{number(float(low), 2)} to {number(float(high), 2) if math.isfinite(high) else 'never'}"


def drawn(rewards: Rewards, rng: np.random.Generator) -> Rewards:
    """Returns the same number of runs, drawn with replacement."""
    return rewards[rng.integers(len(rewards), size=len(rewards))]


def print_speed(runs: dict[Job, Run], effort: Effort, *, markdown: bool) -> dict[str, float]:
    """Answers questions 2 and 3. Returns the time at which each policy reaches the goal under BSP, relative to edca;
    NaN if edca's reward does not rise, because then there is no goal."""
    rows: list[list[str]] = []
    bsp: dict[str, float] = {}
    for sync, seeds in effort.seeds.items():
        of = {policy: [runs[Job(policy, sync, seed, effort.minutes)] for seed in seeds] for policy in LEARNERS}
        smooth = {policy: curves(of[policy], effort.smooth_s) for policy in LEARNERS}
        first, last = smooth["edca"].mean(axis=0)[[0, -1]]
        goal = float((first + last) / 2) if last > first else math.nan
        alone = reached_s(smooth["edca"], goal, effort.smooth_s)
        epochs = {policy: statistics.fmean(run.epoch_s for run in of[policy]) for policy in LEARNERS}
        for policy in LEARNERS:

            def again(
                rng: np.random.Generator,
                goal: float = goal,
                both: tuple[Rewards, Rewards] = (smooth[policy], smooth["edca"]),
            ) -> float:
                own, edca = (reached_s(drawn(rewards, rng), goal, effort.smooth_s) for rewards in both)
                return own / edca if math.isfinite(edca) else 0.0

            at = reached_s(smooth[policy], goal, effort.smooth_s)
            ratio = at / alone if math.isfinite(alone) else math.nan
            if sync == "bsp":
                bsp[policy] = ratio
            spread = interval(again) if policy != "edca" and len(seeds) > 2 and math.isfinite(alone) else "-"
            cells = [number(goal, 2), number(at, 0) if math.isfinite(at) else "never", number(ratio, 2), spread]
            cells += [number(epochs[policy], 1), number(epochs[policy] / epochs["edca"], 2)]
            rows.append([f"{policy}, {sync.upper()}", *cells])
    print("2. and 3. When the reward first reaches the goal, and how long an epoch takes.\n")
    titles = ["", "goal", "reached, s", "over edca's", "95 %", "epoch, s", "over edca's"]
    show(titles, rows, markdown=markdown)
    return bsp


def print_cost(runs: dict[Job, Run], effort: Effort, *, markdown: bool) -> dict[str, tuple[int, float]]:
    """Answers question 4. Returns the collisions under each policy, and the robot-hours."""
    counts: dict[str, tuple[int, float]] = {}
    rows: list[list[str]] = []
    for policy in DRIVERS:
        of = [runs[late(policy, seed, effort)] for seed in effort.seeds["bsp"]]
        count, hours = sum(run.collisions for run in of), sum(run.hours * run.robots for run in of)
        counts[policy] = (count, hours)
        half = 1.96 * math.sqrt(count) / hours
        rate, alone = count / hours, counts[NO_BULK]
        cells = [percent(statistics.fmean(run.violation for run in of)), number(hours, 0), str(count)]
        cells.append(f"{number(rate - half)} to {number(rate + half)}")
        if policy == NO_BULK:
            cells += ["1", "-", "-"]
        else:
            ratio, spread = rate / (alone[0] / alone[1]), math.exp(1.96 * math.sqrt(1 / count + 1 / alone[0]))
            cells += [number(ratio, 3), f"{number(ratio / spread, 3)} to {number(ratio * spread, 3)}"]
            cells.append(number(same_rate(alone, counts[policy]), 3))
        cells.append(number(statistics.fmean(run.mean for run in of), 2))
        rows.append([policy, *cells])
    print("4. Learnt weights, frozen: collisions per robot-hour, with 95 % intervals; p: no difference to mpc-only.\n")
    titles = ["policy", "violations", "robot-hours", "collisions", "per robot-hour", "over mpc-only's", "95 %", "p"]
    show([*titles, "reward"], rows, markdown=markdown)
    against = same_rate(counts["coorp"], counts["edca"])
    print(f"That edca and coorp collide equally often: p = {number(against, 4)}.\n")
    return counts


def same_rate(one: tuple[int, float], other: tuple[int, float]) -> float:
    """Returns p of two counts over their hours if the rates are equal: given their sum, one is binomial (here
    normal)."""
    total, share = one[0] + other[0], one[1] / (one[1] + other[1])
    if total == 0:
        return 1.0
    z = (one[0] - total * share) / math.sqrt(total * share * (1 - share))
    return math.erfc(abs(z) / math.sqrt(2))


def draw(runs: dict[Job, Run], effort: Effort) -> Path:
    """Draws the reward over virtual time, one panel per paradigm; the band is plus or minus one standard error."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(
        1, len(effort.seeds), figsize=(5 * len(effort.seeds), 3.6), sharey=True, squeeze=False
    )
    for panel, (sync, seeds) in zip(panels[0], effort.seeds.items(), strict=True):
        for policy in LEARNERS:
            rewards = curves([runs[Job(policy, sync, seed, effort.minutes)] for seed in seeds], effort.smooth_s)
            minutes = (np.arange(rewards.shape[1]) + effort.smooth_s / 2) / 60
            [line] = panel.plot(minutes, rewards.mean(axis=0), label=policy)
            if len(seeds) > 1:
                error = rewards.std(axis=0, ddof=1) / math.sqrt(len(seeds))
                low, high = rewards.mean(axis=0) - error, rewards.mean(axis=0) + error
                panel.fill_between(minutes, low, high, color=line.get_color(), alpha=0.15, linewidth=0)
        panel.set_title(f"{sync.upper()}, {len(seeds)} seeds" if len(seeds) > 1 else f"{sync.upper()}, one seed")
        panel.set_xlabel("virtual time, minutes")
        panel.grid(alpha=0.3)
    panels[0][0].set_ylabel(f"reward per robot and second,\nmean of {effort.smooth_s / 60:g} minutes")
    panels[0][0].legend()
    path = OUT / "reward.png"
    figure.savefig(path, dpi=110, bbox_inches="tight", metadata={"Software": None})
    return path


def judge(clear: bool, ratios: dict[str, float], counts: dict[str, tuple[int, float]]) -> bool:
    """Prints which claims hold under BSP; returns whether all do."""
    rates = {policy: count / hours for policy, (count, hours) in counts.items()}
    more = rates["edca"] > rates["coorp"] and same_rate(counts["edca"], counts["coorp"]) < SIGNIFICANT_P
    claims = [
        (f"learning gains more than {SIGNIFICANT_SE:g} standard errors under every policy", clear),
        (f"coorp reaches the goal in at most {SOON_ENOUGH:g} times edca's time", ratios["coorp"] <= SOON_ENOUGH),
        ("schedwifi reaches it later than edca", ratios["schedwifi"] > 1),
        ("edca collides more often than coorp", more),
        ("coorp cannot be distinguished from no bulk", same_rate(counts[NO_BULK], counts["coorp"]) >= SIGNIFICANT_P),
    ]
    for claim, holds in claims:
        print(f"{'shown' if holds else 'NOT SHOWN'}: {claim}")
    return all(holds for _, holds in claims)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one seed and a few minutes, for CI: shows no effect")
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
    ratios = print_speed(runs, effort, markdown=markdown)
    counts = print_cost(runs, effort, markdown=markdown)
    print(f"reward over time: {draw(runs, effort).relative_to(REPOSITORY)}")
    if len(effort.seeds["bsp"]) == 1:
        print("one seed shows nothing; this only checks that everything runs")
        return 0
    return 0 if judge(clear, ratios, counts) else 1


if __name__ == "__main__":
    sys.exit(main())
