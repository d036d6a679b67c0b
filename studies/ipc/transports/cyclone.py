"""CycloneDDS through its Python binding.

As in its documentation: a reliable topic, and a wait set. A frame is an `array[uint8, n]`, which the binding
carries as `bytes`; a `sequence[uint8]` becomes a list of integers and takes ten times as long. Its wheel has no
shared memory. Packets are as large as UDP allows, and only the loopback interface is used.
"""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

from ipc.place import Place, Receiver, Sender, Transport

CONFIG = (
    "<CycloneDDS><Domain><General><Interfaces><NetworkInterface name='lo' multicast='default'/></Interfaces>"
    "<AllowMulticast>spdp</AllowMulticast><MaxMessageSize>65000B</MaxMessageSize><FragmentSize>64000B</FragmentSize>"
    "</General><Internal><SocketReceiveBufferSize max='10MB'/></Internal></Domain></CycloneDDS>"
)
DOMAINS = 200
PATIENCE_S = 30


def frame(size: int) -> Any:  # noqa: ANN401
    """Returns the type of frames of one size."""
    idl: Any = importlib.import_module("cyclonedds.idl")
    types: Any = importlib.import_module("cyclonedds.idl.types")
    return idl.make_idl_struct(f"Frame{size}", f"Frame{size}", {"data": types.array[types.uint8, size]})


class Domain:
    """A participant, and a topic for each size."""

    def __init__(self, place: Place) -> None:
        self.core: Any = importlib.import_module("cyclonedds.core")
        domain: Any = importlib.import_module("cyclonedds.domain")
        topic: Any = importlib.import_module("cyclonedds.topic")
        duration, policy = importlib.import_module("cyclonedds.util").duration, self.core.Policy
        self.qos = self.core.Qos(policy.Reliability.Reliable(duration(seconds=PATIENCE_S)), policy.History.KeepLast(4))
        self.participant = domain.DomainParticipant(1 + zlib.crc32(place.name.encode()) % DOMAINS)
        self.types = {size: frame(size) for size in place.lengths}
        self.topics = {
            size: topic.Topic(self.participant, f"frame{size}", kind, qos=self.qos) for size, kind in self.types.items()
        }


class CycloneSender(Sender):
    """Serialises in Python and writes."""

    def __init__(self, place: Place) -> None:
        pub: Any = importlib.import_module("cyclonedds.pub")
        self._domain = Domain(place)
        topics = self._domain.topics.items()
        self._writers = {
            size: pub.DataWriter(self._domain.participant, topic, qos=self._domain.qos) for size, topic in topics
        }

    def send(self, array: np.ndarray) -> None:
        size = len(array)
        self._writers[size].write(self._domain.types[size](data=array.tobytes()))


class CycloneReceiver(Receiver):
    """Waits for all sizes at once."""

    def __init__(self, place: Place) -> None:
        sub: Any = importlib.import_module("cyclonedds.sub")
        self._domain = Domain(place)
        core, participant = self._domain.core, self._domain.participant
        topics = self._domain.topics.values()
        self._readers = [sub.DataReader(participant, topic, qos=self._domain.qos) for topic in topics]
        self._waits = core.WaitSet(participant)
        state = core.ViewState.Any | core.InstanceState.Any | core.SampleState.NotRead
        # Kept, because a condition ends with its last reference.
        self._conditions = [core.ReadCondition(reader, state) for reader in self._readers]
        for condition in self._conditions:
            self._waits.attach(condition)

    def run(self, take: Callable[[np.ndarray], bool]) -> None:
        while True:
            self._waits.wait(timeout=10**9)
            for reader in self._readers:
                for sample in reader.take():
                    # A sample without data tells of a writer that left.
                    if hasattr(sample, "data") and not take(np.frombuffer(sample.data, np.uint8)):
                        return


class Cyclone(Transport):
    name = "CycloneDDS"
    packages = ("cyclonedds==11.0.1",)
    module = "cyclonedds"

    def environment(self, place: Place) -> dict[str, str]:
        return {"CYCLONEDDS_URI": CONFIG}

    def sender(self, place: Place) -> Sender:
        return CycloneSender(place)

    def receiver(self, place: Place) -> Receiver:
        return CycloneReceiver(place)


TRANSPORT = Cyclone()
