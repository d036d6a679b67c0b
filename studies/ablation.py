"""Measures what each part of `coorp` gains, and whether `coorp` reaches its goal on teams that it was not tuned on.

    cargo build --release -p coorp-cli
    python studies/ablation.py [--quick] [--markdown] [--draws SEED]

The goal: violations within 1 percentage point of `mpc-only` (no bulk at all), bulk at 97 % or more of `edca` (no
coordination at all). The first table compares `coorp` and `coorp-paper` with it, on the examples and on random teams.
The second turns off one part of `coorp` at a time, the third adds one to `coorp-paper`.

`edca` is not a fair reference if it ruins the control loop: a late loop delays the next, so fewer control messages are
left to share the air. The column 'loops' gives the share of `mpc-only`'s loops that `edca` finished. 'Room' is the bulk
that fits if all loops run: the bulk without control, times the share of airtime that control without bulk leaves free,
relative to `edca`'s bulk. If room is below 97 %, no policy can reach the goal.

`coorp-paper` reads completion times at 95 %, which caution does not exceed; by itself, that switch has no effect there.
Not compared: deviations from quantiles and from a normal distribution, for which a team file has no key. If the `coorp`
binary is missing, the study says so and succeeds. It exits with 1 if `coorp` on examples/navigation.toml falls behind
the results in docs/results.md, which are short of the goal.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from dataclasses import dataclass

from lib.edit import with_keys
from lib.random_teams import draw
from lib.simulator import REPOSITORY, Job, Result, Simulator, Team, binary
from lib.table import number, percent, show

EXAMPLES = ("navigation", "low", "warehouse", "drones")
POLICIES = ("mpc-only", "edca", "coorp-paper", "coorp")
VIOLATION_GOAL = 0.01
BULK_GOAL = 0.97
VIOLATION_KEPT = 0.015
BULK_KEPT = 0.85
"""The bounds that `coorp` keeps on navigation; the goal is stricter."""
HOPELESS = 0.10
"""A random team whose loop violates its bound this often without bulk is drawn again."""
DRAWS_MAX = 1_000
DRAWN_TEAMS = 20
"""Number of teams with `--draws`. `coorp` was tuned on the draws from seeds 1, 101 and 1001 on; those from 2001 on were
not examined before it was frozen."""

# For each part: its key in [policy], the value that disables it, and the value of `coorp`.
PARTS = {
    "early release": ("early_release", "false", "true"),
    "command windows": ("command_windows", "false", "true"),
    "shared windows": ("shared_windows", "false", "true"),
    "steered phases": ("steered_phases", "false", "true"),
    "turns": ("turns", "false", "true"),
    "the send queue as source": ("completions", '"acknowledgements"', '"out-queue"'),
    "median completion": ("protection_percentile", "0.9499", "0.5"),
    "caution": ("protection_percentile_max", "0.5", "0.95"),
    "forgetting what is stale": ("completions_stale", '"60min"', '"4s"'),
    "a bounded backlog": ("backlog_max", '"1s"', '"8ms"'),
}
# Settings of both policies, with an alternative value for each.
SETTINGS = {
    "extension 0 ms": ("extension", '"0ms"'),
    "extension 4 ms": ("extension", '"4ms"'),
    "accuracy 80 %": ("accuracy", "0.8"),
    "accuracy 99 %": ("accuracy", "0.99"),
    "backlog at most 4 ms": ("backlog_max", '"4ms"'),
    "backlog at most 12 ms": ("backlog_max", '"12ms"'),
    "completions by transmit status": ("completions", '"status"'),
}


@dataclass(frozen=True)
class Effort:
    """The extent of the study."""

    duration_s: float
    seeds: range
    examples: tuple[str, ...]
    random_teams: int


FULL = Effort(300.0, range(1, 3), EXAMPLES, 12)
QUICK = Effort(120.0, range(1, 3), EXAMPLES[:1], 2)


@dataclass(frozen=True)
class Score:
    """One policy on one team, compared with the goal."""

    violation: float
    """The difference from `mpc-only`, as a share."""
    bulk: float
    """Relative to `edca`."""

    @property
    def reached(self) -> bool:
        return self.violation <= VIOLATION_GOAL and self.bulk >= BULK_GOAL

    @property
    def missed(self) -> str:
        missed = [
            word for word, bad in (("control", self.violation > VIOLATION_GOAL), ("bulk", self.bulk < BULK_GOAL)) if bad
        ]
        return " and ".join(missed)

    @property
    def starves(self) -> bool:
        return math.isnan(self.bulk)

    def __str__(self) -> str:
        return "starves" if self.starves else f"{100.0 * self.violation:+.1f} / {100.0 * self.bulk:.0f}"


class Bench:
    """Scores of policies on teams, over all seeds."""

    def __init__(self, simulator: Simulator, effort: Effort) -> None:
        self._simulator = simulator
        self._effort = effort

    def jobs(self, team: Team, policy: str) -> list[Job]:
        return [Job(team, policy, seed, self._effort.duration_s) for seed in self._effort.seeds]

    def run(self, jobs: list[Job]) -> None:
        self._simulator.run(jobs)

    def results(self, team: Team, policy: str) -> list[Result]:
        return list(self._simulator.run(self.jobs(team, policy)).values())

    def score(self, base: Team, team: Team, policy: str) -> Score:
        """Returns the score of `policy` on `team`, compared with `mpc-only` and `edca` on `base`."""
        mean = statistics.fmean
        own, alone, rival = self.results(team, policy), self.results(base, "mpc-only"), self.results(base, "edca")
        return Score(
            mean(r.violation for r in own) - mean(r.violation for r in alone),
            mean(r.bulk_mbps for r in own) / mean(r.bulk_mbps for r in rival),
        )

    def bulk_mbps(self, team: Team, policy: str) -> float:
        return statistics.fmean(result.bulk_mbps for result in self.results(team, policy))

    def room(self, team: Team) -> float:
        """Returns the bulk that fits beside all control loops, relative to `edca`'s bulk."""
        busy = statistics.fmean(r.airtime["data"] + r.airtime["control"] for r in self.results(team, "mpc-only"))
        return (1.0 - busy) * self.bulk_mbps(team, "bulk-only") / self.bulk_mbps(team, "edca")

    def loops(self, team: Team) -> float:
        """Returns the share of `mpc-only`'s loops that `edca` finishes."""
        rival, alone = (sum(r.loops for r in self.results(team, p)) for p in ("edca", "mpc-only"))
        return rival / alone


