"""Checks a program and flattens it for the native runtime.

`check_program`, which is native, checks everything that depends on order and delays. Here its problems get the user's
lines.
"""

from __future__ import annotations

import difflib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from coorp._native import ReactorGraph, check_program
from coorp.reactor.declare import Declaration, Input, LogicalAction, Moments, Output, PhysicalAction, Reaction, Timer
from coorp.reactor.place import Placement, placed
from coorp.reactor.port_types import declared_type, fits, type_name
from coorp.reactor.reactor import KINDS, Reactor
from coorp.reactor.sendable import unsendable
from coorp.reactor.where import Problem, Where, all_refused

if TYPE_CHECKING:
    from coorp.reactor.program import Added, Connection, Program

RESERVED = {name for name, value in vars(Reactor).items() if isinstance(value, property) or callable(value)}
"""The attributes that every reactor has."""


@dataclass(frozen=True)
class Built:
    """A program that can run."""

    program: Program
    placement: Placement
    text: str
    """The JSON of the native `Program`."""
    graph: ReactorGraph
    loose: frozenset[str]
    """The full names of the optional inputs that are not connected."""


@dataclass
class _Lines:
    """The lines that the full names of a program come from."""

    of: dict[str, Where] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)
    added: dict[str, Where] = field(default_factory=dict)
    into: dict[str, list[Connection]] = field(default_factory=dict)


def build(program: Program, place: str | os.PathLike[str] | Placement | None = None, *, pickle: bool = False) -> Built:
    """Checks and flattens a program. Raises ProgramError with every problem that can be found at once. With `pickle`,
    all values can be sent."""
    problems = _own_problems(program)
    if problems:
        raise all_refused(problems)
    placement = placed(program, place)
    problems = [] if pickle else list(_unsendable(program, placement))
    if problems:
        raise all_refused(problems)
    loose = frozenset(_loose(program))
    text = json.dumps(_flat(program, placement, loose), separators=(",", ":"))
    problems = _native_problems(program, text)
    if problems:
        raise all_refused(problems)
    return Built(program, placement, text, ReactorGraph(text), loose)


def full_name(port: Any) -> str:  # noqa: ANN401
    """Returns the full name of a port of an added reactor."""
    return f"{port._reactor._parts.name}.{port._name}"


def live_reactions(built: Built, added: Added) -> list[tuple[int, Reaction]]:
    """Returns the reactions that can run, with their places in the class. A reaction cannot run if only unconnected
    inputs trigger it."""
    reactions = enumerate(added.reactor._parts.reactions)
    return [(at, reaction) for at, reaction in reactions if _triggers(reaction, added.name, built.loose)]


def refuse_waiting_cycles(built: Built, offsets: Sequence[int | None]) -> None:
    """Raises ProgramError if a federate would wait forever, under decentralised coordination with these offsets."""
    cycles = built.graph.cycles()
    problems: dict[int, Problem] = {}
    for federate, (cycle, offset) in enumerate(zip(cycles, offsets, strict=True)):
        if cycle is not None and offset is None and cycle not in problems:
            problems[cycle] = _waiting(built, federate)
    if problems:
        raise all_refused(list(problems.values()))


def _waiting(built: Built, federate: int) -> Problem:
    of = built.placement.of
    after: dict[int, list[tuple[int, Connection]]] = {}
    for connection in built.program.connections:
        source, sink = (of[port._reactor._parts.name] for port in (connection.source, connection.sink))
        if source != sink and connection.after_ns == 0 and not connection.physical:
            after.setdefault(source, []).append((sink, connection))
    # The shortest way from the federate back to it.
    ways: dict[int, list[Connection]] = {}
    queue: list[tuple[int, list[Connection]]] = [(federate, [])]
    for at, way in queue:
        for sink, connection in after.get(at, ()):
            if sink not in ways:
                ways[sink] = [*way, connection]
                queue.append((sink, ways[sink]))
    cycle = ways[federate]
    steps = "\n       ".join(
        f"{full_name(connection.source)} -> {full_name(connection.sink)} ({connection.where})" for connection in cycle
    )
    name = built.placement.federates[federate]
    return Problem(
        cycle[0].where,
        f"zero-delay cycle of processes: under decentralised coordination, {name} and the others in it would wait for "
        'each other forever. Give one of its connections a delay (after="1ms"), set --offset, or use centralised '
        f"coordination\n       {steps}",
    )


