"""Cooperative navigation: robots drive to their goals among moving obstacles and one another."""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from pettingzoo import ParallelEnv

from coorp import _native
from coorp.envs.dynamics import Dynamics, Floats, NumpyDynamics
from coorp.envs.picture import draw_world
from coorp.envs.task import DRIVING, LEVELS, TICK_NS, TICKS_PER_S, Ending, Level, Task

Backend = Literal["native", "numpy", "irsim"]
Observation = dict[str, npt.NDArray[Any]]

SIDE = 64
"""Pixels per side of a perception."""
VECTOR_FIELDS = (
    "x_m",
    "y_m",
    "cos_heading",
    "sin_heading",
    "speed_mps",
    "turn_radps",
    "goal_distance_m",
    "cos_goal_bearing",
    "sin_goal_bearing",
)
"""The columns of the vectors from `observe`: the first six are the pose, the last three the goal."""
NEARBY_FIELDS = ("ahead_m", "left_m", "ahead_mps", "left_mps", "radius_m")
"""The columns of a measured obstacle: its centre, its velocity over ground, its radius, in the robot's own frame."""
EVENT_DTYPE = np.dtype([("t_ns", "<u8"), ("robot", "<u2"), ("ending", "u1")])
"""An ending: time, robot, and `Ending`."""

ROBOTS_MAX = 64
OBSTACLES_MAX = 256
EVENTS_MAX = 100_000
_PLACES_TRIED = 200
_POSE = 6
_STATE_VERSION = 2
_NEVER = np.iinfo(np.int64).max
_ARRAYS = (
    "robots",
    "status",
    "obstacles",
    "obstacle_speeds",
    "obstacle_turns",
    "deadlines",
    "began",
    "driven_ticks",
    "arrival_ticks",
    "endings",
)
"""The attributes that a checkpoint stores as arrays."""


@dataclass(frozen=True)
class Tally:
    """Counts since `reset`, by robot."""

    arrivals: npt.NDArray[np.int64]
    collisions: npt.NDArray[np.int64]
    timeouts: npt.NDArray[np.int64]
    near_misses: npt.NDArray[np.int64]
    """Those that have begun; `coorp.envs.task.NEAR_MISS_S` has the definition. Most collisions begin as one."""
    driven_s: npt.NDArray[np.float64]
    """The driving time of each robot."""
    to_goal_s: npt.NDArray[np.float64]
    """The part of it in drives that have arrived."""

    @property
    def success(self) -> float:
        """Share of ended drives that arrived; NaN if none has ended."""
        arrived = int(self.arrivals.sum())
        ended = arrived + int(self.collisions.sum()) + int(self.timeouts.sum())
        return arrived / ended if ended else math.nan

    @property
    def mean_to_goal_s(self) -> float:
        """Mean duration of drives that arrived; NaN if none has."""
        arrived = int(self.arrivals.sum())
        return float(self.to_goal_s.sum()) / arrived if arrived else math.nan


