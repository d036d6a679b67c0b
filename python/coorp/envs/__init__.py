"""Environments for robots that learn while they drive; needs the extra `learn`."""

from coorp.envs.channel import OverChannel
from coorp.envs.navigation import EVENT_DTYPE, NEARBY_FIELDS, VECTOR_FIELDS, Navigation, Tally
from coorp.envs.planner import ARCS, Planner
from coorp.envs.task import DRIVING, LEVELS, Ending, Level, Task

__all__ = [
    "ARCS",
    "DRIVING",
    "EVENT_DTYPE",
    "LEVELS",
    "NEARBY_FIELDS",
    "VECTOR_FIELDS",
    "Ending",
    "Level",
    "Navigation",
    "OverChannel",
    "Planner",
    "Tally",
    "Task",
]
