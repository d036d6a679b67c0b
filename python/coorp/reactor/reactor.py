"""The base class of reactors."""

from __future__ import annotations

from functools import cache
from types import FunctionType
from typing import TYPE_CHECKING

from coorp.reactor.declare import Declaration, Input, LogicalAction, Output, PhysicalAction, Reaction, Timer
from coorp.reactor.ports import (
    OUTSIDE,
    Bound,
    BoundLogicalAction,
    BoundPhysicalAction,
    BoundTimer,
    InputPort,
    Moment,
    OutputPort,
)

if TYPE_CHECKING:
    from typing_extensions import Self


class Parts:
    """The package's own data about one reactor, separate from the user's attributes."""

    def __init__(self, reactor: Reactor) -> None:
        self.declared = declared(type(reactor))
        self.reactions = [part for part in self.declared.values() if isinstance(part, Reaction)]
        self.moment = Moment([reaction.name for reaction in self.reactions])
        self.effects: list[object] = []
        self.bound: dict[str, Bound] = {}
        self.name = ""
        """The reactor's name in the program; empty until it is added."""
        for name, part in self.declared.items():
            if not isinstance(part, Reaction):
                self.bound[name] = self._bind(reactor, name, part)

    def _bind(self, reactor: Reactor, name: str, part: Declaration) -> Bound:
        if isinstance(part, Input):
            return InputPort(reactor, name, self.moment)
        if isinstance(part, Output):
            return OutputPort(reactor, name, self.moment, self.effects)
        if isinstance(part, LogicalAction):
            return BoundLogicalAction(reactor, name, self.moment, self.effects)
        if isinstance(part, PhysicalAction):
            return BoundPhysicalAction(reactor, name, self.moment)
        return BoundTimer(reactor, name, self.moment)


class Reactor:
    """State, and reactions that change it in a fixed order. Subclasses declare ports, timers, actions and reactions.

    A subclass inherits declarations. A method that overrides a reaction replaces its code and keeps its declaration.
    When a program runs in several processes, each creates all reactors; so open devices in a reaction to `startup`.
    """

    _parts: Parts

    def __new__(cls, *_arguments: object, **_options: object) -> Self:
        self = super().__new__(cls)
        self._parts = Parts(self)
        # Python finds these before the class's declarations, so that access costs no call.
        self.__dict__.update(self._parts.bound)
        return self

    @property
    def time(self) -> int:
        """The logical time of the running reaction, in ns since the program's start."""
        return self._parts.moment.time_ns

    @property
    def microstep(self) -> int:
        """The microstep of the running reaction's tag."""
        return self._parts.moment.microstep

    @property
    def lag(self) -> int:
        """The time by which physical time was ahead of logical time when the reaction began, in ns."""
        return self._parts.moment.lag_ns

    def stop(self) -> None:
        """Ends the program at the next microstep, where reactions to `shutdown` run. From outside, call
        `Program.stop`."""
        if self._parts.moment.reaction == OUTSIDE:
            raise RuntimeError("Reactor.stop is for reactions; from outside use Program.stop")
        self._parts.effects.append(None)


@cache
def declared(cls: type[Reactor]) -> dict[str, Declaration]:
    """Returns a class's declarations by name: base classes first, then in the order of the class body."""
    parts: dict[str, Declaration] = {}
    for owner in reversed(cls.__mro__):
        for name, value in vars(owner).items():
            if isinstance(value, Declaration):
                parts[name] = value
            elif not (isinstance(value, FunctionType) and isinstance(parts.get(name), Reaction)):
                parts.pop(name, None)
    return parts


KINDS: dict[type[Declaration], str] = {
    Input: "input",
    Output: "output",
    Timer: "timer",
    LogicalAction: "logical action",
    PhysicalAction: "physical action",
    Reaction: "reaction",
}
