"""Runs many jobs at once: in processes on the cores of this machine, or as tasks of Ray, there or on a cluster.

This module decides where a job runs, how an interrupted sweep ends, and what becomes of a job that fails: the others go
on. A job computes the same wherever it runs, because it gets nothing but its own arguments. What it keeps, and how it
continues from that, is the job's business; a second attempt calls it again.

Ctrl-C or SIGTERM tells every running job to stop where it can be continued, and starts no more. A second signal ends
all at once. If the process that started the sweep dies, jobs stop by themselves.

Left out: moving files. The machines of a cluster must share the folders of inputs and results, under the same paths,
and have the same Python packages. Ray repeats the jobs of a machine that dies.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import logging
import math
import multiprocessing
import os
import signal
import socket
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Protocol

from coorp.learn.errors import Mend

Tell = Callable[[float], bool]
"""Takes the share that is done, and returns whether to go on."""
CORES, RAY = "cores", "ray"
RUNS_MAX = 100_000
LOOK_EVERY_S = 0.2
TELL_EVERY_S = 0.2
"""Wall-clock interval between two reports of a job, and thus between two looks at whether it should stop."""
LINE_EVERY_S = 60.0
"""Wall-clock interval between progress lines without a terminal."""
REACHED_WITHIN_S = 10.0
_STOP = "stop"


@dataclass(frozen=True)
class Job:
    """One run of a sweep."""

    name: str
    run: Callable[[Tell], bool]
    """Runs it, or continues it, to its end, or until `Tell` returns False. Returns whether it reached its end. It is
    pickled, so it is a module's function or a partial of one."""


@dataclass(frozen=True)
class End:
    """How an attempt of a job ended."""

    finished: bool
    why: str | None = None
    """Why it failed."""


@dataclass
class Ended:
    """How a sweep ended."""

    stopped: bool = False
    """Whether it was interrupted, and jobs are left to do."""
    failed: dict[str, str] = field(default_factory=dict)
    """Why jobs failed, by name."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options that every sweep has."""
    parser.add_argument("--seeds", type=_count, metavar="N", help="sweep: this many seeds, starting at --seed [1]")
    parser.add_argument(
        "--on",
        metavar="WHERE",
        help="sweep: cores, ray (here, or the cluster in RAY_ADDRESS), or a cluster's address [ray if installed]",
    )
    parser.add_argument("--workers", type=_count, metavar="N", help="sweep: runs at once [one per core]")


def _count(text: str) -> int:
    return whole(text, 1, RUNS_MAX)


def seed(text: str) -> int:
    """Parses a seed."""
    return whole(text, 0, 2**63 - 1)


def whole(text: str, least: int, most: int) -> int:
    """Parses a whole number; raises what argparse reports."""
    if not text.isascii() or not text.isdigit() or len(text) > 20 or not least <= int(text) <= most:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number from {least} to {most}")
    return int(text)


def check_count(runs: int) -> None:
    """Raises if these are more runs than a sweep may have."""
    if runs > RUNS_MAX:
        raise Mend(f"these are more than {RUNS_MAX:,} runs; give fewer seeds, policies or teams")


def run(jobs: Sequence[Job], where: str | None = None, at_once: int | None = None) -> Ended:
    """Runs all jobs, `at_once` at a time, and shows their progress on stderr.

    Raises KeyboardInterrupt at a second Ctrl-C, and Mend if `where` cannot be used.
    """
    ended = Ended()
    if not jobs:
        return ended
    if where is None:
        where = RAY if _has_ray() else CORES
    pool: _Pool = _Cores(at_once or _cores()) if where == CORES else _Ray(where, at_once)
    shares = [0.0] * len(jobs)
    show = _Progress()
    waiting = deque(enumerate(jobs))
    # After the pool's start: Ray has a handler of SIGTERM of its own.
    with interrupted() as seen:
        try:
            while waiting or pool.busy():
                if seen[0] and not ended.stopped:
                    ended.stopped = True
                    waiting.clear()
                    pool.stop()
                while waiting and pool.has_room():
                    pool.start(*waiting.popleft())
                for index, told in pool.look():
                    if isinstance(told, End):
                        if told.why is not None:
                            ended.failed[jobs[index].name] = told.why
                        shares[index] = shares[index] if not told.finished and ended.stopped else 1.0
                    else:
                        shares[index] = told
                show(shares, stopping=ended.stopped)
        finally:
            show.clear()
            pool.close()
    return ended


def _has_ray() -> bool:
    found = importlib.util.find_spec("ray")
    return found is not None and found.origin is not None


