"""A program on two robots. Each robot runs `python reactor_robots.py FOLDER`, with its name in COORP_ROBOT.

A camera on `rover` sends large arrays to an agent on `base`, whose small commands go back to a log on `rover`. Every
federate is a thread here. The log's lines go to FOLDER/log.json.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path

import numpy as np

import coorp
from coorp._native import Bridge, Coordinator
from coorp.reactor import Input, Output, Program, Reactor, Timer, reaction
from coorp.reactor.build import build
from coorp.reactor.federate import Failed, runner
from coorp.reactor.place import Placement

FRAMES = 40
PERIOD_MS = 50
FRAME_BYTES = 150_000
ROBOTS = {"rover.sense": "rover", "base.think": "base", "rover.act": "rover"}
PLACES = {"camera": "rover.sense", "agent": "base.think", "log": "rover.act"}


class Camera(Reactor):
    """Sends frames, and the number of each to the log."""

    frame = Output[np.ndarray]()
    number = Output[int]()
    tick = Timer(period=f"{PERIOD_MS}ms")

    def __init__(self) -> None:
        self.count = 0

    @reaction(tick, effects=(frame, number))
    def grab(self) -> None:
        self.count += 1
        self.frame.set(np.full(FRAME_BYTES, self.count % 251, dtype=np.uint8))
        self.number.set(self.count)
        if self.count == FRAMES:
            self.stop()


class Agent(Reactor):
    """Adds up each frame."""

    frame = Input[np.ndarray]()
    command = Output[int]()

    @reaction(frame, effects=command)
    def decide(self) -> None:
        frame = self.frame.get()
        assert frame is not None
        self.command.set(int(frame.sum()))


class Log(Reactor):
    """Notes each value and its tag."""

    number = Input[int]()
    command = Input[int]()

    def __init__(self) -> None:
        self.lines: list[tuple[int, int, int | None, int | None]] = []

    @reaction(number, command)
    def note(self) -> None:
        self.lines.append((self.time, self.microstep, self.number.get(), self.command.get()))


def program() -> tuple[Program, Log]:
    """Returns the program, which does not depend on where it runs, and its log."""
    made = Program()
    camera, agent, log = made.add(Camera()), made.add(Agent()), made.add(Log())
    made.connect(camera.frame, agent.frame)
    made.connect(camera.number, log.number)
    made.connect(agent.command, log.command)
    return made, log


def main() -> None:
    """Runs this robot's part."""
    folder, here = Path(sys.argv[1]), os.environ["COORP_ROBOT"]
    federates = tuple(ROBOTS)
    made, log = program()
    built = build(made, Placement(federates, {name: federates.index(place) for name, place in PLACES.items()}))
    settings = {"domain": f"robots-{folder.name}-{here}", "time_of_day": True}
    with coorp.Node(folder / "team.toml", here, state=folder / "state" / here) as node:
        bridge = Bridge(built.graph, [ROBOTS[federate] for federate in federates], node, {**settings, "rti": "base"})
        threads = [threading.Thread(target=bridge.run)]
        if here == "base":
            threads.append(threading.Thread(target=Coordinator(built.graph, settings).run))
        for number, federate in enumerate(federates):
            if ROBOTS[federate] == here:
                threads.append(threading.Thread(target=runner(built, number, settings, Failed()).run))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if here == "rover":
        (folder / "log.json").write_text(json.dumps(log.lines))


if __name__ == "__main__":
    main()
