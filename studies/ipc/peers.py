"""The environments of the peers: pinned, and created only on request."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
from lib.simulator import REPOSITORY

from ipc.node import transport
from ipc.place import Transport
from ipc.transports import MODULES

PLASMA_PYTHONS = ("python3.11", "python3.10", "python3.9", "python3.8")
"""The interpreters for which `pyarrow` 11 has wheels, the newest first."""


def folder(name: str) -> Path:
    """Returns the folder of an environment."""
    return REPOSITORY / "target" / f"venv-ipc-{name}"


def python(how: Transport) -> str | None:
    """Returns the interpreter for a transport; None if it is not installed."""
    if how.interpreter != "own":
        program = folder(how.interpreter) / "bin" / "python"
        if importable(str(program), how.module):
            return str(program)
    if how.interpreter == "plasma" or (how.module and not known(how.module)):
        return None
    return sys.executable


@cache
def importable(program: str, module: str) -> bool:
    """Returns whether another interpreter exists and has the module."""
    if not Path(program).exists():
        return False
    return subprocess.run([program, "-c", f"import {module}"], capture_output=True, check=False).returncode == 0


def known(module: str) -> bool:
    """Returns whether this interpreter has the module, without importing it."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def install() -> None:
    """Creates the environments, with the same NumPy as here if a peer leaves the choice."""
    wanted: dict[str, list[str]] = {}
    for how in map(transport, MODULES):
        if how.packages:
            wanted.setdefault(how.interpreter, []).extend(how.packages)
    for name, packages in wanted.items():
        program = sys.executable
        if name == "plasma":
            found = [path for each in PLASMA_PYTHONS if (path := shutil.which(each)) is not None]
            if not found:
                print(f"Plasma needs one of {', '.join(PLASMA_PYTHONS)}")
                continue
            program = found[0]
        else:
            packages.append(f"numpy=={np.__version__}")
        print(f"installing {', '.join(packages)} into {folder(name)}", flush=True)
        subprocess.run([program, "-m", "venv", str(folder(name))], check=True)
        pip = [str(folder(name) / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *packages], check=True)
