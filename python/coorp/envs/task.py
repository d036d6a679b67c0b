"""The parameters of `coorp.envs.Navigation`: the world, the endings, the reward, the two levels.

Sources, named in the fields below:

- `paper`: reference [2] of Deng 2022, R. Han, S. Chen, Q. Hao, "Cooperative Multi-Robot Navigation in Dynamic
  Environment with Deep Reinforcement Learning", ICRA 2020. Neither its text nor its code is public, so only its setting
  is used here: robots with differential drives, moving obstacles, and one robot that combines perceptions and decides
  for all robots.
- `code`: the same first author's next publication, "Reinforcement Learned Distributed Multi-Robot Navigation with
  Reciprocal Velocity Obstacle Shaped Rewards", RA-L 2022 (arXiv 2203.10229), with its code at
  github.com/hanruihua/rl_rvo_nav, and the simulator of both, IR-SIM (github.com/hanruihua/ir-sim). All definitions and
  numbers are from there unless a field says that they are ours.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from enum import IntEnum

TICK_NS = 1_000_000
"""Duration of a tick. All integration and all checks use a grid of one millisecond."""
TICK_S = TICK_NS / 1e9
TICKS_PER_S = 1000
REWARD_TICKS = 10
"""Ticks between samples of the shaped reward and of near misses."""
NEAR_MISS_S = 0.5
"""A near miss begins when a robot would touch something in less than this time if all kept their velocities, and ends
when it would touch nothing within twice this time. The same at every pace."""
CODE_MPS = 1.5
"""Full speed in `code`."""
PACE = 3.0
"""Default factor by which everything is faster than in `code`: speeds are multiplied and times divided by it, sizes
stay. Ours. At `code`'s 1.5 m/s a reaction bound of 33 ms is 5 cm; robots of this size drive at 3 to 5 m/s in RoboCup's
Middle Size League."""


class Ending(IntEnum):
    """The endings of a robot's episode. If two robots touch, both have collided."""

    ARRIVED = 1
    HIT_ROBOT = 2
    HIT_OBSTACLE = 3
    HIT_WALL = 4
    TIMED_OUT = 5

    @property
    def collision(self) -> bool:
        return self in (Ending.HIT_ROBOT, Ending.HIT_OBSTACLE, Ending.HIT_WALL)


DRIVING = 0
"""A robot's status while its episode has not ended."""


@dataclass(frozen=True)
class Level:
    """The obstacles. Each moves straight to a random point at its own constant speed, then on to the next, like
    IR-SIM's `wander`. They react to no one and pass through one another."""

    obstacles: int = 5
    """Number of obstacles (Deng 2022, section VI)."""
    obstacle_radius_m: float = 0.2
    """Radius. Ours; 0.1 m in `code`, which is hard to see in 64 pixels."""
    obstacle_speed_mps: tuple[float, float] = (0.1 * PACE, 0.3 * PACE)
    """Minimum and maximum speed; at most 0.3 m/s in `code`."""

    def at(self, speed_mps: float) -> Level:
        """Returns the same obstacles, as much faster or slower as robots are with this full speed."""
        factor = speed_mps / (CODE_MPS * PACE)
        least, most = self.obstacle_speed_mps
        return replace(self, obstacle_speed_mps=(least * factor, most * factor))


LEVELS = {"known": Level(obstacles=0), "unknown": Level(obstacles=8, obstacle_speed_mps=(0.4 * PACE, 0.8 * PACE))}
"""The shipped policy was trained on `known`: robots only, as in `code`. `unknown` has more obstacles than the papers'
five, and faster ones than `code`. Speeds are for the default task; `Navigation` adapts them to another full speed."""


