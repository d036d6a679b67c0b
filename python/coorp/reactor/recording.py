"""The files of a recorded run: one for each federate, in a folder."""

from __future__ import annotations

import os
from pathlib import Path

from coorp.reactor.where import refused

SUFFIX = ".reactions"


def new_folder(path: str) -> None:
    """Makes the folder, or takes an empty one."""
    try:
        os.makedirs(path, exist_ok=True)
        used = any(Path(path).iterdir())
    except OSError as problem:
        raise refused(f"record: {path}: {problem.strerror}") from None
    if used:
        raise refused(f"record: {path} is not empty; name a new folder")


def file_of(path: str, federate: str) -> str:
    """The file for what this federate does."""
    return os.path.join(path, federate + SUFFIX)


def recorded(path: str | os.PathLike[str]) -> list[str]:
    """The files of a recorded run."""
    files = sorted(str(file) for file in Path(path).glob(f"*{SUFFIX}"))
    if not files:
        raise refused(f"replay: {os.fspath(path)} has no recording; name a folder that `record` was given")
    return files
