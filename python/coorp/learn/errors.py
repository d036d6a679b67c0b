"""Errors of `coorp learn`. Imports nothing, so that `coorp learn` can report that torch is missing."""


class Mend(Exception):
    """Something for the user to fix; the text says what is wrong, where, and what to do. Exit code 2."""


class Broken(Exception):
    """The simulator violated an invariant. Exit code 1."""
