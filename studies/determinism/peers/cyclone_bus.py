"""CycloneDDS: reliable topics that keep all messages, and a wait set, which takes one message of each reader in turn.

An executor of ROS 2 does the same with its subscriptions.
"""

from __future__ import annotations

import importlib
import os
import zlib
from collections.abc import Callable
from typing import Any

from determinism.bus import READS, WRITES, Bus

CONFIG = (
    "<CycloneDDS><Domain><General><Interfaces><NetworkInterface name='lo' multicast='default'/></Interfaces>"
    "</General></Domain></CycloneDDS>"
)
DOMAINS = 200
PATIENCE_S = 30


class CycloneBus(Bus):
    """A participant."""

    def __init__(self, role: str, folder: str) -> None:
        os.environ["CYCLONEDDS_URI"] = CONFIG
        self._core: Any = importlib.import_module("cyclonedds.core")
        domain: Any = importlib.import_module("cyclonedds.domain")
        idl: Any = importlib.import_module("cyclonedds.idl")
        types: Any = importlib.import_module("cyclonedds.idl.types")
        pub: Any = importlib.import_module("cyclonedds.pub")
        sub: Any = importlib.import_module("cyclonedds.sub")
        topics: Any = importlib.import_module("cyclonedds.topic")
        duration, policy = importlib.import_module("cyclonedds.util").duration, self._core.Policy
        qos = self._core.Qos(policy.Reliability.Reliable(duration(seconds=PATIENCE_S)), policy.History.KeepAll)
        self._kind = idl.make_idl_struct("Round", "Round", {"number": types.uint64})
        participant = domain.DomainParticipant(1 + zlib.crc32(folder.encode()) % DOMAINS)
        self._participant = participant

        def topic(name: str) -> Any:  # noqa: ANN401
            return topics.Topic(participant, name, self._kind, qos=qos)

        self._writers = {name: pub.DataWriter(participant, topic(name), qos=qos) for name in WRITES[role]}
        self._readers = {name: sub.DataReader(participant, topic(name), qos=qos) for name in READS[role]}

    def send(self, topic: str, number: int) -> None:
        self._writers[topic].write(self._kind(number=number))

    def receive(self, handle: Callable[[str, int], None]) -> None:
        core = self._core
        waits = core.WaitSet(self._participant)
        state = core.ViewState.Any | core.InstanceState.Any | core.SampleState.NotRead
        # Kept, because a condition ends with its last reference.
        conditions = [core.ReadCondition(reader, state) for reader in self._readers.values()]
        for condition in conditions:
            waits.attach(condition)
        while True:
            waits.wait(timeout=10**9)
            for topic, reader in self._readers.items():
                for sample in reader.take():
                    # A sample without data tells of a writer that left.
                    if hasattr(sample, "number"):
                        handle(topic, sample.number)


def open_bus(role: str, folder: str) -> Bus:
    """Opens a node's bus."""
    return CycloneBus(role, folder)
