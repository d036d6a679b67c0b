"""Runs a program: in this process if it has one federate, otherwise in a new process for each.

The processes are new interpreters that import the user's file (`_child.py`). They ignore Ctrl-C: the launcher makes all
of them stop at the same tag, or kills them at the second Ctrl-C. They die with the launcher. Values never pass through
the launcher; each process returns its counters as JSON when it ends.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import secrets
import selectors
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from coorp._native import RunError
from coorp.reactor.build import Built, build, refuse_waiting_cycles
from coorp.reactor.load import Location, locate, refuse_while_loading
from coorp.reactor.robots import Bridged, Robot, robot_of
from coorp.reactor.settings import gathered, offset_of
from coorp.reactor.signals import FOR_LAUNCHER, STOP_SIGNAL, Signals, Watch
from coorp.reactor.where import refused

if TYPE_CHECKING:
    from coorp._native import Coordinator
    from coorp.reactor.program import Program

GRACE_S = 5.0
"""Time for the other processes to run their reactions to `shutdown` after one process has failed."""
START_S = 600.0
"""Maximum time for a process to import the program. If it ends, that is noticed at once."""
MESSAGE_BYTES_MAX = 64 << 20
"""Maximum length of a process's report, in bytes."""


class ReactorError(RunError):
    """A failure of one of the program's processes. The text says which reactor failed, and how."""


class ViolationWarning(RuntimeWarning):
    """Values that came after their tag: the offset is too short."""


class Stoppable(Protocol):
    """The running program, as `Program.stop` ends it."""

    def request_stop(self) -> None: ...


@dataclass(frozen=True)
class Result:
    """The result of a run. Times are in ns."""

    federates: Mapping[str, Mapping[str, Any]]
    """The counters, by federate."""
    interrupted: bool
    """Whether Ctrl-C or SIGTERM ended the program."""

    @property
    def reactions(self) -> dict[str, dict[str, int]]:
        """By reaction, if it ran: "count", "late", "total_ns", "longest_ns"."""
        return {name: counts for federate in self.federates.values() for name, counts in federate["reactions"].items()}

    @property
    def arrivals(self) -> dict[str, dict[str, int]]:
        """By input from another federate: "count", and quantiles of the time since the sender's tag."""
        return {name: counts for federate in self.federates.values() for name, counts in federate["arrivals"].items()}

    @property
    def violations(self) -> dict[str, int]:
        """By input: the number of values that came after their tag. Only under decentralised coordination."""
        return {name: count for federate in self.federates.values() for name, count in federate["violations"].items()}

    @property
    def handled(self) -> dict[str, int]:
        """By input: the number of its `violations` that a reaction's `tardy` method handled. The others are not
        used."""
        return {name: count for federate in self.federates.values() for name, count in federate["handled"].items()}

    @property
    def digest(self) -> str | None:
        """A hash of everything that reactions did, if requested: the same over placements, processes and threads."""
        if any("digest" not in federate for federate in self.federates.values()):
            return None
        pairs = [pair for federate in self.federates.values() for pair in federate["digest"].items()]
        return hashlib.blake2b(repr(sorted(pairs)).encode(), digest_size=8).hexdigest()

    @property
    def different(self) -> dict[str, tuple[int, str]]:
        """In a replay, by reaction: how often it differed from the recording, and the first tag at which it did."""
        return {name: at for federate in self.federates.values() for name, at in federate.get("different", {}).items()}

    @property
    def completed_ns(self) -> int:
        """The logical time of the last tag that is complete everywhere."""
        return min(federate["completed_ns"] or 0 for federate in self.federates.values())

    @property
    def lag_max_ns(self) -> int:
        """The longest time by which a reaction began behind its tag."""
        return max(federate["lag_max_ns"] for federate in self.federates.values())


def launch(
    program: Program,
    place: str | os.PathLike[str] | None,
    options: Mapping[str, Any],
    team: str | None = None,
    robot: str | None = None,
) -> Result:
    """Runs the program, or this robot's part of it, to its end. `options` are settings of the native runtime."""
    refuse_while_loading()
    if not program.one_run.acquire(blocking=False):
        raise RuntimeError("the program is already running")
    try:
        result = _launched(program, place, options, team, robot)
    finally:
        program.one_run.release()
    for name, count in result.violations.items():
        unused = count - result.handled[name]
        if unused:
            text = f"{name}: {unused} values came after their tag and were not used"
            warnings.warn(text, ViolationWarning, stacklevel=3)
    return result


