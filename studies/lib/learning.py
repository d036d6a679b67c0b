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
    finished runs as they are. Ends the study if a run has no outcome."""
    from coorp.learn import sweep

    plans, ended = sweep.run(planned, overwrite=not resume)
    if ended.failed or ended.stopped:
        sys.exit("\n".join(["some runs have no result; --resume leaves the others", *ended.failed.values()]))
    return [each.outcome() for each in plans]
