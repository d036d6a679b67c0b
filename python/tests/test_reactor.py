"""Declarations, checks with the user's line, and placements of coorp.reactor. Nothing here runs a program."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, Union

import numpy as np
import numpy.typing as npt
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
from coorp.reactor.build import build
from coorp.reactor.duration import nanoseconds
from coorp.reactor.place import Placement, placed
from coorp.reactor.port_types import fits

HERE = Path(__file__)


def line_of(mark: str) -> int:
    """Returns the line of this file that ends with the comment `# mark`."""
    return next(n for n, line in enumerate(HERE.read_text().splitlines(), 1) if line.endswith(f"# {mark}"))


def refused(do: Callable[[], object]) -> list[tuple[int, str]]:
    """Returns the problems that `do` raises: lines of this file and texts."""
    with pytest.raises(ProgramError) as caught:
        do()
    shape = re.compile(rf"^(?:\S*{HERE.name}):(\d+): (.*?)(?=^\S*{HERE.name}:\d+: |\Z)", re.M | re.S)
    found = [(int(line), text.strip()) for line, text in shape.findall(str(caught.value))]
    assert found, str(caught.value)
    return found


class Camera(Reactor):
    frame = Output[np.ndarray]()  # camera frame
    tick = Timer(period="33ms", offset=timedelta(milliseconds=1))

    @reaction(tick, effects=frame)
    def grab(self) -> None:
        self.frame.set(np.zeros(3))


class Viewer(Reactor):
    image = Input[np.ndarray]()  # viewer image

    @reaction(image)
    def show(self) -> None:
        assert self.image.get() is not None


class Fusion(Reactor):
    plan, boxes, command = Input(), Input(), Output()

    @reaction(plan, boxes, effects=command, deadline="10ms", late="brake")
    def fuse(self) -> None: ...

    def brake(self) -> None: ...


class Echo(Reactor):
    i, o = Input(), Output()

    @reaction(i, effects=o)
    def pass_on(self) -> None: ...  # echo body


# Declarations


def test_ports_belong_to_their_instance() -> None:
    a, b = Camera(), Camera()
    assert a.frame is a.frame
    assert a.frame is not b.frame
    assert Camera.frame is not a.frame
    assert repr(a.frame) == "<OutputPort Camera.frame>"


def test_a_program_is_flattened() -> None:
    import json

    app = Program()
    camera, fusion = app.add(Camera()), app.add(Fusion(), name="brain")
    app.connect(camera.frame, fusion.plan, after="5ms")
    app.connect(camera.frame, fusion.boxes, physical=True)
    built = build(app)
    assert json.loads(built.text) == {
        "federates": ["main"],
        "reactors": [
            {
                "name": "camera",
                "federate": 0,
                "inputs": [],
                "outputs": ["frame"],
                "timers": [{"name": "tick", "offset": 1_000_000, "period": 33_000_000}],
                "actions": [],
                "reactions": [
                    {
                        "name": "grab",
                        "triggers": [{"Element": "tick"}],
                        "sources": [],
                        "effects": ["frame"],
                        "deadline": None,
                    }
                ],
            },
            {
                "name": "brain",
                "federate": 0,
                "inputs": ["plan", "boxes"],
                "outputs": ["command"],
                "timers": [],
                "actions": [],
                "reactions": [
                    {
                        "name": "fuse",
                        "triggers": [{"Element": "plan"}, {"Element": "boxes"}],
                        "sources": [],
                        "effects": ["command"],
                        "deadline": 10_000_000,
                    }
                ],
            },
        ],
        "connections": [
            {"from": "camera.frame", "to": "brain.plan", "after": 5_000_000, "physical": False},
            {"from": "camera.frame", "to": "brain.boxes", "after": 0, "physical": True},
        ],
    }


def test_subclasses_inherit_declarations() -> None:
    class Base(Reactor):
        a = Output()
        go = LogicalAction(delay_min="1ms")
        came = PhysicalAction()

        @reaction(startup, effects=(a, go))
        def first(self) -> str:
            return "base"

        @reaction(go, came)
        def second(self) -> None: ...

    class Derived(Base):
        b = Output()

        def first(self) -> str:
            return "derived"

        @reaction(shutdown, uses=Base.go, effects=[Base.a, b])
        def last(self) -> None: ...

    app = Program()
    app.add(Derived())
    app.check()
    parts = app.added["derived"].reactor._parts
    assert [part.name for part in parts.reactions] == ["first", "second", "last"]
    assert list(parts.bound) == ["a", "go", "came", "b"]
    assert Derived().first() == "derived"
    assert Base().first() == "base"


def test_names_of_reactors() -> None:
    class RGBCamera2(Reactor): ...

    app = Program()
    for _ in range(3):
        app.add(RGBCamera2())
    app.add(Camera(), name="rgb")
    assert list(app.added) == ["rgb_camera2", "rgb_camera2_2", "rgb_camera2_3", "rgb"]


def test_an_optional_input_may_stay_unconnected() -> None:
    class Careful(Reactor):
        needed, hint = Input(), Input(optional=True)

        @reaction(needed, uses=hint)
        def both(self) -> None: ...

        @reaction(hint)
        def alone(self) -> None: ...

    app = Program()
    camera, careful = app.add(Camera()), app.add(Careful())
    app.connect(camera.frame, careful.needed)
    built = build(app)
    assert built.loose == {"careful.hint"}
    assert built.graph.reaction("careful.both") == 1
    with pytest.raises(KeyError):
        built.graph.reaction("careful.alone")


# Use outside a reaction


def test_ports_are_for_reactions() -> None:
    camera, viewer = Camera(), Viewer()
    with pytest.raises(UndeclaredError, match="frame can be set only by a reaction"):
        camera.frame.set(np.zeros(1))
    with pytest.raises(UndeclaredError, match="image can be read only by a reaction"):
        viewer.image.get()
    with pytest.raises(RuntimeError, match=r"Program\.stop"):
        camera.stop()
    with pytest.raises(RuntimeError, match="not running"):
        Program().stop()


# Checks, with the line of the user's file


def test_unconnected_inputs() -> None:
    app = Program()
    app.add(Viewer(), "left")  # unconnected
    ((line, text),) = refused(app.check)
    assert line == line_of("unconnected")
    assert text.startswith("left.image (")
    assert f":{line_of('viewer image')}) is not connected" in text


def test_double_connections() -> None:
    app = Program()
    a, b, viewer = app.add(Camera()), app.add(Camera()), app.add(Viewer())
    app.connect(a.frame, viewer.image)  # first of two
    app.connect(b.frame, viewer.image)  # second of two
    ((line, text),) = refused(app.check)
    assert line == line_of("second of two")
    assert text.startswith("viewer.image is already connected to camera.frame (")
    assert f":{line_of('first of two')})" in text


def test_wrong_types() -> None:
    class Words(Reactor):
        text: Input[str] = Input()  # words text

        @reaction(text)
        def read(self) -> None: ...

    app = Program()
    camera, words = app.add(Camera()), app.add(Words())
    app.connect(camera.frame, words.text)  # type: ignore # wrong types
    ((line, text),) = refused(app.check)
    assert line == line_of("wrong types")
    assert "camera.frame sends numpy.ndarray (" in text
    assert "words.text takes str (" in text
    assert f":{line_of('words text')})" in text


def test_a_causality_cycle_is_shown() -> None:
    app = Program()
    a, b = app.add(Echo(), "a"), app.add(Echo(), "b")
    app.connect(a.o, b.i)  # there
    app.connect(b.o, a.i)  # and back
    ((line, text),) = refused(app.check)
    assert line in (line_of("there"), line_of("and back"))
    steps = text.splitlines()[1:]
    assert len(steps) == 7
    for name in ("a.pass_on", "a.o", "b.i", "b.pass_on", "b.o", "a.i"):
        assert any(f"{name} (" in step for step in steps)
    assert sum(f"connected at {HERE.name}" in step or f"/{HERE.name}:" in step for step in steps) == 7
    assert f":{line_of('there')}" in text
    assert f":{line_of('and back')}" in text
    assert f":{line_of('echo body') - 1}" in text


def test_what_a_reaction_names() -> None:
    class Other(Reactor):
        port = Output()

    class Wrong(Reactor):
        tick, early = Timer(period="1s"), Output()
        b = c = Output()  # two names
        time = Input(optional=True)  # type: ignore # hides

        @reaction(tick, effects=Other.port)  # foreign
        def foreign(self) -> None: ...

        @reaction(tick, effects=Output())  # nameless
        def nameless(self) -> None: ...

        @reaction(tick, tick)  # twice
        def twice(self) -> None: ...

        @reaction(tick, deadline="1ms")  # no handler
        def hurried(self) -> None: ...

        @reaction(tick, late="brake")  # no deadline
        def relaxed(self) -> None: ...

        @reaction(tick, deadline="1ms", late="braek")  # no method
        def misspelt(self) -> None: ...

        def brake(self) -> None: ...

    app = Program()
    app.add(Wrong())
    app.add(Wrong())
    found = refused(app.check)
    expected = [
        ("two names", "Wrong.b is also c"),
        ("hides", "Wrong.time hides Reactor.time"),
        ("foreign", "Wrong.foreign: its effect Other.port ("),
        ("nameless", "Wrong.nameless: its effect output is not an attribute of the class"),
        ("twice", "Wrong.twice: tick is listed twice"),
        ("no handler", "Wrong.hurried has a deadline and nothing to run"),
        ("no deadline", "Wrong.relaxed has late='brake' but no deadline"),
        ("no method", "Wrong.misspelt: Wrong has no method 'braek'; did you mean 'brake'?"),
    ]
    assert [line for line, _ in found] == [line_of(mark) for mark, _ in expected]
    for (_, text), (_, start) in zip(found, expected, strict=True):
        assert text.startswith(start)


def test_what_is_refused_at_once() -> None:
    app = Program()
    camera, viewer = app.add(Camera()), app.add(Viewer())
    given: Any = viewer.image
    for do, text in [
        (lambda: Timer(period="33"), "period: '33' has no unit"),
        (lambda: Timer(period="0ms"), "period is zero"),
        (lambda: LogicalAction(delay_min=5), "delay_min: 5 is not a duration"),  # type: ignore
        (lambda: reaction(), "nothing triggers this reaction"),
        (lambda: reaction(startup, effects="frame"), "effects: 'frame' is not allowed here; use outputs and actions"),  # type: ignore
        (lambda: reaction(Camera.frame), "trigger: the Output is not allowed here; use an input"),  # type: ignore
        (lambda: reaction(startup, deadline="1 day"), "deadline: unknown unit 'day'"),
        (lambda: reaction(startup)(len), "@reaction is for plain methods"),
        (lambda: app.add(Camera), "add: <class"),  # type: ignore
        (lambda: app.add(camera), "add: this reactor was already added, as camera"),
        (lambda: app.add(Camera(), name="camera"), "add: camera is the name of the reactor added at"),
        (lambda: app.add(Camera(), name="a b"), "add: 'a b' is not a name"),
        (lambda: app.add(Camera(), place="a.b"), "add: 'a.b' is not a place"),
        (lambda: app.connect(given, camera.frame), "connect: Viewer.image is not an output"),  # type: ignore
        (lambda: app.connect(camera.frame, viewer.image, after="soon"), "connect: after: 'soon' is not a duration"),
        (lambda: app.run(coordination="best"), "run: coordination='best' is unknown"),  # type: ignore
    ]:
        ((line, found),) = refused(do)
        assert found.startswith(text)
        assert line == do.__code__.co_firstlineno


def test_a_reaction_that_hides_another() -> None:
    def twice() -> None:
        class Twice(Reactor):
            tick = Timer(period="1s")

            @reaction(tick)  # first of its name
            def go(self) -> None: ...  # type: ignore

            @reaction(tick)  # second of its name
            def go(self) -> None: ...  # type: ignore  # noqa: F811

    ((line, text),) = refused(twice)
    assert line == line_of("second of its name")
    assert text.startswith("go is already declared at ")
    assert f":{line_of('first of its name')};" in text


def test_reactors_of_elsewhere() -> None:
    other = Program()
    foreign, loose = other.add(Camera()), Camera()
    app = Program()
    a, b = app.add(Viewer()), app.add(Viewer())
    app.connect(foreign.frame, a.image)  # foreign camera
    app.connect(loose.frame, b.image)  # loose camera
    found = refused(app.check)
    assert [line for line, _ in found] == [line_of("foreign camera"), line_of("loose camera")]
    assert found[0][1] == "the reactor of Camera.frame belongs to another program"
    assert found[1][1] == "the reactor of Camera.frame is not in the program; add it first"


def test_a_replaced_port() -> None:
    class Careless(Reactor):
        out = Output()  # replaced

        def __init__(self) -> None:
            self.out = 3  # type: ignore

    app = Program()
    app.add(Careless())
    assert refused(app.check) == [
        (line_of("replaced"), "an attribute of careless has replaced its output out; rename the attribute")
    ]


def test_an_empty_program() -> None:
    app = Program()  # empty
    assert refused(app.check) == [(line_of("empty"), "the program has no reactors; add some")]


# Types


@pytest.mark.parametrize(
    ("given", "wanted", "ok"),
    [
        (int, int, True),
        (bool, int, True),
        (int, bool, False),
        (int, float, True),
        (float, int, False),
        (Any, str, True),
        (str, Any, True),
        (str, object, True),
        (np.ndarray, str, False),
        (npt.NDArray[np.uint8], np.ndarray, True),
        (npt.NDArray[np.uint8], npt.NDArray[np.uint8], True),
        (npt.NDArray[np.uint8], npt.NDArray[np.float32], False),
        (list[int], list[str], False),
        (list[int], list, True),
        (dict[str, int], dict[str, float], True),
        (int, int | None, True),
        (int | None, int, False),
        (Union[int, str], int | str | None, True),  # noqa: UP007
        (Literal["a"], str, True),
        (str, Literal["a"], False),
        (Literal["a"], Literal["a", "b"], True),
    ],
)
def test_which_types_fit(given: object, wanted: object, ok: bool) -> None:
    assert fits(given, wanted) is ok


class Message: ...


class Later(Reactor):
    out: Output[Message] = Output()
    also = Output["Message"]()
    into: Input[OnlyForCheckers] = Input(optional=True)  # type: ignore  # noqa: F821


def test_types_that_are_text() -> None:
    from coorp.reactor.port_types import declared_type

    assert declared_type(Later.out) is Message
    assert declared_type(Later.also) is Message
    assert declared_type(Later.into) is Any


# Durations


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("33ms", 33_000_000),
        ("0.1 s", 10**8),
        (" 16.7ms", 16_700_000),
        ("2min", 12 * 10**10),
        ("5µs", 5_000),
        ("0ns", 0),
    ],
)
def test_durations_are_exact(text: str, ns: int) -> None:
    assert nanoseconds(text) == ns


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("5", "has no unit"),
        ("-5ms", "is not a duration"),
        ("1e3ms", "unknown unit"),
        ("0.1ns", "finer than a nanosecond"),
        ("99999999999s", "too large"),
        (timedelta(seconds=-1), "negative"),
        ("", "is not a duration"),
    ],
)
def test_bad_durations(given: str | timedelta, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        nanoseconds(given)


# Placements


@pytest.fixture
def team() -> Program:
    app = Program()
    for name, place in (("cam", "vision"), ("detector", "vision"), ("fusion", None)):
        app.add(Reactor(), name, place)
    return app


def test_placements(team: Program, tmp_path: Path) -> None:
    assert placed(team, None) == Placement(("vision", "main"), {"cam": 0, "detector": 0, "fusion": 1})
    assert placed(team, "one") == Placement(("main",), {"cam": 0, "detector": 0, "fusion": 0})
    assert placed(team, "processes").federates == ("cam", "detector", "fusion")
    file = tmp_path / "robots.toml"
    file.write_text('drive = ["fusion"]\nvision = [\n  "cam",\n  "detector",\n]\n')
    assert placed(team, file) == Placement(("drive", "vision"), {"fusion": 0, "cam": 1, "detector": 1})
    file.write_text('[scout]\neyes = ["cam"]\nvision = ["detector"]\n[base]\neyes = ["fusion"]\n')
    assert placed(team, file) == Placement(
        ("scout.eyes", "scout.vision", "base.eyes"),
        {"cam": 0, "detector": 1, "fusion": 2},
        ("scout", "scout", "base"),
    )


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        (
            'a = ["cam",\n "detecter", "fusion"]\n',
            ["2: the program has no reactor 'detecter'; did you mean 'detector'?"],
        ),
        ('a = ["cam", "detector"]\nb = ["cam", "fusion"]\n', ["2: cam is already placed, in line 1"]),
        ('a = ["cam", "detector"]\nb = []\n', ["2: b has no reactors; name some or remove it"]),
        ('a = "cam"\n', ["1: a is not an array; write the names of reactors"]),
        ("a = [1]\n", ["1: not a name in quotes"]),
        ('"a b" = ["cam", "detector", "fusion"]\n', ["1: 'a b' is not the name of a process"]),
        ('a = ["cam"]\n[r]\nb = ["detector", "fusion"]\n', ["1: a is outside of all robots; move it"]),
        ("[r]\n", ["1: r has no processes"]),
        ('[r]\n[r.s]\nb = ["cam"]\n', ["2: s is not an array"]),
        ('a = ["cam"\n', ["1: unclosed array"]),
    ],
)
def test_bad_placements(team: Program, tmp_path: Path, text: str, problems: list[str]) -> None:
    file = tmp_path / "robots.toml"
    file.write_text(text)
    with pytest.raises(ProgramError) as caught:
        placed(team, file)
    lines = [line.rpartition("robots.toml:")[2] for line in str(caught.value).splitlines()]
    assert len(lines) == len(problems), lines
    for found, expected in zip(lines, problems, strict=True):
        assert found.startswith(expected)


def test_a_reactor_without_a_place(team: Program, tmp_path: Path) -> None:
    file = tmp_path / "robots.toml"
    file.write_text('a = ["cam", "detector"]\n')
    with pytest.raises(ProgramError, match=r"robots\.toml:1: fusion \(.*\) is not placed; add it to a process"):
        placed(team, file)
    with pytest.raises(ProgramError, match=r'No such file or directory; use "one", "processes" or'):
        placed(team, tmp_path / "none.toml")
