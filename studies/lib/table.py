"""Tables for a terminal and for the docs."""

from __future__ import annotations

import math
from collections.abc import Sequence


def show(titles: Sequence[str], rows: Sequence[Sequence[str]], *, markdown: bool) -> None:
    """Prints a table; the first column is text, the others are figures."""
    if markdown:
        print("| " + " | ".join(titles) + " |")
        print("| --- |" + " ---: |" * (len(titles) - 1))
        for row in rows:
            print("| " + " | ".join(row) + " |")
        print()
        return
    widths = [max(len(line[column]) for line in (titles, *rows)) for column in range(len(titles))]
    for line in (titles, *rows):
        cells = [
            line[0].ljust(widths[0]),
            *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)),
        ]
        print("  ".join(cells).rstrip())
    print()


def number(value: float, digits: int = 1, *, sign: bool = False) -> str:
    """Returns a figure, or a dash if there is none."""
    return "-" if math.isnan(value) else f"{value:{'+' if sign else ''}.{digits}f}"


def percent(share: float, digits: int = 1, *, sign: bool = False) -> str:
    """Returns a share as a percentage."""
    return "-" if math.isnan(share) else f"{number(100.0 * share, digits, sign=sign)} %"
