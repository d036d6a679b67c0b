"""Control on time and bulk at full speed for robot teams on one WiFi channel.

    import coorp

    result = coorp.simulate("examples/navigation.toml", "coorp", duration_s=60.0, seed=1)
    print(result.violation_rate, result.bulk_mbps, result.reaction_ms["p99"])

    session = coorp.Session("examples/navigation.toml", "coorp", seed=1)
    for event in session.advance(until_s=1.0):
        print(event["t_ns"], coorp.EventKind(event["kind"]).name, event["robot"], event["number"])

    node = coorp.Node("team.toml", robot="r1")
    node.control_publisher("pose", period="33ms").put(array)
    plan = node.control_subscriber("plan").recv(timeout=1.0)

The simulator is native code, and lets go of the GIL while it runs: seeds run side by side on threads. A seed gives the
same result here as `coorp sim` does, however a session is stepped. A node is a robot of a live team; docs/live.md says
what it does.

What needs more than NumPy is imported only when it is asked for: `coorp.envs`, `coorp.learn` and `coorp.record`
(`pip install '.[learn]'` in Coorp's source).
"""

from __future__ import annotations

import importlib
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from coorp._native import BrokenRuleError, InputError, Learning, Result, Session, Team, __version__, check, simulate

if TYPE_CHECKING:
    import numpy as np

    from coorp._native import (
        BulkMessage,
        BulkReceiver,
        BulkStream,
        ControlPublisher,
        ControlSubscriber,
        Delivery,
        Gather,
        Message,
        Node,
        NodeError,
        RobotState,
    )

    EVENT_DTYPE: np.dtype[np.void]

__all__ = [
    "EVENT_DTYPE",
    "BrokenRuleError",
    "BulkMessage",
    "BulkReceiver",
    "BulkStream",
    "ControlPublisher",
    "ControlSubscriber",
    "Delivery",
    "EventKind",
    "Gather",
    "InputError",
    "Learning",
    "Message",
    "Node",
    "NodeError",
    "Result",
    "RobotState",
    "Session",
    "Team",
    "__version__",
    "check",
    "simulate",
]


class EventKind(IntEnum):
    """What happened, in the `kind` of `Session.advance`'s events. In brackets: what the event's `number` counts.

    Rounds and epochs count from 0, samples from 1. A robot acts on its command from `COMMAND_IN` on, and on the one
    before until then.
    """

    PERCEPTION = 0
    """The robot made its perception (sample). The leader makes its own at `INFER`."""
    PERCEPTION_IN = 1
    """That perception is at the leader (sample)."""
    INFER = 2
    """The leader has all that it waits for, and infers from each robot's newest perception (round)."""
    INFERRED = 3
    """The inference has ended, and commands are sent (round)."""
    COMMAND_IN = 4
    """The robot has its command (round). The leader has its own at once."""
    COMMAND_LOST = 5
    """The robot will never get its command (round)."""
    LOOP_ENDED = 6
    """Every command of a loop has arrived or is lost (round)."""
    COLLECT = 7
    """A new batch is collected (epoch)."""
    BATCH_FULL = 8
    """The batch is full, and its partitions go out (epoch)."""
    PARTITION_IN = 9
    """The robot, be it the leader, has its partition (epoch)."""
    TRAIN = 10
    """The robot begins to train (its round of training in the epoch, as for the next four)."""
    TRAINED = 11
    """It has trained, and its update is sent."""
    UPDATE_IN = 12
    """The leader has that update."""
    MODEL_OUT = 13
    """The leader answers it with the model as it is now."""
    MODEL_IN = 14
    """The robot has that model."""
    EPOCH = 15
    """Every robot has the model of the last round (epoch)."""


def __getattr__(name: str) -> Any:  # noqa: ANN401
    if name == "EVENT_DTYPE":
        from coorp._native import event_dtype

        return event_dtype()
    if name in ("envs", "learn", "record"):
        return importlib.import_module(f"coorp.{name}")
    if name in __all__:
        from coorp import _native

        # All that is left is of the live system, which a build may leave out.
        if not hasattr(_native, name):
            raise AttributeError(f"this build of coorp has no live system, and so no coorp.{name}")
        return getattr(_native, name)
    raise AttributeError(f"module 'coorp' has no attribute '{name}'")
