"""Zenoh: publishers and subscribers with callbacks, between peers that are connected directly.

A publisher blocks rather than drop a message.
"""

from __future__ import annotations

import importlib
import json
import struct
import time
from collections.abc import Callable
from typing import Any

from determinism.bus import COCKPIT, DOOR, READS, RELAY, WRITES, Bus

NUMBER = struct.Struct("<Q")
LISTENS = {COCKPIT: "cockpit", RELAY: "relay", DOOR: "door"}
CONNECTS = {COCKPIT: (), RELAY: (COCKPIT,), DOOR: (COCKPIT, RELAY)}
"""Each pair of nodes has one connection."""


class ZenohBus(Bus):
    """A session."""

    def __init__(self, role: str, folder: str) -> None:
        self._zenoh: Any = importlib.import_module("zenoh")
        config = self._zenoh.Config()
        config.insert_json5("scouting/multicast/enabled", "false")
        config.insert_json5("listen/endpoints", json.dumps([f"unixsock-stream/{folder}/{LISTENS[role]}"]))
        others = [f"unixsock-stream/{folder}/{LISTENS[other]}" for other in CONNECTS[role]]
        config.insert_json5("connect/endpoints", json.dumps(others))
        self._session = self._zenoh.open(config)
        block = self._zenoh.CongestionControl.BLOCK
        self._publishers = {
            topic: self._session.declare_publisher(topic, congestion_control=block) for topic in WRITES[role]
        }
        self._reads = READS[role]

    def send(self, topic: str, number: int) -> None:
        self._publishers[topic].put(NUMBER.pack(number))

    def receive(self, handle: Callable[[str, int], None]) -> None:
        kept = [
            self._session.declare_subscriber(
                topic, lambda sample, topic=topic: handle(topic, NUMBER.unpack(sample.payload.to_bytes())[0])
            )
            for topic in self._reads
        ]
        while kept:
            time.sleep(1.0)


def open_bus(role: str, folder: str) -> Bus:
    """Opens a node's bus."""
    return ZenohBus(role, folder)
