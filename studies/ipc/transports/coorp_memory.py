"""Coorp's memory for payloads, without a program of reactors, for which it is made.

The classes are private to the package (`coorp._native`). A receiver checks its queue, and then sleeps.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from ipc.place import Place, Receiver, Sender, Transport

CHANNEL = "frame"


def join(place: Place) -> Any:  # noqa: ANN401
    """Joins the domain of this group."""
    native: Any = importlib.import_module("coorp._native")
    return native.Domain(place.name)


class MemorySender(Sender):
    """Fills a loan, or makes the domain copy an array into one."""

    def __init__(self, place: Place) -> None:
        self._domain = join(place)
        self._sender = self._domain.sender(CHANNEL)
        self._array: np.ndarray | None = None

    def send(self, array: np.ndarray) -> None:
        self._sender.send(b"", [array])

    def load(self, array: np.ndarray) -> None:
        loaned = self._sender.loan([len(array)]).array(np.uint8, len(array))
        loaned[:] = array
        self._array = loaned

    def send_loaded(self) -> None:
        self._sender.send(b"", [self._array])
        self._array = None


class MemoryReceiver(Receiver):
    """Views each payload."""

    def __init__(self, place: Place, spin_s: float) -> None:
        self._domain = join(place)
        self._receiver = self._domain.receiver(CHANNEL, spin=spin_s)

    def run(self, take: Callable[[np.ndarray], bool]) -> None:
        while take(np.asarray(self._receiver.recv().parts()[0])):
            pass


class Memory(Transport):
    name = "coorp, memory alone"
    module = "coorp._native"
    interpreter = "own"
    loans = True
    ours = True
    spin_s = 0.0

    def sender(self, place: Place) -> Sender:
        return MemorySender(place)

    def receiver(self, place: Place) -> Receiver:
        return MemoryReceiver(place, self.spin_s)


TRANSPORT: Transport = Memory()
