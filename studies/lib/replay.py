"""Replays topics as live packets, for `coorp emu`: the first robot sends, and the leader receives.

`replay` runs on every robot of the team, as a part of the study that made the `Plan` in the shared folder. Each topic
has a port: datagrams, in several pieces if they are large, or one TCP connection that carries one message after
another. On a busy channel, the second robot sends the leader as much as possible over TCP. `Outcome` reads the results.
All times are the machine's Unix time, in ns, as in the agents' log.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import selectors
import socket
import struct
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from lib.peers import Part, sleep_until
from lib.recordings import Topic

PORT, BULK_PORT = 21_000, 20_999
NUMBER = struct.Struct("=I")
UDP_FITS_BYTES = 1_500 - 28
"""Maximum size of a datagram that IP does not fragment."""
PATIENCE_S = 1.0
"""Time for which the leader waits for messages after the last one was sent."""
PIECE_BYTES, RECEIVE_BYTES = 64 << 10, 256 << 10
_PLAN = "plan"


@dataclass(frozen=True)
class Plan:
    """The topics that a run sends."""

    topics: list[Topic]
    span_s: float
    busy: bool

    def write(self, folder: Path) -> None:
        """Writes the plan into the folder, in which the robots find it."""
        (folder / _PLAN).write_text(json.dumps(asdict(self)))

    @staticmethod
    def read(folder: Path) -> Plan:
        """Reads the plan in a folder."""
        plan = json.loads((folder / _PLAN).read_text())
        return Plan([Topic(**topic) for topic in plan["topics"]], plan["span_s"], plan["busy"])


@dataclass(frozen=True)
class Outcome:
    """The results of a topic."""

    due_ns: list[int]
    """The times at which the sent messages were due."""
    sent_ns: list[int]
    came_ns: dict[int, int]
    """The time at which each message had arrived completely, by number."""

    @staticmethod
    def read(folder: Path, place: int) -> Outcome:
        """Reads the outcome of a plan's topic."""
        due_ns, sent_ns = json.loads(_sent(folder, place).read_text())
        return Outcome(due_ns, sent_ns, dict(json.loads(_came(folder, place).read_text())))


def _sent(folder: Path, place: int) -> Path:
    return folder / f"sent-{place}.json"


def _came(folder: Path, place: int) -> Path:
    return folder / f"came-{place}.json"


def replay(folder: Path) -> None:
    """Runs this robot's part."""
    plan = Plan.read(folder)
    part = Part.here(plan.span_s, folder, bulk=plan.busy)
    if part.leads:
        _receive(plan, part)
    elif part.place == 0:
        _send(plan, part)
    else:
        _load(part)


def _prompt() -> None:
    """Gives this process priority over other programs, to keep recorded times."""
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))


def _together(works: list[multiprocessing.Process]) -> None:
    for work in works:
        work.start()
    for work in works:
        work.join()
    if any(work.exitcode for work in works):
        raise SystemExit(1)


# --- the sender ---------------------------------------------------------------------------------------------------


def _connected(leader: str, port: int, tos: int = 0) -> socket.socket:
    while True:
        own = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        own.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, tos)
        own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if own.connect_ex((leader, port)) == 0:
            return own
        own.close()
        time.sleep(0.05)


class _Way:
    """A topic's way to the leader."""

    def __init__(self, topic: Topic, leader: str, place: int) -> None:
        self.topic, self.place, self.to = topic, place, (socket.gethostbyname(leader), PORT + place)
        self.buffer = bytearray(max(topic.sizes, default=0) + NUMBER.size)
        self.due_ns: list[int] = []
        self.sent_ns: list[int] = []
        if topic.tcp:
            self.own = _connected(leader, PORT + place, topic.tos)
        else:
            # Not connected, so that no ICMP error ends it.
            self.own = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            self.own.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, topic.tos)

    def is_light(self) -> bool:
        """Returns whether each message is one packet, which takes no time to send."""
        return not self.topic.tcp and max(self.topic.sizes, default=0) <= UDP_FITS_BYTES

    def send(self, number: int, due_ns: int, until: float) -> None:
        """Sends a message; gives up at `until`."""
        size = max(self.topic.sizes[number], NUMBER.size)
        NUMBER.pack_into(self.buffer, 0, number)
        message = memoryview(self.buffer)[:size]
        self.due_ns.append(due_ns)
        self.sent_ns.append(time.time_ns())
        if not self.topic.tcp:
            for begin in range(0, size, self.topic.piece_bytes):
                # At the end of a message, the piece may reach into the buffer's margin.
                NUMBER.pack_into(self.buffer, begin, number)
                self.own.sendto(message[begin : begin + self.topic.piece_bytes], self.to)
            return
        while message and (left := until - time.monotonic()) > 0.0:
            self.own.settimeout(left)
            with contextlib.suppress(TimeoutError):
                message = message[self.own.send(message[:PIECE_BYTES]) :]

    def write(self, folder: Path) -> None:
        _sent(folder, self.place).write_text(json.dumps([self.due_ns, self.sent_ns]))


