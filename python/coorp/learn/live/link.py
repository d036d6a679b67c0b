"""The world of a live run, and how robots reach it: they see it and drive in it without any radio.

One process runs the environment, on the monotonic clock that all processes share. The robots' processes ask it over a
Unix socket, which passes between network namespaces, so nothing of this goes over the emulated air. A perception is the
state of the world when the world reads the request, and a velocity applies from when the world reads it. Both take some
tenths of a millisecond.

A robot's first message is its number. The messages after that begin with a letter:

- B, the time at which the run begins. Until then, the world stands still.
- P and a robot's number: what this robot perceives now. The answer says whether the run goes on, then the perception.
- V, two numbers: this robot's speed and turn from now on.
- E: an epoch has ended, at the leader.
"""

from __future__ import annotations

import contextlib
import math
import os
import selectors
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from coorp.envs.navigation import SIDE
from coorp.learn.inference import Floats, Perception
from coorp.learn.outcome import History
from coorp.learn.world import NS, World

LOOK_EVERY_S = 0.1
"""Maximum time between two looks at the clock and the robots."""
FRAMES_S, FRAMES_HZ = 12, 10
REALTIME = 1
"""The lowest real-time priority, that of the robots' control."""

_ROBOT = struct.Struct("<H")
_BEGINS = struct.Struct("<cQ")
_ASKS = struct.Struct("<cH")
_DRIVES = struct.Struct("<c2d")
_HEAD = struct.Struct("<dII")
"""Of a perception: reward, endings, and how many numbers its vector has."""
_IMAGE = (SIDE, SIDE, 3)
_MESSAGE_BYTES, _ANSWER_BYTES = 64, 1 << 16
"""More than any message to the world has, and any answer."""


def packed(perception: Perception) -> bytes:
    """Returns a perception as bytes, without its number."""
    head = _HEAD.pack(perception.reward, perception.endings, len(perception.vector))
    return head + perception.vector.tobytes() + perception.image.tobytes()


def unpacked(tick: int, content: bytes) -> Perception:
    """Returns a perception from `packed`, which may be padded."""
    reward, endings, numbers = _HEAD.unpack_from(content)
    vector = np.frombuffer(content, np.float32, numbers, _HEAD.size)
    image = np.frombuffer(content, np.uint8, math.prod(_IMAGE), _HEAD.size + vector.nbytes)
    return Perception(tick, image.reshape(_IMAGE), vector, reward, endings)


@contextlib.contextmanager
def in_real_time() -> Iterator[None]:
    """Gives this thread a core before programs without real-time priority, if the machine allows it."""
    try:
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(REALTIME))
    except OSError:
        yield
        return
    try:
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


class Senses:
    """A robot's connection to the world. Any thread may use it."""

    def __init__(self, path: Path, robot: int) -> None:
        self._robot = robot
        self._asking = threading.Lock()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.connect(os.fspath(path))
        self._socket.sendall(_ROBOT.pack(robot))

    def close(self) -> None:
        """Leaves the world."""
        self._socket.close()

    def begins(self, at_ns: int) -> None:
        """Says when the run begins."""
        self._socket.sendall(_BEGINS.pack(b"B", at_ns))

    def perceive(self, robot: int | None = None) -> tuple[bool, bytes]:
        """Returns whether the run goes on, and a robot's perception: by default this one's."""
        with self._asking:
            self._socket.sendall(_ASKS.pack(b"P", self._robot if robot is None else robot))
            answer = self._socket.recv(_ANSWER_BYTES)
        if not answer:
            raise ConnectionError("the process of 'coorp learn' that runs the world has ended")
        return answer[0] != 0, answer[1:]

    def drive(self, velocity: Floats) -> None:
        """Drives with this speed and turn from now on."""
        speed, turn = velocity.tolist()
        self._socket.sendall(_DRIVES.pack(b"V", speed, turn))

    def epoch_ended(self) -> None:
        """Says that an epoch has ended."""
        self._socket.sendall(b"E")


