"""One robot that learns while it drives, with torch.distributed and UDP as users have them, for `coorp emu`.

    coorp emu team.toml [--protect] -- python3 studies/lib/gloo_learning.py FOLDER

The world, the inference and the training are those of `coorp learn --live`, and so are the messages' sizes, and the
durations of inference and training. Different are the programs between them: perceptions and commands are datagrams,
marked EF, and learning is torch's gloo. The leader sends each robot its partition; then, in each round, all robots
train and sum their updates by an all-reduce, which is BSP. The control model changes when the leader has the last sum.

A robot perceives by its own clock, and sends nothing before it has its last command or has waited three periods for it.
The leader infers from what has arrived once it has a perception of each robot, or after three periods. Each robot
writes a record, as robots of `coorp emu --demo` do. Its bulk is what TCP delivered while it learnt.
"""

from __future__ import annotations

import contextlib
import copy
import json
import math
import os
import socket
import struct
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from peers import CARD, TOS_EF, tcp_received
from torch import distributed

import coorp
from coorp.learn import checkpoint, ppo
from coorp.learn.fit import SHAPE, velocities
from coorp.learn.inference import Inference
from coorp.learn.learner import Pupil
from coorp.learn.live.link import Senses, in_real_time, unpacked
from coorp.learn.live.robot import MODEL, SOCKET, START, SWITCH_S, Setting, batch_of_bytes, batch_to_bytes
from coorp.learn.network import flat, load_flat

PORT, STORE_PORT = 7200, 29500
PATIENCE = 3
"""Periods after which a robot no longer waits for a message, as in the simulator."""
BIN_NS = 100_000_000
"""As in record.rs."""
LOOK_EVERY_S = 0.1
HEAD = struct.Struct("<QQ")
"""The time of a message in ns, and its sample or round."""
COMMAND = struct.Struct("<2fQ")
"""Speed, turn, and the newest sample of this robot that the leader used."""
INFERENCE_S, INFERENCE_SPREAD, TRAINING_SPREAD = 0.0269, 0.066, 0.1
"""Those of examples/navigation.toml, which the library does not tell."""


@dataclass
class Record:
    """A robot's record, see `crates/cli/src/live/demo/record.rs`."""

    rounds: list[tuple[int, int]] = field(default_factory=list)
    arrivals: list[tuple[int, int]] = field(default_factory=list)
    latencies: list[tuple[int, int]] = field(default_factory=list)
    bins: list[dict[str, int | bool]] = field(default_factory=list)
    epochs: list[int] = field(default_factory=list)
    completions: str | None = None