def _launched(
    program: Program,
    place: str | os.PathLike[str] | None,
    options: Mapping[str, Any],
    team: str | None,
    robot: str | None,
) -> Result:
    built = build(program, place, pickle=options["pickle"])
    federates = len(built.placement.federates)
    if federates > 1 and options["fast"] and options["coordination"] == "decentralised":
        raise refused("run: fast needs centralised coordination: without the clock, nothing holds back a fast sender")
    if federates > 1 and options["coordination"] == "decentralised":
        refuse_waiting_cycles(built, [offset_of(options, built, number) for number in range(federates)])
    here = robot_of(built, team, robot, options)
    location = locate(program) if federates > 1 else None
    with gathered(options, built) as settings, Signals() as signals:
        if location is None:
            return _run_here(built, settings[0], signals)
        return _Launcher(built, settings, location, signals, here).run()


def _run_here(built: Built, settings: Mapping[str, Any], signals: Signals) -> Result:
    from coorp.reactor.federate import Failed, release, runner

    program = built.program
    made = runner(built, 0, settings, Failed())
    program.running = made
    try:
        with Watch(signals, made.request_stop) as watch:
            counters = made.run()
    finally:
        program.running = None
        release(built)
    return Result({built.placement.federates[0]: counters}, interrupted=watch.count > 0)


@dataclass
class _Process:
    federate: str
    reactors: list[str]
    process: subprocess.Popen[bytes]
    pidfd: int
    pipe: int
    text: bytearray = field(default_factory=bytearray)
    ended: bool = False
    killed: bool = False
    """Whether the launcher killed the process."""

    def messages(self) -> dict[str, Any]:
        """Returns everything that the process reported."""
        merged: dict[str, Any] = {}
        for line in bytes(self.text).splitlines():
            merged.update(json.loads(line))
        return merged

    def title(self) -> str:
        shown = ", ".join(self.reactors[:5]) + (", ..." if len(self.reactors) > 5 else "")
        return f"the process of {shown}" + (f" ({self.federate})" if self.federate not in self.reactors else "")


@dataclass(frozen=True)
class _Failure:
    rank: int
    """Order of causes before consequences: killed, an exception in a reaction, everything else, another's death."""
    text: str


