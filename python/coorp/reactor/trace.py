"""A trace of the whole program for Perfetto, from what each federate has written."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TextIO


@contextmanager
def gathered(options: Mapping[str, Any], federates: int) -> Iterator[list[dict[str, Any]]]:
    """The settings of each federate. Each writes a trace of its own; at the end `options["trace"]` gets all of them."""
    path = options["trace"]
    if path is None:
        yield [dict(options)] * federates
        return
    with tempfile.TemporaryDirectory(prefix="coorp-trace-") as folder:
        parts = [os.path.join(folder, f"{number}.jsonl") for number in range(federates)]
        # Fails before the program runs rather than after it.
        with open(path, "w", encoding="utf-8") as whole:
            try:
                yield [{**options, "trace": part} for part in parts]
            finally:
                _write(whole, parts)


def _write(whole: TextIO, parts: list[str]) -> None:
    whole.write('{"displayTimeUnit":"ns","traceEvents":[')
    separator = "\n"
    for part in filter(os.path.exists, parts):
        with open(part, encoding="utf-8") as events:
            for event in events:
                whole.write(separator + event.rstrip("\n"))
                separator = ",\n"
    whole.write("\n]}\n")
