"""Measures whether learning while driving pays off, how soon under each policy, and what late commands cost.

    pip install '.[learn]'
    python studies/convergence.py [--quick] [--resume] [--markdown]

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
import math
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from lib.edit import changed_key
from lib.learning import outcomes
from lib.simulator import MADE, REPOSITORY
from lib.table import number, percent, show

if TYPE_CHECKING:
    from coorp.learn.outcome import Outcome
    from coorp.learn.run import Plan

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
    kept: Path
    """The folder of the runs that learn."""

    def job(self, policy: str, sync: str, seed: int) -> Job:
        """Returns a run that learns."""
        return Job(policy, sync, seed, self.minutes, kept=self.kept)


FULL = Effort(180, {"bsp": range(1, 6), "ssp": range(1, 2), "asp": range(1, 2)}, 10, 90, 900, OUT / "learning")
QUICK = Effort(6, {"bsp": range(1, 2)}, 1, 1, 60, OUT / "quick" / "learning")


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
    kept: Path = OUT / "learning"
    """The folder of runs that learn. Whoever runs others has one of its own, because a run replaces an earlier one."""

    @property
    def out(self) -> Path:
        if self.learner is not None:
            return self.learner.out / f"weights-of-{self.learner.name}"
        return self.kept.with_name("shipped") if self.frozen else self.kept

    @property
    def name(self) -> str:
        if self.policy == NO_BULK:
            return self.policy
        return f"{self.policy}-{self.sync}{'-frozen' if self.frozen else ''}"

    @property
    def folder(self) -> Path:
        return self.out / f"{TEAM.stem}-seed{self.seed}" / self.name

    def plan(self, *, resume: bool) -> Plan:
        from coorp.learn.fit import PRETRAINED
        from coorp.learn.run import Plan

        return Plan(
            team=TEAM,
            policy=self.policy,
            sync="none" if self.policy == NO_BULK else self.sync,
            staleness=None,
            seed=self.seed,
            seconds=self.minutes * 60,
            frozen=self.frozen,
            model=PRETRAINED if self.learner is None else self.learner.folder / "model.pt",
            folder=self.folder,
            resume=resume,
            gif=False,
        )


def run(jobs: list[Job], *, resume: bool) -> dict[Job, Outcome]:
    """Runs all jobs."""
    return dict(zip(jobs, outcomes((job.plan(resume=resume) for job in jobs), resume=resume), strict=True))


def mean_reward(run: Outcome) -> float:
    """Returns the reward per robot and second."""
    return run.history.reward[-1] / (len(run.history.reward) * run.robots)


def write_team() -> None:
    """Writes the example with larger batches and fewer rounds."""
    text = EXAMPLE.read_text()
    for key, value in (("batch_loops", BATCH_LOOPS), ("rounds", ROUNDS)):
        text = changed_key(text, "learning", key, str(value))
    OUT.mkdir(parents=True, exist_ok=True)
    TEAM.write_text(text)


def learning_jobs(effort: Effort) -> list[Job]:
    return [
        effort.job(policy, sync, seed)
        for sync, seeds in effort.seeds.items()
        for seed, policy in product(seeds, LEARNERS)
    ]


def judged(job: Job, effort: Effort, *, shipped: bool) -> Job:
    """Returns the run that evaluates the weights of a run, or the shipped ones in the same way."""
    learner = None if shipped else job
    seed, minutes = UNSEEN + job.seed, effort.judged_minutes
    return Job(job.policy, job.sync, seed, minutes, learner, frozen=True, kept=effort.kept)


def late(policy: str, seed: int, effort: Effort) -> Job:
    """Returns a run for question 4."""
    learner = effort.job(GIVES_WEIGHTS, "bsp", seed)
    return Job(policy, "bsp", 2 * UNSEEN + seed, effort.late_minutes, learner, frozen=True)


def print_gain(runs: dict[Job, Outcome], effort: Effort, *, markdown: bool) -> bool:
    """Answers question 1. Returns whether learning helps under BSP, under every policy."""
    rows: list[list[str]] = []
    clear = True
    for sync, policy in product(effort.seeds, LEARNERS):
        jobs = [effort.job(policy, sync, seed) for seed in effort.seeds[sync]]
        learnt, before = ([runs[judged(job, effort, shipped=shipped)] for job in jobs] for shipped in (False, True))
        gains = [mean_reward(a) - mean_reward(b) for a, b in zip(learnt, before, strict=True)]
        gain = statistics.fmean(gains)
        error = statistics.stdev(gains) / math.sqrt(len(gains)) if len(gains) > 1 else math.nan
        if sync == "bsp" and len(gains) > 1:
            clear &= gain > SIGNIFICANT_SE * error
        rewards = [number(statistics.fmean(map(mean_reward, of)), 2) for of in (before, learnt)]
        collisions = [number(statistics.fmean(run.collision_rate[0] for run in of), 0) for of in (before, learnt)]
        cells = [*rewards, number(gain, 2, sign=True), number(error, 2), number(gain / error if error else math.nan, 1)]
        rows.append([f"{policy}, {sync.upper()}", str(len(gains)), *cells, *collisions])
    print("1. Reward per robot and second of the shipped and of the learnt weights, driving frozen on unseen seeds.\n")
    titles = ["", "seeds", "shipped", "learnt", "gain", "standard error", "gain over it"]
    show([*titles, "collisions/h, shipped", "learnt"], rows, markdown=markdown)
    return clear


def curves(runs: list[Outcome], smooth_s: int) -> Rewards:
    """Returns the reward per robot and second of each run, averaged over `smooth_s`, by the first second of that
    interval."""
    total = np.array([run.history.reward for run in runs]) / runs[0].robots
    return (total[:, smooth_s:] - total[:, :-smooth_s]) / smooth_s


def reached_s(rewards: Rewards, goal: float, smooth_s: int) -> float:
    """Returns the time at which the runs' mean first reaches the goal: the middle of that interval, in s. Infinite if
    it never does."""
    there = rewards.mean(axis=0) >= goal
    return float(there.argmax()) + smooth_s / 2 if there.any() else math.inf


def ends(statistic: Callable[[np.random.Generator], float]) -> tuple[float, float]:
    """Returns the ends of the middle 95 % of a statistic over bootstrap samples of the seeds."""
    rng = np.random.default_rng(1)
    low, high = np.quantile([statistic(rng) for _ in range(DRAWS)], [0.025, 0.975], method="nearest")
    return float(low), float(high)


def interval(statistic: Callable[[np.random.Generator], float], digits: int = 2) -> str:
    """Returns these ends as text."""
    return " to ".join(number(end, digits) if math.isfinite(end) else "never" for end in ends(statistic))


def drawn(rewards: Rewards, rng: np.random.Generator) -> Rewards:
    """Returns the same number of runs, drawn with replacement."""
    return rewards[rng.integers(len(rewards), size=len(rewards))]


@dataclass(frozen=True)
class Reached:
    """When the mean reward of a policy's runs reaches the goal: half way from edca's start to edca's end."""

    goal: float
    """NaN if edca's reward does not rise, because then there is no goal."""
    at_s: float
    """Infinite if it never does."""
    within: str
    """95 %, over seeds."""
    ratio: float
    """Over edca's time; NaN if there is none."""
    ratio_within: str