@dataclass(frozen=True)
class Task:
    """The world, the robots and the reward."""

    width_m: float = 10.0
    height_m: float = 10.0
    robot_radius_m: float = 0.2
    """A robot collides when its disc touches another robot's, an obstacle's, or a wall (`code`)."""
    goal_radius_m: float = 0.2
    """A robot has arrived when its centre is nearer than this to its goal, so that it covers it. Ours; 0.1 m in `code`,
    with whose 0.1 s steps a robot at full speed would often drive past its goal."""
    max_speed_mps: float = CODE_MPS * PACE
    """The maximum forward speed (`code`)."""
    max_turn_radps: float = 1.5 * PACE
    """The maximum turn rate in either direction (`code`)."""
    episode_s: float = 15.0 / PACE
    """After this time, a robot that has neither collided nor arrived times out: 150 steps of 0.1 s in `code`."""
    clearance_m: float = 1.0
    """Starts are at least this far from robots and obstacles, goals from each other and from walls (`code`)."""
    travel_m: float = 4.0
    """Goals are at least this far from starts. Ours."""

    collision: float = -60.0
    """Reward for a collision. Ours: -20 in `code` (the default of its environment) is less than half a second of the
    terms below at risk, so with `endless` it would hardly pay to avoid one."""
    arrival: float = 15.0
    """Reward for an arrival (`code`, likewise). Its training scripts set both to 0, because there the end of an episode
    forfeits later rewards; with `endless` nothing ends, so both are needed."""
    region_m: float = 4.0
    """Only objects within this distance, centre to centre, count as a risk (`code`)."""
    horizon_s: float = 5.0 / PACE
    """Only expected collisions with robots and obstacles that are nearer than this count as a risk (`code`)."""
    wall_horizon_s: float = 1.0 / PACE
    """The same for walls (`code`)."""
    margin_m: float = 0.1
    """The length by which a robot assumes itself to be larger when it checks for risks (`code`)."""
    risk_bonus: float = 0.3
    risk_detour: float = 0.0
    risk_time: float = 6.0
    softening_s: float = 0.2 / PACE
    """At risk, a step of `shaping_step_s` gives `risk_bonus - risk_detour * d - risk_time * s / (t + s)`: s is
    `softening_s`, t the expected collision time, d the distance between the robot's velocity and the wanted one (full
    speed towards the goal), as a share of twice the full speed. Numbers from the training scripts of `code`."""
    free_bonus: float = 0.3
    free_detour: float = 3.0
    """Without risk, a step gives `free_bonus - free_detour * d`."""
    shaping_step_s: float = 0.1 / PACE
    """The step to which the shaping terms refer (`code`); a sample counts for its share of a step."""

    @classmethod
    def at(cls, speed_mps: float) -> Task:
        """Returns the default task at another pace: speeds are multiplied and times divided, sizes stay."""
        if not 0 < speed_mps < 1e6:
            raise ValueError(f"the full speed is {speed_mps} m/s; it must be above 0 and below a million")
        pace = speed_mps / CODE_MPS
        return cls(
            max_speed_mps=speed_mps,
            max_turn_radps=1.5 * pace,
            episode_s=15.0 / pace,
            horizon_s=5.0 / pace,
            wall_horizon_s=1.0 / pace,
            softening_s=0.2 / pace,
            shaping_step_s=0.1 / pace,
        )

    def __post_init__(self) -> None:
        positive = ("width_m", "height_m", "robot_radius_m", "goal_radius_m", "max_speed_mps", "max_turn_radps")
        positive += ("episode_s", "clearance_m", "travel_m", "softening_s", "shaping_step_s")
        for field in fields(self):
            value = getattr(self, field.name)
            if not abs(value) < 1e6:
                raise ValueError(f"{field.name} is {value}; it must be a number below a million")
            if value <= 0 and field.name in positive:
                raise ValueError(f"{field.name} is {value}; it must be greater than 0")
        room = 2 * (self.clearance_m + self.robot_radius_m)
        if min(self.width_m, self.height_m) <= room:
            raise ValueError(f"a world of {self.width_m} m by {self.height_m} m has no room for robots; make it larger")
