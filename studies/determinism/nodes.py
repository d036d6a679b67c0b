"""Runs the scenario once, over one of the systems."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from determinism.bus import COCKPIT, DOOR, RELAY

STUDIES = Path(__file__).resolve().parents[1]
START_S = 30.0
"""Maximum time for three nodes to start and to find one another."""
SPARE_S = 60.0
"""Maximum duration of a run: this time, plus this factor times the duration of its rounds."""
SPARE_FACTOR = 20.0
STRESS = "import ctypes\nctypes.CDLL(None).prctl(1, 9)\nwhile True: pass"
"""The program of one stressing process. It ends with its parent."""
STRESSES = 2


class RunFailedError(Exception):
    """A run that gave no figures."""


@dataclass(frozen=True)
class Found:
    """The figures of one run."""

    rounds: int
    early: int
    """Doors opened before they were disarmed."""
    missing: int
    """Messages that the door never handled."""
    violations: int | None
    """Messages that were reported as late; None if a system has no such report."""
    silent: int
    """Messages that were handled wrongly without a report."""
    took_s: float

    @property
    def wrong(self) -> int:
        """The number of errors of both kinds."""
        return self.early + self.missing


@contextlib.contextmanager
def stress(wanted: bool) -> Iterator[None]:
    """Keeps the cores busy during the block, if wanted."""
    busy = [subprocess.Popen([sys.executable, "-c", STRESS]) for _ in range(STRESSES if wanted else 0)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def environment() -> dict[str, str]:
    """Returns the environment variables for all processes of the study."""
    return {**os.environ, "PYTHONPATH": str(STUDIES)}


def coorp(module: str, *options: str, limit_s: float) -> dict[str, Any]:
    """Runs a program of reactors, which prints a line of JSON."""
    command = [sys.executable, "-m", f"determinism.{module}", *options]
    try:
        done = subprocess.run(
            command, env=environment(), cwd=STUDIES, capture_output=True, text=True, timeout=limit_s, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise RunFailedError(f"not done after {limit_s:.0f} s") from error
    if done.returncode != 0:
        raise RunFailedError((done.stderr.strip().splitlines() or ["no output"])[-1])
    return json.loads(done.stdout.splitlines()[-1])


def scenario(rounds: int, period_s: float, *options: str) -> Found:
    """Runs the scenario as a program of reactors."""
    told = ["--rounds", str(rounds), "--period", f"{period_s * 1e6:.0f}us", *options]
    said = coorp("scenario", *told, limit_s=SPARE_S + SPARE_FACTOR * rounds * period_s)
    reported: dict[str, int] = said["violations"]
    asked, opened = reported.get("relay.asked", 0), reported.get("door.open", 0)
    disarms, opens = rounds - said["disarms"], rounds - said["opens"]
    # Messages that were not handled came too late, here or at the relay; and a door that opens early misses its disarm.
    silent = abs(disarms - reported.get("door.disarm", 0)) + abs(opens - asked - opened)
    silent += max(0, said["early"] - reported.get("door.disarm", 0))
    return Found(rounds, said["early"], disarms + opens, sum(reported.values()), silent, said["took_s"])


def peer(module: str, python: str, rounds: int, period_s: float) -> Found:
    """Runs the scenario over another middleware."""
    limit_s = SPARE_S + SPARE_FACTOR * rounds * period_s
    with tempfile.TemporaryDirectory(prefix="coorp-order-") as folder, contextlib.ExitStack() as ends:
        nodes: dict[str, subprocess.Popen[str]] = {}
        # A node connects to the nodes that are already there.
        for role in (COCKPIT, RELAY, DOOR):
            command = [python, "-m", "determinism.node", module, role, folder, str(rounds), str(period_s)]
            errors = ends.enter_context(open(f"{folder}/{role}.log", "w"))
            nodes[role] = subprocess.Popen(
                command,
                env=environment(),
                cwd=STUDIES,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
            ends.callback(nodes[role].wait)
            ends.callback(nodes[role].kill)
            late = time.monotonic() + START_S
            while module == "zenoh_bus" and not Path(folder, role).exists() and time.monotonic() < late:
                time.sleep(0.02)
        if line(nodes[DOOR], START_S) != "ready":
            raise RunFailedError(f"its nodes did not find one another\n{tail(folder)}")
        cockpit = nodes[COCKPIT].stdin
        assert cockpit is not None
        cockpit.write("go\n")
        cockpit.flush()
        took = json.loads(line(nodes[COCKPIT], limit_s) or "{}")
        handled = json.loads(line(nodes[DOOR], limit_s) or "{}")
        if not took or not handled:
            raise RunFailedError(f"it did not end\n{tail(folder)}")
    missing = 2 * rounds - handled["disarms"] - handled["opens"]
    return Found(rounds, handled["early"], missing, None, handled["early"] + missing, took["took_s"])


def line(process: subprocess.Popen[str], limit_s: float) -> str:
    """Returns the next line that a process prints, empty if there is none in time."""
    assert process.stdout is not None
    if not select.select([process.stdout], [], [], limit_s)[0]:
        return ""
    return process.stdout.readline().strip()


def tail(folder: str) -> str:
    """Returns the last output of the nodes."""
    return "\n".join(text for path in Path(folder).glob("*.log") if (text := path.read_text()[-400:].strip()))
