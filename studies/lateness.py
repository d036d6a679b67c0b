"""Measures what late commands cost a team that drives well: collisions, near misses, success and time to goal.

    pip install '.[learn]'
    python studies/lateness.py [--quick] [--resume] [--markdown] [--figure FILE]
        [--seeds N] [--minutes M] [--bounds MS,…]

Five robots of examples/navigation.toml drive among the obstacles of `unknown` by the shipped driver, frozen, while they
learn: bulk is what `coorp learn` sends. Two questions:

1. What does each policy cost? Full speeds of 1.5, 3 and 4.5 m/s, reaction bounds of 33, 66 and 100 ms with a loop per
bound, and the policies below. `mpc-only` has no bulk. Near misses are those of `coorp.envs.task.NEAR_MISS_S`.
2. What does lateness itself cost? Each command takes effect a constant time later than without bulk, 0 to 200 ms, at 30
Hz and without a channel. A command that was issued before its robot's last ending is dropped: it was meant for another
place. The figure shows both: the curves, and each policy at its mean reaction time beyond that of `mpc-only`, at a
bound of 33 ms, which has 30 loops a second, too. A late loop also delays the next one, and loops that are lost count
with three periods, so a policy need not be on the curve.

A crash of two robots counts for both, and near misses come in groups. So events are not independent, and all intervals
and tests are over seeds: 95 % intervals from 2,000 bootstrap samples of the seeds, and a two-sided sign-flip test of
the seeds' differences from `mpc-only` (exact up to ten seeds).

Finished runs of question 1 are kept in target/studies/lateness, and `--resume` leaves them. They go to all cores, or to
Ray where it is installed; those of question 2 go to this machine's cores. If the package or torch is missing, the study
says so and succeeds.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import sys
from collections import deque
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import driver
import numpy as np
from lib.edit import changed_key
from lib.learning import outcomes
from lib.simulator import MADE, PARALLEL, REPOSITORY
from lib.table import number, percent, show

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from coorp.learn.outcome import Outcome
    from coorp.learn.run import Plan

EXAMPLE = REPOSITORY / "examples" / "navigation.toml"
OUT = MADE / "lateness"
NO_BULK = "mpc-only"
POLICIES = (NO_BULK, "edca", "schedwifi", "coorp-paper", "coorp")
SPEEDS_MPS = (1.5, 3.0, 4.5)
BOUNDS_MS = (33, 66, 100)
DELAYS_MS = (0, 10, 20, 33, 50, 75, 100, 150, 200)
SEEDS, MINUTES = 10, 10.0
QUICK_SEEDS, QUICK_MINUTES, QUICK_DELAYS_MS = 1, 0.2, (0, 100)
SIMULATED_S = 120.0
SIGNIFICANT_P = 0.05
DRAWS = 2_000
EXACT_MAX = 10
"""Maximum number of seeds for all sign flips; of more, as many are drawn."""
CURVE_BOUND_MS = 33
"""The bound whose loops are as frequent as the curve's."""


@dataclass(frozen=True)
class Case:
    """A team at a speed, under a policy."""

    speed_mps: float
    bound_ms: int
    policy: str

    @property
    def alone(self) -> Case:
        """The same team without bulk."""
        return Case(self.speed_mps, self.bound_ms, NO_BULK)


@dataclass
class Sums(driver.Sums):
    """What a run of `coorp learn` counted, or several."""

    late: float = 0.0
    loops: int = 0

    @staticmethod
    def of(run: Outcome) -> Sums:
        """Returns the counts of a run."""
        return Sums(
            hours=run.robot_hours,
            arrivals=run.arrivals,
            collisions=run.collisions,
            timeouts=run.timeouts,
            near_misses=run.near_misses,
            to_goal_s=run.history.to_goal_s[-1],
            late=run.violation_rate * run.loops,
            loops=run.loops,
        )


def team(bound_ms: int) -> Path:
    """Writes the example with another bound, and a loop per bound. Returns its file."""
    text = EXAMPLE.read_text()
    for key, value in (("rate_hz", str(round(1000 / bound_ms))), ("bound", f'"{bound_ms}ms"')):
        text = changed_key(text, "control", key, value)
    OUT.mkdir(parents=True, exist_ok=True)
    file = OUT / f"bound-{bound_ms}ms.toml"
    if not file.exists() or file.read_text() != text:
        file.write_text(text)
    return file


