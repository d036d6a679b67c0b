"""A node's description, and the interface of a transport. Runs under every interpreter of the study."""

from __future__ import annotations

import dataclasses
import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

BROADCAST, GATHER, HOP = "broadcast", "gather", "hop"
"""Patterns: one node sends to three, three send to one, one sends to one."""
SENDERS = {BROADCAST: 1, GATHER: 3, HOP: 1}
RECEIVERS = {BROADCAST: 3, GATHER: 1, HOP: 1}
SHORT_BYTES = 64
"""The length of a hop, and of a message without content."""
START_S = 60.0
"""Maximum time for the nodes of a transport to start and to find one another."""


@dataclass(frozen=True)
class Place:
    """A node's identity."""

    transport: str
    pattern: str
    role: str
    """`sender` or `receiver`."""
    index: int
    """Zero-based index within its role."""
    sizes: tuple[int, ...]
    """Lengths of messages with content."""
    folder: str
    """The folder that this group's nodes share, for sockets and files."""
    name: str
    """A word that no other group has, for names outside the folder."""

    @property
    def senders(self) -> int:
        """The number of nodes that send."""
        return SENDERS[self.pattern]

    @property
    def receivers(self) -> int:
        """The number of nodes that receive."""
        return RECEIVERS[self.pattern]

    @property
    def lengths(self) -> list[int]:
        """All lengths that a message can have."""
        return sorted({SHORT_BYTES, *self.sizes})

    @property
    def bytes_max(self) -> int:
        """The longest message."""
        return max(self.sizes)

    @property
    def control(self) -> str:
        """The socket of the study itself."""
        return f"{self.folder}/control"

    @property
    def path(self) -> Path:
        """The file that holds this place."""
        return Path(self.folder) / f"{self.role}-{self.index}.json"

    def store(self) -> Path:
        """Writes the file."""
        self.path.write_text(json.dumps(dataclasses.asdict(self)))
        return self.path

    @staticmethod
    def load(path: str) -> Place:
        """Reads the file."""
        fields = json.loads(Path(path).read_text())
        return Place(**{**fields, "sizes": tuple(fields["sizes"])})


class Sender(ABC):
    """One node's way to send arrays of bytes to all receivers."""

    begun_ns = 0
    """The time at which the last message left the user's code, if that is later than the call, as from a reaction."""

    @abstractmethod
    def send(self, array: np.ndarray) -> None:
        """Sends a private array, which the caller may change afterwards."""

    def load(self, array: np.ndarray) -> None:
        """Loans a buffer and fills it with the array. Only for transports with loans."""
        raise NotImplementedError

    def send_loaded(self) -> None:
        """Sends the loaned buffer."""
        raise NotImplementedError

    def close(self) -> None:  # noqa: B027
        """Releases everything."""


class Receiver(ABC):
    """One node's way to receive."""

    @abstractmethod
    def run(self, take: Callable[[np.ndarray], bool]) -> None:
        """Calls `take` with each array until that returns False. `take` keeps no reference."""

    def close(self) -> None:  # noqa: B027
        """Releases everything."""


class Transport(ABC):
    """A way to move arrays between processes."""

    name: str
    """The name in tables."""
    packages: tuple[str, ...] = ()
    """The transport's own requirements, pinned."""
    module: str = ""
    """The module that must be importable."""
    interpreter: str = "peers"
    """The interpreter. `own`: the one that runs the study; `peers`: the peers' environment, or the study's if it has
    the module; any other word: an environment of that name."""
    loans: bool = False
    """Whether a user can fill the sent buffer itself."""
    ours: bool = False
    """Whether the transport belongs to Coorp, so that the claims are about it."""
    patterns: tuple[str, ...] = (BROADCAST, GATHER, HOP)
    """The patterns to measure with this transport."""

    @abstractmethod
    def sender(self, place: Place) -> Sender:
        """Makes a sender, in the node's process."""

    @abstractmethod
    def receiver(self, place: Place) -> Receiver:
        """Makes a receiver, in the node's process."""

    def environment(self, place: Place) -> dict[str, str]:
        """Returns environment variables for all nodes."""
        return {}

    def commands(self, places: list[Place], python: str) -> list[list[str]]:
        """Returns the programs to start, in order."""
        return [node_command(place, python) for place in places]


def node_command(place: Place, python: str | None = None) -> list[str]:
    """Returns the command that runs a node in its own process."""
    return [python or sys.executable, "-m", "ipc.node", str(place.path)]
