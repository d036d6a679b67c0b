"""Pickle over a Unix socket, by `multiprocessing.connection`: pickled once, written once per receiver."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from multiprocessing.connection import Client, Connection, Listener, wait
from typing import Any

import numpy as np

from ipc.place import START_S, Place, Receiver, Sender, Transport


class SocketSender(Sender):
    """Connects to each receiver."""

    def __init__(self, place: Place) -> None:
        self._connections = [connect(f"{place.folder}/pickle-{index}") for index in range(place.receivers)]

    def send(self, array: np.ndarray) -> None:
        message = pickle.dumps(array, pickle.HIGHEST_PROTOCOL)
        for connection in self._connections:
            connection.send_bytes(message)

    def close(self) -> None:
        for connection in self._connections:
            connection.close()


class SocketReceiver(Receiver):
    """Accepts each sender."""

    def __init__(self, place: Place) -> None:
        self._listener = Listener(f"{place.folder}/pickle-{place.index}", backlog=place.senders)
        self._senders = place.senders

    def run(self, take: Callable[[np.ndarray], bool]) -> None:
        connections = [self._listener.accept() for _ in range(self._senders)]
        while True:
            for connection in wait(connections):
                assert isinstance(connection, Connection)
                if not take(connection.recv()):
                    return

    def close(self) -> None:
        self._listener.close()


def connect(path: str) -> Connection[Any, Any]:
    """Connects once the receiver listens."""
    late = time.monotonic() + START_S
    while True:
        try:
            return Client(path)
        except (FileNotFoundError, ConnectionRefusedError):
            if time.monotonic() > late:
                raise
            time.sleep(0.02)


class Pickled(Transport):
    name = "pickle over a socket"
    interpreter = "own"

    def sender(self, place: Place) -> Sender:
        return SocketSender(place)

    def receiver(self, place: Place) -> Receiver:
        return SocketReceiver(place)


TRANSPORT = Pickled()
