"""Places in the user's files, and errors that name them."""

from __future__ import annotations

import os
import sys
import traceback
import typing
from collections.abc import Sequence
from types import FrameType, TracebackType
from typing import NamedTuple

from coorp._native import ProgramError, RunError

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
    """A problem to fix. Without a place it concerns the program as a whole."""

    where: Where | None
    text: str

    def __str__(self) -> str:
        return f"{self.where}: {self.text}" if self.where else self.text


def here() -> Where:
    """Returns the line of the user's code that is being executed: the innermost frame outside this package."""
    frame = _user_frame()
    return Where(frame.f_code.co_filename, frame.f_lineno)


def here_module() -> str:
    """Returns the name of the module of that line."""
    return _user_frame().f_globals.get("__name__", "__main__")


def _user_frame() -> FrameType:
    frame = sys._getframe(1)
    while frame.f_back and (frame.f_code.co_filename.startswith(_HERE) or frame.f_code.co_filename == typing.__file__):
        frame = frame.f_back
    return frame


def users_frames(problem: BaseException) -> TracebackType | None:
    """Returns the traceback without this package's frames: the frames of the user's code, and of what that calls."""
    frames: list[TracebackType] = []
    rest = problem.__traceback__
    while rest:
        frames.append(rest)
        rest = rest.tb_next
    users = None
    for frame in reversed(frames):
        file = frame.tb_frame.f_code.co_filename
        if not file.startswith((_HERE, "<frozen importlib")):
            users = TracebackType(users, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    # An error without a line of the user's code is reported by its text, unless this package itself is at fault.
    return users if users or isinstance(problem, ProgramError | RunError | SyntaxError) else problem.__traceback__


def told(problem: BaseException) -> str:
    """Returns the text of an exception, with the user's frames."""
    frames = users_frames(problem)
    if frames is None and isinstance(problem, ProgramError | RunError):
        return f"{problem}\n"
    return "".join(traceback.format_exception(type(problem), problem.with_traceback(frames), frames))


def refused(text: str) -> ProgramError:
    """Returns the error for what the user's code, or the command line, is doing now."""
    place = here()
    if place.file == _COMMAND:
        return ProgramError(text.removeprefix("run: "))
    return ProgramError(f"{place}: {text}")


def all_refused(problems: Sequence[Problem]) -> ProgramError:
    """Returns the error for several problems, one per line."""
    return ProgramError("\n".join(map(str, problems)))
