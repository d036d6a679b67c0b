"""The settings of each federate, and a trace of the whole program for Perfetto from what each has written."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from coorp.reactor.recording import file_of, new_folder

if TYPE_CHECKING:
    from coorp.reactor.build import Built


@contextmanager
def gathered(options: Mapping[str, Any], built: Built) -> Iterator[list[dict[str, Any]]]:
    """The settings of each federate. Each writes a trace of its own; at the end `options["trace"]` gets all of them."""
    settings = [_of_one(options, built, number) for number in range(len(built.placement.federates))]
    path = options["trace"]
    if options["record"] is not None:
        new_folder(options["record"])
    if path is None:
        yield settings
        return
    with tempfile.TemporaryDirectory(prefix="coorp-trace-") as folder:
        parts = [os.path.join(folder, f"{number}.jsonl") for number in range(len(settings))]
        # Fails before the program runs rather than after it.
        with open(path, "w", encoding="utf-8") as whole:
            try:
                yield [{**of_one, "trace": part} for of_one, part in zip(settings, parts, strict=True)]
            finally:
                _write(whole, parts)


def _of_one(options: Mapping[str, Any], built: Built, federate: int) -> dict[str, Any]:
    of_one = dict(options)
    if options["record"] is not None:
        of_one["record"] = file_of(options["record"], built.placement.federates[federate])
    here = (added for added in built.program.added.values() if built.placement.of[added.name] == federate)
    offsets = [added.offset_ns for added in here if added.offset_ns is not None]
    if offsets:
        of_one["offset_ns"] = max(offsets)
    return of_one


def _write(whole: TextIO, parts: list[str]) -> None:
    whole.write('{"displayTimeUnit":"ns","traceEvents":[')
    separator = "\n"
    for part in filter(os.path.exists, parts):
        with open(part, encoding="utf-8") as events:
            for event in events:
                whole.write(separator + event.rstrip("\n"))
                separator = ",\n"
    whole.write("\n]}\n")
