"""What the papers publish (published.toml), figure by figure and table by table."""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PUBLISHED = Path(__file__).with_name("published.toml")
ALLOWED_POINTS = 2.0
"""How far a share in percent may be off to count as reproduced."""
ALLOWED = 0.10
"""The same for all other figures, as a share of the published value."""
_FIELDS = {"title", "where", "from", "nothing", "cannot", "claims", "calibrated", "fitted", "allowed", "robots"}


@dataclass(frozen=True)
class Item:
    """One figure or table."""

    key: str
    """Such as `deng.figure_2a`."""
    title: str
    where: str
    read_from: str
    nothing: str
    """Why there is nothing to measure, if so."""
    cannot: str
    """Why nothing of it can be measured here, if so."""
    figures: dict[str, dict[str, float]]
    """Published values: by quantity, whose name ends in its unit, and case."""
    claims: dict[str, str]
    calibrated: frozenset[tuple[str, str]]
    fitted: frozenset[tuple[str, str]]
    """Values for which assumptions were chosen that the paper leaves open."""
    allowed: float | None
    robots: list[int] = field(default_factory=list)
    """Of a table over numbers of robots; its cases are in the order of `at_robots`."""

    @property
    def name(self) -> str:
        """As the paper calls it: 'Figure 2a', 'Table IV'."""
        kind, _, number = self.key.split(".")[1].partition("_")
        if not number:
            return kind.capitalize()
        return f"{kind.capitalize()} {number.upper() if kind == 'table' else number}"

    def off(self, quantity: str, case: str, ours: float) -> float:
        """How far ours is off: points, or a share of the published value."""
        published = self.figures[quantity][case]
        return ours - published if quantity.endswith("_percent") else ours / published - 1.0

    def reproduced(self, quantity: str, case: str, ours: float) -> bool:
        allowed = self.allowed or (ALLOWED_POINTS if quantity.endswith("_percent") else ALLOWED)
        return abs(self.off(quantity, case, ours)) <= allowed


@dataclass(frozen=True)
class Paper:
    """One paper."""

    key: str
    source: str
    link: str
    items: list[Item]


def at_robots(case: str, robots: int) -> str:
    """The case of a table over numbers of robots."""
    return f"{case}, {robots}"


def papers() -> list[Paper]:
    """All papers, in the file's order."""
    content = tomllib.loads(PUBLISHED.read_text())
    return [
        Paper(key, found.pop("source"), found.pop("link"), [_item(f"{key}.{name}", found[name]) for name in found])
        for key, found in content.items()
    ]


def _item(key: str, found: dict[str, Any]) -> Item:
    robots: list[int] = found.get("robots", [])
    figures: dict[str, dict[str, float]] = {}
    for quantity, cases in found.items():
        if quantity in _FIELDS:
            continue
        figures[quantity] = {}
        for case, value in cases.items():
            pairs = zip(robots, value, strict=True) if robots else [(0, value)]
            for count, one in pairs:
                if not math.isnan(one):
                    figures[quantity][at_robots(case, count) if robots else case] = float(one)
    calibrated, fitted = (
        frozenset((q, case) for q, _, case in (text.partition(" ") for text in found.get(name, [])))
        for name in ("calibrated", "fitted")
    )
    if unknown := [(q, case) for q, case in calibrated | fitted if case not in figures.get(q, {})]:
        raise ValueError(f"{key} in {PUBLISHED.name} says how something was chosen that it does not publish: {unknown}")
    return Item(
        key,
        found["title"],
        found["where"],
        found.get("from", ""),
        found.get("nothing", ""),
        found.get("cannot", ""),
        figures,
        found.get("claims", {}),
        calibrated,
        fitted,
        found.get("allowed"),
        robots,
    )