class _Launcher:
    def __init__(
        self,
        built: Built,
        settings: list[dict[str, Any]],
        location: Location,
        signals: Signals,
        robot: Robot | None,
    ) -> None:
        self.built = built
        self.robot = robot
        every = range(len(settings))
        self.federates = list(every) if robot is None else robot.federates
        domain = f"coorp-{os.getpid()}-{secrets.token_hex(8)}"
        self.settings = [{**of_one, "domain": domain} for of_one in settings]
        self.location = location
        self.signals = signals
        self.processes: list[_Process] = []
        self.failures: list[_Failure] = []
        self.results: dict[str, Mapping[str, Any]] = {}
        self.signals_seen = 0
        self.kill_at: float | None = None
        self.selector = selectors.DefaultSelector()

    def run(self) -> Result:
        if self.robot is None:
            self._run()
        else:
            with Bridged(self.built, self.robot, self.settings[0], self._bridge_failed):
                self._run()
        if self.failures:
            first, *others = sorted(self.failures, key=lambda failure: failure.rank)
            raise ReactorError("\n".join([first.text, *(other.text.strip().splitlines()[0] for other in others)]))
        names = [self.built.placement.federates[number] for number in self.federates]
        return Result({name: self.results[name] for name in names}, interrupted=self.signals_seen > 0)

    def request_stop(self) -> None:
        """Requests the end of the program through the federates here."""
        for process in self.processes:
            if not process.ended:
                # A process handles the signal only once it runs.
                runs = "running" in process.messages()
                process.process.send_signal(STOP_SIGNAL if runs else signal.SIGKILL)

    def _run(self) -> None:
        if self.robot is not None and not self.robot.coordinates:
            self.built.program.running = self
            try:
                self._start()
                self._attend(self)
            finally:
                self._close()
                self.built.program.running = None
            return
        from coorp._native import Coordinator

        settings = {**self.settings[0], "report_max_ns": int(START_S * 1e9)}
        coordinator = Coordinator(self.built.graph, settings)
        self.built.program.running = coordinator
        thread = threading.Thread(target=self._coordinate, args=(coordinator,), name="coorp coordinator", daemon=True)
        try:
            thread.start()
            self._start()
            self._attend(coordinator)
        finally:
            self._close()
            coordinator.quit()
            thread.join()
            self.built.program.running = None

    def _bridge_failed(self, text: str) -> None:
        self.failures.append(_Failure(3, text))

    def _coordinate(self, coordinator: Coordinator) -> None:
        try:
            coordinator.run()
        except Exception as problem:
            # A running process takes over; if none can, they fail and say so.
            self.failures.append(_Failure(3, f"the coordinator failed: {problem}"))

    def _start(self) -> None:
        content = json.dumps(
            {
                "launcher": os.getpid(),
                "location": self.location,
                "program": self.built.text,
                "federates": self.built.placement.federates,
                "of": self.built.placement.of,
                "settings": self.settings,
                "path": sys.path,
                "argv": sys.argv,
            }
        ).encode()
        common = os.memfd_create("coorp-program", os.MFD_CLOEXEC)
        try:
            with os.fdopen(os.dup(common), "wb") as file:
                file.write(content)
            for number in self.federates:
                self._start_one(number, self.built.placement.federates[number], common)
        finally:
            os.close(common)
        self.selector.register(self.signals.read_fd, selectors.EVENT_READ, None)

    def _start_one(self, number: int, federate: str, common: int) -> None:
        pipe, theirs = os.pipe2(os.O_CLOEXEC)
        command = [sys.executable, "-m", "coorp.reactor._child", *map(str, (number, common, theirs))]
        trace = [self.settings[number]["trace_fd"]] if "trace_fd" in self.settings[number] else []
        # A new process starts with this mask, so that it can ignore Ctrl-C before the first one arrives.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, FOR_LAUNCHER)
        try:
            child = subprocess.Popen(command, pass_fds=(common, theirs, *trace))
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            os.close(theirs)
        of = self.built.placement.of
        reactors = [name for name in self.built.program.added if of[name] == number]
        process = _Process(federate, reactors, child, os.pidfd_open(child.pid), pipe)
        self.processes.append(process)
        self.selector.register(process.pipe, selectors.EVENT_READ, process)
        self.selector.register(process.pidfd, selectors.EVENT_READ, process)

    def _attend(self, coordinator: Stoppable) -> None:
        while not all(process.ended for process in self.processes):
            wait = None if self.kill_at in (None, math.inf) else max(0.0, self.kill_at - time.monotonic())
            for key, _ in self.selector.select(wait):
                if key.data is None:
                    self._signalled(coordinator)
                elif key.fd == key.data.pipe:
                    self._read(key.data)
                else:
                    self._ended(key.data, coordinator)
            if self.kill_at is not None and time.monotonic() >= self.kill_at:
                self._kill()
                self.kill_at = math.inf

    def _signalled(self, coordinator: Stoppable) -> None:
        for _ in range(self.signals.taken()):
            self.signals_seen += 1
            if self.signals_seen > 1:
                raise KeyboardInterrupt
            coordinator.request_stop()

    def _read(self, process: _Process) -> None:
        chunk = os.read(process.pipe, 1 << 16)
        process.text += chunk
        if not chunk or len(process.text) > MESSAGE_BYTES_MAX:
            self._close_pipe(process)

    def _close_pipe(self, process: _Process) -> None:
        if process.pipe >= 0:
            self.selector.unregister(process.pipe)
            os.close(process.pipe)
            process.pipe = -1

    def _ended(self, process: _Process, coordinator: Stoppable) -> None:
        self.selector.unregister(process.pidfd)
        os.close(process.pidfd)
        status = process.process.wait()
        # Everything that it wrote is in the pipe, and no other process has the writing end.
        while process.pipe >= 0:
            self._read(process)
        process.ended = True
        messages = process.messages()
        if status == 0 and "result" in messages:
            self.results[process.federate] = messages["result"]
            return
        if process.killed:
            return
        self.failures.append(_failure(process, status, messages))
        if self.kill_at is None:
            # Without a process that never ran, the others cannot even start.
            grace = GRACE_S if "running" in messages else 0.0
            self.kill_at = time.monotonic() + grace
            coordinator.request_stop()

    def _close(self) -> None:
        self._kill()
        for process in self.processes:
            if not process.ended:
                process.process.wait()
                os.close(process.pidfd)
            self._close_pipe(process)
        self.selector.close()

    def _kill(self) -> None:
        for process in self.processes:
            if not process.ended:
                process.killed = True
                process.process.kill()


def _failure(process: _Process, status: int, messages: Mapping[str, Any]) -> _Failure:
    failed = messages.get("failed")
    if status < 0:
        try:
            name = signal.Signals(-status).name
        except ValueError:
            name = f"signal {-status}"
        return _Failure(0, f"{process.title()} was killed by {name}")
    if failed is None:
        return _Failure(0, f"{process.title()} ended by itself, with exit status {status}")
    if failed["reaction"]:
        at = f"{failed['at_ns'] / 1e9:.9f} s of logical time"
        return _Failure(1, f"the reaction {failed['reaction']} failed, at {at}\n\n{failed['text']}")
    if "running" not in messages:
        return _Failure(2, f"{process.title()} could not start\n\n{failed['text']}")
    if not failed["cause"]:
        return _Failure(4, f"{process.title()} ended because of that")
    return _Failure(3, f"{process.title()} failed\n\n{failed['text']}")