def _cores() -> int:
    """Returns the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def outcome(ended: Ended, again: str) -> int:
    """Says how a sweep ended, and returns the exit code. `again` is the command that continues it."""
    for name, why in ended.failed.items():
        print(f"failed: {name}: {why}", file=sys.stderr)
    if ended.stopped:
        print(f"stopped; what ran is saved; to continue: {again}", file=sys.stderr)
        return 130
    if ended.failed:
        count = len(ended.failed)
        print(f"{count} run{'s' if count > 1 else ''} failed; to try again: {again}", file=sys.stderr)
    return 1 if ended.failed else 0


def continuing(command: list[str]) -> list[str]:
    """Returns the command that continues this one. Options may be abbreviated."""
    kept = [word for word in command if not (len(word) > 3 and "--overwrite".startswith(word))]
    resumes = any(len(word) > 4 and "--resume".startswith(word) for word in kept)
    return kept if resumes else [*kept, "--resume"]


def attempt(job: Job, tell: Tell) -> End:
    """Runs a job in this process."""
    told_s = -math.inf

    def seldom(share: float) -> bool:
        nonlocal told_s
        now_s = time.monotonic()
        if now_s - told_s < TELL_EVERY_S:
            return True
        told_s = now_s
        return tell(share)

    try:
        return End(seldom(0.0) and job.run(seldom))
    except Exception as problem:
        # Ours, and those of files and disks, say what to do; where another one comes from is all that helps.
        known = isinstance(problem, OSError) or type(problem).__module__.split(".")[0] == "coorp"
        return End(False, str(problem) if known else traceback.format_exc().strip())


class _Pool(Protocol):
    """Where jobs run. Jobs are known by their index."""

    def busy(self) -> bool: ...

    def has_room(self) -> bool: ...

    def start(self, index: int, job: Job) -> None: ...

    def look(self) -> list[tuple[int, float | End]]:
        """Waits for a moment, and returns the shares done and the ends since the last look."""
        ...

    def stop(self) -> None:
        """Tells every job to stop at its next report."""
        ...

    def close(self) -> None:
        """Ends at once what still runs."""
        ...


class _Cores:
    """Processes of this machine. Each runs one job after another, so that a crash ends one job only."""

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._workers: dict[Connection, BaseProcess] = {}
        self._running: dict[Connection, int] = {}

    def busy(self) -> bool:
        return bool(self._running)

    def has_room(self) -> bool:
        return len(self._running) < self._at_once

    def start(self, index: int, job: Job) -> None:
        idle = (pipe for pipe, process in self._workers.items() if pipe not in self._running and process.is_alive())
        pipe = next(idle, None) or self._worker()
        self._running[pipe] = index
        # If the process has just died, the next look says so.
        with suppress(OSError):
            pipe.send(job)

    def _worker(self) -> Connection:
        ours, theirs = multiprocessing.Pipe()
        # Not forked: torch and the simulator have threads. A daemon, so that none outlives this process.
        process = multiprocessing.get_context("spawn").Process(target=_serve, args=(theirs,), daemon=True)
        with _signals_blocked():
            process.start()
            self._workers[ours] = process
        theirs.close()
        return ours

    def look(self) -> list[tuple[int, float | End]]:
        told: list[tuple[int, float | End]] = []
        for pipe in wait(list(self._running), LOOK_EVERY_S):
            assert isinstance(pipe, Connection)
            try:
                said = pipe.recv()
            except (EOFError, OSError):
                said = End(False, self._death(pipe))
            told.append((self._running[pipe], said))
            if isinstance(said, End):
                del self._running[pipe]
        return told

    def _death(self, pipe: Connection) -> str:
        process = self._workers.pop(pipe)
        pipe.close()
        process.join()
        code = process.exitcode or 0
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return f"its process {how}"

    def stop(self) -> None:
        for pipe in self._running:
            with suppress(OSError):
                pipe.send(_STOP)

    def close(self) -> None:
        # Another signal may interrupt the wait, and Python would wait forever at its end for what is not killed.
        for process in self._workers.values():
            process.kill()
        for pipe, process in self._workers.items():
            pipe.close()
            process.join()


def _serve(pipe: Connection) -> None:
    """A worker process: runs the jobs that arrive, until the other end is closed."""

    def tell(share: float) -> bool:
        try:
            pipe.send(share)
            return not pipe.poll() or pipe.recv() != _STOP
        except (EOFError, OSError):  # the process that started the sweep is gone
            return False

    with suppress(EOFError, OSError):
        while True:
            job = pipe.recv()
            # Stopped just after the last job has ended.
            if job != _STOP:
                pipe.send(attempt(job, tell))


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """Blocks what a terminal or a service sends to all processes at once, for this block and for the processes that
    start in it. This process handles afterwards what has arrived."""
    # Python's own helper process unblocks them when it starts, so it has to run before.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Board:
    """Where tasks of Ray report: an actor."""

    def __init__(self) -> None:
        self._shares: dict[int, float] = {}
        self._stopped = False

    def tell(self, index: int, share: float) -> bool:
        """Notes how far a task is; returns whether it goes on."""
        self._shares[index] = share
        return not self._stopped

    def take(self) -> dict[int, float]:
        """Returns what was told since the last call."""
        taken, self._shares = self._shares, {}
        return taken

    def stop(self) -> None:
        """Stops every task at its next report."""
        self._stopped = True


class _Ray:
    """Tasks of Ray, one per core."""

    def __init__(self, where: str, at_once: int | None) -> None:
        if not _has_ray():
            raise Mend("--on ray and clusters need Ray: pip install ray; without it: --on cores")
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        ray = self._ray = importlib.import_module("ray")
        self._ours = not ray.is_initialized()
        if self._ours:
            address = os.environ.get("RAY_ADDRESS", "local") if where == RAY else where
            _check_reachable(address)
            own = {"num_cpus": at_once, "include_dashboard": False} if address == "local" else {}
            try:
                ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False, **own)
            except (ConnectionError, ValueError, RuntimeError) as problem:
                text = " ".join(str(problem).split())
                raise Mend(f"no connection to Ray ({text}); if it wants a token, set RAY_AUTH_MODE=token") from problem
        self._at_once = at_once
        self._board = ray.remote(num_cpus=0)(Board).remote()
        self._task = ray.remote(num_cpus=1)(_attempt_there)
        self._running: dict[Any, int] = {}

    def busy(self) -> bool:
        return bool(self._running)

    def has_room(self) -> bool:
        # No more than cores: Ray takes the core of a task that tells its progress for free, and starts another there.
        return len(self._running) < (self._at_once or int(self._ray.cluster_resources().get("CPU", 1)))

    def start(self, index: int, job: Job) -> None:
        self._running[self._task.remote(index, job, os.getcwd(), self._board)] = index

    def look(self) -> list[tuple[int, float | End]]:
        told: list[tuple[int, float | End]] = []
        if not self._running:
            return told
        done, _ = self._ray.wait(list(self._running), num_returns=len(self._running), timeout=LOOK_EVERY_S)
        told += self._ray.get(self._board.take.remote()).items()
        for task in done:
            index = self._running.pop(task)
            try:
                told.append((index, self._ray.get(task)))
            except self._ray.exceptions.RayError as problem:
                told.append((index, End(False, str(problem).strip())))
        return told

    def stop(self) -> None:
        self._ray.get(self._board.stop.remote())

    def close(self) -> None:
        if self._ours:
            self._ray.shutdown()


def _check_reachable(address: str) -> None:
    """Raises if nothing listens at a cluster's address, for which Ray would try for many minutes."""
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdigit():
        return
    try:
        socket.create_connection((host, int(port)), REACHED_WITHIN_S).close()
    except (OSError, OverflowError) as problem:
        raise Mend(f"no Ray listens at {address} ({problem}); start it there, or give --on cores") from problem