def reached(smooth: dict[str, Rewards], smooth_s: int) -> dict[str, Reached]:
    """Returns when each policy reaches the goal, edca among them, of its runs' averaged rewards."""
    first, last = smooth["edca"].mean(axis=0)[[0, -1]]
    goal = float((first + last) / 2) if last > first else math.nan
    alone = reached_s(smooth["edca"], goal, smooth_s)

    def one(policy: str) -> Reached:
        def own(rng: np.random.Generator) -> float:
            return reached_s(drawn(smooth[policy], rng), goal, smooth_s)

        def over_edca(rng: np.random.Generator) -> float:
            ours, edca = own(rng), reached_s(drawn(smooth["edca"], rng), goal, smooth_s)
            return ours / edca if math.isfinite(edca) else 0.0

        has_spread = len(smooth[policy]) > 2 and math.isfinite(alone)
        at_s = reached_s(smooth[policy], goal, smooth_s)
        return Reached(
            goal,
            at_s,
            interval(own, 0) if has_spread else "-",
            at_s / alone if math.isfinite(alone) else math.nan,
            interval(over_edca) if has_spread and policy != "edca" else "-",
        )

    return {policy: one(policy) for policy in smooth}


def reached_cells(own: Reached) -> list[str]:
    """Returns a policy's cells below `REACHED_TITLES`."""
    at = number(own.at_s, 0) if math.isfinite(own.at_s) else "never"
    return [number(own.goal, 2), at, own.within, number(own.ratio, 2), own.ratio_within]


