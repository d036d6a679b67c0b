"""One robot of a live run: the content of its messages, and what it computes.

    coorp emu TEAM -- python -m coorp.learn.live.robot FOLDER

run.py starts it. The native robot (`coorp emu --demo`'s) has the node, and decides when to perceive, infer, train and
send, and to whom: by the simulator's own MPC loop and DRLC (`crates/sim`). It calls an object of this module for the
content. The leader's inference, its synchronisation and every robot's training are those of a simulated run
(inference.py, learner.py, sync.py, ppo.py). A thread of control and one of learning call at the same time.

Perceptions are those of the world (link.py). Commands are two float32, models and updates are float32 in the order of
`network.flat`, and a partition is the arrays of a `Batch`. Nothing is unpickled.
"""

from __future__ import annotations

import copy
import io
import json
import os
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import coorp
from coorp.envs import Task
from coorp.learn import checkpoint
from coorp.learn.driver import Driver
from coorp.learn.fit import SPEED_MPS, TASK, load, velocities
from coorp.learn.inference import Floats, Inference
from coorp.learn.learner import EPOCH, MODEL_IN, TRAINED, Learner, Pupil
from coorp.learn.live.link import Senses, unpacked
from coorp.learn.network import Network, flat
from coorp.learn.ppo import Batch, Hyper

SETTING, START, MODEL, SOCKET = "setting.json", "start.pt", "model.pt", "world.sock"
"""Files in a run's folder: what to run, the initial weights, the learnt ones, and the world's socket."""
ROUNDS_KEPT = 8
"""Commands of this many rounds are kept; each is sent as soon as the inference has ended."""
SWITCH_S = 0.0005
"""How long a thread that trains may keep Python from one that controls."""


@dataclass(frozen=True)
class Setting:
    """What all robots of a run need to know."""

    team: str
    policy: str
    sync: str | None
    staleness: int | None
    seed: int
    seconds: int
    learns: bool
    speed_mps: float = SPEED_MPS

    def save(self, folder: Path) -> None:
        """Writes it into the run's folder."""
        (folder / SETTING).write_text(json.dumps(vars(self)), encoding="utf-8")

    @staticmethod
    def load(folder: Path) -> Setting:
        """Reads it from there."""
        return Setting(**json.loads((folder / SETTING).read_text(encoding="utf-8")))


def batch_to_bytes(batch: Batch | None) -> bytes:
    """Returns a share of a batch as bytes; none if there is nothing to learn from."""
    if batch is None:
        return b""
    file = io.BytesIO()
    for tensor in vars(batch).values():
        np.save(file, tensor.cpu().numpy(), allow_pickle=False)
    return file.getvalue()


def batch_of_bytes(content: bytes) -> Batch | None:
    """Returns a result of `batch_to_bytes`."""
    if not content:
        return None
    file = io.BytesIO(content)
    return Batch(*(torch.from_numpy(np.load(file, allow_pickle=False)) for _ in Batch.__dataclass_fields__))


def vector_to_bytes(vector: Tensor) -> bytes:
    """Returns a model or an update as bytes."""
    return vector.cpu().numpy().tobytes()


def vector_of_bytes(content: bytes) -> Tensor:
    """Returns a result of `vector_to_bytes`."""
    return torch.frombuffer(bytearray(content), dtype=torch.float32)


class Follower:
    """A robot that does not lead. The native robot calls its methods."""

    def __init__(self, senses: Senses, start: Network | Driver, *, learns: bool) -> None:
        self._senses = senses
        self._network = copy.deepcopy(start)
        self._pupil = Pupil(flat(start), Hyper()) if learns and isinstance(start, Network) else None
        self._share: Batch | None = None

    def begins(self, at_ns: int) -> None:
        """Tells the world when the run begins."""
        self._senses.begins(at_ns)

    def perceive(self, _sample: int) -> tuple[bool, bytes]:
        """Returns whether the run goes on, and the perception for the leader."""
        return self._senses.perceive()

    def on_command(self, _round: int, content: bytes) -> None:
        """Drives as commanded."""
        self._senses.drive(np.frombuffer(content, np.float32, 2))

    def on_partition(self, content: bytes) -> None:
        """Keeps this robot's share of the batch."""
        self._share = batch_of_bytes(content)

    def on_model(self, content: bytes) -> None:
        """Trains from this model on."""
        if self._pupil is not None:
            self._pupil.has = vector_of_bytes(content)

    def train(self) -> bytes:
        """Returns the update from a pass over the share."""
        if self._pupil is None or not isinstance(self._network, Network):
            return b""
        return vector_to_bytes(self._pupil.train(self._network, self._share))