def plan(case: Case, seed: int, minutes: float, *, resume: bool) -> Plan:
    """Returns one run."""
    from coorp.learn.fit import DRIVER
    from coorp.learn.run import Plan

    return Plan(
        team=team(case.bound_ms),
        policy=case.policy,
        sync="none" if case.policy == NO_BULK else "bsp",
        staleness=None,
        seed=seed,
        seconds=max(1, round(minutes * 60)),
        frozen=True,
        model=DRIVER,
        folder=OUT / f"{case.speed_mps:g}mps-{case.bound_ms}ms-{case.policy}-seed{seed}",
        speed_mps=case.speed_mps,
        resume=resume,
        gif=False,
    )


def run(cases: list[Case], seeds: range, minutes: float, *, resume: bool) -> dict[Case, list[Sums]]:
    """Runs all cases. Returns their counts, seed by seed."""
    jobs = list(product(cases, seeds))
    found: dict[Case, list[Sums]] = {case: [] for case in cases}
    runs = outcomes((plan(*job, minutes, resume=resume) for job in jobs), resume=resume)
    for (case, _), each in zip(jobs, runs, strict=True):
        found[case].append(Sums.of(each))
    return found


@dataclass(frozen=True)
class Late:
    """A run with commands that are late by a constant time."""

    speed_mps: float
    delay_ms: int
    seed: int
    minutes: float


def drive_late(job: Late) -> driver.Sums:
    """Runs it."""
    import torch

    torch.set_num_threads(1)
    env = driver.make_env("unknown", job.speed_mps, job.seed)
    policy = driver.make_policy("driver", env)
    on_the_way: deque[tuple[float, float, list[list[float]]]] = deque()
    ended = [0.0] * driver.ROBOTS
    for loop in range(round(job.minutes * 60 * driver.HZ)):
        now = loop / driver.HZ
        while on_the_way and on_the_way[0][0] <= now:
            at, issued, velocities = on_the_way.popleft()
            env.advance_to(at)
            for t_ns, robot, _ in env.take_events().tolist():
                ended[robot] = t_ns / 1e9
            for robot, velocity in enumerate(velocities):
                if ended[robot] <= issued:
                    env.set_velocity(robot, velocity)
        env.advance_to(now)
        on_the_way.append((now + driver.DELAY_S + job.delay_ms / 1e3, now, policy(env).tolist()))
    return driver.counted(env)


def total(seeds: Sequence[driver.Sums]) -> driver.Sums:
    """Returns the sum of several seeds."""
    whole = driver.Sums()
    for each in seeds:
        for name, value in vars(whole).items():
            setattr(whole, name, value + getattr(each, name))
    return whole


def interval(seeds: Sequence[driver.Sums], of: Callable[[driver.Sums], float]) -> tuple[float, float]:
    """Returns the 95 % interval of a figure over bootstrap samples of the seeds. One seed has none."""
    if len(seeds) < 2:
        return math.nan, math.nan
    draws = np.random.default_rng(0).integers(len(seeds), size=(DRAWS, len(seeds)))
    low, high = np.quantile([of(total([seeds[i] for i in draw])) for draw in draws], (0.025, 0.975))
    return float(low), float(high)


def cell(seeds: Sequence[driver.Sums], of: Callable[[driver.Sums], float], digits: int) -> str:
    """Returns a figure with its interval."""
    low, high = (number(limit, digits) for limit in interval(seeds, of))
    return f"{number(of(total(seeds)), digits)} ({low} to {high})"


def success_percent(sums: driver.Sums) -> float:
    return 100.0 * sums.success


def collision_rate(sums: driver.Sums) -> float:
    return sums.collisions / sums.hours


def near_miss_rate(sums: driver.Sums) -> float:
    return sums.near_misses / sums.hours


def to_goal_s(sums: driver.Sums) -> float:
    return sums.to_goal_s / max(1, sums.arrivals)


