"""The declarations of a reactor class: ports, timers, actions and reactions.

A declaration is an attribute of the class. Each instance has its own port, timer or action of the same name.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from datetime import timedelta
from inspect import iscoroutinefunction, signature
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Union, cast, overload

from coorp.reactor.duration import nanoseconds
from coorp.reactor.ports import BoundLogicalAction, BoundPhysicalAction, BoundTimer, InputPort, OutputPort
from coorp.reactor.where import Where, here, refused

if TYPE_CHECKING:
    from typing_extensions import Self

    from coorp.reactor.reactor import Reactor

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., object])


class Declaration:
    """A named part of a reactor class, and the line that declares it."""

    def __init__(self) -> None:
        self.name = ""
        self.second_name = ""
        self.owner: type | None = None
        self.where: Where = here()

    def __set_name__(self, owner: type, name: str) -> None:
        if self.name:
            self.second_name = name
        else:
            self.owner, self.name = owner, name


class Input(Declaration, Generic[T]):
    """An input port. `Input[np.ndarray]()` declares the type of its values. An optional one may stay unconnected."""

    def __init__(self, *, optional: bool = False) -> None:
        super().__init__()
        self.optional = optional

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: Reactor, owner: type) -> InputPort[T]: ...
    def __get__(self, instance: Reactor | None, owner: type) -> Self | InputPort[T]:
        return self


class Output(Declaration, Generic[T]):
    """An output port. `Output[np.ndarray]()` declares the type of its values."""

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: Reactor, owner: type) -> OutputPort[T]: ...
    def __get__(self, instance: Reactor | None, owner: type) -> Self | OutputPort[T]:
        return self


class Timer(Declaration):
    """A timer. Triggers reactions at `offset` and then every `period`; without a period, once."""

    def __init__(self, *, period: str | timedelta | None = None, offset: str | timedelta = "0s") -> None:
        super().__init__()
        self.period_ns = None if period is None else duration("period", period)
        self.offset_ns = duration("offset", offset)
        if self.period_ns == 0:
            raise refused("period is zero; for a single event, omit it")

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: Reactor, owner: type) -> BoundTimer: ...
    def __get__(self, instance: Reactor | None, owner: type) -> Self | BoundTimer:
        return self


class LogicalAction(Declaration, Generic[T]):
    """An event that a reaction schedules for its own reactor, at least `delay_min` after its tag."""

    def __init__(self, *, delay_min: str | timedelta = "0s") -> None:
        super().__init__()
        self.delay_min_ns = duration("delay_min", delay_min)

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: Reactor, owner: type) -> BoundLogicalAction[T]: ...
    def __get__(self, instance: Reactor | None, owner: type) -> Self | BoundLogicalAction[T]:
        return self


class PhysicalAction(Declaration, Generic[T]):
    """An event from outside, such as a sensor's thread. Its tag is the physical time, plus `delay_min`."""

    def __init__(self, *, delay_min: str | timedelta = "0s") -> None:
        super().__init__()
        self.delay_min_ns = duration("delay_min", delay_min)

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: Reactor, owner: type) -> BoundPhysicalAction[T]: ...
    def __get__(self, instance: Reactor | None, owner: type) -> Self | BoundPhysicalAction[T]:
        return self


class Moments:
    """The type of `startup` and `shutdown`."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


startup = Moments("startup")
"""Triggers a reaction at the program's first tag."""
shutdown = Moments("shutdown")
"""Triggers a reaction at the program's last tag."""

Action = Union[LogicalAction[Any], PhysicalAction[Any]]  # noqa: UP007 (evaluated on Python 3.10)
Trigger = Union[Input[Any], Timer, Action, Moments]  # noqa: UP007
Source = Union[Input[Any], Action]  # noqa: UP007
Effect = Union[Output[Any], Action]  # noqa: UP007