def examples(names: tuple[str, ...]) -> list[Team]:
    return [Team(name, (REPOSITORY / "examples" / f"{name}.toml").read_text()) for name in names]


def random_teams(simulator: Simulator, count: int, first: int = 1) -> list[Team]:
    """Draws teams, from the seed `first` on, whose control loop is not hopeless."""
    teams: list[Team] = []
    for seed in range(first, first + DRAWS_MAX):
        if len(teams) == count:
            break
        team = draw(seed)
        job = Job(team, "mpc-only", 1, 30.0)
        if simulator.run([job])[job].violation < HOPELESS:
            teams.append(team)
    return teams


def with_policy(team: Team, number_: int, key: str, value: str) -> Team:
    return Team(f"{team.name}-{number_}", with_keys(team.text, "policy", {key: value}))


def print_generality(bench: Bench, teams: list[Team], *, markdown: bool) -> Score:
    """Prints the first table; returns the score of `coorp` on the first team."""
    jobs = [job for team in teams for policy in POLICIES for job in bench.jobs(team, policy)]
    jobs += [job for team in teams for job in bench.jobs(team, "bulk-only")]
    bench.run(jobs)
    rows: list[list[str]] = []
    scores = [bench.score(team, team, "coorp") for team in teams]
    for team, score in zip(teams, scores, strict=True):
        paper = bench.score(team, team, "coorp-paper")
        alone, rival = (statistics.fmean(r.violation for r in bench.results(team, p)) for p in ("mpc-only", "edca"))
        cells = [percent(alone), percent(rival), number(100.0 * paper.violation, sign=True)]
        cells += [number(100.0 * score.violation, 2, sign=True), percent(paper.bulk), percent(score.bulk)]
        rows.append([team.name, *cells, percent(bench.loops(team), 0), percent(bench.room(team), 0), score.missed])
    print("Violations: points above mpc-only's. Bulk: relative to edca's.\n")
    titles = [
        "team",
        "mpc-only",
        "edca",
        "paper",
        "coorp",
        "bulk paper",
        "bulk coorp",
        "loops",
        "room",
        "missed",
    ]
    show(titles, rows, markdown=markdown)
    print(f"coorp reaches the goal on {sum(score.reached for score in scores)} of {len(teams)} teams.\n")
    return scores[0]


