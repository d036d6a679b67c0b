"""One live run: starts `coorp emu` with a process for each robot, is the world meanwhile, and collects the results.

The run ends when its time is over, when `watch` says so, or when a robot's process ends early; then the others are
ended too, and the error has the last lines of its output. Everything that the run needs is in a temporary folder that
is deleted at the end, with the robots' keys and what is left of bulk.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from coorp._halves import MISSING
from coorp.envs import Navigation
from coorp.learn import checkpoint
from coorp.learn.driver import Driver
from coorp.learn.errors import Broken, Mend
from coorp.learn.fit import SHAPE
from coorp.learn.live.link import Stage, in_real_time
from coorp.learn.live.robot import MODEL, SOCKET, START, Setting
from coorp.learn.network import Network
from coorp.learn.outcome import History
from coorp.learn.world import World

END_MAX_S = 30.0
"""How long robots may take to end after the run's end, and the emulator after a signal."""
LINES_MAX = 40
"""Maximum number of the robots' last lines in an error."""
SOCKET_PATH_BYTES_MAX = 107
EMULATOR = "emulator.json"
ROBOT = (sys.executable, "-m", "coorp.learn.live.robot")
"""A robot's program; the run's folder is its last argument."""
BAD_INPUT = 2


@dataclass(frozen=True)
class Lived:
    """What a live run left."""

    seconds: int
    """Whole seconds of the run: less than asked for if it was ended."""
    history: History
    figures: dict[str, Any]
    """What the robots measured, as in `coorp emu --demo --json`."""
    emulator: dict[str, Any]
    """The emulator's report."""
    waited: float | None
    """The share of the time in which some program of the machine waited for a core; None if Linux does not say."""
    model: Network | None
    """The control model of the last epoch that ended."""
    frames: list[tuple[int, dict[str, Any]]]
    """States of the environment in the last seconds, by time in ns."""


def check() -> None:
    """Raises if this machine cannot run the emulator."""
    if os.name != "posix" or os.geteuid() != 0:
        raise Mend("--live runs the robots in 'coorp emu', which needs root: sudo coorp learn --live ...")
    if not Path("/dev/net/tun").exists():
        raise Mend("--live runs the robots in 'coorp emu', which needs /dev/net/tun: modprobe tun")


def prepare(team: Path, policy: str, folder: Path) -> None:
    """Makes keys for the robots; raises if the policy has no live form."""
    try:
        from coorp._native import prepare_members
    except ImportError:
        raise Mend(f"--live needs Linux and {MISSING}") from None
    prepare_members(team, policy, folder)


def run(
    setting: Setting,
    start: Network | Driver,
    env: Navigation,
    watch: Callable[[int, History], bool],
    *,
    robot: Sequence[str] = ROBOT,
    options: Sequence[str] = (),
) -> Lived | None:
    """Runs to the end, or until `watch`, which gets each second and the history, returns False. Returns None if it was
    ended before its first second. `options` are further ones of `coorp emu`."""
    with tempfile.TemporaryDirectory(prefix="coorp-learn-") as name:
        folder = Path(name)
        path = folder / SOCKET
        if len(os.fsencode(path)) > SOCKET_PATH_BYTES_MAX:
            raise Mend(f"{path} is too long a name for a socket; set TMPDIR to a folder with a shorter one")
        prepare(Path(setting.team), setting.policy, folder)
        setting.save(folder)
        checkpoint.save_model(folder / START, start, "the start of a live run")
        stage = Stage(World(env), path, setting.seconds, lambda second: watch(second, stage.history))
        with contextlib.closing(stage), _emulator(setting, folder, robot, options) as (emulator, lines):
            before, began = _waited_us(), time.monotonic()
            with in_real_time():
                _follow(stage, emulator, lines, lambda: watch(stage.now_s, stage.history))
            waited = None if before is None else ((_waited_us() or 0) - before) / (1e6 * (time.monotonic() - began))
        if stage.now_s == 0:
            return None
        return _result(setting, folder, stage, waited)


def _result(setting: Setting, folder: Path, stage: Stage, waited: float | None) -> Lived:
    from coorp._native import member_figures

    return Lived(
        seconds=stage.now_s,
        history=stage.history,
        figures=member_figures(setting.team, setting.policy, folder),
        emulator=json.loads((folder / EMULATOR).read_text(encoding="utf-8")),
        waited=waited,
        model=checkpoint.load_model(folder / MODEL, SHAPE) if (folder / MODEL).exists() else None,
        frames=list(stage.frames),
    )


@contextlib.contextmanager
def _emulator(
    setting: Setting, folder: Path, robot: Sequence[str], options: Sequence[str]
) -> Iterator[tuple[subprocess.Popen[str], Callable[[], list[str]]]]:
    """Runs the emulator; yields it, and a function that returns its last lines once it has ended."""
    coorp = [sys.executable, "-m", "coorp", "emu", setting.team, "--quiet", "--json", str(folder / EMULATOR)]
    emulator = subprocess.Popen(
        [*coorp, *options, "--", *robot, str(folder)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        # A terminal's Ctrl-C is for this process, which ends the run in order.
        start_new_session=True,
    )
    assert emulator.stdout is not None
    kept: deque[str] = deque(maxlen=LINES_MAX)
    reader = threading.Thread(target=_keep, args=(emulator.stdout, kept), daemon=True)
    reader.start()

    def lines() -> list[str]:
        reader.join(END_MAX_S)
        return list(kept)

    try:
        yield emulator, lines
    finally:
        _end(emulator)
        reader.join(END_MAX_S)
        emulator.stdout.close()


def _keep(output: IO[str], kept: deque[str]) -> None:
    # The emulator's end closes the pipe.
    with contextlib.suppress(ValueError):
        kept.extend(line.rstrip("\n") for line in output)


def _end(emulator: subprocess.Popen[str]) -> None:
    """Ends the emulator, which ends the robots and removes their network."""
    if emulator.poll() is None:
        emulator.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            emulator.wait(END_MAX_S)
    if emulator.poll() is None:
        emulator.kill()
        emulator.wait()


def _follow(
    stage: Stage, emulator: subprocess.Popen[str], lines: Callable[[], list[str]], goes_on: Callable[[], bool]
) -> None:
    """Serves the robots until the run is over and the emulator has ended."""
    until_s = None
    while emulator.poll() is None:
        stage.serve()
        if stage.lost is not None:
            _end(emulator)
            name = stage.robots[stage.lost]
            said = [line for line in lines() if line.startswith(f"[{name}] ")]
            raise Broken("\n".join([f"the process of robot '{name}' ended early, and the run with it", *said]))
        if stage.now_s == 0 and not goes_on():
            _end(emulator)
            return
        if stage.is_over and until_s is None:
            until_s = time.monotonic() + END_MAX_S
        if until_s is not None and time.monotonic() > until_s:
            _end(emulator)
            raise Broken("\n".join([f"the robots did not end within {END_MAX_S:g} s of the run's end", *lines()]))
    if emulator.returncode != 0:
        said = "\n".join(lines())
        if emulator.returncode == BAD_INPUT and stage.now_s == 0:
            raise Mend(said.removeprefix("error: "))
        raise Broken(said)


def _waited_us() -> float | None:
    """Returns the time since boot in which some program waited for a core, if the kernel records it."""
    try:
        first = Path("/proc/pressure/cpu").read_text(encoding="ascii").splitlines()[0]
        return float(first.rsplit("total=", 1)[1])
    except (OSError, IndexError, ValueError):
        return None
