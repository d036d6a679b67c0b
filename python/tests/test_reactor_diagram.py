"""The dataflow diagram: nothing overlaps, and everything is there."""

from __future__ import annotations

import itertools
import random
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from coorp.reactor import Input, LogicalAction, Output, Program, Reactor, Timer, reaction, shutdown
from coorp.reactor.layout import MARGIN, ROW, Box, Group, Layout, Line

Segment = tuple[float, float, float, float]


def some_layout(random: random.Random) -> Layout:
    count, groups = random.randint(1, 40), random.randint(1, 8)
    boxes: list[Box] = []
    for number in range(count):
        inputs, outputs = random.randint(0, 4), random.randint(0, 3)
        boxes.append(
            Box(
                f"r{number}",
                random.randrange(groups),
                random.randint(60, 300),
                3 * ROW + max(inputs, outputs) * ROW + random.randint(0, 60),
                {f"i{n}": (2.5 + n) * ROW for n in range(inputs)},
                {f"o{n}": (3 + n) * ROW for n in range(outputs)},
            )
        )
    sources = [(n, port) for n, box in enumerate(boxes) for port in box.outputs]
    lines = [
        Line(random.choice(sources), (n, port), random.random() < 0.3, random.choice((0.0, 60.0)))
        for n, box in enumerate(boxes)
        for port in box.inputs
        if sources
    ]
    return Layout(boxes, lines, groups, titled=groups > 1)


def apart(a: Box | Group, b: Box | Group) -> bool:
    return a.x + a.width <= b.x or b.x + b.width <= a.x or a.y + a.height <= b.y or b.y + b.height <= a.y


def segments(route: list[tuple[float, float]]) -> list[Segment]:
    return [(min(a, c), min(b, d), max(a, c), max(b, d)) for (a, b), (c, d) in itertools.pairwise(route)]


def on_each_other(a: Segment, b: Segment) -> bool:
    """Returns whether two segments share more than a point."""
    horizontal = a[1] == a[3] == b[1] == b[3] and min(a[2], b[2]) > max(a[0], b[0])
    return horizontal or (a[0] == a[2] == b[0] == b[2] and min(a[3], b[3]) > max(a[1], b[1]))


def through(segment: Segment, box: Box) -> bool:
    x0, y0, x1, y1 = segment
    return x1 > box.x and x0 < box.x + box.width and y1 > box.y and y0 < box.y + box.height


@pytest.mark.parametrize("seed", range(60))
def test_nothing_lies_on_anything_else(seed: int) -> None:
    layout = some_layout(random.Random(seed))
    for a, b in itertools.combinations(layout.boxes, 2):
        assert apart(a, b), (a, b)
    groups = [group for group in layout.groups if group.members]
    for a, b in itertools.combinations(groups, 2):
        assert apart(a, b), (a, b)
    for group in groups:
        inside = [box for box in layout.boxes if not apart(group, box)]
        assert {box.name for box in inside} == {f"r{n}" for n in group.members}
    drawn = [
        (line.source, segment)
        for line, route in zip(layout.lines, layout.routes, strict=True)
        for segment in segments(route)
    ]
    for _, segment in drawn:
        assert segment[0] == segment[2] or segment[1] == segment[3], "lines run along a grid"
        assert not any(through(segment, box) for box in layout.boxes)
        assert layout.left <= segment[0] and segment[2] <= layout.left + layout.width
        assert layout.top <= segment[1] and segment[3] <= layout.top + layout.height
    for (net_a, a), (net_b, b) in itertools.combinations(drawn, 2):
        assert net_a == net_b or not on_each_other(a, b), (net_a, a, net_b, b)


@pytest.mark.parametrize("seed", range(60))
def test_lines_begin_and_end_at_their_ports(seed: int) -> None:
    layout = some_layout(random.Random(seed))
    for line, route in zip(layout.lines, layout.routes, strict=True):
        (source, out), (sink, into) = line.source, line.sink
        a, b = layout.boxes[source], layout.boxes[sink]
        assert route[0] == (a.x + a.width, a.y + a.outputs[out])
        assert route[-1] == (b.x, b.y + b.inputs[into])
        # The label has its place before the port.
        if line.label_width:
            assert b.x - route[-2][0] >= line.label_width


def test_connections_without_a_delay_lead_to_the_right() -> None:
    boxes = [Box(name, 0, 100, 100, {"i": 45.0}, {"o": 54.0}) for name in "abc"]
    lines = [
        Line((0, "o"), (1, "i"), False, 0.0),
        Line((1, "o"), (2, "i"), False, 0.0),
        Line((2, "o"), (0, "i"), True, 0.0),
    ]
    layout = Layout(boxes, lines, 1, titled=False)
    assert [box.column for box in layout.boxes] == [0, 1, 2]
    assert boxes[1].y == boxes[0].y
    # The way back passes by all three.
    assert any(y > 100 + MARGIN or y < -MARGIN for _, y in layout.routes[2])


class Camera(Reactor):
    frame = Output()
    tick = Timer(period="33ms", offset="1ms")

    @reaction(tick, effects=frame)
    def grab(self) -> None: ...


class Fusion(Reactor):
    image, plan = Input(), Input()
    again = LogicalAction(delay_min="2ms")

    @reaction(image, uses=plan, effects=again, deadline="10ms", late="brake")
    def fuse(self) -> None: ...

    @reaction(again, shutdown)
    def end(self) -> None: ...

    def brake(self) -> None: ...


def texts(file: Path) -> list[str]:
    root = ElementTree.parse(file).getroot()
    return [element.text or "" for element in root.iter("{http://www.w3.org/2000/svg}text")]


def test_what_is_drawn(tmp_path: Path) -> None:
    app = Program()
    camera, fusion = app.add(Camera(), "left"), app.add(Fusion(), place="brain")
    app.connect(camera.frame, fusion.image, after="5ms")
    app.connect(camera.frame, fusion.plan, physical=True)
    file = tmp_path / "app.svg"
    app.diagram(file)
    found: Any = texts(file)
    for text in (
        "left",
        "Camera",
        "fusion",
        "main",
        "brain",
        "frame",
        "image",
        "tick: every 33 ms, from 1 ms",
        "again: logical, 2 ms",
        "fuse (in 10 ms, or brake)",
        "image, (plan) \u2192 again",
        "again, shutdown",
        "after 5 ms",
        "physical",
    ):
        assert found.count(text) == 1, text
    assert found.index("fuse (in 10 ms, or brake)") < found.index("end")
    app.diagram(file, place="one")
    assert "brain" not in texts(file)
