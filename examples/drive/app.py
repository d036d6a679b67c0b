"""A robot that drives by camera: two networks run in parallel, and a third node decides, in time or not at all.

    pip install 'coorp[learn]'
    coorp run examples/drive/app.py --timeout 60s
    coorp run examples/drive/app.py --timeout 60s --place processes --coordination decentralised
    coorp run examples/drive/app.py --timeout 60s --place processes --fast

The camera sends a view from above to the agent, a policy trained by PPO, and a frame of 3 MB to an obstacle detector.
The fusion slows the agent's plan down for obstacles in the way, and brakes if the two took too long. The command takes
effect one period after the frame, in logical time. So the same frames give the same commands on one core, on two, or
in four processes, unless a deadline is missed; with `--fast` none is. The last lines show a digest of all commands.

On two robots over emulated WiFi, with the frames as bulk:

    coorp keys init examples/drive/team.toml
    sudo coorp emu examples/drive/team.toml -- coorp run examples/drive/app.py --fast --timeout 3s \\
        --place examples/drive/robots.toml --team examples/drive/team.toml
"""

from __future__ import annotations

import numpy as np
from camera import FRAME_SHAPE, Frame
from detector import Obstacles
from nodes import BRAKE, Agent, Command, Detector, Digest, View, World, fuse

from coorp.reactor import Input, Output, Program, Reactor, Timer, reaction, shutdown, startup


class Camera(Reactor):
    """The world, and the robot's view of it."""

    command = Input[Command]()
    view = Output[View]()
    frame = Output[Frame]()
    tick = Timer(period="33ms", offset="2s")  # the networks are loaded by then

    @reaction(startup)
    def open(self) -> None:
        self.world = World()

    @reaction(tick, uses=command, effects=(view, frame))
    def grab(self) -> None:
        self.world.step(self.command.get())
        frame = self.frame.loan(FRAME_SHAPE, np.uint8)
        self.view.set(self.world.look(frame))
        self.frame.set(frame)

    @reaction(shutdown)
    def close(self) -> None:
        print(self.world.summary())


class Driver(Reactor):
    """The agent: a plan for each view."""

    view = Input[View]()
    plan = Output[Command]()

    @reaction(startup)
    def load(self) -> None:
        self.agent = Agent()

    @reaction(view, effects=plan)
    def act(self) -> None:
        view = self.view.get()
        assert view is not None
        self.plan.set(self.agent.act(view))


class Watch(Reactor):
    """The detector: the obstacles in each frame."""

    frame = Input[Frame]()
    obstacles = Output[Obstacles]()

    @reaction(startup)
    def load(self) -> None:
        self.detector = Detector()

    @reaction(frame, effects=obstacles)
    def find(self) -> None:
        frame = self.frame.get()
        assert frame is not None
        self.obstacles.set(self.detector.find(frame))


class Fusion(Reactor):
    """Decides."""

    plan = Input[Command]()
    obstacles = Input[Obstacles]()
    command = Output[Command]()

    def __init__(self) -> None:
        self.digest, self.late = Digest(), 0

    @reaction(plan, obstacles, effects=command, deadline="25ms", late="brake")
    def fuse(self) -> None:
        plan, obstacles = self.plan.get(), self.obstacles.get()
        assert plan is not None and obstacles is not None
        self.give(fuse(plan, obstacles))

    def brake(self) -> None:
        self.late += 1
        self.give(BRAKE)

    def give(self, command: Command) -> None:
        self.digest.add(self.time, command)
        self.command.set(command)

    @reaction(shutdown)
    def close(self) -> None:
        print(f"{self.digest.count} commands, {self.late} of them late; digest {self.digest}")


app = Program()
camera, driver, watch, fusion = app.add(Camera()), app.add(Driver()), app.add(Watch()), app.add(Fusion())
app.connect(camera.view, driver.view)
app.connect(camera.frame, watch.frame)
app.connect(driver.plan, fusion.plan)
app.connect(watch.obstacles, fusion.obstacles)
app.connect(fusion.command, camera.command, after="33ms")

if __name__ == "__main__":
    app.run(timeout="60s")
