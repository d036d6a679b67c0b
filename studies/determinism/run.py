"""Tests whether messages are handled in an order that depends only on their inputs, with peers in the same run.

    python studies/determinism/run.py [--quick] [--markdown] [--rounds 300000]

Kwok (HPRM), section IV-B, cites a scenario of Bateni (2023): in each round, node A sends `disarm` to node C, and `open`
to node B, which passes it on to C. C must handle them in this order. ROS 2 got 600 of 300,000 rounds wrong, and a
hundred times as many under stress. Here the three nodes are processes,

- as a program of reactors with an RTI, in real time and without waiting for the clock;
- without an RTI: a node waits until its inputs are known; or with an offset, after which it takes an input for absent.
  A later value is a violation, and is reported. An offset of 100 ms covers most delays of processes on a shared
  machine, and costs no time if messages come earlier. An offset of 1 ms covers little;
- over Zenoh (callbacks) and CycloneDDS (a wait set), also from Python, with everything reliable,

each at several periods, alone and beside two busy loops. The tables count the doors that opened before they were
disarmed, the messages that the door has not handled, the messages that were reported to be late, and errors that no
report accounts for. *took* is the real time of a round.

Then a program with arrays, actions, delays and a cycle runs in many ways (pipeline.py). The hash of everything that its
reactions did must be the same in all of them, and different when its sensors read something else.

The peers are the same as in studies/ipc, and are skipped with a note if they are not installed. The picture needs
matplotlib. `--quick` runs few rounds, for CI, and no peers. Ends with 1 if a claim does not hold.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from ipc.node import transport
from ipc.peers import python as python_of
from lib.simulator import MADE, REPOSITORY
from lib.table import number, show

from determinism.nodes import Found, RunFailedError, coorp, peer, scenario, stress

PICTURE = MADE / "determinism" / "wrong.png"
OFFSET, SHORT_OFFSET = "100ms", "1ms"
PERIODS_S = (10e-3, 1e-3, 0.5e-3, 0.2e-3, 0.1e-3)
CLAIMED_S = 1e-3
"""Minimum period at which nothing may be wrong without an RTI."""
FAST, RTI = "coorp, RTI, --fast", "coorp, RTI"
WAITS, OFFSETS, SHORT = "coorp, no RTI", f"coorp, offset {OFFSET}", f"coorp, offset {SHORT_OFFSET}"
PEERS = {"Zenoh": ("zenoh_bus", "zenoh_shm"), "CycloneDDS": ("cyclone_bus", "cyclone")}
"""The file here, and the transport of studies/ipc with the same package."""
PIPELINE_LIMIT_S = 120.0


@dataclass(frozen=True)
class Effort:
    """The number of rounds."""

    rounds: int
    """Rounds if a claim needs many: with an RTI, and at the claimed period."""
    others: int
    slow: int
    """Rounds at the longest period."""
    pipeline: str
    """The logical time of the program whose hash is compared."""
    whole: bool = True
    """Whether to run under stress too, with peers, at all periods and in all ways."""


QUICK = Effort(rounds=300, others=300, slow=300, pipeline="100ms", whole=False)
QUICK_WAYS = ("one process, 4 threads", "a process each, --fast", "two processes, no RTI")


@dataclass(frozen=True)
class Case:
    """A row of the table."""

    system: str
    period_s: float
    stressed: bool
    rounds: int
    run: Callable[[], Found]


def cases(effort: Effort) -> Iterator[Case]:
    """Yields all runs of the scenario, the systems in turn."""

    def reactors(*options: str) -> Callable[[int, float], Found]:
        return lambda rounds, period_s: scenario(rounds, period_s, *options)

    def without_rti(*options: str) -> Callable[[int, float], Found]:
        return reactors("--coordination", "decentralised", *options)

    ours = {
        WAITS: without_rti(),
        OFFSETS: without_rti("--offset", OFFSET),
        SHORT: without_rti("--offset", SHORT_OFFSET),
    }
    for stressed in (False, True)[: 1 + effort.whole]:
        few = effort.others
        yield _case(FAST, CLAIMED_S, stressed, few if stressed else effort.rounds, reactors("--fast"))
        yield _case(RTI, CLAIMED_S, stressed, few if stressed else effort.rounds, reactors())
        for period_s in PERIODS_S if effort.whole else (CLAIMED_S,):
            rounds = effort.slow if period_s > CLAIMED_S else few
            for name, run in ours.items():
                # An offset is known to fail on a busy CI machine.
                if name != OFFSETS or effort.whole:
                    many = effort.rounds if name == WAITS and period_s == CLAIMED_S and not stressed else rounds
                    yield _case(name, period_s, stressed, many, run)
            for name, (module, of_ipc) in PEERS.items():
                python = python_of(transport(of_ipc)) if effort.whole else None
                if python is not None:
                    yield _case(name, period_s, stressed, rounds, _peer(module, python))


def _peer(module: str, python: str) -> Callable[[int, float], Found]:
    return lambda rounds, period_s: peer(module, python, rounds, period_s)


def _case(system: str, period_s: float, stressed: bool, rounds: int, run: Callable[[int, float], Found]) -> Case:
    return Case(system, period_s, stressed, rounds, lambda: run(rounds, period_s))


Results = dict[Case, Found | None]


def run_all(effort: Effort) -> Results:
    """Runs the scenario in all ways. A run that fails is printed, and has no result."""
    found: Results = {}
    for case in cases(effort):
        with stress(case.stressed):
            try:
                found[case] = case.run()
            except RunFailedError as error:
                print(f"FAILED: {title(case)}: {error}", file=sys.stderr)
                found[case] = None
    return found


def title(case: Case) -> str:
    """Returns a case in words."""
    return f"{case.system}, {period(case)}{', stressed' if case.stressed else ''}"


def period(case: Case) -> str:
    """Returns a case's period in words."""
    return "-" if case.system == FAST else f"{case.period_s * 1e3:g} ms"


