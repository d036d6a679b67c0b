"""The co-simulation: environment, inference, learning and air in one virtual time.

The simulator's events arrive in order (`coorp.Session.advance`), and each triggers the corresponding work at its time.
This module decides:

- PERCEPTION: the message carries what that robot sees and knows about itself at this instant.
- INFER: the leader infers from the newest perception of each robot, however old, and from its own at this instant.
- COMMAND_IN: the robot drives by its command from now on. Until then it keeps its old velocity, so a late command is
  a longer blind drive, and a lost one an even longer one.
- COLLECT to BATCH_FULL: each loop is an item. It contains the perceptions used, the actions, each robot's reward until
  the next perception used, and whether its drive ended in between. Loops inferred before COLLECT belong to the old
  model and are excluded (Deng 2022, section III-A).
- Training: see learner.py.

Nothing here reads a clock. The simulator runs one chunk ahead on another core, which does not change the result either.
Time advances in whole virtual seconds, the only points at which a run can be stopped and resumed.

Left out: any planning by a robot between its perception and its command.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coorp import EventKind, Session
from coorp.envs import Navigation
from coorp.learn.driver import Driver
from coorp.learn.fit import velocities
from coorp.learn.learner import Learner
from coorp.learn.network import Network
from coorp.learn.onlookers import NS, Onlooker
from coorp.learn.outcome import History
from coorp.learn.ppo import Transitions

# As plain numbers: enumeration lookups are slow, and half an hour has a million events.
PERCEPTION, PERCEPTION_IN = int(EventKind.PERCEPTION), int(EventKind.PERCEPTION_IN)
INFER, COMMAND_IN, LOOP_ENDED = int(EventKind.INFER), int(EventKind.COMMAND_IN), int(EventKind.LOOP_ENDED)
COLLECT, BATCH_FULL, TRAINED = int(EventKind.COLLECT), int(EventKind.BATCH_FULL), int(EventKind.TRAINED)
UPDATE_IN, MODEL_OUT, MODEL_IN = int(EventKind.UPDATE_IN), int(EventKind.MODEL_OUT), int(EventKind.MODEL_IN)
EPOCH = int(EventKind.EPOCH)
ROUNDS_KEPT = 64
"""Maximum number of rounds with commands in flight; the simulator has the same limit."""
PERCEPTIONS_KEPT = 8
"""Maximum number of a robot's perceptions in flight; it waits for a command after each, but not forever."""

Images = NDArray[np.uint8]
Floats = NDArray[np.float32]
Item = tuple[Images, Floats, Floats, NDArray[np.float64], NDArray[np.int64]]
"""A loop, by robot: perceived images and vectors, actions, and rewards and endings at the perceptions."""


@dataclass
class Perception:
    """One robot's perception, and its totals at that time."""

    tick: int
    image: Images
    vector: Floats
    reward: float
    """The robot's total reward at that time."""
    endings: int
    """The number of its drives that had ended at that time."""


