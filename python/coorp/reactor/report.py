"""The report of `coorp run` at the end: what happened, and which delays and offsets would fit the measured times.

A value arrives E + L after the tag at which it was set: E is the difference of the clocks and L the latency, and the
measured time contains both (Kwok, section IV-A). With a delay `after` of at least E + L it arrives before its own tag,
and its receiver never waits. Decentralised coordination without a promise needs an offset of at least E + L - `after`
(section IV-B). Both are quantiles of the measured times, not guesses.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from coorp.reactor.build import full_name

if TYPE_CHECKING:
    from coorp.reactor.launch import Result
    from coorp.reactor.program import Program

ENOUGH = 1000
"""Number of values for a quantile of 99.9 %."""
SHOWN_MAX = 5
"""Maximum number of reactions or inputs that a line of the report names."""


def shown(ns: float) -> str:
    """Returns a time with three digits."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if abs(ns) >= size:
            return f"{ns / size:.3g} {unit}"
    return f"{ns:.0f} ns"


def delay(ns: float) -> str:
    """Returns a time for `after`, rounded up to two digits."""
    if ns <= 0:
        return "0s"
    step = 10 ** (math.floor(math.log10(ns)) - 1)
    ns = math.ceil(ns / step) * step
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if ns >= size:
            return f"{ns / size:g}{unit}"
    return f"{ns:g}ns"


def summary(result: Result) -> str:
    """Returns a summary of the run in one line."""
    count = sum(counts["count"] for counts in result.reactions.values())
    return f"{shown(result.completed_ns)} of logical time, {count} reactions, lag at most {shown(result.lag_max_ns)}"


def problems(result: Result) -> list[str]:
    """Returns a line for each kind of problem."""
    late = [(name, counts) for name, counts in result.reactions.items() if counts["late"]]
    lines = _some("late", [f"{name}: {counts['late']} of {counts['count']}" for name, counts in late])
    handled = {name: f" ({number} handled)" for name, number in result.handled.items() if number}
    violations = [f"{name}: {number}{handled.get(name, '')}" for name, number in result.violations.items()]
    lines += _some("came after their tag", violations)
    different = [f"{name}: {number} times, first at {tag}" for name, (number, tag) in result.different.items()]
    return lines + _some("other than recorded", different)


def _some(title: str, items: list[str]) -> list[str]:
    more = len(items) - SHOWN_MAX
    return [f"{title}: {'; '.join(items[:SHOWN_MAX])}{f'; {more} more' if more > 0 else ''}"] if items else []


def advice(program: Program, result: Result) -> str:
    """Returns a table of the connections between processes, with proposals."""
    rows = [["from", "to", "after", "values", "E+L 50 %", "99 %", "99.9 %", "most", "proposed after"]]
    offsets: dict[str, float] = {}
    few = False
    for connection in program.connections:
        sink = full_name(connection.sink)
        times = result.arrivals.get(sink)
        if times is None:
            continue
        few = few or times["count"] < ENOUGH
        reactor = connection.sink._reactor._parts.name
        offsets[reactor] = max(offsets.get(reactor, 0.0), times["p999_ns"] - connection.after_ns)
        rows.append(
            [
                full_name(connection.source),
                sink,
                delay(connection.after_ns),
                str(times["count"]),
                *(shown(times[key]) for key in ("p50_ns", "p99_ns", "p999_ns", "max_ns")),
                "-" if connection.physical else delay(times["p999_ns"]),
            ]
        )
    if not offsets:
        return "no connection between processes was measured: run without --fast, and with --place processes"
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    kept = ", ".join(f"{name} {delay(offset)}" for name, offset in offsets.items())
    lines += ["", f"With the current delays, offsets for decentralised coordination: {kept}."]
    if few:
        lines.append(f"A quantile of 99.9 % needs {ENOUGH} values of each connection; run longer.")
    return "\n".join(lines)
