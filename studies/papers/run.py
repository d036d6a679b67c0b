"""Every figure and table of Deng 2022, Dust and Lee beside ours, with a verdict: docs/papers.md.

    cargo build --release -p coorp-cli && pip install .
    python studies/papers/run.py [--measure] [--only deng.figure_10,lee] [--resume] [--write docs/papers.md]
    python studies/papers/run.py --quick

Published values are in published.toml, and why ours differ in reasons.toml. `--measure` measures all, or what `--only`
names, and keeps it in measured.json; the rest is as it was measured before. Equations and the tables of docs/results.md
are read every time. Then the page is printed or written.

`--quick`, for CI, simulates everything briefly, and keeps nothing. It exits with 1 if a published value has no
counterpart, a calibrated figure has moved, an order is lost that the papers report and the simulator showed so far,
`coorp plan --paths` counts interfaces otherwise than lee.py, or docs/papers.md is not what would be written now. What
needs a binary or package that is missing is named and left out.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from lib.simulator import REPOSITORY, Simulator, binary

from papers import deng, dust, inventory, learning, lee, outcome, scaling, testbed
from papers.inventory import Item, Paper
from papers.outcome import Outcome
from papers.page import page

PAGE = REPOSITORY / "docs" / "papers.md"


@dataclass(frozen=True)
class Effort:
    """The extent of each measurement."""

    testbed: testbed.Effort
    low: testbed.Effort
    epochs: testbed.Effort | None
    """None: not measured, as for the others below."""
    deng: deng.Effort
    disc: deng.Effort
    fleet: tuple[list[int], int] | None
    """Numbers of robots, and lists."""
    lee: lee.Effort | None
    minutes: int
    """Of learning; 0: none."""
    draw: bool


FULL = Effort(
    testbed.Effort(600.0, range(1, 6)),
    testbed.Effort(600.0, range(1, 6)),
    testbed.Effort(600.0, range(1, 6)),
    deng.Effort(300.0, range(1, 4), settings=True, live_s=120.0),
    deng.Effort(60.0, range(1, 4), settings=True, live_s=0.0),
    ([10, 30, 50, 70, 90, 110, 130, 150], 500),
    lee.Effort(10, 20.0),
    90,
    draw=True,
)
QUICK = Effort(
    testbed.Effort(120.0, range(1, 3)),
    testbed.Effort(30.0, range(1, 2)),
    None,
    deng.Effort(15.0, range(1, 2), settings=False, live_s=0.0),
    deng.Effort(20.0, range(1, 2), settings=False, live_s=0.0),
    None,
    None,
    0,
    draw=False,
)


class Measures:
    """All measurements at one effort, by the keys that they give."""

    def __init__(self, program: Path, effort: Effort, *, resume: bool = False) -> None:
        self._program, self._effort, self._resume = program, effort, resume
        self._simulator = Simulator(program, "papers", lenient=True)
        has_package = importlib.util.find_spec("coorp") is not None
        has_torch = has_package and importlib.util.find_spec("torch") is not None
        e = effort
        alone = replace(e.deng, duration_s=e.testbed.duration_s, seeds=e.testbed.seeds)
        self.all: list[tuple[tuple[str, ...], Callable[[], dict[str, Outcome]]]] = [
            (("deng.figure_2a", "deng.table_ii", "deng.table_iii"), self._policies),
            (("deng.table_iv",), lambda: testbed.low_rates(testbed.Testbed(self._simulator, e.low), tables=e.draw)),
            (("deng.figure_4",), lambda: {"deng.figure_4": deng.congestion(self._simulator, e.deng)}),
            (("deng.figure_10",), lambda: {"deng.figure_10": deng.components(self._simulator, alone)}),
            (("deng.figure_11",), lambda: {"deng.figure_11": deng.packets_ahead(self._simulator, e.deng)}),
            (("deng.figure_12",), lambda: {"deng.figure_12": deng.few_robots(self._simulator, e.deng)}),
            (("deng.figure_13",), lambda: {"deng.figure_13": scaling.limit(self._simulator, e.disc)}),
        ]
        if e.epochs:
            epochs = e.epochs
            self.all.append(
                (("deng.table_i", "deng.figure_2b"), lambda: testbed.epochs(testbed.Testbed(self._simulator, epochs)))
            )
        if has_package:
            self.all += [
                (("deng.figure_6",), lambda: {"deng.figure_6": deng.errors(self._simulator, e.deng)}),
                (("deng.figure_8",), lambda: {"deng.figure_8": deng.latencies(self._simulator, e.deng)}),
                (
                    ("deng.figure_14",),
                    lambda: {"deng.figure_14": deng.low_reactions(self._simulator, e.deng, draw=e.draw)},
                ),
            ]
        else:
            print("left out: figures 6, 8, 9 and 14 of Deng 2022, which need the package (pip install '.[learn]')")
        if has_torch and e.minutes:
            self.all.append((("deng.figure_9",), self._learning))
        if e.fleet is not None:
            robots, lists = e.fleet
            self.all.append((("dust.figure_4", "dust.figure_5"), lambda: dust.parts(robots[:3], lists)))
            self.all.append((("dust.table_v", "dust.figure_8"), lambda: dust.in_turn(robots, lists)))
        if e.lee:
            self.all.append((("lee.table_i", "lee.figure_6", "lee.figure_7", "lee.figure_8"), self._emulated))

    def _policies(self) -> dict[str, Outcome]:
        found = testbed.policies(testbed.Testbed(self._simulator, self._effort.testbed))
        if self._effort.draw and importlib.util.find_spec("coorp"):
            found["deng.figure_2a"].charts = deng.reaction_chart(self._effort.deng)
        return found

    def _learning(self) -> dict[str, Outcome]:
        minutes, syncs = self._effort.minutes, ("bsp", "ssp", "asp")
        found = learning.growth(minutes, range(1, 6), syncs, learning.POLICIES, resume=self._resume)
        return {"deng.figure_9": found}

    def _emulated(self) -> dict[str, Outcome]:
        import dupcon

        assert self._effort.lee
        if (why := dupcon.missing(self._program)) is not None:
            print(f"table I of Lee is left out: {why}")
            return {}
        return lee.emulated(self._program, self._effort.lee)


def asked(keys: tuple[str, ...], only: list[str]) -> bool:
    """Whether a measurement gives something that was asked for."""
    return not only or any(key == one or key.startswith(f"{one}.") for key in keys for one in only)


def known(papers: list[Paper]) -> dict[str, Outcome]:
    """What was measured before, and what is computed or read every time."""
    items = {item.key: item for paper in papers for item in paper.items}
    found = outcome.read()
    fresh = lee.analytic(items["lee.figure_5"].figures["within_percent"]) | dust.outcomes()
    for key, own in fresh.items():
        # Experiments, where they were run.
        own.tables += found[key].tables if key in found else []
    return found | fresh


def quick(program: Path, papers: list[Paper]) -> list[str]:
    """What is wrong."""
    items = {item.key: item for paper in papers for item in paper.items}
    found: dict[str, Outcome] = {}
    for _, measure in Measures(program, QUICK).all:
        found |= measure()
    problems = [text for key, own in found.items() for text in unmatched(items[key], own)]
    problems += lee.differences(program, items["lee.figure_5"].figures["within_percent"])
    alone = {p: own.mean for p, own in found["deng.figure_10"].figures["violation_percent"].items() if "+" in p}
    return problems + testbed.failures(items, found, alone)


def unmatched(item: Item, own: Outcome) -> list[str]:
    """Published values without a counterpart."""
    texts = [
        f"{item.key}: {quantity} of {case} is not measured"
        for quantity, cases in item.figures.items()
        for case in cases
        if case not in own.figures.get(quantity, {}) and not any(part in case for part in own.cannot)
    ]
    return texts + [f"{item.key}: '{claim}' is not judged" for claim in item.claims if claim not in own.claims]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="everything briefly, for CI; keeps nothing")
    parser.add_argument("--measure", action="store_true", help="measure again, and keep it")
    parser.add_argument("--only", default="", help="with --measure: such as deng.figure_10,lee")
    parser.add_argument("--resume", action="store_true", help="with --measure: leave finished runs of learning")
    parser.add_argument("--write", type=Path, help="write the page to this file in place of printing it")
    arguments = parser.parse_args()
    papers = inventory.papers()
    if arguments.quick:
        program = binary()
        problems = quick(program, papers) if program else []
        if PAGE.read_text() != page(papers, known(papers)):
            problems.append(f"{PAGE.name} is out of date: python studies/papers/run.py --write docs/papers.md")
        for problem in problems:
            print(f"FAIL: {problem}")
        return 1 if problems else 0
    if arguments.measure:
        program = binary()
        if program is None:
            return 1
        for keys, measure in Measures(program, FULL, resume=arguments.resume).all:
            if asked(keys, [one for one in arguments.only.split(",") if one]):
                print(", ".join(keys), file=sys.stderr, flush=True)
                outcome.keep(measure())
    text = page(papers, known(papers))
    if arguments.write:
        arguments.write.write_text(text)
    elif not arguments.measure:
        print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