REACHED_TITLES = ["goal", "reached, s", "95 %", "over edca's", "95 %"]


def print_speed(runs: dict[Job, Outcome], effort: Effort, *, markdown: bool) -> dict[str, float]:
    """Answers questions 2 and 3. Returns the time at which each policy reaches the goal under BSP, relative to edca."""
    rows: list[list[str]] = []
    bsp: dict[str, float] = {}
    for sync, seeds in effort.seeds.items():
        of = {policy: [runs[effort.job(policy, sync, seed)] for seed in seeds] for policy in LEARNERS}
        there = reached({policy: curves(of[policy], effort.smooth_s) for policy in LEARNERS}, effort.smooth_s)
        epochs = {policy: statistics.fmean(run.epoch_s for run in of[policy]) for policy in LEARNERS}
        for policy, own in there.items():
            if sync == "bsp":
                bsp[policy] = own.ratio
            cells = [*reached_cells(own), number(epochs[policy], 1), number(epochs[policy] / epochs["edca"], 2)]
            rows.append([f"{policy}, {sync.upper()}", *cells])
    print("2. and 3. When the reward first reaches the goal, and how long an epoch takes.\n")
    show(["", *REACHED_TITLES, "epoch, s", "over edca's"], rows, markdown=markdown)
    return bsp


def print_cost(runs: dict[Job, Outcome], effort: Effort, *, markdown: bool) -> dict[str, tuple[int, float]]:
    """Answers question 4. Returns the collisions under each policy, and the robot-hours."""
    counts: dict[str, tuple[int, float]] = {}
    rows: list[list[str]] = []
    for policy in DRIVERS:
        of = [runs[late(policy, seed, effort)] for seed in effort.seeds["bsp"]]
        count, hours = sum(run.collisions for run in of), sum(run.robot_hours for run in of)
        counts[policy] = (count, hours)
        half = 1.96 * math.sqrt(count) / hours
        rate, alone = count / hours, counts[NO_BULK]
        cells = [percent(statistics.fmean(run.violation_rate for run in of)), number(hours, 0), str(count)]
        cells.append(f"{number(rate - half)} to {number(rate + half)}")
        if policy == NO_BULK:
            cells += ["1", "-", "-"]
        else:
            ratio, spread = rate / (alone[0] / alone[1]), math.exp(1.96 * math.sqrt(1 / count + 1 / alone[0]))
            cells += [number(ratio, 3), f"{number(ratio / spread, 3)} to {number(ratio * spread, 3)}"]
            cells.append(number(same_rate(alone, counts[policy]), 3))
        cells.append(number(statistics.fmean(map(mean_reward, of)), 2))
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
    parser.add_argument("--resume", action="store_true", help="leave the runs that are finished, continue the others")
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
    runs: dict[Job, Outcome] = {}
    for jobs in (learning, driving):
        runs |= run(jobs, resume=arguments.resume)
    print(f"{effort.minutes} virtual minutes; seeds by paradigm: {effort.seeds}.\n")
    clear = print_gain(runs, effort, markdown=markdown)
    ratios = print_speed(runs, effort, markdown=markdown)
    counts = print_cost(runs, effort, markdown=markdown)
    from coorp.learn.report import write_reward

    image = effort.kept.with_name("reward.png")
    write_reward(image, [runs[job] for job in learning], effort.smooth_s)
    print(f"reward over time: {image.relative_to(REPOSITORY)}")
    if len(effort.seeds["bsp"]) == 1:
        print("one seed shows nothing; this only checks that everything runs")
        return 0
    return 0 if judge(clear, ratios, counts) else 1


if __name__ == "__main__":
    sys.exit(main())
