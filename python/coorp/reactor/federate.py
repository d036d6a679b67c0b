"""Runs one federate of a program in this process: gives the native runtime the code of its reactions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import is_
from typing import TYPE_CHECKING, Any, NoReturn

from coorp._native import RunError, Runner
from coorp.reactor.build import late_inputs, live_reactions, tardy_name
from coorp.reactor.declare import Moments
from coorp.reactor.ports import (
    OUTSIDE,
    BoundLogicalAction,
    BoundPhysicalAction,
    OutputPort,
    _Readable,
)
from coorp.reactor.reactor import KINDS

if TYPE_CHECKING:
    from coorp.reactor.build import Built
    from coorp.reactor.declare import Reaction
    from coorp.reactor.program import Added
    from coorp.reactor.reactor import Reactor


@dataclass
class Failed:
    """The reaction that ended the program, by its full name."""

    reaction: str = ""
    at_ns: int = 0


def runner(built: Built, federate: int, settings: Mapping[str, Any], failed: Failed) -> Runner:
    """Returns a runner with all reactions of the federate."""
    made = Runner(built.graph, federate, dict(settings))
    for name, added in built.program.added.items():
        if built.placement.of[name] == federate:
            _bind(made, built, added, failed)
    return made


def release(built: Built) -> None:
    """Detaches physical actions from the runner that has ended."""
    for added in built.program.added.values():
        for bound in added.reactor._parts.bound.values():
            if isinstance(bound, BoundPhysicalAction) and bound._schedule is not None:
                bound._schedule = _ignored


def _ignored(_action: int, _value: object) -> None:
    pass


def _bind(made: Runner, built: Built, added: Added, failed: Failed) -> None:
    parts = added.reactor._parts
    live = live_reactions(built, added)
    for name, bound in parts.bound.items():
        full = f"{added.name}.{name}"
        if isinstance(bound, _Readable):
            bound._readers = frozenset(at for at, reaction in live if name in _read(reaction))
        if isinstance(bound, OutputPort | BoundLogicalAction):
            bound._element = built.graph.element(full)
            bound._writers = frozenset(at for at, reaction in live if name in _written(reaction))
        if isinstance(bound, OutputPort):
            bound._loan = made.loan
        if isinstance(bound, BoundPhysicalAction):
            bound._element = built.graph.element(full)
            bound._schedule = made.schedule
    for at, reaction in live:
        full = f"{added.name}.{reaction.name}"
        reads = [
            (built.graph.element(f"{added.name}.{name}"), parts.bound[name])
            for name in _read(reaction)
            if f"{added.name}.{name}" not in built.loose
        ]
        late = None if reaction.late is None else getattr(added.reactor, reaction.late)
        made.bind(
            built.graph.reaction(full),
            _guarded(added.reactor, getattr(added.reactor, reaction.name), at, full, failed),
            None if late is None else _guarded(added.reactor, late, at, full, failed),
            reads,
            parts.effects,
            parts.moment,
            f"{full} ({reaction.where})",
        )
        if reaction.tardy is not None and (inputs := late_inputs(reaction, added.name, built.loose)):
            full = f"{added.name}.{tardy_name(reaction)}"
            made.bind(
                built.graph.reaction(full),
                _guarded(added.reactor, getattr(added.reactor, reaction.tardy), at, full, failed),
                None,
                [(built.graph.element(f"{added.name}.{name} (late)"), parts.bound[name]) for name in inputs],
                parts.effects,
                parts.moment,
                f"{full} ({reaction.where})",
            )


def _read(reaction: Reaction) -> list[str]:
    return [part.name for part in (*reaction.triggers, *reaction.uses) if not isinstance(part, Moments)]


def _written(reaction: Reaction) -> list[str]:
    return [part.name for part in reaction.effects]


def _guarded(reactor: Reactor, method: Callable[[], object], at: int, name: str, failed: Failed) -> Callable[[], None]:
    """Returns a call of the method as reaction number `at`, during which ports allow what this reaction has
    declared."""
    moment, bound, attributes = reactor._parts.moment, reactor._parts.bound, vars(reactor)

    def run() -> None:
        moment.reaction = at
        try:
            method()
            if not all(map(is_, bound.values(), map(attributes.get, bound))):
                _refuse_assignment(reactor, at)
        except BaseException:
            if not failed.reaction:
                failed.reaction, failed.at_ns = name, moment.time_ns
            raise
        finally:
            moment.reaction = OUTSIDE

    return run


def _refuse_assignment(reactor: Reactor, at: int) -> NoReturn:
    reaction = reactor._parts.reactions[at]
    title = f"{reactor._parts.name}.{reaction.name} ({reaction.where})"
    for part, bound in reactor._parts.bound.items():
        if vars(reactor).get(part) is not bound:
            hint = f"; call self.{part}.set(value)" if isinstance(bound, OutputPort) else "; rename the attribute"
            kind = KINDS[type(reactor._parts.declared[part])]
            raise RunError(f"{title} has assigned to self.{part}, which is its {kind}{hint}")
    raise AssertionError("nothing was assigned")
