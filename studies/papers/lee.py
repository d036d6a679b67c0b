"""Lee: figures 4 and 5 by eq. 9 to 17, and figures 6 to 8 and table I with real programs over `coorp emu`."""

from __future__ import annotations

import itertools
import json
import math
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dupcon
import numpy as np

from papers import charts
from papers.outcome import Claim, Found, Outcome, Table

SIGMAS = {68: 1.0, 95: 2.0, 99: 3.0}
"""Share in percent that Lee expects within so many deviations of the mean."""
TRIES = 3
LOSSES = (0.1, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5)
CASES = {"DupCon": "always", "MPTCP": "shared", "round robin": "robin"}
"""Lee's cases 1 to 3. Its MPTCP carries control and data in one connection."""


def mean_tries(loss: float, interfaces: int) -> float:
    """Eq. 14: the expected delay in units of one try's."""
    return 1.0 / (1.0 - loss**interfaces)


def tries(loss: float, interfaces: int, sigmas: float) -> float:
    """The mean and so many deviations of a geometric number of tries."""
    lost = loss**interfaces
    return (1.0 + sigmas * math.sqrt(lost)) / (1.0 - lost)


def normal_percent(loss: float, interfaces: int, target: float) -> float:
    """Lee's share within `target` tries: as many deviations above the mean as fit, read as if normal and two-sided."""
    lost = loss**interfaces
    sigmas = (target * (1.0 - lost) - 1.0) / math.sqrt(lost)
    return 100.0 * math.erf(sigmas / math.sqrt(2.0))


def exact_percent(loss: float, interfaces: int, target: float) -> float:
    """The share of a geometric number of tries that is at most `target`."""
    return 100.0 * (1.0 - loss ** (interfaces * math.floor(target)))


def interfaces_for(loss: float, percent: int, target: float) -> int:
    """Eq. 17 with the mean and SIGMAS deviations in place of the mean."""
    return next(n for n in range(1, 64) if tries(loss, n, SIGMAS[percent]) <= target)


PLANNED = """\
robot = [{ name = "base", leader = true }, { name = "drone" }]
air = { width_mhz = 20, mcs = 0 }
control = { rate_hz = 30, perception = "1KiB" }
"""


def differences(program: Path, published: dict[str, float]) -> list[str]:
    """Where `coorp plan --paths` answers otherwise than `interfaces_for`."""

    def plan(team: Path, *more: str) -> dict[str, Any]:
        command = [
            program,
            "plan",
            team,
            "--paths",
            "--policy",
            "mpc-only",
            "--duration",
            "2s",
            "--quiet",
            "--json",
            "-",
        ]
        return json.loads(subprocess.run([*command, *more], capture_output=True, text=True, check=True).stdout)

    with tempfile.TemporaryDirectory() as folder:
        team = Path(folder) / "team.toml"
        team.write_text(PLANNED)
        target_ms = _target(published) * plan(team)["interfaces"][0]["try_ms"]
        texts: list[str] = []
        for loss in LOSSES:
            found = plan(team, "--loss", f"{loss:g}", "--target", f"{target_ms:.6f}ms")
            target = found["target_ms"] / found["interfaces"][0]["try_ms"]
            for answer in found["answers"]:
                percent = round(100 * answer["share"])
                own = interfaces_for(loss, percent, target)
                if answer["lee"] != own:
                    case = f"{percent} % at a loss of {loss:g}"
                    texts.append(f"lee.figure_5: coorp plan --paths says {answer['lee']} for {case}, not {own}")
        return texts


def analytic(published: dict[str, float]) -> dict[str, Outcome]:
    """Figures 4 and 5."""
    command = "python studies/papers/run.py --measure --only lee.figure_4,lee.figure_5"
    four = Outcome("analytic", command, "eq. 14")
    for loss in LOSSES:
        ratio = mean_tries(loss, 2) / mean_tries(loss, 1)
        four.figures.setdefault("ratio", {})[f"loss {loss:g}, two interfaces"] = Found(ratio)
    five = Outcome("analytic", command, "eq. 10 to 17")
    target = _target(published)
    one = {case: float(case.rpartition(" ")[2]) for case in published}
    for case, loss in one.items():
        five.figures.setdefault("within_percent", {})[case] = Found(normal_percent(loss, 1, target))
    five.figures["within_percent"]["two interfaces, loss 0.4"] = Found(normal_percent(0.4, 2, target))
    share = five.figures["within_percent"]["two interfaces, loss 0.4"].mean
    five.claims["dupcon"] = Claim(share > 90.0, f"{share:.0f} %")
    rows: list[list[str]] = []
    for loss in LOSSES:
        cells = [f"{f(loss, n, target):.0f} %" for f in (normal_percent, exact_percent) for n in (1, 2, 3)]
        rows.append([f"{loss:g}", *cells, *(str(interfaces_for(loss, percent, target)) for percent in SIGMAS)])
    titles = ["loss", *(f"{n} interfaces" if n > 1 else "1 interface" for n in (1, 2, 3))]
    titles += ["counted: 1", "2", "3", *(f"interfaces for {percent} %" for percent in SIGMAS)]
    five.tables.append(
        Table(
            f"Within {target:.2f} tries: as Lee reads deviations, counted exactly, and eq. 17 with deviations.",
            titles,
            rows,
        )
    )
    return {"lee.figure_4": four, "lee.figure_5": five}


def _target(published: dict[str, float]) -> float:
    """The target in tries, which Lee does not give, with which the two published shares are least off."""
    grid = [1.5 + 0.001 * step for step in range(2000)]
    losses = {float(case.rpartition(" ")[2]): share for case, share in published.items()}
    return min(grid, key=lambda t: sum((normal_percent(q, 1, t) - share) ** 2 for q, share in losses.items()))


