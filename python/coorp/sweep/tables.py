"""The results of a sweep as a table on a terminal, and as files for scripts."""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from coorp.sweep.files import replace

DASH = "-"


def lay_out(titles: Sequence[str], rows: Sequence[Sequence[str]], names: int) -> str:
    """Returns a table; the first `names` columns are text, the others are figures."""
    lines = [titles, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(titles))]
    return "".join(
        "  ".join(
            cell.ljust(width) if column < names else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        + "\n"
        for line in lines
    )


def mean(values: Iterable[float | None]) -> float:
    """Returns the mean of what there is; NaN if there is nothing."""
    found = _known(values)
    return statistics.fmean(found) if found else math.nan


def standard_error(values: Iterable[float | None]) -> float:
    """Returns the standard error of that mean; NaN for a single value."""
    found = _known(values)
    return statistics.stdev(found) / math.sqrt(len(found)) if len(found) > 1 else math.nan


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None and math.isfinite(value)]


def shown(value: float, digits: int = 1, suffix: str = "") -> str:
    """Returns a figure, or a dash if there is none."""
    return f"{value:.{digits}f}{suffix}" if math.isfinite(value) else DASH


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes one line per row, with the columns of all; what a row lacks is empty."""
    text = io.StringIO()
    columns = dict.fromkeys(name for row in rows for name in row)
    table = csv.DictWriter(text, list(columns), restval="", lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    replace(path, text.getvalue().encode())


def team_files(team: Path) -> list[Path]:
    """Returns the team files of a folder, or this one."""
    return sorted(team.glob("*.toml")) if team.is_dir() else [team]