class Leader:
    """The robot that leads. The native robot calls its methods; `robots` and `me` are numbers of robots."""

    def __init__(
        self,
        senses: Senses,
        control: Network | Driver,
        learner: Learner | None,
        folder: Path,
        me: int,
        robots: int,
        seed: int,
        task: Task = TASK,
    ) -> None:
        self._senses = senses
        self._learner = learner
        self._folder = folder
        self._me = me
        self._task = task
        # As in a simulated run, the leader knows at first where everybody starts.
        has = [unpacked(0, senses.perceive(robot)[1]) for robot in range(robots)]
        self._inference = Inference(control, has, seed, explores=learner is not None)
        self._commands: dict[int, Floats] = {}
        self._changes = threading.Lock()
        """Held while the control model infers or changes."""

    def begins(self, at_ns: int) -> None:
        """Tells the world when the run begins."""
        self._senses.begins(at_ns)

    def on_perception(self, robot: int, sample: int, content: bytes) -> None:
        """Takes a robot's perception into account from now on."""
        self._inference.on_perception(robot, unpacked(sample, content))

    def infer(self, number: int) -> bool:
        """Infers from what has arrived, and from what the leader itself perceives; returns whether the run goes on."""
        goes_on, own = self._senses.perceive()
        with self._changes:
            actions = self._inference.infer(self._me, unpacked(0, own))
        self._commands[number] = velocities(actions, self._task)
        self._commands.pop(number - ROUNDS_KEPT, None)
        return goes_on

    def command(self, number: int, robot: int) -> bytes:
        """Returns a robot's command of a round."""
        return self._commands[number][robot].tobytes()

    def on_command(self, _round: int, content: bytes) -> None:
        """Drives as commanded."""
        self._senses.drive(np.frombuffer(content, np.float32, 2))

    def on_event(self, kind: int, robot: int) -> None:
        """Handles an event of learning."""
        # A robot computes its update before this event, and gets its model over the air.
        elsewhere = kind == TRAINED or (kind == MODEL_IN and robot != self._me)
        if self._learner is not None and not elsewhere:
            if kind == EPOCH:
                with self._changes:
                    self._learner.on_event(kind, robot, self._inference)
                checkpoint.save_model(self._folder / MODEL, self._learner.control, "coorp learn --live")
            else:
                self._learner.on_event(kind, robot, self._inference)
        if kind == EPOCH:
            self._senses.epoch_ended()

    def to_worker(self, robot: int) -> bytes:
        """Returns the model for a robot if one is on its way, else its partition."""
        if self._learner is None:
            return b""
        if self._learner.sends_model(robot):
            return vector_to_bytes(self._learner.take_model(robot))
        return batch_to_bytes(self._learner.share(robot))

    def on_update(self, robot: int, content: bytes) -> None:
        """Keeps a robot's update until the event of its arrival."""
        if self._learner is not None:
            self._learner.send_update(robot, vector_of_bytes(content))

    def train(self) -> bytes:
        """Trains on the leader's own share; the update stays here."""
        if self._learner is not None:
            self._learner.on_trained(self._me)
        return b""


def main(folder: Path) -> None:
    """Takes part in a run as the robot of this process."""
    setting = Setting.load(folder)
    team = coorp.Session(setting.team, setting.policy, sync=setting.sync, staleness=setting.staleness).team
    me = team.robots.index(os.environ["COORP_ROBOT"])
    senses = Senses(folder / SOCKET, me)
    torch.set_num_threads(1)
    sys.setswitchinterval(SWITCH_S)
    task = Task.at(setting.speed_mps)
    control = load(folder / START, task)
    content: Follower | Leader
    if me == team.leader:
        learner = None
        if setting.learns and isinstance(control, Network):
            learner = Learner(control, team, Hyper(), here=[me])
        content = Leader(senses, control, learner, folder, me, len(team.robots), setting.seed, task)
    else:
        content = Follower(senses, control, learns=setting.learns)
    from coorp._native import run_member

    run_member(
        setting.team,
        setting.policy,
        folder,
        duration_s=float(setting.seconds),
        content=content,
        sync=setting.sync,
        staleness=setting.staleness,
    )
    # The record is written and the node is closed. Torch takes a second of a core to leave, five robots at once.
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
