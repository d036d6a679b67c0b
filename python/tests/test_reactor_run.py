"""Programs of coorp.reactor that run: in this process, in several, and by `coorp run`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coorp.reactor import (
    Input,
    LogicalAction,
    Output,
    PhysicalAction,
    Program,
    ProgramError,
    Reactor,
    Timer,
    UndeclaredError,
    reaction,
    shutdown,
    startup,
)

LIMIT_S = 60.0
"""Maximum time for which a test waits for a process."""


class Source(Reactor):
    out = Output()
    tick = Timer(period="10ms", offset="1ms")

    def __init__(self, count: int) -> None:
        self.left = count

    @reaction(tick, effects=out)
    def send(self) -> None:
        self.left -= 1
        self.out.set(self.left)
        if self.left == 0:
            self.stop()


class Log(Reactor):
    a, b = Input(), Input(optional=True)

    def __init__(self) -> None:
        self.seen: list[object] = []

    @reaction(a, b)
    def note(self) -> None:
        self.seen.append((self.time, self.microstep, self.a.get(), self.b.get(), self.a.is_present()))

    @reaction(shutdown)
    def end(self) -> None:
        self.seen.append(("end", self.time))


# In this process


def test_values_arrive_with_their_tags() -> None:
    app = Program()
    source, log = app.add(Source(3)), app.add(Log())
    app.connect(source.out, log.a)
    app.connect(source.out, log.b, after="10ms")
    result = app.run(fast=True)
    ms = 1_000_000
    assert log.seen == [
        (1 * ms, 0, 2, None, True),
        (11 * ms, 0, 1, 2, True),
        (21 * ms, 0, 0, 1, True),
        ("end", 21 * ms),
    ]
    assert {name: counts["count"] for name, counts in result.reactions.items()} == {
        "source.send": 3,
        "log.note": 3,
        "log.end": 1,
    }
    assert not result.interrupted


def test_actions_and_microsteps() -> None:
    class Steps(Reactor):
        again = LogicalAction[int]()
        later = LogicalAction[str](delay_min="2ms")

        def __init__(self) -> None:
            self.seen: list[object] = []

        @reaction(startup, effects=(again, later))
        def first(self) -> None:
            self.again.schedule(1)
            self.later.schedule("x", after="1ms")
            self.later.schedule()

        @reaction(again, later, effects=again)
        def then(self) -> None:
            self.seen.append((self.time, self.microstep, self.again.get(), self.later.get(), self.later.is_present()))
            value = self.again.get()
            if value is not None and value < 2:
                self.again.schedule(value + 1)

    app = Program()
    steps = app.add(Steps())
    app.run(fast=True)
    assert steps.seen == [
        (0, 1, 1, None, False),
        (0, 2, 2, None, False),
        (2_000_000, 0, None, None, True),
        (3_000_000, 0, None, "x", True),
    ]


def test_a_physical_action_from_a_thread() -> None:
    class Sensor(Reactor):
        came = PhysicalAction[int]()

        def __init__(self) -> None:
            self.seen: list[int | None] = []

        @reaction(startup)
        def begin(self) -> None:
            threading.Thread(target=self.came.schedule, args=(7,)).start()

        @reaction(came)
        def take(self) -> None:
            self.seen.append(self.came.get())
            assert self.time > 0
            self.stop()

    app = Program()
    sensor = app.add(Sensor())
    with pytest.raises(RuntimeError, match="only while the program runs"):
        sensor.came.schedule(1)
    app.run(timeout="20s")
    assert sensor.seen == [7]
    sensor.came.schedule(1)


def test_a_late_reaction_runs_its_handler() -> None:
    class Slow(Reactor):
        out = Output()

        @reaction(startup, effects=out)
        def work(self) -> None:
            time.sleep(0.05)
            self.out.set(1)

    class Fusion(Reactor):
        plan, command = Input(), Output()

        def __init__(self) -> None:
            self.did: list[object] = []

        @reaction(plan, effects=command, deadline="10ms", late="brake")
        def fuse(self) -> None:
            self.did.append("fuse")

        def brake(self) -> None:
            self.did.append(("brake", self.plan.get(), self.lag >= 50_000_000))
            self.command.set(0)

    app = Program()
    slow, fusion = app.add(Slow()), app.add(Fusion())
    app.connect(slow.out, fusion.plan)
    result = app.run()
    assert fusion.did == [("brake", 1, True)]
    assert result.reactions["fusion.fuse"]["late"] == 1


def test_a_reaction_uses_only_what_it_has_declared() -> None:
    class Sly(Reactor):
        a, b = Input(), Input(optional=True)
        out = Output()

        @reaction(a)
        def look(self) -> None:
            self.b.get()

        @reaction(a, effects=out)
        def allowed(self) -> None: ...

    class Slyer(Sly):
        def look(self) -> None:
            self.out.set(1)

    for cls, text in ((Sly, "Sly.look has not declared b; add it to the"), (Slyer, "Slyer.look has not declared out")):
        app = Program()
        source, sly = app.add(Source(1)), app.add(cls())
        app.connect(source.out, sly.a)
        with pytest.raises(UndeclaredError, match=text):
            app.run(fast=True)


def test_an_exception_of_a_reaction_is_raised() -> None:
    class Broken(Reactor):
        @reaction(startup)
        def fail(self) -> None:
            raise LookupError("no camera")

    app = Program()
    log = app.add(Log(), "log")
    app.connect(app.add(Source(1)).out, log.a)
    app.add(Broken())
    with pytest.raises(LookupError, match="no camera"):
        app.run(fast=True)
    assert log.seen[-1] == ("end", 0) or log.seen[-1][0] == "end"  # type: ignore
    with pytest.raises(RuntimeError, match="not running"):
        app.stop()


def test_arrays_are_shared_and_read_only() -> None:
    class Arrays(Reactor):
        whole, view = Output[np.ndarray](), Output[np.ndarray]()

        def __init__(self) -> None:
            self.buffer = np.arange(4)

        @reaction(startup, effects=(whole, view))
        def send(self) -> None:
            self.whole.set(np.ones(3))
            self.view.set(self.buffer[1:])

    app = Program()
    arrays, log = app.add(Arrays()), app.add(Log())
    app.connect(arrays.whole, log.a)
    app.connect(arrays.view, log.b)
    app.run(fast=True)
    ((_, _, whole, view, _), _) = log.seen  # type: ignore
    assert not whole.flags.writeable
    assert not view.flags.writeable
    assert np.shares_memory(view, arrays.buffer)
    assert arrays.buffer.flags.writeable


def test_stop_from_outside_and_timeout() -> None:
    class Clock(Reactor):
        tick = Timer(period="1ms")

        def __init__(self) -> None:
            self.started = threading.Event()

        @reaction(tick)
        def go(self) -> None:
            self.started.set()

    app = Program()
    clock = app.add(Clock())

    def stop() -> None:
        clock.started.wait()
        app.stop()

    thread = threading.Thread(target=stop)
    thread.start()
    app.run(timeout="1min")
    thread.join()
    result = app.run(timeout="5ms")
    assert result.federates["main"]["completed_ns"] == 5_000_000


# In several processes

APP = """
import os, sys, time
from dataclasses import dataclass
import numpy as np
from coorp.reactor import *

