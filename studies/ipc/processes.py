"""The processes of a group: finds them, measures their use of the machine, and checks that nothing of them remains."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
PROCESS_CPU_CLOCK = 2
SHARED = Path("/dev/shm")
END_S = 1.0
"""Maximum time for processes to end on request."""


def adopt_orphans() -> None:
    """Makes this process the parent of its descendants' orphans, so that `descendants` finds daemons too."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants() -> list[int]:
    """Returns all processes that this one has started, directly or indirectly."""
    children: dict[int, list[int]] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                # The name in parentheses may hold anything; state and parent follow it.
                parent = int(Path(entry.path, "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found, new = [], [os.getpid()]
    while new:
        new = [child for parent in new for child in children.get(parent, [])]
        found += new
    return found


def cpu_s(processes: list[int]) -> float:
    """Returns the processor time of all threads of these processes so far."""
    total = 0.0
    for process in processes:
        with contextlib.suppress(OSError):
            # The id of another process's CPU clock, as from clock_getcpuclockid(3).
            total += time.clock_gettime((~process << 3) | PROCESS_CPU_CLOCK)
    return total


@dataclass(frozen=True)
class Memory:
    """The memory of a group."""

    pss_mb: float
    """Memory of all processes, with shared pages counted once."""
    shared_mb: float
    """Shared memory of the machine since the group began."""


def shared_mb() -> float:
    """Returns all shared memory of the machine."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("Shmem:"):
            return int(line.split()[1]) * 1024 / 1e6
    return 0.0


def memory(processes: list[int], shared_before_mb: float) -> Memory:
    """Returns the memory that the processes hold now."""
    pss = 0
    for process in processes:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    pss += int(line.split()[1])
    return Memory(pss * 1024 / 1e6, max(0.0, shared_mb() - shared_before_mb))


def shared_files(processes: list[int], name: str) -> set[Path]:
    """Returns the files in /dev/shm that these processes have mapped or open, or that have this group's name."""
    found = {path for path in SHARED.iterdir() if path.name.startswith(name)}
    for process in processes:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{process}/maps").read_text().splitlines():
                if f" {SHARED}/" in line and not line.endswith("(deleted)"):
                    found.add(Path(line[line.index(f"{SHARED}/") :]))
            for link in Path(f"/proc/{process}/fd").iterdir():
                with contextlib.suppress(OSError):
                    path = os.readlink(link)
                    if path.startswith(f"{SHARED}/") and not path.endswith("(deleted)"):
                        found.add(Path(path))
    return found


def end_all() -> None:
    """Waits for all descendants to end, and ends those that do not."""
    for how in (None, signal.SIGTERM, signal.SIGKILL):
        if how is not None:
            for process in descendants():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, how)
        late = time.monotonic() + END_S
        while reap() and time.monotonic() < late:
            time.sleep(0.01)


def reap() -> bool:
    """Collects ended children. Returns whether there are still others."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True
