"""The dataflow of a program as SVG: reactors with their ports, timers, actions and reactions, and their federates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from coorp.reactor.build import full_name
from coorp.reactor.declare import Input, LogicalAction, Output, PhysicalAction, Reaction, Timer
from coorp.reactor.duration import shown
from coorp.reactor.layout import ROW, Box, Layout, Line

if TYPE_CHECKING:
    from coorp.reactor.build import Built
    from coorp.reactor.program import Added

CHARACTER = 0.61
"""Width of a character, as a share of the font size."""
TEXT_MAX = 44
"""Maximum length of a text; longer ones are cut."""
COLOURS = ("#1b5e8a", "#a3480f", "#2e7d32", "#8e2a6b", "#5d4a9c", "#7a6200", "#00727a", "#b0303c")
STYLE = """
text { font: 12px ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace; fill: #1c2126 }
.page { fill: #ffffff }
.name { font-weight: bold }
.small { font-size: 10px; fill: #5b6570 }
.group { fill: #eef2f6; stroke: #aab6c2 }
.box { fill: #ffffff; stroke: #48525c }
.rule { stroke: #d5dbe1 }
.line { fill: none; stroke-width: 1.4 }
.physical { stroke-dasharray: 5 3 }
.label { font-size: 10px }
.symbol { fill: #ffffff; stroke: #48525c }
.reaction { fill: #dbe6f0; stroke: #48525c }
"""


@dataclass(frozen=True)
class _Row:
    """A line of text in a box, after a symbol."""

    symbol: str
    text: str
    small: str = ""

    def width(self) -> float:
        return 26 + max(_width(self.text, 12), _width(self.small, 10)) + 8

    def height(self) -> float:
        return 1.5 * ROW if self.small else ROW


def drawn(built: Built) -> str:
    """Returns the diagram of a program."""
    added = list(built.program.added.values())
    rows = [list(_rows_of(one)) for one in added]
    boxes = [_box(one, rows[n], built.placement.of[one.name]) for n, one in enumerate(added)]
    numbers = {one.name: number for number, one in enumerate(added)}
    connections = built.program.connections
    lines = [
        Line(
            (numbers[connection.source._reactor._parts.name], connection.source._name),
            (numbers[connection.sink._reactor._parts.name], connection.sink._name),
            connection.after_ns > 0 or connection.physical,
            _width(_label(connection.after_ns, connection.physical), 10),
        )
        for connection in connections
    ]
    federates = built.placement.federates
    titled = len(federates) > 1
    layout = Layout(boxes, lines, len(federates), titled)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{layout.width:g}" height="{layout.height:g}" '
        f'viewBox="{layout.left:g} {layout.top:g} {layout.width:g} {layout.height:g}">',
        f"<style>{STYLE}</style>",
        _rectangle("page", layout.left, layout.top, layout.width, layout.height, 0),
    ]
    if titled:
        for name, group in zip(federates, layout.groups, strict=True):
            parts.append(_rectangle("group", group.x, group.y, group.width, group.height, 8))
            parts.append(_text("small", group.x + 8, group.y + 13, name))
    colours = {source: COLOURS[n % len(COLOURS)] for n, source in enumerate(layout.nets)}
    for line, connection, route in zip(lines, connections, layout.routes, strict=True):
        title = f"{full_name(connection.source)} to {full_name(connection.sink)}, {connection.where}"
        parts.append(_line(route, colours[line.source], connection.physical, title))
        label = _label(connection.after_ns, connection.physical)
        x, y = route[-1]
        parts.append(_text("label", x - 11, y - 3, label, "end"))
    for box, one, texts in zip(boxes, added, rows, strict=True):
        parts += _drawn_box(box, one, texts)
    return "\n".join([*filter(None, parts), "</svg>", ""])


def _label(after_ns: int, physical: bool) -> str:
    return " ".join(filter(None, ("physical" if physical else "", f"after {shown(after_ns)}" if after_ns else "")))


# Boxes


def _rows_of(added: Added) -> Iterator[_Row]:
    parts = added.reactor._parts.declared
    for name, part in parts.items():
        if isinstance(part, Timer):
            every = "once" if part.period_ns is None else f"every {shown(part.period_ns)}"
            yield _Row("timer", f"{name}: {every}" + (f", from {shown(part.offset_ns)}" if part.offset_ns else ""))
        elif isinstance(part, LogicalAction | PhysicalAction):
            kind = "logical" if isinstance(part, LogicalAction) else "physical"
            yield _Row(kind, f"{name}: {kind}" + (f", {shown(part.delay_min_ns)}" if part.delay_min_ns else ""))
    for number, reaction in enumerate(added.reactor._parts.reactions, 1):
        yield _Row(str(number), _cut(reaction.name + _deadline(reaction)), _cut(_flow(reaction), 10))


def _deadline(reaction: Reaction) -> str:
    return f" (in {shown(reaction.deadline_ns)}, or {reaction.late})" if reaction.deadline_ns is not None else ""


def _flow(reaction: Reaction) -> str:
    triggers = ", ".join(part.name for part in reaction.triggers)
    uses = "".join(f", ({part.name})" for part in reaction.uses)
    effects = ", ".join(part.name for part in reaction.effects)
    return f"{triggers}{uses}" + (f" \u2192 {effects}" if effects else "")


def _ports(added: Added, kind: type[Input] | type[Output]) -> list[str]:
    return [name for name, part in added.reactor._parts.declared.items() if isinstance(part, kind)]


def _box(added: Added, rows: list[_Row], group: int) -> Box:
    inputs, outputs = _ports(added, Input), _ports(added, Output)
    # The layout needs inputs and outputs half a row apart.
    begin = 2 * ROW
    widest = [max((_width(_cut(name), 12) for name in names), default=0.0) for names in (inputs, outputs)]
    width = max([_width(_cut(added.name), 12) + 20, _width(_cut(_class(added)), 10) + 20, sum(widest) + 44])
    width = max([width, *(row.width() for row in rows)])
    height = _rows_top(added) + sum(row.height() for row in rows) + ROW / 2
    return Box(
        added.name,
        group,
        width,
        height,
        {name: begin + (n + 0.5) * ROW for n, name in enumerate(inputs)},
        {name: begin + (n + 1) * ROW for n, name in enumerate(outputs)},
    )


def _rows_top(added: Added) -> float:
    ports = max(len(_ports(added, Input)), len(_ports(added, Output)) + 0.5 if _ports(added, Output) else 0)
    return 2 * ROW + ports * ROW + ROW / 2


def _class(added: Added) -> str:
    return type(added.reactor).__name__


def _drawn_box(box: Box, added: Added, rows: list[_Row]) -> Iterator[str]:
    yield f"<g><title>{escape(f'{added.name}: {_class(added)}, {added.where}')}</title>"
    yield _rectangle("box", box.x, box.y, box.width, box.height, 5)
    yield _text("name", box.x + box.width / 2, box.y + 15, _cut(added.name), "middle")
    yield _text("small", box.x + box.width / 2, box.y + 28, _cut(_class(added)), "middle")
    for name, y in box.inputs.items():
        yield _port(box.x, box.y + y)
        yield _text("", box.x + 9, box.y + y + 4, _cut(name))
    for name, y in box.outputs.items():
        yield _port(box.x + box.width, box.y + y)
        yield _text("", box.x + box.width - 9, box.y + y + 4, _cut(name), "end")
    y = box.y + _rows_top(added)
    if rows:
        yield f'<path class="rule" d="M{box.x + 6:g} {y - 2:g}h{box.width - 12:g}"/>'
    for row in rows:
        yield _symbol(row.symbol, box.x + 14, y + 9)
        yield _text("", box.x + 26, y + 13, row.text)
        yield _text("small", box.x + 26, y + 24, row.small)
        y += row.height()
    yield "</g>"


def _symbol(kind: str, x: float, y: float) -> str:
    if kind == "timer":
        return f'<circle class="symbol" cx="{x:g}" cy="{y:g}" r="5.5"/><path class="box" d="M{x:g} {y - 3.5:g}v3.5h3"/>'
    if kind in ("logical", "physical"):
        triangle = f'<path class="symbol" d="M{x:g} {y - 6:g}l6.5 11.5h-13z"/>'
        return triangle + f'<text class="small" x="{x:g}" y="{y + 4.5:g}" text-anchor="middle">{kind[0].upper()}</text>'
    chevron = f'<path class="reaction" d="M{x - 8:g} {y - 7:g}h11l5 7l-5 7h-11l4 -7z"/>'
    return chevron + f'<text class="small" x="{x + 1:g}" y="{y + 3.5:g}" text-anchor="middle">{kind}</text>'


def _port(x: float, y: float) -> str:
    return f'<rect class="symbol" x="{x - 3:g}" y="{y - 3:g}" width="6" height="6"/>'


# Shapes


def _line(route: list[tuple[float, float]], colour: str, physical: bool, title: str) -> str:
    (x, y), end = route[0], route[-1]
    path = [f"M{x + 3:g} {y:g}"]
    for (x0, y0), (x1, y1), (x2, y2) in zip(route, route[1:], route[2:], strict=False):
        # A round corner, with a radius of at most half the shorter side.
        radius = min(5.0, (abs(x1 - x0) + abs(y1 - y0)) / 2, (abs(x2 - x1) + abs(y2 - y1)) / 2)
        path.append(f"L{x1 - radius * _sign(x1 - x0):g} {y1 - radius * _sign(y1 - y0):g}")
        path.append(f"Q{x1:g} {y1:g} {x1 + radius * _sign(x2 - x1):g} {y1 + radius * _sign(y2 - y1):g}")
    path.append(f"L{end[0] - 7:g} {end[1]:g}")
    kind = "line physical" if physical else "line"
    arrow = f'<path d="M{end[0] - 3:g} {end[1]:g}l-7 -3.5v7z" fill="{colour}"/>'
    return f'<g><title>{escape(title)}</title><path class="{kind}" d="{"".join(path)}" stroke="{colour}"/>{arrow}</g>'


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)


def _rectangle(kind: str, x: float, y: float, width: float, height: float, radius: float) -> str:
    return f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius:g}"/>'


def _text(kind: str, x: float, y: float, text: str, anchor: str = "start") -> str:
    if not text:
        return ""
    named = f' class="{kind}"' if kind else ""
    return f'<text{named} x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(text)}</text>'


def _width(text: str, size: float) -> float:
    return len(text) * size * CHARACTER


def _cut(text: str, size: float = 12) -> str:
    longest = round(TEXT_MAX * 12 / size)
    return text if len(text) <= longest else text[: longest - 1] + "\u2026"
