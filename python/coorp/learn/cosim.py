"""The co-simulation: environment, inference, learning and air in one virtual time.

The simulator's events arrive in order (`coorp.Session.advance`), and each triggers the corresponding work at its time.
This module decides:

- PERCEPTION: the message carries what that robot sees and knows about itself at this instant.
- INFER: the leader infers from what has arrived, and from its own perception at this instant.
- COMMAND_IN: the robot drives by its command from now on. Until then it keeps its old velocity, so a late command is
  a longer blind drive, and a lost one an even longer one.
- COLLECT to BATCH_FULL: loops are collected, see inference.py.
- Training: see learner.py.

Nothing here reads a clock. The simulator runs one second ahead on another core, which changes no result either. Time
advances in whole virtual seconds, the only points at which a run can be stopped and resumed.

Left out: any planning by a robot between its perception and its command.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coorp import EventKind, Session
from coorp.envs import Navigation
from coorp.envs.channel import PERCEPTIONS_KEPT, ROUNDS_KEPT
from coorp.learn.driver import Driver
from coorp.learn.fit import velocities
from coorp.learn.inference import Floats, Inference, Perception
from coorp.learn.learner import Learner
from coorp.learn.network import Network
from coorp.learn.onlookers import Onlooker
from coorp.learn.outcome import History
from coorp.learn.world import NS, World

# As plain numbers: enumeration lookups are slow, and half an hour has a million events.
PERCEPTION, PERCEPTION_IN = int(EventKind.PERCEPTION), int(EventKind.PERCEPTION_IN)
INFER, COMMAND_IN, LOOP_ENDED = int(EventKind.INFER), int(EventKind.COMMAND_IN), int(EventKind.LOOP_ENDED)
COLLECT, EPOCH = int(EventKind.COLLECT), int(EventKind.EPOCH)


class Cosim:
    """One run. Without a learner, the policy is frozen and acts by its mean; with one, it explores.

    `env` is endless and has been reset; its robots are the team's, in order.
    """

    def __init__(
        self,
        session: Session,
        env: Navigation,
        control: Network | Driver,
        learner: Learner | None,
        seed: int,
        onlookers: Sequence[Onlooker] = (),
    ) -> None:
        robots = len(env.possible_agents)
        self.env = env
        self.control = control
        self.learner = learner
        self.onlookers = onlookers
        self.history = History()
        self.now_s = 0
        self._session = session
        self._leader = session.team.leader
        self._world = World(env)
        self._made: list[dict[int, Perception]] = [{} for _ in range(robots)]
        has = [self._world.perceive(robot, 0) for robot in range(robots)]
        self._inference = Inference(control, has, seed, explores=learner is not None)
        self._commands: dict[int, Floats] = {}

    def run(self, until_s: int, watch: Callable[[int], bool] = lambda _: True) -> None:
        """Continues up to a virtual second. Calls `watch` after each second, which ends the run by returning False. It
        then goes on only from its state, in another object: the simulator is ahead."""
        for second, events in self._seconds(until_s):
            self._follow(events)
            self._world.end_second(second, self.history)
            self.now_s = second
            for onlooker in self.onlookers:
                onlooker.on_second(second * NS, self.history)
            if not watch(second):
                return

    def _seconds(self, until_s: int) -> Iterator[tuple[int, NDArray[np.void]]]:
        """Yields the events second by second; the simulator runs one second ahead."""
        if self.now_s >= until_s:
            return
        if self._session.now_s != self.now_s:
            raise RuntimeError("this run was ended; restore its state in another one to go on")
        with ThreadPoolExecutor(1) as pool:
            ahead = pool.submit(self._session.advance, float(self.now_s + 1))
            for second in range(self.now_s + 1, until_s + 1):
                events = ahead.result()
                if second < until_s:
                    ahead = pool.submit(self._session.advance, float(second + 1))
                yield second, events

    def _follow(self, events: NDArray[np.void]) -> None:
        """Processes the events in order."""
        columns = [events[name].tolist() for name in ("t_ns", "kind", "robot", "number")]
        for t_ns, kind, robot, number in zip(*columns, strict=True):
            if kind == PERCEPTION:
                self.env.advance_to_ns(t_ns)
                made = self._made[robot]
                made[number] = self._world.perceive(robot, number)
                made.pop(number - PERCEPTIONS_KEPT, None)
                for onlooker in self.onlookers:
                    onlooker.on_perception(t_ns, robot, made[number].image)
            elif kind == PERCEPTION_IN:
                got = self._made[robot].pop(number, None)
                if got is not None:
                    self._inference.on_perception(robot, got)
            elif kind == COMMAND_IN:
                self._on_command(t_ns, robot, number)
            elif kind == INFER:
                self._on_infer(t_ns, number)
            elif kind == LOOP_ENDED:
                for onlooker in self.onlookers:
                    onlooker.on_loop_ended(t_ns)
            elif kind == EPOCH:
                self.history.epochs_s.append(t_ns / NS)
            if kind >= COLLECT and self.learner is not None:
                self.learner.on_event(kind, robot, self._inference)

    def _on_infer(self, t_ns: int, number: int) -> None:
        self.env.advance_to_ns(t_ns)
        own = self._world.perceive(self._leader, 0)
        for onlooker in self.onlookers:
            onlooker.on_perception(t_ns, self._leader, own.image)
        actions = self._inference.infer(self._leader, own)
        self._commands[number] = velocities(actions, self.env.task)
        self._commands.pop(number - ROUNDS_KEPT, None)

    def _on_command(self, t_ns: int, robot: int, number: int) -> None:
        command = self._commands.get(number)
        if command is None:
            return
        self.env.advance_to_ns(t_ns)
        self.env.set_velocity(robot, command[robot])
        for onlooker in self.onlookers:
            onlooker.on_command(t_ns, robot, command[robot])

    def state(self) -> dict[str, Any]:
        """Returns the state for a checkpoint, at a whole second."""
        return {
            "now_s": self.now_s,
            "history": vars(self.history),
            **self._world.state(),
            **self._inference.state(),
            "made": [{number: vars(p) for number, p in made.items()} for made in self._made],
            "commands": self._commands,
            "learner": None if self.learner is None else self.learner.state(),
        }

    def restore(self, state: dict[str, Any], watch: Callable[[int], bool] = lambda _: True) -> bool:
        """Restores a result of `state`, and makes the simulator catch up. Calls `watch` after each second, which ends
        that by returning False. Returns whether the run can go on."""
        self.now_s = state["now_s"]
        self.history = History(**state["history"])
        self._world.restore(state)
        self._made = [{number: Perception(**p) for number, p in made.items()} for made in state["made"]]
        self._commands = state["commands"]
        if self.learner is not None:
            self.learner.restore(state["learner"])
        self._inference.restore(state)
        for second in range(1, self.now_s + 1):
            self._session.advance(float(second))
            if not watch(second):
                return False
        return True
