"""CycloneDDS, with frames in its messages, or with references to shared memory in them.

The latter is what the paper calls ROS 2 with shared memory, at its best: frames are drawn in blocks of
`multiprocessing.shared_memory` that are created once, and messages have only their numbers. Only the reader's pace
keeps a block from being written to while it is read.
"""

from __future__ import annotations

import importlib
import zlib
from multiprocessing import resource_tracker, shared_memory
from pathlib import Path
from typing import Any

import numpy as np

from drive.bus import FRAME, READ, SENT, SIZES, Bus, Bytes, Message

CONFIG = (
    "<CycloneDDS><Domain><General><Interfaces><NetworkInterface name='lo' multicast='default'/></Interfaces>"
    "<AllowMulticast>spdp</AllowMulticast><MaxMessageSize>65000B</MaxMessageSize><FragmentSize>64000B</FragmentSize>"
    "</General><Internal><SocketReceiveBufferSize max='10MB'/></Internal></Domain></CycloneDDS>"
)
"""The configuration, as in the study of transports: packets as large as UDP allows, over loopback."""
DOMAINS = 200
PATIENCE_S = 30
BLOCKS = 4


class CycloneBus(Bus):
    """A participant, with a writer or a reader of each topic."""

    def __init__(self, role: str, folder: str, *, shared: bool) -> None:
        core: Any = importlib.import_module("cyclonedds.core")
        domain: Any = importlib.import_module("cyclonedds.domain")
        topics: Any = importlib.import_module("cyclonedds.topic")
        pub: Any = importlib.import_module("cyclonedds.pub")
        sub: Any = importlib.import_module("cyclonedds.sub")
        duration, policy = importlib.import_module("cyclonedds.util").duration, core.Policy
        qos = core.Qos(policy.Reliability.Reliable(duration(seconds=PATIENCE_S)), policy.History.KeepLast(BLOCKS))
        participant = domain.DomainParticipant(1 + zlib.crc32(folder.encode()) % DOMAINS)
        self._types = {topic: _kind(topic, shared) for topic in SIZES}
        self._out = {
            topic: pub.DataWriter(participant, topics.Topic(participant, topic, self._types[topic], qos=qos), qos=qos)
            for topic in SENT[role]
        }
        self._in: dict[str, tuple[Any, Any, Any]] = {}
        """By topic: the reader, its wait set, and its condition, which ends with its last reference."""
        for topic in READ[role]:
            reader = sub.DataReader(participant, topics.Topic(participant, topic, self._types[topic], qos=qos), qos=qos)
            waits = core.WaitSet(participant)
            state = core.ViewState.Any | core.InstanceState.Any | core.SampleState.NotRead
            condition = core.ReadCondition(reader, state)
            waits.attach(condition)
            self._in[topic] = (reader, waits, condition)
        self._held: dict[str, list[Any]] = {topic: [] for topic in READ[role]}
        self._blocks = _Blocks(folder, owner=role == "world") if shared and role in ("world", "watch") else None

    def send(self, topic: str, number: int, data: Bytes) -> None:
        kind = self._types[topic]
        if topic == FRAME and self._blocks is not None:
            # The data are already in the block.
            self._out[topic].write(kind(number=number))
        else:
            self._out[topic].write(kind(number=number, data=data.tobytes()))

    def buffer(self, number: int) -> Bytes:
        return super().buffer(number) if self._blocks is None else self._blocks.view(number)

    def receive(self, topic: str) -> Message:
        reader, waits, _ = self._in[topic]
        held = self._held[topic]
        while not held:
            waits.wait(timeout=10**9)
            # A sample without data tells of a writer that left.
            held += [sample for sample in reader.take() if hasattr(sample, "number")]
        sample = held.pop(0)
        if topic == FRAME and self._blocks is not None:
            return Message(sample.number, self._blocks.view(sample.number))
        return Message(sample.number, np.frombuffer(sample.data, np.uint8))

    def close(self) -> None:
        if self._blocks is not None:
            self._blocks.close()


def _kind(topic: str, shared: bool) -> Any:  # noqa: ANN401
    idl: Any = importlib.import_module("cyclonedds.idl")
    types: Any = importlib.import_module("cyclonedds.idl.types")
    name = f"Drive{topic.capitalize()}"
    fields = {"number": types.int64}
    if not (shared and topic == FRAME):
        fields["data"] = types.array[types.uint8, SIZES[topic]]
    return idl.make_idl_struct(name, name, fields)


class _Blocks:
    """A ring of shared blocks, each for one frame."""

    def __init__(self, folder: str, *, owner: bool) -> None:
        name, self._owner = f"coorp-{Path(folder).name}", owner
        # The reader waits for the first message before it opens the blocks, so they exist.
        self._names = [f"{name}-{index}" for index in range(BLOCKS)]
        self._open = [self._made(name) for name in self._names] if owner else []

    def view(self, number: int) -> Bytes:
        if not self._open:
            self._open = [self._found(name) for name in self._names]
        memory = self._open[number % BLOCKS].buf
        assert memory is not None
        return np.frombuffer(memory, np.uint8, SIZES[FRAME])

    def close(self) -> None:
        if self._owner:
            for block in self._open:
                block.unlink()

    @staticmethod
    def _made(name: str) -> shared_memory.SharedMemory:
        return shared_memory.SharedMemory(name, create=True, size=SIZES[FRAME])

    @staticmethod
    def _found(name: str) -> shared_memory.SharedMemory:
        block = shared_memory.SharedMemory(name)
        # Otherwise this process would remove the block too.
        resource_tracker.unregister(f"/{name}", "shared_memory")
        return block