def print_switches(bench: Bench, teams: list[Team], policy: str, *, markdown: bool) -> None:
    """Prints a table with one change at a time."""
    coorp = policy == "coorp"
    changes = {
        ("without " if coorp else "with ") + name: (key, off if coorp else on) for name, (key, off, on) in PARTS.items()
    }
    changes |= SETTINGS
    variants = {
        name: [with_policy(team, place, key, value) for team in teams]
        for place, (name, (key, value)) in enumerate(changes.items())
    }
    bench.run([job for changed in variants.values() for team in changed for job in bench.jobs(team, policy)])
    plain = [bench.score(team, team, policy) for team in teams]
    rows = [[policy, *map(str, plain), "", ""]]
    for name, changed in variants.items():
        scores = [bench.score(base, team, policy) for base, team in zip(teams, changed, strict=True)]
        fair = [(score, was) for score, was in zip(scores, plain, strict=True) if not (score.starves or was.starves)]
        cost = statistics.fmean(score.violation - was.violation for score, was in fair)
        gain = math.exp(statistics.fmean(math.log(score.bulk / was.bulk) for score, was in fair))
        change = [number(100.0 * cost, 1, sign=True), percent(gain - 1.0, sign=True)]
        rows.append([name, *map(str, scores), *change])
    print(f"{policy}, one change at a time: points above mpc-only's violations / bulk relative to edca's in percent;")
    print("the last two columns are the mean changes over the teams. 'starves': bulk stood still for seconds.\n")
    show([policy, *(team.name for team in teams), "points", "bulk"], rows, markdown=markdown)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer teams and shorter runs, for CI")
    parser.add_argument("--markdown", action="store_true", help="print the tables as Markdown")
    parser.add_argument(
        "--draws", type=int, metavar="SEED", help=f"only the goal, on {DRAWN_TEAMS} teams drawn from this seed on"
    )
    arguments = parser.parse_args()
    program = binary()
    if program is None:
        return 0
    effort, markdown = QUICK if arguments.quick else FULL, arguments.markdown
    simulator = Simulator(program, "ablation", lenient=True)
    bench = Bench(simulator, effort)
    if arguments.draws is not None:
        print(f"{effort.duration_s:g} s, seeds {effort.seeds[0]} to {effort.seeds[-1]}.\n")
        teams = random_teams(simulator, DRAWN_TEAMS, arguments.draws)
        print_generality(bench, teams, markdown=markdown)
        return 0
    teams = examples(effort.examples) + random_teams(simulator, effort.random_teams)
    print(f"{effort.duration_s:g} s, seeds {effort.seeds[0]} to {effort.seeds[-1]}.\n")
    navigation = print_generality(bench, teams, markdown=markdown)
    shown = teams[: len(effort.examples) + effort.random_teams // 2]
    for policy in ("coorp", "coorp-paper"):
        print_switches(bench, shown, policy, markdown=markdown)
    if navigation.violation <= VIOLATION_KEPT and navigation.bulk >= BULK_KEPT:
        return 0
    print(f"FAIL: coorp falls behind on navigation: {navigation}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
