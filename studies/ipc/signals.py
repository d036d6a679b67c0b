"""Named pipes by which a transport without its own signal says that a block is ready."""

from __future__ import annotations

import contextlib
import os
import struct

from ipc.place import Place


class Signals:
    """A sender's end: one write to each receiver's pipe."""

    def __init__(self, place: Place, form: struct.Struct) -> None:
        self._form = form
        self._pipes = [open_pipe(receiver_path(place, index)) for index in range(place.receivers)]

    def send(self, *values: object) -> None:
        """Signals every receiver. A write this short is never mixed with another sender's."""
        message = self._form.pack(*values)
        for pipe in self._pipes:
            os.write(pipe, message)


class Waits:
    """A receiver's end."""

    def __init__(self, place: Place, form: struct.Struct) -> None:
        self._form = form
        self._pipe = open_pipe(receiver_path(place, place.index))

    def receive(self) -> tuple[object, ...]:
        """Blocks until a sender has written."""
        return self._form.unpack(os.read(self._pipe, self._form.size))


def receiver_path(place: Place, receiver: int) -> str:
    """Returns the path of a receiver's pipe."""
    return f"{place.folder}/pipe-{receiver}"


def open_pipe(path: str) -> int:
    """Opens a pipe for both directions, so that no end has to wait for the other."""
    with contextlib.suppress(FileExistsError):
        os.mkfifo(path)
    return os.open(path, os.O_RDWR)
