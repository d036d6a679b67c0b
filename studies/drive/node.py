"""One node of the drive over a peer: `python -m drive.node TRANSPORT ROLE FOLDER STEPS`.

A node does the same as the reactor of its role in `examples/drive/app.py`, with the same code. The world makes a frame
each period, but not before the command for the last one has arrived, and the fusion waits for both of its inputs, as in
the paper.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from pathlib import Path

import numpy as np

# The example's own modules.
from nodes import PERIOD_NS, Agent, Command, Detector, View, World, fuse

from drive.bus import (
    COMMAND,
    FRAME,
    FRAME_SHAPE,
    HELLO,
    IMAGE,
    IMAGE_BYTES,
    OBSTACLES,
    PLAN,
    SECTORS,
    SENT,
    SIZES,
    VIEW,
    Bus,
    Bytes,
    Message,
    pair_bytes,
    pair_of,
)
from drive.over_cyclone import CycloneBus
from drive.over_zenoh import ZenohBus

TRANSPORTS = {
    "zenoh": lambda role, folder: ZenohBus(role, folder, shared=False),
    "zenoh-shared": lambda role, folder: ZenohBus(role, folder, shared=True),
    "cyclone": lambda role, folder: CycloneBus(role, folder, shared=False),
    "cyclone-shared": lambda role, folder: CycloneBus(role, folder, shared=True),
}
HELLO_S = 0.2
SETTLE_S = 1.0
"""Time from the meeting of the nodes to the first frame."""


class Node:
    """The common part of all nodes."""

    def __init__(self, bus: Bus, role: str, folder: str, steps: int) -> None:
        self.bus, self.folder, self.steps = bus, Path(folder), steps
        self._topics = SENT[role]

    def hello(self) -> None:
        """Greets the next nodes."""
        for topic in self._topics:
            self.bus.send(topic, HELLO, np.zeros(SIZES[topic], np.uint8))

    def next(self, topic: str) -> Message:
        """Returns the next message with content. Passes greetings on."""
        while (message := self.bus.receive(topic)).number == HELLO:
            self.hello()
        return message

    def write(self, name: str, content: object) -> None:
        """Writes a file for the study."""
        (self.folder / f"{name}.json").write_text(json.dumps(content))


def run_world(node: Node) -> None:
    """Makes views and frames."""
    world, taken = World(), []
    _meet(node)
    time.sleep(SETTLE_S)
    begin = time.monotonic_ns()
    command: Command | None = None
    for number in range(1, node.steps + 1):
        time.sleep(max(0.0, (begin + number * PERIOD_NS - time.monotonic_ns()) / 1e9))
        world.step(command)
        frame = node.bus.buffer(number)
        view = world.look(frame.reshape(FRAME_SHAPE))
        taken.append(time.monotonic_ns())
        node.bus.send(VIEW, number, np.concatenate((view["image"].reshape(-1), view["vector"].view(np.uint8))))
        node.bus.send(FRAME, number, frame)
        while (answer := node.bus.receive(COMMAND)).number == HELLO:
            pass
        command = pair_of(answer.data)
    node.write("taken", taken)


def _meet(node: Node) -> None:
    """Sends greetings until one has come all the way round."""
    met = threading.Event()

    def greet() -> None:
        while not met.is_set():
            node.hello()
            met.wait(HELLO_S)

    greeter = threading.Thread(target=greet)
    greeter.start()
    node.bus.receive(COMMAND)
    met.set()
    greeter.join()


def run_driver(node: Node) -> None:
    """Makes plans."""
    agent = Agent()
    for _ in range(node.steps):
        message = node.next(VIEW)
        node.bus.send(PLAN, message.number, pair_bytes(agent.act(_view(message.data))))


def _view(data: Bytes) -> View:
    return {"image": data[:IMAGE_BYTES].reshape(IMAGE), "vector": data[IMAGE_BYTES:].view(np.float32)}


def run_watch(node: Node) -> None:
    """Finds obstacles."""
    detector = Detector()
    for _ in range(node.steps):
        message = node.next(FRAME)
        found = detector.find(message.data.reshape(FRAME_SHAPE))
        node.bus.send(OBSTACLES, message.number, found.reshape(-1).view(np.uint8))


def run_fusion(node: Node) -> None:
    """Fuses plans and obstacles into commands."""
    fused: list[int] = []
    commands: list[Command] = []
    # A first greeting from each side; of the later ones, only the driver's are passed on.
    for topic in (PLAN, OBSTACLES):
        node.bus.receive(topic)
    node.hello()
    for _ in range(node.steps):
        plan = node.next(PLAN)
        while (obstacles := node.bus.receive(OBSTACLES)).number == HELLO:
            pass
        if plan.number != obstacles.number:
            raise ValueError(f"the plan for frame {plan.number} met the obstacles of {obstacles.number}")
        command = fuse(pair_of(plan.data), obstacles.data.view(np.float32).reshape(SECTORS, 2))
        fused.append(time.monotonic_ns())
        commands.append(command)
        node.bus.send(COMMAND, plan.number, pair_bytes(command))
    node.write("fused", {"fused": fused, "commands": commands})


RUN = {"world": run_world, "driver": run_driver, "watch": run_watch, "fusion": run_fusion}


def main() -> None:
    """Plays a role."""
    transport, role, folder, steps = sys.argv[1:]
    bus = TRANSPORTS[transport](role, folder)
    try:
        RUN[role](Node(bus, role, folder, int(steps)))
        # The last messages are still in flight.
        time.sleep(SETTLE_S)
    finally:
        bus.close()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