@dataclass(frozen=True)
class Effort:
    """The extent of the emulation."""

    runs: int
    span_s: float


@dataclass(frozen=True)
class Run:
    """One run: intervals between arrivals, arrivals and data over time."""

    intervals_ms: tuple[list[float], list[float]]
    arrivals_s: list[float]
    data_mbps: list[tuple[float, float]]
    kept_up: bool


def measured(program: Path, how: str, effort: Effort) -> Run:
    """One run of a case of studies/dupcon.py; one with which the emulator did not keep up is repeated."""
    found, report = dupcon.run(program, how, effort.span_s, data=True)
    for _ in range(TRIES - 1):
        if not report["kept_up"]:
            found, report = dupcon.run(program, how, effort.span_s, data=True)
    bad_at = dupcon.SETTLE_S + effort.span_s
    phases = (dupcon.Phase(), dupcon.Phase())
    phases[0].add(found, dupcon.SETTLE_S, bad_at)
    phases[1].add(found, bad_at, bad_at + effort.span_s)
    counts = found["bytes"]
    rates = [
        (at - dupcon.SETTLE_S, (count - before) * 8e-6 / (at - earlier))
        for (earlier, before), (at, count) in itertools.pairwise(counts)
        if at >= dupcon.SETTLE_S
    ]
    arrivals = [at - dupcon.SETTLE_S for at, _ in found["arrivals"] if at >= dupcon.SETTLE_S]
    return Run(
        ([1e3 * s for s in phases[0].intervals_s], [1e3 * s for s in phases[1].intervals_s]),
        arrivals,
        rates,
        report["kept_up"],
    )


def emulated(program: Path, effort: Effort) -> dict[str, Outcome]:
    """Figures 6 to 8 and table I."""
    command = "sudo python studies/papers/run.py --measure --only lee.table_i"
    what = f"{effort.runs} runs of {2 * effort.span_s:g} s over `coorp emu`, two paths, the first of which loses "
    what += "nine of ten frames in the second half"
    runs = {name: [measured(program, how, effort) for _ in range(effort.runs)] for name, how in CASES.items()}
    single = [measured(program, "one", effort) for _ in range(min(2, effort.runs))]
    table = Outcome("emulated", command, what)
    for name, of in runs.items():
        for phase, place in (("good", 0), ("poor", 1)):
            means = [float(np.mean(run.intervals_ms[place])) for run in of]
            deviations = [float(np.std(run.intervals_ms[place])) for run in of]
            table.figures.setdefault("mean_ms", {})[f"{phase}, {name}"] = over(means)
            table.figures.setdefault("deviation_ms", {})[f"{phase}, {name}"] = over(deviations)
    kept = sum(run.kept_up for of in runs.values() for run in of)
    table.effort += f"; the emulator kept up in {kept} of {effort.runs * len(runs)}"
    return {"lee.table_i": table, **_figures(runs, single, command, what, effort.span_s)}


def over(values: list[float]) -> Found:
    return Found(float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else 0.0)


def _figures(
    runs: dict[str, list[Run]], single: list[Run], command: str, what: str, span_s: float
) -> dict[str, Outcome]:
    """The claims of figures 6 to 8."""

    def deviation(of: list[Run], place: int) -> float:
        return float(np.mean([np.std(run.intervals_ms[place]) for run in of]))

    one = what.partition(" runs")[2].replace("two paths, the first of which", "one path, which")
    six = Outcome("emulated", command, f"{len(single)} runs{one}")
    good, poor = deviation(single, 0), deviation(single, 1)
    longest = max(max(run.intervals_ms[1]) for run in single)
    text = f"deviation {good:.0f} ms, then {poor:.0f} ms; longest gap {longest / 1e3:.1f} s"
    six.claims["occasional"] = Claim(poor > 10.0 * good, text)
    seven = Outcome("emulated", command, what)
    rates = {name: [_rates(run) for run in of] for name, of in runs.items()}
    before, after = ({n: float(np.mean([r[p] for r in of])) for n, of in rates.items()} for p in (0, 1))
    text = ", ".join(f"{name} {before[name]:.1f} then {after[name]:.1f} Mbit/s" for name in ("round robin", "MPTCP"))
    seven.claims["robin"] = Claim(after["round robin"] < 0.25 * after["MPTCP"], text)
    eight = Outcome("emulated", command, what)
    found = {name: deviation(of, 1) for name, of in runs.items()}
    text = ", ".join(f"{name} {value:.1f}" for name, value in found.items()) + " ms of deviation on poor paths"
    eight.claims["uniform"] = Claim(found["DupCon"] < 0.25 * min(found["MPTCP"], found["round robin"]), text)
    first = {"one path": single[0], **{name: of[0] for name, of in runs.items()}}
    eight.charts = {drawn(first, span_s): "Arrivals of control packets and the data rate, one run of each case"}
    return {"lee.figure_6": six, "lee.figure_7": seven, "lee.figure_8": eight}


def drawn(runs: dict[str, Run], span_s: float) -> str:
    """The chart of one run of each case."""
    series = {name: (run.arrivals_s, run.data_mbps) for name, run in runs.items()}
    return charts.arrivals("lee-figures-6-to-8.svg", series, span_s)


def _rates(run: Run) -> tuple[float, float]:
    """Mean data rate in the two halves."""
    middle = max(at for at, _ in run.data_mbps) / 2.0
    return tuple(
        float(np.mean([rate for at, rate in run.data_mbps if (at > middle) == late])) for late in (False, True)
    )  # type: ignore[return-value]
