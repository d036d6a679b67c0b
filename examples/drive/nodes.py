"""The work of the drive's nodes, independent of how messages travel, so `app.py` and studies share it."""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path
from typing import TypedDict

import numpy as np
import torch
from camera import COLUMNS, FOCAL, ROWS, Camera, Frame
from detector import SECTORS, DetectorNetwork, Obstacles
from numpy.typing import NDArray

from coorp.envs import VECTOR_FIELDS, Navigation
from coorp.envs.navigation import SIDE
from coorp.learn.fit import fresh, velocities

PERIOD_NS = 33_000_000
"""A command takes effect one period after the frame that it answers."""
LEVEL = "unknown"
WEIGHTS = Path(__file__).with_name("weights.npz")
"""The weights that `train.py` writes."""
STOP_M = 0.35
"""The robot stops if an obstacle in its lane is nearer than this."""
TIME_GAP_S = 0.3
"""The robot drives slowly enough to need this time to reach that distance."""
LANE_M = 0.3
"""Half the width of its lane."""
SURE = 0.5
"""Less probable obstacles are ignored."""

Command = tuple[float, float]
"""Speed in m/s and turn in rad/s."""
BRAKE: Command = (0.0, 0.0)


class View(TypedDict):
    """The agent's observation."""

    image: NDArray[np.uint8]
    """(64, 64, 3): the surroundings from above."""
    vector: NDArray[np.float32]
    """(9,): `coorp.envs.VECTOR_FIELDS`."""


class World:
    """One robot among moving obstacles. It starts again wherever a drive ends."""

    def __init__(self, seed: int = 1, level: str = LEVEL) -> None:
        self.env = Navigation(level, robots=1, endless=True)
        self.env.reset(seed=seed)
        self._camera = Camera(self.env)
        self._now_ns = 0

    def step(self, command: Command | None) -> None:
        """Drives for a period by the previous command, then takes `command`."""
        self._now_ns += PERIOD_NS
        self.env.advance_to_ns(self._now_ns)
        if command is not None:
            self.env.set_velocity(0, command)

    def look(self, frame: Frame) -> View:
        """Returns the agent's current view, and fills `frame` with the detector's."""
        images, vectors = self.env.observe(0)
        self._camera.take(frame)
        return {"image": images[0], "vector": vectors[0]}

    def summary(self) -> str:
        """How the drive went so far."""
        tally = self.env.tally()
        return (
            f"{self._now_ns / 1e9:.1f} s: {tally.arrivals[0]} arrivals, {tally.collisions[0]} collisions, "
            f"{tally.timeouts[0]} timeouts"
        )


class Agent:
    """The PPO policy."""

    def __init__(self) -> None:
        one_thread()
        self._network = fresh()
        load_weights(self._network, "agent")
        # Torch is slow the first time.
        self.act({"image": np.zeros((SIDE, SIDE, 3), np.uint8), "vector": np.zeros(len(VECTOR_FIELDS), np.float32)})

    def act(self, view: View) -> Command:
        """Returns the policy's velocity."""
        # Copied, because torch warns of read-only arrays.
        action = self._network.act(view["image"][None].copy(), view["vector"][None].copy())
        speed, turn = velocities(action)[0].tolist()
        return speed, turn


class Detector:
    """The obstacle detector."""

    def __init__(self) -> None:
        one_thread()
        self._network = DetectorNetwork()
        load_weights(self._network, "detector")
        self.find(np.zeros((COLUMNS, ROWS, 3), np.uint8))

    def find(self, frame: Frame) -> Obstacles:
        """Returns the obstacles in a frame, by sector."""
        return self._network.find(frame)


def fuse(plan: Command, obstacles: Obstacles) -> Command:
    """Slows the plan down for obstacles in the lane."""
    ahead, aside = obstacles[:, 1] * _COS, np.abs(obstacles[:, 1] * _SIN)
    in_way = (obstacles[:, 0] >= SURE) & (aside <= LANE_M)
    free_m = float(ahead[in_way].min(initial=np.inf))
    return min(plan[0], max(0.0, (free_m - STOP_M) / TIME_GAP_S)), plan[1]


_SLOPES = ((np.arange(SECTORS) + 0.5) / SECTORS - 0.5) * COLUMNS / FOCAL
_COS = (1 / np.hypot(1.0, _SLOPES)).astype(np.float32)
_SIN = (_SLOPES / np.hypot(1.0, _SLOPES)).astype(np.float32)


class Digest:
    """A hash that two runs share only if they gave the same commands at the same times."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self.count = 0

    def add(self, time_ns: int, command: Command) -> None:
        """Adds a command that answers the frame of this time."""
        self._hash.update(struct.pack("<qdd", time_ns, *command))
        self.count += 1

    def __str__(self) -> str:
        return self._hash.hexdigest()[:16]


def one_thread() -> None:
    """Makes inference independent of the number of cores."""
    torch.set_num_threads(1)


def load_weights(network: torch.nn.Module, name: str) -> None:
    """Loads a network's share of the weights."""
    with np.load(WEIGHTS, allow_pickle=False) as file:
        state = {
            key.removeprefix(f"{name}."): torch.from_numpy(file[key]) for key in file if key.startswith(f"{name}.")
        }
    network.load_state_dict(state)
