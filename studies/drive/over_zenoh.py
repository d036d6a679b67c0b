"""Zenoh, with or without its shared-memory provider for frames. Sessions connect directly, as `ipc` describes."""

from __future__ import annotations

import importlib
import json
from typing import Any

import numpy as np

from drive.bus import FRAME, READ, ROLES, SENT, SIZES, Bus, Bytes, Message

FRAMES_MAX = 4
"""Size of the provider's memory."""


class ZenohBus(Bus):
    """A session."""

    def __init__(self, role: str, folder: str, *, shared: bool) -> None:
        zenoh: Any = importlib.import_module("zenoh")
        config = zenoh.Config()
        others = [_endpoint(folder, other) for other in ROLES if other != role]
        config.insert_json5("scouting/multicast/enabled", "false")
        config.insert_json5("transport/shared_memory/enabled", json.dumps(shared))
        config.insert_json5("listen/endpoints", json.dumps([_endpoint(folder, role)]))
        config.insert_json5("connect/endpoints", json.dumps(others))
        self._session = zenoh.open(config)
        block = zenoh.CongestionControl.BLOCK
        self._out = {
            topic: self._session.declare_publisher(topic, congestion_control=block, express=True)
            for topic in SENT[role]
        }
        self._in = {topic: self._session.declare_subscriber(topic) for topic in READ[role]}
        self._provider: Any = None
        if shared and FRAME in self._out:
            self._provider = zenoh.shm.ShmProvider.default_backend(FRAMES_MAX * SIZES[FRAME])
            self._policy = zenoh.shm.BlockOn(zenoh.shm.GarbageCollect())

    def send(self, topic: str, number: int, data: Bytes) -> None:
        payload: Any = data.tobytes()
        if topic == FRAME and self._provider is not None:
            # The binding's buffer takes only `bytes`.
            buffer = self._provider.alloc(len(data), policy=self._policy)
            buffer[:] = payload
            payload = buffer
        self._out[topic].put(payload, attachment=number.to_bytes(8, "little"))

    def receive(self, topic: str) -> Message:
        sample = self._in[topic].recv()
        number = int.from_bytes(sample.attachment.to_bytes(), "little")
        return Message(number, np.frombuffer(sample.payload.to_bytes(), np.uint8))

    def close(self) -> None:
        self._session.close()


def _endpoint(folder: str, role: str) -> str:
    return f"unixsock-stream/{folder}/{role}"
