"""Places the boxes and lines of a dataflow diagram: in layers, after Sugiyama, with lines along a grid.

Boxes stand in columns, so that connections without a delay lead to the right. Boxes of one group share a rectangle that
no other box enters. Lines leave a column for the channel beside it, run vertically there, each on its own track, and
cross further columns between boxes. Inputs, outputs and crossings are at different fractions of a row, so that lines
from different outputs never overlap.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

ROW = 18.0
GAP = 2 * ROW
"""Distance between boxes of a column."""
TITLE = ROW
"""Height of a group's title."""
MARGIN = ROW / 2
"""Distance between a group's border and its boxes, and minimum distance of a crossing line from a box."""
TRACK = 8.0
"""Distance between vertical lines."""
SWEEPS = 12


@dataclass
class Box:
    """A reactor. A port is given by its distance from the top."""

    name: str
    group: int
    width: float
    height: float
    inputs: dict[str, float]
    outputs: dict[str, float]
    column: int = 0
    x: float = 0.0
    y: float = 0.0


@dataclass(frozen=True)
class Line:
    """A connection between two ports, each given by its box's number and its name."""

    source: tuple[int, str]
    sink: tuple[int, str]
    delayed: bool
    label_width: float


@dataclass
class Group:
    """A rectangle around boxes."""

    members: list[int] = field(default_factory=list)
    x: float = 0.0
    y: float = 0.0
    width: float = 0.0
    height: float = 0.0


@dataclass
class Net:
    """All lines from one output. They share their common segments."""

    source: tuple[int, str]
    lines: list[int] = field(default_factory=list)
    crossings: dict[int, float] = field(default_factory=dict)
    """The position at which it crosses a column, by column."""
    tracks: dict[int, float] = field(default_factory=dict)
    """The position of its track in a channel, by channel."""


