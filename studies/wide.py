"""Checks whether `coorp` reaches its goal, and does no harm, on random teams as varied as users' teams.

    cargo build --release -p coorp-cli
    python studies/wide.py [--first SEED] [--teams 60] [--duration 30s] [--quick] [--markdown]

Lateness is the share of control loops over their bound. A team with plain control flows has no loop. Its lateness is
the share of messages that are lost or arrive later than their flow's bound.

The kind of a draw depends only on `mpc-only` and `edca`:

- hopeless: `mpc-only` itself is late in over 20 %. Only harm is checked.
- hurt: `edca` is later than `mpc-only` by a point or more. The goal: `coorp` within 1 point of `mpc-only`, with 97 %
  or more of `edca`'s bulk.
- calm: all others. `coorp` must do no harm: at most 1 point later than `edca`, with 97 % or more of its bulk.

A late loop delays the next one, and the airtime saved goes to bulk. 'Loops' is the share of `mpc-only`'s loops that
`edca` finishes. If it is small, a policy that finishes all loops may be unable to reach 97 % of `edca`'s bulk.

A draw of any kind is harmed if `coorp` is more than 1 point later than `edca`. It is also harmed if `coorp` is more
than 1 point later than `schedwifi` and moves less bulk.

Each policy runs with seed 1, because teams differ more than seeds do. If the `coorp` binary is missing, the study says
so and succeeds. It exits with 1 if results are malformed, and asserts no performance: the tables show that.
"""

from __future__ import annotations

import argparse
import math
import re
import statistics
import sys
from collections.abc import Iterable
from dataclasses import dataclass

from lib.random_teams import Drawn, draw_wide
from lib.simulator import Job, Result, Simulator, binary
from lib.table import number, percent, show

POLICIES = ("mpc-only", "edca", "schedwifi", "coorp")
LATE_GOAL = 0.01
BULK_GOAL = 0.97
HOPELESS = 0.20
QUICK_TEAMS = 6
QUICK_S = 8.0
_UNITS_S = {"ms": 1e-3, "s": 1.0, "min": 60.0}


@dataclass(frozen=True)
class Score:
    """One policy on one team. NaN if it does not fit, or if it let no bulk pass for seconds, which ends a run."""

    late: float
    bulk_mbps: float
    loops: float
    """Number of control loops that ended."""


@dataclass(frozen=True)
class Case:
    """One draw under all policies."""

    drawn: Drawn
    scores: dict[str, Score]

    @property
    def kind(self) -> str:
        alone, edca = self.scores["mpc-only"].late, self.scores["edca"].late
        if alone > HOPELESS:
            return "hopeless"
        return "hurt" if edca - alone >= LATE_GOAL else "calm"

    @property
    def measure(self) -> str:
        """The policy to which the lateness of `coorp` is compared."""
        return "edca" if self.kind == "calm" else "mpc-only"

    @property
    def later(self) -> float:
        return self.scores["coorp"].late - self.scores[self.measure].late

    def bulk(self, policy: str) -> float:
        """Returns the bulk relative to `edca`'s."""
        edca = self.scores["edca"].bulk_mbps
        return self.scores[policy].bulk_mbps / edca if edca > 0.0 else math.nan

    @property
    def loops(self) -> float:
        """Share of `mpc-only`'s loops that `edca` finishes."""
        alone = self.scores["mpc-only"].loops
        return self.scores["edca"].loops / alone if alone > 0.0 else math.nan

    @property
    def missed(self) -> list[str]:
        if self.kind == "hopeless":
            return []
        if math.isnan(self.scores["coorp"].late):
            return ["starves"]
        missed = [f"control {number(100.0 * self.later, sign=True)}"] if self.later > LATE_GOAL else []
        return missed + ([f"bulk {percent(self.bulk('coorp'))}"] if self.bulk("coorp") < BULK_GOAL else [])

    @property
    def harmed(self) -> list[str]:
        coorp, edca, rival = (self.scores[policy] for policy in ("coorp", "edca", "schedwifi"))
        harmed = ["later than edca"] if coorp.late - edca.late > LATE_GOAL else []
        worse = coorp.late - rival.late > LATE_GOAL and coorp.bulk_mbps < rival.bulk_mbps
        return harmed + (["later and slower than schedwifi"] if worse else [])

    @property
    def verdict(self) -> str:
        good = {"hopeless": "hopeless", "hurt": "reached", "calm": "no harm"}[self.kind]
        words = [f"missed {' and '.join(self.missed)}" if self.missed else good]
        return "; ".join(words + [f"HARMED {' and '.join(self.harmed)}"] * bool(self.harmed))

    @property
    def row(self) -> list[str]:
        late = [percent(self.scores[policy].late) for policy in POLICIES]
        bulk = [percent(self.bulk(policy), 0) for policy in ("schedwifi", "coorp")]
        name = f"{self.drawn.team.name}: {self.drawn.what}"
        return [name, *late, percent(self.loops, 0), number(self.scores["edca"].bulk_mbps), *bulk, self.verdict]


