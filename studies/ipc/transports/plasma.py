"""Plasma 11, the store of HPRM and formerly of Ray, and a pipe for object ids.

As in its documentation: `put` and `get` of NumPy arrays, which are read without a copy, and for a loaned buffer
`create`, fill and `seal`. The sender deletes an object before it stores the next one.
"""

from __future__ import annotations

import importlib
import os
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ipc.place import START_S, Place, Receiver, Sender, Transport, node_command
from ipc.signals import Signals, Waits

SIGNAL = struct.Struct("<B20s")
"""Whether the object was put, and its id."""
RAW, PUT = range(2)
MESSAGES_MAX = 8
"""Size of the store, in messages of the largest size."""


def connect(place: Place) -> tuple[Any, Any]:
    """Returns the module, and a client once the store listens."""
    plasma: Any = importlib.import_module("pyarrow.plasma")
    late = time.monotonic() + START_S
    while not Path(socket_path(place)).exists():
        if time.monotonic() > late:
            raise TimeoutError("the Plasma store does not start")
        time.sleep(0.02)
    return plasma, plasma.connect(socket_path(place))


def socket_path(place: Place) -> str:
    """Returns the path at which the store listens."""
    return f"{place.folder}/plasma"


class PlasmaSender(Sender):
    """Puts or seals an object, and signals its id."""

    def __init__(self, place: Place) -> None:
        self._plasma, self._client = connect(place)
        self._signals = Signals(place, SIGNAL)
        self._id: Any = None

    def _next(self) -> Any:  # noqa: ANN401
        if self._id is not None:
            self._client.delete([self._id])
        self._id = self._plasma.ObjectID(os.urandom(20))
        return self._id

    def send(self, array: np.ndarray) -> None:
        object_id = self._next()
        self._client.put(array, object_id)
        self._signals.send(PUT, object_id.binary())

    def load(self, array: np.ndarray) -> None:
        buffer = self._client.create(self._next(), len(array))
        np.frombuffer(buffer, np.uint8)[:] = array

    def send_loaded(self) -> None:
        self._client.seal(self._id)
        self._signals.send(RAW, self._id.binary())

    def close(self) -> None:
        self._client.disconnect()


class PlasmaReceiver(Receiver):
    """Gets objects by id."""

    def __init__(self, place: Place) -> None:
        self._plasma, self._client = connect(place)
        self._waits = Waits(place, SIGNAL)

    def run(self, take: Callable[[np.ndarray], bool]) -> None:
        while True:
            kind, name = self._waits.receive()
            object_id = self._plasma.ObjectID(name)
            if kind == PUT:
                more = take(self._client.get(object_id))
            else:
                more = take(np.frombuffer(self._client.get_buffers([object_id])[0], np.uint8))
            if not more:
                return

    def close(self) -> None:
        self._client.disconnect()


class Plasma(Transport):
    name = "Plasma"
    packages = ("pyarrow==11.0.0", "numpy==1.26.4")
    module = "pyarrow.plasma"
    interpreter = "plasma"
    loans = True

    def commands(self, places: list[Place], python: str) -> list[list[str]]:
        place = places[0]
        room = str(MESSAGES_MAX * max(place.bytes_max, 1 << 24))
        store = [python, "-m", "ipc.transports.plasma", room, socket_path(place)]
        return [store, *(node_command(each, python) for each in places)]

    def sender(self, place: Place) -> Sender:
        return PlasmaSender(place)

    def receiver(self, place: Place) -> Receiver:
        return PlasmaReceiver(place)


TRANSPORT = Plasma()


def serve(room: str, path: str) -> None:
    """Becomes the store, which ships in the wheel."""
    pyarrow: Any = importlib.import_module("pyarrow")
    program = Path(pyarrow.__file__).with_name("plasma-store-server")
    os.execv(program, [str(program), "-m", room, "-s", path])


if __name__ == "__main__":
    serve(*sys.argv[1:])