def show_scenario(found: Results, *, markdown: bool) -> None:
    """Prints the table of the scenario."""
    rows = []
    for case in sorted(found, key=lambda case: (case.stressed, [*SYSTEMS].index(case.system))):
        each = found[case]
        row = [case.system, period(case), "yes" if case.stressed else "no", f"{case.rounds:,}"]
        if each is None:
            rows.append([*row, *["failed"] * 5])
            continue
        said = "-" if each.violations is None else f"{each.violations:,}"
        row += [f"{each.early:,}", f"{each.missing:,}", said, f"{each.silent:,}"]
        rows.append([*row, f"{number(1e3 * each.took_s / case.rounds, 2)} ms"])
    print("Node C must handle `disarm` before `open`, in each round\n")
    titles = ["system", "period", "stress", "rounds", "opened early", "missing", "reported", "silent", "took"]
    show(titles, rows, markdown=markdown)


SYSTEMS = (FAST, RTI, WAITS, OFFSETS, SHORT, *PEERS)


def ways() -> dict[str, tuple[bool, tuple[str, ...]]]:
    """Returns the ways to run the pipeline: whether under stress, and the options."""
    centralised = {
        "one process": (),
        "one process, 4 threads": ("--threads", "4"),
        "a process each": ("--place", "processes"),
        "two processes": ("--place", "halves"),
        "two processes, 4 threads": ("--place", "halves", "--threads", "4"),
        "one process, --fast": ("--fast",),
        "a process each, --fast": ("--place", "processes", "--fast"),
    }
    decentralised = {
        "a process each, no RTI": ("--place", "processes", "--coordination", "decentralised"),
        "two processes, no RTI": ("--place", "halves", "--coordination", "decentralised"),
    }
    calm = {**centralised, **decentralised}
    return {
        **{name: (False, options) for name, options in calm.items()},
        **{f"{name}, stressed": (True, options) for name, options in calm.items() if "4" not in name},
    }


def show_hashes(effort: Effort, *, markdown: bool) -> list[tuple[bool, str]]:
    """Prints the table of the pipeline's hashes, and returns the claims about it."""
    rows, hashes = [], []
    for name, (stressed, options) in ways().items():
        if not effort.whole and name not in QUICK_WAYS:
            continue
        with stress(stressed):
            try:
                said = coorp("pipeline", "--timeout", effort.pipeline, *options, limit_s=PIPELINE_LIMIT_S)
            except RunFailedError as error:
                print(f"FAILED: {name}: {error}", file=sys.stderr)
                said = {"digest": "failed", "reactions": 0, "took_s": float("nan")}
        rows.append([name, said["digest"], f"{said['reactions']:,}", number(said["took_s"], 2)])
        hashes.append(said["digest"])
    other = coorp("pipeline", "--timeout", effort.pipeline, "--fast", "--seed", "2", limit_s=PIPELINE_LIMIT_S)
    rows.append(
        ["one process, --fast, other inputs", other["digest"], f"{other['reactions']:,}", number(other["took_s"], 2)]
    )
    print(f"The same inputs for {effort.pipeline} of logical time\n")
    show(["how it ran", "hash", "reactions", "took, s"], rows, markdown=markdown)
    same = len(set(hashes)) == 1 and hashes[0] != "failed"
    return [
        (same, f"the same inputs give the same hash, in {len(hashes)} ways"),
        (other["digest"] not in hashes, "other inputs give another hash"),
    ]


