"""Zenoh with its shared-memory provider.

As in its examples `z_pub_shm.py` and `z_ping.py`: `alloc` that collects garbage and blocks, `put` of the buffer,
express, blocking congestion control, and sessions that connect directly. The Python buffers of 1.10 have no buffer
protocol: one takes only `bytes`, and a receiver gets only a copy as `bytes`, on either clock.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from typing import Any

import numpy as np

from ipc.place import GATHER, Place, Receiver, Sender, Transport

KEY = "frame"
MESSAGES_MAX = 4
"""Size of a sender's provider, in messages of the largest size."""


def open_session(place: Place) -> tuple[Any, Any]:
    """Returns the module and a session. The only node of its role listens, and the others connect to it."""
    zenoh: Any = importlib.import_module("zenoh")
    alone = (place.role == "receiver") == (place.pattern == GATHER)
    config = zenoh.Config()
    endpoints = json.dumps([f"unixsock-stream/{place.folder}/zenoh"])
    config.insert_json5("scouting/multicast/enabled", "false")
    config.insert_json5("transport/shared_memory/enabled", "true")
    config.insert_json5("listen/endpoints" if alone else "connect/endpoints", endpoints)
    if not alone:
        config.insert_json5("listen/endpoints", "[]")
    return zenoh, zenoh.open(config)


class ZenohSender(Sender):
    """Copies arrays into shared memory, and puts them."""

    def __init__(self, place: Place) -> None:
        self._zenoh, self._session = open_session(place)
        self._provider = self._zenoh.shm.ShmProvider.default_backend(MESSAGES_MAX * max(place.bytes_max, 1 << 22))
        self._policy = self._zenoh.shm.BlockOn(self._zenoh.shm.GarbageCollect())
        block = self._zenoh.CongestionControl.BLOCK
        self._publisher = self._session.declare_publisher(KEY, congestion_control=block, express=True)
        self._buffer: Any = None

    def load(self, array: np.ndarray) -> None:
        self._buffer = self._provider.alloc(len(array), policy=self._policy)
        self._buffer[:] = array.tobytes()

    def send_loaded(self) -> None:
        self._publisher.put(self._buffer)
        self._buffer = None

    def send(self, array: np.ndarray) -> None:
        self.load(array)
        self.send_loaded()

    def close(self) -> None:
        self._session.close()


class ZenohReceiver(Receiver):
    """Copies messages out of shared memory."""

    def __init__(self, place: Place) -> None:
        _, self._session = open_session(place)
        self._subscriber = self._session.declare_subscriber(KEY)

    def run(self, take: Callable[[np.ndarray], bool]) -> None:
        for sample in self._subscriber:
            if not take(np.frombuffer(sample.payload.to_bytes(), np.uint8)):
                return

    def close(self) -> None:
        self._session.close()


class Zenoh(Transport):
    name = "Zenoh ShmProvider"
    packages = ("eclipse-zenoh==1.10.2",)
    module = "zenoh"
    loans = True

    def sender(self, place: Place) -> Sender:
        return ZenohSender(place)

    def receiver(self, place: Place) -> Receiver:
        return ZenohReceiver(place)


TRANSPORT = Zenoh()
