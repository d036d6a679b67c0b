"""A program that uses every feature of reactors: `python -m determinism.pipeline --place one`.

Sensors with timers of different periods, arrays that pass between processes as shared memory, nested values, logical
actions, delays, microsteps, several events at one tag, and a cycle with a delay. Its physical inputs are sensor
readings, which follow from `--seed`.

Prints the digest of everything that its reactions did, and the duration of the run, as one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np

from coorp.reactor import Input, LogicalAction, Output, Program, Reactor, Timer, reaction, startup

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
PIXELS = (200, 500)
"""100 KB, so that an image goes through shared memory."""


def seed() -> int:
    """Returns the command line's seed, in every process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_known_args()[0].seed


class Readable(Protocol[T_co]):
    """An input or an action."""

    def get(self) -> T_co | None: ...


def present(port: Readable[T]) -> T:
    """Returns the value of a port that triggers the reaction or is known to be present."""
    value = port.get()
    assert value is not None
    return value


@dataclass
class Box:
    """A finding."""

    at: tuple[int, int]
    brightness: float


class Camera(Reactor):
    """Sends images with their numbers."""

    gain, image = Input[float](), Output[dict[str, Any]]()
    tick = Timer(period="4ms")

    def __init__(self, number: int) -> None:
        self.random = np.random.default_rng((seed(), number))
        self.factor = 1.0
        self.count = 0

    @reaction(gain)
    def adjust(self) -> None:
        self.factor = present(self.gain)

    @reaction(tick, effects=image)
    def grab(self) -> None:
        pixels = (self.random.random(PIXELS) * 255 * self.factor).astype(np.uint8)
        self.count += 1
        self.image.set({"pixels": pixels, "about": {"number": self.count, "time": self.time}})


class Lidar(Reactor):
    """Sends distances, small enough for the message itself."""

    scan = Output[np.ndarray]()
    tick = Timer(period="3ms", offset="1ms")

    def __init__(self) -> None:
        self.random = np.random.default_rng((seed(), 100))

    @reaction(tick, effects=scan)
    def turn(self) -> None:
        self.scan.set(self.random.random(360))


class Detector(Reactor):
    """Finds boxes, some of them after a delay."""

    image, boxes = Input[dict[str, Any]](), Output[list[Box]]()
    later = LogicalAction[list[Box]]()

    @reaction(image, effects=[boxes, later])
    def detect(self) -> None:
        pixels = present(self.image)["pixels"]
        brightest = int(pixels.argmax())
        found = [Box(divmod(brightest, PIXELS[1]), float(pixels.mean()))]
        self.boxes.set(found)
        if brightest % 3 == 0:
            self.later.schedule(found * 2, after="500us")

    @reaction(later, effects=boxes)
    def repeat(self) -> None:
        self.boxes.set(present(self.later))


class Fusion(Reactor):
    """Computes a result that depends on the order of everything that it receives."""

    left, right = Input[list[Box]](), Input[list[Box]]()
    scan = Input[np.ndarray]()
    command, gain = Output[tuple[float, int]](), Output[float]()
    again = LogicalAction[int]()

    def __init__(self) -> None:
        self.state = 0.5

    @reaction(left, effects=[command, again])
    def on_left(self) -> None:
        self.state = (self.state * 1.37 + sum(box.brightness for box in present(self.left))) % 1.0
        self.again.schedule(3)
        self.command.set((self.state, 1))

    @reaction(right, effects=command)
    def on_right(self) -> None:
        self.state = (self.state * 1.71 + len(present(self.right))) % 1.0
        self.command.set((self.state, 2))

    @reaction(scan, uses=[left, right], effects=command)
    def on_scan(self) -> None:
        seen = self.left.is_present() + 2 * self.right.is_present()
        self.state = (self.state * 1.13 + float(present(self.scan)[seen])) % 1.0
        self.command.set((self.state, 3))

    @reaction(again, effects=[again, gain])
    def settle(self) -> None:
        left = present(self.again)
        self.state = (self.state * 1.9) % 1.0
        if left:
            self.again.schedule(left - 1)
        else:
            self.gain.set(0.5 + self.state / 2)


class Motor(Reactor):
    """Acts."""

    command = Input[tuple[float, int]]()
    moved = Output[float]()

    def __init__(self) -> None:
        self.place = 0.0

    @reaction(startup, effects=moved)
    def home(self) -> None:
        self.moved.set(self.place)

    @reaction(command, effects=moved)
    def move(self) -> None:
        speed, kind = present(self.command)
        self.place += speed / kind
        self.moved.set(self.place)


class Log(Reactor):
    """Receives everything at the same tags."""

    moved, scan, line = Input[float](), Input[np.ndarray](), Output[str]()

    @reaction(moved, scan, effects=line)
    def write(self) -> None:
        self.line.set(f"{self.time} {self.microstep} {self.moved.get()} {self.scan.is_present()}")


app = Program()
cameras = [app.add(Camera(number), name=f"camera_{number}") for number in range(2)]
detectors = [app.add(Detector(), name=f"detector_{number}") for number in range(2)]
lidar, fusion, motor, log = app.add(Lidar()), app.add(Fusion()), app.add(Motor()), app.add(Log())
for camera, detector, boxes in zip(cameras, detectors, (fusion.left, fusion.right), strict=True):
    app.connect(camera.image, detector.image)
    app.connect(detector.boxes, boxes)
    app.connect(fusion.gain, camera.gain, after="2ms")
app.connect(lidar.scan, fusion.scan)
app.connect(lidar.scan, log.scan, after="1ms")
app.connect(fusion.command, motor.command)
app.connect(motor.moved, log.moved)

HALVES = """
seeing = ["camera_0", "detector_0", "lidar"]
acting = ["camera_1", "detector_1", "fusion", "motor", "log"]
"""


def main() -> None:
    """Runs the program."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int)
    parser.add_argument("--place", choices=["one", "processes", "halves"], default="one")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--coordination", choices=["centralised", "decentralised"], default="centralised")
    parser.add_argument("--fast", action="store_true")
    parser.add_argument("--timeout", default="1s")
    options = parser.parse_args(sys.argv[1:])
    with tempfile.TemporaryDirectory() as folder:
        place: str | Path = options.place
        if place == "halves":
            place = Path(folder) / "halves.toml"
            place.write_text(HALVES)
        begun = time.monotonic()
        result = app.run(
            coordination=options.coordination,
            place=place,
            threads=options.threads,
            fast=options.fast,
            timeout=options.timeout,
            digest=True,
        )
        took_s = time.monotonic() - begun
    count = sum(counts["count"] for counts in result.reactions.values())
    print(json.dumps({"digest": result.digest, "reactions": count, "took_s": took_s}))


if __name__ == "__main__":
    main()