def claims(found: Results) -> list[tuple[bool, str]]:
    """Returns the claims about our systems."""

    def holds(of: Callable[[Case], bool], is_right: Callable[[Found], bool]) -> bool:
        return all(each is not None and is_right(each) for case, each in found.items() if of(case))

    said = [
        (
            holds(lambda case: case.system in (FAST, RTI), lambda each: each.wrong == 0),
            "with an RTI nothing is wrong",
        ),
        (
            holds(lambda case: case.system == WAITS, lambda each: each.wrong == 0),
            "without an RTI nothing is wrong where inputs are waited for",
        ),
        (
            holds(lambda case: case.system in (OFFSETS, SHORT), lambda each: each.silent == 0),
            "with offsets no error is silent, not even with one that is too short",
        ),
    ]
    calm = {case for case in found if case.system == OFFSETS and case.period_s >= CLAIMED_S and not case.stressed}
    if calm:
        what = f"with an offset of {OFFSET} nothing is wrong at {CLAIMED_S * 1e3:g} ms and above, without stress"
        said.append((holds(lambda case: case in calm, lambda each: each.wrong == 0), what))
    return said


def draw(found: Results) -> None:
    """Draws the share of wrong rounds over the period."""
    matplotlib: Any = importlib.import_module("matplotlib")
    matplotlib.use("Agg")
    plt: Any = importlib.import_module("matplotlib.pyplot")
    canvas, panels = plt.subplots(1, 2, figsize=(10, 4), sharey=True, layout="constrained")
    for panel, stressed in zip(panels, (False, True), strict=True):
        for index, system in enumerate(SYSTEMS):
            points = [
                (case.period_s * 1e3, 100 * each.wrong / case.rounds)
                for case, each in found.items()
                if each is not None and case.system == system and case.stressed == stressed and system != FAST
            ]
            if points:
                style = "s--" if system in (RTI, WAITS) else "o-"
                panel.plot(*zip(*sorted(points), strict=True), f"C{index}{style}", markersize=4, label=system)
        panel.set(title="beside two busy loops" if stressed else "alone", xscale="log", xlabel="period, ms")
        panel.set_yscale("symlog", linthresh=1e-3)
        panel.set_ylim(0, 300)
        panel.set_xticks([s * 1e3 for s in PERIODS_S], [f"{s * 1e3:g}" for s in PERIODS_S])
        panel.minorticks_off()
        panel.grid(alpha=0.3)
    panels[0].axhline(0.2, color="k", linestyle=":", linewidth=0.8)
    panels[0].annotate("ROS 2, published", (10, 0.2), ha="right", va="bottom", fontsize=8)
    panels[0].set_ylabel("errors per 100 rounds")
    panels[0].legend(fontsize=8)
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    canvas.savefig(PICTURE, dpi=110, metadata={"Software": None})
    plt.close(canvas)


def main() -> int:
    """Runs and prints everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few rounds and no peers, for CI")
    parser.add_argument("--markdown", action="store_true", help="print the tables as Markdown")
    parser.add_argument(
        "--rounds", type=int, default=300_000, help="rounds of runs that a claim needs; others have a 30th"
    )
    arguments = parser.parse_args()
    # Ends like Ctrl-C, which stops everything that runs.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    many = arguments.rounds
    full = Effort(rounds=many, others=max(1, many // 30), slow=max(1, many // 360), pipeline="5s")
    effort = QUICK if arguments.quick else full
    for name, (_, of_ipc) in PEERS.items() if effort.whole else ():
        if python_of(transport(of_ipc)) is None:
            print(f"skipped: {name} is not installed (python studies/ipc/run.py --install)")
    found = run_all(effort)
    show_scenario(found, markdown=arguments.markdown)
    said = claims(found) + show_hashes(effort, markdown=arguments.markdown)
    for holds, what in said:
        print(f"{'holds' if holds else 'DOES NOT HOLD'}: {what}")
    if importlib.util.find_spec("matplotlib") is not None:
        draw(found)
        print(f"errors over the period: {PICTURE.relative_to(REPOSITORY)}")
    return 0 if all(holds for holds, _ in said) else 1


if __name__ == "__main__":
    sys.exit(main())
