"""Reactors: programs whose result depends only on their inputs, in one process, in several, or over robots.

    import numpy as np
    from coorp.reactor import Input, Output, Program, Reactor, Timer, reaction

    class Camera(Reactor):
        frame = Output[np.ndarray]()
        tick = Timer(period="33ms")

        @reaction(tick, effects=frame)
        def grab(self):
            self.frame.set(np.zeros((1080, 1920, 3), np.uint8))

    class Viewer(Reactor):
        image = Input[np.ndarray]()

        @reaction(image)
        def show(self):
            print(self.time, self.image.get().shape)

    app = Program()
    camera, viewer = app.add(Camera()), app.add(Viewer())
    app.connect(camera.frame, viewer.image)

    if __name__ == "__main__":
        app.run(timeout="1s")

Events have tags, and reactions run in the order of their tags. At one tag, a reaction runs after those whose outputs it
reads. docs/reactor.md explains the rest.
"""

from coorp._native import ProgramError, RunError
from coorp.reactor.declare import Input, LogicalAction, Output, PhysicalAction, Timer, reaction, shutdown, startup
from coorp.reactor.launch import ReactorError, Result, ViolationWarning
from coorp.reactor.ports import InputPort, OutputPort, UndeclaredError
from coorp.reactor.program import Program
from coorp.reactor.reactor import Reactor

__all__ = [
    "Input",
    "InputPort",
    "LogicalAction",
    "Output",
    "OutputPort",
    "PhysicalAction",
    "Program",
    "ProgramError",
    "Reactor",
    "ReactorError",
    "Result",
    "RunError",
    "Timer",
    "UndeclaredError",
    "ViolationWarning",
    "reaction",
    "shutdown",
    "startup",
]
