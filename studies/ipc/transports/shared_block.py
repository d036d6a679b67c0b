"""One block of `multiprocessing.shared_memory` per sender, reused for each message, and a pipe for signals.

Users build this by hand. Nothing says when a receiver has finished with the block. So a program that does not take
turns, as this study does, needs more signals than are counted here.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from multiprocessing import resource_tracker, shared_memory

import numpy as np

from ipc.place import Place, Receiver, Sender, Transport
from ipc.signals import Signals, Waits

SIGNAL = struct.Struct("<BQ")
"""Sender and length."""


def block_name(place: Place, sender: int) -> str:
    """Returns the name of a sender's block."""
    return f"{place.name}-block-{sender}"


class BlockSender(Sender):
    """Copies into the block and signals."""

    def __init__(self, place: Place) -> None:
        name = block_name(place, place.index)
        self._block = shared_memory.SharedMemory(name, create=True, size=place.bytes_max)
        self._view: np.ndarray | None = np.ndarray(place.bytes_max, np.uint8, self._block.buf)
        self._signals = Signals(place, SIGNAL)
        self._sender, self._length = place.index, 0

    def load(self, array: np.ndarray) -> None:
        assert self._view is not None
        self._view[: len(array)] = array
        self._length = len(array)

    def send_loaded(self) -> None:
        self._signals.send(self._sender, self._length)

    def send(self, array: np.ndarray) -> None:
        self.load(array)
        self.send_loaded()

    def close(self) -> None:
        self._view = None
        self._block.close()
        self._block.unlink()


class BlockReceiver(Receiver):
    """Maps each sender's block once."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._waits = Waits(place, SIGNAL)
        self._blocks: dict[int, shared_memory.SharedMemory] = {}

    def run(self, take: Callable[[np.ndarray], bool]) -> None:
        views: dict[int, np.ndarray] = {}
        while True:
            sender, length = self._waits.receive()
            assert isinstance(sender, int)
            assert isinstance(length, int)
            if sender not in views:
                block = shared_memory.SharedMemory(block_name(self._place, sender))
                # Otherwise the first reader to end removes the block for all (cpython issue 82300).
                resource_tracker.unregister(f"/{block.name}", "shared_memory")
                self._blocks[sender] = block
                views[sender] = np.ndarray(self._place.bytes_max, np.uint8, block.buf)
            if not take(views[sender][:length]):
                return

    def close(self) -> None:
        for block in self._blocks.values():
            block.close()


class Block(Transport):
    name = "shared_memory, reused"
    interpreter = "own"
    loans = True

    def sender(self, place: Place) -> Sender:
        return BlockSender(place)

    def receiver(self, place: Place) -> Receiver:
        return BlockReceiver(place)


TRANSPORT = Block()