# Checks of what the native code cannot see.


def _own_problems(program: Program) -> list[Problem]:
    problems: list[Problem] = []
    if not program.added:
        problems.append(Problem(program.where, "the program has no reactors; add some"))
    seen: set[type[Reactor]] = set()
    for added in program.added.values():
        if type(added.reactor) not in seen:
            seen.add(type(added.reactor))
            problems += _of_class(type(added.reactor), added)
        problems += _of_instance(added)
    for connection in program.connections:
        problems += _of_connection(program, connection)
    return problems


def _of_class(cls: type[Reactor], added: Added) -> Iterable[Problem]:
    parts = added.reactor._parts.declared
    for name, part in parts.items():
        if part.second_name and part.name == name:
            yield Problem(part.where, f"{cls.__name__}.{part.name} is also {part.second_name}; declare each separately")
        if name in RESERVED or name == "_parts":
            yield Problem(part.where, f"{cls.__name__}.{name} hides Reactor.{name}; rename it")
        if isinstance(part, Reaction):
            yield from _of_reaction(cls, parts, part)


def _of_reaction(cls: type[Reactor], parts: dict[str, Declaration], reaction: Reaction) -> Iterable[Problem]:
    title = f"{cls.__name__}.{reaction.name}"
    named = {"trigger": reaction.triggers, "use": reaction.uses, "effect": reaction.effects}
    for what, given in named.items():
        for part in given:
            if isinstance(part, Moments):
                continue
            if not part.name:
                text = f"{title}: its {what} {KINDS[type(part)]} is not an attribute of the class"
                yield Problem(reaction.where, text)
            elif type(parts.get(part.name)) is not type(part) or not issubclass(cls, part.owner or cls):
                owner = part.owner.__name__ if part.owner else cls.__name__
                yield Problem(
                    reaction.where,
                    f"{title}: its {what} {owner}.{part.name} ({part.where}) is not declared in {cls.__name__}",
                )
        for name, count in Counter(part.name for part in given).items():
            if count > 1:
                yield Problem(reaction.where, f"{title}: {name} is listed twice among its {what}s")
    if reaction.deadline_ns is not None and reaction.late is None:
        yield Problem(reaction.where, f'{title} has a deadline and nothing to run when it is missed; add late="method"')
    if reaction.late is not None and reaction.deadline_ns is None:
        yield Problem(reaction.where, f"{title} has late={reaction.late!r} but no deadline; add one")
    if reaction.tardy is not None and not any(isinstance(part, Input) for part in reaction.triggers):
        yield Problem(
            reaction.where,
            f"{title} has tardy={reaction.tardy!r} but no input among its triggers; only values of inputs can be tardy",
        )
    for method in (reaction.late, reaction.tardy):
        if method is not None and not callable(getattr(cls, method, None)):
            methods = [name for name in dir(cls) if callable(getattr(cls, name)) and not name.startswith("_")]
            near = difflib.get_close_matches(method, methods, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            yield Problem(reaction.where, f"{title}: {cls.__name__} has no method {method!r}{hint}")


def _of_instance(added: Added) -> Iterable[Problem]:
    attributes = vars(added.reactor)
    for name, part in added.reactor._parts.declared.items():
        bound = added.reactor._parts.bound.get(name)
        if attributes.get(name) is not bound:
            text = f"an attribute of {added.name} has replaced its {KINDS[type(part)]} {name}; rename the attribute"
            yield Problem(part.where, text)


def _of_connection(program: Program, connection: Connection) -> Iterable[Problem]:
    at_home = True
    for port in (connection.source, connection.sink):
        name = port._reactor._parts.name
        added = program.added.get(name)
        if added is None or added.reactor is not port._reactor:
            at_home = False
            why = "belongs to another program" if name else "is not in the program; add it first"
            yield Problem(connection.where, f"the reactor of {type(port._reactor).__name__}.{port._name} {why}")
    if not at_home:
        return
    declared = [port._reactor._parts.declared[port._name] for port in (connection.source, connection.sink)]
    given, wanted = map(declared_type, declared)
    if not fits(given, wanted):
        yield Problem(
            connection.where,
            f"{full_name(connection.source)} sends {type_name(given)} ({declared[0].where}), but "
            f"{full_name(connection.sink)} takes {type_name(wanted)} ({declared[1].where})",
        )


def _unsendable(program: Program, placement: Placement) -> Iterable[Problem]:
    for connection in program.connections:
        source, sink = full_name(connection.source), full_name(connection.sink)
        home, away = (placement.of[port._reactor._parts.name] for port in (connection.source, connection.sink))
        if home == away:
            continue
        declared = connection.source._reactor._parts.declared[connection.source._name]
        kind = unsendable(declared_type(declared))
        if kind is not None:
            yield Problem(
                connection.where,
                f"{source} ({declared.where}) and {sink} are in different processes, and {type_name(kind)} cannot be "
                "sent; send its contents, as a dataclass for example, or place both in one process",
            )


# From objects to names.


def _loose(program: Program) -> Iterable[str]:
    connected = {full_name(connection.sink) for connection in program.connections}
    for added in program.added.values():
        for name, part in added.reactor._parts.declared.items():
            if isinstance(part, Input) and part.optional and f"{added.name}.{name}" not in connected:
                yield f"{added.name}.{name}"


def _flat(program: Program, placement: Placement, loose: frozenset[str]) -> dict[str, Any]:
    return {
        "federates": list(placement.federates),
        "reactors": [_flat_reactor(added, placement.of[name], loose) for name, added in program.added.items()],
        "connections": [
            {
                "from": full_name(connection.source),
                "to": full_name(connection.sink),
                "after": connection.after_ns,
                "physical": connection.physical,
            }
            for connection in program.connections
        ],
    }


def _flat_reactor(added: Added, federate: int, loose: frozenset[str]) -> dict[str, Any]:
    parts = added.reactor._parts.declared

    def of(kind: type[Declaration]) -> list[str]:
        return [name for name, part in parts.items() if isinstance(part, kind) and f"{added.name}.{name}" not in loose]

    timers = [(name, part) for name, part in parts.items() if isinstance(part, Timer)]
    actions = [(name, part) for name, part in parts.items() if isinstance(part, LogicalAction | PhysicalAction)]
    return {
        "name": added.name,
        "federate": federate,
        "inputs": of(Input),
        "outputs": of(Output),
        "timers": [{"name": name, "offset": part.offset_ns, "period": part.period_ns} for name, part in timers],
        "actions": [
            {
                "name": name,
                "kind": "Logical" if isinstance(part, LogicalAction) else "Physical",
                "delay_min": part.delay_min_ns,
            }
            for name, part in actions
        ],
        "reactions": [
            flat for reaction in added.reactor._parts.reactions for flat in _flat_reaction(reaction, added.name, loose)
        ],
    }


def _flat_reaction(reaction: Reaction, reactor: str, loose: frozenset[str]) -> Iterable[dict[str, Any]]:
    triggers = _triggers(reaction, reactor, loose)
    sources = [part.name for part in reaction.uses if f"{reactor}.{part.name}" not in loose]
    effects = [part.name for part in reaction.effects]
    flat = {"sources": sources, "effects": effects, "deadline": reaction.deadline_ns}
    if triggers:
        yield {"name": reaction.name, "triggers": triggers, **flat}
    late = [{"Tardy": name} for name in late_inputs(reaction, reactor, loose)]
    if late:
        yield {**flat, "name": tardy_name(reaction), "triggers": late, "sources": [], "deadline": None}


def late_inputs(reaction: Reaction, reactor: str, loose: frozenset[str]) -> list[str]:
    """Returns the inputs whose late values the reaction handles."""
    inputs = [part.name for part in reaction.triggers if isinstance(part, Input)]
    return [name for name in inputs if reaction.tardy is not None and f"{reactor}.{name}" not in loose]


def tardy_name(reaction: Reaction) -> str:
    """Returns the name of the native reaction that gets the late values of this one."""
    return f"{reaction.name}.{reaction.tardy}"


def _triggers(reaction: Reaction, reactor: str, loose: frozenset[str]) -> list[object]:
    named: list[object] = []
    for trigger in reaction.triggers:
        if isinstance(trigger, Moments):
            named.append(trigger.name.capitalize())
        elif f"{reactor}.{trigger.name}" not in loose:
            named.append({"Element": trigger.name})
    return named


# From names back to lines.


def _native_problems(program: Program, text: str) -> list[Problem]:
    found = check_program(text)
    if not found:
        return []
    lines = _lines(program)
    explain: dict[str, Callable[[list[str], str], Problem]] = {
        "CausalityCycle": lambda names, _: _cycle(names, lines),
        "DoubleWriter": lambda names, _: _double(names[0], lines),
        "UnconnectedInput": lambda names, _: Problem(
            lines.added[names[0].rpartition(".")[0]],
            f"{names[0]} ({lines.of[names[0]]}) is not connected; connect it, or declare Input(optional=True)",
        ),
    }
    problems = []
    for problem in found:
        names = problem["names"]
        if problem["kind"] in explain:
            problems.append(explain[problem["kind"]](names, problem["message"]))
        else:
            where = lines.of.get(names[0]) or lines.added.get(names[0]) if names else None
            problems.append(Problem(where, problem["message"]))
    return problems


def _lines(program: Program) -> _Lines:
    lines = _Lines()
    for added in program.added.values():
        lines.added[added.name] = added.where
        for name, part in added.reactor._parts.declared.items():
            lines.of[f"{added.name}.{name}"] = part.where
            lines.kinds[f"{added.name}.{name}"] = KINDS[type(part)]
            if isinstance(part, Reaction) and part.tardy is not None:
                lines.of[f"{added.name}.{tardy_name(part)}"] = part.where
                lines.kinds[f"{added.name}.{tardy_name(part)}"] = KINDS[Reaction]
    for connection in program.connections:
        lines.into.setdefault(full_name(connection.sink), []).append(connection)
    return lines


def _double(sink: str, lines: _Lines) -> Problem:
    first, second, *rest = lines.into[sink]
    # The native code names an input once for each excess connection.
    lines.into[sink] = [first, *rest]
    text = f"{sink} is already connected to {full_name(first.source)} ({first.where}); remove one connection"
    return Problem(second.where, text)


def _cycle(names: list[str], lines: _Lines) -> Problem:
    where = None
    steps = []
    for name, after in zip(names, [*names[1:], None], strict=True):
        steps.append(f"{name} ({lines.kinds.get(name, '?')}, {lines.of.get(name, '?')})")
        for connection in lines.into.get(after or "", ()):
            if full_name(connection.source) == name:
                where = where or connection.where
                steps[-1] += f", connected at {connection.where}"
    text = "\n    -> ".join(steps)
    return Problem(
        where or lines.of.get(names[0]),
        "causality cycle: each waits for the one before it at the same tag. Give one of its connections a delay "
        f'(after="1ms"), or reorder reactions\n       {text}',
    )
