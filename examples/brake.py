"""A robot drives towards a wall and brakes. The example of docs/reactor.md.

coorp run examples/brake.py --timeout 1s                    # without a button
coorp run examples/brake.py --timeout 10s -- /dev/stdin      # Enter is the button
"""

from __future__ import annotations

import sys
import threading

import numpy as np

from coorp.reactor import Input, Output, PhysicalAction, Program, Reactor, Timer, reaction, shutdown, startup


class Lidar(Reactor):
    """Measures distances in 360 directions."""

    scan = Output[np.ndarray]()
    tick = Timer(period="50ms")

    @reaction(tick, effects=scan)
    def measure(self) -> None:
        ranges = self.scan.loan(360, np.float32)
        ranges[:] = 1.0 - self.time / 1e9  # a wall that comes nearer by 1 m/s
        self.scan.set(ranges)


class Button(Reactor):
    """Stops the robot. Each byte that can be read from `device` is a press."""

    pressed = PhysicalAction[None]()
    stop_now = Output[bool]()

    def __init__(self, device: str | None) -> None:
        self.device = device

    @reaction(startup)
    def begin(self) -> None:
        if self.device:
            threading.Thread(target=self.wait, args=(self.device,), daemon=True).start()

    def wait(self, device: str) -> None:
        with open(device, "rb", buffering=0) as button:
            while button.read(1):
                self.pressed.schedule()

    @reaction(pressed, effects=stop_now)
    def tell(self) -> None:
        self.stop_now.set(True)


class Brake(Reactor):
    """Speeds up, and stops if something is nearer than `stop_at` metres."""

    scan = Input[np.ndarray]()
    stop_now = Input[bool]()
    command = Output[float]()
    tick = Timer(period="50ms")

    def __init__(self, stop_at: float) -> None:
        self.stop_at = stop_at
        self.speed = 0.0
        self.stopped = False

    @reaction(tick)
    def accelerate(self) -> None:
        self.speed = min(self.speed + 0.1, 1.0)

    @reaction(scan, stop_now, effects=command, deadline="20ms", late="halt")
    def drive(self) -> None:
        scan = self.scan.get()
        if self.stop_now.is_present() or (scan is not None and scan.min() < self.stop_at):
            self.stopped = True
        self.command.set(0.0 if self.stopped else self.speed)

    def halt(self) -> None:
        self.command.set(0.0)


class Motors(Reactor):
    """Carries out commands."""

    command = Input[float]()

    @reaction(command)
    def turn(self) -> None:
        print(f"{self.time / 1e6:g} ms: {self.command.get():.1f} m/s")

    @reaction(shutdown)
    def end(self) -> None:
        print("motors off")


app = Program()
lidar = app.add(Lidar())
button = app.add(Button(sys.argv[1] if len(sys.argv) > 1 else None))
brake = app.add(Brake(stop_at=0.5))
motors = app.add(Motors())
app.connect(lidar.scan, brake.scan)
app.connect(button.stop_now, brake.stop_now)
app.connect(brake.command, motors.command)

if __name__ == "__main__":
    app.run(timeout="1s")
