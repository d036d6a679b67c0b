"""What was measured of one figure or table, and the file that keeps it (measured.json)."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path

MEASURED = Path(__file__).with_name("measured.json")


@dataclass(frozen=True)
class Found:
    """A figure over runs."""

    mean: float
    deviation: float = 0.0
    """Standard deviation over runs; 0 for one run."""


@dataclass(frozen=True)
class Claim:
    """Whether something that a paper says in words holds here, and what was found."""

    holds: bool
    found: str


@dataclass(frozen=True)
class Table:
    """A table below the comparison: an experiment that shows why, or more of ours."""

    title: str
    titles: list[str]
    rows: list[list[str]]


@dataclass
class Outcome:
    """What was measured of one figure or table."""

    ground: str
    """analytic, simulated, emulated or live."""
    command: str
    effort: str
    figures: dict[str, dict[str, Found]] = field(default_factory=dict)
    """By quantity and case, as published; more cases are ours alone."""
    claims: dict[str, Claim] = field(default_factory=dict)
    cannot: dict[str, str] = field(default_factory=dict)
    """By a part of the case: why it cannot be measured here."""
    tables: list[Table] = field(default_factory=list)
    charts: dict[str, str] = field(default_factory=dict)
    """By file in docs/papers: its description."""


def read(path: Path = MEASURED) -> dict[str, Outcome]:
    """All outcomes, by item."""
    if not path.is_file():
        return {}
    found: dict[str, Outcome] = {}
    for key, content in json.loads(path.read_text()).items():
        found[key] = Outcome(
            content["ground"],
            content["command"],
            content["effort"],
            {
                quantity: {case: Found(**value) for case, value in cases.items()}
                for quantity, cases in content["figures"].items()
            },
            {name: Claim(**claim) for name, claim in content["claims"].items()},
            content["cannot"],
            [Table(**table) for table in content["tables"]],
            content["charts"],
        )
    return found


def keep(new: dict[str, Outcome], path: Path = MEASURED) -> None:
    """Adds or replaces outcomes in the file."""
    known = read(path) | new
    content = {key: dataclasses.asdict(known[key]) for key in sorted(known)}
    path.write_text(json.dumps(_rounded(content), indent=1, ensure_ascii=False) + "\n")


def _rounded(value: object) -> object:
    """Floats to seven significant digits, which is more than any figure has."""
    if isinstance(value, float):
        # Equal values have a deviation that is only rounding.
        if abs(value) < 1e-12:
            return 0.0
        return float(f"{value:.7g}")
    if isinstance(value, dict):
        return {key: _rounded(inner) for key, inner in value.items()}
    return [_rounded(inner) for inner in value] if isinstance(value, list) else value
