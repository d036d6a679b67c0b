"""A program on several robots: each runs `coorp run` with the team file, and starts the processes placed on it.

The robot that the placement file names first has the coordinator. A bridge over the robot's node carries messages as
control and large values as permitted bulk.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

from coorp._halves import MISSING
from coorp.reactor.where import refused

if TYPE_CHECKING:
    from coorp.reactor.build import Built

ROBOT_VARIABLE = "COORP_ROBOT"
END_S = 10.0
"""Maximum time for which a robot that has ended waits until the others know."""


@dataclass(frozen=True)
class Robot:
    """This robot's part of a program."""

    name: str
    team: str
    robots: tuple[str, ...]
    """The robot of each federate."""

    @property
    def coordinates(self) -> bool:
        """Whether the coordinator is on this robot."""
        return self.robots[0] == self.name

    @property
    def federates(self) -> list[int]:
        """The numbers of this robot's federates."""
        return [number for number, robot in enumerate(self.robots) if robot == self.name]


def robot_of(built: Built, team: str | None, robot: str | None, options: Mapping[str, Any]) -> Robot | None:
    """Returns this robot's part of the program; None if all of it runs on one machine."""
    robots = built.placement.robots
    if team is None:
        if robot is not None:
            raise refused("run: `robot` needs `team`, the team file")
        return None
    if not robots:
        raise refused("run: `team` needs a placement file with a table for each robot, as `place`")
    name = os.environ.get(ROBOT_VARIABLE) if robot is None else robot
    if name is None:
        raise refused(f"run: which robot is this? Give `robot`, or set {ROBOT_VARIABLE}")
    if name not in robots:
        placed = ", ".join(dict.fromkeys(robots))
        raise refused(f"run: the placement has nothing for the robot {name!r}; it has {placed}")
    if options["coordination"] != "centralised":
        raise refused("run: over several robots, coordination is centralised")
    return Robot(name, team, robots)


class Bridged:
    """The robot's node and its bridge, while the program runs."""

    def __init__(self, built: Built, robot: Robot, settings: Mapping[str, Any], failed: Callable[[str], None]) -> None:
        self.built = built
        self.robot = robot
        self.settings = settings
        self.failed = failed

    def __enter__(self) -> None:
        try:
            from coorp import Node
            from coorp._native import Bridge
        except ImportError:
            raise refused(f"run: a program over several robots needs {MISSING}") from None
        self.node = Node(self.robot.team, self.robot.name)
        try:
            settings = {**self.settings, "rti": self.robot.robots[0]}
            self.bridge = Bridge(self.built.graph, list(self.robot.robots), self.node, settings)
        except BaseException:
            self.node.close()
            raise
        self.thread = threading.Thread(target=self._run, name="coorp bridge", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.bridge.run()
        except Exception as problem:
            self.failed(f"the bridge to the other robots failed: {problem}")

    def __exit__(
        self, kind: type[BaseException] | None, _value: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.thread.join(END_S)
        self.bridge.quit()
        self.thread.join()
        self.node.close()
