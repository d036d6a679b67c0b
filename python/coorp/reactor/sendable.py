"""Finds declared types that certainly cannot pass between processes, so that a program is refused before it runs.

A class is refused if neither it nor a subclass known by now can be encoded. In doubt a type passes here; if a value
cannot be sent, it is refused at that time, with its place.
"""

from __future__ import annotations

import dataclasses
import typing
from abc import ABCMeta
from typing import Any, get_args, get_origin

from coorp.reactor.codec import can_encode
from coorp.reactor.port_types import is_union

DEPTH_MAX = 8


def unsendable(hint: Any, depth: int = 0) -> Any:  # noqa: ANN401
    """Returns the part of a type that cannot be sent; None if there is none."""
    if depth > DEPTH_MAX:
        return None
    if get_args(hint):
        found = [unsendable(part, depth + 1) for part in get_args(hint)]
        if is_union(hint):
            # Perhaps only one of them is ever sent.
            return found[0] if all(part is not None for part in found) else None
        origin = get_origin(hint)
        within = (part for part in found if part is not None) if origin in (list, tuple, dict, set, frozenset) else ()
        return next(iter(within), None)
    if hint in (Any, object) or not isinstance(hint, type) or isinstance(hint, ABCMeta):
        # Classes that are not subclasses may be registered with an abstract one, as `int` is with `numbers.Number`.
        return None
    if typing.is_typeddict(hint):
        return _in_fields(hint, depth)
    if not any(map(can_encode, _with_subclasses(hint))):
        return hint
    return _in_fields(hint, depth) if dataclasses.is_dataclass(hint) else None


def _in_fields(kind: type, depth: int) -> Any:  # noqa: ANN401
    try:
        hints = typing.get_type_hints(kind)
    except Exception:
        # The hints have names that only a type checker sees.
        return None
    names = [field.name for field in dataclasses.fields(kind)] if dataclasses.is_dataclass(kind) else list(hints)
    found = (unsendable(hints.get(name, Any), depth + 1) for name in names)
    return next((part for part in found if part is not None), None)


def _with_subclasses(kind: type) -> list[type]:
    found = [kind]
    for known in found:
        found += [each for each in type.__subclasses__(known) if each not in found]
    return found
