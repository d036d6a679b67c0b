"""How `coorp learn` ends when it does not end well. Imports nothing, so that it can be told when torch is missing."""


class Mend(Exception):
    """Something for the user to mend; the text says what is wrong, where, and what to do. Exit code 2."""


class Broken(Exception):
    """The simulator broke one of its own rules. Exit code 1."""
