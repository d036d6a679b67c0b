"""Figure 3: the time to turn an array of 5 MB into bytes and back."""

from __future__ import annotations

import importlib
import pickle
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ipc.peers import known
from ipc.published import MB

BYTES = 5 * MB
BEST = "out-of-band pickle 5"
"""The codec with which the others are compared."""
FEWEST, MOST = 3, 2000
"""Minimum and maximum number of repetitions."""


@dataclass(frozen=True)
class Way:
    """One way to serialise."""

    name: str
    to_bytes: Callable[[np.ndarray], Any]
    from_bytes: Callable[[Any], np.ndarray]


@dataclass(frozen=True)
class Speed:
    """Medians."""

    to_us: float
    from_us: float


def out_of_band(array: np.ndarray) -> tuple[bytes, list[pickle.PickleBuffer]]:
    """Pickles by protocol 5, with the data beside the stream."""
    buffers: list[pickle.PickleBuffer] = []
    return pickle.dumps(array, 5, buffer_callback=buffers.append), buffers


def cdr() -> Way:
    """Returns CycloneDDS's CDR of a `sequence[uint8]`, the field of a ROS 2 message for an image.

    The package that the paper measures turns an array into such a message and back.
    """
    idl: Any = importlib.import_module("cyclonedds.idl")
    types: Any = importlib.import_module("cyclonedds.idl.types")
    image = idl.make_idl_struct("Image", "Image", {"data": types.sequence[types.uint8]})
    return Way(
        "CDR of a sequence[uint8]",
        lambda array: image(data=array.data).serialize(),
        lambda message: np.array(image.deserialize(message).data, np.uint8),
    )


def ways() -> list[Way]:
    """Returns the codecs that can be measured here."""
    found = [
        Way("in-band pickle", lambda array: pickle.dumps(array, 5), pickle.loads),
        Way(BEST, out_of_band, lambda made: pickle.loads(made[0], buffers=made[1])),
    ]
    if known("coorp.reactor.codec"):
        codec: Any = importlib.import_module("coorp.reactor.codec")
        found.append(Way("coorp", codec.encode, lambda made: codec.decode(*made)))
    if known("cyclonedds"):
        found.append(cdr())
    return found


def measure(limit_s: float) -> dict[str, Speed]:
    """Measures each codec in both directions, for `limit_s` each."""
    array = np.random.default_rng(1).integers(0, 256, BYTES, np.uint8)
    found = {}
    for way in ways():
        made = way.to_bytes(array)
        if not np.array_equal(way.from_bytes(made), array):
            raise ValueError(f"{way.name} does not give the array back")
        found[way.name] = Speed(median_us(limit_s, way.to_bytes, array), median_us(limit_s, way.from_bytes, made))
    return found


def median_us(limit_s: float, work: Callable[[Any], object], on: object) -> float:
    """Returns the median duration."""
    took: list[int] = []
    late = time.monotonic() + limit_s
    while len(took) < FEWEST or (len(took) < MOST and time.monotonic() < late):
        begun = time.perf_counter_ns()
        work(on)
        took.append(time.perf_counter_ns() - begun)
    return 1e-3 * statistics.median(took)
