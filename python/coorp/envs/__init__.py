"""Environments for robots that learn while they drive; needs the extra `learn`."""

from coorp.envs.channel import OverChannel
from coorp.envs.navigation import EVENT_DTYPE, VECTOR_FIELDS, Navigation, Tally
from coorp.envs.task import DRIVING, LEVELS, Ending, Level, Task

__all__ = [
    "DRIVING",
    "EVENT_DTYPE",
    "LEVELS",
    "VECTOR_FIELDS",
    "Ending",
    "Level",
    "Navigation",
    "OverChannel",
    "Tally",
    "Task",
]
