"""dora-rs, whose daemon starts the nodes of a dataflow.

As in its Python guide: `send_output` of an Arrow array, `send_output_raw` for a buffer to fill, and a loop over
events. Its pool of shared memory has 8 MB by default; larger messages need `shared_memory_pool_size`.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ipc.place import Place, Receiver, Sender, Transport

POOL_BYTES = 256 << 20
OUTPUT = "frame"


class DoraSender(Sender):
    """A node with one output."""

    def __init__(self, place: Place) -> None:
        self._arrow: Any = importlib.import_module("pyarrow")
        self._node: Any = importlib.import_module("dora").Node()
        self._sample: Any = None

    def send(self, array: np.ndarray) -> None:
        self._node.send_output(OUTPUT, self._arrow.array(array))

    def load(self, array: np.ndarray) -> None:
        self._sample = self._node.send_output_raw(OUTPUT, len(array))
        with self._sample.as_memoryview() as view:
            view[:] = array.data

    def send_loaded(self) -> None:
        self._sample.send()
        self._sample = None


class DoraReceiver(Receiver):
    """A node with an input per sender."""

    def __init__(self, place: Place) -> None:
        self._node: Any = importlib.import_module("dora").Node()

    def run(self, take: Callable[[np.ndarray], bool]) -> None:
        for event in self._node:
            if event["type"] == "STOP":
                return
            if event["type"] == "INPUT" and not take(event["value"].to_numpy()):
                return


class Dora(Transport):
    name = "dora-rs"
    packages = ("dora-rs==1.1.0", "dora-rs-cli==1.1.0", "pyarrow==26.0.1")
    module = "dora"
    loans = True

    def commands(self, places: list[Place], python: str) -> list[list[str]]:
        def node(place: Place) -> dict[str, Any]:
            about = {"id": f"{place.role}-{place.index}", "path": python, "args": f"-m ipc.node {place.path}"}
            if place.role == "sender":
                return {**about, "outputs": [OUTPUT], "shared_memory_pool_size": POOL_BYTES}
            senders = range(place.senders)
            return {**about, "inputs": {f"{OUTPUT}-{index}": f"sender-{index}/{OUTPUT}" for index in senders}}

        flow = Path(places[0].folder) / "dataflow.yml"
        # JSON is YAML.
        flow.write_text(json.dumps({"nodes": [node(place) for place in places]}))
        return [[str(Path(python).with_name("dora")), "run", str(flow)]]

    def sender(self, place: Place) -> Sender:
        return DoraSender(place)

    def receiver(self, place: Place) -> Receiver:
        return DoraReceiver(place)


TRANSPORT = Dora()
