"""Finds a program in the user's file, and finds it again in another process.

As with `multiprocessing`'s start method spawn, a process imports the user's file under another name than `__main__`, so
that code under `if __name__ == "__main__":` does not run.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from importlib.machinery import SourceFileLoader
from types import ModuleType
from typing import TYPE_CHECKING, TypedDict

from coorp._native import ProgramError
from coorp.reactor.where import refused

if TYPE_CHECKING:
    from coorp.reactor.program import Program

LOADED = "__coorp_main__"
"""The name under which a user's file is imported."""


class Location(TypedDict):
    """The place of a program."""

    file: str | None
    """The file to import as LOADED, for a program in a script; otherwise `module` is imported."""
    module: str
    """The name of a script that was run by `python -m`; otherwise the name of the program's module."""
    variable: str


class _Loading:
    now = False


def load_file(file: str, module_name: str = "") -> ModuleType:
    """Imports a script as LOADED. `module_name` is the script's name if it is part of a package."""
    loader = SourceFileLoader(LOADED, file)
    spec = importlib.util.spec_from_file_location(LOADED, file, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    if "." in module_name:
        # Relative imports need the package.
        module.__spec__ = None
        module.__package__ = module_name.rpartition(".")[0]
        importlib.import_module(module.__package__)
    sys.modules[LOADED] = module
    _Loading.now = True
    try:
        loader.exec_module(module)
    finally:
        _Loading.now = False
    return module


def refuse_while_loading() -> None:
    """Raises ProgramError if a file that is being imported runs its program."""
    if _Loading.now:
        raise refused(
            'run: the program would run while its file is imported; put run() under `if __name__ == "__main__":`'
        )


def locate(program: Program) -> Location:
    """Returns the place at which another process finds the program."""
    for name in dict.fromkeys((LOADED, "__main__", program.module)):
        module = sys.modules.get(name)
        variable = next((key for key, value in vars(module).items() if value is program), None) if module else None
        if module is None or variable is None:
            continue
        if name not in (LOADED, "__main__"):
            return {"file": None, "module": name, "variable": variable}
        file = getattr(module, "__file__", None)
        if file is None:
            break
        spec = module.__spec__
        own_name = spec.name if spec and name == "__main__" else ""
        return {"file": os.path.abspath(file), "module": own_name, "variable": variable}
    raise ProgramError(
        f"{program.where}: to run in several processes, the program must be a variable of a module, in a file; "
        "move it out of the function"
    )


def found(location: Location) -> Program:
    """Returns the program, in another process."""
    if location["file"] is None:
        module = importlib.import_module(location["module"])
    else:
        module = load_file(location["file"], location["module"])
    return getattr(module, location["variable"])


def only_program(module: ModuleType) -> Program:
    """Returns the only program of a user's file."""
    from coorp.reactor.program import Program

    programs = {id(value): (name, value) for name, value in vars(module).items() if isinstance(value, Program)}
    if len(programs) == 1:
        ((_, program),) = programs.values()
        return program
    if not programs:
        raise ProgramError(f"{module.__file__}: no variable of this module is a Program; write app = Program()")
    named = ", ".join(f"{name} ({program.where})" for name, program in programs.values())
    raise ProgramError(f"{module.__file__}: several programs: {named}; keep one in the file")