def p_value(differences: Sequence[float]) -> float:
    """Returns the two-sided p value for a mean difference of zero: the share of sign flips with as large a sum."""
    values = np.array(differences)
    if len(values) <= EXACT_MAX:
        signs = np.array(list(product((-1.0, 1.0), repeat=len(values))))
    else:
        signs = np.random.default_rng(0).choice((-1.0, 1.0), size=(1 << EXACT_MAX, len(values)))
    return float(np.mean(np.abs(signs @ values) >= abs(values.sum()) - 1e-9))


def against(seeds: Sequence[driver.Sums], alone: Sequence[driver.Sums], of: Callable[[driver.Sums], float]) -> str:
    """Returns the ratio to the rate without bulk, if a test finds a difference."""
    pairs = zip(seeds, alone, strict=True)
    if p_value([of(one) - of(other) for one, other in pairs]) >= SIGNIFICANT_P:
        return "no difference"
    rate, base = of(total(seeds)), of(total(alone))
    return f"{number(rate / base, 2)}x" if base > 0.0 else "more than none"


def print_policies(found: dict[Case, list[Sums]], *, markdown: bool) -> None:
    """Answers question 1."""
    rows: list[list[str]] = []
    for case, seeds in found.items():
        alone = found[case.alone]
        cells = [percent(sum(each.late for each in seeds) / max(1, sum(each.loops for each in seeds)), 1)]
        cells.append(cell(seeds, success_percent, 2))
        for of in (collision_rate, near_miss_rate):
            cells.append(cell(seeds, of, 1))
            cells.append("-" if case.policy == NO_BULK else against(seeds, alone, of))
        cells.append(cell(seeds, to_goal_s, 2))
        rows.append([f"{case.speed_mps:g} m/s, {case.bound_ms} ms, {case.policy}", *cells])
    first = next(iter(found.values()))
    print(
        f"1. By speed, bound and policy; {number(total(first).hours)} robot-hours each, {len(first)} seeds. Events per "
        "robot-hour, and 95 % intervals.\n"
    )
    titles = ["", "late loops", "success, %", "collisions", "of no bulk", "near misses", "of no bulk", "to goal, s"]
    show(titles, rows, markdown=markdown)


def print_delays(late: dict[tuple[float, int], list[driver.Sums]], *, markdown: bool) -> None:
    """Answers question 2."""
    rows: list[list[str]] = []
    for (speed_mps, delay_ms), seeds in late.items():
        cells = [number(total(seeds).hours), cell(seeds, success_percent, 2)]
        cells += [cell(seeds, collision_rate, 1), cell(seeds, near_miss_rate, 1), cell(seeds, to_goal_s, 2)]
        rows.append([f"{speed_mps:g} m/s, {delay_ms} ms later", *cells])
    print("\n2. Commands that are late by a constant time, without a channel.\n")
    titles = ["", "robot-hours", "success, %", "collisions", "near misses", "to goal, s"]
    show(titles, rows, markdown=markdown)


def reactions(bound_ms: int) -> dict[str, float]:
    """Returns each policy's mean reaction time beyond that without bulk, in ms."""
    import coorp

    found: dict[str, float] = {}
    for policy in POLICIES:
        reaction = coorp.simulate(team(bound_ms), policy, seed=1, duration_s=SIMULATED_S).reaction_ms
        assert reaction is not None
        found[policy] = reaction["mean"]
    return {policy: mean - found[NO_BULK] for policy, mean in found.items()}