class Stage:
    """The world's end of the connections.

    `watch` is called after each second, and returns whether the run goes on.
    """

    def __init__(self, world: World, path: Path, seconds: int, watch: Callable[[int], bool]) -> None:
        self.history = History()
        self.frames: deque[tuple[int, dict[str, Any]]] = deque(maxlen=FRAMES_S * FRAMES_HZ + 1)
        """States of the environment in the last seconds, with their times."""
        self.now_s = 0
        """Whole seconds so far."""
        self.goes_on = True
        self.lost: int | None = None
        """The first robot that left before its time."""
        self.robots = world.env.possible_agents
        self._world = world
        self._seconds = seconds
        self._watch = watch
        self._began_ns: int | None = None
        self._next_frame_ns = 0
        self._selector = selectors.DefaultSelector()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(os.fspath(path))
        self._listener.listen(len(self.robots))
        self._selector.register(self._listener, selectors.EVENT_READ)

    def close(self) -> None:
        """Ends all connections."""
        for key in list(self._selector.get_map().values()):
            assert isinstance(key.fileobj, socket.socket)
            key.fileobj.close()
        self._selector.close()

    def serve(self) -> None:
        """Handles what robots say, for `LOOK_EVERY_S` at most."""
        for key, _ in self._selector.select(self._wait_s()):
            connection = key.fileobj
            assert isinstance(connection, socket.socket)
            if connection is self._listener:
                self._admit()
            else:
                self._hear(connection, key.data)
        self._catch_up(self._now_ns())

    @property
    def is_over(self) -> bool:
        """Whether the run has reached its end, or was ended."""
        return self.now_s >= self._seconds or not self.goes_on

    def _admit(self) -> None:
        connection, _ = self._listener.accept()
        hello = connection.recv(_MESSAGE_BYTES)
        if len(hello) != _ROBOT.size:
            connection.close()
            return
        self._selector.register(connection, selectors.EVENT_READ, _ROBOT.unpack(hello)[0])

    def _hear(self, connection: socket.socket, robot: int) -> None:
        try:
            message = connection.recv(_MESSAGE_BYTES)
        except ConnectionError:
            message = b""
        # The state of the world when it reads the message.
        now_ns = self._now_ns()
        self._catch_up(now_ns)
        kind = message[:1]
        if kind == b"P":
            self._world.env.advance_to_ns(now_ns)
            perception = self._world.perceive(_ASKS.unpack(message)[1], 0)
            with contextlib.suppress(ConnectionError):
                connection.sendall(bytes([self.goes_on]) + packed(perception))
        elif kind == b"V":
            self._world.env.advance_to_ns(now_ns)
            self._world.env.set_velocity(robot, _DRIVES.unpack(message)[1:])
        elif kind == b"E":
            if not self.is_over:
                self.history.epochs_s.append(now_ns / NS)
        elif kind == b"B":
            if self._began_ns is None:
                self._began_ns = _BEGINS.unpack(message)[1]
        else:
            self._selector.unregister(connection)
            connection.close()
            if self.lost is None and not self.is_over:
                self.lost = robot

    def _now_ns(self) -> int:
        """Returns the time since the beginning; 0 before it."""
        return 0 if self._began_ns is None else max(0, time.monotonic_ns() - self._began_ns)

    def _wait_s(self) -> float:
        """Returns the time until a second ends or a frame is due."""
        if self._began_ns is None or self.is_over:
            return LOOK_EVERY_S
        due_ns = min((self.now_s + 1) * NS, self._next_frame_ns) - self._now_ns()
        return min(max(due_ns / NS, 0.0), LOOK_EVERY_S)

    def _catch_up(self, now_ns: int) -> None:
        """Advances through the seconds and frames up to now."""
        for due_ns in self._due(now_ns):
            self._world.env.advance_to_ns(due_ns)
            if due_ns >= self._next_frame_ns:
                self._next_frame_ns += NS // FRAMES_HZ
                self.frames.append((due_ns, self._world.env.get_state()))
            if due_ns == (self.now_s + 1) * NS:
                self.now_s += 1
                self._world.end_second(self.now_s, self.history)
                self.goes_on = self._watch(self.now_s) and self.goes_on

    def _due(self, now_ns: int) -> Iterator[int]:
        while not self.is_over:
            due_ns = min((self.now_s + 1) * NS, self._next_frame_ns)
            if due_ns > now_ns:
                return
            yield due_ns
