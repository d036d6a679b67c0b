"""Measures what late commands cost a team that drives well: collisions, near misses, success and time to goal.

    pip install '.[learn]'
    python studies/lateness.py [--quick] [--resume] [--markdown] [--figure FILE]
        [--seeds N] [--minutes M] [--bounds MS,…]

Five robots of examples/navigation.toml drive among the obstacles of `unknown` by the shipped driver, frozen, while they
learn: bulk is what `coorp learn` sends. Two questions:

1. What does each policy cost? Full speeds of 1.5, 3 and 4.5 m/s, reaction bounds of 33, 66 and 100 ms with a loop per
bound, and the policies below. `mpc-only` has no bulk. Collisions and near misses (`coorp.envs.task.NEAR_MISS_S`) per
robot-hour have 95 % intervals (Poisson), and are compared with `mpc-only` by a two-sided test of two Poisson rates.
2. What does lateness itself cost? Each command takes effect a constant time later than without bulk, 0 to 200 ms, at 30
Hz and without a channel. The figure shows both: the curves, and each policy at its mean reaction time beyond that of
`mpc-only`.

Finished runs are kept in target/studies/lateness, and `--resume` leaves them. Runs go to all cores, or to Ray where it
is installed. If the package or torch is missing, the study says so and succeeds.
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
from lib.edit import changed_key
from lib.learning import outcomes
from lib.simulator import MADE, PARALLEL, REPOSITORY
from lib.table import number, percent, show

if TYPE_CHECKING:
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
    """What several runs of `coorp learn` counted."""

    late: float = 0.0
    loops: int = 0

    def take(self, run: Outcome) -> None:
        """Adds a run."""
        self.hours += run.robot_hours
        self.arrivals += run.arrivals
        self.collisions += run.collisions
        self.timeouts += run.timeouts
        self.near_misses += run.near_misses
        self.to_goal_s += run.history.to_goal_s[-1]
        self.late += run.violation_rate * run.loops
        self.loops += run.loops


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


def run(cases: list[Case], seeds: range, minutes: float, *, resume: bool) -> dict[Case, Sums]:
    """Runs all cases."""
    jobs = list(product(cases, seeds))
    sums = {case: Sums() for case in cases}
    runs = outcomes((plan(*job, minutes, resume=resume) for job in jobs), resume=resume)
    for (case, _), each in zip(jobs, runs, strict=True):
        sums[case].take(each)
    return sums


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
    on_the_way: deque[tuple[float, list[list[float]]]] = deque()
    for loop in range(round(job.minutes * 60 * driver.HZ)):
        now = loop / driver.HZ
        while on_the_way and on_the_way[0][0] <= now:
            at, velocities = on_the_way.popleft()
            env.advance_to(at)
            for robot, velocity in enumerate(velocities):
                env.set_velocity(robot, velocity)
        env.advance_to(now)
        on_the_way.append((now + driver.DELAY_S + job.delay_ms / 1e3, policy(env).tolist()))
    return driver.counted(env)


def p_value(one: tuple[int, float], other: tuple[int, float]) -> float:
    """Returns the two-sided p value for equal Poisson rates, by the normal approximation of the binomial that is left
    if the sum is given."""
    (count, hours), (others, other_hours) = one, other
    total, share = count + others, hours / (hours + other_hours)
    if total == 0:
        return 1.0
    z = (abs(count - total * share) - 0.5) / math.sqrt(total * share * (1 - share))
    return math.erfc(max(0.0, z) / math.sqrt(2))


def rate(count: int, hours: float) -> str:
    """Returns events per hour with their interval."""
    from coorp.learn.outcome import poisson_interval

    low, high = (limit / hours for limit in poisson_interval(count))
    return f"{number(count / hours)} ({number(low)} to {number(high)})"


def against(count: int, hours: float, alone: tuple[int, float]) -> str:
    """Returns the ratio to the rate without bulk, if it differs."""
    if alone[0] == 0 or p_value((count, hours), alone) >= SIGNIFICANT_P:
        return "no difference"
    return f"{number(count / hours / (alone[0] / alone[1]), 2)}x"


def print_policies(sums: dict[Case, Sums], *, markdown: bool) -> None:
    """Answers question 1."""
    rows: list[list[str]] = []
    for case, found in sums.items():
        alone = sums[case.alone]
        cells = [percent(found.late / max(1, found.loops), 1), percent(found.success, 2)]
        for count, other in ((found.collisions, alone.collisions), (found.near_misses, alone.near_misses)):
            cells.append(rate(count, found.hours))
            of = against(count, found.hours, (other, alone.hours))
            cells.append("-" if case.policy == NO_BULK else of)
        cells.append(number(found.to_goal_s / max(1, found.arrivals), 2))
        rows.append([f"{case.speed_mps:g} m/s, {case.bound_ms} ms, {case.policy}", *cells])
    hours = next(iter(sums.values())).hours
    print(
        f"1. By speed, bound and policy; {number(hours)} robot-hours each. Events per robot-hour, and 95 % intervals.\n"
    )
    titles = ["", "late loops", "success", "collisions", "of no bulk", "near misses", "of no bulk", "time to goal, s"]
    show(titles, rows, markdown=markdown)


def print_delays(late: dict[tuple[float, int], driver.Sums], *, markdown: bool) -> None:
    """Answers question 2."""
    rows: list[list[str]] = []
    for (speed_mps, delay_ms), found in late.items():
        cells = [number(found.hours), percent(found.success, 2)]
        cells += [rate(found.collisions, found.hours), rate(found.near_misses, found.hours)]
        cells.append(number(found.to_goal_s / max(1, found.arrivals), 2))
        rows.append([f"{speed_mps:g} m/s, {delay_ms} ms later", *cells])
    print("\n2. Commands that are late by a constant time, without a channel.\n")
    titles = ["", "robot-hours", "success", "collisions", "near misses", "time to goal, s"]
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


def draw(path: Path, sums: dict[Case, Sums], late: dict[tuple[float, int], driver.Sums], bound_ms: int) -> None:
    """Draws the curves against the delay, with the policies where they are."""
    from coorp.learn import report
    from coorp.learn.outcome import poisson_interval

    plt = report.plt
    figure, both = plt.subplots(1, 2, figsize=(11, 4.4), layout="constrained")
    beyond = reactions(bound_ms)
    for axes, what in zip(both, ("collisions", "near_misses"), strict=True):
        for marker, speed_mps in zip("osD", SPEEDS_MPS, strict=True):
            delays = [delay for speed, delay in late if speed == speed_mps]
            found = [late[speed_mps, delay] for delay in delays]
            rates = [getattr(each, what) / each.hours for each in found]
            spans = [[limit / each.hours for limit in poisson_interval(getattr(each, what))] for each in found]
            axes.fill_between(delays, *zip(*spans, strict=True), color="#dde2e8")
            axes.plot(delays, rates, color="#5a6675", lw=1)
            axes.annotate(f"{speed_mps:g} m/s", (delays[-1], rates[-1]), xytext=(4, 0), textcoords="offset points")
            for policy in POLICIES:
                each = sums[Case(speed_mps, bound_ms, policy)]
                value = getattr(each, what) / each.hours
                label = policy if speed_mps == SPEEDS_MPS[0] else None
                axes.plot(beyond[policy], value, marker, color=report.COLOURS[policy], label=label, ms=5)
        axes.set_yscale("log")
        axes.set_xlabel("command later than without bulk, ms")
        axes.set_ylabel(f"{what.replace('_', ' ')} per robot-hour")
        axes.spines[["top", "right"]].set_visible(False)
    both[0].legend(title=f"policy, at a bound of {bound_ms} ms", frameon=False)
    figure.savefig(path, dpi=110)
    print(f"drawn: {path}")


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
    parser.add_argument("--seeds", type=int, help=f"number of seeds [{SEEDS}]")
    bounds = ",".join(map(str, BOUNDS_MS))
    parser.add_argument(
        "--bounds",
        type=numbers,
        default=bounds,
        metavar="MS,…",
        help=f"reaction bounds; the figure has the first [{bounds}]",
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
    sums = run(cases, seeds, minutes, resume=arguments.resume)
    print_policies(sums, markdown=arguments.markdown)
    delays = QUICK_DELAYS_MS if quick else DELAYS_MS
    jobs = [Late(*case, minutes) for case in product(SPEEDS_MPS, delays, seeds)]
    late: dict[tuple[float, int], driver.Sums] = {}
    with ProcessPoolExecutor(PARALLEL) as pool:
        for job, found in zip(jobs, pool.map(drive_late, jobs), strict=True):
            late.setdefault((job.speed_mps, job.delay_ms), driver.Sums()).add(found)
    print_delays(late, markdown=arguments.markdown)
    draw(arguments.figure, sums, late, bounds_ms[0])
    if quick:
        print("seconds show nothing; this only checks that everything runs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