def _send(plan: Plan, part: Part) -> None:
    ways = [_Way(topic, part.leader, place) for place, topic in enumerate(plan.topics)]
    light = [way for way in ways if way.is_light()]
    groups = [light, *([way] for way in ways if not way.is_light())]
    part.meet()
    works = [multiprocessing.Process(target=_send_together, args=(group, part)) for group in groups if group]
    _together(works)


def _send_together(ways: Sequence[_Way], part: Part) -> None:
    if ways[0].is_light() or ways[0].topic.control:
        _prompt()
    unix_s = time.time() - time.monotonic()
    order = sorted((at, which, number) for which, way in enumerate(ways) for number, at in enumerate(way.topic.times_s))
    for at, which, number in order:
        due = part.begin + at
        sleep_until(due)
        if time.monotonic() >= part.end:
            break
        ways[which].send(number, int((unix_s + due) * 1e9), part.end)
    for way in ways:
        way.write(part.folder)


def _load(part: Part) -> None:
    if not part.bulk:
        part.meet()
        return
    own, piece = _connected(part.leader, BULK_PORT), bytes(PIECE_BYTES)
    part.meet()
    while (left := part.end - time.monotonic()) > 0.0:
        own.settimeout(left)
        with contextlib.suppress(TimeoutError):
            own.send(piece)


# --- the receiver -------------------------------------------------------------------------------------------------


def _receive(plan: Plan, part: Part) -> None:
    ends = [_End(place, topic, _bound(PORT + place, tcp=topic.tcp)) for place, topic in enumerate(plan.topics)]
    load = _bound(BULK_PORT, tcp=True)
    part.meet()
    # Bulk must not keep control waiting here.
    groups = [[end for end in ends if end.topic.control is control] for control in (True, False)]
    works = [multiprocessing.Process(target=_take, args=(group, part)) for group in groups if group]
    if part.bulk:
        works.append(multiprocessing.Process(target=_drain, args=(load, part)))
    _together(works)


def _bound(port: int, *, tcp: bool) -> socket.socket:
    own = socket.socket(socket.AF_INET, socket.SOCK_STREAM if tcp else socket.SOCK_DGRAM)
    own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    own.bind(("", port))
    if tcp:
        own.listen()
    return own


class _End:
    """A topic's end at the leader."""

    def __init__(self, place: int, topic: Topic, own: socket.socket) -> None:
        self.place, self.topic, self.own = place, topic, own
        self.came_ns: dict[int, int] = {}
        self._pieces: Counter[int] = Counter()
        self._got_bytes = 0

    def accept(self) -> None:
        """Accepts the connection, if the topic needs one."""
        if self.topic.tcp:
            self.own, _ = self.own.accept()

    def take(self) -> bool:
        """Takes the data that is there, and notes which messages are now complete. Returns whether more may come."""
        data, now_ns = self.own.recv(RECEIVE_BYTES), time.time_ns()
        sizes = self.topic.sizes
        if not self.topic.tcp:
            (number,) = NUMBER.unpack_from(data.ljust(NUMBER.size, b"\0"))
            self._pieces[number] += 1
            if self._pieces[number] * self.topic.piece_bytes >= sizes[number]:
                self.came_ns[number] = now_ns
            return True
        self._got_bytes += len(data)
        while (number := len(self.came_ns)) < len(sizes):
            size = max(sizes[number], NUMBER.size)
            if self._got_bytes < size:
                break
            self._got_bytes -= size
            self.came_ns[number] = now_ns
        return bool(data)


def _take(ends: Sequence[_End], part: Part) -> None:
    """Receives topics, control or not."""
    if ends[0].topic.control:
        _prompt()
    with selectors.DefaultSelector() as ready:
        for end in ends:
            end.accept()
            ready.register(end.own, selectors.EVENT_READ, end)
        while (left := part.end + PATIENCE_S - time.monotonic()) > 0.0:
            for key, _ in ready.select(left):
                if not key.data.take():
                    ready.unregister(key.fileobj)
    for end in ends:
        _came(part.folder, end.place).write_text(json.dumps(list(end.came_ns.items())))


def _drain(own: socket.socket, part: Part) -> None:
    """Receives the load from the other robot."""
    own, _ = own.accept()
    while (left := part.end + PATIENCE_S - time.monotonic()) > 0.0:
        own.settimeout(left)
        with contextlib.suppress(TimeoutError):
            if not own.recv(RECEIVE_BYTES):
                return
