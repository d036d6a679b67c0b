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

The simulator is native code and releases the GIL while it runs, so seeds can run in parallel on threads. A seed gives
the same result here as in `coorp sim`, for any step sizes of a session. A node is a robot of a live team; docs/live.md
describes it.

`coorp.reactor` runs programs of reactors, inside one robot and between them.

Nodes need the live half, a wheel of its own: `pip install . ./live` in Coorp's source.

Modules that need more than NumPy are imported only on access: `coorp.envs`, `coorp.learn` and `coorp.record`
(`pip install '.[learn]'` in Coorp's source).
"""

from __future__ import annotations

import importlib
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from coorp import _halves

_halves.load(__path__)

from coorp._native import (  # noqa: E402
    BrokenRuleError,
    InputError,
    Learning,
    Result,
    Session,
    Team,
    __version__,
    check,
    simulate,
)

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
    """The dtype of the arrays from `Session.advance`."""

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
    """The kinds of events from `Session.advance`. Brackets say what the event's `number` counts.

    Rounds and epochs count from 0, samples from 1. A robot acts on its command from `COMMAND_IN` on, and on the
    previous one until then.
    """

    PERCEPTION = 0
    """The robot made its perception (sample). The leader makes its own at `INFER`."""
    PERCEPTION_IN = 1
    """That perception has arrived at the leader (sample)."""
    INFER = 2
    """The leader has everything it waits for, and infers from each robot's newest perception (round)."""
    INFERRED = 3
    """Inference has finished, and commands are sent (round)."""
    COMMAND_IN = 4
    """The robot has its command (round). The leader has its own at once."""
    COMMAND_LOST = 5
    """The robot will never get its command (round)."""
    LOOP_ENDED = 6
    """Every command of a loop has arrived or is lost (round)."""
    COLLECT = 7
    """Collection of a new batch starts (epoch)."""
    BATCH_FULL = 8
    """The batch is full, and its partitions are sent (epoch)."""
    PARTITION_IN = 9
    """The robot, possibly the leader, has its partition (epoch)."""
    TRAIN = 10
    """The robot starts training (its training round in the epoch, as for the next four)."""
    TRAINED = 11
    """It has finished training, and its update is sent."""
    UPDATE_IN = 12
    """The leader has that update."""
    MODEL_OUT = 13
    """The leader replies with the current model."""
    MODEL_IN = 14
    """The robot has that model."""
    EPOCH = 15
    """Every robot has the model of the last round (epoch)."""


def __getattr__(name: str) -> Any:  # noqa: ANN401
    if name == "EVENT_DTYPE":
        from coorp._native import event_dtype

        return event_dtype()
    if name in ("envs", "learn", "reactor", "record"):
        return importlib.import_module(f"coorp.{name}")
    if name in __all__:
        from coorp import _native

        # All remaining names belong to the live half. An ImportError, so that `from coorp import Node` keeps the text.
        if not hasattr(_native, name):
            raise ImportError(f"coorp.{name} needs {_halves.MISSING}")
        return getattr(_native, name)
    raise AttributeError(f"module 'coorp' has no attribute '{name}'")
