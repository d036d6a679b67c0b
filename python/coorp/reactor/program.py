"""Programs: reactors, their connections, and their placement."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from coorp.reactor.declare import Declaration, duration
from coorp.reactor.ports import Bound, InputPort, OutputPort
from coorp.reactor.reactor import Reactor
from coorp.reactor.where import Where, here, here_module, refused, users_frames

if TYPE_CHECKING:
    from coorp.reactor.launch import Result, Stoppable

R = TypeVar("R", bound=Reactor)
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
T_contra = TypeVar("T_contra", contravariant=True)

Coordination = Literal["centralised", "decentralised"]
COORDINATIONS: tuple[Coordination, ...] = ("centralised", "decentralised")
THREADS_MAX = 256
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,99}")


class _Gives(Protocol[T_co]):
    def _gives(self) -> T_co: ...


class _Takes(Protocol[T_contra]):
    def _takes(self, value: T_contra, /) -> None: ...


@dataclass(frozen=True)
class Added:
    """A reactor of a program."""

    reactor: Reactor
    name: str
    place: str | None
    offset_ns: int | None
    where: Where


@dataclass(frozen=True)
class Connection:
    """A connection of a program."""

    source: OutputPort[Any]
    sink: InputPort[Any]
    after_ns: int
    physical: bool
    where: Where


class Program:
    """Reactors and their connections. Its result depends on neither placement nor coordination.

    One thing does: when `stop` ends a program of several processes, its last tag is the latest that any process has
    reached.

        app = Program()
        camera = app.add(Camera())
        viewer = app.add(Viewer())
        app.connect(camera.frame, viewer.image, after="5ms")

        if __name__ == "__main__":
            app.run()
    """

    def __init__(self) -> None:
        self.where: Where = here()
        self.module: str = here_module()
        self.added: dict[str, Added] = {}
        self.connections: list[Connection] = []
        self.running: Stoppable | None = None
        self.one_run = threading.Lock()

    def add(
        self,
        reactor: R,
        name: str | None = None,
        place: str | None = None,
        offset: str | timedelta | None = None,
    ) -> R:
        """Adds a reactor and returns it. `name` is unique in the program; the default is the name of the class.

        Reactors of one `place` share a process, unless `run` gets another placement. `offset` is for decentralised
        coordination, see `run`; a process with several reactors uses the longest.
        """
        if not isinstance(reactor, Reactor):
            is_class = isinstance(reactor, type) and issubclass(reactor, Reactor)
            hint = f"write add({reactor.__name__}())" if is_class else "add an instance of a subclass of Reactor"
            raise refused(f"add: {reactor!r} is not a reactor; {hint}")
        if reactor._parts.name:
            raise refused(f"add: this reactor was already added, as {reactor._parts.name}; create another")
        name = self._free_name(type(reactor).__name__) if name is None else name
        for what, given in (("name", name), ("place", place)):
            if given is not None and not (isinstance(given, str) and _NAME.fullmatch(given)):
                raise refused(f"add: {given!r} is not a {what}; use letters, digits, '_' and '-', a letter first")
        if name in self.added:
            raise refused(f"add: {name} is the name of the reactor added at {self.added[name].where}; choose another")
        reactor._parts.name = name
        offset_ns = None if offset is None else duration("add: offset", offset)
        self.added[name] = Added(reactor, name, place, offset_ns, here())
        return reactor

    def _free_name(self, cls: str) -> str:
        base = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", cls).lower()
        if base not in self.added:
            return base
        number = 2
        while f"{base}_{number}" in self.added:
            number += 1
        return f"{base}_{number}"

    def connect(
        self,
        source: _Gives[T],
        sink: _Takes[T],
        after: str | timedelta | None = None,
        physical: bool = False,
    ) -> None:
        """Connects an output to an input. Values arrive with the tag at which they are set, or `after` later.

        A physical connection instead gives them the time at which they arrive.
        """
        for what, port, kind in (("output", source, OutputPort), ("input", sink, InputPort)):
            if not isinstance(port, kind):
                given = repr(port)
                if isinstance(port, Bound):
                    given = f"{type(port._reactor).__name__}.{port._name}"
                elif isinstance(port, Declaration):
                    given = f"{port.owner.__name__}.{port.name} of the class" if port.owner else given
                hint = "connect(output, input), each of a reactor that add() has returned"
                raise refused(f"connect: {given} is not an {what} of a reactor; write {hint}")
        assert isinstance(source, OutputPort) and isinstance(sink, InputPort)
        delay = 0 if after is None else duration("connect: after", after)
        self.connections.append(Connection(source, sink, delay, bool(physical), here()))

    def check(self, place: str | os.PathLike[str] | None = None) -> None:
        """Raises ProgramError, naming the lines of the user's file, if the program cannot run."""
        from coorp.reactor.build import build

        build(self, place)

    def diagram(self, path: str | os.PathLike[str], place: str | os.PathLike[str] | None = None) -> None:
        """Writes the dataflow as an SVG file."""
        from coorp.reactor.build import build
        from coorp.reactor.diagram import drawn

        Path(path).write_text(drawn(build(self, place)), encoding="utf-8")

    def run(
        self,
        *,
        coordination: Coordination = "centralised",
        place: str | os.PathLike[str] | None = None,
        fast: bool = False,
        timeout: str | timedelta | None = None,
        offset: str | timedelta | None = None,
        threads: int = 1,
        pickle: bool = False,
        store_bytes: int | None = None,
        store_wait: str | timedelta | None = None,
        trace: str | os.PathLike[str] | None = None,
        digest: bool = False,
        record: str | os.PathLike[str] | None = None,
        replay: str | os.PathLike[str] | None = None,
        team: str | os.PathLike[str] | None = None,
        robot: str | None = None,
    ) -> Result:
        """Runs the program until a reaction calls `stop`, nothing is left to do, `timeout`, or Ctrl-C.

        - `place`: "one" process, "processes" for one each, or a file; by default the placement from `add`.
        - `fast` does not wait for the clock. `timeout` is in logical time.
        - `offset`: the time after a tag at which decentralised coordination treats a missing input as absent, like
          Lingua Franca's STP offset; by default it waits until the input is known.
        - `threads`: the number of threads on which independent reactions run, in each process. Reactions of one reactor
          may then run on different threads, but never two at a time.
        - `pickle` allows values that `coorp.reactor` cannot encode between processes.
        - `store_bytes` is the memory for the values of one output that other processes hold, 1 GiB by default. If it is
          full, the sender waits for `store_wait`, "5s" by default, and then the program fails.
        - `trace` is a file for Perfetto (https://ui.perfetto.dev).
        - `digest` hashes everything that reactions do, so that two runs can be compared; it costs time for each byte.
        - `record` is a new folder in which to record everything that reactions do. `replay` is the folder of a recorded
          run: the same program runs again in this process, step by step, with the recorded physical actions and
          outputs.
        - `team` is the team file of several robots, and `place` a file with a table for each. Every robot runs the
          program with its name as `robot`, by default $COORP_ROBOT, and gets the result of its own processes.
        """
        from coorp.reactor.launch import launch
        from coorp.reactor.recording import recorded

        if coordination not in COORDINATIONS:
            raise refused(f"run: coordination={coordination!r} is unknown; use {' or '.join(map(repr, COORDINATIONS))}")
        if not isinstance(threads, int) or not 1 <= threads <= THREADS_MAX:
            raise refused(f"run: threads={threads!r} is not from 1 to {THREADS_MAX}")
        if offset is not None and coordination != "decentralised":
            raise refused("run: offset is for decentralised coordination")
        if replay is not None and place not in (None, "one"):
            raise refused("run: a replay runs in one process; omit `place`")
        options: Mapping[str, Any] = {
            "coordination": coordination,
            "fast": bool(fast) or replay is not None,
            "timeout_ns": None if timeout is None else duration("run: timeout", timeout),
            "offset_ns": None if offset is None else duration("run: offset", offset),
            "threads": threads,
            "pickle": bool(pickle),
            "store_bytes": store_bytes,
            "store_wait_ns": None if store_wait is None else duration("run: store_wait", store_wait),
            "trace": None if trace is None else os.path.abspath(trace),
            "digest": bool(digest),
            "record": None if record is None else os.path.abspath(record),
            "replay": None if replay is None else recorded(replay),
            "time_of_day": team is not None,
        }
        team = None if team is None else os.path.abspath(team)
        try:
            return launch(self, place if replay is None else "one", options, team, robot)
        except BaseException as problem:
            raise problem.with_traceback(users_frames(problem))  # noqa: B904 (it is the same one)

    def stop(self) -> None:
        """Ends the running program from outside its reactions, from any thread. Reactions to `shutdown` run."""
        running = self.running
        if running is None:
            raise RuntimeError("the program is not running")
        running.request_stop()
