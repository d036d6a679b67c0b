"""Settings of each federate, and a trace of the whole program for Perfetto from the federates' traces."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain
from typing import TYPE_CHECKING, Any, TextIO

from coorp.reactor.recording import file_of, new_folder

if TYPE_CHECKING:
    from coorp.reactor.build import Built


@contextmanager
def gathered(options: Mapping[str, Any], built: Built) -> Iterator[list[dict[str, Any]]]:
    """Yields the settings of each federate. Each writes its own trace; at the end `options["trace"]` gets all of
    them."""
    settings = [_of_one(options, built, number) for number in range(len(built.placement.federates))]
    path = options["trace"]
    if options["record"] is not None:
        new_folder(options["record"])
    if path is None:
        yield settings
        return
    # Opened here, so that a failure comes before the run and not after it.
    with ExitStack() as files, open(path, "w", encoding="utf-8") as whole:
        # These files have no name, so nothing remains of them if this process is killed.
        parts = [files.enter_context(tempfile.TemporaryFile("r", encoding="utf-8")) for _ in settings]
        for of_one, part in zip(settings, parts, strict=True):
            of_one["trace_fd"] = part.fileno()
            of_one["trace"] = f"/proc/self/fd/{part.fileno()}"
        try:
            yield settings
        finally:
            _write(whole, parts)


def _of_one(options: Mapping[str, Any], built: Built, federate: int) -> dict[str, Any]:
    of_one = dict(options)
    if options["record"] is not None:
        of_one["record"] = file_of(options["record"], built.placement.federates[federate])
    of_one["offset_ns"] = offset_of(options, built, federate)
    return of_one


def offset_of(options: Mapping[str, Any], built: Built, federate: int) -> int | None:
    """Returns the offset of a federate in ns, if it has one."""
    here = (added for added in built.program.added.values() if built.placement.of[added.name] == federate)
    return max((added.offset_ns for added in here if added.offset_ns is not None), default=options["offset_ns"])


def _write(whole: TextIO, parts: Sequence[TextIO]) -> None:
    whole.write('{"displayTimeUnit":"ns","traceEvents":[')
    separator = "\n"
    for event in chain.from_iterable(parts):
        # A process that was killed while it wrote leaves an incomplete line.
        if event.endswith("\n"):
            whole.write(separator + event.rstrip("\n"))
            separator = ",\n"
    whole.write("\n]}\n")
