"""Messages of `coorp run` about programs that fail, and the files that they leave."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import pytest

from coorp.reactor import Input, Output, Program, ProgramError, Reactor, RunError, Timer, reaction

LIMIT_S = 60.0
APP = """import threading
import numpy as np
from coorp.reactor import Input, Output, Program, Reactor, Timer, reaction

class Camera(Reactor):
    frame = Output()
    tick = Timer(period="5ms")

    @reaction(tick, effects=frame)
    def grab(self):
        GRAB

class View(Reactor):
    image = Input()

    @reaction(image)
    def show(self):
        SHOW

app = Program()
camera, view = app.add(Camera()), app.add(View())
app.connect(camera.frame, view.image)
"""
SEPARATE = ("--place", "processes", "--timeout", "1s")


def coorp(tmp_path: Path, grab: str, show: str, *options: object, **more: Any) -> subprocess.CompletedProcess[str]:  # noqa: ANN401
    (tmp_path / "app.py").write_text(APP.replace("GRAB", grab).replace("SHOW", show))
    command = [sys.executable, "-m", "coorp", "run", "app.py", *map(str, options)]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, cwd=tmp_path, **more)


@pytest.mark.parametrize("options", [SEPARATE, ("--digest", "--timeout", "1s")])
def test_a_value_that_cannot_be_sent_is_named_with_its_output_and_line(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    done = coorp(tmp_path, 'self.frame.set({"a": [1, threading.Lock()]})', "pass", *options)
    assert done.returncode == 1
    assert (
        "camera.grab (app.py:9) sets camera.frame to a value that cannot be sent: value['a'][1]: a _thread.lock"
        in done.stderr
    )
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "grab",
    ["self.frame.set(np.ones(1_000_000, np.uint8))", "self.frame.set(self.frame.loan(1_000_000, np.uint8))"],
)
def test_a_full_store_names_its_output_and_says_what_to_do(tmp_path: Path, grab: str) -> None:
    keep = 'vars(self).setdefault("kept", []).append(self.image.get())'
    full = ("--store-bytes", 8_000_000, "--store-wait", "100ms")
    done = coorp(tmp_path, grab, keep, *SEPARATE, *full)
    assert done.returncode == 1
    assert "camera.frame: waited 10" in done.stderr and "still there is no room for 1000" in done.stderr
    assert "--store-bytes or --store-wait" in done.stderr and "drop or copy" in done.stderr
    assert "camera.grab (app.py:9)" in done.stderr and "output/" not in done.stderr


def test_a_value_larger_than_its_store_is_named(tmp_path: Path) -> None:
    done = coorp(tmp_path, "self.frame.set(np.ones(9_000_000))", "pass", *SEPARATE, "--store-bytes", 8_000_000)
    assert "camera.grab (app.py:9): a value of 72000" in done.stderr
    assert "never fits into 8000000; raise --store-bytes" in done.stderr


@pytest.mark.parametrize("place", ["one", "processes"])
@pytest.mark.parametrize("end", ['raise KeyError("gone")', "import os; os.kill(os.getpid(), 9)"])
def test_the_trace_of_a_failed_run_has_what_survived(tmp_path: Path, place: str, end: str) -> None:
    if place == "one" and "kill" in end:
        return
    grab = f"self.frame.set(1)\n        if self.time > 20_000_000: {end}"
    done = coorp(tmp_path, grab, "pass", "--place", place, "--trace", "trace.json")
    assert done.returncode == 1
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert sum(event["name"] == "view.show" for event in events) >= 4
    assert ("kill" not in end) == any(event["name"] == "camera.grab" for event in events)


def test_a_killed_launcher_leaves_no_files(tmp_path: Path) -> None:
    files = tmp_path / "tmp"
    files.mkdir()
    (tmp_path / "app.py").write_text(APP.replace("GRAB", "print(1, flush=True)").replace("SHOW", "pass"))
    command = [sys.executable, "-m", "coorp", "run", "app.py", "--place", "processes", "--trace", "trace.json"]
    environment = {**os.environ, "TMPDIR": str(files)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=tmp_path, env=environment) as run:
        assert run.stdout is not None and run.stdout.readline() == b"1\n"
        run.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + LIMIT_S
    while list(files.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert list(files.iterdir()) == []


def test_a_traceback_has_the_users_frames(tmp_path: Path) -> None:
    grab = "self.frame.set(self.half())\n    def half(self):\n        return int('x')"
    for options in (SEPARATE, ("--timeout", "1s")):
        done = coorp(tmp_path, grab, "pass", *options)
        assert done.returncode == 1
        shown = [line.strip() for line in done.stderr.splitlines() if line.strip().startswith("File ")]
        assert [line.rpartition(", ")[2] for line in shown] == ["in grab", "in half"], done.stderr
        assert "in the reaction camera.grab (app.py:9)" in done.stderr or sys.version_info < (3, 11)


class Failing(Reactor):
    out = Output[int]()
    tick = Timer(period="1s")

    @reaction(tick)
    def go(self) -> None:
        self.out.set(1)


def test_a_traceback_in_a_script_has_one_frame_of_this_package() -> None:
    app = Program()
    app.add(Failing())
    with pytest.raises(RuntimeError, match=r"Failing\.go has not declared out") as caught:
        app.run(fast=True)
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert [frame.name for frame in frames] == [
        "test_a_traceback_in_a_script_has_one_frame_of_this_package",
        "run",
        "go",
    ]


def test_the_users_file_may_fail_to_import(tmp_path: Path) -> None:
    file = tmp_path / "app.py"
    for text, last in (
        ("def f(:\n", "SyntaxError: invalid syntax"),
        ("open('/no/such')\n", "FileNotFoundError: [Errno 2] No such file or directory: '/no/such'"),
        ("import no_such\n", "ModuleNotFoundError: No module named 'no_such'"),
    ):
        file.write_text(text)
        command = [sys.executable, "-m", "coorp", "run", str(file)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
        assert (done.returncode, done.stderr.splitlines()[-1]) == (1, last)
        assert f'{file}", line 1' in done.stderr and "coorp/reactor" not in done.stderr


def test_assigning_to_a_port_is_refused() -> None:
    class Assigning(Reactor):
        out = Output[int]()
        tick = Timer(period="1s")

        @reaction(tick, effects=out)
        def go(self) -> None:
            vars(self)["out"] = [1]  # as `self.out = [1]`, which type checkers refuse

    app = Program()
    app.add(Assigning())
    with pytest.raises(RunError, match=r"assigning.go \(.*\) has assigned to self.out, .* output; call self.out.set"):
        app.run(fast=True)


def test_a_reaction_takes_no_arguments() -> None:
    with pytest.raises(ProgramError, match="go is called with self only; get values from ports"):

        class Taking(Reactor):
            tick = Timer(period="1s")

            @reaction(tick)
            def go(self, image: object) -> None: ...


class Two(Reactor):
    first, second = Output[int](), Output[int]()
    tick = Timer()

    @reaction(tick, effects=first)
    def go(self) -> None:
        self.first.set(3)


class Sum(Reactor):
    a, b = Input[int](), Input[int]()
    sole = 0

    @reaction(a, uses=b)
    def note(self) -> None:
        self.sole = self.a.value
        self.b.value  # noqa: B018


def test_value_is_what_came_or_an_error() -> None:
    app = Program()
    two, both = app.add(Two()), app.add(Sum())
    app.connect(two.first, both.a)
    app.connect(two.second, both.b)
    with pytest.raises(LookupError, match="b has no value at this tag; check is_present"):
        app.run(fast=True)
    assert both.sole == 3


def test_what_connect_and_add_are_given_is_named() -> None:
    app = Program()
    two, both = app.add(Two()), app.add(Sum())
    given: Any = app
    with pytest.raises(ProgramError, match=r"connect: Two.first of the class is not an output"):
        given.connect(Two.first, both.a)
    with pytest.raises(ProgramError, match=r"connect: Sum.a is not an output"):
        given.connect(both.a, two.first)
    with pytest.raises(ProgramError, match=r"write add\(Two\(\)\)"):
        given.add(Two)