TITLES = ["team", *(f"late {policy}" for policy in POLICIES), "loops", "bulk edca", "schedwifi", "coorp", "verdict"]


def score(result: Result) -> Score:
    """Returns the figures of a run. If no loop ended, all are late."""
    if not result.airtime:
        return Score(math.nan, math.nan, math.nan)
    bulk_mbps = 0.0 if math.isnan(result.bulk_mbps) else result.bulk_mbps
    bounded = [flow for flow in result.flows.values() if not math.isnan(flow.violation)]
    if not bounded:
        return Score(result.violation if result.loops else 1.0, bulk_mbps, result.loops)
    late = sum(flow.sent * flow.violation for flow in bounded)
    return Score(late / sum(flow.sent for flow in bounded), bulk_mbps, math.nan)


def malformed(case: Case, results: dict[str, Result]) -> list[str]:
    """Returns the results of the draw that are impossible under any policy."""
    found: list[str] = []
    for policy, result in results.items():
        if not result.airtime:
            continue
        late, bulk_mbps = case.scores[policy].late, case.scores[policy].bulk_mbps
        if not 0.0 <= late <= 1.0:
            found.append(f"{policy}: a lateness of {late}")
        if not 0.0 <= bulk_mbps < math.inf or (policy == "mpc-only" and bulk_mbps > 0.0):
            found.append(f"{policy}: bulk of {bulk_mbps} Mbit/s")
        if abs(sum(result.airtime.values()) - 1.0) > 1e-6:
            found.append(f"{policy}: shares of airtime that add up to {sum(result.airtime.values())}")
        found += [
            f"{policy}: {flow.delivered} of {flow.sent} messages delivered on {name}"
            for name, flow in result.flows.items()
            if not math.isnan(flow.violation) and not 0 <= flow.delivered <= flow.sent
        ]
    return [f"{case.drawn.team.name}: {problem}" for problem in found]


def run(simulator: Simulator, drawn: Drawn, duration_s: float) -> tuple[Case, list[str]]:
    """Runs one draw under all policies; also returns the malformed results."""
    jobs = {policy: Job(drawn.team, policy, 1, duration_s) for policy in POLICIES}
    found = simulator.run(jobs.values())
    results = {policy: found[job] for policy, job in jobs.items()}
    case = Case(drawn, {policy: score(result) for policy, result in results.items()})
    return case, malformed(case, results)


def print_cases(title: str, cases: list[Case], *, markdown: bool) -> None:
    if not cases:
        return
    print(f"{title}\n")
    show(TITLES, [case.row for case in cases], markdown=markdown)


