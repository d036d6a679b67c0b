"""Finds the declared types of ports, and checks whether a value of one type fits another."""

from __future__ import annotations

import inspect
import sys
import types
import typing
from typing import Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin

from coorp.reactor.declare import Declaration

UNKNOWN = Any


def declared_type(part: Declaration) -> Any:  # noqa: ANN401
    """Returns T of `Input[T]()`, or of `name: Input[T] = Input()`; Any if it is missing or cannot be evaluated."""
    made = getattr(part, "__orig_class__", None)
    hint = made if made is not None else _annotation(part)
    if get_origin(hint) is ClassVar:
        hint = get_args(hint)[0]
    if get_origin(hint) is not type(part):
        return UNKNOWN
    return _evaluated(get_args(hint)[0], part)


def _annotation(part: Declaration) -> Any:  # noqa: ANN401
    if part.owner is None:
        return UNKNOWN
    try:
        hint = inspect.get_annotations(part.owner).get(part.name, UNKNOWN)
    except NameError:
        return UNKNOWN
    return _evaluated(hint, part)


def _evaluated(hint: Any, part: Declaration) -> Any:  # noqa: ANN401
    text = hint.__forward_arg__ if isinstance(hint, typing.ForwardRef) else hint
    if not isinstance(text, str):
        return hint
    module = sys.modules.get(getattr(part.owner, "__module__", ""))
    try:
        return eval(text, dict(vars(module)) if module else {}, dict(vars(part.owner)) if part.owner else {})
    except Exception:
        # The hint has names that only a type checker sees, which then checks them.
        return UNKNOWN


def fits(given: Any, wanted: Any) -> bool:  # noqa: ANN401
    """Returns whether a port of type `wanted` accepts a value of type `given`. In doubt, it does."""
    if wanted in (Any, object) or given is Any or given == wanted:
        return True
    if isinstance(given, TypeVar) or isinstance(wanted, TypeVar):
        return True
    given, wanted = _none(given), _none(wanted)
    if is_union(given):
        return all(fits(part, wanted) for part in get_args(given))
    if is_union(wanted):
        return any(fits(given, part) for part in get_args(wanted))
    if get_origin(given) is Literal:
        if get_origin(wanted) is Literal:
            return set(get_args(given)) <= set(get_args(wanted))
        return all(fits(type(value), wanted) for value in get_args(given))
    if get_origin(wanted) is Literal:
        return False
    return _classes_fit(given, wanted)


def _classes_fit(given: Any, wanted: Any) -> bool:  # noqa: ANN401
    of, to = get_origin(given) or given, get_origin(wanted) or wanted
    if not (isinstance(of, type) and isinstance(to, type)):
        return True
    if (of is int and to in (float, complex)) or (of is float and to is complex):
        return True
    try:
        if not issubclass(of, to):
            return False
    except TypeError:
        # This protocol cannot be checked at run time.
        return True
    inner, outer = get_args(given), get_args(wanted)
    if of is not to or len(inner) != len(outer):
        return True
    return all(fits(a, b) for a, b in zip(inner, outer, strict=True))


def _none(hint: Any) -> Any:  # noqa: ANN401
    return type(None) if hint is None else hint


def is_union(hint: Any) -> bool:  # noqa: ANN401
    """Returns whether a type is a union of others."""
    return get_origin(hint) in (Union, types.UnionType)


def type_name(hint: Any) -> str:  # noqa: ANN401
    """Returns a type as a user would write it."""
    if isinstance(hint, type) and not get_args(hint):
        return (
            hint.__qualname__
            if hint.__module__ in ("builtins", "__main__")
            else f"{hint.__module__}.{hint.__qualname__}"
        )
    return str(hint).replace("typing.", "")
