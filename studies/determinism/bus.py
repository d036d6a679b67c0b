"""The interface of a middleware to the nodes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

COCKPIT, RELAY, DOOR = "cockpit", "relay", "door"
WRITES = {COCKPIT: ("disarm", "asked"), RELAY: ("open",), DOOR: ()}
READS = {COCKPIT: (), RELAY: ("asked",), DOOR: ("disarm", "open")}
"""The topics of each role. The door lists `disarm` first, the order in its favour."""


class Bus(ABC):
    """One node's topics."""

    @abstractmethod
    def send(self, topic: str, number: int) -> None:
        """Publishes a number. Nothing is dropped on purpose."""

    @abstractmethod
    def receive(self, handle: Callable[[str, int], None]) -> None:
        """Calls `handle` with each message of the node's topics, as this middleware calls its users."""