@dataclass
class Count:
    n: int

class Source(Reactor):
    out = Output[Count]()
    tick = Timer(period="5ms")
    def __init__(self, count):
        self.left = count
    @reaction(tick, effects=out)
    def send(self):
        self.left -= 1
        self.out.set(Count(self.left))
        if self.left == 0:
            self.stop()

class Double(Reactor):
    i, o = Input[Count](), Output()
    @reaction(i, effects=o)
    def double(self):
        self.o.set(np.full(4, 2 * self.i.get().n))
    HOOK

class Log(Reactor):
    a, b = Input(), Input()
    @reaction(a, b)
    def note(self):
        a, b = self.a.get(), self.b.get()
        print("log", self.time, self.microstep, a and a.n, b is not None and b.sum(), flush=True)
    @reaction(shutdown)
    def end(self):
        print("log end", self.time, flush=True)

app = Program()
source, double, log = app.add(Source(COUNT)), app.add(Double()), app.add(Log())
app.connect(source.out, double.i)
app.connect(double.o, log.b, after="3ms")
app.connect(source.out, log.a)
"""
GUARD = '\nif __name__ == "__main__":\n    print(app.run(place="processes").reactions["log.end"]["count"])\n'


def app_file(folder: Path, hook: str = "", count: int = 20, end: str = GUARD) -> Path:
    file = folder / "app.py"
    file.write_text(APP.replace("HOOK", hook).replace("COUNT", str(count)) + end)
    return file


def coorp(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:  # noqa: ANN401
    command = [sys.executable, "-m", "coorp", "run", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, **options)


def test_the_result_does_not_depend_on_the_placement(tmp_path: Path) -> None:
    file, places = app_file(tmp_path), tmp_path / "robots.toml"
    places.write_text('[scout]\nsense = ["source"]\nthink = ["double"]\n[base]\nlog = ["log"]\n')
    one = coorp(file, "--place", "one")
    assert one.returncode == 0, one.stderr
    assert len(one.stdout.splitlines()) == 40
    assert one.stdout.splitlines()[-1] == "log end 95000000"
    for options in (("--fast",), ("--place", "processes"), ("--place", "processes", "--fast"), ("--place", places)):
        other = coorp(file, *options)
        assert (other.returncode, other.stdout, other.stderr) == (0, one.stdout, "")


def test_a_script_runs_itself(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, app_file(tmp_path)], capture_output=True, text=True, timeout=LIMIT_S, cwd=tmp_path.parent
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-2:] == ["log end 95000000", "1"]


def test_a_program_in_a_package(tmp_path: Path) -> None:
    package = tmp_path / "team"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "parts.py").write_text(app_file(tmp_path, end="").read_text())
    (package / "main.py").write_text("from .parts import app\n" + GUARD)
    command = [sys.executable, "-m", "team.main"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == "1"


def test_a_process_whose_reaction_raises(tmp_path: Path) -> None:
    hook = """
    @reaction(i)
    def check(self):
        if self.i.get().n == 10:
            raise LookupError("no model")
    """
    done = coorp(app_file(tmp_path, hook), "--place", "processes")
    assert done.returncode == 1
    assert done.stderr.startswith("failed: the reaction double.check failed, at 0.045000000 s of logical time\n")
    assert "LookupError: no model" in done.stderr
    assert f'{tmp_path / "app.py"}", line ' in done.stderr
    # The others have run their reactions to shutdown.
    assert done.stdout.splitlines()[-1].startswith("log end")


def test_a_process_that_dies(tmp_path: Path) -> None:
    for hook, text in (
        ("os.kill(os.getpid(), 9)", "failed: the process of double was killed by SIGKILL"),
        ("os._exit(3)", "failed: the process of double ended by itself, with exit status 3"),
    ):
        hook = f"""
    @reaction(i)
    def die(self):
        {hook}
    """
        done = coorp(app_file(tmp_path, hook), "--place", "processes")
        assert done.returncode == 1
        assert done.stderr.splitlines()[0] == text
        assert done.stdout.splitlines()[-1].startswith("log end")


def test_a_file_that_cannot_be_imported_by_its_processes(tmp_path: Path) -> None:
    for start, text in (
        ('if os.environ.get("SECOND"): raise LookupError("no key")\nos.environ["SECOND"] = "1"', "LookupError: no key"),
        ("app.add(Reactor(), f'r{os.getpid()}')", "the program differs from process to process"),
    ):
        began = time.monotonic()
        done = coorp(app_file(tmp_path, end="\n" + start + "\n"), "--place", "processes")
        assert done.returncode == 1
        assert "could not start" in done.stderr.splitlines()[0]
        assert text in done.stderr
        assert time.monotonic() - began < LIMIT_S / 2


def children(of: int) -> list[int]:
    """Returns the running processes that `of` has started."""
    return [int(pid) for pid in Path(f"/proc/{of}/task/{of}/children").read_text().split()]


def gone(pid: int) -> bool:
    """Returns whether a process has ended. A process that has not been waited for yet counts as ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def wait_until_gone(pids: list[int]) -> None:
    end = time.monotonic() + LIMIT_S
    while not all(map(gone, pids)):
        assert time.monotonic() < end, "processes live on"
        time.sleep(0.01)


