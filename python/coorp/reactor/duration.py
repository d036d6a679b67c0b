"""Durations with units, read exactly: "33ms" is 33,000,000 ns. The units are the same as in a team file."""

from __future__ import annotations

import re
from datetime import timedelta
from fractions import Fraction
from functools import lru_cache

UNITS_NS = {
    "ns": 1,
    "us": 1_000,
    "\u00b5s": 1_000,  # the micro sign
    "\u03bcs": 1_000,  # the Greek letter
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "min": 60_000_000_000,
}
DURATION_MAX_NS = 2**63 - 1
_SHAPE = re.compile(r"\s*([0-9]{1,40}(?:\.[0-9]{1,40})?)\s*(\S*)\s*")


def nanoseconds(duration: str | timedelta) -> int:
    """Returns the duration in ns. The text of its ValueError or TypeError says what is wrong and what to write."""
    if isinstance(duration, timedelta):
        return _limited((duration.days * 86_400 + duration.seconds) * 10**9 + duration.microseconds * 1_000, duration)
    if isinstance(duration, str):
        return _parsed(duration)
    raise TypeError(f'{duration!r} is not a duration; write it with a unit, such as "33ms"')


@lru_cache(maxsize=1024)
def _parsed(text: str) -> int:
    match = _SHAPE.fullmatch(text)
    if match is None:
        raise ValueError(f'{text[:40]!r} is not a duration; write a number with a unit, such as "33ms"')
    number, unit = match.groups()
    factor = UNITS_NS.get(unit)
    if factor is None:
        problem = f"{text[:40]!r} has no unit" if not unit else f"unknown unit {unit[:40]!r}"
        raise ValueError(f'{problem}; use ns, us, ms, s or min, such as "33ms"')
    exact = Fraction(number) * factor
    if exact.denominator != 1:
        raise ValueError(f"{text[:40]!r} is finer than a nanosecond")
    return _limited(exact.numerator, text)


def _limited(ns: int, given: object) -> int:
    if not 0 <= ns <= DURATION_MAX_NS:
        raise ValueError(f"{given!r} is {'negative' if ns < 0 else 'too large'}")
    return ns


def shown(ns: int) -> str:
    """Returns the duration in the largest unit in which it is a whole number."""
    for unit in ("s", "ms", "us"):
        if ns and ns % UNITS_NS[unit] == 0:
            return f"{ns // UNITS_NS[unit]} {unit}"
    return f"{ns} ns" if ns else "0 s"