class Robot:
    """What all robots have."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.setting = Setting.load(folder)
        self.team = coorp.check(self.setting.team)
        assert self.team.learning is not None and self.team.period_s is not None
        self.learning, self.period_s = self.team.learning, self.team.period_s
        self.me = self.team.robots.index(os.environ["COORP_ROBOT"])
        self.leads = self.me == self.team.leader
        self.record = Record()
        self.control = checkpoint.load_model(folder / START, SHAPE)
        # Torch's optimisers take seconds to be imported, which is not for the run.
        self.pupil = Pupil(flat(self.control), ppo.Hyper())
        self.senses = Senses(folder / SOCKET, self.me)
        self.busy = False
        """Whether bulk waits or is under way."""
        self._rng = np.random.default_rng([self.setting.seed, self.me])
        own = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        own.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, TOS_EF)
        own.bind(("", PORT))
        own.settimeout(LOOK_EVERY_S)
        self.socket = own
        os.environ["GLOO_SOCKET_IFNAME"] = CARD
        store = f"tcp://{self.team.robots[self.team.leader]}:{STORE_PORT}"
        distributed.init_process_group("gloo", init_method=store, rank=self.me, world_size=len(self.team.robots))
        # All robots share a clock.
        start = torch.tensor([time.monotonic_ns() + 1_000_000_000])
        distributed.broadcast(start, self.team.leader)
        self.start_ns = int(start)
        self.end_ns = self.start_ns + self.setting.seconds * 1_000_000_000
        self.senses.begins(self.start_ns)

    def goes_on(self) -> bool:
        """Returns whether the run is not over."""
        return time.monotonic_ns() < self.end_ns

    def spread(self, median_s: float, sigma: float) -> float:
        """Draws a duration."""
        return median_s * math.exp(sigma * self._rng.standard_normal())

    def send(self, robot: int, number: int, content: bytes, size: int) -> None:
        """Sends a control message."""
        message = (HEAD.pack(time.monotonic_ns(), number) + content).ljust(size, b"\0")
        # A full card drops it, as it does any datagram.
        with contextlib.suppress(OSError):
            self.socket.sendto(message, (self.addresses[robot], PORT))

    def receive(self, until_s: float) -> tuple[int, int, int, bytes] | None:
        """Waits for a control message. Returns its sender, when it was made, its number and its content."""
        self.socket.settimeout(max(1e-4, min(until_s - time.monotonic(), LOOK_EVERY_S)))
        try:
            message, (address, _) = self.socket.recvfrom(1 << 16)
        except TimeoutError:
            return None
        made_ns, number = HEAD.unpack_from(message)
        now_ns = time.monotonic_ns()
        self.record.latencies.append((now_ns, now_ns - made_ns))
        return self.robots[address], made_ns, number, message[HEAD.size :]

    def resolve(self) -> None:
        """Looks up all robots' addresses."""
        self.addresses = [socket.gethostbyname(name) for name in self.team.robots]
        self.robots = {address: robot for robot, address in enumerate(self.addresses)}

    def watch(self) -> None:
        """Notes ten times a second whether bulk waits; then what TCP has delivered in all, in the last such bin."""
        before = tcp_received()
        last = None
        while self.goes_on():
            number = time.monotonic_ns() // BIN_NS
            time.sleep(max(0.0, (number + 1) * BIN_NS / 1e9 - time.monotonic()))
            one: dict[str, int | bool] = {"number": number, "received": 0, "waiting": self.busy, "held": False}
            self.record.bins.append(one)
            last = one if self.busy else last
        if last is not None:
            last["received"] = tcp_received() - before

    def leave(self) -> None:
        """Writes the record and exits at once, although other threads may wait for other robots."""
        span = {"from_ns": self.start_ns, "to_ns": self.end_ns}
        path = self.folder / f"{self.team.robots[self.me]}.json"
        path.write_text(json.dumps([vars(self.record), span]), encoding="utf-8")
        os._exit(0)

    def learn_or_end(self) -> None:
        """Learns until the end of the run, at which other robots leave first. An earlier failure ends this robot."""
        try:
            self.learn()
        except Exception as problem:
            if self.goes_on():
                print(f"{type(problem).__name__}: {problem}", file=sys.stderr, flush=True)
                os._exit(1)

    # --- learning -------------------------------------------------------------------------------------------------

    def learn(self) -> None:
        """Trains in rounds, epoch by epoch. `model` is the same on all robots."""
        model, network = flat(self.control), copy.deepcopy(self.control)
        while True:
            batch = self.partition()
            for _ in range(self.learning.rounds):
                began = time.monotonic()
                update = self.pupil.train(network, batch)
                lasts_s = self.spread(self.learning.training_s[self.me], TRAINING_SPREAD)
                time.sleep(max(0.0, began + lasts_s - time.monotonic()))
                padded = torch.zeros(max(self.learning.parameters, len(update)))
                padded[: len(update)] = update
                self.busy = True
                distributed.all_reduce(padded)
                self.busy = False
                model = model + padded[: len(update)] / len(self.team.robots)
                self.pupil.has = model
            self.on_epoch(model)

    def partition(self) -> ppo.Batch | None:
        """Returns this robot's share of the next batch, from the leader."""
        length = torch.zeros(1, dtype=torch.int64)
        distributed.recv(length, self.team.leader)
        content = torch.zeros(self.partition_bytes(int(length)), dtype=torch.uint8)
        distributed.recv(content, self.team.leader)
        return batch_of_bytes(content[: int(length)].numpy().tobytes())

    def partition_bytes(self, content: int) -> int:
        """Returns the size of a partition with this content."""
        return max(content, self.learning.item_bytes * self.learning.batch_loops // len(self.team.robots), 1)

    def on_epoch(self, model: torch.Tensor) -> None:
        """Handles the end of an epoch; only the leader's control model matters."""

    def drive(self) -> None:
        """Runs a follower's control loop."""
        assert self.team.perception_bytes is not None
        due_s, sample = self.start_ns / 1e9 + self.period_s, 0
        while self.goes_on():
            time.sleep(max(0.0, due_s - time.monotonic()))
            sample += 1
            self.send(self.team.leader, sample, self.senses.perceive()[1], self.team.perception_bytes)
            until_s = time.monotonic() + PATIENCE * self.period_s
            while time.monotonic() < until_s:
                if (got := self.receive(until_s)) is None:
                    continue
                _, _, number, content = got
                speed, turn, newest = COMMAND.unpack_from(content)
                self.record.arrivals.append((number, time.monotonic_ns()))
                self.senses.drive(np.array([speed, turn], np.float32))
                if newest >= sample:
                    break
            due_s = max(due_s + self.period_s, time.monotonic())


class Leader(Robot):
    """The robot that leads."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        robots = len(self.team.robots)
        has = [unpacked(0, self.senses.perceive(robot)[1]) for robot in range(robots)]
        self.inference = Inference(self.control, has, self.setting.seed, explores=True)
        self._loops = 0
        self._full = threading.Condition()
        self._changes = threading.Lock()

    def drive(self) -> None:
        """Runs the leader's control loop."""
        others = [robot for robot in range(len(self.team.robots)) if robot != self.me]
        number, newest = 0, dict.fromkeys(others, 0)
        while self.goes_on():
            made: dict[int, int] = {}
            until_s = math.inf
            while len(made) < len(others) and time.monotonic() < until_s and self.goes_on():
                if (got := self.receive(until_s)) is None:
                    continue
                robot, made_ns, sample, content = got
                self.inference.on_perception(robot, unpacked(sample, content))
                if not made:
                    until_s = time.monotonic() + PATIENCE * self.period_s
                made[robot], newest[robot] = made_ns, sample
            if not made:
                continue
            ends_s = time.monotonic() + self.spread(INFERENCE_S, INFERENCE_SPREAD)
            with self._changes:
                actions = self.inference.infer(self.me, unpacked(0, self.senses.perceive()[1]))
            commands = velocities(actions)
            time.sleep(max(0.0, ends_s - time.monotonic()))
            self.record.rounds.append((number, min(made.values())))
            for robot in others:
                content = COMMAND.pack(*commands[robot].tolist(), newest[robot])
                self.send(robot, number, content, self.team.command_bytes or 0)
            self.senses.drive(commands[self.me])
            number += 1
            with self._full:
                self._loops += 1
                self._full.notify()

    def partition(self) -> ppo.Batch | None:
        """Collects a batch, and sends each robot its share."""
        self.record.epochs.append(time.monotonic_ns() if self.record.epochs else self.start_ns)
        self.inference.collector.begin()
        with self._full:
            self._loops = 0
            self._full.wait_for(lambda: self._loops >= self.learning.batch_loops)
        got = self.inference.collector.close()
        batch = None if got is None else ppo.prepare(self.control, got, ppo.Hyper())
        robots = len(self.team.robots)
        shares = [None if batch is None else batch.part(robot, robots) for robot in range(robots)]
        self.busy = True
        for robot in range(robots):
            if robot != self.me:
                content = batch_to_bytes(shares[robot])
                padded = bytearray(content.ljust(self.partition_bytes(len(content)), b"\0"))
                distributed.send(torch.tensor([len(content)]), robot)
                distributed.send(torch.frombuffer(padded, dtype=torch.uint8), robot)
        self.busy = False
        return shares[self.me]

    def on_epoch(self, model: torch.Tensor) -> None:
        """Drives by the new model from now on."""
        with self._changes:
            load_flat(self.control, model)
            self.inference.on_new_model()
        checkpoint.save_model(self.folder / MODEL, self.control, "gloo")
        self.senses.epoch_ended()


def main(folder: Path) -> None:
    """Takes part in a run."""
    torch.set_num_threads(1)
    sys.setswitchinterval(SWITCH_S)
    name, leader = os.environ["COORP_ROBOT"], os.environ["COORP_LEADER"]
    robot = Leader(folder) if name == leader else Robot(folder)
    robot.resolve()
    if robot.setting.learns:
        threading.Thread(target=robot.learn_or_end, daemon=True).start()
    watching = threading.Thread(target=robot.watch)
    watching.start()
    with in_real_time():
        robot.drive()
    watching.join()
    robot.leave()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
