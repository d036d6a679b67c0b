"""Another environment over the team's channel: what the leader sees is late, and so are the commands.

`OverChannel` wraps any PettingZoo `ParallelEnv`. Its agents are the robots of a team file, in order. It decides:

- A step is one control loop. It begins when the leader infers (`EventKind.INFER`) and ends when it infers again.
- An observation is the newest that has arrived at the leader, made when the robot made its perception; the leader's own
  is of this instant.
- An action is a command. It reaches its robot when the simulated channel delivers it, or never. Until then the robot
  repeats its last one.
- The world advances in steps of its own, of `step_s` each, whatever the loops do. A robot acts on a command from the
  first of them that begins after the command has arrived.

Timing depends on the team file and the policy only, not on what observations and actions contain. With `[learning]` in
the team file, its bulk is on the channel too.
"""

from __future__ import annotations

import copy
import math
from collections import deque
from collections.abc import Iterator, Mapping
from os import PathLike
from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

from coorp import EventKind, Result, Session, check

PERCEPTIONS_KEPT = 8
"""Maximum number of a robot's perceptions in flight; later ones replace the oldest. A robot waits for a command after
each, but not forever."""
ROUNDS_KEPT = 64
"""Maximum number of rounds with commands in flight; the simulator has the same limit."""
SILENT_MAX_S = 60.0
"""Virtual time without a loop after which the team does not work."""
NS = 1_000_000_000
SEEDS = 2**32


