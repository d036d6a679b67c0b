"""Reads recordings of robots: their topics, and the classes that `coorp import` gives them.

An MCAP file, or a ROS 2 bag's folder of `.mcap` or `.db3` files. Left out: files that are compressed as a whole.
"""

from __future__ import annotations

import re
import sqlite3
import subprocess
import sys
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

WHOLE_BYTES = 60_000
"""Maximum size of one datagram."""
DISORDER_NS = 1_000_000_000
"""Maximum time by which a message may be earlier than one before it in the file."""


@dataclass(frozen=True)
class Topic:
    """One topic: its messages, their times, and their transport."""

    name: str
    control: bool
    """Whether the topic is control; otherwise it is bulk."""
    times_s: list[float] = field(repr=False)
    """The time of each message, from the beginning."""
    sizes: list[int] = field(repr=False)
    tcp: bool = False
    tos: int = 0
    piece_bytes: int = WHOLE_BYTES
    """Maximum size of one datagram."""


@dataclass
class _Seen:
    times_ns: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)


def read(program: Path, path: Path, span_s: float) -> list[Topic]:
    """Returns the topics of a recording's first seconds. As in `coorp import`, control goes as datagrams and bulk over
    TCP; topics that it leaves out are left out here too."""
    control = imported(program, path)
    seen: dict[tuple[str, str], _Seen] = {}
    began_ns, span_ns = None, int(span_s * 1e9)
    for file in _files(path):
        with closing(_messages(file)) as messages:
            for topic, schema, at_ns, size in messages:
                began_ns = at_ns if began_ns is None else began_ns
                if at_ns > began_ns + span_ns + DISORDER_NS:
                    break
                if at_ns <= began_ns + span_ns:
                    here = seen.setdefault((topic, schema), _Seen())
                    here.times_ns.append(at_ns)
                    here.sizes.append(size)
    topics = []
    for (name, schema), found in sorted(seen.items()):
        is_control = control.get(_titled(name, schema))
        order = sorted(zip(found.times_ns, found.sizes, strict=True))
        if is_control is None or began_ns is None:
            continue
        times_s = [max(0.0, (at_ns - began_ns) * 1e-9) for at_ns, _ in order]
        topics.append(Topic(name, is_control, times_s, [size for _, size in order], tcp=not is_control))
    return topics


def imported(program: Path, path: Path) -> dict[str, bool]:
    """Returns, by title, whether `coorp import` takes a topic for control."""
    done = subprocess.run([str(program), "import", str(path)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(done.stderr.strip())
    # In the team file, topics outside all robots' namespaces are comments.
    lines = [line.removeprefix("# ") for line in done.stdout.splitlines()]
    places = [place for place, line in enumerate(lines) if line == "[[flow]]"]
    ends = [*places[1:], len(lines)]
    return {lines[place - 2]: 'ac = "AC_VO"' in lines[place:end] for place, end in zip(places, ends, strict=True)}


def _titled(topic: str, schema: str) -> str:
    return f"{topic} ({schema})" if schema else topic


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    found = [file for file in path.iterdir() if file.suffix in (".mcap", ".db3")]
    if not found:
        sys.exit(f"{path} contains no .mcap or .db3 file; give an MCAP file or the folder of a ROS 2 bag")
    return sorted(found, key=lambda file: [int(part) for part in re.findall(r"\d+", file.stem)[-1:]])


def _messages(file: Path) -> Generator[tuple[str, str, int, int]]:
    """Yields topic, type, time and size of the messages, roughly in the order of their times."""
    if file.suffix == ".db3":
        query = (
            "SELECT name, type, timestamp, length(data) FROM messages JOIN topics ON topics.id = topic_id "
            "ORDER BY timestamp"
        )
        with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as bag:
            yield from bag.execute(query)
        return
    # Needed only for recordings.
    from mcap.exceptions import McapError
    from mcap.reader import NonSeekingReader

    with file.open("rb") as stream:
        try:
            # Because the other reader relies on the file's end, which a crash may have cut off.
            for schema, channel, message in NonSeekingReader(stream).iter_messages(log_time_order=False):
                yield channel.topic, schema.name if schema else "", message.log_time, len(message.data)
        except McapError as error:
            print(f"{file} is damaged, and used only up to the damage: {error}")