class Collector:
    """Items of the batch being collected, loop by loop."""

    def __init__(self) -> None:
        self.open = False
        self._items: list[Item] = []

    def begin(self) -> None:
        """Starts at the next inference."""
        self.open = True
        self._items = []

    def add(self, used: list[Perception], images: Images, vectors: Floats, actions: Floats) -> None:
        """Adds a loop."""
        rewards = np.array([perception.reward for perception in used])
        endings = np.array([perception.endings for perception in used])
        self._items.append((images, vectors, actions, rewards, endings))

    def close(self) -> Transitions | None:
        """Returns the batch. The last loop's reward is not known yet, so that loop only serves as the state after the
        others; if that leaves nothing, there is no batch."""
        self.open = False
        if len(self._items) < 2:
            return None
        images, vectors, actions, rewards, endings = self._columns()
        self._items = []
        return Transitions(
            images=images[:-1],
            vectors=vectors[:-1],
            actions=actions[:-1],
            rewards=np.diff(rewards, axis=0).astype(np.float32),
            dones=np.diff(endings, axis=0) > 0,
            last_images=images[-1],
            last_vectors=vectors[-1],
        )

    def _columns(self) -> list[NDArray[Any]]:
        return [np.stack(column) for column in zip(*self._items, strict=True)]

    def state(self) -> dict[str, Any]:
        """Returns the state for a checkpoint."""
        return {"open": self.open, "items": self._columns()}

    def restore(self, state: dict[str, Any]) -> None:
        """Restores a result of `state`."""
        self.open = state["open"]
        self._items = list(zip(*state["items"], strict=True))


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
        self._rng = np.random.default_rng([seed, 0x6C6561726E])
        self._rewards = np.zeros(robots)
        self._endings = [0] * robots
        self._made: list[dict[int, Perception]] = [{} for _ in range(robots)]
        self._has = [self._perceive(robot, 0) for robot in range(robots)]
        self._commands: dict[int, Floats] = {}
        self._collector = Collector()
        self._deviation = self._explores()

    def run(self, until_s: int, watch: Callable[[int], bool] = lambda _: True) -> None:
        """Continues up to a virtual second. Calls `watch` after each second, which ends the run by returning False."""
        for second, events in self._seconds(until_s):
            self._follow(events)
            self.env.advance_to_ns(second * NS)
            self._settle()
            self.history.add(second, float(self._rewards.sum()), self.env.tally())
            self.now_s = second
            for onlooker in self.onlookers:
                onlooker.on_second(second * NS, self.history)
            if not watch(second):
                return

    def _seconds(self, until_s: int) -> Iterator[tuple[int, NDArray[np.void]]]:
        """Yields the events second by second; the simulator runs one second ahead."""
        if self.now_s >= until_s:
            return
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
                made[number] = self._perceive(robot, number)
                made.pop(number - PERCEPTIONS_KEPT, None)
                for onlooker in self.onlookers:
                    onlooker.on_perception(t_ns, robot, made[number].image)
            elif kind == PERCEPTION_IN:
                got = self._made[robot].pop(number, None)
                if got is not None and got.tick > self._has[robot].tick:
                    self._has[robot] = got
            elif kind == COMMAND_IN:
                self._on_command(t_ns, robot, number)
            elif kind == INFER:
                self._on_infer(t_ns, number)
            elif kind == LOOP_ENDED:
                for onlooker in self.onlookers:
                    onlooker.on_loop_ended(t_ns)
            elif kind == EPOCH:
                self.history.epochs_s.append(t_ns / NS)
                if self.learner is not None:
                    self.learner.on_epoch()
                    self._deviation = self._explores()
            elif kind >= COLLECT and self.learner is not None:
                self._on_learning(self.learner, kind, robot)

    def _settle(self) -> None:
        """Records rewards and endings up to now."""
        self._rewards += self.env.take_rewards()
        for ended in self.env.take_events()["robot"].tolist():
            self._endings[ended] += 1

    def _perceive(self, robot: int, tick: int) -> Perception:
        """Returns the current perception of `robot`."""
        self._settle()
        [image], [vector] = self.env.observe(robot)
        return Perception(tick, image, vector, float(self._rewards[robot]), self._endings[robot])

    def _on_infer(self, t_ns: int, number: int) -> None:
        self.env.advance_to_ns(t_ns)
        own = self._has[self._leader] = self._perceive(self._leader, 0)
        for onlooker in self.onlookers:
            onlooker.on_perception(t_ns, self._leader, own.image)
        used = list(self._has)
        images, vectors = np.stack([p.image for p in used]), np.stack([p.vector for p in used])
        mean = self.control.act(images, vectors)
        actions = mean
        if self.learner is not None:
            noise = self._rng.standard_normal(mean.shape, dtype=np.float32)
            actions = (mean + self._deviation * noise).astype(np.float32, copy=False)
        if self._collector.open:
            self._collector.add(used, images, vectors, actions)
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

    def _on_learning(self, learner: Learner, kind: int, robot: int) -> None:
        if kind == COLLECT:
            self._collector.begin()
        elif kind == BATCH_FULL:
            learner.on_batch_full(self._collector.close())
        elif kind == TRAINED:
            learner.on_trained(robot)
        elif kind == UPDATE_IN:
            learner.on_update_in(robot)
        elif kind == MODEL_OUT:
            learner.on_model_out(robot)
        elif kind == MODEL_IN:
            learner.on_model_in(robot)

    def _explores(self) -> Floats:
        """Returns how far actions deviate while learning."""
        if self.learner is None:
            return np.zeros(0, dtype=np.float32)
        return self.learner.control.deviation().detach().numpy().copy()

    def state(self) -> dict[str, Any]:
        """Returns the state for a checkpoint, at a whole second."""
        return {
            "now_s": self.now_s,
            "history": vars(self.history),
            "env": self.env.get_state(),
            "random": self._rng.bit_generator.state,
            "rewards": self._rewards,
            "endings": self._endings,
            "made": [{number: vars(p) for number, p in made.items()} for made in self._made],
            "has": [vars(p) for p in self._has],
            "commands": self._commands,
            "collector": self._collector.state(),
            "learner": None if self.learner is None else self.learner.state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Restores a result of `state`, and makes the simulator catch up."""
        self.now_s = state["now_s"]
        self.history = History(**state["history"])
        self.env.set_state(state["env"])
        self._rng.bit_generator.state = state["random"]
        self._rewards = state["rewards"]
        self._endings = state["endings"]
        self._made = [{number: Perception(**p) for number, p in made.items()} for made in state["made"]]
        self._has = [Perception(**p) for p in state["has"]]
        self._commands = state["commands"]
        self._collector.restore(state["collector"])
        if self.learner is not None:
            self.learner.restore(state["learner"])
        self._deviation = self._explores()
        for second in range(1, self.now_s + 1):
            self._session.advance(float(second))
