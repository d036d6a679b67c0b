"""The transports of the study: their names, their packages, and the programs that they run."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path

from drive.bus import ROLES

OURS = Path(__file__).with_name("ours.py")


@dataclass(frozen=True)
class Transport:
    """One way for the nodes to communicate."""

    name: str
    """The name in tables."""
    key: str
    package: str
    """The package to install; empty for ours."""
    module: str
    place: str = ""
    """For ours: the placement of reactors in processes."""

    @property
    def ours(self) -> bool:
        """Whether the transport belongs to Coorp."""
        return not self.package

    @property
    def installed(self) -> bool:
        """Whether this interpreter has the package."""
        return importlib.util.find_spec(self.module) is not None

    def commands(self, folder: str, steps: int) -> list[list[str]]:
        """Returns the programs to start."""
        if self.ours:
            return [[sys.executable, str(OURS), self.place, self.key, folder, str(steps)]]
        return [[sys.executable, "-m", "drive.node", self.key, role, folder, str(steps)] for role in ROLES]


ZENOH, CYCLONE = "eclipse-zenoh==1.10.2", "cyclonedds==11.0.1"
PLAIN, SHARED = "cyclone", "cyclone-shared"
"""The transports that represent ROS 2, and ROS 2 with shared memory."""
TRANSPORTS = (
    Transport("coorp, centralised", "centralised", "", "coorp", "processes"),
    Transport("coorp, decentralised", "decentralised", "", "coorp", "processes"),
    Transport("Zenoh", "zenoh", ZENOH, "zenoh"),
    Transport("Zenoh ShmProvider", "zenoh-shared", ZENOH, "zenoh"),
    Transport("CycloneDDS", PLAIN, CYCLONE, "cyclonedds"),
    Transport("CycloneDDS and shared_memory", SHARED, CYCLONE, "cyclonedds"),
    Transport("coorp, one process", "centralised", "", "coorp", "one"),
)
PUBLISHED = {
    "coorp, decentralised": {PLAIN: "-91.1 %", SHARED: "-29.2 %"},
    "coorp, centralised": {SHARED: "-23.6 %"},
}
"""Kwok (HPRM), section V-B: HPRM's latency against ROS 2 Humble's, and against ROS 2's with shared memory."""