class Navigation(ParallelEnv[str, Any, Any]):
    """Robots with differential drives in a walled square, each with its own goal, among moving obstacles.

    `coorp.envs.Task` defines collision, arrival and reward, and `coorp.envs.Level` the obstacles, with their sources.

    Observation, by robot: `image` (64, 64, 3) uint8, the surroundings within 3.2 m, with the robot at the centre and
    facing up. Obstacles (and everything beyond walls) are red, other robots green, the goal blue, with an afterglow of
    0.17 s behind moving objects. `pose` (6,) float32: x and y in m, cos and sin of the heading, speed in m/s, turn in
    rad/s. `goal` (3,) float32: its distance in m, cos and sin of its bearing from the heading. On request, `nearby`
    (k, 5) float32: measurements of the nearest obstacles. Action, by robot: (2,) float32, non-negative speed in m/s and
    turn in rad/s.

    There are two ways to drive it. **PettingZoo's**: `reset` and `step`. A step is one control period. A robot's
    episode ends when it collides, arrives or runs out of time; the robot is then removed. **In continuous time**, for
    co-simulation: `set_velocity` when a command arrives, `advance_to_ns` from event to event, `observe` when a robot
    perceives. Each robot keeps its velocity until it gets another. Time has a grid of 1 ms: the world is in the state
    of the last whole millisecond, and a new velocity applies from there on. So results do not depend on how an interval
    is split. With `endless=True`, a robot whose episode ends restarts at once, elsewhere and with another goal, without
    any waiting; `step` then reports endings only in its infos.

    Args:
        level: `"known"`, `"unknown"` (obstacles are faster or slower as the task's robots are) or your own `Level`.
        robots: their number or names; one of them may be the leader, which drives like the others.
        task: the world and the reward.
        backend: `"native"` (compiled, needed for learning), `"numpy"` (the reference) or `"irsim"` (IR-SIM moves the
            robots and judges collisions and arrivals). All agree; the last two are slow.
        endless: whether robots restart by themselves.
        nearby: the number k of nearest obstacles within the task's `region_m` that a robot measures, nearest first, as
            `NEARBY_FIELDS`; zeros stand for missing ones.
        control_hz: the number of steps per second.
        render_mode: `"rgb_array"` or None.

    Simplified: robots adopt velocities at once; everything is a disc; sensing has no noise and no occlusion; obstacles
    do not react to anyone; a robot restarts at rest.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012 - as in PettingZoo
        "name": "coorp_navigation_v0",
        "render_modes": ["rgb_array"],
        "render_fps": 30,
        "is_parallelizable": True,
    }

    def __init__(
        self,
        level: str | Level = "unknown",
        *,
        robots: int | Sequence[str] = 5,
        task: Task | None = None,
        backend: Backend = "native",
        endless: bool = False,
        nearby: int = 0,
        control_hz: float = 30.0,
        render_mode: str | None = None,
    ) -> None:
        self.task = task or Task()
        self.level = _level(level, self.task)
        self.endless = endless
        self.render_mode = render_mode
        if render_mode not in (None, "rgb_array"):
            raise ValueError(f"render_mode is {render_mode!r}; it can be 'rgb_array' or None")
        if not 0 < control_hz <= TICKS_PER_S:
            raise ValueError(f"control_hz is {control_hz}; it must be greater than 0 and at most {TICKS_PER_S}")
        if not 0 <= nearby <= OBSTACLES_MAX:
            raise ValueError(f"nearby is {nearby}; a robot can measure up to {OBSTACLES_MAX} obstacles")
        self.nearby = nearby
        self.control_hz = control_hz
        self.possible_agents = _names(robots)
        self.agents: list[str] = []
        self._index = {name: i for i, name in enumerate(self.possible_agents)}
        self.observation_spaces, self.action_spaces = _spaces(self.possible_agents, self.task, nearby)

        count = len(self.possible_agents)
        self._robots: Floats = np.zeros((count, 10))
        self._status = np.full(count, Ending.TIMED_OUT, dtype=np.uint8)
        self._obstacles: Floats = np.zeros((self.level.obstacles, 5))
        self._obstacle_speeds: Floats = np.zeros(self.level.obstacles)
        self._obstacle_turns = np.full(self.level.obstacles, _NEVER, dtype=np.int64)
        self._deadlines = np.full(count, _NEVER, dtype=np.int64)
        self._began = np.zeros(count, dtype=np.int64)
        self._driven_ticks = np.zeros(count, dtype=np.int64)
        self._arrival_ticks = np.zeros(count, dtype=np.int64)
        self._endings = np.zeros((count, max(Ending) + 1), dtype=np.int64)
        self._events: deque[tuple[int, int, int]] = deque(maxlen=EVENTS_MAX)
        self._timer: int = _NEVER
        self._tick = 0
        self._now_ns = 0
        self._steps = 0
        self._started = False
        self._rng = np.random.default_rng()
        self._dynamics = _dynamics(backend, self.task, count, self.level)

    # PettingZoo

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return self.action_spaces[agent]

    def reset(
        self, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, Observation], dict[str, dict[str, Any]]]:
        """Resets everything to time 0. With a seed, everything that follows is determined; without one, the random
        numbers continue. There are no options."""
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self.agents = list(self.possible_agents)
        self._tick = self._now_ns = self._steps = 0
        self._driven_ticks[:] = 0
        self._arrival_ticks[:] = 0
        self._endings[:] = 0
        self._events.clear()
        self._status[:] = Ending.TIMED_OUT  # so that robots only avoid those placed before them
        self._robots[:] = 0.0
        self._place_obstacles()
        for i in range(len(self._robots)):
            self._start(i)
        self._set_timer()
        self._started = True
        return self._observations(self.agents), {agent: {} for agent in self.agents}

    def step(
        self, actions: Mapping[str, npt.ArrayLike]
    ) -> tuple[dict[str, Observation], dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, Any]]]:
        """Runs one control period with the given velocities; robots not named keep theirs."""
        acting = self.agents
        for agent in acting:
            if agent in actions:
                self.set_velocity(self._index[agent], actions[agent])
        self._steps += 1
        before = int(self._endings.sum())
        self.advance_to_ns(round(self._steps * 1e9 / self.control_hz))
        fresh = list(self._events)[max(0, len(self._events) + before - int(self._endings.sum())) :]
        rewards = self.take_rewards()
        endings = {self.possible_agents[robot]: Ending(ending) for _, robot, ending in fresh}
        ended = {} if self.endless else endings
        truncations = {agent: ended.get(agent) is Ending.TIMED_OUT for agent in acting}
        terminations = {agent: agent in ended and not truncations[agent] for agent in acting}
        infos: dict[str, dict[str, Any]] = {
            agent: {"ending": endings[agent].name.lower()} if agent in endings else {} for agent in acting
        }
        self.agents = [agent for agent in acting if agent not in ended]
        reward = {agent: float(rewards[self._index[agent]]) for agent in acting}
        return self._observations(acting), reward, terminations, truncations, infos

    def render(self) -> npt.NDArray[np.uint8] | None:
        """Returns the world from above, (600, 600, 3) uint8 for a square one; None without a render mode."""
        if self.render_mode is None:
            return None
        return draw_world(self.task, self._robots, self._status, self._obstacles)

    def close(self) -> None:
        """Does nothing; there are no open resources."""

    # Continuous time

    @property
    def now_ns(self) -> int:
        """The time since `reset`."""
        return self._now_ns

    @property
    def status(self) -> npt.NDArray[np.uint8]:
        """By robot, 0 while it drives, then its `Ending`; a copy."""
        return self._status.copy()

    @property
    def poses(self) -> Floats:
        """(n, 3) x and y in m, heading in rad; a copy."""
        return self._robots[:, :3].copy()

    @property
    def velocities(self) -> Floats:
        """(n, 2) speed in m/s and turn in rad/s; a copy."""
        return self._robots[:, 3:5].copy()

    @property
    def goals(self) -> Floats:
        """(n, 2) x and y in m; a copy."""
        return self._robots[:, 5:7].copy()

    @property
    def obstacles(self) -> Floats:
        """(m, 5) x and y in m, vx and vy in m/s, radius in m; a copy."""
        return self._obstacles.copy()

    def world(self) -> tuple[Floats, npt.NDArray[np.uint8], Floats]:
        """Returns copies of the arrays of `coorp.envs.dynamics`: robots, status, obstacles."""
        return self._robots.copy(), self._status.copy(), self._obstacles.copy()

    def set_velocity(self, robot: int, velocity: npt.ArrayLike) -> None:
        """Sets the speed in m/s and turn in rad/s that robot number `robot` keeps, clipped to its limits."""
        if not 0 <= robot < len(self._robots):
            raise ValueError(f"there is no robot {robot}; there are {len(self._robots)}, numbered from 0")
        wanted = np.asarray(velocity, dtype=np.float64)
        speed, turn = wanted.tolist() if wanted.shape == (2,) else (math.nan, math.nan)
        if not (math.isfinite(speed) and math.isfinite(turn)):
            raise ValueError(f"a velocity is two finite numbers, speed and turn; robot {robot} got {velocity!r}")
        most, sharpest = self.task.max_speed_mps, self.task.max_turn_radps
        self._robots[robot, 3] = min(max(speed, 0.0), most)
        self._robots[robot, 4] = min(max(turn, -sharpest), sharpest)

    def advance(self, dt_s: float) -> None:
        """Advances by `dt_s` seconds, to the nearest nanosecond."""
        self.advance_to_ns(self._now_ns + round(dt_s * 1e9))

    def advance_to(self, t_s: float) -> None:
        """Advances to `t_s` seconds after `reset`, to the nearest nanosecond."""
        self.advance_to_ns(round(t_s * 1e9))

    def advance_to_ns(self, t_ns: int) -> None:
        """Advances to `t_ns` nanoseconds after `reset`."""
        if t_ns < self._now_ns:
            raise ValueError(f"the time is already {self._now_ns} ns and cannot go back to {t_ns} ns")
        if not self._started:
            raise RuntimeError("call reset before advancing time")
        until = t_ns // TICK_NS
        while self._tick < until:
            stop = min(until, self._timer)
            if stop > self._tick:
                self._tick += self._dynamics.advance(
                    self._robots, self._status, self._obstacles, self._tick, stop - self._tick
                )
                self._settle()
            if self._tick >= self._timer:
                self._run_timers()
        self._now_ns = t_ns

    def observe(self, only: int | None = None) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float32]]:
        """Returns every robot's current perception: images (n, 64, 64, 3) and vectors (n, 9 + 5 k), see `VECTOR_FIELDS`
        and, for each of `nearby` obstacles, `NEARBY_FIELDS`. With a robot's number `only`, just that robot's: (1, 64,
        64, 3) and (1, 9 + 5 k). A robot whose episode has ended still sees from its last position."""
        task = self.task
        return _native.perceive(
            self._robots,
            self._status,
            self._obstacles,
            [task.width_m, task.height_m],
            [task.robot_radius_m, task.goal_radius_m],
            (self.nearby, task.region_m),
            only,
        )

    def take_rewards(self) -> Floats:
        """Returns the (n,) rewards since the last call, by robot."""
        rewards = self._robots[:, 7].copy()
        self._robots[:, 7] = 0.0
        return rewards

    def take_events(self) -> npt.NDArray[Any]:
        """Returns the endings since the last call, oldest first, as an array of `EVENT_DTYPE`. Only the last 100,000
        are kept."""
        events = np.array(list(self._events), dtype=EVENT_DTYPE)
        self._events.clear()
        return events

    def tally(self) -> Tally:
        """Returns the counts since `reset`, by robot."""
        driving = self._status == DRIVING
        ticks = self._driven_ticks + np.where(driving, self._tick - self._began, 0)
        collisions = [ending for ending in Ending if ending.collision]
        return Tally(
            arrivals=self._endings[:, Ending.ARRIVED].copy(),
            collisions=self._endings[:, collisions].sum(axis=1),
            timeouts=self._endings[:, Ending.TIMED_OUT].copy(),
            near_misses=self._robots[:, 8].astype(np.int64),
            driven_s=ticks / TICKS_PER_S,
            to_goal_s=self._arrival_ticks / TICKS_PER_S,
        )

    # Checkpoints

    def get_state(self) -> dict[str, Any]:
        """Returns everything that `set_state` needs to continue from here, bit for bit, as plain values and arrays that
        can be pickled."""
        arrays = {name: getattr(self, f"_{name}").copy() for name in _ARRAYS}
        return {
            "version": _STATE_VERSION,
            "setting": self._setting(),
            "arrays": arrays,
            "events": list(self._events),
            "agents": list(self.agents),
            "tick": self._tick,
            "now_ns": self._now_ns,
            "steps": self._steps,
            "random": self._rng.bit_generator.state,
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restores a state from `get_state`, of this environment or of one with equal settings."""
        if state.get("version") != _STATE_VERSION:
            raise ValueError(
                f"this state of the environment has version {state.get('version')!r}, but {_STATE_VERSION} is needed"
            )
        lacking = ({"setting", "arrays", "events", "agents", "tick", "now_ns", "steps", "random"} - state.keys()) or (
            set(_ARRAYS) - state["arrays"].keys()
        )
        if lacking:
            raise ValueError(f"this state of the environment is incomplete; it lacks {', '.join(sorted(lacking))}")
        for name, mine in self._setting().items():
            theirs = state["setting"].get(name)
            if theirs != mine:
                raise ValueError(f"this state is from an environment with {name} = {theirs}, but this one has {mine}")
        for name in _ARRAYS:
            getattr(self, f"_{name}")[:] = state["arrays"][name]
        self._events = deque(state["events"], maxlen=EVENTS_MAX)
        self.agents = list(state["agents"])
        self._tick, self._now_ns, self._steps = state["tick"], state["now_ns"], state["steps"]
        self._rng = np.random.default_rng()
        self._rng.bit_generator.state = state["random"]
        self._set_timer()
        self._started = True

    def _setting(self) -> dict[str, Any]:
        """Returns the settings that must be equal for a state to fit. The backend may differ: all compute the same."""
        return {
            "robots": list(self.possible_agents),
            "level": repr(self.level),
            "task": repr(self.task),
            "endless": self.endless,
            "control_hz": self.control_hz,
        }

    # Endings and restarts

    def _observations(self, agents: list[str]) -> dict[str, Observation]:
        images, vectors = self.observe()
        seen: dict[str, Observation] = {}
        for agent in agents:
            pose, goal, nearby = np.split(vectors[self._index[agent]], [_POSE, len(VECTOR_FIELDS)])
            seen[agent] = {"image": images[self._index[agent]], "pose": pose, "goal": goal}
            if self.nearby:
                seen[agent]["nearby"] = nearby.reshape(self.nearby, len(NEARBY_FIELDS))
        return seen

    def _settle(self) -> None:
        """Records the endings that the dynamics found in its last tick."""
        for i in np.flatnonzero((self._status != DRIVING) & (self._deadlines != _NEVER)):
            self._end(int(i), Ending(int(self._status[i])))

    def _run_timers(self) -> None:
        for i in np.flatnonzero(self._obstacle_turns <= self._tick):
            self._turn_obstacle(int(i))
        for i in np.flatnonzero(self._deadlines <= self._tick):
            self._end(int(i), Ending.TIMED_OUT)
        self._set_timer()

    def _set_timer(self) -> None:
        self._timer = int(min(self._obstacle_turns.min(initial=_NEVER), self._deadlines.min(initial=_NEVER)))

    def _end(self, robot: int, ending: Ending) -> None:
        self._endings[robot, ending] += 1
        self._events.append((self._tick * TICK_NS, robot, int(ending)))
        self._driven_ticks[robot] += self._tick - self._began[robot]
        if ending.collision:
            self._robots[robot, 7] += self.task.collision
        elif ending is Ending.ARRIVED:
            self._robots[robot, 7] += self.task.arrival
            self._arrival_ticks[robot] += self._tick - self._began[robot]
        self._status[robot] = ending
        self._deadlines[robot] = _NEVER
        self._robots[robot, 3:5] = 0.0
        if self.endless:
            self._start(robot)

    def _start(self, robot: int) -> None:
        """Places a robot at rest in a free position, with a goal elsewhere."""
        task, margin = self.task, self.task.clearance_m
        driving = self._status == DRIVING
        taken = np.concatenate([self._robots[driving, :2], self._obstacles[:, :2]])
        start = self._free_place(taken, margin, None)
        goal = self._free_place(self._robots[driving, 5:7], margin, start)
        heading = self._rng.uniform(-np.pi, np.pi)
        self._robots[robot, :7] = (*start, heading, 0.0, 0.0, *goal)
        self._robots[robot, 9] = 0.0
        self._status[robot] = DRIVING
        self._began[robot] = self._tick
        self._deadlines[robot] = self._tick + round(task.episode_s * TICKS_PER_S)

    def _free_place(self, taken: Floats, margin: float, start: Floats | None) -> Floats:
        """Returns a random point far enough from occupied ones (and from the start, for a goal); in a full world, the
        farthest of the points tried."""
        size = np.array([self.task.width_m, self.task.height_m])
        points = self._rng.uniform(margin, size - margin, (_PLACES_TRIED, 2))
        gaps = np.hypot(*(points[:, None] - taken[None]).transpose(2, 0, 1)).min(axis=1, initial=np.inf)
        room = gaps / margin
        if start is not None:
            room = np.minimum(room, np.hypot(*(points - start).T) / self.task.travel_m)
        good = np.flatnonzero(room >= 1.0)
        return points[good[0] if len(good) else int(room.argmax())]

    def _place_obstacles(self) -> None:
        level, size = self.level, np.array([self.task.width_m, self.task.height_m])
        margin = self.task.clearance_m
        self._obstacles[:, :2] = self._rng.uniform(margin, size - margin, (level.obstacles, 2))
        self._obstacles[:, 4] = level.obstacle_radius_m
        self._obstacle_speeds[:] = self._rng.uniform(*level.obstacle_speed_mps, level.obstacles)
        for i in range(level.obstacles):
            self._turn_obstacle(i)

    def _turn_obstacle(self, i: int) -> None:
        """Directs an obstacle to its next random point."""
        size, margin = np.array([self.task.width_m, self.task.height_m]), self.task.clearance_m
        way = self._rng.uniform(margin, size - margin) - self._obstacles[i, :2]
        distance, speed = float(np.hypot(*way)), float(self._obstacle_speeds[i])
        if speed == 0.0 or distance == 0.0:
            self._obstacles[i, 2:4] = 0.0
            self._obstacle_turns[i] = _NEVER
            return
        self._obstacles[i, 2:4] = way * (speed / distance)
        self._obstacle_turns[i] = self._tick + max(1, round(distance / speed * TICKS_PER_S))


