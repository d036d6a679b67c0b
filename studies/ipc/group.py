"""The nodes of one transport, and the measurements with them.

The study talks to each node over a separate socket. It makes the senders prepare a message, releases all of them at
once, and waits for the reports of all receivers before the next message, so that messages never queue.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Listener, wait
from pathlib import Path
from typing import Any

from ipc import processes
from ipc.node import END, HELLO, HOLD, transport
from ipc.place import BROADCAST, SHORT_BYTES, START_S, Place
from ipc.processes import Memory

STUDIES = Path(__file__).resolve().parents[1]
HELLO_S, LATE_HELLO_S = 0.3, 0.1
"""Time for which the study waits for replies before it greets again, and for late ones at the end."""
MESSAGE_S = 60.0
"""Maximum time of a message; a longer one is a failure."""
WARM_UP, WARM_UP_S = 5, 0.2
"""Number of messages before each block, or fewer if they take too long."""
LOG_LINES = 12


@dataclass(frozen=True)
class Clock:
    """The two moments between which a message is timed."""

    loaned: bool
    """Whether timing begins with a filled, loaned buffer instead of a private array."""
    mode: int
    """The end of timing: `READ` or `VIEW`."""


class GroupError(Exception):
    """A transport that fails."""


@dataclass
class Block:
    """The measurements of one clock at one size."""

    latencies_ms: list[float] = field(default_factory=list)
    """Latencies. Broadcast: of the last receiver. Gather: of every message."""
    loads_ms: list[float] = field(default_factory=list)
    """Times to loan and fill a buffer, for the loaned clock."""
    cpu_s: float = 0.0
    """Processor time of all processes, without the preparation of messages."""
    messages: int = 0

    def add(self, other: Block) -> None:
        """Adds another round."""
        self.latencies_ms += other.latencies_ms
        self.loads_ms += other.loads_ms
        self.cpu_s += other.cpu_s
        self.messages += other.messages


class Group:
    """A context: the nodes run inside it, and nothing remains of them afterwards."""

    def __init__(self, module: str, pattern: str, sizes: tuple[int, ...], python: str) -> None:
        self._transport = transport(module)
        self._folder = tempfile.mkdtemp(prefix="coorp-ipc-")
        self._log = Path(self._folder) / "log"
        about = {"transport": module, "pattern": pattern, "sizes": sizes, "folder": self._folder}
        model = Place(**about, role="sender", index=0, name=Path(self._folder).name)
        roles = [("receiver", index) for index in range(model.receivers)]
        roles += [("sender", index) for index in range(model.senders)]
        self._places = [Place(**about, role=role, index=index, name=model.name) for role, index in roles]
        self._model, self._python = model, python
        self._senders: dict[int, Connection[Any, Any]] = {}
        self._receivers: dict[int, Connection[Any, Any]] = {}
        self._processes: list[int] = []
        self._shared_before_mb = processes.shared_mb()
        self._number = 0

    def __enter__(self) -> Group:
        try:
            self._start()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def _start(self) -> None:
        environment = {**os.environ, **self._transport.environment(self._model), "PYTHONPATH": str(STUDIES)}
        for place in self._places:
            place.store()
        with Listener(self._model.control, backlog=len(self._places)) as listener, self._log.open("wb") as log:
            for command in self._transport.commands(self._places, self._python):
                subprocess.Popen(
                    command,
                    env=environment,
                    cwd=self._folder,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    # Only the study gets Ctrl-C, and ends the nodes in order.
                    start_new_session=True,
                )
            late = time.monotonic() + START_S
            for _ in self._places:
                self._accept(listener, late)
        self._greet(late)
        self._processes = processes.descendants()

    def _accept(self, listener: Listener, late: float) -> None:
        # Without this, `accept` would wait forever for a node that has failed.
        inner: Any = listener
        ready = select.select([inner._listener._socket], [], [], max(0.0, late - time.monotonic()))[0]
        if not ready:
            raise GroupError(f"its nodes did not start within {START_S:.0f} s\n{self._tail()}")
        connection = listener.accept()
        role, index = self._checked(connection)
        (self._senders if role == "sender" else self._receivers)[index] = connection

    def _greet(self, late: float) -> None:
        """Sends short messages until one from each sender has reached every receiver, because discovery takes time."""
        met: set[tuple[int, int]] = set()
        while len(met) < len(self._senders) * len(self._receivers):
            if time.monotonic() > late:
                raise GroupError(f"its nodes did not find one another\n{self._tail()}")
            self._prepare(SHORT_BYTES, Clock(loaned=False, mode=HELLO))
            self._go()
            soon = time.monotonic() + HELLO_S
            while (left := soon - time.monotonic()) > 0 and len(met) < len(self._senders) * len(self._receivers):
                met |= {(sender, receiver) for receiver, sender in self._read(left)}
        # Late replies to earlier greetings.
        while self._read(LATE_HELLO_S):
            pass

    def block(self, size: int, clock: Clock, *, count: int, limit_s: float) -> Block:
        """Measures `count` messages of each sender, or fewer if they take too long."""
        late = time.monotonic() + WARM_UP_S
        for _ in range(WARM_UP):
            self._message(size, clock)
            if time.monotonic() > late:
                break
        found = Block()
        late = time.monotonic() + limit_s
        before, prepared = processes.cpu_s(self._processes), 0.0
        for _ in range(count):
            taken, loads, cpu = self._message(size, clock)
            found.latencies_ms += [max(taken)] if self._model.pattern == BROADCAST else taken
            found.loads_ms += loads
            found.messages += len(self._senders)
            prepared += cpu
            if time.monotonic() > late:
                break
        found.cpu_s = processes.cpu_s(self._processes) - before - prepared
        return found

    def hops(self, count: int) -> list[float]:
        """Returns the duration of each hop, in us."""
        connection = self._senders[0]
        connection.send(("hops", self._number + 1, count))
        ((_, messages),) = self._read(MESSAGE_S) or [(0, ())]
        begun = self._reply(connection)
        if len(messages) != count:
            raise GroupError(f"{len(messages)} of {count} hops arrived")
        return [1e-3 * (at - from_) for from_, (_, _, at, _) in zip(begun, messages, strict=True)]

    def memory(self, size: int) -> Memory:
        """Returns the memory of all processes while the receivers hold a message."""
        found: list[Memory] = []
        hold = Clock(loaned=False, mode=HOLD)
        self._message(size, hold, lambda: found.append(processes.memory(self._processes, self._shared_before_mb)))
        return found[0]

    def _message(
        self, size: int, clock: Clock, held: Callable[[], None] = lambda: None
    ) -> tuple[list[float], list[float], float]:
        """Sends one message from each sender. Returns latencies and loads in ms, and the seconds of preparation."""
        prepared = self._prepare(size, clock)
        begun = self._go()
        wanted = {(sender, receiver) for sender in self._senders for receiver in self._receivers}
        taken: list[float] = []
        late = time.monotonic() + MESSAGE_S
        while wanted:
            for receiver, messages in self._read(late - time.monotonic()):
                for number, sender, at, length in messages:
                    if number != self._number or length != size:
                        raise GroupError(f"message {self._number} of {size} bytes came as {number} of {length}")
                    wanted.remove((sender, receiver))
                    taken.append(1e-6 * (at - begun[sender]))
            if time.monotonic() > late:
                raise GroupError(f"a message of {size} bytes did not arrive within {MESSAGE_S:.0f} s")
        held()
        return taken, [1e-6 * took for took, _ in prepared], sum(1e-9 * cpu for _, cpu in prepared)

    def _prepare(self, size: int, clock: Clock) -> list[tuple[int, int]]:
        self._number += 1
        return self._ask("prepare", self._number, size, clock.mode, clock.loaned)

    def _go(self) -> dict[int, int]:
        return dict(self._ask("go"))

    def _ask(self, *command: object) -> list[Any]:
        """Sends all senders a command, and returns their replies."""
        for connection in self._senders.values():
            connection.send(command)
        return [self._reply(connection) for connection in self._senders.values()]

    def _reply(self, connection: Connection[Any, Any]) -> Any:  # noqa: ANN401
        if not connection.poll(MESSAGE_S):
            raise GroupError(f"a sender is stuck\n{self._tail()}")
        return self._checked(connection)

    def _read(self, timeout_s: float) -> list[tuple[int, Any]]:
        """Returns the reports that have arrived from the receivers."""
        by_connection = {connection: index for index, connection in self._receivers.items()}
        ready = wait(list(by_connection), max(0.0, timeout_s))
        return [(by_connection[each], self._checked(each)) for each in ready if isinstance(each, Connection)]

    def _checked(self, connection: Connection[Any, Any]) -> Any:  # noqa: ANN401
        try:
            word, found = connection.recv()
        except (EOFError, ConnectionError) as error:
            raise GroupError(f"a node ended\n{self._tail()}") from error
        if word == "failed":
            raise GroupError(found)
        return found

    def _tail(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-LOG_LINES:])

    def _stop(self) -> None:
        try:
            mapped = processes.shared_files(processes.descendants(), self._model.name)
            with contextlib.suppress(OSError, GroupError):
                self._end()
            processes.end_all()
            mapped |= processes.shared_files([], self._model.name)
            for path in mapped:
                path.unlink(missing_ok=True)
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _end(self) -> None:
        """Ends the receivers by a last message, and then the senders."""
        if self._senders:
            self._prepare(SHORT_BYTES, Clock(loaned=False, mode=END))
            self._go()
            for connection in self._receivers.values():
                with contextlib.suppress(EOFError, ConnectionError):
                    if connection.poll(processes.END_S):
                        connection.recv()
            for connection in self._senders.values():
                connection.send(("end",))
