"""Files of results: written whole or not at all, by one process at a time."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from coorp.learn.errors import Mend


def replace(path: Path, content: bytes | memoryview) -> None:
    """Writes a file so that it is never half written, even if the power fails."""
    beside = path.with_name(path.name + ".part")
    try:
        with beside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Holds a folder of results for the block. Raises Mend if another process, or this one, holds it already.

    The kernel frees the folder when its holder ends, however that happens. Some network file systems have no locks.
    """
    held = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Mend(f"another run writes to {folder}; wait until it has ended, or give another --out") from None
        except OSError:
            pass
        yield
    finally:
        os.close(held)