def _level(level: str | Level, task: Task) -> Level:
    if isinstance(level, str):
        if level not in LEVELS:
            raise ValueError(
                f"there is no level {level!r}; choose one of {', '.join(LEVELS)}, or give a coorp.envs.Level"
            )
        level = LEVELS[level].at(task.max_speed_mps)
    if not 0 <= level.obstacles <= OBSTACLES_MAX:
        raise ValueError(f"a level can have up to {OBSTACLES_MAX} obstacles, not {level.obstacles}")
    least, most = level.obstacle_speed_mps
    if not 0 <= least <= most < 100:
        raise ValueError(
            f"obstacle_speed_mps is {level.obstacle_speed_mps}; it must be (minimum, maximum), below 100 m/s"
        )
    if not 0 < level.obstacle_radius_m < 100:
        raise ValueError(f"obstacle_radius_m is {level.obstacle_radius_m}; it must be above 0 and below 100 m")
    return level


def _names(robots: int | Sequence[str]) -> list[str]:
    names = [f"robot-{i}" for i in range(robots)] if isinstance(robots, int) else list(robots)
    if not 1 <= len(names) <= ROBOTS_MAX:
        raise ValueError(f"there must be 1 to {ROBOTS_MAX} robots, not {len(names)}")
    if len(set(names)) != len(names):
        raise ValueError(f"two robots have the same name: {', '.join(names)}")
    return names