def print_kinds(cases: list[Case], *, markdown: bool) -> None:
    """Prints misses and harm for each kind of team, over all its draws."""
    rows: list[list[str]] = []
    for kind in sorted({kind for case in cases for kind in case.drawn.kinds}):
        own = [case for case in cases if kind in case.drawn.kinds]
        hurt, calm = of_kind(own, "hurt"), of_kind(own, "calm")
        shares = [f"{kept(group)} of {len(group)}" for group in (hurt, calm)]
        rows.append([kind, *shares, str(sum(bool(case.harmed) for case in own))])
    show(["kind", "goal reached", "no harm", "harmed"], rows, markdown=markdown)


def of_kind(cases: Iterable[Case], kind: str) -> list[Case]:
    return [case for case in cases if case.kind == kind]


def kept(cases: list[Case]) -> int:
    return sum(not case.missed for case in cases)


def print_sums(cases: list[Case]) -> None:
    hurt, calm, hopeless = (of_kind(cases, kind) for kind in ("hurt", "calm", "hopeless"))
    harmed = [case.drawn.team.name for case in cases if case.harmed]
    print(f"{len(hurt)} draws that edca hurts: coorp reaches the goal on {kept(hurt)}.")
    print(f"{len(calm)} calm draws: coorp does no harm on {kept(calm)}.")
    mended = sum(case.scores["coorp"].late <= HOPELESS for case in hopeless)
    print(f"{len(hopeless)} hopeless draws: coorp makes {mended} of them late in no more than {percent(HOPELESS, 0)}.")
    print(f"Harmed of all {len(cases)}: {len(harmed)}{': ' if harmed else ''}{', '.join(harmed)}.")
    for name, group in (("hurt", hurt), ("calm", calm)):
        found = [case for case in group if not (math.isnan(case.later) or math.isnan(case.bulk("coorp")))]
        if not found:
            continue
        later, bulk = [100.0 * case.later for case in found], [case.bulk("coorp") for case in found]
        print(
            f"{name}: coorp's lateness {number(statistics.median(later), 2, sign=True)} points in the median, "
            f"{number(max(later), 2, sign=True)} at most; bulk {percent(statistics.median(bulk), 0)} in the median, "
            f"{percent(min(bulk), 0)} at least."
        )


def seconds(text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|min)", text)
    if found is None or float(found[1]) == 0.0:
        raise argparse.ArgumentTypeError(f"'{text}' is not a duration; write 30s or 2min")
    return float(found[1]) * _UNITS_S[found[2]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=1, metavar="SEED", help="the first draw's seed [default: 1]")
    parser.add_argument("--teams", type=int, metavar="COUNT", help="number of draws [default: 60]")
    parser.add_argument("--duration", type=seconds, metavar="TIME", help="duration of each run [default: 30s]")
    parser.add_argument("--quick", action="store_true", help="fewer teams and shorter runs, for CI")
    parser.add_argument("--markdown", action="store_true", help="print the tables as Markdown")
    arguments = parser.parse_args()
    program = binary()
    if program is None:
        return 0
    teams = arguments.teams or (QUICK_TEAMS if arguments.quick else 60)
    duration_s = arguments.duration or (QUICK_S if arguments.quick else 30.0)
    simulator = Simulator(program, "wide", lenient=True)
    cases: list[Case] = []
    problems: list[str] = []
    for seed in range(arguments.first, arguments.first + teams):
        drawn = draw_wide(seed)
        case, found = run(simulator, drawn, duration_s)
        cases.append(case)
        problems += found
        # Show progress, because the study is long; the tables come last.
        print("  ".join(case.row), file=sys.stderr, flush=True)
    markdown = arguments.markdown
    print(f"{duration_s:g} s, seed 1. Bulk: Mbit/s of edca, the others over it.\n")
    print_cases("The goal, where edca makes control late:", of_kind(cases, "hurt"), markdown=markdown)
    print_cases("First do no harm, where it does not:", of_kind(cases, "calm"), markdown=markdown)
    print_cases("Hopeless by themselves:", of_kind(cases, "hopeless"), markdown=markdown)
    print_kinds(cases, markdown=markdown)
    print_sums(cases)
    for problem in problems:
        print(f"FAIL: {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