def _attempt_there(index: int, job: Job, folder: str, board: Any) -> End:  # noqa: ANN401
    """A task of Ray, on a machine that may be another one."""
    ray = importlib.import_module("ray")
    try:
        os.chdir(folder)
    except OSError as problem:
        return End(False, f"this machine does not share {folder}: {problem.strerror}")
    return attempt(job, lambda share: bool(ray.get(board.tell.remote(index, share))))


class _Progress:
    """The progress of all jobs: one line, in a terminal; without one, a line per minute."""

    def __init__(self) -> None:
        self._start_s = self._told_s = time.monotonic()
        self._terminal = sys.stderr.isatty()
        self._every_s = LOOK_EVERY_S if self._terminal else LINE_EVERY_S

    def __call__(self, shares: Sequence[float], *, stopping: bool) -> None:
        now_s = time.monotonic()
        if now_s - self._told_s < self._every_s:
            return
        self._told_s = now_s
        done, total = sum(shares), len(shares)
        took_s = now_s - self._start_s
        left = f", {_clock(took_s * (total - done) / done)} left" if done > 0 else ""
        text = f"{sum(share >= 1 for share in shares)} of {total} runs, {100 * done / total:.0f} %, "
        text += f"{_clock(took_s)}{', stopping' if stopping else left}"
        print(f"\r{text}\x1b[K" if self._terminal else text, end="" if self._terminal else "\n", file=sys.stderr)
        sys.stderr.flush()

    def clear(self) -> None:
        if self._terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _clock(seconds: float) -> str:
    hours, rest = divmod(round(seconds), 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}"


@contextmanager
def interrupted() -> Iterator[list[bool]]:
    """Records the first Ctrl-C or SIGTERM, so that runs can stop at a point where they can be resumed; the second one
    ends them at once."""
    seen = [False]

    def remember(_number: int, _frame: object) -> None:
        if seen[0]:
            raise KeyboardInterrupt
        seen[0] = True

    before = {}
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.signal(number, remember)
    except ValueError:  # not in the main thread: the caller gets the signal
        yield seen
        return
    try:
        yield seen
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