class OverChannel(ParallelEnv[Any, Any, Any]):
    """Drives `env` over the simulated channel of `team`.

    `team` is the path of a team file, or its text, with as many robots as `env` has agents. `step_s` is the time that
    one step of `env` takes; commands take effect at its steps, so it should not be longer than a control loop.
    `idle` has each agent's action before its first command; by default zeros, or the first of a `Discrete` space.

    Observations, rewards (summed over the world's steps since the last loop), terminations and truncations are as in
    `env`. `infos` adds `age_s`, the age of the agent's observation in seconds.

    Raises ValueError if `env` and `team` do not fit, and InputError for an invalid team file or policy.
    """

    def __init__(
        self,
        env: ParallelEnv[Any, Any, Any],
        team: str | PathLike[str],
        policy: str = "coorp",
        *,
        step_s: float,
        idle: Mapping[Any, Any] | None = None,
    ) -> None:
        if not 1 <= step_s * NS < math.inf:
            raise ValueError(f"step_s is the time of one step of the environment, in seconds; got {step_s!r}")
        described = check(team)
        agents = list(env.possible_agents)
        if described.period_s is None:
            raise ValueError("the team file has no [control], so nothing would drive the robots")
        if len(agents) != len(described.robots):
            raise ValueError(
                f"the environment has {len(agents)} agents, but the team file {len(described.robots)} robots: "
                "make them equal"
            )
        self.env, self.possible_agents, self.agents = env, agents, []
        self.metadata = {**env.metadata, "name": f"{env.metadata.get('name', 'environment')} over a channel"}
        self.render_mode = getattr(env, "render_mode", None)
        self._team, self._policy, self._leader = team, policy, described.leader
        self._step_ns = round(step_s * NS)
        self._idle = {agent: idle[agent] if idle and agent in idle else self._nothing(agent) for agent in agents}
        self._session: Session | None = None

    def observation_space(self, agent: Any) -> spaces.Space[Any]:  # noqa: ANN401
        return self.env.observation_space(agent)

    def action_space(self, agent: Any) -> spaces.Space[Any]:  # noqa: ANN401
        return self.env.action_space(agent)

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[Any, Any], dict[Any, dict[str, Any]]]:
        """Starts `env` and the channel again, and returns what the leader has when it first infers. A seed determines
        both; without one, the channel's is random."""
        chosen = int(np.random.default_rng().integers(SEEDS)) if seed is None else seed
        self._session = Session(self._team, self._policy, seed=chosen)
        self._observations, infos = self.env.reset(seed=seed, options=options)
        self._infos = dict(infos)
        self.agents = list(self.env.agents)
        self._now_ns = self._ended_ns = 0
        # What each robot acts on now, and in the world's current step.
        self._held = dict(self._idle)
        self._acting = dict(self._idle)
        self._commands: dict[int, Mapping[Any, Any]] = {}
        first = {agent: (0, copy.deepcopy(self._observations[agent])) for agent in self.agents}
        self._known: dict[Any, tuple[int, Any]] = first
        self._made: list[dict[int, tuple[int, Any]]] = [{} for _ in self.possible_agents]
        self._newest = [0] * len(self.possible_agents)
        self._events = self._stream(self._session)
        self._begin_loop()
        self._round = self._follow()
        return self._seen(self.agents), self._told(self.agents)

    def step(
        self, actions: Mapping[Any, Any]
    ) -> tuple[dict[Any, Any], dict[Any, float], dict[Any, bool], dict[Any, bool], dict[Any, dict[str, Any]]]:
        """Sends these actions as commands, and returns what the leader has when it infers again. Agents without an
        action keep their last one."""
        if self._session is None:
            raise RuntimeError("call reset before step")
        acting = list(self.agents)
        if not acting:
            return {}, {}, {}, {}, {}
        self._commands[self._round] = {agent: copy.deepcopy(actions[agent]) for agent in acting if agent in actions}
        self._commands.pop(self._round - ROUNDS_KEPT, None)
        self._begin_loop()
        self._round = self._follow()
        rewards = {agent: self._rewards.get(agent, 0.0) for agent in acting}
        ends = [{agent: ended.get(agent, False) for agent in acting} for ended in (self._terminated, self._truncated)]
        self.agents = [agent for agent in acting if not (ends[0][agent] or ends[1][agent])]
        return self._seen(acting), rewards, ends[0], ends[1], self._told(acting)

    def render(self) -> Any:  # noqa: ANN401
        return self.env.render()

    def state(self) -> np.ndarray:
        return self.env.state()

    def close(self) -> None:
        self.env.close()

    @property
    def now_s(self) -> float:
        """The virtual time since `reset`, in seconds."""
        return self._now_ns / NS

    def result(self) -> Result:
        """Returns what the channel has measured since `reset`: the violation rate, bulk and others."""
        if self._session is None:
            raise RuntimeError("call reset before result")
        return self._session.result()

    def _nothing(self, agent: Any) -> Any:  # noqa: ANN401
        space = self.env.action_space(agent)
        if isinstance(space, spaces.Box):
            return np.clip(np.zeros(space.shape, space.dtype), space.low, space.high)
        if isinstance(space, spaces.Discrete):
            return space.start
        raise ValueError(
            f"the actions of {agent} are {space}: give the one before its first command as idle[{agent!r}]"
        )

    def _stream(self, session: Session) -> Iterator[tuple[int, int, int, int]]:
        """Yields the channel's events: time, kind, robot and number."""
        until_s, last_s = 0.0, 0.0
        waiting: deque[tuple[int, int, int, int]] = deque()
        while until_s - last_s <= SILENT_MAX_S:
            until_s += 0.1
            events = session.advance(until_s)
            waiting.extend(zip(*(events[name].tolist() for name in ("t_ns", "kind", "robot", "number")), strict=True))
            while waiting:
                event = waiting.popleft()
                last_s = event[0] / NS if event[1] == EventKind.INFER else last_s
                yield event
        raise RuntimeError(f"the team's control loop has stood still for {SILENT_MAX_S:g} virtual seconds")

    def _begin_loop(self) -> None:
        self._rewards: dict[Any, float] = {}
        self._terminated: dict[Any, bool] = {}
        self._truncated: dict[Any, bool] = {}

    def _follow(self) -> int:
        """Advances until the leader infers, or no agent is left; returns the loop's number."""
        for t_ns, kind, robot, number in self._events:
            self._advance(t_ns)
            agent = self.possible_agents[robot]
            if not self.env.agents:
                return number
            if kind == EventKind.PERCEPTION and agent in self._observations:
                made = self._made[robot]
                made[number] = (t_ns, copy.deepcopy(self._observations[agent]))
                made.pop(number - PERCEPTIONS_KEPT, None)
            elif kind == EventKind.PERCEPTION_IN and number > self._newest[robot]:
                if (arrived := self._made[robot].pop(number, None)) is not None:
                    self._known[agent], self._newest[robot] = arrived, number
            elif kind == EventKind.COMMAND_IN:
                command = self._commands.get(number, {})
                if agent in command:
                    self._held[agent] = command[agent]
            elif kind == EventKind.INFER:
                own = self.possible_agents[self._leader]
                if own in self._observations:
                    self._known[own] = (t_ns, copy.deepcopy(self._observations[own]))
                return number
        raise AssertionError("the stream of events has no end")

    def _advance(self, t_ns: int) -> None:
        """Makes the world's steps that end by `t_ns`."""
        while self.env.agents and self._ended_ns + self._step_ns <= t_ns:
            self._ended_ns += self._step_ns
            acting = {agent: self._acting[agent] for agent in self.env.agents}
            self._observations, rewards, terminated, truncated, infos = self.env.step(acting)
            self._infos.update(infos)  # The last of an agent that has ended stays.
            for agent, reward in rewards.items():
                self._rewards[agent] = self._rewards.get(agent, 0.0) + float(reward)
            for agent in terminated:
                self._terminated[agent] = self._terminated.get(agent, False) or bool(terminated[agent])
                self._truncated[agent] = self._truncated.get(agent, False) or bool(truncated[agent])
                if terminated[agent] or truncated[agent]:
                    self._known[agent] = (self._ended_ns, copy.deepcopy(self._observations[agent]))
            self._acting = dict(self._held)
        self._now_ns = t_ns

    def _seen(self, agents: list[Any]) -> dict[Any, Any]:
        return {agent: self._known[agent][1] for agent in agents}

    def _told(self, agents: list[Any]) -> dict[Any, dict[str, Any]]:
        ages = {agent: (self._now_ns - self._known[agent][0]) / NS for agent in agents}
        return {agent: {**self._infos.get(agent, {}), "age_s": ages[agent]} for agent in agents}