@pytest.mark.parametrize("place", ["one", "processes"])
def test_ctrl_c_runs_shutdown_reactions(tmp_path: Path, place: str) -> None:
    command = [sys.executable, "-m", "coorp", "run", app_file(tmp_path, count=10**9), "--place", place]
    # In their own group, as in a terminal: Ctrl-C reaches all of them.
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as run:
        assert run.stdout is not None
        assert run.stdout.readline().startswith("log 0 ")
        started = children(run.pid)
        os.killpg(run.pid, signal.SIGINT)
        output = run.stdout.read()
        assert run.wait(LIMIT_S) == 130
    assert output.splitlines()[-1].startswith("log end")
    wait_until_gone(started)


def test_a_second_ctrl_c_kills(tmp_path: Path) -> None:
    hook = """
    @reaction(shutdown)
    def hang(self):
        os.write(1, b"hangs\\n")
        time.sleep(1000)
    """
    for place in ("one", "processes"):
        command = [sys.executable, "-m", "coorp", "run", app_file(tmp_path, hook, count=10**9), "--place", place]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as run:
            assert run.stdout is not None
            run.stdout.readline()
            started = children(run.pid)
            os.killpg(run.pid, signal.SIGINT)
            # The text may follow a part of a line if Python does not buffer, because Log writes at the same time.
            while not (line := run.stdout.readline()).endswith("hangs\n"):
                assert line, "the program ended early"
            # Simultaneous signals count as one.
            time.sleep(0.2)
            os.killpg(run.pid, signal.SIGINT)
            assert run.wait(LIMIT_S) == 130
        wait_until_gone(started)


