"""Runs of `coorp learn` in studies."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coorp.learn.outcome import Outcome
    from coorp.learn.run import Plan


def outcomes(planned: Iterable[Plan], *, resume: bool) -> list[Outcome]:
    """Runs all at once, on Ray where it is installed, and returns their outcomes in order. With `resume`, leaves
    finished runs as they are. Ends the study, with the reason, if a run cannot start or has no outcome."""
    from coorp.learn import sweep
    from coorp.learn.errors import Mend

    try:
        plans, ended = sweep.run(planned, overwrite=not resume)
    except Mend as problem:
        hint = "\na study has neither --out nor --overwrite: without --resume it starts again" if resume else ""
        sys.exit(f"error: {problem}{hint}")
    if ended.failed or ended.stopped:
        sys.exit("\n".join(["some runs have no result; --resume leaves the others", *ended.failed.values()]))
    return [each.outcome() for each in plans]
