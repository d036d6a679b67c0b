"""The interface of a transport to a node of the drive, and the format of its messages."""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
ROLES = ("world", "driver", "watch", "fusion")
VIEW, FRAME, PLAN, OBSTACLES, COMMAND = "view", "frame", "plan", "obstacles", "command"
SENT = {"world": (VIEW, FRAME), "driver": (PLAN,), "watch": (OBSTACLES,), "fusion": (COMMAND,)}
READ = {"world": (COMMAND,), "driver": (VIEW,), "watch": (FRAME,), "fusion": (PLAN, OBSTACLES)}
IMAGE, VECTOR = (64, 64, 3), 9
IMAGE_BYTES = 64 * 64 * 3
FRAME_SHAPE, SECTORS = (1280, 800, 3), 10
_PAIR = struct.Struct("<dd")
SIZES = {
    VIEW: IMAGE_BYTES + 4 * VECTOR,
    FRAME: FRAME_SHAPE[0] * FRAME_SHAPE[1] * FRAME_SHAPE[2],
    PLAN: _PAIR.size,
    OBSTACLES: 8 * SECTORS,
    COMMAND: _PAIR.size,
}
"""Bytes of each topic's messages."""
HELLO = 0
"""The number of a greeting, which only checks whether the next node is there."""


@dataclass(frozen=True)
class Message:
    """A message of a topic."""

    number: int
    """The number of the message's frame, from 1; or `HELLO`."""
    data: Bytes


class Bus(ABC):
    """One node's ends of its topics."""

    @abstractmethod
    def send(self, topic: str, number: int, data: Bytes) -> None:
        """Sends a message; the caller does not change the data afterwards."""

    def buffer(self, number: int) -> Bytes:
        """Returns memory for a frame to be sent; if the binding allows it, the memory that the receiver reads."""
        return np.empty(SIZES[FRAME], np.uint8)

    @abstractmethod
    def receive(self, topic: str) -> Message:
        """Waits for the next message of a topic, without spinning."""

    def close(self) -> None:  # noqa: B027
        """Releases everything."""


def pair_bytes(pair: tuple[float, float]) -> Bytes:
    """Converts a plan or a command to bytes."""
    return np.frombuffer(_PAIR.pack(*pair), np.uint8)


def pair_of(data: Bytes) -> tuple[float, float]:
    """Converts bytes to a plan or a command."""
    first, second = _PAIR.unpack(data.tobytes())
    return first, second
