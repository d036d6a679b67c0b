"""Ctrl-C and SIGTERM while a program runs.

Native code does not return to Python for a handler to run. The interpreter writes each signal's number to a descriptor
at once, though (`signal.set_wakeup_fd`), and another thread or a selector can wait for it.
"""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Self

ASKED = (signal.SIGINT, signal.SIGTERM)
"""Signals of which the first requests the program's end, and the second ends the process."""


STOP_SIGNAL = signal.SIGUSR1
"""The signal that makes a process request the end of its program."""
AT_ONCE_S = 0.05
FOR_LAUNCHER = frozenset((signal.SIGINT, signal.SIGTERM))
"""Signals that only the launcher of several processes handles."""


class Signals:
    """Collects signals. Outside the main thread Python allows no handlers, so there is nothing to collect."""

    def __init__(self) -> None:
        self.read_fd, self._write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._before: list[tuple[signal.Signals, Any]] = []
        self._fd_before = -1
        self._taken_at = -AT_ONCE_S

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._fd_before = signal.set_wakeup_fd(self._write_fd, warn_on_full_buffer=False)
            self._before = [(number, signal.signal(number, lambda *_: None)) for number in ASKED]
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _value: BaseException | None, _trace: TracebackType | None
    ) -> None:
        for number, handler in self._before:
            signal.signal(number, handler)
        if self._before:
            signal.set_wakeup_fd(self._fd_before)
        os.close(self._write_fd)
        os.close(self.read_fd)

    def taken(self) -> int:
        """Returns the number of signals since the last call. Simultaneous ones count as one: some programs signal a
        process and its group."""
        try:
            came = any(number in ASKED for number in os.read(self.read_fd, 4096))
        except BlockingIOError:
            return 0
        now = time.monotonic()
        if not came or now < self._taken_at + AT_ONCE_S:
            return 0
        self._taken_at = now
        return 1


class Watch:
    """Calls `asked` at the first signal, and ends the process at the second."""

    def __init__(self, signals: Signals, asked: Callable[[], None]) -> None:
        self.count = 0
        self._signals = signals
        self._asked = asked
        self._end_read, self._end_write = os.pipe2(os.O_CLOEXEC)
        self._thread = threading.Thread(target=self._watch, name="coorp signals", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _value: BaseException | None, _trace: TracebackType | None
    ) -> None:
        os.close(self._end_write)
        self._thread.join()
        os.close(self._end_read)

    def _watch(self) -> None:
        poll = select.poll()
        for descriptor in (self._signals.read_fd, self._end_read):
            poll.register(descriptor, select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _ in poll.poll()}
            if self._end_read in ready:
                return
            for _ in range(self._signals.taken()):
                self.count += 1
                if self.count > 1:
                    os._exit(128 + signal.SIGINT)
                self._asked()