def draw(path: Path, found: dict[Case, list[Sums]], late: dict[tuple[float, int], list[driver.Sums]]) -> None:
    """Draws the curves against the delay, with the policies where they are."""
    from coorp.learn import report

    plt = report.plt
    figure, both = plt.subplots(1, 2, figsize=(11, 4.4), layout="constrained")
    beyond = reactions(CURVE_BOUND_MS)
    for axes, of, what in zip(both, (collision_rate, near_miss_rate), ("collisions", "near misses"), strict=True):
        for marker, speed_mps in zip("osD", SPEEDS_MPS, strict=True):
            delays = [delay for speed, delay in late if speed == speed_mps]
            curve = [late[speed_mps, delay] for delay in delays]
            rates = [of(total(seeds)) for seeds in curve]
            axes.fill_between(delays, *zip(*(interval(seeds, of) for seeds in curve), strict=True), color="#dde2e8")
            axes.plot(delays, rates, color="#5a6675", lw=1)
            axes.annotate(f"{speed_mps:g} m/s", (delays[-1], rates[-1]), xytext=(4, 0), textcoords="offset points")
            for policy in POLICIES:
                seeds = found[Case(speed_mps, CURVE_BOUND_MS, policy)]
                rate, (low, high) = of(total(seeds)), interval(seeds, of)
                label = policy if speed_mps == SPEEDS_MPS[0] else None
                colour = report.COLOURS[policy]
                axes.plot([beyond[policy]] * 2, [low, high], color=colour, lw=1)
                axes.plot(beyond[policy], rate, marker, color=colour, label=label, ms=5)
        axes.set_yscale("log")
        # The policies are within ten milliseconds of each other, the curve goes on to two hundred.
        axes.set_xscale("symlog", linthresh=10.0)
        ticks = (0, 2, 4, 6, 8, 10, 20, 50, 100, 200)
        axes.set_xticks(ticks, map(str, ticks))
        axes.set_xlabel("command later than without bulk, ms")
        axes.set_ylabel(f"{what} per robot-hour")
        axes.spines[["top", "right"]].set_visible(False)
    both[0].legend(title=f"policy, at a bound of {CURVE_BOUND_MS} ms", frameon=False)
    figure.savefig(path, dpi=110)
    later = ", ".join(f"{policy} {number(late_ms, 1)}" for policy, late_ms in beyond.items() if policy != NO_BULK)
    print(f"Mean reaction time beyond that without bulk, at a bound of {CURVE_BOUND_MS} ms, in ms: {later}")
    print(f"drawn: {path}")


def positive(text: str) -> int:
    """Parses one whole number from 1 on."""
    (found,) = numbers(text)
    return found


def numbers(text: str) -> list[int]:
    """Parses whole numbers from 1 on; argparse reports what is none."""
    found = [int(number) for number in text.split(",")]
    if min(found) < 1:
        raise ValueError(text)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one seed and seconds, for CI: shows nothing")
    parser.add_argument("--resume", action="store_true", help="leave finished runs as they are")
    parser.add_argument("--markdown", action="store_true", help="print tables as Markdown")
    parser.add_argument("--figure", type=Path, default=OUT / "lateness.png", help="where to draw")
    parser.add_argument("--seeds", type=positive, help=f"number of seeds [{SEEDS}]")
    bounds = ",".join(map(str, BOUNDS_MS))
    parser.add_argument(
        "--bounds",
        type=numbers,
        default=bounds,
        metavar="MS,…",
        help=f"reaction bounds; the figure needs {CURVE_BOUND_MS} [{bounds}]",
    )
    parser.add_argument("--minutes", type=float, help=f"driving time per run [{MINUTES:g}]")
    arguments = parser.parse_args()
    missing = [name for name in ("coorp", "torch") if importlib.util.find_spec(name) is None]
    if missing:
        print(f"skipped: needs {' and '.join(missing)}; in the repository: pip install '.[learn]'")
        return 0
    quick = arguments.quick
    seeds = range(1, 1 + (arguments.seeds or (QUICK_SEEDS if quick else SEEDS)))
    minutes = arguments.minutes or (QUICK_MINUTES if quick else MINUTES)
    bounds_ms = [BOUNDS_MS[0]] if quick else arguments.bounds
    cases = [Case(*case) for case in product(SPEEDS_MPS, bounds_ms, POLICIES)]
    found = run(cases, seeds, minutes, resume=arguments.resume)
    print_policies(found, markdown=arguments.markdown)
    delays = QUICK_DELAYS_MS if quick else DELAYS_MS
    jobs = [Late(*case, minutes) for case in product(SPEEDS_MPS, delays, seeds)]
    late: dict[tuple[float, int], list[driver.Sums]] = {}
    with ProcessPoolExecutor(PARALLEL) as pool:
        for job, sums in zip(jobs, pool.map(drive_late, jobs), strict=True):
            late.setdefault((job.speed_mps, job.delay_ms), []).append(sums)
    print_delays(late, markdown=arguments.markdown)
    if CURVE_BOUND_MS in bounds_ms:
        draw(arguments.figure, found, late)
    if quick:
        print("seconds show nothing; this only checks that everything runs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
