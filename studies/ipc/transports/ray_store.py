"""Ray's object store: each node is an actor, in its own process.

As its documentation recommends for large data: `ray.put` once, and the reference as an argument of a method of each
receiver, which gets a read-only array over shared memory. An object cannot be filled in place, so there are no loans.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from ipc import node
from ipc.place import Place, Receiver, Sender, Transport

STORE_BYTES = 1 << 30


class RaySender(Sender):
    """Runs in a sending actor."""

    def __init__(self, receivers: list[Any]) -> None:
        self._ray: Any = importlib.import_module("ray")
        self._receivers = receivers

    def send(self, array: np.ndarray) -> None:
        reference = self._ray.put(array)
        for receiver in self._receivers:
            receiver.take.remote(reference)


class Actor:
    """A node."""

    def __init__(self, path: str) -> None:
        self._place = Place.load(path)
        self._reports = node.Reports(self._place) if self._place.role == "receiver" else None

    def send(self, receivers: list[Any]) -> None:
        """Sends until the end."""
        node.Sending(self._place, RaySender(receivers)).run()

    def take(self, array: np.ndarray) -> None:
        """Receives one message."""
        assert self._reports is not None
        self._reports.take(array)


class RayStore(Transport):
    name = "Ray's object store"
    packages = ("ray==2.60.0",)
    module = "ray"

    def environment(self, place: Place) -> dict[str, str]:
        return {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"}

    def commands(self, places: list[Place], python: str) -> list[list[str]]:
        return [[python, "-m", "ipc.transports.ray_store", *(str(place.path) for place in places)]]

    def sender(self, place: Place) -> Sender:
        raise NotImplementedError("Ray starts its nodes itself")

    def receiver(self, place: Place) -> Receiver:
        raise NotImplementedError("Ray starts its nodes itself")


TRANSPORT = RayStore()


def launch(paths: list[str]) -> None:
    """Starts Ray and the actors, and waits for the senders to end."""
    ray: Any = importlib.import_module("ray")
    places = {path: Place.load(path) for path in paths}
    folder = next(iter(places.values())).folder
    ray.init(
        num_cpus=len(paths),
        object_store_memory=STORE_BYTES,
        include_dashboard=False,
        log_to_driver=False,
        _temp_dir=os.path.join(folder, "ray"),
        _node_ip_address="127.0.0.1",
        runtime_env={"env_vars": {"PYTHONPATH": os.environ["PYTHONPATH"]}},
    )
    remote: Callable[..., Any] = ray.remote(num_cpus=1)(Actor).remote
    actors = {path: remote(path) for path in paths}
    receivers = [actor for path, actor in actors.items() if places[path].role == "receiver"]
    ray.get([actor.send.remote(receivers) for path, actor in actors.items() if places[path].role == "sender"])
    ray.shutdown()


if __name__ == "__main__":
    launch(sys.argv[1:])
