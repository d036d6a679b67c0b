"""Placement of reactors: the federates, which are processes, and the reactors of each.

A placement file names processes and their reactors:

    vision = ["camera", "detector"]
    drive = ["fusion"]

For several robots it has a table for each, and the name of a process then contains both names ("scout.vision"):

    [scout]
    vision = ["camera", "detector"]

    [base]
    planner = ["planner"]
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from coorp._native import ProgramError, placement_entries
from coorp.reactor.where import Problem, Where, all_refused

if TYPE_CHECKING:
    from coorp.reactor.program import Program

ONE = "main"
"""The federate of a program that is not distributed."""
FILE_BYTES_MAX = 1 << 20
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,99}")


@dataclass(frozen=True)
class Placement:
    """The federates, and the federate of each reactor."""

    federates: tuple[str, ...]
    of: Mapping[str, int]
    robots: tuple[str, ...] = ()
    """The robot of each federate, if robots are named."""


def placed(program: Program, place: str | os.PathLike[str] | Placement | None) -> Placement:
    """Returns the placement that `place` requests."""
    if isinstance(place, Placement):
        return place
    if place is None:
        return _grouped((name, added.place or ONE) for name, added in program.added.items())
    if place == "one":
        return _grouped((name, ONE) for name in program.added)
    if place == "processes":
        return _grouped((name, name) for name in program.added)
    return _from_file(program, Path(place))


def _grouped(pairs: Iterable[tuple[str, str]]) -> Placement:
    federates: dict[str, int] = {}
    of = {name: federates.setdefault(federate, len(federates)) for name, federate in pairs}
    return Placement(tuple(federates) or (ONE,), of)


def _from_file(program: Program, path: Path) -> Placement:
    try:
        with path.open("rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
    except OSError as problem:
        options = 'use "one", "processes" or a placement file'
        raise ProgramError(f"place: {path}: {problem.strerror or problem}; {options}") from None
    if len(content) > FILE_BYTES_MAX:
        raise ProgramError(f"{path}: larger than {FILE_BYTES_MAX >> 20} MiB")
    try:
        entries, problems = placement_entries(content.decode())
    except UnicodeDecodeError:
        raise ProgramError(f"{path}: not UTF-8") from None
    check = _Check(program, str(path.absolute()))
    check.problems += [Problem(Where(check.file, line), text) for line, text in problems]
    for robot, process, line, reactors in entries:
        check.process(robot, process, line, reactors)
    if not check.problems:
        check.all_there()
    if check.problems:
        raise all_refused(sorted(check.problems, key=lambda problem: problem.where.line if problem.where else 0))
    return Placement(tuple(check.federates), check.of, tuple(check.robots))


class _Check:
    def __init__(self, program: Program, file: str) -> None:
        self.program = program
        self.file = file
        self.problems: list[Problem] = []
        self.federates: dict[str, int] = {}
        self.robots: list[str] = []
        self.of: dict[str, int] = {}
        self.lines: dict[str, int] = {}

    def process(self, robot: str | None, process: str, line: int, reactors: list[tuple[str, int]]) -> None:
        for what, name in (("robot", robot), ("process", process)):
            if name is not None and not _NAME.fullmatch(name):
                self._add(line, f"{name!r} is not the name of a {what}; use letters, digits, '_' and '-'")
        if not reactors:
            self._add(line, f"{process} has no reactors; name some or remove it")
        if self.federates and (robot is None) == bool(self.robots):
            self._add(line, f"{process}: only some processes are in a robot's table; put all there, or none")
        if robot is not None:
            self.robots.append(robot)
        federate = self.federates.setdefault(f"{robot}.{process}" if robot else process, len(self.federates))
        for name, at in reactors:
            if name not in self.program.added:
                near = difflib.get_close_matches(name, self.program.added, n=1)
                self._add(at, f"the program has no reactor {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
            elif name in self.of:
                self._add(at, f"{name} is already placed, in line {self.lines[name]}")
            else:
                self.of[name], self.lines[name] = federate, at

    def all_there(self) -> None:
        for name, added in self.program.added.items():
            if name not in self.of:
                self._add(1, f"{name} ({added.where}) is not placed; add it to a process")

    def _add(self, line: int, text: str) -> None:
        self.problems.append(Problem(Where(self.file, line), text))
