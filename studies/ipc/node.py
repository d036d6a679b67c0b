"""One node, in its own process: `python -m ipc.node PLACE.json`.

A message begins with a header. The rest is a pattern, one byte of each page of which depends on the message. Both
clocks begin with the call that sends: a private array, or a filled, loaned buffer. They end once the receiver has
read a byte of every page, or the first bytes of its view. The receiver checks the sum over the pattern. It waits a
little before it checks and reports, so that the study's own work does not run beside another receiver's reading.
If several nodes send, it reports once all messages have arrived.

Filling a large buffer leaves nothing else in the caches, and lets receivers sleep more deeply; even a view then takes
longer. So that sizes differ only by their transport, the sender of a loaned buffer first reads as much memory as the
largest message has, and waits until a fixed time has passed. For the same reason, pages are not all checked if only a
view is timed.

Hops are short messages from one node to another. Each is sent a moment after the receiver has confirmed the last one
over a pipe.
"""

from __future__ import annotations

import importlib
import os
import struct
import sys
import time
import traceback
from multiprocessing.connection import Client, Connection
from typing import Any

import numpy as np

from ipc.place import SHORT_BYTES, Place, Sender, Transport
from ipc.signals import open_pipe

PAGE_BYTES = 4096
HEADER = struct.Struct("<QQBB")
"""Number of the message, sum of the pattern, mode and sender."""
READ, VIEW, HOLD, HOPS, HOPS_END, HELLO, END = range(7)
"""Modes: read every page; take a view; keep the view for `HOLD_S`; hop and last hop; greeting; stop."""
HOLD_S = 0.25
PAUSE_S = 0.002
LOAN_S = 0.05
"""Time from the request for a loaned message until it may be sent."""
HOP_PAUSE_S = 200e-6


def pattern(array: np.ndarray) -> np.ndarray:
    """Returns one byte of every page but the first, which has the header, and the last byte."""
    return array[PAGE_BYTES - 1 :: PAGE_BYTES]


def total(array: np.ndarray) -> int:
    """Reads every page."""
    return int(np.add.reduce(pattern(array), dtype=np.uint64)) + int(array[-1])


def fill(array: np.ndarray, number: int, mode: int, sender: int) -> None:
    """Makes the content of one message."""
    pages = pattern(array)
    pages[:] = (np.arange(len(pages), dtype=np.uint64) * 7 + number).astype(np.uint8)
    array[-1] = number & 0xFF
    HEADER.pack_into(array.data, 0, number, total(array), mode, sender)


def turns(place: Place) -> int:
    """Opens the pipe by which a receiver confirms hops."""
    return open_pipe(f"{place.folder}/turns")


class Reports:
    """A receiver's reports to the study about each message."""

    def __init__(self, place: Place) -> None:
        self._connection: Connection[Any, Any] = Client(place.control)
        self._connection.send(("hello", (place.role, place.index)))
        self._senders = place.senders
        self._turns = turns(place)
        self._taken: list[tuple[int, int, int, int]] = []
        """Number, sender, time and length of the messages that wait for others of the same number, or of hops."""

    def take(self, view: np.ndarray) -> bool:
        """Reads as the message's mode requires, and reports. Returns whether more messages will come."""
        number, sum_, mode, sender = HEADER.unpack_from(view.data, 0)
        read = total(view) if mode in (READ, HOLD) else sum_
        at = time.monotonic_ns()
        if mode == END:
            return False
        if mode == HELLO:
            self._connection.send(("hello", sender))
            return True
        self._taken.append((number, sender, at, len(view)))
        if mode in (HOPS, HOPS_END):
            os.write(self._turns, b".")
            if mode == HOPS_END:
                self._report()
            return True
        if number != self._taken[0][0]:
            raise ValueError(f"message {number} of sender {sender} came before all of {self._taken[0][0]}")
        complete = len(self._taken) == self._senders
        if complete:
            time.sleep(PAUSE_S)
        if read != sum_ or view[-1] != number & 0xFF:
            raise ValueError(f"message {number} of sender {sender} is damaged")
        if complete:
            self._report()
            if mode == HOLD:
                time.sleep(HOLD_S)
        return True

    def _report(self) -> None:
        self._connection.send(("got", self._taken))
        self._taken = []

    def failed(self) -> None:
        """Sends the error that is being handled."""
        self._connection.send(("failed", traceback.format_exc()))


class Sending:
    """A sender, which follows the study's commands."""

    def __init__(self, place: Place, sender: Sender) -> None:
        self._place, self._sender = place, sender
        self._arrays: dict[int, np.ndarray] = {}
        self._array: np.ndarray | None = None
        """The array to send; None if it is loaned."""
        self._others = np.ones(place.bytes_max // 8, np.uint64)
        self._turns = turns(place)

    def run(self) -> None:
        """Works until the end."""
        connection: Connection[Any, Any] = Client(self._place.control)
        connection.send(("hello", (self._place.role, self._place.index)))
        commands = {"prepare": self._prepare, "go": self._go, "hops": self._hops}
        try:
            while (asked := connection.recv())[0] != "end":
                connection.send(("done", commands[asked[0]](*asked[1:])))
        except EOFError:
            pass
        except Exception:
            connection.send(("failed", traceback.format_exc()))
        finally:
            self._sender.close()

    def _prepare(self, number: int, size: int, mode: int, loaned: bool) -> tuple[int, int]:
        """Prepares a message. Returns the time to load it, and the processor time of the whole preparation, in ns."""
        cpu = time.process_time_ns()
        if size not in self._arrays:
            self._arrays[size] = np.ones(size, np.uint8)
        array = self._arrays[size]
        fill(array, number, mode, self._place.index)
        self._array = None if loaned else array
        begun, took = time.monotonic_ns(), 0
        if loaned:
            self._sender.load(array)
            took = time.monotonic_ns() - begun
            self._others.sum()
            time.sleep(max(0.0, LOAN_S - 1e-9 * (time.monotonic_ns() - begun)))
        return took, time.process_time_ns() - cpu

    def _go(self) -> tuple[int, int]:
        """Sends the message. Returns the sender and the time."""
        begun = time.monotonic_ns()
        if self._array is None:
            self._sender.send_loaded()
        else:
            self._sender.send(self._array)
        return self._place.index, max(begun, self._sender.begun_ns)

    def _hops(self, number: int, count: int) -> list[int]:
        """Sends short messages. Returns their times."""
        begun = []
        for left in reversed(range(count)):
            self._prepare(number, SHORT_BYTES, HOPS if left else HOPS_END, False)
            time.sleep(HOP_PAUSE_S)
            begun.append(self._go()[1])
            os.read(self._turns, 1)
        return begun


def transport(module: str) -> Transport:
    """Returns the transport of a module."""
    return importlib.import_module(f"ipc.transports.{module}").TRANSPORT


def work(place: Place) -> None:
    """Runs this node."""
    how = transport(place.transport)
    if place.role == "sender":
        Sending(place, how.sender(place)).run()
        return
    receiver = how.receiver(place)
    reports = Reports(place)
    try:
        receiver.run(reports.take)
    except Exception:
        reports.failed()
    finally:
        receiver.close()


if __name__ == "__main__":
    work(Place.load(sys.argv[1]))