class Reaction(Declaration):
    """A method that runs when one of its triggers is present."""

    def __init__(self, body: Callable[[Any], object], where: Where, options: _Options) -> None:
        super().__init__()
        self.body = body
        self.where = where
        self.triggers = options.triggers
        self.uses = options.uses
        self.effects = options.effects
        self.deadline_ns = options.deadline_ns
        self.late = options.late
        self.tardy = options.tardy
        self.__doc__ = body.__doc__

    def __get__(self, instance: Reactor | None, owner: type) -> Reaction | Callable[[], object]:
        return self if instance is None else MethodType(self.body, instance)


class _Options:
    def __init__(
        self,
        triggers: tuple[Trigger, ...],
        uses: tuple[Source, ...],
        effects: tuple[Effect, ...],
        deadline_ns: int | None,
        late: str | None,
        tardy: str | None,
    ) -> None:
        self.triggers = triggers
        self.uses = uses
        self.effects = effects
        self.deadline_ns = deadline_ns
        self.late = late
        self.tardy = tardy

    def __call__(self, body: F) -> F:
        if not isinstance(body, FunctionType) or iscoroutinefunction(body):
            raise refused(f"@reaction is for plain methods, and {body!r} is not one")
        try:
            signature(body).bind(None)
        except TypeError:
            raise refused(
                f"{body.__name__} is called with self only; get values from ports, as self.port.get()"
            ) from None
        earlier = sys._getframe(1).f_locals.get(body.__name__)
        if isinstance(earlier, Declaration) and not earlier.name:
            raise refused(f"{body.__name__} is already declared at {earlier.where}; rename one")
        made = Reaction(body, Where(body.__code__.co_filename, body.__code__.co_firstlineno), self)
        # To a type checker it remains the method, which can be called, and overridden by another method.
        return cast(F, made)


def reaction(
    *triggers: Trigger,
    uses: Source | Iterable[Source] = (),
    effects: Effect | Iterable[Effect] = (),
    deadline: str | timedelta | None = None,
    late: str | None = None,
    tardy: str | None = None,
) -> Callable[[F], F]:
    """Makes a method run when any of `triggers` is present.

    It may read its triggers and what it `uses`, and set or schedule its `effects`. If it would begin later than
    `deadline` after its tag, the method named `late` runs instead. Reactions of a reactor run in the class's order.

    Under decentralised coordination, a value of an input may arrive after its tag, once the offset has passed. Then the
    method named `tardy` gets the late values of the triggers, at the next free tag; `self.port.meant` is the intended
    time. The method may have the same effects as the reaction. Without it, late values are not used. They are counted
    and reported in both cases.
    """
    if not triggers:
        raise refused("nothing triggers this reaction; write @reaction(trigger, ...)")
    return _Options(
        _of("trigger", triggers, (Input, Timer, LogicalAction, PhysicalAction, Moments)),
        _of("uses", uses, (Input, LogicalAction, PhysicalAction)),
        _of("effects", effects, (Output, LogicalAction, PhysicalAction)),
        None if deadline is None else duration("deadline", deadline),
        late,
        tardy,
    )


_ALLOWED = {
    "trigger": "an input, a timer, an action, startup or shutdown",
    "uses": "inputs and actions",
    "effects": "outputs and actions",
}


def _of(place: str, given: Any, kinds: tuple[type, ...]) -> tuple[Any, ...]:  # noqa: ANN401
    several = isinstance(given, Iterable) and not isinstance(given, str)
    parts = tuple(given) if several else (given,)
    for part in parts:
        if not isinstance(part, kinds):
            what = f"the {type(part).__name__}" if isinstance(part, Declaration) else repr(part)
            raise refused(f"{place}: {what} is not allowed here; use {_ALLOWED[place]} declared in the class")
    return parts


def duration(what: str, given: str | timedelta) -> int:
    """Returns a duration of the user's file, in ns."""
    try:
        return nanoseconds(given)
    except (TypeError, ValueError) as problem:
        raise refused(f"{what}: {problem}") from None
