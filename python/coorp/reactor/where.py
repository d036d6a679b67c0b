"""Places in the user's files, and errors that name them."""

from __future__ import annotations

import os
import sys
import typing
from collections.abc import Sequence
from types import FrameType
from typing import NamedTuple

from coorp._native import ProgramError

_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_COMMAND = os.path.join(os.path.dirname(os.path.dirname(_HERE)), "__main__.py")


class Where(NamedTuple):
    """A line of a file."""

    file: str
    line: int

    def __str__(self) -> str:
        inside = os.path.relpath(self.file) if os.path.isabs(self.file) else self.file
        return f"{self.file if inside.startswith(os.pardir) else inside}:{self.line}"


class Problem(NamedTuple):
    """Something to fix. Without a place it concerns the program as a whole."""

    where: Where | None
    text: str

    def __str__(self) -> str:
        return f"{self.where}: {self.text}" if self.where else self.text


def here() -> Where:
    """The line of the user's code that is being executed: the innermost frame outside of this package."""
    frame = _user_frame()
    return Where(frame.f_code.co_filename, frame.f_lineno)


def here_module() -> str:
    """The name of the module of that line."""
    return _user_frame().f_globals.get("__name__", "__main__")


def _user_frame() -> FrameType:
    frame = sys._getframe(1)
    while frame.f_back and (frame.f_code.co_filename.startswith(_HERE) or frame.f_code.co_filename == typing.__file__):
        frame = frame.f_back
    return frame


def refused(text: str) -> ProgramError:
    """The error for what the user's code is doing now, or the command line."""
    place = here()
    if place.file == _COMMAND:
        return ProgramError(text.removeprefix("run: "))
    return ProgramError(f"{place}: {text}")


def all_refused(problems: Sequence[Problem]) -> ProgramError:
    """The error for several problems, one a line."""
    return ProgramError("\n".join(map(str, problems)))
