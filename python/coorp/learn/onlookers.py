"""Observers of a run: a film for the report, and a recording for robotics tools. They change nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from coorp.envs import Navigation
from coorp.learn.world import NS

if TYPE_CHECKING:
    from coorp.learn.outcome import History
    from coorp.record import Recorder

FILM_S, FILM_HZ, FILM_PIXELS = 12, 10, 300
COLOURS = 64


class Onlooker(Protocol):
    """The events that observers receive; times are virtual nanoseconds."""

    def on_perception(self, t_ns: int, robot: int, image: NDArray[np.uint8]) -> None:
        """Handles a robot's perception."""
        ...

    def on_command(self, t_ns: int, robot: int, velocity: NDArray[np.float32]) -> None:
        """Handles a command by which a robot drives from now on."""
        ...

    def on_loop_ended(self, t_ns: int) -> None:
        """Handles the end of a loop: every robot has its command, or will never get it."""
        ...

    def on_second(self, t_ns: int, history: History) -> None:
        """Handles the end of a second."""
        ...


class Film:
    """The last seconds of a run, from above."""

    def __init__(self, env: Navigation, end_s: int) -> None:
        self._env = env
        self._next_ns = max(0, end_s - FILM_S) * NS
        self._frames: list[Image.Image] = []

    def on_perception(self, t_ns: int, robot: int, image: NDArray[np.uint8]) -> None:
        """Does nothing."""

    def on_command(self, t_ns: int, robot: int, velocity: NDArray[np.float32]) -> None:
        """Does nothing."""

    def on_loop_ended(self, t_ns: int) -> None:
        """Takes a picture if one is due."""
        if t_ns < self._next_ns:
            return
        self._next_ns = max(self._next_ns + NS // FILM_HZ, t_ns - NS // FILM_HZ)
        picture = self._env.render()
        assert picture is not None, "an environment without render_mode"
        height = max(1, FILM_PIXELS * picture.shape[0] // picture.shape[1])
        self._frames.append(Image.fromarray(picture).resize((FILM_PIXELS, height)).quantize(COLOURS))

    def on_second(self, t_ns: int, history: History) -> None:
        """Does nothing."""

    def save(self, path: Path) -> None:
        """Writes the GIF if there are any pictures."""
        if self._frames:
            first, rest = self._frames[0], self._frames[1:]
            first.save(path, save_all=True, append_images=rest, duration=1000 // FILM_HZ, loop=0)


class Tape:
    """Records everything that robots see and do, as MCAP: poses and images when perceived, velocities when commanded,
    and once per second the reward per robot and second and the collisions so far.

    If the disk is full, `failure` says so and the run continues, because it can only stop at a whole second."""

    def __init__(self, recorder: Recorder, env: Navigation) -> None:
        self.failure: OSError | None = None
        self._recorder = recorder
        self._env = env
        self._names = env.possible_agents

    def on_perception(self, t_ns: int, robot: int, image: NDArray[np.uint8]) -> None:
        """Records the pose and the image."""
        x, y, theta = self._env.poses[robot].tolist()
        with self._kept():
            self._recorder.pose(self._names[robot], t_ns / NS, x, y, theta)
            self._recorder.image(self._names[robot], t_ns / NS, image)

    def on_command(self, t_ns: int, robot: int, velocity: NDArray[np.float32]) -> None:
        """Records the velocity."""
        with self._kept():
            self._recorder.velocity(self._names[robot], t_ns / NS, *velocity.tolist())

    def on_loop_ended(self, t_ns: int) -> None:
        """Does nothing."""

    def on_second(self, t_ns: int, history: History) -> None:
        """Records the reward and the collisions."""
        before = history.reward[-2] if len(history.reward) > 1 else 0.0
        with self._kept():
            self._recorder.scalar("reward", t_ns / NS, (history.reward[-1] - before) / len(self._names))
            self._recorder.scalar("collisions", t_ns / NS, history.collisions[-1])

    @contextmanager
    def _kept(self) -> Iterator[None]:
        try:
            yield
        except OSError as problem:
            self.failure = problem
