"""The files of a recorded run: one for each federate, in a folder."""

from __future__ import annotations

import os
from pathlib import Path

from coorp.reactor.where import refused

SUFFIX = ".reactions"


def new_folder(path: str) -> None:
    """Creates the folder, or accepts an empty one."""
    try:
        os.makedirs(path, exist_ok=True)
        used = any(Path(path).iterdir())
    except OSError as problem:
        raise refused(f"record: {path}: {problem.strerror}") from None
    if used:
        raise refused(f"record: {path} is not empty; name a new folder")


def file_of(path: str, federate: str) -> str:
    """Returns the path of a federate's recording."""
    return os.path.join(path, federate + SUFFIX)


def recorded(path: str | os.PathLike[str]) -> list[str]:
    """Returns the files of a recorded run."""
    files = sorted(str(file) for file in Path(path).glob(f"*{SUFFIX}"))
    if not files:
        raise refused(f"replay: {os.fspath(path)} has no recording; name a folder that `record` wrote")
    return files