def test_processes_die_with_the_launcher(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "coorp", "run", app_file(tmp_path, count=10**9), "--place", "processes"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        run.stdout.readline()
        started = children(run.pid)
        assert len(started) == 3
        run.kill()
        wait_until_gone(started)


# The command


def test_what_the_command_refuses(tmp_path: Path) -> None:
    for end, text in (
        ("\napp.run()\n", "app.py:46: run: the program would run while its file is imported"),
        ("\nother = Program()\n", "app.py: several programs: app ("),
        ("\ndel app\n", "app.py: no variable of this module is a Program"),
        ("\napp.connect(source.out, log.b)\n", "app.py:46: log.b is already connected to double.o ("),
    ):
        done = coorp(app_file(tmp_path, end=end), cwd=tmp_path)
        assert done.returncode == 2
        assert text in done.stderr
        assert "Traceback" not in done.stderr
    assert coorp(tmp_path / "none.py").returncode == 2
    assert coorp(app_file(tmp_path), "--timeout", "10").returncode == 2
    assert "not placed" not in coorp(app_file(tmp_path), "--place", "none").stderr


def test_arguments_of_the_program(tmp_path: Path) -> None:
    file = app_file(tmp_path, end="\nprint(sys.argv, flush=True)\n")
    done = coorp(file, "--timeout", "0s", "--", "--robot", "a")
    assert done.stdout.splitlines()[0] == str([str(file), "--robot", "a"])


def test_a_trace_of_all_processes(tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    for place in ("one", "processes"):
        assert coorp(app_file(tmp_path), "--fast", "--place", place, "--trace", trace).returncode == 0
        events = json.loads(trace.read_text())["traceEvents"]
        names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
        assert names == (["main"] if place == "one" else ["source", "double", "log"])
        assert sum(event["ph"] == "X" and event["name"].endswith("note") for event in events) == 39
    done = coorp(app_file(tmp_path), "--trace", tmp_path / "none" / "trace.json")
    assert (done.returncode, done.stdout) == (2, "")


def test_a_program_inside_of_a_function() -> None:
    app = Program()
    source, log = app.add(Source(1)), app.add(Log())
    app.connect(source.out, log.a)
    with pytest.raises(
        ProgramError, match=r"test_reactor_run\.py:\d+: to run in several processes, the program must be"
    ):
        app.run(place="processes")