class Layout:
    """Places boxes. `routes` then has the corners of each line."""

    def __init__(self, boxes: Sequence[Box], lines: Sequence[Line], groups: int, titled: bool) -> None:
        self.boxes = boxes
        self.lines = lines
        self.title = TITLE if titled else 0.0
        self.groups = [Group() for _ in range(groups)]
        self.nets: dict[tuple[int, str], Net] = {}
        for number, line in enumerate(lines):
            self.nets.setdefault(line.source, Net(line.source)).lines.append(number)
        self._set_columns()
        self.columns = 1 + max((box.column for box in boxes), default=0)
        self._set_rows()
        self._set_crossings()
        self._set_tracks()
        self.routes = [self._route(self.nets[line.source], line) for line in lines]
        self._measure()

    # Columns

    def _set_columns(self) -> None:
        before: dict[int, set[int]] = defaultdict(set)
        direct: dict[int, set[int]] = defaultdict(set)
        for line in self.lines:
            (source, _), (sink, _) = line.source, line.sink
            if source != sink:
                before[sink].add(source)
                if not line.delayed:
                    direct[sink].add(source)
        left = dict.fromkeys(range(len(self.boxes)))
        while left:
            # In a cycle, a delayed connection leads back.
            number = next(
                (n for within in (before, direct) for n in left if not within[n] & left.keys()), next(iter(left))
            )
            earlier = before[number] - left.keys()
            self.boxes[number].column = 1 + max((self.boxes[n].column for n in earlier), default=-1)
            del left[number]

    # Rows

    def _set_rows(self) -> None:
        for number, box in enumerate(self.boxes):
            self.groups[box.group].members.append(number)
        order = [group for group in self.groups if group.members]
        best: tuple[float, list[float]] | None = None
        for _ in range(SWEEPS):
            self._stack(order)
            length = sum(abs(self._source_y(line) - self._sink_y(line)) for line in self.lines)
            if best is None or length < best[0]:
                best = length, [box.y for box in self.boxes]
            wanted = self._wanted()
            order.sort(key=lambda group: sum(wanted[n] for n in group.members) / len(group.members))
            for group in order:
                group.members.sort(key=lambda n: wanted[n])
        if best:
            for box, y in zip(self.boxes, best[1], strict=True):
                box.y = y

    def _stack(self, order: list[Group]) -> None:
        free = [0.0] * self.columns
        for group in order:
            columns = range(
                min(self.boxes[n].column for n in group.members), max(self.boxes[n].column for n in group.members) + 1
            )
            top = max(free[column] for column in columns)
            ends = dict.fromkeys(columns, top + self.title + (MARGIN if self.title else 0.0))
            bottom = top
            for number in group.members:
                box = self.boxes[number]
                box.y = ends[box.column]
                bottom = max(bottom, box.y + box.height)
                ends[box.column] += _rows(box.height) + GAP
            for column in columns:
                free[column] = _rows(bottom + (MARGIN if self.title else 0.0)) + GAP
        for box in self.boxes:
            box.y = _rows(box.y)

    def _wanted(self) -> list[float]:
        sums = [[0.0, 0] for _ in self.boxes]
        for line in self.lines:
            (source, _), (sink, _) = line.source, line.sink
            there = self._source_y(line) - self._sink_y(line)
            for number, shift in ((sink, there), (source, -there)):
                sums[number][0] += self.boxes[number].y + shift
                sums[number][1] += 1
        return [total / count if count else box.y for (total, count), box in zip(sums, self.boxes, strict=True)]

    def _source_y(self, line: Line) -> float:
        box = self.boxes[line.source[0]]
        return box.y + box.outputs[line.source[1]]

    def _sink_y(self, line: Line) -> float:
        box = self.boxes[line.sink[0]]
        return box.y + box.inputs[line.sink[1]]

    # Crossings of columns

    def _set_crossings(self) -> None:
        taken: dict[int, list[tuple[float, float]]] = defaultdict(list)
        for box in self.boxes:
            taken[box.column].append((box.y - MARGIN, box.y + box.height + MARGIN))
        if self.title:
            for group in filter(lambda group: group.members, self.groups):
                top = min(self.boxes[n].y for n in group.members) - MARGIN
                taken[min(self.boxes[n].column for n in group.members)].append((top - TITLE, top))
        used: dict[int, dict[float, Net]] = defaultdict(dict)
        for net in sorted(self.nets.values(), key=self._span):
            source = self.boxes[net.source[0]]
            ends = [self._sink_y(self.lines[n]) for n in net.lines]
            aim = sum(ends) / len(ends)
            for columns in self._crossed(net):
                y = source.y + source.outputs[net.source[1]]
                for column in columns:
                    near = [used[n].items() for n in (column - 1, column, column + 1)]
                    others = {y for crossings in near for y, other in crossings if other is not net}
                    y = _free(y, aim, taken[column], others)
                    net.crossings[column] = y
                    used[column][y] = net

    def _span(self, net: Net) -> tuple[int, float]:
        columns = [self.boxes[self.lines[n].sink[0]].column for n in net.lines]
        return max(columns) - min(columns), self._source_y(self.lines[net.lines[0]])

    def _crossed(self, net: Net) -> tuple[range, range]:
        """Returns the columns that the net crosses to the right and to the left, in order."""
        start = self.boxes[net.source[0]].column
        ends = [self.boxes[self.lines[n].sink[0]].column for n in net.lines]
        return range(start + 1, max(ends)), range(start, min(ends) - 1, -1)

    # Channels between columns

    def _set_tracks(self) -> None:
        turns: dict[int, dict[tuple[int, str], set[float]]] = defaultdict(lambda: defaultdict(set))
        labels = [0.0] * (self.columns + 1)
        for line in self.lines:
            labels[self.boxes[line.sink[0]].column] = max(labels[self.boxes[line.sink[0]].column], line.label_width)
            for channel, y_in, y_out in self._steps(self.nets[line.source], line):
                turns[channel][line.source] |= {y_in, y_out}
        x = 0.0
        for channel in range(self.columns + 1):
            x += GAP / 2
            ends: list[float] = []
            for source, ys in sorted(turns[channel].items(), key=lambda item: min(item[1])):
                if len(ys) == 1:
                    continue
                track = next((n for n, end in enumerate(ends) if end + TRACK < min(ys)), len(ends))
                ends[track : track + 1] = [max(ys)]
                self.nets[source].tracks[channel] = x + track * TRACK
            x += len(ends) * TRACK + labels[channel] + GAP / 2
            inside = [box for box in self.boxes if box.column == channel]
            width = max((box.width for box in inside), default=0.0)
            for box in inside:
                box.x, box.width = x, width
            x += width

    def _steps(self, net: Net, line: Line) -> Iterator[tuple[int, float, float]]:
        """Yields the channels through which a line runs, in order, with the heights at which it enters and leaves."""
        start, end = self.boxes[line.source[0]].column, self.boxes[line.sink[0]].column
        y = self._source_y(line)
        forth = end > start
        for channel in range(start + 1, end + 1) if forth else range(start + 1, end - 1, -1):
            column = channel if forth else channel - 1
            after = self._sink_y(line) if channel == end else net.crossings[column]
            yield channel, y, after
            y = after

    def _route(self, net: Net, line: Line) -> list[tuple[float, float]]:
        source, sink = self.boxes[line.source[0]], self.boxes[line.sink[0]]
        corners = [(source.x + source.width, self._source_y(line))]
        for channel, y_in, y_out in self._steps(net, line):
            if y_in != y_out:
                corners += [(net.tracks[channel], y_in), (net.tracks[channel], y_out)]
        corners.append((sink.x, self._sink_y(line)))
        return corners

    # The whole

    def _measure(self) -> None:
        for group in filter(lambda group: group.members, self.groups):
            inside = [self.boxes[n] for n in group.members]
            group.x = min(box.x for box in inside) - MARGIN
            group.y = min(box.y for box in inside) - MARGIN - self.title
            group.width = max(box.x + box.width for box in inside) + MARGIN - group.x
            group.height = max(box.y + box.height for box in inside) + MARGIN - group.y
        xs = [x for route in self.routes for x, _ in route] + [
            x for box in self.boxes for x in (box.x, box.x + box.width)
        ]
        ys = [y for route in self.routes for _, y in route]
        ys += [y for group in self.groups for y in (group.y, group.y + group.height) if group.members]
        self.left, self.top = min(xs) - MARGIN, min(ys) - MARGIN
        self.width, self.height = max(xs) + MARGIN - self.left, max(ys) + MARGIN - self.top


def _rows(y: float) -> float:
    """Rounds up to a whole row."""
    return -(-y // ROW) * ROW


def _free(start: float, aim: float, taken: list[tuple[float, float]], used: set[float]) -> float:
    """Returns the best height to cross a column: between boxes and lines, on the way from `start` to `aim`, near
    `start`."""
    # Crossings are a quarter of a row off the grid of ports.
    slots = len(taken) + 2 * len(used) + 2
    reach = sum(end - begin for begin, end in taken) + slots * ROW + abs(start - aim)
    first = round((start - reach) / (ROW / 2))
    candidates = ((n + 0.5) * ROW / 2 for n in range(first, first + round(4 * reach / ROW) + 2))
    open_ones = (y for y in candidates if y not in used and not any(begin < y < end for begin, end in taken))
    return min(open_ones, key=lambda y: (abs(y - start) + abs(y - aim), abs(y - start)))