def _spaces(
    names: list[str], task: Task, nearby: int
) -> tuple[dict[str, spaces.Space[Any]], dict[str, spaces.Space[Any]]]:
    def box(low: Sequence[Any], high: Sequence[Any]) -> spaces.Box:
        return spaces.Box(np.array(low, dtype=np.float32), np.array(high, dtype=np.float32), dtype=np.float32)

    speed, turn = task.max_speed_mps, task.max_turn_radps
    diagonal = float(np.hypot(task.width_m, task.height_m))

    def seen() -> spaces.Dict:
        parts: dict[str, spaces.Space[Any]] = {
            "image": spaces.Box(0, 255, (SIDE, SIDE, 3), np.uint8),
            "pose": box([0, 0, -1, -1, 0, -turn], [task.width_m, task.height_m, 1, 1, speed, turn]),
            "goal": box([0, -1, -1], [diagonal, 1, 1]),
        }
        if nearby:
            most = [[task.region_m, task.region_m, 100, 100, 100]] * nearby
            parts["nearby"] = box((-np.array(most) * [1, 1, 1, 1, 0]).tolist(), most)
        return spaces.Dict(parts)

    observation: dict[str, spaces.Space[Any]] = {name: seen() for name in names}
    return observation, {name: box([0, -turn], [speed, turn]) for name in names}


def _dynamics(backend: str, task: Task, robots: int, level: Level) -> Dynamics:
    if backend == "native":
        return _native.NavigationDynamics(task)
    if backend == "numpy":
        return NumpyDynamics(task)
    if backend == "irsim":
        from coorp.envs.irsim import IrsimDynamics

        return IrsimDynamics(task, robots, [level.obstacle_radius_m] * level.obstacles)
    raise ValueError(f"there is no backend {backend!r}; choose native, numpy or irsim")
