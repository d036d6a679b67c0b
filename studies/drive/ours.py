"""The drive over coorp.reactor: `python studies/drive/ours.py PLACE COORDINATION FOLDER STEPS`.

The program of `examples/drive/app.py`, whose camera and fusion also note their times. Its fusion has no deadline here,
so that all transports give all commands.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "drive"
if str(EXAMPLE) not in sys.path:
    sys.path.insert(0, str(EXAMPLE))

from app import Camera, Driver, Fusion, Watch  # noqa: E402
from camera import Frame  # noqa: E402
from nodes import Command, View, World  # noqa: E402

from coorp.reactor import Program, reaction, startup  # noqa: E402

PLACE, COORDINATION, FOLDER, STEPS = sys.argv[1:]


class TimedWorld(World):
    """Notes the times at which frames were taken."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: list[int] = []

    def look(self, frame: Frame) -> View:
        view = super().look(frame)
        self.taken.append(time.monotonic_ns())
        return view


class TimedCamera(Camera):
    """Ends the program after its last frame."""

    @reaction(startup)
    def open(self) -> None:
        self.world: TimedWorld = TimedWorld()

    def grab(self) -> None:
        super().grab()
        if len(self.world.taken) == int(STEPS):
            self.stop()

    def close(self) -> None:
        Path(FOLDER, "taken.json").write_text(json.dumps(self.world.taken))


class TimedFusion(Fusion):
    """Notes its commands and their times."""

    def __init__(self) -> None:
        super().__init__()
        self.fused: list[int] = []
        self.commands: list[Command] = []

    @reaction(Fusion.plan, Fusion.obstacles, effects=Fusion.command)
    def fuse(self) -> None:
        super().fuse()

    def give(self, command: Command) -> None:
        self.fused.append(time.monotonic_ns())
        self.commands.append(command)
        self.command.set(command)

    def close(self) -> None:
        Path(FOLDER, "fused.json").write_text(json.dumps({"fused": self.fused, "commands": self.commands}))


program = Program()
camera, driver = program.add(TimedCamera(), "camera"), program.add(Driver())
watch, fusion = program.add(Watch()), program.add(TimedFusion(), "fusion")
program.connect(camera.view, driver.view)
program.connect(camera.frame, watch.frame)
program.connect(driver.plan, fusion.plan)
program.connect(watch.obstacles, fusion.obstacles)
program.connect(fusion.command, camera.command, after="33ms")

if __name__ == "__main__":
    program.run(place=PLACE, coordination="centralised" if COORDINATION == "centralised" else "decentralised")
