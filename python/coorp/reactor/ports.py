"""The objects that a reactor's code uses while it runs: its ports, timers and actions.

Before a reaction, the runtime sets `_value` and `_present` of everything that the reaction reads. Values that it sets
and events that it schedules are noted in one list for each reactor, which the runtime takes afterwards. A reaction may
use only what it has declared: anything else could differ from run to run, so it raises UndeclaredError.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Generic, NoReturn, TypeVar, cast

import numpy as np
import numpy.typing as npt

from coorp.reactor.duration import nanoseconds

if TYPE_CHECKING:
    from coorp._native import Loan
    from coorp.reactor.reactor import Reactor

T = TypeVar("T")

OUTSIDE = -1
"""The number of the running reaction while none runs."""


class UndeclaredError(RuntimeError):
    """The use of a port or an action that the reaction has not declared."""


class Moment:
    """The running reaction of a reactor, and its time. One for each reactor; the runtime writes the times."""

    __slots__ = ("lag_ns", "microstep", "reaction", "reactions", "time_ns")

    def __init__(self, reactions: list[str]) -> None:
        self.time_ns = 0
        self.microstep = 0
        self.lag_ns = 0
        self.reaction = OUTSIDE
        self.reactions = reactions


class Bound:
    """A declaration bound to one reactor."""

    __slots__ = ("_moment", "_name", "_reactor")

    def __init__(self, reactor: Reactor, name: str, moment: Moment) -> None:
        self._reactor = reactor
        self._name = name
        self._moment = moment

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {type(self._reactor).__name__}.{self._name}>"

    def _refuse(self, what: str, option: str) -> NoReturn:
        at = self._moment.reaction
        if at == OUTSIDE:
            raise UndeclaredError(f"{self._name} can be {what} only by a reaction, while the reaction runs")
        reaction = f"{type(self._reactor).__name__}.{self._moment.reactions[at]}"
        raise UndeclaredError(f"{reaction} has not declared {self._name}; add it to {option} of the reaction")


class _Readable(Bound):
    __slots__ = ("_present", "_readers", "_value")

    def __init__(self, reactor: Reactor, name: str, moment: Moment) -> None:
        super().__init__(reactor, name, moment)
        self._present = False
        self._value: object = None
        self._readers: frozenset[int] = frozenset()

    def is_present(self) -> bool:
        """Returns whether there is an event at this tag."""
        if self._moment.reaction not in self._readers:
            self._refuse("read", "the triggers or `uses`")
        return self._present


class _Valued(_Readable, Generic[T]):
    __slots__ = ()

    def get(self) -> T | None:
        """Returns the value at this tag; None if there is none. Treat it as read-only: others may read the same
        object."""
        if self._moment.reaction not in self._readers:
            self._refuse("read", "the triggers or `uses`")
        return cast("T | None", self._value)

    @property
    def value(self) -> T:
        """The value at this tag. Raises LookupError if there is none, which is impossible if the port is the only
        trigger."""
        if not self.is_present():
            raise LookupError(f"{self._name} has no value at this tag; check is_present() first, or call get()")
        return cast("T", self._value)


class InputPort(_Valued[T]):
    """An input of one reactor."""

    __slots__ = ("_meant",)

    def __init__(self, reactor: Reactor, name: str, moment: Moment) -> None:
        super().__init__(reactor, name, moment)
        self._meant: int | None = None

    @property
    def meant(self) -> int | None:
        """The intended logical time of a late value, in ns, in a `tardy` method; otherwise None."""
        return self._meant

    if TYPE_CHECKING:
        # Lets a type checker accept a connection from an output of a narrower type, and from no other.
        def _takes(self, value: T, /) -> None: ...


class OutputPort(Bound, Generic[T]):
    """An output of one reactor."""

    __slots__ = ("_effects", "_element", "_loan", "_writers")

    def __init__(self, reactor: Reactor, name: str, moment: Moment, effects: list[object]) -> None:
        super().__init__(reactor, name, moment)
        self._effects = effects
        self._element = OUTSIDE
        self._loan: Callable[[int, int], Loan | None] | None = None
        self._writers: frozenset[int] = frozenset()

    def loan(self, shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> np.ndarray:
        """Returns an array to fill and set, in memory that the receivers read, so that even a large one is sent without
        a copy.

        Its contents are undefined. It becomes read-only when it is set. Raises RunError if the receivers hold all
        memory of this output.
        """
        kind = np.dtype(dtype)
        size = int(np.prod(shape)) * kind.itemsize
        loan = None if self._loan is None else self._loan(self._element, size)
        return np.empty(shape, kind) if loan is None else loan.array(kind, shape)

    def set(self, value: T) -> None:
        """Sends the value at this tag; the last one set counts. No copy is made, so do not change the value afterwards.

        A NumPy array becomes read-only. If it is a view, receivers get a read-only view of the same memory.
        """
        if self._moment.reaction not in self._writers:
            self._refuse("set", "`effects`")
        if isinstance(value, np.ndarray):
            self._effects.append((self._element, _read_only(value)))
        else:
            self._effects.append((self._element, value))

    if TYPE_CHECKING:

        def _gives(self) -> T: ...


def _read_only(array: np.ndarray) -> np.ndarray:
    if array.base is not None and array.flags.writeable:
        array = array.view()
    array.flags.writeable = False
    return array


class BoundTimer(_Readable):
    """A timer of one reactor."""

    __slots__ = ()


class BoundLogicalAction(_Valued[T]):
    """A logical action of one reactor."""

    __slots__ = ("_effects", "_element", "_writers")

    def __init__(self, reactor: Reactor, name: str, moment: Moment, effects: list[object]) -> None:
        super().__init__(reactor, name, moment)
        self._effects = effects
        self._element = OUTSIDE
        self._writers: frozenset[int] = frozenset()

    def schedule(self, value: T | None = None, after: str | timedelta = "0s") -> None:
        """Schedules an event `after` the action's minimum delay from this tag; without a delay, at the next
        microstep."""
        if self._moment.reaction not in self._writers:
            self._refuse("scheduled", "`effects`")
        self._effects.append((self._element, nanoseconds(after), value))


class BoundPhysicalAction(_Valued[T]):
    """A physical action of one reactor."""

    __slots__ = ("_element", "_schedule")

    def __init__(self, reactor: Reactor, name: str, moment: Moment) -> None:
        super().__init__(reactor, name, moment)
        self._element = OUTSIDE
        self._schedule: Callable[[int, object], None] | None = None

    def schedule(self, value: T | None = None) -> None:
        """Schedules an event at the current physical time plus the action's minimum delay. May be called from any
        thread.

        After the program's end it does nothing, so that a sensor's thread may end later.
        """
        if self._schedule is None:
            raise RuntimeError(f"{self._name} can be scheduled only while the program runs, in its reactor's process")
        self._schedule(self._element, value)
